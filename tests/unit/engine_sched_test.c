/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler alone, step by step: who runs, with how many tokens, who is preempted. Expected
 * decisions are those of vLLM V1's scheduler. */
#include "engine/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_LEN 512

struct fixture {
    struct sched s;
    struct kv_pool *pool;
    struct seq seqs[16];
    int n_seqs;
};

static void open_fixture(struct fixture *f, int n_blocks, struct sched_options o)
{
    memset(f, 0, sizeof *f);
    o.max_model_len = MAX_LEN;
    o.max_num_seqs = o.max_num_seqs ? o.max_num_seqs : 8;
    o.max_prompt_logits = 16;
    assert_int_equal(kv_pool_open(&f->pool, n_blocks + 1, 1, 3, NULL), 0);
    assert_int_equal(sched_init(&f->s, &o, f->pool, NULL), 0);
}

static void close_fixture(struct fixture *f)
{
    for (int i = 0; i < f->n_seqs; i++) {
        if (f->seqs[i].state != SEQ_FINISHED) {
            sched_remove(&f->s, &f->seqs[i]);
        }
        free((void *)f->seqs[i].prompt);
        free(f->seqs[i].out);
        free(f->seqs[i].blocks);
    }
    struct err e = {0};
    if (sched_check_integrity(&f->s, &e) != 0) {
        fail_msg("%s", e.text);
    }
    assert_true(kv_pool_usage(f->pool) == 0.0);
    sched_fini(&f->s);
    kv_pool_close(f->pool);
}

/* Prompts with the same `text` begin alike. */
static struct seq *new_seq(struct fixture *f, int n_prompt, int text, int priority)
{
    struct seq *q = &f->seqs[f->n_seqs++];
    int32_t *prompt = malloc((size_t)n_prompt * sizeof *prompt);
    for (int i = 0; i < n_prompt; i++) {
        prompt[i] = text * 1000 + i;
    }
    q->prompt = prompt;
    q->n_prompt = n_prompt;
    q->max_out = MAX_LEN - n_prompt;
    q->out = malloc((size_t)q->max_out * sizeof *q->out);
    q->blocks = malloc((MAX_LEN / KV_BLOCK_TOKENS) * sizeof *q->blocks);
    q->id = (uint64_t)f->n_seqs;
    q->arrival_ns = (uint64_t)f->n_seqs;
    q->priority = priority;
    q->reads_cache = 1;
    q->logits_from = n_prompt;
    q->item = -1;
    return q;
}

static struct seq *add(struct fixture *f, int n_prompt, int text, int priority)
{
    struct seq *q = new_seq(f, n_prompt, text, priority);
    sched_add(&f->s, q);
    return q;
}

/* One step; every sequence that completes gets a token. */
static const struct sched_plan *step(struct fixture *f)
{
    const struct sched_plan *p = sched_step(&f->s);
    for (int i = 0; i < p->n_items; i++) {
        struct seq *q = p->items[i].seq;
        int done = sched_item_completes(&p->items[i]);
        sched_commit(&f->s, &p->items[i], 0);
        if (done) {
            q->out[q->n_out] = 7 + q->n_out;
            q->n_out++;
        }
    }
    struct err e = {0};
    if (sched_check_integrity(&f->s, &e) != 0) {
        fail_msg("%s", e.text);
    }
    return p;
}

static void expect_item(const struct sched_plan *p, int i, const struct seq *q, int first, int n)
{
    assert_true(i < p->n_items);
    assert_ptr_equal(p->items[i].seq, q);
    assert_int_equal(p->items[i].first, first);
    assert_int_equal(p->items[i].n_tokens, n);
}

