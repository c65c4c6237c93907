/* SPDX-License-Identifier: Apache-2.0 */
/* tern generate MODEL: prompts to text without a server, through the same engine. One prompt with
 * one output is printed while it is made; several are printed in their order; --json prints one
 * object per prompt. A line of speeds goes to stderr. Sampling defaults are the server's: the
 * model's generation_config.json, --temperature 0 is greedy. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/generate_out.h"
#include "cmd/signals.h"
#include "lib/setup.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PROMPT_BYTES_MAX ((size_t)64 << 20)

struct args_generate {
    int json, chat, quiet;
    const char *system, *prompt_ids;
    struct opt_list prompts, prompt_files;
};

#define FIELD(f) offsetof(struct args_generate, f)
static const struct opt rows[] = {
    {.name = "prompt",
     .others = "-p",
     .type = OPT_APPEND,
     .offset = FIELD(prompts),
     .group = "Prompts",
     .help = "Prompt; may be repeated. Without any: standard input is the prompt."},
    {.name = "prompt-file",
     .type = OPT_APPEND,
     .offset = FIELD(prompt_files),
     .group = "Prompts",
     .meta = "FILE",
     .help = "A file that is one prompt (a last line break is dropped); may be repeated."},
    {.name = "prompt-ids",
     .type = OPT_STRING,
     .offset = FIELD(prompt_ids),
     .group = "Prompts",
     .meta = "1,2,3",
     .help = "A prompt as token ids."},
    {.name = "chat",
     .type = OPT_BOOL,
     .offset = FIELD(chat),
     .group = "Prompts",
     .def = "false",
     .help = "Each prompt is a user's message, rendered with the chat template."},
    {.name = "system",
     .type = OPT_STRING,
     .offset = FIELD(system),
     .group = "Prompts",
     .help = "System message for --chat."},
    {.name = "json",
     .type = OPT_BOOL,
     .offset = FIELD(json),
     .group = "Output",
     .def = "false",
     .help = "One JSON object a line and prompt: ids, text, finish_reason, logprobs."},
    {.name = "quiet",
     .type = OPT_BOOL,
     .offset = FIELD(quiet),
     .group = "Output",
     .def = "false",
     .help = "No speeds on stderr."},
};

/* ---- prompts ---- */

static int add_text(struct generation *g, const char *text, size_t n, struct err *e)
{
    struct generation_prompt *p = generation_add(g);
    if (!p || !(p->text = malloc(n + 1))) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    memcpy(p->text, text, n);
    p->text[n] = '\0';
    p->text_bytes = n;
    return 0;
}

static int add_file(struct generation *g, const char *path, struct err *e)
{
    struct buf b;
    buf_init(&b);
    int rc = buf_read_file(&b, path, PROMPT_BYTES_MAX, e);
    if (rc >= 0) {
        if (b.len && b.data[b.len - 1] == '\n') {
            b.len--;
        }
        rc = add_text(g, b.data ? b.data : "", b.len, e);
    }
    buf_fini(&b);
    return rc;
}

static int add_ids(struct generation *g, const char *list, int vocab_size, struct err *e)
{
    struct generation_prompt *p = generation_add(g);
    if (!p) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    const char *s = list;
    for (;;) {
        char *end;
        errno = 0;
        long v = strtol(s, &end, 10);
        if (end == s || errno || (*end && *end != ',')) {
            return err_set(e, ERR_INVALID, "--prompt-ids: expected ids such as 1,2,3, found '%s'",
                           list);
        }
        if (v < 0 || v >= vocab_size) {
            return err_set(e, ERR_INVALID, "--prompt-ids: %ld is not in the vocabulary (0 to %d)",
                           v, vocab_size - 1);
        }
        if (token_ids_push(&p->ids, (int32_t)v) < 0) {
            return err_set(e, ERR_NOMEM, "out of memory");
        }
        if (!*end) {
            return 0;
        }
        s = end + 1;
    }
}

