/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities as JSON, in the two dialects. Minus infinity is printed as -9999.0, as vLLM
 * does.
 *
 * The string of a token that holds only part of a character is empty until the token that completes
 * the character, which gets the whole of it: so strings joined give the text. The `bytes` of chat
 * are always the token's own bytes. */
#include "api/gen.h"

#include "base/map.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINEAR_ENTRIES 32 /* up to here, equal strings are found by looking at all */

static double clamp(float v)
{
    return v >= -9999.0f ? (double)v : -9999.0; /* false for NaN too */
}

/* Appends the string of `id` after the bytes `tail`; returns how many bytes of an incomplete
 * character are left and puts them into rest. */
static int token_string(const struct gen *g, const char *tail, int n_tail, int32_t id,
                        struct buf *out, char rest[4])
{
    size_t n = 0;
    const char *piece = tokenizer_piece(g->server->model.tokenizer, id, &n);
    if (!piece) {
        piece = "";
        n = 0;
    }
    struct buf joined;
    buf_init(&joined);
    buf_append(&joined, tail, (size_t)n_tail);
    buf_append(&joined, piece, n);
    size_t len = joined.len, cut = len;
    uint32_t cp;
    for (size_t back = 1; back <= 3 && back <= len;
         back++) { /* an unfinished character at the end? */
        if (utf8_decode(joined.data + len - back, back, &cp) == 0) {
            cut = len - back;
            break;
        }
    }
    int n_rest = (int)(len - cut);
    memcpy(rest, joined.data ? joined.data + cut : "", (size_t)n_rest);
    if (g->f.tokens_as_ids) {
        buf_printf(out, "token_id:%d", id);
    } else {
        utf8_append_lossy(out, joined.data ? joined.data : "", cut);
    }
    buf_fini(&joined);
    return n_rest;
}

static void put_json_string(struct buf *out, const struct buf *s)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_stringn(&w, s->data ? s->data : "", s->len);
}

static void put_double(struct buf *out, double v)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_double(&w, v);
}

static void comma(struct buf *out)
{
    if (out->len) {
        buf_putc(out, ',');
    }
}

/* {"string": logprob, …}: sampled first. Of equal strings the last value stays, at the first one's
 * place. */
static void put_top_map(const struct gen *g, const char *tail, int n_tail,
                        const struct token_output *t, struct buf *out)
{
    char rest[4];
    int n = t->n_top;
    struct buf few_names[LINEAR_ENTRIES];
    double few_values[LINEAR_ENTRIES];
    struct map *seen = n > LINEAR_ENTRIES ? map_new() : NULL;
    struct buf *names = n > LINEAR_ENTRIES ? malloc((size_t)n * sizeof *names) : few_names;
    double *values = n > LINEAR_ENTRIES ? malloc((size_t)n * sizeof *values) : few_values;
    int n_names = 0;
    if (!names || !values) {
        out->failed = 1;
        n = 0;
    }
    for (int i = 0; i < n; i++) {
        if (i > 0 && t->top[i].id == t->top[0].id) {
            continue;
        }
        struct buf *name = &names[n_names];
        buf_init(name);
        token_string(g, tail, n_tail, t->top[i].id, name, rest);
        int at = -1;
        if (seen) {
            double *old = map_get(seen, name->data ? name->data : "", name->len);
            at = old ? (int)(old - values) : -1;
        } else {
            for (int k = 0; k < n_names && at < 0; k++) {
                at = names[k].len == name->len &&
                             memcmp(names[k].data ? names[k].data : "",
                                    name->data ? name->data : "", name->len) == 0
                         ? k
                         : -1;
            }
        }
        if (at >= 0) {
            values[at] = clamp(t->top[i].logprob);
            buf_fini(name);
            continue;
        }
        values[n_names] = clamp(t->top[i].logprob);
        if (seen) {
            map_put(seen, name->data ? name->data : "", name->len, &values[n_names]);
        }
        n_names++;
    }
    buf_putc(out, '{');
    for (int i = 0; i < n_names; i++) {
        if (i > 0) {
            buf_putc(out, ',');
        }
        put_json_string(out, &names[i]);
        buf_putc(out, ':');
        put_double(out, values[i]);
        buf_fini(&names[i]);
    }
    buf_putc(out, '}');
    if (names != few_names) {
        free(names);
        free(values);
        map_free(seen);
    }
}

/* {"token":…,"logprob":…,"bytes":[…] without the closing brace */
static void put_chat_entry(const struct gen *g, const char *tail, int n_tail,
                           const struct token_logprob *p, struct buf *out)
{
    char rest[4];
    struct buf name;
    buf_init(&name);
    token_string(g, tail, n_tail, p->id, &name, rest);
    buf_puts(out, "{\"token\":");
    put_json_string(out, &name);
    buf_puts(out, ",\"logprob\":");
    put_double(out, clamp(p->logprob));
    buf_puts(out, ",\"bytes\":[");
    size_t n = 0;
    const char *piece = tokenizer_piece(g->server->model.tokenizer, p->id, &n);
    for (size_t i = 0; piece && i < n; i++) {
        buf_printf(out, "%s%d", i ? "," : "", (unsigned char)piece[i]);
    }
    buf_puts(out, "]");
    buf_fini(&name);
}

