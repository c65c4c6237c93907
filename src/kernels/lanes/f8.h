/* SPDX-License-Identifier: Apache-2.0 */
/* Rounding to 8-bit floats on 16 lanes: activations and the KV cache. */
#ifndef TERN_KERNELS_LANES_F8_H
#define TERN_KERNELS_LANES_F8_H

#include "kernels/lanes/lanes.h"

/* x rounded to fp8, at most +-max: adding and subtracting 2^(e + 23 - bits) rounds to a multiple of
 * 2^(e - bits), where e is x's exponent but not below the smallest normal one. */
LANES_INLINE v16 lanes_round_f8(v16 x, int is_e4m3)
{
    const int bits = is_e4m3 ? 3 : 2, low = is_e4m3 ? -6 : -14;
    const n16 sign = n16_and(v16_bits(x), n16_set1((int32_t)0x80000000u));
    const n16 size = n16_and(v16_bits(x), n16_set1(0x7fffffff));
    n16 e = n16_max(n16_and(size, n16_set1(0x7f800000)), n16_set1((low + 127) << 23));
    const v16 magic = v16_of_bits(n16_add(e, n16_set1((23 - bits) << 23)));
    v16 y = v16_sub(v16_add(v16_of_bits(size), magic), magic);
    y = v16_clamp(y, 0.0f, is_e4m3 ? 448.0f : 57344.0f);
    return v16_of_bits(n16_or(v16_bits(y), sign));
}

#endif
