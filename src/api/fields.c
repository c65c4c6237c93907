/* SPDX-License-Identifier: Apache-2.0 */
/* Types are taken literally: "8" is no integer and 1 is no boolean. A client that sends those has a
 * bug worth hearing of, and a server that guesses hides it. Integers may be written 8.0, as JSON
 * has one number type. */
#include "api/fields.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct json *get(const struct fields *f, const char *name)
{
    const struct json *v = json_get(f->object, name);
    return json_type(v) == JSON_NULL ? NULL : v;
}

static void full_name(const struct fields *f, const char *name, char out[128])
{
    snprintf(out, 128, "%s%s", f->prefix, name);
}

int fail_field(const struct fields *f, const char *name, const char *kind, const char *msg)
{
    char full[128];
    full_name(f, name, full);
    return api_fail_field(f->e, full, kind, json_get(f->object, name), "%s", msg);
}

int field_bool(const struct fields *f, const char *name, int *out)
{
    const struct json *v = get(f, name);
    if (!v) {
        return 0;
    }
    if (json_type(v) != JSON_BOOL) {
        return fail_field(f, name, "bool_type", "Input should be a valid boolean");
    }
    *out = json_bool(v);
    return 1;
}

static int range(const struct fields *f, const char *name, int low, int64_t bound)
{
    char msg[96];
    snprintf(msg, sizeof msg, "Input should be %s than or equal to %" PRId64,
             low ? "greater" : "less", bound);
    return fail_field(f, name, low ? "greater_than_equal" : "less_than_equal", msg);
}

int field_int(const struct fields *f, const char *name, int64_t min, int64_t max, int64_t *out)
{
    const struct json *v = get(f, name);
    if (!v) {
        return 0;
    }
    int64_t i;
    if (json_type(v) == JSON_INT) {
        i = json_int(v);
    } else if (json_type(v) == JSON_DOUBLE) {
        double d = json_double(v);
        if (d != floor(d)) {
            return fail_field(
                f, name, "int_from_float",
                "Input should be a valid integer, got a number with a fractional part");
        }
        if (d < (double)min || d <= -9223372036854775808.0) {
            return range(f, name, 1, min);
        }
        if (d > (double)max || d >= 9223372036854775808.0) {
            return range(f, name, 0, max);
        }
        i = (int64_t)d;
    } else {
        return fail_field(f, name, "int_type", "Input should be a valid integer");
    }
    if (i < min) {
        return range(f, name, 1, min);
    }
    if (i > max) {
        return range(f, name, 0, max);
    }
    *out = i;
    return 1;
}

int field_int32(const struct fields *f, const char *name, int64_t min, int64_t max, int *out)
{
    int64_t v;
    int rc = field_int(f, name, min, max, &v);
    if (rc > 0) {
        *out = (int)v;
    }
    return rc;
}

int field_double(const struct fields *f, const char *name, double *out)
{
    const struct json *v = get(f, name);
    if (!v) {
        return 0;
    }
    if (json_type(v) != JSON_INT && json_type(v) != JSON_DOUBLE) {
        return fail_field(f, name, "float_type", "Input should be a valid number");
    }
    *out = json_double(v);
    return 1;
}

int field_string(const struct fields *f, const char *name, const char **out)
{
    const struct json *v = get(f, name);
    if (!v) {
        return 0;
    }
    size_t n;
    if (json_type(v) != JSON_STRING) {
        return fail_field(f, name, "string_type", "Input should be a valid string");
    }
    const char *s = json_string(v, &n);
    if (strlen(s) != n) {
        return fail_field(f, name, "string_type", "Input should not hold a NUL character");
    }
    *out = arena_strdup(f->arena, s);
    return *out ? 1 : api_fail(f->e, 503, "ServiceUnavailableError", NULL, "out of memory");
}

int field_object(const struct fields *f, const char *name, const struct json **out)
{
    const struct json *v = get(f, name);
    if (!v) {
        return 0;
    }
    if (json_type(v) != JSON_OBJECT) {
        return fail_field(f, name, "dict_type", "Input should be a valid dictionary");
    }
    *out = v;
    return 1;
}

int field_array(const struct fields *f, const char *name, const struct json **out)
{
    const struct json *v = get(f, name);
    if (!v) {
        return 0;
    }
    if (json_type(v) != JSON_ARRAY) {
        return fail_field(f, name, "list_type", "Input should be a valid list");
    }
    *out = v;
    return 1;
}

int field_ids(const struct fields *f, const char *name, int32_t min, int32_t max,
              const int32_t **ids, int *n)
{
    const struct json *v;
    int rc = field_array(f, name, &v);
    if (rc <= 0) {
        return rc;
    }
    size_t len = json_length(v);
    int32_t *out = arena_alloc(f->arena, (len + 1) * sizeof *out);
    if (!out) {
        return api_fail(f->e, 503, "ServiceUnavailableError", NULL, "out of memory");
    }
    for (size_t i = 0; i < len; i++) {
        const struct json *item = json_at(v, i);
        if (json_type(item) != JSON_INT) {
            return fail_field(f, name, "int_type", "Input should be a list of integers");
        }
        int64_t id = json_int(item);
        if (id < min || id > max) {
            return api_fail_param(f->e, name, item, "Token id %" PRId64 " is out of vocabulary",
                                  id);
        }
        out[i] = (int32_t)id;
    }
    *ids = out;
    *n = (int)len;
    return 1;
}

