/* SPDX-License-Identifier: Apache-2.0 */
/* JSON in (json_writer.c: out).
 *
 * json-c builds and owns the tree; it is lenient, so a scan of our own goes over the text first
 * and accepts RFC 8259 and nothing else (grammar, UTF-8, surrogate pairs, depth, number range). The
 * scan keeps its nesting in a bit stack, not on the C stack, and says line and column of the first
 * mistake in the words of Python's json module, which clients of vLLM know. What json-c itself
 * would change silently is edited in a copy of the text before it sees it (rare, so the copy is
 * normally not made):
 *   - integers beyond int64, which it would clamp, get ".0" and become doubles;
 *   - NUL inside a member name, where it would cut the name, becomes U+0001 '0', and U+0001 becomes
 *     U+0001 '1'. After the parse such a member's key block is replaced by
 *         encoded name, NUL, size_t length, decoded name, NUL
 *     so that json-c still compares the encoded name and json_next finds the real one behind it.
 *     Raw control characters are not allowed in JSON, so no other name holds the byte 01.
 *
 * A `struct json *` is json-c's object pointer under another name, except that json-c has no object
 * for null: a null that is there points to null_value, a value that is absent is NULL. */

/* json-c has types named json_bool and json_type, which are functions of ours. */
#define json_bool jsonc_bool
#define json_type jsonc_type
#include <json-c/json.h>
#undef json_bool
#undef json_type

#include "base/json.h"
#include "base/utf8.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_LIMIT 1024 /* json-c frees trees recursively: whatever a caller asks, not deeper */
#define NAME_ESCAPE '\x01'

struct json {
    char unused;
};
static struct json null_value;

/* ---- the scan ---- */

struct scan {
    const char *text;
    size_t n_bytes, pos;
    int depth, max_depth;
    uint64_t in_object[DEPTH_LIMIT / 64]; /* one bit a level: '{' or '[' */
    struct buf edited;                    /* copy with the edits so far; used when n_edits > 0 */
    size_t copied;                        /* text[0..copied) is in `edited` */
    int name_edits, value_edits;
    struct err *e;
};

