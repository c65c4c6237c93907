/* SPDX-License-Identifier: Apache-2.0 */
/* int8 products with SDOT: four columns of four rows of a tile times four columns of a row of
 * activations, which are an element of a register, so that nothing is broadcast.
 *
 * 6 rows x 1 tile are 24 accumulators, beside six registers of activations and one of weights. A
 * single row has four tiles, which are as many streams, and takes whole bytes and nibbles as they
 * are in the file. */
#define SUMS_MOST   MICRO_ROWS
#define SUMS_PAIRED 0
#include "kernels/arm/sums.h"

#include "kernels/arm/neon.h"

MICRO_INLINE void micro(const int n_rows, const struct sums_args *s)
{
    const size_t lda = s->lda;
    const int8_t *a = s->a, *v = s->v;
    int32x4_t c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
    int32x4_t c30, c31, c32, c33, c40, c41, c42, c43, c50, c51, c52, c53;
    c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = c20 = c21 = c22 = c23 = vdupq_n_s32(0);
    c30 = c31 = c32 = c33 = c40 = c41 = c42 = c43 = c50 = c51 = c52 = c53 = vdupq_n_s32(0);
    int8x8_t a0, a1, a2, a3, a4, a5;
    a0 = a1 = a2 = a3 = a4 = a5 = vdup_n_s8(0);
#define LOAD(row_, x0, x1, x2, x3, a_)                                                             \
    {                                                                                              \
        const int32_t *from_ = (const int32_t *)(const void *)(s->c + row_ * s->ldc);              \
        x0 = vld1q_s32(from_);                                                                     \
        x1 = vld1q_s32(from_ + 4);                                                                 \
        x2 = vld1q_s32(from_ + 8);                                                                 \
        x3 = vld1q_s32(from_ + 12);                                                                \
    }
#define INPUT(row_, x0, x1, x2, x3, a_) a_ = vld1_s8(a + row_ * lda);
#define STEP(x, a_)                     x = vdotq_lane_s32(x, w_, a_, lane_);
#define STEP0(row_, x0, x1, x2, x3, a_) STEP(x0, a_)
#define STEP1(row_, x0, x1, x2, x3, a_) STEP(x1, a_)
#define STEP2(row_, x0, x1, x2, x3, a_) STEP(x2, a_)
#define STEP3(row_, x0, x1, x2, x3, a_) STEP(x3, a_)
#define QUARTER(i, lane, DO)                                                                       \
    {                                                                                              \
        enum { lane_ = lane };                                                                     \
        const int8x16_t w_ = vld1q_s8(v + 64 * lane + 16 * i);                                     \
        ROWS_6X4(DO)                                                                               \
    }
#define FINISH(row_, x0, x1, x2, x3, a_)                                                           \
    {                                                                                              \
        const struct sums_row r_ = sums_row_of(s, row_);                                           \
        sums_finish(s, &r_, 0, x0);                                                                \
        sums_finish(s, &r_, 1, x1);                                                                \
        sums_finish(s, &r_, 2, x2);                                                                \
        sums_finish(s, &r_, 3, x3);                                                                \
    }
    if (!s->is_first) {
        ROWS_6X4(LOAD)
    }
    for (int u = s->n_units; u > 0; u--, a += 8, v += 128) {
        ROWS_6X4(INPUT)
        QUARTER(0, 0, STEP0)
        QUARTER(1, 0, STEP1)
        QUARTER(2, 0, STEP2)
        QUARTER(3, 0, STEP3)
        QUARTER(0, 1, STEP0)
        QUARTER(1, 1, STEP1)
        QUARTER(2, 1, STEP2)
        QUARTER(3, 1, STEP3)
    }
    ROWS_6X4(FINISH)
#undef LOAD
#undef INPUT
#undef STEP
#undef STEP0
#undef STEP1
#undef STEP2
#undef STEP3
#undef QUARTER
#undef FINISH
}

static __attribute__((noinline)) void sums_micro(int rows, const struct sums_args *s)
{
    ROW_COUNTS(rows, micro, s)
}

/* ---- one row ---- */

/* Scales the sums of tile t. What zero points take off is still in them: with bytes, which are summed
 * less 128, all beyond that. */
static __attribute__((noinline)) void finish_tile(struct sums_args *s, const struct lanes_quant *q,
                                                  const int32_t *sums, int t, int group)
{
    float scale[TILE_N], offset[TILE_N];
    int32_t rest[TILE_N];
    const int is_i4 = q->w->format == WEIGHT_I4;
    s->scale = scale;
    s->offset = q->w->has_offset ? offset : NULL;
    s->rest = is_i4 || q->w->has_zero ? rest : NULL;
    v16_store(scale, lanes_quant_scale(q, t, group));
    if (q->w->has_offset) {
        v16_store(offset, lanes_quant_offset(q, t, group));
    }
    n16_store(rest, n16_sub(lanes_quant_zero(q, t, group), n16_set1(is_i4 ? 0 : 128)));
    struct sums_row r = sums_row_of(s, 0);
    r.to += t * TILE_N;
    for (int i = 0; i < 4; i++) {
        sums_finish(s, &r, i, vld1q_s32(sums + 4 * i));
    }
}

