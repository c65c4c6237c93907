/* SPDX-License-Identifier: Apache-2.0 */
/* tern serve MODEL. Everything that can be refused is refused before the port is bound; then the
 * port is bound, so that clients see 503 from /health and not a refused connection, while weights
 * are packed; the ready lines come after the engine has produced a token. Lines keep the lead words
 * of vLLM's, because scripts wait for them (docs/contract.md).
 *
 * Threads: the caller's (this file), the server's, the engine's and its workers, and the one that
 * prints throughput. */
#include "cmd/serve.h"
#include "base/clock.h"
#include "base/json.h"
#include "cmd/cmd.h"
#include "cmd/notify.h"
#include "text/answer.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WARM_UP_WAIT_S         120
#define TOKENIZER_CONFIG_BYTES (16u << 20)

/* ---- options to server_options ---- */

/* A JSON list of strings, or words with commas between. */
static int read_list(struct arena *a, const char *flag, const char *text, const char **out, int *n,
                     struct err *e)
{
    *n = 0;
    if (!text) {
        return 0;
    }
    if (text[strspn(text, " ")] != '[') {
        char *copy = arena_strdup(a, text), *save = NULL;
        for (char *w = copy ? strtok_r(copy, ", ", &save) : NULL; w && *n < SERVE_LIST_MAX;
             w = strtok_r(NULL, ", ", &save)) {
            out[(*n)++] = w;
        }
        return copy ? 0 : err_set(e, ERR_NOMEM, "out of memory");
    }
    struct json *doc = NULL;
    int rc = json_parse(&doc, text, strlen(text), JSON_DEPTH_DEFAULT, e);
    for (size_t i = 0; rc >= 0 && i < json_length(doc); i++) {
        if (json_type(json_at(doc, i)) != JSON_STRING || *n == SERVE_LIST_MAX) {
            rc = err_set(e, ERR_INVALID, "expected a JSON list of at most %d strings",
                         SERVE_LIST_MAX);
        } else if (!(out[(*n)++] = arena_strdup(a, json_string(json_at(doc, i), NULL)))) {
            rc = err_set(e, ERR_NOMEM, "out of memory");
        }
    }
    json_free(doc);
    return rc < 0 ? err_prefix(e, "--%s", flag) : 0;
}

/* What belongs to sockets: where to listen, TLS, limits, times. */
static int fill_guards(struct server_options *so, const struct args_server *v, struct err *e)
{
    char *end = NULL;
    so->host = v->host;
    so->port = (int)v->port;
    so->uds = v->uds && *v->uds ? v->uds : NULL;
    if (v->uds_mode) {
        long mode = strtol(v->uds_mode, &end, 8);
        if (!*v->uds_mode || *end || mode < 0 || mode > 0777) {
            return err_set(e, ERR_INVALID, "--uds-mode %s: expected octal permissions such as 660",
                           v->uds_mode);
        }
        so->uds_mode = (int)mode;
    }
    so->ssl_certfile = v->ssl_certfile;
    so->ssl_keyfile = v->ssl_keyfile;
    so->ssl_keyfile_password = v->ssl_keyfile_password;
    so->ssl_ca_certs = v->ssl_ca_certs;
    so->ssl_ciphers = v->ssl_ciphers;
    so->ssl_cert_reqs = (int)v->ssl_cert_reqs;
    so->enable_ssl_refresh = v->enable_ssl_refresh;
    so->root_path = v->root_path;
    so->keep_alive_s = (int)v->keep_alive_s;
    so->read_timeout_s = (int)v->read_timeout_s;
    so->write_timeout_s = (int)v->write_timeout_s;
    so->stall_timeout_s = (int)v->stall_timeout_s;
    so->shutdown_timeout_s = (int)v->shutdown_timeout_s;
    so->max_body_bytes = (size_t)v->max_body_bytes;
    if (v->max_header_bytes > 0) {
        so->max_header_bytes = (size_t)v->max_header_bytes;
    }
    so->max_headers = (int)v->max_headers;
    so->json_depth = (int)v->json_depth;
    so->max_connections = (int)v->max_connections;
    so->max_num_queued_reqs = (int)v->max_num_queued_reqs;
    so->max_num_queued_tokens = v->max_num_queued_tokens;
    if (v->enable_log_outputs && !v->enable_log_requests) {
        return err_set(e, ERR_INVALID, "--enable-log-outputs needs --enable-log-requests");
    }
    if (v->enable_log_deltas && !v->enable_log_outputs) {
        return err_set(e, ERR_INVALID, "--enable-log-deltas needs --enable-log-outputs");
    }
    return 0;
}

