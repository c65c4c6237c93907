/* SPDX-License-Identifier: Apache-2.0 */
/* Chat on a fake model that says what the test tells it to: what becomes reasoning, content and
 * calls, in a stream and whole. */
#include "api_rig.h"

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"     \
    "\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}}},{\"type\":\"function\","           \
    "\"function\":{\"name\":\"g\"}}]"
#define CALL(name, args)                                                                           \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " args "}\n</tool_call>"

static struct api_rig rig;

static int open_group(void **state)
{
    (void)state;
    rig_options(&rig);
    rig.so.reasoning_parser = rig.so.tool_call_parser = rig.so.enable_auto_tool_choice = 1;
    rig.eo.enable_prefix_caching = 0;
    rig.template = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}"
                   "{{ 'assistant: ' }}{% if enable_thinking %}{{ '<think>\n' }}{% endif %}";
    rig_listen(&rig);
    rig_ready(&rig, 0, 0);
    return 0;
}

static int close_group(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

static int say(const char *text)
{
    return rig_say(&rig, text);
}

static void ask(const char *fields, int stream)
{
    struct buf b;
    buf_init(&b);
    buf_printf(&b,
               "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":0%s%s%s}",
               fields[0] ? "," : "", fields, stream ? ",\"stream\":true" : "");
    int status = rig_post(&rig, "/v1/chat/completions", b.data);
    if (status != 200) {
        fail_msg("%d for %s: %s", status, b.data, rig_body(&rig.b));
    }
    buf_fini(&b);
}

struct message {
    struct buf reasoning, content, calls; /* calls: name(arguments) one after another */
    char finish[16];
    int has_content; /* not null; streams: the key came */
    int n_logprobs, n_ids, n_chunks;
};

static void message_init(struct message *m)
{
    memset(m, 0, sizeof *m);
    buf_init(&m->reasoning);
    buf_init(&m->content);
    buf_init(&m->calls);
    buf_puts(&m->reasoning, "");
    buf_puts(&m->content, "");
    buf_puts(&m->calls, "");
}

static void message_fini(struct message *m)
{
    buf_fini(&m->reasoning);
    buf_fini(&m->content);
    buf_fini(&m->calls);
}

static void add_texts(struct message *m, const struct json *from)
{
    const char *one = rig_string(from, "reasoning"), *two = rig_string(from, "reasoning_content");
    assert_true((!one && !two) || strcmp(one, two) == 0);
    buf_puts(&m->reasoning, one ? one : "");
    buf_puts(&m->content, rig_string(from, "content") ? rig_string(from, "content") : "");
    m->has_content |= rig_string(from, "content") != NULL;
}

static void add_choice(struct message *m, const struct json *choice)
{
    const char *finish = rig_string(choice, "finish_reason");
    if (finish) {
        assert_int_equal(m->finish[0], 0);
        snprintf(m->finish, sizeof m->finish, "%s", finish);
    }
    m->n_logprobs += (int)json_length(json_get(json_get(choice, "logprobs"), "content"));
    m->n_ids += (int)json_length(json_get(choice, "token_ids"));
}

static void ask_whole(const char *fields, struct message *m)
{
    message_init(m);
    ask(fields, 0);
    struct json *j = rig_json(&rig);
    const struct json *choice = json_at(json_get(j, "choices"), 0);
    const struct json *message = json_get(choice, "message");
    const struct json *calls = json_get(message, "tool_calls");
    add_texts(m, message);
    add_choice(m, choice);
    assert_true(!calls || json_length(calls) > 0); /* absent, never empty */
    for (size_t i = 0; i < json_length(calls); i++) {
        const struct json *function = json_get(json_at(calls, i), "function");
        assert_string_equal(rig_string(json_at(calls, i), "type"), "function");
        assert_int_equal(strlen(rig_string(json_at(calls, i), "id")), 14 + 32);
        buf_printf(&m->calls, "%s(%s)", rig_string(function, "name"),
                   rig_string(function, "arguments"));
    }
    json_free(j);
}

/* Indexes start at 0 and go up by one; id, type and name come once. */
static void add_call_delta(struct message *m, const struct json *call, int *n_calls)
{
    const struct json *function = json_get(call, "function");
    int64_t index = json_int(json_get(call, "index"));
    assert_int_equal(json_type(json_get(call, "index")), JSON_INT);
    if (index == *n_calls) {
        ++*n_calls;
        assert_string_equal(rig_string(call, "type"), "function");
        assert_int_equal(strlen(rig_string(call, "id")), 14 + 32);
        buf_printf(&m->calls, "%s%s(", index ? ")" : "", rig_string(function, "name"));
    } else {
        assert_int_equal(index, *n_calls - 1);
        assert_null(json_get(call, "id"));
        assert_null(json_get(function, "name"));
    }
    buf_puts(&m->calls, rig_string(function, "arguments"));
}

