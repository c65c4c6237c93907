/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2: argmax and log-sum-exp. */
#include "kernels/x86/avx2_v16.h"

#include "kernels/lanes/logits.h"
#include "kernels/x86/x86.h"

int avx2_argmax(const float *x, int n)
{
    return lanes_argmax(x, n);
}

void avx2_logsumexp(const float *x, int n, float *max, double *sum)
{
    lanes_logsumexp(x, n, max, sum);
}
