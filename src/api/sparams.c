/* SPDX-License-Identifier: Apache-2.0 */
/* Translation, not a second reader: a request of another dialect becomes the JSON of a completion,
 * and the one parser of completions checks it. So a parameter has one meaning and one range on
 * every route. */
#include "api/sparams.h"

#include <stdio.h>
#include <string.h>

enum member_kind {
    MEMBER_COPIED,
    MEMBER_NUMBER, /* copied, with a neutral default */
    MEMBER_FREE,   /* changes no answer of ours, whatever its value */
};

struct member {
    const char *name;
    enum member_kind kind;
    double neutral;
};

static const struct member members[] = {
    {"n", MEMBER_COPIED, 0},
    {"best_of", MEMBER_COPIED, 0},
    {"presence_penalty", MEMBER_COPIED, 0},
    {"frequency_penalty", MEMBER_COPIED, 0},
    {"repetition_penalty", MEMBER_NUMBER, 1},
    {"temperature", MEMBER_NUMBER, 1},
    {"top_p", MEMBER_NUMBER, 1},
    {"top_k", MEMBER_NUMBER, 0},
    {"min_p", MEMBER_NUMBER, 0},
    {"seed", MEMBER_COPIED, 0},
    {"stop", MEMBER_COPIED, 0},
    {"stop_token_ids", MEMBER_COPIED, 0},
    {"bad_words", MEMBER_COPIED, 0},
    {"include_stop_str_in_output", MEMBER_COPIED, 0},
    {"ignore_eos", MEMBER_COPIED, 0},
    {"max_tokens", MEMBER_COPIED, 0},
    {"min_tokens", MEMBER_COPIED, 0},
    {"logprobs", MEMBER_COPIED, 0},
    {"prompt_logprobs", MEMBER_COPIED, 0},
    {"skip_special_tokens", MEMBER_COPIED, 0},
    {"spaces_between_special_tokens", MEMBER_COPIED, 0},
    {"structured_outputs", MEMBER_COPIED, 0},
    {"logit_bias", MEMBER_COPIED, 0},
    {"allowed_token_ids", MEMBER_COPIED, 0},
    {"truncate_prompt_tokens", MEMBER_COPIED, 0},
    {"logprob_token_ids", MEMBER_COPIED, 0},
    {"repetition_detection", MEMBER_COPIED, 0},
    {"thinking_token_budget", MEMBER_COPIED, 0},
    {"use_beam_search", MEMBER_COPIED, 0},
    {"length_penalty", MEMBER_COPIED, 0},
    {"detokenize", MEMBER_FREE, 0},
    {"flat_logprobs", MEMBER_FREE, 0},
    {"output_kind", MEMBER_FREE, 0},
    {"output_text_buffer_length", MEMBER_FREE, 0},
    {"skip_clone", MEMBER_FREE, 0},
    {"skip_reading_prefix_cache", MEMBER_FREE, 0},
    {"extra_args", MEMBER_FREE, 0},
};

#define N_MEMBERS (sizeof members / sizeof members[0])

static const struct member *find(const char *name)
{
    for (size_t i = 0; i < N_MEMBERS; i++) {
        if (strcmp(members[i].name, name) == 0) {
            return &members[i];
        }
    }
    return NULL;
}

static int listed(const char *const *names, const char *name)
{
    for (; names && *names; names++) {
        if (strcmp(*names, name) == 0) {
            return 1;
        }
    }
    return 0;
}

int sparams_to_fields(const struct json *params, const char *prefix, const char *const *skip,
                      struct json_writer *w, struct api_error *e)
{
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    while (json_next(params, &it, &key, &n, &value)) {
        const struct member *m = find(key);
        if (listed(skip, key)) {
            continue;
        }
        if (!m) {
            char param[128];
            snprintf(param, sizeof param, "%s%.80s", prefix, key);
            return api_fail_field(e, param, "extra_forbidden", value,
                                  "SamplingParams has no such member");
        }
        if (m->kind != MEMBER_FREE && json_type(value) != JSON_NULL) {
            json_w_key(w, key);
            json_w_value(w, value);
        }
    }
    for (size_t i = 0; i < N_MEMBERS; i++) {
        if (members[i].kind == MEMBER_NUMBER &&
            json_type(json_get(params, members[i].name)) == JSON_NULL) {
            json_w_kdouble(w, members[i].name, members[i].neutral);
        }
    }
    return 0;
}

