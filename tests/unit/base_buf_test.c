/* SPDX-License-Identifier: Apache-2.0 */
/* The growable buffer. */
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void appends_keep_order_and_a_closing_nul(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b);
    for (int i = 0; i < 1000; i++) {
        buf_putc(&b, (char)('a' + i % 26));
        assert_int_equal(b.data[b.len], '\0');
    }
    buf_append(&b, "x\0y", 3);
    buf_puts(&b, "end");
    assert_int_equal(b.len, 1006);
    assert_memory_equal(b.data + 998,
                        "kl"
                        "x\0yend",
                        9);
    buf_fini(&b);
}

static void printf_grows_to_any_length(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b);
    buf_printf(&b, "%0*d|%s", 5000, 7, "tail");
    assert_int_equal(b.len, 5005);
    assert_string_equal(b.data + 4999, "7|tail");
    assert_false(b.failed);
    buf_fini(&b);
}

static void impossible_size_marks_the_buffer_and_later_appends_do_nothing(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b);
    buf_puts(&b, "abc");
    assert_int_equal(buf_reserve(&b, SIZE_MAX - 1), ERR_NOMEM);
    assert_true(b.failed);
    buf_puts(&b, "def");
    buf_printf(&b, "%d", 1);
    assert_string_equal(b.data, "abc");
    buf_clear(&b);
    buf_puts(&b, "ok");
    assert_string_equal(b.data, "ok");
    buf_fini(&b);
}

static void detach_hands_over_the_bytes(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b);
    buf_puts(&b, "mine");
    char *s = buf_detach(&b);
    assert_string_equal(s, "mine");
    assert_null(b.data);
    assert_int_equal(b.len, 0);
    free(s);
    s = buf_detach(&b);
    assert_string_equal(s, "");
    free(s);
}

static void read_file_gives_the_exact_bytes_and_keeps_the_limit(void **state)
{
    (void)state;
    char path[] = "/tmp/tern-buf-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "a\0b\n", 4), 4);
    close(fd);
    struct buf b;
    buf_init(&b);
    buf_puts(&b, "old");
    struct err e = {0};
    assert_int_equal(buf_read_file(&b, path, 4, &e), 0);
    assert_int_equal(b.len, 4);
    assert_memory_equal(b.data, "a\0b\n", 5);
    assert_int_equal(buf_read_file(&b, path, 3, &e), ERR_TOO_LARGE);
    assert_non_null(strstr(e.text, path));
    unlink(path);
    assert_int_equal(buf_read_file(&b, path, 4, &e), ERR_NOT_FOUND);
    assert_int_equal(buf_read_file(&b, "/", 4, &e), ERR_IO);
    /* a file that doesn't know its size */
    assert_int_equal(buf_read_file(&b, "/proc/self/status", 1 << 20, &e), 0);
    assert_non_null(strstr(b.data, "Name:"));
    assert_int_equal(buf_read_file(&b, "/proc/self/status", 10, &e), ERR_TOO_LARGE);
    buf_fini(&b);
}

static void a_pipe_is_read_to_its_end_and_one_without_a_writer_is_empty(void **state)
{
    (void)state;
    char dir[] = "/tmp/tern-buf-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/pipe", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    struct buf b;
    buf_init(&b);
    struct err e = {0};
    alarm(20); /* an open that waits for a writer would last forever */
    assert_int_equal(buf_read_file(&b, path, 100, &e), 0);
    assert_int_equal(b.len, 0);
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    if (child == 0) {
        usleep(50000); /* later than the open */
        _exit(write(fds[1], "late", 4) == 4 ? 0 : 1);
    }
    close(fds[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", fds[0]);
    assert_int_equal(buf_read_file(&b, path, 100, &e), 0);
    assert_string_equal(b.data, "late");
    alarm(0);
    waitpid(child, NULL, 0);
    close(fds[0]);
    snprintf(path, sizeof path, "%s/pipe", dir);
    unlink(path);
    rmdir(dir);
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_keep_order_and_a_closing_nul),
        cmocka_unit_test(printf_grows_to_any_length),
        cmocka_unit_test(impossible_size_marks_the_buffer_and_later_appends_do_nothing),
        cmocka_unit_test(detach_hands_over_the_bytes),
        cmocka_unit_test(read_file_gives_the_exact_bytes_and_keeps_the_limit),
        cmocka_unit_test(a_pipe_is_read_to_its_end_and_one_without_a_writer_is_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
