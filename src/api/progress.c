/* SPDX-License-Identifier: Apache-2.0 */
/* Tells a streaming client that asked for it (stream_options.include_progress) where its request is
 * before the first token: how many requests are in front of it, then how much of its prompt is
 * computed. Chunks without choices, so that a client that doesn't know them passes over them; only
 * when something changed and at most every PROGRESS_MS, so that a short wait has none.
 *
 * The engine writes one number a request, when it schedules the next tokens of its prompt
 * (engine_request.progress); everything else is known here. Owner: the net thread. */
#include "api/gen.h"

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

/* Place in the queue, 1 is next: what came earlier and waits too. Requests of a higher priority may
 * still overtake. */
static int place(const struct server *s, const struct gen_prompt *mine)
{
    int n = 1;
    for (const struct gen *g = s->gens; g; g = g->next) {
        /* without samples it may still be the parsing thread's */
        for (int i = 0; g->n_samples > 0 && i < g->n_prompts; i++) {
            n += g->prompts[i].request_id < mine->request_id && is_waiting(&g->prompts[i]);
        }
    }
    return n;
}

static void look(struct gen *g, int now[3])
{
    now[AHEAD] = now[ALL] = now[COMPUTED] = 0;
    for (int i = 0; i < g->n_prompts; i++) {
        struct gen_prompt *p = &g->prompts[i];
        int computed = atomic_load_explicit(&p->n_computed, memory_order_relaxed);
        now[ALL] += p->n;
        now[COMPUTED] += !p->queued ? p->n : computed > 0 ? computed : 0;
        if (now[AHEAD] == 0 && is_waiting(p)) {
            now[AHEAD] = place(g->server, p);
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
    int n = 0;
    for (struct gen *g = s->gens; g; g = g->next) {
        int now[3];
        if (g->n_samples == 0 || !progress_is_wanted(g)) {
            continue;
        }
        n++;
        look(g, now);
        if (memcmp(now, g->last_progress, sizeof now) != 0) {
            memcpy(g->last_progress, now, sizeof now);
            tell(g, now);
        }
    }
    return n;
}
