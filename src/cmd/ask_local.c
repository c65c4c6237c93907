/* SPDX-License-Identifier: Apache-2.0 */
/* The engine in this process. A conversation is rendered anew for every question; the engine's
 * prefix cache makes that cheap. */
#include "base/clock.h"
#include "cmd/ask.h"
#include "cmd/signals.h"
#include "engine/output.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct local {
    struct setup *s;
    struct mq *reply;
};

static int encode(const struct local *l, const struct ask_question *q, struct token_ids *ids,
                  struct err *e)
{
    const struct setup *s = l->s;
    struct chat_render_options ro = {.add_generation_prompt = 1};
    struct json *messages = NULL;
    int rc;
    if (q->messages) {
        rc = json_parse(&messages, q->messages, strlen(q->messages), JSON_DEPTH_DEFAULT, e);
        rc = rc < 0 ? rc : chat_encode(s->chat, messages, &ro, ids, NULL, e);
        json_free(messages);
    } else {
        rc = tokenizer_encode(s->tokenizer, q->prompt, strlen(q->prompt), 1, ids, e);
    }
    if (rc >= 0 && ids->n == 0) {
        rc = err_set(e, ERR_INVALID, "the prompt is empty");
    }
    if (rc >= 0 && ids->n >= (size_t)s->plan.max_model_len) {
        rc = err_set(e, ERR_TOO_LARGE,
                     "%zu prompt tokens leave no room for output: the max model len is %d", ids->n,
                     s->plan.max_model_len);
    }
    return rc;
}

static int fill_params(const struct setup *s, const struct ask_settings *set, int room,
                       struct sampling_params *p, struct err *e)
{
    const char *field = NULL;
    setup_sampling(s, p);
    p->max_tokens = s->generation.has_max_new_tokens ? s->generation.max_new_tokens : room;
#define TAKE(which, member, type)                                                                  \
    if (set->text[which]) {                                                                        \
        p->member = (type)ask_number(set, which);                                                  \
    }
    TAKE(ASK_TEMPERATURE, temperature, double)
    TAKE(ASK_TOP_P, top_p, double)
    TAKE(ASK_TOP_K, top_k, int)
    TAKE(ASK_MIN_P, min_p, double)
    TAKE(ASK_MAX_TOKENS, max_tokens, int)
    TAKE(ASK_SEED, seed, int64_t)
    TAKE(ASK_REPETITION_PENALTY, repetition_penalty, double)
    TAKE(ASK_PRESENCE_PENALTY, presence_penalty, double)
    TAKE(ASK_FREQUENCY_PENALTY, frequency_penalty, double)
#undef TAKE
    p->has_seed = set->text[ASK_SEED] != NULL;
    p->max_tokens = p->max_tokens > room ? room : p->max_tokens;
    p->stop_token_ids = s->stop_ids;
    p->n_stop_token_ids = s->n_stop_ids;
    return sampling_params_check(p, model_config(s->model)->vocab_size, (int)s->a->max_logprobs,
                                 &field, e);
}

static int submit(struct local *l, const struct ask_question *q, uint64_t *id, struct err *e)
{
    struct engine_request *r = engine_request_new();
    struct token_ids ids = {0};
    if (!r) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    r->arrival_ns = clock_now_ns();
    int rc = encode(l, q, &ids, e);
    rc = rc < 0
             ? rc
             : fill_params(l->s, q->settings, l->s->plan.max_model_len - (int)ids.n, &r->params, e);
    if (rc >= 0) {
        /* the stop ids are the setup's, which outlives every request */
        r->prompt = arena_memdup(&r->arena, ids.ids, ids.n * sizeof *ids.ids);
        r->n_prompt = (int)ids.n;
        r->reply = l->reply;
        r->id = *id = engine_new_id(l->s->engine);
        rc = r->prompt ? engine_submit(l->s->engine, r, e) : err_set(e, ERR_NOMEM, "out of memory");
    }
    if (rc < 0) {
        engine_request_free(r);
    }
    token_ids_fini(&ids);
    return rc;
}

