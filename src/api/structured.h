/* SPDX-License-Identifier: Apache-2.0 */
/* Structured output of a request: response_format, structured_outputs and the older guided_* fields
 * become one compiled grammar. */
#ifndef TERN_API_STRUCTURED_H
#define TERN_API_STRUCTURED_H

#include "api/fields.h"
#include "text/grammar_cache.h"

/* Reads the fields. 1: *out is the grammar (one reference); 0: none asked for; -1: f->e says why.
 */
int structured_parse(struct grammar_cache *c, const struct fields *f, struct grammar **out);

#endif
