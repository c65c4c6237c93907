/* SPDX-License-Identifier: Apache-2.0 */
/* The engine on the fake runner. Texts are compared with what the fake would say to the tokens
 * alone (fake_next), or with a run of the same request by itself. */
#include "engine/rng.h"
#include "engine/sampler.h"
#include "engine_rig.h"

#include <math.h>

static void expect_greedy(const struct rig *g, int at, const int32_t *prompt, int n, int max_tokens)
{
    const struct result *r = &g->r[at][0];
    int32_t all[1024];
    memcpy(all, prompt, (size_t)n * sizeof *prompt);
    assert_int_equal(r->n_finals, 1);
    assert_int_equal(r->n, max_tokens);
    for (int i = 0; i < max_tokens; i++) {
        all[n + i] = fake_next(&g->fake, all, n + i);
        if (r->ids[i] != all[n + i]) {
            fail_msg("request %d, token %d: %d instead of %d", at, i, r->ids[i], all[n + i]);
        }
    }
}

/* ---- text ---- */

static void one_request_gets_the_greedy_text_and_length_as_reason(void **state)
{
    (void)state;
    struct rig *g = quick_rig();
    int32_t p[100];
    make_prompt(p, 100, 1);
    submit(g, new_request(p, 100, 40));
    receive(g, -1);
    expect_greedy(g, 0, p, 100, 40);
    assert_int_equal(g->r[0][0].finish, FINISH_LENGTH);
    assert_int_equal(g->r[0][0].stop_id, -1);
    assert_true(g->r[0][0].queued <= g->r[0][0].scheduled &&
                g->r[0][0].scheduled <= g->r[0][0].first && g->r[0][0].first <= g->r[0][0].last);
    assert_true(atomic_load(&g->fake.max_rows_seen) <= 64);
    close_rig(g);
}

static void the_context_ends_a_text_at_max_model_len(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    o.max_model_len = 50;
    struct rig *g = open_rig(&o, 20);
    start(g);
    int32_t p[49];
    make_prompt(p, 49, 1);
    submit(g, new_request(p, 40, 1000));
    submit(g, new_request(p, 49, 1000));
    receive(g, -1);
    expect_greedy(g, 0, p, 40, 10);
    expect_greedy(g, 1, p, 49, 1);
    assert_int_equal(g->r[0][0].finish, FINISH_LENGTH);
    close_rig(g);
}

static void text_does_not_depend_on_budget_batch_cache_or_block_order(void **state)
{
    (void)state;
    for (int mode = 0; mode < 12; mode++) {
        struct engine_options o;
        fake_options(&o);
        o.max_num_batched_tokens = (const int[]){16, 33, 512}[mode % 3];
        o.enable_prefix_caching = mode & 1;
        o.permute_blocks = mode & 2 ? 5 : 0;
        o.long_prefill_token_threshold = mode & 4 ? 13 : 0;
        o.max_num_seqs = mode & 8 ? 3 : 8;
        struct rig *g = open_rig(&o, 150);
        start(g);
        int32_t p[20][120];
        for (int i = 0; i < 20; i++) {
            make_prompt(p[i], 120, i / 4);
            submit(g, new_request(p[i], 20 + i * 5, 20));
        }
        receive(g, -1);
        for (int i = 0; i < 20; i++) {
            expect_greedy(g, i, p[i], 20 + i * 5, 20);
        }
        assert_true(atomic_load(&g->fake.max_rows_seen) <= o.max_num_batched_tokens);
        assert_true(atomic_load(&g->fake.max_seqs_seen) <= o.max_num_seqs);
        close_rig(g);
    }
}

static void a_second_run_hits_the_prefix_cache_and_says_the_same(void **state)
{
    (void)state;
    struct rig *g = quick_rig();
    int32_t p[100];
    make_prompt(p, 100, 1);
    submit(g, new_request(p, 100, 30));
    receive(g, -1);
    submit(g, new_request(p, 100, 30));
    receive(g, -1);
    expect_greedy(g, 0, p, 100, 30);
    expect_greedy(g, 1, p, 100, 30);
    assert_int_equal(g->r[0][0].n_cached, 0);
    assert_int_equal(g->r[1][0].n_cached, 96);
    struct engine_stats s = stats_of(g);
    assert_int_equal(s.prefix_queries, 200);
    assert_int_equal(s.prefix_hits, 96);
    assert_int_equal(s.prompt_tokens_cached, 96);
    assert_int_equal(s.prompt_tokens, 200);
    /* the answer is cached as well: a follow-up that continues it hits further */
    int32_t longer[130];
    memcpy(longer, p, sizeof p);
    memcpy(longer + 100, g->r[0][0].ids, 30 * sizeof(int32_t));
    submit(g, new_request(longer, 130, 5));
    receive(g, -1);
    assert_int_equal(g->r[2][0].n_cached, 128);
    assert_int_equal(engine_reset_prefix_cache(g->en, 0), 1);
    submit(g, new_request(p, 100, 3));
    receive(g, -1);
    assert_int_equal(g->r[3][0].n_cached, 0);
    close_rig(g);
}

