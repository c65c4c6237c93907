/* SPDX-License-Identifier: Apache-2.0 */
/* What the loops of kernels/arm share. */
#ifndef TERN_KERNELS_ARM_MICRO_H
#define TERN_KERNELS_ARM_MICRO_H

#include "kernels/micro.h"

#define MICRO_INLINE static inline __attribute__((always_inline))

/* A level whose panel is its own and whose row operations are NEON's. */
#define NEON_FUSED(type, panel, act_bytes)                                                         \
    static const struct fused fused_##type = {                                                     \
        panel, neon_swiglu_##type, neon_add_##type, neon_rope_store_##type, act_bytes, NULL, 0};

#endif
