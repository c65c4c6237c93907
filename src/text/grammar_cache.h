/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled grammars of one tokenizer, most recently used last. Thread-safe: one lock. */
#ifndef TERN_TEXT_GRAMMAR_CACHE_H
#define TERN_TEXT_GRAMMAR_CACHE_H

#include "text/grammar.h"

struct grammar_cache; /* and the vocabulary, made at the first use */
int grammar_cache_open(struct grammar_cache **out, const struct tokenizer *t, int vocab_size,
                       struct err *e);
void grammar_cache_close(struct grammar_cache *c);
/* Compiles or finds. *out holds a reference. ERR_* as grammar_compile. */
int grammar_cache_get(struct grammar_cache *c, enum grammar_kind kind, const char *text,
                      size_t n_bytes, const struct grammar_options *o, struct grammar **out,
                      struct err *e);

#endif
