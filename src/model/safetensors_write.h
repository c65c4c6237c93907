/* SPDX-License-Identifier: Apache-2.0 */
/* Writer of one safetensors file (format: safetensors.h). The header stands first and holds every
 * offset, so tensors are announced before any data is written, then their data follows in the same
 * order, in pieces of any size: nothing larger than a piece is ever in memory. The file is only
 * complete when safetensors_writer_finish returns 0; writing to a temporary name and renaming is
 * the caller's. */
#ifndef TERN_MODEL_SAFETENSORS_WRITE_H
#define TERN_MODEL_SAFETENSORS_WRITE_H

#include "model/safetensors.h"
#include <stddef.h>

struct safetensors_writer;
int safetensors_writer_open(struct safetensors_writer **out, const char *path, struct err *e);
/* Announces the next tensor; name is copied. */
int safetensors_writer_add(struct safetensors_writer *w, const char *name, enum safetensors_dtype d,
                           int n_dims, const int64_t *shape, struct err *e);
/* Ends the announcements: writes the header. */
int safetensors_writer_begin(struct safetensors_writer *w, struct err *e);
int safetensors_writer_put(struct safetensors_writer *w, const void *data, size_t n_bytes,
                           struct err *e);
/* All data is there: brings it to the disk. ERR_INTERNAL when more or less was written than
 * announced. */
int safetensors_writer_finish(struct safetensors_writer *w, struct err *e);
uint64_t safetensors_writer_bytes(const struct safetensors_writer *w); /* written so far */
void safetensors_writer_close(struct safetensors_writer *w);           /* NULL is fine */

#endif
