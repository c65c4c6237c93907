/* SPDX-License-Identifier: Apache-2.0 */
/* Bucket bounds and what a finished sample adds to the histograms.
 *
 * Sums must agree whatever happens to a request: prompt_tokens equals the sum of prompt_len, and
 * generation_tokens the sum of generation_len, as soon as nothing runs. Therefore aborted samples
 * are observed like finished ones; only intervals whose end was never reached are left out. */
#include "engine/stats.h"

#include <string.h>

static const double ttft_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                     1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double itl_bounds[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                    .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
static const double latency_bounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double step_tokens_bounds[] = {1,   8,    16,   32,   64,   128,  256,
                                            512, 1024, 2048, 4096, 8192, 16384};
static const double n_bounds[] = {1, 2, 5, 10, 20};
/* 1, 2, 5, 10, …: token counts stop at max_model_len. */
static const double decade_bounds[] = {1,    2,   5,   10,  20,  50,  100, 200, 500, 1000, 2000,
                                       5000, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6,  1e7};

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

const double *engine_hist_bounds(const char *name, int max_model_len, int *n)
{
    static const char *const latency[] = {"e2e", "queue", "inference", "prefill", "decode"};
    if (strcmp(name, "ttft") == 0) {
        *n = COUNT(ttft_bounds);
        return ttft_bounds;
    }
    if (strcmp(name, "itl") == 0 || strcmp(name, "tpot") == 0 ||
        strcmp(name, "step_seconds") == 0) {
        *n = COUNT(itl_bounds);
        return itl_bounds;
    }
    for (int i = 0; i < COUNT(latency); i++) {
        if (strcmp(name, latency[i]) == 0) {
            *n = COUNT(latency_bounds);
            return latency_bounds;
        }
    }
    if (strcmp(name, "step_tokens") == 0) {
        *n = COUNT(step_tokens_bounds);
        return step_tokens_bounds;
    }
    if (strcmp(name, "params_n") == 0) {
        *n = COUNT(n_bounds);
        return n_bounds;
    }
    *n = 0;
    while (*n < COUNT(decade_bounds) && decade_bounds[*n] <= max_model_len) {
        (*n)++;
    }
    return decade_bounds;
}

void stats_observe(struct engine_hist *h, const double *bounds, int n, double value)
{
    int i = 0;
    while (i < n && value > bounds[i]) {
        i++;
    }
    h->bucket[i]++;
    h->count++;
    h->sum += value;
}

static void look_up(struct stats_axis *a, const char *name, int max_model_len)
{
    const double *bounds = engine_hist_bounds(name, max_model_len, &a->n);
    memcpy(a->bound, bounds, (size_t)a->n * sizeof *bounds);
}

void stats_bounds_init(struct stats_bounds *b, int max_model_len)
{
    look_up(&b->ttft, "ttft", max_model_len);
    look_up(&b->itl, "itl", max_model_len);
    look_up(&b->latency, "e2e", max_model_len);
    look_up(&b->tokens, "prompt_len", max_model_len);
    look_up(&b->samples, "params_n", max_model_len);
    look_up(&b->step, "step_tokens", max_model_len);
}

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0.0;
}

static void observe(struct engine_hist *h, const struct stats_axis *a, double value)
{
    stats_observe(h, a->bound, a->n, value);
}

void stats_finish_sample(struct engine_stats *s, const struct stats_bounds *b,
                         const struct stats_sample *d)
{
    observe(&s->prompt_len, &b->tokens, d->n_prompt);
    observe(&s->generation_len, &b->tokens, d->n_out);
    observe(&s->prefill_kv_computed, &b->tokens, d->n_prompt - d->n_cached);
    observe(&s->e2e, &b->latency, seconds(d->arrival_ns, d->finish_ns));
    if (d->scheduled_ns) {
        observe(&s->queue, &b->latency, seconds(d->queued_ns, d->scheduled_ns));
    }
    if (d->first_token_ns) {
        double decode = seconds(d->first_token_ns, d->last_token_ns);
        observe(&s->prefill, &b->latency, seconds(d->scheduled_ns, d->first_token_ns));
        observe(&s->decode, &b->latency, decode);
        observe(&s->inference, &b->latency, seconds(d->scheduled_ns, d->last_token_ns));
        observe(&s->tpot, &b->itl, d->n_out > 1 ? decode / (d->n_out - 1) : 0.0);
    }
}
