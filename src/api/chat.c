/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/chat/completions: the fields that only chat has, and the form of its answers. What a
 * sample says is split into reasoning, content and tool calls (text/answer.h) with or without a
 * stream. */
#include "api/messages.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static int parse(struct gen *g, struct api_error *e)
{
    struct fields f = {g->json, "", e, &g->arena};
    int logprobs = 0, k = 0;
    g->f.sp.n = 1;
    g->f.add_generation_prompt = 1;
    if (gen_parse_common(g, &f, e) < 0) {
        return -1;
    }
    int rc = gen_parse_max_tokens(g, &f, "max_completion_tokens");
    if (rc == 0) {
        rc = gen_parse_max_tokens(g, &f, "max_tokens");
    }
    if (rc < 0 || field_bool(&f, "logprobs", &logprobs) < 0 ||
        field_int32(&f, "top_logprobs", INT_MIN, INT_MAX, &k) < 0) {
        return -1;
    }
    if (k < -1) {
        return api_fail(e, 400, TYPE_SCHEMA, "top_logprobs",
                        "`top_logprobs` must be a positive value or -1.");
    }
    if (k != 0 && !logprobs) {
        return api_fail(e, 400, TYPE_SCHEMA, "top_logprobs",
                        "when using `top_logprobs`, `logprobs` must be set to true.");
    }
    g->f.logprobs = !logprobs ? -1 : k == -1 ? g->server->model.vocab_size : k;
    return messages_parse(g, &f) < 0 ? -1 : gen_check_lengths(g, e);
}

/* Hidden reasoning is not told by its tokens either. */
static int hides_tokens(const struct gen *g)
{
    return g->f.answer.reasoning && !g->f.include_reasoning;
}

static void write_logprobs(const struct gen *g, const struct gen_sample *s, struct json_writer *w)
{
    json_w_key(w, "logprobs");
    if (g->f.logprobs < 0 || hides_tokens(g)) {
        json_w_null(w);
        return;
    }
    json_w_object(w);
    json_w_key(w, "content");
    gen_write_raw_array(w, &s->lp_content);
    json_w_object_end(w);
}

static void open_chunk(struct gen *g, int choice, struct json_writer *w)
{
    json_w_object(w);
    gen_write_head(g, w, "chat.completion.chunk");
    json_w_key(w, "choices");
    json_w_array(w);
    json_w_object(w);
    json_w_kint(w, "index", choice);
    json_w_key(w, "delta");
    json_w_object(w);
}

static void write_prompt_text(const struct gen *g, struct json_writer *w)
{
    json_w_key(w, "prompt_text");
    if (g->f.return_prompt_text) {
        json_w_stringn(w, g->prompt_text.data ? g->prompt_text.data : "", g->prompt_text.len);
    } else {
        json_w_null(w);
    }
}

static void begin(struct gen *g)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b);
    for (int i = 0; i < g->n_samples; i++) {
        buf_clear(&b);
        json_w_init(&w, &b);
        open_chunk(g, i, &w);
        json_w_kstring(&w, "role", g->f.response_role);
        json_w_kstring(&w, "content", "");
        json_w_object_end(&w);
        json_w_knull(&w, "logprobs");
        json_w_knull(&w, "finish_reason");
        json_w_object_end(&w);
        json_w_array_end(&w);
        if (g->f.continuous_usage) {
            struct gen_sample none = {.prompt = &g->prompts[0]};
            gen_write_usage(g, &w, &none, 1);
        }
        gen_write_prompt_ids(&g->prompts[0], &w);
        write_prompt_text(g, &w);
        json_w_object_end(&w);
        gen_send(g, &b);
    }
    for (int i = 0; g->f.echo_text && g->f.echo_text[0] && i < g->n_samples; i++) {
        buf_clear(&b);
        json_w_init(&w, &b);
        open_chunk(g, i, &w);
        json_w_kstring(&w, "content", g->f.echo_text);
        json_w_object_end(&w);
        json_w_knull(&w, "logprobs");
        json_w_knull(&w, "finish_reason");
        json_w_object_end(&w);
        json_w_array_end(&w);
        json_w_object_end(&w);
        gen_send(g, &b);
    }
    buf_fini(&b);
}

