/* SPDX-License-Identifier: Apache-2.0 */
/* Making the 2-bit convolutional code (kernels.h: C2) of a plain matrix.
 *
 * A byte stands for four weights: windows of a 15-bit number that lies on the row's grid. With the
 * grid and the scale of 64 inputs given, four weights have 256 codewords, and the best is found by
 * looking at all of them; a longer search through the code has nothing to find, because no window
 * reaches over four weights. What is left to choose is the grid, which is an irregular set of 256
 * points in four dimensions: a list of good ones for a normal distribution, of which each row takes
 * the one that fits its weights best, and the scales, which are tried.
 *
 * Error feedback: with rows of activations, an error made in four columns is made good in the
 * columns that follow. H = X'X + damping, H^-1 = U'U with U upper triangular; errors e of columns b
 * solve d = e U[b,b], the codeword with the smallest |e| is taken, and e U[b,…] is taken off the
 * columns to come. */
#ifndef TERN_MODEL_QUANT_TWO_H
#define TERN_MODEL_QUANT_TWO_H

#include "kernels/kernels.h"

#define QUANT_TWO_GROUP 64 /* inputs that share a scale */

struct quant_two_feedback {
    int k;
    float *upper; /* [k][k] */
};

/* n_rows activations of k inputs, bf16, ld apart. 0, or ERR_NOMEM. k is a multiple of 4. */
int quant_two_feedback_init(struct quant_two_feedback *f, int k, const uint16_t *rows, int n_rows,
                            size_t ld);
void quant_two_feedback_fini(struct quant_two_feedback *f);

/* A matrix in the layout of the file: [inputs][outputs] (quant.h: QUANT_WINT2). */
struct quant_two {
    int rows, cols;        /* outputs; inputs, a multiple of 8 */
    uint8_t *codes;        /* [cols / 4][rows] */
    uint8_t *subs;         /* [ceil(cols / 128)][rows]; zeroed before */
    float *steps, *starts; /* [rows] */
    float *supers;         /* [rows], numbers of bf16 */
};

/* Encodes rows row0 .. row0+n (n <= 128) from x [n][cols]. feedback may be NULL. sums[0] and [1]
 * become the squared error and the squares. Strips may be made at the same time by several threads
 * when row0 is a multiple of 128. 0, or ERR_NOMEM. */
int quant_two_strip(const struct quant_two *to, const float *x, int row0, int n,
                    const struct quant_two_feedback *feedback, double sums[2]);

#endif
