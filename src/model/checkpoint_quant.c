/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the tensors of a quantized matrix: which ones there must be follows from the scheme, all
 * of them must have the type and the shape that the scheme implies, and each is used. Small tensors
 * that decide about the layout are looked into here: the group of every input (act-order), the
 * shape that packed words stand for, and zero points that are all the same middle. */
#include "model/checkpoint_find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor "layer.suffix" that must be there. */
static const struct tensor *require(struct finder *f, const char *layer, const char *suffix)
{
    char name[160];
    snprintf(name, sizeof name, "%s.%s", layer, suffix);
    const struct tensor *t = find_tensor(f, name);
    if (t == NULL) {
        find_note_missing(f, name);
    }
    return t;
}

static const struct tensor *allow(struct finder *f, const char *layer, const char *suffix)
{
    char name[160];
    snprintf(name, sizeof name, "%s.%s", layer, suffix);
    return find_tensor(f, name);
}

static void check_type(struct finder *f, const struct tensor *t, enum tensor_type type)
{
    if (t->type != type) {
        find_failed(f, ERR_FORMAT, t, "wrong dtype: expected %s, found %s", tensor_type_name(type),
                    tensor_type_name(t->type));
    }
}

/* Checks a scale tensor and notes its type. */
static void check_scales(struct finder *f, struct quant_matrix *m, int64_t d0, int64_t d1)
{
    if (!tensor_is_float(m->scales)) {
        find_failed(f, ERR_UNSUPPORTED, m->scales,
                    "unsupported dtype %s of scales; supported: "
                    "BF16, F16, F32",
                    tensor_type_name(m->scales->type));
        return;
    }
    find_check_shape(f, m->scales, d0, d1);
    m->scale_type = m->scales->type == TENSOR_F32   ? DTYPE_F32
                    : m->scales->type == TENSOR_F16 ? DTYPE_F16
                                                    : DTYPE_BF16;
}

