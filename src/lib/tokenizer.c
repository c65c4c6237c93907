/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizer, chat template and incremental decoder of the library. */
#include "base/json.h"
#include "lib/hub.h"
#include "lib/lib.h"
#include <stdlib.h>
#include <string.h>

struct tern_decoder {
    struct detok detok;
    struct buf text;
};

int tern_tokenizer_open(struct tern_tokenizer **out, const char *model, struct tern_error *error)
{
    struct err e;
    char pulled[HUB_PATH];
    struct tern_tokenizer *t = *out = calloc(1, sizeof *t);
    if (!t) {
        return lib_no_memory(error);
    }
    int rc = hub_find_model(model, NULL, pulled, &e);
    model = rc > 0 ? pulled : model;
    rc = rc < 0 ? rc : tokenizer_open(&t->tokenizer, model, &e);
    rc = rc < 0 ? rc : chat_template_open(&t->chat, model, NULL, t->tokenizer, &e);
    if (rc < 0) {
        tern_tokenizer_close(t);
        *out = NULL;
        return lib_fail(error, &e);
    }
    return 0;
}

void tern_tokenizer_close(struct tern_tokenizer *t)
{
    if (t) {
        chat_template_close(t->chat);
        tokenizer_close(t->tokenizer);
        free(t);
    }
}

int tern_tokenizer_size(const struct tern_tokenizer *t)
{
    return tokenizer_n_ids(t->tokenizer);
}

int32_t tern_tokenizer_eos_id(const struct tern_tokenizer *t)
{
    return tokenizer_eos_id(t->tokenizer);
}

int tern_tokenizer_is_special(const struct tern_tokenizer *t, int32_t id)
{
    return tokenizer_is_special(t->tokenizer, id);
}

int32_t tern_tokenizer_id(const struct tern_tokenizer *t, const char *piece)
{
    return tokenizer_id(t->tokenizer, piece);
}

const char *tern_tokenizer_piece(const struct tern_tokenizer *t, int32_t id, size_t *n_bytes)
{
    size_t n = 0;
    const char *s = tokenizer_piece(t->tokenizer, id, &n);
    if (n_bytes) {
        *n_bytes = s ? n : 0;
    }
    return s;
}

/* Hands the ids over; an array of none is still an array. */
static int give_ids(struct token_ids *v, int32_t **ids, size_t *n_ids)
{
    *ids = v->ids ? v->ids : malloc(sizeof **ids);
    *n_ids = v->n;
    *v = (struct token_ids){0};
    return *ids ? 0 : ERR_NOMEM;
}

static int give_text(struct buf *b, char **text, size_t *n_bytes)
{
    if (n_bytes) {
        *n_bytes = b->len;
    }
    buf_puts(b, ""); /* an empty text is a text */
    *text = b->failed ? NULL : buf_detach(b);
    *text = !b->failed && !*text ? strdup("") : *text;
    return *text ? 0 : ERR_NOMEM;
}

int tern_tokenizer_encode(const struct tern_tokenizer *t, const char *text, size_t n_bytes,
                          int parse_special, int32_t **ids, size_t *n_ids, struct tern_error *error)
{
    struct err e = {0, ""};
    struct token_ids v = {0};
    *ids = NULL;
    *n_ids = 0;
    int rc = tokenizer_encode(t->tokenizer, text, lib_length(text, n_bytes), parse_special, &v, &e);
    if (rc >= 0 && give_ids(&v, ids, n_ids) < 0) {
        rc = err_set(&e, ERR_NOMEM, "out of memory");
    }
    token_ids_fini(&v);
    return rc < 0 ? lib_fail(error, &e) : 0;
}

int tern_tokenizer_decode(const struct tern_tokenizer *t, const int32_t *ids, size_t n_ids,
                          int skip_special, char **text, size_t *n_bytes, struct tern_error *error)
{
    struct buf b;
    *text = NULL;
    buf_init(&b);
    tokenizer_decode(t->tokenizer, ids, n_ids, skip_special, &b);
    int rc = b.failed ? ERR_NOMEM : give_text(&b, text, n_bytes);
    buf_fini(&b);
    return rc < 0 ? lib_no_memory(error) : 0;
}

/* ---- chat ---- */

static int read_flag(const struct json *options, const char *key, int *out, struct err *e)
{
    const struct json *v = json_get(options, key);
    if (json_type(v) == JSON_NULL) {
        return 0;
    }
    if (json_type(v) != JSON_BOOL) {
        return err_set(e, ERR_INVALID, "chat options: %s: expected true or false", key);
    }
    *out = json_bool(v);
    return 0;
}

