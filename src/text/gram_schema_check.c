/* SPDX-License-Identifier: Apache-2.0 */
/* A validator for single values: which values of an enum satisfy the rest of the schema, which
 * property names a propertyNames allows, whether the branches of a oneOf exclude each other. Three
 * answers: yes, no, and "can't tell" (a format that is no regular expression here, unevaluated…,
 * nesting without end), which callers must treat as a reason to refuse. */
#include "text/gram_schema.h"

#include <math.h>
#include <string.h>

#define MAX_DEPTH 48
#define UNKNOWN   (-1)

static int check(struct schema *c, const struct json *schema, const struct json *v, int depth);

static int and_(int a, int b)
{
    return a == 0 || b == 0 ? 0 : a < 0 || b < 0 ? UNKNOWN : 1;
}

static int not_(int a)
{
    return a < 0 ? UNKNOWN : !a;
}

static int has_type(const struct json *v, const char *name)
{
    switch (json_type(v)) {
    case JSON_NULL:
        return strcmp(name, "null") == 0;
    case JSON_BOOL:
        return strcmp(name, "boolean") == 0;
    case JSON_INT:
        return strcmp(name, "integer") == 0 || strcmp(name, "number") == 0;
    case JSON_DOUBLE:
        return strcmp(name, "number") == 0 ||
               (strcmp(name, "integer") == 0 && json_double(v) == trunc(json_double(v)));
    case JSON_STRING:
        return strcmp(name, "string") == 0;
    case JSON_ARRAY:
        return strcmp(name, "array") == 0;
    case JSON_OBJECT:
        return strcmp(name, "object") == 0;
    }
    return 0;
}

static int check_type(const struct json *type, const struct json *v)
{
    int list = json_type(type) == JSON_ARRAY;
    for (size_t i = 0; i < (list ? json_length(type) : 1); i++) {
        const struct json *t = list ? json_at(type, i) : type;
        if (json_type(t) == JSON_STRING && has_type(v, json_string(t, NULL))) {
            return 1;
        }
    }
    return 0;
}

static int is_listed(const struct json *list, const struct json *v)
{
    for (size_t i = 0; i < json_length(list); i++) {
        if (gram_schema_equal(json_at(list, i), v, 0)) {
            return 1;
        }
    }
    return 0;
}

static int matches(struct schema *c, const char *re, int whole, const struct json *v)
{
    size_t n;
    const char *s = json_string(v, &n);
    struct gram_pattern p = {.re = re, .re_bytes = strlen(re), .whole = whole};
    uint32_t tags = gram_patterns_match(c->g, &p, 1, s, n);
    return gram_failed(c->g) ? UNKNOWN : tags != 0;
}

static double number(const struct json *schema, const char *key, double absent)
{
    const struct json *v = json_get(schema, key);
    return json_is_number(v) ? json_double(v) : absent;
}

/* exclusiveMinimum and exclusiveMaximum of draft 4 make the bound beside them exclusive. */
static int is_strict(const struct json *schema, const char *key)
{
    const struct json *v = json_get(schema, key);
    return json_type(v) == JSON_BOOL && json_bool(v);
}

static int check_number(const struct json *s, const struct json *v)
{
    double d = json_double(v), m = number(s, "multipleOf", 0);
    double lo = number(s, "minimum", -INFINITY), hi = number(s, "maximum", INFINITY);
    if (d < lo || d > hi || (d == lo && is_strict(s, "exclusiveMinimum")) ||
        (d == hi && is_strict(s, "exclusiveMaximum")) ||
        d <= number(s, "exclusiveMinimum", -INFINITY) ||
        d >= number(s, "exclusiveMaximum", INFINITY)) {
        return 0;
    }
    return !(m > 0) || d / m == trunc(d / m);
}

