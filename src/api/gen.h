/* SPDX-License-Identifier: Apache-2.0 */
/* One generation request of a client, whatever its dialect: its typed fields, its prompts, its
 * samples, and how their events become a response. completions.c and chat.c fill in the differences
 * through struct gen_dialect.
 *
 * Life: parsed and tokenized (net or worker thread) -> submitted, one engine request a prompt ->
 * events -> chunks or one body -> freed when the response has ended *and* the engine has said its
 * last word about every sample. */
#ifndef TERN_API_GEN_H
#define TERN_API_GEN_H

#include "api/fields.h"
#include "api/state.h"
#include "api/structured.h"
#include "engine/output.h"
#include "text/answer.h"

struct gen;

/* Fields of a request with their defaults filled in. */
struct gen_fields {
    int stream, include_usage, continuous_usage, include_progress, stream_interval;
    int echo;
    int has_max_tokens;
    int max_tokens;
    struct sampling_params sp;
    int has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty;
    const char **stop;
    size_t *stop_bytes;
    int n_stop;
    int include_stop_str, skip_special;
    int logprobs;        /* entries asked for besides the sampled token; -1: no logprobs */
    int prompt_logprobs; /* -1: none */
    int return_token_ids, tokens_as_ids;
    int has_truncate, truncate, truncate_left;
    int priority;
    const char *cache_salt, *request_id;
    struct grammar *grammar; /* what every output must match: one reference, or NULL */
    const struct json *bad_words, *logit_bias;
    /* chat */
    int add_generation_prompt, continue_final;
    int return_prompt_text;
    int include_reasoning;
    struct answer_options answer; /* how the text is split; all zero: it is content */
    int32_t think_end; /* the answer begins as reasoning that this token ends; -1: it doesn't */
    int think_budget;  /* tokens of reasoning at most; -1: any number */
    const struct json *messages, *tools, *documents;
    struct json *kwargs; /* owned: defaults, chat_template_kwargs and top-level spellings merged */
    const char *response_role;
    const char *echo_text; /* chat: content of the last message to repeat, or NULL */
};

struct gen_sample {
    struct gen_prompt *prompt;
    int choice; /* index in the response */
    struct output out;
    struct answer answer; /* chat: what the text is; fed by messages_split */
    int is_thinking, n_reasoning_tokens;
    int engine_done, done;
    enum finish_reason finish;
    int n_tokens;       /* counted in usage */
    int started, ended; /* stream: a first, the last chunk was sent */
    int n_unsent;       /* tokens since the last chunk */
    uint64_t scheduled_ns, first_token_ns, last_token_ns; /* the engine's times, 0 before */
    /* since the last chunk when streaming, all otherwise: comma-separated JSON */
    struct buf ids, lp_tokens, lp_values, lp_tops, lp_offsets, lp_content;
    size_t offset; /* characters of the token strings so far */
    char tail[4];  /* bytes of a character that is not complete, for token strings */
    int n_tail;
};

struct gen_prompt {
    struct gen *gen;
    int32_t *ids;
    int n;
    uint64_t request_id;
    int submitted, queued; /* queued: counted in the server's n_queued_tokens */
    atomic_int n_computed; /* written by the engine: tokens computed; -1 while it waits */
    struct gen_sample *samples;
    int max_tokens;
    int n_cached;
    struct buf prompt_lp; /* JSON array: prompt_logprobs, "" when not asked */
    struct buf echo_tokens, echo_values, echo_tops,
        echo_offsets; /* completions: echo with logprobs */
    size_t echo_chars;
    struct buf echo_text;
};

/* How the chunks of a stream leave. */
struct gen_framing {
    void (*begin)(struct http_exchange *x);
    void (*send)(struct http_exchange *x, const char *text, size_t n_bytes);
    void (*end)(struct http_exchange *x);
};

extern const struct gen_framing gen_ndjson_framing; /* a JSON text and a newline */

