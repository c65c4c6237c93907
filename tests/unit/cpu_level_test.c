/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/cpu.h"
#include "kernels/kernels.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void auto_and_no_name_choose_the_best_level(void **state)
{
    (void)state;
    enum cpu_level level = CPU_NONE;
    assert_int_equal(cpu_level_choose(NULL, &level, NULL), 0);
    assert_int_equal(level, cpu_detect());
    assert_int_equal(cpu_level_choose("auto", &level, NULL), 0);
    assert_int_equal(level, cpu_detect());
}

static void every_available_level_can_be_chosen_by_name_and_has_kernels(void **state)
{
    (void)state;
    enum cpu_level have[8], level;
    int n = cpu_levels_available(have);
    assert_int_equal(have[0], CPU_SCALAR);
    assert_int_equal(have[n - 1], cpu_detect());
    for (int i = 0; i < n; i++) {
        assert_int_equal(cpu_level_choose(cpu_level_name(have[i]), &level, NULL), 0);
        assert_int_equal(level, have[i]);
        const struct kernels *k = kernels_get(level);
        assert_non_null(k);
        assert_int_equal(k->level, level);
        for (int t = 0; t < ACT_TYPE_COUNT; t++) {
            void *const *f = (void *const *)&k->act[t];
            for (size_t j = 0; j < sizeof k->act[t] / sizeof *f; j++) {
                assert_non_null(f[j]);
            }
        }
    }
}

static void an_unknown_name_is_refused_with_the_list(void **state)
{
    (void)state;
    enum cpu_level level;
    struct err e;
    assert_int_equal(cpu_level_choose("sse9", &level, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "sse9"));
    assert_non_null(strstr(e.text, "avx512bf16"));
}

static void a_level_of_another_processor_is_refused_with_what_it_needs(void **state)
{
    (void)state;
    enum cpu_level level;
    struct err e;
    const int is_arm = cpu_detect() >= CPU_NEON;
    const char *foreign = is_arm ? "avx2" : "neondot";
    assert_int_equal(cpu_level_choose(foreign, &level, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "needs"));
    assert_null(kernels_get(is_arm ? CPU_AVX2 : CPU_NEON_DOT));
    assert_null(kernels_get(CPU_NONE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auto_and_no_name_choose_the_best_level),
        cmocka_unit_test(every_available_level_can_be_chosen_by_name_and_has_kernels),
        cmocka_unit_test(an_unknown_name_is_refused_with_the_list),
        cmocka_unit_test(a_level_of_another_processor_is_refused_with_what_it_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
