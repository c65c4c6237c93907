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

#include "kernels/lanes/kv.h"

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
            uint8_t *tile = r->kv_tile[i];
            if (!tile) {
                continue;
            }
            tile += (size_t)((h - r->n_heads) % r->n_kv_heads) * r->kv_head_bytes;
            const int is_v = h >= r->n_heads + r->n_kv_heads;
            float turned[MAX_HEAD_DIM];
            for (size_t d = 0; d < hd && !is_v; d += 16) {
                v16_store(turned + d, v16_rotate(v16_load(x + d), v16_load(rope + d)));
            }
            if (r->kv != KV_ACT) {
                lanes_store_codes(tile, is_v ? x : turned, hd, slot, is_v, r->kv);
                continue;
            }
            for (size_t d = 0; d < hd; d += 16) {
                if (is_v) {
                    lanes_store_v(tile, hd, d, slot, v16_load(x + d), t);
                } else {
                    lanes_store_k(tile, d, slot, v16_load(turned + d), t);
                }
            }
        }
    }
}

/* A pair of lines of K or V: elements of the activation type, or decoded ones. */
enum lanes_tile_type { TILE_BF16, TILE_F32, TILE_DECODED };

LANES_INLINE void lanes_pair(const void *p, size_t i, v16 *even, v16 *odd, enum lanes_tile_type t)
{
    if (t == TILE_BF16) {
        v16_pair_bf16((const uint16_t *)p + i, even, odd);
    } else if (t == TILE_DECODED) {
        *even = v16_load((const float *)p + i);
        *odd = v16_load((const float *)p + i + 16);
    } else {
        v16_pair_f32((const float *)p + i, even, odd);
    }
}

LANES_INLINE v16 lanes_chain(v16 acc, const float *a, v16 even, v16 odd)
{
    return v16_fma(v16_set1(a[0]), even, v16_fma(v16_set1(a[1]), odd, acc));
}

/* The queries of a group, and where a row of theirs is; a missing query repeats the first. */
struct lanes_group {
    int first, n;
    int least, most; /* visible positions */
};

LANES_INLINE const float *lanes_member(const float *base, size_t ld, const struct lanes_group *g,
                                       int i)
{
    return base + (size_t)(g->first + (i < g->n ? i : 0)) * ld;
}

/* Scores of a group against one block; scale of 16 positions. */
LANES_INLINE void lanes_scores(float *s, const float *q, const struct lanes_group *g,
                               const void *tile, int hd, v16 scale, enum lanes_tile_type t)
{
    const size_t ld = (size_t)hd;
    const float *q0 = lanes_member(q, ld, g, 0), *q1 = lanes_member(q, ld, g, 1),
                *q2 = lanes_member(q, ld, g, 2), *q3 = lanes_member(q, ld, g, 3),
                *q4 = lanes_member(q, ld, g, 4), *q5 = lanes_member(q, ld, g, 5),
                *q6 = lanes_member(q, ld, g, 6), *q7 = lanes_member(q, ld, g, 7);
    v16 c[8], even, odd;
    v16 c0, c1, c2, c3, c4, c5, c6, c7;
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
    c[0] = c0, c[1] = c1, c[2] = c2, c[3] = c3, c[4] = c4, c[5] = c5, c[6] = c6, c[7] = c7;
    for (int i = 0; i < g->n; i++) {
        v16_store(s + (size_t)(g->first + i) * ATTN_PARTITION, v16_mul(c[i], scale));
    }
}

/* Scores of n visible positions -> weights of V rounded to the activation type, in place; *m and
 * *l. vscale: [n] scales of V, or NULL. Lanes of the last block beyond n become 0. */
LANES_INLINE void lanes_softmax(float *s, int n, const float *vscale, float *m, float *l,
                                enum act_type t)
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
        if (vscale != NULL) {
            p = v16_keep_n(v16_mul(p, v16_load(vscale + j)), lanes_count(j, n), v16_zero());
        }
        v16_store(s + j, t == ACT_BF16 ? v16_round_bf16(p) : p);
    }
    *l = v16_fold_add(sum);
}

/* Where lines of V are: pair j of positions, dimensions from d on. */
struct lanes_v {
    const void *const *tiles; /* KV_ACT */
    const float *decoded;     /* one group of 16 dimensions: [pair][even, odd][16] */
    int hd, d;
};

