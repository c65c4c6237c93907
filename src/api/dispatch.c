/* SPDX-License-Identifier: Apache-2.0 */
/* From an HTTP request to its handler: CORS, API key, route, method, content type, readiness; and
 * back: error bodies, request ids, the access log, the http_* metrics. Long requests are handed to
 * the worker thread here. */
#include "api/state.h"

#include "base/clock.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

#define EARLY_BODY_BYTES 65536 /* a body longer than this is refused before it is read */

/* ---- answers ---- */

void respond_json(struct http_exchange *x, int status, struct buf *body)
{
    if (body->failed) {
        http_respond(x, 503, NULL, "", 0);
    } else {
        http_respond(x, status, "application/json", body->data ? body->data : "", body->len);
    }
    buf_fini(body);
}

void respond_empty(struct http_exchange *x, int status)
{
    http_respond(x, status, NULL, "", 0);
}

static const char *route_path(const struct server *s, const struct http_exchange *x);

void write_error(const struct server *s, const struct http_exchange *x, const struct api_error *e,
                 struct buf *out)
{
    if (strncmp(route_path(s, x), "/api/", 5) != 0) {
        api_error_write(e, out);
        return;
    }
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kstring(&w, "error", e->message);
    json_w_object_end(&w);
}

void respond_error(struct server *s, struct http_exchange *x, const struct api_error *e)
{
    struct buf b;
    buf_init(&b);
    write_error(s, x, e, &b);
    if (e->status == 503) {
        http_add_header(x, "retry-after", "1");
    }
    respond_json(x, e->status, &b);
}

void random_hex(char *out, int n_digits)
{
    unsigned char raw[32] = {0};
    size_t n = (size_t)n_digits / 2;
    if (getrandom(raw, n, 0) !=
        (ssize_t)n) { /* never short for so few bytes once the kernel is up */
        uint64_t now = clock_now_ns();
        memcpy(raw, &now, sizeof now);
    }
    for (size_t i = 0; i < n; i++) {
        snprintf(out + 2 * i, 3, "%02x", raw[i]);
    }
}

/* ---- logs ---- */

void uvicorn_line(const struct server *s, const char *fmt, ...)
{
    struct buf b;
    va_list ap;
    char text[9216];
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (s->log->level > LOG_INFO) {
        return;
    }
    if (s->log->json) {
        log_info(s->log, "%s", text);
        return;
    }
    buf_init(&b);
    buf_printf(&b, "%sINFO:     %s\n", s->log->prefix ? s->log->prefix : "", text);
    if (!b.failed && write(s->log->fd, b.data, b.len) < 0) {
        /* a log that can't be written has no one to tell */
    }
    buf_fini(&b);
}

void note_unknown_fields(struct server *s, const struct json *body, const char *const *known)
{
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    while (json_next(body, &it, &key, &n, &value)) {
        char name[64];
        size_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0) {
            i++;
        }
        if (known[i] ||
            s->n_unknown_logged == (int)(sizeof s->unknown_logged / sizeof s->unknown_logged[0])) {
            continue;
        }
        snprintf(name, sizeof name, "%.63s", key);
        for (char *p = name; *p; p++) {
            *p = *p > ' ' && *p < 127 ? *p : '?'; /* goes into a log: no line breaks from clients */
        }
        int seen = 0;
        for (int k = 0; k < s->n_unknown_logged; k++) {
            seen |= strcmp(s->unknown_logged[k].name, name) == 0;
        }
        if (!seen) {
            memcpy(s->unknown_logged[s->n_unknown_logged++].name, name, sizeof name);
            log_info(s->log, "The request field '%s' is unknown and ignored (said once).", name);
        }
    }
}

/* ---- names ---- */

static int same_model(const char *served, const char *name, size_t n)
{
    size_t len = strlen(served);
    if (len == n && memcmp(served, name, n) == 0) {
        return 1;
    }
    while (len > 1 && served[len - 1] == '/') {
        len--;
    }
    size_t at = len;
    while (at > 0 && served[at - 1] != '/') {
        at--;
    }
    return len - at == n && memcmp(served + at, name, n) == 0;
}

int check_model_name(const struct server *s, const struct json *body, struct api_error *e)
{
    const struct json *v = json_get(body, "model");
    size_t n;
    if (json_type(v) == JSON_NULL) {
        return 0;
    }
    if (json_type(v) != JSON_STRING) {
        return api_fail_field(e, "model", "string_type", v, "Input should be a valid string");
    }
    const char *name = json_string(v, &n);
    for (int i = 0; i < s->o.n_served_model_names; i++) {
        if (n == 0 || same_model(s->o.served_model_names[i], name, n)) {
            return 0;
        }
    }
    return api_fail(e, 404, "NotFoundError", "model", "The model `%.200s` does not exist.", name);
}

