/* SPDX-License-Identifier: Apache-2.0 */
/* Block pool and prefix index.
 *
 * Free blocks form one doubly linked queue in eviction order: allocation takes the head. A block
 * keeps its hash while it lies there, so a freed prompt stays findable until its block is really
 * needed (lazy eviction). Freeing walks a sequence tail first, hence the end of a prompt is evicted
 * before its beginning: what remains is always a usable prefix.
 *
 * The index is a chained hash table over the 128-bit chain hash. A hash only finds candidates;
 * equality is decided on content. Comparing whole prefixes would cost their length, so every
 * distinct prefix has a serial number: a block's content is (serial of its parent's content, its 16
 * tokens, the extras if it is the first), and two blocks with equal content share a serial. Serials
 * are never reused, so by induction equal serials mean equal prefixes, whatever the hash function
 * does. Two sequences that computed the same prefix at the same time keep two blocks under one
 * serial; the older one answers lookups, and either can be evicted.
 *
 * Invariants (kv_pool_check_integrity): refs == 0 exactly for blocks in the free queue; block 0
 * never is; the index holds exactly the hashed blocks, each once. Owner: the engine thread. */
#include "kv/pool.h"

#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

#define NIL (-1)

struct block {
    int32_t refs;
    int32_t prev, next; /* free queue */
    int32_t chain;      /* next block in the same bucket of the index */
    int hashed, touched;
    struct hash128 hash, parent_hash;
    uint64_t serial, parent_serial; /* 0: no parent */
    int32_t tokens[KV_BLOCK_TOKENS];
    void *extra; /* own copy; first blocks only */
    size_t extra_bytes;
};

struct kv_pool {
    int n_blocks;
    struct block *blocks;
    int32_t *buckets;
    uint32_t bucket_mask;
    int32_t head, tail; /* free queue */
    int n_free, n_cached, n_touched;
    int enable_cache;
    uint64_t hash_seed;
    uint64_t hash_mask; /* all ones outside of tests */
    uint64_t next_serial;
    uint64_t queries_tokens, hits_tokens, evictions;
};

/* What a block holds, before it is one. */
struct content {
    struct hash128 hash, parent_hash;
    uint64_t parent_serial;
    const int32_t *tokens;
    const void *extra;
    size_t extra_bytes;
};

/* ---- free queue ---- */

static void push_tail(struct kv_pool *p, int32_t id)
{
    struct block *b = &p->blocks[id];
    b->next = NIL;
    b->prev = p->tail;
    if (p->tail == NIL) {
        p->head = id;
    } else {
        p->blocks[p->tail].next = id;
    }
    p->tail = id;
    p->n_free++;
}

static void push_head(struct kv_pool *p, int32_t id)
{
    struct block *b = &p->blocks[id];
    b->prev = NIL;
    b->next = p->head;
    if (p->head == NIL) {
        p->tail = id;
    } else {
        p->blocks[p->head].prev = id;
    }
    p->head = id;
    p->n_free++;
}

static void unlink_free(struct kv_pool *p, int32_t id)
{
    struct block *b = &p->blocks[id];
    if (b->prev == NIL) {
        p->head = b->next;
    } else {
        p->blocks[b->prev].next = b->next;
    }
    if (b->next == NIL) {
        p->tail = b->prev;
    } else {
        p->blocks[b->next].prev = b->prev;
    }
    b->prev = b->next = NIL;
    p->n_free--;
}

/* ---- prefix index ---- */

static struct hash128 chain_hash(const struct kv_pool *p, const struct content *c)
{
    struct {
        struct hash128 parent, extra;
        uint64_t extra_bytes;
        int32_t tokens[KV_BLOCK_TOKENS];
    } in;
    memset(&in, 0, sizeof in);
    in.parent = c->parent_hash;
    if (c->extra_bytes > 0) {
        in.extra = hash128(c->extra, c->extra_bytes, p->hash_seed);
        in.extra_bytes = c->extra_bytes;
    }
    memcpy(in.tokens, c->tokens, sizeof in.tokens);
    struct hash128 h = hash128(&in, sizeof in, p->hash_seed);
    h.lo &= p->hash_mask;
    if (p->hash_mask != UINT64_MAX) {
        h.hi = 0;
    }
    return h;
}

