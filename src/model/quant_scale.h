/* SPDX-License-Identifier: Apache-2.0 */
/* Scales of input channels, found with a calibration text: activation-aware quantization (AWQ). An
 * input channel j that carries large activations is multiplied by s[j] in the weights, where its
 * rounding errors then count less, and divided by s[j] in what makes it:
 *
 *   product   what makes its input         divided by s
 *   q, k, v   input_layernorm              the norm's weights
 *   o         attention over v             rows of v (query heads that share a KV head share s)
 *   gate, up  post_attention_layernorm     the norm's weights
 *   down      silu(gate) * up              rows of up
 *
 * so the model is the same before rounding, and the written file an ordinary one. s[j] =
 * mean|x[j]|^a, brought to a geometric middle of 1; a is the one of a grid whose rounded weights
 * give the smallest squared error of the outputs on rows of the text. */
#ifndef TERN_MODEL_QUANT_SCALE_H
#define TERN_MODEL_QUANT_SCALE_H

#include "model/calibrate.h"
#include "model/quant_write_int.h"

struct quant_scale_layer {
    float *columns[CALIBRATION_INPUTS]; /* [k] of each product; NULL: all 1 */
    float *norm[CALIBRATION_INPUTS];    /* new norm weights, of QKV and FF; NULL: as they were */
    float *v_rows;                      /* [kv rows] divisors of v; NULL: all 1 */
};

struct quant_scales {
    int n_layers;
    struct quant_scale_layer *layers;
};

/* For the linear layers of m (whose files are open) that o quantizes to four bits. */
int quant_scale_search(struct quant_scales *s, const struct model *m,
                       const struct quant_write_options *o, struct cpu_pool *pool, struct err *e);
void quant_scale_fini(struct quant_scales *s);

#endif
