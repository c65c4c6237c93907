/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler: which tokens of which sequences run in the next step, and in which KV blocks.
 *
 * There is no prefill or decode phase. A sequence knows tokens (prompt and outputs so far) and how
 * many of them are computed; a step gives it some of the missing ones. Knows neither HTTP nor
 * kernels. Owner: the engine thread. */
#ifndef TERN_ENGINE_SCHED_H
#define TERN_ENGINE_SCHED_H

#include "engine/engine.h"
#include "kv/pool.h"

struct group;

enum seq_state {
    SEQ_UNBORN, /* a further sample of a prompt that isn't prefilled yet */
    SEQ_WAITING,
    SEQ_WAITING_REMOTE_KV, /* its KV is on the way from another process: passed over */
    SEQ_RUNNING,
    SEQ_PREEMPTED, /* waiting again; outputs kept, KV dropped */
    SEQ_PARKED,    /* held, and its blocks went to others: nothing to run, in no queue */
    SEQ_LENDING,   /* finished, its blocks stay until a peer has read them or the lease ends */
    SEQ_FINISHED,
};

struct seq {
    struct seq *prev, *next; /* waiting queue */
    struct group *group;     /* its request; not the scheduler's business */
    enum seq_state state;
    int sample;
    int priority;
    uint64_t arrival_ns,
        id; /* order: (priority, arrival_ns, id, sample) with the priority policy */
    const int32_t *prompt;
    int n_prompt;
    int32_t *out; /* room for every token it may produce; behind the n_out it has: its draft */
    int n_out, max_out;
    int n_draft;     /* tokens that may follow; a step can check some of them (step.c) */
    int32_t *blocks; /* block table, room for all */
    int n_blocks;
    int n_indexed;  /* leading blocks that have been offered to the prefix index */
    int n_computed; /* tokens whose K and V are in the table */
    struct kv_extra extra;
    int logits_from; /* prompt rows from here to n_prompt - 2 want logits; n_prompt: none */
    int reads_cache;
    int was_admitted;
    int n_cached_tokens; /* prompt tokens found in the prefix cache at the first admission */
    int n_preemptions;
    int item; /* index in the plan of this step, -1 */
    int held; /* all its tokens are computed, and it waits for its siblings (beam.c) */
    uint64_t seed;
    int grammar_config; /* position in the request's grammar; step.c */
    uint64_t first_token_ns, last_token_ns, scheduled_ns, queued_ns;
    struct engine_event *event; /* of this step, engine.c */
    struct engine_event
        *last_event; /* allocated with the request, so that an end can always be told */
};
int seq_n_tokens(const struct seq *q);
int32_t seq_token(const struct seq *q, int i);

struct sched_item {
    struct seq *seq;
    int first, n_tokens; /* tokens first .. first + n_tokens - 1 of the sequence */
    int n_draft;         /* the last of them are of the draft */
};
struct block_copy {
    int32_t dst, src;
};

struct sched_plan {
    struct sched_item *items; /* at most max_num_seqs */
    int n_items;
    int n_tokens;
    struct block_copy *copies; /* to be made in order before the step runs */
    int n_copies;
    int n_preempted;
};
/* Prompt rows of an item that want logits: positions *from .. *to - 1. */
void sched_item_prompt_logits(const struct sched_item *it, int *from, int *to);
/* Its last 1 + n_draft rows yield tokens, as long as each is the one the draft has. */
int sched_item_completes(const struct sched_item *it);

struct sched_options {
    int max_model_len, max_num_seqs, max_num_batched_tokens, long_prefill_token_threshold;
    int enable_chunked_prefill, policy_priority;
    int max_prompt_logits; /* rows a step */
    int max_draft_rows;    /* the same */
};

struct sched {
    struct sched_options o;
    struct kv_pool *pool;
    struct seq **running;
    int n_running;
    struct seq *waiting_head, *waiting_tail;
    int n_waiting;
    uint64_t n_preemptions;
    struct sched_plan plan;
    int budget, prompt_logits_left, draft_rows_left; /* of the step being planned */
    int32_t *tokens; /* scratch: a resumed sequence's tokens in one piece */
    int32_t *hits;   /* scratch: blocks found */
};

int sched_init(struct sched *s, const struct sched_options *o, struct kv_pool *pool, struct err *e);
void sched_fini(struct sched *s);

void sched_add(struct sched *s, struct seq *q);
/* child continues where parent stands, sharing its blocks. When nothing more may run, or the parent
 * has no blocks, it waits without any and is computed again (mostly from the prefix cache). */
void sched_fork(struct sched *s, const struct seq *parent, struct seq *child);
/* A held sequence starts anew: its blocks are freed, it is unborn. */
void sched_release(struct sched *s, struct seq *q);
void sched_resume(struct sched *s, struct seq *q); /* parked, and has something to run again */
void sched_remove(struct sched *s, struct seq *q); /* finished or aborted: frees its blocks */

const struct sched_plan *sched_step(struct sched *s); /* valid until the next call */
/* The item has been computed; n_refused of its draft's tokens are not what the sequence goes on with,
 * and their slots will be written again. */
void sched_commit(struct sched *s, const struct sched_item *it, int n_refused);

/* Between two steps: everything that runs goes back to the queue, in its order, without blocks; it
 * is computed again. */
void sched_preempt_all(struct sched *s);

int sched_check_integrity(const struct sched *s, struct err *e);

#endif
