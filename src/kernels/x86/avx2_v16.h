/* SPDX-License-Identifier: Apache-2.0 */
/* 16 fp32 lanes on AVX2: two ymm. The vocabulary of kernels/lanes. */
#ifndef TERN_KERNELS_X86_AVX2_V16_H
#define TERN_KERNELS_X86_AVX2_V16_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    __m256 lo, hi;
} v16;
typedef struct {
    __m256d a, b, c, d;
} d16;

#define V16_ROWS    6
#define V16_QUERIES 4

static inline v16 v16_zero(void)
{
    return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

static inline v16 v16_set1(float x)
{
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

static inline v16 v16_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline void v16_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}

/* The first n lanes go through a buffer: tails are rare, and a masked load would need two masks. */
static inline v16 v16_load_n(const float *p, int n)
{
    float buffer[16] = {0};
    memcpy(buffer, p, (size_t)n * 4);
    return v16_load(buffer);
}

static inline void v16_store_n(float *p, v16 x, int n)
{
    float buffer[16];
    v16_store(buffer, x);
    memcpy(p, buffer, (size_t)n * 4);
}

static inline __m256 v16_widen8(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline v16 v16_load_bf16(const uint16_t *p)
{
    return (v16){v16_widen8(_mm_loadu_si128((const __m128i *)p)),
                 v16_widen8(_mm_loadu_si128((const __m128i *)(p + 8)))};
}

static inline v16 v16_load_bf16_n(const uint16_t *p, int n)
{
    uint16_t buffer[16] = {0};
    memcpy(buffer, p, (size_t)n * 2);
    return v16_load_bf16(buffer);
}

/* Bits of bf16 (round to nearest even, NaN stays quiet NaN) in the low half of each lane. */
static inline __m256i v16_bf16_bits8(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(r, _mm256_or_si256(top, _mm256_set1_epi32(0x40)), nan);
}

static inline void v16_store_bf16(uint16_t *p, v16 x)
{
    __m256i packed = _mm256_packus_epi32(v16_bf16_bits8(x.lo), v16_bf16_bits8(x.hi));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(packed, 0xd8));
}

static inline void v16_store_bf16_n(uint16_t *p, v16 x, int n)
{
    uint16_t buffer[16];
    v16_store_bf16(buffer, x);
    memcpy(p, buffer, (size_t)n * 2);
}

static inline v16 v16_round_bf16(v16 x)
{
    return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(v16_bf16_bits8(x.lo), 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(v16_bf16_bits8(x.hi), 16))};
}

/* 32 elements, even ones and odd ones apart. */
static inline void v16_pair_bf16(const uint16_t *p, v16 *even, v16 *odd)
{
    __m256i lo = _mm256_loadu_si256((const __m256i *)p),
            hi = _mm256_loadu_si256((const __m256i *)(p + 16));
    __m256i top = _mm256_set1_epi32((int)0xffff0000u);
    even->lo = _mm256_castsi256_ps(_mm256_slli_epi32(lo, 16));
    even->hi = _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16));
    odd->lo = _mm256_castsi256_ps(_mm256_and_si256(lo, top));
    odd->hi = _mm256_castsi256_ps(_mm256_and_si256(hi, top));
}

static inline void v16_pair8(const float *p, __m256 *even, __m256 *odd)
{
    __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
    __m256 e = _mm256_shuffle_ps(a, b, 0x88),
           o = _mm256_shuffle_ps(a, b, 0xdd); /* a b | a b by halves */
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(e), 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(o), 0xd8));
}

static inline void v16_pair_f32(const float *p, v16 *even, v16 *odd)
{
    v16_pair8(p, &even->lo, &odd->lo);
    v16_pair8(p + 16, &even->hi, &odd->hi);
}

