/* SPDX-License-Identifier: Apache-2.0 */
/* The front ends of grammar_compile. Each builds into g and returns the state where matching of its
 * language begins, with `next` after it; failures are left in g (gram_fail). */
#ifndef TERN_TEXT_GRAM_FRONT_H
#define TERN_TEXT_GRAM_FRONT_H

#include "base/json.h"
#include "text/gram_build.h"
#include "text/grammar.h"

enum gram_text_mode {
    GRAM_TEXT_RAW,    /* characters stand for themselves */
    GRAM_TEXT_IN_JSON /* inside a JSON string: a character that must be escaped there is matched in
                         its escaped form */
};

/* One character of a set in the given mode, as a body that ends in RETURN. */
int32_t gram_front_char_body(struct gram *g, const struct gram_range *ranges, int n,
                             enum gram_text_mode mode);

/* The same inline, then next. */
int32_t gram_front_chars(struct gram *g, const struct gram_range *ranges, int n,
                         enum gram_text_mode mode, int32_t next);

/* Regular expression (ECMA 262 / PCRE common subset). search: may match anywhere inside (JSON
 * Schema "pattern"), unless anchored; otherwise the whole text must match. */
int32_t gram_regex(struct gram *g, const char *re, size_t n_bytes, enum gram_text_mode mode,
                   int search, int32_t next);

/* Where the expression is one repeated set of characters and nothing else: the same with min..max
 * characters (max -1: no limit) into *entry, and 1. Else 0. */
int gram_regex_counted(struct gram *g, const char *re, size_t n_bytes, enum gram_text_mode mode,
                       int search, int min, int max, int32_t next, int32_t *entry);

int32_t gram_ebnf(struct gram *g, const char *text, size_t n_bytes);

int32_t gram_schema(struct gram *g, const struct json *schema, const struct grammar_options *o);
int32_t gram_schema_any_object(struct gram *g, const struct grammar_options *o);

#define GRAM_MAX_FRACTION 15 /* digits after the point */

/* Numbers as decimal text within bounds. lo / hi: decimal strings or NULL; *_exclusive. */
struct gram_number {
    int integer;
    const char *lo, *hi; /* canonical decimals: -?digits[.digits], no exponent */
    int lo_exclusive, hi_exclusive;
    int64_t multiple_of; /* 0 none, else >= 1 */
    int multiple_digits; /* of 10^-multiple_digits */
    int max_fraction;    /* digits after the point at most */
};
int32_t gram_number(struct gram *g, const struct gram_number *spec, int32_t next);

#endif
