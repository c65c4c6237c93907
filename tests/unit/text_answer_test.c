/* SPDX-License-Identifier: Apache-2.0 */
/* What a model says, split into reasoning, content and calls. Every case is fed whole, byte by
 * byte, and cut at every place (at every two places when it is short): the events joined must be
 * the same. */
#include "text/answer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PLAIN                                                                                      \
    {                                                                                              \
        0                                                                                          \
    }
#define THINKS                                                                                     \
    {                                                                                              \
        .reasoning = 1, .thinking = 1                                                              \
    }
#define MAY                                                                                        \
    {                                                                                              \
        .reasoning = 1                                                                             \
    }
#define AUTO                                                                                       \
    {                                                                                              \
        .tools = ANSWER_TOOLS_MARKED                                                               \
    }
#define BOTH                                                                                       \
    {                                                                                              \
        .reasoning = 1, .thinking = 1, .tools = ANSWER_TOOLS_MARKED                                \
    }
#define LIST                                                                                       \
    {                                                                                              \
        .tools = ANSWER_TOOLS_LIST                                                                 \
    }
#define NAMED                                                                                      \
    {                                                                                              \
        .tools = ANSWER_TOOLS_ONE, .function = "f"                                                 \
    }
#define CALL(s) "<tool_call>\n" s "\n</tool_call>"
#define LONG_FIRST                                                                                 \
    "[{\"name\": \"a\", \"parameters\": {\"text\": \"one\\n  two ]}\\\" \xe4\xbd\xa0\", "          \
    "\"n\": [1, {\"x\": 2}]}}"

/* want: reasoning|content|name(arguments)… as collected. */
struct example {
    struct answer_options o;
    const char *said, *want;
};

