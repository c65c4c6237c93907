/* SPDX-License-Identifier: Apache-2.0 */
/* GET /openapi.json: the routes that this server has and the fields of their requests.
 *
 * Routes come from the table of routes, names of fields from the dialects, and the types of fields
 * from the parsers themselves: each field is tried with a value of each JSON type in a small valid
 * request, and a type is listed unless the parser says that the type is wrong. So the document
 * can't say anything else than the server does. It is made when it is first asked for, on the
 * worker thread, and kept. */
#include "api/gen.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct described {
    const char *path;
    const struct gen_dialect *dialect;
    const char *base; /* a valid request */
};

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"

static const struct described described[] = {
    {"/v1/completions", &completions_dialect, "{\"prompt\":\"a\"}"},
    {"/v1/completions/render", &completions_dialect, "{\"prompt\":\"a\"}"},
    {"/v1/chat/completions", &chat_dialect, CHAT},
    {"/v1/chat/completions/render", &chat_dialect, CHAT},
    {"/v1/responses", &responses_dialect, "{\"input\":\"a\"}"},
    {"/inference/v1/generate", &inference_dialect, "{\"token_ids\":[1],\"sampling_params\":{}}"},
    {"/generate", &legacy_dialect, "{\"prompt\":\"a\"}"},
    {"/api/chat", &ollama_chat_dialect, CHAT},
    {"/api/generate", &ollama_generate_dialect, "{\"prompt\":\"a\"}"},
};

/* Values of each JSON type; the number has a fraction, so that integers can be told. */
static const struct {
    const char *type, *value;
} probes[] = {{"string", "\"x\""}, {"integer", "1"}, {"number", "1.5"},
              {"boolean", "true"}, {"array", "[]"},  {"object", "{}"}};

enum verdict { TYPE_TAKEN, TYPE_WRONG, FIELD_UNKNOWN };

/* base with one field set to value. */
static char *make_body(const char *base, const char *field, const char *value, size_t *n_bytes)
{
    struct json *doc = NULL;
    size_t it = 0, n;
    const char *key;
    const struct json *member;
    struct buf b;
    struct json_writer w;
    buf_init(&b);
    if (json_parse(&doc, base, strlen(base), JSON_DEPTH_DEFAULT, NULL) == 0) {
        json_w_init(&w, &b);
        json_w_object(&w);
        while (json_next(doc, &it, &key, &n, &member)) {
            if (strcmp(key, field) != 0) {
                json_w_key(&w, key);
                json_w_value(&w, member);
            }
        }
        json_w_key(&w, field);
        json_w_raw(&w, value, strlen(value));
        json_w_object_end(&w);
    }
    json_free(doc);
    *n_bytes = b.len;
    return buf_detach(&b);
}

static enum verdict probe(struct server *s, const struct described *d, const char *field,
                          const char *value)
{
    size_t n;
    char *body = make_body(d->base, field, value, &n), param[140];
    struct gen *g = body ? gen_new(s, d->dialect, body, n) : NULL;
    enum verdict v = TYPE_TAKEN;
    if (!g) {
        free(body);
        return v;
    }
    g->work.run(&g->work);
    snprintf(param, sizeof param, "body.%s", field);
    if (g->error.status && strncmp(g->error.param, param, strlen(param)) == 0) {
        v = strstr(g->error.message, "'extra_forbidden'") ? FIELD_UNKNOWN
            : strcmp(g->error.param, param) == 0 && (strstr(g->error.message, "_type'") ||
                                                     strstr(g->error.message, "'int_from_float'"))
                ? TYPE_WRONG
                : v;
    }
    gen_free(g);
    return v;
}

