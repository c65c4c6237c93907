/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of JSON that the answers of several routes share. */
#include "api/gen.h"

static double ms_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-6 : 0.0;
}

/* One sample's times, from the engine's clock; of several samples none is the request's. */
void gen_write_metrics(const struct gen *g, struct json_writer *w)
{
    const struct gen_sample *s = g->samples;
    json_w_key(w, "metrics");
    if (!g->server->o.enable_per_request_metrics || g->n_samples != 1 || s->first_token_ns == 0) {
        json_w_null(w);
        return;
    }
    double generation = ms_between(s->first_token_ns, s->last_token_ns);
    double all = ms_between(s->scheduled_ns, s->last_token_ns);
    json_w_object(w);
    json_w_kdouble(w, "time_to_first_token_ms", ms_between(g->arrival_ns, s->first_token_ns));
    json_w_kdouble(w, "generation_time_ms", generation);
    json_w_kdouble(w, "queue_time_ms", ms_between(g->arrival_ns, s->scheduled_ns));
    if (s->n_tokens > 1) {
        json_w_kdouble(w, "mean_itl_ms", generation / (s->n_tokens - 1));
    } else {
        json_w_knull(w, "mean_itl_ms");
    }
    if (all > 0.0) {
        json_w_kdouble(w, "tokens_per_second", s->n_tokens * 1e3 / all);
    } else {
        json_w_knull(w, "tokens_per_second");
    }
    json_w_object_end(w);
}

void gen_write_head(const struct gen *g, struct json_writer *w, const char *object)
{
    json_w_kstring(w, "id", g->id);
    json_w_kstring(w, "object", object);
    json_w_kint(w, "created", g->created);
    json_w_kstring(w, "model", g->server->o.served_model_names[0]);
}

void gen_write_raw_array(struct json_writer *w, const struct buf *items)
{
    struct buf b;
    buf_init(&b);
    buf_putc(&b, '[');
    buf_append(&b, items->data ? items->data : "", items->len);
    buf_putc(&b, ']');
    json_w_raw(w, b.data ? b.data : "[]", b.data ? b.len : 2);
    buf_fini(&b);
}

void gen_write_prompt_ids(const struct gen_prompt *p, struct json_writer *w)
{
    json_w_key(w, "prompt_token_ids");
    if (!p->gen->f.return_token_ids) {
        json_w_null(w);
        return;
    }
    json_w_array(w);
    for (int i = 0; i < p->n; i++) {
        json_w_int(w, p->ids[i]);
    }
    json_w_array_end(w);
}

void gen_write_finish_reason(const struct gen_sample *s, struct json_writer *w)
{
    json_w_kstring(w, "finish_reason", s->done ? finish_reason_name(s->finish) : NULL);
}

void gen_write_stop_reason(const struct gen *g, const struct gen_sample *s, struct json_writer *w)
{
    json_w_key(w, "stop_reason");
    if (s->done && s->finish == FINISH_REPETITION) {
        json_w_string(w, "repetition_detected");
    } else if (!s->done || s->finish != FINISH_STOP) {
        json_w_null(w);
    } else if (s->out.stop_index >= 0) {
        json_w_stringn(w, g->f.stop[s->out.stop_index], g->f.stop_bytes[s->out.stop_index]);
    } else if (s->out.stop_token_id >= 0) {
        json_w_int(w, s->out.stop_token_id);
    } else {
        json_w_null(w);
    }
}

static void write_reasoning_tokens(const struct gen *g, struct json_writer *w,
                                   const struct gen_sample *only)
{
    int n = only ? only->n_reasoning_tokens : 0;
    for (int i = 0; !only && i < g->n_samples; i++) {
        n += g->samples[i].n_reasoning_tokens;
    }
    json_w_key(w, "completion_tokens_details");
    json_w_object(w);
    json_w_kint(w, "reasoning_tokens", n);
    json_w_object_end(w);
}

/* only: continuous usage of one choice; else the whole request. */
void gen_write_usage(const struct gen *g, struct json_writer *w, const struct gen_sample *only,
                     int drop_nulls)
{
    int prompt = only ? only->prompt->n : gen_prompt_tokens(g),
        completion = only ? only->n_tokens : 0;
    for (int i = 0; !only && i < g->n_samples; i++) {
        completion += g->samples[i].n_tokens;
    }
    int details = g->server->o.enable_prompt_tokens_details;
    json_w_key(w, "usage");
    json_w_object(w);
    json_w_kint(w, "prompt_tokens", prompt);
    json_w_kint(w, "total_tokens", prompt + completion);
    json_w_kint(w, "completion_tokens", completion);
    if (details) {
        int cached = g->prompts[g->f.stream ? 0 : g->n_prompts - 1].n_cached;
        json_w_key(w, "prompt_tokens_details");
        json_w_object(w);
        json_w_kint(w, "cached_tokens", cached);
        if (g->dialect->chat) {
            json_w_kint(w, "created_cache_tokens", prompt - cached);
        } else if (!drop_nulls) {
            json_w_knull(w, "created_cache_tokens");
        }
        if (!drop_nulls) {
            json_w_knull(w, "multimodal_tokens");
        }
        json_w_object_end(w);
    } else if (!drop_nulls) {
        json_w_knull(w, "prompt_tokens_details");
    }
    if (g->dialect->chat && g->server->o.reasoning_parser) {
        write_reasoning_tokens(g, w, only);
    } else if (!drop_nulls) {
        json_w_knull(w, "completion_tokens_details");
    }
    json_w_object_end(w);
}

void gen_write_token_ids(const struct gen_sample *s, struct json_writer *w)
{
    json_w_key(w, "token_ids");
    if (s->prompt->gen->f.return_token_ids) {
        gen_write_raw_array(w, &s->ids);
    } else {
        json_w_null(w);
    }
}
