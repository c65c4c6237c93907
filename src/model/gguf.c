/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF reader; the format is in gguf.h. Every length is compared with the bytes that are left
 * before it is used, and memory grows with what was really read: no count in the file is believed.
 */
#include "model/gguf.h"

#include "base/arena.h"
#include "base/map.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct gguf {
    struct arena arena;
    const char *path;
    const uint8_t *data;
    size_t n_bytes;
    int mapped;
    struct map *fields; /* key -> struct gguf_value */
    struct map *names;  /* name -> struct tensor */
    struct tensor *tensors;
    size_t n_tensors;
};

struct cursor {
    struct gguf *g;
    const uint8_t *p, *end;
    struct err *e;
};

static const uint8_t scalar_bytes[GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
static const char *const type_names[GGUF_TYPE_COUNT] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

/* ggml's number of a type -> ours; -1 for those that aren't read. */
static int tensor_type_of(uint32_t ggml)
{
    static const struct {
        uint32_t ggml;
        enum tensor_type type;
    } known[] = {{0, TENSOR_F32},   {1, TENSOR_F16},   {2, TENSOR_Q4_0},  {8, TENSOR_Q8_0},
                 {12, TENSOR_Q4_K}, {13, TENSOR_Q5_K}, {14, TENSOR_Q6_K}, {30, TENSOR_BF16}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].ggml == ggml) {
            return (int)known[i].type;
        }
    }
    return -1;
}

static const char *ggml_name(uint32_t ggml)
{
    static const char *const names[] = {
        "F32",     "F16",    "Q4_0",    "Q4_1",  NULL,     NULL,    "Q5_0",  "Q5_1",
        "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
        "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
        "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16",  NULL,
        NULL,      NULL,     "TQ1_0",   "TQ2_0", NULL,     NULL,    NULL,    "MXFP4"};
    return ggml < sizeof names / sizeof names[0] && names[ggml] != NULL ? names[ggml] : "unknown";
}

static int truncated(const struct cursor *c, const char *where)
{
    return err_set(c->e, ERR_FORMAT, "%s: truncated in %s, or not a GGUF file (%zu bytes)",
                   c->g->path, where, c->g->n_bytes);
}

static uint64_t little(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--) {
        v = v << 8 | p[i];
    }
    return v;
}

static int take(struct cursor *c, int n, uint64_t *out, const char *where)
{
    if ((size_t)(c->end - c->p) < (size_t)n) {
        return truncated(c, where);
    }
    *out = little(c->p, n);
    c->p += n;
    return 0;
}

/* A string's bytes, in place. */
static int take_string(struct cursor *c, size_t max, const char **s, size_t *n, const char *where)
{
    uint64_t len = 0;
    int rc = take(c, 8, &len, where);
    if (rc < 0) {
        return rc;
    }
    if (len > (uint64_t)(c->end - c->p)) {
        return truncated(c, where);
    }
    if (len > max) {
        return err_set(c->e, ERR_FORMAT, "%s: a string of %llu bytes in %s, expected at most %zu",
                       c->g->path, (unsigned long long)len, where, max);
    }
    *s = (const char *)c->p;
    *n = (size_t)len;
    c->p += len;
    return 0;
}

static int out_of_memory(const struct cursor *c)
{
    return err_set(c->e, ERR_NOMEM, "%s: out of memory", c->g->path);
}

static int bad_field_type(const struct cursor *c, const char *key, uint64_t type)
{
    return err_set(c->e, ERR_FORMAT, "%s: field %s: unknown value type %llu, expected 0 to %d",
                   c->g->path, key, (unsigned long long)type, GGUF_TYPE_COUNT - 1);
}

