/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the x86 levels. Contracts: kernels.h. */
#ifndef TERN_KERNELS_X86_X86_H
#define TERN_KERNELS_X86_X86_H

#include "kernels/kernels.h"
#include "kernels/micro.h"

extern const struct kernels kernels_avx2, kernels_avx512, kernels_avx512bf16;

void avx2_embed_bf16(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m);
void avx2_rmsnorm_bf16(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                       int m, int n);
void avx2_gemm_bf16(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                    int tile0, int tile1);
void avx2_rope_store_bf16(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m,
                          int head0, int head1);
void avx2_attn_part_bf16(const struct attn_part *p);
void avx2_attn_fold(float *m, float *l, float *acc, const float *m2, const float *l2,
                    const float *acc2, int n_q, int head_dim);
void avx2_attn_merge_bf16(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                          const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim);
void avx2_swiglu_bf16(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                      int m, int n);
void avx2_add_bf16(void *x, size_t ldx, const float *c, size_t ldc, int m, int n);
void avx2_gemm_add_bf16(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                        int m, int tile0, int tile1);
void avx2_gemm_swiglu_bf16(void *out, size_t ldo, const void *a, size_t lda,
                           const struct weight *gate_up, int n, int m, int t0, int t1);
void avx2_gemm_qkv_bf16(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                        int m, int head0, int head1);
void avx2_embed_f32(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m);
void avx2_rmsnorm_f32(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                      int m, int n);
void avx2_gemm_f32(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                   int tile0, int tile1);
void avx2_rope_store_f32(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m, int head0,
                         int head1);
void avx2_attn_part_f32(const struct attn_part *p);
void avx2_attn_merge_f32(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                         const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim);
void avx2_swiglu_f32(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                     int m, int n);
void avx2_add_f32(void *x, size_t ldx, const float *c, size_t ldc, int m, int n);
void avx2_gemm_add_f32(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                       int m, int tile0, int tile1);
void avx2_gemm_swiglu_f32(void *out, size_t ldo, const void *a, size_t lda,
                          const struct weight *gate_up, int n, int m, int t0, int t1);
void avx2_gemm_qkv_f32(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                       int m, int head0, int head1);
void avx2_quantize_bf16(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                        enum input_format f, int group, float fixed);
void avx2_quantize_f32(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                       enum input_format f, int group, float fixed);
/* The chains of at most MICRO_ROWS int8 rows and any range of tiles, of a matrix it takes. */
int avx2_takes_sums(const struct weight *w);
void avx2_sums_few(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                   int tile, int tile_end);
int avx2_argmax(const float *x, int n);
void avx2_logsumexp(const float *x, int n, float *max, double *sum);
void avx2_weigh(const float *x, int n, float temperature, float max, float *y, float *w,
                double *sum, float *top);
void avx2_pack(void *dst, enum weight_format format, int n, int k, const void *src,
               enum dtype src_type, size_t stride_row, size_t stride_col, int tile0, int tile1,
               int tile_step, int tile_offset);

void avx512_embed_bf16(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m);
void avx512_rmsnorm_bf16(void *out, size_t ldo, const void *x, size_t ldx, const float *w,
                         float eps, int m, int n);
void avx512_gemm_bf16(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                      int m, int tile0, int tile1);
void avx512_rope_store_bf16(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m,
                            int head0, int head1);
void avx512_attn_part_bf16(const struct attn_part *p);
void avx512_attn_fold(float *m, float *l, float *acc, const float *m2, const float *l2,
                      const float *acc2, int n_q, int head_dim);
void avx512_attn_merge_bf16(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                            const float *acc, size_t stride_acc, int n_parts, int n_q,
                            int head_dim);
void avx512_swiglu_bf16(void *out, size_t ldo, const float *g, size_t ldg, const float *u,
                        size_t ldu, int m, int n);
