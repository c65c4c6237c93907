/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled plan: at open the model becomes a flat array of steps, each with its function,
 * matrix and norm weights chosen. All workers walk the array together, with one barrier after each
 * step that asks for it.
 *
 *   - start: embedding rows, RoPE rows, KV tile addresses of all layers
 *   - per layer:
 *     - norm: skipped for few rows: then each worker norms them all for itself, which is less work
 *       than a barrier
 *     - qkv: GEMM + RoPE + K/V write
 *     - attention: items of attend.c
 *     - merge: skipped when no item was split
 *     - o: x += att Wo
 *     - norm, swiglu: as above, then silu(h Wg) * (h Wu)
 *     - down: x += ff Wd
 *   - final_norm, head: only the rows that want logits or hidden states
 *
 * A quantized matrix that isn't multiplied with activations as they are gets them quantized: by the
 * step that norms them, or (o, down) by a step of their own, again skipped for few rows.
 *
 * GEMM work is cut over output columns when rows are few (a worker streams one long run of the
 * matrix, then takes pieces of what is left), else into row blocks x column panels that workers take
 * from a counter. It is never cut over K, and no kernel's result depends on the cut, so neither do
 * the bits. Nothing is allocated here after plan_open. */
#include "model/attend.h"

#include <stdlib.h>
#include <string.h>

#define PRIVATE_NORM_ROWS 4 /* up to here every worker norms all rows itself */
#define EVEN_ROWS                                                                                  \
    32 /* up to here mostly an even cut of columns; beyond, tasks are taken from a counter */
#define BLOCK_ROWS 128 /* rows of a task */
#define PANEL_BYTES                                                                                \
    (256u << 10) /* weights of a task: stay in the second-level cache while rows pass by */

struct plan_step;
typedef int plan_run_step(struct plan *p, const struct plan_step *s, int worker,
                          int n_workers); /* 1: barrier */

struct plan_step {
    plan_run_step *run;
    int layer;
    const struct weight *w;
    const float *norm;
    int n_units;      /* what is cut: heads, tiles, tile pairs */
    int panel_units;  /* units of a task */
    int piece_units;  /* units of a kernel's panel, at least one: the smallest piece of few rows */
    atomic_int *next; /* the step's counter */
};

struct plan {
    struct forward *f;
    struct plan_step *steps;
    atomic_int *counters; /* [n_steps] */
    int n_steps;
    int canceled; /* worker 0 writes it before a layer's last barrier, all read it behind that */
    struct attend attend;
    float *rope;            /* [max_rows][head_dim] */
    void **kv_tile;         /* [n_layers][max_rows] */
    void *x, *h;            /* [max_rows][ld_hidden] */
    void *q, *att;          /* [max_rows][ld_q] */
    void *ff;               /* [max_rows][ld_inter] */
    void *final;            /* [max_logits][ld_hidden] */
    void *input;            /* [max_rows][ld_input] quantized: h, att or ff by turns */
    void *final_input;      /* [max_logits][ld_input] */
    uint8_t *private_norm;  /* [n_workers][PRIVATE_NORM_ROWS][ld_hidden] */
    uint8_t *private_input; /* [n_workers][PRIVATE_NORM_ROWS][ld_input] */
};

static void carve_buffers(struct plan *p, const struct forward_dims *d, struct carver *c)
{
    size_t rows = (size_t)d->max_rows;
    p->rope = carve(c, rows * (size_t)d->c->head_dim * sizeof *p->rope);
    p->kv_tile = carve(c, (size_t)d->c->n_layers * rows * sizeof *p->kv_tile);
    p->x = carve(c, rows * d->ld_hidden * d->elem);
    p->h = carve(c, rows * d->ld_hidden * d->elem);
    p->q = carve(c, rows * d->ld_q * d->elem);
    p->att = carve(c, rows * d->ld_q * d->elem);
    p->ff = carve(c, rows * d->ld_inter * d->elem);
    p->final = carve(c, (size_t)d->max_logits * d->ld_hidden * d->elem);
    p->private_norm = carve(c, (size_t)d->n_workers * PRIVATE_NORM_ROWS * d->ld_hidden * d->elem);
    p->input = carve(c, rows * d->ld_input);
    p->final_input = carve(c, (size_t)d->max_logits * d->ld_input);
    p->private_input = carve(c, (size_t)d->n_workers * PRIVATE_NORM_ROWS * d->ld_input);
    attend_carve(&p->attend, d, c);
}

