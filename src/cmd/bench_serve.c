/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench serve: sends requests at a rate, reads their event streams, and prints vLLM's table.
 *
 * One thread and one client: a request is sent when its time has come and fewer than
 * --max-concurrency are under way. Times are those of vLLM: first token = first event with a
 * choice, a gap between tokens = gap between such events, the end = the last of them; tokens are
 * counted by the server's usage event. */
#include "cmd/bench_serve.h"

#include "base/clock.h"
#include "cmd/args.h"
#include "cmd/signals.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define G_SERVE         "Server"
#define G_LOAD          "Load"
#define G_RESULT        "Results"
#define G_SAMPLE        "Sampling (unset: the server's defaults)"
#define REPLY_BYTES_MAX ((size_t)64 << 20)

#define FIELD(f) offsetof(struct args_bench_serve, f)
#define TEXT(option, field, heading, value, what, text)                                            \
    {                                                                                              \
        .name = option, .type = OPT_STRING, .offset = FIELD(field), .group = heading,              \
        .def = value, .meta = what, .help = text                                                   \
    }
#define WHOLE(option, field, heading, value, least, text)                                          \
    {                                                                                              \
        .name = option, .type = OPT_INT, .offset = FIELD(field), .group = heading, .def = value,   \
        .min = least, .max = 1e9, .help = text                                                     \
    }
#define REAL(option, field, heading, value, least, text)                                           \
    {                                                                                              \
        .name = option, .type = OPT_DOUBLE, .offset = FIELD(field), .group = heading,              \
        .def = value, .min = least, .max = 1e9, .help = text                                       \
    }
#define FLAG(option, field, heading, text)                                                         \
    {                                                                                              \
        .name = option, .type = OPT_BOOL, .offset = FIELD(field), .group = heading,                \
        .def = "false", .help = text                                                               \
    }
