/* SPDX-License-Identifier: Apache-2.0 */
/* One step of the engine: schedule -> forward -> sample -> publish.
 *
 * Promises kept here: every sample gets exactly one last event, also when memory runs out (it is
 * allocated with the request) or the forward pass fails (the sequences of that step end with
 * FINISH_ERROR, the engine goes on); the statistics that a client can read after its last event
 * already contain it (step_flush orders this). Owner: the engine thread; sampling rows is spread
 * over the worker pool, rows are independent. */
#include "engine/beam.h"
#include "engine/core.h"
#include "engine/ngram.h"

#include "base/clock.h"
#include "base/log.h"
#include "text/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Events as they are allocated: the receiver sees the first member. */
struct event_box {
    struct engine_event ev;
    struct mq *reply;
    struct token_logprob *top; /* [n_tokens][1 + n_top], behind the tokens */
    struct token_output tokens[];
};

static struct event_box *box_of(struct engine_event *ev)
{
    return (struct event_box *)ev;
}

struct engine_event *step_event_new(int n_tokens, int n_top)
{
    size_t head = sizeof(struct event_box) + (size_t)n_tokens * sizeof(struct token_output);
    struct event_box *b =
        malloc(head + (size_t)n_tokens * (size_t)(n_top + 1) * sizeof(struct token_logprob));
    if (!b) {
        return NULL;
    }
    memset(b, 0, head);
    arena_init(&b->ev.arena, 0);
    b->top = (struct token_logprob *)(void *)((char *)b + head);
    b->ev.stop_token_id = -1;
    return &b->ev;
}

void step_group_free(struct group *g)
{
    for (int i = 0; i < g->n_seqs; i++) {
        struct seq *q = &g->seqs[i];
        free(q->out);
        free(q->blocks);
        engine_event_free(q->last_event);
    }
    beam_close(g);
    engine_event_free(g->prompt_event);
    engine_request_free(g->req);
}

/* ---- events ---- */

static void send(struct engine *en, struct seq *q, struct engine_event *ev)
{
    const struct group *g = q->group;
    ev->request_id = g->req->id;
    ev->user = g->req->user;
    ev->sample = q->sample;
    ev->n_cached_tokens = q->n_cached_tokens;
    ev->n_preemptions = q->n_preemptions;
    ev->queued_ns = g->queued_ns;
    ev->scheduled_ns = q->scheduled_ns;
    ev->first_token_ns = q->first_token_ns;
    ev->last_token_ns = q->last_token_ns;
    box_of(ev)->reply = g->req->reply;
    ev->node.next = NULL;
    if (en->outbox_tail) {
        en->outbox_tail->node.next = &ev->node;
    } else {
        en->outbox_head = ev;
    }
    en->outbox_tail = ev;
}

/* A sequence owns whole blocks; what it does not fill is lost to others. Shared blocks are full, so
 * counting them once a sequence changes little. */
static double fragmentation(const struct sched *s)
{
    int64_t slots = 0, filled = 0;
    for (int i = 0; i < s->n_running; i++) {
        slots += (int64_t)s->running[i]->n_blocks * KV_BLOCK_TOKENS;
        filled += s->running[i]->n_computed;
    }
    return slots > filled ? (double)(slots - filled) / (double)slots : 0.0;
}

static int max_admissible(const struct engine *en)
{
    int64_t room = (int64_t)kv_pool_n_free(en->pool) * KV_BLOCK_TOKENS;
    int most = en->o.max_model_len - 1;
    return room < most ? (int)room : most;
}

void step_flush(struct engine *en)
{
    struct engine_stats *s = &en->stats;
    struct kv_pool_stats pool;
    kv_pool_stats(en->pool, &pool);
    s->n_running = en->sched.n_running;
    s->n_waiting = en->sched.n_waiting;
    s->kv_usage = kv_pool_usage(en->pool);
    s->speculation.max_tokens = en->o.speculation.n_tokens;
    s->kv_touched_bytes = (uint64_t)pool.n_touched * en->ops.block_bytes;
    s->kv_fragmentation = fragmentation(&en->sched);
    s->max_admissible_tokens = max_admissible(en);
    s->prefix_queries = pool.queries_tokens;
    s->prefix_hits = pool.hits_tokens;
    s->evictions = pool.evictions;
    s->preemptions = en->sched.n_preemptions;
    s->last_step_ns = clock_now_ns();
    pthread_mutex_lock(&en->lock);
    en->shared_stats = *s;
    pthread_mutex_unlock(&en->lock);

    struct engine_event *ev = en->outbox_head;
    en->outbox_head = en->outbox_tail = NULL;
    while (ev) {
        struct engine_event *next = (struct engine_event *)ev->node.next;
        mq_push(box_of(ev)->reply, &ev->node);
        ev = next;
    }
    while (en->dead) {
        struct group *g = en->dead;
        en->dead = g->next;
        step_group_free(g);
    }
}

