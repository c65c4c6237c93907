/* SPDX-License-Identifier: Apache-2.0 */
/* Block pool: eviction order, reference counts, the prefix chain, collisions, reset. The expected
 * orders are vLLM V1's (tail of a sequence evicted first, unhashed blocks reused first, least
 * recently used before recently used). */
#include "kv/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK 16

static struct kv_pool *open_pool(int n_blocks, int cache)
{
    struct kv_pool *p;
    assert_int_equal(kv_pool_open(&p, n_blocks, cache, 7, NULL), 0);
    return p;
}

static void close_pool(struct kv_pool *p)
{
    struct err e = {0};
    if (kv_pool_check_integrity(p, &e) != 0) {
        fail_msg("%s", e.text);
    }
    kv_pool_close(p);
}

static void fill(int32_t *tokens, int n, int seed)
{
    for (int i = 0; i < n; i++) {
        tokens[i] = seed * 1000 + i;
    }
}

static void cache_all(struct kv_pool *p, const int32_t *blocks, int n, const int32_t *tokens,
                      const struct kv_extra *extra)
{
    for (int i = 0; i < n; i++) {
        kv_pool_cache(p, blocks[i], i ? blocks[i - 1] : -1, i, tokens + (size_t)i * BLOCK, extra);
    }
}

static int n_free(const struct kv_pool *p)
{
    struct kv_pool_stats s;
    kv_pool_stats(p, &s);
    return s.n_free;
}

static void blocks_come_in_id_order_and_never_block_zero(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(6, 1);
    int32_t got[6];
    assert_int_equal(kv_pool_alloc(p, 6, got), ERR_BUSY);
    assert_int_equal(n_free(p), 5);
    assert_int_equal(kv_pool_alloc(p, 5, got), 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(got[i], i + 1);
        assert_int_equal(kv_pool_refcount(p, got[i]), 1);
    }
    assert_true(kv_pool_usage(p) == 1.0);
    kv_pool_free(p, got, 5);
    assert_true(kv_pool_usage(p) == 0.0);
    close_pool(p);
}

static void a_freed_sequence_is_evicted_tail_first_and_after_older_ones(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(7, 1); /* blocks 1..6 */
    int32_t a[3], b[3], got[6], tokens[2][3 * BLOCK];
    fill(tokens[0], 3 * BLOCK, 1);
    fill(tokens[1], 3 * BLOCK, 2);
    assert_int_equal(kv_pool_alloc(p, 3, a), 0);
    assert_int_equal(kv_pool_alloc(p, 3, b), 0);
    cache_all(p, a, 3, tokens[0], NULL);
    cache_all(p, b, 3, tokens[1], NULL);
    kv_pool_free(p, b, 3);
    kv_pool_free(p, a, 3);
    assert_int_equal(kv_pool_alloc(p, 6, got), 0);
    const int32_t want[6] = {b[2], b[1], b[0], a[2], a[1], a[0]};
    assert_memory_equal(got, want, sizeof want);
    struct kv_pool_stats s;
    kv_pool_stats(p, &s);
    assert_int_equal(s.evictions, 6);
    assert_int_equal(s.n_cached, 0);
    close_pool(p);
}

static void unhashed_blocks_are_reused_before_cached_ones(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(6, 1);
    int32_t a[4], got[5], tokens[4 * BLOCK];
    fill(tokens, 4 * BLOCK, 1);
    assert_int_equal(kv_pool_alloc(p, 4, a), 0); /* 1..4; block 5 never used */
    cache_all(p, a, 2, tokens, NULL);            /* 1, 2 hashed; 3, 4 not */
    kv_pool_free(p, a, 4);
    assert_int_equal(kv_pool_alloc(p, 5, got), 0);
    const int32_t want[5] = {3, 4, 5, 2, 1};
    assert_memory_equal(got, want, sizeof want);
    close_pool(p);
}

