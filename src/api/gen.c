/* SPDX-License-Identifier: Apache-2.0 */
/* From the typed request to the engine and back. Two departures end a request early: the client's
 * (gone: the engine is told to stop everything, the rest of the events is only counted) and the
 * server's (shutdown: the engine ends each sample with "abort" and the response is finished as
 * usual). Either way the struct lives until the engine has sent the last event of every sample,
 * because those events carry pointers into it.
 *
 * A reader that is slower than the engine costs no more memory than its own text: while the socket
 * has a backlog no chunk is made, and what was produced meanwhile goes out as one merged chunk when
 * it drains. */
#include "api/gen.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "net/sse.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum load_format { LOAD_TEXT = 1, LOAD_JSON };

/* ---- submission ---- */

static int submit_prompt(struct gen *g, struct gen_prompt *p, struct api_error *e)
{
    struct server *s = g->server;
    struct err err = {0};
    struct engine_request *r = engine_request_new();
    if (!r) {
        return api_fail(e, 503, "ServiceUnavailableError", NULL, "out of memory");
    }
    struct sampling_params *q = &r->params;
    *q = g->f.sp;
    q->max_tokens = p->max_tokens;
    int n_model = q->ignore_eos ? 0 : s->model.n_stop_token_ids, n_stop = 0;
    int32_t *stop =
        arena_alloc(&r->arena, (size_t)(q->n_stop_token_ids + n_model + 1) * sizeof *stop);
    r->prompt = arena_memdup(&r->arena, p->ids, (size_t)p->n * sizeof *p->ids);
    q->logit_bias =
        arena_memdup(&r->arena, q->logit_bias, (size_t)q->n_logit_bias * sizeof *q->logit_bias);
    if (q->allowed_token_ids) { /* NULL: all */
        q->allowed_token_ids =
            arena_memdup(&r->arena, q->allowed_token_ids,
                         (size_t)q->n_allowed_token_ids * sizeof *q->allowed_token_ids);
    }
    q->logprob_token_ids =
        arena_memdup(&r->arena, q->logprob_token_ids,
                     (size_t)q->n_logprob_token_ids * sizeof *q->logprob_token_ids);
    struct token_seq *words =
        arena_memdup(&r->arena, q->bad_words, (size_t)q->n_bad_words * sizeof *words);
    if (!stop || !r->prompt || (q->n_bad_words && !words)) {
        engine_request_free(r);
        return api_fail(e, 503, "ServiceUnavailableError", NULL, "out of memory");
    }
    for (int i = 0; i < q->n_bad_words; i++) {
        words[i].ids =
            arena_memdup(&r->arena, words[i].ids, (size_t)words[i].n * sizeof *words[i].ids);
    }
    q->bad_words = words;
    for (int i = 0; i < q->n_stop_token_ids + n_model; i++) {
        int32_t id = i < q->n_stop_token_ids
                         ? g->f.sp.stop_token_ids[i]
                         : s->model.stop_token_ids[i - g->f.sp.n_stop_token_ids];
        int seen = 0;
        for (int k = 0; k < n_stop; k++) {
            seen |= stop[k] == id;
        }
        if (!seen) {
            stop[n_stop++] = id;
        }
    }
    q->stop_token_ids = stop;
    q->n_stop_token_ids = n_stop;
    r->n_prompt = p->n;
    r->priority = g->f.priority;
    r->cache_salt = g->f.cache_salt ? arena_strdup(&r->arena, g->f.cache_salt) : NULL;
    r->grammar = g->f.grammar ? grammar_ref(g->f.grammar) : NULL;
    r->think_end = g->f.grammar || g->f.think_budget >= 0 ? g->f.think_end : -1;
    r->think_budget = g->f.think_budget;
    r->arrival_ns = g->arrival_ns;
    r->reply = s->events;
    atomic_init(&p->n_computed, -1);
    r->progress = &p->n_computed;
    r->user = p;
    r->id = p->request_id = engine_new_id(s->model.engine);
    if (engine_submit(s->model.engine, r, &err) != 0) {
        engine_request_free(r);
        if (err.code == ERR_TOO_LARGE) {
            api_fail(e, 400, TYPE_BAD, "input_tokens", "%s", err.text);
            e->code = "context_length_exceeded";
            return -1;
        }
        return api_fail_err(e, &err);
    }
    p->submitted = p->queued = 1;
    s->n_queued_tokens += p->n;
    g->n_open += g->f.sp.n;
    s->n_sequences += g->f.sp.n;
    return 0;
}