static void a_reset_waits_for_no_one_when_it_may_preempt(void **state)
{
    (void)state;
    struct rig *g = quick_rig();
    g->fake.step_us = 1000;
    int32_t p[100];
    make_prompt(p, 100, 1);
    for (int i = 0; i < 3; i++) {
        submit(g, new_request(p, 100, 300));
    }
    receive(g, 20);
    assert_int_equal(engine_reset_prefix_cache(g->en, 0), 0);
    assert_int_equal(engine_reset_prefix_cache(g->en, 1), 1);
    receive(g, -1);
    for (int i = 0; i < 3; i++) {
        expect_greedy(g, i, p, 100, 300);
    }
    assert_true(stats_of(g).preemptions >= 3);
    close_rig(g);
}

static void a_salt_separates_prefixes(void **state)
{
    (void)state;
    struct rig *g = quick_rig();
    int32_t p[60];
    make_prompt(p, 60, 1);
    const char *salts[] = {"a", "b", "a", NULL};
    const int cached[] = {0, 0, 48, 0};
    for (int i = 0; i < 4; i++) {
        struct engine_request *r = new_request(p, 60, 5);
        r->cache_salt = salts[i];
        submit(g, r);
        receive(g, -1);
        expect_greedy(g, i, p, 60, 5);
        assert_int_equal(g->r[i][0].n_cached, cached[i]);
    }
    close_rig(g);
}

static void preempted_requests_finish_with_the_same_text(void **state)
{
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        struct engine_options o;
        fake_options(&o);
        o.max_model_len = 160;
        o.enable_prefix_caching = mode & 1;
        o.policy_priority = mode & 2;
        struct rig *g = open_rig(&o, 14);
        start(g);
        int32_t p[8][40];
        for (int i = 0; i < 8; i++) {
            make_prompt(p[i], 40, i);
            struct engine_request *r = new_request(p[i], 20 + i, 100);
            r->priority = i % 3;
            submit(g, r);
        }
        receive(g, -1);
        int preempted = 0;
        for (int i = 0; i < 8; i++) {
            expect_greedy(g, i, p[i], 20 + i, 100);
            preempted += g->r[i][0].n_preemptions;
        }
        assert_true(preempted > 0);
        assert_int_equal(stats_of(g).preemptions, preempted);
        close_rig(g);
    }
}

/* ---- sampling ---- */

static void same_seed_same_text_whatever_else_runs(void **state)
{
    (void)state;
    int32_t p[40], want[50];
    make_prompt(p, 40, 3);
    for (int mode = 0; mode < 4; mode++) {
        struct engine_options o;
        fake_options(&o);
        o.max_model_len = 160;
        o.seed = mode;
        o.max_num_batched_tokens = mode & 1 ? 17 : 256;
        struct rig *g = open_rig(&o, mode ? 12 : 100);
        start(g);
        for (int i = 0; i < (mode ? 6 : 0); i++) {
            int32_t other[30];
            make_prompt(other, 30, i + 10);
            submit(g, new_request(other, 30, 80));
        }
        struct engine_request *r = new_request(p, 40, 50);
        r->params.temperature = 1.0;
        r->params.top_p = 0.95;
        r->params.has_seed = 1;
        r->params.seed = 1234;
        r->params.frequency_penalty = 0.5;
        r->params.repetition_penalty = 1.2;
        int at = submit(g, r);
        receive(g, -1);
        assert_int_equal(g->r[at][0].n, 50);
        if (mode == 0) {
            memcpy(want, g->r[at][0].ids, sizeof want);
        } else {
            assert_memory_equal(g->r[at][0].ids, want, sizeof want);
            assert_true(stats_of(g).preemptions > 0);
        }
        close_rig(g);
    }
}

