/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/chat/completions. Messages are checked for shape, then rendered by the model's template;
 * agents replay what they were sent (content null or missing, unknown fields), so shape is all that
 * is checked. Content that is no text is refused: a dropped image would be answered as if it had
 * been seen. */
#include "api/gen.h"
#include "api/messages.h"

#include "base/utf8.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define MAX_TEMPLATE_KWARGS 256
/* A template sees a message as a dictionary that is built key by key. */
#define MAX_MESSAGE_KEYS 256

static int check_part(const struct json *part, size_t i, struct api_error *e)
{
    char param[64];
    size_t n = 0;
    snprintf(param, sizeof param, "messages.%zu.content", i);
    if (json_type(part) == JSON_STRING) {
        return api_fail_field(e, param, "dict_type", part,
                              "A content part should be an object with a type");
    }
    const struct json *type = json_get(part, "type"), *text = json_get(part, "text");
    const char *name = json_type(type) == JSON_STRING ? json_string(type, &n) : NULL;
    if (json_type(part) != JSON_OBJECT || !name) {
        return api_fail_field(e, param, "missing", part,
                              "A content part should be an object with a type");
    }
    if (strcmp(name, "text") != 0) {
        return api_fail(
            e, 400, TYPE_BAD, param,
            "Content parts of type '%.40s' are not supported: this model takes text only.", name);
    }
    if (json_type(text) != JSON_STRING) {
        return api_fail_field(e, param, "string_type", part,
                              "The text of a content part should be a string");
    }
    return 0;
}

