/* SPDX-License-Identifier: Apache-2.0 */
/* The option parser against the rules in opt.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/opt.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct target {
    int eager, cache;
    int64_t port, len, tp;
    double share;
    const char *dtype, *json;
    struct opt_list names, prompts;
};

#define FIELD(f) offsetof(struct target, f)
static const struct opt rows[] = {
    {.name = "enforce-eager",
     .type = OPT_BOOL,
     .offset = FIELD(eager),
     .group = "Model",
     .help = "Eager."},
    {.name = "enable-prefix-caching",
     .type = OPT_BOOL,
     .offset = FIELD(cache),
     .group = "Cache",
     .def = "true",
     .help = "Cache."},
    {.name = "port",
     .type = OPT_INT,
     .offset = FIELD(port),
     .group = "HTTP",
     .def = "8000",
     .min = 0,
     .max = 65535,
     .env = "TERN_TEST_PORT",
     .help = "Port."},
    {.name = "max-model-len",
     .type = OPT_SIZE,
     .offset = FIELD(len),
     .group = "Model",
     .min = 1,
     .max = 1e9,
     .flags = OPT_AUTO,
     .help = "Length."},
    {.name = "gpu-memory-utilization",
     .type = OPT_DOUBLE,
     .offset = FIELD(share),
     .group = "Cache",
     .def = "0.9",
     .min = 0.1,
     .max = 1,
     .help = "Share."},
    {.name = "dtype",
     .type = OPT_STRING,
     .offset = FIELD(dtype),
     .group = "Model",
     .def = "auto",
     .choices = "auto|bfloat16",
     .help = "Type."},
    {.name = "override",
     .type = OPT_JSON,
     .offset = FIELD(json),
     .group = "Model",
     .help = "JSON."},
    {.name = "served-model-name",
     .type = OPT_LIST,
     .offset = FIELD(names),
     .group = "HTTP",
     .help = "Names."},
    {.name = "prompt",
     .others = "-p",
     .type = OPT_APPEND,
     .offset = FIELD(prompts),
     .group = "Model",
     .help = "Prompt."},
    {.name = "tensor-parallel-size",
     .others = "-tp",
     .type = OPT_INT,
     .offset = FIELD(tp),
     .group = "Model",
     .def = "1",
     .min = 1,
     .max = 1,
     .note = "one process",
     .help = "1."},
    {.name = "swap-space",
     .type = OPT_STRING,
     .group = "Old",
     .flags = OPT_IGNORED,
     .note = "nothing is swapped"},
    {.name = "optimization-level",
     .others = "-O",
     .type = OPT_STRING,
     .group = "Old",
     .flags = OPT_IGNORED,
     .note = "no torch"},
    {.name = "lora-modules",
     .type = OPT_LIST,
     .group = "No",
     .flags = OPT_REFUSED,
     .note = "no adapters"},
    {.name = "config",
     .type = OPT_STRING,
     .offset = FIELD(dtype),
     .group = "Model",
     .help = "File."},
};

struct parsed {
    struct target t;
    struct opts o;
    struct err e;
    int rc;
};

static struct parsed *parse(int argc, const char **argv)
{
    struct parsed *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->o = (struct opts){
        .usage = "tern test", .tables = {{rows, sizeof rows / sizeof *rows, &p->t}}, .n_tables = 1};
    p->rc = opts_parse(&p->o, argc, (char **)argv, &p->e);
    return p;
}
#define PARSE(...)                                                                                 \
    parse((int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(const char *)),                       \
          (const char *[]){__VA_ARGS__})

static void done(struct parsed *p)
{
    opts_fini(&p->o);
    free(p);
}

static void underscores_and_dashes_are_alike_and_values_may_follow_an_equals_sign(void **state)
{
    (void)state;
    struct parsed *p = PARSE("model", "--max_model_len", "4096", "--gpu-memory_utilization=0.5",
                             "--enforce_eager");
    assert_int_equal(p->rc, 0);
    assert_int_equal(p->t.len, 4096);
    assert_true(p->t.share > 0.49 && p->t.share < 0.51);
    assert_int_equal(p->t.eager, 1);
    assert_int_equal(p->o.args.n, 1);
    assert_string_equal(p->o.args.v[0], "model");
    assert_int_equal(opts_source(&p->o, "max-model-len"), OPT_FROM_COMMAND_LINE);
    assert_int_equal(opts_source(&p->o, "port"), OPT_FROM_DEFAULT);
    done(p);
}

static void defaults_apply_and_no_switches_a_boolean_off(void **state)
{
    (void)state;
    struct parsed *p = PARSE("--no-enable-prefix-caching");
    assert_int_equal(p->rc, 0);
    assert_int_equal(p->t.cache, 0);
    assert_int_equal(p->t.port, 8000);
    assert_string_equal(p->t.dtype, "auto");
    done(p);
    p = PARSE("--enable-prefix-caching", "False", "--enforce-eager=true");
    assert_int_equal(p->t.cache, 0);
    assert_int_equal(p->t.eager, 1);
    done(p);
}

static void sizes_take_decimal_and_binary_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"4096", 4096},       {"16k", 16000},        {"25.6k", 25600},   {"2m", 2000000},
                {"1g", 1000000000},   {"16K", 16384},        {"2M", 2097152},    {"4G", 4294967296},
                {"4GiB", 4294967296}, {"1T", 1099511627776}, {"512KiB", 524288}, {"-1", -1}};
    int64_t v;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(opt_parse_size(good[i].text, &v), 0);
        assert_int_equal(v, good[i].value);
    }
    static const char *const bad[] = {
        "",         "k",  "1.5K", "1.5", "4 G", "4GB", "0x10", "1e3k", "9999999999999999999",
        "9999999T", "-2G"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(opt_parse_size(bad[i], &v), ERR_INVALID);
    }
}

static void auto_and_minus_one_are_the_same_length(void **state)
{
    (void)state;
    struct parsed *p = PARSE("--max-model-len", "auto");
    assert_int_equal(p->t.len, -1);
    done(p);
    p = PARSE("--max-model-len", "-1");
    assert_int_equal(p->rc, 0);
    assert_int_equal(p->t.len, -1);
    done(p);
    p = PARSE("--max-model-len", "-2");
    assert_int_equal(p->rc, ERR_INVALID);
    done(p);
}

static void an_unknown_flag_is_refused_with_the_nearest_name(void **state)
{
    (void)state;
    struct parsed *p = PARSE("--max-modle-len", "1");
    assert_int_equal(p->rc, ERR_INVALID);
    assert_non_null(strstr(p->e.text, "--max-modle-len"));
    assert_non_null(strstr(p->e.text, "did you mean --max-model-len?"));
    done(p);
    p = PARSE("--completely-different");
    assert_int_equal(p->rc, ERR_INVALID);
    assert_null(strstr(p->e.text, "did you mean"));
    done(p);
}

static void bad_numbers_name_the_flag_and_the_range(void **state)
{
    (void)state;
    static const char *const bad[][3] = {{"--port", "80x", "expected an integer, found '80x'"},
                                         {"--port", "70000", "0 to 65535"},
                                         {"--port", "", "expected an integer"},
                                         {"--gpu-memory-utilization", "nan", "expected a number"},
                                         {"--gpu-memory-utilization", "1.5", "0.1 to 1"},
                                         {"--max-model-len", "1.5", "expected a number such as"},
                                         {"--dtype", "float16", "auto bfloat16"},
                                         {"--tensor-parallel-size", "2", "one process"},
                                         {"-tp", "2", "one process"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct parsed *p = PARSE(bad[i][0], bad[i][1]);
        assert_int_equal(p->rc, ERR_INVALID);
        assert_ptr_equal(strstr(p->e.text, bad[i][0]), p->e.text);
        assert_non_null(strstr(p->e.text, bad[i][2]));
        done(p);
    }
}

static void a_flag_without_its_value_is_refused(void **state)
{
    (void)state;
    struct parsed *p = PARSE("--port");
    assert_int_equal(p->rc, ERR_INVALID);
    done(p);
    p = PARSE("--dtype", "--enforce-eager");
    assert_int_equal(p->rc, ERR_INVALID);
    assert_non_null(strstr(p->e.text, "--dtype=VALUE"));
    done(p);
    p = PARSE("--no-enforce-eager=1");
    assert_int_equal(p->rc, ERR_INVALID);
    done(p);
}

static void ignored_flags_warn_once_and_refused_ones_stop(void **state)
{
    (void)state;
    struct parsed *p =
        PARSE("--swap-space", "4", "--swap-space", "8", "-O3", "-O", "2", "--optimization-level=1");
    assert_int_equal(p->rc, 0);
    assert_int_equal(p->o.warnings.n, 3); /* --swap-space, -O, --optimization-level */
    assert_non_null(strstr(p->o.warnings.v[0], "nothing is swapped"));
    done(p);
    p = PARSE("--lora-modules", "a=b");
    assert_int_equal(p->rc, ERR_UNSUPPORTED);
    assert_non_null(strstr(p->e.text, "no adapters"));
    done(p);
}

