/* SPDX-License-Identifier: Apache-2.0 */
/* Running a grammar: configurations, their transitions, and token masks.
 *
 * A stack item is (state, count, parent item); a configuration is the set of stack tops that wait
 * for a byte, plus whether the whole output may end here. Both are interned, so equal ones have
 * equal numbers, transitions are found in a hash table after their first use, and a mask is
 * computed once per configuration.
 *
 * The mask walk goes over the vocabulary's byte trie (tokens sorted by their bytes, stored in
 * preorder) and drops a whole subtree when the configuration dies. Where a configuration repeats
 * one character class (the inside of a JSON string), nearly every token would survive; those that
 * consist of such characters only come from masks precomputed per class and by number of
 * characters (gram_vocab.c), and the walk goes over the rest of the trie. */
#include "text/grammar.h"

#include "base/hash.h"
#include "base/utf8.h"
#include "text/gram_front.h"
#include "text/gram_vocab.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ITEMS       2000000 /* stack items of one grammar */
#define MAX_CONFIGS     400000  /* configurations of one grammar */
#define MAX_CONFIG_TOPS 4096    /* stack tops of one configuration */
#define MAX_CLOSURE     200000  /* empty transitions of one step */
#define MASK_CACHE      64      /* masks kept per grammar */
#define MAX_CLASS_MASKS 8       /* character classes of a grammar whose masks are used */
#define MAX_MASK_PUSHES 1500000 /* steps of the closure for one mask: tens of milliseconds */
#define NO_CONFIG       (-1)

/* ---- interning ---- */

struct item {
    int32_t state, count, parent; /* parent 0: the bottom */
};

struct config {
    int32_t first, n; /* tops[first .. first + n): items, ascending */
    int32_t accept;   /* the output may end here */
};

struct table { /* open addressing, values are indexes + 1 */
    int32_t *slot;
    size_t mask, used;
};

struct mask_entry {
    int32_t config;
    int n_allowed;
    uint64_t used;
    uint32_t *mask;
};

struct grammar {
    atomic_int refs;
    pthread_mutex_t lock;
    struct gram g;
    const struct grammar_vocab *v;
    struct item *items;
    int n_items, cap_items;
    struct config *configs;
    int n_configs, cap_configs;
    int32_t *tops;
    int n_tops, cap_tops;
    struct table item_table, config_table;
    struct {
        uint64_t *key;
        int32_t *value;
        size_t mask, used;
    } steps;        /* (config << 8 | byte) + 1 -> config */
    uint32_t *seen; /* [cap_items] closure epoch of each item */
    uint32_t epoch;
    int n_pushes;                            /* of the mask being made */
    int32_t *work, *found;                   /* scratch of the closure */
    const struct gram_class_masks **classes; /* [g.n_classes]; NULL: none */
    struct mask_entry cache[MASK_CACHE];
    uint64_t tick;
    int32_t *walk; /* [GRAM_MAX_TOKEN_BYTES + 1] */
    int start;
    int overflowed;   /* some position had more tops or empty transitions than the limits */
    atomic_int spent; /* out of room for configurations: new requests need a fresh one */
};

static int table_grow(struct table *t)
{
    if (t->slot != NULL && t->used * 2 <= t->mask) {
        return 0;
    }
    size_t size = t->slot == NULL ? 1024 : (t->mask + 1) * 2;
    int32_t *slot = calloc(size, sizeof *slot);
    if (slot == NULL) {
        return ERR_NOMEM;
    }
    free(t->slot);
    t->slot = slot;
    t->mask = size - 1;
    return 1; /* the caller enters everything again */
}

static int reserve(void **array, int want, int *cap, size_t item_bytes, int limit)
{
    if (want <= *cap) {
        return 0;
    }
    if (want > limit) {
        return ERR_TOO_LARGE;
    }
    int n = *cap ? *cap : 256;
    while (n < want) {
        n *= 2;
    }
    void *p = realloc(*array, (size_t)n * item_bytes);
    if (p == NULL) {
        return ERR_NOMEM;
    }
    *array = p;
    *cap = n;
    return 0;
}

