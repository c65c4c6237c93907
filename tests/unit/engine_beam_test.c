/* SPDX-License-Identifier: Apache-2.0 */
/* Beam search on the fake runner, against the definition written down plainly: all beams as token
 * lists, every row computed anew. The engine must say the same whatever room it has. */
#include "fake_runner.h"

#include "base/clock.h"
#include "engine/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define VOCAB        97
#define MAX_WIDTH    8
#define MAX_TOKENS   48
#define MAX_REQUESTS 12

struct text {
    int32_t ids[MAX_TOKENS];
    int n, is_end;
    double sum, score;
};

struct answer {
    struct text text[MAX_WIDTH];
    int n_ended, width;
    enum finish_reason finish[MAX_WIDTH];
};

struct rig {
    struct fake_runner fake;
    struct engine_options o;
    struct engine *en;
    struct mq *mq;
    struct answer got[MAX_REQUESTS];
    int n_requests, n_open;
    uint64_t ids[MAX_REQUESTS];
};

static struct rig *open_rig(const struct engine_options *o, int n_blocks, int eos_every)
{
    struct rig *g = calloc(1, sizeof *g);
    struct err e = {0};
    assert_non_null(g);
    g->o = *o;
    fake_init(&g->fake, VOCAB, n_blocks + 1, o);
    g->fake.eos_every = eos_every;
    g->fake.eos_id = g->o.eos_id = 5;
    if (mq_new(&g->mq, &e) < 0 ||
        engine_open_runner(&g->en, &g->fake.ops, &g->fake, &g->o, &e) < 0) {
        fail_msg("%s", e.text);
    }
    return g;
}

static void close_rig(struct rig *g)
{
    engine_close(g->en);
    fake_fini(&g->fake);
    mq_free(g->mq);
    free(g);
}

static struct engine_request *beam_request(const int32_t *prompt, int n, int width, int max_tokens,
                                           double penalty)
{
    struct engine_request *r = engine_request_new();
    assert_non_null(r);
    r->prompt = arena_memdup(&r->arena, prompt, (size_t)n * sizeof *prompt);
    r->n_prompt = n;
    r->params.n = width;
    r->params.temperature = 0;
    r->params.max_tokens = max_tokens;
    r->params.use_beam_search = 1;
    r->params.length_penalty = penalty;
    return r;
}

static void submit(struct rig *g, struct engine_request *r)
{
    struct err e = {0};
    int at = g->n_requests++;
    r->reply = g->mq;
    r->user = (void *)(intptr_t)at;
    r->id = g->ids[at] = engine_new_id(g->en);
    g->got[at].width = r->params.n;
    g->n_open += r->params.n;
    if (engine_submit(g->en, r, &e) < 0) {
        fail_msg("%s", e.text);
    }
}

static void receive_all(struct rig *g)
{
    while (g->n_open > 0) {
        assert_int_equal(mq_wait(g->mq, 20000), 1);
        for (struct mq_node *node = mq_pop_all(g->mq), *next; node; node = next) {
            struct engine_event *ev = (struct engine_event *)node;
            struct answer *a = &g->got[(intptr_t)ev->user];
            struct text *t = &a->text[ev->sample];
            next = node->next;
            assert_int_equal(a->finish[ev->sample], FINISH_NONE);
            for (int i = 0; i < ev->n_tokens; i++) {
                t->ids[t->n++] = ev->tokens[i].id;
                t->sum += ev->tokens[i].n_top > 0 ? (double)ev->tokens[i].top[0].logprob : 0.0;
            }
            a->finish[ev->sample] = ev->finish;
            a->n_ended += ev->finish != FINISH_NONE;
            g->n_open -= ev->finish != FINISH_NONE;
            engine_event_free(ev);
        }
    }
    struct err e = {0};
    assert_int_equal(engine_check_integrity(g->en, &e), 0);
    struct engine_stats s;
    engine_stats(g->en, &s);
    assert_int_equal(s.n_running + s.n_waiting, 0);
    assert_true(s.kv_usage < 1e-9);
    assert_int_equal(s.generation_tokens, (uint64_t)s.generation_len.sum);
    assert_int_equal(s.prompt_tokens, (uint64_t)s.prompt_len.sum);
}

/* ---- the definition ---- */

static void put(struct text *list, int *n, int width, const struct text *t, int by_score)
{
    double key = by_score ? t->score : t->sum;
    int at = *n;
    while (at > 0 && (by_score ? list[at - 1].score : list[at - 1].sum) < key) {
        at--;
    }
    if (at == width) {
        return;
    }
    int n_kept = *n < width ? *n : width - 1;
    memmove(&list[at + 1], &list[at], (size_t)(n_kept - at) * sizeof *list);
    list[at] = *t;
    *n = n_kept + 1;
}

