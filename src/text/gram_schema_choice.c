/* SPDX-License-Identifier: Apache-2.0 */
/* Choices: anyOf, oneOf, not, if/then/else, dependentSchemas, dependentRequired. Each is written as
 * branches, schemas that join the view one set at a time; the branches together accept nothing that
 * the keyword forbids.
 *
 * What a schema does not accept is again a schema, as long as some keyword of it can be turned
 * around (gram_schema_negation): "not minimum 3" is a number below 3, "not required a" an object
 * where a is forbidden, and so on. Keywords that can't be turned around leave their part of the
 * complement out, which makes the branch narrower but never wrong; where nothing is left the schema
 * is refused. oneOf needs it only for branches that don't exclude each other by type, values or a
 * required member. */
#include "text/gram_schema.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LIST     1000 /* schemas of an anyOf or oneOf */
#define MAX_REF_NOT  16   /* $refs followed in a negation */
#define MAX_DEP_KEYS 4    /* dependent… members that are expanded; more: always written */

/* ---- negation ---- */

struct negation {
    struct schema *c;
    const char *keyword;
    struct json_writer w;
    int n;      /* parts written */
    int n_lost; /* keywords that can't be turned around */
    const char *lost;
    int depth;
};

static void negate(struct negation *n, const struct json *s);

static void open_part(struct negation *n, const char *type)
{
    json_w_object(&n->w);
    if (type != NULL) {
        json_w_kstring(&n->w, "type", type);
    }
    n->n++;
}

static void close_part(struct negation *n)
{
    json_w_object_end(&n->w);
}

/* {"type": type, key: value} */
static void part(struct negation *n, const char *type, const char *key, const struct json *value)
{
    open_part(n, type);
    json_w_key(&n->w, key);
    json_w_value(&n->w, value);
    close_part(n);
}

static void part_not(struct negation *n, const char *type, const char *key,
                     const struct json *value)
{
    open_part(n, type);
    json_w_key(&n->w, key);
    json_w_object(&n->w);
    json_w_key(&n->w, "not");
    json_w_value(&n->w, value);
    json_w_object_end(&n->w);
    close_part(n);
}

/* A count that is one too small or too large. */
static void part_count(struct negation *n, const char *type, const char *key,
                       const struct json *value, int by)
{
    double d =
        json_type(value) == JSON_INT || json_type(value) == JSON_DOUBLE ? json_double(value) : -1;
    if (d + by >= 0 && d < 1e9) {
        open_part(n, type);
        json_w_kint(&n->w, key, (int64_t)d + by);
        close_part(n);
    } else if (d < 0) {
        n->n_lost++;
    }
}

static void part_forbid(struct negation *n, const char *with, size_t n_with, const char *key,
                        size_t n_key)
{
    open_part(n, "object");
    if (with != NULL) {
        json_w_key(&n->w, "required");
        json_w_array(&n->w);
        json_w_stringn(&n->w, with, n_with);
        json_w_array_end(&n->w);
    }
    json_w_key(&n->w, "properties");
    json_w_object(&n->w);
    json_w_keyn(&n->w, key, n_key);
    json_w_bool(&n->w, 0);
    json_w_object_end(&n->w);
    close_part(n);
}

static void not_type(struct negation *n, const struct json *type)
{
    static const char *const names[] = {"null", "boolean", "object", "array", "number", "string"};
    int list = json_type(type) == JSON_ARRAY, left = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1 && left > 0) {
            open_part(n, NULL);
            json_w_key(&n->w, "type");
            json_w_array(&n->w);
        }
        for (size_t i = 0; i < 6 && (pass == 0 || left > 0); i++) {
            int named = 0;
            for (size_t k = 0; k < (list ? json_length(type) : 1); k++) {
                const struct json *t = list ? json_at(type, k) : type;
                const char *s = json_type(t) == JSON_STRING ? json_string(t, NULL) : "";
                named |= strcmp(s, names[i]) == 0 || (i == 4 && strcmp(s, "integer") == 0);
            }
            if (!named && pass == 0) {
                left++;
            } else if (!named) {
                json_w_string(&n->w, names[i]);
            }
        }
    }
    if (left > 0) {
        json_w_array_end(&n->w);
        close_part(n);
    }
}

