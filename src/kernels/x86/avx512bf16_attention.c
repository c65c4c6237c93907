/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one partition with VDPBF16PS. The plan is that of kernels/lanes/attention.h; here a
 * line of K or V is consumed as it is stored, by independent chains in named registers:
 *
 *   up to 8 queries (a decoded token)  8 queries x 2 lines; codes of 8 bits are decoded in registers
 *   more (a prompt)                    6 queries x 4 lines, as in a product of matrices: four blocks
 *                                      of K, then 64 dimensions of V stay in the L1 cache while all
 *                                      queries pass over them; codes are decoded to bf16 once
 *
 * Scores are scaled, and their maxima taken, in the registers where they are computed.
 *
 * Blocks lie anywhere in the KV pool, so the hardware's prefetcher can't guess the next one, and a
 * decoded token reads each of them once. With few queries every step of a loop therefore prefetches,
 * for the two lines it consumes, the same two of the next pair of blocks: first all of K, then all of
 * V, then K of what the caller will ask for next. The weighted sum goes block by block too, keeping
 * its chains in memory between blocks, so that it reads in the order in which it prefetches. */
#include "kernels/x86/avx512_v16.h"

#include "kernels/lanes/attention.h"
#include "kernels/x86/avx512bf16_codes.h"
#include "kernels/x86/avx512bf16_micro.h"
#include "kernels/x86/x86.h"

#define GROUP  8
#define BLOCKS (ATTN_PARTITION / KV_BLOCK_TOKENS)

/* Always inlined, because gcc takes a function that only prefetches for one without effect and drops
 * calls of it. */
static inline __attribute__((always_inline)) void fetch(const void *p)
{
    _mm_prefetch(p, _MM_HINT_T0);
}

/* ---- tiles of 8 bits ---- */

/* The bytes of bf16(c), c = 0..127. */
static const _Alignas(64) uint8_t int_low[128] = {
    0x00, 0x80, 0x00, 0x40, 0x80, 0xa0, 0xc0, 0xe0, 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70,
    0x80, 0x88, 0x90, 0x98, 0xa0, 0xa8, 0xb0, 0xb8, 0xc0, 0xc8, 0xd0, 0xd8, 0xe0, 0xe8, 0xf0, 0xf8,
    0x00, 0x04, 0x08, 0x0c, 0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x28, 0x2c, 0x30, 0x34, 0x38, 0x3c,
    0x40, 0x44, 0x48, 0x4c, 0x50, 0x54, 0x58, 0x5c, 0x60, 0x64, 0x68, 0x6c, 0x70, 0x74, 0x78, 0x7c,
    0x80, 0x82, 0x84, 0x86, 0x88, 0x8a, 0x8c, 0x8e, 0x90, 0x92, 0x94, 0x96, 0x98, 0x9a, 0x9c, 0x9e,
    0xa0, 0xa2, 0xa4, 0xa6, 0xa8, 0xaa, 0xac, 0xae, 0xb0, 0xb2, 0xb4, 0xb6, 0xb8, 0xba, 0xbc, 0xbe,
    0xc0, 0xc2, 0xc4, 0xc6, 0xc8, 0xca, 0xcc, 0xce, 0xd0, 0xd2, 0xd4, 0xd6, 0xd8, 0xda, 0xdc, 0xde,
    0xe0, 0xe2, 0xe4, 0xe6, 0xe8, 0xea, 0xec, 0xee, 0xf0, 0xf2, 0xf4, 0xf6, 0xf8, 0xfa, 0xfc, 0xfe};
static const _Alignas(64) uint8_t int_high[128] = {
    0x00, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41,
    0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42};

static inline __attribute__((always_inline)) struct code_tables kv_tables_of(enum kv_format f)
{
    return f == KV_I8 ? code_tables_of(int_low, int_high) : f8_tables_of(f == KV_F8_E4M3);
}

/* A line of codes as two lines of pairs. */
static inline __attribute__((always_inline)) void
code_lines(const uint8_t *p, const struct code_tables *t, __m512bh *first, __m512bh *second)
{
    __m512i low, high;
    code_bytes(_mm512_load_si512(p), t, &low, &high);
    *first = (__m512bh)_mm512_unpacklo_epi8(low, high);
    *second = (__m512bh)_mm512_unpackhi_epi8(low, high);
}

