/* SPDX-License-Identifier: Apache-2.0 */
/* The prompts of a request: their ids, truncation, and whether prompt and output fit into the
 * context. What can't fit is refused as early as possible: a list of ids before its JSON tree is
 * built, a text before it is tokenized. */
#include "api/gen.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <string.h>

int gen_add_prompts(struct gen *g, int n, struct api_error *e)
{
    g->prompts = arena_alloc(&g->arena, (size_t)n * sizeof *g->prompts);
    if (!g->prompts) {
        return api_fail(e, 503, "ServiceUnavailableError", NULL, "out of memory");
    }
    g->n_prompts = n;
    for (int i = 0; i < n; i++) {
        g->prompts[i].gen = g;
        buf_init(&g->prompts[i].prompt_lp);
        buf_init(&g->prompts[i].echo_tokens);
        buf_init(&g->prompts[i].echo_values);
        buf_init(&g->prompts[i].echo_tops);
        buf_init(&g->prompts[i].echo_offsets);
        buf_init(&g->prompts[i].echo_text);
    }
    return 0;
}

int gen_set_ids(struct gen *g, struct gen_prompt *p, const int32_t *ids, size_t n,
                struct api_error *e)
{
    if (n == 0) {
        return api_fail(e, 400, TYPE_BAD, "prompt",
                        "The prompt must be non-empty: it has no tokens.");
    }
    if (g->f.has_truncate) {
        size_t keep =
            g->f.truncate >= 0 ? (size_t)g->f.truncate : (size_t)g->server->model.max_model_len;
        if (g->f.truncate < 0) { /* as much as leaves room for the output asked for */
            size_t out = g->f.has_max_tokens && g->f.max_tokens > 0 ? (size_t)g->f.max_tokens : 1;
            keep = out < keep ? keep - out : 1;
        }
        if (keep == 0) {
            return api_fail(e, 400, TYPE_BAD, "truncate_prompt_tokens",
                            "truncate_prompt_tokens leaves no prompt.");
        }
        if (n > keep) {
            ids += g->f.truncate_left ? n - keep : 0;
            n = keep;
        }
    }
    p->ids = arena_memdup(&g->arena, ids, n * sizeof *ids);
    p->n = (int)n;
    return p->ids ? 0 : api_fail(e, 503, "ServiceUnavailableError", NULL, "out of memory");
}

int gen_set_id_list(struct gen *g, struct gen_prompt *p, const struct json *list, const char *field,
                    struct api_error *e)
{
    size_t n = json_length(list);
    struct token_ids ids = {0};
    for (size_t i = 0; i < n; i++) {
        const struct json *item = json_at(list, i);
        int64_t id = json_int(item);
        if (json_type(item) != JSON_INT) {
            token_ids_fini(&ids);
            return api_fail_field(e, field, "int_type", item,
                                  "Input should be a list of token ids");
        }
        if (id < 0 || id >= g->server->model.vocab_size) {
            token_ids_fini(&ids);
            return api_fail(e, 400, TYPE_BAD, field, "Token id %" PRId64 " is out of vocabulary",
                            id);
        }
        token_ids_push(&ids, (int32_t)id);
    }
    int rc = ids.n == n ? gen_set_ids(g, p, ids.ids, n, e)
                        : api_fail(e, 503, "ServiceUnavailableError", NULL, "out of memory");
    token_ids_fini(&ids);
    return rc;
}

static int fail_length(struct gen *g, struct api_error *e, const char *param, const char *at_least,
                       size_t n_prompt)
{
    int max = g->server->model.max_model_len;
    if (g->f.has_max_tokens && !g->dialect->chat) {
        api_fail(e, 400, TYPE_BAD, param,
                 "This model's maximum context length is %d tokens. However, you requested %d "
                 "output tokens and your "
                 "prompt contains %s%zu input tokens, for a total of %s%zu tokens. Please reduce "
                 "the length of the input "
                 "prompt or the number of requested output tokens. (parameter=%s, value=%zu)",
                 max, g->f.max_tokens, at_least, n_prompt, at_least,
                 n_prompt + (size_t)g->f.max_tokens, param, n_prompt);
    } else {
        api_fail(e, 400, TYPE_BAD, param,
                 "This model's maximum context length is %d tokens. However, your prompt contains "
                 "%s%zu input tokens, "
                 "which leaves no room for output. Please reduce the length of the input prompt. "
                 "(parameter=%s, value=%zu)",
                 max, at_least, n_prompt, param, n_prompt);
    }
    e->code = "context_length_exceeded";
    return -1;
}

