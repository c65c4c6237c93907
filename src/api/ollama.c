/* SPDX-License-Identifier: Apache-2.0 */
/* Ollama's /api/chat and /api/generate, for clients that speak nothing else. A request is
 * translated into one of the OpenAI routes and parsed by their code, so that fields mean the same
 * everywhere; the answer is a line of JSON, or a stream of them.
 *
 * Defaults are this server's (generation_config.json), not Ollama's. What is accepted without
 * effect changes no answer: memory and threads (num_batch, num_gpu, use_mmap …), num_ctx (the
 * context is the model's), keep_alive (the model stays). What would change one is refused by name.
 */
#include "api/ollama.h"
#include "api/gen.h"
#include "api/messages.h"
#include "api/sparams.h"

#include "base/clock.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct ollama_state {
    int generate;       /* /api/generate: "response" in place of "message", and the context */
    const char *model;  /* as the client calls it */
    struct buf context; /* output ids so far, with commas */
    struct buf name, arguments; /* of the call that is being read */
};

/* What one line tells. */
struct said {
    struct buf content, thinking;
    struct buf calls; /* complete ones: JSON objects with commas */
};

static const char *const chat_fields[] = {
    "model",  "messages",   "tools",    "think",        "format", "options",
    "stream", "keep_alive", "logprobs", "top_logprobs", NULL,
};

static const char *const generate_fields[] = {
    "model",  "prompt", "suffix",   "images",  "think",      "format",   "options",      "system",
    "stream", "raw",    "template", "context", "keep_alive", "logprobs", "top_logprobs", NULL,
};

/* ---- options ---- */

enum option_kind {
    OPTION_NAMED, /* a field of ours, maybe of another name */
    OPTION_FREE,  /* no effect here, whatever its value */
    OPTION_OFF,   /* only the value that turns it off */
    OPTION_OWN,   /* has its own code */
};

static const struct option {
    const char *name;
    enum option_kind kind;
    const char *field; /* OPTION_NAMED */
    double off;        /* OPTION_OFF */
} options[] = {
    {"temperature", OPTION_NAMED, "temperature", 0},
    {"top_p", OPTION_NAMED, "top_p", 0},
    {"top_k", OPTION_NAMED, "top_k", 0},
    {"min_p", OPTION_NAMED, "min_p", 0},
    {"seed", OPTION_NAMED, "seed", 0},
    {"stop", OPTION_NAMED, "stop", 0},
    {"presence_penalty", OPTION_NAMED, "presence_penalty", 0},
    {"frequency_penalty", OPTION_NAMED, "frequency_penalty", 0},
    {"repeat_penalty", OPTION_OWN, NULL, 0},
    {"repeat_last_n", OPTION_OWN, NULL, 0},
    {"num_predict", OPTION_OWN, NULL, 0},
    {"penalize_newline", OPTION_OFF, NULL, 1},
    {"tfs_z", OPTION_OFF, NULL, 1},
    {"typical_p", OPTION_OFF, NULL, 1},
    {"mirostat", OPTION_OFF, NULL, 0},
    {"mirostat_tau", OPTION_FREE, NULL, 0}, /* means something with mirostat only */
    {"mirostat_eta", OPTION_FREE, NULL, 0},
    {"num_ctx", OPTION_FREE, NULL, 0},
    {"num_keep", OPTION_FREE, NULL, 0}, /* contexts are never shifted here */
    {"num_batch", OPTION_FREE, NULL, 0},
    {"num_gpu", OPTION_FREE, NULL, 0},
    {"main_gpu", OPTION_FREE, NULL, 0},
    {"num_thread", OPTION_FREE, NULL, 0},
    {"numa", OPTION_FREE, NULL, 0},
    {"low_vram", OPTION_FREE, NULL, 0},
    {"f16_kv", OPTION_FREE, NULL, 0},
    {"logits_all", OPTION_FREE, NULL, 0},
    {"vocab_only", OPTION_FREE, NULL, 0},
    {"use_mmap", OPTION_FREE, NULL, 0},
    {"use_mlock", OPTION_FREE, NULL, 0},
    {"embedding_only", OPTION_FREE, NULL, 0},
};

