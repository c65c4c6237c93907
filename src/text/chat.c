/* SPDX-License-Identifier: Apache-2.0 */
/* Messages -> prompt. The template is the model's own Jinja: --chat-template, then
 * chat_template.jinja, then the "chat_template" of tokenizer_config.json, then the ERNIE template
 * below. Messages are handed to it as they came, except that content is always a string (or, for
 * templates that walk over parts, a list of parts) and that the arguments of tool calls are
 * objects.
 *
 * The named tokens of the tokenizer (cls_token, sep_token, …) count as written by the template;
 * everything that a request brings counts as data, and no byte of it can become part of a special
 * token. */
#include "text/chat.h"

#include "text/jinja.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX    ((size_t)64 << 20)
#define ARGUMENTS_DEPTH_MAX 64

/* What ERNIE-4.5 text models (not the Thinking ones) expect, for checkpoints that ship no template.
 */
static const char ernie_template[] =
    "{%- set begin = cls_token if cls_token is defined else '<|begin_of_sentence|>' -%}\n"
    "{%- set end = sep_token if sep_token is defined else '<|end_of_sentence|>' -%}\n"
    "{%- set ask = add_generation_prompt if add_generation_prompt is defined else true -%}\n"
    "{{- begin -}}\n"
    "{%- for m in messages -%}\n"
    "    {%- if m.role == 'system' -%}\n"
    "        {{- m.content ~ '\\n' -}}\n"
    "    {%- elif m.role == 'user' -%}\n"
    "        {{- 'User: ' ~ m.content ~ '\\n' -}}\n"
    "    {%- elif m.role == 'assistant' -%}\n"
    "        {{- 'Assistant: ' ~ m.content ~ end -}}\n"
    "    {%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if ask -%}\n"
    "    {{- 'Assistant: ' -}}\n"
    "{%- endif -%}\n";

struct chat_template {
    const struct tokenizer *t;
    char *source;
    struct jinja *jinja;
    int is_fallback;
    int wants_parts;
};

/* ---- finding the template ---- */

/* Copies the file's text; *out stays NULL when there is no such file. */
static int read_text(char **out, const char *path, struct err *e)
{
    struct buf b;
    if (buf_file_absent(path)) {
        return 0;
    }
    buf_init(&b);
    int r = buf_read_file(&b, path, JINJA_SOURCE_BYTES_MAX, e);
    if (!r) {
        buf_puts(&b, "");
        *out = buf_detach(&b);
        r = *out ? 0 : err_set(e, ERR_NOMEM, "%s: out of memory", path);
    }
    buf_fini(&b);
    return r;
}

/* "chat_template": a string, or a list of {"name", "template"} of which "default" is used. */
static int from_config(char **out, const char *path, struct err *e)
{
    struct json *doc = NULL;
    size_t n;
    if (buf_file_absent(path)) {
        return 0;
    }
    int r = json_parse_file(&doc, path, CONFIG_BYTES_MAX, e);
    if (r) {
        return r;
    }
    const struct json *v = json_get(doc, "chat_template");
    for (size_t i = 0; json_type(v) == JSON_ARRAY && i < json_length(v); i++) {
        const struct json *item = json_at(v, i), *name = json_get(item, "name");
        if (json_type(name) == JSON_STRING && !strcmp(json_string(name, &n), "default")) {
            v = json_get(item, "template");
            break;
        }
    }
    if (json_type(v) == JSON_STRING) {
        const char *s = json_string(v, &n);
        *out = strlen(s) == n ? strdup(s) : NULL;
        r = *out ? 0 : err_set(e, ERR_FORMAT, "%s: chat_template cannot be read", path);
    } else if (json_type(v) != JSON_NULL) {
        r = err_set(e, ERR_FORMAT,
                    "%s: chat_template is neither a string nor a list with a \"default\"", path);
    }
    json_free(doc);
    return r;
}

static int from_override(char **out, const char *override, struct err *e)
{
    int r = strlen(override) < 4096 ? read_text(out, override, e) : 0;
    if (r || *out) {
        return r;
    }
    if (!strpbrk(override, "{}\n")) {
        return err_set(e, ERR_NOT_FOUND,
                       "chat template %s: no such file, and it is no Jinja text either", override);
    }
    *out = strdup(override);
    return *out ? 0 : err_set(e, ERR_NOMEM, "chat template: out of memory");
}