/* Writes 8-bit tiles as 16-bit ones, one after the other from `out` on. */
static void expand(uint16_t *out, const struct attn_part *part, int n_blocks)
{
    const size_t hd = (size_t)part->head_dim;
    const struct code_tables t = kv_tables_of(part->kv);
    for (int b = 0; b < n_blocks; b++, out += 32 * hd) {
        const uint8_t *tile = part->tiles[b];
        const uint8_t *next = part->tiles[b + 1 < n_blocks ? b + 1 : b];
        __m512bh first, second;
        for (size_t d = 0; d < hd; d += 4) {
            code_lines(tile + d * 16, &t, &first, &second);
            _mm512_store_si512(out + d * 16, (__m512i)first);
            _mm512_store_si512(out + d * 16 + 32, (__m512i)second);
            fetch(next + d * 16);
        }
        for (size_t d = 0; d < hd; d += 16) {
            for (size_t p = 0; p < 16; p += 4) {
                uint16_t *to = out + 16 * (hd + d + p);
                code_lines(tile + 16 * hd + d * 16 + p * 16, &t, &first, &second);
                _mm512_store_si512(to, (__m512i)first);
                _mm512_store_si512(to + 32, (__m512i)second);
                fetch(next + 16 * hd + d * 16 + p * 16);
            }
        }
    }
}

/* ---- scores to weights ---- */

struct work {
    float *scores;     /* [ATTN_MAX_Q][ATTN_PARTITION] scaled */
    float *tops;       /* [ATTN_MAX_Q][16] their largest, by lane */
    uint16_t *weights; /* as scores: of V */
    float *kscale, *vscale;
    uint16_t *expanded;
};

/* The larger by lane, of the first n lanes of x only. */
static inline __m512 top_of(__m512 top, __m512 x, int n)
{
    const __mmask16 seen = n >= 16 ? 0xffff : n > 0 ? v16_first(n) : 0;
    return _mm512_mask_max_ps(top, seen, x, top);
}

