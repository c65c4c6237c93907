/* SPDX-License-Identifier: Apache-2.0 */
/* A model that isn't one: for tests of the engine and of what stands on it.
 *
 * It keeps "KV" like a real one, one token id a slot, written and read through the block tables.
 * The logits of a row are a hash of every token it finds in the table up to its position, so a
 * wrong table, a missed copy on write, an evicted block still in use or a bad prefix hit changes
 * the text. Nothing else enters: not the batch, not the step. Logits lie in [0, 8): id (hash %
 * vocab) gets the top value (fake_next tells it), the others less. */
#ifndef TERN_TESTS_FAKE_RUNNER_H
#define TERN_TESTS_FAKE_RUNNER_H

#include "engine/runner.h"
#include "kernels/kernels.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fake_runner {
    struct runner_ops ops;
    int32_t (*kv)[KV_BLOCK_TOKENS]; /* [n_blocks] */
    float *logits;
    int max_logits;
    int eos_every; /* > 0: a row whose hash is a multiple of it wants eos_id */
    int32_t eos_id;
    unsigned step_us;     /* how long a step takes … */
    atomic_int long_runs; /* … of the first so many steps; 0: of all */
    int (*unwanted)(void *);
    void *unwanted_arg;
    atomic_int fail_at;   /* n > 0: the n-th run from now fails */
    atomic_int poison_at; /* n > 0: the n-th run from now gives logits that are all `poison` */
    float poison;
    atomic_int n_runs, max_rows_seen, max_seqs_seen;
    atomic_int n_rows_total;
    atomic_int closed;
    int window; /* > 0: most rows look at so many tokens only, so that the text runs in circles */
    int short_decode; /* a sequence with one row in a step looks at its last 16 tokens only: long
                       * traces in little time */
    /* One sequence at a time says this, then eos_id; counted from the end of its prefill. */
    const int32_t *script;
    int n_script, script_start;
};

static inline uint64_t fake_mix(uint64_t h, int32_t token)
{
    h ^= (uint64_t)(uint32_t)token + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 33;
}

/* The id the fake favours after `n` tokens. */
static inline int32_t fake_pick(const struct fake_runner *f, uint64_t h)
{
    if (f->eos_every > 0 && h % (uint64_t)f->eos_every == 0) {
        return f->eos_id;
    }
    return (int32_t)(h % (uint64_t)f->ops.vocab_size);
}

static inline int32_t fake_next(const struct fake_runner *f, const int32_t *tokens, int n)
{
    uint64_t h = 1;
    for (int i = 0; i < n; i++) {
        h = fake_mix(h, tokens[i]);
    }
    return fake_pick(f, h);
}

static inline void fake_row(const struct fake_runner *f, uint64_t h, float *out)
{
    for (int v = 0; v < f->ops.vocab_size; v++) {
        out[v] = (float)(fake_mix(h, v) % 1024) * (7.0f / 1024.0f);
    }
    out[fake_pick(f, h)] = 8.0f;
}

/* Of the tokens that the table holds at positions from .. to. */
static inline uint64_t fake_hash(const struct fake_runner *f, const struct forward_seq *q, int from,
                                 int to)
{
    uint64_t h = 1;
    for (int p = from > 0 ? from : 0; p <= to; p++) {
        h = fake_mix(h, f->kv[q->block_table[p / KV_BLOCK_TOKENS]][p % KV_BLOCK_TOKENS]);
    }
    return h;
}

