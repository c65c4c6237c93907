/* SPDX-License-Identifier: Apache-2.0 */
/* Reader of one safetensors file, memory-mapped read-only.
 *
 *   bytes 0..7        u64 little endian: length n of the header
 *   bytes 8..8+n-1    JSON object: name -> {"dtype", "shape", "data_offsets": [begin, end)}, and
 * "__metadata__" bytes 8+n..       tensor data; offsets count from here
 *
 * A file that opens is sound: every tensor lies inside the file, its span is shape x element size,
 * spans neither overlap nor leave holes, names are unique. Everything else is refused with one line
 * naming file and tensor. */
#ifndef TERN_MODEL_SAFETENSORS_H
#define TERN_MODEL_SAFETENSORS_H

#include "base/err.h"
#include <stdint.h>

#define SAFETENSORS_MAX_HEADER_BYTES (100u << 20)
#define SAFETENSORS_MAX_DIMS         8

/* X(name in the file, bytes per element) */
#define SAFETENSORS_DTYPES(X)                                                                      \
    X(BOOL, 1)                                                                                     \
    X(U8, 1)                                                                                       \
    X(I8, 1)                                                                                       \
    X(F8_E4M3, 1)                                                                                  \
    X(F8_E5M2, 1)                                                                                  \
    X(U16, 2)                                                                                      \
    X(I16, 2)                                                                                      \
    X(F16, 2)                                                                                      \
    X(BF16, 2)                                                                                     \
    X(U32, 4)                                                                                      \
    X(I32, 4)                                                                                      \
    X(F32, 4)                                                                                      \
    X(U64, 8)                                                                                      \
    X(I64, 8)                                                                                      \
    X(F64, 8)

enum safetensors_dtype {
#define SAFETENSORS_ENUM(name, bytes) SAFETENSORS_##name,
    SAFETENSORS_DTYPES(SAFETENSORS_ENUM)
#undef SAFETENSORS_ENUM
};

struct safetensors_tensor {
    const char *name;
    enum safetensors_dtype dtype;
    int n_dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    uint64_t begin, end; /* bytes from the start of the data */
};

struct safetensors;
int safetensors_open(struct safetensors **out, const char *path, struct err *e);
void safetensors_close(struct safetensors *st);
const char *safetensors_path(const struct safetensors *st);
uint64_t safetensors_file_bytes(const struct safetensors *st);
size_t safetensors_count(const struct safetensors *st);
const struct safetensors_tensor *safetensors_at(const struct safetensors *st,
                                                size_t i); /* in file order */
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name);
const void *safetensors_data(const struct safetensors *st, const struct safetensors_tensor *t);

const char *safetensors_dtype_name(enum safetensors_dtype d);
size_t safetensors_dtype_size(enum safetensors_dtype d);
/* 1 when the file is a Git-LFS pointer instead of the content it stands for. */
int safetensors_is_lfs_pointer(const char *path);

#endif
