/* SPDX-License-Identifier: Apache-2.0 */
/* The files of the pages over HTTP: encodings, caching, guards; and a server without them. */
#include "api_rig.h"

static const unsigned char html[] = "<p>hello</p>", html_gz[] = "gzip of hello",
                           js[] = "let a = 1;";
static const struct page_file files[] = {
    {"index.html", "text/html; charset=utf-8", "\"h1\"", html, sizeof html - 1, html_gz,
     sizeof html_gz - 1},
    {"assets/app-1.js", "text/javascript; charset=utf-8", "\"j1\"", js, sizeof js - 1, NULL, 0},
};
static const struct page page = {files, 2};

static void open_rig(struct api_rig *r, const struct page *p)
{
    static const char *const keys[] = {"sk-1"};
    rig_options(r);
    r->so.page = p;
    r->so.api_keys = keys;
    r->so.n_api_keys = 1;
    rig_listen(r);
}

/* The whole answer, head and body, is in r->b. */
static void ask(struct api_rig *r, const char *method, const char *path, const char *headers)
{
    char q[512];
    int n = snprintf(q, sizeof q, "%s %s HTTP/1.1\r\nHost: t\r\nConnection: close\r\n%s\r\n",
                     method, path, headers);
    rig_ask(r->port, q, (size_t)n, &r->b);
    buf_putc(&r->b, 0);
}

static int has(const struct api_rig *r, const char *text)
{
    return strstr(r->b.data, text) != NULL;
}

static void the_page_needs_no_key_and_no_model(void **state)
{
    struct api_rig r;
    (void)state;
    open_rig(&r, &page);
    ask(&r, "GET", "/", "");
    assert_true(has(&r, "HTTP/1.1 200 OK\r\n"));
    assert_true(has(&r, "content-type: text/html; charset=utf-8\r\n"));
    assert_true(has(&r, "\r\n\r\n<p>hello</p>"));
    ask(&r, "GET", "/assets/app-1.js", "");
    assert_true(has(&r, "\r\n\r\nlet a = 1;"));
    ask(&r, "GET", "/assets/app-2.js", "");
    assert_true(has(&r, "HTTP/1.1 404"));
    ask(&r, "GET", "/v1/models", "");
    assert_true(has(&r, "HTTP/1.1 401"));
    rig_close(&r);
}

static void gzip_is_sent_to_those_who_take_it(void **state)
{
    static const struct {
        const char *header;
        int gzip;
    } cases[] = {{"", 0},
                 {"Accept-Encoding: gzip, deflate, br\r\n", 1},
                 {"Accept-Encoding: br, GZIP;q=0.5\r\n", 1},
                 {"Accept-Encoding: *\r\n", 1},
                 {"Accept-Encoding: gzip;q=0, identity\r\n", 0},
                 {"Accept-Encoding: gzip;q=0.0\r\n", 0},
                 {"Accept-Encoding: x-gzip-not, br\r\n", 0}};
    struct api_rig r;
    (void)state;
    open_rig(&r, &page);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ask(&r, "GET", "/", cases[i].header);
        assert_true(has(&r, "vary: Accept-Encoding\r\n"));
        assert_int_equal(has(&r, "content-encoding: gzip\r\n"), cases[i].gzip);
        assert_int_equal(has(&r, "\r\n\r\ngzip of hello"), cases[i].gzip);
    }
    rig_close(&r);
}

static void names_with_a_hash_are_kept_and_pages_are_asked_for_again(void **state)
{
    struct api_rig r;
    (void)state;
    open_rig(&r, &page);
    ask(&r, "GET", "/", "");
    assert_true(has(&r, "cache-control: no-cache\r\n") && has(&r, "etag: W/\"h1\"\r\n"));
    ask(&r, "GET", "/", "If-None-Match: W/\"h1\"\r\n");
    assert_true(has(&r, "HTTP/1.1 304 Not Modified\r\n"));
    assert_false(has(&r, "content-length"));
    ask(&r, "GET", "/", "If-None-Match: \"h0\"\r\n");
    assert_true(has(&r, "HTTP/1.1 200"));
    ask(&r, "GET", "/assets/app-1.js", "");
    assert_true(has(&r, "cache-control: public, max-age=31536000, immutable\r\n"));
    rig_close(&r);
}

static void the_policy_forbids_all_but_the_pages_own_files(void **state)
{
    struct api_rig r;
    (void)state;
    open_rig(&r, &page);
    ask(&r, "GET", "/", "");
    assert_true(has(&r, "content-security-policy: default-src 'none'; script-src 'self'; "));
    assert_true(has(&r, "frame-ancestors 'none'"));
    assert_false(has(&r, "unsafe-"));
    assert_true(has(&r, "x-content-type-options: nosniff\r\n"));
    rig_close(&r);
}

static void a_build_without_pages_says_so_in_one_sentence(void **state)
{
    struct api_rig r;
    (void)state;
    open_rig(&r, NULL);
    static const char *const paths[] = {"/", "/dashboard"};
    for (int i = 0; i < 2; i++) {
        ask(&r, "GET", paths[i], "");
        assert_true(has(&r, "HTTP/1.1 404 Not Found\r\n"));
        assert_true(has(&r, "This tern was built without Node.js and npm, so it has no chat page"));
    }
    ask(&r, "HEAD", "/", ""); /* Ollama's clients ping so */
    assert_true(has(&r, "HTTP/1.1 200 OK\r\n"));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_needs_no_key_and_no_model),
        cmocka_unit_test(gzip_is_sent_to_those_who_take_it),
        cmocka_unit_test(names_with_a_hash_are_kept_and_pages_are_asked_for_again),
        cmocka_unit_test(the_policy_forbids_all_but_the_pages_own_files),
        cmocka_unit_test(a_build_without_pages_says_so_in_one_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
