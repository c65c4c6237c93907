/* SPDX-License-Identifier: Apache-2.0 */
/* The reference arithmetic against the processor's own (fmaf, long double expl) and against facts
 * of the formats. */
#include "kernels/kernels.h"
#include "kernels/ref/math.h"
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static uint32_t next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 32);
}

static void fma_equals_fmaf_wherever_no_denormal_is_involved(void **state)
{
    (void)state;
    uint64_t s = 1;
    for (int i = 0; i < 1000000; i++) {
        /* exponents near each other, so that sums cancel and round in every way */
        float a = ref_from_bits((next(&s) & 0x83ffffffu) | 0x3c000000u);
        float b = ref_from_bits((next(&s) & 0x83ffffffu) | 0x3c000000u);
        float c = ref_from_bits((next(&s) & 0x87ffffffu) | 0x38000000u);
        assert_int_equal(ref_bits(ref_fma(a, b, c)), ref_bits(fmaf(a, b, c)));
    }
}

static void denormals_are_zeros_of_the_same_sign(void **state)
{
    (void)state;
    assert_int_equal(ref_bits(ref_fma(0x1p-63f, 0x1p-64f, 0.0f)), 0);
    assert_int_equal(ref_bits(ref_mul(-0x1p-63f, 0x1p-64f)), 0x80000000u);
    assert_int_equal(ref_bits(ref_add(0x1p-130f, 0x1p-130f)), 0);
    assert_int_equal(ref_bits(ref_mul(0x1p-130f, 0x1p100f)), 0);
    assert_int_equal(ref_bits(ref_mul(0x1p-63f, 0x1p-63f)), ref_bits(0x1p-126f));
    /* 2^-126 less a quarter of its step rounds up to it and is no denormal; less a half step is one
     */
    assert_int_equal(ref_bits(ref_fma(-0x1p-75f, 0x1p-76f, 0x1p-126f)), ref_bits(0x1p-126f));
    assert_int_equal(ref_bits(ref_fma(-0x1p-75f, 0x1p-75f, 0x1p-126f)), 0);
}

static void exp_is_exact_at_zero_and_minus_infinity(void **state)
{
    (void)state;
    assert_int_equal(ref_bits(kernel_exp(0.0f)), ref_bits(1.0f));
    assert_int_equal(ref_bits(kernel_exp(-0.0f)), ref_bits(1.0f));
    assert_int_equal(ref_bits(kernel_exp(-INFINITY)), 0);
    assert_int_equal(ref_bits(kernel_exp(-200.0f)), 0);
    assert_true(kernel_exp(INFINITY) == INFINITY);
    assert_true(kernel_exp(89.0f) == INFINITY);
    assert_true(kernel_exp(88.7f) < INFINITY);
    assert_true(kernel_exp(NAN) != kernel_exp(NAN));
}

static void exp_is_within_nine_tenths_of_an_ulp(void **state)
{
    (void)state;
    long double worst = 0;
    float worst_at = 0;
    for (uint32_t sign = 0; sign < 2; sign++) {
        for (uint32_t u = 0x30000000u; u < 0x42b00000u; u += 199) {
            float x = ref_from_bits(u | sign << 31);
            if (x < -87.3f || x > 88.7f) {
                continue;
            }
            long double want = expl((long double)x);
            int exponent;
            frexpl(want, &exponent);
            long double ulps =
                fabsl((long double)kernel_exp(x) - want) / ldexpl(1.0L, exponent - 24);
            if (ulps > worst) {
                worst = ulps;
                worst_at = x;
            }
        }
    }
    print_message("largest error of kernel_exp: %.3Lf ulp at %a\n", worst, (double)worst_at);
    assert_true(worst < 0.9L);
}

static void exp_never_decreases(void **state)
{
    (void)state;
    float last = 0;
    for (float x = -88.0f; x < 1.0f; x += 0.0003f) {
        float y = kernel_exp(x);
        assert_true(y >= last);
        last = y;
    }
}

static void bf16_rounds_to_nearest_even_and_keeps_nan(void **state)
{
    (void)state;
    assert_int_equal(f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(f32_to_bf16(ref_from_bits(0x3f808000u)), 0x3f80); /* tie to even, down */
    assert_int_equal(f32_to_bf16(ref_from_bits(0x3f818000u)), 0x3f82); /* tie to even, up */
    assert_int_equal(f32_to_bf16(ref_from_bits(0x3f808001u)), 0x3f81);
    assert_int_equal(f32_to_bf16(FLT_MAX), 0x7f80);
    assert_int_equal(f32_to_bf16(ref_from_bits(0x7f800001u)), 0x7fc0);
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t back = f32_to_bf16(bf16_to_f32((uint16_t)h));
        int nan = (h & 0x7fff) > 0x7f80;
        assert_int_equal(back, nan ? h | 0x40 : h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fma_equals_fmaf_wherever_no_denormal_is_involved),
        cmocka_unit_test(denormals_are_zeros_of_the_same_sign),
        cmocka_unit_test(exp_is_exact_at_zero_and_minus_infinity),
        cmocka_unit_test(exp_is_within_nine_tenths_of_an_ulp),
        cmocka_unit_test(exp_never_decreases),
        cmocka_unit_test(bf16_rounds_to_nearest_even_and_keeps_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