static size_t item_slot(const struct grammar *g, const struct item *it)
{
    size_t i = (size_t)hash64(it, sizeof *it, 1) & g->item_table.mask;
    while (g->item_table.slot[i] != 0 &&
           memcmp(&g->items[g->item_table.slot[i] - 1], it, sizeof *it) != 0) {
        i = (i + 1) & g->item_table.mask;
    }
    return i;
}

/* Number of the item, or -1. */
static int32_t intern_item(struct grammar *g, int32_t state, int32_t count, int32_t parent)
{
    struct item it = {state, count, parent};
    int grown = table_grow(&g->item_table);
    if (grown < 0) {
        return -1;
    }
    for (int i = 0; grown && i < g->n_items; i++) {
        g->item_table.slot[item_slot(g, &g->items[i])] = i + 1;
    }
    size_t slot = item_slot(g, &it);
    if (g->item_table.slot[slot] != 0) {
        return g->item_table.slot[slot] - 1;
    }
    int cap = g->cap_items, cap_seen = g->cap_items;
    if (reserve((void **)&g->items, g->n_items + 1, &cap, sizeof it, MAX_ITEMS) != 0 ||
        reserve((void **)&g->seen, g->n_items + 1, &cap_seen, sizeof *g->seen, MAX_ITEMS) != 0) {
        atomic_store(&g->spent, 1);
        return -1;
    }
    g->cap_items = cap;
    g->items[g->n_items] = it;
    g->seen[g->n_items] = 0;
    g->item_table.slot[slot] = g->n_items + 1;
    g->item_table.used++;
    return g->n_items++;
}

static size_t config_slot(const struct grammar *g, const int32_t *tops, int n, int accept)
{
    size_t i =
        (size_t)hash64(tops, (size_t)n * sizeof *tops, (uint64_t)accept) & g->config_table.mask;
    for (; g->config_table.slot[i] != 0; i = (i + 1) & g->config_table.mask) {
        const struct config *c = &g->configs[g->config_table.slot[i] - 1];
        if (c->n == n && c->accept == accept &&
            memcmp(g->tops + c->first, tops, (size_t)n * sizeof *tops) == 0) {
            break;
        }
    }
    return i;
}

static int intern_config(struct grammar *g, const int32_t *tops, int n, int accept)
{
    int grown = table_grow(&g->config_table);
    if (grown < 0) {
        return NO_CONFIG;
    }
    for (int i = 0; grown && i < g->n_configs; i++) {
        const struct config *c = &g->configs[i];
        g->config_table.slot[config_slot(g, g->tops + c->first, c->n, c->accept)] = i + 1;
    }
    size_t slot = config_slot(g, tops, n, accept);
    if (g->config_table.slot[slot] != 0) {
        return g->config_table.slot[slot] - 1;
    }
    if (reserve((void **)&g->configs, g->n_configs + 1, &g->cap_configs, sizeof *g->configs,
                MAX_CONFIGS) != 0 ||
        reserve((void **)&g->tops, g->n_tops + n, &g->cap_tops, sizeof *g->tops,
                MAX_CONFIGS * 16) != 0) {
        atomic_store(&g->spent, 1);
        return NO_CONFIG;
    }
    if (n > 0) { /* a grammar of nothing but "" has no tops at all */
        memcpy(g->tops + g->n_tops, tops, (size_t)n * sizeof *tops);
    }
    g->configs[g->n_configs] = (struct config){g->n_tops, n, accept};
    g->n_tops += n;
    g->config_table.slot[slot] = g->n_configs + 1;
    g->config_table.used++;
    return g->n_configs++;
}

/* ---- transitions ---- */

struct closure {
    int n_work, n_found, accept, steps, failed;
};

