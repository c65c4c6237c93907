/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the JSON Schema front end. The files: gram_schema.c (one value, entry points), _view
 * (schemas that apply together), _ref ($ref, $id, $anchor), _check (does a given value satisfy a
 * schema), _choice (anyOf, oneOf, not, if, dependent…), _object, _array, _string, _number. */
#ifndef TERN_TEXT_GRAM_SCHEMA_H
#define TERN_TEXT_GRAM_SCHEMA_H

#include "base/arena.h"
#include "base/map.h"
#include "text/gram_front.h"
#include "text/gram_pattern.h"

#define VIEW_MAX 64 /* schema objects that apply to one value together */

/* Keywords of schemas made here (gram_schema_negation); they count in such schemas only. */
#define OTHER_THAN  "x-other-than"  /* no string of this list */
#define NOT_PATTERN "x-not-pattern" /* a string that this pattern does not match */

enum {
    T_NULL = 1,
    T_BOOL = 2,
    T_OBJECT = 4,
    T_ARRAY = 8,
    T_NUMBER = 16,
    T_STRING = 32,
    T_INTEGER = 64, /* without T_NUMBER: whole numbers only */
    T_ALL = 63
};

/* Which of a schema's choices have been expanded: its branches are in the view beside it. */
enum { DONE_ANY = 1, DONE_ONE = 2, DONE_NOT = 4, DONE_IF = 8 };

struct view {
    const struct json *schema[VIEW_MAX];
    int16_t parent[VIEW_MAX]; /* index of the schema that brought it ($ref, allOf, a branch); -1 */
    uint8_t done[VIEW_MAX];   /* DONE_* */
    uint8_t deps_done[VIEW_MAX]; /* dependent… members expanded */
    uint8_t made[VIEW_MAX]; /* made here: it declares and evaluates no members, for unevaluated… */
    int n;
    int never;              /* contains the schema false */
    int types;              /* extra restriction on types; 0 none */
    const struct json *ref; /* the target, when the view is nothing but one $ref */
};

struct schema {
    struct gram *g;
    const struct grammar_options *o;
    const struct json *root;
    struct arena arena;
    struct map *rules; /* address of a $ref target -> rule number + 1 */
    struct gram_schema_refs *refs;
    struct json **made; /* documents of schemas made here */
    int n_made;
    int depth;         /* schema levels being built inline */
    int n_open_rules;  /* rules being built */
    int32_t char_body; /* one character in a string; -1: not built yet */
    int any_rule;      /* rule of "any value"; -1 */
};

/* ---- gram_schema.c ---- */
/* A value that satisfies all of v, then next; gram_dead where there is none. */
int32_t gram_schema_value(struct schema *c, const struct view *v, int32_t next);
int32_t gram_schema_space(struct schema *c, int32_t next);
int32_t gram_schema_comma(struct schema *c, int32_t next);
int32_t gram_schema_colon(struct schema *c, int32_t next);
/* gram_dead, and why: it is said when no value at all is left. */
int32_t gram_schema_nothing(struct schema *c, const char *fmt, ...) TERN_PRINTF(2, 3);
/* Types a view allows, from type alone. */
int gram_schema_types(struct schema *c, const struct view *v);
/* The enum or const of a view: its values that all schemas accept, in order. Returns their number
 * and *out (in the arena); -1: the view has neither. */
int gram_schema_values(struct schema *c, const struct view *v, const struct json ***out);
void gram_schema_define_rule(struct schema *c, const struct json *target, int rule);

/* ---- gram_schema_view.c ---- */
/* 1 (and failed) after the deadline: for loops that build nothing. */
int gram_schema_is_late(struct schema *c);
void gram_schema_refuse(struct schema *c, const char *keyword, const char *why);
/* Adds a schema (object, true or false) to a view, with what its $ref and allOf bring. parent:
 * index of the schema in the view that applies it in place; -1. */
void gram_schema_add(struct schema *c, struct view *v, const struct json *schema);
void gram_schema_add_under(struct schema *c, struct view *v, const struct json *schema, int parent,
                           int made);
/* A view that is nothing but a $ref becomes the target's. */
void gram_schema_inline(struct schema *c, struct view *v);
/* A non-negative count: the largest (want_max) or smallest over the view; `absent` if there is
 * none. */
int gram_schema_count(struct schema *c, const struct view *v, const char *keyword, int want_max,
                      int absent);
/* Refuses keywords that are neither enforced here nor annotations. */
void gram_schema_check_keywords(struct schema *c, const struct json *schema);
/* A rule for a view that is one $ref only, so that recursion works: its number, built on first use;
 * -1: no such view. */
int gram_schema_shared_rule(struct schema *c, const struct view *v);
/* Is schema d, in place, a part of schema s (or s itself)? */
int gram_schema_is_inside(const struct view *v, int d, int s);
int gram_schema_equal(const struct json *a, const struct json *b, int depth);
/* The member of an object by a name that may hold NULs. */
const struct json *gram_schema_member(const struct json *object, const char *key, size_t n);
/* Parses the text of a schema made here; it lives as long as c. NULL on failure. */
const struct json *gram_schema_make(struct schema *c, struct buf *text);

/* ---- gram_schema_ref.c ---- */
int gram_schema_refs_open(struct schema *c); /* 0, or the error left in g */
void gram_schema_refs_close(struct schema *c);
/* The target of $ref, or of a $dynamicRef that can only mean one place; NULL and refused. */
const struct json *gram_schema_resolve(struct schema *c, const struct json *schema,
                                       const char *keyword);
int gram_schema_has_resources(const struct schema *c); /* an $id below the root */

/* ---- gram_schema_check.c ---- */
/* Does the value satisfy the schema? 1, 0, or -1 when that can't be told here. */
int gram_schema_accepts(struct schema *c, const struct json *schema, const struct json *value);
/* The same for a text as a string value. */
int gram_schema_accepts_text(struct schema *c, const struct json *schema, const char *s, size_t n);

/* ---- gram_schema_choice.c ---- */
#define BRANCH_MAX 32
struct branch { /* one way to satisfy a choice: schemas that join the view */
    const struct json *add[BRANCH_MAX];
    uint8_t made[BRANCH_MAX];
    int n;
};
/* Is a choice of the view still to be expanded? Returns the index of its schema; -1. */
int gram_schema_next_choice(const struct view *v);
/* The branches of that choice (in the arena); marks it done in v. */
struct branch *gram_schema_branches(struct schema *c, struct view *v, int at, int *n);
/* A schema for what the given one does not accept, or a part of that; true for `false`. NULL and
 * refused (naming the keyword) when no part can be expressed. */
const struct json *gram_schema_negation(struct schema *c, const struct json *schema,
                                        const char *keyword);

/* ---- values by type; each accepts what all of v asks of its type ---- */
int32_t gram_schema_string(struct schema *c, const struct view *v, int32_t next);
int32_t gram_schema_any_string(struct schema *c, int min, int max, int32_t next);
/* Conditions that a view puts on a text; returns their number, at most max. */
int gram_schema_conditions(struct schema *c, const struct view *v, struct gram_pattern *out,
                           int max);
const char *gram_schema_format(const char *name); /* a regex; "": an annotation; NULL: unknown */
int32_t gram_schema_number(struct schema *c, const struct view *v, int integer, int32_t next);
int32_t gram_schema_array(struct schema *c, const struct view *v, int32_t next);
int32_t gram_schema_object(struct schema *c, const struct view *v, int32_t next);

#endif