static int read_value(struct cursor *c, const char *key, struct gguf_value *v)
{
    uint64_t type = 0, n = 1;
    int rc = take(c, 4, &type, key);
    if (rc < 0) {
        return rc;
    }
    v->is_array = type == GGUF_ARRAY;
    if (v->is_array) {
        rc = take(c, 4, &type, key);
        rc = rc < 0 ? rc : take(c, 8, &n, key);
        if (rc < 0) {
            return rc;
        }
        if (type == GGUF_ARRAY) {
            return err_set(c->e, ERR_UNSUPPORTED, "%s: field %s: unsupported array of arrays",
                           c->g->path, key);
        }
    }
    if (type >= GGUF_TYPE_COUNT) {
        return bad_field_type(c, key, type);
    }
    v->type = (enum gguf_type)type;
    v->n = n;
    v->data = c->p;
    if (type != GGUF_STRING) {
        if (n > (uint64_t)(c->end - c->p) / scalar_bytes[type]) {
            return truncated(c, key);
        }
        c->p += n * scalar_bytes[type];
        return 0;
    }
    for (uint64_t i = 0; i < n && rc == 0; i++) {
        const char *s;
        size_t len;
        rc = take_string(c, GGUF_MAX_STRING_BYTES, &s, &len, key);
    }
    return rc;
}

static int read_field(struct cursor *c)
{
    const char *s;
    size_t n;
    int rc = take_string(c, GGUF_MAX_KEY_BYTES, &s, &n, "the fields");
    if (rc < 0) {
        return rc;
    }
    struct gguf_value *v = arena_alloc(&c->g->arena, sizeof *v);
    const char *key = arena_strndup(&c->g->arena, s, n);
    if (v == NULL || key == NULL) {
        return out_of_memory(c);
    }
    if (n == 0 || strlen(key) != n) {
        return err_set(c->e, ERR_FORMAT, "%s: a field has an empty key or one with a NUL byte",
                       c->g->path);
    }
    if (map_get(c->g->fields, key, n) != NULL) {
        return err_set(c->e, ERR_FORMAT, "%s: field %s: occurs twice", c->g->path, key);
    }
    rc = read_value(c, key, v);
    if (rc == 0 && map_put(c->g->fields, key, n, v) < 0) {
        rc = out_of_memory(c);
    }
    return rc;
}

/* Name, shape, type and offset; the place of the data is checked when its beginning is known. */
static int read_tensor(struct cursor *c, struct tensor *t, uint64_t *offset)
{
    const char *s;
    size_t n;
    uint64_t n_dims = 0, type = 0;
    int rc = take_string(c, GGUF_MAX_NAME_BYTES, &s, &n, "the tensor list");
    if (rc < 0) {
        return rc;
    }
    t->file = c->g->path;
    t->name = arena_strndup(&c->g->arena, s, n);
    if (t->name == NULL) {
        return out_of_memory(c);
    }
    if (n == 0 || strlen(t->name) != n) {
        return err_set(c->e, ERR_FORMAT, "%s: a tensor has an empty name or one with a NUL byte",
                       c->g->path);
    }
    if (map_get(c->g->names, t->name, n) != NULL) {
        return err_set(c->e, ERR_FORMAT, "%s: tensor %s: occurs twice", c->g->path, t->name);
    }
    rc = take(c, 4, &n_dims, t->name);
    if (rc < 0) {
        return rc;
    }
    if (n_dims < 1 || n_dims > 4) {
        return err_set(c->e, ERR_FORMAT, "%s: tensor %s: %llu dimensions, expected 1 to 4",
                       c->g->path, t->name, (unsigned long long)n_dims);
    }
    t->n_dims = (int)n_dims;
    uint64_t elements = 1;
    for (int i = t->n_dims - 1; i >= 0; i--) { /* the file has the fastest first */
        uint64_t size = 0;
        rc = take(c, 8, &size, t->name);
        if (rc < 0) {
            return rc;
        }
        if (size == 0 || size > INT64_MAX || __builtin_mul_overflow(elements, size, &elements) ||
            elements > INT64_MAX) {
            return err_set(c->e, ERR_FORMAT, "%s: tensor %s: a size of %llu: empty or too large",
                           c->g->path, t->name, (unsigned long long)size);
        }
        t->shape[i] = (int64_t)size;
    }
    rc = take(c, 4, &type, t->name);
    rc = rc < 0 ? rc : take(c, 8, offset, t->name);
    if (rc < 0) {
        return rc;
    }
    int known = tensor_type_of((uint32_t)type);
    if (known < 0) {
        return err_set(
            c->e, ERR_UNSUPPORTED,
            "%s: tensor %s: unsupported type %llu (%s); supported: F32, F16, BF16, Q8_0, "
            "Q4_0, Q4_K, Q5_K, Q6_K",
            c->g->path, t->name, (unsigned long long)type, ggml_name((uint32_t)type));
    }
    t->type = (enum tensor_type)known;
    uint64_t per = (uint64_t)tensor_block_elements(t->type);
    if ((uint64_t)t->shape[t->n_dims - 1] % per != 0) {
        return err_set(c->e, ERR_FORMAT,
                       "%s: tensor %s: rows of %lld elements, expected a multiple of %llu for %s",
                       c->g->path, t->name, (long long)t->shape[t->n_dims - 1],
                       (unsigned long long)per, tensor_type_name(t->type));
    }
    if (__builtin_mul_overflow(elements / per, (uint64_t)tensor_block_bytes(t->type),
                               &t->n_bytes)) {
        return err_set(c->e, ERR_FORMAT, "%s: tensor %s: shape is too large", c->g->path, t->name);
    }
    return map_put(c->g->names, t->name, n, t) < 0 ? out_of_memory(c) : 0;
}

