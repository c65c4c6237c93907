/* SPDX-License-Identifier: Apache-2.0 */
/* tern chat and tern complete: a terminal's end of any OpenAI-compatible server (--url, --uds) or
 * of a model directory, whose engine then runs in this process. Options are vLLM's where it has
 * them. Without a terminal, each line of standard input is a question; -q asks one and leaves. */
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/signals.h"
#include "cmd/talk.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_URL     "http://127.0.0.1:8000"
#define QUICK_BYTES_MAX ((size_t)64 << 20)

struct args_chat {
    const char *url, *uds, *ca_file, *api_key, *model_name, *system, *quick;
    int stats;
    const char *set[ASK_SETTINGS];
};

#define FIELD(f)   offsetof(struct args_chat, f)
#define G_PARTNER  "Whom to ask (MODEL, a directory or GGUF file, or a server)"
#define G_TALK     "Conversation"
#define G_SAMPLING "Sampling (what is not given is left to the model or the server)"
#define SETTING(flag, which, words)                                                                \
    {                                                                                              \
        .name = flag, .type = OPT_STRING, .offset = FIELD(set[which]), .group = G_SAMPLING,        \
        .help = words                                                                              \
    }

static const struct opt rows[] = {
    {.name = "url",
     .others = "--base-url",
     .type = OPT_STRING,
     .offset = FIELD(url),
     .group = G_PARTNER,
     .help = "Server, with or without /v1. Without MODEL: " DEFAULT_URL "."},
    {.name = "uds",
     .type = OPT_STRING,
     .offset = FIELD(uds),
     .group = G_PARTNER,
     .meta = "PATH",
     .help = "The server's Unix socket."},
    {.name = "ca-file",
     .type = OPT_STRING,
     .offset = FIELD(ca_file),
     .group = G_PARTNER,
     .meta = "PEM",
     .help = "Certificates to trust, instead of the system's."},
    {.name = "api-key",
     .type = OPT_STRING,
     .offset = FIELD(api_key),
     .group = G_PARTNER,
     .env = "OPENAI_API_KEY",
     .meta = "KEY",
     .help = "Key for the server."},
    {.name = "model-name",
     .type = OPT_STRING,
     .offset = FIELD(model_name),
     .group = G_PARTNER,
     .meta = "NAME",
     .help = "A model the server has; default its first. With --url, MODEL is the same."},
    {.name = "quick",
     .others = "-q",
     .type = OPT_STRING,
     .offset = FIELD(quick),
     .group = G_TALK,
     .meta = "TEXT",
     .help = "Ask this and leave; - takes all of standard input."},
    {.name = "stats",
     .type = OPT_BOOL,
     .offset = FIELD(stats),
     .group = G_TALK,
     .def = "false",
     .help = "Tokens and speeds after each answer, on standard error."},
    SETTING("temperature", ASK_TEMPERATURE, "0 is greedy."),
    SETTING("top-p", ASK_TOP_P, "Nucleus sampling."),
    SETTING("top-k", ASK_TOP_K, "Only the k likeliest tokens; 0 or -1: all."),
    SETTING("min-p", ASK_MIN_P, "Least probability, relative to the likeliest token's."),
    SETTING("max-tokens", ASK_MAX_TOKENS, "Most tokens of an answer."),
    SETTING("repetition-penalty", ASK_REPETITION_PENALTY, "1: none."),
    SETTING("presence-penalty", ASK_PRESENCE_PENALTY, "-2 to 2."),
    SETTING("frequency-penalty", ASK_FREQUENCY_PENALTY, "-2 to 2."),
    SETTING("stop", ASK_STOP, "Text that ends an answer."),
};
static const struct opt system_row[] = {
    {.name = "system-prompt",
     .others = "--system",
     .type = OPT_STRING,
     .offset = FIELD(system),
     .group = G_TALK,
     .meta = "TEXT",
     .help = "System message."},
};

static int fill_settings(struct talk *t, const struct opts *o, const struct args_chat *own,
                         const struct args_engine *a, struct err *e)
{
    char seed[32];
    int rc = 0;
    for (int i = 0; rc >= 0 && i < ASK_SETTINGS; i++) {
        rc = own->set[i] ? ask_set(&t->settings, ask_setting_names[i], own->set[i], e) : 0;
    }
    if (rc >= 0 && opts_source(o, "seed") != OPT_FROM_DEFAULT) {
        snprintf(seed, sizeof seed, "%lld", (long long)a->seed);
        rc = ask_set(&t->settings, "seed", seed, e);
    }
    return rc < 0 ? rc : talk_set_system(t, own->system, e);
}

/* $XDG_STATE_HOME/tern/NAME_history, its folders made; empty when there is no home. */
static void find_history(const char *name, char *out, size_t size)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = state && *state == '/' ? snprintf(out, size, "%s/tern/%s_history", state, name)
            : home && *home == '/'
                ? snprintf(out, size, "%s/.local/state/tern/%s_history", home, name)
                : -1;
    if (n < 0 || (size_t)n >= size) {
        *out = '\0';
        return;
    }
    for (char *p = out + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        int failed = mkdir(out, 0700) != 0 && errno != EEXIST;
        *p = '/';
        if (failed) {
            *out = '\0';
            return;
        }
    }
}

