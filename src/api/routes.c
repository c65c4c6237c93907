/* SPDX-License-Identifier: Apache-2.0 */
/* The table of routes. Where is endpoint X? Here, then in the file of its handler. */
#include "api/state.h"

const struct route server_routes[] = {
    {"/health", M_GET | M_HEAD, ROUTE_OPEN | ROUTE_UNCOUNTED, health_handle},
    {"/ping", M_GET | M_HEAD | M_POST, ROUTE_OPEN | ROUTE_UNCOUNTED, health_handle},
    {"/version", M_GET | M_HEAD, ROUTE_UNCOUNTED, version_handle},
    {"/load", M_GET | M_HEAD, ROUTE_UNCOUNTED, load_handle},
    {"/metrics", M_GET | M_HEAD, ROUTE_UNCOUNTED, metrics_handle},
    {"/v1/models", M_GET | M_HEAD, ROUTE_MODEL, models_handle},
    {"/v1/completions", M_POST, ROUTE_MODEL | ROUTE_JSON, completions_handle},
    {"/v1/chat/completions", M_POST, ROUTE_MODEL | ROUTE_JSON, chat_handle},
    {"/invocations", M_POST, ROUTE_MODEL | ROUTE_JSON, invocations_handle},
    {"/tokenize", M_POST, ROUTE_MODEL | ROUTE_JSON, tokenize_handle},
    {"/detokenize", M_POST, ROUTE_MODEL | ROUTE_JSON, detokenize_handle},
};
const int server_n_routes = (int)(sizeof server_routes / sizeof server_routes[0]);

int route_enabled(const struct server_options *o, const struct route *r)
{
    return !((r->flags & ROUTE_DEV) && !o->dev_mode) &&
           !((r->flags & ROUTE_TOKENIZER_INFO) && !o->enable_tokenizer_info_endpoint) &&
           !((r->flags & ROUTE_DOCS) && o->disable_docs);
}