static void ask_stream(const char *fields, struct message *m)
{
    int n_calls = 0, done = 0;
    message_init(m);
    ask(fields, 1);
    rig_unchunk(&rig.b);
    for (char *p = rig.b.data, *end; (p = strstr(p, "data: ")) && (end = strstr(p, "\n\n"));) {
        struct json *j = NULL;
        struct err e = {0};
        p += 6;
        if (strncmp(p, "[DONE]", 6) == 0) {
            done = 1;
            break;
        }
        assert_int_equal(json_parse(&j, p, (size_t)(end - p), JSON_DEPTH_DEFAULT, &e), 0);
        const struct json *choice = json_at(json_get(j, "choices"), 0),
                          *delta = json_get(choice, "delta");
        const struct json *calls = json_get(delta, "tool_calls");
        assert_int_equal(m->finish[0], 0); /* nothing behind the last chunk */
        m->n_chunks++;
        if (json_get(delta, "role")) {
            assert_string_equal(rig_string(delta, "content"), "");
        } else {
            add_texts(m, delta);
            add_choice(m, choice);
        }
        for (size_t i = 0; i < json_length(calls); i++) {
            add_call_delta(m, json_at(calls, i), &n_calls);
        }
        json_free(j);
        p = end;
    }
    buf_puts(&m->calls, n_calls ? ")" : "");
    assert_true(done);
}

static void expect(const char *fields, const char *reasoning, const char *content,
                   const char *calls, const char *finish)
{
    struct message whole, stream;
    ask_whole(fields, &whole);
    ask_stream(fields, &stream);
    for (int i = 0; i < 2; i++) {
        const struct message *m = i ? &stream : &whole;
        assert_string_equal(m->reasoning.data, reasoning);
        assert_string_equal(m->content.data, content ? content : "");
        assert_string_equal(m->calls.data, calls);
        assert_string_equal(m->finish, finish);
        if (i == 0) {
            assert_int_equal(m->has_content, content != NULL);
        }
    }
    message_fini(&whole);
    message_fini(&stream);
}

#define THINK "\"enable_thinking\":true"

static void calls_among_the_content_are_found(void **state)
{
    (void)state;
    say("Let me see.\n" CALL("f", "{\"a\": \"x  y\\n\"}") "\n" CALL("g", "{}") "\n");
    expect(TOOLS, "", "Let me see.", "f({\"a\": \"x  y\\n\"})g({})", "tool_calls");
    expect(TOOLS ",\"parallel_tool_calls\":false", "", "Let me see.", "f({\"a\": \"x  y\\n\"})",
           "tool_calls");
    say(CALL("f", "{}"));
    expect(TOOLS, "", NULL, "f({})", "tool_calls");
    say("no tool needed");
    expect(TOOLS, "", "no tool needed", "", "stop");
    expect(TOOLS ",\"tool_choice\":\"auto\"", "", "no tool needed", "", "stop");
    say(CALL("f", "not JSON"));
    expect(TOOLS, "", CALL("f", "not JSON"), "", "stop");
    say(CALL("f", "{}"));
    expect(TOOLS ",\"tool_choice\":\"none\"", "", CALL("f", "{}"), "", "stop");
    expect("", "", CALL("f", "{}"), "", "stop");
}

static void reasoning_is_split_off(void **state)
{
    (void)state;
    say("I think\nso\n</think>\n\n<response>\nyes\n</response>\n");
    expect(THINK, "I think\nso", "yes", "", "stop");
    expect("\"chat_template_kwargs\":{\"enable_thinking\":true}", "I think\nso", "yes", "", "stop");
    expect("\"reasoning_effort\":\"low\"", "I think\nso", "yes", "", "stop");
    expect(THINK ",\"include_reasoning\":false", "", "yes", "", "stop");
    say("I need f\n</think>\n\n" CALL("f", "{}") "\n");
    expect(THINK "," TOOLS, "I need f", NULL, "f({})", "tool_calls");
    say("only thoughts");
    expect(THINK, "only thoughts", NULL, "", "stop");
    /* thinking is off and there are no marks: it is all content */
    expect("\"enable_thinking\":false", "", "only thoughts", "", "stop");
    expect("\"reasoning_effort\":\"none\"", "", "only thoughts", "", "stop");
    expect("\"reasoning_effort\":\"high\",\"enable_thinking\":false", "", "only thoughts", "",
           "stop");
    expect("", "", "only thoughts", "", "stop");
    /* the model opens it itself */
    say("<think>\nhm\n</think>\n\nyes");
    expect("", "hm", "yes", "", "stop");
}

