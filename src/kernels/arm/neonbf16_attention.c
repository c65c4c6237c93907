/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one partition with BFMLAL, over KV of 16 bits: a tile of K is a weight tile of
 * head_dim columns, 16 dimensions of V are one of positions, and up to six queries are the rows. What
 * a query sees beyond the whole pairs that all of its group see, and KV of 8 bits, is NEON's. */
#include "kernels/arm/neon_v16.h"

#include "kernels/arm/neon.h"
#include "kernels/arm/neonbf16_micro.h"
#include "kernels/lanes/attention.h"

struct attention {
    const struct attn_part *part;
    float *s;    /* [n_q][ATTN_PARTITION] scores, then weights of V */
    uint16_t *p; /* the weights as bf16, which they are rounded to */
};

static __attribute__((noinline)) void rows_of(int n_rows, const struct chain_args *s)
{
    ROW_COUNTS(n_rows, chain_rows, s)
}

static void scores(const struct attention *x, const struct lanes_group *g, const void *tile,
                   int block)
{
    const size_t hd = (size_t)x->part->head_dim;
    struct chain_args s = {.c = x->s + (size_t)g->first * ATTN_PARTITION + block * KV_BLOCK_TOKENS,
                           .ldc = ATTN_PARTITION,
                           .a = (const uint16_t *)x->part->q + (size_t)g->first * hd,
                           .lda = hd,
                           .b = tile,
                           .line = 32,
                           .pairs = x->part->head_dim / 2,
                           .is_first = 1};
    rows_of(g->n, &s);
    for (int i = 0; i < g->n; i++) {
        float *to = s.c + (size_t)i * ATTN_PARTITION;
        v16_store(to, v16_mul(v16_load(to), v16_set1(x->part->scale)));
    }
}

/* Dimensions d .. d + 15 for a group. */
static void weigh(const struct attention *x, const struct lanes_group *g, int d)
{
    const struct attn_part *part = x->part;
    const size_t hd = (size_t)part->head_dim;
    const int shared = g->least / 2;
    struct chain_args s = {.c = part->acc + (size_t)g->first * hd + d,
                           .ldc = hd,
                           .lda = ATTN_PARTITION,
                           .line = 32,
                           .is_first = 1};
    for (int from = 0; from == 0 || from < shared; from += 8) { /* a tile; once for zeros */
        s.a = x->p + (size_t)g->first * ATTN_PARTITION + 2 * from;
        s.pairs = shared - from < 8 ? shared - from : 8;
        s.is_first = from == 0;
        s.b = shared == 0 ? NULL : (const uint16_t *)part->tiles[from / 8] + 16 * (hd + (size_t)d);
        rows_of(g->n, &s);
    }
    const struct lanes_v v = {part->tiles, NULL, part->head_dim, d};
    for (int i = g->first; i < g->first + g->n; i++) {
        lanes_weigh_rest(part->acc + (size_t)i * hd, x->s + (size_t)i * ATTN_PARTITION, &v, shared,
                         part->visible[i], TILE_BF16);
    }
}

void neonbf16_attn_part(const struct attn_part *part)
{
    if (part->kv != KV_ACT) {
        neon_attn_part_bf16(part);
        return;
    }
    struct attention x = {.part = part, .s = part->scratch};
    x.p = (uint16_t *)(void *)(x.s + ATTN_MAX_Q * ATTN_PARTITION);
    for (int i = 0; i < part->n_q; i += MICRO_ROWS) {
        const struct lanes_group g = lanes_group_of(part, i, MICRO_ROWS);
        for (int b = 0; b * KV_BLOCK_TOKENS < g.most; b++) {
            scores(&x, &g, part->tiles[b], b);
        }
    }
    for (int i = 0; i < part->n_q; i++) {
        float *s = x.s + (size_t)i * ATTN_PARTITION;
        lanes_softmax(s, part->visible[i], NULL, &part->m[i], &part->l[i], ACT_BF16);
        for (int j = 0; j < part->visible[i]; j += 16) {
            v16_store_bf16(x.p + (size_t)i * ATTN_PARTITION + j, v16_load(s + j));
        }
    }
    for (int i = 0; i < part->n_q; i += MICRO_ROWS) {
        const struct lanes_group g = lanes_group_of(part, i, MICRO_ROWS);
        for (int d = 0; d < part->head_dim; d += 16) {
            weigh(&x, &g, d);
        }
    }
}
