/* SPDX-License-Identifier: Apache-2.0 */
/* The promise "same bits" at the level of forward_run: the logits of every token of every sequence
 * are the same bytes however the work is cut. The reference is one sequence at a time, in one
 * piece, by plan, on one thread; each test changes one thing, some change several, and all compare
 * with memcmp. The last tests hand in kernel tables with a single changed rounding (one unit in the
 * last place of one element, under one condition) and expect the same comparisons to fail: a
 * comparison that can't fail shows nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kv/layout.h"
#include "model/align.h"
#include "model_rig.h"

#define MAX_SEQS     32
#define MAX_ROWS     1100
#define MAX_SUBJECTS 12

struct sequences {
    int n, len[MAX_SEQS],
        first[MAX_SEQS]; /* first: index of a sequence's first token in the logits */
    int n_tokens;
};

/* One way of running a set of sequences. */
struct how {
    const struct kernels *k;
    int threads, eager;
    int batch;   /* sequences in a step */
    int chunk;   /* tokens of a sequence in a step; 0: all that are left; negative: random, at most
                    that many */
    int permute; /* hand out physical blocks in a shuffled order */
    int poison;  /* fill the KV store with NaN first */
    unsigned seed;
};

struct subject {
    const char *name;
    enum act_type act;
    char path[600];
    struct model *m;
    float *reference[2]; /* logits of both sets */
};

static struct rig_dir dir;
static struct subject subjects[MAX_SUBJECTS];
static int n_subjects;           /* four of dense weights, then quantized weights or KV */
static struct sequences sets[2]; /* 32 short ones; lengths around block and partition */
enum { SHORT, LENGTHS };

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void shuffle(int32_t *v, int n, unsigned *seed)
{
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(next_random(seed) % (unsigned)(i + 1));
        int32_t t = v[i];
        v[i] = v[j];
        v[j] = t;
    }
}

static int32_t token_of(const struct model *m, int seq, int pos)
{
    unsigned s = (unsigned)(seq * 7919 + pos * 104729 + 17);
    return (int32_t)(next_random(&s) % (unsigned)model_config(m)->vocab_size);
}

/* ---- running ---- */

struct runner {
    const struct model *m;
    const struct sequences *set;
    struct cpu_pool *pool;
    struct kv_store *kv;
    struct forward *f;
    int32_t free_blocks[1024];
    int n_free, next_free;
    int32_t table[MAX_SEQS][(MAX_ROWS + 15) / 16];
    int done[MAX_SEQS];
    int32_t token_id[MAX_ROWS], kv_index[MAX_ROWS], rope_pos[MAX_ROWS][3];
    uint8_t wants[MAX_ROWS];
};

static void poison_store(struct kv_store *kv)
{
    size_t n = kv_store_layout(kv)->block_bytes;
    void *bytes = malloc(n);
    memset(bytes, 0xff, n);
    for (int layer = 0; layer < kv_store_layout(kv)->n_layers; layer++) {
        for (int block = 0; block < kv_store_n_blocks(kv); block++) {
            kv_store_import(kv, layer, block, bytes);
        }
    }
    free(bytes);
}

