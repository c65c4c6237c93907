/* SPDX-License-Identifier: Apache-2.0 */
/* Drives src/text from the Python oracles. One JSON value a line in, one a line out.
 *   text_tool encode DIR [plain]   strings -> arrays of ids; plain: special strings are ordinary
 * text text_tool decode DIR [skip]    arrays of ids -> {"text", "pieces"}: whole decode and the
 * incremental pieces text_tool render               {"template", "data", "named"} -> {"text",
 * "marks"} or {"error"} text_tool chat DIR             {"messages", …} -> {"text", "ids"} or
 * {"error"} text_tool bench DIR FILE       MB/s of encoding FILE, whole and by lines */
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "text/chat.h"
#include "text/jinja.h"
#include "text/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const struct err *e)
{
    fprintf(stderr, "%s\n", e->text);
    return 1;
}

static int encode_line(const struct tokenizer *t, const struct json *v, int plain,
                       struct json_writer *w, struct err *e)
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

static int decode_line(const struct tokenizer *t, const struct json *v, int skip,
                       struct json_writer *w)
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

static void write_error(struct json_writer *w, const struct err *e)
{
    json_w_object(w);
    json_w_kstring(w, "error", e->text);
    json_w_object_end(w);
}

static int render_line(const struct json *v, struct json_writer *w)
{
    struct jinja *t = NULL;
    struct err e = {0};
    struct buf text, marks;
    size_t n, it = 0;
    const char *s = json_string(json_get(v, "template"), &n), *key;
    const struct json *item;
    buf_init(&text);
    buf_init(&marks);
    int r = jinja_parse(&t, s, n, "template", &e);
    if (!r) {
        struct jinja_run *run = jinja_run_new(t);
        while (json_next(json_get(v, "data"), &it, &key, &n, &item)) {
            jinja_run_set(run, key, jinja_from_json(run, item, 0));
        }
        for (it = 0; json_next(json_get(v, "named"), &it, &key, &n, &item);) {
            s = json_string(item, &n);
            jinja_run_set(run, key, jinja_text(run, s, n, 1, 0));
        }
        r = jinja_run_exec(run, &text, &marks, &e);
        jinja_run_free(run);
    }
    jinja_free(t);
    if (r) {
        write_error(w, &e);
    } else {
        for (size_t i = 0; i < marks.len; i++) {
            marks.data[i] = marks.data[i] ? '1' : '0';
        }
        json_w_object(w);
        json_w_key(w, "text");
        json_w_stringn(w, text.data ? text.data : "", text.len);
        json_w_key(w, "marks");
        json_w_stringn(w, marks.data ? marks.data : "", marks.len);
        json_w_object_end(w);
    }
    buf_fini(&text);
    buf_fini(&marks);
    return 0;
}

static int chat_line(const struct chat_template *c, const struct json *v, struct json_writer *w)
{
    const struct json *ask = json_get(v, "add_generation_prompt");
    struct chat_render_options o = {
        .add_generation_prompt = json_type(ask) == JSON_BOOL ? json_bool(ask) : -1,
        .continue_final_message = json_bool(json_get(v, "continue_final_message")),
        .tools = json_get(v, "tools"),
        .kwargs = json_get(v, "chat_template_kwargs"),
    };
    struct token_ids ids = {0};
    struct err e = {0};
    struct buf text;
    buf_init(&text);
    if (chat_encode(c, json_get(v, "messages"), &o, &ids, &text, &e)) {
        write_error(w, &e);
    } else {
        json_w_object(w);
        json_w_key(w, "text");
        json_w_stringn(w, text.data ? text.data : "", text.len);
        json_w_key(w, "ids");
        json_w_array(w);
        for (size_t i = 0; i < ids.n; i++) {
            json_w_int(w, ids.ids[i]);
        }
        json_w_array_end(w);
        json_w_object_end(w);
    }
    buf_fini(&text);
    token_ids_fini(&ids);
    return 0;
}

enum mode { ENCODE, DECODE, RENDER, CHAT };

static int lines(enum mode mode, const struct tokenizer *t, const struct chat_template *c, int flag)
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
            r = mode == RENDER   ? render_line(v, &w)
                : mode == CHAT   ? chat_line(c, v, &w)
                : mode == DECODE ? decode_line(t, v, flag, &w)
                                 : encode_line(t, v, flag, &w, &e);
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
    struct chat_template *c = NULL;
    struct err e = {0};
    int r = 2;
    if (argc == 2 && !strcmp(argv[1], "render")) {
        return lines(RENDER, NULL, NULL, 0);
    }
    if (argc < 3) {
        fprintf(stderr, "usage: text_tool encode|decode|chat|bench DIR …, or text_tool render\n");
        return 2;
    }
    if (tokenizer_open(&t, argv[2], &e) || chat_template_open(&c, argv[2], NULL, t, &e)) {
        r = fail(&e);
    } else if (!strcmp(argv[1], "encode")) {
        r = lines(ENCODE, t, c, argc > 3);
    } else if (!strcmp(argv[1], "decode")) {
        r = lines(DECODE, t, c, argc > 3);
    } else if (!strcmp(argv[1], "chat")) {
        r = lines(CHAT, t, c, 0);
    } else if (!strcmp(argv[1], "bench") && argc > 3) {
        r = bench(t, argv[3]);
    }
    chat_template_close(c);
    tokenizer_close(t);
    return r;
}