static void push(struct grammar *g, struct closure *c, int32_t state, int32_t count, int32_t parent)
{
    int32_t i = intern_item(g, state, count, parent);
    g->n_pushes++;
    if (i < 0 || c->n_work >= MAX_CLOSURE || c->n_found >= MAX_CONFIG_TOPS ||
        ++c->steps > MAX_CLOSURE) {
        c->failed = 1;
    } else if (g->seen[i] != g->epoch) {
        g->seen[i] = g->epoch;
        if (g->g.states[state].kind == GRAM_BYTES) {
            g->found[c->n_found++] = i;
        } else {
            g->work[c->n_work++] = i;
        }
    }
}

/* Follows empty transitions of everything in work. */
static void close_over(struct grammar *g, struct closure *c)
{
    while (c->n_work > 0 && !c->failed) {
        struct item it = g->items[g->work[--c->n_work]];
        const struct gram_state *s = &g->g.states[it.state];
        if (s->kind == GRAM_EPSILON) {
            for (int i = 0; i < s->n; i++) {
                push(g, c, g->g.targets[s->first + i], 0, it.parent);
            }
        } else if (s->kind == GRAM_CALL) {
            /* A call in tail position returns to the caller's caller: the stack does not grow. */
            int32_t ret =
                s->next == GRAM_STATE_RETURN ? it.parent : intern_item(g, s->next, 0, it.parent);
            c->failed |= ret < 0;
            if (ret >= 0) {
                push(g, c, g->g.rules[s->body], 0, ret);
            }
        } else if (s->kind == GRAM_REPEAT) {
            if (it.count >= s->min) {
                push(g, c, s->next, 0, it.parent);
            }
            if (s->max < 0 || it.count < s->max) {
                int32_t up = s->max < 0 && it.count >= s->min ? it.count : it.count + 1;
                int32_t ret = intern_item(g, it.state, up, it.parent);
                c->failed |= ret < 0;
                if (ret >= 0) {
                    push(g, c, s->body, 0, ret);
                }
            }
        } else if (it.parent == 0) {
            c->accept = 1;
        } else {
            struct item p = g->items[it.parent];
            push(g, c, p.state, p.count, p.parent);
        }
    }
}

static int by_value(const void *a, const void *b)
{
    return *(const int32_t *)a < *(const int32_t *)b ? -1
                                                     : *(const int32_t *)a > *(const int32_t *)b;
}

static void begin(struct grammar *g, struct closure *c)
{
    memset(c, 0, sizeof *c);
    if (++g->epoch == 0) {
        memset(g->seen, 0, (size_t)g->cap_items * sizeof *g->seen);
        g->epoch = 1;
    }
}

static int finish(struct grammar *g, struct closure *c)
{
    close_over(g, c);
    g->overflowed |= c->failed;
    if (c->failed || (c->n_found == 0 && !c->accept)) {
        return NO_CONFIG;
    }
    qsort(g->found, (size_t)c->n_found, sizeof *g->found, by_value);
    return intern_config(g, g->found, c->n_found, c->accept);
}

static size_t step_slot(const struct grammar *g, uint64_t key)
{
    size_t i = (size_t)(key * 0x9E3779B97F4A7C15ull >> 20) & g->steps.mask;
    while (g->steps.key[i] != 0 && g->steps.key[i] != key) {
        i = (i + 1) & g->steps.mask;
    }
    return i;
}

static int steps_grow(struct grammar *g)
{
    if (g->steps.key != NULL && g->steps.used * 2 <= g->steps.mask) {
        return 0;
    }
    size_t old = g->steps.key == NULL ? 0 : g->steps.mask + 1, size = old ? old * 2 : 4096;
    uint64_t *key = calloc(size, sizeof *key), *old_key = g->steps.key;
    int32_t *value = malloc(size * sizeof *value), *old_value = g->steps.value;
    if (key == NULL || value == NULL) {
        free(key);
        free(value);
        return ERR_NOMEM;
    }
    g->steps.key = key;
    g->steps.value = value;
    g->steps.mask = size - 1;
    for (size_t i = 0; i < old; i++) {
        if (old_key[i] != 0) {
            size_t s = step_slot(g, old_key[i]);
            key[s] = old_key[i];
            value[s] = old_value[i];
        }
    }
    free(old_key);
    free(old_value);
    return 0;
}

