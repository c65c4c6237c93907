/* SPDX-License-Identifier: Apache-2.0 */
/* A model directory's tokenizer: the SentencePiece model plus the special and added tokens that the
 * side files name; or both from the tokenizer section of a GGUF file. A special string is found by
 * a longest-match search, leftmost first; the spans between specials are encoded independently of
 * each other.
 *
 * What is matched as special: CONTROL pieces of the model, every token of added_tokens.json and
 * added_tokens_decoder, the named tokens (*_token) and additional_special_tokens. Hidden by
 * skip_special_tokens: the same without those of added_tokens.json and added_tokens_decoder that no
 * list calls special. A string that has no id is no token, only a name.
 *
 * No merge of ordinary text may produce a matched token (their ids are banned in the BPE tables):
 * typed text stays text. */
#include "text/tokenizer.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/utf8.h"
#include "cpu/cpu.h"
#include "model/gguf.h"
#include "text/bpe.h"
#include "text/spm.h"
#include "text/trie.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IDS_MAX             SPM_PIECES_MAX
#define SIDE_FILE_BYTES_MAX ((size_t)64 << 20)
#define SPECIAL_BYTES_MAX   512
#define NAMED_MAX           256

struct token {
    const char *raw;  /* NULL: hole */
    const char *text; /* what it decodes to */
    uint32_t n_raw, n_text;
    uint8_t special;        /* hidden by skip_special_tokens */
    uint8_t matched;        /* found in text by its string */
    uint8_t lstrip, rstrip; /* the match swallows white space on that side */
    uint8_t added;          /* set by a side file */
};

struct named {
    const char *name, *value;
};

struct tokenizer {
    struct spm spm;
    struct bpe *bpe;
    struct token *tokens; // [n_ids]
    int n_ids, cap_ids;
    struct trie specials;
    struct arena arena;
    struct named named[NAMED_MAX];
    int n_named;
    int max_chars;
    const char *chat_template; /* of a GGUF file; NULL: none */
};

/* ---- opening ---- */

static int out_of_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "tokenizer: out of memory");
}

static int ensure_id(struct tokenizer *t, int32_t id, struct err *e)
{
    if (id >= t->cap_ids) {
        int cap = t->cap_ids ? t->cap_ids : 1024;
        while (cap <= id) {
            cap *= 2;
        }
        struct token *p = cpu_big_alloc((size_t)cap * sizeof(*p));
        if (!p) {
            return out_of_memory(e);
        }
        if (t->tokens) {
            memcpy(p, t->tokens, (size_t)t->cap_ids * sizeof(*p));
            cpu_big_free(t->tokens, (size_t)t->cap_ids * sizeof(*p));
        }
        t->tokens = p;
        t->cap_ids = cap;
    }
    if (id >= t->n_ids) {
        t->n_ids = id + 1;
    }
    return 0;
}

/* The piece as text: U+2581 becomes a space. */
static const char *decoded_piece(struct tokenizer *t, const struct spm_piece *p, uint32_t *n)
{
    char out[SPM_PIECE_BYTES_MAX];
    size_t k = 0;
    if (!memmem(p->text, p->n_bytes, "\xe2\x96\x81", 3)) {
        *n = p->n_bytes;
        return p->text;
    }
    for (size_t i = 0; i < p->n_bytes;) {
        if (p->n_bytes - i >= 3 && !memcmp(p->text + i, "\xe2\x96\x81", 3)) {
            out[k++] = ' ';
            i += 3;
        } else {
            out[k++] = p->text[i++];
        }
    }
    *n = (uint32_t)k;
    return arena_strndup(&t->arena, out, k);
}

