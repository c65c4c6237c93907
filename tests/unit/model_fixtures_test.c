/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass against another implementation: the golden logits of the dense fixtures, at
 * every instruction-set level, in float32 (all greedy ids, logits within 5e-4, perplexity within
 * 1e-4) and bfloat16 (the oracle's limits), by plan and eagerly; and Paddle against Hugging Face
 * files of the same weights, bit by bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/align.h"
#include "model_rig.h"

static const char *const fixtures[] = {
    "dense-hf",     "dense-hf-sharded",       "dense-hf-untied",    "dense-head96",
    "dense-paddle", "dense-paddle-bf16label", "dense-paddle-untied"};
#define N_FIXTURES (sizeof fixtures / sizeof fixtures[0])

static void check_fixture(const char *name, enum act_type act)
{
    char dir[1024], golden[1100];
    if (!rig_fixture(dir, sizeof dir, name)) {
        print_message("SKIPPED: no fixture %s\n", name);
        skip();
    }
    snprintf(golden, sizeof golden, "%s/golden.json", dir);
    enum cpu_level levels[8];
    int n = cpu_levels_available(levels);
    struct cpu_pool *pool = rig_pool(2);
    for (int i = 0; i < n; i++) {
        const struct kernels *k = kernels_get(levels[i]);
        if (k == NULL || k->act[act].gemm == NULL) {
            continue;
        }
        struct model *m = rig_load(dir, act, k, pool);
        for (int eager = 0; eager < (k == rig_best_kernels() ? 2 : 1); eager++) {
            struct align_options o = {.model = m, .kernels = k, .pool = pool, .eager = eager};
            struct align_golden_result r;
            struct err e = {0};
            if (align_golden(&o, golden, &r, &e) < 0) {
                fail_msg("%s", e.text);
            }
            print_message("%s %s %s %s: greedy %d/%d, logit max %.2g rms %.2g, logprob %.2g, "
                          "argmax %d/%d, ppl %.2g\n",
                          name, act == ACT_F32 ? "float32" : "bfloat16", cpu_level_name(levels[i]),
                          eager ? "eager" : "plan", r.n_greedy_equal, r.n_greedy, r.max_logit_error,
                          r.rms_logit_error, r.max_logprob_error, r.n_argmax_equal, r.n_argmax,
                          r.perplexity_error);
            if (!r.passed) {
                fail_msg("%s: %s", name, r.reason);
            }
        }
        model_close(m);
    }
    cpu_pool_close(pool);
}

static void float32_matches_the_golden_logits(void **state)
{
    check_fixture(*state, ACT_F32);
}

static void bfloat16_stays_within_its_limits(void **state)
{
    check_fixture(*state, ACT_BF16);
}

/* Hash of the logits after some greedy tokens, and the numerics id. */
static uint64_t logits_hash(const char *name, enum act_type act, char id[33])
{
    char dir[1024];
    if (!rig_fixture(dir, sizeof dir, name)) {
        print_message("SKIPPED: no fixture %s\n", name);
        skip();
    }
    const struct kernels *k = rig_best_kernels();
    struct cpu_pool *pool = rig_pool(2);
    struct model *m = rig_load(dir, act, k, pool);
    const int32_t ids[] = {5, 300, 77, 1000, 12, 13, 14, 900, 901};
    struct align_prompt prompt = {ids, 9};
    struct align_options o = {
        .model = m, .kernels = k, .pool = pool, .prompts = &prompt, .n_prompts = 1, .n_tokens = 12};
    struct align_result *r = calloc(1, sizeof *r);
    struct err e = {0};
    if (align_run(&o, r, &e) < 0) {
        fail_msg("%s", e.text);
    }
    assert_true(r->bits_equal);
    assert_true(r->ids_equal);
    uint64_t hash = r->logits_hash;
    memcpy(id, model_numerics_id(m), 33);
    free(r);
    model_close(m);
    cpu_pool_close(pool);
    return hash;
}

static void paddle_and_hugging_face_files_give_the_same_bits(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"dense-hf", "dense-paddle"},
                                           {"dense-hf-untied", "dense-paddle-untied"}};
    for (int act = 0; act < ACT_TYPE_COUNT; act++) {
        for (int i = 0; i < 2; i++) {
            char a[33], b[33];
            uint64_t ha = logits_hash(pairs[i][0], (enum act_type)act, a);
            uint64_t hb = logits_hash(pairs[i][1], (enum act_type)act, b);
            assert_true(ha == hb);
            assert_string_equal(a, b);
        }
    }
}

int main(void)
{
    struct CMUnitTest tests[2 * N_FIXTURES + 1];
    char names[2 * N_FIXTURES][96];
    size_t n = 0;
    for (size_t i = 0; i < N_FIXTURES; i++) {
        snprintf(names[n], sizeof names[n], "float32_matches_the_golden_logits (%s)", fixtures[i]);
        tests[n] = (struct CMUnitTest){names[n], float32_matches_the_golden_logits, NULL, NULL,
                                       (void *)(uintptr_t)fixtures[i]};
        n++;
        snprintf(names[n], sizeof names[n], "bfloat16_stays_within_its_limits (%s)", fixtures[i]);
        tests[n] = (struct CMUnitTest){names[n], bfloat16_stays_within_its_limits, NULL, NULL,
                                       (void *)(uintptr_t)fixtures[i]};
        n++;
    }
    tests[n++] =
        (struct CMUnitTest)cmocka_unit_test(paddle_and_hugging_face_files_give_the_same_bits);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
