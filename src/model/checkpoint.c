/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensor is which matrix. Names lose their prefix ("model.", "ernie." or none; GGUF names are
 * translated), then every tensor of the model is looked up by its plain name; what is missing, and
 * what nobody asked for, is an error, because both mean that the file holds another model than
 * config.json says.
 * Orientation follows the naming: Paddle's linear layers are [in, out], Hugging Face's [out, in]; a
 * view hides the difference from the packer, so that both give the same packed bytes. bf16 may be
 * labelled U16 (numpy has no bf16). */
#include "model/checkpoint_find.h"

#include "base/json.h"
#include "base/map.h"
#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILES       4096
#define MAX_INDEX_BYTES (64u << 20)
#define N_LISTED        4 /* missing or unknown names printed */

static int is_file(const char *dir, const char *name)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
}

static int open_file(struct checkpoint *ck, const char *dir, const char *name, struct err *e)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path) {
        return err_set(e, ERR_INVALID, "%s: path is too long", dir);
    }
    if (ck->n_files >= MAX_FILES) {
        return err_set(e, ERR_UNSUPPORTED, "%s: more than %d weight files", dir, MAX_FILES);
    }
    struct safetensors **more = realloc(ck->files, (size_t)(ck->n_files + 1) * sizeof *more);
    if (more == NULL) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", path);
    }
    ck->files = more;
    int rc = safetensors_open(&ck->files[ck->n_files], path, e);
    if (rc == 0) {
        ck->n_files++;
    }
    return rc;
}

static int find_open(const struct checkpoint *ck, const char *name)
{
    for (int i = 0; i < ck->n_files; i++) {
        const char *path = safetensors_path(ck->files[i]);
        const char *base = strrchr(path, '/');
        if (strcmp(base != NULL ? base + 1 : path, name) == 0) {
            return i;
        }
    }
    return -1;
}

static const char *plain_name(const char *name)
{
    if (strncmp(name, "model.", 6) == 0 || strncmp(name, "ernie.", 6) == 0) {
        return name + 6;
    }
    return name;
}

static int add_entry(struct finder *f, const struct tensor *t)
{
    char own[128];
    const char *name =
        f->ck->gguf != NULL ? gguf_plain_name(own, sizeof own, t->name) : plain_name(t->name);
    const struct entry *old = map_get(f->by_name, name, strlen(name));
    if (old != NULL) {
        return err_set(f->e, ERR_FORMAT, "%s: tensor %s: also in %s", t->file, t->name,
                       old->tensor->file);
    }
    struct entry *en = &f->entries[f->n_entries++];
    *en = (struct entry){t, 0};
    if (strncmp(t->name, "ernie.", 6) == 0) {
        f->ck->names = NAMES_PADDLE;
    }
    f->prefixed |= strncmp(t->name, "model.", 6) == 0;
    f->fused |= strstr(name, ".qkv_proj.") != NULL || strstr(name, ".up_gate_proj.") != NULL;
    if (map_put(f->by_name, name, strlen(name), en) < 0) {
        return err_set(f->e, ERR_NOMEM, "%s: out of memory", f->path);
    }
    return 0;
}

_Static_assert((int)SAFETENSORS_F64 == (int)TENSOR_F64, "both lists begin with the same types");

/* A tensor of a safetensors file. */
static int add_stored(struct finder *f, const struct safetensors *file,
                      const struct safetensors_tensor *from)
{
    struct tensor *t = &f->ck->tensors[f->n_entries];
    *t = (struct tensor){.file = safetensors_path(file),
                         .name = from->name,
                         .type = (enum tensor_type)from->dtype,
                         .n_dims = from->n_dims,
                         .data = safetensors_data(file, from),
                         .n_bytes = from->end - from->begin};
    memcpy(t->shape, from->shape, sizeof t->shape);
    return add_entry(f, t);
}

static int alloc_entries(struct finder *f, size_t n)
{
    f->entries = calloc(n + 1, sizeof *f->entries);
    f->ck->tensors = calloc(n + 1, sizeof *f->ck->tensors);
    return f->entries == NULL || f->ck->tensors == NULL
               ? err_set(f->e, ERR_NOMEM, "%s: out of memory", f->path)
               : 0;
}