static void write_field(struct server *s, const struct described *d, const char *field,
                        struct json_writer *w)
{
    int taken[sizeof probes / sizeof probes[0]], n_taken = 0;
    const int n = (int)(sizeof probes / sizeof probes[0]);
    for (int i = 0; i < n; i++) {
        enum verdict v = probe(s, d, field, probes[i].value);
        if (v == FIELD_UNKNOWN) {
            return;
        }
        taken[i] = v == TYPE_TAKEN;
        n_taken += taken[i];
    }
    json_w_key(w, field);
    json_w_object(w);
    if (n_taken < n) { /* else: anything */
        json_w_key(w, "type");
        json_w_array(w);
        for (int i = 0; i < n; i++) {
            int is_part = strcmp(probes[i].type, "integer") == 0 && taken[i + 1];
            if (taken[i] && !is_part) { /* an integer is a number */
                json_w_string(w, probes[i].type);
            }
        }
        json_w_string(w, "null");
        json_w_array_end(w);
    }
    json_w_object_end(w);
}

static void write_schema(struct server *s, const char *path, struct json_writer *w)
{
    json_w_object(w);
    json_w_kstring(w, "type", "object");
    for (size_t i = 0; i < sizeof described / sizeof described[0]; i++) {
        if (strcmp(described[i].path, path) == 0) {
            const char *const *names = gen_fields(described[i].dialect);
            json_w_key(w, "properties");
            json_w_object(w);
            for (; *names; names++) {
                write_field(s, &described[i], *names, w);
            }
            json_w_object_end(w);
        }
    }
    json_w_object_end(w);
}

/* ---- the document ---- */

static void write_responses(const struct route *r, struct json_writer *w)
{
    json_w_key(w, "responses");
    json_w_object(w);
    json_w_key(w, "200");
    json_w_object(w);
    json_w_kstring(w, "description", "OK");
    json_w_object_end(w);
    json_w_key(w, "default");
    json_w_object(w);
    json_w_kstring(w, "description", "An error");
    json_w_key(w, "content");
    json_w_object(w);
    json_w_key(w, "application/json");
    json_w_object(w);
    json_w_key(w, "schema");
    json_w_object(w);
    json_w_kstring(w, "$ref",
                   strncmp(r->path, "/api/", 5) == 0 ? "#/components/schemas/OllamaError"
                                                     : "#/components/schemas/ErrorResponse");
    json_w_object_end(w);
    json_w_object_end(w);
    json_w_object_end(w);
    json_w_object_end(w);
    json_w_object_end(w);
}

static void write_parameter(const struct route *r, struct json_writer *w)
{
    const char *brace = strchr(r->path, '{');
    if (!brace) {
        return;
    }
    json_w_key(w, "parameters");
    json_w_array(w);
    json_w_object(w);
    json_w_key(w, "name");
    json_w_stringn(w, brace + 1, strcspn(brace + 1, "}"));
    json_w_kstring(w, "in", "path");
    json_w_kbool(w, "required", 1);
    json_w_key(w, "schema");
    json_w_object(w);
    json_w_kstring(w, "type", "string");
    json_w_object_end(w);
    json_w_object_end(w);
    json_w_array_end(w);
}

static void write_operation(struct server *s, const struct route *r, const char *method,
                            struct json_writer *w)
{
    char id[96];
    snprintf(id, sizeof id, "%s%s", method, r->path);
    for (char *p = id; *p; p++) {
        *p = strchr("/{}.", *p) ? '_' : *p;
    }
    json_w_key(w, method);
    json_w_object(w);
    json_w_kstring(w, "operationId", id);
    write_parameter(r, w);
    if (strcmp(method, "post") == 0 && !(r->flags & (ROUTE_OPEN | ROUTE_DEV))) {
        json_w_key(w, "requestBody");
        json_w_object(w);
        json_w_key(w, "content");
        json_w_object(w);
        json_w_key(w, "application/json");
        json_w_object(w);
        json_w_key(w, "schema");
        write_schema(s, r->path, w);
        json_w_object_end(w);
        json_w_object_end(w);
        json_w_object_end(w);
    }
    write_responses(r, w);
    if (r->flags & ROUTE_OPEN) {
        json_w_key(w, "security");
        json_w_array(w);
        json_w_array_end(w);
    }
    json_w_object_end(w);
}

