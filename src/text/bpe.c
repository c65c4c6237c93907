/* SPDX-License-Identifier: Apache-2.0 */
/* How it is fast without changing a result:
 *
 * - Symbols are numbers. A character that has no piece of its own but occurs inside pieces gets a
 * virtual id
 *   (>= n_pieces), so that every split of every piece into two symbols is one entry (left, right)
 * -> merged of a hash table; the text is never hashed while encoding.
 * - A merge can only join two neighbouring characters that are neighbours inside some piece. Where
 * two characters are never neighbours in the vocabulary (a Bloom filter of all such pairs answers;
 * a false yes only makes a chunk longer), the text falls into chunks that cannot influence each
 * other.
 * - Short chunks are merged by scanning for the best pair; long ones (a megabyte of one letter)
 * with a heap and a linked list, n log n.
 *
 * Merges of SentencePiece's UNUSED pieces are undone at the end by remembering the last pair that
 * was seen for each; that order is global, so models with UNUSED pieces are encoded as one chunk.
 */
#include "text/bpe.h"

#include "base/hash.h"
#include "base/utf8.h"
#include "cpu/cpu.h"
#include <stdlib.h>
#include <string.h>

#include "text/trie.h"

#define SCAN_MAX 40 /* longest chunk, in symbols, merged by scanning */
#define WORD_SEP 0x2581u
#define NO_RANK  INT32_MAX

struct pair {
    int32_t left, right; /* left < 0: free */
    int32_t merged, rank;
};

struct bpe {
    const struct spm *m;
    int32_t *page;  // [0x1100] start of a page of 256 ids in `chars`, by code point / 256
    int32_t *chars; // pages; -1 = character unknown to the vocabulary
    size_t n_chars, cap_chars;
    uint32_t *virt_cp; // [n_virtual] code point of virtual id n_pieces + i
    int32_t n_virtual, cap_virtual;
    struct pair *pairs;
    uint64_t pair_mask;
    uint64_t seed;
    uint64_t *neighbours; // Bloom filter over (left char id, right char id)
    uint64_t neighbour_mask;
    int32_t *rank; // [n_pieces] position in the order of descending score; equal scores share it
    struct trie user_defined;
    int n_user_defined;
};

struct sym {
    int32_t id;       /* -1: character unknown to the vocabulary */
    uint32_t n_bytes; /* of the normalised text; 0 = merged into the symbol on its left */
    int32_t prev, next;
    const char *text;
};

struct cand {
    uint64_t key; /* rank << 32 | left: best score first, then leftmost */
    int32_t right, merged;
};

/* The pair that was last seen to give an UNUSED piece, in the call of that number. */
struct origin {
    int32_t left, right;
    uint32_t call;
};

struct bpe_scratch {
    struct sym *syms;
    size_t n, cap;
    struct cand *heap;
    size_t n_heap, cap_heap;
    struct origin *made_from; // [n_pieces] only for models with UNUSED pieces
    uint32_t call;
};

/* ---- building ---- */

static int32_t char_id(const struct bpe *b, uint32_t cp)
{
    int32_t page = b->page[cp >> 8];
    return page < 0 ? -1 : b->chars[(size_t)page + (cp & 255)];
}

static int set_char(struct bpe *b, uint32_t cp, int32_t id)
{
    if (b->page[cp >> 8] < 0) {
        if (b->n_chars + 256 > b->cap_chars) {
            size_t cap = b->cap_chars ? b->cap_chars * 2 : 4096;
            int32_t *c = realloc(b->chars, cap * sizeof(*c));
            if (!c) {
                return ERR_NOMEM;
            }
            b->chars = c;
            b->cap_chars = cap;
        }
        memset(b->chars + b->n_chars, 0xff, 256 * sizeof(*b->chars));
        b->page[cp >> 8] = (int32_t)b->n_chars;
        b->n_chars += 256;
    }
    b->chars[(size_t)b->page[cp >> 8] + (cp & 255)] = id;
    return 0;
}

static int is_text_piece(const struct spm_piece *p)
{
    return p->type == SPM_NORMAL || p->type == SPM_USER_DEFINED || p->type == SPM_UNUSED;
}

