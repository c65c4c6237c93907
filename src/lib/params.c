/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling parameters by the names of vLLM's SamplingParams. One table says which field a name is;
 * the setters and the JSON object come together in put_number. Ranges are the engine's
 * (sampling_params_check); what needs the model is done when a request starts. */
#include "base/json.h"
#include "lib/lib.h"
#include "model/config.h"
#include "text/words.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 16384 /* the default of VLLM_MAX_N_SEQUENCES */

enum kind {
    KIND_INT,
    KIND_BOOL,
    KIND_DOUBLE,
    KIND_SEED,
    KIND_MAX_TOKENS,
    KIND_LOGPROBS,
    KIND_PROMPT_LOGPROBS,
    KIND_STOP,
    KIND_STOP_IDS,
    KIND_ALLOWED_IDS,
    KIND_BAD_WORDS,
    KIND_BIAS,
    KIND_STRUCTURED
};

#define AT(f) offsetof(struct tern_params, f)
static const struct field {
    const char *name;
    enum kind kind;
    size_t offset;
} fields[] = {
    {"n", KIND_INT, AT(sp.n)},
    {"temperature", KIND_DOUBLE, AT(sp.temperature)},
    {"top_p", KIND_DOUBLE, AT(sp.top_p)},
    {"top_k", KIND_INT, AT(sp.top_k)},
    {"min_p", KIND_DOUBLE, AT(sp.min_p)},
    {"repetition_penalty", KIND_DOUBLE, AT(sp.repetition_penalty)},
    {"presence_penalty", KIND_DOUBLE, AT(sp.presence_penalty)},
    {"frequency_penalty", KIND_DOUBLE, AT(sp.frequency_penalty)},
    {"seed", KIND_SEED, 0},
    {"max_tokens", KIND_MAX_TOKENS, 0},
    {"min_tokens", KIND_INT, AT(sp.min_tokens)},
    {"ignore_eos", KIND_BOOL, AT(sp.ignore_eos)},
    {"logprobs", KIND_LOGPROBS, 0},
    {"prompt_logprobs", KIND_PROMPT_LOGPROBS, 0},
    {"skip_special_tokens", KIND_BOOL, AT(skip_special)},
    {"include_stop_str_in_output", KIND_BOOL, AT(include_stop_str)},
    {"stop", KIND_STOP, 0},
    {"stop_token_ids", KIND_STOP_IDS, 0},
    {"allowed_token_ids", KIND_ALLOWED_IDS, 0},
    {"bad_words", KIND_BAD_WORDS, 0},
    {"logit_bias", KIND_BIAS, 0},
    {"structured_outputs", KIND_STRUCTURED, 0},
};
#undef AT

static const struct field *find_field(const char *name, struct err *e)
{
    const char *near = NULL;
    size_t n = strlen(name);
    int best = (int)(n / 3) < 2 ? 2 : (int)(n / 3) + 1;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strcmp(fields[i].name, name) == 0) {
            return &fields[i];
        }
        int d = opt_edit_distance(name, n, fields[i].name, strlen(fields[i].name));
        if (d < best) {
            best = d;
            near = fields[i].name;
        }
    }
    err_set(e, ERR_NOT_FOUND, "unknown sampling parameter '%.100s'%s%s%s", name,
            near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "");
    return NULL;
}

/* ---- one number ---- */

static int put_number(struct tern_params *p, const struct field *f, double v, int64_t i,
                      struct err *e)
{
    void *at = (char *)p + f->offset;
    if (f->kind == KIND_DOUBLE) {
        *(double *)at = v;
        return 0;
    }
    if (f->kind == KIND_SEED) {
        p->sp.has_seed = 1;
        p->sp.seed = i;
        return 0;
    }
    if (i < INT_MIN || i > INT_MAX) {
        return err_set(e, ERR_INVALID, "%s: %lld is out of range", f->name, (long long)i);
    }
    int k = (int)i;
    switch (f->kind) {
    case KIND_INT:
        *(int *)at = k;
        return 0;
    case KIND_BOOL:
        if (k != 0 && k != 1) {
            return err_set(e, ERR_INVALID, "%s: expected true or false, found %d", f->name, k);
        }
        *(int *)at = k;
        return 0;
    case KIND_MAX_TOKENS:
        p->fit_tokens = k == -1;
        p->sp.max_tokens = k == -1 ? INT_MAX : k;
        return 0;
    case KIND_LOGPROBS:
    case KIND_PROMPT_LOGPROBS: {
        if (k < -1) {
            return err_set(e, ERR_INVALID, "%s must be non-negative or -1, got %d.", f->name, k);
        }
        int mine = f->kind == KIND_LOGPROBS;
        *(mine ? &p->all_logprobs : &p->all_prompt_logprobs) = k == -1;
        *(mine ? &p->sp.n_logprobs : &p->sp.n_prompt_logprobs) = k;
        return 0;
    }
    default:
        return err_set(e, ERR_INVALID, "%s is no number", f->name);
    }
}

