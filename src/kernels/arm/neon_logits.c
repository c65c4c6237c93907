/* SPDX-License-Identifier: Apache-2.0 */
/* NEON: argmax and log-sum-exp. */
#include "kernels/arm/neon_v16.h"

#include "kernels/arm/neon.h"
#include "kernels/lanes/logits.h"

int neon_argmax(const float *x, int n)
{
    return lanes_argmax(x, n);
}

void neon_logsumexp(const float *x, int n, float *max, double *sum)
{
    lanes_logsumexp(x, n, max, sum);
}
