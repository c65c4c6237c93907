/* SPDX-License-Identifier: Apache-2.0 */
/* Connections. Each is a small state machine:
 *
 *     READING   a request is awaited or coming in; EOF closes
 *     RUNNING   a request was handed up, its response is due or streaming; EOF means that the
 * client is gone FLUSHING  the response is complete but bytes wait; then READING again, or
 * LINGERING, or closed LINGERING our side is shut, input is thrown away for a moment, so that the
 * peer reads the answer that explains the refusal before a reset would destroy it
 *
 * Writes are gathered: what callbacks of one loop turn produce for a connection leaves in one
 * send(2) from the flush event. Deadlines are checked by one sweep timer rather than by a timer a
 * connection. While a response runs the socket stays watched for reading, so that a departure is
 * seen at once whether or not there is anything to write. (When the pipeline behind the request is
 * full, the sweep polls for a reset; a FIN behind more than that can't be seen.) The kernel's send
 * buffer is kept small for the same reason: a reader that stalls must become visible as our
 * backlog, not vanish in megabytes of socket memory. */
#include "net/http.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define INPUT_BYTES 65536 /* one read */
#define PIPELINE_BYTES                                                                             \
    (1 << 20) /* unparsed input kept while a response runs; beyond it the socket isn't read */
#define SEND_BUFFER_BYTES 131072
#define SWEEP_MS          200
#define LINGER_NS         (10 * 1000000000ull)
#define BODY_MIN_RATE     8192 /* bytes a second a slow body must keep up after read_timeout_s */
#define NS                1000000000ull

enum conn_state { CONN_READING, CONN_RUNNING, CONN_FLUSHING, CONN_LINGERING };

struct conn;

struct http_exchange {
    struct conn *conn;
    void (*gone)(void *);
    void *gone_user;
    void (*drain)(void *);
    void *drain_user;
    struct buf extra; /* header lines added by the user */
    uint64_t started_ns, response_bytes;
    int status;
    int streaming, chunked, no_body;
    int in_handler; /* inside on_head or on_request of this exchange */
    int was_high;
};

struct conn {
    struct conn *prev, *next;             /* all connections */
    struct conn *dirty_prev, *dirty_next; /* those with output to flush */
    int dirty;
    struct http_server *server;
    int fd;
    enum conn_state state;
    struct event *ev_read, *ev_write;
    int reading;
    struct http_request request;
    struct http_exchange x;
    struct buf in; /* bytes behind the current request … */
    size_t in_at;  /* … start here */
    struct buf out;
    size_t out_sent;
    int close_after; /* no further request on this connection */
    int peer_eof;
    int broken; /* out of memory inside a stream */
    uint64_t idle_since_ns, head_since_ns, body_since_ns, stuck_since_ns, linger_until_ns;
    int kernel_bytes; /* when the output got stuck, or at the last look */
    int n_requests;
    char peer[80];
};

struct http_server {
    struct event_base *base;
    struct http_options o;
    char *host;
    int fd, port;
    struct event *ev_accept, *ev_sweep, *ev_flush;
    struct conn *conns;
    struct conn *dirty;
    int n_conns;
    int draining;
    int accept_paused;
    time_t date_at;
    char date[40];
    char *input; /* scratch for reads */
};

static void conn_close(struct conn *c);
static void conn_process(struct conn *c);

/* ---- small helpers ---- */

static void set_reading(struct conn *c, int on)
{
    if (on && !c->reading) {
        event_add(c->ev_read, NULL);
    } else if (!on && c->reading) {
        event_del(c->ev_read);
    }
    c->reading = on;
}

static size_t backlog(const struct conn *c)
{
    return c->out.len - c->out_sent;
}

static size_t unparsed(const struct conn *c)
{
    return c->in.len - c->in_at;
}

static void mark_dirty(struct conn *c)
{
    struct http_server *s = c->server;
    if (c->dirty) {
        return;
    }
    c->dirty = 1;
    c->dirty_prev = NULL;
    c->dirty_next = s->dirty;
    if (s->dirty) {
        s->dirty->dirty_prev = c;
    } else {
        event_active(s->ev_flush, EV_TIMEOUT, 0);
    }
    s->dirty = c;
}

static void unmark_dirty(struct conn *c)
{
    if (!c->dirty) {
        return;
    }
    c->dirty = 0;
    if (c->dirty_prev) {
        c->dirty_prev->dirty_next = c->dirty_next;
    } else {
        c->server->dirty = c->dirty_next;
    }
    if (c->dirty_next) {
        c->dirty_next->dirty_prev = c->dirty_prev;
    }
}

