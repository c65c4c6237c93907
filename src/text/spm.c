/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.model -> struct spm. The fields that are read (protobuf field number: meaning):
 *
 *   ModelProto       1 pieces (repeated)   2 trainer_spec   3 normalizer_spec   5 denormalizer_spec
 *   SentencePiece    1 piece (UTF-8)       2 score (float)  3 type (1..6, default 1 = NORMAL)
 *   TrainerSpec      3 model_type (2 = BPE)                 24 treat_whitespace_as_suffix  35
 * byte_fallback NormalizerSpec   2 precompiled_charsmap  3 add_dummy_prefix  4
 * remove_extra_whitespaces 5 escape_whitespaces (3, 4 and 5 default to true when absent)
 *
 * Unknown fields are skipped. Every length is checked against the bytes that are left, so that no
 * file can make the reader leave its buffer or allocate more than a small multiple of the file's
 * own size. */
#include "text/spm.h"

#include "base/buf.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "cpu/cpu.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct span {
    const uint8_t *p, *end;
};

struct field {
    uint32_t number;
    int wire;          /* 0 varint, 1 eight bytes, 2 bytes, 5 four bytes */
    uint64_t value;    /* wire 0, 1, 5 */
    struct span bytes; /* wire 2 */
};

struct specs {
    uint64_t model_type, byte_fallback, whitespace_as_suffix;
    uint64_t add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces;
    size_t charsmap_bytes, denormalizer_bytes;
};

static int varint(struct span *s, uint64_t *out)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (s->p == s->end) {
            return -1;
        }
        uint8_t c = *s->p++;
        v |= (uint64_t)(c & 127) << shift;
        if (c < 128) {
            *out = v;
            return 0;
        }
    }
    return -1;
}

static uint64_t little_endian(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++) {
        v |= (uint64_t)p[i] << (8 * i);
    }
    return v;
}

/* 1 and *f filled, 0 at the end, -1 for bytes that are no protobuf. */
static int next_field(struct span *s, struct field *f)
{
    uint64_t tag;
    if (s->p == s->end) {
        return 0;
    }
    if (varint(s, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff) {
        return -1;
    }
    f->number = (uint32_t)(tag >> 3);
    f->wire = (int)(tag & 7);
    f->value = 0;
    f->bytes = (struct span){NULL, NULL};
    size_t left;
    switch (f->wire) {
    case 0:
        return varint(s, &f->value) ? -1 : 1;
    case 1:
    case 5:
        left = f->wire == 1 ? 8 : 4;
        if ((size_t)(s->end - s->p) < left) {
            return -1;
        }
        f->value = little_endian(s->p, (int)left);
        s->p += left;
        return 1;
    case 2:
        if (varint(s, &f->value) || f->value > (uint64_t)(s->end - s->p)) {
            return -1;
        }
        f->bytes.p = s->p;
        s->p += f->value;
        f->bytes.end = s->p;
        return 1;
    default:
        return -1;
    }
}

static int bad_bytes(struct err *e, const char *name, const char *where)
{
    return err_set(e, ERR_FORMAT, "%s: %s is not a SentencePiece model (bad protobuf)", name,
                   where);
}

static int read_piece(struct spm_piece *p, struct span s, int id, const char *name, struct err *e)
{
    struct field f;
    int r;
    *p = (struct spm_piece){.text = "", .type = SPM_NORMAL};
    while ((r = next_field(&s, &f)) > 0) {
        if (f.number == 1 && f.wire == 2) {
            p->text = (const char *)f.bytes.p;
            p->n_bytes = (uint32_t)(f.bytes.end - f.bytes.p);
        } else if (f.number == 2 && f.wire == 5) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&p->score, &bits, sizeof(p->score));
        } else if (f.number == 3 && f.wire == 0) {
            p->type = f.value < UINT32_MAX ? (uint32_t)f.value : UINT32_MAX;
        }
    }
    return r < 0 ? err_set(e, ERR_FORMAT, "%s: piece %d is malformed", name, id) : 0;
}

