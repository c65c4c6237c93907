/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench kernels: what kernels do per second, beside what this machine can do; bench machine:
 * the latter alone.
 *
 * Limits are measured by the same threads in the same run: reading memory with four streams a
 * thread, and multiply-adds on registers. Other programs disturb both, so each line alternates many
 * times between the limit and the kernel and compares medians (for arithmetic: the best limit so
 * far). Time is the CPU time of the slowest thread, so that a thread that was put aside for another
 * program does not count as slow. Shapes are those of ERNIE-4.5-0.3B; weights walk through a buffer
 * far larger than any cache, as they do in a decode step. */
#include "cmd/args.h"
#include "cmd/bench.h"
#include "cpu/pool.h"
#include "kernels/kernels.h"
#include "kernels/peak.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POOL_BYTES  ((size_t)640 << 20)
#define PROBE_BYTES ((size_t)64 << 20)
#define N_REPEATS   15
#define MAX_THREADS 64

struct bench {
    const struct kernels *k;
    struct cpu_pool *pool;
    int n_threads;
    const char *filter;
    struct buf *words; /* not NULL: nothing is run, what --only could name is collected here */
    int n_wanted;      /* lines that --only leaves */
    char *weights;     /* POOL_BYTES of bf16 values */
    size_t at;         /* where the next matrix starts */
    uint16_t *a, *x, *out;
    float *c, *acc, *scratch;
    double gbps, gflops_bf16, gflops_f32, gops_i8; /* limits; gbps is the median of `probes` */
    double probes[N_REPEATS];
    uint64_t sink[MAX_THREADS];
    cpu_task *task; /* what `timed` runs, and how long each worker took */
    void *arg;
    uint64_t cpu_ns[MAX_THREADS];
};

static uint64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void timed(void *arg, int worker, int n_workers)
{
    struct bench *b = arg;
    uint64_t start = thread_ns();
    b->task(b->arg, worker, n_workers);
    b->cpu_ns[worker] = thread_ns() - start;
}

/* Seconds that the slowest worker computed. */
static double seconds(struct bench *b, cpu_task *task, void *arg)
{
    uint64_t most = 0;
    b->task = task;
    b->arg = arg;
    cpu_pool_run(b->pool, timed, b);
    for (int i = 0; i < b->n_threads; i++) {
        most = b->cpu_ns[i] > most ? b->cpu_ns[i] : most;
    }
    return (double)most * 1e-9;
}

/* ---- limits ---- */

/* A word of each line, so that the loads of narrow registers aren't the limit. */
static uint64_t read_plain(const char *p, size_t quarter)
{
    uint64_t s[4] = {0}, v[4];
    for (size_t i = 0; i < quarter; i += 64) {
        for (size_t j = 0; j < 4; j++) {
            memcpy(&v[j], p + j * quarter + i, 8);
            s[j] |= v[j];
        }
    }
    return s[0] | s[1] | s[2] | s[3];
}

static void read_task(void *arg, int worker, int n_workers)
{
    struct bench *b = arg;
    size_t share = PROBE_BYTES / (size_t)n_workers / 256 * 256;
    const char *p = b->weights + b->at + (size_t)worker * share;
#if defined(__x86_64__)
    if (b->k->level >= CPU_AVX512) {
        b->sink[worker] += peak_read(p, share / 4);
        return;
    }
#endif
    b->sink[worker] += read_plain(p, share / 4);
}

#if defined(__x86_64__)
#define SPIN_ROUNDS 200000L
static void spin(const struct bench *b, enum peak_kind kind)
{
    peak_spin(b->k->level, kind, SPIN_ROUNDS);
}

static void spin_bf16_task(void *arg, int worker, int n_workers)
{
    (void)worker;
    (void)n_workers;
    spin(arg, PEAK_BF16);
}

static void spin_i8_task(void *arg, int worker, int n_workers)
{
    (void)worker;
    (void)n_workers;
    spin(arg, PEAK_I8);
}

static void spin_f32_task(void *arg, int worker, int n_workers)
{
    (void)worker;
    (void)n_workers;
    spin(arg, PEAK_F32);
}
#endif