static int add_pieces(struct tokenizer *t, struct err *e)
{
    if (ensure_id(t, t->spm.n_pieces - 1, e)) {
        return ERR_NOMEM;
    }
    for (int id = 0; id < t->spm.n_pieces; id++) {
        const struct spm_piece *p = &t->spm.pieces[id];
        struct token *k = &t->tokens[id];
        k->raw = p->text;
        k->n_raw = p->n_bytes;
        if (p->type == SPM_NORMAL || p->type == SPM_USER_DEFINED || p->type == SPM_UNUSED) {
            k->text = decoded_piece(t, p, &k->n_text);
            if (!k->text) {
                return out_of_memory(e);
            }
            continue;
        }
        k->text = p->text;
        k->n_text = p->n_bytes;
        k->special = p->type == SPM_CONTROL || p->type == SPM_UNKNOWN;
        k->matched = p->type == SPM_CONTROL;
    }
    for (int i = 0; i < 256; i++) {
        char c = (char)i;
        struct token *k = &t->tokens[t->spm.byte_id[i]];
        k->text = arena_strndup(&t->arena, &c, 1);
        k->n_text = 1;
        if (!k->text) {
            return out_of_memory(e);
        }
    }
    return 0;
}

/* Every string that gets an id from a side file is in the trie already when this is called again
 * for it. */
static int32_t find_string(const struct tokenizer *t, const char *s, size_t n)
{
    int32_t id = trie_find(&t->specials, s, n);
    if (id < 0) {
        id = spm_find(&t->spm, s, n);
        if (id >= 0 && (t->tokens[id].n_raw != n || memcmp(t->tokens[id].raw, s, n))) {
            id = -1; /* a side file gave this id another string */
        }
    }
    return id;
}

static int match_token(struct tokenizer *t, int32_t id, int special, struct err *e)
{
    struct token *k = &t->tokens[id];
    k->matched = 1;
    k->special |= (uint8_t)special;
    return trie_add(&t->specials, k->raw, k->n_raw, id) ? out_of_memory(e) : 0;
}

static int add_token(struct tokenizer *t, const char *file, const char *s, size_t n, int64_t id,
                     struct err *e)
{
    if (id < 0 || id >= IDS_MAX) {
        return err_set(e, ERR_FORMAT, "%s: token \"%s\" has the id %lld, expected 0 to %d", file, s,
                       (long long)id, IDS_MAX - 1);
    }
    if (n == 0 || n > SPECIAL_BYTES_MAX || memchr(s, 0, n)) {
        return err_set(e, ERR_FORMAT,
                       "%s: the string of token %lld has %zu bytes, expected 1 to %d", file,
                       (long long)id, n, SPECIAL_BYTES_MAX);
    }
    int32_t known = find_string(t, s, n);
    if (known >= 0 && known != id) {
        return err_set(e, ERR_FORMAT, "%s: token \"%s\" has the id %lld, expected %d as elsewhere",
                       file, s, (long long)id, known);
    }
    if (ensure_id(t, (int32_t)id, e)) {
        return ERR_NOMEM;
    }
    struct token *k = &t->tokens[id];
    if (known < 0) {
        if (k->added) {
            return err_set(e, ERR_FORMAT, "%s: id %lld is \"%s\", expected \"%s\" as elsewhere",
                           file, (long long)id, s, k->raw);
        }
        if (k->matched && trie_add(&t->specials, k->raw, k->n_raw, -1)) {
            return out_of_memory(e); /* the id's old string is no token any more */
        }
        k->raw = k->text = arena_strndup(&t->arena, s, n);
        k->n_raw = k->n_text = (uint32_t)n;
        k->special = 0;
        if (!k->raw) {
            return out_of_memory(e);
        }
    }
    k->added = 1;
    return match_token(t, (int32_t)id, 0, e);
}

/* Both JSON forms of a token: its string, or {"content": its string, …}. NULL for anything else. */
static const char *token_string(const struct json *v, size_t *n)
{
    if (json_type(v) == JSON_OBJECT) {
        v = json_get(v, "content");
    }
    return json_type(v) == JSON_STRING ? json_string(v, n) : NULL;
}

