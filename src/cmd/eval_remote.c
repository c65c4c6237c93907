/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a server that speaks OpenAI's API. Log-likelihoods come from /v1/completions with echo and
 * logprobs, on token ids, so that they are counted as for a model directory; the ids come from a
 * tokenizer directory or from the server's own /tokenize (tern and vLLM have it). Generated answers
 * need nothing but the API. A server that is busy (429, 503) is asked again, a few times. */
#include "base/clock.h"
#include "base/json.h"
#include "cmd/eval.h"
#include "cmd/remote.h"
#include "cmd/signals.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_ATTEMPTS    6
#define REPLY_BYTES_MAX ((size_t)512 << 20)
#define DEFAULT_CONTEXT 4096
#define SECOND_NS       ((uint64_t)1000000000)

struct asker;

/* One HTTP exchange and what to do with its reply. */
struct call {
    struct asker *asker;
    struct call *prev, *next;
    const char *path;
    struct buf body, reply;
    int attempts, in_flight;
    uint64_t not_before_ns; /* of the next attempt */
    int done, status;
    struct err error;
    int (*take)(struct call *c, const struct json *reply, struct err *e);
    /* for take */
    struct eval_task *task;
    struct eval_question *q;
    struct eval_text *text;
    size_t n_prompt[EVAL_MAX_CHOICES], first_scored[EVAL_MAX_CHOICES];
};

struct asker {
    struct remote server;
    struct tokenizer *tokenizer; /* NULL: the server's */
    int max_in_flight, n_calls, max_model_len;
    struct call *calls;
};

/* ---- calls ---- */

static struct call *new_call(struct asker *r, const char *path, struct err *e)
{
    struct call *c = calloc(1, sizeof *c);
    if (!c) {
        err_set(e, ERR_NOMEM, "out of memory");
        return NULL;
    }
    c->asker = r;
    c->path = path;
    buf_init(&c->body);
    buf_init(&c->reply);
    c->next = r->calls;
    if (c->next) {
        c->next->prev = c;
    }
    r->calls = c;
    r->n_calls++;
    return c;
}

static void free_call(struct call *c)
{
    if (c->prev) {
        c->prev->next = c->next;
    } else {
        c->asker->calls = c->next;
    }
    if (c->next) {
        c->next->prev = c->prev;
    }
    c->asker->n_calls--;
    buf_fini(&c->body);
    buf_fini(&c->reply);
    free(c);
}

static int on_data(void *user, const char *bytes, size_t n)
{
    struct call *c = user;
    buf_append(&c->reply, bytes, n);
    return c->reply.failed || c->reply.len > REPLY_BYTES_MAX;
}

static void on_done(void *user, int status, const struct err *e)
{
    struct call *c = user;
    c->in_flight = 0;
    c->status = status;
    c->error = *e;
    int busy = status == 429 || status == 503;
    if (busy && c->attempts < MAX_ATTEMPTS) {
        c->not_before_ns = clock_now_ns() + (SECOND_NS / 2 << c->attempts);
        return;
    }
    c->done = 1;
}

static int start(struct call *c, struct err *e)
{
    static const struct client_callbacks callbacks = {.data = on_data, .done = on_done};
    static const char *const json_type_header[] = {"Content-Type: application/json"};
    struct asker *r = c->asker;
    struct buf url;
    buf_init(&url);
    buf_printf(&url, "%s%s", r->server.root, c->path);
    buf_clear(&c->reply);
    c->attempts++;
    c->in_flight = 1;
    int rc = url.failed ? err_set(e, ERR_NOMEM, "out of memory")
                        : client_start(r->server.client, c->body.len ? "POST" : "GET", url.data,
                                       json_type_header, c->body.len ? 1 : 0,
                                       c->body.len ? c->body.data : NULL, c->body.len, &callbacks,
                                       c, NULL, e);
    buf_fini(&url);
    return rc;
}

