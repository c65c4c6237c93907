/* SPDX-License-Identifier: Apache-2.0 */
/* Argmax and log-sum-exp on 16 lanes. */
#ifndef TERN_KERNELS_LANES_LOGITS_H
#define TERN_KERNELS_LANES_LOGITS_H

#include "kernels/lanes/lanes.h"

/* The largest number; -inf when all are NaN. */
LANES_INLINE float lanes_top(const float *x, int n)
{
    v16 a = v16_set1(-INFINITY), b = a;
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        a = v16_max(v16_load(x + i), a);
        b = v16_max(v16_load(x + i + 16), b);
    }
    for (; i < n; i += 16) {
        const int c = lanes_count(i, n);
        a = v16_max(v16_keep_n(v16_load_n(x + i, c), c, b), a);
    }
    return v16_fold_max(v16_max(a, b));
}

LANES_INLINE int lanes_argmax(const float *x, int n)
{
    const v16 top = v16_set1(lanes_top(x, n));
    for (int i = 0; i < n; i += 16) {
        const int c = lanes_count(i, n);
        v16 v = c == 16 ? v16_load(x + i) : v16_load_n(x + i, c);
        unsigned hit = v16_equal(v, top) & ((1u << c) - 1);
        if (hit) {
            return i + __builtin_ctz(hit);
        }
    }
    return 0;
}

LANES_INLINE void lanes_logsumexp(const float *x, int n, float *max, double *sum)
{
    const float top = lanes_top(x, n);
    d16 s = d16_zero();
    for (int i = 0; i < n; i += 16) {
        const int c = lanes_count(i, n);
        v16 v = c == 16 ? v16_load(x + i) : v16_load_n(x + i, c);
        s = d16_add(s, v16_keep_n(lanes_exp(v16_sub(v, v16_set1(top))), c, v16_zero()));
    }
    *max = top;
    *sum = d16_fold(s);
}

#endif
