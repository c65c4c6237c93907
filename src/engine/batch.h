/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's plan as rows for the forward pass. Arrays are sized once. Owner: the engine
 * thread. */
#ifndef TERN_ENGINE_BATCH_H
#define TERN_ENGINE_BATCH_H

#include "engine/sched.h"

struct batch {
    int max_rows, max_seqs;
    int32_t *token_id, *kv_index;
    int32_t (*rope_pos)[3];
    uint8_t *wants_logits;
    struct forward_seq *seqs;
    struct forward_batch view; /* what the forward pass reads */
};
int batch_init(struct batch *b, int max_rows, int max_seqs, struct err *e);
void batch_fini(struct batch *b);
const struct forward_batch *batch_fill(struct batch *b, const struct sched_plan *plan);

#endif
