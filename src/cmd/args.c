/* SPDX-License-Identifier: Apache-2.0 */
/* The tables themselves, and the little that every command does with them. */
#include "cmd/args.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define ENGINE(field) offsetof(struct args_engine, field)
#define SERVER(field) offsetof(struct args_server, field)
#define SAMPLE(field) offsetof(struct args_sampling, field)

#define G_MODEL    "Model"
#define G_CACHE    "KV cache"
#define G_SCHEDULE "Scheduling"
#define G_CPU      "CPU"
#define G_LOG      "Log"
#define G_PARALLEL "Parallel groups (one process for now)"
#define G_HTTP     "HTTP server"
#define G_API      "API behaviour"
#define G_SAMPLING "Sampling"
#define G_NONE     "Accepted without effect"
#define G_REFUSED  "Known and refused"

#define NOTE_GPU      "it concerns GPUs"
#define NOTE_PYTHON   "it concerns Python or torch, and tern has neither"
#define NOTE_HUB      "models are local directories"
#define NOTE_HOST     "weights and KV cache are in host memory already"
#define NOTE_ONE      "one process serves the whole model"
#define NOTE_LORA     "adapters cannot be loaded yet"
#define NOTE_SPEC     "speculative decoding is not built yet"
#define NOTE_TOOLS    "tool calls are not built yet"
#define NOTE_GRAMMAR  "there is one grammar engine"
#define NOTE_REASON   "reasoning parsers are not built yet"
#define NOTE_TLS      "TLS is not built yet; put a proxy in front"
#define NOTE_TRACE    "there is no OpenTelemetry export"
#define NOTE_MM       "only text models are served, so there is nothing to limit"

