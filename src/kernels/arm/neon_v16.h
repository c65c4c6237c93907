/* SPDX-License-Identifier: Apache-2.0 */
/* 16 fp32 lanes on NEON: four registers of the arm64 baseline (no BFDOT: it adds in another order).
 * The vocabulary of kernels/lanes. Flush-to-zero is FPCR.FZ; it decides before rounding whether a
 * result is denormal, x86 after: the two differ for results within half a unit of the last place
 * below 2^-126 only. */
#ifndef TERN_KERNELS_ARM_NEON_V16_H
#define TERN_KERNELS_ARM_NEON_V16_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    float32x4_t a, b, c, d;
} v16;
typedef struct {
    float64x2_t a, b, c, d, e, f, g, h;
} d16;

#define V16_ROWS    4
#define V16_QUERIES 4

static inline v16 v16_set1(float x)
{
    float32x4_t v = vdupq_n_f32(x);
    return (v16){v, v, v, v};
}

static inline v16 v16_zero(void)
{
    return v16_set1(0.0f);
}

static inline v16 v16_load(const float *p)
{
    return (v16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}

static inline void v16_store(float *p, v16 x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}

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

static inline v16 v16_load_bf16(const uint16_t *p)
{
    uint16x8_t lo = vld1q_u16(p), hi = vld1q_u16(p + 8);
    return (v16){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(lo), 16)),
                 vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(lo), 16)),
                 vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(hi), 16)),
                 vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(hi), 16))};
}

static inline v16 v16_load_bf16_n(const uint16_t *p, int n)
{
    uint16_t buffer[16] = {0};
    memcpy(buffer, p, (size_t)n * 2);
    return v16_load_bf16(buffer);
}

/* Bits of bf16 (round to nearest even, NaN stays quiet NaN) in the low half of each lane. */
static inline uint32x4_t v16_bf16_bits4(float32x4_t x)
{
    uint32x4_t u = vreinterpretq_u32_f32(x), top = vshrq_n_u32(u, 16);
    uint32x4_t odd = vandq_u32(top, vdupq_n_u32(1));
    uint32x4_t r = vshrq_n_u32(vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd), 16);
    return vbslq_u32(vceqq_f32(x, x), r, vorrq_u32(top, vdupq_n_u32(0x40)));
}

static inline void v16_store_bf16(uint16_t *p, v16 x)
{
    vst1q_u16(p, vcombine_u16(vmovn_u32(v16_bf16_bits4(x.a)), vmovn_u32(v16_bf16_bits4(x.b))));
    vst1q_u16(p + 8, vcombine_u16(vmovn_u32(v16_bf16_bits4(x.c)), vmovn_u32(v16_bf16_bits4(x.d))));
}

static inline void v16_store_bf16_n(uint16_t *p, v16 x, int n)
{
    uint16_t buffer[16];
    v16_store_bf16(buffer, x);
    memcpy(p, buffer, (size_t)n * 2);
}

static inline v16 v16_round_bf16(v16 x)
{
    return (v16){vreinterpretq_f32_u32(vshlq_n_u32(v16_bf16_bits4(x.a), 16)),
                 vreinterpretq_f32_u32(vshlq_n_u32(v16_bf16_bits4(x.b), 16)),
                 vreinterpretq_f32_u32(vshlq_n_u32(v16_bf16_bits4(x.c), 16)),
                 vreinterpretq_f32_u32(vshlq_n_u32(v16_bf16_bits4(x.d), 16))};
}

static inline void v16_pair4(const uint16_t *p, float32x4_t *even, float32x4_t *odd)
{
    uint32x4_t u = vreinterpretq_u32_u16(vld1q_u16(p));
    *even = vreinterpretq_f32_u32(vshlq_n_u32(u, 16));
    *odd = vreinterpretq_f32_u32(vandq_u32(u, vdupq_n_u32(0xffff0000u)));
}