/* Its first token exists, or never will. */
static void leave_queue(struct gen_prompt *p)
{
    if (p->queued) {
        p->queued = 0;
        p->gen->server->n_queued_tokens -= p->n;
    }
}

static void abort_engine(struct gen *g)
{
    for (int i = 0; i < g->n_prompts; i++) {
        if (g->prompts[i].submitted) {
            engine_abort(g->server->model.engine, g->prompts[i].request_id, -1, 0);
        }
    }
}

static void delist(struct gen *g)
{
    struct server *s = g->server;
    if (g->prev) {
        g->prev->next = g->next;
    } else {
        s->gens = g->next;
    }
    if (g->next) {
        g->next->prev = g->prev;
    }
    s->n_gens--;
}

void gen_free(struct gen *g)
{
    if (g->listed) {
        delist(g);
    }
    for (int i = 0; i < g->n_samples; i++) {
        struct gen_sample *k = &g->samples[i];
        struct buf *bufs[] = {&k->ids,     &k->lp_tokens,  &k->lp_values,
                              &k->lp_tops, &k->lp_offsets, &k->lp_content};
        output_fini(&k->out);
        answer_fini(&k->answer);
        for (size_t b = 0; b < sizeof bufs / sizeof bufs[0]; b++) {
            buf_fini(bufs[b]);
        }
    }
    for (int i = 0; i < g->n_prompts; i++) {
        struct gen_prompt *p = &g->prompts[i];
        leave_queue(p);
        struct buf *bufs[] = {&p->prompt_lp, &p->echo_tokens,  &p->echo_values,
                              &p->echo_tops, &p->echo_offsets, &p->echo_text};
        for (size_t b = 0; b < sizeof bufs / sizeof bufs[0]; b++) {
            buf_fini(bufs[b]);
        }
    }
    if (g->dialect->fini && g->state) {
        g->dialect->fini(g);
    }
    buf_fini(&g->prompt_text);
    grammar_unref(g->f.grammar);
    json_free(g->f.kwargs);
    json_free(g->received);
    json_free(g->json);
    free(g->body);
    arena_fini(&g->arena);
    free(g);
}

/* The client has its answer or is gone. */
static void leave_client(struct gen *g)
{
    if (g->x) {
        g->x = NULL;
        g->server->n_load--;
    }
    g->detached = 0;
}

static int is_wanted(const struct gen *g)
{
    return g->x || g->detached;
}

struct http_exchange *gen_detach(struct gen *g)
{
    struct http_exchange *x = g->x;
    http_on_gone(x, NULL, NULL);
    http_on_drain(x, NULL, NULL);
    leave_client(g);
    g->detached = 1;
    return x;
}

void gen_abandon(struct gen *g)
{
    if (g->server->o.enable_log_requests && g->n_open > 0) {
        log_info(g->server->log, "Aborted request %s.", g->id);
    }
    leave_client(g);
    abort_engine(g);
    if (g->n_open == 0 && g->n_samples > 0) {
        gen_free(g);
    } /* else: the worker's done, or the last event, frees it */
}

static void on_gone(void *user)
{
    gen_abandon(user);
}

static const struct gen_framing sse_framing = {sse_begin, sse_data, sse_done};

static void ndjson_begin(struct http_exchange *x)
{
    http_add_header(x, "cache-control", "no-cache");
    http_stream_begin(x, 200, "application/x-ndjson");
}

static void ndjson_send(struct http_exchange *x, const char *text, size_t n_bytes)
{
    struct iovec parts[2] = {{(void *)text, n_bytes}, {(void *)"\n", 1}};
    http_stream_writev(x, parts, 2);
}

const struct gen_framing gen_ndjson_framing = {ndjson_begin, ndjson_send, http_stream_end};

static const struct gen_framing *framing(const struct gen *g)
{
    return g->dialect->framing ? g->dialect->framing : &sse_framing;
}

static void fail_client(struct gen *g, const struct api_error *e)
{
    struct http_exchange *x = g->x;
    g->failed = 1;
    if (!is_wanted(g)) {
        return;
    }
    if (g->dialect->fail && (!x || g->streaming)) {
        g->dialect->fail(g, e);
        leave_client(g);
        return;
    }
    leave_client(g);
    if (!g->streaming) {
        respond_error(g->server, x, e);
        return;
    }
    struct buf b;
    buf_init(&b);
    write_error(g->server, x, e, &b);
    framing(g)->send(x, b.data ? b.data : "{}", b.data ? b.len : 2);
    framing(g)->end(x);
    buf_fini(&b);
}