static const struct opt rows[] = {
    {.name = "backend",
     .type = OPT_STRING,
     .offset = FIELD(backend),
     .group = G_SERVE,
     .def = "openai",
     .choices = "openai|vllm|openai-chat",
     .help = "openai (or vllm): completions; openai-chat: chat."},
    TEXT("base-url", base_url, G_SERVE, NULL, "URL", "Server, instead of --host and --port."),
    TEXT("host", host, G_SERVE, "127.0.0.1", NULL, "Server's host."),
    WHOLE("port", port, G_SERVE, "8000", 1, "Server's port."),
    TEXT("uds", unix_socket, G_SERVE, NULL, "PATH", "Server's Unix socket."),
    TEXT("endpoint", endpoint, G_SERVE, NULL, "PATH",
         "Default /v1/completions, for chat /v1/chat/completions."),
    TEXT("model", model, G_SERVE, NULL, "NAME", "Default: the first of /v1/models."),
    TEXT("served-model-name", served_model_name, G_SERVE, NULL, "NAME",
         "Name in requests, if not --model."),
    TEXT(
        "tokenizer", tokenizer, G_SERVE, NULL, "DIR",
        "Default: the model's directory if it is on this machine, else /tokenize and /detokenize."),
    {.name = "api-key",
     .type = OPT_STRING,
     .offset = FIELD(api_key),
     .group = G_SERVE,
     .env = "OPENAI_API_KEY",
     .meta = "KEY",
     .help = "Sent as Authorization: Bearer."},
    TEXT("ca-file", ca_file, G_SERVE, NULL, "FILE", "Certificates to trust, PEM."),
    {.name = "header",
     .type = OPT_APPEND,
     .offset = FIELD(headers),
     .group = G_SERVE,
     .meta = "KEY=VALUE",
     .help = "Further header; may be repeated."},
    {.name = "extra-body",
     .type = OPT_JSON,
     .offset = FIELD(extra_body),
     .group = G_SERVE,
     .help = "Further fields of each request."},
    TEXT("request-id-prefix", request_id_prefix, G_SERVE, NULL, "TEXT",
         "x-request-id is this and the request's number; default bench-<8 hex digits>-."),
    {.name = "request-rate",
     .type = OPT_STRING,
     .offset = FIELD(request_rate),
     .group = G_LOAD,
     .def = "inf",
     .help = "Requests a second; inf: all at once."},
    REAL("burstiness", burstiness, G_LOAD, "1", 1e-6,
         "Shape of the gamma distribution of gaps; 1: Poisson arrivals."),
    WHOLE("max-concurrency", max_concurrency, G_LOAD, "0", 0, "Requests under way; 0: no limit."),
    {.name = "ramp-up-strategy",
     .type = OPT_STRING,
     .offset = FIELD(ramp_up_strategy),
     .group = G_LOAD,
     .choices = "linear|exponential",
     .help = "The rate goes from --ramp-up-start-rps to --ramp-up-end-rps."},
    REAL("ramp-up-start-rps", ramp_up_start, G_LOAD, "0", 0, "First rate."),
    REAL("ramp-up-end-rps", ramp_up_end, G_LOAD, "0", 0, "Last rate."),
    WHOLE("num-warmups", num_warmups, G_LOAD, "0", 0, "Requests before the clock starts."),
    WHOLE("ready-check-timeout-sec", ready_check_timeout_s, G_LOAD, "0", 0,
          "Wait this long for a first answer; 0: one try is made."),
    FLAG("ignore-eos", ignore_eos, G_LOAD,
         "Outputs have their full length (always for random data)."),
    FLAG("no-stream", no_stream, G_LOAD, "Whole answers: no first-token times."),
    TEXT("percentile-metrics", percentile_metrics, G_RESULT, "ttft,tpot,itl", "LIST",
         "Of ttft, tpot, itl, e2el."),
    TEXT("metric-percentiles", metric_percentiles, G_RESULT, "99", "LIST",
         "Percentiles that are printed, commas between."),
    {.name = "goodput",
     .type = OPT_LIST,
     .offset = FIELD(goodput),
     .group = G_RESULT,
     .meta = "KEY:MS",
     .help = "Counts requests within these times: ttft, tpot, e2el."},
    FLAG("save-result", save_result, G_RESULT, "Write the result as JSON."),
    FLAG("save-detailed", save_detailed, G_RESULT, "With every request's lengths, times and text."),
    FLAG("append-result", append_result, G_RESULT, "Append to the file."),
    TEXT("result-dir", result_dir, G_RESULT, NULL, "DIR", "Directory of the result."),
    TEXT("result-filename", result_filename, G_RESULT, NULL, "FILE", "Name of the result."),
    TEXT("label", label, G_RESULT, NULL, "TEXT", "Instead of the back end's name in the result."),
    {.name = "metadata",
     .type = OPT_LIST,
     .offset = FIELD(metadata),
     .group = G_RESULT,
     .meta = "KEY=VALUE",
     .help = "Further keys of the result."},
    FLAG("disable-tqdm", disable_tqdm, G_RESULT, "No progress on stderr."),
    REAL("temperature", temperature, G_SAMPLE, NULL, 0, "0: greedy."),
    REAL("top-p", top_p, G_SAMPLE, NULL, 0, "Only the best tokens whose shares sum to X."),
    WHOLE("top-k", top_k, G_SAMPLE, NULL, -1, "Only the N best tokens."),
    REAL("min-p", min_p, G_SAMPLE, NULL, 0, "Only tokens with X times the best one's share."),
    REAL("frequency-penalty", frequency_penalty, G_SAMPLE, NULL, -2, "As in the API."),
    REAL("presence-penalty", presence_penalty, G_SAMPLE, NULL, -2, "As in the API."),
    REAL("repetition-penalty", repetition_penalty, G_SAMPLE, NULL, 0, "As in the API."),
    WHOLE("logprobs", logprobs, G_SAMPLE, "-1", -1, "Log-probabilities of the k best; -1: none."),
};

/* ---- a request ---- */

