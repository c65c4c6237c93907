/* SPDX-License-Identifier: Apache-2.0 */
/* Ollama's dialect on a fake model that says what the test tells it to: thinking and calls on the
 * lines of a stream and in a whole answer, the context, and streams that others' options touch. */
#include "api_rig.h"

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"     \
    "\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}}}]"
#define CALL(args) "<tool_call>\n{\"name\": \"f\", \"arguments\": " args "}\n</tool_call>"

static struct api_rig rig;
static int limit; /* num_predict */

static int open_group(void **state)
{
    (void)state;
    rig_options(&rig);
    rig.so.reasoning_parser = rig.so.tool_call_parser = rig.so.enable_auto_tool_choice = 1;
    rig.so.enable_force_include_usage = 1; /* means nothing to these streams */
    rig.eo.enable_prefix_caching = 0;
    rig.template = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}"
                   "{% for c in m.tool_calls %}{{ c.function.name ~ ' ' ~ "
                   "c.function.arguments ~ '\n' }}{% endfor %}{% endfor %}"
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

static void say(const char *text)
{
    rig_say(&rig, text);
    limit = 0;
}

struct said {
    struct buf content, thinking, calls; /* calls: name(arguments) one after another */
    char reason[16];
    int n_lines, n_context, eval_count;
};

static void said_fini(struct said *t)
{
    buf_fini(&t->content);
    buf_fini(&t->thinking);
    buf_fini(&t->calls);
}

static void add_line(struct said *t, const struct json *line, int generate)
{
    const struct json *message = generate ? line : json_get(line, "message");
    const struct json *calls = json_get(message, "tool_calls");
    const char *thinking = rig_string(message, "thinking");
    assert_int_equal(t->reason[0], 0); /* nothing behind the last line */
    assert_non_null(rig_string(line, "created_at"));
    buf_puts(&t->content, rig_string(message, generate ? "response" : "content"));
    buf_puts(&t->thinking, thinking ? thinking : "");
    for (size_t i = 0; i < json_length(calls); i++) {
        const struct json *function = json_get(json_at(calls, i), "function");
        assert_int_equal(json_type(json_get(function, "arguments")), JSON_OBJECT);
        buf_printf(&t->calls, "%s(", rig_string(function, "name"));
        json_dump(json_get(function, "arguments"), &t->calls);
        buf_puts(&t->calls, ")");
    }
    if (json_bool(json_get(line, "done"))) {
        snprintf(t->reason, sizeof t->reason, "%s", rig_string(line, "done_reason"));
        t->eval_count = (int)json_int(json_get(line, "eval_count"));
        t->n_context = (int)json_length(json_get(line, "context"));
    }
    t->n_lines++;
}

static void ask(const char *path, const char *fields, int stream, struct said *t)
{
    struct buf b;
    int generate = strcmp(path, "/api/generate") == 0;
    *t = (struct said){.n_lines = 0};
    buf_init(&t->content);
    buf_init(&t->thinking);
    buf_init(&t->calls);
    buf_puts(&t->content, "");
    buf_puts(&t->thinking, "");
    buf_puts(&t->calls, "");
    buf_init(&b);
    buf_printf(&b, "{%s,\"stream\":%s,\"options\":{\"temperature\":0,\"num_predict\":%d}%s%s}",
               generate ? "\"prompt\":\"hi\""
                        : "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]",
               stream ? "true" : "false", limit, fields[0] ? "," : "", fields);
    int status = rig_post(&rig, path, b.data);
    if (status != 200) {
        fail_msg("%d for %s: %s", status, b.data, rig_body(&rig.b));
    }
    if (stream) {
        rig_unchunk(&rig.b);
    }
    for (char *p = stream ? rig.b.data : (char *)rig_body(&rig.b), *end; *p;
         p = end + (*end == '\n')) {
        struct json *j = NULL;
        end = p + strcspn(p, "\n");
        assert_int_equal(json_parse(&j, p, (size_t)(end - p), JSON_DEPTH_DEFAULT, NULL), 0);
        add_line(t, j, generate);
        json_free(j);
    }
    buf_fini(&b);
}

static void expect(const char *path, const char *fields, const char *thinking, const char *content,
                   const char *calls, const char *reason)
{
    for (int stream = 0; stream < 2; stream++) {
        struct said t;
        ask(path, fields, stream, &t);
        assert_string_equal(t.thinking.data, thinking);
        assert_string_equal(t.content.data, content);
        assert_string_equal(t.calls.data, calls);
        assert_string_equal(t.reason, reason);
        if (!stream) {
            assert_int_equal(t.n_lines, 1);
        }
        said_fini(&t);
    }
}