static int check_piece(const struct spm_piece *p, int id, const char *name, struct err *e)
{
    size_t n = p->n_bytes;
    if (n == 0 || n > SPM_PIECE_BYTES_MAX) {
        return err_set(e, ERR_FORMAT, "%s: piece %d has %zu bytes, expected 1 to %d", name, id, n,
                       SPM_PIECE_BYTES_MAX);
    }
    if (!utf8_is_valid(p->text, n) || memchr(p->text, 0, n)) {
        return err_set(e, ERR_FORMAT, "%s: piece %d is not valid UTF-8 text", name, id);
    }
    if (p->type < SPM_NORMAL || p->type > SPM_BYTE) {
        return err_set(e, ERR_FORMAT, "%s: piece %d has the unknown type %u", name, id, p->type);
    }
    if (!isfinite(p->score)) {
        return err_set(e, ERR_FORMAT, "%s: piece %d has a score that is not a finite number", name,
                       id);
    }
    return 0;
}

static int read_trainer(struct specs *c, struct span s)
{
    struct field f;
    int r;
    while ((r = next_field(&s, &f)) > 0) {
        if (f.wire == 0 && f.number == 3) {
            c->model_type = f.value;
        } else if (f.wire == 0 && f.number == 24) {
            c->whitespace_as_suffix = f.value;
        } else if (f.wire == 0 && f.number == 35) {
            c->byte_fallback = f.value;
        }
    }
    return r;
}

static int read_normalizer(struct specs *c, struct span s, int denormalizer)
{
    struct field f;
    int r;
    while ((r = next_field(&s, &f)) > 0) {
        if (f.number == 2 && f.wire == 2) {
            *(denormalizer ? &c->denormalizer_bytes : &c->charsmap_bytes) = (size_t)f.value;
        } else if (denormalizer || f.wire != 0) {
            continue;
        } else if (f.number == 3) {
            c->add_dummy_prefix = f.value;
        } else if (f.number == 4) {
            c->remove_extra_whitespaces = f.value;
        } else if (f.number == 5) {
            c->escape_whitespaces = f.value;
        }
    }
    return r;
}

static int check_specs(const struct specs *c, const char *name, struct err *e)
{
    static const char *const types[] = {"?", "UNIGRAM", "BPE", "WORD", "CHAR"};
    if (c->model_type != 2) {
        return err_set(e, ERR_UNSUPPORTED, "%s: trainer_spec.model_type is %s, expected BPE", name,
                       types[c->model_type < 5 ? c->model_type : 0]);
    }
    if (!c->byte_fallback) {
        return err_set(e, ERR_UNSUPPORTED, "%s: trainer_spec.byte_fallback is false, expected true",
                       name);
    }
    if (c->whitespace_as_suffix) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: trainer_spec.treat_whitespace_as_suffix is true, expected false", name);
    }
    if (c->charsmap_bytes) {
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: normalizer_spec.precompiled_charsmap has %zu bytes, expected none (identity)",
            name, c->charsmap_bytes);
    }
    if (c->denormalizer_bytes) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: denormalizer_spec.precompiled_charsmap has %zu bytes, expected none",
                       name, c->denormalizer_bytes);
    }
    if (c->add_dummy_prefix) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: normalizer_spec.add_dummy_prefix is true, expected false", name);
    }
    if (c->remove_extra_whitespaces) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: normalizer_spec.remove_extra_whitespaces is true, expected false",
                       name);
    }
    if (!c->escape_whitespaces) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: normalizer_spec.escape_whitespaces is false, expected true", name);
    }
    return 0;
}