static struct runner *runner_open(const struct model *m, const struct sequences *set,
                                  const struct how *h)
{
    struct err e = {0};
    struct runner *r = calloc(1, sizeof *r);
    struct kv_layout layout;
    unsigned seed = h->seed + 1;
    r->m = m;
    r->set = set;
    int n_blocks = 3;
    for (int i = 0; i < set->n; i++) {
        n_blocks += (set->len[i] + 15) / 16;
    }
    assert_true(n_blocks <= 1024);
    for (int i = 1; i < n_blocks; i++) {
        r->free_blocks[r->n_free++] = i;
    }
    if (h->permute) {
        shuffle(r->free_blocks, r->n_free, &seed);
    }
    for (int i = 0; i < MAX_SEQS;
         i++) { /* what isn't there yet is no block: reading it would fail */
        for (int j = 0; j < (MAX_ROWS + 15) / 16; j++) {
            r->table[i][j] = INT32_MIN;
        }
    }
    model_kv_layout(m, &layout);
    struct forward_options fo = {.max_rows = MAX_ROWS,
                                 .max_logits = MAX_ROWS,
                                 .max_seqs = MAX_SEQS,
                                 .max_model_len = MAX_ROWS,
                                 .eager = h->eager};
    r->pool = rig_pool(h->threads);
    if (kv_store_open(&r->kv, &layout, n_blocks, &e) < 0 ||
        forward_open(&r->f, m, h->k, r->pool, r->kv, &comm_none, &fo, &e) < 0) {
        fail_msg("%s", e.text);
    }
    if (h->poison) {
        poison_store(r->kv);
    }
    return r;
}

static void runner_close(struct runner *r)
{
    forward_close(r->f);
    kv_store_close(r->kv);
    cpu_pool_close(r->pool);
    free(r);
}

static void add_rows(struct runner *r, struct forward_seq *seqs, struct forward_batch *b, int seq,
                     int n)
{
    for (int i = 0; i < n; i++) {
        int pos = r->done[seq] + i, row = b->n_rows + i;
        if (pos % 16 == 0 && r->table[seq][pos / 16] < 0) {
            r->table[seq][pos / 16] = r->free_blocks[r->next_free++];
        }
        r->token_id[row] = token_of(r->m, seq, pos);
        r->kv_index[row] = pos;
        r->rope_pos[row][0] = r->rope_pos[row][1] = r->rope_pos[row][2] = pos;
        r->wants[row] = 1;
    }
    seqs[b->n_seqs++] = (struct forward_seq){b->n_rows, n, r->table[seq]};
    b->n_rows += n;
}

/* One step over some unfinished sequences; their logits go to out. 0 when all are done. */
static int run_step(struct runner *r, const struct how *h, unsigned *seed, float *out)
{
    struct forward_seq seqs[MAX_SEQS];
    int32_t order[MAX_SEQS];
    int n = 0, taken[MAX_SEQS];
    for (int i = 0; i < r->set->n; i++) {
        if (r->done[i] < r->set->len[i]) {
            order[n++] = i;
        }
    }
    if (n == 0) {
        return 0;
    }
    if (h->batch > 1) {
        shuffle(order, n, seed);
    }
    struct forward_batch b = {.token_id = r->token_id,
                              .kv_index = r->kv_index,
                              .rope_pos = (const int32_t(*)[3])r->rope_pos,
                              .wants_logits = r->wants,
                              .seqs = seqs};
    for (int i = 0; i < n && i < h->batch && b.n_rows < MAX_ROWS; i++) {
        int seq = order[i], left = r->set->len[seq] - r->done[seq];
        int chunk = h->chunk == 0  ? left
                    : h->chunk > 0 ? h->chunk
                                   : 1 + (int)(next_random(seed) % (unsigned)-h->chunk);
        chunk = chunk < left ? chunk : left;
        chunk = chunk < MAX_ROWS - b.n_rows ? chunk : MAX_ROWS - b.n_rows;
        taken[i] = chunk;
        add_rows(r, seqs, &b, seq, chunk);
    }
    const float *logits;
    struct err e = {0};
    if (forward_run(r->f, &b, &logits, &e) < 0) {
        fail_msg("%s", e.text);
    }
    size_t vocab = (size_t)model_config(r->m)->vocab_size;
    for (int i = 0, row = 0; i < b.n_seqs; i++) {
        for (int j = 0; j < taken[i]; j++, row++) {
            memcpy(out + (size_t)(r->set->first[order[i]] + r->done[order[i]] + j) * vocab,
                   logits + (size_t)row * forward_logits_stride(r->f), vocab * sizeof *out);
        }
        r->done[order[i]] += taken[i];
    }
    return 1;
}

