/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine needs from whatever computes logits. engine_open fills it from the model's
 * forward pass; tests fill it from a fake, so that scheduler, sampler and publishing run without a
 * model. */
#ifndef TERN_ENGINE_RUNNER_H
#define TERN_ENGINE_RUNNER_H

#include "engine/engine.h"

struct runner_ops {
    /* As forward_run: logits of the rows that want them, in row order, borrowed until the next
     * call. */
    int (*run)(void *ctx, const struct forward_batch *b, const float **logits, struct err *e);
    void (*copy_block)(void *ctx, int dst_block,
                       int src_block); /* all layers, before the run of that step */
    /* As forward_watch; NULL: a run always goes to its end. */
    void (*watch)(void *ctx, int (*unwanted)(void *), void *arg);
    void (*close)(void *ctx); /* called once by engine_close, or by a failing engine_open_runner;
                                 may be NULL */
    size_t logits_stride;     /* floats */
    int vocab_size;
    int n_blocks;                  /* blocks of the KV store, the null block included */
    uint64_t block_bytes;          /* of one block, all layers: for the statistics */
    const struct kernels *kernels; /* argmax and logsumexp */
    struct cpu_pool *pool;         /* samples rows in parallel; NULL: on the engine thread */
};

/* engine_open without a model. kv_cache_bytes and n_blocks_override of `o` are ignored:
 * ops->n_blocks counts. */
int engine_open_runner(struct engine **out, const struct runner_ops *ops, void *ctx,
                       const struct engine_options *o, struct err *e);

/* Prompt rows (for prompt_logprobs) that may ask for logits in one step, besides one row per
 * running sequence. */
#define ENGINE_PROMPT_LOGITS 16
int engine_max_logits(const struct engine_options *o); /* rows of logits a step can want */

/* Blocks for the KV store, the null block included; ERR_INVALID when a request of max_model_len
 * doesn't fit. */
int engine_plan_blocks(const struct engine_options *o, uint64_t block_bytes, int *n_blocks,
                       struct err *e);

/* Waits until the engine thread has looked: scheduler and block pool are consistent. Debug builds
 * also do it when idle. 0 or ERR_INTERNAL. */
int engine_check_integrity(struct engine *en, struct err *e);

#endif
