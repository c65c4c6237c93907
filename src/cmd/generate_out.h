/* SPDX-License-Identifier: Apache-2.0 */
/* What `tern generate` collects and how it prints it. */
#ifndef TERN_CMD_GENERATE_OUT_H
#define TERN_CMD_GENERATE_OUT_H

#include "base/arena.h"
#include "base/mq.h"
#include "engine/engine.h"
#include "engine/output.h"
#include "text/tokenizer.h"

struct generation_output {
    struct output text;
    struct token_ids ids;
    struct token_output
        *logprobs; /* [ids.n], entries in the generation's arena; NULL without logprobs */
    size_t logprobs_cap;
    enum finish_reason finish;
    uint64_t n_cached, first_token_ns, last_token_ns;
    int ready; /* `text` was initialised */
};

struct generation_prompt {
    char *text; /* as given, or as rendered by the chat template; NULL for ids */
    size_t text_bytes;
    struct token_ids ids;
    uint64_t request_id, arrival_ns;
    struct generation_output *outputs; /* [n_samples] */
};

struct generation {
    struct generation_prompt *prompts;
    int n, cap, n_samples, n_submitted, n_open;
    struct mq *reply;
    struct arena arena; /* logprob entries */
    int arena_ready;
};

struct generation_prompt *generation_add(struct generation *g); /* NULL when out of memory */
int generation_start(struct generation *g, const struct tokenizer *t,
                     const struct output_options *o, int n_samples, struct err *e);
/* Keeps the first `used` tokens of an event, and how it ended. 0 or ERR_NOMEM. */
int generation_take(struct generation *g, struct generation_output *out,
                    const struct engine_event *ev, int used);
int generation_print_text(const struct generation *g, struct err *e);
int generation_print_json(const struct generation *g, const struct tokenizer *t, int chat,
                          struct err *e);
void generation_fini(struct generation *g);

#endif