static const struct example examples[] = {
    /* no parser at all: bytes pass, marks too */
    {PLAIN, "<think>a</think>\n<tool_call>{}</tool_call>",
     "|<think>a</think>\n<tool_call>{}</tool_call>|"},
    {PLAIN, "", "||"},
    /* reasoning that the prompt opened */
    {THINKS, "abc</think>def", "abc|def|"},
    {THINKS, "abc", "abc||"},
    {THINKS, "abc</think>", "abc||"},
    {THINKS, "abc\nABC</think>def\nDEF", "abc\nABC|def\nDEF|"},
    {THINKS, "</think>def", "|def|"},
    {THINKS, "a\n</think>\n\n<response>\nb\nc\n</response>\n", "a|b\nc|"},
    {THINKS, "a\n\n</think>\n\n\n\nb", "a\n|\n\nb|"},
    {THINKS, "\n<think>\na\n</think>b", "a|b|"},
    {THINKS, "<think>a", "a||"},
    {THINKS, "a </thin</think >b</think>c", "a </thin</think >b|c|"},
    {THINKS, "a</think>b</think>c", "a|b</think>c|"},
    {THINKS, "a</think>\n\n<response>\nb", "a|b|"},
    {THINKS, "a</think><response>b</response>\n\nc", "a|b\nc|"},
    {THINKS, "a</think>b <response>c</response>", "a|b <response>c</response>|"},
    {THINKS, "\xe6\x80\x9d\xe8\x80\x83\xef\xbc\x81\n</think>\n\n\xe4\xbd\xa0\xe5\xa5\xbd\n",
     "\xe6\x80\x9d\xe8\x80\x83\xef\xbc\x81|\xe4\xbd\xa0\xe5\xa5\xbd\n|"},
    /* cut in a mark: what was said is not lost */
    {THINKS, "a</thi", "a</thi||"},
    {THINKS, "a\n", "a\n||"},
    {THINKS, "a</think>\n\n<resp", "a|<resp|"},
    {THINKS, "a</think>\n<response>\nb\n</respo", "a|b\n</respo|"},
    {THINKS, "<thin", "<thin||"},
    /* the prompt did not open it: content, unless the model opens it itself */
    {MAY, "abc", "|abc|"},
    {MAY, "  \n", "|  \n|"},
    {MAY, " \n<think>\nabc\n</think>\n\ndef", "abc|def|"},
    {MAY, "abc<think>d</think>", "|abc<think>d</think>|"},
    {MAY, "<response>\nabc\n</response>", "|abc|"},
    {MAY, "<thi", "|<thi|"},
    {MAY, "\n\nabc", "|\n\nabc|"},
    /* calls among the content */
    {AUTO, "This is a test", "|This is a test|"},
    {AUTO, CALL("{\"name\": \"t\", \"arguments\": {\"location\": \"Beijing\"}}") "\n",
     "||t({\"location\": \"Beijing\"})"},
    {AUTO,
     CALL("{\"name\": \"t\", \"arguments\": {\"l\": \"B\"}}") "\n" CALL(
         "{\"name\": \"u\", \"arguments\": {\"l\": \"G\", \"unit\": \"c\"}}") "\n",
     "||t({\"l\": \"B\"})u({\"l\": \"G\", \"unit\": \"c\"})"},
    {AUTO, "I need two.\n</think>\n\n" CALL("{\"name\":\"t\",\"arguments\":{}}") "\n",
     "|I need two.\n</think>|t({})"},
    {AUTO, "ok\n\n" CALL("{\"name\":\"t\",\"arguments\": {\"a\":\n \"x  y\"} }") "\n\n after",
     "|ok\n\n after|t({\"a\":\n \"x  y\"})"},
    {AUTO, CALL("{\"arguments\":{\"name\":\"z\"},\"name\":\"t\"}"), "||t({\"name\":\"z\"})"},
    {AUTO, CALL("{\"name\":\"t\",\"arguments\":\"{\\\"a\\\": 1}\"}"), "||t({\"a\": 1})"},
    {AUTO, CALL("{\"name\":\"t\"}"), "||t({})"},
    {AUTO, CALL("{\"name\":\"t\",\"arguments\":null}"), "||t({})"},
    {AUTO, CALL("{\"name\":\"t\",\"arguments\":{\"a\":\"</tool_call>\\\"<tool_call>\"}}"),
     "||t({\"a\":\"</tool_call>\\\"<tool_call>\"})"},
    {AUTO, "<tool_call>{\"name\":\"t\\u4f60\",\"arguments\":{}}</tool_call>",
     "||t\xe4\xbd\xa0({})"},
    {AUTO, "<response>\nhi\n</response>\n" CALL("{\"name\":\"t\",\"arguments\":{}}"), "|hi|t({})"},
    {AUTO, "<response>\nhi\n" CALL("{\"name\":\"t\",\"arguments\":{}}") "\n</response>\n",
     "|hi|t({})"},
    {AUTO, "a < b <tool <tool_call", "|a < b <tool <tool_call|"},
    {AUTO, "a\n\n\n", "|a\n\n\n|"},
    /* no call after all: everything is content */
    {AUTO, "x\n" CALL("{\"name\": 1}") "\ny", "|x\n" CALL("{\"name\": 1}") "\ny|"},
    {AUTO, CALL("{\"name\":\"t\",\"arguments\":[1]}"),
     "|" CALL("{\"name\":\"t\",\"arguments\":[1]}") "|"},
    {AUTO, CALL("hello") CALL("{\"name\":\"t\",\"arguments\":{}}"), "|" CALL("hello") "|t({})"},
    {AUTO, "a\n<tool_call>\n{\"name\": \"t\", \"argu",
     "|a\n<tool_call>\n{\"name\": \"t\", \"argu|"},
    {AUTO, CALL("{\"name\":\"t\",\"arguments\":{}}") "\n<tool_call>\n{\"na",
     "|<tool_call>\n{\"na|t({})"},
    {AUTO, "a\n<tool_call>\n{\"name\":\"t\",\"arguments\":{}}\n</tool_ca",
     "|a\n<tool_call>\n{\"name\":\"t\",\"arguments\":{}}\n</tool_ca|"},
    /* reasoning, then calls; a mark in the reasoning is reasoning */
    {BOTH, "I need it\n</think>\n\n" CALL("{\"name\":\"t\",\"arguments\":{\"a\":1}}") "\n",
     "I need it||t({\"a\":1})"},
    {BOTH, "maybe <tool_call> then\n</think>\n\n<response>\nno\n</response>\n",
     "maybe <tool_call> then|no|"},
    {BOTH, "a</think>\n\nfirst\n" CALL("{\"name\":\"t\",\"arguments\":{}}"), "a|first|t({})"},
    /* a list of calls */
    {LIST, "[{\"name\": \"a\", \"parameters\": {}}]", "||a({})"},
    {LIST, LONG_FIRST ",\n {\"name\":\"b\",\"parameters\":{\"y\":null}}]",
     "||a({\"text\": \"one\\n  two ]}\\\" \xe4\xbd\xa0\", \"n\": [1, {\"x\": 2}]})b({\"y\":null})"},
    {LIST, " [ {\"name\" : \"a\" , \"parameters\" : { \"x\" : 1 } } ] ", "||a({ \"x\" : 1 })"},
    {LIST, "[{\"name\":\"a\"},{\"name\":\"b\",\"parameters\":\"s,}\"}]", "||a({})b(\"s,}\")"},
    {LIST, "[{\"name\":\"a\",\"parameters\":-12.5}]", "||a(-12.5)"},
    {LIST, "[]", "||"},
    {LIST, LONG_FIRST ", {\"name\": \"b\", \"parameters\": {\"y\": \"ab",
     "||a({\"text\": \"one\\n  two ]}\\\" \xe4\xbd\xa0\", \"n\": [1, {\"x\": 2}]})b({\"y\": \"ab)"},
    {LIST, "[{\"name\":\"a\",\"parameters\":{}}, {\"name\": \"b", "|{\"name\": \"b|a({})"},
    {LIST, "[{\"name\":\"a\",\"parameters\":{}", "||a({})"},
    {LIST, "sorry, no", "|sorry, no|"},
    {LIST, "[{\"name\":\"a\",\"parameters\":{}}] more", "| more|a({})"},
    {{.reasoning = 1, .thinking = 1, .tools = ANSWER_TOOLS_LIST},
     "so\n</think>\n\n[{\"name\":\"a\",\"parameters\":{}}]",
     "so||a({})"},
    {{.tools = ANSWER_TOOLS_LIST, .one_call = 1},
     "[{\"name\":\"a\",\"parameters\":{}},{\"name\":\"b\",\"parameters\":{\"x\":1}}]",
     "||a({})"},
    {{.tools = ANSWER_TOOLS_MARKED, .one_call = 1},
     CALL("{\"name\":\"t\",\"arguments\":{}}") CALL("{\"name\":\"u\",\"arguments\":{}}"),
     "||t({})"},
    /* the named function */
    {NAMED, "{\"a\": \"x \\n y\"}", "||f({\"a\": \"x \\n y\"})"},
    {NAMED, "{\"a\": \"x", "||f({\"a\": \"x)"},
    {NAMED, "", "||f()"},
    {{.reasoning = 1, .thinking = 1, .tools = ANSWER_TOOLS_ONE, .function = "f"},
     "so\n</think>\n\n{}",
     "so||f({})"},
    {{.reasoning = 1, .thinking = 1, .tools = ANSWER_TOOLS_ONE, .function = "f"}, "so\n", "so\n||"},
};

