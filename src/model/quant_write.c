/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a quantized checkpoint, in one walk over the model that runs twice: once to
 * announce names and shapes (the header of the file comes first), once to make and write the data,
 * so that both agree by construction. A matrix is cut into strips of 128 rows, the unit of fp8
 * blocks; workers take strips from a counter and leave codes and scales in natural order; packing
 * them into a format's words is then a few lines. In memory: the codes of one matrix and a strip of
 * floats a worker. Runs on the command's thread and the pool's. */
#include "model/quant_write.h"

#include "base/buf.h"
#include "model/internal.h"
#include "model/quant_code.h"
#include "model/quant_scale.h"
#include "model/quant_two.h"
#include "model/safetensors_write.h"
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STRIP 128 /* rows */

struct writing {
    const struct model *m;
    const struct quant_write_options *o;
    struct cpu_pool *pool;
    struct safetensors_writer *file;
    struct quant_scales scales;
    float *importance;                   /* [largest matrix's columns], of the matrix at hand */
    struct quant_two_feedback *feedback; /* of the last product that had one */
    int announcing;
    struct err *e;
};

/* ---- one matrix to codes ---- */

struct coding {
    const struct checkpoint_view *v;
    struct quant_write_how how;
    int search;
    struct weight w; /* of a strip: format, group, type of the scales */
    int groups;
    uint8_t *codes, *zeros; /* [rows][cols], [rows][groups] */
    float *scales;          /* [rows][groups] */
    struct quant_two two;   /* of the same memory */
    double *sums;           /* [strips][2]: squared error, squares */
    atomic_int next;
    atomic_int bad_row, bad_col; /* of an element that is no finite number; -1 */
    atomic_int failed;
};

static void add_errors(struct coding *c, const float *x, int row0, int n)
{
    double error = 0, square = 0;
    for (int r = 0; r < n; r++) {
        for (int j = 0; j < c->v->cols; j++) {
            const size_t at = (size_t)(row0 + r) * (size_t)c->v->cols + (size_t)j;
            const size_t g = (size_t)(row0 + r) * (size_t)c->groups + (size_t)(j / c->w.group);
            const double w = x[(size_t)r * (size_t)c->v->cols + (size_t)j];
            const double d = w - quant_code_value(&c->w, c->codes[at], c->scales[g], c->zeros[g]);
            error += d * d;
            square += w * w;
        }
    }
    c->sums[row0 / STRIP * 2] = error;
    c->sums[row0 / STRIP * 2 + 1] = square;
}

/* 8 bits: through a packed tile, so that the rounding is that of loading. */
static void code_strip8(const struct coding *c, const float *x, void *tile, int row0, int n)
{
    const size_t cols = (size_t)c->v->cols, groups = (size_t)c->groups;
    struct weight w = c->w;
    w.n = n;
    w.data = tile;
    for (int t = 0; t * TILE_N < n; t++) {
        const int rows = n - t * TILE_N < TILE_N ? n - t * TILE_N : TILE_N;
        const size_t row = (size_t)(row0 + t * TILE_N);
        weight_quantize(&w, n, x, DTYPE_F32, cols, 1,
                        c->how.scheme == QUANT_WRITE_FP8_BLOCK ? STRIP : 1, t, t + 1, 0, 0);
        weight_unpack_tile(&w, 0, c->codes + row * cols, cols, c->scales + row * groups, groups,
                           NULL, 0, rows);
    }
}

static int all_finite(struct coding *c, const float *x, int row0, int n)
{
    for (size_t i = 0; i < (size_t)n * (size_t)c->v->cols; i++) {
        if (!isfinite(x[i])) {
            int expected = -1;
            if (atomic_compare_exchange_strong(&c->bad_row, &expected,
                                               row0 + (int)(i / (size_t)c->v->cols))) {
                atomic_store(&c->bad_col, (int)(i % (size_t)c->v->cols));
            }
            return 0;
        }
    }
    return 1;
}

static void scale_strip(const struct coding *c, float *x, int row0, int n)
{
    const size_t cols = (size_t)c->v->cols;
    for (size_t r = 0; r < (size_t)n; r++) {
        for (size_t j = 0; j < cols && c->how.columns != NULL; j++) {
            x[r * cols + j] *= c->how.columns[j];
        }
        for (size_t j = 0; j < cols && c->how.rows != NULL; j++) {
            x[r * cols + j] /= c->how.rows[(size_t)row0 + r];
        }
    }
}

