/* SPDX-License-Identifier: Apache-2.0 */
/* NEON: rotation and KV store, attention, merge. */
#include "kernels/arm/neon_v16.h"

#include "kernels/arm/neon.h"
#include "kernels/lanes/attention.h"

void neon_rope_store_bf16(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m,
                          int head0, int head1)
{
    lanes_rope_store(qkv, ldqkv, r, m, head0, head1, ACT_BF16);
}

void neon_attn_part_bf16(const struct attn_part *p)
{
    lanes_attn_part(p, ACT_BF16);
}

void neon_attn_fold(float *m, float *l, float *acc, const float *m2, const float *l2,
                    const float *acc2, int n_q, int head_dim)
{
    lanes_attn_fold(m, l, acc, m2, l2, acc2, n_q, head_dim);
}

void neon_attn_merge_bf16(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                          const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim)
{
    lanes_attn_merge(out, ldo, m, l, stride_ml, acc, stride_acc, n_parts, n_q, head_dim, ACT_BF16);
}

void neon_rope_store_f32(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m, int head0,
                         int head1)
{
    lanes_rope_store(qkv, ldqkv, r, m, head0, head1, ACT_F32);
}

void neon_attn_part_f32(const struct attn_part *p)
{
    lanes_attn_part(p, ACT_F32);
}

void neon_attn_merge_f32(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                         const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim)
{
    lanes_attn_merge(out, ldo, m, l, stride_ml, acc, stride_acc, n_parts, n_q, head_dim, ACT_F32);
}
