/* SPDX-License-Identifier: Apache-2.0 */
/* A growable byte buffer. `data` is NUL-terminated after every successful append (the NUL is not
 * counted in len). Allocation failure sets `failed` and makes later appends no-ops, so that a
 * writer may check once at the end. */
#ifndef TERN_BASE_BUF_H
#define TERN_BASE_BUF_H

#include "base/err.h"
#include <stdarg.h>
#include <stddef.h>

struct buf {
    char *data;
    size_t len, cap;
    int failed;
};

void buf_init(struct buf *b);
void buf_fini(struct buf *b);
void buf_clear(struct buf *b);                      /* len = 0, keeps memory, clears failed */
int buf_reserve(struct buf *b, size_t extra_bytes); /* 0 or ERR_NOMEM */
void buf_append(struct buf *b, const void *data, size_t n_bytes);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) TERN_PRINTF(2, 3);
void buf_vprintf(struct buf *b, const char *fmt, va_list ap) TERN_PRINTF(2, 0);
char *buf_detach(struct buf *b); /* hands the malloc'ed bytes to the caller; b is empty again */
/* 1 when the directory has no such name. A link that leads nowhere is not absent: reading it must
 * fail, not be left out. */
int buf_file_absent(const char *path);
/* Whole file into b, at most max_bytes (ERR_TOO_LARGE beyond). */
int buf_read_file(struct buf *b, const char *path, size_t max_bytes, struct err *e);

#endif