static void code_strips(void *arg, int worker, int n_workers)
{
    (void)worker;
    (void)n_workers;
    struct coding *c = arg;
    const size_t cols = (size_t)c->v->cols, groups = (size_t)c->groups;
    float *x = malloc(STRIP * cols * sizeof *x);
    void *tile = aligned_alloc(64, (weight_tile_bytes(&c->w) + 63) / 64 * 64);
    if (x == NULL || tile == NULL) {
        atomic_store(&c->failed, ERR_NOMEM);
    }
    for (int row0;
         atomic_load(&c->failed) == 0 && (row0 = atomic_fetch_add(&c->next, STRIP)) < c->v->rows;) {
        const int n = c->v->rows - row0 < STRIP ? c->v->rows - row0 : STRIP;
        quant_code_read(x, c->v, row0, n);
        if (!all_finite(c, x, row0, n)) {
            atomic_store(&c->failed, ERR_FORMAT);
            break;
        }
        if (c->w.format == WEIGHT_C2) {
            const int rc =
                quant_two_strip(&c->two, x, row0, n, c->how.feedback, c->sums + row0 / STRIP * 2);
            if (rc < 0) {
                atomic_store(&c->failed, rc);
            }
            continue;
        }
        scale_strip(c, x, row0, n);
        if (c->w.format != WEIGHT_I4) {
            code_strip8(c, x, tile, row0, n);
        }
        for (size_t r = 0; c->w.format == WEIGHT_I4 && r < (size_t)n; r++) {
            const size_t row = (size_t)row0 + r;
            for (size_t g = 0; g < groups; g++) {
                const size_t j = g * (size_t)c->w.group;
                quant_code_group4(&c->w, c->search,
                                  c->how.importance != NULL ? c->how.importance + j : NULL,
                                  c->codes + row * cols + j, c->scales + row * groups + g,
                                  c->zeros + row * groups + g, x + r * cols + j, c->w.group);
            }
        }
        add_errors(c, x, row0, n);
    }
    free(x);
    free(tile);
}

static void coding_fini(struct coding *c)
{
    free(c->codes);
    free(c->zeros);
    free(c->scales);
    free(c->sums);
}

static int code_matrix(struct coding *c, const struct writing *a, const struct checkpoint_view *v,
                       struct quant_write_how how, struct quant_write_matrix *done)
{
    const size_t rows = (size_t)v->rows, cols = (size_t)v->cols;
    const int n_strips = (v->rows + STRIP - 1) / STRIP;
    *c = (struct coding){
        .v = v, .how = how, .search = a->o->search, .w = quant_write_format(a->m, how, v)};
    atomic_init(&c->bad_row, -1);
    c->groups = weight_groups(&c->w);
    c->codes = malloc(rows * cols);
    c->scales = malloc(rows * (size_t)(c->groups + 3) * sizeof *c->scales);
    c->zeros = calloc(rows, (size_t)c->groups);
    c->sums = calloc((size_t)n_strips, 2 * sizeof *c->sums);
    if (c->codes == NULL || c->scales == NULL || c->zeros == NULL || c->sums == NULL) {
        return err_set(a->e, ERR_NOMEM, "%s: out of memory", done->name);
    }
    c->two = (struct quant_two){
        v->rows, v->cols, c->codes, c->zeros, c->scales, c->scales + rows, c->scales + 2 * rows};
    checkpoint_will_need(v);
    cpu_pool_run(a->pool, code_strips, c);
    checkpoint_drop(v);
    const int failed = atomic_load(&c->failed);
    if (failed == ERR_FORMAT) {
        return err_set(a->e, ERR_FORMAT,
                       "%s: tensor %s: row %d, column %d of %s is not a finite number",
                       v->tensor->file, v->tensor->name, atomic_load(&c->bad_row),
                       atomic_load(&c->bad_col), done->name);
    }
    if (failed != 0) {
        return err_set(a->e, failed, "%s: out of memory", done->name);
    }
    for (int i = 0; i < n_strips; i++) {
        done->square_error += c->sums[2 * i];
        done->square += c->sums[2 * i + 1];
    }
    return 0;
}

/* ---- tensors ---- */

