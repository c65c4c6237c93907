/* SPDX-License-Identifier: Apache-2.0 */
/* Few int8 rows by codes of 6 and 4 bits with scales in two levels (GGUF's K-quants), decoded in
 * registers: the pace of DRAM, where avx512bf16_coded.c, made for more rows, writes bytes and reads
 * them again. Scales in front of every 512 columns make one stream of a tile (kernels.h). Four
 * quarters of the tiles side by side, sums exact in int32, and the chains of up to three rows in
 * registers over a whole tile, as in avx512bf16_sums.c. */
#include "kernels/x86/avx512_v16.h"

#include "kernels/fused.h"
#include "kernels/lanes/quant.h"
#include "kernels/x86/avx512bf16_codes.h"
#include "kernels/x86/avx512bf16_dot.h"
#include "kernels/x86/x86.h"

#define AHEAD_BYTES 1536 /* prefetch distance of a stream of codes */

struct levels_args {
    float *c;
    size_t ldc, col[PANEL_TILES];
    const uint8_t *row; /* of quantize() */
    size_t lda;
    const struct lanes_quant *q;
    size_t tile[PANEL_TILES]; /* bytes from q->tiles; a missing one is the first */
};

/* Sixteen rows' sub-scales or sub-offsets times those of the level above. */
static inline __attribute__((always_inline)) v16 level(const uint8_t *sub, const float *above)
{
    return v16_mul(n16_float(n16_sub(n16_load_bytes(sub), n16_set1(128))), v16_load(above));
}

static inline __attribute__((always_inline)) void micro(const int n_rows,
                                                        const enum weight_format f,
                                                        const int has_offset,
                                                        const struct levels_args *s)
{
    const struct lanes_quant q = *s->q;
    const int columns = f == WEIGHT_I6 ? 16 : 8, k_end = q.w->k;
    const size_t unit = (size_t)columns * q.at.column_bytes, lda = s->lda;
    const uint8_t *b0 = q.tiles + s->tile[0], *b1 = q.tiles + s->tile[1];
    const uint8_t *b2 = q.tiles + s->tile[2], *b3 = q.tiles + s->tile[3];
    const uint8_t *u0 = b0, *u1 = b1, *u2 = b2, *u3 = b3; /* sections */
    const uint8_t *a0 = s->row, *a1 = a0 + lda, *a2 = a1 + lda;
    const uint8_t *sums = s->row + q.sums_at, *scales = s->row + q.sa_at;
    const __m512i bias = _mm512_set1_epi32(f == WEIGHT_I6 ? -32 : has_offset ? 0 : -8);
    const struct levels_args *to = s;
    _Alignas(64) float above[PANEL_TILES][TILE_N], above_offset[PANEL_TILES][TILE_N];
    __m512i c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
    v16 f00, f01, f02, f03, f10, f11, f12, f13, f20, f21, f22, f23;
    f00 = f01 = f02 = f03 = f10 = f11 = f12 = f13 = f20 = f21 = f22 = f23 = _mm512_setzero_ps();

#define LINES(OF, i)                                                                               \
    {                                                                                              \
        const __m512i w0 = OF(b0, i), w1 = OF(b1, i), w2 = OF(b2, i), w3 = OF(b3, i);              \
        ROWS_3X4(GROUP_STEP)                                                                       \
        at += 4;                                                                                   \
    }
#define OFFSET(o_, y) y = _mm512_fmadd_ps(sum_, _mm512_mul_ps(o_, sa_), y);
#define ADD_OFFSET(row_, x0, x1, x2, x3, y0, y1, y2, y3, a)                                        \
    {                                                                                              \
        const v16 sa_ = v16_set1(float_at(scales + row_ * lda));                                   \
        const v16 sum_ = v16_set1((float)int_at(sums + row_ * lda));                               \
        OFFSET(o0, y0)                                                                             \
        OFFSET(o1, y1)                                                                             \
        OFFSET(o2, y2)                                                                             \
        OFFSET(o3, y3)                                                                             \
    }
    size_t at = 0;              /* column of the rows */
    size_t ahead = AHEAD_BYTES; /* how far off the next line to fetch is */
    for (int group = 0, k = 0, left = 0; k < k_end; group++, left--, sums += 4, scales += 4) {
        const int end = k_end - k < q.group ? k_end : k + q.group;
        const size_t place = weight_group_in_section(&q.at, group) * TILE_N;
        if (place == 0) {
            u0 = b0;
            u1 = b1;
            u2 = b2;
            u3 = b3;
            b0 += q.at.codes;
            b1 += q.at.codes;
            b2 += q.at.codes;
            b3 += q.at.codes;
            ahead = AHEAD_BYTES - q.at.codes;
        }
        if (left == 0) {
            const uint8_t *const u[PANEL_TILES] = {u0, u1, u2, u3};
            const size_t i = weight_super_in_section(&q.at, group, q.super_groups) * TILE_N;
            for (int t = 0; t < PANEL_TILES; t++) {
                v16_store(above[t], lanes_floats(u[t] + q.at.supers, i, q.w->scale_type));
                if (has_offset) {
                    v16_store(above_offset[t],
                              lanes_floats(u[t] + q.at.super_offsets, i, q.w->scale_type));
                }
            }
            left = q.super_groups;
        }
        if (ahead < AHEAD_BYTES) { /* what leads a section goes by one line a group */
            lanes_fetch_four(b0, b1, b2, b3, ahead);
            ahead += 64;
        }
        ROWS_3X4(GROUP_START)
        for (; k < end; k += columns, b0 += unit, b1 += unit, b2 += unit, b3 += unit) {
            lanes_fetch_four(b0, b1, b2, b3, ahead);
            if (f == WEIGHT_I6) {
                lanes_fetch_four(b0, b1, b2, b3, ahead + 64);
                lanes_fetch_four(b0, b1, b2, b3, ahead + 128);
                LINES(six_bits, 0)
                LINES(six_bits, 1)
                LINES(six_bits, 2)
                LINES(six_bits, 3)
            } else {
                LINES(four_bits, 0)
                LINES(four_bits, 1)
            }
        }
        const size_t sub = q.at.scales + place, sub_offset = q.at.offsets + place;
        const v16 s0 = level(u0 + sub, above[0]), s1 = level(u1 + sub, above[1]);
        const v16 s2 = level(u2 + sub, above[2]), s3 = level(u3 + sub, above[3]);
        ROWS_3X4(GROUP_SCALE)
        if (has_offset) {
            const v16 o0 = level(u0 + sub_offset, above_offset[0]);
            const v16 o1 = level(u1 + sub_offset, above_offset[1]);
            const v16 o2 = level(u2 + sub_offset, above_offset[2]);
            const v16 o3 = level(u3 + sub_offset, above_offset[3]);
            ROWS_3X4(ADD_OFFSET)
        }
    }
    /* gcc would keep twelve addresses through the loop */
    __asm__("" : "+r"(to));
    ROWS_3X4(GROUP_STORE)
#undef LINES
#undef OFFSET
#undef ADD_OFFSET
}

