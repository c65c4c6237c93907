/* SPDX-License-Identifier: Apache-2.0 */
/* One step, as vLLM V1 plans it:
 *
 *   A. running sequences in order: the tokens they lack, cut by the long-prefill threshold and by
 * the token budget. When blocks run out, the newest sequence (FCFS) or the least important one
 * (priority) is preempted: its blocks are freed, its outputs kept, it goes to the front of the
 * queue. B. if nothing was preempted: waiting sequences in order, as long as budget and places
 * last. The cached prefix is taken from the index; the blocks of the whole sequence must fit now,
 * although only those of this step are taken. The first one that doesn't fit ends the step
 * (head-of-line blocking: nobody overtakes).
 *
 * Shared blocks: the samples of one prompt share its blocks by reference. Full blocks are never
 * written again; the partly filled last one is copied by whoever writes to it while others hold it,
 * and the copies are part of the plan. A block enters the prefix index only after it was computed
 * (sched_commit), so a step that fails leaves no trace.
 *
 * Drafts: a sequence may take along tokens that are guessed to follow (n_draft, behind its outputs).
 * They get slots like others; those that turn out wrong are given back by n_computed alone, the
 * slots are written again. Blocks beyond n_computed may stay in the table.
 *
 * Beams of one request meet after each token (beam.c). One that waits for the others is held: it
 * keeps its place and blocks, needs nothing, and loses both first when a step would have nothing
 * to run.
 *
 * Invariants (sched_check_integrity): a block's references are exactly the tables that name it;
 * only running sequences have blocks; n_blocks covers n_computed. */
#include "engine/sched.h"

#include <stdlib.h>
#include <string.h>

int seq_n_tokens(const struct seq *q)
{
    return q->n_prompt + q->n_out;
}

int32_t seq_token(const struct seq *q, int i)
{
    return i < q->n_prompt ? q->prompt[i] : q->out[i - q->n_prompt];
}

static int imin(int a, int b)
{
    return a < b ? a : b;
}

static int imax(int a, int b)
{
    return a > b ? a : b;
}

