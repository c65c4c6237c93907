/* SPDX-License-Identifier: Apache-2.0 */
/* The tables themselves, and the little that every command does with them. */
#include "cmd/args.h"
#include "cmd/args_words.h"
#include "cmd/hub.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define ENGINE(field) offsetof(struct args_engine, field)
#define G_MODEL       "Model"
#define G_CACHE       "KV cache"
#define G_SCHEDULE    "Scheduling"
#define G_CPU         "CPU"
#define G_PARALLEL    "Parallel groups (one process for now)"
#define NOTE_GPU      "it concerns GPUs"
#define NOTE_HUB      "models are local files"
#define NOTE_HOST     "weights and KV cache are in host memory already"
#define NOTE_LORA     "adapters cannot be loaded yet"
#define NOTE_SPEC     "speculative decoding is not built yet"
#define NOTE_GRAMMAR  "there is one grammar engine"
#define NOTE_REASON   "marks of reasoning are ERNIE's; see --reasoning-parser"
#define NOTE_TRACE    "there is no OpenTelemetry export"
#define NOTE_MM       "only text models are served, so there is nothing to limit"

static const struct opt engine_rows[] = {
    {.name = "config",
     .type = OPT_STRING,
     .offset = ENGINE(config),
     .group = G_MODEL,
     .meta = "FILE",
     .help = "Flat YAML file with options (key: value); the command line wins."},
    {.name = "model",
     .type = OPT_STRING,
     .offset = ENGINE(model),
     .group = G_MODEL,
     .meta = "PATH",
     .help = "Model directory or GGUF file; the same as the word after the command."},
    {.name = "tokenizer",
     .type = OPT_STRING,
     .offset = ENGINE(tokenizer),
     .group = G_MODEL,
     .meta = "PATH",
     .help = "Directory (or GGUF file) with the tokenizer, if not the model's."},
    {.name = "dtype",
     .type = OPT_STRING,
     .offset = ENGINE(dtype),
     .group = G_MODEL,
     .def = "auto",
     .choices = "auto|bfloat16|float32|float",
     .note = "float16 is not computed in; auto is bfloat16",
     .help = "Activations: auto is bfloat16; float32 is for comparing logits."},
    {.name = "quantization",
     .others = "-q",
     .type = OPT_STRING,
     .offset = ENGINE(quantization),
     .group = G_MODEL,
     .def = "auto",
     .choices = "auto|none|awq|gptq|compressed-tensors|fp8|gguf|int8|int4|wint8|block_wise_fp8",
     .note = "see docs/formats.md",
     .help =
         "Weight format. auto and none: what the files hold, another name must agree with them; "
         "on 16-bit files int8 (wint8), int4 and fp8 (block_wise_fp8) quantize linear layers "
         "while loading."},
    {.name = "quantization-inputs",
     .type = OPT_STRING,
     .offset = ENGINE(quantization_inputs),
     .group = G_MODEL,
     .def = "auto",
     .choices = "auto|8|16",
     .help = "What quantized weights are multiplied with: 8-bit activations (int8, or fp8 for fp8 "
             "weights), or activations as they are. auto: 16 for --dtype float32, else what the "
             "files ask for; 4-bit weights as VLLM_CPU_INT4_W4A8 says."},
    {.env = "VLLM_CPU_INT4_W4A8",
     .type = OPT_BOOL,
     .offset = ENGINE(int4_w4a8),
     .group = G_MODEL,
     .def = "true",
     .flags = OPT_ENV_ONLY,
     .help = "8-bit activations for 4-bit weights of AWQ, GPTQ and compressed-tensors files that "
             "ask for 16."},
    {.name = "max-model-len",
     .type = OPT_SIZE,
     .offset = ENGINE(max_model_len),
     .group = G_MODEL,
     .min = 1,
     .max = 1e8,
     .flags = OPT_AUTO,
     .help = "Longest prompt + output in tokens; default the model's; auto or -1: what fits in "
             "memory."},
    {.name = "served-model-name",
     .type = OPT_LIST,
     .offset = ENGINE(served_model_names),
     .group = G_MODEL,
     .help = "Names clients may use; the first is echoed. Default: the model path."},
    {.name = "seed",
     .type = OPT_INT,
     .offset = ENGINE(seed),
     .group = G_MODEL,
     .def = "0",
     .help = "Seed of requests that bring none."},
    {.name = "generation-config",
     .type = OPT_STRING,
     .offset = ENGINE(generation_config),
     .group = G_MODEL,
     .def = "auto",
     .help = "Sampling defaults: auto (the model's generation_config.json), vllm (neutral), or a "
             "directory."},
    {.name = "override-generation-config",
     .type = OPT_JSON,
     .offset = ENGINE(override_generation_config),
     .group = G_MODEL,
     .help = "Overrides: temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens."},
    {.name = "chat-template",
     .type = OPT_STRING,
     .offset = ENGINE(chat_template),
     .group = G_MODEL,
     .meta = "FILE|JINJA",
     .help = "Chat template, if not the model's."},
    {.name = "max-logprobs",
     .type = OPT_INT,
     .offset = ENGINE(max_logprobs),
     .group = G_MODEL,
     .def = "20",
     .min = -1,
     .max = 1e6,
     .help = "Most logprobs a request may ask for; -1: no limit."},
    {.name = "structured-outputs-config",
     .type = OPT_JSON,
     .offset = ENGINE(structured_outputs_config),
     .group = G_MODEL,
     .help = "Key backend, with any name: there is one grammar engine. Other keys are refused."},
    {.name = "enforce-eager",
     .type = OPT_BOOL,
     .offset = ENGINE(enforce_eager),
     .group = G_MODEL,
     .def = "false",
     .help = "Run op by op instead of the compiled plan: same bits, slower."},
    {.env = "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
     .type = OPT_BOOL,
     .offset = ENGINE(allow_long_max_model_len),
     .group = G_MODEL,
     .flags = OPT_ENV_ONLY,
     .help = "1: --max-model-len may exceed the model's max_position_embeddings."},

    {.name = "block-size",
     .type = OPT_INT,
     .offset = ENGINE(block_size),
     .group = G_CACHE,
     .def = "16",
     .min = 16,
     .max = 16,
     .note = "KV blocks hold 16 tokens",
     .help = "Tokens in a KV block: 16."},
    {.name = "enable-prefix-caching",
     .type = OPT_BOOL,
     .offset = ENGINE(enable_prefix_caching),
     .group = G_CACHE,
     .def = "true",
     .help = "Reuse KV blocks of equal prompt beginnings."},
    {.name = "gpu-memory-utilization",
     .type = OPT_DOUBLE,
     .offset = ENGINE(gpu_memory_utilization),
     .group = G_CACHE,
     .def = "0.92",
     .min = 0.001,
     .max = 1,
     .help = "Share of the container's memory limit for weights, KV cache and activations."},
    {.name = "kv-cache-memory-bytes",
     .type = OPT_SIZE,
     .offset = ENGINE(kv_cache_memory_bytes),
     .group = G_CACHE,
     .min = 1,
     .max = 9e15,
     .help = "KV cache size; overrides the share."},
    {.env = "VLLM_CPU_KVCACHE_SPACE",
     .type = OPT_DOUBLE,
     .offset = ENGINE(cpu_kvcache_space_gib),
     .group = G_CACHE,
     .min = 0,
     .max = 1e6,
     .flags = OPT_ENV_ONLY,
     .help = "KV cache size in GiB, when --kv-cache-memory-bytes is absent."},
    {.name = "num-gpu-blocks-override",
     .type = OPT_INT,
     .offset = ENGINE(num_gpu_blocks_override),
     .group = G_CACHE,
     .min = 2,
     .max = 1e8,
     .help = "Exact number of KV blocks (tests)."},
    {.name = "kv-cache-dtype",
     .type = OPT_STRING,
     .offset = ENGINE(ignored_text),
     .group = G_CACHE,
     .def = "auto",
     .choices = "auto",
     .note = "the KV cache has the activation type",
     .help = "Element type of the KV cache."},

    {.name = "max-num-seqs",
     .type = OPT_SIZE,
     .offset = ENGINE(max_num_seqs),
     .group = G_SCHEDULE,
     .def = "128",
     .min = 1,
     .max = 65536,
     .help = "Most sequences that run at a time."},
    {.name = "max-num-batched-tokens",
     .type = OPT_SIZE,
     .offset = ENGINE(max_num_batched_tokens),
     .group = G_SCHEDULE,
     .def = "2048",
     .min = 1,
     .max = 1e6,
     .help = "Token budget of one step."},
    {.name = "enable-chunked-prefill",
     .type = OPT_BOOL,
     .offset = ENGINE(enable_chunked_prefill),
     .group = G_SCHEDULE,
     .def = "true",
     .help = "Long prompts are computed in pieces between others' tokens."},
    {.name = "long-prefill-token-threshold",
     .type = OPT_SIZE,
     .offset = ENGINE(long_prefill_token_threshold),
     .group = G_SCHEDULE,
     .def = "0",
     .min = 0,
     .max = 1e8,
     .help = "Most prompt tokens of one request in a step; 0: off."},
    {.name = "scheduling-policy",
     .type = OPT_STRING,
     .offset = ENGINE(scheduling_policy),
     .group = G_SCHEDULE,
     .def = "fcfs",
     .choices = "fcfs|priority",
     .help = "Order of waiting requests."},

    {.name = "threads",
     .type = OPT_INT,
     .offset = ENGINE(threads),
     .group = G_CPU,
     .min = 1,
     .max = 1024,
     .help =
         "Compute threads; default: CPUs of the affinity mask, at most the container's CPU quota."},
    {.name = "cpu-mask",
     .type = OPT_STRING,
     .offset = ENGINE(cpu_mask),
     .group = G_CPU,
     .def = "auto",
     .meta = "LEVEL",
     .help = "Force an instruction-set level: scalar, avx2, avx512, avx512bf16, neon."},
    {.env = "VLLM_CPU_OMP_THREADS_BIND",
     .type = OPT_STRING,
     .offset = ENGINE(threads_bind),
     .group = G_CPU,
     .flags = OPT_ENV_ONLY,
     .help = "auto, nobind, or CPUs such as 0-3,8: which CPUs compute."},
    {.env = "VLLM_CPU_NUM_OF_RESERVED_CPU",
     .type = OPT_INT,
     .offset = ENGINE(reserved_cpus),
     .group = G_CPU,
     .min = 0,
     .max = 1023,
     .flags = OPT_ENV_ONLY,
     .help = "CPUs to leave to others."},

    {.name = "log-level",
     .type = OPT_STRING,
     .offset = ENGINE(log_level),
     .group = G_LOG,
     .def = "info",
     .env = "VLLM_LOGGING_LEVEL",
     .choices = "debug|info|warning|warn|error|critical|trace",
     .help = "Least important lines to print."},
    {.name = "log-format",
     .type = OPT_STRING,
     .offset = ENGINE(log_format),
     .group = G_LOG,
     .def = "text",
     .choices = "text|json",
     .help = "Lines as vLLM prints them, or one JSON object a line."},

    {.name = "tensor-parallel-size",
     .others = "-tp --tp",
     .type = OPT_INT,
     .offset = ENGINE(ignored_one),
     .group = G_PARALLEL,
     .def = "1",
     .min = 1,
     .max = 1,
     .note = NOTE_ONE,
     .help = "Only 1."},
    {.name = "pipeline-parallel-size",
     .others = "-pp --pp",
     .type = OPT_INT,
     .offset = ENGINE(ignored_one),
     .group = G_PARALLEL,
     .def = "1",
     .min = 1,
     .max = 1,
     .note = NOTE_ONE,
     .help = "Only 1."},
    {.name = "data-parallel-size",
     .others = "-dp --dp",
     .type = OPT_INT,
     .offset = ENGINE(ignored_one),
     .group = G_PARALLEL,
     .def = "1",
     .min = 1,
     .max = 1,
     .note = NOTE_ONE,
     .help = "Only 1."},
    {.name = "decode-context-parallel-size",
     .others = "-dcp",
     .type = OPT_INT,
     .offset = ENGINE(ignored_one),
     .group = G_PARALLEL,
     .def = "1",
     .min = 1,
     .max = 1,
     .note = NOTE_ONE,
     .help = "Only 1."},
    {.name = "nnodes",
     .type = OPT_INT,
     .offset = ENGINE(ignored_one),
     .group = G_PARALLEL,
     .def = "1",
     .min = 1,
     .max = 1,
     .note = NOTE_ONE,
     .help = "Only 1."},

    {.name = "trust-remote-code",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_PYTHON},
    {.name = "swap-space",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "nothing is ever swapped"},
    {.name = "disable-log-requests",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "requests are logged only with --enable-log-requests"},
    {.name = "distributed-executor-backend",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_ONE},
    {.name = "enable-expert-parallel",
     .others = "-ep",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "a dense model has no experts"},
    {.name = "optimization-level",
     .others = "-O",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_PYTHON},
    {.name = "compilation-config",
     .others = "-cc",
     .type = OPT_JSON,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_PYTHON},
    {.name = "additional-config",
     .type = OPT_JSON,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_PYTHON},
    {.name = "performance-mode",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_GPU},
    {.name = "async-scheduling",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_GPU},
    {.name = "cpu-offload-gb",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_HOST},
    {.name = "kv-offloading-size",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_HOST},
    {.name = "kv-offloading-backend",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_HOST},
    {.name = "load-format",
     .type = OPT_STRING,
     .offset = ENGINE(ignored_text),
     .group = G_MODEL,
     .def = "auto",
     .choices = "auto|safetensors|gguf",
     .note = "weights are read from safetensors and GGUF files",
     .help = "Accepted for what it says: files are recognised by what is in them."},
    {.name = "tokenizer-mode",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "there is one tokenizer"},
    {.name = "model-impl",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_PYTHON},
    {.name = "revision",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_HUB},
    {.name = "code-revision",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_HUB},
    {.name = "tokenizer-revision",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_HUB},
    {.name = "download-dir",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_HUB},
    {.name = "hf-token",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_HUB},
    {.name = "ignore-patterns",
     .type = OPT_LIST,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_HUB},
    {.name = "max-parallel-loading-workers",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "loading uses the compute threads"},
    {.name = "device",
     .type = OPT_STRING,
     .offset = ENGINE(ignored_text),
     .group = G_CPU,
     .def = "cpu",
     .choices = "auto|cpu",
     .note = "tern computes on CPUs",
     .help = "cpu."},
    {.name = "disable-custom-all-reduce",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_GPU},
    {.name = "disable-cascade-attn",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_GPU},
    {.name = "disable-sliding-window",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "ERNIE 4.5 has no sliding window"},
    {.name = "max-seq-len-to-capture",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_GPU},
    {.name = "attention-backend",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_GPU},
    {.name = "use-v2-block-manager",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "there is one block manager"},
    {.name = "num-scheduler-steps",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "every step is scheduled"},
    {.name = "enable-sleep-mode",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_GPU},
    {.name = "prefix-caching-hash-algo",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "cached blocks are compared token by token"},
    {.name = "scheduler-reserve-full-isl",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "a prompt is admitted when all its blocks fit"},
    {.name = "master-addr",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_ONE},
    {.name = "master-port",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_ONE},
    {.name = "node-rank", .type = OPT_INT, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_ONE},
    {.name = "limit-mm-per-prompt",
     .type = OPT_JSON,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_MM},
    {.name = "mm-processor-kwargs",
     .type = OPT_JSON,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_MM},
    {.name = "aggregate-engine-logging",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "there is one engine"},
    {.name = "kv-cache-metrics",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "those histograms are not kept"},
    {.name = "show-hidden-metrics-for-version",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = "no metric is hidden"},

    {.name = "logprobs-mode",
     .type = OPT_STRING,
     .offset = ENGINE(ignored_text),
     .group = G_MODEL,
     .def = "raw_logprobs",
     .choices = "raw_logprobs",
     .note = "logprobs are those before temperature and penalties",
     .help = "Which logprobs are returned."},
    {.name = "watermark",
     .type = OPT_STRING,
     .offset = ENGINE(ignored_text),
     .group = G_SCHEDULE,
     .def = "0.0",
     .choices = "0|0.0",
     .note = "no blocks are held back",
     .help = "Share of blocks kept free at admission."},
    {.name = "speculative-config",
     .others = "-sc",
     .type = OPT_JSON,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = NOTE_SPEC},
    {.name = "spec-method",
     .type = OPT_STRING,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = NOTE_SPEC},
    {.name = "spec-model",
     .type = OPT_STRING,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = NOTE_SPEC},
    {.name = "spec-tokens",
     .type = OPT_STRING,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = NOTE_SPEC},
    {.name = "enable-lora",
     .type = OPT_BOOL,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = NOTE_LORA},
    {.name = "lora-modules",
     .type = OPT_LIST,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = NOTE_LORA},
    {.name = "kv-transfer-config",
     .type = OPT_JSON,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = "prefill and decode run in one process for now"},
    {.name = "kv-events-config",
     .type = OPT_JSON,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = "KV events are not published"},
    {.name = "hf-overrides",
     .type = OPT_JSON,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = "config.json is taken as it is"},
    {.name = "skip-tokenizer-init",
     .type = OPT_BOOL,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = "the tokenizer is always read"},
    {.name = "guided-decoding-backend",
     .type = OPT_STRING,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_GRAMMAR},
    {.name = "reasoning-config",
     .type = OPT_JSON,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = NOTE_REASON},
    {.name = "enable-prompt-embeds",
     .type = OPT_BOOL,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = "prompts are text or token ids"},
    {.name = "otlp-traces-endpoint",
     .type = OPT_STRING,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = NOTE_TRACE},
    {.name = "collect-detailed-traces",
     .type = OPT_STRING,
     .group = G_REFUSED,
     .flags = OPT_REFUSED,
     .note = NOTE_TRACE},
};