static int by_number(const void *a, const void *b)
{
    double x = json_double(*(const struct json *const *)a),
           y = json_double(*(const struct json *const *)b);
    return x < y ? -1 : x > y;
}

/* Numbers that are none of the n sorted ones: the open intervals between them. */
static void other_numbers(struct negation *n, const struct json **v, size_t count)
{
    for (size_t i = 0; i <= count; i++) {
        open_part(n, "number");
        if (i > 0) {
            json_w_key(&n->w, "exclusiveMinimum");
            json_w_value(&n->w, v[i - 1]);
        }
        if (i < count) {
            json_w_key(&n->w, "exclusiveMaximum");
            json_w_value(&n->w, v[i]);
        }
        close_part(n);
    }
}

/* Values that are none of a list. Types that the list has arrays or objects of are left out. */
static void not_values(struct negation *n, const struct json *list, const struct json *one)
{
    static const char *const names[] = {"null", "boolean", "object", "array", "string"};
    static const enum json_type types[] = {JSON_NULL, JSON_BOOL, JSON_OBJECT, JSON_ARRAY};
    size_t count = one != NULL ? 1 : json_length(list), n_numbers = 0;
    const struct json **numbers = arena_alloc(&n->c->arena, sizeof *numbers * (count + 1));
    int seen[5] = {0}, bools[2] = {0};
    if (numbers == NULL) {
        gram_fail(n->c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const struct json *v = one != NULL ? one : json_at(list, i);
        if (json_type(v) == JSON_INT || json_type(v) == JSON_DOUBLE) {
            numbers[n_numbers++] = v;
        }
        for (int k = 0; k < 4; k++) {
            seen[k] |= json_type(v) == types[k];
        }
        if (json_type(v) == JSON_BOOL) {
            bools[json_bool(v)] = 1;
        }
    }
    qsort(numbers, n_numbers, sizeof *numbers, by_number);
    other_numbers(n, numbers, n_numbers);
    if (bools[0] != bools[1]) {
        open_part(n, NULL);
        json_w_kbool(&n->w, "const", bools[0]);
        close_part(n);
    }
    open_part(n, NULL);
    json_w_key(&n->w, "type");
    json_w_array(&n->w);
    for (int k = 0; k < 5; k++) {
        if (!seen[k]) {
            json_w_string(&n->w, names[k]);
        }
    }
    json_w_array_end(&n->w);
    json_w_key(&n->w, OTHER_THAN);
    json_w_array(&n->w);
    for (size_t i = 0; i < count; i++) {
        const struct json *v = one != NULL ? one : json_at(list, i);
        if (json_type(v) == JSON_STRING) {
            json_w_value(&n->w, v);
        }
    }
    json_w_array_end(&n->w);
    close_part(n);
}

static void not_names(struct negation *n, const struct json *list, const char *with, size_t n_with)
{
    for (size_t i = 0; json_type(list) == JSON_ARRAY && i < json_length(list); i++) {
        size_t len;
        const struct json *name = json_at(list, i);
        const char *s = json_type(name) == JSON_STRING ? json_string(name, &len) : NULL;
        if (s != NULL) {
            part_forbid(n, with, n_with, s, len);
        }
    }
}

static void not_properties(struct negation *n, const struct json *props)
{
    size_t it = 0, len;
    const char *key;
    const struct json *sub;
    while (json_type(props) == JSON_OBJECT && json_next(props, &it, &key, &len, &sub)) {
        if (json_type(sub) == JSON_BOOL && json_bool(sub)) {
            continue;
        }
        open_part(n, "object");
        json_w_key(&n->w, "required");
        json_w_array(&n->w);
        json_w_stringn(&n->w, key, len);
        json_w_array_end(&n->w);
        json_w_key(&n->w, "properties");
        json_w_object(&n->w);
        json_w_keyn(&n->w, key, len);
        json_w_object(&n->w);
        json_w_key(&n->w, "not");
        json_w_value(&n->w, sub);
        json_w_object_end(&n->w);
        json_w_object_end(&n->w);
        close_part(n);
    }
}

/* None of a list: {"allOf": [{"not": a}, {"not": b}]}; `yes` joins as it is. */
static void part_none(struct negation *n, const struct json *yes, const struct json *list,
                      const struct json *one)
{
    open_part(n, NULL);
    json_w_key(&n->w, "allOf");
    json_w_array(&n->w);
    if (yes != NULL) {
        json_w_value(&n->w, yes);
    }
    for (size_t i = 0; i < (one != NULL ? 1 : json_length(list)); i++) {
        json_w_object(&n->w);
        json_w_key(&n->w, "not");
        json_w_value(&n->w, one != NULL ? one : json_at(list, i));
        json_w_object_end(&n->w);
    }
    json_w_array_end(&n->w);
    close_part(n);
}

static void not_if(struct negation *n, const struct json *s)
{
    const struct json *if_ = json_get(s, "if"), *then = json_get(s, "then"),
                      *else_ = json_get(s, "else");
    if (then != NULL) {
        part_none(n, if_, NULL, then);
    }
    if (else_ != NULL) {
        open_part(n, NULL);
        json_w_key(&n->w, "allOf");
        json_w_array(&n->w);
        for (int i = 0; i < 2; i++) {
            json_w_object(&n->w);
            json_w_key(&n->w, "not");
            json_w_value(&n->w, i == 0 ? if_ : else_);
            json_w_object_end(&n->w);
        }
        json_w_array_end(&n->w);
        close_part(n);
    }
}

static void not_dependent(struct negation *n, const struct json *deps)
{
    size_t it = 0, len;
    const char *key;
    const struct json *names;
    while (json_type(deps) == JSON_OBJECT && json_next(deps, &it, &key, &len, &names)) {
        not_names(n, names, key, len);
    }
}

/* 1 when the keyword was one that can be turned around (or constrains nothing). */
static int negate_simple(struct negation *n, const char *key, const struct json *v)
{
    static const struct {
        const char *key, *type, *other;
    } numbers[] = {{"minimum", "number", "exclusiveMaximum"},
                   {"maximum", "number", "exclusiveMinimum"},
                   {"exclusiveMinimum", "number", "maximum"},
                   {"exclusiveMaximum", "number", "minimum"},
                   {"pattern", "string", NOT_PATTERN}};
    static const struct {
        const char *key, *type, *other;
        int by;
    } counts[] = {{"minLength", "string", "maxLength", -1},
                  {"maxLength", "string", "minLength", 1},
                  {"minItems", "array", "maxItems", -1},
                  {"maxItems", "array", "minItems", 1},
                  {"minProperties", "object", "maxProperties", -1},
                  {"maxProperties", "object", "minProperties", 1}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(key, numbers[i].key) == 0) {
            if (json_type(v) == JSON_BOOL) { /* draft 4 */
                return !json_bool(v);
            }
            part(n, numbers[i].type, numbers[i].other, v);
            return 1;
        }
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (strcmp(key, counts[i].key) == 0) {
            part_count(n, counts[i].type, counts[i].other, v, counts[i].by);
            return 1;
        }
    }
    return 0;
}

