/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and queues. A request's events come to a queue: its own, or one that it shares. Whoever
 * takes from the queue turns them into chunks (text, stop strings, log-probabilities), so the
 * engine's thread does none of that.
 *
 * A request that is closed while it runs on a shared queue stays until its last event has come:
 * the queue drops it then. One that has ended does not touch its queue any more. */
#include "base/clock.h"
#include "lib/lib.h"
#include "model/config.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(TERN_STOP == (int)FINISH_STOP && TERN_LENGTH == (int)FINISH_LENGTH &&
                   TERN_ABORT == (int)FINISH_ABORT && TERN_ERROR == (int)FINISH_ERROR &&
                   TERN_REPETITION == (int)FINISH_REPETITION,
               "reasons of tern.h are the engine's");

const char *tern_finish_name(int finish)
{
    return finish_reason_name((enum finish_reason)finish);
}

/* ---- the prompt ---- */

int tern_request_new(struct tern_request **out, struct tern_engine *en, struct tern_error *error)
{
    struct tern_request *r = *out = calloc(1, sizeof *r);
    if (!r) {
        return lib_no_memory(error);
    }
    r->engine = en;
    atomic_fetch_add(&en->n_refs, 1);
    atomic_init(&r->state, LIB_DONE);
    buf_init(&r->text);
    arena_init(&r->arena, 0);
    return 0;
}

static int fresh(struct tern_request *r, struct err *e)
{
    if (r->started) {
        return err_set(e, ERR_INVALID, "the request was started already");
    }
    buf_clear(&r->text);
    r->has_text = 0;
    r->ids.n = 0;
    r->is_chat = 0;
    return 0;
}

int tern_request_set_text(struct tern_request *r, const char *text, size_t n_bytes,
                          struct tern_error *error)
{
    struct err e;
    int rc = fresh(r, &e);
    if (rc >= 0) {
        buf_append(&r->text, text, lib_length(text, n_bytes));
        r->has_text = 1;
        rc = r->text.failed ? err_set(&e, ERR_NOMEM, "out of memory") : 0;
    }
    return rc < 0 ? lib_fail(error, &e) : 0;
}

int tern_request_set_ids(struct tern_request *r, const int32_t *ids, size_t n,
                         struct tern_error *error)
{
    struct err e;
    int rc = fresh(r, &e);
    for (size_t i = 0; rc >= 0 && i < n; i++) {
        rc = token_ids_push(&r->ids, ids[i]) < 0 ? err_set(&e, ERR_NOMEM, "out of memory") : 0;
    }
    return rc < 0 ? lib_fail(error, &e) : 0;
}

int tern_request_set_chat(struct tern_request *r, const char *messages, size_t n_bytes,
                          const char *options, struct tern_error *error)
{
    struct err e;
    int rc = fresh(r, &e);
    rc = rc < 0 ? rc
                : lib_chat_encode(&r->engine->tokenizer, messages, lib_length(messages, n_bytes),
                                  options, &r->ids, &r->text, &e);
    r->has_text = r->is_chat = rc >= 0;
    return rc < 0 ? lib_fail(error, &e) : 0;
}

void tern_request_set_priority(struct tern_request *r, int priority)
{
    r->priority = priority;
}

void tern_request_set_user(struct tern_request *r, void *user)
{
    r->user = user;
}

void *tern_request_user(const struct tern_request *r)
{
    return r->user;
}

const int32_t *tern_request_prompt_ids(const struct tern_request *r, size_t *n)
{
    *n = r->ids.n;
    return r->ids.ids;
}

const char *tern_request_prompt_text(const struct tern_request *r, size_t *n_bytes)
{
    if (n_bytes) {
        *n_bytes = r->has_text ? r->text.len : 0;
    }
    return !r->has_text ? NULL : r->text.data ? r->text.data : "";
}

const char *tern_request_text(const struct tern_request *r, int index, size_t *n_bytes)
{
    const struct buf *b = index >= 0 && index < r->n ? &r->samples[index].out.text : NULL;
    if (n_bytes) {
        *n_bytes = b ? b->len : 0;
    }
    return b && b->data ? b->data : "";
}