/* The parser needs to see its marks, also where they are special tokens. */
static void show_marks(const struct gen *g, struct output_options *o)
{
    const struct answer_options *a = &g->f.answer;
    int calls = a->tools == ANSWER_TOOLS_MARKED;
    int first = a->reasoning ? MARK_THINK : MARK_RESPONSE;
    int end = calls ? ANSWER_MARKS : a->reasoning ? MARK_CALL : first;
    o->shown = g->server->mark_ids + first;
    o->n_shown = end - first;
}

static int open_samples(struct gen *g, struct api_error *e)
{
    int n = g->f.sp.n;
    size_t total = (size_t)n * (size_t)g->n_prompts;
    g->samples = arena_alloc(&g->arena, total * sizeof *g->samples);
    if (!g->samples) {
        return api_fail(e, 503, "ServiceUnavailableError", NULL, "out of memory");
    }
    struct output_options o = {.stop = g->f.stop,
                               .stop_bytes = g->f.stop_bytes,
                               .n_stop = g->f.n_stop,
                               .include_stop_str = g->f.include_stop_str,
                               .min_tokens = g->f.sp.min_tokens,
                               .skip_special = g->f.skip_special};
    show_marks(g, &o);
    for (size_t i = 0; i < total; i++) {
        struct gen_sample *k = &g->samples[i];
        k->prompt = &g->prompts[i / (size_t)n];
        k->choice = (int)i;
        struct buf *bufs[] = {&k->ids,     &k->lp_tokens,  &k->lp_values,
                              &k->lp_tops, &k->lp_offsets, &k->lp_content};
        for (size_t b = 0; b < sizeof bufs / sizeof bufs[0]; b++) {
            buf_init(bufs[b]);
        }
        if (output_init(&k->out, g->server->model.tokenizer, &o) != 0) {
            return api_fail(e, 503, "ServiceUnavailableError", NULL, "out of memory");
        }
        answer_init(&k->answer, &g->f.answer);
        k->is_thinking = g->f.answer.thinking;
        g->n_samples++;
        if (i % (size_t)n == 0) {
            k->prompt->samples = k;
        }
    }
    g->n_undone = g->n_samples;
    return 0;
}

static void run_parse(struct work *w)
{
    struct gen *g = (struct gen *)((char *)w - offsetof(struct gen, work));
    const struct server *s = g->server;
    if (!gen_is_hopeless(g) && fields_parse_body(&g->json, g->body ? g->body : "", g->body_bytes,
                                                 s->o.json_depth, &g->error) == 0) {
        g->dialect->parse(g, &g->error);
    }
    free(g->body);
    g->body = NULL;
}

static void set_id(struct gen *g)
{
    char random[33];
    const char *base;
    if (g->id[0]) { /* given by gen_start_detached */
        return;
    }
    base = request_id_header(g->x);
    if (!base && g->f.request_id && g->f.request_id[0]) {
        base = g->f.request_id;
    }
    if (!base && http_label(g->x)[0]) { /* what x-request-id already says */
        base = http_label(g->x);
    }
    if (!base) {
        random_hex(random, 32);
        base = random;
    }
    snprintf(g->id, sizeof g->id, "%s%s", g->dialect->id_prefix, base);
    g->id[utf8_valid_prefix(g->id, strlen(g->id))] = 0;
}

/* X-Vllm-Priority wins over the body's priority; endpoint-load-metrics-format asks for a report. */
static void read_headers(struct gen *g, struct api_error *e)
{
    const char *priority = http_header(g->x, "x-vllm-priority");
    const char *format = http_header(g->x, "endpoint-load-metrics-format");
    if (priority) {
        char *end;
        errno = 0;
        long v = strtol(priority, &end, 10);
        if (end == priority || *end || errno || v < INT_MIN || v > INT_MAX) {
            api_fail(e, 400, TYPE_BAD, "priority",
                     "The header X-Vllm-Priority must be an integer, got '%.40s'.", priority);
            return;
        }
        g->f.priority = (int)v;
    }
    g->load_report = !format                           ? 0
                     : strcasecmp(format, "text") == 0 ? LOAD_TEXT
                     : strcasecmp(format, "json") == 0 ? LOAD_JSON
                                                       : 0;
}

