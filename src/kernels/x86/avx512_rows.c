/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512: embedding, norm, SwiGLU, residual add, quantization of activations. */
#include "kernels/x86/avx512_v16.h"

#include "kernels/lanes/quantize.h"
#include "kernels/lanes/rows.h"
#include "kernels/x86/x86.h"

void avx512_embed_bf16(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m)
{
    lanes_embed(x, ldx, w, ids, m, ACT_BF16);
}

void avx512_rmsnorm_bf16(void *out, size_t ldo, const void *x, size_t ldx, const float *w,
                         float eps, int m, int n)
{
    lanes_rmsnorm(out, ldo, x, ldx, w, eps, m, n, ACT_BF16);
}

void avx512_swiglu_bf16(void *out, size_t ldo, const float *g, size_t ldg, const float *u,
                        size_t ldu, int m, int n)
{
    lanes_swiglu(out, ldo, g, ldg, u, ldu, m, n, ACT_BF16);
}

void avx512_add_bf16(void *x, size_t ldx, const float *c, size_t ldc, int m, int n)
{
    lanes_add(x, ldx, c, ldc, m, n, ACT_BF16);
}

void avx512_embed_f32(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m)
{
    lanes_embed(x, ldx, w, ids, m, ACT_F32);
}

void avx512_rmsnorm_f32(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                        int m, int n)
{
    lanes_rmsnorm(out, ldo, x, ldx, w, eps, m, n, ACT_F32);
}

void avx512_swiglu_f32(void *out, size_t ldo, const float *g, size_t ldg, const float *u,
                       size_t ldu, int m, int n)
{
    lanes_swiglu(out, ldo, g, ldg, u, ldu, m, n, ACT_F32);
}

void avx512_add_f32(void *x, size_t ldx, const float *c, size_t ldc, int m, int n)
{
    lanes_add(x, ldx, c, ldc, m, n, ACT_F32);
}

void avx512_quantize_bf16(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                          enum input_format f, int group, float fixed)
{
    lanes_quantize(out, ldo, x, ldx, m, k, f, group, fixed, ACT_BF16);
}

void avx512_quantize_f32(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                         enum input_format f, int group, float fixed)
{
    lanes_quantize(out, ldo, x, ldx, m, k, f, group, fixed, ACT_F32);
}
