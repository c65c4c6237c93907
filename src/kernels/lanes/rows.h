/* SPDX-License-Identifier: Apache-2.0 */
/* Embedding, norm, SwiGLU and residual add on 16 lanes. */
#ifndef TERN_KERNELS_LANES_ROWS_H
#define TERN_KERNELS_LANES_ROWS_H

#include "kernels/lanes/lanes.h"
#include "kernels/ref/ref.h"

/* A row of the table is one 4-byte (or 8-byte) pair in each 64-byte (128-byte) group of its tile.
 */
LANES_INLINE void lanes_embed(void *x, size_t ldx, const struct weight *w, const int32_t *ids,
                              int m, enum act_type t)
{
    const size_t pairs = (size_t)w->k / 2;
    /* Runs of one group. The products are in the thread's mode, as all lanes are. */
    for (int i = 0; weight_is_quantized(w) && i < m; i++) {
        const int run = w->group < 128 ? w->group : 128; /* divides every group */
        for (int from = 0; from < w->k; from += run) {
            const int n = w->k - from < run ? w->k - from : run;
            float v[128], scale, offset;
            ref_quant_values(w, ids[i], from, from + n, v, &scale, &offset);
            for (int k = 0; k < n; k++) {
                const float y = w->has_offset ? __builtin_fmaf(v[k], scale, offset) : v[k] * scale;
                ref_store(x, (size_t)i * ldx + (size_t)(from + k), y, t);
            }
        }
    }
    for (int i = 0; !weight_is_quantized(w) && i < m; i++) {
        const size_t row = (size_t)ids[i], base = row / TILE_N * pairs * 32 + row % TILE_N * 2;
        for (size_t j = 0; j < pairs; j++) {
            const size_t to = (size_t)i * ldx + 2 * j, from = base + j * 32;
            if (w->format == WEIGHT_BF16 && t == ACT_BF16) {
                memcpy((uint16_t *)x + to, (const uint16_t *)w->data + from, 4);
            } else if (w->format == WEIGHT_F32 && t == ACT_F32) {
                memcpy((float *)x + to, (const float *)w->data + from, 8);
            } else if (w->format == WEIGHT_BF16) {
                ((float *)x)[to] = bf16_to_f32(((const uint16_t *)w->data)[from]);
                ((float *)x)[to + 1] = bf16_to_f32(((const uint16_t *)w->data)[from + 1]);
            } else {
                ((uint16_t *)x)[to] = f32_to_bf16(((const float *)w->data)[from]);
                ((uint16_t *)x)[to + 1] = f32_to_bf16(((const float *)w->data)[from + 1]);
            }
        }
    }
}

LANES_INLINE void lanes_rmsnorm(void *out, size_t ldo, const void *x, size_t ldx, const float *w,
                                float eps, int m, int n, enum act_type t)
{
    for (int i = 0; i < m; i++) {
        const size_t from = (size_t)i * ldx, to = (size_t)i * ldo;
        v16 sum = v16_zero();
        for (int j = 0; j < n; j += 16) {
            v16 v = lanes_load(x, from + (size_t)j, lanes_count(j, n), t);
            sum = v16_fma(v, v, sum);
        }
        const float mean = v16_fold_add(sum) / (float)n;
        const v16 r = v16_set1(1.0f / __builtin_sqrtf(mean + eps));
        for (int j = 0; j < n; j += 16) {
            const int c = lanes_count(j, n);
            v16 v = v16_mul(lanes_load(x, from + (size_t)j, c, t), r);
            lanes_store(out, to + (size_t)j, v16_mul(v, lanes_load(w, (size_t)j, c, ACT_F32)), c,
                        t);
        }
    }
}

LANES_INLINE void lanes_swiglu(void *out, size_t ldo, const float *g, size_t ldg, const float *u,
                               size_t ldu, int m, int n, enum act_type t)
{
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j += 16) {
            const int c = lanes_count(j, n);
            v16 gate = lanes_load(g, (size_t)i * ldg + (size_t)j, c, ACT_F32);
            v16 up = lanes_load(u, (size_t)i * ldu + (size_t)j, c, ACT_F32);
            v16 silu = v16_div(gate, v16_add(v16_set1(1.0f), lanes_exp(v16_neg(gate))));
            lanes_store(out, (size_t)i * ldo + (size_t)j, v16_mul(silu, up), c, t);
        }
    }
}

LANES_INLINE void lanes_add(void *x, size_t ldx, const float *c, size_t ldc, int m, int n,
                            enum act_type t)
{
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j += 16) {
            const int count = lanes_count(j, n);
            v16 v = lanes_load(x, (size_t)i * ldx + (size_t)j, count, t);
            v16 add = lanes_load(c, (size_t)i * ldc + (size_t)j, count, ACT_F32);
            lanes_store(x, (size_t)i * ldx + (size_t)j, v16_add(v, add), count, t);
        }
    }
}

#endif
