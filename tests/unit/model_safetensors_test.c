/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors reader: a sound file is read, and every fault is refused with a line that names
 * file and tensor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/safetensors.h"
#include "model_rig.h"

static struct rig_dir dir;
static char path[600];

static void write_bytes(const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* A file with this header and n_data bytes 0, 1, 2, … */
static void write_file(const char *header, size_t n_data)
{
    size_t n = strlen(header);
    uint8_t *bytes = malloc(8 + n + n_data);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(n >> (8 * i));
    }
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < n_data; i++) {
        bytes[8 + n + i] = (uint8_t)i;
    }
    write_bytes(bytes, 8 + n + n_data);
    free(bytes);
}

static void assert_refused(int code, const char *const *words)
{
    struct err e = {0};
    struct safetensors *st = (struct safetensors *)1;
    int rc = safetensors_open(&st, path, &e);
    if (rc != code) {
        fail_msg("code %d, expected %d: %s", rc, code, e.text);
    }
    assert_null(st);
    assert_null(strchr(e.text, '\n'));
    if (strstr(e.text, path) == NULL) {
        fail_msg("\"%s\" does not name the file", e.text);
    }
    for (; *words != NULL; words++) {
        if (strstr(e.text, *words) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", e.text, *words);
        }
    }
}
#define REFUSED(code, ...) assert_refused(code, (const char *const[]){__VA_ARGS__, NULL})

static const char sound[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]},"
    "\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
    "\"empty\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[20,20]}}   ";

static void a_sound_file_is_read(void **state)
{
    (void)state;
    struct err e = {0};
    struct safetensors *st;
    write_file(sound, 20);
    if (safetensors_open(&st, path, &e) < 0) {
        fail_msg("%s", e.text);
    }
    assert_int_equal(safetensors_count(st), 3);
    const struct safetensors_tensor *t = safetensors_find(st, "a.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, SAFETENSORS_BF16);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(((const uint8_t *)safetensors_data(st, t))[11], 11);
    assert_int_equal(((const uint8_t *)safetensors_data(st, safetensors_find(st, "b.weight")))[0],
                     12);
    assert_null(safetensors_find(st, "c"));
    assert_string_equal(safetensors_at(st, 0)->name, "a.weight");
    safetensors_close(st);
}

static void a_truncated_file_is_refused_with_both_sizes(void **state)
{
    (void)state;
    char expected[32], found[32];
    write_file(sound, 15);
    snprintf(expected, sizeof expected, "expected %zu", strlen(sound) + 28);
    snprintf(found, sizeof found, "found %zu", strlen(sound) + 23);
    REFUSED(ERR_FORMAT, "truncated", "b.weight", expected, found);
    write_bytes("\x40\0\0\0\0\0\0\0{\"a\"", 12);
    REFUSED(ERR_FORMAT, "truncated", "72", "found 12");
    write_bytes("\x40\0", 2);
    REFUSED(ERR_FORMAT, "truncated", "found 2");
    write_bytes("", 0);
    REFUSED(ERR_FORMAT, "empty");
}

static void a_git_lfs_pointer_is_named(void **state)
{
    (void)state;
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 721514704\n";
    write_bytes(pointer, sizeof pointer - 1);
    REFUSED(ERR_FORMAT, "is a Git LFS pointer", "run git lfs pull");
}

static void a_bad_header_is_refused(void **state)
{
    (void)state;
    write_bytes("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10);
    REFUSED(ERR_FORMAT, "bad header");
    write_bytes("PK\3\4\0\0\0\0 not a tensor file", 26);
    REFUSED(ERR_FORMAT, "not a safetensors file");
    write_file("[]", 0);
    REFUSED(ERR_FORMAT, "bad header");
    write_file("{\"a\":", 0);
    REFUSED(ERR_FORMAT, "bad header");
    write_file("{\"a\":1}", 0);
    REFUSED(ERR_FORMAT, "tensor a", "object");
    write_file("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    REFUSED(ERR_FORMAT, "tensor a", "dtype");
    write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1);
    REFUSED(ERR_FORMAT, "tensor a", "shape[0]");
    write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[1.5],\"data_offsets\":[0,1]}}", 1);
    REFUSED(ERR_FORMAT, "tensor a", "shape[0]");
    write_file(
        "{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0);
    REFUSED(ERR_FORMAT, "tensor a", "too large");
    write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1);
    REFUSED(ERR_FORMAT, "tensor a", "data_offsets");
}

static void an_unknown_dtype_is_refused_by_name(void **state)
{
    (void)state;
    write_file("{\"w\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3);
    REFUSED(ERR_UNSUPPORTED, "tensor w", "F6_E2M3");
}

static void overlaps_holes_and_offsets_out_of_range_are_refused(void **state)
{
    (void)state;
    write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
               "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
               6);
    REFUSED(ERR_FORMAT, "tensor b", "inside tensor a");
    write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
               "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[6,10]}}",
               10);
    REFUSED(ERR_FORMAT, "tensor b", "hole", "expected 4");
    write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 7);
    REFUSED(ERR_FORMAT, "3 bytes follow the last tensor");
    write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807],\"data_offsets\":[0,"
               "9223372036854775807]}}",
               7);
    REFUSED(ERR_FORMAT, "tensor a", "out of range");
}

static void a_span_that_does_not_fit_the_shape_is_refused(void **state)
{
    (void)state;
    write_file("{\"a\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,4]}}", 4);
    REFUSED(ERR_FORMAT, "tensor a", "need 8 bytes", "span 4");
}

static void a_name_that_occurs_twice_is_refused(void **state)
{
    (void)state;
    write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
               "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
               4);
    REFUSED(ERR_FORMAT, "tensor a", "twice");
}

static void a_missing_file_is_refused(void **state)
{
    (void)state;
    unlink(path);
    REFUSED(ERR_NOT_FOUND, "No such file");
}

static int make_dir(void **state)
{
    (void)state;
    rig_dir_make(&dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir.path);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    rig_dir_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_file_is_read),
        cmocka_unit_test(a_truncated_file_is_refused_with_both_sizes),
        cmocka_unit_test(a_git_lfs_pointer_is_named),
        cmocka_unit_test(a_bad_header_is_refused),
        cmocka_unit_test(an_unknown_dtype_is_refused_by_name),
        cmocka_unit_test(overlaps_holes_and_offsets_out_of_range_are_refused),
        cmocka_unit_test(a_span_that_does_not_fit_the_shape_is_refused),
        cmocka_unit_test(a_name_that_occurs_twice_is_refused),
        cmocka_unit_test(a_missing_file_is_refused),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
