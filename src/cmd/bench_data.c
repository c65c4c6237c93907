/* SPDX-License-Identifier: Apache-2.0 */
/* The requests of a benchmark: random tokens, ShareGPT conversations, sonnets, prefixes that
 * repeat, a file of prompts, a trace with arrival times and shared prefixes, and a few ready-made
 * situations. Everything follows from the seed. */
#include "cmd/bench.h"
#include <stdlib.h>
#include <string.h>

#define G_DATA         "Dataset"
#define FILE_BYTES_MAX ((size_t)2 << 30)
#define TRACE_BLOCK    512 /* tokens that one hash id of a trace stands for */
#define FIT_ATTEMPTS   10

#define FIELD(f) offsetof(struct args_bench_data, f)
#define COUNT(option, field, value, least, text)                                                   \
    {                                                                                              \
        .name = option, .type = OPT_INT, .offset = FIELD(field), .group = G_DATA, .def = value,    \
        .min = least, .max = 1e9, .help = text                                                     \
    }
static const struct opt rows[] = {
    {.name = "dataset-name",
     .type = OPT_STRING,
     .offset = FIELD(name),
     .group = G_DATA,
     .def = "random",
     .choices = "random|sharegpt|sonnet|prefix_repetition|custom|timed_trace|scenario",
     .help = "Where prompts come from."},
    {.name = "dataset-path",
     .type = OPT_STRING,
     .offset = FIELD(path),
     .group = G_DATA,
     .meta = "FILE",
     .help = "File of sharegpt (JSON), sonnet (lines), custom (JSON lines: prompt, output_tokens), "
             "timed_trace (JSON lines: timestamp, input_length, output_length, hash_ids)."},
    {.name = "scenario",
     .type = OPT_STRING,
     .offset = FIELD(scenario),
     .group = G_DATA,
     .choices = "questions|followups|summaries|sessions",
     .help = "With dataset scenario: questions (120 tokens in, 128 out), followups (chats of five "
             "turns), summaries (1,300 tokens, about 2,000 characters, in, 200 out), sessions "
             "(chats of five turns, as many at once as --num-prompts / 5)."},
    COUNT("num-prompts", num_prompts, "1000", 1, "Requests."),
    COUNT("input-len", input_len, "-1", -1, "Overrides the dataset's input length."),
    COUNT("output-len", output_len, "-1", -1, "Overrides the dataset's output length."),
    COUNT("random-input-len", random_input_len, "1024", 1, "random: prompt tokens."),
    COUNT("random-output-len", random_output_len, "128", 1, "random: output tokens."),
    COUNT("random-prefix-len", random_prefix_len, "0", 0, "random: tokens all prompts share."),
    {.name = "random-range-ratio",
     .type = OPT_DOUBLE,
     .offset = FIELD(random_range_ratio),
     .group = G_DATA,
     .def = "0",
     .min = 0,
     .max = 0.999,
     .help = "random: lengths are uniform in [L(1-r), L(1+r)]."},
    COUNT("sharegpt-output-len", sharegpt_output_len, "-1", -1,
          "sharegpt: output tokens; -1: as long as the recorded answer."),
    COUNT("sonnet-input-len", sonnet_input_len, "550", 1, "sonnet: prompt tokens."),
    COUNT("sonnet-output-len", sonnet_output_len, "150", 1, "sonnet: output tokens."),
    COUNT("sonnet-prefix-len", sonnet_prefix_len, "200", 0, "sonnet: tokens all prompts share."),
    COUNT("custom-output-len", custom_output_len, "256", -1,
          "custom: output tokens; -1: the line's output_tokens."),
    COUNT("prefix-repetition-prefix-len", repetition_prefix_len, "256", 1,
          "prefix_repetition: tokens of a prefix."),
    COUNT("prefix-repetition-suffix-len", repetition_suffix_len, "256", 1,
          "prefix_repetition: tokens after it."),
    COUNT("prefix-repetition-num-prefixes", repetition_num_prefixes, "10", 1,
          "prefix_repetition: different prefixes."),
    COUNT("prefix-repetition-output-len", repetition_output_len, "128", 1,
          "prefix_repetition: output tokens."),
    COUNT("trace-max-len", trace_max_len, "-1", -1,
          "timed_trace: longer requests (prompt + output) are left out; -1: none."),
    {.name = "trace-speed",
     .type = OPT_DOUBLE,
     .offset = FIELD(trace_speed),
     .group = G_DATA,
     .def = "1",
     .min = 1e-6,
     .max = 1e9,
     .help = "timed_trace: arrivals come this much faster."},
    {.name = "disable-shuffle",
     .type = OPT_BOOL,
     .offset = FIELD(disable_shuffle),
     .group = G_DATA,
     .def = "false",
     .help = "Keep the file's order."},
    {.name = "no-oversample",
     .type = OPT_BOOL,
     .offset = FIELD(no_oversample),
     .group = G_DATA,
     .def = "false",
     .help = "Fewer requests rather than repeated ones when a file is short."},
    COUNT("seed", seed, "0", 0, "Seed of the data and of arrivals."),
};

