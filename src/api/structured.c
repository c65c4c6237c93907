/* SPDX-License-Identifier: Apache-2.0 */
/* See structured.h. A grammar is identified by its kind, options and text (a schema by its text as
 * received), so that the second request with a schema costs one comparison; so does one that does
 * not compile. */
#include "api/structured.h"

#include "base/clock.h"
#include "base/hash.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_SIZE 32
#define RETRY_NS   30000000000ull /* a text that took too long may have met a busy moment */

struct entry {
    uint64_t hash, used;
    char *key;
    size_t key_bytes;
    struct grammar *grammar; /* NULL: it does not compile, and error says why */
    struct err error;
    uint64_t failed_ns;
};

struct structured {
    pthread_mutex_t lock;
    const struct tokenizer *tokenizer;
    int vocab_size;
    struct grammar_vocab *vocab; /* made at the first use */
    struct entry entries[CACHE_SIZE];
    uint64_t tick;
};

int structured_open(struct structured **out, const struct tokenizer *t, int vocab_size,
                    struct err *e)
{
    struct structured *s = calloc(1, sizeof *s);
    *out = s;
    if (s == NULL) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    pthread_mutex_init(&s->lock, NULL);
    s->tokenizer = t;
    s->vocab_size = vocab_size;
    return 0;
}

void structured_close(struct structured *s)
{
    if (s != NULL) {
        for (int i = 0; i < CACHE_SIZE; i++) {
            grammar_unref(s->entries[i].grammar);
            free(s->entries[i].key);
        }
        grammar_vocab_close(s->vocab);
        pthread_mutex_destroy(&s->lock);
        free(s);
    }
}

static void make_key(enum grammar_kind kind, const char *text, size_t n_bytes,
                     const struct grammar_options *o, struct buf *key)
{
    buf_printf(key, "%d %d %s\n", (int)kind, o->no_whitespace,
               o->whitespace_regex ? o->whitespace_regex : "");
    buf_append(key, text, n_bytes);
}

static int find_or_compile(struct structured *s, enum grammar_kind kind, const char *text,
                           size_t n_bytes, const struct grammar_options *o, struct buf *key,
                           struct grammar **out, struct err *e)
{
    uint64_t hash = hash64(key->data, key->len, 0);
    struct entry *oldest = &s->entries[0];
    for (int i = 0; i < CACHE_SIZE; i++) {
        struct entry *entry = &s->entries[i];
        if (entry->key != NULL && entry->hash == hash && entry->key_bytes == key->len &&
            memcmp(entry->key, key->data, key->len) == 0) {
            if (entry->grammar == NULL && clock_now_ns() - entry->failed_ns > RETRY_NS) {
                oldest = entry;
                break;
            }
            if (entry->grammar == NULL) {
                entry->used = ++s->tick;
                return err_set(e, entry->error.code, "%s", entry->error.text);
            }
            if (grammar_is_spent(entry->grammar)) {
                oldest = entry; /* compiled again, in its place */
                break;
            }
            entry->used = ++s->tick;
            *out = grammar_ref(entry->grammar);
            return 0;
        }
        oldest = entry->used < oldest->used ? entry : oldest;
    }
    int rc = s->vocab ? 0 : grammar_vocab_open(&s->vocab, s->tokenizer, s->vocab_size, e);
    if (rc == 0) {
        rc = grammar_compile(out, kind, text, n_bytes, o, s->vocab, e);
    }
    if (rc == ERR_NOMEM) {
        return rc;
    }
    grammar_unref(oldest->grammar);
    free(oldest->key);
    oldest->grammar = rc == 0 ? grammar_ref(*out) : NULL;
    oldest->failed_ns = rc == 0 ? 0 : clock_now_ns();
    if (rc != 0) {
        oldest->error = *e;
    }
    oldest->hash = hash;
    oldest->used = ++s->tick;
    oldest->key_bytes = key->len;
    oldest->key = buf_detach(key);
    return rc;
}