static void write_sampling(const struct bench_run *r, struct json_writer *w)
{
    static const struct {
        const char *option, *field;
        size_t offset;
    } reals[] = {
        {"temperature", "temperature", FIELD(temperature)},
        {"top-p", "top_p", FIELD(top_p)},
        {"min-p", "min_p", FIELD(min_p)},
        {"frequency-penalty", "frequency_penalty", FIELD(frequency_penalty)},
        {"presence-penalty", "presence_penalty", FIELD(presence_penalty)},
        {"repetition-penalty", "repetition_penalty", FIELD(repetition_penalty)},
    };
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        if (opts_source(r->opts, reals[i].option) != OPT_FROM_DEFAULT) {
            double v;
            memcpy(&v, (const char *)r->a + reals[i].offset, sizeof v);
            json_w_kdouble(w, reals[i].field, v);
        }
    }
    if (opts_source(r->opts, "top-k") != OPT_FROM_DEFAULT) {
        json_w_kint(w, "top_k", r->a->top_k);
    }
    if (r->a->logprobs >= 0 && r->chat) {
        json_w_kbool(w, "logprobs", 1);
        json_w_kint(w, "top_logprobs", r->a->logprobs);
    } else if (r->a->logprobs >= 0) {
        json_w_kint(w, "logprobs", r->a->logprobs);
    }
}

static void write_message(struct json_writer *w, const char *role, const char *text, size_t n)
{
    json_w_object(w);
    json_w_kstring(w, "role", role);
    json_w_key(w, "content");
    json_w_array(w);
    json_w_object(w);
    json_w_kstring(w, "type", "text");
    json_w_key(w, "text");
    json_w_stringn(w, text, n);
    json_w_object_end(w);
    json_w_array_end(w);
    json_w_object_end(w);
}

static void add_to_history(struct bench_session *s, const char *role, const char *text, size_t n)
{
    struct buf message;
    struct json_writer w;
    buf_init(&message);
    json_w_init(&w, &message);
    write_message(&w, role, text, n);
    buf_puts(&s->history, s->history.len ? "," : "");
    buf_append(&s->history, message.data, message.len);
    buf_fini(&message);
}

static void write_body(const struct bench_run *r, const struct bench_request *q, struct buf *out)
{
    struct json_writer w;
    int ignore_eos = r->a->ignore_eos || r->data.ignore_eos;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kstring(&w, "model", r->server.model);
    if (r->chat) {
        json_w_key(&w, "messages");
        if (q->session >= 0) {
            struct buf list;
            buf_init(&list);
            buf_printf(&list, "[%s]", r->sessions[q->session].history.data);
            json_w_raw(&w, list.data ? list.data : "[]", list.data ? list.len : 2);
            buf_fini(&list);
        } else {
            json_w_array(&w);
            write_message(&w, "user", q->text, q->n_bytes);
            json_w_array_end(&w);
        }
        json_w_kint(&w, "max_completion_tokens", q->output_len);
    } else {
        json_w_key(&w, "prompt");
        if (q->text) {
            json_w_stringn(&w, q->text, q->n_bytes);
        } else {
            json_w_array(&w);
            for (int i = 0; i < q->prompt_len; i++) {
                json_w_int(&w, q->ids[i]);
            }
            json_w_array_end(&w);
        }
        json_w_kint(&w, "max_tokens", q->output_len);
    }
    if (!r->a->no_stream) {
        json_w_kbool(&w, "stream", 1);
        json_w_key(&w, "stream_options");
        json_w_object(&w);
        json_w_kbool(&w, "include_usage", 1);
        json_w_object_end(&w);
    }
    if (ignore_eos) {
        json_w_kbool(&w, "ignore_eos", 1);
    }
    write_sampling(r, &w);
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    while (r->extra && json_next(r->extra, &it, &key, &n, &value)) {
        json_w_keyn(&w, key, n);
        json_w_value(&w, value);
    }
    json_w_object_end(&w);
}

/* ---- its answer ---- */

static void take_text(struct bench_result *x, const struct json *choice)
{
    const struct json *from = json_get(choice, "delta");
    from = json_type(from) == JSON_OBJECT ? from : json_get(choice, "message");
    const struct json *text =
        json_type(from) == JSON_OBJECT ? json_get(from, "content") : json_get(choice, "text");
    size_t n;
    if (json_type(text) == JSON_STRING) {
        const char *s = json_string(text, &n);
        buf_append(&x->text, s, n);
    }
}

