/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at JSON schemas: $ref and allOf, keywords over the schemas of a view, equality of values,
 * and whether the branches of a oneOf exclude each other. */
#include "text/gram_schema.h"

#include "base/clock.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REF_CHAIN   32  /* $refs followed one after the other to reach a schema */
#define MAX_RULE_NEST   128 /* rules that are being built at the same time */
#define MAX_EQUAL_DEPTH 64

/* Keywords that constrain nothing. */
static const char *const annotations[] = {
    "$schema",          "$id",        "$comment",    "$defs",        "definitions",
    "$anchor",          "title",      "description", "default",      "examples",
    "example",          "deprecated", "readOnly",    "writeOnly",    "contentEncoding",
    "contentMediaType", "id",         "$vocabulary", "contentSchema"};

static const char *const refused[] = {
    "not", "if", "then", "else", "$dynamicRef", "$recursiveRef", "$dynamicAnchor"};

static int is_in(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(key, list[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- $ref ---- */

/* One step of a JSON pointer: ~1 is /, ~0 is ~, %XX a byte. Returns the length written, -1 when it
 * is malformed. */
static int unescape(const char *s, size_t n, char *out, size_t size)
{
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        char ch = s[i];
        if (ch == '~' && i + 1 < n && (s[i + 1] == '0' || s[i + 1] == '1')) {
            ch = s[++i] == '0' ? '~' : '/';
        } else if (ch == '%' && i + 2 < n) {
            char hex[3] = {s[i + 1], s[i + 2], 0}, *end;
            ch = (char)strtol(hex, &end, 16);
            if (*end != 0) {
                return -1;
            }
            i += 2;
        }
        if (w + 1 >= size) {
            return -1;
        }
        out[w++] = ch;
    }
    out[w] = 0;
    return (int)w;
}

/* The schema a local $ref names; NULL (and refused) for anything else. */
static const struct json *resolve(struct schema *c, const struct json *ref)
{
    const char *s = json_type(ref) == JSON_STRING ? json_string(ref, NULL) : "";
    const struct json *at = c->root;
    if (s[0] != '#' || (s[1] != 0 && s[1] != '/')) {
        gram_fail(c->g, ERR_UNSUPPORTED,
                  "JSON schema: $ref '%.80s' is not supported (only '#' and '#/…' are)", s);
        return NULL;
    }
    for (const char *p = s + 1; *p == '/';) {
        const char *end = strchrnul(++p, '/');
        char key[256];
        if (unescape(p, (size_t)(end - p), key, sizeof key) < 0) {
            at = NULL;
        } else if (json_type(at) == JSON_ARRAY) {
            char *stop;
            unsigned long i = strtoul(key, &stop, 10);
            at = *stop == 0 && key[0] != 0 ? json_at(at, i) : NULL;
        } else {
            at = json_type(at) == JSON_OBJECT ? json_get(at, key) : NULL;
        }
        if (at == NULL) {
            gram_fail(c->g, ERR_INVALID, "JSON schema: $ref '%.80s' leads nowhere", s);
            return NULL;
        }
        p = end;
    }
    return at;
}

/* 1 when nothing but annotations stands beside the $ref. */
static int only_ref(const struct json *schema)
{
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    while (json_next(schema, &it, &key, &n, &value)) {
        if (strcmp(key, "$ref") != 0 && !is_in(key, annotations, COUNT(annotations))) {
            return 0;
        }
    }
    return 1;
}

static void add(struct schema *c, struct view *v, const struct json *schema, int chain)
{
    if (gram_failed(c->g)) {
        return;
    }
    if (json_type(schema) == JSON_BOOL) {
        v->never |= !json_bool(schema);
        return;
    }
    if (json_type(schema) != JSON_OBJECT) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: a schema must be an object, true or false");
        return;
    }
    const struct json *ref = json_get(schema, "$ref"), *all = json_get(schema, "allOf");
    if (ref != NULL) {
        const struct json *target = resolve(c, ref);
        if (target == NULL) {
            return;
        }
        if (v->n == 0 && v->ref == NULL && chain == 0 && only_ref(schema)) {
            v->ref = target; /* becomes a rule, unless something else is added */
            return;
        }
        if (chain >= MAX_REF_CHAIN) {
            gram_fail(c->g, ERR_INVALID,
                      "JSON schema: a chain of $refs is endless or longer than %d", MAX_REF_CHAIN);
            return;
        }
        add(c, v, target, chain + 1);
        if (only_ref(schema)) {
            return;
        }
    }
    if (v->n == VIEW_MAX) {
        gram_fail(c->g, ERR_TOO_LARGE, "JSON schema: more than %d schemas apply to one value",
                  VIEW_MAX);
        return;
    }
    v->done[v->n] = 0;
    v->schema[v->n++] = schema;
    if (all != NULL && json_type(all) != JSON_ARRAY) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: allOf must be a list");
    }
    for (size_t i = 0; all != NULL && i < json_length(all) && !gram_failed(c->g); i++) {
        if (chain >= MAX_REF_CHAIN) {
            gram_fail(c->g, ERR_INVALID, "JSON schema: allOf is nested too deeply or endless");
            return;
        }
        add(c, v, json_at(all, i), chain + 1);
    }
}

