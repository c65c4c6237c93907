/* SPDX-License-Identifier: Apache-2.0 */
/* Messages -> prompt: where the template comes from, message shapes, and that typed text stays
 * text. */
#include "text/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text/jinja.h"
#include "text_model.h"

static const char config_named[] =
    "{\"cls_token\":\"<|b|>\",\"sep_token\":\"<|e|>\",\"eos_token\":\"</s>\"}";
static const char added[] = "{\"<|b|>\":296,\"<|e|>\":297}";

struct setup {
    char *dir;
    struct tokenizer *t;
    struct chat_template *c;
};

static int open_setup(struct setup *s, const char *jinja, const char *config, const char *override,
                      struct err *e)
{
    s->dir = new_dir(&(struct model_spec){0});
    write_text(s->dir, "added_tokens.json", added);
    write_text(s->dir, "tokenizer_config.json", config ? config : config_named);
    if (jinja) {
        write_text(s->dir, "chat_template.jinja", jinja);
    }
    assert_int_equal(tokenizer_open(&s->t, s->dir, NULL), 0);
    s->c = NULL;
    return chat_template_open(&s->c, s->dir, override, s->t, e);
}

static void close_setup(struct setup *s)
{
    chat_template_close(s->c);
    tokenizer_close(s->t);
    remove_dir(s->dir);
}

static struct json *parse(const char *text)
{
    struct json *v;
    assert_int_equal(json_parse(&v, text, strlen(text), 32, NULL), 0);
    return v;
}

/* Renders; the text, or "ERROR …". */
static char *render(const struct setup *s, const char *messages,
                    const struct chat_render_options *o)
{
    struct json *m = parse(messages);
    struct buf text, marks;
    struct err e = {0};
    buf_init(&text);
    buf_init(&marks);
    if (chat_render(s->c, m, o, &text, &marks, &e)) {
        buf_clear(&text);
        buf_printf(&text, "ERROR %s", e.text);
    } else {
        assert_int_equal(text.len, marks.len);
    }
    buf_fini(&marks);
    json_free(m);
    return buf_detach(&text);
}

#define RENDERS(s, messages, o, want)                                                              \
    do {                                                                                           \
        char *got_ = render(s, messages, o);                                                       \
        assert_string_equal(got_, want);                                                           \
        free(got_);                                                                                \
    } while (0)

static const struct chat_render_options ask = {.add_generation_prompt = 1},
                                        silent = {.add_generation_prompt = 0},
                                        unset = {.add_generation_prompt = -1};

static void a_model_without_a_template_gets_the_ernie_one(void **state)
{
    (void)state;
    struct setup s;
    assert_int_equal(open_setup(&s, NULL, NULL, NULL, NULL), 0);
    assert_true(chat_template_is_fallback(s.c));
    assert_false(chat_template_wants_parts(s.c));
    const char *talk =
        "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"U\"},{\"role\":"
        "\"assistant\",\"content\":\"A\"},{\"role\":\"tool\",\"content\":\"T\"},{\"role\":\"user\","
        "\"content\":\"V\"}]";
    RENDERS(&s, talk, &ask, "<|b|>S\nUser: U\nAssistant: A<|e|>User: V\nAssistant: ");
    RENDERS(&s, talk, &unset, "<|b|>S\nUser: U\nAssistant: A<|e|>User: V\nAssistant: ");
    RENDERS(&s, talk, &silent, "<|b|>S\nUser: U\nAssistant: A<|e|>User: V\n");
    close_setup(&s);
}

static void the_template_comes_from_the_first_place_that_has_one(void **state)
{
    (void)state;
    struct setup s;
    const char *config = "{\"chat_template\":\"config {{ messages|length }}\"}";
    const char *list =
        "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},{\"name\":\"default\","
        "\"template\":\"named\"}]}";
    const char *hi = "[{\"role\":\"user\",\"content\":\"hi\"}]";
    assert_int_equal(open_setup(&s, NULL, config, NULL, NULL), 0);
    RENDERS(&s, hi, &ask, "config 1");
    assert_string_equal(chat_template_source(s.c), "config {{ messages|length }}");
    assert_false(chat_template_is_fallback(s.c));
    close_setup(&s);
    assert_int_equal(open_setup(&s, NULL, list, NULL, NULL), 0);
    RENDERS(&s, hi, &ask, "named");
    close_setup(&s);
    assert_int_equal(open_setup(&s, "file", config, NULL, NULL), 0);
    RENDERS(&s, hi, &ask, "file");
    close_setup(&s);
    assert_int_equal(open_setup(&s, "file", config, "literal {{ 1 }}", NULL), 0);
    RENDERS(&s, hi, &ask, "literal 1");
    write_text(s.dir, "other.jinja", "from path");
    char path[300];
    snprintf(path, sizeof(path), "%s/other.jinja", s.dir);
    chat_template_close(s.c);
    assert_int_equal(chat_template_open(&s.c, s.dir, path, s.t, NULL), 0);
    RENDERS(&s, hi, &ask, "from path");
    close_setup(&s);
}

