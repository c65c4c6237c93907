/* SPDX-License-Identifier: Apache-2.0 */
/* The eager forward: the model as it is written down, one op after another from the unfused
 * kernels, with plain loops over rows and a buffer for every intermediate value. It is the standard
 * that the compiled plan is compared with, so it takes the other road wherever there are two: rows
 * go through all layers in chunks of a constant size, attention is one query head of one row at a
 * time, RoPE and K/V writes are a pass of their own, gate and up are taken apart before SwiGLU.
 * Every op ends with a barrier. */
#include "model/step.h"

#include <stdlib.h>
#include <string.h>

#define EAGER_ROWS 32

/* One attention output while its partitions are computed. */
struct head_scratch {
    void *q;        /* [head_dim] */
    float *m, *l;   /* [max_parts] */
    float *acc;     /* [max_parts][head_dim] */
    float *scratch; /* ATTN_SCRATCH_FLOATS */
};

struct eager {
    struct forward *f;
    float *rope;    /* [EAGER_ROWS][head_dim] */
    void *x, *h;    /* [EAGER_ROWS][ld_hidden] */
    void *input;    /* [EAGER_ROWS][ld_input] what a quantized matrix is multiplied with */
    float *qkv;     /* [EAGER_ROWS][qkv_heads * head_dim] */
    void *q, *att;  /* [EAGER_ROWS][ld_q] */
    float *c;       /* [EAGER_ROWS][ld_c] output of o_proj and down_proj */
    float *gate_up; /* [EAGER_ROWS][2 * whole tiles of intermediate_size], interleaved as the matrix
                       is */
    float *gate, *up;             /* [EAGER_ROWS][whole tiles of intermediate_size] */
    void *ff;                     /* [EAGER_ROWS][ld_inter] */
    void **kv_tile;               /* [EAGER_ROWS] */
    struct head_scratch *workers; /* [n_workers] */
};

/* A chunk of rows as one worker sees it. */
struct chunk {
    struct eager *g;
    int worker, n_workers;
    int row0, m; /* batch rows row0 .. row0 + m */
};

static size_t whole_tiles(int n)
{
    return ((size_t)n + TILE_N - 1) / TILE_N * TILE_N;
}

static void carve_buffers(struct eager *g, const struct forward_dims *d, struct carver *c)
{
    const size_t rows = EAGER_ROWS, f32 = sizeof(float);
    g->rope = carve(c, rows * (size_t)d->c->head_dim * f32);
    g->x = carve(c, rows * d->ld_hidden * d->elem);
    g->h = carve(c, rows * d->ld_hidden * d->elem);
    g->input = carve(c, rows * d->ld_input);
    g->qkv = carve(c, rows * (size_t)(d->qkv_heads * d->c->head_dim) * f32);
    g->q = carve(c, rows * d->ld_q * d->elem);
    g->att = carve(c, rows * d->ld_q * d->elem);
    g->c = carve(c, rows * whole_tiles(d->c->hidden_size) * f32);
    g->gate_up = carve(c, rows * 2 * whole_tiles(d->c->intermediate_size) * f32);
    g->gate = carve(c, rows * whole_tiles(d->c->intermediate_size) * f32);
    g->up = carve(c, rows * whole_tiles(d->c->intermediate_size) * f32);
    g->ff = carve(c, rows * d->ld_inter * d->elem);
    g->kv_tile = carve(c, rows * sizeof *g->kv_tile);
    g->workers = carve(c, (size_t)d->n_workers * sizeof *g->workers);
    for (int i = 0; i < d->n_workers; i++) {
        struct head_scratch s;
        s.q = carve(c, (size_t)d->c->head_dim * d->elem);
        s.m = carve(c, (size_t)d->max_parts * f32);
        s.l = carve(c, (size_t)d->max_parts * f32);
        s.acc = carve(c, (size_t)d->max_parts * (size_t)d->c->head_dim * f32);
        s.scratch = carve(c, ATTN_SCRATCH_FLOATS * f32);
        if (c->base != NULL) {
            g->workers[i] = s;
        }
    }
}

