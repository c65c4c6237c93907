/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic that every level must reproduce.
 *
 * fp32, round to nearest even, denormal inputs and results are zeros of the same sign. A result is
 * denormal when it is below 2^-126 after rounding to 24 bits with an unbounded exponent (how x86
 * decides, VDPBF16PS included).
 *
 * It is written in double so that it depends neither on the thread's mode nor on FMA hardware. One
 * fp32 operation computed in double and rounded once more to fp32 is correctly rounded for + - * /
 * and sqrt, because 53 >= 2 * 24 + 2. For fma the exact sum of a 48-bit product and a 24-bit addend
 * may need more than 53 bits, so the double sum is rounded to odd: when inexact, its last bit is
 * made 1, which keeps it off every tie. */
#ifndef TERN_KERNELS_REF_MATH_H
#define TERN_KERNELS_REF_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t ref_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float ref_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline double ref_in(float x) /* denormals are zeros */
{
    uint32_t u = ref_bits(x);
    return (u & 0x7f800000u) == 0 ? (double)ref_from_bits(u & 0x80000000u) : (double)x;
}

static inline float ref_out(double x)
{
    if (fabs(x) < 0x1p-126 * (1 - 0x1p-25)) {
        return copysignf(0.0f, x < 0 || signbit(x) ? -1.0f : 1.0f);
    }
    return (float)x;
}

static inline float ref_add(float a, float b)
{
    return ref_out(ref_in(a) + ref_in(b));
}

static inline float ref_sub(float a, float b)
{
    return ref_out(ref_in(a) - ref_in(b));
}

static inline float ref_mul(float a, float b)
{
    return ref_out(ref_in(a) * ref_in(b));
}

static inline float ref_div(float a, float b)
{
    return ref_out(ref_in(a) / ref_in(b));
}

static inline float ref_sqrt(float a)
{
    return ref_out(sqrt(ref_in(a)));
}

static inline float ref_fma(float a, float b, float c)
{
    double p = ref_in(a) * ref_in(b), z = ref_in(c); /* the product is exact */
    double s = p + z, t = s - p;
    double lost = (p - (s - t)) + (z - t); /* s + lost is the exact sum */
    if (lost > 0 || lost < 0) {
        uint64_t u;
        memcpy(&u, &s, sizeof u);
        if (!(u & 1)) {
            u = (lost > 0) == (s > 0) ? u + 1 : u - 1;
            memcpy(&s, &u, sizeof s);
        }
    }
    return ref_out(s);
}

/* exp(x): x = n ln2 + r with |r| <= ln2 / 2, n by adding and subtracting 1.5 * 2^23, then
 * exp(r) = 1 + r + r^2 q(r) with q of degree 4, and a scaling by 2^n in two exact steps (2^n alone
 * may not be a float). q is (exp(r) - 1 - r) / r^2 interpolated at the five Chebyshev nodes of
 * [-ln2/2, ln2/2] from its exact series and rounded to fp32: relative error of the
 * polynomial 1.1e-8, of the function 0.89 ulp in all (the unit test measures it against long
 * double). ln2 = LN2_HI + LN2_LO to 48 bits. exp(0) = 1 because every term holds a factor r; -inf
 * and anything that would be denormal give 0; above 88.73 it is +inf; NaN stays NaN. */
#define EXP_LO     (-104.0f)
#define EXP_HI     89.0f
#define EXP_LOG2E  0x1.715476p+0f
#define EXP_MAGIC  0x1.8p23f
#define EXP_LN2_HI 0x1.62e43p-1f
#define EXP_LN2_LO (-0x1.05c61p-29f)
#define EXP_C2     0x1p-1f
#define EXP_C3     0x1.5554dcp-3f
#define EXP_C4     0x1.55551ap-5f
#define EXP_C5     0x1.120b7cp-7f
#define EXP_C6     0x1.6d1116p-10f

static inline float kernel_exp(float x)
{
    if (x != x) {
        return x;
    }
    x = x < EXP_LO ? EXP_LO : x > EXP_HI ? EXP_HI : x;
    float t = ref_fma(x, EXP_LOG2E, EXP_MAGIC);
    float n = ref_sub(t, EXP_MAGIC);
    float r = ref_fma(n, -EXP_LN2_HI, x);
    r = ref_fma(n, -EXP_LN2_LO, r);
    float p = ref_fma(EXP_C6, r, EXP_C5);
    p = ref_fma(p, r, EXP_C4);
    p = ref_fma(p, r, EXP_C3);
    p = ref_fma(p, r, EXP_C2);
    p = ref_fma(p, r, 1.0f);
    p = ref_fma(p, r, 1.0f);
    int32_t i = (int32_t)(ref_bits(t) - ref_bits(EXP_MAGIC));
    int32_t half = i >> 1;
    p = ref_mul(p, ref_from_bits((uint32_t)(half + 127) << 23));
    return ref_mul(p, ref_from_bits((uint32_t)(i - half + 127) << 23));
}

/* exp(v) for v <= 0, for drawing: rounded after each operation, no fma, to about 1 ulp; 0 from
 * WEIGHT_FROM down, so that no weight is denormal, and for NaN. Neither an operand nor a result but
 * v itself can be denormal, and a denormal v gives 1 as 0 does: plain arithmetic is right in any
 * mode. */
#define WEIGHT_FROM   (-86.6f)
#define WEIGHT_LOG2E  1.44269504f
#define WEIGHT_LN2_HI 0.693145752f
#define WEIGHT_LN2_LO 1.42860677e-6f
#define WEIGHT_C3     (1.0f / 6.0f)
#define WEIGHT_C4     (1.0f / 24.0f)
#define WEIGHT_C5     (1.0f / 120.0f)
#define WEIGHT_C6     (1.0f / 720.0f)
#define WEIGHT_C7     (1.0f / 5040.0f)

static inline float kernel_weight(float v)
{
    if (!(v > WEIGHT_FROM)) {
        return 0.0f;
    }
    float t = v * WEIGHT_LOG2E + EXP_MAGIC, n = t - EXP_MAGIC;
    float f = v - n * WEIGHT_LN2_HI - n * WEIGHT_LN2_LO;
    float p = f * WEIGHT_C7 + WEIGHT_C6;
    p = p * f + WEIGHT_C5;
    p = p * f + WEIGHT_C4;
    p = p * f + WEIGHT_C3;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    return ref_from_bits(ref_bits(p) + ((ref_bits(t) - ref_bits(EXP_MAGIC)) << 23));
}

#endif
