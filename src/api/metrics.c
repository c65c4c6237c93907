/* SPDX-License-Identifier: Apache-2.0 */
/* GET /metrics: Prometheus text 0.0.4. Every series exists from the start as 0, also before the
 * model is loaded, so that a dashboard never meets a gap. No label holds anything a client sent. */
#include "api/metrics.h"
#include "api/state.h"

#include "base/clock.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const double highr_bounds[METRICS_HIGHR - 1] = {
    .01, .025, .05, .075, .1, .25, .5, .75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60};
static const double duration_bounds[3] = {.1, .5, 1};
static const char *const method_names[METRICS_METHODS] = {"GET", "POST", "HEAD", "other"};

void metrics_http(struct metrics *m, int route, const char *method, int status, double seconds,
                  uint64_t request_bytes, uint64_t response_bytes)
{
    int method_index = 0, class = status / 100 - 1, k = 0;
    while (method_index < METRICS_METHODS - 1 && strcmp(method, method_names[method_index]) != 0) {
        method_index++;
    }
    if (class < 0 || class >= METRICS_CLASSES) {
        class = 4;
    }
    m->requests[route][method_index][class]++;
    struct metrics_hist *h = &m->duration[route][method_index];
    while (k < 3 && seconds > duration_bounds[k]) {
        k++;
    }
    h->bucket[k]++;
    h->count++;
    h->sum += seconds;
    for (k = 0; k < METRICS_HIGHR - 1 && seconds > highr_bounds[k]; k++) {
    }
    m->highr[k]++;
    m->highr_count++;
    m->highr_sum += seconds;
    m->request_size[route].count++;
    m->request_size[route].sum += (double)request_bytes;
    m->response_size[route].count++;
    m->response_size[route].sum += (double)response_bytes;
}

struct text {
    struct buf *out;
    const char *labels; /* model_name="…",engine="0" */
};

static void put_label_value(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') {
            buf_putc(out, '\\');
            buf_putc(out, *s);
        } else if (*s == '\n') {
            buf_puts(out, "\\n");
        } else {
            buf_putc(out, *s);
        }
    }
}

static void head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(struct text *t, const char *name, const char *help, double v)
{
    head(t->out, name, "gauge", help);
    buf_printf(t->out, "%s{%s} %.17g\n", name, t->labels, v);
}

static void counter(struct text *t, const char *name, const char *help, uint64_t v)
{
    head(t->out, name, "counter", help);
    buf_printf(t->out, "%s{%s} %llu\n", name, t->labels, (unsigned long long)v);
}

static void histogram(struct text *t, const char *name, const char *field, const char *help,
                      const struct engine_hist *h, int max_model_len)
{
    int n = 0;
    const double *bounds = engine_hist_bounds(field, max_model_len, &n);
    uint64_t sum = 0;
    head(t->out, name, "histogram", help);
    for (int i = 0; i < n; i++) {
        sum += h->bucket[i];
        buf_printf(t->out, "%s_bucket{%s,le=\"%.17g\"} %llu\n", name, t->labels, bounds[i],
                   (unsigned long long)sum);
    }
    buf_printf(t->out, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, t->labels,
               (unsigned long long)h->count);
    buf_printf(t->out, "%s_sum{%s} %.17g\n%s_count{%s} %llu\n", name, t->labels, h->sum, name,
               t->labels, (unsigned long long)h->count);
}