static void reference(const struct fake_runner *f, struct sampler *s, const int32_t *prompt,
                      int n_prompt, int width, int max_tokens, double penalty, struct text *done)
{
    struct text beams[MAX_WIDTH] = {{{0}, 0, 0, 0, 0}};
    int n_beams = 1, n_done = 0;
    float row[VOCAB];
    struct token_logprob top[1 + VOCAB];
    for (int step = 0; step < max_tokens; step++) {
        struct text next[MAX_WIDTH];
        int n_next = 0;
        for (int b = 0; b < n_beams; b++) {
            uint64_t h = 1;
            for (int i = 0; i < n_prompt + beams[b].n; i++) {
                h = fake_mix(h, i < n_prompt ? prompt[i] : beams[b].ids[i - n_prompt]);
            }
            fake_row(f, h, row);
            sampler_logprobs(s, row, 0, VOCAB, top);
            for (int k = 1; k <= VOCAB; k++) {
                struct text t = beams[b];
                t.sum += (double)top[k].logprob;
                t.ids[t.n++] = top[k].id;
                if (top[k].id == f->eos_id && k <= 2 * width) {
                    t.is_end = 1;
                    t.score = t.sum / pow(n_prompt + t.n - 1, penalty);
                    put(done, &n_done, width, &t, 1);
                } else if (top[k].id != f->eos_id) {
                    put(next, &n_next, width, &t, 0);
                }
            }
        }
        memcpy(beams, next, sizeof beams);
        n_beams = n_next;
    }
    for (int b = 0; b < n_beams; b++) {
        beams[b].score = beams[b].sum / pow(n_prompt + beams[b].n, penalty);
        put(done, &n_done, width, &beams[b], 1);
    }
    assert_int_equal(n_done, width);
}

static void make_prompt(int32_t *prompt, int n, int seed)
{
    for (int i = 0; i < n; i++) {
        prompt[i] = (int32_t)(fake_mix((uint64_t)seed + 77, i) % VOCAB);
    }
}

/* Runs several searches at once and compares each with the definition. */
static void run_and_compare(const struct engine_options *o, int n_blocks, int n_requests,
                            int n_prompt, int width, int max_tokens, double penalty, int eos_every)
{
    struct rig *g = open_rig(o, n_blocks, eos_every);
    struct sampler *s;
    struct err e = {0};
    int32_t prompt[256];
    assert_int_equal(sampler_open(&s, kernels_get(CPU_SCALAR), VOCAB, &e), 0);
    for (int i = 0; i < n_requests; i++) {
        make_prompt(prompt, n_prompt + i, i);
        submit(g, beam_request(prompt, n_prompt + i, width, max_tokens, penalty));
    }
    receive_all(g);
    for (int i = 0; i < n_requests; i++) {
        struct text want[MAX_WIDTH] = {{{0}, 0, 0, 0, 0}};
        make_prompt(prompt, n_prompt + i, i);
        reference(&g->fake, s, prompt, n_prompt + i, width, max_tokens, penalty, want);
        for (int k = 0; k < width; k++) {
            const struct text *t = &g->got[i].text[k];
            assert_int_equal(t->n, want[k].n);
            assert_memory_equal(t->ids, want[k].ids, (size_t)t->n * sizeof t->ids[0]);
            assert_int_equal(g->got[i].finish[k], want[k].is_end ? FINISH_STOP : FINISH_LENGTH);
        }
    }
    sampler_close(s);
    close_rig(g);
}

static void beams_are_the_definition(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    static const double penalties[] = {1.0, 0.0, 2.5, -1.0};
    for (int width = 1; width <= MAX_WIDTH; width++) {
        for (int p = 0; p < 4; p++) {
            run_and_compare(&o, 200, 1, 21, width, 18, penalties[p], 0);
            run_and_compare(&o, 200, 1, 21, width, 18, penalties[p], 9);
        }
    }
    run_and_compare(&o, 200, 1, 5, 4, 1, 1.0, 2);
}

static void many_searches_beside_each_other_are_the_same(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    run_and_compare(&o, 400, 6, 30, 5, 24, 1.0, 11);
    o.max_num_batched_tokens = 9; /* beams of one request computed in different steps */
    o.max_num_seqs = 9;
    run_and_compare(&o, 400, 6, 30, 5, 24, 1.0, 11);
}

static void a_search_goes_on_with_fewer_places_than_beams(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    for (int places = 1; places <= 6; places++) {
        o.max_num_seqs = places;
        run_and_compare(&o, 200, 3, 18, 6, 20, 1.0, 13);
    }
}

static void a_search_goes_on_in_a_cache_with_room_for_one_beam(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    o.max_model_len = 96; /* 6 blocks */
    for (int n_blocks = 6; n_blocks <= 20; n_blocks++) {
        for (int cache = 0; cache < 2; cache++) {
            o.enable_prefix_caching = cache;
            run_and_compare(&o, n_blocks, 3, 40, 4, 40, 1.0, 0);
        }
    }
}

