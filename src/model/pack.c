/* SPDX-License-Identifier: Apache-2.0 */
/* The packed file. Opening reads and checks the head, which says all that sizes and plans need;
 * loading maps the tiles for reading only. Checking the hash is one pass over the bytes on all
 * workers, which also brings their pages in. A fault names the file and what is wrong with it. */
#include "model/pack.h"

#include "base/hash.h"
#include "model/internal.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE_BYTES     ((uint64_t)2 << 20)
#define MAX_HEAD_BYTES ((uint64_t)1 << 30)

static const char magic[8] = {'T', 'E', 'R', 'N', 'P', 'A', 'C', 'K'};

_Static_assert(sizeof(struct pack_header) <= PACK_RECORDS_AT, "records begin behind the header");

struct pack {
    char *path;
    int fd;
    uint8_t *head; /* [data_at] a copy */
    void *mapping; /* of the tiles; or NULL */
    size_t mapping_bytes;
    const struct pack_record *records;
    int n_records;
    const float *norms;
    const int32_t *order, *tiles;
};

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Where the parts of the head begin. */
struct places {
    uint64_t norms, order, tiles, end;
};

static struct places places_of(const struct pack_header *h)
{
    const uint64_t n_records = 4ull * h->n_layers + (h->tied ? 1 : 2);
    struct places p;
    p.norms = round_up(PACK_RECORDS_AT + n_records * sizeof(struct pack_record), 64);
    p.order = round_up(p.norms + 4 * (2ull * h->n_layers + 1) * h->hidden_size, 64);
    p.tiles = round_up(p.order + 4 * h->n_order, 64);
    p.end = p.tiles + 4 * h->n_tiles;
    return p;
}

const struct pack_header *pack_head(const struct pack *p)
{
    return (const struct pack_header *)p->head;
}

static struct hash128 hash_head(uint8_t *head, uint64_t n_bytes)
{
    struct pack_header *h = (struct pack_header *)head;
    const struct hash128 was = h->head_hash;
    h->head_hash = (struct hash128){0, 0};
    const struct hash128 hash = hash128(head, n_bytes, PACK_VERSION);
    h->head_hash = was;
    return hash;
}

/* ---- writing ---- */

static struct pack_record record_of(const struct weights *w, int index, const struct weight *m)
{
    return (struct pack_record){.format = (int32_t)m->format,
                                .n = m->n,
                                .k = m->k,
                                .group = m->group,
                                .super = m->super,
                                .has_zero = m->has_zero,
                                .has_offset = m->has_offset,
                                .scale_type = (int32_t)m->scale_type,
                                .asked = (int32_t)w->asked[index],
                                .ordered = m->order != NULL,
                                .input_scale = m->input_scale};
}

static void fill_head(const struct model *m, uint8_t *head, const struct places *at)
{
    const struct weights *w = &m->weights;
    struct pack_header *h = (struct pack_header *)head;
    struct pack_record *r = (struct pack_record *)(head + PACK_RECORDS_AT);
    int n = 0;
    for (int i = 0; i < w->n_layers; i++) {
        const struct weights_layer *l = &w->layers[i];
        const struct weight *const all[] = {&l->qkv, &l->o, &l->gate_up, &l->down};
        for (int j = 0; j < 4; j++, n++) {
            r[n] = record_of(w, n, all[j]);
        }
    }
    r[n] = record_of(w, n, &w->embed);
    if (!m->config.tied) {
        r[n + 1] = record_of(w, n + 1, &w->head);
    }
    memcpy(head + at->norms, w->norms,
           (2 * (size_t)w->n_layers + 1) * h->hidden_size * sizeof *w->norms);
    if (h->n_order > 0) {
        memcpy(head + at->order, w->order, h->n_order * sizeof *w->order);
    }
    int32_t *tiles = (int32_t *)(head + at->tiles);
    for (uint64_t t = 0; t < h->n_tiles; t++) {
        tiles[t] = (int32_t)(w->tiles[t] - w->order);
    }
    h->head_hash = hash_head(head, h->data_at);
}

int pack_check(const struct model *m, struct err *e)
{
    return m->pack != NULL ? err_set(e, ERR_UNSUPPORTED, "%s: the model is packed already", m->path)
                           : 0;
}

