/* SPDX-License-Identifier: Apache-2.0 */
/* The fields that completions and chat share: types and schema ranges here, sampling ranges in
 * sampling_params_check. A field we can't honour yet is refused by name, never ignored: a client
 * that asked for a schema or a beam and got plain sampling would not notice. */
#include "api/gen.h"
#include "text/words.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LOGPROB_IDS 128 /* one more is kept, for sampling_params_check to refuse */

static int is_set(const struct json *v)
{
    switch (json_type(v)) {
    case JSON_NULL:
        return 0;
    case JSON_BOOL:
        return json_bool(v);
    case JSON_ARRAY:
    case JSON_OBJECT:
        return json_length(v) > 0;
    default:
        return 1;
    }
}

/* Fields with no meaning here yet, and fields that older releases had. */
static int refuse_unsupported(const struct json *body, struct api_error *e)
{
    static const struct {
        const char *name, *why;
    } table[] = {
        {"structural_tag", "structural_tag is not supported by this version"},
        {"early_stopping",
         "early_stopping is not supported: beam search ends when no beam can win"},
        {"prompt_embeds", "prompt_embeds is not supported"},
        {"logits_processors", "logits_processors needs Python, and there is none"},
        {"kv_transfer_params",
         "kv_transfer_params needs a KV transfer configuration, and none is configured"},
        {"ec_transfer_params", "ec_transfer_params is not supported"},
        {"return_assistant_tokens_mask", "return_assistant_tokens_mask is not supported"},
        {"functions", "functions was replaced by tools"},
        {"audio", "audio output is not supported"},
        {"disable_chat_template",
         "disable_chat_template is not supported: send the text to /v1/completions"},
        {"prompt_token_ids", "prompt_token_ids is not supported in requests: send the ids as "
                             "prompt to /v1/completions"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const struct json *v = json_get(body, table[i].name);
        if (is_set(v)) {
            return api_fail_param(e, table[i].name, v, "%s", table[i].why);
        }
    }
    return 0;
}

static int parse_stream(struct gen *g, const struct fields *f)
{
    struct gen_fields *o = &g->f;
    const struct json *options = NULL;
    if (field_bool(f, "stream", &o->stream) < 0 ||
        field_object(f, "stream_options", &options) < 0) {
        return -1;
    }
    if (options && !o->stream) {
        return api_fail(f->e, 400, TYPE_SCHEMA, "stream_options",
                        "Stream options can only be defined when `stream=True`.");
    }
    if (options) {
        struct fields inner = {options, "stream_options.", f->e, f->arena};
        if (field_bool(&inner, "include_usage", &o->include_usage) < 0 ||
            field_bool(&inner, "continuous_usage_stats", &o->continuous_usage) < 0 ||
            field_bool(&inner, "include_progress", &o->include_progress) < 0) {
            return -1;
        }
        o->continuous_usage &= o->include_usage;
    }
    if (o->stream && g->server->o.enable_force_include_usage) {
        o->include_usage = o->continuous_usage = 1;
    }
    return field_int32(f, "stream_interval", 1, INT_MAX, &o->stream_interval) < 0 ? -1 : 0;
}

static int parse_stop(struct gen *g, const struct fields *f)
{
    struct gen_fields *o = &g->f;
    const struct json *v = json_get(f->object, "stop");
    size_t n = json_type(v) == JSON_STRING ? 1 : json_type(v) == JSON_ARRAY ? json_length(v) : 0;
    if (json_type(v) != JSON_NULL && json_type(v) != JSON_STRING && json_type(v) != JSON_ARRAY) {
        return fail_field(f, "stop", "string_type",
                          "Input should be a string or a list of strings");
    }
    if (n > (size_t)g->server->o.max_stop_strings) {
        return api_fail_field(f->e, "stop", "too_long", v,
                              "At most %d stop strings are allowed, got %zu",
                              g->server->o.max_stop_strings, n);
    }
    o->stop = arena_alloc(&g->arena, (n + 1) * sizeof *o->stop);
    o->stop_bytes = arena_alloc(&g->arena, (n + 1) * sizeof *o->stop_bytes);
    if (!o->stop || !o->stop_bytes) {
        return api_fail(f->e, 503, "ServiceUnavailableError", NULL, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        const struct json *item = json_type(v) == JSON_STRING ? v : json_at(v, i);
        if (json_type(item) != JSON_STRING) {
            return fail_field(f, "stop", "string_type",
                              "Input should be a string or a list of strings");
        }
        const char *text = json_string(item, &o->stop_bytes[i]);
        if (o->stop_bytes[i] == 0) {
            return api_fail_param(f->e, "stop", v, "stop cannot contain an empty string.");
        }
        o->stop[i] = arena_strndup(&g->arena, text, o->stop_bytes[i]);
        if (!o->stop[i]) {
            return api_fail(f->e, 503, "ServiceUnavailableError", NULL, "out of memory");
        }
        o->n_stop++;
    }
    return 0;
}

static int parse_logit_bias(struct gen *g, const struct fields *f)
{
    const struct json *v = NULL, *bias;
    int rc = field_object(f, "logit_bias", &v);
    if (rc <= 0) {
        return rc;
    }
    struct token_bias *list = arena_alloc(&g->arena, (json_length(v) + 1) * sizeof *list);
    if (!list) {
        return api_fail(f->e, 503, "ServiceUnavailableError", NULL, "out of memory");
    }
    size_t it = 0, key_bytes;
    const char *key;
    int n = 0;
    while (json_next(v, &it, &key, &key_bytes, &bias)) {
        char *end;
        long id = strtol(key, &end, 10);
        if (key_bytes == 0 || *end || (size_t)(end - key) != key_bytes) {
            return api_fail_param(f->e, "logit_bias", v, "logit_bias keys must be token ids");
        }
        if (json_type(bias) != JSON_INT && json_type(bias) != JSON_DOUBLE) {
            return fail_field(f, "logit_bias", "float_type",
                              "Input should be a map from token ids to numbers");
        }
        if (id < 0 || id >= g->server->model.vocab_size) {
            return api_fail_param(f->e, "logit_bias", v,
                                  "token_id %ld in logit_bias contains out-of-vocab token id. "
                                  "Vocabulary size: %d",
                                  id, g->server->model.vocab_size);
        }
        double b = json_double(bias);
        list[n++] = (struct token_bias){(int32_t)id, (float)(b > 100 ? 100 : b < -100 ? -100 : b)};
    }
    g->f.sp.logit_bias = list;
    g->f.sp.n_logit_bias = n;
    return 0;
}

/* FastDeploy's form: ids that may not appear, each by itself. Behind the bad words in their list.
 */
static int parse_bad_ids(struct gen *g, const struct fields *f)
{
    struct sampling_params *p = &g->f.sp;
    const int32_t *ids = NULL;
    int n = 0;
    int rc = field_ids(f, "bad_words_token_ids", 0, g->server->model.vocab_size - 1, &ids, &n);
    if (rc <= 0 || n == 0) {
        return rc < 0 ? -1 : 0;
    }
    if (n > WORDS_MAX) {
        return api_fail_param(f->e, "bad_words_token_ids", NULL,
                              "At most %d bad words are allowed, got %d", WORDS_MAX, n);
    }
    struct token_seq *list = arena_alloc(&g->arena, (size_t)(p->n_bad_words + n) * sizeof *list);
    if (!list) {
        return api_fail(f->e, 503, "ServiceUnavailableError", NULL, "out of memory");
    }
    if (p->n_bad_words > 0) {
        memcpy(list, p->bad_words, (size_t)p->n_bad_words * sizeof *list);
    }
    for (int i = 0; i < n; i++) {
        list[p->n_bad_words++] = (struct token_seq){&ids[i], 1};
    }
    p->bad_words = list;
    return 0;
}

/* Each word as the ids it may appear as: at the start and after a space. */
static int parse_bad_words(struct gen *g, const struct fields *f)
{
    const struct json *v = NULL;
    int rc = field_array(f, "bad_words", &v);
    if (rc <= 0 || json_length(v) == 0) {
        return rc < 0 ? -1 : 0;
    }
    if (json_length(v) > WORDS_MAX) { /* before any of them is tokenized */
        return api_fail_param(f->e, "bad_words", NULL, "At most %d bad words are allowed, got %zu",
                              WORDS_MAX, json_length(v));
    }
    struct token_seq *list = arena_alloc(&g->arena, 2 * json_length(v) * sizeof *list);
    struct token_ids ids = {0};
    int n = 0;
    rc = list ? 0 : api_fail(f->e, 503, "ServiceUnavailableError", NULL, "out of memory");
    for (size_t i = 0; rc == 0 && i < 2 * json_length(v); i++) {
        size_t len = 0;
        struct err err = {0};
        const struct json *item = json_at(v, i / 2);
        if (json_type(item) != JSON_STRING) {
            rc = fail_field(f, "bad_words", "string_type", "Input should be a list of strings");
            break;
        }
        const char *word = json_string(item, &len);
        ids.n = 0;
        int code = words_encode(g->server->model.tokenizer, word, len, i & 1, &ids, &err);
        if (code == ERR_INVALID) {
            rc = api_fail_param(f->e, "bad_words", len ? item : v, "%s", err.text);
        } else if (code < 0) {
            rc = api_fail_err(f->e, &err);
        } else if (ids.n > 0) {
            list[n].ids = arena_memdup(&g->arena, ids.ids, ids.n * sizeof *ids.ids);
            list[n].n = (int)ids.n;
            n++;
        }
    }
    token_ids_fini(&ids);
    g->f.sp.bad_words = list;
    g->f.sp.n_bad_words = n;
    return rc;
}

static int parse_counts(struct gen *g, const struct fields *f)
{
    struct gen_fields *o = &g->f;
    struct sampling_params *p = &o->sp;
    int best_of = 0;
    int64_t seed = -1;
    if (field_int32(f, "n", INT_MIN, INT_MAX, &p->n) < 0 ||
        field_int32(f, "best_of", INT_MIN, INT_MAX, &best_of) < 0 ||
        field_int32(f, "min_tokens", INT_MIN, INT_MAX, &p->min_tokens) < 0 ||
        field_int32(f, "top_k", INT_MIN, INT_MAX, &p->top_k) < 0 ||
        field_int(f, "seed", INT64_MIN, INT64_MAX, &seed) < 0 ||
        field_int32(f, "priority", INT_MIN, INT_MAX, &o->priority) < 0) {
        return -1;
    }
    if (p->n > g->server->o.max_n) {
        return api_fail_param(f->e, "n", json_get(f->object, "n"), "n must be at most %d, got %d.",
                              g->server->o.max_n, p->n);
    }
    if (json_type(json_get(f->object, "best_of")) != JSON_NULL && best_of != 1 && best_of != p->n) {
        return api_fail_param(f->e, "best_of", json_get(f->object, "best_of"),
                              "best_of is not supported: every sample is returned, use n");
    }
    p->has_seed = json_type(json_get(f->object, "seed")) != JSON_NULL && seed != -1;
    p->seed = p->has_seed ? seed : 0;
    o->has_truncate = field_int32(f, "truncate_prompt_tokens", -1, INT_MAX, &o->truncate);
    if (o->has_truncate < 0) {
        return -1;
    }
    const char *side = NULL;
    if (field_string(f, "truncation_side", &side) < 0) {
        return -1;
    }
    if (side && strcmp(side, "left") != 0 && strcmp(side, "right") != 0) {
        return fail_field(f, "truncation_side", "literal_error",
                          "Input should be 'left' or 'right'");
    }
    o->truncate_left = !side || side[0] == 'l';
    return 0;
}

static int parse_repetition(struct gen *g, const struct fields *f)
{
    struct repetition_rule *r = &g->f.sp.repetition;
    const struct json *v = NULL;
    int rc = field_object(f, "repetition_detection", &v);
    if (rc <= 0) {
        return rc;
    }
    struct fields inner = {v, "repetition_detection.", f->e, f->arena};
    return field_int32(&inner, "max_pattern_size", INT_MIN, INT_MAX, &r->max_pattern) < 0 ||
                   field_int32(&inner, "min_pattern_size", INT_MIN, INT_MAX, &r->min_pattern) < 0 ||
                   field_int32(&inner, "min_count", INT_MIN, INT_MAX, &r->min_count) < 0
               ? -1
               : 0;
}

/* The same id twice would be one entry of the answer. */
static int parse_logprob_ids(struct gen *g, const struct fields *f)
{
    const int32_t *ids = NULL;
    int n = 0, n_kept = 0;
    int rc = field_ids(f, "logprob_token_ids", 0, g->server->model.vocab_size - 1, &ids, &n);
    int32_t *kept = rc > 0 ? arena_alloc(&g->arena, (size_t)(n + 1) * sizeof *kept) : NULL;
    if (rc <= 0) {
        return rc;
    }
    if (!kept) {
        return api_fail(f->e, 503, "ServiceUnavailableError", NULL, "out of memory");
    }
    for (int i = 0; i < n && n_kept <= MAX_LOGPROB_IDS; i++) {
        int seen = 0;
        for (int k = 0; k < n_kept; k++) {
            seen |= kept[k] == ids[i];
        }
        if (!seen) {
            kept[n_kept++] = ids[i];
        }
    }
    g->f.sp.logprob_token_ids = kept;
    g->f.sp.n_logprob_token_ids = n_kept;
    return 0;
}

static int parse_sampling(struct gen *g, const struct fields *f)
{
    const struct sampling_defaults *d = &g->server->o.generation;
    struct gen_fields *o = &g->f;
    struct sampling_params *p = &o->sp;
    int vocab = g->server->model.vocab_size;
    sampling_params_init(p);
    p->temperature = d->has_temperature ? d->temperature : 1.0;
    p->top_p = d->has_top_p ? d->top_p : 1.0;
    p->top_k = d->has_top_k ? d->top_k : 0;
    p->min_p = d->has_min_p ? d->min_p : 0.0;
    p->repetition_penalty = d->has_repetition_penalty ? d->repetition_penalty : 1.0;
    if (field_double(f, "temperature", &p->temperature) < 0 ||
        field_double(f, "top_p", &p->top_p) < 0 || field_double(f, "min_p", &p->min_p) < 0 ||
        field_double(f, "repetition_penalty", &p->repetition_penalty) < 0 ||
        field_double(f, "presence_penalty", &p->presence_penalty) < 0 ||
        field_double(f, "frequency_penalty", &p->frequency_penalty) < 0 || parse_counts(g, f) < 0 ||
        field_bool(f, "ignore_eos", &p->ignore_eos) < 0 || parse_logit_bias(g, f) < 0 ||
        parse_bad_words(g, f) < 0 || parse_bad_ids(g, f) < 0 || parse_repetition(g, f) < 0 ||
        parse_logprob_ids(g, f) < 0 ||
        field_ids(f, "stop_token_ids", INT32_MIN, INT32_MAX, &p->stop_token_ids,
                  &p->n_stop_token_ids) < 0) {
        return -1;
    }
    int rc = field_ids(f, "allowed_token_ids", 0, vocab - 1, &p->allowed_token_ids,
                       &p->n_allowed_token_ids);
    if (rc > 0 && p->n_allowed_token_ids == 0) {
        return api_fail_param(f->e, "allowed_token_ids", json_get(f->object, "allowed_token_ids"),
                              "allowed_token_ids is not None and empty!");
    }
    return rc < 0 ? -1 : 0;
}

static int parse_prompt_logprobs(struct gen *g, const struct fields *f)
{
    int k = 0;
    int rc = field_int32(f, "prompt_logprobs", INT_MIN, INT_MAX, &k);
    if (rc <= 0) {
        return rc;
    }
    const struct json *v = json_get(f->object, "prompt_logprobs");
    if (k < -1) {
        return api_fail(f->e, 400, TYPE_SCHEMA, "prompt_logprobs",
                        "`prompt_logprobs` must be a positive value or -1.");
    }
    if (g->f.stream && k != 0) {
        return api_fail(f->e, 400, TYPE_SCHEMA, "prompt_logprobs",
                        "`prompt_logprobs` are not available when `stream=True`.");
    }
    int limit = g->server->o.max_logprobs, vocab = g->server->model.vocab_size;
    if (limit >= 0 && (k == -1 ? vocab : k) > limit) {
        return api_fail_param(
            f->e, "prompt_logprobs", v,
            "Requested prompt logprobs of %d, which is greater than max allowed: %d", k, limit);
    }
    g->f.prompt_logprobs = k == -1 ? vocab : k;
    return 0;
}

/* Beam search looks for likely texts and draws nothing: what only shapes a draw has no meaning in
 * it (as in vLLM), and what would forbid or end texts is refused. */
static int parse_beams(struct gen *g, const struct fields *f)
{
    static const char *const refused[] = {"stop",
                                          "logit_bias",
                                          "allowed_token_ids",
                                          "bad_words",
                                          "bad_words_token_ids",
                                          "min_tokens",
                                          "repetition_penalty",
                                          "presence_penalty",
                                          "frequency_penalty",
                                          "repetition_detection",
                                          "logprob_token_ids"};
    struct sampling_params *p = &g->f.sp;
    if (field_bool(f, "use_beam_search", &p->use_beam_search) < 0 ||
        field_double(f, "length_penalty", &p->length_penalty) < 0) {
        return -1;
    }
    for (size_t i = 0; p->use_beam_search && i < sizeof refused / sizeof *refused; i++) {
        const struct json *v = json_get(f->object, refused[i]);
        int is_number = json_type(v) == JSON_INT || json_type(v) == JSON_DOUBLE;
        double neutral = strcmp(refused[i], "repetition_penalty") == 0 ? 1.0 : 0.0;
        if (is_number ? json_double(v) != neutral : is_set(v)) {
            return api_fail_param(f->e, refused[i], v, "%s can't be used with use_beam_search",
                                  refused[i]);
        }
    }
    if (p->use_beam_search && g->f.grammar) {
        return api_fail(f->e, 400, TYPE_BAD, "use_beam_search",
                        "structured output can't be used with use_beam_search");
    }
    return 0;
}

int gen_parse_max_tokens(struct gen *g, const struct fields *f, const char *name)
{
    int64_t v;
    int rc = field_int(f, name, INT64_MIN, INT64_MAX, &v);
    if (rc > 0) {
        g->f.has_max_tokens = 1;
        g->f.max_tokens = v > INT_MAX / 2 ? INT_MAX / 2 : v < INT_MIN ? INT_MIN : (int)v;
    }
    return rc;
}

int gen_parse_common(struct gen *g, const struct fields *f, struct api_error *e)
{
    struct gen_fields *o = &g->f;
    const char *ignored;
    int flag;
    o->logprobs = o->prompt_logprobs = -1;
    o->skip_special = 1;
    o->stream_interval = g->server->o.stream_interval;
    o->tokens_as_ids = g->server->o.return_tokens_as_token_ids;
    if (field_string(f, "model", &ignored) < 0 || parse_stream(g, f) < 0 || parse_stop(g, f) < 0 ||
        field_bool(f, "echo", &o->echo) < 0 ||
        field_bool(f, "include_stop_str_in_output", &o->include_stop_str) < 0 ||
        field_bool(f, "skip_special_tokens", &o->skip_special) < 0 ||
        field_bool(f, "spaces_between_special_tokens", &flag) < 0 ||
        field_bool(f, "add_special_tokens", &flag) < 0 ||
        field_bool(f, "return_token_ids", &o->return_token_ids) < 0 ||
        field_bool(f, "return_tokens_as_token_ids", &o->tokens_as_ids) < 0 ||
        field_string(f, "cache_salt", &o->cache_salt) < 0 ||
        field_string(f, "request_id", &o->request_id) < 0 ||
        field_string(f, "session_id", &ignored) < 0 || field_string(f, "user", &ignored) < 0) {
        return -1;
    }
    if (o->cache_salt && !o->cache_salt[0]) {
        return api_fail(e, 400, TYPE_SCHEMA, "cache_salt",
                        "Parameter 'cache_salt' must be a non-empty string if provided.");
    }
    if (check_model_name(g->server, f->object, e) < 0 || refuse_unsupported(f->object, e) < 0) {
        return -1;
    }
    if (parse_sampling(g, f) < 0 || parse_prompt_logprobs(g, f) < 0) {
        return -1;
    }
    return structured_parse(g->server->structured, f, &o->grammar) < 0 ? -1 : parse_beams(g, f);
}

/* ---- names ---- */

static const char *const openai_fields[] = {
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "best_of",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "suffix",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "allowed_token_ids",
    "bad_words",
    "bad_words_token_ids",
    "reasoning_max_tokens",
    "seed",
    "stream",
    "stream_options",
    "use_beam_search",
    "length_penalty",
    "add_special_tokens",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_whitespace_pattern",
    "guided_decoding_backend",
    "priority",
    "request_id",
    "session_id",
    "user",
    "return_tokens_as_token_ids",
    "return_token_ids",
    "cache_salt",
    "vllm_xargs",
    "stream_interval",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "include_reasoning",
    "add_generation_prompt",
    "continue_final_message",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "return_prompt_text",
    "enable_thinking",
    "store",
    "metadata",
    "service_tier",
    "logprob_token_ids",
    "repetition_detection",
    "thinking_token_budget",
    "kv_transfer_params",
    "ec_transfer_params",
    "prompt_embeds",
    "return_assistant_tokens_mask",
    "functions",
    "audio",
    "early_stopping",
    "logits_processors",
    "disable_chat_template",
    "prompt_token_ids",
    NULL,
};

const char *const *gen_fields(const struct gen_dialect *d)
{
    return d->fields ? d->fields : openai_fields;
}
