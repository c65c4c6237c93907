/* SPDX-License-Identifier: Apache-2.0 */
/* Beam search, as vLLM defines it: every beam proposes its 2n best tokens; an end token among them
 * closes a hypothesis, the n best of the other continuations are the beams of the next round. After
 * max_tokens rounds the beams count as hypotheses too, and the n best by
 *
 *     sum of log-probabilities / (prompt + output tokens, an end token not counted) ^
 * length_penalty
 *
 * are the answer, best first. The log-probabilities are the raw ones. Equal values keep the order
 * beam, then rank; so the result depends on the model and the prompt alone. One thing is done that
 * vLLM does not: the search ends as soon as no beam can reach the n hypotheses that are closed; the
 * answer is the same.
 *
 * Each beam is a sequence of the scheduler. The beams of a request meet after each round: one whose
 * row was computed is held (it keeps its blocks and has nothing to run) until the last one is
 * there. A beam with several continuations is forked, its blocks are shared until somebody writes;
 * one without any gives its blocks back and its place to a fork. A held beam may lose its blocks to
 * others (it is parked then): what it found is kept here, and its continuations are computed again.
 * So a request makes progress even when the cache has room for a single beam.
 *
 * A beam's tokens are a chain of nodes from the last one backwards: continuations share their
 * past. Owner: the engine thread. */
#include "engine/beam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct node {
    const struct node *prev;
    int32_t id;
    int n_top;
    const struct token_logprob *top; /* as in token_output */
};

struct hypothesis {
    const struct node *tail;
    int n_tokens;
    double score;
    enum finish_reason reason;
    int32_t stop_token_id;
};

struct candidate {
    int beam, at; /* whose, and where in its row's list */
    double sum;
    const struct node *node;
    int slot; /* the sequence that goes on with it */
};

struct beams {
    int width, n_candidates;    /* entries of a row's list besides the first, which isn't used */
    struct arena arena;         /* nodes */
    struct token_output *rows;  /* [width] */
    struct token_logprob *tops; /* [width, 1 + n_candidates] */
    double *sum;                /* [width] */
    const struct node **tail;   /* [width] */
    struct candidate *best;     /* [width], best first */
    int n_best;
    struct hypothesis *closed; /* [width], best first */
    int n_closed;
};

/* ---- life ---- */

int beam_open(struct group *g, int vocab_size)
{
    const struct sampling_params *p = &g->req->params;
    struct arena *a = &g->req->arena;
    size_t n = (size_t)p->n;
    struct beams *b = arena_alloc(a, sizeof *b);
    if (!b) {
        return ERR_NOMEM;
    }
    /* the end tokens, which don't go on, must leave n that do */
    int want = 2 * p->n + p->n_stop_token_ids + 1;
    want = p->n_logprobs > want ? p->n_logprobs : want;
    b->width = p->n;
    b->n_candidates = want < vocab_size ? want : vocab_size;
    b->rows = arena_alloc(a, n * sizeof *b->rows);
    b->tops = arena_alloc(a, n * (size_t)(1 + b->n_candidates) * sizeof *b->tops);
    b->sum = arena_alloc(a, n * sizeof *b->sum);
    b->tail = arena_alloc(a, n * sizeof *b->tail);
    b->best = arena_alloc(a, n * sizeof *b->best);
    b->closed = arena_alloc(a, n * sizeof *b->closed);
    if (!b->rows || !b->tops || !b->sum || !b->tail || !b->best || !b->closed) {
        return ERR_NOMEM;
    }
    arena_init(&b->arena, 0);
    g->beams = b;
    return 0;
}

void beam_close(struct group *g)
{
    if (g->beams) {
        arena_fini(&g->beams->arena);
        g->beams = NULL;
    }
}

struct sample_job beam_job(const struct seq *q, const float *logits)
{
    struct beams *b = q->group->beams;
    size_t i = (size_t)q->sample;
    b->rows[i].id = 0; /* any: the first entry isn't used */
    return (struct sample_job){
        logits,          q, &b->rows[i], b->tops + i * (size_t)(1 + b->n_candidates),
        b->n_candidates, 0, NULL};
}

/* ---- one round ---- */

static double score_of(const struct group *g, double sum, int n_tokens)
{
    return sum / pow((double)(g->req->n_prompt + n_tokens), g->req->params.length_penalty);
}

static int is_end(const struct engine *en, const struct sampling_params *p, int32_t id,
                  int32_t *stop_token_id)
{
    *stop_token_id = -1;
    if (id == en->o.eos_id && !p->ignore_eos) {
        return 1;
    }
    for (int i = 0; i < p->n_stop_token_ids; i++) {
        if (p->stop_token_ids[i] == id) {
            *stop_token_id = id;
            return 1;
        }
    }
    return 0;
}

