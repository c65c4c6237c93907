/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of activations to int8 or fp8 on 16 lanes. A group is read twice: for its largest magnitude
 * (compared as integers, so that NaN and infinity are above all numbers) and to be divided. */
#ifndef TERN_KERNELS_LANES_QUANTIZE_H
#define TERN_KERNELS_LANES_QUANTIZE_H

#include "kernels/lanes/f8.h"

LANES_INLINE float lanes_group_scale(float high, enum input_format f, int is_part)
{
    const float limit = f == INPUT_I8 ? 127.0f : f == INPUT_E4M3 ? 448.0f : 57344.0f;
    if (f != INPUT_I8 && is_part) {
        return (high > 1e-4f ? high : 1e-4f) / limit;
    }
    const float scale = high / limit;
    return scale > 1e-12f ? scale : 1e-12f;
}

/* Columns from .. to of one row. */
LANES_INLINE void lanes_quantize_group(uint8_t *codes, float *scale, int32_t *sum, const void *x,
                                       size_t at, int from, int to, int is_part,
                                       enum input_format f, float fixed, enum act_type t)
{
    n16 high = n16_set1(0), added = n16_set1(0);
    for (int j = from; j < to; j += 16) {
        const v16 v = lanes_load(x, at + (size_t)j, lanes_count(j, to), t);
        high = n16_max(high, n16_and(v16_bits(v), n16_set1(0x7fffffff)));
    }
    const int32_t most = n16_fold_max(high);
    float size;
    memcpy(&size, &most, 4);
    if (most >= 0x7f800000) {
        const size_t element = f == INPUT_I8 ? 1 : 2;
        memset(codes + (size_t)from * element, 0, (size_t)(to - from) * element);
        *scale = NAN;
        *sum = 0;
        return;
    }
    *scale = fixed > 0 ? fixed : lanes_group_scale(size, f, is_part);
    const v16 s = v16_set1(*scale);
    for (int j = from; j < to; j += 16) {
        const int count = lanes_count(j, to);
        v16 v = v16_div(lanes_load(x, at + (size_t)j, count, t), s);
        if (f == INPUT_I8) {
            if (fixed > 0) {
                v = v16_clamp(v, -128.0f, 127.0f);
            }
            const n16 code = v16_round(v);
            added = n16_add(added, code);
            n16_store_codes(codes + j,
                            code); /* beyond a row's last column: zeros, in its padding */
        } else {
            lanes_store(codes, (size_t)j, lanes_round_f8(v, f == INPUT_E4M3), count, ACT_BF16);
        }
    }
    *sum = n16_fold_add(added);
}

LANES_INLINE void lanes_quantize_as(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                                    enum input_format f, int group, float fixed, enum act_type t)
{
    const int is_part = group < k;
    const size_t groups = is_part ? ((size_t)k + (size_t)group - 1) / (size_t)group : 1;
    const size_t n_codes = (size_t)k * (f == INPUT_I8 ? 1 : 2), end = input_row_bytes(f, k, group);
    const size_t scales_at = lanes_pad64(n_codes), sums_at = scales_at + lanes_pad64(groups * 4);
    for (int i = 0; i < m; i++) {
        uint8_t *row = (uint8_t *)out + (size_t)i * ldo;
        memset(row + n_codes, 0, end - n_codes);
        for (size_t g = 0; g < groups; g++) {
            const int from = (int)g * group, to = is_part && k - from > group ? from + group : k;
            float scale;
            int32_t sum;
            lanes_quantize_group(row, &scale, &sum, x, (size_t)i * ldx, is_part ? from : 0, to,
                                 is_part, f, fixed, t);
            memcpy(row + scales_at + 4 * g, &scale, 4);
            if (f == INPUT_I8) {
                memcpy(row + sums_at + 4 * g, &sum, 4);
            }
        }
    }
}

LANES_INLINE void lanes_quantize(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                                 enum input_format f, int group, float fixed, enum act_type t)
{
    if (f == INPUT_I8) {
        lanes_quantize_as(out, ldo, x, ldx, m, k, INPUT_I8, group, fixed, t);
    } else if (f == INPUT_E4M3) {
        lanes_quantize_as(out, ldo, x, ldx, m, k, INPUT_E4M3, group, fixed, t);
    } else {
        lanes_quantize_as(out, ldo, x, ldx, m, k, INPUT_E5M2, group, fixed, t);
    }
}

#endif
