/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32 with ten rounds, as published; see rng.h for what keys and counters mean here. */
#include "engine/rng.h"

#define PURPOSE_TOKEN 0u
#define PURPOSE_SEED  1u

void rng_block(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
    uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0;
        uint64_t b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double rng_uniform(uint64_t key, uint64_t output_index)
{
    uint32_t r[4];
    rng_block(key, output_index, PURPOSE_TOKEN, r);
    uint64_t bits = ((uint64_t)r[0] << 32 | r[1]) >> 11;
    return (double)bits * 0x1p-53;
}

uint64_t rng_derive_seed(uint64_t engine_seed, uint64_t request_id)
{
    uint32_t r[4];
    rng_block(engine_seed, request_id, PURPOSE_SEED, r);
    return (uint64_t)r[0] << 32 | r[1];
}
