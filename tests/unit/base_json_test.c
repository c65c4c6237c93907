/* SPDX-License-Identifier: Apache-2.0 */
/* JSON in and out. The expected texts of doubles are those of Python's repr. */
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/utf8.h"

static struct json *parse(const char *text)
{
    struct json *v;
    struct err e = {0};
    if (json_parse(&v, text, strlen(text), JSON_DEPTH_DEFAULT, &e) != 0) {
        fail_msg("%s: %s", text, e.text);
    }
    return v;
}

static void assert_refused(const char *text, size_t n_bytes, const char *why)
{
    struct json *v;
    struct err e = {0};
    int rc = json_parse(&v, text, n_bytes, JSON_DEPTH_DEFAULT, &e);
    if (rc != ERR_FORMAT || v != NULL) {
        fail_msg("accepted: %s", text);
    }
    if (!strstr(e.text, why)) {
        fail_msg("%s: \"%s\" does not say \"%s\"", text, e.text, why);
    }
}

static void all_types_are_read(void **state)
{
    (void)state;
    struct json *v = parse(" {\"n\":null,\"b\":true,\"i\":-7,\"d\":1.5e3,\"s\":\"x\","
                           "\"a\":[1,null,\"z\"],\"o\":{}}\n");
    assert_int_equal(json_type(v), JSON_OBJECT);
    assert_int_equal(json_length(v), 7);
    assert_non_null(json_get(v, "n"));
    assert_int_equal(json_type(json_get(v, "n")), JSON_NULL);
    assert_null(json_get(v, "absent"));
    assert_int_equal(json_type(NULL), JSON_NULL);
    assert_int_equal(json_bool(json_get(v, "b")), 1);
    assert_int_equal(json_int(json_get(v, "i")), -7);
    assert_true(json_double(json_get(v, "i")) == -7.0);
    assert_int_equal(json_type(json_get(v, "d")), JSON_DOUBLE);
    assert_true(json_double(json_get(v, "d")) == 1500.0);
    const struct json *a = json_get(v, "a");
    assert_int_equal(json_length(a), 3);
    assert_int_equal(json_type(json_at(a, 1)), JSON_NULL);
    assert_string_equal(json_string(json_at(a, 2), NULL), "z");
    assert_null(json_at(a, 3));
    assert_int_equal(json_length(json_get(v, "o")), 0);
    json_free(v);
    v = parse("null");
    assert_int_equal(json_type(v), JSON_NULL);
    json_free(v);
    json_free(NULL);
}

static void what_is_not_rfc_8259_is_refused_with_its_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"", "line 1, column 1: Expecting value"},
        {"NaN", "Expecting value"},
        {"[Infinity]", "column 2"},
        {"-Infinity", "Expecting value"},
        {"{'a':1}", "column 2: Expecting property name enclosed in double quotes"},
        {"['a']", "column 2: Expecting value"},
        {"// c\n1", "Expecting value"},
        {"/* c */ 1", "Expecting value"},
        {"[1,]", "column 4"},
        {"{\"a\":1,}", "column 8"},
        {"{\"a\" 1}", "Expecting ':' delimiter"},
        {"[1 2]", "column 4: Expecting ',' delimiter"},
        {"[1}", "Expecting ',' delimiter"},
        {"{} x", "column 4: Extra data"},
        {"1 2", "Extra data"},
        {"01", "Extra data"},
        {"1.", "Expecting digits"},
        {"+1", "Expecting value"},
        {".5", "Expecting value"},
        {"1e", "Expecting digits"},
        {"True", "Expecting value"},
        {"nul", "Expecting value"},
        {"\"a", "Unterminated string"},
        {"\"a\tb\"", "Invalid control character"},
        {"\"\\x41\"", "Invalid \\escape"},
        {"\"\\u12g4\"", "Invalid \\uXXXX escape"},
        {"\"\\u12", "Invalid \\uXXXX escape"},
        {"\"\\ud83d\"", "lone surrogate"},
        {"\"\\ude00\\ud83d\"", "lone surrogate"},
        {"\"\\ud83d\\u0041\"", "lone surrogate"},
        {"\"\xED\xA0\xBD\"", "invalid UTF-8"},
        {"\"\xC3\"", "invalid UTF-8"},
        {"\"\xC0\x80\"", "invalid UTF-8"},
        {"\xEF\xBB\xBF{}", "Expecting value"},
        {"1e999", "too large"},
        {"{\n \"\xC3\xA9\": x}", "line 2, column 7"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_refused(cases[i].text, strlen(cases[i].text), cases[i].why);
    }
    assert_refused("1\0", 2, "Extra data");
    assert_refused("\"a\0b\"", 5, "Invalid control character");
}