static void take_object(struct bench_result *x, const struct json *object, uint64_t now)
{
    const struct json *choices = json_get(object, "choices"), *usage = json_get(object, "usage");
    const struct json *error = json_get(object, "error");
    if (json_type(error) == JSON_OBJECT) {
        size_t n;
        const struct json *message = json_get(error, "message");
        snprintf(x->error, sizeof x->error, "%s",
                 json_type(message) == JSON_STRING ? json_string(message, &n) : "error event");
    }
    if (json_length(choices) > 0) {
        if (!x->first_ns) {
            x->first_ns = now;
        } else {
            bench_values_add(&x->gaps, (double)(now - x->last_ns) * 1e-9);
        }
        x->last_ns = now;
        take_text(x, json_at(choices, 0));
    }
    if (json_type(usage) == JSON_OBJECT) {
        x->has_usage = 1;
        x->output_len = (int)json_int(json_get(usage, "completion_tokens"));
        x->prompt_len = (int)json_int(json_get(usage, "prompt_tokens"));
    }
}

static int take_event(void *user, const char *data, size_t n)
{
    struct bench_result *x = user;
    struct json *object = NULL;
    struct err ignored;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        return 0;
    }
    if (json_parse(&object, data, n, JSON_DEPTH_DEFAULT, &ignored) == 0) {
        take_object(x, object, x->arrived_ns);
    } else {
        snprintf(x->error, sizeof x->error, "an event is no JSON");
    }
    json_free(object);
    return 0;
}

static int on_data(void *user, const char *bytes, size_t n)
{
    struct bench_result *x = user;
    x->arrived_ns = clock_now_ns();
    if (!x->run->a->no_stream) {
        return remote_events(&x->held, bytes, n, take_event, x);
    }
    x->last_ns = x->arrived_ns;
    buf_append(&x->held, bytes, n);
    return x->held.failed || x->held.len > REPLY_BYTES_MAX;
}

static void take_whole(struct bench_result *x, int status)
{
    struct json *object = NULL;
    struct err ignored;
    if (json_parse(&object, x->held.data ? x->held.data : "", x->held.len, JSON_DEPTH_DEFAULT,
                   &ignored) == 0 &&
        status == 200) {
        take_object(x, object, x->last_ns);
    }
    json_free(object);
}

static void on_done(void *user, int status, const struct err *e)
{
    struct bench_result *x = user;
    struct bench_run *r = x->run;
    if (r->a->no_stream) {
        take_whole(x, status);
    }
    if (status != 200) {
        snprintf(x->error, sizeof x->error, "status %d%s%.200s", status, status ? "" : ": ",
                 status ? "" : e->text);
    } else if (e->code != 0 && !x->error[0]) {
        snprintf(x->error, sizeof x->error, "%.240s", e->text);
    } else if (!x->first_ns && !x->error[0]) {
        snprintf(x->error, sizeof x->error, "the answer has no choice");
    }
    x->state = x->error[0] ? BENCH_FAILED : BENCH_OK;
    buf_fini(&x->held);
    r->n_under_way--;
    r->n_done++;
    const struct bench_request *q = x->request;
    if (q->session < 0) {
        return;
    }
    add_to_history(&r->sessions[q->session], "assistant", x->text.data ? x->text.data : "",
                   x->text.len);
    for (size_t i = 0; i < r->data.n; i++) { /* the session's next turn may go now */
        if (r->data.v[i].session == q->session && r->data.v[i].turn == q->turn + 1) {
            r->results[i].send_at_s = 0;
        }
    }
}

