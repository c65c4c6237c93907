/* SPDX-License-Identifier: Apache-2.0 */
/* See request.c. One thread takes from a queue at a time; the arrays that a chunk points to belong
 * to the queue and are used again for the next one. */
#include "base/clock.h"
#include "lib/lib.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

int tern_queue_new(struct tern_queue **out, struct tern_error *error)
{
    struct err e = {0, ""};
    struct tern_queue *q = *out = calloc(1, sizeof *q);
    if (!q) {
        return lib_no_memory(error);
    }
    if (mq_new(&q->events, &e) < 0) {
        free(q);
        *out = NULL;
        return lib_fail(error, &e);
    }
    pthread_mutex_init(&q->lock, NULL);
    buf_init(&q->text);
    return 0;
}

int tern_queue_fd(const struct tern_queue *q)
{
    return mq_fd(q->events);
}

void lib_queue_add(struct tern_queue *q, struct tern_request *r)
{
    atomic_store(&r->state, 0);
    pthread_mutex_lock(&q->lock);
    r->next = q->running;
    r->prev = NULL;
    if (q->running) {
        q->running->prev = r;
    }
    q->running = r;
    pthread_mutex_unlock(&q->lock);
}

int lib_queue_remove(struct tern_queue *q, struct tern_request *r)
{
    pthread_mutex_lock(&q->lock);
    if (r->prev) {
        r->prev->next = r->next;
    } else {
        q->running = r->next;
    }
    if (r->next) {
        r->next->prev = r->prev;
    }
    pthread_mutex_unlock(&q->lock);
    return (atomic_fetch_or(&r->state, LIB_DONE) & LIB_CLOSED) != 0;
}

/* ---- events to chunks ---- */

static int resize(void **array, size_t n_bytes)
{
    void *v = realloc(*array, n_bytes);
    if (!v) {
        return ERR_NOMEM;
    }
    *array = v;
    return 0;
}

static int reserve(struct tern_queue *q, size_t n_ids, size_t n_logprobs)
{
    if (n_ids + 1 > q->ids_cap) {
        size_t cap = 2 * (n_ids + 1);
        if (resize((void **)&q->ids, cap * sizeof *q->ids) < 0 ||
            resize((void **)&q->starts, cap * sizeof *q->starts) < 0) {
            return ERR_NOMEM;
        }
        q->ids_cap = cap;
    }
    if (n_logprobs > q->logprobs_cap) {
        size_t cap = 2 * n_logprobs;
        if (resize((void **)&q->logprob_ids, cap * sizeof *q->logprob_ids) < 0 ||
            resize((void **)&q->logprob_ranks, cap * sizeof *q->logprob_ranks) < 0 ||
            resize((void **)&q->logprobs, cap * sizeof *q->logprobs) < 0) {
            return ERR_NOMEM;
        }
        q->logprobs_cap = cap;
    }
    return 0;
}

/* The first n tokens of an event, with their log-probabilities. */
static int put_tokens(struct tern_queue *q, const struct engine_event *ev, int n,
                      struct tern_chunk *c)
{
    size_t n_logprobs = 0, at = 0;
    for (int i = 0; i < n; i++) {
        n_logprobs += (size_t)ev->tokens[i].n_top;
    }
    if (reserve(q, (size_t)n, n_logprobs) < 0) {
        return ERR_NOMEM;
    }
    for (int i = 0; i < n; i++) {
        const struct token_output *t = &ev->tokens[i];
        q->ids[i] = t->id;
        q->starts[i] = at;
        for (int k = 0; k < t->n_top; k++, at++) {
            q->logprob_ids[at] = t->top[k].id;
            q->logprobs[at] = t->top[k].logprob;
            q->logprob_ranks[at] = t->top[k].rank;
        }
    }
    q->starts[n] = at;
    c->ids = q->ids;
    c->n_ids = (size_t)n;
    if (n_logprobs > 0) {
        c->logprob_start = q->starts;
        c->logprob_ids = q->logprob_ids;
        c->logprobs = q->logprobs;
        c->logprob_ranks = q->logprob_ranks;
    }
    return 0;
}

static int put_text(struct tern_queue *q, struct output *out, struct tern_chunk *c)
{
    size_t n;
    const char *text = output_take(out, &n);
    buf_clear(&q->text);
    buf_append(&q->text, text, n);
    buf_puts(&q->text, "");
    c->text = q->text.data ? q->text.data : "";
    c->text_bytes = n;
    return q->text.failed ? ERR_NOMEM : 0;
}

static void put_end(const struct output *out, const struct engine_event *ev, struct tern_chunk *c)
{
    c->finish = (int)out->finish;
    c->error = out->finish == FINISH_ERROR ? ev->error : NULL;
    c->stop_id = out->stop_token_id;
    if (out->stop_index >= 0) {
        c->stop_text = out->o.stop[out->stop_index];
        c->stop_text_bytes = out->o.stop_bytes[out->stop_index];
    }
}