static void unseeded_requests_repeat_with_the_engine_seed(void **state)
{
    (void)state;
    int32_t p[20], texts[3][2][30];
    make_prompt(p, 20, 3);
    for (int run = 0; run < 3; run++) {
        struct engine_options o;
        fake_options(&o);
        o.seed = run == 2 ? 9 : 0;
        struct rig *g = open_rig(&o, 100);
        start(g);
        for (int i = 0; i < 2; i++) {
            struct engine_request *r = new_request(p, 20, 30);
            r->params.temperature = 2.0;
            submit(g, r);
        }
        receive(g, -1);
        for (int i = 0; i < 2; i++) {
            memcpy(texts[run][i], g->r[i][0].ids, sizeof texts[run][i]);
        }
        close_rig(g);
    }
    assert_memory_equal(texts[0], texts[1], sizeof texts[0]);
    assert_memory_not_equal(texts[0][0], texts[0][1], sizeof texts[0][0]);
    assert_memory_not_equal(texts[0][0], texts[2][0], sizeof texts[0][0]);
}

static void sample_i_equals_the_only_sample_of_seed_plus_i(void **state)
{
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        /* plenty of room; few places; few blocks (preemption); whole blocks in the prompt */
        struct engine_options o;
        fake_options(&o);
        o.max_model_len = 128;
        o.max_num_seqs = mode == 1 ? 2 : 8;
        struct rig *g = open_rig(&o, mode == 2 ? 9 : 100);
        start(g);
        int32_t p[48];
        int n = mode == 3 ? 48 : 37;
        make_prompt(p, n, 3);
        struct engine_request *r = new_request(p, n, 60);
        r->params.n = 5;
        r->params.temperature = 1.5;
        r->params.has_seed = 1;
        r->params.seed = 77;
        submit(g, r);
        receive(g, -1);
        if (mode == 2) {
            assert_true(stats_of(g).preemptions > 0);
        }
        struct engine_stats s = stats_of(g);
        assert_int_equal(s.prompt_tokens, 5 * n);
        assert_int_equal(s.params_n.count, 1);
        assert_true(s.params_n.sum == 5.0);
        assert_int_equal(s.finished[FINISH_LENGTH], 5);
        assert_int_equal(s.prefill_kv_computed.count, 5);
        assert_true(s.prefill_kv_computed.sum == (double)n);
        for (int i = 0; i < 5; i++) {
            struct engine_request *one = new_request(p, n, 60);
            one->params.temperature = 1.5;
            one->params.has_seed = 1;
            one->params.seed = 77 + i;
            int at = submit(g, one);
            receive(g, -1);
            assert_int_equal(g->r[0][i].n, 60);
            assert_memory_equal(g->r[0][i].ids, g->r[at][0].ids, 60 * sizeof(int32_t));
        }
        assert_memory_not_equal(g->r[0][0].ids, g->r[0][1].ids, 60 * sizeof(int32_t));
        close_rig(g);
    }
}

static void logprobs_come_with_every_token(void **state)
{
    (void)state;
    struct rig *g = quick_rig();
    int32_t p[20];
    make_prompt(p, 20, 1);
    struct engine_request *r = new_request(p, 20, 10);
    r->params.n_logprobs = 3;
    r->reply = g->mq;
    r->user = NULL;
    g->n_requests = 1;
    g->n_samples[0] = 1;
    assert_int_equal(engine_submit(g->en, r, NULL), 0);
    int n = 0;
    while (n < 10) {
        assert_int_equal(mq_wait(g->mq, 20000), 1);
        struct mq_node *node = mq_pop_all(g->mq);
        while (node) {
            struct engine_event *ev = (struct engine_event *)node;
            node = node->next;
            for (int i = 0; i < ev->n_tokens; i++, n++) {
                const struct token_output *t = &ev->tokens[i];
                assert_int_equal(t->n_top, 4);
                assert_int_equal(t->top[0].id, t->id); /* greedy: sampled = best */
                assert_int_equal(t->top[1].id, t->id);
                assert_int_equal(t->top[0].rank, 1);
                assert_true(t->top[0].logprob < 0 && t->top[1].logprob >= t->top[2].logprob &&
                            t->top[2].logprob >= t->top[3].logprob);
            }
            engine_event_free(ev);
        }
    }
    close_rig(g);
}

