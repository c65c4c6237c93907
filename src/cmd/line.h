/* SPDX-License-Identifier: Apache-2.0 */
/* Lines from the user. On a terminal with libedit: editing, history, UTF-8; the library is loaded
 * when it is first needed, as libcurl is. Otherwise lines are read as they are. SIGINT and SIGTERM
 * must be blocked: they end a read, with the line that was being typed thrown away. */
#ifndef TERN_CMD_LINE_H
#define TERN_CMD_LINE_H

#include "base/buf.h"
#include "base/err.h"

struct line_reader;

enum line_read { LINE_END, LINE_TEXT, LINE_INTERRUPTED, LINE_TERMINATED };

/* editing: standard input and output are a terminal. history: file to keep lines in, or NULL. */
int line_open(struct line_reader **out, int editing, const char *history, struct err *e);
/* The line without its end goes to `out`. prompt may hold colours between \1 bytes. */
enum line_read line_read(struct line_reader *r, const char *prompt, struct buf *out);
void line_close(struct line_reader *r); /* writes the history; accepts NULL */

#endif
