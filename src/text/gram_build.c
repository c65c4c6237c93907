/* SPDX-License-Identifier: Apache-2.0 */
/* Construction of grammar automata: see gram_build.h. Character sets become UTF-8 byte automata
 * here, by cutting each code point range where the encoded length or the leading bytes change. */
#include "text/gram_build.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TRIE_DEPTH 2000

int gram_failed(const struct gram *g)
{
    return g->error.code != 0;
}

void gram_fail(struct gram *g, int code, const char *fmt, ...)
{
    if (g->error.code != 0) {
        return;
    }
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)err_set(&g->error, code, "%s", text);
}

/* Room for one more element; 0 on failure (sticky). */
static int grow(struct gram *g, void **array, int n, int *cap, size_t item_bytes)
{
    if (g->error.code != 0) {
        return 0;
    }
    if (n < *cap) {
        return 1;
    }
    if (n >= GRAM_MAX_STATES) {
        gram_fail(g, ERR_TOO_LARGE, "grammar is too large: more than %d states", GRAM_MAX_STATES);
        return 0;
    }
    if (clock_now_ns() > g->deadline_ns) {
        gram_fail(g, ERR_TOO_LARGE, "grammar takes too long to compile");
        return 0;
    }
    int want = *cap ? *cap * 2 : 64;
    void *p = realloc(*array, (size_t)want * item_bytes);
    if (p == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a grammar");
        return 0;
    }
    *array = p;
    *cap = want;
    return 1;
}

static int32_t add_state(struct gram *g, enum gram_kind kind)
{
    if (!grow(g, (void **)&g->states, g->n_states, &g->cap_states, sizeof *g->states)) {
        return GRAM_STATE_RETURN;
    }
    struct gram_state *s = &g->states[g->n_states];
    memset(s, 0, sizeof *s);
    s->kind = (uint8_t)kind;
    s->class_id = -1;
    return g->n_states++;
}

static void add_edge(struct gram *g, uint8_t lo, uint8_t hi, int32_t next)
{
    if (grow(g, (void **)&g->edges, g->n_edges, &g->cap_edges, sizeof *g->edges)) {
        g->edges[g->n_edges++] = (struct gram_edge){lo, hi, next};
    }
}

/* A BYTES state with one edge. */
static int32_t one_edge(struct gram *g, uint8_t lo, uint8_t hi, int32_t next)
{
    int32_t s = add_state(g, GRAM_BYTES);
    if (s != GRAM_STATE_RETURN) {
        g->states[s].first = g->n_edges;
        g->states[s].n = 1;
        add_edge(g, lo, hi, next);
    }
    return s;
}

int gram_init(struct gram *g)
{
    memset(g, 0, sizeof *g);
    g->deadline_ns = clock_now_ns() + GRAM_COMPILE_NS;
    (void)add_state(g, GRAM_RETURN);
    return g->error.code;
}

void gram_fini(struct gram *g)
{
    for (int i = 0; i < g->n_classes; i++) {
        free(g->classes[i].ranges);
    }
    free(g->classes);
    free(g->states);
    free(g->edges);
    free(g->targets);
    free(g->rules);
    memset(g, 0, sizeof *g);
}

int32_t gram_dead(struct gram *g)
{
    return add_state(g, GRAM_BYTES);
}

int32_t gram_bytes(struct gram *g, const char *s, size_t n_bytes, int32_t next)
{
    for (size_t i = n_bytes; i-- > 0 && !gram_failed(g);) {
        next = one_edge(g, (uint8_t)s[i], (uint8_t)s[i], next);
    }
    return next;
}

/* ---- character sets ---- */

/* Byte sequences of one encoded length: bytes[i] in lo[i]..hi[i]. */
struct seq {
    uint8_t lo[4], hi[4];
    int n;
};

struct seqs {
    struct seq *v;
    int n, cap;
};

static void push_seq(struct gram *g, struct seqs *out, uint32_t lo, uint32_t hi)
{
    char a[4], b[4];
    int n = utf8_encode(lo, a);
    (void)utf8_encode(hi, b);
    if (!grow(g, (void **)&out->v, out->n, &out->cap, sizeof *out->v)) {
        return;
    }
    struct seq *s = &out->v[out->n++];
    s->n = n;
    for (int i = 0; i < n; i++) {
        s->lo[i] = (uint8_t)a[i];
        s->hi[i] = (uint8_t)b[i];
    }
}

