/* SPDX-License-Identifier: Apache-2.0 */
/* NEON with DotProd, I8MM and BF16: products of bf16 rows with bf16 tiles, and which panel is whose.
 *
 * Up to six rows pass over the whole of K at once; more pass over blocks of K of four tiles, which
 * stay in the L1 cache. */
#include "kernels/arm/neonbf16_micro.h"

#include "kernels/arm/neon.h"
#include "kernels/fused.h"

#define BLOCK_PAIRS  64
#define AHEAD_PAIRS  16
#define LINE_NUMBERS 32

static __attribute__((noinline)) void rows_of(int n_rows, const struct chain_args *s)
{
    ROW_COUNTS(n_rows, chain_rows, s)
}

static __attribute__((noinline)) void one_row(const struct chain_args *s, int n_tiles)
{
    chain_tiles(s, n_tiles, AHEAD_PAIRS * LINE_NUMBERS);
}

static void panel_bf16(float *c, size_t ldc, const uint16_t *a, size_t lda, const struct weight *w,
                       int m, int tile, int n_tiles)
{
    const int pairs = w->k / 2, most = fused_rows(m, MICRO_ROWS);
    const int block = m <= MICRO_ROWS ? pairs : BLOCK_PAIRS;
    struct chain_args s = {
        .ldc = ldc, .lda = lda, .line = LINE_NUMBERS, .tile = (size_t)pairs * LINE_NUMBERS};
    for (int from = 0; from < pairs; from += block) {
        s.pairs = pairs - from < block ? pairs - from : block;
        s.is_first = from == 0;
        for (int row = 0; row < m; row += most) {
            const int rows = m - row < most ? m - row : most;
            s.a = a + (size_t)row * lda + (size_t)from * 2;
            s.b = (const uint16_t *)(const void *)fused_tile(w, tile) + (size_t)from * LINE_NUMBERS;
            s.c = c + (size_t)row * ldc;
            if (rows == 1) {
                one_row(&s, n_tiles);
                continue;
            }
            for (int t = 0; t < n_tiles; t++, s.b += s.tile, s.c += TILE_N) {
                rows_of(rows, &s);
            }
        }
    }
}

/* fp32 products are NEON's, and quantized ones of columns in another order or with offsets beside
 * activations as they are. */
static int is_own(const struct weight *w, enum act_type t)
{
    if (!weight_is_quantized(w)) {
        return w->format == WEIGHT_BF16 && t == ACT_BF16;
    }
    return w->input != INPUT_ACT || (t == ACT_BF16 && w->order == NULL && !w->has_offset);
}

static void panel(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                  int tile, int n_tiles, const void *next)
{
    if (w->format == WEIGHT_BF16) {
        panel_bf16(c, ldc, a, lda, w, m, tile, n_tiles);
    } else if (w->input == INPUT_I8) {
        neonbf16_sums(c, ldc, a, lda, w, m, tile, n_tiles, next);
    } else {
        neonbf16_chains(c, ldc, a, lda, w, m, tile, n_tiles);
    }
}

NEON_FUSED(bf16, panel, 2)
NEON_FUSED(f32, panel, 4)
OWN_PRODUCTS(neonbf16, neon, bf16, ACT_BF16)
OWN_PRODUCTS(neonbf16, neon, f32, ACT_F32)