int pack_write(const struct model *m, const char *path, uint64_t *n_bytes, struct err *e)
{
    const struct weights *w = &m->weights;
    const struct model_config *c = &m->config;
    struct pack_header h = {.version = PACK_VERSION,
                            .n_layers = (uint32_t)c->n_layers,
                            .vocab_size = (uint32_t)c->vocab_size,
                            .hidden_size = (uint32_t)c->hidden_size,
                            .intermediate_size = (uint32_t)c->intermediate_size,
                            .n_heads = (uint32_t)c->n_heads,
                            .n_kv_heads = (uint32_t)c->n_kv_heads,
                            .head_dim = (uint32_t)c->head_dim,
                            .tied = (uint32_t)c->tied,
                            .method = (uint32_t)m->quant.method,
                            .data_bytes = w->memory_bytes,
                            .n_order = w->n_order,
                            .n_tiles = w->n_tiles,
                            .n_params = w->n_params,
                            .bytes_per_token = w->bytes_per_token,
                            .data_hash = w->data_hash};
    memcpy(h.magic, magic, sizeof magic);
    snprintf(h.stored, sizeof h.stored, "%s", m->stored);
    const struct places at = places_of(&h);
    h.data_at = round_up(at.end, HUGE_BYTES);
    h.file_bytes = h.data_at + h.data_bytes;
    uint8_t *head = calloc(1, h.data_at);
    if (head == NULL) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", path);
    }
    memcpy(head, &h, sizeof h);
    fill_head(m, head, &at);
    FILE *f = fopen(path, "wbx");
    int bad = f == NULL || fwrite(head, 1, h.data_at, f) != h.data_at ||
              fwrite(w->memory, 1, w->memory_bytes, f) != w->memory_bytes || fflush(f) != 0 ||
              fsync(fileno(f)) != 0;
    const int why = errno;
    bad |= f != NULL && fclose(f) != 0;
    free(head);
    *n_bytes = h.file_bytes;
    return bad ? err_set(e, ERR_IO, "%s: %s", path, strerror(why != 0 ? why : errno)) : 0;
}

/* ---- reading ---- */

int pack_is_there(const char *dir)
{
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s/" PACK_FILE, dir);
    return n > 0 && n < (int)sizeof path && access(path, F_OK) == 0;
}

static int damaged(const struct pack *p, struct err *e, const char *what)
{
    return err_set(e, ERR_FORMAT, "%s: %s: damaged, or no file that tern quantize --pack made",
                   p->path, what);
}

/* The first bytes and the size. */
static int read_header(const struct pack *p, struct pack_header *h, struct err *e)
{
    struct stat sb;
    if (fstat(p->fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        return err_set(e, ERR_IO, "%s: not a regular file", p->path);
    }
    const ssize_t n = pread(p->fd, h, sizeof *h, 0);
    if (n < 0) {
        return err_set(e, ERR_IO, "%s: %s", p->path, strerror(errno));
    }
    if (n < (ssize_t)sizeof *h || memcmp(h->magic, magic, sizeof magic) != 0) {
        return damaged(p, e, "doesn't begin with TERNPACK");
    }
    if (h->version != PACK_VERSION) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: packed in layout %u, this program has layout %d: pack the model again "
                       "(tern quantize --pack)",
                       p->path, h->version, PACK_VERSION);
    }
    if ((uint64_t)sb.st_size != h->file_bytes) {
        return err_set(e, ERR_FORMAT, "%s: truncated or not whole: %lld bytes, expected %llu",
                       p->path, (long long)sb.st_size, (unsigned long long)h->file_bytes);
    }
    return 0;
}

static int check_config(const struct pack *p, const struct model_config *c, struct err *e)
{
    const struct pack_header *h = pack_head(p);
    const struct {
        const char *name;
        uint32_t found;
        int expected;
    } all[] = {{"num_hidden_layers", h->n_layers, c->n_layers},
               {"vocab_size", h->vocab_size, c->vocab_size},
               {"hidden_size", h->hidden_size, c->hidden_size},
               {"intermediate_size", h->intermediate_size, c->intermediate_size},
               {"num_attention_heads", h->n_heads, c->n_heads},
               {"num_key_value_heads", h->n_kv_heads, c->n_kv_heads},
               {"head_dim", h->head_dim, c->head_dim}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].found != (uint32_t)all[i].expected) {
            return err_set(e, ERR_FORMAT, "%s: %s is %u, but config.json says %d", p->path,
                           all[i].name, all[i].found, all[i].expected);
        }
    }
    return 0;
}

