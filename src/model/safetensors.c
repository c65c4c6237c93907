/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors reader; the format is in safetensors.h. The header comes from outside: it is parsed
 * by the strict JSON reader under a size cap, every number is checked before it is used in
 * arithmetic, and spans are sorted once so that overlaps and holes show as a difference between
 * neighbours. The JSON reader keeps the last of two equal keys, so duplicates are found by a scan
 * of the raw text (which is known to be valid JSON by then). */
#include "model/safetensors.h"

#include "base/arena.h"
#include "base/json.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct safetensors {
    char *path;
    struct arena arena;
    const uint8_t *map;
    size_t file_bytes, data_start;
    struct safetensors_tensor *by_offset; /* [n] ascending begin */
    struct safetensors_tensor **by_name;  /* [n] ascending name */
    size_t n;
};

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
#define ROW(name, bytes) {#name, bytes},
    SAFETENSORS_DTYPES(ROW)
#undef ROW
};
#define N_DTYPES (sizeof dtypes / sizeof dtypes[0])

const char *safetensors_dtype_name(enum safetensors_dtype d)
{
    return dtypes[d].name;
}

size_t safetensors_dtype_size(enum safetensors_dtype d)
{
    return dtypes[d].bytes;
}

static const char lfs_magic[] = "version https://git-lfs";

static int starts_as_lfs(const void *data, size_t n_bytes)
{
    return n_bytes >= sizeof lfs_magic - 1 && memcmp(data, lfs_magic, sizeof lfs_magic - 1) == 0;
}

int safetensors_is_lfs_pointer(const char *path)
{
    char head[sizeof lfs_magic - 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us */
    if (fd < 0) {
        return 0;
    }
    ssize_t n = read(fd, head, sizeof head);
    close(fd);
    return n > 0 && starts_as_lfs(head, (size_t)n);
}

static int map_file(struct safetensors *st, struct err *e)
{
    int rc = 0;
    int fd = open(st->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", st->path,
                       strerror(errno));
    }
    struct stat sb;
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        rc = err_set(e, ERR_IO, "%s: not a regular file", st->path);
        goto done;
    }
    st->file_bytes = (size_t)sb.st_size;
    if (st->file_bytes == 0) {
        rc = err_set(e, ERR_FORMAT, "%s: file is empty, expected a safetensors header", st->path);
        goto done;
    }
    void *p = mmap(NULL, st->file_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        rc = err_set(e, ERR_IO, "%s: cannot map %zu bytes: %s", st->path, st->file_bytes,
                     strerror(errno));
        goto done;
    }
    st->map = p;
    madvise(p, st->file_bytes, MADV_SEQUENTIAL);
done:
    close(fd);
    return rc;
}