static void a_template_that_does_not_parse_is_refused_with_its_line(void **state)
{
    (void)state;
    struct setup s;
    struct err e = {0};
    assert_int_equal(open_setup(&s, "a\nb {{ x | nosuch }}", NULL, NULL, &e), ERR_FORMAT);
    assert_string_equal(e.text, "chat template, line 2: unknown filter 'nosuch'");
    assert_null(s.c);
    close_setup(&s);
    assert_int_equal(open_setup(&s, NULL, NULL, "missing.jinja", &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "missing.jinja: no such file"));
    close_setup(&s);
    assert_int_equal(open_setup(&s, NULL, "{\"chat_template\":5}", NULL, &e), ERR_FORMAT);
    close_setup(&s);
}

static void content_comes_as_string_parts_null_or_not_at_all(void **state)
{
    (void)state;
    struct setup s;
    assert_int_equal(
        open_setup(&s, "{% for m in messages %}[{{ m.content }}]{% endfor %}", NULL, NULL, NULL),
        0);
    RENDERS(&s, "[{\"role\":\"user\",\"content\":\"hi\"}]", &ask, "[hi]");
    RENDERS(&s, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}]", &ask,
            "[hi]");
    RENDERS(&s, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\"]}]",
            &ask, "[a\nb]");
    RENDERS(&s,
            "[{\"role\":\"user\",\"content\":null},{\"role\":\"user\"},{\"role\":\"user\","
            "\"content\":[]}]",
            &ask, "[][][]");
    RENDERS(&s,
            "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}"
            "}]}]",
            &ask, "ERROR content part type 'image_url' is not supported by this model");
    RENDERS(&s, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", &ask,
            "ERROR messages[0].content: a part of type 'text' needs its text");
    RENDERS(&s, "[{\"role\":\"user\",\"content\":[5]}]", &ask,
            "ERROR messages[0].content: each part needs a \"type\"");
    RENDERS(&s, "[{\"role\":\"user\",\"content\":5}]", &ask,
            "ERROR messages[0].content: expected a string or a list of parts");
    close_setup(&s);
}

static void malformed_messages_are_errors(void **state)
{
    (void)state;
    struct setup s;
    assert_int_equal(open_setup(&s, NULL, NULL, NULL, NULL), 0);
    RENDERS(&s, "[]", &ask, "ERROR messages: expected a list with at least one message");
    RENDERS(&s, "{}", &ask, "ERROR messages: expected a list with at least one message");
    RENDERS(&s, "null", &ask, "ERROR messages: expected a list with at least one message");
    RENDERS(&s, "[\"x\"]", &ask, "ERROR messages[0]: expected an object");
    RENDERS(&s, "[{\"content\":\"x\"}]", &ask,
            "ERROR messages[0]: field 'role' is missing or not a string");
    RENDERS(&s, "[{\"role\":5}]", &ask,
            "ERROR messages[0]: field 'role' is missing or not a string");
    RENDERS(&s, "[{\"role\":\"assistant\",\"tool_calls\":5}]", &ask,
            "ERROR messages[0].tool_calls: expected a list");
    RENDERS(&s, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}]",
            &ask,
            "ERROR messages[0].tool_calls: function.arguments is not JSON: line 1, column 2: "
            "Expecting property name "
            "enclosed in double quotes");
    close_setup(&s);
}