int structured_grammar(struct structured *s, enum grammar_kind kind, const char *text,
                       size_t n_bytes, const struct grammar_options *o, struct grammar **out,
                       struct err *e)
{
    struct buf key;
    *out = NULL;
    buf_init(&key);
    make_key(kind, text, n_bytes, o, &key);
    if (key.failed) {
        buf_fini(&key);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    pthread_mutex_lock(&s->lock);
    int rc = find_or_compile(s, kind, text, n_bytes, o, &key, out, e);
    pthread_mutex_unlock(&s->lock);
    buf_fini(&key);
    return rc;
}

/* ---- fields ---- */

struct wanted {
    int given;
    enum grammar_kind kind;
    const char *param; /* the field to name in errors */
    const struct json *value;
    struct grammar_options o;
};

/* Takes one constraint; a second one in the same object is an error. */
static int take(const struct fields *f, struct wanted *w, enum grammar_kind kind, const char *param,
                const struct json *value)
{
    if (json_type(value) == JSON_NULL) {
        return 0;
    }
    if (w->given && w->param != NULL && strncmp(w->param, "response", 8) != 0) {
        return api_fail_param(f->e, param, value,
                              "You can only use one kind of structured outputs constraint but "
                              "multiple are specified");
    }
    w->given = 1;
    w->kind = kind;
    w->param = param;
    w->value = value;
    return 0;
}

static int read_response_format(const struct fields *f, struct wanted *w)
{
    const struct json *v = NULL;
    int rc = field_object(f, "response_format", &v);
    if (rc <= 0) {
        return rc;
    }
    const struct json *type = json_get(v, "type"), *named = json_get(v, "json_schema");
    const char *s = json_type(type) == JSON_STRING ? json_string(type, NULL) : NULL;
    if (s == NULL) {
        return api_fail_field(f->e, "response_format.type", "missing", v, "Field required");
    }
    if (strcmp(s, "text") == 0) {
        return 0;
    }
    if (strcmp(s, "json_object") == 0) {
        return take(f, w, GRAMMAR_JSON_OBJECT, "response_format", v);
    }
    if (strcmp(s, "json_schema") != 0) {
        return api_fail_param(f->e, "response_format", v,
                              "response_format type must be text, json_object or json_schema");
    }
    const struct json *schema = json_get(named, "schema");
    if (json_type(schema) != JSON_OBJECT && json_type(schema) != JSON_BOOL) {
        return api_fail_field(f->e, "response_format.json_schema.schema",
                              schema ? "dict_type" : "missing", schema,
                              schema ? "Input should be a valid dictionary" : "Field required");
    }
    return take(f, w, GRAMMAR_JSON_SCHEMA, "response_format", schema);
}

static int read_structured_outputs(const struct fields *f, struct wanted *w)
{
    const struct json *v = NULL;
    int rc = field_object(f, "structured_outputs", &v), flag = 0;
    if (rc <= 0) {
        return rc;
    }
    struct fields inner = {v, "structured_outputs.", f->e, f->arena};
    struct wanted one = {0};
    if (json_type(json_get(v, "structural_tag")) != JSON_NULL) {
        return api_fail_param(f->e, "structured_outputs", v, "structural_tag is not supported");
    }
    if (take(f, &one, GRAMMAR_JSON_SCHEMA, "structured_outputs.json", json_get(v, "json")) < 0 ||
        take(f, &one, GRAMMAR_REGEX, "structured_outputs.regex", json_get(v, "regex")) < 0 ||
        take(f, &one, GRAMMAR_CHOICE, "structured_outputs.choice", json_get(v, "choice")) < 0 ||
        take(f, &one, GRAMMAR_EBNF, "structured_outputs.grammar", json_get(v, "grammar")) < 0 ||
        field_bool(&inner, "json_object", &flag) < 0 ||
        (flag && take(f, &one, GRAMMAR_JSON_OBJECT, "structured_outputs.json_object",
                      json_get(v, "json_object")) < 0) ||
        field_bool(&inner, "disable_any_whitespace", &one.o.no_whitespace) < 0 ||
        field_string(&inner, "whitespace_pattern", &one.o.whitespace_regex) < 0) {
        return -1;
    }
    if (!one.given) {
        return api_fail_param(
            f->e, "structured_outputs", v,
            "You must use one kind of structured outputs constraint but none are specified");
    }
    if (!w->given) { /* response_format wins, as in vLLM */
        *w = one;
    }
    return 0;
}

/* Fields of older vLLM releases that FastDeploy still documents. */
static int read_guided(const struct fields *f, struct wanted *w)
{
    struct wanted one = {0};
    if (take(f, &one, GRAMMAR_JSON_SCHEMA, "guided_json", json_get(f->object, "guided_json")) < 0 ||
        take(f, &one, GRAMMAR_REGEX, "guided_regex", json_get(f->object, "guided_regex")) < 0 ||
        take(f, &one, GRAMMAR_CHOICE, "guided_choice", json_get(f->object, "guided_choice")) < 0 ||
        take(f, &one, GRAMMAR_EBNF, "guided_grammar", json_get(f->object, "guided_grammar")) < 0 ||
        field_string(f, "guided_whitespace_pattern", &one.o.whitespace_regex) < 0) {
        return -1;
    }
    if (one.given && !w->given) {
        *w = one;
    }
    return 0;
}

static int compile(struct structured *s, const struct fields *f, const struct wanted *w,
                   struct grammar **out)
{
    struct buf text;
    struct err err = {0};
    buf_init(&text);
    size_t n = 0;
    const char *str = json_type(w->value) == JSON_STRING ? json_string(w->value, &n) : NULL;
    int needs_text = w->kind == GRAMMAR_REGEX || w->kind == GRAMMAR_EBNF, rc;
    if (needs_text && str == NULL) {
        return api_fail_field(f->e, w->param, "string_type", w->value,
                              "Input should be a valid string");
    }
    if (str != NULL) {
        buf_append(&text, str, n);
    } else if (w->kind != GRAMMAR_JSON_OBJECT) {
        json_dump(w->value, &text);
    }
    rc = text.failed ? err_set(&err, ERR_NOMEM, "out of memory")
                     : structured_grammar(s, w->kind, text.data ? text.data : "", text.len, &w->o,
                                          out, &err);
    buf_fini(&text);
    if (rc == 0) {
        return 1;
    }
    return rc == ERR_NOMEM ? api_fail_err(f->e, &err)
                           : api_fail(f->e, 400, TYPE_BAD, w->param, "%s", err.text);
}

int structured_parse(struct structured *s, const struct fields *f, struct grammar **out)
{
    struct wanted w = {0};
    *out = NULL;
    if (read_response_format(f, &w) < 0 || read_structured_outputs(f, &w) < 0 ||
        read_guided(f, &w) < 0) {
        return -1;
    }
    return w.given ? compile(s, f, &w, out) : 0;
}
