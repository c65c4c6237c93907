/* SPDX-License-Identifier: Apache-2.0 */
/* See gram_pattern.h. Each condition is a nondeterministic automaton (Thompson's construction, over
 * ranges of code points) whose last state carries the condition's number; all of them begin at
 * once. The subset construction walks them together, so a state of the result knows which
 * conditions hold there, and accepts where all the demanded and none of the forbidden ones do.
 *
 * The result is emitted with one rule a state, called as a label. A state that goes on to itself
 * over a set of characters becomes a repeat of that set, which token masks are precomputed for. */
#include "text/gram_pattern.h"

#include "base/clock.h"
#include "base/map.h"
#include "base/utf8.h"
#include "text/gram_regex.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NFA    60000
#define MAX_DFA    4000
#define MAX_EDGES  120000
#define MAX_LENGTH 20000 /* counted characters */

enum nfa_kind { NFA_CHARS, NFA_SPLIT, NFA_ACCEPT };

struct nfa_state {
    enum nfa_kind kind;
    const struct gram_range *ranges; /* CHARS */
    int n_ranges;
    int next, other; /* SPLIT: both; -1 none */
    int tag;         /* ACCEPT */
};

struct dfa_edge {
    struct gram_range range;
    int to;
};

struct dfa_state {
    int *set, n; /* states of the nfa that read a character or accept, ascending */
    uint32_t tags;
    int first, n_edges;
};

struct builder {
    struct gram *g;
    struct arena arena;
    struct nfa_state *nfa;
    int n_nfa, cap_nfa;
    struct dfa_state *dfa;
    int n_dfa, cap_dfa;
    struct dfa_edge *edges;
    int n_edges, cap_edges;
    struct map *index; /* set -> state number + 1 */
    int *work, *set;   /* [n_nfa] scratch of the closure */
    int *mark, epoch;  /* [n_nfa] */
};

static const struct gram_range any_char[] = {{0, 0xD7FF}, {0xE000, 0x10FFFF}};

static int is_stopped(struct builder *b)
{
    if (clock_now_ns() > b->g->deadline_ns) {
        gram_fail(b->g, ERR_TOO_LARGE, "grammar takes too long to compile");
    }
    return gram_failed(b->g);
}

static int grow(struct builder *b, void **array, int n, int *cap, size_t item_bytes, int limit)
{
    if (gram_failed(b->g)) {
        return 0;
    }
    if (n < *cap) {
        return 1;
    }
    if (n >= limit || is_stopped(b)) {
        gram_fail(b->g, ERR_TOO_LARGE, "patterns that apply together are too large");
        return 0;
    }
    int want = *cap ? *cap * 2 : 64;
    void *p = realloc(*array, (size_t)want * item_bytes);
    if (p == NULL) {
        gram_fail(b->g, ERR_NOMEM, "out of memory while compiling a pattern");
        return 0;
    }
    *array = p;
    *cap = want;
    return 1;
}

/* ---- conditions to a nondeterministic automaton, built backwards ---- */

static int add(struct builder *b, struct nfa_state s)
{
    if (!grow(b, (void **)&b->nfa, b->n_nfa, &b->cap_nfa, sizeof *b->nfa, MAX_NFA)) {
        return 0;
    }
    b->nfa[b->n_nfa] = s;
    return b->n_nfa++;
}

static int chars(struct builder *b, const struct gram_range *ranges, int n, int next)
{
    return add(b, (struct nfa_state){NFA_CHARS, ranges, n, next, -1, 0});
}

static int split(struct builder *b, int next, int other)
{
    return add(b, (struct nfa_state){NFA_SPLIT, NULL, 0, next, other, 0});
}

static int node(struct builder *b, const struct gram_node *n, int next);

static int sequence(struct builder *b, const struct gram_node *first, int next)
{
    int count = 0;
    for (const struct gram_node *c = first; c != NULL; c = c->sibling) {
        count++;
    }
    const struct gram_node **all = arena_alloc(&b->arena, sizeof *all * (size_t)(count + 1));
    if (all == NULL) {
        gram_fail(b->g, ERR_NOMEM, "out of memory while compiling a pattern");
        return next;
    }
    count = 0;
    for (const struct gram_node *c = first; c != NULL; c = c->sibling) {
        all[count++] = c;
    }
    while (count-- > 0 && !gram_failed(b->g)) {
        next = node(b, all[count], next);
    }
    return next;
}

static int repeat(struct builder *b, const struct gram_node *n, int next)
{
    if (n->max < 0) {
        int loop = split(b, -1, next);
        int body = node(b, n->child, loop);
        if (!gram_failed(b->g)) {
            b->nfa[loop].next = body;
        }
        next = loop;
    }
    for (int i = n->min; i < n->max && !gram_failed(b->g); i++) {
        next = split(b, node(b, n->child, next), next);
    }
    for (int i = 0; i < n->min && !gram_failed(b->g); i++) {
        next = node(b, n->child, next);
    }
    return next;
}