int tern_params_set_int(struct tern_params *p, const char *name, int64_t value,
                        struct tern_error *error)
{
    struct err e;
    const struct field *f = find_field(name, &e);
    return f && put_number(p, f, (double)value, value, &e) >= 0 ? 0 : lib_fail(error, &e);
}

int tern_params_set_number(struct tern_params *p, const char *name, double value,
                           struct tern_error *error)
{
    struct err e;
    const struct field *f = find_field(name, &e);
    int rc = f ? 0 : ERR_NOT_FOUND;
    if (f && f->kind != KIND_DOUBLE && !(fabs(value) < 9e15 && floor(value) >= value)) {
        rc = err_set(&e, ERR_INVALID, "%s: expected a whole number, found %g", name, value);
    } else if (f) {
        rc = put_number(p, f, value, f->kind == KIND_DOUBLE ? 0 : (int64_t)value, &e);
    }
    return rc < 0 ? lib_fail(error, &e) : 0;
}

int tern_params_get_number(const struct tern_params *p, const char *name, double *out,
                           struct tern_error *error)
{
    struct err e;
    const struct field *f = find_field(name, &e);
    if (!f) {
        return lib_fail(error, &e);
    }
    const void *at = (const char *)p + f->offset;
    switch (f->kind) {
    case KIND_DOUBLE:
        *out = *(const double *)at;
        return 0;
    case KIND_INT:
    case KIND_BOOL:
        *out = *(const int *)at;
        return 0;
    case KIND_SEED:
        *out = (double)p->sp.seed;
        return 0;
    case KIND_MAX_TOKENS:
        *out = p->fit_tokens ? -1 : p->sp.max_tokens;
        return 0;
    case KIND_LOGPROBS:
        *out = p->sp.n_logprobs;
        return 0;
    case KIND_PROMPT_LOGPROBS:
        *out = p->sp.n_prompt_logprobs;
        return 0;
    default:
        err_set(&e, ERR_INVALID, "%s is no number", name);
        return lib_fail(error, &e);
    }
}

/* ---- lists ---- */

/* Room for one more in a list that grows at powers of two. */
static void *grow(struct arena *a, void *list, int n, size_t item_bytes)
{
    if ((n & (n - 1)) != 0) {
        return list;
    }
    void *v = arena_alloc(a, (n ? (size_t)n * 2 : 1) * item_bytes);
    if (v && n) {
        memcpy(v, list, (size_t)n * item_bytes);
    }
    return v;
}

static int add_string(struct tern_params *p, struct lib_string **list, int *n, const char *text,
                      size_t n_bytes, struct err *e)
{
    struct lib_string *v = grow(&p->arena, *list, *n, sizeof *v);
    char *kept = v ? arena_strndup(&p->arena, text, n_bytes) : NULL;
    if (!kept) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    *list = v;
    v[(*n)++] = (struct lib_string){kept, n_bytes};
    return 0;
}

static int add_stop(struct tern_params *p, const char *text, size_t n_bytes, struct err *e)
{
    return n_bytes == 0 ? err_set(e, ERR_INVALID, "stop cannot contain an empty string.")
                        : add_string(p, &p->stops, &p->n_stops, text, n_bytes, e);
}

static int add_id(struct tern_params *p, int32_t **list, int *n, int32_t id, struct err *e)
{
    int32_t *v = grow(&p->arena, *list, *n, sizeof *v);
    if (!v) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    *list = v;
    v[(*n)++] = id;
    return 0;
}

