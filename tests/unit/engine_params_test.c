/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of the sampling parameters: vLLM's table, row by row. */
#include "engine/engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void set(struct sampling_params *p, const char *name, double v)
{
    if (strcmp(name, "n") == 0) {
        p->n = (int)v;
    } else if (strcmp(name, "temperature") == 0) {
        p->temperature = v;
    } else if (strcmp(name, "top_p") == 0) {
        p->top_p = v;
    } else if (strcmp(name, "top_k") == 0) {
        p->top_k = (int)v;
    } else if (strcmp(name, "min_p") == 0) {
        p->min_p = v;
    } else if (strcmp(name, "repetition_penalty") == 0) {
        p->repetition_penalty = v;
    } else if (strcmp(name, "presence_penalty") == 0) {
        p->presence_penalty = v;
    } else if (strcmp(name, "frequency_penalty") == 0) {
        p->frequency_penalty = v;
    } else if (strcmp(name, "max_tokens") == 0) {
        p->max_tokens = (int)v;
    } else if (strcmp(name, "min_tokens") == 0) {
        p->min_tokens = (int)v;
    } else if (strcmp(name, "logprobs") == 0) {
        p->n_logprobs = (int)v;
    } else if (strcmp(name, "prompt_logprobs") == 0) {
        p->n_prompt_logprobs = (int)v;
    } else {
        fail_msg("%s", name);
    }
}

static void every_range_is_kept_and_named(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double good[4];
        int n_good;
        double bad[4];
        int n_bad;
    } t[] = {
        {"n", {1, 16384}, 2, {0, -1}, 2},
        {"temperature", {0, 1e-6, 0.7, 2}, 4, {-0.1, 2.01, NAN, INFINITY}, 4},
        {"top_p", {1e-9, 0.5, 1}, 3, {0, 1.01, -0.1, NAN}, 4},
        {"top_k", {-1, 0, 1, 1e6}, 4, {-2}, 1},
        {"min_p", {0, 0.5, 1}, 3, {-0.01, 1.01, NAN}, 3},
        {"repetition_penalty", {0.01, 1, 100}, 3, {0, -1, NAN, INFINITY}, 4},
        {"presence_penalty", {-2, 0, 2}, 3, {-2.01, 2.01, NAN}, 3},
        {"frequency_penalty", {-2, 0, 2}, 3, {-2.01, 2.01, NAN}, 3},
        {"max_tokens", {1, 1e6}, 2, {0, -1}, 2},
        {"min_tokens", {0, 16}, 2, {-1, 17}, 2},
        {"logprobs", {-1, 0, 20}, 3, {-2, 21}, 2},
        {"prompt_logprobs", {-1, 0, 20}, 3, {-2, 21}, 2},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        for (int k = 0; k < t[i].n_good + t[i].n_bad; k++) {
            int is_good = k < t[i].n_good;
            double v = is_good ? t[i].good[k] : t[i].bad[k - t[i].n_good];
            struct sampling_params p;
            struct err e = {0};
            const char *field = NULL;
            sampling_params_init(&p);
            set(&p, t[i].name, v);
            int rc = sampling_params_check(&p, 1000, 20, &field, &e);
            if ((rc == 0) != is_good) {
                fail_msg("%s = %g: %d (%s)", t[i].name, v, rc, e.text);
            }
            if (!is_good) {
                assert_int_equal(rc, ERR_INVALID);
                assert_string_equal(field, t[i].name);
                assert_true(strlen(e.text) > 10);
            }
        }
    }
}

static void greedy_sampling_takes_one_sample_only(void **state)
{
    (void)state;
    struct sampling_params p;
    struct err e = {0};
    const char *field;
    sampling_params_init(&p);
    p.n = 2;
    assert_int_equal(sampling_params_check(&p, 1000, 20, &field, &e), 0);
    p.temperature = 0;
    assert_int_equal(sampling_params_check(&p, 1000, 20, &field, &e), ERR_INVALID);
    assert_string_equal(field, "n");
    assert_string_equal(e.text, "n must be 1 when using greedy sampling, got 2.");
}

static void ids_outside_the_vocabulary_are_refused_by_name(void **state)
{
    (void)state;
    for (int32_t id = -1; id <= 1000; id += 1001) {
        const int32_t ids[2] = {3, id};
        const struct token_bias bias = {id, 1};
        const struct token_seq word = {ids, 2}, empty = {ids, 0};
        struct err e = {0};
        const char *field;
        struct sampling_params p;
        sampling_params_init(&p);
        p.allowed_token_ids = ids;
        p.n_allowed_token_ids = 2;
        assert_int_equal(sampling_params_check(&p, 1000, 20, &field, &e), ERR_INVALID);
        assert_string_equal(field, "allowed_token_ids");
        p.n_allowed_token_ids = 0;
        assert_int_equal(sampling_params_check(&p, 1000, 20, &field, &e), ERR_INVALID);
        sampling_params_init(&p);
        p.logit_bias = &bias;
        p.n_logit_bias = 1;
        assert_int_equal(sampling_params_check(&p, 1000, 20, &field, &e), ERR_INVALID);
        assert_string_equal(field, "logit_bias");
        sampling_params_init(&p);
        p.bad_words = &word;
        p.n_bad_words = 1;
        assert_int_equal(sampling_params_check(&p, 1000, 20, &field, &e), ERR_INVALID);
        assert_string_equal(field, "bad_words");
        p.bad_words = &empty;
        assert_int_equal(sampling_params_check(&p, 1000, 20, &field, &e), ERR_INVALID);
    }
}

static void an_unlimited_server_takes_any_number_of_logprobs(void **state)
{
    (void)state;
    struct sampling_params p;
    sampling_params_init(&p);
    p.n_logprobs = 1000;
    assert_int_equal(sampling_params_check(&p, 1000, -1, NULL, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_range_is_kept_and_named),
        cmocka_unit_test(greedy_sampling_takes_one_sample_only),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused_by_name),
        cmocka_unit_test(an_unlimited_server_takes_any_number_of_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
