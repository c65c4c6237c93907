/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server as a whole: one net thread that owns every connection, one worker thread for the
 * parsing and tokenizing of long requests, and the join to an engine that arrives later.
 *
 * Life of a server, as a command drives it:
 *
 *     server_block_signals();          // first thing, before any thread exists
 *     model_open(…);                   // everything that headers and sizes can show
 *     server_open(&s, &options, &e);   // binds and listens: /health says 503, work is refused with 503
 *     model_load(…); engine_open(…);
 *     server_set_ready(s, &model);     // logs the routes and "Application startup complete.", answers
 *     rc = server_wait(s);             // until SIGTERM/SIGINT or server_stop; drains for
 *                                      // shutdown_timeout_s
 *     engine_close(…);                 // no request is outstanding
 *     server_close(s);                 // last: it owns the queue that the engine's events went to
 *
 * All functions may be called from any one thread; server_stop and server_set_ready from any thread
 * at any time. */
#ifndef TERN_API_SERVER_H
#define TERN_API_SERVER_H

#include "api/page.h"
#include "base/err.h"
#include "base/log.h"
#include "engine/engine.h"
#include "model/model.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include <stdint.h>

enum server_condition {
    SERVER_LOADING, /* no model yet */
    SERVER_READY,   /* a token can be produced: what /health answers 200 to */
    SERVER_STALLED, /* the engine has work and made no step for stall_timeout_s */
    SERVER_STOPPING
};

/* Everything borrowed here is copied by server_open. Start from server_options_init. */
struct server_options {
    const char *host; /* NULL: 0.0.0.0 */
    int port;         /* 0: any free one, see server_port */
    int no_listener;  /* nobody can connect but this process, by server_connect */
    const char *uds;  /* a unix socket's path, instead of host and port; or NULL */
    int uds_mode;     /* its permission bits; -1: what umask leaves */
    /* TLS when ssl_certfile is given; names as on the command line */
    const char *ssl_certfile, *ssl_keyfile, *ssl_keyfile_password, *ssl_ca_certs, *ssl_ciphers;
    int ssl_cert_reqs;      /* 0 none, 1 optional, 2 required */
    int enable_ssl_refresh; /* load the files again when they change */
    const char *const
        *served_model_names; /* the first is echoed in responses and metrics; at least one */
    int n_served_model_names;
    const char *const *api_keys; /* none: open */
    int n_api_keys;
    const char *response_role; /* "assistant" */
    const char *root_path;     /* reverse-proxy prefix that is cut from request paths, or NULL */
    int enable_request_id_headers, enable_prompt_tokens_details, enable_force_include_usage;
    int enable_server_load_tracking;
    int enable_per_request_metrics;
    int trust_request_chat_template; /* chat_template of a request is used; else it is refused */
    int return_tokens_as_token_ids;
    int enable_log_requests;
    int reasoning_parser, tool_call_parser; /* 1: ERNIE's (text/answer.h) */
    int enable_auto_tool_choice;            /* needs tool_call_parser */
    int exclude_tools_when_none;            /* tool_choice "none": the template sees no tools */
    int enable_responses_store;         /* responses outlive their request: see response_store.c */
    int dev_mode;                       /* routes that reset caches and tell the configuration */
    int enable_tokenizer_info_endpoint; /* /tokenizer_info */
    int disable_docs;                   /* no /openapi.json */
    int enable_log_outputs, enable_log_deltas;
    int max_log_len;  /* characters of a prompt or an answer in the log; -1: all */
    int max_logprobs; /* 20; -1: no limit */
    struct sampling_defaults generation;
    const char
        *default_chat_template_kwargs; /* JSON object text, or NULL; checked by server_open */
    /* access log */
    int disable_access_log;
    const char *const *disable_access_log_for; /* exact paths */
    int n_disable_access_log_for;
    /* CORS; a list of "*" allows all. Empty lists mean "*". */
    const char *const *allowed_origins, *const *allowed_methods, *const *allowed_headers;
    int n_allowed_origins, n_allowed_methods, n_allowed_headers;
    int allow_credentials;
    /* times */
    int keep_alive_s;       /* 5: idle between requests */
    int read_timeout_s;     /* 30: a request head must be complete, a body must keep moving */
    int write_timeout_s;    /* 30: a reader that takes nothing for this long is gone */
    int shutdown_timeout_s; /* 0: in-flight requests are aborted on SIGTERM */
    int stall_timeout_s;    /* 60: /health is 503 when the engine has work but made no step for this
                               long */
    /* limits */
    size_t max_body_bytes; /* 32 MiB: 413 beyond */
    size_t
        max_header_bytes; /* 64 KiB for all header fields: 431 beyond; the URL alone: 8 KiB, 414 */
    int max_connections;  /* 4096; more are closed at once */
    int max_headers;      /* 256 fields: 431 beyond */
    int json_depth;       /* 64 */
    int max_num_queued_reqs;       /* 0: no cap; else 503 when this many sequences are in flight */
    int64_t max_num_queued_tokens; /* 0: no cap; else 503 when the prompts that wait for their first
                                      token have this many tokens */
    int max_prompts;               /* 1024 prompts in one completion request */
    int max_n;                     /* 16384 */
    int max_stop_strings;          /* 4 */
    int stream_interval;           /* 1 */
    const struct page *page;       /* of / and /dashboard; NULL: there is none. Not copied */
    const struct log *log;         /* borrowed for the server's life; NULL: default */
    /* Called on the net thread every heartbeat_ms, and at once when the server begins to stop: that
     * it is called at all shows that the loop turns. Must not block. NULL: nobody listens. */
    void (*heartbeat)(void *user, enum server_condition c);
    void *heartbeat_user;
    int heartbeat_ms;
};
void server_options_init(struct server_options *o);