static int negate_keyword(struct negation *n, const struct json *s, const char *key,
                          const struct json *v)
{
    if (strcmp(key, "type") == 0) {
        not_type(n, v);
    } else if (strcmp(key, "enum") == 0) {
        not_values(n, v, NULL);
    } else if (strcmp(key, "const") == 0) {
        not_values(n, NULL, v);
    } else if (strcmp(key, "required") == 0) {
        not_names(n, v, NULL, 0);
    } else if (strcmp(key, "properties") == 0) {
        not_properties(n, v);
    } else if (strcmp(key, "dependentRequired") == 0) {
        not_dependent(n, v);
    } else if (strcmp(key, "contains") == 0 && json_get(s, "minContains") == NULL) {
        part_not(n, "array", "items", v);
    } else if (strcmp(key, "items") == 0 && json_get(s, "prefixItems") == NULL &&
               json_type(v) != JSON_ARRAY) {
        part_not(n, "array", "contains", v);
    } else if (strcmp(key, "not") == 0) {
        if (json_type(v) == JSON_OBJECT) {
            json_w_value(&n->w, v);
            n->n++;
        } else if (json_type(v) == JSON_BOOL && json_bool(v)) {
            open_part(n, NULL);
            close_part(n);
        }
    } else if (strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0) {
        part_none(n, NULL, v, NULL);
    } else if (strcmp(key, "allOf") == 0) {
        for (size_t i = 0; i < json_length(v); i++) {
            negate(n, json_at(v, i));
        }
    } else if (strcmp(key, "if") == 0) {
        not_if(n, s);
    } else if (strcmp(key, "$ref") == 0) {
        const struct json *target = gram_schema_resolve(n->c, s, "$ref");
        if (target != NULL) {
            negate(n, target);
        }
    } else {
        return negate_simple(n, key, v);
    }
    return 1;
}

