/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON exchange as one call. */
#include "net/client.h"

#define REPLY_BYTES_MAX ((size_t)256 << 20)

struct exchange {
    struct buf reply;
    struct err error;
    int status, done;
};

static int take_data(void *user, const char *bytes, size_t n)
{
    struct exchange *x = user;
    buf_append(&x->reply, bytes, n);
    return x->reply.failed || x->reply.len > REPLY_BYTES_MAX;
}

static void take_end(void *user, int status, const struct err *e)
{
    struct exchange *x = user;
    x->status = status;
    x->error = *e;
    x->done = 1;
}

/* OpenAI's {"error": {"message": …}}, or a bare string. */
static const char *message_of(const struct json *reply)
{
    const struct json *error = json_get(reply, "error");
    const struct json *text = json_type(error) == JSON_OBJECT ? json_get(error, "message") : error;
    size_t n;
    return json_type(text) == JSON_STRING ? json_string(text, &n) : NULL;
}

int client_call_json(struct client *c, const char *url, const struct buf *body, struct json **out,
                     struct err *e)
{
    static const struct client_callbacks callbacks = {.data = take_data, .done = take_end};
    static const char *const headers[] = {"Content-Type: application/json"};
    struct exchange x = {.done = 0};
    struct json *reply = NULL;
    struct err parse = {0, ""};
    *out = NULL;
    buf_init(&x.reply);
    int rc = body && body->failed ? err_set(e, ERR_NOMEM, "out of memory")
                                  : client_start(c, body ? "POST" : "GET", url, headers,
                                                 body ? 1 : 0, body ? body->data : NULL,
                                                 body ? body->len : 0, &callbacks, &x, NULL, e);
    while (rc >= 0 && !x.done) {
        client_run(c, 100);
    }
    if (rc >= 0) {
        json_parse(&reply, x.reply.data ? x.reply.data : "", x.reply.len, JSON_DEPTH_DEFAULT,
                   &parse);
        if (x.status == 0 || x.error.code != 0) {
            rc = err_set(e, ERR_IO, "%s: %s", url, x.error.text);
        } else if (x.status != 200) {
            const char *why = message_of(reply);
            rc = err_set(e, ERR_IO, "%s: status %d%s%.300s", url, x.status, why ? ": " : "",
                         why ? why : "");
        } else if (!reply) {
            rc = err_set(e, ERR_FORMAT, "%s: the reply is no JSON: %s", url, parse.text);
        }
    }
    if (rc >= 0) {
        *out = reply;
    } else {
        json_free(reply);
    }
    buf_fini(&x.reply);
    return rc;
}
