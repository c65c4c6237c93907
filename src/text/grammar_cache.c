/* SPDX-License-Identifier: Apache-2.0 */
/* See grammar_cache.h. A grammar is identified by its kind, options and text (a schema by its text
 * as received), so that the second request with a schema costs one comparison; so does one that
 * does not compile. */
#include "text/grammar_cache.h"

#include "base/buf.h"
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

struct grammar_cache {
    pthread_mutex_t lock;
    const struct tokenizer *tokenizer;
    int vocab_size;
    struct grammar_vocab *vocab; /* made at the first use */
    struct entry entries[CACHE_SIZE];
    uint64_t tick;
};

int grammar_cache_open(struct grammar_cache **out, const struct tokenizer *t, int vocab_size,
                       struct err *e)
{
    struct grammar_cache *c = calloc(1, sizeof *c);
    *out = c;
    if (c == NULL) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    pthread_mutex_init(&c->lock, NULL);
    c->tokenizer = t;
    c->vocab_size = vocab_size;
    return 0;
}

void grammar_cache_close(struct grammar_cache *c)
{
    if (c != NULL) {
        for (int i = 0; i < CACHE_SIZE; i++) {
            grammar_unref(c->entries[i].grammar);
            free(c->entries[i].key);
        }
        grammar_vocab_close(c->vocab);
        pthread_mutex_destroy(&c->lock);
        free(c);
    }
}

static void make_key(enum grammar_kind kind, const char *text, size_t n_bytes,
                     const struct grammar_options *o, struct buf *key)
{
    buf_printf(key, "%d %d %s\n", (int)kind, o->no_whitespace,
               o->whitespace_regex ? o->whitespace_regex : "");
    buf_append(key, text, n_bytes);
}

static int find_or_compile(struct grammar_cache *c, enum grammar_kind kind, const char *text,
                           size_t n_bytes, const struct grammar_options *o, struct buf *key,
                           struct grammar **out, struct err *e)
{
    uint64_t hash = hash64(key->data, key->len, 0);
    struct entry *oldest = &c->entries[0];
    for (int i = 0; i < CACHE_SIZE; i++) {
        struct entry *entry = &c->entries[i];
        if (entry->key != NULL && entry->hash == hash && entry->key_bytes == key->len &&
            memcmp(entry->key, key->data, key->len) == 0) {
            if (entry->grammar == NULL && clock_now_ns() - entry->failed_ns > RETRY_NS) {
                oldest = entry;
                break;
            }
            if (entry->grammar == NULL) {
                entry->used = ++c->tick;
                return err_set(e, entry->error.code, "%s", entry->error.text);
            }
            if (grammar_is_spent(entry->grammar)) {
                oldest = entry; /* compiled again, in its place */
                break;
            }
            entry->used = ++c->tick;
            *out = grammar_ref(entry->grammar);
            return 0;
        }
        oldest = entry->used < oldest->used ? entry : oldest;
    }
    int rc = c->vocab ? 0 : grammar_vocab_open(&c->vocab, c->tokenizer, c->vocab_size, e);
    if (rc == 0) {
        rc = grammar_compile(out, kind, text, n_bytes, o, c->vocab, e);
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
    oldest->used = ++c->tick;
    oldest->key_bytes = key->len;
    oldest->key = buf_detach(key);
    return rc;
}

int grammar_cache_get(struct grammar_cache *c, enum grammar_kind kind, const char *text,
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
    pthread_mutex_lock(&c->lock);
    int rc = find_or_compile(c, kind, text, n_bytes, o, &key, out, e);
    pthread_mutex_unlock(&c->lock);
    buf_fini(&key);
    return rc;
}
