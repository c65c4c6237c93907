/* SPDX-License-Identifier: Apache-2.0 */
/* The bump allocator. */
#include "base/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void blocks_are_zeroed_aligned_and_apart(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 0);
    unsigned char *blocks[400];
    for (size_t i = 0; i < 400; i++) {
        size_t n = i * 7 % 300;
        blocks[i] = arena_alloc(&a, n);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        for (size_t j = 0; j < n; j++) {
            assert_int_equal(blocks[i][j], 0);
        }
        memset(blocks[i], (int)(i & 0xFF), n);
    }
    for (size_t i = 0; i < 400; i++) {
        for (size_t j = 0; j < i * 7 % 300; j++) {
            assert_int_equal(blocks[i][j], i & 0xFF);
        }
    }
    arena_fini(&a);
}

static void large_block_does_not_waste_the_current_chunk(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 1024);
    char *first = arena_alloc(&a, 16);
    char *large = arena_alloc(&a, 100000);
    assert_non_null(large);
    memset(large, 1, 100000);
    char *second = arena_alloc(&a, 16);
    assert_ptr_equal(second, first + 16);
    arena_fini(&a);
}

static void impossible_size_gives_null(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 0);
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc(&a, SIZE_MAX / 2 + 1));
    assert_null(arena_strndup(&a, "x", SIZE_MAX));
    assert_non_null(arena_alloc(&a, 1));
    arena_fini(&a);
}

static void copies_are_exact_and_terminated(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 0);
    char text[] = "hello";
    char *s = arena_strdup(&a, text);
    char *n = arena_strndup(&a, text, 3);
    char *m = arena_memdup(&a, "a\0b", 3);
    memset(text, 'x', sizeof text);
    assert_string_equal(s, "hello");
    assert_string_equal(n, "hel");
    assert_memory_equal(m, "a\0b", 3);
    arena_fini(&a);
    arena_fini(&a);
    arena_fini(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_zeroed_aligned_and_apart),
        cmocka_unit_test(large_block_does_not_waste_the_current_chunk),
        cmocka_unit_test(impossible_size_gives_null),
        cmocka_unit_test(copies_are_exact_and_terminated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
