/* SPDX-License-Identifier: Apache-2.0 */
/* The inner loop of products with VDPBF16PS, which is the chain of kernels.h in one instruction.
 *
 * micro() keeps up to 6 rows x 4 tiles = 24 chains in registers: per pair of K four weight lines
 * and six broadcasts feed 24 multiply-adds, and 24 chains are enough to hide the instruction's
 * latency. The accumulators are named variables because gcc keeps an array of vectors in memory. A
 * missing tile repeats tile 0 (same values, same place), so that the loop has no branches. */
#ifndef TERN_KERNELS_X86_AVX512BF16_MICRO_H
#define TERN_KERNELS_X86_AVX512BF16_MICRO_H

#include "kernels/fused.h"
#include "kernels/x86/x86.h"
#include <immintrin.h>

typedef __m512bh pairs16; /* one weight line: 16 rows x one pair of K */

struct micro_args {
    float *c;
    size_t ldc, col[PANEL_TILES];
    const uint16_t *a;
    size_t lda;
    const char *b[PANEL_TILES];
    const char *ahead[PANEL_TILES]; /* lines to prefetch, in n_ahead streams, ahead_step bytes per
                                       pair of K */
    size_t ahead_step;
    size_t pairs;
    int is_first; /* chains start at +0, else they continue from c */
};

static inline pairs16 line(const void *p)
{
    return (pairs16)_mm512_load_si512(p);
}

static inline pairs16 pair(const uint16_t *p)
{
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return (pairs16)_mm512_set1_epi32(v);
}

static inline __attribute__((always_inline)) void micro(const int n_rows, const int n_ahead,
                                                        const struct micro_args *s)
{
    float *const c = s->c;
    const size_t ldc = s->ldc, lda = s->lda, pairs = s->pairs, step = s->ahead_step;
    const size_t k0 = s->col[0], k1 = s->col[1], k2 = s->col[2], k3 = s->col[3];
    const char *b0 = s->b[0], *b1 = s->b[1], *b2 = s->b[2], *b3 = s->b[3];
    const char *p0 = s->ahead[0], *p1 = s->ahead[1], *p2 = s->ahead[2], *p3 = s->ahead[3];
    const uint16_t *a0 = s->a, *a1 = a0 + lda, *a2 = a1 + lda, *a3 = a2 + lda, *a4 = a3 + lda,
                   *a5 = a4 + lda;
    __m512 c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
    __m512 c30, c31, c32, c33, c40, c41, c42, c43, c50, c51, c52, c53;
    c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = c20 = c21 = c22 = c23 = _mm512_setzero_ps();
    c30 = c31 = c32 = c33 = c40 = c41 = c42 = c43 = c50 = c51 = c52 = c53 = _mm512_setzero_ps();

#define LOAD(row, x0, x1, x2, x3, a)                                                               \
    x0 = _mm512_loadu_ps(c + row * ldc + k0);                                                      \
    x1 = _mm512_loadu_ps(c + row * ldc + k1);                                                      \
    x2 = _mm512_loadu_ps(c + row * ldc + k2);                                                      \
    x3 = _mm512_loadu_ps(c + row * ldc + k3);
#define STORE(row, x0, x1, x2, x3, a)                                                              \
    _mm512_storeu_ps(c + row * ldc + k0, x0);                                                      \
    _mm512_storeu_ps(c + row * ldc + k1, x1);                                                      \
    _mm512_storeu_ps(c + row * ldc + k2, x2);                                                      \
    _mm512_storeu_ps(c + row * ldc + k3, x3);
#define STEP(row, x0, x1, x2, x3, a)                                                               \
    {                                                                                              \
        const pairs16 v = pair(a + 2 * j);                                                         \
        x0 = _mm512_dpbf16_ps(x0, v, w0);                                                          \
        x1 = _mm512_dpbf16_ps(x1, v, w1);                                                          \
        x2 = _mm512_dpbf16_ps(x2, v, w2);                                                          \
        x3 = _mm512_dpbf16_ps(x3, v, w3);                                                          \
    }

    if (!s->is_first) {
        ROWS_6X4(LOAD)
    }
    for (size_t j = 0; j < pairs; j++) {
        const pairs16 w0 = line(b0 + 64 * j), w1 = line(b1 + 64 * j);
        const pairs16 w2 = line(b2 + 64 * j), w3 = line(b3 + 64 * j);
        const size_t ahead = step * j & ~(size_t)63;
        if (n_ahead > 0) {
            _mm_prefetch(p0 + ahead, _MM_HINT_T0);
        }
        if (n_ahead > 1) {
            _mm_prefetch(p1 + ahead, _MM_HINT_T0);
            _mm_prefetch(p2 + ahead, _MM_HINT_T0);
            _mm_prefetch(p3 + ahead, _MM_HINT_T0);
        }
        ROWS_6X4(STEP)
    }
    ROWS_6X4(STORE)
#undef LOAD
#undef STORE
#undef STEP
}

static inline __attribute__((always_inline)) void micro_rows(int n_rows, const int n_ahead,
                                                             const struct micro_args *s)
{
    ROW_COUNTS(n_rows, micro, n_ahead, s)
}

#endif