const char *request_id_header(const struct http_exchange *x)
{
    const char *id = http_header(x, "x-request-id");
    size_t n = id ? strlen(id) : 0;
    for (size_t i = 0; i < n; i++) {
        if (id[i] < 0x20 || id[i] > 0x7e) {
            return NULL;
        }
    }
    return n > 0 && n <= 128 ? id : NULL;
}

/* ---- CORS ---- */

static int list_has(const char *const *list, int n, const char *value, int any_case)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(list[i], "*") == 0 ||
            (any_case ? strcasecmp(list[i], value) : strcmp(list[i], value)) == 0) {
            return 1;
        }
    }
    return n == 0;
}

static int allows_all(const char *const *list, int n)
{
    return list_has(list, n, "*", 0);
}

/* As Starlette's middleware, but with credentials the origin is always named: to a browser that
 * sends credentials "*" means nobody. */
static void add_cors(struct server *s, struct http_exchange *x)
{
    const struct server_options *o = &s->o;
    const char *origin = http_header(x, "origin");
    if (!origin || !list_has(o->allowed_origins, o->n_allowed_origins, origin, 0)) {
        return;
    }
    if (allows_all(o->allowed_origins, o->n_allowed_origins) && !o->allow_credentials) {
        http_add_header(x, "access-control-allow-origin", "*");
    } else {
        http_add_header(x, "access-control-allow-origin", origin);
        http_add_header(x, "vary", "Origin");
    }
    if (o->allow_credentials) {
        http_add_header(x, "access-control-allow-credentials", "true");
    }
}

static void join(const char *const *list, int n, struct buf *out)
{
    for (int i = 0; i < n; i++) {
        buf_printf(out, "%s%s", out->len ? ", " : "", list[i]);
    }
}

/* What any page may send without asking. */
static const char *const safe_headers[] = {"Accept", "Accept-Language", "Content-Language",
                                           "Content-Type"};
#define N_SAFE ((int)(sizeof safe_headers / sizeof safe_headers[0]))

/* Whether every name in "a, b, c" may be sent. */
static int headers_allowed(const struct server_options *o, const char *names)
{
    char name[128];
    while (*names) {
        names += strspn(names, ", \t");
        size_t n = strcspn(names, ", \t");
        if (n >= sizeof name) {
            return 0;
        }
        memcpy(name, names, n);
        name[n] = 0;
        names += n;
        if (n > 0 && !list_has(safe_headers, N_SAFE, name, 1) &&
            !list_has(o->allowed_headers, o->n_allowed_headers, name, 1)) {
            return 0;
        }
    }
    return 1;
}

/* OPTIONS with Origin and Access-Control-Request-Method; add_cors has been called. */
static void preflight(struct server *s, struct http_exchange *x)
{
    const struct server_options *o = &s->o;
    const char *method = http_header(x, "access-control-request-method");
    const char *headers = http_header(x, "access-control-request-headers");
    struct buf b;
    buf_init(&b);
    if (allows_all(o->allowed_methods, o->n_allowed_methods)) {
        http_add_header(x, "access-control-allow-methods",
                        "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT");
    } else {
        join(o->allowed_methods, o->n_allowed_methods, &b);
        http_add_header(x, "access-control-allow-methods", b.data ? b.data : "");
        buf_clear(&b);
    }
    int any_header = allows_all(o->allowed_headers, o->n_allowed_headers);
    if (!any_header) {
        join(safe_headers, N_SAFE, &b);
        join(o->allowed_headers, o->n_allowed_headers, &b);
        http_add_header(x, "access-control-allow-headers", b.data ? b.data : "");
    } else if (headers) {
        http_add_header(x, "access-control-allow-headers", headers);
    }
    http_add_header(x, "access-control-max-age", "600");
    buf_clear(&b);
    if (!list_has(o->allowed_origins, o->n_allowed_origins, http_header(x, "origin"), 0)) {
        buf_puts(&b, "origin");
    }
    if (!list_has(o->allowed_methods, o->n_allowed_methods, method, 0)) {
        buf_printf(&b, "%smethod", b.len ? ", " : "");
    }
    if (headers && !any_header && !headers_allowed(o, headers)) {
        buf_printf(&b, "%sheaders", b.len ? ", " : "");
    }
    char text[64] = "OK";
    if (b.len) {
        snprintf(text, sizeof text, "Disallowed CORS %s", b.data);
    }
    http_respond(x, b.len ? 400 : 200, "text/plain; charset=utf-8", text, strlen(text));
    buf_fini(&b);
}