static void lists_take_all_words_and_repeatable_flags_add_up(void **state)
{
    (void)state;
    struct parsed *p =
        PARSE("-p", "a", "--served-model-name", "x", "y", "z", "--prompt", "- b c", "--prompt=--d");
    assert_int_equal(p->rc, 0);
    assert_int_equal(p->t.names.n, 3);
    assert_string_equal(p->t.names.v[2], "z");
    assert_int_equal(p->t.prompts.n, 3);
    assert_string_equal(p->t.prompts.v[1], "- b c");
    assert_string_equal(p->t.prompts.v[2], "--d");
    done(p);
    p = PARSE("--served-model-name", "x", "y", "--served-model-name", "z");
    assert_int_equal(p->t.names.n, 1);
    assert_string_equal(p->t.names.v[0], "z");
    done(p);
}

static void json_comes_whole_or_in_pieces(void **state)
{
    (void)state;
    struct parsed *p =
        PARSE("--override", "{\"a\": 1}", "--override.b", "0.5", "--override.c=word");
    assert_int_equal(p->rc, 0);
    assert_string_equal(p->t.json, "{\"a\":1,\"b\":0.5,\"c\":\"word\"}");
    done(p);
    static const char *const bad[] = {"[1]", "{", "1", "{'a': 1}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        p = PARSE("--override", bad[i]);
        assert_int_equal(p->rc, ERR_INVALID);
        done(p);
    }
}