#define MICRO(name, f, has_offset)                                                                 \
    static __attribute__((noinline)) void name(int n_rows, const struct levels_args *s)            \
    {                                                                                              \
        GROUP_COUNTS(n_rows, micro, f, has_offset, s)                                              \
    }
MICRO(i6_plain, WEIGHT_I6, 0)
MICRO(i6_offsets, WEIGHT_I6, 1)
MICRO(i4_plain, WEIGHT_I4, 0)
MICRO(i4_offsets, WEIGHT_I4, 1)

void avx512bf16_levels_few(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                           int m, int tile, int tile_end)
{
    static void (*const micros[2][2])(int, const struct levels_args *) = {{i4_plain, i4_offsets},
                                                                          {i6_plain, i6_offsets}};
    struct lanes_quant q = lanes_quant_of(w, tile);
    struct levels_args s = {.ldc = ldc, .lda = lda, .q = &q};
    const int n_tiles = tile_end - tile, quarter = (n_tiles + PANEL_TILES - 1) / PANEL_TILES;
    const int most = fused_rows(m, GROUP_ROWS);
    for (int i = 0; i < quarter; i++, q.tiles += q.tile_bytes) {
        for (int t = 0; t < PANEL_TILES; t++) {
            const size_t at = t * quarter + i < n_tiles ? (size_t)(t * quarter) : 0;
            s.tile[t] = at * q.tile_bytes;
            s.col[t] = at * TILE_N;
        }
        for (int row = 0; row < m; row += most) {
            s.c = c + (size_t)row * ldc + (size_t)i * TILE_N;
            s.row = (const uint8_t *)a + (size_t)row * lda;
            micros[w->format == WEIGHT_I6][w->has_offset != 0](m - row < most ? m - row : most, &s);
        }
    }
}