/* Feeds said cut at a and b and collects the events; 0: byte by byte. */
static char *collect(const struct example *x, size_t a, size_t b, int bytewise)
{
    struct answer p;
    struct answer_message m;
    struct buf out;
    size_t n = strlen(x->said);
    answer_init(&p, &x->o);
    answer_message_init(&m);
    if (bytewise) {
        for (size_t i = 0; i < n; i++) {
            answer_feed(&p, x->said + i, 1);
            answer_message_take(&m, &p);
        }
    } else {
        answer_feed(&p, x->said, a);
        answer_message_take(&m, &p);
        answer_feed(&p, x->said + a, b - a);
        answer_message_take(&m, &p);
        answer_feed(&p, x->said + b, n - b);
        answer_message_take(&m, &p);
    }
    answer_finish(&p);
    answer_message_take(&m, &p);
    assert_false(m.failed);
    buf_init(&out);
    buf_printf(&out, "%s|%s|", m.reasoning.data ? m.reasoning.data : "",
               m.content.data ? m.content.data : "");
    for (int i = 0; i < m.n_calls; i++) {
        buf_printf(&out, "%s(%s)", m.calls[i].name.data,
                   m.calls[i].arguments.data ? m.calls[i].arguments.data : "");
    }
    answer_message_fini(&m);
    answer_fini(&p);
    return buf_detach(&out);
}

static void check(const struct example *x, size_t a, size_t b, int bytewise)
{
    char *got = collect(x, a, b, bytewise);
    if (strcmp(got, x->want) != 0) {
        fail_msg("%s\ncut at %zu and %zu%s\n got %s\nwant %s", x->said, a, b,
                 bytewise ? " (each byte)" : "", got, x->want);
    }
    free(got);
}

static void every_cut_of_an_answer_gives_the_same_message(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const struct example *x = &examples[i];
        size_t n = strlen(x->said);
        check(x, n, n, 0);
        check(x, 0, 0, 1);
        for (size_t a = 0; a <= n; a++) {
            for (size_t b = a; b <= n; b += n <= 60 ? 1 : n - a ? n - a : 1) {
                check(x, a, b, 0);
            }
        }
    }
}

