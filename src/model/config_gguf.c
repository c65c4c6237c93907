/* SPDX-License-Identifier: Apache-2.0 */
/* Model configuration from the fields of a GGUF file: "ernie4_5.*", and the special ids of its
 * tokenizer section. Fields that change the computation in ways that aren't implemented are refused
 * by name. */
#include "model/config.h"

#include "model/gguf.h"
#include <stdio.h>
#include <string.h>

#define ARCH "ernie4_5"

struct reader {
    const struct gguf *g;
    struct err *e;
};

/* `fallback` < lo: the field is required. */
static int read_int(const struct reader *r, const char *key, int64_t lo, int64_t hi,
                    int64_t fallback, int *out)
{
    int64_t v = fallback;
    int rc = gguf_int(r->g, key, &v, r->e);
    if (rc < 0) {
        return rc;
    }
    if (rc == 0 && fallback < lo) {
        return err_set(r->e, ERR_FORMAT, "%s: field %s is missing", gguf_path(r->g), key);
    }
    if (v < lo || v > hi) {
        return err_set(r->e, ERR_FORMAT, "%s: field %s: %lld, expected %lld to %lld",
                       gguf_path(r->g), key, (long long)v, (long long)lo, (long long)hi);
    }
    *out = (int)v;
    return 0;
}

static int read_float(const struct reader *r, const char *key, double lo, double hi, double *out)
{
    int rc = gguf_float(r->g, key, out, r->e);
    if (rc == 0) {
        return err_set(r->e, ERR_FORMAT, "%s: field %s is missing", gguf_path(r->g), key);
    }
    if (rc > 0 && !(*out >= lo && *out <= hi)) {
        return err_set(r->e, ERR_FORMAT, "%s: field %s: %g, expected %g to %g", gguf_path(r->g),
                       key, *out, lo, hi);
    }
    return rc < 0 ? rc : 0;
}

/* An optional field that must have this value when it is there. */
static int expect_int(const struct reader *r, const char *key, int64_t value)
{
    int64_t v = value;
    int rc = gguf_int(r->g, key, &v, r->e);
    return rc < 0       ? rc
           : v == value ? 0
                        : err_set(r->e, ERR_UNSUPPORTED, "%s: field %s: expected %lld, found %lld",
                                  gguf_path(r->g), key, (long long)value, (long long)v);
}

static int check_architecture(const struct reader *r, struct model_config *c)
{
    const char *s;
    size_t n;
    int rc = gguf_string(r->g, "general.architecture", &s, &n, r->e);
    if (rc == 0) {
        return err_set(r->e, ERR_FORMAT, "%s: field general.architecture is missing",
                       gguf_path(r->g));
    }
    if (rc > 0 && (n != strlen(ARCH) || memcmp(s, ARCH, n) != 0)) {
        return err_set(r->e, ERR_UNSUPPORTED,
                       "%s: unsupported general.architecture \"%.*s\"; supported: " ARCH,
                       gguf_path(r->g), (int)(n < 64 ? n : 64), s);
    }
    snprintf(c->architecture, sizeof c->architecture, "%s", ARCH);
    rc = rc < 0 ? rc : expect_int(r, "split.count", 1);
    rc = rc < 0 ? rc : expect_int(r, ARCH ".expert_count", 0);
    if (rc < 0) {
        return rc;
    }
    rc = gguf_string(r->g, ARCH ".rope.scaling.type", &s, &n, r->e);
    if (rc > 0 && (n != 4 || memcmp(s, "none", 4) != 0)) {
        return err_set(r->e, ERR_UNSUPPORTED,
                       "%s: unsupported " ARCH ".rope.scaling.type \"%.*s\"; supported: none",
                       gguf_path(r->g), (int)(n < 64 ? n : 64), s);
    }
    return rc < 0 ? rc : 0;
}

static int read_sizes(const struct reader *r, struct model_config *c)
{
    const struct gguf_value *tokens = gguf_get(r->g, "tokenizer.ggml.tokens");
    int64_t n_tokens =
        tokens != NULL && tokens->is_array && tokens->n <= MAX_VOCAB ? (int64_t)tokens->n : -1;
    int rc;
    if ((rc = read_int(r, ARCH ".vocab_size", 1, MAX_VOCAB, n_tokens, &c->vocab_size)) < 0 ||
        (rc = read_int(r, ARCH ".embedding_length", 2, MAX_WIDTH, -1, &c->hidden_size)) < 0 ||
        (rc = read_int(r, ARCH ".feed_forward_length", 2, MAX_WIDTH, -1, &c->intermediate_size)) <
            0 ||
        (rc = read_int(r, ARCH ".block_count", 1, MAX_LAYERS, -1, &c->n_layers)) < 0 ||
        (rc = read_int(r, ARCH ".attention.head_count", 1, MAX_HEADS, -1, &c->n_heads)) < 0 ||
        (rc = read_int(r, ARCH ".attention.head_count_kv", 1, MAX_HEADS, c->n_heads,
                       &c->n_kv_heads)) < 0 ||
        (rc = read_int(r, ARCH ".context_length", 1, MAX_POSITIONS, -1,
                       &c->max_position_embeddings)) < 0) {
        return rc;
    }
    int derived = c->hidden_size % c->n_heads == 0 ? c->hidden_size / c->n_heads : -1;
    if ((rc = read_int(r, ARCH ".attention.key_length", 1, MAX_WIDTH, derived, &c->head_dim)) < 0 ||
        (rc = expect_int(r, ARCH ".attention.value_length", c->head_dim)) < 0 ||
        (rc = expect_int(r, ARCH ".rope.dimension_count", c->head_dim)) < 0) {
        return rc;
    }
    return config_check(c, gguf_path(r->g), r->e);
}

int config_read_gguf(struct model_config *c, struct quant_config *q, const struct gguf *g,
                     struct err *e)
{
    const struct reader r = {g, e};
    double eps = 0;
    memset(c, 0, sizeof *c);
    memset(q, 0, sizeof *q);
    q->method = QUANT_GGUF;
    c->compression_ratio = 1.0;
    c->stored = DTYPE_BF16;
    int rc = check_architecture(&r, c);
    rc = rc < 0 ? rc : read_sizes(&r, c);
    rc = rc < 0 ? rc : read_float(&r, ARCH ".attention.layer_norm_rms_epsilon", 1e-12, 1.0, &eps);
    rc = rc < 0 ? rc : read_float(&r, ARCH ".rope.freq_base", 1.0001, 1e12, &c->rope_theta);
    if (rc < 0) {
        return rc;
    }
    c->rms_norm_eps = (float)eps;
    const int top = c->vocab_size - 1;
    rc = read_int(&r, "tokenizer.ggml.bos_token_id", 0, top, top < 1 ? top : 1, &c->bos_id);
    rc = rc < 0 ? rc
                : read_int(&r, "tokenizer.ggml.eos_token_id", 0, top, top < 2 ? top : 2,
                           &c->eos_ids[0]);
    c->n_eos_ids = 1;
    static const char *const more[] = {"tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (int i = 0; i < 2 && rc == 0; i++) {
        if (gguf_get(g, more[i]) != NULL) {
            rc = read_int(&r, more[i], 0, top, -1, &c->eos_ids[c->n_eos_ids++]);
        }
    }
    return rc < 0 ? rc : read_int(&r, "tokenizer.ggml.padding_token_id", 0, top, 0, &c->pad_id);
}
