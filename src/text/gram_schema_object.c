/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of JSON schemas. Named members (properties, required, names that propertyNames lists)
 * come in the order of the schema; members of other names follow. Other names fall into classes by
 * which patternProperties they match: each class has its own language of names and its own schema
 * for values. How many members there are is counted where minProperties or maxProperties asks for
 * it.
 *
 * A name may be written twice among the other members (readers keep the last one), which no keyword
 * but minProperties can notice: at most one of the members it asks for may be such a one. */
#include "text/gram_schema.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PROPERTIES 2000
#define MAX_CELLS      200000
#define MAX_KEYS       5 /* different patterns of patternProperties */

struct property {
    const char *key;
    size_t n;
    struct view view;
    int required;
};

struct key_pattern {
    const char *re;
    size_t n;
};

struct object {
    const struct view *v;
    struct property **props;
    int n, cap;
    struct key_pattern key[MAX_KEYS];
    int n_keys;
    struct view names; /* propertyNames of all schemas */
    int has_names;
    int others; /* names that nothing declares may be written */
    int min, max;
};

static const struct gram_range plain_chars[] = {
    {0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, 0x10FFFF}};

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
static int32_t other_key(struct schema *c, struct property *const *keys, int n, size_t at,
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
    const struct property *x = *(struct property *const *)a, *y = *(struct property *const *)b;
    int d = memcmp(x->key, y->key, x->n < y->n ? x->n : y->n);
    return d != 0 ? d : (x->n < y->n ? -1 : x->n > y->n);
}

/* ---- collecting ---- */

static struct property *add_property(struct schema *c, struct object *o, const char *key, size_t n)
{
    for (int i = 0; i < o->n; i++) {
        if (o->props[i]->n == n && memcmp(o->props[i]->key, key, n) == 0) {
            return o->props[i];
        }
    }
    if (o->n == MAX_PROPERTIES || gram_schema_is_late(c)) {
        gram_fail(c->g, ERR_TOO_LARGE, "JSON schema: an object has more than %d properties",
                  MAX_PROPERTIES);
        return NULL;
    }
    if (o->n == o->cap) {
        int cap = o->cap ? o->cap * 2 : 16;
        struct property **p = arena_alloc(&c->arena, sizeof *p * (size_t)cap);
        if (p == NULL) {
            gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
            return NULL;
        }
        for (int i = 0; i < o->n; i++) {
            p[i] = o->props[i];
        }
        o->props = p;
        o->cap = cap;
    }
    struct property *p = arena_alloc(&c->arena, sizeof *p);
    if (p == NULL) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
        return NULL;
    }
    p->key = key;
    p->n = n;
    o->props[o->n++] = p;
    return p;
}

static int pattern_number(struct schema *c, struct object *o, const char *re, size_t n)
{
    for (int i = 0; i < o->n_keys; i++) {
        if (o->key[i].n == n && memcmp(o->key[i].re, re, n) == 0) {
            return i;
        }
    }
    if (o->n_keys == MAX_KEYS) {
        gram_schema_refuse(c, "patternProperties", "with more than 5 patterns is not supported");
        return 0;
    }
    o->key[o->n_keys] = (struct key_pattern){re, n};
    return o->n_keys++;
}

static void collect_names(struct schema *c, struct object *o)
{
    const struct json **list;
    o->names.types = T_STRING;
    for (int i = 0; i < o->v->n; i++) {
        const struct json *names = json_get(o->v->schema[i], "propertyNames");
        if (names != NULL) {
            gram_schema_add(c, &o->names, names);
            o->has_names = 1;
        }
    }
    gram_schema_inline(c, &o->names);
    int n = gram_failed(c->g) || !o->has_names ? -1 : gram_schema_values(c, &o->names, &list);
    for (int i = 0; i < n; i++) { /* names that are listed are declared */
        size_t len;
        if (json_type(list[i]) == JSON_STRING) {
            const char *s = json_string(list[i], &len);
            (void)add_property(c, o, s, len);
        }
    }
    if (n >= 0) {
        o->names.never = 1; /* no other one */
    }
}

