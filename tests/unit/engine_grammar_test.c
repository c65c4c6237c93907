/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars in the engine, on the fake runner with a real vocabulary. The reference needs no masks:
 * of the logits that the fake gives to the tokens so far, the best token that the grammar can be
 * stepped over, or the end where the output may end. Alone, in a batch, preempted and forked, the
 * engine must say just that. */
#include "fake_runner.h"

#include "text/grammar.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define MODEL       TERN_SOURCE_DIR "/models/tern-poet"
#define MAX_TOKENS  48
#define MAX_RUNS    16
#define MAX_SAMPLES 4

static struct tokenizer *tok;
static struct grammar_vocab *vocab;
static int n_ids, eos;

static const struct {
    enum grammar_kind kind;
    const char *text;
} grammars[] = {
    {GRAMMAR_JSON_OBJECT, ""},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"状态\":{\"enum\":[\"在线\",\"离线\"]},\"n\":{\"type\":"
     "\"integer\"},\"s\":{\"type\":\"string\",\"maxLength\":6}},\"required\":[\"状态\",\"n\"]}"},
    {GRAMMAR_REGEX, "[一-龥]{60,90}(。|！)"}, /* long: preempted where blocks are few */
    {GRAMMAR_REGEX, "[a-z]{3,9}( [0-9]+)?"},
    {GRAMMAR_CHOICE, "[\"yes\",\"no\",\"也许\"]"},
    {GRAMMAR_EBNF, "root ::= \"(\" root \")\" | [xy]+"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"enum\":[1,2,3]},\"uniqueItems\":true}"},
};
#define LONG       2
#define N_GRAMMARS ((int)(sizeof grammars / sizeof *grammars))

struct said {
    int32_t ids[MAX_TOKENS + 1];
    float logprob[MAX_TOKENS + 1];
    int n, n_preemptions;
    enum finish_reason finish;
};

struct run {
    struct said s[MAX_RUNS][MAX_SAMPLES];
    int n_runs, n_samples, n_left;
};

static int set_up(void **state)
{
    (void)state;
    struct err e = {0};
    if (tokenizer_open(&tok, MODEL, &e) != 0 ||
        grammar_vocab_open(&vocab, tok, tokenizer_n_ids(tok), &e) != 0) {
        return -1;
    }
    n_ids = tokenizer_n_ids(tok);
    eos = tokenizer_eos_id(tok);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    grammar_vocab_close(vocab);
    tokenizer_close(tok);
    return 0;
}

static struct grammar *compile(int k)
{
    struct grammar *g;
    struct err e = {0};
    if (grammar_compile(&g, grammars[k].kind, grammars[k].text, strlen(grammars[k].text), NULL,
                        vocab, &e) != 0) {
        fail_msg("%s: %s", grammars[k].text, e.text);
    }
    return g;
}

static const int32_t prompts[][5] = {{5, 9, 11, 3, 40}, {7, 7, 8, 50, 12}, {90, 4, 33, 2, 61}};

/* ---- the reference ---- */

static void expect(int k, const int32_t *prompt, int n_prompt, struct said *out)
{
    struct grammar *g = compile(k);
    struct fake_runner f = {.ops = {.vocab_size = n_ids}, .eos_id = -1};
    int32_t tokens[64];
    float *row = malloc(sizeof *row * (size_t)n_ids);
    int config = grammar_start(g), n = n_prompt;
    assert_non_null(row);
    memcpy(tokens, prompt, sizeof *prompt * (size_t)n_prompt);
    memset(out, 0, sizeof *out);
    while (out->finish == FINISH_NONE) {
        uint64_t h = 1;
        for (int i = 0; i < n; i++) {
            h = fake_mix(h, tokens[i]);
        }
        fake_row(&f, h, row);
        int best = -1;
        for (int id = 0; id < n_ids; id++) {
            int allowed =
                id == eos ? grammar_can_stop(g, config) : grammar_step_token(g, config, id) >= 0;
            if (allowed && (best < 0 || row[id] > row[best])) {
                best = id;
            }
        }
        assert_true(best >= 0);
        out->ids[out->n++] = tokens[n++] = best;
        if (best == eos) {
            out->finish = FINISH_STOP;
        } else if (out->n == MAX_TOKENS) {
            out->finish = FINISH_LENGTH;
        } else {
            config = grammar_step_token(g, config, best);
        }
    }
    free(row);
    grammar_unref(g);
}

/* ---- the engine ---- */

static struct engine_request *request(int k, const int32_t *prompt, int n_prompt)
{
    struct engine_request *r = engine_request_new();
    assert_non_null(r);
    r->prompt = arena_memdup(&r->arena, prompt, (size_t)n_prompt * sizeof *prompt);
    r->n_prompt = n_prompt;
    r->params.temperature = 0;
    r->params.max_tokens = MAX_TOKENS;
    r->params.n_logprobs = 0;
    r->grammar = compile(k);
    return r;
}

static void take(struct run *run, struct engine_event *ev)
{
    struct said *s = &run->s[(intptr_t)ev->user][ev->sample];
    for (int i = 0; i < ev->n_tokens; i++) {
        assert_true(s->n <= MAX_TOKENS);
        s->logprob[s->n] = ev->tokens[i].n_top > 0 ? ev->tokens[i].top[0].logprob : -1e9f;
        s->ids[s->n++] = ev->tokens[i].id;
    }
    s->n_preemptions = ev->n_preemptions;
    s->finish = ev->finish;
    run->n_left -= ev->finish != FINISH_NONE;
    engine_event_free(ev);
}

