/* SPDX-License-Identifier: Apache-2.0 */
/* libtern: ERNIE 4.5 models on CPUs, inside your program.
 *
 *     tern_engine_open -> tern_request_new -> tern_request_set_text -> tern_request_start
 *                      -> tern_request_next … -> tern_request_close -> tern_engine_close
 *
 * Ownership   What a function hands out through `**out` is yours: give it back to the function
 *             named _close or _free of its kind (all accept NULL). `const` pointers are borrowed,
 *             for as long as the comment says. What you hand in is copied.
 * Threads     An engine computes on threads of its own; they block all signals and are not bound
 *             to yours. Engine and tokenizer handles may be used by any number of threads at once.
 *             Every other handle belongs to one thread at a time, with these exceptions:
 *             tern_request_cancel may be called while another thread waits for the same request,
 *             and requests of a queue may be started and closed while another takes from it.
 *             No handle may be closed while another thread is in a call on it. Several engines may
 *             live in one process. After a fork the child may use none of them.
 * Errors      Functions return 0 (or more, where said) or a negative enum tern_code, and then
 *             describe it in `e`, one line of UTF-8 that names the option, file or field, what was
 *             expected and what was found. `e` may be NULL. The library never ends the process and
 *             prints nothing.
 * Text        is UTF-8 with its length in bytes, so it may hold NULs. TERN_ALL as a length: up to
 *             the first NUL.
 * Times       are nanoseconds of CLOCK_MONOTONIC; timeouts are milliseconds, -1 waits for ever.
 * Growth      A struct that you make begins with `size`, set by its _INIT. The library writes no
 *             more than that, so a program built against this header runs with later ones. Enums
 *             get new values at their ends only. */
#ifndef TERN_H
#define TERN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_API __attribute__((visibility("default")))
#define TERN_ALL ((size_t)-1)

/* "0.1.0" of the library that runs, not of this header. */
TERN_API const char *tern_version(void);

/* ---- errors ---- */

enum tern_code {
    TERN_OK = 0,
    TERN_INVALID = -1,     /* a value that is not possible */
    TERN_NOMEM = -2,       /* out of memory */
    TERN_IO = -3,          /* a file can't be read */
    TERN_FORMAT = -4,      /* a file, JSON or UTF-8 is malformed */
    TERN_UNSUPPORTED = -5, /* known, and refused */
    TERN_NOT_FOUND = -6,   /* no such file, option or parameter */
    TERN_TOO_LARGE = -7,   /* does not fit: a prompt, or a model into memory */
    TERN_BUSY = -8,        /* not now */
    TERN_CANCELED = -9,    /* the engine is closed */
    TERN_INTERNAL = -10    /* a fault of the library */
};