static void engine_gauges(const struct server *s, struct text *t, const struct engine_stats *st)
{
    struct buf *out = t->out;
    gauge(t, "vllm:num_requests_running", "Sequences in the running batch.", st->n_running);
    gauge(t, "vllm:num_requests_waiting", "Sequences waiting to be scheduled.", st->n_waiting);
    head(out, "vllm:num_requests_waiting_by_reason", "gauge", "Waiting sequences by reason.");
    buf_printf(out, "vllm:num_requests_waiting_by_reason{%s,reason=\"capacity\"} %d\n", t->labels,
               st->n_waiting);
    buf_printf(out, "vllm:num_requests_waiting_by_reason{%s,reason=\"deferred\"} 0\n", t->labels);
    head(out, "vllm:engine_sleep_state", "gauge", "1 for the state the engine is in.");
    buf_printf(out, "vllm:engine_sleep_state{%s,sleep_state=\"awake\"} %d\n", t->labels, s->ready);
    buf_printf(out, "vllm:engine_sleep_state{%s,sleep_state=\"weights_offloaded\"} 0\n", t->labels);
    buf_printf(out, "vllm:engine_sleep_state{%s,sleep_state=\"discard_all\"} 0\n", t->labels);
    gauge(t, "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", st->kv_usage);
    gauge(t, "vllm:kv_cache_bytes", "Bytes of the KV store.", (double)st->kv_bytes);
    gauge(t, "vllm:kv_cache_resident_bytes", "Bytes of the KV blocks that were ever used.",
          (double)st->kv_touched_bytes);
    gauge(t, "vllm:kv_cache_fragmentation_perc",
          "Share of the slots of running sequences that hold no token, 0 to 1.",
          st->kv_fragmentation);
    gauge(t, "vllm:largest_admissible_prompt_tokens",
          "The longest prompt that the free KV blocks could take now.", st->max_admissible_tokens);
    gauge(t, "vllm:model_weight_bytes", "Bytes of the loaded weights.",
          (double)s->model.weight_bytes);
    head(out, "vllm:cache_config_info", "gauge", "KV cache configuration.");
    buf_printf(out, "vllm:cache_config_info{engine=\"0\",block_size=\"%d\",num_gpu_blocks=\"%d\"",
               st->block_tokens, st->n_blocks);
    if (s->ready) {
        int x100 = engine_max_concurrency_x100(s->model.engine);
        buf_printf(out, ",kv_cache_max_concurrency=\"%d.%02d\",kv_cache_size_tokens=\"%lld\"",
                   x100 / 100, x100 % 100, (long long)x100 * s->model.max_model_len / 100);
    }
    for (int i = 0; i < s->model.n_cache_labels; i++) {
        buf_printf(out, ",%s=\"", s->model.cache_labels[i].name);
        put_label_value(out, s->model.cache_labels[i].value);
        buf_putc(out, '"');
    }
    buf_puts(out, "} 1\n");
}

/* Only with speculation, as vLLM's. */
static void speculation(struct text *t, const struct engine_stats *st)
{
    if (st->speculation.max_tokens == 0) {
        return;
    }
    counter(t, "vllm:spec_decode_num_drafts_total", "Drafts that were checked.",
            st->speculation.drafts);
    counter(t, "vllm:spec_decode_num_draft_tokens_total", "Tokens of these drafts.",
            st->speculation.tokens);
    counter(t, "vllm:spec_decode_num_accepted_tokens_total", "Those that became output.",
            st->speculation.accepted);
    head(t->out, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
         "Accepted tokens by their place in the draft.");
    for (int i = 0; i < st->speculation.max_tokens; i++) {
        buf_printf(t->out,
                   "vllm:spec_decode_num_accepted_tokens_per_pos_total{%s,position=\"%d\"} %llu\n",
                   t->labels, i, (unsigned long long)st->speculation.accepted_at[i]);
    }
}

