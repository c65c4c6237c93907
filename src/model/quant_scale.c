/* SPDX-License-Identifier: Apache-2.0 */
/* The search. For each product and each exponent of the grid its weights are scaled, rounded,
 * scaled back, and what is left of the difference to the true ones is multiplied with rows of the
 * calibration text, by the same kernels that serve: |(W' - W) X|^2 is the error. Workers take
 * strips of rows; a strip's errors are added in the order of strips, so the result doesn't depend
 * on who did what. Norm weights are rounded to their stored type before the columns' scales are
 * made from them, so that folding costs no precision. */
#include "model/quant_scale.h"

#include "model/internal.h"
#include "model/quant_code.h"
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define STRIP  128 /* rows */
#define N_GRID 20  /* exponents 0, 1/20 .. 19/20 */

/* One matrix under all exponents. */
struct trial {
    const struct checkpoint_view *v;
    const struct calibration_point *point;
    const struct kernels *k;
    struct weight w;
    const float *scales; /* [N_GRID][cols] */
    double *errors;      /* [strips][N_GRID] */
    atomic_int next, failed;
};

struct scratch {
    float *x, *d; /* [STRIP][cols] */
    void *tiles;
    float *c; /* [rows of the text][STRIP] */
};

/* What rounding n scaled rows changes, scaled back. */
static void difference(const struct trial *t, struct scratch *s, const float *scale, int n)
{
    const int cols = t->v->cols, group = t->w.group;
    float y[QUANT_CODE_GROUP], one;
    uint8_t codes[QUANT_CODE_GROUP], zero = 0;
    for (int r = 0; r < n; r++) {
        const float *x = s->x + (size_t)r * (size_t)cols;
        float *d = s->d + (size_t)r * (size_t)cols;
        for (int j0 = 0; j0 < cols; j0 += group) {
            for (int j = 0; j < group; j++) {
                y[j] = x[j0 + j] * scale[j0 + j];
            }
            quant_code_group4(&t->w, 0, NULL, codes, &one, &zero, y, group);
            for (int j = 0; j < group; j++) {
                d[j0 + j] =
                    quant_code_value(&t->w, codes[j], one, zero) / scale[j0 + j] - x[j0 + j];
            }
        }
    }
}

static double output_error(const struct trial *t, struct scratch *s, int n)
{
    const int n_tiles = (n + TILE_N - 1) / TILE_N, cols = t->v->cols, m = t->point->n_rows;
    const struct weight w = {.format = WEIGHT_BF16, .n = n, .k = cols, .data = s->tiles};
    const size_t ld = (size_t)n_tiles * TILE_N;
    double sum = 0;
    t->k->pack(s->tiles, WEIGHT_BF16, n, cols, s->d, DTYPE_F32, (size_t)cols, 1, 0, n_tiles, 1, 0);
    t->k->act[ACT_BF16].gemm(s->c, ld, t->point->rows, t->point->ld, &w, m, 0, n_tiles);
    for (size_t i = 0; i < (size_t)m * ld; i++) {
        sum += (double)s->c[i] * (double)s->c[i];
    }
    return sum;
}

static void try_strips(void *arg, int worker, int n_workers)
{
    (void)worker;
    (void)n_workers;
    struct trial *t = arg;
    const size_t cols = (size_t)t->v->cols;
    struct scratch s = {.x = malloc(STRIP * cols * sizeof *s.x),
                        .d = malloc(STRIP * cols * sizeof *s.d),
                        .tiles = aligned_alloc(64, STRIP * cols * 2),
                        .c = aligned_alloc(64, (size_t)t->point->n_rows * STRIP * sizeof *s.c)};
    if (s.x == NULL || s.d == NULL || s.tiles == NULL || s.c == NULL) {
        atomic_store(&t->failed, 1);
    }
    for (int row0;
         !atomic_load(&t->failed) && (row0 = atomic_fetch_add(&t->next, STRIP)) < t->v->rows;) {
        const int n = t->v->rows - row0 < STRIP ? t->v->rows - row0 : STRIP;
        quant_code_read(s.x, t->v, row0, n);
        for (int a = 0; a < N_GRID; a++) {
            difference(t, &s, t->scales + (size_t)a * cols, n);
            t->errors[row0 / STRIP * N_GRID + a] = output_error(t, &s, n);
        }
    }
    free(s.x);
    free(s.d);
    free(s.tiles);
    free(s.c);
}

