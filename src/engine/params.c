/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of the sampling parameters, as vLLM has them. Front ends call this before a request
 * reaches the engine, which calls it again: nothing behind it checks a value. */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

#define GREEDY_BELOW    1e-5
#define MAX_BAD_WORDS   128
#define MAX_LOGPROB_IDS 128
#define MAX_PATTERN     1024 /* tokens of a repetition pattern, and times of it */

void sampling_params_init(struct sampling_params *p)
{
    memset(p, 0, sizeof *p);
    p->n = 1;
    p->temperature = 1.0;
    p->top_p = 1.0;
    p->repetition_penalty = 1.0;
    p->max_tokens = 16;
    p->n_logprobs = -1;
    p->n_prompt_logprobs = -1;
    p->length_penalty = 1.0;
}

int sampling_params_n_top(const struct sampling_params *p)
{
    return p->n_logprobs >= 0 && p->n_logprob_token_ids > 0 ? p->n_logprob_token_ids
                                                            : p->n_logprobs;
}

static int bad(struct err *e, const char **field, const char *name, const char *rule, double got)
{
    *field = name;
    return err_set(e, ERR_INVALID, "%s must be %s, got %.10g.", name, rule, got);
}

static int check_numbers(const struct sampling_params *p, const char **field, struct err *e)
{
    if (p->n < 1) {
        return bad(e, field, "n", "at least 1", p->n);
    }
    if (!(p->presence_penalty >= -2.0 && p->presence_penalty <= 2.0)) {
        return bad(e, field, "presence_penalty", "in [-2, 2]", p->presence_penalty);
    }
    if (!(p->frequency_penalty >= -2.0 && p->frequency_penalty <= 2.0)) {
        return bad(e, field, "frequency_penalty", "in [-2, 2]", p->frequency_penalty);
    }
    if (!(isfinite(p->repetition_penalty) && p->repetition_penalty > 0.0)) {
        return bad(e, field, "repetition_penalty", "a finite number greater than zero",
                   p->repetition_penalty);
    }
    if (!(p->temperature >= 0.0 && p->temperature <= 2.0)) {
        return bad(e, field, "temperature", "in [0, 2]", p->temperature);
    }
    if (!(p->top_p > 0.0 && p->top_p <= 1.0)) {
        return bad(e, field, "top_p", "in (0, 1]", p->top_p);
    }
    if (p->top_k < -1) {
        return bad(e, field, "top_k", "0 or -1 (off), or at least 1", p->top_k);
    }
    if (!(p->min_p >= 0.0 && p->min_p <= 1.0)) {
        return bad(e, field, "min_p", "in [0, 1]", p->min_p);
    }
    if (p->max_tokens < 1) {
        return bad(e, field, "max_tokens", "at least 1", p->max_tokens);
    }
    if (p->min_tokens < 0) {
        return bad(e, field, "min_tokens", "at least 0", p->min_tokens);
    }
    if (p->min_tokens > p->max_tokens) {
        *field = "min_tokens";
        return err_set(e, ERR_INVALID,
                       "min_tokens must be less than or equal to max_tokens=%d, got %d.",
                       p->max_tokens, p->min_tokens);
    }
    if (p->temperature < GREEDY_BELOW && p->n > 1 && !p->use_beam_search) {
        *field = "n";
        return err_set(e, ERR_INVALID, "n must be 1 when using greedy sampling, got %d.", p->n);
    }
    return 0;
}

static int check_logprobs(int n, const char *name, int max_logprobs, const char **field,
                          struct err *e)
{
    if (n < -1) {
        return bad(e, field, name, "non-negative or -1", n);
    }
    if (max_logprobs >= 0 && n > max_logprobs) {
        *field = name;
        return err_set(e, ERR_INVALID, "Requested %s of %d, which is greater than max allowed: %d",
                       strcmp(name, "logprobs") == 0 ? "sample logprobs" : "prompt logprobs", n,
                       max_logprobs);
    }
    return 0;
}

static int check_id(int32_t id, int vocab_size, const char *name, const char **field, struct err *e)
{
    if (id >= 0 && id < vocab_size) {
        return 0;
    }
    *field = name;
    return err_set(e, ERR_INVALID,
                   "%s contains out-of-vocab token id %d; the vocabulary size is %d.", name, id,
                   vocab_size);
}

