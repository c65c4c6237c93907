/* SPDX-License-Identifier: Apache-2.0 */
/* quantization_config of config.json: which linear layers are stored quantized, and how.
 *
 *   quant_method         written by                 weights
 *   awq                  AutoAWQ, llm-awq (gemm)    4 bits, groups along the inputs, zero points
 *   gptq                 AutoGPTQ, GPTQModel        4 or 8 bits, groups, zero points, act-order
 *   compressed-tensors   llm-compressor             4 or 8 bits packed, int8, FP8
 *                        tern quantize              these, and the 2-bit code
 *   fp8                  HF, vLLM, DeepSeek-style   FP8, blocks of 128 x 128 or one scale
 *   (quantization)       FastDeploy                 bf16 files that are quantized at load
 *
 * A key that isn't understood, or a value that asks for something else than what is built, is
 * refused with one line: file, key, expected, found. Nothing is guessed from tensors: the file and
 * its configuration must agree (model/quant.h checks the tensors). */
#ifndef TERN_MODEL_QUANT_CONFIG_H
#define TERN_MODEL_QUANT_CONFIG_H

#include "base/arena.h"
#include "base/err.h"

struct json;

enum quant_method {
    QUANT_NONE,
    QUANT_AWQ,
    QUANT_GPTQ,
    QUANT_COMPRESSED,
    QUANT_FP8,
    QUANT_WINT8,     /* FastDeploy, quantized at load: int8 per output channel */
    QUANT_BLOCK_FP8, /* FastDeploy, quantized at load: E4M3 in 128 x 128 blocks */
    QUANT_INT4,      /* quantized at load: 4 bits, groups of 64 inputs, zero points */
    QUANT_INT4_128, /* the same in groups of 128, as AWQ files usually have: "awq" of a plain file */
    QUANT_GGUF,     /* the file's own types */
    QUANT_METHOD_COUNT
};

/* How a matrix lies in the file. */
enum quant_layout {
    QUANT_PLAIN,     /* weight */
    QUANT_AWQ_GEMM,  /* qweight, qzeros, scales: nibbles along the outputs, interleaved */
    QUANT_GPTQ_ROWS, /* qweight, qzeros, scales, g_idx: nibbles along the inputs */
    QUANT_CT_PACKED, /* weight_packed, weight_scale, weight_shape, weight_zero_point, weight_g_idx
                      */
    QUANT_CT_INT8,   /* weight I8, weight_scale */
    QUANT_CT_FP8,    /* weight F8_E4M3 or F8_E5M2, weight_scale of a row or of the tensor */
    QUANT_FP8_BLOCK, /* weight F8_E4M3 or F8_E5M2, weight_scale_inv of 128 x 128 blocks */
    QUANT_WINT2,     /* quant_weight, weight_scale, code_scale, code_zp, super_scales: the 2-bit
                        convolutional code of FastDeploy */
    QUANT_BLOCKS,    /* GGUF: scales inside the blocks */
};

/* What the file wants the products' other operand to be. */
enum quant_act { QUANT_ACT_16, QUANT_ACT_INT8, QUANT_ACT_FP8, QUANT_ACT_E5M2 };

struct quant_scheme {
    enum quant_layout layout;
    int bits;        /* of QUANT_GPTQ_ROWS and QUANT_CT_PACKED: 4 or 8 */
    int group;       /* inputs that share a scale; 0: all of a row */
    int per_tensor;  /* one scale for the matrix (QUANT_CT_FP8) */
    int symmetric;   /* no zero points in the file */
    int ordered;     /* g_idx gives every input its group */
    int zero_offset; /* added to stored zero points: 1 in GPTQ v1 */
    enum quant_act act;
    int fixed; /* their scale is in the file: input_scale */
};

#define QUANT_MAX_SCHEMES  16
#define QUANT_MAX_PATTERNS 8192
#define QUANT_EMBEDDING    "model.embed_tokens"

enum quant_match { QUANT_MATCH_SUBSTRING, QUANT_MATCH_PREFIX, QUANT_MATCH_EXACT };

struct quant_patterns {
    const char **text; /* "re:…" is a regular expression that must match from the start */
    int n;
};

struct quant_config {
    enum quant_method method;
    struct quant_scheme schemes[QUANT_MAX_SCHEMES];
    struct quant_patterns targets[QUANT_MAX_SCHEMES]; /* n 0: every linear layer */
    int n_schemes;
    struct quant_patterns ignored;
    enum quant_match match;
    int head; /* lm_head is a linear layer like others */
    struct arena arena;
};

/* Reads the object (NULL or JSON null: not quantized). path names the file in errors; key is the
 * object's name there. */
int quant_config_read(struct quant_config *q, const struct json *v, const char *path,
                      const char *key, struct err *e);
void quant_config_fini(struct quant_config *q);
/* The scheme of a linear layer such as "model.layers.0.self_attn.q_proj" or "lm_head", or of
 * QUANT_EMBEDDING, which only a group that names it or the class Embedding is meant for; NULL: its
 * weight is stored as BF16, F16 or F32. */
const struct quant_scheme *quant_config_for(const struct quant_config *q, const char *layer);

const char *quant_method_name(enum quant_method m); /* as --quantization spells it */
/* --quantization against what the file says. `asked`: NULL, "none" and "auto" take the file's. On a
 * plain file some methods quantize at load: q->method says so afterwards. Whether a GGUF file is
 * plain is seen later, matrix by matrix (weights_plan). */
int quant_config_select(struct quant_config *q, const char *asked, const char *path, struct err *e);

#endif