int messages_check(const struct json *messages, struct api_error *e)
{
    if (json_type(messages) == JSON_NULL) {
        return api_fail_field(e, "messages", "missing", NULL, "Field required");
    }
    if (json_type(messages) != JSON_ARRAY) {
        return api_fail_field(e, "messages", "list_type", messages, "Input should be a valid list");
    }
    if (json_length(messages) == 0) {
        return api_fail_field(e, "messages", "too_short", messages,
                              "List should have at least 1 item");
    }
    for (size_t i = 0; i < json_length(messages); i++) {
        const struct json *m = json_at(messages, i);
        const struct json *role = json_get(m, "role"), *content = json_get(m, "content"), *calls;
        char param[64];
        snprintf(param, sizeof param, "messages.%zu", i);
        if (json_type(m) != JSON_OBJECT) {
            return api_fail_field(e, param, "dict_type", m, "Input should be a valid dictionary");
        }
        if (json_length(m) > MAX_MESSAGE_KEYS) {
            return api_fail(e, 400, TYPE_BAD, param,
                            "A message has %zu keys, at most %d are allowed.", json_length(m),
                            MAX_MESSAGE_KEYS);
        }
        if (json_type(role) != JSON_STRING) {
            snprintf(param, sizeof param, "messages.%zu%s", i, ".role");
            return api_fail_field(e, param, role ? "string_type" : "missing", role,
                                  "Input should be a valid string");
        }
        calls = json_get(m, "tool_calls");
        if (json_type(calls) != JSON_NULL && json_type(calls) != JSON_ARRAY) {
            snprintf(param, sizeof param, "messages.%zu%s", i, ".tool_calls");
            return api_fail_field(e, param, "list_type", calls, "Input should be a valid list");
        }
        if (json_type(content) == JSON_NULL || json_type(content) == JSON_STRING) {
            continue;
        }
        if (json_type(content) != JSON_ARRAY) {
            snprintf(param, sizeof param, "messages.%zu%s", i, ".content");
            return api_fail_field(e, param, "string_type", content,
                                  "Input should be a string or a list of parts");
        }
        for (size_t k = 0; k < json_length(content); k++) {
            if (check_part(json_at(content, k), i, e) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

int messages_kwargs(const struct json *defaults, const struct json *body, struct json **out,
                    struct api_error *e)
{
    static const char *const top_level[] = {"enable_thinking", "reasoning_effort"};
    const struct json *given = json_get(body, "chat_template_kwargs");
    struct buf b;
    struct json_writer w;
    struct err err = {0};
    *out = NULL;
    if (json_type(given) != JSON_NULL && json_type(given) != JSON_OBJECT) {
        return api_fail_field(e, "chat_template_kwargs", "dict_type", given,
                              "Input should be a valid dictionary");
    }
    if (given &&
        json_length(given) > MAX_TEMPLATE_KWARGS) { /* each is searched for among the others */
        return api_fail_field(e, "chat_template_kwargs", "too_long", NULL,
                              "At most %d variables are allowed, got %zu", MAX_TEMPLATE_KWARGS,
                              json_length(given));
    }
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    const struct json *sources[] = {defaults, given};
    for (int i = 0; i < 2; i++) {
        size_t it = 0, n;
        const char *key;
        const struct json *value;
        while (sources[i] && json_next(sources[i], &it, &key, &n, &value)) {
            json_w_key(&w, key); /* a later duplicate wins when it is read back */
            json_w_value(&w, value);
        }
    }
    for (size_t i = 0; i < 2; i++) {
        const struct json *value = json_get(body, top_level[i]);
        if (json_type(value) != JSON_NULL) {
            json_w_key(&w, top_level[i]);
            json_w_value(&w, value);
        }
    }
    json_w_object_end(&w);
    int rc = b.failed ? err_set(&err, ERR_NOMEM, "out of memory")
                      : json_parse(out, b.data, b.len, JSON_DEPTH_DEFAULT, &err);
    buf_fini(&b);
    return rc == 0 ? 0 : api_fail_err(e, &err);
}

int messages_tools(const struct fields *f, const struct json **tools)
{
    const struct json *choice = json_get(f->object, "tool_choice");
    size_t n;
    const char *word = json_type(choice) == JSON_STRING ? json_string(choice, &n) : NULL;
    int rc = field_array(f, "tools", tools);
    if (rc < 0) {
        return -1;
    }
    if (rc > 0 && json_length(*tools) == 0) {
        return api_fail(f->e, 400, TYPE_SCHEMA, "tools", "`tools` must not be an empty list.");
    }
    if (json_type(choice) != JSON_NULL && !word && json_type(choice) != JSON_OBJECT) {
        return fail_field(f, "tool_choice", "string_type", "Input should be a string or an object");
    }
    if (word && strcmp(word, "none") == 0) {
        return 0;
    }
    if (rc == 0) {
        if (json_type(choice) != JSON_NULL) {
            return api_fail(f->e, 400, TYPE_SCHEMA, "tool_choice",
                            "When using `tool_choice`, `tools` must be set.");
        }
        return 0;
    }
    if (json_type(choice) == JSON_NULL || (word && strcmp(word, "auto") == 0)) {
        return api_fail_param(f->e, "tool_choice", choice,
                              "\"auto\" tool choice requires --enable-auto-tool-choice and "
                              "--tool-call-parser to be set");
    }
    return api_fail_param(f->e, "tool_choice", choice,
                          "this tool_choice is not supported by this version; use \"none\"");
}

/* Content of a message as one string: text parts are joined by newlines. */
static const char *plain_content(struct gen *g, const struct json *content)
{
    struct buf b;
    size_t n;
    buf_init(&b);
    if (json_type(content) == JSON_STRING) {
        const char *s = json_string(content, &n);
        buf_append(&b, s, n);
    }
    for (size_t i = 0; json_type(content) == JSON_ARRAY && i < json_length(content); i++) {
        const char *s = json_string(json_get(json_at(content, i), "text"), &n);
        buf_puts(&b, i ? "\n" : "");
        buf_append(&b, s, n);
    }
    char *out = arena_strndup(&g->arena, b.data ? b.data : "", b.len);
    buf_fini(&b);
    return out;
}

/* FastDeploy's clients may send the rendered prompt's token ids in place of messages. */
static int is_id_list(const struct json *messages)
{
    return json_type(messages) == JSON_ARRAY && json_type(json_at(messages, 0)) == JSON_INT;
}

static int parse_messages(struct gen *g, const struct fields *f)
{
    struct gen_fields *o = &g->f;
    struct api_error *e = f->e;
    int add_given = field_bool(f, "add_generation_prompt", &o->add_generation_prompt);
    if (add_given < 0 || field_bool(f, "continue_final_message", &o->continue_final) < 0 ||
        field_bool(f, "return_prompt_text", &o->return_prompt_text) < 0 ||
        field_array(f, "documents", &o->documents) < 0 || messages_tools(f, &o->tools) < 0 ||
        messages_kwargs(g->server->default_kwargs, g->json, &o->kwargs, e) < 0) {
        return -1;
    }
    if (o->continue_final && add_given && o->add_generation_prompt) {
        return api_fail(
            e, 400, TYPE_SCHEMA, "continue_final_message",
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
    }
    o->add_generation_prompt &= !o->continue_final;
    o->messages = json_get(g->json, "messages");
    if (is_id_list(o->messages)) {
        o->response_role = g->server->o.response_role;
        return 0;
    }
    if (messages_check(o->messages, e) < 0) {
        return -1;
    }
    const struct json *last = json_at(o->messages, json_length(o->messages) - 1);
    size_t n;
    const char *last_role = json_string(json_get(last, "role"), &n);
    o->response_role = o->add_generation_prompt ? g->server->o.response_role
                                                : arena_strndup(&g->arena, last_role, n);
    if (o->echo && strcmp(last_role, o->response_role) == 0) {
        o->echo_text = plain_content(g, json_get(last, "content"));
    }
    return 0;
}

/* The request's own template, when the server trusts those; else *out stays NULL. */
int messages_template(const struct server *s, const struct json *body, struct chat_template **out,
                      struct api_error *e)
{
    const struct json *v = json_get(body, "chat_template");
    struct err err = {0};
    size_t n;
    *out = NULL;
    if (json_type(v) == JSON_NULL) {
        return 0;
    }
    if (json_type(v) != JSON_STRING) {
        return api_fail_field(e, "chat_template", "string_type", v,
                              "Input should be a valid string");
    }
    if (!s->o.trust_request_chat_template) {
        return api_fail(e, 400, TYPE_BAD, "chat_template",
                        "Chat template is passed with request, but "
                        "--trust-request-chat-template is not set. Refused request with untrusted "
                        "chat template.");
    }
    const char *text = json_string(v, &n);
    if (chat_template_compile(out, text, n, s->model.tokenizer, &err) != 0) {
        return err.code == ERR_NOMEM ? api_fail_err(e, &err)
                                     : api_fail(e, 400, TYPE_BAD, "chat_template", "%s", err.text);
    }
    return 0;
}

static int encode_messages(struct gen *g, struct api_error *e)
{
    const struct gen_fields *o = &g->f;
    struct chat_template *own = NULL;
    struct chat_render_options r = {.add_generation_prompt = o->add_generation_prompt,
                                    .continue_final_message = o->continue_final,
                                    .tools = o->tools,
                                    .documents = o->documents,
                                    .kwargs = o->kwargs};
    struct err err = {0};
    struct buf marks;
    struct token_ids ids = {0};
    int rc = -1;
    buf_init(&marks);
    if (gen_add_prompts(g, 1, e) < 0 || messages_template(g->server, g->json, &own, e) < 0) {
        goto out;
    }
    if (is_id_list(o->messages)) {
        rc = gen_set_id_list(g, &g->prompts[0], o->messages, "messages", e);
        goto out;
    }
    if (chat_render(own ? own : g->server->model.chat_template, o->messages, &r, &g->prompt_text,
                    &marks, &err) != 0) {
        api_fail_err(e, &err);
        goto out;
    }
    if (gen_check_text(g, g->prompt_text.data ? g->prompt_text.data : "", g->prompt_text.len, e) <
        0) {
        goto out;
    }
    if (tokenizer_encode_marked(g->server->model.tokenizer,
                                g->prompt_text.data ? g->prompt_text.data : "",
                                (const uint8_t *)marks.data, g->prompt_text.len, &ids, &err) != 0) {
        api_fail_err(e, &err);
        goto out;
    }
    rc = gen_set_ids(g, &g->prompts[0], ids.ids, ids.n, e);
    if (!o->return_prompt_text) {
        buf_fini(&g->prompt_text);
        buf_init(&g->prompt_text);
    }
out:
    chat_template_close(own);
    buf_fini(&marks);
    token_ids_fini(&ids);
    return rc;
}

static int parse(struct gen *g, struct api_error *e)
{
    struct fields f = {g->json, "", e, &g->arena};
    int logprobs = 0, k = 0, flag;
    const char *effort;
    g->f.sp.n = 1;
    g->f.add_generation_prompt = 1;
    if (gen_parse_common(g, &f, e) < 0 || parse_messages(g, &f) < 0) {
        return -1;
    }
    int rc = gen_parse_max_tokens(g, &f, "max_completion_tokens");
    if (rc == 0) {
        rc = gen_parse_max_tokens(g, &f, "max_tokens");
    }
    if (rc < 0 || field_bool(&f, "logprobs", &logprobs) < 0 ||
        field_int32(&f, "top_logprobs", INT_MIN, INT_MAX, &k) < 0 ||
        field_bool(&f, "parallel_tool_calls", &flag) < 0 ||
        field_bool(&f, "include_reasoning", &flag) < 0 ||
        field_string(&f, "reasoning_effort", &effort) < 0) {
        return -1;
    }
    if (k < -1) {
        return api_fail(e, 400, TYPE_SCHEMA, "top_logprobs",
                        "`top_logprobs` must be a positive value or -1.");
    }
    if (k != 0 && !logprobs) {
        return api_fail(e, 400, TYPE_SCHEMA, "top_logprobs",
                        "when using `top_logprobs`, `logprobs` must be set to true.");
    }
    g->f.logprobs = !logprobs ? -1 : k == -1 ? g->server->model.vocab_size : k;
    return encode_messages(g, e) < 0 ? -1 : gen_check_lengths(g, e);
}

static void write_logprobs(const struct gen *g, const struct gen_sample *s, struct json_writer *w)
{
    json_w_key(w, "logprobs");
    if (g->f.logprobs < 0) {
        json_w_null(w);
        return;
    }
    json_w_object(w);
    json_w_key(w, "content");
    gen_write_raw_array(w, &s->lp_content);
    json_w_object_end(w);
}

static void open_chunk(struct gen *g, int choice, struct json_writer *w)
{
    json_w_object(w);
    gen_write_head(g, w, "chat.completion.chunk");
    json_w_key(w, "choices");
    json_w_array(w);
    json_w_object(w);
    json_w_kint(w, "index", choice);
    json_w_key(w, "delta");
    json_w_object(w);
}

static void write_prompt_text(const struct gen *g, struct json_writer *w)
{
    json_w_key(w, "prompt_text");
    if (g->f.return_prompt_text) {
        json_w_stringn(w, g->prompt_text.data ? g->prompt_text.data : "", g->prompt_text.len);
    } else {
        json_w_null(w);
    }
}

static void begin(struct gen *g)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b);
    for (int i = 0; i < g->n_samples; i++) {
        buf_clear(&b);
        json_w_init(&w, &b);
        open_chunk(g, i, &w);
        json_w_kstring(&w, "role", g->f.response_role);
        json_w_kstring(&w, "content", "");
        json_w_object_end(&w);
        json_w_knull(&w, "logprobs");
        json_w_knull(&w, "finish_reason");
        json_w_object_end(&w);
        json_w_array_end(&w);
        if (g->f.continuous_usage) {
            struct gen_sample none = {.prompt = &g->prompts[0]};
            gen_write_usage(g, &w, &none, 1);
        }
        gen_write_prompt_ids(&g->prompts[0], &w);
        write_prompt_text(g, &w);
        json_w_object_end(&w);
        gen_send(g, &b);
    }
    for (int i = 0; g->f.echo_text && g->f.echo_text[0] && i < g->n_samples; i++) {
        buf_clear(&b);
        json_w_init(&w, &b);
        open_chunk(g, i, &w);
        json_w_kstring(&w, "content", g->f.echo_text);
        json_w_object_end(&w);
        json_w_knull(&w, "logprobs");
        json_w_knull(&w, "finish_reason");
        json_w_object_end(&w);
        json_w_array_end(&w);
        json_w_object_end(&w);
        gen_send(g, &b);
    }
    buf_fini(&b);
}

static void chunk(struct gen *g, struct gen_sample *s, const char *text, size_t n_bytes,
                  struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    open_chunk(g, s->choice, &w);
    json_w_key(&w, "content");
    json_w_stringn(&w, text, n_bytes);
    json_w_object_end(&w);
    write_logprobs(g, s, &w);
    gen_write_finish_reason(s, &w);
    if (s->done) {
        gen_write_stop_reason(g, s, &w);
    }
    gen_write_token_ids(s, &w);
    json_w_object_end(&w);
    json_w_array_end(&w);
    if (s->done && !g->f.include_usage) {
        json_w_kstring(&w, "system_fingerprint", g->server->fingerprint);
    }
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
    gen_write_head(g, &w, "chat.completion.chunk");
    json_w_key(&w, "choices");
    json_w_array(&w);
    json_w_array_end(&w);
    json_w_kstring(&w, "system_fingerprint", g->server->fingerprint);
    gen_write_usage(g, &w, NULL, 1);
    json_w_object_end(&w);
}

static void write_content(const struct gen *g, const char *text, size_t n, struct json_writer *w)
{
    json_w_key(w, "content");
    if (!g->f.echo_text) {
        json_w_stringn(w, text, n);
        return;
    }
    struct buf b;
    buf_init(&b);
    buf_puts(&b, g->f.echo_text);
    buf_append(&b, text, n);
    json_w_stringn(w, b.data ? b.data : "", b.len);
    buf_fini(&b);
}

static void body(struct gen *g, struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    gen_write_head(g, &w, "chat.completion");
    json_w_key(&w, "choices");
    json_w_array(&w);
    for (int i = 0; i < g->n_samples; i++) {
        struct gen_sample *s = &g->samples[i];
        size_t n;
        const char *text = output_take(&s->out, &n);
        json_w_object(&w);
        json_w_kint(&w, "index", s->choice);
        json_w_key(&w, "message");
        json_w_object(&w);
        json_w_kstring(&w, "role", g->f.response_role);
        write_content(g, text, n, &w);
        json_w_knull(&w, "refusal");
        json_w_knull(&w, "annotations");
        json_w_knull(&w, "audio");
        json_w_knull(&w, "function_call");
        json_w_knull(&w, "reasoning");
        json_w_object_end(&w);
        write_logprobs(g, s, &w);
        gen_write_finish_reason(s, &w);
        gen_write_stop_reason(g, s, &w);
        gen_write_token_ids(s, &w);
        json_w_knull(&w, "routed_experts");
        json_w_object_end(&w);
    }
    json_w_array_end(&w);
    json_w_knull(&w, "service_tier");
    json_w_kstring(&w, "system_fingerprint", g->server->fingerprint);
    gen_write_usage(g, &w, NULL, 0);
    json_w_key(&w, "prompt_logprobs");
    if (g->f.prompt_logprobs >= 0) {
        gen_write_raw_array(&w, &g->prompts[0].prompt_lp);
    } else {
        json_w_null(&w);
    }
    gen_write_prompt_ids(&g->prompts[0], &w);
    write_prompt_text(g, &w);
    json_w_knull(&w, "kv_transfer_params");
    json_w_knull(&w, "ec_transfer_params");
    json_w_knull(&w, "metrics");
    json_w_object_end(&w);
}

const struct gen_dialect chat_dialect = {
    .id_prefix = "chatcmpl-",
    .chat = 1,
    .parse = parse,
    .begin = begin,
    .chunk = chunk,
    .usage_chunk = usage_chunk,
    .body = body,
};

void chat_handle(struct server *s, struct http_exchange *x)
{
    gen_start(s, x, &chat_dialect);
}
