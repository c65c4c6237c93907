/* SPDX-License-Identifier: Apache-2.0 */
/* From a row of logits to a token id, and to log-probabilities. A sampler is the scratch memory of
 * one thread; rows are independent of each other, so any thread may take any row. */
#ifndef TERN_ENGINE_SAMPLER_H
#define TERN_ENGINE_SAMPLER_H

#include "engine/engine.h"

struct sampler;
int sampler_open(struct sampler **out, const struct kernels *k, int vocab_size, struct err *e);
void sampler_close(struct sampler *s);
size_t sampler_bytes(int vocab_size);

struct sampler_row {
    const float *logits;
    const struct sampling_params *params;
    const int32_t *prompt, *out; /* what the sequence holds before the token drawn here */
    int n_prompt, n_out;
    int eos_id;       /* -1 none */
    int must_stop;    /* a grammar leaves stop tokens only: min_tokens doesn't forbid them */
    uint64_t seed;    /* of this sample; see rng.h */
    const float *raw; /* the row before anything was masked; NULL: logits is it */
};
/* What stands for an id when the raw logits hold none to choose: all are NaN or -inf, or the largest
 * is infinite. */
#define SAMPLER_NO_NUMBERS (-2)
/* The row with every entry whose bit is not set in `mask` at -inf: own memory, until the next call.
 * mask may be sampler_mask_words(s), scratch of the sampler. */
const float *sampler_masked(struct sampler *s, const float *logits, const uint32_t *mask);
uint32_t *sampler_mask_words(struct sampler *s); /* (vocab_size + 31) / 32 words */
int32_t sampler_draw(struct sampler *s, const struct sampler_row *row);

/* Log-softmax of the raw logits: out[0] is `id`, the rest are ids[0..n) as given (rank 0). Returns
 * 1 + n. */
int sampler_logprobs_of(struct sampler *s, const float *logits, int32_t id, const int32_t *ids,
                        int n, struct token_logprob *out);
/* Log-softmax of the raw logits: out[0] is `id`, out[1..k] the k best, best first, ties by id.
 * Ranks count the entries that are at least as large, so the worst of equals. Returns the number of
 * entries, 1 + min(k, vocab_size). */
int sampler_logprobs(struct sampler *s, const float *logits, int32_t id, int k,
                     struct token_logprob *out);

#endif
