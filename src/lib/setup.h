/* SPDX-License-Identifier: Apache-2.0 */
/* From options to a running engine, in two halves that every command shares:
 *
 *   setup_check               level, limits, model files, tokenizer, template, sampling defaults,
 *                             memory plan: everything that can be refused without reading a
 *                             weight, so that `serve` does it before it binds its port
 *   setup_load, setup_engine  compute threads, packed weights, engine
 *
 * Memory plan: weights + activations + process + KV cache must fit into what the container may
 * still use. The KV cache is what --num-gpu-blocks-override, --kv-cache-memory-bytes or
 * VLLM_CPU_KVCACHE_SPACE say, else the share --gpu-memory-utilization of the limit less the rest,
 * but never more than max_num_seqs requests of full length could use: an idle server should not
 * claim a machine. */
#ifndef TERN_LIB_SETUP_H
#define TERN_LIB_SETUP_H

#include "base/log.h"
#include "cpu/cpu.h"
#include "cpu/pool.h"
#include "engine/engine.h"
#include "lib/args.h"
#include "model/model.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#define SETUP_MAX_STOPS 24

struct memory_plan {
    uint64_t limit_bytes, available_bytes;
    uint64_t weight_bytes, activation_bytes, process_bytes, kv_bytes, kv_available_bytes;
    uint64_t block_bytes; /* 16 tokens, all layers */
    int n_blocks;         /* the null block included */
    int kv_explicit;      /* the user named a size */
    int max_model_len, derived_max_model_len;
    int concurrency_x100; /* requests of full length that fit, times 100 */
};

struct setup {
    const struct args_engine *a;
    int n_seqs_wanted; /* sequences that will ever be asked for, to keep the KV cache small; 0:
                          unknown */
    struct log log;
    enum cpu_level level;
    const struct kernels *kernels;
    struct cpu_limits limits;
    int n_threads;
    const int *cpu_ids; /* NULL: not bound */
    int cpu_list[1024];
    char threads_why[160];
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct sampling_defaults generation;
    int eos_id;
    int32_t stop_ids[SETUP_MAX_STOPS];
    int n_stop_ids;
    struct speculation speculation;
    struct engine_options engine_options;
    struct memory_plan plan;
    struct cpu_pool *pool;
    struct engine *engine;
    double weights_seconds;
};

/* Parts of setup_check, for commands that need less. `a` and `log` must be set. */
int setup_cpu(struct setup *s, struct err *e);   /* level, kernels, limits, threads */
int setup_files(struct setup *s, struct err *e); /* model, tokenizer, template, sampling defaults */
int setup_plan(struct setup *s, struct err *e);  /* fills plan even when it refuses */
int setup_check(struct setup *s, struct err *e);
int setup_load(struct setup *s, struct err *e); /* pool and packed weights */
int setup_engine(struct setup *s, struct err *e);
/* Sampling with the model's defaults (generation_config.json, --generation-config); max_tokens is
 * the caller's to set. */
void setup_sampling(const struct setup *s, struct sampling_params *p);
void setup_close(struct setup *s);
/* The plan in lines, or as a JSON object. */
void setup_describe_plan(const struct setup *s, struct buf *out, int json);

#endif