/* 32 elements, even ones and odd ones apart. */
static inline void v16_pair_bf16(const uint16_t *p, v16 *even, v16 *odd)
{
    v16_pair4(p, &even->a, &odd->a);
    v16_pair4(p + 8, &even->b, &odd->b);
    v16_pair4(p + 16, &even->c, &odd->c);
    v16_pair4(p + 24, &even->d, &odd->d);
}

static inline void v16_pair_f32(const float *p, v16 *even, v16 *odd)
{
    float32x4x2_t a = vld2q_f32(p), b = vld2q_f32(p + 8), c = vld2q_f32(p + 16),
                  d = vld2q_f32(p + 24);
    *even = (v16){a.val[0], b.val[0], c.val[0], d.val[0]};
    *odd = (v16){a.val[1], b.val[1], c.val[1], d.val[1]};
}

static inline v16 v16_add(v16 x, v16 y)
{
    return (v16){vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c),
                 vaddq_f32(x.d, y.d)};
}

static inline v16 v16_sub(v16 x, v16 y)
{
    return (v16){vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c),
                 vsubq_f32(x.d, y.d)};
}

static inline v16 v16_mul(v16 x, v16 y)
{
    return (v16){vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c),
                 vmulq_f32(x.d, y.d)};
}

static inline v16 v16_div(v16 x, v16 y)
{
    return (v16){vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c),
                 vdivq_f32(x.d, y.d)};
}

static inline v16 v16_fma(v16 x, v16 y, v16 z)
{
    return (v16){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
                 vfmaq_f32(z.d, x.d, y.d)};
}

static inline v16 v16_neg(v16 x)
{
    return (v16){vnegq_f32(x.a), vnegq_f32(x.b), vnegq_f32(x.c), vnegq_f32(x.d)};
}

/* The larger; m where x is NaN. */
static inline v16 v16_max(v16 x, v16 m)
{
    return (v16){vmaxnmq_f32(x.a, m.a), vmaxnmq_f32(x.b, m.b), vmaxnmq_f32(x.c, m.c),
                 vmaxnmq_f32(x.d, m.d)};
}

static inline float32x4_t v16_clamp4(float32x4_t x, float lo, float hi)
{
    return vminq_f32(vmaxq_f32(x, vdupq_n_f32(lo)), vdupq_n_f32(hi)); /* both hand NaN on */
}

/* x limited to [lo, hi]; NaN stays. */
static inline v16 v16_clamp(v16 x, float lo, float hi)
{
    return (v16){v16_clamp4(x.a, lo, hi), v16_clamp4(x.b, lo, hi), v16_clamp4(x.c, lo, hi),
                 v16_clamp4(x.d, lo, hi)};
}

static inline float32x4_t v16_keep4(float32x4_t x, int n, int first, float32x4_t other)
{
    static const int32_t index[4] = {0, 1, 2, 3};
    uint32x4_t keep = vcltq_s32(vld1q_s32(index), vdupq_n_s32(n - first));
    return vbslq_f32(keep, x, other);
}

/* x in the first n lanes, `other` in the rest. */
static inline v16 v16_keep_n(v16 x, int n, v16 other)
{
    return (v16){v16_keep4(x.a, n, 0, other.a), v16_keep4(x.b, n, 4, other.b),
                 v16_keep4(x.c, n, 8, other.c), v16_keep4(x.d, n, 12, other.d)};
}

static inline float32x4_t v16_keep_above4(float32x4_t x, float32x4_t v, float bound)
{
    return vreinterpretq_f32_u32(
        vandq_u32(vreinterpretq_u32_f32(x), vcgtq_f32(v, vdupq_n_f32(bound))));
}

/* x where v > bound, else +0; NaN is above nothing. */
static inline v16 v16_keep_above(v16 x, v16 v, float bound)
{
    return (v16){v16_keep_above4(x.a, v.a, bound), v16_keep_above4(x.b, v.b, bound),
                 v16_keep_above4(x.c, v.c, bound), v16_keep_above4(x.d, v.d, bound)};
}