static const struct option *find_option(const char *name)
{
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (strcmp(options[i].name, name) == 0) {
            return &options[i];
        }
    }
    return NULL;
}

/* Ollama looks at the last repeat_last_n tokens, we at all: 0 turns the penalty off, -1 is all. */
static int put_penalty(const struct server *s, const struct json *o, struct json_writer *w,
                       struct api_error *e)
{
    const struct json *penalty = json_get(o, "repeat_penalty"), *n = json_get(o, "repeat_last_n");
    const struct sampling_defaults *d = &s->o.generation;
    int acts = json_type(penalty) == JSON_NULL
                   ? d->has_repetition_penalty && d->repetition_penalty != 1.0
                   : !json_is_number(penalty) || json_double(penalty) != 1.0;
    if (json_type(n) != JSON_NULL && json_type(n) != JSON_INT) {
        return api_fail_field(e, "options.repeat_last_n", "int_type", n,
                              "Input should be a valid integer");
    }
    if (json_type(n) == JSON_INT && json_int(n) == 0) {
        json_w_kint(w, "repetition_penalty", 1);
        return 0;
    }
    if (json_type(n) == JSON_INT && acts && json_int(n) > 0 &&
        json_int(n) < s->model.max_model_len) {
        return api_fail_param(e, "options.repeat_last_n", n,
                              "repeat_last_n is not supported: repeat_penalty looks at the whole "
                              "text; use -1, or 0 for no penalty");
    }
    json_w_key(w, "repetition_penalty");
    json_w_value(w, penalty);
    return 0;
}

static int put_options(const struct server *s, const struct json *o, struct json_writer *w,
                       struct api_error *e)
{
    size_t it = 0, n;
    const char *key;
    const struct json *value, *predict = json_get(o, "num_predict");
    if (json_type(o) != JSON_NULL && json_type(o) != JSON_OBJECT) {
        return api_fail_field(e, "options", "dict_type", o, "Input should be a valid dictionary");
    }
    while (json_next(o, &it, &key, &n, &value)) {
        const struct option *known = find_option(key);
        char param[128];
        snprintf(param, sizeof param, "options.%.80s", key);
        if (!known) {
            return api_fail_param(e, param, value, "there is no such option");
        }
        double number = json_type(value) == JSON_BOOL ? json_bool(value) : json_double(value);
        if (known->kind == OPTION_OFF && json_type(value) != JSON_NULL &&
            ((!json_is_number(value) && json_type(value) != JSON_BOOL) || number != known->off)) {
            return api_fail_param(e, param, value, "%s is not supported", key);
        }
        if (known->kind == OPTION_NAMED) {
            json_w_key(w, known->field);
            json_w_value(w, value);
        }
    }
    if (json_type(predict) != JSON_NULL && json_type(predict) != JSON_INT) {
        return api_fail_field(e, "options.num_predict", "int_type", predict,
                              "Input should be a valid integer");
    }
    if (json_type(predict) == JSON_INT && json_int(predict) > 0) { /* else: what the context has */
        json_w_kint(w, "max_tokens", json_int(predict));
    }
    return put_penalty(s, o, w, e);
}

/* ---- what both routes have ---- */

static int put_format(const struct json *format, struct json_writer *w, struct api_error *e)
{
    size_t n;
    const char *word = json_type(format) == JSON_STRING ? json_string(format, &n) : NULL;
    if (json_type(format) == JSON_NULL || (word && n == 0)) {
        return 0;
    }
    if (json_type(format) != JSON_OBJECT && !(word && strcmp(word, "json") == 0)) {
        return api_fail_param(e, "format", format, "format must be \"json\" or a JSON schema");
    }
    json_w_key(w, "response_format");
    json_w_object(w);
    if (word) {
        json_w_kstring(w, "type", "json_object");
    } else {
        json_w_kstring(w, "type", "json_schema");
        json_w_key(w, "json_schema");
        json_w_object(w);
        json_w_kstring(w, "name", "format");
        json_w_key(w, "schema");
        json_w_value(w, format);
        json_w_object_end(w);
    }
    json_w_object_end(w);
    return 0;
}

