/* SPDX-License-Identifier: Apache-2.0 */
/* State of one checkpoint_open: for checkpoint*.c only. Names lose their prefix, or get the Hugging
 * Face spelling (GGUF), then every tensor of the model is looked up by its plain name. */
#ifndef TERN_MODEL_CHECKPOINT_FIND_H
#define TERN_MODEL_CHECKPOINT_FIND_H

#include "base/buf.h"
#include "model/checkpoint.h"

struct map;

struct entry {
    const struct tensor *tensor;
    int used;
};

struct finder {
    struct checkpoint *ck;
    struct model_config *c;
    const struct quant_config *q;
    const char *path;
    struct err *e;
    struct map *by_name;   /* plain name -> struct entry */
    struct entry *entries; /* [n_entries] */
    size_t n_entries;
    struct buf missing;
    int n_missing, fused, prefixed;
    int failed; /* an error code once e is set */
};

/* The tensor of that plain name, marked as used; NULL when there is none. */
const struct tensor *find_tensor(struct finder *f, const char *name);
void find_note_missing(struct finder *f, const char *name); /* plain name */
/* Sets f->failed when the tensor hasn't this shape (d1 0: one dimension). */
void find_check_shape(struct finder *f, const struct tensor *t, int64_t d0, int64_t d1);
void find_failed(struct finder *f, int code, const struct tensor *t, const char *fmt, ...)
    TERN_PRINTF(4, 5);

/* checkpoint_quant.c: the quantized matrix [rows, cols] of a layer with this plain name. */
void find_quantized(struct finder *f, struct checkpoint_view *v, const char *layer, int rows,
                    int cols, const struct quant_scheme *s);
/* The same of one tensor of GGUF blocks. */
void find_blocks(struct finder *f, struct checkpoint_view *v, const struct tensor *t, int rows,
                 int cols);

/* checkpoint_gguf.c: plain name of a GGUF tensor; out is used when it has to be made. */
const char *gguf_plain_name(char *out, size_t n_bytes, const char *name);
const char *gguf_own_name(char *out, size_t n_bytes, const char *plain);

#endif
