/* SPDX-License-Identifier: Apache-2.0 */
/* Packing. All packed matrices live in one allocation on huge pages, in the order the forward pass
 * reads them. The checkpoint is packed group by group (a layer, the embedding, the head): while
 * workers pack one group the kernel is told to read the next, and the pages of a finished group are
 * given back, so that resident memory ends at the packed size. Quantized matrices are packed code
 * by code, the parts of a fused one in a format that holds them all; plain ones may be quantized on
 * the way. Inside a group workers take small ranges of tiles from a counter; where a tile ends up
 * doesn't depend on who packed it. The packed bytes are hashed in fixed chunks: the hash names the
 * weights, whatever file layout they came from. */
#include "model/weights.h"

#include "base/buf.h"
#include "base/hash.h"
#include "base/log.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TASK_BYTES       (256u << 10)
#define HASH_CHUNK_BYTES (4u << 20)
#define F8_BLOCK_TILES   8  /* of the 128 x 128 blocks made while loading */
#define HEAD_GROUP       32 /* inputs of an embedding and head of 4 bits that share a scale */

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
    atomic_int failed; /* the worker that sets it first writes e */
    struct err e;
};

static int round_tiles(int n)
{
    return (n + TILE_N - 1) / TILE_N * TILE_N;
}

/* Adds up what is planned. */
struct planner {
    const struct weights_options *o;
    struct err *e;
    size_t at;
    size_t n_order, n_tiles; /* of act-order */
    uint8_t *asked;          /* of the next matrix */
    int failed;
};

/* What a plain matrix is packed as. */
static void plan_plain(struct weight *w, const struct weights_options *o,
                       const struct checkpoint_view *const *views, int n, int is_linear)
{
    w->format = WEIGHT_BF16;
    for (int i = 0; i < n && o->act == ACT_F32; i++) {
        w->format = views[i]->dtype != DTYPE_BF16 ? WEIGHT_F32 : w->format;
    }
    enum quant_method method = o->method;
    if (!is_linear) {
        method = o->head_bits == 4                                   ? QUANT_INT4
                 : o->head_bits == 8 && o->method == QUANT_BLOCK_FP8 ? QUANT_BLOCK_FP8
                 : o->head_bits == 8                                 ? QUANT_WINT8
                                                                     : QUANT_NONE;
    }
    if (method == QUANT_WINT8) {
        w->format = WEIGHT_I8;
        w->group = w->k;
        w->scale_type = DTYPE_BF16;
    } else if (method == QUANT_INT4 || method == QUANT_INT4_128) {
        w->format = WEIGHT_I4;
        w->group = !is_linear ? HEAD_GROUP : method == QUANT_INT4 ? 64 : 128;
        w->has_zero = 1;
        w->scale_type = DTYPE_BF16;
    } else if (method == QUANT_BLOCK_FP8) {
        w->format = WEIGHT_F8_E4M3;
        w->group = 128;
        w->scale_type = DTYPE_F32;
    }
}

enum input_format weights_input_for(const struct weights_options *o, const struct weight *w,
                                    enum quant_act asked, int ordered)
{
    const int is_f8 = w->format == WEIGHT_F8_E4M3 || w->format == WEIGHT_F8_E5M2;
    int eight = o->inputs == MODEL_INPUTS_8 || o->inputs == MODEL_INPUTS_E5M2 ||
                (o->inputs == MODEL_INPUTS_AUTO && o->act != ACT_F32 &&
                 (asked != QUANT_ACT_16 || (w->format == WEIGHT_I4 && !o->int4_as_asked)));
    if (!eight || ordered) {
        return INPUT_ACT;
    }
    return !is_f8                                                      ? INPUT_I8
           : o->inputs == MODEL_INPUTS_E5M2 || asked == QUANT_ACT_E5M2 ? INPUT_E5M2
                                                                       : INPUT_E4M3;
}

static const struct tensor *tensor_of(const struct checkpoint_view *v)
{
    return v->quant != NULL ? v->quant->codes : v->tensor;
}

