/* SPDX-License-Identifier: Apache-2.0 */
/* See messages.h. Messages are checked for shape, then rendered by the model's template; agents
 * replay what they were sent (content null or missing, unknown fields), so shape is all that is
 * checked. Content that is no text is refused: a dropped image would be answered as if it had been
 * seen. */
#include "api/messages.h"

#include "api/tools.h"

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

/* Calls of an earlier turn, as this server wrote them or as a client keeps them. */
static int check_calls(const struct json *calls, size_t i, struct api_error *e)
{
    for (size_t k = 0; k < json_length(calls); k++) {
        const struct json *call = json_at(calls, k), *function = json_get(call, "function");
        char param[96];
        snprintf(param, sizeof param, "messages.%zu.tool_calls.%zu", i, k);
        if (json_type(call) != JSON_OBJECT) {
            return api_fail_field(e, param, "dict_type", call,
                                  "Input should be a valid dictionary");
        }
        if (json_type(function) != JSON_OBJECT ||
            json_type(json_get(function, "name")) != JSON_STRING) {
            return api_fail_field(e, param, "missing", call,
                                  "A tool call should have a function with a name");
        }
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
        if (check_calls(calls, i, e) < 0) {
            return -1;
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

static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};

/* "none" turns thinking off, the others turn it on, unless enable_thinking says it itself. */
static int check_thinking_fields(const struct json *body, struct api_error *e)
{
    const struct json *effort = json_get(body, "reasoning_effort"),
                      *enable = json_get(body, "enable_thinking");
    if (json_type(enable) != JSON_NULL && json_type(enable) != JSON_BOOL) {
        return api_fail_field(e, "enable_thinking", "bool_type", enable,
                              "Input should be a valid boolean");
    }
    if (json_type(effort) == JSON_NULL) {
        return 0;
    }
    for (size_t i = 0; json_type(effort) == JSON_STRING && i < sizeof efforts / sizeof *efforts;
         i++) {
        if (strcmp(json_string(effort, NULL), efforts[i]) == 0) {
            return 0;
        }
    }
    return api_fail_field(
        e, "reasoning_effort", "literal_error", effort,
        "Input should be 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'");
}

static void copy_members(struct json_writer *w, const struct json *from)
{
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    while (from && json_next(from, &it, &key, &n, &value)) {
        json_w_key(w, key); /* a later duplicate wins when it is read back */
        json_w_value(w, value);
    }
}

int messages_kwargs(const struct json *defaults, const struct json *body, struct json **out,
                    struct api_error *e)
{
    static const char *const top_level[] = {"enable_thinking", "reasoning_effort"};
    const struct json *given = json_get(body, "chat_template_kwargs");
    const struct json *effort = json_get(body, "reasoning_effort");
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
    if (check_thinking_fields(body, e) < 0) {
        return -1;
    }
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    copy_members(&w, defaults);
    if (json_type(effort) == JSON_STRING) {
        json_w_kbool(&w, "enable_thinking", strcmp(json_string(effort, NULL), "none") != 0);
    }
    copy_members(&w, given);
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

/* vLLM's cap on reasoning, or FastDeploy's: the tag is forced when it is reached. */
static int read_budget(struct gen *g, const struct fields *f)
{
    const char *name = "thinking_token_budget";
    int rc = field_int32(f, name, 0, INT32_MAX, &g->f.think_budget);
    if (rc == 0) {
        name = "reasoning_max_tokens";
        rc = field_int32(f, name, 0, INT32_MAX, &g->f.think_budget);
    }
    if (rc > 0 && !g->server->o.reasoning_parser) {
        return api_fail_param(f->e, name, json_get(f->object, name), "%s needs --reasoning-parser",
                              name);
    }
    return rc;
}

static int read_fields(struct gen *g, const struct fields *f, struct tool_plan *plan)
{
    struct gen_fields *o = &g->f;
    struct api_error *e = f->e;
    int add_given = field_bool(f, "add_generation_prompt", &o->add_generation_prompt);
    if (add_given < 0 || field_bool(f, "continue_final_message", &o->continue_final) < 0 ||
        field_bool(f, "return_prompt_text", &o->return_prompt_text) < 0 ||
        field_bool(f, "include_reasoning", &o->include_reasoning) < 0 || read_budget(g, f) < 0 ||
        field_array(f, "documents", &o->documents) < 0 || tools_read(&g->server->o, f, plan) < 0 ||
        messages_kwargs(g->server->default_kwargs, g->json, &o->kwargs, e) < 0) {
        return -1;
    }
    if (o->continue_final && add_given && o->add_generation_prompt) {
        return api_fail(
            e, 400, TYPE_SCHEMA, "continue_final_message",
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
    }
    o->add_generation_prompt &= !o->continue_final;
    o->tools = plan->mode == ANSWER_TOOLS_NONE && g->server->o.exclude_tools_when_none
                   ? NULL
                   : plan->tools;
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

/* A prompt of ids ends inside <think>. */
static int ids_think(const struct server *s, const struct gen_prompt *p)
{
    for (int i = p->n; i-- > 0;) {
        if (s->mark_ids[MARK_THINK_END] >= 0 && p->ids[i] == s->mark_ids[MARK_THINK_END]) {
            return 0;
        }
        if (s->mark_ids[MARK_THINK] >= 0 && p->ids[i] == s->mark_ids[MARK_THINK]) {
            return 1;
        }
    }
    return 0;
}

static int encode(struct gen *g, int *thinks, struct api_error *e)
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
        *thinks = rc == 0 && ids_think(g->server, &g->prompts[0]);
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
    *thinks = answer_prompt_thinks(g->prompt_text.data ? g->prompt_text.data : "",
                                   (const uint8_t *)marks.data, g->prompt_text.len);
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

/* How the answer is read, and what it must match. A forced call takes the place of response_format:
 * the answer is the call. */
static int plan_answer(struct gen *g, const struct tool_plan *plan, int thinks, struct api_error *e)
{
    struct gen_fields *o = &g->f;
    size_t n = 0;
    o->answer.reasoning = g->server->o.reasoning_parser;
    o->answer.thinking = o->answer.reasoning && thinks;
    o->answer.tools = plan->mode;
    o->answer.one_call = plan->one_call;
    if (plan->mode == ANSWER_TOOLS_MARKED && o->grammar) {
        return api_fail(e, 400, TYPE_BAD, "response_format",
                        "structured output leaves no room for the calls that tool_choice \"auto\" "
                        "allows: use tool_choice \"none\", \"required\" or a named function.");
    }
    if (plan->mode == ANSWER_TOOLS_ONE) {
        const char *name =
            json_string(json_get(tools_function(plan->tools, plan->chosen), "name"), &n);
        o->answer.function = arena_strndup(&g->arena, name, n);
        if (!o->answer.function) {
            return api_fail(e, 503, "ServiceUnavailableError", NULL, "out of memory");
        }
    }
    if (plan->mode == ANSWER_TOOLS_LIST || plan->mode == ANSWER_TOOLS_ONE) {
        grammar_unref(o->grammar);
        o->grammar = NULL;
        if (tools_grammar(g->server->structured, plan, &o->grammar, e) < 0) {
            return -1;
        }
    }
    o->think_end = o->answer.thinking ? g->server->mark_ids[MARK_THINK_END] : -1;
    if ((o->grammar || o->think_budget >= 0) && o->answer.thinking && o->think_end < 0) {
        return api_fail(e, 400, TYPE_BAD, NULL,
                        "The end of the reasoning can't be waited for or forced: %s is no token of "
                        "this model.",
                        answer_mark_text(MARK_THINK_END));
    }
    return 0;
}

int messages_parse(struct gen *g, const struct fields *f)
{
    struct tool_plan plan;
    int thinks = 0;
    if (read_fields(g, f, &plan) < 0 || encode(g, &thinks, f->e) < 0) {
        return -1;
    }
    return plan_answer(g, &plan, thinks, f->e);
}

void messages_split(struct gen_sample *s, const char *text, size_t n_bytes)
{
    answer_feed(&s->answer, text, n_bytes);
    if (s->done) {
        answer_finish(&s->answer);
    }
}

const char *messages_finish_reason(const struct gen_sample *s)
{
    const struct answer *a = &s->answer;
    if (!s->done) {
        return NULL;
    }
    return s->finish == FINISH_STOP && a->n_calls > 0 && a->n_calls == a->n_complete &&
                   a->o.tools != ANSWER_TOOLS_ONE
               ? "tool_calls"
               : finish_reason_name(s->finish);
}
