/* SPDX-License-Identifier: Apache-2.0 */
/* NEON: matrix products with fp32 chains. */
#include "kernels/arm/neon_v16.h"

#include "kernels/arm/neon.h"
#include "kernels/lanes/quant.h"

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

static const struct fused fused_bf16 = {
    panel_bf16, neon_swiglu_bf16, neon_add_bf16, neon_rope_store_bf16, 2, NULL, 0};

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

static const struct fused fused_f32 = {
    panel_f32, neon_swiglu_f32, neon_add_f32, neon_rope_store_f32, 4, NULL, 0};

void neon_gemm_bf16(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                    int tile0, int tile1)
{
    fused_gemm(&fused_bf16, c, ldc, a, lda, w, m, tile0, tile1);
}

void neon_gemm_add_bf16(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                        int m, int tile0, int tile1)
{
    fused_gemm_add(&fused_bf16, x, ldx, a, lda, w, m, tile0, tile1);
}

void neon_gemm_swiglu_bf16(void *out, size_t ldo, const void *a, size_t lda,
                           const struct weight *gate_up, int n, int m, int t0, int t1)
{
    fused_gemm_swiglu(&fused_bf16, out, ldo, a, lda, gate_up, n, m, t0, t1);
}

void neon_gemm_qkv_bf16(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                        int m, int head0, int head1)
{
    fused_gemm_qkv(&fused_bf16, a, lda, w, r, m, head0, head1);
}

void neon_gemm_f32(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                   int tile0, int tile1)
{
    fused_gemm(&fused_f32, c, ldc, a, lda, w, m, tile0, tile1);
}

void neon_gemm_add_f32(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                       int m, int tile0, int tile1)
{
    fused_gemm_add(&fused_f32, x, ldx, a, lda, w, m, tile0, tile1);
}

void neon_gemm_swiglu_f32(void *out, size_t ldo, const void *a, size_t lda,
                          const struct weight *gate_up, int n, int m, int t0, int t1)
{
    fused_gemm_swiglu(&fused_f32, out, ldo, a, lda, gate_up, n, m, t0, t1);
}

void neon_gemm_qkv_f32(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                       int m, int head0, int head1)
{
    fused_gemm_qkv(&fused_f32, a, lda, w, r, m, head0, head1);
}
