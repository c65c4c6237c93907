/* SPDX-License-Identifier: Apache-2.0 */
/* An engine over the fake runner, requests that go to it, and what came back, sample by sample. */
#ifndef TERN_TESTS_ENGINE_RIG_H
#define TERN_TESTS_ENGINE_RIG_H

#include "base/clock.h"
#include "fake_runner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define VOCAB        97
#define MAX_REQUESTS 256
#define MAX_SAMPLES  6

struct result { /* one sample */
    int32_t *ids;
    float *logprobs;
    int n, n_finals, n_cached, n_preemptions;
    enum finish_reason finish;
    int32_t stop_id;
    char error[128];
    uint64_t queued, scheduled, first, last;
};

struct rig {
    struct fake_runner fake;
    struct engine_options o;
    struct engine *en;
    struct mq *mq;
    struct result r[MAX_REQUESTS][MAX_SAMPLES];
    int n_samples[MAX_REQUESTS];
    uint64_t id[MAX_REQUESTS];
    int n_requests, n_ended;
    struct engine_event *prompt_event;
};

static inline struct rig *open_rig(const struct engine_options *o, int n_blocks)
{
    struct rig *g = calloc(1, sizeof *g);
    assert_non_null(g);
    g->o = *o;
    fake_init(&g->fake, VOCAB, n_blocks + 1, o);
    return g;
}

static inline void start(struct rig *g)
{
    struct err e = {0};
    if (mq_new(&g->mq, &e) < 0 ||
        engine_open_runner(&g->en, &g->fake.ops, &g->fake, &g->o, &e) < 0) {
        fail_msg("%s", e.text);
    }
}

static inline struct rig *quick_rig(void)
{
    struct engine_options o;
    fake_options(&o);
    struct rig *g = open_rig(&o, 200);
    start(g);
    return g;
}

static inline struct engine_request *new_request(const int32_t *prompt, int n, int max_tokens)
{
    struct engine_request *r = engine_request_new();
    assert_non_null(r);
    r->prompt = arena_memdup(&r->arena, prompt, (size_t)n * sizeof *prompt);
    r->n_prompt = n;
    r->params.temperature = 0;
    r->params.max_tokens = max_tokens;
    r->arrival_ns = clock_now_ns();
    return r;
}

static inline int submit(struct rig *g, struct engine_request *r)
{
    struct err e = {0};
    int at = g->n_requests++;
    r->reply = g->mq;
    r->user = (void *)(intptr_t)at;
    r->id = g->id[at] = engine_new_id(g->en);
    g->n_samples[at] = r->params.n;
    if (engine_submit(g->en, r, &e) < 0) {
        fail_msg("%s", e.text);
    }
    return at;
}

static inline void take_event(struct rig *g, struct engine_event *ev)
{
    int at = (int)(intptr_t)ev->user;
    assert_true(ev->request_id == g->id[at]);
    assert_true(ev->sample >= 0 && ev->sample < g->n_samples[at]);
    if (ev->kind == EVENT_PROMPT_LOGPROBS) {
        assert_null(g->prompt_event);
        g->prompt_event = ev;
        return;
    }
    struct result *r = &g->r[at][ev->sample];
    assert_int_equal(r->n_finals, 0);
    r->ids = realloc(r->ids, (size_t)(r->n + ev->n_tokens + 1) * sizeof *r->ids);
    r->logprobs = realloc(r->logprobs, (size_t)(r->n + ev->n_tokens + 1) * sizeof *r->logprobs);
    for (int i = 0; i < ev->n_tokens; i++) {
        r->logprobs[r->n] = ev->tokens[i].n_top > 0 ? ev->tokens[i].top[0].logprob : 0;
        r->ids[r->n++] = ev->tokens[i].id;
    }
    r->n_cached = ev->n_cached_tokens;
    r->n_preemptions = ev->n_preemptions;
    r->finish = ev->finish;
    r->stop_id = ev->stop_token_id;
    r->queued = ev->queued_ns;
    r->scheduled = ev->scheduled_ns;
    r->first = ev->first_token_ns;
    r->last = ev->last_token_ns;
    memcpy(r->error, ev->error, sizeof r->error);
    if (ev->finish != FINISH_NONE) {
        r->n_finals++;
        g->n_ended++;
    }
    engine_event_free(ev);
}

/* Receives until `n` more events came, or all samples have ended (n < 0). */
static inline void receive(struct rig *g, int n)
{
    int total = 0;
    for (int i = 0; i < g->n_requests; i++) {
        total += g->n_samples[i];
    }
    while (n != 0 && g->n_ended < total) {
        assert_int_equal(mq_wait(g->mq, 20000), 1);
        struct mq_node *node = mq_pop_all(g->mq);
        while (node) {
            struct mq_node *next = node->next;
            take_event(g, (struct engine_event *)node);
            n -= n > 0;
            node = next;
        }
    }
}

static inline void check_idle(struct rig *g)
{
    struct err e = {0};
    struct engine_stats s;
    if (engine_check_integrity(g->en, &e) != 0) {
        fail_msg("%s", e.text);
    }
    engine_stats(g->en, &s);
    assert_int_equal(s.n_running, 0);
    assert_int_equal(s.n_waiting, 0);
    assert_true(s.kv_usage == 0.0);
    double prompt = s.prompt_len.sum, out = s.generation_len.sum;
    assert_true((double)s.prompt_tokens == prompt);
    assert_true((double)s.generation_tokens == out);
    uint64_t finished = 0;
    for (int i = 0; i < 6; i++) {
        finished += s.finished[i];
    }
    assert_true(finished == s.e2e.count && finished == s.prompt_len.count &&
                finished == s.generation_len.count);
}

static inline void close_rig(struct rig *g)
{
    check_idle(g);
    engine_close(g->en);
    assert_int_equal(atomic_load(&g->fake.closed), 1);
    assert_null(mq_pop_all(g->mq));
    mq_free(g->mq);
    engine_event_free(g->prompt_event);
    for (int i = 0; i < g->n_requests; i++) {
        for (int k = 0; k < MAX_SAMPLES; k++) {
            free(g->r[i][k].ids);
            free(g->r[i][k].logprobs);
        }
    }
    fake_fini(&g->fake);
    free(g);
}

static inline void make_prompt(int32_t *out, int n, int text)
{
    for (int i = 0; i < n; i++) {
        out[i] = (text * 31 + i * 7 + i / 5) % VOCAB;
    }
}

static inline struct engine_stats stats_of(struct rig *g)
{
    struct engine_stats s;
    engine_stats(g->en, &s);
    return s;
}

#endif
