/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of a regular expression, for those who do more with it than match it: gram_pattern.c. */
#ifndef TERN_TEXT_GRAM_REGEX_H
#define TERN_TEXT_GRAM_REGEX_H

#include "base/arena.h"
#include "text/gram_build.h"

#define GRAM_MAX_TOPS 4096 /* alternatives of the top level */

enum gram_node_kind {
    GRAM_NODE_EMPTY,
    GRAM_NODE_CHARS,
    GRAM_NODE_CAT,
    GRAM_NODE_ALT,
    GRAM_NODE_REPEAT,
    GRAM_NODE_BEGIN,
    GRAM_NODE_END
};

struct gram_node {
    enum gram_node_kind kind;
    struct gram_range *ranges; /* CHARS */
    int n_ranges;
    int min, max;                      /* REPEAT; max -1: no limit */
    struct gram_node *child, *sibling; /* children are linked */
};

/* One alternative of the top level without its anchors; what an anchor would have stopped. */
struct gram_top {
    struct gram_node *first;
    int any_before, any_after; /* any text may stand there */
};

struct gram_tops {
    struct gram_top *v;
    int n, search;
};

/* Parses into the arena. 0, or the error left in g. */
int gram_regex_parse(struct gram *g, struct arena *arena, const char *re, size_t n_bytes,
                     int search, struct gram_tops *out);

#endif