struct gen_dialect {
    const char *id_prefix;             /* "cmpl-" */
    const struct gen_framing *framing; /* NULL: server-sent events, ended by [DONE] */
    const char *const *fields; /* what a request may have, NULL-terminated; others are named in the
                                  log. NULL: the fields of the OpenAI routes */
    int parse_only; /* the parsed request is all that `body` needs: nothing is generated */
    /* Net or worker thread. Body -> fields and prompts with ids. No prompts: answered at once by
     * `body`. */
    int (*parse)(struct gen *g, struct api_error *e);
    int chat; /* clamps max_tokens to the room left; default: fill the context */
    void (*begin)(
        struct gen *g); /* sends what precedes the first token of any choice; may be NULL */
    /* One streamed chunk of a sample; !s->started: nothing of it was sent before. */
    void (*chunk)(struct gen *g, struct gen_sample *s, const char *text, size_t n_bytes,
                  struct buf *out); /* nothing written: nothing is sent, its tokens wait */
    void (*usage_chunk)(struct gen *g, struct buf *out); /* NULL: usage is in the last chunk */
    void (*body)(struct gen *g, struct buf *out);        /* the whole response */
    /* ---- may be NULL: for dialects whose streams are no sequence of equal chunks ---- */
    /* Net thread, after the engine took the request: the dialect may answer by itself, with
     * gen_detach, and let the request go on without a client. */
    void (*accepted)(struct gen *g);
    /* Sends a sample's new text, in place of chunk. */
    void (*stream)(struct gen *g, struct gen_sample *s, const char *text, size_t n_bytes);
    void (*end)(struct gen *g); /* the last event, in place of the usage chunk and [DONE] */
    /* Tells of an error inside a stream (then without [DONE]), or when there is no client. */
    void (*fail)(struct gen *g, const struct api_error *e);
    void (*fini)(struct gen *g); /* frees what g->state holds */
};

struct gen {
    struct work work;
    struct gen *prev, *next;
    struct server *server;
    struct http_exchange *x; /* NULL: the client is gone, or has its answer */
    const struct gen_dialect *dialect;
    struct arena arena;
    char *body;
    size_t body_bytes;
    struct json *json;
    struct json *received;  /* a dialect that translated json keeps the original here; or NULL */
    struct api_error error; /* of parse */
    struct gen_fields f;
    struct gen_prompt *prompts;
    int n_prompts;
    struct gen_sample *samples; /* prompts x n */
    int n_samples;
    int n_open;           /* samples the engine has not ended */
    int n_undone;         /* samples the client waits for */
    int streaming;        /* response head sent */
    int begun;            /* what precedes the first token was sent */
    int last_progress[3]; /* what the last chunk of progress.c said */
    int flush_wanted;     /* output was held back because the socket was full */
    int failed;           /* an error ended it */
    int listed;           /* among the server's gens */
    int detached;         /* goes on without a client until it is done */
    void *state;          /* the dialect's own, in the arena; NULL until it makes one */
    uint64_t arrival_ns;
    int64_t created;
    char id[192];
    struct buf prompt_text; /* chat: rendered template */
    int load_report;        /* 0 none, else the format of the header endpoint-load-metrics */
};

extern const struct gen_dialect completions_dialect, chat_dialect, responses_dialect,
    inference_dialect, legacy_dialect, ollama_chat_dialect, ollama_generate_dialect;

/* Owns body (malloc'ed, may be NULL). work.run parses it, without a client or an engine, on any
 * thread; it is the server's business only once started. */
struct gen *gen_new(struct server *s, const struct gen_dialect *d, char *body, size_t n_bytes);
void gen_free(struct gen *g);
/* Takes the exchange's body and starts. */
void gen_start(struct server *s, struct http_exchange *x, const struct gen_dialect *d);
/* A request without a client: its answer goes to the dialect's body, an error to fail. Owns body.
 * state is the dialect's; fini is told when the request is gone, which may be before this returns.
 * NULL: out of memory, nothing happened. */