static int find_source(struct chat_template *c, const char *dir, const char *override,
                       struct err *e)
{
    struct buf jinja, config;
    int r = 0;
    if (override) {
        return from_override(&c->source, override, e);
    }
    buf_init(&jinja);
    buf_init(&config);
    buf_printf(&jinja, "%s/chat_template.jinja", dir ? dir : "");
    buf_printf(&config, "%s/tokenizer_config.json", dir ? dir : "");
    if (jinja.failed || config.failed) {
        r = err_set(e, ERR_NOMEM, "chat template: out of memory");
    } else if (dir) {
        r = read_text(&c->source, jinja.data, e);
        if (!r && !c->source) {
            r = from_config(&c->source, config.data, e);
        }
    }
    if (!r && !c->source && tokenizer_chat_template(c->t)) {
        c->source = strdup(tokenizer_chat_template(c->t));
        r = c->source ? 0 : err_set(e, ERR_NOMEM, "chat template: out of memory");
    }
    if (!r && !c->source) {
        c->source = strdup(ernie_template);
        c->is_fallback = 1;
        r = c->source ? 0 : err_set(e, ERR_NOMEM, "chat template: out of memory");
    }
    buf_fini(&jinja);
    buf_fini(&config);
    return r;
}

/* c has its source, or r says why not. */
static int finish_open(struct chat_template **out, struct chat_template *c, int r, struct err *e)
{
    if (!r) {
        r = jinja_parse(&c->jinja, c->source, strlen(c->source), "chat template", e);
    }
    if (r) {
        chat_template_close(c);
        return r;
    }
    c->wants_parts = jinja_walks_content(c->jinja);
    *out = c;
    return 0;
}

int chat_template_open(struct chat_template **out, const char *model_dir, const char *override,
                       const struct tokenizer *t, struct err *e)
{
    struct chat_template *c = calloc(1, sizeof(*c));
    *out = NULL;
    if (!c) {
        return err_set(e, ERR_NOMEM, "chat template: out of memory");
    }
    c->t = t;
    return finish_open(out, c, find_source(c, model_dir, override, e), e);
}

int chat_template_compile(struct chat_template **out, const char *source, size_t n_bytes,
                          const struct tokenizer *t, struct err *e)
{
    struct chat_template *c = calloc(1, sizeof(*c));
    *out = NULL;
    if (c) {
        c->t = t;
        c->source = strndup(source, n_bytes);
    }
    if (!c || !c->source) {
        chat_template_close(c);
        return err_set(e, ERR_NOMEM, "chat template: out of memory");
    }
    return finish_open(out, c, 0, e);
}

void chat_template_close(struct chat_template *c)
{
    if (c) {
        jinja_free(c->jinja);
        free(c->source);
        free(c);
    }
}

const char *chat_template_source(const struct chat_template *c)
{
    return c->source;
}

int chat_template_is_fallback(const struct chat_template *c)
{
    return c->is_fallback;
}

int chat_template_wants_parts(const struct chat_template *c)
{
    return c->wants_parts;
}

/* ---- messages ---- */

struct render {
    const struct chat_template *c;
    struct jinja_run *run;
    struct err *e;
    size_t at; /* message number, for error texts */
    /* text of the last message's content, for continue_final_message */
    struct buf final;
};

static struct jval name(struct render *x, const char *s)
{
    return jinja_text(x->run, s, strlen(s), 1, 0);
}

/* Text of one content part, NULL after an error. */
static const char *part_text(struct render *x, const struct json *part, size_t *n)
{
    static const char *const text_types[] = {"text", "input_text", "output_text", "refusal"};
    if (json_type(part) == JSON_STRING) {
        return json_string(part, n);
    }
    const struct json *type = json_get(part, "type"), *text;
    if (json_type(part) != JSON_OBJECT || json_type(type) != JSON_STRING) {
        err_set(x->e, ERR_INVALID, "messages[%zu].content: each part needs a \"type\"", x->at);
        return NULL;
    }
    const char *s = json_string(type, n);
    for (size_t i = 0; i < sizeof(text_types) / sizeof(*text_types); i++) {
        if (!strcmp(s, text_types[i])) {
            text = json_get(part, strcmp(s, "refusal") ? "text" : "refusal");
            if (json_type(text) != JSON_STRING) {
                err_set(x->e, ERR_INVALID,
                        "messages[%zu].content: a part of type '%s' needs its text", x->at, s);
                return NULL;
            }
            return json_string(text, n);
        }
    }
    err_set(x->e, ERR_INVALID, "content part type '%s' is not supported by this model", s);
    return NULL;
}

