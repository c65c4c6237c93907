/* SPDX-License-Identifier: Apache-2.0 */
/* Worker pool.
 *
 * A decode step of a small model has more than a hundred phases of some 100 µs, so waking workers
 * through the kernel each time would cost a tenth of the step. A worker therefore watches a
 * generation counter for SPIN_NS before it sleeps on it with a futex; so does the caller on the
 * count of finished workers, and everyone at a barrier. A waker makes the system call only if
 * someone sleeps (`sleepers` is raised before the last check of the word, and both sides use
 * sequentially consistent operations, so a wake-up can't be lost).
 *
 * With more workers than CPUs a spinning worker holds the CPU that the awaited one needs: then
 * nobody spins, everyone sleeps at once.
 *
 * Owner: the one thread that calls cpu_pool_run; the words below are the only state shared with
 * workers. */
#include "cpu/pool.h"
#include "base/clock.h"
#include "cpu/cpu.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_NS       40000u
#define PAUSES_A_LOOK 32
#define CACHE_LINE    64

/* A word that threads wait on until it differs from a value they saw. */
struct gate {
    _Alignas(CACHE_LINE) _Atomic uint32_t word;
    _Atomic uint32_t sleepers;
};

struct worker {
    struct cpu_pool *pool;
    pthread_t thread;
    int index, cpu; /* cpu: to bind to, -1 = none */
};

