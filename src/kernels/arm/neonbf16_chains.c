/* SPDX-License-Identifier: Apache-2.0 */
/* Products of quantized weights and bf16 or fp8 activations with BFMLAL. The number that a code
 * stands for is exact in bf16: a block of columns of a panel is decoded to lines of pairs, which
 * stay in the L1 cache while rows pass over them. Each group's chain is scaled into c. */
#include "kernels/arm/neon_v16.h"

#include "kernels/arm/neon.h"
#include "kernels/arm/neonbf16_micro.h"
#include "kernels/lanes/quant.h"

#define LINE_NUMBERS 32 /* of 16 rows x one pair */
#define BLOCK_TILE   (QUANT_COLUMNS * TILE_N)

/* ---- decoding ---- */

/* The upper halves of eight fp32 numbers, which are all there is of them. */
MICRO_INLINE uint16x8_t upper_halves(float32x4_t x, float32x4_t y)
{
    return vuzp2q_u16(vreinterpretq_u16_f32(x), vreinterpretq_u16_f32(y));
}

/* Codes in 16 bits to bf16; zero is of the same four rows, or f8's nothing. */
MICRO_INLINE uint16x8_t bf16_of_codes(uint16x8_t x, int16x8_t zero, const enum weight_format f)
{
    if (f == WEIGHT_F8_E4M3 || f == WEIGHT_F8_E5M2) {
        const int is_e4m3 = f == WEIGHT_F8_E4M3; /* the f16 with the same fields is 2^8 smaller */
        const uint16x8_t magnitude = vandq_u16(x, vdupq_n_u16(0x7f));
        const uint16x8_t sign = vshlq_n_u16(vandq_u16(x, vdupq_n_u16(0x80)), 8);
        const float16x8_t h = vreinterpretq_f16_u16(
            is_e4m3 ? vorrq_u16(sign, vshlq_n_u16(magnitude, 7)) : vshlq_n_u16(x, 8));
        const float32x4_t low = vcvt_f32_f16(vget_low_f16(h)), high = vcvt_high_f32_f16(h);
        const float by = is_e4m3 ? 256.0f : 1.0f;
        return is_e4m3 ? upper_halves(vmulq_n_f32(low, by), vmulq_n_f32(high, by))
                       : upper_halves(low, high);
    }
    const int16x8_t v = vsubq_s16(vreinterpretq_s16_u16(x), zero);
    return upper_halves(vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))),
                        vcvtq_f32_s32(vmovl_high_s16(v)));
}

struct zeros {
    int16x8_t rows[4]; /* of four rows, twice each */
};

static inline struct zeros zeros_of(const struct lanes_quant *q, int tile, int group)
{
    const n16 z = lanes_quant_zero(q, tile, group), both = n16_or(z, n16_shl(z, 16));
    return (struct zeros){{vreinterpretq_s16_s32(both.a), vreinterpretq_s16_s32(both.b),
                           vreinterpretq_s16_s32(both.c), vreinterpretq_s16_s32(both.d)}};
}

/* Units of eight columns, four lines of pairs each; zero points don't change here. */
MICRO_INLINE void units_as(uint16_t *out, const uint8_t *p, int n_units, const struct zeros *zero,
                           const enum weight_format f)
{
    const size_t unit = f == WEIGHT_I4 ? 64 : 128;
    const uint16x8_t mask = vdupq_n_u16(f == WEIGHT_I4 ? 15 : 255);
    for (int u = 0; u < n_units; u++, p += unit, out += 4 * LINE_NUMBERS) {
        v16_prefetch(p + LANES_AHEAD_BYTES);
        if (f != WEIGHT_I4) {
            v16_prefetch(p + LANES_AHEAD_BYTES + 64);
        }
#define QUARTER(i)                                                                                 \
    {                                                                                              \
        const uint16x8_t a_ = vreinterpretq_u16_u8(vld1q_u8(p + 16 * i));                          \
        const uint16x8_t b_ =                                                                      \
            f == WEIGHT_I4 ? vshrq_n_u16(a_, 4) : vreinterpretq_u16_u8(vld1q_u8(p + 64 + 16 * i)); \
        const int16x8_t z_ = zero->rows[i];                                                        \
        vst1q_u16(out + 8 * i, bf16_of_codes(vandq_u16(a_, mask), z_, f));                         \
        vst1q_u16(out + 8 * i + LINE_NUMBERS, bf16_of_codes(vandq_u16(b_, mask), z_, f));          \
        vst1q_u16(out + 8 * i + 2 * LINE_NUMBERS,                                                  \
                  bf16_of_codes(vandq_u16(vshrq_n_u16(a_, 8), mask), z_, f));                      \
        vst1q_u16(out + 8 * i + 3 * LINE_NUMBERS,                                                  \
                  bf16_of_codes(vandq_u16(vshrq_n_u16(b_, 8), mask), z_, f));                      \
    }
        QUARTER(0)
        QUARTER(1)
        QUARTER(2)
        QUARTER(3)
#undef QUARTER
    }
}