static void command_line_beats_file_beats_environment_beats_default(void **state)
{
    (void)state;
    char path[] = "/tmp/tern_opt_test_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char text[] = "# options\n---\nport: 9001   # comment\nmax_model_len: "
                               "2k\nserved-model-name:\n  - one\n  - 'two # 2'\n"
                               "enable-prefix-caching: false\nprompt: [a, \"b\"]\n";
    assert_int_equal(write(fd, text, sizeof text - 1), (ssize_t)(sizeof text - 1));
    close(fd);
    setenv("TERN_TEST_PORT", "9000", 1);
    struct parsed *p = PARSE("x");
    assert_int_equal(p->t.port, 9000);
    assert_int_equal(opts_source(&p->o, "port"), OPT_FROM_ENV);
    done(p);
    p = PARSE("--config", path, "-p", "c");
    assert_int_equal(p->rc, 0);
    assert_int_equal(p->t.port, 9001);
    assert_int_equal(p->t.len, 2000);
    assert_int_equal(p->t.cache, 0);
    assert_int_equal(p->t.names.n, 2);
    assert_string_equal(p->t.names.v[1], "two # 2");
    assert_int_equal(p->t.prompts.n, 1); /* the command line replaces the file's list */
    done(p);
    p = PARSE("--port", "9002", "--config", path);
    assert_int_equal(p->t.port, 9002);
    done(p);
    unsetenv("TERN_TEST_PORT");
    unlink(path);
}

