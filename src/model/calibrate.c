/* SPDX-License-Identifier: Apache-2.0 */
/* The text runs through eager execution, whose products hand their inputs to a probe. One sequence
 * at a time, in a KV store of one window. Runs on the command's thread; the probe on worker 0. */
#include "model/calibrate.h"

#include "model/forward.h"
#include "model/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int point_init(struct calibration_point *p, int k, int max_rows)
{
    p->k = k;
    p->ld = ((size_t)k + 31) / 32 * 32;
    p->sum_abs = calloc((size_t)k, sizeof *p->sum_abs);
    p->sum_square = calloc((size_t)k, sizeof *p->sum_square);
    p->rows = aligned_alloc(64, (size_t)max_rows * p->ld * sizeof *p->rows);
    if (p->rows != NULL) {
        memset(p->rows, 0, (size_t)max_rows * p->ld * sizeof *p->rows);
    }
    return p->sum_abs == NULL || p->sum_square == NULL || p->rows == NULL ? ERR_NOMEM : 0;
}

void calibration_fini(struct calibration *c)
{
    for (int i = 0; c->points != NULL && i < c->n_layers * CALIBRATION_INPUTS + 1; i++) {
        free(c->points[i].sum_abs);
        free(c->points[i].sum_square);
        free(c->points[i].rows);
    }
    free(c->points);
    memset(c, 0, sizeof *c);
}

struct probing {
    struct calibration *c;
    enum act_type act;
};

static void probe(void *arg, int layer, int input, const void *rows, size_t ld, int m)
{
    const struct probing *g = arg;
    struct calibration_point *p = &g->c->points[layer * CALIBRATION_INPUTS + input];
    for (int i = 0; i < m; i++, p->n_seen++) {
        const size_t at = (size_t)i * ld;
        const int keep = p->n_seen % g->c->stride == 0 && p->n_rows < g->c->max_rows;
        uint16_t *to = p->rows + (size_t)p->n_rows * p->ld;
        for (int j = 0; j < p->k; j++) {
            const float x = g->act == ACT_BF16
                                ? bf16_to_f32(((const uint16_t *)rows)[at + (size_t)j])
                                : ((const float *)rows)[at + (size_t)j];
            p->sum_abs[j] += fabs((double)x);
            p->sum_square[j] += (double)x * (double)x;
            if (keep) {
                to[j] = f32_to_bf16(x);
            }
        }
        p->n_rows += keep;
    }
}

struct reading {
    struct forward *f;
    int32_t *block_table, *kv_index;
    int32_t (*rope_pos)[3];
    uint8_t *wants;
};

static int read_window(const struct reading *r, const int32_t *ids, int n, struct err *e)
{
    for (int i = 0; i < n; i++) {
        r->kv_index[i] = i;
        r->rope_pos[i][0] = r->rope_pos[i][1] = r->rope_pos[i][2] = i;
    }
    struct forward_seq seq = {0, n, r->block_table};
    struct forward_batch b = {.n_rows = n,
                              .token_id = ids,
                              .kv_index = r->kv_index,
                              .rope_pos = (const int32_t(*)[3])r->rope_pos,
                              .wants_logits = r->wants,
                              .n_seqs = 1,
                              .seqs = &seq};
    return forward_run(r->f, &b, NULL, e);
}

static int alloc_points(struct calibration *c, const struct model *m)
{
    const struct model_config *mc = model_config(m);
    c->n_layers = mc->n_layers;
    c->points = calloc((size_t)c->n_layers * CALIBRATION_INPUTS + 1, sizeof *c->points);
    if (c->points == NULL) {
        return ERR_NOMEM;
    }
    const int k[CALIBRATION_INPUTS] = {mc->hidden_size, mc->n_heads * mc->head_dim, mc->hidden_size,
                                       mc->intermediate_size};
    int rc = 0;
    for (int i = 0; i < c->n_layers * CALIBRATION_INPUTS + 1 && rc == 0; i++) {
        rc = point_init(&c->points[i],
                        i == c->n_layers * CALIBRATION_INPUTS ? k[0] : k[i % CALIBRATION_INPUTS],
                        c->max_rows);
    }
    return rc;
}

int calibration_run(struct calibration *c, const struct calibration_options *o, struct err *e)
{
    const int window = o->window < o->n_ids ? o->window : o->n_ids;
    const int n_blocks = (window + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    struct kv_store *kv = NULL;
    struct reading r = {0};
    struct kv_layout layout;
    memset(c, 0, sizeof *c);
    if (o->n_ids < 1) {
        return err_set(e, ERR_INVALID, "the calibration text is empty");
    }
    r.block_table = calloc((size_t)n_blocks, sizeof *r.block_table);
    r.kv_index = calloc((size_t)window, sizeof *r.kv_index);
    r.rope_pos = calloc((size_t)window, sizeof *r.rope_pos);
    r.wants = calloc((size_t)window, 1);
    c->max_rows = o->max_rows > 0 ? o->max_rows : CALIBRATION_ROWS;
    c->stride = o->n_ids > c->max_rows ? o->n_ids / c->max_rows : 1;
    int rc = 0;
    if (r.block_table == NULL || r.kv_index == NULL || r.rope_pos == NULL || r.wants == NULL ||
        alloc_points(c, o->model) < 0) {
        rc = err_set(e, ERR_NOMEM, "calibration: out of memory");
        goto done;
    }
    for (int i = 0; i < n_blocks; i++) {
        r.block_table[i] = i;
    }
    model_kv_layout(o->model, &layout);
    const struct forward_options fo = {
        .max_rows = window, .max_logits = 1, .max_seqs = 1, .max_model_len = window, .eager = 1};
    struct probing g = {c, model_act(o->model)};
    rc = kv_store_open(&kv, &layout, n_blocks, e);
    rc = rc < 0 ? rc : forward_open(&r.f, o->model, o->kernels, o->pool, kv, &comm_none, &fo, e);
    if (rc == 0) {
        forward_probe(r.f, probe, &g);
    }
    for (int at = 0; at < o->n_ids && rc == 0; at += window) {
        rc = o->stop != NULL && o->stop(o->user)
                 ? err_set(e, ERR_CANCELED, "interrupted")
                 : read_window(&r, o->ids + at, o->n_ids - at < window ? o->n_ids - at : window, e);
    }
done:
    forward_close(r.f);
    kv_store_close(kv);
    free(r.block_table);
    free(r.kv_index);
    free(r.rope_pos);
    free(r.wants);
    if (rc < 0) {
        calibration_fini(c);
    }
    return rc;
}