/* Gives every character of the vocabulary its symbol id. */
static int build_chars(struct bpe *b)
{
    const struct spm *m = b->m;
    for (int id = 0; id < m->n_pieces; id++) {
        const struct spm_piece *p = &m->pieces[id];
        uint32_t cp;
        if (is_text_piece(p) && utf8_decode(p->text, p->n_bytes, &cp) == (int)p->n_bytes &&
            set_char(b, cp, id)) {
            return ERR_NOMEM;
        }
    }
    for (int id = 0; id < m->n_pieces; id++) {
        const struct spm_piece *p = &m->pieces[id];
        uint32_t cp;
        for (size_t i = 0; is_text_piece(p) && i < p->n_bytes;) {
            i += (size_t)utf8_decode(p->text + i, p->n_bytes - i, &cp);
            if (char_id(b, cp) >= 0) {
                continue;
            }
            if (b->n_virtual == b->cap_virtual) {
                int32_t cap = b->cap_virtual ? b->cap_virtual * 2 : 256;
                uint32_t *v = realloc(b->virt_cp, (size_t)cap * sizeof(*v));
                if (!v) {
                    return ERR_NOMEM;
                }
                b->virt_cp = v;
                b->cap_virtual = cap;
            }
            b->virt_cp[b->n_virtual] = cp;
            if (set_char(b, cp, m->n_pieces + b->n_virtual++)) {
                return ERR_NOMEM;
            }
        }
    }
    return 0;
}

struct scored {
    float score;
    int32_t id;
};

static int by_score(const void *x, const void *y)
{
    const struct scored *a = x, *c = y;
    return a->score > c->score ? -1 : a->score < c->score ? 1 : a->id < c->id ? -1 : a->id > c->id;
}

static int build_ranks(struct bpe *b)
{
    int n = b->m->n_pieces;
    struct scored *order = malloc((size_t)n * sizeof(*order));
    b->rank = malloc((size_t)n * sizeof(*b->rank));
    if (!order || !b->rank) {
        free(order);
        return ERR_NOMEM;
    }
    for (int i = 0; i < n; i++) {
        order[i] = (struct scored){b->m->pieces[i].score, i};
    }
    qsort(order, (size_t)n, sizeof(*order), by_score);
    for (int i = 0, rank = 0; i < n; i++) {
        rank += i > 0 && order[i].score < order[i - 1].score;
        b->rank[order[i].id] = rank;
    }
    free(order);
    return 0;
}