struct tern_error {
    size_t size;
    int code; /* enum tern_code */
    char text[512];
};
#define TERN_ERROR_INIT                                                                            \
    {                                                                                              \
        sizeof(struct tern_error), 0,                                                              \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/* Memory that a function returned as `char **` or `int32_t **`. */
TERN_API void tern_free(void *p);

/* ---- options ---- */

struct tern_options;
struct tern_engine;
struct tern_params;
struct tern_request;
struct tern_queue;
struct tern_tokenizer;
struct tern_decoder;

/* Defaults, with the environment variables that `tern serve` reads (VLLM_CPU_KVCACHE_SPACE, …). */
TERN_API int tern_options_new(struct tern_options **out, struct tern_error *e);
TERN_API void tern_options_free(struct tern_options *o);
/* An option of `tern serve` by its name, "max-model-len" or "max_model_len", and its value as on
 * the command line: "4096", "true", a JSON object. A list is set item by item. Options that only
 * matter on GPUs are accepted with one warning in the log. TERN_NOT_FOUND: no option has this
 * name (the text gives the nearest); TERN_INVALID, TERN_UNSUPPORTED: not this value. */
TERN_API int tern_options_set(struct tern_options *o, const char *name, const char *value,
                              struct tern_error *e);
/* The outputs that will run at a time at most, when that is known: the KV cache need not be larger
 * than they can use. */
TERN_API void tern_options_expect(struct tern_options *o, int n_outputs);

enum tern_level {
    TERN_LOG_DEBUG,
    TERN_LOG_INFO,
    TERN_LOG_WARNING,
    TERN_LOG_ERROR,
    TERN_LOG_CRITICAL
};
/* Lines of "log-level" and above go to `fn`, on whichever thread has something to say, sometimes on
 * several at once. `text` has no line end and lives for the call. Without a function nothing is
 * logged. fn must not call into the engine. */
typedef void tern_log_fn(void *user, int level, const char *text);
TERN_API void tern_options_set_log(struct tern_options *o, tern_log_fn *fn, void *user);

/* ---- engine ---- */

/* Opens a model: a directory, a GGUF file, or OWNER/NAME that `tern pull` fetched. options NULL:
 * defaults; they are copied. Checks everything that can be known without reading the weights, the
 * memory that they will need included. */
TERN_API int tern_engine_open(struct tern_engine **out, const char *model,
                              const struct tern_options *options, struct tern_error *e);
/* Reads the weights and starts to compute; seconds to minutes. The first tern_request_start does it
 * otherwise. Again: does nothing. After a failure the engine can only be closed. */
TERN_API int tern_engine_load(struct tern_engine *en, struct tern_error *e);
/* Ends what runs (finish reason TERN_ABORT), frees the weights and the KV cache, and returns when no
 * thread of the engine is left. Requests and decoders may be closed later. */
TERN_API void tern_engine_close(struct tern_engine *en);

struct tern_info {
    size_t size;
    int max_model_len; /* prompt + output, tokens */
    int vocab_size;
    int max_logprobs; /* -1: any number */
    int n_threads;    /* that compute */
    uint64_t weight_bytes;
    uint64_t weight_bytes_per_token; /* read for one decoded token */
    uint64_t kv_bytes;
    /* borrowed, as long as the engine is open */
    const char *model;        /* the path */
    const char *architecture; /* "Ernie4_5ForCausalLM" */
    const char *quantization; /* "none", "awq", … */
    const char *numerics_id;  /* what makes logits comparable bit by bit; "" before loading */
    const char *cpu_level;    /* "avx2", … */
    const char *dtype;        /* "bfloat16" or "float32" */
};
#define TERN_INFO_INIT                                                                             \
    {                                                                                              \
        sizeof(struct tern_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                            \
    }
/* TERN_CANCELED when the engine is closed. */
TERN_API int tern_engine_info(struct tern_engine *en, struct tern_info *out, struct tern_error *e);

/* A consistent copy of the counters, renewed once a step. All zero before loading. */
struct tern_metrics {
    size_t size;
    int running, waiting; /* outputs */
    int blocks;           /* of the KV cache */
    int blocks_in_use;    /* by running outputs; what the prefix cache keeps is not in use */
    int block_tokens;
    int reserved;
    double kv_usage;                       /* blocks_in_use / blocks */
    uint64_t prefix_queries, prefix_hits;  /* prompt tokens looked up, and found */
    uint64_t prompt_tokens, output_tokens; /* of all requests so far */
    uint64_t finished;                     /* outputs, for whatever reason */
    uint64_t aborted;                      /* those among them that were canceled */
    uint64_t preemptions, steps;
};
#define TERN_METRICS_INIT                                                                          \
    {                                                                                              \
        sizeof(struct tern_metrics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                   \
    }
TERN_API int tern_engine_metrics(struct tern_engine *en, struct tern_metrics *out,
                                 struct tern_error *e);
/* Forgets the prompts that the cache keeps. 1: done; 0: blocks are in use. */
TERN_API int tern_engine_reset_prefix_cache(struct tern_engine *en, struct tern_error *e);

/* ---- sampling parameters ---- */

/* With an engine: the model's defaults (generation_config.json) and as many tokens as fit. NULL:
 * vLLM's neutral ones (temperature 1, max_tokens 16). */
TERN_API int tern_params_new(struct tern_params **out, struct tern_engine *en,
                             struct tern_error *e);
TERN_API void tern_params_free(struct tern_params *p);
/* By the names of vLLM's SamplingParams. Whole numbers and switches (0 or 1):
 *     n  top_k  seed  max_tokens (-1: what fits)  min_tokens  logprobs  prompt_logprobs (-1: all)
 *     ignore_eos  skip_special_tokens  include_stop_str_in_output
 * and with fractions:
 *     temperature  top_p  min_p  repetition_penalty  presence_penalty  frequency_penalty
 * TERN_NOT_FOUND: no such name (the text gives the nearest). Ranges are checked by
 * tern_params_check and when a request starts. */
TERN_API int tern_params_set_int(struct tern_params *p, const char *name, int64_t value,
                                 struct tern_error *e);
TERN_API int tern_params_set_number(struct tern_params *p, const char *name, double value,
                                    struct tern_error *e);
/* The value now; of max_tokens -1 when it is what fits. */
TERN_API int tern_params_get_number(const struct tern_params *p, const char *name, double *out,
                                    struct tern_error *e);
TERN_API int tern_params_add_stop(struct tern_params *p, const char *text, size_t n_bytes,
                                  struct tern_error *e);
TERN_API int tern_params_add_stop_id(struct tern_params *p, int32_t id, struct tern_error *e);
/* A JSON object of any of these names, and of: stop, stop_token_ids, allowed_token_ids, bad_words,
 * logit_bias ({"ID": number}), structured_outputs (an object with one of json, regex, choice,
 * grammar, json_object). null leaves a value as it is, but max_tokens: null is what fits. */
TERN_API int tern_params_set_json(struct tern_params *p, const char *json, size_t n_bytes,
                                  struct tern_error *e);
/* Ranges; with an engine also ids, and the most logprobs that may be asked for. */
TERN_API int tern_params_check(const struct tern_params *p, struct tern_engine *en,
                               struct tern_error *e);

/* ---- requests ---- */

enum tern_finish {
    TERN_RUNNING = 0,
    TERN_STOP = 1,   /* end of text, a stop string or a stop id */
    TERN_LENGTH = 2, /* max_tokens, or max-model-len */
    TERN_ABORT = 3,  /* canceled */
    TERN_ERROR = 4,  /* see chunk.error */
    TERN_REPETITION = 5
};
TERN_API const char *tern_finish_name(int finish); /* "stop", …; NULL for TERN_RUNNING */

enum tern_kind {
    TERN_TOKENS, /* of an output */
    TERN_PROMPT  /* the prompt with its log-probabilities, once, before any output */
};

/* A piece of one output. Its pointers live until the next call on the request or queue that it came
 * from. Of a token i the log-probabilities are entries logprob_start[i] up to logprob_start[i + 1]:
 * the sampled token first, then the best ones. */
struct tern_chunk {
    size_t size;
    struct tern_request *request;
    int kind;         /* enum tern_kind */
    int index;        /* output 0 … n - 1 */
    int finish;       /* enum tern_finish: other than TERN_RUNNING, this output has ended */
    int last;         /* and so has the request: it holds no block any more */
    const char *text; /* new text, whole characters, NUL-terminated; maybe empty */
    size_t text_bytes;
    const int32_t *ids; /* [n_ids], new tokens, those of a stop string or end mark included */
    size_t n_ids;
    const size_t *logprob_start; /* [n_ids + 1]; NULL: none were asked for */
    const int32_t *logprob_ids;
    const float *logprobs;
    const int32_t *logprob_ranks; /* 1: the most likely token */
    double cumulative_logprob;    /* of the sampled tokens of this output so far */
    const char *stop_text;        /* the stop string that ended it, or NULL */
    size_t stop_text_bytes;
    int stop_id;  /* the stop id that ended it; -1: none, or the end of text */
    int n_cached; /* prompt tokens that came from the prefix cache */
    uint64_t arrival_ns, scheduled_ns, first_token_ns, last_token_ns;
    const char *error; /* with TERN_ERROR */
    int n_preempted;
    int reserved;
};
#define TERN_CHUNK_INIT                                                                            \
    {                                                                                              \
        sizeof(struct tern_chunk), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  \
            0, 0, 0, 0                                                                             \
    }

TERN_API int tern_request_new(struct tern_request **out, struct tern_engine *en,
                              struct tern_error *e);
/* The prompt, one of three; a later one replaces it.
 * Text: special tokens that it spells ("<|begin_of_sentence|>") become their ids. */
TERN_API int tern_request_set_text(struct tern_request *r, const char *text, size_t n_bytes,
                                   struct tern_error *e);
TERN_API int tern_request_set_ids(struct tern_request *r, const int32_t *ids, size_t n,
                                  struct tern_error *e);
/* A conversation as a JSON array of messages, rendered with the chat template (see
 * tern_tokenizer_chat for the options). What messages say never becomes a special token. */
TERN_API int tern_request_set_chat(struct tern_request *r, const char *messages, size_t n_bytes,
                                   const char *options, struct tern_error *e);
/* Lower goes first, with "scheduling-policy" "priority". */
TERN_API void tern_request_set_priority(struct tern_request *r, int priority);
TERN_API void tern_request_set_user(struct tern_request *r, void *user);
TERN_API void *tern_request_user(const struct tern_request *r);

/* Hands the request to the engine. params NULL: the model's defaults. queue NULL: chunks are taken
 * with tern_request_next, else with tern_queue_next. TERN_TOO_LARGE: the prompt leaves no room. */
TERN_API int tern_request_start(struct tern_request *r, const struct tern_params *params,
                                struct tern_queue *queue, struct tern_error *e);

enum tern_next { TERN_NOTHING = 0, TERN_CHUNK = 1, TERN_END = 2 };
/* The next chunk: TERN_CHUNK; TERN_NOTHING when the time is over; TERN_END behind the last one. */
TERN_API int tern_request_next(struct tern_request *r, int timeout_ms, struct tern_chunk *chunk,
                               struct tern_error *e);
/* Starts the request and calls fn with each chunk, on this thread, until the request has ended. A
 * result of fn other than 0 cancels it; fn gets no more chunks then, and TERN_CANCELED is
 * returned. */
typedef int tern_chunk_fn(void *user, const struct tern_chunk *chunk);
TERN_API int tern_request_stream(struct tern_request *r, const struct tern_params *params,
                                 tern_chunk_fn *fn, void *user, struct tern_error *e);
/* Ends all outputs, within a step; their last chunks say TERN_ABORT. */
TERN_API void tern_request_cancel(struct tern_request *r);
/* Cancels it if it runs. Waits for the engine to let go (at most a step), but not when the request
 * was started with a queue. */
TERN_API void tern_request_close(struct tern_request *r);

/* After the start: the prompt's tokens, and the rendered text of a chat (else what was set; NULL for
 * ids). Borrowed, as long as the request. */
TERN_API const int32_t *tern_request_prompt_ids(const struct tern_request *r, size_t *n);
TERN_API const char *tern_request_prompt_text(const struct tern_request *r, size_t *n_bytes);
/* All text of an output so far. Borrowed until the next call on the request or its queue. */
TERN_API const char *tern_request_text(const struct tern_request *r, int index, size_t *n_bytes);

/* ---- many requests on one queue ---- */

TERN_API int tern_queue_new(struct tern_queue **out, struct tern_error *e);
/* The next chunk of any of its requests; chunk->request says whose. TERN_END: none of them runs. */
TERN_API int tern_queue_next(struct tern_queue *q, int timeout_ms, struct tern_chunk *chunk,
                             struct tern_error *e);
/* For poll(2) and event loops: readable when tern_queue_next(q, 0, …) may have something. Then take
 * all there is, until it says TERN_NOTHING or TERN_END. */
TERN_API int tern_queue_fd(const struct tern_queue *q);
/* Cancels what still runs and waits for it. Its requests may be closed before or after. */
TERN_API void tern_queue_free(struct tern_queue *q);

/* ---- tokenizer and chat template ---- */

/* Of a model directory or a GGUF file, without an engine. */
TERN_API int tern_tokenizer_open(struct tern_tokenizer **out, const char *model,
                                 struct tern_error *e);
TERN_API void tern_tokenizer_close(struct tern_tokenizer *t);
/* Borrowed, as long as the engine is not closed. */
TERN_API const struct tern_tokenizer *tern_engine_tokenizer(const struct tern_engine *en);
TERN_API int tern_tokenizer_size(const struct tern_tokenizer *t);       /* ids 0 … size - 1 */
TERN_API int32_t tern_tokenizer_eos_id(const struct tern_tokenizer *t); /* -1: none */
TERN_API int tern_tokenizer_is_special(const struct tern_tokenizer *t, int32_t id);
/* The id of exactly this piece ("▁the", "<|end_of_sentence|>"); -1: none. */
TERN_API int32_t tern_tokenizer_id(const struct tern_tokenizer *t, const char *piece);
/* The bytes that an id stands for, maybe part of a character. Borrowed; NULL: no such id. */
TERN_API const char *tern_tokenizer_piece(const struct tern_tokenizer *t, int32_t id,
                                          size_t *n_bytes);
/* parse_special 0: special tokens that the text spells are ordinary characters. No begin or end mark
 * is ever added. */
TERN_API int tern_tokenizer_encode(const struct tern_tokenizer *t, const char *text, size_t n_bytes,
                                   int parse_special, int32_t **ids, size_t *n_ids,
                                   struct tern_error *e);
/* NUL-terminated. Bytes that are no characters become U+FFFD. */
TERN_API int tern_tokenizer_decode(const struct tern_tokenizer *t, const int32_t *ids, size_t n_ids,
                                   int skip_special, char **text, size_t *n_bytes,
                                   struct tern_error *e);
/* Renders a JSON array of messages with the chat template. options: NULL or a JSON object of
 * add_generation_prompt (true), continue_final_message, tools, documents, chat_template_kwargs.
 * text or ids may be NULL. */
TERN_API int tern_tokenizer_chat(const struct tern_tokenizer *t, const char *messages,
                                 size_t n_bytes, const char *options, char **text,
                                 size_t *text_bytes, int32_t **ids, size_t *n_ids,
                                 struct tern_error *e);

/* Decoding token by token, whole characters only. */
TERN_API int tern_decoder_new(struct tern_decoder **out, const struct tern_tokenizer *t,
                              int skip_special, struct tern_error *e);
TERN_API void tern_decoder_free(struct tern_decoder *d);
/* What the token adds, maybe nothing yet. Borrowed until the next call; NULL: out of memory. */
TERN_API const char *tern_decoder_push(struct tern_decoder *d, int32_t id, size_t *n_bytes);
/* What is left of a character that never got whole, as U+FFFD. */
TERN_API const char *tern_decoder_finish(struct tern_decoder *d, size_t *n_bytes);

#ifdef __cplusplus
}
#endif

#endif
