/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2: matrix products with fp32 chains. */
#include "kernels/x86/avx2_v16.h"

#include "kernels/lanes/quant.h"
#include "kernels/x86/x86.h"

/* Few rows, where avx2_sums.c has no loop of its own, are panels. */
#define FEW(name, panel)                                                                           \
    static void name(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,      \
                     int m, int tile, int tile_end)                                                \
    {                                                                                              \
        if (avx2_takes_sums(w)) {                                                                  \
            avx2_sums_few(c, ldc, a, lda, w, m, tile, tile_end);                                   \
            return;                                                                                \
        }                                                                                          \
        for (int t = tile; t < tile_end; t += PANEL_TILES) {                                       \
            const int n_tiles = tile_end - t < PANEL_TILES ? tile_end - t : PANEL_TILES;           \
            panel(c + (t - tile) * TILE_N, ldc, a, lda, w, m, t, n_tiles, NULL);                   \
        }                                                                                          \
    }

static void panel_bf16(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                       int m, int tile, int n_tiles, const void *next)
{
    (void)next;
    if (weight_is_quantized(w)) {
        lanes_quant_panel(c, ldc, a, lda, w, m, tile, n_tiles, ACT_BF16);
        return;
    }
    lanes_panel(c, ldc, a, lda, w, m, tile, n_tiles, ACT_BF16);
}

FEW(few_bf16, panel_bf16)

static const struct fused fused_bf16 = {
    panel_bf16, avx2_swiglu_bf16, avx2_add_bf16, avx2_rope_store_bf16, 2, few_bf16, MICRO_ROWS};

static void panel_f32(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                      int m, int tile, int n_tiles, const void *next)
{
    (void)next;
    if (weight_is_quantized(w)) {
        lanes_quant_panel(c, ldc, a, lda, w, m, tile, n_tiles, ACT_F32);
        return;
    }
    lanes_panel(c, ldc, a, lda, w, m, tile, n_tiles, ACT_F32);
}

FEW(few_f32, panel_f32)

static const struct fused fused_f32 = {
    panel_f32, avx2_swiglu_f32, avx2_add_f32, avx2_rope_store_f32, 4, few_f32, MICRO_ROWS};

void avx2_gemm_bf16(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                    int tile0, int tile1)
{
    fused_gemm(&fused_bf16, c, ldc, a, lda, w, m, tile0, tile1);
}

void avx2_gemm_add_bf16(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                        int m, int tile0, int tile1)
{
    fused_gemm_add(&fused_bf16, x, ldx, a, lda, w, m, tile0, tile1);
}

void avx2_gemm_swiglu_bf16(void *out, size_t ldo, const void *a, size_t lda,
                           const struct weight *gate_up, int n, int m, int t0, int t1)
{
    fused_gemm_swiglu(&fused_bf16, out, ldo, a, lda, gate_up, n, m, t0, t1);
}

void avx2_gemm_qkv_bf16(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                        int m, int head0, int head1)
{
    fused_gemm_qkv(&fused_bf16, a, lda, w, r, m, head0, head1);
}

void avx2_gemm_f32(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                   int tile0, int tile1)
{
    fused_gemm(&fused_f32, c, ldc, a, lda, w, m, tile0, tile1);
}

void avx2_gemm_add_f32(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                       int m, int tile0, int tile1)
{
    fused_gemm_add(&fused_f32, x, ldx, a, lda, w, m, tile0, tile1);
}

void avx2_gemm_swiglu_f32(void *out, size_t ldo, const void *a, size_t lda,
                          const struct weight *gate_up, int n, int m, int t0, int t1)
{
    fused_gemm_swiglu(&fused_f32, out, ldo, a, lda, gate_up, n, m, t0, t1);
}

void avx2_gemm_qkv_f32(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                       int m, int head0, int head1)
{
    fused_gemm_qkv(&fused_f32, a, lda, w, r, m, head0, head1);
}
