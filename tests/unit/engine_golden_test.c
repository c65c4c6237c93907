/* SPDX-License-Identifier: Apache-2.0 */
/* The engine against another implementation: greedy ids and log-probabilities of the fixtures'
 * prompts, all at once in a pool too small for them (so with preemptions and prefix hits), and the
 * fixture's perplexity from prompt_logprobs. */
#include "engine/engine.h"

#include "base/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "model_rig.h"

#define MAX_LEN   256
#define MAX_IDS   256
#define TOLERANCE 5e-4

struct engine_rig {
    struct cpu_pool *pool;
    struct model *model;
    struct engine *en;
    struct mq *reply;
};

static int ids_of(const struct json *array, int32_t *out)
{
    int n = (int)json_length(array);
    assert_true(n > 0 && n <= MAX_IDS);
    for (int i = 0; i < n; i++) {
        out[i] = (int32_t)json_int(json_at(array, (size_t)i));
    }
    return n;
}

static void open_rig(struct engine_rig *g, const char *path)
{
    struct err e = {0};
    const struct kernels *k = rig_best_kernels();
    g->pool = rig_pool(2);
    g->model = rig_load(path, ACT_F32, k, g->pool);
    struct engine_options o = {
        .max_model_len = MAX_LEN,
        .max_num_seqs = 8,
        .max_num_batched_tokens = 40,
        .enable_prefix_caching = 1,
        .enable_chunked_prefill = 1,
        .n_blocks_override = 17,
        .permute_blocks = 3,
        .eos_id = -1,
    };
    if (mq_new(&g->reply, &e) < 0 || engine_open(&g->en, g->model, k, g->pool, &o, &e) < 0) {
        fail_msg("%s", e.text);
    }
}

static void close_rig(struct engine_rig *g)
{
    engine_close(g->en);
    mq_free(g->reply);
    model_close(g->model);
    cpu_pool_close(g->pool);
}

static void submit(struct engine_rig *g, int at, const struct json *ids, int max_tokens,
                   int n_prompt_logprobs)
{
    struct err e = {0};
    int32_t prompt[MAX_IDS];
    struct engine_request *r = engine_request_new();
    assert_non_null(r);
    r->n_prompt = ids_of(ids, prompt);
    r->prompt = arena_memdup(&r->arena, prompt, (size_t)r->n_prompt * sizeof *prompt);
    r->params.temperature = 0;
    r->params.max_tokens = max_tokens;
    r->params.n_logprobs = 0;
    r->params.n_prompt_logprobs = n_prompt_logprobs;
    r->reply = g->reply;
    r->user = (void *)(intptr_t)at;
    if (engine_submit(g->en, r, &e) < 0) {
        fail_msg("%s", e.text);
    }
}

static void check_tokens(const struct engine_event *ev, const struct json *prompt, int *n_seen)
{
    const struct json *greedy = json_get(prompt, "greedy"),
                      *logprobs = json_get(prompt, "logprobs");
    for (int i = 0; i < ev->n_tokens; i++, ++*n_seen) {
        const struct token_output *t = &ev->tokens[i];
        assert_int_equal(t->id, json_int(json_at(greedy, (size_t)*n_seen)));
        double want = json_double(json_at(logprobs, (size_t)*n_seen));
        assert_true(fabs((double)t->top[0].logprob - want) < TOLERANCE);
    }
}

static void check_perplexity(const struct engine_event *ev, const struct json *want)
{
    double sum = 0;
    assert_int_equal(ev->n_tokens, json_length(json_get(want, "ids")));
    for (int i = 1; i < ev->n_tokens; i++) {
        double nll = json_double(json_at(json_get(want, "nll"), (size_t)i - 1));
        assert_true(fabs(-(double)ev->tokens[i].top[0].logprob - nll) < TOLERANCE);
        sum -= (double)ev->tokens[i].top[0].logprob;
    }
    double ppl = json_double(json_get(want, "ppl"));
    assert_true(fabs(exp(sum / (ev->n_tokens - 1)) / ppl - 1) < 1e-4);
}

static void greedy_texts_and_perplexity_equal_the_oracle(void **state)
{
    char dir[1024], golden[1100];
    struct err e = {0};
    struct json *j;
    if (!rig_fixture(dir, sizeof dir, *state)) {
        print_message("SKIPPED: no fixture %s\n", (const char *)*state);
        skip();
    }
    snprintf(golden, sizeof golden, "%s/golden.json", dir);
    if (json_parse_file(&j, golden, 64 << 20, &e) < 0) {
        fail_msg("%s", e.text);
    }
    const struct json *prompts = json_get(j, "prompts"), *perplexity = json_get(j, "perplexity");
    int n_prompts = (int)json_length(prompts), n_ended = 0, seen[32] = {0}, n_perplexity = 0;
    struct engine_rig g;
    open_rig(&g, dir);
    for (int i = 0; i < 2 * n_prompts; i++) { /* everything twice */
        const struct json *p = json_at(prompts, (size_t)(i % n_prompts));
        submit(&g, i, json_get(p, "ids"), (int)json_length(json_get(p, "greedy")), -1);
    }
    submit(&g, 2 * n_prompts, json_get(perplexity, "ids"), 1, 0);
    while (n_ended < 2 * n_prompts + 1) {
        assert_int_equal(mq_wait(g.reply, 60000), 1);
        struct mq_node *node = mq_pop_all(g.reply);
        while (node) {
            struct engine_event *ev = (struct engine_event *)node;
            int at = (int)(intptr_t)ev->user;
            node = node->next;
            if (ev->kind == EVENT_PROMPT_LOGPROBS) {
                check_perplexity(ev, perplexity);
                n_perplexity++;
            } else if (at < 2 * n_prompts) {
                check_tokens(ev, json_at(prompts, (size_t)(at % n_prompts)), &seen[at]);
            }
            n_ended += ev->finish != FINISH_NONE;
            engine_event_free(ev);
        }
    }
    for (int i = 0; i < 2 * n_prompts; i++) {
        assert_int_equal(
            seen[i], json_length(json_get(json_at(prompts, (size_t)(i % n_prompts)), "greedy")));
    }
    assert_int_equal(n_perplexity, 1);
    struct engine_stats s;
    engine_stats(g.en, &s);
    assert_true(s.preemptions > 0);
    assert_true(s.prefix_hits > 0);
    close_rig(&g);
    json_free(j);
}

int main(void)
{
#define FIXTURE(name)                                                                              \
    {                                                                                              \
        "greedy_texts_and_perplexity_equal_the_oracle: " name,                                     \
            greedy_texts_and_perplexity_equal_the_oracle, NULL, NULL, name                         \
    }
    const struct CMUnitTest tests[] = {FIXTURE("dense-hf"), FIXTURE("dense-paddle"),
                                       FIXTURE("dense-head96"), FIXTURE("dense-hf-untied")};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