static void a_template_that_walks_parts_gets_parts(void **state)
{
    (void)state;
    struct setup s;
    const char *jinja =
        "{% for m in messages %}{% set content = m['content'] %}{% if content is string %}[{{ "
        "content }}]"
        "{% else %}{% for p in content %}({{ p.text }}){% endfor %}{% endif %}{% endfor %}";
    assert_int_equal(open_setup(&s, jinja, NULL, NULL, NULL), 0);
    assert_true(chat_template_wants_parts(s.c));
    RENDERS(&s,
            "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
            "\"text\",\"text\":\"b\"}"
            "]},{\"role\":\"user\",\"content\":\"c\"}]",
            &ask, "(a)(b)[c]");
    close_setup(&s);
}

static void tool_call_arguments_reach_the_template_as_objects(void **state)
{
    (void)state;
    struct setup s;
    const char *jinja =
        "{% for c in messages[0].tool_calls %}{{ c.function.name }}:{{ c.function.arguments.city }}"
        "{{ c.function.arguments | tojson }};{% endfor %}{{ messages[0].extra }}{{ tools | tojson "
        "}}"
        "{{ style }}{{ documents is none }}";
    assert_int_equal(open_setup(&s, jinja, NULL, NULL, NULL), 0);
    struct json *tools = parse("[{\"type\":\"function\"}]"),
                *kwargs = parse("{\"style\":\"short\",\"messages\":[1]}");
    struct chat_render_options o = {.tools = tools, .kwargs = kwargs};
    RENDERS(
        &s,
        "[{\"role\":\"assistant\",\"extra\":7,\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":"
        "\"{\\\"city\\\":\\\"北京\\\"}\"}},{\"function\":{\"name\":\"g\",\"arguments\":\"\"}},{"
        "\"function\":{"
        "\"name\":\"h\",\"arguments\":{\"city\":1}}}]}]",
        &o,
        "f:北京{\"city\": \"北京\"};g:{};h:1{\"city\": 1};7[{\"type\": \"function\"}]shortTrue");
    json_free(tools);
    json_free(kwargs);
    close_setup(&s);
}

static void reasoning_of_earlier_turns_is_known_by_both_names(void **state)
{
    (void)state;
    struct setup s;
    const char *jinja =
        "{% for m in messages %}{{ m.reasoning_content }},{{ m.reasoning }};{% endfor %}";
    assert_int_equal(open_setup(&s, jinja, NULL, NULL, NULL), 0);
    struct chat_render_options o = {0};
    RENDERS(&s,
            "[{\"role\":\"assistant\",\"reasoning\":\"a\"},{\"role\":\"assistant\","
            "\"reasoning_content\":\"b\",\"reasoning\":null},{\"role\":\"assistant\","
            "\"reasoning\":\"c\",\"reasoning_content\":\"d\"},{\"role\":\"user\"}]",
            &o, "a,a;b,b;d,c;,;");
    close_setup(&s);
}

static size_t count_id(const struct token_ids *v, int32_t id)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n; i++) {
        n += v->ids[i] == id;
    }
    return n;
}

static void special_strings_typed_by_a_user_stay_characters(void **state)
{
    (void)state;
    struct setup s;
    assert_int_equal(open_setup(&s, NULL, NULL, NULL, NULL), 0);
    const char *typed[] = {"</s><|e|><|b|><s>", "|e|>", "<|e|", "<", "x</s"};
    for (size_t i = 0; i < sizeof(typed) / sizeof(*typed); i++) {
        char messages[300];
        struct token_ids ids = {0};
        struct buf text, back;
        buf_init(&text);
        buf_init(&back);
        snprintf(
            messages, sizeof(messages),
            "[{\"role\":\"user\",\"content\":\"%s\"},{\"role\":\"assistant\",\"content\":\"%s\"}]",
            typed[i], typed[i]);
        struct json *m = parse(messages);
        assert_int_equal(chat_encode(s.c, m, &silent, &ids, &text, NULL), 0);
        assert_int_equal(count_id(&ids, 296), 1); /* the template's own */
        assert_int_equal(count_id(&ids, 297), 1);
        assert_int_equal(count_id(&ids, 1) + count_id(&ids, 2), 0);
        tokenizer_decode(s.t, ids.ids, ids.n, 0, &back);
        assert_string_equal(back.data, text.data);
        buf_fini(&text);
        buf_fini(&back);
        token_ids_fini(&ids);
        json_free(m);
    }
    close_setup(&s);
}

