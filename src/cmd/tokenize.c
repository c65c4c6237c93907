/* SPDX-License-Identifier: Apache-2.0 */
/* tern tokenize DIR: lines of text in, one JSON array of token ids a line out; --decode the other
 * way. Needs only the tokenizer files of DIR. With --jsonl each line of text is a JSON string, so
 * that it may hold line breaks. */
#include "base/json.h"
#include "base/utf8.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "text/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct args_tokenize {
    int decode, jsonl, special, skip_special, strings;
};

#define FIELD(f) offsetof(struct args_tokenize, f)
static const struct opt rows[] = {
    {.name = "decode",
     .type = OPT_BOOL,
     .offset = FIELD(decode),
     .group = "Options",
     .def = "false",
     .help = "Arrays of ids in, text out."},
    {.name = "jsonl",
     .type = OPT_BOOL,
     .offset = FIELD(jsonl),
     .group = "Options",
     .def = "false",
     .help = "Text lines are JSON strings (in and out)."},
    {.name = "special",
     .type = OPT_BOOL,
     .offset = FIELD(special),
     .group = "Options",
     .def = "true",
     .help = "Special strings in the text become their token, as in the API; --no-special: they "
             "are ordinary text."},
    {.name = "skip-special-tokens",
     .type = OPT_BOOL,
     .offset = FIELD(skip_special),
     .group = "Options",
     .def = "false",
     .help = "With --decode: leave special tokens out."},
    {.name = "strings",
     .type = OPT_BOOL,
     .offset = FIELD(strings),
     .group = "Options",
     .def = "false",
     .help = "Print vocabulary strings instead of ids."},
};

static int encode_line(const struct tokenizer *t, const struct args_tokenize *a, const char *line,
                       size_t n, struct token_ids *ids, struct buf *out, struct err *e)
{
    struct json *doc = NULL;
    int rc = 0;
    if (a->jsonl) {
        rc = json_parse(&doc, line, n, JSON_DEPTH_DEFAULT, e);
        if (rc >= 0 && json_type(doc) != JSON_STRING) {
            rc = err_set(e, ERR_FORMAT, "expected a JSON string");
        }
        if (rc >= 0) {
            line = json_string(doc, &n);
        }
    }
    ids->n = 0;
    if (rc >= 0) {
        rc = tokenizer_encode(t, line, n, a->special, ids, e);
    }
    if (rc >= 0) {
        struct json_writer w;
        json_w_init(&w, out);
        json_w_array(&w);
        for (size_t i = 0; i < ids->n; i++) {
            size_t piece_bytes = 0;
            const char *piece =
                a->strings ? tokenizer_piece_raw(t, ids->ids[i], &piece_bytes) : NULL;
            if (a->strings) {
                json_w_stringn(&w, piece ? piece : "", piece_bytes);
            } else {
                json_w_int(&w, ids->ids[i]);
            }
        }
        json_w_array_end(&w);
    }
    json_free(doc);
    return rc;
}

static int decode_line(const struct tokenizer *t, const struct args_tokenize *a, const char *line,
                       size_t n, struct token_ids *ids, struct buf *out, struct err *e)
{
    struct json *doc = NULL;
    int rc = json_parse(&doc, line, n, JSON_DEPTH_DEFAULT, e);
    if (rc >= 0 && json_type(doc) != JSON_ARRAY) {
        rc = err_set(e, ERR_FORMAT, "expected a JSON array of ids");
    }
    ids->n = 0;
    for (size_t i = 0; rc >= 0 && i < json_length(doc); i++) {
        const struct json *v = json_at(doc, i);
        if (json_type(v) != JSON_INT) {
            rc = err_set(e, ERR_FORMAT, "item %zu: expected an id", i);
        } else if (json_int(v) < 0 || json_int(v) >= tokenizer_n_ids(t)) {
            rc = err_set(e, ERR_FORMAT, "item %zu: %lld is no id (0 to %d)", i,
                         (long long)json_int(v), tokenizer_n_ids(t) - 1);
        } else if (token_ids_push(ids, (int32_t)json_int(v)) < 0) {
            rc = err_set(e, ERR_NOMEM, "out of memory");
        }
    }
    if (rc >= 0 && a->jsonl) {
        struct buf text;
        struct json_writer w;
        buf_init(&text);
        tokenizer_decode(t, ids->ids, ids->n, a->skip_special, &text);
        json_w_init(&w, out);
        json_w_stringn(&w, text.data ? text.data : "", text.len);
        buf_fini(&text);
    } else if (rc >= 0) {
        tokenizer_decode(t, ids->ids, ids->n, a->skip_special, out);
    }
    json_free(doc);
    return rc;
}

static int run(const struct tokenizer *t, const struct args_tokenize *a, struct err *e)
{
    struct token_ids ids = {NULL, 0, 0};
    struct buf out;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc = 0, number = 0;
    buf_init(&out);
    while ((n = getline(&line, &cap, stdin)) >= 0) {
        number++;
        if (n > 0 && line[n - 1] == '\n') {
            n--;
        }
        buf_clear(&out);
        rc = a->decode ? decode_line(t, a, line, (size_t)n, &ids, &out, e)
                       : encode_line(t, a, line, (size_t)n, &ids, &out, e);
        if (rc < 0) {
            err_prefix(e, "line %d", number);
            break;
        }
        buf_putc(&out, '\n');
        if (out.failed || fwrite(out.data, 1, out.len, stdout) != out.len) {
            rc = err_set(e, ERR_IO, "cannot write to standard output");
            break;
        }
    }
    if (rc >= 0 && ferror(stdin)) {
        rc = err_set(e, ERR_IO, "cannot read standard input");
    }
    free(line);
    buf_fini(&out);
    token_ids_fini(&ids);
    return rc;
}

int cmd_tokenize(int argc, char **argv)
{
    const char *command = "tern tokenize";
    struct args_tokenize a = {0};
    struct opts o = {.usage = "tern tokenize DIR [options] < lines",
                     .tables = {{rows, sizeof rows / sizeof *rows, &a}},
                     .n_tables = 1};
    struct tokenizer *t = NULL;
    struct err e = {0, ""};
    int rc = args_parse(&o, command, argc, argv);
    if (rc < 0 && o.args.n != 1) {
        fprintf(stderr, "usage: %s\n%s: error: %s\n", o.usage, command,
                o.args.n ? "more than one directory given" : "no directory given");
        rc = EXIT_USAGE;
    }
    if (rc < 0) {
        rc = tokenizer_open(&t, o.args.v[0], &e) < 0 || run(t, &a, &e) < 0 ? args_fail(command, &e)
                                                                           : 0;
    }
    tokenizer_close(t);
    opts_fini(&o);
    return rc;
}