void plan_count(const struct forward_dims *d, struct carver *c)
{
    struct plan unused;
    carve_buffers(&unused, d, c);
}

/* ---- cutting GEMM work ---- */

struct cut {
    int next_task; /* of the even cut: 0 its share isn't taken yet */
    int row0, row1, unit0, unit1;
};

/* Few rows: a worker streams one long run of the matrix, three quarters of its even share. The rest
 * is taken in smaller and smaller pieces from a counter, because CPUs that share memory never read
 * equally fast, and a barrier waits for the slowest. Shares too small for that are cut evenly. */
static int next_even_cut(const struct plan_step *s, int m, int worker, int n_workers, struct cut *t)
{
    const int share = s->n_units / n_workers * 3 / 4 / s->piece_units * s->piece_units;
    const int is_first = t->next_task++ == 0, is_shared = share > 0;
    t->row0 = 0;
    t->row1 = m;
    if (!is_shared) {
        cpu_split(s->n_units, 1, worker, n_workers, &t->unit0, &t->unit1);
        return is_first && t->unit0 < t->unit1;
    }
    if (is_first) {
        t->unit0 = worker * share;
        t->unit1 = t->unit0 + share;
        return 1;
    }
    int taken = atomic_load_explicit(s->next, memory_order_relaxed), n;
    do {
        const int left = s->n_units - share * n_workers - taken;
        if (left <= 0) {
            return 0;
        }
        n = left / (2 * n_workers) / s->piece_units * s->piece_units;
        n = n < s->piece_units ? s->piece_units : n;
        n = n < left ? n : left;
    } while (!atomic_compare_exchange_weak_explicit(s->next, &taken, taken + n,
                                                    memory_order_relaxed, memory_order_relaxed));
    t->unit0 = share * n_workers + taken;
    t->unit1 = t->unit0 + n;
    return 1;
}

/* The worker's next piece of m rows x n_units. 0 when there is none. */
static int next_cut(const struct plan_step *s, int m, int worker, int n_workers, struct cut *t)
{
    if (m <= EVEN_ROWS) {
        return next_even_cut(s, m, worker, n_workers, t);
    }
    int n_blocks = (m + BLOCK_ROWS - 1) / BLOCK_ROWS,
        n_panels = (s->n_units + s->panel_units - 1) / s->panel_units;
    int task = atomic_fetch_add_explicit(s->next, 1, memory_order_relaxed);
    if (task >= n_blocks * n_panels) {
        return 0;
    }
    t->row0 = task % n_blocks * BLOCK_ROWS;
    t->row1 = m - t->row0 < BLOCK_ROWS ? m : t->row0 + BLOCK_ROWS;
    t->unit0 = task / n_blocks * s->panel_units;
    t->unit1 = s->n_units - t->unit0 < s->panel_units ? s->n_units : t->unit0 + s->panel_units;
    return 1;
}

/* ---- the steps ---- */

static int run_start(struct plan *p, const struct plan_step *s, int worker, int n_workers)
{
    (void)s;
    const struct forward *f = p->f;
    const struct forward_dims *d = &f->d;
    const struct forward_batch *b = f->in.b;
    int begin, end;
    cpu_split(f->in.n_rows, 1, worker, n_workers, &begin, &end);
    for (int row = begin; row < end; row++) {
        void *x = row_at(d, p->x, d->ld_hidden, row);
        if (b->embed != NULL && b->embed[row] != NULL) {
            memcpy(x, b->embed[row], (size_t)d->c->hidden_size * d->elem);
        } else {
            f->a->embed(x, d->ld_hidden, &f->m->weights.embed, &b->token_id[row], 1);
        }
        rope_row(&f->rope, b->rope_pos[row][0], p->rope + (size_t)row * (size_t)d->c->head_dim);
        for (int layer = 0; layer < d->c->n_layers; layer++) {
            p->kv_tile[(size_t)layer * (size_t)d->max_rows + (size_t)row] =
                kv_store_tile(f->kv, layer, f->in.block[row], 0);
        }
    }
    return 1;
}

static void norm_rows(const struct plan *p, void *out, const float *w, int begin, int end)
{
    const struct forward_dims *d = &p->f->d;
    if (begin < end) {
        p->f->a->rmsnorm(out, d->ld_hidden, row_at(d, p->x, d->ld_hidden, begin), d->ld_hidden, w,
                         d->c->rms_norm_eps, end - begin, d->c->hidden_size);
    }
}