static uint64_t mix(uint64_t seed, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + seed;
    h = (h ^ (h >> 32)) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

static const struct pair *find_pair(const struct bpe *b, int32_t left, int32_t right)
{
    for (uint64_t i = mix(b->seed, left, right) & b->pair_mask;; i = (i + 1) & b->pair_mask) {
        const struct pair *p = &b->pairs[i];
        if (p->left < 0) {
            return NULL;
        }
        if (p->left == left && p->right == right) {
            return p;
        }
    }
}

static int are_neighbours(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t h = mix(b->seed, left, right) & b->neighbour_mask;
    return (int)(b->neighbours[h >> 6] >> (h & 63) & 1);
}

/* Symbol id of a part of a piece: a single character, or a piece that merges can have made. A
 * user-defined piece is neither: it never merges. */
static int32_t part_id(const struct bpe *b, const char *s, size_t n)
{
    uint32_t cp;
    int is_char = utf8_decode(s, n, &cp) == (int)n;
    int32_t id = is_char ? char_id(b, cp) : spm_find(b->m, s, n);
    if (id < 0 || id >= b->m->n_pieces) {
        return id;
    }
    int type = b->m->pieces[id].type;
    return type == SPM_NORMAL || type == SPM_UNUSED ? id : -1;
}

struct found {
    struct pair *v; /* [as many as there are bytes], touched as far as it is used */
    size_t n;
};

/* All splits of a piece that merges may produce, into two parts that are symbols; and which of its
 * characters are neighbours. */
static void split_piece(struct bpe *b, int id, struct found *f)
{
    const struct spm_piece *p = &b->m->pieces[id];
    int32_t before = -1;
    size_t n_char;
    for (size_t i = 0; i < p->n_bytes; i += n_char) {
        uint32_t cp = 0;
        n_char = (size_t)utf8_decode(p->text + i, p->n_bytes - i, &cp);
        int32_t c = char_id(b, cp);
        if (i > 0) {
            uint64_t h = mix(b->seed, before, c) & b->neighbour_mask;
            b->neighbours[h >> 6] |= 1ull << (h & 63);
            int32_t left = part_id(b, p->text, i);
            int32_t right = left < 0 ? -1 : part_id(b, p->text + i, p->n_bytes - i);
            if (right >= 0) {
                f->v[f->n++] = (struct pair){left, right, id, b->rank[id]};
            }
        }
        before = c;
    }
}

static int is_merged(const struct bpe *b, const uint8_t *banned, int id)
{
    const int type = b->m->pieces[id].type;
    return (type == SPM_NORMAL || type == SPM_UNUSED) && !(banned && banned[id]);
}

/* The table of pairs is made when their number is known: most splits have a part that is no piece,
 * and a table for all of them would be large and slow. */
static int build_pairs(struct bpe *b, const uint8_t *banned)
{
    const struct spm *m = b->m;
    struct found f = {0};
    uint64_t slots = 16, bits = 4096, n_bytes = 1;
    for (int id = 0; id < m->n_pieces; id++) {
        n_bytes += is_merged(b, banned, id) ? m->pieces[id].n_bytes : 0;
    }
    while (bits < n_bytes * 2) { /* at least four for each pair of neighbours that isn't ASCII */
        bits *= 2;
    }
    b->neighbours = calloc(bits / 64, sizeof(*b->neighbours));
    b->neighbour_mask = bits - 1;
    f.v = cpu_big_alloc(n_bytes * sizeof(*f.v));
    if (!f.v) {
        return ERR_NOMEM;
    }
    for (int id = 0; id < m->n_pieces && b->neighbours; id++) {
        if (is_merged(b, banned, id)) {
            split_piece(b, id, &f);
        }
    }
    while (slots < f.n + f.n / 2) {
        slots *= 2;
    }
    b->pairs = cpu_big_alloc(slots * sizeof(*b->pairs));
    b->pair_mask = slots - 1;
    if (!b->neighbours || !b->pairs) {
        cpu_big_free(f.v, n_bytes * sizeof(*f.v));
        return ERR_NOMEM;
    }
    memset(b->pairs, 0xff, slots * sizeof(*b->pairs));
    for (size_t k = 0; k < f.n; k++) {
        uint64_t s = mix(b->seed, f.v[k].left, f.v[k].right) & b->pair_mask;
        while (b->pairs[s].left >= 0) {
            s = (s + 1) & b->pair_mask;
        }
        b->pairs[s] = f.v[k];
    }
    cpu_big_free(f.v, n_bytes * sizeof(*f.v));
    return 0;
}

int bpe_new(struct bpe **out, const struct spm *m, const uint8_t *banned, struct err *e)
{
    struct bpe *b = calloc(1, sizeof(*b));
    *out = NULL;
    if (!b) {
        return err_set(e, ERR_NOMEM, "tokenizer: out of memory");
    }
    b->m = m;
    b->seed = hash_random_seed();
    trie_init(&b->user_defined);
    b->page = malloc(0x1100 * sizeof(*b->page));
    if (!b->page) {
        goto fail;
    }
    memset(b->page, 0xff, 0x1100 * sizeof(*b->page));
    if (build_chars(b) || build_ranks(b) || build_pairs(b, banned)) {
        goto fail;
    }
    for (int id = 0; id < m->n_pieces; id++) {
        const struct spm_piece *p = &m->pieces[id];
        if (p->type == SPM_USER_DEFINED) {
            if (trie_add(&b->user_defined, p->text, p->n_bytes, id)) {
                goto fail;
            }
            b->n_user_defined++;
        }
    }
    *out = b;
    return 0;
fail:
    bpe_free(b);
    return err_set(e, ERR_NOMEM, "tokenizer: out of memory");
}

void bpe_free(struct bpe *b)
{
    if (b) {
        free(b->page);
        free(b->chars);
        free(b->virt_cp);
        if (b->pairs) {
            cpu_big_free(b->pairs, (b->pair_mask + 1) * sizeof(*b->pairs));
        }
        free(b->neighbours);
        free(b->rank);
        trie_fini(&b->user_defined);
        free(b);
    }
}

struct bpe_scratch *bpe_scratch_new(const struct bpe *b)
{
    struct bpe_scratch *s = calloc(1, sizeof(*s));
    if (s && b->m->has_unused) {
        s->made_from = calloc((size_t)b->m->n_pieces, sizeof(*s->made_from));
        if (!s->made_from) {
            free(s);
            s = NULL;
        }
    }
    return s;
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    if (s) {
        free(s->syms);
        free(s->heap);
        free(s->made_from);
        free(s);
    }
}

/* ---- output ---- */

static int emit_bytes(const struct bpe *b, const char *s, size_t n, struct token_ids *out)
{
    int r = 0;
    for (size_t i = 0; i < n && !r; i++) {
        r = token_ids_push(out, b->m->byte_id[(uint8_t)s[i]]);
    }
    return r;
}

/* A virtual id or an UNUSED piece has no place in the output: undo until there is one. */
static int emit_symbol(const struct bpe *b, const struct bpe_scratch *s, int32_t id,
                       struct token_ids *out)
{
    if (id >= b->m->n_pieces) {
        char c[4];
        int n = utf8_encode(b->virt_cp[id - b->m->n_pieces], c);
        return emit_bytes(b, c, (size_t)n, out);
    }
    if (b->m->pieces[id].type != SPM_UNUSED || s->made_from[id].call != s->call) {
        return token_ids_push(out, id);
    }
    int r = emit_symbol(b, s, s->made_from[id].left, out);
    return r ? r : emit_symbol(b, s, s->made_from[id].right, out);
}

static int emit_sym(const struct bpe *b, const struct bpe_scratch *s, const struct sym *y,
                    struct token_ids *out)
{
    if (y->id >= 0 && y->id < b->m->n_pieces && !s->made_from) {
        return token_ids_push(out, y->id);
    }
    return y->id < 0 ? emit_bytes(b, y->text, y->n_bytes, out) : emit_symbol(b, s, y->id, out);
}

/* ---- merging one chunk ---- */

static const struct pair *look(const struct bpe *b, struct bpe_scratch *s, int32_t left,
                               int32_t right)
{
    const struct pair *p = find_pair(b, left, right);
    if (p && s->made_from && b->m->pieces[p->merged].type == SPM_UNUSED) {
        s->made_from[p->merged] = (struct origin){left, right, s->call};
    }
    return p;
}

static int merge_scan(const struct bpe *b, struct bpe_scratch *s, struct token_ids *out)
{
    int32_t rank[SCAN_MAX], merged[SCAN_MAX];
    struct sym *y = s->syms;
    size_t n = s->n;
    for (size_t i = 0; i + 1 < n; i++) {
        const struct pair *p = look(b, s, y[i].id, y[i + 1].id);
        rank[i] = p ? p->rank : NO_RANK;
        merged[i] = p ? p->merged : -1;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            best = rank[i] < rank[best] ? i : best;
        }
        if (rank[best] == NO_RANK) {
            break;
        }
        y[best].id = merged[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            y[i] = y[i + 1];
            rank[i - 1] = rank[i];
            merged[i - 1] = merged[i];
        }
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct pair *p = look(b, s, y[i].id, y[i + 1].id);
            rank[i] = p ? p->rank : NO_RANK;
            merged[i] = p ? p->merged : -1;
        }
    }
    int r = 0;
    for (size_t i = 0; i < n && !r; i++) {
        r = emit_sym(b, s, &y[i], out);
    }
    return r;
}

