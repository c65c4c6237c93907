/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what a JSON Schema grammar lets a model write, at random: the oracle in tests/schema
 * judges it. grammar_walk DIR N    a line in: {"schema": …, "texts": […]}; a line out: {"outputs":
 * [N strings], "accepts": [whether each of texts is]} or {"error": "…", "code": n}. Bytes are drawn
 * evenly from those that may follow; after a while the walk prefers what leads to an end. */
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

static void write_walks(struct grammar *g, int n, const struct json *texts, struct json_writer *w)
{
    struct buf one;
    uint32_t seed = 1;
    buf_init(&one);
    json_w_key(w, "outputs");
    json_w_array(w);
    for (int i = 0; i < n; i++) {
        buf_clear(&one);
        if (walk(g, &seed, &one)) {
            json_w_stringn(w, one.data ? one.data : "", one.len);
        }
    }
    json_w_array_end(w);
    json_w_key(w, "accepts");
    json_w_array(w);
    for (size_t i = 0; i < json_length(texts); i++) {
        size_t len;
        const char *s = json_string(json_at(texts, i), &len);
        json_w_bool(w, grammar_can_stop(g, grammar_step_bytes(g, grammar_start(g), s, len)));
    }
    json_w_array_end(w);
    buf_fini(&one);
}

/* One line; 0, or -1 when it is not what this tool reads. */
static int judge_line(const char *line, size_t n, int n_outputs, const struct grammar_vocab *v,
                      struct buf *out)
{
    struct json *doc;
    struct grammar *g;
    struct buf schema;
    struct json_writer w;
    struct err e = {0};
    if (json_parse(&doc, line, n, 200, &e) != 0) {
        fprintf(stderr, "%s\n", e.text);
        return -1;
    }
    buf_init(&schema);
    json_dump(json_get(doc, "schema"), &schema);
    json_w_init(&w, out);
    json_w_object(&w);
    int rc = grammar_compile(&g, GRAMMAR_JSON_SCHEMA, schema.data, schema.len, NULL, v, &e);
    if (rc != 0) {
        json_w_kstring(&w, "error", e.text);
        json_w_kint(&w, "code", rc);
    } else {
        write_walks(g, n_outputs, json_get(doc, "texts"), &w);
        grammar_unref(g);
    }
    json_w_object_end(&w);
    buf_fini(&schema);
    json_free(doc);
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
    int status = 0;
    if (argc < 3 || tokenizer_open(&t, argv[1], &e) != 0 ||
        grammar_vocab_open(&v, t, tokenizer_n_ids(t), &e) != 0) {
        fprintf(stderr, "usage: grammar_walk DIR N < schemas (%s)\n", e.text);
        return 1;
    }
    while (status == 0 && (n = getline(&line, &cap, stdin)) > 0) {
        struct buf out;
        buf_init(&out);
        status = judge_line(line, (size_t)n, atoi(argv[2]), v, &out) != 0;
        if (status == 0) {
            printf("%s\n", out.data);
        }
        buf_fini(&out);
    }
    free(line);
    grammar_vocab_close(v);
    tokenizer_close(t);
    return status;
}