/* The same on every prefix: an answer cut by max_tokens anywhere reads the same in both modes. */
static void every_prefix_of_an_answer_reads_the_same_streamed_and_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        char said[512];
        for (size_t n = 0; n <= strlen(examples[i].said); n++) {
            struct example x = examples[i];
            assert_true(n < sizeof said);
            memcpy(said, examples[i].said, n);
            said[n] = '\0';
            x.said = said;
            char *whole = collect(&x, n, n, 0);
            x.want = whole;
            check(&x, 0, 0, 1);
            check(&x, n / 2, n / 2, 0);
            free(whole);
        }
    }
}

/* Calls are told of in order, each with one beginning and one end, indexes from 0 on. */
static void each_call_begins_and_ends_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        struct answer p;
        struct answer_event ev;
        int open = 0, next = 0;
        size_t n = strlen(examples[i].said);
        answer_init(&p, &examples[i].o);
        for (size_t k = 0; k <= n; k++) {
            if (k < n) {
                answer_feed(&p, examples[i].said + k, 1);
            } else {
                answer_finish(&p);
            }
            while (answer_next(&p, &ev)) {
                if (ev.kind == ANSWER_CALL) {
                    assert_false(open);
                    assert_int_equal(ev.call, next++);
                    open = 1;
                } else if (ev.kind == ANSWER_ARGUMENTS) {
                    assert_true(open);
                    assert_int_equal(ev.call, next - 1);
                } else if (ev.kind == ANSWER_CALL_END) {
                    assert_true(open);
                    assert_int_equal(ev.call, next - 1);
                    open = 0;
                } else {
                    assert_true(ev.n_bytes > 0);
                }
            }
        }
        assert_false(open);
        answer_fini(&p);
    }
}

static void arguments_of_a_list_come_as_they_are_written(void **state)
{
    (void)state;
    struct answer_options o = LIST;
    struct answer p;
    struct answer_event ev;
    answer_init(&p, &o);
    const char *head = "[{\"name\": \"a\", \"parameters\": {\"x\": ";
    answer_feed(&p, head, strlen(head));
    assert_true(answer_next(&p, &ev));
    assert_int_equal(ev.kind, ANSWER_CALL);
    assert_true(answer_next(&p, &ev));
    assert_int_equal(ev.kind, ANSWER_ARGUMENTS);
    assert_memory_equal(ev.text, "{\"x\": ", 6);
    assert_false(answer_next(&p, &ev));
    answer_feed(&p, "  ", 2); /* blanks alone are data */
    assert_true(answer_next(&p, &ev));
    assert_int_equal(ev.n_bytes, 2);
    answer_fini(&p);
}

static void text_before_a_mark_is_not_held_back(void **state)
{
    (void)state;
    struct answer_options o = BOTH;
    struct answer p;
    struct answer_event ev;
    answer_init(&p, &o);
    assert_true(answer_is_thinking(&p));
    answer_feed(&p, "so it is <", 10);
    assert_true(answer_next(&p, &ev));
    assert_int_equal(ev.n_bytes, 9);
    answer_feed(&p, "/think>yes", 10);
    assert_true(answer_next(&p, &ev));
    assert_int_equal(ev.kind, ANSWER_CONTENT);
    assert_false(answer_is_thinking(&p));
    answer_fini(&p);
}

static int thinks(const char *text, const char *marks)
{
    uint8_t mark[256];
    for (size_t i = 0; text[i]; i++) {
        mark[i] = marks[i] == 't';
    }
    return answer_prompt_thinks(text, mark, strlen(text));
}

static void only_the_template_opens_thinking(void **state)
{
    (void)state;
    assert_true(thinks("a<think>\n", "ttttttttt"));
    assert_true(thinks("<think>x</think>b<think>\n", "tttttttttttttttttttttttttt"));
    assert_false(thinks("<think>\n\n</think>\n\n", "ttttttttttttttttttttttttt"));
    assert_false(thinks("hello", "ttttt"));
    assert_false(thinks("a<think>\n", "ddddddddt"));       /* a message said it */
    assert_true(thinks("<think>so far", "tttttttdddddd")); /* a message that goes on */
    assert_false(thinks("use <think> now", "ttttttttttttttt"));
    assert_false(thinks("", ""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_of_an_answer_gives_the_same_message),
        cmocka_unit_test(every_prefix_of_an_answer_reads_the_same_streamed_and_whole),
        cmocka_unit_test(each_call_begins_and_ends_once),
        cmocka_unit_test(arguments_of_a_list_come_as_they_are_written),
        cmocka_unit_test(text_before_a_mark_is_not_held_back),
        cmocka_unit_test(only_the_template_opens_thinking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