static void prompt_logprobs_cover_the_prompt_in_one_event_and_skip_the_cache(void **state)
{
    (void)state;
    for (int n = 1; n <= 90; n += 89) {
        struct rig *g = quick_rig();
        int32_t p[90];
        make_prompt(p, 90, 1);
        submit(g, new_request(p, n, 5));
        receive(g, -1);
        struct engine_request *r = new_request(p, n, 5);
        r->params.n_prompt_logprobs = 2;
        int at = submit(g, r);
        receive(g, -1);
        expect_greedy(g, at, p, n, 5);
        assert_int_equal(g->r[at][0].n_cached, 0);
        const struct engine_event *ev = g->prompt_event;
        assert_non_null(ev);
        assert_int_equal(ev->n_tokens, n);
        assert_int_equal(ev->tokens[0].n_top, 0);
        float *row = malloc(VOCAB * sizeof *row);
        struct sampler *s;
        assert_int_equal(sampler_open(&s, kernels_get(CPU_SCALAR), VOCAB, NULL), 0);
        uint64_t h = 1;
        for (int i = 1; i < n; i++) {
            struct token_logprob want[3];
            h = fake_mix(h, p[i - 1]);
            fake_row(&g->fake, h, row);
            assert_int_equal(sampler_logprobs(s, row, p[i], 2, want), 3);
            assert_int_equal(ev->tokens[i].id, p[i]);
            assert_int_equal(ev->tokens[i].n_top, 3);
            assert_memory_equal(ev->tokens[i].top, want, sizeof want);
        }
        sampler_close(s);
        free(row);
        close_rig(g);
    }
}

/* ---- ends ---- */

static void stop_tokens_and_eos_end_a_sample_as_told(void **state)
{
    (void)state;
    int32_t p[20], text[30];
    make_prompt(p, 20, 1);
    struct rig *g = quick_rig();
    submit(g, new_request(p, 20, 30));
    receive(g, -1);
    memcpy(text, g->r[0][0].ids, sizeof text);
    close_rig(g);
    int first = 5; /* the token at place 5, and where it comes first */
    for (int i = 0; i < 5; i++) {
        first = text[i] == text[5] && first == 5 ? i : first;
    }
    static const struct {
        int is_eos, is_stop, min_tokens, ignore_eos, max_is_there;
        enum finish_reason finish;
        int ends, names_id;
    } t[] = {
        {1, 0, 0, 0, 0, FINISH_STOP, 1, 0},   {0, 1, 0, 0, 0, FINISH_STOP, 1, 1},
        {1, 1, 0, 0, 0, FINISH_STOP, 1, 0},   {1, 1, 0, 1, 0, FINISH_STOP, 1, 1},
        {1, 0, 0, 1, 0, FINISH_LENGTH, 0, 0}, {1, 0, 0, 0, 1, FINISH_STOP, 1, 0},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        struct engine_options o;
        fake_options(&o);
        o.eos_id = t[i].is_eos ? text[5] : -1;
        g = open_rig(&o, 100);
        start(g);
        struct engine_request *r = new_request(p, 20, t[i].max_is_there ? first + 1 : 30);
        r->params.stop_token_ids = arena_memdup(&r->arena, &text[5], sizeof text[5]);
        r->params.n_stop_token_ids = t[i].is_stop;
        r->params.ignore_eos = t[i].ignore_eos;
        submit(g, r);
        receive(g, -1);
        assert_int_equal(g->r[0][0].finish, t[i].finish);
        assert_int_equal(g->r[0][0].n, t[i].ends ? first + 1 : 30);
        assert_int_equal(g->r[0][0].stop_id, t[i].names_id ? text[5] : -1);
        close_rig(g);
    }
}

static void min_tokens_keeps_stop_tokens_away(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    o.eos_id = 42;
    struct rig *g = open_rig(&o, 100);
    g->fake.eos_every = 1; /* wants EOS all the time */
    g->fake.eos_id = 42;
    start(g);
    int32_t p[20];
    make_prompt(p, 20, 1);
    struct engine_request *r = new_request(p, 20, 30);
    r->params.min_tokens = 8;
    submit(g, r);
    submit(g, new_request(p, 20, 30));
    receive(g, -1);
    assert_int_equal(g->r[0][0].n, 9);
    for (int i = 0; i < 8; i++) {
        assert_int_not_equal(g->r[0][0].ids[i], 42);
    }
    assert_int_equal(g->r[1][0].n, 1);
    assert_int_equal(g->r[1][0].finish, FINISH_STOP);
    close_rig(g);
}

static void a_failing_step_ends_its_requests_with_an_error_and_the_engine_goes_on(void **state)
{
    (void)state;
    struct rig *g = quick_rig();
    int32_t p[60];
    make_prompt(p, 60, 1);
    atomic_store(&g->fake.fail_at, 3);
    struct engine_request *r = new_request(p, 60, 200);
    r->params.n = 3;
    r->params.temperature = 1;
    submit(g, r);
    receive(g, -1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(g->r[0][i].finish, FINISH_ERROR);
        assert_string_equal(g->r[0][i].error, "the fake failed as told");
    }
    atomic_store(&g->fake.fail_at, 1); /* before anything is born */
    r = new_request(p, 50, 200);
    r->params.n = 3;
    r->params.temperature = 1;
    submit(g, r);
    receive(g, -1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(g->r[1][i].finish, FINISH_ERROR);
    }
    int at = submit(g, new_request(p, 60, 20));
    receive(g, -1);
    expect_greedy(g, at, p, 60, 20); /* the failed step left nothing in the prefix cache */
    assert_int_equal(stats_of(g).finished[FINISH_ERROR], 6);
    close_rig(g);
}

