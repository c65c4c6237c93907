/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler against a brute-force oracle written from the rules (full sort, double precision,
 * libm), and against exact probabilities by chi-square. */
#include "engine/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VOCAB 1000

static uint32_t rand_state = 1;
static uint32_t next_rand(void)
{
    rand_state = rand_state * 1664525u + 1013904223u;
    return rand_state >> 8;
}
static float rand_float(float lo, float hi)
{
    return lo + (hi - lo) * (float)next_rand() / 16777216.0f;
}

static struct sampler *open_sampler(int vocab)
{
    struct sampler *s;
    assert_int_equal(sampler_open(&s, kernels_get(CPU_SCALAR), vocab, NULL), 0);
    return s;
}

/* ---- the oracle ---- */

struct entry {
    int id;
    double y, p;
};
static int by_y(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->y != y->y ? (x->y < y->y ? 1 : -1) : x->id - y->id;
}

static void modify(float *y, const float *logits, int n, const struct sampler_row *r)
{
    const struct sampling_params *p = r->params;
    for (int i = 0; i < n; i++) {
        int allowed = p->n_allowed_token_ids == 0;
        for (int j = 0; j < p->n_allowed_token_ids; j++) {
            allowed |= p->allowed_token_ids[j] == i;
        }
        y[i] = allowed ? logits[i] : -INFINITY;
    }
    for (int i = 0; i < p->n_bad_words; i++) {
        int before = p->bad_words[i].n - 1, matches = before <= r->n_out;
        for (int j = 0; j < before && matches; j++) {
            matches = r->out[r->n_out - before + j] == p->bad_words[i].ids[j];
        }
        if (matches) {
            y[p->bad_words[i].ids[before]] = -INFINITY;
        }
    }
    if (r->n_out < p->min_tokens) {
        if (r->eos_id >= 0) {
            y[r->eos_id] = -INFINITY;
        }
        for (int i = 0; i < p->n_stop_token_ids; i++) {
            y[p->stop_token_ids[i]] = -INFINITY;
        }
    }
    for (int i = 0; i < p->n_logit_bias; i++) {
        y[p->logit_bias[i].id] += p->logit_bias[i].bias;
    }
    for (int i = 0; i < n; i++) {
        int in_prompt = 0, in_out = 0;
        for (int j = 0; j < r->n_prompt; j++) {
            in_prompt |= r->prompt[j] == i;
        }
        for (int j = 0; j < r->n_out; j++) {
            in_out += r->out[j] == i;
        }
        if (in_prompt || in_out) {
            y[i] = y[i] > 0 ? y[i] / (float)p->repetition_penalty
                            : y[i] * (float)p->repetition_penalty;
        }
        y[i] -= (float)p->frequency_penalty * (float)in_out;
        y[i] -= in_out ? (float)p->presence_penalty : 0.0f;
    }
}

/* Exact probability of every id (0: can't be drawn). */
static void oracle(const float *logits, int n, const struct sampler_row *r, double *prob)
{
    const struct sampling_params *p = r->params;
    float *y = malloc((size_t)n * sizeof *y);
    struct entry *e = malloc((size_t)n * sizeof *e);
    modify(y, logits, n, r);
    double max = -INFINITY;
    for (int i = 0; i < n; i++) {
        e[i].id = i;
        e[i].y = (double)(y[i] / (float)p->temperature);
        max = fmax(max, e[i].y);
    }
    qsort(e, (size_t)n, sizeof *e, by_y);
    int keep = n;
    for (int i = 0; i < n; i++) {
        e[i].p = exp(e[i].y - max);
        if (e[i].p < p->min_p && keep > i) {
            keep = i;
        }
    }
    if (p->top_k > 0 && p->top_k < keep) {
        int k = p->top_k;
        while (k < keep && e[k].y == e[p->top_k - 1].y) {
            k++;
        }
        keep = k;
    }
    double total = 0, before = 0;
    for (int i = 0; i < keep; i++) {
        total += e[i].p;
    }
    for (int i = 0; i < keep; i++) {
        if (i > 0 && before >= p->top_p * total && p->top_p < 1.0) {
            keep = i;
        } else {
            before += e[i].p;
        }
    }
    for (int i = 0; i < n; i++) {
        prob[i] = 0;
    }
    for (int i = 0; i < keep; i++) {
        prob[e[i].id] = e[i].p / before;
    }
    free(y);
    free(e);
}

