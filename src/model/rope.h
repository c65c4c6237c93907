/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding: cos and sin of one position, for pairs (2i, 2i+1) of a head.
 *
 *   inv_freq[i] = (float)(theta ^ (-2i / head_dim))        angle = (float)(pos / compression) *
 * inv_freq[i], in fp32
 *
 * The angle is a float product because the reference implementations form it so; cos and sin of
 * that float are taken in double with code of our own, so that the table is the same on every
 * machine and C library. */
#ifndef TERN_MODEL_ROPE_H
#define TERN_MODEL_ROPE_H

#include "kernels/kernels.h"
#include <stdint.h>

struct rope {
    int n_pairs; /* head_dim / 2 */
    double compression;
    float inv_freq[MAX_HEAD_DIM / 2];
};

void rope_init(struct rope *r, int head_dim, double theta, double compression);
/* out[n_pairs][2] = cos, sin of a position, 0 <= pos <= 2^24. */
void rope_row(const struct rope *r, int32_t pos, float *out);

#endif