static void logits_that_are_no_numbers_end_a_request_with_an_error_and_no_token(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    struct rig *g = quick_rig();
    int32_t p[60];
    make_prompt(p, 60, 1);
    for (int i = 0; i < 6; i++) {
        g->fake.poison = values[i % 3];
        atomic_store(&g->fake.poison_at, i < 3 ? 3 : 1);
        struct engine_request *r = new_request(p, 40 + i, 200);
        const int n = 1 + i % 2;
        r->params.n = n;
        r->params.temperature = i % 2;
        r->params.seed = i;
        const int at = submit(g, r);
        receive(g, -1);
        for (int k = 0; k < n; k++) {
            assert_int_equal(g->r[at][k].finish, FINISH_ERROR);
            assert_int_equal(g->r[at][k].n, i < 3 ? 2 : 0);
            assert_non_null(strstr(g->r[at][k].error, "no numbers"));
        }
    }
    const int at = submit(g, new_request(p, 60, 20));
    receive(g, -1);
    expect_greedy(g, at, p, 60, 20);
    close_rig(g);
}

static void aborts_end_a_request_in_every_state(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    o.max_num_seqs = 1;
    o.max_model_len = 4096;
    o.max_num_batched_tokens = 16;
    struct rig *g = open_rig(&o, 300);
    g->fake.step_us = 500;
    start(g);
    int32_t p[2000];
    make_prompt(p, 2000, 1);
    int decoding = submit(g, new_request(p, 20, 4000));
    int waiting = submit(g, new_request(p, 20, 10));
    receive(g, 3);
    engine_abort(g->en, g->id[waiting], -1, 0);
    engine_abort(g->en, 999999, -1, 0); /* unknown: ignored */
    engine_abort(g->en, g->id[decoding], -1, 0);
    engine_abort(g->en, g->id[decoding], -1, 0); /* twice */
    receive(g, -1);
    assert_int_equal(g->r[waiting][0].finish, FINISH_ABORT);
    assert_int_equal(g->r[waiting][0].n, 0);
    assert_int_equal(g->r[decoding][0].finish, FINISH_ABORT);
    assert_true(g->r[decoding][0].n > 0);
    int prefilling = submit(g, new_request(p, 2000, 10));
    while (stats_of(g).kv_usage == 0.0) {
        usleep(200);
    }
    int steps_before = atomic_load(&g->fake.n_runs);
    engine_abort(g->en, g->id[prefilling], -1, 0);
    receive(g, -1);
    assert_int_equal(g->r[prefilling][0].finish, FINISH_ABORT);
    assert_true(atomic_load(&g->fake.n_runs) - steps_before <= 3);
    int stopped = submit(g, new_request(p, 20, 4000));
    receive(g, 2);
    engine_abort(g->en, g->id[stopped], 0, 1);
    receive(g, -1);
    assert_int_equal(g->r[stopped][0].finish, FINISH_STOP);
    struct engine_stats s = stats_of(g);
    assert_int_equal(s.finished[FINISH_ABORT], 3);
    assert_int_equal(s.finished[FINISH_STOP], 1);
    close_rig(g);
}

static double seconds_since(uint64_t start_ns)
{
    return (double)(clock_now_ns() - start_ns) * 1e-9;
}

static void wait_for_runs(struct rig *g, int n)
{
    while (atomic_load(&g->fake.n_runs) < n) {
        usleep(200);
    }
}

#define LONG_STEP_US 8000000

static void a_step_that_nobody_wants_any_more_ends_early_and_leaves_nothing(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    struct rig *g = open_rig(&o, 200);
    atomic_store(&g->fake.long_runs, 1);
    g->fake.step_us = LONG_STEP_US;
    start(g);
    int32_t p[60];
    make_prompt(p, 60, 1);
    int two[2] = {submit(g, new_request(p, 30, 5)), submit(g, new_request(p + 10, 30, 5))};
    wait_for_runs(g, 1);
    uint64_t before = clock_now_ns();
    engine_abort(g->en, g->id[two[0]], -1, 0);
    engine_abort(g->en, g->id[two[1]], -1, 0);
    int next = submit(g, new_request(p, 60, 20)); /* seen during the step, taken after it */
    receive(g, -1);
    assert_true(seconds_since(before) < LONG_STEP_US * 1e-6 / 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(g->r[two[i]][0].finish, FINISH_ABORT);
        assert_int_equal(g->r[two[i]][0].n, 0);
    }
    assert_int_equal(g->r[next][0].n_cached, 0); /* what the step had begun is no prefix */
    expect_greedy(g, next, p, 60, 20);
    close_rig(g);
}