static void a_long_prompt_is_computed_in_chunks_of_the_budget(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 32,
                 (struct sched_options){.max_num_batched_tokens = 40, .enable_chunked_prefill = 1});
    struct seq *q = add(&f, 100, 1, 0);
    expect_item(step(&f), 0, q, 0, 40);
    expect_item(step(&f), 0, q, 40, 40);
    assert_int_equal(q->n_out, 0);
    expect_item(step(&f), 0, q, 80, 20);
    assert_int_equal(q->n_out, 1);
    expect_item(step(&f), 0, q, 100, 1);
    close_fixture(&f);
}

static void running_sequences_come_before_waiting_ones_and_share_one_budget(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 32,
                 (struct sched_options){.max_num_batched_tokens = 50, .enable_chunked_prefill = 1});
    struct seq *a = add(&f, 20, 1, 0);
    expect_item(step(&f), 0, a, 0, 20);
    struct seq *b = add(&f, 70, 2, 0), *c = add(&f, 10, 3, 0);
    const struct sched_plan *p = step(&f);
    assert_int_equal(p->n_items, 2);
    assert_int_equal(p->n_tokens, 50);
    expect_item(p, 0, a, 20, 1);
    expect_item(p, 1, b, 0, 49);
    p = step(&f);
    assert_int_equal(p->n_items, 3);
    expect_item(p, 0, a, 21, 1);
    expect_item(p, 1, b, 49, 21);
    expect_item(p, 2, c, 0, 10);
    close_fixture(&f);
}

static void the_long_prefill_threshold_caps_each_sequence(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 32,
                 (struct sched_options){.max_num_batched_tokens = 64,
                                        .enable_chunked_prefill = 1,
                                        .long_prefill_token_threshold = 24});
    struct seq *a = add(&f, 60, 1, 0), *b = add(&f, 60, 2, 0);
    const struct sched_plan *p = step(&f);
    expect_item(p, 0, a, 0, 24);
    expect_item(p, 1, b, 0, 24);
    close_fixture(&f);
}

static void without_chunked_prefill_a_prompt_waits_until_it_fits_the_budget(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 40, (struct sched_options){.max_num_batched_tokens = 64});
    struct seq *a = add(&f, 40, 1, 0), *b = add(&f, 40, 2, 0);
    const struct sched_plan *p = step(&f);
    assert_int_equal(p->n_items, 1);
    expect_item(p, 0, a, 0, 40);
    p = step(&f);
    expect_item(p, 0, a, 40, 1);
    expect_item(p, 1, b, 0, 40);
    close_fixture(&f);
}

static void the_number_of_running_sequences_is_capped(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 32,
                 (struct sched_options){
                     .max_num_batched_tokens = 64, .enable_chunked_prefill = 1, .max_num_seqs = 2});
    for (int i = 0; i < 4; i++) {
        add(&f, 4, i, 0);
    }
    assert_int_equal(step(&f)->n_items, 2);
    assert_int_equal(f.s.n_waiting, 2);
    close_fixture(&f);
}

static void a_prompt_whose_blocks_do_not_all_fit_blocks_those_behind_it(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 10,
                 (struct sched_options){.max_num_batched_tokens = 32, .enable_chunked_prefill = 1});
    struct seq *a = add(&f, 32, 1, 0);
    expect_item(step(&f), 0, a, 0, 32); /* holds 2 of 10 */
    struct seq *big = add(&f, 9 * 16, 2, 0), *small = add(&f, 4, 3, 0);
    for (int i = 0; i < 3; i++) {
        const struct sched_plan *p =
            step(&f); /* 31 tokens of big would fit, all 9 blocks would not */
        assert_int_equal(p->n_items, 1);
        expect_item(p, 0, a, 32 + i, 1);
    }
    assert_int_equal(big->state, SEQ_WAITING);
    assert_int_equal(small->state, SEQ_WAITING);
    sched_remove(&f.s, a);
    const struct sched_plan *p = step(&f);
    expect_item(p, 0, big, 0, 32);
    close_fixture(&f);
}

