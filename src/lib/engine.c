/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's handle. Weights are read on a thread of the library's own: compute threads and the
 * engine's inherit its signal mask (all blocked), and the binding of worker 0 to a CPU never hits
 * a thread of the program. */
#include "lib/hub.h"
#include "lib/lib.h"
#include "model/config.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void drop_line(void *user, enum log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
}

static void pass_line(void *user, enum log_level level, const char *text)
{
    const struct tern_engine *en = user;
    en->log(en->log_user, (int)level, text);
}

/* ---- open ---- */

static struct tern_engine *new_engine(struct err *e)
{
    struct tern_engine *en = calloc(1, sizeof *en);
    if (!en) {
        err_set(e, ERR_NOMEM, "out of memory");
        return NULL;
    }
    atomic_init(&en->n_refs, 1);
    pthread_mutex_init(&en->lock, NULL);
    return en;
}

static int open_files(struct tern_engine *en, struct err *e)
{
    struct setup *s = &en->setup;
    int rc = setup_check(s, e);
    en->tokenizer = (struct tern_tokenizer){.tokenizer = s->tokenizer, .chat = s->chat};
    return rc < 0 ? rc
                  : grammar_cache_open(&en->grammars, s->tokenizer,
                                       model_config(s->model)->vocab_size, e);
}

int lib_engine_open(struct tern_engine **out, const struct args_engine *a, const struct log *log,
                    int n_outputs, struct err *e)
{
    struct tern_engine *en = *out = new_engine(e);
    if (!en) {
        return ERR_NOMEM;
    }
    en->setup.a = a;
    en->setup.log = *log;
    en->setup.n_seqs_wanted = n_outputs;
    int rc = open_files(en, e);
    if (rc < 0) {
        tern_engine_close(en);
        *out = NULL;
    }
    return rc;
}

static int read_options(struct tern_engine *en, const char *model, const struct tern_options *o,
                        struct err *e)
{
    struct args_engine *a = &en->args.engine;
    int rc = lib_args_init(&en->args, e);
    for (int i = 0; rc >= 0 && o && i < o->n_settings; i++) {
        rc = opts_set(&en->args.opts, o->settings[i].name, o->settings[i].value, e);
    }
    if (rc < 0) {
        return rc;
    }
    a->model = model ? arena_strdup(&en->args.opts.arena, model) : a->model;
    if (!a->model || !*a->model) {
        return model ? err_set(e, ERR_NOMEM, "out of memory")
                     : err_set(e, ERR_INVALID, "no model given (a directory or a GGUF file)");
    }
    rc = hub_find_model(a->model, a->revision, a->pulled, e);
    a->model = rc > 0 ? a->pulled : a->model;
    return rc;
}

static void set_log(struct tern_engine *en, const struct tern_options *o)
{
    struct log *log = &en->setup.log;
    *log = (struct log){.level = LOG_INFO, .fd = -1, .sink = drop_line};
    log_level_parse(en->args.engine.log_level, &log->level);
    if (o && o->log) {
        en->log = o->log;
        en->log_user = o->log_user;
        log->sink = pass_line;
        log->sink_user = en;
    }
    for (int i = 0; i < en->args.opts.warnings.n; i++) {
        log_warning(log, "%s", en->args.opts.warnings.v[i]);
    }
}

int tern_engine_open(struct tern_engine **out, const char *model,
                     const struct tern_options *options, struct tern_error *error)
{
    struct err e = {0, ""};
    struct tern_engine *en = *out = new_engine(&e);
    if (!en) {
        return lib_fail(error, &e);
    }
    en->owns_args = 1;
    int rc = read_options(en, model, options, &e);
    if (rc >= 0) {
        en->setup.a = &en->args.engine;
        en->setup.n_seqs_wanted = options ? options->n_outputs : 0;
        set_log(en, options);
        rc = open_files(en, &e);
    }
    if (rc < 0) {
        tern_engine_close(en);
        *out = NULL;
        return lib_fail(error, &e);
    }
    return 0;
}

/* ---- load ---- */

struct load {
    struct setup *setup;
    struct err *e;
    int rc;
};

static void *load_main(void *arg)
{
    struct load *l = arg;
    l->rc = setup_load(l->setup, l->e);
    l->rc = l->rc < 0 ? l->rc : setup_engine(l->setup, l->e);
    return NULL;
}

static int load_apart(struct setup *s, struct err *e)
{
    struct load l = {.setup = s, .e = e};
    pthread_t thread;
    sigset_t all, before;
    /* But faults: what handles them, as when a mapped file is cut, must be asked. */
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int rc = pthread_create(&thread, NULL, load_main, &l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        return err_set(e, ERR_NOMEM, "cannot start a thread: %s", strerror(rc));
    }
    pthread_join(thread, NULL);
    return l.rc;
}

int lib_engine_load(struct tern_engine *en, struct err *e)
{
    int rc = 0;
    pthread_mutex_lock(&en->lock);
    if (en->closed) {
        rc = err_set(e, ERR_CANCELED, "the engine is closed");
    } else if (en->failed) {
        rc = err_set(e, ERR_INVALID, "the engine could not be loaded");
    } else if (!en->loaded) {
        rc = load_apart(&en->setup, e);
        en->loaded = rc >= 0;
        en->failed = rc < 0;
    }
    pthread_mutex_unlock(&en->lock);
    return rc < 0 ? rc : 0;
}