struct gen *gen_start_detached(struct server *s, const struct gen_dialect *d, char *body,
                               size_t n_bytes, const char *id, void *state);
void gen_event(struct engine_event *ev); /* feeds and frees the event; net thread */
/* The client's answer is someone else's business now, or was sent: the request goes on, its output
 * goes to the dialect's body or stream and end. Returns the exchange. */
struct http_exchange *gen_detach(struct gen *g);
/* Nobody waits for it any more: the engine stops. Frees g, now or at the last event. */
void gen_abandon(struct gen *g);
void gen_abort_all(struct server *s); /* shutdown: ask the engine to end everything */
void gen_free_all(struct server *s);  /* when no engine will speak any more */

/* ---- for the dialects ---- */
/* The fields a request may have, NULL-terminated; params.c has those of the OpenAI routes. */
const char *const *gen_fields(const struct gen_dialect *d);
int gen_parse_common(struct gen *g, const struct fields *f, struct api_error *e);
/* 1 given (f.max_tokens set), 0 not, -1 no integer. What exceeds an int is cut to one: it exceeds
 * any context too. */
int gen_parse_max_tokens(struct gen *g, const struct fields *f, const char *name);
/* Room, truncation, clamping (chat) or refusal (completions). After the prompts have ids. */
int gen_check_lengths(struct gen *g, struct api_error *e);
int gen_add_prompts(struct gen *g, int n, struct api_error *e);
int gen_set_ids(struct gen *g, struct gen_prompt *p, const int32_t *ids, size_t n,
                struct api_error *e);
/* As above from a JSON list; `field` is what errors name. */
int gen_set_id_list(struct gen *g, struct gen_prompt *p, const struct json *list, const char *field,
                    struct api_error *e);
/* A list of ids in the unparsed body is longer than the context: g->error says so. */
int gen_is_hopeless(struct gen *g);
/* Too many characters to fit whatever they are: refused before any tokenizing. */
int gen_check_text(struct gen *g, const char *text, size_t n_bytes, struct api_error *e);
void gen_write_usage(const struct gen *g, struct json_writer *w, const struct gen_sample *only,
                     int drop_nulls);
void gen_write_metrics(const struct gen *g, struct json_writer *w);              /* key and value */
void gen_write_finish_reason(const struct gen_sample *s, struct json_writer *w); /* key and value */
void gen_write_stop_reason(const struct gen *g, const struct gen_sample *s, struct json_writer *w);
void gen_send(struct gen *g, const struct buf *json); /* one event of the stream */
void gen_write_head(const struct gen *g, struct json_writer *w, const char *object);
void gen_write_raw_array(struct json_writer *w, const struct buf *items); /* [items] */
void gen_write_prompt_ids(const struct gen_prompt *p, struct json_writer *w);
void gen_write_token_ids(const struct gen_sample *s,
                         struct json_writer *w); /* since the last chunk, or all */
int gen_prompt_tokens(const struct gen *g);

void gen_begin_stream(struct gen *g); /* the response head, once */

/* ---- progress.c ---- */
/* Whether the request's client is to be told how far its prompt is. */
int progress_is_wanted(const struct gen *g);

/* ---- reqlog.c ---- */
void reqlog_request(const struct gen *g);
void reqlog_delta(const struct gen *g, const struct gen_sample *s, const char *text,
                  size_t n_bytes);
void reqlog_output(const struct gen *g, const struct gen_sample *s);

/* ---- logprobs.c ---- */
void logprobs_add(struct gen *g, struct gen_sample *s, const struct token_output *t);
void logprobs_prompt(struct gen *g, struct gen_prompt *p, const struct engine_event *ev);
void logprobs_write_completion(struct json_writer *w, const struct buf *tokens,
                               const struct buf *values, const struct buf *tops,
                               const struct buf *offsets);

#endif
