/* SPDX-License-Identifier: Apache-2.0 */
/* JSON Schema (draft 2020-12, and what is left of older drafts) to a grammar.
 *
 * The grammar accepts a subset of the documents that the schema accepts, never anything else: every
 * keyword that constrains a value is either enforced or refused by name. The subset is a choice of
 * form, not of content: declared properties come in the order of the schema, members that the
 * schema does not declare are written only where it asks for them (additionalProperties given, or
 * no properties at all), numbers are plain decimals, white space is bounded so that a small model
 * can't print blanks for ever.
 *
 * A value is described by a `struct view`: the schema objects that apply to it together ($ref and
 * allOf add to the list), so that allOf needs no merging of JSON texts; each keyword is then
 * combined over the list or refused. */
#include "text/gram_schema.h"
#include "base/arena.h"
#include "base/map.h"
#include "base/utf8.h"
#include "text/gram_front.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NESTING  48 /* schema levels built inline; recursion goes through rules */
#define MAX_FRACTION 15 /* digits after the point */

enum {
    T_NULL = 1,
    T_BOOL = 2,
    T_OBJECT = 4,
    T_ARRAY = 8,
    T_NUMBER = 16,
    T_STRING = 32,
    T_INTEGER = 64,
    T_ALL = 63
};

static int32_t value_of(struct schema *c, const struct view *v, int32_t next);
static int32_t any_value(struct schema *c, int32_t next);

void gram_schema_refuse(struct schema *c, const char *keyword, const char *why)
{
    gram_fail(c->g, ERR_UNSUPPORTED, "JSON schema: keyword '%s' %s", keyword, why);
}

/* ---- white space and punctuation ---- */

static int32_t space(struct schema *c, int32_t next)
{
    static const struct gram_range blank[] = {{' ', ' '}};
    if (c->o->whitespace_regex != NULL) {
        return gram_regex(c->g, c->o->whitespace_regex, strlen(c->o->whitespace_regex),
                          GRAM_TEXT_RAW, 0, next);
    }
    if (c->o->no_whitespace) {
        return next;
    }
    int32_t alt[3] = {
        next, gram_bytes(c->g, " ", 1, next),
        gram_bytes(c->g, "\n", 1, gram_repeat(c->g, gram_class_body(c->g, blank, 1), 0, 8, next))};
    return gram_alt(c->g, alt, 3);
}

int32_t gram_schema_comma(struct schema *c, int32_t next)
{
    return c->o->no_whitespace && c->o->whitespace_regex == NULL
               ? gram_bytes(c->g, ", ", 2, next)
               : gram_bytes(c->g, ",", 1, space(c, next));
}

static int32_t colon(struct schema *c, int32_t next)
{
    return c->o->no_whitespace && c->o->whitespace_regex == NULL
               ? gram_bytes(c->g, ": ", 2, next)
               : gram_bytes(c->g, ":", 1, space(c, next));
}

/* ---- strings ---- */

static const struct gram_range plain_chars[] = {
    {0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, 0x10FFFF}};

/* One character inside a JSON string: raw or escaped; \u escapes of surrogates are left out, so one
 * escape is always one character. */
