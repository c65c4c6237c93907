/* SPDX-License-Identifier: Apache-2.0 */
/* Connections. Each is a small state machine:
 *
 *     READING    a request is awaited or coming in; EOF closes. Bytes of earlier answers may still
 *                be on their way out
 *     RUNNING    a request was handed up, its response is due or streaming; EOF means that the
 *                client is gone
 *     FLUSHING   the response is complete, bytes wait, and no request may be read before they have
 *                left; then READING again, or LINGERING, or closed
 *     LINGERING  our side is shut, input is thrown away for a moment, so that the peer reads the
 *                answer that explains the refusal before a reset would destroy it
 *
 * Writes are gathered: what callbacks of one loop turn produce for a connection leaves in one
 * send(2) from the flush event; the answers of pipelined requests, too, share one. Deadlines are
 * checked by one sweep timer rather than by a timer a connection. While a response runs the socket
 * stays watched for reading, so that a departure is seen at once whether or not there is anything
 * to write. (When the pipeline behind the request is full, the sweep polls for a reset; a FIN
 * behind more than that can't be seen.) The kernel's send buffer is kept small for the same reason:
 * a reader that stalls must become visible as our backlog, not vanish in megabytes of socket
 * memory. */
#include "net/conn.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PIPELINE_BYTES                                                                             \
    (1 << 20) /* unparsed input kept while a response runs; beyond it the socket isn't read */
#define SEND_BUFFER_BYTES 131072
#define KEPT_BYTES        4096 /* an idle connection's buffers don't stay larger than this */
#define LINGER_NS         (10 * 1000000000ull)
#define BODY_MIN_RATE     8192 /* bytes a second a slow body must keep up after read_timeout_s */
#define NS                1000000000ull

static int process(struct conn *c, const char *fresh, size_t n_fresh);

/* ---- small helpers ---- */

static void set_reading(struct conn *c, int on)
{
    if (on && !c->reading) {
        event_add(&c->ev_read, NULL);
    } else if (!on && c->reading) {
        event_del(&c->ev_read);
    }
    c->reading = on;
}

static size_t unparsed(const struct conn *c)
{
    return c->in.len - c->in_at;
}

static void trim(struct buf *b)
{
    if (b->cap > KEPT_BYTES) {
        buf_fini(b);
        buf_init(b);
    }
    buf_clear(b);
}

void conn_mark_dirty(struct conn *c)
{
    struct http_server *s = c->server;
    if (c->dirty) {
        return;
    }
    c->dirty = 1;
    c->dirty_prev = s->dirty_last;
    c->dirty_next = NULL;
    if (s->dirty_last) {
        s->dirty_last->dirty_next = c;
    } else {
        s->dirty = c;
        event_active(s->ev_flush, EV_TIMEOUT, 0);
    }
    s->dirty_last = c;
}

void conn_unmark_dirty(struct conn *c)
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
    } else {
        c->server->dirty_last = c->dirty_prev;
    }
}

/* ---- the socket, plain or TLS ---- */

static ssize_t io_recv(struct conn *c, char *out, size_t n)
{
    return c->tls ? tls_recv(c->tls, out, n, &c->recv_crossed) : recv(c->fd, out, n, MSG_DONTWAIT);
}