/* Text to ids, if that is still to do, and whether the engine can take them. */
static int encode(struct tern_request *r, struct err *e)
{
    const struct setup *s = &r->engine->setup;
    int vocab_size = model_config(s->model)->vocab_size, rc = 0;
    if (r->has_text && !r->is_chat) {
        r->ids.n = 0;
        rc = tokenizer_encode(s->tokenizer, r->text.data ? r->text.data : "", r->text.len, 1,
                              &r->ids, e);
    }
    if (rc >= 0 && r->ids.n == 0) {
        rc = err_set(e, ERR_INVALID, "the prompt is empty");
    }
    if (rc >= 0 && r->ids.n >= (size_t)s->plan.max_model_len) {
        rc = err_set(e, ERR_TOO_LARGE,
                     "%zu prompt tokens leave no room for output: the max model len is %d",
                     r->ids.n, s->plan.max_model_len);
    }
    for (size_t i = 0; rc >= 0 && i < r->ids.n; i++) {
        if (r->ids.ids[i] < 0 || r->ids.ids[i] >= vocab_size) {
            rc = err_set(e, ERR_INVALID, "prompt: %d is not in the vocabulary (0 to %d)",
                         r->ids.ids[i], vocab_size - 1);
        }
    }
    return rc;
}

/* ---- start ---- */

static void drop_samples(struct tern_request *r)
{
    for (int i = 0; i < r->n; i++) {
        output_fini(&r->samples[i].out);
    }
    free(r->samples);
    r->samples = NULL;
    r->n = r->n_open = 0;
}

static int init_samples(struct tern_request *r, const struct tern_params *p,
                        const struct sampling_params *sp, struct err *e)
{
    const char **stop = arena_alloc(&r->arena, ((size_t)p->n_stops + 1) * sizeof *stop);
    size_t *bytes = arena_alloc(&r->arena, ((size_t)p->n_stops + 1) * sizeof *bytes);
    int ok = stop && bytes;
    for (int i = 0; ok && i < p->n_stops; i++) {
        stop[i] = arena_strndup(&r->arena, p->stops[i].text, p->stops[i].n_bytes);
        bytes[i] = p->stops[i].n_bytes;
        ok = stop[i] != NULL;
    }
    struct output_options o = {.stop = stop,
                               .stop_bytes = bytes,
                               .n_stop = p->n_stops,
                               .include_stop_str = p->include_stop_str,
                               .min_tokens = sp->min_tokens,
                               .skip_special = p->skip_special};
    r->samples = ok ? calloc((size_t)sp->n, sizeof *r->samples) : NULL;
    for (int i = 0; r->samples && i < sp->n; i++) {
        r->n = i + 1;
        if (output_init(&r->samples[i].out, r->engine->setup.tokenizer, &o) < 0) {
            ok = 0;
        }
    }
    r->n_open = r->n;
    return ok && r->samples ? 0 : err_set(e, ERR_NOMEM, "out of memory");
}

/* Gives the request to the engine; from then on, events may come. */
static int submit(struct tern_request *r, struct engine_request *er, struct err *e)
{
    struct tern_engine *en = r->engine;
    int rc;
    r->started = 1;
    lib_queue_add(r->queue, r);
    pthread_mutex_lock(&en->lock);
    if (!en->setup.engine) {
        rc = err_set(e, ERR_CANCELED, "the engine is closed");
    } else {
        er->id = r->id = engine_new_id(en->setup.engine);
        rc = engine_submit(en->setup.engine, er, e);
    }
    pthread_mutex_unlock(&en->lock);
    if (rc < 0) {
        lib_queue_remove(r->queue, r);
    }
    return rc;
}

