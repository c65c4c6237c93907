/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: one thread that owns scheduler, KV and activations; requests go in and events come
 * out as messages. Knows token ids only: no text, no HTTP. Several engines may live in one process.
 * Thread-safe where marked. */
#ifndef TERN_ENGINE_ENGINE_H
#define TERN_ENGINE_ENGINE_H

#include "base/arena.h"
#include "base/err.h"
#include "base/mq.h"
#include "model/forward.h"
#include <stdatomic.h>
#include <stdint.h>

struct log;
struct grammar;

enum finish_reason {
    FINISH_NONE,
    FINISH_STOP,
    FINISH_LENGTH,
    FINISH_ABORT,
    FINISH_ERROR,
    FINISH_REPETITION
};
const char *finish_reason_name(
    enum finish_reason r); /* "stop" "length" "abort" "error" "repetition"; NULL for NONE */

struct token_bias {
    int32_t id;
    float bias;
};
struct token_seq {
    const int32_t *ids;
    int n;
};
/* Ends a sample with FINISH_REPETITION when its last min_count * k tokens are one pattern of k
 * tokens, for any k in the range. max_pattern 0: off. */
struct repetition_rule {
    int max_pattern, min_pattern, min_count;
};

/* Validated values (sampling_params_check); vLLM's meaning throughout. */
struct sampling_params {
    int n;               /* sequences from one prompt, >= 1 */
    double temperature;  /* < 1e-5: greedy */
    double top_p, min_p; /* (0,1], [0,1] */
    int top_k;           /* 0 or -1: off */
    double repetition_penalty, presence_penalty, frequency_penalty;
    int has_seed;
    int64_t seed; /* sample i uses seed + i */
    int max_tokens, min_tokens;
    int ignore_eos;
    const int32_t *stop_token_ids; /* client's and generation_config's, merged */
    int n_stop_token_ids;
    int n_logprobs;                   /* -1: none; k: sampled token + k best */
    int n_prompt_logprobs;            /* -1: none */
    const int32_t *logprob_token_ids; /* these instead of the k best, in this order */
    int n_logprob_token_ids;
    const struct token_bias *logit_bias;
    int n_logit_bias;
    const int32_t *allowed_token_ids;
    int n_allowed_token_ids;
    const struct token_seq *bad_words;
    int n_bad_words;
    struct repetition_rule repetition;
    /* Beam search of width n (beam.h): the samples are the n best hypotheses, best first, each told
     * by one event with all its tokens. Of the fields above only max_tokens, ignore_eos,
     * stop_token_ids, n_logprobs and n_prompt_logprobs have a meaning then. */
    int use_beam_search;
    double length_penalty;
};
#define ENGINE_MAX_BEAMS 64
/* Entries besides the sampled token in token_output.top; -1: no log-probabilities. */
int sampling_params_n_top(const struct sampling_params *p);
/* Sampling defaults for fields a client leaves null: generation_config.json with
 * --override-generation-config merged over it, or nothing with --generation-config vllm. */
struct sampling_defaults {
    int has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty,
        has_max_new_tokens;
    double temperature, top_p, min_p, repetition_penalty;
    int top_k, max_new_tokens; /* max_new_tokens caps every request, as vLLM does */
};
void sampling_params_init(struct sampling_params *p); /* vLLM's neutral defaults; max_tokens 16 */
/* Ranges of facts: ERR_INVALID names the parameter in *field (static string) and says why in e. */
int sampling_params_check(const struct sampling_params *p, int vocab_size, int max_logprobs,
                          const char **field, struct err *e);

