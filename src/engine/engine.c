/* SPDX-License-Identifier: Apache-2.0 */
/* The engine thread, its commands, and the calls other threads make.
 *
 * Other threads only push commands and copy statistics. The thread takes all commands between two
 * steps, so an abort frees its blocks within one step; when nothing can run it sleeps on the queue
 * and wakes once a second to show that it lives. A submitted request brings all memory its samples
 * will need (tables, outputs, last events), allocated by the submitting thread: a step allocates
 * events only. */
#include "engine/beam.h"
#include "engine/core.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/rng.h"

#include <stdlib.h>
#include <string.h>

#define IDLE_WAIT_MS    1000
#define BLOCKED_WAIT_MS 10 /* everything waits for something outside */

struct abort_command {
    struct command command;
    uint64_t request_id;
    int sample, stopped;
};

/* A question to the engine thread; lives on the asker's stack. */
struct question {
    struct command command;
    pthread_mutex_t lock;
    pthread_cond_t answered;
    int done, result;
    struct err err;
};

/* ---- memory plan ---- */

static int blocks_of_request(const struct engine_options *o)
{
    return (o->max_model_len + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

/* Rows of drafts in a step. */
static int draft_rows(const struct engine_options *o)
{
    const struct speculation *p = &o->speculation;
    return p->n_tokens * (p->max_seqs < o->max_num_seqs ? p->max_seqs : o->max_num_seqs);
}

int engine_max_logits(const struct engine_options *o)
{
    int n = o->max_num_seqs + ENGINE_PROMPT_LOGITS + draft_rows(o);
    return n < o->max_num_batched_tokens ? n : o->max_num_batched_tokens;
}

int engine_plan_blocks(const struct engine_options *o, uint64_t block_bytes, int *n_blocks,
                       struct err *e)
{
    const double gib = 1024.0 * 1024.0 * 1024.0;
    uint64_t need = (uint64_t)blocks_of_request(o);
    uint64_t have = o->kv_cache_bytes / block_bytes;
    if (o->n_blocks_override > 0) {
        have = (uint64_t)o->n_blocks_override - 1; /* the null block is one of them */
    }
    if (have > INT32_MAX - 1) {
        have = INT32_MAX - 1;
    }
    if (have < need) {
        return err_set(
            e, ERR_INVALID,
            "to serve one request of max length %d, %.2f GiB of KV cache are needed, more than the "
            "available %.2f GiB; estimated maximum length: %llu; try raising "
            "gpu_memory_utilization or "
            "lowering max_model_len",
            o->max_model_len, (double)(need * block_bytes) / gib,
            (double)(have * block_bytes) / gib, (unsigned long long)have * KV_BLOCK_TOKENS);
    }
    *n_blocks = (int)have + 1;
    return 0;
}

uint64_t engine_kv_bytes_default(uint64_t memory_limit_bytes, uint64_t memory_available_bytes,
                                 double gpu_memory_utilization, uint64_t weight_bytes,
                                 uint64_t activation_bytes)
{
    uint64_t memory = memory_limit_bytes;
    if (memory_available_bytes > 0 && memory_available_bytes < memory) {
        memory = memory_available_bytes;
    }
    double left =
        (double)memory * gpu_memory_utilization - (double)weight_bytes - (double)activation_bytes;
    return left > 0.0 ? (uint64_t)left : 0;
}

int engine_max_concurrency_x100(const struct engine *en)
{
    return (int)((int64_t)(en->ops.n_blocks - 1) * 100 / blocks_of_request(&en->o));
}

/* ---- commands, on the engine thread ---- */

static void add_group(struct engine *en, struct group *g)
{
    g->next = en->groups;
    g->prev = NULL;
    if (en->groups) {
        en->groups->prev = g;
    }
    en->groups = g;
    sched_add(&en->sched, &g->seqs[0]);
}

static void end_samples(struct engine *en, struct group *g, int sample, enum finish_reason reason)
{
    sample = g->beams ? -1 : sample; /* beams are one search */
    /* from the last one: the first carries the prompt for the others until they are born */
    for (int i = g->n_seqs - 1; i >= 0; i--) {
        struct seq *q = &g->seqs[i];
        if (q->state != SEQ_FINISHED && (sample < 0 || q->sample == sample)) {
            step_end(en, q, reason, NULL);
            if (sample >= 0) {
                return;
            }
        }
    }
}

static void abort_request(struct engine *en, const struct abort_command *a)
{
    for (struct group *g = en->groups; g; g = g->next) {
        if (g->req->id == a->request_id) {
            end_samples(en, g, a->sample, a->stopped ? FINISH_STOP : FINISH_ABORT);
            return;
        }
    }
}

static void answer(struct question *q, int result)
{
    pthread_mutex_lock(&q->lock);
    q->result = result;
    q->done = 1;
    pthread_cond_signal(&q->answered);
    pthread_mutex_unlock(&q->lock); /* q may be gone from here on */
}

static void take_command(struct engine *en, struct command *c)
{
    struct question *q = (struct question *)c;
    switch (c->kind) {
    case COMMAND_SUBMIT:
        add_group(en, (struct group *)c);
        break;
    case COMMAND_ABORT:
        abort_request(en, (struct abort_command *)c);
        free(c);
        break;
    case COMMAND_RESET_CACHE_PREEMPTING:
        sched_preempt_all(&en->sched);
        answer(q, kv_pool_reset_cache(en->pool) == 0);
        break;
    case COMMAND_RESET_CACHE:
        answer(q, kv_pool_reset_cache(en->pool) == 0);
        break;
    case COMMAND_RESET_STATS:
        en->stats = (struct engine_stats){.n_blocks = en->stats.n_blocks,
                                          .block_tokens = en->stats.block_tokens,
                                          .kv_bytes = en->stats.kv_bytes};
        step_flush(en);
        answer(q, 0);
        break;
    case COMMAND_CHECK:
        answer(q, sched_check_integrity(&en->sched, &q->err));
        break;
    case COMMAND_STOP:
        en->stopping = 1;
        free(c);
        break;
    }
}

/* What was seen during the last step, then the queue: the order in which it came. */
static struct mq_node *all_commands(struct engine *en)
{
    *en->early_tail = mq_pop_all(en->commands);
    struct mq_node *n = en->early;
    en->early = NULL;
    en->early_tail = &en->early;
    return n;
}

static int take_commands(struct engine *en)
{
    struct mq_node *n = all_commands(en);
    int some = n != NULL;
    while (n) {
        struct mq_node *next = n->next;
        take_command(en, (struct command *)n);
        n = next;
    }
    return some;
}

/* Commands may not change anything while a step runs; they are kept, and read only for whether the
 * step still has a purpose. A step that ends here is not committed: its sequences still stand where
 * they stood, and their aborts are the next thing the engine takes. */
int engine_step_unwanted(void *arg)
{
    struct engine *en = arg;
    if (mq_is_empty(en->commands)) {
        return 0;
    }
    struct mq_node *n = *en->early_tail = mq_pop_all(en->commands);
    for (; n; n = n->next) {
        const struct command *c = (const struct command *)n;
        const struct abort_command *a = (const struct abort_command *)n;
        en->early_tail = &n->next;
        en->must_stop |= c->kind == COMMAND_STOP;
        for (struct group *g = c->kind == COMMAND_ABORT && a->sample < 0 ? en->groups : NULL; g;
             g = g->next) {
            g->is_doomed |= g->req->id == a->request_id;
        }
    }
    int n_wanted = 0;
    for (int i = 0; i < en->in_step->n_items; i++) {
        n_wanted += !en->in_step->items[i].seq->group->is_doomed;
    }
    return en->must_stop || n_wanted == 0;
}

static void check_when_idle(const struct engine *en)
{
#ifndef NDEBUG
    struct err e = {0};
    if (sched_check_integrity(&en->sched, &e) != 0) {
        log_error(en->o.log, "%s", e.text);
        abort();
    }
#else
    (void)en;
#endif
}

static void *engine_main(void *arg)
{
    struct engine *en = arg;
    cpu_set_numeric_mode();
    pthread_setname_np(pthread_self(), "tern-engine");
    while (!en->stopping) {
        int has_news = take_commands(en);
        if (has_news) {
            step_flush(en);
        }
        int has_work = en->sched.n_running > 0 || en->sched.n_waiting > 0;
        if (en->stopping || (has_work && step_run(en))) {
            continue;
        }
        if (!has_work && has_news) {
            check_when_idle(en);
        }
        step_flush(en);
        mq_wait(en->commands, has_work ? BLOCKED_WAIT_MS : IDLE_WAIT_MS);
    }
    while (en->groups) {
        end_samples(en, en->groups, -1, FINISH_ABORT);
    }
    step_flush(en);
    return NULL;
}

/* ---- open, close ---- */

static int check_options(const struct engine_options *o, const struct runner_ops *ops,
                         struct err *e)
{
    if (o->max_model_len < 2 || o->max_num_seqs < 1 || o->max_num_batched_tokens < 1) {
        return err_set(e, ERR_INVALID,
                       "engine: max_model_len %d, max_num_seqs %d and max_num_batched_tokens %d "
                       "must be positive "
                       "(max_model_len at least 2)",
                       o->max_model_len, o->max_num_seqs, o->max_num_batched_tokens);
    }
    if (!o->enable_chunked_prefill && o->max_num_batched_tokens < o->max_model_len) {
        return err_set(e, ERR_INVALID,
                       "max_num_batched_tokens (%d) is smaller than max_model_len (%d), which "
                       "needs chunked prefill: "
                       "raise max_num_batched_tokens or lower max_model_len",
                       o->max_num_batched_tokens, o->max_model_len);
    }
    if (ops->n_blocks - 1 < blocks_of_request(o)) {
        return err_set(e, ERR_INVALID,
                       "engine: %d KV blocks are fewer than the %d a request of %d tokens needs",
                       ops->n_blocks - 1, blocks_of_request(o), o->max_model_len);
    }
    return 0;
}

static int open_parts(struct engine *en, struct err *e)
{
    const struct engine_options *o = &en->o;
    int rc =
        kv_pool_open(&en->pool, en->ops.n_blocks, o->enable_prefix_caching, hash_random_seed(), e);
    if (rc < 0) {
        return rc;
    }
    if (o->permute_blocks) {
        kv_pool_shuffle(en->pool, (uint64_t)o->permute_blocks);
    }
    struct sched_options so = {
        .max_model_len = o->max_model_len,
        .max_num_seqs = o->max_num_seqs,
        .max_num_batched_tokens = o->max_num_batched_tokens,
        .long_prefill_token_threshold = o->long_prefill_token_threshold,
        .enable_chunked_prefill = o->enable_chunked_prefill,
        .policy_priority = o->policy_priority,
        .max_prompt_logits = ENGINE_PROMPT_LOGITS,
        .max_draft_rows = draft_rows(o),
    };
    if ((rc = sched_init(&en->sched, &so, en->pool, e)) < 0 ||
        (rc = batch_init(&en->batch, o->max_num_batched_tokens, o->max_num_seqs, e)) < 0) {
        return rc;
    }
    int n_workers = en->ops.pool ? cpu_pool_size(en->ops.pool) : 1;
    en->max_jobs = o->max_num_seqs + ENGINE_PROMPT_LOGITS;
    en->jobs = malloc((size_t)en->max_jobs * sizeof *en->jobs);
    en->samplers = calloc((size_t)n_workers, sizeof *en->samplers);
    if (!en->jobs || !en->samplers) {
        return err_set(e, ERR_NOMEM, "engine: out of memory");
    }
    for (; en->n_samplers < n_workers; en->n_samplers++) {
        rc = sampler_open(&en->samplers[en->n_samplers], en->ops.kernels, en->ops.vocab_size, e);
        if (rc < 0) {
            return rc;
        }
    }
    rc = masks_open(&en->masks, en->max_jobs, en->ops.pool, e);
    return rc < 0 ? rc : mq_new(&en->commands, e);
}

static int start_thread(struct engine *en, struct err *e)
{
    if (pthread_mutex_init(&en->lock, NULL) != 0) {
        return err_set(e, ERR_NOMEM, "engine: no mutex");
    }
    en->has_lock = 1;
    step_flush(en); /* the first statistics */
    if (pthread_create(&en->thread, NULL, engine_main, en) != 0) {
        return err_set(e, ERR_NOMEM, "engine: the system refused a thread");
    }
    en->has_thread = 1;
    return 0;
}

int engine_open_runner(struct engine **out, const struct runner_ops *ops, void *ctx,
                       const struct engine_options *o, struct err *e)
{
    *out = NULL;
    int rc = ERR_NOMEM;
    struct engine *en = calloc(1, sizeof *en);
    if (!en) {
        err_set(e, ERR_NOMEM, "engine: out of memory");
        goto fail;
    }
    en->o = *o;
    en->ops = *ops;
    en->ctx = ctx;
    en->early_tail = &en->early;
    if (en->o.max_num_seqs > en->o.max_num_batched_tokens) {
        en->o.max_num_seqs = en->o.max_num_batched_tokens; /* each running sequence needs a row */
    }
    atomic_init(&en->next_id, 1);
    stats_bounds_init(&en->bounds, o->max_model_len);
    en->stats.n_blocks = ops->n_blocks;
    en->stats.block_tokens = KV_BLOCK_TOKENS;
    en->stats.kv_bytes = (uint64_t)ops->n_blocks * ops->block_bytes;
    rc = check_options(&en->o, ops, e);
    rc = rc < 0 ? rc : open_parts(en, e);
    if (rc >= 0 && ops->watch) {
        ops->watch(ctx, engine_step_unwanted, en);
    }
    rc = rc < 0 ? rc : start_thread(en, e);
    if (rc < 0) {
        goto fail;
    }
    *out = en;
    return 0;
fail:
    if (en) {
        engine_close(en);
    } else if (ops->close) {
        ops->close(ctx);
    }
    return rc;
}

/* What was pushed after the thread had stopped. */
static void drop_commands(struct engine *en)
{
    struct mq_node *n = all_commands(en);
    while (n) {
        struct mq_node *next = n->next;
        struct command *c = (struct command *)n;
        if (c->kind == COMMAND_SUBMIT) {
            add_group(en, (struct group *)c);
            end_samples(en, (struct group *)c, -1, FINISH_ABORT);
        } else {
            take_command(en, c);
        }
        n = next;
    }
    step_flush(en);
}

void engine_close(struct engine *en)
{
    if (!en) {
        return;
    }
    if (en->has_thread) {
        atomic_store(&en->draining, 1);
        struct command *stop = malloc(sizeof *stop);
        while (!stop) { /* nothing else can be done: the thread must be told */
            stop = malloc(sizeof *stop);
        }
        stop->kind = COMMAND_STOP;
        mq_push(en->commands, &stop->node);
        pthread_join(en->thread, NULL);
        drop_commands(en);
    }
    if (en->has_lock) {
        pthread_mutex_destroy(&en->lock);
    }
    mq_free(en->commands);
    for (int i = 0; i < en->n_samplers; i++) {
        sampler_close(en->samplers[i]);
    }
    free(en->samplers);
    free(en->jobs);
    masks_close(en->masks);
    batch_fini(&en->batch);
    sched_fini(&en->sched);
    kv_pool_close(en->pool);
    if (en->ops.close) {
        en->ops.close(en->ctx);
    }
    free(en);
}

/* ---- calls from other threads ---- */

uint64_t engine_new_id(struct engine *en)
{
    return atomic_fetch_add(&en->next_id, 1);
}

static int check_request(const struct engine *en, const struct engine_request *r, struct err *e)
{
    const struct engine_options *o = &en->o;
    const char *field;
    if (r->n_prompt < 1) {
        return err_set(e, ERR_INVALID, "the prompt is empty");
    }
    if (r->n_prompt >= o->max_model_len) {
        return err_set(
            e, ERR_TOO_LARGE,
            "the prompt has %d tokens; with a maximum model length of %d it may have %d at most",
            r->n_prompt, o->max_model_len, o->max_model_len - 1);
    }
    for (int i = 0; i < r->n_prompt; i++) {
        if (r->prompt[i] < 0 || r->prompt[i] >= en->ops.vocab_size) {
            return err_set(e, ERR_INVALID, "Token id %d is out of vocabulary", r->prompt[i]);
        }
    }
    return sampling_params_check(&r->params, en->ops.vocab_size, en->ops.vocab_size, &field, e);
}

/* "salt\0" and the salt's bytes. */
static int make_extra(struct engine_request *r, struct kv_extra *extra)
{
    *extra = (struct kv_extra){NULL, 0};
    if (r->cache_salt) {
        size_t n = strlen(r->cache_salt);
        char *tagged = arena_alloc(&r->arena, 5 + n);
        if (!tagged) {
            return ERR_NOMEM;
        }
        memcpy(tagged, "salt", 5);
        memcpy(tagged + 5, r->cache_salt, n);
        *extra = (struct kv_extra){tagged, 5 + n};
    }
    return 0;
}

static int init_seq(const struct engine *en, struct group *g, int sample,
                    const struct kv_extra *extra, uint64_t seed)
{
    const struct engine_request *r = g->req;
    int room = en->o.max_model_len - r->n_prompt;
    struct seq *q = &g->seqs[sample];
    q->group = g;
    q->state = SEQ_UNBORN;
    q->sample = sample;
    q->item = -1;
    q->priority = r->priority;
    q->arrival_ns = r->arrival_ns;
    q->id = r->id;
    q->prompt = r->prompt;
    q->n_prompt = r->n_prompt;
    q->max_out = r->params.max_tokens < room ? r->params.max_tokens : room;
    q->extra = *extra;
    q->reads_cache = en->o.enable_prefix_caching && r->params.n_prompt_logprobs < 0;
    q->logits_from = r->params.n_prompt_logprobs < 0 ? r->n_prompt : 0;
    q->seed = seed + (uint64_t)sample;
    q->grammar_config = step_grammar_start(r);
    int n_blocks = (r->n_prompt + q->max_out + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    q->out = malloc((size_t)q->max_out * sizeof *q->out); /* untouched pages cost nothing */
    q->blocks = malloc((size_t)n_blocks * sizeof *q->blocks);
    q->last_event = step_event_new(1, sampling_params_n_top(&r->params));
    return q->out && q->blocks && q->last_event ? 0 : ERR_NOMEM;
}

static int make_group(struct engine *en, struct engine_request *r, struct group **out)
{
    struct group *g = arena_alloc(&r->arena, sizeof *g);
    struct kv_extra extra;
    if (!g || make_extra(r, &extra) < 0) {
        return ERR_NOMEM;
    }
    g->command.kind = COMMAND_SUBMIT;
    g->req = r;
    g->queued_ns = clock_now_ns();
    if (r->arrival_ns == 0 || r->arrival_ns > g->queued_ns) {
        r->arrival_ns = g->queued_ns;
    }
    g->seqs = arena_alloc(&r->arena, (size_t)r->params.n * sizeof *g->seqs);
    if (!g->seqs) {
        return ERR_NOMEM;
    }
    uint64_t seed = r->params.has_seed ? (uint64_t)r->params.seed
                                       : rng_derive_seed((uint64_t)en->o.seed, r->id);
    for (int i = 0; i < r->params.n; i++) {
        g->n_seqs = g->n_live = i + 1;
        if (init_seq(en, g, i, &extra, seed) < 0) {
            g->req = NULL; /* the caller keeps it */
            step_group_free(g);
            return ERR_NOMEM;
        }
    }
    if (r->params.use_beam_search && beam_open(g, en->ops.vocab_size) < 0) {
        g->req = NULL;
        step_group_free(g);
        return ERR_NOMEM;
    }
    *out = g;
    return 0;
}

int engine_submit(struct engine *en, struct engine_request *r, struct err *e)
{
    if (atomic_load(&en->draining)) {
        return err_set(e, ERR_CANCELED, "the server is shutting down");
    }
    int rc = check_request(en, r, e);
    if (rc < 0) {
        return rc;
    }
    if (r->id == 0) {
        r->id = engine_new_id(en);
    }
    struct group *g;
    if (make_group(en, r, &g) < 0) {
        return err_set(e, ERR_NOMEM, "out of memory for a request of %d tokens and %d samples",
                       r->n_prompt, r->params.n);
    }
    mq_push(en->commands, &g->command.node);
    return 0;
}

void engine_abort(struct engine *en, uint64_t request_id, int sample, int stopped)
{
    struct abort_command *a = malloc(sizeof *a);
    if (!a) {
        log_error(en->o.log, "Out of memory: request %llu runs to its end instead of being aborted",
                  (unsigned long long)request_id);
        return;
    }
    a->command.kind = COMMAND_ABORT;
    a->request_id = request_id;
    a->sample = sample;
    a->stopped = stopped;
    mq_push(en->commands, &a->command.node);
}

void engine_drain(struct engine *en)
{
    atomic_store(&en->draining, 1);
}

static int ask(struct engine *en, enum command_kind kind, struct err *e)
{
    struct question q = {.command = {.kind = kind}};
    pthread_mutex_init(&q.lock, NULL);
    pthread_cond_init(&q.answered, NULL);
    mq_push(en->commands, &q.command.node);
    pthread_mutex_lock(&q.lock);
    while (!q.done) {
        pthread_cond_wait(&q.answered, &q.lock);
    }
    pthread_mutex_unlock(&q.lock);
    pthread_cond_destroy(&q.answered);
    pthread_mutex_destroy(&q.lock);
    if (q.result < 0 && e) {
        *e = q.err;
    }
    return q.result;
}

int engine_reset_prefix_cache(struct engine *en, int preempt)
{
    return ask(en, preempt ? COMMAND_RESET_CACHE_PREEMPTING : COMMAND_RESET_CACHE, NULL);
}

void engine_reset_stats(struct engine *en)
{
    ask(en, COMMAND_RESET_STATS, NULL);
}

int engine_check_integrity(struct engine *en, struct err *e)
{
    return ask(en, COMMAND_CHECK, e);
}

void engine_stats(const struct engine *en, struct engine_stats *out)
{
    pthread_mutex_t *lock = &((struct engine *)en)->lock;
    pthread_mutex_lock(lock);
    *out = en->shared_stats;
    pthread_mutex_unlock(lock);
}