static int add_all_tensors(struct finder *f)
{
    size_t n = 0;
    for (int i = 0; i < f->ck->n_files; i++) {
        n += safetensors_count(f->ck->files[i]);
    }
    int rc = alloc_entries(f, n);
    for (int i = 0; i < f->ck->n_files && rc == 0; i++) {
        const struct safetensors *st = f->ck->files[i];
        for (size_t j = 0; j < safetensors_count(st) && rc == 0; j++) {
            rc = add_stored(f, st, safetensors_at(st, j));
        }
    }
    return rc;
}

/* Shards: only the files the index names, and only the tensors it names. */
static int open_index(struct finder *f, const char *index_name)
{
    char path[PATH_MAX];
    struct json *doc = NULL;
    snprintf(path, sizeof path, "%s/%s", f->path, index_name);
    if (safetensors_is_lfs_pointer(path)) {
        return err_set(f->e, ERR_FORMAT,
                       "%s: is a Git LFS pointer, run git lfs pull in the model directory", path);
    }
    int rc = json_parse_file(&doc, path, MAX_INDEX_BYTES, f->e);
    if (rc < 0) {
        if (f->e != NULL && strstr(f->e->text, path) == NULL) {
            err_prefix(f->e, "%s", path);
        }
        return rc;
    }
    const struct json *weight_map = json_get(doc, "weight_map"), *value;
    if (json_type(weight_map) != JSON_OBJECT || json_length(weight_map) == 0) {
        rc = err_set(f->e, ERR_FORMAT, "%s: weight_map is missing or empty", path);
        goto done;
    }
    rc = alloc_entries(f, json_length(weight_map));
    size_t it = 0, key_bytes;
    const char *key;
    while (rc == 0 && json_next(weight_map, &it, &key, &key_bytes, &value)) {
        size_t n_bytes = 0;
        const char *file = json_type(value) == JSON_STRING ? json_string(value, &n_bytes) : NULL;
        if (file == NULL || n_bytes == 0 || strlen(file) != n_bytes || strchr(file, '/') != NULL) {
            rc = err_set(f->e, ERR_FORMAT,
                         "%s: tensor %s: expected the name of a file in this directory", path, key);
            break;
        }
        int i = find_open(f->ck, file);
        if (i < 0) {
            if (!is_file(f->path, file)) {
                rc = err_set(f->e, ERR_NOT_FOUND,
                             "%s/%s: no such file, but %s places tensor %s in it", f->path, file,
                             index_name, key);
                break;
            }
            rc = open_file(f->ck, f->path, file, f->e);
            i = f->ck->n_files - 1;
        }
        const struct safetensors_tensor *t =
            rc == 0 ? safetensors_find(f->ck->files[i], key) : NULL;
        if (rc == 0 && t == NULL) {
            rc = err_set(f->e, ERR_FORMAT, "%s/%s: tensor %s is missing, but %s places it there",
                         f->path, file, key, index_name);
        }
        rc = rc == 0 ? add_stored(f, f->ck->files[i], t) : rc;
    }
done:
    json_free(doc);
    return rc;
}

/* Without an index: all of model-00001-of-0000N … model-0000N-of-0000N. */
static int open_numbered(struct finder *f, int n)
{
    for (int i = 1; i <= n; i++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", i, n);
        if (!is_file(f->path, name)) {
            return err_set(f->e, ERR_NOT_FOUND,
                           "%s/%s: no such file, but other shards of %d are there", f->path, name,
                           n);
        }
        int rc = open_file(f->ck, f->path, name, f->e);
        if (rc < 0) {
            return rc;
        }
    }
    return add_all_tensors(f);
}

static int open_gguf(struct finder *f)
{
    int rc = gguf_open(&f->ck->gguf, f->path, f->e);
    if (rc < 0) {
        return rc;
    }
    f->ck->names = NAMES_GGUF;
    size_t n = gguf_n_tensors(f->ck->gguf);
    rc = alloc_entries(f, n);
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = add_entry(f, gguf_tensor(f->ck->gguf, i));
    }
    return rc;
}

