/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass: checks a batch, derives block and slot of every row, and hands the step to the
 * compiled plan or to the eager path. A batch comes from our own scheduler; it is checked anyway,
 * because a wrong block id would write into another sequence's cache without a trace. */
#include "model/step.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

const struct comm comm_none = {0, 1, NULL, NULL};

/* Rows are padded by a cache line, so that rows of a power-of-two width don't all fall in the same
 * cache sets. */
static size_t padded(int n)
{
    return ((size_t)n + 31) / 32 * 32 + 32;
}

static void widen_input(size_t *ld, const struct weight *w)
{
    if (w->input != INPUT_ACT) {
        size_t n = input_row_bytes(w->input, w->k, w->group);
        *ld = n > *ld ? n : *ld;
    }
}

/* The longest row of quantized activations, padded as `padded` does. */
static size_t input_stride(const struct weights *w)
{
    size_t ld = 0;
    for (int i = 0; i < w->n_layers; i++) {
        const struct weights_layer *l = &w->layers[i];
        const struct weight *const all[] = {&l->qkv, &l->o, &l->gate_up, &l->down};
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++) {
            widen_input(&ld, all[j]);
        }
    }
    widen_input(&ld, &w->head);
    return ld == 0 ? 0 : ld + (ld / 64 % 2 == 0 ? 64 : 0);
}

static void init_dims(struct forward_dims *d, const struct model *m,
                      const struct forward_options *o, int n_workers)
{
    const struct model_config *c = &m->config;
    memset(d, 0, sizeof *d);
    d->c = c;
    d->act = m->act;
    d->elem = act_size(m->act);
    d->n_workers = n_workers;
    d->max_rows = o->max_rows;
    d->max_logits = o->max_logits;
    d->max_seqs = o->max_seqs;
    d->max_parts = (o->max_model_len + ATTN_PARTITION - 1) / ATTN_PARTITION;
    d->group = c->n_heads / c->n_kv_heads;
    d->q_width = c->n_heads * c->head_dim;
    d->qkv_heads = c->n_heads + 2 * c->n_kv_heads;
    d->ld_hidden = padded(c->hidden_size);
    d->ld_q = padded(d->q_width);
    d->ld_inter = padded(c->intermediate_size);
    d->ld_input = input_stride(&m->weights);
    d->attn_scale = (float)(1.0 / sqrt((double)c->head_dim));
}

static size_t logits_stride(const struct forward_dims *d)
{
    return ((size_t)d->c->vocab_size + TILE_N - 1) / TILE_N * TILE_N;
}

static void carve_common(struct forward *f, const struct forward_dims *d, struct carver *c)
{
    struct step in = {0};
    in.block = carve(c, (size_t)d->max_rows * sizeof *in.block);
    in.slot = carve(c, (size_t)d->max_rows * sizeof *in.slot);
    in.logit_row = carve(c, (size_t)d->max_logits * sizeof *in.logit_row);
    in.hidden_row = carve(c, (size_t)d->max_rows * sizeof *in.hidden_row);
    float *logits = carve(c, (size_t)d->max_logits * logits_stride(d) * sizeof *logits);
    void *hidden = carve(c, (size_t)d->max_rows * (size_t)d->c->hidden_size * d->elem);
    if (f != NULL) {
        f->in = in;
        f->logits = logits;
        f->hidden = hidden;
    }
}

static size_t count_bytes(const struct forward_dims *d, int eager)
{
    struct carver c = {NULL, 0};
    carve_common(NULL, d, &c);
    if (eager) {
        eager_count(d, &c);
    } else {
        plan_count(d, &c);
    }
    return c.at;
}

uint64_t forward_activation_bytes(const struct model *m, const struct forward_options *o)
{
    struct forward_dims d;
    cpu_set_t set;
    int n_workers = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    init_dims(&d, m, o, n_workers);
    return count_bytes(&d, o->eager);
}