static int blocks_for(int n_tokens)
{
    return (n_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

void sched_item_prompt_logits(const struct sched_item *it, int *from, int *to)
{
    *from = imax(it->first, it->seq->logits_from);
    *to = imax(*from, imin(it->first + it->n_tokens, it->seq->n_prompt - 1));
}

int sched_item_completes(const struct sched_item *it)
{
    return it->first + it->n_tokens - it->n_draft == seq_n_tokens(it->seq);
}

/* ---- life ---- */

int sched_init(struct sched *s, const struct sched_options *o, struct kv_pool *pool, struct err *e)
{
    memset(s, 0, sizeof *s);
    s->o = *o;
    s->pool = pool;
    size_t n = (size_t)o->max_num_seqs;
    s->running = malloc(n * sizeof *s->running);
    s->plan.items = malloc(n * sizeof *s->plan.items);
    s->plan.copies = malloc(n * sizeof *s->plan.copies);
    s->tokens = malloc((size_t)o->max_model_len * sizeof *s->tokens);
    s->hits = malloc((size_t)blocks_for(o->max_model_len) * sizeof *s->hits);
    if (!s->running || !s->plan.items || !s->plan.copies || !s->tokens || !s->hits) {
        sched_fini(s);
        return err_set(e, ERR_NOMEM, "scheduler: out of memory");
    }
    return 0;
}

void sched_fini(struct sched *s)
{
    free(s->running);
    free(s->plan.items);
    free(s->plan.copies);
    free(s->tokens);
    free(s->hits);
    memset(s, 0, sizeof *s);
}

/* ---- queues ---- */

/* Whether a goes before b with the priority policy. */
static int before(const struct seq *a, const struct seq *b)
{
    if (a->priority != b->priority) {
        return a->priority < b->priority;
    }
    if (a->arrival_ns != b->arrival_ns) {
        return a->arrival_ns < b->arrival_ns;
    }
    return a->id != b->id ? a->id < b->id : a->sample < b->sample;
}

/* Puts q behind `at`; NULL: at the head. */
static void insert_after(struct sched *s, struct seq *at, struct seq *q)
{
    q->prev = at;
    q->next = at ? at->next : s->waiting_head;
    if (q->next) {
        q->next->prev = q;
    } else {
        s->waiting_tail = q;
    }
    if (at) {
        at->next = q;
    } else {
        s->waiting_head = q;
    }
    s->n_waiting++;
}

static void enqueue(struct sched *s, struct seq *q, int at_front)
{
    struct seq *at = at_front ? NULL : s->waiting_tail;
    if (s->o.policy_priority) {
        at = s->waiting_tail;
        while (at && before(q, at)) {
            at = at->prev;
        }
    }
    insert_after(s, at, q);
}

static void dequeue(struct sched *s, struct seq *q)
{
    if (q->prev) {
        q->prev->next = q->next;
    } else {
        s->waiting_head = q->next;
    }
    if (q->next) {
        q->next->prev = q->prev;
    } else {
        s->waiting_tail = q->prev;
    }
    q->prev = q->next = NULL;
    s->n_waiting--;
}

static void drop_blocks(struct sched *s, struct seq *q)
{
    kv_pool_free(s->pool, q->blocks, q->n_blocks);
    q->n_blocks = q->n_indexed = q->n_computed = 0;
}

static int leave_running(struct sched *s, const struct seq *q)
{
    int i = 0;
    while (s->running[i] != q) {
        i++;
    }
    s->n_running--;
    memmove(&s->running[i], &s->running[i + 1], (size_t)(s->n_running - i) * sizeof *s->running);
    return i;
}

static void start_running(struct sched *s, struct seq *q)
{
    q->state = SEQ_RUNNING;
    s->running[s->n_running++] = q;
}

void sched_add(struct sched *s, struct seq *q)
{
    q->state = SEQ_WAITING;
    q->item = -1;
    enqueue(s, q, 0);
}

void sched_fork(struct sched *s, const struct seq *parent, struct seq *child)
{
    child->item = -1;
    child->was_admitted = 1;
    child->logits_from =
        child->n_prompt; /* the parent's rows have given the prompt's log-probabilities */
    if (s->n_running == s->o.max_num_seqs || parent->state != SEQ_RUNNING) {
        child->state = SEQ_WAITING;
        enqueue(s, child, 1);
        return;
    }
    kv_pool_take_hits(s->pool, parent->blocks, parent->n_blocks);
    memcpy(child->blocks, parent->blocks, (size_t)parent->n_blocks * sizeof *child->blocks);
    child->n_blocks = parent->n_blocks;
    child->n_indexed = parent->n_indexed;
    child->n_computed = parent->n_computed;
    start_running(s, child);
}

void sched_release(struct sched *s, struct seq *q)
{
    if (q->state == SEQ_RUNNING) {
        leave_running(s, q);
        drop_blocks(s, q);
    }
    q->state = SEQ_UNBORN;
    q->held = 0;
    q->n_out = 0;
}

void sched_resume(struct sched *s, struct seq *q)
{
    q->state = SEQ_PREEMPTED;
    enqueue(s, q, 1);
}

void sched_remove(struct sched *s, struct seq *q)
{
    if (q->state == SEQ_RUNNING) {
        leave_running(s, q);
        drop_blocks(s, q);
    } else if (q->state == SEQ_WAITING || q->state == SEQ_WAITING_REMOTE_KV ||
               q->state == SEQ_PREEMPTED) {
        dequeue(s, q);
    }
    q->state = SEQ_FINISHED;
}

/* ---- A: running ---- */

static void add_item(struct sched *s, struct seq *q, int n, int n_draft)
{
    struct sched_item *it = &s->plan.items[s->plan.n_items];
    it->seq = q;
    it->first = q->n_computed;
    it->n_tokens = n + n_draft;
    it->n_draft = n_draft;
    q->item = s->plan.n_items++;
    s->plan.n_tokens += n + n_draft;
    s->budget -= n + n_draft;
    s->draft_rows_left -= n_draft;
    int from, to;
    sched_item_prompt_logits(it, &from, &to);
    s->prompt_logits_left -= to - from;
}

static void withdraw_item(struct sched *s, struct seq *q)
{
    const struct sched_item *it = &s->plan.items[q->item];
    int from, to;
    sched_item_prompt_logits(it, &from, &to);
    s->prompt_logits_left += to - from;
    s->plan.n_tokens -= it->n_tokens;
    s->budget += it->n_tokens;
    s->draft_rows_left += it->n_draft;
    s->plan.n_items--;
    for (int i = q->item; i < s->plan.n_items; i++) {
        s->plan.items[i] = s->plan.items[i + 1];
        s->plan.items[i].seq->item = i;
    }
    q->item = -1;
}

static struct seq *choose_victim(const struct sched *s)
{
    struct seq *victim = s->running[s->n_running - 1];
    for (int i = 0; s->o.policy_priority && i < s->n_running; i++) {
        if (before(victim, s->running[i])) {
            victim = s->running[i];
        }
    }
    return victim;
}

/* Returns the place it had among the running ones. */
static int preempt(struct sched *s, struct seq *q)
{
    if (q->item >= 0) {
        withdraw_item(s, q);
    }
    int place = leave_running(s, q);
    drop_blocks(s, q);
    q->state = q->held ? SEQ_PARKED : SEQ_PREEMPTED;
    q->n_preemptions++;
    s->n_preemptions++;
    s->plan.n_preempted++;
    if (!q->held) {
        enqueue(s, q, 1);
    }
    return place;
}

void sched_preempt_all(struct sched *s)
{
    while (s->n_running > 0) {
        struct seq *q = s->running[s->n_running - 1];
        q->item = -1; /* of the step that is over */
        preempt(s, q);
    }
}

/* Blocks for n more tokens, and an own copy of a shared last block. ERR_BUSY: not enough, nothing
 * taken. */
static int take_blocks(struct sched *s, struct seq *q, int n)
{
    int n_new = imax(0, blocks_for(q->n_computed + n) - q->n_blocks);
    int last = q->n_computed / KV_BLOCK_TOKENS;
    int copy =
        q->n_computed % KV_BLOCK_TOKENS != 0 && kv_pool_refcount(s->pool, q->blocks[last]) > 1;
    if (kv_pool_n_free(s->pool) < n_new + copy) {
        return ERR_BUSY;
    }
    kv_pool_alloc(s->pool, n_new, q->blocks + q->n_blocks);
    q->n_blocks += n_new;
    if (copy) {
        struct block_copy *c = &s->plan.copies[s->plan.n_copies++];
        c->src = q->blocks[last];
        kv_pool_alloc(s->pool, 1, &c->dst);
        kv_pool_free(s->pool, &c->src, 1);
        q->blocks[last] = c->dst;
    }
    return 0;
}

/* How many tokens q may get now when it lacks n. */
static int cut_tokens(const struct sched *s, const struct seq *q, int first, int n)
{
    if (s->o.long_prefill_token_threshold > 0) {
        n = imin(n, s->o.long_prefill_token_threshold);
    }
    n = imin(n, s->budget);
    struct sched_item it = {(struct seq *)q, first, n, 0};
    int from, to;
    sched_item_prompt_logits(&it, &from, &to);
    if (to - from > s->prompt_logits_left) {
        n = from - first + s->prompt_logits_left;
    }
    return n;
}

/* How much of its draft q takes along beside the n tokens it lacks: what no other running sequence
 * could want of the budget. */
static int cut_draft(const struct sched *s, const struct seq *q, int n, int n_behind)
{
    if (q->n_computed + n < seq_n_tokens(q)) {
        return 0;
    }
    return imax(0, imin(imin(q->n_draft, s->draft_rows_left), s->budget - n - n_behind));
}

static void schedule_running(struct sched *s)
{
    int i = 0;
    while (i < s->n_running && s->budget > 0) {
        struct seq *q = s->running[i];
        int n = cut_tokens(s, q, q->n_computed, seq_n_tokens(q) - q->n_computed);
        if (n == 0) {
            i++; /* others may still have something to do */
            continue;
        }
        int n_draft = cut_draft(s, q, n, s->n_running - i - 1);
        if (n_draft > 0 && take_blocks(s, q, n + n_draft) == 0) {
            add_item(s, q, n, n_draft);
            i++;
            continue;
        }
        while (take_blocks(s, q, n) != 0) { /* nobody is preempted for a draft */
            struct seq *victim = choose_victim(s);
            i -= preempt(s, victim) < i;
            if (victim == q) {
                return; /* nobody less important is left */
            }
        }
        add_item(s, q, n, 0);
        i++;
    }
}

/* ---- B: waiting ---- */

static const int32_t *all_tokens(struct sched *s, const struct seq *q)
{
    if (q->n_out == 0) {
        return q->prompt;
    }
    memcpy(s->tokens, q->prompt, (size_t)q->n_prompt * sizeof *s->tokens);
    memcpy(s->tokens + q->n_prompt, q->out, (size_t)q->n_out * sizeof *s->tokens);
    return s->tokens;
}

static int admit(struct sched *s, struct seq *q)
{
    if (kv_pool_n_free(s->pool) == 0) {
        return ERR_BUSY; /* at least one token is always computed, in a block of its own */
    }
    int total = seq_n_tokens(q), n_hits = 0, n_idle = 0;
    if (q->reads_cache) {
        n_hits = kv_pool_match(s->pool, all_tokens(s, q), total, &q->extra, s->hits, &n_idle);
    }
    int computed = n_hits * KV_BLOCK_TOKENS;
    if (!s->o.enable_chunked_prefill && total - computed > s->budget) {
        return ERR_BUSY;
    }
    int n = cut_tokens(s, q, computed, total - computed);
    if (n == 0 || kv_pool_n_free(s->pool) < blocks_for(total) - n_hits + n_idle) {
        return ERR_BUSY;
    }
    kv_pool_take_hits(s->pool, s->hits, n_hits);
    memcpy(q->blocks, s->hits, (size_t)n_hits * sizeof *q->blocks);
    q->n_blocks = q->n_indexed = n_hits;
    q->n_computed = computed;
    take_blocks(s, q, n);
    dequeue(s, q);
    start_running(s, q);
    if (!q->was_admitted) {
        q->was_admitted = 1;
        q->n_cached_tokens = computed;
        if (q->reads_cache) {
            kv_pool_count_lookup(s->pool, total, n_hits);
        }
    }
    add_item(s, q, n, 0);
    return 0;
}

static void schedule_waiting(struct sched *s)
{
    struct seq *q = s->waiting_head;
    while (q && s->budget > 0 && s->n_running < s->o.max_num_seqs) {
        struct seq *next = q->next;
        if (q->state != SEQ_WAITING_REMOTE_KV && admit(s, q) != 0) {
            return;
        }
        q = next;
    }
}

/* Nothing can run: held sequences fill the cache or the places while those that they wait for are
 * in the queue. The last of them makes room. */
static int park_one(struct sched *s)
{
    for (int i = s->n_running - 1; i >= 0; i--) {
        if (s->running[i]->held) {
            preempt(s, s->running[i]);
            return 1;
        }
    }
    return 0;
}

const struct sched_plan *sched_step(struct sched *s)
{
    for (int i = 0; i < s->n_running; i++) {
        s->running[i]->item = -1;
    }
    s->plan.n_items = s->plan.n_tokens = s->plan.n_copies = s->plan.n_preempted = 0;
    s->budget = s->o.max_num_batched_tokens;
    s->prompt_logits_left = s->o.max_prompt_logits;
    s->draft_rows_left = s->o.max_draft_rows;
    schedule_running(s);
    if (s->plan.n_preempted == 0) {
        schedule_waiting(s);
    }
    while (s->plan.n_items == 0 && s->n_waiting > 0 && park_one(s)) {
        schedule_waiting(s);
    }
    return &s->plan;
}

/* ---- results ---- */

void sched_commit(struct sched *s, const struct sched_item *it, int n_refused)
{
    struct seq *q = it->seq;
    int from, to;
    sched_item_prompt_logits(it, &from, &to);
    if (to > from) {
        q->logits_from = to;
    }
    q->n_computed = it->first + it->n_tokens - n_refused;
    for (; (q->n_indexed + 1) * KV_BLOCK_TOKENS <= q->n_computed; q->n_indexed++) {
        int32_t tokens[KV_BLOCK_TOKENS];
        int b = q->n_indexed;
        for (int i = 0; i < KV_BLOCK_TOKENS; i++) {
            tokens[i] = seq_token(q, b * KV_BLOCK_TOKENS + i);
        }
        kv_pool_cache(s->pool, q->blocks[b], b > 0 ? q->blocks[b - 1] : -1, b, tokens, &q->extra);
    }
}

/* ---- checks ---- */

static int check_tables(const struct sched *s, int *count, int n_pool_blocks, struct err *e)
{
    for (int i = 0; i < s->n_running; i++) {
        const struct seq *q = s->running[i];
        if (q->state != SEQ_RUNNING || q->n_computed > q->n_blocks * KV_BLOCK_TOKENS ||
            q->n_computed + !q->held > seq_n_tokens(q)) {
            return err_set(
                e, ERR_INTERNAL,
                "scheduler: running sequence %d.%d: state %d, %d of %d tokens, %d blocks",
                (int)q->id, q->sample, q->state, q->n_computed, seq_n_tokens(q), q->n_blocks);
        }
        for (int b = 0; b < q->n_blocks; b++) {
            count[q->blocks[b]]++;
        }
    }
    count[0]++; /* the null block */
    for (int i = 0; i < n_pool_blocks; i++) {
        if (kv_pool_refcount(s->pool, i) != count[i]) {
            return err_set(e, ERR_INTERNAL,
                           "scheduler: block %d has %d references, %d tables name it", i,
                           kv_pool_refcount(s->pool, i), count[i]);
        }
    }
    return 0;
}

int sched_check_integrity(const struct sched *s, struct err *e)
{
    int n = 0;
    for (const struct seq *q = s->waiting_head; q; q = q->next) {
        if (q->n_blocks != 0 || q->state == SEQ_RUNNING || ++n > s->n_waiting) {
            return err_set(e, ERR_INTERNAL, "scheduler: bad waiting sequence %d.%d", (int)q->id,
                           q->sample);
        }
    }
    if (n != s->n_waiting) {
        return err_set(e, ERR_INTERNAL, "scheduler: %d sequences wait, %d counted", n,
                       s->n_waiting);
    }
    struct kv_pool_stats stats;
    kv_pool_stats(s->pool, &stats);
    int *count = calloc((size_t)stats.n_blocks, sizeof *count);
    if (!count) {
        return err_set(e, ERR_NOMEM, "scheduler: out of memory for a check");
    }
    int rc = check_tables(s, count, stats.n_blocks, e);
    free(count);
    return rc < 0 ? rc : kv_pool_check_integrity(s->pool, e);
}