static void collect(struct schema *c, struct object *o)
{
    int declared = 0, asked = 0;
    for (int i = 0; i < o->v->n && !gram_failed(c->g); i++) {
        const struct json *s = o->v->schema[i], *sub, *props = json_get(s, "properties"),
                          *pats = json_get(s, "patternProperties"), *req = json_get(s, "required");
        const char *key;
        size_t it = 0, n;
        if ((props != NULL && json_type(props) != JSON_OBJECT) ||
            (pats != NULL && json_type(pats) != JSON_OBJECT)) {
            gram_fail(c->g, ERR_INVALID, "JSON schema: %s must be an object",
                      json_type(pats) != JSON_OBJECT && pats != NULL ? "patternProperties"
                                                                     : "properties");
        }
        while (props != NULL && !gram_failed(c->g) && json_next(props, &it, &key, &n, &sub)) {
            (void)add_property(c, o, key, n);
            declared |= !o->v->made[i];
        }
        for (it = 0; pats != NULL && !gram_failed(c->g) && json_next(pats, &it, &key, &n, &sub);) {
            (void)pattern_number(c, o, key, n);
        }
        asked |= json_get(s, "additionalProperties") != NULL ||
                 json_get(s, "unevaluatedProperties") != NULL;
        if (req != NULL && json_type(req) != JSON_ARRAY && json_type(req) != JSON_BOOL) {
            gram_fail(c->g, ERR_INVALID, "JSON schema: required must be a list of strings");
        }
    }
    for (int i = 0; i < o->v->n && !gram_failed(c->g); i++) {
        const struct json *req = json_get(o->v->schema[i], "required");
        for (size_t k = 0; k < json_length(req) && !gram_failed(c->g); k++) {
            size_t n = 0;
            const struct json *name = json_at(req, k);
            const char *key = json_type(name) == JSON_STRING ? json_string(name, &n) : NULL;
            struct property *p = key != NULL ? add_property(c, o, key, n) : NULL;
            if (key == NULL) {
                gram_fail(c->g, ERR_INVALID, "JSON schema: required must be a list of strings");
            } else if (p != NULL) {
                p->required = 1;
            }
        }
    }
    o->others = asked || (!declared && o->n_keys == 0);
    collect_names(c, o);
}

/* ---- what a member's value has to satisfy ---- */

/* Does schema s itself say something about a member? matched: the patterns that its name
 * matches. */
static int describes(const struct object *o, int s, const char *key, size_t n, uint32_t matched)
{
    const struct json *schema = o->v->schema[s], *pats = json_get(schema, "patternProperties");
    if (o->v->made[s]) {
        return 0;
    }
    if (key != NULL && gram_schema_member(json_get(schema, "properties"), key, n) != NULL) {
        return 1;
    }
    for (int i = 0; i < o->n_keys; i++) {
        if ((matched >> i & 1) && gram_schema_member(pats, o->key[i].re, o->key[i].n) != NULL) {
            return 1;
        }
    }
    return 0;
}

static int is_evaluated(const struct object *o, int s, const char *key, size_t n, uint32_t matched)
{
    for (int d = 0; d < o->v->n; d++) {
        const struct json *schema = o->v->schema[d];
        if (gram_schema_is_inside(o->v, d, s) &&
            (describes(o, d, key, n, matched) || json_get(schema, "additionalProperties") != NULL ||
             (d != s && json_get(schema, "unevaluatedProperties") != NULL))) {
            return 1;
        }
    }
    return 0;
}

/* A member named key, or any other name (key NULL) that matches just these patterns. */
static void view_of(struct schema *c, const struct object *o, const char *key, size_t n,
                    uint32_t matched, struct view *out)
{
    *out = (struct view){0};
    for (int s = 0; s < o->v->n && !gram_failed(c->g); s++) {
        const struct json *schema = o->v->schema[s];
        const struct json *own =
            key != NULL ? gram_schema_member(json_get(schema, "properties"), key, n) : NULL;
        const struct json *pats = json_get(schema, "patternProperties"),
                          *other = json_get(schema, "additionalProperties"),
                          *un = json_get(schema, "unevaluatedProperties");
        if (own != NULL) {
            gram_schema_add(c, out, own);
        }
        for (int i = 0; i < o->n_keys; i++) {
            const struct json *sub =
                matched >> i & 1 ? gram_schema_member(pats, o->key[i].re, o->key[i].n) : NULL;
            if (sub != NULL) {
                gram_schema_add(c, out, sub);
                own = sub;
            }
        }
        if (own == NULL && other != NULL) {
            gram_schema_add(c, out, other);
        }
        if (un != NULL && !is_evaluated(o, s, key, n, matched)) {
            gram_schema_add(c, out, un);
        }
    }
}

