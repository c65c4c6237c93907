/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass with quantized weights against another implementation: the golden logits of the
 * quantized fixtures. In float32, where weights are multiplied with activations as they are, at
 * every vector instruction-set level and eagerly too: all greedy ids, logits within 5e-4. With
 * 8-bit and 16-bit activations: the oracle's limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "model/align.h"
#include "model_rig.h"

static const char *const fixtures[] = {"dense-awq",
                                       "dense-gptq",
                                       "dense-ct-w4a16",
                                       "dense-ct-w8a8",
                                       "dense-ct-fp8",
                                       "dense-ct-fp8-tensor",
                                       "dense-fp8-block",
                                       "dense-gguf-q8_0/model.gguf",
                                       "dense-gguf-q4_0/model.gguf",
                                       "dense-gguf-q4_k/model.gguf"};
#define N_FIXTURES (sizeof fixtures / sizeof fixtures[0])

static struct model *load(const char *path, enum act_type act, enum model_inputs inputs,
                          const char *quantization, const struct kernels *k, struct cpu_pool *pool)
{
    struct err e = {0};
    struct model *m = NULL;
    struct model_options o = {
        .path = path, .act = act, .inputs = inputs, .quantization = quantization};
    if (model_open(&m, &o, &e) < 0 || model_load(m, k, pool, &e) < 0) {
        fail_msg("%s", e.text);
    }
    return m;
}

static void find_fixture(char *path, char *golden, size_t n_bytes, const char *name)
{
    if (!rig_fixture(path, n_bytes, name)) {
        print_message("SKIPPED: no fixture %s\n", name);
        skip();
    }
    snprintf(golden, n_bytes, "%s", path);
    char *end = strstr(golden, "/model.gguf");
    snprintf(end != NULL ? end : golden + strlen(golden),
             n_bytes - (size_t)((end != NULL ? end : golden + strlen(golden)) - golden),
             "/golden.json");
}

static void compare(const struct model *m, const struct kernels *k, struct cpu_pool *pool,
                    const char *name, const char *golden, int eager)
{
    struct align_options o = {.model = m, .kernels = k, .pool = pool, .eager = eager};
    struct align_golden_result r;
    struct err e = {0};
    if (align_golden(&o, golden, &r, &e) < 0) {
        fail_msg("%s", e.text);
    }
    print_message("%s %s %s: greedy %d/%d, logit max %.2g rms %.2g, logprob %.2g, argmax %d/%d, "
                  "ppl %.2g\n",
                  name, cpu_level_name(k->level), eager ? "eager" : "plan", r.n_greedy_equal,
                  r.n_greedy, r.max_logit_error, r.rms_logit_error, r.max_logprob_error,
                  r.n_argmax_equal, r.n_argmax, r.perplexity_error);
    if (!r.passed) {
        fail_msg("%s: %s", name, r.reason);
    }
}

static void weights_alone_match_the_golden_logits(void **state)
{
    char path[1024], golden[1100];
    find_fixture(path, golden, sizeof path, *state);
    enum cpu_level levels[8];
    int n = cpu_levels_available(levels);
    struct cpu_pool *pool = rig_pool(2);
    for (int i = 0; i < n; i++) {
        const struct kernels *k = kernels_get(levels[i]);
        /* The scalar level is slow; kcheck holds the others to its bits. */
        if (k == NULL || k->act[ACT_F32].quantize == NULL || levels[i] == CPU_SCALAR) {
            continue;
        }
        struct model *m = load(path, ACT_F32, MODEL_INPUTS_AUTO, NULL, k, pool);
        for (int eager = 0; eager < (k == rig_best_kernels() ? 2 : 1); eager++) {
            compare(m, k, pool, *state, golden, eager);
        }
        model_close(m);
    }
    cpu_pool_close(pool);
}

static void check_inputs(const char *name, enum model_inputs inputs)
{
    char path[1024], golden[1100];
    find_fixture(path, golden, sizeof path, name);
    struct cpu_pool *pool = rig_pool(2);
    const struct kernels *k = rig_best_kernels();
    struct model *m = load(path, ACT_BF16, inputs, NULL, k, pool);
    compare(m, k, pool, name, golden, 0);
    model_close(m);
    cpu_pool_close(pool);
}

static void eight_bit_inputs_stay_within_their_limits(void **state)
{
    check_inputs(*state, MODEL_INPUTS_AUTO);
}

static void bfloat16_inputs_stay_within_their_limits(void **state)
{
    check_inputs(*state, MODEL_INPUTS_16);
}