static int check_parsers(const struct setup *s, const struct args_server *v, struct err *e)
{
    int32_t marks[ANSWER_MARKS];
    if (v->enable_auto_tool_choice && !v->tool_call_parser) {
        return err_set(e, ERR_INVALID, "--enable-auto-tool-choice requires --tool-call-parser");
    }
    answer_mark_ids(s->tokenizer, marks);
    for (int i = MARK_THINK; v->reasoning_parser && i <= MARK_THINK_END; i++) {
        if (marks[i] < 0) {
            return err_set(e, ERR_INVALID,
                           "--reasoning-parser %s: %s has no token %s, so it is no model that "
                           "thinks; leave the option out",
                           v->reasoning_parser, s->a->model, answer_mark_text((enum answer_mark)i));
        }
    }
    return 0;
}

int serve_options(struct server_options *so, const struct setup *s, const struct args_server *v,
                  struct serve_lists *l, struct err *e)
{
    server_options_init(so);
    int rc = check_parsers(s, v, e);
    rc = rc < 0 ? rc : fill_guards(so, v, e);
    if (rc < 0) {
        return rc;
    }
    l->default_name = s->a->model;
    so->served_model_names =
        s->a->served_model_names.n ? s->a->served_model_names.v : &l->default_name;
    so->n_served_model_names = s->a->served_model_names.n ? s->a->served_model_names.n : 1;
    so->api_keys = v->api_keys.v;
    so->n_api_keys = v->api_keys.n;
    so->response_role = v->response_role;
    so->enable_request_id_headers = v->enable_request_id_headers;
    so->enable_prompt_tokens_details = v->enable_prompt_tokens_details;
    so->enable_force_include_usage = v->enable_force_include_usage;
    so->enable_server_load_tracking = v->enable_server_load_tracking;
    so->return_tokens_as_token_ids = v->return_tokens_as_token_ids;
    so->enable_log_requests = v->enable_log_requests;
    so->enable_log_outputs = v->enable_log_outputs;
    so->enable_log_deltas = v->enable_log_deltas;
    so->max_log_len = (int)v->max_log_len;
    so->reasoning_parser = v->reasoning_parser != NULL;
    so->tool_call_parser = v->tool_call_parser != NULL;
    so->enable_auto_tool_choice = v->enable_auto_tool_choice;
    so->exclude_tools_when_none = v->exclude_tools_when_none;
    so->dev_mode = v->dev_mode;
    so->disable_docs = v->disable_docs;
    so->enable_responses_store = v->enable_responses_store;
    so->enable_tokenizer_info_endpoint = v->enable_tokenizer_info_endpoint;
    so->enable_per_request_metrics = v->enable_per_request_metrics;
    so->trust_request_chat_template = v->trust_request_chat_template;
    so->max_logprobs = (int)s->a->max_logprobs;
    so->generation = s->generation;
    so->default_chat_template_kwargs = v->default_chat_template_kwargs;
    so->disable_access_log = v->disable_access_log ||
                             strcasecmp(v->uvicorn_log_level, "warning") == 0 ||
                             strcasecmp(v->uvicorn_log_level, "error") == 0 ||
                             strcasecmp(v->uvicorn_log_level, "critical") == 0;
    so->allow_credentials = v->allow_credentials;
    so->max_prompts = (int)v->max_prompts;
    so->max_n = (int)v->max_n;
    so->max_stop_strings = (int)v->max_stop_strings;
    so->stream_interval = (int)v->stream_interval;
    so->log = &s->log;
    so->page = page_built_in();
    so->allowed_origins = l->origins;
    so->allowed_methods = l->methods;
    so->allowed_headers = l->headers;
    so->disable_access_log_for = l->quiet_paths;
    rc = read_list(&l->arena, "allowed-origins", v->allowed_origins, l->origins,
                   &so->n_allowed_origins, e);
    rc = rc < 0 ? rc
                : read_list(&l->arena, "allowed-methods", v->allowed_methods, l->methods,
                            &so->n_allowed_methods, e);
    rc = rc < 0 ? rc
                : read_list(&l->arena, "allowed-headers", v->allowed_headers, l->headers,
                            &so->n_allowed_headers, e);
    return rc < 0 ? rc
                  : read_list(&l->arena, "disable-access-log-for-endpoints",
                              v->disable_access_log_for_endpoints, l->quiet_paths,
                              &so->n_disable_access_log_for, e);
}

