/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers without state: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3"). A draw is a function of (key, counter), so a token depends on its request's seed and
 * on its place in the output, never on the batch, on the step, on neighbours or on how often the
 * sequence was preempted.
 *
 * Keys: sample i of a request with seed s has key s + i (wrapping), so sample i equals the only
 * sample of a request with seed s + i. Counter: (output index, purpose). A request without a seed
 * gets rng_derive_seed(engine seed, request id): the same order of requests gives the same texts
 * again. */
#ifndef TERN_ENGINE_RNG_H
#define TERN_ENGINE_RNG_H

#include <stdint.h>

void rng_block(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4]);
double rng_uniform(uint64_t key, uint64_t output_index); /* [0, 1), multiples of 2^-53 */
uint64_t rng_derive_seed(uint64_t engine_seed, uint64_t request_id);

#endif
