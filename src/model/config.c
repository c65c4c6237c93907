/* SPDX-License-Identifier: Apache-2.0 */
/* Model configuration. What the forward pass can't honour is refused by name instead of being
 * ignored: another architecture, scaled RoPE, biases, another activation.
 * Every number is bounded before it enters arithmetic, so that products of sizes fit an int64
 * anywhere later. */
#include "model/config.h"

#include "base/buf.h"
#include "base/json.h"
#include "model/safetensors.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define SUPPORTED_ARCHITECTURES "Ernie4_5ForCausalLM, Ernie4_5_ForCausalLM"

struct reader {
    const char *path;
    const struct json *root;
    struct err *e;
};

static int read_file(struct json **doc, char *path, size_t path_bytes, const char *dir,
                     const char *name, struct err *e)
{
    int n = snprintf(path, path_bytes, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= path_bytes) {
        return err_set(e, ERR_INVALID, "%s: path is too long", dir);
    }
    if (buf_file_absent(path)) {
        return err_set(e, ERR_NOT_FOUND, "%s: no such file", path);
    }
    if (safetensors_is_lfs_pointer(path)) {
        return err_set(e, ERR_FORMAT,
                       "%s: is a Git LFS pointer, run git lfs pull in the model directory", path);
    }
    int rc = json_parse_file(doc, path, CONFIG_MAX_FILE_BYTES, e);
    if (rc < 0) {
        rc = rc == ERR_NOT_FOUND ? ERR_IO : rc; /* there, but a link that leads nowhere */
        if (e != NULL && strstr(e->text, path) == NULL) {
            err_prefix(e, "%s", path);
        }
        return rc;
    }
    if (json_type(*doc) != JSON_OBJECT) {
        json_free(*doc);
        *doc = NULL;
        return err_set(e, ERR_FORMAT, "%s: expected a JSON object", path);
    }
    return 0;
}

/* Whole number in lo..hi; `fallback` < 0 means that the field is required. A null counts as absent.
 */
static int read_int(const struct reader *r, const char *field, int64_t lo, int64_t hi,
                    int64_t fallback, int *out)
{
    const struct json *v = json_get(r->root, field);
    if (json_type(v) == JSON_NULL) {
        if (fallback < 0) {
            return err_set(r->e, ERR_FORMAT, "%s: %s is missing", r->path, field);
        }
        *out = (int)fallback;
        return 0;
    }
    int64_t x;
    if (json_type(v) == JSON_INT) {
        x = json_int(v);
    } else if (json_type(v) == JSON_DOUBLE && json_double(v) >= -1e15 && json_double(v) <= 1e15 &&
               json_double(v) == (double)(int64_t)json_double(v)) {
        x = (int64_t)json_double(v);
    } else {
        return err_set(r->e, ERR_FORMAT, "%s: %s must be a whole number", r->path, field);
    }
    if (x < lo || x > hi) {
        return err_set(r->e, ERR_FORMAT, "%s: %s is %lld, expected %lld to %lld", r->path, field,
                       (long long)x, (long long)lo, (long long)hi);
    }
    *out = (int)x;
    return 0;
}

static int read_double(const struct reader *r, const struct json *object, const char *field,
                       double lo, double hi, double *out)
{
    const struct json *v = json_get(object, field);
    if (json_type(v) == JSON_NULL) {
        return 0;
    }
    if (json_type(v) != JSON_INT && json_type(v) != JSON_DOUBLE) {
        return err_set(r->e, ERR_FORMAT, "%s: %s must be a number", r->path, field);
    }
    double x = json_double(v);
    if (!(x >= lo && x <= hi)) {
        return err_set(r->e, ERR_FORMAT, "%s: %s is %g, expected %g to %g", r->path, field, x, lo,
                       hi);
    }
    *out = x;
    return 0;
}

/* 1 true, 0 false, -1 absent or null, or an error code below -1. */
static int read_bool(const struct reader *r, const char *field)
{
    const struct json *v = json_get(r->root, field);
    if (json_type(v) == JSON_NULL) {
        return -1;
    }
    if (json_type(v) != JSON_BOOL) {
        return err_set(r->e, ERR_FORMAT, "%s: %s must be true or false", r->path, field);
    }
    return json_bool(v) != 0;
}

