/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench latency, throughput and sweep: the engine in this process, without HTTP. */
#include "base/clock.h"
#include "base/mq.h"
#include "cmd/args.h"
#include "cmd/bench.h"
#include "cmd/signals.h"
#include "lib/setup.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define G_LATENCY    "Latency"
#define G_THROUGHPUT "Throughput"
#define G_SWEEP      "Sweep"

struct args_latency {
    int64_t input_len, output_len, batch_size, n, num_iters_warmup, num_iters;
    const char *output_json;
};

#define FIELD(f) offsetof(struct args_latency, f)
#define WHOLE(option, field, value, least, text)                                                   \
    {                                                                                              \
        .name = option, .type = OPT_INT, .offset = FIELD(field), .group = G_LATENCY, .def = value, \
        .min = least, .max = 1e7, .help = text                                                     \
    }
static const struct opt latency_rows[] = {
    WHOLE("input-len", input_len, "32", 1, "Prompt tokens."),
    WHOLE("output-len", output_len, "128", 1, "Output tokens."),
    WHOLE("batch-size", batch_size, "8", 1, "Prompts of a batch."),
    WHOLE("n", n, "1", 1, "Outputs of a prompt."),
    WHOLE("num-iters-warmup", num_iters_warmup, "10", 0, "Batches before the clock starts."),
    WHOLE("num-iters", num_iters, "30", 1, "Batches that count."),
    {.name = "output-json",
     .type = OPT_STRING,
     .offset = FIELD(output_json),
     .group = G_LATENCY,
     .meta = "FILE",
     .help = "Result as JSON."},
};
#undef FIELD

struct args_throughput {
    int64_t n;
    const char *output_json;
};
#define FIELD(f) offsetof(struct args_throughput, f)
static const struct opt throughput_rows[] = {
    {.name = "n",
     .type = OPT_INT,
     .offset = FIELD(n),
     .group = G_THROUGHPUT,
     .def = "1",
     .min = 1,
     .max = 1e4,
     .help = "Outputs of a prompt."},
    {.name = "output-json",
     .type = OPT_STRING,
     .offset = FIELD(output_json),
     .group = G_THROUGHPUT,
     .meta = "FILE",
     .help = "Result as JSON."},
};
#undef FIELD

/* A submitted batch: every output has exactly output_len tokens. */
struct batch {
    struct setup *s;
    struct mq *reply;
    uint64_t *ids;
    int n_requests, n_open;
    int64_t n_output_tokens;
    struct bench_values ttft, tpot; /* seconds; kept when keeps_times */
    int keeps_times;
};

static void close_batch(struct batch *b)
{
    mq_free(b->reply);
    free(b->ids);
    free(b->ttft.v);
    free(b->tpot.v);
}

/* From submission to the first token, and from token to token of a finished output. */
static int keep_times(struct batch *b, const struct engine_event *ev)
{
    const int n = (int)(intptr_t)ev->user;
    if (!b->keeps_times || ev->first_token_ns == 0) {
        return 0;
    }
    int rc = bench_values_add(&b->ttft, (double)(ev->first_token_ns - ev->queued_ns) * 1e-9);
    double decode = (double)(ev->last_token_ns - ev->first_token_ns) * 1e-9;
    return rc < 0 || n < 2 ? rc : bench_values_add(&b->tpot, decode / (n - 1));
}

static int submit(struct batch *b, const int32_t *prompt, int n_prompt, int output_len, int n,
                  struct err *e)
{
    struct engine_request *r = engine_request_new();
    if (!r) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    sampling_params_init(&r->params);
    r->params.n = n;
    r->params.temperature = 1;
    r->params.ignore_eos = 1;
    r->params.max_tokens = output_len;
    r->prompt = arena_memdup(&r->arena, prompt, (size_t)n_prompt * sizeof *prompt);
    r->n_prompt = n_prompt;
    r->reply = b->reply;
    r->user = (void *)(intptr_t)output_len;
    r->arrival_ns = clock_now_ns();
    r->id = b->ids[b->n_requests] = engine_new_id(b->s->engine);
    int rc = r->prompt ? engine_submit(b->s->engine, r, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc < 0) {
        engine_request_free(r);
        return rc;
    }
    b->n_requests++;
    b->n_open += n;
    return 0;
}

