/* SPDX-License-Identifier: Apache-2.0 */
/* kcheck: runs every kernel of every level this machine has against the scalar reference and
 * demands equal bits.
 *
 *   kcheck [--level NAME] [--seed N] [--quick | --small]
 *
 * --quick takes a sixth of the matrix shapes; --small a quarter of those that an emulator gets
 * through in minutes. Exit 1 on a difference. The reference, which is also the scalar level, is
 * compared with itself only when it is asked for or alone.
 *
 * Every buffer ends at a page that may not be touched, inputs include zeros, denormals, infinities
 * and huge values, memory that a kernel must not read as numbers holds NaN, and memory that it must
 * not write is compared too. All NaNs count as equal: their payload is not part of the contract. */
#include "cpu/pool.h"
#include "kernels/kernels.h"
#include "kernels/ref/math.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum mode { PLAIN, EDGE, TINY }; /* of generated values */

struct checker {
    const struct kernels *ref, *level[8];
    int n_levels;
    uint64_t seed;
    long n_cases, n_bad;
    int quick, small, n_shapes;
};

/* ---- random values ---- */

static uint32_t next(struct checker *c)
{
    c->seed = c->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(c->seed >> 33) ^ (uint32_t)(c->seed >> 17 << 16);
}

static int below(struct checker *c, int n)
{
    return (int)(next(c) % (uint32_t)n);
}

static float value(struct checker *c, enum mode mode)
{
    static const float edge[] = {0.0f,        -0.0f,    0x1p-149f, -0x1p-130f, 0x1p-126f,
                                 0x1.fp-127f, 1.0f,     -1.0f,     65504.0f,   0x1p60f,
                                 -0x1p60f,    0x1p-60f, -0x1p-63f, 88.7f,      -87.4f,
                                 -104.5f,     0x1p127f, INFINITY,  -INFINITY,  NAN};
    if (mode == EDGE && below(c, 12) == 0) {
        return edge[below(c, (int)(sizeof edge / sizeof edge[0]))];
    }
    float x = ((float)(next(c) % 65536u) - 32767.5f) / 16384.0f;
    return mode == TINY ? x * 0x1p-64f * (float)(1 << below(c, 4)) : x;
}

/* ---- buffers that end at a guard page ---- */

struct guarded {
    char *map;
    size_t n_map;
};
static struct guarded guarded[256]; /* this program is single-threaded while it checks */
static int n_guarded;

static void *guard(size_t n_bytes, size_t align)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t body = (n_bytes + page - 1) / page * page;
    char *map = mmap(NULL, body + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || n_guarded == 256 ||
        (body && mprotect(map + page, body, PROT_READ | PROT_WRITE) < 0)) {
        fprintf(stderr, "kcheck: out of memory\n");
        exit(2);
    }
    guarded[n_guarded++] = (struct guarded){map, body + 2 * page};
    char *p = map + page + body - n_bytes;
    return p - (uintptr_t)p % align;
}

static void release_all(void)
{
    while (n_guarded > 0) {
        n_guarded--;
        munmap(guarded[n_guarded].map, guarded[n_guarded].n_map);
    }
}

/* rows x ld activation values; the last row ends after n elements, at the guard page. */
static void *activations(struct checker *c, int rows, size_t ld, int n, enum act_type t,
                         enum mode mode, size_t align)
{
    size_t count = (size_t)(rows - 1) * ld + (size_t)n;
    void *p = guard(count * act_size(t), align);
    for (size_t i = 0; i < count; i++) {
        float v = value(c, mode);
        if (t == ACT_BF16) {
            ((uint16_t *)p)[i] = f32_to_bf16(v);
        } else {
            ((float *)p)[i] = v;
        }
    }
    return p;
}

static float *floats(struct checker *c, int rows, size_t ld, int n, enum mode mode)
{
    return activations(c, rows, ld, n, ACT_F32, mode, 4);
}

static void *copy_of(const void *p, size_t n_bytes, size_t align)
{
    void *q = guard(n_bytes, align);
    memcpy(q, p, n_bytes);
    return q;
}

/* What a matrix of a test is made of besides n, k and random numbers. */
struct kind {
    enum act_type t;
    enum weight_format f;
    enum input_format input;
    enum dtype scale_type;
    int group, has_zero, has_order, super, has_offset;
    float input_scale;
};

static void fill_dense(struct checker *c, const struct weight *w, enum mode mode)
{
    void *data = (void *)(uintptr_t)w->data;
    size_t pairs = (size_t)w->k / 2;
    for (size_t row = 0; row < ((size_t)w->n + 15) / 16 * 16; row++) {
        for (size_t col = 0; col < (size_t)w->k; col++) {
            size_t e = (row / 16 * pairs + col / 2) * 32 + row % 16 * 2 + col % 2;
            float v = row < (size_t)w->n ? value(c, mode) : 0.0f;
            if (w->format == WEIGHT_BF16) {
                ((uint16_t *)data)[e] = f32_to_bf16(v);
            } else {
                ((float *)data)[e] = v;
            }
        }
    }
}

/* Any code but those of NaN and infinity. */
static uint8_t code_of(struct checker *c, enum weight_format f)
{
    uint8_t code = (uint8_t)next(c);
    if (f == WEIGHT_I4 || f == WEIGHT_I6) {
        return code & (f == WEIGHT_I4 ? 15 : 63);
    }
    if (f == WEIGHT_F8_E4M3 && (code & 0x7f) == 0x7f) {
        return 0x7e;
    }
    return f == WEIGHT_F8_E5M2 && (code & 0x7f) >= 0x7c ? 0x7b : code;
}

static float scale_value(struct checker *c, const struct weight *w, enum mode mode)
{
    const float s = value(c, mode);
    return w->scale_type == DTYPE_F32   ? s
           : w->scale_type == DTYPE_F16 ? f16_to_f32(f32_to_f16(s))
                                        : bf16_to_f32(f32_to_bf16(s));
}

/* The rest of a tile with scales in two levels; grids of windows reach over both ends now and
 * then. */
static void fill_levels(struct checker *c, const struct weight *w, int tile, int rows,
                        enum mode mode)
{
    const size_t groups = (size_t)weight_groups(w), supers = (size_t)weight_supers(w);
    struct weight_levels l = {malloc(16 * groups), malloc(16 * groups),
                              malloc(16 * supers * sizeof(float)), malloc(32 * sizeof(float))};
    for (size_t i = 0; i < 16 * groups; i++) {
        l.sub[i] = (int8_t)next(c);
        l.sub_offset[i] = (int8_t)next(c);
    }
    for (size_t i = 0; i < 16 * supers; i++) {
        l.offset[i] = scale_value(c, w, mode);
    }
    for (size_t i = 0; i < 16; i++) {
        l.grid[2 * i] = 64.0f + value(c, PLAIN) * 40.0f;
        l.grid[2 * i + 1] = value(c, PLAIN) * 8000.0f;
    }
    weight_pack_levels(w, tile, &l, rows);
    free(l.sub);
    free(l.sub_offset);
    free(l.offset);
    free(l.grid);
}

