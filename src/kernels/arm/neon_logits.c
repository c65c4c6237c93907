/* SPDX-License-Identifier: Apache-2.0 */
/* NEON: operations on logits. */
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

void neon_weigh(const float *x, int n, float temperature, float max, float *y, float *w,
                double *sum, float *top)
{
    lanes_weigh(x, n, temperature, max, y, w, sum, top);
}