static int32_t string_char(struct schema *c)
{
    if (c->char_body < 0) {
        static const char escaped[] = "\"\\/bfnrt";
        struct gram *g = c->g;
        struct gram_range hex[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
        struct gram_range not_d[] = {{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}};
        struct gram_range d[] = {{'D', 'D'}, {'d', 'd'}}, low[] = {{'0', '7'}};
        struct gram_range letters[8];
        for (int i = 0; i < 8; i++) {
            letters[i] = (struct gram_range){(uint32_t)escaped[i], (uint32_t)escaped[i]};
        }
        int n = gram_ranges_normalize(letters, 8);
        int32_t h1 = gram_chars(g, hex, 3, GRAM_STATE_RETURN), h2 = gram_chars(g, hex, 3, h1);
        int32_t u = gram_alt2(g, gram_chars(g, not_d, 5, gram_chars(g, hex, 3, h2)),
                              gram_chars(g, d, 2, gram_chars(g, low, 1, h2)));
        int32_t after =
            gram_alt2(g, gram_chars(g, letters, n, GRAM_STATE_RETURN), gram_bytes(g, "u", 1, u));
        c->char_body =
            gram_alt2(g, gram_class_body(g, plain_chars, 4), gram_bytes(g, "\\", 1, after));
    }
    return c->char_body;
}

static int32_t any_string(struct schema *c, int min, int max, int32_t next)
{
    int32_t close = gram_bytes(c->g, "\"", 1, next);
    return gram_bytes(c->g, "\"", 1, gram_repeat(c->g, string_char(c), min, max, close));
}

/* Formats with a meaning that a regular expression has. NULL: unknown. "": an annotation without
 * one. */
static const char *format_regex(const char *name)
{
    static const struct {
        const char *name, *re;
    } formats[] = {
        {"date", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"},
        {"time", "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3])"
                 ":[0-5][0-9])"},
        {"date-time",
         "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
         "(\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
        {"duration", "P[0-9]{1,6}(D|W|Y|M)|PT[0-9]{1,6}(H|M|S)"},
        {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
        {"ipv4", "((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]["
                 "0-9]|[1-9]?[0-9])"},
        {"ipv6", "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"},
        {"email", "[a-z0-9_]{1,30}(\\.[a-z0-9_]{1,30}){0,3}@[a-z0-9]{1,30}(\\.[a-z0-9]{1,30}){0,3}"
                  "\\.[a-z]{2,10}"},
        {"hostname",
         "[a-z0-9]{1,30}(-[a-z0-9]{1,20}){0,2}(\\.[a-z0-9]{1,30}(-[a-z0-9]{1,20}){0,2}){0,4}"},
        {"uri", "https?://[a-z0-9]{1,30}(\\.[a-z0-9]{1,30}){0,4}(:[1-9][0-9]{0,3})?(/"
                "[A-Za-z0-9._~-]{0,60}){0,12}"},
        {"uri-reference",
         "https?://[a-z0-9]{1,30}(\\.[a-z0-9]{1,30}){0,4}(/[A-Za-z0-9._~-]{0,60}){0,12}"},
        {"json-pointer", "(/[A-Za-z0-9_-]{0,60}){0,12}"},
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

static int32_t string_value(struct schema *c, const struct view *v, int32_t next)
{
    const struct json *pattern = gram_schema_one(c, v, "pattern"),
                      *format = gram_schema_one(c, v, "format");
    int min = gram_schema_count(c, v, "minLength", 1, 0),
        max = gram_schema_count(c, v, "maxLength", 0, -1);
    if (max >= 0 && max < min) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: maxLength %d is below minLength %d", max, min);
    }
    const char *re = NULL;
    int search = 0;
    if (format != NULL && json_type(format) == JSON_STRING) {
        const char *name = json_string(format, NULL);
        re = format_regex(name);
        if (re == NULL) {
            gram_fail(c->g, ERR_UNSUPPORTED, "JSON schema: format '%.60s' is not supported", name);
        }
        re = re != NULL && *re != 0 ? re : NULL;
    }
    if (pattern != NULL) {
        if (json_type(pattern) != JSON_STRING) {
            gram_fail(c->g, ERR_INVALID, "JSON schema: pattern must be a string");
            return next;
        }
        if (re != NULL) {
            gram_schema_refuse(c, "pattern", "together with format is not supported");
        }
        re = json_string(pattern, NULL);
        search = 1;
    }
    if (re == NULL) {
        return any_string(c, min, max, next);
    }
    if (min > 0 || max >= 0) {
        gram_schema_refuse(c, pattern != NULL ? "pattern" : "format",
                           "together with minLength or maxLength is not supported");
    }
    int32_t close = gram_bytes(c->g, "\"", 1, next);
    return gram_bytes(c->g, "\"", 1,
                      gram_regex(c->g, re, strlen(re), GRAM_TEXT_IN_JSON, search, close));
}

/* ---- numbers ---- */

/* A number's value as plain decimal text: as written where possible, exponents written out. */
static int plain_decimal(double d, const struct json *v, char *out, size_t size)
{
    if (json_type(v) == JSON_INT) {
        return snprintf(out, size, "%lld", (long long)json_int(v)) < (int)size;
    }
    for (int digits = 0; digits <= 30; digits++) {
        int n = snprintf(out, size, "%.*f", digits, d);
        if (n < 0 || (size_t)n >= size) {
            return 0;
        }
        if (strtod(out, NULL) == d) {
            return 1;
        }
    }
    return 0;
}

struct bound {
    double value;
    int set, exclusive;
    char text[96];
};

static void take_bound(struct schema *c, struct bound *b, const struct json *v, int exclusive,
                       int upper, const char *name)
{
    if (v == NULL || gram_failed(c->g)) {
        return;
    }
    if (json_type(v) == JSON_BOOL) { /* draft 4: makes minimum or maximum exclusive */
        b->exclusive |= exclusive && json_bool(v);
        return;
    }
    if (json_type(v) != JSON_INT && json_type(v) != JSON_DOUBLE) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: %s must be a number", name);
        return;
    }
    double d = json_double(v);
    int tighter = !b->set || (upper ? d < b->value : d > b->value) || (d == b->value && exclusive);
    if (tighter) {
        b->value = d;
        b->set = 1;
        b->exclusive = exclusive;
        if (!plain_decimal(d, v, b->text, sizeof b->text)) {
            gram_fail(c->g, ERR_UNSUPPORTED, "JSON schema: %s has too many digits", name);
        }
    }
}

static int whole_digits(const char *text)
{
    return (int)strcspn(text + (*text == '-'), ".");
}

static int fraction_digits(const char *text)
{
    const char *point = strchr(text, '.');
    return point != NULL ? (int)strlen(point + 1) : 0;
}

static int32_t number_value(struct schema *c, const struct view *v, int integer, int32_t next)
{
    struct bound lo = {0}, hi = {0};
    struct gram_number spec = {.integer = integer, .max_fraction = MAX_FRACTION};
    for (int i = 0; i < v->n; i++) {
        const struct json *s = v->schema[i];
        take_bound(c, &lo, json_get(s, "minimum"), 0, 0, "minimum");
        take_bound(c, &hi, json_get(s, "maximum"), 0, 1, "maximum");
        take_bound(c, &lo, json_get(s, "exclusiveMinimum"), 1, 0, "exclusiveMinimum");
        take_bound(c, &hi, json_get(s, "exclusiveMaximum"), 1, 1, "exclusiveMaximum");
    }
    const struct json *m = gram_schema_one(c, v, "multipleOf");
    if (m != NULL) {
        double d = json_type(m) == JSON_INT || json_type(m) == JSON_DOUBLE ? json_double(m) : 0;
        if (!(d > 0)) {
            gram_fail(c->g, ERR_INVALID, "JSON schema: multipleOf must be a number above 0");
        } else if (d != (double)(int64_t)d || d > 1e15) {
            gram_schema_refuse(c, "multipleOf", "is supported for whole numbers only");
        }
        spec.multiple_of = gram_failed(c->g) ? 0 : (int64_t)d;
    }
    spec.lo = lo.set ? lo.text : NULL;
    spec.hi = hi.set ? hi.text : NULL;
    if (!integer && (lo.exclusive || hi.exclusive)) {
        /* A text just inside must not be rounded to the bound by whoever reads it as a double. */
        int whole = whole_digits(lo.text), other = whole_digits(hi.text);
        whole = other > whole ? other : whole;
        spec.max_fraction = whole < MAX_FRACTION ? MAX_FRACTION - whole : 1;
        if (whole + fraction_digits(lo.text) >= MAX_FRACTION ||
            whole + fraction_digits(hi.text) >= MAX_FRACTION) {
            gram_schema_refuse(c, hi.exclusive ? "exclusiveMaximum" : "exclusiveMinimum",
                               "with so many digits is not supported");
        }
    }
    spec.lo_exclusive = lo.exclusive;
    spec.hi_exclusive = hi.exclusive;
    return gram_failed(c->g) ? next : gram_number(c->g, &spec, next);
}

/* ---- arrays ---- */

static int32_t array_value(struct schema *c, const struct view *v, int32_t next)
{
    static const char *const refused[] = {"contains", "minContains", "maxContains",
                                          "unevaluatedItems"};
    struct gram *g = c->g;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const struct json *k = gram_schema_one(c, v, refused[i]);
        if (k != NULL && !(i == 3 && json_type(k) == JSON_BOOL)) {
            gram_schema_refuse(c, refused[i], "is not supported");
        }
    }
    const struct json *prefix = gram_schema_one(c, v, "prefixItems"), *items = NULL;
    int min = gram_schema_count(c, v, "minItems", 1, 0),
        max = gram_schema_count(c, v, "maxItems", 0, -1);
    const struct json *unique = gram_schema_one(c, v, "uniqueItems");
    if (unique != NULL && json_bool(unique) && (max < 0 || max > 1)) {
        gram_schema_refuse(c, "uniqueItems", "is not supported");
    }
    struct view rest = {0};
    for (int i = 0; i < v->n; i++) {
        items = json_get(v->schema[i], "items");
        if (prefix != NULL && items != NULL && json_get(v->schema[i], "prefixItems") != prefix) {
            gram_schema_refuse(c, "items", "in another schema than prefixItems is not supported");
        }
        if (items != NULL && json_type(items) == JSON_ARRAY) { /* drafts before 2020-12 */
            if (v->n > 1 || prefix != NULL) {
                gram_schema_refuse(c, "items", "as a list beside other schemas is not supported");
            }
            prefix = items;
            items = json_get(v->schema[i], "additionalItems");
        }
        if (items != NULL) {
            gram_schema_add(c, &rest, items);
        }
    }
    if (gram_schema_one(c, v, "unevaluatedItems") != NULL && rest.n == 0) {
        rest.never = !json_bool(gram_schema_one(c, v, "unevaluatedItems"));
    }
    int n_prefix = prefix != NULL ? (int)json_length(prefix) : 0;
    if (prefix != NULL && (json_type(prefix) != JSON_ARRAY || n_prefix > 1000)) {
        gram_fail(g, ERR_INVALID,
                  "JSON schema: prefixItems must be a list of at most 1000 schemas");
    }
    if (rest.never) {
        max = max < 0 || max > n_prefix ? n_prefix : max;
    }
    if (gram_failed(g) || (max >= 0 && max < min)) {
        gram_fail(g, ERR_INVALID, "JSON schema: no array has at least %d and at most %d items", min,
                  max);
        return next;
    }
    int32_t close = space(c, gram_bytes(g, "]", 1, next));
    int32_t after = close; /* what may follow item number i - 1, counting down */
    int rest_min = min > n_prefix ? min - n_prefix : 0, rest_max = max < 0 ? -1 : max - n_prefix;
    if (rest_max != 0 && (max < 0 || max > n_prefix)) {
        int rule = gram_rule_new(g);
        gram_rule_set(g, rule, value_of(c, &rest, GRAM_STATE_RETURN));
        int32_t more = gram_schema_comma(c, gram_call(g, rule, GRAM_STATE_RETURN));
        if (n_prefix == 0) { /* the first item has no comma */
            int32_t tail = gram_repeat(g, more, rest_min > 0 ? rest_min - 1 : 0,
                                       rest_max < 0 ? -1 : rest_max - 1, close);
            after = gram_call(g, rule, tail);
            after = rest_min > 0 ? after : gram_alt2(g, after, close);
        } else {
            after = gram_repeat(g, more, rest_min, rest_max, close);
        }
    }
    for (int i = n_prefix - 1; i >= 0 && !gram_failed(g); i--) {
        if (max >= 0 && i >= max) {
            continue;
        }
        struct view item = {0};
        gram_schema_add(c, &item, json_at(prefix, (size_t)i));
        int32_t one = value_of(c, &item, after);
        one = i > 0 ? gram_schema_comma(c, one) : one;
        after = i >= min ? gram_alt2(g, one, close) : one;
    }
    return gram_bytes(g, "[", 1, space(c, after));
}

/* ---- objects ---- */

struct property {
    const char *key;
    size_t n;
    struct view view;
    int required;
};

static int32_t key_text(struct schema *c, const char *key, size_t n, int32_t next)
{
    struct buf text;
    struct json_writer w;
    buf_init(&text);
    json_w_init(&w, &text);
    json_w_stringn(&w, key, n);
    int32_t entry = gram_bytes(c->g, text.data, text.len, next);
    buf_fini(&text);
    return entry;
}

/* A key that is none of the declared ones: their trie, left where a character differs. Escapes are
 * not used in such keys, so no other spelling of a declared name slips through. keys are sorted;
 * all begin with the same `at` bytes. */
static int32_t other_key(struct schema *c, const struct property **keys, int n, size_t at,
                         int32_t close)
{
    struct gram *g = c->g;
    struct gram_range used[256];
    int32_t alt[260];
    int count = 0, n_used = 0, ends_here = 0;
    for (int i = 0; i < n && !gram_failed(g);) {
        if (keys[i]->n == at) {
            ends_here = 1;
            i++;
            continue;
        }
        uint32_t cp = 0;
        int len = utf8_decode(keys[i]->key + at, keys[i]->n - at, &cp), m = i;
        size_t step = len > 0 ? (size_t)len : 1;
        while (m < n && keys[m]->n >= at + step &&
               memcmp(keys[m]->key + at, keys[i]->key + at, step) == 0) {
            m++;
        }
        if (len <= 0 || count >= 200) {
            gram_schema_refuse(c, "additionalProperties",
                               "together with so many different property names is not supported");
            return close;
        }
        if (cp >= 0x20 && cp != '"' && cp != '\\') { /* else only an escape could spell it */
            used[n_used++] = (struct gram_range){cp, cp};
            alt[count++] = gram_bytes(g, keys[i]->key + at, step,
                                      other_key(c, keys + i, m - i, at + step, close));
        }
        i = m;
    }
    struct gram_range free_chars[270];
    int n_free =
        gram_ranges_subtract(plain_chars, 4, used, gram_ranges_normalize(used, n_used), free_chars);
    int32_t tail = gram_repeat(g, gram_class_body(g, plain_chars, 4), 0, -1, close);
    alt[count++] = gram_chars(g, free_chars, n_free, tail);
    if (!ends_here) {
        alt[count++] = close;
    }
    return gram_alt(g, alt, count);
}

static int by_key(const void *a, const void *b)
{
    const struct property *x = *(const struct property *const *)a,
                          *y = *(const struct property *const *)b;
    int d = memcmp(x->key, y->key, x->n < y->n ? x->n : y->n);
    return d != 0 ? d : (x->n < y->n ? -1 : x->n > y->n);
}

struct object {
    struct property *props;
    int n;
    struct view extra; /* schema of members that are not declared */
    int extra_allowed;
    const char *key_pattern;  /* patternProperties: their keys */
    const struct json *names; /* propertyNames */
    int closed;               /* unevaluatedProperties false */
    int min, max;
};

/* "key": value of a member that is not declared, ending in RETURN. */
static int32_t extra_member(struct schema *c, const struct object *o)
{
    struct gram *g = c->g;
    int32_t value = colon(c, value_of(c, &o->extra, GRAM_STATE_RETURN));
    int32_t close = gram_bytes(g, "\"", 1, value);
    if (o->key_pattern != NULL) {
        return gram_bytes(
            g, "\"", 1,
            gram_regex(g, o->key_pattern, strlen(o->key_pattern), GRAM_TEXT_IN_JSON, 1, close));
    }
    if (o->names != NULL) {
        struct view names = {0};
        gram_schema_add(c, &names, o->names);
        names.types = T_STRING;
        return value_of(c, &names, value);
    }
    const struct property **keys = malloc(sizeof *keys * (size_t)(o->n + 1));
    if (keys == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a JSON schema");
        return close;
    }
    for (int i = 0; i < o->n; i++) {
        keys[i] = &o->props[i];
    }
    qsort(keys, (size_t)o->n, sizeof *keys, by_key);
    int32_t entry = gram_bytes(g, "\"", 1, other_key(c, keys, o->n, 0, close));
    free(keys);
    return entry;
}

static struct property *find_property(struct object *o, const char *key, size_t n)
{
    for (int i = 0; i < o->n; i++) {
        if (o->props[i].n == n && memcmp(o->props[i].key, key, n) == 0) {
            return &o->props[i];
        }
    }
    return NULL;
}

static struct property *add_property(struct schema *c, struct object *o, const char *key, size_t n)
{
    struct property *p = find_property(o, key, n);
    if (p == NULL && o->n < 2000) {
        p = &o->props[o->n++];
        *p = (struct property){.key = key, .n = n};
    } else if (p == NULL) {
        gram_fail(c->g, ERR_TOO_LARGE, "JSON schema: an object has more than 2000 properties");
    }
    return p;
}

static void require_names(struct schema *c, struct object *o, const struct json *req)
{
    if (req != NULL && json_type(req) != JSON_ARRAY) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: required must be a list of strings");
        return;
    }
    for (size_t k = 0; k < json_length(req); k++) {
        size_t n = 0;
        const char *key =
            json_type(json_at(req, k)) == JSON_STRING ? json_string(json_at(req, k), &n) : NULL;
        if (key == NULL) {
            gram_fail(c->g, ERR_INVALID, "JSON schema: required must be a list of strings");
            return;
        }
        struct property *p = find_property(o, key, n);
        if (p == NULL && (p = add_property(c, o, key, n)) != NULL) {
            p->view = o->extra; /* required but not declared: a member that additionalProperties
                                   describes */
            if (o->key_pattern != NULL) {
                gram_schema_refuse(
                    c, "required",
                    "of a name outside properties beside patternProperties is not supported");
            }
            if (o->extra.never || (o->closed && o->extra.n == 0)) {
                gram_fail(c->g, ERR_INVALID,
                          "JSON schema: required property '%.60s' is not allowed by the schema",
                          key);
            }
        }
        if (p != NULL) {
            p->required = 1;
        }
    }
}

static void collect_properties(struct schema *c, const struct view *v, struct object *o)
{
    for (int i = 0; i < v->n && !gram_failed(c->g); i++) {
        const struct json *props = json_get(v->schema[i], "properties"), *sub;
        const char *key;
        size_t it = 0, n;
        if (props != NULL && json_type(props) != JSON_OBJECT) {
            gram_fail(c->g, ERR_INVALID, "JSON schema: properties must be an object");
        }
        while (props != NULL && !gram_failed(c->g) && json_next(props, &it, &key, &n, &sub)) {
            struct property *p = add_property(c, o, key, n);
            if (p != NULL) {
                gram_schema_add(c, &p->view, sub);
            }
        }
    }
    /* additionalProperties looks only at the properties beside it: it also describes those that
     * allOf or $ref bring. */
    for (int i = 0; i < v->n && !gram_failed(c->g); i++) {
        const struct json *props = json_get(v->schema[i], "properties");
        const struct json *add = json_get(v->schema[i], "additionalProperties");
        for (int k = 0; k < o->n && add != NULL; k++) {
            if (props == NULL || json_get(props, o->props[k].key) == NULL) {
                gram_schema_add(c, &o->props[k].view, add);
            }
        }
    }
    for (int i = 0; i < v->n && !gram_failed(c->g); i++) {
        require_names(c, o, json_get(v->schema[i], "required"));
        /* A member that another one asks for is simply always written, if anything may ask for it.
         */
        const struct json *deps = json_get(v->schema[i], "dependentRequired"), *names;
        const char *key;
        size_t it = 0, n;
        while (deps != NULL && !gram_failed(c->g) && json_next(deps, &it, &key, &n, &names)) {
            if (find_property(o, key, n) != NULL || o->extra_allowed) {
                require_names(c, o, names);
            }
        }
    }
}

static void collect_extra(struct schema *c, const struct view *v, struct object *o)
{
    int n_lists = 0, declared = 0;
    o->extra_allowed = 0;
    for (int i = 0; i < v->n; i++) {
        const struct json *s = v->schema[i];
        const struct json *add = json_get(s, "additionalProperties"),
                          *pats = json_get(s, "patternProperties");
        const struct json *props = json_get(s, "properties");
        declared |= props != NULL && json_length(props) > 0;
        if (add != NULL) {
            n_lists++;
            gram_schema_add(c, &o->extra, add);
            o->extra_allowed = !o->extra.never;
        }
        if (pats != NULL && json_length(pats) > 0) {
            size_t it = 0, n;
            const struct json *sub;
            if (json_length(pats) > 1 || o->key_pattern != NULL) {
                gram_schema_refuse(c, "patternProperties",
                                   "with more than one pattern is not supported");
            }
            (void)json_next(pats, &it, &o->key_pattern, &n, &sub);
            o->extra = (struct view){0};
            gram_schema_add(c, &o->extra, sub);
        }
    }
    if (o->key_pattern != NULL) {
        if (declared) {
            gram_schema_refuse(c, "patternProperties", "together with properties is not supported");
        }
        o->extra_allowed = !o->extra.never;
    } else if (n_lists == 0 && !declared) {
        o->extra_allowed = 1;
    }
}

/* The members and the closing brace; states by "property number, something written before". */
static int32_t members(struct schema *c, struct object *o, int32_t next)
{
    struct gram *g = c->g;
    int32_t close = space(c, gram_bytes(g, "}", 1, next));
    int32_t first = close, more = close; /* nothing written yet; something written */
    if (o->extra_allowed) {
        int rule = gram_rule_new(g);
        gram_rule_set(g, rule, extra_member(c, o));
        int min = o->n == 0 && o->min > 0 ? o->min : 0, max = o->n == 0 ? o->max : -1;
        int32_t again = gram_schema_comma(c, gram_call(g, rule, GRAM_STATE_RETURN));
        if (max != 0) {
            more = gram_repeat(g, again, 0, -1, close);
            first = gram_call(
                g, rule,
                gram_repeat(g, again, min > 0 ? min - 1 : 0, max < 0 ? -1 : max - 1, close));
            first = min > 0 ? first : gram_alt2(g, first, close);
        }
    }
    for (int i = o->n - 1; i >= 0 && !gram_failed(g); i--) {
        struct property *p = &o->props[i];
        if (p->view.never) {
            if (p->required) {
                gram_fail(g, ERR_INVALID,
                          "JSON schema: required property '%.60s' can have no value", p->key);
            }
            continue;
        }
        int rule = gram_rule_new(g);
        gram_rule_set(
            g, rule, key_text(c, p->key, p->n, colon(c, value_of(c, &p->view, GRAM_STATE_RETURN))));
        int32_t then = more;
        more = gram_schema_comma(c, gram_call(g, rule, then));
        int32_t begin = gram_call(g, rule, then);
        if (!p->required) {
            more = gram_alt2(g, more, then);
            begin = gram_alt2(g, begin, first);
        }
        first = begin;
    }
    return gram_bytes(g, "{", 1, space(c, first));
}

static int32_t object_value(struct schema *c, const struct view *v, int32_t next)
{
    static const char *const refused[] = {"dependentSchemas", "dependencies"};
    struct object o = {0};
    int required = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const struct json *k = gram_schema_one(c, v, refused[i]);
        if (k != NULL && json_length(k) > 0) {
            gram_schema_refuse(c, refused[i], "is not supported");
        }
    }
    const struct json *un = gram_schema_one(c, v, "unevaluatedProperties");
    o.names = gram_schema_one(c, v, "propertyNames");
    o.min = gram_schema_count(c, v, "minProperties", 1, 0);
    o.max = gram_schema_count(c, v, "maxProperties", 0, -1);
    o.props = arena_alloc(&c->arena, sizeof *o.props * 2001);
    if (o.props == NULL) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
        return next;
    }
    o.closed = un != NULL && json_type(un) == JSON_BOOL && !json_bool(un);
    collect_extra(c, v, &o);
    collect_properties(c, v, &o);
    for (int i = 0; i < o.n; i++) {
        required += o.props[i].required;
    }
    if (un != NULL) {
        if (json_type(un) != JSON_BOOL) {
            gram_schema_refuse(c, "unevaluatedProperties", "is supported as true or false only");
        } else if (o.closed && o.extra.n == 0 && o.key_pattern == NULL) {
            o.extra_allowed = 0;
        }
    }
    if (o.names != NULL && o.n > 0) {
        gram_schema_refuse(c, "propertyNames",
                           "together with properties or required is not supported");
    }
    if (o.n > 0 && (required < o.min || (o.max >= 0 && (o.n > o.max || o.extra_allowed)))) {
        gram_schema_refuse(c, required < o.min ? "minProperties" : "maxProperties",
                           "beyond what required and properties already say is not supported");
    }
    /* Repeated keys would count once for the reader but more than once here. */
    if (o.n == 0 && o.min > 1) {
        gram_schema_refuse(c, "minProperties", "above 1 without properties is not supported");
    }
    if (o.n == 0 && !o.extra_allowed && o.min > 0) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: no object satisfies minProperties");
    }
    return gram_failed(c->g) ? next : members(c, &o, next);
}