static inline float32x4_t v16_scale4(float32x4_t p, float32x4_t t, float magic)
{
    int32x4_t i = vsubq_s32(vreinterpretq_s32_f32(t), vreinterpretq_s32_f32(vdupq_n_f32(magic)));
    int32x4_t half = vshrq_n_s32(i, 1), bias = vdupq_n_s32(127);
    p = vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23)));
    return vmulq_f32(p,
                     vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(i, half), bias), 23)));
}

/* p * 2^i for t = magic + i, in the two steps of kernel_exp. */
static inline v16 v16_scale(v16 p, v16 t, float magic)
{
    return (v16){v16_scale4(p.a, t.a, magic), v16_scale4(p.b, t.b, magic),
                 v16_scale4(p.c, t.c, magic), v16_scale4(p.d, t.d, magic)};
}

/* Lanes folded 8, 4, 2, 1. */
static inline float v16_fold_add(v16 x)
{
    float32x4_t s = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t t = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vget_lane_f32(t, 0) + vget_lane_f32(t, 1);
}

static inline float v16_fold_max(v16 x)
{
    return vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(x.a, x.c), vmaxnmq_f32(x.b, x.d)));
}

static inline float v16_lane0(v16 x)
{
    return vgetq_lane_f32(x.a, 0);
}

static inline unsigned v16_equal4(float32x4_t a, float32x4_t b)
{
    static const uint32_t bit[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vceqq_f32(a, b), vld1q_u32(bit)));
}

/* Lanes where x == y, as bits. */
static inline unsigned v16_equal(v16 x, v16 y)
{
    return v16_equal4(x.a, y.a) | v16_equal4(x.b, y.b) << 4 | v16_equal4(x.c, y.c) << 8 |
           v16_equal4(x.d, y.d) << 12;
}

static inline float32x4_t v16_rotate4(float32x4_t x, float32x4_t cos_sin)
{
    static const uint32_t even_sign[4] = {0x80000000u, 0, 0x80000000u, 0};
    float32x4_t crossed = vmulq_f32(vrev64q_f32(x), vtrn2q_f32(cos_sin, cos_sin));
    crossed =
        vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(crossed), vld1q_u32(even_sign)));
    return vfmaq_f32(crossed, x, vtrn1q_f32(cos_sin, cos_sin));
}

/* Eight pairs (even, odd) turned by eight (cos, sin): fma(e, c, -(o s)), fma(o, c, e s). */
static inline v16 v16_rotate(v16 x, v16 cos_sin)
{
    return (v16){v16_rotate4(x.a, cos_sin.a), v16_rotate4(x.b, cos_sin.b),
                 v16_rotate4(x.c, cos_sin.c), v16_rotate4(x.d, cos_sin.d)};
}

static inline d16 d16_zero(void)
{
    float64x2_t z = vdupq_n_f64(0.0);
    return (d16){z, z, z, z, z, z, z, z};
}

static inline d16 d16_add(d16 s, v16 x)
{
    s.a = vaddq_f64(s.a, vcvt_f64_f32(vget_low_f32(x.a)));
    s.b = vaddq_f64(s.b, vcvt_high_f64_f32(x.a));
    s.c = vaddq_f64(s.c, vcvt_f64_f32(vget_low_f32(x.b)));
    s.d = vaddq_f64(s.d, vcvt_high_f64_f32(x.b));
    s.e = vaddq_f64(s.e, vcvt_f64_f32(vget_low_f32(x.c)));
    s.f = vaddq_f64(s.f, vcvt_high_f64_f32(x.c));
    s.g = vaddq_f64(s.g, vcvt_f64_f32(vget_low_f32(x.d)));
    s.h = vaddq_f64(s.h, vcvt_high_f64_f32(x.d));
    return s;
}

