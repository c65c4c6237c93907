/* SPDX-License-Identifier: Apache-2.0 */
/* 16 fp32 lanes on AVX-512: one zmm. The vocabulary of kernels/lanes. */
#ifndef TERN_KERNELS_X86_AVX512_V16_H
#define TERN_KERNELS_X86_AVX512_V16_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m512 v16;
typedef struct {
    __m512d lo, hi;
} d16;

#define V16_ROWS    12 /* chains (rows x 1 tile) that a GEMM loop keeps in registers */
#define V16_QUERIES 8  /* queries that share a KV line in attention */

static inline __mmask16 v16_first(int n)
{
    return (__mmask16)((1u << n) - 1);
}

static inline v16 v16_zero(void)
{
    return _mm512_setzero_ps();
}

static inline v16 v16_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline v16 v16_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(v16_first(n), p);
}

static inline void v16_store(float *p, v16 x)
{
    _mm512_storeu_ps(p, x);
}

static inline void v16_store_n(float *p, v16 x, int n)
{
    _mm512_mask_storeu_ps(p, v16_first(n), x);
}

static inline v16 v16_widen(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static inline v16 v16_load_bf16(const uint16_t *p)
{
    return v16_widen(_mm256_loadu_si256((const __m256i *)p));
}

static inline v16 v16_load_bf16_n(const uint16_t *p, int n)
{
    return v16_widen(_mm256_maskz_loadu_epi16(v16_first(n), p));
}

/* Bits of bf16 (round to nearest even, NaN stays quiet NaN) in the low half of each lane. */
static inline __m512i v16_bf16_bits(v16 x)
{
    __m512i u = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
}

static inline void v16_store_bf16(uint16_t *p, v16 x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(v16_bf16_bits(x)));
}

static inline void v16_store_bf16_n(uint16_t *p, v16 x, int n)
{
    _mm256_mask_storeu_epi16(p, v16_first(n), _mm512_cvtepi32_epi16(v16_bf16_bits(x)));
}

static inline v16 v16_round_bf16(v16 x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(v16_bf16_bits(x), 16));
}

/* 32 elements, even ones and odd ones apart. */
static inline void v16_pair_bf16(const uint16_t *p, v16 *even, v16 *odd)
{
    __m512i u = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u)));
}

static inline void v16_pair_f32(const float *p, v16 *even, v16 *odd)
{
    const __m512i e = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i o = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    __m512 lo = _mm512_loadu_ps(p), hi = _mm512_loadu_ps(p + 16);
    *even = _mm512_permutex2var_ps(lo, e, hi);
    *odd = _mm512_permutex2var_ps(lo, o, hi);
}

static inline v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}

static inline v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}

static inline v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}

static inline v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}

static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline v16 v16_neg(v16 x)
{
    return _mm512_castsi512_ps(
        _mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000u)));
}

/* The larger; m where x is NaN. */
static inline v16 v16_max(v16 x, v16 m)
{
    return _mm512_max_ps(x, m);
}

/* x limited to [lo, hi]; NaN stays. */
static inline v16 v16_clamp(v16 x, float lo, float hi)
{
    return _mm512_min_ps(_mm512_set1_ps(hi), _mm512_max_ps(_mm512_set1_ps(lo), x));
}

/* x in the first n lanes, `other` in the rest. */
static inline v16 v16_keep_n(v16 x, int n, v16 other)
{
    return _mm512_mask_blend_ps(v16_first(n), other, x);
}

/* x where v > bound, else +0; NaN is above nothing. */
static inline v16 v16_keep_above(v16 x, v16 v, float bound)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, _mm512_set1_ps(bound), _CMP_GT_OQ), x);
}

/* p * 2^i for t = magic + i: the instruction rounds as the two steps of kernel_exp do. */
static inline v16 v16_scale(v16 p, v16 t, float magic)
{
    return _mm512_scalef_ps(p, _mm512_sub_ps(t, _mm512_set1_ps(magic)));
}