/* ---- guards ---- */

/* Compares hashes, all keys, in constant time: nothing about a key can be learned from how long a
 * refusal takes. */
static int authorized(const struct server *s, const struct http_exchange *x)
{
    const char *header = http_header(x, "authorization");
    unsigned char hash[32];
    int ok = 0;
    if (s->o.n_api_keys == 0) {
        return 1;
    }
    if (!header || strncasecmp(header, "bearer ", 7) != 0) {
        return 0;
    }
    header += 7;
    SHA256((const unsigned char *)header, strlen(header), hash);
    for (int i = 0; i < s->o.n_api_keys; i++) {
        ok |= CRYPTO_memcmp(hash, s->key_hashes[i], sizeof hash) == 0;
    }
    return ok;
}

/* The request's path without the reverse proxy's prefix. */
static const char *route_path(const struct server *s, const struct http_exchange *x)
{
    const char *path = http_path(x);
    size_t n = s->o.root_path ? strlen(s->o.root_path) : 0;
    while (n > 0 && s->o.root_path[n - 1] == '/') {
        n--;
    }
    return n > 0 && strncmp(path, s->o.root_path, n) == 0 && path[n] == '/' ? path + n : path;
}

/* 1 when path is one of pattern's; *param is then where the segment for {…} begins, or NULL. */
static int matches(const char *pattern, const char *path, const char **param)
{
    *param = NULL;
    while (*pattern == *path || *pattern == '{') {
        if (*pattern == '{') {
            size_t n = strcspn(path, "/");
            *param = path;
            path += n;
            pattern += strcspn(pattern, "}") + 1;
            if (n == 0) {
                return 0;
            }
        } else if (*pattern++ == 0) {
            return 1;
        } else {
            path++;
        }
    }
    return 0;
}

static int find_route(const struct server *s, const struct http_exchange *x)
{
    const char *path = route_path(s, x), *param;
    for (int i = 0; i < server_n_routes; i++) {
        if (matches(server_routes[i].path, path, &param) &&
            route_enabled(&s->o, &server_routes[i])) {
            return i;
        }
    }
    return METRICS_ROUTES - 1;
}

int route_param(const struct server *s, const struct http_exchange *x, char *out, size_t size)
{
    int route = find_route(s, x);
    const char *param = NULL;
    if (route >= server_n_routes || !matches(server_routes[route].path, route_path(s, x), &param) ||
        !param) {
        return -1;
    }
    size_t n = strcspn(param, "/");
    if (n >= size) {
        return -1;
    }
    memcpy(out, param, n);
    out[n] = 0;
    return 0;
}

static int is_json(const char *content_type)
{
    size_t n = content_type ? strcspn(content_type, "; \t") : 0;
    return n == 16 && strncasecmp(content_type, "application/json", 16) == 0;
}

static void answer_405(struct http_exchange *x, unsigned methods)
{
    char allow[32];
    snprintf(allow, sizeof allow, "%s%s%s", methods & M_GET ? "GET, " : "",
             methods & M_HEAD ? "HEAD, " : "", methods & M_POST ? "POST, " : "");
    allow[strlen(allow) - 2] = 0;
    http_add_header(x, "allow", allow);
}

/* Everything that can be said without the body. Returns the route, or NULL when it has answered. */
static const struct route *admit(struct server *s, struct http_exchange *x)
{
    struct api_error e = {0};
    const char *method = http_method(x), *encoding = http_header(x, "content-encoding");
    int r = find_route(s, x);
    const struct route *route = r < server_n_routes ? &server_routes[r] : NULL;
    http_set_tag(x, r + 1);
    add_cors(s, x);
    if (s->o.enable_request_id_headers) {
        const char *id = request_id_header(x);
        char random[33];
        if (!id) { /* what is made here also names the answer */
            random_hex(random, 32);
            http_set_label(x, random);
        }
        http_add_header(x, "x-request-id", id ? id : random);
    }
    if (strcmp(method, "OPTIONS") == 0 && http_header(x, "origin") &&
        http_header(x, "access-control-request-method")) {
        preflight(s, x);
        return NULL;
    }
    if (!(route && (route->flags & ROUTE_OPEN)) && !authorized(s, x)) {
        static const char body[] = "{\"error\":\"Unauthorized\"}";
        http_add_header(x, "www-authenticate", "Bearer");
        http_respond(x, 401, "application/json", body, sizeof body - 1);
        return NULL;
    }
    unsigned bit = strcmp(method, "GET") == 0    ? M_GET
                   : strcmp(method, "HEAD") == 0 ? M_HEAD
                   : strcmp(method, "POST") == 0 ? M_POST
                                                 : 0;
    if (!route) {
        api_fail(&e, 404, "Not Found", NULL, "Not Found");
    } else if (!(route->methods & bit)) {
        answer_405(x, route->methods);
        api_fail(&e, 405, "Method Not Allowed", NULL, "Method Not Allowed");
    } else if ((route->flags & ROUTE_MODEL) && s->stopping) {
        api_fail(&e, 503, "ServiceUnavailableError", NULL, "The server is shutting down.");
    } else if ((route->flags & ROUTE_MODEL) && !s->ready) {
        api_fail(&e, 503, "ServiceUnavailableError", NULL, "The model is still loading.");
    } else if ((route->flags & ROUTE_JSON) && !is_json(http_header(x, "content-type"))) {
        api_fail(&e, 400, TYPE_SCHEMA, NULL,
                 "Unsupported Media Type: Only 'application/json' is allowed");
    } else if (encoding && strcasecmp(encoding, "identity") != 0) {
        api_fail(&e, 415, "Unsupported Media Type", NULL, "Content-Encoding %.40s is not supported",
                 encoding);
    }
    if (e.status) {
        respond_error(s, x, &e);
        return NULL;
    }
    return route;
}

