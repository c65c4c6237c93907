/* SPDX-License-Identifier: Apache-2.0 */
/* Products of quantized weights and int8 activations with SDOT or SMMLA: exact sums in int32, so
 * that the order in which an instruction adds doesn't matter.
 *
 * A block of columns of a panel is decoded to int8 numbers, which stay in the L1 cache while all
 * rows pass over them; the loops know one format, whatever the file's. Zero points are taken off
 * while decoding; only those of 8 bits don't fit and leave a `rest`, taken off through the sum of a
 * row's codes. A group ends inside a block, and its sums are scaled into c at once; with one scale
 * per row, sums wait in c as bits of int32.
 *
 * The including file has defined, for its instruction,
 *   SUMS_MOST    rows of a call at most
 *   SUMS_PAIRED  whether 16 bytes are 8 columns of two rows (SMMLA), of weights as of activations, or
 *                4 columns of four (SDOT), which is the order of the codes
 * and defines after it
 *   sums_micro(rows, s)  one group, or what a block has of it, of one tile */
#ifndef TERN_KERNELS_ARM_SUMS_H
#define TERN_KERNELS_ARM_SUMS_H

#include "kernels/arm/micro.h"
#include "kernels/arm/neon_v16.h"
#include "kernels/lanes/quant.h"

#define SUMS_COLUMNS 256                 /* of a block with one scale per row; */
#define SUMS_GROUPED 128                 /* with groups: a multiple of each */
#define SUMS_GROUPS  (SUMS_GROUPED / 16) /* of a block at most */

struct sums_block {
    int8_t v[PANEL_TILES][SUMS_COLUMNS * TILE_N]; /* [unit of 8 columns][128 bytes] */
    float scale[PANEL_TILES][SUMS_GROUPS][TILE_N], offset[PANEL_TILES][SUMS_GROUPS][TILE_N];
    int32_t rest[PANEL_TILES][SUMS_GROUPS][TILE_N];
    int8_t pairs[SUMS_COLUMNS * SUMS_MOST]; /* activations of a call, only with SUMS_PAIRED */
};

struct sums_args {
    float *c;
    size_t ldc;
    const int8_t *a; /* rows at lda, or [unit][pair of rows][16 bytes] */
    const int8_t *v;
    int n_units;
    const uint8_t *row; /* start of the first row, for its scales and sums */
    size_t lda, sa_at, sums_at;
    const float *scale, *offset; /* [16]; offset and rest may be NULL */
    const int32_t *rest;
    int is_first, is_last; /* of the group: its sums begin here, end here */
    int is_start;          /* of the row: nothing is in c yet when the first group ends */
};

/* ---- decoding ---- */

/* Eight columns of a tile. */
MICRO_INLINE void sums_store(int8_t *out, int8x16_t x0, int8x16_t x1, int8x16_t x2, int8x16_t x3,
                             int8x16_t y0, int8x16_t y1, int8x16_t y2, int8x16_t y3)
{
#define PAIRED(i, x, y)                                                                            \
    {                                                                                              \
        const int32x4_t p_ = vreinterpretq_s32_s8(x), q_ = vreinterpretq_s32_s8(y);                \
        vst1q_s8(out + 32 * i, vreinterpretq_s8_s32(vzip1q_s32(p_, q_)));                          \
        vst1q_s8(out + 32 * i + 16, vreinterpretq_s8_s32(vzip2q_s32(p_, q_)));                     \
    }
    if (SUMS_PAIRED) {
        PAIRED(0, x0, y0)
        PAIRED(1, x1, y1)
        PAIRED(2, x2, y2)
        PAIRED(3, x3, y3)
        return;
    }
#undef PAIRED
    vst1q_s8(out, x0);
    vst1q_s8(out + 16, x1);
    vst1q_s8(out + 32, x2);
    vst1q_s8(out + 48, x3);
    vst1q_s8(out + 64, y0);
    vst1q_s8(out + 80, y1);
    vst1q_s8(out + 96, y2);
    vst1q_s8(out + 112, y3);
}

