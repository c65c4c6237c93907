/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/talk.h"
#include "base/json.h"
#include "base/utf8.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAVED_BYTES_MAX ((size_t)256 << 20)
#define DIM             "\033[2m"
#define RED             "\033[31m"
#define PLAIN           "\033[0m"

/* ---- conversation ---- */

static void drop_messages(struct talk *t, int keep)
{
    while (t->n_messages > keep) {
        t->n_messages--;
        free(t->messages[t->n_messages].role);
        free(t->messages[t->n_messages].content);
    }
}

static int add_message(struct talk *t, const char *role, const char *content, struct err *e)
{
    if (t->n_messages == t->cap_messages) {
        int cap = t->cap_messages ? t->cap_messages * 2 : 16;
        struct talk_message *m = realloc(t->messages, (size_t)cap * sizeof *m);
        if (!m) {
            return err_set(e, ERR_NOMEM, "out of memory");
        }
        t->messages = m;
        t->cap_messages = cap;
    }
    struct talk_message m = {strdup(role), strdup(content)};
    if (!m.role || !m.content) {
        free(m.role);
        free(m.content);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    t->messages[t->n_messages++] = m;
    return 0;
}

void talk_fini(struct talk *t)
{
    drop_messages(t, 0);
    free(t->messages);
    free(t->system);
    ask_settings_fini(&t->settings);
    buf_fini(&t->answer);
}

int talk_set_system(struct talk *t, const char *text, struct err *e)
{
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    free(t->system);
    t->system = copy;
    return 0;
}

static void write_message(struct json_writer *w, const char *role, const char *content)
{
    json_w_object(w);
    json_w_kstring(w, "role", role);
    json_w_kstring(w, "content", content);
    json_w_object_end(w);
}

static void write_messages(const struct talk *t, struct json_writer *w)
{
    json_w_array(w);
    if (t->system) {
        write_message(w, "system", t->system);
    }
    for (int i = 0; i < t->n_messages; i++) {
        write_message(w, t->messages[i].role, t->messages[i].content);
    }
    json_w_array_end(w);
}

/* ---- showing ---- */

/* What a model writes must not steer the terminal: C0 (but tab and line break), DEL and C1 go. */
static size_t clean(const char *text, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        unsigned char next = i + 1 < n ? (unsigned char)text[i + 1] : 0;
        if (c == 0xc2 && next >= 0x80 && next < 0xa0) {
            i++;
        } else if ((c >= 0x20 && c != 0x7f) || c == '\n' || c == '\t') {
            out[k++] = text[i];
        }
    }
    return k;
}

static int put(const struct talk *t, const char *text, size_t n)
{
    char *copy = NULL;
    if (t->terminal) {
        copy = malloc(n + 1);
        if (!copy) {
            return -1;
        }
        n = clean(text, n, copy);
        text = copy;
    }
    int bad = fwrite(text, 1, n, stdout) != n || fflush(stdout) != 0;
    free(copy);
    return bad ? -1 : 0;
}

/* Reasoning is shown to a person only, and never becomes part of the conversation. */
static int show(void *user, const char *text, size_t n, int thought)
{
    struct talk *t = user;
    if (thought && !t->terminal) {
        return 0;
    }
    if (thought != t->thinking) {
        t->thinking = thought;
        fputs(!t->colour ? (thought ? "" : "\n\n") : thought ? DIM : PLAIN "\n\n", stdout);
    }
    if (!thought) {
        buf_append(&t->answer, text, n);
        if (t->answer.failed) {
            return -1;
        }
    }
    return put(t, text, n);
}

