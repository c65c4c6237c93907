/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of JSON schemas. The item at a position satisfies what every schema says about that
 * position. Three forms: positions and then a counted repeat (the usual one); a table of (items
 * written, items that count for contains); a table of which values of a small set have been
 * written, for uniqueItems. Table cells are rules, called as labels. */
#include "text/gram_schema.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PREFIX 1000
#define MAX_CELLS  20000
#define MAX_SUBSET                                                                                 \
    8 /* unique values that may come in any order; more: in the order of the schema */

struct array {
    const struct view *v;
    const struct json *prefix[VIEW_MAX], *items[VIEW_MAX];
    int n_prefix; /* the longest */
    int min, max; /* items; max -1: no limit */
    int has_rest; /* some schema says what comes after the prefix */
    const struct json *contains;
    int min_contains, max_contains;
};

/* Items before this position are evaluated by schema s or below; INT_MAX: all. */
static int evaluated(const struct array *a, int s)
{
    int n = 0;
    for (int d = 0; d < a->v->n; d++) {
        if (!gram_schema_is_inside(a->v, d, s) || a->v->made[d]) {
            continue;
        }
        if (a->items[d] != NULL ||
            (d != s && json_get(a->v->schema[d], "unevaluatedItems") != NULL)) {
            return MAX_PREFIX + 1;
        }
        int len = (int)json_length(a->prefix[d]);
        n = len > n ? len : n;
    }
    return n;
}

/* What the item at position i has to satisfy; i >= n_prefix: any later one. */
static void view_at(struct schema *c, const struct array *a, int i, struct view *out)
{
    *out = (struct view){0};
    for (int s = 0; s < a->v->n && !gram_failed(c->g); s++) {
        int len = (int)json_length(a->prefix[s]);
        const struct json *un = json_get(a->v->schema[s], "unevaluatedItems");
        if (i < len) {
            gram_schema_add(c, out, json_at(a->prefix[s], (size_t)i));
        } else if (a->items[s] != NULL) {
            gram_schema_add(c, out, a->items[s]);
        }
        if (un == NULL || i < evaluated(a, s)) {
            continue;
        }
        /* An item that contains has matched is evaluated: where nothing else is allowed, all are.
         */
        const struct json *contains = json_get(a->v->schema[s], "contains");
        int closed = json_type(un) == JSON_BOOL && !json_bool(un);
        gram_schema_add(c, out, closed && contains != NULL ? contains : un);
    }
}

static void take_contains(struct schema *c, struct array *a)
{
    a->min_contains = 1;
    a->max_contains = -1;
    for (int i = 0; i < a->v->n; i++) {
        struct view one = {.n = 1, .schema = {a->v->schema[i]}};
        const struct json *contains = json_get(a->v->schema[i], "contains");
        int min = gram_schema_count(c, &one, "minContains", 1, 1),
            max = gram_schema_count(c, &one, "maxContains", 0, -1);
        if (contains == NULL || (min == 0 && max < 0)) {
            continue;
        }
        if (a->contains != NULL) {
            gram_schema_refuse(c, "contains",
                               "in several schemas that apply to the same value is not supported");
        }
        a->contains = contains;
        a->min_contains = min;
        a->max_contains = max;
    }
}

static void collect(struct schema *c, const struct view *v, struct array *a)
{
    a->v = v;
    a->min = gram_schema_count(c, v, "minItems", 1, 0);
    a->max = gram_schema_count(c, v, "maxItems", 0, -1);
    for (int i = 0; i < v->n && !gram_failed(c->g); i++) {
        a->prefix[i] = json_get(v->schema[i], "prefixItems");
        a->items[i] = json_get(v->schema[i], "items");
        if (json_type(a->items[i]) == JSON_ARRAY) { /* drafts before 2020-12 */
            a->prefix[i] = a->items[i];
            a->items[i] = json_get(v->schema[i], "additionalItems");
        }
        int n = (int)json_length(a->prefix[i]);
        if (a->prefix[i] != NULL && (json_type(a->prefix[i]) != JSON_ARRAY || n > MAX_PREFIX)) {
            gram_fail(c->g, ERR_INVALID,
                      "JSON schema: prefixItems must be a list of at most %d schemas", MAX_PREFIX);
        }
        a->n_prefix = n > a->n_prefix ? n : a->n_prefix;
        a->has_rest |= a->items[i] != NULL || json_get(v->schema[i], "unevaluatedItems") != NULL;
    }
    take_contains(c, a);
}