void eager_count(const struct forward_dims *d, struct carver *c)
{
    struct eager unused;
    carve_buffers(&unused, d, c);
}

int eager_open(struct eager **out, struct forward *f, struct carver *c, struct err *e)
{
    struct eager *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return err_set(e, ERR_NOMEM, "forward: out of memory");
    }
    g->f = f;
    carve_buffers(g, &f->d, c);
    *out = g;
    return 0;
}

void eager_close(struct eager *g)
{
    free(g);
}

static void sync_workers(const struct chunk *ch)
{
    cpu_pool_barrier(ch->g->f->pool, ch->worker);
}

/* Every worker runs the loop for its share of the chunk's rows. */
static int first_row(const struct chunk *ch, int *end)
{
    int begin;
    cpu_split(ch->m, 1, ch->worker, ch->n_workers, &begin, end);
    return begin;
}

static void embed(const struct chunk *ch)
{
    const struct eager *g = ch->g;
    const struct forward *f = g->f;
    const struct forward_batch *b = f->in.b;
    int end;
    for (int i = first_row(ch, &end); i < end; i++) {
        int row = ch->row0 + i;
        void *x = row_at(&f->d, g->x, f->d.ld_hidden, i);
        if (b->embed != NULL && b->embed[row] != NULL) {
            memcpy(x, b->embed[row], (size_t)f->d.c->hidden_size * f->d.elem);
        } else {
            f->a->embed(x, f->d.ld_hidden, &f->m->weights.embed, &b->token_id[row], 1);
        }
        rope_row(&f->rope, b->rope_pos[row][0], g->rope + (size_t)i * (size_t)f->d.c->head_dim);
    }
    sync_workers(ch);
}

static void norm(const struct chunk *ch, const float *w)
{
    const struct eager *g = ch->g;
    const struct forward_dims *d = &g->f->d;
    int end;
    for (int i = first_row(ch, &end); i < end; i++) {
        g->f->a->rmsnorm(row_at(d, g->h, d->ld_hidden, i), d->ld_hidden,
                         row_at(d, g->x, d->ld_hidden, i), d->ld_hidden, w, d->c->rms_norm_eps, 1,
                         d->c->hidden_size);
    }
    sync_workers(ch);
}

/* Rows as w takes them. */
static const void *input(const struct chunk *ch, const void *a, size_t *lda, const struct weight *w,
                         int m)
{
    const struct eager *g = ch->g;
    int begin, end;
    if (w->input == INPUT_ACT) {
        return a;
    }
    cpu_split(m, 1, ch->worker, ch->n_workers, &begin, &end);
    for (int i = begin; i < end; i++) {
        quantize_rows(g->f, input_row(&g->f->d, g->input, i), row_at(&g->f->d, a, *lda, i), *lda, 1,
                      w);
    }
    sync_workers(ch);
    *lda = g->f->d.ld_input;
    return g->input;
}

static void gemm(const struct chunk *ch, float *c, size_t ldc, const void *a, size_t lda,
                 const struct weight *w, int m)
{
    int begin, end;
    a = input(ch, a, &lda, w, m);
    cpu_split((w->n + TILE_N - 1) / TILE_N, 1, ch->worker, ch->n_workers, &begin, &end);
    if (begin < end) {
        ch->g->f->a->gemm(c + (size_t)begin * TILE_N, ldc, a, lda, w, m, begin, end);
    }
    sync_workers(ch);
}

static void rope_store(const struct chunk *ch, int layer)
{
    const struct eager *g = ch->g;
    const struct forward *f = g->f;
    const struct forward_dims *d = &f->d;
    size_t ldqkv = (size_t)(d->qkv_heads * d->c->head_dim);
    int end;
    for (int i = first_row(ch, &end); i < end; i++) {
        g->kv_tile[i] = kv_store_tile(f->kv, layer, f->in.block[ch->row0 + i], 0);
        struct qkv_rows r = {
            .n_heads = d->c->n_heads,
            .n_kv_heads = d->c->n_kv_heads,
            .head_dim = d->c->head_dim,
            .rope = g->rope + (size_t)i * (size_t)d->c->head_dim,
            .q = row_at(d, g->q, d->ld_q, i),
            .ldq = d->ld_q,
            .kv_tile = &g->kv_tile[i],
            .kv = kv_store_layout(f->kv)->format,
            .kv_head_bytes = kv_store_layout(f->kv)->head_bytes,
            .slot = &f->in.slot[ch->row0 + i],
        };
        f->a->rope_store(g->qkv + (size_t)i * ldqkv, ldqkv, &r, 1, 0, d->qkv_heads);
    }
    sync_workers(ch);
}