static int announce(const struct writing *a, const char *layer, const char *suffix,
                    enum safetensors_dtype d, int64_t d0, int64_t d1)
{
    char name[QUANT_WRITE_NAME + 32];
    const int64_t shape[2] = {d0, d1};
    snprintf(name, sizeof name, "%s.%s", layer, suffix);
    return safetensors_writer_add(a->file, name, d, d1 == 0 ? 1 : 2, shape, a->e);
}

/* Scales in rows x groups, or (across) groups x rows; `step` of the rows: 128 for blocks. */
static int put_scales(const struct writing *a, const struct coding *c, int across, int step)
{
    const int rows = (c->v->rows + step - 1) / step, groups = c->groups;
    const size_t size = dtype_size(c->w.scale_type);
    uint8_t *out = malloc((size_t)rows * (size_t)groups * size), *to = out;
    if (out == NULL) {
        return err_set(a->e, ERR_NOMEM, "scales: out of memory");
    }
    for (int i = 0; i < rows * groups; i++, to += size) {
        const int row = across ? i % rows : i / groups, g = across ? i / rows : i % groups;
        const float s = c->scales[(size_t)row * (size_t)step * (size_t)groups + (size_t)g];
        const uint16_t h = c->w.scale_type == DTYPE_F16 ? f32_to_f16(s) : f32_to_bf16(s);
        memcpy(to, size == 4 ? (const void *)&s : &h, size);
    }
    int rc = safetensors_writer_put(a->file, out, (size_t)rows * (size_t)groups * size, a->e);
    free(out);
    return rc;
}

/* int8 as two's complement; fp8 bits as they are. */
static int put_bytes(const struct writing *a, const struct coding *c)
{
    const size_t n = (size_t)c->v->rows * (size_t)c->v->cols;
    for (size_t i = 0; i < n && c->w.format == WEIGHT_I8; i++) {
        c->codes[i] ^= 0x80;
    }
    return safetensors_writer_put(a->file, c->codes, n, a->e);
}

/* Words of 8 codes that lie `stride` apart: word (i, j) of [lines][words] begins at code
 * i * line + j * word. place[k]: which nibble code k goes into. */
struct packing {
    const uint8_t *from;
    size_t lines, words, line, word, stride;
    const uint8_t *place;
};

static int put_words(const struct writing *a, const struct packing *p)
{
    uint8_t *out = malloc(p->words * 4);
    int rc = out == NULL ? err_set(a->e, ERR_NOMEM, "packed words: out of memory") : 0;
    for (size_t i = 0; i < p->lines && rc == 0; i++) {
        for (size_t j = 0; j < p->words; j++) {
            const uint8_t *from = p->from + i * p->line + j * p->word;
            uint32_t w = 0;
            for (int k = 0; k < 8; k++) {
                w |= (uint32_t)from[(size_t)k * p->stride] << 4 * p->place[k];
            }
            memcpy(out + 4 * j, &w, 4);
        }
        rc = safetensors_writer_put(a->file, out, p->words * 4, a->e);
    }
    free(out);
    return rc;
}