static float *run(const struct model *m, const struct sequences *set, const struct how *h)
{
    float *out = calloc((size_t)set->n_tokens * (size_t)model_config(m)->vocab_size, sizeof *out);
    struct runner *r = runner_open(m, set, h);
    unsigned seed = h->seed;
    while (run_step(r, h, &seed, out)) {
    }
    runner_close(r);
    return out;
}

/* Tokens whose logits differ from the reference in any bit, over the subjects up to the first that
 * has some. */
static int differences(int set, const struct how *h)
{
    int n = 0;
    for (int i = 0; i < n_subjects && n == 0; i++) {
        struct subject *s = &subjects[i];
        struct how reference = {.k = rig_best_kernels(), .threads = 1, .batch = 1};
        if (s->reference[set] == NULL) {
            s->reference[set] = run(s->m, &sets[set], &reference);
        }
        float *out = run(s->m, &sets[set], h);
        size_t vocab = (size_t)model_config(s->m)->vocab_size;
        for (int t = 0; t < sets[set].n_tokens; t++) {
            n += memcmp(out + (size_t)t * vocab, s->reference[set] + (size_t)t * vocab,
                        vocab * sizeof *out) != 0;
        }
        free(out);
    }
    return n;
}

static int batch_differences(const struct kernels *k)
{
    static const int sizes[] = {2, 3, 4, 7, 8, 9, 16, 31, 32};
    int n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && n == 0; i++) {
        struct how h = {.k = k, .threads = 1, .batch = sizes[i], .chunk = -5, .seed = (unsigned)i};
        n += differences(SHORT, &h);
    }
    return n;
}

static int chunk_differences(const struct kernels *k)
{
    static const int sizes[] = {1, 2, 7, 8, 9, 33, 64, 65, 512, -100};
    int n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && n == 0; i++) {
        struct how h = {.k = k, .threads = 1, .batch = 1, .chunk = sizes[i]};
        n += differences(LENGTHS, &h);
    }
    return n;
}

static int thread_differences(const struct kernels *k)
{
    int n = 0;
    for (int threads = 1; threads <= 4 && n == 0; threads++) {
        struct how decode = {.k = k, .threads = threads, .batch = 5, .chunk = 1};
        struct how prefill = {.k = k, .threads = threads, .batch = 4};
        n += differences(SHORT, &decode) + differences(LENGTHS, &prefill);
    }
    return n;
}

static int eager_differences(const struct kernels *k)
{
    struct how whole = {.k = k, .threads = 1, .eager = 1, .batch = 1};
    struct how mixed = {.k = k, .threads = 2, .eager = 1, .batch = 9, .chunk = -20};
    return differences(LENGTHS, &whole) + differences(SHORT, &mixed);
}

/* ---- the promise ---- */

static void logits_do_not_depend_on_batch_size_or_neighbours(void **state)
{
    (void)state;
    assert_int_equal(batch_differences(rig_best_kernels()), 0);
}

static void logits_do_not_depend_on_the_chunks_of_a_prompt(void **state)
{
    (void)state;
    assert_int_equal(chunk_differences(rig_best_kernels()), 0);
}

static void logits_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    assert_int_equal(thread_differences(rig_best_kernels()), 0);
}

static void eager_and_plan_give_the_same_logits(void **state)
{
    (void)state;
    assert_int_equal(eager_differences(rig_best_kernels()), 0);
}

static void logits_do_not_depend_on_physical_blocks(void **state)
{
    (void)state;
    struct how plan = {
        .k = rig_best_kernels(), .threads = 1, .batch = 6, .chunk = -70, .permute = 1, .seed = 5};
    struct how eager = {
        .k = rig_best_kernels(), .threads = 1, .eager = 1, .batch = 6, .chunk = -70, .permute = 1};
    assert_int_equal(differences(LENGTHS, &plan), 0);
    assert_int_equal(differences(SHORT, &eager), 0);
}

