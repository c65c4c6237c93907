/* SPDX-License-Identifier: Apache-2.0 */
/* Rotation with KV store, attention of one partition, and the merge, on 16 lanes.
 *
 * Scores: 16 positions are the 16 lanes, because a K line holds one pair of dimensions of all 16
 * positions of a block; up to V16_QUERIES queries share each line. The weighted sum of V: 16
 * dimensions are the lanes, and the queries of a group share each V line for as many whole pairs of
 * positions as all of them see; what one sees beyond that it adds alone, a last odd position with
 * the other half of its pair put to zero. */
#ifndef TERN_KERNELS_LANES_ATTENTION_H
#define TERN_KERNELS_LANES_ATTENTION_H

#include "kernels/lanes/lanes.h"

LANES_INLINE void lanes_store_k(void *tile, size_t d, size_t slot, v16 x, enum act_type t)
{
    if (t == ACT_BF16) {
        uint16_t tmp[16], *to = (uint16_t *)tile + d * 16 + slot * 2;
        v16_store_bf16(tmp, x);
        for (size_t i = 0; i < 8; i++) {
            memcpy(to + i * 32, tmp + 2 * i, 4);
        }
    } else {
        float tmp[16], *to = (float *)tile + d * 16 + slot * 2;
        v16_store(tmp, x);
        for (size_t i = 0; i < 8; i++) {
            memcpy(to + i * 32, tmp + 2 * i, 8);
        }
    }
}

/* Single elements only: the other half of a pair is another row's, maybe another thread's. */
LANES_INLINE void lanes_store_v(void *tile, size_t head_dim, size_t d, size_t slot, v16 x,
                                enum act_type t)
{
    const size_t at = 16 * head_dim + slot / 2 * head_dim * 2 + d * 2 + slot % 2;
    if (t == ACT_BF16) {
        uint16_t tmp[16], *to = (uint16_t *)tile + at;
        v16_store_bf16(tmp, x);
        for (size_t i = 0; i < 16; i++) {
            to[2 * i] = tmp[i];
        }
    } else {
        float tmp[16], *to = (float *)tile + at;
        v16_store(tmp, x);
        for (size_t i = 0; i < 16; i++) {
            to[2 * i] = tmp[i];
        }
    }
}

LANES_INLINE void lanes_rope_store(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m,
                                   int head0, int head1, enum act_type t)
{
    const size_t hd = (size_t)r->head_dim;
    for (int i = 0; i < m; i++) {
        const float *rope = r->rope + (size_t)i * hd;
        const size_t slot = (size_t)r->slot[i];
        for (int h = head0; h < head1; h++) {
            const float *x = qkv + (size_t)i * ldqkv + (size_t)(h - head0) * hd;
            if (h < r->n_heads) {
                const size_t to = (size_t)i * r->ldq + (size_t)h * hd;
                for (size_t d = 0; d < hd; d += 16) {
                    lanes_store(r->q, to + d, v16_rotate(v16_load(x + d), v16_load(rope + d)), 16,
                                t);
                }
                continue;
            }
            char *tile = r->kv_tile[i];
            if (!tile) {
                continue;
            }
            tile += (size_t)((h - r->n_heads) % r->n_kv_heads) * r->kv_head_bytes;
            if (h < r->n_heads + r->n_kv_heads) {
                for (size_t d = 0; d < hd; d += 16) {
                    lanes_store_k(tile, d, slot, v16_rotate(v16_load(x + d), v16_load(rope + d)),
                                  t);
                }
            } else {
                for (size_t d = 0; d < hd; d += 16) {
                    lanes_store_v(tile, hd, d, slot, v16_load(x + d), t);
                }
            }
        }
    }
}

LANES_INLINE void lanes_pair(const void *p, size_t i, v16 *even, v16 *odd, enum act_type t)
{
    if (t == ACT_BF16) {
        v16_pair_bf16((const uint16_t *)p + i, even, odd);
    } else {
        v16_pair_f32((const float *)p + i, even, odd);
    }
}

LANES_INLINE v16 lanes_chain(v16 acc, const float *a, v16 even, v16 odd)
{
    return v16_fma(v16_set1(a[0]), even, v16_fma(v16_set1(a[1]), odd, acc));
}