static void keep_best(double *best, double value)
{
    *best = value > *best ? value : *best;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    return x[n / 2];
}

/* Where the next n_bytes of weights are: a walk through the whole pool, so that nothing is still in
 * a cache. */
static const char *next_weights(struct bench *b, size_t n_bytes)
{
    b->at = b->at + n_bytes > POOL_BYTES ? 0 : b->at;
    const char *p = b->weights + b->at;
    b->at += (n_bytes + 4095) / 4096 * 4096;
    return p;
}

static void probe_memory(struct bench *b, int i)
{
    b->at = b->at + PROBE_BYTES > POOL_BYTES ? 0 : b->at;
    b->probes[i] = (double)PROBE_BYTES / seconds(b, read_task, b) * 1e-9;
    b->at += PROBE_BYTES;
}

static void probe_arithmetic(struct bench *b)
{
#if defined(__x86_64__)
    double rounds = (double)SPIN_ROUNDS * b->n_threads;
    if (b->k->level == CPU_AVX512_BF16) {
        keep_best(&b->gflops_bf16, rounds * 24 * 64 / seconds(b, spin_bf16_task, b) * 1e-9);
    }
    if (b->k->level >= CPU_AVX2) {
        double ops = b->k->level == CPU_AVX512_BF16 ? 24 * 128
                     : b->k->level == CPU_AVX512    ? 12 * 64
                                                    : 12 * 32;
        keep_best(&b->gops_i8, rounds * ops / seconds(b, spin_i8_task, b) * 1e-9);
    }
    if (b->k->level >= CPU_AVX512) {
        keep_best(&b->gflops_f32, rounds * 24 * 32 / seconds(b, spin_f32_task, b) * 1e-9);
    } else if (b->k->level == CPU_AVX2) {
        keep_best(&b->gflops_f32, rounds * 12 * 16 / seconds(b, spin_f32_task, b) * 1e-9);
    }
#else
    (void)b;
    keep_best(&b->gflops_f32, 0);
#endif
}

/* Median seconds of a task, alternated with the memory probe, whose median becomes b->gbps. */
static double measure(struct bench *b, cpu_task *task, void *arg)
{
    double s[N_REPEATS];
    probe_arithmetic(b);
    for (int i = 0; i < N_REPEATS; i++) {
        probe_memory(b, i);
        s[i] = seconds(b, task, arg);
    }
    b->gbps = median(b->probes, N_REPEATS);
    return median(s, N_REPEATS);
}

/* ---- what --only leaves ---- */

static void collect(struct buf *words, const char *word)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, " '%s'", word);
    if (!words->data || !strstr(words->data, quoted)) {
        buf_puts(words, quoted);
    }
}

/* format: NULL for a line that has none. */
static int wanted(struct bench *b, const char *name, const char *format)
{
    int yes = !b->filter || strstr(name, b->filter) || (format && !strcmp(format, b->filter));
    b->n_wanted += yes;
    if (b->words) {
        collect(b->words, name);
        if (format) {
            collect(b->words, format);
        }
    }
    return yes && !b->words;
}

/* ---- matrix products ---- */

enum op { GEMM, GEMM_ADD, GEMM_SWIGLU };
struct product {
    const char *name;
    enum op op;
    enum act_type t;
    int n, k;
    const struct kind *kind; /* NULL: bf16 */
};