static int put_think(const struct server *s, const struct json *think, struct json_writer *w,
                     struct api_error *e)
{
    if (json_type(think) == JSON_NULL) {
        return 0;
    }
    int wanted =
        json_type(think) == JSON_STRING || (json_type(think) == JSON_BOOL && json_bool(think));
    if (wanted && !s->o.reasoning_parser) {
        return api_fail_param(e, "think", think,
                              "this server does not support thinking: it was started without "
                              "--reasoning-parser");
    }
    if (json_type(think) == JSON_STRING) { /* "low", "medium", "high" */
        json_w_kbool(w, "enable_thinking", 1);
        json_w_key(w, "reasoning_effort");
        json_w_value(w, think);
        return 0;
    }
    if (json_type(think) != JSON_BOOL) {
        return api_fail_field(e, "think", "bool_type", think, "Input should be a valid boolean");
    }
    json_w_kbool(w, "enable_thinking", json_bool(think));
    return 0;
}

/* `raw`: log-probabilities as completions ask for them. */
static int put_logprobs(const struct json *body, int raw, struct json_writer *w,
                        struct api_error *e)
{
    const struct json *on = json_get(body, "logprobs"), *top = json_get(body, "top_logprobs");
    if (!raw) {
        json_w_key(w, "logprobs");
        json_w_value(w, on);
        json_w_key(w, "top_logprobs");
        json_w_value(w, top);
        return 0;
    }
    if (json_type(on) != JSON_NULL && json_type(on) != JSON_BOOL) {
        return api_fail_field(e, "logprobs", "bool_type", on, "Input should be a valid boolean");
    }
    if (json_type(on) == JSON_BOOL && json_bool(on)) {
        json_w_key(w, "logprobs");
        if (json_type(top) == JSON_NULL) {
            json_w_int(w, 0);
        } else {
            json_w_value(w, top);
        }
    }
    return 0;
}

static int put_common(struct gen *g, int raw, struct json_writer *w, struct api_error *e)
{
    const struct json *stream = json_get(g->json, "stream");
    json_w_key(w, "model");
    ollama_write_model(g->server, json_get(g->json, "model"), w);
    json_w_key(w, "stream");
    if (json_type(stream) == JSON_NULL) {
        json_w_bool(w, 1);
    } else {
        json_w_value(w, stream);
    }
    if (put_options(g->server, json_get(g->json, "options"), w, e) < 0 ||
        put_format(json_get(g->json, "format"), w, e) < 0 ||
        (!raw && put_think(g->server, json_get(g->json, "think"), w, e) < 0)) {
        return -1;
    }
    return put_logprobs(g->json, raw, w, e);
}

static int refuse_images(const struct json *images, const char *param, struct api_error *e)
{
    if (json_type(images) == JSON_NULL ||
        (json_type(images) == JSON_ARRAY && json_length(images) == 0)) {
        return 0;
    }
    return api_fail(e, 400, TYPE_BAD, param,
                    "%s: images are not supported: this model takes text only.", param);
}

/* The request can be answered without running the model: an empty one only loads it. */
static int answer_load(struct gen *g, struct api_error *e)
{
    struct fields f = {g->json, "", e, &g->arena};
    g->f.sp.n = 1;
    return field_bool(&f, "stream", &g->f.stream) < 0 || check_model_name(g->server, g->json, e) < 0
               ? -1
               : 0;
}