static int compare_place(const void *a, const void *b)
{
    const struct tensor *const *x = a, *const *y = b;
    return ((*x)->data > (*y)->data) - ((*x)->data < (*y)->data);
}

static int check_overlap(const struct cursor *c)
{
    const struct gguf *g = c->g;
    const struct tensor **sorted = malloc((g->n_tensors + 1) * sizeof *sorted);
    int rc = sorted == NULL ? out_of_memory(c) : 0;
    for (size_t i = 0; i < g->n_tensors && rc == 0; i++) {
        sorted[i] = &g->tensors[i];
    }
    if (rc == 0) {
        qsort(sorted, g->n_tensors, sizeof *sorted, compare_place);
    }
    for (size_t i = 1; i < g->n_tensors && rc == 0; i++) {
        const struct tensor *a = sorted[i - 1], *b = sorted[i];
        if ((const uint8_t *)a->data + a->n_bytes > (const uint8_t *)b->data) {
            rc = err_set(c->e, ERR_FORMAT, "%s: tensor %s: overlaps tensor %s", g->path, b->name,
                         a->name);
        }
    }
    free(sorted);
    return rc;
}

static int place_tensors(struct cursor *c, const uint64_t *offsets)
{
    struct gguf *g = c->g;
    int64_t align = 32;
    int rc = gguf_int(g, "general.alignment", &align, c->e);
    if (rc < 0) {
        return rc;
    }
    if (align < 8 || align > 1 << 16 || (align & (align - 1)) != 0) {
        return err_set(c->e, ERR_FORMAT,
                       "%s: field general.alignment: %lld, expected a power of two from 8 to 65536",
                       g->path, (long long)align);
    }
    size_t mask = (size_t)align - 1, start = ((size_t)(c->p - g->data) + mask) & ~mask;
    size_t have = start < g->n_bytes ? g->n_bytes - start : 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct tensor *t = &g->tensors[i];
        if ((offsets[i] & mask) != 0) {
            return err_set(c->e, ERR_FORMAT,
                           "%s: tensor %s: offset %llu, expected a multiple of %lld", g->path,
                           t->name, (unsigned long long)offsets[i], (long long)align);
        }
        if (offsets[i] > have || t->n_bytes > have - offsets[i]) {
            return err_set(c->e, ERR_FORMAT,
                           "%s: tensor %s ends past the file: truncated, or offset out of range: "
                           "expected %llu + %llu bytes of data, found %zu",
                           g->path, t->name, (unsigned long long)offsets[i],
                           (unsigned long long)t->n_bytes, have);
        }
        t->data = g->data + start + offsets[i];
    }
    return check_overlap(c);
}

