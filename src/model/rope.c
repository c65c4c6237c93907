/* SPDX-License-Identifier: Apache-2.0 */
/* RoPE tables; see rope.h. Elementary functions in double, accurate to a few units in the last
 * place of a double, so that rounding to float gives the correctly rounded value in all but a
 * vanishing share of cases. No libm. */
#include "model/rope.h"

#include <string.h>

/* pi/2 in three parts; the first two have 27 bits, so that k times them is exact for |k| < 2^26. */
#define HALF_PI_1 0x1.921fb54p+0
#define HALF_PI_2 0x1.10b461p-30
#define HALF_PI_3 0x1.a62633145c06ep-58
#define LN2       0x1.62e42fefa39efp-1

static double from_bits(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

/* Natural logarithm of x > 0, normal: x = m 2^e with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m -
 * 1) / (m + 1)). */
static double natural_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    double m = from_bits((bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0.0;
    for (int k = 27; k >= 1; k -= 2) {
        sum = sum * z + 1.0 / (double)k;
    }
    return (double)e * LN2 + 2.0 * s * sum;
}

/* e^-y for 0 <= y <= 700: 2^-n e^-r with r in [0, ln 2). */
static double exp_negative(double y)
{
    int n = (int)(y / LN2);
    double r = y - (double)n * LN2, sum = 1.0;
    for (int k = 22; k >= 1; k--) {
        sum = 1.0 - r / (double)k * sum;
    }
    return sum * from_bits((uint64_t)(1023 - n) << 52);
}

/* sin and cos of |r| <= pi/4 by their series. */
static double sin_small(double r)
{
    double z = r * r, sum = 1.0;
    for (int k = 20; k >= 2; k -= 2) {
        sum = 1.0 - z * sum / (double)(k * (k + 1));
    }
    return r * sum;
}

static double cos_small(double r)
{
    double z = r * r, sum = 1.0;
    for (int k = 21; k >= 1; k -= 2) {
        sum = 1.0 - z * sum / (double)(k * (k + 1));
    }
    return sum;
}

static void sincos_angle(double a, float *cos_out, float *sin_out)
{
    int64_t k = (int64_t)(a * (2.0 / 3.14159265358979323846) + 0.5); /* a >= 0 */
    double n = (double)k;
    double r = ((a - n * HALF_PI_1) - n * HALF_PI_2) - n * HALF_PI_3;
    double s = sin_small(r), c = cos_small(r);
    switch (k & 3) {
    case 0:
        *cos_out = (float)c;
        *sin_out = (float)s;
        break;
    case 1:
        *cos_out = (float)-s;
        *sin_out = (float)c;
        break;
    case 2:
        *cos_out = (float)-c;
        *sin_out = (float)-s;
        break;
    default:
        *cos_out = (float)s;
        *sin_out = (float)-c;
        break;
    }
}

void rope_init(struct rope *r, int head_dim, double theta, double compression)
{
    r->n_pairs = head_dim / 2;
    r->compression = compression;
    double log_theta = natural_log(theta);
    for (int i = 0; i < r->n_pairs; i++) {
        r->inv_freq[i] = (float)exp_negative(log_theta * (double)(2 * i) / (double)head_dim);
    }
}

void rope_row(const struct rope *r, int32_t pos, float *out)
{
    float p = (float)((double)pos / r->compression);
    for (int i = 0; i < r->n_pairs; i++) {
        float angle = p * r->inv_freq[i];
        sincos_angle((double)angle, &out[2 * i], &out[2 * i + 1]);
    }
}