static void engine_counters(struct text *t, const struct engine_stats *st, const struct metrics *m)
{
    static const enum finish_reason reasons[] = {FINISH_STOP, FINISH_LENGTH, FINISH_ABORT,
                                                 FINISH_ERROR, FINISH_REPETITION};
    struct buf *out = t->out;
    uint64_t computed =
        st->prompt_tokens - (st->prompt_tokens_cached < st->prompt_tokens ? st->prompt_tokens_cached
                                                                          : st->prompt_tokens);
    counter(t, "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
            st->prefix_queries);
    counter(t, "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
            st->prefix_hits);
    counter(t, "vllm:external_prefix_cache_queries_total", "Tokens looked up at a KV connector.",
            0);
    counter(t, "vllm:external_prefix_cache_hits_total", "Tokens found at a KV connector.", 0);
    counter(t, "vllm:mm_cache_queries_total", "Lookups in the multimodal cache.", 0);
    counter(t, "vllm:mm_cache_hits_total", "Hits in the multimodal cache.", 0);
    counter(t, "vllm:num_preemptions_total", "Preemptions.", st->preemptions);
    speculation(t, st);
    counter(t, "vllm:prompt_tokens_total", "Prompt tokens processed, cached ones included.",
            st->prompt_tokens);
    head(out, "vllm:prompt_tokens_by_source_total", "counter",
         "Prompt tokens by where their KV came from.");
    buf_printf(out, "vllm:prompt_tokens_by_source_total{%s,source=\"local_compute\"} %llu\n",
               t->labels, (unsigned long long)computed);
    buf_printf(out, "vllm:prompt_tokens_by_source_total{%s,source=\"local_cache_hit\"} %llu\n",
               t->labels, (unsigned long long)st->prompt_tokens_cached);
    buf_printf(out, "vllm:prompt_tokens_by_source_total{%s,source=\"external_kv_transfer\"} 0\n",
               t->labels);
    counter(t, "vllm:prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
            st->prompt_tokens_cached);
    counter(t, "vllm:generation_tokens_total", "Tokens generated.", st->generation_tokens);
    head(out, "vllm:request_success_total", "counter", "Finished sequences by reason.");
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        buf_printf(out, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n", t->labels,
                   finish_reason_name(reasons[i]), (unsigned long long)st->finished[reasons[i]]);
    }
    counter(t, "vllm:tool_call_parser_invocations_total", "Answers searched for tool calls.",
            m->tool_call_parses);
    counter(t, "vllm:kv_block_evictions_total", "Cached blocks given to other content.",
            st->evictions);
    counter(t, "vllm:engine_steps_total", "Steps of the engine loop.", st->steps);
}

static void engine_histograms(struct text *t, const struct engine_stats *st, int max_len)
{
    max_len = max_len > 0 ? max_len : 1;
    histogram(t, "vllm:request_prompt_tokens", "prompt_len", "Prompt tokens of a sequence.",
              &st->prompt_len, max_len);
    histogram(t, "vllm:request_generation_tokens", "generation_len",
              "Tokens generated for a sequence.", &st->generation_len, max_len);
    histogram(t, "vllm:request_max_num_generation_tokens", "max_generation_len",
              "Most tokens generated for one sample of a request.", &st->max_generation_len,
              max_len);
    histogram(t, "vllm:request_params_n", "params_n", "n of a request.", &st->params_n, max_len);
    histogram(t, "vllm:request_params_max_tokens", "params_max_tokens", "max_tokens of a request.",
              &st->params_max_tokens, max_len);
    histogram(t, "vllm:request_prefill_kv_computed_tokens", "prefill_kv_computed",
              "Prompt tokens computed, cached ones excluded.", &st->prefill_kv_computed, max_len);
    histogram(t, "vllm:iteration_tokens_total", "step_tokens", "Tokens of one engine step.",
              &st->step_tokens, max_len);
    histogram(t, "vllm:engine_step_seconds", "step_seconds", "Time of one engine step.",
              &st->step_seconds, max_len);
    histogram(t, "vllm:time_to_first_token_seconds", "ttft", "Time to the first token.", &st->ttft,
              max_len);
    histogram(t, "vllm:inter_token_latency_seconds", "itl", "Time between tokens.", &st->itl,
              max_len);
    histogram(t, "vllm:request_time_per_output_token_seconds", "tpot",
              "Mean time per output token of a request.", &st->tpot, max_len);
    histogram(t, "vllm:e2e_request_latency_seconds", "e2e", "Time from arrival to the end.",
              &st->e2e, max_len);
    histogram(t, "vllm:request_queue_time_seconds", "queue", "Time in the waiting queue.",
              &st->queue, max_len);
    histogram(t, "vllm:request_inference_time_seconds", "inference",
              "Time from being scheduled to the last token.", &st->inference, max_len);
    histogram(t, "vllm:request_prefill_time_seconds", "prefill",
              "Time from being scheduled to the first token.", &st->prefill, max_len);
    histogram(t, "vllm:request_decode_time_seconds", "decode",
              "Time from the first to the last token.", &st->decode, max_len);
}