static void add_load_report(struct gen *g)
{
    struct engine_stats *st = g->load_report && g->x ? malloc(sizeof *st) : NULL; /* large */
    char text[160];
    if (!st) {
        return;
    }
    engine_stats(g->server->model.engine, st);
    snprintf(text, sizeof text,
             g->load_report == LOAD_TEXT
                 ? "TEXT named_metrics.kv_cache_usage_perc=%.6g, "
                   "named_metrics.num_requests_waiting=%d"
                 : "JSON {\"named_metrics\": {\"kv_cache_usage_perc\": %.6g, "
                   "\"num_requests_waiting\": %d}}",
             st->kv_usage, st->n_waiting);
    http_add_header(g->x, "endpoint-load-metrics", text);
    free(st);
}

static void finish_body(struct gen *g)
{
    struct http_exchange *x = g->x;
    struct buf b;
    buf_init(&b);
    g->dialect->body(g, &b);
    add_load_report(g);
    leave_client(g);
    if (x && g->f.stream && !g->dialect->parse_only &&
        !b.failed) { /* beam search: nothing is known before all is */
        framing(g)->begin(x);
        framing(g)->send(x, b.data ? b.data : "", b.len);
        framing(g)->end(x);
        buf_fini(&b);
    } else if (x) {
        respond_json(x, 200, &b);
    } else {
        buf_fini(&b);
    }
}

static void on_drain(void *user);

static void parse_done(struct work *w)
{
    struct gen *g = (struct gen *)((char *)w - offsetof(struct gen, work));
    struct server *s = g->server;
    struct api_error *e = &g->error;
    if (!is_wanted(g)) {
        gen_free(g);
        return;
    }
    if (e->status == 0) {
        note_unknown_fields(s, g->received ? g->received : g->json, gen_fields(g->dialect));
    }
    int n_new = g->dialect->parse_only ? 0 : g->n_prompts * g->f.sp.n;
    if (e->status == 0 && s->stopping) {
        api_fail(e, 503, "ServiceUnavailableError", NULL, "The server is shutting down.");
    }
    if (e->status == 0 && s->o.max_num_queued_reqs > 0 &&
        s->n_sequences + n_new > s->o.max_num_queued_reqs) {
        api_fail(e, 503, "ServiceUnavailableError", NULL,
                 "The request queue is full: %d sequences in flight, at most %d are accepted.",
                 s->n_sequences, s->o.max_num_queued_reqs);
    }
    int64_t new_tokens = gen_prompt_tokens(g);
    if (e->status == 0 && s->o.max_num_queued_tokens > 0 && s->n_queued_tokens > 0 &&
        s->n_queued_tokens + new_tokens > s->o.max_num_queued_tokens) {
        api_fail(e, 503, "ServiceUnavailableError", NULL,
                 "The request queue is full: prompts of %lld tokens wait, this one has %lld, at "
                 "most %lld are accepted.",
                 (long long)s->n_queued_tokens, (long long)new_tokens,
                 (long long)s->o.max_num_queued_tokens);
    }
    if (e->status == 0 && g->x) {
        read_headers(g, e);
    }
    if (e->status == 0) {
        set_id(g);
        if (g->dialect->parse_only || g->n_prompts == 0) {
            finish_body(g);
            gen_free(g);
            return;
        }
        open_samples(g, e);
    }
    for (int i = 0; e->status == 0 && i < g->n_prompts; i++) {
        submit_prompt(g, &g->prompts[i], e);
    }
    if (e->status != 0) {
        abort_engine(g);
        fail_client(g, e);
        if (g->n_open == 0) {
            gen_free(g);
        }
        return;
    }
    if (s->o.enable_log_requests) {
        reqlog_request(g);
    }
    json_free(g->json); /* everything needed later lies in the arena */
    json_free(g->received);
    g->json = g->received = NULL;
    if (progress_is_wanted(g)) {
        server_watch_progress(s);
    }
    if (g->dialect->accepted) {
        g->dialect->accepted(g);
    }
}

