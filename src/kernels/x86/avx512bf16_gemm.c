/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 x bf16 matrix products with VDPBF16PS, which is the chain of kernels.h in one instruction.
 *
 * micro() keeps up to 6 rows x 4 tiles = 24 chains in registers: per pair of K four weight lines
 * and six broadcasts feed 24 multiply-adds, and 24 chains are enough to hide the instruction's
 * latency. The accumulators are named variables because gcc keeps an array of vectors in memory. A
 * missing tile repeats tile 0 (same values, same place), so that the loop has no branches.
 *
 * Up to 6 rows: the four weight streams pass once, from DRAM, with a prefetch some lines ahead of
 * each. More rows are split in even groups; K is cut in blocks whose weights (32 KB) stay in the L1
 * cache while the groups pass over them, the chains wait in c meanwhile, and the groups share the
 * work of prefetching the next block, so that DRAM reads go on while arithmetic runs. */
#include "kernels/fused.h"
#include "kernels/x86/x86.h"
#include <immintrin.h>

#define MAX_ROWS    6
#define BLOCK_PAIRS 128
#define SHORT_PAIRS                                                                                \
    64 /* K block of few rows, where this block and the next must share the L1 cache */
#define FEW_ROWS    36
#define AHEAD_LINES 16 /* prefetch distance of the streaming loop, in lines of each stream */

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

static inline pairs16 line(const char *p)
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

#define EACH_ROW(DO)                                                                               \
    DO(0, c00, c01, c02, c03, a0)                                                                  \
    if (n_rows > 1) {                                                                              \
        DO(1, c10, c11, c12, c13, a1)                                                              \
    }                                                                                              \
    if (n_rows > 2) {                                                                              \
        DO(2, c20, c21, c22, c23, a2)                                                              \
    }                                                                                              \
    if (n_rows > 3) {                                                                              \
        DO(3, c30, c31, c32, c33, a3)                                                              \
    }                                                                                              \
    if (n_rows > 4) {                                                                              \
        DO(4, c40, c41, c42, c43, a4)                                                              \
    }                                                                                              \
    if (n_rows > 5) {                                                                              \
        DO(5, c50, c51, c52, c53, a5)                                                              \
    }
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
        EACH_ROW(LOAD)
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
        EACH_ROW(STEP)
    }
    EACH_ROW(STORE)
#undef EACH_ROW
#undef LOAD
#undef STORE
#undef STEP
}

/* One function per row count, because the accumulators must be known to the compiler. */
static inline __attribute__((always_inline)) void micro_rows(int n_rows, const int n_ahead,
                                                             const struct micro_args *s)
{
    switch (n_rows) {
    case 1:
        micro(1, n_ahead, s);
        break;
    case 2:
        micro(2, n_ahead, s);
        break;
    case 3:
        micro(3, n_ahead, s);
        break;
    case 4:
        micro(4, n_ahead, s);
        break;
    case 5:
        micro(5, n_ahead, s);
        break;
    default:
        micro(6, n_ahead, s);
        break;
    }
}

static __attribute__((noinline)) void micro_ahead4(int n_rows, const struct micro_args *s)
{
    micro_rows(n_rows, 4, s);
}

static __attribute__((noinline)) void micro_ahead1(int n_rows, const struct micro_args *s)
{
    micro_rows(n_rows, 1, s);
}

/* At most MAX_ROWS rows: one pass, each stream prefetching itself and, at its end, the next
 * panel's. */
static void stream(struct micro_args *s, int m, const char *next, size_t tile_bytes)
{
    s->ahead_step = 64;
    size_t pairs = s->pairs, tail = pairs < AHEAD_LINES ? pairs : AHEAD_LINES;
    if (pairs > tail) {
        s->pairs = pairs - tail;
        for (int t = 0; t < PANEL_TILES; t++) {
            s->ahead[t] = s->b[t] + tail * 64;
        }
        micro_ahead4(m, s);
        for (int t = 0; t < PANEL_TILES; t++) {
            s->b[t] += s->pairs * 64;
        }
        s->a += s->pairs * 2;
        s->is_first = 0;
    }
    s->pairs = tail;
    for (int t = 0; t < PANEL_TILES; t++) {
        s->ahead[t] = next ? next + (size_t)t * tile_bytes : s->b[t];
    }
    micro_ahead4(m, s);
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
    if (m <= MAX_ROWS) {
        s.c = c;
        s.a = a;
        s.is_first = 1;
        stream(&s, m, next, tile_bytes);
        return;
    }
    const int n_groups = (m + MAX_ROWS - 1) / MAX_ROWS;
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

static const struct fused fused = {panel, avx512_swiglu_bf16, avx512_add_bf16,
                                   avx512_rope_store_bf16, 2};

void avx512bf16_gemm(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                     int tile0, int tile1)
{
    if (w->format != WEIGHT_BF16) {
        avx512_gemm_bf16(c, ldc, a, lda, w, m, tile0, tile1);
        return;
    }
    fused_gemm(&fused, c, ldc, a, lda, w, m, tile0, tile1);
}

void avx512bf16_gemm_add(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                         int m, int tile0, int tile1)
{
    if (w->format != WEIGHT_BF16) {
        avx512_gemm_add_bf16(x, ldx, a, lda, w, m, tile0, tile1);
        return;
    }
    fused_gemm_add(&fused, x, ldx, a, lda, w, m, tile0, tile1);
}

void avx512bf16_gemm_swiglu(void *out, size_t ldo, const void *a, size_t lda,
                            const struct weight *gate_up, int n, int m, int t0, int t1)
{
    if (gate_up->format != WEIGHT_BF16) {
        avx512_gemm_swiglu_bf16(out, ldo, a, lda, gate_up, n, m, t0, t1);
        return;
    }
    fused_gemm_swiglu(&fused, out, ldo, a, lda, gate_up, n, m, t0, t1);
}

void avx512bf16_gemm_qkv(const void *a, size_t lda, const struct weight *w,
                         const struct qkv_rows *r, int m, int head0, int head1)
{
    if (w->format != WEIGHT_BF16) {
        avx512_gemm_qkv_bf16(a, lda, w, r, m, head0, head1);
        return;
    }
    fused_gemm_qkv(&fused, a, lda, w, r, m, head0, head1);
}
