/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/responses on a fake model that says what the test tells it to: items and events of reasoning,
 * text and calls, failures, and the bounds of the store. */
#include "api/responses.h"
#include "api_rig.h"

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\","        \
    "\"properties\":{\"a\":{\"type\":\"string\"}}}},{\"type\":\"function\",\"name\":\"g\"}]"
#define CALL(name, args)                                                                           \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " args "}\n</tool_call>"
#define THINK "\"enable_thinking\":true"

static struct api_rig rig;

static int open_group(void **state)
{
    (void)state;
    rig_options(&rig);
    rig.so.reasoning_parser = rig.so.tool_call_parser = rig.so.enable_auto_tool_choice = 1;
    rig.so.enable_responses_store = 1;
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

static int post(const char *fields)
{
    struct buf b;
    buf_init(&b);
    buf_printf(&b, "{\"input\":\"hi\",\"temperature\":0%s%s}", fields[0] ? "," : "", fields);
    int status = rig_post(&rig, "/v1/responses", b.data);
    buf_fini(&b);
    return status;
}

/* Items as one line: reasoning "…", message "…", f(…), each with its status when not completed. */
static void tell_items(const struct json *output, struct buf *out)
{
    for (size_t i = 0; i < json_length(output); i++) {
        const struct json *item = json_at(output, i);
        const char *type = rig_string(item, "type"), *status = rig_string(item, "status");
        buf_puts(out, i ? " " : "");
        if (strcmp(type, "function_call") == 0) {
            assert_true(strncmp(rig_string(item, "id"), "fc_", 3) == 0);
            assert_true(strncmp(rig_string(item, "call_id"), "call_", 5) == 0);
            buf_printf(out, "%s(%s)", rig_string(item, "name"), rig_string(item, "arguments"));
        } else {
            const struct json *part = json_at(json_get(item, "content"), 0);
            assert_int_equal(json_length(json_get(item, "content")), 1);
            assert_string_equal(rig_string(part, "type"),
                                type[0] == 'r' ? "reasoning_text" : "output_text");
            buf_printf(out, "%s \"%s\"", type, rig_string(part, "text"));
        }
        if (strcmp(status, "completed") != 0) {
            buf_printf(out, " %s", status);
        }
    }
}

static void ask_whole(const char *fields, struct buf *items, struct buf *status)
{
    if (post(fields) != 200) {
        fail_msg("%s: %s", fields, rig_body(&rig.b));
    }
    struct json *j = rig_json(&rig);
    buf_puts(items, "");
    tell_items(json_get(j, "output"), items);
    buf_puts(status, rig_string(j, "status"));
    json_free(j);
}

/* ---- streams ---- */

struct told {          /* what the events of a stream say */
    struct buf types;  /* without "response." and with one "…delta" for several */
    struct buf items;  /* of the last event */
    struct buf status; /* of the last event */
    struct buf text;   /* deltas of the open item */
    int n, n_open;
};

static void told_init(struct told *t)
{
    memset(t, 0, sizeof *t);
    buf_init(&t->types);
    buf_init(&t->items);
    buf_init(&t->status);
    buf_init(&t->text);
    buf_puts(&t->text, "");
    buf_puts(&t->items, "");
}

static void told_fini(struct told *t)
{
    buf_fini(&t->types);
    buf_fini(&t->items);
    buf_fini(&t->status);
    buf_fini(&t->text);
}

static void hear(struct told *t, const char *name, const struct json *j)
{
    const char *type = rig_string(j, "type"), *delta = rig_string(j, "delta");
    assert_string_equal(type, name);
    assert_int_equal(json_int(json_get(j, "sequence_number")), t->n++);
    type += 9; /* "response." */
    size_t n = t->types.len;
    if (!delta || n < strlen(type) || strcmp(t->types.data + n - strlen(type), type) != 0) {
        buf_printf(&t->types, "%s%s", n ? " " : "", type);
    }
    if (strcmp(type, "output_item.added") == 0) {
        assert_int_equal(json_int(json_get(j, "output_index")), t->n_open++);
        buf_clear(&t->text);
        buf_puts(&t->text, "");
    }
    buf_puts(&t->text, delta ? delta : "");
    const char *whole = rig_string(j, "text") ? rig_string(j, "text") : rig_string(j, "arguments");
    if (whole) {
        assert_string_equal(whole, t->text.data);
    }
    const struct json *response = json_get(j, "response");
    if (response) {
        buf_clear(&t->items);
        buf_clear(&t->status);
        buf_puts(&t->items, "");
        tell_items(json_get(response, "output"), &t->items);
        buf_puts(&t->status, rig_string(response, "status"));
    }
}

/* The last answer's events. */
static void hear_all(struct told *t)
{
    rig_unchunk(&rig.b);
    assert_null(strstr(rig.b.data, "[DONE]"));
    for (char *p = rig.b.data, *end; p && *p; p = end + 2) {
        char name[80];
        struct json *j = NULL;
        struct err e = {0};
        assert_int_equal(sscanf(p, "event: %79[a-z_.]\n", name), 1);
        char *data = strstr(p, "\ndata: ");
        end = strstr(p, "\n\n");
        assert_true(data && end && data < end);
        data += 7;
        assert_int_equal(json_parse(&j, data, (size_t)(end - data), JSON_DEPTH_DEFAULT, &e), 0);
        hear(t, name, j);
        json_free(j);
    }
}

static void ask_stream(const char *fields, struct told *t)
{
    char all[2048];
    snprintf(all, sizeof all, "%s%s\"stream\":true", fields, fields[0] ? "," : "");
    told_init(t);
    if (post(all) != 200) {
        fail_msg("%s: %s", all, rig_body(&rig.b));
    }
    hear_all(t);
}

static void expect(const char *fields, const char *items, const char *status, const char *types)
{
    struct told t;
    struct buf whole, whole_status;
    buf_init(&whole);
    buf_init(&whole_status);
    ask_whole(fields, &whole, &whole_status);
    assert_string_equal(whole.data, items);
    assert_string_equal(whole_status.data, status);
    ask_stream(fields, &t);
    assert_string_equal(t.items.data, items);
    assert_string_equal(t.status.data, status);
    assert_string_equal(t.types.data, types);
    told_fini(&t);
    buf_fini(&whole);
    buf_fini(&whole_status);
}

#define HEAD "created in_progress "
#define REASONING                                                                                  \
    "output_item.added content_part.added reasoning_text.delta reasoning_text.done "               \
    "content_part.done output_item.done "
#define MESSAGE                                                                                    \
    "output_item.added content_part.added output_text.delta output_text.done content_part.done "   \
    "output_item.done "
#define FUNCTION                                                                                   \
    "output_item.added function_call_arguments.delta function_call_arguments.done "                \
    "output_item.done "

static void reasoning_text_and_calls_are_items_with_their_events(void **state)
{
    (void)state;
    say("I think\nso\n</think>\n\n<response>\nyes\n</response>\n");
    expect(THINK, "reasoning \"I think\nso\" message \"yes\"", "completed",
           HEAD REASONING MESSAGE "completed");
    say("only thoughts");
    expect(THINK, "reasoning \"only thoughts\"", "completed", HEAD REASONING "completed");
    say("Let me see.\n" CALL("f", "{\"a\": \"x\"}") "\n" CALL("g", "{}") "\n");
    expect(TOOLS, "message \"Let me see.\" f({\"a\": \"x\"}) g({})", "completed",
           HEAD MESSAGE FUNCTION FUNCTION "completed");
    expect(TOOLS ",\"parallel_tool_calls\":false", "message \"Let me see.\" f({\"a\": \"x\"})",
           "completed", HEAD MESSAGE FUNCTION "completed");
    say("I need f\n</think>\n\n" CALL("f", "{}") "\n");
    expect(THINK "," TOOLS, "reasoning \"I need f\" f({})", "completed",
           HEAD REASONING FUNCTION "completed");
    say("[{\"name\": \"f\", \"parameters\": {\"a\": \"x y\"}}, {\"name\": \"g\", \"parameters\": "
        "{}}]");
    expect(TOOLS ",\"tool_choice\":\"required\"", "f({\"a\": \"x y\"}) g({})", "completed",
           HEAD FUNCTION FUNCTION "completed");
    say("{\"a\": \"x y\"}");
    expect(TOOLS ",\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}", "f({\"a\": \"x y\"})",
           "completed", HEAD FUNCTION "completed");
}

static void what_is_cut_is_incomplete(void **state)
{
    (void)state;
    say("one two three four five six");
    expect("\"max_output_tokens\":2", "message \"one two\" incomplete", "incomplete",
           HEAD MESSAGE "incomplete");
    int n = say("so\n</think>\n\nhm\n" CALL("f", "{\"a\": \"\xe4\xbd\xa0 b\"}") "\n");
    for (int k = 1; k <= n; k++) {
        struct told t;
        struct buf whole, status;
        char fields[512];
        buf_init(&whole);
        buf_init(&status);
        snprintf(fields, sizeof fields, THINK "," TOOLS ",\"max_output_tokens\":%d", k);
        ask_whole(fields, &whole, &status);
        ask_stream(fields, &t);
        assert_string_equal(whole.data, t.items.data);
        assert_string_equal(status.data, "incomplete");
        assert_string_equal(t.status.data, "incomplete");
        told_fini(&t);
        buf_fini(&whole);
        buf_fini(&status);
    }
}

static void an_answer_without_a_word_is_an_empty_message(void **state)
{
    (void)state;
    say("stop here");
    expect("\"stop\":\"stop\"", "message \"\"", "completed",
           HEAD "output_item.added content_part.added output_text.done content_part.done "
                "output_item.done completed");
}

static void reasoning_tokens_are_in_usage(void **state)
{
    (void)state;
    say("I think so\n</think>\n\nyes");
    assert_int_equal(post(THINK), 200);
    struct json *j = rig_json(&rig);
    const struct json *usage = json_get(j, "usage");
    int64_t reasoning =
        json_int(json_get(json_get(usage, "output_tokens_details"), "reasoning_tokens"));
    assert_true(reasoning > 3);
    json_free(j);
}

static void errors_of_chat_carry_this_routes_names(void **state)
{
    (void)state;
    static const struct {
        const char *fields, *param;
    } table[] = {
        {"\"tools\":[{\"type\":\"function\",\"name\":\"\"}]", "body.tools.0.name"},
        {"\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"name\":\"f\","
         "\"parameters\":{\"properties\":{\"a\":{\"$ref\":\"#/nowhere\"}}}}]",
         "tools.0.parameters"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\"}", "body.tool_choice.name"},
        {TOOLS ",\"text\":{\"format\":{\"type\":\"json_object\"}}", "text.format"},
        {"\"reasoning\":{\"effort\":\"extreme\"}", "reasoning.effort"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_int_equal(post(table[i].fields), 400);
        struct json *j = rig_json(&rig);
        if (strcmp(rig_string(json_get(j, "error"), "param"), table[i].param) != 0) {
            fail_msg("%s: %s", table[i].fields, rig_body(&rig.b));
        }
        json_free(j);
    }
}

static void an_engine_error_is_a_500_or_a_failed_response(void **state)
{
    (void)state;
    struct api_rig r;
    rig_options(&r);
    r.so.enable_responses_store = 1;
    rig_listen(&r);
    rig_ready(&r, 0, 0);
    atomic_store(&r.fake.fail_at, 1);
    assert_int_equal(rig_post(&r, "/v1/responses", "{\"input\":\"a\"}"), 500);
    atomic_store(&r.fake.fail_at, 3);
    assert_int_equal(rig_post(&r, "/v1/responses",
                              "{\"input\":\"b\",\"stream\":true,\"ignore_eos\":true,"
                              "\"max_output_tokens\":9}"),
                     200);
    rig_unchunk(&r.b);
    assert_non_null(strstr(r.b.data, "event: response.failed\n"));
    assert_non_null(strstr(r.b.data, "\"error\":{\"code\":\"server_error\""));
    assert_null(strstr(r.b.data, "event: response.completed"));
    static const char *const modes[] = {"", ",\"stream\":true"};
    for (int i = 0; i < 2; i++) {
        char body[256], path[64];
        atomic_store(&r.fake.fail_at, 3);
        snprintf(body, sizeof body,
                 "{\"input\":\"c%d\",\"background\":true,\"request_id\":\"%d\",\"ignore_eos\":true,"
                 "\"max_output_tokens\":9%s}",
                 i, i, modes[i]);
        assert_int_equal(rig_post(&r, "/v1/responses", body), 200);
        snprintf(path, sizeof path, "/v1/responses/resp_%d", i);
        do {
            assert_int_equal(rig_get(&r, path, ""), 200);
        } while (strstr(r.b.data, "\"status\":\"queued\"") ||
                 strstr(r.b.data, "\"status\":\"in_progress\""));
        assert_non_null(strstr(r.b.data, "\"status\":\"failed\""));
    }
    rig_close(&r);
}

static void parameters_in_paths_are_decoded_once_and_bounded(void **state)
{
    (void)state;
    say("ok");
    assert_int_equal(post("\"request_id\":\"a b%20c\""), 200);
    assert_int_equal(rig_get(&rig, "/v1/responses/resp_a%20b%2520c", ""), 200);
    assert_int_equal(rig_get(&rig, "/v1/responses/resp_a%20b%20c", ""), 404);
    assert_int_equal(rig_get(&rig, "/v1/responses/resp_a%20b%2520c/more", ""), 404);
    assert_int_equal(rig_get(&rig, "/v1/responses/", ""), 404);
    struct buf path;
    buf_init(&path);
    buf_puts(&path, "/v1/responses/");
    for (int i = 0; i < 600; i++) {
        buf_putc(&path, 'a');
    }
    assert_int_equal(rig_get(&rig, path.data, ""), 404);
    buf_fini(&path);
}

static void the_store_forgets_the_oldest(void **state)
{
    (void)state;
    struct response_store *s = NULL;
    struct err e = {0};
    struct buf json, items;
    char id[32];
    int maker = 0;
    struct gen *g = (struct gen *)&maker; /* someone who makes it; never looked into */
    buf_init(&json);
    buf_init(&items);
    buf_puts(&json, "{}");
    buf_puts(&items, "1");
    assert_int_equal(response_store_open(&s, &e), 0);
    struct response_entry *running = response_store_begin(s, "running", g);
    assert_non_null(running);
    assert_null(response_store_begin(s, "running", g));
    for (int i = 0; i < 4097; i++) {
        snprintf(id, sizeof id, "%d", i);
        struct response_entry *one = response_store_begin(s, id, g);
        assert_ptr_equal(response_entry_gen(one), g);
        response_store_finish(s, one, &json, i % 2 ? &items : NULL);
        assert_null(response_entry_gen(one));
    }
    assert_null(response_store_find(s, "0"));
    assert_non_null(response_store_find(s, "1"));
    assert_non_null(response_store_find(s, "4096"));
    assert_ptr_equal(response_store_find(s, "running"), running);
    assert_int_equal(response_store_items(s, "running", &json), ERR_BUSY);
    assert_int_equal(response_store_items(s, "0", &json), ERR_NOT_FOUND);
    assert_int_equal(response_store_items(s, "2", &json), ERR_NOT_FOUND); /* it failed */
    buf_clear(&json);
    assert_int_equal(response_store_items(s, "1", &json), 0);
    assert_int_equal(response_store_items(s, "3", &json), 0);
    assert_string_equal(json.data, "1,1");
    response_store_drop(s, running);
    assert_null(response_store_find(s, "running"));
    /* one that is larger than the bound pushes all others out, and stays */
    struct buf big;
    buf_init(&big);
    assert_int_equal(buf_reserve(&big, (size_t)300 << 20), 0);
    memset(big.data, 'x', (size_t)300 << 20);
    big.len = (size_t)300 << 20;
    response_store_finish(s, response_store_begin(s, "big", g), &big, NULL);
    buf_fini(&big);
    assert_null(response_store_find(s, "4096"));
    assert_non_null(response_store_find(s, "big"));
    response_store_finish(s, response_store_begin(s, "next", g), &json, NULL);
    assert_null(response_store_find(s, "big"));
    assert_non_null(response_store_find(s, "next"));
    response_store_close(s);
    buf_fini(&json);
    buf_fini(&items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_text_and_calls_are_items_with_their_events),
        cmocka_unit_test(what_is_cut_is_incomplete),
        cmocka_unit_test(an_answer_without_a_word_is_an_empty_message),
        cmocka_unit_test(reasoning_tokens_are_in_usage),
        cmocka_unit_test(errors_of_chat_carry_this_routes_names),
        cmocka_unit_test(an_engine_error_is_a_500_or_a_failed_response),
        cmocka_unit_test(parameters_in_paths_are_decoded_once_and_bounded),
        cmocka_unit_test(the_store_forgets_the_oldest),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
