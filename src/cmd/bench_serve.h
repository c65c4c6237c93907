/* SPDX-License-Identifier: Apache-2.0 */
/* What a run of `tern bench serve` knows, and its report. */
#ifndef TERN_CMD_BENCH_SERVE_H
#define TERN_CMD_BENCH_SERVE_H

#include "cmd/bench.h"
#include "cmd/remote.h"

#define MAX_HEADERS 32

struct args_bench_serve {
    const char *backend, *base_url, *host, *endpoint, *model, *served_model_name, *tokenizer;
    const char *api_key, *unix_socket, *ca_file;
    int64_t port, max_concurrency, num_warmups, ready_check_timeout_s;
    const char *request_rate;
    double burstiness;
    const char *ramp_up_strategy;
    double ramp_up_start, ramp_up_end;
    const char *percentile_metrics, *metric_percentiles, *extra_body, *request_id_prefix;
    struct opt_list goodput, headers, metadata;
    int ignore_eos, no_stream, save_result, save_detailed, append_result, disable_tqdm;
    const char *result_dir, *result_filename, *label;
    double temperature, top_p, min_p, frequency_penalty, presence_penalty, repetition_penalty;
    int64_t top_k, logprobs;
};

struct bench_run;

enum bench_state { BENCH_WAITING, BENCH_UNDER_WAY, BENCH_OK, BENCH_FAILED };

struct bench_result {
    struct bench_run *run;
    const struct bench_request *request;
    enum bench_state state;
    double send_at_s; /* after the run's start; of a later turn: never by itself */
    uint64_t start_ns, first_ns, last_ns, arrived_ns; /* arrived: the bytes at hand */
    struct bench_values gaps;                         /* between events, s */
    int prompt_len, output_len;
    int has_usage;
    struct buf held, text; /* bytes of the reply that are no whole event; the answer */
    char error[256];
};

struct bench_session {
    struct buf history; /* messages so far, JSON without the brackets */
};

#define BENCH_SPEC_PLACES 128
/* What the server's counters of speculative decoding say, or have gained. */
struct bench_spec {
    int is_there, n_places;
    double drafts, draft_tokens, accepted;
    double by_place[BENCH_SPEC_PLACES]; /* accepted drafts that were at least so long, less 1 */
};

struct bench_run {
    const struct args_bench_serve *a;
    const struct args_bench_data *data_args;
    const struct opts *opts;
    struct bench_dataset data;
    struct bench_result *results;
    struct bench_session *sessions;
    struct remote server;
    char url[2048], tokenizer_path[2048], id_prefix[64];
    struct tokenizer *tokenizer;
    int chat, n_under_way, n_done;
    size_t next; /* first request that was not sent */
    uint64_t start_ns;
    double duration_s, rate; /* rate: requests a second, may be infinite */
    struct json *extra;
    char *headers[MAX_HEADERS]; /* "key: value" */
    int interrupted;
    uint64_t shown_ns;
    struct bench_spec spec; /* gained by the run */
};

/* Whatever goes wrong: not there. */
void bench_spec_read(struct bench_spec *s, struct remote *server);
void bench_spec_since(struct bench_spec *s, const struct bench_spec *before);

/* Prints the table, writes the JSON. An error too when a request failed. */
int bench_report(const struct bench_run *r, struct err *e);

#endif