static void text_need_not_be_terminated(void **state)
{
    (void)state;
    static const char *texts[] = {"12", "tru", "\"ab", "[1", "{\"a\":1", "1.5e", "\"\\u00"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        size_t n = strlen(texts[i]);
        char *exact = malloc(n); /* the sanitizer sees a read beyond it */
        assert_non_null(exact);
        memcpy(exact, texts[i], n);
        struct json *v = NULL;
        int rc = json_parse(&v, exact, n, 4, NULL);
        assert_int_equal(rc, i == 0 ? 0 : ERR_FORMAT);
        json_free(v);
        free(exact);
    }
}

static void nesting_beyond_the_limit_is_refused_on_a_small_stack(void **state)
{
    (void)state;
    struct json *v;
    struct err e = {0};
    assert_int_equal(json_parse(&v, "[[[]]]", 6, 3, &e), 0);
    json_free(v);
    assert_int_equal(json_parse(&v, "[{\"a\":[[]]}]", 12, 3, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "column 8: nested deeper than 3 levels"));
    size_t n = 20000000;
    char *deep = malloc(n);
    assert_non_null(deep);
    memset(deep, '[', n);
    assert_int_equal(json_parse(&v, deep, n, 1 << 30, &e), ERR_FORMAT);
    free(deep);
}

static void integers_beyond_int64_become_doubles(void **state)
{
    (void)state;
    struct json *v = parse("[9223372036854775807,-9223372036854775808,9223372036854775808,"
                           "18446744073709551615,-9223372036854775809,100000000000000000000000]");
    assert_int_equal(json_type(json_at(v, 0)), JSON_INT);
    assert_true(json_int(json_at(v, 0)) == INT64_MAX);
    assert_true(json_int(json_at(v, 1)) == INT64_MIN);
    static const double want[] = {
        0, 0, 9223372036854775808.0, 18446744073709551616.0, -9223372036854775808.0, 1e23};
    for (size_t i = 2; i < 6; i++) {
        assert_int_equal(json_type(json_at(v, i)), JSON_DOUBLE);
        assert_true(json_double(json_at(v, i)) == want[i]);
    }
    json_free(v);
}

static void last_duplicate_wins_in_the_first_place(void **state)
{
    (void)state;
    struct json *v = parse("{\"a\":1,\"b\":2,\"a\":3}");
    assert_int_equal(json_length(v), 2);
    assert_int_equal(json_int(json_get(v, "a")), 3);
    struct buf b;
    buf_init(&b);
    json_dump(v, &b);
    assert_string_equal(b.data, "{\"a\":3,\"b\":2}");
    buf_fini(&b);
    json_free(v);
}

static void strings_and_names_keep_nul_and_every_escape(void **state)
{
    (void)state;
    static const char text[] = "{\"a\\u0000b\":\"x\\u0000\\u0001y\",\"a\":1,\"\\u0001\":2,"
                               "\"\\u00010\":3,\"p\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9"
                               "\\ud83d\\ude00\"}";
    struct json *v = parse(text);
    assert_int_equal(json_length(v), 5);
    assert_int_equal(json_int(json_get(v, "a")), 1);
    assert_int_equal(json_int(json_get(v, "\x01")), 2);
    assert_int_equal(json_int(json_get(v, "\x01"
                                          "0")),
                     3);
    size_t n, it = 0;
    assert_string_equal(json_string(json_get(v, "p"), &n), "\"\\/\b\f\n\r\t\u00e9\U0001F600");
    const char *key;
    const struct json *member;
    assert_int_equal(json_next(v, &it, &key, &n, &member), 1);
    assert_int_equal(n, 3);
    assert_memory_equal(key, "a\0b", 4);
    const char *s = json_string(member, &n);
    assert_int_equal(n, 4);
    assert_memory_equal(s, "x\0\x01y", 5);
    struct buf b;
    buf_init(&b);
    json_dump(v, &b);
    assert_string_equal(b.data, "{\"a\\u0000b\":\"x\\u0000\\u0001y\",\"a\":1,\"\\u0001\":2,"
                                "\"\\u00010\":3,\"p\":\"\\\"\\\\/\\b\\f\\n\\r\\t\u00e9"
                                "\U0001F600\"}");
    buf_fini(&b);
    json_free(v);
}