static int open_files(struct finder *f)
{
    struct stat sb;
    if (stat(f->path, &sb) == 0 && S_ISREG(sb.st_mode)) {
        return open_gguf(f);
    }
    static const char index_name[] = "model.safetensors.index.json";
    if (is_file(f->path, index_name)) {
        return open_index(f, index_name);
    }
    if (is_file(f->path, "model.safetensors")) {
        int rc = open_file(f->ck, f->path, "model.safetensors", f->e);
        return rc < 0 ? rc : add_all_tensors(f);
    }
    DIR *d = opendir(f->path);
    if (d == NULL) {
        return err_set(f->e, ERR_NOT_FOUND, "%s: no such directory", f->path);
    }
    char single[NAME_MAX + 1] = "", other[NAME_MAX + 1] = "";
    int n_single = 0, n_shards = 0;
    for (const struct dirent *en; (en = readdir(d)) != NULL;) {
        int i, n;
        char tail;
        const char *dot = strrchr(en->d_name, '.');
        if (dot == NULL) {
            continue;
        }
        if (sscanf(en->d_name, "model-%5d-of-%5d.safetensor%c", &i, &n, &tail) == 3 && n > 0 &&
            n <= MAX_FILES) {
            n_shards = n;
        } else if (strcmp(dot, ".safetensors") == 0) {
            n_single++;
            snprintf(single, sizeof single, "%s", en->d_name);
        } else if (strcmp(dot, ".bin") == 0 || strcmp(dot, ".pdparams") == 0 ||
                   strcmp(dot, ".gguf") == 0 || strcmp(dot, ".pt") == 0) {
            snprintf(other, sizeof other, "%s", en->d_name);
        }
    }
    closedir(d);
    if (n_shards > 0) {
        return open_numbered(f, n_shards);
    }
    if (n_single == 1) {
        int rc = open_file(f->ck, f->path, single, f->e);
        return rc < 0 ? rc : add_all_tensors(f);
    }
    if (n_single > 1) {
        return err_set(f->e, ERR_UNSUPPORTED,
                       "%s: %d safetensors files and no %s that says which to read", f->path,
                       n_single, index_name);
    }
    if (other[0] != '\0') {
        return err_set(f->e, ERR_UNSUPPORTED,
                       "%s/%s: unsupported weight file; supported: model.safetensors, shards with "
                       "%s, or the path of a .gguf file itself",
                       f->path, other, index_name);
    }
    return err_set(f->e, ERR_NOT_FOUND, "%s: no weights: expected model.safetensors or %s", f->path,
                   index_name);
}

const struct tensor *find_tensor(struct finder *f, const char *name)
{
    struct entry *en = map_get(f->by_name, name, strlen(name));
    if (en == NULL) {
        return NULL;
    }
    en->used = 1;
    return en->tensor;
}

/* Notes it as the file would spell it. */
void find_note_missing(struct finder *f, const char *name)
{
    char own[128];
    const char *prefix = f->ck->names == NAMES_PADDLE ? "ernie." : f->prefixed ? "model." : "";
    if (f->ck->names == NAMES_GGUF) {
        prefix = "";
        name = gguf_own_name(own, sizeof own, name);
    }
    if (f->n_missing < N_LISTED) {
        buf_printf(&f->missing, "%s%s%s", f->n_missing > 0 ? ", " : "",
                   strncmp(name, "lm_head.", 8) == 0 ? "" : prefix, name);
    }
    f->n_missing++;
}

void find_failed(struct finder *f, int code, const struct tensor *t, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    if (f->failed != 0) {
        return;
    }
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    f->failed = err_set(f->e, code, "%s: tensor %s: %s", t->file, t->name, text);
}

void find_check_shape(struct finder *f, const struct tensor *t, int64_t d0, int64_t d1)
{
    int n_dims = d1 == 0 ? 1 : 2;
    if (t->n_dims != n_dims || t->shape[0] != d0 || (n_dims == 2 && t->shape[1] != d1)) {
        char expected[64], found[256];
        snprintf(expected, sizeof expected, n_dims == 2 ? "[%lld, %lld]" : "[%lld]", (long long)d0,
                 (long long)d1);
        find_failed(f, ERR_FORMAT, t, "wrong shape: expected %s, found %s", expected,
                    tensor_shape_text(found, sizeof found, t));
    }
}