/* Bytes less `zero`; out may be p. */
static inline void sums_bytes(int8_t *out, const uint8_t *p, int n_units, int zero)
{
    const uint8x16_t z = vdupq_n_u8((uint8_t)zero);
#define AT(i) vreinterpretq_s8_u8(vsubq_u8(vld1q_u8(p + 16 * i), z))
    for (int u = 0; u < n_units; u++, p += 128, out += 128) {
        v16_prefetch(p + LANES_AHEAD_BYTES);
        v16_prefetch(p + LANES_AHEAD_BYTES + 64);
        sums_store(out, AT(0), AT(1), AT(2), AT(3), AT(4), AT(5), AT(6), AT(7));
    }
#undef AT
}

/* Nibbles less the zero points of 16 rows. */
static inline void sums_nibbles(int8_t *out, const uint8_t *p, int n_units, uint8x16_t zeros)
{
    static const uint8_t rows[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
    const uint8x16_t index = vld1q_u8(rows), low = vdupq_n_u8(15);
    const uint8x16_t z0 = vqtbl1q_u8(zeros, index),
                     z1 = vqtbl1q_u8(zeros, vaddq_u8(index, vdupq_n_u8(4))),
                     z2 = vqtbl1q_u8(zeros, vaddq_u8(index, vdupq_n_u8(8))),
                     z3 = vqtbl1q_u8(zeros, vaddq_u8(index, vdupq_n_u8(12)));
#define LOW(b, z)  vreinterpretq_s8_u8(vsubq_u8(vandq_u8(b, low), z))
#define HIGH(b, z) vreinterpretq_s8_u8(vsubq_u8(vshrq_n_u8(b, 4), z))
    for (int u = 0; u < n_units; u++, p += 64, out += 128) {
        const uint8x16_t b0 = vld1q_u8(p), b1 = vld1q_u8(p + 16);
        const uint8x16_t b2 = vld1q_u8(p + 32), b3 = vld1q_u8(p + 48);
        v16_prefetch(p + LANES_AHEAD_BYTES);
        sums_store(out, LOW(b0, z0), LOW(b1, z1), LOW(b2, z2), LOW(b3, z3), HIGH(b0, z0),
                   HIGH(b1, z1), HIGH(b2, z2), HIGH(b3, z3));
    }
#undef LOW
#undef HIGH
}

static inline uint8x16_t sums_zeros(const struct lanes_quant *q, int tile, int group)
{
    if (q->w->has_zero) {
        return vld1q_u8(lanes_zeros(q, tile, group));
    }
    return vdupq_n_u8(q->w->has_offset ? 0 : 8);
}

/* Columns from .. from + count of a tile, and what its groups there are scaled with. */
static __attribute__((noinline)) void sums_decode(struct sums_block *b, const struct lanes_quant *q,
                                                  int tile, int from, int count)
{
    int8_t *const v = b->v[tile];
    const enum weight_format f = q->w->format;
    if (lanes_is_coded(q->w)) {
        lanes_bytes((uint8_t *)v, q, tile, from, count);
        sums_bytes(v, (const uint8_t *)v, count / 8, 32);
    } else if (f == WEIGHT_I8) {
        sums_bytes(v, lanes_codes(q, tile, from), count / 8, 128);
    }
    for (int at = 0, i = 0; at < count; at += q->group, i++) {
        const int group = (from + at) / q->group, left = count - at;
        if (f == WEIGHT_I4) {
            sums_nibbles(v + at * TILE_N, lanes_codes(q, tile, from + at),
                         (left < q->group ? left : q->group) / 8, sums_zeros(q, tile, group));
        }
        if (q->n_groups == 1 && from + count < q->w->k) {
            return;
        }
        v16_store(b->scale[tile][i], lanes_quant_scale(q, tile, group));
        if (q->w->has_offset) {
            v16_store(b->offset[tile][i], lanes_quant_offset(q, tile, group));
        }
        if (f == WEIGHT_I8 && q->w->has_zero) {
            n16_store(b->rest[tile][i], n16_sub(lanes_quant_zero(q, tile, group), n16_set1(128)));
        }
    }
}

/* Columns of rows as [unit][pair of rows][16 bytes]; a missing last row repeats the one before. */
static inline void sums_pair_rows(int8_t *out, const uint8_t *a, size_t lda, int rows, int count)
{
    const int n_pairs = (rows + 1) / 2;
    for (int p = 0; p < n_pairs; p++) {
        const uint8_t *x = a + (size_t)(2 * p) * lda, *y = 2 * p + 1 < rows ? x + lda : x;
        for (int u = 0; u < count / 8; u++) {
            vst1q_s8(out + (u * n_pairs + p) * 16,
                     vreinterpretq_s8_u8(vcombine_u8(vld1_u8(x + 8 * u), vld1_u8(y + 8 * u))));
        }
    }
}

/* ---- scaling ---- */

struct sums_row {
    float *to;
    float sa;
    int32_t codes; /* their sum */
};

MICRO_INLINE struct sums_row sums_row_of(const struct sums_args *s, int row)
{
    struct sums_row r = {.to = s->c + (size_t)row * s->ldc, .sa = 0.0f};
    const uint8_t *a = s->row + (size_t)row * s->lda;
    memcpy(&r.sa, a + s->sa_at, 4);
    memcpy(&r.codes, a + s->sums_at, 4);
    return r;
}

/* Four sums of a row, of rows 4i .. 4i + 3 of the tile. */
MICRO_INLINE void sums_finish(const struct sums_args *s, const struct sums_row *r, int i,
                              int32x4_t sum)
{
    float *const to = r->to + 4 * i;
    if (!s->is_last) {
        vst1q_s32((int32_t *)(void *)to, sum);
        return;
    }
    if (s->rest != NULL) {
        sum = vmlsq_n_s32(sum, vld1q_s32(s->rest + 4 * i), r->codes);
    }
    const float32x4_t scale = vmulq_n_f32(vld1q_f32(s->scale + 4 * i), r->sa);
    float32x4_t y =
        vfmaq_f32(s->is_start ? vdupq_n_f32(0.0f) : vld1q_f32(to), vcvtq_f32_s32(sum), scale);
    if (s->offset != NULL) {
        y = vfmaq_f32(y, vdupq_n_f32((float)r->codes),
                      vmulq_n_f32(vld1q_f32(s->offset + 4 * i), r->sa));
    }
    vst1q_f32(to, y);
}

static void sums_micro(int rows, const struct sums_args *s);

/* ---- the panel ---- */

/* One tile's part of a block for the rows of a call, group by group. */
static inline void sums_tile(struct sums_args *s, const struct sums_block *b,
                             const struct lanes_quant *q, const int8_t *a, int tile, int rows,
                             int from, int count)
{
    const int is_one = q->n_groups == 1, step = is_one ? count : q->group;
    for (int at = 0, i = 0; at < count; at += step, i++) {
        const int group = is_one ? 0 : (from + at) / q->group;
        s->a = SUMS_PAIRED ? b->pairs + at * ((rows + 1) / 2 * 2) : a + at;
        s->v = b->v[tile] + at * TILE_N;
        s->n_units = (count - at < step ? count - at : step) / 8;
        s->sa_at = q->sa_at + 4 * (size_t)group;
        s->sums_at = q->sums_at + 4 * (size_t)group;
        s->scale = b->scale[tile][i];
        s->offset = q->w->has_offset ? b->offset[tile][i] : NULL;
        s->rest = q->w->format == WEIGHT_I8 && q->w->has_zero ? b->rest[tile][i] : NULL;
        s->is_first = !is_one || from == 0;
        s->is_last = !is_one || from + count == q->w->k;
        s->is_start = group == 0;
        sums_micro(rows, s);
    }
}

static inline void sums_panel(float *c, size_t ldc, const uint8_t *a, size_t lda,
                              const struct weight *w, int m, int tile, int n_tiles)
{
    _Alignas(64) struct sums_block b;
    const struct lanes_quant q = lanes_quant_of(w, tile);
    const int block = q.n_groups == 1 ? SUMS_COLUMNS : SUMS_GROUPED;
    const int most = fused_rows(m, SUMS_MOST);
    struct sums_args s = {.ldc = ldc, .lda = lda};
    for (int from = 0; from < w->k; from += block) {
        const int count = w->k - from < block ? w->k - from : block;
        for (int t = 0; t < n_tiles; t++) {
            sums_decode(&b, &q, t, from, count);
        }
        for (int row = 0; row < m; row += most) {
            const int rows = m - row < most ? m - row : most;
            s.row = a + (size_t)row * lda;
            if (SUMS_PAIRED) {
                sums_pair_rows(b.pairs, s.row + from, lda, rows, count);
            }
            for (int t = 0; t < n_tiles; t++) {
                s.c = c + (size_t)row * ldc + t * TILE_N;
                sums_tile(&s, &b, &q, (const int8_t *)s.row + from, t, rows, from, count);
            }
        }
    }
}

#endif