/* Cuts lo..hi (one encoded length) so that every piece is a product of byte ranges. */
static void cut(struct gram *g, struct seqs *out, uint32_t lo, uint32_t hi)
{
    for (int shift = 6; shift <= 18; shift += 6) {
        uint32_t low_bits = (1u << shift) - 1;
        if ((lo & ~low_bits) == (hi & ~low_bits)) {
            continue; /* same leading bytes: nothing to cut at this level */
        }
        if ((lo & low_bits) != 0) {
            cut(g, out, lo, lo | low_bits);
            cut(g, out, (lo | low_bits) + 1, hi);
            return;
        }
        if ((hi & low_bits) != low_bits) {
            cut(g, out, lo, (hi & ~low_bits) - 1);
            cut(g, out, hi & ~low_bits, hi);
            return;
        }
    }
    push_seq(g, out, lo, hi);
}

static int32_t chars_state(struct gram *g, const struct gram_range *ranges, int n, int32_t next)
{
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xD7FF, 0xFFFF, 0x10FFFF};
    struct seqs seqs = {0};
    for (int i = 0; i < n && !gram_failed(g); i++) {
        uint32_t lo = ranges[i].lo;
        for (int e = 0; e < 5 && lo <= ranges[i].hi; e++) {
            if (lo > ends[e]) {
                continue;
            }
            uint32_t hi = ranges[i].hi < ends[e] ? ranges[i].hi : ends[e];
            cut(g, &seqs, lo, hi);
            lo = hi + 1 == 0xD800 ? 0xE000 : hi + 1;
        }
    }
    /* Suffix states first (a BYTES state's own edges must be contiguous), equal ones shared. */
    int32_t *first = calloc((size_t)(seqs.n ? seqs.n : 1), sizeof *first);
    if (first == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a grammar");
    }
    for (int i = 0; i < seqs.n && !gram_failed(g); i++) {
        const struct seq *s = &seqs.v[i];
        if (i > 0 && s->n == s[-1].n && memcmp(s->lo + 1, s[-1].lo + 1, (size_t)s->n - 1) == 0 &&
            memcmp(s->hi + 1, s[-1].hi + 1, (size_t)s->n - 1) == 0) {
            first[i] = first[i - 1];
            continue;
        }
        int32_t t = next;
        for (int b = s->n - 1; b > 0; b--) {
            t = one_edge(g, s->lo[b], s->hi[b], t);
        }
        first[i] = t;
    }
    int32_t state = add_state(g, GRAM_BYTES);
    if (state != GRAM_STATE_RETURN) {
        g->states[state].first = g->n_edges;
        g->states[state].n = seqs.n;
        for (int i = 0; i < seqs.n; i++) {
            add_edge(g, seqs.v[i].lo[0], seqs.v[i].hi[0], first[i]);
        }
    }
    free(first);
    free(seqs.v);
    return state;
}

int32_t gram_chars(struct gram *g, const struct gram_range *ranges, int n, int32_t next)
{
    return gram_failed(g) ? GRAM_STATE_RETURN : chars_state(g, ranges, n, next);
}

int32_t gram_class_body(struct gram *g, const struct gram_range *ranges, int n)
{
    for (int i = 0; i < g->n_classes; i++) {
        if (g->classes[i].n_ranges == n &&
            memcmp(g->classes[i].ranges, ranges, (size_t)n * sizeof *ranges) == 0) {
            return g->classes[i].entry;
        }
    }
    int32_t entry = gram_chars(g, ranges, n, GRAM_STATE_RETURN);
    if (!grow(g, (void **)&g->classes, g->n_classes, &g->cap_classes, sizeof *g->classes)) {
        return GRAM_STATE_RETURN;
    }
    struct gram_range *copy = malloc((size_t)(n ? n : 1) * sizeof *copy);
    if (copy == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a grammar");
        return GRAM_STATE_RETURN;
    }
    memcpy(copy, ranges, (size_t)n * sizeof *copy);
    g->states[entry].class_id = g->n_classes;
    g->classes[g->n_classes++] = (struct gram_class){copy, n, entry};
    return entry;
}

/* ---- composition ---- */