int pack_open(struct pack **out, const char *dir, struct model_config *c, struct err *e)
{
    struct pack *p = calloc(1, sizeof *p);
    struct pack_header h;
    char path[4096];
    *out = NULL;
    snprintf(path, sizeof path, "%s/" PACK_FILE, dir);
    if (p == NULL || (p->path = strdup(path)) == NULL) {
        free(p);
        return err_set(e, ERR_NOMEM, "%s: out of memory", path);
    }
    p->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us */
    int rc = p->fd < 0 ? err_set(e, ERR_IO, "%s: %s", path, strerror(errno)) : 0;
    rc = rc < 0 ? rc : read_header(p, &h, e);
    const struct places at = rc == 0 ? places_of(&h) : (struct places){0, 0, 0, 0};
    if (rc == 0 &&
        (h.n_layers > 65536 || h.hidden_size > 1u << 24 || h.n_order > 1u << 28 ||
         h.n_tiles > 1u << 26 || h.data_at % HUGE_BYTES != 0 || h.data_at < at.end ||
         h.data_at > MAX_HEAD_BYTES || h.data_bytes != h.file_bytes - h.data_at ||
         h.bytes_per_token > h.data_bytes || h.tied > 1 || h.method >= QUANT_METHOD_COUNT)) {
        rc = damaged(p, e, "its parts don't fit each other");
    }
    if (rc == 0 && (p->head = malloc(h.data_at)) == NULL) {
        rc = err_set(e, ERR_NOMEM, "%s: out of memory", path);
    }
    for (uint64_t n = 0; rc == 0 && n < h.data_at;) {
        const ssize_t got = pread(p->fd, p->head + n, h.data_at - n, (off_t)n);
        rc = got > 0 ? 0 : err_set(e, ERR_IO, "%s: %s", path, got < 0 ? strerror(errno) : "is cut");
        n += got > 0 ? (uint64_t)got : 0;
    }
    if (rc == 0) {
        const struct hash128 hash = hash_head(p->head, h.data_at);
        rc = memcmp(&hash, &pack_head(p)->head_hash, sizeof hash) != 0
                 ? damaged(p, e, "its head has another hash")
                 : check_config(p, c, e);
    }
    if (rc < 0) {
        pack_close(p);
        return rc;
    }
    ((struct pack_header *)p->head)->stored[sizeof h.stored - 1] = '\0';
    p->records = (const struct pack_record *)(p->head + PACK_RECORDS_AT);
    p->n_records = 4 * c->n_layers + (h.tied ? 1 : 2);
    p->norms = (const float *)(const void *)(p->head + at.norms);
    p->order = (const int32_t *)(p->head + at.order);
    p->tiles = (const int32_t *)(p->head + at.tiles);
    c->tied = h.tied != 0;
    *out = p;
    return 0;
}

void pack_close(struct pack *p)
{
    if (p == NULL) {
        return;
    }
    if (p->mapping != NULL) {
        munmap(p->mapping, p->mapping_bytes);
    }
    if (p->fd >= 0) {
        close(p->fd);
    }
    free(p->head);
    free(p->path);
    free(p);
}

static int weight_of(const struct pack *p, const struct pack_record *r, int n, int k,
                     const struct weights_options *o, struct weight *w, struct err *e)
{
    *w = (struct weight){.format = (enum weight_format)r->format,
                         .n = r->n,
                         .k = r->k,
                         .group = r->group,
                         .super = r->super,
                         .has_zero = r->has_zero,
                         .has_offset = r->has_offset,
                         .scale_type = (enum dtype)r->scale_type,
                         .input_scale = r->input_scale};
    const int plain = r->format == WEIGHT_BF16 || r->format == WEIGHT_F32;
    if (r->format < 0 || r->format >= WEIGHT_FORMAT_COUNT || r->n != n || r->k != k ||
        r->scale_type < 0 || r->scale_type > DTYPE_F32 || r->has_zero < 0 || r->has_zero > 1 ||
        r->has_offset < 0 || r->has_offset > 1 || r->super < 0 || r->asked < QUANT_ACT_16 ||
        r->asked > QUANT_ACT_E5M2 || r->group < 0 || r->ordered < 0 || r->ordered > 1 ||
        (plain && r->ordered) ||
        (r->input_scale != 0 && !(isnormal(r->input_scale) && r->input_scale > 0))) {
        return damaged(p, e, "a matrix has numbers that can't be");
    }
    if (w->format == WEIGHT_F32 && o->act != ACT_F32) {
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: holds 32-bit matrices (packed with --dtype float32), which need --dtype "
            "float32",
            p->path);
    }
    if (weight_is_quantized(w)) {
        w->input = weights_input_for(o, w, (enum quant_act)r->asked, r->ordered);
    }
    const char *why = weight_unsupported(w);
    return why != NULL ? damaged(p, e, why) : 0;
}

