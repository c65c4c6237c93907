/* SPDX-License-Identifier: Apache-2.0 */
/* Packing. All packed matrices live in one allocation on huge pages, in the order the forward pass
 * reads them. The checkpoint is packed group by group (a layer, the embedding, the head): while
 * workers pack one group the kernel is told to read the next, and the pages of a finished group are
 * given back, so that resident memory ends at the packed size. Inside a group workers take small
 * ranges of tiles from a counter; where a tile ends up doesn't depend on who packed it. The packed
 * bytes are hashed in fixed chunks: the hash names the weights, whatever file layout they came
 * from. */
#include "model/weights.h"

#include "base/hash.h"
#include "base/log.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TASK_BYTES       (256u << 10)
#define HASH_CHUNK_BYTES (4u << 20)

/* One source matrix and where its tiles go. */
struct packing {
    const struct checkpoint_view *view;
    const struct weight *w;
    int tile_step, tile_offset;
    const void *src; /* the mapping, or an aligned copy */
    void *copy;
    int tiles_per_task, first_task, n_tasks;
};

#define GROUP_MAX 7
struct group {
    struct packing p[GROUP_MAX];
    int n, n_tasks;
    const struct kernels *k;
    atomic_int next;
};

static int round_tiles(int n)
{
    return (n + TILE_N - 1) / TILE_N * TILE_N;
}

static enum weight_format format_for(enum act_type act, const struct checkpoint_view *const *views,
                                     int n)
{
    if (act == ACT_BF16) {
        return WEIGHT_BF16;
    }
    for (int i = 0; i < n; i++) {
        if (views[i]->dtype != DTYPE_BF16) {
            return WEIGHT_F32;
        }
    }
    return WEIGHT_BF16;
}

static size_t place(struct weight *w, enum weight_format f, int n, int k, size_t at)
{
    *w = (struct weight){.format = f, .n = n, .k = k};
    return at + weight_bytes(w);
}

int weights_plan(struct weights *w, const struct checkpoint *ck, const struct model_config *c,
                 enum act_type act, struct err *e)
{
    memset(w, 0, sizeof *w);
    w->n_layers = c->n_layers;
    w->layers = calloc((size_t)c->n_layers, sizeof *w->layers);
    if (w->layers == NULL) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    int hidden = c->hidden_size, q_rows = c->n_heads * c->head_dim,
        kv_rows = c->n_kv_heads * c->head_dim;
    size_t at = 0;
    for (int i = 0; i < c->n_layers; i++) {
        const struct checkpoint_layer *l = &ck->layers[i];
        struct weights_layer *wl = &w->layers[i];
        const struct checkpoint_view *qkv[] = {&l->q, &l->k, &l->v}, *o[] = {&l->o},
                                     *gu[] = {&l->gate, &l->up}, *down[] = {&l->down};
        at = place(&wl->qkv, format_for(act, qkv, 3), q_rows + 2 * kv_rows, hidden, at);
        at = place(&wl->o, format_for(act, o, 1), hidden, q_rows, at);
        at = place(&wl->gate_up, format_for(act, gu, 2), 2 * round_tiles(c->intermediate_size),
                   hidden, at);
        at = place(&wl->down, format_for(act, down, 1), hidden, c->intermediate_size, at);
    }
    w->bytes_per_token = at;
    const struct checkpoint_view *embed[] = {&ck->embed}, *head[] = {&ck->head};
    at = place(&w->embed, format_for(act, embed, 1), c->vocab_size, hidden, at);
    if (c->tied) {
        w->head = w->embed;
        w->bytes_per_token = at;
    } else {
        size_t before = at;
        at = place(&w->head, format_for(act, head, 1), c->vocab_size, hidden, at);
        w->bytes_per_token += at - before;
    }
    w->memory_bytes = at;
    uint64_t layer = (uint64_t)hidden * (uint64_t)(2 * q_rows + 2 * kv_rows) +
                     3u * (uint64_t)hidden * (uint64_t)c->intermediate_size + 2u * (uint64_t)hidden;
    w->n_params = (uint64_t)c->n_layers * layer + (uint64_t)hidden +
                  (c->tied ? 1u : 2u) * (uint64_t)c->vocab_size * (uint64_t)hidden;
    return 0;
}

/* Gives the planned matrices their addresses, in the order of weights_plan. */
static void set_addresses(struct weights *w, int tied)
{
    uint8_t *at = w->memory;
    for (int i = 0; i < w->n_layers; i++) {
        struct weights_layer *l = &w->layers[i];
        struct weight *const all[] = {&l->qkv, &l->o, &l->gate_up, &l->down};
        for (int j = 0; j < 4; j++) {
            all[j]->data = at;
            at += weight_bytes(all[j]);
        }
    }
    w->embed.data = at;
    at += weight_bytes(&w->embed);
    w->head.data = tied ? w->embed.data : at;
}

