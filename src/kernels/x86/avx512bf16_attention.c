/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one partition over bf16 KV tiles with VDPBF16PS. The plan is that of
 * kernels/lanes/attention.h (8 queries share every K and V line); here a line is consumed as it is
 * stored, two blocks of positions or two groups of 16 dimensions at a time, which makes 16
 * independent chains in named registers.
 *
 * While the scores of two blocks are computed, their V and the next two blocks' K are prefetched:
 * blocks lie anywhere in the KV pool, so the hardware's prefetcher can't guess the next one. */
#include "kernels/x86/avx512_v16.h"

#include "kernels/lanes/attention.h"
#include "kernels/x86/x86.h"

#define GROUP 8

static inline __m512bh line(const uint16_t *p)
{
    return (__m512bh)_mm512_load_si512(p);
}

static inline __m512bh pair(const uint16_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return (__m512bh)_mm512_set1_epi32(v);
}

/* DO(vector, accumulator of line x, of line y) for the 8 vectors of a group. */
/* clang-format off */
#define EACH(DO)                                                                                   \
    DO(0, x0, y0) DO(1, x1, y1) DO(2, x2, y2) DO(3, x3, y3)                                        \
    DO(4, x4, y4) DO(5, x5, y5) DO(6, x6, y6) DO(7, x7, y7)
/* clang-format on */
#define ZERO(g, x, y)                                                                              \
    __m512 x = _mm512_setzero_ps(), y = x;                                                         \
    const uint16_t *const a##g = vectors[g];

/* Scores of 8 queries against blocks 0 .. n_blocks - 1; vectors[g] are queries, out[g] rows of
 * ATTN_PARTITION; scale: one of each position. */