/* ---- any value ---- */

static int32_t any_value(struct schema *c, int32_t next)
{
    struct gram *g = c->g;
    if (c->any_rule < 0) {
        struct view empty = {0};
        c->any_rule = gram_rule_new(g);
        int32_t r = GRAM_STATE_RETURN;
        struct gram_number number = {.max_fraction = MAX_FRACTION};
        int32_t alt[7] = {gram_bytes(g, "null", 4, r),  gram_bytes(g, "true", 4, r),
                          gram_bytes(g, "false", 5, r), any_string(c, 0, -1, r),
                          gram_number(g, &number, r),   array_value(c, &empty, r),
                          object_value(c, &empty, r)};
        gram_rule_set(g, c->any_rule, gram_alt(g, alt, 7));
    }
    return gram_call(g, c->any_rule, next);
}

/* ---- one value ---- */

static int type_bit(const char *name)
{
    static const struct {
        const char *name;
        int bit;
    } types[] = {{"null", T_NULL},      {"boolean", T_BOOL},  {"object", T_OBJECT},
                 {"array", T_ARRAY},    {"number", T_NUMBER}, {"string", T_STRING},
                 {"integer", T_INTEGER}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(name, types[i].name) == 0) {
            return types[i].bit;
        }
    }
    return 0;
}