/* ---- positions, then a repeat ---- */

static int32_t plain(struct schema *c, const struct array *a, int32_t close)
{
    struct gram *g = c->g;
    struct view rest;
    int min = a->min, max = a->max, n_prefix = a->n_prefix;
    view_at(c, a, n_prefix, &rest);
    if (rest.never) {
        max = max < 0 || max > n_prefix ? n_prefix : max;
    }
    if (gram_failed(g) || (max >= 0 && max < min)) {
        return gram_schema_nothing(c, "no array has at least %d and at most %d items", min, max);
    }
    int32_t after = close; /* what may follow item number i - 1, counting down */
    int rest_min = min > n_prefix ? min - n_prefix : 0, rest_max = max < 0 ? -1 : max - n_prefix;
    if (rest_max != 0 && (max < 0 || max > n_prefix)) {
        int rule = gram_rule_new(g);
        gram_rule_set(g, rule, gram_schema_value(c, &rest, GRAM_STATE_RETURN));
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
        struct view item;
        view_at(c, a, i, &item);
        int32_t one = gram_schema_value(c, &item, after);
        one = i > 0 ? gram_schema_comma(c, one) : one;
        after = i >= min ? gram_alt2(g, one, close) : one;
    }
    return after;
}

/* ---- contains ---- */

struct items { /* rules of one position's items */
    int hit, other;
};

/* Items that count, and others. Without a maximum an item that could count needn't. */
static struct items item_rules(struct schema *c, const struct array *a, int i)
{
    struct items r = {gram_rule_new(c->g), gram_rule_new(c->g)};
    struct view hit, other;
    view_at(c, a, i, &other);
    hit = other;
    gram_schema_add(c, &hit, a->contains);
    if (a->max_contains >= 0) {
        const struct json *no = gram_schema_negation(c, a->contains, "maxContains");
        if (no != NULL) {
            gram_schema_add_under(c, &other, no, -1, 1);
        }
    }
    gram_rule_set(c->g, r.hit, gram_schema_value(c, &hit, GRAM_STATE_RETURN));
    gram_rule_set(c->g, r.other, gram_schema_value(c, &other, GRAM_STATE_RETURN));
    return r;
}

static int32_t counted(struct schema *c, const struct array *a, int32_t close)
{
    struct gram *g = c->g;
    int last = a->max >= 0 ? a->max : a->min > a->n_prefix ? a->min : a->n_prefix;
    last = last > 0 || a->max == 0 ? last : 1;
    int top = a->max_contains >= 0 ? a->max_contains : a->min_contains;
    if (a->max_contains >= 0 && a->max_contains < a->min_contains) {
        return gram_schema_nothing(c, "maxContains %d is below minContains %d", a->max_contains,
                                   a->min_contains);
    }
    if ((int64_t)(last + 1) * (top + 1) > MAX_CELLS) {
        gram_schema_refuse(c, "contains", "with such large counts is not supported");
        return close;
    }
    int n_rules = a->n_prefix < last ? a->n_prefix + 1 : last + 1, width = top + 1;
    struct items *rules = arena_alloc(&c->arena, sizeof *rules * (size_t)(n_rules + 1));
    int *label = arena_alloc(&c->arena, sizeof *label * (size_t)(last + 1) * (size_t)width);
    if (rules == NULL || label == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a JSON schema");
        return close;
    }
    for (int i = 0; i < n_rules && !gram_failed(g); i++) {
        rules[i] = item_rules(c, a, i);
    }
    for (int i = 0; i < (last + 1) * width; i++) {
        label[i] = gram_rule_new(g);
    }
    for (int i = 0; i <= last && !gram_failed(g); i++) {
        const struct items *r = &rules[i < n_rules ? i : n_rules - 1];
        int up = i < last ? i + 1 : i; /* without a limit the last row stands for all later ones */
        for (int k = 0; k <= top; k++) {
            int32_t alt[3];
            int n = 0;
            if (i >= a->min && k >= a->min_contains) {
                alt[n++] = close;
            }
            if (i < last || a->max < 0) {
                int at_top = k == top;
                int32_t miss =
                    gram_call(g, r->other, gram_call(g, label[up * width + k], GRAM_STATE_RETURN));
                alt[n++] = i > 0 ? gram_schema_comma(c, miss) : miss;
                if (!at_top) {
                    int32_t hit = gram_call(
                        g, r->hit, gram_call(g, label[up * width + k + 1], GRAM_STATE_RETURN));
                    alt[n++] = i > 0 ? gram_schema_comma(c, hit) : hit;
                }
            }
            gram_rule_set(g, label[i * width + k], gram_alt(g, alt, n));
        }
    }
    return gram_call(g, label[0], GRAM_STATE_RETURN);
}

