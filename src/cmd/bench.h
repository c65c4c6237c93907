/* SPDX-License-Identifier: Apache-2.0 */
/* `tern bench`: what vLLM's bench measures, with its names, defaults, table and JSON.
 *
 *   bench serve       requests over HTTP against any OpenAI-compatible server (bench_serve.c)
 *   bench latency     one batch at a time, in this process      (bench_offline.c)
 *   bench throughput  many requests at once, in this process
 *   bench sweep       the same for several values of the scheduler's limits
 *   bench kernels     GB/s and GOP/s of each kernel beside the machine's limits (bench_kernels.c)
 *   bench machine     these limits
 *
 * Data (bench_data.c) is made before the clock starts. */
#ifndef TERN_CMD_BENCH_H
#define TERN_CMD_BENCH_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/opt.h"
#include "text/tokenizer.h"
#include <stdint.h>

/* ---- data ---- */

struct bench_request {
    const char *text; /* prompt, or NULL: ids */
    size_t n_bytes;
    const int32_t *ids;
    int prompt_len, output_len; /* tokens */
    double at_s;                /* a trace's own time of arrival, -1: the request rate decides */
    int session, turn;          /* turns of a session follow each other and carry its history; -1 */
};

struct bench_dataset {
    struct bench_request *v;
    size_t n, cap;
    int n_sessions;
    int chat;       /* needs the chat endpoint */
    int ignore_eos; /* lengths are exact */
    struct arena arena;
};

/* Text <-> ids, of a directory or of the server. Both append. */
struct bench_codec {
    void *self;
    int (*encode)(void *self, const char *text, size_t n, struct token_ids *out, struct err *e);
    int (*decode)(void *self, const int32_t *ids, size_t n, struct buf *out, struct err *e);
    int32_t first_id; /* random prompts use first_id .. first_id + n_ids - 1: no special tokens */
    int n_ids;
};

int bench_codec_local(struct bench_codec *c, struct tokenizer *t, struct err *e);

struct args_bench_data {
    const char *name, *path, *scenario;
    int64_t num_prompts, seed;
    int64_t input_len, output_len; /* -1: the dataset's own */
    int64_t random_input_len, random_output_len, random_prefix_len;
    double random_range_ratio;
    int64_t sharegpt_output_len;
    int64_t sonnet_input_len, sonnet_output_len, sonnet_prefix_len;
    int64_t custom_output_len;
    int64_t repetition_prefix_len, repetition_suffix_len, repetition_num_prefixes,
        repetition_output_len;
    int64_t trace_max_len;
    double trace_speed;
    int disable_shuffle, no_oversample;
};
/* without --seed beside the engine's options, which have it */
struct opt_table args_bench_data_table(struct args_bench_data *a, int with_seed);
int bench_data_make(struct bench_dataset *d, const struct args_bench_data *a,
                    const struct bench_codec *codec, struct err *e);
void bench_data_fini(struct bench_dataset *d);

/* ---- numbers ---- */

/* Draws that depend on a seed alone. */
struct bench_rng {
    uint64_t seed, n;
};
double bench_uniform(struct bench_rng *r);                             /* [0, 1) */
int64_t bench_integer(struct bench_rng *r, int64_t low, int64_t high); /* both ends possible */
double bench_gamma(struct bench_rng *r, double shape, double scale);

struct bench_values {
    double *v;
    size_t n, cap;
};
int bench_values_add(struct bench_values *s, double x); /* 0 or ERR_NOMEM */
void bench_values_sort(struct bench_values *s);
double bench_mean(const struct bench_values *s);                      /* 0 when empty */
double bench_std(const struct bench_values *s);                       /* of the population */
double bench_percentile(const struct bench_values *sorted, double p); /* linear between ranks */

int bench_save_json(const char *path, const struct buf *b, int append, struct err *e);
void bench_date(char out[32]); /* YYYYmmdd-HHMMSS, local time */

int bench_serve(int argc, char **argv);
int bench_latency(int argc, char **argv);
int bench_throughput(int argc, char **argv);
int bench_sweep(int argc, char **argv);
int bench_kernels(int argc, char **argv);
int bench_machine(int argc, char **argv);

#endif
