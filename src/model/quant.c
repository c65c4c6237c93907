/* SPDX-License-Identifier: Apache-2.0 */
/* Decoders of quantized matrices: one short function a layout, literally as quant.h's table. Data
 * may lie at any address, so words are copied out. */
#include "model/quant.h"

#include <math.h>
#include <string.h>

static uint32_t word_at(const struct tensor *t, size_t i)
{
    uint32_t w;
    memcpy(&w, (const uint8_t *)t->data + 4 * i, 4);
    return w;
}

/* Nibble of a word that holds column e of 8 in AWQ's order (0 2 4 6 1 3 5 7). */
static const uint8_t awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static unsigned awq_nibble(const struct tensor *t, size_t line, int row, int rows)
{
    uint32_t w = word_at(t, line * (size_t)(rows / 8) + (size_t)row / 8);
    return w >> 4 * awq_place[row % 8] & 15u;
}

static int column(const struct quant_matrix *m, int j)
{
    return m->order != NULL ? m->order[j] : j;
}

static void read_awq(const struct quant_matrix *m, int row0, int n, uint8_t *codes)
{
    size_t cols = (size_t)m->cols;
    for (size_t j = 0; j < cols; j++) {
        for (int r = 0; r < n; r++) {
            codes[(size_t)r * cols + j] = (uint8_t)awq_nibble(m->codes, j, row0 + r, m->rows);
        }
    }
}

static void read_gptq(const struct quant_matrix *m, int row0, int n, uint8_t *codes)
{
    size_t cols = (size_t)m->cols, rows = (size_t)m->rows;
    for (size_t j = 0; j < cols; j++) {
        size_t k = (size_t)column(m, (int)j), at = k / 8 * rows + (size_t)row0;
        for (int r = 0; r < n; r++) {
            codes[(size_t)r * cols + j] =
                (uint8_t)(word_at(m->codes, at + (size_t)r) >> 4 * (k % 8) & 15u);
        }
    }
}

static void read_ct_packed(const struct quant_matrix *m, int row0, int n, uint8_t *codes)
{
    size_t cols = (size_t)m->cols, words = (cols + 7) / 8;
    for (int r = 0; r < n; r++) {
        for (size_t j = 0; j < cols; j++) {
            size_t k = (size_t)column(m, (int)j);
            uint32_t w = word_at(m->codes, (size_t)(row0 + r) * words + k / 8);
            codes[(size_t)r * cols + j] = (uint8_t)(w >> 4 * (k % 8) & 15u);
        }
    }
}

/* Bytes: of int8 the code is the value plus 128, of fp8 its bits. */
static void read_bytes(const struct quant_matrix *m, int row0, int n, uint8_t *codes)
{
    size_t cols = (size_t)m->cols;
    const uint8_t *from = (const uint8_t *)m->codes->data + (size_t)row0 * cols;
    uint8_t flip = m->format == WEIGHT_I8 ? 0x80 : 0;
    for (size_t i = 0; i < (size_t)n * cols; i++) {
        codes[i] = from[i] ^ flip;
    }
}

static const uint8_t *block_at(const struct quant_matrix *m, int row, size_t block)
{
    size_t per_row = (size_t)m->cols / (size_t)tensor_block_elements(m->codes->type);
    return (const uint8_t *)m->codes->data +
           ((size_t)row * per_row + block) * (size_t)tensor_block_bytes(m->codes->type);
}

static void read_blocks(const struct quant_matrix *m, int row0, int n, uint8_t *codes)
{
    for (int r = 0; r < n; r++) {
        uint8_t *to = codes + (size_t)r * (size_t)m->cols;
        for (size_t b = 0; b < (size_t)m->cols / 32; b++, to += 32) {
            const uint8_t *q = block_at(m, row0 + r, b) + 2; /* behind the f16 scale */
            for (int i = 0; i < 32; i++) {
                to[i] = m->codes->type == TENSOR_Q8_0 ? q[i] ^ 0x80
                        : i < 16                      ? q[i] & 15u
                                                      : (uint8_t)(q[i - 16] >> 4);
            }
        }
    }
}

/* Q6_K: 128 B of low nibbles, 64 B of upper pairs of bits, 16 int8 scales, f16. In each half, of
 * 128 elements, byte l of 64 holds elements l and l + 64; byte l of 32 the upper bits of l, l + 32,
 * … */
static void read_q6_k(const struct quant_matrix *m, int row0, int n, uint8_t *codes)
{
    for (int r = 0; r < n; r++) {
        uint8_t *to = codes + (size_t)r * (size_t)m->cols;
        for (size_t b = 0; b < (size_t)m->cols / 256; b++, to += 256) {
            const uint8_t *low = block_at(m, row0 + r, b), *high = low + 128;
            for (int i = 0; i < 256; i++) {
                int half = i / 128, l = i % 128;
                int lower = low[half * 64 + l % 64] >> (l < 64 ? 0 : 4) & 15;
                int upper = high[half * 32 + l % 32] >> 2 * (l / 32) & 3;
                to[i] = (uint8_t)(128 - 32 + (lower | upper << 4));
            }
        }
    }
}

/* Of a group of 16, exact: 11 bits of the block's scale times 8 of the group's. */
static float q6_k_scale(const struct quant_matrix *m, int row, size_t group)
{
    const uint8_t *block = block_at(m, row, group / 16);
    uint16_t h;
    memcpy(&h, block + 208, 2);
    return f16_to_f32(h) * (float)(int8_t)block[192 + group % 16];
}

