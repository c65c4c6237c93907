/* SPDX-License-Identifier: Apache-2.0 */
/* From a checkpoint (model/checkpoint.h) to packed matrices. Loading packs every matrix once into
 * the layout the kernels stream; after that the files are not needed. What is stored quantized is
 * packed as it is, code by code: nothing is expanded. What is multiplied with what is decided here,
 * once. */
#ifndef TERN_MODEL_WEIGHTS_H
#define TERN_MODEL_WEIGHTS_H

#include "base/hash.h"
#include "model/checkpoint.h"

struct buf;

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
    int n_layers, tied;
    void *memory; /* one allocation for all packed matrices, or (borrowed) somebody's mapping */
    size_t memory_bytes;
    int borrowed;
    struct hash128 data_hash; /* of the packed bytes */
    uint8_t *asked; /* [4 n_layers + 2] enum quant_act: the inputs the files ask for, as weights_at
                       counts matrices */
    float *norms;
    int32_t *order;        /* act-order: [cols] of every matrix that has one, one after the other */
    const int32_t **tiles; /* what weight.order points to: per tile */
    size_t n_order, n_tiles;
    uint64_t n_params, bytes_per_token;
    char numerics_id[33];
};

/* What --dtype, --quantization and its kin ask for. */
struct weights_options {
    enum act_type act;
    enum kv_format kv;        /* only named in numerics_id */
    enum quant_method method; /* QUANT_WINT8, _INT4 and _BLOCK_FP8 quantize plain matrices */
    int head_bits;            /* of a plain embedding and head: 8 and 4 quantize them; else 0 */
    enum model_inputs inputs;
    int int4_as_asked;
};

/* Sizes and formats without any data; weights_load calls it, and so does the memory plan before
 * loading. */
int weights_plan(struct weights *w, const struct checkpoint *ck, const struct model_config *c,
                 const struct weights_options *o, struct err *e);
/* Packs everything on the pool's workers. */
int weights_load(struct weights *w, const struct checkpoint *ck, const struct model_config *c,
                 const struct weights_options *o, const struct kernels *k, struct cpu_pool *pool,
                 const struct log *log, struct err *e);
void weights_fini(struct weights *w);
/* For the packed file (model/pack.h), instead of weights_plan and weights_load: w with room for its
 * matrices; matrix i of qkv, o, gate_up, down of each layer, embedding, head; what a quantized one
 * is multiplied with; and tiles that are there already (norms must be set). */
int weights_alloc(struct weights *w, int n_layers, int tied, struct err *e);
struct weight *weights_at(const struct weights *w, int i);
enum input_format weights_input_for(const struct weights_options *o, const struct weight *w,
                                    enum quant_act asked, int ordered);
int weights_adopt(struct weights *w, void *memory, const struct model_config *c,
                  const struct weights_options *o, const struct kernels *k, struct cpu_pool *pool,
                  struct err *e);
/* What quantized matrices are multiplied with; INPUT_ACT when there are none. */
enum input_format weights_input(const struct weights *w);
/* "int4 (groups of 32, zero points, f16 scales) x int8": one matrix in words. */
void weight_describe(const struct weight *w, enum act_type act, struct buf *out);

#endif
