/* SPDX-License-Identifier: Apache-2.0 */
/* The result of `tern bench serve`: vLLM's table and JSON, key by key. */
#include "cmd/bench_serve.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BINS (7 * 24 * 3600) /* seconds of a run whose peaks are looked for */

struct measured {
    struct bench_values ttft, tpot, itl, e2el; /* seconds */
    int completed, failed, good;
    int cancelled, not_sent; /* of a run that was interrupted */
    int64_t input_tokens, output_tokens;
    double peak_tokens, peak_concurrency;
};

static const struct {
    const char *key, *title, *name;
    size_t offset;
} metrics[] = {
    {"ttft", "Time to First Token", "TTFT", offsetof(struct measured, ttft)},
    {"tpot", "Time per Output Token (excl. 1st token)", "TPOT", offsetof(struct measured, tpot)},
    {"itl", "Inter-token Latency", "ITL", offsetof(struct measured, itl)},
    {"e2el", "End-to-end Latency", "E2EL", offsetof(struct measured, e2el)},
};
#define N_METRICS (sizeof metrics / sizeof *metrics)

static struct bench_values *values_of(struct measured *m, size_t i)
{
    return (struct bench_values *)((char *)m + metrics[i].offset);
}

static int in_list(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p && *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ',')) {
        if (strcspn(p, ",") == n && strncmp(p, word, n) == 0) {
            return 1;
        }
    }
    return 0;
}

static int is_good(const struct bench_run *r, double ttft, double tpot, double e2el)
{
    for (int i = 0; i < r->a->goodput.n; i++) {
        const char *rule = r->a->goodput.v[i], *colon = strchr(rule, ':');
        double limit = colon ? strtod(colon + 1, NULL) / 1000 : 0;
        double value = strncmp(rule, "ttft:", 5) == 0   ? ttft
                       : strncmp(rule, "tpot:", 5) == 0 ? tpot
                                                        : e2el;
        if (value > limit) {
            return 0;
        }
    }
    return 1;
}

/* Most events, and most requests under way, in any second of the run. */
static void find_peaks(const struct bench_run *r, struct measured *m)
{
    size_t n = (size_t)r->duration_s + 2;
    if (n > MAX_BINS) {
        return;
    }
    double *tokens = calloc(n, sizeof *tokens), *open = calloc(n, sizeof *open);
    for (size_t i = 0; tokens && open && i < r->data.n; i++) {
        const struct bench_result *x = &r->results[i];
        if (x->state != BENCH_OK) {
            continue;
        }
        double at = (double)(x->first_ns - r->start_ns) * 1e-9;
        size_t first = (size_t)((double)(x->start_ns - r->start_ns) * 1e-9);
        size_t last = (size_t)((double)(x->last_ns - r->start_ns) * 1e-9);
        tokens[(size_t)at < n ? (size_t)at : n - 1]++;
        for (size_t k = 0; k < x->gaps.n; k++) {
            at += x->gaps.v[k];
            tokens[(size_t)at < n ? (size_t)at : n - 1]++;
        }
        for (size_t k = first; k <= last && k < n; k++) {
            open[k]++;
        }
    }
    for (size_t i = 0; tokens && open && i < n; i++) {
        m->peak_tokens = tokens[i] > m->peak_tokens ? tokens[i] : m->peak_tokens;
        m->peak_concurrency = open[i] > m->peak_concurrency ? open[i] : m->peak_concurrency;
    }
    free(tokens);
    free(open);
}

static void measure(const struct bench_run *r, struct measured *m)
{
    for (size_t i = 0; i < r->data.n; i++) {
        const struct bench_result *x = &r->results[i];
        if (x->state != BENCH_OK) {
            m->failed += x->state == BENCH_FAILED;
            m->cancelled += x->state == BENCH_UNDER_WAY;
            m->not_sent += x->state == BENCH_WAITING;
            continue;
        }
        double ttft = (double)(x->first_ns - x->start_ns) * 1e-9;
        double e2el = (double)(x->last_ns - x->start_ns) * 1e-9;
        double tpot = x->output_len > 1 ? (e2el - ttft) / (x->output_len - 1) : 0;
        m->completed++;
        m->input_tokens += x->prompt_len;
        m->output_tokens += x->output_len;
        bench_values_add(&m->ttft, ttft);
        bench_values_add(&m->e2el, e2el);
        if (x->output_len > 1) {
            bench_values_add(&m->tpot, tpot);
        }
        for (size_t k = 0; k < x->gaps.n; k++) {
            bench_values_add(&m->itl, x->gaps.v[k]);
        }
        m->good += is_good(r, ttft, tpot, e2el);
    }
    find_peaks(r, m);
}

