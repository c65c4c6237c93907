/* SPDX-License-Identifier: Apache-2.0 */
/* Reading quantization_config. Every method has its list of keys: those that are read, and those
 * that only say how the weights were found (calibration, damping, versions) and change nothing. A
 * key of neither kind may change the arithmetic or the layout, so it is refused. */
#include "model/quant_config.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/utf8.h"
#include <regex.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct reader {
    struct quant_config *q;
    const char *path,
        *key; /* key: where in the file, such as quantization_config.config_groups.g */
    struct err *e;
};

static const char *const method_names[QUANT_METHOD_COUNT] = {
    "none", "awq", "gptq", "compressed-tensors", "fp8", "wint8", "block_wise_fp8",
    "int4", "awq", "gguf"};

const char *quant_method_name(enum quant_method m)
{
    return method_names[m];
}

static int refuse(const struct reader *r, const char *field, const char *expected,
                  const struct json *found)
{
    struct buf b;
    buf_init(&b);
    json_dump(found, &b);
    const char *text = b.data != NULL ? b.data : "null";
    const size_t n = utf8_cut(text, strlen(text), 120);
    int rc = err_set(r->e, ERR_UNSUPPORTED, "%s: unsupported %s.%s: expected %s, found %.*s%s",
                     r->path, r->key, field, expected, (int)n, text, text[n] ? "…" : "");
    buf_fini(&b);
    return rc;
}

static const char *string_of(const struct json *v)
{
    return json_type(v) == JSON_STRING ? json_string(v, NULL) : NULL;
}

/* The field must be absent, null or one of the words (NULL-terminated, any case). */
static int expect_word(const struct reader *r, const struct json *o, const char *field,
                       const char *const *words)
{
    const struct json *v = json_get(o, field);
    const char *s = string_of(v);
    char list[128] = "";
    if (json_type(v) == JSON_NULL) {
        return 0;
    }
    for (int i = 0; words[i] != NULL; i++) {
        if (s != NULL && strcasecmp(s, words[i]) == 0) {
            return 0;
        }
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s\"%s\"", i > 0 ? " or " : "", words[i]);
    }
    return refuse(r, field, list, v);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* The field must be absent, null or this truth value. */
static int expect_bool(const struct reader *r, const struct json *o, const char *field, int value)
{
    const struct json *v = json_get(o, field);
    if (json_type(v) == JSON_NULL || (json_type(v) == JSON_BOOL && json_bool(v) == value)) {
        return 0;
    }
    return refuse(r, field, value ? "true" : "false", v);
}

/* null, false, {} and [] all say that something isn't there. */
static int is_nothing(const struct json *v)
{
    switch (json_type(v)) {
    case JSON_NULL:
        return 1;
    case JSON_BOOL:
        return !json_bool(v);
    case JSON_ARRAY:
    case JSON_OBJECT:
        return json_length(v) == 0;
    default:
        return 0;
    }
}

static int expect_nothing(const struct reader *r, const struct json *o, const char *field)
{
    const struct json *v = json_get(o, field);
    return is_nothing(v) ? 0 : refuse(r, field, "null", v);
}

/* A required whole number equal to `value`, under one of two spellings. */
static int expect_int(const struct reader *r, const struct json *o, const char *field,
                      const char *other, int64_t value)
{
    char expected[32];
    if (other != NULL && json_type(json_get(o, field)) == JSON_NULL &&
        json_type(json_get(o, other)) != JSON_NULL) {
        field = other;
    }
    const struct json *v = json_get(o, field);
    if (json_type(v) == JSON_INT && json_int(v) == value) {
        return 0;
    }
    snprintf(expected, sizeof expected, "%lld", (long long)value);
    return refuse(r, field, expected, v);
}

/* 4 or 8. */
static int read_bits(const struct reader *r, const struct json *o, const char *field, int *bits)
{
    const struct json *v = json_get(o, field);
    if (json_type(v) != JSON_INT || (json_int(v) != 4 && json_int(v) != 8)) {
        return refuse(r, field, "4 or 8", v);
    }
    *bits = (int)json_int(v);
    return 0;
}