static inline v16 v16_add(v16 a, v16 b)
{
    return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

static inline v16 v16_sub(v16 a, v16 b)
{
    return (v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

static inline v16 v16_mul(v16 a, v16 b)
{
    return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

static inline v16 v16_div(v16 a, v16 b)
{
    return (v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

static inline v16 v16_neg(v16 x)
{
    __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi32((int)0x80000000u));
    return (v16){_mm256_xor_ps(x.lo, sign), _mm256_xor_ps(x.hi, sign)};
}

/* The larger; m where x is NaN. */
static inline v16 v16_max(v16 x, v16 m)
{
    return (v16){_mm256_max_ps(x.lo, m.lo), _mm256_max_ps(x.hi, m.hi)};
}

/* x limited to [lo, hi]; NaN stays. */
static inline v16 v16_clamp(v16 x, float lo, float hi)
{
    __m256 l = _mm256_set1_ps(lo), h = _mm256_set1_ps(hi);
    return (v16){_mm256_min_ps(h, _mm256_max_ps(l, x.lo)),
                 _mm256_min_ps(h, _mm256_max_ps(l, x.hi))};
}

/* x in the first n lanes, `other` in the rest. */
static inline v16 v16_keep_n(v16 x, int n, v16 other)
{
    __m256i count = _mm256_set1_epi32(n), index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i lo = _mm256_cmpgt_epi32(count, index);
    __m256i hi = _mm256_cmpgt_epi32(count, _mm256_add_epi32(index, _mm256_set1_epi32(8)));
    return (v16){_mm256_blendv_ps(other.lo, x.lo, _mm256_castsi256_ps(lo)),
                 _mm256_blendv_ps(other.hi, x.hi, _mm256_castsi256_ps(hi))};
}

/* x where v > bound, else +0; NaN is above nothing. */
static inline v16 v16_keep_above(v16 x, v16 v, float bound)
{
    const __m256 b = _mm256_set1_ps(bound);
    return (v16){_mm256_and_ps(x.lo, _mm256_cmp_ps(v.lo, b, _CMP_GT_OQ)),
                 _mm256_and_ps(x.hi, _mm256_cmp_ps(v.hi, b, _CMP_GT_OQ))};
}

static inline __m256 v16_scale8(__m256 p, __m256 t, float magic)
{
    __m256i i =
        _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(_mm256_set1_ps(magic)));
    __m256i half = _mm256_srai_epi32(i, 1), bias = _mm256_set1_epi32(127);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    i = _mm256_sub_epi32(i, half);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(i, bias), 23)));
}

/* p * 2^i for t = magic + i, in the two steps of kernel_exp. */
static inline v16 v16_scale(v16 p, v16 t, float magic)
{
    return (v16){v16_scale8(p.lo, t.lo, magic), v16_scale8(p.hi, t.hi, magic)};
}

/* Lanes folded 8, 4, 2, 1. */
static inline float v16_fold_add(v16 x)
{
    __m256 a = _mm256_add_ps(x.lo, x.hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

static inline float v16_fold_max(v16 x)
{
    __m256 a = _mm256_max_ps(x.lo, x.hi);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

static inline float v16_lane0(v16 x)
{
    return _mm256_cvtss_f32(x.lo);
}

/* Lanes where a == b, as bits. */
static inline unsigned v16_equal(v16 a, v16 b)
{
    unsigned lo = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ));
    return lo | (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)) << 8;
}

static inline __m256 v16_rotate8(__m256 x, __m256 cos_sin)
{
    __m256 crossed = _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), _mm256_movehdup_ps(cos_sin));
    return _mm256_fmaddsub_ps(x, _mm256_moveldup_ps(cos_sin), crossed);
}

/* Eight pairs (even, odd) turned by eight (cos, sin): fma(e, c, -(o s)), fma(o, c, e s). */
static inline v16 v16_rotate(v16 x, v16 cos_sin)
{
    return (v16){v16_rotate8(x.lo, cos_sin.lo), v16_rotate8(x.hi, cos_sin.hi)};
}

static inline d16 d16_zero(void)
{
    return (d16){_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                 _mm256_setzero_pd()};
}

static inline d16 d16_add(d16 s, v16 x)
{
    s.a = _mm256_add_pd(s.a, _mm256_cvtps_pd(_mm256_castps256_ps128(x.lo)));
    s.b = _mm256_add_pd(s.b, _mm256_cvtps_pd(_mm256_extractf128_ps(x.lo, 1)));
    s.c = _mm256_add_pd(s.c, _mm256_cvtps_pd(_mm256_castps256_ps128(x.hi)));
    s.d = _mm256_add_pd(s.d, _mm256_cvtps_pd(_mm256_extractf128_ps(x.hi, 1)));
    return s;
}

static inline double d16_fold(d16 s)
{
    __m256d x = _mm256_add_pd(_mm256_add_pd(s.a, s.c), _mm256_add_pd(s.b, s.d));
    __m128d z = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(z, _mm_unpackhi_pd(z, z)));
}

/* ---- 16 lanes of int32 ---- */

typedef struct {
    __m256i lo, hi;
} n16;

