/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of a written checkpoint. From a Hugging Face directory config.json keeps all
 * its fields, whatever they are; from Paddle and GGUF the fields that the architecture has are
 * written anew, because those spell them otherwise. Layers that stay as they are are listed by
 * their whole names: every reader understands those. */
#include "model/quant_write_int.h"

#include "base/json.h"
#include "model/internal.h"
#include "model/quant_two.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>

static const char *const parts[QUANT_WRITE_LINEARS] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

void quant_write_name(char out[QUANT_WRITE_NAME], int layer, int which)
{
    snprintf(out, QUANT_WRITE_NAME, "model.layers.%d.%s", layer, parts[which]);
}

const struct checkpoint_view *quant_write_linear(const struct checkpoint_layer *l, int which)
{
    const struct checkpoint_view *const all[QUANT_WRITE_LINEARS] = {
        &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    return all[which];
}

static int names(const char *pattern, const char *name)
{
    const size_t n = strlen(pattern), len = strlen(name);
    return strcmp(pattern, name) == 0 ||
           (len > n && strncmp(name, pattern, n) == 0 && name[n] == '.') ||
           (len > n && strcmp(name + len - n, pattern) == 0 && name[len - n - 1] == '.');
}

int quant_write_ignores(const struct quant_write_options *o, const char *name)
{
    for (int i = 0; i < o->n_ignored; i++) {
        if (names(o->ignored[i], name)) {
            return 1;
        }
    }
    return 0;
}

struct quant_write_how quant_write_linear_how(const struct quant_write_options *o)
{
    return (struct quant_write_how){.scheme = o->scheme, .group = o->group};
}

struct quant_write_how quant_write_head_how(const struct quant_write_options *o)
{
    return (struct quant_write_how){.scheme = o->head_bits == 4              ? QUANT_WRITE_INT4
                                              : o->scheme == QUANT_WRITE_FP8 ? QUANT_WRITE_FP8
                                                                             : QUANT_WRITE_INT8,
                                    .group = 32};
}

struct weight quant_write_format(const struct model *m, struct quant_write_how how,
                                 const struct checkpoint_view *v)
{
    struct weight w = {.n = TILE_N, .k = v->cols, .group = v->cols, .scale_type = DTYPE_F32};
    switch (how.scheme) {
    case QUANT_WRITE_INT8:
        w.format = WEIGHT_I8;
        w.scale_type = DTYPE_BF16;
        break;
    case QUANT_WRITE_INT4:
    case QUANT_WRITE_AWQ:
        w.format = WEIGHT_I4;
        w.group = how.group;
        w.has_zero = how.scheme == QUANT_WRITE_AWQ;
        /* vLLM computes with these in the type of the model */
        w.scale_type = m->checkpoint.embed.dtype == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16;
        break;
    case QUANT_WRITE_FP8_BLOCK:
        w.format = WEIGHT_F8_E4M3;
        w.group = 128;
        break;
    case QUANT_WRITE_TWO:
        w.format = WEIGHT_C2;
        w.group = QUANT_TWO_GROUP;
        w.super = v->cols;
        w.scale_type = DTYPE_BF16;
        break;
    case QUANT_WRITE_FP8:
        w.format = WEIGHT_F8_E4M3;
        break;
    }
    return w;
}

/* ---- what can be written ---- */

static int check_matrix(const struct model *m, struct quant_write_how how,
                        const struct checkpoint_view *v, const char *name, int merged,
                        struct err *e)
{
    const int four = how.scheme == QUANT_WRITE_INT4 || how.scheme == QUANT_WRITE_AWQ;
    if (v->quant != NULL) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: %s is quantized already (tensor %s, %s); expected BF16, F16 or F32",
                       m->path, name, v->quant->codes->name,
                       tensor_type_name(v->quant->codes->type));
    }
    if (four && (v->cols % how.group != 0)) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: %s has %d inputs, which groups of %d don't divide; take a smaller "
                       "--group-size, or name it with --ignore",
                       m->path, name, v->cols, how.group);
    }
    if (v->cols % 8 != 0 || (how.scheme == QUANT_WRITE_AWQ && v->rows % 8 != 0)) {
        return err_set(e, ERR_UNSUPPORTED, "%s: %s is [%d, %d], expected multiples of 8", m->path,
                       name, v->rows, v->cols);
    }
    if (how.scheme == QUANT_WRITE_FP8_BLOCK && merged && v->rows % 128 != 0) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: %s has %d outputs, which blocks of 128 don't divide (vLLM refuses such "
                       "matrices where several are computed together); take --format "
                       "compressed-tensors",
                       m->path, name, v->rows);
    }
    return 0;
}