static void memory_that_was_never_written_does_not_matter(void **state)
{
    (void)state;
    struct how plan = {
        .k = rig_best_kernels(), .threads = 1, .batch = 3, .chunk = -40, .permute = 1, .poison = 1};
    struct how eager = {
        .k = rig_best_kernels(), .threads = 1, .eager = 1, .batch = 3, .chunk = -40, .poison = 1};
    assert_int_equal(differences(LENGTHS, &plan), 0);
    assert_int_equal(differences(SHORT, &eager), 0);
}

static void every_level_equals_the_best_one(void **state)
{
    (void)state;
    enum cpu_level levels[8];
    int n = cpu_levels_available(levels);
    for (int i = 0; i < n; i++) {
        const struct kernels *k = kernels_get(levels[i]);
        if (k == NULL) {
            continue;
        }
        struct how h = {.k = k, .threads = 1, .batch = 8, .chunk = -40};
        int differ = differences(SHORT, &h);
        struct how e = {.k = k, .threads = 1, .eager = 1, .batch = 8};
        differ += differences(SHORT, &e);
        struct how l = {.k = k, .threads = 1, .batch = 4};
        int n_all = n_subjects;
        n_subjects = k->level == CPU_SCALAR && n_all > 4 ? 4 : n_all; /* the reference is slow */
        differ += differences(LENGTHS, &l);
        n_subjects = n_all;
        if (differ != 0) {
            fail_msg("%s: %d tokens differ", cpu_level_name(levels[i]), differ);
        }
    }
}

/* Blocks that another sequence computed stand for the same tokens. */
static void a_shared_prefix_gives_the_logits_of_a_cold_start(void **state)
{
    (void)state;
    for (int s = 0; s < n_subjects; s++) {
        struct how h = {.k = rig_best_kernels(), .threads = 2, .batch = 1};
        struct sequences two = {
            .n = 2, .len = {64 + 30, 64 + 30}, .first = {0, 94}, .n_tokens = 188};
        struct runner *r = runner_open(subjects[s].m, &two, &h);
        size_t vocab = (size_t)model_config(subjects[s].m)->vocab_size;
        float *cold = calloc(188 * vocab, sizeof *cold);
        unsigned seed = 0;
        assert_true(run_step(r, &h, &seed, cold));
        memcpy(r->table[1], r->table[0], 4 * sizeof r->table[0][0]);
        r->done[1] = 64;
        struct forward_seq seqs[1];
        const float *logits;
        struct forward_batch b = {.token_id = r->token_id,
                                  .kv_index = r->kv_index,
                                  .rope_pos = (const int32_t(*)[3])r->rope_pos,
                                  .wants_logits = r->wants,
                                  .seqs = seqs};
        add_rows(r, seqs, &b, 1, 30);
        for (int i = 0; i < 30; i++) { /* the tokens of sequence 0 again */
            r->token_id[i] = token_of(r->m, 0, 64 + i);
        }
        assert_int_equal(forward_run(r->f, &b, &logits, NULL), 0);
        for (size_t i = 0; i < 30; i++) {
            assert_memory_equal(logits + i * forward_logits_stride(r->f), cold + (64 + i) * vocab,
                                vocab * sizeof *cold);
        }
        free(cold);
        runner_close(r);
    }
}

/* Widths, heads and head_dim of the 0.3B (two layers, a short vocabulary): the cuts and panels of
 * the real model. */
static void assert_wide_is_the_same(const struct model *m)
{
    static const int sizes[] = {1, 2, 7, 8, 9, 33, 64, 65, 512};
    struct sequences one = {.n = 1, .len = {530}, .n_tokens = 530};
    struct how eager = {.k = rig_best_kernels(), .threads = 2, .eager = 1, .batch = 1};
    float *expected = run(m, &one, &eager);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct how h = {.k = rig_best_kernels(),
                        .threads = sizes[i] < 33 ? 1 : 2,
                        .batch = 1,
                        .chunk = sizes[i],
                        .permute = 1,
                        .poison = 1};
        float *out = run(m, &one, &h);
        if (memcmp(out, expected, 530 * 2048 * sizeof *out) != 0) {
            fail_msg("M = %d: logits differ", sizes[i]);
        }
        free(out);
    }
    free(expected);
}

