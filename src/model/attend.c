/* SPDX-License-Identifier: Apache-2.0 */
/* Attention work of a step; see attend.h. Only blocks that hold a visible position are ever looked
 * up in a block table. Items are taken from the end of the list: the last tiles of a prompt see the
 * most positions, and long work started first leaves the shortest wait at the barrier. */
#include "model/attend.h"

#include <string.h>

#define PIECES_PER_WORKER 3 /* split items until each worker has about this many pieces */
#define PARTIAL_SEQS      4 /* the partial buffer holds this many longest sequences in decode, */
#define PARTIAL_FLOATS    (2u << 20) /* but beyond this size one */
#define TILE_OVERHEAD     8          /* cost of a partition beside its queries: reading K and V */
#define PART_TILES        (ATTN_PARTITION / KV_BLOCK_TOKENS)

static int tile_rows(const struct forward_dims *d)
{
    return ATTN_MAX_Q / d->group;
}

static int n_parts_at(int kv_index)
{
    return kv_index / ATTN_PARTITION + 1;
}

void attend_carve(struct attend *at, const struct forward_dims *d, struct carver *c)
{
    size_t head_dim = (size_t)d->c->head_dim, parts = (size_t)d->max_parts, f32 = sizeof(float);
    at->max_merges = d->n_workers * PIECES_PER_WORKER;
    at->max_items = (d->max_rows / tile_rows(d) + d->max_seqs) * d->c->n_kv_heads +
                    2 * d->n_workers * PIECES_PER_WORKER;
    at->items = carve(c, (size_t)at->max_items * sizeof *at->items);
    at->merges = carve(c, (size_t)at->max_merges * sizeof *at->merges);
    const size_t one = parts * (size_t)d->c->n_heads * (head_dim + 2) + 4096;
    at->partial_floats = PARTIAL_SEQS * one < PARTIAL_FLOATS ? PARTIAL_SEQS * one
                         : one > PARTIAL_FLOATS              ? one
                                                             : PARTIAL_FLOATS;
    at->partial = carve(c, at->partial_floats * f32);
    at->workers = carve(c, (size_t)d->n_workers * sizeof *at->workers);
    for (int i = 0; i < d->n_workers; i++) {
        struct attend_scratch s;
        s.q = carve(c, ATTN_MAX_Q * head_dim * d->elem);
        s.m = carve(c, 2 * ATTN_MAX_Q * f32);
        s.l = carve(c, 2 * ATTN_MAX_Q * f32);
        s.acc = carve(c, 2 * ATTN_MAX_Q * head_dim * f32);
        s.scratch = carve(c, ATTN_SCRATCH_FLOATS * f32);
        if (c->base != NULL) {
            at->workers[i] = s;
        }
    }
}

static int64_t cost_of(const struct forward_dims *d, const struct attend_item *it)
{
    return (int64_t)(it->part1 - it->part0) * (it->n_rows * d->group + TILE_OVERHEAD);
}

/* Gives an item of n_parts partitions room for partial results; -1 when there is none. */
static int reserve_merge(struct attend *at, const struct forward_dims *d,
                         const struct attend_item *it, size_t *used)
{
    size_t n_q = (size_t)(it->n_rows * d->group), n_parts = (size_t)it->part1,
           head_dim = (size_t)d->c->head_dim;
    size_t ml = (n_parts * n_q + 15) / 16 * 16, floats = 2 * ml + n_parts * n_q * head_dim;
    if (at->n_merges == at->max_merges || floats > at->partial_floats - *used) {
        return -1;
    }
    float *base = at->partial + *used;
    *used += floats;
    at->merges[at->n_merges] = (struct attend_merge){it->row0, it->n_rows, it->kv_head,  it->part1,
                                                     base,     base + ml,  base + 2 * ml};
    return at->n_merges++;
}

