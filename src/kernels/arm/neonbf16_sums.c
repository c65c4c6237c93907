/* SPDX-License-Identifier: Apache-2.0 */
/* int8 products with SMMLA: eight columns of two rows of a tile times eight columns of two rows of
 * activations, four sums an instruction, twice SDOT's arithmetic.
 *
 * 10 rows x half a tile are 20 accumulators of 2 x 2 (with 12 rows, gcc runs out of registers). Rows come in pairs, put together block by
 * block; an odd last one is multiplied twice. A single row is SDOT's. */
#define SUMS_MOST   10
#define SUMS_PAIRED 1
#include "kernels/arm/sums.h"

#include "kernels/arm/neon.h"

/* An accumulator's low half is of the first row of a pair, its high half of the second. */
MICRO_INLINE int32x4_t low_halves(int32x4_t x, int32x4_t y)
{
    return vreinterpretq_s32_s64(vtrn1q_s64(vreinterpretq_s64_s32(x), vreinterpretq_s64_s32(y)));
}

MICRO_INLINE int32x4_t high_halves(int32x4_t x, int32x4_t y)
{
    return vreinterpretq_s32_s64(vtrn2q_s64(vreinterpretq_s64_s32(x), vreinterpretq_s64_s32(y)));
}

/* n_rows pairs of rows; half 0 or 1 of the tile. */
MICRO_INLINE void micro(const int n_rows, const struct sums_args *s, int rows, int half)
{
    const int8_t *a = s->a, *v = s->v + 64 * half;
    const int last = rows - 1;
    int32x4_t c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
    int32x4_t c30, c31, c32, c33, c40, c41, c42, c43, c50, c51, c52, c53;
    c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = c20 = c21 = c22 = c23 = vdupq_n_s32(0);
    c30 = c31 = c32 = c33 = c40 = c41 = c42 = c43 = c50 = c51 = c52 = c53 = vdupq_n_s32(0);
#define LOAD(pair, x0, x1, x2, x3, a_)                                                             \
    {                                                                                              \
        const size_t second_ = (size_t)(2 * pair < last ? 2 * pair + 1 : last);                    \
        const float *p_ = s->c + 2 * pair * s->ldc + 8 * half, *q_ = s->c + second_ * s->ldc;      \
        const int32_t *first = (const int32_t *)(const void *)p_;                                  \
        const int32_t *second = (const int32_t *)(const void *)(q_ + 8 * half);                    \
        x0 = low_halves(vld1q_s32(first), vld1q_s32(second));                                      \
        x1 = high_halves(vld1q_s32(first), vld1q_s32(second));                                     \
        x2 = low_halves(vld1q_s32(first + 4), vld1q_s32(second + 4));                              \
        x3 = high_halves(vld1q_s32(first + 4), vld1q_s32(second + 4));                             \
    }
#define STEP(pair, x0, x1, x2, x3, a_)                                                             \
    {                                                                                              \
        const int8x16_t rows_ = vld1q_s8(a + 16 * pair);                                           \
        x0 = vmmlaq_s32(x0, rows_, w0);                                                            \
        x1 = vmmlaq_s32(x1, rows_, w1);                                                            \
        x2 = vmmlaq_s32(x2, rows_, w2);                                                            \
        x3 = vmmlaq_s32(x3, rows_, w3);                                                            \
    }
#define FINISH(pair, x0, x1, x2, x3, a_)                                                           \
    {                                                                                              \
        const struct sums_row first = sums_row_of(s, 2 * pair);                                    \
        sums_finish(s, &first, 2 * half, low_halves(x0, x1));                                      \
        sums_finish(s, &first, 2 * half + 1, low_halves(x2, x3));                                  \
        if (2 * pair < last) {                                                                     \
            const struct sums_row second = sums_row_of(s, 2 * pair + 1);                           \
            sums_finish(s, &second, 2 * half, high_halves(x0, x1));                                \
            sums_finish(s, &second, 2 * half + 1, high_halves(x2, x3));                            \
        }                                                                                          \
    }
    if (!s->is_first) {
        ROWS_6X4(LOAD)
    }
    for (int u = s->n_units; u > 0; u--, a += 16 * n_rows, v += 128) {
        const int8x16_t w0 = vld1q_s8(v), w1 = vld1q_s8(v + 16);
        const int8x16_t w2 = vld1q_s8(v + 32), w3 = vld1q_s8(v + 48);
        ROWS_6X4(STEP)
    }
    ROWS_6X4(FINISH)
#undef LOAD
#undef STEP
#undef FINISH
}

MICRO_INLINE void halves(const int n_pairs, const struct sums_args *s, int rows)
{
    for (int half = 0; half < 2; half++) {
        micro(n_pairs, s, rows, half);
    }
}

static __attribute__((noinline)) void sums_micro(int rows, const struct sums_args *s)
{
    ROW_COUNTS((rows + 1) / 2, halves, s, rows)
}

void neonbf16_sums(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                   int tile, int n_tiles, const void *next)
{
    (void)next;
    if (m == 1 && neondot_takes_one(w)) {
        neondot_sums_one(c, a, w, tile, n_tiles);
    } else {
        sums_panel(c, ldc, a, lda, w, m, tile, n_tiles);
    }
}
