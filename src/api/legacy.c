/* SPDX-License-Identifier: Apache-2.0 */
/* POST /generate, as the demonstration server of early vLLM releases answered it and scripts still
 * call it: the body is a prompt, `stream`, and the members of SamplingParams; the answer
 * {"text": [prompt + output, …]}. A stream is one such line after another, each with all the text
 * so far. */
#include "api/sparams.h"

#include <string.h>

static const char *const not_params[] = {"prompt", "stream", "model", NULL};

static int parse(struct gen *g, struct api_error *e)
{
    const struct json *prompt = json_get(g->json, "prompt"), *text;
    struct buf b;
    struct json_writer w;
    size_t n;
    if (json_type(prompt) != JSON_STRING) {
        return api_fail_field(e, "prompt", prompt ? "string_type" : "missing", prompt,
                              prompt ? "Input should be a valid string" : "Field required");
    }
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    for (int i = 0; not_params[i]; i++) {
        json_w_key(&w, not_params[i]);
        json_w_value(&w, json_get(g->json, not_params[i]));
    }
    if (sparams_to_fields(g->json, "", not_params, &w, e) < 0) {
        buf_fini(&b);
        return -1;
    }
    json_w_object_end(&w);
    if (sparams_replace_request(g, &b, e) < 0 || completions_dialect.parse(g, e) < 0) {
        return -1;
    }
    text = json_get(g->json, "prompt");
    const char *s = json_string(text, &n);
    buf_append(&g->prompts[0].echo_text, s, n);
    return 0;
}

/* All texts as far as they may be shown. */
static void write_texts(const struct gen *g, struct buf *out)
{
    struct json_writer w;
    struct buf b;
    const struct buf *prompt = &g->prompts[0].echo_text;
    buf_init(&b);
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_key(&w, "text");
    json_w_array(&w);
    for (int i = 0; i < g->n_samples; i++) {
        const struct output *o = &g->samples[i].out;
        buf_clear(&b);
        buf_append(&b, prompt->data ? prompt->data : "", prompt->len);
        buf_append(&b, o->text.data ? o->text.data : "", o->n_sent);
        json_w_stringn(&w, b.data ? b.data : "", b.len);
    }
    json_w_array_end(&w);
    json_w_object_end(&w);
    buf_fini(&b);
}

static void chunk(struct gen *g, struct gen_sample *s, const char *text, size_t n_bytes,
                  struct buf *out)
{
    (void)s; /* its text was taken: n_sent says so */
    (void)text;
    (void)n_bytes;
    write_texts(g, out);
}

static void body(struct gen *g, struct buf *out)
{
    for (int i = 0; i < g->n_samples; i++) {
        size_t n;
        output_take(&g->samples[i].out, &n);
    }
    write_texts(g, out);
}

const struct gen_dialect legacy_dialect = {
    .id_prefix = "",
    .framing = &gen_ndjson_framing,
    .parse = parse,
    .chunk = chunk,
    .body = body,
};

void legacy_handle(struct server *s, struct http_exchange *x)
{
    gen_start(s, x, &legacy_dialect);
}
