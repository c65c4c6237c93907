/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the API, shared by its files: the server object, work that may run on the worker
 * thread, and the table of routes. Everything here belongs to the net thread, except where a
 * comment says otherwise. */
#ifndef TERN_API_STATE_H
#define TERN_API_STATE_H

#include "api/error.h"
#include "api/metrics.h"
#include "api/server.h"
#include "base/arena.h"
#include "base/mq.h"
#include "net/http.h"
#include "text/answer.h"

#include <pthread.h>
#include <stdatomic.h>

/* Longer bodies are parsed and tokenized off the net loop. */
#define WORKER_BODY_BYTES (16 * 1024)

struct event_base;
struct event;
struct gen;
struct response_store;
struct grammar_cache;

/* A piece of request handling that may run on the worker thread: run touches only the work itself
 * and the server's immutable parts (options, model); done is called on the net thread. */
struct work {
    struct mq_node node;
    void (*run)(struct work *w);
    void (*done)(struct work *w);
};

enum route_flags {
    ROUTE_OPEN = 1,      /* needs no API key */
    ROUTE_MODEL = 2,     /* 503 until the model is there */
    ROUTE_JSON = 4,      /* body must be application/json */
    ROUTE_UNCOUNTED = 8, /* not in the http_* metrics */
    /* there only when asked for, else 404 */
    ROUTE_DEV = 16,            /* VLLM_SERVER_DEV_MODE */
    ROUTE_TOKENIZER_INFO = 32, /* --enable-tokenizer-info-endpoint */
    ROUTE_DOCS = 64,           /* gone with --disable-fastapi-docs */
    ROUTE_PAGE = 128,          /* for people: not in /openapi.json */
};

struct route {
    const char
        *path; /* a segment in braces stands for any one that is not empty: see route_param */
    unsigned methods; /* bits of enum route_method */
    unsigned flags;
    void (*handle)(struct server *s, struct http_exchange *x);
};
enum route_method { M_GET = 1, M_HEAD = 2, M_POST = 4 };

struct server {
    struct arena arena;       /* copies of options */
    struct arena model_arena; /* copies of what server_set_ready brought */
    struct server_options o;
    struct json *default_kwargs; /* immutable */
    unsigned char (*key_hashes)[32];
    struct tls_options tls;
    struct log log_default;
    const struct log *log;

    struct event_base *base;
    struct http_server *http;
    struct event *ev_progress; /* pending while somebody wants to know how far his prompt is */
    struct event *ev_control, *ev_events, *ev_worked, *ev_signal, *ev_tick, *ev_beat;
    struct mq *events, *worked, *to_worker;
    int control_fd, signal_fd;
    pthread_t thread, worker;
    int thread_started, worker_started;

    struct server_model model;        /* immutable once ready */
    struct grammar_cache *structured; /* with the model; has its own lock */
    int32_t mark_ids[ANSWER_MARKS];   /* of reasoning and calls; -1: no token of the model */
    struct response_store *responses; /* NULL: none are kept; has its own lock */
    int ready;
    int64_t created;        /* of the model cards */
    struct buf models_body; /* what /v1/models answers */
    char fingerprint[64];

    struct buf openapi; /* text of /openapi.json, once it was asked for */
    struct gen *gens;   /* all that are not freed */
    int n_gens;
    int n_sequences;         /* samples in the engine */
    int n_load;              /* generation requests with a client */
    int64_t n_queued_tokens; /* of prompts that wait for their first token */
    int stopping;            /* 1: draining, 2: forced */
    int aborted;             /* the engine was told to end everything */
    uint64_t deadline_ns;    /* of the stage the shutdown is in */
    struct metrics metrics;
    struct {
        char name[64];
    } unknown_logged[64]; /* request fields mentioned once */
    int n_unknown_logged;

    atomic_int stop_requested; /* how often */
    atomic_int worker_stop;
    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t cond;
    int installed;               /* the net thread answers with the model; set under the lock */
    int finished;                /* the net thread's loop has ended */
    struct server_model pending; /* from server_set_ready to the net thread */
    int has_pending;
};