/* name: the field of an object, NULL for an item of a list. */
static int add_special(struct tokenizer *t, const char *file, const struct json *v,
                       const char *name, struct err *e)
{
    size_t n = 0;
    const char *s = token_string(v, &n);
    if (!s && json_type(v) != JSON_NULL) {
        return err_set(e, ERR_FORMAT,
                       "%s: %s is neither a token's text nor an object with a \"content\"", file,
                       name ? name : "an item of the special tokens");
    }
    if (!s || n == 0 || n > SPECIAL_BYTES_MAX || memchr(s, 0, n)) {
        return 0;
    }
    if (name && !tokenizer_named(t, name) && t->n_named < NAMED_MAX) {
        struct named *d = &t->named[t->n_named];
        d->name = arena_strdup(&t->arena, name);
        d->value = arena_strndup(&t->arena, s, n);
        if (!d->name || !d->value) {
            return out_of_memory(e);
        }
        t->n_named++;
    }
    int32_t id = find_string(t, s, n);
    return id < 0 ? 0 : match_token(t, id, 1, e);
}

static int add_decoder_entry(struct tokenizer *t, const char *file, const char *key,
                             const struct json *v, struct err *e)
{
    size_t n = 0;
    char *end;
    long long id = strtoll(key, &end, 10);
    const char *s = token_string(v, &n);
    if (*key < '0' || *key > '9' || *end || !s) {
        return err_set(e, ERR_FORMAT, "%s: added_tokens_decoder \"%s\" is not an id with a content",
                       file, key);
    }
    if (json_bool(json_get(v, "single_word"))) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: added token \"%s\" has single_word true, expected false", file, s);
    }
    int r = add_token(t, file, s, n, id, e);
    if (!r) {
        struct token *k = &t->tokens[id];
        k->special |= (uint8_t)json_bool(json_get(v, "special"));
        k->lstrip = (uint8_t)json_bool(json_get(v, "lstrip"));
        k->rstrip = (uint8_t)json_bool(json_get(v, "rstrip"));
    }
    return r;
}

/* Not add_bos_token and the like, which say yes or no. */
static int names_token(const char *key, size_t n, const struct json *v)
{
    return n > 6 && !memcmp(key + n - 6, "_token", 6) && json_type(v) != JSON_BOOL;
}

/* A list or an object of special tokens. */
static int add_special_list(struct tokenizer *t, const char *file, const char *field,
                            const struct json *v, struct err *e)
{
    int r = 0;
    size_t it = 0, n;
    const char *key;
    const struct json *item;
    if (json_type(v) == JSON_ARRAY) {
        for (size_t i = 0; i < json_length(v) && !r; i++) {
            r = add_special(t, file, json_at(v, i), NULL, e);
        }
    } else if (json_type(v) == JSON_OBJECT) {
        while (!r && json_next(v, &it, &key, &n, &item)) {
            r = add_special(t, file, item, key, e);
        }
    } else if (json_type(v) != JSON_NULL) {
        r = err_set(e, ERR_FORMAT, "%s: %s is neither a list nor an object", file, field);
    }
    return r;
}

/* tokenizer_config.json and special_tokens_map.json name special tokens in the same way. */
static int add_named(struct tokenizer *t, const char *file, const struct json *doc, struct err *e)
{
    size_t it = 0, n;
    const char *key;
    const struct json *v;
    int r = 0;
    while (!r && json_next(doc, &it, &key, &n, &v)) {
        if (names_token(key, n, v)) {
            r = add_special(t, file, v, key, e);
        } else if (!strcmp(key, "additional_special_tokens") ||
                   !strcmp(key, "extra_special_tokens")) {
            r = add_special_list(t, file, key, v, e);
        }
    }
    return r;
}

static int add_added_tokens(struct tokenizer *t, const char *file, const struct json *doc,
                            struct err *e)
{
    size_t it = 0, n;
    const char *key;
    const struct json *v;
    int r = 0;
    while (!r && json_next(doc, &it, &key, &n, &v)) {
        if (json_type(v) != JSON_INT) {
            return err_set(e, ERR_FORMAT, "%s: \"%s\" has no integer id", file, key);
        }
        r = add_token(t, file, key, n, json_int(v), e);
    }
    return r;
}

/* *doc stays NULL when the file does not exist. */
static int read_side_file(struct json **doc, const char *path, struct err *e)
{
    *doc = NULL;
    if (buf_file_absent(path)) {
        return 0;
    }
    int r = json_parse_file(doc, path, SIDE_FILE_BYTES_MAX, e);
    if (!r && json_type(*doc) != JSON_OBJECT) {
        r = err_set(e, ERR_FORMAT, "%s: expected a JSON object", path);
    }
    return r;
}

