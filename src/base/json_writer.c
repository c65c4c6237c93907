/* SPDX-License-Identifier: Apache-2.0 */
/* JSON out: values as text, and the append-only writer. */
#include "base/json.h"
#include "base/utf8.h"
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- text of values ---- */

static void put_string(struct buf *out, const char *s, size_t n_bytes)
{
    static const char hex[] = "0123456789abcdef";
    struct buf clean;
    buf_init(&clean);
    if (!utf8_is_valid(s, n_bytes)) {
        utf8_append_lossy(&clean, s, n_bytes);
        out->failed |= clean.failed;
        s = clean.data ? clean.data : "";
        n_bytes = clean.len;
    }
    buf_putc(out, '"');
    size_t start = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') {
            continue;
        }
        buf_append(out, s + start, i - start);
        start = i + 1;
        switch (c) {
        case '"':
            buf_puts(out, "\\\"");
            break;
        case '\\':
            buf_puts(out, "\\\\");
            break;
        case '\n':
            buf_puts(out, "\\n");
            break;
        case '\r':
            buf_puts(out, "\\r");
            break;
        case '\t':
            buf_puts(out, "\\t");
            break;
        case '\b':
            buf_puts(out, "\\b");
            break;
        case '\f':
            buf_puts(out, "\\f");
            break;
        default: {
            char escape[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
            buf_append(out, escape, sizeof escape);
        }
        }
    }
    buf_append(out, s + start, n_bytes - start);
    buf_putc(out, '"');
    buf_fini(&clean);
}

/* Shortest decimal that reads back as v, laid out as Python's repr does: plain for exponents
 * -4..15, scientific beyond, and always with ".0" or an exponent so that a reader keeps it a
 * double. */
static void put_double(struct buf *out, double v)
{
    if (!isfinite(v)) {
        buf_puts(out, "null");
        return;
    }
    char text[40];
    /* 15 digits always survive a round trip through a normal double, so shorter forms are found by
     * dropping zeros; subnormals have fewer bits and need the search from one digit. */
    for (int digits = fabs(v) < 2.3e-308 ? 1 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, v);
        if (strtod(text, NULL) == v) {
            break;
        }
    }
    char digits[20] = "0";
    int n = 0;
    const char *p = text;
    if (*p == '-') {
        buf_putc(out, '-');
        p++;
    }
    for (; *p != 'e'; p++) {
        if (*p >= '0' && *p <= '9') {
            digits[n++] = *p;
        }
    }
    int exponent = atoi(p + 1);
    while (n > 1 && digits[n - 1] == '0') {
        n--;
    }
    if (exponent < -4 || exponent > 15) {
        buf_putc(out, digits[0]);
        if (n > 1) {
            buf_putc(out, '.');
            buf_append(out, digits + 1, (size_t)n - 1);
        }
        buf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        buf_append(out, "0.0000", (size_t)(1 - exponent));
        buf_append(out, digits, (size_t)n);
        return;
    }
    for (int i = 0; i < n || i <= exponent; i++) {
        if (i == exponent + 1) {
            buf_putc(out, '.');
        }
        buf_putc(out, i < n ? digits[i] : '0');
    }
    if (n <= exponent + 1) {
        buf_puts(out, ".0");
    }
}

/* Recursion is bounded by json_parse's limit on depth. */
void json_dump(const struct json *v, struct buf *out)
{
    size_t n_bytes, it = 0;
    const char *s;
    const struct json *member;
    switch (json_type(v)) {
    case JSON_NULL:
        buf_puts(out, "null");
        break;
    case JSON_BOOL:
        buf_puts(out, json_bool(v) ? "true" : "false");
        break;
    case JSON_INT:
        buf_printf(out, "%lld", (long long)json_int(v));
        break;
    case JSON_DOUBLE:
        put_double(out, json_double(v));
        break;
    case JSON_STRING:
        s = json_string(v, &n_bytes);
        put_string(out, s, n_bytes);
        break;
    case JSON_ARRAY:
        buf_putc(out, '[');
        for (size_t i = 0; i < json_length(v); i++) {
            if (i > 0) {
                buf_putc(out, ',');
            }
            json_dump(json_at(v, i), out);
        }
        buf_putc(out, ']');
        break;
    case JSON_OBJECT:
        buf_putc(out, '{');
        for (size_t i = 0; json_next(v, &it, &s, &n_bytes, &member); i++) {
            if (i > 0) {
                buf_putc(out, ',');
            }
            put_string(out, s, n_bytes);
            buf_putc(out, ':');
            json_dump(member, out);
        }
        buf_putc(out, '}');
        break;
    }
}

/* ---- the writer ---- */

void json_w_init(struct json_writer *w, struct buf *out)
{
    *w = (struct json_writer){.out = out};
}