/* Blocks of a GGUF file where --quantization asks for codes that are made of plain numbers. */
static int refuse_blocks(const struct checkpoint_view *v, const struct weights_options *o,
                         struct err *e)
{
    if (v->quant == NULL || v->quant->layout != QUANT_BLOCKS || o->method == QUANT_GGUF) {
        return 0;
    }
    const struct tensor *t = v->quant->codes;
    return err_set(e, ERR_INVALID,
                   "--quantization: %s: tensor %s: expected F32, F16 or BF16 to quantize while "
                   "loading, found %s (gguf or none takes the file as it is)",
                   t->file, t->name, tensor_type_name(t->type));
}

/* Plans one packed matrix of n rows that is made of n_views parts, one below the other. */
static void place(struct planner *p, struct weight *w, int n, int k,
                  const struct checkpoint_view *const *views, int n_views, int is_linear)
{
    int ordered = 0;
    enum quant_act asked = QUANT_ACT_INT8; /* of what is quantized while loading */
    *w = (struct weight){.n = n, .k = k};
    for (int i = 0; i < n_views && p->failed == 0; i++) {
        const struct quant_matrix *m = views[i]->quant;
        p->failed = is_linear ? refuse_blocks(views[i], p->o, p->e) : 0;
        if (p->failed == 0 &&
            ((m != NULL) != (views[0]->quant != NULL) ||
             (m != NULL && (m->act != views[0]->quant->act || !quant_fit(w, m, i == 0))))) {
            const struct tensor *a = tensor_of(views[0]), *b = tensor_of(views[i]);
            p->failed = err_set(p->e, ERR_UNSUPPORTED,
                                "%s: tensors %s and %s: unsupported mix of formats in matrices "
                                "that are computed together",
                                b->file, a->name, b->name);
        }
        if (m != NULL) {
            ordered |= m->order != NULL;
            asked = m->act;
            /* what the parts share is quantized once: the widest range holds all */
            w->input_scale = m->input_scale > w->input_scale ? m->input_scale : w->input_scale;
        }
    }
    if (p->failed != 0) {
        return;
    }
    if (views[0]->quant == NULL) {
        plan_plain(w, p->o, views, n_views, is_linear);
    }
    if (weight_is_quantized(w)) {
        w->input = weights_input_for(p->o, w, asked, ordered);
    }
    const char *why = weight_unsupported(w);
    if (why != NULL) {
        const struct tensor *t = tensor_of(views[0]);
        p->failed =
            err_set(p->e, ERR_UNSUPPORTED, "%s: tensor %s: unsupported: %s", t->file, t->name, why);
        return;
    }
    if (ordered) {
        p->n_order += (size_t)n_views * (size_t)k;
        p->n_tiles += (size_t)round_tiles(n) / TILE_N;
    }
    *p->asked++ = (uint8_t)asked;
    p->at += weight_bytes(w);
}

/* ---- act-order ---- */

struct order_writer {
    int32_t *order;
    const int32_t **tiles;
};

/* Gives every tile of w the column order of the part it belongs to; parts lie one below the other,
 * or (step > 1) alternate tile by tile. */
static void set_order(struct order_writer *at, struct weight *w,
                      const struct checkpoint_view *const *views, int n_views, int step)
{
    int ordered = 0, n_tiles = round_tiles(w->n) / TILE_N, first = 0;
    for (int i = 0; i < n_views; i++) {
        ordered |= views[i]->quant != NULL && views[i]->quant->order != NULL;
    }
    if (!ordered) {
        return;
    }
    w->order = at->tiles;
    for (int i = 0; i < n_views; i++, at->order += w->k) {
        const int32_t *from = views[i]->quant->order;
        for (int j = 0; j < w->k; j++) {
            at->order[j] = from != NULL ? from[j] : j;
        }
        int end = step > 1 ? n_tiles : first + round_tiles(views[i]->rows) / TILE_N;
        for (int t = step > 1 ? i : first; t < end; t += step) {
            at->tiles[t] = at->order;
        }
        first = end;
    }
    at->tiles += n_tiles;
}