static void a_hit_takes_a_free_block_out_of_the_queue_and_makes_it_recent(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(5, 1);
    int32_t a[2], b[2], hit[4], got[4], ta[3 * BLOCK], tb[2 * BLOCK];
    fill(ta, 3 * BLOCK, 1);
    fill(tb, 2 * BLOCK, 2);
    assert_int_equal(kv_pool_alloc(p, 2, a), 0);
    assert_int_equal(kv_pool_alloc(p, 2, b), 0);
    cache_all(p, a, 2, ta, NULL);
    cache_all(p, b, 2, tb, NULL);
    kv_pool_free(p, a, 2);
    kv_pool_free(p, b, 2);
    assert_int_equal(kv_pool_lookup(p, ta, 3 * BLOCK, NULL, hit), 2);
    assert_memory_equal(hit, a, sizeof a);
    assert_int_equal(n_free(p), 2);
    assert_int_equal(kv_pool_refcount(p, a[0]), 1);
    kv_pool_free(p, hit, 2);
    assert_int_equal(kv_pool_alloc(p, 4, got), 0);
    const int32_t want[4] = {b[1], b[0], a[1], a[0]};
    assert_memory_equal(got, want, sizeof want);
    close_pool(p);
}

static void a_fully_cached_prompt_gives_up_its_last_block(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(10, 1);
    int32_t a[3], hit[4], t[3 * BLOCK + 1];
    fill(t, 3 * BLOCK + 1, 1);
    assert_int_equal(kv_pool_alloc(p, 3, a), 0);
    cache_all(p, a, 3, t, NULL);
    int idle = -1;
    assert_int_equal(kv_pool_match(p, t, 3 * BLOCK, NULL, hit, &idle), 2);
    assert_int_equal(idle, 0);
    assert_int_equal(kv_pool_match(p, t, 3 * BLOCK + 1, NULL, hit, NULL), 3);
    assert_int_equal(kv_pool_match(p, t, 3 * BLOCK - 1, NULL, hit, NULL), 2);
    assert_int_equal(kv_pool_match(p, t, 1, NULL, hit, NULL), 0);
    kv_pool_free(p, a, 3);
    assert_int_equal(kv_pool_match(p, t, 3 * BLOCK + 1, NULL, hit, &idle), 3);
    assert_int_equal(idle, 3);
    close_pool(p);
}

static void lookups_are_counted_in_tokens(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(10, 1);
    int32_t a[2], hit[4], t[40];
    fill(t, 40, 1);
    assert_int_equal(kv_pool_alloc(p, 2, a), 0);
    cache_all(p, a, 2, t, NULL);
    assert_int_equal(kv_pool_lookup(p, t, 40, NULL, hit), 2);
    struct kv_pool_stats s;
    kv_pool_stats(p, &s);
    assert_int_equal(s.queries_tokens, 40);
    assert_int_equal(s.hits_tokens, 32);
    assert_int_equal(kv_pool_refcount(p, a[1]), 2);
    close_pool(p);
}

static void the_same_tokens_after_another_parent_are_no_hit(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(10, 1);
    int32_t a[2], hit[4], t[3 * BLOCK];
    fill(t, 3 * BLOCK, 1);
    assert_int_equal(kv_pool_alloc(p, 2, a), 0);
    cache_all(p, a, 2, t, NULL);
    int32_t moved[3 * BLOCK]; /* block 1's tokens in first place, then block 1's tokens again */
    memcpy(moved, t + BLOCK, BLOCK * sizeof *t);
    memcpy(moved + BLOCK, t + BLOCK, BLOCK * sizeof *t);
    moved[2 * BLOCK] = 5;
    assert_int_equal(kv_pool_match(p, moved, 2 * BLOCK + 1, NULL, hit, NULL), 0);
    memcpy(moved, t, BLOCK * sizeof *t);
    moved[3] ^= 1; /* one token of the parent differs */
    assert_int_equal(kv_pool_match(p, moved, 2 * BLOCK + 1, NULL, hit, NULL), 0);
    close_pool(p);
}

static void extras_separate_equal_prompts(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(10, 1);
    int32_t a[2], hit[4], t[3 * BLOCK];
    fill(t, 3 * BLOCK, 1);
    const struct kv_extra x = {"salt\0one", 8}, y = {"salt\0two", 8}, longer = {"salt\0one\0", 9};
    assert_int_equal(kv_pool_alloc(p, 2, a), 0);
    cache_all(p, a, 2, t, &x);
    assert_int_equal(kv_pool_match(p, t, 3 * BLOCK, &x, hit, NULL), 2);
    assert_int_equal(kv_pool_match(p, t, 3 * BLOCK, &y, hit, NULL), 0);
    assert_int_equal(kv_pool_match(p, t, 3 * BLOCK, &longer, hit, NULL), 0);
    assert_int_equal(kv_pool_match(p, t, 3 * BLOCK, NULL, hit, NULL), 0);
    close_pool(p);
}