/* Draws many times and compares counts with the oracle. */
static void check_distribution(const float *logits, int n, const struct sampling_params *p,
                               int n_draws)
{
    struct sampler *s = open_sampler(n);
    struct sampler_row r = {.logits = logits, .params = p, .eos_id = -1};
    double *prob = malloc((size_t)n * sizeof *prob);
    int *count = calloc((size_t)n, sizeof *count);
    oracle(logits, n, &r, prob);
    for (int i = 0; i < n_draws; i++) {
        r.seed = (uint64_t)i;
        int32_t id = sampler_draw(s, &r);
        assert_true(id >= 0 && id < n);
        count[id]++;
    }
    double chi = 0, rest_p = 0;
    int rest = 0, freedom = -1;
    for (int i = 0; i < n; i++) {
        if (prob[i] == 0) {
            assert_int_equal(count[i], 0);
        } else if (prob[i] * n_draws < 8) {
            rest_p += prob[i];
            rest += count[i];
        } else {
            double want = prob[i] * n_draws;
            chi += (count[i] - want) * (count[i] - want) / want;
            freedom++;
        }
    }
    if (rest_p * n_draws >= 8) {
        chi += (rest - rest_p * n_draws) * (rest - rest_p * n_draws) / (rest_p * n_draws);
        freedom++;
    }
    if (freedom > 0) {
        double limit = freedom + 4.0 * sqrt(2.0 * freedom) + 8.0;
        if (chi > limit) {
            fail_msg("chi-square %.1f with %d degrees of freedom", chi, freedom);
        }
    }
    free(prob);
    free(count);
    sampler_close(s);
}

/* ---- tests ---- */

static void greedy_takes_the_lowest_id_among_equal_maxima(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    float x[VOCAB] = {0};
    x[300] = x[299] = x[700] = 2.5f;
    struct sampling_params p;
    sampling_params_init(&p);
    p.temperature = 0;
    struct sampler_row r = {.logits = x, .params = &p, .eos_id = -1};
    assert_int_equal(sampler_draw(s, &r), 299);
    x[5] = NAN;
    assert_int_equal(sampler_draw(s, &r), 299);
    sampler_close(s);
}

static void draws_have_the_probabilities_of_the_softmax(void **state)
{
    (void)state;
    float x[VOCAB];
    struct sampling_params p;
    sampling_params_init(&p);
    for (int i = 0; i < VOCAB; i++) {
        x[i] = rand_float(-2, 4);
    }
    p.temperature = 0.8;
    check_distribution(x, VOCAB, &p, 60000);
    p.temperature = 2.0;
    check_distribution(x, VOCAB, &p, 60000);
}

static void filters_leave_exactly_the_entries_of_a_full_sort(void **state)
{
    (void)state;
    static const struct {
        double temperature, top_p, min_p;
        int top_k;
    } t[] = {{1.0, 0.8, 0, 0},  {1.0, 0.5, 0, 0},     {0.7, 1.0, 0, 1},    {0.7, 1.0, 0, 7},
             {1.3, 0.9, 0, 40}, {1.0, 1.0, 0.2, 0},   {1.5, 0.7, 0.05, 0}, {1.0, 0.95, 0.01, 100},
             {1.0, 0.01, 0, 0}, {1.0, 0.999, 0, 999}, {0.3, 0.8, 0, 900},  {0.01, 0.9, 0, 0}};
    float x[VOCAB];
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        struct sampling_params p;
        sampling_params_init(&p);
        p.temperature = t[i].temperature;
        p.top_p = t[i].top_p;
        p.min_p = t[i].min_p;
        p.top_k = t[i].top_k;
        for (int j = 0; j < VOCAB; j++) {
            x[j] = rand_float(-3, 3) + (j % 100 == 3 ? 3.0f : 0.0f);
        }
        check_distribution(x, VOCAB, &p, 20000);
        for (int j = 0; j < VOCAB; j++) {
            x[j] = roundf(x[j] * 2) / 2; /* many ties */
        }
        check_distribution(x, VOCAB, &p, 20000);
    }
}