static void a_step_with_one_request_left_goes_to_its_end(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    struct rig *g = open_rig(&o, 200);
    atomic_store(&g->fake.long_runs, 1);
    g->fake.step_us = 300000;
    start(g);
    int32_t p[60];
    make_prompt(p, 60, 1);
    int gone = submit(g, new_request(p, 30, 5));
    wait_for_runs(g, 1); /* alone, or both: either way the other one gets its text */
    int stays = submit(g, new_request(p + 10, 30, 12));
    engine_abort(g->en, g->id[gone], 0, 0); /* one sample, by its number */
    receive(g, -1);
    assert_int_equal(g->r[gone][0].finish, FINISH_ABORT);
    expect_greedy(g, stays, p + 10, 30, 12);
    close_rig(g);
}

static void closing_does_not_wait_for_a_long_step(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    struct rig *g = open_rig(&o, 200);
    atomic_store(&g->fake.long_runs, 1);
    g->fake.step_us = LONG_STEP_US;
    start(g);
    int32_t p[30];
    make_prompt(p, 30, 1);
    submit(g, new_request(p, 30, 5));
    wait_for_runs(g, 1);
    uint64_t before = clock_now_ns();
    engine_close(g->en);
    assert_true(seconds_since(before) < LONG_STEP_US * 1e-6 / 2);
    receive(g, -1);
    assert_int_equal(g->r[0][0].finish, FINISH_ABORT);
    mq_free(g->mq);
    free(g->r[0][0].ids);
    free(g->r[0][0].logprobs);
    fake_fini(&g->fake);
    free(g);
}

static void one_sample_of_several_can_be_aborted_at_any_time(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++) {
        for (int sample = 0; sample < 3; sample++) {
            struct engine_options o;
            fake_options(&o);
            o.max_num_batched_tokens = 16;
            struct rig *g = open_rig(&o, 300);
            g->fake.step_us = 300;
            start(g);
            int32_t p[200];
            make_prompt(p, 200, 1);
            struct engine_request *r = new_request(p, 200, 40);
            r->params.n = 3;
            r->params.temperature = 1.5;
            r->params.has_seed = 1;
            r->params.seed = 5;
            submit(g, r);
            if (early) {
                usleep(600); /* in the middle of the prefill */
            } else {
                receive(g, 6);
            }
            engine_abort(g->en, g->id[0], sample, 0);
            receive(g, -1);
            for (int i = 0; i < 3; i++) {
                assert_int_equal(g->r[0][i].finish, i == sample ? FINISH_ABORT : FINISH_LENGTH);
                if (i == sample) {
                    continue;
                }
                struct engine_request *one = new_request(p, 200, 40);
                one->params.temperature = 1.5;
                one->params.has_seed = 1;
                one->params.seed = 5 + i;
                int at = submit(g, one);
                receive(g, -1);
                assert_memory_equal(g->r[0][i].ids, g->r[at][0].ids, 40 * sizeof(int32_t));
            }
            if (early) {
                assert_int_equal(g->r[0][sample].n, 0);
            }
            close_rig(g);
        }
    }
}

static void closing_ends_everything_with_one_last_event_each(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    o.max_num_seqs = 3;
    struct rig *g = open_rig(&o, 300);
    g->fake.step_us = 200;
    start(g);
    int32_t p[100];
    make_prompt(p, 100, 1);
    for (int i = 0; i < 6; i++) {
        struct engine_request *r = new_request(p, 100, 400);
        r->params.n = i == 2 ? 3 : 1;
        r->params.temperature = 1;
        submit(g, r);
    }
    receive(g, 5);
    engine_close(g->en);
    receive(g, -1);
    for (int i = 0; i < 6; i++) {
        for (int k = 0; k < g->n_samples[i]; k++) {
            assert_int_equal(g->r[i][k].finish, FINISH_ABORT);
            assert_int_equal(g->r[i][k].n_finals, 1);
        }
    }
    if (engine_open_runner(&g->en, &g->fake.ops, &g->fake, &g->o, NULL) <
        0) { /* for close_rig's checks */
        fail();
    }
    close_rig(g);
}