/* A misuse is a mistake of ours: it stops a debug build; a release build marks the buffer as
 * failed, so that nothing malformed is sent. */
static int misuse(struct json_writer *w, int wrong)
{
    assert(!wrong && "json writer: key, value or end in the wrong place");
    if (wrong) {
        w->out->failed = 1;
    }
    return wrong;
}

static uint64_t level_bit(const struct json_writer *w)
{
    return (uint64_t)1 << (w->depth - 1);
}

/* The comma before an element of the current level. */
static void separate(struct json_writer *w)
{
    if (w->depth > 0) {
        if (w->need_comma & level_bit(w)) {
            buf_putc(w->out, ',');
        }
        w->need_comma |= level_bit(w);
    }
}

/* Before a value: 1 when it may be written. */
static int begin_value(struct json_writer *w)
{
    int in_object = w->depth > 0 && (w->in_object & level_bit(w));
    if (misuse(w, in_object ? !w->have_key : w->depth == 0 && w->done)) {
        return 0;
    }
    if (in_object) {
        w->have_key = 0; /* json_w_key has placed the comma */
    } else {
        separate(w);
    }
    w->done = w->depth == 0;
    return 1;
}

static void open_level(struct json_writer *w, int is_object)
{
    if (misuse(w, w->depth >= JSON_WRITER_DEPTH) || !begin_value(w)) {
        return;
    }
    w->done = 0;
    w->depth++;
    w->need_comma &= ~level_bit(w);
    if (is_object) {
        w->in_object |= level_bit(w);
    } else {
        w->in_object &= ~level_bit(w);
    }
    buf_putc(w->out, is_object ? '{' : '[');
}

static void close_level(struct json_writer *w, int is_object)
{
    if (misuse(w,
               w->depth == 0 || w->have_key || ((w->in_object & level_bit(w)) != 0) != is_object)) {
        return;
    }
    w->depth--;
    w->done = w->depth == 0;
    buf_putc(w->out, is_object ? '}' : ']');
}

void json_w_object(struct json_writer *w)
{
    open_level(w, 1);
}

void json_w_object_end(struct json_writer *w)
{
    close_level(w, 1);
}

void json_w_array(struct json_writer *w)
{
    open_level(w, 0);
}

void json_w_array_end(struct json_writer *w)
{
    close_level(w, 0);
}

void json_w_keyn(struct json_writer *w, const char *key, size_t n_bytes)
{
    if (misuse(w, w->depth == 0 || w->have_key || !(w->in_object & level_bit(w)))) {
        return;
    }
    separate(w);
    put_string(w->out, key, n_bytes);
    buf_putc(w->out, ':');
    w->have_key = 1;
}

void json_w_key(struct json_writer *w, const char *key)
{
    json_w_keyn(w, key, strlen(key));
}

void json_w_stringn(struct json_writer *w, const char *s, size_t n_bytes)
{
    if (begin_value(w)) {
        put_string(w->out, s, n_bytes);
    }
}

void json_w_string(struct json_writer *w, const char *s)
{
    if (s) {
        json_w_stringn(w, s, strlen(s));
    } else {
        json_w_null(w);
    }
}

void json_w_int(struct json_writer *w, int64_t v)
{
    if (begin_value(w)) {
        buf_printf(w->out, "%lld", (long long)v);
    }
}

void json_w_uint(struct json_writer *w, uint64_t v)
{
    if (begin_value(w)) {
        buf_printf(w->out, "%llu", (unsigned long long)v);
    }
}

void json_w_double(struct json_writer *w, double v)
{
    if (begin_value(w)) {
        put_double(w->out, v);
    }
}

void json_w_raw(struct json_writer *w, const char *json_text, size_t n_bytes)
{
    if (begin_value(w)) {
        buf_append(w->out, json_text, n_bytes);
    }
}

void json_w_bool(struct json_writer *w, int v)
{
    json_w_raw(w, v ? "true" : "false", v ? 4 : 5);
}

void json_w_null(struct json_writer *w)
{
    json_w_raw(w, "null", 4);
}

void json_w_value(struct json_writer *w, const struct json *v)
{
    if (begin_value(w)) {
        json_dump(v, w->out);
    }
}

void json_w_kstring(struct json_writer *w, const char *key, const char *s)
{
    json_w_key(w, key);
    json_w_string(w, s);
}

void json_w_kint(struct json_writer *w, const char *key, int64_t v)
{
    json_w_key(w, key);
    json_w_int(w, v);
}

void json_w_kdouble(struct json_writer *w, const char *key, double v)
{
    json_w_key(w, key);
    json_w_double(w, v);
}

void json_w_kbool(struct json_writer *w, const char *key, int v)
{
    json_w_key(w, key);
    json_w_bool(w, v);
}

void json_w_knull(struct json_writer *w, const char *key)
{
    json_w_key(w, key);
    json_w_null(w);
}