static int add_stdin(struct generation *g, struct err *e)
{
    struct buf b;
    char chunk[16384];
    size_t n;
    buf_init(&b);
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0 && b.len < PROMPT_BYTES_MAX) {
        buf_append(&b, chunk, n);
    }
    int rc =
        b.failed || b.len >= PROMPT_BYTES_MAX
            ? err_set(e, ERR_TOO_LARGE, "standard input: more than %zu bytes", PROMPT_BYTES_MAX)
        : ferror(stdin) ? err_set(e, ERR_IO, "cannot read standard input")
                        : 0;
    if (rc >= 0) {
        if (b.len && b.data[b.len - 1] == '\n') {
            b.len--;
        }
        rc = add_text(g, b.data ? b.data : "", b.len, e);
    }
    buf_fini(&b);
    return rc;
}

static int collect_prompts(struct generation *g, const struct args_generate *own, int vocab_size,
                           struct err *e)
{
    int rc = 0;
    for (int i = 0; rc >= 0 && i < own->prompts.n; i++) {
        rc = add_text(g, own->prompts.v[i], strlen(own->prompts.v[i]), e);
    }
    for (int i = 0; rc >= 0 && i < own->prompt_files.n; i++) {
        rc = add_file(g, own->prompt_files.v[i], e);
    }
    if (rc >= 0 && own->prompt_ids) {
        if (own->chat) {
            return err_set(e, ERR_INVALID,
                           "--prompt-ids is a finished prompt: it does not go with --chat");
        }
        rc = add_ids(g, own->prompt_ids, vocab_size, e);
    }
    return rc >= 0 && g->n == 0 ? add_stdin(g, e) : rc;
}

static int encode_chat(const struct setup *s, const struct args_generate *own,
                       struct generation_prompt *p, struct err *e)
{
    struct buf rendered;
    buf_init(&rendered);
    int rc = chat_encode_user(s->chat, own->system, p->text, p->text_bytes, &p->ids, &rendered, e);
    if (rc >= 0 && rendered.data) {
        p->text_bytes = rendered.len;
        free(p->text);
        p->text = buf_detach(&rendered);
    }
    buf_fini(&rendered);
    return rc;
}

static int encode_prompts(const struct setup *s, const struct args_generate *own,
                          struct generation *g, struct err *e)
{
    for (int i = 0; i < g->n; i++) {
        struct generation_prompt *p = &g->prompts[i];
        int rc = 0;
        if (p->text && own->chat) {
            rc = encode_chat(s, own, p, e);
        } else if (p->text) {
            rc = tokenizer_encode(s->tokenizer, p->text, p->text_bytes, 1, &p->ids, e);
        }
        if (rc >= 0 && p->ids.n == 0) {
            rc = err_set(e, ERR_INVALID, "the prompt is empty");
        }
        if (rc >= 0 && p->ids.n >= (size_t)s->plan.max_model_len) {
            rc = err_set(e, ERR_TOO_LARGE,
                         "%zu prompt tokens leave no room for output: the max model len is %d",
                         p->ids.n, s->plan.max_model_len);
        }
        if (rc < 0) {
            return g->n > 1 ? err_prefix(e, "prompt %d", i + 1) : rc;
        }
    }
    return 0;
}

/* ---- sampling parameters ---- */

struct stops {
    const char *text[64];
    size_t bytes[64];
    int32_t ids[SETUP_MAX_STOPS + 64];
    int n_ids;
};