static int fail_at(struct scan *s, size_t pos, const char *what)
{
    size_t line = 1, start = 0;
    for (size_t i = 0; i < pos; i++) {
        if (s->text[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    size_t column = utf8_count(s->text + start, pos - start) + 1;
    return err_set(s->e, ERR_FORMAT, "line %zu, column %zu: %s", line, column, what);
}

/* Replaces text[from..to) in what json-c will read. */
static void edit(struct scan *s, size_t from, size_t to, const char *replacement)
{
    buf_append(&s->edited, s->text + s->copied, from - s->copied);
    buf_puts(&s->edited, replacement);
    s->copied = to;
}

static void skip_space(struct scan *s)
{
    while (s->pos < s->n_bytes) {
        char c = s->text[s->pos];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') {
            break;
        }
        s->pos++;
    }
}

static int peek(const struct scan *s)
{
    return s->pos < s->n_bytes ? (unsigned char)s->text[s->pos] : -1;
}

static int is_digit(int c)
{
    return c >= '0' && c <= '9';
}

/* Four hex digits at pos, or -1. */
static int hex4(const struct scan *s, size_t pos)
{
    int v = 0;
    if (s->n_bytes - pos < 4) {
        return -1;
    }
    for (size_t i = 0; i < 4; i++) {
        char c = s->text[pos + i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) {
            return -1;
        }
        v = v << 4 | d;
    }
    return v;
}

/* pos is at the backslash. */
static int scan_escape(struct scan *s, int is_name)
{
    size_t at = s->pos;
    int c = at + 1 < s->n_bytes ? (unsigned char)s->text[at + 1] : -1;
    if (c != 'u') {
        if (c <= 0 || !strchr("\"\\/bfnrt", c)) {
            return fail_at(s, at, "Invalid \\escape");
        }
        s->pos = at + 2;
        return 0;
    }
    int unit = hex4(s, at + 2);
    if (unit < 0) {
        return fail_at(s, at, "Invalid \\uXXXX escape");
    }
    s->pos = at + 6;
    if (unit >= 0xD800 && unit <= 0xDFFF) {
        int low = -1;
        if (unit < 0xDC00 && s->n_bytes - s->pos >= 6 && s->text[s->pos] == '\\' &&
            s->text[s->pos + 1] == 'u') {
            low = hex4(s, s->pos + 2);
        }
        if (low < 0xDC00 || low > 0xDFFF) {
            return fail_at(s, at, "lone surrogate in \\uXXXX escape");
        }
        s->pos += 6;
        uint32_t cp = 0x10000u + ((uint32_t)(unit - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
        if ((cp & 0xF800) ==
            0xD800) { /* json-c takes the low half of U+xD8xx..U+xDFxx for a lone surrogate */
            char utf8[5] = {0};
            utf8_encode(cp, utf8);
            edit(s, at, s->pos, utf8);
            s->value_edits = 1;
        }
    } else if (is_name && unit <= 1) {
        edit(s, at, s->pos, unit == 0 ? "\\u00010" : "\\u00011");
        s->name_edits = 1;
    }
    return 0;
}

/* pos is at the opening quote. */
static int scan_string(struct scan *s, int is_name)
{
    size_t start = s->pos++;
    for (;;) {
        int c = peek(s);
        if (c < 0) {
            return fail_at(s, start, "Unterminated string starting at");
        }
        if (c == '"') {
            s->pos++;
            return 0;
        }
        if (c == '\\') {
            int rc = scan_escape(s, is_name);
            if (rc != 0) {
                return rc;
            }
        } else if (c < 0x20) {
            return fail_at(s, s->pos, "Invalid control character at");
        } else if (c < 0x80) {
            s->pos++;
        } else {
            uint32_t cp;
            int len = utf8_decode(s->text + s->pos, s->n_bytes - s->pos, &cp);
            if (len <= 0) {
                return fail_at(s, s->pos, "invalid UTF-8");
            }
            s->pos += (size_t)len;
        }
    }
}

/* The number's value; its text has no NUL behind it, so it is copied. */
static int convert(const char *text, size_t n_bytes, double *v)
{
    char small[64];
    char *copy = n_bytes < sizeof small ? small : malloc(n_bytes + 1);
    if (!copy) {
        return ERR_NOMEM;
    }
    memcpy(copy, text, n_bytes);
    copy[n_bytes] = '\0';
    *v = strtod(copy, NULL);
    if (copy != small) {
        free(copy);
    }
    return 0;
}

static int fits_int64(const char *digits, size_t n_digits, int negative)
{
    const char *limit = negative ? "9223372036854775808" : "9223372036854775807";
    return n_digits < 19 || (n_digits == 19 && memcmp(digits, limit, 19) <= 0);
}

static int scan_number(struct scan *s)
{
    size_t start = s->pos;
    int negative = peek(s) == '-';
    s->pos += (size_t)negative;
    size_t digits = s->pos;
    if (!is_digit(peek(s))) {
        return fail_at(s, start, "Expecting value");
    }
    if (peek(s) == '0') {
        s->pos++;
    } else {
        while (is_digit(peek(s))) {
            s->pos++;
        }
    }
    size_t n_digits = s->pos - digits;
    int integer = 1, exponent = 0;
    if (peek(s) == '.') {
        s->pos++;
        if (!is_digit(peek(s))) {
            return fail_at(s, s->pos, "Expecting digits after the decimal point");
        }
        while (is_digit(peek(s))) {
            s->pos++;
        }
        integer = 0;
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->pos++;
        if (peek(s) == '+' || peek(s) == '-') {
            s->pos++;
        }
        if (!is_digit(peek(s))) {
            return fail_at(s, s->pos, "Expecting digits in the exponent");
        }
        while (is_digit(peek(s))) {
            s->pos++;
        }
        integer = 0;
        exponent = 1;
    }
    if (exponent || n_digits > 308) { /* nothing else can overflow */
        double v;
        if (convert(s->text + start, s->pos - start, &v) != 0) {
            return err_set(s->e, ERR_NOMEM, "JSON number: out of memory");
        }
        if (isinf(v)) {
            return fail_at(s, start, "number too large for a double");
        }
    }
    if (integer && !fits_int64(s->text + digits, n_digits, negative)) {
        edit(s, s->pos, s->pos, ".0");
        s->value_edits = 1;
    }
    return 0;
}

static int scan_word(struct scan *s, const char *word)
{
    size_t n = strlen(word);
    if (s->n_bytes - s->pos < n || memcmp(s->text + s->pos, word, n) != 0) {
        return fail_at(s, s->pos, "Expecting value");
    }
    s->pos += n;
    return 0;
}

static int top_is_object(const struct scan *s)
{
    int level = s->depth - 1;
    return (int)(s->in_object[level / 64] >> (level % 64) & 1);
}

static int push(struct scan *s, int is_object)
{
    if (s->depth >= s->max_depth) {
        char what[64];
        snprintf(what, sizeof what, "nested deeper than %d levels", s->max_depth);
        return fail_at(s, s->pos, what);
    }
    uint64_t bit = (uint64_t)1 << (s->depth % 64);
    uint64_t *word = &s->in_object[s->depth / 64];
    *word = is_object ? *word | bit : *word & ~bit;
    s->depth++;
    s->pos++;
    return 0;
}

/* A member's name and colon; pos is where the name should start. */
static int scan_name(struct scan *s)
{
    if (peek(s) != '"') {
        return fail_at(s, s->pos, "Expecting property name enclosed in double quotes");
    }
    int rc = scan_string(s, 1);
    if (rc != 0) {
        return rc;
    }
    skip_space(s);
    if (peek(s) != ':') {
        return fail_at(s, s->pos, "Expecting ':' delimiter");
    }
    s->pos++;
    skip_space(s);
    return 0;
}

/* A value, or the opening of a container that has members; *opened says that a value must follow.
 */
static int scan_value(struct scan *s, int *opened)
{
    *opened = 0;
    int c = peek(s);
    if (c == '{' || c == '[') {
        int rc = push(s, c == '{');
        if (rc != 0) {
            return rc;
        }
        skip_space(s);
        if (peek(s) == (c == '{' ? '}' : ']')) {
            s->pos++;
            s->depth--;
            return 0;
        }
        *opened = 1;
        return c == '{' ? scan_name(s) : 0;
    }
    switch (c) {
    case '"':
        return scan_string(s, 0);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    default:
        if (c == '-' || is_digit(c)) {
            return scan_number(s);
        }
        return fail_at(s, s->pos, "Expecting value");
    }
}

/* Behind a value: closes containers until a comma (*more = 1) or the end of the document. */
static int scan_after_value(struct scan *s, int *more)
{
    *more = 0;
    while (s->depth > 0) {
        skip_space(s);
        int is_object = top_is_object(s);
        int c = peek(s);
        if (c == ',') {
            s->pos++;
            skip_space(s);
            *more = 1;
            return is_object ? scan_name(s) : 0;
        }
        if (c != (is_object ? '}' : ']')) {
            return fail_at(s, s->pos, "Expecting ',' delimiter");
        }
        s->pos++;
        s->depth--;
    }
    skip_space(s);
    return s->pos == s->n_bytes ? 0 : fail_at(s, s->pos, "Extra data");
}

static int scan_document(struct scan *s)
{
    int more = 1;
    skip_space(s);
    while (more) {
        int opened;
        int rc = scan_value(s, &opened);
        if (rc == 0 && opened) {
            skip_space(s);
            continue;
        }
        if (rc == 0) {
            rc = scan_after_value(s, &more);
        }
        if (rc != 0) {
            return rc;
        }
    }
    if (s->name_edits || s->value_edits) {
        edit(s, s->n_bytes, s->n_bytes, "");
    }
    return s->edited.failed ? err_set(s->e, ERR_NOMEM, "JSON: out of memory") : 0;
}

/* ---- member names with NUL ---- */

static int decode_entry(struct lh_entry *entry)
{
    const char *encoded = lh_entry_k(entry);
    size_t n = strlen(encoded);
    if (!memchr(encoded, NAME_ESCAPE, n)) {
        return 0;
    }
    char *block = malloc(n + 1 + sizeof(size_t) + n + 1);
    if (!block) {
        return ERR_NOMEM;
    }
    memcpy(block, encoded, n + 1);
    char *decoded = block + n + 1 + sizeof(size_t);
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        char c = encoded[i];
        if (c == NAME_ESCAPE) {
            c = encoded[++i] == '0' ? '\0' : NAME_ESCAPE;
        }
        decoded[len++] = c;
    }
    decoded[len] = '\0';
    memcpy(block + n + 1, &len, sizeof len);
    free((void *)(uintptr_t)entry->k); /* json-c strdup'ed it and will free the block instead */
    entry->k = block;
    return 0;
}

/* Recursion is bounded by DEPTH_LIMIT. */
static int decode_names(struct json_object *o)
{
    int rc = 0;
    if (json_object_is_type(o, json_type_array)) {
        size_t n = json_object_array_length(o);
        for (size_t i = 0; i < n && rc == 0; i++) {
            rc = decode_names(json_object_array_get_idx(o, i));
        }
    } else if (json_object_is_type(o, json_type_object)) {
        struct lh_entry *entry = lh_table_head(json_object_get_object(o));
        for (; entry && rc == 0; entry = lh_entry_next(entry)) {
            rc = decode_entry(entry);
            if (rc == 0) {
                rc = decode_names(lh_entry_v(entry));
            }
        }
    }
    return rc;
}

/* ---- reading ---- */

static struct json_object *raw(const struct json *v)
{
    return v == &null_value ? NULL : (struct json_object *)(uintptr_t)v;
}

static struct json *wrap(struct json_object *o)
{
    return o ? (struct json *)(void *)o : &null_value;
}

static int build(struct json_object **out, const char *text, size_t n_bytes, struct err *e)
{
    struct json_tokener *tok = json_tokener_new_ex(DEPTH_LIMIT + 2);
    if (!tok) {
        return err_set(e, ERR_NOMEM, "JSON: out of memory");
    }
    json_tokener_set_flags(tok, JSON_TOKENER_STRICT);
    *out = json_tokener_parse_ex(tok, text, (int)n_bytes);
    enum json_tokener_error code = json_tokener_get_error(tok);
    if (code == json_tokener_continue) {
        *out = json_tokener_parse_ex(tok, "", 1); /* a NUL ends a number at the end of the text */
        code = json_tokener_get_error(tok);
    }
    json_tokener_free(tok);
    if (code != json_tokener_success) {
        json_object_put(*out);
        *out = NULL;
        return err_set(e, ERR_FORMAT, "line 1, column 1: %s", json_tokener_error_desc(code));
    }
    return 0;
}

int json_parse(struct json **out, const char *text, size_t n_bytes, int max_depth, struct err *e)
{
    *out = NULL;
    if (n_bytes > INT_MAX / 2) { /* json-c counts in int; edits can at most double the text */
        return err_set(e, ERR_TOO_LARGE, "JSON text of %zu bytes, at most %d are accepted", n_bytes,
                       INT_MAX / 2);
    }
    struct scan s = {.text = text, .n_bytes = n_bytes, .e = e};
    s.max_depth = max_depth < 0 ? 0 : max_depth > DEPTH_LIMIT ? DEPTH_LIMIT : max_depth;
    buf_init(&s.edited);
    struct json_object *o = NULL;
    int rc = scan_document(&s);
    if (rc == 0) {
        int edited = s.name_edits || s.value_edits;
        rc = build(&o, edited ? s.edited.data : text, edited ? s.edited.len : n_bytes, e);
    }
    if (rc == 0 && s.name_edits && decode_names(o) != 0) {
        rc = err_set(e, ERR_NOMEM, "JSON: out of memory");
        json_object_put(o);
    }
    buf_fini(&s.edited);
    if (rc == 0) {
        *out = wrap(o);
    }
    return rc;
}

int json_parse_file(struct json **out, const char *path, size_t max_bytes, struct err *e)
{
    *out = NULL;
    struct buf text;
    buf_init(&text);
    int rc = buf_read_file(&text, path, max_bytes, e);
    if (rc == 0) {
        rc = json_parse(out, text.data, text.len, JSON_DEPTH_DEFAULT, e);
        if (rc != 0) {
            err_prefix(e, "%s", path);
        }
    }
    buf_fini(&text);
    return rc;
}

void json_free(struct json *document)
{
    json_object_put(raw(document));
}

enum json_type json_type(const struct json *v)
{
    switch (json_object_get_type(raw(v))) {
    case json_type_boolean:
        return JSON_BOOL;
    case json_type_int:
        return JSON_INT;
    case json_type_double:
        return JSON_DOUBLE;
    case json_type_string:
        return JSON_STRING;
    case json_type_array:
        return JSON_ARRAY;
    case json_type_object:
        return JSON_OBJECT;
    case json_type_null:
        break;
    }
    return JSON_NULL;
}

int json_bool(const struct json *v)
{
    return json_type(v) == JSON_BOOL && json_object_get_boolean(raw(v));
}

int64_t json_int(const struct json *v)
{
    return json_type(v) == JSON_INT ? json_object_get_int64(raw(v)) : 0;
}

int json_is_number(const struct json *v)
{
    return json_type(v) == JSON_INT || json_type(v) == JSON_DOUBLE;
}

double json_double(const struct json *v)
{
    switch (json_type(v)) {
    case JSON_INT:
        return (double)json_object_get_int64(raw(v));
    case JSON_DOUBLE:
        return json_object_get_double(raw(v));
    default:
        return 0.0;
    }
}

const char *json_string(const struct json *v, size_t *n_bytes)
{
    int is_string = json_type(v) == JSON_STRING;
    if (n_bytes) {
        *n_bytes = is_string ? (size_t)json_object_get_string_len(raw(v)) : 0;
    }
    return is_string ? json_object_get_string(raw(v)) : NULL;
}

size_t json_length(const struct json *v)
{
    switch (json_type(v)) {
    case JSON_ARRAY:
        return json_object_array_length(raw(v));
    case JSON_OBJECT:
        return (size_t)json_object_object_length(raw(v));
    default:
        return 0;
    }
}

const struct json *json_at(const struct json *array, size_t i)
{
    if (json_type(array) != JSON_ARRAY || i >= json_object_array_length(raw(array))) {
        return NULL;
    }
    return wrap(json_object_array_get_idx(raw(array), i));
}

const struct json *json_get(const struct json *object, const char *key)
{
    if (json_type(object) != JSON_OBJECT) {
        return NULL;
    }
    struct buf encoded;
    buf_init(&encoded);
    if (strchr(key, NAME_ESCAPE)) {
        for (const char *c = key; *c; c++) {
            buf_putc(&encoded, *c);
            if (*c == NAME_ESCAPE) {
                buf_putc(&encoded, '1');
            }
        }
        key = encoded.failed ? "" : encoded.data;
    }
    struct json_object *o = NULL;
    int found = !encoded.failed && json_object_object_get_ex(raw(object), key, &o);
    buf_fini(&encoded);
    return found ? wrap(o) : NULL;
}

int json_next(const struct json *object, size_t *it, const char **key, size_t *key_bytes,
              const struct json **value)
{
    if (json_type(object) != JSON_OBJECT) {
        return 0;
    }
    /* *it is the address of the entry that was returned last */
    struct lh_entry *entry = *it ? lh_entry_next((struct lh_entry *)(uintptr_t)*it)
                                 : lh_table_head(json_object_get_object(raw(object)));
    if (!entry) {
        return 0;
    }
    *it = (size_t)(uintptr_t)entry;
    const char *name = lh_entry_k(entry);
    size_t n = strlen(name);
    if (memchr(name, NAME_ESCAPE, n)) {
        const char *length = name + n + 1;
        memcpy(&n, length, sizeof n);
        name = length + sizeof n;
    }
    if (key) {
        *key = name;
    }
    if (key_bytes) {
        *key_bytes = n;
    }
    if (value) {
        *value = wrap(lh_entry_v(entry));
    }
    return 1;
}