static int step(struct grammar *g, int config, uint8_t byte)
{
    uint64_t key = ((uint64_t)config << 8 | byte) + 1;
    size_t slot = step_slot(g, key);
    if (g->steps.key[slot] != 0) {
        return g->steps.value[slot];
    }
    struct closure c;
    begin(g, &c);
    struct config from = g->configs[config];
    for (int i = 0; i < from.n; i++) {
        struct item it = g->items[g->tops[from.first + i]];
        const struct gram_state *s = &g->g.states[it.state];
        for (int k = 0; k < s->n; k++) {
            const struct gram_edge *edge = &g->g.edges[s->first + k];
            if (byte >= edge->lo && byte <= edge->hi) {
                push(g, &c, edge->next, 0, it.parent);
            }
        }
    }
    int to = finish(g, &c);
    if (steps_grow(g) == 0) {
        slot = step_slot(g, key);
        g->steps.key[slot] = key;
        g->steps.value[slot] = to;
        g->steps.used++;
    }
    return to;
}

/* ---- masks ---- */

static int64_t width(const struct gram_class *c)
{
    int64_t n = 0;
    for (int i = 0; i < c->n_ranges; i++) {
        n += c->ranges[i].hi - c->ranges[i].lo + 1;
    }
    return n;
}

/* Masks of the widest classes, at compile time, off the engine's thread: a narrow class leaves so
 * little of the trie alive that the walk is cheap, and a hostile grammar may have thousands. */
static int make_classes(struct grammar *g)
{
    uint8_t *tried = calloc((size_t)g->g.n_classes + 1, 1);
    if (tried == NULL) {
        return ERR_NOMEM;
    }
    for (int k = 0; k < g->g.n_classes && k < MAX_CLASS_MASKS; k++) {
        int best = -1;
        for (int i = 0; i < g->g.n_classes; i++) {
            if (!tried[i] && (best < 0 || width(&g->g.classes[i]) > width(&g->g.classes[best]))) {
                best = i;
            }
        }
        tried[best] = 1;
        g->classes[best] =
            gram_class_get(g->v, g->g.classes[best].ranges, g->g.classes[best].n_ranges);
    }
    free(tried);
    return 0;
}

/* Tokens of m of at most `room` characters. */
static void add_class_tokens(const struct grammar *g, const struct gram_class_masks *m, int room,
                             uint32_t *mask)
{
    int all = room >= m->max_chars;
    const uint32_t *b = m->bucket[all                         ? GRAM_CLASS_BUCKETS
                                  : room < GRAM_CLASS_BUCKETS ? room - 1
                                                              : GRAM_CLASS_BUCKETS - 1];
    for (int w = 0; w < g->v->n_words; w++) {
        mask[w] |= b[w];
    }
    for (int i = 0; i < m->n_longer && !all; i++) {
        if (m->longer[i].chars <= room) {
            mask[m->longer[i].id / 32] |= 1u << (m->longer[i].id % 32);
        }
    }
}

static int begins_in(const struct grammar *g, int32_t item, const struct gram_class_masks *m)
{
    const struct gram_state *s = &g->g.states[g->items[item].state];
    for (int k = 0; k < s->n; k++) {
        for (int b = g->g.edges[s->first + k].lo; b <= g->g.edges[s->first + k].hi; b++) {
            if (m->first_byte[b]) {
                return 1;
            }
        }
    }
    return 0;
}

/* May another stack top than `class_top`, or what follows its repeat, begin with a byte of the
 * class? Then a token of such characters only can be one that leaves the repeat. */
static int is_shared(struct grammar *g, const struct config *c, int class_top, struct item repeat,
                     const struct gram_class_masks *m)
{
    struct closure after;
    for (int i = 0; i < c->n; i++) {
        if (i != class_top && begins_in(g, g->tops[c->first + i], m)) {
            return 1;
        }
    }
    begin(g, &after);
    push(g, &after, g->g.states[repeat.state].next, 0, repeat.parent);
    close_over(g, &after);
    int shared = after.failed;
    for (int i = 0; i < after.n_found && !shared; i++) {
        shared = begins_in(g, g->found[i], m);
    }
    return shared;
}