const char *http_reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } table[] = {
        {200, "OK"},
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

/* ---- the end of a connection or an exchange ---- */

/* The response is over, or the client is. Tells on_end once. */
static void end_exchange(struct conn *c)
{
    struct http_server *s = c->server;
    if (s->o.callbacks.on_end) {
        s->o.callbacks.on_end(s->o.callbacks.ctx, &c->x);
    }
    c->x.gone = NULL;
    c->x.drain = NULL;
    buf_clear(&c->x.extra);
}

static void conn_free(struct conn *c)
{
    struct http_server *s = c->server;
    unmark_dirty(c);
    if (c->prev) {
        c->prev->next = c->next;
    } else {
        s->conns = c->next;
    }
    if (c->next) {
        c->next->prev = c->prev;
    }
    s->n_conns--;
    if (c->ev_read) {
        event_free(c->ev_read);
    }
    if (c->ev_write) {
        event_free(c->ev_write);
    }
    close(c->fd);
    http_request_fini(&c->request);
    buf_fini(&c->in);
    buf_fini(&c->out);
    buf_fini(&c->x.extra);
    free(c);
}

static void conn_close(struct conn *c)
{
    if (c->state == CONN_RUNNING) {
        void (*gone)(void *) = c->x.gone;
        void *user = c->x.gone_user;
        end_exchange(c);
        if (gone) {
            gone(user);
        }
    }
    conn_free(c);
}

static void conn_linger(struct conn *c)
{
    shutdown(c->fd, SHUT_WR);
    c->state = CONN_LINGERING;
    c->linger_until_ns = clock_now_ns() + LINGER_NS;
    buf_clear(&c->in);
    c->in_at = 0;
    set_reading(c, 1);
}

/* ---- output ---- */

/* Bytes that the kernel holds and the peer has not acknowledged. */
static int kernel_backlog(const struct conn *c)
{
    int n = 0;
    return ioctl(c->fd, SIOCOUTQ, &n) == 0 ? n : 0;
}

/* Sends what waits. Returns 0, or -1 when the connection was closed. */
static int conn_flush(struct conn *c)
{
    unmark_dirty(c);
    if (c->broken) {
        conn_close(c);
        return -1;
    }
    while (backlog(c) > 0) {
        ssize_t n = send(c->fd, c->out.data + c->out_sent, backlog(c), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            c->out_sent += (size_t)n;
            c->stuck_since_ns = 0;
            continue;
        }
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (c->stuck_since_ns == 0) {
                c->stuck_since_ns = clock_now_ns();
                c->kernel_bytes = kernel_backlog(c);
            }
            event_add(c->ev_write, NULL);
            if (c->out_sent > INPUT_BYTES) {
                memmove(c->out.data, c->out.data + c->out_sent, backlog(c));
                c->out.len -= c->out_sent;
                c->out_sent = 0;
            }
            return 0;
        }
        conn_close(c);
        return -1;
    }
    if (c->out.cap > 2 * HTTP_STREAM_HIGH_BYTES) {
        buf_fini(&c->out);
        buf_init(&c->out);
    }
    buf_clear(&c->out);
    c->out_sent = 0;
    if (c->state == CONN_FLUSHING) {
        if (c->close_after) {
            if (c->peer_eof) {
                conn_close(c);
                return -1;
            }
            conn_linger(c);
            return 0;
        }
        c->state = CONN_READING;
        c->idle_since_ns = clock_now_ns();
        http_request_next(&c->request);
        set_reading(c, 1);
        if (unparsed(c) > 0 || c->peer_eof) {
            conn_process(c);
            return -1; /* may be closed: the caller must not touch it */
        }
        return 0;
    }
    if (c->state == CONN_RUNNING && c->x.was_high) {
        c->x.was_high = 0;
        if (c->x.drain) {
            c->x.drain(c->x.drain_user); /* only produces output, which is flushed later */
        }
    }
    return 0;
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    conn_flush(arg);
}

static void on_flush(evutil_socket_t fd, short what, void *arg)
{
    struct http_server *s = arg;
    (void)fd;
    (void)what;
    /* Flushing may mark others, or the same one again, dirty: bounded by taking the list as it is
     * now. */
    struct conn *c = s->dirty;
    int n = 0;
    for (struct conn *k = c; k; k = k->dirty_next) {
        n++;
    }
    while (n-- > 0 && s->dirty) {
        conn_flush(s->dirty);
    }
    if (s->dirty) {
        event_active(s->ev_flush, EV_TIMEOUT, 0);
    }
}

