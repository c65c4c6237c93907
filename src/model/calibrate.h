/* SPDX-License-Identifier: Apache-2.0 */
/* What goes into the products of a model while it reads a text: for every linear layer the mean
 * magnitude and the mean square of each input channel, and some rows as they are. Quantizing with a
 * calibration text (quant_scale.h) asks these which channels matter. */
#ifndef TERN_MODEL_CALIBRATE_H
#define TERN_MODEL_CALIBRATE_H

#include "model/model.h"

#define CALIBRATION_ROWS 256 /* kept of each product, at most, unless asked for otherwise */

/* Products of a layer that share an input. */
enum calibration_input { CALIBRATION_QKV, CALIBRATION_O, CALIBRATION_FF, CALIBRATION_DOWN };
#define CALIBRATION_INPUTS 4

struct calibration_point {
    int k;
    double *sum_abs, *sum_square; /* [k], over n_seen rows */
    int64_t n_seen;
    uint16_t *rows; /* [n_rows][ld] bf16 */
    int n_rows;
    size_t ld; /* elements: k padded as kernels like it */
};

struct calibration {
    int n_layers;
    int stride;                       /* every so many rows one is kept */
    int max_rows;                     /* that are kept */
    struct calibration_point *points; /* [n_layers][CALIBRATION_INPUTS], then the head's */
};

static inline const struct calibration_point *calibration_at(const struct calibration *c, int layer,
                                                             int input)
{
    return &c->points[layer * CALIBRATION_INPUTS + input]; /* (n_layers, 0): the head */
}

struct calibration_options {
    const struct model *model; /* loaded */
    const struct kernels *kernels;
    struct cpu_pool *pool;
    const int32_t *ids;
    int n_ids;
    int window;   /* tokens that see each other */
    int max_rows; /* that are kept; 0: CALIBRATION_ROWS */
    void *user;
    int (*stop)(void *user); /* asked between windows; 1: ERR_CANCELED */
};

/* Runs the model over the text, window by window. */
int calibration_run(struct calibration *c, const struct calibration_options *o, struct err *e);
void calibration_fini(struct calibration *c);

#endif
