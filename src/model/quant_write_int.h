/* SPDX-License-Identifier: Apache-2.0 */
/* What the configuration (quant_write_config.c) and the tensors (quant_write.c) of a written
 * checkpoint must agree on: names of the linear layers, which stay as they are, and the format. */
#ifndef TERN_MODEL_QUANT_WRITE_INT_H
#define TERN_MODEL_QUANT_WRITE_INT_H

#include "model/checkpoint.h"
#include "model/quant_write.h"

#define QUANT_WRITE_LINEARS 7 /* of a layer: q k v o gate up down */
#define QUANT_WRITE_NAME    96

void quant_write_name(char out[QUANT_WRITE_NAME], int layer, int which);
const struct checkpoint_view *quant_write_linear(const struct checkpoint_layer *l, int which);
int quant_write_ignores(const struct quant_write_options *o, const char *name);
/* What becomes of one matrix. */
struct quant_write_how {
    enum quant_write_scheme scheme;
    int group; /* of four bits */
    /* NULL, or: what columns are multiplied with, what rows are divided by (before rounding), and
     * how much a column's squared error counts */
    const float *columns, *rows, *importance;
    const struct quant_two_feedback *feedback; /* of the 2-bit code; NULL: none */
};
struct quant_write_how quant_write_linear_how(const struct quant_write_options *o);
/* Of embedding and head, when o->head_bits says that they are quantized. */
struct quant_write_how quant_write_head_how(const struct quant_write_options *o);
/* What its codes are: format, k, group, zero points, type of the scales; n is one tile, data
 * unset. */
struct weight quant_write_format(const struct model *m, struct quant_write_how how,
                                 const struct checkpoint_view *v);

#endif
