/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix products of one level, put together from two parts: `panel`, which computes chains,
 * and the level's own row operations, which finish them.
 *
 * A panel is up to PANEL_TILES tiles over the whole of K: as many weight streams as the memory
 * likes to serve at once, and small enough (128 KB at K = 1024) to stay in the L2 cache while all
 * rows pass over it, so that weights leave DRAM once whatever M is. The fused forms let the chains
 * of a block of rows land in a buffer on the stack that fits the L1 cache and finish them from
 * there.
 *
 * Few rows are another matter: then DRAM alone sets the pace, and it is fastest when every stream is
 * one long run. `few`, where a level has it, cuts the whole range of tiles in four and walks the
 * quarters side by side.
 *
 * Included by one file per level, with a constant `struct fused`, so that the calls are direct. */
#ifndef TERN_KERNELS_FUSED_H
#define TERN_KERNELS_FUSED_H

#include "kernels/kernels.h"

#define FUSED_ROWS       128 /* rows of a block at most: 128 x 64 floats, 32 KB */
#define FUSED_QKV_FLOATS 16384
#define FUSED_FEW_FLOATS 16384 /* chains of few rows for a whole range of tiles, 64 KB */

struct fused {
    /* Chains of m rows of a against tiles tile .. tile + n_tiles - 1 (n_tiles <= PANEL_TILES) into
     * c. `next` is where the weights continue after this panel (for prefetching), NULL when nothing
     * follows. */
    void (*panel)(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                  int tile, int n_tiles, const void *next);
    void (*swiglu)(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                   int m, int n);
    void (*add)(void *x, size_t ldx, const float *c, size_t ldc, int m, int n);
    void (*rope_store)(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m, int head0,
                       int head1);
    size_t act_bytes;
    /* NULL, or the chains of tiles tile .. tile_end - 1 for at most few_rows rows, in an order of its
     * own. */
    void (*few)(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                int tile, int tile_end);
    int few_rows;
};

static inline int fused_is_few(const struct fused *f, int m)
{
    return f->few != NULL && m <= f->few_rows;
}

/* Tiles at a time that fit FUSED_FEW_FLOATS, when n_tiles are cut in as few even runs as possible.
 * A multiple of `unit`. */
static inline int fused_few_tiles(int m, int n_tiles, int unit)
{
    const int most = FUSED_FEW_FLOATS / TILE_N / m, n_runs = (n_tiles + most - 1) / most;
    return ((n_tiles + n_runs - 1) / n_runs + unit - 1) / unit * unit;
}

static inline const char *fused_tile(const struct weight *w, int tile)
{
    return (const char *)w->data + (size_t)tile * weight_tile_bytes(w);
}

/* Row i of the `a` of a product. */
static inline const void *fused_row(const struct fused *f, const void *a, int i, size_t lda,
                                    const struct weight *w)
{
    return (const char *)a + (size_t)i * lda * (w->input == INPUT_ACT ? f->act_bytes : 1);
}

/* Rows of each block when m rows are cut in as few even blocks as possible. */
static inline int fused_rows(int m, int most)
{
    int n_blocks = (m + most - 1) / most;
    return (m + n_blocks - 1) / n_blocks;
}

static inline const void *fused_next(const struct weight *w, int tile, int tile_end,
                                     int is_last_block)
{
    return is_last_block && tile < tile_end ? fused_tile(w, tile) : NULL;
}

static inline __attribute__((always_inline)) void fused_gemm(const struct fused *f, float *c,
                                                             size_t ldc, const void *a, size_t lda,
                                                             const struct weight *w, int m,
                                                             int tile0, int tile1)
{
    if (fused_is_few(f, m)) {
        f->few(c, ldc, a, lda, w, m, tile0, tile1);
        return;
    }
    for (int tile = tile0; tile < tile1; tile += PANEL_TILES) {
        int n = tile1 - tile < PANEL_TILES ? tile1 - tile : PANEL_TILES;
        f->panel(c + (size_t)(tile - tile0) * TILE_N, ldc, a, lda, w, m, tile, n,
                 fused_next(w, tile + n, tile1, 1));
    }
}