/* One query head of one row over all its positions. */
static void attend_head(const struct chunk *ch, int layer, const struct forward_seq *seq, int i,
                        int head)
{
    const struct eager *g = ch->g;
    const struct forward *f = g->f;
    const struct forward_dims *d = &f->d;
    const struct head_scratch *s = &g->workers[ch->worker];
    int head_dim = d->c->head_dim, n_visible = f->in.b->kv_index[ch->row0 + i] + 1;
    int n_parts = (n_visible + ATTN_PARTITION - 1) / ATTN_PARTITION;
    size_t at = (size_t)head * (size_t)head_dim * d->elem;
    memcpy(s->q, (const uint8_t *)row_at(d, g->q, d->ld_q, i) + at, (size_t)head_dim * d->elem);
    for (int p = 0; p < n_parts; p++) {
        int left = n_visible - p * ATTN_PARTITION;
        int32_t visible = left < ATTN_PARTITION ? left : ATTN_PARTITION;
        const void *tiles[ATTN_PARTITION / KV_BLOCK_TOKENS];
        for (int t = 0; t * KV_BLOCK_TOKENS < visible; t++) {
            int block = seq->block_table[p * (ATTN_PARTITION / KV_BLOCK_TOKENS) + t];
            tiles[t] = kv_store_tile(f->kv, layer, block, head / d->group);
        }
        struct attn_part part = {
            .q = s->q,
            .n_q = 1,
            .head_dim = head_dim,
            .scale = d->attn_scale,
            .kv = kv_store_layout(f->kv)->format,
            .visible = &visible,
            .tiles = tiles,
            .m = &s->m[p],
            .l = &s->l[p],
            .acc = s->acc + (size_t)p * (size_t)head_dim,
            .scratch = s->scratch,
        };
        f->a->attn_part(&part);
    }
    f->a->attn_merge((uint8_t *)row_at(d, g->att, d->ld_q, i) + at, (size_t)head_dim, s->m, s->l, 1,
                     s->acc, (size_t)head_dim, n_parts, 1, head_dim);
}

static const struct forward_seq *seq_of_row(const struct forward_batch *b, int row)
{
    int i = 0;
    while (row >= b->seqs[i].first_row + b->seqs[i].n_rows) {
        i++;
    }
    return &b->seqs[i];
}

static void attention(const struct chunk *ch, int layer)
{
    const struct forward *f = ch->g->f;
    int begin, end, n_heads = f->d.c->n_heads;
    cpu_split(ch->m * n_heads, 1, ch->worker, ch->n_workers, &begin, &end);
    for (int item = begin; item < end; item++) {
        int i = item / n_heads;
        attend_head(ch, layer, seq_of_row(f->in.b, ch->row0 + i), i, item % n_heads);
    }
    sync_workers(ch);
}

static void add(const struct chunk *ch)
{
    const struct eager *g = ch->g;
    const struct forward_dims *d = &g->f->d;
    size_t ldc = whole_tiles(d->c->hidden_size);
    int end;
    for (int i = first_row(ch, &end); i < end; i++) {
        g->f->a->add(row_at(d, g->x, d->ld_hidden, i), d->ld_hidden, g->c + (size_t)i * ldc, ldc, 1,
                     d->c->hidden_size);
    }
    sync_workers(ch);
}

