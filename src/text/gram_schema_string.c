/* SPDX-License-Identifier: Apache-2.0 */
/* Strings of JSON schemas. Length alone is a counted repeat; one pattern alone is its own
 * automaton; everything else goes through gram_patterns, which can have any number of conditions at
 * once. A format is a regular expression for the part of it that all validators agree on. */
#include "text/gram_schema.h"

#include <stdlib.h>
#include <string.h>

static const struct gram_range plain_chars[] = {
    {0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, 0x10FFFF}};

/* One character inside a JSON string: raw, or escaped where that is usual. \u is for control
 * characters only: text is written as it is read, in UTF-8, and one escape is always one
 * character. */
static int32_t string_char(struct schema *c)
{
    if (c->char_body < 0) {
        static const char escaped[] = "\"\\/bfnrt";
        struct gram *g = c->g;
        struct gram_range hex[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}, high[] = {{'0', '1'}};
        struct gram_range letters[8];
        for (int i = 0; i < 8; i++) {
            letters[i] = (struct gram_range){(uint32_t)escaped[i], (uint32_t)escaped[i]};
        }
        int n = gram_ranges_normalize(letters, 8);
        int32_t digits = gram_chars(g, high, 1, gram_chars(g, hex, 3, GRAM_STATE_RETURN));
        int32_t after = gram_alt2(g, gram_chars(g, letters, n, GRAM_STATE_RETURN),
                                  gram_bytes(g, "u00", 3, digits));
        c->char_body =
            gram_alt2(g, gram_class_body(g, plain_chars, 4), gram_bytes(g, "\\", 1, after));
    }
    return c->char_body;
}

int32_t gram_schema_any_string(struct schema *c, int min, int max, int32_t next)
{
    int32_t close = gram_bytes(c->g, "\"", 1, next);
    return gram_bytes(c->g, "\"", 1, gram_repeat(c->g, string_char(c), min, max, close));
}

#define YEAR      "([0-9]{4}"
#define LEAP_YEAR "([0-9]{2}(0[48]|[2468][048]|[13579][26])"
#define DATE                                                                                       \
    YEAR                                                                                           \
        "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]" \
        "|1[0-9]|2[0-8]))|" LEAP_YEAR "-02-29))"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define LABEL "[a-z0-9]{1,30}(-[a-z0-9]{1,20}){0,2}"
#define EMAIL                                                                                      \
    "[A-Za-z0-9_]{1,30}([.+-][A-Za-z0-9_]{1,30}){0,3}@" LABEL "(\\." LABEL "){0,3}\\.[a-z]{2,10}"
#define HOST  "[a-z0-9]{1,30}(-[a-z0-9]{1,20}){0,2}(\\.[a-z0-9]{1,30}(-[a-z0-9]{1,20}){0,2}){0,4}"
#define PATH  "(/[A-Za-z0-9._~-]{0,60}){0,12}"
#define URI   "https?://" HOST "(:[1-9][0-9]{0,3})?" PATH
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

const char *gram_schema_format(const char *name)
{
    static const struct {
        const char *name, *re;
    } formats[] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE "T" TIME},
        {"duration",
         "P([0-9]{1,6}W|[0-9]{1,6}D(T[0-9]{1,6}[HMS])?|[0-9]{1,6}[YM]|T[0-9]{1,6}H([0-9]{1,6}M("
         "[0-9]{1,6}S)?)?|T[0-9]{1,6}M([0-9]{1,6}S)?|T[0-9]{1,6}S)"},
        {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
        {"ipv4", "(" OCTET "\\.){3}" OCTET},
        {"ipv6", "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"},
        {"email", EMAIL},
        {"idn-email", EMAIL},
        {"hostname", HOST},
        {"idn-hostname", HOST},
        {"uri", URI},
        {"iri", URI},
        {"url", URI},
        {"uri-reference", URI},
        {"iri-reference", URI},
        {"uri-template", "https?://" HOST "(/([A-Za-z0-9._~-]{0,60}|\\{[a-z]{1,20}\\})){0,12}"},
        {"json-pointer", "(/[A-Za-z0-9_-]{0,60}){0,12}"},
        {"relative-json-pointer", "(0|[1-9][0-9]{0,3})(#|(/[A-Za-z0-9_-]{0,60}){0,12})"},
        {"int32", ""},
        {"int64", ""},
        {"float", ""},
        {"double", ""},
        {"password", ""},
        {"binary", ""},
        {"byte", ""},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(name, formats[i].name) == 0) {
            return formats[i].re;
        }
    }
    return NULL;
}

