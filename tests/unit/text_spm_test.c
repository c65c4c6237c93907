/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.model: what is accepted and how everything else is refused. */
#include "text/spm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text_model.h"

static void assert_refused_model(const struct buf *m, const char *why)
{
    struct spm s;
    struct err e = {0};
    int r = spm_parse(&s, m->data, m->len, "f.model", &e);
    if (r >= 0) {
        spm_fini(&s);
        fail_msg("accepted, expected: %s", why);
    }
    if (!strstr(e.text, why) || strncmp(e.text, "f.model: ", 9) || strchr(e.text, '\n')) {
        fail_msg("\"%s\" does not say \"%s\"", e.text, why);
    }
}

static void refuse(struct model_spec spec, const char *why)
{
    struct buf m;
    build_model(&m, &spec);
    assert_refused_model(&m, why);
    buf_fini(&m);
}

static void a_model_is_read_piece_by_piece(void **state)
{
    (void)state;
    struct buf m;
    struct spm s;
    struct err e = {0};
    build_model(&m, &(struct model_spec){0});
    assert_int_equal(spm_parse(&s, m.data, m.len, "f.model", &e), 0);
    assert_int_equal(s.n_pieces, 269 + 27);
    assert_int_equal(s.unk_id, 0);
    assert_int_equal(s.byte_id[0xff], 13 + 255);
    assert_int_equal(s.pieces[12].type, SPM_USER_DEFINED);
    assert_string_equal(s.pieces[270].text, "he");
    assert_true(s.pieces[270].score == -1);
    assert_int_equal(spm_find(&s, "hello", 5), 273);
    assert_int_equal(spm_find(&s, "hellooo", 7), -1);
    spm_fini(&s);
    buf_fini(&m);
}

static void settings_that_change_results_are_refused_by_name(void **state)
{
    (void)state;
    refuse((struct model_spec){.type_unigram = 1}, "model_type is UNIGRAM, expected BPE");
    refuse((struct model_spec){.no_byte_fallback = 1}, "byte_fallback");
    refuse((struct model_spec){.dummy_prefix = 1}, "add_dummy_prefix");
    refuse((struct model_spec){.remove_whitespace = 1}, "remove_extra_whitespaces");
    refuse((struct model_spec){.no_escape = 1}, "escape_whitespaces");
    refuse((struct model_spec){.charsmap = 1}, "precompiled_charsmap");
    refuse((struct model_spec){.suffix = 1}, "treat_whitespace_as_suffix");
    refuse((struct model_spec){.skip_byte = 1}, "byte piece <0x41> is missing");
}

static void bad_pieces_are_refused_by_number(void **state)
{
    (void)state;
    char longest[SPM_PIECE_BYTES_MAX + 2];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = 0;
    float nan = (float)(0.0 / (double)(longest[0] - 'x'));
    struct {
        const char *text;
        float score;
        int type;
        const char *why;
    } cases[] = {
        {"he", 0, 1, "pieces 270 and 296 are both \"he\""},
        {"", 0, 1, "piece 296 has 0 bytes"},
        {longest, 0, 1, "piece 296 has 513 bytes, expected 1 to 512"},
        {"\xff", 0, 1, "piece 296 is not valid UTF-8"},
        {"\xe5\xa4", 0, 1, "piece 296 is not valid UTF-8"},
        {"zz", nan, 1, "not a finite number"},
        {"zz", 0, 9, "unknown type 9"},
        {"zz", 0, 2, "pieces 0 and 296 both have the type UNKNOWN"},
        {"<0xgg>", 0, 6, "has the type BYTE"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct buf m;
        build_model(&m, &(struct model_spec){0});
        pb_piece(&m, cases[i].text, cases[i].score, cases[i].type);
        assert_refused_model(&m, cases[i].why);
        buf_fini(&m);
    }
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    struct buf m;
    build_model(&m, &(struct model_spec){0});
    for (size_t n = 0; n < m.len; n++) {
        struct spm s;
        struct err e = {0};
        char *exact = malloc(n + 1); /* so that a sanitizer sees any byte read beyond */
        memcpy(exact, m.data, n);
        int r = spm_parse(&s, exact, n, "f.model", &e);
        free(exact);
        if (r >= 0) {
            spm_fini(&s);
            fail_msg("%zu of %zu bytes were accepted", n, m.len);
        }
    }
    buf_fini(&m);
}

static void a_git_lfs_pointer_is_named(void **state)
{
    (void)state;
    struct buf m;
    buf_init(&m);
    buf_puts(&m, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1614363\n");
    assert_refused_model(&m, "Git-LFS pointer");
    buf_fini(&m);
}

static void a_huge_length_does_not_allocate(void **state)
{
    (void)state;
    struct buf m;
    buf_init(&m);
    buf_append(&m, "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10);
    assert_refused_model(&m, "bad protobuf");
    buf_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_is_read_piece_by_piece),
        cmocka_unit_test(settings_that_change_results_are_refused_by_name),
        cmocka_unit_test(bad_pieces_are_refused_by_number),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(a_git_lfs_pointer_is_named),
        cmocka_unit_test(a_huge_length_does_not_allocate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