static struct jval text_part(struct render *x, const char *s, size_t n)
{
    struct jval d = jinja_dict(x->run);
    jinja_dict_set(x->run, d, name(x, "type"), name(x, "text"));
    jinja_dict_set(x->run, d, name(x, "text"), jinja_text(x->run, s, n, 0, 0));
    return d;
}

/* Parts joined with newlines, or a list of parts for a template that wants them. */
static int list_content(struct render *x, const struct json *v, struct jval *out)
{
    struct buf joined;
    int as_parts = x->c->wants_parts, r = 0;
    struct jval list = jinja_list(x->run);
    buf_init(&joined);
    buf_clear(&x->final);
    for (size_t i = 0; i < json_length(v); i++) {
        size_t n = 0;
        const char *s = part_text(x, json_at(v, i), &n);
        if (!s) {
            r = ERR_INVALID;
            break;
        }
        if (as_parts) {
            jinja_list_add(x->run, list, text_part(x, s, n));
            buf_clear(&x->final);
            buf_append(&x->final, s, n);
        } else {
            if (i) {
                buf_putc(&joined, '\n');
            }
            buf_append(&joined, s, n);
        }
    }
    if (!r && joined.failed) {
        r = err_set(x->e, ERR_NOMEM, "out of memory");
    }
    if (!r && !as_parts) {
        buf_append(&x->final, joined.data ? joined.data : "", joined.len);
        list = jinja_text(x->run, joined.data ? joined.data : "", joined.len, 0, 1);
    }
    buf_fini(&joined);
    *out = list;
    return r;
}

static int content(struct render *x, const struct json *v, struct jval *out)
{
    size_t n = 0;
    const char *s = "";
    switch (json_type(v)) {
    case JSON_ARRAY:
        return list_content(x, v, out);
    case JSON_STRING:
        s = json_string(v, &n);
        break;
    case JSON_NULL:
        break;
    default:
        return err_set(x->e, ERR_INVALID,
                       "messages[%zu].content: expected a string or a list of parts", x->at);
    }
    buf_clear(&x->final);
    buf_append(&x->final, s, n);
    *out = jinja_text(x->run, s, n, 0, 0);
    return 0;
}

/* The arguments of one call: JSON text becomes the value that it describes. */
static int arguments(struct render *x, const struct json *v, struct jval *out)
{
    struct json *doc = NULL;
    size_t n;
    if (json_type(v) != JSON_STRING) {
        *out = json_type(v) == JSON_NULL ? jinja_dict(x->run) : jinja_from_json(x->run, v, 0);
        return 0;
    }
    const char *s = json_string(v, &n);
    if (n == 0) {
        *out = jinja_dict(x->run);
        return 0;
    }
    struct err why = {0};
    if (json_parse(&doc, s, n, ARGUMENTS_DEPTH_MAX, &why)) {
        return err_set(x->e, ERR_INVALID,
                       "messages[%zu].tool_calls: function.arguments is not JSON: %s", x->at,
                       why.text);
    }
    *out = jinja_from_json(x->run, doc, 1);
    json_free(doc);
    return 0;
}

/* A copy of an object in which the value of `key` is replaced by what `make` makes of it. */
static int with_key(struct render *x, const struct json *v, const char *key,
                    int (*make)(struct render *, const struct json *, struct jval *),
                    struct jval *out)
{
    size_t it = 0, n;
    const char *k;
    const struct json *item;
    *out = jinja_dict(x->run);
    while (json_next(v, &it, &k, &n, &item)) {
        struct jval value;
        if (!strcmp(k, key)) {
            if (make(x, item, &value)) {
                return ERR_INVALID;
            }
        } else {
            value = jinja_from_json(x->run, item, 0);
        }
        jinja_dict_set(x->run, *out, jinja_text(x->run, k, n, 0, 0), value);
    }
    return 0;
}

static int call_function(struct render *x, const struct json *v, struct jval *out)
{
    if (json_type(v) != JSON_OBJECT) {
        *out = jinja_from_json(x->run, v, 0);
        return 0;
    }
    return with_key(x, v, "arguments", arguments, out);
}