void avx512_add_bf16(void *x, size_t ldx, const float *c, size_t ldc, int m, int n);
void avx512_gemm_add_bf16(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                          int m, int tile0, int tile1);
void avx512_gemm_swiglu_bf16(void *out, size_t ldo, const void *a, size_t lda,
                             const struct weight *gate_up, int n, int m, int t0, int t1);
void avx512_gemm_qkv_bf16(const void *a, size_t lda, const struct weight *w,
                          const struct qkv_rows *r, int m, int head0, int head1);
void avx512_embed_f32(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m);
void avx512_rmsnorm_f32(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                        int m, int n);
void avx512_gemm_f32(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                     int tile0, int tile1);
void avx512_rope_store_f32(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m,
                           int head0, int head1);
void avx512_attn_part_f32(const struct attn_part *p);
void avx512_attn_merge_f32(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                           const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim);
void avx512_swiglu_f32(void *out, size_t ldo, const float *g, size_t ldg, const float *u,
                       size_t ldu, int m, int n);
void avx512_add_f32(void *x, size_t ldx, const float *c, size_t ldc, int m, int n);
void avx512_gemm_add_f32(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                         int m, int tile0, int tile1);
void avx512_gemm_swiglu_f32(void *out, size_t ldo, const void *a, size_t lda,
                            const struct weight *gate_up, int n, int m, int t0, int t1);
void avx512_gemm_qkv_f32(const void *a, size_t lda, const struct weight *w,
                         const struct qkv_rows *r, int m, int head0, int head1);
void avx512_quantize_bf16(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                          enum input_format f, int group, float fixed);
void avx512_quantize_f32(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                         enum input_format f, int group, float fixed);
int avx512_argmax(const float *x, int n);
void avx512_logsumexp(const float *x, int n, float *max, double *sum);
void avx512_weigh(const float *x, int n, float temperature, float max, float *y, float *w,
                  double *sum, float *top);
void avx512_pack(void *dst, enum weight_format format, int n, int k, const void *src,
                 enum dtype src_type, size_t stride_row, size_t stride_col, int tile0, int tile1,
                 int tile_step, int tile_offset);

void avx512bf16_gemm_bf16(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                          int m, int tile0, int tile1);
void avx512bf16_gemm_add_bf16(void *x, size_t ldx, const void *a, size_t lda,
                              const struct weight *w, int m, int tile0, int tile1);
void avx512bf16_gemm_swiglu_bf16(void *out, size_t ldo, const void *a, size_t lda,
                                 const struct weight *gate_up, int n, int m, int t0, int t1);
void avx512bf16_gemm_qkv_bf16(const void *a, size_t lda, const struct weight *w,
                              const struct qkv_rows *r, int m, int head0, int head1);
void avx512bf16_gemm_f32(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                         int m, int tile0, int tile1);
void avx512bf16_gemm_add_f32(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                             int m, int tile0, int tile1);
void avx512bf16_gemm_swiglu_f32(void *out, size_t ldo, const void *a, size_t lda,
                                const struct weight *gate_up, int n, int m, int t0, int t1);
void avx512bf16_gemm_qkv_f32(const void *a, size_t lda, const struct weight *w,
                             const struct qkv_rows *r, int m, int head0, int head1);
/* Panels (see struct fused) of quantized weights: int8 activations; bf16 or fp8 ones, which are
 * rows of bf16 both. */
void avx512bf16_sums(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                     int tile, int n_tiles, const void *next);
/* int8 rows by codes that are put together first: C2, I6, and I4 with scales in two levels. */
void avx512bf16_coded(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                      int m, int tile, int n_tiles, const void *next);
void avx512bf16_chains(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                       int m, int tile, int n_tiles, const void *next);
/* The same for at most MICRO_ROWS rows and any range of tiles. */
void avx512bf16_sums_few(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                         int m, int tile, int tile_end);
void avx512bf16_levels_few(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                           int m, int tile, int tile_end);
void avx512bf16_chains_few(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                           int m, int tile, int tile_end);
void avx512bf16_attn_part(const struct attn_part *p);

#endif