static void swiglu(const struct chunk *ch)
{
    const struct eager *g = ch->g;
    const struct forward_dims *d = &g->f->d;
    size_t n = whole_tiles(d->c->intermediate_size);
    int end;
    for (int i = first_row(ch, &end); i < end; i++) {
        const float *both = g->gate_up + (size_t)i * 2 * n;
        float *gate = g->gate + (size_t)i * n, *up = g->up + (size_t)i * n;
        for (size_t t = 0; t < n; t += TILE_N) {
            memcpy(gate + t, both + 2 * t, TILE_N * sizeof *gate);
            memcpy(up + t, both + 2 * t + TILE_N, TILE_N * sizeof *up);
        }
        g->f->a->swiglu(row_at(d, g->ff, d->ld_inter, i), d->ld_inter, gate, n, up, n, 1,
                        d->c->intermediate_size);
    }
    sync_workers(ch);
}

/* The rows of a product, ready for all workers, to whoever wants to see them. */
static void show(const struct chunk *ch, int layer, int product, const void *rows, size_t ld)
{
    const struct forward *f = ch->g->f;
    if (f->probe != NULL && ch->worker == 0) {
        f->probe(f->probe_arg, layer, product, rows, ld, ch->m);
    }
}

static void layer_forward(const struct chunk *ch, int layer)
{
    const struct eager *g = ch->g;
    const struct forward_dims *d = &g->f->d;
    const struct weights_layer *w = &g->f->m->weights.layers[layer];
    norm(ch, w->input_norm);
    show(ch, layer, 0, g->h, d->ld_hidden);
    gemm(ch, g->qkv, (size_t)(d->qkv_heads * d->c->head_dim), g->h, d->ld_hidden, &w->qkv, ch->m);
    rope_store(ch, layer);
    attention(ch, layer);
    show(ch, layer, 1, g->att, d->ld_q);
    gemm(ch, g->c, whole_tiles(d->c->hidden_size), g->att, d->ld_q, &w->o, ch->m);
    add(ch);
    norm(ch, w->post_norm);
    show(ch, layer, 2, g->h, d->ld_hidden);
    gemm(ch, g->gate_up, 2 * whole_tiles(d->c->intermediate_size), g->h, d->ld_hidden, &w->gate_up,
         ch->m);
    swiglu(ch);
    show(ch, layer, 3, g->ff, d->ld_inter);
    gemm(ch, g->c, whole_tiles(d->c->hidden_size), g->ff, d->ld_inter, &w->down, ch->m);
    add(ch);
}

/* Final norm and head, for the rows that want them. */
static void outputs(const struct chunk *ch, int *n_logits, int *n_hidden)
{
    const struct eager *g = ch->g;
    const struct forward *f = g->f;
    const struct forward_dims *d = &f->d;
    norm(ch, f->m->weights.final_norm);
    show(ch, d->c->n_layers, 0, g->h, d->ld_hidden);
    for (int i = 0; i < ch->m; i++) {
        const void *h = row_at(d, g->h, d->ld_hidden, i);
        if (*n_logits < f->in.n_logits && f->in.logit_row[*n_logits] == ch->row0 + i) {
            gemm(ch, f->logits + (size_t)*n_logits * f->logits_stride, f->logits_stride, h,
                 d->ld_hidden, &f->m->weights.head, 1);
            ++*n_logits;
        }
        if (*n_hidden < f->in.n_hidden && f->in.hidden_row[*n_hidden] == ch->row0 + i) {
            if (ch->worker == 0) {
                memcpy(row_at(d, f->hidden, (size_t)d->c->hidden_size, *n_hidden), h,
                       (size_t)d->c->hidden_size * d->elem);
            }
            ++*n_hidden;
        }
    }
    sync_workers(ch);
}

static void run_worker(void *arg, int worker, int n_workers)
{
    struct eager *g = arg;
    int n_logits = 0, n_hidden = 0;
    for (int row = 0; row < g->f->in.n_rows; row += EAGER_ROWS) {
        int left = g->f->in.n_rows - row;
        struct chunk ch = {g, worker, n_workers, row, left < EAGER_ROWS ? left : EAGER_ROWS};
        embed(&ch);
        for (int layer = 0; layer < g->f->d.c->n_layers; layer++) {
            layer_forward(&ch, layer);
        }
        outputs(&ch, &n_logits, &n_hidden);
    }
}

void eager_run(struct eager *g)
{
    cpu_pool_run(g->f->pool, run_worker, g);
}
