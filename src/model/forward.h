/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass of one step over a batch of rows, either from the compiled plan (default) or
 * eagerly.
 *
 * The batch is data: nothing about a row is derived from its place. Rows of one sequence are
 * contiguous and ascending in kv_index. The logits of a row depend on the model, the tokens before
 * it and the instruction set, on nothing else. A forward owns its activations; it allocates nothing
 * after forward_open. Called by the engine thread only. */
#ifndef TERN_MODEL_FORWARD_H
#define TERN_MODEL_FORWARD_H

#include "kv/layout.h"
#include "model/model.h"

struct forward_seq {
    int first_row, n_rows;      /* its rows in this batch */
    const int32_t *block_table; /* block ids covering kv_index 0 .. last row */
};

struct forward_batch {
    int n_rows;
    const int32_t *token_id; /* [n_rows]; ignored where embed[row] is set */
    const int32_t *kv_index; /* [n_rows] position in the sequence's KV: causal order and slot */
    const int32_t (*rope_pos)[3]; /* [n_rows] t, h, w; text: all equal */
    const uint8_t *token_type;    /* [n_rows] 0 text, 1 vision (routing); NULL: all text */
    const void *const
        *embed; /* [n_rows] activation row that replaces the table lookup, or NULL; may be NULL */
    const int32_t *adapter_id;   /* [n_rows] 0: none; may be NULL */
    const uint8_t *wants_logits; /* [n_rows] */
    const uint8_t *wants_hidden; /* [n_rows]; may be NULL */
    int n_seqs;
    const struct forward_seq *seqs;
};

struct forward_options {
    int max_rows;   /* token budget of a step */
    int max_logits; /* most rows that want logits in one step */
    int max_seqs;
    int max_model_len;
    int eager; /* --enforce-eager */
};

/* Collectives of a parallel group; the default does nothing (a group of one). */
struct comm {
    int rank, size;
    void (*gather_columns)(const struct comm *c, void *rows, size_t row_bytes,
                           int n_rows); /* in rank order */
    void *impl;
};
extern const struct comm comm_none;

struct forward;
int forward_open(struct forward **out, const struct model *m, const struct kernels *k,
                 struct cpu_pool *pool, struct kv_store *kv, const struct comm *comm,
                 const struct forward_options *o, struct err *e);
void forward_close(struct forward *f);
uint64_t forward_activation_bytes(const struct model *m,
                                  const struct forward_options *o); /* for the memory plan */

/* Runs the batch: writes K and V of every row into the KV store, and returns logits for the rows
 * that want them, in row order: fp32 [count][vocab_size] at stride forward_logits_stride floats,
 * borrowed until the next call. */
int forward_run(struct forward *f, const struct forward_batch *b, const float **logits,
                struct err *e);
/* From now on forward_run asks after each layer, on the calling thread, whether anybody still wants
 * its result; when not, it returns ERR_CANCELED, and K and V of the batch's rows are undefined.
 * (Eager execution runs to its end.) */
void forward_watch(struct forward *f, int (*unwanted)(void *), void *arg);
/* Eager execution only: from now on worker 0 shows fn the activations that go into the products of
 * each layer (0: q, k, v; 1: o; 2: gate, up; 3: down), in pieces of rows, ld elements apart; and
 * into the head as (n_layers, 0), for all rows, whether they want logits or not. */
typedef void forward_probe_fn(void *arg, int layer, int product, const void *rows, size_t ld,
                              int m);
void forward_probe(struct forward *f, forward_probe_fn *fn, void *arg);
size_t forward_logits_stride(const struct forward *f);
const void *
forward_hidden(const struct forward *f); /* rows that wanted hidden states, after the final norm */

#endif
