/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a model that runs in this process. A few requests are kept in flight, so that the engine
 * has full batches; which ones share a batch changes nothing in the numbers.
 *
 * When every choice of a question is one more token after the same context (letters are), one
 * request answers all: the log-probabilities of those tokens after the context, which may come from
 * the prefix cache. Else each choice is a request of its own that scores its prompt. */
#include "cmd/eval.h"

#include "base/clock.h"
#include "base/mq.h"
#include "cmd/signals.h"
#include "engine/output.h"
#include "lib/setup.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum job_kind {
    JOB_LETTERS, /* all choices of a question */
    JOB_CHOICE,  /* one of them */
    JOB_GENERATE,
    JOB_WINDOW, /* part of a text */
};

struct local;
struct job {
    enum job_kind kind;
    struct local *local;
    struct eval_question *q;
    int choice;
    size_t first_scored; /* index in the prompt */
    struct eval_text *text;
    struct output out;
    int has_output;
    uint64_t request_id;
    struct job *next; /* of all in flight */
};

struct local {
    struct setup *s;
    struct mq *reply;
    int max_in_flight, n_in_flight;
    struct job *jobs;
    struct token_ids ids; /* of the question at hand */
};

static int longest_prompt(const struct local *l)
{
    return l->s->plan.max_model_len - 1; /* one token must be made */
}

static void drop(struct local *l, struct job *j)
{
    struct job **p = &l->jobs;
    while (*p && *p != j) {
        p = &(*p)->next;
    }
    if (*p) {
        *p = j->next;
        l->n_in_flight--;
    }
    if (j->has_output) {
        output_fini(&j->out);
    }
    free(j);
}

/* ---- what comes back ---- */

static void take_prompt_logprobs(struct job *j, const struct engine_event *ev)
{
    double sum = 0;
    for (int i = (int)j->first_scored; i < ev->n_tokens; i++) {
        sum += ev->tokens[i].n_top > 0 ? (double)ev->tokens[i].top[0].logprob : 0;
    }
    if (j->kind == JOB_CHOICE) {
        j->q->logprob[j->choice] = sum;
    } else {
        j->text->nll -= sum;
        j->text->n_scored += (size_t)(ev->n_tokens - (int)j->first_scored);
    }
}

static int take_event(struct local *l, struct job *j, const struct engine_event *ev, struct err *e)
{
    if (ev->finish == FINISH_ERROR) {
        return err_set(e, ERR_INTERNAL, "%s", ev->error);
    }
    if (ev->kind == EVENT_PROMPT_LOGPROBS) {
        take_prompt_logprobs(j, ev);
    } else if (j->kind == JOB_LETTERS && ev->n_tokens > 0) {
        const struct token_output *t = &ev->tokens[0];
        /* the sampled token first, then those asked for */
        for (int i = 0; i < j->q->n_choices && i + 1 < t->n_top; i++) {
            j->q->logprob[i] = (double)t->top[i + 1].logprob;
        }
    } else if (j->kind == JOB_GENERATE) {
        int used;
        if (output_feed(&j->out, ev, &used)) {
            engine_abort(l->s->engine, j->request_id, 0, 1);
        }
        if (ev->finish != FINISH_NONE) {
            free(j->q->output);
            j->q->output = buf_detach(&j->out.text);
            j->q->output = j->q->output ? j->q->output : strdup("");
        }
    }
    return 0;
}

/* Waits for events and takes them; afterwards at most `most` jobs are in flight. When `stop` the
 * events are only waited for. */
static int pump(struct local *l, int most, int stop, struct err *e)
{
    int rc = 0;
    while (l->n_in_flight > most) {
        if (!stop && (rc < 0 || signals_pending())) {
            rc = rc < 0 ? rc : err_set(e, ERR_CANCELED, "interrupted");
            stop = 1;
            most = 0;
            for (struct job *j = l->jobs; j; j = j->next) {
                engine_abort(l->s->engine, j->request_id, -1, 0);
            }
        }
        mq_wait(l->reply, 100);
        for (struct mq_node *n = mq_pop_all(l->reply), *next; n; n = next) {
            struct engine_event *ev =
                (struct engine_event *)((char *)n - offsetof(struct engine_event, node));
            struct job *j = ev->user;
            next = n->next;
            if (!stop && rc >= 0) {
                rc = take_event(l, j, ev, e);
            }
            if (ev->finish != FINISH_NONE) {
                drop(l, j);
            }
            engine_event_free(ev);
        }
    }
    return rc;
}

/* ---- what is asked ---- */

/* Prompt ids, cut at the beginning to the longest the model takes: tokens lost. */
static size_t cut_prompt(const struct local *l, const int32_t **ids, size_t *n)
{
    size_t most = (size_t)longest_prompt(l), lost = *n > most ? *n - most : 0;
    *ids += lost;
    *n -= lost;
    return lost;
}