/* Columns from .. from + count of a tile. */
static __attribute__((noinline)) void decode(uint16_t *out, const struct lanes_quant *q, int tile,
                                             int from, int count)
{
    _Alignas(64) uint8_t bytes[BLOCK_TILE];
    const enum weight_format f = q->w->format;
    const int is_coded = lanes_is_coded(q->w);
    if (is_coded) {
        lanes_bytes(bytes, q, tile, from, count);
    }
    for (int at = 0; at < count; at += q->group) {
        const int left = count - at, n_units = (left < q->group ? left : q->group) / 8;
        const struct zeros zero = zeros_of(q, tile, (from + at) / q->group);
        uint16_t *const to = out + at * TILE_N;
        const uint8_t *const p = lanes_codes(q, tile, from + at);
        if (is_coded) {
            units_as(to, bytes + at * TILE_N, n_units, &zero, WEIGHT_I8);
        } else if (f == WEIGHT_I8) {
            units_as(to, p, n_units, &zero, WEIGHT_I8);
        } else if (f == WEIGHT_I4) {
            units_as(to, p, n_units, &zero, WEIGHT_I4);
        } else if (f == WEIGHT_F8_E4M3) {
            units_as(to, p, n_units, &zero, WEIGHT_F8_E4M3);
        } else {
            units_as(to, p, n_units, &zero, WEIGHT_F8_E5M2);
        }
    }
}

/* ---- the panel ---- */

static __attribute__((noinline)) void rows_of(int n_rows, const struct chain_args *s)
{
    ROW_COUNTS(n_rows, chain_rows, s)
}

static __attribute__((noinline)) void one_row(const struct chain_args *s, int n_tiles)
{
    chain_tiles(s, n_tiles, 0);
}

/* The decoded block times up to MICRO_ROWS rows, group by group. */
static void block_rows(float *c, size_t ldc, const uint16_t *decoded, const uint8_t *row,
                       size_t row_bytes, const struct lanes_quant *q, int rows, int n_tiles,
                       int from, int count)
{
    _Alignas(64) float part[MICRO_ROWS * PANEL_TILES * TILE_N];
    const int is_one = q->n_groups == 1, step = is_one ? count : q->group;
    struct chain_args s = {.ldc = is_one ? ldc : PANEL_TILES * TILE_N,
                           .lda = row_bytes / 2,
                           .line = LINE_NUMBERS,
                           .tile = BLOCK_TILE,
                           .is_first = !is_one || from == 0};
    for (int at = 0; at < count; at += step) {
        float *const to = is_one ? c : part;
        s.a = (const uint16_t *)(const void *)row + from + at;
        s.pairs = (count - at < step ? count - at : step) / 2;
        s.b = decoded + at * TILE_N;
        s.c = to;
        if (rows == 1) {
            one_row(&s, n_tiles);
        }
        for (int t = 0; rows > 1 && t < n_tiles; t++, s.b += BLOCK_TILE, s.c += TILE_N) {
            rows_of(rows, &s);
        }
        if (!is_one || from + count == q->w->k) {
            lanes_scale_chains(c, ldc, to, s.ldc, q, (from + at) / q->group, row, row_bytes, rows,
                               n_tiles);
        }
    }
}

void neonbf16_chains(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                     int tile, int n_tiles)
{
    _Alignas(64) uint16_t decoded[PANEL_TILES * BLOCK_TILE];
    const struct lanes_quant q = lanes_quant_of(w, tile);
    const size_t row_bytes = w->input == INPUT_ACT ? lda * 2 : lda;
    const int most = fused_rows(m, MICRO_ROWS);
    for (int from = 0; from < w->k; from += QUANT_COLUMNS) {
        const int count = w->k - from < QUANT_COLUMNS ? w->k - from : QUANT_COLUMNS;
        for (int t = 0; t < n_tiles; t++) {
            decode(decoded + t * BLOCK_TILE, &q, t, from, count);
        }
        for (int row = 0; row < m; row += most) {
            block_rows(c + (size_t)row * ldc, ldc, decoded,
                       (const uint8_t *)a + (size_t)row * row_bytes, row_bytes, &q,
                       m - row < most ? m - row : most, n_tiles, from, count);
        }
    }
}