struct opt_table args_engine_table(struct args_engine *a)
{
    return (struct opt_table){engine_rows, sizeof engine_rows / sizeof *engine_rows, a};
}

int args_parse(struct opts *o, const char *command, int argc, char **argv)
{
    struct err e = {0, ""};
    int rc = opts_parse(o, argc, argv, &e);
    if (rc < 0) {
        fprintf(stderr, "usage: %s\n%s: error: %s\n", o->usage, command, e.text);
        return EXIT_USAGE;
    }
    if (!o->help) {
        return -1;
    }
    struct buf b;
    buf_init(&b);
    int found = opts_help(o, o->help_topic, &b) == 0;
    if (found && !b.failed) {
        fwrite(b.data, 1, b.len, stdout);
    } else {
        fprintf(stderr, "%s: error: no option or group is named '%s'\n", command,
                o->help_topic ? o->help_topic : "");
    }
    buf_fini(&b);
    return found ? 0 : EXIT_USAGE;
}

int args_model(const struct opts *o, const char *command, struct args_engine *a, int max_words)
{
    if (o->args.n > max_words) {
        fprintf(stderr, "usage: %s\n%s: error: unexpected word '%s'\n", o->usage, command,
                o->args.v[max_words]);
        return EXIT_USAGE;
    }
    if (o->args.n > 0) {
        a->model = o->args.v[0];
    }
    if (!a->model || !*a->model) {
        fprintf(stderr, "usage: %s\n%s: error: no model given (a directory or a GGUF file)\n",
                o->usage, command);
        return EXIT_USAGE;
    }
    return -1;
}

