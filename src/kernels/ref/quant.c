/* SPDX-License-Identifier: Apache-2.0 */
/* Reference of everything that has quantized weights or activations, element by element. */
#include "kernels/ref/math.h"
#include "kernels/ref/ref.h"

static int place_of(int k) /* p(k) of kernels.h */
{
    return k % 4 * 2 + k % 8 / 4;
}

float ref_f8_value(int c, int bits, int low)
{
    int e = (c & 0x7f) >> bits, m = c & ((1 << bits) - 1);
    float v = e == 0 ? (float)m * ref_from_bits((uint32_t)(low - bits + 127) << 23)
                     : (float)(m + (1 << bits)) *
                           ref_from_bits((uint32_t)(low + e - 1 - bits + 127) << 23);
    return c & 0x80 ? -v : v;
}

/* A tile's parts, found once for many elements. */
struct tile {
    struct weight_parts at;
    const uint8_t *start, *codes, *scales, *supers, *zeros, *offsets, *super_offsets;
    const float *grid;
};

static struct tile tile_of(const struct weight *w, int tile)
{
    const struct weight_parts at = weight_parts(w);
    const uint8_t *t = (const uint8_t *)w->data + (size_t)tile * at.end;
    return (struct tile){at,
                         t,
                         t + at.codes,
                         t + at.scales,
                         t + at.supers,
                         t + at.zeros,
                         t + at.offsets,
                         t + at.super_offsets,
                         (const float *)(const void *)(t + at.grid)};
}

/* One column of four that a byte of the 2-bit code stands for. */
static float window_value(int byte, float step, float start, int column)
{
    const float x = ref_add(ref_add(ref_mul((float)byte, step), start), 0.5f);
    return (float)(((int)floorf(x) >> (9 - 3 * column) & 63) - 32);
}

static int zero_of(const struct weight *w, const struct tile *t, int r, int k)
{
    const int group = k / w->group;
    return t->zeros[weight_section_at(&t->at, group) +
                    weight_group_in_section(&t->at, group) * TILE_N + (size_t)r];
}

/* v of kernels.h: the number that a code stands for, before its scale. */
static float value_of(const struct weight *w, const struct tile *t, int r, int k)
{
    const int p = place_of(k);
    const int zero = w->has_zero ? zero_of(w, t, r, k) : 0;
    if (w->format == WEIGHT_C2) {
        return window_value(t->codes[k / 4 * TILE_N + r], t->grid[r], t->grid[TILE_N + r], k % 4);
    }
    if (w->format == WEIGHT_I6) {
        const uint8_t *unit =
            t->start + weight_column_at(&t->at, k / 16 * 16) + (size_t)(r * 4 + p % 4);
        const int low = unit[k / 8 % 2 * 64] >> (p < 4 ? 0 : 4) & 15;
        const int high = unit[128] >> 2 * (k / 8 % 2 * 2 + p / 4) & 3;
        return (float)((low | high << 4) - 32);
    }
    if (w->format == WEIGHT_I4) {
        const int byte = t->start[weight_column_at(&t->at, k / 8 * 8) + (size_t)(r * 4 + p % 4)];
        const int bias = w->has_zero ? zero : w->has_offset ? 0 : 8;
        return (float)((p < 4 ? byte & 15 : byte >> 4) - bias);
    }
    const int c =
        t->start[weight_column_at(&t->at, k / 8 * 8) + (size_t)(p / 4 * 64 + r * 4 + p % 4)];
    return w->format == WEIGHT_I8        ? (float)(c - (w->has_zero ? zero : 128))
           : w->format == WEIGHT_F8_E4M3 ? ref_f8_value(c, 3, -6)
                                         : ref_f8_value(c, 2, -14);
}

static float float_at(const struct weight *w, const uint8_t *t, size_t at)
{
    return w->scale_type == DTYPE_F32   ? ((const float *)(const void *)t)[at]
           : w->scale_type == DTYPE_F16 ? f16_to_f32(((const uint16_t *)(const void *)t)[at])
                                        : bf16_to_f32(((const uint16_t *)(const void *)t)[at]);
}

static float level_of(const struct weight *w, const struct tile *t, const uint8_t *sub,
                      const uint8_t *super, int r, int group)
{
    const size_t section = weight_section_at(&t->at, group);
    const size_t place = weight_group_in_section(&t->at, group);
    const size_t s = w->super >= w->k ? 0 : place * (size_t)w->group / (size_t)w->super;
    return ref_mul((float)(sub[section + place * TILE_N + (size_t)r] - 128),
                   float_at(w, super + section, s * TILE_N + (size_t)r));
}