int sparams_replace_request(struct gen *g, struct buf *b, struct api_error *e)
{
    struct json *doc = NULL;
    struct err err = {0};
    /* a translation may nest a value of the client's a few levels deeper */
    int rc = b->failed ? err_set(&err, ERR_NOMEM, "out of memory")
                       : json_parse(&doc, b->data, b->len, g->server->o.json_depth + 8, &err);
    buf_fini(b);
    if (rc != 0) {
        return api_fail_err(e, &err);
    }
    g->received = g->json;
    g->json = doc;
    return 0;
}

/* ---- the other way ---- */

static void copy_field(const struct gen *g, const char *name, struct json_writer *w)
{
    json_w_key(w, name);
    json_w_value(w, json_get(g->json, name));
}

/* The constraint as structured_outputs, wherever the request had it. */
static int write_structured(const struct gen *g, struct json_writer *w, struct api_error *e)
{
    static const char *const guided[][2] = {{"guided_json", "json"},
                                            {"guided_regex", "regex"},
                                            {"guided_choice", "choice"},
                                            {"guided_grammar", "grammar"}};
    const struct json *format = json_get(g->json, "response_format");
    const struct json *type = json_get(format, "type");
    const char *word = json_type(type) == JSON_STRING ? json_string(type, NULL) : "text";
    json_w_key(w, "structured_outputs");
    if (g->f.grammar && g->f.think_end >= 0) {
        json_w_null(w);
        return api_fail(e, 400, TYPE_BAD, "response_format",
                        "An answer whose constraint begins behind the reasoning can't be rendered: "
                        "SamplingParams has no member for that.");
    }
    if (!g->f.grammar) {
        json_w_null(w);
        return 0;
    }
    if (strcmp(word, "text") == 0 &&
        json_type(json_get(g->json, "structured_outputs")) == JSON_OBJECT) {
        json_w_value(w, json_get(g->json, "structured_outputs"));
        return 0;
    }
    json_w_object(w);
    int found = 1;
    if (strcmp(word, "json_schema") == 0) {
        json_w_key(w, "json");
        json_w_value(w, json_get(json_get(format, "json_schema"), "schema"));
    } else if (strcmp(word, "json_object") == 0) {
        json_w_kbool(w, "json_object", 1);
    } else {
        found = 0;
        for (size_t i = 0; i < sizeof guided / sizeof guided[0] && !found; i++) {
            const struct json *v = json_get(g->json, guided[i][0]);
            if (json_type(v) != JSON_NULL) {
                json_w_key(w, guided[i][1]);
                json_w_value(w, v);
                found = 1;
            }
        }
    }
    json_w_object_end(w);
    return found ? 0
                 : api_fail(e, 400, TYPE_BAD, "tool_choice",
                            "An answer that must be a tool call can't be rendered: its constraint "
                            "is no member of SamplingParams.");
}

int sparams_write(const struct gen *g, const struct gen_prompt *p, struct json_writer *w,
                  struct api_error *e)
{
    static const char *const copied[] = {
        "stop",
        "stop_token_ids",
        "bad_words",
        "logit_bias",
        "allowed_token_ids",
        "logprob_token_ids",
        "repetition_detection",
    };
    const struct gen_fields *f = &g->f;
    const struct sampling_params *q = &f->sp;
    json_w_object(w);
    json_w_kint(w, "n", q->n);
    json_w_kdouble(w, "presence_penalty", q->presence_penalty);
    json_w_kdouble(w, "frequency_penalty", q->frequency_penalty);
    json_w_kdouble(w, "repetition_penalty", q->repetition_penalty);
    json_w_kdouble(w, "temperature", q->temperature);
    json_w_kdouble(w, "top_p", q->top_p);
    json_w_kint(w, "top_k", q->top_k);
    json_w_kdouble(w, "min_p", q->min_p);
    json_w_key(w, "seed");
    if (q->has_seed) {
        json_w_int(w, q->seed);
    } else {
        json_w_null(w);
    }
    for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++) {
        copy_field(g, copied[i], w);
    }
    json_w_kbool(w, "include_stop_str_in_output", f->include_stop_str);
    json_w_kbool(w, "ignore_eos", q->ignore_eos);
    json_w_kint(w, "max_tokens", p->max_tokens);
    json_w_kint(w, "min_tokens", q->min_tokens);
    json_w_key(w, "logprobs");
    if (f->logprobs >= 0) {
        json_w_int(w, f->logprobs);
    } else {
        json_w_null(w);
    }
    json_w_key(w, "prompt_logprobs");
    if (f->prompt_logprobs >= 0) {
        json_w_int(w, f->prompt_logprobs);
    } else {
        json_w_null(w);
    }
    json_w_kbool(w, "skip_special_tokens", f->skip_special);
    int rc = write_structured(g, w, e);
    json_w_object_end(w);
    return rc;
}
