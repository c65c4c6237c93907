/* SPDX-License-Identifier: Apache-2.0 */
/* Errors. Functions return int: 0 or a non-negative result, or one of the negative codes below.
 * Where a person will read the reason, the last parameter is a `struct err *` (may be NULL): one
 * line of text without a trailing newline, naming file, tensor or field, expected and found.
 * Only src/cmd may turn an error into a process exit. */
#ifndef TERN_BASE_ERR_H
#define TERN_BASE_ERR_H

#include <stddef.h>

#if defined(__GNUC__)
#define TERN_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))
#define TERN_WARN_UNUSED                  __attribute__((warn_unused_result))
#define TERN_NORETURN                     __attribute__((noreturn))
#else
#error "tern needs a GNU-compatible C11 compiler"
#endif

/* X(code name, value, short text, HTTP status) */
#define TERN_ERR_LIST(X)                                                                           \
    X(ERR_INVALID, -1, "invalid argument", 400)                                                    \
    X(ERR_NOMEM, -2, "out of memory", 503)                                                         \
    X(ERR_IO, -3, "input/output error", 500)                                                       \
    X(ERR_FORMAT, -4, "malformed data", 400)                                                       \
    X(ERR_UNSUPPORTED, -5, "unsupported", 400)                                                     \
    X(ERR_NOT_FOUND, -6, "not found", 404)                                                         \
    X(ERR_TOO_LARGE, -7, "too large", 413)                                                         \
    X(ERR_BUSY, -8, "busy", 503)                                                                   \
    X(ERR_CANCELED, -9, "canceled", 499)                                                           \
    X(ERR_INTERNAL, -10, "internal error", 500)

enum err_code {
    ERR_NONE = 0,
#define TERN_ERR_ENUM(name, value, text, status) name = value,
    TERN_ERR_LIST(TERN_ERR_ENUM)
#undef TERN_ERR_ENUM
};

struct err {
    int code;       /* enum err_code */
    char text[512]; /* NUL-terminated, always valid UTF-8 (bad bytes are replaced), one line */
};

/* Sets *e (when not NULL) and returns `code`, so that `return err_set(e, ERR_X, …);` reads well. */
int err_set(struct err *e, int code, const char *fmt, ...) TERN_PRINTF(3, 4);
/* Puts "prefix: " before the text already there; keeps the code; returns it. */
int err_prefix(struct err *e, const char *fmt, ...) TERN_PRINTF(2, 3);
const char *err_name(int code); /* "ERR_INVALID" */
const char *err_text(int code); /* "invalid argument" */
int err_http_status(int code);

#endif