static void end_answer(struct talk *t, const struct ask_result *r, int rc)
{
    const char *dim = t->colour ? DIM : "", *plain = t->colour ? PLAIN : "";
    if (t->thinking && t->colour) {
        fputs(PLAIN, stdout);
    }
    t->thinking = 0;
    if (rc >= 0 || t->answer.len) {
        fputc('\n', stdout);
    }
    fflush(stdout);
    if (t->interactive && rc >= 0 && (r->interrupted || r->cut)) {
        fprintf(stderr, "%s[%s]%s\n", dim,
                r->interrupted ? "stopped" : "cut at the most tokens allowed", plain);
    }
    if (t->stats && rc >= 0) {
        double rate = r->n_tokens > 1 && r->seconds_after > 0
                          ? (double)(r->n_tokens - 1) / r->seconds_after
                          : 0;
        fprintf(stderr, "%s[%d tokens, first after %.2f s, %.1f tok/s]%s\n", dim, r->n_tokens,
                r->seconds_to_first, rate, plain);
    }
}

/* ---- asking ---- */

static int ask(struct talk *t, const char *prompt, struct err *e)
{
    struct ask_result r = {0};
    struct ask_question q = {.settings = &t->settings, .text = show, .user = t};
    struct buf messages;
    struct json_writer w;
    buf_init(&messages);
    buf_clear(&t->answer);
    buf_append(&t->answer, "", 0);
    if (t->chat) {
        json_w_init(&w, &messages);
        write_messages(t, &w);
        q.messages = messages.data;
    } else {
        q.prompt = prompt;
    }
    int rc = messages.failed || t->answer.failed ? err_set(e, ERR_NOMEM, "out of memory")
                                                 : t->ask.question(t->ask.self, &q, &r, e);
    end_answer(t, &r, rc);
    t->quit |= r.terminated;
    if (rc >= 0 && (r.interrupted || r.terminated)) {
        rc = err_set(e, ERR_CANCELED, "interrupted");
    }
    buf_fini(&messages);
    return rc;
}

int talk_say(struct talk *t, const char *text, struct err *e)
{
    if (!t->chat) {
        return ask(t, text, e);
    }
    int before = t->n_messages;
    int rc = add_message(t, "user", text, e);
    rc = rc < 0 ? rc : ask(t, NULL, e);
    if (rc >= 0 || (rc == ERR_CANCELED && t->answer.len)) {
        int kept = add_message(t, "assistant", t->answer.data, e);
        rc = kept < 0 ? kept : rc;
    } else {
        drop_messages(t, before);
    }
    return rc;
}

/* ---- commands ---- */

static int do_system(struct talk *t, char *rest, struct err *e)
{
    if (!*rest) {
        printf("%s\n", t->system ? t->system : "(no system message)");
        return 0;
    }
    return talk_set_system(t, strcmp(rest, "off") == 0 ? NULL : rest, e);
}

static int do_reset(struct talk *t, char *rest, struct err *e)
{
    (void)rest;
    (void)e;
    drop_messages(t, 0);
    return 0;
}

static int do_retry(struct talk *t, char *rest, struct err *e)
{
    (void)rest;
    if (t->n_messages < 2) {
        return err_set(e, ERR_INVALID, "/retry: there is no answer yet");
    }
    char *again = strdup(t->messages[t->n_messages - 2].content);
    if (!again) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    drop_messages(t, t->n_messages - 2);
    int rc = talk_say(t, again, e);
    free(again);
    return rc;
}