/* First pass: how much there is, so that the second one can fill arrays of the exact size. */
static int count_pieces(struct span s, const char *name, size_t *n_pieces, struct specs *c,
                        struct err *e)
{
    struct field f;
    int r;
    while ((r = next_field(&s, &f)) > 0) {
        if (f.wire != 2) {
            continue;
        }
        if (f.number == 1) {
            ++*n_pieces;
        } else if (f.number == 2 && read_trainer(c, f.bytes) < 0) {
            return bad_bytes(e, name, "trainer_spec");
        } else if (f.number == 3 && read_normalizer(c, f.bytes, 0) < 0) {
            return bad_bytes(e, name, "normalizer_spec");
        } else if (f.number == 5 && read_normalizer(c, f.bytes, 1) < 0) {
            return bad_bytes(e, name, "denormalizer_spec");
        }
    }
    if (r < 0) {
        return bad_bytes(e, name, "the file");
    }
    if (*n_pieces == 0 || *n_pieces > SPM_PIECES_MAX) {
        return err_set(e, ERR_FORMAT, "%s: %zu pieces, expected 1 to %d", name, *n_pieces,
                       SPM_PIECES_MAX);
    }
    return 0;
}

int32_t spm_find(const struct spm *m, const char *text, size_t n_bytes)
{
    const uint64_t hash = hash64(text, n_bytes, m->seed);
    for (uint32_t i = (uint32_t)hash & m->index_mask;; i = (i + 1) & m->index_mask) {
        const int32_t id = m->index[i].id;
        if (id < 0) {
            return -1;
        }
        if (m->index[i].tag == (uint32_t)(hash >> 32) && m->pieces[id].n_bytes == n_bytes &&
            !memcmp(m->pieces[id].text, text, n_bytes)) {
            return id;
        }
    }
}

static int build_index(struct spm *m, const char *name, struct err *e)
{
    uint32_t slots = 16;
    while (slots < (uint32_t)m->n_pieces * 2) {
        slots *= 2;
    }
    m->index = cpu_big_alloc(slots * sizeof(*m->index));
    m->index_mask = slots - 1;
    if (!m->index) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", name);
    }
    memset(m->index, 0xff, slots * sizeof(*m->index));
    m->seed = hash_random_seed();
    for (int id = 0; id < m->n_pieces; id++) {
        const struct spm_piece *p = &m->pieces[id];
        int32_t other = spm_find(m, p->text, p->n_bytes);
        if (other >= 0) {
            return err_set(e, ERR_FORMAT, "%s: pieces %d and %d are both \"%s\"", name, other, id,
                           p->text);
        }
        const uint64_t hash = hash64(p->text, p->n_bytes, m->seed);
        uint32_t i = (uint32_t)hash & m->index_mask;
        while (m->index[i].id >= 0) {
            i = (i + 1) & m->index_mask;
        }
        m->index[i] = (struct spm_slot){id, (uint32_t)(hash >> 32)};
    }
    return 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static int check_types(struct spm *m, const char *name, struct err *e)
{
    m->unk_id = -1;
    memset(m->byte_id, 0xff, sizeof(m->byte_id));
    for (int id = 0; id < m->n_pieces; id++) {
        const struct spm_piece *p = &m->pieces[id];
        if (p->type == SPM_UNKNOWN) {
            if (m->unk_id >= 0) {
                return err_set(e, ERR_FORMAT, "%s: pieces %d and %d both have the type UNKNOWN",
                               name, m->unk_id, id);
            }
            m->unk_id = id;
        } else if (p->type == SPM_UNUSED) {
            m->has_unused = 1;
        } else if (p->type == SPM_BYTE) {
            const char *t = p->text;
            int hi = p->n_bytes == 6 && !memcmp(t, "<0x", 3) && t[5] == '>' ? hex_digit(t[3]) : -1;
            int lo = hi >= 0 ? hex_digit(t[4]) : -1;
            if (lo < 0) {
                return err_set(e, ERR_FORMAT, "%s: piece %d has the type BYTE but is \"%s\"", name,
                               id, t);
            }
            m->byte_id[hi * 16 + lo] = id;
        }
    }
    if (m->unk_id < 0) {
        return err_set(e, ERR_FORMAT, "%s: no piece of type UNKNOWN", name);
    }
    for (int i = 0; i < 256; i++) {
        if (m->byte_id[i] < 0) {
            return err_set(e, ERR_FORMAT, "%s: byte piece <0x%02X> is missing", name, (unsigned)i);
        }
    }
    return 0;
}

