/* SPDX-License-Identifier: Apache-2.0 */
/* Block pool: ids, reference counts, the free queue in eviction order, and the prefix index. No
 * tensor bytes here.
 *
 * Behaviour (facts: vLLM V1): block 0 is the null block and never handed out. Allocation takes from
 * the head of the free queue; a taken block that still has a hash loses it. Freeing a sequence
 * walks its blocks tail first; at refcount 0 a hashed block goes to the queue's tail, an unhashed
 * one to its head. A prefix hit on a free block unlinks it. A block is indexed under a 128-bit hash
 * chained over (parent hash, 16 token ids, tagged extras); on a lookup the token ids, the extras
 * and the parent are compared as well, so a collision can't return another prompt's KV. Owner: the
 * engine thread. */
#ifndef TERN_KV_POOL_H
#define TERN_KV_POOL_H

#include "base/err.h"
#include "base/hash.h"
#include <stdint.h>

struct kv_pool;

struct kv_pool_stats {
    int n_blocks;                         /* all, the null block included */
    int n_free;                           /* blocks that can be allocated, cached ones included */
    int n_cached;                         /* blocks with a hash */
    int n_touched;                        /* blocks ever handed out: their pages exist */
    uint64_t queries_tokens, hits_tokens; /* prefix lookups of new requests, in tokens */
    uint64_t evictions;
};

int kv_pool_open(struct kv_pool **out, int n_blocks, int enable_prefix_cache, uint64_t hash_seed,
                 struct err *e);
void kv_pool_close(struct kv_pool *p);
void kv_pool_stats(const struct kv_pool *p, struct kv_pool_stats *out);
int kv_pool_n_free(const struct kv_pool *p);
double kv_pool_usage(const struct kv_pool *p); /* 1 - free / (n_blocks - 1) */

int kv_pool_alloc(struct kv_pool *p, int n,
                  int32_t *out); /* all or nothing: 0 or ERR_BUSY; refcount 1 each */
void kv_pool_ref(struct kv_pool *p, int32_t block);
void kv_pool_free(struct kv_pool *p, const int32_t *blocks,
                  int n); /* in table order; drops one reference each, tail first */
int kv_pool_refcount(const struct kv_pool *p, int32_t block);

/* Identity of a prefix besides its tokens: a tagged byte string ("salt\0…", "model\0…"); enters the
 * first block. */
struct kv_extra {
    const void *data;
    size_t n_bytes;
};

/* The longest cached prefix, without taking references and without counting: for a caller that must
 * first see whether the rest fits. *n_idle (may be NULL) = how many of the blocks found are free
 * now, so that taking them uses up free blocks. kv_pool_take_hits then references them;
 * kv_pool_count_lookup adds to queries_tokens and hits_tokens. */
int kv_pool_match(const struct kv_pool *p, const int32_t *tokens, int n_tokens,
                  const struct kv_extra *extra, int32_t *out, int *n_idle);
void kv_pool_take_hits(struct kv_pool *p, const int32_t *blocks, int n);
void kv_pool_count_lookup(struct kv_pool *p, int n_tokens, int n_hit_blocks);
/* All three in one: longest cached prefix of tokens[0..n_tokens), whole blocks only, at most
 * (n_tokens - 1) / 16 blocks. Takes a reference on each block found, writes their ids; returns the
 * number of blocks. */
int kv_pool_lookup(struct kv_pool *p, const int32_t *tokens, int n_tokens,
                   const struct kv_extra *extra, int32_t *out);
/* Marks block number `index` (full, computed) of a sequence as cached. `parent` is the block before
 * it (-1 for index 0). */
void kv_pool_cache(struct kv_pool *p, int32_t block, int32_t parent, int index,
                   const int32_t *block_tokens, const struct kv_extra *extra);
int kv_pool_is_cached(const struct kv_pool *p, int32_t block); /* has a hash */
int kv_pool_reset_cache(struct kv_pool *p); /* 0, or ERR_BUSY while any block is in use */
int kv_pool_check_integrity(const struct kv_pool *p,
                            struct err *e); /* debug builds call it when idle */

/* Tests: reorders the free queue (all blocks must be free), so that tables are not in physical
 * order; and keeps only `bits` bits of every hash (nothing may be cached yet), so that different
 * prefixes collide. */
void kv_pool_shuffle(struct kv_pool *p, uint64_t seed);
void kv_pool_weaken_hash(struct kv_pool *p, int bits);

#endif