int tern_params_add_stop(struct tern_params *p, const char *text, size_t n_bytes,
                         struct tern_error *error)
{
    struct err e;
    return add_stop(p, text, lib_length(text, n_bytes), &e) < 0 ? lib_fail(error, &e) : 0;
}

int tern_params_add_stop_id(struct tern_params *p, int32_t id, struct tern_error *error)
{
    struct err e;
    return add_id(p, &p->stop_ids, &p->n_stop_ids, id, &e) < 0 ? lib_fail(error, &e) : 0;
}

static int want(const struct json *v, enum json_type type, const char *name, const char *what,
                struct err *e)
{
    return json_type(v) == type ? 0 : err_set(e, ERR_INVALID, "%s: expected %s", name, what);
}

static int read_strings(struct tern_params *p, const struct json *v, const struct field *f,
                        struct err *e)
{
    int stop = f->kind == KIND_STOP, rc = 0;
    struct lib_string **list = stop ? &p->stops : &p->bad_words;
    int *n = stop ? &p->n_stops : &p->n_bad_words, one = stop && json_type(v) == JSON_STRING;
    *list = NULL;
    *n = 0;
    if (!one && (rc = want(v, JSON_ARRAY, f->name, "a list of strings", e)) < 0) {
        return rc;
    }
    for (size_t i = 0; rc >= 0 && i < (one ? 1 : json_length(v)); i++) {
        const struct json *item = one ? v : json_at(v, i);
        size_t len;
        rc = want(item, JSON_STRING, f->name, "a list of strings", e);
        if (rc >= 0) {
            const char *text = json_string(item, &len);
            rc = stop ? add_stop(p, text, len, e) : add_string(p, list, n, text, len, e);
        }
    }
    return rc;
}

static int read_ids(struct tern_params *p, const struct json *v, const struct field *f,
                    struct err *e)
{
    int stop = f->kind == KIND_STOP_IDS;
    int32_t **list = stop ? &p->stop_ids : &p->allowed_ids;
    int *n = stop ? &p->n_stop_ids : &p->n_allowed_ids;
    int rc = want(v, JSON_ARRAY, f->name, "a list of token ids", e);
    *list = NULL;
    *n = 0;
    for (size_t i = 0; rc >= 0 && i < json_length(v); i++) {
        const struct json *item = json_at(v, i);
        rc = want(item, JSON_INT, f->name, "a list of token ids", e);
        if (rc >= 0 && (json_int(item) < INT32_MIN || json_int(item) > INT32_MAX)) {
            rc = err_set(e, ERR_INVALID, "%s: %lld is no token id", f->name,
                         (long long)json_int(item));
        }
        rc = rc < 0 ? rc : add_id(p, list, n, (int32_t)json_int(item), e);
    }
    return rc < 0 || stop || *n > 0
               ? rc
               : err_set(e, ERR_INVALID, "allowed_token_ids is not None and empty!");
}

static int read_bias(struct tern_params *p, const struct json *v, struct err *e)
{
    size_t it = 0, len;
    const char *key;
    const struct json *b;
    int rc = want(v, JSON_OBJECT, "logit_bias", "an object of token ids and numbers", e);
    p->bias = NULL;
    p->n_bias = 0;
    while (rc >= 0 && json_next(v, &it, &key, &len, &b)) {
        char *end;
        long id = strtol(key, &end, 10);
        if (!len || (size_t)(end - key) != len || id < 0 || id > INT32_MAX || !json_is_number(b)) {
            return err_set(e, ERR_INVALID,
                           "logit_bias: expected an object of token ids and numbers");
        }
        struct token_bias *list = grow(&p->arena, p->bias, p->n_bias, sizeof *list);
        if (!list) {
            return err_set(e, ERR_NOMEM, "out of memory");
        }
        double d = json_double(b);
        p->bias = list;
        list[p->n_bias++] = (struct token_bias){(int32_t)id, (float)(d > 100    ? 100
                                                                     : d < -100 ? -100
                                                                                : d)};
    }
    return rc;
}

/* ---- structured output ---- */