static void fill_quantized(struct checker *c, const struct weight *w, enum mode mode)
{
    const size_t k = (size_t)w->k;
    const size_t groups = (size_t)(w->super != 0 ? weight_supers(w) : weight_groups(w));
    uint8_t *codes = malloc(16 * k), *zeros = malloc(16 * groups);
    float *scales = malloc(16 * groups * sizeof *scales);
    for (int tile = 0; tile * 16 < w->n; tile++) {
        for (size_t i = 0; i < 16 * k; i++) {
            codes[i] = code_of(c, w->format);
        }
        for (size_t i = 0; i < 16 * groups; i++) {
            scales[i] = scale_value(c, w, mode);
            zeros[i] = (uint8_t)below(c, w->format == WEIGHT_I8 ? 256 : 17);
        }
        const int rows = w->n - tile * 16 < 16 ? w->n - tile * 16 : 16;
        weight_pack_tile(w, tile, codes, k, scales, groups, w->has_zero ? zeros : NULL, groups,
                         rows);
        if (w->super != 0) {
            fill_levels(c, w, tile, rows, mode);
        }
    }
    free(codes);
    free(zeros);
    free(scales);
}

/* Two orders of columns, by turns. */
static const int32_t *const *orders(struct checker *c, int k, int n_tiles)
{
    const int32_t **tiles = guard((size_t)n_tiles * sizeof *tiles, sizeof *tiles);
    int32_t *order[2];
    for (int o = 0; o < 2; o++) {
        order[o] = guard((size_t)k * sizeof **order, sizeof **order);
        for (int i = 0; i < k; i++) {
            int j = below(c, i + 1);
            order[o][i] = order[o][j];
            order[o][j] = i;
        }
    }
    for (int i = 0; i < n_tiles; i++) {
        tiles[i] = order[i / 2 % 2];
    }
    return tiles;
}

static struct weight weight_of(struct checker *c, const struct kind *q, int n, int k,
                               enum mode mode)
{
    struct weight w = {.format = q->f, .n = n, .k = k};
    if (weight_is_quantized(&w)) {
        w.input = q->input;
        w.scale_type = q->scale_type;
        w.group = q->group;
        w.has_zero = q->has_zero;
        w.super = q->super;
        w.has_offset = q->has_offset;
        w.input_scale = q->input_scale;
        w.order = q->has_order ? orders(c, k, (n + 15) / 16) : NULL;
    }
    w.data = guard(weight_bytes(&w), 64);
    if (weight_is_quantized(&w)) {
        fill_quantized(c, &w, mode);
    } else {
        fill_dense(c, &w, mode);
    }
    return w;
}

/* m rows that a product with w reads. */
static void *input_of(struct checker *c, const struct weight *w, int m, enum act_type t,
                      enum mode mode, size_t *lda)
{
    *lda = (size_t)w->k + (size_t)below(c, 3);
    void *x = activations(c, m, *lda, w->k, t, mode, act_size(t));
    if (w->input == INPUT_ACT) {
        return x;
    }
    size_t ldx = *lda, row = input_row_bytes(w->input, w->k, w->group);
    *lda = row + (size_t)below(c, 2) * 64;
    void *a = guard((size_t)(m - 1) * *lda + row, 64);
    c->ref->act[t].quantize(a, *lda, x, ldx, m, w->k, w->input, w->group, w->input_scale);
    return a;
}

/* ---- comparison ---- */

static void report(struct checker *c, const struct kernels *k, const char *what, size_t at,
                   double got, double want)
{
    if (c->n_bad++ < 20) {
        fprintf(stderr, "kcheck: %s at level %s: element %zu is %a, reference %a\n", what,
                cpu_level_name(k->level), at, got, want);
    }
}

static int equal_floats(struct checker *c, const struct kernels *k, const char *what,
                        const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int both_nan = got[i] != got[i] && want[i] != want[i];
        if (!both_nan && ref_bits(got[i]) != ref_bits(want[i])) {
            report(c, k, what, i, (double)got[i], (double)want[i]);
            return 0;
        }
    }
    return 1;
}

static int equal_act(struct checker *c, const struct kernels *k, const char *what, const void *got,
                     const void *want, size_t n, enum act_type t)
{
    if (t == ACT_F32) {
        return equal_floats(c, k, what, got, want, n);
    }
    const uint16_t *g = got, *w = want;
    for (size_t i = 0; i < n; i++) {
        int both_nan = (g[i] & 0x7fff) > 0x7f80 && (w[i] & 0x7fff) > 0x7f80;
        if (!both_nan && g[i] != w[i]) {
            report(c, k, what, i, (double)bf16_to_f32(g[i]), (double)bf16_to_f32(w[i]));
            return 0;
        }
    }
    return 1;
}

static int equal_bytes(struct checker *c, const struct kernels *k, const char *what,
                       const void *got, const void *want, size_t n)
{
    const uint8_t *g = got, *w = want;
    for (size_t i = 0; i < n; i++) {
        if (g[i] != w[i]) {
            report(c, k, what, i, g[i], w[i]);
            return 0;
        }
    }
    return 1;
}

/* ---- the operations ---- */

struct shape {
    struct kind kind;
    int m, n, k, tile0, tile1;
    enum mode mode;
};

static void describe(char *out, size_t n_out, const char *op, const struct shape *s)
{
    static const char *const formats[WEIGHT_FORMAT_COUNT] = {
        [WEIGHT_BF16] = "bf16",    [WEIGHT_F32] = "f32",     [WEIGHT_I8] = "i8",
        [WEIGHT_I6] = "i6",        [WEIGHT_I4] = "i4",       [WEIGHT_C2] = "c2",
        [WEIGHT_F8_E4M3] = "e4m3", [WEIGHT_F8_E5M2] = "e5m2"};
    static const char *const inputs[] = {"", " by i8", " by e4m3", " by e5m2"};
    const struct kind *q = &s->kind;
    snprintf(out, n_out,
             "%s act %s weight %s%s group %d scales %d super %d offset %d zeros %d order %d M %d N "
             "%d K %d tiles %d-%d "
             "values %d",
             op, q->t == ACT_BF16 ? "bf16" : "f32", formats[q->f], inputs[q->input], q->group,
             (int)q->scale_type, q->super, q->has_offset, q->has_zero, q->has_order, s->m, s->n,
             s->k, s->tile0, s->tile1, (int)s->mode);
}