static int start(struct tern_request *r, const struct tern_params *p, struct err *e)
{
    const struct setup *s = &r->engine->setup;
    struct engine_request *er = engine_request_new();
    if (!er) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    er->arrival_ns = r->arrival_ns = clock_now_ns();
    int rc = encode(r, e);
    rc = rc < 0 ? rc : lib_params_apply(p, r->engine, s->plan.max_model_len - (int)r->ids.n, er, e);
    rc = rc < 0 ? rc : init_samples(r, p, &er->params, e);
    rc = rc < 0 ? rc : lib_engine_load(r->engine, e); /* after all that can be refused without */
    if (rc >= 0) {
        er->prompt = arena_memdup(&er->arena, r->ids.ids, r->ids.n * sizeof *r->ids.ids);
        er->n_prompt = (int)r->ids.n;
        er->priority = r->priority;
        er->reply = r->queue->events;
        er->user = r;
        rc = er->prompt ? submit(r, er, e) : err_set(e, ERR_NOMEM, "out of memory");
    }
    if (rc < 0) {
        engine_request_free(er);
    }
    return rc;
}

int tern_request_start(struct tern_request *r, const struct tern_params *params,
                       struct tern_queue *queue, struct tern_error *error)
{
    struct err e;
    struct tern_params *defaults = NULL;
    if (r->started || r->queue) {
        err_set(&e, ERR_INVALID, "the request was started already");
        return lib_fail(error, &e);
    }
    int rc = lib_engine_is_closed(r->engine, &e);
    rc = rc < 0 ? lib_fail(error, &e) : 0;
    if (rc >= 0 && !params) {
        rc = tern_params_new(&defaults, r->engine, error);
        params = defaults;
    }
    if (rc >= 0 && !queue) {
        rc = tern_queue_new(&queue, error);
        r->owns_queue = rc >= 0;
    }
    if (rc >= 0) {
        r->queue = queue;
        rc = start(r, params, &e);
        rc = rc < 0 ? lib_fail(error, &e) : 0;
    }
    if (rc < 0 && r->owns_queue) {
        tern_queue_free(r->queue);
    }
    if (rc < 0) { /* with another prompt or other parameters it may be tried again */
        drop_samples(r);
        r->queue = NULL;
        r->owns_queue = r->started = 0;
    }
    tern_params_free(defaults);
    return rc;
}

/* ---- on its own queue ---- */

int tern_request_next(struct tern_request *r, int timeout_ms, struct tern_chunk *chunk,
                      struct tern_error *error)
{
    struct err e;
    if (!r->owns_queue) {
        err_set(&e, ERR_INVALID,
                r->queue ? "the request's chunks come to its queue"
                         : "the request was not started");
        return lib_fail(error, &e);
    }
    return tern_queue_next(r->queue, timeout_ms, chunk, error);
}

int tern_request_stream(struct tern_request *r, const struct tern_params *params, tern_chunk_fn *fn,
                        void *user, struct tern_error *error)
{
    struct tern_chunk chunk = TERN_CHUNK_INIT;
    struct err e;
    int stopped = 0, rc = tern_request_start(r, params, NULL, error);
    while (rc >= 0 && (rc = tern_request_next(r, -1, &chunk, error)) == TERN_CHUNK) {
        if (!stopped && fn(user, &chunk) != 0) {
            stopped = 1;
            tern_request_cancel(r);
        }
    }
    if (rc < 0) {
        return rc;
    }
    return stopped ? lib_fail(error, (err_set(&e, ERR_CANCELED, "canceled"), &e)) : 0;
}

/* ---- the end ---- */

void tern_request_cancel(struct tern_request *r)
{
    if (r->started) {
        lib_engine_abort(r->engine, r->id, -1, 0);
    }
}

void lib_request_free(struct tern_request *r)
{
    drop_samples(r);
    arena_fini(&r->arena);
    buf_fini(&r->text);
    token_ids_fini(&r->ids);
    lib_engine_unref(r->engine);
    free(r);
}

void tern_request_close(struct tern_request *r)
{
    if (!r) {
        return;
    }
    if (r->owns_queue) {
        tern_queue_free(r->queue); /* cancels it and waits */
        r->queue = NULL;
    }
    uint64_t id = r->id;
    struct tern_engine *en = r->engine;
    atomic_fetch_add(&en->n_refs, 1);
    if (atomic_fetch_or(&r->state, LIB_CLOSED) & LIB_DONE) {
        lib_request_free(r);
    } else { /* whoever takes its last event drops it */
        lib_engine_abort(en, id, -1, 0);
    }
    lib_engine_unref(en);
}