static void print_head(char fill, const char *title)
{
    size_t n = strlen(title), left = n < 50 ? (50 - n) / 2 : 0, right = n < 50 ? 50 - n - left : 0;
    char line[64];
    memset(line, fill, sizeof line);
    printf("%.*s%s%.*s\n", (int)left, line, title, (int)right, line);
}

static void print_count(const char *label, int64_t v)
{
    printf("%-40s %-10" PRId64 "\n", label, v);
}

static void print_real(const char *label, double v)
{
    printf("%-40s %-10.2f\n", label, v);
}

/* Shares of what was drafted, as vLLM counts them; without a draft there is nothing to say. */
static double accepted_percent(const struct bench_spec *s)
{
    return 100 * s->accepted / s->draft_tokens;
}

static double accepted_length(const struct bench_spec *s)
{
    return s->drafts > 0 ? 1 + s->accepted / s->drafts : 0;
}

static int has_drafts(const struct bench_spec *s)
{
    return s->is_there && s->draft_tokens > 0;
}

static void print_speculation(const struct bench_spec *s)
{
    print_head('-', "Speculative Decoding");
    print_real("Acceptance rate (%):", accepted_percent(s));
    print_real("Acceptance length:", accepted_length(s));
    print_count("Drafts:", (int64_t)s->drafts);
    print_count("Draft tokens:", (int64_t)s->draft_tokens);
    print_count("Accepted tokens:", (int64_t)s->accepted);
    for (int i = 0; i < s->n_places && s->drafts > 0; i++) {
        char label[32];
        if (i == 0) {
            puts("Per-position acceptance (%):");
        }
        snprintf(label, sizeof label, "  Position %d:", i);
        print_real(label, 100 * s->by_place[i] / s->drafts);
    }
}

static void write_speculation(const struct bench_spec *s, struct json_writer *w)
{
    json_w_kdouble(w, "spec_decode_acceptance_rate", accepted_percent(s));
    json_w_kdouble(w, "spec_decode_acceptance_length", accepted_length(s));
    json_w_kint(w, "spec_decode_num_drafts", (int64_t)s->drafts);
    json_w_kint(w, "spec_decode_draft_tokens", (int64_t)s->draft_tokens);
    json_w_kint(w, "spec_decode_accepted_tokens", (int64_t)s->accepted);
    json_w_key(w, "spec_decode_per_position_acceptance_rates");
    json_w_array(w);
    for (int i = 0; i < s->n_places && s->drafts > 0; i++) {
        json_w_double(w, s->by_place[i] / s->drafts);
    }
    json_w_array_end(w);
}

