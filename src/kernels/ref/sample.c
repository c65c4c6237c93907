/* SPDX-License-Identifier: Apache-2.0 */
/* Reference of the operations on logits. */
#include "kernels/ref/math.h"
#include "kernels/ref/ref.h"

int ref_argmax(const float *x, int n)
{
    int best = -1;
    double top = 0;
    for (int i = 0; i < n; i++) {
        double v = ref_in(x[i]);
        if (v == v && (best < 0 || v > top)) {
            best = i;
            top = v;
        }
    }
    return best < 0 ? 0 : best;
}

void ref_logsumexp(const float *x, int n, float *max, double *sum)
{
    double lane[16] = {0};
    float top = -INFINITY;
    for (int i = 0; i < n; i++) {
        float v = (float)ref_in(x[i]);
        top = v > top ? v : top; /* passes over NaN; the sum shows it */
    }
    for (int i = 0; i < n; i++) {
        lane[i % 16] += (double)kernel_exp(ref_sub(x[i], top));
    }
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) {
            lane[i] += lane[i + half];
        }
    }
    *max = top;
    *sum = lane[0];
}