/* q, k, v and gate, up are computed together, here and in vLLM: all or none of them. */
static int check_layer(const struct model *m, const struct quant_write_options *o, int layer,
                       struct err *e)
{
    static const int first[QUANT_WRITE_LINEARS] = {0, 0, 0, 3, 4, 4, 6};
    char name[QUANT_WRITE_NAME], other[QUANT_WRITE_NAME];
    for (int j = 0; j < QUANT_WRITE_LINEARS; j++) {
        quant_write_name(name, layer, j);
        quant_write_name(other, layer, first[j]);
        const int kept = quant_write_ignores(o, name);
        if (kept != quant_write_ignores(o, other)) {
            return err_set(e, ERR_INVALID,
                           "--ignore: %s and %s are computed together: expected both or neither",
                           other, name);
        }
        const struct checkpoint_view *v = quant_write_linear(&m->checkpoint.layers[layer], j);
        int rc = kept && v->quant == NULL
                     ? 0
                     : check_matrix(m, quant_write_linear_how(o), v, name, j != 3 && j != 6, e);
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

int quant_write_check(const struct model *m, const struct quant_write_options *o, struct err *e)
{
    const struct checkpoint *ck = &m->checkpoint;
    if (m->pack != NULL) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: the model is packed for tern; expected its original", m->path);
    }
    if (m->quant.n_schemes > 0) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: the model is quantized already (%s); expected BF16, F16 or F32 weights",
                       m->path, quant_method_name(m->quant.method));
    }
    for (int i = 0; i < o->n_ignored; i++) {
        int found = 0;
        for (int l = 0; l < ck->n_layers && !found; l++) {
            for (int j = 0; j < QUANT_WRITE_LINEARS && !found; j++) {
                char name[QUANT_WRITE_NAME];
                quant_write_name(name, l, j);
                found = names(o->ignored[i], name);
            }
        }
        if (!found) {
            return err_set(e, ERR_INVALID,
                           "--ignore: %s names no linear layer; expected such as o_proj, "
                           "mlp.down_proj, model.layers.0 or none",
                           o->ignored[i]);
        }
    }
    int rc = 0;
    for (int l = 0; l < ck->n_layers && rc == 0; l++) {
        rc = check_layer(m, o, l, e);
    }
    const struct checkpoint_view *const outer[] = {&ck->embed, &ck->head};
    for (int i = 0; i < (m->config.tied ? 1 : 2) && rc == 0; i++) {
        if (outer[i]->quant != NULL || o->head_bits != 0) {
            rc = check_matrix(m, quant_write_head_how(o), outer[i],
                              i == 0 ? QUANT_EMBEDDING : "lm_head", 0, e);
        }
    }
    return rc;
}

/* ---- quantization_config ---- */

static void write_ignored(struct json_writer *w, const char *key, const struct model *m,
                          const struct quant_write_options *o)
{
    char name[QUANT_WRITE_NAME];
    json_w_key(w, key);
    json_w_array(w);
    if (o->head_bits == 0 || m->config.tied) {
        json_w_string(w, "lm_head");
    }
    for (int l = 0; l < m->checkpoint.n_layers; l++) {
        for (int j = 0; j < QUANT_WRITE_LINEARS; j++) {
            quant_write_name(name, l, j);
            if (quant_write_ignores(o, name)) {
                json_w_string(w, name);
            }
        }
    }
    json_w_array_end(w);
}