static int fill_params(const struct setup *s, const struct opts *o, const struct args_sampling *a,
                       struct sampling_params *p, struct stops *stops, struct err *e)
{
    const struct sampling_defaults *g = &s->generation;
    setup_sampling(s, p);
    p->n = (int)a->n;
    p->max_tokens = (int)a->max_tokens;
    if (opts_source(o, "max-tokens") == OPT_FROM_DEFAULT && g->has_max_new_tokens) {
        p->max_tokens = g->max_new_tokens;
    }
    p->min_tokens = (int)a->min_tokens;
    p->ignore_eos = a->ignore_eos;
    p->temperature = opts_source(o, "temperature") ? a->temperature : p->temperature;
    p->top_p = opts_source(o, "top-p") ? a->top_p : p->top_p;
    p->top_k = opts_source(o, "top-k") ? (int)a->top_k : p->top_k;
    p->min_p = opts_source(o, "min-p") ? a->min_p : p->min_p;
    p->repetition_penalty =
        opts_source(o, "repetition-penalty") ? a->repetition_penalty : p->repetition_penalty;
    p->presence_penalty = a->presence_penalty;
    p->frequency_penalty = a->frequency_penalty;
    p->n_logprobs = (int)a->logprobs;
    if (opts_source(o, "seed")) {
        p->has_seed = 1;
        p->seed = s->a->seed;
    }
    if (a->stop.n > 64 || a->stop_token_ids.n > 64) {
        return err_set(e, ERR_INVALID, "--stop, --stop-token-ids: at most 64");
    }
    for (int i = 0; i < a->stop.n; i++) {
        stops->text[i] = a->stop.v[i];
        stops->bytes[i] = strlen(a->stop.v[i]);
        if (!stops->bytes[i]) {
            return err_set(e, ERR_INVALID, "--stop: a stop string cannot be empty");
        }
    }
    stops->n_ids = s->n_stop_ids;
    memcpy(stops->ids, s->stop_ids, (size_t)s->n_stop_ids * sizeof *stops->ids);
    for (int i = 0; i < a->stop_token_ids.n; i++) {
        char *end;
        long v = strtol(a->stop_token_ids.v[i], &end, 10);
        if (*end || v < 0 || v >= model_config(s->model)->vocab_size) {
            return err_set(e, ERR_INVALID, "--stop-token-ids: '%s' is not an id of the vocabulary",
                           a->stop_token_ids.v[i]);
        }
        stops->ids[stops->n_ids++] = (int32_t)v;
    }
    p->stop_token_ids = stops->ids;
    p->n_stop_token_ids = p->ignore_eos ? a->stop_token_ids.n : stops->n_ids;
    if (p->ignore_eos) {
        p->stop_token_ids = stops->ids + s->n_stop_ids;
    }
    const char *field = NULL;
    int rc = sampling_params_check(p, model_config(s->model)->vocab_size, (int)s->a->max_logprobs,
                                   &field, e);
    return rc;
}

/* ---- the run ---- */

