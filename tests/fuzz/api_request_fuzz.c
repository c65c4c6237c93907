/* SPDX-License-Identifier: Apache-2.0 */
/* Any body as a request of one of the dialects (the first byte chooses): it is understood with
 * prompts that fit, or refused with an error body that is valid JSON. */
#include "api/gen.h"
#include "api/responses.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static struct server server;
static const char *const names[] = {"poet"};
static const struct gen_dialect *const dialects[] = {
    &completions_dialect, &chat_dialect,        &inference_dialect,
    &legacy_dialect,      &ollama_chat_dialect, &ollama_generate_dialect,
    &responses_dialect,   &chat_dialect,
};
#define N_DIALECTS (sizeof dialects / sizeof dialects[0])

static void open_server(void)
{
    struct err e = {0};
    struct tokenizer *t;
    struct chat_template *c;
    if (tokenizer_open(&t, TERN_SOURCE_DIR "/models/tern-poet", &e) != 0 ||
        chat_template_open(&c, TERN_SOURCE_DIR "/models/tern-poet", NULL, t, &e) != 0) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    server_options_init(&server.o);
    server.o.served_model_names = names;
    server.o.n_served_model_names = 1;
    server.model.tokenizer = t;
    server.model.chat_template = c;
    server.model.max_model_len = 512;
    server.model.vocab_size = tokenizer_n_ids(t);
    if (grammar_cache_open(&server.structured, t, server.model.vocab_size, &e) != 0) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (!server.model.tokenizer) {
        open_server();
    }
    if (n_bytes == 0) {
        return 0;
    }
    char *body = malloc(n_bytes);
    memcpy(body, data + 1, n_bytes - 1);
    const struct gen_dialect *d = dialects[data[0] % N_DIALECTS];
    struct gen *g = gen_new(&server, d, body, n_bytes - 1);
    g->work.run(&g->work);
    if (g->error.status) {
        struct buf b;
        struct json *j;
        buf_init(&b);
        api_error_write(&g->error, &b);
        if (g->error.status < 400 || g->error.status > 404 ||
            json_parse(&j, b.data, b.len, 8, NULL) != 0) {
            abort();
        }
        json_free(j);
        buf_fini(&b);
    } else {
        for (int i = 0; i < g->n_prompts; i++) {
            const struct gen_prompt *p = &g->prompts[i];
            if (p->n < 1 || p->max_tokens < 1 ||
                p->n + p->max_tokens > server.model.max_model_len) {
                abort();
            }
        }
        if (g->n_prompts < 1 && d != &ollama_chat_dialect && d != &ollama_generate_dialect) {
            abort();
        }
    }
    gen_free(g);
    return 0;
}
