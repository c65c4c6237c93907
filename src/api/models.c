/* SPDX-License-Identifier: Apache-2.0 */
/* The small GET routes: /v1/models, /health and /ping, /version, /load. */
#include "api/state.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

static void write_card(const struct server *s, const char *id, struct json_writer *w)
{
    char permission[48] = "modelperm-";
    random_hex(permission + 10, 32);
    json_w_object(w);
    json_w_kstring(w, "id", id);
    json_w_kstring(w, "object", "model");
    json_w_kint(w, "created", s->created);
    json_w_kstring(w, "owned_by", "vllm");
    json_w_kstring(w, "root", s->model.path);
    json_w_knull(w, "parent");
    json_w_kint(w, "max_model_len", s->model.max_model_len);
    json_w_key(w, "permission");
    json_w_array(w);
    json_w_object(w);
    json_w_kstring(w, "id", permission);
    json_w_kstring(w, "object", "model_permission");
    json_w_kint(w, "created", s->created);
    json_w_kbool(w, "allow_create_engine", 0);
    json_w_kbool(w, "allow_sampling", 1);
    json_w_kbool(w, "allow_logprobs", 1);
    json_w_kbool(w, "allow_search_indices", 0);
    json_w_kbool(w, "allow_view", 1);
    json_w_kbool(w, "allow_fine_tuning", 0);
    json_w_kstring(w, "organization", "*");
    json_w_knull(w, "group");
    json_w_kbool(w, "is_blocking", 0);
    json_w_object_end(w);
    json_w_array_end(w);
    json_w_object_end(w);
}

/* Nothing in it changes while the server runs, so it is written once. */
void models_install(struct server *s)
{
    struct json_writer w;
    buf_clear(&s->models_body);
    json_w_init(&w, &s->models_body);
    json_w_object(&w);
    json_w_kstring(&w, "object", "list");
    json_w_key(&w, "data");
    json_w_array(&w);
    for (int i = 0; i < s->o.n_served_model_names; i++) {
        write_card(s, s->o.served_model_names[i], &w);
    }
    json_w_array_end(&w);
    json_w_object_end(&w);
}

void models_handle(struct server *s, struct http_exchange *x)
{
    const struct buf *b = &s->models_body;
    http_respond(x, b->failed ? 503 : 200, "application/json", b->data, b->len);
}

/* Ready only when a token can be produced: the model is there, the server isn't going down, and an
 * engine with work has made a step lately. */
enum server_condition health_condition(const struct server *s)
{
    if (s->stopping) {
        return SERVER_STOPPING;
    }
    if (!s->ready) {
        return SERVER_LOADING;
    }
    struct engine_stats st;
    engine_stats(s->model.engine, &st);
    uint64_t now = clock_now_ns();
    /* n_sequences counts what was handed over, also when the engine never looked at it. */
    int has_work = s->n_sequences > 0 || st.n_running + st.n_waiting > 0;
    int is_late = now > st.last_step_ns &&
                  now - st.last_step_ns > (uint64_t)s->o.stall_timeout_s * 1000000000u;
    return has_work && is_late ? SERVER_STALLED : SERVER_READY;
}

void health_handle(struct server *s, struct http_exchange *x)
{
    respond_empty(x, health_condition(s) == SERVER_READY ? 200 : 503);
}

void version_handle(struct server *s, struct http_exchange *x)
{
    (void)s;
    struct buf b;
    struct json_writer w;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_kstring(&w, "version", TERN_VERSION);
    json_w_object_end(&w);
    respond_json(x, 200, &b);
}

void load_handle(struct server *s, struct http_exchange *x)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_kint(&w, "server_load", s->o.enable_server_load_tracking ? s->n_load : 0);
    json_w_object_end(&w);
    respond_json(x, 200, &b);
}