/* A missing tile repeats tile 0, and is not finished. */
MICRO_INLINE void one_row(float *c, const uint8_t *row, const struct lanes_quant *q, int n_tiles,
                          const enum weight_format f)
{
    const size_t unit = f == WEIGHT_I4 ? 64 : 128;
    const int t1 = n_tiles > 1 ? 1 : 0, t2 = n_tiles > 2 ? 2 : 0, t3 = n_tiles > 3 ? 3 : 0;
    struct sums_args s = {.c = c, .row = row, .is_last = 1};
    const uint8x16_t mask = vdupq_n_u8(f == WEIGHT_I4 ? 15 : 128);
    const int8_t *a = (const int8_t *)row;
    int32_t sums[PANEL_TILES][TILE_N];
    for (int group = 0, k = 0; k < q->w->k; group++) {
        const int end = q->w->k - k < q->group ? q->w->k : k + q->group;
        const uint8_t *b0 = lanes_codes(q, 0, k), *b1 = lanes_codes(q, t1, k);
        const uint8_t *b2 = lanes_codes(q, t2, k), *b3 = lanes_codes(q, t3, k);
        int32x4_t c00, c01, c02, c03, c10, c11, c12, c13;
        int32x4_t c20, c21, c22, c23, c30, c31, c32, c33;
        c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = vdupq_n_s32(0);
        c20 = c21 = c22 = c23 = c30 = c31 = c32 = c33 = vdupq_n_s32(0);
#define QUARTER(b, i, x)                                                                           \
    {                                                                                              \
        const uint8x16_t p_ = vld1q_u8(b + 16 * i);                                                \
        const uint8x16_t q_ = f == WEIGHT_I4 ? vshrq_n_u8(p_, 4) : vld1q_u8(b + 64 + 16 * i);      \
        x = vdotq_lane_s32(                                                                        \
            x, vreinterpretq_s8_u8(f == WEIGHT_I4 ? vandq_u8(p_, mask) : veorq_u8(p_, mask)), v,   \
            0);                                                                                    \
        x = vdotq_lane_s32(x, vreinterpretq_s8_u8(f == WEIGHT_I4 ? q_ : veorq_u8(q_, mask)), v,    \
                           1);                                                                     \
    }
#define TILE(b, x0, x1, x2, x3)                                                                    \
    v16_prefetch(b + LANES_AHEAD_BYTES);                                                           \
    if (f != WEIGHT_I4) {                                                                          \
        v16_prefetch(b + LANES_AHEAD_BYTES + 64);                                                  \
    }                                                                                              \
    QUARTER(b, 0, x0)                                                                              \
    QUARTER(b, 1, x1)                                                                              \
    QUARTER(b, 2, x2)                                                                              \
    QUARTER(b, 3, x3)                                                                              \
    b += unit;
        for (; k < end; k += 8, a += 8) {
            const int8x8_t v = vld1_s8(a);
            TILE(b0, c00, c01, c02, c03)
            TILE(b1, c10, c11, c12, c13)
            TILE(b2, c20, c21, c22, c23)
            TILE(b3, c30, c31, c32, c33)
        }
#undef TILE
#undef QUARTER
        s.sa_at = q->sa_at + 4 * (size_t)group;
        s.sums_at = q->sums_at + 4 * (size_t)group;
        s.is_start = group == 0;
        n16_store(sums[0], (n16){c00, c01, c02, c03});
        n16_store(sums[1], (n16){c10, c11, c12, c13});
        n16_store(sums[2], (n16){c20, c21, c22, c23});
        n16_store(sums[3], (n16){c30, c31, c32, c33});
        for (int t = 0; t < n_tiles; t++) {
            finish_tile(&s, q, sums[t], t, group);
        }
    }
}

int neondot_takes_one(const struct weight *w)
{
    return !lanes_is_coded(w);
}

__attribute__((noinline)) void neondot_sums_one(float *c, const void *a, const struct weight *w,
                                                int tile, int n_tiles)
{
    const struct lanes_quant q = lanes_quant_of(w, tile);
    if (w->format == WEIGHT_I4) {
        one_row(c, a, &q, n_tiles, WEIGHT_I4);
    } else {
        one_row(c, a, &q, n_tiles, WEIGHT_I8);
    }
}

void neondot_sums(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                  int tile, int n_tiles, const void *next)
{
    (void)next;
    if (m == 1 && neondot_takes_one(w)) {
        neondot_sums_one(c, a, w, tile, n_tiles);
    } else {
        sums_panel(c, ldc, a, lda, w, m, tile, n_tiles);
    }
}