/* The response is complete in `out`. */
static void response_done(struct conn *c)
{
    end_exchange(c);
    c->state = CONN_FLUSHING;
    mark_dirty(c);
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
    buf_printf(&c->out, "HTTP/1.1 %d %s\r\ndate: %s\r\nserver: tern\r\n", status,
               http_reason(status), date_line(s));
    if (content_length >= 0) {
        buf_printf(&c->out, "content-length: %lld\r\n", (long long)content_length);
    } else if (x->chunked) {
        buf_puts(&c->out, "transfer-encoding: chunked\r\n");
    }
    if (content_type) {
        buf_printf(&c->out, "content-type: %s\r\n", content_type);
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
    buf_printf(&x->extra, "%s: ", name);
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
    response_done(c);
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
    mark_dirty(c);
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
        buf_printf(&c->out, "%zx\r\n", total);
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
    if (backlog(c) > HTTP_STREAM_HIGH_BYTES) {
        x->was_high = 1;
    }
    mark_dirty(c);
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
    response_done(c);
}

void http_abort(struct http_exchange *x)
{
    struct conn *c = x->conn;
    end_exchange(c);
    c->state = CONN_LINGERING; /* the sweep closes it: never free under the caller */
    c->linger_until_ns = 0;
    c->close_after = 1;
    buf_clear(&c->out);
    c->out_sent = 0;
    unmark_dirty(c);
    shutdown(c->fd, SHUT_RDWR);
}

size_t http_stream_backlog(const struct http_exchange *x)
{
    return backlog(x->conn);
}

/* ---- input ---- */

static void begin_exchange(struct conn *c)
{
    memset(&c->x, 0, offsetof(struct http_exchange, extra));
    c->x.conn = c;
    c->x.started_ns = clock_now_ns();
    c->x.response_bytes = 0;
    c->x.status = c->x.streaming = c->x.chunked = c->x.no_body = c->x.was_high = 0;
    buf_clear(&c->x.extra);
    c->state = CONN_RUNNING;
    c->n_requests++;
}

static void refuse_bad(struct conn *c, int status, const char *reason)
{
    struct http_server *s = c->server;
    if (c->state != CONN_RUNNING) {
        begin_exchange(c);
    }
    c->close_after = 1;
    s->o.callbacks.on_bad_request(s->o.callbacks.ctx, &c->x, status, reason);
}

/* Forgets parsed input, without moving the rest for every small request of a long pipeline. */
static void compact(struct conn *c)
{
    size_t rest = unparsed(c);
    if (rest == 0 && c->in.cap > 2 * INPUT_BYTES) {
        buf_fini(&c->in);
        buf_init(&c->in);
    }
    if (rest == 0 || c->in_at > rest) {
        if (rest > 0) {
            memmove(c->in.data, c->in.data + c->in_at, rest);
        }
        c->in.len = rest;
        c->in_at = 0;
    }
}

/* Parses what lies in c->in as far as the state allows. May close (free) the connection. */
static void conn_process(struct conn *c)
{
    struct http_server *s = c->server;
    struct http_request *r = &c->request;
    while (c->state == CONN_READING && unparsed(c) > 0) {
        enum http_request_state before = r->state;
        c->in_at += http_request_feed(r, c->in.data + c->in_at, unparsed(c));
        if (before == REQUEST_EMPTY && r->state != REQUEST_EMPTY) {
            c->head_since_ns = clock_now_ns();
        }
        if (r->state == REQUEST_BAD) {
            refuse_bad(c, r->status, r->reason);
            break;
        }
        if (r->state == REQUEST_BODY && before != REQUEST_BODY) {
            c->body_since_ns = clock_now_ns();
            begin_exchange(c);
            if (s->o.callbacks.on_head) {
                s->o.callbacks.on_head(s->o.callbacks.ctx, &c->x);
            }
            if (c->state !=
                CONN_RUNNING) { /* answered: what follows can't be trusted to be a request */
                break;
            }
            c->state = CONN_READING;
            buf_clear(&c->x.extra);
            if (r->wants_continue && unparsed(c) == 0) {
                buf_puts(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
                mark_dirty(c);
            }
            continue;
        }
        if (r->state == REQUEST_COMPLETE) {
            if (before != REQUEST_BODY) {
                begin_exchange(c);
            }
            c->state = CONN_RUNNING;
            s->o.callbacks.on_request(s->o.callbacks.ctx, &c->x);
        }
    }
    compact(c);
    if (c->peer_eof) {
        /* Nothing more will come. A response that is complete still goes out; anything else ends
         * here. */
        if (c->state == CONN_FLUSHING) {
            c->close_after |= unparsed(c) == 0;
            set_reading(c, 0);
            mark_dirty(c);
            return;
        }
        conn_close(c);
        return;
    }
    if (c->state == CONN_RUNNING && unparsed(c) >= PIPELINE_BYTES) {
        set_reading(c, 0);
    }
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct conn *c = arg;
    struct http_server *s = c->server;
    (void)what;
    ssize_t n = recv(fd, s->input, INPUT_BYTES, MSG_DONTWAIT);
    if (n < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            conn_close(c);
        }
        return;
    }
    if (c->state == CONN_LINGERING) {
        if (n == 0) {
            conn_close(c);
        }
        return;
    }
    if (n == 0) {
        c->peer_eof = 1;
        if (c->state == CONN_FLUSHING) {
            c->close_after |= unparsed(c) == 0;
            set_reading(c, 0); /* the flush goes on and closes */
            mark_dirty(c);
            return;
        }
        if (c->state == CONN_READING && c->request.state != REQUEST_EMPTY) {
            set_reading(c, 0);
            refuse_bad(c, 400, "the connection ended inside the request");
            return;
        }
        conn_close(c);
        return;
    }
    buf_append(&c->in, s->input, (size_t)n);
    if (c->in.failed) {
        conn_close(c);
        return;
    }
    if (c->state == CONN_READING) {
        conn_process(c);
    } else if (unparsed(c) >= PIPELINE_BYTES) {
        set_reading(c, 0);
    }
}

/* ---- accepting ---- */

static void set_peer(struct conn *c, const struct sockaddr_storage *a)
{
    char text[INET6_ADDRSTRLEN] = "?";
    int port = 0;
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)a;
        inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
        port = ntohs(in->sin_port);
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)a;
        inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof text);
        port = ntohs(in6->sin6_port);
    }
    snprintf(c->peer, sizeof c->peer, "%s:%d", text, port);
}

