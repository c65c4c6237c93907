/* SPDX-License-Identifier: Apache-2.0 */
/* What the two ways of running a step (plan.c, eager.c) get from forward.c: sizes, the checked
 * batch, outputs, and memory to carve buffers from. They share nothing else, so that comparing them
 * means something. */
#ifndef TERN_MODEL_STEP_H
#define TERN_MODEL_STEP_H

#include "model/forward.h"
#include "model/internal.h"
#include "model/rope.h"

/* Sizes that decide how much memory a forward needs. */
struct forward_dims {
    const struct model_config *c;
    enum act_type act;
    size_t elem; /* bytes of an activation element */
    int n_workers;
    int max_rows, max_logits, max_seqs;
    int max_parts;                    /* attention partitions of the longest sequence */
    int group;                        /* query heads that share a KV head */
    int q_width;                      /* n_heads * head_dim */
    int qkv_heads;                    /* n_heads + 2 * n_kv_heads */
    size_t ld_hidden, ld_q, ld_inter; /* row strides of activations, elements */
    size_t
        ld_input; /* bytes of the longest row of quantized activations; 0: no matrix takes them */
    float attn_scale; /* head_dim ^ -1/2 */
};

/* Hands out 64-byte aligned pieces of one allocation; without a base it only counts. */
struct carver {
    uint8_t *base;
    size_t at;
};

static inline void *carve(struct carver *c, size_t n_bytes)
{
    void *p = c->base != NULL ? c->base + c->at : NULL;
    c->at += (n_bytes + 63) & ~(size_t)63;
    return p;
}

/* The batch of one call, checked, with what is derived from it. */
struct step {
    const struct forward_batch *b;
    int n_rows, n_logits, n_hidden;
    int32_t *block;      /* [max_rows] physical KV block of a row */
    int32_t *slot;       /* [max_rows] position inside it */
    int32_t *logit_row;  /* [max_logits] batch rows that want logits */
    int32_t *hidden_row; /* [max_rows] batch rows that want hidden states */
};

struct plan;
struct eager;

struct forward {
    const struct model *m;
    const struct kernels *k;
    const struct act_kernels *a;
    struct cpu_pool *pool;
    struct kv_store *kv;
    struct comm comm;
    struct forward_dims d;
    struct rope rope;
    int (*unwanted)(void *); /* forward_watch; or NULL */
    void *unwanted_arg;
    forward_probe_fn *probe; /* forward_probe; or NULL */
    void *probe_arg;
    void *memory;
    size_t memory_bytes;
    struct step in;
    float *logits; /* [max_logits][logits_stride] */
    size_t logits_stride;
    void *hidden;      /* [max_rows][hidden_size] */
    struct plan *plan; /* one of the two */
    struct eager *eager;
};

/* A row of an activation buffer. */
static inline void *row_at(const struct forward_dims *d, const void *base, size_t ld, int row)
{
    return (uint8_t *)(uintptr_t)base + (size_t)row * ld * d->elem;
}

/* Rows of k activations as the input of w, and the row after `row` of them. */
static inline void *input_row(const struct forward_dims *d, const void *base, int row)
{
    return (uint8_t *)(uintptr_t)base + (size_t)row * d->ld_input;
}

static inline void quantize_rows(const struct forward *f, void *out, const void *x, size_t ldx,
                                 int n_rows, const struct weight *w)
{
    f->a->quantize(out, f->d.ld_input, x, ldx, n_rows, w->k, w->input, w->group, w->input_scale);
}

/* _count adds up what _open will carve. */
int plan_open(struct plan **out, struct forward *f, struct carver *c, struct err *e);
void plan_count(const struct forward_dims *d, struct carver *c);
int plan_run(struct plan *p); /* 0, or ERR_CANCELED */
void plan_close(struct plan *p);

int eager_open(struct eager **out, struct forward *f, struct carver *c, struct err *e);
void eager_count(const struct forward_dims *d, struct carver *c);
void eager_run(struct eager *g);
void eager_close(struct eager *g);

#endif