static void the_newest_is_preempted_and_goes_to_the_front_with_its_outputs(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 4,
                 (struct sched_options){.max_num_batched_tokens = 64, .enable_chunked_prefill = 1});
    struct seq *a = add(&f, 31, 1, 0), *b = add(&f, 31, 2, 0);
    step(&f);
    struct seq *c = add(&f, 4, 3, 0);
    step(&f); /* a and b fill their second blocks: 4 of 4 used */
    const struct sched_plan *p = step(&f);
    assert_int_equal(p->n_preempted, 1);
    assert_int_equal(p->n_items, 1);
    expect_item(p, 0, a, 32, 1);
    assert_int_equal(b->state, SEQ_PREEMPTED);
    assert_int_equal(b->n_preemptions, 1);
    assert_int_equal(b->n_out, 2);
    assert_int_equal(b->n_computed, 0);
    assert_ptr_equal(f.s.waiting_head, b); /* before c */
    assert_ptr_equal(b->next, c);
    assert_int_equal(c->state, SEQ_WAITING); /* nothing is admitted in a step with a preemption */
    sched_remove(&f.s, a);
    p = step(
        &f); /* b is found in the prefix cache as far as its blocks survived, and computed again */
    assert_ptr_equal(p->items[0].seq, b);
    assert_int_equal(p->items[0].first + p->items[0].n_tokens, 33);
    assert_true(p->items[0].first >= 16);
    assert_int_equal(b->n_out, 3);
    assert_int_equal(b->n_cached_tokens, 0); /* hits of a resumed sequence aren't the request's */
    close_fixture(&f);
}

static void several_victims_keep_their_order_at_the_front(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(
        &f, 6, (struct sched_options){.max_num_batched_tokens = 400, .enable_chunked_prefill = 1});
    struct seq *a = add(&f, 16, 1, 0), *b = add(&f, 16, 2, 0), *c = add(&f, 16, 3, 0),
               *d = add(&f, 16, 4, 0);
    step(&f);
    /* each wants a second block, two are free: c and d yield */
    const struct sched_plan *p = step(&f);
    assert_int_equal(p->n_items + p->n_preempted, 4);
    assert_int_equal(a->state, SEQ_RUNNING);
    assert_int_equal(b->state, SEQ_RUNNING);
    assert_int_equal(d->state, SEQ_PREEMPTED);
    if (c->state == SEQ_PREEMPTED) {
        assert_ptr_equal(f.s.waiting_head, c);
        assert_ptr_equal(c->next, d);
    }
    close_fixture(&f);
}

static void with_priorities_the_least_important_yields_even_if_already_planned(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 4,
                 (struct sched_options){.max_num_batched_tokens = 64,
                                        .enable_chunked_prefill = 1,
                                        .policy_priority = 1});
    struct seq *low = add(&f, 30, 1, 5);
    step(&f);
    struct seq *high = add(&f, 31, 2, 0);
    step(&f);
    assert_int_equal(high->state, SEQ_RUNNING);
    assert_ptr_equal(f.s.running[0], low);
    step(&f); /* low 32, high 32 after it */
    const struct sched_plan *p =
        step(&f); /* low comes first and wants a block: it is itself the victim */
    assert_int_equal(low->state, SEQ_PREEMPTED);
    assert_int_equal(p->n_tokens, p->n_items);
    p = step(&f);
    expect_item(p, 0, high, high->n_computed - 1, 1);
    close_fixture(&f);
}

static void a_victim_that_was_planned_gives_its_tokens_back(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 4,
                 (struct sched_options){.max_num_batched_tokens = 64,
                                        .enable_chunked_prefill = 1,
                                        .policy_priority = 1});
    struct seq *low = add(&f, 18, 1, 5); /* block 2 has room for long */
    step(&f);
    struct seq *high = add(&f, 32, 2, 0);
    step(&f);
    assert_int_equal(high->n_blocks + low->n_blocks, 4);
    const struct sched_plan *p = step(&f); /* low is planned, then high needs a third block */
    assert_int_equal(low->state, SEQ_PREEMPTED);
    assert_int_equal(p->n_items, 1);
    assert_int_equal(p->n_tokens, 1);
    expect_item(p, 0, high, 32, 1);
    close_fixture(&f);
}