static int check_options(const struct model *m, const struct forward_options *o,
                         const struct kv_store *kv, const struct kernels *k,
                         const struct comm *comm, struct err *e)
{
    const struct model_config *c = &m->config;
    const struct kv_layout *l = kv_store_layout(kv);
    if (o->max_rows < 1 || o->max_logits < 1 || o->max_seqs < 1 || o->max_model_len < 1) {
        return err_set(
            e, ERR_INVALID,
            "forward: max_rows %d, max_logits %d, max_seqs %d and max_model_len %d must be > 0",
            o->max_rows, o->max_logits, o->max_seqs, o->max_model_len);
    }
    if (l->type != m->act || l->n_layers != c->n_layers || l->n_kv_heads != c->n_kv_heads ||
        l->head_dim != c->head_dim) {
        return err_set(e, ERR_INVALID, "forward: the KV store has another layout than the model");
    }
    if (m->weights.memory == NULL) {
        return err_set(e, ERR_INVALID, "forward: the model is not loaded");
    }
    if (k->act[m->act].gemm == NULL) {
        return err_set(e, ERR_UNSUPPORTED, "forward: level %s has no kernels for this dtype",
                       cpu_level_name(k->level));
    }
    if (comm != NULL && comm->size > 1) {
        return err_set(e, ERR_UNSUPPORTED,
                       "forward: parallel groups of more than one member (%d) are not supported",
                       comm->size);
    }
    return 0;
}

int forward_open(struct forward **out, const struct model *m, const struct kernels *k,
                 struct cpu_pool *pool, struct kv_store *kv, const struct comm *comm,
                 const struct forward_options *o, struct err *e)
{
    *out = NULL;
    int rc = check_options(m, o, kv, k, comm, e);
    if (rc < 0) {
        return rc;
    }
    struct forward *f = calloc(1, sizeof *f);
    if (f == NULL) {
        return err_set(e, ERR_NOMEM, "forward: out of memory");
    }
    f->m = m;
    f->k = k;
    f->a = &k->act[m->act];
    f->pool = pool;
    f->kv = kv;
    f->comm = comm != NULL ? *comm : comm_none;
    init_dims(&f->d, m, o, cpu_pool_size(pool));
    f->logits_stride = logits_stride(&f->d);
    rope_init(&f->rope, m->config.head_dim, m->config.rope_theta, m->config.compression_ratio);
    f->memory_bytes = count_bytes(&f->d, o->eager);
    f->memory = cpu_big_alloc(f->memory_bytes);
    if (f->memory == NULL) {
        rc = err_set(e, ERR_NOMEM, "forward: no memory for %zu bytes of activations",
                     f->memory_bytes);
        goto fail;
    }
    struct carver c = {f->memory, 0};
    carve_common(f, &f->d, &c);
    rc = o->eager ? eager_open(&f->eager, f, &c, e) : plan_open(&f->plan, f, &c, e);
    if (rc < 0) {
        goto fail;
    }
    *out = f;
    return 0;
fail:
    forward_close(f);
    return rc;
}

void forward_close(struct forward *f)
{
    if (f == NULL) {
        return;
    }
    plan_close(f->plan);
    eager_close(f->eager);
    if (f->memory != NULL) {
        cpu_big_free(f->memory, f->memory_bytes);
    }
    free(f);
}

