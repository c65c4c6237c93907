/* SPDX-License-Identifier: Apache-2.0 */
/* NEON with DotProd: products with int8 rows; all others are NEON's. */
#include "kernels/arm/micro.h"
#include "kernels/arm/neon.h"
#include "kernels/fused.h"

static int is_own(const struct weight *w, enum act_type t)
{
    (void)t;
    return weight_is_quantized(w) && w->input == INPUT_I8;
}

NEON_FUSED(bf16, neondot_sums, 2)
NEON_FUSED(f32, neondot_sums, 4)
OWN_PRODUCTS(neondot, neon, bf16, ACT_BF16)
OWN_PRODUCTS(neondot, neon, f32, ACT_F32)
