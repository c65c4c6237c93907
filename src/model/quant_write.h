/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a checkpoint with quantized linear layers (`tern quantize`): a 16-bit or 32-bit model in
 * any layout becomes one model.safetensors with Hugging Face names and a config.json whose
 * quantization_config says what is in it, in the published formats that vLLM and this program read
 * (model/quant.h has their tables).
 *
 *   scheme                 quant_method         what is written
 *   QUANT_WRITE_INT8       compressed-tensors   int-quantized: a bf16 scale a row; 8-bit inputs
 *   QUANT_WRITE_INT4       compressed-tensors   pack-quantized: groups of inputs, symmetric
 *   QUANT_WRITE_AWQ        awq                  version gemm: groups of inputs, zero points
 *   QUANT_WRITE_FP8        compressed-tensors   float-quantized: E4M3, an fp32 scale a row; fp8
 *                                               inputs
 *   QUANT_WRITE_FP8_BLOCK  fp8                  E4M3, an fp32 scale for 128 x 128
 *   QUANT_WRITE_TWO        compressed-tensors   wint2, a format of FastDeploy's tensors and our
 *                                               name: the 2-bit convolutional code
 *
 * Norms keep their bytes, and so do embedding and head unless head_bits says otherwise: then they
 * are a group of their own in quantization_config, which names model.embed_tokens (and lm_head,
 * when it isn't the same matrix). int8 and fp8 are rounded as weight_quantize does, so
 * that int8 and fp8 blocks give the same bits as quantizing while loading. Four bits: each group
 * takes, of a number of scales, the one whose squared error is smallest. */
#ifndef TERN_MODEL_QUANT_WRITE_H
#define TERN_MODEL_QUANT_WRITE_H

#include "model/model.h"

enum quant_write_scheme {
    QUANT_WRITE_INT8,
    QUANT_WRITE_INT4,
    QUANT_WRITE_AWQ,
    QUANT_WRITE_FP8,
    QUANT_WRITE_FP8_BLOCK,
    QUANT_WRITE_TWO
};

/* One linear layer, when it is done. */
struct quant_write_matrix {
    const char *name; /* model.layers.0.self_attn.q_proj */
    int rows, cols;
    int kept;                    /* as it was */
    double square_error, square; /* sums over its elements; the error relative to the rms is the
                                    root of their ratio */
};

struct quant_write_options {
    enum quant_write_scheme scheme;
    int group;  /* of four bits: 32, 64 or 128 */
    int search; /* four bits: look for the best scale; else the one that spans the range */
    /* Activations of a text; NULL: weights alone. Four bits: to try scales of channels with, by
     * these kernels (quant_scale.h); the 2-bit code: for error feedback (quant_two.h). */
    const struct calibration *calibration;
    const struct kernels *kernels;
    int head_bits; /* of embedding and head: 0 as they are, 8, or 4 in groups of 32; the schemes of
                      compressed-tensors only */
    /* Layers that stay as they are: whole names, their last parts ("o_proj", "self_attn.o_proj"),
     * or their first ones ("model.layers.0"). */
    const char *const *ignored;
    int n_ignored;
    void *user;
    void (*done)(void *user, const struct quant_write_matrix *m);
    int (*stop)(void *user); /* asked between matrices; 1: ERR_CANCELED */
};

struct buf;
/* Refuses what cannot be written: a model that is quantized already, groups that don't divide a
 * row, an ignored name that names nothing or splits matrices that are computed together. */
int quant_write_check(const struct model *m, const struct quant_write_options *o, struct err *e);
/* The text of config.json; o NULL: without quantization_config. */
int quant_write_config(const struct model *m, const struct quant_write_options *o, struct buf *out,
                       struct err *e);
/* Writes the file at `path`, which must not exist; *n_bytes is its size. Before model_load. */
int quant_write_weights(const struct model *m, const struct quant_write_options *o,
                        const char *path, struct cpu_pool *pool, uint64_t *n_bytes, struct err *e);

#endif
