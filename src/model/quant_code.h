/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of making codes, shared by the writer (quant_write.c) and the search for scales of
 * channels (quant_scale.c). */
#ifndef TERN_MODEL_QUANT_CODE_H
#define TERN_MODEL_QUANT_CODE_H

#include "model/checkpoint.h"

#define QUANT_CODE_GROUP 128 /* the largest group of four bits */

/* Elements of rows row0 .. row0+n of a plain matrix as floats [n][cols]. */
void quant_code_read(float *x, const struct checkpoint_view *v, int row0, int n);
/* A group of n (at most QUANT_CODE_GROUP) inputs to four bits as *w has them: symmetric or with a
 * zero point, scale rounded to its type. Without `search` the scale spans the range; a search takes
 * the one with the smallest squared error, each input's square counted importance[i] times (NULL:
 * once). */
void quant_code_group4(const struct weight *w, int search, const float *importance, uint8_t *codes,
                       float *scale, uint8_t *zero, const float *x, int n);
float quant_code_value(const struct weight *w, uint8_t code, float scale, uint8_t zero);
/* As `type` stores it. */
float quant_code_round(enum dtype type, float x);

#endif
