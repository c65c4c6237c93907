/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-pair encoding exactly as SentencePiece does it: user-defined pieces first (longest match,
 * never merged), then the adjacent pair whose piece has the best score, leftmost on ties, until
 * nothing merges; characters without a piece become byte pieces. */
#ifndef TERN_TEXT_BPE_H
#define TERN_TEXT_BPE_H

#include "text/spm.h"
#include "text/tokenizer.h"

struct bpe;
struct bpe_scratch;

/* banned[id] != 0: no merge may give this id (special tokens). m must outlive the result. */
int bpe_new(struct bpe **out, const struct spm *m, const uint8_t *banned, struct err *e);
void bpe_free(struct bpe *b);

/* Working memory of one thread; reused between calls. */
struct bpe_scratch *bpe_scratch_new(const struct bpe *b);
void bpe_scratch_free(struct bpe_scratch *s);
/* Appends the ids of text, which must be valid UTF-8. 0 or ERR_NOMEM / ERR_TOO_LARGE. */
int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *text, size_t n_bytes,
               struct token_ids *out);

#endif
