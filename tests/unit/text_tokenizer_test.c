/* SPDX-License-Identifier: Apache-2.0 */
/* Text <-> ids: golden ids of the real tokenizer, specials and added tokens, incremental decoding.
 */
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text_model.h"

static struct tokenizer *open_dir(const char *dir)
{
    struct tokenizer *t;
    struct err e = {0};
    if (tokenizer_open(&t, dir, &e)) {
        fail_msg("%s", e.text);
    }
    return t;
}

static struct tokenizer *open_files(struct model_spec spec, const char *added, const char *config,
                                    const char *map, struct err *e)
{
    char *dir = new_dir(&spec);
    struct tokenizer *t = NULL;
    if (added) {
        write_text(dir, "added_tokens.json", added);
    }
    if (config) {
        write_text(dir, "tokenizer_config.json", config);
    }
    if (map) {
        write_text(dir, "special_tokens_map.json", map);
    }
    struct err local = {0};
    int r = tokenizer_open(&t, dir, e ? e : &local);
    remove_dir(dir);
    if (!e && r) {
        fail_msg("%s", local.text);
    }
    assert_true(r == 0 || t == NULL);
    return t;
}

static void assert_ids(const struct token_ids *got, const int32_t *want, size_t n, const char *what)
{
    int same = got->n == n && (n == 0 || !memcmp(got->ids, want, n * sizeof(*want)));
    if (!same) {
        struct buf b;
        buf_init(&b);
        for (size_t i = 0; i < got->n; i++) {
            buf_printf(&b, " %d", got->ids[i]);
        }
        fail_msg("%s: got%s", what, b.data ? b.data : " nothing");
    }
}

#define ENCODES(t, text, parse, ...)                                                               \
    do {                                                                                           \
        int32_t want_[] = {__VA_ARGS__};                                                           \
        struct token_ids got_ = {0};                                                               \
        assert_int_equal(tokenizer_encode(t, text, strlen(text), parse, &got_, NULL), 0);          \
        assert_ids(&got_, want_, sizeof(want_) / sizeof(*want_), text);                            \
        token_ids_fini(&got_);                                                                     \
    } while (0)

static void decode(const struct tokenizer *t, const int32_t *ids, size_t n, int skip,
                   struct buf *out)
{
    buf_clear(out);
    tokenizer_decode(t, ids, n, skip, out);
    buf_puts(out, "");
}

#define DECODES(t, skip, text, ...)                                                                \
    do {                                                                                           \
        int32_t ids_[] = {__VA_ARGS__};                                                            \
        struct buf b_;                                                                             \
        buf_init(&b_);                                                                             \
        decode(t, ids_, sizeof(ids_) / sizeof(*ids_), skip, &b_);                                  \
        assert_string_equal(b_.data, text);                                                        \
        buf_fini(&b_);                                                                             \
    } while (0)

/* ---- golden files ---- */

static void ids_equal_the_golden_lines_of_the_real_tokenizer(void **state)
{
    (void)state;
    const char *dir = shared_path("assets/ernie-tokenizer");
    if (!dir) {
        skip();
        return;
    }
    struct tokenizer *t = open_dir(dir);
    assert_int_equal(tokenizer_n_ids(t), 101304);
    assert_int_equal(tokenizer_id(t, "<|begin_of_sentence|>"), 100273);
    assert_int_equal(tokenizer_sep_id(t), 100272);
    assert_int_equal(tokenizer_eos_id(t), 2);
    FILE *f = fopen(shared_path("assets/ernie-tokenizer/golden.jsonl"), "rb");
    char *line = NULL;
    size_t cap = 0, n_lines = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, f)) > 0) {
        struct json *v;
        struct token_ids got = {0};
        struct buf text;
        assert_int_equal(json_parse(&v, line, (size_t)n, 8, NULL), 0);
        size_t n_text;
        const char *s = json_string(json_get(v, "text"), &n_text);
        const struct json *ids = json_get(v, "ids");
        assert_int_equal(tokenizer_encode(t, s, n_text, 0, &got, NULL), 0);
        assert_int_equal(got.n, json_length(ids));
        for (size_t i = 0; i < got.n; i++) {
            if (got.ids[i] != json_int(json_at(ids, i))) {
                fail_msg("line %zu, id %zu: %d", n_lines + 1, i, got.ids[i]);
            }
        }
        buf_init(&text);
        tokenizer_decode(t, got.ids, got.n, 0, &text);
        if (!strstr(s, "\u2581")) { /* a literal separator comes back as a space */
            assert_int_equal(text.len, n_text);
            assert_memory_equal(text.data ? text.data : "", s, n_text);
        }
        buf_fini(&text);
        token_ids_fini(&got);
        json_free(v);
        n_lines++;
    }
    assert_int_equal(n_lines, 7854);
    free(line);
    fclose(f);
    tokenizer_close(t);
}