struct search {
    const struct model *m;
    const struct quant_write_options *o;
    struct cpu_pool *pool;
    struct err *e;
    float *scales; /* [N_GRID][largest k] */
    int layer;
};

/* Adds the errors of one matrix under each exponent. */
static int add_errors(const struct search *g, const struct checkpoint_view *v,
                      const struct calibration_point *point, double errors[N_GRID])
{
    const int n_strips = (v->rows + STRIP - 1) / STRIP;
    struct trial t = {.v = v,
                      .point = point,
                      .k = g->o->kernels,
                      .w = quant_write_format(g->m, quant_write_linear_how(g->o), v),
                      .scales = g->scales,
                      .errors = calloc((size_t)n_strips * N_GRID, sizeof *t.errors)};
    if (t.errors == NULL) {
        return err_set(g->e, ERR_NOMEM, "scales: out of memory");
    }
    cpu_pool_run(g->pool, try_strips, &t);
    for (int i = 0; i < n_strips * N_GRID; i++) {
        errors[i % N_GRID] += t.errors[i];
    }
    free(t.errors);
    return atomic_load(&t.failed) ? err_set(g->e, ERR_NOMEM, "scales: out of memory") : 0;
}

/* Mean magnitudes; query heads that share a KV head get the mean of theirs. */
static void magnitudes(const struct search *g, const struct calibration_point *p, int input,
                       double *out)
{
    const struct model_config *c = &g->m->config;
    const int shared = input == CALIBRATION_O ? c->n_heads / c->n_kv_heads : 1;
    for (int j = 0; j < p->k; j++) {
        const int d = j % c->head_dim, kv = j / c->head_dim / shared;
        out[j] = 0;
        for (int i = 0; i < shared; i++) {
            const int from = shared == 1 ? j : (kv * shared + i) * c->head_dim + d;
            out[j] += p->sum_abs[from] / (double)p->n_seen / shared;
        }
    }
}

static void fill_grid(const struct search *g, const double *magnitude, int k)
{
    for (int a = 0; a < N_GRID; a++) {
        float *s = g->scales + (size_t)a * (size_t)k;
        double low = INFINITY, high = 0;
        for (int j = 0; j < k; j++) {
            const double v = fmax(pow(magnitude[j], (double)a / N_GRID), 1e-4);
            low = fmin(low, v);
            high = fmax(high, v);
            s[j] = (float)v;
        }
        for (int j = 0; j < k; j++) {
            s[j] = a == 0 ? 1.0f : (float)((double)s[j] / sqrt(low * high));
        }
    }
}

/* Norm weights divided by the scales; the scales then become what the rounded weights are short
 * of. */
static float *fold_norm(const struct checkpoint_view *norm, float *scale)
{
    float *out = malloc((size_t)norm->rows * sizeof *out);
    for (int j = 0; out != NULL && j < norm->rows; j++) {
        const float was = tensor_float(norm->tensor, (size_t)j);
        out[j] = quant_code_round(norm->dtype, was / scale[j]);
        const float s = was / out[j];
        if (isfinite(s) && s > 0) {
            scale[j] = s;
        } else { /* a weight of 0, or one that would become it */
            out[j] = was;
            scale[j] = 1;
        }
    }
    return out;
}

