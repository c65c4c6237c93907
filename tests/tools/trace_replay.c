/* SPDX-License-Identifier: Apache-2.0 */
/* Replays the prompts of a request trace through the engine and tells its prefix statistics; for
 * bench/trace.
 *
 *   trace_replay N_BLOCKS IN_FLIGHT < prompts
 *
 * A line of the input is one request: tokens of its prompt, tokens of its answer, and one id for
 * each 512 tokens of the prompt, equal ids standing for equal tokens. IN_FLIGHT requests are kept
 * running, in the order of the input. Scheduler, block pool and prefix index are the server's own;
 * the model is the unit tests' fake, which keeps the tokens themselves in its KV and answers a
 * prompt with a hash of what the block table holds. So every answer's first token is checked: a hit
 * on the wrong block ends the replay with an error, and a hundred million tokens take seconds. */
#include "../unit/fake_runner.h"
#include "base/clock.h"

#define VOCAB       512
#define MODEL_LEN   131072
#define TRACE_BLOCK 512

struct slot {
    int32_t *prompt; /* MODEL_LEN */
    int n, n_answer;
    int n_got;
};

struct replay {
    struct fake_runner fake;
    struct engine_options o;
    struct engine *en;
    struct mq *mq;
    struct slot *slots;
    int n_slots, n_sent, n_ended, n_wrong;
    uint64_t n_tokens;
    char *line;
    size_t line_size;
};

/* The tokens that a trace's block id stands for. */
static void expand(int32_t *out, int n, long id)
{
    uint64_t h = (uint64_t)id * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < n; i++) {
        h = fake_mix(h, i);
        out[i] = (int32_t)(h >> 40) % VOCAB;
    }
}

/* 1 a prompt, 0 the end, negative: the line isn't one. */
static int read_prompt(struct replay *r, struct slot *s)
{
    if (getline(&r->line, &r->line_size, stdin) < 0) {
        return 0;
    }
    char *at = r->line, *end;
    long n = strtol(at, &end, 10);
    if (end == at || n < 1 || n >= MODEL_LEN) {
        return err_set(NULL, ERR_INVALID, "prompt length");
    }
    long m = strtol(at = end, &end, 10);
    if (end == at || m < 1 || n + m > MODEL_LEN) {
        return err_set(NULL, ERR_INVALID, "answer length");
    }
    s->n = (int)n;
    s->n_answer = (int)m;
    s->n_got = 0;
    for (int p = 0; p < s->n; p += TRACE_BLOCK) {
        long id = strtol(at = end, &end, 10);
        if (end == at) {
            return err_set(NULL, ERR_INVALID, "too few ids");
        }
        expand(s->prompt + p, s->n - p < TRACE_BLOCK ? s->n - p : TRACE_BLOCK, id);
    }
    return 1;
}

/* As read_prompt; the request is under way then. */
static int send_next(struct replay *r, int slot, struct err *e)
{
    struct slot *s = &r->slots[slot];
    int rc = read_prompt(r, s);
    if (rc < 0) {
        return err_set(
            e, ERR_INVALID,
            "line %d: expected two lengths of at most %d tokens together and an id for each %d",
            r->n_sent + 1, MODEL_LEN, TRACE_BLOCK);
    }
    if (rc == 0) {
        return 0;
    }
    struct engine_request *q = engine_request_new();
    if (!q) {
        return err_set(e, ERR_NOMEM, "no memory for a request");
    }
    q->prompt = arena_memdup(&q->arena, s->prompt, (size_t)s->n * sizeof *s->prompt);
    q->n_prompt = s->n;
    q->params.temperature = 0;
    q->params.max_tokens = s->n_answer;
    q->params.ignore_eos = 1;
    q->arrival_ns = clock_now_ns();
    q->reply = r->mq;
    q->user = (void *)(intptr_t)slot;
    if ((rc = engine_submit(r->en, q, e)) < 0) {
        engine_request_free(q);
        return rc;
    }
    r->n_sent++;
    r->n_tokens += (uint64_t)s->n;
    return 1;
}

/* The fake's answer to the prompt, or, where a prompt's last step had one row, to its end. */
static int is_answer(const struct replay *r, const struct slot *s, int32_t id)
{
    int tail = s->n < 16 ? s->n : 16;
    return id == fake_next(&r->fake, s->prompt, s->n) ||
           id == fake_next(&r->fake, s->prompt + s->n - tail, tail);
}

