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
    {"/v1/chat/completions/batch", M_POST, ROUTE_MODEL | ROUTE_JSON, chat_batch_handle},
    {"/v1/completions/render", M_POST, ROUTE_MODEL | ROUTE_JSON, render_completion_handle},
    {"/v1/chat/completions/render", M_POST, ROUTE_MODEL | ROUTE_JSON, render_chat_handle},
    {"/inference/v1/generate", M_POST, ROUTE_MODEL | ROUTE_JSON, inference_handle},
    {"/generate", M_POST, ROUTE_MODEL, legacy_handle},
    {"/v1/responses", M_POST, ROUTE_MODEL | ROUTE_JSON, responses_handle},
    {"/v1/responses/{response_id}", M_GET | M_HEAD, ROUTE_MODEL, responses_get_handle},
    {"/v1/responses/{response_id}/cancel", M_POST, ROUTE_MODEL, responses_cancel_handle},
    {"/tokenize", M_POST, ROUTE_MODEL | ROUTE_JSON, tokenize_handle},
    {"/detokenize", M_POST, ROUTE_MODEL | ROUTE_JSON, detokenize_handle},
    {"/openapi.json", M_GET | M_HEAD, ROUTE_MODEL | ROUTE_DOCS, openapi_handle},
    {"/tokenizer_info", M_GET | M_HEAD, ROUTE_MODEL | ROUTE_TOKENIZER_INFO, tokenizer_info_handle},

    {"/reset_prefix_cache", M_POST, ROUTE_MODEL | ROUTE_DEV, reset_prefix_cache_handle},
    {"/reset_mm_cache", M_POST, ROUTE_MODEL | ROUTE_DEV, reset_other_cache_handle},
    {"/reset_encoder_cache", M_POST, ROUTE_MODEL | ROUTE_DEV, reset_other_cache_handle},
    {"/sleep", M_POST, ROUTE_MODEL | ROUTE_DEV, sleep_handle},
    {"/wake_up", M_POST, ROUTE_MODEL | ROUTE_DEV, wake_up_handle},
    {"/is_sleeping", M_GET | M_HEAD, ROUTE_MODEL | ROUTE_DEV, is_sleeping_handle},
    {"/server_info", M_GET | M_HEAD, ROUTE_MODEL | ROUTE_DEV, server_info_handle},

    {"/", M_GET | M_HEAD, ROUTE_PAGE | ROUTE_OPEN | ROUTE_UNCOUNTED, page_chat_handle},
    {"/dashboard", M_GET | M_HEAD, ROUTE_PAGE | ROUTE_OPEN | ROUTE_UNCOUNTED,
     page_dashboard_handle},
    {"/assets/{name}", M_GET | M_HEAD, ROUTE_PAGE | ROUTE_OPEN | ROUTE_UNCOUNTED,
     page_asset_handle},

    /* Ollama's clients send bodies without a content type. */
    {"/api/version", M_GET | M_HEAD, ROUTE_UNCOUNTED, ollama_version_handle},
    {"/api/tags", M_GET | M_HEAD, ROUTE_MODEL, ollama_tags_handle},
    {"/api/ps", M_GET | M_HEAD, ROUTE_MODEL, ollama_ps_handle},
    {"/api/show", M_POST, ROUTE_MODEL, ollama_show_handle},
    {"/api/chat", M_POST, ROUTE_MODEL, ollama_chat_handle},
    {"/api/generate", M_POST, ROUTE_MODEL, ollama_generate_handle},
};
const int server_n_routes = (int)(sizeof server_routes / sizeof server_routes[0]);

int route_enabled(const struct server_options *o, const struct route *r)
{
    return !((r->flags & ROUTE_DEV) && !o->dev_mode) &&
           !((r->flags & ROUTE_TOKENIZER_INFO) && !o->enable_tokenizer_info_endpoint) &&
           !((r->flags & ROUTE_DOCS) && o->disable_docs);
}