/* One prompt's logits, by the plan and eagerly, are the same bits. */
static void plan_and_eager_give_the_same_bits(void **state)
{
    char path[1024], golden[1100];
    find_fixture(path, golden, sizeof path, *state);
    struct cpu_pool *pool = rig_pool(2);
    const struct kernels *k = rig_best_kernels();
    const int32_t ids[] = {5, 300, 77, 1000, 12, 13, 14, 900, 901};
    struct align_prompt prompt = {ids, 9};
    for (int act = 0; act < ACT_TYPE_COUNT; act++) {
        for (int inputs = MODEL_INPUTS_16; inputs <= MODEL_INPUTS_8; inputs++) {
            struct model *m =
                load(path, (enum act_type)act, (enum model_inputs)inputs, NULL, k, pool);
            struct align_options o = {.model = m,
                                      .kernels = k,
                                      .pool = pool,
                                      .prompts = &prompt,
                                      .n_prompts = 1,
                                      .n_tokens = 12};
            struct align_result *r = calloc(1, sizeof *r);
            struct err e = {0};
            if (align_run(&o, r, &e) < 0) {
                fail_msg("%s", e.text);
            }
            assert_true(r->bits_equal && r->ids_equal);
            free(r);
            model_close(m);
        }
    }
    cpu_pool_close(pool);
}

/* ---- quantized while loading ---- */

/* The scheme's golden logits of dense-hf as a file of their own. */
static void write_golden(const char *to, const char *golden, const char *scheme)
{
    struct json *doc;
    struct err e = {0};
    struct buf b;
    if (json_parse_file(&doc, golden, 1 << 24, &e) < 0) {
        fail_msg("%s", e.text);
    }
    const struct json *all = json_get(doc, "online_quantisation"),
                      *prompts = json_get(doc, "prompts");
    buf_init(&b);
    for (size_t i = 0; i < json_length(all); i++) {
        const struct json *v = json_at(all, i);
        if (strcmp(json_string(json_get(v, "scheme"), NULL), scheme) != 0) {
            continue;
        }
        const char *name = json_string(json_get(v, "prompt"), NULL);
        for (size_t j = 0; j < json_length(prompts); j++) {
            const struct json *p = json_at(prompts, j);
            if (strcmp(json_string(json_get(p, "name"), NULL), name) == 0) {
                buf_puts(&b, "{\"prompts\":[{\"ids\":");
                json_dump(json_get(p, "ids"), &b);
                buf_puts(&b, ",\"last\":");
                json_dump(json_get(v, "last"), &b);
                buf_puts(&b, "}]}");
            }
        }
    }
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_true(b.len > 0);
    fwrite(b.data, 1, b.len, f);
    fclose(f);
    buf_fini(&b);
    json_free(doc);
}

static void a_plain_file_quantized_while_loading_matches(const char *scheme)
{
    char path[1024], golden[1100], own[600];
    struct rig_dir dir;
    find_fixture(path, golden, sizeof path, "dense-hf");
    rig_dir_make(&dir);
    snprintf(own, sizeof own, "%s/golden.json", dir.path);
    write_golden(own, golden, scheme);
    struct cpu_pool *pool = rig_pool(2);
    const struct kernels *k = rig_best_kernels();
    struct model *m = load(path, ACT_F32, MODEL_INPUTS_AUTO, scheme, k, pool);
    struct align_options o = {.model = m, .kernels = k, .pool = pool};
    struct align_golden_result r;
    struct err e = {0};
    if (align_golden(&o, own, &r, &e) < 0) {
        fail_msg("%s", e.text);
    }
    print_message("dense-hf as %s: logit max %.2g\n", scheme, r.max_logit_error);
    assert_int_equal(r.n_prompts, 1);
    assert_true(r.max_logit_error < 5e-4);
    model_close(m);
    cpu_pool_close(pool);
    rig_dir_remove(&dir);
}

static void int8_while_loading_matches_the_golden_logits(void **state)
{
    (void)state;
    a_plain_file_quantized_while_loading_matches("wint8");
}

static void fp8_blocks_while_loading_match_the_golden_logits(void **state)
{
    (void)state;
    a_plain_file_quantized_while_loading_matches("block_wise_fp8");
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(void **state);
    } kinds[] = {
        {"weights_alone_match_the_golden_logits", weights_alone_match_the_golden_logits},
        {"eight_bit_inputs_stay_within_their_limits", eight_bit_inputs_stay_within_their_limits},
        {"bfloat16_inputs_stay_within_their_limits", bfloat16_inputs_stay_within_their_limits},
        {"plan_and_eager_give_the_same_bits", plan_and_eager_give_the_same_bits}};
    enum { N_KINDS = sizeof kinds / sizeof kinds[0] };
    struct CMUnitTest tests[N_KINDS * N_FIXTURES + 2];
    char names[N_KINDS * N_FIXTURES][128];
    size_t n = 0;
    for (size_t j = 0; j < N_KINDS; j++) {
        for (size_t i = 0; i < N_FIXTURES; i++, n++) {
            snprintf(names[n], sizeof names[n], "%s (%s)", kinds[j].name, fixtures[i]);
            tests[n] = (struct CMUnitTest){names[n], kinds[j].run, NULL, NULL,
                                           (void *)(uintptr_t)fixtures[i]};
        }
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(int8_while_loading_matches_the_golden_logits);
    tests[n++] =
        (struct CMUnitTest)cmocka_unit_test(fp8_blocks_while_loading_match_the_golden_logits);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
