/* SPDX-License-Identifier: Apache-2.0 */
/* Connections over real sockets, with a small handler in place of the API. */
#include "net/sse.h"
#include "net_rig.h"

#include <event2/event.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

/* /echo answers with the body; /hold never answers; /stream sends frames until the client has gone
 * or `frames` were sent; /close cuts a stream. */
struct rig {
    struct event_base *base;
    struct http_server *http;
    pthread_t thread;
    int port;
    struct event *ev_feed;
    struct http_exchange *stream;
    int frames_left;
    char frame[4096];
    atomic_int n_gone, n_end, n_requests, n_heads, stop, max_backlog, draining;
};

static void on_gone(void *user)
{
    struct rig *r = user;
    r->stream = NULL;
    atomic_fetch_add(&r->n_gone, 1);
}

static void feed(evutil_socket_t fd, short what, void *arg)
{
    struct rig *r = arg;
    (void)fd;
    (void)what;
    if (atomic_load(&r->stop)) {
        event_base_loopbreak(r->base);
    }
    if (atomic_exchange(&r->draining, 0)) {
        http_server_stop_accepting(r->http);
    }
    for (int i = 0; i < 64 && r->stream; i++) {
        if (http_stream_backlog(r->stream) > HTTP_STREAM_HIGH_BYTES) {
            break;
        }
        if (r->frames_left-- <= 0) {
            struct http_exchange *x = r->stream;
            r->stream = NULL;
            sse_done(x);
            break;
        }
        sse_data(r->stream, r->frame, sizeof r->frame);
        int backlog = (int)http_stream_backlog(r->stream);
        if (backlog > atomic_load(&r->max_backlog)) {
            atomic_store(&r->max_backlog, backlog);
        }
    }
}

static void on_head(void *ctx, struct http_exchange *x)
{
    struct rig *r = ctx;
    atomic_fetch_add(&r->n_heads, 1);
    if (strcmp(http_path(x), "/no") == 0) {
        http_respond(x, 404, "text/plain", "no", 2);
    }
}

static void on_request(void *ctx, struct http_exchange *x)
{
    struct rig *r = ctx;
    const char *path = http_path(x);
    atomic_fetch_add(&r->n_requests, 1);
    http_on_gone(x, on_gone, r);
    if (strcmp(path, "/hold") == 0) {
        return;
    }
    if (strcmp(path, "/stream") == 0) {
        r->frames_left = atoi(http_query(x));
        sse_begin(x);
        r->stream = x;
        return;
    }
    if (strcmp(path, "/close") == 0) {
        sse_begin(x);
        sse_data(x, "a", 1);
        http_abort(x);
        return;
    }
    size_t n;
    const char *body = http_body(x, &n);
    http_add_header(x, "x-split", "a\r\nb");
    http_respond(x, 200, "text/plain", body, n);
}

static void on_bad(void *ctx, struct http_exchange *x, int status, const char *reason)
{
    (void)ctx;
    http_respond(x, status, "text/plain", reason, strlen(reason));
}

static void on_end(void *ctx, struct http_exchange *x)
{
    struct rig *r = ctx;
    (void)x;
    atomic_fetch_add(&r->n_end, 1);
}

static void *loop(void *arg)
{
    struct rig *r = arg;
    event_base_dispatch(r->base);
    return NULL;
}

static void open_rig(struct rig *r, int keep_alive_s, int read_s, int write_s, int max_connections)
{
    struct err e;
    memset(r, 0, sizeof *r);
    memset(r->frame, 'x', sizeof r->frame);
    r->base = event_base_new();
    struct http_options o = {.host = "127.0.0.1",
                             .max_body_bytes = 1 << 20,
                             .max_header_bytes = 8192,
                             .max_headers = 256,
                             .max_connections = max_connections,
                             .keep_alive_s = keep_alive_s,
                             .read_timeout_s = read_s,
                             .write_timeout_s = write_s,
                             .callbacks = {r, on_head, on_request, on_bad, NULL, on_end}};
    assert_int_equal(http_server_new(&r->http, r->base, &o, &e), 0);
    r->port = http_server_port(r->http);
    r->ev_feed = event_new(r->base, -1, EV_PERSIST, feed, r);
    struct timeval tv = {0, 2000};
    event_add(r->ev_feed, &tv);
    assert_int_equal(pthread_create(&r->thread, NULL, loop, r), 0);
}

static void close_rig(struct rig *r)
{
    atomic_store(&r->stop, 1);
    pthread_join(r->thread, NULL);
    http_server_free(r->http);
    event_free(r->ev_feed);
    event_base_free(r->base);
}

