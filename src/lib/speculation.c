/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, defaults and the forms that name the method in `model` are vLLM's. Of its methods there is
 * the one that needs no second model: ngram. */
#include "lib/speculation.h"

#include "base/json.h"
#include "base/utf8.h"

#include <string.h>

/* Where more sequences run, the rows of drafts compete with rows that are sure to count: from here
 * on the matrix products are bound by arithmetic, and a refused row costs as much as a kept one. */
#define DEFAULT_MAX_SEQS 8
#define MAX_SHOWN        64 /* bytes of a name in a message */

static int read_count(const struct json *v, const char *key, int64_t most, int *out, struct err *e)
{
    if (json_type(v) != JSON_INT || json_int(v) < 1 || json_int(v) > most) {
        return err_set(e, ERR_INVALID, "--speculative-config: %s must be an integer from 1 to %lld",
                       key, (long long)most);
    }
    *out = (int)json_int(v);
    return 0;
}

static int shown(const char *name)
{
    return (int)utf8_cut(name, strlen(name), MAX_SHOWN);
}

static int read_method(const char *option, const char *name, int *is_ngram, struct err *e)
{
    *is_ngram = strcmp(name, "ngram") == 0 || strcmp(name, "[ngram]") == 0;
    return *is_ngram ? 0
                     : err_set(e, ERR_UNSUPPORTED, "%s: the only method is ngram, not %.*s", option,
                               shown(name), name);
}

static int read_key(struct speculation *out, const char *key, const struct json *v, int *is_ngram,
                    struct err *e)
{
    if (json_type(v) == JSON_NULL) {
        return 0;
    }
    if (strcmp(key, "method") == 0 || strcmp(key, "model") == 0) {
        size_t n = 0;
        const char *name = json_type(v) == JSON_STRING ? json_string(v, &n) : NULL;
        return name == NULL || strlen(name) != n
                   ? err_set(e, ERR_INVALID, "--speculative-config: %s must be a string", key)
                   : read_method("--speculative-config", name, is_ngram, e);
    }
    if (strcmp(key, "num_speculative_tokens") == 0) {
        return read_count(v, key, ENGINE_MAX_DRAFT, &out->n_tokens, e);
    }
    if (strcmp(key, "prompt_lookup_max") == 0) {
        return read_count(v, key, INT32_MAX, &out->ngram_max, e);
    }
    if (strcmp(key, "prompt_lookup_min") == 0) {
        return read_count(v, key, INT32_MAX, &out->ngram_min, e);
    }
    if (strcmp(key, "disable_by_batch_size") == 0) {
        return read_count(v, key, INT32_MAX, &out->max_seqs, e);
    }
    return err_set(e, ERR_UNSUPPORTED, "--speculative-config: the key %.*s is not supported",
                   shown(key), key);
}

static int read_config(const char *text, struct speculation *out, int *is_ngram, struct err *e)
{
    struct json *doc = NULL;
    size_t it = 0, key_bytes;
    const char *key;
    const struct json *v;
    int rc = json_parse(&doc, text, strlen(text), JSON_DEPTH_DEFAULT, e);
    if (rc >= 0 && json_type(doc) != JSON_OBJECT) {
        rc = err_set(e, ERR_INVALID, "--speculative-config: an object is needed");
    }
    while (rc >= 0 && json_next(doc, &it, &key, &key_bytes, &v)) {
        rc = read_key(out, key, v, is_ngram, e);
    }
    json_free(doc);
    return rc;
}

int speculation_read(const struct args_engine *a, struct speculation *out, struct err *e)
{
    int is_ngram = 0, rc = 0;
    *out = (struct speculation){.max_seqs = DEFAULT_MAX_SEQS};
    if (a->speculative_config) {
        rc = read_config(a->speculative_config, out, &is_ngram, e);
    }
    if (rc >= 0 && a->spec_method) {
        rc = read_method("--spec-method", a->spec_method, &is_ngram, e);
    }
    if (rc < 0) {
        return rc;
    }
    if (a->spec_tokens > 0) {
        out->n_tokens = (int)a->spec_tokens;
    }
    if (!is_ngram) {
        return a->speculative_config || a->spec_tokens > 0
                   ? err_set(e, ERR_INVALID, "--speculative-config: the key method is missing")
                   : 0;
    }
    if (out->n_tokens == 0) {
        return err_set(e, ERR_INVALID,
                       "--speculative-config: the key num_speculative_tokens is missing");
    }
    int max = out->ngram_max, min = out->ngram_min;
    out->ngram_max = max ? max : min ? min : 5;
    out->ngram_min = min ? min : out->ngram_max;
    return out->ngram_min <= out->ngram_max
               ? 0
               : err_set(e, ERR_INVALID,
                         "--speculative-config: prompt_lookup_min (%d) must not be larger than "
                         "prompt_lookup_max (%d)",
                         out->ngram_min, out->ngram_max);
}
