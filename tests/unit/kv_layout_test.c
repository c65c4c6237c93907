/* SPDX-License-Identifier: Apache-2.0 */
/* The KV store: sizes, addresses, copies, export and import; and that reserving memory doesn't use
 * it. */
#include "kv/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kv_store *open_store(enum act_type type, enum kv_format format, int n_layers,
                                   int n_heads, int head_dim, int n_blocks)
{
    struct kv_layout l;
    struct kv_store *s;
    struct err e = {0};
    kv_layout_init(&l, type, format, n_layers, n_heads, head_dim);
    if (kv_store_open(&s, &l, n_blocks, &e) < 0) {
        fail_msg("%s", e.text);
    }
    return s;
}

static void a_block_of_the_0_3b_has_288_kib(void **state)
{
    (void)state;
    struct kv_layout l;
    kv_layout_init(&l, ACT_BF16, KV_ACT, 18, 2, 128);
    assert_int_equal(l.head_bytes, 2 * 16 * 128 * 2);
    assert_int_equal(kv_layout_token_block_bytes(&l), 294912); /* 18 KiB a token */
    kv_layout_init(&l, ACT_F32, KV_ACT, 18, 2, 128);
    assert_int_equal(kv_layout_token_block_bytes(&l), 2 * 294912);
}

static void eight_bits_halve_a_block_but_for_the_scales(void **state)
{
    (void)state;
    struct kv_layout l;
    for (int f = KV_F8_E4M3; f < KV_FORMAT_COUNT; f++) {
        for (int t = 0; t < ACT_TYPE_COUNT; t++) {
            kv_layout_init(&l, (enum act_type)t, (enum kv_format)f, 18, 2, 128);
            assert_int_equal(l.head_bytes, 2 * 16 * 128 + 64);
            assert_int_equal(kv_layout_token_block_bytes(&l), 149760); /* 50.8 % of bf16's */
        }
    }
}

static void tiles_are_aligned_zeroed_and_do_not_overlap(void **state)
{
    (void)state;
    struct kv_store *s = open_store(ACT_BF16, KV_ACT, 3, 2, 16, 5);
    size_t n = kv_store_layout(s)->head_bytes;
    for (int pass = 0; pass < 2; pass++) {
        unsigned char mark = 0;
        for (int i = 0; i < 3 * 5 * 2; i++) {
            unsigned char *t = kv_store_tile(s, i / 10, i / 2 % 5, i % 2);
            assert_int_equal((uintptr_t)t % 64, 0);
            for (size_t b = 0; b < n; b++) {
                assert_int_equal(t[b], pass == 0 ? 0 : mark);
            }
            mark++;
        }
        mark = 0;
        for (int i = 0; i < 3 * 5 * 2; i++) {
            memset(kv_store_tile(s, i / 10, i / 2 % 5, i % 2), mark++, n);
        }
    }
    kv_store_close(s);
}

static void copying_a_block_takes_all_layers_and_heads_and_nothing_else(void **state)
{
    (void)state;
    struct kv_store *s = open_store(ACT_F32, KV_I8, 3, 2, 16, 4);
    size_t n = kv_store_layout(s)->head_bytes;
    for (int layer = 0; layer < 3; layer++) {
        for (int block = 0; block < 4; block++) {
            for (int head = 0; head < 2; head++) {
                memset(kv_store_tile(s, layer, block, head), layer * 16 + block * 2 + head, n);
            }
        }
    }
    kv_store_copy_block(s, 3, 1);
    for (int layer = 0; layer < 3; layer++) {
        for (int block = 0; block < 4; block++) {
            for (int head = 0; head < 2; head++) {
                const unsigned char *t = kv_store_tile(s, layer, block, head);
                int want = layer * 16 + (block == 3 ? 1 : block) * 2 + head;
                assert_int_equal(t[0], want);
                assert_int_equal(t[n - 1], want);
            }
        }
    }
    kv_store_close(s);
}

static void an_exported_layer_imports_into_another_block_of_another_store(void **state)
{
    (void)state;
    struct kv_store *a = open_store(ACT_BF16, KV_ACT, 2, 3, 32, 4),
                    *b = open_store(ACT_BF16, KV_ACT, 2, 3, 32, 9);
    size_t n = kv_store_layout(a)->block_bytes;
    unsigned char *bytes = malloc(n), *back = malloc(n);
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (unsigned char)(i * 7 + i / 251);
    }
    kv_store_import(a, 1, 2, bytes);
    kv_store_export(a, 1, 2, back);
    kv_store_import(b, 1, 7, back);
    for (int head = 0; head < 3; head++) {
        size_t tile = kv_store_layout(b)->head_bytes;
        assert_memory_equal(kv_store_tile(b, 1, 7, head), bytes + (size_t)head * tile, tile);
    }
    free(bytes);
    free(back);
    kv_store_close(a);
    kv_store_close(b);
}

static long resident_kib(void)
{
    long pages = 0, ignored;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &ignored, &pages), 2);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void reserved_memory_is_not_resident_until_written(void **state)
{
    (void)state;
    long before = resident_kib();
    struct kv_store *s = open_store(ACT_BF16, KV_ACT, 18, 2, 128, 3641); /* 1 GiB */
    assert_true(resident_kib() - before < 16 * 1024);
    kv_store_close(s);
}

static void impossible_stores_are_refused(void **state)
{
    (void)state;
    struct kv_layout l;
    struct kv_store *s;
    struct err e = {0};
    kv_layout_init(&l, ACT_BF16, KV_ACT, 18, 2, 128);
    assert_int_equal(kv_store_open(&s, &l, 0, &e), ERR_INVALID);
    assert_null(s);
    kv_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_of_the_0_3b_has_288_kib),
        cmocka_unit_test(eight_bits_halve_a_block_but_for_the_scales),
        cmocka_unit_test(tiles_are_aligned_zeroed_and_do_not_overlap),
        cmocka_unit_test(copying_a_block_takes_all_layers_and_heads_and_nothing_else),
        cmocka_unit_test(an_exported_layer_imports_into_another_block_of_another_store),
        cmocka_unit_test(reserved_memory_is_not_resident_until_written),
        cmocka_unit_test(impossible_stores_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
