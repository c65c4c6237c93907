/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing the model with itself and with stored logits of another implementation: the core of
 * `tern align`.
 *
 * align_run generates greedily from token-id prompts twice, with an eager forward and with the
 * compiled plan, each with a KV store of its own, and compares the logits of every step bit by bit.
 * align_golden compares one of the two with a golden.json: greedy ids, margins, logprobs, the best
 * logits after each prompt, a fingerprint of every position of one prompt, and perplexity. The
 * kernel table is the caller's, so that a test can hand in one with a single changed rounding and
 * see both fail. Neither touches the engine. */
#ifndef TERN_MODEL_ALIGN_H
#define TERN_MODEL_ALIGN_H

#include "base/err.h"
#include "model/model.h"
#include <stdint.h>

#define ALIGN_MAX_PROMPTS 16
#define ALIGN_MAX_TOKENS  256 /* greedy tokens a prompt */

struct align_prompt {
    const int32_t *ids;
    int n;
};

struct align_options {
    const struct model *model; /* loaded */
    const struct kernels *kernels;
    struct cpu_pool *pool;
    const struct align_prompt *prompts; /* align_run only */
    int n_prompts, n_tokens; /* align_run only: 1..ALIGN_MAX_PROMPTS, 1..ALIGN_MAX_TOKENS */
    int eager;               /* align_golden only: which forward is compared */
};

struct align_prompt_result {
    int32_t eager_ids[ALIGN_MAX_TOKENS], plan_ids[ALIGN_MAX_TOKENS];
    int n_tokens;
    int ids_equal, bits_equal;
    int first_difference;           /* step whose logits differ first; -1: none */
    double max_relative_error;      /* largest |plan - eager| / max(|eager|, 1e-6) */
    uint64_t eager_hash, plan_hash; /* XXH3 of the logits of the last step */
};

struct align_result {
    int n_prompts;
    int ids_equal, bits_equal; /* over all prompts */
    double max_relative_error;
    uint64_t logits_hash; /* XXH3 over the plan_hash values */
    struct align_prompt_result prompts[ALIGN_MAX_PROMPTS];
};
/* 0 when both ran, whatever the comparison says; *r is about 36 KB. A plan that picks another token
 * goes on from its own token, so ids_equal compares two whole generations. */
int align_run(const struct align_options *o, struct align_result *r, struct err *e);

struct align_golden_result {
    int passed;
    char reason[256]; /* the first limit that was passed over, with numbers; "" when passed */
    int n_prompts;
    int n_greedy,
        n_greedy_equal; /* ids compared (not float32: up to the first small margin), equal */
    int n_argmax, n_argmax_equal; /* fingerprint rows */
    double max_logit_error;       /* best logits after each prompt, fingerprint maxima and probes */
    double rms_logit_error;
    double max_logprob_error; /* of the greedy ids that were compared */
    double perplexity, perplexity_expected, perplexity_error; /* error is relative */
    /* limits used */
    double limit_logit, limit_rms, limit_argmax, limit_perplexity;
};
/* Limits: float32 5e-4 on logits and logprobs, every greedy id and 1e-4 relative on perplexity;
 * bfloat16 1.4 at most and 0.18 rms on logits, 87 % of argmax equal, 3 % on perplexity; wider ones
 * for 8-bit activations. Missing parts of the file are skipped. */
int align_golden(const struct align_options *o, const char *golden_path,
                 struct align_golden_result *r, struct err *e);

#endif