/* Act-order: matrices take their tiles one after the other. */
static int plan_orders(const struct pack *p, struct weights *w, struct err *e)
{
    const struct pack_header *h = pack_head(p);
    w->n_order = h->n_order;
    w->n_tiles = h->n_tiles;
    w->order = malloc((h->n_order + 1) * sizeof *w->order);
    w->tiles = calloc(h->n_tiles + 1, sizeof *w->tiles);
    if (w->order == NULL || w->tiles == NULL) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", p->path);
    }
    memcpy(w->order, p->order, h->n_order * sizeof *w->order);
    uint64_t at = 0;
    for (int i = 0; i < p->n_records; i++) {
        struct weight *m = weights_at(w, i);
        if (!p->records[i].ordered) {
            continue;
        }
        const uint64_t n_tiles = ((uint64_t)m->n + TILE_N - 1) / TILE_N;
        if (n_tiles > h->n_tiles - at) {
            return damaged(p, e, "its act-order is cut");
        }
        m->order = &w->tiles[at];
        for (uint64_t t = 0; t < n_tiles; t++, at++) {
            const int32_t from = p->tiles[at];
            if (from < 0 || (uint64_t)from + (uint64_t)m->k > h->n_order) {
                return damaged(p, e, "its act-order is cut");
            }
            for (int j = 0; j < m->k; j++) {
                if (w->order[from + j] < 0 || w->order[from + j] >= m->k) {
                    return damaged(p, e, "its act-order names columns that aren't there");
                }
            }
            w->tiles[at] = w->order + from;
        }
    }
    return at == h->n_tiles ? 0 : damaged(p, e, "its act-order is of other matrices");
}

int pack_plan(const struct pack *p, struct weights *w, const struct weights_options *o,
              struct err *e)
{
    const struct pack_header *h = pack_head(p);
    const int hidden = (int)h->hidden_size, inter = (int)h->intermediate_size,
              q = (int)(h->n_heads * h->head_dim), kv = (int)(h->n_kv_heads * h->head_dim),
              whole = (inter + TILE_N - 1) / TILE_N * TILE_N;
    const int shapes[4][2] = {
        {q + 2 * kv, hidden}, {hidden, q}, {2 * whole, hidden}, {hidden, inter}};
    uint64_t sum = 0;
    int rc = weights_alloc(w, (int)h->n_layers, h->tied != 0, e);
    for (int i = 0; i < p->n_records && rc == 0; i++) {
        const int outer = i >= 4 * w->n_layers;
        struct weight *m = weights_at(w, i);
        rc = weight_of(p, &p->records[i], outer ? (int)h->vocab_size : shapes[i % 4][0],
                       outer ? hidden : shapes[i % 4][1], o, m, e);
        sum += rc == 0 ? weight_bytes(m) : 0;
        w->asked[i] = (uint8_t)p->records[i].asked;
    }
    if (rc == 0 && sum != h->data_bytes) {
        rc = damaged(p, e, "its matrices have another size");
    }
    rc = rc < 0 ? rc : plan_orders(p, w, e);
    if (rc == 0 && h->tied) {
        w->head = w->embed;
    }
    w->memory_bytes = h->data_bytes;
    w->n_params = h->n_params;
    w->bytes_per_token = h->bytes_per_token;
    return rc;
}

/* The tiles at an address that is a multiple of 2 MiB, as their place in the file is: so the kernel
 * can use large pages where it keeps files in them. */
static int map_tiles(struct pack *p, struct err *e)
{
    const struct pack_header *h = pack_head(p);
    const size_t n = h->data_bytes + HUGE_BYTES;
    uint8_t *room = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        return err_set(e, ERR_NOMEM, "%s: %s", p->path, strerror(errno));
    }
    uint8_t *at = (uint8_t *)round_up((uintptr_t)room, HUGE_BYTES);
    if (mmap(at, h->data_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, p->fd, (off_t)h->data_at) ==
        MAP_FAILED) {
        const int why = errno;
        munmap(room, n);
        return err_set(e, ERR_IO, "%s: %s", p->path, strerror(why));
    }
    if (at > room) {
        munmap(room, (size_t)(at - room));
    }
    uint8_t *end =
        (uint8_t *)round_up((uintptr_t)at + h->data_bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    if (end < room + n) {
        munmap(end, (size_t)(room + n - end));
    }
    madvise(at, h->data_bytes, MADV_HUGEPAGE); /* both are only wishes */
    madvise(at, h->data_bytes, MADV_WILLNEED);
    p->mapping = at;
    p->mapping_bytes = h->data_bytes;
    return 0;
}

int pack_load(struct pack *p, struct weights *w, const struct model_config *c,
              const struct weights_options *o, const struct kernels *k, struct cpu_pool *pool,
              struct err *e)
{
    const size_t n = (2 * (size_t)c->n_layers + 1) * (size_t)c->hidden_size;
    w->norms = malloc(n * sizeof *w->norms);
    if (w->norms == NULL) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", p->path);
    }
    memcpy(w->norms, p->norms, n * sizeof *w->norms);
    for (size_t i = 0; i < n && o->act == ACT_BF16; i++) {
        w->norms[i] = bf16_to_f32(f32_to_bf16(w->norms[i]));
    }
    int rc = map_tiles(p, e);
    rc = rc < 0 ? rc : weights_adopt(w, p->mapping, c, o, k, pool, e);
    if (rc == 0 && memcmp(&w->data_hash, &pack_head(p)->data_hash, sizeof w->data_hash) != 0) {
        rc = damaged(p, e, "its matrices have another hash");
    }
    return rc;
}