static int same_hash(struct hash128 a, struct hash128 b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

static int holds(const struct block *b, const struct content *c)
{
    return same_hash(b->hash, c->hash) && b->parent_serial == c->parent_serial &&
           memcmp(b->tokens, c->tokens, sizeof b->tokens) == 0 &&
           b->extra_bytes == c->extra_bytes &&
           (c->extra_bytes == 0 || memcmp(b->extra, c->extra, c->extra_bytes) == 0);
}

static int32_t find(const struct kv_pool *p, const struct content *c)
{
    int32_t id = p->buckets[c->hash.lo & p->bucket_mask];
    while (id != NIL && !holds(&p->blocks[id], c)) {
        id = p->blocks[id].chain;
    }
    return id;
}

static void forget(struct kv_pool *p, int32_t id)
{
    struct block *b = &p->blocks[id];
    int32_t *link = &p->buckets[b->hash.lo & p->bucket_mask];
    while (*link != id) {
        link = &p->blocks[*link].chain;
    }
    *link = b->chain;
    b->chain = NIL;
    b->hashed = 0;
    free(b->extra);
    b->extra = NULL;
    b->extra_bytes = 0;
    p->n_cached--;
}

static void fill_content(const struct kv_pool *p, struct content *c, const struct block *parent,
                         const int32_t *tokens, const struct kv_extra *extra)
{
    memset(c, 0, sizeof *c);
    c->tokens = tokens;
    if (parent) {
        c->parent_hash = parent->hash;
        c->parent_serial = parent->serial;
    } else if (extra) {
        c->extra = extra->data;
        c->extra_bytes = extra->n_bytes;
    }
    c->hash = chain_hash(p, c);
}

/* ---- life ---- */

int kv_pool_open(struct kv_pool **out, int n_blocks, int enable_prefix_cache, uint64_t hash_seed,
                 struct err *e)
{
    *out = NULL;
    if (n_blocks < 2) {
        return err_set(e, ERR_INVALID,
                       "KV pool: %d blocks; needs the null block and at least one more", n_blocks);
    }
    uint32_t n_buckets = 16;
    while (n_buckets < (uint32_t)n_blocks && n_buckets < (1u << 30)) {
        n_buckets *= 2;
    }
    struct kv_pool *p = calloc(1, sizeof *p);
    if (!p) {
        return err_set(e, ERR_NOMEM, "KV pool: out of memory");
    }
    p->blocks = calloc((size_t)n_blocks, sizeof *p->blocks);
    p->buckets = malloc(n_buckets * sizeof *p->buckets);
    if (!p->blocks || !p->buckets) {
        kv_pool_close(p);
        return err_set(e, ERR_NOMEM, "KV pool: out of memory for %d blocks", n_blocks);
    }
    p->n_blocks = n_blocks;
    p->bucket_mask = n_buckets - 1;
    p->enable_cache = enable_prefix_cache;
    p->hash_seed = hash_seed;
    p->hash_mask = UINT64_MAX;
    p->next_serial = 1;
    p->head = p->tail = NIL;
    for (uint32_t i = 0; i < n_buckets; i++) {
        p->buckets[i] = NIL;
    }
    for (int32_t i = 0; i < n_blocks; i++) {
        p->blocks[i].prev = p->blocks[i].next = p->blocks[i].chain = NIL;
        if (i > 0) {
            push_tail(p, i);
        }
    }
    p->blocks[0].refs = 1;
    *out = p;
    return 0;
}

void kv_pool_close(struct kv_pool *p)
{
    if (!p) {
        return;
    }
    for (int i = 0; i < p->n_blocks; i++) {
        free(p->blocks[i].extra);
    }
    free(p->blocks);
    free(p->buckets);
    free(p);
}

void kv_pool_stats(const struct kv_pool *p, struct kv_pool_stats *out)
{
    out->n_blocks = p->n_blocks;
    out->n_free = p->n_free;
    out->n_cached = p->n_cached;
    out->n_touched = p->n_touched;
    out->queries_tokens = p->queries_tokens;
    out->hits_tokens = p->hits_tokens;
    out->evictions = p->evictions;
}

int kv_pool_n_free(const struct kv_pool *p)
{
    return p->n_free;
}

double kv_pool_usage(const struct kv_pool *p)
{
    return 1.0 - (double)p->n_free / (double)(p->n_blocks - 1);
}

/* ---- blocks ---- */

int kv_pool_alloc(struct kv_pool *p, int n, int32_t *out)
{
    if (n > p->n_free) {
        return ERR_BUSY;
    }
    for (int i = 0; i < n; i++) {
        int32_t id = p->head;
        unlink_free(p, id);
        if (p->blocks[id].hashed) {
            forget(p, id);
            p->evictions++;
        }
        p->n_touched += !p->blocks[id].touched;
        p->blocks[id].touched = 1;
        p->blocks[id].refs = 1;
        out[i] = id;
    }
    return 0;
}

void kv_pool_ref(struct kv_pool *p, int32_t block)
{
    if (p->blocks[block].refs++ == 0) {
        unlink_free(p, block);
    }
}

void kv_pool_free(struct kv_pool *p, const int32_t *blocks, int n)
{
    for (int i = n - 1; i >= 0; i--) {
        struct block *b = &p->blocks[blocks[i]];
        if (--b->refs > 0) {
            continue;
        }
        if (b->hashed) {
            push_tail(p, blocks[i]);
        } else {
            push_head(p, blocks[i]);
        }
    }
}

int kv_pool_refcount(const struct kv_pool *p, int32_t block)
{
    return p->blocks[block].refs;
}

/* ---- prefix cache ---- */

int kv_pool_match(const struct kv_pool *p, const int32_t *tokens, int n_tokens,
                  const struct kv_extra *extra, int32_t *out, int *n_idle)
{
    int n = 0, idle = 0;
    int limit = p->enable_cache && n_tokens > 0 ? (n_tokens - 1) / KV_BLOCK_TOKENS : 0;
    const struct block *parent = NULL;
    for (; n < limit; n++) {
        struct content c;
        fill_content(p, &c, parent, tokens + (size_t)n * KV_BLOCK_TOKENS, extra);
        int32_t id = find(p, &c);
        if (id == NIL) {
            break;
        }
        parent = &p->blocks[id];
        idle += parent->refs == 0;
        out[n] = id;
    }
    if (n_idle) {
        *n_idle = idle;
    }
    return n;
}

void kv_pool_take_hits(struct kv_pool *p, const int32_t *blocks, int n)
{
    for (int i = 0; i < n; i++) {
        kv_pool_ref(p, blocks[i]);
    }
}

void kv_pool_count_lookup(struct kv_pool *p, int n_tokens, int n_hit_blocks)
{
    if (p->enable_cache) {
        p->queries_tokens += (uint64_t)n_tokens;
        p->hits_tokens += (uint64_t)n_hit_blocks * KV_BLOCK_TOKENS;
    }
}

int kv_pool_lookup(struct kv_pool *p, const int32_t *tokens, int n_tokens,
                   const struct kv_extra *extra, int32_t *out)
{
    int n = kv_pool_match(p, tokens, n_tokens, extra, out, NULL);
    kv_pool_take_hits(p, out, n);
    kv_pool_count_lookup(p, n_tokens, n);
    return n;
}

void kv_pool_cache(struct kv_pool *p, int32_t block, int32_t parent, int index,
                   const int32_t *block_tokens, const struct kv_extra *extra)
{
    struct block *b = &p->blocks[block];
    const struct block *before = index > 0 ? &p->blocks[parent] : NULL;
    if (!p->enable_cache || b->hashed || (before && !before->hashed)) {
        return;
    }
    struct content c;
    fill_content(p, &c, before, block_tokens, extra);
    if (c.extra_bytes > 0) {
        b->extra = malloc(c.extra_bytes);
        if (!b->extra) {
            return; /* not cached: only slower */
        }
        memcpy(b->extra, c.extra, c.extra_bytes);
        b->extra_bytes = c.extra_bytes;
    }
    int32_t twin = find(p, &c);
    b->hash = c.hash;
    b->parent_hash = c.parent_hash;
    b->parent_serial = c.parent_serial;
    b->serial = twin == NIL ? p->next_serial++ : p->blocks[twin].serial;
    memcpy(b->tokens, block_tokens, sizeof b->tokens);
    b->hashed = 1;
    p->n_cached++;
    int32_t *link = &p->buckets[c.hash.lo & p->bucket_mask];
    while (*link != NIL) {
        link = &p->blocks[*link]
                    .chain; /* at the end: the oldest of several equal blocks is found first */
    }
    *link = block;
}

int kv_pool_is_cached(const struct kv_pool *p, int32_t block)
{
    return p->blocks[block].hashed;
}

int kv_pool_reset_cache(struct kv_pool *p)
{
    if (p->n_free != p->n_blocks - 1) {
        return ERR_BUSY;
    }
    for (int32_t i = 1; i < p->n_blocks; i++) {
        if (p->blocks[i].hashed) {
            forget(p, i);
        }
    }
    return 0;
}

/* ---- checks ---- */

static int check_queue(const struct kv_pool *p, struct err *e)
{
    int n = 0;
    int32_t before = NIL;
    for (int32_t id = p->head; id != NIL; id = p->blocks[id].next) {
        if (id == 0 || p->blocks[id].refs != 0 || p->blocks[id].prev != before || ++n > p->n_free) {
            return err_set(e, ERR_INTERNAL, "KV pool: bad free queue at block %d (refs %d)", id,
                           p->blocks[id].refs);
        }
        before = id;
    }
    if (n != p->n_free || p->tail != before) {
        return err_set(e, ERR_INTERNAL, "KV pool: %d blocks in the free queue, %d counted", n,
                       p->n_free);
    }
    int idle = 0;
    for (int i = 0; i < p->n_blocks; i++) {
        if (p->blocks[i].refs < 0) {
            return err_set(e, ERR_INTERNAL, "KV pool: block %d has %d references", i,
                           p->blocks[i].refs);
        }
        idle += p->blocks[i].refs == 0;
    }
    if (idle != n) {
        return err_set(e, ERR_INTERNAL,
                       "KV pool: %d blocks without references, %d in the free queue", idle, n);
    }
    return 0;
}

static int check_index(const struct kv_pool *p, struct err *e)
{
    int n = 0, hashed = 0;
    for (uint32_t bucket = 0; bucket <= p->bucket_mask; bucket++) {
        for (int32_t id = p->buckets[bucket]; id != NIL; id = p->blocks[id].chain) {
            const struct block *b = &p->blocks[id];
            struct content c = {.parent_hash = b->parent_hash,
                                .tokens = b->tokens,
                                .extra = b->extra,
                                .extra_bytes = b->extra_bytes};
            if (!b->hashed || ++n > p->n_cached || !same_hash(chain_hash(p, &c), b->hash) ||
                (b->hash.lo & p->bucket_mask) != bucket || b->parent_serial >= b->serial) {
                return err_set(e, ERR_INTERNAL, "KV pool: bad index entry for block %d", id);
            }
        }
    }
    for (int i = 0; i < p->n_blocks; i++) {
        hashed += p->blocks[i].hashed;
    }
    if (n != p->n_cached || hashed != n) {
        return err_set(e, ERR_INTERNAL, "KV pool: %d hashed blocks, %d indexed, %d counted", hashed,
                       n, p->n_cached);
    }
    return 0;
}

int kv_pool_check_integrity(const struct kv_pool *p, struct err *e)
{
    if (p->blocks[0].refs != 1 || p->blocks[0].hashed) {
        return err_set(e, ERR_INTERNAL, "KV pool: the null block was used");
    }
    int rc = check_queue(p, e);
    return rc < 0 ? rc : check_index(p, e);
}

void kv_pool_shuffle(struct kv_pool *p, uint64_t seed)
{
    int32_t n = p->n_free;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    if (!ids) {
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        ids[i] = p->head;
        unlink_free(p, p->head);
    }
    for (int32_t i = n - 1; i > 0; i--) {
        uint64_t r = hash64(&i, sizeof i, seed) % (uint64_t)(i + 1);
        int32_t t = ids[i];
        ids[i] = ids[r];
        ids[r] = t;
    }
    for (int32_t i = 0; i < n; i++) {
        push_tail(p, ids[i]);
    }
    free(ids);
}

void kv_pool_weaken_hash(struct kv_pool *p, int bits)
{
    p->hash_mask = bits >= 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
}