static void write_paths(struct server *s, struct json_writer *w)
{
    static const struct {
        unsigned bit;
        const char *name;
    } methods[] = {{M_GET, "get"}, {M_HEAD, "head"}, {M_POST, "post"}};
    json_w_key(w, "paths");
    json_w_object(w);
    for (int i = 0; i < server_n_routes; i++) {
        const struct route *r = &server_routes[i];
        if (!route_enabled(&s->o, r) || (r->flags & ROUTE_PAGE)) {
            continue;
        }
        json_w_key(w, r->path);
        json_w_object(w);
        for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
            if (r->methods & methods[m].bit) {
                write_operation(s, r, methods[m].name, w);
            }
        }
        json_w_object_end(w);
    }
    json_w_object_end(w);
}

/* Components that are the same for all. */
static const char components[] =
    "{\"schemas\":{\"ErrorResponse\":{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{"
    "\"error\":{\"type\":[\"object\",\"string\"],\"properties\":{\"message\":{\"type\":\"string\"},"
    "\"type\":{\"type\":\"string\"},\"param\":{\"type\":[\"string\",\"null\"]},"
    "\"code\":{\"type\":[\"integer\",\"string\"]}}}}},"
    "\"OllamaError\":{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{\"error\":{"
    "\"type\":\"string\"}}}},"
    "\"securitySchemes\":{\"key\":{\"type\":\"http\",\"scheme\":\"bearer\"}}}";

static void write_document(struct server *s, struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kstring(&w, "openapi", "3.1.0");
    json_w_key(&w, "info");
    json_w_object(&w);
    json_w_kstring(&w, "title", "tern");
    json_w_kstring(&w, "version", TERN_VERSION);
    json_w_object_end(&w);
    write_paths(s, &w);
    json_w_key(&w, "components");
    json_w_raw(&w, components, sizeof components - 1);
    if (s->o.n_api_keys > 0) {
        json_w_key(&w, "security");
        json_w_raw(&w, "[{\"key\":[]}]", 12);
    }
    json_w_object_end(&w);
}

/* ---- the route ---- */

struct openapi_work {
    struct work work;
    struct server *server;
    struct http_exchange *x;
    struct buf out;
};

static void run(struct work *w)
{
    struct openapi_work *o =
        (struct openapi_work *)((char *)w - offsetof(struct openapi_work, work));
    write_document(o->server, &o->out);
}

static void respond(struct server *s, struct http_exchange *x)
{
    http_respond(x, 200, "application/json", s->openapi.data, s->openapi.len);
}

static void done(struct work *w)
{
    struct openapi_work *o =
        (struct openapi_work *)((char *)w - offsetof(struct openapi_work, work));
    struct server *s = o->server;
    if (!o->out.failed && s->openapi.len == 0) {
        s->openapi = o->out;
        buf_init(&o->out);
    }
    if (o->x && s->openapi.len > 0) {
        respond(s, o->x);
    } else if (o->x) {
        struct api_error e;
        api_fail(&e, 503, "ServiceUnavailableError", NULL, "out of memory");
        respond_error(s, o->x, &e);
    }
    buf_fini(&o->out);
    free(o);
}

static void gone(void *user)
{
    ((struct openapi_work *)user)->x = NULL;
}

void openapi_handle(struct server *s, struct http_exchange *x)
{
    if (s->openapi.len > 0) {
        respond(s, x);
        return;
    }
    struct openapi_work *o = calloc(1, sizeof *o);
    if (!o) {
        struct api_error e;
        api_fail(&e, 503, "ServiceUnavailableError", NULL, "out of memory");
        respond_error(s, x, &e);
        return;
    }
    o->server = s;
    o->x = x;
    buf_init(&o->out);
    o->work.run = run;
    o->work.done = done;
    http_on_gone(x, gone, o);
    work_post(s, &o->work, SIZE_MAX);
}
