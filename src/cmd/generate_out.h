/* SPDX-License-Identifier: Apache-2.0 */
/* What `tern generate` collects and how it prints it. */
#ifndef TERN_CMD_GENERATE_OUT_H
#define TERN_CMD_GENERATE_OUT_H

#include "base/arena.h"
#include "base/buf.h"
#include "engine/engine.h"
#include "tern.h"
#include "text/tokenizer.h"

struct generation_output {
    struct buf text;
    struct token_ids ids;
    struct token_output
        *logprobs; /* [ids.n], entries in the generation's arena; NULL without logprobs */
    size_t logprobs_cap;
    int finish, stop_id; /* as in the chunk */
    const char *stop_text;
    size_t stop_text_bytes;
    uint64_t first_token_ns, last_token_ns;
};

struct generation_prompt {
    char *text; /* as given, or as rendered by the chat template; NULL for ids */
    size_t text_bytes;
    struct token_ids ids;
    uint64_t arrival_ns;
    struct tern_request *request;
    struct generation_output *outputs; /* [n_samples] */
};

struct generation {
    struct generation_prompt *prompts;
    int n, cap, n_samples;
    struct tern_queue *queue;
    struct arena arena; /* logprob entries and stop strings */
    int arena_ready;
};

struct generation_prompt *generation_add(struct generation *g); /* NULL when out of memory */
int generation_start(struct generation *g, int n_samples, struct err *e);
/* Keeps what a chunk says. 0 or ERR_NOMEM. */
int generation_take(struct generation *g, struct generation_output *out,
                    const struct tern_chunk *c);
int generation_print_text(const struct generation *g, struct err *e);
int generation_print_json(const struct generation *g, const struct tern_tokenizer *t, int chat,
                          struct err *e);
void generation_fini(struct generation *g); /* ends requests that run */

#endif
