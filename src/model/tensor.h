/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor of a weight file, whatever the file: safetensors (model/safetensors.h) and GGUF
 * (model/gguf.h) readers give it out, names are looked up and matrices decoded from it. Data is a
 * piece of a read-only mapping that its reader owns. */
#ifndef TERN_MODEL_TENSOR_H
#define TERN_MODEL_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#define TENSOR_MAX_DIMS 8

/* X(name, elements in a block, bytes of a block). Plain types have blocks of one element; the last
 * ones are GGUF's, whose blocks lie along the last dimension. */
#define TENSOR_TYPES(X)                                                                            \
    X(BOOL, 1, 1)                                                                                  \
    X(U8, 1, 1)                                                                                    \
    X(I8, 1, 1)                                                                                    \
    X(F8_E4M3, 1, 1)                                                                               \
    X(F8_E5M2, 1, 1)                                                                               \
    X(U16, 1, 2)                                                                                   \
    X(I16, 1, 2)                                                                                   \
    X(F16, 1, 2)                                                                                   \
    X(BF16, 1, 2)                                                                                  \
    X(U32, 1, 4)                                                                                   \
    X(I32, 1, 4)                                                                                   \
    X(F32, 1, 4)                                                                                   \
    X(U64, 1, 8)                                                                                   \
    X(I64, 1, 8)                                                                                   \
    X(F64, 1, 8)                                                                                   \
    X(Q8_0, 32, 34)                                                                                \
    X(Q4_0, 32, 18)                                                                                \
    X(Q4_K, 256, 144)                                                                              \
    X(Q5_K, 256, 176)                                                                              \
    X(Q6_K, 256, 210)

enum tensor_type {
#define TENSOR_ENUM(name, elements, bytes) TENSOR_##name,
    TENSOR_TYPES(TENSOR_ENUM)
#undef TENSOR_ENUM
};

struct tensor {
    const char *file, *name; /* of the reader */
    enum tensor_type type;
    int n_dims;
    int64_t shape[TENSOR_MAX_DIMS]; /* slowest dimension first */
    const void *data;
    uint64_t n_bytes;
};

const char *tensor_type_name(enum tensor_type t);
int tensor_block_elements(enum tensor_type t);
int tensor_block_bytes(enum tensor_type t);
/* "[256, 128]" */
const char *tensor_shape_text(char *out, size_t n_bytes, const struct tensor *t);
/* Value i, counted along memory, of a tensor that tensor_is_float: F32, F16, BF16 or U16 (bf16 by
 * another label). Data needs no alignment. */
float tensor_float(const struct tensor *t, size_t i);
int tensor_is_float(const struct tensor *t);
/* Tells the kernel that the tensor is about to be read, or that its pages are done with. */
void tensor_will_need(const struct tensor *t);
void tensor_drop(const struct tensor *t);

#endif
