/* SPDX-License-Identifier: Apache-2.0 */
/* Reference of attention: rotation and KV store, one partition, merge of partitions. */
#include "kernels/ref/math.h"
#include "kernels/ref/ref.h"

static void rope_store(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m, int head0,
                       int head1, enum act_type t)
{
    size_t hd = (size_t)r->head_dim;
    int first_v = r->n_heads + r->n_kv_heads;
    for (int i = 0; i < m; i++) {
        size_t p = (size_t)r->slot[i];
        const float *rope = r->rope + (size_t)i * hd;
        for (int h = head0; h < head1; h++) {
            const float *x = qkv + (size_t)i * ldqkv + (size_t)(h - head0) * hd;
            void *q = ref_at(r->q, (size_t)i * r->ldq + (size_t)h * hd, t);
            char *tile = r->kv_tile[i];
            if (h >= r->n_heads) {
                if (!tile) {
                    continue;
                }
                tile += (size_t)((h - r->n_heads) % r->n_kv_heads) * r->kv_head_bytes;
            }
            for (size_t d = 0; d < hd; d += 2) {
                if (h >= first_v) {
                    size_t v = 16 * hd + p / 2 * hd * 2 + d * 2 + p % 2;
                    ref_store(tile, v, x[d], t);
                    ref_store(tile, v + 2, x[d + 1], t);
                    continue;
                }
                float c = rope[d], s = rope[d + 1], even = x[d], odd = x[d + 1];
                float even2 = ref_fma(even, c, -ref_mul(odd, s));
                float odd2 = ref_fma(odd, c, ref_mul(even, s));
                void *to = h < r->n_heads ? q : tile;
                size_t at = h < r->n_heads ? d : d / 2 * 32 + p * 2;
                ref_store(to, at, even2, t);
                ref_store(to, at + 1, odd2, t);
            }
        }
    }
}

/* Score of one query against position j of the partition. */
static float score(const struct attn_part *p, size_t q, int j, enum act_type t)
{
    const void *tile = p->tiles[j / 16];
    float s = 0.0f;
    for (size_t d = 0; d < (size_t)p->head_dim; d += 2) {
        size_t at = d / 2 * 32 + (size_t)(j % 16) * 2;
        float odd = ref_fma(ref_load(p->q, q + d + 1, t), ref_load(tile, at + 1, t), s);
        s = ref_fma(ref_load(p->q, q + d, t), ref_load(tile, at, t), odd);
    }
    return ref_mul(s, p->scale);
}

static float round_to(float x, enum act_type t)
{
    return t == ACT_BF16 ? bf16_to_f32(f32_to_bf16(x)) : x;
}

static void attn_part(const struct attn_part *p, enum act_type t)
{
    size_t hd = (size_t)p->head_dim;
    for (int i = 0; i < p->n_q; i++) {
        int n = p->visible[i];
        float s[ATTN_PARTITION + 1], lane[16] = {0};
        float m = -INFINITY;
        for (int j = 0; j < n; j++) {
            s[j] = score(p, (size_t)i * hd, j, t);
            m = s[j] > m ? s[j] : m;
        }
        for (int j = 0; j < n; j++) {
            s[j] = kernel_exp(ref_sub(s[j], m));
            lane[j % 16] = ref_add(lane[j % 16], s[j]);
        }
        s[n] = 0.0f;
        for (int half = 8; half; half /= 2) {
            for (int k = 0; k < half; k++) {
                lane[k] = ref_add(lane[k], lane[k + half]);
            }
        }
        p->m[i] = m;
        p->l[i] = lane[0];
        for (size_t d = 0; d < hd; d++) {
            float acc = 0.0f;
            for (int j = 0; j < n; j += 2) {
                size_t at = 16 * hd + (size_t)(j % 16) / 2 * hd * 2 + d * 2;
                float odd = j + 1 < n ? ref_load(p->tiles[j / 16], at + 1, t) : 0.0f;
                acc = ref_fma(round_to(s[j + 1], t), odd, acc);
                acc = ref_fma(round_to(s[j], t), ref_load(p->tiles[j / 16], at, t), acc);
            }
            p->acc[(size_t)i * hd + d] = ref_add(acc, 0.0f);
        }
    }
}

static void attn_merge(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                       const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim,
                       enum act_type t)
{
    for (int i = 0; i < n_q; i++) {
        float a[MAX_HEAD_DIM];
        const float *first = acc + (size_t)i * (size_t)head_dim;
        float top = m[i], sum = l[i];
        for (int d = 0; d < head_dim; d++) {
            a[d] = first[d];
        }
        for (int part = 1; part < n_parts; part++) {
            float m2 = m[(size_t)part * stride_ml + (size_t)i],
                  l2 = l[(size_t)part * stride_ml + (size_t)i];
            const float *x = acc + (size_t)part * stride_acc + (size_t)i * (size_t)head_dim;
            if (m2 == -INFINITY) {
                continue; /* nothing visible there: exp(-inf) = 0 would leave all as it is */
            }
            float top2 = m2 > top ? m2 : top;
            float old = kernel_exp(ref_sub(top, top2)), new = kernel_exp(ref_sub(m2, top2));
            sum = ref_fma(l2, new, ref_mul(sum, old));
            for (int d = 0; d < head_dim; d++) {
                a[d] = ref_fma(x[d], new, ref_mul(a[d], old));
            }
            top = top2;
        }
        for (int d = 0; d < head_dim; d++) {
            ref_store(out, (size_t)i * ldo + (size_t)d, ref_div(a[d], sum), t);
        }
    }
}

void ref_rope_store_bf16(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m, int head0,
                         int head1)
{
    rope_store(qkv, ldqkv, r, m, head0, head1, ACT_BF16);
}

void ref_rope_store_f32(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m, int head0,
                        int head1)
{
    rope_store(qkv, ldqkv, r, m, head0, head1, ACT_F32);
}

void ref_attn_part_bf16(const struct attn_part *p)
{
    attn_part(p, ACT_BF16);
}

void ref_attn_part_f32(const struct attn_part *p)
{
    attn_part(p, ACT_F32);
}

void ref_attn_merge_bf16(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                         const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim)
{
    attn_merge(out, ldo, m, l, stride_ml, acc, stride_acc, n_parts, n_q, head_dim, ACT_BF16);
}

void ref_attn_merge_f32(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                        const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim)
{
    attn_merge(out, ldo, m, l, stride_ml, acc, stride_acc, n_parts, n_q, head_dim, ACT_F32);
}