/* ---- dispatch.c ---- */
void dispatch_callbacks(struct server *s, struct http_callbacks *out);
void work_post(struct server *s, struct work *w, size_t weight); /* runs at once when light */
/* Of a request: its length, or SIZE_MAX when a short one may be much work all the same. */
size_t work_weight(const char *body, size_t n_bytes);
void respond_error(struct server *s, struct http_exchange *x, const struct api_error *e);
void respond_json(struct http_exchange *x, int status, struct buf *body); /* finishes body */
void respond_empty(struct http_exchange *x, int status);
/* The error as the route's clients expect it: an object, for Ollama's a sentence. */
void write_error(const struct server *s, const struct http_exchange *x, const struct api_error *e,
                 struct buf *out);
void note_unknown_fields(struct server *s, const struct json *body,
                         const char *const *known); /* NULL-terminated */
void uvicorn_line(const struct server *s, const char *fmt, ...) TERN_PRINTF(2, 3);
void random_hex(char *out, int n_digits); /* NUL-terminated */
/* What stands in the path for the {…} of the exchange's route. 0, or -1 when it is too long for
 * out. */
int route_param(const struct server *s, const struct http_exchange *x, char *out, size_t size);
/* The name may be a served one, its last path component, null or empty; else 404. */
int check_model_name(const struct server *s, const struct json *body, struct api_error *e);
const char *
request_id_header(const struct http_exchange *x); /* NULL when absent or not printable */

/* ---- server.c ---- */
void server_watch_progress(struct server *s); /* progress_tick is called now and then, until it says
                                               * that nobody waits */

/* ---- progress.c ---- */
int progress_tick(struct server *s); /* 0: nobody waits for a first token and wants to hear of it */

/* ---- routes.c ---- */
extern const struct route server_routes[];
extern const int server_n_routes;
int route_enabled(const struct server_options *o, const struct route *r);

/* ---- endpoint families ---- */
void completions_handle(struct server *s, struct http_exchange *x);
void chat_handle(struct server *s, struct http_exchange *x);
void invocations_handle(struct server *s, struct http_exchange *x);
void responses_handle(struct server *s, struct http_exchange *x);
void responses_get_handle(struct server *s, struct http_exchange *x);
void responses_cancel_handle(struct server *s, struct http_exchange *x);
void tokenize_handle(struct server *s, struct http_exchange *x);
void detokenize_handle(struct server *s, struct http_exchange *x);
void models_handle(struct server *s, struct http_exchange *x);
void models_install(struct server *s); /* once the model is known */
void health_handle(struct server *s, struct http_exchange *x);
enum server_condition health_condition(const struct server *s); /* net thread */
void version_handle(struct server *s, struct http_exchange *x);
void load_handle(struct server *s, struct http_exchange *x);
void metrics_handle(struct server *s, struct http_exchange *x);
void openapi_handle(struct server *s, struct http_exchange *x);
void chat_batch_handle(struct server *s, struct http_exchange *x);
void render_completion_handle(struct server *s, struct http_exchange *x);
void render_chat_handle(struct server *s, struct http_exchange *x);
void inference_handle(struct server *s, struct http_exchange *x);
void legacy_handle(struct server *s, struct http_exchange *x);
void tokenizer_info_handle(struct server *s, struct http_exchange *x);
/* dev.c */
void reset_prefix_cache_handle(struct server *s, struct http_exchange *x);
void reset_other_cache_handle(struct server *s, struct http_exchange *x);
void sleep_handle(struct server *s, struct http_exchange *x);
void wake_up_handle(struct server *s, struct http_exchange *x);
void is_sleeping_handle(struct server *s, struct http_exchange *x);
void server_info_handle(struct server *s, struct http_exchange *x);
/* ollama.c, ollama_models.c */
void ollama_chat_handle(struct server *s, struct http_exchange *x);
void ollama_generate_handle(struct server *s, struct http_exchange *x);
void ollama_tags_handle(struct server *s, struct http_exchange *x);
void ollama_ps_handle(struct server *s, struct http_exchange *x);
void ollama_show_handle(struct server *s, struct http_exchange *x);
void ollama_version_handle(struct server *s, struct http_exchange *x);
/* page.c */
void page_chat_handle(struct server *s, struct http_exchange *x);
void page_dashboard_handle(struct server *s, struct http_exchange *x);
void page_asset_handle(struct server *s, struct http_exchange *x);

#endif