static inline double d16_fold(d16 s)
{
    float64x2_t a = vaddq_f64(s.a, s.e), b = vaddq_f64(s.b, s.f), c = vaddq_f64(s.c, s.g),
                d = vaddq_f64(s.d, s.h);
    float64x2_t t = vaddq_f64(vaddq_f64(a, c), vaddq_f64(b, d));
    return vgetq_lane_f64(t, 0) + vgetq_lane_f64(t, 1);
}

/* ---- 16 lanes of int32 ---- */

typedef struct {
    int32x4_t a, b, c, d;
} n16;

static inline n16 n16_set1(int32_t x)
{
    int32x4_t v = vdupq_n_s32(x);
    return (n16){v, v, v, v};
}

static inline n16 n16_load(const void *p)
{
    const int32_t *q = p;
    return (n16){vld1q_s32(q), vld1q_s32(q + 4), vld1q_s32(q + 8), vld1q_s32(q + 12)};
}

static inline void n16_store(void *p, n16 x)
{
    int32_t *q = p;
    vst1q_s32(q, x.a);
    vst1q_s32(q + 4, x.b);
    vst1q_s32(q + 8, x.c);
    vst1q_s32(q + 12, x.d);
}

static inline n16 n16_load_bytes(const uint8_t *p)
{
    uint8x16_t b = vld1q_u8(p);
    uint16x8_t lo = vmovl_u8(vget_low_u8(b)), hi = vmovl_u8(vget_high_u8(b));
    return (n16){vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(lo))),
                 vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(lo))),
                 vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(hi))),
                 vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(hi)))};
}

/* The low bytes of the lanes, each eight in the order 0 4 1 5 2 6 3 7. */
static inline void n16_store_codes(void *p, n16 x)
{
    static const uint8_t order[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
    int16x8_t lo = vcombine_s16(vmovn_s32(x.a), vmovn_s32(x.b));
    int16x8_t hi = vcombine_s16(vmovn_s32(x.c), vmovn_s32(x.d));
    uint8x16_t b = vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
    vst1q_u8(p, vqtbl1q_u8(b, vld1q_u8(order)));
}

static inline n16 n16_and(n16 x, n16 y)
{
    return (n16){vandq_s32(x.a, y.a), vandq_s32(x.b, y.b), vandq_s32(x.c, y.c),
                 vandq_s32(x.d, y.d)};
}

static inline n16 n16_or(n16 x, n16 y)
{
    return (n16){vorrq_s32(x.a, y.a), vorrq_s32(x.b, y.b), vorrq_s32(x.c, y.c),
                 vorrq_s32(x.d, y.d)};
}

static inline n16 n16_add(n16 x, n16 y)
{
    return (n16){vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b), vaddq_s32(x.c, y.c),
                 vaddq_s32(x.d, y.d)};
}

static inline n16 n16_sub(n16 x, n16 y)
{
    return (n16){vsubq_s32(x.a, y.a), vsubq_s32(x.b, y.b), vsubq_s32(x.c, y.c),
                 vsubq_s32(x.d, y.d)};
}

static inline n16 n16_max(n16 x, n16 y)
{
    return (n16){vmaxq_s32(x.a, y.a), vmaxq_s32(x.b, y.b), vmaxq_s32(x.c, y.c),
                 vmaxq_s32(x.d, y.d)};
}

static inline n16 n16_mul(n16 x, n16 y)
{
    return (n16){vmulq_s32(x.a, y.a), vmulq_s32(x.b, y.b), vmulq_s32(x.c, y.c),
                 vmulq_s32(x.d, y.d)};
}

static inline n16 n16_shl(n16 x, unsigned n)
{
    const int32x4_t count = vdupq_n_s32((int32_t)n);
    return (n16){vshlq_s32(x.a, count), vshlq_s32(x.b, count), vshlq_s32(x.c, count),
                 vshlq_s32(x.d, count)};
}

static inline int32x4_t n16_shr4(int32x4_t x, int32x4_t minus)
{
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x), minus));
}