/* Waits until every output has ended; aborts them all when `rc` is an error already or a signal
 * comes. */
static int finish(struct batch *b, int rc, struct err *e)
{
    int aborted = 0;
    while (b->n_open > 0) {
        if (!aborted && rc >= 0 && signals_pending()) {
            rc = err_set(e, ERR_CANCELED, "interrupted");
        }
        for (int i = 0; rc < 0 && !aborted && i < b->n_requests; i++) {
            engine_abort(b->s->engine, b->ids[i], -1, 0);
        }
        aborted |= rc < 0;
        mq_wait(b->reply, 100);
        for (struct mq_node *n = mq_pop_all(b->reply), *next; n; n = next) {
            struct engine_event *ev =
                (struct engine_event *)((char *)n - offsetof(struct engine_event, node));
            next = n->next;
            b->n_output_tokens += ev->n_tokens;
            b->n_open -= ev->finish != FINISH_NONE;
            if (ev->finish == FINISH_ERROR && rc >= 0) {
                rc = err_set(e, ERR_INTERNAL, "%s", ev->error);
            } else if (ev->finish != FINISH_NONE && keep_times(b, ev) < 0 && rc >= 0) {
                rc = err_set(e, ERR_NOMEM, "out of memory");
            }
            engine_event_free(ev);
        }
    }
    b->n_requests = 0;
    return rc;
}

/* ---- latency ---- */

static int time_batch(struct batch *b, const struct args_latency *a, const int32_t *prompts,
                      double *seconds, struct err *e)
{
    uint64_t start = clock_now_ns();
    int rc = 0;
    for (int64_t i = 0; rc >= 0 && i < a->batch_size; i++) {
        rc = submit(b, prompts + i * a->input_len, (int)a->input_len, (int)a->output_len, (int)a->n,
                    e);
    }
    rc = finish(b, rc, e);
    *seconds = (double)(clock_now_ns() - start) * 1e-9;
    return rc;
}

/* What the weights take, and what a token at batch 1 reads of them. */
static void report_weights(const struct setup *s, struct json_writer *w)
{
    const uint64_t resident = model_weight_bytes(s->model),
                   read = model_weight_bytes_per_token(s->model);
    printf("Weights: %.1f MB resident (%.1f %% of 16 bits), %.1f MB read per token\n",
           (double)resident / 1e6, 100 * model_share_of_16_bit(s->model), (double)read / 1e6);
    json_w_kint(w, "weight_bytes", (int64_t)resident);
    json_w_kint(w, "weight_bytes_per_token", (int64_t)read);
}

static int report_latency(const struct setup *s, const struct args_latency *a,
                          struct bench_values *latencies, struct err *e)
{
    static const int percents[] = {10, 25, 50, 75, 90, 99};
    struct buf b;
    struct json_writer w;
    int rc = 0;
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_kdouble(&w, "avg_latency", bench_mean(latencies));
    json_w_key(&w, "latencies");
    json_w_array(&w);
    for (size_t i = 0; i < latencies->n; i++) {
        json_w_double(&w, latencies->v[i]);
    }
    json_w_array_end(&w);
    printf("Avg latency: %g seconds\n", bench_mean(latencies));
    bench_values_sort(latencies);
    json_w_key(&w, "percentiles");
    json_w_object(&w);
    for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
        char key[16];
        double v = bench_percentile(latencies, percents[i]);
        snprintf(key, sizeof key, "%d", percents[i]);
        json_w_kdouble(&w, key, v);
        printf("%d%% percentile latency: %g seconds\n", percents[i], v);
    }
    json_w_object_end(&w);
    report_weights(s, &w);
    json_w_object_end(&w);
    rc = a->output_json ? bench_save_json(a->output_json, &b, 0, e) : 0;
    buf_fini(&b);
    return rc;
}