static void colliding_hashes_never_return_another_prompt(void **state)
{
    (void)state;
    for (int bits = 0; bits <= 2; bits++) {
        struct kv_pool *p = open_pool(64, 1);
        kv_pool_weaken_hash(p, bits);
        int32_t blocks[20][2], hit[4], t[20][2 * BLOCK + 1];
        const struct kv_extra salt = {"salt\0a", 6};
        for (int i = 0; i < 20; i++) {
            fill(t[i], 2 * BLOCK + 1, i / 2); /* pairs with equal tokens, one of each with a salt */
            assert_int_equal(kv_pool_alloc(p, 2, blocks[i]), 0);
            cache_all(p, blocks[i], 2, t[i], i % 2 ? &salt : NULL);
        }
        for (int i = 0; i < 20; i++) {
            assert_int_equal(kv_pool_match(p, t[i], 2 * BLOCK + 1, i % 2 ? &salt : NULL, hit, NULL),
                             2);
            assert_memory_equal(hit, blocks[i], sizeof blocks[i]);
        }
        int32_t other[2 * BLOCK + 1];
        fill(other, 2 * BLOCK + 1, 99);
        assert_int_equal(kv_pool_match(p, other, 2 * BLOCK + 1, NULL, hit, NULL), 0);
        close_pool(p);
    }
}

static void two_copies_of_one_prefix_serve_lookups_until_both_are_evicted(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(5, 1);
    int32_t a[2], b[2], hit[4], got[2], t[2 * BLOCK + 1];
    fill(t, 2 * BLOCK + 1, 1);
    assert_int_equal(kv_pool_alloc(p, 2, a), 0);
    assert_int_equal(kv_pool_alloc(p, 2, b), 0);
    cache_all(p, a, 2, t, NULL);
    cache_all(p, b, 2, t, NULL);
    assert_int_equal(kv_pool_match(p, t, 2 * BLOCK + 1, NULL, hit, NULL), 2);
    assert_memory_equal(hit, a, sizeof a); /* the older copy */
    kv_pool_free(p, a, 2);
    assert_int_equal(kv_pool_alloc(p, 2, got), 0); /* evicts a */
    assert_int_equal(kv_pool_match(p, t, 2 * BLOCK + 1, NULL, hit, NULL), 2);
    assert_memory_equal(hit, b, sizeof b);
    kv_pool_free(p, b, 2);
    assert_int_equal(kv_pool_alloc(p, 2, got), 0);
    assert_int_equal(kv_pool_match(p, t, 2 * BLOCK + 1, NULL, hit, NULL), 0);
    close_pool(p);
}

static void a_child_of_an_evicted_and_recomputed_parent_is_still_right(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(4, 1);
    int32_t a[2], hit[4], got[1], t[2 * BLOCK + 1];
    fill(t, 2 * BLOCK + 1, 1);
    assert_int_equal(kv_pool_alloc(p, 2, a), 0);
    cache_all(p, a, 2, t, NULL);
    kv_pool_free(
        p, a + 1,
        1); /* the child in the queue, the parent in use: not how sequences free, but legal */
    kv_pool_free(p, a, 1);
    assert_int_equal(kv_pool_match(p, t, 2 * BLOCK + 1, NULL, hit, NULL), 2);
    assert_int_equal(kv_pool_alloc(p, 1, got), 0); /* the unhashed block 3 */
    int32_t child[1];
    assert_int_equal(kv_pool_alloc(p, 1, child), 0); /* evicts the child first */
    assert_int_equal(child[0], a[1]);
    assert_int_equal(kv_pool_match(p, t, 2 * BLOCK + 1, NULL, hit, NULL), 1);
    close_pool(p);
}

static void shared_blocks_are_freed_by_the_last_holder(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(4, 1);
    int32_t a[2];
    assert_int_equal(kv_pool_alloc(p, 2, a), 0);
    kv_pool_ref(p, a[0]);
    kv_pool_free(p, a, 2);
    assert_int_equal(kv_pool_refcount(p, a[0]), 1);
    assert_int_equal(n_free(p), 2);
    kv_pool_free(p, a, 1);
    assert_int_equal(n_free(p), 3);
    close_pool(p);
}

