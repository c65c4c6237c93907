/* SPDX-License-Identifier: Apache-2.0 */
/* What the products with VPDPBUSD share: avx512bf16_sums.c and avx512bf16_coded.c. */
#ifndef TERN_KERNELS_X86_AVX512BF16_DOT_H
#define TERN_KERNELS_X86_AVX512BF16_DOT_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* VPDPBUSD in place, written as assembly because gcc copies the accumulators of the intrinsic. */
static inline __attribute__((always_inline)) __m512i dot(__m512i sum, __m512i w, __m512i a)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a));
    return sum;
}

static inline __m512i quad(const uint8_t *a)
{
    int32_t v;
    memcpy(&v, a, sizeof v);
    return _mm512_set1_epi32(v);
}

static inline int32_t int_at(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float float_at(const uint8_t *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The same value in a register of its own: equal values in one would be copied inside the loop. */
static inline __attribute__((always_inline)) __m512i twin(__m512i v)
{
    __m512i x;
    __asm__("vmovdqa64 %1, %0" : "=v"(x) : "v"(v));
    return x;
}

/* With groups of 16 to 128 columns, scaling is as much work as the sums unless it stays in registers:
 * 3 rows x 4 tiles of sums (c) beside as many fp32 chains (f), which leave for memory once a call.
 * DO(row, its four sums, its four chains, its inputs) for rows 0 .. n_rows-1 of at most three. */
#define GROUP_ROWS 3
#define ROWS_3X4(DO)                                                                               \
    DO(0, c00, c01, c02, c03, f00, f01, f02, f03, a0)                                              \
    if (n_rows > 1) {                                                                              \
        DO(1, c10, c11, c12, c13, f10, f11, f12, f13, a1)                                          \
    }                                                                                              \
    if (n_rows > 2) {                                                                              \
        DO(2, c20, c21, c22, c23, f20, f21, f22, f23, a2)                                          \
    }

#endif
