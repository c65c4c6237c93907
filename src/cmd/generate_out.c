/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/generate_out.h"
#include "api/gen.h"
#include "base/json.h"
#include "lib/lib.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct generation_prompt *generation_add(struct generation *g)
{
    if (g->n == g->cap) {
        int cap = g->cap ? g->cap * 2 : 8;
        struct generation_prompt *p = realloc(g->prompts, (size_t)cap * sizeof *p);
        if (!p) {
            return NULL;
        }
        g->prompts = p;
        g->cap = cap;
    }
    memset(&g->prompts[g->n], 0, sizeof *g->prompts);
    return &g->prompts[g->n++];
}

int generation_start(struct generation *g, int n_samples, struct err *e)
{
    arena_init(&g->arena, 0);
    g->arena_ready = 1;
    g->n_samples = n_samples;
    for (int i = 0; i < g->n; i++) {
        struct generation_prompt *p = &g->prompts[i];
        p->outputs = calloc((size_t)n_samples, sizeof *p->outputs);
        if (!p->outputs) {
            return err_set(e, ERR_NOMEM, "out of memory");
        }
    }
    return 0;
}

/* Entries of the chunk's token i, for the token that was added last. */
static int keep_logprobs(struct generation *g, struct generation_output *out,
                         const struct tern_chunk *c, size_t i)
{
    size_t at = out->ids.n - 1, n = c->logprob_start[i + 1] - c->logprob_start[i];
    if (at >= out->logprobs_cap) {
        size_t cap = out->logprobs_cap ? out->logprobs_cap * 2 : 64;
        struct token_output *v = realloc(out->logprobs, cap * sizeof *v);
        if (!v) {
            return ERR_NOMEM;
        }
        out->logprobs = v;
        out->logprobs_cap = cap;
    }
    struct token_logprob *top = arena_alloc(&g->arena, (n + 1) * sizeof *top);
    for (size_t k = 0; top && k < n; k++) {
        size_t from = c->logprob_start[i] + k;
        top[k] =
            (struct token_logprob){c->logprob_ids[from], c->logprobs[from], c->logprob_ranks[from]};
    }
    out->logprobs[at] = (struct token_output){.id = c->ids[i], .n_top = (int)n, .top = top};
    return top ? 0 : ERR_NOMEM;
}

int generation_take(struct generation *g, struct generation_output *out, const struct tern_chunk *c)
{
    for (size_t i = 0; i < c->n_ids; i++) {
        if (token_ids_push(&out->ids, c->ids[i]) < 0 ||
            (c->logprob_start && keep_logprobs(g, out, c, i) < 0)) {
            return ERR_NOMEM;
        }
    }
    buf_append(&out->text, c->text, c->text_bytes);
    if (c->first_token_ns) {
        out->first_token_ns = c->first_token_ns;
        out->last_token_ns = c->last_token_ns;
    }
    if (c->finish != TERN_RUNNING) {
        out->finish = c->finish;
        out->stop_id = c->stop_id;
        out->stop_text_bytes = c->stop_text_bytes;
        out->stop_text =
            c->stop_text ? arena_strndup(&g->arena, c->stop_text, c->stop_text_bytes) : NULL;
    }
    return out->text.failed ? ERR_NOMEM : 0;
}

int generation_print_text(const struct generation *g, struct err *e)
{
    for (int i = 0; i < g->n; i++) {
        for (int k = 0; k < g->n_samples; k++) {
            const struct buf *text = &g->prompts[i].outputs[k].text;
            if (g->n * g->n_samples > 1) {
                printf("=== prompt %d, output %d ===\n", i + 1, k + 1);
            }
            if (fwrite(text->data ? text->data : "", 1, text->len, stdout) != text->len ||
                putchar('\n') == EOF) {
                return err_set(e, ERR_IO, "cannot write to standard output");
            }
        }
    }
    return 0;
}

/* The API's own code writes the logprobs object, so that both are the same: it takes a request of
 * the API, of which only the dialect, the tokenizer and the number of entries matter here. */