static void the_fixture_encodes_and_decodes_as_golden(void **state)
{
    (void)state;
    struct json *doc;
    const char *path = shared_path("fixtures/tokenizer/golden.json");
    if (!path) {
        skip();
        return;
    }
    assert_int_equal(json_parse_file(&doc, path, 1 << 24, NULL), 0);
    struct tokenizer *t = open_dir(shared_path("fixtures/tokenizer"));
    const struct json *cases = json_get(doc, "encode");
    assert_int_equal(json_length(cases), 25);
    for (size_t k = 0; k < json_length(cases); k++) {
        const struct json *c = json_at(cases, k), *ids = json_get(c, "ids");
        struct token_ids got = {0};
        struct buf text;
        size_t n, n_decoded;
        const char *s = json_string(json_get(c, "text"), &n);
        const char *decoded = json_string(json_get(c, "decoded"), &n_decoded);
        assert_int_equal(tokenizer_encode(t, s, n, 1, &got, NULL), 0);
        assert_int_equal(got.n, json_length(ids));
        for (size_t i = 0; i < got.n; i++) {
            assert_int_equal(got.ids[i], json_int(json_at(ids, i)));
        }
        buf_init(&text);
        tokenizer_decode(t, got.ids, got.n, 0, &text);
        assert_int_equal(text.len, n_decoded);
        assert_memory_equal(text.data ? text.data : "", decoded, n_decoded);
        buf_fini(&text);
        token_ids_fini(&got);
    }
    size_t it = 0, n_key, n_special = 0;
    const char *key;
    const struct json *id;
    while (json_next(json_get(doc, "special_ids"), &it, &key, &n_key, &id)) {
        assert_int_equal(tokenizer_id(t, key), json_int(id));
        n_special++;
    }
    assert_int_equal(n_special, 23);
    tokenizer_close(t);
    json_free(doc);
}

/* ---- encoding ---- */

static void merges_follow_the_scores_leftmost_first(void **state)
{
    (void)state;
    struct tokenizer *t = open_files((struct model_spec){0}, NULL, NULL, NULL, NULL);
    ENCODES(t, "hello", 0, 273);
    ENCODES(t, " hello", 0, 274);
    ENCODES(t, "  hello", 0, 269, 273); /* the two spaces merge first */
    ENCODES(t, "lll", 0, 271, 284);     /* of two equal pairs, the left one */
    ENCODES(t, "\u2581hello", 0, 274);  /* a literal separator is a space */
    ENCODES(t, "12a", 0, 4, 5, 289);    /* digits never merge */
    ENCODES(t, "天气é", 0, 295, 13 + 0xc3, 13 + 0xa9);
    ENCODES(t, "\n", 0, 23);
    tokenizer_close(t);
}

static void pieces_of_type_unused_fall_apart_again(void **state)
{
    (void)state;
    struct tokenizer *t =
        open_files((struct model_spec){.unused = "he"}, NULL, NULL, NULL, &(struct err){0});
    assert_null(t); /* "he" is there already */
    static const char *const pieces[] = {"bc", "a", "b", "c", NULL};
    t = open_files((struct model_spec){.normal = pieces, .unused = "ab"}, NULL, NULL, NULL, NULL);
    ENCODES(t, "abc", 0, 270, 271, 272); /* "ab" wins over "bc", then is undone */
    tokenizer_close(t);
}

static void specials_are_matched_leftmost_and_longest(void **state)
{
    (void)state;
    struct tokenizer *t = open_files((struct model_spec){0},
                                     "{\"<|a|>\":296,\"<|a|>>\":297,\"|a\":298}", NULL, NULL, NULL);
    ENCODES(t, "<|a|>", 1, 296);
    ENCODES(t, "h<|a|>>h", 1, 282, 297, 282);
    ENCODES(t, "|a|>", 1, 298, 292, 291);
    ENCODES(t, "<s>hello</s>", 1, 1, 273, 2);
    ENCODES(t, "<s>", 0, 290, 13 + 's', 291);
    tokenizer_close(t);
}

