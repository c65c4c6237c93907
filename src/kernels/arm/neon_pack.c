/* SPDX-License-Identifier: Apache-2.0 */
/* NEON: packing of bf16 matrices. */
#include "kernels/arm/neon.h"
#include "kernels/lanes/pack.h"
#include <arm_neon.h>

/* Transposes 4 rows x 4 pairs. */
static inline __attribute__((always_inline)) void block4(uint16_t *dst, const uint16_t *src,
                                                         size_t stride)
{
    uint32x4_t r0 = vreinterpretq_u32_u16(vld1q_u16(src)),
               r1 = vreinterpretq_u32_u16(vld1q_u16(src + stride));
    uint32x4_t r2 = vreinterpretq_u32_u16(vld1q_u16(src + 2 * stride));
    uint32x4_t r3 = vreinterpretq_u32_u16(vld1q_u16(src + 3 * stride));
    uint64x2_t t0 = vreinterpretq_u64_u32(vtrn1q_u32(r0, r1)),
               t1 = vreinterpretq_u64_u32(vtrn2q_u32(r0, r1));
    uint64x2_t t2 = vreinterpretq_u64_u32(vtrn1q_u32(r2, r3)),
               t3 = vreinterpretq_u64_u32(vtrn2q_u32(r2, r3));
    vst1q_u16(dst, vreinterpretq_u16_u64(vtrn1q_u64(t0, t2)));
    vst1q_u16(dst + 32, vreinterpretq_u16_u64(vtrn1q_u64(t1, t3)));
    vst1q_u16(dst + 64, vreinterpretq_u16_u64(vtrn2q_u64(t0, t2)));
    vst1q_u16(dst + 96, vreinterpretq_u16_u64(vtrn2q_u64(t1, t3)));
}

static inline __attribute__((always_inline)) void block(uint16_t *dst, const uint16_t *src,
                                                        size_t stride)
{
    for (size_t row = 0; row < 16; row += 4) {
        for (size_t p = 0; p < 16; p += 4) {
            block4(dst + p * 32 + row * 2, src + row * stride + p * 2, stride);
        }
    }
}

static inline __attribute__((always_inline)) void pair(uint16_t *dst, const uint16_t *even,
                                                       const uint16_t *odd)
{
    vst2q_u16(dst, ((uint16x8x2_t){{vld1q_u16(even), vld1q_u16(odd)}}));
    vst2q_u16(dst + 16, ((uint16x8x2_t){{vld1q_u16(even + 8), vld1q_u16(odd + 8)}}));
}

void neon_pack(void *dst, enum weight_format format, int n, int k, const void *src,
               enum dtype src_type, size_t stride_row, size_t stride_col, int tile0, int tile1,
               int tile_step, int tile_offset)
{
    lanes_pack(block, pair, dst, format, n, k, src, src_type, stride_row, stride_col, tile0, tile1,
               tile_step, tile_offset);
}
