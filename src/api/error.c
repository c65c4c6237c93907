/* SPDX-License-Identifier: Apache-2.0 */
/* Messages may quote what a client sent: they are cut at a bound, and the JSON writer keeps them
 * valid UTF-8. */
#include "api/error.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void trim(char *s)
{
    s[utf8_valid_prefix(s, strlen(s))] = 0;
}

static void set_param(struct api_error *e, const char *param)
{
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    trim(e->param);
}

/* A value as text, at most 80 bytes. */
static void quote(const struct json *v, char out[96])
{
    struct buf b;
    buf_init(&b);
    json_dump(v, &b);
    snprintf(out, 84, "%s", b.data ? b.data : "");
    trim(out);
    if (b.len > 83) {
        memcpy(out + strlen(out), "...", 4); /* at most 83 bytes are used */
    }
    buf_fini(&b);
}

int api_fail(struct api_error *e, int status, const char *type, const char *param, const char *fmt,
             ...)
{
    va_list ap;
    e->status = status;
    e->type = type;
    e->code = NULL;
    set_param(e, param);
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    trim(e->message);
    return -1;
}

/* 'a.b.c' -> ('body', 'a', 'b', 'c') */
static void location(const char *field, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "('body'");
    while (*field && n < size - 8) {
        size_t k = strcspn(field, ".");
        n += (size_t)snprintf(out + n, size - n, ", '%.*s'", (int)k, field);
        field += k + (field[k] == '.');
    }
    if (n < size - 1) {
        snprintf(out + n, size - n, "%s", strchr(out, ' ') ? ")" : ",)");
    }
}

int api_fail_field(struct api_error *e, const char *field, const char *kind,
                   const struct json *input, const char *fmt, ...)
{
    char msg[512], loc[200], value[96] = "", param[140];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    location(field, loc, sizeof loc);
    snprintf(param, sizeof param, "body%s%s", *field ? "." : "", field);
    if (input) {
        quote(input, value);
    }
    return api_fail(e, 400, TYPE_SCHEMA, param,
                    "1 validation error:\n  {'type': '%s', 'loc': %s, 'msg': '%s'%s%s}", kind, loc,
                    msg, input ? ", 'input': " : "", value);
}

int api_fail_param(struct api_error *e, const char *param, const struct json *value,
                   const char *fmt, ...)
{
    char msg[700], text[96];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    quote(value, text);
    return api_fail(e, 400, TYPE_BAD, param, "%s (parameter=%s, value=%s)", msg, param, text);
}

int api_fail_err(struct api_error *e, const struct err *cause)
{
    int status = err_http_status(cause->code);
    if (status == 503 || cause->code == ERR_CANCELED) { /* canceled: the engine is draining */
        return api_fail(e, 503, "ServiceUnavailableError", NULL, "%s", cause->text);
    }
    if (status >= 500) {
        return api_fail(e, 500, "InternalServerError", NULL, "Internal server error");
    }
    return api_fail(e, 400, TYPE_BAD, NULL, "%s", cause->text);
}

void api_error_write(const struct api_error *e, struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_key(&w, "error");
    json_w_object(&w);
    json_w_kstring(&w, "message", e->message);
    json_w_kstring(&w, "type", e->type);
    json_w_kstring(&w, "param", e->param[0] ? e->param : NULL);
    if (e->code) {
        json_w_kstring(&w, "code", e->code);
    } else {
        json_w_kint(&w, "code", e->status);
    }
    json_w_object_end(&w);
    json_w_object_end(&w);
}
