/* SPDX-License-Identifier: Apache-2.0 */
/* Reference of the operations on logits. */
#include "kernels/ref/math.h"
#include "kernels/ref/ref.h"

static double fold(double lane[16]) /* 8, 4, 2, 1: the lanes are spoilt */
{
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) {
            lane[i] += lane[i + half];
        }
    }
    return lane[0];
}

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

void ref_weigh(const float *x, int n, float temperature, float max, float *y, float *w, double *sum,
               float *top)
{
    for (int from = 0; from < n; from += WEIGH_CHUNK) {
        double lane[16] = {0};
        float best = -INFINITY;
        for (int i = from; i < n && i < from + WEIGH_CHUNK; i++) {
            float v = ref_div(x[i], temperature), e = kernel_weight(ref_sub(v, max));
            best = v > best ? v : best;
            lane[i % 16] += (double)e;
            if (y != NULL) {
                y[i] = v;
                w[i] = e;
            }
        }
        *sum++ = fold(lane);
        *top++ = best;
    }
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
    *max = top;
    *sum = fold(lane);
}
