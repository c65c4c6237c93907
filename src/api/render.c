/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/completions/render and /v1/chat/completions/render: what a request would send to the
 * model, without running it. The answer is a request of /inference/v1/generate (for completions a
 * list, one a prompt) that gives the same tokens. */
#include "api/sparams.h"

#include <stdio.h>
#include <string.h>

static void write_request(const struct gen *g, const struct gen_prompt *p, const char *id,
                          struct json_writer *w, struct api_error *e)
{
    json_w_object(w);
    json_w_kstring(w, "request_id", id);
    json_w_key(w, "token_ids");
    json_w_array(w);
    for (int i = 0; i < p->n; i++) {
        json_w_int(w, p->ids[i]);
    }
    json_w_array_end(w);
    json_w_knull(w, "features");
    json_w_key(w, "sampling_params");
    sparams_write(g, p, w, e);
    json_w_key(w, "model");
    json_w_value(w, json_get(g->json, "model"));
    json_w_kbool(w, "stream", g->f.stream);
    json_w_key(w, "stream_options");
    json_w_value(w, g->f.stream ? json_get(g->json, "stream_options") : NULL);
    json_w_kstring(w, "cache_salt", g->f.cache_salt);
    json_w_kint(w, "priority", g->f.priority);
    json_w_knull(w, "kv_transfer_params");
    json_w_object_end(w);
}

/* A failure of writing would come too late for a status: it is looked for while parsing. */
static int try_writing(struct gen *g, struct api_error *e)
{
    struct buf b;
    struct json_writer w;
    const struct json *beam = json_get(g->json, "use_beam_search");
    if (json_type(beam) == JSON_BOOL && json_bool(beam)) {
        return api_fail_param(e, "use_beam_search", beam,
                              "Beam search is not supported by the render endpoint");
    }
    buf_init(&b);
    json_w_init(&w, &b);
    int rc = g->n_prompts > 0 ? sparams_write(g, &g->prompts[0], &w, e) : 0;
    buf_fini(&b);
    return rc;
}

static int parse_completion(struct gen *g, struct api_error *e)
{
    return completions_dialect.parse(g, e) < 0 ? -1 : try_writing(g, e);
}

static int parse_chat(struct gen *g, struct api_error *e)
{
    return chat_dialect.parse(g, e) < 0 ? -1 : try_writing(g, e);
}

static void body_list(struct gen *g, struct buf *out)
{
    struct json_writer w;
    struct api_error e = {0};
    json_w_init(&w, out);
    json_w_array(&w);
    for (int i = 0; i < g->n_prompts; i++) {
        char id[224];
        if (g->n_prompts > 1) {
            snprintf(id, sizeof id, "%s-%d", g->id, i);
        } else {
            snprintf(id, sizeof id, "%s", g->id);
        }
        write_request(g, &g->prompts[i], id, &w, &e);
    }
    json_w_array_end(&w);
}

static void body_one(struct gen *g, struct buf *out)
{
    struct json_writer w;
    struct api_error e = {0};
    json_w_init(&w, out);
    write_request(g, &g->prompts[0], g->id, &w, &e);
}

static const struct gen_dialect completions_render = {
    .id_prefix = "cmpl-",
    .parse_only = 1,
    .parse = parse_completion,
    .body = body_list,
};

static const struct gen_dialect chat_render_dialect = {
    .id_prefix = "chatcmpl-",
    .parse_only = 1,
    .chat = 1,
    .parse = parse_chat,
    .body = body_one,
};

void render_completion_handle(struct server *s, struct http_exchange *x)
{
    gen_start(s, x, &completions_render);
}

void render_chat_handle(struct server *s, struct http_exchange *x)
{
    gen_start(s, x, &chat_render_dialect);
}
