/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 hashes: 64 and 128 bit, seeded. For checks of downloaded files use SHA-256 (OpenSSL). */
#ifndef TERN_BASE_HASH_H
#define TERN_BASE_HASH_H
#include <stddef.h>
#include <stdint.h>
struct hash128 {
    uint64_t lo, hi;
};
uint64_t hash64(const void *data, size_t n_bytes, uint64_t seed);
struct hash128 hash128(const void *data, size_t n_bytes, uint64_t seed);
uint64_t hash_random_seed(void); /* from getrandom(2) */
#endif