/* Inputs of a group: a multiple of 32, or -1 for the whole row (0). */
static int read_group(const struct reader *r, const struct json *o, const char *field,
                      const char *other, int *group)
{
    if (other != NULL && json_type(json_get(o, field)) == JSON_NULL &&
        json_type(json_get(o, other)) != JSON_NULL) {
        field = other;
    }
    const struct json *v = json_get(o, field);
    if (json_type(v) != JSON_INT ||
        (json_int(v) != -1 && (json_int(v) < 32 || json_int(v) > 1 << 18 || json_int(v) % 32))) {
        return refuse(r, field, "32, 64, 128 (any multiple of 32) or -1", v);
    }
    *group = json_int(v) < 0 ? 0 : (int)json_int(v);
    return 0;
}

/* Refuses members that are in neither list. */
static int check_keys(const struct reader *r, const struct json *o, const char *const *known)
{
    size_t it = 0, n;
    const char *key;
    const struct json *v;
    while (json_next(o, &it, &key, &n, &v)) {
        int i = 0;
        while (known[i] != NULL && strcmp(known[i], key) != 0) {
            i++;
        }
        if (known[i] == NULL && !is_nothing(v)) {
            return refuse(r, key, "no such key (its meaning is not known)", v);
        }
    }
    return 0;
}

/* Not plain: classes and groups that POSIX expressions read in another way, and what the C library
 * needs endless memory or time for (counted repeats in each other, back-references, and `+` of what
 * is repeated or a group already: it copies that, so a row of them doubles it each time). */
static int is_plain_regex(const char *s)
{
    if (strlen(s) > 512 || strstr(s, "(?") != NULL || strchr(s, '{') != NULL) {
        return 0;
    }
    for (const char *p = strchr(s, '\\'); p != NULL; p = strchr(p + 2, '\\')) {
        if (p[1] != '.') {
            return 0;
        }
    }
    int n_copies = 0;
    for (const char *p = s; (p = strchr(p, '+')) != NULL; p++) {
        n_copies += p > s && strchr("+*?)", p[-1]) != NULL;
    }
    return n_copies <= 4; /* sixteen copies of what is at most 512 bytes */
}

static int read_patterns(const struct reader *r, const struct json *o, const char *field,
                         struct quant_patterns *p)
{
    const struct json *v = json_get(o, field);
    size_t n = json_length(v);
    *p = (struct quant_patterns){NULL, 0};
    if (json_type(v) == JSON_NULL) {
        return 0;
    }
    if (json_type(v) != JSON_ARRAY || n > QUANT_MAX_PATTERNS) {
        return refuse(r, field, "a list of layer names", v);
    }
    p->text = arena_alloc(&r->q->arena, (n + 1) * sizeof *p->text);
    if (p->text == NULL) {
        return err_set(r->e, ERR_NOMEM, "%s: out of memory", r->path);
    }
    for (size_t i = 0; i < n; i++) {
        const char *s = string_of(json_at(v, i));
        if (s == NULL || s[0] == '\0') {
            return refuse(r, field, "a list of layer names", v);
        }
        if (strncmp(s, "re:", 3) == 0) {
            regex_t re;
            if (!is_plain_regex(s + 3) || regcomp(&re, s + 3, REG_EXTENDED | REG_NOSUB) != 0) {
                return refuse(r, field, "names or plain regular expressions", json_at(v, i));
            }
            regfree(&re);
        }
        p->text[p->n] = arena_strdup(&r->q->arena, s);
        if (p->text[p->n++] == NULL) {
            return err_set(r->e, ERR_NOMEM, "%s: out of memory", r->path);
        }
    }
    return 0;
}

static struct quant_scheme *add_scheme(const struct reader *r)
{
    struct quant_scheme *s = &r->q->schemes[r->q->n_schemes++];
    memset(s, 0, sizeof *s);
    return s;
}