static void write_logprobs(const struct generation_output *out, const struct tokenizer *t, int chat,
                           struct json_writer *w)
{
    struct gen_dialect dialect = {.chat = chat};
    struct server *server = calloc(1, sizeof *server);
    struct gen *g = calloc(1, sizeof *g);
    struct gen_sample s;
    memset(&s, 0, sizeof s);
    if (!server || !g) {
        json_w_null(w);
        goto done;
    }
    arena_init(&g->arena, 0);
    server->model.tokenizer = t;
    g->server = server;
    g->dialect = &dialect;
    for (size_t i = 0; i < out->ids.n; i++) {
        g->f.logprobs = out->logprobs[i].n_top - 1;
        logprobs_add(g, &s, &out->logprobs[i]);
    }
    if (chat) {
        json_w_object(w);
        json_w_key(w, "content");
        gen_write_raw_array(w, &s.lp_content);
        json_w_object_end(w);
    } else {
        logprobs_write_completion(w, &s.lp_tokens, &s.lp_values, &s.lp_tops, &s.lp_offsets);
    }
    arena_fini(&g->arena);
done:
    buf_fini(&s.lp_tokens);
    buf_fini(&s.lp_values);
    buf_fini(&s.lp_tops);
    buf_fini(&s.lp_offsets);
    buf_fini(&s.lp_content);
    free(g);
    free(server);
}

static void write_ids(struct json_writer *w, const char *key, const struct token_ids *ids)
{
    json_w_key(w, key);
    json_w_array(w);
    for (size_t i = 0; i < ids->n; i++) {
        json_w_int(w, ids->ids[i]);
    }
    json_w_array_end(w);
}

static void write_output(struct json_writer *w, const struct generation_output *out, int index,
                         const struct tokenizer *t, int chat)
{
    json_w_object(w);
    json_w_kint(w, "index", index);
    json_w_key(w, "text");
    json_w_stringn(w, out->text.data ? out->text.data : "", out->text.len);
    write_ids(w, "token_ids", &out->ids);
    json_w_kstring(w, "finish_reason", tern_finish_name(out->finish));
    json_w_key(w, "stop_reason");
    if (out->stop_text) {
        json_w_stringn(w, out->stop_text, out->stop_text_bytes);
    } else if (out->stop_id >= 0) {
        json_w_int(w, out->stop_id);
    } else {
        json_w_null(w);
    }
    json_w_key(w, "logprobs");
    if (out->logprobs) {
        write_logprobs(out, t, chat, w);
    } else {
        json_w_null(w);
    }
    json_w_object_end(w);
}

int generation_print_json(const struct generation *g, const struct tern_tokenizer *t, int chat,
                          struct err *e)
{
    struct buf b;
    struct json_writer w;
    int rc = 0;
    buf_init(&b);
    for (int i = 0; rc >= 0 && i < g->n; i++) {
        const struct generation_prompt *p = &g->prompts[i];
        int64_t n_out = 0;
        buf_clear(&b);
        json_w_init(&w, &b);
        json_w_object(&w);
        json_w_key(&w, "prompt");
        if (p->text) {
            json_w_stringn(&w, p->text, p->text_bytes);
        } else {
            json_w_null(&w);
        }
        write_ids(&w, "prompt_token_ids", &p->ids);
        json_w_key(&w, "outputs");
        json_w_array(&w);
        for (int k = 0; k < g->n_samples; k++) {
            n_out += (int64_t)p->outputs[k].ids.n;
            write_output(&w, &p->outputs[k], k, t->tokenizer, chat);
        }
        json_w_array_end(&w);
        json_w_key(&w, "usage");
        json_w_object(&w);
        json_w_kint(&w, "prompt_tokens", (int64_t)p->ids.n);
        json_w_kint(&w, "completion_tokens", n_out);
        json_w_kint(&w, "total_tokens", (int64_t)p->ids.n + n_out);
        json_w_object_end(&w);
        json_w_object_end(&w);
        buf_putc(&b, '\n');
        if (b.failed || fwrite(b.data, 1, b.len, stdout) != b.len) {
            rc = err_set(e, ERR_IO, "cannot write to standard output");
        }
    }
    buf_fini(&b);
    return rc;
}

void generation_fini(struct generation *g)
{
    for (int i = 0; i < g->n; i++) {
        struct generation_prompt *p = &g->prompts[i];
        for (int k = 0; p->outputs && k < g->n_samples; k++) {
            buf_fini(&p->outputs[k].text);
            token_ids_fini(&p->outputs[k].ids);
            free(p->outputs[k].logprobs);
        }
        free(p->outputs);
        free(p->text);
        token_ids_fini(&p->ids);
        tern_request_close(p->request);
    }
    free(g->prompts);
    tern_queue_free(g->queue);
    if (g->arena_ready) {
        arena_fini(&g->arena);
    }
}
