/* SPDX-License-Identifier: Apache-2.0 */
/* The promise of the same bits, through the whole engine on a small random model: token ids and
 * log-probabilities of every request are equal byte for byte however they are computed. Where a
 * case is about a prefix hit or a preemption, the counter that proves it happened is asserted. */
#include "engine/engine.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "model_rig.h"

#define N_REQUESTS 32
#define MAX_TOKENS 20
#define N_TOP      3
#define VOCAB      512
#define MAX_LEN    448

struct how {
    const char *name;
    int max_num_seqs, budget, n_blocks, cache, permute, threads, eager, runs;
    int wants_hits, wants_preemptions;
};

struct token {
    int32_t id;
    struct token_logprob top[N_TOP + 1];
};
struct answer {
    int n;
    struct token tokens[MAX_TOKENS];
};

static struct rig_dir dir;
static int has_model;

static int set_up(void **state)
{
    (void)state;
    rig_dir_make(&dir);
    has_model = rig_make_model(
                    &dir, "tiny",
                    "--hidden 64 --layers 2 --heads 4 --kv-heads 2 --head-dim 32 --intermediate 96 "
                    "--vocab 512") == 0;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rig_dir_remove(&dir);
    return 0;
}

/* Lengths around the block and the attention partition; groups of four share their beginning. */
static int make_prompt(int32_t *out, int i)
{
    static const int lengths[] = {1,   15,  16,  17, 33, 64,  100, 255,
                                  256, 257, 300, 48, 5,  130, 31,  290};
    int n = lengths[i % 16];
    for (int k = 0; k < n; k++) {
        out[k] = 3 + ((i / 4) * 37 + k * 11 + k / 7) % (VOCAB - 3);
    }
    return n;
}

static struct engine_request *new_request(struct mq *reply, int i, int prompt_of)
{
    struct engine_request *r = engine_request_new();
    int32_t prompt[MAX_LEN];
    assert_non_null(r);
    r->n_prompt = make_prompt(prompt, prompt_of);
    r->prompt = arena_memdup(&r->arena, prompt, (size_t)r->n_prompt * sizeof *prompt);
    r->params.max_tokens = MAX_TOKENS;
    r->params.n_logprobs = N_TOP;
    r->params.temperature = i % 2 ? 0.9 : 0.0;
    r->params.top_p = i % 4 == 1 ? 0.9 : 1.0;
    r->params.repetition_penalty = i % 8 == 3 ? 1.3 : 1.0;
    r->params.has_seed = 1;
    r->params.seed = i;
    r->reply = reply;
    r->user = (void *)(intptr_t)i;
    return r;
}

static void submit(struct engine *en, struct engine_request *r)
{
    struct err e = {0};
    if (engine_submit(en, r, &e) < 0) {
        fail_msg("%s", e.text);
    }
}

/* Until n samples have ended; sample k of the request `user` goes to a[user + k]. */
static void receive_all(struct mq *reply, struct answer *a, int n)
{
    int n_ended = 0;
    while (n_ended < n) {
        assert_int_equal(mq_wait(reply, 60000), 1);
        struct mq_node *node = mq_pop_all(reply);
        while (node) {
            struct engine_event *ev = (struct engine_event *)node;
            struct answer *one = &a[(intptr_t)ev->user + ev->sample];
            node = node->next;
            for (int i = 0; i < ev->n_tokens; i++) {
                struct token *t = &one->tokens[one->n++];
                assert_int_equal(ev->tokens[i].n_top, N_TOP + 1);
                t->id = ev->tokens[i].id;
                memcpy(t->top, ev->tokens[i].top, sizeof t->top);
            }
            if (ev->finish != FINISH_NONE) {
                assert_int_equal(ev->finish, FINISH_LENGTH);
                n_ended++;
            }
            engine_event_free(ev);
        }
    }
}