static void set_orders(struct weights *w, const struct checkpoint *ck)
{
    struct order_writer at = {w->order, w->tiles};
    for (int i = 0; i < w->n_layers; i++) {
        const struct checkpoint_layer *l = &ck->layers[i];
        struct weights_layer *wl = &w->layers[i];
        const struct checkpoint_view *qkv[] = {&l->q, &l->k, &l->v}, *proj[] = {&l->o},
                                     *gu[] = {&l->gate, &l->up}, *down[] = {&l->down};
        set_order(&at, &wl->qkv, qkv, 3, 1);
        set_order(&at, &wl->o, proj, 1, 1);
        set_order(&at, &wl->gate_up, gu, 2, 2);
        set_order(&at, &wl->down, down, 1, 1);
    }
    const struct checkpoint_view *head[] = {&ck->head};
    set_order(&at, &w->head, head, 1, 1);
}

int weights_alloc(struct weights *w, int n_layers, int tied, struct err *e)
{
    memset(w, 0, sizeof *w);
    w->n_layers = n_layers;
    w->tied = tied;
    w->layers = calloc((size_t)n_layers, sizeof *w->layers);
    w->asked = calloc(4 * (size_t)n_layers + 2, sizeof *w->asked);
    return w->layers == NULL || w->asked == NULL ? err_set(e, ERR_NOMEM, "out of memory") : 0;
}

struct weight *weights_at(const struct weights *w, int i)
{
    if (i >= 4 * w->n_layers) {
        return (struct weight *)(uintptr_t)(i == 4 * w->n_layers ? &w->embed : &w->head);
    }
    struct weights_layer *l = &w->layers[i / 4];
    struct weight *const all[] = {&l->qkv, &l->o, &l->gate_up, &l->down};
    return all[i % 4];
}

int weights_plan(struct weights *w, const struct checkpoint *ck, const struct model_config *c,
                 const struct weights_options *o, struct err *e)
{
    int rc = weights_alloc(w, c->n_layers, c->tied, e);
    if (rc < 0) {
        return rc;
    }
    struct planner p = {.o = o, .e = e, .asked = w->asked};
    int hidden = c->hidden_size, q_rows = c->n_heads * c->head_dim,
        kv_rows = c->n_kv_heads * c->head_dim;
    for (int i = 0; i < c->n_layers; i++) {
        const struct checkpoint_layer *l = &ck->layers[i];
        struct weights_layer *wl = &w->layers[i];
        const struct checkpoint_view *qkv[] = {&l->q, &l->k, &l->v}, *proj[] = {&l->o},
                                     *gu[] = {&l->gate, &l->up}, *down[] = {&l->down};
        place(&p, &wl->qkv, q_rows + 2 * kv_rows, hidden, qkv, 3, 1);
        place(&p, &wl->o, hidden, q_rows, proj, 1, 1);
        place(&p, &wl->gate_up, 2 * round_tiles(c->intermediate_size), hidden, gu, 2, 1);
        place(&p, &wl->down, hidden, c->intermediate_size, down, 1, 1);
    }
    size_t layers = p.at;
    const struct checkpoint_view *embed[] = {&ck->embed}, *head[] = {&ck->head};
    place(&p, &w->embed, c->vocab_size, hidden, embed, 1, 0);
    w->bytes_per_token = p.at;
    w->head = w->embed;
    if (!c->tied) {
        size_t before = p.at;
        place(&p, &w->head, c->vocab_size, hidden, head, 1, 0);
        w->bytes_per_token = layers + p.at - before;
    }
    w->memory_bytes = p.at;
    w->n_order = p.n_order;
    w->n_tiles = p.n_tiles;
    if (p.failed == 0 && p.n_order > 0) {
        w->order = calloc(p.n_order, sizeof *w->order);
        w->tiles = calloc(p.n_tiles, sizeof *w->tiles);
        if (w->order == NULL || w->tiles == NULL) {
            p.failed = err_set(e, ERR_NOMEM, "out of memory");
        } else {
            set_orders(w, ck);
        }
    }
    uint64_t layer = (uint64_t)hidden * (uint64_t)(2 * q_rows + 2 * kv_rows) +
                     3u * (uint64_t)hidden * (uint64_t)c->intermediate_size + 2u * (uint64_t)hidden;
    w->n_params = (uint64_t)c->n_layers * layer + (uint64_t)hidden +
                  (c->tied ? 1u : 2u) * (uint64_t)c->vocab_size * (uint64_t)hidden;
    return p.failed;
}