/* ---- throughput lines ---- */

struct throughput {
    const struct engine *engine;
    const struct log *log;
    double interval_s;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int stop, started;
};

/* vLLM's second line, with speculation and when something was drafted. */
static void print_speculation(const struct log *log, const struct engine_stats *now,
                              const struct engine_stats *before, double seconds)
{
    uint64_t drafts = now->speculation.drafts - before->speculation.drafts;
    uint64_t tokens = now->speculation.tokens - before->speculation.tokens;
    uint64_t accepted = now->speculation.accepted - before->speculation.accepted;
    char rates[ENGINE_MAX_DRAFT * 8];
    size_t at = 0;
    if (drafts == 0) {
        return;
    }
    for (int i = 0; i < now->speculation.max_tokens; i++) {
        uint64_t n = now->speculation.accepted_at[i] - before->speculation.accepted_at[i];
        at += (size_t)snprintf(rates + at, sizeof rates - at, "%.3f, ", (double)n / (double)drafts);
    }
    log_info(log,
             "SpecDecoding metrics: Mean acceptance length: %.2f, Accepted throughput: %.2f "
             "tokens/s, Drafted throughput: %.2f tokens/s, Accepted: %llu tokens, Drafted: %llu "
             "tokens, Per-position acceptance rate: %sAvg Draft acceptance rate: %.1f%%",
             1.0 + (double)accepted / (double)drafts, (double)accepted / seconds,
             (double)tokens / seconds, (unsigned long long)accepted, (unsigned long long)tokens,
             rates, 100.0 * (double)accepted / (double)tokens);
}

static void print_throughput(const struct throughput *t, const struct engine_stats *now,
                             const struct engine_stats *before, double seconds, int *was_idle)
{
    double prompt = (double)((now->prompt_tokens - now->prompt_tokens_cached) -
                             (before->prompt_tokens - before->prompt_tokens_cached)) /
                    seconds;
    double generation = (double)(now->generation_tokens - before->generation_tokens) / seconds;
    uint64_t preempted = now->preemptions - before->preemptions;
    double hits =
        now->prefix_queries ? 100.0 * (double)now->prefix_hits / (double)now->prefix_queries : 0;
    char preemptions[48] = "";
    if (preempted) {
        snprintf(preemptions, sizeof preemptions, "Preemptions: %llu, ",
                 (unsigned long long)preempted);
    }
    int idle = prompt <= 0 && generation <= 0;
    log_write(t->log, idle && *was_idle ? LOG_DEBUG : LOG_INFO, __FILE__, __LINE__,
              "Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
              "tokens/s, Running: %d reqs, "
              "Waiting: %d reqs, %sGPU KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%",
              prompt, generation, now->n_running, now->n_waiting, preemptions, 100 * now->kv_usage,
              hits);
    print_speculation(t->log, now, before, seconds);
    *was_idle = idle;
}