static int node(struct builder *b, const struct gram_node *n, int next)
{
    int entry = -1;
    switch (n->kind) {
    case GRAM_NODE_EMPTY:
        return next;
    case GRAM_NODE_CHARS:
        return chars(b, n->ranges, n->n_ranges, next);
    case GRAM_NODE_CAT:
        return sequence(b, n->child, next);
    case GRAM_NODE_ALT:
        for (const struct gram_node *c = n->child; c != NULL && !gram_failed(b->g);
             c = c->sibling) {
            int one = node(b, c, next);
            entry = entry < 0 ? one : split(b, one, entry);
        }
        return entry < 0 ? next : entry;
    case GRAM_NODE_REPEAT:
        return repeat(b, n, next);
    case GRAM_NODE_BEGIN:
    case GRAM_NODE_END:
        break;
    }
    gram_fail(b->g, ERR_UNSUPPORTED,
              "regex: an anchor (^ or $) that is not at the end of an alternative is not "
              "supported");
    return next;
}

static int any_text(struct builder *b, int next)
{
    int loop = split(b, -1, next), body = chars(b, any_char, 2, loop);
    if (!gram_failed(b->g)) {
        b->nfa[loop].next = body;
    }
    return loop;
}

static int regex(struct builder *b, const struct gram_pattern *p, int accept)
{
    struct gram_tops tops;
    int entry = -1;
    if (gram_regex_parse(b->g, &b->arena, p->re, p->re_bytes, !p->whole, &tops) != 0) {
        return accept;
    }
    for (int i = 0; i < tops.n && !gram_failed(b->g); i++) {
        int one = tops.v[i].any_after ? any_text(b, accept) : accept;
        one = sequence(b, tops.v[i].first, one);
        one = tops.v[i].any_before ? any_text(b, one) : one;
        entry = entry < 0 ? one : split(b, one, entry);
    }
    return entry < 0 ? accept : entry;
}

static int text(struct builder *b, const struct gram_literal *t, int next)
{
    size_t at = 0;
    struct gram_range *r = arena_alloc(&b->arena, sizeof *r * (t->n + 1));
    int n = 0;
    while (r != NULL && at < t->n) {
        uint32_t cp = 0;
        int len = utf8_decode(t->s + at, t->n - at, &cp);
        at += len > 0 ? (size_t)len : 1;
        r[n++] = (struct gram_range){cp, cp};
    }
    if (r == NULL) {
        gram_fail(b->g, ERR_NOMEM, "out of memory while compiling a pattern");
    }
    while (n-- > 0 && !gram_failed(b->g)) {
        next = chars(b, &r[n], 1, next);
    }
    return next;
}

static int condition(struct builder *b, const struct gram_pattern *p, int tag)
{
    int accept = add(b, (struct nfa_state){NFA_ACCEPT, NULL, 0, -1, -1, tag}), entry = -1;
    if (p->re != NULL) {
        return regex(b, p, accept);
    }
    if (p->texts != NULL) {
        for (int i = 0; i < p->n_texts && !gram_failed(b->g); i++) {
            int one = text(b, &p->texts[i], accept);
            entry = entry < 0 ? one : split(b, one, entry);
        }
        return entry;
    }
    if (p->min > MAX_LENGTH || p->max > MAX_LENGTH) {
        gram_fail(b->g, ERR_TOO_LARGE, "a length above %d together with a pattern is too large",
                  MAX_LENGTH);
        return accept;
    }
    int next = p->max < 0 ? any_text(b, accept) : accept;
    for (int i = p->min; i < p->max && !gram_failed(b->g); i++) {
        next = split(b, chars(b, any_char, 2, next), accept);
    }
    for (int i = 0; i < p->min && !gram_failed(b->g); i++) {
        next = chars(b, any_char, 2, next);
    }
    return next;
}

/* ---- subset construction ---- */

static int by_int(const void *a, const void *b)
{
    return *(const int *)a < *(const int *)b ? -1 : *(const int *)a > *(const int *)b;
}

/* Everything that can be reached from the n states in b->work without a character: into b->set.
 * Returns how many. */
static int closure(struct builder *b, int n)
{
    int count = 0;
    b->epoch++;
    for (int i = 0; i < n; i++) {
        b->mark[b->work[i]] = b->epoch;
    }
    while (n > 0) {
        int i = b->work[--n];
        const struct nfa_state *s = &b->nfa[i];
        if (s->kind != NFA_SPLIT) {
            b->set[count++] = i;
            continue;
        }
        int to[2] = {s->next, s->other};
        for (int k = 0; k < 2; k++) {
            if (to[k] >= 0 && b->mark[to[k]] != b->epoch) {
                b->mark[to[k]] = b->epoch;
                b->work[n++] = to[k];
            }
        }
    }
    qsort(b->set, (size_t)count, sizeof *b->set, by_int);
    return count;
}