/* ---- ends ---- */

static void end_group(struct engine *en, struct group *g)
{
    const struct stats_bounds *b = &en->bounds;
    struct engine_stats *s = &en->stats;
    const struct sampling_params *p = &g->req->params;
    stats_observe(&s->max_generation_len, b->tokens.bound, b->tokens.n, g->max_generation_len);
    stats_observe(&s->params_max_tokens, b->tokens.bound, b->tokens.n, p->max_tokens);
    stats_observe(&s->params_n, b->samples.bound, b->samples.n, p->n);
    if (g->prev) {
        g->prev->next = g->next;
    } else {
        en->groups = g->next;
    }
    if (g->next) {
        g->next->prev = g->prev;
    }
    g->next = en->dead;
    en->dead = g;
}

/* The last event of q, with the token it may carry. */
void step_end_with(struct engine *en, struct seq *q, enum finish_reason reason,
                   struct engine_event *ev, const char *error)
{
    struct group *g = q->group;
    sched_remove(&en->sched, q);
    int is_fork = q != &g->seqs[0];
    if (q->scheduled_ns == 0) {
        en->stats.prompt_tokens +=
            (uint64_t)q->n_prompt; /* never ran: counted here, so that sums agree */
    }
    struct stats_sample d = {
        .n_prompt = q->n_prompt,
        .n_cached = is_fork && q->scheduled_ns ? q->n_prompt : q->n_cached_tokens,
        .n_out = q->n_out,
        .arrival_ns = g->req->arrival_ns ? g->req->arrival_ns : g->queued_ns,
        .queued_ns = g->queued_ns,
        .scheduled_ns = q->scheduled_ns,
        .first_token_ns = q->first_token_ns,
        .last_token_ns = q->last_token_ns,
        .finish_ns = clock_now_ns(),
    };
    stats_finish_sample(&en->stats, &en->bounds, &d);
    en->stats.finished[reason]++;
    if (q->n_out > g->max_generation_len) {
        g->max_generation_len = q->n_out;
    }
    ev->finish = reason;
    snprintf(ev->error, sizeof ev->error, "%s", error ? error : "");
    send(en, q, ev);
    if (--g->n_live == 0) {
        end_group(en, g);
    }
}

void step_end(struct engine *en, struct seq *q, enum finish_reason reason, const char *error)
{
    struct group *g = q->group;
    if (q == &g->seqs[0] && q->n_out == 0 && reason != FINISH_ERROR) {
        /* it carries the prefill for the others too: another sample takes it over, and ends in its
         * place */
        for (int i = 1; i < g->n_seqs; i++) {
            struct seq *u = &g->seqs[i];
            if (u->state == SEQ_UNBORN) {
                int sample = q->sample;
                uint64_t seed = q->seed;
                q->sample = u->sample;
                q->seed = u->seed;
                u->sample = sample;
                u->seed = seed;
                q = u;
                break;
            }
        }
    }
    if (g->beams) {
        en->stats.generation_tokens += (uint64_t)q->n_out; /* else counted one by one */
    }
    struct engine_event *ev = q->last_event;
    q->last_event = NULL;
    step_end_with(en, q, reason, ev, error);
}

/* ---- schedule ---- */

/* What may follow each running sequence, behind its outputs: not more than it may still produce
 * beside the token that the step yields in any case. */
static void propose(struct engine *en)
{
    const struct speculation *o = &en->o.speculation;
    struct sched *s = &en->sched;
    int pays = o->n_tokens > 0 && s->n_running <= o->max_seqs;
    for (int i = 0; i < s->n_running && o->n_tokens > 0; i++) {
        struct seq *q = s->running[i];
        int k = q->max_out - q->n_out - 1;
        int is_decoding = q->n_computed == seq_n_tokens(q) - 1 && q->n_out > 0 && !q->group->beams;
        q->n_draft =
            !pays || !is_decoding || k < 1
                ? 0
                : ngram_propose(q->prompt, q->n_prompt, q->out, q->n_out, o->ngram_min,
                                o->ngram_max, q->out + q->n_out, k < o->n_tokens ? k : o->n_tokens);
    }
}