/* ORs in the tokens that stay inside a repeated character class that is a stack top. Returns the
 * masks of a class whose tokens are decided by that, so that the walk may skip them: all of them
 * are allowed, or neither another stack top nor what follows could match one that is too long. */
static const struct gram_class_masks *mask_repeats(struct grammar *g, const struct config *c,
                                                   uint32_t *mask)
{
    const struct gram_class_masks *skip = NULL;
    for (int i = 0; i < c->n; i++) {
        struct item it = g->items[g->tops[c->first + i]];
        int id = g->g.states[it.state].class_id;
        if (id < 0 || it.parent == 0 || g->classes[id] == NULL) {
            continue;
        }
        struct item parent = g->items[it.parent];
        const struct gram_state *r = &g->g.states[parent.state];
        const struct gram_class_masks *m = g->classes[id];
        if (r->kind != GRAM_REPEAT) {
            continue;
        }
        /* characters, this one included */
        int room = r->max < 0 ? m->max_chars : r->max - parent.count + 1;
        if (room >= 1) {
            add_class_tokens(g, m, room, mask);
        }
        if (room >= m->max_chars) {
            skip = m;
        } else if (skip == NULL && !is_shared(g, c, i, parent, m)) {
            skip = m;
        }
    }
    return skip;
}

/* 0, or ERR_TOO_LARGE when it would take too long. skip: the tokens of that class are done. */
static int walk_trie(struct grammar *g, int config, const struct gram_class_masks *skip,
                     uint32_t *mask)
{
    const struct grammar_vocab *v = g->v;
    int32_t *at = g->walk;
    int n = skip != NULL ? skip->n_rest : v->n_nodes;
    at[0] = config;
    g->n_pushes = 0;
    for (int k = 0; k < n;) {
        int i = skip != NULL ? skip->rest[k] : k;
        int to = step(g, at[v->depth[i] - 1], v->byte[i]);
        if (g->n_pushes > MAX_MASK_PUSHES) {
            return ERR_TOO_LARGE;
        }
        if (to == NO_CONFIG) {
            k = skip != NULL ? skip->rest_end[k] : v->end[i];
            continue;
        }
        at[v->depth[i]] = to;
        for (int t = v->tok_first[i]; t < v->tok_first[i + 1]; t++) {
            mask[v->tok[t] / 32] |= 1u << (v->tok[t] % 32);
        }
        k++;
    }
    return 0;
}

static struct mask_entry *cached_mask(struct grammar *g, int config)
{
    struct mask_entry *oldest = &g->cache[0];
    for (int i = 0; i < MASK_CACHE; i++) {
        if (g->cache[i].mask != NULL && g->cache[i].config == config) {
            return &g->cache[i];
        }
        if (g->cache[i].used < oldest->used) {
            oldest = &g->cache[i];
        }
    }
    size_t bytes = (size_t)g->v->n_words * sizeof(uint32_t);
    if (oldest->mask == NULL && (oldest->mask = malloc(bytes)) == NULL) {
        return NULL;
    }
    memset(oldest->mask, 0, bytes);
    oldest->config = config;
    struct config c = g->configs[config];
    if (walk_trie(g, config, mask_repeats(g, &c, oldest->mask), oldest->mask) != 0) {
        oldest->config = NO_CONFIG;
        oldest->used = 0;
        return NULL;
    }
    oldest->n_allowed = 0;
    for (int w = 0; w < g->v->n_words; w++) {
        oldest->n_allowed += __builtin_popcount(oldest->mask[w]);
    }
    return oldest;
}