static void run(const struct how *h, enum act_type act, enum kv_format kv, struct answer *last)
{
    struct err e = {0};
    char path[600];
    struct cpu_pool *pool = rig_pool(h->threads);
    const struct kernels *k = rig_best_kernels();
    snprintf(path, sizeof path, "%s/tiny", dir.path);
    const struct model_options mo = {.path = path, .act = act, .kv = kv};
    struct model *m = rig_load_with(&mo, k, pool);
    struct engine_options o = {
        .max_model_len = MAX_LEN,
        .max_num_seqs = h->max_num_seqs,
        .max_num_batched_tokens = h->budget,
        .enable_prefix_caching = h->cache,
        .enable_chunked_prefill = 1,
        .n_blocks_override = h->n_blocks,
        .permute_blocks = h->permute,
        .eager = h->eager,
        .eos_id = -1,
    };
    struct engine *en;
    struct mq *reply;
    if (mq_new(&reply, &e) < 0 || engine_open(&en, m, k, pool, &o, &e) < 0) {
        fail_msg("%s: %s", h->name, e.text);
    }
    for (int i = 0; i < h->runs; i++) {
        memset(last, 0, N_REQUESTS * sizeof *last);
        for (int r = 0; r < N_REQUESTS; r++) {
            submit(en, new_request(reply, r, r));
        }
        receive_all(reply, last, N_REQUESTS);
    }
    struct engine_stats s;
    engine_stats(en, &s);
    if (h->wants_hits) {
        assert_true(s.prefix_hits > 0);
    }
    if (h->wants_preemptions) {
        assert_true(s.preemptions > 0);
    }
    assert_true(s.kv_usage == 0.0);
    engine_close(en);
    mq_free(reply);
    model_close(m);
    cpu_pool_close(pool);
}

static void compare(const struct answer *want, const struct answer *got, const char *name)
{
    for (int i = 0; i < N_REQUESTS; i++) {
        assert_int_equal(got[i].n, MAX_TOKENS);
        for (int t = 0; t < MAX_TOKENS; t++) {
            if (memcmp(&want[i].tokens[t], &got[i].tokens[t], sizeof want[i].tokens[t]) != 0) {
                fail_msg(
                    "%s: request %d, token %d: id %d logprob %.9g instead of id %d logprob %.9g",
                    name, i, t, got[i].tokens[t].id, (double)got[i].tokens[t].top[0].logprob,
                    want[i].tokens[t].id, (double)want[i].tokens[t].top[0].logprob);
            }
        }
    }
}

static void every_way_to_compute_gives_the_same_bits(enum act_type act, enum kv_format kv)
{
    static const struct how base = {"alone", 1, MAX_LEN, 40, 0, 0, 1, 0, 1, 0, 0};
    static const struct how ways[] = {
        {"batch of 32", 32, 1024, 800, 0, 0, 1, 0, 1, 0, 0},
        {"chunks of 16", 8, 16, 400, 0, 0, 2, 0, 1, 0, 0},
        {"chunks of 33", 8, 33, 400, 0, 0, 2, 0, 1, 0, 0},
        {"chunks of 512", 8, 512, 400, 0, 0, 2, 0, 1, 0, 0},
        {"prefix cache, first run", 4, 100, 400, 1, 0, 2, 0, 1, 1, 0},
        {"prefix cache, second run", 32, 200, 2000, 1, 0, 2, 0, 2, 1, 0},
        {"preempted", 8, 128, 34, 0, 0, 2, 0, 1, 0, 1},
        {"preempted, with prefix cache", 8, 128, 34, 1, 3, 2, 0, 1, 1, 1},
        {"blocks in another order", 32, 256, 800, 1, 7, 2, 0, 1, 0, 0},
        {"3 threads", 16, 256, 800, 0, 0, 3, 0, 1, 0, 0},
        {"4 threads", 16, 256, 800, 1, 0, 4, 0, 1, 0, 0},
        {"eager", 16, 256, 800, 0, 0, 2, 1, 1, 0, 0},
        {"eager, preempted", 8, 64, 34, 1, 5, 1, 1, 1, 0, 1},
    };
    if (!has_model) {
        skip(); /* no python3 to make the model */
    }
    struct answer *want = calloc(N_REQUESTS, sizeof *want), *got = calloc(N_REQUESTS, sizeof *got);
    run(&base, act, kv, want);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        run(&ways[i], act, kv, got);
        compare(want, got, ways[i].name);
    }
    free(want);
    free(got);
}