/* The next free condition; NULL (and refused) when there is none. */
static struct gram_pattern *new_condition(struct schema *c, struct gram_pattern *out, int *n,
                                          int max)
{
    if (*n == max) {
        gram_schema_refuse(c, "pattern", "in so many schemas together is not supported");
        return NULL;
    }
    out[*n] = (struct gram_pattern){0};
    return &out[(*n)++];
}

static void add_pattern(struct schema *c, const struct json *re, int forbidden,
                        struct gram_pattern *out, int *n, int max)
{
    if (re == NULL) {
        return;
    }
    if (json_type(re) != JSON_STRING) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: pattern must be a string");
        return;
    }
    size_t len;
    const char *s = json_string(re, &len);
    for (int i = 0; i < *n; i++) { /* the same one twice says nothing new */
        if (out[i].re != NULL && out[i].forbidden == forbidden && out[i].re_bytes == len &&
            memcmp(out[i].re, s, len) == 0) {
            return;
        }
    }
    struct gram_pattern *p = new_condition(c, out, n, max);
    if (p != NULL) {
        p->re = s;
        p->re_bytes = len;
        p->forbidden = forbidden;
    }
}

static void add_others(struct schema *c, const struct json *list, struct gram_pattern *out, int *n,
                       int max)
{
    size_t count = json_length(list);
    struct gram_literal *texts = arena_alloc(&c->arena, sizeof *texts * (count + 1));
    struct gram_pattern *p = texts != NULL && count > 0 ? new_condition(c, out, n, max) : NULL;
    if (p != NULL) {
        for (size_t i = 0; i < count; i++) {
            texts[i].s = json_string(json_at(list, i), &texts[i].n);
        }
        p->texts = texts;
        p->n_texts = (int)count;
        p->forbidden = 1;
    }
}

int gram_schema_conditions(struct schema *c, const struct view *v, struct gram_pattern *out,
                           int max)
{
    int n = 0;
    for (int i = 0; i < v->n && !gram_failed(c->g); i++) {
        const struct json *s = v->schema[i], *format = json_get(s, "format");
        add_pattern(c, json_get(s, "pattern"), 0, out, &n, max);
        if (v->made[i]) {
            add_pattern(c, json_get(s, NOT_PATTERN), 1, out, &n, max);
            add_others(c, json_get(s, OTHER_THAN), out, &n, max);
        }
        if (json_type(format) != JSON_STRING) {
            continue;
        }
        const char *name = json_string(format, NULL), *re = gram_schema_format(name);
        if (re == NULL) {
            gram_fail(c->g, ERR_UNSUPPORTED, "JSON schema: format '%.60s' is not supported", name);
        } else if (*re != 0) {
            struct gram_pattern *p = new_condition(c, out, &n, max);
            if (p != NULL) {
                p->re = re;
                p->re_bytes = strlen(re);
                p->whole = 1;
            }
        }
    }
    return n;
}

int32_t gram_schema_string(struct schema *c, const struct view *v, int32_t next)
{
    struct gram_pattern conditions[GRAM_MAX_PATTERNS];
    int n = gram_schema_conditions(c, v, conditions, GRAM_MAX_PATTERNS - 1);
    int min = gram_schema_count(c, v, "minLength", 1, 0),
        max = gram_schema_count(c, v, "maxLength", 0, -1);
    if (gram_failed(c->g)) {
        return next;
    }
    if (max >= 0 && max < min) {
        return gram_schema_nothing(c, "maxLength %d is below minLength %d", max, min);
    }
    if (n == 0) {
        return gram_schema_any_string(c, min, max, next);
    }
    int32_t close = gram_bytes(c->g, "\"", 1, next), body;
    if (n == 1 && conditions[0].re != NULL && !conditions[0].forbidden) {
        const struct gram_pattern *p = &conditions[0];
        if (min == 0 && max < 0) {
            body = gram_regex(c->g, p->re, p->re_bytes, GRAM_TEXT_IN_JSON, !p->whole, close);
            return gram_bytes(c->g, "\"", 1, body);
        }
        /* "^[a-z]+$" and the like: the counts just meet */
        if (gram_regex_counted(c->g, p->re, p->re_bytes, GRAM_TEXT_IN_JSON, !p->whole, min, max,
                               close, &body)) {
            return gram_bytes(c->g, "\"", 1, body);
        }
    }
    if (min > 0 || max >= 0) {
        conditions[n++] = (struct gram_pattern){.min = min, .max = max};
    }
    body = gram_patterns(c->g, conditions, n, GRAM_TEXT_IN_JSON, close);
    return gram_bytes(c->g, "\"", 1, body);
}