static void write_finish(const struct gen *g, const struct gen_sample *s, struct json_writer *w)
{
    json_w_kstring(w, "finish_reason", messages_finish_reason(s));
    if (s->done) {
        gen_write_stop_reason(g, s, w);
    }
    if (hides_tokens(g)) {
        json_w_knull(w, "token_ids");
    } else {
        gen_write_token_ids(s, w);
    }
}

static void write_text(struct json_writer *w, const char *key, const struct buf *b)
{
    json_w_key(w, key);
    json_w_stringn(w, b->data ? b->data : "", b->len);
}

static void write_reasoning(struct json_writer *w, const struct buf *b)
{
    static const char *const names[] = {"reasoning", "reasoning_content"};
    for (int i = 0; i < 2; i++) {
        if (b->len > 0) {
            write_text(w, names[i], b);
        } else {
            json_w_knull(w, names[i]);
        }
    }
}

/* One list entry for each call; in a stream with its index, and id and name only where it begins.
 */
static void write_calls(struct json_writer *w, const struct answer_message *m, int is_delta)
{
    char id[16 + 33] = "chatcmpl-tool-";
    json_w_key(w, "tool_calls");
    json_w_array(w);
    for (int i = 0; i < m->n_calls; i++) {
        const struct answer_call *c = &m->calls[i];
        json_w_object(w);
        if (is_delta) {
            json_w_kint(w, "index", c->index);
        }
        if (c->begins) {
            random_hex(id + strlen("chatcmpl-tool-"), 32);
            json_w_kstring(w, "id", id);
            json_w_kstring(w, "type", "function");
        }
        json_w_key(w, "function");
        json_w_object(w);
        if (c->begins) {
            write_text(w, "name", &c->name);
        }
        write_text(w, "arguments", &c->arguments);
        json_w_object_end(w);
        json_w_object_end(w);
    }
    json_w_array_end(w);
}

static void write_delta(const struct gen *g, const struct answer_message *m, struct json_writer *w)
{
    int splits = g->f.answer.reasoning || g->f.answer.tools != ANSWER_TOOLS_NONE;
    if (m->reasoning.len > 0) {
        write_reasoning(w, &m->reasoning);
    }
    if (!splits || m->content.len > 0) {
        write_text(w, "content", &m->content);
    }
    if (m->n_calls > 0) {
        write_calls(w, m, 1);
    }
}

/* Nothing is written, and so nothing sent, while the parser can't tell yet what the text is. */
static void chunk(struct gen *g, struct gen_sample *s, const char *text, size_t n_bytes,
                  struct buf *out)
{
    struct json_writer w;
    struct answer_message m;
    answer_message_init(&m);
    messages_split(s, text, n_bytes);
    answer_message_take(&m, &s->answer);
    if (!g->f.include_reasoning) {
        buf_clear(&m.reasoning);
    }
    int splits = g->f.answer.reasoning || g->f.answer.tools != ANSWER_TOOLS_NONE;
    if (splits && !s->done && m.reasoning.len == 0 && m.content.len == 0 && m.n_calls == 0) {
        answer_message_fini(&m);
        return;
    }
    json_w_init(&w, out);
    open_chunk(g, s->choice, &w);
    write_delta(g, &m, &w);
    json_w_object_end(&w);
    write_logprobs(g, s, &w);
    write_finish(g, s, &w);
    json_w_object_end(&w);
    json_w_array_end(&w);
    if (s->done && !g->f.include_usage) {
        json_w_kstring(&w, "system_fingerprint", g->server->fingerprint);
    }
    if (g->f.continuous_usage) {
        gen_write_usage(g, &w, s, 1);
    }
    json_w_object_end(&w);
    answer_message_fini(&m);
}