static struct ollama_state *make_state(struct gen *g, int generate, struct api_error *e)
{
    struct ollama_state *st = arena_alloc(&g->arena, sizeof *st);
    if (!st) {
        api_fail(e, 503, "ServiceUnavailableError", NULL, "out of memory");
        return NULL;
    }
    const struct json *name = json_get(g->json, "model");
    st->generate = generate;
    st->model = json_type(name) == JSON_STRING && json_string(name, NULL)[0]
                    ? arena_strdup(&g->arena, json_string(name, NULL))
                    : g->server->o.served_model_names[0];
    buf_init(&st->context);
    buf_init(&st->name);
    buf_init(&st->arguments);
    g->state = st;
    return st;
}

static void fini(struct gen *g)
{
    struct ollama_state *st = g->state;
    buf_fini(&st->context);
    buf_fini(&st->name);
    buf_fini(&st->arguments);
}

/* ---- /api/chat ---- */

/* Arguments are an object here and JSON text there. */
static void put_tool_calls(const struct json *calls, struct json_writer *w)
{
    json_w_key(w, "tool_calls");
    json_w_array(w);
    for (size_t i = 0; i < json_length(calls); i++) {
        const struct json *call = json_at(calls, i), *f = json_get(call, "function");
        const struct json *arguments = json_get(f, "arguments"), *id = json_get(call, "id");
        char made[32];
        struct buf b;
        buf_init(&b);
        snprintf(made, sizeof made, "call_%zu", i);
        json_w_object(w);
        json_w_key(w, "id");
        if (json_type(id) == JSON_STRING) {
            json_w_value(w, id);
        } else {
            json_w_string(w, made);
        }
        json_w_kstring(w, "type", "function");
        json_w_key(w, "function");
        json_w_object(w);
        json_w_key(w, "name");
        json_w_value(w, json_get(f, "name"));
        json_w_key(w, "arguments");
        if (json_type(arguments) == JSON_OBJECT) {
            json_dump(arguments, &b);
            json_w_stringn(w, b.data ? b.data : "{}", b.data ? b.len : 2);
        } else {
            json_w_value(w, arguments);
        }
        json_w_object_end(w);
        json_w_object_end(w);
        buf_fini(&b);
    }
    json_w_array_end(w);
}

static int put_message(const struct json *m, size_t at, struct json_writer *w, struct api_error *e)
{
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    char param[64];
    snprintf(param, sizeof param, "messages.%zu.images", at);
    if (refuse_images(json_get(m, "images"), param, e) < 0) {
        return -1;
    }
    if (json_type(m) != JSON_OBJECT) { /* the chat route says what is wrong with it */
        json_w_value(w, m);
        return 0;
    }
    json_w_object(w);
    while (json_next(m, &it, &key, &n, &value)) {
        if (strcmp(key, "images") == 0) {
            continue;
        }
        if (strcmp(key, "tool_calls") == 0 && json_type(value) == JSON_ARRAY) {
            put_tool_calls(value, w);
            continue;
        }
        if (strcmp(key, "thinking") == 0) {
            json_w_key(w, "reasoning_content");
        } else if (strcmp(key, "tool_name") == 0) {
            json_w_key(w, "name");
        } else {
            json_w_keyn(w, key, n);
        }
        json_w_value(w, value);
    }
    json_w_object_end(w);
    return 0;
}

static int put_messages(const struct json *messages, struct json_writer *w, struct api_error *e)
{
    json_w_key(w, "messages");
    if (json_type(messages) != JSON_ARRAY) {
        json_w_value(w, messages);
        return 0;
    }
    json_w_array(w);
    for (size_t i = 0; i < json_length(messages); i++) {
        if (put_message(json_at(messages, i), i, w, e) < 0) {
            return -1;
        }
    }
    json_w_array_end(w);
    return 0;
}