/* Gives the planned matrices their addresses, in the order of weights_plan. */
static void set_addresses(struct weights *w)
{
    uint8_t *at = w->memory;
    for (int i = 0; i < 4 * w->n_layers + (w->tied ? 1 : 2); i++) {
        struct weight *m = weights_at(w, i);
        m->data = at;
        at += weight_bytes(m);
    }
    if (w->tied) {
        w->head.data = w->embed.data;
    }
}

static void set_norms(struct weights *w, size_t hidden)
{
    for (int i = 0; i < w->n_layers; i++) {
        w->layers[i].input_norm = w->norms + 2 * (size_t)i * hidden;
        w->layers[i].post_norm = w->layers[i].input_norm + hidden;
    }
    w->final_norm = w->norms + 2 * (size_t)w->n_layers * hidden;
}

static int add_packing(struct group *g, const struct checkpoint_view *v, const struct weight *w,
                       int step, int offset, struct err *e)
{
    struct packing *p = &g->p[g->n++];
    *p = (struct packing){.view = v, .w = w, .tile_step = step, .tile_offset = offset};
    if (v->quant == NULL) {
        p->src = checkpoint_data(v);
        if ((uintptr_t)p->src % dtype_size(v->dtype) != 0) {
            p->copy = malloc(v->tensor->n_bytes);
            if (p->copy == NULL) {
                return err_set(e, ERR_NOMEM, "tensor %s: out of memory", v->tensor->name);
            }
            memcpy(p->copy, v->tensor->data, v->tensor->n_bytes);
            p->src = (const uint8_t *)p->copy + v->offset_elements * dtype_size(v->dtype);
        }
    }
    int n_tiles = round_tiles(v->rows) / TILE_N;
    size_t tile_bytes = weight_tile_bytes(w);
    p->tiles_per_task = tile_bytes < TASK_BYTES ? (int)(TASK_BYTES / tile_bytes) : 1;
    if (w->format == WEIGHT_F8_E4M3) { /* whole blocks: their range is then found once */
        p->tiles_per_task =
            (p->tiles_per_task + F8_BLOCK_TILES - 1) / F8_BLOCK_TILES * F8_BLOCK_TILES;
    }
    p->first_task = g->n_tasks;
    p->n_tasks = (n_tiles + p->tiles_per_task - 1) / p->tiles_per_task;
    g->n_tasks += p->n_tasks;
    return 0;
}

/* Codes as they are, tile by tile. */
static int pack_codes(const struct packing *p, int tile0, int tile1, struct err *e)
{
    const struct quant_matrix *m = p->view->quant;
    const size_t cols = (size_t)m->cols, groups = (size_t)weight_groups(p->w);
    const size_t ld = p->w->super != 0 ? (size_t)weight_supers(p->w) : groups;
    uint8_t *codes = malloc(TILE_N * cols), *zeros = malloc(2 * TILE_N * groups);
    float *scales = malloc((2 * ld + 2) * TILE_N * sizeof *scales);
    int rc = codes == NULL || zeros == NULL || scales == NULL
                 ? err_set(e, ERR_NOMEM, "tensor %s: out of memory", m->codes->name)
                 : 0;
    const struct weight_levels levels = {(int8_t *)zeros, (int8_t *)zeros + TILE_N * groups,
                                         scales + TILE_N * ld, scales + 2 * TILE_N * ld};
    for (int t = tile0; t < tile1 && rc == 0; t++) {
        int rows = m->rows - t * TILE_N < TILE_N ? m->rows - t * TILE_N : TILE_N;
        const int to = t * p->tile_step + p->tile_offset;
        rc = quant_read_rows(m, p->w, t * TILE_N, rows, codes, scales, zeros, e);
        if (rc == 0) {
            weight_pack_tile(p->w, to, codes, cols, scales, ld, zeros, groups, rows);
        }
        if (rc == 0 && p->w->super != 0) {
            rc = quant_read_levels(m, p->w, t * TILE_N, rows, &levels, e);
            if (rc == 0) {
                weight_pack_levels(p->w, to, &levels, rows);
            }
        }
    }
    free(codes);
    free(zeros);
    free(scales);
    return rc;
}

