/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix products of this level: bf16 x bf16 here, quantized weights in avx512bf16_sums.c,
 * avx512bf16_coded.c and avx512bf16_chains.c.
 *
 * Up to 6 rows: four weight streams pass once, from DRAM, with a prefetch some lines ahead of each.
 * More rows are split in even groups; K is cut in blocks whose weights (32 KB) stay in the L1 cache
 * while the groups pass over them, the chains wait in c meanwhile, and the groups share the work of
 * prefetching the next block, so that DRAM reads go on while arithmetic runs. */
#include "kernels/x86/avx512bf16_micro.h"
#include "kernels/x86/x86.h"

#define BLOCK_PAIRS 128
#define SHORT_PAIRS                                                                                \
    64 /* K block of few rows, where this block and the next must share the L1 cache */
#define FEW_ROWS    36
#define CODED_ROWS  96 /* of is_grouped() matrices */
#define AHEAD_LINES 16 /* prefetch distance of the streaming loop, in lines of each stream */

static __attribute__((noinline)) void micro_ahead4(int n_rows, const struct micro_args *s)
{
    micro_rows(n_rows, 4, s);
}

static __attribute__((noinline)) void micro_ahead1(int n_rows, const struct micro_args *s)
{
    micro_rows(n_rows, 1, s);
}

/* At most MICRO_ROWS rows: quarters of the tiles side by side, each one long run. A prefetch that
 * passes the end of a quarter does no harm. */
static void few_bf16(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                     int tile, int tile_end)
{
    const size_t pairs = (size_t)w->k / 2, tile_bytes = pairs * 64;
    const int quarter = (tile_end - tile + PANEL_TILES - 1) / PANEL_TILES;
    struct micro_args s = {
        .ldc = ldc, .a = a, .lda = lda, .pairs = pairs, .is_first = 1, .c = c, .ahead_step = 64};
    for (int i = 0; i < quarter; i++) {
        for (int t = 0; t < PANEL_TILES; t++) {
            const int at = tile + t * quarter + i < tile_end ? t * quarter + i : i;
            s.col[t] = (size_t)at * TILE_N;
            s.b[t] = fused_tile(w, tile) + (size_t)at * tile_bytes;
            s.ahead[t] = s.b[t] + AHEAD_LINES * 64;
        }
        micro_ahead4(m, &s);
    }
}

/* Part i of n of the next block's lines, spread over the pairs of this one. */
static void share_ahead(struct micro_args *s, const char *const ahead[PANEL_TILES], int i, int n)
{
    const size_t first = s->pairs * (size_t)i / (size_t)n;
    for (int t = 0; t < PANEL_TILES; t++) {
        s->ahead[t] = ahead[t] + first * 64;
    }
    s->ahead_step = (64 + (size_t)n - 1) / (size_t)n;
}

/* The rows of the next group, which the hardware can't guess: short runs, far apart. */
static void fetch_rows(const uint16_t *a, size_t lda, int n_rows, size_t pairs)
{
    for (int i = 0; i < n_rows; i++) {
        for (size_t k = 0; k < pairs * 2; k += 32) {
            _mm_prefetch((const char *)(a + (size_t)i * lda + k), _MM_HINT_T0);
        }
    }
}

static void panel(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                  int tile, int n_tiles, const void *next)
{
    const size_t pairs = (size_t)w->k / 2, tile_bytes = pairs * 64;
    const char *base = fused_tile(w, tile);
    struct micro_args s = {.ldc = ldc, .lda = lda, .pairs = pairs};
    for (int t = 0; t < PANEL_TILES; t++) {
        s.col[t] = t < n_tiles ? (size_t)t * TILE_N : 0;
        s.b[t] = t < n_tiles ? base + (size_t)t * tile_bytes : base;
    }
    const int n_groups = (m + MICRO_ROWS - 1) / MICRO_ROWS;
    const size_t block_pairs = m <= FEW_ROWS ? SHORT_PAIRS : BLOCK_PAIRS;
    for (size_t from = 0; from < pairs; from += block_pairs) {
        s.pairs = pairs - from < block_pairs ? pairs - from : block_pairs;
        s.is_first = from == 0;
        const char *ahead[PANEL_TILES];
        for (int t = 0; t < PANEL_TILES; t++) {
            ahead[t] = from + s.pairs < pairs ? s.b[t] + s.pairs * 64
                       : next                 ? (const char *)next + (size_t)t * tile_bytes
                                              : s.b[t];
        }
        for (int g = 0; g < n_groups; g++) {
            int row = (int)((int64_t)m * g / n_groups),
                rows = (int)((int64_t)m * (g + 1) / n_groups) - row;
            s.c = c + (size_t)row * ldc;
            s.a = (const uint16_t *)a + (size_t)row * lda + from * 2;
            if (g + 1 < n_groups) {
                fetch_rows(s.a + (size_t)rows * lda, lda, rows, s.pairs);
            }
            if (n_groups < PANEL_TILES) {
                share_ahead(&s, ahead, g, n_groups);
                micro_ahead4(rows, &s);
            } else {
                const int t = g % PANEL_TILES;
                share_ahead(&s, ahead, g / PANEL_TILES,
                            (n_groups - t + PANEL_TILES - 1) / PANEL_TILES);
                s.ahead[0] = s.ahead[t];
                micro_ahead1(rows, &s);
            }
        }
        for (int t = 0; t < PANEL_TILES; t++) {
            s.b[t] += s.pairs * 64;
        }
    }
}