LANES_INLINE void lanes_v_pair(const struct lanes_v *v, int j, v16 *even, v16 *odd,
                               enum lanes_tile_type t)
{
    if (t == TILE_DECODED) {
        lanes_pair(v->decoded, (size_t)j * 32, even, odd, t);
    } else {
        lanes_pair(v->tiles[j / 8], (size_t)(16 * (v->hd + v->d) + j % 8 * 32), even, odd, t);
    }
}

/* Dimensions v->d .. + 15 of the weighted sum over pairs 0 .. n_pairs - 1, for a group. */
LANES_INLINE void lanes_weigh(float *acc, const float *p, const struct lanes_group *g,
                              const struct lanes_v *v, int n_pairs, enum lanes_tile_type t)
{
    const size_t ld = ATTN_PARTITION;
    const float *p0 = lanes_member(p, ld, g, 0), *p1 = lanes_member(p, ld, g, 1),
                *p2 = lanes_member(p, ld, g, 2), *p3 = lanes_member(p, ld, g, 3),
                *p4 = lanes_member(p, ld, g, 4), *p5 = lanes_member(p, ld, g, 5),
                *p6 = lanes_member(p, ld, g, 6), *p7 = lanes_member(p, ld, g, 7);
    v16 c[8], even, odd;
    v16 c0, c1, c2, c3, c4, c5, c6, c7;
    c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = v16_zero();
    for (int j = 0; j < n_pairs; j++) {
        lanes_v_pair(v, j, &even, &odd, t);
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
    c[0] = c0, c[1] = c1, c[2] = c2, c[3] = c3, c[4] = c4, c[5] = c5, c[6] = c6, c[7] = c7;
    for (int i = 0; i < g->n; i++) {
        v16_store(acc + (size_t)(g->first + i) * (size_t)v->hd + v->d, c[i]);
    }
}

/* What one query sees after the shared pairs, and the final + 0. */
LANES_INLINE void lanes_weigh_rest(float *acc, const float *p, const struct lanes_v *v,
                                   int from_pair, int n, enum lanes_tile_type t)
{
    v16 c = v16_load(acc + v->d), even, odd;
    for (int j = from_pair; 2 * j < n; j++) {
        lanes_v_pair(v, j, &even, &odd, t);
        if (2 * j + 1 == n) {
            odd = v16_zero();
        }
        c = lanes_chain(c, p + 2 * j, even, odd);
    }
    v16_store(acc + v->d, v16_add(c, v16_zero()));
}

/* At most `most` queries from `first` on. */
LANES_INLINE struct lanes_group lanes_group_of(const struct attn_part *part, int first, int most)
{
    const int left = part->n_q - first;
    struct lanes_group g = {first, left < most ? left : most, part->visible[first],
                            part->visible[first]};
    for (int i = 1; i < g.n; i++) {
        const int v = part->visible[first + i];
        g.least = v < g.least ? v : g.least;
        g.most = v > g.most ? v : g.most;
    }
    return g;
}

/* Parts of the scratch. */
struct lanes_attn {
    float *s;                /* [ATTN_MAX_Q][ATTN_PARTITION] scores, then weights */
    float *wide;             /* [ATTN_MAX_Q][head_dim] */
    float *decoded, *vscale; /* a tile of K, 16 dimensions of V; [ATTN_PARTITION] */
};

/* All scores, tile by tile, so that a tile is decoded once. */
LANES_INLINE void lanes_all_scores(const struct attn_part *part, const struct lanes_attn *a,
                                   const float *q, int most, enum lanes_tile_type t)
{
    const int hd = part->head_dim;
    for (int b = 0; b * 16 < most; b++) {
        const void *tile = part->tiles[b];
        v16 scale = v16_set1(part->scale);
        if (t == TILE_DECODED) {
            scale = v16_mul(lanes_kv_scales(tile, (size_t)hd, 0), scale);
            v16_store(a->vscale + b * 16, lanes_kv_scales(tile, (size_t)hd, 1));
            lanes_decode_codes(a->decoded, tile, (size_t)hd / 4, part->kv);
            tile = a->decoded;
        }
        for (int i = 0; i < part->n_q; i += V16_QUERIES) {
            const struct lanes_group g = lanes_group_of(part, i, V16_QUERIES);
            if (b * 16 < g.most) {
                lanes_scores(a->s + b * 16, q, &g, tile, hd, scale, t);
            }
        }
    }
}

LANES_INLINE void lanes_all_sums(const struct attn_part *part, const struct lanes_attn *a, int most,
                                 enum lanes_tile_type t)
{
    struct lanes_v v = {part->tiles, a->decoded, part->head_dim, 0};
    const size_t hd = (size_t)v.hd;
    for (; v.d < v.hd; v.d += 16) {
        for (size_t b = 0; t == TILE_DECODED && b * 16 < (size_t)most; b++) {
            lanes_decode_codes(a->decoded + b * 256,
                               (const uint8_t *)part->tiles[b] + 16 * hd + (size_t)v.d * 16, 4,
                               part->kv);
        }
        for (int i = 0; i < part->n_q; i += V16_QUERIES) {
            const struct lanes_group g = lanes_group_of(part, i, V16_QUERIES);
            lanes_weigh(part->acc, a->s, &g, &v, g.least / 2, t);
            for (int j = i; j < i + g.n; j++) {
                lanes_weigh_rest(part->acc + (size_t)j * hd, a->s + (size_t)j * ATTN_PARTITION, &v,
                                 g.least / 2, part->visible[j], t);
            }
        }
    }
}

LANES_INLINE void lanes_attn_part_of(const struct attn_part *part, enum act_type t,
                                     enum lanes_tile_type tile)
{
    const int hd = part->head_dim, n = part->n_q * hd;
    struct lanes_attn a = {.s = part->scratch};
    a.wide = a.s + ATTN_MAX_Q * ATTN_PARTITION;
    a.decoded = a.wide + ATTN_MAX_Q * MAX_HEAD_DIM;
    a.vscale = a.decoded + ATTN_PARTITION * MAX_HEAD_DIM;
    const float *q = t == ACT_F32 ? part->q : a.wide;
    for (int i = 0; t == ACT_BF16 && i < n; i += 16) {
        v16_store(a.wide + i, v16_load_bf16((const uint16_t *)part->q + i));
    }
    int most = 0;
    for (int i = 0; i < part->n_q; i++) {
        most = part->visible[i] > most ? part->visible[i] : most;
    }
    lanes_all_scores(part, &a, q, most, tile);
    for (int i = 0; i < part->n_q; i++) {
        lanes_softmax(a.s + (size_t)i * ATTN_PARTITION, part->visible[i],
                      tile == TILE_DECODED ? a.vscale : NULL, &part->m[i], &part->l[i], t);
    }
    lanes_all_sums(part, &a, most, tile);
}

LANES_INLINE void lanes_attn_part(const struct attn_part *part, enum act_type t)
{
    if (part->kv != KV_ACT) {
        lanes_attn_part_of(part, t, TILE_DECODED);
    } else if (t == ACT_BF16) {
        lanes_attn_part_of(part, t, TILE_BF16);
    } else {
        lanes_attn_part_of(part, t, TILE_F32);
    }
}

LANES_INLINE void lanes_attn_fold(float *m, float *l, float *acc, const float *m2, const float *l2,
                                  const float *acc2, int n_q, int hd)
{
    for (int i = 0; i < n_q; i++) {
        float *a = acc + (size_t)i * (size_t)hd;
        const float *b = acc2 + (size_t)i * (size_t)hd;
        if (m2[i] == -INFINITY) {
            continue;
        }
        const float top = m2[i] > m[i] ? m2[i] : m[i];
        const v16 old = lanes_exp(v16_set1(m[i] - top)), new = lanes_exp(v16_set1(m2[i] - top));
        l[i] = v16_lane0(v16_fma(v16_set1(l2[i]), new, v16_mul(v16_set1(l[i]), old)));
        for (int d = 0; d < hd; d += 16) {
            v16_store(a + d, v16_fma(v16_load(b + d), new, v16_mul(v16_load(a + d), old)));
        }
        m[i] = top;
    }
}

LANES_INLINE void lanes_attn_merge(void *out, size_t ldo, const float *m, const float *l,
                                   size_t stride_ml, const float *acc, size_t stride_acc,
                                   int n_parts, int n_q, int hd, enum act_type t)
{
    for (int i = 0; i < n_q; i++) {
        float a[MAX_HEAD_DIM], top[1] = {m[i]}, sum[1] = {l[i]};
        memcpy(a, acc + (size_t)i * (size_t)hd, (size_t)hd * sizeof *a);
        for (int part = 1; part < n_parts; part++) {
            const size_t at = (size_t)part * stride_ml + (size_t)i;
            lanes_attn_fold(top, sum, a, m + at, l + at,
                            acc + (size_t)part * stride_acc + (size_t)i * (size_t)hd, 1, hd);
        }
        for (int d = 0; d < hd; d += 16) {
            lanes_store(out, (size_t)i * ldo + (size_t)d,
                        v16_div(v16_load(a + d), v16_set1(sum[0])), 16, t);
        }
    }
}

#endif