/* ---- callbacks of the HTTP layer ---- */

/* A long body is announced: what would be refused anyway is refused before it is sent. */
static void on_head(void *ctx, struct http_exchange *x)
{
    const char *length = http_header(x, "content-length");
    if (length && strtoull(length, NULL, 10) <= EARLY_BODY_BYTES && !http_header(x, "expect")) {
        return;
    }
    admit(ctx, x); /* adds headers too; they are dropped when the body is read and it runs again */
}

static void on_request(void *ctx, struct http_exchange *x)
{
    struct server *s = ctx;
    const struct route *route = admit(s, x);
    if (route) {
        route->handle(s, x);
    }
}

static void on_bad_request(void *ctx, struct http_exchange *x, int status, const char *reason)
{
    struct api_error e;
    api_fail(&e, status, http_reason(status), NULL, "%s", reason);
    respond_error(ctx, x, &e);
}

static void on_response(void *ctx, struct http_exchange *x, int status)
{
    struct server *s = ctx;
    if (s->o.disable_access_log) {
        return;
    }
    const char *path = http_path(x);
    for (int i = 0; i < s->o.n_disable_access_log_for; i++) {
        if (strcmp(path, s->o.disable_access_log_for[i]) == 0) {
            return;
        }
    }
    uvicorn_line(s, "%s - \"%s %s HTTP/1.%d\" %d %s", http_peer(x), http_method(x), http_target(x),
                 http_version_minor(x), status, http_reason(status));
}

static void on_end(void *ctx, struct http_exchange *x)
{
    struct server *s = ctx;
    int route = http_tag(x) ? http_tag(x) - 1 : find_route(s, x);
    if (route < server_n_routes && (server_routes[route].flags & ROUTE_UNCOUNTED)) {
        return;
    }
    double seconds = (double)(clock_now_ns() - http_started_ns(x)) / 1e9;
    metrics_http(&s->metrics, route, http_method(x), http_status(x) ? http_status(x) : 499, seconds,
                 http_request_bytes(x), http_response_bytes(x));
}

void dispatch_callbacks(struct server *s, struct http_callbacks *out)
{
    *out = (struct http_callbacks){.ctx = s,
                                   .on_head = on_head,
                                   .on_request = on_request,
                                   .on_bad_request = on_bad_request,
                                   .on_response = on_response,
                                   .on_end = on_end};
}

/* ---- work ---- */

/* Grammars to compile and templates that came with the request take seconds if somebody wants them
 * to, and the net loop has everybody's streams. A name can be spelled with escapes; ASCII letters
 * need one of the form \u00XX. */
size_t work_weight(const char *body, size_t n_bytes)
{
    static const char *const signs[] = {
        "\"response_format\"", "\"structured_outputs\"", "\"guided_", "\"tools\"",
        "\"format\"",          "\"chat_template\"",      "\\u00"};
    for (size_t i = 0; n_bytes > 0 && i < sizeof signs / sizeof *signs; i++) {
        if (memmem(body, n_bytes, signs[i], strlen(signs[i])) != NULL) {
            return SIZE_MAX;
        }
    }
    return n_bytes;
}

void work_post(struct server *s, struct work *w, size_t weight)
{
    if (weight > WORKER_BODY_BYTES) {
        mq_push(s->to_worker, &w->node);
        return;
    }
    w->run(w);
    w->done(w);
}