/* The tensor `name` as a whole [rows, cols] matrix, or with in_out as the transpose of a [cols,
 * rows] one. A vector has cols 1 and one dimension on disk. Absent tensors are noted; other faults
 * set f->failed. */
static void take(struct finder *f, struct checkpoint_view *v, const char *name, int rows, int cols,
                 int in_out)
{
    const struct tensor *t = find_tensor(f, name);
    if (t == NULL) {
        find_note_missing(f, name);
        return;
    }
    find_check_shape(f, t, in_out ? cols : rows, cols == 1 ? 0 : in_out ? rows : cols);
    if (f->failed != 0) {
        return;
    }
    if (f->ck->gguf != NULL && cols > 1 && tensor_block_elements(t->type) > 1) {
        find_blocks(f, v, t, rows, cols);
        return;
    }
    if (!tensor_is_float(t)) {
        find_failed(f, ERR_UNSUPPORTED, t,
                    "unsupported dtype %s; supported: BF16 (also labelled U16), F16, F32%s",
                    tensor_type_name(t->type),
                    f->q->n_schemes > 0 ? " for a layer that quantization_config leaves as it is"
                                        : "");
        return;
    }
    v->dtype = t->type == TENSOR_F32 ? DTYPE_F32 : t->type == TENSOR_F16 ? DTYPE_F16 : DTYPE_BF16;
    v->tensor = t;
    v->offset_elements = 0;
    v->rows = rows;
    v->cols = cols;
    v->stride_row = in_out ? 1 : (size_t)cols;
    v->stride_col = in_out ? (size_t)rows : 1;
}

/* The matrix of a linear layer such as "layers.0.self_attn.q_proj", or the embedding, stored as the
 * configuration says. */
static void take_linear(struct finder *f, struct checkpoint_view *v, const char *layer, int rows,
                        int cols, int in_out)
{
    char name[128];
    const char *prefix = strcmp(layer, "lm_head") == 0 ? "" : "model.";
    snprintf(name, sizeof name, "%s%s", prefix, layer);
    const struct quant_scheme *s = quant_config_for(f->q, name);
    if (s != NULL) {
        find_quantized(f, v, layer, rows, cols, s);
        return;
    }
    snprintf(name, sizeof name, "%s.weight", layer);
    take(f, v, name, rows, cols, in_out);
}

/* Rows row0 .. row0+rows of a matrix. */
static struct checkpoint_view slice(const struct checkpoint_view *v, int row0, int rows)
{
    struct checkpoint_view s = *v;
    s.offset_elements += (size_t)row0 * v->stride_row;
    s.rows = rows;
    return s;
}

static void take_layer(struct finder *f, int index)
{
    const struct model_config *c = f->c;
    struct checkpoint_layer *l = &f->ck->layers[index];
    int hidden = c->hidden_size, inter = c->intermediate_size,
        in_out = f->ck->names == NAMES_PADDLE;
    int q_rows = c->n_heads * c->head_dim, kv_rows = c->n_kv_heads * c->head_dim;
    char name[128];
#define NAME(suffix) (snprintf(name, sizeof name, "layers.%d." suffix, index), name)
    take(f, &l->input_norm, NAME("input_layernorm.weight"), hidden, 1, 0);
    take(f, &l->post_norm, NAME("post_attention_layernorm.weight"), hidden, 1, 0);
    if (f->fused) {
        struct checkpoint_view qkv = {0}, up_gate = {0}; /* gate first, despite the name */
        take(f, &qkv, NAME("self_attn.qkv_proj.weight"), q_rows + 2 * kv_rows, hidden, in_out);
        take(f, &up_gate, NAME("mlp.up_gate_proj.weight"), 2 * inter, hidden, in_out);
        l->q = slice(&qkv, 0, q_rows);
        l->k = slice(&qkv, q_rows, kv_rows);
        l->v = slice(&qkv, q_rows + kv_rows, kv_rows);
        l->gate = slice(&up_gate, 0, inter);
        l->up = slice(&up_gate, inter, inter);
        take(f, &l->o, NAME("self_attn.o_proj.weight"), hidden, q_rows, in_out);
        take(f, &l->down, NAME("mlp.down_proj.weight"), hidden, inter, in_out);
    } else {
        take_linear(f, &l->q, NAME("self_attn.q_proj"), q_rows, hidden, in_out);
        take_linear(f, &l->k, NAME("self_attn.k_proj"), kv_rows, hidden, in_out);
        take_linear(f, &l->v, NAME("self_attn.v_proj"), kv_rows, hidden, in_out);
        take_linear(f, &l->gate, NAME("mlp.gate_proj"), inter, hidden, in_out);
        take_linear(f, &l->up, NAME("mlp.up_proj"), inter, hidden, in_out);
        take_linear(f, &l->o, NAME("self_attn.o_proj"), hidden, q_rows, in_out);
        take_linear(f, &l->down, NAME("mlp.down_proj"), hidden, inter, in_out);
    }
#undef NAME
}

