/* SPDX-License-Identifier: Apache-2.0 */
/* Worker pool: the caller of cpu_pool_run is worker 0, the pool owns workers 1..n-1. Workers spin
 * briefly, then sleep. Every thread that computes is in the numeric mode of cpu_set_numeric_mode
 * (the pool's own threads set it; cpu_pool_run sets it for the caller and restores what was there).
 */
#ifndef TERN_CPU_POOL_H
#define TERN_CPU_POOL_H

#include "base/err.h"

struct cpu_pool;
typedef void cpu_task(void *arg, int worker, int n_workers);

/* cpu_ids: one CPU per worker to bind to (NULL: no binding). Binding that the OS refuses is not an
 * error. Worker 0 is bound too: a thread's first cpu_pool_run binds that thread to cpu_ids[0], for
 * good. */
int cpu_pool_open(struct cpu_pool **out, int n_workers, const int *cpu_ids, struct err *e);
void cpu_pool_close(struct cpu_pool *p);
int cpu_pool_size(const struct cpu_pool *p);
void cpu_pool_run(struct cpu_pool *p, cpu_task *task,
                  void *arg);                          /* returns when every worker has returned */
void cpu_pool_barrier(struct cpu_pool *p, int worker); /* inside a task: all workers meet here */
/* Lets the calling thread, which may have inherited the place of a worker, run on all CPUs that the
 * workers are bound to. */
void cpu_pool_roam(const struct cpu_pool *p);

/* Even split of n items in units of `unit`: items [*begin, *end) of worker w. */
void cpu_split(int n, int unit, int w, int n_workers, int *begin, int *end);

#endif
