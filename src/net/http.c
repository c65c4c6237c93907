/* SPDX-License-Identifier: Apache-2.0 */
/* The server and its exchanges, seen from the user's side; connections are in conn.c, sockets in
 * listen.c and tls.c, parsing in request.c. */
#include "net/http.h"

#include "base/clock.h"
#include "base/log.h"
#include "net/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SWEEP_MS    200
#define TLS_LOOK_NS 1000000000ull /* how often changed certificates are looked for */

/* ---- answers ---- */

const char *http_reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } table[] = {
        {200, "OK"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Payload Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Entity"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].status == status) {
            return table[i].text;
        }
    }
    return "Unknown";
}

static const char *date_line(struct http_server *s)
{
    time_t now = time(NULL);
    if (now != s->date_at) {
        struct tm tm;
        gmtime_r(&now, &tm);
        strftime(s->date, sizeof s->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
        s->date_at = now;
    }
    return s->date;
}

static void put_number(struct buf *out, uint64_t v, unsigned base)
{
    char text[24];
    size_t at = sizeof text;
    do {
        text[--at] = "0123456789abcdef"[v % base];
        v /= base;
    } while (v > 0);
    buf_append(out, text + at, sizeof text - at);
}

void http_end_exchange(struct conn *c)
{
    struct http_server *s = c->server;
    if (s->o.callbacks.on_end) {
        s->o.callbacks.on_end(s->o.callbacks.ctx, &c->x);
    }
    c->x.gone = NULL;
    c->x.drain = NULL;
    buf_clear(&c->x.extra);
}

static void write_head(struct http_exchange *x, int status, const char *content_type,
                       int64_t content_length)
{
    struct conn *c = x->conn;
    struct http_server *s = c->server;
    x->status = status;
    if (c->request.state != REQUEST_COMPLETE || !c->request.keep_alive || s->draining) {
        c->close_after = 1;
    }
    buf_reserve(&c->out, 512 + x->extra.len);
    buf_puts(&c->out, "HTTP/1.1 ");
    put_number(&c->out, (uint64_t)status, 10);
    buf_putc(&c->out, ' ');
    buf_puts(&c->out, http_reason(status));
    buf_puts(&c->out, "\r\ndate: ");
    buf_puts(&c->out, date_line(s));
    buf_puts(&c->out, "\r\nserver: tern\r\n");
    if (status == 304) {
        /* its length would be that of the body it spares */
    } else if (content_length >= 0) {
        buf_puts(&c->out, "content-length: ");
        put_number(&c->out, (uint64_t)content_length, 10);
        buf_puts(&c->out, "\r\n");
    } else if (x->chunked) {
        buf_puts(&c->out, "transfer-encoding: chunked\r\n");
    }
    if (content_type) {
        buf_puts(&c->out, "content-type: ");
        buf_puts(&c->out, content_type);
        buf_puts(&c->out, "\r\n");
    }
    buf_append(&c->out, x->extra.data ? x->extra.data : "", x->extra.len);
    if (c->close_after) {
        buf_puts(&c->out, "connection: close\r\n");
    } else if (c->request.parser.http_minor == 0) {
        buf_puts(&c->out, "connection: keep-alive\r\n");
    }
    buf_puts(&c->out, "\r\n");
    if (s->o.callbacks.on_response) {
        s->o.callbacks.on_response(s->o.callbacks.ctx, x, status);
    }
}

void http_add_header(struct http_exchange *x, const char *name, const char *value)
{
    buf_puts(&x->extra, name);
    buf_puts(&x->extra, ": ");
    for (const char *p = value; *p; p++) {
        if (*p != '\r' && *p != '\n') {
            buf_putc(&x->extra, *p);
        }
    }
    buf_puts(&x->extra, "\r\n");
}

void http_respond(struct http_exchange *x, int status, const char *content_type, const void *body,
                  size_t n_bytes)
{
    struct conn *c = x->conn;
    write_head(x, status, content_type, (int64_t)n_bytes);
    if (!c->request.is_head) {
        x->response_bytes = n_bytes;
        buf_append(&c->out, body, n_bytes);
    }
    if (c->out.failed) {
        http_abort(x);
        return;
    }
    conn_response_done(c);
}

void http_stream_begin(struct http_exchange *x, int status, const char *content_type)
{
    struct conn *c = x->conn;
    x->streaming = 1;
    x->no_body = c->request.is_head;
    x->chunked = c->request.parser.http_minor >= 1;
    if (!x->chunked) {
        c->request.keep_alive = 0; /* HTTP/1.0: the end of the connection ends the body */
    }
    write_head(x, status, content_type, -1);
    conn_mark_dirty(c);
}

void http_stream_writev(struct http_exchange *x, const struct iovec *parts, int n_parts)
{
    struct conn *c = x->conn;
    size_t total = 0;
    for (int i = 0; i < n_parts; i++) {
        total += parts[i].iov_len;
    }
    if (total == 0 || x->no_body) {
        return; /* an empty chunk would end the body */
    }
    x->response_bytes += total;
    if (x->chunked) {
        put_number(&c->out, total, 16);
        buf_puts(&c->out, "\r\n");
    }
    for (int i = 0; i < n_parts; i++) {
        buf_append(&c->out, parts[i].iov_base, parts[i].iov_len);
    }
    if (x->chunked) {
        buf_puts(&c->out, "\r\n");
    }
    if (c->out.failed) {
        c->broken = 1; /* a hole in the stream: the flush cuts the connection */
    }
    if (conn_backlog(c) > HTTP_STREAM_HIGH_BYTES) {
        x->was_high = 1;
    }
    conn_mark_dirty(c);
}

void http_stream_end(struct http_exchange *x)
{
    struct conn *c = x->conn;
    if (c->out.failed || c->broken) {
        http_abort(x);
        return;
    }
    if (x->chunked && !x->no_body) {
        buf_puts(&c->out, "0\r\n\r\n");
    }
    conn_response_done(c);
}

void http_abort(struct http_exchange *x)
{
    struct conn *c = x->conn;
    http_end_exchange(c);
    c->state = CONN_LINGERING; /* the sweep closes it: never free under the caller */
    c->linger_until_ns = 0;
    c->close_after = 1;
    c->broken = 1;
    buf_clear(&c->out);
    c->out_sent = 0;
    conn_unmark_dirty(c);
    shutdown(c->fd, SHUT_RDWR);
}

size_t http_stream_backlog(const struct http_exchange *x)
{
    return conn_backlog(x->conn);
}

/* ---- the server ---- */

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
    struct http_server *s = arg;
    (void)what;
    for (int i = 0; i < 64; i++) {
        struct sockaddr_storage addr = {0};
        socklen_t len = sizeof addr;
        int c = accept4(fd, (struct sockaddr *)&addr, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (c < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                event_del(s->ev_accept); /* the sweep turns it on again */
                s->accept_paused = 1;
            }
            if (errno == EINTR || errno == ECONNABORTED) {
                continue;
            }
            return;
        }
        if (s->n_conns >= s->o.max_connections) {
            close(c);
            continue;
        }
        conn_open(s, c, &addr);
    }
}