static void conn_open(struct http_server *s, int fd, const struct sockaddr_storage *addr)
{
    struct conn *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return;
    }
    c->server = s;
    c->fd = fd;
    int one = 1, size = SEND_BUFFER_BYTES;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    unsigned ms = (unsigned)s->o.write_timeout_s * 1000u;
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    struct http_request_limits limits = {s->o.max_header_bytes, s->o.max_body_bytes};
    http_request_init(&c->request, &limits);
    buf_init(&c->in);
    buf_init(&c->out);
    buf_init(&c->x.extra);
    c->x.conn = c;
    set_peer(c, addr);
    c->idle_since_ns = clock_now_ns();
    c->next = s->conns;
    if (s->conns) {
        s->conns->prev = c;
    }
    s->conns = c;
    s->n_conns++;
    c->ev_read = event_new(s->base, fd, EV_READ | EV_PERSIST, on_readable, c);
    c->ev_write = event_new(s->base, fd, EV_WRITE, on_writable, c);
    if (!c->ev_read || !c->ev_write) {
        conn_free(c);
        return;
    }
    set_reading(c, 1);
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
    struct http_server *s = arg;
    (void)what;
    for (int i = 0; i < 64; i++) {
        struct sockaddr_storage addr;
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

/* ---- deadlines ---- */

static int over(uint64_t since_ns, int seconds, uint64_t now_ns)
{
    return since_ns && now_ns > since_ns && now_ns - since_ns > (uint64_t)seconds * NS;
}

static void check_deadlines(struct conn *c, uint64_t now)
{
    const struct http_options *o = &c->server->o;
    if (c->state == CONN_LINGERING) {
        if (now >= c->linger_until_ns) {
            conn_close(c);
        }
        return;
    }
    if (backlog(c) > 0 && c->stuck_since_ns) {
        /* A slow reader empties the kernel's buffer long before there is room for our next write.
         */
        int kernel_bytes = kernel_backlog(c);
        if (kernel_bytes < c->kernel_bytes) {
            c->stuck_since_ns = now;
        }
        c->kernel_bytes = kernel_bytes;
    }
    if (backlog(c) > 0 && over(c->stuck_since_ns, o->write_timeout_s, now)) {
        conn_close(c);
        return;
    }
    if (c->state == CONN_RUNNING && !c->reading) {
        struct pollfd p = {c->fd, POLLRDHUP, 0};
        if (poll(&p, 1, 0) > 0) {
            conn_close(c);
        }
        return;
    }
    if (c->state != CONN_READING) {
        return;
    }
    switch (c->request.state) {
    case REQUEST_EMPTY:
        if (over(c->idle_since_ns, c->n_requests ? o->keep_alive_s : o->read_timeout_s, now)) {
            conn_close(c);
        }
        break;
    case REQUEST_HEAD:
        if (over(c->head_since_ns, o->read_timeout_s, now)) {
            refuse_bad(c, 408, "the request head did not arrive in time");
        }
        break;
    case REQUEST_BODY:
        if (over(c->body_since_ns, o->read_timeout_s, now) &&
            c->request.body_bytes < (now - c->body_since_ns) / NS * BODY_MIN_RATE) {
            c->state = CONN_RUNNING;
            refuse_bad(c, 408, "the request body did not arrive in time");
        }
        break;
    default:
        break;
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
        check_deadlines(c, now);
    }
    if (s->accept_paused && s->fd >= 0) {
        s->accept_paused = 0;
        event_add(s->ev_accept, NULL);
    }
}

/* ---- the server ---- */

static int bind_listen(const char *host, int port, int *bound_port, struct err *e)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE},
                    *list = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0) {
        return err_set(e, ERR_INVALID, "host %s: %s", host, gai_strerror(rc));
    }
    int fd = -1, saved = 0;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
            saved = errno;
            continue;
        }
        int one = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 2048) == 0) {
            break;
        }
        saved = errno;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    if (fd < 0) {
        return err_set(e, saved == EADDRINUSE ? ERR_BUSY : ERR_IO, "can't listen on %s port %d: %s",
                       host, port, strerror(saved));
    }
    struct sockaddr_storage addr;
    socklen_t len = sizeof addr;
    getsockname(fd, (struct sockaddr *)&addr, &len);
    *bound_port = ntohs(addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&addr)->sin6_port
                                                   : ((struct sockaddr_in *)&addr)->sin_port);
    return fd;
}

