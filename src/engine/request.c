/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of the engine: requests in, events out. Both are single objects that move from
 * thread to thread; whoever holds one frees it. */
#include "engine/engine.h"

#include "text/grammar.h"

#include <stdlib.h>

struct engine_request *engine_request_new(void)
{
    struct engine_request *r = calloc(1, sizeof *r);
    if (r) {
        arena_init(&r->arena, 0);
        r->think_end = -1;
        r->think_budget = -1;
        sampling_params_init(&r->params);
    }
    return r;
}

void engine_request_free(struct engine_request *r)
{
    if (r) {
        grammar_unref(r->grammar);
        arena_fini(&r->arena);
        free(r);
    }
}

void engine_event_free(struct engine_event *ev)
{
    if (ev) {
        arena_fini(&ev->arena);
        free(ev);
    }
}

const char *finish_reason_name(enum finish_reason r)
{
    switch (r) {
    case FINISH_STOP:
        return "stop";
    case FINISH_LENGTH:
        return "length";
    case FINISH_ABORT:
        return "abort";
    case FINISH_ERROR:
        return "error";
    case FINISH_REPETITION:
        return "repetition";
    case FINISH_NONE:
        break;
    }
    return NULL;
}