static void only_marked_bytes_form_special_tokens(void **state)
{
    (void)state;
    struct tokenizer *t =
        open_files((struct model_spec){0}, "{\"<|a|>\":296,\"<|a\":297}", NULL, NULL, NULL);
    const char *text = "<|a|><|a|>";
    uint8_t mark[10] = {1, 1, 1, 1, 1, 0, 0, 0, 0, 0};
    struct token_ids got = {0};
    assert_int_equal(tokenizer_encode_marked(t, text, mark, 10, &got, NULL), 0);
    assert_ids(&got, (int32_t[]){296, 290, 292, 289, 292, 291}, 6, "first half");
    got.n = 0;
    memset(mark, 1, sizeof(mark));
    mark[9] = 0; /* the user closed a token that the template began: the shorter one matches */
    assert_int_equal(tokenizer_encode_marked(t, text, mark, 10, &got, NULL), 0);
    assert_ids(&got, (int32_t[]){296, 297, 292, 291}, 4, "cut");
    token_ids_fini(&got);
    tokenizer_close(t);
}

static void merges_of_typed_text_never_give_a_special_token(void **state)
{
    (void)state;
    /* "hello" is an ordinary piece that the configuration calls special. */
    struct tokenizer *t =
        open_files((struct model_spec){0}, NULL, "{\"eos_token\":\"hello\"}", NULL, NULL);
    ENCODES(t, "hello", 1, 273);
    ENCODES(t, "hello", 0, 272, 285);
    assert_int_equal(tokenizer_eos_id(t), 273);
    assert_true(tokenizer_is_special(t, 273));
    tokenizer_close(t);
}

static void a_special_may_swallow_white_space(void **state)
{
    (void)state;
    struct tokenizer *t = open_files((struct model_spec){0}, NULL,
                                     "{\"added_tokens_decoder\":{\"296\":{\"content\":\"<m>\","
                                     "\"lstrip\":true,\"rstrip\":true}}}",
                                     NULL, NULL);
    ENCODES(t, "h  <m> \n h", 1, 282, 296, 282);
    tokenizer_close(t);
}

static void a_megabyte_of_anything_takes_no_quadratic_time(void **state)
{
    (void)state;
    struct tokenizer *t = open_files((struct model_spec){0}, NULL, NULL, NULL, NULL);
    const char *const units[] = {"l", " ", "hel", "天气", "<"};
    for (size_t k = 0; k < sizeof(units) / sizeof(*units); k++) {
        struct buf b;
        struct token_ids got = {0};
        buf_init(&b);
        while (b.len < 1000000) {
            buf_puts(&b, units[k]);
        }
        clock_t start = clock(); /* of this process: other load doesn't count */
        assert_int_equal(tokenizer_encode(t, b.data, b.len, 1, &got, NULL), 0);
        assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 10.0);
        assert_true(got.n > 100000);
        struct buf back;
        buf_init(&back);
        tokenizer_decode(t, got.ids, got.n, 0, &back);
        assert_int_equal(back.len, b.len);
        assert_memory_equal(back.data, b.data, b.len);
        buf_fini(&back);
        buf_fini(&b);
        token_ids_fini(&got);
    }
    tokenizer_close(t);
}

static void invalid_utf8_is_an_error_and_adds_no_ids(void **state)
{
    (void)state;
    struct tokenizer *t = open_files((struct model_spec){0}, NULL, NULL, NULL, NULL);
    struct token_ids got = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_encode(t, "ab\xe5\xa4", 4, 1, &got, &e), ERR_FORMAT);
    assert_string_equal(e.text, "text is not valid UTF-8 at byte 2");
    assert_int_equal(got.n, 0);
    token_ids_fini(&got);
    tokenizer_close(t);
}

/* ---- side files ---- */

static void a_missing_model_names_the_files(void **state)
{
    (void)state;
    char *dir = new_dir(NULL);
    struct tokenizer *t;
    struct err e = {0};
    assert_int_equal(tokenizer_open(&t, dir, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "tokenizer.model: no such file (looked for"));
    write_text(dir, "tokenizer.json", "{}");
    assert_int_equal(tokenizer_open(&t, dir, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "tokenizer.json is there but is not supported"));
    remove_dir(dir);
    assert_int_equal(tokenizer_open(&t, "/nonexistent/dir", &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "/nonexistent/dir: no such directory"));
}