static int parse_dtype(const char *name)
{
    for (size_t i = 0; i < N_DTYPES; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static int parse_tensor(struct safetensors *st, struct safetensors_tensor *t, const struct json *v,
                        struct err *e)
{
    const char *file = st->path;
    if (json_type(v) != JSON_OBJECT) {
        return err_set(e, ERR_FORMAT, "%s: tensor %s: expected an object in the header", file,
                       t->name);
    }
    const struct json *dtype = json_get(v, "dtype");
    const struct json *shape = json_get(v, "shape");
    const struct json *span = json_get(v, "data_offsets");
    if (json_type(dtype) != JSON_STRING) {
        return err_set(e, ERR_FORMAT, "%s: tensor %s: dtype is missing or no string", file,
                       t->name);
    }
    int d = parse_dtype(json_string(dtype, NULL));
    if (d < 0) {
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: unknown dtype \"%s\"", file, t->name,
                       json_string(dtype, NULL));
    }
    t->dtype = (enum safetensors_dtype)d;
    if (json_type(shape) != JSON_ARRAY || json_length(shape) > SAFETENSORS_MAX_DIMS) {
        return err_set(e, ERR_FORMAT, "%s: tensor %s: shape must be an array of at most %d sizes",
                       file, t->name, SAFETENSORS_MAX_DIMS);
    }
    t->n_dims = (int)json_length(shape);
    uint64_t bytes = dtypes[d].bytes;
    for (int i = 0; i < t->n_dims; i++) {
        const struct json *dim = json_at(shape, (size_t)i);
        if (json_type(dim) != JSON_INT || json_int(dim) < 0) {
            return err_set(e, ERR_FORMAT, "%s: tensor %s: shape[%d] is no size", file, t->name, i);
        }
        t->shape[i] = json_int(dim);
        if (__builtin_mul_overflow(bytes, (uint64_t)t->shape[i], &bytes)) {
            return err_set(e, ERR_FORMAT, "%s: tensor %s: shape is too large", file, t->name);
        }
    }
    if (json_type(span) != JSON_ARRAY || json_length(span) != 2 ||
        json_type(json_at(span, 0)) != JSON_INT || json_type(json_at(span, 1)) != JSON_INT ||
        json_int(json_at(span, 0)) < 0 || json_int(json_at(span, 1)) < json_int(json_at(span, 0))) {
        return err_set(e, ERR_FORMAT,
                       "%s: tensor %s: data_offsets must be [begin, end] with 0 <= begin <= end",
                       file, t->name);
    }
    t->begin = (uint64_t)json_int(json_at(span, 0));
    t->end = (uint64_t)json_int(json_at(span, 1));
    if (t->end - t->begin != bytes) {
        return err_set(e, ERR_FORMAT,
                       "%s: tensor %s: shape and dtype %s need %llu bytes, data_offsets span %llu",
                       file, t->name, dtypes[d].name, (unsigned long long)bytes,
                       (unsigned long long)(t->end - t->begin));
    }
    return 0;
}

struct span {
    const char *s;
    size_t n;
};

static int compare_spans(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return c != 0 ? c : (x->n > y->n) - (x->n < y->n);
}

/* Refuses a key that occurs twice in the outermost object of valid JSON text. */
static int check_unique(const struct safetensors *st, const char *text, size_t n_bytes,
                        size_t n_members, struct err *e)
{
    struct span *keys = NULL;
    size_t n = 0, cap = 0;
    int depth = 0, rc = 0, in_key = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        char c = text[i];
        if (c == '{' || c == '[') {
            in_key = c == '{' && depth == 0;
            depth++;
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == ',' && depth == 1) {
            in_key = 1;
        } else if (c == '"') {
            size_t begin = ++i;
            while (i < n_bytes && text[i] != '"') {
                i += text[i] == '\\' ? 2 : 1;
            }
            if (depth != 1 || !in_key) {
                continue;
            }
            in_key = 0;
            if (n == cap) {
                cap = cap != 0 ? cap * 2 : 256;
                struct span *more = realloc(keys, cap * sizeof *keys);
                if (more == NULL) {
                    rc = err_set(e, ERR_NOMEM, "%s: out of memory", st->path);
                    goto done;
                }
                keys = more;
            }
            keys[n++] = (struct span){text + begin, i - begin};
        }
    }
    if (n == n_members) {
        goto done;
    }
    qsort(keys, n, sizeof *keys, compare_spans);
    for (size_t i = 1; i < n; i++) {
        if (compare_spans(&keys[i - 1], &keys[i]) == 0) {
            rc = err_set(e, ERR_FORMAT, "%s: tensor %.*s: name occurs twice in the header",
                         st->path, (int)(keys[i].n < 200 ? keys[i].n : 200), keys[i].s);
            goto done;
        }
    }
    rc = err_set(e, ERR_FORMAT, "%s: a tensor name occurs twice in the header", st->path);
done:
    free(keys);
    return rc;
}

