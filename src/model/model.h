/* SPDX-License-Identifier: Apache-2.0 */
/* A model on disk and in memory.
 *
 * model_open does everything that headers, sizes, config and tokenizer can show (so: before a port
 * is bound), and maps the files. model_load packs the weights (in parallel on the pool) and unmaps
 * them. Both report one line per fault: file, tensor or field, expected and found. A loaded model
 * is immutable and shared between threads. */
#ifndef TERN_MODEL_MODEL_H
#define TERN_MODEL_MODEL_H

#include "base/err.h"
#include "cpu/pool.h"
#include "kernels/kernels.h"
#include <stdint.h>

struct log;

/* config.json, whatever its spelling. Ints are > 0 and bounded after parsing. */
struct model_config {
    char architecture[64]; /* as in the file */
    int vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim;
    int max_position_embeddings;
    float rms_norm_eps;
    double rope_theta;
    double compression_ratio; /* positions are divided by it; 1 in all releases */
    int tied;                 /* decided from the checkpoint when the file is silent */
    int bos_id, eos_ids[8], n_eos_ids, pad_id; /* eos from config.json */
    enum dtype stored;                         /* torch_dtype / dtype */
};

/* generation_config.json; a field is set only when its has_ flag is. */
struct model_generation_config {
    int has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty,
        has_max_new_tokens;
    double temperature, top_p, min_p, repetition_penalty;
    int top_k, max_new_tokens;
    int eos_ids[8], n_eos_ids;
};

/* What quantized weights are multiplied with. */
enum model_inputs {
    MODEL_INPUTS_AUTO, /* what the file asks for; int4, int8 and GGUF: int8; float32: as INPUTS_16
                        */
    MODEL_INPUTS_16,   /* activations as they are */
    MODEL_INPUTS_8,    /* 8 bits wherever a kernel takes them */
    MODEL_INPUTS_E5M2  /* the same, fp8 weights by E5M2 */
};

struct model_options {
    const char *path;  /* model directory, or a GGUF file */
    enum act_type act; /* --dtype bfloat16 | float32 */
    enum kv_format kv; /* --kv-cache-dtype */
    const struct log *log;
    const char *quantization; /* --quantization; NULL: what the file holds */
    enum model_inputs inputs;
    int head_bits; /* --quantization-head: 8 or 4 quantize a 16-bit embedding and head; else 0 */
    int int4_as_asked; /* AUTO: 4-bit weights too take what the file asks for */
};

struct model;
int model_open(struct model **out, const struct model_options *o, struct err *e);
int model_load(struct model *m, const struct kernels *kernels, struct cpu_pool *pool,
               struct err *e);
void model_close(struct model *m);

const struct model_config *model_config(const struct model *m);
const struct model_generation_config *model_generation(const struct model *m);
const char *model_path(const struct model *m);
enum act_type model_act(const struct model *m);
const char *model_kv_name(const struct model *m); /* as --kv-cache-dtype; float32: float32 */
struct kv_layout;
void model_kv_layout(const struct model *m, struct kv_layout *l);
uint64_t model_weight_bytes(const struct model *m);           /* resident after model_load */
uint64_t model_weight_bytes_per_token(const struct model *m); /* read for one decoded token */
double model_share_of_16_bit(
    const struct model *m); /* model_weight_bytes in matrices of 16 bits a weight */
uint64_t model_file_bytes(const struct model *m);
uint64_t model_n_params(const struct model *m);
const char *model_layout_name(const struct model *m);  /* "Hugging Face", "Paddle" or "GGUF" */
const char *model_quantization(const struct model *m); /* "none", "awq", … */
const char *model_numerics_id(const struct model *m);  /* 32 hex digits; "" before model_load */
struct buf;
void model_describe_formats(const struct model *m,
                            struct buf *out); /* "int4 (…) x int8 in 8, bf16 x bf16 in 1" */
void model_describe(const struct model *m, struct buf *out,
                    int json); /* what `tern info` prints about it */

#endif
