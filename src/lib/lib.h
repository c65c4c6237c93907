/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the library: what is behind the handles of include/tern.h. The library adds to the
 * engine what every caller would have to write: files to engine, text to tokens and back, stop
 * strings, names of parameters, several requests on one queue. No file of it writes to a standard
 * stream or ends the process. */
#ifndef TERN_LIB_LIB_H
#define TERN_LIB_LIB_H

#include "base/buf.h"
#include "base/mq.h"
#include "engine/output.h"
#include "lib/setup.h"
#include "tern.h"
#include "text/grammar_cache.h"
#include <pthread.h>
#include <stdatomic.h>

/* ---- errors ---- */

/* Tells the caller; returns the code. */
int lib_fail(struct tern_error *out, const struct err *e);
int lib_no_memory(struct tern_error *out);
int lib_fault(struct err *e, const struct tern_error *from); /* the other way; returns the code */
/* Copies as much of a struct as the caller's `size` has room for; the size stays. */
void lib_fill(void *out, const void *from, size_t from_bytes);
size_t lib_length(const char *text, size_t n_bytes); /* resolves TERN_ALL */

/* ---- options ---- */

/* The option table with its values; args point into opts. */
struct lib_args {
    struct args_engine engine;
    struct opts opts;
};
int lib_args_init(struct lib_args *a, struct err *e); /* defaults and environment */
void lib_args_fini(struct lib_args *a);

struct lib_setting {
    char *name, *value;
};

struct tern_options {
    struct lib_args checked; /* what was set, to refuse a value at once */
    struct lib_setting *settings;
    int n_settings, n_outputs;
    tern_log_fn *log;
    void *log_user;
};

/* ---- tokenizer ---- */

struct tern_tokenizer {
    struct tokenizer *tokenizer;
    struct chat_template *chat;
};
/* ids and text may be NULL. */
int lib_chat_encode(const struct tern_tokenizer *t, const char *messages, size_t n_bytes,
                    const char *options, struct token_ids *ids, struct buf *text, struct err *e);

/* ---- engine ---- */

/* The handle outlives tern_engine_close as long as requests refer to it; model, weights and threads
 * do not. Under the lock: loading, closing, and what needs the engine to be there meanwhile. */
struct tern_engine {
    atomic_int n_refs;
    pthread_mutex_t lock;
    int loaded, failed, closed;
    int owns_args; /* else setup.a is the caller's */
    struct lib_args args;
    struct setup setup;
    struct tern_tokenizer tokenizer;
    struct grammar_cache *grammars;
    tern_log_fn *log;
    void *log_user;
};
/* An engine of arguments that the caller keeps, with a log of its own: for commands. */
int lib_engine_open(struct tern_engine **out, const struct args_engine *a, const struct log *log,
                    int n_outputs, struct err *e);
int lib_engine_load(struct tern_engine *en, struct err *e);
int lib_engine_is_closed(struct tern_engine *en, struct err *e); /* ERR_CANCELED, or 0 */
void lib_engine_unref(struct tern_engine *en);
/* As engine_abort; nothing when the engine is gone. */
void lib_engine_abort(struct tern_engine *en, uint64_t id, int sample, int stopped);

/* ---- parameters ---- */

struct lib_string {
    char *text;
    size_t n_bytes;
};

struct tern_params {
    struct sampling_params sp; /* its lists are empty: they are below */
    int fit_tokens;            /* max_tokens: as many as fit */
    int all_logprobs, all_prompt_logprobs;
    int include_stop_str, skip_special;
    struct arena arena; /* of everything below */
    struct lib_string *stops, *bad_words;
    int n_stops, n_bad_words;
    int32_t *stop_ids, *allowed_ids;
    int n_stop_ids, n_allowed_ids;
    struct token_bias *bias;
    int n_bias;
    int has_grammar;
    enum grammar_kind grammar_kind;
    struct lib_string grammar;
    struct grammar_options grammar_options;
};
/* Writes the parameters of a request into r, all copied to its arena, and says how its text is cut
 * (options borrow from r's arena). room: tokens that the prompt leaves. Checks everything. */
int lib_params_apply(const struct tern_params *p, struct tern_engine *en, int room,
                     struct engine_request *r, struct err *e);
/* en NULL: neutral values. */
void lib_params_init(struct tern_params *p, const struct tern_engine *en);

/* ---- requests and queues ---- */

struct lib_sample {
    struct output out;
    double cumulative_logprob;
};

struct tern_queue {
    struct mq *events;
    pthread_mutex_t lock;         /* of `running` */
    struct tern_request *running; /* a list */
    /* the consumer's: what the chunk that was handed out last borrows, and events that come next */
    struct mq_node *taken;
    struct engine_event *event;
    struct buf text;
    int32_t *ids, *logprob_ids, *logprob_ranks;
    float *logprobs;
    size_t *starts;
    size_t ids_cap, logprobs_cap;
};

enum lib_state {
    LIB_CLOSED = 1, /* by the program */
    LIB_DONE = 2,   /* runs on no queue, which may be gone */
};

struct tern_request {
    struct tern_engine *engine;
    struct tern_queue *queue; /* from the start on */
    struct tern_request *next, *prev;
    int owns_queue, started;
    atomic_int state; /* enum lib_state: who sets the second of the two frees the request */
    struct buf text;
    int has_text, is_chat;
    struct token_ids ids;
    int priority;
    void *user;
    uint64_t id, arrival_ns;
    struct arena arena; /* stop strings */
    struct lib_sample *samples;
    int n, n_open;
};
void lib_request_free(struct tern_request *r);
void lib_queue_add(struct tern_queue *q, struct tern_request *r);
/* It has ended: 1 when it was closed before, and is the caller's to free. */
int lib_queue_remove(struct tern_queue *q, struct tern_request *r);

#endif
