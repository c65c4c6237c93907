/* SPDX-License-Identifier: Apache-2.0 */
/* Routes for whoever runs the server, not for its users. They exist only with VLLM_SERVER_DEV_MODE:
 * caches to reset, sleeping, and the configuration; and /tokenizer_info with its own flag.
 *
 * A reset waits for the step that is under way, so it runs on the worker thread. There is no cache
 * of images or encoders: resetting one succeeds. On CPUs sleeping means nothing, as in vLLM: it is
 * said in the log, and the server stays awake. */
#include "api/state.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/utsname.h>
#include <unistd.h>

extern char **environ;

/* ---- query strings ---- */

/* The value of name in a query string, not decoded: no value these routes take needs it. 1 found,
 * 0 absent, -1 too long. */
static int query_value(const char *query, const char *name, char out[64])
{
    size_t n = strlen(name);
    for (const char *p = query; *p; p += strcspn(p, "&"), p += *p == '&') {
        size_t len = strcspn(p, "&");
        if (len > n && strncmp(p, name, n) == 0 && p[n] == '=') {
            if (len - n - 1 >= 64) {
                return -1;
            }
            memcpy(out, p + n + 1, len - n - 1);
            out[len - n - 1] = 0;
            return 1;
        }
    }
    return 0;
}

static int fail_query(struct api_error *e, const char *name, const char *expected)
{
    return api_fail(e, 400, TYPE_SCHEMA, name,
                    "1 validation error:\n  {'type': 'value_error', 'loc': ('query', '%s'), 'msg': "
                    "'Input should be %s'}",
                    name, expected);
}

static int query_bool(const struct http_exchange *x, const char *name, int *out,
                      struct api_error *e)
{
    char v[64];
    int rc = query_value(http_query(x), name, v);
    if (rc == 0) {
        return 0;
    }
    int yes = rc > 0 && (strcasecmp(v, "true") == 0 || strcmp(v, "1") == 0);
    if (!yes && (rc < 0 || (strcasecmp(v, "false") != 0 && strcmp(v, "0") != 0))) {
        return fail_query(e, name, "true or false");
    }
    *out = yes;
    return 0;
}

/* ---- caches ---- */

struct reset_work {
    struct work work;
    struct server *server;
    struct http_exchange *x;
    int preempt, external;
    int done;
};

static void run_reset(struct work *w)
{
    struct reset_work *r = (struct reset_work *)((char *)w - offsetof(struct reset_work, work));
    r->done = engine_reset_prefix_cache(r->server->model.engine, r->preempt) > 0;
}

static void reset_done(struct work *w)
{
    struct reset_work *r = (struct reset_work *)((char *)w - offsetof(struct reset_work, work));
    struct buf b;
    struct json_writer j;
    if (r->external) {
        log_warning(r->server->log, "reset_external: there is no external cache to reset.");
    }
    if (r->x) {
        buf_init(&b);
        json_w_init(&j, &b);
        json_w_object(&j);
        json_w_kbool(&j, "success", r->done && !r->external);
        json_w_object_end(&j);
        respond_json(r->x, 200, &b);
    }
    free(r);
}

static void reset_gone(void *user)
{
    ((struct reset_work *)user)->x = NULL;
}

void reset_prefix_cache_handle(struct server *s, struct http_exchange *x)
{
    struct api_error e = {0};
    struct reset_work *r = calloc(1, sizeof *r);
    if (!r) {
        api_fail(&e, 503, "ServiceUnavailableError", NULL, "out of memory");
    } else if (query_bool(x, "reset_running_requests", &r->preempt, &e) == 0) {
        query_bool(x, "reset_external", &r->external, &e);
    }
    if (e.status) {
        free(r);
        respond_error(s, x, &e);
        return;
    }
    r->server = s;
    r->x = x;
    r->work.run = run_reset;
    r->work.done = reset_done;
    http_on_gone(x, reset_gone, r);
    work_post(s, &r->work, SIZE_MAX);
}

void reset_other_cache_handle(struct server *s, struct http_exchange *x)
{
    (void)s;
    respond_empty(x, 200);
}

/* ---- sleep ---- */

void sleep_handle(struct server *s, struct http_exchange *x)
{
    struct api_error e = {0};
    char level[64], mode[64];
    int has_level = query_value(http_query(x), "level", level);
    int has_mode = query_value(http_query(x), "mode", mode);
    if (has_level && (has_level < 0 || strlen(level) != 1 || !strchr("012", level[0]))) {
        fail_query(&e, "level", "0, 1 or 2");
    } else if (has_mode &&
               (has_mode < 0 || (strcmp(mode, "abort") != 0 && strcmp(mode, "wait") != 0 &&
                                 strcmp(mode, "keep") != 0))) {
        fail_query(&e, "mode", "abort, wait or keep");
    }
    if (e.status) {
        respond_error(s, x, &e);
        return;
    }
    log_warning(s->log, "sleep mode is not supported on CPU, ignore it.");
    respond_empty(x, 200);
}