static int ask_once(struct talk *t, const char *quick, struct err *e)
{
    struct buf text;
    char chunk[16384];
    size_t n;
    if (strcmp(quick, "-") != 0) {
        const int bad = talk_check(quick, strlen(quick), e);
        return bad < 0 ? bad : talk_say(t, quick, e);
    }
    buf_init(&text);
    while (text.len < QUICK_BYTES_MAX && (n = fread(chunk, 1, sizeof chunk, stdin)) > 0) {
        buf_append(&text, chunk, n);
    }
    if (text.len && text.data[text.len - 1] == '\n') {
        text.data[--text.len] = '\0';
    }
    int rc = ferror(stdin) ? err_set(e, ERR_IO, "cannot read standard input")
             : text.failed || text.len >= QUICK_BYTES_MAX
                 ? err_set(e, ERR_TOO_LARGE, "standard input: more than %zu bytes", QUICK_BYTES_MAX)
             : !text.len ? err_set(e, ERR_INVALID, "the question is empty")
                         : talk_check(text.data, text.len, e);
    rc = rc < 0 ? rc : talk_say(t, text.data, e);
    buf_fini(&text);
    return rc;
}

static int open_partner(struct talk *t, const struct args_engine *a, const struct log *log,
                        const struct args_chat *own, const char *model, struct err *e)
{
    if (model && !own->url && !own->uds) {
        return ask_local_open(&t->ask, a, log, e);
    }
    struct ask_remote_options ro = {.url = own->url   ? own->url
                                           : own->uds ? "http://localhost"
                                                      : DEFAULT_URL,
                                    .unix_socket = own->uds,
                                    .ca_file = own->ca_file,
                                    .api_key = own->api_key,
                                    .model = own->model_name ? own->model_name : model};
    return ask_remote_open(&t->ask, &ro, e);
}

static int run(struct talk *t, const struct args_engine *a, const struct log *log,
               const struct args_chat *own, struct err *e)
{
    const char *model = a->model && *a->model ? a->model : NULL;
    const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
    int typed = isatty(STDIN_FILENO);
    struct line_reader *lines = NULL;
    char history[4096];
    t->terminal = isatty(STDOUT_FILENO);
    t->interactive = typed && !own->quick;
    t->stats = own->stats;
    t->colour = t->terminal && !(no_colour && *no_colour) && term && strcmp(term, "dumb") != 0;
    int rc = open_partner(t, a, log, own, model, e);
    if (rc < 0) {
        return rc;
    }
    if (own->quick) {
        return ask_once(t, own->quick, e);
    }
    find_history(t->chat ? "chat" : "complete", history, sizeof history);
    rc = line_open(&lines, typed && t->terminal, *history ? history : NULL, e);
    if (rc >= 0 && t->interactive) {
        fprintf(stderr, "%s. /help names the commands.\n", t->ask.model);
    }
    rc = rc < 0 ? rc : talk_lines(t, lines, e);
    line_close(lines);
    return rc;
}

static int talk(const char *command, const char *usage, int chat, int argc, char **argv)
{
    struct args_chat own = {0};
    struct args_engine a = {0};
    struct opts o = {.usage = usage,
                     .tables = {{rows, sizeof rows / sizeof *rows, &own},
                                args_engine_table(&a),
                                {system_row, 1, &own}},
                     .n_tables = chat ? 3 : 2};
    struct log log;
    struct talk t = {.chat = chat};
    struct err e = {0, ""};
    int rc = args_parse(&o, command, argc, argv);
    if (rc < 0 && (o.args.n > 0 || (a.model && *a.model))) {
        rc = args_model(&o, command, &a, 1);
        rc = rc < 0 && !own.url && !own.uds ? args_find_model(command, &a) : rc;
    }
    if (rc < 0 && fill_settings(&t, &o, &own, &a, &e) < 0) {
        fprintf(stderr, "usage: %s\n%s: error: %s\n", o.usage, command, e.text);
        rc = EXIT_USAGE;
    }
    if (rc < 0) {
        args_quiet_log(&o, &a, &log);
        signals_block();
        rc = run(&t, &a, &log, &own, &e);
        rc = rc < 0 ? args_fail(command, &e) : 0;
    }
    ask_close(&t.ask);
    talk_fini(&t);
    opts_fini(&o);
    return rc;
}

int cmd_chat(int argc, char **argv)
{
    return talk("tern chat", "tern chat [MODEL | --url URL] [options]", 1, argc, argv);
}

int cmd_complete(int argc, char **argv)
{
    return talk("tern complete", "tern complete [MODEL | --url URL] [options]", 0, argc, argv);
}