/* Keeps exponent `best` of the grid for a product. */
static int keep(const struct search *g, struct quant_scale_layer *out, int input, int best, int k)
{
    const struct checkpoint_layer *l = &g->m->checkpoint.layers[g->layer];
    const struct model_config *c = &g->m->config;
    float *s = malloc((size_t)k * sizeof *s);
    if (s == NULL) {
        return err_set(g->e, ERR_NOMEM, "scales: out of memory");
    }
    memcpy(s, g->scales + (size_t)best * (size_t)k, (size_t)k * sizeof *s);
    out->columns[input] = s;
    if (input == CALIBRATION_QKV || input == CALIBRATION_FF) {
        out->norm[input] = fold_norm(input == CALIBRATION_FF ? &l->post_norm : &l->input_norm, s);
        return out->norm[input] == NULL ? err_set(g->e, ERR_NOMEM, "scales: out of memory") : 0;
    }
    if (input == CALIBRATION_O) {
        const int shared = c->n_heads / c->n_kv_heads;
        out->v_rows = malloc((size_t)l->v.rows * sizeof *out->v_rows);
        if (out->v_rows == NULL) {
            return err_set(g->e, ERR_NOMEM, "scales: out of memory");
        }
        for (int j = 0; j < l->v.rows; j++) {
            out->v_rows[j] = s[j / c->head_dim * shared * c->head_dim + j % c->head_dim];
        }
    }
    return 0;
}

static int search_product(const struct search *g, struct quant_scale_layer *out, int input)
{
    const struct calibration_point *p = calibration_at(g->o->calibration, g->layer, input);
    /* the matrices that are multiplied, then (O, DOWN) what makes their input */
    static const int which[CALIBRATION_INPUTS][4] = {
        {0, 1, 2, -1}, {3, -1, 2, -1}, {4, 5, -1, -1}, {6, -1, 5, -1}};
    double errors[N_GRID] = {0};
    char name[QUANT_WRITE_NAME];
    for (int i = 0; i < 4; i++) {
        if (which[input][i] >= 0) {
            quant_write_name(name, g->layer, which[input][i]);
            if (quant_write_ignores(g->o, name)) {
                return 0;
            }
        }
    }
    double *magnitude = malloc((size_t)p->k * sizeof *magnitude);
    if (magnitude == NULL) {
        return err_set(g->e, ERR_NOMEM, "scales: out of memory");
    }
    magnitudes(g, p, input, magnitude);
    fill_grid(g, magnitude, p->k);
    free(magnitude);
    int rc = 0, best = 0;
    for (int i = 0; i < 4 && which[input][i] >= 0 && rc == 0; i++) {
        rc = add_errors(g, quant_write_linear(&g->m->checkpoint.layers[g->layer], which[input][i]),
                        p, errors);
    }
    for (int a = 1; a < N_GRID; a++) {
        best = errors[a] < errors[best] ? a : best;
    }
    return rc < 0 || best == 0 ? rc : keep(g, out, input, best, p->k);
}

void quant_scale_fini(struct quant_scales *s)
{
    for (int i = 0; s->layers != NULL && i < s->n_layers; i++) {
        for (int j = 0; j < CALIBRATION_INPUTS; j++) {
            free(s->layers[i].columns[j]);
            free(s->layers[i].norm[j]);
        }
        free(s->layers[i].v_rows);
    }
    free(s->layers);
    memset(s, 0, sizeof *s);
}

int quant_scale_search(struct quant_scales *s, const struct model *m,
                       const struct quant_write_options *o, struct cpu_pool *pool, struct err *e)
{
    size_t k = (size_t)m->config.hidden_size;
    const size_t q = (size_t)(m->config.n_heads * m->config.head_dim),
                 inter = (size_t)m->config.intermediate_size;
    k = k > q ? k : q;
    k = k > inter ? k : inter;
    struct search g = {.m = m, .o = o, .pool = pool, .e = e};
    *s = (struct quant_scales){m->config.n_layers, NULL};
    s->layers = calloc((size_t)s->n_layers, sizeof *s->layers);
    g.scales = malloc(N_GRID * k * sizeof *g.scales);
    int rc =
        s->layers == NULL || g.scales == NULL ? err_set(e, ERR_NOMEM, "scales: out of memory") : 0;
    for (g.layer = 0; g.layer < s->n_layers && rc == 0; g.layer++) {
        for (int i = 0; i < CALIBRATION_INPUTS && rc == 0; i++) {
            rc = search_product(&g, &s->layers[g.layer], i);
        }
        if (rc == 0 && o->stop != NULL && o->stop(o->user)) {
            rc = err_set(e, ERR_CANCELED, "interrupted");
        }
    }
    free(g.scales);
    if (rc < 0) {
        quant_scale_fini(s);
    }
    return rc;
}