static void check_gemm(struct checker *c, const struct shape *s)
{
    char what[200];
    const enum act_type t = s->kind.t;
    size_t lda, n = (size_t)(s->tile1 - s->tile0) * 16;
    size_t ldc = n + (size_t)below(c, 7), count = (size_t)(s->m - 1) * ldc + n;
    struct weight w = weight_of(c, &s->kind, s->n, s->k, s->mode);
    void *a = input_of(c, &w, s->m, t, s->mode, &lda);
    float *start = floats(c, s->m, ldc, (int)n, PLAIN), *want = copy_of(start, count * 4, 4);
    describe(what, sizeof what, "gemm", s);
    c->ref->act[t].gemm(want, ldc, a, lda, &w, s->m, s->tile0, s->tile1);
    for (int i = 0; i < c->n_levels; i++) {
        float *got = copy_of(start, count * 4, 4);
        c->level[i]->act[t].gemm(got, ldc, a, lda, &w, s->m, s->tile0, s->tile1);
        equal_floats(c, c->level[i], what, got, want, count);
        c->n_cases++;
    }
    release_all();
}

static void check_gemm_add(struct checker *c, const struct shape *s)
{
    char what[200];
    const enum act_type t = s->kind.t;
    size_t lda, ldx = (size_t)s->n + (size_t)below(c, 9);
    size_t count = (size_t)(s->m - 1) * ldx + (size_t)s->n, n_bytes = count * act_size(t);
    struct weight w = weight_of(c, &s->kind, s->n, s->k, s->mode);
    void *a = input_of(c, &w, s->m, t, s->mode, &lda);
    void *start = activations(c, s->m, ldx, s->n, t, s->mode, act_size(t));
    void *want = copy_of(start, n_bytes, act_size(t));
    describe(what, sizeof what, "gemm_add", s);
    c->ref->act[t].gemm_add(want, ldx, a, lda, &w, s->m, s->tile0, s->tile1);
    for (int i = 0; i < c->n_levels; i++) {
        void *got = copy_of(start, n_bytes, act_size(t));
        c->level[i]->act[t].gemm_add(got, ldx, a, lda, &w, s->m, s->tile0, s->tile1);
        equal_act(c, c->level[i], what, got, want, count, t);
        c->n_cases++;
    }
    release_all();
}

/* n is the number of output columns here. */
static void check_gemm_swiglu(struct checker *c, const struct shape *s)
{
    char what[200];
    const enum act_type t = s->kind.t;
    size_t lda, ldo = (size_t)s->n + (size_t)below(c, 9);
    size_t count = (size_t)(s->m - 1) * ldo + (size_t)s->n, n_bytes = count * act_size(t);
    struct weight w = weight_of(c, &s->kind, (s->n + 15) / 16 * 32, s->k, s->mode);
    void *a = input_of(c, &w, s->m, t, s->mode, &lda);
    void *start = activations(c, s->m, ldo, s->n, t, PLAIN, act_size(t));
    void *want = copy_of(start, n_bytes, act_size(t));
    describe(what, sizeof what, "gemm_swiglu", s);
    c->ref->act[t].gemm_swiglu(want, ldo, a, lda, &w, s->n, s->m, s->tile0, s->tile1);
    for (int i = 0; i < c->n_levels; i++) {
        void *got = copy_of(start, n_bytes, act_size(t));
        c->level[i]->act[t].gemm_swiglu(got, ldo, a, lda, &w, s->n, s->m, s->tile0, s->tile1);
        equal_act(c, c->level[i], what, got, want, count, t);
        c->n_cases++;
    }
    release_all();
}

/* Rows of a step with their tiles: row i goes to slot (first + i) % 16 of block (first + i) / 16.
 */
struct kv_case {
    struct qkv_rows r;
    void *tiles[200];
    void *row_tile[200];
    int32_t slot[200];
    int n_blocks;
    size_t block_bytes, q_count;
};

static void kv_setup(struct checker *c, struct kv_case *v, enum act_type t, enum kv_format kv,
                     int m, int n_heads, int n_kv, int hd)
{
    const size_t tile = kv_tile_bytes(kv, t, hd);
    int first = below(c, 16);
    memset(v, 0, sizeof *v);
    v->n_blocks = (first + m + 15) / 16;
    v->r = (struct qkv_rows){.n_heads = n_heads, .n_kv_heads = n_kv, .head_dim = hd, .kv = kv};
    v->r.kv_head_bytes = tile + (size_t)below(c, 2) * 64;
    v->block_bytes = v->r.kv_head_bytes * (size_t)(n_kv - 1) + tile;
    v->r.ldq = (size_t)n_heads * (size_t)hd + (size_t)below(c, 2) * 32;
    v->q_count = (size_t)(m - 1) * v->r.ldq + (size_t)n_heads * (size_t)hd;
    v->r.rope = floats(c, m, (size_t)hd, hd, PLAIN);
    for (int i = 0; i < m; i++) {
        v->slot[i] = (first + i) % 16;
    }
    v->r.slot = v->slot;
    v->r.kv_tile = v->row_tile;
}

static void kv_buffers(struct kv_case *v, enum act_type t, int m)
{
    int first = v->slot[0];
    v->r.q = guard(v->q_count * act_size(t), act_size(t));
    memset(v->r.q, 0x5a, v->q_count * act_size(t));
    for (int b = 0; b < v->n_blocks; b++) {
        v->tiles[b] = guard(v->block_bytes, 64);
        memset(v->tiles[b], 0x5a, v->block_bytes);
    }
    for (int i = 0; i < m; i++) {
        v->row_tile[i] = i % 7 == 5 ? NULL : v->tiles[(first + i) / 16];
    }
}

/* Shared by rope_store (w NULL: x is qkv) and gemm_qkv (x is a). */
static void check_qkv(struct checker *c, enum act_type t, const struct weight *w, const void *x,
                      size_t ldx, int m, int n_heads, int n_kv, int hd, int head0, int head1)
{
    const enum kv_format kv = (enum kv_format)below(c, KV_FORMAT_COUNT);
    char what[200];
    struct kv_case want, got;
    snprintf(what, sizeof what, "%s act %s KV %d M %d heads %d+%d head_dim %d range %d-%d",
             w ? "gemm_qkv" : "rope_store", t == ACT_BF16 ? "bf16" : "f32", (int)kv, m, n_heads,
             n_kv, hd, head0, head1);
    kv_setup(c, &want, t, kv, m, n_heads, n_kv, hd);
    for (int i = -1; i < c->n_levels; i++) {
        const struct kernels *k = i < 0 ? c->ref : c->level[i];
        struct kv_case *v = i < 0 ? &want : &got;
        if (i >= 0) {
            got = want;
            got.r.slot = got.slot;
            got.r.kv_tile = got.row_tile;
        }
        kv_buffers(v, t, m);
        if (w) {
            k->act[t].gemm_qkv(x, ldx, w, &v->r, m, head0, head1);
        } else {
            k->act[t].rope_store(x, ldx, &v->r, m, head0, head1);
        }
        if (i < 0) {
            continue;
        }
        c->n_cases++;
        int ok = equal_act(c, k, what, got.r.q, want.r.q, want.q_count, t);
        for (int b = 0; b < want.n_blocks && ok; b++) {
            ok = kv != KV_ACT
                     ? equal_bytes(c, k, what, got.tiles[b], want.tiles[b], want.block_bytes)
                     : equal_act(c, k, what, got.tiles[b], want.tiles[b],
                                 want.block_bytes / act_size(t), t);
        }
    }
    release_all();
}