/* Cuts items that are large against an even share. */
static void split_items(struct attend *at, const struct forward *f)
{
    const struct forward_dims *d = &f->d;
    int64_t total = 0, largest = 0;
    for (int i = 0; i < at->n_items; i++) {
        int64_t cost = cost_of(d, &at->items[i]);
        total += cost;
        largest = cost > largest ? cost : largest;
    }
    int64_t target = total / (d->n_workers * PIECES_PER_WORKER) + 1;
    int balanced = at->n_items == d->n_workers && largest * d->n_workers <= total + total / 16;
    if (d->n_workers == 1 || balanced || largest <= target) {
        return;
    }
    size_t used = 0;
    for (int i = 0, n = at->n_items; i < n; i++) {
        struct attend_item it = at->items[i];
        int64_t pieces = cost_of(d, &it) / target;
        pieces = pieces < it.part1 ? pieces : it.part1;
        if (pieces < 2 || at->n_items + pieces > at->max_items ||
            (it.merge = reserve_merge(at, d, &it, &used)) < 0) {
            continue;
        }
        int n_parts = it.part1;
        for (int p = 0; p < (int)pieces; p++) {
            cpu_split(n_parts, 1, p, (int)pieces, &it.part0, &it.part1);
            at->items[p == 0 ? i : at->n_items++] = it;
        }
    }
}

void attend_prepare(struct attend *at, const struct forward *f)
{
    const struct forward_batch *b = f->in.b;
    int step = tile_rows(&f->d);
    at->n_items = at->n_merges = 0;
    for (int s = 0; s < b->n_seqs; s++) {
        const struct forward_seq *seq = &b->seqs[s];
        for (int r = 0; r < seq->n_rows; r += step) {
            int n = seq->n_rows - r < step ? seq->n_rows - r : step, row0 = seq->first_row + r;
            for (int h = 0; h < f->d.c->n_kv_heads; h++) {
                at->items[at->n_items++] = (struct attend_item){
                    s, row0, n, h, 0, n_parts_at(b->kv_index[row0 + n - 1]), -1};
            }
        }
    }
    split_items(at, f);
}

/* The item's query vectors, contiguous: in place for one row, else gathered. */
static const void *gather_q(const struct forward_dims *d, const struct attend_item *it,
                            const void *q, void *scratch)
{
    size_t bytes = (size_t)(d->group * d->c->head_dim) * d->elem;
    const uint8_t *first =
        (const uint8_t *)row_at(d, q, d->ld_q, it->row0) + (size_t)it->kv_head * bytes;
    if (it->n_rows == 1 && (uintptr_t)first % 64 == 0) {
        return first;
    }
    for (int r = 0; r < it->n_rows; r++) {
        memcpy((uint8_t *)scratch + (size_t)r * bytes, first + (size_t)r * d->ld_q * d->elem,
               bytes);
    }
    return scratch;
}

/* Tiles of a partition's first n positions; returns how many. */
static int find_tiles(const struct forward *f, const struct attend_item *it, int layer, int part,
                      int n, const void **tiles)
{
    const int32_t *table = f->in.b->seqs[it->seq].block_table + part * PART_TILES;
    int t = 0;
    for (; t * KV_BLOCK_TOKENS < n; t++) {
        tiles[t] = kv_store_tile(f->kv, layer, table[t], it->kv_head);
    }
    return t;
}

/* Positions of a partition that the row sees. */
static int visible_in(const struct forward *f, int row, int part)
{
    int n = f->in.b->kv_index[row] + 1 - part * ATTN_PARTITION;
    return n < 0 ? 0 : n > ATTN_PARTITION ? ATTN_PARTITION : n;
}

/* tiles: [2][PART_TILES], those of `part` in the first half; the next partition's are found. */
static int run_part(const struct forward *f, const struct attend_item *it, int layer, int part,
                    const void *q, const void **tiles, float *m, float *l, float *acc,
                    float *scratch)
{
    const struct forward_dims *d = &f->d;
    int32_t visible[ATTN_MAX_Q];
    for (int r = 0; r < it->n_rows; r++) {
        int n = visible_in(f, it->row0 + r, part);
        for (int h = 0; h < d->group; h++) {
            visible[r * d->group + h] = n;
        }
    }
    const int last = it->row0 + it->n_rows - 1;
    const int next = part + 1 < it->part1 ? visible_in(f, last, part + 1) : 0;
    struct attn_part p = {.q = q,
                          .n_q = it->n_rows * d->group,
                          .head_dim = d->c->head_dim,
                          .scale = d->attn_scale,
                          .visible = visible,
                          .kv = kv_store_layout(f->kv)->format,
                          .tiles = tiles,
                          .next = tiles + PART_TILES,
                          .n_next = find_tiles(f, it, layer, part + 1, next, tiles + PART_TILES),
                          .m = m,
                          .l = l,
                          .acc = acc,
                          .scratch = scratch};
    f->a->attn_part(&p);
    memcpy(tiles, tiles + PART_TILES, (size_t)p.n_next * sizeof *tiles);
    return p.n_q;
}