int http_server_new(struct http_server **out, struct event_base *base, const struct http_options *o,
                    struct err *e)
{
    struct http_server *s = calloc(1, sizeof *s);
    int rc = ERR_NOMEM;
    *out = NULL;
    if (!s) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    s->base = base;
    s->o = *o;
    s->fd = -1;
    s->host = strdup(o->host ? o->host : "0.0.0.0");
    s->input = malloc(INPUT_BYTES);
    if (!s->host || !s->input) {
        err_set(e, ERR_NOMEM, "out of memory");
        goto fail;
    }
    s->fd = rc = bind_listen(s->host, o->port, &s->port, e);
    if (rc < 0) {
        s->fd = -1;
        goto fail;
    }
    s->ev_accept = event_new(base, s->fd, EV_READ | EV_PERSIST, on_accept, s);
    s->ev_sweep = event_new(base, -1, EV_PERSIST, on_sweep, s);
    s->ev_flush = event_new(base, -1, 0, on_flush, s);
    struct timeval tv = {0, SWEEP_MS * 1000};
    if (!s->ev_accept || !s->ev_sweep || !s->ev_flush || event_add(s->ev_accept, NULL) != 0 ||
        event_add(s->ev_sweep, &tv) != 0) {
        rc = err_set(e, ERR_NOMEM, "can't create the event loop's events");
        goto fail;
    }
    *out = s;
    return 0;
fail:
    http_server_free(s);
    return rc;
}

int http_server_port(const struct http_server *s)
{
    return s->port;
}

int http_server_n_connections(const struct http_server *s)
{
    return s->n_conns;
}

int http_server_is_busy(const struct http_server *s)
{
    for (const struct conn *c = s->conns; c; c = c->next) {
        if (c->state == CONN_RUNNING || (c->state != CONN_LINGERING && backlog(c) > 0)) {
            return 1;
        }
    }
    return 0;
}

void http_server_stop_accepting(struct http_server *s)
{
    s->draining = 1;
    if (s->ev_accept) {
        event_free(s->ev_accept);
        s->ev_accept = NULL;
    }
    if (s->fd >= 0) {
        close(s->fd);
        s->fd = -1;
    }
    for (struct conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        if (c->state == CONN_READING && c->request.state == REQUEST_EMPTY && backlog(c) == 0) {
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
    if (s->fd >= 0) {
        close(s->fd);
    }
    free(s->host);
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