static void check_rope_store(struct checker *c, enum act_type t, int m, int n_heads, int n_kv,
                             int hd, int head0, int head1, enum mode mode)
{
    int n = (head1 - head0) * hd;
    size_t ld = (size_t)n + (size_t)below(c, 5);
    check_qkv(c, t, NULL, floats(c, m, ld, n, mode), ld, m, n_heads, n_kv, hd, head0, head1);
}

static void check_gemm_qkv(struct checker *c, const struct kind *q, int m, int k, int n_heads,
                           int n_kv, int hd, int head0, int head1)
{
    size_t lda;
    struct weight w = weight_of(c, q, (n_heads + 2 * n_kv) * hd, k, PLAIN);
    void *a = input_of(c, &w, m, q->t, PLAIN, &lda);
    check_qkv(c, q->t, &w, a, lda, m, n_heads, n_kv, hd, head0, head1);
}

static void check_embed(struct checker *c, const struct kind *q, int n, int k, int m)
{
    char what[200];
    int32_t ids[64];
    const enum act_type t = q->t;
    size_t ldx = (size_t)k + (size_t)below(c, 4), count = (size_t)(m - 1) * ldx + (size_t)k;
    struct weight w = weight_of(c, q, n, k, EDGE);
    for (int i = 0; i < m; i++) {
        ids[i] = i == 0 ? n - 1 : below(c, n);
    }
    snprintf(what, sizeof what, "embed act %d weight %d N %d K %d M %d", (int)t, (int)q->f, n, k,
             m);
    void *start = activations(c, m, ldx, k, t, PLAIN, act_size(t));
    void *want = copy_of(start, count * act_size(t), act_size(t));
    c->ref->act[t].embed(want, ldx, &w, ids, m);
    for (int i = 0; i < c->n_levels; i++) {
        void *got = copy_of(start, count * act_size(t), act_size(t));
        c->level[i]->act[t].embed(got, ldx, &w, ids, m);
        equal_act(c, c->level[i], what, got, want, count, t);
        c->n_cases++;
    }
    release_all();
}

static void check_rows(struct checker *c, enum act_type t, int m, int n, enum mode mode)
{
    char what[200];
    size_t size = act_size(t), ldx = (size_t)n + (size_t)below(c, 5),
           ldo = (size_t)n + (size_t)below(c, 5);
    size_t ldg = (size_t)n + (size_t)below(c, 5), n_x = (size_t)(m - 1) * ldx + (size_t)n;
    size_t n_out = (size_t)(m - 1) * ldo + (size_t)n;
    void *x = activations(c, m, ldx, n, t, mode, size),
         *start = activations(c, m, ldo, n, t, PLAIN, size);
    float *w = floats(c, 1, (size_t)n, n, mode), *g = floats(c, m, ldg, n, mode),
          *u = floats(c, m, ldg, n, mode);
    void *norm = copy_of(start, n_out * size, size), *glu = copy_of(start, n_out * size, size);
    void *sum = copy_of(x, n_x * size, size);
    c->ref->act[t].rmsnorm(norm, ldo, x, ldx, w, 1e-5f, m, n);
    c->ref->act[t].swiglu(glu, ldo, g, ldg, u, ldg, m, n);
    c->ref->act[t].add(sum, ldx, g, ldg, m, n);
    for (int i = 0; i < c->n_levels; i++) {
        const struct kernels *k = c->level[i];
        void *got = copy_of(start, n_out * size, size);
        snprintf(what, sizeof what, "rmsnorm act %d M %d N %d values %d", (int)t, m, n, (int)mode);
        k->act[t].rmsnorm(got, ldo, x, ldx, w, 1e-5f, m, n);
        equal_act(c, k, what, got, norm, n_out, t);
        got = copy_of(start, n_out * size, size);
        memcpy(what, "swiglu ", 7);
        k->act[t].swiglu(got, ldo, g, ldg, u, ldg, m, n);
        equal_act(c, k, what, got, glu, n_out, t);
        got = copy_of(x, n_x * size, size);
        memcpy(what, "add    ", 7);
        k->act[t].add(got, ldx, g, ldg, m, n);
        equal_act(c, k, what, got, sum, n_x, t);
        c->n_cases += 3;
    }
    release_all();
}

/* A tile of which positions n and beyond were never written and must not count. */
static void *attn_tile(struct checker *c, enum act_type t, int hd, int n)
{
    const size_t tile_elements = (size_t)hd * 32;
    void *tile = activations(c, 1, tile_elements, (int)tile_elements, t, PLAIN, 64);
    for (size_t e = 0; e < tile_elements; e++) {
        int is_v = e >= tile_elements / 2;
        size_t at = is_v ? e - tile_elements / 2 : e;
        int p = is_v ? (int)(at % 256 / 32 * 2 + at % 2) : (int)(at % 32 / 2);
        float v = p >= n ? NAN : value(c, TINY) * (below(c, 2) ? 0x1p-60f : 1.0f);
        if (p < n && (!is_v || below(c, 50))) {
            continue;
        }
        if (t == ACT_BF16) {
            ((uint16_t *)tile)[e] = p < n ? f32_to_bf16(v) : 0x7fc1;
        } else {
            ((float *)tile)[e] = v;
        }
    }
    return tile;
}

/* The same of 8 bits: random codes that stand for numbers, now and then a scale that isn't one. */
static void *attn_code_tile(struct checker *c, enum kv_format kv, int hd, int n)
{
    const size_t n_bytes = kv_tile_bytes(kv, ACT_BF16, hd);
    uint8_t *tile = guard(n_bytes, 64);
    uint16_t *scales = (uint16_t *)(void *)(tile + 32 * hd);
    for (size_t e = 0; e < 32 * (size_t)hd; e++) {
        const size_t i = e % 64 / 16 * 4 + e % 8 / 2, j = e % 16 / 8 * 2 + e % 2; /* of a line */
        const int is_v = e >= 16 * (size_t)hd, p = is_v ? (int)(e / 64 % 4 * 4 + j) : (int)i;
        tile[e] = kv == KV_I8 ? (uint8_t)next(c)
                              : code_of(c, kv == KV_F8_E4M3 ? WEIGHT_F8_E4M3 : WEIGHT_F8_E5M2);
        if (p >= n) {
            tile[e] = 0xff;
        }
    }
    for (int i = 0; i < 32; i++) {
        const float limit = kv == KV_I8 ? 127.0f : kv == KV_F8_E4M3 ? 448.0f : 57344.0f;
        const float s = fabsf(value(c, below(c, 40) ? PLAIN : TINY)) / limit;
        scales[i] = i % 16 >= n || below(c, 1000) == 0 ? 0x7fc0 : f32_to_bf16(s);
    }
    return tile;
}

