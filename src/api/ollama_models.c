/* SPDX-License-Identifier: Apache-2.0 */
/* Ollama's routes about models: /api/tags, /api/ps, /api/show, /api/version, and the ping HEAD /.
 * The models are the served names, all of them the one that is loaded. */
#include "api/ollama.h"

#include "api/fields.h"

#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The level of Ollama's API that is spoken here: clients compare it with what they need. */
#define OLLAMA_API_VERSION "0.12.0"
#define FAMILY             "ernie4_5"

void ollama_write_time(struct json_writer *w, const char *key, int64_t seconds, long ns)
{
    char text[64], fraction[16];
    struct tm tm;
    time_t t = (time_t)seconds;
    gmtime_r(&t, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(fraction, sizeof fraction, ".%09ldZ", ns);
    struct buf b;
    buf_init(&b);
    buf_printf(&b, "%s%s", text, fraction);
    json_w_kstring(w, key, b.data);
    buf_fini(&b);
}

void ollama_write_now(struct json_writer *w, const char *key)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    ollama_write_time(w, key, now.tv_sec, now.tv_nsec);
}

void ollama_write_model(const struct server *s, const struct json *name, struct json_writer *w)
{
    static const char latest[] = ":latest";
    struct api_error e = {0};
    size_t n = 0, cut = sizeof latest - 1;
    const char *text = json_type(name) == JSON_STRING ? json_string(name, &n) : NULL;
    struct buf b;
    struct json *doc = NULL;
    if (!text) {
        json_w_value(w, name);
        return;
    }
    buf_init(&b);
    if (n > cut && strcmp(text + n - cut, latest) == 0) {
        struct json_writer q;
        json_w_init(&q, &b);
        json_w_object(&q);
        json_w_key(&q, "model");
        json_w_value(&q, name);
        json_w_object_end(&q);
        if (!b.failed && json_parse(&doc, b.data, b.len, JSON_DEPTH_DEFAULT, NULL) == 0 &&
            check_model_name(s, doc, &e) < 0) {
            n -= cut;
        }
        json_free(doc);
        buf_fini(&b);
    }
    json_w_stringn(w, text, n);
}

/* 64 hex digits that stand for the weights. */
static void write_digest(const struct server *s, struct json_writer *w)
{
    const char *id = s->model.numerics_id ? s->model.numerics_id : "";
    unsigned char hash[32];
    char hex[65];
    SHA256((const unsigned char *)id, strlen(id), hash);
    for (int i = 0; i < 32; i++) {
        snprintf(hex + (ptrdiff_t)2 * i, 3, "%02x", hash[i]);
    }
    json_w_kstring(w, "digest", hex);
}

static void write_details(const struct server *s, struct json_writer *w)
{
    char size[32];
    double n = (double)s->model.n_params;
    snprintf(size, sizeof size, n >= 1e9 ? "%.1fB" : "%.2fM", n >= 1e9 ? n / 1e9 : n / 1e6);
    json_w_key(w, "details");
    json_w_object(w);
    json_w_kstring(w, "parent_model", "");
    json_w_kstring(w, "format", "safetensors");
    json_w_kstring(w, "family", FAMILY);
    json_w_key(w, "families");
    json_w_array(w);
    json_w_string(w, FAMILY);
    json_w_array_end(w);
    json_w_kstring(w, "parameter_size", size);
    json_w_kstring(w, "quantization_level", s->model.format ? s->model.format : "unknown");
    json_w_object_end(w);
}

static void list_models(struct server *s, struct http_exchange *x, int running)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_key(&w, "models");
    json_w_array(&w);
    for (int i = 0; i < s->o.n_served_model_names; i++) {
        json_w_object(&w);
        json_w_kstring(&w, "name", s->o.served_model_names[i]);
        json_w_kstring(&w, "model", s->o.served_model_names[i]);
        if (!running) {
            ollama_write_time(&w, "modified_at", s->model.modified_s, 0);
        }
        json_w_kint(&w, "size", (int64_t)s->model.weight_bytes);
        write_digest(s, &w);
        write_details(s, &w);
        if (running) { /* it stays as long as the server */
            json_w_kstring(&w, "expires_at", "9999-12-31T23:59:59Z");
            json_w_kint(&w, "size_vram", 0);
            json_w_kint(&w, "context_length", s->model.max_model_len);
        }
        json_w_object_end(&w);
    }
    json_w_array_end(&w);
    json_w_object_end(&w);
    respond_json(x, 200, &b);
}

void ollama_tags_handle(struct server *s, struct http_exchange *x)
{
    list_models(s, x, 0);
}

void ollama_ps_handle(struct server *s, struct http_exchange *x)
{
    list_models(s, x, 1);
}

