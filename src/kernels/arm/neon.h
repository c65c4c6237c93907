/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the arm64 levels. Contracts: kernels.h. */
#ifndef TERN_KERNELS_ARM_NEON_H
#define TERN_KERNELS_ARM_NEON_H

#include "kernels/kernels.h"

extern const struct kernels kernels_neon, kernels_neondot, kernels_neonbf16;

void neon_embed_bf16(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m);
void neon_rmsnorm_bf16(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                       int m, int n);
void neon_gemm_bf16(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                    int tile0, int tile1);
void neon_rope_store_bf16(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m,
                          int head0, int head1);
void neon_attn_part_bf16(const struct attn_part *p);
void neon_attn_fold(float *m, float *l, float *acc, const float *m2, const float *l2,
                    const float *acc2, int n_q, int head_dim);
void neon_attn_merge_bf16(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                          const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim);
void neon_swiglu_bf16(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                      int m, int n);
void neon_add_bf16(void *x, size_t ldx, const float *c, size_t ldc, int m, int n);
void neon_gemm_add_bf16(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                        int m, int tile0, int tile1);
void neon_gemm_swiglu_bf16(void *out, size_t ldo, const void *a, size_t lda,
                           const struct weight *gate_up, int n, int m, int t0, int t1);
void neon_gemm_qkv_bf16(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                        int m, int head0, int head1);
void neon_embed_f32(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m);
void neon_rmsnorm_f32(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                      int m, int n);
void neon_gemm_f32(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                   int tile0, int tile1);
void neon_rope_store_f32(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m, int head0,
                         int head1);
void neon_attn_part_f32(const struct attn_part *p);
void neon_attn_merge_f32(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                         const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim);
void neon_swiglu_f32(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                     int m, int n);
void neon_add_f32(void *x, size_t ldx, const float *c, size_t ldc, int m, int n);
void neon_gemm_add_f32(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                       int m, int tile0, int tile1);
void neon_gemm_swiglu_f32(void *out, size_t ldo, const void *a, size_t lda,
                          const struct weight *gate_up, int n, int m, int t0, int t1);
void neon_gemm_qkv_f32(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                       int m, int head0, int head1);
void neon_quantize_bf16(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                        enum input_format f, int group, float fixed);
void neon_quantize_f32(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                       enum input_format f, int group, float fixed);
int neon_argmax(const float *x, int n);
void neon_logsumexp(const float *x, int n, float *max, double *sum);
void neon_weigh(const float *x, int n, float temperature, float max, float *y, float *w,
                double *sum, float *top);
void neon_pack(void *dst, enum weight_format format, int n, int k, const void *src,
               enum dtype src_type, size_t stride_row, size_t stride_col, int tile0, int tile1,
               int tile_step, int tile_offset);

void neondot_gemm_bf16(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                       int m, int tile0, int tile1);
void neondot_gemm_add_bf16(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                           int m, int tile0, int tile1);
void neondot_gemm_swiglu_bf16(void *out, size_t ldo, const void *a, size_t lda,
                              const struct weight *gate_up, int n, int m, int t0, int t1);
void neondot_gemm_qkv_bf16(const void *a, size_t lda, const struct weight *w,
                           const struct qkv_rows *r, int m, int head0, int head1);
void neondot_gemm_f32(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                      int m, int tile0, int tile1);
void neondot_gemm_add_f32(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                          int m, int tile0, int tile1);
void neondot_gemm_swiglu_f32(void *out, size_t ldo, const void *a, size_t lda,
                             const struct weight *gate_up, int n, int m, int t0, int t1);
void neondot_gemm_qkv_f32(const void *a, size_t lda, const struct weight *w,
                          const struct qkv_rows *r, int m, int head0, int head1);

void neonbf16_gemm_bf16(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                        int m, int tile0, int tile1);
void neonbf16_gemm_add_bf16(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                            int m, int tile0, int tile1);
void neonbf16_gemm_swiglu_bf16(void *out, size_t ldo, const void *a, size_t lda,
                               const struct weight *gate_up, int n, int m, int t0, int t1);
void neonbf16_gemm_qkv_bf16(const void *a, size_t lda, const struct weight *w,
                            const struct qkv_rows *r, int m, int head0, int head1);
void neonbf16_gemm_f32(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                       int m, int tile0, int tile1);
void neonbf16_gemm_add_f32(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                           int m, int tile0, int tile1);
void neonbf16_gemm_swiglu_f32(void *out, size_t ldo, const void *a, size_t lda,
                              const struct weight *gate_up, int n, int m, int t0, int t1);
void neonbf16_gemm_qkv_f32(const void *a, size_t lda, const struct weight *w,
                           const struct qkv_rows *r, int m, int head0, int head1);
void neonbf16_attn_part(const struct attn_part *p);

/* Panels (see struct fused) of quantized weights and int8 rows. */
void neondot_sums(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                  int tile, int n_tiles, const void *next);
void neonbf16_sums(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                   int tile, int n_tiles, const void *next);
/* Of quantized weights and rows of bf16, which are activations or fp8 numbers. */
void neonbf16_chains(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                     int tile, int n_tiles);
/* A panel of one row, of formats that are whole bytes or nibbles. */
int neondot_takes_one(const struct weight *w);
void neondot_sums_one(float *c, const void *a, const struct weight *w, int tile, int n_tiles);

#endif