static void check_attn_part(struct checker *c, enum act_type t, enum kv_format kv, int n_q, int hd,
                            int max_visible, int spread)
{
    char what[200];
    int n_tiles = (max_visible + 15) / 16;
    size_t n_acc = (size_t)n_q * (size_t)hd;
    const void *tiles[16];
    int32_t *visible = guard((size_t)n_q * 4, 4);
    void *q = activations(c, n_q, (size_t)hd, hd, t, PLAIN, 64);
    for (int i = 0; i < n_q; i++) {
        visible[i] = max_visible - (spread ? below(c, spread + 1) : 0);
        visible[i] = visible[i] < 0 ? 0 : visible[i];
    }
    visible[n_q - 1] = max_visible;
    for (int b = 0; b < n_tiles; b++) {
        const int n = max_visible - b * 16;
        tiles[b] = kv == KV_ACT ? attn_tile(c, t, hd, n) : attn_code_tile(c, kv, hd, n);
    }
    snprintf(what, sizeof what, "attn_part act %d KV %d n_q %d head_dim %d visible %d spread %d",
             (int)t, (int)kv, n_q, hd, max_visible, spread);
    float *want_m = guard((size_t)n_q * 4, 4), *want_l = guard((size_t)n_q * 4, 4),
          *want = guard(n_acc * 4, 64);
    struct attn_part p = {.q = q,
                          .n_q = n_q,
                          .head_dim = hd,
                          .scale = 0.125f,
                          .visible = visible,
                          .kv = kv,
                          .tiles = tiles,
                          .next = tiles,
                          .n_next = below(c, n_tiles + 1),
                          .m = want_m,
                          .l = want_l,
                          .acc = want};
    p.scratch = guard(ATTN_SCRATCH_FLOATS * 4, 64);
    c->ref->act[t].attn_part(&p);
    for (int i = 0; i < c->n_levels; i++) {
        p.m = guard((size_t)n_q * 4, 4);
        p.l = guard((size_t)n_q * 4, 4);
        p.acc = guard(n_acc * 4, 64);
        memset(p.scratch, 0xff, ATTN_SCRATCH_FLOATS * 4);
        c->level[i]->act[t].attn_part(&p);
        for (int j = 0; j < n_q; j++) {
            p.m[j] += 0.0f; /* a maximum of +0 and -0 may be either; what follows is the same */
        }
        equal_floats(c, c->level[i], what, p.m, want_m, (size_t)n_q);
        equal_floats(c, c->level[i], what, p.l, want_l, (size_t)n_q);
        equal_floats(c, c->level[i], what, p.acc, want, n_acc);
        c->n_cases++;
    }
    release_all();
}

static void check_attn_merge(struct checker *c, enum act_type t, int n_parts, int n_q, int hd)
{
    char what[200];
    size_t size = act_size(t), stride_ml = (size_t)n_q + (size_t)below(c, 3);
    size_t stride_acc = (size_t)n_q * (size_t)hd + (size_t)below(c, 2) * 16,
           ldo = (size_t)hd + (size_t)below(c, 9);
    size_t n_out = (size_t)(n_q - 1) * ldo + (size_t)hd;
    float *m = floats(c, n_parts, stride_ml, n_q, PLAIN),
          *l = floats(c, n_parts, stride_ml, n_q, PLAIN);
    float *acc = floats(c, n_parts, stride_acc, n_q * hd, PLAIN);
    for (size_t i = 0; i < (size_t)(n_parts - 1) * stride_ml + (size_t)n_q; i++) {
        int gone = i >= stride_ml && below(c, 5) == 0;
        m[i] = gone ? -INFINITY : m[i] * (below(c, 6) == 0 ? 60.0f : 1.0f);
        l[i] = gone ? 0.0f : fabsf(l[i]) + 1.0f;
    }
    snprintf(what, sizeof what, "attn_merge act %d parts %d n_q %d head_dim %d", (int)t, n_parts,
             n_q, hd);
    void *want = guard(n_out * size, size);
    memset(want, 0x5a, n_out * size);
    c->ref->act[t].attn_merge(want, ldo, m, l, stride_ml, acc, stride_acc, n_parts, n_q, hd);
    for (int i = 0; i < c->n_levels; i++) {
        void *got = guard(n_out * size, size);
        memset(got, 0x5a, n_out * size);
        c->level[i]->act[t].attn_merge(got, ldo, m, l, stride_ml, acc, stride_acc, n_parts, n_q,
                                       hd);
        equal_act(c, c->level[i], what, got, want, n_out, t);
        c->n_cases++;
    }
    release_all();
}

static void check_attn_fold(struct checker *c, int n_q, int hd)
{
    const size_t n = (size_t)n_q, n_acc = n * (size_t)hd;
    float *x[2][3], *got[3];
    for (int part = 0; part < 2; part++) {
        for (int i = 0; i < 3; i++) {
            x[part][i] =
                activations(c, 1, i < 2 ? n : n_acc, (int)(i < 2 ? n : n_acc), ACT_F32, PLAIN, 64);
        }
        for (size_t i = 0; i < n; i++) {
            x[part][0][i] = below(c, 5) == 0 ? -INFINITY : x[part][0][i] * 20.0f;
            x[part][1][i] = fabsf(x[part][1][i]) + 1.0f;
        }
    }
    float *start[3];
    for (int i = 0; i < 3; i++) {
        start[i] = copy_of(x[0][i], (i < 2 ? n : n_acc) * 4, 64);
    }
    c->ref->attn_fold(x[0][0], x[0][1], x[0][2], x[1][0], x[1][1], x[1][2], n_q, hd);
    for (int level = 0; level < c->n_levels; level++) {
        const struct kernels *k = c->level[level];
        for (int i = 0; i < 3; i++) {
            got[i] = copy_of(start[i], (i < 2 ? n : n_acc) * 4, 64);
        }
        k->attn_fold(got[0], got[1], got[2], x[1][0], x[1][1], x[1][2], n_q, hd);
        for (int i = 0; i < 3; i++) {
            equal_floats(c, k, "attn_fold", got[i], x[0][i], i < 2 ? n : n_acc);
        }
        c->n_cases++;
    }
    release_all();
}