static const uint8_t natural[8] = {0, 1, 2, 3, 4, 5, 6, 7};
static const uint8_t interleaved[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* AWQ's */

static int put_packed(const struct writing *a, const struct coding *c)
{
    const size_t rows = (size_t)c->v->rows, cols = (size_t)c->v->cols;
    const struct packing p = {c->codes, rows, cols / 8, cols, 8, 1, natural};
    const int64_t shape[2] = {c->v->rows, c->v->cols};
    int rc = put_words(a, &p);
    rc = rc < 0 ? rc : put_scales(a, c, 0, 1);
    return rc < 0 ? rc : safetensors_writer_put(a->file, shape, sizeof shape, a->e);
}

static int put_awq(const struct writing *a, const struct coding *c)
{
    const size_t rows = (size_t)c->v->rows, cols = (size_t)c->v->cols, groups = (size_t)c->groups;
    const struct packing codes = {c->codes, cols, rows / 8, 1, 8 * cols, cols, interleaved};
    const struct packing zeros = {c->zeros, groups, rows / 8, 1, 8 * groups, groups, interleaved};
    int rc = put_words(a, &codes);
    rc = rc < 0 ? rc : put_words(a, &zeros);
    return rc < 0 ? rc : put_scales(a, c, 1, 1);
}

static int announce_quantized(const struct writing *a, const char *layer,
                              const struct checkpoint_view *v, struct quant_write_how how)
{
    const struct weight w = quant_write_format(a->m, how, v);
    const int64_t rows = v->rows, cols = v->cols, groups = weight_groups(&w);
    const enum safetensors_dtype scales = w.scale_type == DTYPE_F32   ? SAFETENSORS_F32
                                          : w.scale_type == DTYPE_F16 ? SAFETENSORS_F16
                                                                      : SAFETENSORS_BF16;
    int rc;
    switch (how.scheme) {
    case QUANT_WRITE_INT4:
        rc = announce(a, layer, "weight_packed", SAFETENSORS_I32, rows, cols / 8);
        rc = rc < 0 ? rc : announce(a, layer, "weight_scale", scales, rows, groups);
        return rc < 0 ? rc : announce(a, layer, "weight_shape", SAFETENSORS_I64, 2, 0);
    case QUANT_WRITE_AWQ:
        rc = announce(a, layer, "qweight", SAFETENSORS_I32, cols, rows / 8);
        rc = rc < 0 ? rc : announce(a, layer, "qzeros", SAFETENSORS_I32, groups, rows / 8);
        return rc < 0 ? rc : announce(a, layer, "scales", scales, groups, rows);
    case QUANT_WRITE_TWO:
        rc = announce(a, layer, "quant_weight", SAFETENSORS_U8, cols / 4, rows);
        rc = rc < 0 ? rc
                    : announce(a, layer, "weight_scale", SAFETENSORS_U8, (cols + 127) / 128, rows);
        rc = rc < 0 ? rc : announce(a, layer, "code_scale", SAFETENSORS_F32, rows, 0);
        rc = rc < 0 ? rc : announce(a, layer, "code_zp", SAFETENSORS_F32, rows, 0);
        return rc < 0 ? rc : announce(a, layer, "super_scales", SAFETENSORS_BF16, rows, 0);
    case QUANT_WRITE_FP8_BLOCK:
        rc = announce(a, layer, "weight", SAFETENSORS_F8_E4M3, rows, cols);
        return rc < 0 ? rc
                      : announce(a, layer, "weight_scale_inv", scales, (rows + STRIP - 1) / STRIP,
                                 groups);
    default:
        rc = announce(a, layer, "weight",
                      how.scheme == QUANT_WRITE_INT8 ? SAFETENSORS_I8 : SAFETENSORS_F8_E4M3, rows,
                      cols);
        return rc < 0 ? rc : announce(a, layer, "weight_scale", scales, rows, 1);
    }
}

static int put_two(const struct writing *a, const struct quant_two *q)
{
    const size_t rows = (size_t)q->rows, cols = (size_t)q->cols;
    uint16_t *supers = malloc(rows * sizeof *supers);
    if (supers == NULL) {
        return err_set(a->e, ERR_NOMEM, "scales: out of memory");
    }
    for (size_t r = 0; r < rows; r++) {
        supers[r] = f32_to_bf16(q->supers[r]);
    }
    int rc = safetensors_writer_put(a->file, q->codes, cols / 4 * rows, a->e);
    rc = rc < 0 ? rc : safetensors_writer_put(a->file, q->subs, (cols + 127) / 128 * rows, a->e);
    rc = rc < 0 ? rc : safetensors_writer_put(a->file, q->steps, rows * 4, a->e);
    rc = rc < 0 ? rc : safetensors_writer_put(a->file, q->starts, rows * 4, a->e);
    rc = rc < 0 ? rc : safetensors_writer_put(a->file, supers, rows * 2, a->e);
    free(supers);
    return rc;
}

static int put_quantized(const struct writing *a, const struct checkpoint_view *v,
                         struct quant_write_how how, struct quant_write_matrix *done)
{
    struct coding c;
    int rc = code_matrix(&c, a, v, how, done);
    if (rc == 0 && how.scheme == QUANT_WRITE_INT4) {
        rc = put_packed(a, &c);
    } else if (rc == 0 && how.scheme == QUANT_WRITE_AWQ) {
        rc = put_awq(a, &c);
    } else if (rc == 0 && how.scheme == QUANT_WRITE_TWO) {
        rc = put_two(a, &c.two);
    } else if (rc == 0) {
        rc = put_bytes(a, &c);
        rc = rc < 0 ? rc : put_scales(a, &c, 0, how.scheme == QUANT_WRITE_FP8_BLOCK ? STRIP : 1);
    }
    coding_fini(&c);
    return rc;
}

/* The stored numbers, row after row. */
static int put_plain(const struct writing *a, const struct checkpoint_view *v)
{
    const size_t size = dtype_size(v->dtype), rows = (size_t)v->rows, cols = (size_t)v->cols;
    const uint8_t *from = checkpoint_data(v);
    int rc = 0;
    checkpoint_will_need(v);
    if (v->stride_col == 1 || cols == 1) {
        rc = safetensors_writer_put(a->file, from, rows * cols * size, a->e);
    } else {
        uint8_t *out = malloc(STRIP * cols * size);
        rc = out == NULL ? err_set(a->e, ERR_NOMEM, "%s: out of memory", v->tensor->name) : 0;
        for (size_t row0 = 0; row0 < rows && rc == 0; row0 += STRIP) {
            const size_t n = rows - row0 < STRIP ? rows - row0 : STRIP;
            for (size_t j = 0; j < cols; j++) {
                for (size_t r = 0; r < n; r++) {
                    memcpy(out + (r * cols + j) * size,
                           from + ((row0 + r) * v->stride_row + j * v->stride_col) * size, size);
                }
            }
            rc = safetensors_writer_put(a->file, out, n * cols * size, a->e);
        }
        free(out);
    }
    checkpoint_drop(v);
    return rc;
}

static int plain(const struct writing *a, const char *name, const struct checkpoint_view *v)
{
    if (a->announcing) {
        return announce(a, name, "weight",
                        v->dtype == DTYPE_F32   ? SAFETENSORS_F32
                        : v->dtype == DTYPE_F16 ? SAFETENSORS_F16
                                                : SAFETENSORS_BF16,
                        v->rows, v->cols == 1 ? 0 : v->cols);
    }
    return put_plain(a, v);
}

/* A matrix of the model: codes, or (kept) as it was. */
static int matrix(const struct writing *a, const char *name, const struct checkpoint_view *v,
                  struct quant_write_how how, int kept)
{
    if (a->announcing) {
        return kept ? plain(a, name, v) : announce_quantized(a, name, v, how);
    }
    if (a->o->stop != NULL && a->o->stop(a->o->user)) {
        return err_set(a->e, ERR_CANCELED, "interrupted");
    }
    struct quant_write_matrix done = {.name = name, .rows = v->rows, .cols = v->cols, .kept = kept};
    int rc = kept ? put_plain(a, v) : put_quantized(a, v, how, &done);
    if (rc == 0 && a->o->done != NULL) {
        a->o->done(a->o->user, &done);
    }
    return rc;
}

/* The mean square of each channel that enters a product, as its scaled columns see it. */
static const float *importance(const struct writing *a, int layer, int product,
                               const float *columns)
{
    if (a->o->calibration == NULL) {
        return NULL;
    }
    const struct calibration_point *p = calibration_at(a->o->calibration, layer, product);
    for (int j = 0; j < p->k; j++) {
        const double s = columns != NULL ? (double)columns[j] : 1.0;
        a->importance[j] = (float)(p->sum_square[j] / (double)p->n_seen / (s * s));
    }
    return a->importance;
}

/* Products with the same input come one after the other and share it. */
static int make_feedback(const struct writing *a, int layer, int product)
{
    const struct calibration_point *p = calibration_at(a->o->calibration, layer, product);
    quant_two_feedback_fini(a->feedback);
    return quant_two_feedback_init(a->feedback, p->k, p->rows, p->n_rows, p->ld) < 0
               ? err_set(a->e, ERR_NOMEM, "error feedback: out of memory")
               : 0;
}

static int linear(const struct writing *a, int layer, int which)
{
    static const int product[QUANT_WRITE_LINEARS] = {
        CALIBRATION_QKV, CALIBRATION_QKV, CALIBRATION_QKV, CALIBRATION_O,
        CALIBRATION_FF,  CALIBRATION_FF,  CALIBRATION_DOWN};
    char name[QUANT_WRITE_NAME];
    struct quant_write_how how = quant_write_linear_how(a->o);
    quant_write_name(name, layer, which);
    if (a->scales.layers != NULL) {
        const struct quant_scale_layer *s = &a->scales.layers[layer];
        how.columns = s->columns[product[which]];
        how.rows = which == 2 ? s->v_rows : which == 5 ? s->columns[CALIBRATION_DOWN] : NULL;
    }
    how.importance = importance(a, layer, product[which], how.columns);
    const int kept = quant_write_ignores(a->o, name);
    if (how.scheme == QUANT_WRITE_TWO && a->o->calibration != NULL && !kept && !a->announcing) {
        const int is_first = which == 0 || product[which] != product[which - 1];
        int rc = is_first ? make_feedback(a, layer, product[which]) : 0;
        how.feedback = a->feedback;
        if (rc < 0) {
            return rc;
        }
    }
    return matrix(a, name, quant_write_linear(&a->m->checkpoint.layers[layer], which), how, kept);
}

/* Embedding or head. */
static int outer(const struct writing *a, const char *name, const struct checkpoint_view *v,
                 int is_head)
{
    struct quant_write_how how = quant_write_head_how(a->o);
    how.importance = is_head ? importance(a, a->m->checkpoint.n_layers, 0, NULL) : NULL;
    return a->o->head_bits == 0 ? plain(a, name, v) : matrix(a, name, v, how, 0);
}

/* A norm of a layer, with the weights that the scales of the product behind it leave. */
static int norm(const struct writing *a, int layer, const char *which, int product,
                const struct checkpoint_view *v)
{
    char name[QUANT_WRITE_NAME];
    const float *x = a->scales.layers != NULL ? a->scales.layers[layer].norm[product] : NULL;
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, which);
    if (a->announcing || x == NULL) {
        return plain(a, name, v);
    }
    int rc = 0;
    for (int j = 0; j < v->rows && rc == 0; j++) {
        const uint16_t h = v->dtype == DTYPE_F16 ? f32_to_f16(x[j]) : f32_to_bf16(x[j]);
        rc = safetensors_writer_put(a->file, v->dtype == DTYPE_F32 ? (const void *)&x[j] : &h,
                                    dtype_size(v->dtype), a->e);
    }
    return rc;
}

