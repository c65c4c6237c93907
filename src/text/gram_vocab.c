/* SPDX-License-Identifier: Apache-2.0 */
/* See gram_vocab.h. Classes are found by their ranges; one that no grammar holds may give its place
 * to another. Building one takes some tens of milliseconds, on the thread that compiles. */
#include "text/gram_vocab.h"

#include "base/utf8.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CACHED_CLASSES 32

struct cached_class {
    struct gram_range *ranges;
    int n_ranges, refs;
    uint64_t used;
    struct gram_class_masks masks;
};

struct gram_class_cache {
    pthread_mutex_t lock;
    uint64_t tick;
    struct cached_class entry[CACHED_CLASSES];
};

static void clear(struct cached_class *e)
{
    free(e->ranges);
    free(e->masks.bucket[0]);
    free(e->masks.longer);
    free(e->masks.rest);
    free(e->masks.rest_end);
    memset(e, 0, sizeof *e);
}

/* ---- the trie ---- */

struct entry {
    const char *s;
    size_t n;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    if (c != 0) {
        return c;
    }
    return x->n != y->n ? (x->n < y->n ? -1 : 1) : x->id - y->id;
}

/* Preorder trie from sorted entries. Node arrays have room for every byte of every entry. */
static void fill_trie(struct grammar_vocab *v, const struct entry *es, int n)
{
    int32_t open[GRAM_MAX_TOKEN_BYTES + 1] = {0}; /* node at each depth of the current path */
    int depth = 0, n_tok = 0;
    const struct entry *prev = NULL;
    for (int i = 0; i < n; i++) {
        size_t common = 0;
        while (prev != NULL && common < prev->n && common < es[i].n &&
               prev->s[common] == es[i].s[common]) {
            common++;
        }
        while (depth > (int)common) {
            v->end[open[depth--]] = v->n_nodes;
        }
        for (size_t b = common; b < es[i].n; b++) {
            int32_t node = v->n_nodes++;
            depth++;
            open[depth] = node;
            v->byte[node] = (uint8_t)es[i].s[b];
            v->depth[node] = (uint8_t)depth;
            v->tok_first[node] = n_tok;
        }
        v->tok[n_tok++] = es[i].id;
        prev = &es[i];
    }
    while (depth > 0) {
        v->end[open[depth--]] = v->n_nodes;
    }
    v->tok_first[v->n_nodes] = n_tok;
}

int grammar_vocab_open(struct grammar_vocab **out, const struct tokenizer *t, int vocab_size,
                       struct err *e)
{
    struct grammar_vocab *v = calloc(1, sizeof *v);
    int n_ids = tokenizer_n_ids(t) < vocab_size ? tokenizer_n_ids(t) : vocab_size;
    struct entry *es = malloc(sizeof *es * (size_t)(n_ids + 1));
    size_t bytes = 1;
    int n = 0;
    *out = NULL;
    if (v == NULL || es == NULL) {
        goto fail;
    }
    v->t = t;
    v->vocab_size = vocab_size;
    v->n_words = (vocab_size + 31) / 32;
    for (int32_t id = 0; id < n_ids; id++) {
        size_t len = 0;
        const char *s = tokenizer_piece(t, id, &len);
        if (s != NULL && len > 0 && len <= GRAM_MAX_TOKEN_BYTES && !tokenizer_is_special(t, id)) {
            es[n++] = (struct entry){s, len, id};
            bytes += len;
        }
    }
    qsort(es, (size_t)n, sizeof *es, by_bytes);
    v->byte = malloc(bytes);
    v->depth = malloc(bytes);
    v->end = malloc(bytes * sizeof *v->end);
    v->tok_first = malloc((bytes + 1) * sizeof *v->tok_first);
    v->tok = malloc((size_t)(n + 1) * sizeof *v->tok);
    v->classes = calloc(1, sizeof *v->classes);
    if (!v->byte || !v->depth || !v->end || !v->tok_first || !v->tok || !v->classes) {
        goto fail;
    }
    pthread_mutex_init(&v->classes->lock, NULL);
    fill_trie(v, es, n);
    free(es);
    *out = v;
    return 0;
fail:
    free(es);
    grammar_vocab_close(v);
    return err_set(e, ERR_NOMEM, "out of memory for the grammar's vocabulary");
}

