/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512: packing of bf16 matrices. */
#include "kernels/lanes/pack.h"
#include "kernels/x86/x86.h"
#include <immintrin.h>

/* Transposes 16 rows x 16 pairs: first 4 x 4 blocks of pairs inside the 128-bit parts, then the
 * parts. */
static inline __attribute__((always_inline)) void
rows4(const uint16_t *src, size_t stride, __m512i *a, __m512i *b, __m512i *c, __m512i *d)
{
    __m512i r0 = _mm512_loadu_si512(src), r1 = _mm512_loadu_si512(src + stride);
    __m512i r2 = _mm512_loadu_si512(src + 2 * stride), r3 = _mm512_loadu_si512(src + 3 * stride);
    __m512i t0 = _mm512_unpacklo_epi32(r0, r1), t1 = _mm512_unpackhi_epi32(r0, r1);
    __m512i t2 = _mm512_unpacklo_epi32(r2, r3), t3 = _mm512_unpackhi_epi32(r2, r3);
    *a = _mm512_unpacklo_epi64(t0, t2); /* pairs 0, 4, 8, 12 of four rows */
    *b = _mm512_unpackhi_epi64(t0, t2); /* pairs 1, 5, 9, 13 */
    *c = _mm512_unpacklo_epi64(t1, t3);
    *d = _mm512_unpackhi_epi64(t1, t3);
}

/* From part p of the four row groups: the lines of pairs first, first + 4, first + 8, first + 12.
 */
static inline __attribute__((always_inline)) void store4(uint16_t *dst, __m512i g0, __m512i g1,
                                                         __m512i g2, __m512i g3)
{
    __m512i a = _mm512_shuffle_i32x4(g0, g1, 0x44), b = _mm512_shuffle_i32x4(g2, g3, 0x44);
    __m512i c = _mm512_shuffle_i32x4(g0, g1, 0xee), d = _mm512_shuffle_i32x4(g2, g3, 0xee);
    _mm512_store_si512(dst, _mm512_shuffle_i32x4(a, b, 0x88));
    _mm512_store_si512(dst + 4 * 32, _mm512_shuffle_i32x4(a, b, 0xdd));
    _mm512_store_si512(dst + 8 * 32, _mm512_shuffle_i32x4(c, d, 0x88));
    _mm512_store_si512(dst + 12 * 32, _mm512_shuffle_i32x4(c, d, 0xdd));
}

static inline __attribute__((always_inline)) void block(uint16_t *dst, const uint16_t *src,
                                                        size_t stride)
{
    __m512i a0, b0, c0, d0, a1, b1, c1, d1, a2, b2, c2, d2, a3, b3, c3, d3;
    rows4(src, stride, &a0, &b0, &c0, &d0);
    rows4(src + 4 * stride, stride, &a1, &b1, &c1, &d1);
    rows4(src + 8 * stride, stride, &a2, &b2, &c2, &d2);
    rows4(src + 12 * stride, stride, &a3, &b3, &c3, &d3);
    store4(dst, a0, a1, a2, a3);
    store4(dst + 32, b0, b1, b2, b3);
    store4(dst + 64, c0, c1, c2, c3);
    store4(dst + 96, d0, d1, d2, d3);
}

static inline __attribute__((always_inline)) void pair(uint16_t *dst, const uint16_t *even,
                                                       const uint16_t *odd)
{
    __m512i e = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)even));
    __m512i o = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)odd));
    _mm512_store_si512(dst, _mm512_or_si512(e, _mm512_slli_epi32(o, 16)));
}

void avx512_pack(void *dst, enum weight_format format, int n, int k, const void *src,
                 enum dtype src_type, size_t stride_row, size_t stride_col, int tile0, int tile1,
                 int tile_step, int tile_offset)
{
    lanes_pack(block, pair, dst, format, n, k, src, src_type, stride_row, stride_col, tile0, tile1,
               tile_step, tile_offset);
}
