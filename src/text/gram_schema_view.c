/* SPDX-License-Identifier: Apache-2.0 */
/* Schemas that apply to one value together: $ref and allOf add to the list, so that nothing has to
 * be merged as JSON; keywords are combined over the list. A schema remembers which other brought it
 * in place: unevaluatedProperties and unevaluatedItems look at those below them only. */
#include "text/gram_schema.h"

#include "base/clock.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REF_CHAIN   32  /* $refs followed one after the other to reach a schema */
#define MAX_RULE_NEST   128 /* rules that are being built at the same time */
#define MAX_EQUAL_DEPTH 64

/* Keywords that constrain nothing. */
static const char *const annotations[] = {
    "$schema",          "$id",        "$comment",    "$defs",         "definitions",
    "$anchor",          "title",      "description", "default",       "examples",
    "example",          "deprecated", "readOnly",    "writeOnly",     "contentEncoding",
    "contentMediaType", "id",         "$vocabulary", "contentSchema", "$dynamicAnchor"};

#define COUNT(a) (sizeof(a) / sizeof *(a))

void gram_schema_refuse(struct schema *c, const char *keyword, const char *why)
{
    gram_fail(c->g, ERR_UNSUPPORTED, "JSON schema: keyword '%s' %s", keyword, why);
}

int gram_schema_is_late(struct schema *c)
{
    if (clock_now_ns() > c->g->deadline_ns) {
        gram_fail(c->g, ERR_TOO_LARGE, "JSON schema: takes too long to compile");
    }
    return gram_failed(c->g);
}

static int is_annotation(const char *key)
{
    for (size_t i = 0; i < COUNT(annotations); i++) {
        if (strcmp(key, annotations[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

/* 1 when nothing but annotations stands beside the $ref. */
static int is_only_ref(const struct json *schema)
{
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    while (json_next(schema, &it, &key, &n, &value)) {
        if (strcmp(key, "$ref") != 0 && !is_annotation(key)) {
            return 0;
        }
    }
    return 1;
}

static void add(struct schema *c, struct view *v, const struct json *schema, int parent, int made,
                int chain)
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
    if (chain > MAX_REF_CHAIN) {
        gram_fail(c->g, ERR_INVALID,
                  "JSON schema: $refs and allOfs in each other are endless or deeper than %d",
                  MAX_REF_CHAIN);
        return;
    }
    const struct json *all = json_get(schema, "allOf"), *target = NULL;
    if (json_get(schema, "$ref") != NULL) {
        target = gram_schema_resolve(c, schema, "$ref");
        if (target == NULL) {
            return;
        }
        if (v->n == 0 && v->ref == NULL && chain == 0 && is_only_ref(schema)) {
            v->ref = target; /* becomes a rule, unless something else is added */
            return;
        }
        if (is_only_ref(schema)) {
            add(c, v, target, parent, made, chain + 1);
            return;
        }
    }
    if (v->n == VIEW_MAX) {
        gram_fail(c->g, ERR_TOO_LARGE, "JSON schema: more than %d schemas apply to one value",
                  VIEW_MAX);
        return;
    }
    int self = v->n++;
    v->done[self] = v->deps_done[self] = 0;
    v->made[self] = (uint8_t)made;
    v->parent[self] = (int16_t)parent;
    v->schema[self] = schema;
    if (target != NULL) {
        add(c, v, target, self, made, chain + 1);
    }
    if (json_get(schema, "$dynamicRef") != NULL) {
        target = gram_schema_resolve(c, schema, "$dynamicRef");
        if (target != NULL) {
            add(c, v, target, self, made, chain + 1);
        }
    }
    if (all != NULL && json_type(all) != JSON_ARRAY) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: allOf must be a list");
    }
    for (size_t i = 0; all != NULL && i < json_length(all) && !gram_failed(c->g); i++) {
        add(c, v, json_at(all, i), self, made, chain + 1);
    }
}

void gram_schema_inline(struct schema *c, struct view *v)
{
    const struct json *target = v->ref;
    if (target != NULL) {
        v->ref = NULL;
        add(c, v, target, -1, 0, 1);
    }
}

void gram_schema_add_under(struct schema *c, struct view *v, const struct json *schema, int parent,
                           int made)
{
    gram_schema_inline(c, v); /* no longer alone */
    add(c, v, schema, parent, made, v->n > 0 || v->never || v->types != 0);
}

void gram_schema_add(struct schema *c, struct view *v, const struct json *schema)
{
    gram_schema_add_under(c, v, schema, -1, 0);
}

int gram_schema_is_inside(const struct view *v, int d, int s)
{
    while (d >= 0 && d != s) {
        d = v->parent[d];
    }
    return d == s;
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

int gram_schema_equal(const struct json *a, const struct json *b, int depth)
{
    enum json_type ta = json_type(a), tb = json_type(b);
    if (json_is_number(a) && json_is_number(b)) {
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
        if (!gram_schema_equal(json_at(a, i), json_at(b, i), depth + 1)) {
            return 0;
        }
    }
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    while (ta == JSON_OBJECT && json_next(a, &it, &key, &n, &value)) {
        const struct json *other = json_get(b, key);
        if (other == NULL || !gram_schema_equal(value, other, depth + 1)) {
            return 0;
        }
    }
    return 1;
}

const struct json *gram_schema_member(const struct json *object, const char *key, size_t n)
{
    if (json_type(object) != JSON_OBJECT) {
        return NULL;
    }
    if (memchr(key, 0, n) == NULL) {
        return json_get(object, key);
    }
    size_t it = 0, m;
    const char *name;
    const struct json *value;
    while (json_next(object, &it, &name, &m, &value)) {
        if (m == n && memcmp(name, key, n) == 0) {
            return value;
        }
    }
    return NULL;
}

const struct json *gram_schema_make(struct schema *c, struct buf *text)
{
    struct json *doc = NULL;
    struct err e = {0};
    if (text->failed || (c->n_made & (c->n_made - 1)) == 0) { /* full at every power of two */
        size_t cap = c->n_made > 0 ? (size_t)c->n_made * 2 : 1;
        struct json **p = text->failed ? NULL : realloc(c->made, cap * sizeof *p);
        if (p == NULL) {
            gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
            return NULL;
        }
        c->made = p;
    }
    if (json_parse(&doc, text->data, text->len, 2 * JSON_DEPTH_DEFAULT, &e) != 0) {
        gram_fail(c->g, ERR_TOO_LARGE, "JSON schema: 'not' or 'if' is nested too deeply");
        return NULL;
    }
    c->made[c->n_made++] = doc;
    return doc;
}

/* ---- keywords ---- */

void gram_schema_check_keywords(struct schema *c, const struct json *schema)
{
    if (json_get(schema, "$recursiveRef") != NULL) {
        gram_schema_refuse(c, "$recursiveRef", "is not supported");
    }
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
        double d = json_is_number(value) ? json_double(value) : -1;
        if (!(d >= 0) || d != trunc(d)) {
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