static void top_k_keeps_all_entries_equal_to_the_kth(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    float x[VOCAB] = {0};
    int seen[3] = {0};
    x[10] = x[500] = x[900] = 5;
    struct sampling_params p;
    sampling_params_init(&p);
    p.top_k = 2;
    for (int i = 0; i < 300; i++) {
        struct sampler_row r = {.logits = x, .params = &p, .eos_id = -1, .seed = (uint64_t)i};
        int32_t id = sampler_draw(s, &r);
        assert_true(id == 10 || id == 500 || id == 900);
        seen[id == 10 ? 0 : id == 500 ? 1 : 2]++;
    }
    assert_true(seen[0] > 50 && seen[1] > 50 && seen[2] > 50);
    sampler_close(s);
}

static void a_draw_depends_on_seed_and_place_only(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB), *other = open_sampler(VOCAB);
    float x[VOCAB], z[VOCAB];
    int32_t out[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int differs = 0;
    struct sampling_params p;
    sampling_params_init(&p);
    for (int i = 0; i < VOCAB; i++) {
        x[i] = rand_float(0, 3);
        z[i] = rand_float(0, 3);
    }
    for (int i = 0; i < 50; i++) {
        struct sampler_row r = {x, &p, NULL, out, 0, i % 8, -1, 0, (uint64_t)(i / 8), NULL},
                           noise = r;
        noise.logits = z;
        int32_t a = sampler_draw(s, &r);
        sampler_draw(other, &noise);
        assert_int_equal(sampler_draw(other, &r), a);
        r.seed += 1000;
        differs += sampler_draw(s, &r) != a;
    }
    assert_true(differs > 40);
    sampler_close(s);
    sampler_close(other);
}

static void masks_biases_and_penalties_equal_the_brute_force(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(200);
    for (int round = 0; round < 3000; round++) {
        float x[200], y[200];
        int32_t prompt[40], out[40], allowed[60], stops[3];
        struct token_bias bias[3];
        struct token_seq words[2];
        struct sampling_params p;
        sampling_params_init(&p);
        p.temperature = 0;
        for (int i = 0; i < 200; i++) {
            x[i] = rand_float(-4, 4);
        }
        for (int i = 0; i < 40; i++) {
            prompt[i] = (int32_t)(next_rand() % 200);
            out[i] = (int32_t)(next_rand() % (i % 2 ? 200 : 6));
        }
        struct sampler_row r = {
            x, &p, prompt, out, (int)(next_rand() % 40), (int)(next_rand() % 40), 17, 0, 0, NULL};
        if (next_rand() % 2) {
            p.repetition_penalty = (double)rand_float(0.5f, 2);
            p.frequency_penalty = (double)rand_float(-2, 2);
            p.presence_penalty = (double)rand_float(-2, 2);
        }
        if (next_rand() % 3 == 0) {
            for (int i = 0; i < 60; i++) {
                allowed[i] = (int32_t)(next_rand() % 200);
            }
            p.allowed_token_ids = allowed;
            p.n_allowed_token_ids = 60;
        }
        if (next_rand() % 2) {
            for (int i = 0; i < 3; i++) {
                bias[i] = (struct token_bias){(int32_t)(next_rand() % 200), rand_float(-6, 6)};
                stops[i] = (int32_t)(next_rand() % 200);
            }
            p.logit_bias = bias;
            p.n_logit_bias = 3;
            p.stop_token_ids = stops;
            p.n_stop_token_ids = 3;
            p.min_tokens = (int)(next_rand() % 40);
        }
        int32_t pair[2] = {r.n_out ? out[r.n_out - 1] : 3, 0};
        modify(y, x, 200, &r);
        int best = 0;
        for (int i = 1; i < 200; i++) {
            best = y[i] > y[best] ? i : best;
        }
        assert_int_equal(sampler_draw(s, &r), best);
        /* forbid that one, as a single token and as the end of a pair */
        pair[1] = best;
        words[0] = (struct token_seq){pair, 2};
        words[1] = (struct token_seq){&pair[1], 1};
        p.bad_words = words;
        p.n_bad_words = next_rand() % 2 && r.n_out > 0 ? 1 : 2;
        modify(y, x, 200, &r);
        int second = 0;
        for (int i = 1; i < 200; i++) {
            second = y[i] > y[second] ? i : second;
        }
        assert_int_not_equal(second, best);
        assert_int_equal(sampler_draw(s, &r), second);
    }
    sampler_close(s);
}

