/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/chat/completions/batch: `messages` is a list of conversations, the answer one chat
 * completion with the choices of all. Each conversation is a chat request of its own, without a
 * client, whose whole answer is kept here; when the last one is there they are joined. The first
 * error is the error of the whole, and the others are stopped. */
#include "api/gen.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct chat_batch;

struct conversation {
    struct chat_batch *batch;
    struct gen *gen; /* while it runs */
    char *request;   /* its body, until it starts */
    size_t request_bytes;
    struct buf answer;
};

struct chat_batch {
    struct work work;
    struct server *server;
    struct http_exchange *x; /* NULL: the client is gone, or has its answer */
    char *body;
    size_t body_bytes;
    struct api_error error; /* of the split */
    struct conversation *conversations;
    int n, n_left; /* without an answer */
    int started;   /* the worker is done with it */
    int n_alive;   /* requests that exist, and 1 while they are being started */
    int64_t created;
    char id[192];
};

static void free_batch(struct chat_batch *b)
{
    for (int i = 0; i < b->n; i++) {
        free(b->conversations[i].request);
        buf_fini(&b->conversations[i].answer);
    }
    free(b->conversations);
    free(b->body);
    free(b);
}

static void release(struct chat_batch *b)
{
    if (--b->n_alive == 0) {
        free_batch(b);
    }
}

static void leave_client(struct chat_batch *b)
{
    if (b->x) {
        b->x = NULL;
        b->server->n_load--;
    }
}

static void abandon_all(struct chat_batch *b, const struct gen *but)
{
    for (int i = 0; i < b->n; i++) {
        struct gen *g = b->conversations[i].gen;
        if (g && g != but) {
            gen_abandon(g);
        }
    }
}

/* ---- split ---- */

/* The request with one conversation in place of all. */
static int make_request(const struct json *body, const struct json *messages,
                        struct conversation *c)
{
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    struct buf b;
    struct json_writer w;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    while (json_next(body, &it, &key, &n, &value)) {
        json_w_keyn(&w, key, n);
        json_w_value(&w, strcmp(key, "messages") == 0 ? messages : value);
    }
    json_w_object_end(&w);
    c->request_bytes = b.len;
    c->request = b.failed ? NULL : buf_detach(&b);
    buf_fini(&b);
    return c->request ? 0 : -1;
}

static int refuse(const struct json *body, struct api_error *e)
{
    static const char *const names[] = {"stream", "tools", "use_beam_search"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct json *v = json_get(body, names[i]);
        int set = json_type(v) == JSON_BOOL ? json_bool(v) : json_length(v) > 0;
        if (set) {
            return api_fail_param(e, names[i], v, "%s is not supported for batches of chats",
                                  names[i]);
        }
    }
    return 0;
}

static int split(struct chat_batch *b, const struct json *body, struct api_error *e)
{
    const struct json *list = json_get(body, "messages");
    if (refuse(body, e) < 0) {
        return -1;
    }
    if (json_type(list) != JSON_ARRAY || json_length(list) == 0) {
        return api_fail_field(e, "messages", list ? "list_type" : "missing", list,
                              "Input should be a non-empty list of conversations");
    }
    if (json_length(list) > (size_t)b->server->o.max_prompts) {
        return api_fail_field(e, "messages", "too_long", NULL,
                              "At most %d conversations are allowed, got %zu",
                              b->server->o.max_prompts, json_length(list));
    }
    const struct json *n = json_get(body, "n"), *id = json_get(body, "request_id");
    if (json_type(n) == JSON_INT && json_int(n) > 0 &&
        json_int(n) > b->server->o.max_n / (int64_t)json_length(list)) {
        return api_fail_param(e, "n", n,
                              "%zu conversations of %lld samples are more than %d choices",
                              json_length(list), (long long)json_int(n), b->server->o.max_n);
    }
    if (!b->id[0] && json_type(id) == JSON_STRING && json_string(id, NULL)[0]) {
        snprintf(b->id, sizeof b->id, "chatcmpl-%s", json_string(id, NULL));
        b->id[utf8_valid_prefix(b->id, strlen(b->id))] = 0;
    }
    for (size_t i = 0; i < json_length(list); i++) {
        if (json_type(json_at(list, i)) != JSON_ARRAY) {
            char param[64];
            snprintf(param, sizeof param, "messages.%zu", i);
            return api_fail_field(e, param, "list_type", json_at(list, i),
                                  "Input should be a valid list of messages");
        }
    }
    b->conversations = calloc(json_length(list), sizeof *b->conversations);
    int ok = b->conversations != NULL;
    for (size_t i = 0; ok && i < json_length(list); i++) {
        struct conversation *c = &b->conversations[b->n++];
        c->batch = b;
        buf_init(&c->answer);
        ok = make_request(body, json_at(list, i), c) == 0;
    }
    return ok ? 0 : api_fail(e, 503, "ServiceUnavailableError", NULL, "out of memory");
}

