/* SPDX-License-Identifier: Apache-2.0 */
/* NEON: embedding, norm, SwiGLU, residual add, quantization of activations. */
#include "kernels/arm/neon_v16.h"

#include "kernels/arm/neon.h"
#include "kernels/lanes/quantize.h"
#include "kernels/lanes/rows.h"

void neon_embed_bf16(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m)
{
    lanes_embed(x, ldx, w, ids, m, ACT_BF16);
}

void neon_rmsnorm_bf16(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                       int m, int n)
{
    lanes_rmsnorm(out, ldo, x, ldx, w, eps, m, n, ACT_BF16);
}

void neon_swiglu_bf16(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                      int m, int n)
{
    lanes_swiglu(out, ldo, g, ldg, u, ldu, m, n, ACT_BF16);
}

void neon_add_bf16(void *x, size_t ldx, const float *c, size_t ldc, int m, int n)
{
    lanes_add(x, ldx, c, ldc, m, n, ACT_BF16);
}

void neon_embed_f32(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m)
{
    lanes_embed(x, ldx, w, ids, m, ACT_F32);
}

void neon_rmsnorm_f32(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                      int m, int n)
{
    lanes_rmsnorm(out, ldo, x, ldx, w, eps, m, n, ACT_F32);
}

void neon_swiglu_f32(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                     int m, int n)
{
    lanes_swiglu(out, ldo, g, ldg, u, ldu, m, n, ACT_F32);
}

void neon_add_f32(void *x, size_t ldx, const float *c, size_t ldc, int m, int n)
{
    lanes_add(x, ldx, c, ldc, m, n, ACT_F32);
}

void neon_quantize_bf16(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                        enum input_format f, int group, float fixed)
{
    lanes_quantize(out, ldo, x, ldx, m, k, f, group, fixed, ACT_BF16);
}

void neon_quantize_f32(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                       enum input_format f, int group, float fixed)
{
    lanes_quantize(out, ldo, x, ldx, m, k, f, group, fixed, ACT_F32);
}