static ssize_t io_send(struct conn *c, const char *data, size_t n)
{
    return c->tls ? tls_send(c->tls, data, n, &c->send_crossed)
                  : send(c->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Bytes that the kernel holds and the peer has not acknowledged. */
static int kernel_backlog(const struct conn *c)
{
    int n = 0;
    return ioctl(c->fd, SIOCOUTQ, &n) == 0 ? n : 0;
}

/* ---- the end of a connection ---- */

void conn_free(struct conn *c)
{
    struct http_server *s = c->server;
    conn_unmark_dirty(c);
    if (c->prev) {
        c->prev->next = c->next;
    } else {
        s->conns = c->next;
    }
    if (c->next) {
        c->next->prev = c->prev;
    }
    s->n_conns--;
    event_del(&c->ev_read);
    event_del(&c->ev_write);
    if (c->tls) {
        if (!c->broken) {
            tls_shutdown(c->tls);
        }
        tls_stream_free(c->tls);
    }
    close(c->fd);
    http_request_fini(&c->request);
    buf_fini(&c->in);
    buf_fini(&c->out);
    buf_fini(&c->x.extra);
    free(c);
}

void conn_close(struct conn *c)
{
    if (c->state == CONN_RUNNING) {
        void (*gone)(void *) = c->x.gone;
        void *user = c->x.gone_user;
        http_end_exchange(c);
        if (gone) {
            gone(user);
        }
    }
    conn_free(c);
}

static void linger(struct conn *c)
{
    if (c->tls) {
        tls_shutdown(c->tls);
    }
    shutdown(c->fd, SHUT_WR);
    c->state = CONN_LINGERING;
    c->linger_until_ns = clock_now_ns() + LINGER_NS;
    buf_clear(&c->in);
    c->in_at = 0;
    set_reading(c, 1);
}

/* ---- output ---- */

static void got_stuck(struct conn *c)
{
    if (c->stuck_since_ns == 0) {
        c->stuck_since_ns = clock_now_ns();
        c->kernel_bytes = kernel_backlog(c);
    }
    if (!c->send_crossed) {
        event_add(&c->ev_write, NULL);
    }
    if (c->out_sent > HTTP_STREAM_HIGH_BYTES) {
        memmove(c->out.data, c->out.data + c->out_sent, conn_backlog(c));
        c->out.len -= c->out_sent;
        c->out_sent = 0;
    }
}

/* The next request may be read: the answer before it is complete. */
static void await_request(struct conn *c)
{
    c->state = CONN_READING;
    c->idle_since_ns = clock_now_ns();
    http_request_next(&c->request);
    set_reading(c, !c->peer_eof);
}

/* Everything was sent. Returns 0, or -1 when the connection may be gone. */
static int drained(struct conn *c)
{
    if (c->out.cap > 2 * HTTP_STREAM_HIGH_BYTES || c->state == CONN_READING) {
        trim(&c->out);
    }
    buf_clear(&c->out);
    c->out_sent = 0;
    if (c->state == CONN_FLUSHING) {
        if (c->close_after && c->peer_eof) {
            conn_close(c);
            return -1;
        }
        if (c->close_after) {
            linger(c);
            return 0;
        }
        await_request(c);
    }
    if (c->state == CONN_READING) {
        if (c->request.state == REQUEST_EMPTY) {
            c->idle_since_ns = clock_now_ns();
            if (c->server->draining && unparsed(c) == 0) {
                conn_close(c);
                return -1;
            }
        }
        return unparsed(c) > 0 || c->peer_eof ? process(c, NULL, 0) : 0;
    }
    if (c->state == CONN_RUNNING && c->x.was_high) {
        c->x.was_high = 0;
        if (c->x.drain) {
            c->x.drain(c->x.drain_user); /* only produces output, which is flushed later */
        }
    }
    return 0;
}

/* Sends what waits. Returns 0, or -1 when the connection may be gone. */
static int flush(struct conn *c)
{
    conn_unmark_dirty(c);
    if (c->broken) {
        conn_close(c);
        return -1;
    }
    while (conn_backlog(c) > 0) {
        ssize_t n = io_send(c, c->out.data + c->out_sent, conn_backlog(c));
        if (n > 0) {
            c->out_sent += (size_t)n;
            c->stuck_since_ns = 0;
            continue;
        }
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            got_stuck(c);
            return 0;
        }
        conn_close(c);
        return -1;
    }
    return drained(c);
}

void conn_flush_dirty(struct http_server *s)
{
    /* Flushing may mark others, or the same one again, dirty: bounded by taking the list as it is
     * now. */
    int n = 0;
    for (struct conn *k = s->dirty; k; k = k->dirty_next) {
        n++;
    }
    while (n-- > 0 && s->dirty) {
        flush(s->dirty);
    }
    if (s->dirty) {
        event_active(s->ev_flush, EV_TIMEOUT, 0);
    }
}

void conn_response_done(struct conn *c)
{
    http_end_exchange(c);
    if (c->close_after || conn_backlog(c) > HTTP_STREAM_HIGH_BYTES) {
        c->state = CONN_FLUSHING;
    } else {
        await_request(c); /* within parse() the loop there goes on, else the flush does */
    }
    conn_mark_dirty(c);
}

/* ---- input ---- */

static void begin_exchange(struct conn *c)
{
    struct http_exchange *x = &c->x;
    struct buf extra = x->extra;
    buf_clear(&extra);
    *x = (struct http_exchange){.conn = c, .extra = extra, .started_ns = clock_now_ns()};
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

/* The head of a request with a body is complete. Returns 0 when the body may be read. */
static int head_done(struct conn *c, int body_follows)
{
    struct http_server *s = c->server;
    c->body_since_ns = clock_now_ns();
    begin_exchange(c);
    if (s->o.callbacks.on_head) {
        s->o.callbacks.on_head(s->o.callbacks.ctx, &c->x);
    }
    if (c->state != CONN_RUNNING) { /* answered: what follows can't be trusted to be a request */
        return -1;
    }
    c->state = CONN_READING;
    buf_clear(&c->x.extra);
    if (c->request.wants_continue && !body_follows) {
        buf_puts(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
        conn_mark_dirty(c);
    }
    return 0;
}

/* Parses data[0 .. n) as far as the state allows; returns how much was used. */
static size_t parse(struct conn *c, const char *data, size_t n)
{
    struct http_server *s = c->server;
    struct http_request *r = &c->request;
    size_t at = 0;
    while (c->state == CONN_READING && at < n) {
        enum http_request_state before = r->state;
        at += http_request_feed(r, data + at, n - at);
        if (before == REQUEST_EMPTY && r->state != REQUEST_EMPTY) {
            c->head_since_ns = clock_now_ns();
        }
        if (r->state == REQUEST_BAD) {
            refuse_bad(c, r->status, r->reason);
            break;
        }
        if (r->state == REQUEST_BODY && before != REQUEST_BODY && head_done(c, at < n) != 0) {
            break;
        }
        if (r->state == REQUEST_COMPLETE) {
            if (before != REQUEST_BODY) {
                begin_exchange(c);
            }
            c->state = CONN_RUNNING;
            s->o.callbacks.on_request(s->o.callbacks.ctx, &c->x);
        }
    }
    return at;
}

/* Forgets parsed input, without moving the rest for every small request of a long pipeline. */
static void compact(struct conn *c)
{
    size_t rest = unparsed(c);
    if (rest == 0) {
        trim(&c->in);
        c->in_at = 0;
    } else if (c->in_at > rest) {
        memmove(c->in.data, c->in.data + c->in_at, rest);
        c->in.len = rest;
        c->in_at = 0;
    }
}

/* Nothing more will come. What is complete still goes out; anything else ends here. */
static int end_of_input(struct conn *c)
{
    int is_done =
        c->state == CONN_FLUSHING ||
        (c->state == CONN_READING && c->request.state == REQUEST_EMPTY && conn_backlog(c) > 0);
    if (!is_done) {
        conn_close(c);
        return -1;
    }
    c->state = CONN_FLUSHING;
    c->close_after |= unparsed(c) == 0;
    set_reading(c, 0);
    conn_mark_dirty(c);
    return 0;
}

/* Takes fresh input behind what lies in c->in. Returns 0, or -1 when the connection is gone. */
static int process(struct conn *c, const char *fresh, size_t n_fresh)
{
    if (c->state == CONN_READING && unparsed(c) == 0 && n_fresh > 0) {
        size_t used = parse(c, fresh, n_fresh); /* the usual case: no copy */
        fresh += used;
        n_fresh -= used;
    }
    if (n_fresh > 0) {
        buf_append(&c->in, fresh, n_fresh);
        if (c->in.failed) {
            conn_close(c);
            return -1;
        }
    }
    if (c->state == CONN_READING && unparsed(c) > 0) {
        c->in_at += parse(c, c->in.data + c->in_at, unparsed(c));
    }
    compact(c);
    if (c->peer_eof) {
        return end_of_input(c);
    }
    if (c->state != CONN_LINGERING && unparsed(c) >= PIPELINE_BYTES) {
        set_reading(c, 0);
    }
    return 0;
}

/* Reads once. Returns 0, or -1 when the connection may be gone. */
static int take_input(struct conn *c)
{
    struct http_server *s = c->server;
    ssize_t n = io_recv(c, s->input, HTTP_INPUT_BYTES);
    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
            if (c->recv_crossed) {
                event_add(&c->ev_write, NULL);
            }
            return 0;
        }
        conn_close(c);
        return -1;
    }
    if (c->state == CONN_LINGERING) {
        if (n == 0) {
            conn_close(c);
            return -1;
        }
        return 0;
    }
    if (n > 0) {
        return process(c, s->input, (size_t)n);
    }
    c->peer_eof = 1;
    if (c->state == CONN_READING && c->request.state != REQUEST_EMPTY) {
        set_reading(c, 0);
        refuse_bad(c, 400, "the connection ended inside the request");
        return 0;
    }
    return end_of_input(c);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct conn *c = arg;
    (void)fd;
    (void)what;
    int was_crossed = c->send_crossed;
    if (take_input(c) == 0 && was_crossed) {
        conn_mark_dirty(c);
    }
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    struct conn *c = arg;
    (void)fd;
    (void)what;
    if (c->recv_crossed && take_input(c) != 0) {
        return;
    }
    flush(c);
}

/* ---- the beginning ---- */

static void set_peer(struct conn *c, const struct sockaddr_storage *a)
{
    char text[INET6_ADDRSTRLEN] = "?";
    int port = 0;
    if (a->ss_family == AF_UNIX) {
        snprintf(c->peer, sizeof c->peer, "unix:");
        return;
    }
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

void conn_open(struct http_server *s, int fd, const struct sockaddr_storage *addr)
{
    struct conn *c = calloc(1, sizeof *c);
    struct tls_stream *tls = c && s->tls ? tls_accept(s->tls, fd) : NULL;
    if (!c || (s->tls && !tls)) {
        free(c);
        close(fd);
        return;
    }
    c->server = s;
    c->fd = fd;
    c->tls = tls;
    int one = 1, size = SEND_BUFFER_BYTES;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (addr->ss_family != AF_UNIX) {
        unsigned ms = (unsigned)s->o.write_timeout_s * 1000u;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    }
    struct http_request_limits limits = {s->o.max_header_bytes, s->o.max_body_bytes,
                                         s->o.max_headers};
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
    event_assign(&c->ev_read, s->base, fd, EV_READ | EV_PERSIST, on_readable, c);
    event_assign(&c->ev_write, s->base, fd, EV_WRITE, on_writable, c);
    set_reading(c, 1);
}

/* ---- deadlines ---- */

static int over(uint64_t since_ns, int seconds, uint64_t now_ns)
{
    return since_ns && now_ns > since_ns && now_ns - since_ns > (uint64_t)seconds * NS;
}

static void check_request(struct conn *c, uint64_t now)
{
    const struct http_options *o = &c->server->o;
    switch (c->request.state) {
    case REQUEST_EMPTY:
        if (conn_backlog(c) == 0 &&
            over(c->idle_since_ns, c->n_requests ? o->keep_alive_s : o->read_timeout_s, now)) {
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

void conn_check_deadlines(struct conn *c, uint64_t now)
{
    if (c->state == CONN_LINGERING) {
        if (now >= c->linger_until_ns) {
            conn_close(c);
        }
        return;
    }
    if (conn_backlog(c) > 0 && c->stuck_since_ns) {
        /* A slow reader empties the kernel's buffer long before there is room for our next write.
         */
        int kernel_bytes = kernel_backlog(c);
        if (kernel_bytes < c->kernel_bytes) {
            c->stuck_since_ns = now;
        }
        c->kernel_bytes = kernel_bytes;
        if (over(c->stuck_since_ns, c->server->o.write_timeout_s, now)) {
            conn_close(c);
            return;
        }
    }
    if (c->state == CONN_RUNNING && !c->reading) {
        struct pollfd p = {c->fd, POLLRDHUP, 0};
        if (poll(&p, 1, 0) > 0) {
            conn_close(c);
        }
        return;
    }
    if (c->state == CONN_READING) {
        check_request(c, now);
    }
}
