/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/setup.h"
#include "base/clock.h"
#include "base/json.h"
#include "kv/layout.h"
#include "lib/speculation.h"
#include "model/config.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define GIB           1073741824.0
#define PROCESS_BYTES ((uint64_t)64 << 20) /* code, tokenizer, connections, buffers */

static double gib(uint64_t bytes)
{
    return (double)bytes / GIB;
}

/* ---- CPU ---- */

/* CPUs such as "0-3,8"; VLLM's '|' separates ranks, of which there is one. */
static int parse_cpu_list(const char *text, int *out, int max, struct err *e)
{
    int n = 0;
    const char *p = text;
    while (*p) {
        char *end;
        long first = strtol(p, &end, 10), last = first;
        if (end == p || !isdigit((unsigned char)*p)) {
            goto bad;
        }
        if (*end == '-') {
            p = end + 1;
            last = strtol(p, &end, 10);
            if (end == p || !isdigit((unsigned char)*p)) {
                goto bad;
            }
        }
        if (first > last || last > 65535 || (*end && *end != ',')) {
            goto bad;
        }
        for (long c = first; c <= last && n < max; c++) {
            out[n++] = (int)c;
        }
        p = *end ? end + 1 : end;
    }
    if (n > 0) {
        return n;
    }
bad:
    return err_set(
        e, ERR_INVALID,
        "VLLM_CPU_OMP_THREADS_BIND: expected auto, nobind or CPUs such as 0-3,8, found '%s'", text);
}

static int choose_threads(struct setup *s, struct err *e)
{
    const struct args_engine *a = s->a;
    const char *bind = a->threads_bind ? a->threads_bind : "auto";
    int n = s->limits.n_threads;
    s->cpu_ids = s->limits.cpu_ids;
    if (s->limits.cgroup_cpus > 0 && s->limits.cgroup_cpus < s->limits.n_affinity) {
        snprintf(s->threads_why, sizeof s->threads_why,
                 "cgroup quota of %.2f CPUs, %d in the affinity mask", s->limits.cgroup_cpus,
                 s->limits.n_affinity);
    } else {
        snprintf(s->threads_why, sizeof s->threads_why,
                 "%d CPUs in the affinity mask, no lower cgroup quota", s->limits.n_affinity);
    }
    if (strcasecmp(bind, "nobind") == 0) {
        s->cpu_ids = NULL;
    } else if (strcasecmp(bind, "auto") != 0) {
        n = parse_cpu_list(bind, s->cpu_list, (int)(sizeof s->cpu_list / sizeof *s->cpu_list), e);
        if (n < 0) {
            return n;
        }
        s->cpu_ids = s->cpu_list;
        snprintf(s->threads_why, sizeof s->threads_why, "VLLM_CPU_OMP_THREADS_BIND=%.100s", bind);
    }
    if (a->reserved_cpus > 0) {
        n = n - (int)a->reserved_cpus > 1 ? n - (int)a->reserved_cpus : 1;
        size_t used = strlen(s->threads_why);
        snprintf(s->threads_why + used, sizeof s->threads_why - used, ", %d reserved",
                 (int)a->reserved_cpus);
    }
    if (a->threads > 0) {
        if (a->threads > n) {
            log_warning(&s->log,
                        "--threads %d is more than the %d CPUs this process may use (%s): expect "
                        "it to be slower",
                        (int)a->threads, n, s->threads_why);
            s->cpu_ids = NULL;
        }
        n = (int)a->threads;
        snprintf(s->threads_why, sizeof s->threads_why, "--threads");
    }
    s->n_threads = n;
    return 0;
}

int setup_cpu(struct setup *s, struct err *e)
{
    if (cpu_detect() == CPU_NONE) {
        return err_set(
            e, ERR_UNSUPPORTED,
            "this CPU is below the floor: tern needs x86-64-v2 (SSE4.2, SSSE3, POPCNT) or arm64");
    }
    int rc = cpu_level_choose(s->a->cpu_mask, &s->level, e);
    if (rc < 0) {
        return err_prefix(e, "--cpu-mask");
    }
    s->kernels = kernels_get(s->level);
    if (!s->kernels) {
        return err_set(e, ERR_UNSUPPORTED, "--cpu-mask: this build has no kernels for %s",
                       cpu_level_name(s->level));
    }
    rc = cpu_limits_read(&s->limits, e);
    return rc < 0 ? rc : choose_threads(s, e);
}