int32_t gram_alt(struct gram *g, const int32_t *entries, int n)
{
    if (n == 0) {
        return gram_dead(g);
    }
    if (n == 1) {
        return entries[0];
    }
    int32_t s = add_state(g, GRAM_EPSILON);
    if (s == GRAM_STATE_RETURN) {
        return s;
    }
    g->states[s].first = g->n_targets;
    g->states[s].n = n;
    for (int i = 0; i < n; i++) {
        if (grow(g, (void **)&g->targets, g->n_targets, &g->cap_targets, sizeof *g->targets)) {
            g->targets[g->n_targets++] = entries[i];
        }
    }
    return s;
}

static int by_text(const void *a, const void *b)
{
    const struct gram_literal *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return c != 0 ? c : (x->n < y->n ? -1 : x->n > y->n);
}

/* v is sorted; all begin with the same `at` bytes. */
static int32_t trie(struct gram *g, const struct gram_literal *v, int n, size_t at, int depth,
                    int32_t next)
{
    int32_t child[256];
    size_t end = at;
    const struct gram_literal *last = &v[n - 1];
    if (depth > MAX_TRIE_DEPTH) {
        gram_fail(g, ERR_TOO_LARGE, "grammar: more than %d texts begin with each other",
                  MAX_TRIE_DEPTH);
    }
    if (gram_failed(g)) {
        return next;
    }
    while (end < v[0].n && end < last->n && v[0].s[end] == last->s[end]) {
        end++;
    }
    int i = 0, n_bytes = 0, ends = 0;
    uint8_t bytes[256];
    while (i < n && v[i].n == end) {
        ends = 1;
        i++;
    }
    while (i < n && !gram_failed(g)) {
        int k = i;
        while (k < n && v[k].s[end] == v[i].s[end]) {
            k++;
        }
        bytes[n_bytes] = (uint8_t)v[i].s[end];
        child[n_bytes++] = trie(g, v + i, k - i, end + 1, depth + 1, next);
        i = k;
    }
    int32_t entry = next;
    if (n_bytes > 0) {
        entry = add_state(g, GRAM_BYTES);
        if (entry != GRAM_STATE_RETURN) {
            g->states[entry].first = g->n_edges;
            g->states[entry].n = n_bytes;
            for (int b = 0; b < n_bytes; b++) {
                add_edge(g, bytes[b], bytes[b], child[b]);
            }
        }
        entry = ends ? gram_alt2(g, entry, next) : entry;
    }
    return gram_bytes(g, v[0].s + at, end - at, entry);
}

int32_t gram_literals(struct gram *g, struct gram_literal *v, int n, int32_t next)
{
    qsort(v, (size_t)n, sizeof *v, by_text);
    return trie(g, v, n, 0, 0, next);
}

int32_t gram_alt2(struct gram *g, int32_t a, int32_t b)
{
    int32_t both[2] = {a, b};
    return gram_alt(g, both, 2);
}

int32_t gram_repeat(struct gram *g, int32_t body, int min, int max, int32_t next)
{
    if (min > GRAM_MAX_REPEAT || max > GRAM_MAX_REPEAT) {
        gram_fail(g, ERR_TOO_LARGE, "repeat count %d is too large (at most %d)",
                  min > max ? min : max, GRAM_MAX_REPEAT);
        return GRAM_STATE_RETURN;
    }
    if (max == 0) {
        return next;
    }
    int32_t s = add_state(g, GRAM_REPEAT);
    if (s != GRAM_STATE_RETURN) {
        g->states[s].body = body;
        g->states[s].min = min;
        g->states[s].max = max;
        g->states[s].next = next;
    }
    return s;
}

int gram_rule_new(struct gram *g)
{
    if (!grow(g, (void **)&g->rules, g->n_rules, &g->cap_rules, sizeof *g->rules)) {
        return 0;
    }
    g->rules[g->n_rules] = -1;
    return g->n_rules++;
}

void gram_rule_set(struct gram *g, int rule, int32_t entry)
{
    if (!gram_failed(g)) {
        g->rules[rule] = entry;
    }
}

int32_t gram_call(struct gram *g, int rule, int32_t next)
{
    int32_t s = add_state(g, GRAM_CALL);
    if (s != GRAM_STATE_RETURN) {
        g->states[s].body = rule;
        g->states[s].next = next;
    }
    return s;
}

/* ---- checks of the finished grammar ---- */