int spm_parse(struct spm *m, const void *data, size_t n_bytes, const char *name, struct err *e)
{
    struct specs c = {.model_type = 1,
                      .add_dummy_prefix = 1,
                      .remove_extra_whitespaces = 1,
                      .escape_whitespaces = 1};
    struct span s = {data, (const uint8_t *)data + n_bytes};
    size_t n_pieces = 0;
    struct field f;
    memset(m, 0, sizeof(*m));
    if (n_bytes > 40 && !memcmp(data, "version https://git-lfs", 23)) {
        return err_set(e, ERR_FORMAT,
                       "%s: a Git-LFS pointer, not the file itself (run git lfs pull)", name);
    }
    if (n_bytes == 0) {
        return err_set(e, ERR_FORMAT, "%s: the file is empty", name);
    }
    int r = count_pieces(s, name, &n_pieces, &c, e);
    if (!r) {
        r = check_specs(&c, name, e);
    }
    if (r) {
        return r;
    }
    struct spm_piece *pieces = cpu_big_alloc(n_pieces * sizeof(*pieces));
    int id = 0;
    if (!pieces) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", name);
    }
    while (!r && next_field(&s, &f) > 0) {
        if (f.number == 1 && f.wire == 2) {
            r = read_piece(&pieces[id], f.bytes, id, name, e);
            id++;
        }
    }
    r = r ? r : spm_build(m, pieces, n_pieces, name, e);
    cpu_big_free(pieces, n_pieces * sizeof(*pieces));
    return r;
}

int spm_build(struct spm *m, const struct spm_piece *pieces, size_t n_pieces, const char *name,
              struct err *e)
{
    size_t text_bytes = 0;
    int r = 0;
    memset(m, 0, sizeof(*m));
    for (size_t i = 0; i < n_pieces; i++) {
        if ((r = check_piece(&pieces[i], (int)i, name, e))) {
            return r;
        }
        text_bytes += pieces[i].n_bytes + 1;
    }
    m->n_pieces = (int)n_pieces;
    m->blob_bytes = text_bytes;
    m->pieces = cpu_big_alloc(n_pieces * sizeof(*m->pieces));
    m->blob = cpu_big_alloc(text_bytes);
    if (!m->pieces || !m->blob) {
        r = err_set(e, ERR_NOMEM, "%s: out of memory", name);
        goto fail;
    }
    char *end = m->blob;
    for (size_t i = 0; i < n_pieces; i++) {
        struct spm_piece *p = &m->pieces[i];
        *p = pieces[i];
        p->text = end;
        memcpy(end, pieces[i].text, p->n_bytes);
        end[p->n_bytes] = 0;
        end += p->n_bytes + 1;
    }
    if ((r = build_index(m, name, e)) || (r = check_types(m, name, e))) {
        goto fail;
    }
    return 0;
fail:
    spm_fini(m);
    return r;
}

int spm_open(struct spm *m, const char *path, struct err *e)
{
    struct buf b;
    buf_init(&b);
    memset(m, 0, sizeof(*m));
    int r = buf_read_file(&b, path, SPM_FILE_BYTES_MAX, e);
    if (!r) {
        r = spm_parse(m, b.data ? b.data : "", b.len, path, e);
    }
    buf_fini(&b);
    return r;
}

void spm_fini(struct spm *m)
{
    if (m->pieces) {
        cpu_big_free(m->pieces, (size_t)m->n_pieces * sizeof(*m->pieces));
    }
    if (m->blob) {
        cpu_big_free(m->blob, m->blob_bytes);
    }
    if (m->index) {
        cpu_big_free(m->index, ((size_t)m->index_mask + 1) * sizeof(*m->index));
    }
    memset(m, 0, sizeof(*m));
}