static const struct opt engine_rows[] = {
    {.name = "config", .type = OPT_STRING, .offset = ENGINE(config), .group = G_MODEL, .meta = "FILE",
     .help = "Flat YAML file with options (key: value); the command line wins."},
    {.name = "model", .type = OPT_STRING, .offset = ENGINE(model), .group = G_MODEL, .meta = "DIR",
     .help = "Model directory; the same as the word after the command."},
    {.name = "tokenizer", .type = OPT_STRING, .offset = ENGINE(tokenizer), .group = G_MODEL, .meta = "DIR",
     .help = "Directory with the tokenizer files, if not the model's."},
    {.name = "dtype", .type = OPT_STRING, .offset = ENGINE(dtype), .group = G_MODEL, .def = "auto",
     .choices = "auto|bfloat16|float32|float", .note = "float16 is not computed in; auto is bfloat16",
     .help = "Activations: auto is bfloat16; float32 is for comparing logits."},
    {.name = "max-model-len", .type = OPT_SIZE, .offset = ENGINE(max_model_len), .group = G_MODEL, .min = 1, .max = 1e8,
     .flags = OPT_AUTO, .help = "Longest prompt + output in tokens; default the model's; auto or -1: what fits in memory."},
    {.name = "served-model-name", .type = OPT_LIST, .offset = ENGINE(served_model_names), .group = G_MODEL,
     .help = "Names clients may use; the first is echoed. Default: the model path."},
    {.name = "seed", .type = OPT_INT, .offset = ENGINE(seed), .group = G_MODEL, .def = "0",
     .help = "Seed of requests that bring none."},
    {.name = "generation-config", .type = OPT_STRING, .offset = ENGINE(generation_config), .group = G_MODEL, .def = "auto",
     .help = "Sampling defaults: auto (the model's generation_config.json), vllm (neutral), or a directory."},
    {.name = "override-generation-config", .type = OPT_JSON, .offset = ENGINE(override_generation_config), .group = G_MODEL,
     .help = "Overrides: temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens."},
    {.name = "chat-template", .type = OPT_STRING, .offset = ENGINE(chat_template), .group = G_MODEL, .meta = "FILE|JINJA",
     .help = "Chat template, if not the model's."},
    {.name = "max-logprobs", .type = OPT_INT, .offset = ENGINE(max_logprobs), .group = G_MODEL, .def = "20", .min = -1,
     .max = 1e6, .help = "Most logprobs a request may ask for; -1: no limit."},
    {.name = "structured-outputs-config", .type = OPT_JSON, .offset = ENGINE(structured_outputs_config), .group = G_MODEL,
     .help = "Key backend, with any name: there is one grammar engine. Other keys are refused."},
    {.name = "enforce-eager", .type = OPT_BOOL, .offset = ENGINE(enforce_eager), .group = G_MODEL, .def = "false",
     .help = "Run op by op instead of the compiled plan: same bits, slower."},
    {.env = "VLLM_ALLOW_LONG_MAX_MODEL_LEN", .type = OPT_BOOL, .offset = ENGINE(allow_long_max_model_len), .group = G_MODEL,
     .flags = OPT_ENV_ONLY, .help = "1: --max-model-len may exceed the model's max_position_embeddings."},

    {.name = "block-size", .type = OPT_INT, .offset = ENGINE(block_size), .group = G_CACHE, .def = "16", .min = 16,
     .max = 16, .note = "KV blocks hold 16 tokens", .help = "Tokens in a KV block: 16."},
    {.name = "enable-prefix-caching", .type = OPT_BOOL, .offset = ENGINE(enable_prefix_caching), .group = G_CACHE,
     .def = "true", .help = "Reuse KV blocks of equal prompt beginnings."},
    {.name = "gpu-memory-utilization", .type = OPT_DOUBLE, .offset = ENGINE(gpu_memory_utilization), .group = G_CACHE,
     .def = "0.92", .min = 0.001, .max = 1, .help = "Share of the container's memory limit for weights, KV cache and activations."},
    {.name = "kv-cache-memory-bytes", .type = OPT_SIZE, .offset = ENGINE(kv_cache_memory_bytes), .group = G_CACHE, .min = 1,
     .max = 9e15, .help = "KV cache size; overrides the share."},
    {.env = "VLLM_CPU_KVCACHE_SPACE", .type = OPT_DOUBLE, .offset = ENGINE(cpu_kvcache_space_gib), .group = G_CACHE, .min = 0,
     .max = 1e6, .flags = OPT_ENV_ONLY, .help = "KV cache size in GiB, when --kv-cache-memory-bytes is absent."},
    {.name = "num-gpu-blocks-override", .type = OPT_INT, .offset = ENGINE(num_gpu_blocks_override), .group = G_CACHE,
     .min = 2, .max = 1e8, .help = "Exact number of KV blocks (tests)."},
    {.name = "kv-cache-dtype", .type = OPT_STRING, .offset = ENGINE(ignored_text), .group = G_CACHE, .def = "auto",
     .choices = "auto", .note = "the KV cache has the activation type", .help = "Element type of the KV cache."},

    {.name = "max-num-seqs", .type = OPT_SIZE, .offset = ENGINE(max_num_seqs), .group = G_SCHEDULE, .def = "128", .min = 1,
     .max = 65536, .help = "Most sequences that run at a time."},
    {.name = "max-num-batched-tokens", .type = OPT_SIZE, .offset = ENGINE(max_num_batched_tokens), .group = G_SCHEDULE,
     .def = "2048", .min = 1, .max = 1e6, .help = "Token budget of one step."},
    {.name = "enable-chunked-prefill", .type = OPT_BOOL, .offset = ENGINE(enable_chunked_prefill), .group = G_SCHEDULE,
     .def = "true", .help = "Long prompts are computed in pieces between others' tokens."},
    {.name = "long-prefill-token-threshold", .type = OPT_SIZE, .offset = ENGINE(long_prefill_token_threshold),
     .group = G_SCHEDULE, .def = "0", .min = 0, .max = 1e8, .help = "Most prompt tokens of one request in a step; 0: off."},
    {.name = "scheduling-policy", .type = OPT_STRING, .offset = ENGINE(scheduling_policy), .group = G_SCHEDULE,
     .def = "fcfs", .choices = "fcfs|priority", .help = "Order of waiting requests."},

    {.name = "threads", .type = OPT_INT, .offset = ENGINE(threads), .group = G_CPU, .min = 1, .max = 1024,
     .help = "Compute threads; default: CPUs of the affinity mask, at most the container's CPU quota."},
    {.name = "cpu-mask", .type = OPT_STRING, .offset = ENGINE(cpu_mask), .group = G_CPU, .def = "auto", .meta = "LEVEL",
     .help = "Force an instruction-set level: scalar, avx2, avx512, avx512bf16, neon."},
    {.env = "VLLM_CPU_OMP_THREADS_BIND", .type = OPT_STRING, .offset = ENGINE(threads_bind), .group = G_CPU,
     .flags = OPT_ENV_ONLY, .help = "auto, nobind, or CPUs such as 0-3,8: which CPUs compute."},
    {.env = "VLLM_CPU_NUM_OF_RESERVED_CPU", .type = OPT_INT, .offset = ENGINE(reserved_cpus), .group = G_CPU, .min = 0,
     .max = 1023, .flags = OPT_ENV_ONLY, .help = "CPUs to leave to others."},

    {.name = "log-level", .type = OPT_STRING, .offset = ENGINE(log_level), .group = G_LOG, .def = "info",
     .env = "VLLM_LOGGING_LEVEL", .choices = "debug|info|warning|warn|error|critical|trace", .help = "Least important lines to print."},

    {.name = "tensor-parallel-size", .others = "-tp --tp", .type = OPT_INT, .offset = ENGINE(ignored_one), .group = G_PARALLEL,
     .def = "1", .min = 1, .max = 1, .note = NOTE_ONE, .help = "1."},
    {.name = "pipeline-parallel-size", .others = "-pp --pp", .type = OPT_INT, .offset = ENGINE(ignored_one), .group = G_PARALLEL,
     .def = "1", .min = 1, .max = 1, .note = NOTE_ONE, .help = "1."},
    {.name = "data-parallel-size", .others = "-dp --dp", .type = OPT_INT, .offset = ENGINE(ignored_one), .group = G_PARALLEL,
     .def = "1", .min = 1, .max = 1, .note = NOTE_ONE, .help = "1."},
    {.name = "decode-context-parallel-size", .others = "-dcp", .type = OPT_INT, .offset = ENGINE(ignored_one),
     .group = G_PARALLEL, .def = "1", .min = 1, .max = 1, .note = NOTE_ONE, .help = "1."},
    {.name = "nnodes", .type = OPT_INT, .offset = ENGINE(ignored_one), .group = G_PARALLEL, .def = "1", .min = 1, .max = 1,
     .note = NOTE_ONE, .help = "1."},

    {.name = "trust-remote-code", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_PYTHON},
    {.name = "swap-space", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = "nothing is ever swapped"},
    {.name = "disable-log-requests", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED,
     .note = "requests are logged only with --enable-log-requests"},
    {.name = "distributed-executor-backend", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_ONE},
    {.name = "enable-expert-parallel", .others = "-ep", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED,
     .note = "a dense model has no experts"},
    {.name = "optimization-level", .others = "-O", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_PYTHON},
    {.name = "compilation-config", .others = "-cc", .type = OPT_JSON, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_PYTHON},
    {.name = "additional-config", .type = OPT_JSON, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_PYTHON},
    {.name = "performance-mode", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_GPU},
    {.name = "async-scheduling", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_GPU},
    {.name = "cpu-offload-gb", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_HOST},
    {.name = "kv-offloading-size", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_HOST},
    {.name = "kv-offloading-backend", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_HOST},
    {.name = "load-format", .type = OPT_STRING, .offset = ENGINE(ignored_text), .group = G_MODEL, .def = "auto",
     .choices = "auto|safetensors", .note = "weights are read from safetensors files", .help = "Checkpoint format."},
    {.name = "tokenizer-mode", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = "there is one tokenizer"},
    {.name = "model-impl", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_PYTHON},
    {.name = "revision", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_HUB},
    {.name = "code-revision", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_HUB},
    {.name = "tokenizer-revision", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_HUB},
    {.name = "download-dir", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_HUB},
    {.name = "hf-token", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_HUB},
    {.name = "ignore-patterns", .type = OPT_LIST, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_HUB},
    {.name = "max-parallel-loading-workers", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED,
     .note = "loading uses the compute threads"},
    {.name = "device", .type = OPT_STRING, .offset = ENGINE(ignored_text), .group = G_CPU, .def = "cpu", .choices = "auto|cpu",
     .note = "tern computes on CPUs", .help = "cpu."},
    {.name = "disable-custom-all-reduce", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_GPU},
    {.name = "disable-cascade-attn", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_GPU},
    {.name = "disable-sliding-window", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED,
     .note = "ERNIE 4.5 has no sliding window"},
    {.name = "max-seq-len-to-capture", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_GPU},
    {.name = "attention-backend", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_GPU},
    {.name = "use-v2-block-manager", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = "there is one block manager"},
    {.name = "num-scheduler-steps", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = "every step is scheduled"},
    {.name = "enable-sleep-mode", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_GPU},
    {.name = "prefix-caching-hash-algo", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED,
     .note = "cached blocks are compared token by token"},
    {.name = "scheduler-reserve-full-isl", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED,
     .note = "a prompt is admitted when all its blocks fit"},
    {.name = "master-addr", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_ONE},
    {.name = "master-port", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_ONE},
    {.name = "node-rank", .type = OPT_INT, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_ONE},
    {.name = "limit-mm-per-prompt", .type = OPT_JSON, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_MM},
    {.name = "mm-processor-kwargs", .type = OPT_JSON, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_MM},
    {.name = "aggregate-engine-logging", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = "there is one engine"},
    {.name = "kv-cache-metrics", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = "those histograms are not kept"},
    {.name = "show-hidden-metrics-for-version", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED,
     .note = "no metric is hidden"},

    {.name = "quantization", .others = "-q", .type = OPT_STRING, .offset = ENGINE(ignored_text), .group = G_MODEL,
     .def = "none", .choices = "none", .note = "quantized weights are not built yet", .help = "Weight format."},
    {.name = "logprobs-mode", .type = OPT_STRING, .offset = ENGINE(ignored_text), .group = G_MODEL, .def = "raw_logprobs",
     .choices = "raw_logprobs", .note = "logprobs are those before temperature and penalties", .help = "Which logprobs are returned."},
    {.name = "watermark", .type = OPT_STRING, .offset = ENGINE(ignored_text), .group = G_SCHEDULE, .def = "0.0",
     .choices = "0|0.0", .note = "no blocks are held back", .help = "Share of blocks kept free at admission."},
    {.name = "speculative-config", .others = "-sc", .type = OPT_JSON, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_SPEC},
    {.name = "spec-method", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_SPEC},
    {.name = "spec-model", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_SPEC},
    {.name = "spec-tokens", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_SPEC},
    {.name = "enable-lora", .type = OPT_BOOL, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_LORA},
    {.name = "lora-modules", .type = OPT_LIST, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_LORA},
    {.name = "kv-transfer-config", .type = OPT_JSON, .group = G_REFUSED, .flags = OPT_REFUSED,
     .note = "prefill and decode run in one process for now"},
    {.name = "kv-events-config", .type = OPT_JSON, .group = G_REFUSED, .flags = OPT_REFUSED, .note = "KV events are not published"},
    {.name = "hf-overrides", .type = OPT_JSON, .group = G_REFUSED, .flags = OPT_REFUSED, .note = "config.json is taken as it is"},
    {.name = "skip-tokenizer-init", .type = OPT_BOOL, .group = G_REFUSED, .flags = OPT_REFUSED, .note = "the tokenizer is always read"},
    {.name = "guided-decoding-backend", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_GRAMMAR},
    {.name = "reasoning-parser", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_REASON},
    {.name = "reasoning-config", .type = OPT_JSON, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_REASON},
    {.name = "enable-prompt-embeds", .type = OPT_BOOL, .group = G_REFUSED, .flags = OPT_REFUSED, .note = "prompts are text or token ids"},
    {.name = "otlp-traces-endpoint", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_TRACE},
    {.name = "collect-detailed-traces", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_TRACE},
    {.name = "max-num-queued-tokens", .type = OPT_SIZE, .group = G_REFUSED, .flags = OPT_REFUSED,
     .note = "use --max-num-queued-reqs"},
};

