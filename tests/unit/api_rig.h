/* SPDX-License-Identifier: Apache-2.0 */
/* A whole server on a fake model: the tokenizer and template of the model that ships, an engine on
 * fake_runner, real sockets. */
#ifndef TERN_TESTS_API_RIG_H
#define TERN_TESTS_API_RIG_H

#include "api/server.h"
#include "base/json.h"
#include "fake_runner.h"
#include "net_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#define RIG_MODEL TERN_SOURCE_DIR "/models/tern-poet"

struct api_rig {
    struct server *server;
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct fake_runner fake;
    struct engine_options eo;
    struct server_options so;
    int port;
    const char *template;    /* NULL: the model's */
    struct buf b;            /* the last answer */
    struct token_ids script; /* what the model is to say */
};

static const char *const rig_names[] = {"org/poet-1", "alias"};

static inline void rig_options(struct api_rig *r)
{
    memset(r, 0, sizeof *r);
    buf_init(&r->b);
    fake_options(&r->eo);
    r->eo.max_model_len = 512;
    server_options_init(&r->so);
    r->so.host = "127.0.0.1";
    r->so.port = 0;
    r->so.served_model_names = rig_names;
    r->so.n_served_model_names = 2;
    r->so.disable_access_log = 1;
    static const struct log quiet = {.level = LOG_CRITICAL, .fd = 2};
    r->so.log = &quiet;
}

static inline void rig_listen(struct api_rig *r)
{
    struct err e = {0};
    if (server_open(&r->server, &r->so, &e) != 0) {
        fail_msg("server_open: %s", e.text);
    }
    r->port = server_port(r->server);
}

static inline void rig_ready(struct api_rig *r, int eos_every, unsigned step_us)
{
    struct err e = {0};
    if (tokenizer_open(&r->tokenizer, RIG_MODEL, &e) != 0 ||
        chat_template_open(&r->chat, RIG_MODEL, r->template, r->tokenizer, &e) != 0) {
        fail_msg("%s", e.text);
    }
    fake_init(&r->fake, tokenizer_n_ids(r->tokenizer), 400, &r->eo);
    r->fake.eos_every = eos_every;
    r->fake.eos_id = r->eo.eos_id = tokenizer_eos_id(r->tokenizer);
    r->fake.step_us = step_us;
    if (engine_open_runner(&r->engine, &r->fake.ops, &r->fake, &r->eo, &e) != 0) {
        fail_msg("engine_open_runner: %s", e.text);
    }
    static const struct server_label labels[] = {{"enable_prefix_caching", "True"}};
    int32_t sep = tokenizer_sep_id(r->tokenizer);
    struct server_model m = {.engine = r->engine,
                             .tokenizer = r->tokenizer,
                             .chat_template = r->chat,
                             .path = "/models/p",
                             .max_model_len = r->eo.max_model_len,
                             .vocab_size = r->fake.ops.vocab_size,
                             .stop_token_ids = &sep,
                             .n_stop_token_ids = 1,
                             .numerics_id = "abc",
                             .cache_labels = labels,
                             .n_cache_labels = 1};
    server_set_ready(r->server, &m);
}

/* Waits until the engine has let go of every request: an answer may be whole before the step that
 * the engine is in ends, and that step still reads what the fake is to say. */
static inline void rig_quiet(struct api_rig *r)
{
    struct engine_stats s;
    struct timespec pause = {0, 1000000};
    for (engine_stats(r->engine, &s); s.n_running + s.n_waiting > 0; engine_stats(r->engine, &s)) {
        nanosleep(&pause, NULL);
    }
}

/* From now on the model says this, whatever it is asked. Returns its tokens. */
static inline int rig_say(struct api_rig *r, const char *text)
{
    struct err e = {0};
    struct buf b;
    buf_init(&b);
    rig_quiet(r);
    r->script.n = 0;
    assert_int_equal(tokenizer_encode(r->tokenizer, text, strlen(text), 0, &r->script, &e), 0);
    tokenizer_decode(r->tokenizer, r->script.ids, r->script.n, 0, &b);
    assert_string_equal(b.data ? b.data : "", text);
    buf_fini(&b);
    r->fake.script = r->script.ids;
    r->fake.n_script = (int)r->script.n;
    return (int)r->script.n;
}

static inline void rig_close(struct api_rig *r)
{
    server_stop(r->server);
    server_wait(r->server);
    engine_close(r->engine);
    server_close(r->server);
    if (r->engine) {
        fake_fini(&r->fake);
    }
    token_ids_fini(&r->script);
    chat_template_close(r->chat);
    tokenizer_close(r->tokenizer);
    buf_fini(&r->b);
}

static inline int rig_post_raw(struct api_rig *r, const char *path, const char *body, size_t n,
                               const char *headers)
{
    struct buf q;
    buf_init(&q);
    buf_printf(
        &q,
        "POST %s HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: application/json\r\n%s"
        "Content-Length: %zu\r\n\r\n",
        path, headers, n);
    buf_append(&q, body, n);
    int status = rig_ask(r->port, q.data, q.len, &r->b);
    buf_fini(&q);
    return status;
}

static inline int rig_post(struct api_rig *r, const char *path, const char *body)
{
    return rig_post_raw(r, path, body, strlen(body), "");
}

static inline int rig_get(struct api_rig *r, const char *path, const char *headers)
{
    char q[1024];
    snprintf(q, sizeof q, "GET %s HTTP/1.1\r\nHost: t\r\nConnection: close\r\n%s\r\n", path,
             headers);
    return rig_ask(r->port, q, strlen(q), &r->b);
}

/* The body of the last answer as JSON; the caller frees it. */
static inline struct json *rig_json(struct api_rig *r)
{
    struct json *j = NULL;
    struct err e = {0};
    const char *body = rig_body(&r->b);
    if (json_parse(&j, body, strlen(body), JSON_DEPTH_DEFAULT, &e) != 0) {
        fail_msg("not JSON (%s): %s", e.text, body);
    }
    return j;
}

static inline const char *rig_string(const struct json *v, const char *key)
{
    const struct json *s = json_get(v, key);
    return json_type(s) == JSON_STRING ? json_string(s, NULL) : NULL;
}

/* Chunked body -> bytes. */
static inline void rig_unchunk(struct buf *b)
{
    struct buf out;
    buf_init(&out);
    const char *p = rig_body(b), *end = b->data + b->len;
    while (p < end) {
        char *after;
        size_t n = strtoul(p, &after, 16);
        p = after + 2;
        if (n == 0) {
            break;
        }
        buf_append(&out, p, n);
        p += n + 2;
    }
    buf_clear(b);
    buf_append(b, out.data ? out.data : "", out.len);
    buf_fini(&out);
}

/* The value of a metric line that starts with `line` (name and labels as printed). -1 when absent.
 */
static inline double rig_metric(struct api_rig *r, const char *line)
{
    rig_get(r, "/metrics", "");
    const char *p = rig_body(&r->b);
    while ((p = strstr(p, line))) {
        if ((p[-1] == '\n') && p[strlen(line)] == ' ') {
            return atof(p + strlen(line) + 1);
        }
        p++;
    }
    return -1;
}
#define RIG_LABELS "{model_name=\"org/poet-1\",engine=\"0\"}"

#endif
