/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 against the C library's converter and the Unicode standard's own examples. */
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <iconv.h>
#include <string.h>

#include "base/buf.h"

/* glibc's strict decoder of one character: its length, 0 incomplete, -1 malformed */
static int decode_by_iconv(iconv_t cd, const char *s, size_t n_bytes, uint32_t *cp)
{
    char *in = (char *)(uintptr_t)s;
    char *out = (char *)cp;
    size_t out_left = 4;
    size_t left = n_bytes;
    iconv(cd, NULL, NULL, NULL, NULL);
    errno = 0;
    size_t rc = iconv(cd, &in, &left, &out, &out_left);
    if (out_left == 0) {
        return (int)(n_bytes - left);
    }
    return rc == (size_t)-1 && errno == EINVAL ? 0 : -1;
}

static void decode_agrees_with_iconv_on_all_short_sequences(void **state)
{
    (void)state;
    iconv_t cd = iconv_open("UTF-32LE", "UTF-8");
    if (cd == (iconv_t)-1) {
        skip();
    }
    static const unsigned char third[] = {0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xFF};
    for (int a = 0; a < 256; a++) {
        for (int b = 0; b < 256; b++) {
            for (size_t c = 0; c < sizeof third; c++) {
                for (size_t d = 0; d < sizeof third; d++) {
                    char s[4] = {(char)a, (char)b, (char)third[c], (char)third[d]};
                    uint32_t want = 0, got = 0;
                    int want_len = decode_by_iconv(cd, s, 4, &want);
                    int len = utf8_decode(s, 4, &got);
                    /* iconv calls some impossible starts incomplete: compare successes */
                    assert_int_equal(len > 0 ? len : 0, want_len > 0 ? want_len : 0);
                    if (len > 0) {
                        assert_int_equal(got, want);
                    }
                }
            }
        }
    }
    iconv_close(cd);
}

static void every_scalar_value_survives_encode_and_decode(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x110010; cp++) {
        char s[4];
        int n = utf8_encode(cp, s);
        if ((cp >= 0xD800 && cp <= 0xDFFF) || cp > 0x10FFFF) {
            assert_int_equal(n, 0);
            continue;
        }
        uint32_t back = 0;
        assert_true(n >= 1 && utf8_decode(s, (size_t)n, &back) == n && back == cp);
        for (int i = 1; i < n; i++) { /* every proper start asks for more */
            assert_int_equal(utf8_decode(s, (size_t)i, &back), 0);
        }
    }
}

static void ill_formed_bytes_are_refused(void **state)
{
    (void)state;
    static const char *bad[] = {"\x80",         "\xC0\xAF",         "\xC1\xBF",
                                "\xE0\x9F\xBF", "\xED\xA0\x80",     "\xED\xBF\xBF",
                                "\xF5\x80\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
                                "\xFE",         "\xE2\x28\xA1",     "\xC3\x28"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint32_t cp;
        assert_int_equal(utf8_decode(bad[i], strlen(bad[i]), &cp), -1);
        assert_false(utf8_is_valid(bad[i], strlen(bad[i])));
    }
}

static void valid_prefix_stops_before_the_bad_or_cut_character(void **state)
{
    (void)state;
    const char text[] = "plain ascii text, then \xE6\x97\xA5\xE6\x9C";
    assert_int_equal(utf8_valid_prefix(text, sizeof text - 1), sizeof text - 3);
    assert_int_equal(utf8_valid_prefix("0123456789\xFFxyz", 14), 10);
    assert_int_equal(utf8_valid_prefix("", 0), 0);
    assert_int_equal(utf8_count("a\xC3\xA9\xF0\x9F\x98\x80", 7), 3);
}

static void a_cut_keeps_characters_whole(void **state)
{
    (void)state;
    const char *s = "a\xc3\xa9\xe6\xbc\xa2\xf0\x9f\x98\x80"; /* 1, 2, 3 and 4 bytes */
    static const size_t want[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
    for (size_t most = 0; most < sizeof want / sizeof *want; most++) {
        assert_int_equal(utf8_cut(s, 10, most), want[most]);
    }
    assert_int_equal(utf8_cut("\x80\x80\x80\x80\x80\x80", 6, 5), 5); /* no character at all */
    assert_int_equal(utf8_cut("\x80\x80", 2, 1), 1);
}

static void lossy_replaces_each_maximal_subpart_once(void **state)
{
    (void)state;
    /* the example of the Unicode standard, section 3.9, table 3-8, and what Python's
     * bytes.decode("utf-8", "replace") gives for the others */
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64", "a\uFFFD\uFFFD\uFFFD"
                                                                 "b\uFFFD"
                                                                 "c\uFFFD\uFFFD"
                                                                 "d"},
        {"\xE2\x82", "\uFFFD"},
        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
        {"\xF0\x9F\x98", "\uFFFD"},
        {"\xC0\xAFx", "\uFFFD\uFFFDx"},
        {"\u65E5\u672C", "\u65E5\u672C"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf b;
        buf_init(&b);
        utf8_append_lossy(&b, cases[i].in, strlen(cases[i].in));
        assert_string_equal(b.data, cases[i].out);
        buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_agrees_with_iconv_on_all_short_sequences),
        cmocka_unit_test(every_scalar_value_survives_encode_and_decode),
        cmocka_unit_test(ill_formed_bytes_are_refused),
        cmocka_unit_test(valid_prefix_stops_before_the_bad_or_cut_character),
        cmocka_unit_test(a_cut_keeps_characters_whole),
        cmocka_unit_test(lossy_replaces_each_maximal_subpart_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
