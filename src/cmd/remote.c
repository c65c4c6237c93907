/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/remote.h"

#include <stdlib.h>
#include <string.h>

#define EVENT_BYTES_MAX ((size_t)64 << 20)

int remote_root(const char *option, const char *url, size_t *n_bytes, struct err *e)
{
    size_t n = strlen(url);
    if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) {
        return err_set(e, ERR_INVALID, "%s: expected http://… or https://…, found '%s'", option,
                       url);
    }
    while (n && url[n - 1] == '/') {
        n--;
    }
    *n_bytes = n > 3 && strncmp(url + n - 3, "/v1", 3) == 0 ? n - 3 : n;
    return 0;
}

int remote_open(struct remote *r, const char *option, const char *url, const char *model,
                const struct client_options *o, struct err *e)
{
    size_t n;
    memset(r, 0, sizeof *r);
    int rc = remote_root(option, url, &n, e);
    if (rc < 0) {
        return rc;
    }
    r->root = strndup(url, n);
    r->model = model ? strdup(model) : NULL;
    if (!r->root || (model && !r->model)) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    return client_open(&r->client, o, e);
}

void remote_close(struct remote *r)
{
    client_close(r->client);
    free(r->root);
    free(r->model);
    memset(r, 0, sizeof *r);
}

int remote_call(struct remote *r, const char *path, const struct buf *body, struct json **out,
                struct err *e)
{
    struct buf url;
    buf_init(&url);
    buf_printf(&url, "%s%s", r->root, path);
    *out = NULL;
    int rc = url.failed ? err_set(e, ERR_NOMEM, "out of memory")
                        : client_call_json(r->client, url.data, body, out, e);
    buf_fini(&url);
    return rc;
}

int remote_models(struct remote *r, struct json **reply, const struct json **cards, struct err *e)
{
    int rc = remote_call(r, "/v1/models", NULL, reply, e);
    *cards = rc < 0 ? NULL : json_get(*reply, "data");
    return rc;
}

int remote_find_model(struct remote *r, const char *option, struct json **reply,
                      const struct json **card, struct err *e)
{
    const struct json *cards;
    size_t n;
    int rc = remote_models(r, reply, &cards, e);
    *card = json_at(cards, 0);
    for (size_t i = 0; r->model && i < json_length(cards); i++) {
        const struct json *id = json_get(json_at(cards, i), "id");
        if (json_type(id) == JSON_STRING && strcmp(json_string(id, &n), r->model) == 0) {
            *card = json_at(cards, i);
        }
    }
    if (rc >= 0 && !r->model) {
        const struct json *id = json_get(*card, "id");
        if (json_type(id) != JSON_STRING) {
            return err_set(e, ERR_FORMAT, "%s/v1/models names no model: give %s", r->root, option);
        }
        r->model = strdup(json_string(id, &n));
        rc = r->model ? rc : err_set(e, ERR_NOMEM, "out of memory");
    }
    return rc;
}

int remote_encode(struct remote *r, const char *text, size_t n_bytes, struct token_ids *out,
                  struct err *e)
{
    struct json *reply = NULL;
    struct json_writer w;
    struct buf b;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_kstring(&w, "model", r->model);
    json_w_key(&w, "prompt");
    json_w_stringn(&w, text, n_bytes);
    json_w_kbool(&w, "add_special_tokens", 0);
    json_w_object_end(&w);
    int rc = remote_call(r, "/tokenize", &b, &reply, e);
    const struct json *ids = json_get(reply, "tokens");
    if (rc < 0) {
        err_prefix(e, "token ids (--tokenizer DIR gives them without the server)");
    } else if (json_type(ids) != JSON_ARRAY) {
        rc = err_set(e, ERR_FORMAT, "%s/tokenize: the reply has no tokens", r->root);
    }
    for (size_t i = 0; rc >= 0 && i < json_length(ids); i++) {
        int64_t id = json_type(json_at(ids, i)) == JSON_INT ? json_int(json_at(ids, i)) : -1;
        rc = id < 0 || id > INT32_MAX
                 ? err_set(e, ERR_FORMAT, "%s/tokenize: a token is no id", r->root)
             : token_ids_push(out, (int32_t)id) < 0 ? err_set(e, ERR_NOMEM, "out of memory")
                                                    : 0;
    }
    json_free(reply);
    buf_fini(&b);
    return rc;
}

int remote_decode(struct remote *r, const int32_t *ids, size_t n, struct buf *out, struct err *e)
{
    struct json *reply = NULL;
    struct json_writer w;
    struct buf b;
    size_t len;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_kstring(&w, "model", r->model);
    json_w_key(&w, "tokens");
    json_w_array(&w);
    for (size_t i = 0; i < n; i++) {
        json_w_int(&w, ids[i]);
    }
    json_w_array_end(&w);
    json_w_object_end(&w);
    int rc = remote_call(r, "/detokenize", &b, &reply, e);
    const struct json *text = json_get(reply, "prompt");
    if (rc >= 0 && json_type(text) != JSON_STRING) {
        rc = err_set(e, ERR_FORMAT, "%s/detokenize: the reply has no prompt", r->root);
    } else if (rc >= 0) {
        const char *s = json_string(text, &len);
        buf_append(out, s, len);
    }
    json_free(reply);
    buf_fini(&b);
    return rc;
}

int remote_events(struct buf *held, const char *bytes, size_t n_bytes,
                  int (*take)(void *user, const char *data, size_t n_bytes), void *user)
{
    size_t from = 0;
    int ended = 0;
    buf_append(held, bytes, n_bytes);
    for (char *end; !ended && from < held->len &&
                    (end = memchr(held->data + from, '\n', held->len - from)) != NULL;) {
        const char *line = held->data + from;
        size_t n = (size_t)(end - line);
        if (*line == '{' || *line == ' ') {
            break; /* an error's body, which may have line breaks */
        }
        n -= n && line[n - 1] == '\r';
        if (n >= 5 && memcmp(line, "data:", 5) == 0) {
            size_t skip = n > 5 && line[5] == ' ' ? 6 : 5;
            ended = take(user, line + skip, n - skip);
        }
        from = (size_t)(end - held->data) + 1;
    }
    if (from) {
        memmove(held->data, held->data + from, held->len - from);
        held->len -= from;
    }
    return ended || held->failed || held->len > EVENT_BYTES_MAX;
}