static int parse(struct gguf *g, struct err *e)
{
    struct cursor c = {g, g->data, g->data + g->n_bytes, e};
    uint64_t version = 0, n_tensors = 0, n_fields = 0;
    if (g->n_bytes < 24 || memcmp(g->data, "GGUF", 4) != 0) {
        return err_set(e, ERR_FORMAT, "%s: not a GGUF file: it doesn't begin with \"GGUF\"",
                       g->path);
    }
    c.p += 4;
    int rc = take(&c, 4, &version, "the header");
    rc = rc < 0 ? rc : take(&c, 8, &n_tensors, "the header");
    rc = rc < 0 ? rc : take(&c, 8, &n_fields, "the header");
    if (rc < 0) {
        return rc;
    }
    if (version != 2 && version != 3) {
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported GGUF version %llu%s; supported: 2, 3",
                       g->path, (unsigned long long)version,
                       version > 0xffff ? " (a big-endian file)" : "");
    }
    if (n_fields > GGUF_MAX_FIELDS || n_tensors > GGUF_MAX_TENSORS) {
        return err_set(e, ERR_FORMAT,
                       "%s: %llu fields and %llu tensors, expected at most %u and %u", g->path,
                       (unsigned long long)n_fields, (unsigned long long)n_tensors, GGUF_MAX_FIELDS,
                       GGUF_MAX_TENSORS);
    }
    for (uint64_t i = 0; i < n_fields && rc == 0; i++) {
        rc = read_field(&c);
    }
    /* A tensor's entry takes 33 bytes at least. */
    if (rc == 0 && n_tensors > (uint64_t)(c.end - c.p) / 33) {
        rc = truncated(&c, "the tensor list");
    }
    if (rc < 0) {
        return rc;
    }
    g->tensors = arena_alloc(&g->arena, (size_t)(n_tensors + 1) * sizeof *g->tensors);
    uint64_t *offsets = malloc((size_t)(n_tensors + 1) * sizeof *offsets);
    if (g->tensors == NULL || offsets == NULL) {
        rc = out_of_memory(&c);
    }
    for (uint64_t i = 0; i < n_tensors && rc == 0; i++) {
        rc = read_tensor(&c, &g->tensors[i], &offsets[i]);
        g->n_tensors += rc == 0;
    }
    rc = rc < 0 ? rc : place_tensors(&c, offsets);
    free(offsets);
    return rc;
}

static int start(struct gguf **out, const char *name, struct err *e)
{
    struct gguf *g = calloc(1, sizeof *g);
    *out = g;
    if (g == NULL) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", name);
    }
    arena_init(&g->arena, 64 << 10);
    g->path = arena_strdup(&g->arena, name);
    g->fields = map_new();
    g->names = map_new();
    return g->path == NULL || g->fields == NULL || g->names == NULL
               ? err_set(e, ERR_NOMEM, "%s: out of memory", name)
               : 0;
}

static int map_file(struct gguf *g, struct err *e)
{
    int fd = open(g->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us */
    struct stat sb;
    if (fd < 0) {
        return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", g->path,
                       strerror(errno));
    }
    int rc = 0;
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode) || sb.st_size == 0) {
        rc = err_set(e, ERR_FORMAT, "%s: empty, or not a regular file", g->path);
    } else {
        void *p = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            rc = err_set(e, ERR_IO, "%s: cannot map %lld bytes: %s", g->path, (long long)sb.st_size,
                         strerror(errno));
        } else {
            g->data = p;
            g->n_bytes = (size_t)sb.st_size;
            g->mapped = 1;
        }
    }
    close(fd);
    return rc;
}

