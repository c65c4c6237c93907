/* SPDX-License-Identifier: Apache-2.0 */
/* The engine in this process, by the library's own calls. A conversation is rendered anew for every
 * question; the engine's prefix cache makes that cheap. */
#include "cmd/ask.h"
#include "cmd/signals.h"
#include "lib/lib.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct local {
    struct tern_engine *engine;
    const char *model;
};

/* The model's defaults, and over them what the user has set. */
static int fill_params(struct tern_params *p, const struct ask_settings *set, struct tern_error *te)
{
    int rc = 0;
    for (int i = 0; rc >= 0 && i < ASK_STOP; i++) {
        if (set->text[i]) {
            rc = tern_params_set_number(p, ask_setting_names[i], ask_number(set, i), te);
        }
    }
    return rc >= 0 && set->text[ASK_STOP]
               ? tern_params_add_stop(p, set->text[ASK_STOP], TERN_ALL, te)
               : rc;
}

static int start(const struct local *l, const struct ask_question *q, struct tern_request *r,
                 struct tern_error *te)
{
    struct tern_params *p = NULL;
    int rc = q->messages ? tern_request_set_chat(r, q->messages, TERN_ALL, NULL, te)
                         : tern_request_set_text(r, q->prompt, TERN_ALL, te);
    rc = rc < 0 ? rc : tern_params_new(&p, l->engine, te);
    rc = rc < 0 ? rc : fill_params(p, q->settings, te);
    rc = rc < 0 ? rc : tern_request_start(r, p, NULL, te);
    tern_params_free(p);
    return rc;
}

static int take(const struct ask_question *q, const struct tern_chunk *c, struct ask_result *r,
                struct err *e)
{
    r->n_tokens += (int)c->n_ids;
    r->cut = c->finish == TERN_LENGTH;
    if (c->first_token_ns) {
        r->seconds_to_first = (double)(c->first_token_ns - c->arrival_ns) * 1e-9;
        r->seconds_after = (double)(c->last_token_ns - c->first_token_ns) * 1e-9;
    }
    if (c->finish == TERN_ERROR) {
        return err_set(e, ERR_INTERNAL, "%s", c->error);
    }
    return c->text_bytes && q->text(q->user, c->text, c->text_bytes, 0) < 0
               ? err_set(e, ERR_IO, "cannot write to standard output")
               : 0;
}

/* Takes chunks until the answer has ended; after a fault or a signal only waits for the engine to
 * let go of it. */
static int collect(const struct ask_question *q, struct tern_request *request, struct ask_result *r,
                   struct err *e)
{
    struct tern_chunk c = TERN_CHUNK_INIT;
    struct tern_error te = TERN_ERROR_INIT;
    int rc = 0;
    for (;;) {
        int sig = signals_take();
        r->interrupted |= sig == SIGINT;
        r->terminated |= sig == SIGTERM;
        if (rc < 0 || r->interrupted || r->terminated) {
            tern_request_cancel(request);
        }
        int next = tern_request_next(request, 50, &c, &te);
        if (next == TERN_END) {
            return rc;
        }
        if (next == TERN_CHUNK && rc >= 0) {
            rc = take(q, &c, r, e);
        } else if (next < 0) {
            return lib_fault(e, &te);
        }
    }
}

static int question(void *self, const struct ask_question *q, struct ask_result *r, struct err *e)
{
    struct local *l = self;
    struct tern_request *request = NULL;
    struct tern_error te = TERN_ERROR_INIT;
    memset(r, 0, sizeof *r);
    int rc = tern_request_new(&request, l->engine, &te);
    rc = rc < 0 ? rc : start(l, q, request, &te);
    rc = rc < 0 ? lib_fault(e, &te) : collect(q, request, r, e);
    tern_request_close(request);
    return rc;
}

static int list_models(void *self, struct buf *out, struct err *e)
{
    const struct local *l = self;
    buf_printf(out, "%s\n", l->model);
    return out->failed ? err_set(e, ERR_NOMEM, "out of memory") : 0;
}

static int set_model(void *self, const char *name, const char **now, struct err *e)
{
    const struct local *l = self;
    (void)now;
    return strcmp(name, l->model) == 0
               ? 0
               : err_set(e, ERR_UNSUPPORTED,
                         "%s is loaded in this program: another model wants another start",
                         l->model);
}

static void close_local(void *self)
{
    struct local *l = self;
    tern_engine_close(l->engine);
    free(l);
}

int ask_local_open(struct ask *a, const struct args_engine *args, const struct log *log,
                   struct err *e)
{
    struct tern_error te = TERN_ERROR_INIT;
    struct local *l = calloc(1, sizeof *l);
    if (!l) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    *a = (struct ask){.self = l,
                      .model = args->model,
                      .question = question,
                      .set_model = set_model,
                      .list_models = list_models,
                      .close = close_local};
    l->model = args->model;
    if (lib_engine_open(&l->engine, args, log, 1, e) < 0) {
        return e->code;
    }
    return tern_engine_load(l->engine, &te) < 0 ? lib_fault(e, &te) : 0;
}
