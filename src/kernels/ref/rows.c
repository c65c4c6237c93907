/* SPDX-License-Identifier: Apache-2.0 */
/* Reference of the row operations: embedding, norm, SwiGLU, residual add. */
#include "kernels/ref/math.h"
#include "kernels/ref/ref.h"

static void embed(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m,
                  enum act_type t)
{
    for (int i = 0; i < m; i++) {
        size_t row = (size_t)ids[i];
        for (size_t k = 0; k < (size_t)w->k; k++) {
            size_t e = (row / 16 * ((size_t)w->k / 2) + k / 2) * 32 + row % 16 * 2 + k % 2;
            float v = weight_is_quantized(w)     ? ref_quant_element(w, ids[i], (int)k)
                      : w->format == WEIGHT_BF16 ? bf16_to_f32(((const uint16_t *)w->data)[e])
                                                 : ((const float *)w->data)[e];
            ref_store(x, (size_t)i * ldx + k, v, t);
        }
    }
}

float ref_fold16(float lane[16])
{
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) {
            lane[i] = ref_add(lane[i], lane[i + half]);
        }
    }
    return lane[0];
}

static void rmsnorm(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                    int m, int n, enum act_type t)
{
    for (int i = 0; i < m; i++) {
        size_t row = (size_t)i * ldx, row_out = (size_t)i * ldo;
        float lane[16] = {0};
        for (int j = 0; j < n; j++) {
            float v = ref_load(x, row + (size_t)j, t);
            lane[j % 16] = ref_fma(v, v, lane[j % 16]);
        }
        float mean = ref_div(ref_fold16(lane), (float)n);
        float r = ref_div(1.0f, ref_sqrt(ref_add(mean, eps)));
        for (int j = 0; j < n; j++) {
            float v = ref_load(x, row + (size_t)j, t);
            ref_store(out, row_out + (size_t)j, ref_mul(ref_mul(v, r), w[j]), t);
        }
    }
}

static void swiglu(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                   int m, int n, enum act_type t)
{
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            float gate = g[(size_t)i * ldg + (size_t)j], up = u[(size_t)i * ldu + (size_t)j];
            float silu = ref_div(gate, ref_add(1.0f, kernel_exp(-gate)));
            ref_store(out, (size_t)i * ldo + (size_t)j, ref_mul(silu, up), t);
        }
    }
}

static void add(void *x, size_t ldx, const float *c, size_t ldc, int m, int n, enum act_type t)
{
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            size_t e = (size_t)i * ldx + (size_t)j;
            ref_store(x, e, ref_add(ref_load(x, e, t), c[(size_t)i * ldc + (size_t)j]), t);
        }
    }
}

void ref_embed_bf16(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m)
{
    embed(x, ldx, w, ids, m, ACT_BF16);
}

void ref_embed_f32(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m)
{
    embed(x, ldx, w, ids, m, ACT_F32);
}

void ref_rmsnorm_bf16(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                      int m, int n)
{
    rmsnorm(out, ldo, x, ldx, w, eps, m, n, ACT_BF16);
}

void ref_rmsnorm_f32(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                     int m, int n)
{
    rmsnorm(out, ldo, x, ldx, w, eps, m, n, ACT_F32);
}

void ref_swiglu_bf16(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                     int m, int n)
{
    swiglu(out, ldo, g, ldg, u, ldu, m, n, ACT_BF16);
}

void ref_swiglu_f32(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                    int m, int n)
{
    swiglu(out, ldo, g, ldg, u, ldu, m, n, ACT_F32);
}

void ref_add_bf16(void *x, size_t ldx, const float *c, size_t ldc, int m, int n)
{
    add(x, ldx, c, ldc, m, n, ACT_BF16);
}

void ref_add_f32(void *x, size_t ldx, const float *c, size_t ldc, int m, int n)
{
    add(x, ldx, c, ldc, m, n, ACT_F32);
}