static const struct opt server_rows[] = {
    {.name = "host", .type = OPT_STRING, .offset = SERVER(host), .group = G_HTTP, .help = "Address to listen on; default all (0.0.0.0)."},
    {.name = "port", .type = OPT_INT, .offset = SERVER(port), .group = G_HTTP, .def = "8000", .min = 0, .max = 65535,
     .help = "Port; 0: any free one."},
    {.name = "api-key", .type = OPT_LIST, .offset = SERVER(api_keys), .group = G_HTTP, .env = "VLLM_API_KEY", .meta = "KEY [KEY ...]",
     .help = "Bearer keys; all routes but /health and /ping ask for one."},
    {.name = "root-path", .type = OPT_STRING, .offset = SERVER(root_path), .group = G_HTTP, .help = "Path prefix a reverse proxy adds."},
    {.name = "allowed-origins", .type = OPT_STRING, .offset = SERVER(allowed_origins), .group = G_HTTP, .def = "[\"*\"]",
     .help = "CORS origins, a JSON list."},
    {.name = "allowed-methods", .type = OPT_STRING, .offset = SERVER(allowed_methods), .group = G_HTTP, .def = "[\"*\"]",
     .help = "CORS methods, a JSON list."},
    {.name = "allowed-headers", .type = OPT_STRING, .offset = SERVER(allowed_headers), .group = G_HTTP, .def = "[\"*\"]",
     .help = "CORS request headers, a JSON list."},
    {.name = "allow-credentials", .type = OPT_BOOL, .offset = SERVER(allow_credentials), .group = G_HTTP, .def = "false",
     .help = "CORS credentials."},
    {.name = "enable-request-id-headers", .type = OPT_BOOL, .offset = SERVER(enable_request_id_headers), .group = G_HTTP,
     .def = "false", .help = "Echo or make X-Request-Id."},
    {.name = "shutdown-timeout", .type = OPT_INT, .offset = SERVER(shutdown_timeout_s), .group = G_HTTP, .def = "0", .min = 0,
     .max = 86400, .help = "Seconds running requests may go on after SIGTERM; 0: abort them."},
    {.name = "max-num-queued-reqs", .type = OPT_INT, .offset = SERVER(max_num_queued_reqs), .group = G_HTTP, .min = 1, .max = 1e9,
     .help = "Most sequences in flight; more requests get 503. Default: no limit."},
    {.name = "max-body-bytes", .type = OPT_SIZE, .offset = SERVER(max_body_bytes), .group = G_HTTP, .def = "32M", .min = 1024,
     .max = 4294967296.0, .help = "Longest request body; 413 beyond."},
    {.name = "h11-max-incomplete-event-size", .type = OPT_SIZE, .offset = SERVER(max_header_bytes), .group = G_HTTP, .min = 1024,
     .max = 67108864, .help = "Most bytes of request headers; default 64K."},
    {.env = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", .type = OPT_INT, .offset = SERVER(keep_alive_s), .group = G_HTTP, .def = "5", .min = 1,
     .max = 86400, .flags = OPT_ENV_ONLY, .help = "Seconds an idle connection stays open."},
    {.env = "VLLM_MAX_N_SEQUENCES", .type = OPT_INT, .offset = SERVER(max_n), .group = G_HTTP, .def = "16384", .min = 1, .max = 1e6,
     .flags = OPT_ENV_ONLY, .help = "Largest n of a request."},
    {.env = "VLLM_MAX_COMPLETION_PROMPTS", .type = OPT_INT, .offset = SERVER(max_prompts), .group = G_HTTP, .def = "1024", .min = 1,
     .max = 1e6, .flags = OPT_ENV_ONLY, .help = "Most prompts in one completion request."},
    {.env = "VLLM_MAX_STOP_STRINGS", .type = OPT_INT, .offset = SERVER(max_stop_strings), .group = G_HTTP, .def = "4", .min = 1,
     .max = 1024, .flags = OPT_ENV_ONLY, .help = "Most stop strings of a request."},

    {.name = "response-role", .type = OPT_STRING, .offset = SERVER(response_role), .group = G_API, .def = "assistant",
     .help = "Role of generated messages."},
    {.name = "default-chat-template-kwargs", .type = OPT_JSON, .offset = SERVER(default_chat_template_kwargs), .group = G_API,
     .help = "Variables every chat template render gets."},
    {.name = "chat-template-content-format", .type = OPT_STRING, .offset = SERVER(ignored_text), .group = G_API, .def = "auto",
     .choices = "auto", .note = "the template decides", .help = "How content parts reach the template."},
    {.name = "stream-interval", .type = OPT_INT, .offset = SERVER(stream_interval), .group = G_API, .def = "1", .min = 1, .max = 1e6,
     .help = "Tokens between two chunks of a stream."},
    {.name = "enable-prompt-tokens-details", .type = OPT_BOOL, .offset = SERVER(enable_prompt_tokens_details), .group = G_API,
     .def = "false", .help = "cached_tokens in usage."},
    {.name = "enable-force-include-usage", .type = OPT_BOOL, .offset = SERVER(enable_force_include_usage), .group = G_API,
     .def = "false", .help = "Usage in every stream."},
    {.name = "enable-server-load-tracking", .type = OPT_BOOL, .offset = SERVER(enable_server_load_tracking), .group = G_API,
     .def = "false", .help = "Count requests for /load."},
    {.name = "return-tokens-as-token-ids", .type = OPT_BOOL, .offset = SERVER(return_tokens_as_token_ids), .group = G_API,
     .def = "false", .help = "Logprob tokens as token_id:N."},
    {.name = "fingerprint-mode", .type = OPT_STRING, .offset = SERVER(ignored_text), .group = G_API, .def = "full",
     .choices = "full", .note = "system_fingerprint always carries the numerics id", .help = "Contents of system_fingerprint."},

    {.name = "uvicorn-log-level", .type = OPT_STRING, .offset = SERVER(uvicorn_log_level), .group = G_LOG, .def = "info",
     .choices = "critical|error|warning|info|debug|trace", .help = "Level of access lines: warning or higher hides them."},
    {.name = "disable-uvicorn-access-log", .others = "--disable-access-log", .type = OPT_BOOL, .offset = SERVER(disable_access_log),
     .group = G_LOG, .def = "false", .help = "No access lines."},
    {.name = "disable-access-log-for-endpoints", .type = OPT_STRING, .offset = SERVER(disable_access_log_for_endpoints),
     .group = G_LOG, .help = "Paths without access lines, commas between: /health,/metrics."},
    {.name = "enable-log-requests", .type = OPT_BOOL, .offset = SERVER(enable_log_requests), .group = G_LOG, .def = "false",
     .help = "One line per request with its parameters."},
    {.name = "disable-log-stats", .type = OPT_BOOL, .offset = SERVER(disable_log_stats), .group = G_LOG, .def = "false",
     .help = "No periodic throughput line."},
    {.env = "VLLM_LOG_STATS_INTERVAL", .type = OPT_DOUBLE, .offset = SERVER(log_stats_interval_s), .group = G_LOG, .def = "10",
     .min = 0.01, .max = 86400, .flags = OPT_ENV_ONLY, .help = "Seconds between throughput lines."},

    {.name = "disable-frontend-multiprocessing", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_ONE},
    {.name = "disable-fastapi-docs", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = "there are no such pages"},
    {.name = "h11-max-header-count", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = "header bytes are limited instead"},
    {.name = "api-server-count", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = "one thread serves all connections"},
    {.name = "log-config-file", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_PYTHON},
    {.name = "log-error-stack", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_PYTHON},
    {.name = "enable-log-outputs", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = "answers are never logged"},
    {.name = "enable-log-deltas", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = "answers are never logged"},
    {.name = "max-log-len", .type = OPT_STRING, .group = G_NONE, .flags = OPT_IGNORED, .note = "prompts are never logged"},
    {.name = "exclude-tools-when-tool-choice-none", .type = OPT_BOOL, .group = G_NONE, .flags = OPT_IGNORED, .note = NOTE_TOOLS},

    {.name = "uds", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = "unix sockets are not built yet"},
    {.name = "ssl-keyfile", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_TLS},
    {.name = "ssl-certfile", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_TLS},
    {.name = "ssl-ca-certs", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_TLS},
    {.name = "ssl-cert-reqs", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_TLS},
    {.name = "middleware", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = "there is no Python to load it into"},
    {.name = "tool-call-parser", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_TOOLS},
    {.name = "tool-parser-plugin", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_TOOLS},
    {.name = "enable-auto-tool-choice", .type = OPT_BOOL, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_TOOLS},
    {.name = "tool-server", .type = OPT_STRING, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_TOOLS},
    {.name = "trust-request-chat-template", .type = OPT_BOOL, .group = G_REFUSED, .flags = OPT_REFUSED,
     .note = "templates come from the model or --chat-template only"},
    {.name = "enable-per-request-metrics", .type = OPT_BOOL, .group = G_REFUSED, .flags = OPT_REFUSED,
     .note = "answers carry no metrics; see /metrics"},
    {.name = "enable-tokenizer-info-endpoint", .type = OPT_BOOL, .group = G_REFUSED, .flags = OPT_REFUSED,
     .note = "/tokenizer_info is not served"},
    {.name = "headless", .type = OPT_BOOL, .group = G_REFUSED, .flags = OPT_REFUSED, .note = NOTE_ONE},
    {.name = "grpc", .type = OPT_BOOL, .group = G_REFUSED, .flags = OPT_REFUSED, .note = "only HTTP is spoken"},
};