static void check_pack(struct checker *c, enum weight_format f, enum dtype dt, int n, int k,
                       int in_out, int step)
{
    char what[200];
    size_t pad = (size_t)below(c, 3), stride_row = in_out ? 1 : (size_t)k + pad;
    size_t stride_col = in_out ? (size_t)n + pad : 1;
    size_t count = (size_t)(n - 1) * stride_row + (size_t)(k - 1) * stride_col + 1;
    void *src = guard(count * dtype_size(dt), dtype_size(dt));
    for (size_t i = 0; i < count; i++) {
        if (dt == DTYPE_F32) {
            ((float *)src)[i] = below(c, 4) ? value(c, EDGE) : ref_from_bits(next(c));
        } else {
            ((uint16_t *)src)[i] = (uint16_t)next(c);
        }
    }
    int tiles = (n + 15) / 16, offset = step > 1 ? below(c, step) : 0;
    int tile0 = tiles > 2 ? 1 : 0, tile1 = tiles;
    size_t n_dst = weight_bytes(&(struct weight){.format = f, .n = tiles * step * 16, .k = k});
    void *want = guard(n_dst, 64);
    memset(want, 0x11, n_dst);
    snprintf(what, sizeof what, "pack format %d from %d N %d K %d in_out %d step %d", (int)f,
             (int)dt, n, k, in_out, step);
    c->ref->pack(want, f, n, k, src, dt, stride_row, stride_col, tile0, tile1, step, offset);
    for (int i = 0; i < c->n_levels; i++) {
        void *got = guard(n_dst, 64);
        memset(got, 0x11, n_dst);
        c->level[i]->pack(got, f, n, k, src, dt, stride_row, stride_col, tile0, tile1, step,
                          offset);
        equal_act(c, c->level[i], what, got, want, n_dst / (f == WEIGHT_BF16 ? 2 : 4),
                  f == WEIGHT_BF16 ? ACT_BF16 : ACT_F32);
        c->n_cases++;
    }
    release_all();
}

static void check_logits(struct checker *c, int n, int kind)
{
    float *x = floats(c, 1, (size_t)n, n, kind == 1 ? EDGE : PLAIN);
    for (int i = 0; i < n; i++) {
        x[i] = kind == 2 ? NAN : kind == 3 ? (float)below(c, 3) : kind == 1 ? x[i] : x[i] * 20.0f;
    }
    if (kind == 4) {
        x[below(c, n)] = -INFINITY;
        x[below(c, n)] = NAN;
        x[below(c, n)] = 77.0f;
        x[below(c, n)] = 77.0f;
    }
    float want_max, max;
    double want_sum, sum;
    int want = c->ref->argmax(x, n);
    c->ref->logsumexp(x, n, &want_max, &want_sum);
    for (int i = 0; i < c->n_levels; i++) {
        const struct kernels *k = c->level[i];
        int at = k->argmax(x, n);
        if (at != want) {
            report(c, k, "argmax", (size_t)n, at, want);
        }
        k->logsumexp(x, n, &max, &sum);
        max += 0.0f;
        if (memcmp(&max, &want_max, 4) != 0) {
            report(c, k, "logsumexp maximum", (size_t)n, (double)max, (double)want_max);
        }
        if (memcmp(&sum, &want_sum, 8) != 0 && !(sum != sum && want_sum != want_sum)) {
            report(c, k, "logsumexp sum", (size_t)n, sum, want_sum);
        }
        c->n_cases += 2;
    }
    release_all();
}

/* Rows of finite numbers, -inf and NaN: what the sampler draws from. */
static void check_weigh(struct checker *c, int n, float temperature, int kind)
{
    const size_t n_chunks = ((size_t)n + WEIGH_CHUNK - 1) / WEIGH_CHUNK;
    float *x = floats(c, 1, (size_t)n, n, kind == 1 ? TINY : PLAIN), max = -INFINITY;
    for (int i = 0; i < n; i++) {
        x[i] = kind == 1 ? x[i] : x[i] * (kind == 2 ? 1e3f : 20.0f);
        x[i] = kind == 3 && i % 3 == 0 ? NAN : kind == 3 && i % 3 == 1 ? -INFINITY : x[i];
        const float y = ref_div(x[i], temperature);
        max = y > max ? y : max;
    }
    max = isfinite(max) ? max : 0.0f; /* all of them are NaN or -inf */
    float *want_y = floats(c, 1, (size_t)n, n, PLAIN), *want_w = floats(c, 1, (size_t)n, n, PLAIN);
    float *y = floats(c, 1, (size_t)n, n, PLAIN), *w = floats(c, 1, (size_t)n, n, PLAIN);
    double *want_sum = guard(n_chunks * sizeof(double), 64);
    double *sum = guard(n_chunks * sizeof(double), 64);
    float *want_top = floats(c, 1, n_chunks, (int)n_chunks, PLAIN);
    float *top = floats(c, 1, n_chunks, (int)n_chunks, PLAIN);
    c->ref->weigh(x, n, temperature, max, want_y, want_w, want_sum, want_top);
    for (int i = 0; i < 2 * c->n_levels; i++) {
        const struct kernels *k = c->level[i / 2];
        const int writes = i % 2;
        k->weigh(x, n, temperature, max, writes ? y : NULL, writes ? w : NULL, sum, top);
        for (size_t j = 0; j < n_chunks; j++) {
            top[j] += 0.0f;
            want_top[j] += 0.0f;
            if (memcmp(&sum[j], &want_sum[j], sizeof *sum) != 0) {
                report(c, k, "sum of weights", j, sum[j], want_sum[j]);
            }
        }
        equal_floats(c, k, "weights: maxima", top, want_top, n_chunks);
        if (writes) {
            equal_floats(c, k, "weights: y", y, want_y, (size_t)n);
            equal_floats(c, k, "weights", w, want_w, (size_t)n);
        }
        c->n_cases++;
    }
    release_all();
}

#if defined(__x86_64__)
/* That VDPBF16PS is the chain of kernels.h: fma(even, fma(odd, acc)) with denormals flushed. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) static void
check_dpbf16(struct checker *c)
{
    for (int round = 0; round < 20000; round++) {
        uint16_t a[32], w[32];
        float acc[16], got[16];
        for (int i = 0; i < 32; i++) {
            enum mode mode = (enum mode)(round % 3);
            a[i] = round % 5 == 0 ? (uint16_t)next(c) : f32_to_bf16(value(c, mode));
            w[i] = round % 5 == 0 ? (uint16_t)next(c) : f32_to_bf16(value(c, mode));
            acc[i % 16] = value(c, mode) * (mode == TINY ? 0x1p-62f : 1.0f);
        }
        _mm512_storeu_ps(got,
                         _mm512_dpbf16_ps(_mm512_loadu_ps(acc), (__m512bh)_mm512_loadu_si512(a),
                                          (__m512bh)_mm512_loadu_si512(w)));
        for (int i = 0; i < 16; i++) {
            float odd = ref_fma(bf16_to_f32(a[2 * i + 1]), bf16_to_f32(w[2 * i + 1]), acc[i]);
            acc[i] = ref_fma(bf16_to_f32(a[2 * i]), bf16_to_f32(w[2 * i]), odd);
        }
        equal_floats(c, c->ref, "VDPBF16PS", got, acc, 16);
    }
    c->n_cases++;
}
#elif defined(__aarch64__)
/* That BFMLALT, then BFMLALB, is the chain of kernels.h, with denormals flushed. */
static void check_bfmlal(struct checker *c)
{
    for (int round = 0; round < 20000; round++) {
        const enum mode mode = (enum mode)(round % 3);
        uint16_t a[8], w[8];
        float acc[4], got[4];
        for (int i = 0; i < 8; i++) {
            a[i] = round % 5 == 0 ? (uint16_t)next(c) : f32_to_bf16(value(c, mode));
            w[i] = round % 5 == 0 ? (uint16_t)next(c) : f32_to_bf16(value(c, mode));
            acc[i % 4] = value(c, mode) * (mode == TINY ? 0x1p-62f : 1.0f);
        }
        float32x4_t x = vld1q_f32(acc);
        __asm__(".arch_extension bf16\n\tbfmlalt %0.4s, %1.8h, %2.8h\n\tbfmlalb %0.4s, %1.8h, %2.8h"
                : "+w"(x)
                : "w"(vld1q_u16(a)), "w"(vld1q_u16(w)));
        vst1q_f32(got, x);
        for (int i = 0; i < 4; i++) {
            float odd = ref_fma(bf16_to_f32(a[2 * i + 1]), bf16_to_f32(w[2 * i + 1]), acc[i]);
            acc[i] = ref_fma(bf16_to_f32(a[2 * i]), bf16_to_f32(w[2 * i]), odd);
        }
        equal_floats(c, c->ref, "BFMLAL", got, acc, 4);
    }
    c->n_cases++;
}
#endif

