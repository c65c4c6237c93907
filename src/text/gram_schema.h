/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the JSON Schema front end: views of schemas that apply together, and keyword look-up.
 */
#ifndef TERN_TEXT_GRAM_SCHEMA_H
#define TERN_TEXT_GRAM_SCHEMA_H

#include "base/arena.h"
#include "base/map.h"
#include "text/gram_front.h"

#define VIEW_MAX      24 /* schema objects that apply to one value together */
#define VIEW_ANY_DONE 1
#define VIEW_ONE_DONE 2

struct view {
    const struct json *schema[VIEW_MAX];
    uint8_t done[VIEW_MAX]; /* VIEW_*_DONE: that schema's anyOf / oneOf has been expanded */
    int n;
    int never;                       /* contains the schema false */
    int types;                       /* extra restriction on types; 0 none */
    const struct json *ref;          /* the target, when the view is nothing but one $ref */
    const struct json *values_owner; /* the schema whose enum or const is written out */
};

struct schema {
    struct gram *g;
    const struct grammar_options *o;
    const struct json *root;
    struct arena arena;
    struct map *rules; /* address of a $ref target -> rule number + 1 */
    int depth;         /* schema levels being built inline */
    int n_open_rules;  /* rules being built */
    int32_t char_body; /* one character in a string; -1: not built yet */
    int any_rule;      /* rule of "any value"; -1 */
};

/* 1 (and failed) after the deadline: for loops that build nothing. */
int gram_schema_is_late(struct schema *c);
void gram_schema_refuse(struct schema *c, const char *keyword, const char *why);
/* Adds a schema (object, true or false) to a view, with what its $ref and allOf bring. */
void gram_schema_add(struct schema *c, struct view *v, const struct json *schema);
/* The keyword's value where only one schema of the view has it (or all equal); refuses otherwise.
 * NULL: absent. */
const struct json *gram_schema_one(struct schema *c, const struct view *v, const char *keyword);
/* A non-negative count: the largest (want_max) or smallest over the view; `absent` if there is
 * none. */
int gram_schema_count(struct schema *c, const struct view *v, const char *keyword, int want_max,
                      int absent);
/* Index of the first schema whose anyOf or oneOf is still to be expanded; -1. */
int gram_schema_next_choice(const struct view *v);
/* Refuses keywords that are neither enforced here nor annotations. */
void gram_schema_check_keywords(struct schema *c, const struct json *schema);
/* The enum array or const value of a schema; NULL. */
const struct json *gram_schema_values(const struct json *schema);
/* 1 unless the schema has an enum or const that does not contain the value. */
int gram_schema_has_value(const struct json *schema, const struct json *value);
/* Refuses other constraints beside enum or const. */
void gram_schema_only_values(struct schema *c, const struct json *schema);
/* 1 when no document can satisfy two of the schemas, as far as types, const and enum tell. */
int gram_schema_disjoint(struct schema *c, const struct json *list);
/* A view that is one $ref only is a rule, so that recursion works: its number, built on first use;
 * -1: no such view. */
int gram_schema_shared_rule(struct schema *c, const struct view *v);
void gram_schema_define_rule(struct schema *c, const struct json *target,
                             int rule); /* gram_schema.c */
int32_t gram_schema_comma(struct schema *c, int32_t next);

#endif