/* ---- uniqueItems ---- */

/* The values an item can have, where they are few. Returns how many; -1: any number. */
static int few_values(struct schema *c, struct view *v, const struct json ***out)
{
    static const char truth[] = "[false,true,null]";
    gram_schema_inline(c, v);
    int n = v->never ? 0 : gram_schema_values(c, v, out);
    int types = gram_schema_types(c, v);
    if (n >= 0 || gram_failed(c->g) || (types & ~(T_BOOL | T_NULL)) != 0) {
        return n;
    }
    struct buf text;
    buf_init(&text);
    buf_append(&text, truth, sizeof truth - 1);
    const struct json *all = gram_schema_make(c, &text);
    buf_fini(&text);
    *out = arena_alloc(&c->arena, sizeof **out * 3);
    n = 0;
    for (size_t i = 0; *out != NULL && i < 3; i++) {
        int ok = i < 2 ? (types & T_BOOL) != 0 : (types & T_NULL) != 0;
        for (int k = 0; k < v->n && ok; k++) {
            ok = gram_schema_accepts(c, v->schema[k], json_at(all, i));
        }
        if (ok < 0) {
            return -1;
        }
        if (ok) {
            (*out)[n++] = json_at(all, i);
        }
    }
    return n;
}

static int32_t write_value(struct schema *c, const struct json *v, int32_t next)
{
    struct buf text;
    buf_init(&text);
    json_dump(v, &text);
    if (text.failed) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
    } else {
        next = gram_bytes(c->g, text.data, text.len, next);
    }
    buf_fini(&text);
    return next;
}

struct unique {
    const struct json **value; /* all of them, different */
    int n;
    int n_rows;      /* positions with their own values, and one for all later ones */
    uint8_t *allows; /* [n_rows][n] */
    int max;         /* items; -1: no limit */
};

static int32_t any_order(struct schema *c, const struct array *a, const struct unique *u,
                         int32_t close)
{
    struct gram *g = c->g;
    int label[1 << MAX_SUBSET], n_sets = 1 << u->n;
    for (int set = 0; set < n_sets; set++) {
        label[set] = gram_rule_new(g);
    }
    for (int set = 0; set < n_sets && !gram_failed(g); set++) {
        int32_t alt[MAX_SUBSET + 1];
        int n = 0, i = __builtin_popcount((unsigned)set);
        int row = i < u->n_rows ? i : u->n_rows - 1;
        if (i >= a->min) {
            alt[n++] = close;
        }
        for (int k = 0; k < u->n && (u->max < 0 || i < u->max); k++) {
            if (!(set >> k & 1) && u->allows[row * u->n + k]) {
                int32_t one = write_value(c, u->value[k],
                                          gram_call(g, label[set | 1 << k], GRAM_STATE_RETURN));
                alt[n++] = i > 0 ? gram_schema_comma(c, one) : one;
            }
        }
        gram_rule_set(g, label[set], gram_alt(g, alt, n));
    }
    return gram_call(g, label[0], GRAM_STATE_RETURN);
}