/* Cut after every number of tokens: no text lost, the cut not hidden, both modes the same. */
static void a_cut_anywhere_reads_the_same_in_both_modes(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "so\xe4\xbd\xa0\n</think>\n\n<response>\nyes \xe5\xa5\xbd\n</response>\n",
        "so\n</think>\n\nhm\n" CALL("f", "{\"a\": \"\xe4\xbd\xa0 b\"}") "\n" CALL("g",
                                                                                  "{}") "\nend",
    };
    for (size_t i = 0; i < 2; i++) {
        int n = say(texts[i]);
        for (int k = 1; k <= n; k++) {
            struct message whole, stream;
            char fields[512];
            snprintf(fields, sizeof fields, THINK "," TOOLS ",\"max_tokens\":%d", k);
            ask_whole(fields, &whole);
            ask_stream(fields, &stream);
            assert_string_equal(whole.reasoning.data, stream.reasoning.data);
            assert_string_equal(whole.content.data, stream.content.data);
            assert_string_equal(whole.calls.data, stream.calls.data);
            assert_string_equal(whole.finish, "length");
            assert_string_equal(stream.finish, "length");
            message_fini(&whole);
            message_fini(&stream);
        }
    }
}

static void tokens_are_told_of_once_also_when_text_waits(void **state)
{
    (void)state;
    int n = say("so\n</think>\n\n" CALL("f", "{\"a\": \"some words to wait for\"}") "\n");
    const char *fields =
        THINK "," TOOLS ",\"logprobs\":true,\"top_logprobs\":1,\"return_token_ids\":true";
    struct message whole, stream;
    ask_whole(fields, &whole);
    ask_stream(fields, &stream);
    assert_int_equal(whole.n_logprobs, n + 1); /* and the end */
    assert_int_equal(whole.n_ids, n + 1);
    assert_int_equal(stream.n_logprobs, n + 1);
    assert_int_equal(stream.n_ids, n + 1);
    assert_true(stream.n_chunks < n / 2); /* none was sent while the call was incomplete */
    message_fini(&whole);
    message_fini(&stream);
    ask_whole(THINK ",\"include_reasoning\":false,\"logprobs\":true,\"return_token_ids\":true",
              &whole);
    assert_int_equal(whole.n_logprobs, 0);
    assert_int_equal(whole.n_ids, 0);
    message_fini(&whole);
}

static void forced_calls_are_read_from_json(void **state)
{
    (void)state;
    say("[{\"name\": \"f\", \"parameters\": {\"a\": \"x y\"}}, {\"name\": \"g\", \"parameters\": "
        "{}}]");
    expect(TOOLS ",\"tool_choice\":\"required\"", "", "", "f({\"a\": \"x y\"})g({})", "tool_calls");
    say("{\"a\": \"x y\"}");
    expect(TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", "", "",
           "f({\"a\": \"x y\"})", "stop");
}

static void refuses(const char *fields, const char *param, const char *words)
{
    struct buf b;
    buf_init(&b);
    buf_printf(&b, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],%s}", fields);
    assert_int_equal(rig_post(&rig, "/v1/chat/completions", b.data), 400);
    struct json *j = rig_json(&rig);
    const struct json *e = json_get(j, "error");
    const char *named = rig_string(e, "param") ? rig_string(e, "param") : "";
    named += strncmp(named, "body.", 5) == 0 ? 5 : 0; /* of schema errors */
    if (strcmp(named, param) != 0 || !strstr(rig_string(e, "message"), words)) {
        fail_msg("%s\n%s", fields, rig_body(&rig.b));
    }
    json_free(j);
    buf_fini(&b);
}

#define FORCE(schema)                                                                              \
    "\"tool_choice\":\"required\",\"tools\":[{\"function\":{\"name\":\"ok\"}},{\"function\":{"     \
    "\"name\":\"f\",\"parameters\":" schema "}}]"

static void what_cannot_be_honoured_is_refused_by_name(void **state)
{
    (void)state;
    refuses("\"tools\":[]", "tools", "empty");
    refuses("\"tools\":[5]", "tools.0", "dictionary");
    refuses("\"tools\":[{\"type\":\"web_search\"}]", "tools.0.type", "'function'");
    refuses("\"tools\":[{\"type\":\"function\"}]", "tools.0.function", "required");
    refuses("\"tools\":[{\"function\":{}}]", "tools.0.function.name", "required");
    refuses("\"tools\":[{\"function\":{\"name\":\"\"}}]", "tools.0.function.name", "string");
    refuses("\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":7}}]",
            "tools.0.function.parameters", "dictionary");
    refuses(TOOLS ",\"tool_choice\":\"sometimes\"", "tool_choice", "'required'");
    refuses(TOOLS ",\"tool_choice\":7", "tool_choice", "'required'");
    refuses(TOOLS ",\"tool_choice\":{\"type\":\"function\"}", "tool_choice", "my_function");
    refuses(TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"h\"}}",
            "tool_choice", "does not match");
    refuses("\"tool_choice\":\"required\"", "tool_choice", "`tools` must be set");
    refuses(TOOLS ",\"response_format\":{\"type\":\"json_object\"}", "response_format", "auto");
    refuses(FORCE("{\"properties\":{\"a\":{\"$dynamicRef\":\"#x\"}}}"),
            "tools.1.function.parameters", "$dynamicRef");
    refuses(FORCE("{\"properties\":{\"a\":{\"$ref\":\"#/nowhere\"}}}"),
            "tools.1.function.parameters", "$ref");
    refuses("\"functions\":[{\"name\":\"f\"}]", "functions", "tools");
    refuses("\"function_call\":{\"name\":\"f\"}", "function_call", "tool_choice");
    refuses("\"reasoning_effort\":\"extreme\"", "reasoning_effort", "'xhigh'");
    refuses("\"enable_thinking\":\"no\"", "enable_thinking", "boolean");
    refuses("\"thinking_token_budget\":-1", "thinking_token_budget", "greater than or equal to 0");
}

