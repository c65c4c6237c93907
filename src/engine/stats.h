/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms of the engine's statistics: bucket bounds are vLLM's. Owner: the engine thread. */
#ifndef TERN_ENGINE_STATS_H
#define TERN_ENGINE_STATS_H

#include "engine/engine.h"

/* Adds one observation; bounds from engine_hist_bounds. */
void stats_observe(struct engine_hist *h, const double *bounds, int n_bounds, double value);

/* The bounds, looked up once. */
struct stats_bounds {
    struct stats_axis {
        double bound[ENGINE_HIST_BUCKETS];
        int n;
    } ttft, itl, latency, tokens, samples, step;
};
void stats_bounds_init(struct stats_bounds *b, int max_model_len);

/* What a finished sample adds. Times are clock_now_ns; 0: never reached. */
struct stats_sample {
    int n_prompt, n_cached, n_out;
    uint64_t arrival_ns, queued_ns, scheduled_ns, first_token_ns, last_token_ns, finish_ns;
};
void stats_finish_sample(struct engine_stats *s, const struct stats_bounds *b,
                         const struct stats_sample *d);

#endif
