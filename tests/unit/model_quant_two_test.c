/* SPDX-License-Identifier: Apache-2.0 */
/* The encoder of the 2-bit code: what it writes is the best there is with the scales it chose, by
 * looking at all 256 bytes a second way, and error feedback brings products nearer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/quant_two.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS  24
#define COLS  200 /* three whole groups and a short one */
#define SEEN  96  /* rows of activations */
#define WORDS (COLS / 4)

static uint64_t seed = 1;

static float normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(seed >> 40) / (float)(1 << 24);
    }
    return sum - 6.0f;
}

struct made {
    float x[ROWS * COLS];
    uint8_t codes[WORDS * ROWS], subs[(COLS + 127) / 128 * ROWS];
    float steps[ROWS], starts[ROWS], supers[ROWS];
    double sums[2];
};

static void make(struct made *m, const struct quant_two_feedback *f)
{
    const struct quant_two to = {ROWS, COLS, m->codes, m->subs, m->steps, m->starts, m->supers};
    memset(m->subs, 0, sizeof m->subs);
    assert_int_equal(quant_two_strip(&to, m->x, 0, ROWS, f, m->sums), 0);
}

/* The format's table, literally. */
static float value(const struct made *m, int r, int col, int byte)
{
    const uint8_t pair = m->subs[col / 128 * ROWS + r];
    const int local = col / 64 % 2 == 0 ? pair >> 4 : pair & 15;
    const int number = (int)floorf((float)byte * m->steps[r] + m->starts[r] + 0.5f);
    return (float)((number >> (9 - 3 * (col % 4)) & 63) - 32) * (float)local * m->supers[r];
}

static double error_of(const struct made *m, int r, int word, int byte)
{
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        const double d =
            (double)m->x[r * COLS + 4 * word + i] - (double)value(m, r, 4 * word + i, byte);
        sum += d * d;
    }
    return sum;
}

static void no_other_byte_is_nearer(void **state)
{
    (void)state;
    struct made *m = calloc(1, sizeof *m);
    double error = 0, square = 0;
    for (int i = 0; i < ROWS * COLS; i++) {
        m->x[i] = normal() * (i / COLS == 3 ? 1e-4f : 0.02f);
    }
    memset(m->x + 5 * COLS, 0, COLS * sizeof *m->x); /* a row of zeros */
    make(m, NULL);
    for (int r = 0; r < ROWS; r++) {
        for (int w = 0; w < WORDS; w++) {
            const double own = error_of(m, r, w, m->codes[w * ROWS + r]);
            for (int byte = 0; byte < 256; byte++) {
                assert_true(own <= error_of(m, r, w, byte) * (1 + 1e-4) + 1e-16);
            }
            error += own;
        }
        assert_true(m->steps[r] * 255 + m->starts[r] < 32767.5f && m->starts[r] >= 0);
        assert_true(bf16_to_f32(f32_to_bf16(m->supers[r])) == m->supers[r]);
    }
    for (int i = 0; i < ROWS * COLS; i++) {
        square += (double)m->x[i] * (double)m->x[i];
    }
    assert_true(fabs(m->sums[0] / error - 1) < 1e-3 && fabs(m->sums[1] / square - 1) < 1e-3);
    assert_true(error / square < 0.125); /* four levels of a scalar code leave 0.1175 at best */
    free(m);
}

/* Squared error of the products with the activations that were seen. */
static double product_error(const struct made *m, const uint16_t *seen)
{
    double all = 0;
    for (int s = 0; s < SEEN; s++) {
        for (int r = 0; r < ROWS; r++) {
            double sum = 0;
            for (int k = 0; k < COLS; k++) {
                const float d = m->x[r * COLS + k] - value(m, r, k, m->codes[k / 4 * ROWS + r]);
                sum += (double)d * (double)bf16_to_f32(seen[s * COLS + k]);
            }
            all += sum * sum;
        }
    }
    return all;
}

static void feedback_brings_products_nearer(void **state)
{
    (void)state;
    struct made *m = calloc(1, sizeof *m);
    static uint16_t seen[SEEN * COLS];
    struct quant_two_feedback f;
    for (int i = 0; i < ROWS * COLS; i++) {
        m->x[i] = normal() * 0.02f;
    }
    for (int s = 0; s < SEEN; s++) { /* channels that go together */
        float common = normal();
        for (int k = 0; k < COLS; k++) {
            common = k % 10 == 0 ? normal() : common;
            seen[s * COLS + k] = f32_to_bf16(common + 0.5f * normal());
        }
    }
    make(m, NULL);
    const double plain = product_error(m, seen);
    assert_int_equal(quant_two_feedback_init(&f, COLS, seen, SEEN, COLS), 0);
    make(m, &f);
    assert_true(product_error(m, seen) < 0.6 * plain);
    assert_true(m->sums[0] / m->sums[1] < 0.3);
    quant_two_feedback_fini(&f);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_other_byte_is_nearer),
        cmocka_unit_test(feedback_brings_products_nearer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
