/* SPDX-License-Identifier: Apache-2.0 */
/* The request reader alone: whole, byte by byte, pipelined, and every refusal. */
#include "net/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct http_request_limits limits = {4096, 1000, 256};

/* Feeds text in pieces of `step` bytes; returns the bytes used. */
static size_t feed(struct http_request *r, const char *text, size_t n, size_t step)
{
    size_t at = 0;
    while (at < n && r->state != REQUEST_COMPLETE && r->state != REQUEST_BAD) {
        size_t k = n - at < step ? n - at : step, used = 0;
        while (used < k && r->state != REQUEST_COMPLETE && r->state != REQUEST_BAD) {
            used += http_request_feed(r, text + at + used, k - used);
        }
        at += used;
    }
    return at;
}

static void a_post_is_read_the_same_in_pieces_of_any_size(void **state)
{
    (void)state;
    const char *text = "POST /v1/comp%6Cetions?x=1 HTTP/1.1\r\nHost: "
                       "a\r\nX-Empty:\r\nContent-Type:  application/json \r\n"
                       "Content-Length: 5\r\n\r\nhello";
    for (size_t step = 1; step <= strlen(text); step++) {
        struct http_request r;
        http_request_init(&r, &limits);
        assert_int_equal(feed(&r, text, strlen(text), step), strlen(text));
        assert_int_equal(r.state, REQUEST_COMPLETE);
        assert_string_equal(http_request_method(&r), "POST");
        assert_string_equal(r.path.data, "/v1/completions");
        assert_string_equal(r.query, "x=1");
        assert_string_equal(http_request_header(&r, "content-TYPE"), "application/json ");
        assert_string_equal(http_request_header(&r, "x-empty"), "");
        assert_null(http_request_header(&r, "absent"));
        assert_string_equal(r.body.data, "hello");
        assert_true(r.keep_alive);
        http_request_fini(&r);
    }
}

static void pipelined_requests_stop_at_their_last_byte(void **state)
{
    (void)state;
    const char *text = "GET /a HTTP/1.1\r\nHost: a\r\n\r\nPOST /b HTTP/1.1\r\nHost: "
                       "a\r\nTransfer-Encoding: chunked\r\n\r\n"
                       "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: t\r\n\r\nGET /c HTTP/1.0\r\n\r\n";
    for (size_t step = 1; step <= strlen(text); step++) {
        struct http_request r;
        http_request_init(&r, &limits);
        size_t at = 0, n = strlen(text);
        at += feed(&r, text, n, step);
        assert_string_equal(r.path.data, "/a");
        http_request_next(&r);
        at += feed(&r, text + at, n - at, step);
        assert_int_equal(r.state, REQUEST_COMPLETE);
        assert_string_equal(r.path.data, "/b");
        assert_string_equal(r.body.data, "abcde");
        assert_null(http_request_header(&r, "trailer"));
        http_request_next(&r);
        at += feed(&r, text + at, n - at, step);
        assert_string_equal(r.path.data, "/c");
        assert_false(r.keep_alive);
        assert_int_equal(at, n);
        http_request_fini(&r);
    }
}

static void an_upgrade_offer_is_ignored(void **state)
{
    (void)state;
    const char *text = "GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, "
                       "HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n";
    struct http_request r;
    http_request_init(&r, &limits);
    feed(&r, text, strlen(text), 1000);
    assert_int_equal(r.state, REQUEST_COMPLETE);
    assert_string_equal(r.path.data, "/v1/models");
    http_request_fini(&r);
}

static void what_is_not_acceptable_is_refused_with_its_status(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
        {"GET / HTTP/3.7\r\nHost: a\r\n\r\n", 505},
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
        {"NONSENSE / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: "
         "chunked\r\n\r\n0\r\n\r\n",
         400},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", 413},
        {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
        {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\nContent-Length: 1\r\n\r\nx", 417},
        {"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405},
        {"GET / HTTP/1.1\r\nHost: a\r\nbad name: x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nx: a\x01z\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nx: a\r\n b\r\n\r\n", 400},
        {"\r\nPOST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n", 400},
        {"GET /health%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /health\r\n\r\n", 505},
        {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3e6\r\n",
         413},
        {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
         413},
        {"GET /\x80 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t step = 1; step <= 64; step += 63) {
            struct http_request r;
            http_request_init(&r, &limits);
            feed(&r, cases[i].text, strlen(cases[i].text), step);
            if (r.state != REQUEST_BAD || r.status != cases[i].status) {
                print_error("case %zu: state %d status %d, expected %d\n%s\n", i, r.state, r.status,
                            cases[i].status, cases[i].text);
            }
            assert_int_equal(r.state, REQUEST_BAD);
            assert_int_equal(r.status, cases[i].status);
            http_request_fini(&r);
        }
    }
}

static void sizes_are_limited(void **state)
{
    (void)state;
    struct buf b;
    struct http_request r;
    for (int kind = 0; kind < 4; kind++) {
        buf_init(&b);
        buf_puts(&b, "POST /");
        for (int i = 0; kind == 0 && i < 9000; i++) {
            buf_putc(&b, 'u');
        }
        buf_puts(&b, " HTTP/1.1\r\nHost: a\r\n");
        for (int i = 0; kind == 1 && i < 300; i++) {
            buf_puts(&b, "a: b\r\n");
        }
        buf_puts(&b, "x: ");
        for (int i = 0; kind == 2 && i < 5000; i++) {
            buf_putc(&b, 'v');
        }
        buf_puts(&b, "\r\nTransfer-Encoding: chunked\r\n\r\n");
        for (int i = 0; kind == 3 && i < 400; i++) {
            buf_puts(&b, "3\r\nabc\r\n");
        }
        http_request_init(&r, &limits);
        feed(&r, b.data, b.len, 77);
        assert_int_equal(r.state, REQUEST_BAD);
        static const int expected[] = {414, 431, 431, 413};
        assert_int_equal(r.status, expected[kind]);
        http_request_fini(&r);
        buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_post_is_read_the_same_in_pieces_of_any_size),
        cmocka_unit_test(pipelined_requests_stop_at_their_last_byte),
        cmocka_unit_test(an_upgrade_offer_is_ignored),
        cmocka_unit_test(what_is_not_acceptable_is_refused_with_its_status),
        cmocka_unit_test(sizes_are_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