/* The name of the member whose value starts at or before the place of the error: … "name" : <here>
 */
static int key_before(const char *body, size_t at, char out[64])
{
    while (at > 0 &&
           strchr("-+.0123456789 \t\r\nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
                  body[at - 1])) {
        at--;
    }
    if (at == 0 || body[at - 1] != ':') {
        return 0;
    }
    at--;
    while (at > 0 && strchr(" \t\r\n", body[at - 1])) {
        at--;
    }
    if (at == 0 || body[at - 1] != '"') {
        return 0;
    }
    size_t end = --at;
    while (at > 0 && body[at - 1] != '"') {
        at--;
    }
    if (at == 0 || end - at >= 64 || !utf8_is_valid(body + at, end - at)) {
        return 0;
    }
    memcpy(out, body + at, end - at);
    out[end - at] = 0;
    return out[0] != 0;
}

/* End of the string that starts at the quote `i`: the place behind its closing quote. */
static size_t skip_string(const char *body, size_t n_bytes, size_t i)
{
    for (i++; i < n_bytes && body[i] != '"'; i++) {
        i += body[i] == '\\';
    }
    return i < n_bytes ? i + 1 : n_bytes;
}

struct body_size fields_measure(const char *body, size_t n_bytes)
{
    struct body_size m = {1, 0};
    int depth = 0, in_prompt = 0;
    size_t n_ids = 0, i = 0, key = 0, key_end = 0; /* n_ids 0: not in a list of numbers */
    while (i < n_bytes) {
        char c = body[i];
        if (c == '"') {
            key = i;
            i = key_end = skip_string(body, n_bytes, i);
            continue;
        }
        i++;
        if (c == ',') {
            m.n_values++;
            in_prompt &= depth > 1;
            n_ids += n_ids > 0;
        } else if (c == ':' && depth == 1) {
            in_prompt = (key_end - key == 8 && memcmp(body + key, "\"prompt\"", 8) == 0) ||
                        (key_end - key == 10 && memcmp(body + key, "\"messages\"", 10) == 0);
        } else if (c == '[' || c == '{') {
            depth++;
            m.n_values++;
            size_t at = i;
            while (at < n_bytes && strchr(" \t\r\n", body[at]) && body[at]) {
                at++;
            }
            n_ids = c == '[' && in_prompt && at < n_bytes && body[at] >= '0' && body[at] <= '9';
        } else if (c == ']' || c == '}') {
            depth--;
            m.longest_id_prompt = n_ids > m.longest_id_prompt ? n_ids : m.longest_id_prompt;
            n_ids = 0;
        }
    }
    return m;
}

int fields_parse_body(struct json **out, const char *body, size_t n_bytes, int max_depth,
                      struct api_error *e)
{
    struct err err = {0};
    *out = NULL;
    if (!utf8_is_valid(body, n_bytes)) {
        return api_fail_field(e, "", "json_invalid", NULL, "The request body is not valid UTF-8");
    }
    size_t n_values = n_bytes > MAX_BODY_VALUES ? fields_measure(body, n_bytes).n_values : 0;
    if (n_values > MAX_BODY_VALUES) {
        return api_fail_field(e, "", "too_long", NULL,
                              "The request body has %zu JSON values, at most %u are allowed",
                              n_values, MAX_BODY_VALUES);
    }
    if (json_parse(out, body, n_bytes, max_depth, &err) != 0) {
        unsigned line, column;
        char key[64];
        *out = NULL;
        if (err.code == ERR_FORMAT && sscanf(err.text, "line %u, column %u", &line, &column) == 2) {
            size_t at = 0;
            for (unsigned l = 1; l < line && at < n_bytes; at++) {
                l += body[at] == '\n';
            }
            for (unsigned c = 1; c < column && at < n_bytes; c++) { /* columns count characters */
                do {
                    at++;
                } while (at < n_bytes && ((unsigned char)body[at] & 0xC0) == 0x80);
            }
            if (at <= n_bytes && key_before(body, at, key)) {
                return api_fail_field(e, key, "json_invalid", NULL, "JSON decode error at %s",
                                      err.text);
            }
        }
        if (err.code == ERR_NOMEM) {
            return api_fail_err(e, &err);
        }
        return api_fail_field(e, "", "json_invalid", NULL, "JSON decode error at %s", err.text);
    }
    if (json_type(*out) != JSON_OBJECT) {
        json_free(*out);
        *out = NULL;
        return api_fail_field(e, "", "model_attributes_type", NULL,
                              "Input should be a valid dictionary");
    }
    return 0;
}
