/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of grammar masks: the vocabulary's byte trie, and which tokens stay inside a character
 * class. Both are computed once for a vocabulary and shared by its grammars. */
#ifndef TERN_TEXT_GRAM_VOCAB_H
#define TERN_TEXT_GRAM_VOCAB_H

#include "text/gram_build.h"
#include "text/grammar.h"

#define GRAM_MAX_TOKEN_BYTES 250
#define GRAM_CLASS_BUCKETS   24 /* masks by character count 1..24, then one for any count */

struct gram_class_cache;

struct grammar_vocab {
    const struct tokenizer *t;
    int vocab_size, n_words;
    int n_nodes;        /* trie nodes in preorder */
    uint8_t *byte;      /* [n_nodes] */
    uint8_t *depth;     /* [n_nodes] 1-based: bytes up to and including this node */
    int32_t *end;       /* [n_nodes] first node after the subtree */
    int32_t *tok_first; /* [n_nodes + 1] tokens that end at node i: tok[tok_first[i] .. tok_first[i
                           + 1]) */
    int32_t *tok;
    struct gram_class_cache *classes; /* has a lock of its own */
};

/* Tokens that consist of characters of one class only. */
struct gram_long_token {
    int32_t id, chars;
};

struct gram_class_masks {
    uint32_t *bucket[GRAM_CLASS_BUCKETS + 1]; /* [k]: at most k + 1 characters; the last: any */
    struct gram_long_token *longer;           /* those of more than GRAM_CLASS_BUCKETS characters */
    int n_longer;
    int max_chars; /* of the longest such token */
    /* The trie without subtrees of nothing but such tokens: nodes in preorder, and where in this
     * list each one's subtree ends. */
    int32_t *rest, *rest_end;
    int n_rest;
    uint8_t first_byte[256];
};

/* The masks of a class, built on first use; borrowed until gram_class_put. NULL: out of memory, or
 * too many classes are in use (masks then take the long way). */
const struct gram_class_masks *gram_class_get(const struct grammar_vocab *v,
                                              const struct gram_range *ranges, int n);
void gram_class_put(const struct grammar_vocab *v, const struct gram_class_masks *m);

#endif
