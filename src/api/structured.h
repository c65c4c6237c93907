/* SPDX-License-Identifier: Apache-2.0 */
/* Structured output of a request: response_format, structured_outputs and the older guided_* fields
 * become one compiled grammar. Compiled grammars are kept per server, most recently used last. */
#ifndef TERN_API_STRUCTURED_H
#define TERN_API_STRUCTURED_H

#include "api/fields.h"
#include "text/grammar.h"

struct structured; /* the cache and the vocabulary; thread-safe */
int structured_open(struct structured **out, const struct tokenizer *t, int vocab_size,
                    struct err *e);
void structured_close(struct structured *s);

/* Compiles or finds. *out holds a reference. ERR_* as grammar_compile. */
int structured_grammar(struct structured *s, enum grammar_kind kind, const char *text,
                       size_t n_bytes, const struct grammar_options *o, struct grammar **out,
                       struct err *e);
/* Reads the fields. 1: *out is the grammar (one reference); 0: none asked for; -1: f->e says why.
 */
int structured_parse(struct structured *s, const struct fields *f, struct grammar **out);

#endif