static int check_seq(struct forward *f, const struct forward_batch *b, int index, int row,
                     struct err *e)
{
    const struct forward_seq *s = &b->seqs[index];
    int n_blocks = kv_store_n_blocks(f->kv), max_len = f->d.max_parts * ATTN_PARTITION;
    if (s->first_row != row || s->n_rows < 1 || s->n_rows > b->n_rows - row) {
        return err_set(e, ERR_INVALID,
                       "forward: sequence %d has rows %d+%d, expected to begin at %d of %d", index,
                       s->first_row, s->n_rows, row, b->n_rows);
    }
    int first = b->kv_index[row];
    if (first < 0 || first > max_len - s->n_rows) {
        return err_set(e, ERR_INVALID, "forward: sequence %d: positions %d+%d, expected below %d",
                       index, first, s->n_rows, max_len);
    }
    for (int i = 0; i <= (first + s->n_rows - 1) / KV_BLOCK_TOKENS; i++) {
        if (s->block_table[i] < 0 || s->block_table[i] >= n_blocks) {
            return err_set(e, ERR_INVALID,
                           "forward: sequence %d: block %d is %d, expected below %d", index, i,
                           (int)s->block_table[i], n_blocks);
        }
    }
    for (int i = 0; i < s->n_rows; i++) {
        int pos = b->kv_index[row + i];
        if (pos != first + i) {
            return err_set(e, ERR_INVALID, "forward: row %d has position %d, expected %d", row + i,
                           pos, first + i);
        }
        f->in.block[row + i] = s->block_table[pos / KV_BLOCK_TOKENS];
        f->in.slot[row + i] = pos % KV_BLOCK_TOKENS;
    }
    return 0;
}

static int check_batch(struct forward *f, const struct forward_batch *b, struct err *e)
{
    struct step *in = &f->in;
    if (b->n_rows < 1 || b->n_rows > f->d.max_rows || b->n_seqs < 1 || b->n_seqs > f->d.max_seqs) {
        return err_set(e, ERR_INVALID, "forward: %d rows of %d sequences, expected 1..%d and 1..%d",
                       b->n_rows, b->n_seqs, f->d.max_rows, f->d.max_seqs);
    }
    int row = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        int rc = check_seq(f, b, i, row, e);
        if (rc < 0) {
            return rc;
        }
        row += b->seqs[i].n_rows;
    }
    if (row != b->n_rows) {
        return err_set(e, ERR_INVALID, "forward: sequences cover %d rows of %d", row, b->n_rows);
    }
    in->b = b;
    in->n_rows = b->n_rows;
    in->n_logits = in->n_hidden = 0;
    for (row = 0; row < b->n_rows; row++) {
        int embedded = b->embed != NULL && b->embed[row] != NULL;
        if (!embedded && (b->token_id[row] < 0 || b->token_id[row] >= f->d.c->vocab_size)) {
            return err_set(e, ERR_INVALID, "forward: row %d has token %d, expected below %d", row,
                           (int)b->token_id[row], f->d.c->vocab_size);
        }
        if (b->rope_pos[row][0] < 0) {
            return err_set(e, ERR_INVALID, "forward: row %d has RoPE position %d", row,
                           (int)b->rope_pos[row][0]);
        }
        if (b->wants_logits[row]) {
            if (in->n_logits == f->d.max_logits) {
                return err_set(e, ERR_INVALID, "forward: more than %d rows want logits",
                               f->d.max_logits);
            }
            in->logit_row[in->n_logits++] = row;
        }
        if (b->wants_hidden != NULL && b->wants_hidden[row]) {
            in->hidden_row[in->n_hidden++] = row;
        }
    }
    return 0;
}

int forward_run(struct forward *f, const struct forward_batch *b, const float **logits,
                struct err *e)
{
    int rc = check_batch(f, b, e);
    if (rc < 0) {
        return rc;
    }
    if (f->plan != NULL) {
        rc = plan_run(f->plan);
        if (rc < 0) {
            return err_set(e, rc, "forward: nobody wants the result any more");
        }
    } else {
        eager_run(f->eager);
    }
    if (logits != NULL) {
        *logits = f->logits;
    }
    return 0;
}

void forward_watch(struct forward *f, int (*unwanted)(void *), void *arg)
{
    f->unwanted = unwanted;
    f->unwanted_arg = arg;
}

void forward_probe(struct forward *f, forward_probe_fn *fn, void *arg)
{
    f->probe = fn;
    f->probe_arg = arg;
}

size_t forward_logits_stride(const struct forward *f)
{
    return f->logits_stride;
}

const void *forward_hidden(const struct forward *f)
{
    return f->hidden;
}
