/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what a JSON Schema grammar lets a model write, at random: the oracle in tests/schema
 * judges it. grammar_walk DIR N    one schema a line in; out: {"outputs": [N strings]} or {"error":
 * "…", "code": n} Bytes are drawn evenly from those that may follow; after a while the walk prefers
 * what leads to an end. */
#include "base/buf.h"
#include "base/json.h"
#include "text/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FREE_BYTES 60   /* bytes before the walk looks for an end */
#define MAX_BYTES  3000 /* an output that is not complete by then is dropped */

static uint32_t next_random(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

/* 1: out is a complete output. */
static int walk(struct grammar *g, uint32_t *seed, struct buf *out)
{
    static const char ends[] = "\"}]0123456789.aetru,:{[ln";
    int config = grammar_start(g);
    while (out->len < MAX_BYTES) {
        char can[256];
        int to[256], n = 0;
        for (int b = 0; b < 256; b++) {
            char ch = (char)b;
            int c = grammar_step_bytes(g, config, &ch, 1);
            if (c >= 0) {
                can[n] = ch;
                to[n++] = c;
            }
        }
        if (grammar_can_stop(g, config) &&
            (n == 0 || out->len > FREE_BYTES || next_random(seed) % 4 == 0)) {
            return 1;
        }
        if (n == 0) {
            return 0;
        }
        int pick = (int)(next_random(seed) % (uint32_t)n);
        /* Structure is one byte among many inside a string: give it its chance. */
        int wants_end =
            out->len > FREE_BYTES ? next_random(seed) % 8 != 0 : next_random(seed) % 4 == 0;
        for (const char *e = ends; wants_end && *e; e++) {
            const char *at = memchr(can, *e, (size_t)n);
            if (at != NULL) {
                pick = (int)(at - can);
                break;
            }
        }
        buf_putc(out, can[pick]);
        config = to[pick];
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct tokenizer *t;
    struct grammar_vocab *v;
    struct err e = {0};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    if (argc < 3 || tokenizer_open(&t, argv[1], &e) != 0 ||
        grammar_vocab_open(&v, t, tokenizer_n_ids(t), &e) != 0) {
        fprintf(stderr, "usage: grammar_walk DIR N < schemas (%s)\n", e.text);
        return 1;
    }
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct grammar *g;
        struct buf text, one;
        struct json_writer w;
        uint32_t seed = 1;
        buf_init(&text);
        buf_init(&one);
        json_w_init(&w, &text);
        json_w_object(&w);
        int rc = grammar_compile(&g, GRAMMAR_JSON_SCHEMA, line, (size_t)n, NULL, v, &e);
        if (rc != 0) {
            json_w_key(&w, "error");
            json_w_stringn(&w, e.text, strlen(e.text));
            json_w_key(&w, "code");
            json_w_int(&w, rc);
        } else {
            json_w_key(&w, "outputs");
            json_w_array(&w);
            for (int i = 0; i < atoi(argv[2]); i++) {
                buf_clear(&one);
                if (walk(g, &seed, &one)) {
                    json_w_stringn(&w, one.data ? one.data : "", one.len);
                }
            }
            json_w_array_end(&w);
            grammar_unref(g);
        }
        json_w_object_end(&w);
        printf("%s\n", text.data);
        buf_fini(&text);
        buf_fini(&one);
    }
    free(line);
    grammar_vocab_close(v);
    tokenizer_close(t);
    return 0;
}