static int translate_chat(struct gen *g, struct buf *b, struct api_error *e)
{
    const struct json *tools = json_get(g->json, "tools");
    struct json_writer w;
    json_w_init(&w, b);
    json_w_object(&w);
    if (put_common(g, 0, &w, e) < 0 || put_messages(json_get(g->json, "messages"), &w, e) < 0) {
        return -1;
    }
    if (json_type(tools) != JSON_NULL &&
        (json_type(tools) != JSON_ARRAY || json_length(tools) > 0)) {
        json_w_key(&w, "tools");
        json_w_value(&w, tools);
    }
    json_w_object_end(&w);
    return 0;
}

static int parse_chat(struct gen *g, struct api_error *e)
{
    struct buf b;
    const struct json *messages = json_get(g->json, "messages");
    int empty = json_type(messages) == JSON_NULL ||
                (json_type(messages) == JSON_ARRAY && json_length(messages) == 0);
    buf_init(&b);
    if (!make_state(g, 0, e) || translate_chat(g, &b, e) < 0) {
        buf_fini(&b);
        return -1;
    }
    if (sparams_replace_request(g, &b, e) < 0) {
        return -1;
    }
    return empty ? answer_load(g, e) : chat_dialect.parse(g, e);
}

/* ---- /api/generate ---- */

static int is_given(const struct json *v)
{
    return json_type(v) == JSON_STRING  ? *json_string(v, NULL) != 0
           : json_type(v) == JSON_ARRAY ? json_length(v) > 0
                                        : json_type(v) != JSON_NULL;
}

static void put_user_message(const struct json *body, struct json_writer *w)
{
    json_w_key(w, "messages");
    json_w_array(w);
    if (is_given(json_get(body, "system"))) {
        json_w_object(w);
        json_w_kstring(w, "role", "system");
        json_w_key(w, "content");
        json_w_value(w, json_get(body, "system"));
        json_w_object_end(w);
    }
    json_w_object(w);
    json_w_kstring(w, "role", "user");
    json_w_key(w, "content");
    json_w_value(w, json_get(body, "prompt"));
    json_w_object_end(w);
    json_w_array_end(w);
}

static int translate_generate(struct gen *g, int raw, struct buf *b, struct api_error *e)
{
    static const char *const refused[][2] = {
        {"suffix", "suffix is not supported: the model can't fill in the middle"},
        {"template", "template is not supported: the template is the model's"},
        {"context", "context is not supported: send the conversation to /api/chat, or the prompt "
                    "with raw"},
    };
    struct json_writer w;
    const struct json *prompt = json_get(g->json, "prompt");
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct json *v = json_get(g->json, refused[i][0]);
        if (is_given(v)) {
            return api_fail_param(e, refused[i][0], v, "%s", refused[i][1]);
        }
    }
    if (refuse_images(json_get(g->json, "images"), "images", e) < 0) {
        return -1;
    }
    if (json_type(prompt) != JSON_NULL && json_type(prompt) != JSON_STRING) {
        return api_fail_field(e, "prompt", "string_type", prompt, "Input should be a valid string");
    }
    json_w_init(&w, b);
    json_w_object(&w);
    if (put_common(g, raw, &w, e) < 0) {
        return -1;
    }
    if (raw) {
        json_w_key(&w, "prompt");
        json_w_value(&w, prompt);
    } else {
        put_user_message(g->json, &w);
    }
    json_w_object_end(&w);
    return 0;
}

static int parse_generate(struct gen *g, struct api_error *e)
{
    struct fields f = {g->json, "", e, &g->arena};
    struct buf b;
    int raw = 0, empty = !is_given(json_get(g->json, "prompt"));
    if (!make_state(g, 1, e) || field_bool(&f, "raw", &raw) < 0) {
        return -1;
    }
    buf_init(&b);
    if (translate_generate(g, raw, &b, e) < 0) {
        buf_fini(&b);
        return -1;
    }
    if (sparams_replace_request(g, &b, e) < 0) {
        return -1;
    }
    if (empty) {
        return answer_load(g, e);
    }
    if ((raw ? &completions_dialect : &chat_dialect)->parse(g, e) < 0) {
        return -1;
    }
    g->f.return_token_ids = 1; /* for the context */
    return 0;
}