static int send(struct bench_run *r, struct bench_result *x, size_t number, struct err *e)
{
    static const struct client_callbacks callbacks = {.data = on_data, .done = on_done};
    const struct bench_request *q = x->request;
    const char *headers[MAX_HEADERS + 2] = {"Content-Type: application/json"};
    char id[128];
    int n_headers = 1;
    struct buf body;
    buf_init(&body);
    if (q->session >= 0) {
        add_to_history(&r->sessions[q->session], "user", q->text, q->n_bytes);
    }
    write_body(r, q, &body);
    snprintf(id, sizeof id, "x-request-id: %s%zu", r->id_prefix, number);
    headers[n_headers++] = id;
    for (int i = 0; i < r->a->headers.n; i++) {
        headers[n_headers++] = r->headers[i];
    }
    x->state = BENCH_UNDER_WAY;
    x->prompt_len = q->prompt_len;
    x->start_ns = clock_now_ns();
    r->n_under_way++;
    int rc = body.failed ? err_set(e, ERR_NOMEM, "out of memory")
                         : client_start(r->server.client, "POST", r->url, headers, n_headers,
                                        body.data, body.len, &callbacks, x, NULL, e);
    buf_fini(&body);
    return rc;
}

/* ---- the load ---- */

/* When each request is due: gaps from a gamma distribution, stretched so that the last comes at
 * total / rate; or the trace's own times; or all at once. */
static void plan_arrivals(struct bench_run *r)
{
    const struct args_bench_serve *a = r->a;
    struct bench_rng rng = {.seed = (uint64_t)r->data_args->seed ^ 0x5bd1e995u};
    double at = 0;
    size_t n = r->data.n;
    for (size_t i = 0; i < n; i++) {
        const struct bench_request *q = &r->data.v[i];
        double rate = r->rate;
        if (a->ramp_up_strategy && n > 1) {
            double share = (double)i / (double)(n - 1);
            rate = strcmp(a->ramp_up_strategy, "linear") == 0
                       ? a->ramp_up_start + (a->ramp_up_end - a->ramp_up_start) * share
                       : a->ramp_up_start * pow(a->ramp_up_end / a->ramp_up_start, share);
        }
        if (isfinite(rate) && rate > 0) {
            at += bench_gamma(&rng, a->burstiness, 1 / (rate * a->burstiness));
        }
        r->results[i].send_at_s = q->turn > 0 ? INFINITY : q->at_s >= 0 ? q->at_s : at;
    }
    double wanted = (double)n / r->rate;
    if (!a->ramp_up_strategy && isfinite(r->rate) && at > 0) {
        for (size_t i = 0; i < n; i++) {
            if (r->data.v[i].at_s < 0 && r->data.v[i].turn <= 0) {
                r->results[i].send_at_s *= wanted / at;
            }
        }
    }
}

static void show_progress(struct bench_run *r, int last)
{
    uint64_t now = clock_now_ns();
    int tty = isatty(2);
    if (r->a->disable_tqdm ||
        (!last && now - r->shown_ns < (tty ? (uint64_t)200000000 : (uint64_t)5000000000))) {
        return;
    }
    r->shown_ns = now;
    fprintf(stderr, "%s%d of %zu requests, %d under way, %.0f s%s", tty ? "\r\033[K" : "",
            r->n_done, r->data.n, r->n_under_way, (double)(now - r->start_ns) * 1e-9,
            tty && !last ? "" : "\n");
}

static int drive(struct bench_run *r, struct err *e)
{
    int rc = 0;
    size_t first = 0;
    r->start_ns = r->shown_ns = clock_now_ns();
    while (rc >= 0 && (size_t)r->n_done < r->data.n) {
        double now = (double)(clock_now_ns() - r->start_ns) * 1e-9, soonest = INFINITY;
        for (size_t i = first; rc >= 0 && i < r->data.n; i++) {
            struct bench_result *x = &r->results[i];
            first += i == first && x->state != BENCH_WAITING;
            if (x->state != BENCH_WAITING) {
                continue;
            }
            if (r->a->max_concurrency && r->n_under_way >= r->a->max_concurrency) {
                break;
            }
            if (x->send_at_s > now) {
                soonest = x->send_at_s < soonest ? x->send_at_s : soonest;
                if (r->data.n_sessions == 0) {
                    break; /* times ascend */
                }
                continue;
            }
            rc = send(r, x, i, e);
        }
        double wait = soonest - (double)(clock_now_ns() - r->start_ns) * 1e-9;
        int ms = wait > 0.1 ? 100 : wait > 0 ? (int)(wait * 1000) : 0;
        if (r->n_under_way == 0 && rc >= 0 && ms > 0) {
            struct timespec pause = {0, (long)ms * 1000000};
            nanosleep(&pause, NULL);
        } else if (rc >= 0) {
            client_run(r->server.client, ms);
        }
        show_progress(r, 0);
        if (signals_pending()) {
            r->interrupted = 1;
            break;
        }
    }
    r->duration_s = (double)(clock_now_ns() - r->start_ns) * 1e-9;
    show_progress(r, 1);
    return rc;
}

