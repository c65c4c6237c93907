/* SPDX-License-Identifier: Apache-2.0 */
/* Error texts: one clean line whatever goes in. */
#include "base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/utf8.h"

static void set_returns_the_code_and_formats_the_text(void **state)
{
    (void)state;
    struct err e;
    assert_int_equal(err_set(&e, ERR_FORMAT, "%s: expected %d, found %d", "config.json", 1, 2),
                     ERR_FORMAT);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(e.text, "config.json: expected 1, found 2");
}

static void set_accepts_a_null_err(void **state)
{
    (void)state;
    assert_int_equal(err_set(NULL, ERR_IO, "nobody reads %s", "this"), ERR_IO);
    err_prefix(NULL, "nor this");
}

static void text_stays_one_line_of_valid_utf8(void **state)
{
    (void)state;
    struct err e;
    err_set(&e, ERR_INVALID, "a\nb\r\x7f%s", "\xff\xed\xa0\x80");
    assert_null(strpbrk(e.text, "\n\r\x7f"));
    assert_true(utf8_is_valid(e.text, strlen(e.text)));
    assert_memory_equal(e.text, "a b  \xEF\xBF\xBD", 8);
}

static void long_text_is_cut_at_a_whole_character(void **state)
{
    (void)state;
    for (size_t shift = 0; shift < 4; shift++) {
        char text[4000];
        size_t n = 0;
        while (n < shift) {
            text[n++] = 'x';
        }
        while (n + 4 < sizeof text) {
            memcpy(text + n, "\xF0\x9F\x98\x80", 4);
            n += 4;
        }
        text[n] = '\0';
        struct err e;
        err_set(&e, ERR_INVALID, "%s", text);
        size_t len = strlen(e.text);
        assert_in_range(len, sizeof e.text - 5, sizeof e.text - 1);
        assert_memory_equal(e.text, text, len); /* nothing was replaced at the cut */
        assert_true(utf8_is_valid(e.text, len));
    }
}

static void prefix_keeps_code_and_text(void **state)
{
    (void)state;
    struct err e;
    err_set(&e, ERR_NOT_FOUND, "no such tensor");
    assert_int_equal(err_prefix(&e, "model-%05d", 1), ERR_NOT_FOUND);
    assert_string_equal(e.text, "model-00001: no such tensor");
}

static void set_may_quote_the_text_it_replaces(void **state)
{
    (void)state;
    struct err e;
    err_set(&e, ERR_IO, "inner");
    err_set(&e, ERR_FORMAT, "outer (%s)", e.text);
    assert_string_equal(e.text, "outer (inner)");
}

static void every_code_has_name_text_and_status(void **state)
{
    (void)state;
    assert_string_equal(err_name(ERR_TOO_LARGE), "ERR_TOO_LARGE");
    assert_string_equal(err_text(ERR_NOMEM), "out of memory");
    assert_int_equal(err_http_status(ERR_NOT_FOUND), 404);
    assert_int_equal(err_http_status(ERR_NONE), 200);
    assert_int_equal(err_http_status(-12345), 500);
    assert_non_null(err_name(-12345));
    assert_non_null(err_text(12345));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_returns_the_code_and_formats_the_text),
        cmocka_unit_test(set_accepts_a_null_err),
        cmocka_unit_test(text_stays_one_line_of_valid_utf8),
        cmocka_unit_test(long_text_is_cut_at_a_whole_character),
        cmocka_unit_test(prefix_keeps_code_and_text),
        cmocka_unit_test(set_may_quote_the_text_it_replaces),
        cmocka_unit_test(every_code_has_name_text_and_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
