/* SPDX-License-Identifier: Apache-2.0 */
/* A request of /v1/responses as the chat request that means the same.
 *
 *     instructions                     -> a system message in front
 *     input, a string                  -> a user's message
 *     message                          -> a message; "developer" is a system message
 *     reasoning, message, function_call in a row -> one assistant's message
 *     function_call_output             -> a tool's message
 *     tools, tool_choice, text.format, reasoning.effort, max_output_tokens, include -> chat's forms
 *
 * Everything else is handed on as it is. Items that a text model can't see, tools that someone else
 * would have to run and references to other servers' memory are refused by name.
 *
 * Runs on the net or worker thread. */
#include "api/responses.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ADDED_DEPTH 8 /* chat's forms lie deeper than the original's */

const char *const responses_fields[] = {
    "background",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "logit_bias",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt",
    "reasoning",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "top_k",
    "truncation",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "request_id",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "priority",
    "cache_salt",
    "structured_outputs",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_p",
    "min_tokens",
    "n",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "allowed_token_ids",
    "bad_words",
    "vllm_xargs",
    "chat_template_kwargs",
    "enable_thinking",
    "stream_interval",
    "truncate_prompt_tokens",
    "truncation_side",
    "spaces_between_special_tokens",
    NULL,
};

/* Not handed on: translated, told back, or without meaning here. */
static const char *const consumed[] = {
    "background",
    "include",
    "input",
    "instructions",
    "metadata",
    "max_output_tokens",
    "max_tool_calls",
    "n",
    "previous_response_id",
    "prompt",
    "reasoning",
    "safety_identifier",
    "store",
    "service_tier",
    "prompt_cache_key",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "truncation",
};

