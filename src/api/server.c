/* SPDX-License-Identifier: Apache-2.0 */
/* Start, threads, readiness and the end of a server.
 *
 * Threads: the net thread runs the event loop and owns all but the queues; the worker thread parses
 * and tokenizes what is long; the engine thread sends events into `events`. Other threads reach the
 * loop through flags and an eventfd.
 *
 * The end has three stages, each with a deadline: draining (shutdown_timeout_s), aborted (the
 * engine ends every sample with "abort", and those responses are sent), flushed. A second signal
 * skips the first. */
#include "api/gen.h"
#include "api/responses.h"
#include "api/state.h"

#include "base/clock.h"
#include "base/hash.h"

#include <errno.h>
#include <event2/event.h>
#include <openssl/sha.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define ABORT_WAIT_NS (5 * 1000000000ull)
#define FLUSH_WAIT_NS (2 * 1000000000ull)
#define TICK_MS       20
#define PROGRESS_MS   200

void server_options_init(struct server_options *o)
{
    memset(o, 0, sizeof *o);
    o->port = 8000;
    o->uds_mode = -1;
    o->max_log_len = -1;
    o->max_headers = 256;
    o->response_role = "assistant";
    o->max_logprobs = 20;
    o->keep_alive_s = 5;
    o->read_timeout_s = 30;
    o->write_timeout_s = 30;
    o->stall_timeout_s = 60;
    o->max_body_bytes = 32u << 20;
    o->max_header_bytes = 64 << 10;
    o->max_connections = 4096;
    o->json_depth = JSON_DEPTH_DEFAULT;
    o->max_prompts = 1024;
    o->max_n = 16384;
    o->max_stop_strings = 4;
    o->stream_interval = 1;
}

static void watched_signals(sigset_t *set)
{
    static const int list[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    sigemptyset(set);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        sigaddset(set, list[i]);
    }
}