static void the_shapes_of_the_0_3b_give_the_same_logits_for_every_m(void **state)
{
    (void)state;
    if (rig_make_model(&dir, "wide", "--layers 2 --vocab 2048") != 0) {
        print_message("SKIPPED: no python3 to make models with\n");
        skip();
    }
    char path[600];
    snprintf(path, sizeof path, "%s/wide", dir.path);
    struct cpu_pool *pool = rig_pool(2);
    struct model *m = rig_load(path, ACT_BF16, rig_best_kernels(), pool);
    assert_wide_is_the_same(m);
    model_close(m);
    m = rig_load_as(path, ACT_BF16, "int8", MODEL_INPUTS_8, rig_best_kernels(), pool);
    assert_wide_is_the_same(m);
    model_close(m);
    cpu_pool_close(pool);
}

/* ---- mutants: one changed rounding ---- */

static const struct kernels *original;
static enum act_type mutant_act;

static void change_last_bit(void *row, size_t element)
{
    if (mutant_act == ACT_BF16) {
        ((uint16_t *)row)[element] ^= 1;
    } else {
        ((uint32_t *)row)[element] ^= 1;
    }
}

static void gemm_add_that_depends_on_m(void *x, size_t ldx, const void *a, size_t lda,
                                       const struct weight *w, int m, int tile0, int tile1)
{
    original->act[mutant_act].gemm_add(x, ldx, a, lda, w, m, tile0, tile1);
    if (m > 7) {
        change_last_bit(x, 3 * ldx);
    }
}

static void gemm_qkv_that_depends_on_the_chunk(const void *a, size_t lda, const struct weight *w,
                                               const struct qkv_rows *r, int m, int head0,
                                               int head1)
{
    original->act[mutant_act].gemm_qkv(a, lda, w, r, m, head0, head1);
    if (r->slot[0] != 0 && head0 == 0) {
        change_last_bit(r->q, 1);
    }
}

static void gemm_swiglu_that_depends_on_the_worker(void *out, size_t ldo, const void *a, size_t lda,
                                                   const struct weight *w, int n, int m, int t0,
                                                   int t1)
{
    original->act[mutant_act].gemm_swiglu(out, ldo, a, lda, w, n, m, t0, t1);
    if (t0 > 0) {
        change_last_bit(out, (size_t)t0 * TILE_N);
    }
}

static void gemm_swiglu_that_rounds_otherwise(void *out, size_t ldo, const void *a, size_t lda,
                                              const struct weight *w, int n, int m, int t0, int t1)
{
    original->act[mutant_act].gemm_swiglu(out, ldo, a, lda, w, n, m, t0, t1);
    if (t0 == 0) {
        change_last_bit(out, 0);
    }
}

/* Runs a comparison for each activation type with one function replaced; it must find a difference
 * in both. */
static void assert_found(const char *what, int (*comparison)(const struct kernels *),
                         void (*mutate)(struct act_kernels *))
{
    struct subject all[MAX_SUBJECTS];
    int n_all = n_subjects;
    memcpy(all, subjects, sizeof all);
    original = rig_best_kernels();
    for (int i = 0; i < n_all && i < 9; i++) {
        if (i == 4) {
            continue; /* int8: int4 takes its inputs */
        }
        struct kernels mutant = *original;
        mutant_act = all[i].act;
        mutate(&mutant.act[mutant_act]);
        subjects[0] = all[i];
        n_subjects = 1;
        int n = comparison(&mutant);
        all[i].reference[0] = subjects[0].reference[0];
        all[i].reference[1] = subjects[0].reference[1];
        memcpy(subjects, all, sizeof all);
        n_subjects = n_all;
        if (n == 0) {
            fail_msg("%s: a changed rounding was not found (%s)", what, all[i].name);
        }
    }
}