/* Lanes folded 8, 4, 2, 1. */
static inline float v16_fold_add(v16 x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

static inline float v16_fold_max(v16 x)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

static inline float v16_lane0(v16 x)
{
    return _mm512_cvtss_f32(x);
}

/* Lanes where a == b, as bits. */
static inline unsigned v16_equal(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

/* Eight pairs (even, odd) turned by eight (cos, sin): fma(e, c, -(o s)), fma(o, c, e s). */
static inline v16 v16_rotate(v16 x, v16 cos_sin)
{
    v16 crossed = _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), _mm512_movehdup_ps(cos_sin));
    return _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(cos_sin), crossed);
}

static inline d16 d16_zero(void)
{
    return (d16){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

static inline d16 d16_add(d16 a, v16 x)
{
    a.lo = _mm512_add_pd(a.lo, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    a.hi = _mm512_add_pd(a.hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
    return a;
}

static inline double d16_fold(d16 a)
{
    __m512d x = _mm512_add_pd(a.lo, a.hi);
    __m256d y = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
    __m128d z = _mm_add_pd(_mm256_castpd256_pd128(y), _mm256_extractf128_pd(y, 1));
    return _mm_cvtsd_f64(_mm_add_sd(z, _mm_unpackhi_pd(z, z)));
}

/* ---- 16 lanes of int32 ---- */

typedef __m512i n16;

static inline n16 n16_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}

static inline n16 n16_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

static inline void n16_store(void *p, n16 x)
{
    _mm512_storeu_si512(p, x);
}

static inline n16 n16_load_bytes(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

/* The low bytes of the lanes, each eight in the order 0 4 1 5 2 6 3 7. */
static inline void n16_store_codes(void *p, n16 x)
{
    const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    _mm_storeu_si128((__m128i *)p, _mm_shuffle_epi8(_mm512_cvtepi32_epi8(x), order));
}

static inline n16 n16_and(n16 a, n16 b)
{
    return _mm512_and_si512(a, b);
}

static inline n16 n16_or(n16 a, n16 b)
{
    return _mm512_or_si512(a, b);
}

static inline n16 n16_add(n16 a, n16 b)
{
    return _mm512_add_epi32(a, b);
}

static inline n16 n16_sub(n16 a, n16 b)
{
    return _mm512_sub_epi32(a, b);
}

static inline n16 n16_max(n16 a, n16 b)
{
    return _mm512_max_epi32(a, b);
}

static inline n16 n16_mul(n16 a, n16 b)
{
    return _mm512_mullo_epi32(a, b);
}

static inline n16 n16_shl(n16 x, unsigned n)
{
    return _mm512_sll_epi32(x, _mm_cvtsi32_si128((int)n));
}

static inline n16 n16_shr(n16 x, unsigned n)
{
    return _mm512_srl_epi32(x, _mm_cvtsi32_si128((int)n));
}

/* acc + the sum of the products of the two int16 halves of each lane. */
static inline n16 n16_madd(n16 acc, n16 a, n16 b)
{
    return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
}

/* int8 lanes' bytes 0 and 2, and 1 and 3, as int16 halves. */
static inline void n16_halves(n16 x, n16 *even, n16 *odd)
{
    *even = _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8);
    *odd = _mm512_srai_epi16(x, 8);
}

static inline int32_t n16_fold_add(n16 x)
{
    return _mm512_reduce_add_epi32(x);
}

static inline int32_t n16_fold_max(n16 x)
{
    return _mm512_reduce_max_epi32(x);
}

static inline v16 n16_float(n16 x)
{
    return _mm512_cvtepi32_ps(x);
}

static inline n16 v16_floor(v16 x) /* of what an int32 holds */
{
    return _mm512_cvt_roundps_epi32(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

static inline n16 v16_round(v16 x) /* to the nearest integer, ties to even */
{
    return _mm512_cvtps_epi32(x);
}

static inline n16 v16_bits(v16 x)
{
    return _mm512_castps_si512(x);
}

static inline v16 v16_of_bits(n16 x)
{
    return _mm512_castsi512_ps(x);
}

static inline v16 v16_of_f16(n16 x) /* f16 in the low half of each lane */
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
}

static inline v16 v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline __attribute__((always_inline)) void v16_prefetch(const void *p)
{
    _mm_prefetch(p, _MM_HINT_T0);
}

#endif