void server_block_signals(void)
{
    sigset_t set;
    watched_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static int signals_blocked(void)
{
    sigset_t set;
    return pthread_sigmask(SIG_BLOCK, NULL, &set) == 0 && sigismember(&set, SIGTERM) == 1;
}

/* ---- copies ---- */

static int copy_list(struct arena *a, const char *const **list, int n)
{
    const char **out = arena_alloc(a, (size_t)(n + 1) * sizeof *out);
    for (int i = 0; out && i < n; i++) {
        out[i] = arena_strdup(a, (*list)[i]);
        if (!out[i]) {
            return -1;
        }
    }
    *list = out;
    return out ? 0 : -1;
}

static int copy_string(struct arena *a, const char **s)
{
    if (*s) {
        *s = arena_strdup(a, *s);
        return *s ? 0 : -1;
    }
    return 0;
}

/* ---- checks ---- */

static int check_root_path(const char *path, struct err *e)
{
    if (!path || !*path) {
        return 0;
    }
    int bad = path[0] != '/' || strstr(path, "//");
    for (const unsigned char *p = (const unsigned char *)path; *p; p++) {
        bad |= *p <= ' ' || *p == 0x7f || *p == '?' || *p == '#' || *p == '%';
    }
    return bad ? err_set(e, ERR_INVALID,
                         "--root-path %s: expected a path as /a/b, without blanks, %%, ? and #",
                         path)
               : 0;
}

/* A key of no bytes would let everybody in who sends an empty one; whoever gave it (an unset
 * variable, mostly) believes the server guarded. */
static int check_keys(const struct server_options *o, struct err *e)
{
    for (int i = 0; i < o->n_api_keys; i++) {
        if (!o->api_keys[i][0]) {
            return err_set(e, ERR_INVALID, "--api-key: key number %d is empty", i + 1);
        }
    }
    return 0;
}

static int check_tls(const struct server_options *o, struct err *e)
{
    const char *alone = o->ssl_keyfile            ? "ssl-keyfile"
                        : o->ssl_keyfile_password ? "ssl-keyfile-password"
                        : o->ssl_ca_certs         ? "ssl-ca-certs"
                        : o->ssl_ciphers          ? "ssl-ciphers"
                        : o->ssl_cert_reqs        ? "ssl-cert-reqs"
                        : o->enable_ssl_refresh   ? "enable-ssl-refresh"
                                                  : NULL;
    return !o->ssl_certfile && alone
               ? err_set(e, ERR_INVALID, "--%s has no meaning without --ssl-certfile", alone)
               : 0;
}

static int copy_options(struct server *s, const struct server_options *o, struct err *e)
{
    struct arena *a = &s->arena;
    s->o = *o;
    struct server_options *c = &s->o;
    if (o->n_served_model_names < 1) {
        return err_set(e, ERR_INVALID, "a server needs at least one served model name");
    }
    if (check_root_path(c->root_path, e) < 0 || check_keys(o, e) < 0 || check_tls(c, e) < 0) {
        return ERR_INVALID;
    }
    if (copy_string(a, &c->uds) || copy_string(a, &c->ssl_certfile) ||
        copy_string(a, &c->ssl_keyfile) || copy_string(a, &c->ssl_keyfile_password) ||
        copy_string(a, &c->ssl_ca_certs) || copy_string(a, &c->ssl_ciphers) ||
        copy_string(a, &c->host) || copy_list(a, &c->served_model_names, c->n_served_model_names) ||
        copy_string(a, &c->response_role) || copy_string(a, &c->root_path) ||
        copy_list(a, &c->disable_access_log_for, c->n_disable_access_log_for) ||
        copy_list(a, &c->allowed_origins, c->n_allowed_origins) ||
        copy_list(a, &c->allowed_methods, c->n_allowed_methods) ||
        copy_list(a, &c->allowed_headers, c->n_allowed_headers)) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    s->key_hashes = arena_alloc(a, (size_t)(o->n_api_keys + 1) * sizeof *s->key_hashes);
    if (!s->key_hashes) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    for (int i = 0; i < o->n_api_keys; i++) {
        SHA256((const unsigned char *)o->api_keys[i], strlen(o->api_keys[i]), s->key_hashes[i]);
    }
    c->api_keys = NULL; /* only their hashes are kept */
    s->tls = (struct tls_options){.certfile = c->ssl_certfile,
                                  .keyfile = c->ssl_keyfile,
                                  .keyfile_password = c->ssl_keyfile_password,
                                  .ca_certs = c->ssl_ca_certs,
                                  .ciphers = c->ssl_ciphers,
                                  .cert_reqs = (enum tls_cert_reqs)c->ssl_cert_reqs};
    if (o->default_chat_template_kwargs) {
        const char *text = o->default_chat_template_kwargs;
        if (json_parse(&s->default_kwargs, text, strlen(text), JSON_DEPTH_DEFAULT, e) != 0) {
            return err_prefix(e, "--default-chat-template-kwargs");
        }
        if (json_type(s->default_kwargs) != JSON_OBJECT) {
            return err_set(e, ERR_INVALID,
                           "--default-chat-template-kwargs: expected a JSON object");
        }
        c->default_chat_template_kwargs = NULL;
    }
    return 0;
}

/* ---- readiness ---- */

static void log_start(struct server *s)
{
    char url[512];
    server_url(s, url, sizeof url);
    log_info(s->log, "Starting vLLM server on %s", url);
    log_info(s->log, "Available routes are:");
    for (int i = 0; i < server_n_routes; i++) {
        if (!route_enabled(&s->o, &server_routes[i])) {
            continue;
        }
        unsigned m = server_routes[i].methods;
        char methods[32];
        snprintf(methods, sizeof methods, "%s%s%s", m & M_GET ? "GET, " : "",
                 m & M_HEAD ? "HEAD, " : "", m & M_POST ? "POST, " : "");
        methods[strlen(methods) - 2] = 0;
        log_info(s->log, "Route: %s, Methods: %s", server_routes[i].path, methods);
    }
    if (s->o.dev_mode) {
        log_warning(s->log,
                    "SECURITY WARNING: development routes are enabled! They can drop caches "
                    "and show the configuration: never use VLLM_SERVER_DEV_MODE where "
                    "others can reach the server.");
    }
    uvicorn_line(s, "Started server process [%d]", (int)getpid());
    uvicorn_line(s, "Waiting for application startup.");
    uvicorn_line(s, "Application startup complete.");
}

void server_url(const struct server *s, char *out, size_t size)
{
    const char *host = s->o.host && *s->o.host ? s->o.host : "0.0.0.0";
    int ipv6 = strchr(host, ':') != NULL;
    if (s->o.uds) {
        snprintf(out, size, "unix:%s", s->o.uds);
        return;
    }
    snprintf(out, size, "http%s://%s%s%s:%d", s->o.ssl_certfile ? "s" : "", ipv6 ? "[" : "", host,
             ipv6 ? "]" : "", server_port(s));
}

static void install_model(struct server *s)
{
    s->model = s->pending;
    s->created = clock_unix_s();
    const char *id = s->model.numerics_id ? s->model.numerics_id : "";
    snprintf(s->fingerprint, sizeof s->fingerprint, "tern-%s-%08x", TERN_VERSION,
             (unsigned)hash64(id, strlen(id), 0));
    models_install(s);
    s->ready = 1;
}

void server_set_ready(struct server *s, const struct server_model *m)
{
    struct arena *a = &s->model_arena;
    struct server_model *c = &s->pending;
    pthread_mutex_lock(&s->lock);
    *c = *m;
    struct server_label *labels = arena_alloc(a, (size_t)(m->n_cache_labels + 1) * sizeof *labels);
    int bad = !labels || copy_string(a, &c->path) || copy_string(a, &c->numerics_id) ||
              copy_string(a, &c->format) || copy_string(a, &c->tokenizer_config) ||
              copy_string(a, &c->config_json);
    c->stop_token_ids =
        arena_memdup(a, m->stop_token_ids, (size_t)m->n_stop_token_ids * sizeof *m->stop_token_ids);
    bad |= m->n_stop_token_ids > 0 && !c->stop_token_ids;
    for (int i = 0; !bad && i < m->n_cache_labels; i++) {
        labels[i] = m->cache_labels[i];
        bad |= copy_string(a, &labels[i].name) || copy_string(a, &labels[i].value);
    }
    c->cache_labels = labels;
    c->n_cache_labels = bad ? 0 : m->n_cache_labels;
    if (bad && (!c->path || (m->n_stop_token_ids > 0 && !c->stop_token_ids))) {
        log_error(s->log, "out of memory: the server can't become ready");
        pthread_mutex_unlock(&s->lock);
        return;
    }
    struct err e = {0};
    answer_mark_ids(m->tokenizer, s->mark_ids);
    if (grammar_cache_open(&s->structured, m->tokenizer, m->vocab_size, &e) != 0) {
        log_error(s->log, "%s: the server can't become ready", e.text);
        pthread_mutex_unlock(&s->lock);
        return;
    }
    s->has_pending = 1;
    eventfd_write(s->control_fd, 1);
    while (!s->installed && !s->finished) {
        pthread_cond_wait(&s->cond, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- the end ---- */

static void abort_running(struct server *s)
{
    s->aborted = 1;
    s->deadline_ns = clock_now_ns() + ABORT_WAIT_NS;
    gen_abort_all(s);
}

static void stop_step(struct server *s)
{
    uint64_t now = clock_now_ns();
    if (s->n_gens == 0 && !http_server_is_busy(s->http)) {
        event_base_loopbreak(s->base);
        return;
    }
    if (!s->aborted && (s->stopping > 1 || now >= s->deadline_ns)) {
        abort_running(s);
    } else if (s->aborted && s->n_gens == 0 && s->deadline_ns > now + FLUSH_WAIT_NS) {
        s->deadline_ns = now + FLUSH_WAIT_NS; /* the engine is done: only slow readers are left */
    } else if (s->aborted && now >= s->deadline_ns) {
        event_base_loopbreak(s->base);
    }
}

static void beat(struct server *s)
{
    if (s->o.heartbeat) {
        s->o.heartbeat(s->o.heartbeat_user, health_condition(s));
    }
}

static void begin_stop(struct server *s, int times)
{
    if (!s->stopping) {
        if (!s->o.no_listener) {
            uvicorn_line(s, "Shutting down");
        }
        s->stopping = 1;
        s->deadline_ns = clock_now_ns() + (uint64_t)s->o.shutdown_timeout_s * 1000000000u;
        http_server_stop_accepting(s->http);
        beat(s);
        struct timeval tv = {0, TICK_MS * 1000};
        event_add(s->ev_tick, &tv);
    }
    if (times > 1) {
        s->stopping = 2;
    }
    stop_step(s);
}

void server_stop(struct server *s)
{
    atomic_fetch_add(&s->stop_requested, 1);
    eventfd_write(s->control_fd, 1);
}

/* ---- loop events ---- */

static void on_control(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    eventfd_t v;
    (void)what;
    eventfd_read(fd, &v);
    pthread_mutex_lock(&s->lock);
    int install = s->has_pending && !s->installed;
    if (install) {
        install_model(s);
    }
    pthread_mutex_unlock(&s->lock);
    if (install) {
        if (!s->o.no_listener) {
            log_start(s);
        }
        pthread_mutex_lock(&s->lock);
        s->installed = 1;
        pthread_cond_broadcast(&s->cond);
        pthread_mutex_unlock(&s->lock);
    }
    int times = atomic_load(&s->stop_requested);
    if (times > 0) {
        begin_stop(s, times);
    }
}

static void on_signal(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    struct signalfd_siginfo info;
    (void)what;
    while (read(fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) {
            begin_stop(s, atomic_fetch_add(&s->stop_requested, 1) + 1);
        } else if (info.ssi_signo == SIGHUP) {
            http_server_reload_tls(s->http);
        }
    }
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    stop_step(arg);
}

static void on_progress(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    (void)fd;
    (void)what;
    if (!progress_tick(s)) {
        event_del(s->ev_progress);
    }
}

void server_watch_progress(struct server *s)
{
    struct timeval every = {0, PROGRESS_MS * 1000};
    if (!event_pending(s->ev_progress, EV_TIMEOUT, NULL)) {
        event_add(s->ev_progress, &every);
    }
}

static void on_beat(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    beat(arg);
}

static void on_events(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    (void)fd;
    (void)what;
    for (struct mq_node *n = mq_pop_all(s->events), *next; n; n = next) {
        next = n->next;
        gen_event((struct engine_event *)n); /* node is its first member */
    }
}

static void on_worked(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    (void)fd;
    (void)what;
    for (struct mq_node *n = mq_pop_all(s->worked), *next; n; n = next) {
        struct work *w = (struct work *)n;
        next = n->next;
        w->done(w);
    }
}

static void *net_main(void *arg)
{
    struct server *s = arg;
    pthread_setname_np(pthread_self(), "tern-net");
    event_base_dispatch(s->base);
    pthread_mutex_lock(&s->lock);
    s->finished = 1;
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void *worker_main(void *arg)
{
    struct server *s = arg;
    pthread_setname_np(pthread_self(), "tern-worker");
    while (!atomic_load(&s->worker_stop)) {
        mq_wait(s->to_worker, -1);
        for (struct mq_node *n = mq_pop_all(s->to_worker), *next; n; n = next) {
            struct work *w = (struct work *)n;
            next = n->next;
            if (w->run && !atomic_load(&s->worker_stop)) {
                w->run(w);
            }
            if (w->done) {
                mq_push(s->worked, &w->node);
            }
        }
    }
    return NULL;
}

/* ---- connections from inside ---- */

struct adoption {
    struct work work;
    struct server *server;
    int fd;
};

static void adopt(struct work *w)
{
    struct adoption *a = (struct adoption *)w; /* work is its first member */
    http_server_adopt(a->server->http, a->fd);
    free(a);
}

int server_connect(struct server *s, struct err *e)
{
    int pair[2];
    struct adoption *a = calloc(1, sizeof *a);
    if (!a) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        free(a);
        return err_set(e, ERR_IO, "can't make a pair of sockets: %s", strerror(errno));
    }
    a->work.done = adopt;
    a->server = s;
    a->fd = pair[1];
    mq_push(s->worked, &a->work.node);
    return pair[0];
}

/* What came too late for the loop: connections are closed, requests are left to their owners. */
static void drop_worked(struct server *s)
{
    for (struct mq_node *n = s->worked ? mq_pop_all(s->worked) : NULL, *next; n; n = next) {
        struct work *w = (struct work *)n;
        next = n->next;
        if (w->done == adopt) {
            close(((struct adoption *)w)->fd);
            free(w);
        }
    }
}

/* ---- open, wait, close ---- */

static int add_events(struct server *s, struct err *e)
{
    s->ev_control = event_new(s->base, s->control_fd, EV_READ | EV_PERSIST, on_control, s);
    s->ev_events = event_new(s->base, mq_fd(s->events), EV_READ | EV_PERSIST, on_events, s);
    s->ev_worked = event_new(s->base, mq_fd(s->worked), EV_READ | EV_PERSIST, on_worked, s);
    s->ev_tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    s->ev_progress = event_new(s->base, -1, EV_PERSIST, on_progress, s);
    if (!s->ev_progress || !s->ev_control || !s->ev_events || !s->ev_worked || !s->ev_tick ||
        event_add(s->ev_control, NULL) || event_add(s->ev_events, NULL) ||
        event_add(s->ev_worked, NULL)) {
        return err_set(e, ERR_NOMEM, "can't create the event loop's events");
    }
    if (s->o.heartbeat) {
        struct timeval every = {s->o.heartbeat_ms / 1000, s->o.heartbeat_ms % 1000 * 1000};
        s->ev_beat = event_new(s->base, -1, EV_PERSIST, on_beat, s);
        if (!s->ev_beat || event_add(s->ev_beat, &every)) {
            return err_set(e, ERR_NOMEM, "can't create the event loop's events");
        }
    }
    if (signals_blocked()) {
        sigset_t set;
        watched_signals(&set);
        s->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
        s->ev_signal = s->signal_fd >= 0
                           ? event_new(s->base, s->signal_fd, EV_READ | EV_PERSIST, on_signal, s)
                           : NULL;
        if (!s->ev_signal || event_add(s->ev_signal, NULL)) {
            return err_set(e, ERR_IO, "can't watch for signals");
        }
    }
    return 0;
}

int server_open(struct server **out, const struct server_options *o, struct err *e)
{
    struct server *s = calloc(1, sizeof *s);
    int rc;
    *out = NULL;
    if (!s) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    s->control_fd = s->signal_fd = -1;
    arena_init(&s->arena, 0);
    arena_init(&s->model_arena, 0);
    buf_init(&s->models_body);
    buf_init(&s->openapi);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->cond, NULL);
    s->log_default = (struct log){.level = LOG_INFO, .fd = 2};
    s->log = o->log ? o->log : &s->log_default;
    rc = copy_options(s, o, e);
    if (rc != 0) {
        goto fail;
    }
    s->base = event_base_new();
    s->control_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!s->base || s->control_fd < 0) {
        rc = err_set(e, ERR_IO, "can't create the event loop");
        goto fail;
    }
    struct http_options h = {.host = s->o.host,
                             .port = o->port,
                             .no_listener = o->no_listener,
                             .uds = s->o.uds,
                             .uds_mode = o->uds_mode,
                             .tls = s->o.ssl_certfile ? &s->tls : NULL,
                             .tls_refresh = o->enable_ssl_refresh,
                             .max_headers = o->max_headers,
                             .log = s->log,
                             .max_body_bytes = o->max_body_bytes,
                             .max_header_bytes = o->max_header_bytes,
                             .max_connections = o->max_connections,
                             .keep_alive_s = o->keep_alive_s,
                             .read_timeout_s = o->read_timeout_s,
                             .write_timeout_s = o->write_timeout_s};
    dispatch_callbacks(s, &h.callbacks);
    if ((rc = mq_new(&s->events, e)) != 0 || (rc = mq_new(&s->worked, e)) != 0 ||
        (rc = mq_new(&s->to_worker, e)) != 0 ||
        (o->enable_responses_store && (rc = response_store_open(&s->responses, e)) != 0) ||
        (rc = http_server_new(&s->http, s->base, &h, e)) != 0 || (rc = add_events(s, e)) != 0) {
        goto fail;
    }
    s->worker_started = pthread_create(&s->worker, NULL, worker_main, s) == 0;
    s->thread_started = s->worker_started && pthread_create(&s->thread, NULL, net_main, s) == 0;
    if (!s->thread_started) {
        rc = err_set(e, ERR_IO, "can't start the server's threads");
        goto fail;
    }
    *out = s;
    return 0;
fail:
    server_close(s);
    return rc;
}

int server_port(const struct server *s)
{
    return http_server_port(s->http);
}

static void join_threads(struct server *s)
{
    if (s->thread_started) {
        pthread_join(s->thread, NULL);
        s->thread_started = 0;
    }
    if (s->worker_started) {
        struct work wake = {0};
        atomic_store(&s->worker_stop, 1);
        mq_push(s->to_worker, &wake.node);
        pthread_join(s->worker, NULL);
        s->worker_started = 0;
    }
}

int server_stopped_early(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->finished && !s->installed) {
        pthread_cond_wait(&s->cond, &s->lock);
    }
    int early = !s->installed;
    pthread_mutex_unlock(&s->lock);
    return early;
}

int server_wait(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->finished) {
        pthread_cond_wait(&s->cond, &s->lock);
    }
    int ready = s->installed;
    pthread_mutex_unlock(&s->lock);
    join_threads(s);
    if (ready && !s->o.no_listener) {
        uvicorn_line(s, "Application shutdown complete.");
        uvicorn_line(s, "Finished server process [%d]", (int)getpid());
    }
    return ready ? 0 : ERR_CANCELED;
}

