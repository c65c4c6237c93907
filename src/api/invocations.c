/* SPDX-License-Identifier: Apache-2.0 */
/* POST /invocations: the one route of hosting platforms that know no others. The body's shape says
 * what is meant: messages are a chat, a prompt is a completion; the answer is that route's own. */
#include "api/gen.h"

static int parse(struct gen *g, struct api_error *e)
{
    if (json_get(g->json, "messages")) {
        g->dialect = &chat_dialect;
    } else if (json_get(g->json, "prompt")) {
        g->dialect = &completions_dialect;
    } else {
        return api_fail(e, 400, TYPE_SCHEMA, NULL,
                        "Cannot find suitable handler for request. Expected a body with "
                        "'messages' or 'prompt'.");
    }
    return g->dialect->parse(g, e);
}

static const struct gen_dialect invocations_dialect = {.id_prefix = "", .parse = parse};

void invocations_handle(struct server *s, struct http_exchange *x)
{
    gen_start(s, x, &invocations_dialect);
}
