/* SPDX-License-Identifier: Apache-2.0 */
/* From checkpoint names and layouts to packed matrices.
 *
 * A `checkpoint` is a set of open files in which every matrix of the model has been found and its
 * shape checked: Hugging Face names (split projections, [out, in]) or Paddle names (fused qkv_proj
 * and up_gate_proj, [in, out]). Loading packs every matrix once into the layout the kernels stream;
 * after that the files are not needed. */
#ifndef TERN_MODEL_WEIGHTS_H
#define TERN_MODEL_WEIGHTS_H

#include "model/model.h"
#include "model/safetensors.h"

/* A [rows, cols] matrix (y = W x) inside a tensor of a file. */
struct checkpoint_view {
    const struct safetensors *file;
    const struct safetensors_tensor *tensor;
    size_t offset_elements; /* of element (0, 0) */
    int rows, cols;
    size_t stride_row, stride_col; /* elements */
    enum dtype dtype;
};

struct checkpoint_layer {
    struct checkpoint_view input_norm, post_norm; /* [n, 1] */
    struct checkpoint_view q, k, v, o, gate, up, down;
};

struct checkpoint {
    struct safetensors **files;
    int n_files;
    int paddle;                                     /* names and layout */
    struct checkpoint_view embed, head, final_norm; /* head.tensor NULL: absent */
    struct checkpoint_layer *layers;
    int n_layers;
};

/* Opens the files of a directory (one file, or shards with an index), finds all tensors, decides
 * c->tied when the config is silent (tie_stated < 0). */
int checkpoint_open(struct checkpoint *ck, const char *dir, struct model_config *c, int tie_stated,
                    struct err *e);
void checkpoint_close(struct checkpoint *ck);
const void *checkpoint_data(const struct checkpoint_view *v);

struct weights_layer {
    const float *input_norm, *post_norm; /* [hidden] */
    struct weight qkv;                   /* rows: q heads, k heads, v heads */
    struct weight o;
    struct weight gate_up; /* tiles alternate gate, up; n = 2 * whole tiles of intermediate_size */
    struct weight down;
};

/* Immutable after weights_load. */
struct weights {
    struct weight embed; /* also the head when tied: stored once */
    struct weight head;
    const float *final_norm;
    struct weights_layer *layers;
    int n_layers;
    void *memory; /* one allocation for all packed matrices */
    size_t memory_bytes;
    float *norms;
    uint64_t n_params, bytes_per_token;
    char numerics_id[33];
};

/* Sizes and formats without any data; weights_load calls it, and so does the memory plan before
 * loading. */
int weights_plan(struct weights *w, const struct checkpoint *ck, const struct model_config *c,
                 enum act_type act, struct err *e);
/* Packs everything on the pool's workers. */
int weights_load(struct weights *w, const struct checkpoint *ck, const struct model_config *c,
                 enum act_type act, const struct kernels *k, struct cpu_pool *pool,
                 const struct log *log, struct err *e);
void weights_fini(struct weights *w);

#endif
