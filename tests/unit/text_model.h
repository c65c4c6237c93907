/* SPDX-License-Identifier: Apache-2.0 */
/* Help for the tests of src/text: a small SentencePiece model written field by field, temporary
 * model directories, and where the shared fixtures are. */
#ifndef TERN_TESTS_TEXT_MODEL_H
#define TERN_TESTS_TEXT_MODEL_H

#include "base/buf.h"
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct model_spec { /* zero = what tern accepts */
    int type_unigram, no_byte_fallback, dummy_prefix, remove_whitespace, no_escape, charsmap,
        suffix;
    const char *const *normal; /* NULL-terminated pieces, best score first; NULL: default_pieces */
    const char *unused;        /* one more piece, type UNUSED, best score of all */
    int skip_byte;             /* leave out <0x41> */
};

static const char *const default_pieces[] = {"\u2581\u2581",
                                             "he",
                                             "ll",
                                             "hell",
                                             "hello",
                                             "\u2581hello",
                                             "wor",
                                             "\u2581wor",
                                             "\u2581world",
                                             "or",
                                             "wo",
                                             "ld",
                                             "\u2581",
                                             "h",
                                             "e",
                                             "l",
                                             "o",
                                             "w",
                                             "r",
                                             "d",
                                             "a",
                                             "<",
                                             ">",
                                             "|",
                                             "天",
                                             "气",
                                             "天气",
                                             NULL};

__attribute__((unused)) static void pb_varint(struct buf *b, uint64_t v)
{
    for (; v > 127; v >>= 7) {
        buf_putc(b, (char)(v | 128));
    }
    buf_putc(b, (char)v);
}

__attribute__((unused)) static void pb_bytes(struct buf *b, int field, const void *data, size_t n)
{
    pb_varint(b, (uint64_t)field << 3 | 2);
    pb_varint(b, n);
    buf_append(b, data, n);
}

__attribute__((unused)) static void pb_uint(struct buf *b, int field, uint64_t v)
{
    pb_varint(b, (uint64_t)field << 3);
    pb_varint(b, v);
}

__attribute__((unused)) static void pb_piece(struct buf *model, const char *text, float score,
                                             int type)
{
    struct buf p;
    buf_init(&p);
    pb_bytes(&p, 1, text, strlen(text));
    pb_varint(&p, 2 << 3 | 5);
    buf_append(&p, &score, 4);
    pb_uint(&p, 3, (uint64_t)type);
    pb_bytes(model, 1, p.data, p.len);
    buf_fini(&p);
}

/* <unk> <s> </s>, the digits as user-defined pieces, 256 bytes, then the normal pieces from id 269.
 */
__attribute__((unused)) static void build_model(struct buf *m, const struct model_spec *s)
{
    const char *const *normal = s->normal ? s->normal : default_pieces;
    char name[16];
    struct buf spec;
    buf_init(m);
    buf_init(&spec);
    pb_piece(m, "<unk>", 0, 2);
    pb_piece(m, "<s>", 0, 3);
    pb_piece(m, "</s>", 0, 3);
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof(name), "%d", i);
        pb_piece(m, name, 0, 4);
    }
    for (unsigned i = 0; i < 256; i++) {
        snprintf(name, sizeof(name), "<0x%02X>", i);
        if (i != 0x41 || !s->skip_byte) {
            pb_piece(m, name, 0, 6);
        }
    }
    for (int i = 0; normal[i]; i++) {
        pb_piece(m, normal[i], (float)-i, 1);
    }
    if (s->unused) {
        pb_piece(m, s->unused, 1, 5);
    }
    pb_uint(&spec, 3, s->type_unigram ? 1 : 2);
    pb_uint(&spec, 24, (uint64_t)s->suffix);
    pb_uint(&spec, 35, !s->no_byte_fallback);
    pb_bytes(m, 2, spec.data, spec.len);
    buf_clear(&spec);
    if (s->charsmap) {
        pb_bytes(&spec, 2, "map", 3);
    }
    pb_uint(&spec, 3, (uint64_t)s->dummy_prefix);
    pb_uint(&spec, 4, (uint64_t)s->remove_whitespace);
    pb_uint(&spec, 5, !s->no_escape);
    pb_bytes(m, 3, spec.data, spec.len);
    buf_fini(&spec);
}

__attribute__((unused)) static void write_file(const char *dir, const char *name, const void *data,
                                               size_t n)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) {
        perror(path);
        abort();
    }
}

__attribute__((unused)) static void write_text(const char *dir, const char *name, const char *text)
{
    write_file(dir, name, text, strlen(text));
}

/* A new directory with the model of s in it (none when s is NULL). */
__attribute__((unused)) static char *new_dir(const struct model_spec *s)
{
    char *dir = strdup("/tmp/tern-text-XXXXXX");
    if (!mkdtemp(dir)) {
        abort();
    }
    if (s) {
        struct buf m;
        build_model(&m, s);
        write_file(dir, "tokenizer.model", m.data, m.len);
        buf_fini(&m);
    }
    return dir;
}

__attribute__((unused)) static void remove_dir(char *dir)
{
    static const char *const names[] = {"tokenizer.model",
                                        "added_tokens.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "tokenizer.json",
                                        "chat_template.jinja",
                                        "other.jinja"};
    char path[512];
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
    free(dir);
}

/* Path below the shared fixtures in a static buffer, NULL when they are absent (the test then
 * skips). */
__attribute__((unused)) static const char *shared_path(const char *below)
{
    static char path[1024];
    const char *env = getenv("TERN_SHARED");
    snprintf(path, sizeof(path), "%s/%s", env ? env : TERN_SOURCE_DIR "/../shared", below);
    return access(path, R_OK) ? NULL : path;
}

#endif
