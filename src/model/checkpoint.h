/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint: open files in which every matrix of the model has been found and its shape checked.
 * Three ways of naming: Hugging Face (split projections, [out, in]), Paddle (fused qkv_proj and
 * up_gate_proj, [in, out]) and GGUF. A matrix is plain (a view of a tensor of BF16, F16 or F32) or
 * quantized (model/quant.h). A tensor that is missing, and one that nobody asked for, are errors:
 * both mean that the file holds something else than its configuration says. */
#ifndef TERN_MODEL_CHECKPOINT_H
#define TERN_MODEL_CHECKPOINT_H

#include "base/arena.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/quant.h"
#include "model/safetensors.h"

/* A [rows, cols] matrix (y = W x). */
struct checkpoint_view {
    const struct tensor *tensor; /* NULL: absent, or quantized */
    size_t offset_elements;      /* of element (0, 0) */
    int rows, cols;
    size_t stride_row, stride_col; /* elements */
    enum dtype dtype;
    const struct quant_matrix *quant; /* NULL: plain */
};

struct checkpoint_layer {
    struct checkpoint_view input_norm, post_norm; /* [n, 1] */
    struct checkpoint_view q, k, v, o, gate, up, down;
};

enum checkpoint_names { NAMES_HUGGING_FACE, NAMES_PADDLE, NAMES_GGUF };

struct checkpoint {
    struct safetensors **files;
    int n_files;
    struct gguf *gguf; /* instead of files */
    enum checkpoint_names names;
    struct tensor *tensors; /* of the safetensors files that are read */
    struct arena arena;
    struct checkpoint_view embed, head, final_norm; /* head: absent or not, checkpoint_has */
    struct checkpoint_layer *layers;
    int n_layers;
};

/* Opens the files of a directory (one file, or shards with an index) or a GGUF file, finds all
 * tensors, decides c->tied when the config is silent (tie_stated < 0). */
int checkpoint_open(struct checkpoint *ck, const char *path, struct model_config *c,
                    const struct quant_config *q, int tie_stated, struct err *e);
void checkpoint_close(struct checkpoint *ck);
uint64_t checkpoint_file_bytes(const struct checkpoint *ck);
static inline int checkpoint_has(const struct checkpoint_view *v)
{
    return v->tensor != NULL || v->quant != NULL;
}
const void *checkpoint_data(const struct checkpoint_view *v); /* of a plain one */
/* Tells the kernel that its tensors are about to be read, or that their pages are done with. */
void checkpoint_will_need(const struct checkpoint_view *v);
void checkpoint_drop(const struct checkpoint_view *v);

#endif
