/* SPDX-License-Identifier: Apache-2.0 */
/* From a sample's tokens to its text: incremental detokenization and stop strings. One per sample,
 * owned by whoever receives the events (a net loop, a command, the library). */
#ifndef TERN_ENGINE_OUTPUT_H
#define TERN_ENGINE_OUTPUT_H

#include "base/buf.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

struct output_options {
    const char *const *stop;
    const size_t *stop_bytes;
    int n_stop; /* stop strings, borrowed */
    int include_stop_str;
    int min_tokens; /* stop strings are not looked at before more than this many tokens */
    int skip_special;
    const int32_t *shown; /* special tokens that are text all the same; -1: none; borrowed */
    int n_shown;
};
struct output {
    struct detok detok;
    struct output_options o;
    struct buf text; /* everything decoded so far, cut at a stop string */
    size_t n_sent;   /* bytes already handed out by output_take */
    int n_tokens;
    enum finish_reason finish;
    int stop_index;        /* which stop string matched, -1 none */
    int32_t stop_token_id; /* from the event, -1 none */
};
int output_init(struct output *out, const struct tokenizer *t, const struct output_options *o);
void output_fini(struct output *out);
/* Feeds one event. Tokens after a stop-string match are dropped (*n_used = tokens of the event that
 * count, the one that completed the match included). Returns 1 when a stop string has just ended
 * the sample: the caller then calls engine_abort(…, stopped = 1). The text of an EOS or stop token
 * that ended the sample is left out unless include_stop_str. */
int output_feed(struct output *out, const struct engine_event *ev, int *n_used);
/* New text that may be shown now: holds back up to max(stop length) - 1 characters while
 * unfinished. Borrowed. */
const char *output_take(struct output *out, size_t *n_bytes);

#endif