/* ---- answers ---- */

static void write_head(const struct gen *g, struct json_writer *w)
{
    json_w_object(w);
    json_w_kstring(w, "model", ((struct ollama_state *)g->state)->model);
    ollama_write_now(w, "created_at");
}

static void put_buf(struct json_writer *w, const char *key, const struct buf *b)
{
    json_w_key(w, key);
    json_w_stringn(w, b->data ? b->data : "", b->len);
}

static void write_text(const struct gen *g, const struct said *t, struct json_writer *w)
{
    const struct ollama_state *st = g->state;
    if (!st->generate) {
        json_w_key(w, "message");
        json_w_object(w);
        json_w_kstring(w, "role", "assistant");
    }
    put_buf(w, st->generate ? "response" : "content", &t->content);
    if (t->thinking.len > 0) {
        put_buf(w, "thinking", &t->thinking);
    }
    if (t->calls.len > 0) {
        json_w_key(w, "tool_calls");
        gen_write_raw_array(w, &t->calls);
    }
    if (!st->generate) {
        json_w_object_end(w);
    }
}

/* Arguments are an object on the line, so a call is told of when it is complete. One that was cut
 * off has no object to show: it is left out, and done_reason says "length". */
static void put_call(struct ollama_state *st, struct said *t)
{
    struct json *arguments = NULL;
    struct json_writer w;
    if (json_parse(&arguments, st->arguments.data ? st->arguments.data : "", st->arguments.len,
                   JSON_DEPTH_DEFAULT, NULL) == 0) {
        buf_puts(&t->calls, t->calls.len ? "," : "");
        json_w_init(&w, &t->calls);
        json_w_object(&w);
        json_w_key(&w, "function");
        json_w_object(&w);
        put_buf(&w, "name", &st->name);
        json_w_key(&w, "arguments");
        json_w_value(&w, arguments);
        json_w_object_end(&w);
        json_w_object_end(&w);
    }
    json_free(arguments);
    buf_clear(&st->name);
    buf_clear(&st->arguments);
}

static void said_init(struct said *t)
{
    buf_init(&t->content);
    buf_init(&t->thinking);
    buf_init(&t->calls);
}

static void said_fini(struct said *t)
{
    buf_fini(&t->content);
    buf_fini(&t->thinking);
    buf_fini(&t->calls);
}

static void take_said(struct gen *g, struct gen_sample *s, const char *text, size_t n,
                      struct said *t)
{
    struct ollama_state *st = g->state;
    struct answer_event ev;
    messages_split(s, text, n);
    while (answer_next(&s->answer, &ev)) {
        struct buf *to = ev.kind == ANSWER_REASONING ? &t->thinking
                         : ev.kind == ANSWER_CONTENT ? &t->content
                         : ev.kind == ANSWER_CALL    ? &st->name
                                                     : &st->arguments;
        if (ev.kind == ANSWER_CALL_END) {
            put_call(st, t);
        } else {
            buf_append(to, ev.text, ev.n_bytes);
        }
    }
}

static void write_logprobs(const struct gen *g, const struct gen_sample *s, struct json_writer *w)
{
    if (g->f.logprobs >= 0) {
        json_w_key(w, "logprobs");
        gen_write_raw_array(w, &s->lp_content);
    }
}

static int64_t between(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns && to_ns > from_ns ? (int64_t)(to_ns - from_ns) : 0;
}

static void write_context(const struct gen *g, const struct gen_sample *s, struct json_writer *w)
{
    const struct ollama_state *st = g->state;
    struct buf b;
    buf_init(&b);
    for (int i = 0; i < s->prompt->n; i++) {
        buf_printf(&b, "%s%d", i ? "," : "", s->prompt->ids[i]);
    }
    if (st->context.len > 0) {
        buf_putc(&b, ',');
        buf_append(&b, st->context.data, st->context.len);
    }
    json_w_key(w, "context");
    gen_write_raw_array(w, &b);
    buf_fini(&b);
}

