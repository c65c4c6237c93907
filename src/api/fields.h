/* SPDX-License-Identifier: Apache-2.0 */
/* Strict reading of one request's JSON fields. Every reader returns 1 when the field has a value, 0
 * when it is absent or null (the out parameter is untouched: defaults stay), -1 with a schema error
 * that names the field. */
#ifndef TERN_API_FIELDS_H
#define TERN_API_FIELDS_H

#include "api/error.h"
#include "base/arena.h"

struct fields {
    const struct json *object;
    const char *prefix; /* "" or "stream_options." */
    struct api_error *e;
    struct arena *arena; /* where strings and arrays go */
};

int field_bool(const struct fields *f, const char *name, int *out);
int field_int(const struct fields *f, const char *name, int64_t min, int64_t max, int64_t *out);
int field_int32(const struct fields *f, const char *name, int64_t min, int64_t max, int *out);
int field_double(const struct fields *f, const char *name, double *out);
int field_string(const struct fields *f, const char *name,
                 const char **out); /* refuses an embedded NUL */
int field_object(const struct fields *f, const char *name, const struct json **out);
int field_array(const struct fields *f, const char *name, const struct json **out);
/* List of integers min..max as int32. */
int field_ids(const struct fields *f, const char *name, int32_t min, int32_t max,
              const int32_t **ids, int *n);
int fail_field(const struct fields *f, const char *name, const char *kind,
               const char *msg); /* -1 */

/* What a look over a body's text tells, before a tree is built that takes 65 bytes a value: the
 * number of JSON values, and how many numbers the longest list of token ids in "prompt" or
 * "messages" has. The text need not be valid. */
struct body_size {
    size_t n_values, longest_id_prompt;
};
struct body_size fields_measure(const char *body, size_t n_bytes);
/* More values than this are refused: 65 MB, about a second to parse. */
#define MAX_BODY_VALUES (1u << 20)

/* Body -> object. Refuses what is not UTF-8, not JSON, not an object; names the field whose value
 * is at fault. */
int fields_parse_body(struct json **out, const char *body, size_t n_bytes, int max_depth,
                      struct api_error *e);

#endif