/* The state of the set in b->set. */
static int intern(struct builder *b, int n)
{
    size_t bytes = sizeof *b->set * (size_t)n;
    uintptr_t known = (uintptr_t)map_get(b->index, b->set, bytes);
    if (known != 0) {
        return (int)known - 1;
    }
    if (!grow(b, (void **)&b->dfa, b->n_dfa, &b->cap_dfa, sizeof *b->dfa, MAX_DFA)) {
        return 0;
    }
    struct dfa_state *s = &b->dfa[b->n_dfa];
    *s = (struct dfa_state){.set = arena_memdup(&b->arena, b->set, bytes + 1), .n = n};
    if (s->set == NULL ||
        map_put(b->index, b->set, bytes, (void *)(uintptr_t)(b->n_dfa + 1)) != 0) {
        gram_fail(b->g, ERR_NOMEM, "out of memory while compiling a pattern");
        return 0;
    }
    for (int i = 0; i < n; i++) {
        const struct nfa_state *a = &b->nfa[b->set[i]];
        s->tags |= a->kind == NFA_ACCEPT ? 1u << a->tag : 0;
    }
    return b->n_dfa++;
}

static int by_code_point(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Characters of one elementary interval lead from `from` to the result; -1: nowhere. */
static int target(struct builder *b, const struct dfa_state *from, uint32_t cp)
{
    int n = 0;
    b->epoch++;
    for (int i = 0; i < from->n; i++) {
        const struct nfa_state *s = &b->nfa[from->set[i]];
        for (int k = 0; s->kind == NFA_CHARS && k < s->n_ranges; k++) {
            if (cp >= s->ranges[k].lo && cp <= s->ranges[k].hi) {
                if (b->mark[s->next] != b->epoch) {
                    b->mark[s->next] = b->epoch;
                    b->work[n++] = s->next;
                }
                break;
            }
        }
    }
    return n == 0 ? -1 : intern(b, closure(b, n));
}

static void expand(struct builder *b, int at)
{
    struct dfa_state from = b->dfa[at];
    size_t n_cuts = 0, cap = 2;
    for (int i = 0; i < from.n; i++) {
        cap += 2 * (size_t)b->nfa[from.set[i]].n_ranges;
    }
    uint32_t *cut = malloc(cap * sizeof *cut);
    if (cut == NULL) {
        gram_fail(b->g, ERR_NOMEM, "out of memory while compiling a pattern");
        return;
    }
    for (int i = 0; i < from.n; i++) {
        const struct nfa_state *s = &b->nfa[from.set[i]];
        for (int k = 0; s->kind == NFA_CHARS && k < s->n_ranges; k++) {
            cut[n_cuts++] = s->ranges[k].lo;
            cut[n_cuts++] = s->ranges[k].hi + 1;
        }
    }
    qsort(cut, n_cuts, sizeof *cut, by_code_point);
    int first = b->n_edges;
    for (size_t i = 0; i + 1 < n_cuts && !is_stopped(b); i++) {
        if (cut[i] == cut[i + 1]) {
            continue;
        }
        int to = target(b, &from, cut[i]);
        if (to >= 0 &&
            grow(b, (void **)&b->edges, b->n_edges, &b->cap_edges, sizeof *b->edges, MAX_EDGES)) {
            b->edges[b->n_edges++] = (struct dfa_edge){{cut[i], cut[i + 1] - 1}, to};
        }
    }
    free(cut);
    b->dfa[at].first = first;
    b->dfa[at].n_edges = b->n_edges - first;
}

/* ---- emission ---- */

static int by_target(const void *a, const void *b)
{
    const struct dfa_edge *x = a, *y = b;
    if (x->to != y->to) {
        return x->to < y->to ? -1 : 1;
    }
    return x->range.lo < y->range.lo ? -1 : x->range.lo > y->range.lo;
}

static int32_t emit_state(struct builder *b, int at, uint32_t must, uint32_t must_not,
                          const int *rules, enum gram_text_mode mode, int32_t next)
{
    struct gram *g = b->g;
    const struct dfa_state *s = &b->dfa[at];
    struct dfa_edge *e = b->edges + s->first;
    struct gram_range *r = malloc(sizeof *r * (size_t)(s->n_edges + 1));
    int32_t *alt = malloc(sizeof *alt * (size_t)(s->n_edges + 2)), loop = -1;
    int n_alt = 0;
    if (r == NULL || alt == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a pattern");
    } else {
        qsort(e, (size_t)s->n_edges, sizeof *e, by_target);
    }
    for (int i = 0; i < s->n_edges && !gram_failed(g);) {
        int n = 0, to = e[i].to;
        for (; i < s->n_edges && e[i].to == to; i++) {
            r[n++] = e[i].range;
        }
        n = gram_ranges_normalize(r, n);
        if (n > 0 && to == at) {
            loop = gram_front_char_body(g, r, n, mode);
        } else if (n > 0) {
            alt[n_alt++] =
                gram_front_chars(g, r, n, mode, gram_call(g, rules[to], GRAM_STATE_RETURN));
        }
    }
    int32_t entry = next;
    if (!gram_failed(g)) {
        if ((s->tags & must) == must && (s->tags & must_not) == 0) {
            alt[n_alt++] = next;
        }
        entry = gram_alt(g, alt, n_alt);
        entry = loop >= 0 ? gram_repeat(g, loop, 0, -1, entry) : entry;
    }
    free(r);
    free(alt);
    return entry;
}

static int open_builder(struct builder *b, struct gram *g, const struct gram_pattern *v, int n)
{
    int roots[GRAM_MAX_PATTERNS + 1];
    memset(b, 0, sizeof *b);
    b->g = g;
    arena_init(&b->arena, 0);
    b->index = map_new();
    for (int i = 0; i < n && !gram_failed(g); i++) {
        roots[i] = condition(b, &v[i], i);
    }
    b->work = calloc((size_t)b->n_nfa + 1, sizeof *b->work);
    b->set = calloc((size_t)b->n_nfa + 1, sizeof *b->set);
    b->mark = calloc((size_t)b->n_nfa + 1, sizeof *b->mark);
    if (b->index == NULL || b->work == NULL || b->set == NULL || b->mark == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a pattern");
    }
    if (gram_failed(g)) {
        return -1;
    }
    int n_work = 0;
    for (int i = 0; i < n; i++) {
        if (roots[i] >= 0) {
            b->work[n_work++] = roots[i];
        }
    }
    return intern(b, closure(b, n_work));
}

static void close_builder(struct builder *b)
{
    map_free(b->index);
    free(b->nfa);
    free(b->dfa);
    free(b->edges);
    free(b->work);
    free(b->set);
    free(b->mark);
    arena_fini(&b->arena);
}

int32_t gram_patterns(struct gram *g, const struct gram_pattern *v, int n, enum gram_text_mode mode,
                      int32_t next)
{
    struct builder b;
    uint32_t must = 0, must_not = 0;
    int32_t entry = next;
    int *rules = NULL;
    struct gram_pattern all[GRAM_MAX_PATTERNS + 1];
    if (n > GRAM_MAX_PATTERNS) {
        gram_fail(g, ERR_TOO_LARGE, "more than %d patterns apply together", GRAM_MAX_PATTERNS);
    }
    if (gram_failed(g)) {
        return next;
    }
    for (int i = 0; i < n; i++) {
        *(v[i].forbidden ? &must_not : &must) |= 1u << i;
        all[i] = v[i];
    }
    /* A text that can no longer match what is forbidden goes on in this one. */
    all[n++] = (struct gram_pattern){.min = 0, .max = -1};
    int start = open_builder(&b, g, all, n);
    for (int i = 0; i < b.n_dfa && !gram_failed(g); i++) {
        expand(&b, i);
    }
    if (!gram_failed(g)) {
        rules = malloc(sizeof *rules * (size_t)b.n_dfa);
    }
    for (int i = 0; rules != NULL && i < b.n_dfa; i++) {
        rules[i] = gram_rule_new(g);
    }
    for (int i = 0; rules != NULL && i < b.n_dfa && !gram_failed(g); i++) {
        gram_rule_set(g, rules[i], emit_state(&b, i, must, must_not, rules, mode, next));
    }
    if (rules != NULL && !gram_failed(g)) {
        entry = gram_call(g, rules[start], GRAM_STATE_RETURN);
    } else if (!gram_failed(g)) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a pattern");
    }
    free(rules);
    close_builder(&b);
    return entry;
}

uint32_t gram_patterns_match(struct gram *g, const struct gram_pattern *v, int n, const char *text_,
                             size_t n_bytes)
{
    struct builder b;
    uint32_t tags = 0;
    if (n == 0 || n > GRAM_MAX_PATTERNS || gram_failed(g)) {
        return 0;
    }
    int at = open_builder(&b, g, v, n);
    for (size_t i = 0; i < n_bytes && at >= 0 && !gram_failed(g);) {
        uint32_t cp = 0;
        int len = utf8_decode(text_ + i, n_bytes - i, &cp);
        i += len > 0 ? (size_t)len : 1;
        struct dfa_state from = b.dfa[at];
        at = target(&b, &from, cp);
    }
    if (at >= 0 && !gram_failed(g)) {
        tags = b.dfa[at].tags;
    }
    close_builder(&b);
    return tags;
}
