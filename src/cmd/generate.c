/* SPDX-License-Identifier: Apache-2.0 */
/* tern generate MODEL: prompts to text without a server, through the library (tern.h). One prompt with
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
#include "lib/lib.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- what the library does ---- */

/* A user's message, after a system message if there is one, as the template renders it. */
static int encode_chat(const struct tern_tokenizer *t, const char *system,
                       struct generation_prompt *p, struct err *e)
{
    struct buf text;
    buf_init(&text);
    int rc = chat_encode_user(t->chat, system, p->text, p->text_bytes, &p->ids, &text, e);
    if (rc >= 0) {
        free(p->text);
        p->text_bytes = text.len;
        p->text = buf_detach(&text);
    }
    buf_fini(&text);
    return rc;
}

static int encode_prompts(struct tern_engine *en, const struct args_generate *own,
                          struct generation *g, int max_model_len, struct err *e)
{
    const struct tern_tokenizer *t = tern_engine_tokenizer(en);
    for (int i = 0; i < g->n; i++) {
        struct generation_prompt *p = &g->prompts[i];
        struct tern_error te = TERN_ERROR_INIT;
        int rc = 0;
        if (p->text && own->chat) {
            rc = encode_chat(t, own->system, p, e);
        } else if (p->text) {
            rc = tern_tokenizer_encode(t, p->text, p->text_bytes, 1, &p->ids.ids, &p->ids.n, &te);
            rc = rc < 0 ? lib_fault(e, &te) : 0;
        }
        if (rc >= 0 && p->ids.n == 0) {
            rc = err_set(e, ERR_INVALID, "the prompt is empty");
        } else if (rc >= 0 && p->ids.n >= (size_t)max_model_len) {
            rc = err_set(e, ERR_TOO_LARGE,
                         "%zu prompt tokens leave no room for output: the max model len is %d",
                         p->ids.n, max_model_len);
        }
        if (rc < 0) {
            return g->n > 1 ? err_prefix(e, "prompt %d", i + 1) : rc;
        }
    }
    return 0;
}

static int add_stops(const struct args_sampling *a, int vocab_size, struct tern_params *p,
                     struct err *e)
{
    struct tern_error te = TERN_ERROR_INIT;
    for (int i = 0; i < a->stop.n; i++) {
        if (tern_params_add_stop(p, a->stop.v[i], TERN_ALL, &te) < 0) {
            lib_fault(e, &te);
            return err_prefix(e, "--stop");
        }
    }
    for (int i = 0; i < a->stop_token_ids.n; i++) {
        char *end;
        long v = strtol(a->stop_token_ids.v[i], &end, 10);
        if (*end || v < 0 || v >= vocab_size) {
            return err_set(e, ERR_INVALID, "--stop-token-ids: '%s' is not an id of the vocabulary",
                           a->stop_token_ids.v[i]);
        }
        if (tern_params_add_stop_id(p, (int32_t)v, &te) < 0) {
            return lib_fault(e, &te);
        }
    }
    return 0;
}

/* The model's defaults, and over them what the command line says. */
static int fill_params(struct tern_engine *en, const struct opts *o, const struct args_sampling *a,
                       int64_t seed, struct tern_params *p, struct err *e)
{
    double most = -1;
    struct tern_error te = TERN_ERROR_INIT;
    tern_params_get_number(p, "max_tokens", &most, NULL);
    const struct {
        const char *flag, *name; /* flag NULL: whether it was given or not */
        double value;
    } numbers[] = {
        {NULL, "n", (double)a->n},
        {most < 0 ? NULL : "max-tokens", "max_tokens", (double)a->max_tokens},
        {NULL, "min_tokens", (double)a->min_tokens},
        {NULL, "ignore_eos", a->ignore_eos},
        {NULL, "include_stop_str_in_output", a->include_stop_str},
        {NULL, "skip_special_tokens", a->skip_special_tokens},
        {NULL, "presence_penalty", a->presence_penalty},
        {NULL, "frequency_penalty", a->frequency_penalty},
        {"temperature", "temperature", a->temperature},
        {"top-p", "top_p", a->top_p},
        {"top-k", "top_k", (double)a->top_k},
        {"min-p", "min_p", a->min_p},
        {"repetition-penalty", "repetition_penalty", a->repetition_penalty},
    };
    int rc = 0;
    for (size_t i = 0; rc >= 0 && i < sizeof numbers / sizeof *numbers; i++) {
        if (!numbers[i].flag || opts_source(o, numbers[i].flag)) {
            rc = tern_params_set_number(p, numbers[i].name, numbers[i].value, &te);
        }
    }
    if (rc >= 0 && a->logprobs >= 0) {
        rc = tern_params_set_int(p, "logprobs", a->logprobs, &te);
    }
    if (rc >= 0 && opts_source(o, "seed")) {
        rc = tern_params_set_int(p, "seed", seed, &te);
    }
    struct tern_info info = TERN_INFO_INIT;
    rc = rc < 0 ? rc : tern_engine_info(en, &info, &te);
    if (rc < 0) {
        return lib_fault(e, &te);
    }
    rc = add_stops(a, info.vocab_size, p, e);
    return rc >= 0 && tern_params_check(p, en, &te) < 0 ? lib_fault(e, &te) : rc;
}