static inline n16 n16_shr(n16 x, unsigned n)
{
    const int32x4_t minus = vdupq_n_s32(-(int32_t)n);
    return (n16){n16_shr4(x.a, minus), n16_shr4(x.b, minus), n16_shr4(x.c, minus),
                 n16_shr4(x.d, minus)};
}

static inline int32x4_t n16_madd4(int32x4_t acc, int32x4_t x, int32x4_t y)
{
    int16x8_t a = vreinterpretq_s16_s32(x), b = vreinterpretq_s16_s32(y);
    return vaddq_s32(acc,
                     vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}

/* acc + the sum of the products of the two int16 halves of each lane. */
static inline n16 n16_madd(n16 acc, n16 x, n16 y)
{
    return (n16){n16_madd4(acc.a, x.a, y.a), n16_madd4(acc.b, x.b, y.b), n16_madd4(acc.c, x.c, y.c),
                 n16_madd4(acc.d, x.d, y.d)};
}

static inline int32x4_t n16_even4(int32x4_t x)
{
    return vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(x), 8), 8));
}

static inline int32x4_t n16_odd4(int32x4_t x)
{
    return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s32(x), 8));
}

/* int8 lanes' bytes 0 and 2, and 1 and 3, as int16 halves. */
static inline void n16_halves(n16 x, n16 *even, n16 *odd)
{
    *even = (n16){n16_even4(x.a), n16_even4(x.b), n16_even4(x.c), n16_even4(x.d)};
    *odd = (n16){n16_odd4(x.a), n16_odd4(x.b), n16_odd4(x.c), n16_odd4(x.d)};
}

static inline int32_t n16_fold_add(n16 x)
{
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d)));
}

static inline int32_t n16_fold_max(n16 x)
{
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.a, x.b), vmaxq_s32(x.c, x.d)));
}

static inline v16 n16_float(n16 x)
{
    return (v16){vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b), vcvtq_f32_s32(x.c), vcvtq_f32_s32(x.d)};
}

static inline n16 v16_floor(v16 x) /* of what an int32 holds */
{
    return (n16){vcvtmq_s32_f32(x.a), vcvtmq_s32_f32(x.b), vcvtmq_s32_f32(x.c),
                 vcvtmq_s32_f32(x.d)};
}

static inline n16 v16_round(v16 x) /* to the nearest integer, ties to even */
{
    return (n16){vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b), vcvtnq_s32_f32(x.c),
                 vcvtnq_s32_f32(x.d)};
}

static inline n16 v16_bits(v16 x)
{
    return (n16){vreinterpretq_s32_f32(x.a), vreinterpretq_s32_f32(x.b), vreinterpretq_s32_f32(x.c),
                 vreinterpretq_s32_f32(x.d)};
}

static inline v16 v16_of_bits(n16 x)
{
    return (v16){vreinterpretq_f32_s32(x.a), vreinterpretq_f32_s32(x.b), vreinterpretq_f32_s32(x.c),
                 vreinterpretq_f32_s32(x.d)};
}

static inline float32x4_t v16_of_f16_4(int32x4_t x)
{
    return vcvt_f32_f16(vreinterpret_f16_s16(vmovn_s32(x)));
}

static inline v16 v16_of_f16(n16 x) /* f16 in the low half of each lane */
{
    return (v16){v16_of_f16_4(x.a), v16_of_f16_4(x.b), v16_of_f16_4(x.c), v16_of_f16_4(x.d)};
}

static inline v16 v16_load_f16(const uint16_t *p)
{
    uint16x8_t lo = vld1q_u16(p), hi = vld1q_u16(p + 8);
    return (v16){vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(lo))),
                 vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(lo))),
                 vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(hi))),
                 vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(hi)))};
}

static inline __attribute__((always_inline)) void v16_prefetch(const void *p)
{
    __builtin_prefetch(p);
}

#endif