static void *throughput_main(void *arg)
{
    struct throughput *t = arg;
    /* Two copies of a large struct: on the heap of this thread's start, not on its stack. */
    struct engine_stats *s = calloc(2, sizeof *s);
    if (!s) {
        return NULL;
    }
    engine_stats(t->engine, &s[0]);
    uint64_t last_ns = clock_now_ns();
    int which = 0, was_idle = 1;
    pthread_mutex_lock(&t->lock);
    while (!t->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        long ns = until.tv_nsec + (long)((t->interval_s - (double)(long)t->interval_s) * 1e9);
        until.tv_sec += (time_t)t->interval_s + ns / 1000000000;
        until.tv_nsec = ns % 1000000000;
        while (!t->stop && pthread_cond_timedwait(&t->wake, &t->lock, &until) == 0) {
        }
        if (!t->stop) {
            uint64_t now_ns = clock_now_ns();
            engine_stats(t->engine, &s[!which]);
            print_throughput(t, &s[!which], &s[which], (double)(now_ns - last_ns) * 1e-9,
                             &was_idle);
            which = !which;
            last_ns = now_ns;
        }
    }
    pthread_mutex_unlock(&t->lock);
    free(s);
    return NULL;
}

static void throughput_start(struct throughput *t)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&t->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&t->lock, NULL);
    t->started = pthread_create(&t->thread, NULL, throughput_main, t) == 0;
}

static void throughput_stop(struct throughput *t)
{
    if (t->started) {
        pthread_mutex_lock(&t->lock);
        t->stop = 1;
        pthread_cond_signal(&t->wake);
        pthread_mutex_unlock(&t->lock);
        pthread_join(t->thread, NULL);
        pthread_mutex_destroy(&t->lock);
        pthread_cond_destroy(&t->wake);
    }
}

/* ---- a signal while the model loads ---- */

/* Loading reads files and packs weights for as long as that takes; nothing needs to be put in
 * order when it is cut short. So a thread waits beside it, and ends the process as soon as the
 * server has been told to stop. */
struct early_stop {
    struct server *server;
    const struct log *log;
    atomic_int is_over; /* loading is done or has failed: the command ends as it likes */
    pthread_t thread;
    int started;
};

static void *early_stop_main(void *arg)
{
    struct early_stop *x = arg;
    if (server_stopped_early(x->server) && !atomic_load(&x->is_over)) {
        log_info(x->log, "Stopped while the model was loading.");
        _exit(0);
    }
    return NULL;
}

static void early_stop_start(struct early_stop *x)
{
    x->started = pthread_create(&x->thread, NULL, early_stop_main, x) == 0;
}

static void early_stop_end(struct early_stop *x)
{
    atomic_store(&x->is_over, 1);
    if (x->started) {
        server_stop(
            x->server); /* no effect when it has ended; else nothing would wake the thread */
        pthread_join(x->thread, NULL);
    }
}

/* ---- the supervisor ---- */

#define BEAT_MS       10000 /* at least this often, more often if a watchdog asks for it */
#define EXTEND_TIME_S 60    /* from each beat while a start or an end lasts */

struct supervision {
    struct notify notify;
    char serving[640];          /* the status while all is well; written before readiness */
    atomic_int is_announced;    /* READY=1 went out: no sign of life may come before it */
    enum server_condition last; /* the net loop's */
};

/* Called by the net loop. A sign of life goes out only while a token can be produced. */
static void on_heartbeat(void *user, enum server_condition c)
{
    struct supervision *v = user;
    const struct notify *n = &v->notify;
    switch (c) {
    case SERVER_LOADING:
        notify_send(n, "EXTEND_TIMEOUT_USEC=%d", EXTEND_TIME_S * 1000000);
        break;
    case SERVER_READY:
        if (v->last == SERVER_STALLED) {
            notify_send(n, "STATUS=%s", v->serving);
        }
        if (n->watchdog_us && atomic_load(&v->is_announced)) {
            notify_send(n, "WATCHDOG=1");
        }
        break;
    case SERVER_STALLED:
        notify_send(n, "STATUS=The engine has work but makes no step");
        break;
    case SERVER_STOPPING:
        notify_send(n, "STOPPING=1\nSTATUS=Ending the running requests\nEXTEND_TIMEOUT_USEC=%d",
                    EXTEND_TIME_S * 1000000);
        break;
    }
    v->last = c;
}

