/* SPDX-License-Identifier: Apache-2.0 */
/* struct model: configuration, checkpoint and packed weights of one directory, and what can be said
 * about them. */
#include "model/internal.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "kv/layout.h"
#include "model/pack.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int read_directory(struct model *m, int *tie_stated, struct err *e)
{
    int rc = config_read(&m->config, &m->quant, tie_stated, m->path, e);
    return rc < 0 ? rc : config_read_generation(&m->generation, m->path, e);
}

static int read_gguf_config(struct model *m, struct err *e)
{
    struct gguf *g;
    int rc = gguf_open(&g, m->path, e);
    rc = rc < 0 ? rc : config_read_gguf(&m->config, &m->quant, g, e);
    gguf_close(g);
    return rc;
}

static struct weights_options weights_options(const struct model *m, const struct model_options *o)
{
    return (struct weights_options){.act = m->act,
                                    .kv = m->kv,
                                    .method = m->quant.method,
                                    .head_bits = o->head_bits,
                                    .inputs = o->inputs,
                                    .int4_as_asked = o->int4_as_asked};
}

/* The directory's files in any of the published formats. */
static int open_checkpoint(struct model *m, const struct model_options *o, int tie_stated,
                           struct err *e)
{
    int rc = quant_config_select(&m->quant, o->quantization, m->path, e);
    rc = rc < 0 ? rc
                : checkpoint_open(&m->checkpoint, m->path, &m->config, &m->quant, tie_stated, e);
    if (rc < 0) {
        return rc;
    }
    const struct checkpoint_view *embed = &m->checkpoint.embed;
    m->n_files = m->checkpoint.gguf != NULL ? 1 : m->checkpoint.n_files;
    m->names = m->checkpoint.names;
    m->file_bytes = checkpoint_file_bytes(&m->checkpoint);
    m->stored = embed->quant != NULL         ? tensor_type_name(embed->quant->codes->type)
                : embed->dtype == DTYPE_BF16 ? "bfloat16"
                : embed->dtype == DTYPE_F16  ? "float16"
                                             : "float32";
    m->options = weights_options(m, o);
    return weights_plan(&m->weights, &m->checkpoint, &m->config, &m->options, e);
}

/* A directory that tern quantize --pack made. */
static int open_packed(struct model *m, const struct model_options *o, struct err *e)
{
    int rc = pack_open(&m->pack, m->path, &m->config, e);
    if (rc < 0) {
        return rc;
    }
    const struct pack_header *h = pack_head(m->pack);
    m->quant.method = h->method < QUANT_METHOD_COUNT ? (enum quant_method)h->method : QUANT_NONE;
    const enum quant_method was = m->quant.method;
    rc = quant_config_select(&m->quant, o->quantization, m->path, e);
    if (rc == 0 && (m->quant.method != was || o->head_bits != 0)) {
        rc = err_set(e, ERR_INVALID,
                     "%s: %s: packed weights can't be quantized while loading; quantize and pack "
                     "the original",
                     m->path, m->quant.method != was ? "--quantization" : "--quantization-head");
    }
    m->n_files = 1;
    m->file_bytes = h->file_bytes;
    m->stored = h->stored;
    m->options = weights_options(m, o);
    return rc < 0 ? rc : pack_plan(m->pack, &m->weights, &m->options, e);
}

