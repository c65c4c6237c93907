/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings and what of a text may be shown when. Tokens are the pieces and bytes of a small
 * tokenizer. */
#include "engine/output.h"

#include "base/utf8.h"
#include "text_model.h"

#include <setjmp.h>
#include <stddef.h>

#include <cmocka.h>

static char *dir;
static struct tokenizer *tok;

static int set_up(void **state)
{
    (void)state;
    static const struct model_spec spec;
    struct err e = {0};
    dir = new_dir(&spec);
    if (tokenizer_open(&tok, dir, &e) < 0) {
        print_error("%s\n", e.text);
        return -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tokenizer_close(tok);
    remove_dir(dir);
    return 0;
}

/* A token for a piece of the vocabulary, else one for its only byte. */
static int32_t id_of(const char *piece)
{
    int32_t id = tokenizer_id(tok, piece);
    if (id < 0) {
        char name[8];
        assert_int_equal(strlen(piece), 1);
        snprintf(name, sizeof name, "<0x%02X>", (unsigned char)piece[0]);
        id = tokenizer_id(tok, name);
    }
    assert_true(id >= 0);
    return id;
}

struct feed {
    struct output out;
    char shown[256]; /* everything output_take gave */
    int n_used, stopped;
};

static void begin(struct feed *f, const struct output_options *o)
{
    memset(f, 0, sizeof *f);
    assert_int_equal(output_init(&f->out, tok, o), 0);
}

static void take(struct feed *f)
{
    size_t n;
    const char *s = output_take(&f->out, &n);
    assert_true(utf8_is_valid(s, n));
    strncat(f->shown, s, n);
}

static void feed(struct feed *f, const int32_t *ids, int n, enum finish_reason finish,
                 int32_t stop_id)
{
    struct token_output tokens[64];
    memset(tokens, 0, sizeof tokens);
    for (int i = 0; i < n; i++) {
        tokens[i].id = ids[i];
    }
    struct engine_event ev = {.kind = EVENT_TOKENS,
                              .n_tokens = n,
                              .tokens = tokens,
                              .finish = finish,
                              .stop_token_id = stop_id};
    int used;
    f->stopped |= output_feed(&f->out, &ev, &used);
    f->n_used += used;
    take(f);
}

/* Feeds pieces (NULL-terminated) one event each, or all in one event; then FINISH_LENGTH. */
static void feed_all(struct feed *f, const char *const *pieces, int at_once)
{
    int32_t ids[64];
    int n = 0;
    for (; pieces[n]; n++) {
        ids[n] = id_of(pieces[n]);
    }
    if (at_once) {
        feed(f, ids, n, FINISH_LENGTH, -1);
        return;
    }
    for (int i = 0; i < n; i++) {
        feed(f, &ids[i], 1, i == n - 1 ? FINISH_LENGTH : FINISH_NONE, -1);
    }
}

static void stop_strings_cut_the_text_by_the_rules(void **state)
{
    (void)state;
    static const struct {
        const char *pieces[12], *stops[4];
        int include, min_tokens;
        const char *text;
        int stop, n_used; /* which one matched, -1 none */
    } t[] = {
        {{"hello", "wor", "ld"}, {"xyz"}, 0, 0, "helloworld", -1, 3},
        {{"hello", "wor", "ld"}, {"wor"}, 0, 0, "hello", 0, 2},
        {{"hello", "wor", "ld"}, {"wor"}, 1, 0, "hellowor", 0, 2},
        {{"hello", "wor", "ld"}, {"low"}, 0, 0, "hel", 0, 2}, /* across tokens, cut inside a shown
                                                                 one */
        {{"hello", "wor", "ld"}, {"low"}, 1, 0, "hellow", 0, 2}, /* the token's rest is dropped */
        {{"hello", "wor", "ld"}, {"hello"}, 0, 0, "", 0, 1},
        {{"hello", "wor", "ld"}, {"ld", "wor"}, 0, 0, "hello", 1, 2}, /* the earlier end wins */
        {{"hello", "wor", "ld"}, {"ow", "low"}, 0, 0, "hell", 0, 2},  /* same end: list order */
        {{"hello", "wor", "ld"}, {"low", "ow"}, 0, 0, "hel", 0, 2},
        {{"hello", "hello"}, {"lo"}, 0, 0, "hel", 0, 1},
        {{"hello", "hello"}, {"lo"}, 0, 1, "hellohel", 0, 2}, /* not before min_tokens */
        {{"hello", "wor", "ld"}, {"low"}, 0, 1, "hel", 0, 2}, /* completed by the first one looked
                                                                 at */
        {{"hello", "wor", "ld"}, {"hel"}, 0, 1, "helloworld", -1, 3}, /* passed before min_tokens */
        {{"\xe5", "\xa4", "\xa9", "h"}, {"天"}, 0, 0, "", 0, 3},
        {{"天气", "h"}, {"气"}, 0, 0, "天", 0, 1},
        {{"l", "l", "l", "o"}, {"llo"}, 0, 0, "l", 0, 4}, /* a false start before it */
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        for (int at_once = 0; at_once < 2; at_once++) {
            size_t lens[4];
            int n_stop = 0;
            for (; n_stop < 4 && t[i].stops[n_stop]; n_stop++) {
                lens[n_stop] = strlen(t[i].stops[n_stop]);
            }
            struct output_options o = {t[i].stops,      lens, n_stop, t[i].include,
                                       t[i].min_tokens, 1,    NULL,   0};
            struct feed f;
            begin(&f, &o);
            feed_all(&f, t[i].pieces, at_once);
            if (strcmp(f.shown, t[i].text) != 0 || strcmp(f.out.text.data, t[i].text) != 0) {
                fail_msg("row %zu: '%s' ('%s') instead of '%s'", i, f.shown, f.out.text.data,
                         t[i].text);
            }
            assert_int_equal(f.out.stop_index, t[i].stop);
            assert_int_equal(f.stopped, t[i].stop >= 0);
            assert_int_equal(f.out.finish, t[i].stop >= 0 ? FINISH_STOP : FINISH_LENGTH);
            assert_int_equal(f.n_used, t[i].n_used);
            assert_int_equal(f.out.n_tokens, t[i].n_used);
            output_fini(&f.out);
        }
    }
}

static void the_last_characters_are_held_back_while_a_stop_may_begin(void **state)
{
    (void)state;
    const char *stops[] = {"天气好", "ab"};
    const size_t lens[] = {9, 2};
    struct output_options o = {stops, lens, 2, 0, 0, 1, NULL, 0};
    struct feed f;
    int32_t hello = id_of("hello"), sky = id_of("天"), weather = id_of("天气"), x = id_of("e");
    begin(&f, &o);
    feed(&f, &hello, 1, FINISH_NONE, -1);
    assert_string_equal(f.shown, "hel"); /* the longest stop has 3 characters: 2 held back */
    feed(&f, &sky, 1, FINISH_NONE, -1);
    assert_string_equal(f.shown, "hell");
    feed(&f, &weather, 1, FINISH_NONE, -1);
    assert_string_equal(f.shown, "hello天");
    feed(&f, &x, 1, FINISH_LENGTH, -1);
    assert_string_equal(f.shown, "hello天天气e");
    output_fini(&f.out);

    o.include_stop_str = 1; /* then nothing is held back */
    begin(&f, &o);
    feed(&f, &hello, 1, FINISH_NONE, -1);
    assert_string_equal(f.shown, "hello");
    output_fini(&f.out);
}

static void the_text_of_a_stop_token_is_left_out(void **state)
{
    (void)state;
    for (int include = 0; include < 2; include++) {
        struct output_options o = {.include_stop_str = include, .skip_special = 1};
        struct feed f;
        int32_t ids[2] = {id_of("hello"), id_of("ld")};
        begin(&f, &o);
        feed(&f, ids, 2, FINISH_STOP, ids[1]);
        assert_string_equal(f.shown, include ? "hellold" : "hello");
        assert_int_equal(f.out.stop_token_id, ids[1]);
        assert_int_equal(f.n_used, 2); /* it counts, though */
        assert_int_equal(f.stopped, 0);
        assert_int_equal(f.out.finish, FINISH_STOP);
        output_fini(&f.out);
    }
}

static void a_match_on_the_last_token_beats_length(void **state)
{
    (void)state;
    const char *stops[] = {"ld"};
    const size_t lens[] = {2};
    struct output_options o = {stops, lens, 1, 0, 0, 1, NULL, 0};
    struct feed f;
    int32_t ids[2] = {id_of("hello"), id_of("ld")};
    begin(&f, &o);
    feed(&f, ids, 2, FINISH_LENGTH, -1);
    assert_int_equal(f.out.finish, FINISH_STOP);
    assert_string_equal(f.shown, "hello");
    feed(&f, ids, 0, FINISH_STOP, -1); /* the engine's answer to the abort changes nothing */
    assert_int_equal(f.out.stop_index, 0);
    assert_int_equal(f.n_used, 2);
    output_fini(&f.out);
}

static void half_a_character_is_never_shown(void **state)
{
    (void)state;
    static const struct output_options o = {.skip_special = 1};
    const char *const pieces[] = {"h", "\xf0", "\x9f", "\x98", "\x80", "e", "\xe5", "\xa4", NULL};
    struct feed f;
    begin(&f, &o);
    feed_all(&f, pieces, 0); /* take() checks every piece */
    assert_string_equal(f.shown, "h😀e");
    assert_int_equal(f.out.n_tokens, 8);
    output_fini(&f.out);
}

static void special_tokens_that_a_parser_needs_stay_text(void **state)
{
    (void)state;
    int32_t end = tokenizer_id(tok, "</s>"), begins = tokenizer_id(tok, "<s>");
    assert_true(tokenizer_is_special(tok, end) && tokenizer_is_special(tok, begins));
    const int32_t shown[] = {-1, end};
    struct output_options o = {.skip_special = 1, .shown = shown, .n_shown = 2};
    struct feed f;
    int32_t ids[4] = {id_of("h"), end, begins, id_of("e")};
    begin(&f, &o);
    feed(&f, ids, 4, FINISH_LENGTH, -1);
    assert_string_equal(f.shown, "h</s>e");
    output_fini(&f.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_strings_cut_the_text_by_the_rules),
        cmocka_unit_test(the_last_characters_are_held_back_while_a_stop_may_begin),
        cmocka_unit_test(the_text_of_a_stop_token_is_left_out),
        cmocka_unit_test(a_match_on_the_last_token_beats_length),
        cmocka_unit_test(half_a_character_is_never_shown),
        cmocka_unit_test(special_tokens_that_a_parser_needs_stay_text),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