static void negate(struct negation *n, const struct json *s)
{
    static const char *const lossy[] = {"multipleOf",
                                        "uniqueItems",
                                        "minContains",
                                        "maxContains",
                                        "prefixItems",
                                        "items",
                                        "contains",
                                        "additionalItems",
                                        "patternProperties",
                                        "propertyNames",
                                        "additionalProperties",
                                        "dependentSchemas",
                                        "dependencies",
                                        "format",
                                        "unevaluatedItems",
                                        "unevaluatedProperties",
                                        "$dynamicRef",
                                        "$recursiveRef"};
    size_t it = 0, len;
    const char *key;
    const struct json *v;
    if (gram_schema_is_late(n->c) || ++n->depth > MAX_REF_NOT) {
        n->n_lost++;
        n->depth--;
        return;
    }
    if (json_type(s) == JSON_BOOL && !json_bool(s)) {
        open_part(n, NULL);
        close_part(n);
    }
    while (json_type(s) == JSON_OBJECT && json_next(s, &it, &key, &len, &v)) {
        if (negate_keyword(n, s, key, v)) {
            continue;
        }
        for (size_t i = 0; i < sizeof lossy / sizeof *lossy; i++) {
            if (strcmp(key, lossy[i]) == 0) {
                n->n_lost++;
                n->lost = lossy[i];
            }
        }
    }
    n->depth--;
}

static int has_ref(const struct json *v, int depth)
{
    size_t it = 0, n;
    const char *key;
    const struct json *sub;
    int found = 0;
    for (size_t i = 0; json_type(v) == JSON_ARRAY && i < json_length(v) && !found; i++) {
        found = has_ref(json_at(v, i), depth + 1);
    }
    while (json_type(v) == JSON_OBJECT && !found && json_next(v, &it, &key, &n, &sub)) {
        found = strcmp(key, "$ref") == 0 || has_ref(sub, depth + 1);
    }
    return found;
}

