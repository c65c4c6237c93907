/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks against the C library's own. */
#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <time.h>

static void monotonic_clock_advances_at_the_rate_of_real_time(void **state)
{
    (void)state;
    uint64_t a = clock_now_ns();
    struct timespec ts = {.tv_nsec = 5000000};
    nanosleep(&ts, NULL);
    uint64_t passed = clock_now_ns() - a;
    assert_true(passed >= 5000000);
    assert_true(passed < 5000000000u);
}

static void wall_clock_agrees_with_time(void **state)
{
    (void)state;
    int64_t before = (int64_t)time(NULL);
    int64_t s = clock_unix_s();
    double fine = clock_unix();
    assert_true(s >= before && s <= before + 5);
    assert_true(fine >= (double)before && fine <= (double)before + 5.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(monotonic_clock_advances_at_the_rate_of_real_time),
        cmocka_unit_test(wall_clock_agrees_with_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