static int tool_calls(struct render *x, const struct json *v, struct jval *out)
{
    if (json_type(v) == JSON_NULL) {
        *out = jinja_from_json(x->run, NULL, 0);
        return 0;
    }
    if (json_type(v) != JSON_ARRAY) {
        return err_set(x->e, ERR_INVALID, "messages[%zu].tool_calls: expected a list", x->at);
    }
    *out = jinja_list(x->run);
    for (size_t i = 0; i < json_length(v); i++) {
        struct jval call;
        if (json_type(json_at(v, i)) != JSON_OBJECT) {
            return err_set(x->e, ERR_INVALID, "messages[%zu].tool_calls[%zu]: expected an object",
                           x->at, i);
        }
        if (with_key(x, json_at(v, i), "function", call_function, &call)) {
            return ERR_INVALID;
        }
        jinja_list_add(x->run, *out, call);
    }
    return 0;
}

/* Templates and clients know the reasoning of an earlier turn by one of two names: a message that
 * has it by one gets the other too. */
static void name_reasoning(struct render *x, const struct json *v, struct jval *message)
{
    static const char *const names[] = {"reasoning", "reasoning_content"};
    for (int i = 0; i < 2; i++) {
        const struct json *text = json_get(v, names[i]);
        if (json_type(text) == JSON_STRING && json_type(json_get(v, names[!i])) == JSON_NULL) {
            jinja_dict_set(x->run, *message, name(x, names[!i]), jinja_from_json(x->run, text, 0));
        }
    }
}

static int message(struct render *x, const struct json *v, struct jval *out)
{
    size_t it = 0, n;
    const char *key;
    const struct json *item;
    struct jval value;
    if (json_type(v) != JSON_OBJECT) {
        return err_set(x->e, ERR_INVALID, "messages[%zu]: expected an object", x->at);
    }
    if (json_type(json_get(v, "role")) != JSON_STRING) {
        return err_set(x->e, ERR_INVALID, "messages[%zu]: field 'role' is missing or not a string",
                       x->at);
    }
    *out = jinja_dict(x->run);
    while (json_next(v, &it, &key, &n, &item)) {
        if (!strcmp(key, "content")) {
            continue; /* below, also when it is missing */
        }
        if (!strcmp(key, "tool_calls")) {
            if (tool_calls(x, item, &value)) {
                return ERR_INVALID;
            }
        } else {
            value = jinja_from_json(x->run, item, 0);
        }
        jinja_dict_set(x->run, *out, jinja_text(x->run, key, n, 0, 0), value);
    }
    name_reasoning(x, v, out);
    if (content(x, json_get(v, "content"), &value)) {
        return ERR_INVALID;
    }
    jinja_dict_set(x->run, *out, name(x, "content"), value);
    return 0;
}

static int set_variables(struct render *x, const struct json *messages,
                         const struct chat_render_options *o)
{
    size_t it = 0, n;
    const char *key, *value;
    const struct json *item;
    struct jval list = jinja_list(x->run);
    if (json_type(messages) != JSON_ARRAY || json_length(messages) == 0) {
        return err_set(x->e, ERR_INVALID, "messages: expected a list with at least one message");
    }
    while (tokenizer_named_next(x->c->t, &it, &key, &value)) {
        jinja_run_set(x->run, key, jinja_text(x->run, value, strlen(value), 1, 0));
    }
    for (x->at = 0; x->at < json_length(messages); x->at++) {
        struct jval m;
        if (message(x, json_at(messages, x->at), &m)) {
            return ERR_INVALID;
        }
        jinja_list_add(x->run, list, m);
    }
    /* What a request may set by kwargs comes first: it cannot replace the messages. */
    for (it = 0; o && json_next(o->kwargs, &it, &key, &n, &item);) {
        if (strlen(key) == n) {
            jinja_run_set(x->run, key, jinja_from_json(x->run, item, 0));
        }
    }
    jinja_run_set(x->run, "messages", list);
    if (!json_get(o ? o->kwargs : NULL, "tools") ||
        o->tools) { /* none, not undefined, when there are none */
        jinja_run_set(x->run, "tools", jinja_from_json(x->run, o ? o->tools : NULL, 0));
    }
    if (!json_get(o ? o->kwargs : NULL, "documents") || o->documents) {
        jinja_run_set(x->run, "documents", jinja_from_json(x->run, o ? o->documents : NULL, 0));
    }
    if (o && o->add_generation_prompt >= 0) {
        jinja_run_set(x->run, "add_generation_prompt", jinja_bool(o->add_generation_prompt));
    }
    return 0;
}