int model_open(struct model **out, const struct model_options *o, struct err *e)
{
    *out = NULL;
    struct model *m = calloc(1, sizeof *m);
    if (m == NULL || (m->path = strdup(o->path)) == NULL) {
        model_close(m);
        return err_set(e, ERR_NOMEM, "%s: out of memory", o->path);
    }
    m->act = o->act;
    m->kv = o->kv;
    m->log = o->log;
    for (size_t n = strlen(m->path); n > 1 && m->path[n - 1] == '/'; n--) {
        m->path[n - 1] = '\0';
    }
    struct stat sb;
    int rc = 0, tie_stated = -1;
    if (stat(m->path, &sb) != 0) {
        rc = err_set(e, ERR_NOT_FOUND, "%s: %s", m->path, strerror(errno));
    } else if (S_ISREG(sb.st_mode) && !gguf_is_file(m->path)) {
        rc = err_set(e, ERR_INVALID,
                     "%s: expected a model directory or a GGUF file, found another file", m->path);
    } else if (!S_ISDIR(sb.st_mode) && !S_ISREG(sb.st_mode)) {
        rc = err_set(e, ERR_INVALID, "%s: expected a model directory or a GGUF file", m->path);
    } else {
        rc = S_ISREG(sb.st_mode) ? read_gguf_config(m, e) : read_directory(m, &tie_stated, e);
    }
    if (rc == 0 && S_ISDIR(sb.st_mode) && pack_is_there(m->path)) {
        rc = open_packed(m, o, e);
    } else {
        rc = rc < 0 ? rc : open_checkpoint(m, o, tie_stated, e);
    }
    if (rc < 0) {
        model_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

int model_load(struct model *m, const struct kernels *kernels, struct cpu_pool *pool, struct err *e)
{
    int rc = m->pack != NULL
                 ? pack_load(m->pack, &m->weights, &m->config, &m->options, kernels, pool, e)
                 : weights_load(&m->weights, &m->checkpoint, &m->config, &m->options, kernels, pool,
                                m->log, e);
    if (rc < 0) {
        err_prefix(e, "%s", m->path);
        return rc;
    }
    checkpoint_close(&m->checkpoint);
    return 0;
}

void model_close(struct model *m)
{
    if (m == NULL) {
        return;
    }
    checkpoint_close(&m->checkpoint);
    weights_fini(&m->weights);
    pack_close(m->pack);
    quant_config_fini(&m->quant);
    free(m->path);
    free(m);
}

uint64_t model_file_bytes(const struct model *m)
{
    return m->file_bytes;
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

const struct model_generation_config *model_generation(const struct model *m)
{
    return &m->generation;
}

const char *model_path(const struct model *m)
{
    return m->path;
}

enum act_type model_act(const struct model *m)
{
    return m->act;
}

const char *model_kv_name(const struct model *m)
{
    static const char *const names[] = {"bfloat16", "fp8_e4m3", "fp8_e5m2", "int8"};
    return m->kv == KV_ACT && m->act == ACT_F32 ? "float32" : names[m->kv];
}

void model_kv_layout(const struct model *m, struct kv_layout *l)
{
    const struct model_config *c = &m->config;
    kv_layout_init(l, m->act, m->kv, c->n_layers, c->n_kv_heads, c->head_dim);
    snprintf(l->numerics_id, sizeof l->numerics_id, "%s", m->weights.numerics_id);
}

uint64_t model_weight_bytes(const struct model *m)
{
    return m->weights.memory_bytes;
}

uint64_t model_weight_bytes_per_token(const struct model *m)
{
    return m->weights.bytes_per_token;
}

double model_share_of_16_bit(const struct model *m)
{
    const struct model_config *c = &m->config;
    const uint64_t norms = (2 * (uint64_t)c->n_layers + 1) * (uint64_t)c->hidden_size;
    return (double)m->weights.memory_bytes / (2.0 * (double)(m->weights.n_params - norms));
}

uint64_t model_n_params(const struct model *m)
{
    return m->weights.n_params;
}

const char *model_layout_name(const struct model *m)
{
    static const char *const names[] = {"Hugging Face", "Paddle", "GGUF"};
    return m->pack != NULL ? "packed" : names[m->names];
}

const char *model_quantization(const struct model *m)
{
    return quant_method_name(m->quant.method);
}

const char *model_numerics_id(const struct model *m)
{
    return m->weights.numerics_id;
}

void model_describe_formats(const struct model *m, struct buf *out)
{
    const struct weights *w = &m->weights;
    char seen[8][96];
    int count[8] = {0}, n = 0, n_matrices = 4 * w->n_layers + (m->config.tied ? 1 : 2);
    for (int i = 0; i < n_matrices; i++) {
        const struct weights_layer *l = i < 4 * w->n_layers ? &w->layers[i / 4] : NULL;
        const struct weight *at = l == NULL    ? (i % 2 == 0 ? &w->embed : &w->head)
                                  : i % 4 == 0 ? &l->qkv
                                  : i % 4 == 1 ? &l->o
                                  : i % 4 == 2 ? &l->gate_up
                                               : &l->down;
        struct buf text;
        int j = 0;
        buf_init(&text);
        weight_describe(at, m->act, &text);
        while (j < n && text.data != NULL && strncmp(seen[j], text.data, sizeof seen[j] - 1) != 0) {
            j++;
        }
        if (j == n && n < 8) {
            snprintf(seen[n++], sizeof seen[0], "%s", text.data != NULL ? text.data : "");
        }
        count[j < 8 ? j : 7]++;
        buf_fini(&text);
    }
    for (int j = 0; j < n; j++) {
        buf_printf(out, "%s%s in %d", j > 0 ? ", " : "", seen[j], count[j]);
    }
}

static void describe_json(const struct model *m, struct buf *out)
{
    const struct model_config *c = &m->config;
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kstring(&w, "path", m->path);
    json_w_kstring(&w, "architecture", c->architecture);
    json_w_kstring(&w, "layout", model_layout_name(m));
    json_w_kint(&w, "files", m->n_files);
    json_w_kint(&w, "file_bytes", (int64_t)m->file_bytes);
    json_w_kstring(&w, "stored_dtype", m->stored);
    json_w_kstring(&w, "quantization", model_quantization(m));
    json_w_kstring(&w, "dtype", m->act == ACT_BF16 ? "bfloat16" : "float32");
    json_w_kint(&w, "parameters", (int64_t)m->weights.n_params);
    struct buf formats;
    buf_init(&formats);
    model_describe_formats(m, &formats);
    json_w_kstring(&w, "weight_formats", formats.data);
    buf_fini(&formats);
    json_w_kint(&w, "packed_weight_bytes", (int64_t)m->weights.memory_bytes);
    json_w_kdouble(&w, "share_of_16_bit", model_share_of_16_bit(m));
    json_w_kint(&w, "weight_bytes_per_token", (int64_t)m->weights.bytes_per_token);
    json_w_kint(&w, "vocab_size", c->vocab_size);
    json_w_kint(&w, "hidden_size", c->hidden_size);
    json_w_kint(&w, "intermediate_size", c->intermediate_size);
    json_w_kint(&w, "num_hidden_layers", c->n_layers);
    json_w_kint(&w, "num_attention_heads", c->n_heads);
    json_w_kint(&w, "num_key_value_heads", c->n_kv_heads);
    json_w_kint(&w, "head_dim", c->head_dim);
    json_w_kint(&w, "max_position_embeddings", c->max_position_embeddings);
    json_w_kdouble(&w, "rope_theta", c->rope_theta);
    json_w_kdouble(&w, "rms_norm_eps", (double)c->rms_norm_eps);
    json_w_kbool(&w, "tie_word_embeddings", c->tied);
    if (m->weights.numerics_id[0] != '\0') {
        json_w_kstring(&w, "numerics_id", m->weights.numerics_id);
    }
    json_w_object_end(&w);
}

void model_describe(const struct model *m, struct buf *out, int json)
{
    const struct model_config *c = &m->config;
    if (json) {
        describe_json(m, out);
        return;
    }
    buf_printf(out, "path:          %s\n", m->path);
    buf_printf(out, "architecture:  %s (dense), %s layout, %d file%s of %.1f MB\n", c->architecture,
               model_layout_name(m), m->n_files, m->n_files == 1 ? "" : "s",
               (double)m->file_bytes / 1e6);
    buf_printf(out, "parameters:    %llu, stored as %s, computed in %s\n",
               (unsigned long long)m->weights.n_params, m->stored,
               m->act == ACT_BF16 ? "bfloat16" : "float32");
    buf_printf(out,
               "shape:         %d layers, hidden %d, intermediate %d, heads %d/%d of %d, "
               "vocabulary %d, %s head\n",
               c->n_layers, c->hidden_size, c->intermediate_size, c->n_heads, c->n_kv_heads,
               c->head_dim, c->vocab_size, c->tied ? "tied" : "untied");
    buf_printf(out, "positions:     %d, rope_theta %g, rms_norm_eps %g\n",
               c->max_position_embeddings, c->rope_theta, (double)c->rms_norm_eps);
    buf_printf(out,
               "weights:       %.1f MB resident (%.1f %% of 16 bits), %.1f MB read per token\n",
               (double)m->weights.memory_bytes / 1e6, 100 * model_share_of_16_bit(m),
               (double)m->weights.bytes_per_token / 1e6);
    buf_printf(out, "formats:       quantization %s: ", model_quantization(m));
    model_describe_formats(m, out);
    buf_puts(out, " matrices\n");
}