static int wait_for(atomic_int *v, int want, int ms)
{
    for (int i = 0; i < ms && atomic_load(v) < want; i++) {
        usleep(1000);
    }
    return atomic_load(v);
}

static void pipelined_requests_are_answered_in_order_and_the_connection_stays(void **state)
{
    (void)state;
    struct rig r;
    struct buf b;
    open_rig(&r, 5, 5, 5, 100);
    buf_init(&b);
    int fd = rig_connect(r.port);
    rig_puts(
        fd,
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\none"
        "GET /stream?3 HTTP/1.1\r\nHost: a\r\n\r\n"
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n"
        "HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: "
        "4\r\n\r\nlast");
    assert_true(rig_read(fd, &b, "last", 5000));
    assert_int_equal(rig_count(&b, "HTTP/1.1 200 OK"), 5);
    const char *one = strstr(b.data, "one"),
               *done = strstr(b.data, "data: [DONE]\n\n\r\n0\r\n\r\n"),
               *two = strstr(b.data, "two");
    assert_true(one && done && two && one < done && done < two);
    assert_non_null(strstr(b.data, "x-split: ab\r\n"));
    assert_non_null(strstr(b.data, "server: tern\r\n"));
    buf_clear(&b);
    rig_puts(fd, "GET /echo HTTP/1.0\r\n\r\n");
    assert_true(rig_read(fd, &b, NULL, 5000));
    assert_non_null(strstr(b.data, "connection: close"));
    close(fd);
    assert_int_equal(wait_for(&r.n_end, 6, 1000), 6);
    assert_int_equal(atomic_load(&r.n_gone), 0);
    buf_fini(&b);
    close_rig(&r);
}

/* Answers of a pipeline share the socket's buffer and ours; a reader slower than the idle time-out
 * is no idle connection. */
static void a_long_pipeline_is_answered_whole_and_in_order_however_slowly_it_is_read(void **state)
{
    (void)state;
    struct rig r;
    struct buf b, q;
    enum { N = 100, BODY = 8000 };
    open_rig(&r, 1, 5, 5, 100);
    buf_init(&b);
    buf_init(&q);
    for (int i = 0; i < N; i++) {
        buf_printf(&q, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n<%03d>", BODY,
                   i);
        for (int k = 5; k < BODY; k++) {
            buf_putc(&q, 'x');
        }
    }
    int fd = rig_connect_rcvbuf(r.port, 4096);
    rig_send(fd, q.data, q.len);
    char block[32768];
    for (ssize_t n; b.len < (size_t)N * BODY && (n = recv(fd, block, sizeof block, 0)) > 0;) {
        buf_append(&b, block, (size_t)n);
        usleep(30000);
    }
    rig_read(fd, &b, "xxxx\r\n", 200); /* the rest */
    const char *at = b.data;
    for (int i = 0; i < N; i++) {
        char marker[8];
        snprintf(marker, sizeof marker, "<%03d>", i);
        at = strstr(at, marker);
        if (!at) {
            fail_msg("answer %d is missing or out of order", i);
        }
    }
    assert_int_equal(rig_count(&b, "HTTP/1.1 200 OK"), N);
    close(fd);
    buf_fini(&b);
    buf_fini(&q);
    close_rig(&r);
}

static void a_large_body_comes_back_whole(void **state)
{
    (void)state;
    struct rig r;
    struct buf b, q;
    open_rig(&r, 5, 5, 5, 100);
    buf_init(&b);
    buf_init(&q);
    buf_puts(
        &q,
        "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n");
    for (int i = 0; i < 1000000; i++) {
        buf_putc(&q, (char)('a' + i % 26));
    }
    assert_int_equal(rig_ask(r.port, q.data, q.len, &b), 200);
    assert_int_equal(strlen(rig_body(&b)), 1000000);
    assert_memory_equal(rig_body(&b), strstr(q.data, "\r\n\r\n") + 4, 1000000);
    buf_fini(&b);
    buf_fini(&q);
    close_rig(&r);
}

