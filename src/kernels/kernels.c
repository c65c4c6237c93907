/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel tables are built in, and the few facts about formats that all levels share. */
#include "kernels/kernels.h"
#include "kernels/ref/ref.h"
#include <string.h>
#if defined(__x86_64__)
#include "kernels/x86/x86.h"
#elif defined(__aarch64__)
#include "kernels/arm/neon.h"
#endif

size_t act_size(enum act_type t)
{
    return t == ACT_BF16 ? 2 : 4;
}

size_t dtype_size(enum dtype t)
{
    return t == DTYPE_F32 ? 4 : 2;
}

size_t weight_packed_bytes(enum weight_format f, int n, int k)
{
    size_t tiles = ((size_t)n + TILE_N - 1) / TILE_N;
    return tiles * TILE_N * (size_t)k * (f == WEIGHT_BF16 ? 2 : 4);
}

float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

uint16_t f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(u >> 16 | 0x40u);
    }
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

const struct kernels *kernels_get(enum cpu_level level)
{
    static const struct kernels *const tables[] = {
        &kernels_ref,
#if defined(__x86_64__)
        &kernels_avx2,
        &kernels_avx512,
        &kernels_avx512bf16,
#elif defined(__aarch64__)
        &kernels_neon,
#endif
    };
    enum cpu_level have[8];
    int n_have = cpu_levels_available(have);
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        for (int j = 0; j < n_have && tables[i]->level == level; j++) {
            if (have[j] == level) {
                return tables[i];
            }
        }
    }
    return NULL;
}
