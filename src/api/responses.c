/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/responses: OpenAI's newer dialect. One sample, told as a list of items (reasoning, message,
 * function_call) in the order in which they are said; a stream tells of every item and part with
 * named, numbered events:
 *
 *     response.created, response.in_progress
 *     for each item    output_item.added
 *       message        content_part.added  output_text.delta…     output_text.done
 * content_part.done reasoning      content_part.added  reasoning_text.delta…  reasoning_text.done
 * content_part.done function_call  function_call_arguments.delta… function_call_arguments.done
 *                      output_item.done
 *     response.completed | response.incomplete | response.failed
 *
 * A whole answer is made by the same code with nobody listening, so that both agree.
 *
 * A background request is detached from its connection as soon as the engine has it; its response
 * lives in the store, where anyone may read it, follow its events or cancel it. Net thread, except
 * parse. */
#include "api/responses.h"
#include "api/messages.h"

#include "net/sse.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The item that is being said. */
struct item {
    enum answer_kind kind; /* ANSWER_REASONING, ANSWER_CONTENT or ANSWER_CALL */
    int is_open;
    char id[48], call_id[48];
    struct buf name, text, logprobs;
};

struct state {
    struct responses_request r;
    struct response_entry *entry; /* in the store, while the request runs */
    struct item item;
    int n_items;         /* finished: the index of the open one */
    struct buf items;    /* finished, comma-separated JSON */
    struct buf logprobs; /* of tokens whose text is not out yet, if asked for */
    int n_events;
    int is_quiet;           /* a whole answer is being made: no events */
    const char *status;     /* of the response */
    const char *error_text; /* of a failed one */
};

static void fini(struct gen *g)
{
    struct state *t = g->state;
    if (t->entry) { /* it was never finished: the server goes down */
        response_store_drop(g->server->responses, t->entry);
    }
    struct buf *bufs[] = {&t->item.name, &t->item.text, &t->item.logprobs,
                          &t->items,     &t->logprobs,  &t->r.items};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) {
        buf_fini(bufs[i]);
    }
}

static int parse(struct gen *g, struct api_error *e)
{
    struct state *t = arena_alloc(&g->arena, sizeof *t);
    if (!t) {
        return api_fail(e, 503, "ServiceUnavailableError", NULL, "out of memory");
    }
    struct buf *bufs[] = {&t->item.name, &t->item.text, &t->item.logprobs,
                          &t->items,     &t->logprobs,  &t->r.items};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) {
        buf_init(bufs[i]);
    }
    g->state = t;
    t->status = "in_progress";
    if (responses_translate(g, &t->r, e) < 0) {
        return -1;
    }
    if (chat_dialect.parse(g, e) < 0) {
        responses_rename_param(e);
        return -1;
    }
    if (g->f.request_id && strncmp(g->f.request_id, "resp_", 5) == 0) {
        g->f.request_id += 5; /* the prefix of every id */
    }
    return 0;
}

/* ---- the response object ---- */

static void write_raw(struct json_writer *w, const char *key, const char *json)
{
    json_w_key(w, key);
    json_w_raw(w, json, strlen(json));
}

static void write_usage(struct gen *g, struct json_writer *w)
{
    const struct gen_sample *s = &g->samples[0];
    static const char *const in[] = {"input_tokens_per_turn", "cached_tokens_per_turn"};
    static const char *const out[] = {"output_tokens_per_turn", "tool_output_tokens_per_turn"};
    json_w_object(w);
    json_w_kint(w, "input_tokens", g->prompts[0].n);
    json_w_key(w, "input_tokens_details");
    json_w_object(w);
    json_w_kint(w, "cached_tokens", g->prompts[0].n_cached);
    for (int i = 0; i < 2; i++) {
        write_raw(w, in[i], "[]");
    }
    json_w_object_end(w);
    json_w_kint(w, "output_tokens", s->n_tokens);
    json_w_key(w, "output_tokens_details");
    json_w_object(w);
    json_w_kint(w, "reasoning_tokens", s->n_reasoning_tokens);
    json_w_kint(w, "tool_output_tokens", 0);
    for (int i = 0; i < 2; i++) {
        write_raw(w, out[i], "[]");
    }
    json_w_object_end(w);
    json_w_kint(w, "total_tokens", g->prompts[0].n + s->n_tokens);
    json_w_object_end(w);
}