static int read_token_ids(const struct reader *r, const char *field, int vocab_size, int ids[8],
                          int *n_ids)
{
    const struct json *v = json_get(r->root, field);
    *n_ids = 0;
    if (json_type(v) == JSON_NULL) {
        return 0;
    }
    size_t n = json_type(v) == JSON_ARRAY ? json_length(v) : 1;
    if (n > 8) {
        return err_set(r->e, ERR_FORMAT, "%s: %s lists %zu ids, expected at most 8", r->path, field,
                       n);
    }
    for (size_t i = 0; i < n; i++) {
        const struct json *x = json_type(v) == JSON_ARRAY ? json_at(v, i) : v;
        if (json_type(x) != JSON_INT || json_int(x) < 0 || json_int(x) >= vocab_size) {
            return err_set(r->e, ERR_FORMAT,
                           "%s: %s must be a token id below vocab_size %d, or a list of them",
                           r->path, field, vocab_size);
        }
        ids[(*n_ids)++] = (int)json_int(x);
    }
    return 0;
}

static int check_architecture(const struct reader *r, struct model_config *c)
{
    const struct json *list = json_get(r->root, "architectures");
    const struct json *first = json_at(list, 0);
    const char *name = json_type(list) == JSON_ARRAY && json_type(first) == JSON_STRING
                           ? json_string(first, NULL)
                           : NULL;
    const struct json *type = json_get(r->root, "model_type");
    const char *type_name = json_type(type) == JSON_STRING ? json_string(type, NULL) : NULL;
    if (name == NULL && json_type(list) != JSON_NULL) {
        return err_set(r->e, ERR_FORMAT, "%s: architectures must be a list that begins with a name",
                       r->path);
    }
    if (name == NULL && type_name == NULL) {
        return err_set(r->e, ERR_FORMAT, "%s: architectures and model_type are missing", r->path);
    }
    if (name == NULL) {
        name = strcmp(type_name, "ernie4_5") == 0 ? "Ernie4_5ForCausalLM" : type_name;
    }
    if (strcmp(name, "Ernie4_5ForCausalLM") != 0 && strcmp(name, "Ernie4_5_ForCausalLM") != 0) {
        return err_set(r->e, ERR_UNSUPPORTED,
                       "%s: unsupported architecture \"%s\"; supported: " SUPPORTED_ARCHITECTURES,
                       r->path, name);
    }
    if (type_name != NULL && strcmp(type_name, "ernie4_5") != 0) {
        return err_set(r->e, ERR_UNSUPPORTED,
                       "%s: unsupported model_type \"%s\"; supported: ernie4_5", r->path,
                       type_name);
    }
    snprintf(c->architecture, sizeof c->architecture, "%s", name);
    return 0;
}

static int check_rope(const struct reader *r, const char *field, struct model_config *c)
{
    const struct json *v = json_get(r->root, field);
    if (json_type(v) == JSON_NULL) {
        return 0;
    }
    if (json_type(v) != JSON_OBJECT) {
        return err_set(r->e, ERR_FORMAT, "%s: %s must be an object or null", r->path, field);
    }
    static const char *const type_keys[] = {"rope_type", "type"};
    for (int i = 0; i < 2; i++) {
        const struct json *type = json_get(v, type_keys[i]);
        if (json_type(type) == JSON_NULL) {
            continue;
        }
        const char *s = json_type(type) == JSON_STRING ? json_string(type, NULL) : "(no string)";
        if (strcmp(s, "default") != 0) {
            return err_set(r->e, ERR_UNSUPPORTED,
                           "%s: unsupported %s type \"%s\"; supported: default", r->path, field, s);
        }
    }
    if (json_type(json_get(v, "mrope_section")) != JSON_NULL) {
        return err_set(r->e, ERR_UNSUPPORTED, "%s: unsupported %s.mrope_section in a text model",
                       r->path, field);
    }
    return read_double(r, v, "rope_theta", 1.0001, 1e12, &c->rope_theta);
}

/* Fields that change the computation in ways that are not implemented. */
static int check_refused(const struct reader *r)
{
    const struct json *act = json_get(r->root, "hidden_act");
    if (json_type(act) != JSON_NULL &&
        (json_type(act) != JSON_STRING || strcmp(json_string(act, NULL), "silu") != 0)) {
        return err_set(r->e, ERR_UNSUPPORTED, "%s: unsupported hidden_act \"%s\"; supported: silu",
                       r->path,
                       json_type(act) == JSON_STRING ? json_string(act, NULL) : "(no string)");
    }
    int bias = read_bool(r, "use_bias");
    if (bias < -1) {
        return bias;
    }
    if (bias == 1) {
        return err_set(r->e, ERR_UNSUPPORTED, "%s: unsupported use_bias true; supported: false",
                       r->path);
    }
    const struct json *experts = json_get(r->root, "moe_num_experts");
    if (json_type(experts) == JSON_ARRAY ||
        (json_type(experts) == JSON_INT && json_int(experts) > 0)) {
        return err_set(r->e, ERR_UNSUPPORTED, "%s: unsupported moe_num_experts in a dense model",
                       r->path);
    }
    return 0;
}