/* Types the view allows; T_INTEGER without T_NUMBER: whole numbers only. */
static int allowed_types(struct schema *c, const struct view *v)
{
    int types = v->types != 0 ? v->types : T_ALL;
    for (int i = 0; i < v->n; i++) {
        const struct json *t = json_get(v->schema[i], "type");
        if (t == NULL) {
            continue;
        }
        int list = json_type(t) == JSON_ARRAY, mask = 0;
        for (size_t k = 0; k < (list ? json_length(t) : 1); k++) {
            const struct json *name = list ? json_at(t, k) : t;
            int bit = json_type(name) == JSON_STRING ? type_bit(json_string(name, NULL)) : 0;
            if (bit == 0) {
                gram_fail(c->g, ERR_INVALID,
                          "JSON schema: type must be one of null, boolean, object, array, number, "
                          "integer, string, or a list of them");
                return 0;
            }
            mask |= bit;
        }
        mask |= mask & T_NUMBER ? T_INTEGER : 0;
        types |= types & T_NUMBER ? T_INTEGER : 0;
        types &= mask;
    }
    return types;
}

static int type_of_json(const struct json *v)
{
    static const int bits[] = {T_NULL,  T_BOOL,  T_INTEGER | T_NUMBER, T_NUMBER, T_STRING,
                               T_ARRAY, T_OBJECT};
    return bits[json_type(v)];
}

