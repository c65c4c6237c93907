/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2: operations on logits. */
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

void avx2_weigh(const float *x, int n, float temperature, float max, float *y, float *w,
                double *sum, float *top)
{
    lanes_weigh(x, n, temperature, max, y, w, sum, top);
}