static int do_save(struct talk *t, char *rest, struct err *e)
{
    struct json_writer w;
    struct buf b;
    if (!*rest) {
        return err_set(e, ERR_INVALID, "/save: expected a file's name");
    }
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_kstring(&w, "model", t->ask.model);
    json_w_key(&w, "messages");
    write_messages(t, &w);
    json_w_object_end(&w);
    buf_putc(&b, '\n');
    int rc = b.failed ? err_set(e, ERR_NOMEM, "out of memory") : 0;
    int fd = rc < 0 ? -1 : open(rest, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (rc >= 0 && (!f || fwrite(b.data, 1, b.len, f) != b.len || fflush(f) != 0)) {
        rc = err_set(e, ERR_IO, "%s: %s", rest, strerror(errno));
    }
    if (f) {
        fclose(f);
    } else if (fd >= 0) {
        close(fd);
    }
    buf_fini(&b);
    return rc;
}

static const char *text_of(const struct json *message, const char *key)
{
    const struct json *v = json_get(message, key);
    size_t n;
    const char *s = json_type(v) == JSON_STRING ? json_string(v, &n) : NULL;
    return s && strlen(s) == n ? s : NULL;
}

/* What /save wrote, or a bare array of messages. The whole file is looked at before anything of the
 * conversation goes. */
static int do_load(struct talk *t, char *rest, struct err *e)
{
    struct json *file = NULL;
    int rc = json_parse_file(&file, rest, SAVED_BYTES_MAX, e);
    const struct json *list = json_type(file) == JSON_OBJECT ? json_get(file, "messages") : file;
    size_t n = json_type(list) == JSON_ARRAY ? json_length(list) : 0;
    if (rc >= 0 && json_type(list) != JSON_ARRAY) {
        rc = err_set(e, ERR_FORMAT, "%s: expected an array of messages", rest);
    }
    for (size_t i = 0; rc >= 0 && i < n; i++) {
        const char *role = text_of(json_at(list, i), "role");
        if (!role || !text_of(json_at(list, i), "content")) {
            rc = err_set(e, ERR_FORMAT, "%s: message %zu has no role and content as text", rest,
                         i + 1);
        }
    }
    if (rc >= 0) {
        drop_messages(t, 0);
        rc = talk_set_system(t, NULL, e);
    }
    for (size_t i = 0; rc >= 0 && i < n; i++) {
        const char *role = text_of(json_at(list, i), "role");
        const char *content = text_of(json_at(list, i), "content");
        rc = i == 0 && strcmp(role, "system") == 0 ? talk_set_system(t, content, e)
                                                   : add_message(t, role, content, e);
    }
    json_free(file);
    return rc;
}

static int do_model(struct talk *t, char *rest, struct err *e)
{
    struct buf names;
    if (*rest) {
        return t->ask.set_model(t->ask.self, rest, &t->ask.model, e);
    }
    buf_init(&names);
    int rc = t->ask.list_models(t->ask.self, &names, e);
    if (rc >= 0) {
        printf("%s answers; there are:\n%s", t->ask.model, names.data ? names.data : "");
    }
    buf_fini(&names);
    return rc;
}

static int do_set(struct talk *t, char *rest, struct err *e)
{
    if (!*rest) {
        for (int i = 0; i < ASK_SETTINGS; i++) {
            printf("%s %s\n", ask_setting_names[i],
                   t->settings.text[i] ? t->settings.text[i] : "(not set)");
        }
        return 0;
    }
    char *value = strpbrk(rest, " \t=");
    if (value) {
        *value++ = '\0';
        value += strspn(value, " \t=");
    }
    int off = !value || !*value || strcmp(value, "off") == 0;
    return ask_set(&t->settings, rest, off ? NULL : value, e);
}

static int do_exit(struct talk *t, char *rest, struct err *e)
{
    (void)rest;
    (void)e;
    t->quit = 1;
    return 0;
}

static int do_help(struct talk *t, char *rest, struct err *e);

static const struct command {
    const char *name, *args, *help;
    int chat_only;
    int (*run)(struct talk *t, char *rest, struct err *e);
} commands[] = {
    {"help", "", "this list", 0, do_help},
    {"system", "[TEXT|off]", "show, set or drop the system message", 1, do_system},
    {"reset", "", "forget the conversation; the system message stays", 1, do_reset},
    {"retry", "", "ask the last question again", 1, do_retry},
    {"save", "FILE", "write the conversation as JSON", 1, do_save},
    {"load", "FILE", "go on with a conversation that was saved", 1, do_load},
    {"model", "[NAME]", "show the models, or ask another one", 0, do_model},
    {"set", "[NAME [VALUE]]", "show, set or take back temperature, top_p, max_tokens, …", 0,
     do_set},
    {"exit", "", "leave; so does Ctrl-D", 0, do_exit},
    {"quit", "", NULL, 0, do_exit},
};

static int do_help(struct talk *t, char *rest, struct err *e)
{
    (void)rest;
    (void)e;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const struct command *c = &commands[i];
        if (c->help && (t->chat || !c->chat_only)) {
            printf("/%-7s %-15s %s\n", c->name, c->args, c->help);
        }
    }
    puts("\"\"\" begins and ends a text of several lines; // begins a text with a slash.\n"
         "Ctrl-C stops the answer.");
    return 0;
}