/* The few rows' side of fused_gemm_add and fused_gemm_swiglu. Out of line for its large buffer. */
static __attribute__((noinline, unused)) void fused_few_add(const struct fused *f, void *x,
                                                            size_t ldx, const void *a, size_t lda,
                                                            const struct weight *w, int m,
                                                            int tile0, int tile1)
{
    _Alignas(64) float block[FUSED_FEW_FLOATS];
    const int step = fused_few_tiles(m, tile1 - tile0, 1);
    for (int tile = tile0; tile < tile1; tile += step) {
        const int end = tile1 - tile < step ? tile1 : tile + step;
        const int cols = (w->n < end * TILE_N ? w->n : end * TILE_N) - tile * TILE_N;
        const size_t ld = (size_t)(end - tile) * TILE_N;
        f->few(block, ld, a, lda, w, m, tile, end);
        f->add((char *)x + (size_t)tile * TILE_N * f->act_bytes, ldx, block, ld, m, cols);
    }
}

static __attribute__((noinline, unused)) void fused_few_swiglu(const struct fused *f, void *out,
                                                               size_t ldo, const void *a,
                                                               size_t lda, const struct weight *w,
                                                               int n, int m, int t0, int t1)
{
    _Alignas(64) float block[FUSED_FEW_FLOATS];
    const int step = fused_few_tiles(m, 2 * (t1 - t0), 2) / 2;
    for (int t = t0; t < t1; t += step) {
        const int end = t1 - t < step ? t1 : t + step;
        const size_t ld = (size_t)(end - t) * 2 * TILE_N;
        f->few(block, ld, a, lda, w, m, 2 * t, 2 * end);
        for (int i = t; i < end; i++) {
            const int col = i * TILE_N, cols = n - col < TILE_N ? n - col : TILE_N;
            const float *gate = block + (size_t)(i - t) * 2 * TILE_N;
            f->swiglu((char *)out + (size_t)col * f->act_bytes, ldo, gate, ld, gate + TILE_N, ld, m,
                      cols);
        }
    }
}

static __attribute__((noinline, unused)) void fused_few_qkv(const struct fused *f, const void *a,
                                                            size_t lda, const struct weight *w,
                                                            const struct qkv_rows *r, int m,
                                                            int head0, int head1)
{
    _Alignas(64) float block[FUSED_FEW_FLOATS];
    const int tiles = r->head_dim / TILE_N;
    const int step = fused_few_tiles(m, (head1 - head0) * tiles, tiles) / tiles;
    for (int h = head0; h < head1; h += step) {
        const int end = head1 - h < step ? head1 : h + step;
        const size_t ld = (size_t)((end - h) * r->head_dim);
        f->few(block, ld, a, lda, w, m, h * tiles, end * tiles);
        f->rope_store(block, ld, r, m, h, end);
    }
}

static inline __attribute__((always_inline)) void fused_gemm_add(const struct fused *f, void *x,
                                                                 size_t ldx, const void *a,
                                                                 size_t lda, const struct weight *w,
                                                                 int m, int tile0, int tile1)
{
    if (fused_is_few(f, m)) {
        fused_few_add(f, x, ldx, a, lda, w, m, tile0, tile1);
        return;
    }
    _Alignas(64) float block[FUSED_ROWS * PANEL_TILES * TILE_N];
    const size_t ld = PANEL_TILES * TILE_N;
    const int max_rows = fused_rows(m, FUSED_ROWS);
    for (int tile = tile0; tile < tile1; tile += PANEL_TILES) {
        int n = tile1 - tile < PANEL_TILES ? tile1 - tile : PANEL_TILES;
        int cols = w->n - tile * TILE_N < n * TILE_N ? w->n - tile * TILE_N : n * TILE_N;
        for (int i = 0; i < m; i += max_rows) {
            int rows = m - i < max_rows ? m - i : max_rows;
            f->panel(block, ld, fused_row(f, a, i, lda, w), lda, w, rows, tile, n,
                     fused_next(w, tile + n, tile1, i + rows == m));
            f->add((char *)x + ((size_t)i * ldx + (size_t)tile * TILE_N) * f->act_bytes, ldx, block,
                   ld, rows, cols);
        }
    }
}

static inline __attribute__((always_inline)) void
fused_gemm_swiglu(const struct fused *f, void *out, size_t ldo, const void *a, size_t lda,
                  const struct weight *w, int n, int m, int t0, int t1)
{
    if (fused_is_few(f, m)) {
        fused_few_swiglu(f, out, ldo, a, lda, w, n, m, t0, t1);
        return;
    }
    _Alignas(64) float block[FUSED_ROWS * PANEL_TILES * TILE_N];
    const size_t ld = PANEL_TILES * TILE_N;
    const int max_rows = fused_rows(m, FUSED_ROWS);
    for (int t = t0; t < t1; t += PANEL_TILES / 2) {
        int pairs = t1 - t < PANEL_TILES / 2 ? t1 - t : PANEL_TILES / 2;
        for (int i = 0; i < m; i += max_rows) {
            int rows = m - i < max_rows ? m - i : max_rows;
            f->panel(block, ld, fused_row(f, a, i, lda, w), lda, w, rows, 2 * t, 2 * pairs,
                     fused_next(w, 2 * (t + pairs), 2 * t1, i + rows == m));
            for (int p = 0; p < pairs; p++) {
                int col = (t + p) * TILE_N, cols = n - col < TILE_N ? n - col : TILE_N;
                const float *gate = block + p * 2 * TILE_N;
                f->swiglu((char *)out + ((size_t)i * ldo + (size_t)col) * f->act_bytes, ldo, gate,
                          ld, gate + TILE_N, ld, rows, cols);
            }
        }
    }
}