static const char *ct_format(enum quant_write_scheme s)
{
    return s == QUANT_WRITE_INT4  ? "pack-quantized"
           : s == QUANT_WRITE_TWO ? "wint2"
           : s == QUANT_WRITE_FP8 ? "float-quantized"
                                  : "int-quantized";
}

/* One of config_groups: what the targets (ended by NULL) become. */
static void write_group(struct json_writer *w, const char *name, const char *const *targets,
                        struct quant_write_how how, const struct quant_write_options *o)
{
    const int four = how.scheme == QUANT_WRITE_INT4, fp8 = how.scheme == QUANT_WRITE_FP8;
    const int two = how.scheme == QUANT_WRITE_TWO;
    json_w_key(w, name);
    json_w_object(w);
    json_w_key(w, "targets");
    json_w_array(w);
    for (; *targets != NULL; targets++) {
        json_w_string(w, *targets);
    }
    json_w_array_end(w);
    json_w_key(w, "weights");
    json_w_object(w);
    json_w_kint(w, "num_bits", two ? 2 : four ? 4 : 8);
    json_w_kstring(w, "type", fp8 ? "float" : "int");
    json_w_kbool(w, "symmetric", 1);
    json_w_kstring(w, "strategy", four || two ? "group" : "channel");
    if (four || two) {
        json_w_kint(w, "group_size", two ? QUANT_TWO_GROUP : how.group);
    } else {
        json_w_knull(w, "group_size");
    }
    json_w_kbool(w, "dynamic", 0);
    json_w_knull(w, "actorder");
    json_w_kstring(w, "observer", four && o->search ? "mse" : "minmax");
    json_w_object_end(w);
    json_w_key(w, "input_activations");
    if (four) {
        json_w_null(w);
    } else {
        json_w_object(w);
        json_w_kint(w, "num_bits", 8);
        json_w_kstring(w, "type", fp8 ? "float" : "int");
        json_w_kbool(w, "symmetric", 1);
        json_w_kstring(w, "strategy", "token");
        json_w_kbool(w, "dynamic", 1);
        json_w_object_end(w);
    }
    json_w_knull(w, "output_activations");
    if (o->head_bits != 0) {
        json_w_kstring(w, "format", ct_format(how.scheme));
    }
    json_w_object_end(w);
}

static void write_compressed(struct json_writer *w, const struct model *m,
                             const struct quant_write_options *o)
{
    static const char *const linears[] = {"Linear", NULL};
    const char *const outer[] = {QUANT_EMBEDDING, m->config.tied ? NULL : "lm_head", NULL};
    const struct quant_write_how how = quant_write_linear_how(o), head = quant_write_head_how(o);
    const int mixed = o->head_bits != 0 && head.scheme != how.scheme;
    json_w_kstring(w, "quant_method", "compressed-tensors");
    json_w_kstring(w, "format", mixed ? "mixed-precision" : ct_format(how.scheme));
    json_w_kstring(w, "quantization_status", "compressed");
    json_w_key(w, "config_groups");
    json_w_object(w);
    write_group(w, "group_0", linears, how, o);
    if (o->head_bits != 0) {
        write_group(w, "group_1", outer, head, o);
    }
    json_w_object_end(w);
    write_ignored(w, "ignore", m, o);
    json_w_knull(w, "kv_cache_scheme");
}

static void write_quantization(struct json_writer *w, const struct model *m,
                               const struct quant_write_options *o)
{
    json_w_key(w, "quantization_config");
    json_w_object(w);
    if (o->scheme == QUANT_WRITE_AWQ) {
        json_w_kstring(w, "quant_method", "awq");
        json_w_kint(w, "bits", 4);
        json_w_kint(w, "group_size", o->group);
        json_w_kbool(w, "zero_point", 1);
        json_w_kstring(w, "version", "gemm");
        write_ignored(w, "modules_to_not_convert", m, o);
    } else if (o->scheme == QUANT_WRITE_FP8_BLOCK) {
        json_w_kstring(w, "quant_method", "fp8");
        json_w_kstring(w, "fmt", "e4m3");
        json_w_kstring(w, "activation_scheme", "dynamic");
        json_w_key(w, "weight_block_size");
        json_w_array(w);
        json_w_int(w, 128);
        json_w_int(w, 128);
        json_w_array_end(w);
        write_ignored(w, "ignored_layers", m, o);
        write_ignored(w, "modules_to_not_convert", m, o); /* transformers' spelling */
    } else {
        write_compressed(w, m, o);
    }
    json_w_object_end(w);
}