/* One request. Allocate with engine_request_new; everything it points to lives in its arena. */
struct engine_request {
    struct mq_node node;
    struct arena arena;
    uint64_t id; /* unique in its engine, never 0. Left 0, engine_submit sets it; whoever will abort
             * takes it from engine_new_id first: after a submit the request isn't his to read */
    const int32_t *prompt;
    int n_prompt;
    struct sampling_params params;
    int priority;           /* lower first, with --scheduling-policy priority */
    const char *cache_salt; /* or NULL */
    struct grammar
        *grammar;      /* text/grammar.h: what the output must match; owns a reference; or NULL */
    int32_t think_end; /* the output begins as reasoning, which this token (</think>) ends: only
                        * behind it the grammar holds, and with one nothing else may end the output
                        * before; -1: no reasoning, or none that matters here */
    int think_budget;  /* after so many tokens of reasoning only think_end may come; -1: any number
                        */
    uint64_t arrival_ns;  /* clock_now_ns() at the front end, before tokenization */
    struct mq *reply;     /* where events go; must outlive the request */
    atomic_int *progress; /* the sender's, or NULL: how many tokens of the prompt are computed, set
                           * whenever the next ones are scheduled; untouched while the request waits.
                           * Must outlive the last event */
    void *user;           /* copied into every event */
};
struct engine_request *engine_request_new(void);
void engine_request_free(struct engine_request *r); /* only for one that was never submitted */

struct token_logprob {
    int32_t id;
    float logprob;
    int rank;
};
struct token_output {
    int32_t id;
    int n_top; /* entries in top: the sampled token first, then the k best or those that were asked
                  for (of rank 0); 0 without logprobs */
    const struct token_logprob *top;
};

enum engine_event_kind { EVENT_TOKENS, EVENT_PROMPT_LOGPROBS };

/* One event for one sample of one request. The receiver frees it with engine_event_free. The last
 * event of a sample has finish != FINISH_NONE (it may carry tokens too). */
struct engine_event {
    struct mq_node node;
    struct arena arena;
    enum engine_event_kind kind;
    uint64_t request_id;
    void *user;
    int sample; /* 0 .. n-1 */
    int n_tokens;
    const struct token_output
        *tokens; /* EVENT_PROMPT_LOGPROBS: one per prompt token, the first has n_top 0 */
    enum finish_reason finish;
    int32_t stop_token_id; /* a stop token other than the primary EOS ended it; else -1 */
    int n_cached_tokens;   /* prompt tokens taken from the prefix cache */
    int n_preemptions;
    uint64_t queued_ns, scheduled_ns, first_token_ns,
        last_token_ns; /* clock_now_ns of the engine */
    char error[128];   /* with FINISH_ERROR */
};
void engine_event_free(struct engine_event *ev);

/* Speculative decoding by prompt lookup (ngram.h): a step computes the rows of a guessed
 * continuation too and keeps those whose tokens the sampler then draws. The text is the same as
 * without. */
struct speculation {
    int n_tokens;             /* most tokens of a draft, 0: off */
    int ngram_min, ngram_max; /* tokens that must agree with an earlier place */
    int max_seqs;             /* no drafts while more sequences run */
};
#define ENGINE_MAX_DRAFT 16

struct engine_options {
    int max_model_len;
    int max_num_seqs;                 /* running sequences */
    int max_num_batched_tokens;       /* rows of a step */
    int long_prefill_token_threshold; /* 0: off */
    int enable_prefix_caching, enable_chunked_prefill;
    int policy_priority; /* 0 fcfs, 1 priority */
    int eager;
    int64_t seed;            /* for requests without one */
    uint64_t kv_cache_bytes; /* KV store size; at least one request of max_model_len must fit, else
                            * ERR_INVALID "to serve one request of max length …" with the numbers */
    int n_blocks_override;   /* --num-gpu-blocks-override, 0: from bytes */
    struct speculation speculation;
    int eos_id;         /* primary EOS, -1 none */
    int permute_blocks; /* tests: hand out physical blocks in a shuffled order */
    const struct log *log;
};