static int check_repetition(const struct repetition_rule *r, const char **field, struct err *e)
{
    *field = "repetition_detection";
    if (r->max_pattern == 0) {
        return 0;
    }
    if (r->max_pattern < 0 || r->max_pattern > MAX_PATTERN || r->min_pattern < 0 ||
        r->min_pattern > r->max_pattern) {
        return err_set(e, ERR_INVALID,
                       "repetition_detection: 0 <= min_pattern_size (%d) <= max_pattern_size (%d) "
                       "<= %d is required.",
                       r->min_pattern, r->max_pattern, MAX_PATTERN);
    }
    if (r->min_count < 2 || r->min_count > MAX_PATTERN) {
        return err_set(e, ERR_INVALID,
                       "repetition_detection: min_count must be in [2, %d], got %d.", MAX_PATTERN,
                       r->min_count);
    }
    return 0;
}

static int check_logprob_ids(const struct sampling_params *p, int vocab_size, const char **field,
                             struct err *e)
{
    if (p->n_logprob_token_ids == 0) {
        return 0;
    }
    *field = "logprob_token_ids";
    if (p->n_logprobs < 0) {
        return err_set(e, ERR_INVALID, "logprob_token_ids needs logprobs to be asked for.");
    }
    if (p->n_logprob_token_ids > MAX_LOGPROB_IDS) {
        return err_set(e, ERR_INVALID, "logprob_token_ids may have at most %d ids, got %d.",
                       MAX_LOGPROB_IDS, p->n_logprob_token_ids);
    }
    for (int i = 0; i < p->n_logprob_token_ids; i++) {
        if (check_id(p->logprob_token_ids[i], vocab_size, "logprob_token_ids", field, e) < 0) {
            return ERR_INVALID;
        }
    }
    return 0;
}

static int check_beams(const struct sampling_params *p, int vocab_size, const char **field,
                       struct err *e)
{
    int most = vocab_size / 2 < ENGINE_MAX_BEAMS ? vocab_size / 2 : ENGINE_MAX_BEAMS;
    if (!p->use_beam_search) {
        return 0;
    }
    if (p->n > most) {
        *field = "n";
        return err_set(e, ERR_INVALID, "n must be at most %d with use_beam_search, got %d.", most,
                       p->n);
    }
    return isfinite(p->length_penalty)
               ? 0
               : bad(e, field, "length_penalty", "a finite number", p->length_penalty);
}

static int check_lists(const struct sampling_params *p, int vocab_size, const char **field,
                       struct err *e)
{
    for (int i = 0; i < p->n_logit_bias; i++) {
        if (check_id(p->logit_bias[i].id, vocab_size, "logit_bias", field, e) < 0) {
            return ERR_INVALID;
        }
        if (!isfinite(p->logit_bias[i].bias)) {
            return bad(e, field, "logit_bias", "a map to finite numbers",
                       (double)p->logit_bias[i].bias);
        }
    }
    if (p->allowed_token_ids && p->n_allowed_token_ids < 1) {
        *field = "allowed_token_ids";
        return err_set(e, ERR_INVALID, "allowed_token_ids is not None and empty!");
    }
    for (int i = 0; i < p->n_allowed_token_ids; i++) {
        if (check_id(p->allowed_token_ids[i], vocab_size, "allowed_token_ids", field, e) < 0) {
            return ERR_INVALID;
        }
    }
    if (p->n_bad_words > MAX_BAD_WORDS) {
        return bad(e, field, "bad_words", "at most 128 token sequences", p->n_bad_words);
    }
    for (int i = 0; i < p->n_bad_words; i++) {
        if (p->bad_words[i].n < 1) {
            *field = "bad_words";
            return err_set(e, ERR_INVALID, "bad_words cannot contain an empty string.");
        }
        for (int j = 0; j < p->bad_words[i].n; j++) {
            if (check_id(p->bad_words[i].ids[j], vocab_size, "bad_words", field, e) < 0) {
                return ERR_INVALID;
            }
        }
    }
    return 0; /* a stop id outside the vocabulary never matches: harmless, and vLLM takes it */
}

int sampling_params_check(const struct sampling_params *p, int vocab_size, int max_logprobs,
                          const char **field, struct err *e)
{
    const char *ignored = NULL;
    field = field ? field : &ignored;
    int rc = check_numbers(p, field, e);
    if (rc == 0) {
        rc = check_logprobs(p->n_logprobs, "logprobs", max_logprobs, field, e);
    }
    if (rc == 0) {
        rc = check_logprobs(p->n_prompt_logprobs, "prompt_logprobs", max_logprobs, field, e);
    }
    if (rc == 0) {
        rc = check_repetition(&p->repetition, field, e);
    }
    if (rc == 0) {
        rc = check_beams(p, vocab_size, field, e);
    }
    if (rc == 0) {
        rc = check_logprob_ids(p, vocab_size, field, e);
    }
    return rc == 0 ? check_lists(p, vocab_size, field, e) : rc;
}