void ollama_version_handle(struct server *s, struct http_exchange *x)
{
    struct buf b;
    struct json_writer w;
    (void)s;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_kstring(&w, "version", OLLAMA_API_VERSION);
    json_w_kstring(&w, "tern", TERN_VERSION);
    json_w_object_end(&w);
    respond_json(x, 200, &b);
}

/* ---- /api/show ---- */

/* Sampling defaults in the form of a Modelfile. */
static void write_parameters(const struct server *s, struct json_writer *w)
{
    const struct sampling_defaults *g = &s->o.generation;
    struct buf b;
    buf_init(&b);
    if (g->has_temperature) {
        buf_printf(&b, "temperature %.15g\n", g->temperature);
    }
    if (g->has_top_p) {
        buf_printf(&b, "top_p %.15g\n", g->top_p);
    }
    if (g->has_top_k) {
        buf_printf(&b, "top_k %d\n", g->top_k);
    }
    if (g->has_min_p) {
        buf_printf(&b, "min_p %.15g\n", g->min_p);
    }
    if (g->has_repetition_penalty) {
        buf_printf(&b, "repeat_penalty %.15g\n", g->repetition_penalty);
    }
    if (g->has_max_new_tokens) {
        buf_printf(&b, "num_predict %d\n", g->max_new_tokens);
    }
    json_w_key(w, "parameters");
    json_w_stringn(w, b.data ? b.data : "", b.len);
    buf_fini(&b);
}

static void write_info(const struct server *s, struct json_writer *w)
{
    const struct model_config *c = s->model.config;
    json_w_key(w, "model_info");
    json_w_object(w);
    json_w_kstring(w, "general.architecture", FAMILY);
    json_w_kint(w, "general.parameter_count", (int64_t)s->model.n_params);
    json_w_kint(w, FAMILY ".context_length", s->model.max_model_len);
    json_w_kint(w, FAMILY ".vocab_size", s->model.vocab_size);
    if (c) {
        json_w_kint(w, FAMILY ".embedding_length", c->hidden_size);
        json_w_kint(w, FAMILY ".block_count", c->n_layers);
        json_w_kint(w, FAMILY ".feed_forward_length", c->intermediate_size);
        json_w_kint(w, FAMILY ".attention.head_count", c->n_heads);
        json_w_kint(w, FAMILY ".attention.head_count_kv", c->n_kv_heads);
        json_w_kint(w, FAMILY ".attention.key_length", c->head_dim);
        json_w_kdouble(w, FAMILY ".rope.freq_base", c->rope_theta);
    }
    json_w_object_end(w);
}

static void show(struct server *s, struct http_exchange *x)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_kstring(&w, "modelfile", "");
    write_parameters(s, &w);
    json_w_kstring(&w, "template", chat_template_source(s->model.chat_template));
    write_details(s, &w);
    write_info(s, &w);
    json_w_key(&w, "capabilities");
    json_w_array(&w);
    json_w_string(&w, "completion");
    if (s->o.tool_call_parser && s->o.enable_auto_tool_choice) {
        json_w_string(&w, "tools");
    }
    if (s->o.reasoning_parser) {
        json_w_string(&w, "thinking");
    }
    json_w_array_end(&w);
    ollama_write_time(&w, "modified_at", s->model.modified_s, 0);
    json_w_object_end(&w);
    respond_json(x, 200, &b);
}

void ollama_show_handle(struct server *s, struct http_exchange *x)
{
    struct api_error e = {0};
    struct json *body = NULL, *named = NULL;
    size_t n;
    const char *text = http_body(x, &n);
    if (fields_parse_body(&body, text, n, s->o.json_depth, &e) == 0) {
        const struct json *name = json_get(body, "model");
        if (json_type(name) == JSON_NULL) {
            name = json_get(body, "name"); /* older clients */
        }
        struct buf b;
        struct json_writer w;
        buf_init(&b);
        json_w_init(&w, &b);
        json_w_object(&w);
        json_w_key(&w, "model");
        ollama_write_model(s, name, &w);
        json_w_object_end(&w);
        if (json_type(name) == JSON_NULL) {
            api_fail(&e, 400, TYPE_SCHEMA, "model", "model is required");
        } else if (b.failed || json_parse(&named, b.data, b.len, s->o.json_depth + 8, NULL) != 0) {
            api_fail(&e, 503, "ServiceUnavailableError", NULL, "out of memory");
        } else {
            check_model_name(s, named, &e);
        }
        buf_fini(&b);
    }
    json_free(named);
    json_free(body);
    if (e.status) {
        respond_error(s, x, &e);
    } else {
        show(s, x);
    }
}
