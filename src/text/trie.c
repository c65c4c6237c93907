/* SPDX-License-Identifier: Apache-2.0 */
#include "text/trie.h"

#include "base/err.h"
#include <stdlib.h>
#include <string.h>

void trie_init(struct trie *t)
{
    memset(t, 0, sizeof(*t));
}

void trie_fini(struct trie *t)
{
    free(t->edges);
    free(t->value);
    trie_init(t);
}

static uint32_t slot_of(const struct trie *t, uint32_t key)
{
    uint32_t h = key * 0x9e3779b1u;
    return (h ^ (h >> 15)) & (t->n_slots - 1);
}

static void put_edge(struct trie *t, uint32_t key, uint32_t child)
{
    uint32_t i = slot_of(t, key);
    while (t->edges[i].key) {
        i = (i + 1) & (t->n_slots - 1);
    }
    t->edges[i] = (struct trie_edge){key, child};
}

static int grow_edges(struct trie *t)
{
    struct trie_edge *old = t->edges;
    uint32_t n_old = t->n_slots;
    uint32_t n = n_old ? n_old * 2 : 256;
    struct trie_edge *e = calloc(n, sizeof(*e));
    if (!e) {
        return ERR_NOMEM;
    }
    t->edges = e;
    t->n_slots = n;
    for (uint32_t i = 0; i < n_old; i++) {
        if (old[i].key) {
            put_edge(t, old[i].key, old[i].child);
        }
    }
    free(old);
    return 0;
}

static int new_node(struct trie *t, uint32_t *out)
{
    if (t->n_nodes == t->cap_nodes) {
        uint32_t cap = t->cap_nodes ? t->cap_nodes * 2 : 256;
        int32_t *v = realloc(t->value, cap * sizeof(*v));
        if (!v) {
            return ERR_NOMEM;
        }
        t->value = v;
        t->cap_nodes = cap;
    }
    if (t->n_nodes >= TRIE_NODES_MAX) {
        return ERR_TOO_LARGE;
    }
    t->value[t->n_nodes] = -1;
    *out = t->n_nodes++;
    return 0;
}

uint32_t trie_step(const struct trie *t, uint32_t node, uint8_t byte)
{
    uint32_t key = node * 256 + byte + 1;
    if (!t->n_edges) {
        return 0;
    }
    for (uint32_t i = slot_of(t, key); t->edges[i].key; i = (i + 1) & (t->n_slots - 1)) {
        if (t->edges[i].key == key) {
            return t->edges[i].child;
        }
    }
    return 0;
}

int trie_add(struct trie *t, const char *s, size_t n_bytes, int32_t value)
{
    uint32_t node = 0;
    int r;
    if (n_bytes == 0) {
        return ERR_INVALID;
    }
    if (!t->n_nodes && (r = new_node(t, &node))) {
        return r;
    }
    for (size_t i = 0; i < n_bytes; i++) {
        uint8_t c = (uint8_t)s[i];
        uint32_t child = trie_step(t, node, c);
        if (!child) {
            if (t->n_edges * 2 >= t->n_slots && (r = grow_edges(t))) {
                return r;
            }
            if ((r = new_node(t, &child))) {
                return r;
            }
            put_edge(t, node * 256 + c + 1, child);
            t->n_edges++;
        }
        node = child;
    }
    t->first[(uint8_t)s[0]] = 1;
    t->value[node] = value;
    return 0;
}

int32_t trie_longest(const struct trie *t, const char *s, const uint8_t *mark, size_t n_bytes,
                     size_t *len)
{
    int32_t best = -1;
    uint32_t node = 0;
    if (n_bytes == 0 || !t->first[(uint8_t)s[0]]) {
        return -1;
    }
    for (size_t i = 0; i < n_bytes && (!mark || mark[i]); i++) {
        node = trie_step(t, node, (uint8_t)s[i]);
        if (!node) {
            break;
        }
        if (t->value[node] >= 0) {
            best = t->value[node];
            *len = i + 1;
        }
    }
    return best;
}

int32_t trie_find(const struct trie *t, const char *s, size_t n_bytes)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        node = trie_step(t, node, (uint8_t)s[i]);
        if (!node) {
            return -1;
        }
    }
    return node ? t->value[node] : -1;
}