static int run_latency(struct setup *s, const struct args_latency *a, struct err *e)
{
    struct batch b = {.s = s};
    struct bench_values latencies = {0};
    struct bench_codec codec;
    struct bench_rng rng = {.seed = (uint64_t)s->a->seed};
    size_t n = (size_t)(a->batch_size * a->input_len);
    int32_t *prompts = malloc(n * sizeof *prompts);
    int rc = setup_check(s, e);
    rc = rc < 0 ? rc : setup_load(s, e);
    rc = rc < 0 ? rc : setup_engine(s, e);
    rc = rc < 0 ? rc : bench_codec_local(&codec, s->tokenizer, e);
    rc = rc < 0 ? rc : mq_new(&b.reply, e);
    b.ids = calloc((size_t)a->batch_size, sizeof *b.ids);
    if (rc >= 0 && (!prompts || !b.ids)) {
        rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    for (size_t i = 0; rc >= 0 && i < n; i++) {
        prompts[i] = (int32_t)bench_integer(&rng, codec.first_id, codec.first_id + codec.n_ids - 1);
    }
    for (int64_t i = 0; rc >= 0 && i < a->num_iters_warmup + a->num_iters; i++) {
        double seconds;
        rc = time_batch(&b, a, prompts, &seconds, e);
        if (rc >= 0 && i >= a->num_iters_warmup) {
            rc = bench_values_add(&latencies, seconds);
        }
    }
    rc = rc < 0 ? rc : report_latency(s, a, &latencies, e);
    setup_close(s); /* first: the engine's events go to the queue */
    close_batch(&b);
    free(prompts);
    free(latencies.v);
    return rc;
}

/* ---- throughput ---- */

static int report_throughput(const struct setup *s, const struct args_throughput *a,
                             const struct bench_dataset *d, int64_t output, double seconds,
                             struct err *e)
{
    struct buf b;
    struct json_writer w;
    int64_t input = 0;
    for (size_t i = 0; i < d->n; i++) {
        input += d->v[i].prompt_len;
    }
    printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n",
           (double)d->n / seconds, (double)(input + output) / seconds, (double)output / seconds);
    printf("Total num prompt tokens:  %" PRId64 "\nTotal num output tokens:  %" PRId64 "\n", input,
           output);
    buf_init(&b);
    json_w_init(&w, &b);
    json_w_object(&w);
    json_w_kdouble(&w, "elapsed_time", seconds);
    json_w_kint(&w, "num_requests", (int64_t)d->n);
    json_w_kint(&w, "total_num_tokens", input + output);
    json_w_kdouble(&w, "requests_per_second", (double)d->n / seconds);
    json_w_kdouble(&w, "tokens_per_second", (double)(input + output) / seconds);
    report_weights(s, &w);
    json_w_object_end(&w);
    int rc = a->output_json ? bench_save_json(a->output_json, &b, 0, e) : 0;
    buf_fini(&b);
    return rc;
}

static int submit_all(struct batch *b, const struct bench_dataset *d, int n, struct err *e)
{
    struct token_ids ids = {0};
    int rc = 0;
    for (size_t i = 0; rc >= 0 && i < d->n; i++) {
        const struct bench_request *q = &d->v[i];
        ids.n = 0;
        rc = q->text ? tokenizer_encode(b->s->tokenizer, q->text, q->n_bytes, 1, &ids, e) : 0;
        rc = rc < 0 ? rc
                    : submit(b, q->text ? ids.ids : q->ids, q->text ? (int)ids.n : q->prompt_len,
                             q->output_len, n, e);
        if (rc < 0) {
            err_prefix(e, "request %zu", i);
        }
    }
    token_ids_fini(&ids);
    return rc;
}