/* The worker's next rows of m that are worked on one by one. 0 when there are none. */
static int next_rows(const struct plan_step *s, int m, int n_workers, int *begin, int *end)
{
    const int most = (m + 4 * n_workers - 1) / (4 * n_workers), n = most < 32 ? most : 32;
    *begin = atomic_fetch_add_explicit(s->next, n, memory_order_relaxed);
    *end = m - *begin < n ? m : *begin + n;
    return *begin < m;
}

static int run_norm(struct plan *p, const struct plan_step *s, int worker, int n_workers)
{
    (void)worker;
    int begin, end, m = p->f->in.n_rows;
    if (m <= PRIVATE_NORM_ROWS) {
        return 0;
    }
    while (next_rows(s, m, n_workers, &begin, &end)) {
        for (int row = begin; row < end; row++) {
            void *h = row_at(&p->f->d, p->h, p->f->d.ld_hidden, row);
            norm_rows(p, h, s->norm, row, row + 1);
            if (s->w->input != INPUT_ACT) {
                quantize_rows(p->f, input_row(&p->f->d, p->input, row), h, p->f->d.ld_hidden, 1,
                              s->w);
            }
        }
    }
    return 1;
}

/* The input of o or down. */
static int quantize_step(struct plan *p, const struct plan_step *s, const void *x, size_t ldx,
                         int n_workers)
{
    int begin, end, m = p->f->in.n_rows;
    if (m <= PRIVATE_NORM_ROWS || s->w->input == INPUT_ACT) {
        return 0;
    }
    while (next_rows(s, m, n_workers, &begin, &end)) {
        quantize_rows(p->f, input_row(&p->f->d, p->input, begin), row_at(&p->f->d, x, ldx, begin),
                      ldx, end - begin, s->w);
    }
    return 1;
}

static int run_quantize_att(struct plan *p, const struct plan_step *s, int worker, int n_workers)
{
    (void)worker;
    return quantize_step(p, s, p->att, p->f->d.ld_q, n_workers);
}

static int run_quantize_ff(struct plan *p, const struct plan_step *s, int worker, int n_workers)
{
    (void)worker;
    return quantize_step(p, s, p->ff, p->f->d.ld_inter, n_workers);
}

/* Rows as a GEMM reads them: `base` plus a number of rows of `bytes` each, `ld` as the kernel wants
 * it. */
struct rows_in {
    const uint8_t *base;
    size_t bytes, ld;
};

static const void *rows_at(const struct rows_in *r, int row)
{
    return r->base + (size_t)row * r->bytes;
}

/* x (ready for all rows) as s->w takes it: quantized by the step before, or here. */
static struct rows_in input(struct plan *p, const struct plan_step *s, const void *x, size_t ldx,
                            int worker)
{
    const struct forward_dims *d = &p->f->d;
    if (s->w->input == INPUT_ACT) {
        return (struct rows_in){x, ldx * d->elem, ldx};
    }
    struct rows_in r = {p->input, d->ld_input, d->ld_input};
    if (p->f->in.n_rows <= PRIVATE_NORM_ROWS) {
        uint8_t *own = p->private_input + (size_t)worker * PRIVATE_NORM_ROWS * d->ld_input;
        quantize_rows(p->f, own, x, ldx, p->f->in.n_rows, s->w);
        r.base = own;
    }
    return r;
}

/* The normed rows that a GEMM reads: from the step before, or made here. */
static struct rows_in normed(struct plan *p, const struct plan_step *s, int worker)
{
    const struct forward_dims *d = &p->f->d;
    const void *h = p->h;
    if (p->f->in.n_rows <= PRIVATE_NORM_ROWS) {
        void *own = p->private_norm + (size_t)worker * PRIVATE_NORM_ROWS * d->ld_hidden * d->elem;
        norm_rows(p, own, s->norm, 0, p->f->in.n_rows);
        h = own;
    }
    return input(p, s, h, d->ld_hidden, worker);
}