static const struct sched_plan *schedule(struct engine *en)
{
    propose(en);
    const struct sched_plan *plan = sched_step(&en->sched);
    uint64_t now = clock_now_ns();
    for (int i = 0; i < plan->n_items; i++) {
        struct seq *q = plan->items[i].seq;
        atomic_int *progress = q->group->req->progress;
        if (progress && q->n_out == 0 && q == &q->group->seqs[0]) {
            atomic_store_explicit(progress, plan->items[i].first, memory_order_relaxed);
        }
        if (q->scheduled_ns == 0) {
            q->scheduled_ns = now;
            en->stats.prompt_tokens += (uint64_t)q->n_prompt;
            en->stats.prompt_tokens_cached += (uint64_t)q->n_cached_tokens;
        }
    }
    return plan;
}

/* ---- forward ---- */

/* Masks of the rows that will be sampled, on another thread while this one computes. */
static void want_masks(struct engine *en, const struct sched_plan *plan)
{
    for (int i = 0; i < plan->n_items; i++) {
        const struct seq *q = plan->items[i].seq;
        struct grammar *g = q->group->req->grammar;
        if (g != NULL && sched_item_completes(&plan->items[i])) {
            masks_want(en->masks, g, q->grammar_config);
        }
    }
    masks_go(en->masks);
}

static int forward(struct engine *en, const struct sched_plan *plan, const float **logits,
                   struct err *e)
{
    for (int i = 0; i < plan->n_copies; i++) {
        en->ops.copy_block(en->ctx, plan->copies[i].dst, plan->copies[i].src);
    }
    en->in_step = plan;
    return en->ops.run(en->ctx, batch_fill(&en->batch, plan), logits, e);
}

static void fail(struct engine *en, const struct sched_plan *plan, const struct err *e)
{
    log_error(en->o.log, "A step of %d sequences failed: %s", plan->n_items, e->text);
    for (int i = 0; i < plan->n_items; i++) {
        struct group *g = plan->items[i].seq->group;
        int is_prefill = plan->items[i].seq == &g->seqs[0];
        if (plan->items[i].seq->state == SEQ_FINISHED) {
            continue; /* with a sibling beam */
        }
        for (int k = is_prefill || g->beams ? g->n_seqs - 1 : 0; k >= 0; k--) {
            if (g->seqs[k].state == SEQ_UNBORN || (g->beams && g->seqs[k].state != SEQ_FINISHED)) {
                step_end(en, &g->seqs[k], FINISH_ERROR, e->text);
            }
        }
        if (!g->beams) {
            step_end(en, plan->items[i].seq, FINISH_ERROR, e->text);
        }
    }
}

/* ---- sample ---- */

#define GRAMMAR_WAITS (-2) /* think_end has not come yet */

int step_grammar_start(const struct engine_request *r)
{
    return r->think_end >= 0 ? GRAMMAR_WAITS : r->grammar ? grammar_start(r->grammar) : 0;
}

static int is_stop_token(const struct engine *en, const struct seq *q, int32_t id)
{
    const struct sampling_params *p = &q->group->req->params;
    int found = id == en->o.eos_id;
    for (int i = 0; i < p->n_stop_token_ids && !found; i++) {
        found = p->stop_token_ids[i] == id;
    }
    return found;
}

/* Where a sample stands, or would stand if the first tokens of its draft came. */
struct cursor {
    int n_out, grammar_config;
};

/* While the output is reasoning: its end when the budget is used up, else anything but, where a
 * grammar waits to be fulfilled, the end of the output. */
static const float *constrain_thinking(const struct engine *en, const struct engine_request *r,
                                       int n_out, const float *logits, struct sampler *s)
{
    uint32_t *mask = sampler_mask_words(s);
    size_t mask_bytes = (size_t)(en->ops.vocab_size + 31) / 32 * sizeof *mask;
    if (r->think_budget >= 0 && n_out >= r->think_budget) {
        memset(mask, 0, mask_bytes);
        mask[r->think_end / 32] |= 1u << (r->think_end % 32);
        return sampler_masked(s, logits, mask);
    }
    if (r->grammar == NULL) {
        return logits;
    }
    memset(mask, 0xff, mask_bytes);
    for (int i = -1; i < r->params.n_stop_token_ids; i++) {
        int32_t id = i < 0 ? en->o.eos_id : r->params.stop_token_ids[i];
        if (id >= 0 && id < en->ops.vocab_size) {
            mask[id / 32] &= ~(1u << (id % 32));
        }
    }
    return sampler_masked(s, logits, mask);
}