struct opt_table args_bench_data_table(struct args_bench_data *a, int with_seed)
{
    return (struct opt_table){rows, sizeof rows / sizeof *rows - !with_seed, a};
}

/* ---- tokens ---- */

static int local_encode(void *self, const char *text, size_t n, struct token_ids *out,
                        struct err *e)
{
    return tokenizer_encode(self, text, n, 1, out, e);
}

static int local_decode(void *self, const int32_t *ids, size_t n, struct buf *out, struct err *e)
{
    (void)e;
    tokenizer_decode(self, ids, n, 0, out);
    return 0;
}

int bench_codec_local(struct bench_codec *c, struct tokenizer *t, struct err *e)
{
    int n = tokenizer_n_ids(t), best = 0, first = 0, start = 0;
    for (int i = 0; i <= n; i++) {
        size_t bytes;
        int ordinary = i < n && !tokenizer_is_special(t, i) && !tokenizer_is_byte(t, i) &&
                       tokenizer_piece(t, i, &bytes) != NULL;
        if (!ordinary) {
            if (i - start > best) {
                best = i - start;
                first = start;
            }
            start = i + 1;
        }
    }
    *c = (struct bench_codec){t, local_encode, local_decode, first, best};
    return best > 0 ? 0 : err_set(e, ERR_FORMAT, "the tokenizer has no ordinary tokens");
}

/* ---- growing ---- */

static struct bench_request *add(struct bench_dataset *d)
{
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 256;
        struct bench_request *v = realloc(d->v, cap * sizeof *v);
        if (!v) {
            return NULL;
        }
        d->v = v;
        d->cap = cap;
    }
    struct bench_request *q = &d->v[d->n++];
    *q = (struct bench_request){.at_s = -1, .session = -1};
    return q;
}

static int add_text(struct bench_dataset *d, const char *text, size_t n, int prompt_len,
                    int output_len, struct err *e)
{
    struct bench_request *q = add(d);
    char *copy = arena_strndup(&d->arena, text, n);
    if (!q || !copy) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    q->text = copy;
    q->n_bytes = n;
    q->prompt_len = prompt_len;
    q->output_len = output_len;
    return 0;
}

void bench_data_fini(struct bench_dataset *d)
{
    free(d->v);
    arena_fini(&d->arena);
    memset(d, 0, sizeof *d);
}

static int32_t draw_id(const struct bench_codec *c, struct bench_rng *rng)
{
    return (int32_t)bench_integer(rng, c->first_id, c->first_id + c->n_ids - 1);
}

/* ---- texts of a given number of tokens ---- */

/* Text that has exactly n tokens: decodes the ids, encodes the text again, and pads or cuts until
 * the number is right. Not every number can be met by every tokenizer: the nearest is kept then. */
static int fit(const struct bench_codec *c, struct token_ids *ids, size_t n, struct bench_rng *rng,
               struct buf *text, struct err *e)
{
    int rc = 0;
    for (int attempt = 0; rc >= 0 && attempt < FIT_ATTEMPTS; attempt++) {
        buf_clear(text);
        rc = c->decode(c->self, ids->ids, ids->n, text, e);
        ids->n = 0;
        rc = rc < 0 ? rc : c->encode(c->self, text->data ? text->data : "", text->len, ids, e);
        if (rc < 0 || ids->n == n) {
            break;
        }
        while (rc >= 0 && ids->n < n) {
            rc = token_ids_push(ids, draw_id(c, rng));
        }
        ids->n = n;
    }
    return rc;
}

static int64_t length_about(struct bench_rng *rng, int64_t length, double ratio, int64_t least)
{
    int64_t low = (int64_t)((double)length * (1 - ratio)),
            high = (int64_t)((double)length * (1 + ratio));
    int64_t n = bench_integer(rng, low, high);
    return n < least ? least : n;
}

