/* SPDX-License-Identifier: Apache-2.0 */
/* Error texts. An error often quotes outside data (a file name, a JSON field, a tensor name), so
 * its text is cleaned once here: whatever went in, what comes out is one line of valid UTF-8 that
 * can be put into a log line or a JSON answer. Nothing is allocated: errors must work when memory
 * is gone. */
#include "base/err.h"

#include "base/utf8.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Copies src to dst (cap > 0) as one clean line, cut at a whole character when it does not fit. */
static void clean(char *dst, size_t cap, const char *src, size_t n_bytes, int cut)
{
    size_t out = 0;
    size_t pos = 0;
    while (pos < n_bytes) {
        uint32_t cp = 0;
        int len = utf8_decode(src + pos, n_bytes - pos, &cp);
        if (len == 0 && cut) {
            break; /* the formatter cut this character in two */
        }
        const char *bytes = src + pos;
        int n = len;
        if (len <= 0) {
            bytes = "\xEF\xBF\xBD";
            n = 3;
            len = 1;
        } else if (cp < 0x20 || cp == 0x7F) {
            bytes = " ";
        }
        if (out + (size_t)n + 1 > cap) {
            break;
        }
        memcpy(dst + out, bytes, (size_t)n);
        out += (size_t)n;
        pos += (size_t)len;
    }
    dst[out] = '\0';
}

static void format(struct err *e, const char *fmt, va_list ap)
{
    char raw[sizeof e->text * 2];
    int n = vsnprintf(raw, sizeof raw, fmt, ap);
    if (n < 0) {
        e->text[0] = '\0';
        return;
    }
    int cut = (size_t)n >= sizeof raw;
    clean(e->text, sizeof e->text, raw, cut ? sizeof raw - 1 : (size_t)n, cut);
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        format(e, fmt, ap); /* before e->code: the arguments may point into *e */
        va_end(ap);
        e->code = code;
    }
    return code;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e) {
        return ERR_NONE;
    }
    struct err head;
    va_list ap;
    va_start(ap, fmt);
    format(&head, fmt, ap);
    va_end(ap);
    return err_set(e, e->code, "%s: %s", head.text, e->text);
}

const char *err_name(int code)
{
    switch (code) {
    case ERR_NONE:
        return "ERR_NONE";
#define CASE(name, value, text, status)                                                            \
    case name:                                                                                     \
        return #name;
        TERN_ERR_LIST(CASE)
#undef CASE
    default:
        return "ERR_UNKNOWN";
    }
}

const char *err_text(int code)
{
    switch (code) {
    case ERR_NONE:
        return "no error";
#define CASE(name, value, text, status)                                                            \
    case name:                                                                                     \
        return text;
        TERN_ERR_LIST(CASE)
#undef CASE
    default:
        return "unknown error";
    }
}

int err_http_status(int code)
{
    switch (code) {
    case ERR_NONE:
        return 200;
#define CASE(name, value, text, status)                                                            \
    case name:                                                                                     \
        return status;
        TERN_ERR_LIST(CASE)
#undef CASE
    default:
        return 500;
    }
}