void gram_schema_add(struct schema *c, struct view *v, const struct json *schema)
{
    if (v->ref != NULL) { /* no longer alone: inline the target after all */
        const struct json *target = v->ref;
        v->ref = NULL;
        add(c, v, target, 1);
    }
    add(c, v, schema, v->n > 0 || v->never || v->types != 0);
}

int gram_schema_shared_rule(struct schema *c, const struct view *v)
{
    const struct json *target = v->ref;
    if (target == NULL) {
        return -1;
    }
    uintptr_t known = (uintptr_t)map_get(c->rules, &target, sizeof target);
    if (known != 0) {
        return (int)known - 1;
    }
    int rule = gram_rule_new(c->g);
    if (gram_failed(c->g) ||
        map_put(c->rules, &target, sizeof target, (void *)(uintptr_t)(rule + 1)) != 0) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
        return rule;
    }
    if (++c->n_open_rules > MAX_RULE_NEST) {
        gram_fail(c->g, ERR_TOO_LARGE, "JSON schema: more than %d $refs are nested in each other",
                  MAX_RULE_NEST);
    } else {
        gram_schema_define_rule(c, target, rule);
    }
    c->n_open_rules--;
    return rule;
}

/* ---- values ---- */

static int equal(const struct json *a, const struct json *b, int depth)
{
    enum json_type ta = json_type(a), tb = json_type(b);
    int numbers = (ta == JSON_INT || ta == JSON_DOUBLE) && (tb == JSON_INT || tb == JSON_DOUBLE);
    if (numbers) {
        return ta == JSON_INT && tb == JSON_INT ? json_int(a) == json_int(b)
                                                : json_double(a) == json_double(b);
    }
    if (ta != tb || depth > MAX_EQUAL_DEPTH) {
        return 0;
    }
    if (ta == JSON_STRING) {
        size_t n, m;
        const char *s = json_string(a, &n), *t = json_string(b, &m);
        return n == m && memcmp(s, t, n) == 0;
    }
    if (ta == JSON_BOOL) {
        return json_bool(a) == json_bool(b);
    }
    if (ta != JSON_ARRAY && ta != JSON_OBJECT) {
        return 1;
    }
    if (json_length(a) != json_length(b)) {
        return 0;
    }
    for (size_t i = 0; ta == JSON_ARRAY && i < json_length(a); i++) {
        if (!equal(json_at(a, i), json_at(b, i), depth + 1)) {
            return 0;
        }
    }
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    while (ta == JSON_OBJECT && json_next(a, &it, &key, &n, &value)) {
        const struct json *other = json_get(b, key);
        if (other == NULL || !equal(value, other, depth + 1)) {
            return 0;
        }
    }
    return 1;
}

const struct json *gram_schema_values(const struct json *schema)
{
    const struct json *value = json_get(schema, "const");
    return value != NULL ? value : json_get(schema, "enum");
}