static int read_awq(const struct reader *r, const struct json *o)
{
    static const char *const known[] = {"quant_method",
                                        "bits",
                                        "w_bit",
                                        "group_size",
                                        "q_group_size",
                                        "zero_point",
                                        "version",
                                        "backend",
                                        "modules_to_not_convert",
                                        "do_fuse",
                                        "fuse_max_seq_len",
                                        "modules_to_fuse",
                                        "exllama_config",
                                        NULL};
    struct quant_scheme *s = add_scheme(r);
    s->layout = QUANT_AWQ_GEMM;
    r->q->match = QUANT_MATCH_SUBSTRING;
    int rc = check_keys(r, o, known);
    rc = rc < 0 ? rc : expect_int(r, o, "bits", "w_bit", 4);
    rc = rc < 0 ? rc : read_group(r, o, "group_size", "q_group_size", &s->group);
    rc = rc < 0 ? rc : expect_bool(r, o, "zero_point", 1);
    rc = rc < 0 ? rc : expect_word(r, o, "version", WORDS("gemm"));
    rc = rc < 0 ? rc : expect_word(r, o, "backend", WORDS("autoawq", "llm-awq"));
    return rc < 0 ? rc : read_patterns(r, o, "modules_to_not_convert", &r->q->ignored);
}

static int read_gptq(const struct reader *r, const struct json *o)
{
    static const char *const known[] = {
        "quant_method", "method", "bits", "group_size", "desc_act", "sym", "lm_head", "dynamic",
        "pack_dtype", "checkpoint_format", "format", "is_marlin_format", "modules_to_not_convert",
        "modules_in_block_to_quantize",
        /* how the weights were found */
        "damp_percent", "damp_auto_increment", "true_sequential", "static_groups", "dataset",
        "tokenizer", "model_name_or_path", "model_file_base_name", "model_seqlen",
        "block_name_to_quantize", "module_name_preceding_first_block", "batch_size", "pad_token_id",
        "use_cuda_fp16", "use_exllama", "exllama_config", "max_input_length", "cache_block_outputs",
        "disable_exllama", "meta", "mse", "offload_to_disk", "backend", "act_group_aware", NULL};
    struct quant_scheme *s = add_scheme(r);
    s->layout = QUANT_GPTQ_ROWS;
    r->q->match = QUANT_MATCH_SUBSTRING;
    int rc = check_keys(r, o, known);
    rc = rc < 0 ? rc : read_bits(r, o, "bits", &s->bits);
    rc = rc < 0 ? rc : read_group(r, o, "group_size", NULL, &s->group);
    const struct json *order = json_get(o, "desc_act"), *head = json_get(o, "lm_head");
    if (rc == 0 && json_type(order) != JSON_BOOL && json_type(order) != JSON_NULL) {
        rc = refuse(r, "desc_act", "true or false", order);
    }
    const struct json *sym = json_get(o, "sym");
    if (rc == 0 && json_type(sym) != JSON_BOOL && json_type(sym) != JSON_NULL) {
        rc = refuse(r, "sym", "true or false", sym);
    }
    if (rc == 0 && json_type(head) != JSON_BOOL && json_type(head) != JSON_NULL) {
        rc = refuse(r, "lm_head", "true or false", head);
    }
    rc = rc < 0 ? rc : expect_word(r, o, "checkpoint_format", WORDS("gptq", "gptq_v2"));
    rc = rc < 0 ? rc : expect_word(r, o, "format", WORDS("gptq", "gptq_v2"));
    rc = rc < 0 ? rc : expect_word(r, o, "method", WORDS("gptq"));
    rc = rc < 0 ? rc : expect_word(r, o, "pack_dtype", WORDS("int32"));
    rc = rc < 0 ? rc : expect_nothing(r, o, "dynamic");
    rc = rc < 0 ? rc : expect_bool(r, o, "is_marlin_format", 0);
    rc = rc < 0 ? rc : expect_nothing(r, o, "modules_in_block_to_quantize");
    if (rc < 0) {
        return rc;
    }
    const char *format = string_of(json_get(o, "checkpoint_format"));
    format = format != NULL ? format : string_of(json_get(o, "format"));
    s->ordered = json_type(order) == JSON_BOOL && json_bool(order);
    s->zero_offset = format != NULL && strcasecmp(format, "gptq_v2") == 0 ? 0 : 1;
    r->q->head = json_type(head) == JSON_BOOL && json_bool(head);
    return read_patterns(r, o, "modules_to_not_convert", &r->q->ignored);
}

