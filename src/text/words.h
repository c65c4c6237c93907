/* SPDX-License-Identifier: Apache-2.0 */
/* Words as the tokens that spell them, for bans of words. */
#ifndef TERN_TEXT_WORDS_H
#define TERN_TEXT_WORDS_H

#include "text/tokenizer.h"

#define WORDS_MAX        128 /* in one request */
#define WORDS_MAX_TOKENS 128 /* of one word */

/* A word has two spellings: at the start of a text, and after a space (`spaced`). Appends the ids of
 * one of them. ERR_INVALID: empty, or too long. */
int words_encode(const struct tokenizer *t, const char *word, size_t n_bytes, int spaced,
                 struct token_ids *out, struct err *e);

#endif