/* nullable[s]: the end of the state's body can be reached without a byte. Least fixed point. */
static int find_nullable(const struct gram *g, uint8_t *nullable)
{
    nullable[GRAM_STATE_RETURN] = 1;
    int passes = 0;
    for (int changed = 1; changed; passes++) {
        changed = 0;
        for (int i = 1; i < g->n_states; i++) {
            const struct gram_state *s = &g->states[i];
            int v = nullable[i];
            if (s->kind == GRAM_EPSILON) {
                for (int t = 0; t < s->n; t++) {
                    v |= nullable[g->targets[s->first + t]];
                }
            } else if (s->kind == GRAM_CALL) {
                v = nullable[g->rules[s->body]] && nullable[s->next];
            } else if (s->kind == GRAM_REPEAT) {
                v = (s->min == 0 || nullable[s->body]) && nullable[s->next];
            }
            if (v != nullable[i]) {
                nullable[i] = (uint8_t)v;
                changed = 1;
            }
        }
        if (clock_now_ns() > g->deadline_ns) {
            return ERR_TOO_LARGE;
        }
    }
    return 0;
}

/* Successors of a state over empty transitions, as far as left recursion is concerned. */
static int left_successors(const struct gram *g, const uint8_t *nullable, int i, int k,
                           int32_t *out)
{
    const struct gram_state *s = &g->states[i];
    if (s->kind == GRAM_EPSILON) {
        if (k < s->n) {
            *out = g->targets[s->first + k];
            return 1;
        }
    } else if (s->kind == GRAM_CALL || s->kind == GRAM_REPEAT) {
        int32_t body = s->kind == GRAM_CALL ? g->rules[s->body] : s->body;
        if (k == 0) {
            *out = body;
            return 1;
        }
        if (k == 1 && (nullable[body] || (s->kind == GRAM_REPEAT && s->min == 0))) {
            *out = s->next;
            return 1;
        }
    }
    return 0;
}

/* A cycle of empty transitions is left recursion (or a repeat of something empty around itself). */
static int has_empty_cycle(const struct gram *g, const uint8_t *nullable)
{
    uint8_t *color = calloc((size_t)g->n_states, 1);
    int32_t *stack = malloc((size_t)g->n_states * sizeof *stack);
    int32_t *at = calloc((size_t)g->n_states, sizeof *at);
    int found = color == NULL || stack == NULL || at == NULL ? -1 : 0;
    for (int root = 0; root < g->n_states && found == 0; root++) {
        int depth = 0;
        if (color[root] == 0) {
            stack[depth++] = root;
            color[root] = 1;
        }
        while (depth > 0 && found == 0) {
            int32_t i = stack[depth - 1], next;
            if (!left_successors(g, nullable, i, at[i]++, &next)) {
                color[i] = 2;
                depth--;
            } else if (color[next] == 1) {
                found = 1;
            } else if (color[next] == 0) {
                color[next] = 1;
                stack[depth++] = next;
            }
        }
    }
    free(color);
    free(stack);
    free(at);
    return found;
}

/* May matching get from state i to the end of its body, as far as is known? */
static int is_productive(const struct gram *g, const uint8_t *live, int i)
{
    const struct gram_state *s = &g->states[i];
    int v = 0;
    switch ((enum gram_kind)s->kind) {
    case GRAM_RETURN:
        return 1;
    case GRAM_BYTES:
        for (int k = 0; k < s->n && !v; k++) {
            v = live[g->edges[s->first + k].next];
        }
        return v;
    case GRAM_EPSILON:
        for (int k = 0; k < s->n && !v; k++) {
            v = live[g->targets[s->first + k]];
        }
        return v;
    case GRAM_CALL:
        return live[g->rules[s->body]] && live[s->next];
    case GRAM_REPEAT:
        return (s->min == 0 || live[s->body]) && live[s->next];
    }
    return 0;
}

/* Takes out edges and alternatives that lead to no end. */
static void prune(struct gram *g, const uint8_t *live)
{
    for (int i = 0; i < g->n_states; i++) {
        struct gram_state *s = &g->states[i];
        int n = 0;
        if (s->kind == GRAM_BYTES) {
            for (int k = 0; k < s->n; k++) {
                struct gram_edge e = g->edges[s->first + k];
                if (live[e.next]) {
                    g->edges[s->first + n++] = e;
                }
            }
            s->class_id = n == s->n ? s->class_id : -1;
            s->n = n;
        } else if (s->kind == GRAM_EPSILON) {
            for (int k = 0; k < s->n; k++) {
                int32_t t = g->targets[s->first + k];
                if (live[t]) {
                    g->targets[s->first + n++] = t;
                }
            }
            s->n = n;
        } else if (s->kind == GRAM_REPEAT && !live[s->body]) {
            s->max = 0; /* none is possible; min is 0, or the state is dead itself */
        }
    }
}