static int take_grammar(struct tern_params *p, enum grammar_kind kind, const char *name,
                        const struct json *v, struct err *e)
{
    if (json_type(v) == JSON_NULL) {
        return 0;
    }
    if (p->has_grammar) {
        return err_set(e, ERR_INVALID,
                       "You can only use one kind of structured outputs constraint but multiple "
                       "are specified");
    }
    int needs_text = kind == GRAMMAR_REGEX || kind == GRAMMAR_EBNF;
    if (needs_text && json_type(v) != JSON_STRING) {
        return err_set(e, ERR_INVALID, "structured_outputs.%s: expected a string", name);
    }
    struct buf b;
    buf_init(&b);
    size_t n;
    if (json_type(v) == JSON_STRING) { /* a schema may be given as its text, too */
        const char *text = json_string(v, &n);
        buf_append(&b, text, n);
    } else {
        json_dump(v, &b);
    }
    p->grammar.text = b.failed ? NULL : arena_strndup(&p->arena, b.data ? b.data : "", b.len);
    p->grammar.n_bytes = b.len;
    p->grammar_kind = kind;
    p->has_grammar = 1;
    buf_fini(&b);
    return p->grammar.text ? 0 : err_set(e, ERR_NOMEM, "out of memory");
}

/* A switch of structured_outputs; null leaves it off. */
static int read_switch(const struct json *object, const char *name, int *out, struct err *e)
{
    const struct json *v = json_get(object, name);
    *out = json_type(v) == JSON_BOOL && json_bool(v);
    return json_type(v) == JSON_BOOL || json_type(v) == JSON_NULL
               ? 0
               : err_set(e, ERR_INVALID, "structured_outputs.%s: expected true or false", name);
}

static int read_structured(struct tern_params *p, const struct json *v, struct err *e)
{
    static const char *const known[] = {"json",
                                        "regex",
                                        "choice",
                                        "grammar",
                                        "json_object",
                                        "disable_any_whitespace",
                                        "whitespace_pattern",
                                        "disable_fallback"};
    size_t it = 0, n;
    const char *key;
    const struct json *m;
    int rc = want(v, JSON_OBJECT, "structured_outputs", "an object", e);
    while (rc >= 0 && json_next(v, &it, &key, &n, &m)) {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(known[i], key) != 0) {
            i++;
        }
        if (i == sizeof known / sizeof *known && json_type(m) != JSON_NULL) {
            rc = err_set(e, ERR_UNSUPPORTED, "structured_outputs: %s is not supported", key);
        }
    }
    p->has_grammar = 0;
    p->grammar_options = (struct grammar_options){0};
    rc = rc < 0 ? rc : take_grammar(p, GRAMMAR_JSON_SCHEMA, "json", json_get(v, "json"), e);
    rc = rc < 0 ? rc : take_grammar(p, GRAMMAR_REGEX, "regex", json_get(v, "regex"), e);
    rc = rc < 0 ? rc : take_grammar(p, GRAMMAR_CHOICE, "choice", json_get(v, "choice"), e);
    rc = rc < 0 ? rc : take_grammar(p, GRAMMAR_EBNF, "grammar", json_get(v, "grammar"), e);
    const struct json *blank = json_get(v, "whitespace_pattern");
    int any_object = 0;
    rc = rc < 0 ? rc : read_switch(v, "json_object", &any_object, e);
    if (rc >= 0 && any_object) {
        rc = take_grammar(p, GRAMMAR_JSON_OBJECT, "json_object", json_get(v, "json_object"), e);
    }
    rc = rc < 0 ? rc
                : read_switch(v, "disable_any_whitespace", &p->grammar_options.no_whitespace, e);
    if (rc >= 0 && json_type(blank) != JSON_NULL) {
        rc = want(blank, JSON_STRING, "structured_outputs.whitespace_pattern", "a string", e);
    }
    if (rc >= 0 && json_type(blank) == JSON_STRING) {
        const char *text = arena_strdup(&p->arena, json_string(blank, NULL));
        p->grammar_options.whitespace_regex = text;
        rc = text ? 0 : err_set(e, ERR_NOMEM, "out of memory");
    }
    if (rc >= 0 && !p->has_grammar) {
        rc = err_set(e, ERR_INVALID,
                     "You must use one kind of structured outputs constraint but "
                     "none are specified");
    }
    return rc;
}

/* ---- an object of them ---- */