/* Scores of n (<= V16_QUERIES) queries against one block. A missing query repeats query 0. */
LANES_INLINE void lanes_scores(float *const s[8], const float *const q[8], const void *tile, int hd,
                               v16 scale, enum act_type t)
{
    const float *q0 = q[0], *q1 = q[1], *q2 = q[2], *q3 = q[3], *q4 = q[4], *q5 = q[5], *q6 = q[6],
                *q7 = q[7];
    v16 c0, c1, c2, c3, c4, c5, c6, c7, even, odd;
    c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = v16_zero();
    for (int d = 0; d < hd; d += 2) {
        lanes_pair(tile, (size_t)d * 16, &even, &odd, t);
        c0 = lanes_chain(c0, q0 + d, even, odd);
        c1 = lanes_chain(c1, q1 + d, even, odd);
        c2 = lanes_chain(c2, q2 + d, even, odd);
        c3 = lanes_chain(c3, q3 + d, even, odd);
        if (V16_QUERIES > 4) {
            c4 = lanes_chain(c4, q4 + d, even, odd);
            c5 = lanes_chain(c5, q5 + d, even, odd);
            c6 = lanes_chain(c6, q6 + d, even, odd);
            c7 = lanes_chain(c7, q7 + d, even, odd);
        }
    }
    v16_store(s[0], v16_mul(c0, scale));
    v16_store(s[1], v16_mul(c1, scale));
    v16_store(s[2], v16_mul(c2, scale));
    v16_store(s[3], v16_mul(c3, scale));
    if (V16_QUERIES > 4) {
        v16_store(s[4], v16_mul(c4, scale));
        v16_store(s[5], v16_mul(c5, scale));
        v16_store(s[6], v16_mul(c6, scale));
        v16_store(s[7], v16_mul(c7, scale));
    }
}

/* Scores of n visible positions -> probabilities rounded to the activation type, in place; *m and
 * *l. Lanes of the last block beyond n become 0. */
LANES_INLINE void lanes_softmax(float *s, int n, float *m, float *l, enum act_type t)
{
    v16 top = v16_set1(-INFINITY), sum = v16_zero();
    for (int j = 0; j < n; j += 16) {
        top = v16_max(v16_keep_n(v16_load(s + j), lanes_count(j, n), top), top);
    }
    *m = v16_fold_max(top);
    top = v16_set1(*m);
    for (int j = 0; j < n; j += 16) {
        v16 p = lanes_exp(v16_sub(v16_load(s + j), top));
        p = v16_keep_n(p, lanes_count(j, n), v16_zero());
        sum = v16_add(sum, p);
        v16_store(s + j, t == ACT_BF16 ? v16_round_bf16(p) : p);
    }
    *l = v16_fold_add(sum);
}

/* Dimensions d .. d + 15 of the weighted sum, whole pairs of positions 0 .. n_pairs - 1, for a
 * group of queries. */
LANES_INLINE void lanes_weigh(float *const acc[8], const float *const p[8],
                              const void *const *tiles, int hd, int d, int n_pairs, enum act_type t)
{
    const float *p0 = p[0], *p1 = p[1], *p2 = p[2], *p3 = p[3], *p4 = p[4], *p5 = p[5], *p6 = p[6],
                *p7 = p[7];
    v16 c0, c1, c2, c3, c4, c5, c6, c7, even, odd;
    c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = v16_zero();
    for (int j = 0; j < n_pairs; j++) {
        lanes_pair(tiles[j / 8], (size_t)(16 * hd + j % 8 * hd * 2 + d * 2), &even, &odd, t);
        c0 = lanes_chain(c0, p0 + 2 * j, even, odd);
        c1 = lanes_chain(c1, p1 + 2 * j, even, odd);
        c2 = lanes_chain(c2, p2 + 2 * j, even, odd);
        c3 = lanes_chain(c3, p3 + 2 * j, even, odd);
        if (V16_QUERIES > 4) {
            c4 = lanes_chain(c4, p4 + 2 * j, even, odd);
            c5 = lanes_chain(c5, p5 + 2 * j, even, odd);
            c6 = lanes_chain(c6, p6 + 2 * j, even, odd);
            c7 = lanes_chain(c7, p7 + 2 * j, even, odd);
        }
    }
    v16_store(acc[0] + d, c0);
    v16_store(acc[1] + d, c1);
    v16_store(acc[2] + d, c2);
    v16_store(acc[3] + d, c3);
    if (V16_QUERIES > 4) {
        v16_store(acc[4] + d, c4);
        v16_store(acc[5] + d, c5);
        v16_store(acc[6] + d, c6);
        v16_store(acc[7] + d, c7);
    }
}

