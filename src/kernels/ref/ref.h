/* SPDX-License-Identifier: Apache-2.0 */
/* The scalar reference kernels: the definition of right. Higher levels also use the ones that they
 * do not override (their tables name them). Contracts: kernels.h. */
#ifndef TERN_KERNELS_REF_REF_H
#define TERN_KERNELS_REF_REF_H

#include "kernels/kernels.h"

extern const struct kernels kernels_ref;

void ref_embed_bf16(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m);
void ref_embed_f32(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m);
void ref_rmsnorm_bf16(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                      int m, int n);
void ref_rmsnorm_f32(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                     int m, int n);
void ref_gemm_bf16(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                   int tile0, int tile1);
void ref_gemm_f32(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                  int tile0, int tile1);
void ref_rope_store_bf16(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m, int head0,
                         int head1);
void ref_rope_store_f32(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m, int head0,
                        int head1);
void ref_attn_part_bf16(const struct attn_part *p);
void ref_attn_part_f32(const struct attn_part *p);
void ref_attn_merge_bf16(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                         const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim);
void ref_attn_merge_f32(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                        const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim);
void ref_swiglu_bf16(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                     int m, int n);
void ref_swiglu_f32(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                    int m, int n);
void ref_add_bf16(void *x, size_t ldx, const float *c, size_t ldc, int m, int n);
void ref_add_f32(void *x, size_t ldx, const float *c, size_t ldc, int m, int n);
void ref_gemm_add_bf16(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                       int m, int tile0, int tile1);
void ref_gemm_add_f32(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w, int m,
                      int tile0, int tile1);
void ref_gemm_swiglu_bf16(void *out, size_t ldo, const void *a, size_t lda,
                          const struct weight *gate_up, int n, int m, int t0, int t1);
void ref_gemm_swiglu_f32(void *out, size_t ldo, const void *a, size_t lda,
                         const struct weight *gate_up, int n, int m, int t0, int t1);
void ref_gemm_qkv_bf16(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                       int m, int head0, int head1);
void ref_gemm_qkv_f32(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                      int m, int head0, int head1);
void ref_pack(void *dst, enum weight_format format, int n, int k, const void *src,
              enum dtype src_type, size_t stride_row, size_t stride_col, int tile0, int tile1,
              int tile_step, int tile_offset);
void ref_quantize_bf16(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                       enum input_format f, int group, float fixed);
void ref_quantize_f32(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                      enum input_format f, int group, float fixed);
/* The 16 outputs of m rows of `a` (at most REF_ROWS, lda bytes apart) and one tile of a quantized
 * matrix; its element [row, k] as code and scale, and as their product. */
enum { REF_ROWS = 16 };
void ref_quant_tile(float *out, size_t ldo, const void *a, size_t lda, int m, enum act_type t,
                    const struct weight *w, int tile);
/* Columns from .. to of a row, all of one group: their v, and what they are scaled and moved by. */
void ref_quant_values(const struct weight *w, int row, int from, int to, float *v, float *scale,
                      float *offset);
float ref_fold16(float lane[16]); /* 8, 4, 2, 1: the lanes are spoilt */
float ref_quant_element(const struct weight *w, int row, int k);
/* The number of an fp8 code with `bits` bits of mantissa and smallest normal exponent `low` (no NaN,
 * no infinity), and x rounded to such a number. */
float ref_f8_value(int c, int bits, int low);
float ref_round_f8(float x, enum input_format f);
void ref_attn_fold(float *m, float *l, float *acc, const float *m2, const float *l2,
                   const float *acc2, int n_q, int head_dim);
int ref_argmax(const float *x, int n);
void ref_logsumexp(const float *x, int n, float *max, double *sum);
void ref_weigh(const float *x, int n, float temperature, float max, float *y, float *w, double *sum,
               float *top);

/* Element i of an activation array, and the reverse with the one rounding to the activation type.
 */
static inline float ref_load(const void *x, size_t i, enum act_type t)
{
    return t == ACT_BF16 ? bf16_to_f32(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

static inline void ref_store(void *x, size_t i, float v, enum act_type t)
{
    if (t == ACT_BF16) {
        ((uint16_t *)x)[i] = f32_to_bf16(v);
    } else {
        ((float *)x)[i] = v;
    }
}

static inline void *ref_at(const void *x, size_t i, enum act_type t)
{
    return (char *)(uintptr_t)x + i * act_size(t);
}

/* Row i of the `a` of a GEMM. */
static inline const void *ref_input_row(const void *a, int i, size_t lda, const struct weight *w,
                                        enum act_type t)
{
    return (const char *)a + (size_t)i * lda * (w->input == INPUT_ACT ? act_size(t) : 1);
}

#endif