static int read_fp8(const struct reader *r, const struct json *o)
{
    static const char *const known[] = {"quant_method",
                                        "fmt",
                                        "activation_scheme",
                                        "weight_block_size",
                                        "modules_to_not_convert",
                                        "ignored_layers",
                                        "is_checkpoint_fp8_serialized",
                                        "dequantize",
                                        NULL};
    struct quant_scheme *s = add_scheme(r);
    const struct json *block = json_get(o, "weight_block_size");
    r->q->match = QUANT_MATCH_PREFIX;
    s->symmetric = 1;
    int rc = check_keys(r, o, known);
    rc = rc < 0 ? rc
                : expect_word(r, o, "fmt", WORDS("e4m3", "float8_e4m3fn", "e5m2", "float8_e5m2"));
    rc = rc < 0 ? rc : expect_word(r, o, "activation_scheme", WORDS("dynamic", "static"));
    rc = rc < 0 ? rc : expect_bool(r, o, "is_checkpoint_fp8_serialized", 1);
    rc = rc < 0 ? rc : expect_nothing(r, o, "dequantize");
    if (rc < 0) {
        return rc;
    }
    if (json_type(block) == JSON_NULL) {
        s->layout = QUANT_CT_FP8;
        s->per_tensor = 1;
    } else if (json_type(block) == JSON_ARRAY && json_length(block) == 2 &&
               json_type(json_at(block, 0)) == JSON_INT &&
               json_type(json_at(block, 1)) == JSON_INT && json_int(json_at(block, 0)) == 128 &&
               json_int(json_at(block, 1)) == 128) {
        s->layout = QUANT_FP8_BLOCK;
        s->group = 128;
    } else {
        return refuse(r, "weight_block_size", "[128, 128] or null", block);
    }
    const char *fmt = string_of(json_get(o, "fmt")),
               *acts = string_of(json_get(o, "activation_scheme"));
    s->fixed = acts != NULL && strcasecmp(acts, "static") == 0;
    if (s->fixed && s->layout == QUANT_FP8_BLOCK) {
        return refuse(r, "activation_scheme", "\"dynamic\" with weight_block_size",
                      json_get(o, "activation_scheme"));
    }
    s->act = fmt != NULL && strcasestr(fmt, "e5m2") != NULL ? QUANT_ACT_E5M2 : QUANT_ACT_FP8;
    const char *field =
        json_type(json_get(o, "ignored_layers")) != JSON_NULL ? "ignored_layers" : NULL;
    return read_patterns(r, o, field != NULL ? field : "modules_to_not_convert", &r->q->ignored);
}

/* ---- compressed-tensors ---- */

