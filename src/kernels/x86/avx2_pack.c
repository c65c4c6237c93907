/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2: packing of bf16 matrices. */
#include "kernels/lanes/pack.h"
#include "kernels/x86/x86.h"
#include <immintrin.h>

/* Transposes 8 rows x 8 pairs; the line of a pair has 16 rows, of which this writes 8. */
static inline __attribute__((always_inline)) void block8(uint16_t *dst, const uint16_t *src,
                                                         size_t stride)
{
    const __m256i r0 = _mm256_loadu_si256((const __m256i *)src);
    const __m256i r1 = _mm256_loadu_si256((const __m256i *)(src + stride));
    const __m256i r2 = _mm256_loadu_si256((const __m256i *)(src + 2 * stride));
    const __m256i r3 = _mm256_loadu_si256((const __m256i *)(src + 3 * stride));
    const __m256i r4 = _mm256_loadu_si256((const __m256i *)(src + 4 * stride));
    const __m256i r5 = _mm256_loadu_si256((const __m256i *)(src + 5 * stride));
    const __m256i r6 = _mm256_loadu_si256((const __m256i *)(src + 6 * stride));
    const __m256i r7 = _mm256_loadu_si256((const __m256i *)(src + 7 * stride));
    const __m256i t0 = _mm256_unpacklo_epi32(r0, r1), t1 = _mm256_unpackhi_epi32(r0, r1);
    const __m256i t2 = _mm256_unpacklo_epi32(r2, r3), t3 = _mm256_unpackhi_epi32(r2, r3);
    const __m256i t4 = _mm256_unpacklo_epi32(r4, r5), t5 = _mm256_unpackhi_epi32(r4, r5);
    const __m256i t6 = _mm256_unpacklo_epi32(r6, r7), t7 = _mm256_unpackhi_epi32(r6, r7);
    const __m256i u0 = _mm256_unpacklo_epi64(t0, t2), u1 = _mm256_unpackhi_epi64(t0, t2);
    const __m256i u2 = _mm256_unpacklo_epi64(t1, t3), u3 = _mm256_unpackhi_epi64(t1, t3);
    const __m256i u4 = _mm256_unpacklo_epi64(t4, t6), u5 = _mm256_unpackhi_epi64(t4, t6);
    const __m256i u6 = _mm256_unpacklo_epi64(t5, t7), u7 = _mm256_unpackhi_epi64(t5, t7);
    _mm256_store_si256((__m256i *)dst, _mm256_permute2x128_si256(u0, u4, 0x20));
    _mm256_store_si256((__m256i *)(dst + 32), _mm256_permute2x128_si256(u1, u5, 0x20));
    _mm256_store_si256((__m256i *)(dst + 64), _mm256_permute2x128_si256(u2, u6, 0x20));
    _mm256_store_si256((__m256i *)(dst + 96), _mm256_permute2x128_si256(u3, u7, 0x20));
    _mm256_store_si256((__m256i *)(dst + 128), _mm256_permute2x128_si256(u0, u4, 0x31));
    _mm256_store_si256((__m256i *)(dst + 160), _mm256_permute2x128_si256(u1, u5, 0x31));
    _mm256_store_si256((__m256i *)(dst + 192), _mm256_permute2x128_si256(u2, u6, 0x31));
    _mm256_store_si256((__m256i *)(dst + 224), _mm256_permute2x128_si256(u3, u7, 0x31));
}

static inline __attribute__((always_inline)) void block(uint16_t *dst, const uint16_t *src,
                                                        size_t stride)
{
    for (size_t half = 0; half < 2; half++) {
        block8(dst + half * 256, src + half * 16, stride);
        block8(dst + half * 256 + 16, src + half * 16 + 8 * stride, stride);
    }
}

static inline __attribute__((always_inline)) void pair(uint16_t *dst, const uint16_t *even,
                                                       const uint16_t *odd)
{
    for (size_t half = 0; half < 2; half++) {
        __m256i e = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(even + 8 * half)));
        __m256i o = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(odd + 8 * half)));
        _mm256_store_si256((__m256i *)(dst + 16 * half),
                           _mm256_or_si256(e, _mm256_slli_epi32(o, 16)));
    }
}

void avx2_pack(void *dst, enum weight_format format, int n, int k, const void *src,
               enum dtype src_type, size_t stride_row, size_t stride_col, int tile0, int tile1,
               int tile_step, int tile_offset)
{
    lanes_pack(block, pair, dst, format, n, k, src, src_type, stride_row, stride_col, tile0, tile1,
               tile_step, tile_offset);
}
