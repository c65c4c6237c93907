/* SPDX-License-Identifier: Apache-2.0 */
/* Packing of weights into tiles, element by element. The result holds no arithmetic but one
 * rounding, so every level's version is a faster way of moving the same bytes. */
#include "kernels/ref/math.h"
#include "kernels/ref/ref.h"

static float source(const void *src, size_t i, enum dtype t)
{
    switch (t) {
    case DTYPE_BF16:
        return bf16_to_f32(((const uint16_t *)src)[i]);
    case DTYPE_F16:
        return f16_to_f32(((const uint16_t *)src)[i]);
    case DTYPE_F32:
        break;
    }
    return ((const float *)src)[i];
}

void ref_pack(void *dst, enum weight_format format, int n, int k, const void *src,
              enum dtype src_type, size_t stride_row, size_t stride_col, int tile0, int tile1,
              int tile_step, int tile_offset)
{
    for (int tile = tile0; tile < tile1; tile++) {
        size_t base = (size_t)(tile * tile_step + tile_offset) * (size_t)k * 16;
        for (size_t col = 0; col < (size_t)k; col++) {
            for (size_t i = 0; i < 16; i++) {
                size_t row = (size_t)tile * 16 + i;
                size_t e = base + col / 2 * 32 + i * 2 + col % 2;
                size_t from = row * stride_row + col * stride_col;
                if (format == WEIGHT_F32) {
                    ((float *)dst)[e] = row < (size_t)n ? source(src, from, src_type) : 0.0f;
                } else if (row >= (size_t)n) {
                    ((uint16_t *)dst)[e] = 0;
                } else if (src_type == DTYPE_BF16) {
                    ((uint16_t *)dst)[e] =
                        ((const uint16_t *)src)[from]; /* the same bits, NaN too */
                } else {
                    ((uint16_t *)dst)[e] = f32_to_bf16(source(src, from, src_type));
                }
            }
        }
    }
}