/* lanes_exp of what is 0 at most, or NaN. */
static inline __m512 exp_down(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(EXP_LO), x);
    const __m512 t = v16_fma(x, v16_set1(EXP_LOG2E), v16_set1(EXP_MAGIC));
    const __m512 n = v16_sub(t, v16_set1(EXP_MAGIC));
    __m512 r = v16_fma(n, v16_set1(-EXP_LN2_HI), x);
    r = v16_fma(n, v16_set1(-EXP_LN2_LO), r);
    __m512 p = v16_fma(v16_set1(EXP_C6), r, v16_set1(EXP_C5));
    p = v16_fma(p, r, v16_set1(EXP_C4));
    p = v16_fma(p, r, v16_set1(EXP_C3));
    p = v16_fma(p, r, v16_set1(EXP_C2));
    p = v16_fma(p, r, v16_set1(1.0f));
    p = v16_fma(p, r, v16_set1(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* Weights of V from the n visible scores of a query; from n to the end of the last block they are
 * zeros. */
static inline __attribute__((always_inline)) void softmax(const float *s, uint16_t *weights, int n,
                                                          __m512 top, const float *vscale, float *l)
{
    __m512 sum = _mm512_setzero_ps();
    int j = 0;
    for (; j + 32 <= n; j += 32) {
        __m512 p = exp_down(_mm512_sub_ps(_mm512_load_ps(s + j), top));
        __m512 q = exp_down(_mm512_sub_ps(_mm512_load_ps(s + j + 16), top));
        sum = _mm512_add_ps(_mm512_add_ps(sum, p), q);
        if (vscale != NULL) {
            p = _mm512_mul_ps(p, _mm512_load_ps(vscale + j));
            q = _mm512_mul_ps(q, _mm512_load_ps(vscale + j + 16));
        }
        _mm512_store_si512(weights + j, (__m512i)_mm512_cvtne2ps_pbh(q, p));
    }
    for (; j < n; j += 16) {
        const __mmask16 seen = v16_first(lanes_count(j, n));
        __m512 p = exp_down(_mm512_sub_ps(_mm512_load_ps(s + j), top));
        sum = _mm512_mask_add_ps(sum, seen, sum, p);
        if (vscale != NULL) {
            p = _mm512_mul_ps(p, _mm512_load_ps(vscale + j));
        }
        p = _mm512_maskz_mov_ps(seen, p);
        _mm256_store_si256((__m256i *)(void *)(weights + j), (__m256i)_mm512_cvtneps_pbh(p));
    }
    *l = v16_fold_add(sum);
}

static __attribute__((noinline)) void all_softmax(const struct attn_part *part,
                                                  const struct work *w)
{
    for (int i = 0; i < part->n_q; i++) {
        part->m[i] = v16_fold_max(_mm512_load_ps(w->tops + i * 16));
    }
    for (int i = 0; i < part->n_q; i++) {
        const size_t at = (size_t)i * ATTN_PARTITION;
        const __m512 top = _mm512_set1_ps(part->m[i]);
        if (part->kv == KV_ACT) {
            softmax(w->scores + at, w->weights + at, part->visible[i], top, NULL, &part->l[i]);
        } else {
            softmax(w->scores + at, w->weights + at, part->visible[i], top, w->vscale, &part->l[i]);
        }
    }
}

/* ---- up to 8 queries ---- */

/* DO(vector, accumulator of line x, of line y) for the 8 vectors of a group. */
/* clang-format off */
#define EACH(DO)                                                                                   \
    DO(0, x0, y0) DO(1, x1, y1) DO(2, x2, y2) DO(3, x3, y3)                                        \
    DO(4, x4, y4) DO(5, x5, y5) DO(6, x6, y6) DO(7, x7, y7)
/* clang-format on */
#define ZERO(g, x, y)                                                                              \
    __m512 x = _mm512_setzero_ps(), y = x;                                                         \
    const uint16_t *const a##g = vectors[g];
#define STEP(g, xg, yg)                                                                            \
    v = pair(a##g + at);                                                                           \
    xg = _mm512_dpbf16_ps(xg, v, lx);                                                              \
    yg = _mm512_dpbf16_ps(yg, v, ly);
#define STEP2(g, xg, yg)                                                                           \
    v = pair(a##g + at);                                                                           \
    w = pair(a##g + at + 2);                                                                       \
    xg = _mm512_dpbf16_ps(xg, v, lx);                                                              \
    yg = _mm512_dpbf16_ps(yg, v, ly);                                                              \
    xg = _mm512_dpbf16_ps(xg, w, lx2);                                                             \
    yg = _mm512_dpbf16_ps(yg, w, ly2);

/* The queries of a group; a missing one repeats the first. */
struct few {
    const uint16_t *q[GROUP], *weights[GROUP];
    float *scores[GROUP], *tops[GROUP], *acc[GROUP];
    int visible[GROUP];
};

/* The tiles of the next pair of blocks: of this partition, or of the one that the caller will ask
 * for next. Without any, tiles that are here already. */
struct ahead {
    const char *x, *y;
};

static inline struct ahead ahead_of(const void *const *tiles, int b, int n, size_t at,
                                    const struct ahead *other)
{
    struct ahead a = *other;
    if (b < n) {
        a.x = (const char *)tiles[b] + at;
        a.y = (const char *)tiles[b + 1 < n ? b + 1 : b] + at;
    }
    return a;
}

/* Scores of the queries against blocks 0 .. n_blocks - 1. */
static inline __attribute__((always_inline)) void few_scores(const struct few *f,
                                                             const struct attn_part *part,
                                                             const float *kscale, int n_blocks,
                                                             const struct code_tables *codes)
{
    const uint16_t *const *vectors = f->q;
    const size_t k_bytes = (size_t)part->head_dim * (codes ? 16 : 32);
    const struct ahead sums = ahead_of(part->tiles, 0, n_blocks, k_bytes, &(struct ahead){0});
    for (int g = 0; g < GROUP; g++) {
        _mm512_store_ps(f->tops[g], _mm512_set1_ps(-INFINITY));
    }
    for (int b = 0; b < n_blocks; b += 2) {
        const int two = b + 1 < n_blocks;
        const char *x = part->tiles[b], *y = part->tiles[b + two];
        const struct ahead next = ahead_of(part->tiles, b + 2, n_blocks, 0, &sums);
        EACH(ZERO)
        for (size_t j = 0; j < k_bytes; j += 64) {
            fetch(next.x + j);
            fetch(next.y + j);
            if (codes) {
                const size_t at = j / 16;
                __m512bh v, w, lx, lx2, ly, ly2;
                code_lines((const uint8_t *)x + j, codes, &lx, &lx2);
                code_lines((const uint8_t *)y + j, codes, &ly, &ly2);
                EACH(STEP2)
            } else {
                const size_t at = j / 32;
                const __m512bh lx = line(x + j), ly = line(y + j);
                __m512bh v;
                EACH(STEP)
            }
        }
        /* without a second block y repeats x: the same values, to the same place */
        const int at = b * 16, at_y = at + 16 * two;
        const __m512 sx = _mm512_load_ps(kscale + at), sy = _mm512_load_ps(kscale + at_y);
#define STORE(g, xg, yg)                                                                           \
    xg = _mm512_mul_ps(xg, sx);                                                                    \
    yg = _mm512_mul_ps(yg, sy);                                                                    \
    _mm512_store_ps(f->scores[g] + at, xg);                                                        \
    _mm512_store_ps(f->scores[g] + at_y, yg);                                                      \
    xg = top_of(_mm512_load_ps(f->tops[g]), xg, f->visible[g] - at);                               \
    _mm512_store_ps(f->tops[g], top_of(xg, yg, f->visible[g] - at_y));
        EACH(STORE)
#undef STORE
    }
}

/* A pair of blocks in the weighted sum over whole pairs of positions: pairs 8 b .. end - 1 of tiles
 * b, b + 1. */
struct few_pair {
    const void *const *tiles;
    size_t hd;
    int b, end;
    int is_last; /* of all */
    struct ahead next;
};

/* Dimensions d .. d + 15 and d + skip .. (skip 16, or 0: none) of it: chains start at 0, or go on
 * where the blocks before left them. */
static inline __attribute__((always_inline)) void few_sums(const struct few *f,
                                                           const struct few_pair *s, size_t d,
                                                           size_t skip,
                                                           const struct code_tables *codes)
{
    const uint16_t *const *vectors = f->weights;
    EACH(ZERO)
    if (s->b > 0) {
#define LOAD(g, xg, yg)                                                                            \
    xg = _mm512_load_ps(f->acc[g] + d);                                                            \
    yg = _mm512_load_ps(f->acc[g] + d + skip);
        EACH(LOAD)
#undef LOAD
    }
    for (int b = s->b; b < s->b + 2 && b * 8 < s->end; b++) {
        const int end = s->end - b * 8 < 8 ? s->end - b * 8 : 8;
        const char *next = b == s->b ? s->next.x : s->next.y;
        if (codes) { /* weights beyond the pairs are zeros */
            const uint8_t *p = (const uint8_t *)s->tiles[b] + 16 * s->hd + 16 * d;
            next += 16 * d;
            for (int i = 0; i < end; i += 2, p += 64, next += 64) {
                const int at = b * 16 + 2 * i;
                __m512bh v, w, lx, lx2, ly, ly2;
                code_lines(p, codes, &lx, &lx2);
                code_lines(p + 16 * skip, codes, &ly, &ly2);
                EACH(STEP2)
                fetch(next);
                fetch(next + 16 * skip);
            }
        } else {
            const uint16_t *p = (const uint16_t *)s->tiles[b] + 16 * s->hd + 16 * d;
            next += 32 * d;
            for (int i = 0; i < end; i++, p += 32, next += 64) {
                const int at = b * 16 + 2 * i;
                const __m512bh lx = line(p), ly = line(p + 16 * skip);
                __m512bh v;
                EACH(STEP)
                fetch(next);
                fetch(next + 32 * skip);
            }
        }
    }
    if (s->is_last) {
#define FINISH(g, xg, yg)                                                                          \
    xg = _mm512_add_ps(xg, _mm512_setzero_ps());                                                   \
    yg = _mm512_add_ps(yg, _mm512_setzero_ps());
        EACH(FINISH)
#undef FINISH
    }
#define STORE(g, xg, yg)                                                                           \
    _mm512_store_ps(f->acc[g] + d, xg);                                                            \
    _mm512_store_ps(f->acc[g] + d + skip, yg);
    EACH(STORE)
#undef STORE
}

static inline __attribute__((always_inline)) void few_all_sums(const struct few *f,
                                                               const struct attn_part *part,
                                                               int n_pairs,
                                                               const struct code_tables *codes)
{
    const int n_blocks = (n_pairs + 7) / 8;
    struct few_pair s = {part->tiles, (size_t)part->head_dim, 0, n_pairs, 0, {0}};
    const size_t v_at = s.hd * (codes ? 16 : 32);
    const struct ahead here = ahead_of(part->tiles, 0, 1, 0, &s.next);
    const struct ahead k = ahead_of(part->next, 0, part->n_next, 0, &here);
    do {
        s.next = ahead_of(part->tiles, s.b + 2, n_blocks, v_at, &k);
        s.is_last = s.b + 2 >= n_blocks;
        if (codes) {
            const struct ahead scales = ahead_of(part->next, s.b, part->n_next, 32 * s.hd, &here);
            fetch(scales.x);
            fetch(scales.y);
        }
        size_t d = 0;
        for (; d + 32 <= s.hd; d += 32) {
            few_sums(f, &s, d, 16, codes);
        }
        if (d < s.hd) {
            few_sums(f, &s, d, 0, codes);
        }
        s.b += 2;
    } while (s.b < n_blocks);
}

/* ---- more queries ---- */

/* Scores of n_rows (a constant) queries from row on against the blocks of b[], whose columns begin
 * at col[]; a missing block repeats the first. */
struct score_args {
    const uint16_t *q;
    float *scores, *tops;
    const char *b[4];
    const float *kscale;
    const int32_t *visible;
    int col[4], hd, all_seen;
};

static inline __attribute__((always_inline)) void score_rows(const int n_rows,
                                                             const struct score_args *s)
{
    const size_t hd = (size_t)s->hd;
    const char *b0 = s->b[0], *b1 = s->b[1], *b2 = s->b[2], *b3 = s->b[3];
    const uint16_t *a0 = s->q, *a1 = a0 + hd, *a2 = a1 + hd, *a3 = a2 + hd, *a4 = a3 + hd,
                   *a5 = a4 + hd;
    __m512 c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
    __m512 c30, c31, c32, c33, c40, c41, c42, c43, c50, c51, c52, c53;
    c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = c20 = c21 = c22 = c23 = _mm512_setzero_ps();
    c30 = c31 = c32 = c33 = c40 = c41 = c42 = c43 = c50 = c51 = c52 = c53 = _mm512_setzero_ps();
#define SCORE(row, x0, x1, x2, x3, a)                                                              \
    {                                                                                              \
        const __m512bh v = pair(a + 2 * j);                                                        \
        x0 = _mm512_dpbf16_ps(x0, v, w0);                                                          \
        x1 = _mm512_dpbf16_ps(x1, v, w1);                                                          \
        x2 = _mm512_dpbf16_ps(x2, v, w2);                                                          \
        x3 = _mm512_dpbf16_ps(x3, v, w3);                                                          \
    }
    for (size_t j = 0; j < hd / 2; j++) {
        const __m512bh w0 = line(b0 + 64 * j), w1 = line(b1 + 64 * j), w2 = line(b2 + 64 * j),
                       w3 = line(b3 + 64 * j);
        ROWS_6X4(SCORE)
    }
#undef SCORE
    const int k0 = s->col[0], k1 = s->col[1], k2 = s->col[2], k3 = s->col[3];
    const __m512 s0 = _mm512_load_ps(s->kscale + k0), s1 = _mm512_load_ps(s->kscale + k1),
                 s2 = _mm512_load_ps(s->kscale + k2), s3 = _mm512_load_ps(s->kscale + k3);
#define STORE(row, x0, x1, x2, x3, a)                                                              \
    {                                                                                              \
        float *const to = s->scores + row * ATTN_PARTITION, *const t = s->tops + row * 16;         \
        x0 = _mm512_mul_ps(x0, s0);                                                                \
        x1 = _mm512_mul_ps(x1, s1);                                                                \
        x2 = _mm512_mul_ps(x2, s2);                                                                \
        x3 = _mm512_mul_ps(x3, s3);                                                                \
        _mm512_store_ps(to + k0, x0);                                                              \
        _mm512_store_ps(to + k1, x1);                                                              \
        _mm512_store_ps(to + k2, x2);                                                              \
        _mm512_store_ps(to + k3, x3);                                                              \
        __m512 top = _mm512_load_ps(t);                                                            \
        if (s->all_seen) {                                                                         \
            top = _mm512_max_ps(x0, top);                                                          \
            top = _mm512_max_ps(x1, top);                                                          \
            top = _mm512_max_ps(x2, top);                                                          \
            top = _mm512_max_ps(x3, top);                                                          \
        } else {                                                                                   \
            const int n = s->visible[row];                                                         \
            top = top_of(top, x0, n - k0);                                                         \
            top = top_of(top, x1, n - k1);                                                         \
            top = top_of(top, x2, n - k2);                                                         \
            top = top_of(top, x3, n - k3);                                                         \
        }                                                                                          \
        _mm512_store_ps(t, top);                                                                   \
    }
    ROWS_6X4(STORE)
#undef STORE
}

/* The least and the most that queries i .. i + n - 1 see. */
static inline int least_seen(const struct attn_part *part, int i, int n)
{
    int least = part->visible[i];
    for (int g = i + 1; g < i + n; g++) {
        least = part->visible[g] < least ? part->visible[g] : least;
    }
    return least;
}

static inline int most_seen(const struct attn_part *part, int i, int n)
{
    int most = part->visible[i];
    for (int g = i + 1; g < i + n; g++) {
        most = part->visible[g] > most ? part->visible[g] : most;
    }
    return most;
}

static inline int rows_from(const struct attn_part *part, int i)
{
    return part->n_q - i < MICRO_ROWS ? part->n_q - i : MICRO_ROWS;
}

static __attribute__((noinline)) void many_scores(const struct attn_part *part,
                                                  const struct work *w, const void *const *tiles,
                                                  int n_blocks)
{
    struct score_args s = {.kscale = w->kscale, .hd = part->head_dim};
    for (int i = 0; i < part->n_q; i++) {
        _mm512_store_ps(w->tops + i * 16, _mm512_set1_ps(-INFINITY));
    }
    for (int b = 0; b < n_blocks; b += 4) {
        for (int t = 0; t < 4; t++) {
            const int at = b + t < n_blocks ? b + t : b;
            s.b[t] = tiles[at];
            s.col[t] = at * 16;
        }
        for (int i = 0; i < part->n_q; i += MICRO_ROWS) {
            const int n = rows_from(part, i);
            if (b * 16 < most_seen(part, i, n)) {
                s.q = (const uint16_t *)part->q + (size_t)i * (size_t)s.hd;
                s.scores = w->scores + i * ATTN_PARTITION;
                s.tops = w->tops + i * 16;
                s.visible = part->visible + i;
                s.all_seen = least_seen(part, i, n) >= b * 16 + 64;
                ROW_COUNTS(n, score_rows, &s)
            }
        }
    }
}

/* 64 dimensions from d on (fewer: the missing lines repeat the first, to the same place) of the
 * weighted sum of n_rows (a constant) queries over whole pairs. */
static inline __attribute__((always_inline)) void many_sums(const int n_rows, float *c,
                                                            const uint16_t *weights,
                                                            const void *const *tiles, int n_pairs,
                                                            int hd, int d)
{
    const size_t ldc = (size_t)hd;
    const size_t k1 = d + 16 < hd ? 16 : 0, k2 = d + 32 < hd ? 32 : 0, k3 = d + 48 < hd ? 48 : 0;
    const uint16_t *a0 = weights, *a1 = a0 + ATTN_PARTITION, *a2 = a1 + ATTN_PARTITION,
                   *a3 = a2 + ATTN_PARTITION, *a4 = a3 + ATTN_PARTITION, *a5 = a4 + ATTN_PARTITION;
    __m512 c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
    __m512 c30, c31, c32, c33, c40, c41, c42, c43, c50, c51, c52, c53;
    c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = c20 = c21 = c22 = c23 = _mm512_setzero_ps();
    c30 = c31 = c32 = c33 = c40 = c41 = c42 = c43 = c50 = c51 = c52 = c53 = _mm512_setzero_ps();
#define SUM(row, x0, x1, x2, x3, a)                                                                \
    {                                                                                              \
        const __m512bh v = pair(a + j);                                                            \
        x0 = _mm512_dpbf16_ps(x0, v, w0);                                                          \
        x1 = _mm512_dpbf16_ps(x1, v, w1);                                                          \
        x2 = _mm512_dpbf16_ps(x2, v, w2);                                                          \
        x3 = _mm512_dpbf16_ps(x3, v, w3);                                                          \
    }
#define STORE(row, x0, x1, x2, x3, a)                                                              \
    _mm512_store_ps(c + row * ldc, _mm512_add_ps(x0, _mm512_setzero_ps()));                        \
    _mm512_store_ps(c + row * ldc + k1, _mm512_add_ps(x1, _mm512_setzero_ps()));                   \
    _mm512_store_ps(c + row * ldc + k2, _mm512_add_ps(x2, _mm512_setzero_ps()));                   \
    _mm512_store_ps(c + row * ldc + k3, _mm512_add_ps(x3, _mm512_setzero_ps()));
    c += d;
    for (int b = 0; b * 8 < n_pairs; b++) {
        const uint16_t *p = (const uint16_t *)tiles[b] + 16 * (size_t)(hd + d);
        const int end = n_pairs - b * 8 < 8 ? n_pairs * 2 : b * 16 + 16;
        for (int j = b * 16; j < end; j += 2, p += 32) {
            const __m512bh w0 = line(p), w1 = line(p + 16 * k1), w2 = line(p + 16 * k2),
                           w3 = line(p + 16 * k3);
            ROWS_6X4(SUM)
        }
    }
    ROWS_6X4(STORE)
#undef SUM
#undef STORE
}

/* Pairs from_pair .. of one query alone. */
static void rest_sums(float *acc, const uint16_t *p, const void *const *tiles, int hd,
                      int from_pair, int n)
{
    for (int d = 0; d < hd && 2 * from_pair < n; d += 16) {
        __m512 c = _mm512_load_ps(acc + d);
        for (int j = from_pair; 2 * j < n; j++) {
            __m512i v = _mm512_load_si512((const uint16_t *)tiles[j / 8] + 16 * (size_t)(hd + d) +
                                          j % 8 * 32);
            if (2 * j + 1 == n) {
                v = _mm512_and_si512(v, _mm512_set1_epi32(0xffff));
            }
            c = _mm512_dpbf16_ps(c, pair(p + 2 * j), (__m512bh)v);
        }
        _mm512_store_ps(acc + d, _mm512_add_ps(c, _mm512_setzero_ps()));
    }
}

static __attribute__((noinline)) void
many_all_sums(const struct attn_part *part, const uint16_t *weights, const void *const *tiles)
{
    const int hd = part->head_dim;
    for (int d = 0; d < hd; d += 64) {
        for (int i = 0; i < part->n_q; i += MICRO_ROWS) {
            const int n = rows_from(part, i), n_pairs = least_seen(part, i, n) / 2;
            float *c = part->acc + (size_t)i * (size_t)hd;
            const uint16_t *w = weights + (size_t)i * ATTN_PARTITION;
            ROW_COUNTS(n, many_sums, c, w, tiles, n_pairs, hd, d)
        }
    }
    for (int i = 0; i < part->n_q; i++) {
        const int first = i / MICRO_ROWS * MICRO_ROWS;
        rest_sums(part->acc + (size_t)i * (size_t)hd, weights + (size_t)i * ATTN_PARTITION, tiles,
                  hd, least_seen(part, first, rows_from(part, first)) / 2, part->visible[i]);
    }
}

/* ---- one partition ---- */

static inline __attribute__((always_inline)) void few(const struct attn_part *part,
                                                      const struct work *w, int n_blocks,
                                                      const struct code_tables *codes)
{
    const int hd = part->head_dim, n = part->n_q, least = least_seen(part, 0, n);
    struct few f;
    for (int g = 0; g < GROUP; g++) {
        const int at = g < n ? g : 0;
        f.q[g] = (const uint16_t *)part->q + (size_t)at * (size_t)hd;
        f.scores[g] = w->scores + at * ATTN_PARTITION;
        f.tops[g] = w->tops + at * 16;
        f.weights[g] = w->weights + at * ATTN_PARTITION;
        f.acc[g] = part->acc + (size_t)at * (size_t)hd;
        f.visible[g] = part->visible[at];
    }
    few_scores(&f, part, w->kscale, n_blocks, codes);
    all_softmax(part, w);
    if (codes) {
        /* Any code stands for a number: what a query doesn't see weighs nothing. */
        for (int g = 0; g < n; g++) {
            const int end = (part->visible[g] + 15) / 16 * 16;
            memset(w->weights + g * ATTN_PARTITION + end, 0,
                   (size_t)(n_blocks * 16 - end) * sizeof *w->weights);
        }
        few_all_sums(&f, part, n_blocks * 8, codes);
        return;
    }
    few_all_sums(&f, part, least / 2, codes);
    for (int g = 0; g < n; g++) {
        rest_sums(f.acc[g], f.weights[g], part->tiles, hd, least / 2, part->visible[g]);
    }
}

static __attribute__((noinline)) void few16(const struct attn_part *part, const struct work *w,
                                            int n_blocks)
{
    few(part, w, n_blocks, NULL);
}

static __attribute__((noinline)) void few8(const struct attn_part *part, const struct work *w,
                                           int n_blocks)
{
    const struct code_tables codes = kv_tables_of(part->kv);
    few(part, w, n_blocks, &codes);
}

static void many(const struct attn_part *part, const struct work *w, int n_blocks)
{
    const void *expanded[BLOCKS], *const *tiles = part->tiles;
    if (part->kv != KV_ACT) {
        expand(w->expanded, part, n_blocks);
        for (int b = 0; b < n_blocks; b++) {
            expanded[b] = w->expanded + (size_t)b * 32 * (size_t)part->head_dim;
        }
        tiles = expanded;
    }
    many_scores(part, w, tiles, n_blocks);
    all_softmax(part, w);
    many_all_sums(part, w->weights, tiles);
}

void avx512bf16_attn_part(const struct attn_part *part)
{
    _Alignas(64) float tops[ATTN_MAX_Q * 16];
    struct work w = {.scores = part->scratch, .tops = tops};
    w.weights = (uint16_t *)(void *)(w.scores + ATTN_MAX_Q * ATTN_PARTITION);
    w.expanded = (uint16_t *)(void *)(w.scores + ATTN_MAX_Q * (ATTN_PARTITION + MAX_HEAD_DIM));
    w.kscale = w.scores + ATTN_SCRATCH_FLOATS - 2 * ATTN_PARTITION;
    w.vscale = w.kscale + ATTN_PARTITION;
    const v16 scale = v16_set1(part->scale);
    const size_t hd = (size_t)part->head_dim;
    const int n_blocks = (most_seen(part, 0, part->n_q) + 15) / 16;
    for (int b = 0; b < n_blocks; b++) {
        v16 k = scale;
        if (part->kv != KV_ACT) {
            k = v16_mul(lanes_kv_scales(part->tiles[b], hd, 0), scale);
            v16_store(w.vscale + b * 16, lanes_kv_scales(part->tiles[b], hd, 1));
        }
        v16_store(w.kscale + b * 16, k);
    }
    if (part->n_q > GROUP) {
        many(part, &w, n_blocks);
    } else if (part->kv == KV_ACT) {
        few16(part, &w, n_blocks);
    } else {
        few8(part, &w, n_blocks);
    }
}
