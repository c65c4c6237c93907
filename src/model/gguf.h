/* SPDX-License-Identifier: Apache-2.0 */
/* Reader of one GGUF file (versions 2 and 3, little endian), memory-mapped read-only.
 *
 *   "GGUF", u32 version, u64 tensors, u64 fields
 *   field:   string key, u32 type, value         string: u64 bytes, UTF-8; array: u32 type, u64 n,
 * items tensor:  string name, u32 dimensions, u64 sizes (fastest first), u32 type, u64 offset data,
 * from the next multiple of general.alignment (32) on; offsets count from there
 *
 * A file that opens is sound: every string, array and tensor lies inside the file, names are
 * unique, tensors don't overlap, rows are whole blocks of a type that is known. Everything else is
 * refused with one line naming file and field or tensor. */
#ifndef TERN_MODEL_GGUF_H
#define TERN_MODEL_GGUF_H

#include "base/err.h"
#include "model/tensor.h"

#define GGUF_MAX_FIELDS       (1u << 16)
#define GGUF_MAX_TENSORS      (1u << 18)
#define GGUF_MAX_KEY_BYTES    65535
#define GGUF_MAX_NAME_BYTES   256
#define GGUF_MAX_STRING_BYTES (64u << 20)

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};

struct gguf_value {
    enum gguf_type type; /* of the items, when it is an array */
    int is_array;
    uint64_t n;          /* items; 1 */
    const uint8_t *data; /* as in the file */
};

struct gguf;
int gguf_open(struct gguf **out, const char *path, struct err *e);
/* Of bytes that the caller keeps; name is for errors. */
int gguf_parse(struct gguf **out, const void *data, size_t n_bytes, const char *name,
               struct err *e);
void gguf_close(struct gguf *g);
/* 1 when the path is a regular file that begins as GGUF does. */
int gguf_is_file(const char *path);

const char *gguf_path(const struct gguf *g);
uint64_t gguf_file_bytes(const struct gguf *g);
size_t gguf_n_tensors(const struct gguf *g);
const struct tensor *gguf_tensor(const struct gguf *g, size_t i);         /* in file order */
const struct gguf_value *gguf_get(const struct gguf *g, const char *key); /* NULL: absent */

/* Values of single fields. 1 found, 0 absent, or an error code: there, but of another type. */
int gguf_int(const struct gguf *g, const char *key, int64_t *out, struct err *e);
int gguf_float(const struct gguf *g, const char *key, double *out, struct err *e);
int gguf_bool(const struct gguf *g, const char *key, int *out, struct err *e);
int gguf_string(const struct gguf *g, const char *key, const char **out, size_t *n_bytes,
                struct err *e);
/* Items of an array: of a number or bool as double, and strings one after the other (start with *at
 * = v->data, call at most v->n times). */
double gguf_item(const struct gguf_value *v, uint64_t i);
const char *gguf_next_string(const uint8_t **at, size_t *n_bytes);

#endif