/* ---- files ---- */

static void add_stop(struct setup *s, int32_t id)
{
    if (id < 0 || id == s->eos_id || s->n_stop_ids == SETUP_MAX_STOPS) {
        return;
    }
    for (int i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == id) {
            return;
        }
    }
    s->stop_ids[s->n_stop_ids++] = id;
}

static int override_number(const struct json *v, const char *key, double min, double max,
                           double *out, struct err *e)
{
    double d = json_double(v);
    if ((json_type(v) != JSON_INT && json_type(v) != JSON_DOUBLE) || d < min || d > max) {
        return err_set(e, ERR_INVALID,
                       "--override-generation-config: %s: expected a number from %g to %g", key,
                       min, max);
    }
    *out = d;
    return 0;
}

static int apply_override(struct setup *s, const char *text, struct err *e)
{
    struct sampling_defaults *g = &s->generation;
    struct json *doc = NULL;
    int rc = json_parse(&doc, text, strlen(text), JSON_DEPTH_DEFAULT, e);
    size_t it = 0, key_bytes;
    const char *key;
    const struct json *v;
    while (rc >= 0 && json_next(doc, &it, &key, &key_bytes, &v)) {
        double d = 0;
        if (json_type(v) == JSON_NULL) {
            continue;
        }
        if (strcmp(key, "temperature") == 0) {
            rc = override_number(v, key, 0, 2, &g->temperature, e);
            g->has_temperature = 1;
        } else if (strcmp(key, "top_p") == 0) {
            rc = override_number(v, key, 1e-9, 1, &g->top_p, e);
            g->has_top_p = 1;
        } else if (strcmp(key, "min_p") == 0) {
            rc = override_number(v, key, 0, 1, &g->min_p, e);
            g->has_min_p = 1;
        } else if (strcmp(key, "repetition_penalty") == 0) {
            rc = override_number(v, key, 1e-9, 1e9, &g->repetition_penalty, e);
            g->has_repetition_penalty = 1;
        } else if (strcmp(key, "top_k") == 0) {
            rc = override_number(v, key, -1, 1e9, &d, e);
            g->top_k = (int)d;
            g->has_top_k = 1;
        } else if (strcmp(key, "max_new_tokens") == 0) {
            rc = override_number(v, key, 1, 1e9, &d, e);
            g->max_new_tokens = (int)d;
            g->has_max_new_tokens = 1;
        } else {
            log_warning(&s->log, "--override-generation-config: %s is not a key that is used", key);
        }
    }
    json_free(doc);
    return rc;
}

static int read_generation(struct setup *s, struct err *e)
{
    const struct model_generation_config *own = model_generation(s->model);
    struct model_generation_config other, *from = NULL;
    const char *source = s->a->generation_config;
    memset(&other, 0, sizeof other);
    if (strcmp(source, "auto") == 0) {
        other = *own;
        from = &other;
    } else if (strcmp(source, "vllm") != 0) {
        int rc = config_read_generation(&other, source, e);
        if (rc < 0) {
            return err_prefix(e, "--generation-config");
        }
        from = &other;
    }
    if (from) {
        s->generation = (struct sampling_defaults){
            .has_temperature = from->has_temperature,
            .has_top_p = from->has_top_p,
            .has_top_k = from->has_top_k,
            .has_min_p = from->has_min_p,
            .has_repetition_penalty = from->has_repetition_penalty,
            .has_max_new_tokens = from->has_max_new_tokens,
            .temperature = from->temperature,
            .top_p = from->top_p,
            .min_p = from->min_p,
            .repetition_penalty = from->repetition_penalty,
            .top_k = from->top_k,
            .max_new_tokens = from->max_new_tokens,
        };
    }
    /* Enders: the tokenizer's EOS is the primary one; all others in the files, and the template's,
     * stop as well. */
    const struct model_config *c = model_config(s->model);
    s->eos_id = tokenizer_eos_id(s->tokenizer);
    if (s->eos_id < 0 && c->n_eos_ids > 0) {
        s->eos_id = c->eos_ids[0];
    }
    for (int i = 0; i < c->n_eos_ids; i++) {
        add_stop(s, c->eos_ids[i]);
    }
    for (int i = 0; i < own->n_eos_ids; i++) {
        add_stop(s, own->eos_ids[i]);
    }
    add_stop(s, tokenizer_sep_id(s->tokenizer));
    return s->a->override_generation_config ? apply_override(s, s->a->override_generation_config, e)
                                            : 0;
}