static int add_side_files(struct tokenizer *t, const char *dir, struct err *e)
{
    static const char *const names[] = {"added_tokens.json", "tokenizer_config.json",
                                        "special_tokens_map.json"};
    struct json *doc[3] = {NULL, NULL, NULL};
    struct buf path[3];
    int r = 0;
    for (int i = 0; i < 3; i++) {
        buf_init(&path[i]);
    }
    for (int i = 0; i < 3 && !r; i++) {
        buf_printf(&path[i], "%s/%s", dir, names[i]);
        r = path[i].failed ? out_of_memory(e) : read_side_file(&doc[i], path[i].data, e);
    }
    /* Ids first, names after: a name may refer to an id that another file gives. */
    if (!r) {
        r = add_added_tokens(t, path[0].data, doc[0], e);
    }
    size_t it = 0, n;
    const char *key;
    const struct json *v, *decoder = json_get(doc[1], "added_tokens_decoder");
    if (!r && json_type(decoder) != JSON_OBJECT && json_type(decoder) != JSON_NULL) {
        r = err_set(e, ERR_FORMAT, "%s: added_tokens_decoder is not an object", path[1].data);
    }
    while (!r && json_next(decoder, &it, &key, &n, &v)) {
        r = add_decoder_entry(t, path[1].data, key, v, e);
    }
    for (int i = 1; i < 3 && !r; i++) {
        r = add_named(t, path[i].data, doc[i], e);
    }
    for (int i = 0; i < 3; i++) {
        json_free(doc[i]);
        buf_fini(&path[i]);
    }
    return r;
}

static int finish_open(struct tokenizer *t, struct err *e)
{
    uint8_t *banned = calloc((size_t)t->spm.n_pieces, 1);
    if (!banned) {
        return out_of_memory(e);
    }
    for (int id = 0; id < t->n_ids; id++) {
        const struct token *k = &t->tokens[id];
        int n = k->text ? (int)utf8_count(k->text, utf8_valid_prefix(k->text, k->n_text)) : 0;
        t->max_chars = n > t->max_chars ? n : t->max_chars;
        if (id < t->spm.n_pieces) {
            banned[id] = k->matched || k->added;
        }
    }
    int r = bpe_new(&t->bpe, &t->spm, banned, e);
    free(banned);
    return r;
}

static int missing_model(const char *dir, const char *path, struct err *e)
{
    struct buf json;
    buf_init(&json);
    buf_printf(&json, "%s/tokenizer.json", dir);
    int has_json = !json.failed && !access(json.data, F_OK);
    buf_fini(&json);
    if (access(dir, F_OK)) {
        return err_set(e, ERR_NOT_FOUND, "%s: no such directory", dir);
    }
    if (has_json) {
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: no such file; tokenizer.json is there but is not supported: put the original "
            "tokenizer.model (SentencePiece BPE) beside it",
            path);
    }
    return err_set(
        e, ERR_NOT_FOUND,
        "%s: no such file (looked for tokenizer.model and tokenizer.json; tokenizer.model is "
        "needed, "
        "added_tokens.json, special_tokens_map.json and tokenizer_config.json are optional)",
        path);
}

/* Gives the ids of a GGUF file the names that tokenizer_config.json would. */
static int add_gguf_names(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    static const char *const ids[][2] = {
        {"tokenizer.ggml.bos_token_id", "bos_token"},
        {"tokenizer.ggml.eos_token_id", "eos_token"},
        {"tokenizer.ggml.unknown_token_id", "unk_token"},
        {"tokenizer.ggml.padding_token_id", "pad_token"},
        {"tokenizer.ggml.seperator_token_id", "sep_token"}, /* spelled so in files */
        {"tokenizer.ggml.cls_token_id", "cls_token"},
        {"tokenizer.ggml.mask_token_id", "mask_token"}};
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        int64_t id = 0;
        int r = gguf_int(g, ids[i][0], &id, e);
        if (r < 0) {
            return r;
        }
        if (r > 0 && (id < 0 || id >= t->spm.n_pieces)) {
            return err_set(e, ERR_FORMAT, "%s: field %s: %lld, expected 0 to %d", gguf_path(g),
                           ids[i][0], (long long)id, t->spm.n_pieces - 1);
        }
        if (r > 0) {
            t->named[t->n_named].name = ids[i][1];
            t->named[t->n_named].value = t->tokens[id].raw;
            t->n_named++;
        }
    }
    return 0;
}