static int read_member(struct tern_params *p, const struct field *f, const struct json *v,
                       struct err *e)
{
    enum json_type type = json_type(v);
    if (type == JSON_NULL) {
        return f->kind == KIND_MAX_TOKENS ? put_number(p, f, -1, -1, e) : 0;
    }
    switch (f->kind) {
    case KIND_STOP:
    case KIND_BAD_WORDS:
        return read_strings(p, v, f, e);
    case KIND_STOP_IDS:
    case KIND_ALLOWED_IDS:
        return read_ids(p, v, f, e);
    case KIND_BIAS:
        return read_bias(p, v, e);
    case KIND_STRUCTURED:
        return read_structured(p, v, e);
    case KIND_BOOL:
        return type == JSON_BOOL ? put_number(p, f, 0, json_bool(v), e)
                                 : err_set(e, ERR_INVALID, "%s: expected true or false", f->name);
    case KIND_DOUBLE:
        return json_is_number(v) ? put_number(p, f, json_double(v), 0, e)
                                 : err_set(e, ERR_INVALID, "%s: expected a number", f->name);
    default:
        return type == JSON_INT ? put_number(p, f, 0, json_int(v), e)
                                : err_set(e, ERR_INVALID, "%s: expected a whole number", f->name);
    }
}

int tern_params_set_json(struct tern_params *p, const char *text, size_t n_bytes,
                         struct tern_error *error)
{
    struct err e;
    struct json *doc = NULL;
    size_t it = 0, n;
    const char *key;
    const struct json *v;
    int rc = json_parse(&doc, text, lib_length(text, n_bytes), JSON_DEPTH_DEFAULT, &e);
    rc = rc < 0 ? rc : want(doc, JSON_OBJECT, "sampling parameters", "an object", &e);
    while (rc >= 0 && json_next(doc, &it, &key, &n, &v)) {
        const struct field *f = find_field(key, &e);
        rc = f ? read_member(p, f, v, &e) : ERR_NOT_FOUND;
    }
    json_free(doc);
    return rc < 0 ? lib_fail(error, &e) : 0;
}

/* ---- the whole ---- */

void lib_params_init(struct tern_params *p, const struct tern_engine *en)
{
    memset(p, 0, sizeof *p);
    arena_init(&p->arena, 0);
    sampling_params_init(&p->sp);
    p->skip_special = 1;
    if (en) {
        const struct sampling_defaults *d = &en->setup.generation;
        setup_sampling(&en->setup, &p->sp);
        p->fit_tokens = !d->has_max_new_tokens;
        p->sp.max_tokens = d->has_max_new_tokens ? d->max_new_tokens : INT_MAX;
    }
}

int tern_params_new(struct tern_params **out, struct tern_engine *en, struct tern_error *error)
{
    struct tern_params *p = *out = malloc(sizeof *p);
    if (!p) {
        return lib_no_memory(error);
    }
    lib_params_init(p, en);
    return 0;
}

void tern_params_free(struct tern_params *p)
{
    if (p) {
        arena_fini(&p->arena);
        free(p);
    }
}

/* p's values with its lists, and what -1 stands for. */
static struct sampling_params resolve(const struct tern_params *p, int vocab_size)
{
    struct sampling_params sp = p->sp;
    sp.n_logprobs = p->all_logprobs ? vocab_size : sp.n_logprobs;
    sp.n_prompt_logprobs = p->all_prompt_logprobs ? vocab_size : sp.n_prompt_logprobs;
    sp.allowed_token_ids = p->allowed_ids;
    sp.n_allowed_token_ids = p->n_allowed_ids;
    sp.logit_bias = p->bias;
    sp.n_logit_bias = p->n_bias;
    return sp;
}

/* What the server bounds as well, so that memory is asked for what can run. */
static int check_counts(const struct tern_params *p, struct err *e)
{
    if (p->sp.n > SAMPLES_MAX) {
        return err_set(e, ERR_INVALID, "n must be at most %d, got %d.", SAMPLES_MAX, p->sp.n);
    }
    return p->n_bad_words > WORDS_MAX
               ? err_set(e, ERR_INVALID, "At most %d bad words are allowed, got %d", WORDS_MAX,
                         p->n_bad_words)
               : 0;
}