const struct json *gram_schema_negation(struct schema *c, const struct json *schema,
                                        const char *keyword)
{
    struct buf text;
    const struct json *doc = NULL;
    if (gram_schema_has_resources(c) && has_ref(schema, 0)) {
        gram_schema_refuse(c, keyword,
                           "of a $ref in a document with several $ids is not supported");
        return NULL;
    }
    buf_init(&text);
    struct negation n = {.c = c, .keyword = keyword};
    json_w_init(&n.w, &text);
    json_w_object(&n.w);
    json_w_key(&n.w, "anyOf");
    json_w_array(&n.w);
    negate(&n, schema);
    if (n.n == 0 && n.n_lost == 0) { /* everything is accepted: nothing is left */
        json_w_bool(&n.w, 0);
    }
    json_w_array_end(&n.w);
    json_w_object_end(&n.w);
    if (n.n == 0 && n.n_lost > 0) {
        gram_fail(c->g, ERR_UNSUPPORTED,
                  "JSON schema: keyword '%s' with '%s' inside is not supported", keyword,
                  n.lost != NULL ? n.lost : "such nesting");
    } else if (!gram_failed(c->g)) {
        doc = gram_schema_make(c, &text);
    }
    buf_fini(&text);
    return doc;
}

/* ---- do schemas exclude each other? ---- */