static inline n16 n16_set1(int32_t x)
{
    return (n16){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}

static inline n16 n16_load(const void *p)
{
    const __m256i *q = p;
    return (n16){_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}

static inline void n16_store(void *p, n16 x)
{
    __m256i *q = p;
    _mm256_storeu_si256(q, x.lo);
    _mm256_storeu_si256(q + 1, x.hi);
}

static inline n16 n16_load_bytes(const uint8_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)p);
    return (n16){_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(b, b))};
}

/* The low bytes of the lanes, each eight in the order 0 4 1 5 2 6 3 7. */
static inline void n16_store_codes(void *p, n16 x)
{
    const __m256i low =
        _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12,
                         -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    __m256i a = _mm256_shuffle_epi8(x.lo, low), b = _mm256_shuffle_epi8(x.hi, low);
    __m128i c = _mm_unpacklo_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    __m128i d = _mm_unpacklo_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    _mm_storeu_si128((__m128i *)p, _mm_shuffle_epi8(_mm_unpacklo_epi64(c, d), order));
}

static inline n16 n16_and(n16 a, n16 b)
{
    return (n16){_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}

static inline n16 n16_or(n16 a, n16 b)
{
    return (n16){_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}

static inline n16 n16_add(n16 a, n16 b)
{
    return (n16){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}

static inline n16 n16_sub(n16 a, n16 b)
{
    return (n16){_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}

static inline n16 n16_max(n16 a, n16 b)
{
    return (n16){_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}

static inline n16 n16_mul(n16 a, n16 b)
{
    return (n16){_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}

static inline n16 n16_shl(n16 x, unsigned n)
{
    __m128i count = _mm_cvtsi32_si128((int)n);
    return (n16){_mm256_sll_epi32(x.lo, count), _mm256_sll_epi32(x.hi, count)};
}

static inline n16 n16_shr(n16 x, unsigned n)
{
    __m128i count = _mm_cvtsi32_si128((int)n);
    return (n16){_mm256_srl_epi32(x.lo, count), _mm256_srl_epi32(x.hi, count)};
}

/* acc + the sum of the products of the two int16 halves of each lane. */
static inline n16 n16_madd(n16 acc, n16 a, n16 b)
{
    return (n16){_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b.lo)),
                 _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b.hi))};
}

/* int8 lanes' bytes 0 and 2, and 1 and 3, as int16 halves. */
static inline void n16_halves(n16 x, n16 *even, n16 *odd)
{
    *even = (n16){_mm256_srai_epi16(_mm256_slli_epi16(x.lo, 8), 8),
                  _mm256_srai_epi16(_mm256_slli_epi16(x.hi, 8), 8)};
    *odd = (n16){_mm256_srai_epi16(x.lo, 8), _mm256_srai_epi16(x.hi, 8)};
}

static inline int32_t n16_fold_add(n16 x)
{
    __m256i a = _mm256_add_epi32(x.lo, x.hi);
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_unpackhi_epi64(b, b));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 1)));
}

static inline int32_t n16_fold_max(n16 x)
{
    __m256i a = _mm256_max_epi32(x.lo, x.hi);
    __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_max_epi32(b, _mm_unpackhi_epi64(b, b));
    return _mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 1)));
}

static inline v16 n16_float(n16 x)
{
    return (v16){_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)};
}

static inline n16 v16_floor(v16 x) /* of what an int32 holds */
{
    return (n16){_mm256_cvttps_epi32(_mm256_floor_ps(x.lo)),
                 _mm256_cvttps_epi32(_mm256_floor_ps(x.hi))};
}

static inline n16 v16_round(v16 x) /* to the nearest integer, ties to even */
{
    return (n16){_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)};
}

static inline n16 v16_bits(v16 x)
{
    return (n16){_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)};
}

static inline v16 v16_of_bits(n16 x)
{
    return (v16){_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)};
}

static inline v16 v16_of_f16(n16 x) /* f16 in the low half of each lane */
{
    const __m256i half = _mm256_set1_epi32(0xffff);
    __m256i p = _mm256_packus_epi32(_mm256_and_si256(x.lo, half), _mm256_and_si256(x.hi, half));
    p = _mm256_permute4x64_epi64(p, 0xd8);
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(p)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(p, 1))};
}

static inline v16 v16_load_f16(const uint16_t *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}

static inline __attribute__((always_inline)) void v16_prefetch(const void *p)
{
    _mm_prefetch(p, _MM_HINT_T0);
}

#endif