/* The token at place `at` of a beam's list, behind the beam's tokens. NULL: out of memory. */
static const struct node *make_node(struct group *g, int beam, int at)
{
    struct beams *b = g->beams;
    const struct token_logprob *list = b->rows[beam].top;
    int k = g->req->params.n_logprobs;
    struct node *n = arena_alloc(&b->arena, sizeof *n);
    if (!n) {
        return NULL;
    }
    n->prev = b->tail[beam];
    n->id = list[at].id;
    if (k >= 0) {
        k = k < b->rows[beam].n_top - 1 ? k : b->rows[beam].n_top - 1;
        struct token_logprob *top = arena_alloc(&b->arena, (size_t)(1 + k) * sizeof *top);
        if (!top) {
            return NULL;
        }
        top[0] = list[at];
        memcpy(top + 1, list + 1, (size_t)k * sizeof *top);
        n->top = top;
        n->n_top = 1 + k;
    }
    return n;
}

/* Puts a hypothesis among the best n. */
static int close_hypothesis(struct group *g, const struct candidate *c, int n_tokens, double score,
                            enum finish_reason reason, int32_t stop_token_id)
{
    struct beams *b = g->beams;
    int at = b->n_closed;
    if (at == b->width && score <= b->closed[at - 1].score) {
        return 0;
    }
    const struct node *tail = c->node ? c->node : make_node(g, c->beam, c->at);
    if (!tail) {
        return ERR_NOMEM;
    }
    if (at == b->width) {
        at--;
    } else {
        b->n_closed++;
    }
    while (at > 0 && b->closed[at - 1].score < score) {
        b->closed[at] = b->closed[at - 1];
        at--;
    }
    b->closed[at] = (struct hypothesis){tail, n_tokens, score, reason, stop_token_id};
    return 0;
}

static void offer(struct beams *b, const struct candidate *c)
{
    int at = b->n_best;
    if (at == b->width) {
        if (c->sum <= b->best[at - 1].sum) {
            return;
        }
        at--;
    } else {
        b->n_best++;
    }
    while (at > 0 && b->best[at - 1].sum < c->sum) {
        b->best[at] = b->best[at - 1];
        at--;
    }
    b->best[at] = *c;
}

/* Looks at what all beams propose: closes hypotheses, fills `best`. */
static int choose(struct engine *en, struct group *g, int n_tokens)
{
    struct beams *b = g->beams;
    b->n_best = 0;
    for (int i = 0; i < g->n_seqs; i++) {
        if (!g->seqs[i].held) {
            continue;
        }
        for (int k = 1; k < b->rows[i].n_top; k++) {
            const struct token_logprob *t = &b->rows[i].top[k];
            struct candidate c = {.beam = i, .at = k, .sum = b->sum[i] + (double)t->logprob};
            int32_t stop_token_id;
            if (!is_end(en, &g->req->params, t->id, &stop_token_id)) {
                offer(b, &c);
            } else if (k <= 2 * b->width &&
                       close_hypothesis(g, &c, n_tokens + 1, score_of(g, c.sum, n_tokens),
                                        FINISH_STOP, stop_token_id) < 0) {
                return ERR_NOMEM;
            }
        }
    }
    for (int i = 0; i < b->n_best; i++) {
        b->best[i].node = make_node(g, b->best[i].beam, b->best[i].at);
        if (!b->best[i].node) {
            return ERR_NOMEM;
        }
    }
    return 0;
}

/* Whether no beam can push a closed hypothesis out any more: sums only fall. */
static int is_decided(const struct group *g, int n_tokens, int max_out)
{
    const struct beams *b = g->beams;
    if (b->n_best == 0) {
        return 1;
    }
    int length = g->req->params.length_penalty >= 0.0 ? max_out : n_tokens;
    return b->n_closed == b->width &&
           b->closed[b->width - 1].score >= score_of(g, b->best[0].sum, length);
}

/* ---- the sequences of the next round ---- */