static int take(struct replay *r, struct engine_event *ev, struct err *e)
{
    int slot = (int)(intptr_t)ev->user, done = ev->finish != FINISH_NONE;
    struct slot *s = &r->slots[slot];
    if (s->n_got == 0 && ev->n_tokens > 0) {
        r->n_wrong += !is_answer(r, s, ev->tokens[0].id);
    }
    s->n_got += ev->n_tokens;
    r->n_wrong += done && (ev->finish != FINISH_LENGTH || s->n_got != s->n_answer);
    r->n_ended += done;
    engine_event_free(ev);
    return done ? send_next(r, slot, e) : 0;
}

static int replay(struct replay *r, struct err *e)
{
    int rc = 1;
    for (int i = 0; i < r->n_slots && rc > 0; i++) {
        rc = send_next(r, i, e);
    }
    while (rc >= 0 && r->n_ended < r->n_sent) {
        mq_wait(r->mq, -1);
        struct mq_node *next, *node = mq_pop_all(r->mq);
        for (; node; node = next) {
            next = node->next;
            if (rc >= 0) {
                rc = take(r, (struct engine_event *)node, e);
            } else {
                engine_event_free((struct engine_event *)node);
            }
        }
    }
    return rc < 0 ? rc : engine_check_integrity(r->en, e);
}

static int open_replay(struct replay *r, int n_blocks, int in_flight, struct err *e)
{
    fake_options(&r->o);
    r->o.max_model_len = MODEL_LEN;
    r->o.max_num_seqs = in_flight;
    r->o.max_num_batched_tokens = 2048;
    fake_init(&r->fake, VOCAB, n_blocks + 1, &r->o);
    r->fake.short_decode = 1;
    if (!(r->slots = calloc((size_t)in_flight, sizeof *r->slots))) {
        return err_set(e, ERR_NOMEM, "no memory");
    }
    for (; r->n_slots < in_flight; r->n_slots++) {
        if (!(r->slots[r->n_slots].prompt = malloc(MODEL_LEN * sizeof(int32_t)))) {
            return err_set(e, ERR_NOMEM, "no memory");
        }
    }
    int rc = mq_new(&r->mq, e);
    return rc < 0 ? rc : engine_open_runner(&r->en, &r->fake.ops, &r->fake, &r->o, e);
}

static void close_replay(struct replay *r)
{
    engine_close(r->en);
    mq_free(r->mq);
    fake_fini(&r->fake);
    for (int i = 0; i < r->n_slots; i++) {
        free(r->slots[i].prompt);
    }
    free(r->slots);
    free(r->line);
}

int main(int argc, char **argv)
{
    struct replay r = {0};
    struct err e = {0};
    int n_blocks = argc == 3 ? atoi(argv[1]) : 0, in_flight = argc == 3 ? atoi(argv[2]) : 0;
    if (n_blocks < MODEL_LEN / KV_BLOCK_TOKENS || in_flight < 1) {
        fprintf(stderr, "usage: trace_replay N_BLOCKS IN_FLIGHT < prompts (at least %d blocks)\n",
                MODEL_LEN / KV_BLOCK_TOKENS);
        return 2;
    }
    int rc = open_replay(&r, n_blocks, in_flight, &e);
    rc = rc < 0 ? rc : replay(&r, &e);
    if (rc < 0) {
        fprintf(stderr, "trace_replay: %s\n", e.text);
    } else {
        struct engine_stats s;
        engine_stats(r.en, &s);
        printf("{\"requests\":%d,\"wrong\":%d,\"tokens\":%llu,\"queries\":%llu,\"hits\":%llu,"
               "\"computed\":%d,\"evictions\":%llu,\"preemptions\":%llu,\"steps\":%llu}\n",
               r.n_ended, r.n_wrong, (unsigned long long)r.n_tokens,
               (unsigned long long)s.prefix_queries, (unsigned long long)s.prefix_hits,
               atomic_load(&r.fake.n_rows_total), (unsigned long long)s.evictions,
               (unsigned long long)s.preemptions, (unsigned long long)s.steps);
    }
    close_replay(&r);
    return rc < 0 || r.n_wrong > 0;
}