/* enum and const: the values that all of them and the types allow, written out. */
static int32_t enumerated(struct schema *c, const struct view *v, int types, int32_t next)
{
    const struct json *list = NULL;
    for (int i = 0; i < v->n && list == NULL; i++) {
        list = gram_schema_values(v->schema[i]);
    }
    for (int i = 0; i < v->n; i++) {
        gram_schema_only_values(c, v->schema[i]);
    }
    int is_const = json_get(v->values_owner, "const") == list && list != NULL;
    size_t n = is_const ? 1 : json_length(list);
    struct gram_literal *alt = arena_alloc(&c->arena, sizeof *alt * (n + 1));
    int32_t entry = next;
    int count = 0;
    if (alt == NULL) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
    }
    for (size_t k = 0; alt != NULL && k < n && !gram_schema_is_late(c); k++) {
        const struct json *value = is_const ? list : json_at(list, k);
        int t = type_of_json(value),
            ok = (t & types) != 0 || ((types & T_INTEGER) && t == T_NUMBER &&
                                      json_double(value) == (double)(int64_t)json_double(value));
        for (int i = 0; i < v->n && ok; i++) {
            ok = gram_schema_has_value(v->schema[i], value);
        }
        if (ok) {
            struct buf text;
            buf_init(&text);
            json_dump(value, &text);
            alt[count].n = text.len;
            alt[count++].s = text.failed ? NULL : arena_memdup(&c->arena, text.data, text.len);
            buf_fini(&text);
            if (alt[count - 1].s == NULL) {
                gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
            }
        }
    }
    if (count == 0) {
        gram_fail(c->g, ERR_INVALID,
                  "JSON schema: no value of enum or const is allowed by the rest of the schema");
    } else {
        entry = gram_failed(c->g) ? next : gram_literals(c->g, alt, count, next);
    }
    return entry;
}