/* Only the choice of a backend may be ignored; other keys would change what is generated. */
static int check_structured(const char *text, struct err *e)
{
    struct json *doc = NULL;
    int rc = json_parse(&doc, text, strlen(text), JSON_DEPTH_DEFAULT, e);
    size_t it = 0, key_bytes;
    const char *key;
    const struct json *v;
    while (rc >= 0 && json_next(doc, &it, &key, &key_bytes, &v)) {
        if (strcmp(key, "backend") != 0 && strcmp(key, "disable_fallback") != 0) {
            rc = err_set(e, ERR_UNSUPPORTED,
                         "--structured-outputs-config: the key %s is not supported", key);
        }
    }
    json_free(doc);
    return rc;
}

/* What people coming from vLLM try first: the name of a model on a hub, and a directory around a
 * GGUF file. Everything else is told by those who read the files. */
static int check_path(const char *path, struct err *e)
{
    struct stat sb;
    char config[4096];
    if (stat(path, &sb) != 0) {
        return err_set(
            e, ERR_NOT_FOUND,
            "%s: %s; a model is a local directory, a GGUF file, or OWNER/NAME after `tern pull`",
            path, strerror(errno));
    }
    int n = snprintf(config, sizeof config, "%s/config.json", path);
    if (!S_ISDIR(sb.st_mode) || n < 0 || (size_t)n >= sizeof config || access(config, F_OK) == 0) {
        return 0;
    }
    DIR *d = opendir(path);
    int rc = 0;
    for (const struct dirent *en; d && rc == 0 && (en = readdir(d)) != NULL;) {
        const char *dot = strrchr(en->d_name, '.');
        if (dot && strcasecmp(dot, ".gguf") == 0) {
            rc = err_set(e, ERR_NOT_FOUND,
                         "%s: has no config.json; to take its GGUF file give that file's path: "
                         "%s/%s",
                         path, path, en->d_name);
        }
    }
    if (d) {
        closedir(d);
    }
    return rc;
}

static enum kv_format kv_format_of(const char *name)
{
    return strcasecmp(name, "int8") == 0       ? KV_I8
           : strcasecmp(name, "fp8_e5m2") == 0 ? KV_F8_E5M2
           : strncasecmp(name, "fp8", 3) == 0  ? KV_F8_E4M3
                                               : KV_ACT;
}

int setup_files(struct setup *s, struct err *e)
{
    const struct args_engine *a = s->a;
    if (check_path(a->model, e) < 0) {
        return e->code;
    }
    if (a->revision && !a->pulled[0]) {
        log_warning(&s->log, "--revision has no effect: %s is a path", a->model);
    }
    if (a->structured_outputs_config && check_structured(a->structured_outputs_config, e) < 0) {
        return e->code;
    }
    if (speculation_read(a, &s->speculation, e) < 0) {
        return e->code;
    }
    const char *tokenizer_dir = a->tokenizer ? a->tokenizer : a->model;
    struct model_options mo = {
        .path = a->model,
        .act = strcasecmp(a->dtype, "float32") == 0 || strcasecmp(a->dtype, "float") == 0
                   ? ACT_F32
                   : ACT_BF16,
        .kv = kv_format_of(a->kv_cache_dtype),
        .log = &s->log,
        .quantization = a->quantization,
        .inputs = strcmp(a->quantization_inputs, "8") == 0      ? MODEL_INPUTS_8
                  : strcmp(a->quantization_inputs, "e5m2") == 0 ? MODEL_INPUTS_E5M2
                  : strcmp(a->quantization_inputs, "16") == 0   ? MODEL_INPUTS_16
                                                                : MODEL_INPUTS_AUTO,
        .head_bits = strcmp(a->quantization_head, "8") == 0   ? 8
                     : strcmp(a->quantization_head, "4") == 0 ? 4
                                                              : 0,
        .int4_as_asked = !a->int4_w4a8,
    };
    if (mo.act == ACT_F32 && strcasecmp(a->kv_cache_dtype, "bfloat16") == 0) {
        return err_set(e, ERR_INVALID,
                       "--kv-cache-dtype bfloat16 needs --dtype bfloat16; with float32 it is auto "
                       "(float32), fp8, fp8_e5m2 or int8");
    }
    int rc = model_open(&s->model, &mo, e);
    if (rc >= 0) {
        rc = tokenizer_open(&s->tokenizer, tokenizer_dir, e);
    }
    if (rc >= 0 && tokenizer_n_ids(s->tokenizer) > model_config(s->model)->vocab_size) {
        log_warning(
            &s->log,
            "the tokenizer has %d ids but the model only %d: text with the last ones is refused",
            tokenizer_n_ids(s->tokenizer), model_config(s->model)->vocab_size);
    }
    if (rc >= 0) {
        rc = chat_template_open(&s->chat, tokenizer_dir, a->chat_template, s->tokenizer, e);
    }
    return rc < 0 ? rc : read_generation(s, e);
}