/* What the last line has: why it ended, counts, and times in nanoseconds. */
static void write_end(const struct gen *g, const struct gen_sample *s, struct json_writer *w)
{
    const struct ollama_state *st = g->state;
    json_w_kbool(w, "done", 1);
    json_w_kstring(w, "done_reason", finish_reason_name(s->finish));
    if (st->generate) {
        write_context(g, s, w);
    }
    json_w_kint(w, "total_duration", between(g->arrival_ns, clock_now_ns()));
    json_w_kint(w, "load_duration", 0);
    json_w_kint(w, "prompt_eval_count", s->prompt->n);
    json_w_kint(w, "prompt_eval_duration", between(s->scheduled_ns, s->first_token_ns));
    json_w_kint(w, "eval_count", s->n_tokens);
    json_w_kint(w, "eval_duration", between(s->first_token_ns, s->last_token_ns));
    json_w_object_end(w);
}

static void keep_ids(struct gen *g, const struct gen_sample *s)
{
    struct ollama_state *st = g->state;
    if (st->generate && s->ids.len > 0) {
        buf_puts(&st->context, st->context.len ? "," : "");
        buf_append(&st->context, s->ids.data, s->ids.len);
    }
}

static void chunk(struct gen *g, struct gen_sample *s, const char *text, size_t n_bytes,
                  struct buf *out)
{
    struct json_writer w;
    struct said t;
    said_init(&t);
    take_said(g, s, text, n_bytes, &t);
    int some = t.content.len > 0 || t.thinking.len > 0 || t.calls.len > 0;
    if (some || s->done) {
        keep_ids(g, s);
    }
    if (some) {
        json_w_init(&w, out);
        write_head(g, &w);
        write_text(g, &t, &w);
        write_logprobs(g, s, &w);
        json_w_kbool(&w, "done", 0);
        json_w_object_end(&w);
        buf_puts(out, s->done ? "\n" : "");
    }
    if (s->done) { /* a line of its own, as clients expect it */
        struct said nothing;
        said_init(&nothing);
        json_w_init(&w, out);
        write_head(g, &w);
        write_text(g, &nothing, &w);
        write_end(g, s, &w);
    }
    said_fini(&t);
}

static void body(struct gen *g, struct buf *out)
{
    struct json_writer w;
    struct said t;
    said_init(&t);
    json_w_init(&w, out);
    write_head(g, &w);
    if (g->n_samples == 0) {
        write_text(g, &t, &w);
        json_w_kbool(&w, "done", 1);
        json_w_kstring(&w, "done_reason", "load");
        json_w_object_end(&w);
        return;
    }
    struct gen_sample *s = &g->samples[0];
    size_t n;
    const char *text = output_take(&s->out, &n);
    take_said(g, s, text, n, &t);
    keep_ids(g, s);
    write_text(g, &t, &w);
    write_logprobs(g, s, &w);
    write_end(g, s, &w);
    said_fini(&t);
}

const struct gen_dialect ollama_chat_dialect = {
    .id_prefix = "",
    .framing = &gen_ndjson_framing,
    .fields = chat_fields,
    .chat = 1,
    .parse = parse_chat,
    .chunk = chunk,
    .body = body,
    .fini = fini,
};

const struct gen_dialect ollama_generate_dialect = {
    .id_prefix = "",
    .framing = &gen_ndjson_framing,
    .fields = generate_fields,
    .chat = 1,
    .parse = parse_generate,
    .chunk = chunk,
    .body = body,
    .fini = fini,
};

void ollama_chat_handle(struct server *s, struct http_exchange *x)
{
    gen_start(s, x, &ollama_chat_dialect);
}

void ollama_generate_handle(struct server *s, struct http_exchange *x)
{
    gen_start(s, x, &ollama_generate_dialect);
}
