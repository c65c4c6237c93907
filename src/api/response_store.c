/* SPDX-License-Identifier: Apache-2.0 */
/* Responses that outlive their connection: what GET /v1/responses/{id} and previous_response_id
 * find. In memory, and bounded: beyond MAX_RESPONSES or MAX_BYTES the one that was finished longest
 * ago is forgotten. One that is being made, or followed, is never forgotten, nor is the last one.
 *
 * Everything belongs to the net thread, except that requests are parsed on the worker too and look
 * up the items of earlier responses there: entries are inserted, finished and removed under the
 * lock, and the worker reads under it. */
#include "api/responses.h"

#include "base/map.h"
#include "net/sse.h"

#include <stdlib.h>
#include <string.h>

#define MAX_RESPONSES 4096
#define MAX_BYTES     ((size_t)256 << 20)

struct follower {
    struct follower *prev, *next;
    struct response_entry *entry;
    struct http_exchange *x;
    size_t at; /* byte of the log that comes next */
};

struct response_entry {
    struct response_entry *prev, *next; /* finished ones, oldest first */
    char *id;
    struct gen *gen; /* NULL once done */
    struct buf json, items;
    int has_items;
    int has_events;
    struct buf log; /* all events as they are sent */
    size_t *starts; /* of event i in the log */
    size_t n_events, cap_events;
    struct follower *followers;
};

struct response_store {
    pthread_mutex_t lock;
    struct map *entries; /* by id */
    struct response_entry *oldest, *newest;
    size_t n, n_bytes; /* of finished ones */
};