void server_close(struct server *s)
{
    if (!s) {
        return;
    }
    if (s->thread_started) {
        server_stop(s);
        server_stop(s);
        server_wait(s);
    }
    join_threads(s);
    drop_worked(s); /* while the requests that the queue leads through are there */
    http_server_free(s->http);
    gen_free_all(s);
    for (struct mq_node *n = s->events ? mq_pop_all(s->events) : NULL, *next; n; n = next) {
        next = n->next;
        engine_event_free((struct engine_event *)n);
    }
    buf_fini(&s->openapi);
    struct event *events[] = {s->ev_control, s->ev_events, s->ev_worked,  s->ev_signal,
                              s->ev_tick,    s->ev_beat,   s->ev_progress};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        if (events[i]) {
            event_free(events[i]);
        }
    }
    if (s->base) {
        event_base_free(s->base);
    }
    if (s->control_fd >= 0) {
        close(s->control_fd);
    }
    if (s->signal_fd >= 0) {
        close(s->signal_fd);
    }
    mq_free(s->events);
    mq_free(s->worked);
    mq_free(s->to_worker);
    grammar_cache_close(s->structured);
    buf_fini(&s->models_body);
    response_store_close(s->responses);
    json_free(s->default_kwargs);
    pthread_cond_destroy(&s->cond);
    pthread_mutex_destroy(&s->lock);
    arena_fini(&s->model_arena);
    arena_fini(&s->arena);
    free(s);
}
