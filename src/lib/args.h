/* SPDX-License-Identifier: Apache-2.0 */
/* The options of an engine, which commands and the library share, as a table
 * (base/opt.h): one row gives flag, variable, range and
 * help. Names and meanings are vLLM's. Three kinds of row: honoured; accepted without effect, with
 * one warning (what only matters on GPUs or in Python); and refused by name (what would change the
 * answers and is not here). */
#ifndef TERN_LIB_ARGS_H
#define TERN_LIB_ARGS_H

#include "base/opt.h"

/* Model, memory, scheduling. */
struct args_engine {
    const char *config;
    /* model */
    const char *model, *revision, *tokenizer, *dtype, *quantization, *quantization_inputs,
        *quantization_head;
    int int4_w4a8;
    const char *generation_config, *override_generation_config, *chat_template;
    const char *structured_outputs_config;
    struct opt_list served_model_names;
    int64_t seed, max_model_len /* 0: the model's, -1: the largest that fits */, max_logprobs;
    int enforce_eager, allow_long_max_model_len;
    /* KV cache */
    const char *kv_cache_dtype;
    int64_t block_size, kv_cache_memory_bytes, num_gpu_blocks_override;
    double gpu_memory_utilization, cpu_kvcache_space_gib;
    int enable_prefix_caching;
    /* scheduling */
    int64_t max_num_batched_tokens, max_num_seqs, long_prefill_token_threshold;
    int enable_chunked_prefill;
    const char *scheduling_policy;
    const char *speculative_config, *spec_method;
    int64_t spec_tokens;
    /* CPU */
    const char *cpu_mask, *threads_bind;
    int64_t threads, reserved_cpus;
    /* log */
    const char *log_level, *log_format;
    int64_t ignored_one; /* where the only allowed value (1) of unsupported degrees goes */
    const char *ignored_text;
    /* what args_find_model found for OWNER/NAME */
    const char *repo;
    char pulled[4096];
};

struct opt_table args_engine_table(struct args_engine *a);

#endif