static int random_texts(struct bench_dataset *d, const struct args_bench_data *a, int64_t input,
                        int64_t output, const struct bench_codec *c, struct err *e)
{
    struct bench_rng rng = {.seed = (uint64_t)a->seed};
    struct token_ids prefix = {0}, ids = {0};
    struct buf text;
    int rc = 0;
    buf_init(&text);
    d->ignore_eos = 1;
    for (int64_t i = 0; rc >= 0 && i < a->random_prefix_len; i++) {
        rc = token_ids_push(&prefix, draw_id(c, &rng));
    }
    for (int64_t i = 0; rc >= 0 && i < a->num_prompts; i++) {
        int64_t n = length_about(&rng, input, a->random_range_ratio, 1);
        int64_t out = length_about(&rng, output, a->random_range_ratio, 1);
        int64_t offset = draw_id(c, &rng);
        ids.n = 0;
        for (size_t k = 0; rc >= 0 && k < prefix.n; k++) {
            rc = token_ids_push(&ids, prefix.ids[k]);
        }
        for (int64_t k = 0; rc >= 0 && k < n; k++) {
            rc = token_ids_push(&ids,
                                (int32_t)(c->first_id + (offset - c->first_id + i + k) % c->n_ids));
        }
        rc = rc < 0 ? rc : fit(c, &ids, prefix.n + (size_t)n, &rng, &text, e);
        rc = rc < 0 ? rc
                    : add_text(d, text.data ? text.data : "", text.len, (int)ids.n, (int)out, e);
    }
    token_ids_fini(&prefix);
    token_ids_fini(&ids);
    buf_fini(&text);
    return rc;
}

static int repeated_prefixes(struct bench_dataset *d, const struct args_bench_data *a,
                             int64_t output, const struct bench_codec *c, struct err *e)
{
    struct bench_rng rng = {.seed = (uint64_t)a->seed};
    struct token_ids ids = {0};
    struct buf prefix, suffix;
    int rc = 0;
    int64_t each = (a->num_prompts + a->repetition_num_prefixes - 1) / a->repetition_num_prefixes;
    buf_init(&prefix);
    buf_init(&suffix);
    d->ignore_eos = 1;
    for (int64_t i = 0; rc >= 0 && (int64_t)d->n < a->num_prompts; i++) {
        int64_t len = i % each == 0 ? a->repetition_prefix_len : 0;
        for (int part = len ? 0 : 1; rc >= 0 && part < 2; part++) {
            len = part == 0 ? a->repetition_prefix_len : a->repetition_suffix_len;
            ids.n = 0;
            for (int64_t k = 0; rc >= 0 && k < len; k++) {
                rc = token_ids_push(&ids, draw_id(c, &rng));
            }
            rc = rc < 0 ? rc : fit(c, &ids, (size_t)len, &rng, part ? &suffix : &prefix, e);
        }
        size_t n = prefix.len;
        buf_append(&prefix, suffix.data, suffix.len);
        rc = rc < 0 ? rc
                    : add_text(d, prefix.data ? prefix.data : "", prefix.len,
                               (int)(a->repetition_prefix_len + a->repetition_suffix_len),
                               (int)output, e);
        prefix.len = n;
    }
    token_ids_fini(&ids);
    buf_fini(&prefix);
    buf_fini(&suffix);
    return rc;
}

/* ---- order and number ---- */

static void shuffle(struct bench_dataset *d, struct bench_rng *rng)
{
    for (size_t i = d->n; i > 1; i--) {
        size_t k = (size_t)bench_integer(rng, 0, (int64_t)i - 1);
        struct bench_request t = d->v[i - 1];
        d->v[i - 1] = d->v[k];
        d->v[k] = t;
    }
}

static int set_number(struct bench_dataset *d, const struct args_bench_data *a, struct err *e)
{
    size_t have = d->n;
    if (have == 0) {
        return err_set(e, ERR_FORMAT, "%s: no usable request in it", a->path);
    }
    if ((int64_t)d->n > a->num_prompts) {
        d->n = (size_t)a->num_prompts;
    }
    for (size_t i = 0; !a->no_oversample && (int64_t)d->n < a->num_prompts; i++) {
        struct bench_request *q = add(d);
        if (!q) {
            return err_set(e, ERR_NOMEM, "out of memory");
        }
        *q = d->v[i % have];
    }
    return 0;
}