static void set_heartbeat(struct server_options *so, struct supervision *v)
{
    if (v->notify.fd >= 0) {
        uint64_t ms = v->notify.watchdog_us / 3000;
        so->heartbeat = on_heartbeat;
        so->heartbeat_user = v;
        so->heartbeat_ms = ms > 0 && ms < BEAT_MS ? (int)ms : BEAT_MS;
    }
}

static void describe_serving(struct supervision *v, const struct server_options *so,
                             const struct server *server)
{
    char url[512];
    server_url(server, url, sizeof url);
    snprintf(v->serving, sizeof v->serving, "Serving %.100s on %s", so->served_model_names[0], url);
}

/* ---- start-up ---- */

static void log_banner(const struct setup *s, const struct opts *o)
{
    const struct args_engine *a = s->a;
    struct buf b;
    buf_init(&b);
    opts_describe(o, "api-key ssl-keyfile-password", &b);
    log_info(&s->log, "tern version %s, with the behaviour of vLLM's V1 engine", TERN_VERSION);
    log_info(&s->log, "non-default args: %s", b.data ? b.data : "{}");
    log_info(&s->log, "Resolved architecture: %s (%s layout)", model_config(s->model)->architecture,
             model_layout_name(s->model));
    log_info(&s->log, "Using max model len %d", s->plan.max_model_len);
    if (a->enable_chunked_prefill) {
        log_info(&s->log, "Chunked prefill is enabled with max_num_batched_tokens=%lld.",
                 (long long)a->max_num_batched_tokens);
    }
    buf_fini(&b);
}

/* The engine's configuration as a JSON object. */
static void describe_config(const struct setup *s, struct buf *b)
{
    const struct args_engine *a = s->a;
    struct json_writer w;
    json_w_init(&w, b);
    json_w_object(&w);
    json_w_kstring(&w, "model", a->model);
    json_w_kstring(&w, "dtype", model_act(s->model) == ACT_BF16 ? "bfloat16" : "float32");
    json_w_kstring(
        &w, "quantization",
        strcmp(model_quantization(s->model), "none") == 0 ? NULL : model_quantization(s->model));
    json_w_kint(&w, "max_model_len", s->plan.max_model_len);
    json_w_kint(&w, "max_num_seqs", a->max_num_seqs);
    json_w_kint(&w, "max_num_batched_tokens", a->max_num_batched_tokens);
    json_w_kint(&w, "block_size", KV_BLOCK_TOKENS);
    json_w_kint(&w, "num_gpu_blocks", s->plan.n_blocks);
    json_w_kbool(&w, "enable_prefix_caching", a->enable_prefix_caching);
    json_w_kbool(&w, "enable_chunked_prefill", a->enable_chunked_prefill);
    json_w_kstring(&w, "scheduling_policy", a->scheduling_policy);
    json_w_kint(&w, "seed", a->seed);
    json_w_kbool(&w, "enforce_eager", a->enforce_eager);
    json_w_kint(&w, "tensor_parallel_size", 1);
    json_w_kint(&w, "pipeline_parallel_size", 1);
    json_w_kstring(&w, "device", "cpu");
    json_w_kstring(&w, "level", cpu_level_name(s->level));
    json_w_kint(&w, "threads", s->n_threads);
    json_w_object_end(&w);
}

/* The same as vLLM prints it. */
static void describe_config_text(const struct setup *s, struct buf *out)
{
    struct buf b;
    struct json *config = NULL;
    buf_init(&b);
    describe_config(s, &b);
    if (!b.failed && json_parse(&config, b.data, b.len, JSON_DEPTH_DEFAULT, NULL) == 0) {
        server_config_text(config, out);
    }
    json_free(config);
    buf_fini(&b);
}

