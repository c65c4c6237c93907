/* SPDX-License-Identifier: Apache-2.0 */
/* POST /inference/v1/generate: token ids in, token ids out, for front ends that render and
 * detokenize elsewhere. What the render routes answer is a request of this route. The request is
 * translated into a completion (sparams.c); the answer has no text. */
#include "api/sparams.h"

#include <string.h>

static const char *const known_fields[] = {
    "request_id",     "token_ids",  "features", "sampling_params",    "model", "stream",
    "stream_options", "cache_salt", "priority", "kv_transfer_params", NULL,
};

static int translate(struct gen *g, struct api_error *e)
{
    static const char *const copied[] = {"request_id",        "model",      "stream",
                                         "stream_options",    "cache_salt", "priority",
                                         "kv_transfer_params"};
    const struct json *ids = json_get(g->json, "token_ids"),
                      *params = json_get(g->json, "sampling_params");
    struct buf b;
    struct json_writer w;
    if (json_type(ids) != JSON_ARRAY || json_length(ids) == 0) {
        return api_fail_field(e, "token_ids", ids ? "list_type" : "missing", ids,
                              "Input should be a non-empty list of token ids");
    }
    for (size_t i = 0; i < json_length(ids); i++) {
        if (json_type(json_at(ids, i)) != JSON_INT) { /* a list of lists is several prompts */
            return api_fail_field(e, "token_ids", "int_type", json_at(ids, i),
                                  "Input should be a valid integer");
        }
    }
    if (json_type(params) != JSON_OBJECT) {
        return api_fail_field(e, "sampling_params", params ? "dict_type" : "missing", params,
                              params ? "Input should be a valid dictionary" : "Field required");
    }
    if (json_type(json_get(g->json, "features")) != JSON_NULL) {
        return api_fail_param(e, "features", json_get(g->json, "features"),
                              "features of images are not supported: this model takes text only");
    }
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_key(&w, "prompt");
    json_w_value(&w, ids);
    for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++) {
        json_w_key(&w, copied[i]);
        json_w_value(&w, json_get(g->json, copied[i]));
    }
    if (sparams_to_fields(params, "sampling_params.", NULL, &w, e) < 0) {
        buf_fini(&b);
        return -1;
    }
    json_w_object_end(&w);
    return sparams_replace_request(g, &b, e);
}

static int parse(struct gen *g, struct api_error *e)
{
    if (translate(g, e) < 0 || completions_dialect.parse(g, e) < 0) {
        return -1;
    }
    g->f.return_token_ids = g->f.tokens_as_ids = 1;
    return 0;
}

static void write_choice(const struct gen *g, const struct gen_sample *s, struct json_writer *w)
{
    json_w_object(w);
    json_w_kint(w, "index", s->choice);
    json_w_key(w, "logprobs");
    if (g->f.logprobs >= 0) {
        json_w_object(w);
        json_w_key(w, "content");
        gen_write_raw_array(w, &s->lp_content);
        json_w_object_end(w);
    } else {
        json_w_null(w);
    }
    gen_write_finish_reason(s, w);
    gen_write_token_ids(s, w);
    json_w_object_end(w);
}

static void chunk(struct gen *g, struct gen_sample *s, const char *text, size_t n_bytes,
                  struct buf *out)
{
    struct json_writer w;
    (void)text;
    (void)n_bytes;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kstring(&w, "request_id", g->id);
    json_w_key(&w, "choices");
    json_w_array(&w);
    write_choice(g, s, &w);
    json_w_array_end(&w);
    if (g->f.continuous_usage) {
        gen_write_usage(g, &w, s, 1);
    }
    json_w_object_end(&w);
}

static void usage_chunk(struct gen *g, struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kstring(&w, "request_id", g->id);
    json_w_key(&w, "choices");
    json_w_array(&w);
    json_w_array_end(&w);
    gen_write_usage(g, &w, NULL, 1);
    json_w_object_end(&w);
}

static void body(struct gen *g, struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kstring(&w, "request_id", g->id);
    json_w_key(&w, "choices");
    json_w_array(&w);
    for (int i = 0; i < g->n_samples; i++) {
        write_choice(g, &g->samples[i], &w);
    }
    json_w_array_end(&w);
    gen_write_usage(g, &w, NULL, 0);
    json_w_key(&w, "prompt_logprobs");
    if (g->f.prompt_logprobs >= 0) {
        gen_write_raw_array(&w, &g->prompts[0].prompt_lp);
    } else {
        json_w_null(&w);
    }
    json_w_knull(&w, "kv_transfer_params");
    json_w_object_end(&w);
}

/* chat: max_tokens fills the context when absent, and log-probabilities have the chat form. */
const struct gen_dialect inference_dialect = {
    .id_prefix = "generate-tokens-",
    .fields = known_fields,
    .chat = 1,
    .parse = parse,
    .chunk = chunk,
    .usage_chunk = usage_chunk,
    .body = body,
};

void inference_handle(struct server *s, struct http_exchange *x)
{
    gen_start(s, x, &inference_dialect);
}
