/* SPDX-License-Identifier: Apache-2.0 */
/* The message queue is a lock-free stack that producers push onto and the consumer takes whole and
 * turns round. Because nothing is ever popped singly, the stack has no ABA problem.
 *
 * Wake-ups: the producer whose push found the stack empty writes the eventfd after its push; the
 * consumer clears the eventfd before it takes the stack. Whatever the interleaving, a node that is
 * left on the stack is followed by a write that nobody has cleared. The price is a rare wake-up
 * with nothing to do. A producer does not touch a node after its push: the consumer may have freed
 * it. */
#include "base/mq.h"

#include "base/clock.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct mq {
    _Atomic(struct mq_node *) top; /* newest first */
    int fd;
    atomic_int n_pushing; /* producers that may still write to fd */
};

int mq_new(struct mq **out, struct err *e)
{
    *out = NULL;
    struct mq *q = malloc(sizeof *q);
    if (!q) {
        return err_set(e, ERR_NOMEM, "message queue: out of memory");
    }
    atomic_init(&q->top, NULL);
    atomic_init(&q->n_pushing, 0);
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->fd < 0) {
        int saved = errno;
        free(q);
        return err_set(e, ERR_IO, "message queue: eventfd: %s", strerror(saved));
    }
    *out = q;
    return 0;
}

void mq_free(struct mq *q)
{
    if (q) {
        /* the producer of the last node may not have rung yet, and its fd must not be another's */
        while (atomic_load_explicit(&q->n_pushing, memory_order_acquire) > 0) {
            sched_yield();
        }
        close(q->fd);
        free(q);
    }
}

void mq_push(struct mq *q, struct mq_node *n)
{
    atomic_fetch_add_explicit(&q->n_pushing, 1, memory_order_relaxed);
    struct mq_node *top = atomic_load_explicit(&q->top, memory_order_relaxed);
    do {
        n->next = top;
    } while (!atomic_compare_exchange_weak_explicit(&q->top, &top, n, memory_order_acq_rel,
                                                    memory_order_relaxed));
    if (!top) {
        uint64_t one = 1;
        while (write(q->fd, &one, sizeof one) < 0 && errno == EINTR) {
        }
    }
    atomic_fetch_sub_explicit(&q->n_pushing, 1, memory_order_release);
}

int mq_is_empty(const struct mq *q)
{
    return atomic_load_explicit(&q->top, memory_order_acquire) == NULL;
}

static void clear_ready(struct mq *q)
{
    uint64_t count;
    while (read(q->fd, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

struct mq_node *mq_pop_all(struct mq *q)
{
    clear_ready(q);
    struct mq_node *n = atomic_exchange_explicit(&q->top, NULL, memory_order_acq_rel);
    struct mq_node *oldest = NULL;
    while (n) {
        struct mq_node *next = n->next;
        n->next = oldest;
        oldest = n;
        n = next;
    }
    return oldest;
}

int mq_fd(const struct mq *q)
{
    return q->fd;
}

int mq_wait(struct mq *q, int timeout_ms)
{
    uint64_t start = clock_now_ns();
    for (;;) {
        if (atomic_load_explicit(&q->top, memory_order_acquire)) {
            return 1;
        }
        int left = timeout_ms;
        if (timeout_ms > 0) {
            uint64_t passed = (clock_now_ns() - start) / 1000000u;
            left = passed >= (uint64_t)timeout_ms ? 0 : timeout_ms - (int)passed;
        }
        struct pollfd p = {.fd = q->fd, .events = POLLIN};
        int n = poll(&p, 1, left);
        if (n > 0) {
            clear_ready(q); /* and look at the stack again */
        } else if (n == 0 && left == 0) {
            return atomic_load_explicit(&q->top, memory_order_acquire) != NULL;
        }
    }
}