static int fail_call(const struct call *c, const struct json *reply, struct err *e)
{
    const struct json *error = json_get(reply, "error");
    const struct json *message =
        json_type(error) == JSON_OBJECT ? json_get(error, "message") : error;
    size_t n;
    if (c->status == 0 || c->error.code != 0) {
        return err_set(e, ERR_IO, "%s%s: %s", c->asker->server.root, c->path, c->error.text);
    }
    return err_set(e, ERR_IO, "%s%s: status %d%s%.300s", c->asker->server.root, c->path, c->status,
                   json_type(message) == JSON_STRING ? ": " : "",
                   json_type(message) == JSON_STRING ? json_string(message, &n) : "");
}

static int finish(struct call *c, struct err *e)
{
    struct json *reply = NULL;
    struct err parse = {0, ""};
    int rc = 0;
    if (c->reply.len) {
        json_parse(&reply, c->reply.data, c->reply.len, JSON_DEPTH_DEFAULT, &parse);
    }
    if (c->status != 200 || c->error.code != 0) {
        rc = fail_call(c, reply, e);
    } else if (!reply) {
        rc = err_set(e, ERR_FORMAT, "%s%s: the reply is no JSON", c->asker->server.root, c->path);
    } else {
        rc = c->take(c, reply, e);
    }
    json_free(reply);
    free_call(c);
    return rc;
}

/* Runs until at most `most` calls are left. */
static int pump(struct asker *r, int most, struct err *e)
{
    int rc = 0;
    while (rc >= 0 && r->n_calls > most) {
        uint64_t now = clock_now_ns();
        int finished = 0;
        if (signals_pending()) {
            return err_set(e, ERR_CANCELED, "interrupted");
        }
        for (struct call *c = r->calls; rc >= 0 && c; c = c->next) {
            if (!c->done && !c->in_flight && c->not_before_ns <= now) {
                rc = start(c, e);
            }
        }
        client_run(r->server.client, 100);
        for (struct call *c = r->calls, *next; rc >= 0 && c; c = next) {
            next = c->next;
            if (c->done) {
                rc = finish(c, e);
                finished = 1;
            }
        }
        if (!finished && rc >= 0) { /* all may wait for their next attempt */
            struct timespec pause = {0, 1000000};
            nanosleep(&pause, NULL);
        }
    }
    return rc;
}

/* ---- token ids ---- */

static int encode(void *self, const char *text, size_t n, struct token_ids *out, struct err *e)
{
    struct asker *r = self;
    return r->tokenizer ? tokenizer_encode(r->tokenizer, text, n, 1, out, e)
                        : remote_encode(&r->server, text, n, out, e);
}

/* ---- scoring ---- */

static void write_ids(struct json_writer *w, const int32_t *ids, size_t n)
{
    json_w_array(w);
    for (size_t i = 0; i < n; i++) {
        json_w_int(w, ids[i]);
    }
    json_w_array_end(w);
}

static void open_scoring(struct asker *r, struct json_writer *w, struct buf *b)
{
    json_w_init(w, b);
    json_w_object(w);
    json_w_kstring(w, "model", r->server.model);
    json_w_kint(w, "max_tokens", 1); /* 0 is not legal everywhere */
    json_w_kdouble(w, "temperature", 0);
    json_w_kbool(w, "echo", 1);
    json_w_kint(w, "logprobs", 1); /* nor is 0 here */
    json_w_key(w, "prompt");
}

static int take_scores(struct call *c, const struct json *reply, struct err *e)
{
    const struct json *choices = json_get(reply, "choices");
    size_t n = c->q ? (size_t)c->q->n_choices : 1;
    for (size_t i = 0; i < n; i++) {
        const struct json *values =
            json_get(json_get(json_at(choices, i), "logprobs"), "token_logprobs");
        double sum = 0;
        if (json_length(values) < c->n_prompt[i]) {
            return err_set(
                e, ERR_FORMAT,
                "%s%s: expected log-probabilities of %zu prompt tokens (echo), found %zu",
                c->asker->server.root, c->path, c->n_prompt[i], json_length(values));
        }
        for (size_t k = c->first_scored[i]; k < c->n_prompt[i]; k++) {
            sum += json_double(json_at(values, k));
        }
        if (c->q) {
            c->q->logprob[i] = sum;
        } else {
            c->text->nll -= sum;
            c->text->n_scored += c->n_prompt[0] - c->first_scored[0];
        }
    }
    return 0;
}

