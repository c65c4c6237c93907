/* SPDX-License-Identifier: Apache-2.0 */
/* weight_unpack_tile gives back what weight_pack_tile was given. */
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS 13
#define COLS 72 /* two groups of 32 and a short one */

static void round_trip(enum weight_format format, int has_zero, enum dtype scale_type)
{
    struct weight w = {.format = format,
                       .n = ROWS,
                       .k = COLS,
                       .scale_type = scale_type,
                       .group = 32,
                       .has_zero = has_zero};
    uint8_t codes[ROWS * COLS], zeros[ROWS * 3], got_codes[ROWS * COLS], got_zeros[ROWS * 3];
    float scales[ROWS * 3], got_scales[ROWS * 3];
    unsigned x = 1;
    for (int i = 0; i < ROWS * COLS; i++) {
        x = x * 1103515245u + 12345u;
        codes[i] = (uint8_t)(x >> 16 & (format == WEIGHT_I4 ? 15 : 255));
    }
    for (int i = 0; i < ROWS * 3; i++) {
        scales[i] = 0.125f * (float)(i + 1); /* every type holds these */
        zeros[i] = (uint8_t)(i % 16);
    }
    void *data = aligned_alloc(64, weight_tile_bytes(&w));
    assert_non_null(data);
    w.data = data;
    memset(got_zeros, 0xee, sizeof got_zeros);
    weight_pack_tile(&w, 0, codes, COLS, scales, 3, has_zero ? zeros : NULL, 3, ROWS);
    weight_unpack_tile(&w, 0, got_codes, COLS, got_scales, 3, got_zeros, 3, ROWS);
    assert_memory_equal(got_codes, codes, sizeof codes);
    assert_memory_equal(got_scales, scales, sizeof scales);
    if (has_zero) {
        assert_memory_equal(got_zeros, zeros, sizeof zeros);
    } else {
        assert_int_equal(got_zeros[0], 0xee); /* left alone */
    }
    free(data);
}

static void eight_bits_come_back(void **state)
{
    (void)state;
    round_trip(WEIGHT_I8, 0, DTYPE_BF16);
    round_trip(WEIGHT_F8_E4M3, 0, DTYPE_F32);
}

static void four_bits_come_back_with_their_zero_points(void **state)
{
    (void)state;
    round_trip(WEIGHT_I4, 0, DTYPE_F16);
    round_trip(WEIGHT_I4, 1, DTYPE_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_bits_come_back),
        cmocka_unit_test(four_bits_come_back_with_their_zero_points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