/* One label of the metric vllm:cache_config_info. */
struct server_label {
    const char *name, *value;
};

/* What answers requests once loaded. Pointers are borrowed and must live until server_wait has
 * returned; strings and arrays are copied. */
struct server_model {
    struct engine *engine;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template;
    const char *path; /* as given on the command line: "root" in /v1/models */
    int max_model_len;
    int vocab_size;                /* ids a request may name: 0 .. vocab_size-1 */
    const int32_t *stop_token_ids; /* enders besides the primary EOS (generation_config,
                                      <|end_of_sentence|>) */
    int n_stop_token_ids;
    const char *numerics_id;                 /* goes into system_fingerprint; may be NULL */
    const struct server_label *cache_labels; /* for vllm:cache_config_info */
    int n_cache_labels;
    /* What the model is, for /api/show and its like; all may be left out. */
    const struct model_config *config;
    uint64_t n_params, weight_bytes;
    const char *format;           /* of the weights: "BF16" */
    int64_t modified_s;           /* time of its files, unix seconds */
    const char *tokenizer_config; /* text of tokenizer_config.json; for /tokenizer_info */
    const char *config_json; /* the engine's configuration as a JSON object; for /server_info */
};

/* A configuration object as vLLM's log prints it: model='…', dtype=bfloat16, … */
void server_config_text(const struct json *config, struct buf *out);

struct server;
/* Blocks SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 in the calling thread and thus in every
 * thread created afterwards, so that they reach the net loop's signalfd, and ignores SIGPIPE (a log
 * nobody reads any more). Call it before any other thread exists. Without it server_wait ends on
 * server_stop only. SIGHUP loads the TLS files again; the USR signals do nothing. */
void server_block_signals(void);
/* Binds and listens at once and starts the net thread. ERR_BUSY "address already in use" when the
 * port is taken. */
int server_open(struct server **out, const struct server_options *o, struct err *e);
/* "https://[::1]:8000", "unix:/run/tern.sock" */
void server_url(const struct server *s, char *out, size_t size);
int server_port(const struct server *s); /* the bound port; 0 with a unix socket */
/* A connection to the server from inside its process: a blocking socket that speaks HTTP. Once the
 * server is ready. */
int server_connect(struct server *s, struct err *e);
/* Connects the engine, logs "Starting vLLM server on http://…", the routes and the uvicorn-like
 * start-up lines. */
void server_set_ready(struct server *s, const struct server_model *m);
/* Blocks until a signal or server_stop, then stops accepting, refuses new requests with 503, waits
 * up to shutdown_timeout_s for running ones, aborts the rest and waits for the engine to let go of
 * them. A second signal skips the waiting. Returns 0; or ERR_CANCELED when the server was told to
 * stop before it was ready. */
int server_wait(struct server *s);
/* Blocks until the server is ready (0) or was stopped before that (1): for a command whose loading
 * can't be interrupted otherwise. */
int server_stopped_early(struct server *s);
void server_stop(struct server *s);  /* as if SIGTERM had come; a second call forces */
void server_close(struct server *s); /* stops at once if still running; accepts NULL */

#endif