/* ---- the rest of config.json ---- */

/* The fields of a Hugging Face Ernie4_5ForCausalLM. */
static void write_own_fields(struct json_writer *w, const struct model *m)
{
    const struct model_config *c = &m->config;
    static const char *const types[] = {"bfloat16", "float16", "float32"};
    json_w_key(w, "architectures");
    json_w_array(w);
    json_w_string(w, "Ernie4_5ForCausalLM");
    json_w_array_end(w);
    json_w_kstring(w, "model_type", "ernie4_5");
    json_w_kstring(w, "hidden_act", "silu");
    json_w_kint(w, "vocab_size", c->vocab_size);
    json_w_kint(w, "hidden_size", c->hidden_size);
    json_w_kint(w, "intermediate_size", c->intermediate_size);
    json_w_kint(w, "num_hidden_layers", c->n_layers);
    json_w_kint(w, "num_attention_heads", c->n_heads);
    json_w_kint(w, "num_key_value_heads", c->n_kv_heads);
    json_w_kint(w, "head_dim", c->head_dim);
    json_w_kint(w, "max_position_embeddings", c->max_position_embeddings);
    char eps[32]; /* the shortest text of the float, not of its double */
    snprintf(eps, sizeof eps, "%.7g", (double)c->rms_norm_eps);
    json_w_key(w, "rms_norm_eps");
    json_w_raw(w, eps, strlen(eps));
    json_w_kdouble(w, "rope_theta", c->rope_theta);
    if (c->compression_ratio < 1 || c->compression_ratio > 1) {
        json_w_kdouble(w, "compression_ratio", c->compression_ratio);
    }
    json_w_kbool(w, "use_bias", 0);
    if (c->bos_id >= 0) {
        json_w_kint(w, "bos_token_id", c->bos_id);
    }
    if (c->n_eos_ids > 0) {
        json_w_kint(w, "eos_token_id", c->eos_ids[0]);
    }
    if (c->pad_id >= 0) {
        json_w_kint(w, "pad_token_id", c->pad_id);
    }
    json_w_kstring(w, "torch_dtype", types[m->checkpoint.embed.dtype]);
}

int quant_write_config(const struct model *m, const struct quant_write_options *o, struct buf *out,
                       struct err *e)
{
    static const char *const own[] = {"quantization_config", "compression_config", "quantization",
                                      "tie_word_embeddings"};
    struct json *doc = NULL;
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    if (m->checkpoint.names == NAMES_HUGGING_FACE) {
        char path[PATH_MAX];
        int n = snprintf(path, sizeof path, "%s/config.json", m->path);
        int rc = n >= (int)sizeof path ? err_set(e, ERR_INVALID, "%s: path is too long", m->path)
                                       : json_parse_file(&doc, path, CONFIG_MAX_FILE_BYTES, e);
        if (rc < 0) {
            return rc;
        }
        size_t it = 0, key_bytes;
        const char *key;
        const struct json *v;
        while (json_next(doc, &it, &key, &key_bytes, &v)) {
            int replaced = 0;
            for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
                replaced |= strcmp(key, own[i]) == 0;
            }
            if (!replaced) {
                json_w_keyn(&w, key, key_bytes);
                json_w_value(&w, v);
            }
        }
        json_free(doc);
    } else {
        write_own_fields(&w, m);
    }
    json_w_kbool(&w, "tie_word_embeddings", m->config.tied);
    if (o != NULL) {
        write_quantization(&w, m, o);
    }
    json_w_object_end(&w);
    buf_putc(out, '\n');
    return out->failed ? err_set(e, ERR_NOMEM, "config.json: out of memory") : 0;
}