static void bits_are_the_same_in_bfloat16(void **state)
{
    (void)state;
    every_way_to_compute_gives_the_same_bits(ACT_BF16, KV_ACT);
}

static void bits_are_the_same_in_float32(void **state)
{
    (void)state;
    every_way_to_compute_gives_the_same_bits(ACT_F32, KV_ACT);
}

static void bits_are_the_same_with_kv_of_fp8(void **state)
{
    (void)state;
    every_way_to_compute_gives_the_same_bits(ACT_BF16, KV_F8_E4M3);
    every_way_to_compute_gives_the_same_bits(ACT_BF16, KV_F8_E5M2);
}

static void bits_are_the_same_with_kv_of_int8(void **state)
{
    (void)state;
    every_way_to_compute_gives_the_same_bits(ACT_BF16, KV_I8);
    every_way_to_compute_gives_the_same_bits(ACT_F32, KV_I8);
}

/* The samples of one prompt share its blocks and copy the last one; alone, each computes its own.
 */
static void forked_samples_have_the_bits_of_single_ones(void **state)
{
    (void)state;
    enum { N = 4 };
    if (!has_model) {
        skip();
    }
    for (int prompt_of = 3; prompt_of <= 11; prompt_of += 4) { /* 17, 255 and 48 tokens */
        struct err e = {0};
        char path[600];
        struct cpu_pool *pool = rig_pool(2);
        const struct kernels *k = rig_best_kernels();
        snprintf(path, sizeof path, "%s/tiny", dir.path);
        struct model *m = rig_load(path, ACT_BF16, k, pool);
        struct engine_options o = {.max_model_len = MAX_LEN,
                                   .max_num_seqs = 8,
                                   .max_num_batched_tokens = 64,
                                   .enable_chunked_prefill = 1,
                                   .n_blocks_override = 200,
                                   .eos_id = -1};
        struct engine *en;
        struct mq *reply;
        if (mq_new(&reply, &e) < 0 || engine_open(&en, m, k, pool, &o, &e) < 0) {
            fail_msg("%s", e.text);
        }
        struct answer *a = calloc(2 * N, sizeof *a);
        for (int i = 0; i < N; i++) {
            struct engine_request *r = new_request(reply, i, prompt_of);
            r->params.temperature = 0.9;
            r->params.top_p = r->params.repetition_penalty = 1.0;
            r->params.seed = 40 + i;
            submit(en, r);
        }
        struct engine_request *r = new_request(reply, N, prompt_of);
        r->params.n = N;
        r->params.temperature = 0.9;
        r->params.top_p = r->params.repetition_penalty = 1.0;
        r->params.seed = 40;
        submit(en, r);
        receive_all(reply, a, 2 * N);
        assert_memory_equal(a, a + N, N * sizeof *a);
        assert_memory_not_equal(&a[0], &a[1], sizeof *a);
        free(a);
        engine_close(en);
        mq_free(reply);
        model_close(m);
        cpu_pool_close(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_the_same_in_bfloat16),
        cmocka_unit_test(bits_are_the_same_in_float32),
        cmocka_unit_test(bits_are_the_same_with_kv_of_fp8),
        cmocka_unit_test(bits_are_the_same_with_kv_of_int8),
        cmocka_unit_test(forked_samples_have_the_bits_of_single_ones),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