static inline __attribute__((always_inline)) void
fused_gemm_qkv(const struct fused *f, const void *a, size_t lda, const struct weight *w,
               const struct qkv_rows *r, int m, int head0, int head1)
{
    if (fused_is_few(f, m)) {
        fused_few_qkv(f, a, lda, w, r, m, head0, head1);
        return;
    }
    _Alignas(64) float block[FUSED_QKV_FLOATS];
    const int tiles = r->head_dim / TILE_N,
              max_rows = fused_rows(m, FUSED_QKV_FLOATS / r->head_dim);
    const size_t ld = (size_t)r->head_dim;
    for (int h = head0; h < head1; h++) {
        for (int i = 0; i < m; i += max_rows) {
            int rows = m - i < max_rows ? m - i : max_rows;
            struct qkv_rows part = *r;
            for (int t = 0; t < tiles; t += PANEL_TILES) {
                int n = tiles - t < PANEL_TILES ? tiles - t : PANEL_TILES, tile = h * tiles + t;
                f->panel(block + t * TILE_N, ld, fused_row(f, a, i, lda, w), lda, w, rows, tile, n,
                         fused_next(w, tile + n, head1 * tiles, i + rows == m || t + n < tiles));
            }
            part.rope += (size_t)i * (size_t)r->head_dim;
            part.q = (char *)r->q + (size_t)i * r->ldq * f->act_bytes;
            part.kv_tile += i;
            part.slot += i;
            f->rope_store(block, ld, &part, rows, h, h + 1);
        }
    }
}

/* The four products of a level and an activation type: put together from fused_<type> where
 * is_own(w, act), else those of the level below. */
#define OWN_PRODUCTS(level, below, type, act)                                                      \
    void level##_gemm_##type(float *c, size_t ldc, const void *a, size_t lda,                      \
                             const struct weight *w, int m, int tile0, int tile1)                  \
    {                                                                                              \
        if (!is_own(w, act)) {                                                                     \
            below##_gemm_##type(c, ldc, a, lda, w, m, tile0, tile1);                               \
            return;                                                                                \
        }                                                                                          \
        fused_gemm(&fused_##type, c, ldc, a, lda, w, m, tile0, tile1);                             \
    }                                                                                              \
    void level##_gemm_add_##type(void *x, size_t ldx, const void *a, size_t lda,                   \
                                 const struct weight *w, int m, int tile0, int tile1)              \
    {                                                                                              \
        if (!is_own(w, act)) {                                                                     \
            below##_gemm_add_##type(x, ldx, a, lda, w, m, tile0, tile1);                           \
            return;                                                                                \
        }                                                                                          \
        fused_gemm_add(&fused_##type, x, ldx, a, lda, w, m, tile0, tile1);                         \
    }                                                                                              \
    void level##_gemm_swiglu_##type(void *out, size_t ldo, const void *a, size_t lda,              \
                                    const struct weight *w, int n, int m, int t0, int t1)          \
    {                                                                                              \
        if (!is_own(w, act)) {                                                                     \
            below##_gemm_swiglu_##type(out, ldo, a, lda, w, n, m, t0, t1);                         \
            return;                                                                                \
        }                                                                                          \
        fused_gemm_swiglu(&fused_##type, out, ldo, a, lda, w, n, m, t0, t1);                       \
    }                                                                                              \
    void level##_gemm_qkv_##type(const void *a, size_t lda, const struct weight *w,                \
                                 const struct qkv_rows *r, int m, int head0, int head1)            \
    {                                                                                              \
        if (!is_own(w, act)) {                                                                     \
            below##_gemm_qkv_##type(a, lda, w, r, m, head0, head1);                                \
            return;                                                                                \
        }                                                                                          \
        fused_gemm_qkv(&fused_##type, a, lda, w, r, m, head0, head1);                              \
    }

#endif