static void thinking_has_a_field_of_its_own(void **state)
{
    (void)state;
    say("first this\n</think>\n\nthen that");
    expect("/api/chat", "\"think\":true", "first this", "then that", "", "stop");
    expect("/api/generate", "\"think\":true", "first this", "then that", "", "stop");
    say("plain");
    expect("/api/chat", "\"think\":false", "", "plain", "", "stop");
}

static void calls_come_complete_and_as_objects(void **state)
{
    (void)state;
    say("Well.\n" CALL("{\"a\": \"x\\ny\"}") "\n" CALL("{}"));
    expect("/api/chat", TOOLS, "", "Well.", "f({\"a\":\"x\\ny\"})f({})", "stop");
    say(CALL("{\"a\": \"x\"}"));
    limit = 4;
    expect("/api/chat", TOOLS, "", "<tool", "", "length");
}

static void every_token_is_in_the_context_also_when_text_waits(void **state)
{
    (void)state;
    struct said t;
    say("first\n</think>\n\n<response>\nthen\n</response>\n");
    for (int stream = 0; stream < 2; stream++) {
        ask("/api/generate", "\"think\":true", stream, &t);
        assert_int_equal(t.eval_count, (int)rig.script.n + 1); /* and the end */
        struct json *body = NULL;
        const char *prompt = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                             "\"enable_thinking\":true}";
        said_fini(&t);
        assert_int_equal(rig_post(&rig, "/tokenize", prompt), 200);
        body = rig_json(&rig);
        assert_int_equal(t.n_context, (int)json_int(json_get(body, "count")) + t.eval_count);
        json_free(body);
    }
}

static void earlier_calls_reach_the_template_as_text(void **state)
{
    (void)state;
    say("ok");
    assert_int_equal(
        rig_post(&rig, "/api/chat",
                 "{\"stream\":false,\"options\":{\"temperature\":0},\"messages\":["
                 "{\"role\":\"user\",\"content\":\"hi\"},"
                 "{\"role\":\"assistant\",\"content\":\"\",\"thinking\":\"hm\",\"tool_calls\":["
                 "{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":\"x\"}}}]},"
                 "{\"role\":\"tool\",\"tool_name\":\"f\",\"content\":\"7\"}]}"),
        200);
    struct json *j = rig_json(&rig);
    int64_t n = json_int(json_get(j, "prompt_eval_count"));
    assert_string_equal(rig_string(json_get(j, "message"), "content"), "ok");
    json_free(j);
    assert_int_equal(
        rig_post(&rig, "/tokenize",
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
                 "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c\","
                 "\"type\":\"function\",\"function\":{\"name\":\"f\","
                 "\"arguments\":\"{\\\"a\\\":\\\"x\\\"}\"}}]},"
                 "{\"role\":\"tool\",\"name\":\"f\",\"content\":\"7\"}]}"),
        200);
    j = rig_json(&rig);
    assert_int_equal(n, json_int(json_get(j, "count")));
    json_free(j);
}

static void thinking_needs_a_parser(void **state)
{
    (void)state;
    struct api_rig other;
    rig_options(&other);
    rig_listen(&other);
    rig_ready(&other, 0, 0);
    assert_int_equal(rig_post(&other, "/api/generate", "{\"prompt\":\"hi\",\"think\":true}"), 400);
    assert_non_null(strstr(rig_body(&other.b), "does not support thinking"));
    assert_int_equal(rig_post(&other, "/api/generate", "{\"prompt\":\"hi\",\"think\":false}"), 200);
    assert_int_equal(rig_post(&other, "/api/show", "{\"model\":\"alias\"}"), 200);
    assert_null(strstr(rig_body(&other.b), "\"thinking\""));
    rig_close(&other);
    assert_int_equal(rig_post(&rig, "/api/show", "{\"model\":\"alias\"}"), 200);
    assert_non_null(strstr(rig_body(&rig.b), "\"capabilities\":[\"completion\",\"tools\","
                                             "\"thinking\"]"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thinking_has_a_field_of_its_own),
        cmocka_unit_test(calls_come_complete_and_as_objects),
        cmocka_unit_test(every_token_is_in_the_context_also_when_text_waits),
        cmocka_unit_test(earlier_calls_reach_the_template_as_text),
        cmocka_unit_test(thinking_needs_a_parser),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