static void members_are_visited_in_document_order(void **state)
{
    (void)state;
    struct json *v = parse("{\"z\":1,\"a\":2,\"m\":3}");
    size_t it = 0;
    const char *key;
    char order[4] = "";
    for (size_t i = 0; json_next(v, &it, &key, NULL, NULL); i++) {
        order[i] = key[0];
    }
    assert_string_equal(order, "zam");
    json_free(v);
}

static void wrong_types_give_harmless_values(void **state)
{
    (void)state;
    struct json *v = parse("[\"s\"]");
    size_t n = 9, it = 0;
    assert_null(json_get(v, "a"));
    assert_null(json_string(v, &n));
    assert_int_equal(n, 0);
    assert_int_equal(json_int(json_at(v, 0)), 0);
    assert_int_equal(json_bool(json_at(v, 0)), 0);
    assert_int_equal(json_length(json_at(v, 0)), 0);
    assert_int_equal(json_next(v, &it, NULL, NULL, NULL), 0);
    assert_null(json_at(NULL, 0));
    json_free(v);
}

static void doubles_are_written_as_python_writes_them(void **state)
{
    (void)state;
    static const struct {
        double v;
        const char *text;
    } cases[] = {
        {1.0, "1.0"},
        {-0.0, "-0.0"},
        {0.1, "0.1"},
        {-1.5, "-1.5"},
        {100.0, "100.0"},
        {1.0 / 3.0, "0.3333333333333333"},
        {0.1 + 0.2, "0.30000000000000004"},
        {1e15, "1000000000000000.0"},
        {1e16, "1e+16"},
        {1e22, "1e+22"},
        {1e23, "1e+23"},
        {123456789012345678.0, "1.2345678901234568e+17"},
        {9007199254740993.0, "9007199254740992.0"},
        {0.0001, "0.0001"},
        {0.00001, "1e-05"},
        {5e-324, "5e-324"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {(double)0.7f, "0.699999988079071"},
        {NAN, "null"},
        {-INFINITY, "null"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf b;
        struct json_writer w;
        buf_init(&b);
        json_w_init(&w, &b);
        json_w_double(&w, cases[i].v);
        assert_string_equal(b.data, cases[i].text);
        buf_fini(&b);
    }
}

static void random_doubles_read_back_the_same_bits(void **state)
{
    (void)state;
    uint64_t x = 88172645463325252u;
    struct buf b;
    buf_init(&b);
    for (int i = 0; i < 20000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        double d;
        memcpy(&d, &x, sizeof d);
        if (!isfinite(d)) {
            continue;
        }
        struct json_writer w;
        buf_clear(&b);
        json_w_init(&w, &b);
        json_w_double(&w, d);
        struct json *v = parse(b.data);
        double back = json_double(v);
        assert_memory_equal(&back, &d, sizeof d);
        json_free(v);
    }
    buf_fini(&b);
}

static void writer_places_commas_and_colons(void **state)
{
    (void)state;
    struct buf b;
    struct json_writer w;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_kstring(&w, "s", "x");
    json_w_key(&w, "a");
    json_w_array(&w);
    json_w_int(&w, -1);
    json_w_uint(&w, UINT64_MAX);
    json_w_object(&w);
    json_w_object_end(&w);
    json_w_array(&w);
    json_w_array_end(&w);
    json_w_raw(&w, "[0]", 3);
    json_w_array_end(&w);
    json_w_kint(&w, "i", INT64_MIN);
    json_w_kbool(&w, "t", 5);
    json_w_kdouble(&w, "d", 2);
    json_w_kstring(&w, "n", NULL);
    json_w_knull(&w, "m");
    json_w_object_end(&w);
    assert_string_equal(b.data, "{\"s\":\"x\",\"a\":[-1,18446744073709551615,{},[],[0]],"
                                "\"i\":-9223372036854775808,\"t\":true,\"d\":2.0,\"n\":null,"
                                "\"m\":null}");
    buf_fini(&b);
}

static void written_strings_are_valid_whatever_the_bytes(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        char s[3] = {'a', (char)c, 'b'};
        struct buf b;
        struct json_writer w;
        buf_init(&b);
        json_w_init(&w, &b);
        json_w_stringn(&w, s, 3);
        struct json *v = parse(b.data);
        size_t n;
        const char *back = json_string(v, &n);
        if (c < 0x80) {
            assert_int_equal(n, 3);
            assert_memory_equal(back, s, 3);
        } else {
            assert_string_equal(back, "a\uFFFD"
                                      "b");
        }
        json_free(v);
        buf_fini(&b);
    }
}

static void deep_value_is_dumped_at_any_writer_level(void **state)
{
    (void)state;
    char text[401];
    memset(text, '[', 200);
    memset(text + 200, ']', 200);
    text[400] = '\0';
    struct json *v;
    assert_int_equal(json_parse(&v, text, 400, 200, NULL), 0);
    struct buf b;
    struct json_writer w;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_array(&w);
    json_w_value(&w, v);
    json_w_value(&w, NULL);
    json_w_array_end(&w);
    assert_int_equal(b.len, 407);
    assert_string_equal(b.data + 401, ",null]");
    json_free(v);
    buf_fini(&b);
}

#ifdef NDEBUG
static void misuse_marks_the_buffer_in_release_builds(void **state)
{
    (void)state;
    struct buf b;
    struct json_writer w;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_int(&w, 1); /* a value without its key */
    assert_true(b.failed);
    buf_clear(&b);
    json_w_init(&w, &b);
    for (int i = 0; i < JSON_WRITER_DEPTH; i++) {
        json_w_array(&w);
    }
    assert_false(b.failed);
    json_w_array(&w);
    assert_true(b.failed);
    buf_fini(&b);
}
#endif

static void bodies_of_megabytes_take_well_under_a_second_each(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b);
    buf_puts(&b, "{\"messages\":[");
    for (int i = 0; i < 100000; i++) {
        buf_printf(&b, "%s{\"role\":\"user\",\"content\":\"\u4f60\u597d, number %d\\n\"}",
                   i ? "," : "", i);
    }
    buf_puts(&b, "]}");
    assert_true(b.len > 4000000);
    clock_t start = clock(); /* of this process: other load doesn't count */
    struct json *v = parse(b.data);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    print_message("%zu bytes in %.3f s\n", b.len, seconds);
    assert_int_equal(json_length(json_get(v, "messages")), 100000);
    assert_true(seconds < 10.0); /* with a sanitizer; catches quadratic time */
    json_free(v);
    buf_fini(&b);
}