/* ---- files ---- */

static int count_tokens(const struct bench_codec *c, const char *text, size_t n, struct err *e)
{
    struct token_ids ids = {0};
    int rc = c->encode(c->self, text, n, &ids, e);
    rc = rc < 0 ? rc : (int)ids.n;
    token_ids_fini(&ids);
    return rc;
}

static const char *turn_text(const struct json *item, size_t i, size_t *n)
{
    const struct json *turn = json_at(json_get(item, "conversations"), i);
    const struct json *value = json_get(turn, "value");
    return json_type(value) == JSON_STRING ? json_string(value, n) : NULL;
}

static int sharegpt(struct bench_dataset *d, const struct args_bench_data *a, int64_t output,
                    const struct bench_codec *c, struct err *e)
{
    struct json *doc = NULL;
    struct bench_rng rng = {.seed = (uint64_t)a->seed};
    int rc = json_parse_file(&doc, a->path, FILE_BYTES_MAX, e);
    if (rc >= 0 && json_type(doc) != JSON_ARRAY) {
        rc = err_set(e, ERR_FORMAT, "%s: expected a list of conversations", a->path);
    }
    for (size_t i = 0; rc >= 0 && i < json_length(doc); i++) {
        size_t n, k;
        if (a->disable_shuffle && (int64_t)d->n >= a->num_prompts) {
            break;
        }
        const char *asked = turn_text(json_at(doc, i), 0, &n),
                   *said = turn_text(json_at(doc, i), 1, &k);
        if (!asked || !said) {
            continue;
        }
        int n_in = count_tokens(c, asked, n, e);
        int n_out = n_in < 0 ? n_in : output > 0 ? (int)output : count_tokens(c, said, k, e);
        rc = n_out < 0 ? n_out : 0;
        if (rc >= 0 && n_in >= 4 && n_out >= 4 && n_in <= 1024 && n_in + n_out <= 2048) {
            rc = add_text(d, asked, n, n_in, n_out, e);
        }
    }
    json_free(doc);
    if (rc >= 0 && !a->disable_shuffle) {
        shuffle(d, &rng);
    }
    return rc < 0 ? rc : set_number(d, a, e);
}

/* Calls take for each line that is not empty. */
static int each_line(const char *path,
                     int (*take)(void *user, const char *line, size_t n, int number, struct err *e),
                     void *user, struct err *e)
{
    struct buf b;
    int number = 0;
    buf_init(&b);
    int rc = buf_read_file(&b, path, FILE_BYTES_MAX, e);
    for (size_t at = 0; rc >= 0 && at < b.len;) {
        const char *end = memchr(b.data + at, '\n', b.len - at);
        size_t n = end ? (size_t)(end - (b.data + at)) : b.len - at;
        number++;
        if (n) {
            rc = take(user, b.data + at, n, number, e);
        }
        at += n + 1;
    }
    buf_fini(&b);
    return rc;
}

struct file_reader {
    struct bench_dataset *d;
    const struct args_bench_data *a;
    const struct bench_codec *c;
    int64_t output;
    struct token_ids ids;
    int n_left_out;
};

static int take_custom(void *user, const char *line, size_t n, int number, struct err *e)
{
    struct file_reader *r = user;
    struct json *doc = NULL;
    size_t len;
    int rc = json_parse(&doc, line, n, JSON_DEPTH_DEFAULT, e);
    const struct json *prompt = json_get(doc, "prompt"), *tokens = json_get(doc, "output_tokens");
    if (rc < 0) {
        return err_prefix(e, "%s: line %d", r->a->path, number);
    }
    if (json_type(prompt) != JSON_STRING) {
        json_free(doc);
        return err_set(e, ERR_FORMAT, "%s: line %d: expected the field \"prompt\" to be a text",
                       r->a->path, number);
    }
    const char *text = json_string(prompt, &len);
    int64_t output = r->output;
    if (output < 0) {
        output = json_type(tokens) == JSON_INT && json_int(tokens) > 0 ? json_int(tokens) : 0;
        if (!output) {
            json_free(doc);
            return err_set(e, ERR_FORMAT, "%s: line %d: expected output_tokens above 0", r->a->path,
                           number);
        }
    }
    rc = count_tokens(r->c, text, len, e);
    rc = rc < 0 ? rc : add_text(r->d, text, len, rc, (int)output, e);
    json_free(doc);
    return rc;
}

