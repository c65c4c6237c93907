/* SPDX-License-Identifier: Apache-2.0 */
/* Text <-> token ids. Reads tokenizer.model (SentencePiece BPE with byte fallback),
 * added_tokens.json, special_tokens_map.json and tokenizer_config.json of a model directory, or the
 * tokenizer section of a GGUF file; the
 * tokenizer_class string is ignored. Immutable after opening, shared between threads. No BOS or EOS
 * is ever added. */
#ifndef TERN_TEXT_TOKENIZER_H
#define TERN_TEXT_TOKENIZER_H

#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Of a model directory, or of a GGUF file. */
int tokenizer_open(struct tokenizer **out, const char *model_path, struct err *e);
void tokenizer_close(struct tokenizer *t);

int tokenizer_n_ids(
    const struct tokenizer *t); /* ids 0..n-1 have a string (holes: tokenizer_piece NULL) */
int tokenizer_max_chars_per_token(const struct tokenizer *t); /* longest piece, characters */
int32_t tokenizer_id(const struct tokenizer *t,
                     const char *piece); /* exact piece or special string; -1 if none */
/* The template that a GGUF file brings, NULL if it has none. */
const char *tokenizer_chat_template(const struct tokenizer *t);
/* Named specials of tokenizer_config.json: "bos_token", "eos_token", "cls_token", "sep_token", …:
 * NULL if absent. */
const char *tokenizer_named(const struct tokenizer *t, const char *name);
/* Walks them all: start with *it = 0; returns 1 and fills both, 0 at the end. */
int tokenizer_named_next(const struct tokenizer *t, size_t *it, const char **name,
                         const char **value);
int32_t tokenizer_eos_id(const struct tokenizer *t);          /* -1 if none */
int32_t tokenizer_sep_id(const struct tokenizer *t);          /* <|end_of_sentence|>, -1 if none */
int tokenizer_is_byte(const struct tokenizer *t, int32_t id); /* a byte-fallback piece */
int tokenizer_is_special(const struct tokenizer *t, int32_t id); /* hidden by skip_special_tokens */
/* Bytes the id decodes to (▁ as space; a byte token as its byte; specials as their string).
 * Borrowed. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *n_bytes);
/* Vocabulary string as stored ("▁the", "<0x0A>"), for token_strs. Borrowed; NULL for a hole. */
const char *tokenizer_piece_raw(const struct tokenizer *t, int32_t id, size_t *n_bytes);

struct token_ids {
    int32_t *ids;
    size_t n, cap;
}; /* malloc'ed; free with token_ids_fini */
void token_ids_fini(struct token_ids *v);
int token_ids_push(struct token_ids *v, int32_t id);

/* Appends the ids of text (valid UTF-8, else ERR_FORMAT). parse_special: special strings in the
 * text become their single id (what a tokenizer call does); 0: they are ordinary characters. Time
 * is linear in n_bytes. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes, int parse_special,
                     struct token_ids *out, struct err *e);
/* As above for rendered templates: only bytes with mark[i] != 0 (written by the template) may form
 * special tokens. */
int tokenizer_encode_marked(const struct tokenizer *t, const char *text, const uint8_t *mark,
                            size_t n_bytes, struct token_ids *out, struct err *e);
/* Appends decoded text; incomplete or bad byte runs become U+FFFD. */
struct buf;
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, int skip_special,
                      struct buf *out);

/* Incremental decoding: never emits part of a character; joined pieces equal tokenizer_decode of
 * all ids except that a cut-off last character appears only as U+FFFD from detok_finish. */
struct detok {
    const struct tokenizer *t;
    int skip_special;
    char pending[8];
    int n_pending;
};
void detok_init(struct detok *d, const struct tokenizer *t, int skip_special);
void detok_push(struct detok *d, int32_t id, struct buf *out);
void detok_finish(struct detok *d, struct buf *out);

#endif