int lib_engine_is_closed(struct tern_engine *en, struct err *e)
{
    pthread_mutex_lock(&en->lock);
    int closed = en->closed;
    pthread_mutex_unlock(&en->lock);
    return closed ? err_set(e, ERR_CANCELED, "the engine is closed") : 0;
}

int tern_engine_load(struct tern_engine *en, struct tern_error *error)
{
    struct err e;
    return lib_engine_load(en, &e) < 0 ? lib_fail(error, &e) : 0;
}

/* ---- close ---- */

void lib_engine_unref(struct tern_engine *en)
{
    if (atomic_fetch_sub(&en->n_refs, 1) > 1) {
        return;
    }
    setup_close(&en->setup); /* tokenizer and template are left */
    grammar_cache_close(en->grammars);
    if (en->owns_args) {
        lib_args_fini(&en->args);
    }
    pthread_mutex_destroy(&en->lock);
    free(en);
}

void tern_engine_close(struct tern_engine *en)
{
    if (!en) {
        return;
    }
    struct setup *s = &en->setup;
    pthread_mutex_lock(&en->lock);
    en->closed = 1;
    if (s->engine) {
        engine_close(s->engine);
        s->engine = NULL;
    }
    if (s->pool) {
        cpu_pool_close(s->pool);
        s->pool = NULL;
    }
    model_close(s->model);
    s->model = NULL;
    pthread_mutex_unlock(&en->lock);
    lib_engine_unref(en);
}

void lib_engine_abort(struct tern_engine *en, uint64_t id, int sample, int stopped)
{
    pthread_mutex_lock(&en->lock);
    if (en->setup.engine) {
        engine_abort(en->setup.engine, id, sample, stopped);
    }
    pthread_mutex_unlock(&en->lock);
}

/* ---- what it is, what it does ---- */

static int fail_closed(struct tern_error *error)
{
    struct err e;
    err_set(&e, ERR_CANCELED, "the engine is closed");
    return lib_fail(error, &e);
}

int tern_engine_info(struct tern_engine *en, struct tern_info *out, struct tern_error *error)
{
    const struct setup *s = &en->setup;
    pthread_mutex_lock(&en->lock);
    if (en->closed) {
        pthread_mutex_unlock(&en->lock);
        return fail_closed(error);
    }
    struct tern_info v = {
        .max_model_len = s->plan.max_model_len,
        .vocab_size = model_config(s->model)->vocab_size,
        .max_logprobs = (int)s->a->max_logprobs,
        .n_threads = s->n_threads,
        .weight_bytes = model_weight_bytes(s->model),
        .weight_bytes_per_token = model_weight_bytes_per_token(s->model),
        .kv_bytes = s->plan.kv_bytes,
        .model = s->a->model,
        .architecture = model_config(s->model)->architecture,
        .quantization = model_quantization(s->model),
        .numerics_id = en->loaded ? model_numerics_id(s->model) : "",
        .cpu_level = cpu_level_name(s->level),
        .dtype = model_act(s->model) == ACT_F32 ? "float32" : "bfloat16",
    };
    pthread_mutex_unlock(&en->lock);
    lib_fill(out, &v, sizeof v);
    return 0;
}

int tern_engine_metrics(struct tern_engine *en, struct tern_metrics *out, struct tern_error *error)
{
    struct engine_stats *s = calloc(1, sizeof *s);
    if (!s) {
        return lib_no_memory(error);
    }
    pthread_mutex_lock(&en->lock);
    int closed = en->closed;
    if (en->setup.engine) {
        engine_stats(en->setup.engine, s);
    }
    pthread_mutex_unlock(&en->lock);
    int usable = s->n_blocks > 0 ? s->n_blocks - 1 : 0; /* one block is never handed out */
    struct tern_metrics v = {
        .running = s->n_running,
        .waiting = s->n_waiting,
        .blocks = usable,
        .blocks_in_use = (int)lround(s->kv_usage * usable),
        .block_tokens = s->block_tokens,
        .kv_usage = s->kv_usage,
        .prefix_queries = s->prefix_queries,
        .prefix_hits = s->prefix_hits,
        .prompt_tokens = s->prompt_tokens,
        .output_tokens = s->generation_tokens,
        .aborted = s->finished[FINISH_ABORT],
        .preemptions = s->preemptions,
        .steps = s->steps,
    };
    for (size_t i = 0; i < sizeof s->finished / sizeof *s->finished; i++) {
        v.finished += s->finished[i];
    }
    free(s);
    if (closed) {
        return fail_closed(error);
    }
    lib_fill(out, &v, sizeof v);
    return 0;
}

int tern_engine_reset_prefix_cache(struct tern_engine *en, struct tern_error *error)
{
    pthread_mutex_lock(&en->lock);
    int closed = en->closed;
    int rc = en->setup.engine ? engine_reset_prefix_cache(en->setup.engine, 0) : 1;
    pthread_mutex_unlock(&en->lock);
    return closed ? fail_closed(error) : rc;
}

const struct tern_tokenizer *tern_engine_tokenizer(const struct tern_engine *en)
{
    return &en->tokenizer;
}