static int add_packing(struct group *g, const struct checkpoint_view *v, const struct weight *w,
                       int step, int offset, struct err *e)
{
    struct packing *p = &g->p[g->n++];
    *p = (struct packing){.view = v, .w = w, .tile_step = step, .tile_offset = offset};
    p->src = checkpoint_data(v);
    if ((uintptr_t)p->src % dtype_size(v->dtype) != 0) {
        size_t n_bytes = (size_t)(v->tensor->end - v->tensor->begin);
        p->copy = malloc(n_bytes);
        if (p->copy == NULL) {
            return err_set(e, ERR_NOMEM, "tensor %s: out of memory", v->tensor->name);
        }
        memcpy(p->copy, safetensors_data(v->file, v->tensor), n_bytes);
        p->src = (const uint8_t *)p->copy + v->offset_elements * dtype_size(v->dtype);
    }
    int n_tiles = round_tiles(v->rows) / TILE_N;
    size_t tile_bytes = weight_tile_bytes(w);
    p->tiles_per_task = tile_bytes < TASK_BYTES ? (int)(TASK_BYTES / tile_bytes) : 1;
    p->first_task = g->n_tasks;
    p->n_tasks = (n_tiles + p->tiles_per_task - 1) / p->tiles_per_task;
    g->n_tasks += p->n_tasks;
    return 0;
}

static void pack_tasks(void *arg, int worker, int n_workers)
{
    (void)worker;
    (void)n_workers;
    struct group *g = arg;
    for (;;) {
        int task = atomic_fetch_add_explicit(&g->next, 1, memory_order_relaxed), i = 0;
        if (task >= g->n_tasks) {
            return;
        }
        while (task >= g->p[i].first_task + g->p[i].n_tasks) {
            i++;
        }
        const struct packing *p = &g->p[i];
        const struct checkpoint_view *v = p->view;
        int tile0 = (task - p->first_task) * p->tiles_per_task,
            n_tiles = round_tiles(v->rows) / TILE_N;
        int tile1 = tile0 + p->tiles_per_task < n_tiles ? tile0 + p->tiles_per_task : n_tiles;
        g->k->pack((void *)(uintptr_t)p->w->data, p->w->format, v->rows, v->cols, p->src, v->dtype,
                   v->stride_row, v->stride_col, tile0, tile1, p->tile_step, p->tile_offset);
    }
}

/* Fills a group: layer 0 .. n_layers-1, then the embedding, then the head of an untied model. */
static int fill_group(struct group *g, int index, const struct weights *w,
                      const struct checkpoint *ck, struct err *e)
{
    g->n = g->n_tasks = 0;
    atomic_store_explicit(&g->next, 0, memory_order_relaxed);
    if (index >= w->n_layers) {
        int is_embed = index == w->n_layers;
        return add_packing(g, is_embed ? &ck->embed : &ck->head, is_embed ? &w->embed : &w->head, 1,
                           0, e);
    }
    const struct checkpoint_layer *l = &ck->layers[index];
    const struct weights_layer *wl = &w->layers[index];
    int rc = add_packing(g, &l->q, &wl->qkv, 1, 0, e);
    rc = rc < 0 ? rc : add_packing(g, &l->k, &wl->qkv, 1, l->q.rows / TILE_N, e);
    rc = rc < 0 ? rc : add_packing(g, &l->v, &wl->qkv, 1, (l->q.rows + l->k.rows) / TILE_N, e);
    rc = rc < 0 ? rc : add_packing(g, &l->o, &wl->o, 1, 0, e);
    rc = rc < 0 ? rc : add_packing(g, &l->gate, &wl->gate_up, 2, 0, e);
    rc = rc < 0 ? rc : add_packing(g, &l->up, &wl->gate_up, 2, 1, e);
    return rc < 0 ? rc : add_packing(g, &l->down, &wl->down, 1, 0, e);
}

static int pack_all(struct weights *w, const struct checkpoint *ck, int tied,
                    const struct kernels *k, struct cpu_pool *pool, struct err *e)
{
    struct group g = {.k = k};
    int n_groups = w->n_layers + (tied ? 1 : 2), rc = 0;
    for (int i = 0; i < n_groups && rc == 0; i++) {
        rc = fill_group(&g, i, w, ck, e);
        if (rc == 0) {
            const struct checkpoint_view *next =
                i + 1 < w->n_layers ? &ck->layers[i + 1].q : &ck->embed;
            safetensors_will_need(next->file, next->tensor);
            cpu_pool_run(pool, pack_tasks, &g);
        }
        for (int j = 0; j < g.n; j++) {
            safetensors_drop(g.p[j].view->file, g.p[j].view->tensor);
            free(g.p[j].copy);
        }
    }
    return rc;
}

static void read_norm(float *out, const struct checkpoint_view *v, enum act_type act)
{
    const uint8_t *p = checkpoint_data(v);
    for (int i = 0; i < v->rows; i++) {
        uint16_t h;
        if (v->dtype == DTYPE_F32) {
            memcpy(&out[i], p + 4 * (size_t)i, 4);
        } else {
            memcpy(&h, p + 2 * (size_t)i, 2);
            out[i] = v->dtype == DTYPE_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
        }
        if (act == ACT_BF16) {
            out[i] = bf16_to_f32(f32_to_bf16(out[i]));
        }
    }
}