static void log_plan(const struct setup *s)
{
    const struct memory_plan *p = &s->plan;
    const double g = 1.0 / 1073741824;
    struct buf b;
    buf_init(&b);
    describe_config_text(s, &b);
    log_info(&s->log, "Initializing a V1 LLM engine (v%s) with config: %s", TERN_VERSION,
             b.data ? b.data : "");
    buf_fini(&b);
    log_info(&s->log, "Compute threads: %d (%s), instruction set %s", s->n_threads, s->threads_why,
             cpu_level_name(s->level));
    log_info(&s->log,
             "Memory plan: weights %.2f GiB + KV cache %.2f GiB + activations %.2f GiB + process "
             "%.2f GiB; limit %.2f GiB, of "
             "which %.2f GiB are free",
             (double)p->weight_bytes * g, (double)p->kv_bytes * g, (double)p->activation_bytes * g,
             (double)p->process_bytes * g, (double)p->limit_bytes * g,
             (double)p->available_bytes * g);
    log_info(&s->log, "%s set (%.2f/%.2f) GiB for KV cache on node 0.",
             p->kv_explicit ? "Explicitly" : "Auto", (double)p->kv_bytes * g,
             (double)p->limit_bytes * g);
}

/* 131072 -> "131,072", as vLLM prints sizes. */
static const char *grouped(uint64_t v, char out[32])
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)v), at = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) {
            out[at++] = ',';
        }
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