static void waiting_sequences_are_ordered_by_priority_then_arrival(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 20,
                 (struct sched_options){.max_num_batched_tokens = 64,
                                        .enable_chunked_prefill = 1,
                                        .policy_priority = 1,
                                        .max_num_seqs = 3});
    struct seq *a = add(&f, 4, 1, 3), *b = add(&f, 4, 2, 1), *c = add(&f, 4, 3, 2),
               *d = add(&f, 4, 4, 1);
    const struct sched_plan *p = step(&f);
    expect_item(p, 0, b, 0, 4);
    expect_item(p, 1, d, 0, 4);
    expect_item(p, 2, c, 0, 4);
    assert_int_equal(a->state, SEQ_WAITING);
    close_fixture(&f);
}

static void a_cached_prefix_is_not_computed_again(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(
        &f, 32, (struct sched_options){.max_num_batched_tokens = 200, .enable_chunked_prefill = 1});
    struct seq *a = add(&f, 70, 1, 0);
    step(&f);
    struct seq *b = add(&f, 64, 1, 0); /* 4 full blocks, all cached: the last is given up */
    const struct sched_plan *p = step(&f);
    expect_item(p, 1, b, 48, 16);
    assert_int_equal(b->n_cached_tokens, 48);
    assert_int_equal(b->blocks[0], a->blocks[0]);
    assert_int_not_equal(b->blocks[3], a->blocks[3]);
    struct kv_pool_stats st;
    kv_pool_stats(f.pool, &st);
    assert_int_equal(st.queries_tokens, 70 + 64);
    assert_int_equal(st.hits_tokens, 48);
    close_fixture(&f);
}

static void blocks_enter_the_index_only_when_computed(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(
        &f, 32, (struct sched_options){.max_num_batched_tokens = 200, .enable_chunked_prefill = 1});
    struct seq *a = add(&f, 40, 1, 0), *b = add(&f, 40, 1, 0);
    const struct sched_plan *p = sched_step(&f.s);
    expect_item(p, 0, a, 0, 40);
    expect_item(p, 1, b, 0, 40); /* the same prompt in the same step: computed twice */
    assert_false(kv_pool_is_cached(f.pool, a->blocks[0]));
    sched_commit(&f.s, &p->items[0], 0);
    assert_true(kv_pool_is_cached(f.pool, a->blocks[1]));
    assert_false(kv_pool_is_cached(f.pool, a->blocks[2]));
    close_fixture(&f);
}

static void forks_share_blocks_and_copy_the_last_one_before_writing(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(
        &f, 32, (struct sched_options){.max_num_batched_tokens = 200, .enable_chunked_prefill = 1});
    struct seq *a = add(&f, 20, 1, 0);
    step(&f);
    struct seq *kids[2] = {new_seq(&f, 20, 1, 0), new_seq(&f, 20, 1, 0)};
    for (int i = 0; i < 2; i++) {
        kids[i]->out[kids[i]->n_out++] = 50 + i;
        sched_fork(&f.s, a, kids[i]);
    }
    assert_int_equal(kv_pool_refcount(f.pool, a->blocks[0]), 3);
    int32_t shared = a->blocks[1];
    const struct sched_plan *p = step(&f);
    assert_int_equal(p->n_items, 3);
    assert_int_equal(p->n_copies, 2); /* the third holder writes in place */
    assert_int_equal(p->copies[0].src, shared);
    assert_int_equal(p->copies[1].src, shared);
    assert_int_equal(kids[1]->blocks[1], shared);
    assert_int_not_equal(a->blocks[1], kids[0]->blocks[1]);
    assert_int_equal(kv_pool_refcount(f.pool, a->blocks[0]), 3);
    assert_int_equal(step(&f)->n_copies, 0);
    close_fixture(&f);
}

