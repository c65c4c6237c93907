/* SPDX-License-Identifier: Apache-2.0 */
/* Reference of attention: rotation and KV store, one partition, merge of partitions. */
#include "kernels/ref/math.h"
#include "kernels/ref/ref.h"

/* ---- KV tiles of 8 bits ---- */

static int mantissa_bits(enum kv_format f)
{
    return f == KV_F8_E4M3 ? 3 : 2;
}

static int low_exponent(enum kv_format f)
{
    return f == KV_F8_E4M3 ? -6 : -14;
}

static size_t code_at(size_t i, size_t j) /* at(i, j) of kernels.h */
{
    return j / 4 * 64 + i / 4 * 16 + j % 4 / 2 * 8 + i % 4 * 2 + j % 2;
}

static size_t k_at(size_t p, size_t d)
{
    return code_at(p, d);
}

static size_t v_at(size_t p, size_t d, size_t hd)
{
    return 16 * hd + d / 16 * 256 + code_at(d % 16, p);
}

/* The same in tiles of the activation type. */
static size_t wide_k_at(size_t p, size_t d)
{
    return d / 2 * 32 + p * 2 + d % 2;
}

static size_t wide_v_at(size_t p, size_t d, size_t hd)
{
    return 16 * hd + d / 16 * 256 + p / 2 * 32 + d % 16 * 2 + p % 2;
}

static float code_value(uint8_t c, enum kv_format f)
{
    if (f == KV_I8) {
        return c & 0x80 ? -(float)(c & 0x7f) : (float)c;
    }
    return ref_f8_value(c, mantissa_bits(f), low_exponent(f));
}

static uint8_t code_of(float x, float scale, enum kv_format f)
{
    const uint8_t sign = (uint8_t)(ref_bits(x) >> 24 & 0x80);
    float v = fabsf(ref_div(x, scale));
    if (f == KV_I8) {
        v = rintf(v);
        return (uint8_t)(sign | (int)(v > 127.0f ? 127.0f : v));
    }
    const int bits = mantissa_bits(f), low = low_exponent(f);
    v = ref_round_f8(v, f == KV_F8_E4M3 ? INPUT_E4M3 : INPUT_E5M2);
    if (v < ref_from_bits((uint32_t)(low + 127) << 23)) {
        return (uint8_t)(sign | (int)(v * ref_from_bits((uint32_t)(bits - low + 127) << 23)));
    }
    return (uint8_t)(sign | ((ref_bits(v) >> (23 - bits)) - ((uint32_t)(low + 126) << bits)));
}