static const char *route_name(int r)
{
    return r < server_n_routes ? server_routes[r].path : "none";
}

static int route_counted(const struct server *s, int r)
{
    return r == METRICS_ROUTES - 1 ||
           (r < server_n_routes && !(server_routes[r].flags & ROUTE_UNCOUNTED) &&
            route_enabled(&s->o, &server_routes[r]));
}

/* Series of a route exist for the methods it takes, and for others once they were used. */
static int method_shown(const struct metrics *m, int r, int k)
{
    static const unsigned bits[METRICS_METHODS] = {M_GET, M_POST, 0, 0};
    return m->duration[r][k].count > 0 ||
           (r < server_n_routes && (server_routes[r].methods & bits[k]));
}

static void http_text(const struct server *s, struct buf *out)
{
    const struct metrics *m = &s->metrics;
    head(out, "http_requests_total", "counter", "Requests by method, status class and handler.");
    for (int r = 0; r < METRICS_ROUTES; r++) {
        for (int k = 0; route_counted(s, r) && k < METRICS_METHODS; k++) {
            for (int c = 1; c < METRICS_CLASSES && method_shown(m, r, k); c++) {
                if (m->requests[r][k][c] || c == 1) {
                    buf_printf(
                        out,
                        "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} %llu\n",
                        route_name(r), method_names[k], c + 1,
                        (unsigned long long)m->requests[r][k][c]);
                }
            }
        }
    }
    static const char *const names[2] = {"http_request_size_bytes", "http_response_size_bytes"};
    for (int i = 0; i < 2; i++) {
        head(out, names[i], "summary", i ? "Body bytes sent." : "Body bytes received.");
        for (int r = 0; r < METRICS_ROUTES; r++) {
            const struct metrics_summary *q = i ? &m->response_size[r] : &m->request_size[r];
            if (route_counted(s, r)) {
                buf_printf(out, "%s_count{handler=\"%s\"} %llu\n%s_sum{handler=\"%s\"} %.17g\n",
                           names[i], route_name(r), (unsigned long long)q->count, names[i],
                           route_name(r), q->sum);
            }
        }
    }
    head(out, "http_request_duration_highr_seconds", "histogram", "Request time, fine buckets.");
    uint64_t sum = 0;
    for (int i = 0; i < METRICS_HIGHR - 1; i++) {
        sum += m->highr[i];
        buf_printf(out, "http_request_duration_highr_seconds_bucket{le=\"%.17g\"} %llu\n",
                   highr_bounds[i], (unsigned long long)sum);
    }
    buf_printf(out, "http_request_duration_highr_seconds_bucket{le=\"+Inf\"} %llu\n",
               (unsigned long long)m->highr_count);
    buf_printf(out,
               "http_request_duration_highr_seconds_sum "
               "%.17g\nhttp_request_duration_highr_seconds_count %llu\n",
               m->highr_sum, (unsigned long long)m->highr_count);
    head(out, "http_request_duration_seconds", "histogram", "Request time by handler and method.");
    for (int r = 0; r < METRICS_ROUTES; r++) {
        for (int k = 0; route_counted(s, r) && k < METRICS_METHODS; k++) {
            const struct metrics_hist *h = &m->duration[r][k];
            sum = 0;
            if (!method_shown(m, r, k)) {
                continue;
            }
            for (int i = 0; i < 4; i++) {
                static const char *const le[4] = {"0.1", "0.5", "1.0", "+Inf"};
                sum += h->bucket[i];
                buf_printf(out,
                           "http_request_duration_seconds_bucket{handler=\"%s\",method=\"%s\",le="
                           "\"%s\"} %llu\n",
                           route_name(r), method_names[k], le[i], (unsigned long long)sum);
            }
            buf_printf(out,
                       "http_request_duration_seconds_sum{handler=\"%s\",method=\"%s\"} %.17g\n",
                       route_name(r), method_names[k], h->sum);
            buf_printf(out,
                       "http_request_duration_seconds_count{handler=\"%s\",method=\"%s\"} %llu\n",
                       route_name(r), method_names[k], (unsigned long long)h->count);
        }
    }
}