static const struct opt sampling_rows[] = {
    {.name = "max-tokens", .others = "--max-new-tokens", .type = OPT_INT, .offset = SAMPLE(max_tokens), .group = G_SAMPLING,
     .def = "128", .min = 1, .max = 1e8, .help = "Most tokens to generate."},
    {.name = "temperature", .type = OPT_DOUBLE, .offset = SAMPLE(temperature), .group = G_SAMPLING,
     .help = "0: greedy. Default: the model's generation_config.json, else 1."},
    {.name = "top-p", .type = OPT_DOUBLE, .offset = SAMPLE(top_p), .group = G_SAMPLING, .help = "Default: the model's, else 1."},
    {.name = "top-k", .type = OPT_INT, .offset = SAMPLE(top_k), .group = G_SAMPLING, .help = "0 or -1: off. Default: the model's, else off."},
    {.name = "min-p", .type = OPT_DOUBLE, .offset = SAMPLE(min_p), .group = G_SAMPLING, .help = "Default: the model's, else 0."},
    {.name = "repetition-penalty", .type = OPT_DOUBLE, .offset = SAMPLE(repetition_penalty), .group = G_SAMPLING,
     .help = "Default: the model's, else 1."},
    {.name = "presence-penalty", .type = OPT_DOUBLE, .offset = SAMPLE(presence_penalty), .group = G_SAMPLING, .def = "0", .help = ""},
    {.name = "frequency-penalty", .type = OPT_DOUBLE, .offset = SAMPLE(frequency_penalty), .group = G_SAMPLING, .def = "0", .help = ""},
    {.name = "n", .type = OPT_INT, .offset = SAMPLE(n), .group = G_SAMPLING, .def = "1", .min = 1, .max = 16384,
     .help = "Outputs per prompt."},
    {.name = "stop", .type = OPT_APPEND, .offset = SAMPLE(stop), .group = G_SAMPLING, .help = "Stop string; may be repeated."},
    {.name = "stop-token-ids", .type = OPT_LIST, .offset = SAMPLE(stop_token_ids), .group = G_SAMPLING, .meta = "N [N ...]",
     .help = "Token ids that end an output."},
    {.name = "min-tokens", .type = OPT_INT, .offset = SAMPLE(min_tokens), .group = G_SAMPLING, .def = "0", .min = 0, .max = 1e8,
     .help = "Tokens before anything may end the output."},
    {.name = "ignore-eos", .type = OPT_BOOL, .offset = SAMPLE(ignore_eos), .group = G_SAMPLING, .def = "false",
     .help = "Go on after the end-of-text token."},
    {.name = "include-stop-str-in-output", .type = OPT_BOOL, .offset = SAMPLE(include_stop_str), .group = G_SAMPLING,
     .def = "false", .help = "Keep the stop string in the text."},
    {.name = "skip-special-tokens", .type = OPT_BOOL, .offset = SAMPLE(skip_special_tokens), .group = G_SAMPLING, .def = "true",
     .help = "Hide special tokens in the text."},
    {.name = "logprobs", .type = OPT_INT, .offset = SAMPLE(logprobs), .group = G_SAMPLING, .def = "-1", .min = -1, .max = 1e6,
     .help = "With --json: the sampled token's logprob and this many best. -1: none."},
};

