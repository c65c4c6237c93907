/* SPDX-License-Identifier: Apache-2.0 */
/* Structured output: a JSON Schema, regular expression, choice list or EBNF grammar compiled to an
 * automaton over bytes, and token masks over a vocabulary.
 *
 * A position in a grammar is a small int (a configuration), so a sequence may be forked or rolled
 * back by copying it. A grammar and its caches are shared by every request that uses it and are
 * safe to use from several threads (one lock per grammar). Compiling is bounded in time and size;
 * what can't be enforced exactly is refused by name. */
#ifndef TERN_TEXT_GRAMMAR_H
#define TERN_TEXT_GRAMMAR_H

#include "base/err.h"
#include "base/json.h"
#include "text/tokenizer.h"

struct grammar_vocab; /* the byte trie of a tokenizer; immutable; one per tokenizer */
int grammar_vocab_open(struct grammar_vocab **out, const struct tokenizer *t, int vocab_size,
                       struct err *e);
void grammar_vocab_close(struct grammar_vocab *v);
int grammar_vocab_mask_words(
    const struct grammar_vocab *v); /* uint32_t words of a mask: (vocab_size + 31) / 32 */

enum grammar_kind {
    GRAMMAR_JSON_OBJECT, /* any JSON object; text is ignored */
    GRAMMAR_JSON_SCHEMA, /* text: the schema as JSON */
    GRAMMAR_REGEX,       /* text: matches the whole output */
    GRAMMAR_CHOICE,      /* text: a JSON array of strings */
    GRAMMAR_EBNF,        /* text: GBNF ("root ::= …") or the simple Lark form ("start: …") */
};

struct grammar_options {
    int no_whitespace;            /* JSON: exactly ", " and ": " and nothing else between tokens */
    const char *whitespace_regex; /* JSON: what may stand between tokens; NULL: at most one blank,
                                   * or one newline and a short indent */
};

struct grammar;
/* ERR_INVALID or ERR_FORMAT: the text is wrong; ERR_UNSUPPORTED: a keyword or construct that can't
 * be enforced (named); ERR_TOO_LARGE: over the limits. The vocabulary must outlive the grammar. The
 * caller holds one reference. */
int grammar_compile(struct grammar **out, enum grammar_kind kind, const char *text, size_t n_bytes,
                    const struct grammar_options *o, const struct grammar_vocab *v, struct err *e);
struct grammar *grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g);

/* Configurations: >= 0; -1 dead. */
int grammar_start(struct grammar *g);
int grammar_step_token(struct grammar *g, int config,
                       int32_t token); /* -1: the token is not allowed here */
int grammar_step_bytes(struct grammar *g, int config, const char *s, size_t n_bytes);
int grammar_can_stop(struct grammar *g, int config); /* the output so far is complete */
/* Sets bit t % 32 of mask[t / 32] for each token that may come next, clears the rest. Stop tokens
 * are the caller's: allowed exactly when grammar_can_stop. Returns the number of allowed tokens; -1
 * when the grammar's caches are full. */
int grammar_mask(struct grammar *g, int config, uint32_t *mask);
/* For another thread than the one that will ask for the mask: is it there already, and make it. */
int grammar_has_mask(struct grammar *g, int config);
void grammar_prepare(struct grammar *g, int config);
/* 1 when the grammar's caches are full: those who use it may soon fail, new ones should compile it
 * again. */
int grammar_is_spent(struct grammar *g);
/* 1 when the output could have gone on in more ways than the limits at some position: such a
 * position counts as dead, and a mask may have a token that leads to it. */
int grammar_is_ambiguous(struct grammar *g);

#endif
