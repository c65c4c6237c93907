/* SPDX-License-Identifier: Apache-2.0 */
/* JSON. In: a strict façade over json-c (RFC 8259 only: no NaN, comments, single quotes or trailing
 * text; the input must be valid UTF-8 without lone surrogates; bounded depth and size). Out: an
 * append-only writer that cannot emit invalid JSON or invalid UTF-8, and prints doubles in the
 * shortest form that reads back the same. No other file includes json-c. */
#ifndef TERN_BASE_JSON_H
#define TERN_BASE_JSON_H

#include "base/buf.h"
#include "base/err.h"
#include <stdint.h>

struct json; /* a document or a value inside one; values are borrowed from their document */

enum json_type {
    JSON_NULL,
    JSON_BOOL,
    JSON_INT,
    JSON_DOUBLE,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

#define JSON_DEPTH_DEFAULT 64
/* Text to document. ERR_FORMAT with "line L, column C: …" in e. NULL-safe users: free with
 * json_free. */
int json_parse(struct json **out, const char *text, size_t n_bytes, int max_depth, struct err *e);
int json_parse_file(struct json **out, const char *path, size_t max_bytes, struct err *e);
void json_free(struct json *document);

enum json_type json_type(const struct json *v); /* NULL pointer counts as JSON_NULL */
int json_bool(const struct json *v);            /* value of a JSON_BOOL */
int64_t json_int(const struct json *v);         /* value of a JSON_INT (range-checked at parse) */
int json_is_number(const struct json *v);       /* JSON_INT or JSON_DOUBLE */
double json_double(const struct json *v);       /* of a number */
const char *json_string(const struct json *v,
                        size_t *n_bytes); /* borrowed, NUL-terminated, may hold NULs */
size_t json_length(const struct json *v); /* members of an array or object */
const struct json *json_at(const struct json *array, size_t i); /* NULL if out of range */
const struct json *json_get(const struct json *object,
                            const char *key); /* NULL if absent; last duplicate wins */
/* Iterate an object in document order: start with *it = 0. Returns 1 and fills key and value, 0 at
 * the end. */
int json_next(const struct json *object, size_t *it, const char **key, size_t *key_bytes,
              const struct json **value);
/* Serialises a value (compact) with the writer below. */
void json_dump(const struct json *v, struct buf *out);

/* ---- writer ---- commas and colons are placed by it; misuse trips an assertion in
 * debug builds and marks the buffer as failed in release builds ---- */
#define JSON_WRITER_DEPTH 64
struct json_writer {
    struct buf *out;
    int depth;
    uint64_t need_comma; /* one bit a level */
    uint64_t in_object;  /* one bit a level: object or array */
    int have_key;        /* a key waits for its value */
    int done;            /* the top-level value is complete */
};
void json_w_init(struct json_writer *w, struct buf *out);
void json_w_object(struct json_writer *w);     /* { */
void json_w_object_end(struct json_writer *w); /* } */
void json_w_array(struct json_writer *w);      /* [ */
void json_w_array_end(struct json_writer *w);  /* ] */
void json_w_key(struct json_writer *w, const char *key);
void json_w_keyn(struct json_writer *w, const char *key, size_t n_bytes);
void json_w_string(struct json_writer *w, const char *s);                  /* NULL writes null */
void json_w_stringn(struct json_writer *w, const char *s, size_t n_bytes); /* bad UTF-8 -> U+FFFD */
void json_w_int(struct json_writer *w, int64_t v);
void json_w_uint(struct json_writer *w, uint64_t v);
void json_w_double(struct json_writer *w, double v); /* not finite: null */
void json_w_bool(struct json_writer *w, int v);
void json_w_null(struct json_writer *w);
void json_w_value(struct json_writer *w, const struct json *v);
void json_w_raw(struct json_writer *w, const char *json_text, size_t n_bytes); /* trusted JSON */
/* key + value in one call */
void json_w_kstring(struct json_writer *w, const char *key, const char *s);
void json_w_kint(struct json_writer *w, const char *key, int64_t v);
void json_w_kdouble(struct json_writer *w, const char *key, double v);
void json_w_kbool(struct json_writer *w, const char *key, int v);
void json_w_knull(struct json_writer *w, const char *key);

#endif