/* Where row r of the tile writes. */
static void *out_at(const struct forward_dims *d, void *out, int row, int kv_head)
{
    return (uint8_t *)row_at(d, out, d->ld_q, row) +
           (size_t)(kv_head * d->group * d->c->head_dim) * d->elem;
}

/* All partitions of an item, merged one by one, and its output. */
static void run_whole(const struct forward *f, const struct attend_item *it, int layer,
                      const void *q, const void **tiles, const struct attend_scratch *s, void *out)
{
    const struct forward_dims *d = &f->d;
    const size_t head_dim = (size_t)d->c->head_dim, other = ATTN_MAX_Q * head_dim,
                 group = (size_t)d->group;
    for (int p = 0; p < it->part1; p++) {
        const size_t at = p > 0 ? ATTN_MAX_Q : 0;
        int n_q = run_part(f, it, layer, p, q, tiles, s->m + at, s->l + at,
                           s->acc + (p > 0 ? other : 0), s->scratch);
        if (p > 0) {
            f->k->attn_fold(s->m, s->l, s->acc, s->m + at, s->l + at, s->acc + other, n_q,
                            d->c->head_dim);
        }
    }
    for (int r = 0; r < it->n_rows; r++) {
        const size_t v = (size_t)r * group;
        f->a->attn_merge(out_at(d, out, it->row0 + r, it->kv_head), head_dim, s->m + v, s->l + v, 0,
                         s->acc + v * head_dim, 0, 1, d->group, d->c->head_dim);
    }
}

/* Merges the partitions of rows r0 .. r1 of a split tile; a row's own partitions only. */
static void merge_rows(const struct forward *f, const struct attend_merge *g, int r0, int r1,
                       void *out)
{
    const struct forward_dims *d = &f->d;
    size_t head_dim = (size_t)d->c->head_dim, group = (size_t)d->group,
           n_q = (size_t)g->n_rows * group;
    for (int r = r0; r < r1; r++) {
        size_t v = (size_t)r * group;
        f->a->attn_merge(out_at(d, out, g->row0 + r, g->kv_head), head_dim, g->m + v, g->l + v, n_q,
                         g->acc + v * head_dim, n_q * head_dim,
                         n_parts_at(f->in.b->kv_index[g->row0 + r]), d->group, d->c->head_dim);
    }
}

void attend_run(const struct attend *at, const struct forward *f, int layer, const void *q,
                void *out, atomic_int *next, int worker)
{
    const struct forward_dims *d = &f->d;
    const struct attend_scratch *s = &at->workers[worker];
    for (;;) {
        int i = at->n_items - 1 - atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if (i < 0) {
            return;
        }
        const struct attend_item *it = &at->items[i];
        const void *queries = gather_q(d, it, q, s->q), *tiles[2 * PART_TILES];
        find_tiles(f, it, layer, it->part0, visible_in(f, it->row0 + it->n_rows - 1, it->part0),
                   tiles);
        if (it->merge < 0) {
            run_whole(f, it, layer, queries, tiles, s, out);
            continue;
        }
        const struct attend_merge *g = &at->merges[it->merge];
        const size_t n_q = (size_t)(it->n_rows * d->group);
        for (int p = it->part0; p < it->part1; p++) {
            size_t v = (size_t)p * n_q;
            run_part(f, it, layer, p, queries, tiles, g->m + v, g->l + v,
                     g->acc + v * (size_t)d->c->head_dim, s->scratch);
        }
    }
}

void attend_finish(const struct attend *at, const struct forward *f, void *out, int worker,
                   int n_workers)
{
    for (int i = 0; i < at->n_merges; i++) {
        int begin, end;
        cpu_split(at->merges[i].n_rows, 1, (worker + i) % n_workers, n_workers, &begin, &end);
        merge_rows(f, &at->merges[i], begin, end, out);
    }
}