static void a_fork_without_a_free_place_waits_at_the_front_without_blocks(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 32,
                 (struct sched_options){.max_num_batched_tokens = 200,
                                        .enable_chunked_prefill = 1,
                                        .max_num_seqs = 1});
    struct seq *a = add(&f, 36, 1, 0);
    step(&f);
    add(&f, 5, 2, 0);
    struct seq *kid = new_seq(&f, 36, 1, 0);
    kid->out[kid->n_out++] = 50;
    sched_fork(&f.s, a, kid);
    assert_ptr_equal(f.s.waiting_head, kid);
    assert_int_equal(kid->n_blocks, 0);
    sched_remove(&f.s, a);
    const struct sched_plan *p = step(&f);
    expect_item(p, 0, kid, 32, 5); /* two full blocks from the cache */
    close_fixture(&f);
}

static void prompt_rows_that_want_logits_are_rationed(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(
        &f, 32, (struct sched_options){.max_num_batched_tokens = 200, .enable_chunked_prefill = 1});
    struct seq *q = new_seq(&f, 50, 1, 0);
    q->logits_from = 0;
    q->reads_cache = 0;
    sched_add(&f.s, q);
    int rows = 0;
    for (int i = 0; i < 20 && q->n_out == 0; i++) {
        const struct sched_plan *p = sched_step(&f.s);
        int from, to;
        sched_item_prompt_logits(&p->items[0], &from, &to);
        assert_int_equal(from, rows);
        assert_true(to - from <= 16);
        rows = to;
        int done = sched_item_completes(&p->items[0]);
        sched_commit(&f.s, &p->items[0], 0);
        if (done) {
            q->out[q->n_out++] = 1;
        }
    }
    assert_int_equal(rows, 49);
    assert_int_equal(q->n_computed, 50);
    close_fixture(&f);
}

static void sequences_that_wait_for_remote_kv_are_passed_over(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(
        &f, 32, (struct sched_options){.max_num_batched_tokens = 200, .enable_chunked_prefill = 1});
    struct seq *a = add(&f, 10, 1, 0), *b = add(&f, 10, 2, 0);
    a->state = SEQ_WAITING_REMOTE_KV;
    const struct sched_plan *p = step(&f);
    assert_int_equal(p->n_items, 1);
    expect_item(p, 0, b, 0, 10);
    a->state = SEQ_WAITING;
    p = step(&f);
    expect_item(p, 1, a, 0, 10);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_is_computed_in_chunks_of_the_budget),
        cmocka_unit_test(running_sequences_come_before_waiting_ones_and_share_one_budget),
        cmocka_unit_test(the_long_prefill_threshold_caps_each_sequence),
        cmocka_unit_test(without_chunked_prefill_a_prompt_waits_until_it_fits_the_budget),
        cmocka_unit_test(the_number_of_running_sequences_is_capped),
        cmocka_unit_test(a_prompt_whose_blocks_do_not_all_fit_blocks_those_behind_it),
        cmocka_unit_test(the_newest_is_preempted_and_goes_to_the_front_with_its_outputs),
        cmocka_unit_test(several_victims_keep_their_order_at_the_front),
        cmocka_unit_test(with_priorities_the_least_important_yields_even_if_already_planned),
        cmocka_unit_test(a_victim_that_was_planned_gives_its_tokens_back),
        cmocka_unit_test(waiting_sequences_are_ordered_by_priority_then_arrival),
        cmocka_unit_test(a_cached_prefix_is_not_computed_again),
        cmocka_unit_test(blocks_enter_the_index_only_when_computed),
        cmocka_unit_test(forks_share_blocks_and_copy_the_last_one_before_writing),
        cmocka_unit_test(a_fork_without_a_free_place_waits_at_the_front_without_blocks),
        cmocka_unit_test(prompt_rows_that_want_logits_are_rationed),
        cmocka_unit_test(sequences_that_wait_for_remote_kv_are_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