/* The head's vector x to position p of a tile. */
static void store_codes(uint8_t *tile, const float *x, size_t hd, size_t p, int is_v,
                        enum kv_format f)
{
    const float limit = f == KV_I8 ? 127.0f : f == KV_F8_E4M3 ? 448.0f : 57344.0f;
    uint32_t most = 0;
    for (size_t d = 0; d < hd; d++) {
        const uint32_t size = ref_bits(x[d]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    const int finite = most < 0x7f800000u;
    const float share = ref_div(ref_from_bits(most), limit);
    const uint16_t s = finite ? f32_to_bf16(share > 1e-12f ? share : 1e-12f) : 0x7fc0;
    for (size_t d = 0; d < hd; d++) {
        tile[is_v ? v_at(p, d, hd) : k_at(p, d)] = finite ? code_of(x[d], bf16_to_f32(s), f) : 0;
    }
    memcpy(tile + 32 * hd + (is_v ? 32 : 0) + 2 * p, &s, 2);
}

static float scale_at(const void *tile, size_t hd, size_t p, int is_v)
{
    uint16_t s;
    memcpy(&s, (const uint8_t *)tile + 32 * hd + (is_v ? 32 : 0) + 2 * p, 2);
    return bf16_to_f32(s);
}

/* ---- any tile ---- */

static float k_value(const void *tile, size_t p, size_t d, enum kv_format f, enum act_type t)
{
    return f == KV_ACT ? ref_load(tile, wide_k_at(p, d), t)
                       : code_value(((const uint8_t *)tile)[k_at(p, d)], f);
}

static float v_value(const void *tile, size_t p, size_t d, size_t hd, enum kv_format f,
                     enum act_type t)
{
    return f == KV_ACT ? ref_load(tile, wide_v_at(p, d, hd), t)
                       : code_value(((const uint8_t *)tile)[v_at(p, d, hd)], f);
}

static void store_kv(void *tile, const float *x, size_t hd, size_t p, int is_v, enum kv_format f,
                     enum act_type t)
{
    if (f != KV_ACT) {
        store_codes(tile, x, hd, p, is_v, f);
        return;
    }
    for (size_t d = 0; d < hd; d++) {
        ref_store(tile, is_v ? wide_v_at(p, d, hd) : wide_k_at(p, d), x[d], t);
    }
}

static void rope_store(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m, int head0,
                       int head1, enum act_type t)
{
    size_t hd = (size_t)r->head_dim;
    int first_v = r->n_heads + r->n_kv_heads;
    for (int i = 0; i < m; i++) {
        const float *rope = r->rope + (size_t)i * hd;
        for (int h = head0; h < head1; h++) {
            const float *x = qkv + (size_t)i * ldqkv + (size_t)(h - head0) * hd;
            float turned[MAX_HEAD_DIM];
            for (size_t d = 0; d < hd && h < first_v; d += 2) {
                float c = rope[d], s = rope[d + 1], even = x[d], odd = x[d + 1];
                turned[d] = ref_fma(even, c, -ref_mul(odd, s));
                turned[d + 1] = ref_fma(odd, c, ref_mul(even, s));
            }
            if (h < r->n_heads) {
                void *q = ref_at(r->q, (size_t)i * r->ldq + (size_t)h * hd, t);
                for (size_t d = 0; d < hd; d++) {
                    ref_store(q, d, turned[d], t);
                }
            } else if (r->kv_tile[i]) {
                store_kv((char *)r->kv_tile[i] +
                             (size_t)((h - r->n_heads) % r->n_kv_heads) * r->kv_head_bytes,
                         h < first_v ? turned : x, hd, (size_t)r->slot[i], h >= first_v, r->kv, t);
            }
        }
    }
}

/* Score of one query against position j of the partition. */
static float score(const struct attn_part *p, size_t q, int j, enum act_type t)
{
    const void *tile = p->tiles[j / 16];
    const size_t at = (size_t)j % 16, hd = (size_t)p->head_dim;
    float s = 0.0f;
    for (size_t d = 0; d < hd; d += 2) {
        float odd = ref_fma(ref_load(p->q, q + d + 1, t), k_value(tile, at, d + 1, p->kv, t), s);
        s = ref_fma(ref_load(p->q, q + d, t), k_value(tile, at, d, p->kv, t), odd);
    }
    return p->kv == KV_ACT ? ref_mul(s, p->scale)
                           : ref_mul(s, ref_mul(scale_at(tile, hd, at, 0), p->scale));
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
            if (p->kv != KV_ACT) {
                s[j] = ref_mul(s[j], scale_at(p->tiles[j / 16], hd, (size_t)j % 16, 1));
            }
        }
        s[n] = 0.0f;
        p->m[i] = m;
        p->l[i] = ref_fold16(lane);
        for (size_t d = 0; d < hd; d++) {
            float acc = 0.0f;
            for (int j = 0; j < n; j += 2) {
                const void *tile = p->tiles[j / 16];
                const size_t at = (size_t)j % 16;
                float odd = j + 1 < n ? v_value(tile, at + 1, d, hd, p->kv, t) : 0.0f;
                acc = ref_fma(round_to(s[j + 1], t), odd, acc);
                acc = ref_fma(round_to(s[j], t), v_value(tile, at, d, hd, p->kv, t), acc);
            }
            p->acc[(size_t)i * hd + d] = ref_add(acc, 0.0f);
        }
    }
}

void ref_attn_fold(float *m, float *l, float *acc, const float *m2, const float *l2,
                   const float *acc2, int n_q, int head_dim)
{
    for (int i = 0; i < n_q; i++) {
        if (m2[i] == -INFINITY) {
            continue; /* nothing visible there: exp(-inf) = 0 would leave all as it is */
        }
        float *a = acc + (size_t)i * (size_t)head_dim;
        const float *b = acc2 + (size_t)i * (size_t)head_dim;
        float top = m2[i] > m[i] ? m2[i] : m[i];
        float old = kernel_exp(ref_sub(m[i], top)), new = kernel_exp(ref_sub(m2[i], top));
        l[i] = ref_fma(l2[i], new, ref_mul(l[i], old));
        for (int d = 0; d < head_dim; d++) {
            a[d] = ref_fma(b[d], new, ref_mul(a[d], old));
        }
        m[i] = top;
    }
}

static void attn_merge(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                       const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim,
                       enum act_type t)
{
    const size_t hd = (size_t)head_dim;
    for (int i = 0; i < n_q; i++) {
        float a[MAX_HEAD_DIM], top = m[i], sum = l[i];
        memcpy(a, acc + (size_t)i * hd, hd * sizeof *a);
        for (int part = 1; part < n_parts; part++) {
            const size_t at = (size_t)part * stride_ml + (size_t)i;
            ref_attn_fold(&top, &sum, a, m + at, l + at,
                          acc + (size_t)part * stride_acc + (size_t)i * hd, 1, head_dim);
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