/* Submits a request; takes the job in every case. */
static int submit(struct local *l, struct job *j, const int32_t *ids, size_t n,
                  const struct sampling_params *p, struct err *e)
{
    struct engine_request *r = engine_request_new();
    if (!r) {
        drop(l, j);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    r->params = *p;
    r->prompt = arena_memdup(&r->arena, ids, n * sizeof *ids);
    r->params.stop_token_ids =
        arena_memdup(&r->arena, p->stop_token_ids, (size_t)p->n_stop_token_ids * sizeof *ids);
    r->params.logprob_token_ids =
        arena_memdup(&r->arena, p->logprob_token_ids, (size_t)p->n_logprob_token_ids * sizeof *ids);
    r->n_prompt = (int)n;
    r->reply = l->reply;
    r->user = j;
    r->arrival_ns = clock_now_ns();
    r->id = j->request_id = engine_new_id(l->s->engine);
    int rc =
        !r->prompt ? err_set(e, ERR_NOMEM, "out of memory") : engine_submit(l->s->engine, r, e);
    if (rc < 0) {
        engine_request_free(r);
        drop(l, j);
        return rc;
    }
    j->next = l->jobs;
    l->jobs = j;
    l->n_in_flight++;
    return 0;
}

static struct job *new_job(struct local *l, enum job_kind kind, struct eval_question *q,
                           struct err *e)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j) {
        err_set(e, ERR_NOMEM, "out of memory");
        return NULL;
    }
    j->kind = kind;
    j->local = l;
    j->q = q;
    return j;
}

static void scoring_params(struct sampling_params *p)
{
    sampling_params_init(p);
    p->temperature = 0;
    p->max_tokens = 1;
    p->n_prompt_logprobs = 0;
}

static int encode(void *self, const char *text, size_t n, struct token_ids *out, struct err *e)
{
    const struct local *l = self;
    return tokenizer_encode(l->s->tokenizer, text, n, 1, out, e);
}

/* Are the choices single tokens after one context? Then their ids are in `letters`. */
static int ask_choices(struct local *l, struct eval_question *q, struct err *e)
{
    int32_t letters[EVAL_MAX_CHOICES];
    struct sampling_params p;
    struct token_ids first = {0};
    size_t n_context = 0, n_first = 0;
    int single = 1, rc = 0;
    for (int i = 0; rc >= 0 && i < q->n_choices; i++) {
        rc = eval_encode_choice(encode, l, q, i, &l->ids, &n_context, e);
        if (rc < 0) {
            break;
        }
        single &= l->ids.n == n_context + 1 && n_context > 0;
        for (size_t k = 0; k < n_context && i == 0; k++) {
            rc = token_ids_push(&first, l->ids.ids[k]);
        }
        n_first = i == 0 ? n_context : n_first;
        single &= n_context == n_first && memcmp(first.ids ? first.ids : l->ids.ids, l->ids.ids,
                                                 n_context * sizeof *l->ids.ids) == 0;
        letters[i] = l->ids.ids[l->ids.n - 1];
    }
    scoring_params(&p);
    if (rc >= 0 && single) {
        const int32_t *ids = first.ids;
        size_t n = first.n;
        struct job *j = new_job(l, JOB_LETTERS, q, e);
        q->truncated = cut_prompt(l, &ids, &n) > 0;
        p.n_prompt_logprobs = -1;
        p.n_logprobs = 0;
        p.logprob_token_ids = letters;
        p.n_logprob_token_ids = q->n_choices;
        rc = j ? submit(l, j, ids, n, &p, e) : ERR_NOMEM;
    }
    for (int i = 0; rc >= 0 && !single && i < q->n_choices; i++) {
        rc = eval_encode_choice(encode, l, q, i, &l->ids, &n_context, e);
        struct job *j = rc < 0 ? NULL : new_job(l, JOB_CHOICE, q, e);
        if (!j) {
            rc = rc < 0 ? rc : ERR_NOMEM;
            break;
        }
        const int32_t *ids = l->ids.ids;
        size_t n = l->ids.n, lost = cut_prompt(l, &ids, &n);
        j->choice = i;
        j->first_scored = n_context > lost + 1 ? n_context - lost : 1;
        q->truncated |= lost > 0;
        rc = submit(l, j, ids, n, &p, e);
    }
    token_ids_fini(&first);
    return rc;
}