static void usage_chunk(struct gen *g, struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    gen_write_head(g, &w, "chat.completion.chunk");
    json_w_key(&w, "choices");
    json_w_array(&w);
    json_w_array_end(&w);
    json_w_kstring(&w, "system_fingerprint", g->server->fingerprint);
    gen_write_usage(g, &w, NULL, 1);
    json_w_object_end(&w);
}

/* null where there is only something else: reasoning, or calls the model chose to make. A forced
 * call leaves the content empty. */
static void write_content(const struct gen *g, const struct answer_message *m,
                          struct json_writer *w)
{
    int forced = g->f.answer.tools == ANSWER_TOOLS_LIST || g->f.answer.tools == ANSWER_TOOLS_ONE;
    int elsewhere = m->n_calls > 0 ? !forced : g->f.answer.reasoning && m->reasoning.len > 0;
    if (m->content.len == 0 && !g->f.echo_text && elsewhere) {
        json_w_knull(w, "content");
        return;
    }
    struct buf b;
    buf_init(&b);
    buf_puts(&b, g->f.echo_text ? g->f.echo_text : "");
    buf_append(&b, m->content.data ? m->content.data : "", m->content.len);
    write_text(w, "content", &b);
    buf_fini(&b);
}

static void write_message(struct gen *g, struct gen_sample *s, struct json_writer *w)
{
    struct answer_message m;
    size_t n;
    const char *text = output_take(&s->out, &n);
    answer_message_init(&m);
    messages_split(s, text, n);
    answer_message_take(&m, &s->answer);
    json_w_key(w, "message");
    json_w_object(w);
    json_w_kstring(w, "role", g->f.response_role);
    write_content(g, &m, w);
    json_w_knull(w, "refusal");
    json_w_knull(w, "annotations");
    json_w_knull(w, "audio");
    json_w_knull(w, "function_call");
    if (m.n_calls > 0) {
        write_calls(w, &m, 0);
    }
    if (!g->f.include_reasoning) {
        buf_clear(&m.reasoning);
    }
    write_reasoning(w, &m.reasoning);
    json_w_object_end(w);
    answer_message_fini(&m);
}

static void body(struct gen *g, struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    gen_write_head(g, &w, "chat.completion");
    json_w_key(&w, "choices");
    json_w_array(&w);
    for (int i = 0; i < g->n_samples; i++) {
        struct gen_sample *s = &g->samples[i];
        json_w_object(&w);
        json_w_kint(&w, "index", s->choice);
        write_message(g, s, &w);
        write_logprobs(g, s, &w);
        write_finish(g, s, &w);
        json_w_knull(&w, "routed_experts");
        json_w_object_end(&w);
    }
    json_w_array_end(&w);
    json_w_knull(&w, "service_tier");
    json_w_kstring(&w, "system_fingerprint", g->server->fingerprint);
    gen_write_usage(g, &w, NULL, 0);
    json_w_key(&w, "prompt_logprobs");
    if (g->f.prompt_logprobs >= 0) {
        gen_write_raw_array(&w, &g->prompts[0].prompt_lp);
    } else {
        json_w_null(&w);
    }
    gen_write_prompt_ids(&g->prompts[0], &w);
    write_prompt_text(g, &w);
    json_w_knull(&w, "kv_transfer_params");
    json_w_knull(&w, "ec_transfer_params");
    gen_write_metrics(g, &w);
    json_w_object_end(&w);
}

const struct gen_dialect chat_dialect = {
    .id_prefix = "chatcmpl-",
    .chat = 1,
    .parse = parse,
    .begin = begin,
    .chunk = chunk,
    .usage_chunk = usage_chunk,
    .body = body,
};

void chat_handle(struct server *s, struct http_exchange *x)
{
    gen_start(s, x, &chat_dialect);
}