/* Memory plan. Activations, logits and scratch buffers an engine with these options allocates: */
uint64_t engine_activation_bytes(const struct model *m, const struct engine_options *o);
/* KV bytes when --kv-cache-memory-bytes isn't given: utilization * min(limit, available) less
 * weights and activations, 0 if nothing is left. `available` is what may still be used (cpu_limits)
 * before the weights are loaded. */
uint64_t engine_kv_bytes_default(uint64_t memory_limit_bytes, uint64_t memory_available_bytes,
                                 double gpu_memory_utilization, uint64_t weight_bytes,
                                 uint64_t activation_bytes);

struct engine;
/* Builds KV store, forward and scheduler; starts the engine thread. model must be loaded and
 * outlive the engine. */
int engine_open(struct engine **out, const struct model *m, const struct kernels *k,
                struct cpu_pool *pool, const struct engine_options *o, struct err *e);
void engine_close(struct engine *en); /* aborts what runs, joins the thread */

uint64_t engine_new_id(struct engine *en); /* thread-safe */
/* Thread-safe. Takes ownership of r on success; on failure r is still the caller's. ERR_TOO_LARGE
 * for a prompt that can't fit, ERR_CANCELED when draining. */
int engine_submit(struct engine *en, struct engine_request *r, struct err *e);
/* Thread-safe. Ends all samples (sample < 0) or one of a request; its last event comes with
 * FINISH_ABORT, or with FINISH_STOP when `stopped` (a stop string matched: counts as a normal end).
 * Unknown ids are ignored. */
void engine_abort(struct engine *en, uint64_t request_id, int sample, int stopped);
/* Thread-safe: refuse new requests; running ones go on. */
void engine_drain(struct engine *en);
/* Thread-safe; 1 done, 0 blocks in use. preempt: running sequences give up their blocks first and
 * are computed again afterwards. Waits for the step that is under way. */
int engine_reset_prefix_cache(struct engine *en, int preempt);

/* Counters and gauges, a consistent copy; thread-safe. */
#define ENGINE_HIST_BUCKETS 32
struct engine_hist {
    uint64_t count;
    double sum;
    uint64_t bucket[ENGINE_HIST_BUCKETS];
}; /* not cumulative */
struct engine_stats {
    int n_running, n_waiting;
    double kv_usage; /* 0..1 */
    int n_blocks, block_tokens;
    uint64_t kv_bytes, kv_touched_bytes; /* of the store; of blocks ever used */
    double kv_fragmentation;   /* share of the running sequences' slots that hold no token, 0..1 */
    int max_admissible_tokens; /* the longest prompt that free blocks could take now */
    uint64_t prompt_tokens, generation_tokens, prompt_tokens_cached;
    uint64_t prefix_queries, prefix_hits; /* tokens */
    uint64_t preemptions, evictions;
    uint64_t finished[6]; /* by enum finish_reason */
    struct {
        int max_tokens;                    /* as in the options, 0: off */
        uint64_t drafts, tokens, accepted; /* a draft counts when a step checks it */
        uint64_t accepted_at[ENGINE_MAX_DRAFT];
    } speculation;
    uint64_t steps;
    uint64_t last_step_ns; /* clock_now_ns when the loop last made progress: liveness */
    struct engine_hist ttft, itl, tpot, e2e, queue, prefill, decode, inference, step_tokens,
        step_seconds, prompt_len, generation_len, max_generation_len, params_max_tokens, params_n,
        prefill_kv_computed;
};
void engine_stats(const struct engine *en, struct engine_stats *out);
/* Thread-safe. Counters and histograms start again from zero (after a warm-up request); returns
 * when they do. Those that the block pool and the scheduler keep (prefix lookups, evictions,
 * preemptions) go on. */
void engine_reset_stats(struct engine *en);
/* Upper bounds of a histogram's buckets, ascending, without +Inf. `name` is the field name. */
const double *engine_hist_bounds(const char *name, int max_model_len, int *n);
int engine_max_concurrency_x100(const struct engine *en);

#endif