static const struct json *target_of(struct schema *c, const struct json *schema)
{
    for (int i = 0;
         i < MAX_REF_NOT && json_type(schema) == JSON_OBJECT && json_get(schema, "$ref") != NULL;
         i++) {
        schema = gram_schema_resolve(c, schema, "$ref");
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
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
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

/* 1 when a lists its values and b accepts none of them. */
static int values_exclude(struct schema *c, const struct json *a, const struct json *b)
{
    const struct json *one = json_get(a, "const"), *list = json_get(a, "enum");
    if (one != NULL) {
        return gram_schema_accepts(c, b, one) == 0;
    }
    for (size_t i = 0; list != NULL && i < json_length(list); i++) {
        if (gram_schema_is_late(c) || gram_schema_accepts(c, b, json_at(list, i)) != 0) {
            return 0;
        }
    }
    return list != NULL;
}

static int requires(const struct json *schema, const char *key, size_t n)
{
    const struct json *req = json_get(schema, "required");
    for (size_t i = 0; req != NULL && i < json_length(req); i++) {
        size_t m;
        const struct json *name = json_at(req, i);
        const char *s = json_type(name) == JSON_STRING ? json_string(name, &m) : NULL;
        if (s != NULL && m == n && memcmp(s, key, n) == 0) {
            return 1;
        }
    }
    return 0;
}

static int excludes(struct schema *c, const struct json *a, const struct json *b, int depth);

/* a requires a member that b can't have with such a value. */
static int members_exclude(struct schema *c, const struct json *a, const struct json *b, int depth)
{
    const struct json *pa = json_get(a, "properties"), *pb = json_get(b, "properties"),
                      *req = json_get(a, "required"), *other = json_get(b, "additionalProperties");
    unsigned object = 1u << JSON_OBJECT;
    if (types_of(a) != object || types_of(b) != object) {
        return 0;
    }
    for (size_t i = 0; req != NULL && i < json_length(req); i++) {
        size_t n;
        const struct json *name = json_at(req, i);
        const char *key = json_type(name) == JSON_STRING ? json_string(name, &n) : NULL;
        const struct json *x = key != NULL ? gram_schema_member(pa, key, n) : NULL,
                          *y = key != NULL ? gram_schema_member(pb, key, n) : NULL;
        if (key == NULL) {
            continue;
        }
        if (y == NULL && json_type(other) == JSON_BOOL && !json_bool(other) &&
            json_get(b, "patternProperties") == NULL) {
            return 1;
        }
        if (json_type(y) == JSON_BOOL && !json_bool(y)) {
            return 1;
        }
        if (x != NULL && y != NULL && requires(b, key, n) && excludes(c, x, y, depth + 1)) {
            return 1;
        }
    }
    return 0;
}

/* 1 when no document can satisfy both schemas, as far as this is easy to see. */
static int excludes(struct schema *c, const struct json *a, const struct json *b, int depth)
{
    a = target_of(c, a);
    b = target_of(c, b);
    if ((json_type(a) == JSON_BOOL && !json_bool(a)) ||
        (json_type(b) == JSON_BOOL && !json_bool(b))) {
        return 1;
    }
    if (json_type(a) != JSON_OBJECT || json_type(b) != JSON_OBJECT || depth > 8) {
        return 0;
    }
    return (types_of(a) & types_of(b)) == 0 || values_exclude(c, a, b) || values_exclude(c, b, a) ||
           members_exclude(c, a, b, depth) || members_exclude(c, b, a, depth);
}

/* ---- branches ---- */

static int has_dependent(const struct json *s, int done, const char **key, size_t *n,
                         const struct json **what)
{
    static const char *const names[] = {"dependentSchemas", "dependencies", "dependentRequired"};
    int at = 0;
    for (size_t i = 0; i < 3; i++) {
        const struct json *deps = json_get(s, names[i]);
        size_t it = 0;
        while (json_type(deps) == JSON_OBJECT && json_next(deps, &it, key, n, what)) {
            if (at++ == done) {
                return 1;
            }
        }
    }
    return 0;
}

static int has_if(const struct json *s)
{
    return json_get(s, "if") != NULL &&
           (json_get(s, "then") != NULL || json_get(s, "else") != NULL);
}

int gram_schema_next_choice(const struct view *v)
{
    const char *key;
    size_t n;
    const struct json *what;
    for (int i = 0; i < v->n; i++) {
        const struct json *s = v->schema[i];
        if ((json_get(s, "anyOf") != NULL && !(v->done[i] & DONE_ANY)) ||
            (json_get(s, "oneOf") != NULL && !(v->done[i] & DONE_ONE)) ||
            (json_get(s, "not") != NULL && !(v->done[i] & DONE_NOT)) ||
            (has_if(s) && !(v->done[i] & DONE_IF)) ||
            has_dependent(s, v->deps_done[i], &key, &n, &what)) {
            return i;
        }
    }
    return -1;
}

static void join(struct branch *b, const struct json *schema, int made)
{
    if (schema != NULL && b->n < BRANCH_MAX) {
        b->add[b->n] = schema;
        b->made[b->n++] = (uint8_t)made;
    }
}

static struct branch *new_branches(struct schema *c, size_t n)
{
    struct branch *b = arena_alloc(&c->arena, sizeof *b * n);
    if (b == NULL) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
    }
    return b;
}

/* anyOf and oneOf. */
static struct branch *list_branches(struct schema *c, const struct json *list, const char *name,
                                    int *n)
{
    size_t count = json_type(list) == JSON_ARRAY ? json_length(list) : 0;
    if (count == 0 || count > MAX_LIST) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: %s must be a list of 1 to %d schemas", name,
                  MAX_LIST);
        return NULL;
    }
    struct branch *b = new_branches(c, count);
    const struct json **no =
        arena_alloc(&c->arena, sizeof *no * count); /* negations, when needed */
    int exclusive = strcmp(name, "oneOf") == 0;
    if (no == NULL) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
    }
    for (size_t i = 0; i < count && !gram_failed(c->g); i++) {
        join(&b[i], json_at(list, i), 0);
        for (size_t k = 0; k < count && exclusive && !gram_schema_is_late(c); k++) {
            if (k == i || excludes(c, json_at(list, i), json_at(list, k), 0)) {
                continue;
            }
            if (no[k] == NULL) {
                no[k] = gram_schema_negation(c, json_at(list, k), name);
            }
            if (b[i].n == BRANCH_MAX) {
                gram_schema_refuse(c, name,
                                   "with so many schemas that don't exclude each other is "
                                   "not supported");
            }
            join(&b[i], no[k], 1);
        }
    }
    *n = (int)count;
    return b;
}