void grammar_vocab_close(struct grammar_vocab *v)
{
    if (v != NULL) {
        for (int i = 0; v->classes != NULL && i < CACHED_CLASSES; i++) {
            clear(&v->classes->entry[i]);
        }
        free(v->classes);
        free(v->byte);
        free(v->depth);
        free(v->end);
        free(v->tok_first);
        free(v->tok);
        free(v);
    }
}

int grammar_vocab_mask_words(const struct grammar_vocab *v)
{
    return v->n_words;
}

/* ---- classes ---- */

static int in_ranges(const struct cached_class *c, uint32_t cp)
{
    int lo = 0, hi = c->n_ranges - 1;
    while (lo <= hi) {
        int mid = (lo + hi) / 2;
        if (cp < c->ranges[mid].lo) {
            hi = mid - 1;
        } else if (cp > c->ranges[mid].hi) {
            lo = mid + 1;
        } else {
            return 1;
        }
    }
    return 0;
}

/* Characters of s if all are in the class, else 0. */
static int count_chars(const struct cached_class *c, const char *s, size_t n)
{
    int count = 0;
    for (size_t i = 0; i < n; count++) {
        uint32_t cp;
        int len = utf8_decode(s + i, n - i, &cp);
        if (len <= 0 || !in_ranges(c, cp)) {
            return 0;
        }
        i += (size_t)len;
    }
    return count;
}

static int add_longer(struct gram_class_masks *m, int32_t id, int chars)
{
    if ((m->n_longer & (m->n_longer - 1)) == 0) { /* full at every power of two */
        size_t cap = m->n_longer ? (size_t)m->n_longer * 2 : 1;
        struct gram_long_token *p = realloc(m->longer, cap * sizeof *p);
        if (p == NULL) {
            return ERR_NOMEM;
        }
        m->longer = p;
    }
    m->longer[m->n_longer++] = (struct gram_long_token){id, chars};
    return 0;
}

static int fill_class(struct gram_class_masks *m, const struct cached_class *c,
                      const struct grammar_vocab *v, uint8_t *wholly)
{
    int32_t path[GRAM_MAX_TOKEN_BYTES + 1];
    for (int i = 0; i < v->n_nodes; i++) {
        path[v->depth[i]] = i;
        for (int k = v->tok_first[i]; k < v->tok_first[i + 1]; k++) {
            size_t n = 0;
            const char *s = tokenizer_piece(v->t, v->tok[k], &n);
            int chars = count_chars(c, s, n), b = chars - 1;
            if (chars == 0) {
                for (int d = v->depth[i]; d > 0 && wholly[path[d]]; d--) {
                    wholly[path[d]] = 0;
                }
                continue;
            }
            m->max_chars = chars > m->max_chars ? chars : m->max_chars;
            if (chars > GRAM_CLASS_BUCKETS) {
                b = GRAM_CLASS_BUCKETS;
                if (add_longer(m, v->tok[k], chars) != 0) {
                    return ERR_NOMEM;
                }
            }
            for (; b <= GRAM_CLASS_BUCKETS; b++) {
                m->bucket[b][v->tok[k] / 32] |= 1u << (v->tok[k] % 32);
            }
        }
    }
    return 0;
}