static void scores(float *const out[GROUP], const uint16_t *const vectors[GROUP],
                   const void *const *tiles, int n_blocks, int hd, const float *scale)
{
    for (int b = 0; b < n_blocks; b += 2) {
        const int two = b + 1 < n_blocks;
        const uint16_t *x = tiles[b], *y = tiles[b + two];
        const uint16_t *next_x = b + 2 < n_blocks ? tiles[b + 2] : x,
                       *next_y = b + 3 < n_blocks ? tiles[b + 3] : next_x;
        const int v_at = 16 * hd;
        EACH(ZERO)
        for (int j = 0; j < hd / 2; j++) {
            const __m512bh lx = line(x + 32 * j), ly = line(y + 32 * j);
            __m512bh v;
            v16_prefetch(x + v_at + 32 * j);
            v16_prefetch(y + v_at + 32 * j);
            v16_prefetch(next_x + 32 * j);
            v16_prefetch(next_y + 32 * j);
#define STEP(g, xg, yg)                                                                            \
    v = pair(a##g + 2 * j);                                                                        \
    xg = _mm512_dpbf16_ps(xg, v, lx);                                                              \
    yg = _mm512_dpbf16_ps(yg, v, ly);
            EACH(STEP)
#undef STEP
        }
        /* without a second block y repeats x: the same values, to the same place */
        const int at = b * 16, at_y = at + 16 * two;
        const v16 scale_x = v16_load(scale + at), scale_y = v16_load(scale + at_y);
#define STORE(g, xg, yg)                                                                           \
    _mm512_store_ps(out[g] + at, _mm512_mul_ps(xg, scale_x));                                      \
    _mm512_store_ps(out[g] + at_y, _mm512_mul_ps(yg, scale_y));
        EACH(STORE)
#undef STORE
    }
}

/* Dimensions d .. d + 15 and d + skip .. (skip 16, or 0: none) of the weighted sum over whole pairs
 * of positions; vectors[g] are probabilities, out[g] rows of the sum. */
static inline __attribute__((always_inline)) void weigh_at(float *const out[GROUP],
                                                           const uint16_t *const vectors[GROUP],
                                                           const void *const *tiles, int n_pairs,
                                                           int hd, int d, int skip)
{
    EACH(ZERO)
    for (int j = 0; j < n_pairs; j += 8) {
        const uint16_t *v_line = (const uint16_t *)tiles[j / 8] + 16 * hd + 2 * d;
        const uint16_t *next_line =
            j + 8 < n_pairs ? (const uint16_t *)tiles[j / 8 + 1] + 16 * hd + 2 * d : v_line;
        const int end = n_pairs < j + 8 ? n_pairs : j + 8;
        for (int i = j; i < end; i++) {
            const __m512bh lx = line(v_line), ly = line(v_line + 2 * skip);
            __m512bh v;
#define STEP(g, xg, yg)                                                                            \
    v = pair(a##g + 2 * i);                                                                        \
    xg = _mm512_dpbf16_ps(xg, v, lx);                                                              \
    yg = _mm512_dpbf16_ps(yg, v, ly);
            EACH(STEP)
#undef STEP
            v16_prefetch(next_line);
            v16_prefetch(next_line + 2 * skip);
            v_line += 2 * hd;
            next_line += 2 * hd;
        }
    }
#define STORE(g, xg, yg)                                                                           \
    _mm512_store_ps(out[g] + d, xg);                                                               \
    _mm512_store_ps(out[g] + d + skip, yg);
    EACH(STORE)
#undef STORE
}

static void weigh(float *const out[GROUP], const uint16_t *const vectors[GROUP],
                  const void *const *tiles, int n_pairs, int hd)
{
    int d = 0;
    for (; d + 32 <= hd; d += 32) {
        weigh_at(out, vectors, tiles, n_pairs, hd, d, 16);
    }
    if (d < hd) {
        weigh_at(out, vectors, tiles, n_pairs, hd, d, 0);
    }
}

/* Pairs from_pair .. of one query alone, and the final + 0. */
static void weigh_rest(float *acc, const uint16_t *p, const void *const *tiles, int hd,
                       int from_pair, int n)
{
    for (int d = 0; d < hd; d += 16) {
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

/* lanes_softmax with the conversion instruction; `rounded` gets bf16. */
static void softmax(float *s, uint16_t *rounded, int n, const float *vscale, float *m, float *l)
{
    v16 top = v16_set1(-INFINITY), sum = v16_zero();
    for (int j = 0; j < n; j += 16) {
        top = v16_max(v16_keep_n(v16_load(s + j), lanes_count(j, n), top), top);
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
        _mm256_store_si256((__m256i *)(void *)(rounded + j), (__m256i)_mm512_cvtneps_pbh(p));
    }
    *l = v16_fold_add(sum);
}

/* ---- tiles of 8 bits ---- */

/* bf16 of the codes without their sign, lower and upper bytes: bytes 0..127 of two tables that
 * VPERMI2B looks up by the low seven bits of a code. */
struct code_tables {
    __m512i low0, low1, high0, high1;
};

static inline __attribute__((always_inline)) struct code_tables code_tables_of(enum kv_format f)
{
    _Alignas(64) uint8_t low[128], high[128];
    for (int c = 0; c < 128; c += 16) {
        const n16 code = n16_add(
            n16_set1(c), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
        const v16 v = f == KV_I8        ? lanes_code_value(code, KV_I8)
                      : f == KV_F8_E4M3 ? lanes_code_value(code, KV_F8_E4M3)
                                        : lanes_code_value(code, KV_F8_E5M2);
        const n16 u = v16_bits(v);
        _mm_store_si128((__m128i *)(void *)(low + c), _mm512_cvtepi32_epi8(n16_shr(u, 16)));
        _mm_store_si128((__m128i *)(void *)(high + c), _mm512_cvtepi32_epi8(n16_shr(u, 24)));
    }
    return (struct code_tables){_mm512_load_si512(low), _mm512_load_si512(low + 64),
                                _mm512_load_si512(high), _mm512_load_si512(high + 64)};
}

/* A line of codes as two lines of pairs. */
static inline __attribute__((always_inline)) void
code_lines(const uint8_t *p, const struct code_tables *t, __m512i *first, __m512i *second)
{
    const __m512i x = _mm512_load_si512(p), sign = _mm512_set1_epi8((char)0x80);
    const __m512i low = _mm512_permutex2var_epi8(t->low0, x, t->low1);
    __m512i high = _mm512_permutex2var_epi8(t->high0, x, t->high1);
    high = _mm512_ternarylogic_epi32(high, x, sign, 0xf8); /* high | (x & sign) */
    *first = _mm512_unpacklo_epi8(low, high);
    *second = _mm512_unpackhi_epi8(low, high);
}

/* Writes 8-bit tiles as 16-bit ones, one after the other from `out` on, and their scales. */
static void expand(uint16_t *out, float *kscale, float *vscale, const struct attn_part *part,
                   int n_blocks)
{
    const size_t hd = (size_t)part->head_dim;
    const struct code_tables t = code_tables_of(part->kv);
    const v16 scale = v16_set1(part->scale);
    for (int b = 0; b < n_blocks; b++, out += 32 * hd) {
        const uint8_t *tile = part->tiles[b];
        __m512i first, second;
        for (size_t d = 0; d < hd; d += 4) {
            code_lines(tile + d * 16, &t, &first, &second);
            _mm512_store_si512(out + d * 16, first);
            _mm512_store_si512(out + d * 16 + 32, second);
        }
        for (size_t d = 0; d < hd; d += 16) {
            for (size_t p = 0; p < 16; p += 4) {
                uint16_t *to = out + 16 * hd + p * hd + d * 2;
                code_lines(tile + 16 * hd + d * 16 + p * 16, &t, &first, &second);
                _mm512_store_si512(to, first);
                _mm512_store_si512(to + 2 * hd, second);
            }
        }
        v16_store(kscale + b * 16, v16_mul(lanes_kv_scales(tile, hd, 0), scale));
        v16_store(vscale + b * 16, lanes_kv_scales(tile, hd, 1));
    }
}

void avx512bf16_attn_part(const struct attn_part *part)
{
    const int hd = part->head_dim;
    float *const score = part->scratch;
    uint16_t *const rounded = (uint16_t *)(void *)(score + GROUP * ATTN_PARTITION);
    float *const wide = score + ATTN_MAX_Q * (ATTN_PARTITION + MAX_HEAD_DIM);
    float *const kscale = score + 2 * GROUP * ATTN_PARTITION, *const vscale =
                                                                  kscale + ATTN_PARTITION;
    const void *expanded[ATTN_PARTITION / KV_BLOCK_TOKENS], *const *tiles = part->tiles;
    int n_blocks = 0;
    for (int i = 0; i < part->n_q; i++) {
        const int n = (part->visible[i] + 15) / 16;
        n_blocks = n > n_blocks ? n : n_blocks;
    }
    for (int b = 0; b < n_blocks; b++) {
        v16_store(kscale + b * 16, v16_set1(part->scale));
    }
    if (part->kv != KV_ACT) {
        uint16_t *const out = (uint16_t *)(void *)wide;
        expand(out, kscale, vscale, part, n_blocks);
        for (int b = 0; b < n_blocks; b++) {
            expanded[b] = out + (size_t)b * 32 * (size_t)hd;
        }
        tiles = expanded;
    }
    for (int i = 0; i < part->n_q; i += GROUP) {
        const int n = part->n_q - i < GROUP ? part->n_q - i : GROUP;
        const uint16_t *q[GROUP], *p[GROUP];
        float *s[GROUP], *acc[GROUP];
        const struct lanes_group group = lanes_group_of(part, i);
        for (int g = 0; g < GROUP; g++) {
            const int at = g < n ? g : 0; /* a missing query repeats the first */
            q[g] = (const uint16_t *)part->q + (size_t)(i + at) * (size_t)hd;
            s[g] = score + at * ATTN_PARTITION;
            p[g] = rounded + at * ATTN_PARTITION;
            acc[g] = part->acc + (size_t)(i + at) * (size_t)hd;
        }
        scores(s, q, tiles, (group.most + 15) / 16, hd, kscale);
        for (int g = 0; g < n; g++) {
            softmax(s[g], rounded + g * ATTN_PARTITION, part->visible[i + g],
                    part->kv == KV_ACT ? NULL : vscale, &part->m[i + g], &part->l[i + g]);
        }
        weigh(acc, p, tiles, group.least / 2, hd);
        for (int g = 0; g < n; g++) {
            weigh_rest(acc[g], p[g], tiles, hd, group.least / 2, part->visible[i + g]);
        }
    }
}
