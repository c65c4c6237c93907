/* SPDX-License-Identifier: Apache-2.0 */
/* The counter-based generator against the published known answers of Philox4x32-10 (Random123,
 * kat_vectors). */
#include "engine/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void blocks_equal_the_published_vectors(void **state)
{
    (void)state;
    static const struct {
        uint64_t key, lo, hi;
        uint32_t want[4];
    } t[] = {
        {0, 0, 0, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
        {0x299f31d0a4093822u,
         0x85a308d3243f6a88u,
         0x0370734413198a2eu,
         {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        uint32_t got[4];
        rng_block(t[i].key, t[i].lo, t[i].hi, got);
        assert_memory_equal(got, t[i].want, sizeof got);
    }
}

static void uniform_numbers_fill_the_unit_interval_evenly(void **state)
{
    (void)state;
    int bins[100] = {0};
    const int n = 100000;
    for (int i = 0; i < n; i++) {
        double u = rng_uniform((uint64_t)(i % 100), (uint64_t)(i / 100));
        assert_true(u >= 0.0 && u < 1.0);
        bins[(int)(u * 100)]++;
    }
    double chi = 0;
    for (int i = 0; i < 100; i++) {
        chi += (bins[i] - n / 100.0) * (bins[i] - n / 100.0) / (n / 100.0);
    }
    assert_true(chi > 57 && chi < 155); /* 99 degrees of freedom, 0.1 % on either side */
}

static void requests_without_a_seed_get_different_reproducible_ones(void **state)
{
    (void)state;
    assert_true(rng_derive_seed(0, 1) == rng_derive_seed(0, 1));
    assert_true(rng_derive_seed(0, 1) != rng_derive_seed(0, 2));
    assert_true(rng_derive_seed(0, 1) != rng_derive_seed(1, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_equal_the_published_vectors),
        cmocka_unit_test(uniform_numbers_fill_the_unit_interval_evenly),
        cmocka_unit_test(requests_without_a_seed_get_different_reproducible_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