/* 1 when the root can be completed; 0 when it can't; ERR_TOO_LARGE. Least fixed point; states are
 * built backwards, so that one pass settles all but recursion. */
static int remove_dead(struct gram *g)
{
    uint8_t *live = calloc((size_t)g->n_states, 1);
    if (live == NULL) {
        return ERR_NOMEM;
    }
    int rc = 0;
    for (int changed = 1; changed && rc == 0;) {
        changed = 0;
        for (int i = 0; i < g->n_states; i++) {
            if (!live[i] && is_productive(g, live, i)) {
                live[i] = 1;
                changed = 1;
            }
        }
        rc = clock_now_ns() > g->deadline_ns ? ERR_TOO_LARGE : 0;
    }
    if (rc == 0) {
        prune(g, live);
        rc = live[g->root];
    }
    free(live);
    return rc;
}

int gram_finish(struct gram *g, int32_t root)
{
    g->root = root;
    for (int i = 0; i < g->n_rules && !gram_failed(g); i++) {
        if (g->rules[i] < 0) {
            gram_fail(g, ERR_INVALID, "grammar uses a rule that is not defined");
        }
    }
    if (gram_failed(g)) {
        return g->error.code;
    }
    uint8_t *nullable = calloc((size_t)g->n_states, 1);
    if (nullable == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a grammar");
        return g->error.code;
    }
    if (find_nullable(g, nullable) != 0) {
        gram_fail(g, ERR_TOO_LARGE, "grammar takes too long to compile");
    } else if (has_empty_cycle(g, nullable) != 0) {
        gram_fail(g, ERR_UNSUPPORTED, "grammar is left-recursive: a rule begins with itself");
    }
    free(nullable);
    int can_end = gram_failed(g) ? 1 : remove_dead(g);
    if (can_end <= 0) {
        gram_fail(g, can_end < 0 ? can_end : ERR_INVALID, "%s",
                  can_end < 0      ? "grammar takes too long to compile"
                  : g->why[0] != 0 ? g->why
                                   : "grammar matches no text at all");
    }
    return g->error.code;
}

/* ---- range sets ---- */

static int by_lo(const void *a, const void *b)
{
    uint32_t x = ((const struct gram_range *)a)->lo, y = ((const struct gram_range *)b)->lo;
    return x < y ? -1 : x > y;
}

int gram_ranges_normalize(struct gram_range *r, int n)
{
    static const struct gram_range surrogates = {0xD800, 0xDFFF};
    qsort(r, (size_t)n, sizeof *r, by_lo);
    int out = 0;
    for (int i = 0; i < n; i++) {
        struct gram_range c = r[i];
        if (c.lo >= surrogates.lo && c.lo <= surrogates.hi) {
            c.lo = surrogates.hi + 1;
        }
        if (c.hi >= surrogates.lo && c.hi <= surrogates.hi) {
            c.hi = surrogates.lo - 1;
        }
        if (c.lo > c.hi) {
            continue;
        }
        if (out > 0 && c.lo <= r[out - 1].hi + 1) {
            r[out - 1].hi = c.hi > r[out - 1].hi ? c.hi : r[out - 1].hi;
        } else {
            r[out++] = c;
        }
    }
    return out;
}

int gram_ranges_invert(const struct gram_range *r, int n, struct gram_range *out)
{
    static const struct gram_range all[] = {{0, 0xD7FF}, {0xE000, 0x10FFFF}};
    return gram_ranges_subtract(all, 2, r, n, out);
}

int gram_ranges_subtract(const struct gram_range *a, int n_a, const struct gram_range *b, int n_b,
                         struct gram_range *out)
{
    int n = 0, j = 0;
    for (int i = 0; i < n_a; i++) {
        uint32_t lo = a[i].lo;
        while (j > 0 && b[j - 1].hi >= lo) {
            j--;
        }
        for (; j < n_b && b[j].lo <= a[i].hi; j++) {
            if (b[j].hi < lo) {
                continue;
            }
            if (b[j].lo > lo) {
                out[n++] = (struct gram_range){lo, b[j].lo - 1};
            }
            lo = b[j].hi + 1;
        }
        if (lo <= a[i].hi) {
            out[n++] = (struct gram_range){lo, a[i].hi};
        }
    }
    return n;
}
