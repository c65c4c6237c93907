/* SPDX-License-Identifier: Apache-2.0 */
/* What eval, bench, chat and health need of a server that speaks OpenAI's API, beside their own requests:
 * its address, its models, token ids, and the events of a stream. */
#ifndef TERN_CMD_REMOTE_H
#define TERN_CMD_REMOTE_H

#include "net/client.h"
#include "text/tokenizer.h"

struct remote {
    struct client *client;
    char *root;  /* "http://host:port", without /v1 */
    char *model; /* the name requests carry; NULL until known */
};

/* How much of a url, with or without /v1 and slashes at its end, is the server's root; `option` is
 * what a fault calls it. */
int remote_root(const char *option, const char *url, size_t *n_bytes, struct err *e);
/* url and option as above. Closing is due whatever open returned. */
int remote_open(struct remote *r, const char *option, const char *url, const char *model,
                const struct client_options *o, struct err *e);
void remote_close(struct remote *r);

/* GET root/path, or POST of a JSON body. */
int remote_call(struct remote *r, const char *path, const struct buf *body, struct json **out,
                struct err *e);
/* The cards of /v1/models: *cards is inside *reply, which is the caller's to free. */
int remote_models(struct remote *r, struct json **reply, const struct json **cards, struct err *e);
/* The card of r->model; without a model, that of the first, whose name it takes. The first one too
 * when the model has no card (an adapter, an alias): NULL only when there is none. `option` is what
 * to give when the server names no model. */
int remote_find_model(struct remote *r, const char *option, struct json **reply,
                      const struct json **card, struct err *e);

/* Token ids by /tokenize and text by /detokenize, which tern and vLLM have. Both append. */
int remote_encode(struct remote *r, const char *text, size_t n_bytes, struct token_ids *out,
                  struct err *e);
int remote_decode(struct remote *r, const int32_t *ids, size_t n, struct buf *out, struct err *e);

/* Takes more bytes of an event stream and calls take for the data of every whole event; what is not
 * whole stays in `held`. The body of an error, JSON by itself, stays there too. Non-zero when take
 * returned non-zero or an event is too long. */
int remote_events(struct buf *held, const char *bytes, size_t n_bytes,
                  int (*take)(void *user, const char *data, size_t n_bytes), void *user);

#endif