int gram_schema_has_value(const struct json *schema, const struct json *value)
{
    const struct json *one = json_get(schema, "const"), *list = json_get(schema, "enum");
    int found = list == NULL;
    for (size_t i = 0; list != NULL && !found && i < json_length(list); i++) {
        found = equal(json_at(list, i), value, 0);
    }
    return found && (one == NULL || equal(one, value, 0));
}

int gram_schema_is_late(struct schema *c)
{
    if (clock_now_ns() > c->g->deadline_ns) {
        gram_fail(c->g, ERR_TOO_LARGE, "JSON schema: takes too long to compile");
    }
    return gram_failed(c->g);
}

void gram_schema_only_values(struct schema *c, const struct json *schema)
{
    size_t it = 0, n;
    const char *key;
    const struct json *value, *list = json_get(schema, "enum");
    if (list != NULL &&
        (json_type(list) != JSON_ARRAY || json_length(list) == 0 || json_length(list) > 10000)) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: enum must be a list of 1 to 10000 values");
    }
    static const char *const beside[] = {"enum",  "const", "type",  "$ref",
                                         "allOf", "anyOf", "oneOf", "format"};
    while (json_next(schema, &it, &key, &n, &value)) {
        if (!is_in(key, beside, COUNT(beside)) && !is_in(key, annotations, COUNT(annotations))) {
            gram_fail(c->g, ERR_UNSUPPORTED,
                      "JSON schema: keyword '%.60s' together with enum or const is not supported",
                      key);
        }
    }
}

/* ---- keywords ---- */

void gram_schema_check_keywords(struct schema *c, const struct json *schema)
{
    for (size_t i = 0; i < COUNT(refused); i++) {
        if (json_get(schema, refused[i]) != NULL) {
            gram_schema_refuse(c, refused[i], "is not supported");
        }
    }
}

const struct json *gram_schema_one(struct schema *c, const struct view *v, const char *keyword)
{
    const struct json *found = NULL;
    for (int i = 0; i < v->n; i++) {
        const struct json *value = json_get(v->schema[i], keyword);
        if (value != NULL && found != NULL && !equal(value, found, 0)) {
            gram_schema_refuse(c, keyword,
                               "in several schemas that apply to the same value is not supported");
        }
        found = value != NULL ? value : found;
    }
    return found;
}

int gram_schema_count(struct schema *c, const struct view *v, const char *keyword, int want_max,
                      int absent)
{
    int found = absent, seen = 0;
    for (int i = 0; i < v->n; i++) {
        const struct json *value = json_get(v->schema[i], keyword);
        if (value == NULL) {
            continue;
        }
        double d = json_type(value) == JSON_INT || json_type(value) == JSON_DOUBLE
                       ? json_double(value)
                       : -1;
        if (!(d >= 0) || d != (double)(int64_t)d) {
            gram_fail(c->g, ERR_INVALID, "JSON schema: %s must be a whole number, 0 or more",
                      keyword);
            return absent;
        }
        if (d > GRAM_MAX_REPEAT) {
            gram_fail(c->g, ERR_UNSUPPORTED, "JSON schema: %s is too large (at most %d)", keyword,
                      GRAM_MAX_REPEAT);
            return absent;
        }
        if (!seen || (want_max ? (int)d > found : (int)d < found)) {
            found = (int)d;
            seen = 1;
        }
    }
    return found;
}

int gram_schema_next_choice(const struct view *v)
{
    for (int i = 0; i < v->n; i++) {
        if ((json_get(v->schema[i], "anyOf") != NULL && !(v->done[i] & VIEW_ANY_DONE)) ||
            (json_get(v->schema[i], "oneOf") != NULL && !(v->done[i] & VIEW_ONE_DONE))) {
            return i;
        }
    }
    return -1;
}

/* ---- oneOf ---- */

static const struct json *target_of(struct schema *c, const struct json *schema)
{
    for (int i = 0;
         i < MAX_REF_CHAIN && json_type(schema) == JSON_OBJECT && json_get(schema, "$ref") != NULL;
         i++) {
        schema = resolve(c, json_get(schema, "$ref"));
    }
    return schema;
}

/* Bit set of JSON types (by enum json_type; numbers are one) a schema allows, from type, const and
 * enum. */