static int has_any(const struct view *v, const char *const *names, int n)
{
    for (int i = 0; i < v->n; i++) {
        for (int k = 0; k < n; k++) {
            if (json_get(v->schema[i], names[k]) != NULL) {
                return 1;
            }
        }
    }
    return 0;
}

/* Without a type, keywords of one kind of value choose that kind: a subset of what the schema
 * allows. */
static int implied_types(const struct view *v)
{
    static const char *const object[] = {
        "properties",       "required",      "additionalProperties", "patternProperties",
        "propertyNames",    "minProperties", "maxProperties",        "dependentRequired",
        "dependentSchemas", "dependencies",  "unevaluatedProperties"};
    static const char *const array[] = {"items",           "prefixItems",     "minItems",
                                        "maxItems",        "uniqueItems",     "contains",
                                        "additionalItems", "unevaluatedItems"};
    static const char *const number[] = {"minimum", "maximum", "exclusiveMinimum",
                                         "exclusiveMaximum", "multipleOf"};
    static const char *const string[] = {"minLength", "maxLength", "pattern", "format"};
    return (has_any(v, object, 11) ? T_OBJECT : 0) | (has_any(v, array, 8) ? T_ARRAY : 0) |
           (has_any(v, number, 5) ? T_NUMBER : 0) | (has_any(v, string, 4) ? T_STRING : 0);
}

