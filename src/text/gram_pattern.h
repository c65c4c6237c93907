/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that satisfy several conditions at once: must match these patterns, must not match those,
 * must have so many characters, must be none of these. Regular languages are closed under all of
 * that: the conditions become one deterministic automaton over characters. */
#ifndef TERN_TEXT_GRAM_PATTERN_H
#define TERN_TEXT_GRAM_PATTERN_H

#include "text/gram_front.h"

#define GRAM_MAX_PATTERNS 24

struct gram_pattern {
    int forbidden; /* the text must not match */
    /* exactly one of these */
    const char *re; /* JSON Schema's pattern: may match anywhere unless anchored */
    size_t re_bytes;
    int whole;                        /* re must match the whole text */
    const struct gram_literal *texts; /* any one of them */
    int n_texts;
    int min, max; /* neither re nor texts: the number of characters; max -1: no limit */
};

/* Texts that satisfy all of v, then next. A language without any text is gram_dead. */
int32_t gram_patterns(struct gram *g, const struct gram_pattern *v, int n, enum gram_text_mode mode,
                      int32_t next);
/* Bit i: the text matches v[i] (whether it is forbidden or not). 0 on failure, which is in g. */
uint32_t gram_patterns_match(struct gram *g, const struct gram_pattern *v, int n, const char *text,
                             size_t n_bytes);

#endif
