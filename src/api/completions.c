/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/completions: prompts as text or ids, one or many; echo; every declared field of the
 * response, nulls included, in vLLM's order. */
#include "api/gen.h"

#include "base/utf8.h"

#include <limits.h>
#include <string.h>

static int add_text_prompt(struct gen *g, struct gen_prompt *p, const struct json *text,
                           struct api_error *e)
{
    struct err err = {0};
    struct token_ids ids = {0};
    size_t n;
    const char *s = json_string(text, &n);
    int rc = -1;
    if (n == 0) {
        return api_fail(e, 400, TYPE_BAD, "prompt", "The prompt must be provided and non-empty.");
    }
    if (gen_check_text(g, s, n, e) < 0) {
        return -1;
    }
    if (tokenizer_encode(g->server->model.tokenizer, s, n, 1, &ids, &err) != 0) {
        api_fail_err(e, &err);
    } else {
        rc = gen_set_ids(g, p, ids.ids, ids.n, e);
    }
    if (rc == 0 && g->f.echo && !g->f.has_truncate) {
        buf_append(&p->echo_text, s, n);
    }
    token_ids_fini(&ids);
    return rc;
}

static int parse_prompts(struct gen *g, struct api_error *e)
{
    const struct json *v = json_get(g->json, "prompt");
    const struct json *first = json_type(v) == JSON_ARRAY ? json_at(v, 0) : NULL;
    int many = json_type(v) == JSON_ARRAY && json_type(first) != JSON_INT;
    size_t n = many ? json_length(v) : 1;
    if (json_type(v) == JSON_NULL || (json_type(v) == JSON_ARRAY && json_length(v) == 0)) {
        return api_fail(e, 400, TYPE_BAD, "prompt",
                        "Either prompt or prompt_embeds must be provided and non-empty.");
    }
    if (json_type(v) != JSON_STRING && json_type(v) != JSON_ARRAY) {
        return api_fail_field(
            e, "prompt", "string_type", v,
            "Input should be a string, a list of strings, a list of token ids or a list of those");
    }
    if (n > (size_t)g->server->o.max_prompts) {
        return api_fail_field(e, "prompt", "too_long", NULL,
                              "At most %d prompts are allowed, got %zu", g->server->o.max_prompts,
                              n);
    }
    if (n * (size_t)(g->f.sp.n > 0 ? g->f.sp.n : 1) > (size_t)g->server->o.max_n) {
        return api_fail_param(e, "n", json_get(g->json, "n"),
                              "%zu prompts of %d samples are more than %d choices", n, g->f.sp.n,
                              g->server->o.max_n);
    }
    if (gen_add_prompts(g, (int)n, e) < 0) {
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        const struct json *item = many ? json_at(v, i) : v;
        int rc;
        if (json_type(item) == JSON_STRING) {
            rc = add_text_prompt(g, &g->prompts[i], item, e);
        } else if (json_type(item) == JSON_ARRAY) {
            rc = gen_set_id_list(g, &g->prompts[i], item, "prompt", e);
        } else {
            rc = api_fail_field(e, "prompt", "string_type", item,
                                "Input should be a string, a list of strings, a list of token ids "
                                "or a list of those");
        }
        if (rc < 0) {
            return -1;
        }
        if (g->f.echo && g->prompts[i].echo_text.len == 0) {
            tokenizer_decode(g->server->model.tokenizer, g->prompts[i].ids, (size_t)g->prompts[i].n,
                             0, &g->prompts[i].echo_text);
        }
    }
    return 0;
}

static int parse(struct gen *g, struct api_error *e)
{
    struct fields f = {g->json, "", e, &g->arena};
    int k = 0, rc;
    const char *suffix = NULL;
    g->f.sp.n = 1;
    if (gen_parse_common(g, &f, e) < 0 || field_string(&f, "suffix", &suffix) < 0) {
        return -1;
    }
    if (suffix && suffix[0]) {
        return api_fail_param(e, "suffix", json_get(g->json, "suffix"),
                              "suffix is not currently supported");
    }
    static const char *const budgets[] = {"thinking_token_budget", "reasoning_max_tokens"};
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        const struct json *budget = json_get(g->json, budgets[i]);
        if (json_type(budget) != JSON_NULL) {
            return api_fail_param(e, budgets[i], budget,
                                  "%s is for chats: only there is it known whether the prompt "
                                  "begins reasoning",
                                  budgets[i]);
        }
    }
    g->f.max_tokens = 16;
    rc = gen_parse_max_tokens(g, &f, "max_tokens");
    if (rc < 0) {
        return -1;
    }
    if (rc && g->f.max_tokens < (g->f.echo ? 0 : 1)) {
        return api_fail_param(e, "max_tokens", json_get(g->json, "max_tokens"),
                              "max_tokens must be at least 1, got %d.", g->f.max_tokens);
    }
    rc = field_int32(&f, "logprobs", INT_MIN, INT_MAX, &k);
    if (rc < 0) {
        return -1;
    }
    if (rc && k < -1) {
        return api_fail(e, 400, TYPE_SCHEMA, "logprobs",
                        "`logprobs` must be a positive value or -1.");
    }
    g->f.logprobs = !rc ? -1 : k == -1 ? g->server->model.vocab_size : k;
    return parse_prompts(g, e) < 0 ? -1 : gen_check_lengths(g, e);
}