/* Runs the whole dataset at once; b and d are then for the caller to read and close. */
static int run_dataset(struct setup *s, struct batch *b, struct bench_dataset *d, int n,
                       const struct args_bench_data *data, double *seconds, struct err *e)
{
    struct bench_codec codec;
    int rc = setup_check(s, e);
    rc = rc < 0 ? rc : bench_codec_local(&codec, s->tokenizer, e);
    rc = rc < 0 ? rc : bench_data_make(d, data, &codec, e);
    rc = rc < 0 ? rc : setup_load(s, e);
    rc = rc < 0 ? rc : setup_engine(s, e);
    rc = rc < 0 ? rc : mq_new(&b->reply, e);
    b->ids = calloc(d->n + 1, sizeof *b->ids);
    if (rc >= 0 && !b->ids) {
        rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    if (rc >= 0) {
        uint64_t start = clock_now_ns();
        rc = submit_all(b, d, n, e);
        rc = finish(b, rc, e);
        *seconds = (double)(clock_now_ns() - start) * 1e-9;
    }
    return rc;
}

static int run_throughput(struct setup *s, const struct args_throughput *a,
                          const struct args_bench_data *data, struct err *e)
{
    struct batch b = {.s = s};
    struct bench_dataset d = {0};
    double seconds;
    int rc = run_dataset(s, &b, &d, (int)a->n, data, &seconds, e);
    rc = rc < 0 ? rc : report_throughput(s, a, &d, b.n_output_tokens, seconds, e);
    setup_close(s); /* first: the engine's events go to the queue */
    close_batch(&b);
    bench_data_fini(&d);
    return rc;
}

/* ---- sweep ---- */

struct args_sweep {
    struct opt_list batched_tokens, seqs;
    const char *output_json;
};
#define FIELD(f) offsetof(struct args_sweep, f)
static const struct opt sweep_rows[] = {
    {.name = "sweep-batched-tokens",
     .type = OPT_LIST,
     .offset = FIELD(batched_tokens),
     .group = G_SWEEP,
     .meta = "N [N ...]",
     .help = "Values of --max-num-batched-tokens. Default: the one of that option."},
    {.name = "sweep-seqs",
     .type = OPT_LIST,
     .offset = FIELD(seqs),
     .group = G_SWEEP,
     .meta = "N [N ...]",
     .help = "Values of --max-num-seqs; each is run with each of the former."},
    {.name = "output-json",
     .type = OPT_STRING,
     .offset = FIELD(output_json),
     .group = G_SWEEP,
     .meta = "FILE",
     .help = "Result as JSON."},
};
#undef FIELD

/* Value i of a list, or the one value there is without a list. */
static int64_t swept(const struct opt_list *list, int i, int64_t otherwise)
{
    return list->n == 0 ? otherwise : strtoll(list->v[i], NULL, 10);
}

static int check_swept(const struct opt_list *list, const char *name, struct err *e)
{
    for (int i = 0; i < list->n; i++) {
        char *end;
        long long v = strtoll(list->v[i], &end, 10);
        if (*end != 0 || v < 1 || v > 1 << 20) {
            return err_set(e, ERR_INVALID, "%s: a number from 1 to 1048576 is needed, not '%s'",
                           name, list->v[i]);
        }
    }
    return 0;
}

static void report_point(struct batch *b, const struct args_engine *a, double seconds,
                         struct json_writer *w)
{
    bench_values_sort(&b->ttft);
    bench_values_sort(&b->tpot);
    const double rate = (double)b->n_output_tokens / seconds;
    printf("%14lld %8lld %14.1f %12.1f %12.1f %12.2f %12.2f\n",
           (long long)a->max_num_batched_tokens, (long long)a->max_num_seqs, rate,
           1e3 * bench_percentile(&b->ttft, 50), 1e3 * bench_percentile(&b->ttft, 99),
           1e3 * bench_percentile(&b->tpot, 50), 1e3 * bench_percentile(&b->tpot, 99));
    fflush(stdout);
    json_w_object(w);
    json_w_kint(w, "max_num_batched_tokens", a->max_num_batched_tokens);
    json_w_kint(w, "max_num_seqs", a->max_num_seqs);
    json_w_kdouble(w, "output_throughput", rate);
    json_w_kdouble(w, "median_ttft_ms", 1e3 * bench_percentile(&b->ttft, 50));
    json_w_kdouble(w, "p99_ttft_ms", 1e3 * bench_percentile(&b->ttft, 99));
    json_w_kdouble(w, "median_tpot_ms", 1e3 * bench_percentile(&b->tpot, 50));
    json_w_kdouble(w, "p99_tpot_ms", 1e3 * bench_percentile(&b->tpot, 99));
    json_w_object_end(w);
}

/* One point of the sweep: an engine of its own, so that nothing stays from the point before. */
static int run_point(struct args_engine *a, const struct log *log,
                     const struct args_bench_data *data, struct json_writer *w, struct err *e)
{
    struct setup s = {.a = a, .log = *log};
    struct batch b = {.s = &s, .keeps_times = 1};
    struct bench_dataset d = {0};
    double seconds;
    int rc = run_dataset(&s, &b, &d, 1, data, &seconds, e);
    if (rc >= 0) {
        report_point(&b, a, seconds, w);
    }
    setup_close(&s);
    close_batch(&b);
    bench_data_fini(&d);
    return rc;
}

static int run_sweep(struct args_engine *a, const struct log *log, const struct args_sweep *own,
                     const struct args_bench_data *data, struct err *e)
{
    const int64_t tokens = a->max_num_batched_tokens, seqs = a->max_num_seqs;
    struct buf out;
    struct json_writer w;
    int rc = 0;
    if (check_swept(&own->batched_tokens, "--sweep-batched-tokens", e) < 0 ||
        check_swept(&own->seqs, "--sweep-seqs", e) < 0) {
        return e->code;
    }
    buf_init(&out);
    json_w_init(&w, &out);
    json_w_array(&w);
    printf("%14s %8s %14s %12s %12s %12s %12s\n", "batched tokens", "seqs", "output tok/s",
           "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "TPOT p99 ms");
    for (int i = 0; rc >= 0 && i < (own->batched_tokens.n > 0 ? own->batched_tokens.n : 1); i++) {
        for (int k = 0; rc >= 0 && k < (own->seqs.n > 0 ? own->seqs.n : 1); k++) {
            a->max_num_batched_tokens = swept(&own->batched_tokens, i, tokens);
            a->max_num_seqs = swept(&own->seqs, k, seqs);
            rc = run_point(a, log, data, &w, e);
        }
    }
    json_w_array_end(&w);
    rc = rc >= 0 && own->output_json ? bench_save_json(own->output_json, &out, 0, e) : rc;
    buf_fini(&out);
    return rc;
}

/* ---- the commands ---- */

int bench_latency(int argc, char **argv)
{
    const char *command = "tern bench latency";
    struct args_latency own = {0};
    struct args_engine a = {0};
    struct opts o = {.usage = "tern bench latency MODEL [options]",
                     .tables = {{latency_rows, sizeof latency_rows / sizeof *latency_rows, &own},
                                args_engine_table(&a)},
                     .n_tables = 2};
    struct setup s = {.a = &a};
    struct err e = {0, ""};
    int rc = args_parse_model(&o, command, &a, argc, argv);
    if (rc < 0) {
        args_quiet_log(&o, &a, &s.log);
        signals_block();
        if (opts_source(&o, "enable-prefix-caching") == OPT_FROM_DEFAULT) {
            a.enable_prefix_caching = 0; /* the same prompts come again and again */
        }
        s.n_seqs_wanted = (int)(own.batch_size * own.n);
        rc = run_latency(&s, &own, &e);
        rc = rc < 0 ? args_fail(command, &e) : 0;
    }
    opts_fini(&o);
    return rc;
}

int bench_throughput(int argc, char **argv)
{
    const char *command = "tern bench throughput";
    struct args_throughput own = {0};
    struct args_bench_data data = {0};
    struct args_engine a = {0};
    struct opts o = {
        .usage = "tern bench throughput MODEL [options]",
        .tables = {{throughput_rows, sizeof throughput_rows / sizeof *throughput_rows, &own},
                   args_bench_data_table(&data, 0),
                   args_engine_table(&a)},
        .n_tables = 3};
    struct setup s = {.a = &a};
    struct err e = {0, ""};
    int rc = args_parse_model(&o, command, &a, argc, argv);
    if (rc < 0) {
        args_quiet_log(&o, &a, &s.log);
        signals_block();
        data.seed = a.seed;
        rc = run_throughput(&s, &own, &data, &e);
        rc = rc < 0 ? args_fail(command, &e) : 0;
    }
    opts_fini(&o);
    return rc;
}

int bench_sweep(int argc, char **argv)
{
    const char *command = "tern bench sweep";
    struct args_sweep own = {0};
    struct args_bench_data data = {0};
    struct args_engine a = {0};
    struct opts o = {.usage = "tern bench sweep MODEL [options]",
                     .tables = {{sweep_rows, sizeof sweep_rows / sizeof *sweep_rows, &own},
                                args_bench_data_table(&data, 0),
                                args_engine_table(&a)},
                     .n_tables = 3};
    struct log log;
    struct err e = {0, ""};
    int rc = args_parse_model(&o, command, &a, argc, argv);
    if (rc < 0) {
        args_quiet_log(&o, &a, &log);
        signals_block();
        data.seed = a.seed;
        rc = run_sweep(&a, &log, &own, &data, &e);
        rc = rc < 0 ? args_fail(command, &e) : 0;
    }
    opts_fini(&o);
    return rc;
}