int tern_params_check(const struct tern_params *p, struct tern_engine *en, struct tern_error *error)
{
    struct err e;
    const char *field;
    int vocab_size = INT_MAX, max_logprobs = -1;
    struct tern_info info = TERN_INFO_INIT;
    if (en) {
        int rc = tern_engine_info(en, &info, error);
        if (rc < 0) {
            return rc;
        }
        vocab_size = info.vocab_size;
        max_logprobs = info.max_logprobs;
    }
    struct sampling_params sp = resolve(p, vocab_size);
    int rc = sampling_params_check(&sp, vocab_size, max_logprobs, &field, &e);
    rc = rc < 0 ? rc : check_counts(p, &e);
    return rc < 0 ? lib_fail(error, &e) : 0;
}

/* Each word in both of its spellings. */
static int apply_bad_words(const struct tern_params *p, const struct tokenizer *t,
                           struct engine_request *r, struct err *e)
{
    struct token_ids ids = {0};
    int rc = 0, n = 0;
    if (p->n_bad_words == 0) {
        return 0;
    }
    struct token_seq *list = arena_alloc(&r->arena, 2 * (size_t)p->n_bad_words * sizeof *list);
    rc = list ? 0 : err_set(e, ERR_NOMEM, "out of memory");
    for (int i = 0; rc >= 0 && i < 2 * p->n_bad_words; i++) {
        const struct lib_string *w = &p->bad_words[i / 2];
        ids.n = 0;
        rc = words_encode(t, w->text, w->n_bytes, i & 1, &ids, e);
        if (rc >= 0 && ids.n > 0) {
            list[n].ids = arena_memdup(&r->arena, ids.ids, ids.n * sizeof *ids.ids);
            rc = list[n].ids ? 0 : err_set(e, ERR_NOMEM, "out of memory");
            list[n++].n = (int)ids.n;
        }
    }
    token_ids_fini(&ids);
    r->params.bad_words = list;
    r->params.n_bad_words = n;
    return rc;
}

static int apply_lists(const struct tern_params *p, const struct setup *s, struct engine_request *r,
                       struct err *e)
{
    struct sampling_params *sp = &r->params;
    int n_own = sp->ignore_eos ? 0 : s->n_stop_ids, n = n_own + p->n_stop_ids;
    int32_t *stops = arena_alloc(&r->arena, ((size_t)n + 1) * sizeof *stops);
    sp->allowed_token_ids = p->n_allowed_ids
                                ? arena_memdup(&r->arena, p->allowed_ids,
                                               (size_t)p->n_allowed_ids * sizeof *p->allowed_ids)
                                : NULL;
    sp->logit_bias =
        p->n_bias ? arena_memdup(&r->arena, p->bias, (size_t)p->n_bias * sizeof *p->bias) : NULL;
    if (!stops || (p->n_allowed_ids && !sp->allowed_token_ids) || (p->n_bias && !sp->logit_bias)) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    memcpy(stops, s->stop_ids, (size_t)n_own * sizeof *stops);
    if (p->n_stop_ids) {
        memcpy(stops + n_own, p->stop_ids, (size_t)p->n_stop_ids * sizeof *stops);
    }
    sp->stop_token_ids = stops;
    sp->n_stop_token_ids = n;
    return 0;
}

int lib_params_apply(const struct tern_params *p, struct tern_engine *en, int room,
                     struct engine_request *r, struct err *e)
{
    const struct setup *s = &en->setup;
    const char *field;
    int vocab_size = model_config(s->model)->vocab_size;
    r->params = resolve(p, vocab_size);
    struct sampling_params *sp = &r->params;
    int rc = sampling_params_check(sp, vocab_size, (int)s->a->max_logprobs, &field, e);
    rc = rc < 0 ? rc : check_counts(p, e);
    sp->max_tokens = sp->max_tokens > room ? room : sp->max_tokens;
    sp->min_tokens = sp->min_tokens > sp->max_tokens ? sp->max_tokens : sp->min_tokens;
    rc = rc < 0 ? rc : apply_lists(p, s, r, e);
    rc = rc < 0 ? rc : apply_bad_words(p, s->tokenizer, r, e);
    return rc < 0 || !p->has_grammar
               ? rc
               : grammar_cache_get(en->grammars, p->grammar_kind, p->grammar.text,
                                   p->grammar.n_bytes, &p->grammar_options, &r->grammar, e);
}
