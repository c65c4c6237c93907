/* SPDX-License-Identifier: Apache-2.0 */
/* Message queue between threads: many producers, one consumer, intrusive nodes, unbounded. A push
 * onto an empty queue makes `mq_fd` readable, so that an event loop can wait for it; mq_wait blocks
 * a plain thread. FIFO per producer. */
#ifndef TERN_BASE_MQ_H
#define TERN_BASE_MQ_H
#include "base/err.h"
#include <stdint.h>
struct mq;
struct mq_node {
    struct mq_node *next;
};
int mq_new(struct mq **out, struct err *e);
/* Nodes still queued are not freed: drain first. The consumer may free the queue as soon as it has
 * the last node that will ever come. */
void mq_free(struct mq *q);
void mq_push(struct mq *q, struct mq_node *n); /* never fails, never blocks for long */
struct mq_node *
mq_pop_all(struct mq *q);            /* whole list, oldest first; clears readiness; NULL if empty */
int mq_is_empty(const struct mq *q); /* a look without taking; cheap */
int mq_fd(const struct mq *q);       /* an eventfd, readable when the queue may be non-empty */
int mq_wait(struct mq *q, int timeout_ms); /* 1 non-empty, 0 timed out; -1 = forever */
#endif