int response_store_open(struct response_store **out, struct err *e)
{
    struct response_store *s = calloc(1, sizeof *s);
    *out = s;
    if (!s) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    pthread_mutex_init(&s->lock, NULL);
    s->entries = map_new();
    if (!s->entries) {
        response_store_close(s);
        *out = NULL;
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    return 0;
}

static void free_entry(struct response_entry *e)
{
    for (struct follower *f = e->followers, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    buf_fini(&e->json);
    buf_fini(&e->items);
    buf_fini(&e->log);
    free(e->starts);
    free(e->id);
    free(e);
}

void response_store_close(struct response_store *s)
{
    size_t it = 0, n;
    const void *key;
    void *value;
    if (!s) {
        return;
    }
    while (s->entries && map_next(s->entries, &it, &key, &n, &value)) {
        free_entry(value);
    }
    map_free(s->entries);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

struct response_entry *response_store_find(struct response_store *s, const char *id)
{
    return map_get(s->entries, id, strlen(id));
}

int response_store_items(struct response_store *s, const char *id, struct buf *out)
{
    int rc = ERR_NOT_FOUND;
    pthread_mutex_lock(&s->lock);
    const struct response_entry *e = response_store_find(s, id);
    if (e && e->gen) {
        rc = ERR_BUSY;
    } else if (e && e->has_items) {
        rc = 0;
        buf_puts(out, out->len ? "," : "");
        buf_append(out, e->items.data ? e->items.data : "", e->items.len);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* ---- life of an entry ---- */

static size_t size_of(const struct response_entry *e)
{
    return sizeof *e + strlen(e->id) + e->json.len + e->items.len + e->log.len +
           e->n_events * sizeof *e->starts;
}

static void unlink_entry(struct response_store *s, struct response_entry *e)
{
    *(e->prev ? &e->prev->next : &s->oldest) = e->next;
    *(e->next ? &e->next->prev : &s->newest) = e->prev;
    s->n--;
    s->n_bytes -= size_of(e);
}

static void link_newest(struct response_store *s, struct response_entry *e)
{
    e->prev = s->newest;
    e->next = NULL;
    *(s->newest ? &s->newest->next : &s->oldest) = e;
    s->newest = e;
    s->n++;
    s->n_bytes += size_of(e);
}

static void make_room(struct response_store *s)
{
    for (struct response_entry *e = s->oldest, *next; e; e = next) {
        next = e->next;
        if (e == s->newest || (s->n <= MAX_RESPONSES && s->n_bytes <= MAX_BYTES)) {
            return;
        }
        if (!e->followers) {
            unlink_entry(s, e);
            map_remove(s->entries, e->id, strlen(e->id));
            free_entry(e);
        }
    }
}

struct response_entry *response_store_begin(struct response_store *s, const char *id, struct gen *g)
{
    struct response_entry *old = response_store_find(s, id);
    struct response_entry *e = old && (old->gen || old->followers) ? NULL : calloc(1, sizeof *e);
    if (!e) {
        return NULL;
    }
    e->id = strdup(id);
    e->gen = g;
    buf_init(&e->json);
    buf_init(&e->items);
    buf_init(&e->log);
    pthread_mutex_lock(&s->lock);
    int rc = e->id ? map_put(s->entries, id, strlen(id), e) : ERR_NOMEM;
    if (rc == 0 && old) {
        unlink_entry(s, old);
        free_entry(old);
    }
    pthread_mutex_unlock(&s->lock);
    if (rc != 0) {
        free_entry(e);
        return NULL;
    }
    return e;
}

/* ---- events ---- */

/* Sends what the follower has not seen, as far as its socket takes it. */
static void pump(struct follower *f)
{
    struct response_entry *e = f->entry;
    if (http_stream_backlog(f->x) > HTTP_STREAM_HIGH_BYTES) {
        return; /* on_drain goes on */
    }
    if (f->at < e->log.len) {
        struct iovec part = {e->log.data + f->at, e->log.len - f->at};
        f->at = e->log.len;
        http_stream_writev(f->x, &part, 1);
    }
    if (!e->gen) {
        *(f->prev ? &f->prev->next : &e->followers) = f->next;
        if (f->next) {
            f->next->prev = f->prev;
        }
        http_stream_end(f->x);
        free(f);
    }
}

static void on_drain(void *user)
{
    pump(user);
}

static void on_gone(void *user)
{
    struct follower *f = user;
    *(f->prev ? &f->prev->next : &f->entry->followers) = f->next;
    if (f->next) {
        f->next->prev = f->prev;
    }
    free(f);
}

static void pump_all(struct response_entry *e)
{
    for (struct follower *f = e->followers, *next; f; f = next) {
        next = f->next;
        pump(f);
    }
}

void response_entry_keep_events(struct response_entry *e)
{
    e->has_events = 1;
}

int response_entry_has_events(const struct response_entry *e)
{
    return e->has_events;
}

void response_entry_event(struct response_entry *e, const char *name, const struct buf *json)
{
    if (e->n_events == e->cap_events) {
        size_t cap = e->cap_events ? 2 * e->cap_events : 64;
        size_t *more = realloc(e->starts, cap * sizeof *more);
        if (!more) {
            return;
        }
        e->starts = more;
        e->cap_events = cap;
    }
    e->starts[e->n_events++] = e->log.len;
    buf_printf(&e->log, "event: %s\ndata: ", name);
    buf_append(&e->log, json->data ? json->data : "", json->len);
    buf_puts(&e->log, "\n\n");
    pump_all(e);
}

void response_entry_follow(struct response_entry *e, struct http_exchange *x, size_t first)
{
    struct follower *f = calloc(1, sizeof *f);
    if (!f) {
        http_respond(x, 503, NULL, "", 0);
        return;
    }
    f->entry = e;
    f->x = x;
    f->at = first < e->n_events ? e->starts[first] : e->log.len;
    f->next = e->followers;
    if (f->next) {
        f->next->prev = f;
    }
    e->followers = f;
    sse_begin(x);
    http_on_gone(x, on_gone, f);
    http_on_drain(x, on_drain, f);
    pump(f);
}

/* ---- the end ---- */

void response_store_finish(struct response_store *s, struct response_entry *e,
                           const struct buf *response, const struct buf *items)
{
    pthread_mutex_lock(&s->lock);
    buf_append(&e->json, response->data ? response->data : "", response->len);
    if (items) {
        buf_append(&e->items, items->data ? items->data : "", items->len);
        e->has_items = !items->failed && !e->items.failed;
    }
    e->gen = NULL;
    link_newest(s, e);
    pthread_mutex_unlock(&s->lock);
    pump_all(e);
    pthread_mutex_lock(&s->lock);
    make_room(s);
    pthread_mutex_unlock(&s->lock);
}

void response_store_drop(struct response_store *s, struct response_entry *e)
{
    pthread_mutex_lock(&s->lock);
    map_remove(s->entries, e->id, strlen(e->id));
    pthread_mutex_unlock(&s->lock);
    free_entry(e);
}

struct gen *response_entry_gen(const struct response_entry *e)
{
    return e->gen;
}

const struct buf *response_entry_json(const struct response_entry *e)
{
    return &e->json;
}
