/* SPDX-License-Identifier: Apache-2.0 */
/* Builder of grammar automata: what the regex, JSON Schema and EBNF front ends compile to.
 *
 * The automaton works on bytes and has a stack (rules call rules), so it covers every context-free
 * grammar that is not left-recursive. It is built backwards: each gram_* function takes the state
 * where matching goes on (`next`) and returns the state where it begins, which leaves almost no
 * empty transitions. A body that several places use is a rule (gram_rule_*), or the body of a
 * gram_repeat; both end in GRAM_STATE_RETURN.
 *
 * A rule that is called in tail position (next is GRAM_STATE_RETURN) is a jump: its body goes on in
 * the caller's frame, so rules also serve as labels of arbitrary graphs.
 *
 * Errors are sticky: after the first one every call returns GRAM_STATE_RETURN and changes nothing;
 * the front end looks at gram_failed once in a while and at the end. */
#ifndef TERN_TEXT_GRAM_BUILD_H
#define TERN_TEXT_GRAM_BUILD_H

#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

#define GRAM_MAX_STATES   400000        /* of one grammar, with its edges */
#define GRAM_MAX_REPEAT   100000        /* largest count in a repeat */
#define GRAM_COMPILE_NS   1000000000ull /* a grammar that takes longer to compile is refused */
#define GRAM_STATE_RETURN 0

enum gram_kind { GRAM_RETURN, GRAM_BYTES, GRAM_EPSILON, GRAM_CALL, GRAM_REPEAT };

struct gram_edge {
    uint8_t lo, hi;
    int32_t next;
};

struct gram_state {
    uint8_t kind;     /* enum gram_kind */
    int32_t first, n; /* BYTES: edges[first .. first+n); EPSILON: targets[first .. first+n) */
    int32_t body;     /* CALL: rule number; REPEAT: first state of the body */
    int32_t next;     /* CALL, REPEAT: where matching goes on */
    int32_t min, max; /* REPEAT; max -1: no limit */
    int32_t class_id; /* BYTES that begin the automaton of one character class; else -1 */
};

/* Code points lo..hi. */
struct gram_range {
    uint32_t lo, hi;
};

/* A set of characters whose automaton (ending in RETURN) begins at `entry`. */
struct gram_class {
    struct gram_range *ranges; /* ascending, disjoint, without surrogates */
    int n_ranges;
    int32_t entry;
};

struct gram {
    struct gram_state *states;
    int n_states, cap_states;
    struct gram_edge *edges;
    int n_edges, cap_edges;
    int32_t *targets;
    int n_targets, cap_targets;
    int32_t *rules; /* first state of each rule; -1 while undefined */
    int n_rules, cap_rules;
    struct gram_class *classes;
    int n_classes, cap_classes;
    int32_t root;
    uint64_t deadline_ns;
    char why[200];    /* what is said when nothing at all can be matched; "" for the usual text */
    struct err error; /* code 0: fine so far */
};

int gram_init(struct gram *g); /* 0 or ERR_NOMEM */
void gram_fini(struct gram *g);
int gram_failed(const struct gram *g);
void gram_fail(struct gram *g, int code, const char *fmt, ...) TERN_PRINTF(3, 4);

/* A state that matches nothing: what leads only there is taken out by gram_finish. */
int32_t gram_dead(struct gram *g);
int32_t gram_bytes(struct gram *g, const char *s, size_t n_bytes, int32_t next);
/* One character of the set, inline. */
int32_t gram_chars(struct gram *g, const struct gram_range *ranges, int n, int32_t next);
/* The same as a body that ends in RETURN, shared between equal sets: what gram_repeat likes best,
 * because token masks of a repeated class are precomputed. */
int32_t gram_class_body(struct gram *g, const struct gram_range *ranges, int n);
/* Any one of n strings, as their trie: sorts v. */
struct gram_literal {
    const char *s;
    size_t n;
};
int32_t gram_literals(struct gram *g, struct gram_literal *v, int n, int32_t next);
int32_t gram_alt(struct gram *g, const int32_t *entries, int n);
int32_t gram_alt2(struct gram *g, int32_t a, int32_t b);
int32_t gram_repeat(struct gram *g, int32_t body, int min, int max, int32_t next);
int gram_rule_new(struct gram *g);
void gram_rule_set(struct gram *g, int rule, int32_t entry);
int32_t gram_call(struct gram *g, int rule, int32_t next);
/* Checks the finished grammar: all rules defined, no left recursion, bounded empty transitions.
 * Takes out whatever can't be completed, so that no output ever ends in a blind alley. */
int gram_finish(struct gram *g, int32_t root);

/* Range sets. In place: sorts and merges; returns the new count. */
int gram_ranges_normalize(struct gram_range *r, int n);
/* All characters (no surrogates) that are not in r (normalized). out needs n + 2 entries; returns
 * the count. */
int gram_ranges_invert(const struct gram_range *r, int n, struct gram_range *out);
/* a minus b, both normalized; out needs n_a + n_b + 1 entries. */
int gram_ranges_subtract(const struct gram_range *a, int n_a, const struct gram_range *b, int n_b,
                         struct gram_range *out);

#endif