static int read_stored_dtype(const struct reader *r, struct model_config *c)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"bfloat16", DTYPE_BF16},
                 {"float16", DTYPE_F16},
                 {"half", DTYPE_F16},
                 {"float32", DTYPE_F32},
                 {"float", DTYPE_F32}};
    c->stored = DTYPE_BF16;
    for (int i = 0; i < 2; i++) {
        const struct json *v = json_get(r->root, keys[i]);
        if (json_type(v) == JSON_NULL) {
            continue;
        }
        const char *s = json_type(v) == JSON_STRING ? json_string(v, NULL) : "(no string)";
        s = strncmp(s, "torch.", 6) == 0 ? s + 6 : s;
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++) {
            if (strcmp(s, names[j].name) == 0) {
                c->stored = names[j].dtype;
                return 0;
            }
        }
        return err_set(r->e, ERR_UNSUPPORTED,
                       "%s: unsupported %s \"%s\"; supported: bfloat16, float16, float32", r->path,
                       keys[i], s);
    }
    return 0;
}

int config_check(const struct model_config *c, const char *path, struct err *e)
{
    if (c->head_dim % 16 != 0 || c->head_dim > MAX_HEAD_DIM || c->head_dim == 0) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: unsupported head_dim %d; supported: multiples of 16 up to %d", path,
                       c->head_dim, MAX_HEAD_DIM);
    }
    if (c->n_heads % c->n_kv_heads != 0 || c->n_heads / c->n_kv_heads > ATTN_MAX_Q) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: num_attention_heads %d must be a multiple of num_key_value_heads %d, "
                       "at most %d times it",
                       path, c->n_heads, c->n_kv_heads, ATTN_MAX_Q);
    }
    if (c->hidden_size % 2 != 0 || c->intermediate_size % 2 != 0) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: hidden_size %d and intermediate_size %d must be even", path,
                       c->hidden_size, c->intermediate_size);
    }
    return 0;
}

static int read_sizes(const struct reader *r, struct model_config *c)
{
    int rc;
    if ((rc = read_int(r, "vocab_size", 1, MAX_VOCAB, -1, &c->vocab_size)) < 0 ||
        (rc = read_int(r, "hidden_size", 2, MAX_WIDTH, -1, &c->hidden_size)) < 0 ||
        (rc = read_int(r, "intermediate_size", 2, MAX_WIDTH, -1, &c->intermediate_size)) < 0 ||
        (rc = read_int(r, "num_hidden_layers", 1, MAX_LAYERS, -1, &c->n_layers)) < 0 ||
        (rc = read_int(r, "num_attention_heads", 1, MAX_HEADS, -1, &c->n_heads)) < 0 ||
        (rc = read_int(r, "num_key_value_heads", 1, MAX_HEADS, c->n_heads, &c->n_kv_heads)) < 0 ||
        (rc = read_int(r, "max_position_embeddings", 1, MAX_POSITIONS, 131072,
                       &c->max_position_embeddings)) < 0) {
        return rc;
    }
    int has_head_dim = json_type(json_get(r->root, "head_dim")) != JSON_NULL;
    if (!has_head_dim && c->hidden_size % c->n_heads != 0) {
        return err_set(r->e, ERR_FORMAT,
                       "%s: head_dim is missing and hidden_size %d is no multiple of "
                       "num_attention_heads %d",
                       r->path, c->hidden_size, c->n_heads);
    }
    if ((rc = read_int(r, "head_dim", 1, MAX_WIDTH, c->hidden_size / c->n_heads, &c->head_dim)) <
        0) {
        return rc;
    }
    return config_check(c, r->path, r->e);
}

/* One of the spellings of the quantization object; two that say something contradict each other. */
static int read_quantization(const struct reader *r, struct quant_config *q)
{
    static const char *const keys[] = {"quantization_config", "compression_config", "quantization"};
    const struct json *found = NULL;
    const char *key = keys[0];
    for (int i = 0; i < 3; i++) {
        const struct json *v = json_get(r->root, keys[i]);
        if (json_type(v) == JSON_NULL) {
            continue;
        }
        if (found != NULL) {
            return err_set(r->e, ERR_UNSUPPORTED, "%s: both %s and %s are there", r->path, key,
                           keys[i]);
        }
        found = v;
        key = keys[i];
    }
    return quant_config_read(q, found, r->path, key, r->e);
}

