/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 behind our own two names. The values are part of on-disk and wire formats (prefix blocks),
 * and XXH3 is frozen since xxHash 0.8, so they stay the same on every machine. */
#include "base/hash.h"

#include "base/clock.h"
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

uint64_t hash64(const void *data, size_t n_bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, n_bytes, seed);
}

struct hash128 hash128(const void *data, size_t n_bytes, uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(data, n_bytes, seed);
    return (struct hash128){.lo = h.low64, .hi = h.high64};
}

uint64_t hash_random_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) == (ssize_t)sizeof seed) {
        return seed;
    }
    /* Only a sandbox that forbids getrandom gets here: still different from run to run. */
    uint64_t mix[3] = {clock_now_ns(), (uint64_t)getpid(), (uint64_t)(uintptr_t)&seed};
    return hash64(mix, sizeof mix, (uint64_t)clock_unix_s());
}