int grammar_mask(struct grammar *g, int config, uint32_t *mask)
{
    pthread_mutex_lock(&g->lock);
    struct mask_entry *m = config >= 0 ? cached_mask(g, config) : NULL;
    int n = -1;
    if (m != NULL) {
        m->used = ++g->tick;
        memcpy(mask, m->mask, (size_t)g->v->n_words * sizeof *mask);
        n = m->n_allowed;
    }
    pthread_mutex_unlock(&g->lock);
    return n;
}

int grammar_has_mask(struct grammar *g, int config)
{
    int found = 0;
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < MASK_CACHE && !found; i++) {
        found = g->cache[i].mask != NULL && g->cache[i].config == config;
    }
    pthread_mutex_unlock(&g->lock);
    return found;
}

void grammar_prepare(struct grammar *g, int config)
{
    pthread_mutex_lock(&g->lock);
    struct mask_entry *m = config >= 0 ? cached_mask(g, config) : NULL;
    if (m != NULL) {
        m->used = ++g->tick;
    }
    pthread_mutex_unlock(&g->lock);
}

int grammar_is_spent(struct grammar *g)
{
    return atomic_load(&g->spent);
}

int grammar_is_ambiguous(struct grammar *g)
{
    pthread_mutex_lock(&g->lock);
    int yes = g->overflowed;
    pthread_mutex_unlock(&g->lock);
    return yes;
}

/* ---- the rest of the interface ---- */

int grammar_start(struct grammar *g)
{
    return g->start;
}

int grammar_step_bytes(struct grammar *g, int config, const char *s, size_t n_bytes)
{
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < n_bytes && config >= 0; i++) {
        config = step(g, config, (uint8_t)s[i]);
    }
    pthread_mutex_unlock(&g->lock);
    return config;
}

int grammar_step_token(struct grammar *g, int config, int32_t token)
{
    size_t n = 0;
    const char *s = tokenizer_piece(g->v->t, token, &n);
    if (s == NULL || n == 0 || tokenizer_is_special(g->v->t, token)) {
        return NO_CONFIG;
    }
    return grammar_step_bytes(g, config, s, n);
}

int grammar_can_stop(struct grammar *g, int config)
{
    pthread_mutex_lock(&g->lock);
    int accept = config >= 0 && g->configs[config].accept;
    pthread_mutex_unlock(&g->lock);
    return accept;
}

static int32_t build_choice(struct gram *g, const struct json *list)
{
    size_t n = json_type(list) == JSON_ARRAY ? json_length(list) : 0;
    if (n == 0 || n > 10000) {
        gram_fail(g, ERR_INVALID, "choice must be a list of 1 to 10000 strings");
        return GRAM_STATE_RETURN;
    }
    struct gram_literal *entries = malloc(n * sizeof *entries);
    int32_t root = GRAM_STATE_RETURN;
    if (entries == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a grammar");
        return root;
    }
    for (size_t i = 0; i < n; i++) {
        size_t len = 0;
        const char *s =
            json_type(json_at(list, i)) == JSON_STRING ? json_string(json_at(list, i), &len) : NULL;
        if (s == NULL || len == 0) {
            gram_fail(g, ERR_INVALID, "choice[%zu] must be a string that is not empty", i);
            break;
        }
        entries[i] = (struct gram_literal){s, len};
    }
    if (!gram_failed(g)) {
        root = gram_literals(g, entries, (int)n, GRAM_STATE_RETURN);
    }
    free(entries);
    return root;
}

static int32_t build(struct gram *g, enum grammar_kind kind, const char *text, size_t n_bytes,
                     const struct grammar_options *o)
{
    struct json *doc = NULL;
    struct err e = {0};
    int32_t root = GRAM_STATE_RETURN;
    switch (kind) {
    case GRAMMAR_JSON_OBJECT:
        return gram_schema_any_object(g, o);
    case GRAMMAR_REGEX:
        return gram_regex(g, text, n_bytes, GRAM_TEXT_RAW, 0, GRAM_STATE_RETURN);
    case GRAMMAR_EBNF:
        return gram_ebnf(g, text, n_bytes);
    case GRAMMAR_JSON_SCHEMA:
    case GRAMMAR_CHOICE:
        if (json_parse(&doc, text, n_bytes, JSON_DEPTH_DEFAULT, &e) != 0) {
            gram_fail(g, ERR_FORMAT, "%s is not valid JSON: %.300s",
                      kind == GRAMMAR_CHOICE ? "choice" : "JSON schema", e.text);
            return root;
        }
        root = kind == GRAMMAR_CHOICE ? build_choice(g, doc) : gram_schema(g, doc, o);
        json_free(doc);
        return root;
    }
    gram_fail(g, ERR_INVALID, "unknown kind of grammar");
    return root;
}

