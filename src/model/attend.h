/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of the compiled plan: the work of one step cut into items, once per step, the same for
 * every layer.
 *
 * An item is a query tile (rows of one sequence x the query heads that share a KV head, at most
 * ATTN_MAX_Q vectors) over a range of partitions. Most items cover all partitions, merge each as it
 * is done and write their output themselves; items that are large against the step's total are split
 * over partitions, leave partial results in a shared buffer, and are merged in ascending order after
 * a barrier. Which way an item goes never changes its bits: partitions are cut at absolute positions
 * and merged by one formula. */
#ifndef TERN_MODEL_ATTEND_H
#define TERN_MODEL_ATTEND_H

#include "model/step.h"
#include <stdatomic.h>

struct attend_item {
    int seq, row0, n_rows, kv_head;
    int part0, part1;
    int merge; /* index of its attend_merge, or -1: covers all partitions */
};

struct attend_merge {
    int row0, n_rows, kv_head, n_parts;
    float *m, *l, *acc; /* [n_parts][n_q], [n_parts][n_q][head_dim] */
};

struct attend_scratch {
    void *q;        /* [ATTN_MAX_Q][head_dim] */
    float *m, *l;   /* [2][ATTN_MAX_Q] what is merged so far, and one more partition */
    float *acc;     /* [2][ATTN_MAX_Q][head_dim] */
    float *scratch; /* ATTN_SCRATCH_FLOATS */
};

struct attend {
    struct attend_item *items;
    struct attend_merge *merges;
    int n_items, n_merges, max_items, max_merges;
    float *partial; /* partial results of split items */
    size_t partial_floats;
    struct attend_scratch *workers; /* [n_workers] */
};

void attend_carve(struct attend *at, const struct forward_dims *d, struct carver *c);
/* Cuts the step in f->in into items. */
void attend_prepare(struct attend *at, const struct forward *f);
/* Worker's share of one layer: takes items from the counter. q and out are [rows][ld_q]. */
void attend_run(const struct attend *at, const struct forward *f, int layer, const void *q,
                void *out, atomic_int *next, int worker);
/* Worker's share of the merges, after all items are done. */
void attend_finish(const struct attend *at, const struct forward *f, void *out, int worker,
                   int n_workers);

#endif