/* All requests at once through an engine of n_blocks; fills run. */
static void go(struct run *run, struct engine_request **r, int n, int n_blocks)
{
    struct engine_options o;
    struct fake_runner fake;
    struct engine *en;
    struct mq *mq;
    struct err e = {0};
    fake_options(&o);
    o.eos_id = eos;
    o.max_model_len = 64; /* so that few blocks are enough for one */
    fake_init(&fake, n_ids, n_blocks + 1, &o);
    if (mq_new(&mq, &e) != 0 || engine_open_runner(&en, &fake.ops, &fake, &o, &e) != 0) {
        fail_msg("%s", e.text);
    }
    memset(run, 0, sizeof *run);
    for (int i = 0; i < n; i++) {
        r[i]->reply = mq;
        r[i]->user = (void *)(intptr_t)i;
        run->n_left += r[i]->params.n;
    }
    for (int i = 0; i < n; i++) {
        if (engine_submit(en, r[i], &e) != 0) {
            fail_msg("%s", e.text);
        }
    }
    while (run->n_left > 0) {
        assert_int_equal(mq_wait(mq, 60000), 1);
        for (struct mq_node *node = mq_pop_all(mq), *next; node; node = next) {
            next = node->next;
            take(run, (struct engine_event *)node);
        }
    }
    assert_int_equal(engine_check_integrity(en, &e), 0);
    engine_close(en);
    mq_free(mq);
    fake_fini(&fake);
}

static void same(const struct said *a, const struct said *b, const char *what)
{
    if (a->n != b->n || a->finish != b->finish ||
        memcmp(a->ids, b->ids, sizeof *a->ids * (size_t)a->n) != 0) {
        fail_msg("%s: %d tokens (finish %d), expected %d (finish %d)", what, b->n, (int)b->finish,
                 a->n, (int)a->finish);
    }
}

static void a_grammar_picks_the_best_token_that_it_allows(void **state)
{
    (void)state;
    for (int k = 0; k < N_GRAMMARS; k++) {
        struct run run;
        struct said want;
        struct engine_request *r = request(k, prompts[k % 3], 5);
        expect(k, prompts[k % 3], 5, &want);
        go(&run, &r, 1, 200);
        same(&want, &run.s[0][0], grammars[k].text);
        for (int i = 0; i < want.n; i++) { /* never -inf or below what clients can read */
            assert_true(run.s[0][0].logprob[i] >= -9999.0f && run.s[0][0].logprob[i] <= 0);
        }
    }
}

static void neighbours_do_not_change_what_a_grammar_allows(void **state)
{
    (void)state;
    struct run run;
    struct said want;
    struct engine_request *r[2 * N_GRAMMARS];
    for (int i = 0; i < 2 * N_GRAMMARS; i++) {
        r[i] = request(i % N_GRAMMARS, prompts[i % 3], 5);
    }
    go(&run, r, 2 * N_GRAMMARS, 400);
    for (int i = 0; i < 2 * N_GRAMMARS; i++) {
        expect(i % N_GRAMMARS, prompts[i % 3], 5, &want);
        same(&want, &run.s[i][0], grammars[i % N_GRAMMARS].text);
    }
}

static void a_preempted_request_goes_on_in_its_grammar(void **state)
{
    (void)state;
    struct run run;
    struct said want;
    struct engine_request *r[6];
    int preempted = 0;
    for (int i = 0; i < 6; i++) {
        r[i] = request(LONG, prompts[i % 3], 5 - i / 3);
    }
    go(&run, r, 6, 7);
    for (int i = 0; i < 6; i++) {
        expect(LONG, prompts[i % 3], 5 - i / 3, &want);
        same(&want, &run.s[i][0], "preempted");
        preempted += run.s[i][0].n_preemptions;
    }
    assert_true(preempted > 0);
}

static void forked_samples_each_follow_the_grammar(void **state)
{
    (void)state;
    struct run together, alone;
    for (int k = 0; k < N_GRAMMARS; k++) {
        struct engine_request *r = request(k, prompts[0], 5);
        r->params.n = MAX_SAMPLES;
        r->params.temperature = 1;
        r->params.has_seed = 1;
        r->params.seed = 40;
        go(&together, &r, 1, 200);
        for (int i = 0; i < MAX_SAMPLES; i++) {
            r = request(k, prompts[0], 5);
            r->params.temperature = 1;
            r->params.has_seed = 1;
            r->params.seed = 40 + i;
            go(&alone, &r, 1, 200);
            same(&alone.s[0][0], &together.s[0][i], grammars[k].text);
        }
    }
}

static void max_tokens_cuts_and_says_length(void **state)
{
    (void)state;
    struct run run;
    struct engine_request *r = request(0, prompts[1], 5);
    r->params.max_tokens = 2;
    go(&run, &r, 1, 200);
    assert_int_equal(run.s[0][0].n, 2);
    assert_int_equal(run.s[0][0].finish, FINISH_LENGTH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grammar_picks_the_best_token_that_it_allows),
        cmocka_unit_test(neighbours_do_not_change_what_a_grammar_allows),
        cmocka_unit_test(a_preempted_request_goes_on_in_its_grammar),
        cmocka_unit_test(forked_samples_each_follow_the_grammar),
        cmocka_unit_test(max_tokens_cuts_and_says_length),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