static int ask_choices(struct asker *r, struct eval_task *t, struct eval_question *q, struct err *e)
{
    struct call *c = NULL;
    struct json_writer w;
    struct token_ids ids = {0};
    struct buf body;
    size_t n_prompt[EVAL_MAX_CHOICES], first[EVAL_MAX_CHOICES];
    int rc = 0;
    buf_init(&body);
    open_scoring(r, &w, &body);
    json_w_array(&w);
    for (int i = 0; rc >= 0 && i < q->n_choices; i++) {
        size_t n_context, most = (size_t)r->max_model_len - 1;
        rc = eval_encode_choice(encode, r, q, i, &ids, &n_context, e);
        size_t lost = ids.n > most ? ids.n - most : 0;
        q->truncated |= lost > 0;
        n_prompt[i] = ids.n - lost;
        first[i] = n_context > lost + 1 ? n_context - lost : 1;
        if (rc >= 0) {
            write_ids(&w, ids.ids + lost, ids.n - lost);
        }
    }
    json_w_array_end(&w);
    json_w_object_end(&w);
    rc = rc >= 0 && body.failed ? err_set(e, ERR_NOMEM, "out of memory") : rc;
    if (rc >= 0 && !(c = new_call(r, "/v1/completions", e))) {
        rc = ERR_NOMEM;
    }
    if (rc >= 0) {
        c->take = take_scores;
        c->task = t;
        c->q = q;
        memcpy(c->n_prompt, n_prompt, sizeof n_prompt);
        memcpy(c->first_scored, first, sizeof first);
        c->body = body;
        buf_init(&body);
    }
    buf_fini(&body);
    token_ids_fini(&ids);
    return rc;
}

/* ---- generation ---- */

static int take_text(struct call *c, const struct json *reply, struct err *e)
{
    const struct json *choice = json_at(json_get(reply, "choices"), 0);
    const struct json *text =
        c->task->chat ? json_get(json_get(choice, "message"), "content") : json_get(choice, "text");
    size_t n;
    if (json_type(text) != JSON_STRING && json_type(text) != JSON_NULL) {
        return err_set(e, ERR_FORMAT, "%s%s: the reply has no text", c->asker->server.root,
                       c->path);
    }
    free(c->q->output);
    c->q->output = strdup(json_type(text) == JSON_STRING ? json_string(text, &n) : "");
    return c->q->output ? 0 : err_set(e, ERR_NOMEM, "out of memory");
}

static int ask_text(struct asker *r, struct eval_task *t, struct eval_question *q, struct err *e)
{
    struct json_writer w;
    struct call *c = new_call(r, t->chat ? "/v1/chat/completions" : "/v1/completions", e);
    if (!c) {
        return ERR_NOMEM;
    }
    c->take = take_text;
    c->task = t;
    c->q = q;
    json_w_init(&w, &c->body);
    json_w_object(&w);
    json_w_kstring(&w, "model", r->server.model);
    json_w_kint(&w, "max_tokens", t->max_tokens);
    json_w_kdouble(&w, "temperature", 0);
    if (t->n_stops) {
        json_w_key(&w, "stop");
        json_w_array(&w);
        for (int i = 0; i < t->n_stops; i++) {
            json_w_string(&w, t->stops[i]);
        }
        json_w_array_end(&w);
    }
    if (t->chat) {
        json_w_key(&w, "messages");
        json_w_array(&w);
        json_w_object(&w);
        json_w_kstring(&w, "role", "user");
        json_w_key(&w, "content");
    } else {
        json_w_key(&w, "prompt");
    }
    json_w_stringn(&w, q->context, q->context_bytes);
    if (t->chat) {
        json_w_object_end(&w);
        json_w_array_end(&w);
    }
    json_w_object_end(&w);
    return c->body.failed ? err_set(e, ERR_NOMEM, "out of memory") : 0;
}

/* ---- the backend ---- */