/* Fills the chunk: 1; 0 when the event says nothing; or ERR_NOMEM. */
static int make_chunk(struct tern_queue *q, struct tern_request *r, const struct engine_event *ev,
                      struct tern_chunk *c)
{
    struct lib_sample *s = &r->samples[ev->sample];
    *c = (struct tern_chunk){.request = r,
                             .kind = ev->kind == EVENT_TOKENS ? TERN_TOKENS : TERN_PROMPT,
                             .index = ev->sample,
                             .text = "",
                             .stop_id = -1,
                             .n_cached = ev->n_cached_tokens,
                             .arrival_ns = r->arrival_ns,
                             .scheduled_ns = ev->scheduled_ns,
                             .first_token_ns = ev->first_token_ns,
                             .last_token_ns = ev->last_token_ns,
                             .n_preempted = ev->n_preemptions};
    if (ev->kind != EVENT_TOKENS) {
        return put_tokens(q, ev, ev->n_tokens, c) < 0 ? ERR_NOMEM : 1;
    }
    int used = 0;
    if (output_feed(&s->out, ev, &used)) {
        lib_engine_abort(r->engine, r->id, ev->sample, 1);
    }
    for (int i = 0; i < used; i++) {
        const struct token_output *t = &ev->tokens[i];
        s->cumulative_logprob += t->n_top > 0 ? (double)t->top[0].logprob : 0;
    }
    c->cumulative_logprob = s->cumulative_logprob;
    if (put_tokens(q, ev, used, c) < 0 || put_text(q, &s->out, c) < 0) {
        return ERR_NOMEM;
    }
    if (ev->finish != FINISH_NONE) { /* and only now: the engine has let go of it */
        put_end(&s->out, ev, c);
        c->last = r->n_open == 0;
    }
    return c->n_ids > 0 || c->text_bytes > 0 || c->finish != TERN_RUNNING;
}

/* One event: 1 with a chunk, 0 without, or ERR_NOMEM. c NULL: it is only taken. */
static int take_event(struct tern_queue *q, struct engine_event *ev, struct tern_chunk *c)
{
    struct tern_request *r = ev->user;
    int rc = 0, ends = 0;
    if (ev->finish != FINISH_NONE) {
        ends = --r->n_open == 0;
    }
    if (c && !(atomic_load(&r->state) & LIB_CLOSED)) {
        rc = make_chunk(q, r, ev, c);
    }
    if (ends && lib_queue_remove(q, r)) {
        lib_request_free(r);
        rc = 0;
    }
    return rc;
}

static int next_event(struct tern_queue *q)
{
    if (q->event) {
        engine_event_free(q->event);
        q->event = NULL;
    }
    q->taken = q->taken ? q->taken : mq_pop_all(q->events);
    if (!q->taken) {
        return 0;
    }
    q->event = (struct engine_event *)((char *)q->taken - offsetof(struct engine_event, node));
    q->taken = q->taken->next;
    return 1;
}

static int has_running(struct tern_queue *q)
{
    pthread_mutex_lock(&q->lock);
    int some = q->running != NULL;
    pthread_mutex_unlock(&q->lock);
    return some;
}

int tern_queue_next(struct tern_queue *q, int timeout_ms, struct tern_chunk *chunk,
                    struct tern_error *error)
{
    const uint64_t start = clock_now_ns();
    struct tern_chunk c;
    for (;;) {
        while (next_event(q)) {
            int rc = take_event(q, q->event, &c);
            if (rc < 0) {
                return lib_no_memory(error);
            }
            if (rc > 0) {
                lib_fill(chunk, &c, sizeof c);
                return TERN_CHUNK;
            }
        }
        if (!has_running(q)) {
            return TERN_END;
        }
        int left = timeout_ms;
        if (timeout_ms > 0) {
            uint64_t passed = (clock_now_ns() - start) / 1000000u;
            left = passed >= (uint64_t)timeout_ms ? 0 : timeout_ms - (int)passed;
        }
        if (!mq_wait(q->events, left) && timeout_ms >= 0) {
            return TERN_NOTHING;
        }
    }
}

void tern_queue_free(struct tern_queue *q)
{
    if (!q) {
        return;
    }
    pthread_mutex_lock(&q->lock);
    for (struct tern_request *r = q->running; r; r = r->next) {
        lib_engine_abort(r->engine, r->id, -1, 0);
    }
    pthread_mutex_unlock(&q->lock);
    for (;;) {
        while (next_event(q)) {
            take_event(q, q->event, NULL);
        }
        if (!has_running(q)) {
            break;
        }
        mq_wait(q->events, -1);
    }
    mq_free(q->events);
    pthread_mutex_destroy(&q->lock);
    buf_fini(&q->text);
    free(q->ids);
    free(q->starts);
    free(q->logprob_ids);
    free(q->logprob_ranks);
    free(q->logprobs);
    free(q);
}