/* What the request's grammar leaves of a row; stop tokens only where the output is complete. NULL:
 * nothing at all. */
static const float *constrain(const struct engine *en, const struct engine_request *r,
                              const struct cursor *at, const float *logits, struct sampler *s,
                              int *must_stop)
{
    uint32_t *mask = sampler_mask_words(s);
    *must_stop = 0;
    if (at->grammar_config == GRAMMAR_WAITS) {
        return constrain_thinking(en, r, at->n_out, logits, s);
    }
    if (r->grammar == NULL) {
        return logits;
    }
    int n = grammar_mask(r->grammar, at->grammar_config, mask);
    *must_stop = n <= 0;
    if (grammar_can_stop(r->grammar, at->grammar_config)) {
        for (int i = -1; i < r->params.n_stop_token_ids; i++) {
            int32_t id = i < 0 ? en->o.eos_id : r->params.stop_token_ids[i];
            if (id >= 0 && id < en->ops.vocab_size &&
                (*must_stop || at->n_out >= r->params.min_tokens)) {
                mask[id / 32] |= 1u << (id % 32);
                n = n > 0 ? n + 1 : 1;
            }
        }
    }
    return n > 0 ? sampler_masked(s, logits, mask) : NULL;
}

/* The position in the request's grammar behind a token; a stop token leaves it where it is. */
static int follow_grammar(const struct engine *en, const struct seq *q, int config, int32_t id)
{
    const struct engine_request *r = q->group->req;
    if (config == GRAMMAR_WAITS) {
        return id != r->think_end ? GRAMMAR_WAITS : r->grammar ? grammar_start(r->grammar) : 0;
    }
    return r->grammar != NULL && !is_stop_token(en, q, id)
               ? grammar_step_token(r->grammar, config, id)
               : config;
}

/* Whether the last of n_out tokens are one pattern, several times over. */
static int repeats(const struct seq *q, int n_out, const struct repetition_rule *r)
{
    for (int k = r->min_pattern > 0 ? r->min_pattern : 1; k <= r->max_pattern; k++) {
        int64_t n = (int64_t)k * r->min_count;
        if (n > n_out) {
            return 0;
        }
        const int32_t *tail = q->out + n_out - n;
        if (memcmp(tail, tail + k, (size_t)(n - k) * sizeof *tail) == 0) {
            return 1; /* each token equals the one a pattern later */
        }
    }
    return 0;
}

/* What the last of n_out tokens, `id`, ends. */
static enum finish_reason check_stop(const struct engine *en, const struct seq *q, int n_out,
                                     int32_t id, int32_t *stop_id)
{
    const struct sampling_params *p = &q->group->req->params;
    if (n_out >= p->min_tokens) {
        if (id == en->o.eos_id && !p->ignore_eos) {
            return FINISH_STOP;
        }
        for (int i = 0; i < p->n_stop_token_ids; i++) {
            if (p->stop_token_ids[i] == id) {
                *stop_id = id;
                return FINISH_STOP;
            }
        }
    }
    if (n_out >= q->max_out) { /* max_out also ends at max_model_len */
        return FINISH_LENGTH;
    }
    return n_out >= p->min_tokens && repeats(q, n_out, &p->repetition) ? FINISH_REPETITION
                                                                       : FINISH_NONE;
}

static void take_logprobs(const struct sample_job *job, struct sampler *s, const float *logits,
                          struct token_output *out, struct token_logprob *top)
{
    const struct sampling_params *p = &job->seq->group->req->params;
    if (job->n_top < 0) {
        return;
    }
    out->top = top;
    out->n_top = job->n_rows > 0 && p->n_logprob_token_ids > 0
                     ? sampler_logprobs_of(s, logits, out->id, p->logprob_token_ids,
                                           p->n_logprob_token_ids, top)
                     : sampler_logprobs(s, logits, out->id, job->n_top, top);
}

