/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products with fp32 chains on 16 lanes: fp32 activations (bf16 ones are widened block by
 * block into a buffer on the stack) times bf16 or fp32 tiles, two FMAs per pair of K.
 *
 * A loop keeps up to V16_ROWS rows x 1 tile in named accumulators; a single row takes 4 tiles at
 * once instead, which are 4 independent chains and 4 memory streams. */
#ifndef TERN_KERNELS_LANES_GEMM_H
#define TERN_KERNELS_LANES_GEMM_H

#include "kernels/fused.h"
#include "kernels/lanes/lanes.h"

#define LANES_BLOCK_PAIRS 128
#define LANES_AHEAD_BYTES 1536
#define LANES_DECODED     WEIGHT_FORMAT_COUNT /* fp32, a pair's even elements, then its odd ones */

struct lanes_tile {
    float *c;
    size_t ldc;
    const float *a;
    size_t lda;
    const char *b;
    size_t tile_bytes; /* to the next tile, for lanes_row */
    int pairs, is_first;
};

LANES_INLINE void lanes_line(const char *b, int j, v16 *even, v16 *odd, enum weight_format f)
{
    if (f == WEIGHT_BF16) {
        v16_pair_bf16((const uint16_t *)(const void *)b + (size_t)j * 32, even, odd);
    } else if (f == LANES_DECODED) {
        *even = v16_load((const float *)(const void *)b + (size_t)j * 32);
        *odd = v16_load((const float *)(const void *)b + (size_t)j * 32 + 16);
    } else {
        v16_pair_f32((const float *)(const void *)b + (size_t)j * 32, even, odd);
    }
}

LANES_INLINE v16 lanes_step(v16 acc, const float *a, v16 even, v16 odd)
{
    return v16_fma(v16_set1(a[0]), even, v16_fma(v16_set1(a[1]), odd, acc));
}

/* One row, four tiles; b and c of a missing tile repeat tile 0. */
LANES_INLINE void lanes_row(const struct lanes_tile *s, int n_tiles, enum weight_format f)
{
    const size_t o1 = n_tiles > 1 ? 1 : 0, o2 = n_tiles > 2 ? 2 : 0, o3 = n_tiles > 3 ? 3 : 0;
    const char *b0 = s->b, *b1 = b0 + o1 * s->tile_bytes, *b2 = b0 + o2 * s->tile_bytes,
               *b3 = b0 + o3 * s->tile_bytes;
    float *const c = s->c;
    const float *a = s->a;
    const size_t line_bytes = f == WEIGHT_BF16 ? 64 : 128;
    v16 c0, c1, c2, c3, even, odd;
    c0 = c1 = c2 = c3 = v16_zero();
    if (!s->is_first) {
        c0 = v16_load(c);
        c1 = v16_load(c + 16 * o1);
        c2 = v16_load(c + 16 * o2);
        c3 = v16_load(c + 16 * o3);
    }
    for (int j = 0; j < s->pairs; j++) {
        const size_t ahead = (size_t)j * line_bytes + LANES_AHEAD_BYTES;
        lanes_line(b0, j, &even, &odd, f);
        v16_prefetch(b0 + ahead);
        c0 = lanes_step(c0, a + 2 * j, even, odd);
        lanes_line(b1, j, &even, &odd, f);
        v16_prefetch(b1 + ahead);
        c1 = lanes_step(c1, a + 2 * j, even, odd);
        lanes_line(b2, j, &even, &odd, f);
        v16_prefetch(b2 + ahead);
        c2 = lanes_step(c2, a + 2 * j, even, odd);
        lanes_line(b3, j, &even, &odd, f);
        v16_prefetch(b3 + ahead);
        c3 = lanes_step(c3, a + 2 * j, even, odd);
    }
    v16_store(c, c0);
    v16_store(c + 16 * o1, c1);
    v16_store(c + 16 * o2, c2);
    v16_store(c + 16 * o3, c3);
}

