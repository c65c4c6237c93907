/* SPDX-License-Identifier: Apache-2.0 */
/* POST /tokenize (a prompt, or messages through the template) and POST /detokenize. No length
 * check: benchmark clients use them to shape prompts. */
#include "api/messages.h"
#include "api/state.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct tokenize_work {
    struct work work;
    struct server *server;
    struct http_exchange *x;
    int reverse; /* detokenize */
    char *body;
    size_t body_bytes;
    struct api_error error;
    struct buf out;
};

static int encode(const struct server *s, const struct json *body, const struct fields *f,
                  struct token_ids *ids)
{
    struct err err = {0};
    struct api_error *e = f->e;
    const struct json *prompt = json_get(body, "prompt"), *messages = json_get(body, "messages");
    size_t n;
    int flag;
    if (field_bool(f, "add_special_tokens", &flag) < 0) {
        return -1;
    }
    if (json_type(prompt) != JSON_NULL) {
        if (json_type(prompt) != JSON_STRING) {
            return fail_field(f, "prompt", "string_type", "Input should be a valid string");
        }
        const char *text = json_string(prompt, &n);
        return tokenizer_encode(s->model.tokenizer, text, n, 1, ids, &err) == 0
                   ? 0
                   : api_fail_err(e, &err);
    }
    if (json_type(messages) == JSON_NULL) {
        return api_fail_field(e, "prompt", "missing", NULL, "Field required");
    }
    int add = 1, cont = 0;
    int given = field_bool(f, "add_generation_prompt", &add);
    const struct json *tools = NULL;
    struct json *kwargs = NULL;
    if (given < 0 || field_bool(f, "continue_final_message", &cont) < 0 ||
        field_array(f, "tools", &tools) < 0 || messages_check(messages, e) < 0) {
        return -1;
    }
    if (cont && given && add) {
        return api_fail(
            e, 400, TYPE_SCHEMA, "continue_final_message",
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
    }
    struct chat_template *own = NULL;
    if (messages_template(s, body, &own, e) < 0 ||
        messages_kwargs(s->default_kwargs, body, &kwargs, e) < 0) {
        chat_template_close(own);
        return -1;
    }
    struct chat_render_options r = {.add_generation_prompt = add && !cont,
                                    .continue_final_message = cont,
                                    .tools = tools,
                                    .kwargs = kwargs};
    int rc = chat_encode(own ? own : s->model.chat_template, messages, &r, ids, NULL, &err);
    chat_template_close(own);
    json_free(kwargs);
    return rc == 0 ? 0 : api_fail_err(e, &err);
}

static int tokenize(const struct server *s, const struct json *body, const struct fields *f,
                    struct buf *out)
{
    struct token_ids ids = {0};
    struct json_writer w;
    int strings = 0;
    if (field_bool(f, "return_token_strs", &strings) < 0 || encode(s, body, f, &ids) < 0) {
        token_ids_fini(&ids);
        return -1;
    }
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kint(&w, "count", (int64_t)ids.n);
    json_w_kint(&w, "max_model_len", s->model.max_model_len);
    json_w_key(&w, "tokens");
    json_w_array(&w);
    for (size_t i = 0; i < ids.n; i++) {
        json_w_int(&w, ids.ids[i]);
    }
    json_w_array_end(&w);
    json_w_key(&w, "token_strs");
    if (strings) {
        json_w_array(&w);
        for (size_t i = 0; i < ids.n; i++) {
            size_t n = 0;
            const char *piece = tokenizer_piece_raw(s->model.tokenizer, ids.ids[i], &n);
            json_w_stringn(&w, piece ? piece : "", piece ? n : 0);
        }
        json_w_array_end(&w);
    } else {
        json_w_null(&w);
    }
    json_w_object_end(&w);
    token_ids_fini(&ids);
    return 0;
}

static int detokenize(const struct server *s, const struct json *body, const struct fields *f,
                      struct buf *out)
{
    const int32_t *ids = NULL;
    int n = 0;
    int rc = field_ids(f, "tokens", 0, tokenizer_n_ids(s->model.tokenizer) - 1, &ids, &n);
    if (rc <= 0) {
        return rc < 0 ? -1
                      : api_fail_field(f->e, "tokens", "missing", json_get(body, "tokens"),
                                       "Field required");
    }
    struct buf text;
    struct json_writer w;
    buf_init(&text);
    tokenizer_decode(s->model.tokenizer, ids, (size_t)n, 0, &text);
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_key(&w, "prompt");
    json_w_stringn(&w, text.data ? text.data : "", text.len);
    json_w_object_end(&w);
    buf_fini(&text);
    return 0;
}

static void run(struct work *w)
{
    struct tokenize_work *t =
        (struct tokenize_work *)((char *)w - offsetof(struct tokenize_work, work));
    const struct server *s = t->server;
    struct json *body = NULL;
    struct arena arena;
    arena_init(&arena, 0);
    struct fields f = {NULL, "", &t->error, &arena};
    if (fields_parse_body(&body, t->body ? t->body : "", t->body_bytes, s->o.json_depth,
                          &t->error) == 0 &&
        check_model_name(s, body, &t->error) == 0) {
        f.object = body;
        if (t->reverse) {
            detokenize(s, body, &f, &t->out);
        } else {
            tokenize(s, body, &f, &t->out);
        }
    }
    arena_fini(&arena);
    json_free(body);
    free(t->body);
    t->body = NULL;
}

static void done(struct work *w)
{
    struct tokenize_work *t =
        (struct tokenize_work *)((char *)w - offsetof(struct tokenize_work, work));
    if (!t->x) {
        buf_fini(&t->out);
    } else if (t->error.status) {
        respond_error(t->server, t->x, &t->error);
        buf_fini(&t->out);
    } else {
        respond_json(t->x, 200, &t->out);
    }
    free(t);
}

static void gone(void *user)
{
    struct tokenize_work *t = user;
    t->x = NULL; /* the worker still has it */
}

static void start(struct server *s, struct http_exchange *x, int reverse)
{
    struct tokenize_work *t = calloc(1, sizeof *t);
    if (!t) {
        struct api_error e;
        api_fail(&e, 503, "ServiceUnavailableError", NULL, "out of memory");
        respond_error(s, x, &e);
        return;
    }
    t->server = s;
    t->x = x;
    t->reverse = reverse;
    t->body = http_body_take(x, &t->body_bytes);
    t->work.run = run;
    t->work.done = done;
    buf_init(&t->out);
    http_on_gone(x, gone, t);
    work_post(s, &t->work, work_weight(t->body, t->body_bytes));
}

void tokenize_handle(struct server *s, struct http_exchange *x)
{
    start(s, x, 0);
}

void detokenize_handle(struct server *s, struct http_exchange *x)
{
    start(s, x, 1);
}