static int check_string(struct schema *c, const struct json *s, const struct json *v)
{
    size_t n, chars = 0;
    const char *text = json_string(v, &n);
    const struct json *pattern = json_get(s, "pattern"), *format = json_get(s, "format");
    for (size_t i = 0; i < n; i++) {
        chars += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    if ((double)chars < number(s, "minLength", 0) ||
        (double)chars > number(s, "maxLength", INFINITY)) {
        return 0;
    }
    int ok = 1;
    const struct json *other = json_get(s, OTHER_THAN), *no = json_get(s, NOT_PATTERN);
    if (other != NULL && is_listed(other, v)) {
        return 0;
    }
    if (json_type(no) == JSON_STRING) {
        ok = not_(matches(c, json_string(no, NULL), 0, v));
    }
    if (json_type(pattern) == JSON_STRING) {
        ok = and_(ok, matches(c, json_string(pattern, NULL), 0, v));
    }
    if (json_type(format) == JSON_STRING) {
        const char *re = gram_schema_format(json_string(format, NULL));
        if (re == NULL || *re != 0) { /* the regex allows a part of what the format does */
            ok = and_(ok, re != NULL && matches(c, re, 1, v) == 1 ? 1 : UNKNOWN);
        }
    }
    return ok;
}

static int check_array(struct schema *c, const struct json *s, const struct json *v, int depth)
{
    size_t n = json_length(v), n_prefix = 0;
    const struct json *prefix = json_get(s, "prefixItems"), *items = json_get(s, "items");
    const struct json *contains = json_get(s, "contains"), *unique = json_get(s, "uniqueItems");
    if (json_type(items) == JSON_ARRAY) {
        prefix = items;
        items = json_get(s, "additionalItems");
    }
    n_prefix = prefix != NULL ? json_length(prefix) : 0;
    int ok = (double)n >= number(s, "minItems", 0) && (double)n <= number(s, "maxItems", INFINITY);
    for (size_t i = 0; i < n && ok != 0; i++) {
        const struct json *one = i < n_prefix ? json_at(prefix, i) : items;
        ok = one != NULL ? and_(ok, check(c, one, json_at(v, i), depth)) : ok;
        for (size_t k = 0; k < i && json_type(unique) == JSON_BOOL && json_bool(unique); k++) {
            ok = gram_schema_equal(json_at(v, i), json_at(v, k), 0) ? 0 : ok;
        }
    }
    if (contains != NULL && ok != 0) {
        int yes = 0, maybe = 0;
        for (size_t i = 0; i < n; i++) {
            int one = check(c, contains, json_at(v, i), depth);
            yes += one == 1;
            maybe += one < 0;
        }
        double lo = number(s, "minContains", 1), hi = number(s, "maxContains", INFINITY);
        ok = and_(ok, maybe > 0 ? UNKNOWN : yes >= lo && yes <= hi);
    }
    return json_get(s, "unevaluatedItems") != NULL ? and_(ok, UNKNOWN) : ok;
}

static int check_member(struct schema *c, const struct json *s, const char *key, size_t n,
                        const struct json *value, int depth)
{
    const struct json *own = gram_schema_member(json_get(s, "properties"), key, n), *sub;
    const struct json *patterns = json_get(s, "patternProperties");
    const struct json *other = json_get(s, "additionalProperties"), *names;
    int ok = own != NULL ? check(c, own, value, depth) : 1, known = own != NULL;
    const char *re;
    size_t it = 0, n_re;
    while (ok != 0 && json_type(patterns) == JSON_OBJECT &&
           json_next(patterns, &it, &re, &n_re, &sub)) {
        struct gram_pattern p = {.re = re, .re_bytes = n_re};
        if (gram_patterns_match(c->g, &p, 1, key, n)) {
            known = 1;
            ok = and_(ok, check(c, sub, value, depth));
        }
    }
    if (!known && other != NULL) {
        ok = and_(ok, check(c, other, value, depth));
    }
    names = json_get(s, "propertyNames");
    return names != NULL && ok != 0 ? and_(ok, gram_schema_accepts_text(c, names, key, n)) : ok;
}

static int has_all(const struct json *names, const struct json *v)
{
    for (size_t i = 0; json_type(names) == JSON_ARRAY && i < json_length(names); i++) {
        size_t n;
        const struct json *name = json_at(names, i);
        const char *s = json_type(name) == JSON_STRING ? json_string(name, &n) : NULL;
        if (s != NULL && gram_schema_member(v, s, n) == NULL) {
            return 0;
        }
    }
    return 1;
}

static int check_object(struct schema *c, const struct json *s, const struct json *v, int depth)
{
    static const char *const dependent[] = {"dependentRequired", "dependentSchemas",
                                            "dependencies"};
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    double count = (double)json_length(v);
    int ok = count >= number(s, "minProperties", 0) &&
             count <= number(s, "maxProperties", INFINITY) && has_all(json_get(s, "required"), v);
    while (ok != 0 && json_next(v, &it, &key, &n, &value)) {
        ok = and_(ok, check_member(c, s, key, n, value, depth));
    }
    for (size_t i = 0; i < 3; i++) {
        const struct json *deps = json_get(s, dependent[i]), *dep;
        it = 0;
        while (ok != 0 && json_type(deps) == JSON_OBJECT && json_next(deps, &it, &key, &n, &dep)) {
            if (gram_schema_member(v, key, n) != NULL) {
                ok = and_(ok,
                          json_type(dep) == JSON_ARRAY ? has_all(dep, v) : check(c, dep, v, depth));
            }
        }
    }
    return json_get(s, "unevaluatedProperties") != NULL ? and_(ok, UNKNOWN) : ok;
}

static int check_choices(struct schema *c, const struct json *s, const struct json *v, int depth)
{
    const struct json *all = json_get(s, "allOf"), *any = json_get(s, "anyOf"),
                      *one = json_get(s, "oneOf"), *no = json_get(s, "not"),
                      *if_ = json_get(s, "if");
    int ok = 1, yes = 0, maybe = 0;
    for (size_t i = 0; all != NULL && i < json_length(all) && ok != 0; i++) {
        ok = and_(ok, check(c, json_at(all, i), v, depth));
    }
    for (size_t i = 0; any != NULL && i < json_length(any) && yes == 0; i++) {
        int r = check(c, json_at(any, i), v, depth);
        yes += r == 1;
        maybe += r < 0;
    }
    ok = any != NULL ? and_(ok, yes > 0 ? 1 : maybe > 0 ? UNKNOWN : 0) : ok;
    yes = maybe = 0;
    for (size_t i = 0; one != NULL && i < json_length(one) && ok != 0; i++) {
        int r = check(c, json_at(one, i), v, depth);
        yes += r == 1;
        maybe += r < 0;
    }
    if (one != NULL) {
        ok = and_(ok, yes > 1 ? 0 : maybe > 0 ? UNKNOWN : yes == 1);
    }
    if (no != NULL && ok != 0) {
        ok = and_(ok, not_(check(c, no, v, depth)));
    }
    if (if_ != NULL && ok != 0) {
        int r = check(c, if_, v, depth);
        const struct json *then = json_get(s, r == 1 ? "then" : "else");
        if (r < 0) {
            ok = UNKNOWN;
        } else if (then != NULL) {
            ok = and_(ok, check(c, then, v, depth));
        }
    }
    return ok;
}

static int check(struct schema *c, const struct json *schema, const struct json *v, int depth)
{
    if (json_type(schema) == JSON_BOOL) {
        return json_bool(schema);
    }
    if (json_type(schema) != JSON_OBJECT || depth > MAX_DEPTH || gram_schema_is_late(c)) {
        return UNKNOWN;
    }
    static const char *const refs[] = {"$ref", "$dynamicRef"};
    const struct json *type = json_get(schema, "type"), *list = json_get(schema, "enum");
    int ok = (type == NULL || check_type(type, v)) && (list == NULL || is_listed(list, v));
    const struct json *one = json_get(schema, "const");
    ok = ok && (one == NULL || gram_schema_equal(one, v, 0));
    for (size_t i = 0; i < 2 && ok != 0; i++) {
        if (json_get(schema, refs[i]) != NULL) {
            const struct json *target = gram_schema_resolve(c, schema, refs[i]);
            ok = and_(ok, target != NULL ? check(c, target, v, depth + 1) : UNKNOWN);
        }
    }
    if (ok == 0) {
        return 0;
    }
    ok = and_(ok, json_is_number(v)             ? check_number(schema, v)
                  : json_type(v) == JSON_STRING ? check_string(c, schema, v)
                  : json_type(v) == JSON_ARRAY  ? check_array(c, schema, v, depth + 1)
                  : json_type(v) == JSON_OBJECT ? check_object(c, schema, v, depth + 1)
                                                : 1);
    return ok == 0 ? 0 : and_(ok, check_choices(c, schema, v, depth + 1));
}

int gram_schema_accepts(struct schema *c, const struct json *schema, const struct json *value)
{
    return check(c, schema, value, 0);
}

int gram_schema_accepts_text(struct schema *c, const struct json *schema, const char *s, size_t n)
{
    struct buf text;
    struct json_writer w;
    struct json *doc = NULL;
    int ok = UNKNOWN;
    buf_init(&text);
    json_w_init(&w, &text);
    json_w_stringn(&w, s, n);
    if (!text.failed && json_parse(&doc, text.data, text.len, 2, NULL) == 0) {
        ok = check(c, schema, doc, 0);
    }
    json_free(doc);
    buf_fini(&text);
    return ok;
}
