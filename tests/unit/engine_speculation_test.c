/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts by prompt lookup: what is proposed (the cases follow the definition in
 * ngram.h), and that a text with speculation is the text without, whatever
 * else a request asks for. */
#include "engine/ngram.h"
#include "engine_rig.h"

/* ---- proposals ---- */

static void expect_draft(const int32_t *text, int n, int min, int max, int k, const int32_t *want,
                         int n_want)
{
    int32_t draft[16];
    for (int cut = 0; cut <= n; cut++) { /* wherever the prompt ends */
        int got = ngram_propose(text, cut, text + cut, n - cut, min, max, draft, k);
        assert_int_equal(got, n_want);
        assert_memory_equal(draft, want, (size_t)n_want * sizeof *draft);
    }
}

#define TEXT(...) ((const int32_t[]){__VA_ARGS__}), (int)(sizeof((int32_t[]){__VA_ARGS__}) / 4)

static void nothing_is_proposed_when_no_suffix_occurs_twice(void **state)
{
    (void)state;
    expect_draft(TEXT(1, 2, 3, 4, 5), 2, 2, 2, (int32_t[1]){0}, 0);
    expect_draft(TEXT(1, 2, 3, 9, 3), 2, 3, 2, (int32_t[1]){0},
                 0); /* one token agrees, two are needed */
    expect_draft(TEXT(7), 1, 1, 4, (int32_t[1]){0}, 0);
}

static void what_followed_the_suffix_is_proposed_up_to_k(void **state)
{
    (void)state;
    expect_draft(TEXT(1, 2, 3, 4, 1, 2, 3), 2, 2, 2, TEXT(4, 1));
    expect_draft(TEXT(1, 2, 3, 4, 1, 2, 3), 3, 3, 1, TEXT(4));
    expect_draft(TEXT(1, 2, 3, 4, 1, 2, 3), 2, 2, 9, TEXT(4, 1, 2, 3)); /* the text ends there */
}

static void the_longest_suffix_wins_then_the_earliest_place(void **state)
{
    (void)state;
    expect_draft(TEXT(2, 3, 50, 1, 2, 3, 60, 1, 2, 3), 1, 3, 1, TEXT(60));
    expect_draft(TEXT(2, 3, 50, 1, 2, 3, 60, 2, 3), 1, 2, 1, TEXT(50));
    expect_draft(TEXT(1, 2, 3, 60, 1, 2, 3, 70, 1, 2, 3), 1, 8, 1, TEXT(60));
}

static void a_place_may_overlap_the_suffix(void **state)
{
    (void)state;
    expect_draft(TEXT(5, 5, 5, 5), 2, 2, 3, TEXT(5, 5));
    expect_draft(TEXT(1, 2, 1, 2, 1), 3, 3, 4, TEXT(2, 1));
}

/* ---- the same text ---- */

#define N_REQUESTS 60

struct trial {
    int n_draft, min, max, max_seqs; /* 0: none */
    int n_blocks, budget, max_num_seqs;
};

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void add_stops(struct engine_request *r, unsigned *rnd)
{
    int32_t ids[3];
    for (int i = 0; i < 3; i++) {
        ids[i] = (int32_t)(next_random(rnd) % VOCAB);
    }
    r->params.stop_token_ids = arena_memdup(&r->arena, ids, sizeof ids);
    r->params.n_stop_token_ids = 3;
    r->params.min_tokens = (int)(next_random(rnd) % 8);
    if (r->params.min_tokens > r->params.max_tokens) {
        r->params.min_tokens = r->params.max_tokens;
    }
}

/* Request i: what it asks for depends on i alone. */
static struct engine_request *random_request(int i)
{
    unsigned rnd = 77u + (unsigned)i * 7919u;
    int32_t p[150];
    int n = 1 + (int)(next_random(&rnd) % 150);
    make_prompt(p, n, i % 7);
    struct engine_request *r = new_request(p, n, 1 + (int)(next_random(&rnd) % 120));
    if (next_random(&rnd) % 2) {
        r->params.temperature = 0.15;
        r->params.has_seed = 1;
        r->params.seed = i;
        r->params.top_k = (int)(next_random(&rnd) % 3) * 4;
    }
    r->params.n = next_random(&rnd) % 4 || r->params.temperature == 0 ? 1 : 3;
    if (next_random(&rnd) % 3 == 0) {
        r->params.repetition_penalty = 1.05;
        r->params.frequency_penalty = 0.02;
    }
    if (next_random(&rnd) % 3 == 0) {
        add_stops(r, &rnd);
    }
    if (next_random(&rnd) % 4 == 0) {
        r->params.repetition = (struct repetition_rule){6, 1, 4};
    }
    r->params.n_logprobs = next_random(&rnd) % 2 ? 2 : -1;
    return r;
}

