/* SPDX-License-Identifier: Apache-2.0 */
/* A server that speaks OpenAI's API: streamed /v1/chat/completions and /v1/completions. An
 * interrupted answer closes its connection, which frees the server's slot. */
#include "base/clock.h"
#include "base/json.h"
#include "cmd/ask.h"
#include "cmd/remote.h"
#include "cmd/signals.h"
#include <stdlib.h>
#include <string.h>

struct answer_stream {
    const struct ask_question *q;
    struct ask_result *r;
    struct buf held; /* bytes of the reply that are no whole event yet; all of it for an error */
    uint64_t start_ns, first_ns, last_ns;
    int n_chunks, status, done, failed, ended;
    struct err error;
};

/* ---- request ---- */

static void write_settings(struct json_writer *w, const struct ask_settings *s)
{
    for (int i = 0; i < ASK_SETTINGS; i++) {
        if (!s->text[i]) {
            continue;
        }
        json_w_key(w, ask_setting_names[i]);
        if (i == ASK_STOP) {
            json_w_string(w, s->text[i]);
        } else if (ask_is_integer(i)) {
            json_w_int(w, (int64_t)ask_number(s, i));
        } else {
            json_w_double(w, ask_number(s, i));
        }
    }
}

static void write_body(struct buf *b, const struct remote *m, const struct ask_question *q)
{
    struct json_writer w;
    json_w_init(&w, b);
    json_w_object(&w);
    json_w_kstring(&w, "model", m->model);
    if (q->messages) {
        json_w_key(&w, "messages");
        json_w_raw(&w, q->messages, strlen(q->messages));
    } else {
        json_w_kstring(&w, "prompt", q->prompt);
    }
    json_w_kbool(&w, "stream", 1);
    json_w_key(&w, "stream_options");
    json_w_object(&w);
    json_w_kbool(&w, "include_usage", 1);
    json_w_object_end(&w);
    write_settings(&w, q->settings);
    json_w_object_end(&w);
}

/* ---- reply ---- */

static const char *error_text(const struct json *object)
{
    const struct json *error = json_get(object, "error");
    const struct json *text = json_type(error) == JSON_OBJECT ? json_get(error, "message") : error;
    size_t n;
    return json_type(text) == JSON_STRING ? json_string(text, &n) : NULL;
}

static void tell(struct answer_stream *x, const struct json *text, int thought)
{
    size_t n = 0;
    const char *s = json_type(text) == JSON_STRING ? json_string(text, &n) : NULL;
    if (n && x->q->text(x->q->user, s, n, thought) < 0) {
        x->failed = 1;
        err_set(&x->error, ERR_IO, "cannot write to standard output");
    }
}

static void take_choice(struct answer_stream *x, const struct json *choice)
{
    const struct json *delta = json_get(choice, "delta");
    const struct json *thought = json_get(delta, "reasoning_content");
    const struct json *finish = json_get(choice, "finish_reason");
    size_t n;
    x->last_ns = clock_now_ns();
    x->first_ns = x->first_ns ? x->first_ns : x->last_ns;
    x->n_chunks++;
    tell(x, json_type(thought) == JSON_STRING ? thought : json_get(delta, "reasoning"), 1);
    tell(x, x->q->messages ? json_get(delta, "content") : json_get(choice, "text"), 0);
    if (json_type(finish) == JSON_STRING) {
        x->r->cut = strcmp(json_string(finish, &n), "length") == 0;
    }
}

static int take_event(void *user, const char *data, size_t n)
{
    struct answer_stream *x = user;
    struct json *object = NULL;
    struct err parse;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        x->ended = 1;
        return 0;
    }
    if (json_parse(&object, data, n, JSON_DEPTH_DEFAULT, &parse) < 0) {
        x->failed = 1;
        err_set(&x->error, ERR_FORMAT, "an event of the stream is no JSON: %s", parse.text);
        return 1;
    }
    const char *error = error_text(object);
    const struct json *choices = json_get(object, "choices"), *usage = json_get(object, "usage");
    if (error) {
        x->failed = 1;
        err_set(&x->error, ERR_IO, "the server says: %s", error);
    } else if (json_length(choices) > 0) {
        take_choice(x, json_at(choices, 0));
    }
    if (json_type(usage) == JSON_OBJECT) {
        x->r->n_tokens = (int)json_int(json_get(usage, "completion_tokens"));
    }
    json_free(object);
    return x->failed;
}

static int on_data(void *user, const char *bytes, size_t n)
{
    struct answer_stream *x = user;
    return x->failed || remote_events(&x->held, bytes, n, take_event, x);
}