static int read_options(const struct json *options, struct chat_render_options *o, struct err *e)
{
    static const char *const known[] = {"add_generation_prompt", "continue_final_message", "tools",
                                        "documents", "chat_template_kwargs"};
    size_t it = 0, n;
    const char *key;
    const struct json *v;
    if (json_type(options) != JSON_OBJECT && json_type(options) != JSON_NULL) {
        return err_set(e, ERR_INVALID, "chat options: expected a JSON object");
    }
    while (options && json_next(options, &it, &key, &n, &v)) {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(known[i], key) != 0) {
            i++;
        }
        if (i == sizeof known / sizeof *known) {
            return err_set(e, ERR_NOT_FOUND, "chat options: no option is named '%s'", key);
        }
        enum json_type want = i == 4 ? JSON_OBJECT : JSON_ARRAY;
        if (i >= 2 && json_type(v) != JSON_NULL && json_type(v) != want) {
            return err_set(e, ERR_INVALID, "chat options: %s: expected %s", key,
                           i == 4 ? "an object" : "an array");
        }
    }
    const struct json *tools = json_get(options, "tools"), *docs = json_get(options, "documents"),
                      *kwargs = json_get(options, "chat_template_kwargs");
    o->tools = json_type(tools) == JSON_ARRAY ? tools : NULL;
    o->documents = json_type(docs) == JSON_ARRAY ? docs : NULL;
    o->kwargs = json_type(kwargs) == JSON_OBJECT ? kwargs : NULL;
    int rc = read_flag(options, "continue_final_message", &o->continue_final_message, e);
    o->add_generation_prompt = !o->continue_final_message;
    rc = rc < 0 ? rc : read_flag(options, "add_generation_prompt", &o->add_generation_prompt, e);
    if (rc >= 0 && o->add_generation_prompt && o->continue_final_message) {
        rc = err_set(e, ERR_INVALID,
                     "chat options: add_generation_prompt and "
                     "continue_final_message exclude each other");
    }
    return rc;
}

int lib_chat_encode(const struct tern_tokenizer *t, const char *messages, size_t n_bytes,
                    const char *options, struct token_ids *ids, struct buf *text, struct err *e)
{
    struct json *list = NULL, *set = NULL;
    struct chat_render_options o = {0};
    struct buf marks;
    buf_init(&marks);
    int rc = json_parse(&list, messages, n_bytes, JSON_DEPTH_DEFAULT, e);
    rc = rc < 0 ? err_prefix(e, "messages") : rc;
    if (rc >= 0 && json_type(list) != JSON_ARRAY) {
        rc = err_set(e, ERR_INVALID, "messages: expected a JSON array");
    }
    if (rc >= 0 && options) {
        rc = json_parse(&set, options, strlen(options), JSON_DEPTH_DEFAULT, e);
        rc = rc < 0 ? err_prefix(e, "chat options") : rc;
    }
    rc = rc < 0 ? rc : read_options(set, &o, e);
    rc = rc < 0 ? rc
         : ids  ? chat_encode(t->chat, list, &o, ids, text, e)
                : chat_render(t->chat, list, &o, text, &marks, e);
    buf_fini(&marks);
    json_free(list);
    json_free(set);
    return rc;
}

int tern_tokenizer_chat(const struct tern_tokenizer *t, const char *messages, size_t n_bytes,
                        const char *options, char **text, size_t *text_bytes, int32_t **ids,
                        size_t *n_ids, struct tern_error *error)
{
    struct err e = {0, ""};
    struct token_ids v = {0};
    struct buf b;
    char *rendered = NULL;
    buf_init(&b);
    int rc = lib_chat_encode(t, messages, lib_length(messages, n_bytes), options, ids ? &v : NULL,
                             &b, &e);
    if (rc >= 0 && ((text && give_text(&b, &rendered, text_bytes) < 0) ||
                    (ids && give_ids(&v, ids, n_ids) < 0))) {
        rc = err_set(&e, ERR_NOMEM, "out of memory");
        free(rendered);
        rendered = NULL;
    }
    if (text) {
        *text = rendered;
    }
    if (ids && rc < 0) {
        *ids = NULL;
    }
    buf_fini(&b);
    token_ids_fini(&v);
    return rc < 0 ? lib_fail(error, &e) : 0;
}

/* ---- incremental ---- */

int tern_decoder_new(struct tern_decoder **out, const struct tern_tokenizer *t, int skip_special,
                     struct tern_error *error)
{
    struct tern_decoder *d = *out = calloc(1, sizeof *d);
    if (!d) {
        return lib_no_memory(error);
    }
    detok_init(&d->detok, t->tokenizer, skip_special);
    buf_init(&d->text);
    return 0;
}

void tern_decoder_free(struct tern_decoder *d)
{
    if (d) {
        buf_fini(&d->text);
        free(d);
    }
}

static const char *told(struct tern_decoder *d, size_t *n_bytes)
{
    buf_puts(&d->text, "");
    if (n_bytes) {
        *n_bytes = d->text.len;
    }
    return d->text.failed ? NULL : d->text.data ? d->text.data : "";
}

const char *tern_decoder_push(struct tern_decoder *d, int32_t id, size_t *n_bytes)
{
    buf_clear(&d->text);
    detok_push(&d->detok, id, &d->text);
    return told(d, n_bytes);
}

const char *tern_decoder_finish(struct tern_decoder *d, size_t *n_bytes)
{
    buf_clear(&d->text);
    detok_finish(&d->detok, &d->text);
    return told(d, n_bytes);
}