static void broken_and_contradicting_side_files_are_refused(void **state)
{
    (void)state;
    struct {
        const char *added, *config, *why;
    } cases[] = {
        {"{\"<s>\":300}", NULL, "token \"<s>\" has the id 300, expected 1"},
        {"{\"x\":300,\"y\":300}", NULL, "id 300 is \"y\", expected \"x\""},
        {"{\"x\":-1}", NULL, "has the id -1"},
        {"{\"x\":99999999}", NULL, "has the id 99999999"},
        {"{\"x\":\"3\"}", NULL, "\"x\" has no integer id"},
        {"[1]", NULL, "expected a JSON object"},
        {"{", NULL, "added_tokens.json"},
        {NULL, "{\"added_tokens_decoder\":{\"zz\":{\"content\":\"x\"}}}",
         "added_tokens_decoder \"zz\""},
        {NULL, "{\"added_tokens_decoder\":{\"300\":{\"content\":\"x\",\"single_word\":true}}}",
         "single_word"},
        {"{\"x\":300}", "{\"added_tokens_decoder\":{\"301\":{\"content\":\"x\"}}}", "expected 300"},
        {NULL, "{\"added_tokens_decoder\":[\"x\"]}", "added_tokens_decoder is not an object"},
        {NULL, "{\"eos_token\":2}", "tokenizer_config.json: eos_token is neither a token's text"},
        {NULL, "{\"bos_token\":{\"text\":\"<s>\"}}", "bos_token is neither a token's text"},
        {NULL, "{\"additional_special_tokens\":\"<s>\"}",
         "additional_special_tokens is neither a list nor an object"},
        {NULL, "{\"additional_special_tokens\":[\"<s>\",7]}", "an item of the special tokens"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct err e = {0};
        struct tokenizer *t =
            open_files((struct model_spec){0}, cases[i].added, cases[i].config, NULL, &e);
        if (t || !strstr(e.text, cases[i].why)) {
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, e.text, cases[i].why);
        }
    }
}

static void named_tokens_come_as_strings_or_objects(void **state)
{
    (void)state;
    struct tokenizer *t = open_files(
        (struct model_spec){0}, "{\"<|x|>\":300}",
        "{\"eos_token\":{\"content\":\"</"
        "s>\"},\"add_bos_token\":false,\"pad_token\":null,\"mask_token\":\"<none>\"}",
        "{\"sep_token\":\"<|x|>\",\"eos_token\":\"<s>\",\"additional_special_tokens\":[\"<s>\"]}",
        NULL);
    assert_string_equal(tokenizer_named(t, "eos_token"),
                        "</s>"); /* tokenizer_config.json comes first */
    assert_string_equal(tokenizer_named(t, "sep_token"), "<|x|>");
    assert_string_equal(tokenizer_named(t, "mask_token"), "<none>");
    assert_null(tokenizer_named(t, "pad_token"));
    assert_null(tokenizer_named(t, "add_bos_token"));
    assert_int_equal(tokenizer_sep_id(t), 300);
    assert_int_equal(tokenizer_id(t, "<none>"), -1);
    assert_true(tokenizer_is_special(t, 300));
    tokenizer_close(t);
}

static void a_reserved_id_may_be_renamed(void **state)
{
    (void)state;
    struct tokenizer *t = open_files(
        (struct model_spec){0}, NULL,
        "{\"added_tokens_decoder\":{\"2\":{\"content\":\"<end>\",\"special\":true}}}", NULL, NULL);
    ENCODES(t, "<end>", 1, 2);
    assert_int_equal(tokenizer_id(t, "</s>"), -1);
    DECODES(t, 0, "<end>", 2);
    tokenizer_close(t);
}

/* ---- decoding ---- */

static void decoding_keeps_spaces_and_names_specials(void **state)
{
    (void)state;
    struct tokenizer *t = open_files((struct model_spec){0}, "{\"<|x|>\":300}", NULL, NULL, NULL);
    DECODES(t, 0, " hello  ", 274, 269);
    DECODES(t, 0, "<s>hello</s>", 1, 273, 2);
    DECODES(t, 1, "hello<|x|>", 1, 273, 2,
            300); /* an added token is hidden only if some list says special */
    DECODES(t, 0, "\n\t", 23, 22);
    tokenizer_close(t);
}