static uint64_t kv_tokens(const struct memory_plan *p)
{
    uint64_t per_request = ((uint64_t)p->max_model_len + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    return (uint64_t)(p->n_blocks - 1) * (uint64_t)p->max_model_len / per_request;
}

static void log_generation(const struct setup *s)
{
    const struct sampling_defaults *g = &s->generation;
    struct buf b;
    buf_init(&b);
    if (g->has_temperature) {
        buf_printf(&b, ", 'temperature': %.15g", g->temperature);
    }
    if (g->has_top_p) {
        buf_printf(&b, ", 'top_p': %.15g", g->top_p);
    }
    if (g->has_top_k) {
        buf_printf(&b, ", 'top_k': %d", g->top_k);
    }
    if (g->has_min_p) {
        buf_printf(&b, ", 'min_p': %.15g", g->min_p);
    }
    if (g->has_repetition_penalty) {
        buf_printf(&b, ", 'repetition_penalty': %.15g", g->repetition_penalty);
    }
    if (g->has_max_new_tokens) {
        buf_printf(&b, ", 'max_tokens': %d", g->max_new_tokens);
    }
    if (b.len) {
        log_warning(&s->log,
                    "Default vLLM sampling parameters have been overridden by the model's "
                    "`generation_config.json`: {%s}. "
                    "Start with `--generation-config vllm` for neutral ones.",
                    b.data + 2);
    }
    buf_fini(&b);
}

/* One token through the whole engine: pages in weights and buffers, and proves that a token can be
 * produced. */
static int warm_up(struct setup *s, struct err *e)
{
    struct mq *reply = NULL;
    struct engine_request *r = NULL;
    int32_t *prompt;
    int rc = mq_new(&reply, e);
    if (rc >= 0 && !(r = engine_request_new())) {
        rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    if (rc >= 0 && !(prompt = arena_alloc(&r->arena, sizeof *prompt))) {
        rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    if (rc >= 0) {
        r->prompt = prompt;
        r->n_prompt = 1;
        sampling_params_init(&r->params);
        r->params.temperature = 0;
        r->params.max_tokens = 1;
        r->params.ignore_eos = 1;
        r->params.n_prompt_logprobs =
            0; /* such a prompt is not looked up in the prefix cache, nor counted there */
        r->arrival_ns = clock_now_ns();
        r->reply = reply;
        rc = engine_submit(s->engine, r, e);
        r = rc < 0 ? r : NULL;
    }
    uint64_t give_up = clock_now_ns() + (uint64_t)WARM_UP_WAIT_S * 1000000000;
    for (int done = 0; rc >= 0 && !done;) {
        if (mq_wait(reply, 1000) == 0 && clock_now_ns() > give_up) {
            rc = err_set(e, ERR_INTERNAL, "no token after %d s of warm-up", WARM_UP_WAIT_S);
        }
        for (struct mq_node *n = mq_pop_all(reply), *next; n; n = next) {
            struct engine_event *ev =
                (struct engine_event *)((char *)n - offsetof(struct engine_event, node));
            next = n->next;
            if (ev->finish == FINISH_ERROR) {
                rc = err_set(e, ERR_INTERNAL, "warm-up: %s", ev->error);
            }
            done |= ev->finish != FINISH_NONE;
            engine_event_free(ev);
        }
    }
    if (r) {
        engine_request_free(r);
    }
    if (reply && rc >= 0) { /* on failure the engine may still hold it: setup_close comes first, the
                               process ends anyway */
        mq_free(reply);
    }
    return rc;
}

int serve_start_engine(struct setup *s, struct err *e)
{
    log_info(&s->log, "Starting to load model %s...", s->a->model);
    int rc = setup_load(s, e);
    if (rc < 0) {
        return rc;
    }
    log_info(&s->log, "Loading weights took %.2f seconds", s->weights_seconds);
    struct buf formats;
    buf_init(&formats);
    model_describe_formats(s->model, &formats);
    log_info(&s->log, "Weight formats: %s matrices; %.1f MB read per token",
             formats.data ? formats.data : "",
             (double)model_weight_bytes_per_token(s->model) * 1e-6);
    buf_fini(&formats);
    uint64_t start = clock_now_ns();
    rc = setup_engine(s, e);
    if (rc < 0) {
        return rc;
    }
    char tokens[32], length[32];
    log_info(
        &s->log,
        "GPU KV cache size: %s tokens, Maximum concurrency for %s tokens per request: %d.%02dx",
        grouped(kv_tokens(&s->plan), tokens), grouped((uint64_t)s->plan.max_model_len, length),
        s->plan.concurrency_x100 / 100, s->plan.concurrency_x100 % 100);
    rc = warm_up(s, e);
    if (rc >= 0) {
        engine_reset_stats(s->engine); /* counters start with the first client's request */
        log_info(&s->log, "init engine (profile, create kv cache, warmup model) took %.2f seconds",
                 (double)(clock_now_ns() - start) * 1e-9);
    }
    return rc;
}

static void announce(const struct setup *s, const struct server *server)
{
    char url[512];
    server_url(server, url, sizeof url);
    struct buf b;
    buf_init(&b);
    describe_config_text(s, &b);
    log_info(&s->log, "Started engine with config: %s", b.data ? b.data : "");
    buf_fini(&b);
    log_info(&s->log, "HTTP server started on %s", url);
    log_info(&s->log, "vLLM API server started on %s", url);
    if (page_built_in() && server_port(server)) {
        char *all = strstr(url, "//0.0.0.0:"); /* no address that every browser takes */
        log_info(&s->log, "Chat page: %.*s%s%s/", all ? (int)(all + 2 - url) : (int)strlen(url),
                 url, all ? "localhost:" : "", all ? all + strlen("//0.0.0.0:") : "");
    }
}

/* tokenizer_config.json beside the tokenizer; stays empty when there is none. */
static void read_tokenizer_config(const struct setup *s, struct buf *out)
{
    struct buf path;
    const char *dir = s->a->tokenizer ? s->a->tokenizer : s->a->model;
    buf_init(&path);
    buf_printf(&path, "%s/tokenizer_config.json", dir);
    if (!path.failed && !buf_file_absent(path.data) &&
        buf_read_file(out, path.data, TOKENIZER_CONFIG_BYTES, NULL) < 0) {
        buf_clear(out);
    }
    buf_fini(&path);
}

static int64_t model_time(const struct setup *s)
{
    struct stat st;
    return stat(s->a->model, &st) == 0 ? (int64_t)st.st_mtime : 0;
}

void serve_set_ready(const struct setup *s, struct server *server)
{
    char utilization[32];
    struct buf tokenizer_config, config;
    buf_init(&tokenizer_config);
    buf_init(&config);
    read_tokenizer_config(s, &tokenizer_config);
    describe_config(s, &config);
    snprintf(utilization, sizeof utilization, "%.15g", s->a->gpu_memory_utilization);
    const struct server_label labels[] = {
        {"cache_dtype", s->a->kv_cache_dtype},
        {"enable_prefix_caching", s->a->enable_prefix_caching ? "True" : "False"},
        {"gpu_memory_utilization", utilization},
    };
    struct server_model m = {
        .engine = s->engine,
        .tokenizer = s->tokenizer,
        .chat_template = s->chat,
        .path = s->a->model,
        .max_model_len = s->plan.max_model_len,
        .vocab_size = model_config(s->model)->vocab_size,
        .stop_token_ids = s->stop_ids,
        .n_stop_token_ids = s->n_stop_ids,
        .numerics_id = model_numerics_id(s->model),
        .cache_labels = labels,
        .n_cache_labels = (int)(sizeof labels / sizeof *labels),
        .config = model_config(s->model),
        .n_params = model_n_params(s->model),
        .weight_bytes = model_weight_bytes(s->model),
        .format = model_act(s->model) == ACT_BF16 ? "BF16" : "F32",
        .modified_s = model_time(s),
        .tokenizer_config = tokenizer_config.data,
        .config_json = config.data,
    };
    server_set_ready(server, &m);
    buf_fini(&tokenizer_config);
    buf_fini(&config);
}

static int run(struct setup *s, const struct opts *o, const struct args_server *v,
               struct supervision *watch, struct err *e)
{
    struct serve_lists lists;
    struct server_options so;
    struct server *server = NULL;
    struct throughput throughput = {.log = &s->log, .interval_s = v->log_stats_interval_s};
    struct early_stop early = {.log = &s->log};
    arena_init(&lists.arena, 0);
    int rc = setup_check(s, e);
    rc = rc < 0 ? rc : serve_options(&so, s, v, &lists, e);
    if (rc < 0) {
        goto done;
    }
    set_heartbeat(&so, watch);
    notify_send(&watch->notify, "STATUS=Loading %s\nEXTEND_TIMEOUT_USEC=%d", s->a->model,
                EXTEND_TIME_S * 1000000);
    log_banner(s, o);
    rc = server_open(&server, &so, e);
    if (rc < 0) {
        goto done;
    }
    early.server = server;
    early_stop_start(&early);
    log_plan(s);
    rc = serve_start_engine(s, e);
    if (rc < 0) {
        goto done;
    }
    log_generation(s);
    log_info(&s->log, "Supported tasks: ['generate']");
    describe_serving(watch, &so, server);
    serve_set_ready(s, server);
    announce(s, server);
    notify_send(&watch->notify, "READY=1\nSTATUS=%s", watch->serving);
    atomic_store(&watch->is_announced, 1);
    if (!v->disable_log_stats) {
        throughput.engine = s->engine;
        throughput_start(&throughput);
    }
    rc = server_wait(server);
done:
    early_stop_end(&early);
    throughput_stop(&throughput);
    if (s->engine) { /* before the server: it owns the queue of the engine's events */
        engine_close(s->engine);
        s->engine = NULL;
    }
    server_close(server);
    arena_fini(&lists.arena);
    return rc;
}

static int fail(const struct setup *s, const char *command, const struct err *e)
{
    if (s->log.json) { /* also the last line is an object */
        log_error(&s->log, "%s: error: %s", command, e->text);
        return EXIT_FAULT;
    }
    return args_fail(command, e);
}

int cmd_serve(int argc, char **argv)
{
    const char *command = "tern serve";
    struct args_engine a = {0};
    struct args_server v = {0};
    struct opts o = {.usage = "tern serve MODEL [options]",
                     .tables = {args_server_table(&v), args_engine_table(&a)},
                     .n_tables = 2};
    struct setup s = {.a = &a};
    struct err e = {0, ""};
    char prefix[48];
    server_block_signals();
    int rc = args_parse_model(&o, command, &a, argc, argv);
    if (rc < 0) {
        snprintf(prefix, sizeof prefix, "(APIServer pid=%d) ", (int)getpid());
        args_log(&o, &a, prefix, &s.log);
        struct supervision watch = {.last = SERVER_LOADING};
        notify_open(&watch.notify);
        rc = run(&s, &o, &v, &watch, &e);
        if (rc < 0 && rc != ERR_CANCELED) {
            notify_send(&watch.notify, "STATUS=%s", e.text);
        }
        notify_close(&watch.notify);
        rc = rc == ERR_CANCELED ? 0
             : rc < 0           ? fail(&s, command, &e)
                                : 0; /* told to stop while loading */
    }
    setup_close(&s);
    opts_fini(&o);
    return rc;
}