/* ---- the list of cases ---- */

static void check_matrices(struct checker *c, const struct kind *q)
{
    static const int ms[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 33, 64, 65, 130};
    static const int ks[] = {96, 200, 2, 34, 1024, 3072};
    const int is_quantized = q->f >= WEIGHT_DENSE_COUNT;
    for (size_t i = 0; i < sizeof ms / sizeof ms[0]; i++) {
        for (size_t j = 0; j < sizeof ks / sizeof ks[0]; j++) {
            int m = ms[i], k = is_quantized && ks[j] < 96 ? ks[j] / 2 * 8 : ks[j];
            k = q->super == 256 && k == 200 ? 704 : k; /* a second section, cut short */
            k = q->f == WEIGHT_I6 ? (k + 15) / 16 * 16 : k;
            if (k >= 1024 && m > 9 && m != 33 && !(m == 130 && q->f == WEIGHT_BF16 && k == 1024)) {
                continue; /* the reference is slow; the K loop does not know M beyond a row block */
            }
            if (c->small && (m > 33 || k > 1024 || m * k > 9 * 1024)) {
                continue;
            }
            if (c->n_shapes++ % ((c->small ? 4 : c->quick ? 6 : 1) * (is_quantized ? 4 : 1))) {
                continue;
            }
            int n = 16 * (1 + below(c, k >= 1024 ? 5 : 9)) - below(c, 16), tiles = (n + 15) / 16;
            int tile0 = below(c, tiles), tile1 = tile0 + 1 + below(c, tiles - tile0);
            enum mode mode = (enum mode)below(c, 3);
            struct shape whole = {*q, m, n, k, 0, tiles, PLAIN},
                         part = {*q, m, n, k, tile0, tile1, mode};
            check_gemm(c, &whole);
            check_gemm(c, &part);
            check_gemm_add(c, &whole);
            check_gemm_add(c, &part);
            check_gemm_swiglu(c, &part);
            if (k < 1024) {
                check_gemm_swiglu(c, &whole);
            }
        }
        int heads = 1 + below(c, 4), kv = 1 + below(c, 2), all = heads + 2 * kv,
            head0 = below(c, all);
        int hd = 16 * (1 + below(c, 4));
        if ((is_quantized && below(c, 4)) || (c->small && (ms[i] > 9 || i % 2))) {
            continue;
        }
        check_gemm_qkv(c, q, ms[i], 96, heads, kv, hd, 0, all);
        check_gemm_qkv(c, q, ms[i], 128, heads, kv, 128, head0, head0 + 1 + below(c, all - head0));
    }
    for (int i = 0; i < 6 && q->input == INPUT_ACT && !q->has_order; i++) {
        const int unit = q->f == WEIGHT_I6 ? 16 : is_quantized ? 8 : 2;
        check_embed(c, q, 1 + below(c, 90), unit * (1 + below(c, 90)), 1 + below(c, 20));
    }
}

/* Every format with every input it goes with; scales, zeros and orders by turns. */
static void check_quantized(struct checker *c, enum act_type t)
{
    static const int groups[] = {32, 64, 128, 1 << 20, 16};
    static const struct {
        enum weight_format f;
        enum input_format input;
    } pairs[] = {{WEIGHT_I8, INPUT_ACT},       {WEIGHT_I8, INPUT_I8},
                 {WEIGHT_I4, INPUT_ACT},       {WEIGHT_I4, INPUT_I8},
                 {WEIGHT_F8_E4M3, INPUT_ACT},  {WEIGHT_F8_E4M3, INPUT_E4M3},
                 {WEIGHT_F8_E4M3, INPUT_E5M2}, {WEIGHT_F8_E5M2, INPUT_ACT},
                 {WEIGHT_F8_E5M2, INPUT_E5M2}, {WEIGHT_F8_E5M2, INPUT_E4M3}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        for (int g = 0; g < (pairs[i].f == WEIGHT_I8 ? 5 : 4); g++) {
            struct kind q = {.t = t,
                             .f = pairs[i].f,
                             .input = pairs[i].input,
                             .scale_type = (enum dtype)below(c, 3),
                             .group = groups[g]};
            q.has_zero = (q.f == WEIGHT_I4 || q.f == WEIGHT_I8) && g % 2 == 0;
            q.has_order = q.input == INPUT_ACT && below(c, 4) == 0;
            check_matrices(c, &q);
        }
    }
}

/* Scales in two levels, with and without offsets. */
static void check_levels(struct checker *c, enum act_type t)
{
    static const struct kind kinds[] = {
        {.f = WEIGHT_I4, .group = 32, .super = 256, .has_offset = 1},
        {.f = WEIGHT_I6, .group = 16, .super = 256, .has_offset = 1},
        {.f = WEIGHT_I6, .group = 32, .super = 256, .has_offset = 1},
        {.f = WEIGHT_I6, .group = 16, .super = 256},
        {.f = WEIGHT_I6, .group = 128, .super = 1 << 20},
        {.f = WEIGHT_I4, .group = 64, .super = 1 << 20},
        {.f = WEIGHT_C2, .group = 64, .super = 1 << 20}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        for (int input = INPUT_ACT; input <= INPUT_I8; input++) {
            struct kind q = kinds[i];
            q.t = t;
            q.input = (enum input_format)input;
            q.scale_type = (enum dtype)below(c, 3);
            q.input_scale = input != INPUT_ACT && below(c, 3) == 0 ? 0x1p-6f : 0;
            check_matrices(c, &q);
        }
    }
}