/* A quantized format. */
struct kind {
    const char *name;
    struct weight w; /* all but shape and data */
};
static const struct kind kinds[] = {
    {"i8", {.format = WEIGHT_I8, .input = INPUT_I8, .scale_type = DTYPE_BF16, .group = 1 << 20}},
    {"i8-32", {.format = WEIGHT_I8, .input = INPUT_I8, .scale_type = DTYPE_F16, .group = 32}},
    {"i4-32", {.format = WEIGHT_I4, .input = INPUT_I8, .scale_type = DTYPE_F16, .group = 32}},
    {"i4-128z",
     {.format = WEIGHT_I4,
      .input = INPUT_I8,
      .scale_type = DTYPE_F16,
      .group = 128,
      .has_zero = 1}},
    {"i4a16", {.format = WEIGHT_I4, .scale_type = DTYPE_F16, .group = 128, .has_zero = 1}},
    {"q4k",
     {.format = WEIGHT_I4,
      .input = INPUT_I8,
      .scale_type = DTYPE_F16,
      .group = 32,
      .super = 256,
      .has_offset = 1}},
    {"q6k",
     {.format = WEIGHT_I6, .input = INPUT_I8, .scale_type = DTYPE_F16, .group = 16, .super = 256}},
    {"c2",
     {.format = WEIGHT_C2,
      .input = INPUT_I8,
      .scale_type = DTYPE_BF16,
      .group = 64,
      .super = 1 << 20}},
    {"f8", {.format = WEIGHT_F8_E4M3, .input = INPUT_E4M3, .scale_type = DTYPE_F32, .group = 128}},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

static struct weight weight_like(const struct product *p)
{
    struct weight w = {.format = WEIGHT_BF16};
    if (p->kind != NULL) {
        w = p->kind->w;
    }
    w.n = p->n;
    w.k = p->k;
    return w;
}

struct product_run {
    struct bench *b;
    const struct product *p;
    struct weight w;
    int m, n_runs;
    size_t n_bytes;
};

static void product_task(void *arg, int worker, int n_workers)
{
    struct product_run *r = arg;
    struct bench *b = r->b;
    const struct act_kernels *k = &b->k->act[r->p->t];
    int t0, t1, tiles = r->w.n / 16;
    size_t ldk = (size_t)r->w.k, ldn = (size_t)r->w.n;
    if (r->w.input != INPUT_ACT) {
        ldk = input_row_bytes(r->w.input, r->w.k, r->w.group) + 64;
    }
    if (r->p->op == GEMM_SWIGLU) {
        cpu_split(tiles / 2, 2, worker, n_workers, &t0, &t1);
        k->gemm_swiglu(b->out, ldn / 2, b->a, ldk, &r->w, r->w.n / 2, r->m, t0, t1);
        return;
    }
    cpu_split(tiles, 4, worker, n_workers, &t0, &t1);
    if (r->p->op == GEMM_ADD) {
        k->gemm_add(b->x, ldn, b->a, ldk, &r->w, r->m, t0, t1);
    } else {
        k->gemm(b->c + (size_t)t0 * 16, ldn, b->a, ldk, &r->w, r->m, t0, t1);
    }
}

/* As many runs as make some 64 MB of weights, each with other weights. */
static void product_runs(void *arg, int worker, int n_workers)
{
    struct product_run *r = arg, one = *r;
    for (int i = 0; i < r->n_runs; i++) {
        one.w.data = (const char *)r->w.data + (size_t)i * r->n_bytes;
        product_task(&one, worker, n_workers);
        cpu_pool_barrier(r->b->pool, worker);
    }
}

static void bench_product(struct bench *b, const struct product *p, int m)
{
    struct product_run r = {b, p, weight_like(p), m, 1, 0};
    const char *format = p->kind != NULL ? p->kind->name : p->t == ACT_BF16 ? "bf16" : "f32";
    double s[N_REPEATS], flops = 2.0 * m * p->n * p->k;
    if (!wanted(b, p->name, format)) {
        return;
    }
    r.n_bytes = weight_bytes(&r.w);
    r.n_runs = m > 32 ? 1 : (int)(PROBE_BYTES / r.n_bytes);
    r.n_runs = r.n_runs < 1 ? 1 : r.n_runs;
    probe_arithmetic(b);
    for (int i = 0; i < N_REPEATS; i++) {
        probe_memory(b, i);
        r.w.data = next_weights(b, r.n_bytes * (size_t)r.n_runs);
        s[i] = seconds(b, product_runs, &r) / r.n_runs;
    }
    b->gbps = median(b->probes, N_REPEATS);
    double t = median(s, N_REPEATS), gbps = (double)r.n_bytes / t * 1e-9, gflops = flops / t * 1e-9;
    double peak = p->t == ACT_BF16 && b->gflops_bf16 > 0 ? b->gflops_bf16 : b->gflops_f32;
    peak = r.w.input == INPUT_I8 ? b->gops_i8 : peak;
    printf(
        "%-12s %-7s M %4d N %6d K %4d %9.1f us %7.1f of %5.1f GB/s %5.1f%% %8.1f GOP/s %5.1f%%\n",
        p->name, format, m, p->n, p->k, t * 1e6, gbps, b->gbps, 100 * gbps / b->gbps, gflops,
        peak > 0 ? 100 * gflops / peak : 0.0);
    fflush(stdout);
}

/* ---- a whole decode step's products, in order, one barrier apart ---- */

static const struct product layer[] = {
    {"qkv", GEMM, ACT_BF16, 2560, 1024, NULL},
    {"o", GEMM_ADD, ACT_BF16, 1024, 2048, NULL},
    {"gate_up", GEMM_SWIGLU, ACT_BF16, 6144, 1024, NULL},
    {"down", GEMM_ADD, ACT_BF16, 1024, 3072, NULL},
};
static const struct product head = {"lm_head", GEMM, ACT_BF16, 103424, 1024, NULL};

struct step_run {
    struct bench *b;
    const struct kind *kind;
};

static void step_task(void *arg, int worker, int n_workers)
{
    struct step_run *step = arg;
    struct bench *b = step->b;
    size_t at = 0;
    for (int i = 0; i < 18 * 4 + 1; i++) {
        struct product p = i < 72 ? layer[i % 4] : head;
        p.kind = step->kind;
        struct product_run r = {b, &p, weight_like(&p), 1, 1, 0};
        size_t n = weight_bytes(&r.w);
        at = at + n > POOL_BYTES ? 0 : at;
        r.w.data = b->weights + at;
        at += n;
        product_task(&r, worker, n_workers);
        cpu_pool_barrier(b->pool, worker);
    }
}

static void bench_step(struct bench *b, const struct kind *kind)
{
    struct step_run r = {b, kind};
    const char *format = kind ? kind->name : "bf16";
    double n_bytes = 0;
    for (int i = 0; i < 18 * 4 + 1; i++) {
        struct product p = i < 72 ? layer[i % 4] : head;
        p.kind = kind;
        struct weight w = weight_like(&p);
        n_bytes += (double)weight_bytes(&w);
    }
    if (!wanted(b, "step", format)) {
        return;
    }
    double t = measure(b, step_task, &r), gbps = n_bytes / t * 1e-9;
    printf("%-12s %-7s M    1 %-15s %9.1f us %7.1f of %5.1f GB/s %5.1f%%\n", "step", format,
           "all 0.3B", t * 1e6, gbps, b->gbps, 100 * gbps / b->gbps);
}

/* ---- the rest ---- */

struct attn_run {
    struct bench *b;
    enum act_type t;
    enum kv_format kv;
    int n_q, n_parts;
};

static void attn_task(void *arg, int worker, int n_workers)
{
    struct attn_run *r = arg;
    struct bench *b = r->b;
    int32_t visible[ATTN_MAX_Q];
    const void *tiles[32];
    float m[ATTN_MAX_Q], l[ATTN_MAX_Q];
    size_t tile_bytes = kv_tile_bytes(r->kv, r->t, 128);
    int p0, p1;
    for (int i = 0; i < r->n_q; i++) {
        visible[i] = 256;
    }
    cpu_split(r->n_parts, 1, worker, n_workers, &p0, &p1);
    for (int p = p0; p < p1; p++) {
        for (size_t i = 0; i < 32; i++) {
            tiles[i] = b->weights + ((size_t)p * 16 + i) * tile_bytes % (POOL_BYTES / 2);
        }
        struct attn_part part = {.q = b->a,
                                 .n_q = r->n_q,
                                 .head_dim = 128,
                                 .scale = 0.088f,
                                 .visible = visible,
                                 .kv = r->kv,
                                 .tiles = tiles,
                                 .next = tiles + 16,
                                 .n_next = p + 1 < p1 ? 16 : 0,
                                 .m = m,
                                 .l = l,
                                 .acc = b->acc + (size_t)worker * ATTN_MAX_Q * 128,
                                 .scratch = b->scratch + (size_t)worker * ATTN_SCRATCH_FLOATS};
        b->k->act[r->t].attn_part(&part);
    }
}

static void bench_attention(struct bench *b, enum act_type t, enum kv_format kv, int n_q)
{
    static const char *const names[] = {"", "e4m3", "e5m2", "i8"};
    struct attn_run r = {b, t, kv, n_q, 2000 / (1 + n_q / 8)};
    if (!wanted(b, "attention", NULL)) {
        return;
    }
    double best = measure(b, attn_task, &r);
    double bytes = (double)r.n_parts * 16 * (double)kv_tile_bytes(kv, t, 128),
           flops = r.n_parts * 256.0 * 128 * 4 * n_q;
    double peak = t == ACT_BF16 && b->gflops_bf16 > 0 ? b->gflops_bf16 : b->gflops_f32;
    printf("%-12s %-4s KV %-4s queries %2d, 256 positions %6.1f us %9.1f GB/s %5.1f%% %8.1f GOP/s "
           "%5.1f%%\n",
           "attention", t == ACT_BF16 ? "bf16" : "f32", names[kv], n_q, best * 1e6 / r.n_parts,
           bytes / best * 1e-9, 100 * bytes / best * 1e-9 / b->gbps, flops / best * 1e-9,
           peak > 0 ? 100 * flops / best * 1e-9 / peak : 0.0);
}

static void rows_task(void *arg, int worker, int n_workers)
{
    struct bench *b = arg;
    int r0, r1;
    cpu_split(512, 1, worker, n_workers, &r0, &r1);
    const struct act_kernels *k = &b->k->act[ACT_BF16];
    size_t at = (size_t)r0 * 3072;
    k->rmsnorm(b->out + at, 1024, b->x + at, 1024, b->c, 1e-5f, r1 - r0, 1024);
    k->add(b->x + at, 1024, b->c + at, 1024, r1 - r0, 1024);
    k->swiglu(b->out + at, 3072, b->c + at, 3072, b->c + at, 3072, r1 - r0, 3072);
}

static void logits_task(void *arg, int worker, int n_workers)
{
    struct bench *b = arg;
    float max;
    double sum;
    (void)n_workers;
    if (worker == 0) {
        b->sink[0] += (uint64_t)b->k->argmax(b->c, 103424);
        b->k->logsumexp(b->c, 103424, &max, &sum);
        b->sink[0] += (uint64_t)sum;
    }
}

static void pack_task(void *arg, int worker, int n_workers)
{
    struct bench *b = arg;
    int t0, t1;
    size_t half = POOL_BYTES / 2;
    cpu_split(6144 * 8 / 16, 4, worker, n_workers, &t0, &t1);
    b->k->pack(b->weights + half, WEIGHT_BF16, 6144 * 8, 1024, b->weights, DTYPE_BF16, 1024, 1, t0,
               t1, 1, 0);
}

static void pack_in_out_task(void *arg, int worker, int n_workers)
{
    struct bench *b = arg;
    int t0, t1;
    size_t half = POOL_BYTES / 2;
    for (size_t i = 0; i < 8; i++) {
        cpu_split(6144 / 16, 4, worker, n_workers, &t0, &t1);
        b->k->pack(b->weights + half + i * 6144 * 2048, WEIGHT_BF16, 6144, 1024,
                   b->weights + i * 6144 * 2048, DTYPE_BF16, 1, 6144, t0, t1, 1, 0);
    }
}

static void bench_simple(struct bench *b, const char *name, cpu_task *task, double bytes)
{
    if (!wanted(b, name, NULL)) {
        return;
    }
    double t = measure(b, task, b);
    printf("%-40s %9.1f us %7.1f GB/s\n", name, t * 1e6, bytes / t * 1e-9);
}

static void fill_task(void *arg, int worker, int n_workers)
{
    struct bench *b = arg;
    size_t share = POOL_BYTES / 2 / (size_t)n_workers;
    uint16_t *p = (uint16_t *)(void *)b->weights + (size_t)worker * share;
    uint64_t s = 88172645463325252u + (uint64_t)worker;
    for (size_t i = 0; i < share; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        p[i] = (uint16_t)(0x3c00u | (s >> 40 & 0x81ffu)); /* +-0.008 .. +-0.03 */
    }
}

static void limits_now(struct bench *b)
{
    for (int i = 0; i < N_REPEATS; i++) {
        probe_memory(b, i);
        probe_arithmetic(b);
    }
    b->gbps = median(b->probes, N_REPEATS);
}

static void run_all(struct bench *b)
{
    static const struct product wide = {"gate_up", GEMM_SWIGLU, ACT_F32, 6144, 1024, NULL};
    static const int ms[] = {1, 2, 4, 6, 8, 12, 16, 32, 64, 128, 512};
    for (int i = -1; i < (int)N_KINDS; i++) {
        bench_step(b, i < 0 ? NULL : &kinds[i]);
    }
    for (size_t i = 0; i < 5 * (1 + N_KINDS); i++) {
        struct product p = i % 5 < 4 ? layer[i % 5] : head;
        p.kind = i < 5 ? NULL : &kinds[i / 5 - 1];
        for (size_t j = 0; j < sizeof ms / sizeof ms[0]; j++) {
            if (p.n < 100000 || ms[j] <= 32) {
                bench_product(b, &p, ms[j]);
            }
        }
    }
    bench_product(b, &wide, 1);
    bench_product(b, &wide, 8);
    bench_product(b, &wide, 128);
    for (int t = 0; t < ACT_TYPE_COUNT; t++) {
        for (int kv = KV_ACT; kv < KV_FORMAT_COUNT; kv++) {
            bench_attention(b, (enum act_type)t, (enum kv_format)kv, 8);
            bench_attention(b, (enum act_type)t, (enum kv_format)kv, 64);
        }
    }
    bench_simple(b, "rmsnorm, add 512x1024, swiglu 512x3072", rows_task,
                 512 * 1024 * 10.0 + 512 * 3072 * 10.0);
    bench_simple(b, "argmax, logsumexp of 103424", logits_task, 103424 * 16.0);
    bench_simple(b, "pack [out, in]", pack_task, 6144 * 8 * 1024 * 2.0);
    bench_simple(b, "pack [in, out]", pack_in_out_task, 6144 * 8 * 1024 * 2.0);
}

static void print_limits(const struct bench *b)
{
    printf("level %s, %d thread%s: %.1f GB/s read, %.0f GFLOP/s bf16, %.0f GFLOP/s f32, %.0f GOP/s "
           "int8\n",
           cpu_level_name(b->k->level), b->n_threads, b->n_threads > 1 ? "s" : "", b->gbps,
           b->gflops_bf16, b->gflops_f32, b->gops_i8);
    fflush(stdout);
}

/* The limits of n_threads; the pool stays open. */
static int measure_limits(struct bench *b, int n_threads, const struct cpu_limits *limits,
                          struct err *e)
{
    cpu_pool_close(b->pool);
    b->pool = NULL;
    b->n_threads = n_threads;
    b->gbps = b->gflops_bf16 = b->gflops_f32 = b->gops_i8 = 0;
    int rc = cpu_pool_open(&b->pool, n_threads, limits->cpu_ids, e);
    if (rc >= 0) {
        cpu_pool_run(b->pool, fill_task, b);
        limits_now(b);
        print_limits(b);
    }
    return rc;
}

struct args_kernels {
    const char *level, *only;
};

static int run(const struct args_kernels *a, int only_machine, struct err *e)
{
    struct bench b = {.filter = a->only};
    struct cpu_limits limits;
    enum cpu_level chosen;
    const size_t n_c = (size_t)512 * 6144 + 103424 * 32;
    if (cpu_level_choose(a->level, &chosen, e) < 0 || cpu_limits_read(&limits, e) < 0) {
        return e->code;
    }
    int n_threads = limits.n_threads < MAX_THREADS ? limits.n_threads : MAX_THREADS, rc = 0;
    b.k = kernels_get(chosen);
    b.weights = cpu_big_alloc(POOL_BYTES);
    b.a = cpu_big_alloc(512 * 3072 * 4);
    b.x = cpu_big_alloc(512 * 6144 * 4);
    b.out = cpu_big_alloc(512 * 6144 * 4);
    b.c = cpu_big_alloc(n_c * 4);
    b.acc = cpu_big_alloc((size_t)n_threads * ATTN_MAX_Q * 128 * 4);
    b.scratch = cpu_big_alloc((size_t)n_threads * ATTN_SCRATCH_FLOATS * 4);
    if (!b.weights || !b.a || !b.x || !b.out || !b.c || !b.acc || !b.scratch) {
        rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    rc = rc < 0 ? rc : measure_limits(&b, 1, &limits, e);
    rc = rc < 0 || n_threads == 1 ? rc : measure_limits(&b, n_threads, &limits, e);
    if (rc >= 0 && !only_machine) {
        memcpy(b.a, b.weights, 512 * 3072 * 4);
        run_all(&b);
    }
    cpu_pool_close(b.pool);
    cpu_big_free(b.weights, POOL_BYTES);
    cpu_big_free(b.a, 512 * 3072 * 4);
    cpu_big_free(b.x, 512 * 6144 * 4);
    cpu_big_free(b.out, 512 * 6144 * 4);
    cpu_big_free(b.c, n_c * 4);
    cpu_big_free(b.acc, (size_t)n_threads * ATTN_MAX_Q * 128 * 4);
    cpu_big_free(b.scratch, (size_t)n_threads * ATTN_SCRATCH_FLOATS * 4);
    return rc;
}

#define FIELD(f) offsetof(struct args_kernels, f)
static const struct opt rows[] = {
    {.name = "level",
     .type = OPT_STRING,
     .offset = FIELD(level),
     .group = "Kernels",
     .meta = "NAME",
     .help = "Instruction-set level, as --cpu-mask of serve. Default: the best here."},
    {.name = "only",
     .type = OPT_STRING,
     .offset = FIELD(only),
     .group = "Kernels",
     .meta = "TEXT",
     .help = "Only lines whose name has this in it (step, attention, lm_head, …), or of this "
             "format (bf16, i8, …)."},
};

/* Returns -1 to go on, else the exit code. */
static int check_only(const char *only, const char *name, const char *usage)
{
    struct buf words;
    buf_init(&words);
    struct bench b = {.filter = only, .words = &words};
    run_all(&b);
    if (b.n_wanted == 0) {
        fprintf(stderr,
                "usage: %s\n%s: error: --only: no line has '%s' in its name or as its format; "
                "there are%s\n",
                usage, name, only, words.data ? words.data : "");
    }
    buf_fini(&words);
    return b.n_wanted ? -1 : EXIT_USAGE;
}

static int command(const char *name, const char *usage, int n_rows, int argc, char **argv)
{
    struct args_kernels a = {0};
    struct opts o = {.usage = usage, .tables = {{rows, (size_t)n_rows, &a}}, .n_tables = 1};
    struct err e = {0, ""};
    int rc = args_parse(&o, name, argc, argv);
    rc = rc < 0 ? args_words(&o, name, 0) : rc;
    rc = rc < 0 && a.only ? check_only(a.only, name, usage) : rc;
    if (rc < 0) {
        rc = run(&a, n_rows == 1, &e);
        rc = rc < 0 ? args_fail(name, &e) : 0;
    }
    opts_fini(&o);
    return rc;
}

int bench_kernels(int argc, char **argv)
{
    return command("tern bench kernels", "tern bench kernels [options]", 2, argc, argv);
}

int bench_machine(int argc, char **argv)
{
    return command("tern bench machine", "tern bench machine [options]", 1, argc, argv);
}