static int compare_offset(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

static int compare_name(const void *a, const void *b)
{
    const struct safetensors_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int check_spans(struct safetensors *st, struct err *e)
{
    uint64_t have = st->file_bytes - st->data_start;
    uint64_t expected = 0;
    qsort(st->by_offset, st->n, sizeof *st->by_offset, compare_offset);
    for (size_t i = 0; i < st->n; i++) {
        const struct safetensors_tensor *t = &st->by_offset[i];
        if (t->begin < expected) {
            return err_set(
                e, ERR_FORMAT,
                "%s: tensor %s: begins at byte %llu inside tensor %s, which ends at %llu", st->path,
                t->name, (unsigned long long)t->begin, st->by_offset[i - 1].name,
                (unsigned long long)expected);
        }
        if (t->begin > expected && st->by_offset[st->n - 1].begin > have) {
            t = &st->by_offset[st->n - 1];
            return err_set(
                e, ERR_FORMAT, "%s: tensor %s: offsets out of range: begins at byte %llu of %llu",
                st->path, t->name, (unsigned long long)t->begin, (unsigned long long)have);
        }
        if (t->begin > expected) {
            return err_set(e, ERR_FORMAT,
                           "%s: tensor %s: begins at byte %llu, expected %llu: a hole in the data",
                           st->path, t->name, (unsigned long long)t->begin,
                           (unsigned long long)expected);
        }
        expected = t->end;
    }
    for (size_t i = 0; i < st->n; i++) {
        const struct safetensors_tensor *t = &st->by_offset[i];
        if (t->end > have) {
            return err_set(e, ERR_FORMAT,
                           "%s: tensor %s ends past the file: truncated, or offsets out of range: "
                           "expected %llu bytes, "
                           "found %llu",
                           st->path, t->name, (unsigned long long)(expected + st->data_start),
                           (unsigned long long)st->file_bytes);
        }
    }
    if (expected != have) {
        return err_set(
            e, ERR_FORMAT, "%s: %llu bytes follow the last tensor: expected %llu bytes, found %llu",
            st->path, (unsigned long long)(have - expected),
            (unsigned long long)(expected + st->data_start), (unsigned long long)st->file_bytes);
    }
    return 0;
}

static int parse_header(struct safetensors *st, struct err *e)
{
    if (starts_as_lfs(st->map, st->file_bytes)) {
        return err_set(e, ERR_FORMAT,
                       "%s: is a Git LFS pointer (%zu bytes), run git lfs pull in the model "
                       "directory to get the weights",
                       st->path, st->file_bytes);
    }
    if (st->file_bytes < 8) {
        return err_set(e, ERR_FORMAT, "%s: truncated: expected at least 8 bytes, found %zu",
                       st->path, st->file_bytes);
    }
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) {
        n = n << 8 | st->map[i];
    }
    if (n > SAFETENSORS_MAX_HEADER_BYTES) {
        return err_set(e, ERR_FORMAT,
                       "%s: bad header: length %llu, expected at most %u: not a safetensors file",
                       st->path, (unsigned long long)n, SAFETENSORS_MAX_HEADER_BYTES);
    }
    if (n > st->file_bytes - 8) {
        return err_set(e, ERR_FORMAT,
                       "%s: truncated in the header, or not a safetensors file: expected more than "
                       "%llu bytes, found %zu",
                       st->path, (unsigned long long)n + 8, st->file_bytes);
    }
    st->data_start = 8 + (size_t)n;
    const char *text = (const char *)st->map + 8;
    struct json *doc = NULL;
    if (n == 0 || text[0] != '{') {
        return err_set(e, ERR_FORMAT,
                       "%s: bad header: expected a JSON object: not a safetensors file", st->path);
    }
    int rc = json_parse(&doc, text, (size_t)n, JSON_DEPTH_DEFAULT, e);
    if (rc < 0) {
        err_prefix(e, "%s: bad header", st->path);
        return rc;
    }
    rc = check_unique(st, text, (size_t)n, json_length(doc), e);
    size_t it = 0, key_bytes, cap = json_length(doc);
    const char *key;
    const struct json *value;
    st->by_offset = arena_alloc(&st->arena, (cap + 1) * sizeof *st->by_offset);
    st->by_name = arena_alloc(&st->arena, (cap + 1) * sizeof *st->by_name);
    if (rc == 0 && (st->by_offset == NULL || st->by_name == NULL)) {
        rc = err_set(e, ERR_NOMEM, "%s: out of memory", st->path);
    }
    while (rc == 0 && json_next(doc, &it, &key, &key_bytes, &value)) {
        if (strcmp(key, "__metadata__") == 0) {
            continue;
        }
        struct safetensors_tensor *t = &st->by_offset[st->n++];
        t->name = arena_strndup(&st->arena, key, key_bytes);
        rc = t->name == NULL ? err_set(e, ERR_NOMEM, "%s: out of memory", st->path)
                             : parse_tensor(st, t, value, e);
    }
    json_free(doc);
    return rc < 0 ? rc : check_spans(st, e);
}

int safetensors_open(struct safetensors **out, const char *path, struct err *e)
{
    *out = NULL;
    struct safetensors *st = calloc(1, sizeof *st);
    if (st == NULL) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", path);
    }
    arena_init(&st->arena, 64 << 10);
    st->path = arena_strdup(&st->arena, path);
    int rc = st->path == NULL ? err_set(e, ERR_NOMEM, "%s: out of memory", path) : 0;
    rc = rc < 0 ? rc : map_file(st, e);
    rc = rc < 0 ? rc : parse_header(st, e);
    if (rc < 0) {
        safetensors_close(st);
        return rc;
    }
    for (size_t i = 0; i < st->n; i++) {
        st->by_name[i] = &st->by_offset[i];
    }
    qsort(st->by_name, st->n, sizeof *st->by_name, compare_name);
    *out = st;
    return 0;
}

void safetensors_close(struct safetensors *st)
{
    if (st == NULL) {
        return;
    }
    if (st->map != NULL) {
        munmap((void *)(uintptr_t)st->map, st->file_bytes);
    }
    arena_fini(&st->arena);
    free(st);
}

const char *safetensors_path(const struct safetensors *st)
{
    return st->path;
}

uint64_t safetensors_file_bytes(const struct safetensors *st)
{
    return st->file_bytes;
}

size_t safetensors_count(const struct safetensors *st)
{
    return st->n;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *st, size_t i)
{
    return &st->by_offset[i];
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name)
{
    size_t lo = 0, hi = st->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, st->by_name[mid]->name);
        if (c == 0) {
            return st->by_name[mid];
        }
        if (c < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

const void *safetensors_data(const struct safetensors *st, const struct safetensors_tensor *t)
{
    return st->map + st->data_start + t->begin;
}
