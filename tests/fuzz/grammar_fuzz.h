/* SPDX-License-Identifier: Apache-2.0 */
/* What the grammar targets share: any text compiles or is refused in one line; what compiles is
 * followed for some tokens, and on the way masks and single steps must agree. */
#ifndef TERN_TESTS_GRAMMAR_FUZZ_H
#define TERN_TESTS_GRAMMAR_FUZZ_H

#include "base/buf.h"
#include "base/json.h"
#include "text/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUZZ_STEPS    24
#define FUZZ_PROBES   40
#define FUZZ_MAX_TEXT 3000

static struct tokenizer *fuzz_tokenizer;
static struct grammar_vocab *fuzz_vocab;

static inline uint32_t fuzz_next(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

/* A token of the mask, -1 when it is empty. */
static inline int32_t fuzz_pick(const uint32_t *mask, int n_ids, int n, uint32_t *seed)
{
    int skip = n > 0 ? (int)(fuzz_next(seed) % (uint32_t)n) : 0;
    for (int32_t id = 0; id < n_ids && n > 0; id++) {
        if ((mask[id / 32] >> (id % 32) & 1) && skip-- == 0) {
            return id;
        }
    }
    return -1;
}

/* Follows g from its start; the text it wrote in out, and whether it may end there. */
static inline int fuzz_follow(struct grammar *g, uint32_t seed, struct buf *out)
{
    int n_ids = tokenizer_n_ids(fuzz_tokenizer), config = grammar_start(g);
    uint32_t *mask =
        (uint32_t *)malloc(sizeof *mask * (size_t)grammar_vocab_mask_words(fuzz_vocab));
    for (int i = 0; i < FUZZ_STEPS && mask != NULL; i++) {
        int n = grammar_mask(g, config, mask);
        for (int k = 0; k < FUZZ_PROBES && n >= 0; k++) {
            int32_t id = (int32_t)(fuzz_next(&seed) % (uint32_t)n_ids);
            int allowed = grammar_step_token(g, config, id) >= 0;
            int masked = (int)(mask[id / 32] >> (id % 32) & 1);
            if (allowed > masked || (allowed < masked && !grammar_is_ambiguous(g))) {
                abort();
            }
        }
        int32_t id = fuzz_pick(mask, n_ids, n, &seed);
        if (id < 0 || (grammar_can_stop(g, config) && fuzz_next(&seed) % 4 == 0)) {
            break;
        }
        size_t len;
        const char *s = tokenizer_piece(fuzz_tokenizer, id, &len);
        buf_append(out, s, len);
        config = grammar_step_token(g, config, id);
        if (config < 0) {
            if (!grammar_is_ambiguous(g)) {
                abort();
            }
            break;
        }
    }
    free(mask);
    return grammar_can_stop(g, config);
}

static inline int fuzz_grammar(enum grammar_kind kind, const uint8_t *data, size_t n_bytes)
{
    struct err e = {0};
    struct grammar *g;
    struct buf out;
    if (fuzz_tokenizer == NULL &&
        (tokenizer_open(&fuzz_tokenizer, TERN_SOURCE_DIR "/models/tern-poet", &e) != 0 ||
         grammar_vocab_open(&fuzz_vocab, fuzz_tokenizer, tokenizer_n_ids(fuzz_tokenizer), &e) !=
             0)) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    if (n_bytes > FUZZ_MAX_TEXT) {
        return 0;
    }
    if (grammar_compile(&g, kind, (const char *)data, n_bytes, NULL, fuzz_vocab, &e) != 0) {
        if (e.text[0] == 0 || strchr(e.text, '\n') != NULL) {
            abort();
        }
        return 0;
    }
    buf_init(&out);
    int complete = fuzz_follow(g, (uint32_t)n_bytes, &out);
    if (complete && kind == GRAMMAR_JSON_SCHEMA) {
        struct json *doc;
        if (json_parse(&doc, out.data != NULL ? out.data : "", out.len, 1000, &e) != 0) {
            fprintf(stderr, "not JSON: %.*s: %s\n", (int)out.len, out.data, e.text);
            abort();
        }
        json_free(doc);
    }
    buf_fini(&out);
    grammar_unref(g);
    return 0;
}

#endif