/* ---- the run ---- */

static int submit(struct tern_engine *en, struct generation *g, struct generation_prompt *p,
                  const struct tern_params *params, int max_model_len, int explicit_max,
                  struct err *e)
{
    struct tern_error te = TERN_ERROR_INIT;
    if (explicit_max > max_model_len - (int)p->ids.n) {
        return err_set(e, ERR_TOO_LARGE,
                       "%zu prompt tokens + --max-tokens %d are more than the max model len %d",
                       p->ids.n, explicit_max, max_model_len);
    }
    p->arrival_ns = clock_now_ns();
    int rc = tern_request_new(&p->request, en, &te);
    rc = rc < 0 ? rc : tern_request_set_ids(p->request, p->ids.ids, p->ids.n, &te);
    if (rc >= 0) {
        tern_request_set_user(p->request, p);
        rc = tern_request_start(p->request, params, g->queue, &te);
    }
    return rc < 0 ? lib_fault(e, &te) : 0;
}

static int take_chunk(struct generation *g, const struct tern_chunk *c, int streaming,
                      struct err *e)
{
    struct generation_prompt *p = tern_request_user(c->request);
    if (generation_take(g, &p->outputs[c->index], c) < 0) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    if (streaming && c->text_bytes &&
        (fwrite(c->text, 1, c->text_bytes, stdout) != c->text_bytes || fflush(stdout) != 0)) {
        return err_set(e, ERR_IO, "cannot write to standard output");
    }
    return c->finish == TERN_ERROR ? err_set(e, ERR_INTERNAL, "%s", c->error) : 0;
}

/* Takes chunks until every request has ended. After a fault or a signal the rest is dropped by the
 * end of the queue. */
static int collect(struct generation *g, int streaming, struct err *e)
{
    struct tern_chunk c = TERN_CHUNK_INIT;
    struct tern_error te = TERN_ERROR_INIT;
    for (;;) {
        int rc = tern_queue_next(g->queue, 50, &c, &te);
        if (rc == TERN_END) {
            return 0;
        }
        rc = rc < 0 ? lib_fault(e, &te) : rc == TERN_CHUNK ? take_chunk(g, &c, streaming, e) : 0;
        if (rc >= 0 && signals_pending()) {
            rc = err_set(e, ERR_CANCELED, "interrupted");
        }
        if (rc < 0) {
            return rc;
        }
    }
}

static void print_speed(struct tern_engine *en, const struct generation *g, double seconds)
{
    uint64_t n_prompt = 0, n_out = 0, first = UINT64_MAX, last = 0, start = UINT64_MAX, hash = 0;
    for (int i = 0; i < g->n; i++) {
        const struct generation_prompt *p = &g->prompts[i];
        n_prompt += p->ids.n;
        start = p->arrival_ns < start ? p->arrival_ns : start;
        for (int k = 0; k < g->n_samples; k++) {
            const struct generation_output *out = &p->outputs[k];
            n_out += out->ids.n;
            first =
                out->first_token_ns && out->first_token_ns < first ? out->first_token_ns : first;
            last = out->last_token_ns > last ? out->last_token_ns : last;
            hash = hash64(out->ids.ids, out->ids.n * sizeof *out->ids.ids, hash);
        }
    }
    struct tern_metrics m = TERN_METRICS_INIT;
    struct tern_info info = TERN_INFO_INIT;
    double to_first = first != UINT64_MAX ? (double)(first - start) * 1e-9 : 0;
    double decode = last > first ? (double)(last - first) * 1e-9 : 0;
    fprintf(stderr,
            "%" PRIu64 " prompt tokens, first token after %.3f s (%.1f tok/s); %" PRIu64
            " tokens in %.3f s",
            n_prompt, to_first, to_first > 0 ? (double)n_prompt / to_first : 0, n_out, seconds);
    if (decode > 0 && n_out > (uint64_t)(g->n * g->n_samples) &&
        tern_engine_metrics(en, &m, NULL) >= 0 && tern_engine_info(en, &info, NULL) >= 0) {
        double tokens = (double)(n_out - (uint64_t)(g->n * g->n_samples));
        double passes = m.steps > 1 ? (double)(m.steps - 1) : 0;
        const double bytes = (double)info.weight_bytes_per_token;
        fprintf(stderr, ", decode %.1f tok/s, %.2f GB/s of weights (%s, %.1f MB a token)",
                tokens / decode, passes * bytes / decode * 1e-9, info.quantization, bytes * 1e-6);
    }
    fprintf(stderr, "; ids hash %016" PRIx64 "\n", hash);
}