static int read_ct_acts(const struct reader *r, const struct json *group, int weights_float,
                        struct quant_scheme *s)
{
    const struct json *a = json_get(group, "input_activations");
    s->act = QUANT_ACT_16;
    if (is_nothing(a)) {
        return 0;
    }
    char key[256];
    snprintf(key, sizeof key, "%s.input_activations", r->key);
    const struct reader inner = {r->q, r->path, key, r->e};
    if (json_type(a) != JSON_OBJECT) {
        return refuse(r, "input_activations", "an object or null", a);
    }
    int rc = expect_int(&inner, a, "num_bits", NULL, 8);
    rc = rc < 0 ? rc : expect_word(&inner, a, "type", WORDS(weights_float ? "float" : "int"));
    rc = rc < 0 ? rc : expect_bool(&inner, a, "symmetric", 1);
    const struct json *dynamic = json_get(a, "dynamic");
    if (rc == 0 && !is_nothing(dynamic) && json_type(dynamic) != JSON_BOOL) {
        rc = refuse(&inner, "dynamic", "true (scales per token) or false (one in the file)",
                    dynamic);
    }
    s->fixed = is_nothing(dynamic);
    rc = rc < 0 ? rc
                : expect_word(&inner, a, "strategy", s->fixed ? WORDS("tensor") : WORDS("token"));
    if (rc == 0 && s->fixed && s->layout == QUANT_WINT2) {
        rc = refuse(&inner, "dynamic", "true with format wint2", dynamic);
    }
    s->act = weights_float ? QUANT_ACT_FP8 : QUANT_ACT_INT8;
    return rc;
}

static int read_ct_weights(const struct reader *r, const struct json *w, const char *format,
                           struct quant_scheme *s, int *is_float)
{
    static const char *const known[] = {"num_bits",    "type",
                                        "symmetric",   "strategy",
                                        "group_size",  "dynamic",
                                        "actorder",    "block_structure",
                                        "observer",    "observer_kwargs",
                                        "scale_dtype", "zp_dtype",
                                        NULL};
    const struct json *sym = json_get(w, "symmetric");
    const char *type = string_of(json_get(w, "type")),
               *strategy = string_of(json_get(w, "strategy"));
    int rc = check_keys(r, w, known);
    rc = rc < 0 ? rc : expect_word(r, w, "type", WORDS("int", "float"));
    rc = rc < 0 ? rc : expect_bool(r, w, "dynamic", 0);
    rc = rc < 0 ? rc : expect_nothing(r, w, "block_structure");
    rc = rc < 0 ? rc : expect_nothing(r, w, "scale_dtype");
    rc = rc < 0 ? rc : expect_nothing(r, w, "zp_dtype");
    if (rc < 0) {
        return rc;
    }
    *is_float = type != NULL && strcasecmp(type, "float") == 0;
    s->symmetric = json_type(sym) != JSON_BOOL || json_bool(sym);
    int packed = strcmp(format, "pack-quantized") == 0;
    if (strcmp(format, "wint2") == 0) {
        s->layout = QUANT_WINT2;
        s->group = 64;
        rc = expect_word(r, w, "type", WORDS("int"));
        rc = rc < 0 ? rc : expect_int(r, w, "num_bits", NULL, 2);
        rc = rc < 0 ? rc : expect_int(r, w, "group_size", NULL, 64);
        rc = rc < 0 ? rc : expect_bool(r, w, "symmetric", 1);
        rc = rc < 0 ? rc : expect_nothing(r, w, "actorder");
        return rc < 0 ? rc : expect_word(r, w, "strategy", WORDS("group"));
    }
    rc = packed ? read_bits(r, w, "num_bits", &s->bits) : expect_int(r, w, "num_bits", NULL, 8);
    if (rc < 0) {
        return rc;
    }
    if (packed ? *is_float
               : (strcmp(format, "int-quantized") == 0 && *is_float) ||
                     (strcmp(format, "float-quantized") == 0 && !*is_float)) {
        return refuse(r, "type",
                      packed || !*is_float ? "\"int\"" : "\"int\" (format int-quantized)",
                      json_get(w, "type"));
    }
    if (packed) {
        s->layout = QUANT_CT_PACKED;
        const struct json *order = json_get(w, "actorder");
        rc = is_nothing(order)
                 ? 0
                 : expect_word(r, w, "actorder", WORDS("group", "dynamic", "weight", "static"));
        const char *o = string_of(order);
        s->ordered = o != NULL && (strcasecmp(o, "group") == 0 || strcasecmp(o, "dynamic") == 0);
        if (rc == 0 && strategy != NULL && strcasecmp(strategy, "channel") == 0) {
            return expect_nothing(r, w, "group_size");
        }
        rc = rc < 0 ? rc : expect_word(r, w, "strategy", WORDS("group", "channel"));
        return rc < 0 ? rc : read_group(r, w, "group_size", NULL, &s->group);
    }
    s->layout = *is_float ? QUANT_CT_FP8 : QUANT_CT_INT8;
    rc = expect_nothing(r, w, "actorder");
    rc = rc < 0 ? rc : expect_bool(r, w, "symmetric", 1);
    rc = rc < 0 ? rc : expect_nothing(r, w, "group_size");
    s->per_tensor = strategy != NULL && strcasecmp(strategy, "tensor") == 0;
    return rc < 0 ? rc
                  : expect_word(r, w, "strategy",
                                *is_float ? WORDS("channel", "tensor") : WORDS("channel"));
}