/* A prompt of a trace: each block is 512 tokens that follow from its id, so that equal ids are
 * equal prefixes. */
static int take_trace(void *user, const char *line, size_t n, int number, struct err *e)
{
    struct file_reader *r = user;
    struct json *doc = NULL;
    int rc = json_parse(&doc, line, n, JSON_DEPTH_DEFAULT, e);
    const struct json *at = json_get(doc, "timestamp"), *in = json_get(doc, "input_length");
    const struct json *out = json_get(doc, "output_length"), *hashes = json_get(doc, "hash_ids");
    if (rc < 0) {
        return err_prefix(e, "%s: line %d", r->a->path, number);
    }
    int64_t length = json_type(in) == JSON_INT ? json_int(in) : 0;
    int64_t output = r->output > 0 ? r->output : json_type(out) == JSON_INT ? json_int(out) : 0;
    if (length < 1 || output < 1 || length > INT32_MAX / 2 || output > INT32_MAX / 2 ||
        (json_type(at) != JSON_INT && json_type(at) != JSON_DOUBLE) ||
        (int64_t)json_length(hashes) * TRACE_BLOCK < length) {
        json_free(doc);
        return err_set(e, ERR_FORMAT,
                       "%s: line %d: expected timestamp, input_length, output_length and a hash id "
                       "for each 512 tokens",
                       r->a->path, number);
    }
    if ((r->a->trace_max_len >= 0 && length + output > r->a->trace_max_len) ||
        (int64_t)r->d->n >= r->a->num_prompts) {
        r->n_left_out++;
        json_free(doc);
        return 0;
    }
    int32_t *ids = arena_alloc(&r->d->arena, (size_t)length * sizeof *ids);
    struct bench_request *q = ids ? add(r->d) : NULL;
    for (int64_t i = 0; q && i < length; i += TRACE_BLOCK) {
        const struct json *hash = json_at(hashes, (size_t)(i / TRACE_BLOCK));
        struct bench_rng rng = {.seed =
                                    (uint64_t)(json_type(hash) == JSON_INT ? json_int(hash) : 0)};
        for (int64_t k = i; k < i + TRACE_BLOCK && k < length; k++) {
            ids[k] = draw_id(r->c, &rng);
        }
    }
    if (q) {
        q->ids = ids;
        q->prompt_len = (int)length;
        q->output_len = (int)output;
        q->at_s = json_double(at) / 1000 / r->a->trace_speed;
    }
    json_free(doc);
    return q ? 0 : err_set(e, ERR_NOMEM, "out of memory");
}

static int from_lines(struct bench_dataset *d, const struct args_bench_data *a, int64_t output,
                      const struct bench_codec *c, int trace, struct err *e)
{
    struct file_reader r = {.d = d, .a = a, .c = c, .output = output};
    struct bench_rng rng = {.seed = (uint64_t)a->seed};
    int rc = each_line(a->path, trace ? take_trace : take_custom, &r, e);
    if (rc < 0 || trace) {
        d->ignore_eos = trace;
        return rc >= 0 && d->n == 0 ? err_set(e, ERR_FORMAT, "%s: no usable request in it", a->path)
                                    : rc;
    }
    if (!a->disable_shuffle) {
        shuffle(d, &rng);
    }
    return set_number(d, a, e);
}

/* ---- sonnets ---- */

struct verse {
    const char *text;
    int n_tokens; /* with its line break */
};

struct poem {
    struct verse *lines;
    size_t n, cap;
    struct arena *arena;
    const struct bench_codec *c;
};

static int take_verse(void *user, const char *line, size_t n, int number, struct err *e)
{
    struct poem *p = user;
    (void)number;
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 256;
        struct verse *v = realloc(p->lines, cap * sizeof *v);
        if (!v) {
            return err_set(e, ERR_NOMEM, "out of memory");
        }
        p->lines = v;
        p->cap = cap;
    }
    const char *copy = arena_strndup(p->arena, line, n);
    int tokens = copy ? count_tokens(p->c, line, n, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (tokens < 0) {
        return tokens;
    }
    p->lines[p->n++] = (struct verse){copy, tokens + 1};
    return 0;
}