static inline int fake_run(void *ctx, const struct forward_batch *b, const float **logits,
                           struct err *e)
{
    struct fake_runner *f = (struct fake_runner *)ctx;
    int n_logits = 0;
    atomic_fetch_add(&f->n_runs, 1);
    atomic_fetch_add(&f->n_rows_total, b->n_rows);
    if (b->n_rows > atomic_load(&f->max_rows_seen)) {
        atomic_store(&f->max_rows_seen, b->n_rows);
    }
    if (b->n_seqs > atomic_load(&f->max_seqs_seen)) {
        atomic_store(&f->max_seqs_seen, b->n_seqs);
    }
    int is_long =
        atomic_load(&f->long_runs) == 0 || atomic_load(&f->n_runs) <= atomic_load(&f->long_runs);
    unsigned us = is_long ? f->step_us : 0;
    for (unsigned piece; us > 0; us -= piece) { /* "layers" of 1 ms */
        piece = us < 1000 ? us : 1000;
        usleep(piece);
        if (f->unwanted && f->unwanted(f->unwanted_arg)) {
            return err_set(e, ERR_CANCELED, "nobody wants the result any more");
        }
    }
    if (atomic_load(&f->fail_at) > 0 && atomic_fetch_sub(&f->fail_at, 1) == 1) {
        return err_set(e, ERR_INTERNAL, "the fake failed as told");
    }
    for (int s = 0; s < b->n_seqs;
         s++) { /* all K and V of the step are written before anything is read */
        const struct forward_seq *q = &b->seqs[s];
        for (int r = q->first_row; r < q->first_row + q->n_rows; r++) {
            f->kv[q->block_table[b->kv_index[r] / KV_BLOCK_TOKENS]]
                 [b->kv_index[r] % KV_BLOCK_TOKENS] = b->token_id[r];
        }
    }
    for (int s = 0; s < b->n_seqs; s++) {
        const struct forward_seq *q = &b->seqs[s];
        for (int r = q->first_row; r < q->first_row + q->n_rows; r++) {
            if (!b->wants_logits[r]) {
                continue;
            }
            if (n_logits == f->max_logits) {
                return err_set(e, ERR_INTERNAL, "more than %d rows want logits", f->max_logits);
            }
            if (f->script) {
                f->script_start = q->n_rows > 1 ? b->kv_index[r] : f->script_start;
                int at = b->kv_index[r] - f->script_start;
                float *row = f->logits + (size_t)n_logits++ * f->ops.logits_stride;
                fake_row(f, 1, row);
                row[at < f->n_script ? f->script[at] : f->eos_id] = 9.0f;
                continue;
            }
            int from = f->short_decode && q->n_rows == 1 ? b->kv_index[r] - 15 : 0;
            uint64_t h = fake_hash(f, q, from, b->kv_index[r]);
            if (f->window > 0 && h % 16 != 0) {
                h = fake_hash(f, q, b->kv_index[r] + 1 - f->window, b->kv_index[r]);
            }
            fake_row(f, h, f->logits + (size_t)n_logits++ * f->ops.logits_stride);
        }
    }
    if (atomic_load(&f->poison_at) > 0 && atomic_fetch_sub(&f->poison_at, 1) == 1) {
        for (size_t i = 0; i < (size_t)n_logits * f->ops.logits_stride; i++) {
            f->logits[i] = f->poison;
        }
    }
    *logits = f->logits;
    return 0;
}

static inline void fake_watch(void *ctx, int (*unwanted)(void *), void *arg)
{
    struct fake_runner *f = (struct fake_runner *)ctx;
    f->unwanted = unwanted;
    f->unwanted_arg = arg;
}

static inline void fake_copy_block(void *ctx, int dst, int src)
{
    struct fake_runner *f = (struct fake_runner *)ctx;
    memcpy(f->kv[dst], f->kv[src], sizeof f->kv[dst]);
}

static inline void fake_close(void *ctx)
{
    atomic_store(&((struct fake_runner *)ctx)->closed, 1);
}

/* n_blocks counts the null block. The memory is the fake's: fake_fini after engine_close. */
static inline void fake_init(struct fake_runner *f, int vocab_size, int n_blocks,
                             const struct engine_options *o)
{
    memset(f, 0, sizeof *f);
    f->ops.run = fake_run;
    f->ops.copy_block = fake_copy_block;
    f->ops.watch = fake_watch;
    f->ops.close = fake_close;
    f->ops.vocab_size = vocab_size;
    f->ops.logits_stride = (size_t)(vocab_size + 15) / 16 * 16;
    f->ops.n_blocks = n_blocks;
    f->ops.block_bytes = sizeof f->kv[0];
    f->ops.kernels = kernels_get(CPU_SCALAR);
    f->kv = (int32_t(*)[KV_BLOCK_TOKENS])malloc((size_t)n_blocks * sizeof f->kv[0]);
    f->max_logits = engine_max_logits(o);
    f->logits =
        (float *)aligned_alloc(64, (size_t)f->max_logits * f->ops.logits_stride * sizeof(float));
    if (!f->kv || !f->logits) {
        abort();
    }
    memset(f->kv, 0xff, (size_t)n_blocks * sizeof f->kv[0]);
    f->eos_id = -1;
}

static inline void fake_fini(struct fake_runner *f)
{
    free(f->kv);
    free(f->logits);
}

/* Options that suit the fake; chunked prefill and prefix caching on. */
static inline void fake_options(struct engine_options *o)
{
    memset(o, 0, sizeof *o);
    o->max_model_len = 512;
    o->max_num_seqs = 8;
    o->max_num_batched_tokens = 64;
    o->enable_prefix_caching = 1;
    o->enable_chunked_prefill = 1;
    o->eos_id = -1;
}

#endif