static void go_on(struct engine *en, struct group *g, uint64_t now)
{
    struct beams *b = g->beams;
    int n_free = 0;
    for (int i = 0; i < b->n_best; i++) { /* the best continuation of a beam stays in its place */
        struct candidate *c = &b->best[i];
        struct seq *q = &g->seqs[c->beam];
        c->slot = q->held == 1 ? c->beam : -1;
        q->held = 2;
    }
    for (int i = 0; i < g->n_seqs; i++) {
        struct seq *q = &g->seqs[i];
        if (q->held == 1) {
            sched_release(&en->sched, q);
        }
    }
    for (int i = 0; i < b->n_best; i++) {
        struct candidate *c = &b->best[i];
        if (c->slot >= 0) {
            continue;
        }
        while (g->seqs[n_free].state != SEQ_UNBORN) {
            n_free++; /* there are as many places as beams */
        }
        const struct seq *parent = &g->seqs[c->beam];
        struct seq *q = &g->seqs[n_free];
        memcpy(q->out, parent->out, (size_t)parent->n_out * sizeof *q->out);
        q->n_out = parent->n_out;
        step_born(en, q, parent, now);
        sched_fork(&en->sched, parent, q);
        c->slot = n_free;
    }
    for (int i = 0; i < b->n_best; i++) {
        const struct candidate *c = &b->best[i];
        struct seq *q = &g->seqs[c->slot];
        q->out[q->n_out++] = c->node->id;
        q->last_token_ns = now;
        b->sum[c->slot] = c->sum;
        b->tail[c->slot] = c->node;
        q->held = 0;
        if (q->state == SEQ_PARKED) {
            sched_resume(&en->sched, q);
        }
    }
}

/* ---- the end ---- */

static struct engine_event *make_event(const struct hypothesis *h)
{
    struct engine_event *ev = step_event_new(0, -1);
    struct token_output *tokens =
        ev ? arena_alloc(&ev->arena, (size_t)h->n_tokens * sizeof *tokens) : NULL;
    if (!tokens) {
        engine_event_free(ev);
        return NULL;
    }
    const struct node *n = h->tail;
    for (int i = h->n_tokens - 1; i >= 0; i--, n = n->prev) {
        tokens[i] = (struct token_output){n->id, n->n_top, NULL};
        if (n->n_top == 0) {
            continue;
        }
        tokens[i].top = arena_memdup(&ev->arena, n->top, (size_t)n->n_top * sizeof *n->top);
        if (!tokens[i].top) {
            engine_event_free(ev);
            return NULL;
        }
    }
    ev->tokens = tokens;
    ev->n_tokens = h->n_tokens;
    ev->stop_token_id = h->stop_token_id;
    return ev;
}

static void finish(struct engine *en, struct group *g, uint64_t now)
{
    struct beams *b = g->beams;
    for (int i = 0; i < g->n_seqs; i++) {
        struct seq *q = &g->seqs[i];
        const struct hypothesis *h = i < b->n_closed ? &b->closed[i] : NULL;
        struct engine_event *ev = h ? make_event(h) : NULL;
        if (q->state == SEQ_UNBORN) {
            step_born(en, q, &g->seqs[0], now);
        }
        q->n_out = ev ? ev->n_tokens : 0;
        q->last_token_ns = now;
        en->stats.generation_tokens += (uint64_t)q->n_out;
        if (ev) {
            step_end_with(en, q, h->reason, ev, NULL);
        } else {
            step_end(en, q, FINISH_ERROR, h ? "out of memory" : "fewer hypotheses than beams");
        }
    }
}

static void fail(struct engine *en, struct group *g, const char *why)
{
    for (int i = g->n_seqs - 1; i >= 0; i--) {
        step_end(en, &g->seqs[i], FINISH_ERROR, why);
    }
}

int beam_report(struct engine *en, struct seq *q, uint64_t now)
{
    struct group *g = q->group;
    struct beams *b = g->beams;
    int n_live = 0, n_tokens = q->n_out, n_counted = 0, numbers = 1;
    q->held = 1;
    for (int i = 0; i < g->n_seqs; i++) {
        if (g->seqs[i].state == SEQ_UNBORN) {
            continue;
        }
        n_live++;
        if (!g->seqs[i].held) {
            return 0; /* the others are still on the way */
        }
        /* behind the entry that isn't used, the best candidate */
        numbers &=
            isfinite(
                b->tops[(size_t)g->seqs[i].sample * (size_t)(1 + b->n_candidates) + 1].logprob) !=
            0;
    }
    if (!numbers) {
        fail(en, g, STEP_NO_NUMBERS);
        return 0;
    }
    if (n_tokens == 0) {
        step_first_token(en, q, now);
        n_counted = q->n_prompt;
    }
    if (choose(en, g, n_tokens) < 0) {
        fail(en, g, "out of memory");
        return 0;
    }
    int is_last = n_tokens + 1 >= q->max_out;
    for (int i = 0; is_last && i < b->n_best; i++) {
        if (close_hypothesis(g, &b->best[i], n_tokens + 1,
                             score_of(g, b->best[i].sum, n_tokens + 1), FINISH_LENGTH, -1) < 0) {
            fail(en, g, "out of memory");
            return 0;
        }
    }
    if (is_last || is_decided(g, n_tokens + 1, q->max_out)) {
        finish(en, g, now);
    } else {
        go_on(en, g, now);
    }
    return n_counted + n_live;
}