static int ask(void *self, struct eval_task *t, struct eval_progress *progress, struct err *e)
{
    struct asker *r = self;
    int rc = 0;
    for (size_t i = 0; rc >= 0 && i < t->n_questions; i++) {
        struct eval_question *q = &t->questions[i];
        rc = t->kind == EVAL_CHOICE ? ask_choices(r, t, q, e) : ask_text(r, t, q, e);
        rc = rc < 0 ? rc : pump(r, r->max_in_flight - 1, e);
        if (rc < 0) {
            return err_prefix(e, "%s: question %zu", t->name, i + 1);
        }
        eval_progress_step(progress, i + 1 > (size_t)r->n_calls ? i + 1 - (size_t)r->n_calls : 0);
    }
    rc = pump(r, 0, e);
    eval_progress_step(progress, t->n_questions);
    return rc;
}

static int score_text(void *self, struct eval_text *t, const struct eval_windows *given,
                      struct eval_progress *progress, struct err *e)
{
    struct asker *r = self;
    struct eval_windows w = *given;
    struct token_ids ids = {0};
    int rc = eval_windows_resolve(&w, r->max_model_len - 1, e);
    rc = rc < 0 ? rc : encode(r, t->text.data ? t->text.data : "", t->text.len, &ids, e);
    if (rc >= 0 && ids.n < 2) {
        rc = err_set(e, ERR_INVALID, "%s: expected at least 2 tokens, found %zu", t->name, ids.n);
    }
    t->n_tokens = ids.n;
    progress->total = ids.n;
    for (size_t done = 0, begin, end; rc >= 0 && done < ids.n; done = end) {
        struct json_writer jw;
        struct call *c = new_call(r, "/v1/completions", e);
        if (!c) {
            rc = ERR_NOMEM;
            break;
        }
        eval_windows_next(&w, ids.n, done, &begin, &end);
        c->take = take_scores;
        c->text = t;
        c->n_prompt[0] = end - begin;
        c->first_scored[0] = done > begin ? done - begin : 1;
        t->n_windows++;
        open_scoring(r, &jw, &c->body);
        write_ids(&jw, ids.ids + begin, end - begin);
        json_w_object_end(&jw);
        rc = c->body.failed ? err_set(e, ERR_NOMEM, "out of memory") : pump(r, 1, e);
        eval_progress_step(progress, end);
    }
    rc = rc < 0 ? rc : pump(r, 0, e);
    token_ids_fini(&ids);
    return rc;
}

/* The model's name and longest sequence, where they were not given. */
static int ask_models(struct asker *r, struct err *e)
{
    struct json *reply = NULL;
    const struct json *card;
    int rc = remote_find_model(&r->server, "--model", &reply, &card, e);
    if (rc >= 0 && r->max_model_len <= 0) {
        const struct json *n = json_get(card, "max_model_len");
        r->max_model_len = json_type(n) == JSON_INT && json_int(n) > 1 && json_int(n) < INT32_MAX
                               ? (int)json_int(n)
                               : DEFAULT_CONTEXT;
    }
    json_free(reply);
    return rc;
}

int eval_remote_open(struct eval_backend *b, const struct eval_remote_options *o, struct err *e)
{
    struct client_options co = {.bearer = o->api_key, .max_redirects = 0};
    struct asker *r = calloc(1, sizeof *r);
    if (!r) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    b->self = r;
    b->ask = ask;
    b->score_text = score_text;
    r->max_in_flight = o->max_in_flight;
    r->max_model_len = o->max_model_len;
    int rc = remote_open(&r->server, "--base-url", o->base_url, o->model, &co, e);
    rc = rc < 0 || !o->tokenizer ? rc : tokenizer_open(&r->tokenizer, o->tokenizer, e);
    return rc < 0 ? rc : ask_models(r, e);
}

void eval_remote_close(struct eval_backend *b)
{
    struct asker *r = b->self;
    if (r) {
        client_close(r->server.client); /* before its calls */
        r->server.client = NULL;
        while (r->calls) {
            free_call(r->calls);
        }
        tokenizer_close(r->tokenizer);
        remote_close(&r->server);
        free(r);
        b->self = NULL;
    }
}