static void run_split(struct work *w)
{
    struct chat_batch *b = (struct chat_batch *)((char *)w - offsetof(struct chat_batch, work));
    struct json *doc = NULL;
    if (fields_parse_body(&doc, b->body ? b->body : "", b->body_bytes, b->server->o.json_depth,
                          &b->error) == 0) {
        split(b, doc, &b->error);
    }
    json_free(doc);
    free(b->body);
    b->body = NULL;
}

/* ---- join ---- */

static int64_t add(int64_t sum, const struct json *usage, const char *key)
{
    const struct json *v = json_get(usage, key);
    return sum + (json_type(v) == JSON_INT ? json_int(v) : 0);
}

static void write_choices(struct json_writer *w, const struct json *choices, int *index)
{
    for (size_t i = 0; i < json_length(choices); i++) {
        size_t it = 0, n;
        const char *key;
        const struct json *value;
        json_w_object(w);
        while (json_next(json_at(choices, i), &it, &key, &n, &value)) {
            json_w_keyn(w, key, n);
            if (strcmp(key, "index") == 0) {
                json_w_int(w, (*index)++);
            } else {
                json_w_value(w, value);
            }
        }
        json_w_object_end(w);
    }
}

static void respond(struct chat_batch *b)
{
    static const char *const nulls[] = {"prompt_logprobs",    "prompt_token_ids",   "prompt_text",
                                        "kv_transfer_params", "ec_transfer_params", "metrics"};
    struct buf out;
    struct json_writer w;
    int64_t prompt = 0, completion = 0;
    int index = 0;
    buf_init(&out);
    json_w_init(&w, &out);
    json_w_object(&w);
    json_w_kstring(&w, "id", b->id);
    json_w_kstring(&w, "object", "chat.completion");
    json_w_kint(&w, "created", b->created);
    json_w_kstring(&w, "model", b->server->o.served_model_names[0]);
    json_w_key(&w, "choices");
    json_w_array(&w);
    for (int i = 0; i < b->n; i++) {
        struct json *doc = NULL;
        const struct buf *a = &b->conversations[i].answer;
        if (json_parse(&doc, a->data ? a->data : "", a->len, JSON_DEPTH_DEFAULT, NULL) != 0) {
            out.failed = 1; /* memory: the text is ours */
        }
        write_choices(&w, json_get(doc, "choices"), &index);
        prompt = add(prompt, json_get(doc, "usage"), "prompt_tokens");
        completion = add(completion, json_get(doc, "usage"), "completion_tokens");
        json_free(doc);
    }
    json_w_array_end(&w);
    json_w_knull(&w, "service_tier");
    json_w_kstring(&w, "system_fingerprint", b->server->fingerprint);
    json_w_key(&w, "usage");
    json_w_object(&w);
    json_w_kint(&w, "prompt_tokens", prompt);
    json_w_kint(&w, "total_tokens", prompt + completion);
    json_w_kint(&w, "completion_tokens", completion);
    json_w_knull(&w, "prompt_tokens_details");
    json_w_knull(&w, "completion_tokens_details");
    json_w_object_end(&w);
    for (size_t i = 0; i < sizeof nulls / sizeof nulls[0]; i++) {
        json_w_knull(&w, nulls[i]);
    }
    json_w_object_end(&w);
    struct http_exchange *x = b->x;
    leave_client(b);
    respond_json(x, 200, &out);
}