static int read_fields(const struct reader *r, struct model_config *c, int *tie_stated)
{
    int rc = check_architecture(r, c);
    rc = rc < 0 ? rc : check_refused(r);
    rc = rc < 0 ? rc : read_sizes(r, c);
    rc = rc < 0 ? rc : read_stored_dtype(r, c);
    double eps = 1e-5;
    c->rope_theta = 500000.0;
    c->compression_ratio = 1.0;
    rc = rc < 0 ? rc : read_double(r, r->root, "rms_norm_eps", 1e-12, 1.0, &eps);
    rc = rc < 0 ? rc : read_double(r, r->root, "rope_theta", 1.0001, 1e12, &c->rope_theta);
    rc = rc < 0 ? rc : check_rope(r, "rope_parameters", c);
    rc = rc < 0 ? rc : check_rope(r, "rope_scaling", c);
    rc = rc < 0 ? rc
                : read_double(r, r->root, "compression_ratio", 1e-6, 1e6, &c->compression_ratio);
    if (rc < 0) {
        return rc;
    }
    c->rms_norm_eps = (float)eps;
    *tie_stated = read_bool(r, "tie_word_embeddings");
    if (*tie_stated < -1) {
        return *tie_stated;
    }
    /* Ids of ERNIE 4.5 where the file is silent; a model with a smaller vocabulary still has them.
     */
    const int64_t top = c->vocab_size - 1;
    int ids[8], n;
    if ((rc = read_token_ids(r, "bos_token_id", c->vocab_size, ids, &n)) < 0) {
        return rc;
    }
    c->bos_id = n > 0 ? ids[0] : (int)(top < 1 ? top : 1);
    if ((rc = read_token_ids(r, "eos_token_id", c->vocab_size, c->eos_ids, &c->n_eos_ids)) < 0) {
        return rc;
    }
    if (c->n_eos_ids == 0) {
        c->eos_ids[0] = (int)(top < 2 ? top : 2);
        c->n_eos_ids = 1;
    }
    return read_int(r, "pad_token_id", -1, top, 0, &c->pad_id);
}

int config_read(struct model_config *c, struct quant_config *q, int *tie_stated, const char *dir,
                struct err *e)
{
    char path[PATH_MAX];
    struct json *doc = NULL;
    memset(c, 0, sizeof *c);
    memset(q, 0, sizeof *q);
    *tie_stated = -1;
    int rc = read_file(&doc, path, sizeof path, dir, "config.json", e);
    if (rc < 0) {
        return rc;
    }
    struct reader r = {path, doc, e};
    rc = read_fields(&r, c, tie_stated);
    rc = rc < 0 ? rc : read_quantization(&r, q);
    json_free(doc);
    return rc;
}

int config_read_generation(struct model_generation_config *g, const char *dir, struct err *e)
{
    char path[PATH_MAX];
    struct json *doc = NULL;
    memset(g, 0, sizeof *g);
    int rc = read_file(&doc, path, sizeof path, dir, "generation_config.json", e);
    if (rc == ERR_NOT_FOUND) {
        return 0;
    }
    if (rc < 0) {
        return rc;
    }
    struct reader r = {path, doc, e};
    const struct {
        const char *field;
        int *has;
        double *value;
        double lo, hi;
    } numbers[] = {
        {"temperature", &g->has_temperature, &g->temperature, 0, 1e6},
        {"top_p", &g->has_top_p, &g->top_p, 0, 1},
        {"min_p", &g->has_min_p, &g->min_p, 0, 1},
        {"repetition_penalty", &g->has_repetition_penalty, &g->repetition_penalty, 1e-6, 1e6},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && rc == 0; i++) {
        *numbers[i].has = json_type(json_get(doc, numbers[i].field)) != JSON_NULL;
        rc = read_double(&r, doc, numbers[i].field, numbers[i].lo, numbers[i].hi, numbers[i].value);
    }
    g->has_top_k = json_type(json_get(doc, "top_k")) != JSON_NULL;
    rc = rc < 0 ? rc : read_int(&r, "top_k", -1, INT_MAX, 0, &g->top_k);
    g->has_max_new_tokens = json_type(json_get(doc, "max_new_tokens")) != JSON_NULL;
    rc = rc < 0 ? rc : read_int(&r, "max_new_tokens", 1, INT_MAX, 1, &g->max_new_tokens);
    rc = rc < 0 ? rc : read_token_ids(&r, "eos_token_id", MAX_VOCAB, g->eos_ids, &g->n_eos_ids);
    json_free(doc);
    return rc < 0 ? rc : 0;
}
