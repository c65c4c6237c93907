/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines in vLLM's layout: `INFO MM-DD HH:MM:SS [file.c:line] text`, to stderr, one write(2) a
 * line. The level and the line prefix (e.g. "(APIServer pid=7) ") belong to a `struct log` that the
 * caller owns; NULL means a default one at INFO. Thread-safe. */
#ifndef TERN_BASE_LOG_H
#define TERN_BASE_LOG_H

#include "base/err.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR, LOG_CRITICAL };

struct log {
    enum log_level level;
    int fd;             /* where lines go; 2 by default */
    int json;           /* 1: one JSON object a line */
    const char *prefix; /* borrowed; may be NULL */
    /* instead of fd, when set: the text alone, as it is, on the thread that logs */
    void (*sink)(void *user, enum log_level level, const char *text);
    void *sink_user;
};

int log_level_parse(const char *name, enum log_level *out); /* any case; 0 or ERR_INVALID */
void log_write(const struct log *log, enum log_level level, const char *file, int line,
               const char *fmt, ...) TERN_PRINTF(5, 6);

#define log_debug(log, ...)   log_write((log), LOG_DEBUG, __FILE__, __LINE__, __VA_ARGS__)
#define log_info(log, ...)    log_write((log), LOG_INFO, __FILE__, __LINE__, __VA_ARGS__)
#define log_warning(log, ...) log_write((log), LOG_WARNING, __FILE__, __LINE__, __VA_ARGS__)
#define log_error(log, ...)   log_write((log), LOG_ERROR, __FILE__, __LINE__, __VA_ARGS__)

#endif