static void write_logprobs(const struct gen *g, const struct gen_sample *s, int with_prompt,
                           struct json_writer *w)
{
    json_w_key(w, "logprobs");
    if (g->f.logprobs < 0) {
        json_w_null(w);
        return;
    }
    if (!with_prompt) {
        logprobs_write_completion(w, &s->lp_tokens, &s->lp_values, &s->lp_tops, &s->lp_offsets);
        return;
    }
    const struct buf *own[4] = {&s->lp_tokens, &s->lp_values, &s->lp_tops, &s->lp_offsets};
    const struct buf *prompt[4] = {&s->prompt->echo_tokens, &s->prompt->echo_values,
                                   &s->prompt->echo_tops, &s->prompt->echo_offsets};
    struct buf joined[4];
    for (int i = 0; i < 4; i++) {
        buf_init(&joined[i]);
        buf_append(&joined[i], prompt[i]->data ? prompt[i]->data : "", prompt[i]->len);
        buf_puts(&joined[i], joined[i].len && own[i]->len ? "," : "");
        buf_append(&joined[i], own[i]->data ? own[i]->data : "", own[i]->len);
    }
    logprobs_write_completion(w, &joined[0], &joined[1], &joined[2], &joined[3]);
    for (int i = 0; i < 4; i++) {
        buf_fini(&joined[i]);
    }
}

static void write_text(struct json_writer *w, const struct buf *echo, const char *text, size_t n)
{
    json_w_key(w, "text");
    if (!echo || echo->len == 0) {
        json_w_stringn(w, text, n);
        return;
    }
    struct buf b;
    buf_init(&b);
    buf_append(&b, echo->data, echo->len);
    buf_append(&b, text, n);
    json_w_stringn(w, b.data ? b.data : "", b.len);
    buf_fini(&b);
}

static void chunk(struct gen *g, struct gen_sample *s, const char *text, size_t n_bytes,
                  struct buf *out)
{
    struct json_writer w;
    int echo = g->f.echo && !s->started;
    json_w_init(&w, out);
    json_w_object(&w);
    gen_write_head(g, &w, "text_completion");
    json_w_key(&w, "choices");
    json_w_array(&w);
    json_w_object(&w);
    json_w_kint(&w, "index", s->choice);
    write_text(&w, echo ? &s->prompt->echo_text : NULL, text, n_bytes);
    write_logprobs(g, s, echo, &w);
    gen_write_finish_reason(s, &w);
    gen_write_stop_reason(g, s, &w);
    if (s->started) {
        json_w_knull(&w, "prompt_token_ids");
    } else {
        gen_write_prompt_ids(s->prompt, &w);
    }
    gen_write_token_ids(s, &w);
    json_w_object_end(&w);
    json_w_array_end(&w);
    if (g->f.continuous_usage) {
        gen_write_usage(g, &w, s, 1);
    }
    if (s->done && !g->f.include_usage) {
        json_w_kstring(&w, "system_fingerprint", g->server->fingerprint);
    }
    json_w_object_end(&w);
}

static void usage_chunk(struct gen *g, struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    gen_write_head(g, &w, "text_completion");
    json_w_key(&w, "choices");
    json_w_array(&w);
    json_w_array_end(&w);
    json_w_kstring(&w, "system_fingerprint", g->server->fingerprint);
    gen_write_usage(g, &w, NULL, 1);
    json_w_object_end(&w);
}

static void body(struct gen *g, struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    gen_write_head(g, &w, "text_completion");
    json_w_key(&w, "choices");
    json_w_array(&w);
    for (int i = 0; i < g->n_samples; i++) {
        struct gen_sample *s = &g->samples[i];
        size_t n;
        const char *text = output_take(&s->out, &n);
        if (g->f.has_max_tokens && g->f.max_tokens == 0) {
            n = 0;
        }
        json_w_object(&w);
        json_w_kint(&w, "index", s->choice);
        write_text(&w, g->f.echo ? &s->prompt->echo_text : NULL, text, n);
        write_logprobs(g, s, g->f.echo, &w);
        gen_write_finish_reason(s, &w);
        gen_write_stop_reason(g, s, &w);
        gen_write_token_ids(s, &w);
        json_w_key(&w, "prompt_logprobs");
        if (g->f.prompt_logprobs >= 0) {
            gen_write_raw_array(&w, &s->prompt->prompt_lp);
        } else {
            json_w_null(&w);
        }
        gen_write_prompt_ids(s->prompt, &w);
        json_w_knull(&w, "routed_experts");
        json_w_object_end(&w);
    }
    json_w_array_end(&w);
    json_w_knull(&w, "service_tier");
    json_w_kstring(&w, "system_fingerprint", g->server->fingerprint);
    gen_write_usage(g, &w, NULL, 0);
    json_w_knull(&w, "kv_transfer_params");
    json_w_knull(&w, "ec_transfer_params");
    gen_write_metrics(g, &w);
    json_w_object_end(&w);
}

const struct gen_dialect completions_dialect = {
    .id_prefix = "cmpl-",
    .chat = 0,
    .parse = parse,
    .chunk = chunk,
    .usage_chunk = usage_chunk,
    .body = body,
};

void completions_handle(struct server *s, struct http_exchange *x)
{
    gen_start(s, x, &completions_dialect);
}