/* Codes and scales that are put together first. */
static int is_coded(const struct weight *w)
{
    return w->format == WEIGHT_I6 || w->super != 0;
}

/* Whether this level has its own panel: not for fp32 products, columns in another order, what is put
 * together first beside activations as they are, 8-bit zero points. */
static int is_own(const struct weight *w, enum act_type t)
{
    if (weight_is_quantized(w) && is_coded(w)) {
        return w->super != 0 && w->input == INPUT_I8;
    }
    if (w->format == WEIGHT_I8 && w->has_zero) {
        return 0;
    }
    return w->format == WEIGHT_BF16  ? t == ACT_BF16
           : !weight_is_quantized(w) ? 0
           : w->input != INPUT_ACT   ? 1
                                     : t == ACT_BF16 && w->order == NULL;
}

/* Whether many rows repay codes that are made bytes first: where those are read again, or zero points
 * would cost every row a multiplication. */
static int is_grouped(const struct weight *w)
{
    return w->input == INPUT_I8 && weight_groups(w) > 1 && (w->format == WEIGHT_I8 || w->has_zero);
}

static void any_panel(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                      int m, int tile, int n_tiles, const void *next)
{
    if (w->format == WEIGHT_BF16) {
        panel(c, ldc, a, lda, w, m, tile, n_tiles, next);
    } else if (is_coded(w) || (is_grouped(w) && m >= CODED_ROWS)) {
        avx512bf16_coded(c, ldc, a, lda, w, m, tile, n_tiles, next);
    } else if (w->input == INPUT_I8) {
        avx512bf16_sums(c, ldc, a, lda, w, m, tile, n_tiles, next);
    } else {
        avx512bf16_chains(c, ldc, a, lda, w, m, tile, n_tiles, next);
    }
}

static void any_few(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                    int tile, int tile_end)
{
    if (is_coded(w) && w->format != WEIGHT_C2) {
        avx512bf16_levels_few(c, ldc, a, lda, w, m, tile, tile_end);
    } else if (is_coded(w)) { /* has panels only */
        for (int t = tile; t < tile_end; t += PANEL_TILES) {
            const int n = tile_end - t < PANEL_TILES ? tile_end - t : PANEL_TILES;
            any_panel(c + (size_t)(t - tile) * TILE_N, ldc, a, lda, w, m, t, n,
                      fused_next(w, t + n, tile_end, 1));
        }
    } else if (w->format == WEIGHT_BF16) {
        few_bf16(c, ldc, a, lda, w, m, tile, tile_end);
    } else if (w->input == INPUT_I8) {
        avx512bf16_sums_few(c, ldc, a, lda, w, m, tile, tile_end);
    } else {
        avx512bf16_chains_few(c, ldc, a, lda, w, m, tile, tile_end);
    }
}

static const struct fused fused_bf16 = {
    any_panel, avx512_swiglu_bf16, avx512_add_bf16, avx512_rope_store_bf16, 2, any_few, MICRO_ROWS};
static const struct fused fused_f32 = {
    any_panel, avx512_swiglu_f32, avx512_add_f32, avx512_rope_store_f32, 4, any_few, MICRO_ROWS};

OWN_PRODUCTS(avx512bf16, avx512, bf16, ACT_BF16)
OWN_PRODUCTS(avx512bf16, avx512, f32, ACT_F32)