/* The token of one row. */
static void draw(const struct engine *en, const struct sample_job *job, struct sampler *s,
                 const struct cursor *at, int i)
{
    const struct seq *q = job->seq;
    const struct engine_request *r = q->group->req;
    int must_stop;
    const float *raw = job->logits + (size_t)i * en->ops.logits_stride;
    const float *logits = constrain(en, r, at, raw, s, &must_stop);
    if (logits == NULL) { /* no token may follow, not even an end: accept() ends the sample */
        job->out[i].id = -1;
        return;
    }
    struct sampler_row row = {
        .logits = logits,
        .params = &r->params,
        .prompt = q->prompt,
        .out = q->out, /* behind n_out of the sequence: tokens of the draft, drawn just before */
        .n_prompt = q->n_prompt,
        .n_out = at->n_out,
        .eos_id = en->o.eos_id,
        .seed = q->seed,
        .must_stop = must_stop,
        .raw = raw,
    };
    job->out[i].id = sampler_draw(s, &row);
    if (job->out[i].id < 0) {
        return; /* accept() ends the sample */
    }
    take_logprobs(job, s, logits, &job->out[i], job->top + (size_t)i * (size_t)(job->n_top + 1));
}

static void run_job(const struct engine *en, const struct sample_job *job, struct sampler *s)
{
    const struct seq *q = job->seq;
    struct cursor at = {q->n_out, q->grammar_config};
    int32_t stop_id;
    if (job->n_rows == 0) {
        take_logprobs(job, s, job->logits, job->out, job->top);
        return;
    }
    for (int i = 0;; i++) {
        draw(en, job, s, &at, i);
        int32_t id = job->out[i].id;
        *job->n_drawn = i + 1;
        if (id < 0 || i + 1 == job->n_rows || id != q->out[at.n_out] ||
            check_stop(en, q, at.n_out + 1, id, &stop_id) != FINISH_NONE) {
            return;
        }
        at.grammar_config = follow_grammar(en, q, at.grammar_config, id);
        at.n_out++;
    }
}

static void sample_task(void *arg, int worker, int n_workers)
{
    (void)n_workers;
    struct engine *en = arg;
    for (;;) {
        int i = atomic_fetch_add(&en->next_job, 1);
        if (i >= en->n_jobs) {
            return;
        }
        run_job(en, &en->jobs[i], en->samplers[worker]);
    }
}

static void run_jobs(struct engine *en)
{
    atomic_store(&en->next_job, 0);
    if (en->ops.pool && en->n_jobs > 1) {
        cpu_pool_run(en->ops.pool, sample_task, en);
    } else {
        sample_task(en, 0, 1);
    }
    en->n_jobs = 0;
}

static void add_job(struct engine *en, const struct sample_job *job)
{
    if (en->n_jobs == en->max_jobs) {
        run_jobs(en);
    }
    en->jobs[en->n_jobs++] = *job;
}

static void add_draw(struct engine *en, struct seq *q, const float *logits, int n_draft)
{
    int n_top = sampling_params_n_top(&q->group->req->params), n_rows = 1 + n_draft;
    q->event = step_event_new(n_rows, n_top);
    if (!q->event) { /* the token goes with the last event, and the sample ends: accept() */
        q->event = q->last_event;
        q->last_event = NULL;
        n_rows = 1;
    }
    struct event_box *b = box_of(q->event);
    q->event->tokens = b->tokens;
    add_job(en,
            &(struct sample_job){logits, q, b->tokens, b->top, n_top, n_rows, &q->event->n_tokens});
}

static int open_prompt_event(struct group *g)
{
    int n = g->req->n_prompt;
    g->prompt_event = step_event_new(0, -1);
    if (g->prompt_event) {
        g->prompt_event->kind = EVENT_PROMPT_LOGPROBS;
        g->prompt_tokens =
            arena_alloc(&g->prompt_event->arena, (size_t)n * sizeof *g->prompt_tokens);
    }
    if (!g->prompt_tokens) {
        return ERR_NOMEM;
    }
    for (int i = 0; i < n; i++) {
        g->prompt_tokens[i].id = g->req->prompt[i];
    }
    g->prompt_event->tokens = g->prompt_tokens;
    g->prompt_event->n_tokens = n;
    return 0;
}