static float scale_at(const struct quant_matrix *m, int row, size_t group)
{
    size_t groups = (size_t)((m->cols + m->group - 1) / m->group);
    uint16_t h;
    switch (m->layout) {
    case QUANT_AWQ_GEMM:
    case QUANT_GPTQ_ROWS:
        return tensor_float(m->scales, group * (size_t)m->rows + (size_t)row);
    case QUANT_CT_FP8:
        return tensor_float(m->scales, m->per_tensor ? 0 : (size_t)row);
    case QUANT_FP8_BLOCK:
        return tensor_float(m->scales, (size_t)row / 128 * groups + group);
    case QUANT_BLOCKS:
        if (m->codes->type == TENSOR_Q6_K) {
            return q6_k_scale(m, row, group);
        }
        memcpy(&h, block_at(m, row, group), 2);
        return f16_to_f32(h);
    default:
        return tensor_float(m->scales, (size_t)row * groups + group);
    }
}

/* 8 where there are none: codes of 4 bits are then biased by it. */
static int zero_at(const struct quant_matrix *m, int row, size_t group)
{
    size_t groups = (size_t)((m->cols + m->group - 1) / m->group);
    if (m->zeros == NULL) {
        return 8;
    }
    switch (m->layout) {
    case QUANT_AWQ_GEMM:
        return (int)awq_nibble(m->zeros, group, row, m->rows);
    case QUANT_GPTQ_ROWS:
        return (int)(word_at(m->zeros, group * (size_t)(m->rows / 8) + (size_t)row / 8) >>
                         4 * (row % 8) &
                     15u) +
               m->zero_offset;
    default:
        return (int)(word_at(m->zeros, (size_t)row / 8 * groups + group) >> 4 * (row % 8) & 15u);
    }
}

/* The group that packed matrices use for groups of g columns out of cols. */
static int packed_group(int g, int cols)
{
    for (int p = 128; p >= 32 && g < cols; p /= 2) {
        if (g % p == 0) {
            return p;
        }
    }
    return g < cols ? g : cols;
}

int quant_fit(struct weight *w, const struct quant_matrix *m, int first)
{
    int group = packed_group(m->group, m->cols);
    if (first) {
        w->format = m->format;
        w->group = group;
        w->has_zero = m->zeros != NULL;
        w->scale_type = m->scale_type;
        return 1;
    }
    int big = w->group > group ? w->group : group, small = w->group > group ? group : w->group;
    if (big < w->k && big % small != 0) {
        return 0;
    }
    w->group = small;
    w->scale_type = w->scale_type == m->scale_type ? w->scale_type : DTYPE_F32;
    if (w->format == m->format) {
        w->has_zero |= m->zeros != NULL;
        return 1;
    }
    int integers = (w->format == WEIGHT_I4 || w->format == WEIGHT_I8) &&
                   (m->format == WEIGHT_I4 || m->format == WEIGHT_I8);
    w->format = WEIGHT_I8;
    w->has_zero = 0;
    return integers;
}

static int refuse_scale(const struct quant_matrix *m, int row, size_t group, float s, struct err *e)
{
    const struct tensor *t = m->scales != NULL ? m->scales : m->codes;
    return err_set(e, ERR_FORMAT,
                   "%s: tensor %s: the scale of row %d, group %zu is %g, expected a finite number",
                   t->file, t->name, row, group, (double)s);
}

static int check_codes(const struct quant_matrix *m, int row0, int n, const uint8_t *codes,
                       struct err *e)
{
    if (m->format != WEIGHT_F8_E4M3) {
        return 0;
    }
    for (size_t i = 0; i < (size_t)n * (size_t)m->cols; i++) {
        if ((codes[i] & 0x7f) == 0x7f) {
            return err_set(e, ERR_FORMAT, "%s: tensor %s: row %d, column %d is NaN (0x%02x)",
                           m->codes->file, m->codes->name, row0 + (int)(i / (size_t)m->cols),
                           (int)(i % (size_t)m->cols), codes[i]);
        }
    }
    return 0;
}

int quant_read_rows(const struct quant_matrix *m, const struct weight *w, int row0, int n,
                    uint8_t *codes, float *scales, uint8_t *zeros, struct err *e)
{
    switch (m->layout) {
    case QUANT_AWQ_GEMM:
        read_awq(m, row0, n, codes);
        break;
    case QUANT_GPTQ_ROWS:
        read_gptq(m, row0, n, codes);
        break;
    case QUANT_CT_PACKED:
        read_ct_packed(m, row0, n, codes);
        break;
    case QUANT_BLOCKS:
        if (m->codes->type == TENSOR_Q6_K) {
            read_q6_k(m, row0, n, codes);
        } else {
            read_blocks(m, row0, n, codes);
        }
        break;
    default:
        read_bytes(m, row0, n, codes);
    }
    int rc = check_codes(m, row0, n, codes, e), groups = weight_groups(w);
    int widen = m->format == WEIGHT_I4 && w->format == WEIGHT_I8;
    for (int r = 0; r < n && rc == 0; r++) {
        for (int g = 0; g < groups; g++) {
            int j0 = g * w->group, j1 = j0 + w->group < m->cols ? j0 + w->group : m->cols;
            size_t from = (size_t)(j0 / m->group);
            float s = scale_at(m, row0 + r, from);
            if (!isfinite(s)) {
                return refuse_scale(m, row0 + r, from, s, e);
            }
            scales[(size_t)r * (size_t)groups + (size_t)g] = s;
            int zero = m->format == WEIGHT_I4 ? zero_at(m, row0 + r, from) : 0;
            if (w->has_zero) {
                zeros[(size_t)r * (size_t)groups + (size_t)g] = (uint8_t)zero;
            }
            for (int j = j0; widen && j < j1; j++) {
                uint8_t *c = &codes[(size_t)r * (size_t)m->cols + (size_t)j];
                *c = (uint8_t)(*c + 128 - zero);
            }
        }
    }
    return rc;
}
