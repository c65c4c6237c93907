/* SPDX-License-Identifier: Apache-2.0 */
/* Plan -> forward_batch: one row a token. Rows of a sequence are contiguous and ascending; items
 * keep the plan's order, and so do the rows of logits that come back. */
#include "engine/batch.h"

#include <stdlib.h>
#include <string.h>

int batch_init(struct batch *b, int max_rows, int max_seqs, struct err *e)
{
    memset(b, 0, sizeof *b);
    b->max_rows = max_rows;
    b->max_seqs = max_seqs;
    size_t n = (size_t)max_rows;
    b->token_id = malloc(n * sizeof *b->token_id);
    b->kv_index = malloc(n * sizeof *b->kv_index);
    b->rope_pos = malloc(n * sizeof *b->rope_pos);
    b->wants_logits = malloc(n * sizeof *b->wants_logits);
    b->seqs = malloc((size_t)max_seqs * sizeof *b->seqs);
    if (!b->token_id || !b->kv_index || !b->rope_pos || !b->wants_logits || !b->seqs) {
        batch_fini(b);
        return err_set(e, ERR_NOMEM, "batch: out of memory for %d rows", max_rows);
    }
    return 0;
}

void batch_fini(struct batch *b)
{
    free(b->token_id);
    free(b->kv_index);
    free(b->rope_pos);
    free(b->wants_logits);
    free(b->seqs);
    memset(b, 0, sizeof *b);
}

const struct forward_batch *batch_fill(struct batch *b, const struct sched_plan *plan)
{
    int row = 0;
    for (int i = 0; i < plan->n_items; i++) {
        const struct sched_item *it = &plan->items[i];
        int from, to;
        sched_item_prompt_logits(it, &from, &to);
        b->seqs[i] = (struct forward_seq){row, it->n_tokens, it->seq->blocks};
        for (int p = it->first; p < it->first + it->n_tokens; p++, row++) {
            b->token_id[row] = seq_token(it->seq, p);
            b->kv_index[row] = p;
            b->rope_pos[row][0] = b->rope_pos[row][1] = b->rope_pos[row][2] = p;
            b->wants_logits[row] = p >= from && p < to;
        }
        for (int k = 1; k <= 1 + it->n_draft; k++) {
            b->wants_logits[row - k] |= (uint8_t)sched_item_completes(it);
        }
    }
    memset(&b->view, 0, sizeof b->view);
    b->view.n_rows = row;
    b->view.token_id = b->token_id;
    b->view.kv_index = b->kv_index;
    b->view.rope_pos = (const int32_t(*)[3])b->rope_pos;
    b->view.wants_logits = b->wants_logits;
    b->view.n_seqs = plan->n_items;
    b->view.seqs = b->seqs;
    return &b->view;
}