static struct branch *if_branches(struct schema *c, const struct json *s, int *n)
{
    struct branch *b = new_branches(c, 2);
    const struct json *no = gram_schema_negation(c, json_get(s, "if"), "if");
    if (gram_failed(c->g)) {
        return NULL;
    }
    join(&b[0], json_get(s, "if"), 0);
    join(&b[0], json_get(s, "then"), 0);
    join(&b[1], no, 1);
    join(&b[1], json_get(s, "else"), 0);
    *n = 2;
    return b;
}

/* {"properties": {key: false}}, or {"required": [key, …]} (KEY_TOO), or {"required": […]}. */
enum { KEY_ABSENT, KEY_TOO, KEY_NOT_ASKED };
static const struct json *key_schema(struct schema *c, const char *key, size_t n, int how,
                                     const struct json *more)
{
    struct buf text;
    struct json_writer w;
    buf_init(&text);
    json_w_init(&w, &text);
    json_w_object(&w);
    json_w_key(&w, how != KEY_ABSENT ? "required" : "properties");
    if (how != KEY_ABSENT) {
        json_w_array(&w);
        if (how == KEY_TOO) {
            json_w_stringn(&w, key, n);
        }
        for (size_t i = 0; i < json_length(more); i++) {
            json_w_value(&w, json_at(more, i));
        }
        json_w_array_end(&w);
    } else {
        json_w_object(&w);
        json_w_keyn(&w, key, n);
        json_w_bool(&w, 0);
        json_w_object_end(&w);
    }
    json_w_object_end(&w);
    const struct json *doc = gram_schema_make(c, &text);
    buf_fini(&text);
    return doc;
}

/* The member is not there, or it is, and then so are others or a schema holds. */
static struct branch *dependent_branches(struct schema *c, struct view *v, int at, int *n)
{
    const char *key;
    size_t len;
    const struct json *what;
    (void)has_dependent(v->schema[at], v->deps_done[at], &key, &len, &what);
    int list = json_type(what) == JSON_ARRAY;
    /* Where the others are always written nothing has to be chosen. */
    *n = v->deps_done[at] < MAX_DEP_KEYS || !list ? 2 : 1;
    v->deps_done[at]++;
    if (v->deps_done[at] == UINT8_MAX) {
        gram_schema_refuse(c, "dependentSchemas", "with so many members is not supported");
    }
    struct branch *b = new_branches(c, 2);
    if (b == NULL || gram_failed(c->g)) {
        return NULL;
    }
    join(&b[*n - 1], key_schema(c, key, len, *n == 2 ? KEY_TOO : KEY_NOT_ASKED, list ? what : NULL),
         1);
    if (!list) {
        join(&b[1], what, 0);
    }
    if (*n == 2) {
        join(&b[0], key_schema(c, key, len, KEY_ABSENT, NULL), 1);
    }
    return b;
}

struct branch *gram_schema_branches(struct schema *c, struct view *v, int at, int *n)
{
    const struct json *s = v->schema[at];
    uint8_t *done = &v->done[at];
    *n = 0;
    if (json_get(s, "anyOf") != NULL && !(*done & DONE_ANY)) {
        *done |= DONE_ANY;
        return list_branches(c, json_get(s, "anyOf"), "anyOf", n);
    }
    if (json_get(s, "oneOf") != NULL && !(*done & DONE_ONE)) {
        *done |= DONE_ONE;
        return list_branches(c, json_get(s, "oneOf"), "oneOf", n);
    }
    if (json_get(s, "not") != NULL && !(*done & DONE_NOT)) {
        *done |= DONE_NOT;
        const struct json *no = gram_schema_negation(c, json_get(s, "not"), "not");
        struct branch *b = new_branches(c, 1);
        if (b == NULL || no == NULL) {
            return NULL;
        }
        join(b, no, 1);
        *n = 1;
        return b;
    }
    if (has_if(s) && !(*done & DONE_IF)) {
        *done |= DONE_IF;
        return if_branches(c, s, n);
    }
    return dependent_branches(c, v, at, n);
}