/* Cuts the text behind the last message's content: its last place among the bytes that are data.
 * Blanks at its end stay when the template kept them. */
static int cut_after_final(struct render *x, size_t start, struct buf *text, struct buf *marks)
{
    const char *s = x->final.data ? x->final.data : "";
    size_t n = x->final.len;
    size_t lead = unicode_leading_space(s, n);
    size_t core = n - lead - unicode_trailing_space(s + lead, n - lead);
    s += lead;
    if (core == 0) {
        return err_set(x->e, ERR_INVALID,
                       "continue_final_message is set but the final message has no text");
    }
    for (size_t i = text->len - start >= core ? text->len - core + 1 : start; i-- > start;) {
        if (marks->data[i] || text->data[i] != s[0] || memcmp(text->data + i, s, core) ||
            memchr(marks->data + i, 1, core)) {
            continue;
        }
        size_t whole = n - lead;
        if (text->len - i >= whole && !memcmp(text->data + i, s, whole) &&
            !memchr(marks->data + i, 1, whole)) {
            core = whole;
        }
        text->len = marks->len = i + core;
        text->data[text->len] = 0;
        return 0;
    }
    return err_set(x->e, ERR_INVALID,
                   "continue_final_message is set but the final message does not appear in the "
                   "chat after applying the chat template");
}

int chat_render(const struct chat_template *c, const struct json *messages,
                const struct chat_render_options *o, struct buf *text, struct buf *marks,
                struct err *e)
{
    struct err local = {0};
    struct render x = {.c = c, .e = e ? e : &local};
    struct buf own_marks;
    size_t start = text->len;
    int r;
    buf_init(&x.final);
    buf_init(&own_marks);
    x.run = jinja_run_new(c->jinja);
    if (!x.run) {
        r = err_set(x.e, ERR_NOMEM, "out of memory");
    } else {
        r = set_variables(&x, messages, o);
    }
    if (!r) {
        /* Marks line up with text from its start, so that both can be cut at one place. */
        for (size_t i = 0; i < start; i++) {
            buf_putc(&own_marks, 0);
        }
        r = jinja_run_exec(x.run, text, &own_marks, x.e);
    }
    if (!r && o && o->continue_final_message) {
        r = cut_after_final(&x, start, text, &own_marks);
    }
    if (!r && marks) {
        buf_append(marks, own_marks.data ? own_marks.data + start : "", own_marks.len - start);
        r = marks->failed ? err_set(x.e, ERR_NOMEM, "out of memory") : 0;
    }
    jinja_run_free(x.run);
    buf_fini(&own_marks);
    buf_fini(&x.final);
    return r;
}

int chat_encode(const struct chat_template *c, const struct json *messages,
                const struct chat_render_options *o, struct token_ids *out, struct buf *text,
                struct err *e)
{
    struct buf own, marks;
    size_t start = text ? text->len : 0;
    buf_init(&own);
    struct buf *b = text ? text : &own;
    buf_init(&marks);
    int r = chat_render(c, messages, o, b, &marks, e);
    if (!r) {
        r = tokenizer_encode_marked(c->t, b->data ? b->data + start : "",
                                    (const uint8_t *)marks.data, b->len - start, out, e);
    }
    buf_fini(&own);
    buf_fini(&marks);
    return r;
}

int chat_encode_user(const struct chat_template *c, const char *system, const char *user,
                     size_t user_bytes, struct token_ids *out, struct buf *text, struct err *e)
{
    struct chat_render_options o = {.add_generation_prompt = 1};
    struct json *messages = NULL;
    struct json_writer w;
    struct buf b;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_array(&w);
    if (system) {
        json_w_object(&w);
        json_w_kstring(&w, "role", "system");
        json_w_kstring(&w, "content", system);
        json_w_object_end(&w);
    }
    json_w_object(&w);
    json_w_kstring(&w, "role", "user");
    json_w_key(&w, "content");
    json_w_stringn(&w, user, user_bytes);
    json_w_object_end(&w);
    json_w_array_end(&w);
    int rc = b.failed ? err_set(e, ERR_NOMEM, "out of memory")
                      : json_parse(&messages, b.data, b.len, JSON_DEPTH_DEFAULT, e);
    rc = rc < 0 ? rc : chat_encode(c, messages, &o, out, text, e);
    json_free(messages);
    buf_fini(&b);
    return rc;
}