static void write_failure(const struct state *t, struct json_writer *w)
{
    json_w_key(w, "error");
    if (!t->error_text) {
        json_w_null(w);
        return;
    }
    json_w_object(w);
    json_w_kstring(w, "code", "server_error");
    json_w_kstring(w, "message", t->error_text);
    json_w_object_end(w);
}

/* vLLM's fields in vLLM's order, and `error`, which the API's definition demands. */
static void write_response(struct gen *g, struct json_writer *w)
{
    const struct state *t = g->state;
    const struct responses_echo *o = &t->r.echo;
    int ended = strcmp(t->status, "completed") == 0 || strcmp(t->status, "incomplete") == 0;
    json_w_object(w);
    json_w_kstring(w, "id", g->id);
    json_w_kint(w, "created_at", g->created);
    write_failure(t, w);
    write_raw(w, "incomplete_details",
              strcmp(t->status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null");
    write_raw(w, "instructions", o->instructions);
    write_raw(w, "metadata", o->metadata);
    json_w_kstring(w, "model", g->server->o.served_model_names[0]);
    json_w_kstring(w, "object", "response");
    json_w_key(w, "output");
    gen_write_raw_array(w, &t->items);
    json_w_kbool(w, "parallel_tool_calls", o->parallel_tool_calls);
    json_w_kdouble(w, "temperature", g->f.sp.temperature);
    write_raw(w, "tool_choice", o->tool_choice);
    write_raw(w, "tools", o->tools);
    json_w_kdouble(w, "top_p", g->f.sp.top_p);
    json_w_kbool(w, "background", t->r.background);
    json_w_kint(w, "max_output_tokens", g->prompts[0].max_tokens);
    write_raw(w, "max_tool_calls", o->max_tool_calls);
    write_raw(w, "previous_response_id", o->previous_response_id);
    json_w_knull(w, "prompt");
    write_raw(w, "reasoning", o->reasoning);
    write_raw(w, "service_tier", o->service_tier);
    json_w_kstring(w, "status", t->status);
    write_raw(w, "text", o->text);
    write_raw(w, "top_logprobs", o->top_logprobs);
    write_raw(w, "truncation", o->truncation);
    json_w_key(w, "usage");
    if (ended) {
        write_usage(g, w);
    } else {
        json_w_null(w);
    }
    write_raw(w, "user", o->user);
    json_w_knull(w, "input_messages");
    json_w_knull(w, "output_messages");
    json_w_object_end(w);
}

/* ---- events ---- */

static void open_event(struct state *t, struct json_writer *w, struct buf *b, const char *type)
{
    buf_init(b);
    json_w_init(w, b);
    json_w_object(w);
    json_w_kstring(w, "type", type);
    json_w_kint(w, "sequence_number", t->n_events++);
}

static void close_event(struct gen *g, struct json_writer *w, struct buf *b, const char *type)
{
    struct state *t = g->state;
    json_w_object_end(w);
    if (t->entry && response_entry_has_events(t->entry)) {
        response_entry_event(t->entry, type, b);
    } else if (g->x) {
        sse_event(g->x, type, b->data ? b->data : "{}", b->data ? b->len : 2);
    }
    buf_fini(b);
}

static void send_response(struct gen *g, const char *type)
{
    struct json_writer w;
    struct buf b;
    open_event(g->state, &w, &b, type);
    json_w_key(&w, "response");
    write_response(g, &w);
    close_event(g, &w, &b, type);
}

/* ---- items ---- */

static const char *text_of(const struct buf *b)
{
    return b->data ? b->data : "";
}

static void write_part(const struct item *i, int is_done, struct json_writer *w)
{
    int is_text = i->kind == ANSWER_CONTENT;
    json_w_object(w);
    if (is_text) {
        write_raw(w, "annotations", "[]");
    }
    json_w_key(w, "text");
    json_w_stringn(w, text_of(&i->text), is_done ? i->text.len : 0);
    json_w_kstring(w, "type", is_text ? "output_text" : "reasoning_text");
    if (is_text) {
        json_w_key(w, "logprobs");
        gen_write_raw_array(w, &i->logprobs);
    }
    json_w_object_end(w);
}

static void write_item(const struct item *i, const char *status, struct json_writer *w)
{
    int is_done = strcmp(status, "in_progress") != 0;
    json_w_object(w);
    json_w_kstring(w, "id", i->id);
    if (i->kind == ANSWER_CALL) {
        json_w_kstring(w, "type", "function_call");
        json_w_kstring(w, "call_id", i->call_id);
        json_w_key(w, "name");
        json_w_stringn(w, text_of(&i->name), i->name.len);
        json_w_key(w, "arguments");
        json_w_stringn(w, text_of(&i->text), is_done ? i->text.len : 0);
        json_w_kstring(w, "status", status);
        json_w_object_end(w);
        return;
    }
    if (i->kind == ANSWER_REASONING) {
        json_w_kstring(w, "type", "reasoning");
        write_raw(w, "summary", "[]");
    } else {
        json_w_kstring(w, "type", "message");
        json_w_kstring(w, "role", "assistant");
    }
    json_w_key(w, "content");
    json_w_array(w);
    if (is_done) {
        write_part(i, 1, w);
    }
    json_w_array_end(w);
    if (i->kind == ANSWER_REASONING) {
        json_w_knull(w, "encrypted_content");
    }
    json_w_kstring(w, "status", status);
    json_w_object_end(w);
}

/* Where an event belongs. */
static void write_place(const struct state *t, int has_part, struct json_writer *w)
{
    json_w_kstring(w, "item_id", t->item.id);
    json_w_kint(w, "output_index", t->n_items);
    if (has_part) {
        json_w_kint(w, "content_index", 0);
    }
}

static void send_item(struct gen *g, const char *type, const char *status)
{
    struct state *t = g->state;
    struct json_writer w;
    struct buf b;
    open_event(t, &w, &b, type);
    json_w_kint(&w, "output_index", t->n_items);
    json_w_key(&w, "item");
    write_item(&t->item, status, &w);
    close_event(g, &w, &b, type);
}

static void send_part(struct gen *g, const char *type, int is_done)
{
    struct state *t = g->state;
    struct json_writer w;
    struct buf b;
    open_event(t, &w, &b, type);
    write_place(t, 1, &w);
    json_w_key(&w, "part");
    write_part(&t->item, is_done, &w);
    close_event(g, &w, &b, type);
}

/* The .delta and .done events of an item's text. */
static void send_text(struct gen *g, int is_done, const char *text, size_t n_bytes,
                      const struct buf *logprobs)
{
    static const char *const types[][2] = {
        [ANSWER_REASONING] = {"response.reasoning_text.delta", "response.reasoning_text.done"},
        [ANSWER_CONTENT] = {"response.output_text.delta", "response.output_text.done"},
        [ANSWER_CALL] = {"response.function_call_arguments.delta",
                         "response.function_call_arguments.done"},
    };
    struct state *t = g->state;
    const char *type = types[t->item.kind][is_done];
    struct json_writer w;
    struct buf b;
    open_event(t, &w, &b, type);
    write_place(t, t->item.kind != ANSWER_CALL, &w);
    if (is_done && t->item.kind == ANSWER_CALL) {
        json_w_key(&w, "name");
        json_w_stringn(&w, text_of(&t->item.name), t->item.name.len);
    }
    json_w_key(&w, !is_done ? "delta" : t->item.kind == ANSWER_CALL ? "arguments" : "text");
    json_w_stringn(&w, text, n_bytes);
    if (t->item.kind == ANSWER_CONTENT) {
        json_w_key(&w, "logprobs");
        gen_write_raw_array(&w, logprobs);
    }
    close_event(g, &w, &b, type);
}

static void close_item(struct gen *g, const char *status)
{
    struct state *t = g->state;
    struct item *i = &t->item;
    struct json_writer w;
    if (!i->is_open) {
        return;
    }
    if (!t->is_quiet) {
        send_text(g, 1, text_of(&i->text), i->text.len, &i->logprobs);
        if (i->kind != ANSWER_CALL) {
            send_part(g, "response.content_part.done", 1);
        }
        send_item(g, "response.output_item.done", status);
    }
    buf_puts(&t->items, t->items.len ? "," : "");
    json_w_init(&w, &t->items);
    write_item(i, status, &w);
    t->n_items++;
    i->is_open = 0;
}

static void open_item(struct gen *g, enum answer_kind kind, const char *name, size_t n_bytes)
{
    static const char *const prefixes[] = {
        [ANSWER_REASONING] = "rs_", [ANSWER_CONTENT] = "msg_", [ANSWER_CALL] = "fc_"};
    struct state *t = g->state;
    struct item *i = &t->item;
    char random[33];
    close_item(g, "completed");
    i->kind = kind;
    i->is_open = 1;
    buf_clear(&i->name);
    buf_clear(&i->text);
    buf_clear(&i->logprobs);
    random_hex(random, 32);
    snprintf(i->id, sizeof i->id, "%s%s", prefixes[kind], random);
    random_hex(random, 24);
    snprintf(i->call_id, sizeof i->call_id, "call_%s", random);
    if (kind == ANSWER_CALL) {
        buf_append(&i->name, name, n_bytes);
    }
    if (!t->is_quiet) {
        send_item(g, "response.output_item.added", "in_progress");
        if (kind != ANSWER_CALL) {
            send_part(g, "response.content_part.added", 0);
        }
    }
}

/* More text of the item. A message takes the logprobs that wait. */
static void add_text(struct gen *g, const char *text, size_t n_bytes)
{
    struct state *t = g->state;
    struct item *i = &t->item;
    int takes = i->kind == ANSWER_CONTENT && t->logprobs.len > 0;
    buf_append(&i->text, text, n_bytes);
    if (takes) {
        buf_puts(&i->logprobs, i->logprobs.len ? "," : "");
        buf_append(&i->logprobs, t->logprobs.data, t->logprobs.len);
    }
    if (!t->is_quiet && (n_bytes || takes)) {
        send_text(g, 0, text, n_bytes, &t->logprobs);
    }
    if (takes) {
        buf_clear(&t->logprobs);
    }
}

/* The arguments of a call are whole, or were cut off. */
static int is_json(const struct buf *text)
{
    struct json *v = NULL;
    int rc = json_parse(&v, text_of(text), text->len, INT_MAX, NULL);
    json_free(v);
    return rc == 0;
}

/* What the sample says, to its end when it is done. */
static void take(struct gen *g, struct gen_sample *s, const char *text, size_t n_bytes)
{
    struct state *t = g->state;
    struct answer_event ev;
    if (s->lp_content.len) {
        buf_puts(&t->logprobs, t->logprobs.len ? "," : "");
        buf_append(&t->logprobs, s->lp_content.data, s->lp_content.len);
        buf_clear(&s->lp_content);
    }
    messages_split(s, text, n_bytes);
    while (answer_next(&s->answer, &ev)) {
        int is_text = ev.kind == ANSWER_CONTENT || ev.kind == ANSWER_REASONING;
        if (ev.kind == ANSWER_CALL || (is_text && !(t->item.is_open && t->item.kind == ev.kind))) {
            open_item(g, ev.kind, ev.text, ev.n_bytes);
        }
        if (is_text || ev.kind == ANSWER_ARGUMENTS) {
            add_text(g, ev.text, ev.n_bytes);
        } else if (ev.kind == ANSWER_CALL_END) {
            close_item(g, is_json(&t->item.text) ? "completed" : "incomplete");
        }
    }
    if (!s->done) {
        return;
    }
    if (!t->item.is_open && t->n_items == 0) { /* nothing was said: an empty message */
        open_item(g, ANSWER_CONTENT, NULL, 0);
    }
    if (t->item.is_open && t->item.kind == ANSWER_CONTENT) {
        add_text(g, "", 0); /* of tokens without a text, such as the last one */
    }
    close_item(g, s->finish == FINISH_LENGTH ? "incomplete" : "completed");
    t->status = s->finish == FINISH_LENGTH  ? "incomplete"
                : s->finish == FINISH_ABORT ? "failed"
                                            : "completed";
    t->error_text = s->finish == FINISH_ABORT ? "The server is shutting down." : NULL;
}

/* ---- the end ---- */

/* The response as it is now goes into the store; when it said something, so does what was said. */
static void store(struct gen *g, const struct buf *response)
{
    struct state *t = g->state;
    if (!t->r.store) {
        return;
    }
    if (!t->entry) {
        t->entry = response_store_begin(g->server->responses, g->id, g);
    }
    if (!t->entry) {
        log_info(g->server->log, "%s is not kept: out of memory, or its id is in use.", g->id);
        return;
    }
    int has_items = !t->error_text && strcmp(t->status, "cancelled") != 0;
    if (has_items) {
        buf_puts(&t->r.items, t->r.items.len ? "," : "");
        buf_append(&t->r.items, text_of(&t->items), t->items.len);
    }
    response_store_finish(g->server->responses, t->entry, response, has_items ? &t->r.items : NULL);
    t->entry = NULL;
}

static void store_now(struct gen *g)
{
    struct json_writer w;
    struct buf b;
    buf_init(&b);
    json_w_init(&w, &b);
    write_response(g, &w);
    store(g, &b);
    buf_fini(&b);
}

static void begin(struct gen *g)
{
    send_response(g, "response.created");
    send_response(g, "response.in_progress");
}

static void end(struct gen *g)
{
    struct state *t = g->state;
    struct http_exchange *x = g->x;
    send_response(g, t->error_text                          ? "response.failed"
                     : strcmp(t->status, "incomplete") == 0 ? "response.incomplete"
                                                            : "response.completed");
    store_now(g);
    if (x) {
        http_stream_end(x);
    }
}

/* Inside a stream, or in the background. */
static void fail(struct gen *g, const struct api_error *e)
{
    struct state *t = g->state;
    struct http_exchange *x = g->x;
    t->status = "failed";
    t->error_text = e->message;
    if (g->streaming) {
        send_response(g, "response.failed");
    }
    store_now(g);
    t->error_text = NULL; /* e is the caller's */
    if (x) {
        http_stream_end(x);
    }
}

static void body(struct gen *g, struct buf *out)
{
    struct state *t = g->state;
    struct gen_sample *s = &g->samples[0];
    struct json_writer w;
    size_t n;
    const char *text = output_take(&s->out, &n);
    t->is_quiet = 1;
    take(g, s, text, n);
    json_w_init(&w, out);
    write_response(g, &w);
    store(g, out);
}

/* ---- in the background ---- */

static void accepted(struct gen *g)
{
    struct state *t = g->state;
    struct buf b;
    struct json_writer w;
    if (!t->r.background) {
        return;
    }
    t->entry = response_store_begin(g->server->responses, g->id, g);
    if (!t->entry) {
        struct api_error e;
        api_fail(&e, 400, "invalid_request_error", "request_id",
                 "A response with the id '%.200s' is being made or followed.", g->id);
        respond_error(g->server, gen_detach(g), &e);
        gen_abandon(g);
        return;
    }
    struct http_exchange *x = gen_detach(g);
    if (g->f.stream) {
        response_entry_keep_events(t->entry);
        response_entry_follow(t->entry, x, 0);
        return;
    }
    buf_init(&b);
    json_w_init(&w, &b);
    t->status = "queued";
    write_response(g, &w);
    t->status = "in_progress";
    respond_json(x, 200, &b);
}

const struct gen_dialect responses_dialect = {
    .id_prefix = "resp_",
    .fields = responses_fields,
    .chat = 1,
    .parse = parse,
    .begin = begin,
    .body = body,
    .accepted = accepted,
    .stream = take,
    .end = end,
    .fail = fail,
    .fini = fini,
};

/* ---- routes ---- */

void responses_handle(struct server *s, struct http_exchange *x)
{
    gen_start(s, x, &responses_dialect);
}

/* The entry that the path names, or NULL after a 404. */
static struct response_entry *find(struct server *s, struct http_exchange *x)
{
    struct api_error e;
    char id[256];
    int rc = route_param(s, x, id, sizeof id);
    struct response_entry *entry =
        rc == 0 && s->responses ? response_store_find(s->responses, id) : NULL;
    if (!entry) {
        api_fail(&e, 404, "invalid_request_error", "response_id",
                 "Response with id '%.200s' not found.%s", rc == 0 ? id : "",
                 s->responses ? ""
                              : " Responses are kept only with VLLM_ENABLE_RESPONSES_API_STORE=1.");
        respond_error(s, x, &e);
    }
    return entry;
}

static void respond_entry(struct http_exchange *x, const struct response_entry *entry)
{
    struct gen *g = response_entry_gen(entry);
    struct buf b;
    buf_init(&b);
    if (g) {
        struct state *t = g->state;
        struct json_writer w;
        t->status = g->samples[0].n_tokens > 0 ? "in_progress" : "queued";
        json_w_init(&w, &b);
        write_response(g, &w);
        t->status = "in_progress";
    } else {
        const struct buf *json = response_entry_json(entry);
        buf_append(&b, text_of(json), json->len);
    }
    respond_json(x, 200, &b);
}

/* The value of a parameter of the query: 1 and its text in out, or 0. */
static int query_param(const struct http_exchange *x, const char *name, char *out, size_t size)
{
    const char *p = http_query(x);
    size_t n = strlen(name);
    while (p && *p) {
        size_t len = strcspn(p, "&");
        if (len > n && p[n] == '=' && memcmp(p, name, n) == 0) {
            snprintf(out, size, "%.*s", (int)(len - n - 1), p + n + 1);
            return 1;
        }
        p += len + (p[len] == '&');
    }
    return 0;
}

static int wants_stream(const struct http_exchange *x)
{
    char value[24];
    return query_param(x, "stream", value, sizeof value) &&
           (strcasecmp(value, "true") == 0 || strcmp(value, "1") == 0);
}

/* The first event that is wanted, or -1. */
static long first_event(const struct http_exchange *x)
{
    char value[24], *rest;
    if (!query_param(x, "starting_after", value, sizeof value)) {
        return 0;
    }
    long after = strtol(value, &rest, 10);
    return *value && !*rest && after >= 0 && after < LONG_MAX ? after + 1 : -1;
}

void responses_get_handle(struct server *s, struct http_exchange *x)
{
    struct response_entry *entry = find(s, x);
    struct api_error e;
    long first = first_event(x);
    if (!entry) {
        return;
    }
    if (!wants_stream(x)) {
        respond_entry(x, entry);
    } else if (first < 0) {
        api_fail(&e, 400, TYPE_SCHEMA, "query.starting_after",
                 "starting_after should be the sequence number of an event");
        respond_error(s, x, &e);
    } else if (!response_entry_has_events(entry)) {
        api_fail(&e, 400, TYPE_BAD, "response_id",
                 "The response has no events to follow: only those made with `background` and "
                 "`stream` keep them.");
        respond_error(s, x, &e);
    } else {
        response_entry_follow(entry, x, (size_t)first);
    }
}

void responses_cancel_handle(struct server *s, struct http_exchange *x)
{
    struct response_entry *entry = find(s, x);
    struct gen *g = entry ? response_entry_gen(entry) : NULL;
    if (!entry) {
        return;
    }
    if (!g) {
        struct api_error e;
        api_fail(&e, 400, "invalid_request_error", "response_id",
                 "Cannot cancel a synchronous response.");
        respond_error(s, x, &e);
        return;
    }
    struct state *t = g->state;
    close_item(g, "incomplete");
    t->status = "cancelled";
    if (response_entry_has_events(entry) && g->streaming) {
        send_response(g, "response.failed");
    }
    store_now(g);
    gen_abandon(g);
    respond_entry(x, entry);
}