struct gen *gen_new(struct server *s, const struct gen_dialect *d, char *body, size_t n_bytes)
{
    struct gen *g = calloc(1, sizeof *g);
    if (!g) {
        return NULL;
    }
    g->server = s;
    g->dialect = d;
    g->body = body;
    g->body_bytes = n_bytes;
    g->f.think_end = g->f.think_budget = -1;
    g->f.include_reasoning = 1;
    arena_init(&g->arena, 0);
    buf_init(&g->prompt_text);
    g->work.run = run_parse;
    g->work.done = parse_done;
    return g;
}

/* Into the server's list: from now on it belongs to the net thread. */
static void enlist(struct gen *g)
{
    struct server *s = g->server;
    g->next = s->gens;
    if (s->gens) {
        s->gens->prev = g;
    }
    s->gens = g;
    s->n_gens++;
    g->listed = 1;
}

void gen_start(struct server *s, struct http_exchange *x, const struct gen_dialect *d)
{
    size_t n;
    char *body = http_body_take(x, &n);
    struct gen *g = gen_new(s, d, body, n);
    if (!g) {
        struct api_error e;
        free(body);
        api_fail(&e, 503, "ServiceUnavailableError", NULL, "out of memory");
        respond_error(s, x, &e);
        return;
    }
    enlist(g);
    g->x = x;
    g->arrival_ns = http_started_ns(x);
    g->created = clock_unix_s();
    s->n_load++;
    http_on_gone(x, on_gone, g);
    http_on_drain(x, on_drain, g);
    work_post(s, &g->work, work_weight(g->body, n));
}

struct gen *gen_start_detached(struct server *s, const struct gen_dialect *d, char *body,
                               size_t n_bytes, const char *id, void *state)
{
    struct gen *g = gen_new(s, d, body, n_bytes);
    if (!g) {
        free(body);
        return NULL;
    }
    enlist(g);
    g->detached = 1;
    g->state = state;
    g->arrival_ns = clock_now_ns();
    g->created = clock_unix_s();
    snprintf(g->id, sizeof g->id, "%s", id);
    work_post(s, &g->work, work_weight(g->body, n_bytes));
    return g;
}

/* ---- events ---- */

void gen_send(struct gen *g, const struct buf *json)
{
    framing(g)->send(g->x, json->data ? json->data : "", json->len);
}

static void send_chunk(struct gen *g, struct gen_sample *k)
{
    struct buf b;
    size_t n;
    const char *text = output_take(&k->out, &n);
    buf_init(&b);
    if (g->f.max_tokens == 0 && g->f.has_max_tokens) {
        n = 0; /* echo only */
    }
    if (g->server->o.enable_log_deltas) {
        reqlog_delta(g, k, text, n);
    }
    if (g->dialect->stream) {
        g->dialect->stream(g, k, text, n);
    } else {
        g->dialect->chunk(g, k, text, n, &b);
        if (b.len == 0) {
            buf_fini(&b);
            return;
        }
        gen_send(g, &b);
    }
    buf_fini(&b);
    struct buf *bufs[] = {&k->ids,     &k->lp_tokens,  &k->lp_values,
                          &k->lp_tops, &k->lp_offsets, &k->lp_content};
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++) {
        buf_clear(bufs[i]);
    }
    k->started = 1;
    k->ended = k->done;
    k->n_unsent = 0;
}

static void finish_stream(struct gen *g)
{
    for (int i = 0; i < g->n_samples; i++) {
        if (!g->samples[i].ended) {
            return;
        }
    }
    struct http_exchange *x = g->x;
    if (g->dialect->end) {
        g->dialect->end(g);
        leave_client(g);
        return;
    }
    if (g->f.include_usage && g->dialect->usage_chunk) {
        struct buf b;
        buf_init(&b);
        g->dialect->usage_chunk(g, &b);
        gen_send(g, &b);
        buf_fini(&b);
    }
    leave_client(g);
    framing(g)->end(x);
}

void gen_begin_stream(struct gen *g)
{
    if (!g->streaming) {
        g->streaming = 1;
        if (g->x) {
            framing(g)->begin(g->x);
        }
    }
}

/* Sends what the sample has, unless the socket is full or the interval says to wait. */
static void stream_sample(struct gen *g, struct gen_sample *k)
{
    if (!g->begun) {
        g->begun = 1;
        gen_begin_stream(g);
        if (g->dialect->begin) {
            g->dialect->begin(g);
        }
    }
    if (g->x && http_stream_backlog(g->x) > HTTP_STREAM_HIGH_BYTES) {
        g->flush_wanted = 1;
        return;
    }
    if (!k->started || k->done || k->n_unsent >= g->f.stream_interval) {
        send_chunk(g, k);
    }
    if (g->n_undone == 0) {
        finish_stream(g);
    }
}

