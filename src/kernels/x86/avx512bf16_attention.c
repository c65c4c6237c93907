/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one partition with VDPBF16PS. The plan is that of kernels/lanes/attention.h; here a
 * line of K or V is consumed as it is stored, by independent chains in named registers:
 *
 *   up to 8 queries (a decoded token)  8 queries x 2 lines; codes of 8 bits are decoded in registers
 *   more (a prompt)                    6 queries x 4 lines, as in a product of matrices: four blocks
 *                                      of K, then 64 dimensions of V stay in the L1 cache while all
 *                                      queries pass over them; codes are decoded to bf16 once
 *
 * Blocks lie anywhere in the KV pool, so the hardware's prefetcher can't guess the next one. With few
 * queries, V is prefetched while scores are computed, and during the weighted sum the K of what the
 * caller will ask for next. */
#include "kernels/x86/avx512_v16.h"

#include "kernels/lanes/attention.h"
#include "kernels/x86/avx512bf16_codes.h"
#include "kernels/x86/avx512bf16_micro.h"
#include "kernels/x86/x86.h"

#define GROUP  8
#define BLOCKS (ATTN_PARTITION / KV_BLOCK_TOKENS)

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
            v16_prefetch(next + d * 16);
        }
        for (size_t d = 0; d < hd; d += 16) {
            for (size_t p = 0; p < 16; p += 4) {
                uint16_t *to = out + 16 * hd + p * hd + d * 2;
                code_lines(tile + 16 * hd + d * 16 + p * 16, &t, &first, &second);
                _mm512_store_si512(to, (__m512i)first);
                _mm512_store_si512(to + 2 * hd, (__m512i)second);
                v16_prefetch(next + 16 * hd + d * 16 + p * 16);
            }
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

/* Scores, not scaled yet, of 8 queries against blocks 0 .. n_blocks - 1; vectors[g] are queries,
 * out[g] rows of ATTN_PARTITION. */
static inline __attribute__((always_inline)) void
few_scores(float *const out[GROUP], const uint16_t *const vectors[GROUP], const void *const *tiles,
           int n_blocks, int hd, const struct code_tables *codes)
{
    for (int b = 0; b < n_blocks; b += 2) {
        const int two = b + 1 < n_blocks;
        const uint8_t *x = tiles[b], *y = tiles[b + two];
        const uint8_t *next_x = b + 2 < n_blocks ? tiles[b + 2] : x,
                      *next_y = b + 3 < n_blocks ? tiles[b + 3] : next_x;
        const int v_at = codes ? 16 * hd : 32 * hd;
        EACH(ZERO)
        for (int j = 0; j < v_at; j += 64) {
            v16_prefetch(x + v_at + j);
            v16_prefetch(y + v_at + j);
            v16_prefetch(next_x + j);
            v16_prefetch(next_y + j);
            if (codes) {
                const int at = j / 16;
                __m512bh v, w, lx, lx2, ly, ly2;
                code_lines(x + j, codes, &lx, &lx2);
                code_lines(y + j, codes, &ly, &ly2);
                EACH(STEP2)
            } else {
                const int at = j / 32;
                const __m512bh lx = line(x + j), ly = line(y + j);
                __m512bh v;
                EACH(STEP)
            }
        }
        /* without a second block y repeats x: the same values, to the same place */
        const int at = b * 16, at_y = at + 16 * two;
#define STORE(g, xg, yg)                                                                           \
    _mm512_store_ps(out[g] + at, xg);                                                              \
    _mm512_store_ps(out[g] + at_y, yg);
        EACH(STORE)
#undef STORE
    }
}

/* Lines that the caller will need, spread over the passes of a weighted sum: a pass takes `bytes`
 * of each block from `from` on. */
struct ahead {
    const void *const *tiles;
    int n;
    size_t from, bytes;
};

/* Dimensions d .. d + 15 and d + skip .. (skip 16, or 0: none) of the weighted sum over whole pairs
 * of positions; vectors[g] are weights, out[g] rows of the sum. */
static inline __attribute__((always_inline)) void
few_sums(float *const out[GROUP], const uint16_t *const vectors[GROUP], const void *const *tiles,
         int n_pairs, int hd, int d, int skip, const struct ahead *ahead,
         const struct code_tables *codes)
{
    const size_t k_step = ahead->bytes / (codes ? 4 : 8);
    EACH(ZERO)
    for (int b = 0; b * 8 < n_pairs; b++) {
        const int end = n_pairs - b * 8 < 8 ? n_pairs - b * 8 : 8;
        const char *k = (const char *)(b < ahead->n ? ahead->tiles[b] : tiles[b]) + ahead->from;
        if (codes) { /* weights beyond the pairs are zeros */
            const uint8_t *p = (const uint8_t *)tiles[b] + 16 * hd + 16 * d;
            for (int i = 0; i < end; i += 2, p += 64) {
                const int at = b * 16 + 2 * i;
                __m512bh v, w, lx, lx2, ly, ly2;
                code_lines(p, codes, &lx, &lx2);
                code_lines(p + 16 * skip, codes, &ly, &ly2);
                EACH(STEP2)
                v16_prefetch(k);
                k += k_step;
            }
        } else {
            const uint16_t *p = (const uint16_t *)tiles[b] + 16 * hd + 2 * d;
            const uint16_t *next =
                b * 8 + 8 < n_pairs ? (const uint16_t *)tiles[b + 1] + 16 * hd + 2 * d : p;
            for (int i = 0; i < end; i++, p += 2 * hd, next += 2 * hd) {
                const int at = b * 16 + 2 * i;
                const __m512bh lx = line(p), ly = line(p + 2 * skip);
                __m512bh v;
                EACH(STEP)
                v16_prefetch(next);
                v16_prefetch(next + 2 * skip);
                v16_prefetch(k);
                v16_prefetch(k + 64);
                k += k_step;
            }
        }
    }
#define STORE(g, xg, yg)                                                                           \
    _mm512_store_ps(out[g] + d, _mm512_add_ps(xg, _mm512_setzero_ps()));                           \
    _mm512_store_ps(out[g] + d + skip, _mm512_add_ps(yg, _mm512_setzero_ps()));
    EACH(STORE)
#undef STORE
}

static inline __attribute__((always_inline)) void
few_all_sums(float *const out[GROUP], const uint16_t *const vectors[GROUP],
             const void *const *tiles, int n_pairs, int hd, const struct attn_part *part,
             const struct code_tables *codes)
{
    const size_t k_bytes = (size_t)hd * (codes ? 16 : 32), passes = ((size_t)hd + 31) / 32;
    struct ahead ahead = {part->next, part->n_next, 0, 0};
    ahead.bytes = (k_bytes / passes + 63) / 64 * 64;
    int d = 0;
    for (; d + 32 <= hd; d += 32) {
        few_sums(out, vectors, tiles, n_pairs, hd, d, 16, &ahead, codes);
        ahead.from += ahead.bytes;
    }
    if (d < hd) {
        ahead.bytes = k_bytes - ahead.from;
        few_sums(out, vectors, tiles, n_pairs, hd, d, 0, &ahead, codes);
    }
}

/* ---- more queries ---- */

/* Scores, not scaled yet, of all queries against blocks 0 .. n_blocks - 1. */
static __attribute__((noinline)) void many_scores(float *scores, const struct attn_part *part,
                                                  const void *const *tiles, int n_blocks)
{
    const size_t hd = (size_t)part->head_dim;
    struct micro_args s = {.ldc = ATTN_PARTITION, .lda = hd, .pairs = hd / 2, .is_first = 1};
    for (int b = 0; b < n_blocks; b += 4) {
        int n;
        for (int t = 0; t < 4; t++) {
            const int at = b + t < n_blocks ? b + t : b;
            s.b[t] = tiles[at];
            s.col[t] = (size_t)(at - b) * 16;
        }
        for (int i = 0; i < part->n_q; i += n) {
            n = part->n_q - i < MICRO_ROWS ? part->n_q - i : MICRO_ROWS;
            int most = 0;
            for (int g = i; g < i + n; g++) {
                most = part->visible[g] > most ? part->visible[g] : most;
            }
            if (b * 16 < most) {
                s.c = scores + (size_t)i * ATTN_PARTITION + b * 16;
                s.a = (const uint16_t *)part->q + (size_t)i * hd;
                micro_rows(n, 0, &s);
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
        const uint16_t *p = (const uint16_t *)tiles[b] + 16 * hd + 2 * d;
        const int end = n_pairs - b * 8 < 8 ? n_pairs * 2 : b * 16 + 16;
        for (int j = b * 16; j < end; j += 2, p += 2 * hd) {
            const __m512bh w0 = line(p), w1 = line(p + 2 * k1), w2 = line(p + 2 * k2),
                           w3 = line(p + 2 * k3);
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
            __m512i v = _mm512_load_si512((const uint16_t *)tiles[j / 8] + 16 * hd +
                                          j % 8 * hd * 2 + d * 2);
            if (2 * j + 1 == n) {
                v = _mm512_and_si512(v, _mm512_set1_epi32(0xffff));
            }
            c = _mm512_dpbf16_ps(c, pair(p + 2 * j), (__m512bh)v);
        }
        _mm512_store_ps(acc + d, _mm512_add_ps(c, _mm512_setzero_ps()));
    }
}

static void many_all_sums(const struct attn_part *part, const uint16_t *weights,
                          const void *const *tiles)
{
    const int hd = part->head_dim;
    int least[ATTN_MAX_Q], n; /* of each group, pairs that all its queries see */
    for (int i = 0; i < part->n_q; i += n) {
        n = part->n_q - i < MICRO_ROWS ? part->n_q - i : MICRO_ROWS;
        least[i] = part->visible[i];
        for (int g = i + 1; g < i + n; g++) {
            least[i] = part->visible[g] < least[i] ? part->visible[g] : least[i];
        }
        least[i] /= 2;
    }
    for (int d = 0; d < hd; d += 64) {
        for (int i = 0; i < part->n_q; i += MICRO_ROWS) {
            float *c = part->acc + (size_t)i * (size_t)hd;
            const uint16_t *w = weights + (size_t)i * ATTN_PARTITION;
            ROW_COUNTS(part->n_q - i, many_sums, c, w, tiles, least[i], hd, d)
        }
    }
    for (int i = 0; i < part->n_q; i++) {
        rest_sums(part->acc + (size_t)i * (size_t)hd, weights + (size_t)i * ATTN_PARTITION, tiles,
                  hd, least[i / MICRO_ROWS * MICRO_ROWS], part->visible[i]);
    }
}

/* lanes_softmax with the conversion instruction, and with the scores' scales (NULL: vscale, one).
 * Beyond n to the end of the last block weights are zeros. */
static void softmax(float *s, uint16_t *weights, int n, const float *kscale, const float *vscale,
                    float *m, float *l)
{
    v16 top = v16_set1(-INFINITY), sum = v16_zero();
    for (int j = 0; j < n; j += 16) {
        const v16 x = v16_mul(v16_load(s + j), v16_load(kscale + j));
        v16_store(s + j, x);
        top = v16_max(v16_keep_n(x, lanes_count(j, n), top), top);
    }
    *m = v16_fold_max(top);
    top = v16_set1(*m);
    for (int j = 0; j < n; j += 16) {
        v16 p = lanes_exp(v16_sub(v16_load(s + j), top));
        p = v16_keep_n(p, lanes_count(j, n), v16_zero());
        sum = v16_add(sum, p);
        if (vscale != NULL) {
            p = v16_keep_n(v16_mul(p, v16_load(vscale + j)), lanes_count(j, n), v16_zero());
        }
        _mm256_store_si256((__m256i *)(void *)(weights + j), (__m256i)_mm512_cvtneps_pbh(p));
    }
    *l = v16_fold_add(sum);
}

struct work {
    float *scores;     /* [ATTN_MAX_Q][ATTN_PARTITION] */
    uint16_t *weights; /* the same */
    float *kscale, *vscale;
    uint16_t *expanded;
};

static void all_softmax(const struct attn_part *part, const struct work *w)
{
    for (int i = 0; i < part->n_q; i++) {
        const size_t at = (size_t)i * ATTN_PARTITION;
        softmax(w->scores + at, w->weights + at, part->visible[i], w->kscale,
                part->kv == KV_ACT ? NULL : w->vscale, &part->m[i], &part->l[i]);
    }
}

static inline __attribute__((always_inline)) void few(const struct attn_part *part,
                                                      const struct work *w, int n_blocks,
                                                      const struct code_tables *codes)
{
    const int hd = part->head_dim, n = part->n_q;
    const uint16_t *q[GROUP], *p[GROUP];
    float *s[GROUP], *acc[GROUP];
    int least = ATTN_PARTITION;
    for (int g = 0; g < GROUP; g++) {
        const int at = g < n ? g : 0; /* a missing query repeats the first */
        q[g] = (const uint16_t *)part->q + (size_t)at * (size_t)hd;
        s[g] = w->scores + at * ATTN_PARTITION;
        p[g] = w->weights + at * ATTN_PARTITION;
        acc[g] = part->acc + (size_t)at * (size_t)hd;
        least = part->visible[at] < least ? part->visible[at] : least;
    }
    few_scores(s, q, part->tiles, n_blocks, hd, codes);
    all_softmax(part, w);
    if (codes) {
        /* Any code stands for a number: what a query doesn't see weighs nothing. */
        for (int g = 0; g < n; g++) {
            const int end = (part->visible[g] + 15) / 16 * 16;
            memset(w->weights + g * ATTN_PARTITION + end, 0,
                   (size_t)(n_blocks * 16 - end) * sizeof *w->weights);
        }
        few_all_sums(acc, p, part->tiles, n_blocks * 8, hd, part, codes);
        return;
    }
    few_all_sums(acc, p, part->tiles, least / 2, hd, part, codes);
    for (int g = 0; g < n; g++) {
        rest_sums(acc[g], p[g], part->tiles, hd, least / 2, part->visible[g]);
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
    many_scores(w->scores, part, tiles, n_blocks);
    all_softmax(part, w);
    many_all_sums(part, w->weights, tiles);
}

void avx512bf16_attn_part(const struct attn_part *part)
{
    struct work w = {.scores = part->scratch};
    w.weights = (uint16_t *)(void *)(w.scores + ATTN_MAX_Q * ATTN_PARTITION);
    w.expanded = (uint16_t *)(void *)(w.scores + ATTN_MAX_Q * (ATTN_PARTITION + MAX_HEAD_DIM));
    w.kscale = w.scores + ATTN_SCRATCH_FLOATS - 2 * ATTN_PARTITION;
    w.vscale = w.kscale + ATTN_PARTITION;
    const v16 scale = v16_set1(part->scale);
    const size_t hd = (size_t)part->head_dim;
    int n_blocks = 0;
    for (int i = 0; i < part->n_q; i++) {
        const int n = (part->visible[i] + 15) / 16;
        n_blocks = n > n_blocks ? n : n_blocks;
    }
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