static int add_gguf_template(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    const char *s;
    size_t n;
    int r = gguf_string(g, "tokenizer.chat_template", &s, &n, e);
    if (r > 0) {
        if (memchr(s, 0, n)) {
            return err_set(e, ERR_FORMAT, "%s: field tokenizer.chat_template has a NUL byte",
                           gguf_path(g));
        }
        t->chat_template = arena_strndup(&t->arena, s, n);
        return t->chat_template ? 0 : out_of_memory(e);
    }
    return r;
}

static int open_gguf(struct tokenizer *t, const char *path, struct err *e)
{
    struct gguf *g;
    int r = gguf_open(&g, path, e);
    r = r ? r : spm_from_gguf(&t->spm, g, e);
    r = r ? r : add_pieces(t, e);
    r = r ? r : add_gguf_names(t, g, e);
    r = r ? r : add_gguf_template(t, g, e);
    gguf_close(g);
    return r;
}

static int open_model(struct tokenizer *t, const char *dir, const char *path, struct err *e)
{
    if (gguf_is_file(dir)) {
        return open_gguf(t, dir, e);
    }
    if (access(path, F_OK)) {
        return missing_model(dir, path, e);
    }
    int r = spm_open(&t->spm, path, e);
    return r ? r : add_pieces(t, e);
}

int tokenizer_open(struct tokenizer **out, const char *model_path, struct err *e)
{
    struct tokenizer *t = calloc(1, sizeof(*t));
    struct buf path;
    int r;
    *out = NULL;
    buf_init(&path);
    buf_printf(&path, "%s/tokenizer.model", model_path);
    if (!t || path.failed) {
        r = out_of_memory(e);
        goto fail;
    }
    arena_init(&t->arena, 1 << 16);
    trie_init(&t->specials);
    if ((r = open_model(t, model_path, path.data, e))) {
        goto fail;
    }
    for (int id = 0; id < t->spm.n_pieces; id++) {
        if (t->tokens[id].matched && (r = match_token(t, id, 1, e))) {
            goto fail;
        }
    }
    if ((!gguf_is_file(model_path) && (r = add_side_files(t, model_path, e))) ||
        (r = finish_open(t, e))) {
        goto fail;
    }
    buf_fini(&path);
    *out = t;
    return 0;
fail:
    buf_fini(&path);
    tokenizer_close(t);
    return r;
}

void tokenizer_close(struct tokenizer *t)
{
    if (t) {
        bpe_free(t->bpe);
        spm_fini(&t->spm);
        trie_fini(&t->specials);
        arena_fini(&t->arena);
        if (t->tokens) {
            cpu_big_free(t->tokens, (size_t)t->cap_ids * sizeof(*t->tokens));
        }
        free(t);
    }
}

/* ---- looking up ---- */

static const struct token *get(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && t->tokens[id].raw ? &t->tokens[id] : NULL;
}

int tokenizer_n_ids(const struct tokenizer *t)
{
    return t->n_ids;
}

const char *tokenizer_chat_template(const struct tokenizer *t)
{
    return t ? t->chat_template : NULL;
}

int tokenizer_max_chars_per_token(const struct tokenizer *t)
{
    return t->max_chars;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *piece)
{
    return find_string(t, piece, strlen(piece));
}

const char *tokenizer_named(const struct tokenizer *t, const char *name)
{
    for (int i = 0; i < t->n_named; i++) {
        if (!strcmp(t->named[i].name, name)) {
            return t->named[i].value;
        }
    }
    return NULL;
}

int tokenizer_named_next(const struct tokenizer *t, size_t *it, const char **name,
                         const char **value)
{
    if (*it >= (size_t)t->n_named) {
        return 0;
    }
    *name = t->named[*it].name;
    *value = t->named[*it].value;
    ++*it;
    return 1;
}