struct opt_table args_engine_table(struct args_engine *a)
{
    return (struct opt_table){engine_rows, sizeof engine_rows / sizeof *engine_rows, a};
}

struct opt_table args_server_table(struct args_server *a)
{
    return (struct opt_table){server_rows, sizeof server_rows / sizeof *server_rows, a};
}

struct opt_table args_sampling_table(struct args_sampling *a)
{
    return (struct opt_table){sampling_rows, sizeof sampling_rows / sizeof *sampling_rows, a};
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
        fprintf(stderr, "%s: error: no option or group is named '%s'\n", command, o->help_topic ? o->help_topic : "");
    }
    buf_fini(&b);
    return found ? 0 : EXIT_USAGE;
}

int args_model(const struct opts *o, const char *command, struct args_engine *a, int max_words)
{
    if (o->args.n > max_words) {
        fprintf(stderr, "usage: %s\n%s: error: unexpected word '%s'\n", o->usage, command, o->args.v[max_words]);
        return EXIT_USAGE;
    }
    if (o->args.n > 0) {
        a->model = o->args.v[0];
    }
    if (!a->model || !*a->model) {
        fprintf(stderr, "usage: %s\n%s: error: no model directory given\n", o->usage, command);
        return EXIT_USAGE;
    }
    return -1;
}

int args_log(const struct opts *o, const char *level_name, const char *prefix, struct log *log)
{
    enum log_level level = LOG_INFO;
    if (strcasecmp(level_name, "trace") == 0) {
        level = LOG_DEBUG;
    } else if (strcasecmp(level_name, "warn") == 0) {
        level = LOG_WARNING;
    } else if (log_level_parse(level_name, &level) < 0) {
        return ERR_INVALID;
    }
    *log = (struct log){.level = level, .fd = STDERR_FILENO, .json = 0, .prefix = prefix};
    for (int i = 0; i < o->warnings.n; i++) {
        log_warning(log, "%s", o->warnings.v[i]);
    }
    return 0;
}

int args_fail(const char *command, const struct err *e)
{
    fprintf(stderr, "%s: error: %s\n", command, e->text);
    return EXIT_FAULT;
}
