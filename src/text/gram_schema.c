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
 * allOf add to the list), so that allOf needs no merging of JSON texts. First the choices of the
 * view are expanded into branches (anyOf, oneOf, not, if, dependent…); then either its values are
 * listed (enum, const), or each type that it allows is built. What can't be satisfied is gram_dead,
 * and gram_finish takes it out of the grammar. */
#include "text/gram_schema.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NESTING 48 /* schema levels built inline; recursion goes through rules */
#define MAX_VALUES  10000

int32_t gram_schema_nothing(struct schema *c, const char *fmt, ...)
{
    if (c->g->why[0] == 0) {
        int n = snprintf(c->g->why, sizeof c->g->why, "JSON schema: ");
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(c->g->why + n, sizeof c->g->why - (size_t)n, fmt, ap);
        va_end(ap);
    }
    return gram_dead(c->g);
}

/* ---- white space and punctuation ---- */

int32_t gram_schema_space(struct schema *c, int32_t next)
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
               : gram_bytes(c->g, ",", 1, gram_schema_space(c, next));
}

int32_t gram_schema_colon(struct schema *c, int32_t next)
{
    return c->o->no_whitespace && c->o->whitespace_regex == NULL
               ? gram_bytes(c->g, ": ", 2, next)
               : gram_bytes(c->g, ":", 1, gram_schema_space(c, next));
}

/* ---- any value ---- */

static int32_t any_value(struct schema *c, int32_t next)
{
    struct gram *g = c->g;
    if (c->any_rule < 0) {
        struct view empty = {0};
        c->any_rule = gram_rule_new(g);
        int32_t r = GRAM_STATE_RETURN;
        struct gram_number number = {.max_fraction = GRAM_MAX_FRACTION};
        int32_t alt[7] = {gram_bytes(g, "null", 4, r),     gram_bytes(g, "true", 4, r),
                          gram_bytes(g, "false", 5, r),    gram_schema_any_string(c, 0, -1, r),
                          gram_number(g, &number, r),      gram_schema_array(c, &empty, r),
                          gram_schema_object(c, &empty, r)};
        gram_rule_set(g, c->any_rule, gram_alt(g, alt, 7));
    }
    return gram_call(g, c->any_rule, next);
}

/* ---- types ---- */

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
int gram_schema_types(struct schema *c, const struct view *v)
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

/* Without a type, keywords of one kind of value choose that kind: a subset of what the schema
 * allows. */
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

/* ---- enum and const ---- */

static int type_of_value(const struct json *v)
{
    static const int bits[] = {T_NULL,  T_BOOL,  T_INTEGER | T_NUMBER, T_NUMBER, T_STRING,
                               T_ARRAY, T_OBJECT};
    return bits[json_type(v)];
}

static int is_allowed(struct schema *c, const struct view *v, int types, const struct json *value)
{
    int t = type_of_value(value);
    int whole =
        (types & T_INTEGER) && t == T_NUMBER && json_double(value) == trunc(json_double(value));
    int ok = (t & types) != 0 || whole;
    for (int i = 0; i < v->n && ok > 0; i++) {
        ok = gram_schema_accepts(c, v->schema[i], value);
    }
    if (ok < 0) {
        gram_fail(
            c->g, ERR_UNSUPPORTED,
            "JSON schema: keyword 'enum' or 'const' together with 'format', 'unevaluated…' or "
            "such nesting is not supported");
    }
    return ok > 0;
}

int gram_schema_values(struct schema *c, const struct view *v, const struct json ***out)
{
    const struct json *list = NULL, *one = NULL;
    for (int i = 0; i < v->n && one == NULL; i++) {
        one = json_get(v->schema[i], "const");
        list = json_get(v->schema[i], "enum") != NULL ? json_get(v->schema[i], "enum") : list;
    }
    if (one == NULL && list == NULL) {
        return -1;
    }
    size_t n = one != NULL ? 1 : json_length(list);
    int types = gram_schema_types(c, v), count = 0;
    if (one == NULL && (json_type(list) != JSON_ARRAY || n > MAX_VALUES)) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: enum must be a list of at most %d values",
                  MAX_VALUES);
        return 0;
    }
    *out = arena_alloc(&c->arena, sizeof **out * (n + 1));
    if (*out == NULL) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
    }
    for (size_t i = 0; i < n && !gram_schema_is_late(c); i++) {
        const struct json *value = one != NULL ? one : json_at(list, i);
        if (is_allowed(c, v, types, value)) {
            (*out)[count++] = value;
        }
    }
    return count;
}