static int read_ct_group(const struct reader *outer, const char *name, const struct json *g,
                         const struct json *top_format)
{
    static const char *const known[] = {
        "targets", "weights", "input_activations", "output_activations", "format", NULL};
    static const char *const formats[] = {"pack-quantized",  "int-quantized", "float-quantized",
                                          "naive-quantized", "wint2",         NULL};
    char key[160], weights_key[200];
    snprintf(key, sizeof key, "%s.config_groups.%.64s", outer->key, name);
    snprintf(weights_key, sizeof weights_key, "%s.weights", key);
    const struct reader r = {outer->q, outer->path, key, outer->e};
    const struct reader wr = {outer->q, outer->path, weights_key, outer->e};
    struct quant_config *q = r.q;
    if (json_type(g) != JSON_OBJECT || json_type(json_get(g, "weights")) != JSON_OBJECT) {
        return refuse(outer, "config_groups", "groups with weights", g);
    }
    if (q->n_schemes == QUANT_MAX_SCHEMES) {
        return err_set(r.e, ERR_UNSUPPORTED,
                       "%s: unsupported %s.config_groups: more than %d groups", r.path, outer->key,
                       QUANT_MAX_SCHEMES);
    }
    const struct json *own = json_get(g, "format");
    const char *format = string_of(json_type(own) == JSON_NULL ? top_format : own);
    int rc = check_keys(&r, g, known);
    rc = rc < 0 ? rc : expect_nothing(&r, g, "output_activations");
    int known_format = 0;
    for (int i = 0; formats[i] != NULL && format != NULL; i++) {
        known_format |= strcmp(format, formats[i]) == 0;
    }
    if (rc == 0 && !known_format) {
        rc = refuse(json_type(own) == JSON_NULL ? outer : &r, "format",
                    "\"pack-quantized\", \"int-quantized\", \"float-quantized\", "
                    "\"naive-quantized\" or \"wint2\"",
                    json_type(own) == JSON_NULL ? top_format : own);
    }
    if (rc < 0) {
        return rc;
    }
    int i = q->n_schemes, is_float = 0;
    struct quant_scheme *s = add_scheme(&r);
    rc = read_ct_weights(&wr, json_get(g, "weights"), format, s, &is_float);
    rc = rc < 0 ? rc : read_ct_acts(&r, g, is_float, s);
    rc = rc < 0 ? rc : read_patterns(&r, g, "targets", &q->targets[i]);
    if (rc == 0 && q->targets[i].n == 0) {
        rc = refuse(&r, "targets", "[\"Linear\"] or layer names", json_get(g, "targets"));
    }
    return rc;
}