static void on_done(void *user, int status, const struct err *e)
{
    struct answer_stream *x = user;
    x->status = status;
    x->done = 1;
    if (!x->failed) {
        x->error = *e;
    }
}

static int judge(struct answer_stream *x, const char *url, struct err *e)
{
    struct json *object = NULL;
    struct err ignored;
    int rc = 0;
    if (x->failed) {
        rc = err_set(e, x->error.code, "%s: %s", url, x->error.text);
    } else if (x->status == 0 || (x->status == 200 && x->error.code)) {
        rc = err_set(e, ERR_IO, "%s: %s", url, x->error.text);
    } else if (x->status != 200) {
        json_parse(&object, x->held.data ? x->held.data : "", x->held.len, JSON_DEPTH_DEFAULT,
                   &ignored);
        const char *why = error_text(object);
        rc = err_set(e, ERR_IO, "%s: status %d%s%.300s", url, x->status, why ? ": " : "",
                     why ? why : "");
    } else if (!x->ended) {
        rc = err_set(e, ERR_IO, "%s: the answer was cut off before its end", url);
    }
    json_free(object);
    return rc;
}

static int question(void *self, const struct ask_question *q, struct ask_result *r, struct err *e)
{
    static const struct client_callbacks callbacks = {.data = on_data, .done = on_done};
    static const char *const headers[] = {"Content-Type: application/json",
                                          "Accept: text/event-stream"};
    struct remote *m = self;
    struct answer_stream x = {.q = q, .r = r, .start_ns = clock_now_ns()};
    struct client_request *request = NULL;
    struct buf url, body;
    memset(r, 0, sizeof *r);
    buf_init(&x.held);
    buf_init(&url);
    buf_init(&body);
    buf_printf(&url, "%s/v1/%s", m->root, q->messages ? "chat/completions" : "completions");
    write_body(&body, m, q);
    int rc = url.failed || body.failed
                 ? err_set(e, ERR_NOMEM, "out of memory")
                 : client_start(m->client, "POST", url.data, headers, 2, body.data, body.len,
                                &callbacks, &x, &request, e);
    while (rc >= 0 && !x.done) {
        int sig = signals_take();
        if (sig) {
            r->interrupted = sig == SIGINT;
            r->terminated = sig == SIGTERM;
            client_cancel(request);
            break;
        }
        client_run(m->client, 50);
    }
    if (rc >= 0 && x.done) {
        rc = judge(&x, url.data, e);
    }
    r->n_tokens = r->n_tokens ? r->n_tokens : x.n_chunks;
    if (x.first_ns) {
        r->seconds_to_first = (double)(x.first_ns - x.start_ns) * 1e-9;
        r->seconds_after = (double)(x.last_ns - x.first_ns) * 1e-9;
    }
    buf_fini(&x.held);
    buf_fini(&url);
    buf_fini(&body);
    return rc;
}

/* ---- models ---- */

static int list_models(void *self, struct buf *out, struct err *e)
{
    struct json *reply = NULL;
    const struct json *cards;
    int rc = remote_models(self, &reply, &cards, e);
    for (size_t i = 0; i < json_length(cards); i++) {
        const struct json *id = json_get(json_at(cards, i), "id");
        size_t n;
        if (json_type(id) == JSON_STRING) {
            buf_printf(out, "%s\n", json_string(id, &n));
        }
    }
    json_free(reply);
    return rc;
}

static int set_model(void *self, const char *name, const char **now, struct err *e)
{
    struct remote *m = self;
    char *copy = strdup(name);
    if (!copy) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    free(m->model);
    *now = m->model = copy;
    return 0;
}

static void close_remote(void *self)
{
    struct remote *m = self;
    remote_close(m);
    free(m);
}

int ask_remote_open(struct ask *a, const struct ask_remote_options *o, struct err *e)
{
    struct client_options co = {
        .bearer = o->api_key, .unix_socket = o->unix_socket, .ca_file = o->ca_file};
    struct remote *m = calloc(1, sizeof *m);
    if (!m) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    *a = (struct ask){.self = m,
                      .question = question,
                      .set_model = set_model,
                      .list_models = list_models,
                      .close = close_remote};
    struct json *reply = NULL;
    const struct json *card;
    int rc = remote_open(m, "--url", o->url, o->model, &co, e);
    if (rc >= 0 && !m->model) {
        rc = remote_find_model(m, "--model-name", &reply, &card, e);
    }
    json_free(reply);
    a->model = m->model;
    return rc;
}