static int same_bytes(const struct checkpoint_view *a, const struct checkpoint_view *b)
{
    return a->dtype == b->dtype && a->tensor->n_bytes == b->tensor->n_bytes &&
           memcmp(a->tensor->data, b->tensor->data, a->tensor->n_bytes) == 0;
}

/* The head: absent when tied (or redundant and [vocab, hidden] in both layouts); else [vocab,
 * hidden], Paddle [hidden, vocab]. A silent config is decided by what is there: libraries disagree
 * about the default. */
static void take_head(struct finder *f, int tie_stated)
{
    struct model_config *c = f->c;
    struct checkpoint *ck = f->ck;
    const struct entry *en = map_get(f->by_name, "lm_head.weight", 14);
    int vocab = c->vocab_size, hidden = c->hidden_size;
    int quantized = quant_config_for(f->q, "lm_head") != NULL;
    c->tied = tie_stated >= 0 ? tie_stated : en == NULL && !quantized;
    if (c->tied && en == NULL) {
        return;
    }
    int transposed = ck->names == NAMES_PADDLE && !c->tied;
    if (tie_stated < 0 && transposed && vocab != hidden && en != NULL && en->tensor->n_dims == 2) {
        transposed = en->tensor->shape[0] != vocab;
    }
    take_linear(f, &ck->head, "lm_head", vocab, hidden, transposed);
    if (tie_stated < 0 && f->failed == 0 && ck->embed.tensor != NULL && ck->head.tensor != NULL &&
        !transposed) {
        c->tied = same_bytes(&ck->embed, &ck->head);
    }
}

static int report_missing(struct finder *f)
{
    static const char *const names[] = {"Hugging Face", "Paddle", "GGUF"};
    if (f->n_missing == 0) {
        return 0;
    }
    const char *where = f->ck->n_files == 1 ? safetensors_path(f->ck->files[0]) : f->path;
    char more[32] = "";
    if (f->n_missing > N_LISTED) {
        snprintf(more, sizeof more, " and %d more", f->n_missing - N_LISTED);
    }
    return err_set(f->e, ERR_FORMAT, "%s: missing tensor%s: %s%s (found %zu tensors with %s names)",
                   where, f->n_missing > 1 ? "s" : "",
                   f->missing.data != NULL ? f->missing.data : "", more, f->n_entries,
                   names[f->ck->names]);
}