static void mutate_m(struct act_kernels *a)
{
    a->gemm_add = gemm_add_that_depends_on_m;
}

static void mutate_chunk(struct act_kernels *a)
{
    a->gemm_qkv = gemm_qkv_that_depends_on_the_chunk;
}

static void mutate_worker(struct act_kernels *a)
{
    a->gemm_swiglu = gemm_swiglu_that_depends_on_the_worker;
}

static void mutate_fused(struct act_kernels *a)
{
    a->gemm_swiglu = gemm_swiglu_that_rounds_otherwise;
}

static void a_rounding_that_depends_on_the_batch_is_found(void **state)
{
    (void)state;
    assert_found("batch", batch_differences, mutate_m);
}

static void a_rounding_that_depends_on_the_chunk_is_found(void **state)
{
    (void)state;
    assert_found("chunk", chunk_differences, mutate_chunk);
}

static void a_rounding_that_depends_on_the_worker_is_found(void **state)
{
    (void)state;
    assert_found("threads", thread_differences, mutate_worker);
}

static int plan_differences(const struct kernels *k)
{
    struct how h = {.k = k, .threads = 1, .batch = 1, .chunk = -30};
    return differences(SHORT, &h);
}

static void a_rounding_in_the_fused_path_is_found(void **state)
{
    (void)state;
    assert_found("fused", plan_differences, mutate_fused);
}

static void align_finds_a_rounding_in_the_fused_path(void **state)
{
    (void)state;
    struct align_result *r = calloc(1, sizeof *r);
    for (int i = 0; i < n_subjects && i < 4; i++) { /* quantization may swallow a last bit */
        const int32_t ids[] = {7, 8, 9, 10, 11, 200, 201};
        struct align_prompt prompt = {ids, 7};
        struct cpu_pool *pool = rig_pool(2);
        struct kernels mutant = *rig_best_kernels();
        struct align_options o = {.model = subjects[i].m,
                                  .kernels = &mutant,
                                  .pool = pool,
                                  .prompts = &prompt,
                                  .n_prompts = 1,
                                  .n_tokens = 8};
        assert_int_equal(align_run(&o, r, NULL), 0);
        assert_true(r->bits_equal && r->ids_equal);
        assert_int_equal(r->prompts[0].first_difference, -1);
        original = rig_best_kernels();
        mutant_act = subjects[i].act;
        mutate_fused(&mutant.act[mutant_act]);
        assert_int_equal(align_run(&o, r, NULL), 0);
        assert_false(r->bits_equal);
        assert_true(r->prompts[0].first_difference >= 0);
        assert_true(r->max_relative_error > 0);
        cpu_pool_close(pool);
    }
    free(r);
}

/* ---- set-up ---- */