static void reset_is_refused_while_a_block_is_used_and_then_forgets_all(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(5, 1);
    int32_t a[2], hit[4], t[2 * BLOCK + 1];
    fill(t, 2 * BLOCK + 1, 1);
    const struct kv_extra x = {"salt\0s", 6};
    assert_int_equal(kv_pool_alloc(p, 2, a), 0);
    cache_all(p, a, 2, t, &x);
    assert_int_equal(kv_pool_reset_cache(p), ERR_BUSY);
    assert_int_equal(kv_pool_match(p, t, 2 * BLOCK + 1, &x, hit, NULL), 2);
    kv_pool_free(p, a, 2);
    assert_int_equal(kv_pool_reset_cache(p), 0);
    assert_int_equal(kv_pool_match(p, t, 2 * BLOCK + 1, &x, hit, NULL), 0);
    assert_false(kv_pool_is_cached(p, a[0]));
    close_pool(p);
}

static void without_prefix_caching_nothing_is_found_or_counted(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(5, 0);
    int32_t a[2], hit[4], t[2 * BLOCK + 1];
    fill(t, 2 * BLOCK + 1, 1);
    assert_int_equal(kv_pool_alloc(p, 2, a), 0);
    cache_all(p, a, 2, t, NULL);
    assert_int_equal(kv_pool_lookup(p, t, 2 * BLOCK + 1, NULL, hit), 0);
    struct kv_pool_stats s;
    kv_pool_stats(p, &s);
    assert_int_equal(s.queries_tokens, 0);
    assert_int_equal(s.n_cached, 0);
    close_pool(p);
}

static void random_use_keeps_the_pool_whole(void **state)
{
    (void)state;
    struct kv_pool *p = open_pool(40, 1);
    kv_pool_shuffle(p, 3);
    kv_pool_weaken_hash(p, 3);
    struct seq {
        int32_t blocks[6], tokens[6 * BLOCK + 1];
        int n;
    } seqs[8];
    memset(seqs, 0, sizeof seqs);
    unsigned r = 12345;
    for (int step = 0; step < 20000; step++) {
        r = r * 1664525u + 1013904223u;
        struct seq *s = &seqs[(r >> 8) % 8];
        if (s->n > 0) {
            kv_pool_free(p, s->blocks, s->n);
            s->n = 0;
        } else {
            int want = 1 + (int)((r >> 12) % 6);
            fill(s->tokens, 6 * BLOCK + 1, (int)((r >> 16) % 5));
            int n = kv_pool_lookup(p, s->tokens, want * BLOCK + 1, NULL, s->blocks);
            if (kv_pool_alloc(p, want - n, s->blocks + n) != 0) {
                kv_pool_free(p, s->blocks, n);
                continue;
            }
            s->n = want;
            cache_all(p, s->blocks, want, s->tokens, NULL);
        }
        if (step % 500 == 0) {
            struct err e = {0};
            if (kv_pool_check_integrity(p, &e) != 0) {
                fail_msg("step %d: %s", step, e.text);
            }
        }
    }
    for (int i = 0; i < 8; i++) {
        kv_pool_free(p, seqs[i].blocks, seqs[i].n);
    }
    assert_int_equal(n_free(p), 39);
    close_pool(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_come_in_id_order_and_never_block_zero),
        cmocka_unit_test(a_freed_sequence_is_evicted_tail_first_and_after_older_ones),
        cmocka_unit_test(unhashed_blocks_are_reused_before_cached_ones),
        cmocka_unit_test(a_hit_takes_a_free_block_out_of_the_queue_and_makes_it_recent),
        cmocka_unit_test(a_fully_cached_prompt_gives_up_its_last_block),
        cmocka_unit_test(lookups_are_counted_in_tokens),
        cmocka_unit_test(the_same_tokens_after_another_parent_are_no_hit),
        cmocka_unit_test(extras_separate_equal_prompts),
        cmocka_unit_test(colliding_hashes_never_return_another_prompt),
        cmocka_unit_test(two_copies_of_one_prefix_serve_lookups_until_both_are_evicted),
        cmocka_unit_test(a_child_of_an_evicted_and_recomputed_parent_is_still_right),
        cmocka_unit_test(shared_blocks_are_freed_by_the_last_holder),
        cmocka_unit_test(reset_is_refused_while_a_block_is_used_and_then_forgets_all),
        cmocka_unit_test(without_prefix_caching_nothing_is_found_or_counted),
        cmocka_unit_test(random_use_keeps_the_pool_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