static void print_table(const struct bench_run *r, struct measured *m)
{
    const struct args_bench_serve *a = r->a;
    double s = r->duration_s;
    print_head('=', " Serving Benchmark Result ");
    print_count("Successful requests:", m->completed);
    print_count("Failed requests:", m->failed);
    if (r->interrupted) {
        print_count("Cancelled requests:", m->cancelled);
        print_count("Requests not sent:", m->not_sent);
    }
    if (a->max_concurrency) {
        print_count("Maximum request concurrency:", a->max_concurrency);
    }
    if (isfinite(r->rate)) {
        print_real("Request rate configured (RPS):", r->rate);
    }
    print_real("Benchmark duration (s):", s);
    print_count("Total input tokens:", m->input_tokens);
    print_count("Total generated tokens:", m->output_tokens);
    print_real("Request throughput (req/s):", m->completed / s);
    if (a->goodput.n) {
        print_real("Request goodput (req/s):", m->good / s);
    }
    print_real("Output token throughput (tok/s):", (double)m->output_tokens / s);
    print_real("Peak output token throughput (tok/s):", m->peak_tokens);
    print_real("Peak concurrent requests:", m->peak_concurrency);
    print_real("Total token throughput (tok/s):", (double)(m->input_tokens + m->output_tokens) / s);
    for (size_t i = 0; i < N_METRICS; i++) {
        char label[80];
        struct bench_values *v = values_of(m, i);
        if (!in_list(a->percentile_metrics, metrics[i].key)) {
            continue;
        }
        bench_values_sort(v);
        print_head('-', metrics[i].title);
        snprintf(label, sizeof label, "Mean %s (ms):", metrics[i].name);
        print_real(label, 1000 * bench_mean(v));
        snprintf(label, sizeof label, "Median %s (ms):", metrics[i].name);
        print_real(label, 1000 * bench_percentile(v, 50));
        for (const char *p = a->metric_percentiles; *p;) {
            char *end;
            double percent = strtod(p, &end);
            snprintf(label, sizeof label, "P%g %s (ms):", percent, metrics[i].name);
            print_real(label, 1000 * bench_percentile(v, percent));
            p = *end == ',' ? end + 1 : end;
        }
    }
    if (has_drafts(&r->spec)) {
        print_speculation(&r->spec);
    }
    print_head('=', "");
}

static void write_detailed(const struct bench_run *r, struct json_writer *w)
{
#define EACH(name, action)                                                                         \
    json_w_key(w, name);                                                                           \
    json_w_array(w);                                                                               \
    for (size_t i = 0; i < r->data.n; i++) {                                                       \
        const struct bench_result *x = &r->results[i];                                             \
        action;                                                                                    \
    }                                                                                              \
    json_w_array_end(w)
    EACH("input_lens", json_w_int(w, x->prompt_len));
    EACH("output_lens", json_w_int(w, x->output_len));
    EACH("ttfts", json_w_double(w, x->first_ns ? (double)(x->first_ns - x->start_ns) * 1e-9 : 0));
    json_w_key(w, "itls");
    json_w_array(w);
    for (size_t i = 0; i < r->data.n; i++) {
        json_w_array(w);
        for (size_t k = 0; k < r->results[i].gaps.n; k++) {
            json_w_double(w, r->results[i].gaps.v[k]);
        }
        json_w_array_end(w);
    }
    json_w_array_end(w);
    EACH("start_times", json_w_double(w, (double)x->start_ns * 1e-9));
    EACH("generated_texts", json_w_stringn(w, x->text.data ? x->text.data : "", x->text.len));
    EACH("errors", json_w_string(w, x->error));
#undef EACH
}

