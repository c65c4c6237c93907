/* SPDX-License-Identifier: Apache-2.0 */
/* The runner of a real model: a KV store and a forward pass over it. */
#include "engine/runner.h"

#include "engine/sampler.h"

#include <stdlib.h>

struct model_runner {
    struct kv_store *kv;
    struct forward *forward;
};

static int run(void *ctx, const struct forward_batch *b, const float **logits, struct err *e)
{
    return forward_run(((struct model_runner *)ctx)->forward, b, logits, e);
}

static void watch(void *ctx, int (*unwanted)(void *), void *arg)
{
    forward_watch(((struct model_runner *)ctx)->forward, unwanted, arg);
}

static void copy_block(void *ctx, int dst, int src)
{
    kv_store_copy_block(((struct model_runner *)ctx)->kv, dst, src);
}

static void close_runner(void *ctx)
{
    struct model_runner *r = ctx;
    if (r) {
        forward_close(r->forward);
        kv_store_close(r->kv);
        free(r);
    }
}

static void fill_forward_options(struct forward_options *f, const struct engine_options *o)
{
    *f = (struct forward_options){
        .max_rows = o->max_num_batched_tokens,
        .max_logits = engine_max_logits(o),
        .max_seqs = o->max_num_seqs,
        .max_model_len = o->max_model_len,
        .eager = o->eager,
    };
}

uint64_t engine_activation_bytes(const struct model *m, const struct engine_options *o)
{
    struct forward_options f;
    fill_forward_options(&f, o);
    return forward_activation_bytes(m, &f) + sampler_bytes(model_config(m)->vocab_size);
}

int engine_open(struct engine **out, const struct model *m, const struct kernels *k,
                struct cpu_pool *pool, const struct engine_options *o, struct err *e)
{
    const struct model_config *c = model_config(m);
    struct kv_layout layout;
    struct forward_options fo;
    struct runner_ops ops = {
        .run = run,
        .copy_block = copy_block,
        .watch = watch,
        .close = close_runner,
        .vocab_size = c->vocab_size,
        .kernels = k,
        .pool = pool,
    };
    *out = NULL;
    model_kv_layout(m, &layout);
    ops.block_bytes = kv_layout_token_block_bytes(&layout);
    int rc = engine_plan_blocks(o, ops.block_bytes, &ops.n_blocks, e);
    if (rc < 0) {
        return rc;
    }
    struct model_runner *r = calloc(1, sizeof *r);
    if (!r) {
        return err_set(e, ERR_NOMEM, "engine: out of memory");
    }
    fill_forward_options(&fo, o);
    if ((rc = kv_store_open(&r->kv, &layout, ops.n_blocks, e)) < 0 ||
        (rc = forward_open(&r->forward, m, k, pool, r->kv, &comm_none, &fo, e)) < 0) {
        close_runner(r);
        return rc;
    }
    ops.logits_stride = forward_logits_stride(r->forward);
    return engine_open_runner(out, &ops, r, o, e);
}
