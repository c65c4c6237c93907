/* SPDX-License-Identifier: Apache-2.0 */
/* The two files of `tern run-batch`: requests in, one a line, and rows out, one a line.
 *
 * The output is the only record of progress. A row is appended with one write as soon as it is
 * known; a run that was killed left whole rows and at most one piece of a row behind, which the
 * next run cuts off. Rows say which line they answer: by custom_id, or, for lines that are no
 * request, by the line number in their error. When all rows are there they are put into the order
 * of the input, in a new file that replaces the old one. */
#ifndef TERN_CMD_BATCH_FILE_H
#define TERN_CMD_BATCH_FILE_H

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/map.h"
#include <stdint.h>

struct batch_line {
    int64_t at;     /* in the input */
    size_t n_bytes; /* without the line break */
    int64_t row_at; /* in the output, -1: no row yet */
    size_t row_bytes;
    int number;       /* line of the input, from 1 */
    const char *code; /* why it can't be run; NULL: it can */
    char *fault;      /* the same in a sentence; malloc'ed */
};

struct batch_file {
    const struct log *log;
    const char *in_path;
    char *out_path; /* links resolved; malloc'ed */
    int in_fd, out_fd;
    int regular; /* the output is a file: it can be resumed and sorted */
    int64_t out_bytes;
    struct batch_line *lines;
    size_t n_lines, cap;
    struct map *by_id; /* custom_id -> line */
    size_t n_done;     /* lines that have a row */
    size_t n_resumed;
};

/* Reads the input and what the output already has. overwrite: throws that away. The output is
 * locked: ERR_BUSY when another run has it. */
int batch_file_open(struct batch_file *b, const char *in_path, const char *out_path, int overwrite,
                    const struct log *log, struct err *e);
void batch_file_close(struct batch_file *b);
/* The line as JSON; NULL when it is none (then it has a fault). Free it. */
struct json *batch_file_read(const struct batch_file *b, const struct batch_line *l);
/* Appends one row (JSON without a line break) for l. */
int batch_file_put(struct batch_file *b, struct batch_line *l, const struct buf *row,
                   struct err *e);
/* Rows into the order of the lines; all must be there. */
int batch_file_finish(struct batch_file *b, struct err *e);

#endif