static void a_refused_body_is_answered_before_it_is_read(void **state)
{
    (void)state;
    struct rig r;
    struct buf b;
    open_rig(&r, 5, 5, 5, 100);
    buf_init(&b);
    static const struct {
        const char *head;
        int status;
    } cases[] = {
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", 413},
        {"POST /no HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n", 404},
        {"POST /no HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n",
         404},
    };
    char *junk = calloc(1, 4 << 20);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int fd = rig_connect(r.port);
        buf_clear(&b);
        rig_puts(fd, cases[i].head);
        rig_send(fd, junk,
                 4 << 20); /* a client that sends everything first still gets the answer */
        shutdown(fd, SHUT_WR);
        assert_true(rig_read(fd, &b, NULL, 5000));
        assert_int_equal(rig_status(&b), cases[i].status);
        assert_null(strstr(b.data, "100 Continue"));
        close(fd);
    }
    free(junk);
    buf_fini(&b);
    close_rig(&r);
}

static void expect_100_gets_its_continue(void **state)
{
    (void)state;
    struct rig r;
    struct buf b;
    open_rig(&r, 5, 5, 5, 100);
    buf_init(&b);
    int fd = rig_connect(r.port);
    rig_puts(fd,
             "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_true(rig_read(fd, &b, "HTTP/1.1 100 Continue\r\n\r\n", 2000));
    rig_puts(fd, "hello");
    assert_true(rig_read(fd, &b, "hello", 2000));
    close(fd);
    buf_fini(&b);
    close_rig(&r);
}

static void a_client_that_leaves_is_noticed_at_once(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, 5, 5, 5, 100);
    for (int kind = 0; kind < 6; kind++) { /* FIN, RST, half-close; waiting and streaming */
        const char *path = kind % 2 ? "GET /stream?1000000 HTTP/1.1\r\nHost: a\r\n\r\n"
                                    : "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n";
        int fd = rig_connect(r.port), before = atomic_load(&r.n_gone);
        rig_puts(fd, path);
        assert_int_equal(wait_for(&r.n_requests, kind + 1, 1000), kind + 1);
        usleep(20000);
        if (kind / 2 == 0) {
            close(fd);
        } else if (kind / 2 == 1) {
            struct linger l = {1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
            close(fd);
        } else {
            shutdown(fd, SHUT_WR);
        }
        assert_int_equal(wait_for(&r.n_gone, before + 1, 1000), before + 1);
        if (kind / 2 == 2) {
            close(fd);
        }
    }
    close_rig(&r);
}

static void a_departure_behind_pipelined_bytes_is_seen(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, 5, 5, 5, 100);
    char *junk = malloc(1300000);
    memset(junk, 'j', 1300000);
    for (int full = 0; full < 2;
         full++) { /* full: more than is kept, and then only a reset shows */
        struct linger reset = {1, 0};
        int fd = rig_connect(r.port);
        rig_puts(fd, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
        rig_send(fd, junk, full ? 1300000 : 200000);
        usleep(50000);
        assert_int_equal(atomic_load(&r.n_gone), full);
        if (full) {
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        close(fd);
        assert_int_equal(wait_for(&r.n_gone, full + 1, 2000), full + 1);
    }
    free(junk);
    close_rig(&r);
}

static void
a_reader_that_stops_reading_is_gone_after_the_write_timeout_and_costs_little(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, 5, 5, 1, 100);
    int fd = rig_connect_rcvbuf(r.port, 4096);
    rig_puts(fd, "GET /stream?1000000 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_int_equal(wait_for(&r.n_gone, 1, 4000), 1);
    assert_true(atomic_load(&r.max_backlog) < 2 * HTTP_STREAM_HIGH_BYTES);
    close(fd);
    close_rig(&r);
}

static void a_slow_reader_that_goes_on_reading_gets_everything(void **state)
{
    (void)state;
    struct rig r;
    struct buf b;
    open_rig(&r, 5, 5, 1, 100);
    buf_init(&b);
    int fd = rig_connect_rcvbuf(r.port, 4096), n = 0;
    char block[16384];
    rig_puts(fd, "GET /stream?300 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    ssize_t k;
    while ((k = recv(fd, block, sizeof block, 0)) > 0) {
        buf_append(&b, block, (size_t)k);
        if (n++ % 8 == 0) {
            usleep(3000);
        }
    }
    assert_int_equal(rig_count(&b, "data: x"), 300);
    assert_non_null(strstr(b.data, "[DONE]"));
    assert_int_equal(atomic_load(&r.n_gone), 0);
    close(fd);
    buf_fini(&b);
    close_rig(&r);
}

static void times_out(const char *raw, int keep_alive_s, int read_s, int status)
{
    struct rig r;
    struct buf b;
    open_rig(&r, keep_alive_s, read_s, 5, 100);
    buf_init(&b);
    int fd = rig_connect(r.port);
    uint64_t t = clock_now_ns();
    rig_puts(fd, raw);
    rig_read(fd, &b, NULL, 4000);
    uint64_t ms = (clock_now_ns() - t) / 1000000u;
    assert_int_equal(rig_status(&b), status);
    assert_true(ms >= 900 && ms < 2500);
    close(fd);
    buf_fini(&b);
    close_rig(&r);
}

static void slow_heads_slow_bodies_and_idle_connections_time_out(void **state)
{
    (void)state;
    times_out("", 9, 1, 0);
    times_out("GET /echo HT", 9, 1, 408);
    times_out("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc", 9, 1, 408);
    times_out("GET /echo HTTP/1.1\r\nHost: a\r\n\r\n", 1, 9, 200);
}

static void an_aborted_stream_has_no_end(void **state)
{
    (void)state;
    struct rig r;
    struct buf b;
    open_rig(&r, 5, 5, 5, 100);
    buf_init(&b);
    const char *raw = "GET /close HTTP/1.1\r\nHost: a\r\n\r\n";
    rig_ask(r.port, raw, strlen(raw), &b);
    assert_true(b.len == 0 || !strstr(b.data, "\r\n0\r\n\r\n"));
    buf_fini(&b);
    close_rig(&r);
}

static void five_hundred_connections_are_served_and_one_more_than_allowed_is_closed(void **state)
{
    (void)state;
    struct rig r;
    struct buf b;
    int fds[500];
    open_rig(&r, 30, 30, 30, 500);
    buf_init(&b);
    for (int i = 0; i < 500; i++) {
        fds[i] = rig_connect(r.port);
        rig_puts(fds[i], "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 500; i++) {
            buf_clear(&b);
            assert_true(rig_read(fds[i], &b, "\r\n\r\n", 5000));
            assert_int_equal(rig_status(&b), 200);
            rig_puts(fds[i], "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n");
        }
    }
    int extra = rig_connect(r.port);
    buf_clear(&b);
    rig_read(extra, &b, NULL, 2000);
    assert_int_equal(b.len, 0);
    close(extra);
    for (int i = 0; i < 500; i++) {
        close(fds[i]);
    }
    buf_fini(&b);
    close_rig(&r);
}

static void draining_closes_idle_connections_and_lets_streams_finish(void **state)
{
    (void)state;
    struct rig r;
    struct buf b;
    open_rig(&r, 30, 30, 30, 500);
    buf_init(&b);
    int idle = rig_connect(r.port), busy = rig_connect(r.port);
    rig_puts(busy, "GET /stream?200 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_int_equal(wait_for(&r.n_requests, 1, 1000), 1);
    atomic_store(&r.draining, 1);
    assert_true(rig_read(idle, &b, NULL, 2000));
    assert_int_equal(b.len, 0);
    assert_true(rig_read(busy, &b, "[DONE]", 5000));
    close(idle);
    close(busy);
    buf_fini(&b);
    close_rig(&r);
}

static void a_taken_port_is_refused_by_name(void **state)
{
    (void)state;
    struct rig r;
    struct err e;
    struct http_server *second;
    open_rig(&r, 5, 5, 5, 10);
    struct event_base *base = event_base_new();
    struct http_options o = {.host = "127.0.0.1", .port = r.port};
    assert_int_equal(http_server_new(&second, base, &o, &e), ERR_BUSY);
    assert_non_null(strstr(e.text, "127.0.0.1"));
    event_base_free(base);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipelined_requests_are_answered_in_order_and_the_connection_stays),
        cmocka_unit_test(a_long_pipeline_is_answered_whole_and_in_order_however_slowly_it_is_read),
        cmocka_unit_test(a_large_body_comes_back_whole),
        cmocka_unit_test(a_refused_body_is_answered_before_it_is_read),
        cmocka_unit_test(expect_100_gets_its_continue),
        cmocka_unit_test(a_client_that_leaves_is_noticed_at_once),
        cmocka_unit_test(a_departure_behind_pipelined_bytes_is_seen),
        cmocka_unit_test(
            a_reader_that_stops_reading_is_gone_after_the_write_timeout_and_costs_little),
        cmocka_unit_test(a_slow_reader_that_goes_on_reading_gets_everything),
        cmocka_unit_test(slow_heads_slow_bodies_and_idle_connections_time_out),
        cmocka_unit_test(an_aborted_stream_has_no_end),
        cmocka_unit_test(five_hundred_connections_are_served_and_one_more_than_allowed_is_closed),
        cmocka_unit_test(draining_closes_idle_connections_and_lets_streams_finish),
        cmocka_unit_test(a_taken_port_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