static int report_unknown(struct finder *f)
{
    struct buf list;
    int n = 0;
    const char *where = NULL;
    buf_init(&list);
    for (size_t i = 0; i < f->n_entries; i++) {
        const struct entry *en = &f->entries[i];
        const char *name = en->tensor->name;
        size_t len = strlen(name);
        static const char buffer[] =
            ".rotary_emb.inv_freq"; /* a table that old converters stored */
        if (en->used ||
            (len >= sizeof buffer - 1 && strcmp(name + len - (sizeof buffer - 1), buffer) == 0)) {
            continue;
        }
        where = where != NULL ? where : en->tensor->file;
        if (n < N_LISTED) {
            buf_printf(&list, "%s%s", n > 0 ? ", " : "", name);
        }
        n++;
    }
    int rc = 0;
    if (n > 0) {
        char more[32] = "";
        if (n > N_LISTED) {
            snprintf(more, sizeof more, " and %d more", n - N_LISTED);
        }
        rc = err_set(f->e, ERR_FORMAT, "%s: unknown tensor%s: %s%s (%s describes %d layers)", where,
                     n > 1 ? "s" : "", list.data != NULL ? list.data : "", more,
                     f->ck->gguf != NULL ? "the file" : "config.json", f->c->n_layers);
    }
    buf_fini(&list);
    return rc;
}

int checkpoint_open(struct checkpoint *ck, const char *path, struct model_config *c,
                    const struct quant_config *q, int tie_stated, struct err *e)
{
    memset(ck, 0, sizeof *ck);
    arena_init(&ck->arena, 64 << 10);
    struct finder f = {.ck = ck, .c = c, .q = q, .path = path, .e = e, .by_name = map_new()};
    buf_init(&f.missing);
    int rc = f.by_name == NULL ? err_set(e, ERR_NOMEM, "%s: out of memory", path) : open_files(&f);
    if (rc < 0) {
        goto fail;
    }
    if (f.fused) {
        ck->names = NAMES_PADDLE;
        if (q->n_schemes > 0) {
            rc = err_set(e, ERR_UNSUPPORTED,
                         "%s: unsupported quantization_config of a file with fused Paddle names "
                         "(qkv_proj, up_gate_proj)",
                         path);
            goto fail;
        }
    }
    ck->n_layers = c->n_layers;
    ck->layers = calloc((size_t)c->n_layers, sizeof *ck->layers);
    if (ck->layers == NULL) {
        rc = err_set(e, ERR_NOMEM, "%s: out of memory", path);
        goto fail;
    }
    take_linear(&f, &ck->embed, "embed_tokens", c->vocab_size, c->hidden_size, 0);
    for (int i = 0; i < c->n_layers; i++) {
        take_layer(&f, i);
    }
    take(&f, &ck->final_norm, "norm.weight", c->hidden_size, 1, 0);
    take_head(&f, tie_stated);
    rc = f.failed != 0 ? f.failed : report_missing(&f);
    rc = rc < 0 ? rc : report_unknown(&f);
fail:
    buf_fini(&f.missing);
    map_free(f.by_name);
    free(f.entries);
    if (rc < 0) {
        checkpoint_close(ck);
    }
    return rc < 0 ? rc : 0;
}

void checkpoint_close(struct checkpoint *ck)
{
    for (int i = 0; i < ck->n_files; i++) {
        safetensors_close(ck->files[i]);
    }
    free(ck->files);
    gguf_close(ck->gguf);
    free(ck->tensors);
    free(ck->layers);
    arena_fini(&ck->arena);
    memset(ck, 0, sizeof *ck);
}

uint64_t checkpoint_file_bytes(const struct checkpoint *ck)
{
    uint64_t n = ck->gguf != NULL ? gguf_file_bytes(ck->gguf) : 0;
    for (int i = 0; i < ck->n_files; i++) {
        n += safetensors_file_bytes(ck->files[i]);
    }
    return n;
}

const void *checkpoint_data(const struct checkpoint_view *v)
{
    return (const uint8_t *)v->tensor->data + v->offset_elements * dtype_size(v->dtype);
}

static void each_tensor(const struct checkpoint_view *v, void (*visit)(const struct tensor *t))
{
    const struct quant_matrix *q = v->quant;
    const struct tensor *const all[] = {v->tensor, q != NULL ? q->codes : NULL,
                                        q != NULL ? q->scales : NULL, q != NULL ? q->zeros : NULL};
    for (int i = 0; i < 4; i++) {
        if (all[i] != NULL) {
            visit(all[i]);
        }
    }
}

void checkpoint_will_need(const struct checkpoint_view *v)
{
    each_tensor(v, tensor_will_need);
}

void checkpoint_drop(const struct checkpoint_view *v)
{
    each_tensor(v, tensor_drop);
}
