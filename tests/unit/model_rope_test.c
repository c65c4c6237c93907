/* SPDX-License-Identifier: Apache-2.0 */
/* RoPE tables against the C library and against the vectors of the shared codecs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "model/rope.h"
#include "model/safetensors.h"
#include "model_rig.h"

/* Units in the last place between two floats of about the same size, with an absolute floor near
 * zero. */
static int close_enough(float a, float b)
{
    return fabsf(a - b) <= 6e-8f * fmaxf(fabsf(b), 1e-3f);
}

static void tables_agree_with_the_c_library_over_the_whole_range(void **state)
{
    (void)state;
    static const int dims[] = {16, 64, 96, 128, 256};
    static const int32_t positions[] = {0,    1,    2,     3,      15,      16,      255,
                                        1000, 4095, 65535, 131071, 1048575, 16777216};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        struct rope r;
        float row[MAX_HEAD_DIM];
        rope_init(&r, dims[i], 500000.0, 1.0);
        for (int j = 0; j < dims[i] / 2; j++) {
            float expected = (float)(1.0 / pow(500000.0, (double)(2 * j) / dims[i]));
            assert_true(r.inv_freq[j] == expected);
        }
        for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
            rope_row(&r, positions[p], row);
            for (int j = 0; j < dims[i] / 2; j++) {
                double angle = (double)((float)positions[p] * r.inv_freq[j]);
                assert_true(close_enough(row[2 * j], (float)cos(angle)));
                assert_true(close_enough(row[2 * j + 1], (float)sin(angle)));
            }
        }
    }
}

static void positions_are_divided_by_the_compression_ratio(void **state)
{
    (void)state;
    struct rope a, b;
    float x[64], y[64];
    rope_init(&a, 64, 10000.0, 4.0);
    rope_init(&b, 64, 10000.0, 1.0);
    rope_row(&a, 400, x);
    rope_row(&b, 100, y);
    assert_memory_equal(x, y, sizeof x);
}

static void tables_equal_the_reference_vectors(void **state)
{
    (void)state;
    char path[1024];
    if (!rig_fixture(path, sizeof path, "codecs/codecs.safetensors")) {
        print_message("SKIPPED: no fixture codecs\n");
        skip();
    }
    struct safetensors *st;
    struct err e = {0};
    if (safetensors_open(&st, path, &e) < 0) {
        fail_msg("%s", e.text);
    }
    const int64_t *pos = safetensors_data(st, safetensors_find(st, "rope_tables.positions"));
    const float *c = safetensors_data(st, safetensors_find(st, "rope_tables.cos"));
    const float *s = safetensors_data(st, safetensors_find(st, "rope_tables.sin"));
    struct rope r;
    rope_init(&r, 128, 500000.0, 1.0);
    for (int i = 0; i < 7; i++) {
        float row[128];
        int64_t p;
        memcpy(&p, pos + i, sizeof p);
        rope_row(&r, (int32_t)p, row);
        for (int j = 0; j < 64; j++) {
            float ec, es;
            memcpy(&ec, c + 64 * i + j, 4);
            memcpy(&es, s + 64 * i + j, 4);
            assert_true(fabsf(row[2 * j] - ec) <= 1.2e-7f);
            assert_true(fabsf(row[2 * j + 1] - es) <= 1.2e-7f);
        }
    }
    safetensors_close(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_agree_with_the_c_library_over_the_whole_range),
        cmocka_unit_test(positions_are_divided_by_the_compression_ratio),
        cmocka_unit_test(tables_equal_the_reference_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