/* The first of n elements that is NaN or infinite, or n. Exponents of nothing but ones are looked for
 * in all of them first: one pass without a branch. */
static size_t first_bad(const void *data, size_t n, enum dtype type)
{
    size_t i = 0;
    uint32_t bad = 0;
    if (type == DTYPE_F32) {
        const uint32_t *x = data;
        for (; i < n; i++) {
            bad |= (x[i] & 0x7f800000u) == 0x7f800000u;
        }
        for (i = bad ? 0 : n; i < n && (x[i] & 0x7f800000u) != 0x7f800000u; i++) {
        }
        return i;
    }
    const uint16_t *x = data, ones = type == DTYPE_F16 ? 0x7c00 : 0x7f80;
    for (; i < n; i++) {
        bad |= (x[i] & ones) == ones;
    }
    for (i = bad ? 0 : n; i < n && (x[i] & ones) != ones; i++) {
    }
    return i;
}

/* Rows of a plain matrix that are being packed hold numbers only. */
static int check_numbers(const struct packing *p, int tile0, int tile1, struct err *e)
{
    const struct checkpoint_view *v = p->view;
    const int row0 = tile0 * TILE_N, row1 = tile1 * TILE_N < v->rows ? tile1 * TILE_N : v->rows;
    const int by_row = v->stride_col == 1;
    const size_t n = (size_t)(by_row ? v->cols : row1 - row0);
    for (int i = by_row ? row0 : 0; i < (by_row ? row1 : v->cols); i++) {
        const size_t at = by_row ? (size_t)i * v->stride_row
                                 : (size_t)i * v->stride_col + (size_t)row0 * v->stride_row;
        const size_t bad =
            first_bad((const uint8_t *)p->src + at * dtype_size(v->dtype), n, v->dtype);
        if (bad < n) {
            return err_set(e, ERR_FORMAT, "%s: tensor %s: row %d, column %d is not a finite number",
                           v->tensor->file, v->tensor->name, by_row ? i : row0 + (int)bad,
                           by_row ? (int)bad : i);
        }
    }
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
        struct err e;
        const int rc =
            v->quant != NULL ? pack_codes(p, tile0, tile1, &e) : check_numbers(p, tile0, tile1, &e);
        if (rc < 0 && atomic_exchange(&g->failed, rc) == 0) {
            g->e = e;
        }
        if (v->quant != NULL) {
            continue;
        }
        if (weight_is_quantized(p->w)) {
            weight_quantize(p->w, v->rows, p->src, v->dtype, v->stride_row, v->stride_col,
                            p->w->format == WEIGHT_F8_E4M3 ? F8_BLOCK_TILES * TILE_N : 1, tile0,
                            tile1, p->tile_step, p->tile_offset);
        } else {
            g->k->pack((void *)(uintptr_t)p->w->data, p->w->format, v->rows, v->cols, p->src,
                       v->dtype, v->stride_row, v->stride_col, tile0, tile1, p->tile_step,
                       p->tile_offset);
        }
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
            checkpoint_will_need(i + 1 < w->n_layers ? &ck->layers[i + 1].q : &ck->embed);
            cpu_pool_run(pool, pack_tasks, &g);
        }
        for (int j = 0; j < g.n; j++) {
            checkpoint_drop(g.p[j].view);
            free(g.p[j].copy);
        }
        int failed = atomic_load(&g.failed);
        if (failed < 0) {
            rc = err_set(e, failed, "%s", g.e.text);
        }
    }
    return rc;
}