/* The nodes that are not wholly inside, with the ends of their subtrees. */
static int list_rest(struct gram_class_masks *m, const struct grammar_vocab *v,
                     const uint8_t *wholly)
{
    int32_t open[GRAM_MAX_TOKEN_BYTES + 1];
    int depth = 0, n = 0;
    for (int i = 0; i < v->n_nodes; i = wholly[i] ? v->end[i] : i + 1) {
        n += !wholly[i];
    }
    m->rest = malloc(sizeof *m->rest * (size_t)(n + 1));
    m->rest_end = malloc(sizeof *m->rest_end * (size_t)(n + 1));
    if (m->rest == NULL || m->rest_end == NULL) {
        return ERR_NOMEM;
    }
    for (int i = 0; i < v->n_nodes; i = wholly[i] ? v->end[i] : i + 1) {
        if (wholly[i]) {
            continue;
        }
        for (; depth >= v->depth[i]; depth--) {
            m->rest_end[open[depth]] = m->n_rest;
        }
        depth = v->depth[i];
        open[depth] = m->n_rest;
        m->rest[m->n_rest++] = i;
    }
    for (; depth > 0; depth--) {
        m->rest_end[open[depth]] = m->n_rest;
    }
    return 0;
}

static int build(struct cached_class *e, const struct grammar_vocab *v)
{
    struct gram_class_masks *m = &e->masks;
    size_t words = (size_t)v->n_words;
    uint8_t *wholly = malloc((size_t)v->n_nodes + 1);
    m->bucket[0] = calloc(words * (GRAM_CLASS_BUCKETS + 1), sizeof(uint32_t));
    if (m->bucket[0] == NULL || wholly == NULL) {
        free(wholly);
        return ERR_NOMEM;
    }
    for (int k = 1; k <= GRAM_CLASS_BUCKETS; k++) {
        m->bucket[k] = m->bucket[0] + words * (size_t)k;
    }
    memset(wholly, 1, (size_t)v->n_nodes + 1);
    int rc = fill_class(m, e, v, wholly);
    rc = rc != 0 ? rc : list_rest(m, v, wholly);
    free(wholly);
    for (int i = 0; i < e->n_ranges; i++) { /* leading bytes of lo..hi are ascending too */
        char lo[4], hi[4];
        (void)utf8_encode(e->ranges[i].lo, lo);
        (void)utf8_encode(e->ranges[i].hi, hi);
        memset(m->first_byte + (uint8_t)lo[0], 1, (size_t)((uint8_t)hi[0] - (uint8_t)lo[0] + 1));
    }
    return rc;
}

const struct gram_class_masks *gram_class_get(const struct grammar_vocab *v,
                                              const struct gram_range *ranges, int n)
{
    struct gram_class_cache *c = v->classes;
    struct cached_class *found = NULL, *oldest = NULL;
    size_t bytes = sizeof *ranges * (size_t)n;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < CACHED_CLASSES && found == NULL; i++) {
        struct cached_class *e = &c->entry[i];
        if (e->ranges != NULL && e->n_ranges == n && memcmp(e->ranges, ranges, bytes) == 0) {
            found = e;
        } else if (e->refs == 0 && (oldest == NULL || e->used < oldest->used)) {
            oldest = e;
        }
    }
    if (found == NULL && oldest != NULL) {
        clear(oldest);
        oldest->ranges = malloc(bytes + 1);
        if (oldest->ranges != NULL) {
            memcpy(oldest->ranges, ranges, bytes);
            oldest->n_ranges = n;
            found = build(oldest, v) == 0 ? oldest : NULL;
        }
        if (found == NULL) {
            clear(oldest);
        }
    }
    if (found != NULL) {
        found->refs++;
        found->used = ++c->tick;
    }
    pthread_mutex_unlock(&c->lock);
    return found != NULL ? &found->masks : NULL;
}

void gram_class_put(const struct grammar_vocab *v, const struct gram_class_masks *m)
{
    struct gram_class_cache *c = v->classes;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < CACHED_CLASSES && m != NULL; i++) {
        c->entry[i].refs -= &c->entry[i].masks == m;
    }
    pthread_mutex_unlock(&c->lock);
}