/* Label (k, i): i items are written, all before value k. */
static int32_t one_order(struct schema *c, const struct array *a, const struct unique *u,
                         int32_t close)
{
    struct gram *g = c->g;
    int top = u->max >= 0 ? u->max : a->min > 0 ? a->min : 1, width = top + 1;
    if ((int64_t)(u->n + 1) * width > MAX_CELLS || u->n_rows > 1) {
        gram_schema_refuse(c, "uniqueItems", "over so many values is not supported");
        return close;
    }
    int32_t *cell = arena_alloc(&c->arena, sizeof *cell * (size_t)(u->n + 1) * (size_t)width);
    if (cell == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a JSON schema");
        return close;
    }
    for (int k = u->n; k >= 0 && !gram_failed(g); k--) {
        for (int i = 0; i < width; i++) {
            int32_t alt[2];
            int n = 0, up = i < top ? i + 1 : i;
            if (k == u->n) {
                cell[k * width + i] = i >= a->min ? close : gram_dead(g);
                continue;
            }
            alt[n++] = cell[(k + 1) * width + i];
            if (i < top || u->max < 0) {
                int32_t one = write_value(c, u->value[k], cell[(k + 1) * width + up]);
                alt[n++] = i > 0 ? gram_schema_comma(c, one) : one;
            }
            cell[k * width + i] = gram_alt(g, alt, n);
        }
    }
    return cell[0];
}

static int32_t unique(struct schema *c, const struct array *a, int32_t close)
{
    struct unique u = {.n_rows = a->n_prefix + 1, .max = a->max};
    int cap = 0;
    const struct json **row[MAX_SUBSET + 2];
    int n_row[MAX_SUBSET + 2];
    if (a->n_prefix > MAX_SUBSET) {
        gram_schema_refuse(c, "uniqueItems", "with so long a prefixItems is not supported");
        return close;
    }
    for (int i = 0; i < u.n_rows && !gram_failed(c->g); i++) {
        struct view item;
        view_at(c, a, i, &item);
        n_row[i] = few_values(c, &item, &row[i]);
        if (n_row[i] < 0 && i == a->n_prefix && i > 0 && !a->has_rest) {
            n_row[i] = 0; /* items that no schema describes are not written */
        }
        if (n_row[i] < 0) {
            gram_schema_refuse(c, "uniqueItems",
                               "is supported where items are of enum, const or boolean only");
            return close;
        }
        cap += n_row[i];
    }
    u.value = arena_alloc(&c->arena, sizeof *u.value * (size_t)(cap + 1));
    u.allows = arena_alloc(&c->arena, (size_t)(cap + 1) * (size_t)u.n_rows);
    if (gram_failed(c->g) || u.value == NULL || u.allows == NULL) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
        return close;
    }
    for (int i = 0; i < u.n_rows; i++) {
        for (int k = 0; k < n_row[i] && !gram_schema_is_late(c); k++) {
            int at = 0;
            while (at < u.n && !gram_schema_equal(u.value[at], row[i][k], 0)) {
                at++;
            }
            if (at == u.n) {
                u.value[u.n++] = row[i][k];
            }
        }
    }
    for (int i = 0; i < u.n_rows; i++) {
        for (int k = 0; k < n_row[i] && !gram_schema_is_late(c); k++) {
            for (int at = 0; at < u.n; at++) {
                u.allows[i * u.n + at] |= (uint8_t)gram_schema_equal(u.value[at], row[i][k], 0);
            }
        }
    }
    return u.n <= MAX_SUBSET ? any_order(c, a, &u, close) : one_order(c, a, &u, close);
}

int32_t gram_schema_array(struct schema *c, const struct view *v, int32_t next)
{
    struct gram *g = c->g;
    struct array a = {0};
    int is_unique = 0;
    collect(c, v, &a);
    for (int i = 0; i < v->n; i++) {
        const struct json *u = json_get(v->schema[i], "uniqueItems");
        is_unique |= json_type(u) == JSON_BOOL && json_bool(u);
    }
    is_unique = is_unique && (a.max < 0 || a.max > 1);
    if (gram_failed(g)) {
        return next;
    }
    int32_t close = gram_schema_space(c, gram_bytes(g, "]", 1, next)), body;
    if (is_unique && a.contains != NULL) {
        gram_schema_refuse(c, "uniqueItems", "together with contains is not supported");
        return next;
    }
    body = is_unique            ? unique(c, &a, close)
           : a.contains != NULL ? counted(c, &a, close)
                                : plain(c, &a, close);
    return gram_bytes(g, "[", 1, gram_schema_space(c, body));
}
