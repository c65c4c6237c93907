/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts by prompt lookup: what followed the last few tokens when they stood earlier in the same
 * sequence. Pure functions over token ids. */
#ifndef TERN_ENGINE_NGRAM_H
#define TERN_ENGINE_NGRAM_H

#include <stdint.h>

/* The text is prompt and then out, n tokens in all. Of the suffixes of max .. min tokens the longest
 * that also occurs earlier is taken, at its first place; up to k tokens that follow it there are
 * written to draft (which may be out + n_out). Returns their number, 0 when no suffix occurs twice.
 * 1 <= min <= max. */
int ngram_propose(const int32_t *prompt, int n_prompt, const int32_t *out, int n_out, int min,
                  int max, int32_t *draft, int k);

#endif