/* n_rows rows (a constant), one tile. */
LANES_INLINE void lanes_rows(const struct lanes_tile *s, const int n_rows, enum weight_format f)
{
    const size_t lda = s->lda, ldc = s->ldc;
    const float *const a = s->a;
    float *const c = s->c;
    v16 c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, even, odd;
    c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = c8 = c9 = c10 = c11 = v16_zero();
#define EACH_ROW(DO)                                                                               \
    DO(0, c0)                                                                                      \
    if (n_rows > 1) {                                                                              \
        DO(1, c1)                                                                                  \
    }                                                                                              \
    if (n_rows > 2) {                                                                              \
        DO(2, c2)                                                                                  \
    }                                                                                              \
    if (n_rows > 3) {                                                                              \
        DO(3, c3)                                                                                  \
    }                                                                                              \
    if (n_rows > 4) {                                                                              \
        DO(4, c4)                                                                                  \
    }                                                                                              \
    if (n_rows > 5) {                                                                              \
        DO(5, c5)                                                                                  \
    }                                                                                              \
    if (n_rows > 6) {                                                                              \
        DO(6, c6)                                                                                  \
    }                                                                                              \
    if (n_rows > 7) {                                                                              \
        DO(7, c7)                                                                                  \
    }                                                                                              \
    if (n_rows > 8) {                                                                              \
        DO(8, c8)                                                                                  \
    }                                                                                              \
    if (n_rows > 9) {                                                                              \
        DO(9, c9)                                                                                  \
    }                                                                                              \
    if (n_rows > 10) {                                                                             \
        DO(10, c10)                                                                                \
    }                                                                                              \
    if (n_rows > 11) {                                                                             \
        DO(11, c11)                                                                                \
    }
#define LOAD(row, x)  x = v16_load(c + row * ldc);
#define STORE(row, x) v16_store(c + row * ldc, x);
#define STEP(row, x)  x = lanes_step(x, a + row * lda + 2 * (size_t)j, even, odd);
    if (!s->is_first) {
        EACH_ROW(LOAD)
    }
    for (int j = 0; j < s->pairs; j++) {
        lanes_line(s->b, j, &even, &odd, f);
        EACH_ROW(STEP)
    }
    EACH_ROW(STORE)
#undef EACH_ROW
#undef LOAD
#undef STORE
#undef STEP
}

LANES_INLINE void lanes_rows_any(const struct lanes_tile *s, int n_rows, enum weight_format f)
{
    if (n_rows == V16_ROWS) {
        lanes_rows(s, V16_ROWS, f);
        return;
    }
    struct lanes_tile part = *s;
    for (int done = 0, n = 0; done < n_rows; done += n) {
        n = n_rows - done;
        n = V16_ROWS > 8 && n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
        part.a = s->a + (size_t)done * s->lda;
        part.c = s->c + (size_t)done * s->ldc;
        if (V16_ROWS > 8 && n == 8) {
            lanes_rows(&part, 8, f);
        } else if (n == 4) {
            lanes_rows(&part, 4, f);
        } else if (n == 2) {
            lanes_rows(&part, 2, f);
        } else {
            lanes_rows(&part, 1, f);
        }
    }
}

/* See struct fused. `t` and the weight format are constants after inlining. */
LANES_INLINE void lanes_panel_of(float *c, size_t ldc, const void *a, size_t lda,
                                 const struct weight *w, int m, int tile, int n_tiles,
                                 enum act_type t, enum weight_format f)
{
    _Alignas(64) float wide[V16_ROWS * LANES_BLOCK_PAIRS * 2];
    const int pairs = w->k / 2;
    const size_t line_bytes = f == WEIGHT_BF16 ? 64 : 128, tile_bytes = (size_t)pairs * line_bytes;
    struct lanes_tile s = {.ldc = ldc, .tile_bytes = tile_bytes};
    for (int row = 0; row < m; row += V16_ROWS) {
        const int rows = m - row < V16_ROWS ? m - row : V16_ROWS;
        for (int from = 0; from < pairs; from += LANES_BLOCK_PAIRS) {
            s.pairs = pairs - from < LANES_BLOCK_PAIRS ? pairs - from : LANES_BLOCK_PAIRS;
            s.is_first = from == 0;
            s.b = fused_tile(w, tile) + (size_t)from * line_bytes;
            s.c = c + (size_t)row * ldc;
            const size_t at = (size_t)row * lda + (size_t)from * 2;
            if (t == ACT_F32) {
                s.a = (const float *)a + at;
                s.lda = lda;
            } else {
                s.a = wide;
                s.lda = LANES_BLOCK_PAIRS * 2;
                for (int i = 0; i < rows; i++) {
                    const uint16_t *x = (const uint16_t *)a + at + (size_t)i * lda;
                    for (int k = 0; k < s.pairs * 2; k += 16) {
                        v16_store(wide + (size_t)i * s.lda + k,
                                  lanes_load(x, (size_t)k, lanes_count(k, s.pairs * 2), t));
                    }
                }
            }
            if (rows == 1) {
                lanes_row(&s, n_tiles, f);
                continue;
            }
            for (int i = 0; i < n_tiles; i++) {
                lanes_rows_any(&s, rows, f);
                s.b += tile_bytes;
                s.c += TILE_N;
            }
        }
    }
}

LANES_INLINE void lanes_panel(float *c, size_t ldc, const void *a, size_t lda,
                              const struct weight *w, int m, int tile, int n_tiles, enum act_type t)
{
    if (w->format == WEIGHT_BF16) {
        lanes_panel_of(c, ldc, a, lda, w, m, tile, n_tiles, t, WEIGHT_BF16);
    } else {
        lanes_panel_of(c, ldc, a, lda, w, m, tile, n_tiles, t, WEIGHT_F32);
    }
}

#endif