static void a_bad_config_file_names_file_and_line(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"port: 1\nprot: 2\n", "line 2: unknown option 'prot'"},
        {"a\n", "line 1: expected"},
        {"model:\n  nested: 1\n", "line 1: unknown option 'model'"},
        {"- x\n", "line 1: a list item"},
        {"port: x\n", "expected an integer"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[] = "/tmp/tern_opt_test_XXXXXX";
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, bad[i][0], strlen(bad[i][0])), (ssize_t)strlen(bad[i][0]));
        close(fd);
        struct parsed *p = PARSE("--config", path);
        assert_true(p->rc < 0);
        assert_non_null(strstr(p->e.text, bad[i][1]));
        done(p);
        unlink(path);
    }
    struct parsed *p = PARSE("--config", "/nonexistent/file.yaml");
    assert_true(p->rc < 0);
    done(p);
}

static void help_is_grouped_and_can_be_narrowed(void **state)
{
    (void)state;
    struct parsed *p = PARSE("--bogus", "--help=http");
    assert_int_equal(p->rc, 0);
    assert_int_equal(p->o.help, 1);
    struct buf b;
    buf_init(&b);
    assert_int_equal(opts_help(&p->o, p->o.help_topic, &b), 0);
    assert_non_null(strstr(b.data, "HTTP:\n  --port N"));
    assert_null(strstr(b.data, "--dtype"));
    buf_clear(&b);
    assert_int_equal(opts_help(&p->o, "ht", &b), 0); /* how the group begins */
    assert_non_null(strstr(b.data, "HTTP:\n  --port N"));
    buf_clear(&b);
    assert_int_equal(opts_help(&p->o, NULL, &b), 0);
    assert_non_null(strstr(b.data, "--[no-]enable-prefix-caching"));
    assert_non_null(strstr(b.data, "[env: TERN_TEST_PORT]"));
    assert_int_equal(opts_help(&p->o, "nothing", &b), ERR_NOT_FOUND);
    assert_int_equal(opts_help(&p->o, "", &b), ERR_NOT_FOUND);
    buf_fini(&b);
    done(p);
}

static void help_leaves_out_what_a_command_has_no_use_for_unless_it_is_named(void **state)
{
    (void)state;
    static const char *const unlisted[] = {"port", NULL};
    struct parsed *p = PARSE("--help");
    p->o.unlisted = unlisted;
    struct buf b;
    buf_init(&b);
    assert_int_equal(opts_help(&p->o, NULL, &b), 0);
    assert_null(strstr(b.data, "--port"));
    assert_non_null(strstr(b.data, "--dtype"));
    buf_clear(&b);
    assert_int_equal(opts_help(&p->o, "port", &b), 0);
    assert_non_null(strstr(b.data, "--port"));
    buf_fini(&b);
    done(p);
}

static void what_was_set_is_described_and_secrets_are_not(void **state)
{
    (void)state;
    struct parsed *p = PARSE("--port", "81", "--served-model-name", "k1", "k2", "--enforce-eager");
    struct buf b;
    buf_init(&b);
    opts_describe(&p->o, "served-model-name", &b);
    assert_string_equal(b.data, "{'enforce_eager': True, 'port': 81, 'served_model_name': '***'}");
    buf_fini(&b);
    done(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(underscores_and_dashes_are_alike_and_values_may_follow_an_equals_sign),
        cmocka_unit_test(defaults_apply_and_no_switches_a_boolean_off),
        cmocka_unit_test(sizes_take_decimal_and_binary_units),
        cmocka_unit_test(auto_and_minus_one_are_the_same_length),
        cmocka_unit_test(an_unknown_flag_is_refused_with_the_nearest_name),
        cmocka_unit_test(bad_numbers_name_the_flag_and_the_range),
        cmocka_unit_test(a_flag_without_its_value_is_refused),
        cmocka_unit_test(ignored_flags_warn_once_and_refused_ones_stop),
        cmocka_unit_test(lists_take_all_words_and_repeatable_flags_add_up),
        cmocka_unit_test(json_comes_whole_or_in_pieces),
        cmocka_unit_test(command_line_beats_file_beats_environment_beats_default),
        cmocka_unit_test(a_bad_config_file_names_file_and_line),
        cmocka_unit_test(help_is_grouped_and_can_be_narrowed),
        cmocka_unit_test(help_leaves_out_what_a_command_has_no_use_for_unless_it_is_named),
        cmocka_unit_test(what_was_set_is_described_and_secrets_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