static void check_quantize(struct checker *c, enum act_type t, int m, int k, enum mode mode)
{
    static const int groups[] = {16, 32, 64, 128, 1 << 20};
    static const float fixed_scales[] = {0, 0, 0x1p-7f, 0.37f}; /* the first saturates */
    char what[200];
    size_t ldx = (size_t)k + (size_t)below(c, 5);
    void *x = activations(c, m, ldx, k, t, mode, act_size(t));
    for (int f = INPUT_I8; f < INPUT_FORMAT_COUNT; f++) {
        for (int g = 0; g < 5; g++) {
            size_t row = input_row_bytes((enum input_format)f, k, groups[g]), ldo = row + 64;
            size_t n = (size_t)(m - 1) * ldo + row;
            uint8_t *want = guard(n, 64);
            memset(want, 0x5a, n);
            const float fixed = fixed_scales[below(c, 4)];
            snprintf(what, sizeof what,
                     "quantize act %d to %d group %d scale %g M %d K %d values %d", (int)t, f,
                     groups[g], (double)fixed, m, k, (int)mode);
            c->ref->act[t].quantize(want, ldo, x, ldx, m, k, (enum input_format)f, groups[g],
                                    fixed);
            for (int i = 0; i < c->n_levels; i++) {
                uint8_t *got = guard(n, 64);
                memset(got, 0x5a, n);
                c->level[i]->act[t].quantize(got, ldo, x, ldx, m, k, (enum input_format)f,
                                             groups[g], fixed);
                equal_bytes(c, c->level[i], what, got, want, n);
                c->n_cases++;
            }
        }
    }
    release_all();
}

static void check_attention(struct checker *c, enum act_type t)
{
    static const int n_qs[] = {1, 2, 3, 7, 8, 9, 16, 17, 33, 64};
    static const int visible[] = {1, 2, 15, 16, 17, 31, 33, 100, 255, 256};
    static const int dims[] = {128, 16, 48, 64, 80, 256};
    for (size_t i = 0; i < sizeof n_qs / sizeof n_qs[0]; i++) {
        for (size_t j = 0; j < sizeof visible / sizeof visible[0]; j++) {
            int hd = j % 3 ? dims[below(c, 6)] : 128;
            if (n_qs[i] * visible[j] > 3000 && ((i + j) % 3 || c->small)) {
                continue;
            }
            for (int kv = KV_ACT; kv < KV_FORMAT_COUNT; kv++) {
                if (kv == KV_ACT || (i + j) % 3 == (size_t)kv - 1 || n_qs[i] < 9) {
                    check_attn_part(c, t, (enum kv_format)kv, n_qs[i], hd, visible[j],
                                    below(c, 3) == 0 ? 0 : below(c, 40));
                }
            }
        }
        check_attn_merge(c, t, 1 + below(c, 6), n_qs[i], dims[i % 6]);
        check_attn_fold(c, n_qs[i], dims[i % 6]);
        check_rope_store(c, t, n_qs[i], 2, 1, dims[i % 6], 0, 4, PLAIN);
        int head0 = below(c, 6);
        check_rope_store(c, t, n_qs[i], 4, 1, dims[below(c, 6)], head0, 6, EDGE);
    }
}

static void check_all(struct checker *c)
{
    for (int t = 0; t < ACT_TYPE_COUNT; t++) {
        for (int f = 0; f < WEIGHT_DENSE_COUNT; f++) {
            check_matrices(c, &(struct kind){.t = (enum act_type)t, .f = (enum weight_format)f});
        }
        check_quantized(c, (enum act_type)t);
        check_levels(c, (enum act_type)t);
        check_attention(c, (enum act_type)t);
        static const int ns[] = {1, 15, 16, 17, 40, 96, 1023, 1024, 3072};
        for (size_t i = 0; i < sizeof ns / sizeof ns[0]; i++) {
            check_rows(c, (enum act_type)t, 1 + below(c, 5), ns[i], PLAIN);
            check_rows(c, (enum act_type)t, 1 + below(c, 5), ns[i], EDGE);
            check_rows(c, (enum act_type)t, 1 + below(c, 5), ns[i], TINY);
            for (int mode = PLAIN; mode <= TINY; mode++) {
                check_quantize(c, (enum act_type)t, 1 + below(c, 3), (ns[i] + 7) / 8 * 8,
                               (enum mode)mode);
            }
        }
    }
    for (int f = 0; f < WEIGHT_DENSE_COUNT; f++) {
        for (int dt = 0; dt <= DTYPE_F32; dt++) {
            for (int i = 0; i < 8; i++) {
                check_pack(c, (enum weight_format)f, (enum dtype)dt, 1 + below(c, 100),
                           2 * (1 + below(c, 80)), i & 1, 1 + (i >> 1 & 1));
            }
        }
    }
    for (int kind = 0; kind < 5; kind++) {
        static const int ns[] = {1, 5, 16, 17, 100, 4097};
        for (size_t i = 0; i < sizeof ns / sizeof ns[0]; i++) {
            check_logits(c, ns[i], kind);
            check_weigh(c, ns[i], kind == 0 ? 1.0f : 0.7f, kind);
            check_weigh(c, ns[i] + 250, kind == 0 ? 2.5f : 1.0f, kind);
        }
    }
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    struct checker c = {.seed = 1};
    struct err e;
    enum cpu_level have[8], chosen;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *value_of = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(arg, "--quick") == 0) {
            c.quick = 1;
        } else if (strcmp(arg, "--small") == 0) {
            c.quick = c.small = 1;
        } else if (strcmp(arg, "--level") == 0 && value_of) {
            only = argv[++i];
        } else if (strcmp(arg, "--seed") == 0 && value_of) {
            c.seed = strtoull(argv[++i], NULL, 10);
        } else {
            fprintf(stderr, "usage: kcheck [--level NAME] [--seed N] [--quick | --small]\n");
            return 2;
        }
    }
    if (cpu_level_choose(only, &chosen, &e) < 0) {
        fprintf(stderr, "kcheck: %s\n", e.text);
        return 1;
    }
    c.ref = kernels_get(CPU_SCALAR);
    int n = cpu_levels_available(have);
    for (int i = 0; i < n; i++) {
        const struct kernels *k = kernels_get(have[i]);
        if (k && (only ? k->level == chosen : k != c.ref || n == 1)) {
            c.level[c.n_levels++] = k;
        }
    }
    uint64_t mode = cpu_numeric_mode_save();
    cpu_set_numeric_mode();
#if defined(__x86_64__)
    if (cpu_detect() == CPU_AVX512_BF16) {
        check_dpbf16(&c);
    }
#elif defined(__aarch64__)
    if (cpu_detect() == CPU_NEON_BF16) {
        check_bfmlal(&c);
    }
#endif
    check_all(&c);
    cpu_numeric_mode_restore(mode);
    printf("kcheck: %ld cases, %ld differences, levels:", c.n_cases, c.n_bad);
    for (int i = 0; i < c.n_levels; i++) {
        printf(" %s", cpu_level_name(c.level[i]->level));
    }
    printf("\n");
    return c.n_bad ? 1 : 0;
}