static int run_qkv(struct plan *p, const struct plan_step *s, int worker, int n_workers)
{
    const struct forward *f = p->f;
    const struct forward_dims *d = &f->d;
    const struct rows_in h = normed(p, s, worker);
    struct cut t = {0};
    while (next_cut(s, f->in.n_rows, worker, n_workers, &t)) {
        struct qkv_rows r = {
            .n_heads = d->c->n_heads,
            .n_kv_heads = d->c->n_kv_heads,
            .head_dim = d->c->head_dim,
            .rope = p->rope + (size_t)t.row0 * (size_t)d->c->head_dim,
            .q = row_at(d, p->q, d->ld_q, t.row0),
            .ldq = d->ld_q,
            .kv_tile = p->kv_tile + (size_t)s->layer * (size_t)d->max_rows + t.row0,
            .kv = kv_store_layout(f->kv)->format,
            .kv_head_bytes = kv_store_layout(f->kv)->head_bytes,
            .slot = f->in.slot + t.row0,
        };
        f->a->gemm_qkv(rows_at(&h, t.row0), h.ld, s->w, &r, t.row1 - t.row0, t.unit0, t.unit1);
    }
    return 1;
}

static int run_attention(struct plan *p, const struct plan_step *s, int worker, int n_workers)
{
    (void)n_workers;
    attend_run(&p->attend, p->f, s->layer, p->q, p->att, s->next, worker);
    return 1;
}

static int run_merge(struct plan *p, const struct plan_step *s, int worker, int n_workers)
{
    (void)s;
    if (p->attend.n_merges == 0) {
        return 0;
    }
    attend_finish(&p->attend, p->f, p->att, worker, n_workers);
    return 1;
}

static void gemm_add(struct plan *p, const struct plan_step *s, const void *a, size_t lda,
                     int worker, int n_workers)
{
    const struct forward_dims *d = &p->f->d;
    const struct rows_in in = input(p, s, a, lda, worker);
    struct cut t = {0};
    while (next_cut(s, p->f->in.n_rows, worker, n_workers, &t)) {
        p->f->a->gemm_add(row_at(d, p->x, d->ld_hidden, t.row0), d->ld_hidden, rows_at(&in, t.row0),
                          in.ld, s->w, t.row1 - t.row0, t.unit0, t.unit1);
    }
}

static int run_o(struct plan *p, const struct plan_step *s, int worker, int n_workers)
{
    gemm_add(p, s, p->att, p->f->d.ld_q, worker, n_workers);
    return 1;
}

static int run_swiglu(struct plan *p, const struct plan_step *s, int worker, int n_workers)
{
    const struct forward_dims *d = &p->f->d;
    const struct rows_in h = normed(p, s, worker);
    struct cut t = {0};
    while (next_cut(s, p->f->in.n_rows, worker, n_workers, &t)) {
        p->f->a->gemm_swiglu(row_at(d, p->ff, d->ld_inter, t.row0), d->ld_inter,
                             rows_at(&h, t.row0), h.ld, s->w, d->c->intermediate_size,
                             t.row1 - t.row0, t.unit0, t.unit1);
    }
    return 1;
}

static int run_down(struct plan *p, const struct plan_step *s, int worker, int n_workers)
{
    gemm_add(p, s, p->ff, p->f->d.ld_inter, worker, n_workers);
    return 1;
}

static int run_final_norm(struct plan *p, const struct plan_step *s, int worker, int n_workers)
{
    const struct forward *f = p->f;
    const struct forward_dims *d = &f->d;
    int begin, end;
    cpu_split(f->in.n_logits, 1, worker, n_workers, &begin, &end);
    for (int i = begin; i < end; i++) {
        void *h = row_at(d, p->final, d->ld_hidden, i);
        norm_rows(p, h, s->norm, f->in.logit_row[i], f->in.logit_row[i] + 1);
        if (s->w->input != INPUT_ACT) {
            quantize_rows(f, input_row(d, p->final_input, i), h, d->ld_hidden, 1, s->w);
        }
    }
    cpu_split(f->in.n_hidden, 1, worker, n_workers, &begin, &end);
    for (int i = begin; i < end; i++) {
        norm_rows(p, row_at(d, f->hidden, (size_t)d->c->hidden_size, i), s->norm,
                  f->in.hidden_row[i], f->in.hidden_row[i] + 1);
    }
    return 1;
}

static int run_head(struct plan *p, const struct plan_step *s, int worker, int n_workers)
{
    const struct forward *f = p->f;
    const struct forward_dims *d = &f->d;
    struct rows_in in = {p->final, d->ld_hidden * d->elem, d->ld_hidden};
    if (s->w->input != INPUT_ACT) {
        in = (struct rows_in){p->final_input, d->ld_input, d->ld_input};
    }
    struct cut t = {0};
    while (f->in.n_logits > 0 && next_cut(s, f->in.n_logits, worker, n_workers, &t)) {
        f->a->gemm(f->logits + (size_t)t.row0 * f->logits_stride + (size_t)t.unit0 * TILE_N,
                   f->logits_stride, rows_at(&in, t.row0), in.ld, s->w, t.row1 - t.row0, t.unit0,
                   t.unit1);
    }
    return 0;
}