/* Log-probabilities of prompt tokens from + 1 .. to, which rows from .. to - 1 predict. */
static void add_prompt_rows(struct engine *en, struct seq *q, int from, int to, const float *logits)
{
    struct group *g = q->group;
    int n_top = g->req->params.n_prompt_logprobs;
    if (!g->prompt_tokens && !g->prompt_failed) {
        g->prompt_failed = open_prompt_event(g) < 0;
    }
    for (int p = from; p < to && !g->prompt_failed; p++, logits += en->ops.logits_stride) {
        struct token_logprob *top = arena_alloc(&g->prompt_event->arena,
                                                (size_t)(n_top + 1) * sizeof(struct token_logprob));
        if (!top) {
            g->prompt_failed = 1;
            return;
        }
        add_job(en, &(struct sample_job){logits, q, &g->prompt_tokens[p + 1], top, n_top, 0, NULL});
    }
}

static void sample(struct engine *en, const struct sched_plan *plan, const float *logits)
{
    for (int i = 0; i < plan->n_items; i++) {
        const struct sched_item *it = &plan->items[i];
        struct seq *q = it->seq;
        struct group *g = q->group;
        int from, to;
        sched_item_prompt_logits(it, &from, &to);
        if (to > from) {
            add_prompt_rows(en, q, from, to, logits);
            logits += (size_t)(to - from) * en->ops.logits_stride;
        }
        if (!sched_item_completes(it)) {
            continue;
        }
        if (g->beams) {
            struct sample_job job = beam_job(q, logits);
            add_job(en, &job);
            logits += en->ops.logits_stride;
            continue;
        }
        add_draw(en, q, logits, it->n_draft);
        for (int k = 1; q == &g->seqs[0] && k < g->n_seqs; k++) {
            if (g->seqs[k].state == SEQ_UNBORN) {
                add_draw(en, &g->seqs[k], logits, 0);
            }
        }
        logits += (size_t)(1 + it->n_draft) * en->ops.logits_stride;
    }
    run_jobs(en);
}

/* ---- publish ---- */

static void send_prompt_logprobs(struct engine *en, struct seq *q)
{
    struct group *g = q->group;
    if (g->req->params.n_prompt_logprobs < 0 || q != &g->seqs[0] || q->n_out > 0) {
        return;
    }
    if (!g->prompt_tokens && !g->prompt_failed) {
        g->prompt_failed =
            open_prompt_event(g) < 0; /* a prompt of one token: no row had anything to predict */
    }
    if (!g->prompt_failed) {
        send(en, q, g->prompt_event);
        g->prompt_event = NULL;
    }
}

void step_born(struct engine *en, struct seq *q, const struct seq *parent, uint64_t now)
{
    if (q->scheduled_ns != 0) {
        return; /* a beam's place, used again */
    }
    q->scheduled_ns = parent->scheduled_ns;
    q->n_cached_tokens = parent->n_cached_tokens;
    q->first_token_ns = q->group->beams ? now : 0;
    en->stats.prompt_tokens += (uint64_t)q->n_prompt;
    en->stats.prompt_tokens_cached += (uint64_t)q->n_prompt;
}

void step_first_token(struct engine *en, struct seq *q, uint64_t now)
{
    const struct engine_request *r = q->group->req;
    uint64_t since = r->arrival_ns ? r->arrival_ns : q->group->queued_ns;
    q->first_token_ns = now;
    stats_observe(&en->stats.ttft, en->bounds.ttft.bound, en->bounds.ttft.n,
                  (double)(now - since) * 1e-9);
}

/* Counts what a step's check of a draft found. */
static void count_draft(struct engine *en, int n_draft, int n_accepted)
{
    en->stats.speculation.drafts += n_draft > 0;
    en->stats.speculation.tokens += (uint64_t)n_draft;
    en->stats.speculation.accepted += (uint64_t)n_accepted;
    for (int i = 0; i < n_accepted; i++) {
        en->stats.speculation.accepted_at[i]++;
    }
}

/* Adds the tokens that were drawn to the sequence. *impossible: 0, or below it what was drawn when
 * none may follow them. */
static enum finish_reason take_tokens(struct engine *en, struct seq *q, struct engine_event *ev,
                                      int *impossible)
{
    enum finish_reason reason = FINISH_NONE;
    const int32_t last = ev->tokens[ev->n_tokens - 1].id;
    *impossible = last < 0 ? last : 0;
    ev->n_tokens -= last < 0;
    for (int i = 0; i < ev->n_tokens; i++) {
        int32_t id = ev->tokens[i].id;
        q->grammar_config = follow_grammar(en, q, q->grammar_config, id);
        q->out[q->n_out++] = id;
        reason = check_stop(en, q, q->n_out, id, &ev->stop_token_id);
    }
    en->stats.generation_tokens += (uint64_t)ev->n_tokens;
    return reason;
}