/* ---- memory plan ---- */

static uint64_t blocks_of(int64_t n_tokens)
{
    return (uint64_t)((n_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS);
}

static int plan_length(struct setup *s, struct err *e)
{
    const struct args_engine *a = s->a;
    struct memory_plan *p = &s->plan;
    p->derived_max_model_len = model_config(s->model)->max_position_embeddings;
    p->max_model_len = p->derived_max_model_len;
    if (a->max_model_len > p->derived_max_model_len && !a->allow_long_max_model_len) {
        return err_set(e, ERR_INVALID,
                       "--max-model-len %lld is greater than the model's max_position_embeddings "
                       "%d (config.json); set "
                       "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 to allow it",
                       (long long)a->max_model_len, p->derived_max_model_len);
    }
    if (a->max_model_len > 0) {
        p->max_model_len = (int)a->max_model_len;
    }
    if (a->max_num_batched_tokens < a->max_num_seqs) {
        return err_set(e, ERR_INVALID,
                       "--max-num-batched-tokens %lld is less than --max-num-seqs %lld",
                       (long long)a->max_num_batched_tokens, (long long)a->max_num_seqs);
    }
    if (!a->enable_chunked_prefill && a->max_model_len != -1 &&
        a->max_num_batched_tokens < p->max_model_len) {
        return err_set(e, ERR_INVALID,
                       "--no-enable-chunked-prefill needs --max-num-batched-tokens (%lld) of at "
                       "least the max model len (%d)",
                       (long long)a->max_num_batched_tokens, p->max_model_len);
    }
    return 0;
}

static void plan_engine_options(struct setup *s)
{
    const struct args_engine *a = s->a;
    s->engine_options = (struct engine_options){
        .max_model_len = s->plan.max_model_len,
        .max_num_seqs = (int)a->max_num_seqs,
        .max_num_batched_tokens = (int)a->max_num_batched_tokens,
        .long_prefill_token_threshold = (int)a->long_prefill_token_threshold,
        .enable_prefix_caching = a->enable_prefix_caching,
        .enable_chunked_prefill = a->enable_chunked_prefill,
        .policy_priority = strcasecmp(a->scheduling_policy, "priority") == 0,
        .eager = a->enforce_eager,
        .seed = a->seed,
        .kv_cache_bytes = s->plan.kv_bytes,
        .n_blocks_override = (int)a->num_gpu_blocks_override,
        .speculation = s->speculation,
        .eos_id = s->eos_id,
        .log = &s->log,
    };
}

/* KV bytes: what the user said, else the share, capped by what max_num_seqs full requests could
 * use. */
static void plan_kv(struct setup *s)
{
    const struct args_engine *a = s->a;
    struct memory_plan *p = &s->plan;
    uint64_t share =
        engine_kv_bytes_default(p->limit_bytes, p->available_bytes, a->gpu_memory_utilization,
                                p->weight_bytes, p->activation_bytes);
    share = share > p->process_bytes ? share - p->process_bytes : 0;
    p->kv_available_bytes = share;
    p->kv_explicit = 1;
    if (a->num_gpu_blocks_override > 0) {
        p->kv_bytes = (uint64_t)a->num_gpu_blocks_override * p->block_bytes;
    } else if (a->kv_cache_memory_bytes > 0) {
        p->kv_bytes = (uint64_t)a->kv_cache_memory_bytes;
    } else if (a->cpu_kvcache_space_gib > 0) {
        p->kv_bytes = (uint64_t)(a->cpu_kvcache_space_gib * GIB);
    } else {
        uint64_t seqs = (uint64_t)a->max_num_seqs;
        if (s->n_seqs_wanted > 0 && (uint64_t)s->n_seqs_wanted < seqs) {
            seqs = (uint64_t)s->n_seqs_wanted;
        }
        uint64_t useful = (seqs * blocks_of(p->max_model_len) + 1) * p->block_bytes;
        p->kv_explicit = 0;
        p->kv_bytes = share < useful ? share : useful;
    }
    if (p->kv_explicit) {
        p->kv_available_bytes = p->kv_bytes;
    }
    p->n_blocks = (int)(p->kv_bytes / p->block_bytes);
    if (a->max_model_len == -1) { /* the longest request that fits, with the null block aside */
        int64_t fits = ((int64_t)p->n_blocks - 1) * KV_BLOCK_TOKENS;
        if (fits >= 1 && fits < p->max_model_len) {
            log_info(&s->log,
                     "Reduced max model len from %d to %lld to fit the KV cache (%.2f GiB)",
                     p->max_model_len, (long long)fits, gib(p->kv_bytes));
            p->max_model_len = (int)fits;
        }
    }
    uint64_t per_request = blocks_of(p->max_model_len);
    p->concurrency_x100 =
        p->n_blocks > 1 ? (int)((uint64_t)(p->n_blocks - 1) * 100 / per_request) : 0;
}

int setup_plan(struct setup *s, struct err *e)
{
    struct memory_plan *p = &s->plan;
    struct kv_layout layout;
    model_kv_layout(s->model, &layout);
    p->block_bytes = kv_layout_token_block_bytes(&layout);
    p->limit_bytes = s->limits.memory_limit_bytes;
    p->available_bytes = s->limits.memory_available_bytes;
    p->weight_bytes = model_weight_bytes(s->model);
    p->process_bytes = PROCESS_BYTES;
    int rc = plan_length(s, e);
    if (rc < 0) {
        return rc;
    }
    plan_engine_options(s);
    p->activation_bytes = engine_activation_bytes(s->model, &s->engine_options);
    plan_kv(s);
    plan_engine_options(s);

    uint64_t need = (blocks_of(p->max_model_len) + 1) * p->block_bytes;
    uint64_t rest = p->weight_bytes + p->activation_bytes + p->process_bytes;
    if (rest >= p->available_bytes) {
        return err_set(e, ERR_TOO_LARGE,
                       "not enough memory: weights %.2f GiB + activations %.2f GiB + process %.2f "
                       "GiB are more than the %.2f GiB "
                       "this process may still use (limit %.2f GiB)",
                       gib(p->weight_bytes), gib(p->activation_bytes), gib(p->process_bytes),
                       gib(p->available_bytes), gib(p->limit_bytes));
    }
    if (p->n_blocks < 2 || (uint64_t)p->n_blocks * p->block_bytes < need) {
        int64_t fits = p->n_blocks > 1 ? ((int64_t)p->n_blocks - 1) * KV_BLOCK_TOKENS : 0;
        return err_set(
            e, ERR_TOO_LARGE,
            "to serve one request of the max model len %d, %.3f GiB of KV cache are needed, more "
            "than the available "
            "%.3f GiB; the estimated maximum length is %lld. Raise --%s or lower --max-model-len",
            p->max_model_len, gib(need), gib(p->kv_available_bytes), (long long)fits,
            s->a->num_gpu_blocks_override > 0 ? "num-gpu-blocks-override"
            : p->kv_explicit                  ? "kv-cache-memory-bytes"
                                              : "gpu-memory-utilization");
    }
    if (rest + p->kv_bytes > p->available_bytes) {
        return err_set(e, ERR_TOO_LARGE,
                       "not enough memory: KV cache %.2f GiB + weights %.2f GiB + activations %.2f "
                       "GiB + process %.2f GiB are "
                       "more than the %.2f GiB this process may still use (limit %.2f GiB)",
                       gib(p->kv_bytes), gib(p->weight_bytes), gib(p->activation_bytes),
                       gib(p->process_bytes), gib(p->available_bytes), gib(p->limit_bytes));
    }
    return 0;
}

void setup_describe_plan(const struct setup *s, struct buf *out, int json)
{
    const struct memory_plan *p = &s->plan;
    if (!json) {
        buf_printf(out, "memory:        limit %.2f GiB, free for this process %.2f GiB\n",
                   gib(p->limit_bytes), gib(p->available_bytes));
        buf_printf(out,
                   "plan:          weights %.1f MiB, activations %.1f MiB, process %.1f MiB, KV "
                   "cache %.1f MiB\n",
                   (double)p->weight_bytes / 1048576, (double)p->activation_bytes / 1048576,
                   (double)p->process_bytes / 1048576, (double)p->kv_bytes / 1048576);
        buf_printf(
            out,
            "KV cache:      %s, %.1f KiB per token, %d blocks of %d tokens, %d.%02d requests "
            "of %d tokens\n",
            model_kv_name(s->model), (double)p->block_bytes / KV_BLOCK_TOKENS / 1024, p->n_blocks,
            KV_BLOCK_TOKENS, p->concurrency_x100 / 100, p->concurrency_x100 % 100,
            p->max_model_len);
        return;
    }
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kint(&w, "limit_bytes", (int64_t)p->limit_bytes);
    json_w_kint(&w, "available_bytes", (int64_t)p->available_bytes);
    json_w_kint(&w, "weight_bytes", (int64_t)p->weight_bytes);
    json_w_kint(&w, "activation_bytes", (int64_t)p->activation_bytes);
    json_w_kint(&w, "process_bytes", (int64_t)p->process_bytes);
    json_w_kint(&w, "kv_cache_bytes", (int64_t)p->kv_bytes);
    json_w_kstring(&w, "kv_cache_dtype", model_kv_name(s->model));
    json_w_kint(&w, "kv_bytes_per_token", (int64_t)(p->block_bytes / KV_BLOCK_TOKENS));
    json_w_kint(&w, "n_blocks", p->n_blocks);
    json_w_kint(&w, "block_size", KV_BLOCK_TOKENS);
    json_w_kint(&w, "max_model_len", p->max_model_len);
    json_w_kdouble(&w, "max_concurrency", p->concurrency_x100 / 100.0);
    json_w_object_end(&w);
}

/* ---- both halves ---- */

int setup_check(struct setup *s, struct err *e)
{
    int rc = setup_cpu(s, e);
    rc = rc < 0 ? rc : setup_files(s, e);
    return rc < 0 ? rc : setup_plan(s, e);
}

int setup_load(struct setup *s, struct err *e)
{
    int rc = cpu_pool_open(&s->pool, s->n_threads, s->cpu_ids, e);
    if (rc < 0) {
        return rc;
    }
    uint64_t start = clock_now_ns();
    rc = model_load(s->model, s->kernels, s->pool, e);
    s->weights_seconds = (double)(clock_now_ns() - start) * 1e-9;
    return rc;
}

int setup_engine(struct setup *s, struct err *e)
{
    return engine_open(&s->engine, s->model, s->kernels, s->pool, &s->engine_options, e);
}

void setup_sampling(const struct setup *s, struct sampling_params *p)
{
    const struct sampling_defaults *g = &s->generation;
    sampling_params_init(p);
    p->temperature = g->has_temperature ? g->temperature : p->temperature;
    p->top_p = g->has_top_p ? g->top_p : p->top_p;
    p->top_k = g->has_top_k ? g->top_k : p->top_k;
    p->min_p = g->has_min_p ? g->min_p : p->min_p;
    p->repetition_penalty =
        g->has_repetition_penalty ? g->repetition_penalty : p->repetition_penalty;
}

void setup_close(struct setup *s)
{
    if (s->engine) {
        engine_close(s->engine);
    }
    if (s->pool) {
        cpu_pool_close(s->pool);
    }
    chat_template_close(s->chat);
    tokenizer_close(s->tokenizer);
    model_close(s->model);
}