/* ---- compiling ---- */

static void add_step(struct plan *p, plan_run_step *run, int layer, const struct weight *w,
                     const float *norm, int tiles_per_unit)
{
    struct plan_step *s = &p->steps[p->n_steps];
    *s = (struct plan_step){
        .run = run, .layer = layer, .w = w, .norm = norm, .next = &p->counters[p->n_steps]};
    if (w != NULL) {
        size_t unit_bytes = weight_tile_bytes(w) * (size_t)tiles_per_unit;
        s->n_units = (w->n + TILE_N * tiles_per_unit - 1) / (TILE_N * tiles_per_unit);
        /* whole panels of a kernel, at least one: it computes four tiles in the time of one */
        int panel = PANEL_TILES > tiles_per_unit ? PANEL_TILES / tiles_per_unit : 1;
        int n = (int)(PANEL_BYTES / unit_bytes) / panel;
        s->panel_units = n > 1 ? n * panel : panel;
        s->piece_units = panel;
    }
    p->n_steps++;
}

static void compile(struct plan *p)
{
    const struct weights *w = &p->f->m->weights;
    int tiles_per_head = p->f->d.c->head_dim / TILE_N;
    add_step(p, run_start, 0, NULL, NULL, 1);
    for (int i = 0; i < w->n_layers; i++) {
        const struct weights_layer *l = &w->layers[i];
        add_step(p, run_norm, i, &l->qkv, l->input_norm, 1);
        add_step(p, run_qkv, i, &l->qkv, l->input_norm, tiles_per_head);
        add_step(p, run_attention, i, NULL, NULL, 1);
        add_step(p, run_merge, i, NULL, NULL, 1);
        add_step(p, run_quantize_att, i, &l->o, NULL, 1);
        add_step(p, run_o, i, &l->o, NULL, 1);
        add_step(p, run_norm, i, &l->gate_up, l->post_norm, 1);
        add_step(p, run_swiglu, i, &l->gate_up, l->post_norm, 2);
        add_step(p, run_quantize_ff, i, &l->down, NULL, 1);
        add_step(p, run_down, i, &l->down, NULL, 1);
    }
    add_step(p, run_final_norm, 0, &w->head, w->final_norm, 1);
    add_step(p, run_head, 0, &w->head, NULL, 1);
}

int plan_open(struct plan **out, struct forward *f, struct carver *c, struct err *e)
{
    size_t n = 10 * (size_t)f->d.c->n_layers + 3;
    struct plan *p = calloc(1, sizeof *p);
    *out = p;
    if (p == NULL || (p->steps = calloc(n, sizeof *p->steps)) == NULL ||
        (p->counters = calloc(n, sizeof *p->counters)) == NULL) {
        return err_set(e, ERR_NOMEM, "forward: out of memory");
    }
    p->f = f;
    carve_buffers(p, &f->d, c);
    compile(p);
    return 0;
}

void plan_close(struct plan *p)
{
    if (p != NULL) {
        free(p->steps);
        free(p->counters);
        free(p);
    }
}

static void run_worker(void *arg, int worker, int n_workers)
{
    struct plan *p = arg;
    for (int i = 0; i < p->n_steps; i++) {
        const struct plan_step *s = &p->steps[i];
        int ends_layer = s->run == run_down;
        int needs_barrier = s->run(p, s, worker, n_workers);
        if (ends_layer && worker == 0 && p->f->unwanted) {
            p->canceled = p->f->unwanted(p->f->unwanted_arg);
        }
        if (needs_barrier) {
            cpu_pool_barrier(p->f->pool, worker);
        }
        if (ends_layer && p->canceled) {
            return;
        }
    }
}

int plan_run(struct plan *p)
{
    p->canceled = 0;
    for (int i = 0; i < p->n_steps; i++) {
        atomic_store_explicit(&p->counters[i], 0, memory_order_relaxed);
    }
    attend_prepare(&p->attend, p->f);
    cpu_pool_run(p->f->pool, run_worker, p);
    return p->canceled ? ERR_CANCELED : 0;
}