static int submit(const struct setup *s, struct generation *g, struct generation_prompt *p,
                  const struct sampling_params *params, int explicit_max, struct err *e)
{
    struct engine_request *r = engine_request_new();
    int room = s->plan.max_model_len - (int)p->ids.n;
    if (!r) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    r->params = *params;
    if (params->max_tokens > room) {
        if (explicit_max) {
            engine_request_free(r);
            return err_set(e, ERR_TOO_LARGE,
                           "%zu prompt tokens + --max-tokens %d are more than the max model len %d",
                           p->ids.n, params->max_tokens, s->plan.max_model_len);
        }
        r->params.max_tokens = room;
    }
    int32_t *prompt = arena_memdup(&r->arena, p->ids.ids, p->ids.n * sizeof *prompt);
    int32_t *stop_ids = arena_memdup(&r->arena, params->stop_token_ids,
                                     (size_t)params->n_stop_token_ids * sizeof *stop_ids);
    if (!prompt || (params->n_stop_token_ids && !stop_ids)) {
        engine_request_free(r);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    r->prompt = prompt;
    r->n_prompt = (int)p->ids.n;
    r->params.stop_token_ids = stop_ids;
    r->reply = g->reply;
    r->user = p;
    r->arrival_ns = clock_now_ns();
    r->id = engine_new_id(s->engine);
    p->request_id = r->id;
    p->arrival_ns = r->arrival_ns;
    int rc = engine_submit(s->engine, r, e);
    if (rc < 0) {
        engine_request_free(r);
    }
    return rc;
}

static int take_event(const struct setup *s, struct generation *g, const struct engine_event *ev,
                      int streaming, struct err *e)
{
    struct generation_prompt *p = ev->user;
    struct generation_output *out = &p->outputs[ev->sample];
    int used = 0;
    if (output_feed(&out->text, ev, &used)) {
        engine_abort(s->engine, p->request_id, ev->sample, 1);
    }
    g->n_open -= ev->finish != FINISH_NONE;
    if (generation_take(g, out, ev, used) < 0) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    if (streaming) {
        size_t n;
        const char *text = output_take(&out->text, &n);
        if (n && (fwrite(text, 1, n, stdout) != n || fflush(stdout) != 0)) {
            return err_set(e, ERR_IO, "cannot write to standard output");
        }
    }
    return ev->finish == FINISH_ERROR ? err_set(e, ERR_INTERNAL, "%s", ev->error) : 0;
}

/* Takes events until every sample has ended; after a fault or a signal only waits for the engine to
 * let go. */
static int collect(const struct setup *s, struct generation *g, int streaming, struct err *e)
{
    int rc = 0, aborted = 0;
    while (g->n_open > 0) {
        if ((rc < 0 || signals_pending()) && !aborted) {
            aborted = 1;
            rc = rc < 0 ? rc : err_set(e, ERR_CANCELED, "interrupted");
            for (int i = 0; i < g->n_submitted; i++) {
                engine_abort(s->engine, g->prompts[i].request_id, -1, 0);
            }
        }
        mq_wait(g->reply, 50);
        for (struct mq_node *n = mq_pop_all(g->reply), *next; n; n = next) {
            struct engine_event *ev =
                (struct engine_event *)((char *)n - offsetof(struct engine_event, node));
            next = n->next;
            if (rc >= 0) {
                rc = take_event(s, g, ev, streaming, e);
            } else {
                g->n_open -= ev->finish != FINISH_NONE;
            }
            engine_event_free(ev);
        }
    }
    return rc;
}

static void print_speed(const struct setup *s, const struct generation *g, double seconds)
{
    uint64_t n_prompt = 0, n_cached = 0, n_out = 0, first = UINT64_MAX, last = 0,
             start = UINT64_MAX, hash = 0;
    for (int i = 0; i < g->n; i++) {
        const struct generation_prompt *p = &g->prompts[i];
        n_prompt += p->ids.n;
        start = p->arrival_ns < start ? p->arrival_ns : start;
        for (int k = 0; k < g->n_samples; k++) {
            const struct generation_output *out = &p->outputs[k];
            n_out += out->ids.n;
            n_cached = out->n_cached > n_cached ? out->n_cached : n_cached;
            first =
                out->first_token_ns && out->first_token_ns < first ? out->first_token_ns : first;
            last = out->last_token_ns > last ? out->last_token_ns : last;
            hash = hash64(out->ids.ids, out->ids.n * sizeof *out->ids.ids, hash);
        }
    }
    struct engine_stats *stats = calloc(1, sizeof *stats);
    double to_first = first != UINT64_MAX ? (double)(first - start) * 1e-9 : 0;
    double decode = last > first ? (double)(last - first) * 1e-9 : 0;
    fprintf(stderr,
            "%" PRIu64 " prompt tokens, first token after %.3f s (%.1f tok/s); %" PRIu64
            " tokens in %.3f s",
            n_prompt, to_first, to_first > 0 ? (double)n_prompt / to_first : 0, n_out, seconds);
    if (stats && decode > 0 && n_out > (uint64_t)(g->n * g->n_samples)) {
        engine_stats(s->engine, stats);
        double tokens = (double)(n_out - (uint64_t)(g->n * g->n_samples));
        double passes = stats->steps > 1 ? (double)(stats->steps - 1) : 0;
        const double bytes = (double)model_weight_bytes_per_token(s->model);
        fprintf(stderr, ", decode %.1f tok/s, %.2f GB/s of weights (%s, %.1f MB a token)",
                tokens / decode, passes * bytes / decode * 1e-9, model_quantization(s->model),
                bytes * 1e-6);
    }
    fprintf(stderr, "; ids hash %016" PRIx64 "\n", hash);
    free(stats);
}

static int run(struct setup *s, const struct opts *o, const struct args_generate *own,
               const struct args_sampling *a, struct generation *g, struct err *e)
{
    struct sampling_params params;
    struct stops stops = {.n_ids = 0};
    int rc = setup_cpu(s, e);
    rc = rc < 0 ? rc : setup_files(s, e);
    rc = rc < 0 ? rc : collect_prompts(g, own, model_config(s->model)->vocab_size, e);
    s->n_seqs_wanted = g->n * (int)a->n;
    rc = rc < 0 ? rc : setup_plan(s, e);
    rc = rc < 0 ? rc : encode_prompts(s, own, g, e);
    rc = rc < 0 ? rc : fill_params(s, o, a, &params, &stops, e);
    rc = rc < 0 ? rc : setup_load(s, e);
    rc = rc < 0 ? rc : setup_engine(s, e);
    rc = rc < 0 ? rc : mq_new(&g->reply, e);
    if (rc < 0) {
        return rc;
    }
    struct output_options oo = {.stop = stops.text,
                                .stop_bytes = stops.bytes,
                                .n_stop = a->stop.n,
                                .include_stop_str = a->include_stop_str,
                                .min_tokens = (int)a->min_tokens,
                                .skip_special = a->skip_special_tokens};
    int streaming = !own->json && g->n == 1 && params.n == 1;
    uint64_t start = clock_now_ns();
    rc = generation_start(g, s->tokenizer, &oo, params.n, e);
    for (int i = 0; rc >= 0 && i < g->n; i++) {
        rc = submit(s, g, &g->prompts[i], &params, opts_source(o, "max-tokens") != OPT_FROM_DEFAULT,
                    e);
        if (rc >= 0) {
            g->n_submitted++;
            g->n_open += params.n;
        }
    }
    if (rc < 0) {
        struct err ignored;
        for (int i = 0; i < g->n_submitted; i++) {
            engine_abort(s->engine, g->prompts[i].request_id, -1, 0);
        }
        collect(s, g, 0, &ignored);
        return rc;
    }
    rc = collect(s, g, streaming, e);
    if (streaming) {
        fputc('\n', stdout);
    } else if (rc >= 0) {
        rc = own->json ? generation_print_json(g, s->tokenizer, own->chat, e)
                       : generation_print_text(g, e);
    }
    if (rc >= 0 && !own->quiet) {
        fflush(stdout);
        print_speed(s, g, (double)(clock_now_ns() - start) * 1e-9);
    }
    return rc;
}

int cmd_generate(int argc, char **argv)
{
    const char *command = "tern generate";
    struct args_generate own = {0};
    struct args_sampling sampling = {0};
    struct args_engine a = {0};
    struct opts o = {.usage = "tern generate MODEL -p TEXT [options]",
                     .tables = {{rows, sizeof rows / sizeof *rows, &own},
                                args_sampling_table(&sampling),
                                args_engine_table(&a)},
                     .n_tables = 3};
    struct setup s = {.a = &a};
    struct generation g = {0};
    struct err e = {0, ""};
    int rc = args_parse(&o, command, argc, argv);
    rc = rc < 0 ? args_model(&o, command, &a, 1) : rc;
    rc = rc < 0 ? args_find_model(command, &a) : rc;
    if (rc < 0) {
        args_quiet_log(&o, &a, &s.log);
        signals_block();
        rc = run(&s, &o, &own, &sampling, &g, &e);
        rc = rc < 0 ? args_fail(command, &e) : 0;
    }
    setup_close(&s); /* first: the engine's events go to the generation's queue */
    generation_fini(&g);
    opts_fini(&o);
    return rc;
}