static int sonnets(struct bench_dataset *d, const struct args_bench_data *a, int64_t input,
                   int64_t output, const struct bench_codec *c, struct err *e)
{
    static const char head[] = "Pick as many lines as you can from these poem lines:\n";
    struct poem p = {.arena = &d->arena, .c = c};
    struct bench_rng rng = {.seed = (uint64_t)a->seed};
    struct buf text;
    buf_init(&text);
    int rc = each_line(a->path, take_verse, &p, e);
    int n_head = rc < 0 ? rc : count_tokens(c, head, sizeof head - 1, e);
    rc = n_head < 0 ? n_head : rc;
    if (rc >= 0 && p.n == 0) {
        rc = err_set(e, ERR_FORMAT, "%s: no lines in it", a->path);
    }
    for (int64_t i = 0; rc >= 0 && i < a->num_prompts; i++) {
        int64_t n = n_head;
        size_t fixed = 0;
        buf_clear(&text);
        buf_puts(&text, head);
        for (; fixed < p.n && n + p.lines[fixed].n_tokens <= a->sonnet_prefix_len; fixed++) {
            buf_printf(&text, "%s\n", p.lines[fixed].text);
            n += p.lines[fixed].n_tokens;
        }
        for (;;) {
            size_t k = (size_t)bench_integer(&rng, 0, (int64_t)p.n - 1);
            if (n + p.lines[k].n_tokens > input) {
                break;
            }
            buf_printf(&text, "%s\n", p.lines[k].text);
            n += p.lines[k].n_tokens;
        }
        rc = text.failed ? err_set(e, ERR_NOMEM, "out of memory")
                         : count_tokens(c, text.data, text.len, e);
        rc = rc < 0 ? rc : add_text(d, text.data, text.len, rc, (int)output, e);
    }
    free(p.lines);
    buf_fini(&text);
    return rc;
}

/* ---- ready-made situations ---- */

#define TURNS 5

/* Chats whose turns follow each other; the history grows with the answers. */
static int chats(struct bench_dataset *d, const struct args_bench_data *a,
                 const struct bench_codec *c, struct err *e)
{
    struct args_bench_data own = *a;
    own.random_prefix_len = 0;
    own.random_range_ratio = 0.3;
    int rc = random_texts(d, &own, 40, 80, c, e);
    for (size_t i = 0; rc >= 0 && i < d->n; i++) {
        d->v[i].session = (int)(i / TURNS);
        d->v[i].turn = (int)(i % TURNS);
    }
    d->n_sessions = (int)((d->n + TURNS - 1) / TURNS);
    d->chat = 1;
    return rc;
}

static int situation(struct bench_dataset *d, const struct args_bench_data *a,
                     const struct bench_codec *c, struct err *e)
{
    if (!a->scenario) {
        return err_set(e, ERR_INVALID, "--dataset-name scenario needs --scenario");
    }
    if (strcmp(a->scenario, "questions") == 0) {
        return random_texts(d, a, 120, 128, c, e);
    }
    if (strcmp(a->scenario, "summaries") == 0) {
        return random_texts(d, a, 1300, 200, c, e);
    }
    return chats(d, a, c, e);
}

int bench_data_make(struct bench_dataset *d, const struct args_bench_data *a,
                    const struct bench_codec *c, struct err *e)
{
    memset(d, 0, sizeof *d);
    arena_init(&d->arena, (size_t)256 << 10);
#define PICK(general, own) (a->general > 0 ? a->general : a->own)
    if (strcmp(a->name, "random") == 0) {
        return random_texts(d, a, PICK(input_len, random_input_len),
                            PICK(output_len, random_output_len), c, e);
    }
    if (strcmp(a->name, "prefix_repetition") == 0) {
        return repeated_prefixes(d, a, PICK(output_len, repetition_output_len), c, e);
    }
    if (strcmp(a->name, "scenario") == 0) {
        return situation(d, a, c, e);
    }
    if (!a->path) {
        return err_set(e, ERR_INVALID, "--dataset-name %s needs --dataset-path", a->name);
    }
    if (strcmp(a->name, "sharegpt") == 0) {
        return sharegpt(d, a, PICK(output_len, sharegpt_output_len), c, e);
    }
    if (strcmp(a->name, "sonnet") == 0) {
        return sonnets(d, a, PICK(input_len, sonnet_input_len), PICK(output_len, sonnet_output_len),
                       c, e);
    }
    if (strcmp(a->name, "timed_trace") == 0) {
        return from_lines(d, a, a->output_len, c, 1, e);
    }
    return from_lines(d, a, PICK(output_len, custom_output_len), c, 0, e);
#undef PICK
}
