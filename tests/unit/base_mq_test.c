/* SPDX-License-Identifier: Apache-2.0 */
/* The message queue: order, readiness, and no lost wake-up under load. */
#include "base/mq.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"

#define N_PRODUCERS 4
#define N_MESSAGES  20000

struct message {
    struct mq_node node; /* first: a node's address is its message's */
    int producer, number;
};

struct producer {
    struct mq *q;
    int id;
};

static void *produce(void *arg)
{
    struct producer *p = arg;
    for (int i = 0; i < N_MESSAGES; i++) {
        struct message *m = malloc(sizeof *m);
        if (!m) {
            abort();
        }
        m->producer = p->id;
        m->number = i;
        mq_push(p->q, &m->node);
    }
    return NULL;
}

static int readable(struct mq *q)
{
    struct pollfd p = {.fd = mq_fd(q), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void messages_of_each_producer_arrive_once_and_in_order(void **state)
{
    (void)state;
    struct mq *q;
    assert_int_equal(mq_new(&q, NULL), 0);
    pthread_t threads[N_PRODUCERS];
    struct producer producers[N_PRODUCERS];
    for (int i = 0; i < N_PRODUCERS; i++) {
        producers[i] = (struct producer){.q = q, .id = i};
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
    }
    int next[N_PRODUCERS] = {0};
    for (int total = 0; total < N_PRODUCERS * N_MESSAGES;) {
        assert_int_equal(mq_wait(q, 20000), 1); /* a lost wake-up would time out here */
        struct mq_node *n = mq_pop_all(q);
        while (n) {
            struct message *m = (struct message *)(void *)n;
            n = n->next;
            assert_int_equal(m->number, next[m->producer]);
            next[m->producer]++;
            total++;
            free(m);
        }
    }
    for (int i = 0; i < N_PRODUCERS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_null(mq_pop_all(q));
    mq_free(q);
}

static void fd_is_readable_exactly_while_something_is_queued(void **state)
{
    (void)state;
    struct mq *q;
    assert_int_equal(mq_new(&q, NULL), 0);
    struct mq_node a, b;
    assert_false(readable(q));
    mq_push(q, &a);
    assert_true(readable(q));
    mq_push(q, &b);
    assert_true(readable(q));
    assert_ptr_equal(mq_pop_all(q), &a);
    assert_ptr_equal(a.next, &b);
    assert_null(b.next);
    assert_false(readable(q));
    mq_push(q, &a);
    assert_true(readable(q));
    mq_free(q);
    mq_free(NULL);
}

static void wait_times_out_on_an_empty_queue(void **state)
{
    (void)state;
    struct mq *q;
    assert_int_equal(mq_new(&q, NULL), 0);
    assert_int_equal(mq_wait(q, 0), 0);
    uint64_t start = clock_now_ns();
    assert_int_equal(mq_wait(q, 30), 0);
    assert_true(clock_now_ns() - start >= 29000000u);
    mq_free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_each_producer_arrive_once_and_in_order),
        cmocka_unit_test(fd_is_readable_exactly_while_something_is_queued),
        cmocka_unit_test(wait_times_out_on_an_empty_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