int gen_check_text(struct gen *g, const char *text, size_t n_bytes, struct api_error *e)
{
    size_t max_chars = (size_t)tokenizer_max_chars_per_token(g->server->model.tokenizer);
    size_t limit = (size_t)g->server->model.max_model_len * (max_chars ? max_chars : 1);
    if (g->f.has_truncate || n_bytes <= limit) {
        return 0;
    }
    size_t chars = utf8_count(text, n_bytes);
    return chars <= limit
               ? 0
               : fail_length(g, e, "input_text", "at least ", chars / (max_chars ? max_chars : 1));
}

int gen_prompt_tokens(const struct gen *g)
{
    int n = 0;
    for (int i = 0; i < g->n_prompts; i++) {
        n += g->prompts[i].n;
    }
    return n;
}

int gen_check_lengths(struct gen *g, struct api_error *e)
{
    const struct server *s = g->server;
    const struct sampling_defaults *d = &s->o.generation;
    int max_len = s->model.max_model_len;
    if (g->f.has_truncate && g->f.truncate > max_len) {
        return api_fail_param(e, "truncate_prompt_tokens",
                              json_get(g->json, "truncate_prompt_tokens"),
                              "truncate_prompt_tokens value (%d) is greater than max_model_len "
                              "(%d). Please, select a "
                              "smaller truncation size.",
                              g->f.truncate, max_len);
    }
    for (int i = 0; i < g->n_prompts; i++) {
        struct gen_prompt *p = &g->prompts[i];
        int room = max_len - p->n;
        int want = g->f.has_max_tokens ? g->f.max_tokens : g->dialect->chat ? max_len : 16;
        if (want == 0 && g->f.echo && !g->dialect->chat) {
            want = 1; /* scoring: one token is made and dropped */
        }
        if (room < 1 || (!g->dialect->chat && g->f.has_max_tokens && want > room)) {
            return fail_length(g, e, "input_tokens", "", (size_t)p->n);
        }
        want = want > room ? room : want;
        if (d->has_max_new_tokens && want > d->max_new_tokens) {
            want = d->max_new_tokens;
        }
        p->max_tokens = want;
        for (int k = 0; k < p->n; k++) {
            if (p->ids[k] < 0 || p->ids[k] >= s->model.vocab_size) {
                return api_fail(e, 400, TYPE_BAD, "prompt", "Token id %d is out of vocabulary",
                                p->ids[k]);
            }
        }
        struct err err = {0};
        const char *field = NULL;
        g->f.sp.max_tokens = want;
        g->f.sp.n_logprobs = g->f.logprobs;
        g->f.sp.n_prompt_logprobs = g->f.prompt_logprobs;
        if (!g->dialect->chat && g->f.echo && g->f.logprobs > g->f.prompt_logprobs) {
            g->f.sp.n_prompt_logprobs = g->f.logprobs;
        }
        if (sampling_params_check(&g->f.sp, s->model.vocab_size, s->o.max_logprobs, &field, &err) !=
            0) {
            if (field && g->dialect->chat && strcmp(field, "logprobs") == 0) {
                field = "top_logprobs";
            }
            return api_fail_param(e, field, field ? json_get(g->json, field) : NULL, "%s",
                                  err.text);
        }
    }
    return 0;
}

/* Whether a list of ids in the body is so long that it can't be a prompt: known before the list is
 * built. */
int gen_is_hopeless(struct gen *g)
{
    static const char cut[] = "\"truncate_prompt_tokens\"";
    if (g->body_bytes < (size_t)g->server->model.max_model_len) {
        return 0;
    }
    struct body_size m = fields_measure(g->body, g->body_bytes);
    if (m.longest_id_prompt < (size_t)g->server->model.max_model_len ||
        memmem(g->body, g->body_bytes, cut, sizeof cut - 1) != NULL) {
        return 0;
    }
    fail_length(g, &g->error, "input_tokens", "", m.longest_id_prompt);
    return 1;
}