static int make_subjects(void **state)
{
    (void)state;
    static const struct {
        const char *name, *options;
    } shapes[] = {
        {"groups-of-8", "--hidden 128 --layers 2 --heads 8 --kv-heads 1 --head-dim 32 "
                        "--intermediate 176 --vocab 500"},
        {"remainders", "--hidden 96 --layers 2 --heads 6 --kv-heads 2 --head-dim 48 --intermediate "
                       "200 --vocab 333 --untied"},
    };
    rig_dir_make(&dir);
    static const struct {
        int shape;
        enum act_type act;
        const char *format;
        enum model_inputs inputs;
        enum kv_format kv;
    } quantized[] = {
        {0, ACT_BF16, "int8", MODEL_INPUTS_8, KV_ACT},
        {1, ACT_BF16, "int4", MODEL_INPUTS_8, KV_ACT},
        {0, ACT_F32, "fp8", MODEL_INPUTS_8, KV_ACT},
        {1, ACT_BF16, "int4", MODEL_INPUTS_16, KV_ACT},
        {0, ACT_BF16, NULL, MODEL_INPUTS_AUTO, KV_F8_E4M3},
        {1, ACT_BF16, NULL, MODEL_INPUTS_AUTO, KV_I8},
        {1, ACT_BF16, "int8", MODEL_INPUTS_8, KV_F8_E5M2},
        {0, ACT_F32, NULL, MODEL_INPUTS_AUTO, KV_I8},
    };
    struct cpu_pool *pool = rig_pool(2);
    for (int i = 0; i < 2; i++) {
        if (rig_make_model(&dir, shapes[i].name, shapes[i].options) != 0) {
            print_message("SKIPPED: no python3 to make models with\n");
            cpu_pool_close(pool);
            return 0;
        }
        for (int act = 0; act < ACT_TYPE_COUNT; act++) {
            struct subject *s = &subjects[n_subjects++];
            s->name = shapes[i].name;
            s->act = (enum act_type)act;
            snprintf(s->path, sizeof s->path, "%s/%s", dir.path, shapes[i].name);
            s->m = rig_load(s->path, s->act, rig_best_kernels(), pool);
        }
    }
    for (size_t i = 0; i < sizeof quantized / sizeof quantized[0]; i++) {
        struct subject *s = &subjects[n_subjects++];
        snprintf(s->path, sizeof s->path, "%s/%s", dir.path, shapes[quantized[i].shape].name);
        const struct model_options o = {.path = s->path,
                                        .act = quantized[i].act,
                                        .kv = quantized[i].kv,
                                        .quantization = quantized[i].format,
                                        .inputs = quantized[i].inputs};
        s->act = o.act;
        s->m = rig_load_with(&o, rig_best_kernels(), pool);
        s->name = quantized[i].kv != KV_ACT ? model_kv_name(s->m) : quantized[i].format;
    }
    cpu_pool_close(pool);
    static const int lengths[] = {1, 15, 16, 17, 33, 255, 256, 257, 512, 530};
    sets[LENGTHS].n = (int)(sizeof lengths / sizeof lengths[0]);
    memcpy(sets[LENGTHS].len, lengths, sizeof lengths);
    unsigned seed = 99;
    sets[SHORT].n = MAX_SEQS;
    for (int i = 0; i < MAX_SEQS; i++) {
        sets[SHORT].len[i] = 1 + (int)(next_random(&seed) % 12);
    }
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < sets[s].n; i++) {
            sets[s].first[i] = sets[s].n_tokens;
            sets[s].n_tokens += sets[s].len[i];
        }
    }
    return 0;
}

static int remove_subjects(void **state)
{
    (void)state;
    for (int i = 0; i < n_subjects; i++) {
        free(subjects[i].reference[0]);
        free(subjects[i].reference[1]);
        model_close(subjects[i].m);
    }
    rig_dir_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_do_not_depend_on_batch_size_or_neighbours),
        cmocka_unit_test(logits_do_not_depend_on_the_chunks_of_a_prompt),
        cmocka_unit_test(logits_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(eager_and_plan_give_the_same_logits),
        cmocka_unit_test(logits_do_not_depend_on_physical_blocks),
        cmocka_unit_test(memory_that_was_never_written_does_not_matter),
        cmocka_unit_test(every_level_equals_the_best_one),
        cmocka_unit_test(a_shared_prefix_gives_the_logits_of_a_cold_start),
        cmocka_unit_test(the_shapes_of_the_0_3b_give_the_same_logits_for_every_m),
        cmocka_unit_test(a_rounding_that_depends_on_the_batch_is_found),
        cmocka_unit_test(a_rounding_that_depends_on_the_chunk_is_found),
        cmocka_unit_test(a_rounding_that_depends_on_the_worker_is_found),
        cmocka_unit_test(a_rounding_in_the_fused_path_is_found),
        cmocka_unit_test(align_finds_a_rounding_in_the_fused_path),
    };
    return cmocka_run_group_tests(tests, make_subjects, remove_subjects);
}