static int answer(struct tern_engine *en, const struct opts *o, const struct args_generate *own,
                  const struct args_sampling *a, const struct tern_params *params,
                  struct generation *g, struct err *e)
{
    struct tern_info info = TERN_INFO_INIT;
    struct tern_error te = TERN_ERROR_INIT;
    if (tern_engine_info(en, &info, &te) < 0 || tern_engine_load(en, &te) < 0 ||
        tern_queue_new(&g->queue, &te) < 0) {
        return lib_fault(e, &te);
    }
    int streaming = !own->json && g->n == 1 && a->n == 1;
    int explicit_max = opts_source(o, "max-tokens") ? (int)a->max_tokens : 0;
    uint64_t start = clock_now_ns();
    int rc = generation_start(g, (int)a->n, e);
    for (int i = 0; rc >= 0 && i < g->n; i++) {
        rc = submit(en, g, &g->prompts[i], params, info.max_model_len, explicit_max, e);
    }
    if (rc < 0) {
        return rc;
    }
    rc = collect(g, streaming, e);
    if (streaming) {
        fputc('\n', stdout);
    } else if (rc >= 0) {
        rc = own->json ? generation_print_json(g, tern_engine_tokenizer(en), own->chat, e)
                       : generation_print_text(g, e);
    }
    if (rc >= 0 && !own->quiet) {
        fflush(stdout);
        print_speed(en, g, (double)(clock_now_ns() - start) * 1e-9);
    }
    return rc;
}

static int run(struct tern_engine **en, const struct opts *o, const struct args_engine *engine_args,
               const struct log *log, const struct args_generate *own,
               const struct args_sampling *a, struct generation *g, struct err *e)
{
    struct tern_params *params = NULL;
    struct tern_info info = TERN_INFO_INIT;
    struct tern_error te = TERN_ERROR_INIT;
    int n_prompts = own->prompts.n + own->prompt_files.n + (own->prompt_ids != NULL);
    int n_outputs = (n_prompts ? n_prompts : 1) * (int)a->n;
    int rc = lib_engine_open(en, engine_args, log, n_outputs, e);
    if (rc >= 0 && tern_engine_info(*en, &info, &te) < 0) {
        rc = lib_fault(e, &te);
    }
    rc = rc < 0 ? rc : collect_prompts(g, own, info.vocab_size, e);
    rc = rc < 0 ? rc : encode_prompts(*en, own, g, info.max_model_len, e);
    if (rc >= 0 && tern_params_new(&params, *en, &te) < 0) {
        rc = lib_fault(e, &te);
    }
    rc = rc < 0 ? rc : fill_params(*en, o, a, engine_args->seed, params, e);
    rc = rc < 0 ? rc : answer(*en, o, own, a, params, g, e);
    tern_params_free(params);
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
    struct tern_engine *en = NULL;
    struct log log;
    struct generation g = {0};
    struct err e = {0, ""};
    int rc = args_parse_model(&o, command, &a, argc, argv);
    if (rc < 0) {
        args_quiet_log(&o, &a, &log);
        signals_block();
        rc = run(&en, &o, &a, &log, &own, &sampling, &g, &e);
        rc = rc < 0 ? args_fail(command, &e) : 0;
    }
    generation_fini(&g); /* ends what still runs */
    tern_engine_close(en);
    opts_fini(&o);
    return rc;
}