static int ask_text(struct local *l, const struct eval_task *t, struct eval_question *q,
                    const size_t *stop_bytes, struct err *e)
{
    struct sampling_params p;
    l->ids.n = 0;
    int rc =
        t->chat ? chat_encode_user(l->s->chat, NULL, q->context, q->context_bytes, &l->ids, NULL, e)
                : tokenizer_encode(l->s->tokenizer, q->context, q->context_bytes, 1, &l->ids, e);
    if (rc >= 0 && l->ids.n == 0) {
        rc = err_set(e, ERR_INVALID, "a prompt has no tokens");
    }
    struct job *j = rc < 0 ? NULL : new_job(l, JOB_GENERATE, q, e);
    if (!j) {
        return rc < 0 ? rc : ERR_NOMEM;
    }
    struct output_options o = {
        .stop = t->stops, .stop_bytes = stop_bytes, .n_stop = t->n_stops, .skip_special = 1};
    if (output_init(&j->out, l->s->tokenizer, &o) < 0) {
        drop(l, j);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    j->has_output = 1;
    sampling_params_init(&p);
    p.temperature = 0;
    p.max_tokens = t->max_tokens;
    p.stop_token_ids = l->s->stop_ids;
    p.n_stop_token_ids = l->s->n_stop_ids;
    const int32_t *ids = l->ids.ids;
    size_t n = l->ids.n, most = (size_t)longest_prompt(l);
    size_t room = (size_t)t->max_tokens < most / 2 ? (size_t)t->max_tokens : most / 2;
    if (n + room > most + 1) { /* the answer needs its place too */
        size_t lost = n + room - most - 1;
        ids += lost;
        n -= lost;
        q->truncated = 1;
    }
    if (p.max_tokens > (int)(most + 1 - n)) {
        p.max_tokens = (int)(most + 1 - n);
    }
    return submit(l, j, ids, n, &p, e);
}

static int ask(void *self, struct eval_task *t, struct eval_progress *progress, struct err *e)
{
    struct local *l = self;
    size_t stop_bytes[EVAL_MAX_STOPS];
    int rc = 0;
    for (int i = 0; i < t->n_stops; i++) {
        stop_bytes[i] = strlen(t->stops[i]);
    }
    for (size_t i = 0; rc >= 0 && i < t->n_questions; i++) {
        struct eval_question *q = &t->questions[i];
        rc = t->kind == EVAL_CHOICE ? ask_choices(l, q, e) : ask_text(l, t, q, stop_bytes, e);
        if (rc < 0) {
            err_prefix(e, "%s: question %zu", t->name, i + 1);
        }
        rc = rc < 0 ? rc : pump(l, l->max_in_flight - 1, 0, e);
        eval_progress_step(progress,
                           i + 1 > (size_t)l->n_in_flight ? i + 1 - (size_t)l->n_in_flight : 0);
    }
    if (rc < 0) {
        struct err ignored;
        for (struct job *j = l->jobs; j; j = j->next) {
            engine_abort(l->s->engine, j->request_id, -1, 0);
        }
        pump(l, 0, 1, &ignored);
        return rc;
    }
    rc = pump(l, 0, 0, e);
    eval_progress_step(progress, t->n_questions);
    return rc;
}

static int score_text(void *self, struct eval_text *t, const struct eval_windows *given,
                      struct eval_progress *progress, struct err *e)
{
    struct local *l = self;
    struct eval_windows w = *given;
    struct token_ids ids = {0};
    struct sampling_params p;
    int rc = eval_windows_resolve(&w, longest_prompt(l), e);
    rc = rc < 0 ? rc
                : tokenizer_encode(l->s->tokenizer, t->text.data ? t->text.data : "", t->text.len,
                                   1, &ids, e);
    if (rc == ERR_FORMAT) {
        err_prefix(e, "%s", t->name);
    }
    if (rc >= 0 && ids.n < 2) {
        rc = err_set(e, ERR_INVALID, "%s: expected at least 2 tokens, found %zu", t->name, ids.n);
    }
    t->n_tokens = ids.n;
    progress->total = ids.n;
    scoring_params(&p);
    for (size_t done = 0, begin, end; rc >= 0 && done < ids.n; done = end) {
        eval_windows_next(&w, ids.n, done, &begin, &end);
        struct job *j = new_job(l, JOB_WINDOW, NULL, e);
        if (!j) {
            rc = ERR_NOMEM;
            break;
        }
        j->text = t;
        j->first_scored = done > begin ? done - begin : 1;
        t->n_windows++;
        rc = submit(l, j, ids.ids + begin, end - begin, &p, e);
        /* two at a time: a window is a full step by itself */
        rc = rc < 0 ? rc : pump(l, 1, 0, e);
        eval_progress_step(progress, end);
    }
    if (rc < 0) {
        struct err ignored;
        for (struct job *j = l->jobs; j; j = j->next) {
            engine_abort(l->s->engine, j->request_id, -1, 0);
        }
        pump(l, 0, 1, &ignored);
    } else {
        rc = pump(l, 0, 0, e);
    }
    token_ids_fini(&ids);
    return rc;
}

int eval_local_open(struct eval_backend *b, struct setup *s, int max_in_flight, struct err *e)
{
    struct local *l = calloc(1, sizeof *l);
    if (!l) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    l->s = s;
    l->max_in_flight = max_in_flight;
    b->self = l;
    b->ask = ask;
    b->score_text = score_text;
    return mq_new(&l->reply, e);
}

void eval_local_close(struct eval_backend *b)
{
    struct local *l = b->self;
    if (l) {
        mq_free(l->reply);
        token_ids_fini(&l->ids);
        free(l);
        b->self = NULL;
    }
}