static void on_drain(void *user)
{
    struct gen *g = user;
    if (!g->x || !g->flush_wanted) {
        return;
    }
    g->flush_wanted = 0;
    for (int i = 0; i < g->n_samples; i++) {
        struct gen_sample *k = &g->samples[i];
        if (k->n_unsent > 0 || (k->done && !k->ended)) {
            send_chunk(g, k);
        }
    }
    if (g->n_undone == 0) {
        finish_stream(g);
        if (g->n_open == 0) {
            gen_free(g);
        }
    }
}

/* Marks count as reasoning. */
static void count_reasoning(const struct gen *g, struct gen_sample *k, int32_t id)
{
    const int32_t *marks = g->server->mark_ids;
    if (g->f.answer.reasoning) {
        k->is_thinking |= id == marks[MARK_THINK] && id >= 0 && k->n_reasoning_tokens == 0;
        k->n_reasoning_tokens += k->is_thinking;
        k->is_thinking &= id != marks[MARK_THINK_END];
    }
}

static void feed_sample(struct gen *g, struct gen_sample *k, const struct engine_event *ev)
{
    int n_used = ev->n_tokens;
    int stopped = output_feed(&k->out, ev, &n_used);
    int echo_only = g->f.has_max_tokens && g->f.max_tokens == 0;
    for (int i = 0; i < n_used && !echo_only; i++) {
        const struct token_output *t = &ev->tokens[i];
        count_reasoning(g, k, t->id);
        if (g->f.return_token_ids) {
            buf_printf(&k->ids, "%s%d", k->ids.len ? "," : "", t->id);
        }
        if (g->f.logprobs >= 0) {
            logprobs_add(g, k, t);
        }
    }
    k->n_tokens += echo_only ? 0 : n_used;
    k->n_unsent += n_used;
    if (stopped) {
        engine_abort(g->server->model.engine, ev->request_id, ev->sample, 1);
    }
    if (k->out.finish != FINISH_NONE) {
        k->done = 1;
        k->finish = echo_only ? FINISH_LENGTH : k->out.finish;
        g->n_undone--;
        g->server->metrics.tool_call_parses += g->f.answer.tools != ANSWER_TOOLS_NONE;
        if (g->server->o.enable_log_outputs) {
            reqlog_output(g, k);
        }
    }
}

void gen_event(struct engine_event *ev)
{
    struct gen_prompt *p = ev->user;
    struct gen *g = p->gen;
    struct server *s = g->server;
    struct gen_sample *k = &p->samples[ev->sample];
    p->n_cached = ev->n_cached_tokens;
    if (ev->kind == EVENT_TOKENS) {
        leave_queue(p);
    }
    k->scheduled_ns = ev->scheduled_ns;
    k->first_token_ns = ev->first_token_ns;
    k->last_token_ns = ev->last_token_ns;
    if (ev->kind == EVENT_PROMPT_LOGPROBS) {
        if (g->x) {
            logprobs_prompt(g, p, ev);
        }
    } else if (is_wanted(g) && !g->failed && !k->done) {
        if (ev->finish == FINISH_ERROR) {
            struct api_error e;
            log_error(s->log, "request %s: %s", g->id, ev->error);
            api_fail(&e, 500, "InternalServerError", NULL, "Internal server error");
            fail_client(g, &e);
            abort_engine(g);
        } else {
            feed_sample(g, k, ev);
            if (g->f.stream && !(g->f.sp.use_beam_search && !g->dialect->stream)) {
                stream_sample(g, k);
            } else if (g->n_undone == 0) {
                finish_body(g);
            }
        }
    }
    if (ev->finish != FINISH_NONE && ev->kind == EVENT_TOKENS && !k->engine_done) {
        k->engine_done = 1;
        g->n_open--;
        s->n_sequences--;
    }
    engine_event_free(ev);
    if (!is_wanted(g) && g->n_open == 0) {
        gen_free(g);
    }
}

void gen_abort_all(struct server *s)
{
    for (struct gen *g = s->gens; g; g = g->next) {
        abort_engine(g);
    }
}

void gen_free_all(struct server *s)
{
    for (struct gen *g = s->gens, *next; g; g = next) {
        next = g->next;
        gen_free(g);
    }
}