int grammar_compile(struct grammar **out, enum grammar_kind kind, const char *text, size_t n_bytes,
                    const struct grammar_options *o, const struct grammar_vocab *v, struct err *e)
{
    static const struct grammar_options defaults = {0};
    struct grammar *g = calloc(1, sizeof *g);
    struct closure c;
    int rc = ERR_NOMEM;
    *out = NULL;
    if (g == NULL) {
        return err_set(e, ERR_NOMEM, "out of memory while compiling a grammar");
    }
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    g->v = v;
    if (gram_init(&g->g) != 0) {
        goto fail;
    }
    rc = gram_finish(&g->g, build(&g->g, kind, text, n_bytes, o != NULL ? o : &defaults));
    if (rc != 0) {
        goto fail;
    }
    g->work = malloc(MAX_CLOSURE * sizeof *g->work);
    g->found = malloc(MAX_CONFIG_TOPS * sizeof *g->found);
    g->walk = malloc((GRAM_MAX_TOKEN_BYTES + 1) * sizeof *g->walk);
    g->classes = calloc((size_t)g->g.n_classes + 1, sizeof *g->classes);
    /* Item 0 is the bottom of every stack, so that parent 0 can mean "none". */
    if (!g->work || !g->found || !g->walk || !g->classes || steps_grow(g) != 0 ||
        intern_item(g, GRAM_STATE_RETURN, -1, 0) != 0) {
        rc = ERR_NOMEM;
        goto fail;
    }
    begin(g, &c);
    push(g, &c, g->g.root, 0, 0);
    g->start = finish(g, &c);
    if (g->start == NO_CONFIG) {
        rc = c.failed ? ERR_TOO_LARGE : ERR_INVALID;
        gram_fail(&g->g, rc,
                  c.failed ? "grammar has too many empty alternatives"
                           : "grammar matches no text at all");
        goto fail;
    }
    rc = make_classes(g);
    if (rc != 0) {
        goto fail;
    }
    const struct mask_entry *first = cached_mask(g, g->start);
    if (first == NULL || (first->n_allowed == 0 && !g->configs[g->start].accept)) {
        int ambiguous = first == NULL || g->overflowed;
        rc = ambiguous ? ERR_TOO_LARGE : ERR_INVALID;
        gram_fail(&g->g, rc,
                  ambiguous ? "grammar is too ambiguous: too many ways to begin"
                            : "grammar matches no text at all");
        goto fail;
    }
    *out = g;
    return 0;
fail:
    (void)err_set(e, rc, "%s",
                  g->g.error.code != 0 ? g->g.error.text
                                       : "out of memory while compiling a grammar");
    grammar_unref(g);
    return rc;
}

struct grammar *grammar_ref(struct grammar *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void grammar_unref(struct grammar *g)
{
    if (g == NULL || atomic_fetch_sub(&g->refs, 1) != 1) {
        return;
    }
    for (int i = 0; i < g->g.n_classes && g->classes != NULL; i++) {
        gram_class_put(g->v, g->classes[i]);
    }
    for (int i = 0; i < MASK_CACHE; i++) {
        free(g->cache[i].mask);
    }
    free(g->classes);
    free(g->items);
    free(g->seen);
    free(g->configs);
    free(g->tops);
    free(g->item_table.slot);
    free(g->config_table.slot);
    free(g->steps.key);
    free(g->steps.value);
    free(g->work);
    free(g->found);
    free(g->walk);
    gram_fini(&g->g);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