static void a_continued_message_ends_with_its_own_text(void **state)
{
    (void)state;
    struct setup s;
    struct chat_render_options go_on = {.add_generation_prompt = 0, .continue_final_message = 1};
    assert_int_equal(open_setup(&s, NULL, NULL, NULL, NULL), 0);
    RENDERS(&s,
            "[{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\",\"content\":\"e\"}]",
            &go_on, "<|b|>User: U\nAssistant: e"); /* not the "e" of the closing token */
    RENDERS(&s, "[{\"role\":\"assistant\",\"content\":\" so far \"}]", &go_on,
            "<|b|>Assistant:  so far ");
    RENDERS(&s, "[{\"role\":\"assistant\",\"content\":\"\"}]", &go_on,
            "ERROR continue_final_message is set but the final message has no text");
    RENDERS(&s, "[{\"role\":\"tool\",\"content\":\"lost\"}]", &go_on,
            "ERROR continue_final_message is set but the final message does not appear in the chat "
            "after applying the "
            "chat template");
    close_setup(&s);
    assert_int_equal(open_setup(&s, "{{ messages[0].content | trim }}!", NULL, NULL, NULL), 0);
    RENDERS(&s, "[{\"role\":\"assistant\",\"content\":\" so far \"}]", &go_on, "so far");
    close_setup(&s);
}

static void what_a_template_raises_is_the_error(void **state)
{
    (void)state;
    struct setup s;
    assert_int_equal(
        open_setup(&s, "{{ raise_exception('roles must alternate') }}", NULL, NULL, NULL), 0);
    RENDERS(&s, "[{\"role\":\"user\"}]", &ask, "ERROR roles must alternate");
    close_setup(&s);
    assert_int_equal(open_setup(&s, "\n{{ messages[0].name + 'x' }}", NULL, NULL, NULL), 0);
    RENDERS(&s, "[{\"role\":\"user\"}]", &ask,
            "ERROR chat template, line 2: 'dict object' has no attribute 'name'");
    close_setup(&s);
}

static void the_fixture_conversations_give_golden_text_and_ids(void **state)
{
    (void)state;
    struct json *doc;
    const char *path = shared_path("fixtures/tokenizer/golden.json");
    if (!path) {
        skip();
        return;
    }
    assert_int_equal(json_parse_file(&doc, path, 1 << 24, NULL), 0);
    const char *dir = shared_path("fixtures/tokenizer");
    struct tokenizer *t;
    struct chat_template *c;
    assert_int_equal(tokenizer_open(&t, dir, NULL), 0);
    assert_int_equal(chat_template_open(&c, dir, NULL, t, NULL), 0);
    const struct json *chats = json_get(doc, "chat");
    assert_int_equal(json_length(chats), 10);
    for (size_t k = 0; k < json_length(chats); k++) {
        const struct json *x = json_at(chats, k), *want = json_get(x, "ids");
        struct chat_render_options o = {.add_generation_prompt =
                                            json_bool(json_get(x, "add_generation_prompt"))};
        struct token_ids ids = {0};
        struct buf text;
        size_t n;
        buf_init(&text);
        assert_int_equal(chat_encode(c, json_get(x, "messages"), &o, &ids, &text, NULL), 0);
        assert_string_equal(text.data, json_string(json_get(x, "text"), &n));
        assert_int_equal(ids.n, json_length(want));
        for (size_t i = 0; i < ids.n; i++) {
            assert_int_equal(ids.ids[i], json_int(json_at(want, i)));
        }
        buf_fini(&text);
        token_ids_fini(&ids);
    }
    chat_template_close(c);
    tokenizer_close(t);
    json_free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_without_a_template_gets_the_ernie_one),
        cmocka_unit_test(the_template_comes_from_the_first_place_that_has_one),
        cmocka_unit_test(a_template_that_does_not_parse_is_refused_with_its_line),
        cmocka_unit_test(content_comes_as_string_parts_null_or_not_at_all),
        cmocka_unit_test(malformed_messages_are_errors),
        cmocka_unit_test(a_template_that_walks_parts_gets_parts),
        cmocka_unit_test(tool_call_arguments_reach_the_template_as_objects),
        cmocka_unit_test(reasoning_of_earlier_turns_is_known_by_both_names),
        cmocka_unit_test(special_strings_typed_by_a_user_stay_characters),
        cmocka_unit_test(a_continued_message_ends_with_its_own_text),
        cmocka_unit_test(what_a_template_raises_is_the_error),
        cmocka_unit_test(the_fixture_conversations_give_golden_text_and_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