static int read_norms(struct weights *w, const struct checkpoint *ck, const struct model_config *c,
                      enum act_type act, struct err *e)
{
    size_t n = (size_t)c->hidden_size;
    w->norms = malloc((2 * (size_t)c->n_layers + 1) * n * sizeof *w->norms);
    if (w->norms == NULL) {
        return err_set(e, ERR_NOMEM, "norm weights: out of memory");
    }
    float *at = w->norms;
    for (int i = 0; i < c->n_layers; i++, at += 2 * n) {
        read_norm(at, &ck->layers[i].input_norm, act);
        read_norm(at + n, &ck->layers[i].post_norm, act);
        w->layers[i].input_norm = at;
        w->layers[i].post_norm = at + n;
    }
    read_norm(at, &ck->final_norm, act);
    w->final_norm = at;
    return 0;
}

struct hashing {
    const uint8_t *data;
    size_t n_bytes;
    struct hash128 *out;
};

static void hash_chunks(void *arg, int worker, int n_workers)
{
    const struct hashing *h = arg;
    size_t n = (h->n_bytes + HASH_CHUNK_BYTES - 1) / HASH_CHUNK_BYTES;
    for (size_t i = (size_t)worker; i < n; i += (size_t)n_workers) {
        size_t at = i * HASH_CHUNK_BYTES, left = h->n_bytes - at;
        h->out[i] = hash128(h->data + at, left < HASH_CHUNK_BYTES ? left : HASH_CHUNK_BYTES, i);
    }
}

/* What makes bits comparable: packed weights, norms, shapes, formats, and the order of operations
 * ("chain": one fma chain per output; every built level has it). */
static int name_numerics(struct weights *w, const struct model_config *c, enum act_type act,
                         struct cpu_pool *pool, struct err *e)
{
    size_t n = (w->memory_bytes + HASH_CHUNK_BYTES - 1) / HASH_CHUNK_BYTES;
    struct hash128 *chunks = calloc(n + 2, sizeof *chunks);
    if (chunks == NULL) {
        return err_set(e, ERR_NOMEM, "weights hash: out of memory");
    }
    struct hashing h = {w->memory, w->memory_bytes, chunks};
    cpu_pool_run(pool, hash_chunks, &h);
    chunks[n] = hash128(
        w->norms, (2 * (size_t)c->n_layers + 1) * (size_t)c->hidden_size * sizeof *w->norms, 0);
    char text[256];
    int len = snprintf(text, sizeof text,
                       "chain act=%d part=%d heads=%d/%d/%d eps=%a theta=%a ratio=%a tied=%d",
                       (int)act, ATTN_PARTITION, c->n_heads, c->n_kv_heads, c->head_dim,
                       (double)c->rms_norm_eps, c->rope_theta, c->compression_ratio, c->tied);
    chunks[n + 1] = hash128(text, (size_t)len, 0);
    struct hash128 all = hash128(chunks, (n + 2) * sizeof *chunks, 0);
    snprintf(w->numerics_id, sizeof w->numerics_id, "%016llx%016llx", (unsigned long long)all.hi,
             (unsigned long long)all.lo);
    free(chunks);
    return 0;
}

static void warn_other_head(const struct checkpoint *ck, const struct log *log)
{
    const struct checkpoint_view *a = &ck->embed, *b = &ck->head;
    if (b->tensor == NULL) {
        return;
    }
    size_t n = (size_t)(a->tensor->end - a->tensor->begin);
    if (a->dtype != b->dtype || memcmp(checkpoint_data(a), checkpoint_data(b), n) != 0) {
        log_warning(
            log,
            "%s: tensor %s differs from %s, but tie_word_embeddings is true: the embedding is used",
            safetensors_path(b->file), b->tensor->name, a->tensor->name);
    }
    safetensors_drop(b->file, b->tensor);
}

int weights_load(struct weights *w, const struct checkpoint *ck, const struct model_config *c,
                 enum act_type act, const struct kernels *k, struct cpu_pool *pool,
                 const struct log *log, struct err *e)
{
    if (c->tied) {
        warn_other_head(ck, log);
    }
    w->memory = cpu_big_alloc(w->memory_bytes);
    if (w->memory == NULL) {
        return err_set(e, ERR_NOMEM, "no memory for %zu bytes of packed weights", w->memory_bytes);
    }
    set_addresses(w, c->tied);
    int rc = read_norms(w, ck, c, act, e);
    rc = rc < 0 ? rc : pack_all(w, ck, c->tied, k, pool, e);
    return rc < 0 ? rc : name_numerics(w, c, act, pool, e);
}

void weights_fini(struct weights *w)
{
    if (w->memory != NULL) {
        cpu_big_free(w->memory, w->memory_bytes);
    }
    free(w->norms);
    free(w->layers);
    memset(w, 0, sizeof *w);
}
