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

/* Four tiles' lines w0 .. w3 by the four columns at `a`. */
#define DOTS(x0, x1, x2, x3, a)                                                                    \
    {                                                                                              \
        const __m512i v_ = quad(a);                                                                \
        x0 = dot(x0, w0, v_);                                                                      \
        x1 = dot(x1, w1, v_);                                                                      \
        x2 = dot(x2, w2, v_);                                                                      \
        x3 = dot(x3, w3, v_);                                                                      \
    }

/* DOs of ROWS_3X4. They use the lines w0 .. w3, the byte `at` of the rows; `bias` (less than zero) and
 * the rows' `sums` of codes; the tiles' scales s0 .. s3 and the rows' `scales`; and `to`, with c, ldc
 * and col. */
#define GROUP_START(row_, x0, x1, x2, x3, y0, y1, y2, y3, a)                                       \
    x0 = _mm512_mullo_epi32(bias, quad(sums + row_ * lda));                                        \
    x1 = twin(x0);                                                                                 \
    x2 = twin(x0);                                                                                 \
    x3 = twin(x0);
#define GROUP_STEP(row_, x0, x1, x2, x3, y0, y1, y2, y3, a) DOTS(x0, x1, x2, x3, a + at)
#define GROUP_SCALED(x, s, y)                               y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(x), _mm512_mul_ps(s, sa_), y);
#define GROUP_SCALE(row_, x0, x1, x2, x3, y0, y1, y2, y3, a)                                       \
    {                                                                                              \
        const __m512 sa_ = _mm512_set1_ps(float_at(scales + row_ * lda));                          \
        GROUP_SCALED(x0, s0, y0)                                                                   \
        GROUP_SCALED(x1, s1, y1)                                                                   \
        GROUP_SCALED(x2, s2, y2)                                                                   \
        GROUP_SCALED(x3, s3, y3)                                                                   \
    }
#define GROUP_LOAD(row_, x0, x1, x2, x3, y0, y1, y2, y3, a)                                        \
    y0 = _mm512_loadu_ps(to->c + row_ * to->ldc + to->col[0]);                                     \
    y1 = _mm512_loadu_ps(to->c + row_ * to->ldc + to->col[1]);                                     \
    y2 = _mm512_loadu_ps(to->c + row_ * to->ldc + to->col[2]);                                     \
    y3 = _mm512_loadu_ps(to->c + row_ * to->ldc + to->col[3]);
#define GROUP_STORE(row_, x0, x1, x2, x3, y0, y1, y2, y3, a)                                       \
    _mm512_storeu_ps(to->c + row_ * to->ldc + to->col[0], y0);                                     \
    _mm512_storeu_ps(to->c + row_ * to->ldc + to->col[1], y1);                                     \
    _mm512_storeu_ps(to->c + row_ * to->ldc + to->col[2], y2);                                     \
    _mm512_storeu_ps(to->c + row_ * to->ldc + to->col[3], y3);

/* CALL(n, …) with n_rows, at most GROUP_ROWS, as a constant. */
#define GROUP_COUNTS(n_rows, CALL, ...)                                                            \
    if (n_rows == 1) {                                                                             \
        CALL(1, __VA_ARGS__);                                                                      \
    } else if (n_rows == 2) {                                                                      \
        CALL(2, __VA_ARGS__);                                                                      \
    } else {                                                                                       \
        CALL(3, __VA_ARGS__);                                                                      \
    }

#endif