static void schemas_of_forced_calls_mean_what_they_mean_alone(void **state)
{
    (void)state;
    static const char *const schemas[] = {
        "{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"sub\":{\"$ref\":\"#/$defs/t\"}},"
        "\"required\":[\"sub\"]}},\"properties\":{\"a\":{\"$ref\":\"#/definitions/d\"},"
        "\"$ref\":{\"type\":\"string\"}},\"definitions\":{\"d\":{\"const\":{\"$ref\":\"#/x\"}}},"
        "\"required\":[\"a\",\"$ref\"]}",
        "{}",
        "{\"type\":\"object\",\"properties\":{}}",
        "null",
    };
    static const char *const texts[] = {"{\"a\": {\"$ref\":\"#/x\"}, \"$ref\": \"s\"}",
                                        "{\"k\": 1}", "{}", "{}"};
    for (size_t i = 0; i < 4; i++) {
        char fields[1024], said[256], want[256];
        snprintf(fields, sizeof fields,
                 "\"tool_choice\":\"required\",\"tools\":[{\"function\":{\"name\":\"f\","
                 "\"parameters\":%s}}]",
                 schemas[i]);
        snprintf(said, sizeof said, "[{\"name\": \"f\", \"parameters\": %s}]", texts[i]);
        snprintf(want, sizeof want, "f(%s)", texts[i]);
        say(said);
        expect(fields, "", "", want, "tool_calls");
    }
}

static void earlier_turns_of_this_server_are_taken_back(void **state)
{
    (void)state;
    say("ok");
    static const char *const turns[] = {
        "{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"function_call\":null,"
        "\"reasoning\":null,\"reasoning_content\":null,\"tool_calls\":[{\"id\":\"x\",\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": \\\"b\\\"}\"}}]}",
        "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"x\",\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"arguments\":\"{}\"}}]}",
    };
    for (size_t i = 0; i < 2; i++) {
        char body[1024];
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},%s,{\"role\":\"tool\","
                 "\"tool_call_id\":\"x\",\"content\":\"7\"}]}",
                 turns[i]);
        assert_int_equal(rig_post(&rig, "/v1/chat/completions", body), 200);
    }
    refuses("\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"x\"}]}]",
            "messages.0.tool_calls.0", "function with a name");
}

static void reasoning_tokens_are_in_usage(void **state)
{
    (void)state;
    say("I think so\n</think>\n\nyes");
    ask(THINK, 0);
    struct json *j = rig_json(&rig);
    const struct json *details = json_get(json_get(j, "usage"), "completion_tokens_details");
    assert_true(json_int(json_get(details, "reasoning_tokens")) > 3);
    json_free(j);
}

static void answers_searched_for_calls_are_counted(void **state)
{
    (void)state;
    const char *name = "vllm:tool_call_parser_invocations_total" RIG_LABELS;
    double before = rig_metric(&rig, name);
    say("no tool needed");
    ask(TOOLS ",\"n\":1", 0);
    ask(TOOLS, 1);
    ask("", 0); /* has no tools */
    assert_true(before >= 0);
    assert_int_equal((int)(rig_metric(&rig, name) - before), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_among_the_content_are_found),
        cmocka_unit_test(reasoning_is_split_off),
        cmocka_unit_test(a_cut_anywhere_reads_the_same_in_both_modes),
        cmocka_unit_test(tokens_are_told_of_once_also_when_text_waits),
        cmocka_unit_test(forced_calls_are_read_from_json),
        cmocka_unit_test(what_cannot_be_honoured_is_refused_by_name),
        cmocka_unit_test(schemas_of_forced_calls_mean_what_they_mean_alone),
        cmocka_unit_test(earlier_turns_of_this_server_are_taken_back),
        cmocka_unit_test(reasoning_tokens_are_in_usage),
        cmocka_unit_test(answers_searched_for_calls_are_counted),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
