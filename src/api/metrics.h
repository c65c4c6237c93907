/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of the HTTP side and the text of /metrics. The engine keeps its own (engine_stats). */
#ifndef TERN_API_METRICS_H
#define TERN_API_METRICS_H

#include "base/buf.h"
#include <stdint.h>

#define METRICS_ROUTES  64
#define METRICS_METHODS 4 /* GET POST HEAD other */
#define METRICS_CLASSES 5 /* 1xx .. 5xx */
#define METRICS_HIGHR   22

struct metrics_hist {
    uint64_t bucket[4];
    uint64_t count;
    double sum;
}; /* .1 .5 1 +Inf */
struct metrics_summary {
    uint64_t count;
    double sum;
};
struct metrics {
    uint64_t requests[METRICS_ROUTES][METRICS_METHODS][METRICS_CLASSES];
    struct metrics_hist duration[METRICS_ROUTES][METRICS_METHODS];
    struct metrics_summary request_size[METRICS_ROUTES], response_size[METRICS_ROUTES];
    uint64_t highr[METRICS_HIGHR], highr_count;
    double highr_sum;
    uint64_t tool_call_parses; /* choices whose text went through the tool-call parser */
};
/* route: index into the route table, or METRICS_ROUTES - 1 for none of them. */
void metrics_http(struct metrics *m, int route, const char *method, int status, double seconds,
                  uint64_t request_bytes, uint64_t response_bytes);

#endif
