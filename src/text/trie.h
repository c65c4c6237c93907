/* SPDX-License-Identifier: Apache-2.0 */
/* Longest-match search of a fixed set of byte strings: user-defined pieces and special tokens.
 * Edges live in one open-addressed table keyed by (node, byte); nodes are numbers, 0 is the root.
 * Immutable once filled. */
#ifndef TERN_TEXT_TRIE_H
#define TERN_TEXT_TRIE_H

#include <stddef.h>
#include <stdint.h>

struct trie_edge {
    uint32_t key; /* node * 256 + byte + 1; 0 = free */
    uint32_t child;
};

struct trie {
    struct trie_edge *edges;
    uint32_t n_slots, n_edges;
    int32_t *value; // [n_nodes] -1 = no string ends here
    uint32_t n_nodes, cap_nodes;
    uint8_t first[256]; /* some string starts with this byte */
};

#define TRIE_NODES_MAX (1u << 23)

void trie_init(struct trie *t);
void trie_fini(struct trie *t);
int trie_add(struct trie *t, const char *s, size_t n_bytes,
             int32_t value); /* replaces; 0 or negative */
/* One step from a node; 0 (never a child) when there is no such edge. */
uint32_t trie_step(const struct trie *t, uint32_t node, uint8_t byte);
/* Value of the longest string that is a prefix of s, its length in *len; -1 if none. When mark is
 * not NULL only bytes with a non-zero mark take part. */
int32_t trie_longest(const struct trie *t, const char *s, const uint8_t *mark, size_t n_bytes,
                     size_t *len);
int32_t trie_find(const struct trie *t, const char *s, size_t n_bytes); /* exact; -1 if none */

#endif