static void add_chat(struct gen *g, struct gen_sample *s, const struct token_output *t)
{
    struct buf *out = &s->lp_content;
    comma(out);
    put_chat_entry(g, s->tail, s->n_tail, &t->top[0], out);
    buf_puts(out, ",\"top_logprobs\":[");
    int n = 0;
    int limit = g->f.sp.n_logprob_token_ids > 0 ? t->n_top : g->f.logprobs; /* named ids: all */
    for (int i = 0; i < t->n_top && n < limit; i++) {
        if (i > 0 && t->top[i].id == t->top[0].id) {
            continue;
        }
        if (n++ > 0) {
            buf_putc(out, ',');
        }
        put_chat_entry(g, s->tail, s->n_tail, &t->top[i], out);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

/* Appends one position to the four arrays of a completion's logprobs. t NULL values: the first
 * prompt token. */
static void add_position(struct gen *g, struct buf *const arrays[4], const char *tail, int n_tail,
                         const struct token_output *t, size_t *offset)
{
    char rest[4];
    struct buf name;
    buf_init(&name);
    token_string(g, tail, n_tail, t->id, &name, rest);
    for (int i = 0; i < 4; i++) {
        comma(arrays[i]);
    }
    buf_printf(arrays[3], "%zu", *offset);
    put_json_string(arrays[0], &name);
    if (t->n_top == 0) {
        buf_puts(arrays[1], "null");
        buf_puts(arrays[2], "null");
    } else {
        put_double(arrays[1], clamp(t->top[0].logprob));
        put_top_map(g, tail, n_tail, t, arrays[2]);
    }
    *offset += utf8_count(name.data ? name.data : "", name.len);
    buf_fini(&name);
}

static void advance_tail(const struct gen *g, char tail[4], int *n_tail, int32_t id)
{
    struct buf scratch;
    char rest[4];
    buf_init(&scratch);
    *n_tail = token_string(g, tail, *n_tail, id, &scratch, rest);
    memcpy(tail, rest, (size_t)*n_tail);
    buf_fini(&scratch);
}

void logprobs_add(struct gen *g, struct gen_sample *s, const struct token_output *t)
{
    if (t->n_top > 0 && g->dialect->chat) {
        add_chat(g, s, t);
    } else if (!g->dialect->chat) {
        struct buf *const arrays[4] = {&s->lp_tokens, &s->lp_values, &s->lp_tops, &s->lp_offsets};
        if (s->offset == 0 && g->f.echo) {
            s->offset = s->prompt->echo_chars;
        }
        add_position(g, arrays, s->tail, s->n_tail, t, &s->offset);
    }
    advance_tail(g, s->tail, &s->n_tail, t->id);
}

/* prompt_logprobs: [null, {"id": {"logprob","rank","decoded_token"}, …}, …] */
static void put_prompt_map(struct gen *g, const char *tail, int n_tail,
                           const struct token_output *t, int k, struct buf *out)
{
    char rest[4];
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    int n = 0;
    for (int i = 0; i < t->n_top && n <= k; i++) {
        if (i > 0 && t->top[i].id == t->top[0].id) {
            continue;
        }
        char key[16];
        struct buf name;
        snprintf(key, sizeof key, "%d", t->top[i].id);
        buf_init(&name);
        token_string(g, tail, n_tail, t->top[i].id, &name, rest);
        json_w_key(&w, key);
        json_w_object(&w);
        json_w_kdouble(&w, "logprob", clamp(t->top[i].logprob));
        json_w_kint(&w, "rank", t->top[i].rank);
        json_w_key(&w, "decoded_token");
        json_w_stringn(&w, name.data ? name.data : "", name.len);
        json_w_object_end(&w);
        buf_fini(&name);
        n++;
    }
    json_w_object_end(&w);
}

void logprobs_prompt(struct gen *g, struct gen_prompt *p, const struct engine_event *ev)
{
    char tail[4];
    int n_tail = 0;
    struct buf *const arrays[4] = {&p->echo_tokens, &p->echo_values, &p->echo_tops,
                                   &p->echo_offsets};
    int want_list = g->f.prompt_logprobs >= 0,
        want_echo = g->f.echo && g->f.logprobs >= 0 && !g->dialect->chat;
    for (int i = 0; i < ev->n_tokens; i++) {
        const struct token_output *t = &ev->tokens[i];
        if (want_list) {
            comma(&p->prompt_lp);
            if (t->n_top == 0) {
                buf_puts(&p->prompt_lp, "null");
            } else {
                put_prompt_map(g, tail, n_tail, t, g->f.prompt_logprobs, &p->prompt_lp);
            }
        }
        if (want_echo) {
            add_position(g, arrays, tail, n_tail, t, &p->echo_chars);
        }
        advance_tail(g, tail, &n_tail, t->id);
    }
}

void logprobs_write_completion(struct json_writer *w, const struct buf *tokens,
                               const struct buf *values, const struct buf *tops,
                               const struct buf *offsets)
{
    json_w_object(w);
    json_w_key(w, "text_offset");
    gen_write_raw_array(w, offsets);
    json_w_key(w, "token_logprobs");
    gen_write_raw_array(w, values);
    json_w_key(w, "tokens");
    gen_write_raw_array(w, tokens);
    json_w_key(w, "top_logprobs");
    gen_write_raw_array(w, tops);
    json_w_object_end(w);
}