static int compare_keys(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Act-order: input k is in group g_idx[k]. Sorted by group (inputs of a group keep their order),
 * the columns lie in whole groups again. */
static void read_order(struct finder *f, struct quant_matrix *m, const struct tensor *t,
                       const struct quant_scheme *s)
{
    int n = m->cols, groups = (n + m->group - 1) / m->group, natural = 1;
    check_type(f, t, TENSOR_I32);
    find_check_shape(f, t, n, 0);
    if (f->failed != 0) {
        return;
    }
    int64_t *keys = malloc((size_t)n * sizeof *keys);
    int32_t *order = arena_alloc(&f->ck->arena, (size_t)n * sizeof *order);
    if (keys == NULL || order == NULL) {
        find_failed(f, ERR_NOMEM, t, "out of memory");
    }
    for (int k = 0; k < n && f->failed == 0; k++) {
        int32_t g;
        memcpy(&g, (const uint8_t *)t->data + 4 * (size_t)k, 4);
        if (g < 0 || g >= groups) {
            find_failed(f, ERR_FORMAT, t, "input %d is in group %d, expected 0 to %d", k, (int)g,
                        groups - 1);
            break;
        }
        natural &= g == k / m->group;
        keys[k] = (int64_t)g << 32 | k;
    }
    if (f->failed == 0 && !natural) {
        if (!s->ordered) {
            find_failed(f, ERR_FORMAT, t,
                        "groups are in another order than the inputs, but quantization_config says "
                        "no act-order (desc_act, actorder)");
        }
        qsort(keys, (size_t)n, sizeof *keys, compare_keys);
        for (int j = 0; j < n && f->failed == 0; j++) {
            order[j] = (int32_t)(keys[j] & INT32_MAX);
            if (keys[j] >> 32 != j / m->group) {
                find_failed(f, ERR_FORMAT, t, "groups of unequal size: expected %d inputs each",
                            m->group);
            }
        }
        m->order = order;
    }
    free(keys);
}

/* 1 when all zero points are 8 (of 8 bits: 128): codes then need none. */
static int zeros_are_middle(const struct quant_matrix *m)
{
    const unsigned one = m->format == WEIGHT_I8 ? 0x01010101u : 0x11111111u;
    uint32_t middle = one * (unsigned)((m->format == WEIGHT_I8 ? 128 : 8) - m->zero_offset), w;
    for (uint64_t i = 0; i + 4 <= m->zeros->n_bytes; i += 4) {
        memcpy(&w, (const uint8_t *)m->zeros->data + i, 4);
        if (w != middle) {
            return 0;
        }
    }
    return 1;
}

/* Words of 8 nibbles or 4 bytes: sizes along which they are packed must be whole words. */
static void check_words(struct finder *f, const struct tensor *t, int size, int per_word,
                        const char *what)
{
    if (size % per_word != 0) {
        find_failed(f, ERR_UNSUPPORTED, t, "%d %s, expected a multiple of %d", size, what,
                    per_word);
    }
}

static void find_awq(struct finder *f, struct quant_matrix *m, const char *layer)
{
    m->format = WEIGHT_I4;
    m->codes = require(f, layer, "qweight");
    m->zeros = require(f, layer, "qzeros");
    m->scales = require(f, layer, "scales");
    if (m->codes == NULL || m->zeros == NULL || m->scales == NULL) {
        return;
    }
    int groups = m->cols / m->group;
    if (m->cols % m->group != 0) {
        find_failed(f, ERR_UNSUPPORTED, m->codes, "group_size %d doesn't divide the %d inputs",
                    m->group, m->cols);
    }
    check_words(f, m->codes, m->rows, 8, "outputs");
    check_type(f, m->codes, TENSOR_I32);
    find_check_shape(f, m->codes, m->cols, m->rows / 8);
    check_type(f, m->zeros, TENSOR_I32);
    find_check_shape(f, m->zeros, groups, m->rows / 8);
    check_scales(f, m, groups, m->rows);
}

static void find_gptq(struct finder *f, struct quant_matrix *m, const char *layer,
                      const struct quant_scheme *s)
{
    int groups = (m->cols + m->group - 1) / m->group;
    const struct tensor *g_idx = s->ordered ? require(f, layer, "g_idx") : allow(f, layer, "g_idx");
    const int per_word = 32 / s->bits;
    m->format = s->bits == 8 ? WEIGHT_I8 : WEIGHT_I4;
    m->zero_offset = s->zero_offset;
    m->codes = require(f, layer, "qweight");
    m->zeros = require(f, layer, "qzeros");
    m->scales = require(f, layer, "scales");
    if (m->codes == NULL || m->zeros == NULL || m->scales == NULL) {
        return;
    }
    check_words(f, m->codes, m->rows, per_word, "outputs");
    check_words(f, m->codes, m->cols, per_word, "inputs");
    check_type(f, m->codes, TENSOR_I32);
    find_check_shape(f, m->codes, m->cols / per_word, m->rows);
    check_type(f, m->zeros, TENSOR_I32);
    find_check_shape(f, m->zeros, groups, m->rows / per_word);
    check_scales(f, m, groups, m->rows);
    if (g_idx != NULL) {
        read_order(f, m, g_idx, s);
    }
}

static void check_packed_shape(struct finder *f, const struct quant_matrix *m,
                               const struct tensor *t)
{
    int64_t d[2];
    check_type(f, t, TENSOR_I64);
    find_check_shape(f, t, 2, 0);
    if (f->failed == 0) {
        memcpy(d, t->data, sizeof d);
        if (d[0] != m->rows || d[1] != m->cols) {
            find_failed(f, ERR_FORMAT, t, "holds [%lld, %lld], expected [%d, %d]", (long long)d[0],
                        (long long)d[1], m->rows, m->cols);
        }
    }
}

static void find_ct_packed(struct finder *f, struct quant_matrix *m, const char *layer,
                           const struct quant_scheme *s)
{
    const int groups = (m->cols + m->group - 1) / m->group, per_word = 32 / s->bits;
    m->format = s->bits == 8 ? WEIGHT_I8 : WEIGHT_I4;
    m->codes = require(f, layer, "weight_packed");
    m->scales = require(f, layer, "weight_scale");
    const struct tensor *shape = require(f, layer, "weight_shape");
    m->zeros = s->symmetric ? NULL : require(f, layer, "weight_zero_point");
    const struct tensor *g_idx = s->ordered ? require(f, layer, "weight_g_idx") : NULL;
    if (m->codes == NULL || m->scales == NULL || shape == NULL ||
        (!s->symmetric && m->zeros == NULL)) {
        return;
    }
    check_packed_shape(f, m, shape);
    check_type(f, m->codes, TENSOR_I32);
    find_check_shape(f, m->codes, m->rows, (m->cols + per_word - 1) / per_word);
    check_scales(f, m, m->rows, groups);
    if (m->zeros != NULL) {
        check_type(f, m->zeros, TENSOR_I32);
        find_check_shape(f, m->zeros, (m->rows + per_word - 1) / per_word, groups);
    }
    if (g_idx != NULL) {
        read_order(f, m, g_idx, s);
    }
}

static void find_bytes(struct finder *f, struct quant_matrix *m, const char *layer,
                       const struct quant_scheme *s)
{
    int integers = s->layout == QUANT_CT_INT8, blocks = s->layout == QUANT_FP8_BLOCK;
    m->format = integers ? WEIGHT_I8 : WEIGHT_F8_E4M3;
    m->per_tensor = s->per_tensor;
    m->codes = require(f, layer, "weight");
    m->scales = require(f, layer, blocks ? "weight_scale_inv" : "weight_scale");
    if (m->codes == NULL || m->scales == NULL) {
        return;
    }
    if (!integers && m->codes->type == TENSOR_F8_E5M2) {
        m->format = WEIGHT_F8_E5M2;
    } else {
        check_type(f, m->codes, integers ? TENSOR_I8 : TENSOR_F8_E4M3);
    }
    find_check_shape(f, m->codes, m->rows, m->cols);
    if (blocks) {
        check_scales(f, m, (m->rows + 127) / 128, (m->cols + 127) / 128);
    } else if (s->per_tensor && m->scales->n_dims == 0) {
        m->scale_type = DTYPE_F32;
        check_type(f, m->scales, TENSOR_F32);
    } else if (s->per_tensor) {
        check_scales(f, m, 1, 0);
    } else {
        check_scales(f, m, m->rows, m->scales->n_dims == 1 ? 0 : 1);
    }
}

static void find_wint2(struct finder *f, struct quant_matrix *m, const char *layer)
{
    m->format = WEIGHT_C2;
    m->super = m->cols;
    m->codes = require(f, layer, "quant_weight");
    m->subs = require(f, layer, "weight_scale");
    m->grid[0] = require(f, layer, "code_scale");
    m->grid[1] = require(f, layer, "code_zp");
    m->scales = require(f, layer, "super_scales");
    if (m->codes == NULL || m->subs == NULL || m->grid[0] == NULL || m->grid[1] == NULL ||
        m->scales == NULL) {
        return;
    }
    check_words(f, m->codes, m->cols, 8, "inputs");
    check_type(f, m->codes, TENSOR_U8);
    find_check_shape(f, m->codes, m->cols / 4, m->rows);
    check_type(f, m->subs, TENSOR_U8);
    find_check_shape(f, m->subs, (m->cols + 127) / 128, m->rows);
    for (int i = 0; i < 2; i++) {
        check_type(f, m->grid[i], TENSOR_F32);
        find_check_shape(f, m->grid[i], m->rows, 0);
    }
    check_scales(f, m, m->rows, 0);
}

static struct quant_matrix *new_matrix(struct finder *f, struct checkpoint_view *v, int rows,
                                       int cols)
{
    struct quant_matrix *m = arena_alloc(&f->ck->arena, sizeof *m);
    if (m == NULL) {
        f->failed =
            f->failed != 0 ? f->failed : err_set(f->e, ERR_NOMEM, "%s: out of memory", f->path);
        return NULL;
    }
    m->rows = rows;
    m->cols = cols;
    v->rows = rows;
    v->cols = cols;
    v->quant = m;
    return m;
}

/* One scale for all activations of the layer. Refused is one with which all that f16 can hold would
 * be the code 0, or saturate. Symmetric ones may have a zero point that is 0. */
static void find_input_scale(struct finder *f, struct quant_matrix *m, const char *layer)
{
    const struct tensor *t = require(f, layer, "input_scale"),
                        *zero = allow(f, layer, "input_zero_point");
    for (uint64_t i = 0; zero != NULL && i < zero->n_bytes; i++) {
        if (((const uint8_t *)zero->data)[i] != 0) {
            find_failed(f, ERR_UNSUPPORTED, zero,
                        "unsupported zero point of activations: expected 0 (symmetric)");
            return;
        }
    }
    if (t == NULL) {
        return;
    }
    if (!tensor_is_float(t)) {
        find_failed(f, ERR_UNSUPPORTED, t,
                    "unsupported dtype %s of scales; supported: BF16, F16, F32",
                    tensor_type_name(t->type));
        return;
    }
    if (t->n_dims != 0) {
        find_check_shape(f, t, 1, 0);
    }
    if (f->failed == 0) {
        m->input_scale = tensor_float(t, 0);
        const float top = m->format == WEIGHT_I8 ? 127 : 448;
        if (!(m->input_scale <= 65504 && m->input_scale * top >= 0x1p-24f)) {
            find_failed(f, ERR_FORMAT, t, "is %g, expected a scale of activations, above 0",
                        (double)m->input_scale);
        }
    }
}

void find_quantized(struct finder *f, struct checkpoint_view *v, const char *layer, int rows,
                    int cols, const struct quant_scheme *s)
{
    struct quant_matrix *m = new_matrix(f, v, rows, cols);
    if (m == NULL) {
        return;
    }
    m->layout = s->layout;
    m->group = s->group > 0 && s->group < cols ? s->group : cols;
    m->act = s->act;
    switch (s->layout) {
    case QUANT_AWQ_GEMM:
        find_awq(f, m, layer);
        break;
    case QUANT_GPTQ_ROWS:
        find_gptq(f, m, layer, s);
        break;
    case QUANT_CT_PACKED:
        find_ct_packed(f, m, layer, s);
        break;
    case QUANT_WINT2:
        find_wint2(f, m, layer);
        break;
    default:
        find_bytes(f, m, layer, s);
    }
    if (s->fixed) {
        find_input_scale(f, m, layer);
    }
    if (f->failed == 0 && m->zeros != NULL && zeros_are_middle(m)) {
        m->zeros = NULL;
    }
    if (f->failed == 0 && m->order != NULL && strcmp(layer, "embed_tokens") == 0) {
        find_failed(f, ERR_UNSUPPORTED, m->codes,
                    "unsupported act-order of an embedding, whose rows are taken as they lie");
    }
}

void find_blocks(struct finder *f, struct checkpoint_view *v, const struct tensor *t, int rows,
                 int cols)
{
    struct quant_matrix *m = new_matrix(f, v, rows, cols);
    if (m == NULL) {
        return;
    }
    m->layout = QUANT_BLOCKS;
    m->codes = t;
    m->group = 32;
    m->scale_type = DTYPE_F16;
    m->act = QUANT_ACT_INT8;
    if (t->type == TENSOR_Q8_0) {
        m->format = WEIGHT_I8;
    } else if (t->type == TENSOR_Q4_0) {
        m->format = WEIGHT_I4;
    } else if (t->type == TENSOR_Q4_K || t->type == TENSOR_Q5_K || t->type == TENSOR_Q6_K) {
        m->format = t->type == TENSOR_Q4_K ? WEIGHT_I4 : WEIGHT_I6;
        m->group = t->type == TENSOR_Q6_K ? 16 : 32;
        m->super = 256;
        m->has_offset = t->type != TENSOR_Q6_K;
    } else {
        find_failed(
            f, ERR_UNSUPPORTED, t,
            "unsupported type %s of a matrix; supported: F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, "
            "Q6_K",
            tensor_type_name(t->type));
    }
}