static int read_compressed(const struct reader *r, const struct json *o)
{
    static const char *const known[] = {"quant_method",
                                        "format",
                                        "config_groups",
                                        "ignore",
                                        "quantization_status",
                                        "kv_cache_scheme",
                                        "sparsity_config",
                                        "transform_config",
                                        "global_compression_ratio",
                                        "version",
                                        NULL};
    const struct json *groups = json_get(o, "config_groups"), *g;
    const struct json *sparsity = json_get(o, "sparsity_config");
    r->q->match = QUANT_MATCH_EXACT;
    r->q->head = 1; /* a Linear like others, unless it is ignored */
    int rc = check_keys(r, o, known);
    rc = rc < 0 ? rc : expect_word(r, o, "quantization_status", WORDS("compressed"));
    rc = rc < 0 ? rc : expect_nothing(r, o, "kv_cache_scheme");
    rc = rc < 0 ? rc : expect_nothing(r, o, "transform_config");
    if (rc == 0 && !is_nothing(sparsity)) {
        const char *format = string_of(json_get(sparsity, "format"));
        rc = format != NULL && strcmp(format, "dense") == 0
                 ? 0
                 : refuse(r, "sparsity_config", "null or format \"dense\"", sparsity);
    }
    if (rc == 0 && (json_type(groups) != JSON_OBJECT || json_length(groups) == 0)) {
        rc = refuse(r, "config_groups", "an object of groups", groups);
    }
    size_t it = 0, n;
    const char *name;
    while (rc == 0 && json_next(groups, &it, &name, &n, &g)) {
        rc = read_ct_group(r, name, g, json_get(o, "format"));
    }
    return rc < 0 ? rc : read_patterns(r, o, "ignore", &r->q->ignored);
}

/* FastDeploy: the file is bf16, and the server quantizes at load. What is stored quantized there is
 * permuted for one GPU, or is a matter of MoE experts. */
static int read_fastdeploy(const struct reader *r, const struct json *o)
{
    static const char *const known[] = {
        "quantization", "dense_quant_type", "moe_quant_type",      "kv_cache_quant_type",
        "is_quantized", "is_permuted",      "hadamard_block_size", NULL};
    const struct json *dense = json_get(o, "dense_quant_type");
    const struct json *name = json_type(dense) == JSON_NULL ? json_get(o, "quantization") : dense;
    const char *field = json_type(dense) == JSON_NULL ? "quantization" : "dense_quant_type";
    const char *s = string_of(name);
    int rc = expect_bool(r, o, "is_quantized", 0);
    rc = rc < 0 ? rc : expect_bool(r, o, "is_permuted", 0);
    rc = rc < 0 ? rc : expect_nothing(r, o, "kv_cache_quant_type");
    rc = rc < 0 ? rc : check_keys(r, o, known);
    if (rc < 0) {
        return rc;
    }
    if (s != NULL && (strcmp(s, "wint8") == 0 || strcmp(s, "wint4") == 0)) {
        r->q->method = QUANT_WINT8; /* wint4 is for experts only: dense layers are wint8 there */
    } else if (s != NULL && strcmp(s, "block_wise_fp8") == 0) {
        r->q->method = QUANT_BLOCK_FP8;
    } else {
        return refuse(r, field, "\"wint8\", \"wint4\" or \"block_wise_fp8\"", name);
    }
    return 0;
}

int quant_config_read(struct quant_config *q, const struct json *v, const char *path,
                      const char *key, struct err *e)
{
    memset(q, 0, sizeof *q);
    arena_init(&q->arena, 0);
    const struct reader r = {q, path, key, e};
    if (json_type(v) == JSON_NULL) {
        return 0;
    }
    if (json_type(v) != JSON_OBJECT) {
        return err_set(e, ERR_FORMAT, "%s: %s must be an object or null", path, key);
    }
    const struct json *method = json_get(v, "quant_method");
    const char *name = string_of(method);
    int rc;
    if (name == NULL && json_type(method) == JSON_NULL &&
        json_type(json_get(v, "quantization")) != JSON_NULL) {
        rc = read_fastdeploy(&r, v);
    } else if (name != NULL && strcmp(name, "awq") == 0) {
        q->method = QUANT_AWQ;
        rc = read_awq(&r, v);
    } else if (name != NULL && strcmp(name, "gptq") == 0) {
        q->method = QUANT_GPTQ;
        rc = read_gptq(&r, v);
    } else if (name != NULL && strcmp(name, "compressed-tensors") == 0) {
        q->method = QUANT_COMPRESSED;
        rc = read_compressed(&r, v);
    } else if (name != NULL && strcmp(name, "fp8") == 0) {
        q->method = QUANT_FP8;
        rc = read_fp8(&r, v);
    } else {
        rc = refuse(&r, "quant_method", "\"awq\", \"gptq\", \"compressed-tensors\" or \"fp8\"",
                    method);
    }
    if (rc < 0) {
        quant_config_fini(q);
    }
    return rc;
}

