/* SPDX-License-Identifier: Apache-2.0 */
/* Token masks of the rows of a step, made while the forward pass runs. Most masks are in their
 * grammar's cache; those that are not go to a thread of their own, and whoever samples finds them
 * there (or waits for the one that is being made: a grammar has one lock). */
#ifndef TERN_ENGINE_MASKS_H
#define TERN_ENGINE_MASKS_H

#include "base/err.h"

struct cpu_pool;
struct grammar;
struct masks;

/* pool: the compute workers, whose CPUs the thread may use; NULL: any. */
int masks_open(struct masks **out, int max_rows, const struct cpu_pool *pool, struct err *e);
void masks_close(struct masks *m);
/* One thread calls these. masks_want for each row whose grammar has a position, then masks_go, then
 * the forward pass, then masks_end: nothing that was wanted is touched after it returns. */
void masks_want(struct masks *m, struct grammar *g, int config);
void masks_go(struct masks *m);
void masks_end(struct masks *m);

#endif