struct cpu_pool {
    struct gate generation; /* +1 per run, and at close */
    struct gate n_busy;     /* workers 1..n-1 still in the task */
    struct gate phase;      /* +1 per completed barrier */
    _Alignas(CACHE_LINE) _Atomic uint32_t n_arrived;
    _Alignas(CACHE_LINE) cpu_task *task; /* written before generation rises, NULL: leave */
    void *arg;
    int n_workers, n_started;
    uint64_t spin_ns;
    int has_caller;
    pthread_t caller; /* the thread bound as worker 0 */
    struct worker workers[];
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

static uint32_t gate_wait(struct gate *g, uint32_t seen, uint64_t spin_ns)
{
    uint32_t now = atomic_load_explicit(&g->word, memory_order_acquire);
    if (now != seen) {
        return now;
    }
    if (spin_ns) {
        uint64_t start = clock_now_ns();
        do {
            for (int i = 0; i < PAUSES_A_LOOK; i++) {
                relax();
                now = atomic_load_explicit(&g->word, memory_order_acquire);
                if (now != seen) {
                    return now;
                }
            }
        } while (clock_now_ns() - start < spin_ns);
    }
    atomic_fetch_add(&g->sleepers, 1);
    while ((now = atomic_load(&g->word)) == seen) {
        syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    }
    atomic_fetch_sub(&g->sleepers, 1);
    return now;
}

static void gate_wake(struct gate *g)
{
    if (atomic_load(&g->sleepers)) {
        syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

static void bind_self(int cpu)
{
    if (cpu < 0) {
        return;
    }
    size_t n_bytes = CPU_ALLOC_SIZE(cpu + 1);
    cpu_set_t *set = CPU_ALLOC(cpu + 1);
    if (set) {
        CPU_ZERO_S(n_bytes, set);
        CPU_SET_S((size_t)cpu, n_bytes, set);
        (void)sched_setaffinity(0, n_bytes, set);
        CPU_FREE(set);
    }
}

void cpu_pool_roam(const struct cpu_pool *p)
{
    int top = -1;
    for (int i = 0; i < p->n_workers; i++) {
        top = p->workers[i].cpu > top ? p->workers[i].cpu : top;
    }
    size_t n_bytes = CPU_ALLOC_SIZE(top + 1);
    cpu_set_t *set = top >= 0 ? CPU_ALLOC(top + 1) : NULL;
    if (set) {
        CPU_ZERO_S(n_bytes, set);
        for (int i = 0; i < p->n_workers; i++) {
            if (p->workers[i].cpu >= 0) {
                CPU_SET_S((size_t)p->workers[i].cpu, n_bytes, set);
            }
        }
        (void)sched_setaffinity(0, n_bytes, set);
        CPU_FREE(set);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct cpu_pool *p = w->pool;
    uint32_t generation = 0;
    char name[16];
    snprintf(name, sizeof name, "worker-%d", w->index);
    pthread_setname_np(pthread_self(), name);
    bind_self(w->cpu);
    cpu_set_numeric_mode();
    for (;;) {
        /* A run ends only when all workers are done, so a worker never misses a generation. */
        generation = gate_wait(&p->generation, generation, p->spin_ns);
        if (!p->task) {
            return NULL;
        }
        p->task(p->arg, w->index, p->n_workers);
        if (atomic_fetch_sub(&p->n_busy.word, 1) == 1) {
            gate_wake(&p->n_busy);
        }
    }
}

/* How many CPUs we may run on: the mask of this thread, or what the workers will be bound to. */
static int count_cpus(int n_workers, const int *cpu_ids)
{
    int n = 0;
    if (cpu_ids) {
        for (int i = 0; i < n_workers; i++) {
            int seen = 0;
            for (int j = 0; j < i; j++) {
                seen |= cpu_ids[j] == cpu_ids[i];
            }
            n += !seen;
        }
        return n;
    }
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : INT_MAX;
}

int cpu_pool_open(struct cpu_pool **out, int n_workers, const int *cpu_ids, struct err *e)
{
    *out = NULL;
    if (n_workers < 1 || n_workers > 4096) {
        return err_set(e, ERR_INVALID, "worker pool: %d workers, expected 1 to 4096", n_workers);
    }
    size_t n_bytes = sizeof(struct cpu_pool) + (size_t)n_workers * sizeof(struct worker);
    n_bytes = (n_bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    struct cpu_pool *p = aligned_alloc(CACHE_LINE, n_bytes);
    if (!p) {
        return err_set(e, ERR_NOMEM, "worker pool: out of memory");
    }
    memset(p, 0, n_bytes);
    p->n_workers = n_workers;
    p->n_started = 1;
    p->spin_ns = count_cpus(n_workers, cpu_ids) < n_workers ? 0 : SPIN_NS;
    for (int i = 0; i < n_workers; i++) {
        p->workers[i].pool = p;
        p->workers[i].index = i;
        p->workers[i].cpu = cpu_ids ? cpu_ids[i] : -1;
    }
    for (int i = 1; i < n_workers; i++) {
        int rc = pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
        if (rc) {
            cpu_pool_close(p);
            return err_set(e, ERR_NOMEM, "worker pool: thread %d of %d: %s", i + 1, n_workers,
                           strerror(rc));
        }
        p->n_started++;
    }
    *out = p;
    return 0;
}

void cpu_pool_close(struct cpu_pool *p)
{
    if (!p) {
        return;
    }
    p->task = NULL;
    atomic_fetch_add(&p->generation.word, 1);
    gate_wake(&p->generation);
    for (int i = 1; i < p->n_started; i++) {
        pthread_join(p->workers[i].thread, NULL);
    }
    free(p);
}

int cpu_pool_size(const struct cpu_pool *p)
{
    return p->n_workers;
}

void cpu_pool_run(struct cpu_pool *p, cpu_task *task, void *arg)
{
    if (p->workers[0].cpu >= 0 && (!p->has_caller || !pthread_equal(p->caller, pthread_self()))) {
        p->has_caller = 1;
        p->caller = pthread_self();
        bind_self(p->workers[0].cpu);
    }
    uint64_t mode = cpu_numeric_mode_save();
    cpu_set_numeric_mode();
    if (p->n_workers > 1) {
        p->task = task;
        p->arg = arg;
        atomic_store(&p->n_busy.word, (uint32_t)p->n_workers - 1);
        atomic_fetch_add(&p->generation.word, 1);
        gate_wake(&p->generation);
    }
    task(arg, 0, p->n_workers);
    uint32_t busy = atomic_load(&p->n_busy.word);
    while (busy) {
        busy = gate_wait(&p->n_busy, busy, p->spin_ns);
    }
    cpu_numeric_mode_restore(mode);
}

void cpu_pool_barrier(struct cpu_pool *p, int worker)
{
    (void)worker;
    if (p->n_workers == 1) {
        return;
    }
    uint32_t phase = atomic_load(&p->phase.word);
    if (atomic_fetch_add(&p->n_arrived, 1) + 1 == (uint32_t)p->n_workers) {
        atomic_store(&p->n_arrived, 0);
        atomic_fetch_add(&p->phase.word, 1);
        gate_wake(&p->phase);
    } else {
        gate_wait(&p->phase, phase, p->spin_ns);
    }
}

void cpu_split(int n, int unit, int w, int n_workers, int *begin, int *end)
{
    int64_t units = ((int64_t)n + unit - 1) / unit;
    int64_t b = units * w / n_workers * unit, t = units * (w + 1) / n_workers * unit;
    *begin = (int)(b < n ? b : n);
    *end = (int)(t < n ? t : n);
}