/* What query sees after the shared pairs, and the final + 0. */
LANES_INLINE void lanes_weigh_rest(float *acc, const float *p, const void *const *tiles, int hd,
                                   int from_pair, int n, enum act_type t)
{
    for (int d = 0; d < hd; d += 16) {
        v16 c = v16_load(acc + d), even, odd;
        for (int j = from_pair; 2 * j < n; j++) {
            lanes_pair(tiles[j / 8], (size_t)(16 * hd + j % 8 * hd * 2 + d * 2), &even, &odd, t);
            if (2 * j + 1 == n) {
                odd = v16_zero();
            }
            c = lanes_chain(c, p + 2 * j, even, odd);
        }
        v16_store(acc + d, v16_add(c, v16_zero()));
    }
}

/* Smallest and largest of the visible counts of queries i .. i + n - 1. */
LANES_INLINE void lanes_visible(const struct attn_part *part, int i, int n, int *least, int *most)
{
    *least = *most = part->visible[i];
    for (int g = 1; g < n; g++) {
        const int v = part->visible[i + g];
        *least = v < *least ? v : *least;
        *most = v > *most ? v : *most;
    }
}

LANES_INLINE void lanes_attn_part(const struct attn_part *part, enum act_type t)
{
    const int hd = part->head_dim;
    float *const scores = part->scratch, *const wide = scores + ATTN_MAX_Q * ATTN_PARTITION;
    const v16 scale = v16_set1(part->scale);
    for (int i = 0; i < part->n_q; i += V16_QUERIES) {
        const int n = part->n_q - i < V16_QUERIES ? part->n_q - i : V16_QUERIES;
        const float *q[8];
        float *s[8], *acc[8];
        int least, most;
        lanes_visible(part, i, n, &least, &most);
        for (int g = 0; g < 8; g++) {
            const size_t at = (size_t)(i + (g < n ? g : 0));
            const void *row = (const char *)part->q + at * (size_t)hd * act_size(t);
            s[g] = scores + (at - (size_t)i) * ATTN_PARTITION;
            acc[g] = part->acc + at * (size_t)hd;
            q[g] = t == ACT_F32 ? row : wide + (at - (size_t)i) * MAX_HEAD_DIM;
            if (t == ACT_BF16 && g < n) {
                for (int d = 0; d < hd; d += 16) {
                    v16_store(wide + (size_t)g * MAX_HEAD_DIM + d,
                              v16_load_bf16((const uint16_t *)row + d));
                }
            }
        }
        for (int b = 0; b * 16 < most; b++) {
            lanes_scores(s, q, part->tiles[b], hd, scale, t);
            for (int g = 0; g < 8; g++) {
                s[g] += 16;
            }
        }
        for (int g = 0; g < 8; g++) {
            s[g] = scores + (g < n ? g : 0) * ATTN_PARTITION;
        }
        for (int g = 0; g < n; g++) {
            lanes_softmax(s[g], part->visible[i + g], &part->m[i + g], &part->l[i + g], t);
        }
        for (int d = 0; d < hd; d += 16) {
            lanes_weigh(acc, (const float *const *)s, part->tiles, hd, d, least / 2, t);
        }
        for (int g = 0; g < n; g++) {
            lanes_weigh_rest(acc[g], s[g], part->tiles, hd, least / 2, part->visible[i + g], t);
        }
    }
}

LANES_INLINE void lanes_attn_merge(void *out, size_t ldo, const float *m, const float *l,
                                   size_t stride_ml, const float *acc, size_t stride_acc,
                                   int n_parts, int n_q, int hd, enum act_type t)
{
    for (int i = 0; i < n_q; i++) {
        float a[MAX_HEAD_DIM];
        float top = m[i], sum = l[i];
        for (int d = 0; d < hd; d += 16) {
            v16_store(a + d, v16_load(acc + (size_t)i * (size_t)hd + d));
        }
        for (int part = 1; part < n_parts; part++) {
            const size_t at = (size_t)part * stride_ml + (size_t)i;
            const float *x = acc + (size_t)part * stride_acc + (size_t)i * (size_t)hd;
            if (m[at] == -INFINITY) {
                continue;
            }
            const float top2 = m[at] > top ? m[at] : top;
            const v16 old = lanes_exp(v16_set1(top - top2)),
                      new = lanes_exp(v16_set1(m[at] - top2));
            sum = v16_lane0(v16_fma(v16_set1(l[at]), new, v16_mul(v16_set1(sum), old)));
            for (int d = 0; d < hd; d += 16) {
                v16_store(a + d, v16_fma(v16_load(x + d), new, v16_mul(v16_load(a + d), old)));
            }
            top = top2;
        }
        for (int d = 0; d < hd; d += 16) {
            lanes_store(out, (size_t)i * ldo + (size_t)d, v16_div(v16_load(a + d), v16_set1(sum)),
                        16, t);
        }
    }
}

#endif