static void describe(struct schema *c, struct object *o)
{
    struct gram_pattern keys[MAX_KEYS] = {0};
    for (int i = 0; i < o->n_keys; i++) {
        keys[i].re = o->key[i].re;
        keys[i].re_bytes = o->key[i].n;
    }
    for (int i = 0; i < o->n && !gram_schema_is_late(c); i++) {
        struct property *p = o->props[i];
        view_of(c, o, p->key, p->n, gram_patterns_match(c->g, keys, o->n_keys, p->key, p->n),
                &p->view);
        for (int s = 0; s < o->v->n && o->has_names; s++) {
            const struct json *names = json_get(o->v->schema[s], "propertyNames");
            int ok = names != NULL ? gram_schema_accepts_text(c, names, p->key, p->n) : 1;
            p->view.never |= ok == 0;
            if (ok < 0) {
                gram_schema_refuse(c, "propertyNames", "of this kind is not supported");
            }
        }
    }
}

/* ---- members of other names ---- */

/* The names of one class, then what follows the closing quote. */
static int32_t class_names(struct schema *c, const struct object *o, uint32_t matched,
                           int32_t close)
{
    struct gram_pattern p[GRAM_MAX_PATTERNS] = {0};
    int n = o->n_keys, min = 0, max = -1;
    if (o->n_keys == 0 && !o->has_names && o->n == 0) {
        return gram_repeat(c->g, gram_class_body(c->g, plain_chars, 4), 0, -1, close);
    }
    if (o->n_keys == 0 && !o->has_names) {
        struct property **keys = arena_alloc(&c->arena, sizeof *keys * (size_t)(o->n + 1));
        if (keys == NULL) {
            gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
            return close;
        }
        for (int i = 0; i < o->n; i++) {
            keys[i] = o->props[i];
        }
        qsort(keys, (size_t)o->n, sizeof *keys, by_key);
        return other_key(c, keys, o->n, 0, close);
    }
    for (int i = 0; i < n; i++) {
        p[i].re = o->key[i].re;
        p[i].re_bytes = o->key[i].n;
        p[i].forbidden = !(matched >> i & 1);
    }
    if (n == 1 && !p[0].forbidden && o->n == 0 && !o->has_names) {
        return gram_regex(c->g, p[0].re, p[0].re_bytes, GRAM_TEXT_IN_JSON, 1, close);
    }
    if (o->has_names) {
        n += gram_schema_conditions(c, &o->names, p + n, GRAM_MAX_PATTERNS - 2 - n);
        min = gram_schema_count(c, &o->names, "minLength", 1, 0);
        max = gram_schema_count(c, &o->names, "maxLength", 0, -1);
        if (gram_schema_next_choice(&o->names) >= 0) {
            gram_schema_refuse(c, "propertyNames", "with a choice of schemas is not supported");
        }
        if ((gram_schema_types(c, &o->names) & T_STRING) == 0) {
            return gram_dead(c->g);
        }
    }
    struct gram_literal *texts = arena_alloc(&c->arena, sizeof *texts * (size_t)(o->n + 1));
    if (texts == NULL) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
        return close;
    }
    for (int i = 0; i < o->n; i++) {
        texts[i] = (struct gram_literal){o->props[i]->key, o->props[i]->n};
    }
    if (o->n > 0) {
        p[n++] = (struct gram_pattern){.forbidden = 1, .texts = texts, .n_texts = o->n};
    }
    if (min > 0 || max >= 0 || n == 0) {
        p[n++] = (struct gram_pattern){.min = min, .max = max};
    }
    return gram_patterns(c->g, p, n, GRAM_TEXT_IN_JSON, close);
}