/* ---- the server before the run ---- */

static int encode(void *self, const char *text, size_t n, struct token_ids *out, struct err *e)
{
    return remote_encode(self, text, n, out, e);
}

static int decode(void *self, const int32_t *ids, size_t n, struct buf *out, struct err *e)
{
    return remote_decode(self, ids, n, out, e);
}

/* The model's name and directory. */
static int ask_models(struct bench_run *r, struct err *e)
{
    struct json *reply = NULL;
    const struct json *card = NULL;
    const struct args_bench_serve *a = r->a;
    size_t n;
    snprintf(r->tokenizer_path, sizeof r->tokenizer_path, "%s",
             a->tokenizer ? a->tokenizer
             : a->model   ? a->model
                          : "");
    if (r->server.model && a->tokenizer) {
        return 0;
    }
    int rc = remote_find_model(&r->server, "--model", &reply, &card, e);
    const struct json *root = json_get(card, "root");
    if (rc >= 0 && !a->tokenizer && json_type(root) == JSON_STRING) {
        snprintf(r->tokenizer_path, sizeof r->tokenizer_path, "%s", json_string(root, &n));
    }
    json_free(reply);
    return rc;
}

#define REMOTE_FIRST_ID 300 /* ordinary pieces in any vocabulary that has some thousands */
#define REMOTE_N_IDS    7000

static int open_codec(struct bench_run *r, struct bench_codec *c, struct err *e)
{
    struct stat st;
    if (r->a->tokenizer || (r->tokenizer_path[0] && stat(r->tokenizer_path, &st) == 0)) {
        int rc = tokenizer_open(&r->tokenizer, r->tokenizer_path, e);
        return rc < 0 ? rc : bench_codec_local(c, r->tokenizer, e);
    }
    snprintf(r->tokenizer_path, sizeof r->tokenizer_path, "%s/tokenize", r->server.root);
    *c = (struct bench_codec){&r->server, encode, decode, REMOTE_FIRST_ID, REMOTE_N_IDS};
    return 0;
}

/* One request by itself: it must succeed. Repeated until the time is up. */
static int try_first(struct bench_run *r, double seconds, struct err *e)
{
    uint64_t end = clock_now_ns() + (uint64_t)(seconds * 1e9);
    for (;;) {
        struct bench_request q = r->data.v[0];
        struct bench_result x = {.run = r, .request = &q};
        q.session = -1;
        buf_init(&x.held);
        buf_init(&x.text);
        int rc = send(r, &x, 0, e);
        while (rc >= 0 && x.state == BENCH_UNDER_WAY) {
            client_run(r->server.client, 100);
            if (signals_pending()) {
                rc = err_set(e, ERR_CANCELED, "interrupted");
            }
        }
        r->n_done -= rc >= 0;
        int failed = x.state == BENCH_FAILED;
        if (rc >= 0 && failed) {
            rc = err_set(e, ERR_IO, "the first request failed: %s", x.error);
        }
        buf_fini(&x.text);
        free(x.gaps.v);
        if (!failed || rc == ERR_CANCELED || clock_now_ns() >= end) {
            return rc;
        }
        struct timespec pause = {0, 500000000};
        nanosleep(&pause, NULL);
    }
}

/* ---- the command ---- */