static void draining_refuses_new_requests_and_finishes_the_others(void **state)
{
    (void)state;
    struct rig *g = quick_rig();
    int32_t p[20];
    make_prompt(p, 20, 1);
    submit(g, new_request(p, 20, 100));
    engine_drain(g->en);
    struct err e = {0};
    struct engine_request *r = new_request(p, 20, 5);
    r->reply = g->mq;
    assert_int_equal(engine_submit(g->en, r, &e), ERR_CANCELED);
    engine_request_free(r);
    receive(g, -1);
    expect_greedy(g, 0, p, 20, 100);
    close_rig(g);
}

static void impossible_requests_are_refused_and_stay_the_callers(void **state)
{
    (void)state;
    struct rig *g = quick_rig();
    int32_t p[600] = {0};
    struct err e = {0};
    struct engine_request *r = new_request(p, 512, 5);
    r->reply = g->mq;
    assert_int_equal(engine_submit(g->en, r, &e), ERR_TOO_LARGE);
    assert_non_null(strstr(e.text, "512"));
    r->n_prompt = 0;
    assert_int_equal(engine_submit(g->en, r, &e), ERR_INVALID);
    r->n_prompt = 3;
    ((int32_t *)r->prompt)[1] = VOCAB;
    assert_int_equal(engine_submit(g->en, r, &e), ERR_INVALID);
    assert_string_equal(e.text, "Token id 97 is out of vocabulary");
    ((int32_t *)r->prompt)[1] = 3;
    r->params.top_p = 0;
    assert_int_equal(engine_submit(g->en, r, &e), ERR_INVALID);
    engine_request_free(r);
    close_rig(g);
}

/* ---- many ---- */

static void hundreds_of_random_requests_in_a_small_pool_leave_nothing_behind(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++) {
        struct engine_options o;
        fake_options(&o);
        o.max_model_len = 200;
        o.max_num_seqs = 6;
        o.max_num_batched_tokens = 48;
        o.eos_id = 7;
        o.policy_priority = round;
        o.permute_blocks = 3;
        struct rig *g = open_rig(&o, 20);
        g->fake.eos_every = 60;
        g->fake.eos_id = 7;
        start(g);
        unsigned rnd = 99 + (unsigned)round;
        for (int i = 0; i < 200; i++) {
            int32_t p[120];
            rnd = rnd * 1664525u + 1013904223u;
            int n = 1 + (int)((rnd >> 8) % 120);
            make_prompt(p, n, (int)((rnd >> 16) % 5));
            struct engine_request *r = new_request(p, n, 1 + (int)((rnd >> 20) % 80));
            r->priority = (int)((rnd >> 12) % 4);
            if ((rnd >> 24) % 3 == 0) {
                r->params.temperature = 1;
                r->params.n = 1 + (int)((rnd >> 26) % 4);
            }
            r->params.n_prompt_logprobs = -1;
            int at = submit(g, r);
            if ((rnd >> 10) % 4 == 0) {
                int whom = (int)((rnd >> 14) % (unsigned)(at + 1));
                engine_abort(g->en, g->id[whom], (rnd >> 9) % 2 ? -1 : (int)((rnd >> 11) % 3), 0);
            }
            if (i % 16 == 0) {
                receive(g, 10);
            }
        }
        receive(g, -1);
        struct engine_stats s = stats_of(g);
        assert_true(s.preemptions > 0);
        assert_true(s.prefix_hits > 0);
        assert_true(s.evictions > 0);
        assert_true(s.finished[FINISH_ABORT] > 0 && s.finished[FINISH_STOP] > 0 &&
                    s.finished[FINISH_LENGTH] > 0);
        close_rig(g);
    }
}

static void statistics_follow_the_definitions_of_vllm(void **state)
{
    (void)state;
    struct rig *g = quick_rig();
    int32_t p[30];
    make_prompt(p, 30, 1);
    for (int i = 0; i < 10; i++) {
        submit(g, new_request(p, 30, 10));
        receive(g, -1);
    }
    struct engine_stats s = stats_of(g);
    assert_int_equal(s.prompt_tokens, 300);
    assert_int_equal(s.generation_tokens, 100);
    assert_int_equal(s.ttft.count, 10);
    assert_int_equal(s.itl.count, 90);
    assert_int_equal(s.tpot.count, 10);
    assert_int_equal(s.queue.count, 10);
    assert_int_equal(s.prefill.count, 10);
    assert_int_equal(s.decode.count, 10);
    assert_int_equal(s.inference.count, 10);
    assert_int_equal(s.e2e.count, 10);
    assert_true(s.params_max_tokens.sum == 100.0);
    assert_true(s.step_tokens.sum == 10.0 * (30 + 10));
    assert_int_equal(s.step_tokens.count, 100);
    assert_int_equal(s.steps, 100);
    assert_int_equal(s.finished[FINISH_LENGTH], 10);
    assert_int_equal(s.n_blocks, 201);
    assert_int_equal(s.block_tokens, 16);
    int n;
    const double *bounds = engine_hist_bounds("prompt_len", 512, &n);
    assert_true(n == 9 && bounds[0] == 1 && bounds[8] == 500);
    assert_int_equal(engine_max_concurrency_x100(g->en), 200 * 100 / 32);
    close_rig(g);
}