static int32_t id_of_named(const struct tokenizer *t, const char *name, const char *otherwise)
{
    const char *s = tokenizer_named(t, name);
    return tokenizer_id(t, s ? s : otherwise);
}

int32_t tokenizer_eos_id(const struct tokenizer *t)
{
    return id_of_named(t, "eos_token", "</s>");
}

int32_t tokenizer_sep_id(const struct tokenizer *t)
{
    return id_of_named(t, "sep_token", "<|end_of_sentence|>");
}

int tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    const struct token *k = get(t, id);
    return k && k->special;
}

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *n_bytes)
{
    const struct token *k = get(t, id);
    *n_bytes = k ? k->n_text : 0;
    return k ? k->text : NULL;
}

const char *tokenizer_piece_raw(const struct tokenizer *t, int32_t id, size_t *n_bytes)
{
    const struct token *k = get(t, id);
    *n_bytes = k ? k->n_raw : 0;
    return k ? k->raw : NULL;
}

int tokenizer_is_byte(const struct tokenizer *t, int32_t id)
{
    const struct token *k = get(t, id);
    return k && id < t->spm.n_pieces && !k->added && t->spm.pieces[id].type == SPM_BYTE;
}

/* ---- encoding ---- */

void token_ids_fini(struct token_ids *v)
{
    free(v->ids);
    memset(v, 0, sizeof(*v));
}

int token_ids_push(struct token_ids *v, int32_t id)
{
    if (v->n == v->cap) {
        size_t cap = v->cap ? v->cap * 2 : 64;
        int32_t *p = realloc(v->ids, cap * sizeof(*p));
        if (!p) {
            return ERR_NOMEM;
        }
        v->ids = p;
        v->cap = cap;
    }
    v->ids[v->n++] = id;
    return 0;
}

static int encode_failed(int code, struct err *e)
{
    return err_set(e, code, "tokenizer: %s",
                   code == ERR_TOO_LARGE ? "the text is longer than 1 GiB" : "out of memory");
}

static int encode(const struct tokenizer *t, const char *text, const uint8_t *mark, size_t n_bytes,
                  int parse_special, struct token_ids *out, struct err *e)
{
    size_t n_before = out->n, start = 0, i = 0;
    int r = 0;
    size_t valid = utf8_valid_prefix(text, n_bytes);
    if (valid != n_bytes) {
        return err_set(e, ERR_FORMAT, "text is not valid UTF-8 at byte %zu", valid);
    }
    struct bpe_scratch *s = bpe_scratch_new(t->bpe);
    if (!s) {
        return out_of_memory(e);
    }
    while (parse_special && i < n_bytes && !r) {
        size_t len = 0;
        int32_t id = -1;
        if (t->specials.first[(uint8_t)text[i]]) {
            id = trie_longest(&t->specials, text + i, mark ? mark + i : NULL, n_bytes - i, &len);
        }
        if (id < 0) {
            i++;
            continue;
        }
        const struct token *k = &t->tokens[id];
        size_t end = k->lstrip ? i - unicode_trailing_space(text + start, i - start) : i;
        r = bpe_encode(t->bpe, s, text + start, end - start, out);
        r = r ? r : token_ids_push(out, id);
        i += len;
        if (k->rstrip) {
            i += unicode_leading_space(text + i, n_bytes - i);
        }
        start = i;
    }
    if (!r) {
        r = bpe_encode(t->bpe, s, text + start, n_bytes - start, out);
    }
    bpe_scratch_free(s);
    if (r) {
        out->n = n_before;
        return encode_failed(r, e);
    }
    return 0;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes, int parse_special,
                     struct token_ids *out, struct err *e)
{
    return encode(t, text, NULL, n_bytes, parse_special, out, e);
}

int tokenizer_encode_marked(const struct tokenizer *t, const char *text, const uint8_t *mark,
                            size_t n_bytes, struct token_ids *out, struct err *e)
{
    return encode(t, text, mark, n_bytes, 1, out, e);
}
