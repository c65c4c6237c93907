/* SPDX-License-Identifier: Apache-2.0 */
/* What engine.c (thread, commands, public calls) and step.c (one step) share. Everything in struct
 * engine belongs to the engine thread, except what is marked. */
#ifndef TERN_ENGINE_CORE_H
#define TERN_ENGINE_CORE_H

#include "engine/batch.h"
#include "engine/masks.h"
#include "engine/runner.h"
#include "engine/sampler.h"
#include "engine/sched.h"
#include "engine/stats.h"

#include <pthread.h>
#include <stdatomic.h>

enum command_kind {
    COMMAND_SUBMIT,
    COMMAND_ABORT,
    COMMAND_RESET_CACHE,
    COMMAND_RESET_CACHE_PREEMPTING,
    COMMAND_RESET_STATS,
    COMMAND_CHECK,
    COMMAND_STOP
};

struct command {
    struct mq_node node;
    enum command_kind kind;
};

/* A request inside the engine; lives in the request's arena. seqs[0] carries the prefill, whichever
 * sample it is; the others are unborn until the prompt is computed, then forked from it. */
struct group {
    struct command command; /* first: how it arrives */
    struct engine_request *req;
    struct group *prev, *next;
    struct seq *seqs;
    int n_seqs, n_live;
    int is_doomed; /* its abort was seen during a step and comes right after it */
    uint64_t queued_ns;
    struct engine_event *prompt_event; /* prompt log-probabilities being collected */
    struct token_output *prompt_tokens;
    int prompt_failed; /* no memory for them */
    int max_generation_len;
    struct beams *beams; /* NULL without beam search */
};

/* Rows to sample, or one to take log-probabilities of. Further rows hold what would follow if the
 * tokens drawn were those of the draft; they are drawn as long as that is so. */
struct sample_job {
    const float *logits; /* of the first row; the others follow at logits_stride */
    const struct seq *seq;
    struct token_output *out;  /* [n_rows] */
    struct token_logprob *top; /* [n_rows][1 + n_top] */
    int n_top;                 /* -1: no log-probabilities */
    int n_rows;                /* 0: out->id is given */
    int *n_drawn; /* out, with n_rows > 0; tokens, an impossible one (id -1) included */
};

struct engine {
    struct engine_options o;
    struct runner_ops ops;
    void *ctx;
    struct kv_pool *pool;
    struct sched sched;
    struct batch batch;
    struct masks *masks;
    struct sampler **samplers; /* one a worker */
    int n_samplers;
    struct sample_job *jobs;
    int n_jobs, max_jobs;
    atomic_int next_job;
    struct group *groups, *dead;
    struct engine_event *outbox_head, *outbox_tail;
    struct engine_stats stats;
    struct stats_bounds bounds;
    int stopping;
    const struct sched_plan *in_step;    /* while its forward pass runs */
    struct mq_node *early, **early_tail; /* commands seen during a step, oldest first */
    int must_stop;                       /* one of them is COMMAND_STOP */

    /* any thread */
    struct mq *commands;
    atomic_int draining;
    atomic_ullong next_id;
    pthread_mutex_t lock; /* of shared_stats */
    struct engine_stats shared_stats;
    pthread_t thread;
    int has_thread, has_lock;
};

/* An event with room for n_tokens; n_top as in sample_job. NULL when out of memory. */
struct engine_event *step_event_new(int n_tokens, int n_top);
/* Position of a new sample in the request's grammar. */
int step_grammar_start(const struct engine_request *r);
/* A sample that shares its prompt with `parent` starts. */
void step_born(struct engine *en, struct seq *q, const struct seq *parent, uint64_t now_ns);
void step_first_token(struct engine *en, struct seq *q, uint64_t now_ns); /* statistics */
/* Ends a sample with `ev` as its last event. */
#define STEP_NO_NUMBERS                                                                            \
    "the model's logits are no numbers (NaN or infinite): its weights or scales are broken"
void step_end_with(struct engine *en, struct seq *q, enum finish_reason reason,
                   struct engine_event *ev, const char *error);
/* Ends a sample that may be in any state: tells the scheduler, the statistics and the receiver. */
void step_end(struct engine *en, struct seq *q, enum finish_reason reason, const char *error);
/* Called between the layers of a step: whether every request in it has been aborted meanwhile. */
int engine_step_unwanted(void *arg);
/* schedule -> forward -> sample -> publish. Returns 0 when there was nothing to run. */
int step_run(struct engine *en);
/* Makes the statistics visible, then sends what is in the outbox and frees groups that have ended.
 */
void step_flush(struct engine *en);
void step_group_free(struct group *g);

#endif