static void write_result(const struct bench_run *r, struct measured *m, const char *date,
                         struct buf *out)
{
    const struct args_bench_serve *a = r->a;
    struct json_writer w;
    double s = r->duration_s;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kstring(&w, "date", date);
    json_w_kstring(&w, "endpoint_type", a->backend);
    json_w_kstring(&w, "backend", a->backend);
    json_w_kstring(&w, "label", a->label);
    json_w_kstring(&w, "model_id", r->server.model);
    json_w_kstring(&w, "tokenizer_id", r->tokenizer_path);
    json_w_kint(&w, "num_prompts", (int64_t)r->data.n);
    for (int i = 0; i < a->metadata.n; i++) {
        const char *pair = a->metadata.v[i], *equals = strchr(pair, '=');
        json_w_keyn(&w, pair, (size_t)(equals - pair));
        json_w_string(&w, equals + 1);
    }
    json_w_key(&w, "request_rate");
    if (isfinite(r->rate)) {
        json_w_double(&w, r->rate);
    } else {
        json_w_string(&w, "inf");
    }
    json_w_kdouble(&w, "burstiness", a->burstiness);
    json_w_key(&w, "max_concurrency");
    if (a->max_concurrency) {
        json_w_int(&w, a->max_concurrency);
    } else {
        json_w_null(&w);
    }
    json_w_kdouble(&w, "duration", s);
    json_w_kint(&w, "completed", m->completed);
    json_w_kint(&w, "failed", m->failed);
    if (r->interrupted) {
        json_w_kint(&w, "cancelled", m->cancelled);
        json_w_kint(&w, "not_sent", m->not_sent);
    }
    json_w_kint(&w, "total_input_tokens", m->input_tokens);
    json_w_kint(&w, "total_output_tokens", m->output_tokens);
    json_w_kdouble(&w, "request_throughput", m->completed / s);
    json_w_key(&w, "request_goodput");
    if (a->goodput.n) {
        json_w_double(&w, m->good / s);
    } else {
        json_w_null(&w);
    }
    json_w_kdouble(&w, "output_throughput", (double)m->output_tokens / s);
    json_w_kdouble(&w, "total_token_throughput", (double)(m->input_tokens + m->output_tokens) / s);
    json_w_kdouble(&w, "max_output_tokens_per_s", m->peak_tokens);
    json_w_kdouble(&w, "max_concurrent_requests", m->peak_concurrency);
    for (size_t i = 0; i < N_METRICS; i++) {
        struct bench_values *v = values_of(m, i);
        char key[80];
        if (!in_list(a->percentile_metrics, metrics[i].key)) {
            continue;
        }
        bench_values_sort(v);
        snprintf(key, sizeof key, "mean_%s_ms", metrics[i].key);
        json_w_kdouble(&w, key, 1000 * bench_mean(v));
        snprintf(key, sizeof key, "median_%s_ms", metrics[i].key);
        json_w_kdouble(&w, key, 1000 * bench_percentile(v, 50));
        snprintf(key, sizeof key, "std_%s_ms", metrics[i].key);
        json_w_kdouble(&w, key, 1000 * bench_std(v));
        for (const char *p = a->metric_percentiles; *p;) {
            char *end;
            double percent = strtod(p, &end);
            snprintf(key, sizeof key, "p%g_%s_ms", percent, metrics[i].key);
            json_w_kdouble(&w, key, 1000 * bench_percentile(v, percent));
            p = *end == ',' ? end + 1 : end;
        }
    }
    if (has_drafts(&r->spec)) {
        write_speculation(&r->spec, &w);
    }
    if (a->save_detailed) {
        write_detailed(r, &w);
    }
    json_w_object_end(&w);
}

int bench_report(const struct bench_run *r, struct err *e)
{
    const struct args_bench_serve *a = r->a;
    struct measured m = {.completed = 0};
    struct buf b;
    char date[32], name[1024], path[4096];
    int rc = 0, shown = 0;
    buf_init(&b);
    measure(r, &m);
    print_table(r, &m);
    for (size_t i = 0; i < r->data.n && shown < 10; i++) {
        if (r->results[i].state == BENCH_FAILED) {
            fprintf(stderr, "request %zu: %s\n", i, r->results[i].error);
            shown++;
        }
    }
    if (a->save_result || a->append_result) {
        const char *base = strrchr(r->server.model, '/');
        char rate[32], concurrency[48] = "";
        bench_date(date);
        write_result(r, &m, date, &b);
        snprintf(rate, sizeof rate, "%g", r->rate);
        if (a->max_concurrency) {
            snprintf(concurrency, sizeof concurrency, "-concurrency%" PRId64, a->max_concurrency);
        }
        snprintf(name, sizeof name, "%s-%sqps%s-%s-%s.json", a->label ? a->label : a->backend, rate,
                 concurrency, base ? base + 1 : r->server.model, date);
        snprintf(path, sizeof path, "%s%s%s", a->result_dir ? a->result_dir : "",
                 a->result_dir ? "/" : "", a->result_filename ? a->result_filename : name);
        rc = bench_save_json(path, &b, a->append_result, e);
    }
    for (size_t i = 0; i < N_METRICS; i++) {
        free(values_of(&m, i)->v);
    }
    buf_fini(&b);
    if (rc >= 0 && r->interrupted) {
        rc = err_set(e, ERR_CANCELED, "interrupted");
    }
    return rc < 0 || m.failed == 0
               ? rc
               : err_set(e, ERR_IO, "%d of %zu requests failed", m.failed, r->data.n);
}
