/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on logits: argmax, log-sum-exp and weights on 16 lanes. */
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

#define ARGMAX_BLOCK 4096 /* stays in the first-level cache */

/* Looks for the index in the first block that holds the maximum alone, so that x is read once. */
LANES_INLINE int lanes_argmax(const float *x, int n)
{
    float best = -INFINITY;
    int from = 0;
    for (int i = 0; i < n; i += ARGMAX_BLOCK) {
        const float top = lanes_top(x + i, n - i < ARGMAX_BLOCK ? n - i : ARGMAX_BLOCK);
        if (top > best) {
            best = top;
            from = i;
        }
    }
    for (int i = from; i < n; i += 16) {
        const int c = lanes_count(i, n);
        unsigned hit = v16_equal(lanes_load(x, (size_t)i, c, ACT_F32), v16_set1(best));
        hit &= (1u << c) - 1;
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

#define WEIGH_VECTORS 4 /* whose chains of operations run side by side; they divide a chunk */
#define EACH_VECTOR   _Pragma("GCC unroll 4") for (int k = 0; k < WEIGH_VECTORS; k++)

/* kernel_weight of v[0..WEIGH_VECTORS), step by step for all of them: one chain is some 25 operations
 * long, and a CPU that waits for them one by one holds only three or four such chains in flight. */
LANES_INLINE void lanes_weight(const v16 *v, v16 *out)
{
    v16 t[WEIGH_VECTORS], f[WEIGH_VECTORS], p[WEIGH_VECTORS];
    static const float c[] = {WEIGHT_C5, WEIGHT_C4, WEIGHT_C3, 0.5f, 1.0f, 1.0f};
    EACH_VECTOR t[k] = v16_mul(v[k], v16_set1(WEIGHT_LOG2E));
    EACH_VECTOR t[k] = v16_add(t[k], v16_set1(EXP_MAGIC));
    EACH_VECTOR p[k] = v16_sub(t[k], v16_set1(EXP_MAGIC));
    EACH_VECTOR f[k] = v16_sub(v[k], v16_mul(p[k], v16_set1(WEIGHT_LN2_HI)));
    EACH_VECTOR f[k] = v16_sub(f[k], v16_mul(p[k], v16_set1(WEIGHT_LN2_LO)));
    EACH_VECTOR p[k] = v16_add(v16_mul(f[k], v16_set1(WEIGHT_C7)), v16_set1(WEIGHT_C6));
    _Pragma("GCC unroll 6") for (int i = 0; i < 6; i++)
    {
        EACH_VECTOR p[k] = v16_mul(p[k], f[k]);
        EACH_VECTOR p[k] = v16_add(p[k], v16_set1(c[i]));
    }
    EACH_VECTOR out[k] = v16_keep_above(v16_scale(p[k], t[k], EXP_MAGIC), v[k], WEIGHT_FROM);
}

/* Entries from .. to, at most a chunk. A division is what costs; x times 1 is x / 1, denormals
 * included. */
LANES_INLINE void lanes_weigh_chunk(const float *x, int from, int to, float temperature, float max,
                                    float *y, float *w, double *sum, float *top)
{
    d16 s = d16_zero();
    v16 best = v16_set1(-INFINITY), one = v16_set1(temperature);
    for (int i = from; i < to; i += 16 * WEIGH_VECTORS) {
        const int n = to - i;
        v16 v[WEIGH_VECTORS], d[WEIGH_VECTORS], e[WEIGH_VECTORS];
        if (n >= 16 * WEIGH_VECTORS) {
            EACH_VECTOR v[k] = v16_load(x + i + 16 * k);
        } else { /* what isn't there weighs nothing, as NaN does */
            EACH_VECTOR
            {
                const int c = n - 16 * k < 0 ? 0 : lanes_count(16 * k, n);
                v[k] = v16_keep_n(v16_load_n(x + i + 16 * k, c), c, v16_set1(NAN));
            }
        }
        if (temperature == 1.0f) {
            EACH_VECTOR v[k] = v16_mul(v[k], one);
        } else {
            EACH_VECTOR v[k] = v16_div(v[k], one);
        }
        EACH_VECTOR d[k] = v16_sub(v[k], v16_set1(max));
        lanes_weight(d, e);
        EACH_VECTOR best = v16_max(v[k], best);
        EACH_VECTOR s = d16_add(s, e[k]);
        for (int k = 0; y != NULL && k < WEIGH_VECTORS && 16 * k < n; k++) {
            lanes_store(y, (size_t)(i + 16 * k), v[k], lanes_count(16 * k, n), ACT_F32);
            lanes_store(w, (size_t)(i + 16 * k), e[k], lanes_count(16 * k, n), ACT_F32);
        }
    }
    *sum = d16_fold(s);
    *top = v16_fold_max(best);
}

LANES_INLINE void lanes_weigh(const float *x, int n, float temperature, float max, float *y,
                              float *w, double *sum, float *top)
{
    for (int from = 0; from < n; from += WEIGH_CHUNK) {
        const int to = n - from < WEIGH_CHUNK ? n : from + WEIGH_CHUNK;
        lanes_weigh_chunk(x, from, to, temperature, max, y, w, sum++, top++);
    }
}

#endif