/* "name": value of a member that no name declares, ending in RETURN. */
static int32_t other_member(struct schema *c, const struct object *o)
{
    int32_t alt[1 << MAX_KEYS];
    int n = 0;
    for (uint32_t matched = 0; matched < 1u << o->n_keys && !gram_schema_is_late(c); matched++) {
        struct view value;
        if (matched == 0 && !o->others) {
            continue;
        }
        view_of(c, o, NULL, 0, matched, &value);
        if (value.never || gram_failed(c->g)) {
            continue;
        }
        int32_t then = gram_schema_colon(c, gram_schema_value(c, &value, GRAM_STATE_RETURN));
        alt[n++] = class_names(c, o, matched, gram_bytes(c->g, "\"", 1, then));
    }
    return gram_bytes(c->g, "\"", 1, gram_alt(c->g, alt, n));
}

/* ---- members in order ---- */

/* After the named members, `count` of which are written (a count at the top stands for any larger
 * one when there is no maximum). rule: another member. */
static int32_t tail(struct schema *c, const struct object *o, int rule, int count, int32_t close)
{
    struct gram *g = c->g;
    int need = o->min > count ? o->min - count : 0;
    int room = o->max < 0 ? -1 : o->max - count;
    if (room == 0 || rule < 0) {
        return need == 0 ? close : gram_dead(g);
    }
    if (need > 1) {
        return gram_schema_nothing(
            c, "keyword 'minProperties' above 1 is supported among named properties only");
    }
    int32_t again = gram_schema_comma(c, gram_call(g, rule, GRAM_STATE_RETURN));
    int32_t one = gram_call(g, rule, gram_repeat(g, again, 0, room < 0 ? -1 : room - 1, close));
    one = count > 0 ? gram_schema_comma(c, one) : one;
    return need == 0 ? gram_alt2(g, one, close) : one;
}

static int32_t members(struct schema *c, struct object *o, int32_t next)
{
    struct gram *g = c->g;
    int32_t close = gram_schema_space(c, gram_bytes(g, "}", 1, next));
    int top = o->max >= 0 ? o->max : o->min > 1 ? o->min : 1, rule = -1;
    if (o->max > o->n && o->max > 1) {
        top = o->n > 0 ? o->n : 1;
    }
    if ((int64_t)(top + 1) * (o->n + 1) > MAX_CELLS) {
        gram_schema_refuse(c, o->max >= 0 ? "maxProperties" : "minProperties",
                           "so large beside so many properties is not supported");
        return next;
    }
    int32_t *after = arena_alloc(&c->arena, sizeof *after * (size_t)(top + 2));
    if (after == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a JSON schema");
        return next;
    }
    if ((o->others || o->n_keys > 0) && !o->names.never && o->max != 0) {
        rule = gram_rule_new(g);
        gram_rule_set(g, rule, other_member(c, o));
    }
    for (int count = 0; count <= top; count++) {
        after[count] = tail(c, o, rule, count, close);
    }
    for (int i = o->n - 1; i >= 0 && !gram_failed(g); i--) {
        struct property *p = o->props[i];
        int member = -1;
        if (!p->view.never) {
            member = gram_rule_new(g);
            int32_t value = gram_schema_value(c, &p->view, GRAM_STATE_RETURN);
            gram_rule_set(g, member, key_text(c, p->key, p->n, gram_schema_colon(c, value)));
        } else if (p->required) {
            return gram_schema_nothing(c, "required property '%.60s' can have no value", p->key);
        }
        for (int count = 0; count <= top && member >= 0; count++) {
            int32_t alt[2];
            int n = 0;
            if (count < top || o->max < 0 || o->max > top) {
                int32_t one = gram_call(g, member, after[count < top ? count + 1 : top]);
                alt[n++] = count > 0 ? gram_schema_comma(c, one) : one;
            }
            if (!p->required) {
                alt[n++] = after[count];
            }
            after[count] = gram_alt(g, alt, n); /* after[count + 1] is still the old one */
        }
    }
    return gram_bytes(g, "{", 1, gram_schema_space(c, after[0]));
}

int32_t gram_schema_object(struct schema *c, const struct view *v, int32_t next)
{
    struct object o = {.v = v};
    o.min = gram_schema_count(c, v, "minProperties", 1, 0);
    o.max = gram_schema_count(c, v, "maxProperties", 0, -1);
    if (gram_failed(c->g)) {
        return next;
    }
    if (o.max >= 0 && o.max < o.min) {
        return gram_schema_nothing(c, "maxProperties %d is below minProperties %d", o.max, o.min);
    }
    collect(c, &o);
    describe(c, &o);
    return gram_failed(c->g) ? next : members(c, &o, next);
}