static int check_arguments(struct bench_run *r, struct err *e)
{
    const struct args_bench_serve *a = r->a;
    for (int i = 0; i < a->goodput.n; i++) {
        const char *rule = a->goodput.v[i];
        if (strncmp(rule, "ttft:", 5) != 0 && strncmp(rule, "tpot:", 5) != 0 &&
            strncmp(rule, "e2el:", 5) != 0) {
            return err_set(e, ERR_INVALID,
                           "--goodput: expected ttft:MS, tpot:MS or e2el:MS, found '%s'", rule);
        }
    }
    for (int i = 0; i < a->headers.n; i++) {
        const char *pair = a->headers.v[i], *equals = strchr(pair, '=');
        if (!equals || i == MAX_HEADERS) {
            return err_set(e, ERR_INVALID, "--header: expected at most %d KEY=VALUE, found '%s'",
                           MAX_HEADERS, pair);
        }
        if (asprintf(&r->headers[i], "%.*s: %s", (int)(equals - pair), pair, equals + 1) < 0) {
            r->headers[i] = NULL;
            return err_set(e, ERR_NOMEM, "out of memory");
        }
    }
    for (int i = 0; i < a->metadata.n; i++) {
        if (!strchr(a->metadata.v[i], '=')) {
            return err_set(e, ERR_INVALID, "--metadata: expected KEY=VALUE, found '%s'",
                           a->metadata.v[i]);
        }
    }
    for (const char *p = a->metric_percentiles; *p;) {
        char *end;
        double v = strtod(p, &end);
        if (end == p || (*end && *end != ',') || !(v >= 0 && v <= 100)) {
            return err_set(e, ERR_INVALID,
                           "--metric-percentiles: expected numbers from 0 to 100, found '%s'",
                           a->metric_percentiles);
        }
        p = *end ? end + 1 : end;
    }
    char *end_of_rate;
    r->rate = strtod(a->request_rate, &end_of_rate);
    if (*end_of_rate || !(r->rate > 0)) {
        return err_set(e, ERR_INVALID,
                       "--request-rate: expected a number above 0 or inf, found '%s'",
                       a->request_rate);
    }
    if (a->ramp_up_strategy && !(a->ramp_up_start > 0 && a->ramp_up_end > 0)) {
        return err_set(
            e, ERR_INVALID,
            "--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps above 0");
    }
    return a->extra_body
               ? json_parse(&r->extra, a->extra_body, strlen(a->extra_body), JSON_DEPTH_DEFAULT, e)
               : 0;
}

static int prepare(struct bench_run *r, struct err *e)
{
    const struct args_bench_serve *a = r->a;
    struct client_options co = {.bearer = a->api_key,
                                .unix_socket = a->unix_socket,
                                .ca_file = a->ca_file,
                                .max_connections = 4096};
    struct bench_codec codec;
    char here[512];
    r->chat = strcmp(a->backend, "openai-chat") == 0;
    snprintf(here, sizeof here, "http://%s:%d", a->host, (int)a->port);
    int rc = remote_open(&r->server, "--base-url", a->base_url ? a->base_url : here,
                         a->served_model_name ? a->served_model_name : a->model, &co, e);
    if (rc < 0) {
        return rc;
    }
    const char *endpoint = a->endpoint ? a->endpoint
                           : r->chat   ? "/v1/chat/completions"
                                       : "/v1/completions";
    const char *wanted = r->chat ? "chat/completions" : "completions";
    if (strlen(endpoint) < strlen(wanted) ||
        strcmp(endpoint + strlen(endpoint) - strlen(wanted), wanted) != 0) {
        return err_set(e, ERR_INVALID, "--endpoint: for %s it ends in %s, found '%s'", a->backend,
                       wanted, endpoint);
    }
    snprintf(r->url, sizeof r->url, "%s%s", r->server.root, endpoint);
    if (a->request_id_prefix) {
        snprintf(r->id_prefix, sizeof r->id_prefix, "%s", a->request_id_prefix);
    } else {
        snprintf(r->id_prefix, sizeof r->id_prefix, "bench-%08x-", (unsigned)clock_now_ns());
    }
    rc = check_arguments(r, e);
    rc = rc < 0 ? rc : ask_models(r, e);
    rc = rc < 0 ? rc : open_codec(r, &codec, e);
    rc = rc < 0 ? rc : bench_data_make(&r->data, r->data_args, &codec, e);
    if (rc >= 0 && r->data.chat && !r->chat) {
        rc = err_set(e, ERR_INVALID, "chats of several turns need --backend openai-chat");
    }
    if (rc >= 0 && r->chat && r->data.n && !r->data.v[0].text) {
        rc = err_set(e, ERR_INVALID, "a trace has token ids as prompts: it needs --backend openai");
    }
    if (rc < 0) {
        return rc;
    }
    r->results = calloc(r->data.n, sizeof *r->results);
    r->sessions = calloc((size_t)r->data.n_sessions + 1, sizeof *r->sessions);
    if (!r->results || !r->sessions) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < r->data.n; i++) {
        r->results[i].run = r;
        r->results[i].request = &r->data.v[i];
        buf_init(&r->results[i].held);
        buf_init(&r->results[i].text);
    }
    for (int i = 0; i < r->data.n_sessions; i++) {
        buf_init(&r->sessions[i].history);
    }
    return 0;
}