static float scale_of(const struct weight *w, const struct tile *t, int r, int group)
{
    return w->super != 0 ? level_of(w, t, t->scales, t->supers, r, group)
                         : float_at(w, t->scales + weight_section_at(&t->at, group),
                                    weight_group_in_section(&t->at, group) * TILE_N + (size_t)r);
}

static float offset_of(const struct weight *w, const struct tile *t, int r, int group)
{
    return level_of(w, t, t->offsets, t->super_offsets, r, group);
}

static size_t padded(size_t n_bytes)
{
    return (n_bytes + 63) / 64 * 64;
}

/* Scale of a group in a row of quantize(). */
static float input_scale(const struct weight *w, const uint8_t *a, int group)
{
    float s;
    memcpy(&s, a + padded((size_t)w->k * (w->input == INPUT_I8 ? 1 : 2)) + 4 * (size_t)group, 4);
    return s;
}

/* The chains or the exact sums of one group: m rows of `a` (lda bytes apart) by the tile's 16 outputs. An element
 * of the matrix is decoded once for all rows. */
static void group_sums(float acc[][TILE_N], const struct weight *w, const struct tile *parts,
                       const uint8_t *a, size_t lda, int m, enum act_type t, int tile, int from,
                       int to)
{
    const int32_t *order = w->order != NULL ? w->order[tile] : NULL;
    const enum act_type type = w->input == INPUT_ACT ? t : ACT_BF16;
    int32_t sum[REF_ROWS][TILE_N] = {{0}};
    float even[TILE_N], odd[TILE_N];
    memset(acc, 0, (size_t)m * sizeof acc[0]);
    for (int k = from; k < to; k += 2) {
        for (int r = 0; r < TILE_N; r++) {
            even[r] = value_of(w, parts, r, k);
            odd[r] = value_of(w, parts, r, k + 1);
        }
        for (int i = 0; i < m; i++) {
            const uint8_t *row = a + (size_t)i * lda;
            if (w->input == INPUT_I8) {
                const int8_t *codes = (const int8_t *)row + k / 8 * 8;
                const int8_t x = codes[place_of(k)], y = codes[place_of(k + 1)];
                for (int r = 0; r < TILE_N; r++) {
                    sum[i][r] += (int32_t)even[r] * x + (int32_t)odd[r] * y;
                }
                continue;
            }
            const float x = ref_load(row, (size_t)(order ? order[k] : k), type);
            const float y = ref_load(row, (size_t)(order ? order[k + 1] : k + 1), type);
            for (int r = 0; r < TILE_N; r++) {
                acc[i][r] = ref_fma(x, even[r], ref_fma(y, odd[r], acc[i][r]));
            }
        }
    }
    for (int i = 0; w->input == INPUT_I8 && i < m; i++) {
        for (int r = 0; r < TILE_N; r++) {
            acc[i][r] = (float)sum[i][r];
        }
    }
}

/* What an offset of the group is multiplied with. */
static float input_sum(const struct weight *w, const uint8_t *a, enum act_type t, int group,
                       int from, int to)
{
    int32_t sum;
    float lane[16] = {0};
    if (w->input == INPUT_I8) {
        const size_t n = padded((size_t)w->k) + padded(4 * (size_t)weight_groups(w));
        memcpy(&sum, a + n + 4 * (size_t)group, 4);
        return (float)sum;
    }
    for (int k = from; k < to; k++) {
        lane[(k - from) % 16] = ref_add(lane[(k - from) % 16], ref_load(a, (size_t)k, t));
    }
    return ref_fold16(lane);
}

void ref_quant_tile(float *out, size_t ldo, const void *a, size_t lda, int m, enum act_type t,
                    const struct weight *w, int tile)
{
    const struct tile parts = tile_of(w, tile);
    const int groups = weight_groups(w);
    float acc[REF_ROWS][TILE_N];
    for (int i = 0; i < m; i++) {
        memset(out + (size_t)i * ldo, 0, TILE_N * sizeof *out);
    }
    for (int g = 0; g < groups; g++) {
        const int from = g * w->group, to = w->k - from < w->group ? w->k : from + w->group;
        group_sums(acc, w, &parts, a, lda, m, t, tile, from, to);
        for (int i = 0; i < m; i++) {
            const uint8_t *row = (const uint8_t *)a + (size_t)i * lda;
            const float sa = w->input != INPUT_ACT ? input_scale(w, row, g) : 1.0f;
            const float input = w->has_offset ? input_sum(w, row, t, g, from, to) : 0.0f;
            float *o = out + (size_t)i * ldo;
            for (int r = 0; r < TILE_N; r++) {
                o[r] = ref_fma(acc[i][r], ref_mul(scale_of(w, &parts, r, g), sa), o[r]);
                if (w->has_offset) {
                    o[r] = ref_fma(input, ref_mul(offset_of(w, &parts, r, g), sa), o[r]);
                }
            }
        }
    }
}