static int32_t alternatives(struct schema *c, const struct view *v, int at, int32_t next)
{
    struct view base = *v;
    const struct json *any = json_get(v->schema[at], "anyOf");
    const char *name = any != NULL && !(base.done[at] & VIEW_ANY_DONE) ? "anyOf" : "oneOf";
    base.done[at] |= strcmp(name, "anyOf") == 0 ? VIEW_ANY_DONE : VIEW_ONE_DONE;
    const struct json *list = json_get(v->schema[at], name);
    size_t n = json_type(list) == JSON_ARRAY ? json_length(list) : 0;
    if (n == 0 || n > 1000) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: %s must be a list of 1 to 1000 schemas", name);
        return next;
    }
    if (strcmp(name, "oneOf") == 0 && !gram_schema_disjoint(c, list)) {
        gram_schema_refuse(
            c, "oneOf",
            "is supported only when its schemas exclude each other by type, const or enum");
        return next;
    }
    int32_t *alt = malloc(sizeof *alt * n), entry = next;
    int count = 0;
    for (size_t i = 0; alt != NULL && i < n && !gram_failed(c->g); i++) {
        struct view one = base;
        gram_schema_add(c, &one, json_at(list, i));
        if (!one.never && !gram_failed(c->g)) {
            alt[count++] = value_of(c, &one, next);
        }
    }
    if (count == 0) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: no schema of %s can be satisfied", name);
    } else {
        entry = gram_alt(c->g, alt, count);
    }
    free(alt);
    return entry;
}

