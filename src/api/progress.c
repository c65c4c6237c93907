/* SPDX-License-Identifier: Apache-2.0 */
/* Tells a streaming client that asked for it (stream_options.include_progress) where its request is
 * before the first token: how many requests are in front of it, then how much of its prompt is
 * computed. Chunks without choices, so that a client that doesn't know them passes over them; only
 * when something changed and at most every PROGRESS_MS, so that a short wait has none.
 *
 * The engine writes one number a request, when it schedules the next tokens of its prompt
 * (engine_request.progress); everything else is known here. Owner: the net thread. */
#include "api/gen.h"

#include <stdlib.h>
#include <string.h>

enum { AHEAD, ALL, COMPUTED };

int progress_is_wanted(const struct gen *g)
{
    return g->f.stream && g->f.include_progress && !g->f.sp.use_beam_search &&
           g->dialect->usage_chunk && !g->begun && g->x && !g->failed;
}

static int is_waiting(struct gen_prompt *p)
{
    return p->queued && atomic_load_explicit(&p->n_computed, memory_order_relaxed) < 0;
}

static int by_id(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The ids of all prompts that wait, in the order of their arrival: once a tick, or many who wait would
 * each walk over all others. */
static void list_waiting(const struct server *s, struct buf *ids)
{
    for (const struct gen *g = s->gens; g; g = g->next) {
        /* without samples it may still be the parsing thread's */
        for (int i = 0; g->n_samples > 0 && i < g->n_prompts; i++) {
            if (is_waiting(&g->prompts[i])) {
                buf_append(ids, &g->prompts[i].request_id, sizeof(uint64_t));
            }
        }
    }
    if (ids->len > 0) {
        qsort(ids->data, ids->len / sizeof(uint64_t), sizeof(uint64_t), by_id);
    }
}

/* Place in the queue, 1 is next. Requests of a higher priority may still overtake. */
static int place(const struct buf *ids, uint64_t id)
{
    const uint64_t *list = (const void *)ids->data;
    size_t low = 0, high = ids->len / sizeof *list;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (list[middle] < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return (int)low + 1;
}

static void look(struct gen *g, const struct buf *waiting, int now[3])
{
    now[AHEAD] = now[ALL] = now[COMPUTED] = 0;
    for (int i = 0; i < g->n_prompts; i++) {
        struct gen_prompt *p = &g->prompts[i];
        int computed = atomic_load_explicit(&p->n_computed, memory_order_relaxed);
        now[ALL] += p->n;
        now[COMPUTED] += !p->queued ? p->n : computed > 0 ? computed : 0;
        if (now[AHEAD] == 0 && is_waiting(p)) {
            now[AHEAD] = place(waiting, p->request_id);
        }
    }
}

static void tell(struct gen *g, const int now[3])
{
    struct buf b;
    struct json_writer w;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    gen_write_head(g, &w, g->dialect->chat ? "chat.completion.chunk" : "text_completion");
    json_w_key(&w, "choices");
    json_w_array(&w);
    json_w_array_end(&w);
    json_w_key(&w, "progress");
    json_w_object(&w);
    json_w_kint(&w, "queue_position", now[AHEAD]);
    json_w_kint(&w, "prompt_tokens", now[ALL]);
    json_w_kint(&w, "computed_tokens", now[COMPUTED]);
    json_w_object_end(&w);
    json_w_object_end(&w);
    gen_begin_stream(g);
    gen_send(g, &b);
    buf_fini(&b);
}

int progress_tick(struct server *s)
{
    struct buf waiting;
    int n = 0;
    buf_init(&waiting);
    for (struct gen *g = s->gens; g; g = g->next) {
        int now[3];
        if (g->n_samples == 0 || !progress_is_wanted(g)) {
            continue;
        }
        if (n++ == 0) {
            list_waiting(s, &waiting);
        }
        look(g, &waiting, now);
        if (memcmp(now, g->last_progress, sizeof now) != 0) {
            memcpy(g->last_progress, now, sizeof now);
            tell(g, now);
        }
    }
    buf_fini(&waiting);
    return n;
}