static void on_flush(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    conn_flush_dirty(arg);
}

void http_server_reload_tls(struct http_server *s)
{
    struct err e = {0};
    if (!s->tls) {
        return;
    }
    if (tls_reload(s->tls, &e) == 0) {
        log_info(s->o.log, "TLS: %s loaded again, for new connections", s->o.tls->certfile);
    } else {
        log_warning(s->o.log, "TLS: the old certificate stays in use: %s", e.text);
    }
}

static void on_sweep(evutil_socket_t fd, short what, void *arg)
{
    struct http_server *s = arg;
    (void)fd;
    (void)what;
    uint64_t now = clock_now_ns();
    for (struct conn *c = s->conns, *next; c; c = next) {
        next = c->next; /* only c itself can be freed by its own check */
        conn_check_deadlines(c, now);
    }
    if (s->accept_paused && s->fd >= 0) {
        s->accept_paused = 0;
        event_add(s->ev_accept, NULL);
    }
    if (s->tls && s->o.tls_refresh && now - s->tls_looked_ns > TLS_LOOK_NS) {
        s->tls_looked_ns = now;
        if (tls_has_changed(s->tls)) {
            http_server_reload_tls(s);
        }
    }
}

static int open_sockets(struct http_server *s, struct err *e)
{
    const struct http_options *o = &s->o;
    int rc = o->tls ? tls_open(&s->tls, o->tls, e) : 0; /* before anyone can connect */
    if (rc < 0) {
        return rc;
    }
    if (o->no_listener) {
        return 0;
    }
    s->fd = rc = s->uds ? listen_unix(s->uds, o->uds_mode, &s->uds_file, e)
                        : listen_tcp(s->host, o->port, &s->port, e);
    if (rc < 0) {
        s->fd = -1;
        return rc;
    }
    return 0;
}