int gguf_open(struct gguf **out, const char *path, struct err *e)
{
    struct gguf *g;
    int rc = start(&g, path, e);
    rc = rc < 0 ? rc : map_file(g, e);
    rc = rc < 0 ? rc : parse(g, e);
    *out = NULL;
    if (rc < 0) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

int gguf_parse(struct gguf **out, const void *data, size_t n_bytes, const char *name, struct err *e)
{
    struct gguf *g;
    int rc = start(&g, name, e);
    if (rc == 0) {
        g->data = data;
        g->n_bytes = n_bytes;
        rc = parse(g, e);
    }
    *out = NULL;
    if (rc < 0) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void gguf_close(struct gguf *g)
{
    if (g == NULL) {
        return;
    }
    if (g->mapped) {
        munmap((void *)(uintptr_t)g->data, g->n_bytes);
    }
    map_free(g->fields);
    map_free(g->names);
    arena_fini(&g->arena);
    free(g);
}

int gguf_is_file(const char *path)
{
    char magic[4];
    struct stat sb;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return 0;
    }
    int yes = fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode) && read(fd, magic, 4) == 4 &&
              memcmp(magic, "GGUF", 4) == 0;
    close(fd);
    return yes;
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

uint64_t gguf_file_bytes(const struct gguf *g)
{
    return g->n_bytes;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct tensor *gguf_tensor(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct gguf_value *gguf_get(const struct gguf *g, const char *key)
{
    return map_get(g->fields, key, strlen(key));
}

/* ---- values ---- */

static int wrong_type(const struct gguf *g, const char *key, const struct gguf_value *v,
                      const char *expected, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: field %s: expected %s, found %s%s", g->path, key, expected,
                   v->is_array ? "an array of " : "", type_names[v->type]);
}

static double number_at(enum gguf_type type, const uint8_t *p)
{
    uint64_t u = little(p, scalar_bytes[type]);
    float f;
    double d;
    switch (type) {
    case GGUF_I8:
        return (double)(int8_t)u;
    case GGUF_I16:
        return (double)(int16_t)u;
    case GGUF_I32:
        return (double)(int32_t)u;
    case GGUF_I64:
        return (double)(int64_t)u;
    case GGUF_F32:
        memcpy(&f, p, 4);
        return (double)f;
    case GGUF_F64:
        memcpy(&d, p, 8);
        return d;
    case GGUF_BOOL:
        return u != 0;
    default:
        return (double)u;
    }
}

double gguf_item(const struct gguf_value *v, uint64_t i)
{
    return v->type == GGUF_STRING ? 0 : number_at(v->type, v->data + i * scalar_bytes[v->type]);
}

const char *gguf_next_string(const uint8_t **at, size_t *n_bytes)
{
    const char *s = (const char *)*at + 8;
    *n_bytes = (size_t)little(*at, 8);
    *at += 8 + *n_bytes;
    return s;
}

static int is_whole(enum gguf_type t)
{
    return t != GGUF_F32 && t != GGUF_F64 && t != GGUF_BOOL && t != GGUF_STRING;
}

int gguf_int(const struct gguf *g, const char *key, int64_t *out, struct err *e)
{
    const struct gguf_value *v = gguf_get(g, key);
    if (v == NULL) {
        return 0;
    }
    double d = v->is_array ? 0 : gguf_item(v, 0);
    if (v->is_array || !is_whole(v->type)) {
        return wrong_type(g, key, v, "a whole number", e);
    }
    if (!(d >= -0x1p53 && d <= 0x1p53)) {
        return err_set(e, ERR_FORMAT, "%s: field %s: %g is out of range", g->path, key, d);
    }
    *out = (int64_t)d;
    return 1;
}

int gguf_float(const struct gguf *g, const char *key, double *out, struct err *e)
{
    const struct gguf_value *v = gguf_get(g, key);
    if (v == NULL) {
        return 0;
    }
    if (v->is_array || v->type == GGUF_BOOL || v->type == GGUF_STRING) {
        return wrong_type(g, key, v, "a number", e);
    }
    *out = gguf_item(v, 0);
    return 1;
}

int gguf_bool(const struct gguf *g, const char *key, int *out, struct err *e)
{
    const struct gguf_value *v = gguf_get(g, key);
    if (v == NULL) {
        return 0;
    }
    if (v->is_array || v->type != GGUF_BOOL) {
        return wrong_type(g, key, v, "a bool", e);
    }
    *out = v->data[0] != 0;
    return 1;
}

int gguf_string(const struct gguf *g, const char *key, const char **out, size_t *n_bytes,
                struct err *e)
{
    const struct gguf_value *v = gguf_get(g, key);
    if (v == NULL) {
        return 0;
    }
    if (v->is_array || v->type != GGUF_STRING) {
        return wrong_type(g, key, v, "a string", e);
    }
    const uint8_t *at = v->data;
    *out = gguf_next_string(&at, n_bytes);
    return 1;
}