/* One number here that is not finite makes every logit NaN, so it is worth the look. */
static int read_norm(float *out, const struct checkpoint_view *v, enum act_type act, struct err *e)
{
    for (int i = 0; i < v->rows; i++) {
        out[i] = tensor_float(v->tensor, (size_t)i);
        if (act == ACT_BF16) {
            out[i] = bf16_to_f32(f32_to_bf16(out[i]));
        }
        if (!isfinite(out[i])) {
            return err_set(e, ERR_FORMAT,
                           "%s: tensor %s: element %d is %g, expected a finite number",
                           v->tensor->file, v->tensor->name, i, (double)out[i]);
        }
    }
    return 0;
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
    int rc = 0;
    for (int i = 0; i < c->n_layers && rc == 0; i++, at += 2 * n) {
        rc = read_norm(at, &ck->layers[i].input_norm, act, e);
        rc = rc < 0 ? rc : read_norm(at + n, &ck->layers[i].post_norm, act, e);
    }
    rc = rc < 0 ? rc : read_norm(at, &ck->final_norm, act, e);
    set_norms(w, n);
    return rc;
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

static struct hash128 add_format(struct hash128 seed, const struct weight *w)
{
    const uint64_t all[] = {seed.lo,
                            seed.hi,
                            (uint64_t)w->format,
                            (uint64_t)w->input,
                            (uint64_t)w->scale_type,
                            (uint64_t)(weight_is_quantized(w) ? w->group : 0),
                            (uint64_t)w->has_zero,
                            (uint64_t)w->super << 1 | (uint64_t)w->has_offset,
                            w->order != NULL};
    struct hash128 h = hash128(all, sizeof all, 0);
    if (w->input != INPUT_ACT && w->input_scale > 0) {
        h = hash128(&w->input_scale, sizeof w->input_scale, h.lo);
    }
    for (int t = 0; w->order != NULL && t < round_tiles(w->n) / TILE_N; t++) {
        h = hash128(w->order[t], (size_t)w->k * sizeof **w->order, h.lo);
    }
    return h;
}

static struct hash128 hash_formats(const struct weights *w)
{
    struct hash128 h = {0, 0};
    for (int i = 0; i < 4 * w->n_layers + 2; i++) {
        h = add_format(h, weights_at(w, i));
    }
    return h;
}

/* What makes bits comparable: packed weights, norms, shapes, formats, and the order of operations
 * ("chain": one fma chain per output; every built level has it). */
static int name_numerics(struct weights *w, const struct model_config *c,
                         const struct weights_options *o, struct cpu_pool *pool, struct err *e)
{
    size_t n = (w->memory_bytes + HASH_CHUNK_BYTES - 1) / HASH_CHUNK_BYTES;
    struct hash128 *chunks = calloc(n + 3, sizeof *chunks);
    if (chunks == NULL) {
        return err_set(e, ERR_NOMEM, "weights hash: out of memory");
    }
    struct hashing h = {w->memory, w->memory_bytes, chunks};
    cpu_pool_run(pool, hash_chunks, &h);
    w->data_hash = hash128(chunks, n * sizeof *chunks, n);
    chunks[n] = hash128(
        w->norms, (2 * (size_t)c->n_layers + 1) * (size_t)c->hidden_size * sizeof *w->norms, 0);
    char text[256];
    int len =
        snprintf(text, sizeof text,
                 "chain act=%d kv=%d part=%d heads=%d/%d/%d eps=%a theta=%a ratio=%a tied=%d",
                 (int)o->act, (int)o->kv, ATTN_PARTITION, c->n_heads, c->n_kv_heads, c->head_dim,
                 (double)c->rms_norm_eps, c->rope_theta, c->compression_ratio, c->tied);
    chunks[n + 1] = hash128(text, (size_t)len, 0);
    chunks[n + 2] = hash_formats(w);
    struct hash128 all = hash128(chunks, (n + 3) * sizeof *chunks, 0);
    snprintf(w->numerics_id, sizeof w->numerics_id, "%016llx%016llx", (unsigned long long)all.hi,
             (unsigned long long)all.lo);
    free(chunks);
    return 0;
}

static void warn_other_head(const struct checkpoint *ck, const struct log *log)
{
    const struct checkpoint_view *embed = &ck->embed, *head = &ck->head;
    if (!checkpoint_has(head)) {
        return;
    }
    const struct tensor *a = tensor_of(embed), *b = tensor_of(head);
    if (a->type != b->type || a->n_bytes != b->n_bytes ||
        memcmp(a->data, b->data, a->n_bytes) != 0) {
        log_warning(
            log,
            "%s: tensor %s differs from %s, but tie_word_embeddings is true: the embedding is used",
            b->file, b->name, a->name);
    }
    checkpoint_drop(head);
}

static int is_quantized(const struct weights *w)
{
    for (int i = 0; i < 4 * w->n_layers + 2; i++) {
        if (weight_is_quantized(weights_at(w, i))) {
            return 1;
        }
    }
    return 0;
}

enum input_format weights_input(const struct weights *w)
{
    for (int i = 0; i < 4 * w->n_layers; i++) {
        const struct weight *m = weights_at(w, i);
        if (m->input != INPUT_ACT) {
            return m->input;
        }
    }
    return w->head.input;
}

static int check_level(const struct weights *w, const struct weights_options *o,
                       const struct kernels *k, struct err *e)
{
    return is_quantized(w) && k->act[o->act].quantize == NULL
               ? err_set(e, ERR_UNSUPPORTED, "level %s has no kernels for quantized weights",
                         cpu_level_name(k->level))
               : 0;
}

int weights_adopt(struct weights *w, void *memory, const struct model_config *c,
                  const struct weights_options *o, const struct kernels *k, struct cpu_pool *pool,
                  struct err *e)
{
    int rc = check_level(w, o, k, e);
    w->memory = memory;
    w->borrowed = 1;
    set_addresses(w);
    set_norms(w, (size_t)c->hidden_size);
    return rc < 0 ? rc : name_numerics(w, c, o, pool, e);
}

int weights_load(struct weights *w, const struct checkpoint *ck, const struct model_config *c,
                 const struct weights_options *o, const struct kernels *k, struct cpu_pool *pool,
                 const struct log *log, struct err *e)
{
    if (c->tied) {
        warn_other_head(ck, log);
    }
    int rc = check_level(w, o, k, e);
    if (rc < 0) {
        return rc;
    }
    w->memory = cpu_big_alloc(w->memory_bytes);
    if (w->memory == NULL) {
        return err_set(e, ERR_NOMEM, "no memory for %zu bytes of packed weights", w->memory_bytes);
    }
    set_addresses(w);
    rc = read_norms(w, ck, c, o->act, e);
    rc = rc < 0 ? rc : pack_all(w, ck, c->tied, k, pool, e);
    return rc < 0 ? rc : name_numerics(w, c, o, pool, e);
}

void weights_fini(struct weights *w)
{
    if (w->memory != NULL && !w->borrowed) {
        cpu_big_free(w->memory, w->memory_bytes);
    }
    free(w->norms);
    free(w->layers);
    free(w->asked);
    free(w->order);
    free(w->tiles);
    memset(w, 0, sizeof *w);
}

void weight_describe(const struct weight *w, enum act_type act, struct buf *out)
{
    static const char *const formats[WEIGHT_FORMAT_COUNT] = {
        [WEIGHT_BF16] = "bf16",        [WEIGHT_F32] = "fp32",        [WEIGHT_I8] = "int8",
        [WEIGHT_I6] = "int6",          [WEIGHT_C2] = "2-bit code",   [WEIGHT_I4] = "int4",
        [WEIGHT_F8_E4M3] = "fp8 E4M3", [WEIGHT_F8_E5M2] = "fp8 E5M2"};
    static const char *const scales[] = {"bf16", "f16", "fp32"};
    static const char *const inputs[INPUT_FORMAT_COUNT] = {
        [INPUT_I8] = "int8", [INPUT_E4M3] = "fp8 E4M3", [INPUT_E5M2] = "fp8 E5M2"};
    buf_puts(out, formats[w->format]);
    if (weight_is_quantized(w)) {
        if (w->group < w->k) {
            buf_printf(out, " (groups of %d", w->group);
        } else {
            buf_puts(out, " (per row");
        }
        if (w->super != 0 && w->super < w->k) {
            buf_printf(out, " in %d", w->super);
        }
        buf_printf(out, ", %s scales%s%s%s)", scales[w->scale_type],
                   w->has_zero ? ", zero points" : "", w->has_offset ? ", minima" : "",
                   w->order != NULL ? ", act-order" : "");
    }
    buf_printf(out, " x %s%s",
               w->input != INPUT_ACT ? inputs[w->input]
               : act == ACT_BF16     ? "bf16"
                                     : "fp32",
               w->input != INPUT_ACT && w->input_scale > 0 ? " (scales of the file)" : "");
}
