/* SPDX-License-Identifier: Apache-2.0 */
/* Limits are read from made-up /proc and /sys trees, so that every kind of container is met on any
 * machine. */
#include "cpu/cpu.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)

static char root[256];

static void put(const char *path, const char *text)
{
    char full[1024];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(full, 0755);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/tern-limits-XXXXXX");
    if (!mkdtemp(root)) {
        return -1;
    }
    put("/proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static struct cpu_limits read_limits(void)
{
    struct cpu_limits out;
    struct err e;
    assert_int_equal(cpu_limits_read_at(&out, root, &e), 0);
    return out;
}

static void without_a_cgroup_the_host_is_the_limit(void **state)
{
    (void)state;
    struct cpu_limits l = read_limits();
    assert_true(l.host_memory_bytes == 16384 * MIB);
    assert_true(l.memory_limit_bytes == 16384 * MIB);
    assert_true(l.memory_available_bytes == 8192 * MIB);
    assert_true(l.cgroup_cpus == 0);
    assert_int_equal(l.n_threads, l.n_affinity);
}

static void version_2_limits_of_every_ancestor_bind(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/a/b/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/a/b/memory.current", "1073741824\n");
    put("/sys/fs/cgroup/a/b/memory.stat", "anon 1\ninactive_file 536870912\nactive_file 0\n");
    put("/sys/fs/cgroup/a/memory.max", "max\n");
    struct cpu_limits l = read_limits();
    assert_true(l.cgroup_cpus == 1.5);
    assert_int_equal(l.n_threads, 1);
    assert_true(l.memory_limit_bytes == 2048 * MIB);
    assert_true(l.memory_available_bytes == 1536 * MIB); /* the page cache counts as free */
}

static void half_a_cpu_still_gives_one_thread(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    struct cpu_limits l = read_limits();
    assert_true(l.cgroup_cpus == 0.5);
    assert_int_equal(l.n_threads, 1);
}

static void version_1_trees_are_read_with_the_root_of_their_mount_cut(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x/inner\n0::/\n");
    put("/proc/self/mountinfo",
        "30 20 0:26 /docker/x /sys/fs/cgroup/cpu,cpuacct ro shared:9 - cgroup cgroup "
        "rw,cpu,cpuacct\n"
        "31 20 0:27 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
    put("/sys/fs/cgroup/memory/memory.stat", "inactive_file 5\ntotal_inactive_file 104857600\n");
    struct cpu_limits l = read_limits();
    assert_true(l.cgroup_cpus == 1.0);
    assert_int_equal(l.n_threads, 1);
    assert_true(l.memory_limit_bytes == 1024 * MIB);
    assert_true(l.memory_available_bytes == 100 * MIB);
}

static void a_quota_above_the_affinity_changes_nothing(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/cpu.max", "409600000 100000\n");
    struct cpu_limits l = read_limits();
    assert_int_equal(l.n_threads, l.n_affinity);
}

static void one_thread_of_each_core_comes_before_its_siblings(void **state)
{
    (void)state;
    struct cpu_limits l = read_limits();
    if (l.n_affinity < 2) {
        skip();
    }
    char path[128], list[64];
    int a = l.cpu_ids[0], b = l.cpu_ids[1];
    snprintf(list, sizeof list, "%d,%d\n", a, b);
    int siblings[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                 siblings[i]);
        put(path, list);
    }
    l = read_limits();
    assert_int_equal(l.cpu_ids[0], a);
    assert_int_equal(l.cpu_ids[l.n_affinity - 1], b);
}

static void a_missing_meminfo_is_an_error_that_names_it(void **state)
{
    (void)state;
    struct cpu_limits out;
    struct err e;
    char path[300];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    unlink(path);
    assert_int_equal(cpu_limits_read_at(&out, root, &e), ERR_IO);
    assert_non_null(strstr(e.text, "meminfo"));
}

static void the_real_machine_has_threads_and_memory(void **state)
{
    (void)state;
    struct cpu_limits l;
    assert_int_equal(cpu_limits_read(&l, NULL), 0);
    assert_true(l.n_threads >= 1 && l.n_threads <= l.n_affinity);
    assert_true(l.memory_available_bytes > 0);
    assert_true(l.memory_available_bytes <= l.memory_limit_bytes);
    assert_true(l.memory_limit_bytes <= l.host_memory_bytes);
}

static void big_memory_is_zero_and_page_aligned(void **state)
{
    (void)state;
    const size_t sizes[] = {1, 4096, 3 * MIB + 5, 64 * MIB};
    for (size_t i = 0; i < 4; i++) {
        unsigned char *p = cpu_big_alloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 4096, 0);
        for (size_t j = 0; j < sizes[i]; j += 4096) {
            assert_int_equal(p[j], 0);
        }
        p[sizes[i] - 1] = 1;
        cpu_big_free(p, sizes[i]);
    }
    assert_null(cpu_big_alloc(0));
    assert_null(cpu_big_alloc(SIZE_MAX / 4));
    cpu_big_free(NULL, 5);
}

#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ROOT(without_a_cgroup_the_host_is_the_limit),
        WITH_ROOT(version_2_limits_of_every_ancestor_bind),
        WITH_ROOT(half_a_cpu_still_gives_one_thread),
        WITH_ROOT(version_1_trees_are_read_with_the_root_of_their_mount_cut),
        WITH_ROOT(a_quota_above_the_affinity_changes_nothing),
        WITH_ROOT(one_thread_of_each_core_comes_before_its_siblings),
        WITH_ROOT(a_missing_meminfo_is_an_error_that_names_it),
        cmocka_unit_test(the_real_machine_has_threads_and_memory),
        cmocka_unit_test(big_memory_is_zero_and_page_aligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
