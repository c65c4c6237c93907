/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "cpu/cpu.h"
#include "cpu/pool.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define MAX_WORKERS 8

struct shared {
    struct cpu_pool *pool;
    _Atomic int hits[MAX_WORKERS];
    int value[MAX_WORKERS];
    _Atomic int n_wrong;
    uint64_t mode[MAX_WORKERS];
};

static void count_task(void *arg, int worker, int n_workers)
{
    struct shared *s = arg;
    assert_true(worker < n_workers);
    atomic_fetch_add(&s->hits[worker], 1);
    s->mode[worker] = cpu_numeric_mode_save();
}

/* Each worker writes its round, meets the others, and must see everybody's value of this round. */
static void barrier_task(void *arg, int worker, int n_workers)
{
    struct shared *s = arg;
    for (int round = 1; round <= 50; round++) {
        s->value[worker] = round;
        cpu_pool_barrier(s->pool, worker);
        for (int w = 0; w < n_workers; w++) {
            if (s->value[w] != round) {
                atomic_fetch_add(&s->n_wrong, 1);
            }
        }
        cpu_pool_barrier(s->pool, worker);
    }
}

static void every_worker_runs_each_task_once(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) {
        struct shared s;
        memset(&s, 0, sizeof s);
        assert_int_equal(cpu_pool_open(&s.pool, n, NULL, NULL), 0);
        assert_int_equal(cpu_pool_size(s.pool), n);
        for (int i = 0; i < 200; i++) {
            cpu_pool_run(s.pool, count_task, &s);
            for (int w = 0; w < MAX_WORKERS; w++) {
                assert_int_equal(atomic_load(&s.hits[w]), w < n ? i + 1 : 0);
            }
        }
        cpu_pool_close(s.pool);
    }
}

static void workers_that_slept_wake_up_for_the_next_task(void **state)
{
    (void)state;
    struct shared s;
    memset(&s, 0, sizeof s);
    assert_int_equal(cpu_pool_open(&s.pool, 3, NULL, NULL), 0);
    for (int i = 0; i < 20; i++) {
        struct timespec t = {0, 2000000};
        nanosleep(&t, NULL);
        cpu_pool_run(s.pool, count_task, &s);
        assert_int_equal(atomic_load(&s.hits[2]), i + 1);
    }
    cpu_pool_close(s.pool);
}

static void after_a_barrier_all_writes_before_it_are_seen(void **state)
{
    (void)state;
    for (int n = 1; n <= MAX_WORKERS; n += n < 4 ? 1 : 4) {
        struct shared s;
        memset(&s, 0, sizeof s);
        assert_int_equal(cpu_pool_open(&s.pool, n, NULL, NULL), 0);
        for (int i = 0; i < 5; i++) {
            cpu_pool_run(s.pool, barrier_task, &s);
        }
        assert_int_equal(atomic_load(&s.n_wrong), 0);
        cpu_pool_close(s.pool);
    }
}

static void more_workers_than_cpus_finish_in_reasonable_time(void **state)
{
    (void)state;
    struct cpu_limits limits;
    struct shared s;
    memset(&s, 0, sizeof s);
    assert_int_equal(cpu_limits_read(&limits, NULL), 0);
    int n = limits.n_affinity + 2 < MAX_WORKERS ? limits.n_affinity + 2 : MAX_WORKERS;
    assert_int_equal(cpu_pool_open(&s.pool, n, NULL, NULL), 0);
    uint64_t start = clock_now_ns();
    for (int i = 0; i < 20; i++) {
        cpu_pool_run(s.pool, barrier_task, &s); /* 2000 barriers */
    }
    assert_int_equal(atomic_load(&s.n_wrong), 0);
    assert_true(clock_now_ns() - start < 10000000000u);
    cpu_pool_close(s.pool);
}

static void tasks_run_in_the_numeric_mode_and_the_caller_gets_its_own_back(void **state)
{
    (void)state;
    struct shared s;
    memset(&s, 0, sizeof s);
    uint64_t before = cpu_numeric_mode_save();
    assert_int_equal(cpu_pool_open(&s.pool, 2, NULL, NULL), 0);
    cpu_pool_run(s.pool, count_task, &s);
    assert_true(cpu_numeric_mode_save() == before);
    cpu_set_numeric_mode();
    uint64_t want = cpu_numeric_mode_save();
    cpu_numeric_mode_restore(before);
    assert_true(want != before);
    assert_true(s.mode[0] == want);
    assert_true(s.mode[1] == want);
    cpu_pool_close(s.pool);
}

static void a_pool_of_no_workers_is_refused_and_closing_null_is_fine(void **state)
{
    (void)state;
    struct cpu_pool *p;
    struct err e;
    assert_int_equal(cpu_pool_open(&p, 0, NULL, &e), ERR_INVALID);
    assert_null(p);
    cpu_pool_close(NULL);
}

static void split_covers_all_items_in_whole_units(void **state)
{
    (void)state;
    for (int n = 0; n < 200; n += 7) {
        for (int n_workers = 1; n_workers <= 5; n_workers++) {
            int at = 0, b, e;
            for (int w = 0; w < n_workers; w++) {
                cpu_split(n, 16, w, n_workers, &b, &e);
                assert_int_equal(b, at);
                assert_true(e >= b);
                assert_true(b % 16 == 0 || b == n);
                at = e;
            }
            assert_int_equal(at, n);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_worker_runs_each_task_once),
        cmocka_unit_test(workers_that_slept_wake_up_for_the_next_task),
        cmocka_unit_test(after_a_barrier_all_writes_before_it_are_seen),
        cmocka_unit_test(more_workers_than_cpus_finish_in_reasonable_time),
        cmocka_unit_test(tasks_run_in_the_numeric_mode_and_the_caller_gets_its_own_back),
        cmocka_unit_test(a_pool_of_no_workers_is_refused_and_closing_null_is_fine),
        cmocka_unit_test(split_covers_all_items_in_whole_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