int talk_command(struct talk *t, const char *line, struct err *e)
{
    char *copy = strdup(line + 1);
    int rc = ERR_INVALID;
    if (!copy) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    size_t word = strcspn(copy, " \t"), end = strlen(copy);
    while (end > word && (copy[end - 1] == ' ' || copy[end - 1] == '\t')) {
        copy[--end] = '\0';
    }
    char *rest = copy + word + strspn(copy + word, " \t");
    copy[word] = '\0';
    err_set(e, rc, "there is no command /%s; /help names them", copy);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].name, copy) == 0 && (t->chat || !commands[i].chat_only)) {
            rc = commands[i].run(t, rest, e);
            fflush(stdout);
            break;
        }
    }
    free(copy);
    return rc;
}

/* ---- lines ---- */

/* A text of several lines, between two """. */
static enum line_read read_block(const char *prompt, struct line_reader *r, struct buf *text)
{
    struct buf all, line;
    enum line_read got = LINE_TEXT;
    buf_init(&all);
    buf_init(&line);
    buf_puts(&all, text->data + 3);
    for (;;) {
        if (all.len >= 3 && memcmp(all.data + all.len - 3, "\"\"\"", 3) == 0) {
            all.data[all.len -= 3] = '\0';
            break;
        }
        got = line_read(r, prompt, &line);
        if (got != LINE_TEXT) {
            break;
        }
        if (all.len) {
            buf_putc(&all, '\n');
        }
        buf_append(&all, line.data, line.len);
    }
    buf_clear(text);
    buf_append(text, all.data ? all.data : "", all.len);
    buf_fini(&all);
    buf_fini(&line);
    return got;
}

int talk_check(const char *text, size_t n, struct err *e)
{
    return memchr(text, 0, n)        ? err_set(e, ERR_INVALID, "the question holds NUL")
           : !utf8_is_valid(text, n) ? err_set(e, ERR_INVALID, "the question is not valid UTF-8")
                                     : 0;
}

static int take_line(struct talk *t, const char *text, int block, struct err *e)
{
    if (!block && text[0] == '/' && text[1] != '/') {
        return talk_command(t, text, e);
    }
    return talk_say(t, !block && text[0] == '/' ? text + 1 : text, e);
}

int talk_lines(struct talk *t, struct line_reader *r, struct err *e)
{
    const char *prompt = t->colour ? "\1\033[1;32m\1>\1\033[0m\1 " : "> ";
    const char *more = t->colour ? "\1\033[2m\1…\1\033[0m\1 " : "… ";
    struct buf line;
    int rc = 0;
    buf_init(&line);
    while (!t->quit && rc >= 0) {
        enum line_read got = line_read(r, prompt, &line);
        int block = got == LINE_TEXT && line.len >= 3 && memcmp(line.data, "\"\"\"", 3) == 0;
        got = block ? read_block(more, r, &line) : got;
        if (got == LINE_INTERRUPTED && t->interactive) {
            fputs("\n(Ctrl-D or /exit leaves)\n", stderr);
            continue;
        }
        if (got == LINE_END || got == LINE_TERMINATED || got == LINE_INTERRUPTED) {
            if (t->interactive) {
                fputc('\n', stderr);
            }
            rc = got == LINE_INTERRUPTED ? err_set(e, ERR_CANCELED, "interrupted") : 0;
            break;
        }
        if (!line.len) {
            continue;
        }
        rc = talk_check(line.data, line.len, e);
        rc = rc < 0 ? rc : take_line(t, line.data, block, e);
        if (rc < 0 && t->interactive) {
            if (rc != ERR_CANCELED) {
                fprintf(stderr, "%s%s%s\n", t->colour ? RED : "", e->text, t->colour ? PLAIN : "");
            }
            rc = 0;
        }
    }
    buf_fini(&line);
    return rc;
}