static void a_kv_cache_too_small_for_one_request_is_refused_with_numbers(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    o.max_model_len = 131072;
    o.kv_cache_bytes = (uint64_t)1 << 30;
    int n = 0;
    struct err e = {0};
    assert_int_equal(engine_plan_blocks(&o, 294912, &n, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "max length 131072"));
    assert_non_null(strstr(e.text, "2.25 GiB"));
    assert_non_null(strstr(e.text, "1.00 GiB"));
    assert_non_null(strstr(e.text, "estimated maximum length: 58240"));
    assert_non_null(strstr(e.text, "gpu_memory_utilization"));
    o.max_model_len = 58240;
    assert_int_equal(engine_plan_blocks(&o, 294912, &n, &e), 0);
    assert_int_equal(n, 3640 + 1);
    o.n_blocks_override = 3640;
    assert_int_equal(engine_plan_blocks(&o, 294912, &n, &e), ERR_INVALID);
    o.n_blocks_override = 3641;
    assert_int_equal(engine_plan_blocks(&o, 294912, &n, &e), 0);
    assert_int_equal(n, 3641);
    assert_true(engine_kv_bytes_default(1000, 800, 0.5, 100, 50) == 250);
    assert_true(engine_kv_bytes_default(1000, 0, 0.5, 100, 50) == 350);
    assert_true(engine_kv_bytes_default(1000, 800, 0.5, 400, 50) == 0);
}

static void the_engine_shows_that_it_lives_when_idle(void **state)
{
    (void)state;
    struct rig *g = quick_rig();
    uint64_t first = stats_of(g).last_step_ns;
    usleep(1200000);
    assert_true(stats_of(g).last_step_ns > first);
    close_rig(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_gets_the_greedy_text_and_length_as_reason),
        cmocka_unit_test(the_context_ends_a_text_at_max_model_len),
        cmocka_unit_test(text_does_not_depend_on_budget_batch_cache_or_block_order),
        cmocka_unit_test(a_second_run_hits_the_prefix_cache_and_says_the_same),
        cmocka_unit_test(a_reset_waits_for_no_one_when_it_may_preempt),
        cmocka_unit_test(a_salt_separates_prefixes),
        cmocka_unit_test(preempted_requests_finish_with_the_same_text),
        cmocka_unit_test(same_seed_same_text_whatever_else_runs),
        cmocka_unit_test(unseeded_requests_repeat_with_the_engine_seed),
        cmocka_unit_test(sample_i_equals_the_only_sample_of_seed_plus_i),
        cmocka_unit_test(logprobs_come_with_every_token),
        cmocka_unit_test(prompt_logprobs_cover_the_prompt_in_one_event_and_skip_the_cache),
        cmocka_unit_test(stop_tokens_and_eos_end_a_sample_as_told),
        cmocka_unit_test(min_tokens_keeps_stop_tokens_away),
        cmocka_unit_test(a_failing_step_ends_its_requests_with_an_error_and_the_engine_goes_on),
        cmocka_unit_test(logits_that_are_no_numbers_end_a_request_with_an_error_and_no_token),
        cmocka_unit_test(aborts_end_a_request_in_every_state),
        cmocka_unit_test(a_step_that_nobody_wants_any_more_ends_early_and_leaves_nothing),
        cmocka_unit_test(a_step_with_one_request_left_goes_to_its_end),
        cmocka_unit_test(closing_does_not_wait_for_a_long_step),
        cmocka_unit_test(one_sample_of_several_can_be_aborted_at_any_time),
        cmocka_unit_test(closing_ends_everything_with_one_last_event_each),
        cmocka_unit_test(draining_refuses_new_requests_and_finishes_the_others),
        cmocka_unit_test(impossible_requests_are_refused_and_stay_the_callers),
        cmocka_unit_test(hundreds_of_random_requests_in_a_small_pool_leave_nothing_behind),
        cmocka_unit_test(statistics_follow_the_definitions_of_vllm),
        cmocka_unit_test(a_kv_cache_too_small_for_one_request_is_refused_with_numbers),
        cmocka_unit_test(the_engine_shows_that_it_lives_when_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
