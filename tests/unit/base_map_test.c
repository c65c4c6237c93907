/* SPDX-License-Identifier: Apache-2.0 */
/* The hash map against a plain array that holds the same entries. */
#include "base/map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define N_KEYS 500

static void random_operations_agree_with_a_plain_array(void **state)
{
    (void)state;
    struct map *m = map_new();
    void *model[N_KEYS] = {0};
    static char values[64];
    uint32_t x = 12345;
    size_t count = 0;
    for (int step = 0; step < 60000; step++) {
        x = x * 1664525u + 1013904223u;
        int k = (int)(x >> 8) % N_KEYS;
        void *value = &values[x >> 26];
        char key[16];
        int n = snprintf(key, sizeof key, "key%d", k);
        if ((x >> 4 & 7) < (step / 10000 % 2 ? 5u : 3u)) {
            assert_ptr_equal(map_remove(m, key, (size_t)n), model[k]);
            count -= model[k] != NULL;
            model[k] = NULL;
        } else {
            assert_int_equal(map_put(m, key, (size_t)n, value), 0);
            count += model[k] == NULL;
            model[k] = value;
        }
        assert_ptr_equal(map_get(m, key, (size_t)n), model[k]);
        assert_int_equal(map_count(m), count);
    }
    for (int k = 0; k < N_KEYS; k++) {
        char key[16];
        int n = snprintf(key, sizeof key, "key%d", k);
        assert_ptr_equal(map_get(m, key, (size_t)n), model[k]);
    }
    map_free(m);
}

static void iteration_visits_every_entry_once(void **state)
{
    (void)state;
    struct map *m = map_new();
    int seen[100] = {0};
    for (int i = 0; i < 100; i++) {
        assert_int_equal(map_put(m, &i, sizeof i, &seen[i]), 0);
    }
    size_t it = 0, key_bytes;
    const void *key;
    void *value;
    while (map_next(m, &it, &key, &key_bytes, &value)) {
        int i;
        assert_int_equal(key_bytes, sizeof i);
        memcpy(&i, key, sizeof i);
        assert_ptr_equal(value, &seen[i]);
        seen[i]++;
    }
    for (int i = 0; i < 100; i++) {
        assert_int_equal(seen[i], 1);
    }
    map_free(m);
}

static void keys_are_byte_strings_of_any_content(void **state)
{
    (void)state;
    struct map *m = map_new();
    int a, b, c;
    assert_null(map_get(m, "", 0));
    assert_null(map_remove(m, "", 0));
    map_put(m, "", 0, &a);
    map_put(m, "\0", 1, &b);
    map_put(m, "\0\0", 2, &c);
    assert_ptr_equal(map_get(m, "", 0), &a);
    assert_ptr_equal(map_get(m, "\0", 1), &b);
    assert_ptr_equal(map_get(m, "\0\0", 2), &c);
    assert_int_equal(map_count(m), 3);
    map_free(m);
    map_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_agree_with_a_plain_array),
        cmocka_unit_test(iteration_visits_every_entry_once),
        cmocka_unit_test(keys_are_byte_strings_of_any_content),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