void wake_up_handle(struct server *s, struct http_exchange *x)
{
    log_warning(s->log, "sleep mode is not supported on CPU, ignore it.");
    respond_empty(x, 200);
}

void is_sleeping_handle(struct server *s, struct http_exchange *x)
{
    struct buf b;
    struct json_writer w;
    (void)s;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_kbool(&w, "is_sleeping", 0);
    json_w_object_end(&w);
    respond_json(x, 200, &b);
}

/* ---- what runs here ---- */

void server_config_text(const struct json *config, struct buf *out)
{
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    for (int i = 0; json_next(config, &it, &key, &n, &value); i++) {
        buf_printf(out, "%s%s=", i ? ", " : "", key);
        if (json_type(value) == JSON_BOOL) {
            buf_puts(out, json_bool(value) ? "True" : "False");
        } else if (json_type(value) == JSON_STRING && i == 0) {
            buf_printf(out, "'%s'", json_string(value, NULL));
        } else if (json_type(value) == JSON_STRING) {
            buf_puts(out, json_string(value, NULL));
        } else {
            json_dump(value, out);
        }
    }
}

static void write_config(const struct server *s, int as_json, struct json_writer *w)
{
    const char *text = s->model.config_json ? s->model.config_json : "{}";
    struct json *config = NULL;
    json_w_key(w, "vllm_config");
    if (as_json) {
        json_w_raw(w, text, strlen(text));
        return;
    }
    struct buf b;
    buf_init(&b);
    if (json_parse(&config, text, strlen(text), JSON_DEPTH_DEFAULT, NULL) == 0) {
        server_config_text(config, &b);
    }
    json_w_stringn(w, b.data ? b.data : "", b.len);
    json_free(config);
    buf_fini(&b);
}

/* VLLM_ variables of the environment, but nothing that may be a key. */
static void write_environment(struct json_writer *w)
{
    json_w_key(w, "vllm_env");
    json_w_object(w);
    for (char **p = environ; p && *p; p++) {
        const char *equals = strchr(*p, '=');
        if (equals && strncmp(*p, "VLLM_", 5) == 0) {
            char name[128];
            snprintf(name, sizeof name, "%.*s", (int)(equals - *p), *p);
            if (!strstr(name, "KEY") && !strstr(name, "TOKEN")) {
                json_w_kstring(w, name, equals + 1);
            }
        }
    }
    json_w_object_end(w);
}

static void write_system(struct json_writer *w)
{
    struct utsname u;
    json_w_key(w, "system_env");
    json_w_object(w);
    if (uname(&u) == 0) {
        json_w_kstring(w, "os", u.sysname);
        json_w_kstring(w, "release", u.release);
        json_w_kstring(w, "machine", u.machine);
    }
    json_w_kint(w, "cpu_count", sysconf(_SC_NPROCESSORS_ONLN));
    json_w_kint(w, "memory_bytes",
                (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE));
    json_w_kstring(w, "tern_version", TERN_VERSION);
    json_w_kstring(w, "compiler", __VERSION__);
    json_w_object_end(w);
}

void server_info_handle(struct server *s, struct http_exchange *x)
{
    struct api_error e = {0};
    struct buf b;
    struct json_writer w;
    char format[64] = "text";
    int rc = query_value(http_query(x), "config_format", format);
    if (rc < 0 || (strcmp(format, "text") != 0 && strcmp(format, "json") != 0)) {
        fail_query(&e, "config_format", "'text' or 'json'");
        respond_error(s, x, &e);
        return;
    }
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    write_config(s, strcmp(format, "json") == 0, &w);
    write_environment(&w);
    write_system(&w);
    json_w_object_end(&w);
    respond_json(x, 200, &b);
}

/* tokenizer_config.json with the chat template that is in use. */
void tokenizer_info_handle(struct server *s, struct http_exchange *x)
{
    const char *text = s->model.tokenizer_config ? s->model.tokenizer_config : "{}";
    struct json *config = NULL;
    struct buf b;
    struct json_writer w;
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    if (json_parse(&config, text, strlen(text), JSON_DEPTH_DEFAULT, NULL) != 0) {
        config = NULL; /* the tokenizer was opened with it, so this is no memory */
    }
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    if (json_type(json_get(config, "tokenizer_class")) == JSON_NULL) {
        json_w_kstring(&w, "tokenizer_class", "LlamaTokenizer");
    }
    while (json_next(config, &it, &key, &n, &value)) {
        if (strcmp(key, "chat_template") != 0) {
            json_w_keyn(&w, key, n);
            json_w_value(&w, value);
        }
    }
    json_w_kstring(&w, "chat_template", chat_template_source(s->model.chat_template));
    json_w_object_end(&w);
    json_free(config);
    respond_json(x, 200, &b);
}
