/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of /v1/responses. A request is translated into the chat request that means the same
 * (responses_request.c), so that messages, tools, schemas and sampling have one implementation; the
 * answer is told as items and events (responses.c); what is to outlive its connection is kept in
 * the store (response_store.c). */
#ifndef TERN_API_RESPONSES_H
#define TERN_API_RESPONSES_H

#include "api/gen.h"

#include <pthread.h>

extern const struct gen_dialect responses_dialect;

/* What a response repeats of its request, as JSON texts in the request's arena. */
struct responses_echo {
    const char *instructions, *metadata, *tool_choice, *tools, *max_tool_calls;
    const char *previous_response_id, *reasoning, *service_tier, *text, *top_logprobs, *truncation;
    const char *user;
    int parallel_tool_calls;
};

struct responses_request {
    int background, store;
    struct responses_echo echo;
    struct buf items; /* input items, those of previous responses first; comma-separated JSON */
};

/* g->json becomes a chat request, g->received the original. Looks up previous responses in the
 * server's store. */
int responses_translate(struct gen *g, struct responses_request *r, struct api_error *e);
/* Names of the chat request in an error become those of the original. */
void responses_rename_param(struct api_error *e);
extern const char *const responses_fields[]; /* known ones, NULL-terminated */

/* ---- response_store.c ---- */
struct response_store;
struct response_entry;

int response_store_open(struct response_store **out, struct err *e);
void response_store_close(struct response_store *s);

/* Any thread: appends the items of a finished response to out, with a comma before them when out is
 * not empty. 0; ERR_NOT_FOUND; ERR_BUSY while it is being made. */
int response_store_items(struct response_store *s, const char *id, struct buf *out);

/* The rest belongs to the net thread. */
/* A response that is being made, for g. NULL: out of memory, or one with this id is being made.
 * A finished one of this id is replaced. */
struct response_entry *response_store_begin(struct response_store *s, const char *id,
                                            struct gen *g);
/* It is done: the response as JSON, and all items of the conversation (NULL: none to go on from).
 */
void response_store_finish(struct response_store *s, struct response_entry *e,
                           const struct buf *response, const struct buf *items);
void response_store_drop(struct response_store *s, struct response_entry *e); /* never happened */
struct response_entry *response_store_find(struct response_store *s, const char *id);
struct gen *response_entry_gen(const struct response_entry *e);        /* NULL once done */
const struct buf *response_entry_json(const struct response_entry *e); /* once done */

/* Events of a streamed background response: kept, and told to everyone who follows. */
void response_entry_keep_events(struct response_entry *e);
int response_entry_has_events(const struct response_entry *e);
void response_entry_event(struct response_entry *e, const char *name, const struct buf *json);
/* Answers x with the events from number `first` on, now and as they come, until the response is
 * done. */
void response_entry_follow(struct response_entry *e, struct http_exchange *x, size_t first);

#endif
