/* SPDX-License-Identifier: Apache-2.0 */
/* Drives src/text from the Python oracles. One JSON value a line in, one a line out.
 *   text_tool encode DIR [plain]   strings -> arrays of ids; plain: special strings are ordinary text
 *   text_tool decode DIR [skip]    arrays of ids -> {"text", "pieces"}: whole decode and the incremental pieces
 *   text_tool bench DIR FILE       MB/s of encoding FILE, whole and by lines */
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const struct err *e)
{
    fprintf(stderr, "%s\n", e->text);
    return 1;
}

static int encode_line(const struct tokenizer *t, const struct json *v, int plain, struct json_writer *w,
                       struct err *e)
{
    struct token_ids ids = {0};
    size_t n;
    const char *s = json_string(v, &n);
    int r = tokenizer_encode(t, s, n, !plain, &ids, e);
    json_w_array(w);
    for (size_t i = 0; i < ids.n; i++) {
        json_w_int(w, ids.ids[i]);
    }
    json_w_array_end(w);
    token_ids_fini(&ids);
    return r;
}

static int decode_line(const struct tokenizer *t, const struct json *v, int skip, struct json_writer *w)
{
    struct token_ids ids = {0};
    struct detok d;
    struct buf text;
    buf_init(&text);
    for (size_t i = 0; i < json_length(v); i++) {
        token_ids_push(&ids, (int32_t)json_int(json_at(v, i)));
    }
    tokenizer_decode(t, ids.ids, ids.n, skip, &text);
    json_w_object(w);
    json_w_key(w, "text");
    json_w_stringn(w, text.data ? text.data : "", text.len);
    json_w_key(w, "pieces");
    json_w_array(w);
    detok_init(&d, t, skip);
    for (size_t i = 0; i <= ids.n; i++) {
        buf_clear(&text);
        if (i < ids.n) {
            detok_push(&d, ids.ids[i], &text);
        } else {
            detok_finish(&d, &text);
        }
        json_w_stringn(w, text.data ? text.data : "", text.len);
    }
    json_w_array_end(w);
    json_w_object_end(w);
    token_ids_fini(&ids);
    buf_fini(&text);
    return 0;
}

static int lines(const struct tokenizer *t, int decode, int flag)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    struct err e = {0};
    struct buf out;
    int r = 0;
    buf_init(&out);
    while (!r && (n = getline(&line, &cap, stdin)) > 0) {
        struct json *v;
        struct json_writer w;
        buf_clear(&out);
        json_w_init(&w, &out);
        r = json_parse(&v, line, (size_t)n, JSON_DEPTH_DEFAULT, &e);
        if (!r) {
            r = decode ? decode_line(t, v, flag, &w) : encode_line(t, v, flag, &w, &e);
            json_free(v);
        }
        if (!r) {
            puts(out.data);
        }
    }
    free(line);
    buf_fini(&out);
    return r ? fail(&e) : 0;
}

static int bench(const struct tokenizer *t, const char *path)
{
    struct buf b;
    struct err e = {0};
    struct token_ids ids = {0};
    buf_init(&b);
    if (buf_read_file(&b, path, (size_t)1 << 30, &e)) {
        return fail(&e);
    }
    for (int by_line = 0; by_line < 2; by_line++) {
        double best = 1e30;
        for (int k = 0; k < 5; k++) {
            uint64_t t0 = clock_now_ns();
            ids.n = 0;
            for (size_t i = 0, end; i < b.len; i = end) {
                const char *nl = by_line ? memchr(b.data + i, '\n', b.len - i) : NULL;
                end = nl ? (size_t)(nl - b.data) + 1 : b.len;
                if (tokenizer_encode(t, b.data + i, end - i, 1, &ids, &e)) {
                    return fail(&e);
                }
            }
            double s = (double)(clock_now_ns() - t0) / 1e9;
            best = s < best ? s : best;
        }
        printf("%s: %zu bytes, %zu ids, %.1f MB/s\n", by_line ? "lines" : "whole", b.len, ids.n,
               (double)b.len / best / 1e6);
    }
    token_ids_fini(&ids);
    buf_fini(&b);
    return 0;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    int r = 2;
    if (argc < 3) {
        fprintf(stderr, "usage: text_tool encode|decode|bench DIR …\n");
        return 2;
    }
    if (tokenizer_open(&t, argv[2], &e)) {
        return fail(&e);
    }
    if (!strcmp(argv[1], "encode")) {
        r = lines(t, 0, argc > 3);
    } else if (!strcmp(argv[1], "decode")) {
        r = lines(t, 1, argc > 3);
    } else if (!strcmp(argv[1], "bench") && argc > 3) {
        r = bench(t, argv[3]);
    }
    tokenizer_close(t);
    return r;
}
