/* SPDX-License-Identifier: Apache-2.0 */
/* See masks.h. The list is the caller's until masks_go, then both sides take from it under the lock
 * until it is empty; a request and its grammar live as long as their step. The thread starts with
 * the first mask that is missing, so that a server without structured output has none. */
#include "engine/masks.h"

#include "cpu/pool.h"
#include "text/grammar.h"

#include <pthread.h>
#include <stdlib.h>

struct wanted {
    struct grammar *grammar;
    int config;
};

struct masks {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const struct cpu_pool *pool;
    pthread_t thread;
    int has_thread;
    struct wanted *list;
    int n, max, next; /* list[next .. n) is still to be made; next == n outside of a step */
    int is_busy, stopping;
};

static void *run(void *arg)
{
    struct masks *m = arg;
    if (m->pool != NULL) { /* not on the CPU that the engine thread, which starts this one, is on */
        cpu_pool_roam(m->pool);
    }
    pthread_mutex_lock(&m->lock);
    while (!m->stopping) {
        if (m->next == m->n) {
            pthread_cond_wait(&m->changed, &m->lock);
            continue;
        }
        struct wanted w = m->list[m->next++];
        m->is_busy = 1;
        pthread_mutex_unlock(&m->lock);
        grammar_prepare(w.grammar, w.config);
        pthread_mutex_lock(&m->lock);
        m->is_busy = 0;
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

int masks_open(struct masks **out, int max_rows, const struct cpu_pool *pool, struct err *e)
{
    struct masks *m = calloc(1, sizeof *m);
    *out = NULL;
    if (m == NULL || (m->list = calloc((size_t)max_rows, sizeof *m->list)) == NULL) {
        free(m);
        return err_set(e, ERR_NOMEM, "out of memory for the masks of a step");
    }
    m->max = max_rows;
    m->pool = pool;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    *out = m;
    return 0;
}

void masks_close(struct masks *m)
{
    if (m == NULL) {
        return;
    }
    pthread_mutex_lock(&m->lock);
    m->stopping = 1;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (m->has_thread) {
        pthread_join(m->thread, NULL);
    }
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m->list);
    free(m);
}

void masks_want(struct masks *m, struct grammar *g, int config)
{
    if (m->n < m->max && config >= 0 && !grammar_has_mask(g, config)) {
        pthread_mutex_lock(&m->lock);
        m->list[m->n++] = (struct wanted){g, config};
        m->next = m->n; /* nobody takes before masks_go */
        pthread_mutex_unlock(&m->lock);
    }
}

void masks_go(struct masks *m)
{
    if (m->n == 0) {
        return;
    }
    if (!m->has_thread) {
        m->has_thread = pthread_create(&m->thread, NULL, run, m) == 0;
    }
    pthread_mutex_lock(&m->lock);
    m->next = m->has_thread ? 0 : m->n; /* without a thread whoever samples makes them */
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

void masks_end(struct masks *m)
{
    if (m->n == 0) {
        return;
    }
    pthread_mutex_lock(&m->lock);
    m->next = m->n; /* what is left is made where it is needed, in parallel */
    while (m->is_busy) {
        pthread_cond_wait(&m->changed, &m->lock);
    }
    m->n = m->next = 0;
    pthread_mutex_unlock(&m->lock);
}