void ref_quant_values(const struct weight *w, int row, int from, int to, float *v, float *scale,
                      float *offset)
{
    const struct tile parts = tile_of(w, row / TILE_N);
    const int r = row % TILE_N, group = from / w->group;
    *scale = scale_of(w, &parts, r, group);
    *offset = w->has_offset ? offset_of(w, &parts, r, group) : 0.0f;
    for (int k = from; k < to; k++) {
        v[k - from] = value_of(w, &parts, r, k);
    }
}

float ref_quant_element(const struct weight *w, int row, int k)
{
    float scale, offset, v;
    ref_quant_values(w, row, k, k + 1, &v, &scale, &offset);
    return w->has_offset ? ref_fma(v, scale, offset) : ref_mul(v, scale);
}

float ref_round_f8(float x, enum input_format f)
{
    const int bits = f == INPUT_E4M3 ? 3 : 2, low = f == INPUT_E4M3 ? -6 : -14;
    const float max = f == INPUT_E4M3 ? 448.0f : 57344.0f, size = fabsf(x);
    int e = (int)(ref_bits(size) >> 23) - 127;
    e = e < low ? low : e;
    const float magic = ref_from_bits((uint32_t)(e + 23 - bits + 127) << 23);
    const float y = ref_sub(ref_add(size, magic), magic);
    return copysignf(y > max ? max : y, x);
}

static void quantize_group(uint8_t *out, const void *x, size_t at, enum act_type t, int k, int from,
                           int to, enum input_format f, int group, float fixed)
{
    const float limit = f == INPUT_I8 ? 127.0f : f == INPUT_E4M3 ? 448.0f : 57344.0f;
    uint32_t amax = 0;
    for (int i = from; i < to; i++) {
        const uint32_t size = ref_bits(ref_load(x, at + (size_t)i, t)) & 0x7fffffffu;
        amax = size > amax ? size : amax;
    }
    const int finite = amax < 0x7f800000u;
    float high = ref_from_bits(amax), scale;
    if (fixed > 0) {
        scale = fixed;
    } else if (f != INPUT_I8 && group < k) {
        scale = ref_div(high > 1e-4f ? high : 1e-4f, limit);
    } else {
        scale = ref_div(high, limit);
        scale = scale > 1e-12f ? scale : 1e-12f;
    }
    scale = finite ? scale : NAN;
    int32_t sum = 0;
    for (int i = from; i < to; i++) {
        const float v = finite ? ref_div(ref_load(x, at + (size_t)i, t), scale) : 0.0f;
        if (f == INPUT_I8) {
            const float r = rintf(v);
            const int8_t code = (int8_t)(r < -128 ? -128 : r > 127 ? 127 : r);
            out[i / 8 * 8 + place_of(i)] = (uint8_t)code;
            sum += code;
        } else {
            const uint16_t h = f32_to_bf16(ref_round_f8(v, f));
            memcpy(out + 2 * (size_t)i, &h, 2);
        }
    }
    const size_t groups = group >= k ? 1 : ((size_t)k + (size_t)group - 1) / (size_t)group;
    uint8_t *scales = out + padded((size_t)k * (f == INPUT_I8 ? 1 : 2));
    memcpy(scales + 4 * (size_t)(from / group), &scale, 4);
    if (f == INPUT_I8) {
        memcpy(scales + padded(4 * groups) + 4 * (size_t)(from / group), &sum, 4);
    }
}

static void quantize(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                     enum input_format f, int group, float fixed, enum act_type t)
{
    for (int i = 0; i < m; i++) {
        uint8_t *row = (uint8_t *)out + (size_t)i * ldo;
        memset(row, 0, input_row_bytes(f, k, group));
        for (int from = 0; from < k; from += group) {
            const int to = k - from < group ? k : from + group;
            quantize_group(row, x, (size_t)i * ldx, t, k, from, to, f, group, fixed);
            if (to == k) {
                break;
            }
        }
    }
}

void ref_quantize_bf16(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                       enum input_format f, int group, float fixed)
{
    quantize(out, ldo, x, ldx, m, k, f, group, fixed, ACT_BF16);
}

void ref_quantize_f32(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                      enum input_format f, int group, float fixed)
{
    quantize(out, ldo, x, ldx, m, k, f, group, fixed, ACT_F32);
}
