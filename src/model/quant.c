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

/* Codes in a word of codes or zero points, and one of them. */
static size_t per_word(const struct quant_matrix *m)
{
    return m->format == WEIGHT_I8 ? 4 : 8;
}

static uint8_t code_in(const struct quant_matrix *m, uint32_t word, size_t i)
{
    return (uint8_t)(m->format == WEIGHT_I8 ? word >> 8 * (i % 4) & 255u
                                            : word >> 4 * (i % 8) & 15u);
}

static void read_gptq(const struct quant_matrix *m, int row0, int n, uint8_t *codes)
{
    size_t cols = (size_t)m->cols, rows = (size_t)m->rows;
    for (size_t j = 0; j < cols; j++) {
        size_t k = (size_t)column(m, (int)j), at = k / per_word(m) * rows + (size_t)row0;
        for (int r = 0; r < n; r++) {
            codes[(size_t)r * cols + j] = code_in(m, word_at(m->codes, at + (size_t)r), k);
        }
    }
}

static void read_ct_packed(const struct quant_matrix *m, int row0, int n, uint8_t *codes)
{
    size_t cols = (size_t)m->cols, per = per_word(m), words = (cols + per - 1) / per;
    for (int r = 0; r < n; r++) {
        for (size_t j = 0; j < cols; j++) {
            size_t k = (size_t)column(m, (int)j);
            uint32_t w = word_at(m->codes, (size_t)(row0 + r) * words + k / per);
            codes[(size_t)r * cols + j] = code_in(m, w, k);
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

/* K-quants: blocks of 256, 8 groups of 32 with scale and minimum of 6 bits (Q6_K: 16 groups of 16
 * with int8 scales and no minimum).
 *   Q4_K   f16 d, f16 dmin, 12 B scales and minima, 128 B nibbles
 *   Q5_K   f16 d, f16 dmin, 12 B scales and minima, 32 B fifth bits, 128 B nibbles
 *   Q6_K   128 B low nibbles, 64 B upper pairs of bits, 16 int8 scales, f16 d */
static unsigned k_quant_code(enum tensor_type type, const uint8_t *block, int i)
{
    if (type == TENSOR_Q6_K) { /* in each half, byte l of 64 holds elements l and l + 64; byte l of
                                  32 the upper bits of l, l + 32, … */
        const int half = i / 128, l = i % 128;
        const unsigned low = block[half * 64 + l % 64] >> (l < 64 ? 0 : 4) & 15u;
        return low | (block[128 + half * 32 + l % 32] >> 2 * (l / 32) & 3u) << 4;
    }
    const int group = i / 32, l = i % 32;
    const uint8_t *nibbles = block + (type == TENSOR_Q4_K ? 16 : 48);
    const unsigned low = nibbles[group / 2 * 32 + l] >> (group % 2 * 4) & 15u;
    return type == TENSOR_Q4_K ? low : low | (block[16 + l] >> group & 1u) << 4;
}

/* Minima are 0 and up: with one, codes are, too. Packed codes of 6 bits are biased by 32. */
static void read_k_quant(const struct quant_matrix *m, const struct weight *w, int row0, int n,
                         uint8_t *codes)
{
    const enum tensor_type type = m->codes->type;
    const int bias = w->format == WEIGHT_I8   ? 128 - 32
                     : w->format == WEIGHT_I6 ? (type == TENSOR_Q6_K ? 0 : 32)
                                              : 0;
    for (int r = 0; r < n; r++) {
        uint8_t *to = codes + (size_t)r * (size_t)m->cols;
        for (size_t b = 0; b < (size_t)m->cols / 256; b++, to += 256) {
            const uint8_t *block = block_at(m, row0 + r, b);
            for (int i = 0; i < 256; i++) {
                to[i] = (uint8_t)((int)k_quant_code(type, block, i) + bias);
            }
        }
    }
}

/* The 2-bit code lies as the kernels take it: a byte where the first of its four columns is. */
static void read_wint2(const struct quant_matrix *m, int row0, int n, uint8_t *codes)
{
    const size_t cols = (size_t)m->cols, rows = (size_t)m->rows;
    const uint8_t *from = m->codes->data;
    memset(codes, 0, (size_t)n * cols);
    for (size_t j = 0; j < cols / 4; j++) {
        for (size_t r = 0; r < (size_t)n; r++) {
            codes[r * cols + 4 * j] = from[j * rows + (size_t)row0 + r];
        }
    }
}

/* Numbers of 15 bits by the format; the kernels take any that an int32 holds, so what is far from
 * it is refused. */
static int read_wint2_levels(const struct quant_matrix *m, const struct weight *w, int row0, int n,
                             const struct weight_levels *out, struct err *e)
{
    const int groups = weight_groups(w);
    const uint8_t *subs = m->subs->data;
    for (int r = 0; r < n; r++) {
        const size_t row = (size_t)(row0 + r);
        for (int g = 0; g < groups; g++) {
            const uint8_t pair = subs[(size_t)(g * w->group / 128) * (size_t)m->rows + row];
            out->sub[r * groups + g] = (int8_t)(g * w->group / 64 % 2 == 0 ? pair >> 4 : pair & 15);
        }
        for (int i = 0; i < 2; i++) {
            const float x = tensor_float(m->grid[i], row);
            if (!(fabsf(x) <= 65536.0f)) {
                return err_set(e, ERR_FORMAT,
                               "%s: tensor %s: row %zu is %g, expected a step or a start of "
                               "15-bit numbers",
                               m->grid[i]->file, m->grid[i]->name, row, (double)x);
            }
            out->grid[2 * r + i] = x;
        }
    }
    return 0;
}

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return f16_to_f32(h);
}

static float k_quant_scale(const struct quant_matrix *m, int row, size_t super)
{
    return half_at(block_at(m, row, super) + (m->codes->type == TENSOR_Q6_K ? 208 : 0));
}

/* Scale and minimum of group `group` of a row. */
static void k_quant_levels(const struct quant_matrix *m, int row, size_t group, int *scale,
                           int *minimum)
{
    const size_t per_block = 256 / (size_t)m->group, j = group % per_block;
    const uint8_t *block = block_at(m, row, group / per_block), *s = block + 4;
    *minimum = 0;
    if (m->codes->type == TENSOR_Q6_K) {
        *scale = (block[192 + j] ^ 128) - 128; /* two's complement */
    } else if (j < 4) {
        *scale = s[j] & 63;
        *minimum = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        *minimum = s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
}

static float scale_at(const struct quant_matrix *m, int row, size_t group)
{
    size_t groups = (size_t)((m->cols + m->group - 1) / m->group);
    switch (m->layout) {
    case QUANT_AWQ_GEMM:
    case QUANT_GPTQ_ROWS:
        return tensor_float(m->scales, group * (size_t)m->rows + (size_t)row);
    case QUANT_CT_FP8:
        return tensor_float(m->scales, m->per_tensor ? 0 : (size_t)row);
    case QUANT_FP8_BLOCK:
        return tensor_float(m->scales, (size_t)row / 128 * groups + group);
    case QUANT_BLOCKS:
        if (m->super != 0) { /* exact: 11 bits of the block's scale times 8 of the group's */
            int scale, minimum;
            k_quant_levels(m, row, group, &scale, &minimum);
            return k_quant_scale(m, row, group * (size_t)m->group / 256) * (float)scale;
        }
        return half_at(block_at(m, row, group));
    default:
        return tensor_float(m->scales, (size_t)row * groups + group);
    }
}

/* The middle where there are none: codes are then biased by it. */
static int zero_at(const struct quant_matrix *m, int row, size_t group)
{
    size_t groups = (size_t)((m->cols + m->group - 1) / m->group), per = per_word(m);
    if (m->zeros == NULL) {
        return m->format == WEIGHT_I8 ? 128 : 8;
    }
    switch (m->layout) {
    case QUANT_AWQ_GEMM:
        return (int)awq_nibble(m->zeros, group, row, m->rows);
    case QUANT_GPTQ_ROWS:
        return code_in(m, word_at(m->zeros, (group * (size_t)m->rows + (size_t)row) / per),
                       (size_t)row) +
               m->zero_offset;
    default:
        return code_in(m, word_at(m->zeros, (size_t)row / per * groups + group), (size_t)row);
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

static int is_integer(enum weight_format f)
{
    return f == WEIGHT_I4 || f == WEIGHT_I6 || f == WEIGHT_I8;
}

int quant_fit(struct weight *w, const struct quant_matrix *m, int first)
{
    int group = packed_group(m->group, m->cols);
    if (first) {
        w->format = m->format;
        w->group = group;
        w->has_zero = m->zeros != NULL;
        w->scale_type = m->scale_type;
        w->super = m->super;
        w->has_offset = m->has_offset;
        return 1;
    }
    int big = w->group > group ? w->group : group, small = w->group > group ? group : w->group;
    if (big < w->k && big % small != 0) {
        return 0;
    }
    w->group = small;
    w->scale_type = w->scale_type == m->scale_type ? w->scale_type : DTYPE_F32;
    if (w->super != m->super) { /* one level for both: products of exact scales are exact */
        const int has_offset = w->has_offset | m->has_offset;
        w->scale_type = DTYPE_F32;
        w->super = w->has_offset = w->has_zero = 0;
        w->format = WEIGHT_I8;
        return !has_offset && is_integer(m->format);
    }
    w->has_offset |= m->has_offset;
    if (w->format == m->format) {
        w->has_zero |= m->zeros != NULL;
        return 1;
    }
    /* codes of 4 bits lose their zero points when they are widened, those of 8 bits keep them */
    const int has_zero =
        (w->format == WEIGHT_I8 && w->has_zero) || (m->format == WEIGHT_I8 && m->zeros != NULL);
    int integers = is_integer(w->format) && is_integer(m->format);
    w->format = w->super != 0 ? WEIGHT_I6 : WEIGHT_I8;
    w->has_zero = has_zero;
    return integers;
}

/* Of a code. E5M2 has as wide a range as f16 itself and may be unscaled: 1. */
static float largest_code(const struct quant_matrix *m)
{
    switch (m->format) {
    case WEIGHT_I8:
        return 127;
    case WEIGHT_I6:
    case WEIGHT_C2:
        return 32;
    case WEIGHT_F8_E4M3:
        return 448;
    case WEIGHT_F8_E5M2:
        return 1;
    default:
        return m->has_offset ? 15 : 8;
    }
}

/* Of what stands between a super-scale and a weight: the scale of a group, and a code. */
static float largest_product(const struct quant_matrix *m)
{
    const float sub = m->layout == QUANT_WINT2 ? 15 : m->codes->type == TENSOR_Q6_K ? 127 : 63;
    return sub * largest_code(m);
}

/* Codes with a sign have no use for a negative scale, and those of a zero point none either; GGUF and
 * symmetric 4 bits write it where the largest weight is to be -8. */
static int takes_negative(const struct quant_matrix *m)
{
    return m->layout == QUANT_BLOCKS || m->layout == QUANT_CT_PACKED || m->layout == QUANT_WINT2;
}

/* `times`: the most that the scale is multiplied with. What comes to more than 65,504, which no f16
 * file could hold, makes senseless text, silently as long as activations stay finite. */
static int check_scale(const struct quant_matrix *m, int row, size_t group, float s, float times,
                       struct err *e)
{
    const struct tensor *t = m->scales != NULL ? m->scales : m->codes;
    const float most = 65504 / times;
    if (fabsf(s) <= most && (s >= 0 || takes_negative(m))) {
        return 0;
    }
    return err_set(
        e, ERR_FORMAT,
        "%s: tensor %s: the scale of row %d, group %zu is %g, expected a finite number %s "
        "%g",
        t->file, t->name, row, group, (double)s,
        takes_negative(m) ? "of a magnitude up to" : "from 0 to", (double)most);
}

static int check_codes(const struct quant_matrix *m, int row0, int n, const uint8_t *codes,
                       struct err *e)
{
    const int last = m->format == WEIGHT_F8_E4M3 ? 0x7e : 0x7b; /* code of the largest number */
    if (m->format != WEIGHT_F8_E4M3 && m->format != WEIGHT_F8_E5M2) {
        return 0;
    }
    for (size_t i = 0; i < (size_t)n * (size_t)m->cols; i++) {
        if ((codes[i] & 0x7f) > last) {
            return err_set(e, ERR_FORMAT, "%s: tensor %s: row %d, column %d is %s (0x%02x)",
                           m->codes->file, m->codes->name, row0 + (int)(i / (size_t)m->cols),
                           (int)(i % (size_t)m->cols),
                           m->format == WEIGHT_F8_E4M3 ? "NaN" : "NaN or infinite", codes[i]);
        }
    }
    return 0;
}

static int read_supers(const struct quant_matrix *m, const struct weight *w, int row0, int n,
                       float *scales, struct err *e)
{
    const int supers = weight_supers(w);
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < supers; i++) {
            const float s = m->layout == QUANT_WINT2 ? tensor_float(m->scales, (size_t)(row0 + r))
                                                     : k_quant_scale(m, row0 + r, (size_t)i);
            if (check_scale(m, row0 + r, (size_t)i, s, largest_product(m), e) < 0) {
                return e->code;
            }
            scales[r * supers + i] = s;
        }
    }
    return 0;
}

int quant_read_levels(const struct quant_matrix *m, const struct weight *w, int row0, int n,
                      const struct weight_levels *out, struct err *e)
{
    const int groups = weight_groups(w), supers = weight_supers(w);
    if (m->layout == QUANT_WINT2) {
        return read_wint2_levels(m, w, row0, n, out, e);
    }
    for (int r = 0; r < n; r++) {
        for (int g = 0; g < groups; g++) {
            int scale, minimum;
            k_quant_levels(m, row0 + r, (size_t)(g * w->group / m->group), &scale, &minimum);
            out->sub[r * groups + g] = (int8_t)scale;
            if (w->has_offset) {
                out->sub_offset[r * groups + g] = (int8_t)minimum;
            }
        }
        for (int i = 0; i < supers && w->has_offset; i++) {
            const float s = m->has_offset ? half_at(block_at(m, row0 + r, (size_t)i) + 2) : 0.0f;
            if (check_scale(m, row0 + r, (size_t)i, s, 63, e) < 0) {
                return e->code;
            }
            out->offset[r * supers + i] = -s;
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
    case QUANT_WINT2:
        read_wint2(m, row0, n, codes);
        break;
    case QUANT_BLOCKS:
        if (m->super != 0) {
            read_k_quant(m, w, row0, n, codes);
        } else {
            read_blocks(m, row0, n, codes);
        }
        break;
    default:
        read_bytes(m, row0, n, codes);
    }
    int rc = check_codes(m, row0, n, codes, e), groups = weight_groups(w);
    if (w->super != 0) {
        return rc < 0 ? rc : read_supers(m, w, row0, n, scales, e);
    }
    int widen = m->format == WEIGHT_I4 && w->format == WEIGHT_I8;
    for (int r = 0; r < n && rc == 0; r++) {
        for (int g = 0; g < groups; g++) {
            int j0 = g * w->group, j1 = j0 + w->group < m->cols ? j0 + w->group : m->cols;
            size_t from = (size_t)(j0 / m->group);
            float s = scale_at(m, row0 + r, from);
            if (check_scale(m, row0 + r, from, s, largest_code(m), e) < 0) {
                return e->code;
            }
            scales[(size_t)r * (size_t)groups + (size_t)g] = s;
            int zero = is_integer(m->format) ? zero_at(m, row0 + r, from) : 0;
            if (w->has_zero && zero > 255) {
                return err_set(e, ERR_UNSUPPORTED,
                               "%s: tensor %s: the zero point of row %d, group %zu is %d, expected "
                               "at most 255",
                               m->zeros->file, m->zeros->name, row0 + r, from, zero);
            }
            if (w->has_zero) {
                zeros[(size_t)r * (size_t)groups + (size_t)g] = (uint8_t)(widen ? 128 : zero);
            }
            for (int j = j0; widen && j < j1; j++) {
                uint8_t *c = &codes[(size_t)r * (size_t)m->cols + (size_t)j];
                *c = (uint8_t)(*c + 128 - zero);
            }
        }
    }
    return rc;
}
