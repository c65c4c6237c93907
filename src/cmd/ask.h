/* SPDX-License-Identifier: Apache-2.0 */
/* Whom `tern chat` and `tern complete` ask: an OpenAI-compatible server, or an engine in this very
 * process. Both stream text to the same sink, take the same settings and end the same way when the
 * user presses Ctrl-C. One question at a time, all on the caller's thread. SIGINT and SIGTERM must
 * be blocked: they are waited for, never handled. */
#ifndef TERN_CMD_ASK_H
#define TERN_CMD_ASK_H

#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"
#include "lib/args.h"
#include <stdint.h>

/* The settings a user may change, by the names of the API's fields. */
enum ask_setting {
    ASK_TEMPERATURE,
    ASK_TOP_P,
    ASK_TOP_K,
    ASK_MIN_P,
    ASK_MAX_TOKENS,
    ASK_SEED,
    ASK_REPETITION_PENALTY,
    ASK_PRESENCE_PENALTY,
    ASK_FREQUENCY_PENALTY,
    ASK_STOP,
    ASK_SETTINGS
};
extern const char *const ask_setting_names[ASK_SETTINGS];

/* What is not set is left to the server, or to the model's generation_config.json. */
struct ask_settings {
    char *text[ASK_SETTINGS]; /* as given, checked; NULL: not set */
};
/* value NULL: takes the setting back. ERR_INVALID says what is allowed; nothing changes then. */
int ask_set(struct ask_settings *s, const char *name, const char *value, struct err *e);
void ask_settings_fini(struct ask_settings *s);
double ask_number(const struct ask_settings *s, enum ask_setting which);
int ask_is_integer(enum ask_setting which);

struct ask_question {
    const char *messages; /* JSON array of a conversation; NULL: a prompt to go on with */
    const char *prompt;
    const struct ask_settings *settings;
    /* Text as it comes. thought: the model's reasoning, told apart. Negative ends the answer. */
    int (*text)(void *user, const char *text, size_t n_bytes, int thought);
    void *user;
};

struct ask_result {
    int n_tokens;
    double seconds_to_first, seconds_after; /* after the first token */
    int interrupted;                        /* by SIGINT; what came until then was told */
    int terminated;                         /* by SIGTERM */
    int cut;                                /* ended by max_tokens or the context */
};

struct ask {
    void *self;
    const char *model; /* the name that answers; borrowed */
    int (*question)(void *self, const struct ask_question *q, struct ask_result *r, struct err *e);
    int (*set_model)(void *self, const char *name, const char **now, struct err *e);
    /* One name a line. */
    int (*list_models)(void *self, struct buf *out, struct err *e);
    void (*close)(void *self);
};

struct ask_remote_options {
    const char *url, *unix_socket, *ca_file, *api_key;
    const char *model; /* NULL: the first the server names */
};
int ask_remote_open(struct ask *a, const struct ask_remote_options *o, struct err *e);
/* args and what log points to stay the caller's and must outlive it. Loads the weights. */
int ask_local_open(struct ask *a, const struct args_engine *args, const struct log *log,
                   struct err *e);
void ask_close(struct ask *a); /* accepts one that was never opened */

#endif