/* ---- one conversation ---- */

static void keep_answer(struct gen *g, struct buf *out)
{
    struct conversation *c = g->state;
    struct chat_batch *b = c->batch;
    chat_dialect.body(g, out);
    buf_append(&c->answer, out->data ? out->data : "", out->len);
    c->gen = NULL; /* nothing is left to stop */
    if (--b->n_left == 0 && b->x) {
        respond(b);
    }
}

static void fail(struct gen *g, const struct api_error *e)
{
    struct conversation *c = g->state;
    struct chat_batch *b = c->batch;
    struct http_exchange *x = b->x;
    c->gen = NULL;
    if (x) {
        leave_client(b);
        respond_error(b->server, x, e);
        abandon_all(b, g);
    }
}

static void fini(struct gen *g)
{
    struct conversation *c = g->state;
    c->gen = NULL;
    release(c->batch);
}

static int parse(struct gen *g, struct api_error *e)
{
    return chat_dialect.parse(g, e);
}

static const struct gen_dialect conversation_dialect = {
    .id_prefix = "chatcmpl-",
    .chat = 1,
    .parse = parse,
    .body = keep_answer,
    .fail = fail,
    .fini = fini,
};

/* ---- start ---- */

static void gone(void *user)
{
    struct chat_batch *b = user;
    leave_client(b);
    if (b->started) { /* else the worker still has it */
        b->n_alive++; /* abandoning may free the last request */
        abandon_all(b, NULL);
        release(b);
    }
}

static void start_all(struct chat_batch *b)
{
    b->n_left = b->n;
    for (int i = 0; i < b->n && b->x; i++) {
        struct conversation *c = &b->conversations[i];
        char id[224], *request = c->request;
        snprintf(id, sizeof id, "%s_%d", b->id, i);
        c->request = NULL;
        b->n_alive++;
        /* it may run, fail and even end before this returns: c->gen is set where it is not over */
        struct gen *g =
            gen_start_detached(b->server, &conversation_dialect, request, c->request_bytes, id, c);
        if (!g) {
            struct api_error e;
            struct http_exchange *x = b->x;
            b->n_alive--;
            api_fail(&e, 503, "ServiceUnavailableError", NULL, "out of memory");
            leave_client(b);
            respond_error(b->server, x, &e);
            abandon_all(b, NULL);
        } else if (b->x) {
            c->gen = g;
        }
    }
}

static void split_done(struct work *w)
{
    struct chat_batch *b = (struct chat_batch *)((char *)w - offsetof(struct chat_batch, work));
    struct http_exchange *x = b->x;
    b->started = 1;
    if (b->error.status && x) {
        leave_client(b);
        respond_error(b->server, x, &b->error);
    } else if (x) {
        if (!b->id[0]) {
            char random[33];
            random_hex(random, 32);
            snprintf(b->id, sizeof b->id, "chatcmpl-%s", http_label(x)[0] ? http_label(x) : random);
        }
        start_all(b);
    }
    release(b);
}

void chat_batch_handle(struct server *s, struct http_exchange *x)
{
    struct chat_batch *b = calloc(1, sizeof *b);
    const char *given = request_id_header(x);
    if (!b) {
        struct api_error e;
        api_fail(&e, 503, "ServiceUnavailableError", NULL, "out of memory");
        respond_error(s, x, &e);
        return;
    }
    b->server = s;
    b->x = x;
    b->n_alive = 1;
    b->created = clock_unix_s();
    if (given) {
        snprintf(b->id, sizeof b->id, "chatcmpl-%s", given);
    }
    b->body = http_body_take(x, &b->body_bytes);
    b->work.run = run_split;
    b->work.done = split_done;
    s->n_load++;
    http_on_gone(x, gone, b);
    work_post(s, &b->work, work_weight(b->body, b->body_bytes));
}