static void a_search_ends_when_no_beam_can_win(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    struct rig *g = open_rig(&o, 200, 1); /* every row wants the end most */
    int32_t prompt[4] = {1, 2, 3, 4};
    submit(g, beam_request(prompt, 4, 1, 40, 0.0));
    receive_all(g);
    assert_int_equal(g->got[0].text[0].n, 1);
    assert_true(atomic_load(&g->fake.n_runs) < 4);
    close_rig(g);
}

static void the_prompt_is_computed_once_and_beams_share_its_blocks(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    o.enable_prefix_caching = 0;
    int32_t prompt[64];
    make_prompt(prompt, 64, 3);
    struct rig *g = open_rig(&o, 200, 0);
    struct engine_request *r = beam_request(prompt, 64, 4, 10, 1.0);
    r->params.ignore_eos = 1;
    submit(g, r);
    receive_all(g);
    /* 64 rows of the prompt, then 9 rounds of 4 beams */
    assert_int_equal(atomic_load(&g->fake.n_rows_total), 64 + 9 * 4);
    struct engine_stats s;
    engine_stats(g->en, &s);
    assert_int_equal(s.ttft.count, 1);
    assert_int_equal(s.params_n.count, 1);
    assert_int_equal(s.prompt_tokens - s.prompt_tokens_cached, 64);
    close_rig(g);
}

static void log_probabilities_belong_to_the_tokens(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    struct rig *g = open_rig(&o, 200, 7);
    struct sampler *s;
    struct err e = {0};
    int32_t prompt[12];
    struct text want[MAX_WIDTH] = {{{0}, 0, 0, 0, 0}};
    make_prompt(prompt, 12, 9);
    assert_int_equal(sampler_open(&s, kernels_get(CPU_SCALAR), VOCAB, &e), 0);
    struct engine_request *r = beam_request(prompt, 12, 3, 15, 1.0);
    r->params.n_logprobs = 2;
    submit(g, r);
    receive_all(g);
    reference(&g->fake, s, prompt, 12, 3, 15, 1.0, want);
    for (int k = 0; k < 3; k++) {
        assert_true(fabs(g->got[0].text[k].sum - want[k].sum) < 1e-9);
    }
    sampler_close(s);
    close_rig(g);
}

static void an_abort_and_a_failing_step_end_all_beams(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    int32_t prompt[20];
    make_prompt(prompt, 20, 1);
    for (int fail_at = 1; fail_at <= 6; fail_at++) {
        struct rig *g = open_rig(&o, 200, 0);
        atomic_store(&g->fake.fail_at, fail_at);
        submit(g, beam_request(prompt, 20, 4, 12, 1.0));
        receive_all(g);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(g->got[0].finish[k], FINISH_ERROR);
        }
        close_rig(g);
        g = open_rig(&o, 200, 0);
        g->fake.poison = fail_at % 2 ? NAN : INFINITY;
        atomic_store(&g->fake.poison_at, fail_at);
        submit(g, beam_request(prompt, 20, 4, 12, 1.0));
        receive_all(g);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(g->got[0].finish[k], FINISH_ERROR);
        }
        close_rig(g);
    }
    for (int us = 0; us < 12000; us += 1500) {
        struct rig *g = open_rig(&o, 200, 0);
        g->fake.step_us = 1000;
        submit(g, beam_request(prompt, 20, 4, 40, 1.0));
        usleep((unsigned)us);
        engine_abort(g->en, g->ids[0], -1, 0);
        receive_all(g);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(g->got[0].finish[k], FINISH_ABORT);
        }
        close_rig(g);
    }
}

static void too_many_beams_are_refused(void **state)
{
    (void)state;
    struct sampling_params p;
    struct err e = {0};
    const char *field = NULL;
    sampling_params_init(&p);
    p.use_beam_search = 1;
    p.n = ENGINE_MAX_BEAMS + 1;
    assert_int_equal(sampling_params_check(&p, 1000, 20, &field, &e), ERR_INVALID);
    assert_string_equal(field, "n");
    p.n = 49;
    assert_int_equal(sampling_params_check(&p, VOCAB, 20, &field, &e), ERR_INVALID);
    p.n = 48;
    assert_int_equal(sampling_params_check(&p, VOCAB, 20, &field, &e), 0);
    p.length_penalty = INFINITY;
    assert_int_equal(sampling_params_check(&p, VOCAB, 20, &field, &e), ERR_INVALID);
    assert_string_equal(field, "length_penalty");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beams_are_the_definition),
        cmocka_unit_test(many_searches_beside_each_other_are_the_same),
        cmocka_unit_test(a_search_goes_on_with_fewer_places_than_beams),
        cmocka_unit_test(a_search_goes_on_in_a_cache_with_room_for_one_beam),
        cmocka_unit_test(a_search_ends_when_no_beam_can_win),
        cmocka_unit_test(the_prompt_is_computed_once_and_beams_share_its_blocks),
        cmocka_unit_test(log_probabilities_belong_to_the_tokens),
        cmocka_unit_test(an_abort_and_a_failing_step_end_all_beams),
        cmocka_unit_test(too_many_beams_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