static int take(struct local *l, const struct ask_question *q, struct output *out,
                const struct engine_event *ev, struct ask_result *r, struct err *e)
{
    int used = 0;
    if (output_feed(out, ev, &used)) {
        engine_abort(l->s->engine, ev->request_id, ev->sample, 1);
    }
    r->n_tokens += used;
    r->cut = ev->finish == FINISH_LENGTH;
    if (ev->first_token_ns) {
        r->seconds_to_first = (double)(ev->first_token_ns - ev->queued_ns) * 1e-9;
        r->seconds_after = (double)(ev->last_token_ns - ev->first_token_ns) * 1e-9;
    }
    if (ev->finish == FINISH_ERROR) {
        return err_set(e, ERR_INTERNAL, "%s", ev->error);
    }
    size_t n;
    const char *text = output_take(out, &n);
    if (n && q->text(q->user, text, n, 0) < 0) {
        return err_set(e, ERR_IO, "cannot write to standard output");
    }
    return 0;
}

/* Takes events until the sample has ended; after a fault or a signal only waits for the engine to
 * let go of it. */
static int collect(struct local *l, const struct ask_question *q, struct output *out, uint64_t id,
                   struct ask_result *r, struct err *e)
{
    int rc = 0, open = 1, aborted = 0;
    while (open) {
        int sig = signals_take();
        r->interrupted |= sig == SIGINT;
        r->terminated |= sig == SIGTERM;
        if ((rc < 0 || r->interrupted || r->terminated) && !aborted) {
            aborted = 1;
            engine_abort(l->s->engine, id, -1, 0);
        }
        mq_wait(l->reply, 50);
        for (struct mq_node *n = mq_pop_all(l->reply), *next; n; n = next) {
            struct engine_event *ev =
                (struct engine_event *)((char *)n - offsetof(struct engine_event, node));
            next = n->next;
            if (rc >= 0) {
                rc = take(l, q, out, ev, r, e);
            }
            open &= ev->finish == FINISH_NONE;
            engine_event_free(ev);
        }
    }
    return rc;
}

static int question(void *self, const struct ask_question *q, struct ask_result *r, struct err *e)
{
    struct local *l = self;
    struct output out;
    const char *stop = q->settings->text[ASK_STOP];
    const size_t stop_bytes = stop ? strlen(stop) : 0;
    struct output_options oo = {
        .stop = &stop, .stop_bytes = &stop_bytes, .n_stop = stop != NULL, .skip_special = 1};
    uint64_t id = 0;
    memset(r, 0, sizeof *r);
    if (output_init(&out, l->s->tokenizer, &oo) < 0) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    int rc = submit(l, q, &id, e);
    rc = rc < 0 ? rc : collect(l, q, &out, id, r, e);
    output_fini(&out);
    return rc;
}

static int list_models(void *self, struct buf *out, struct err *e)
{
    const struct local *l = self;
    buf_printf(out, "%s\n", l->s->a->model);
    return out->failed ? err_set(e, ERR_NOMEM, "out of memory") : 0;
}

static int set_model(void *self, const char *name, const char **now, struct err *e)
{
    const struct local *l = self;
    (void)now;
    return strcmp(name, l->s->a->model) == 0
               ? 0
               : err_set(e, ERR_UNSUPPORTED,
                         "%s is loaded in this program: another model wants another start",
                         l->s->a->model);
}

static void close_local(void *self)
{
    struct local *l = self;
    if (l->s->engine) { /* first: its events go to the queue */
        engine_close(l->s->engine);
        l->s->engine = NULL;
    }
    if (l->reply) {
        mq_free(l->reply);
    }
    free(l);
}

int ask_local_open(struct ask *a, struct setup *s, struct err *e)
{
    struct local *l = calloc(1, sizeof *l);
    if (!l) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    *a = (struct ask){.self = l,
                      .model = s->a->model,
                      .question = question,
                      .set_model = set_model,
                      .list_models = list_models,
                      .close = close_local};
    l->s = s;
    s->n_seqs_wanted = 1;
    int rc = setup_check(s, e);
    rc = rc < 0 ? rc : setup_load(s, e);
    rc = rc < 0 ? rc : setup_engine(s, e);
    return rc < 0 ? rc : mq_new(&l->reply, e);
}