/* What chat knows and this route has another word for, or no place in its answers. */
static int refuse_foreign(const struct json *body, struct api_error *e)
{
    static const struct {
        const char *name, *why;
    } table[] = {
        {"messages", "messages is not a field of this route; use input"},
        {"max_tokens", "max_tokens is not a field of this route; use max_output_tokens"},
        {"max_completion_tokens",
         "max_completion_tokens is not a field of this route; use max_output_tokens"},
        {"response_format", "response_format is not a field of this route; use text.format"},
        {"reasoning_effort", "reasoning_effort is not a field of this route; use reasoning.effort"},
        {"logprobs", "logprobs is not a field of this route; use include "
                     "[\"message.output_text.logprobs\"] and top_logprobs"},
        {"prompt_logprobs", "prompt_logprobs is not supported on this route"},
        {"echo", "echo is not supported on this route"},
        {"return_token_ids", "return_token_ids is not supported on this route"},
        {"use_beam_search", "beam search is not supported on this route"},
        {"logprob_token_ids", "logprob_token_ids is not supported on this route"},
        {"prompt", "prompt template is not supported"},
        {"conversation", "conversation is not supported; use previous_response_id"},
        {"previous_input_messages",
         "previous_input_messages is not supported; use previous_response_id or send the items"},
        {"previous_response",
         "previous_response is not supported; use previous_response_id or send the items"},
        {"enable_response_messages", "enable_response_messages is not supported"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const struct json *v = json_get(body, table[i].name);
        if (json_type(v) != JSON_NULL && !(json_type(v) == JSON_BOOL && !json_bool(v))) {
            return api_fail_param(e, table[i].name, v, "%s", table[i].why);
        }
    }
    const struct json *n = json_get(body, "n");
    if (json_type(n) != JSON_NULL && !(json_type(n) == JSON_INT && json_int(n) == 1)) {
        return api_fail_param(e, "n", n, "a response has one output: n must be 1");
    }
    return 0;
}

static int is_one_of(const char *s, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(s, list[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

static const char *word(const struct json *v)
{
    return json_type(v) == JSON_STRING ? json_string(v, NULL) : NULL;
}

/* ---- items -> messages ---- */

struct conversion {
    struct json_writer *w; /* of the list of messages */
    struct api_error *e;
    const char *field; /* "input", to name in errors */
    size_t at;
    /* the assistant's message that is being put together */
    int is_open;
    struct buf reasoning, calls;
    const struct json *content;
};

static int fail_item(struct conversion *c, const char *member, const char *kind,
                     const struct json *value, const char *msg)
{
    char param[96];
    snprintf(param, sizeof param, "%s.%zu%s%s", c->field, c->at, *member ? "." : "", member);
    return api_fail_field(c->e, param, kind, value, "%s", msg);
}

TERN_PRINTF(3, 4)
static int fail_unsupported(struct conversion *c, const char *member, const char *fmt, ...)
{
    char param[96], msg[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    snprintf(param, sizeof param, "%s.%zu%s%s", c->field, c->at, *member ? "." : "", member);
    return api_fail(c->e, 400, TYPE_BAD, param, "%s", msg);
}

/* A string, or a list of text parts; checked here. */
static int check_content(struct conversion *c, const struct json *v, const char *member)
{
    static const char *const texts[] = {"input_text", "output_text", "text", "reasoning_text",
                                        "summary_text"};
    if (json_type(v) == JSON_STRING) {
        return 0;
    }
    if (json_type(v) != JSON_ARRAY) {
        return fail_item(c, member, v ? "string_type" : "missing", v,
                         "Input should be a string or a list of parts");
    }
    for (size_t i = 0; i < json_length(v); i++) {
        const struct json *part = json_at(v, i);
        const char *type = word(json_get(part, "type"));
        if (!type) {
            return fail_item(c, member, "missing", part,
                             "A content part should be an object with a type");
        }
        int refusal = strcmp(type, "refusal") == 0;
        if (!refusal && !is_one_of(type, texts, sizeof texts / sizeof *texts)) {
            return fail_unsupported(c, member,
                                    "Content parts of type '%.40s' are not supported: this model "
                                    "takes text only.",
                                    type);
        }
        if (!word(json_get(part, refusal ? "refusal" : "text"))) {
            return fail_item(c, member, "string_type", part,
                             "The text of a content part should be a string");
        }
    }
    return 0;
}

static const struct json *part_text(const struct json *part)
{
    const struct json *text = json_get(part, "text");
    return text ? text : json_get(part, "refusal");
}

/* One part is written as a string, several as parts: the template decides how they are joined. */
static void write_content(struct json_writer *w, const struct json *v)
{
    json_w_key(w, "content");
    if (json_type(v) == JSON_ARRAY && json_length(v) == 1) {
        json_w_value(w, part_text(json_at(v, 0)));
    } else if (json_type(v) == JSON_ARRAY && json_length(v) > 1) {
        json_w_array(w);
        for (size_t i = 0; i < json_length(v); i++) {
            json_w_object(w);
            json_w_kstring(w, "type", "text");
            json_w_key(w, "text");
            json_w_value(w, part_text(json_at(v, i)));
            json_w_object_end(w);
        }
        json_w_array_end(w);
    } else if (json_type(v) == JSON_ARRAY) {
        json_w_string(w, "");
    } else {
        json_w_value(w, v); /* a string; NULL for a message of calls only */
    }
}

static void close_assistant(struct conversion *c)
{
    if (!c->is_open) {
        return;
    }
    json_w_object(c->w);
    json_w_kstring(c->w, "role", "assistant");
    write_content(c->w, c->content);
    if (c->reasoning.len) {
        static const char *const names[] = {"reasoning", "reasoning_content"};
        for (int i = 0; i < 2; i++) {
            json_w_key(c->w, names[i]);
            json_w_stringn(c->w, c->reasoning.data, c->reasoning.len);
        }
    }
    if (c->calls.len) {
        json_w_key(c->w, "tool_calls");
        gen_write_raw_array(c->w, &c->calls);
    }
    json_w_object_end(c->w);
    c->is_open = 0;
    c->content = NULL;
    buf_clear(&c->reasoning);
    buf_clear(&c->calls);
}

static int add_message(struct conversion *c, const struct json *item)
{
    static const char *const system_roles[] = {"system", "developer"};
    const struct json *content = json_get(item, "content");
    const char *role = word(json_get(item, "role"));
    if (!role) {
        return fail_item(c, "role", json_get(item, "role") ? "string_type" : "missing",
                         json_get(item, "role"), "Input should be a valid string");
    }
    if (check_content(c, content, "content") < 0) {
        return -1;
    }
    if (strcmp(role, "assistant") == 0) {
        if (c->content || c->calls.len) {
            close_assistant(c);
        }
        c->is_open = 1;
        c->content = content;
        return 0;
    }
    close_assistant(c);
    json_w_object(c->w);
    json_w_kstring(c->w, "role", is_one_of(role, system_roles, 2) ? "system" : role);
    write_content(c->w, content);
    json_w_object_end(c->w);
    return 0;
}

static int add_reasoning(struct conversion *c, const struct json *item)
{
    const struct json *content = json_get(item, "content"), *summary = json_get(item, "summary");
    if (json_type(json_get(item, "encrypted_content")) != JSON_NULL) {
        return fail_unsupported(c, "encrypted_content", "Encrypted content is not supported.");
    }
    const char *member = json_length(content) > 0 ? "content" : "summary";
    const struct json *parts = json_length(content) > 0 ? content : summary;
    if (json_type(parts) != JSON_NULL && check_content(c, parts, member) < 0) {
        return -1;
    }
    if (c->content || c->calls.len) {
        close_assistant(c);
    }
    c->is_open = 1;
    for (size_t i = 0; json_type(parts) == JSON_ARRAY && i < json_length(parts); i++) {
        size_t n;
        const char *s = json_string(part_text(json_at(parts, i)), &n);
        buf_puts(&c->reasoning, c->reasoning.len ? "\n" : "");
        buf_append(&c->reasoning, s, n);
    }
    return 0;
}

static int add_call(struct conversion *c, const struct json *item)
{
    static const char *const needed[] = {"call_id", "name", "arguments"};
    struct json_writer w;
    struct buf b;
    for (int i = 0; i < 3; i++) {
        const struct json *v = json_get(item, needed[i]);
        if (json_type(v) != JSON_STRING) {
            return fail_item(c, needed[i], v ? "string_type" : "missing", v,
                             "Input should be a valid string");
        }
    }
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_key(&w, "id");
    json_w_value(&w, json_get(item, "call_id"));
    json_w_kstring(&w, "type", "function");
    json_w_key(&w, "function");
    json_w_object(&w);
    json_w_key(&w, "name");
    json_w_value(&w, json_get(item, "name"));
    json_w_key(&w, "arguments");
    json_w_value(&w, json_get(item, "arguments"));
    json_w_object_end(&w);
    json_w_object_end(&w);
    c->is_open = 1;
    buf_puts(&c->calls, c->calls.len ? "," : "");
    buf_append(&c->calls, b.data ? b.data : "{}", b.len);
    c->calls.failed |= b.failed;
    buf_fini(&b);
    return 0;
}

static int add_call_output(struct conversion *c, const struct json *item)
{
    const struct json *id = json_get(item, "call_id"), *output = json_get(item, "output");
    if (json_type(id) != JSON_STRING) {
        return fail_item(c, "call_id", id ? "string_type" : "missing", id,
                         "Input should be a valid string");
    }
    if (check_content(c, output, "output") < 0) {
        return -1;
    }
    close_assistant(c);
    json_w_object(c->w);
    json_w_kstring(c->w, "role", "tool");
    json_w_key(c->w, "tool_call_id");
    json_w_value(c->w, id);
    write_content(c->w, output);
    json_w_object_end(c->w);
    return 0;
}

static int add_item(struct conversion *c, const struct json *item)
{
    static const struct {
        const char *type;
        int (*add)(struct conversion *c, const struct json *item);
    } table[] = {
        {"message", add_message},
        {"reasoning", add_reasoning},
        {"function_call", add_call},
        {"function_call_output", add_call_output},
    };
    const struct json *v = json_get(item, "type");
    const char *type = json_type(v) == JSON_NULL ? "message" : word(v);
    if (json_type(item) != JSON_OBJECT) {
        return fail_item(c, "", "dict_type", item, "Input should be a valid dictionary");
    }
    for (size_t i = 0; type && i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(type, table[i].type) == 0) {
            return table[i].add(c, item);
        }
    }
    return fail_unsupported(c, "type", "Items of type '%.60s' are not supported by this server.",
                            type ? type : "");
}

static int add_items(struct conversion *c, const struct json *list)
{
    for (c->at = 0; c->at < json_length(list); c->at++) {
        if (add_item(c, json_at(list, c->at)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- the fields ---- */

struct translation {
    struct gen *g;
    struct responses_request *r;
    struct fields f;
    struct json_writer w;
    int has_logprobs;
    struct json *previous; /* items of the responses before, a list */
};

static const char *keep(struct translation *t, const struct json *v)
{
    struct buf b;
    buf_init(&b);
    json_dump(v, &b);
    const char *s = arena_strndup(&t->g->arena, b.data ? b.data : "null", b.data ? b.len : 4);
    buf_fini(&b);
    return s ? s : "null";
}

static int check_word(struct translation *t, const char *name, const char *const *words, size_t n)
{
    const struct json *v = json_get(t->f.object, name);
    if (json_type(v) == JSON_NULL) {
        return 0;
    }
    if (!word(v) || !is_one_of(word(v), words, n)) {
        char msg[160] = "Input should be one of";
        for (size_t i = 0; i < n; i++) {
            size_t len = strlen(msg);
            snprintf(msg + len, sizeof msg - len, "%s '%s'", i ? "," : "", words[i]);
        }
        return fail_field(&t->f, name, "literal_error", msg);
    }
    return 1;
}

static int read_echo(struct translation *t)
{
    static const char *const tiers[] = {"auto", "default", "flex", "scale", "priority"};
    static const char *const cuts[] = {"auto", "disabled"};
    struct responses_echo *o = &t->r->echo;
    const struct json *object = t->f.object, *ignored;
    const char *s;
    int64_t n;
    o->parallel_tool_calls = 1;
    t->r->store = 1;
    if (field_bool(&t->f, "background", &t->r->background) < 0 ||
        field_bool(&t->f, "store", &t->r->store) < 0 ||
        field_bool(&t->f, "parallel_tool_calls", &o->parallel_tool_calls) < 0 ||
        field_string(&t->f, "instructions", &s) < 0 || field_string(&t->f, "user", &s) < 0 ||
        field_string(&t->f, "safety_identifier", &s) < 0 ||
        field_string(&t->f, "prompt_cache_key", &s) < 0 ||
        field_object(&t->f, "metadata", &ignored) < 0 ||
        field_int(&t->f, "max_tool_calls", INT64_MIN, INT64_MAX, &n) < 0 ||
        check_word(t, "service_tier", tiers, 5) < 0 || check_word(t, "truncation", cuts, 2) < 0) {
        return -1;
    }
    o->instructions = keep(t, json_get(object, "instructions"));
    o->metadata = keep(t, json_get(object, "metadata"));
    o->max_tool_calls = keep(t, json_get(object, "max_tool_calls"));
    o->previous_response_id = keep(t, json_get(object, "previous_response_id"));
    o->reasoning = keep(t, json_get(object, "reasoning"));
    o->text = keep(t, json_get(object, "text"));
    o->user = keep(t, json_get(object, "user"));
    s = word(json_get(object, "truncation"));
    int cut = s && strcmp(s, "auto") == 0;
    o->truncation = cut ? "\"auto\"" : "\"disabled\"";
    o->service_tier = word(json_get(object, "service_tier"))
                          ? keep(t, json_get(object, "service_tier"))
                          : "\"auto\"";
    if (cut) {
        json_w_kint(&t->w, "truncate_prompt_tokens", -1);
    }
    return 0;
}

static int read_lengths(struct translation *t)
{
    int64_t max = 0;
    int rc = field_int(&t->f, "max_output_tokens", INT64_MIN, INT64_MAX, &max);
    if (rc > 0 && max < 1) {
        return api_fail_param(t->f.e, "max_output_tokens",
                              json_get(t->f.object, "max_output_tokens"),
                              "max_output_tokens must be at least 1, got %" PRId64 ".", max);
    }
    if (rc > 0) {
        json_w_kint(&t->w, "max_completion_tokens", max);
    }
    return rc < 0 ? -1 : 0;
}

/* include and top_logprobs. What can be included of items that never occur here is accepted. */
static int read_include(struct translation *t)
{
    static const char *const known[] = {
        "message.output_text.logprobs",   "reasoning.encrypted_content",
        "code_interpreter_call.outputs",  "computer_call_output.output.image_url",
        "file_search_call.results",       "message.input_image.image_url",
        "web_search_call.action.sources", "web_search_call.results",
    };
    const struct json *list = NULL;
    int top = 0;
    if (field_array(&t->f, "include", &list) < 0 ||
        field_int32(&t->f, "top_logprobs", INT_MIN, INT_MAX, &top) < 0) {
        return -1;
    }
    for (size_t i = 0; list && i < json_length(list); i++) {
        const char *s = word(json_at(list, i));
        if (!s || !is_one_of(s, known, sizeof known / sizeof *known)) {
            return fail_field(&t->f, "include", "literal_error",
                              "Input should be a list of things that can be included");
        }
        t->has_logprobs |= strcmp(s, known[0]) == 0;
    }
    t->has_logprobs |= top != 0;
    t->r->echo.top_logprobs = "null";
    if (t->has_logprobs) {
        char digits[16];
        json_w_kbool(&t->w, "logprobs", 1);
        json_w_kint(&t->w, "top_logprobs", top);
        snprintf(digits, sizeof digits, "%d", top);
        t->r->echo.top_logprobs = arena_strdup(&t->g->arena, digits);
    }
    return t->r->echo.top_logprobs
               ? 0
               : api_fail(t->f.e, 503, "ServiceUnavailableError", NULL, "out of memory");
}

static int read_format(struct translation *t, const struct json *format)
{
    const struct json *schema = json_get(format, "schema");
    const char *type = word(json_get(format, "type"));
    if (!type) {
        return api_fail_field(t->f.e, "text.format.type", "missing", format, "Field required");
    }
    if (strcmp(type, "text") == 0) {
        return 0;
    }
    if (json_type(json_get(t->f.object, "structured_outputs")) != JSON_NULL) {
        return api_fail_param(t->f.e, "text", json_get(t->f.object, "text"),
                              "Cannot specify both structured_outputs and text.format");
    }
    if (strcmp(type, "json_schema") != 0 && strcmp(type, "json_object") != 0) {
        return api_fail_field(t->f.e, "text.format.type", "literal_error", json_get(format, "type"),
                              "Input should be 'text', 'json_schema' or 'json_object'");
    }
    json_w_key(&t->w, "response_format");
    json_w_object(&t->w);
    json_w_kstring(&t->w, "type", type);
    if (type[5] == 's') {
        if (json_type(schema) != JSON_OBJECT && json_type(schema) != JSON_BOOL) {
            return api_fail_field(t->f.e, "text.format.schema", schema ? "dict_type" : "missing",
                                  schema,
                                  schema ? "Input should be a valid dictionary" : "Field required");
        }
        json_w_key(&t->w, "json_schema");
        json_w_object(&t->w);
        static const char *const copied[] = {"name", "description", "schema", "strict"};
        for (int i = 0; i < 4; i++) {
            json_w_key(&t->w, copied[i]);
            json_w_value(&t->w, json_get(format, copied[i]));
        }
        json_w_object_end(&t->w);
    }
    json_w_object_end(&t->w);
    return 0;
}

static int read_text(struct translation *t)
{
    const struct json *text = NULL, *format = NULL;
    if (field_object(&t->f, "text", &text) <= 0) {
        return json_type(json_get(t->f.object, "text")) == JSON_NULL ? 0 : -1;
    }
    struct fields inner = {text, "text.", t->f.e, t->f.arena};
    const struct json *verbosity = json_get(text, "verbosity");
    if (json_type(verbosity) != JSON_NULL &&
        !(word(verbosity) && strcmp(word(verbosity), "medium") == 0)) {
        return api_fail_param(t->f.e, "text.verbosity", verbosity,
                              "text.verbosity other than \"medium\" is not supported");
    }
    if (field_object(&inner, "format", &format) < 0) {
        return -1;
    }
    return format ? read_format(t, format) : 0;
}

static int read_reasoning(struct translation *t)
{
    const struct json *reasoning = NULL;
    const char *effort = NULL;
    if (field_object(&t->f, "reasoning", &reasoning) < 0) {
        return -1;
    }
    struct fields inner = {reasoning, "reasoning.", t->f.e, t->f.arena};
    if (reasoning && field_string(&inner, "effort", &effort) < 0) {
        return -1;
    }
    if (effort) {
        json_w_kstring(&t->w, "reasoning_effort", effort);
    }
    return 0;
}

/* The function keeps its members in the order of the request, as templates may print them. */
static int write_tool(struct translation *t, const struct json *tool, size_t i)
{
    const char *type = word(json_get(tool, "type"));
    char param[64];
    const char *key;
    const struct json *value;
    size_t it = 0, n;
    snprintf(param, sizeof param, "tools.%zu%s", i, type ? "" : ".type");
    if (json_type(tool) != JSON_OBJECT || !type) {
        return api_fail_field(t->f.e, param, "missing", tool,
                              "A tool should be an object with a "
                              "type");
    }
    if (strcmp(type, "function") != 0) {
        return api_fail(t->f.e, 400, TYPE_BAD, param,
                        "Tools of type '%.60s' are not supported: this server runs no tools; "
                        "only 'function' is.",
                        type);
    }
    if (!word(json_get(tool, "name"))) {
        snprintf(param, sizeof param, "tools.%zu.name", i);
        return api_fail_field(t->f.e, param, json_get(tool, "name") ? "string_type" : "missing",
                              json_get(tool, "name"), "Input should be a valid string");
    }
    json_w_object(&t->w);
    json_w_kstring(&t->w, "type", "function");
    json_w_key(&t->w, "function");
    json_w_object(&t->w);
    while (json_next(tool, &it, &key, &n, &value)) {
        if (strcmp(key, "type") != 0 && json_type(value) != JSON_NULL) {
            json_w_keyn(&t->w, key, n);
            json_w_value(&t->w, value);
        }
    }
    json_w_object_end(&t->w);
    json_w_object_end(&t->w);
    return 0;
}

/* Without tools tool_choice has no effect ("auto" and "none"), or can't be obeyed. */
static int read_tools(struct translation *t)
{
    const struct json *tools = NULL, *choice = json_get(t->f.object, "tool_choice");
    const char *s = word(choice), *type = word(json_get(choice, "type"));
    if (field_array(&t->f, "tools", &tools) < 0) {
        return -1;
    }
    t->r->echo.tools = tools ? keep(t, tools) : "[]";
    t->r->echo.tool_choice = choice ? keep(t, choice) : "\"auto\"";
    if (json_type(choice) != JSON_NULL && !s && json_type(choice) != JSON_OBJECT) {
        return fail_field(&t->f, "tool_choice", "string_type",
                          "Input should be a string or an object");
    }
    if (json_type(choice) == JSON_OBJECT && !(type && strcmp(type, "function") == 0)) {
        return api_fail_param(t->f.e, "tool_choice", choice,
                              "tool_choice of type '%.40s' is not supported; use \"none\", "
                              "\"auto\", \"required\" or {\"type\": \"function\", \"name\": …}",
                              type ? type : "");
    }
    if (type && !word(json_get(choice, "name"))) {
        return api_fail_field(t->f.e, "tool_choice.name",
                              json_get(choice, "name") ? "string_type" : "missing", choice,
                              "Input should be the name of a function");
    }
    int has_tools = tools && json_length(tools) > 0;
    if (has_tools) {
        json_w_key(&t->w, "tools");
        json_w_array(&t->w);
        for (size_t i = 0; i < json_length(tools); i++) {
            if (write_tool(t, json_at(tools, i), i) < 0) {
                return -1;
            }
        }
        json_w_array_end(&t->w);
    }
    if (type) {
        json_w_key(&t->w, "tool_choice");
        json_w_object(&t->w);
        json_w_kstring(&t->w, "type", "function");
        json_w_key(&t->w, "function");
        json_w_object(&t->w);
        json_w_key(&t->w, "name");
        json_w_value(&t->w, json_get(choice, "name"));
        json_w_object_end(&t->w);
        json_w_object_end(&t->w);
    } else if (s && (has_tools || (strcmp(s, "auto") != 0 && strcmp(s, "none") != 0))) {
        json_w_kstring(&t->w, "tool_choice", s);
    }
    return 0;
}

/* ---- the conversation ---- */

static int read_previous(struct translation *t)
{
    const char *id = NULL;
    struct err err = {0};
    struct buf list;
    if (field_string(&t->f, "previous_response_id", &id) <= 0) {
        return json_type(json_get(t->f.object, "previous_response_id")) == JSON_NULL ? 0 : -1;
    }
    struct response_store *store = t->g->server->responses;
    int rc = store ? response_store_items(store, id, &t->r->items) : ERR_NOT_FOUND;
    if (rc == ERR_BUSY) {
        return api_fail(t->f.e, 400, "invalid_request_error", "previous_response_id",
                        "The response '%.200s' is not finished.", id);
    }
    if (rc != 0) {
        return api_fail(t->f.e, 404, "invalid_request_error", "previous_response_id",
                        "Response with id '%.200s' not found.%s", id,
                        store ? ""
                              : " Responses are kept only with VLLM_ENABLE_RESPONSES_API_STORE=1.");
    }
    buf_init(&list);
    buf_putc(&list, '[');
    buf_append(&list, t->r->items.data ? t->r->items.data : "", t->r->items.len);
    buf_putc(&list, ']');
    rc = list.failed ? err_set(&err, ERR_NOMEM, "out of memory")
                     : json_parse(&t->previous, list.data, list.len, INT_MAX, &err);
    buf_fini(&list);
    return rc == 0 ? 0 : api_fail_err(t->f.e, &err);
}

/* The request's own items behind the previous ones, for the next request that goes on from here. */
static void keep_items(struct translation *t, const struct json *input)
{
    struct buf *items = &t->r->items;
    struct json_writer w;
    if (json_type(input) == JSON_STRING) {
        buf_puts(items, items->len ? "," : "");
        json_w_init(&w, items);
        json_w_object(&w);
        json_w_kstring(&w, "role", "user");
        json_w_key(&w, "content");
        json_w_value(&w, input);
        json_w_object_end(&w);
    }
    for (size_t i = 0; json_type(input) == JSON_ARRAY && i < json_length(input); i++) {
        buf_puts(items, items->len ? "," : "");
        json_dump(json_at(input, i), items);
    }
}

/* The last message is the assistant's and not finished: the model goes on with it. */
static int is_cut_short(const struct json *input)
{
    const struct json *last =
        json_length(input) > 0 ? json_at(input, json_length(input) - 1) : NULL;
    const char *status = word(json_get(last, "status")), *type = word(json_get(last, "type"));
    const char *role = word(json_get(last, "role"));
    return status && (strcmp(status, "in_progress") == 0 || strcmp(status, "incomplete") == 0) &&
           (!type || strcmp(type, "message") == 0) && role && strcmp(role, "assistant") == 0;
}

static int write_messages(struct translation *t)
{
    const struct json *input = json_get(t->f.object, "input");
    const struct json *instructions = json_get(t->f.object, "instructions");
    struct conversion c = {.w = &t->w, .e = t->f.e, .field = "previous_response_id"};
    size_t n = 0;
    int is_list = json_type(input) == JSON_ARRAY;
    if (!is_list && json_type(input) != JSON_STRING) {
        return fail_field(&t->f, "input", input ? "string_type" : "missing",
                          input ? "Input should be a string or a list of items" : "Field required");
    }
    buf_init(&c.reasoning);
    buf_init(&c.calls);
    json_w_key(&t->w, "messages");
    json_w_array(&t->w);
    if (json_type(instructions) == JSON_STRING && (json_string(instructions, &n), n > 0)) {
        json_w_object(&t->w);
        json_w_kstring(&t->w, "role", "system");
        json_w_key(&t->w, "content");
        json_w_value(&t->w, instructions);
        json_w_object_end(&t->w);
    }
    int rc = t->previous ? add_items(&c, t->previous) : 0;
    c.field = "input";
    if (rc == 0 && is_list) {
        rc = add_items(&c, input);
    }
    close_assistant(&c);
    if (!is_list) {
        json_w_object(&t->w);
        json_w_kstring(&t->w, "role", "user");
        json_w_key(&t->w, "content");
        json_w_value(&t->w, input);
        json_w_object_end(&t->w);
    }
    json_w_array_end(&t->w);
    t->w.out->failed |= c.reasoning.failed | c.calls.failed;
    buf_fini(&c.reasoning);
    buf_fini(&c.calls);
    if (rc == 0 && is_list && json_length(input) == 0 && !t->previous) {
        return fail_field(&t->f, "input", "too_short", "List should have at least 1 item");
    }
    if (rc == 0 && is_list && is_cut_short(input)) {
        json_w_kbool(&t->w, "continue_final_message", 1);
    }
    if (rc == 0) {
        keep_items(t, input);
    }
    return rc;
}

static int check_store(struct translation *t)
{
    struct responses_request *r = t->r;
    if (r->background && !r->store) {
        return api_fail(t->f.e, 400, TYPE_SCHEMA, "background",
                        "background can only be used when `store` is true");
    }
    if (r->background && !t->g->server->responses) {
        return api_fail(t->f.e, 400, "invalid_request_error", "background",
                        "This server keeps no responses and therefore has no background mode. To "
                        "enable both, set the environment variable "
                        "VLLM_ENABLE_RESPONSES_API_STORE=1 when starting it.");
    }
    r->store &= t->g->server->responses != NULL;
    return 0;
}

static int translate(struct translation *t)
{
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    json_w_object(&t->w);
    while (json_next(t->f.object, &it, &key, &n, &value)) {
        if (!is_one_of(key, consumed, sizeof consumed / sizeof *consumed)) {
            json_w_keyn(&t->w, key, n);
            json_w_value(&t->w, value);
        }
    }
    if (refuse_foreign(t->f.object, t->f.e) < 0 || read_echo(t) < 0 || check_store(t) < 0 ||
        read_lengths(t) < 0 || read_include(t) < 0 || read_text(t) < 0 || read_reasoning(t) < 0 ||
        read_tools(t) < 0 || read_previous(t) < 0 || write_messages(t) < 0) {
        return -1;
    }
    json_w_object_end(&t->w);
    return 0;
}

int responses_translate(struct gen *g, struct responses_request *r, struct api_error *e)
{
    struct buf b;
    struct err err = {0};
    struct json *chat = NULL;
    struct translation t = {.g = g, .r = r, .f = {g->json, "", e, &g->arena}};
    buf_init(&b);
    json_w_init(&t.w, &b);
    int rc = translate(&t);
    if (rc == 0) {
        rc = b.failed || r->items.failed
                 ? err_set(&err, ERR_NOMEM, "out of memory")
                 : json_parse(&chat, b.data, b.len, g->server->o.json_depth + ADDED_DEPTH, &err);
        rc = rc == 0 ? 0 : api_fail_err(e, &err);
    }
    if (rc == 0) {
        g->received = g->json;
        g->json = chat;
    }
    json_free(t.previous);
    buf_fini(&b);
    return rc;
}

void responses_rename_param(struct api_error *e)
{
    static const struct {
        const char *chat, *ours;
    } table[] = {
        {"max_completion_tokens", "max_output_tokens"},
        {"max_tokens", "max_output_tokens"},
        {"response_format", "text.format"},
        {"response_format.json_schema.schema", "text.format.schema"},
        {"reasoning_effort", "reasoning.effort"},
    };
    char *bare = e->param + (strncmp(e->param, "body.", 5) == 0 ? 5 : 0);
    char *inner = strncmp(bare, "tools.", 6) == 0 ? strstr(bare, ".function") : NULL;
    if (inner) { /* a tool is its function here */
        memmove(inner, inner + 9, strlen(inner + 9) + 1);
    }
    if (strncmp(bare, "messages", 8) == 0) {
        snprintf(e->param, sizeof e->param, "input");
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(bare, table[i].chat) == 0) {
            snprintf(e->param, sizeof e->param, "%s", table[i].ours);
            return;
        }
    }
}