int args_find_model(const char *command, struct args_engine *a)
{
    struct hub_model m;
    struct err e;
    enum hub_kind first = hub_default();
    if (access(a->model, F_OK) == 0 || !hub_is_repo(a->model)) {
        return -1;
    }
    for (int i = 0; i < 2; i++) {
        enum hub_kind kind = i == 0                    ? first
                             : first == HUB_MODELSCOPE ? HUB_HUGGING_FACE
                                                       : HUB_MODELSCOPE;
        if (hub_model_init(&m, kind, a->model, NULL, &e) == 0 && hub_find(&m, a->pulled)) {
            a->repo = a->model;
            a->model = a->pulled;
            if (a->served_model_names.n == 0) {
                a->served_model_names = (struct opt_list){&a->repo, 1};
            }
            return -1;
        }
    }
    fprintf(stderr,
            "%s: error: %s: no such directory, and no model of that name was pulled; "
            "`tern pull %s` fetches it\n",
            command, a->model, a->model);
    return EXIT_FAULT;
}

int args_log(const struct opts *o, const struct args_engine *a, const char *prefix, struct log *log)
{
    const char *level_name = a->log_level, *config = getenv("VLLM_LOGGING_CONFIG_PATH");
    enum log_level level = LOG_INFO;
    if (strcasecmp(level_name, "trace") == 0) {
        level = LOG_DEBUG;
    } else if (strcasecmp(level_name, "warn") == 0) {
        level = LOG_WARNING;
    } else if (log_level_parse(level_name, &level) < 0) {
        return ERR_INVALID;
    }
    *log = (struct log){.level = level,
                        .fd = STDERR_FILENO,
                        .json = strcmp(a->log_format, "json") == 0,
                        .prefix = prefix};
    if (config && *config) {
        log_warning(log, "VLLM_LOGGING_CONFIG_PATH is ignored: it configures Python's logging; see "
                         "--log-level and --log-format");
    }
    for (int i = 0; i < o->warnings.n; i++) {
        log_warning(log, "%s", o->warnings.v[i]);
    }
    return 0;
}

void args_quiet_log(const struct opts *o, const struct args_engine *a, struct log *log)
{
    args_log(o, a, NULL, log);
    if (log->level == LOG_INFO && !opts_source(o, "log-level")) {
        log->level = LOG_WARNING;
    }
}

int args_fail(const char *command, const struct err *e)
{
    fprintf(stderr, "%s: error: %s\n", command, e->text);
    return EXIT_FAULT;
}
