/* SPDX-License-Identifier: Apache-2.0 */
#include "model/tensor.h"

#include "kernels/kernels.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct {
    const char *name;
    int elements, bytes;
} types[] = {
#define ROW(name, elements, bytes) {#name, elements, bytes},
    TENSOR_TYPES(ROW)
#undef ROW
};

const char *tensor_type_name(enum tensor_type t)
{
    return types[t].name;
}

int tensor_block_elements(enum tensor_type t)
{
    return types[t].elements;
}

int tensor_block_bytes(enum tensor_type t)
{
    return types[t].bytes;
}

const char *tensor_shape_text(char *out, size_t n_bytes, const struct tensor *t)
{
    size_t at = (size_t)snprintf(out, n_bytes, "[");
    for (int i = 0; i < t->n_dims && at < n_bytes; i++) {
        at += (size_t)snprintf(out + at, n_bytes - at, "%s%lld", i > 0 ? ", " : "",
                               (long long)t->shape[i]);
    }
    if (at < n_bytes) {
        snprintf(out + at, n_bytes - at, "]");
    }
    return out;
}

int tensor_is_float(const struct tensor *t)
{
    return t->type == TENSOR_F32 || t->type == TENSOR_F16 || t->type == TENSOR_BF16 ||
           t->type == TENSOR_U16;
}

float tensor_float(const struct tensor *t, size_t i)
{
    const uint8_t *p = t->data;
    uint16_t h;
    float f;
    if (t->type == TENSOR_F32) {
        memcpy(&f, p + 4 * i, 4);
        return f;
    }
    memcpy(&h, p + 2 * i, 2);
    return t->type == TENSOR_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* The span of a tensor in whole pages, rounded outwards: dropping a neighbour's page costs it a
 * minor fault at most. */
static void advise(const struct tensor *t, int advice)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)t->data & ~(page - 1);
    uintptr_t end = (uintptr_t)t->data + t->n_bytes;
    if (t->n_bytes > 0) {
        madvise((void *)begin, end - begin, advice);
    }
}

void tensor_will_need(const struct tensor *t)
{
    advise(t, MADV_WILLNEED);
}

void tensor_drop(const struct tensor *t)
{
    advise(t, MADV_DONTNEED);
}
