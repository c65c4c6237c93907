/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines, read back through a pipe: one read gets one write. */
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <regex.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"

struct fixture {
    int fds[2];
    struct log log;
    char line[8192];
};

static void open_pipe(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    assert_int_equal(pipe(f->fds), 0);
    f->log.level = LOG_INFO;
    f->log.fd = f->fds[1];
}

static void close_pipe(struct fixture *f)
{
    close(f->fds[0]);
    close(f->fds[1]);
}

static void read_line(struct fixture *f)
{
    ssize_t n = read(f->fds[0], f->line, sizeof f->line - 1);
    assert_true(n > 0);
    f->line[n] = '\0';
}

static int matches(const char *text, const char *pattern)
{
    regex_t re;
    assert_int_equal(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    int found = regexec(&re, text, 0, NULL, 0) == 0;
    regfree(&re);
    return found;
}

static void line_has_vllm_layout(void **state)
{
    (void)state;
    struct fixture f;
    open_pipe(&f);
    log_info(&f.log, "loaded %d tensors", 3);
    read_line(&f);
    assert_true(matches(f.line, "^INFO [0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} "
                                "\\[base_log_test\\.c:[0-9]+\\] loaded 3 tensors\n$"));
    f.log.prefix = "(APIServer pid=7) ";
    log_warning(&f.log, "x");
    read_line(&f);
    assert_true(matches(f.line, "^\\(APIServer pid=7\\) WARNING .* x\n$"));
    close_pipe(&f);
}

static void lines_below_the_level_are_not_written(void **state)
{
    (void)state;
    struct fixture f;
    open_pipe(&f);
    log_debug(&f.log, "quiet");
    f.log.level = LOG_ERROR;
    log_warning(&f.log, "quiet");
    log_error(&f.log, "loud");
    read_line(&f);
    assert_null(strstr(f.line, "quiet"));
    assert_non_null(strstr(f.line, "loud"));
    close_pipe(&f);
}

static void outside_text_cannot_forge_a_line_or_send_control_characters(void **state)
{
    (void)state;
    struct fixture f;
    open_pipe(&f);
    log_info(&f.log, "%s", "a\nERROR forged\x1b[31m\r\xff");
    read_line(&f);
    assert_true(matches(f.line, "^INFO [^\n]* a\nINFO [^\n]* ERROR forged\\\\x1b\\[31m"
                                "\\\\x0d\xEF\xBF\xBD\n$"));
    close_pipe(&f);
}

static void json_line_is_one_object(void **state)
{
    (void)state;
    struct fixture f;
    open_pipe(&f);
    f.log.json = 1;
    log_error(&f.log, "a \"quoted\"\nline \xff");
    read_line(&f);
    char *end = strchr(f.line, '\n');
    assert_non_null(end);
    struct json *v;
    assert_int_equal(json_parse(&v, f.line, (size_t)(end - f.line), 8, NULL), 0);
    assert_string_equal(json_string(json_get(v, "level"), NULL), "ERROR");
    assert_string_equal(json_string(json_get(v, "file"), NULL), "base_log_test.c");
    assert_string_equal(json_string(json_get(v, "message"), NULL), "a \"quoted\"\nline \uFFFD");
    json_free(v);
    close_pipe(&f);
}

static void long_line_is_written_whole(void **state)
{
    (void)state;
    struct fixture f;
    open_pipe(&f);
    log_info(&f.log, "%04000d|end", 0);
    read_line(&f);
    assert_non_null(strstr(f.line, "|end\n"));
    close_pipe(&f);
}

static void level_names_are_read_in_any_case(void **state)
{
    (void)state;
    enum log_level level = LOG_ERROR;
    assert_int_equal(log_level_parse("debug", &level), 0);
    assert_int_equal(level, LOG_DEBUG);
    assert_int_equal(log_level_parse("Warning", &level), 0);
    assert_int_equal(level, LOG_WARNING);
    assert_int_equal(log_level_parse("CRITICAL", &level), 0);
    assert_int_equal(level, LOG_CRITICAL);
    assert_int_equal(log_level_parse("loud", &level), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_has_vllm_layout),
        cmocka_unit_test(lines_below_the_level_are_not_written),
        cmocka_unit_test(outside_text_cannot_forge_a_line_or_send_control_characters),
        cmocka_unit_test(json_line_is_one_object),
        cmocka_unit_test(long_line_is_written_whole),
        cmocka_unit_test(level_names_are_read_in_any_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