static void sift_down(struct cand *h, size_t n, size_t i)
{
    struct cand c = h[i];
    for (size_t k; (k = 4 * i + 1) < n; i = k) {
        size_t end = k + 4 < n ? k + 4 : n;
        for (size_t j = k + 1; j < end; j++) {
            k = h[j].key < h[k].key ? j : k;
        }
        if (c.key <= h[k].key) {
            break;
        }
        h[i] = h[k];
    }
    h[i] = c;
}

/* The heap has room: every merge takes one candidate out and adds at most two. */
static void push(struct bpe_scratch *s, struct cand c)
{
    size_t i = s->n_heap++;
    while (i > 0 && c.key < s->heap[(i - 1) / 4].key) {
        s->heap[i] = s->heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    s->heap[i] = c;
}

static int candidate(const struct bpe *b, struct bpe_scratch *s, int32_t left, int32_t right,
                     struct cand *c)
{
    if (left < 0 || right < 0) {
        return 0;
    }
    const struct pair *p = look(b, s, s->syms[left].id, s->syms[right].id);
    if (p) {
        *c = (struct cand){(uint64_t)(uint32_t)p->rank << 32 | (uint32_t)left, right, p->merged};
    }
    return p != NULL;
}

static int merge_heap(const struct bpe *b, struct bpe_scratch *s, struct token_ids *out)
{
    struct sym *y = s->syms;
    size_t need = 2 * s->n + 2; /* n - 1 at first, then one more per merge at most */
    struct cand c;
    int r = 0;
    if (need > s->cap_heap) {
        struct cand *h = realloc(s->heap, need * sizeof(*h));
        if (!h) {
            return ERR_NOMEM;
        }
        s->heap = h;
        s->cap_heap = need;
    }
    s->n_heap = 0;
    for (size_t i = 0; i < s->n; i++) {
        y[i].prev = (int32_t)i - 1;
        y[i].next = i + 1 < s->n ? (int32_t)i + 1 : -1;
        if (candidate(b, s, (int32_t)i, y[i].next, &c)) {
            s->heap[s->n_heap++] = c;
        }
    }
    for (size_t i = s->n_heap / 4 + 1; i-- > 0 && s->n_heap;) {
        if (i < s->n_heap) {
            sift_down(s->heap, s->n_heap, i);
        }
    }
    while (s->n_heap) {
        c = s->heap[0];
        s->heap[0] = s->heap[--s->n_heap];
        if (s->n_heap) {
            sift_down(s->heap, s->n_heap, 0);
        }
        int32_t i = (int32_t)(uint32_t)c.key;
        struct sym *left = &y[i], *right = &y[c.right];
        if (!left->n_bytes || !right->n_bytes ||
            left->n_bytes + right->n_bytes != b->m->pieces[c.merged].n_bytes) {
            continue; /* one of the two has been merged since */
        }
        left->id = c.merged;
        left->n_bytes += right->n_bytes;
        right->n_bytes = 0;
        left->next = right->next;
        if (right->next >= 0) {
            y[right->next].prev = i;
        }
        if (candidate(b, s, left->prev, i, &c)) {
            push(s, c);
        }
        if (candidate(b, s, i, left->next, &c)) {
            push(s, c);
        }
    }
    for (int32_t i = 0; i >= 0 && !r; i = y[i].next) {
        r = emit_sym(b, s, &y[i], out);
    }
    return r;
}

static int flush(const struct bpe *b, struct bpe_scratch *s, struct token_ids *out)
{
    int r = 0;
    if (s->n == 1) {
        r = emit_sym(b, s, &s->syms[0], out);
    } else if (s->n > 1) {
        r = s->n <= SCAN_MAX ? merge_scan(b, s, out) : merge_heap(b, s, out);
    }
    s->n = 0;
    return r;
}

/* ---- cutting the text into symbols and chunks ---- */

/* Longest user-defined piece at s, matched against the normalised text (a space is U+2581). */
static int32_t match_user_defined(const struct bpe *b, const char *s, size_t n, size_t *len)
{
    static const char sep[] = "\xe2\x96\x81";
    uint32_t node = 0;
    int32_t best = -1;
    for (size_t i = 0; i < n; i++) {
        const char *c = s[i] == ' ' ? sep : s + i;
        for (int k = 0; k < (s[i] == ' ' ? 3 : 1); k++) {
            node = trie_step(&b->user_defined, node, (uint8_t)c[k]);
            if (!node) {
                return best;
            }
        }
        if (b->user_defined.value[node] >= 0) {
            best = b->user_defined.value[node];
            *len = i + 1;
        }
    }
    return best;
}

/* Next character of valid UTF-8. */
static uint32_t next_char(const char *s, size_t *len)
{
    const uint8_t *p = (const uint8_t *)s;
    if (p[0] < 0x80) {
        *len = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *len = 2;
        return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    }
    if (p[0] < 0xf0) {
        *len = 3;
        return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    }
    *len = 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 |
           (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

static int add_sym(struct bpe_scratch *s, struct sym y)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 256;
        struct sym *p = realloc(s->syms, cap * sizeof(*p));
        if (!p) {
            return ERR_NOMEM;
        }
        s->syms = p;
        s->cap = cap;
    }
    s->syms[s->n++] = y;
    return 0;
}

int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *text, size_t n_bytes,
               struct token_ids *out)
{
    static const char sep[] = "\xe2\x96\x81";
    const uint8_t *first = b->user_defined.first;
    int32_t before = -1; /* id of the previous character in this chunk */
    int r = 0;
    if (n_bytes > INT32_MAX / 2) {
        return ERR_TOO_LARGE;
    }
    s->n = 0;
    s->call++;
    for (size_t i = 0, len = 0; i < n_bytes && !r; i += len) {
        uint8_t c = text[i] == ' ' ? 0xe2 : (uint8_t)text[i];
        int32_t id =
            b->n_user_defined && first[c] ? match_user_defined(b, text + i, n_bytes - i, &len) : -1;
        if (id >= 0) { /* frozen: nothing merges with it, so it is a chunk of its own */
            r = s->made_from ? 0 : flush(b, s, out);
            before = -1;
            if (!r && s->made_from) {
                r = add_sym(s, (struct sym){.id = id, .n_bytes = b->m->pieces[id].n_bytes});
            } else if (!r) {
                r = token_ids_push(out, id);
            }
            continue;
        }
        uint32_t cp = next_char(text + i, &len);
        int space = cp == ' ';
        id = char_id(b, space ? WORD_SEP : cp);
        if (!s->made_from && s->n && (before < 0 || id < 0 || !are_neighbours(b, before, id))) {
            r = flush(b, s, out);
        }
        before = id;
        if (!r) {
            r = add_sym(s, (struct sym){.id = id,
                                        .n_bytes = space ? 3 : (uint32_t)len,
                                        .text = space ? sep : text + i});
        }
    }
    return r ? r : flush(b, s, out);
}