static void logprobs_are_those_of_the_raw_logits_with_worst_ranks(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    float x[VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        x[i] = roundf(rand_float(-8, 8) * 8) / 8;
    }
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) {
        sum += exp((double)x[i]);
    }
    for (int k = 0; k <= 200; k += k < 20 ? 1 : 45) {
        struct token_logprob top[256];
        int32_t id = (int32_t)(next_rand() % VOCAB);
        assert_int_equal(sampler_logprobs(s, x, id, k, top), k + 1);
        assert_int_equal(top[0].id, id);
        for (int i = 0; i <= k; i++) {
            int rank = 0;
            for (int j = 0; j < VOCAB; j++) {
                rank += x[j] >= x[top[i].id];
            }
            assert_int_equal(top[i].rank, rank);
            assert_true(fabs((double)top[i].logprob - ((double)x[top[i].id] - log(sum))) < 2e-6);
            if (i > 1) {
                assert_true(x[top[i - 1].id] > x[top[i].id] ||
                            (x[top[i - 1].id] == x[top[i].id] && top[i - 1].id < top[i].id));
            }
        }
        if (k > 0) {
            int best = 0;
            for (int j = 1; j < VOCAB; j++) {
                best = x[j] > x[best] ? j : best;
            }
            assert_int_equal(top[1].id, best);
        }
    }
    sampler_close(s);
}

static void forbidden_entries_have_minus_infinity(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(20);
    float x[20];
    for (int i = 0; i < 20; i++) {
        x[i] = -INFINITY;
    }
    x[3] = 1;
    struct token_logprob top[3];
    assert_int_equal(sampler_logprobs(s, x, 5, 2, top), 3);
    assert_true(isinf(top[0].logprob) && top[0].logprob < 0);
    assert_int_equal(top[0].rank, 20);
    assert_int_equal(top[1].id, 3);
    assert_true(top[1].logprob == 0.0f);
    struct sampling_params p;
    sampling_params_init(&p);
    for (int i = 0; i < 100; i++) {
        struct sampler_row r = {.logits = x, .params = &p, .eos_id = -1, .seed = (uint64_t)i};
        assert_int_equal(sampler_draw(s, &r), 3);
    }
    sampler_close(s);
}

static void extreme_rows_still_yield_a_valid_token_and_rows_without_numbers_none(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    static const float values[] = {0.0f, -INFINITY, NAN, 3e38f, -3e38f, 1e-40f};
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
        float x[VOCAB];
        for (int i = 0; i < VOCAB; i++) {
            x[i] = values[v];
        }
        for (int mode = 0; mode < 16; mode++) {
            struct sampling_params p;
            sampling_params_init(&p);
            p.temperature = mode & 8 ? 0.01 : 1.0;
            p.top_k = mode & 1 ? 5 : 0;
            p.top_p = mode & 2 ? 0.5 : 1.0;
            p.min_p = mode & 4 ? 0.1 : 0.0;
            struct sampler_row r = {.logits = x, .params = &p, .eos_id = -1, .seed = 5};
            int32_t id = sampler_draw(s, &r);
            /* one -inf or NaN beside numbers is passed over; a whole row of them says that all is lost */
            const int none = values[v] != values[v] || isinf(values[v]);
            assert_true(none ? id == SAMPLER_NO_NUMBERS : id >= 0 && id < VOCAB);
        }
    }
    float masked[VOCAB], raw[VOCAB] = {0};
    struct sampling_params p;
    sampling_params_init(&p);
    for (int i = 0; i < VOCAB; i++) {
        masked[i] = -INFINITY;
    }
    struct sampler_row r = {.logits = masked, .params = &p, .eos_id = -1, .raw = raw};
    assert_true(sampler_draw(s, &r) >= 0);
    raw[3] = INFINITY;
    assert_int_equal(sampler_draw(s, &r), SAMPLER_NO_NUMBERS);
    sampler_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_lowest_id_among_equal_maxima),
        cmocka_unit_test(draws_have_the_probabilities_of_the_softmax),
        cmocka_unit_test(filters_leave_exactly_the_entries_of_a_full_sort),
        cmocka_unit_test(top_k_keeps_all_entries_equal_to_the_kth),
        cmocka_unit_test(a_draw_depends_on_seed_and_place_only),
        cmocka_unit_test(masks_biases_and_penalties_equal_the_brute_force),
        cmocka_unit_test(logprobs_are_those_of_the_raw_logits_with_worst_ranks),
        cmocka_unit_test(forbidden_entries_have_minus_infinity),
        cmocka_unit_test(extreme_rows_still_yield_a_valid_token_and_rows_without_numbers_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