/* json-c 0.16 takes the low half of such a code point for a lone surrogate. */
static void an_escaped_pair_whose_low_bits_look_like_a_surrogate_is_one_character(void **state)
{
    (void)state;
    struct json *v = parse("{\"\\ud876\\ude0b\":\"a\\ud876\\ude0b\\ud83d\\ude00\"}");
    size_t n;
    assert_string_equal(json_string(json_get(v, "\U0002da0b"), &n), "a\U0002da0b\U0001f600");
    json_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_escaped_pair_whose_low_bits_look_like_a_surrogate_is_one_character),
        cmocka_unit_test(all_types_are_read),
        cmocka_unit_test(what_is_not_rfc_8259_is_refused_with_its_place),
        cmocka_unit_test(text_need_not_be_terminated),
        cmocka_unit_test(nesting_beyond_the_limit_is_refused_on_a_small_stack),
        cmocka_unit_test(integers_beyond_int64_become_doubles),
        cmocka_unit_test(last_duplicate_wins_in_the_first_place),
        cmocka_unit_test(strings_and_names_keep_nul_and_every_escape),
        cmocka_unit_test(members_are_visited_in_document_order),
        cmocka_unit_test(wrong_types_give_harmless_values),
        cmocka_unit_test(doubles_are_written_as_python_writes_them),
        cmocka_unit_test(random_doubles_read_back_the_same_bits),
        cmocka_unit_test(writer_places_commas_and_colons),
        cmocka_unit_test(written_strings_are_valid_whatever_the_bytes),
        cmocka_unit_test(deep_value_is_dumped_at_any_writer_level),
#ifdef NDEBUG
        cmocka_unit_test(misuse_marks_the_buffer_in_release_builds),
#endif
        cmocka_unit_test(bodies_of_megabytes_take_well_under_a_second_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
