/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of four bits: trying scales is all the time that writing takes, so the inner loop is made
 * of steps that the compiler does several at a time. */
#include "model/quant_code.h"

#include <math.h>
#include <string.h>

#define LANES 8

void quant_code_read(float *x, const struct checkpoint_view *v, int row0, int n)
{
    const size_t cols = (size_t)v->cols, at = v->offset_elements + (size_t)row0 * v->stride_row;
    if (v->stride_col == 1 && v->dtype == DTYPE_BF16) {
        for (size_t r = 0; r < (size_t)n; r++) {
            const uint8_t *from = (const uint8_t *)v->tensor->data + 2 * (at + r * v->stride_row);
            for (size_t j = 0; j < cols; j++) {
                const uint32_t bits = (uint32_t)from[2 * j] << 16 | (uint32_t)from[2 * j + 1] << 24;
                memcpy(&x[r * cols + j], &bits, sizeof bits);
            }
        }
        return;
    }
    if (v->stride_col == 1) {
        for (size_t i = 0; i < (size_t)n * cols; i++) {
            x[i] = tensor_float(v->tensor, at + i / cols * v->stride_row + i % cols);
        }
        return;
    }
    for (size_t j = 0; j < cols; j++) {
        for (size_t r = 0; r < (size_t)n; r++) {
            x[r * cols + j] = tensor_float(v->tensor, at + r * v->stride_row + j * v->stride_col);
        }
    }
}

float quant_code_round(enum dtype type, float x)
{
    return type == DTYPE_F32   ? x
           : type == DTYPE_F16 ? f16_to_f32(f32_to_f16(x))
                               : bf16_to_f32(f32_to_bf16(x));
}

/* Codes 0..15 of a group with step s and zero point z; the sum of squared errors, in lanes. Adding
 * and subtracting 1.5 * 2^23 rounds to the nearest even integer. */
static float encode4(uint8_t *codes, const float *x, const float *importance, int n, float s,
                     float z)
{
    const float magic = 12582912.0f;
    float square[QUANT_CODE_GROUP], lane[LANES] = {0};
    if (!(s > 0)) {
        memset(codes, (int)z, (size_t)n);
    }
    for (int i = 0; i < n && s > 0; i++) {
        float q = x[i] / s;
        q = q < -32.0f ? -32.0f : q > 32.0f ? 32.0f : q;
        q = (q + magic) - magic + z;
        q = q < 0.0f ? 0.0f : q > 15.0f ? 15.0f : q;
        codes[i] = (uint8_t)(int)q;
    }
    for (int i = 0; i < n; i++) {
        const float d = x[i] - ((float)codes[i] - z) * s;
        square[i] = d * d;
    }
    for (int i = 0; i < n && importance != NULL; i++) {
        square[i] *= importance[i];
    }
    for (int i = 0; i < n; i += LANES) { /* groups are 32, 64 or 128 */
        for (int j = 0; j < LANES; j++) {
            lane[j] += square[i + j];
        }
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) {
            lane[j] += lane[j + half];
        }
    }
    return lane[0];
}

struct choice {
    float error, scale, zero;
};

struct group {
    const float *x, *importance;
    int n;
};

static void try_choice(struct choice *best, uint8_t *scratch, const struct group *g, float s,
                       float z)
{
    const float error = encode4(scratch, g->x, g->importance, g->n, s, z);
    if (error < best->error) {
        *best = (struct choice){error, s, z};
    }
}

/* The scale that is best for the codes that another one gave: a line through the origin. */
static float refit(const uint8_t *codes, const struct group *g, float z)
{
    float xv = 0, vv = 0;
    for (int i = 0; i < g->n; i++) {
        const float v = (float)codes[i] - z, m = g->importance != NULL ? g->importance[i] : 1.0f;
        xv += m * g->x[i] * v;
        vv += m * v * v;
    }
    return vv > 0 ? xv / vv : 0;
}

/* Without a search: symmetric, amax / 7.5 as compressed-tensors; with zero points, the range / 15
 * as weight_quantize. A search tries ranges from a little wider down to 60 % of that, then fits the
 * scale to the best codes. */
void quant_code_group4(const struct weight *w, int search, const float *importance, uint8_t *codes,
                       float *scale, uint8_t *zero, const float *x, int n)
{
    const enum dtype t = w->scale_type;
    const struct group g = {x, importance, n};
    const int first = search ? 108 : 100, last = search ? 60 : 100;
    float low = 0, high = 0;
    for (int i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    struct choice best = {INFINITY, 0, w->has_zero ? 0 : 8};
    const float amax = -low > high ? -low : high;
    for (int f = first; f >= last; f -= 2) {
        float s = w->has_zero ? fmaxf((high - low) / 15.0f, 1e-8f) : amax / 7.5f;
        s = quant_code_round(t, f == 100 ? s : s * (float)f / 100.0f);
        float z = 8;
        if (w->has_zero) {
            z = s > 0 ? rintf(-low * ((float)f / 100.0f) / s) : 0;
            z = z < 0 ? 0 : z > 15 ? 15 : z;
        }
        if (!search) {
            best = (struct choice){0, s, z};
            break;
        }
        try_choice(&best, codes, &g, s, z);
    }
    if (search) {
        encode4(codes, x, importance, n, best.scale, best.zero);
        const float s = quant_code_round(t, refit(codes, &g, best.zero));
        if (s > 0) {
            try_choice(&best, codes, &g, s, best.zero);
        }
    }
    encode4(codes, x, importance, n, best.scale, best.zero);
    *scale = best.scale;
    if (w->has_zero) {
        *zero = (uint8_t)best.zero;
    }
}

static float e4m3_value(uint8_t code)
{
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float size =
        exponent == 0 ? (float)mantissa / 512.0f : ldexpf((float)(8 + mantissa), exponent - 10);
    return code & 0x80 ? -size : size;
}

float quant_code_value(const struct weight *w, uint8_t code, float scale, uint8_t zero)
{
    return w->format == WEIGHT_I8   ? scale * (float)(code - 128)
           : w->format == WEIGHT_I4 ? scale * (float)(code - (w->has_zero ? zero : 8))
                                    : scale * e4m3_value(code);
}