static int32_t listed(struct schema *c, const struct json **values, int n, int32_t next)
{
    struct gram_literal *alt = arena_alloc(&c->arena, sizeof *alt * (size_t)(n + 1));
    if (n == 0) {
        return gram_schema_nothing(
            c, "no value of enum or const is allowed by the rest of the schema");
    }
    for (int i = 0; alt != NULL && i < n; i++) {
        struct buf text;
        buf_init(&text);
        json_dump(values[i], &text);
        alt[i].n = text.len;
        alt[i].s = text.failed ? NULL : arena_memdup(&c->arena, text.data, text.len);
        buf_fini(&text);
        if (alt[i].s == NULL) {
            alt = NULL;
        }
    }
    if (alt == NULL) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
        return next;
    }
    return gram_literals(c->g, alt, n, next);
}

/* ---- one value ---- */

static int32_t alternatives(struct schema *c, const struct view *v, int at, int32_t next)
{
    struct view base = *v;
    int n = 0, count = 0;
    const struct branch *b = gram_schema_branches(c, &base, at, &n);
    int32_t *alt = malloc(sizeof *alt * (size_t)(n + 1)), entry = next;
    if (alt == NULL) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
    }
    for (int i = 0; b != NULL && i < n && !gram_schema_is_late(c); i++) {
        struct view one = base;
        for (int k = 0; k < b[i].n; k++) {
            int made = b[i].made[k] || v->made[at];
            gram_schema_add_under(c, &one, b[i].add[k], made ? -1 : at, made);
        }
        if (!one.never && !gram_failed(c->g)) {
            alt[count++] = gram_schema_value(c, &one, next);
        }
    }
    if (!gram_failed(c->g)) {
        entry = count > 0 ? gram_alt(c->g, alt, count)
                          : gram_schema_nothing(c, "no branch of a choice can be satisfied");
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
        alt[count++] = gram_schema_number(c, v, !(types & T_NUMBER), next);
    }
    if (types & T_STRING) {
        alt[count++] = gram_schema_string(c, v, next);
    }
    if (types & T_ARRAY) {
        alt[count++] = gram_schema_array(c, v, next);
    }
    if (types & T_OBJECT) {
        alt[count++] = gram_schema_object(c, v, next);
    }
    if (count == 0) {
        return gram_schema_nothing(c, "no type is left that all parts of the schema allow");
    }
    return gram_failed(g) ? next : gram_alt(g, alt, count);
}

static int32_t inline_value(struct schema *c, const struct view *v, int32_t next)
{
    const struct json **values;
    int types = gram_schema_types(c, v), has_type = v->types != 0;
    for (int i = 0; i < v->n; i++) {
        gram_schema_check_keywords(c, v->schema[i]);
        has_type |= json_get(v->schema[i], "type") != NULL;
    }
    int n_values = gram_failed(c->g) ? 0 : gram_schema_values(c, v, &values);
    if (gram_failed(c->g)) {
        return next;
    }
    if (n_values >= 0) { /* each has been checked against everything, choices included */
        return listed(c, values, n_values, next);
    }
    int at = gram_schema_next_choice(v);
    if (at >= 0) {
        return alternatives(c, v, at, next);
    }
    int implied = has_type ? 0 : implied_types(v);
    return !has_type && implied == 0 ? any_value(c, next)
                                     : typed_value(c, v, implied ? implied : types, next);
}

int32_t gram_schema_value(struct schema *c, const struct view *v, int32_t next)
{
    struct gram *g = c->g;
    if (gram_schema_is_late(c)) {
        return next;
    }
    if (v->never) {
        return gram_schema_nothing(c, "the schema false allows no value");
    }
    int rule = gram_schema_shared_rule(c, v);
    if (rule >= 0) {
        return gram_call(g, rule, next);
    }
    int32_t entry = next;
    if (++c->depth > MAX_NESTING) {
        gram_fail(g, ERR_TOO_LARGE, "JSON schema: nested deeper than %d levels", MAX_NESTING);
    } else {
        entry = inline_value(c, v, next);
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
    gram_rule_set(c->g, rule, gram_schema_value(c, &v, GRAM_STATE_RETURN));
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
    } else if (gram_schema_refs_open(&c) == 0) {
        if (root != NULL) {
            gram_schema_add(&c, &v, root);
        }
        entry = object_only ? gram_schema_object(&c, &v, GRAM_STATE_RETURN)
                            : gram_schema_value(&c, &v, GRAM_STATE_RETURN);
    }
    gram_schema_refs_close(&c);
    for (int i = 0; i < c.n_made; i++) {
        json_free(c.made[i]);
    }
    free(c.made);
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