static struct rig *run_trial(const struct trial *t)
{
    struct engine_options o;
    fake_options(&o);
    o.max_model_len = 256;
    o.max_num_seqs = t->max_num_seqs;
    o.max_num_batched_tokens = t->budget;
    o.eos_id = 3;
    o.permute_blocks = 1;
    o.speculation = (struct speculation){t->n_draft, t->min, t->max, t->max_seqs};
    struct rig *g = open_rig(&o, t->n_blocks);
    g->fake.window = 1;
    start(g);
    for (int i = 0; i < N_REQUESTS; i++) {
        submit(g, random_request(i));
    }
    receive(g, -1);
    return g;
}

static void expect_equal(const struct rig *a, const struct rig *b)
{
    for (int i = 0; i < N_REQUESTS; i++) {
        for (int k = 0; k < a->n_samples[i]; k++) {
            const struct result *x = &a->r[i][k], *y = &b->r[i][k];
            assert_int_equal(x->n, y->n);
            assert_int_equal(x->finish, y->finish);
            assert_int_equal(x->stop_id, y->stop_id);
            assert_memory_equal(x->ids, y->ids, (size_t)x->n * sizeof *x->ids);
            assert_memory_equal(x->logprobs, y->logprobs, (size_t)x->n * sizeof *x->logprobs);
        }
    }
}

static void speculation_changes_no_token_logprob_or_end(void **state)
{
    (void)state;
    static const struct trial trials[] = {
        {4, 1, 3, 100, 400, 64, 8}, {1, 1, 1, 100, 400, 64, 8}, {16, 1, 5, 100, 400, 64, 8},
        {5, 2, 2, 100, 400, 64, 1}, {4, 1, 3, 2, 400, 64, 8}, /* for few sequences only */
        {8, 1, 3, 100, 400, 10, 8},                           /* hardly any room in the budget */
        {4, 1, 3, 100, 24, 64, 8},                            /* preemptions */
    };
    struct rig *plain = run_trial(&(struct trial){0, 0, 0, 0, 400, 64, 8});
    struct engine_stats without = stats_of(plain);
    assert_int_equal(without.speculation.drafts, 0);
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        struct rig *g = run_trial(&trials[i]);
        struct engine_stats s = stats_of(g);
        expect_equal(plain, g);
        assert_true(s.speculation.drafts > 0 && s.speculation.accepted > 0);
        assert_true(s.speculation.accepted < s.speculation.tokens);
        uint64_t sum = 0;
        for (int k = 0; k < ENGINE_MAX_DRAFT; k++) {
            assert_true(k < trials[i].n_draft || s.speculation.accepted_at[k] == 0);
            assert_true(k == 0 || s.speculation.accepted_at[k] <= s.speculation.accepted_at[k - 1]);
            sum += s.speculation.accepted_at[k];
        }
        assert_true(sum == s.speculation.accepted);
        close_rig(g);
    }
    close_rig(plain);
}

static void accepted_drafts_save_steps(void **state)
{
    (void)state;
    uint64_t steps[2];
    for (int on = 0; on < 2; on++) {
        struct engine_options o;
        fake_options(&o);
        o.speculation = (struct speculation){on ? 4 : 0, 2, 4, 8};
        struct rig *g = open_rig(&o, 100);
        int32_t p[20];
        g->fake.window = 1;
        start(g);
        make_prompt(p, 20, 1);
        submit(g, new_request(p, 20, 400));
        receive(g, -1);
        struct engine_stats s = stats_of(g);
        steps[on] = s.steps;
        /* every step yields a token of its own beside those accepted */
        assert_int_equal(g->r[0][0].n, 400);
        assert_true(s.steps + s.speculation.accepted == 400);
        close_rig(g);
    }
    assert_true(steps[1] * 2 < steps[0]);
}

static void blocks_of_accepted_tokens_serve_as_prefix(void **state)
{
    (void)state;
    struct engine_options o;
    fake_options(&o);
    o.speculation = (struct speculation){8, 1, 3, 8};
    struct rig *g = open_rig(&o, 100);
    int32_t p[300];
    g->fake.window = 1;
    start(g);
    make_prompt(p, 40, 1);
    submit(g, new_request(p, 40, 200));
    receive(g, -1);
    memcpy(p + 40, g->r[0][0].ids, 200 * sizeof *p);
    submit(g, new_request(p, 240, 60)); /* goes on where the first ended */
    submit(g, new_request(p, 40, 260));
    receive(g, -1);
    assert_true(g->r[1][0].n_cached >= 224);
    assert_memory_equal(g->r[1][0].ids, g->r[2][0].ids + 200, 60 * sizeof *p);
    assert_memory_equal(g->r[0][0].ids, g->r[2][0].ids, 200 * sizeof *p);
    close_rig(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_proposed_when_no_suffix_occurs_twice),
        cmocka_unit_test(what_followed_the_suffix_is_proposed_up_to_k),
        cmocka_unit_test(the_longest_suffix_wins_then_the_earliest_place),
        cmocka_unit_test(a_place_may_overlap_the_suffix),
        cmocka_unit_test(speculation_changes_no_token_logprob_or_end),
        cmocka_unit_test(accepted_drafts_save_steps),
        cmocka_unit_test(blocks_of_accepted_tokens_serve_as_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