static int run_all(struct bench_run *r, struct err *e)
{
    int rc = prepare(r, e);
    if (rc < 0) {
        return rc;
    }
    puts("Starting initial single prompt test run...");
    rc = try_first(r, (double)r->a->ready_check_timeout_s, e);
    if (rc < 0) {
        return rc;
    }
    puts("Initial test run completed.");
    for (int64_t i = 0; rc >= 0 && i < r->a->num_warmups; i++) {
        rc = try_first(r, 0, e);
    }
    puts("Starting main benchmark run...");
    printf("Traffic request rate: %g\nBurstiness factor: %g%s\n", r->rate, r->a->burstiness,
           r->a->burstiness == 1 ? " (Poisson process)" : " (Gamma distribution)");
    if (r->a->max_concurrency) {
        printf("Maximum request concurrency: %" PRId64 "\n", r->a->max_concurrency);
    } else {
        puts("Maximum request concurrency: None");
    }
    fflush(stdout);
    plan_arrivals(r);
    struct bench_spec before = {0};
    if (rc >= 0) {
        bench_spec_read(&before, &r->server);
        rc = drive(r, e);
    }
    if (rc >= 0 && before.is_there && !r->interrupted) {
        bench_spec_read(&r->spec, &r->server);
        bench_spec_since(&r->spec, &before);
    }
    return rc < 0 ? rc : bench_report(r, e);
}

static void close_run(struct bench_run *r)
{
    remote_close(&r->server);
    for (size_t i = 0; r->results && i < r->data.n; i++) {
        buf_fini(&r->results[i].held);
        buf_fini(&r->results[i].text);
        free(r->results[i].gaps.v);
    }
    for (int i = 0; r->sessions && i < r->data.n_sessions; i++) {
        buf_fini(&r->sessions[i].history);
    }
    for (int i = 0; i < MAX_HEADERS; i++) {
        free(r->headers[i]);
    }
    free(r->results);
    free(r->sessions);
    tokenizer_close(r->tokenizer);
    json_free(r->extra);
    bench_data_fini(&r->data);
}

int bench_serve(int argc, char **argv)
{
    const char *command = "tern bench serve";
    struct args_bench_serve a = {0};
    struct args_bench_data data = {0};
    struct opts o = {
        .usage = "tern bench serve [options]",
        .tables = {{rows, sizeof rows / sizeof *rows, &a}, args_bench_data_table(&data, 1)},
        .n_tables = 2};
    struct bench_run *r = calloc(1, sizeof *r);
    struct err e = {0, ""};
    int rc = r ? args_parse(&o, command, argc, argv) : EXIT_FAULT;
    rc = rc < 0 ? args_words(&o, command, 0) : rc;
    if (rc < 0) {
        signals_block();
        r->a = &a;
        r->data_args = &data;
        r->opts = &o;
        rc = run_all(r, &e);
        rc = rc < 0 ? args_fail(command, &e) : 0;
        close_run(r);
    }
    free(r);
    opts_fini(&o);
    return rc;
}