static int walk(const struct writing *a)
{
    const struct checkpoint *ck = &a->m->checkpoint;
    int rc = outer(a, QUANT_EMBEDDING, &ck->embed, a->m->config.tied);
    for (int i = 0; i < ck->n_layers && rc == 0; i++) {
        rc = norm(a, i, "input_layernorm", CALIBRATION_QKV, &ck->layers[i].input_norm);
        rc = rc < 0
                 ? rc
                 : norm(a, i, "post_attention_layernorm", CALIBRATION_FF, &ck->layers[i].post_norm);
        for (int j = 0; j < QUANT_WRITE_LINEARS && rc == 0; j++) {
            rc = linear(a, i, j);
        }
    }
    rc = rc < 0 ? rc : plain(a, "model.norm", &ck->final_norm);
    if (rc == 0 && !a->m->config.tied) {
        rc = outer(a, "lm_head", &ck->head, 1);
    }
    return rc;
}

static int prepare_scales(struct writing *a)
{
    const struct model_config *c = &a->m->config;
    int k = c->hidden_size > c->intermediate_size ? c->hidden_size : c->intermediate_size;
    k = k > c->n_heads * c->head_dim ? k : c->n_heads * c->head_dim;
    if (a->o->calibration == NULL) {
        return 0;
    }
    a->importance = malloc((size_t)k * sizeof *a->importance);
    return a->importance == NULL ? err_set(a->e, ERR_NOMEM, "scales: out of memory")
           : a->o->scheme == QUANT_WRITE_TWO
               ? 0
               : quant_scale_search(&a->scales, a->m, a->o, a->pool, a->e);
}

int quant_write_weights(const struct model *m, const struct quant_write_options *o,
                        const char *path, struct cpu_pool *pool, uint64_t *n_bytes, struct err *e)
{
    struct quant_two_feedback feedback = {0, NULL};
    struct writing a = {
        .m = m, .o = o, .pool = pool, .feedback = &feedback, .announcing = 1, .e = e};
    int rc = prepare_scales(&a);
    rc = rc < 0 ? rc : safetensors_writer_open(&a.file, path, e);
    rc = rc < 0 ? rc : walk(&a);
    rc = rc < 0 ? rc : safetensors_writer_begin(a.file, e);
    a.announcing = 0;
    rc = rc < 0 ? rc : walk(&a);
    rc = rc < 0 ? rc : safetensors_writer_finish(a.file, e);
    *n_bytes = rc == 0 ? safetensors_writer_bytes(a.file) : 0;
    safetensors_writer_close(a.file);
    quant_scale_fini(&a.scales);
    quant_two_feedback_fini(&feedback);
    free(a.importance);
    return rc;
}