static void ids_without_a_string_decode_to_nothing(void **state)
{
    (void)state;
    struct tokenizer *t = open_files((struct model_spec){0}, "{\"<|x|>\":300}", NULL, NULL, NULL);
    size_t n = 7;
    assert_int_equal(tokenizer_n_ids(t), 301);
    assert_null(tokenizer_piece(t, 298, &n));
    assert_int_equal(n, 0);
    DECODES(t, 0, "he", -1, 282, 298, 301, 103423, INT32_MAX, 283);
    tokenizer_close(t);
}

static void bad_byte_runs_become_replacement_characters(void **state)
{
    (void)state;
    struct tokenizer *t = open_files((struct model_spec){0}, NULL, NULL, NULL, NULL);
    enum { B = 13 };
    DECODES(t, 0, "\u5929", B + 0xe5, B + 0xa4, B + 0xa9);
    DECODES(t, 0, "\ufffd\ufffd", B + 0xe5, B + 0xa4);
    DECODES(t, 0, "\ufffd\ufffdh", B + 0xe5, B + 0xa4, 282);
    DECODES(t, 0, "\ufffd\ufffd", B + 0xc0, B + 0x80);
    DECODES(t, 0, "\ufffdA", B + 0xf0, B + 0x41);
    DECODES(t, 1, "\u5929", B + 0xe5, 2, B + 0xa4,
            B + 0xa9); /* a hidden special does not cut a character */
    DECODES(t, 0, "\ufffd</s>\ufffd\ufffd", B + 0xe5, 2, B + 0xa4, B + 0xa9);
    tokenizer_close(t);
}

static void incremental_pieces_are_whole_characters_and_join_to_the_decode(void **state)
{
    (void)state;
    struct tokenizer *t = open_files((struct model_spec){0}, "{\"<|x|>\":300}", NULL, NULL, NULL);
    uint32_t rng = 1;
    for (int round = 0; round < 3000; round++) {
        int32_t ids[24];
        struct buf joined, piece, whole;
        struct detok d;
        int skip = round & 1;
        buf_init(&joined);
        buf_init(&piece);
        buf_init(&whole);
        detok_init(&d, t, skip);
        for (int i = 0; i < 24; i++) {
            rng = rng * 1664525 + 1013904223;
            int lead = (int)(rng >> 24) & 3;
            /* mostly bytes of multi-byte characters, so that valid and broken runs both happen */
            ids[i] = lead == 0   ? (int32_t)(rng >> 8) % 302
                     : lead == 1 ? 13 + 0xe0 + (int32_t)(rng >> 8 & 0x17)
                                 : 13 + 0x80 + (int32_t)(rng >> 8 & 0x3f);
            buf_clear(&piece);
            detok_push(&d, ids[i], &piece);
            assert_true(utf8_is_valid(piece.data ? piece.data : "", piece.len));
            buf_append(&joined, piece.data, piece.len);
            assert_in_range(d.n_pending, 0, 3);
        }
        detok_finish(&d, &joined);
        tokenizer_decode(t, ids, 24, skip, &whole);
        assert_int_equal(joined.len, whole.len);
        assert_memory_equal(joined.data ? joined.data : "", whole.data ? whole.data : "",
                            whole.len);
        buf_fini(&joined);
        buf_fini(&piece);
        buf_fini(&whole);
    }
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_the_golden_lines_of_the_real_tokenizer),
        cmocka_unit_test(the_fixture_encodes_and_decodes_as_golden),
        cmocka_unit_test(merges_follow_the_scores_leftmost_first),
        cmocka_unit_test(pieces_of_type_unused_fall_apart_again),
        cmocka_unit_test(specials_are_matched_leftmost_and_longest),
        cmocka_unit_test(only_marked_bytes_form_special_tokens),
        cmocka_unit_test(merges_of_typed_text_never_give_a_special_token),
        cmocka_unit_test(a_special_may_swallow_white_space),
        cmocka_unit_test(a_megabyte_of_anything_takes_no_quadratic_time),
        cmocka_unit_test(invalid_utf8_is_an_error_and_adds_no_ids),
        cmocka_unit_test(a_missing_model_names_the_files),
        cmocka_unit_test(broken_and_contradicting_side_files_are_refused),
        cmocka_unit_test(named_tokens_come_as_strings_or_objects),
        cmocka_unit_test(a_reserved_id_may_be_renamed),
        cmocka_unit_test(decoding_keeps_spaces_and_names_specials),
        cmocka_unit_test(ids_without_a_string_decode_to_nothing),
        cmocka_unit_test(bad_byte_runs_become_replacement_characters),
        cmocka_unit_test(incremental_pieces_are_whole_characters_and_join_to_the_decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