static int open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = -3; /* ".", ".." and the directory itself */
    if (!d) {
        return 0;
    }
    while (readdir(d)) {
        n++;
    }
    closedir(d);
    return n;
}

static void process_text(struct buf *out)
{
    unsigned long long utime = 0, stime = 0, start = 0, vsize = 0;
    long rss = 0;
    double boot = 0;
    char line[1024] = "";
    FILE *f = fopen("/proc/self/stat", "r");
    if (f) {
        if (fgets(line, sizeof line, f) && strrchr(line, ')')) {
            sscanf(strrchr(line, ')') + 1,
                   " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d "
                   "%llu %llu %ld",
                   &utime, &stime, &start, &vsize, &rss);
        }
        fclose(f);
    }
    f = fopen("/proc/stat", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "btime %lf", &boot) == 1) {
            break;
        }
    }
    if (f) {
        fclose(f);
    }
    double hz = (double)sysconf(_SC_CLK_TCK);
    head(out, "process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.");
    buf_printf(out, "process_virtual_memory_bytes %llu\n", vsize);
    head(out, "process_resident_memory_bytes", "gauge", "Resident memory size in bytes.");
    buf_printf(out, "process_resident_memory_bytes %lld\n", (long long)rss * sysconf(_SC_PAGESIZE));
    head(out, "process_start_time_seconds", "gauge",
         "Start time of the process since unix epoch in seconds.");
    buf_printf(out, "process_start_time_seconds %.2f\n", boot + (double)start / hz);
    head(out, "process_cpu_seconds_total", "counter",
         "Total user and system CPU time spent in seconds.");
    buf_printf(out, "process_cpu_seconds_total %.2f\n", (double)(utime + stime) / hz);
    head(out, "process_open_fds", "gauge", "Number of open file descriptors.");
    buf_printf(out, "process_open_fds %d\n", open_fds());
    head(out, "process_max_fds", "gauge", "Maximum number of open file descriptors.");
    buf_printf(out, "process_max_fds %ld\n", sysconf(_SC_OPEN_MAX));
}

void metrics_handle(struct server *s, struct http_exchange *x)
{
    struct engine_stats st;
    struct buf out, label;
    struct text t = {.out = &out};
    buf_init(&out);
    buf_init(&label);
    buf_puts(&label, "model_name=\"");
    put_label_value(&label, s->o.served_model_names[0]);
    buf_puts(&label, "\",engine=\"0\"");
    t.labels = label.data ? label.data : "";
    memset(&st, 0, sizeof st);
    if (s->ready) {
        engine_stats(s->model.engine, &st);
    }
    engine_gauges(s, &t, &st);
    engine_counters(&t, &st, &s->metrics);
    engine_histograms(&t, &st, s->model.max_model_len);
    http_text(s, &out);
    process_text(&out);
    http_respond(x, out.failed ? 503 : 200, "text/plain; version=0.0.4; charset=utf-8",
                 out.data ? out.data : "", out.len);
    buf_fini(&out);
    buf_fini(&label);
}