int http_server_new(struct http_server **out, struct event_base *base, const struct http_options *o,
                    struct err *e)
{
    struct http_server *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    int rc = 0;
    s->base = base;
    s->o = *o;
    s->fd = -1;
    s->host = strdup(o->host ? o->host : "0.0.0.0");
    s->uds = o->uds ? strdup(o->uds) : NULL;
    s->input = malloc(HTTP_INPUT_BYTES);
    if (!s->host || !s->input || (o->uds && !s->uds)) {
        rc = err_set(e, ERR_NOMEM, "out of memory");
        goto fail;
    }
    rc = open_sockets(s, e);
    if (rc < 0) {
        goto fail;
    }
    s->ev_accept =
        o->no_listener ? NULL : event_new(base, s->fd, EV_READ | EV_PERSIST, on_accept, s);
    s->ev_sweep = event_new(base, -1, EV_PERSIST, on_sweep, s);
    s->ev_flush = event_new(base, -1, 0, on_flush, s);
    struct timeval tv = {0, SWEEP_MS * 1000};
    if ((!o->no_listener && (!s->ev_accept || event_add(s->ev_accept, NULL) != 0)) ||
        !s->ev_sweep || !s->ev_flush || event_add(s->ev_sweep, &tv) != 0) {
        rc = err_set(e, ERR_NOMEM, "can't create the event loop's events");
        goto fail;
    }
    *out = s;
    return 0;
fail:
    http_server_free(s);
    return rc;
}

void http_server_adopt(struct http_server *s, int fd)
{
    struct sockaddr_storage unix_address = {.ss_family = AF_UNIX};
    if (s->draining || evutil_make_socket_nonblocking(fd) != 0) {
        close(fd);
        return;
    }
    conn_open(s, fd, &unix_address);
}

int http_server_port(const struct http_server *s)
{
    return s->port;
}

int http_server_is_busy(const struct http_server *s)
{
    for (const struct conn *c = s->conns; c; c = c->next) {
        if (c->state == CONN_RUNNING || (c->state != CONN_LINGERING && conn_backlog(c) > 0)) {
            return 1;
        }
    }
    return 0;
}

static void close_listener(struct http_server *s)
{
    if (s->fd >= 0) {
        if (s->uds) {
            listen_unix_remove(s->uds, &s->uds_file);
        }
        close(s->fd);
        s->fd = -1;
    }
}

void http_server_stop_accepting(struct http_server *s)
{
    s->draining = 1;
    if (s->ev_accept) {
        event_free(s->ev_accept);
        s->ev_accept = NULL;
    }
    close_listener(s);
    for (struct conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        if (c->state == CONN_READING && c->request.state == REQUEST_EMPTY && conn_backlog(c) == 0) {
            conn_close(c);
        }
    }
}

void http_server_free(struct http_server *s)
{
    if (!s) {
        return;
    }
    for (struct conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        conn_free(c);
    }
    struct event *events[] = {s->ev_accept, s->ev_sweep, s->ev_flush};
    for (int i = 0; i < 3; i++) {
        if (events[i]) {
            event_free(events[i]);
        }
    }
    close_listener(s);
    tls_close(s->tls);
    free(s->host);
    free(s->uds);
    free(s->input);
    free(s);
}

/* ---- getters ---- */

const char *http_method(const struct http_exchange *x)
{
    return http_request_method(&x->conn->request);
}

const char *http_target(const struct http_exchange *x)
{
    return x->conn->request.url.data ? x->conn->request.url.data : "";
}

const char *http_path(const struct http_exchange *x)
{
    return x->conn->request.path.data ? x->conn->request.path.data : "";
}

const char *http_query(const struct http_exchange *x)
{
    return x->conn->request.query;
}

const char *http_header(const struct http_exchange *x, const char *name)
{
    return http_request_header(&x->conn->request, name);
}

const char *http_body(const struct http_exchange *x, size_t *n_bytes)
{
    *n_bytes = x->conn->request.body.len;
    return x->conn->request.body.data ? x->conn->request.body.data : "";
}

char *http_body_take(struct http_exchange *x, size_t *n_bytes)
{
    *n_bytes = x->conn->request.body.len;
    return buf_detach(&x->conn->request.body);
}

const char *http_peer(const struct http_exchange *x)
{
    return x->conn->peer;
}

int http_version_minor(const struct http_exchange *x)
{
    return x->conn->request.parser.http_minor;
}

uint64_t http_started_ns(const struct http_exchange *x)
{
    return x->started_ns;
}

uint64_t http_request_bytes(const struct http_exchange *x)
{
    return x->conn->request.body_bytes;
}

uint64_t http_response_bytes(const struct http_exchange *x)
{
    return x->response_bytes;
}

int http_status(const struct http_exchange *x)
{
    return x->status;
}

void http_set_tag(struct http_exchange *x, int tag)
{
    x->tag = tag;
}

void http_set_label(struct http_exchange *x, const char *label)
{
    size_t n = strnlen(label, sizeof x->label - 1);
    memcpy(x->label, label, n);
    x->label[n] = 0;
}

const char *http_label(const struct http_exchange *x)
{
    return x->label;
}

int http_tag(const struct http_exchange *x)
{
    return x->tag;
}

void http_on_gone(struct http_exchange *x, void (*gone)(void *user), void *user)
{
    x->gone = gone;
    x->gone_user = user;
}

void http_on_drain(struct http_exchange *x, void (*drain)(void *user), void *user)
{
    x->drain = drain;
    x->drain_user = user;
}
