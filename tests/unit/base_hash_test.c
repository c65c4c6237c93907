/* SPDX-License-Identifier: Apache-2.0 */
/* Hash values are part of formats: known values of XXH3 must not change. */
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
static void values_are_those_of_the_xxh3_specification(void **state)
{
    (void)state;
    /* published for the empty input and seed 0 */
    assert_true(hash64("", 0, 0) == 0x2D06800538D394C2u);
    struct hash128 h = hash128("", 0, 0);
    assert_true(h.lo == 0x6001C324468D497Fu && h.hi == 0x99AA06D3014798D8u);
}

static void seed_and_every_byte_matter(void **state)
{
    (void)state;
    char text[300] = {0};
    uint64_t h = hash64(text, sizeof text, 1);
    assert_true(h != hash64(text, sizeof text, 2));
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = 1;
        assert_true(hash64(text, sizeof text, 1) != h);
        text[i] = 0;
    }
    assert_true(hash64(text, sizeof text, 1) == h);
}

static void random_seeds_differ(void **state)
{
    (void)state;
    assert_true(hash_random_seed() != hash_random_seed());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_xxh3_specification),
        cmocka_unit_test(seed_and_every_byte_matter),
        cmocka_unit_test(random_seeds_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
