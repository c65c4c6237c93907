/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels written once for 16 lanes.
 *
 * The contract of kernels.h speaks of 16 lanes, so the row operations, attention and the fp32-chain
 * GEMM are the same text on every instruction set: a file <isa>_<op>.c includes its <isa>_v16.h,
 * which defines the type v16 and the functions v16_*, then a header of this folder. Everything is
 * static inline, so that no code built for one instruction set is ever linked into another's place.
 */
#ifndef TERN_KERNELS_LANES_LANES_H
#define TERN_KERNELS_LANES_LANES_H

#include "kernels/kernels.h"
#include "kernels/ref/math.h" /* the constants of exp */

#define LANES_INLINE static inline __attribute__((always_inline))

LANES_INLINE v16 lanes_exp(v16 x)
{
    x = v16_clamp(x, EXP_LO, EXP_HI);
    v16 t = v16_fma(x, v16_set1(EXP_LOG2E), v16_set1(EXP_MAGIC));
    v16 n = v16_sub(t, v16_set1(EXP_MAGIC));
    v16 r = v16_fma(n, v16_set1(-EXP_LN2_HI), x);
    r = v16_fma(n, v16_set1(-EXP_LN2_LO), r);
    v16 p = v16_fma(v16_set1(EXP_C6), r, v16_set1(EXP_C5));
    p = v16_fma(p, r, v16_set1(EXP_C4));
    p = v16_fma(p, r, v16_set1(EXP_C3));
    p = v16_fma(p, r, v16_set1(EXP_C2));
    p = v16_fma(p, r, v16_set1(1.0f));
    p = v16_fma(p, r, v16_set1(1.0f));
    return v16_scale(p, t, EXP_MAGIC);
}

/* Elements i .. i + n - 1 (n <= 16) of an activation array; lanes beyond n are zero. */
LANES_INLINE v16 lanes_load(const void *x, size_t i, int n, enum act_type t)
{
    if (t == ACT_BF16) {
        const uint16_t *p = (const uint16_t *)x + i;
        return n == 16 ? v16_load_bf16(p) : v16_load_bf16_n(p, n);
    }
    const float *p = (const float *)x + i;
    return n == 16 ? v16_load(p) : v16_load_n(p, n);
}

LANES_INLINE void lanes_store(void *x, size_t i, v16 v, int n, enum act_type t)
{
    if (t == ACT_BF16) {
        uint16_t *p = (uint16_t *)x + i;
        if (n == 16) {
            v16_store_bf16(p, v);
        } else {
            v16_store_bf16_n(p, v, n);
        }
        return;
    }
    float *p = (float *)x + i;
    if (n == 16) {
        v16_store(p, v);
    } else {
        v16_store_n(p, v, n);
    }
}

LANES_INLINE size_t lanes_pad64(size_t n)
{
    return (n + 63) / 64 * 64;
}

LANES_INLINE int lanes_count(int at, int n)
{
    return n - at < 16 ? n - at : 16;
}

#endif