/* Takes the tokens that were drawn for q. `parent` is what an unborn q starts from. Returns the
 * tokens that count for the statistics of this step. */
static int accept(struct engine *en, struct seq *q, const struct seq *parent, uint64_t now)
{
    struct engine_event *ev = q->event;
    int is_first = q->n_out == 0, impossible;
    q->event = NULL;
    enum finish_reason reason = take_tokens(en, q, ev, &impossible);
    int n_counted = ev->n_tokens;
    if (n_counted > 0) {
        if (q->state == SEQ_UNBORN) {
            step_born(en, q, parent, now);
        }
        if (is_first) {
            n_counted += q->n_prompt;
            step_first_token(en, q, now);
        } else {
            stats_observe(&en->stats.itl, en->bounds.itl.bound, en->bounds.itl.n,
                          (double)(now - q->last_token_ns) * 1e-9);
        }
        q->last_token_ns = now;
    }
    if (impossible == SAMPLER_NO_NUMBERS) {
        step_end_with(en, q, FINISH_ERROR, ev, STEP_NO_NUMBERS);
    } else if (impossible) {
        struct grammar *g = q->group->req->grammar;
        int complete = grammar_can_stop(g, q->grammar_config);
        step_end_with(en, q, complete ? FINISH_STOP : FINISH_ERROR, ev,
                      complete ? NULL
                      : grammar_is_ambiguous(g)
                          ? "the structured output is too ambiguous: it could "
                            "go on in too many ways"
                          : "no token can continue the structured output");
    } else if (!q->last_event || q->group->prompt_failed) {
        step_end_with(en, q, FINISH_ERROR, ev, "out of memory");
    } else if (reason != FINISH_NONE) {
        step_end_with(en, q, reason, ev, NULL);
    } else {
        if (q->state == SEQ_UNBORN) {
            sched_fork(&en->sched, parent, q);
        }
        send(en, q, ev);
    }
    return n_counted;
}

static void publish(struct engine *en, const struct sched_plan *plan)
{
    uint64_t now = clock_now_ns();
    int n_counted = 0;
    for (int i = 0; i < plan->n_items; i++) {
        struct seq *q = plan->items[i].seq;
        struct group *g = q->group;
        const struct sched_item *it = &plan->items[i];
        int n_accepted = it->n_draft > 0 ? q->event->n_tokens - 1 : 0;
        count_draft(en, it->n_draft, n_accepted);
        sched_commit(&en->sched, it, it->n_draft - n_accepted);
        if (g->beams && sched_item_completes(it)) {
            send_prompt_logprobs(en, q);
            n_counted += beam_report(en, q, now);
            continue;
        }
        if (!q->event) {
            continue;
        }
        send_prompt_logprobs(en, q);
        for (int k = 1; q == &g->seqs[0] && k < g->n_seqs; k++) {
            if (g->seqs[k].state == SEQ_UNBORN && g->seqs[k].event) {
                n_counted += accept(en, &g->seqs[k], q, now);
            }
        }
        n_counted += accept(en, q, NULL, now); /* last: its blocks are what the others start from */
    }
    if (n_counted > 0) {
        stats_observe(&en->stats.step_tokens, en->bounds.step.bound, en->bounds.step.n, n_counted);
    }
}

int step_run(struct engine *en)
{
    uint64_t start = clock_now_ns();
    const struct sched_plan *plan = schedule(en);
    if (plan->n_items == 0) {
        return 0;
    }
    struct err e = {0};
    const float *logits = NULL;
    want_masks(en, plan);
    int rc = forward(en, plan, &logits, &e);
    masks_end(en->masks);
    if (rc == ERR_CANCELED) {
        return 1; /* the aborts that made it pointless are taken next */
    }
    if (rc < 0) {
        fail(en, plan, &e);
    } else {
        sample(en, plan, logits);
        publish(en, plan);
    }
    en->stats.steps++;
    stats_observe(&en->stats.step_seconds, en->bounds.itl.bound, en->bounds.itl.n,
                  (double)(clock_now_ns() - start) * 1e-9);
    step_flush(en);
    return 1;
}