static unsigned types_of(const struct json *schema)
{
    const struct json *type = json_get(schema, "type"), *values = json_get(schema, "enum");
    const struct json *one = json_get(schema, "const");
    static const struct {
        const char *name;
        enum json_type type;
    } names[] = {{"null", JSON_NULL},    {"boolean", JSON_BOOL},  {"integer", JSON_INT},
                 {"number", JSON_INT},   {"string", JSON_STRING}, {"array", JSON_ARRAY},
                 {"object", JSON_OBJECT}};
    unsigned mask = type == NULL ? ~0u : 0, value_mask = 0;
    int list = json_type(type) == JSON_ARRAY;
    for (size_t k = 0; type != NULL && k < (list ? json_length(type) : 1); k++) {
        const struct json *t = list ? json_at(type, k) : type;
        for (size_t i = 0; i < COUNT(names); i++) {
            if (json_type(t) == JSON_STRING && strcmp(json_string(t, NULL), names[i].name) == 0) {
                mask |= 1u << names[i].type;
            }
        }
    }
    for (size_t i = 0; values != NULL && i < json_length(values); i++) {
        enum json_type t = json_type(json_at(values, i));
        value_mask |= 1u << (t == JSON_DOUBLE ? JSON_INT : t);
    }
    if (one != NULL) {
        value_mask = 1u << (json_type(one) == JSON_DOUBLE ? JSON_INT : json_type(one));
    }
    return values != NULL || one != NULL ? mask & value_mask : mask;
}

/* 1 when both schemas list their values and no value is in both lists. */
static int values_exclude(struct schema *c, const struct json *a, const struct json *b)
{
    const struct json *one = json_get(a, "const"), *list = json_get(a, "enum");
    if ((one == NULL && list == NULL) || gram_schema_values(b) == NULL) {
        return 0;
    }
    if (one != NULL) {
        return !gram_schema_has_value(b, one);
    }
    for (size_t i = 0; i < json_length(list); i++) {
        if (gram_schema_is_late(c) || gram_schema_has_value(b, json_at(list, i))) {
            return 0;
        }
    }
    return 1;
}

static int requires(const struct json *schema, const char *key)
{
    const struct json *req = json_get(schema, "required");
    for (size_t i = 0; req != NULL && i < json_length(req); i++) {
        if (json_type(json_at(req, i)) == JSON_STRING &&
            strcmp(json_string(json_at(req, i), NULL), key) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Two object schemas with a required member whose values exclude each other (a discriminator). */
static int members_exclude(struct schema *c, const struct json *a, const struct json *b)
{
    const struct json *pa = json_get(a, "properties"), *pb = json_get(b, "properties"), *x;
    size_t it = 0, n;
    const char *key;
    unsigned object = 1u << JSON_OBJECT;
    if (pa == NULL || pb == NULL || types_of(a) != object || types_of(b) != object) {
        return 0;
    }
    while (json_next(pa, &it, &key, &n, &x)) {
        const struct json *y = json_get(pb, key);
        if (y == NULL || !requires(a, key) || !requires(b, key)) {
            continue;
        }
        x = target_of(c, x);
        y = target_of(c, y);
        if (x != NULL && y != NULL &&
            ((types_of(x) & types_of(y)) == 0 || values_exclude(c, x, y))) {
            return 1;
        }
    }
    return 0;
}

int gram_schema_disjoint(struct schema *c, const struct json *list)
{
    for (size_t i = 0; i < json_length(list); i++) {
        for (size_t k = i + 1; k < json_length(list) && !gram_schema_is_late(c); k++) {
            const struct json *a = target_of(c, json_at(list, i)),
                              *b = target_of(c, json_at(list, k));
            int never = (json_type(a) == JSON_BOOL && !json_bool(a)) ||
                        (json_type(b) == JSON_BOOL && !json_bool(b));
            if (!never && (a == NULL || b == NULL ||
                           ((types_of(a) & types_of(b)) != 0 && !values_exclude(c, a, b) &&
                            !members_exclude(c, a, b)))) {
                return 0;
            }
        }
    }
    return 1;
}