static int32_t typed_value(struct schema *c, const struct view *v, int types, int32_t next)
{
    struct gram *g = c->g;
    int32_t alt[8];
    int count = 0;
    if (types & T_NULL) {
        alt[count++] = gram_bytes(g, "null", 4, next);
    }
    if (types & T_BOOL) {
        alt[count++] = gram_bytes(g, "true", 4, next);
        alt[count++] = gram_bytes(g, "false", 5, next);
    }
    if (types & (T_NUMBER | T_INTEGER)) {
        alt[count++] = number_value(c, v, !(types & T_NUMBER), next);
    }
    if (types & T_STRING) {
        alt[count++] = string_value(c, v, next);
    }
    if (types & T_ARRAY) {
        alt[count++] = array_value(c, v, next);
    }
    if (types & T_OBJECT) {
        alt[count++] = object_value(c, v, next);
    }
    if (count == 0) {
        gram_fail(g, ERR_INVALID,
                  "JSON schema: no type is left that all parts of the schema allow");
        return next;
    }
    return gram_failed(g) ? next : gram_alt(g, alt, count);
}

static int32_t value_of(struct schema *c, const struct view *v, int32_t next)
{
    struct gram *g = c->g;
    if (gram_failed(g)) {
        return next;
    }
    if (v->never) {
        gram_fail(g, ERR_INVALID, "JSON schema: the schema false allows no value");
        return next;
    }
    int rule = gram_schema_shared_rule(c, v);
    if (rule >= 0) {
        return gram_call(g, rule, next);
    }
    if (++c->depth > MAX_NESTING) {
        gram_fail(g, ERR_TOO_LARGE, "JSON schema: nested deeper than %d levels", MAX_NESTING);
        c->depth--;
        return next;
    }
    int32_t entry = next;
    int types = allowed_types(c, v), at = gram_schema_next_choice(v), has_values = 0,
        has_type = v->types != 0;
    struct view with_owner = *v;
    for (int i = 0; i < v->n; i++) {
        gram_schema_check_keywords(c, v->schema[i]);
        has_type |= json_get(v->schema[i], "type") != NULL;
        if (!has_values && gram_schema_values(v->schema[i]) != NULL) {
            has_values = 1;
            with_owner.values_owner = v->schema[i];
        }
    }
    if (gram_failed(g)) {
        entry = next;
    } else if (at >= 0) {
        entry = alternatives(c, v, at, next);
    } else if (has_values) {
        entry = enumerated(c, &with_owner, types, next);
    } else {
        int implied = has_type ? 0 : implied_types(v);
        entry = !has_type && implied == 0 ? any_value(c, next)
                                          : typed_value(c, v, implied ? implied : types, next);
    }
    c->depth--;
    return entry;
}

/* ---- entry points ---- */

void gram_schema_define_rule(struct schema *c, const struct json *target, int rule)
{
    struct view v = {0};
    int depth = c->depth;
    c->depth = 0;
    gram_schema_add(c, &v, target);
    gram_rule_set(c->g, rule, value_of(c, &v, GRAM_STATE_RETURN));
    c->depth = depth;
}

static int32_t run(struct gram *g, const struct json *root, const struct grammar_options *o,
                   int object_only)
{
    struct schema c = {.g = g, .o = o, .root = root, .char_body = -1, .any_rule = -1};
    struct view v = {.types = object_only ? T_OBJECT : 0};
    arena_init(&c.arena, 0);
    c.rules = map_new();
    int32_t entry = GRAM_STATE_RETURN;
    if (c.rules == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a JSON schema");
    } else {
        if (root != NULL) {
            gram_schema_add(&c, &v, root);
        }
        entry = object_only ? object_value(&c, &v, GRAM_STATE_RETURN)
                            : value_of(&c, &v, GRAM_STATE_RETURN);
    }
    map_free(c.rules);
    arena_fini(&c.arena);
    return entry;
}

int32_t gram_schema(struct gram *g, const struct json *schema, const struct grammar_options *o)
{
    return run(g, schema, o, 0);
}

int32_t gram_schema_any_object(struct gram *g, const struct grammar_options *o)
{
    return run(g, NULL, o, 1);
}