void quant_config_fini(struct quant_config *q)
{
    arena_fini(&q->arena);
    memset(q, 0, sizeof *q);
}

/* ---- which layer has which scheme ---- */

static int regex_matches(const char *pattern, const char *name)
{
    regex_t re;
    regmatch_t at;
    if (regcomp(&re, pattern, REG_EXTENDED) != 0) {
        return 0;
    }
    int found = regexec(&re, name, 1, &at, 0) == 0 && at.rm_so == 0;
    regfree(&re);
    return found;
}

static int name_matches(const char *pattern, const char *name, enum quant_match match)
{
    size_t n = strlen(pattern), len = strlen(name);
    if (strncmp(pattern, "re:", 3) == 0) {
        return regex_matches(pattern + 3, name);
    }
    if (match == QUANT_MATCH_SUBSTRING) {
        return strstr(name, pattern) != NULL;
    }
    if (strcmp(pattern, name) == 0) {
        return 1;
    }
    return match == QUANT_MATCH_PREFIX &&
           ((len > n && strncmp(name, pattern, n) == 0 && name[n] == '.') ||
            (len > n && strcmp(name + len - n, pattern) == 0 && name[len - n - 1] == '.'));
}

const struct quant_scheme *quant_config_for(const struct quant_config *q, const char *layer)
{
    const int embedding = strcmp(layer, QUANT_EMBEDDING) == 0;
    if (q->n_schemes == 0 || (strcmp(layer, "lm_head") == 0 && !q->head) ||
        (embedding && q->method != QUANT_COMPRESSED)) {
        return NULL;
    }
    for (int i = 0; i < q->ignored.n; i++) {
        if (name_matches(q->ignored.text[i], layer, q->match)) {
            return NULL;
        }
    }
    int fallback = -1; /* a named target goes before the class of all linear layers */
    for (int i = 0; i < q->n_schemes; i++) {
        if (q->targets[i].n == 0) {
            return &q->schemes[i];
        }
        for (int j = 0; j < q->targets[i].n; j++) {
            const char *t = q->targets[i].text[j];
            if (strcmp(t, embedding ? "Embedding" : "Linear") == 0) {
                fallback = fallback < 0 ? i : fallback;
            } else if (name_matches(t, layer, QUANT_MATCH_EXACT)) {
                return &q->schemes[i];
            }
        }
    }
    return fallback < 0 ? NULL : &q->schemes[fallback];
}

int quant_config_select(struct quant_config *q, const char *asked, const char *path, struct err *e)
{
    static const struct {
        const char *name;
        enum quant_method method;
    } online[] = {{"int8", QUANT_WINT8},    {"wint8", QUANT_WINT8},
                  {"fp8", QUANT_BLOCK_FP8}, {"block_wise_fp8", QUANT_BLOCK_FP8},
                  {"int4", QUANT_INT4},     {"awq", QUANT_INT4_128}};
    if (asked == NULL || strcasecmp(asked, "none") == 0 || strcasecmp(asked, "auto") == 0 ||
        strcasecmp(asked, method_names[q->method]) == 0) {
        return 0;
    }
    for (size_t i = 0; i < sizeof online / sizeof online[0]; i++) {
        if (strcasecmp(asked, online[i].name) == 0 &&
            (q->method == QUANT_NONE || q->method == QUANT_GGUF || q->method == online[i].method)) {
            q->method = online[i].method;
            return 0;
        }
    }
    return err_set(e, ERR_INVALID,
                   "--quantization: %s: expected %s (what the file holds), found %s", path,
                   method_names[q->method], asked);
}
