/* SPDX-License-Identifier: Apache-2.0 */
/* Many prompts at once on one queue, two outputs of each, with the log-probabilities of their first
 * tokens. The engine batches them; what an output is does not depend on its neighbours.
 *     cc batch.c $(pkg-config --cflags --libs tern) -lm -o batch
 *     ./batch MODEL [option=value …] */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tern.h>

#define N_PROMPTS ((int)(sizeof prompts / sizeof *prompts))

static const char *const prompts[] = {"春", "夏", "秋", "冬"};

static void show_end(const struct tern_chunk *c)
{
    const int *index = tern_request_user(c->request);
    size_t n;
    const char *text = tern_request_text(c->request, c->index, &n);
    printf("%s, output %d [%s, logprob %.2f]: %.*s\n", prompts[*index], c->index,
           tern_finish_name(c->finish), c->cumulative_logprob, (int)n, text);
}

static void show_first(const struct tern_tokenizer *t, const struct tern_chunk *c)
{
    printf("%s, output %d begins with", prompts[*(const int *)tern_request_user(c->request)],
           c->index);
    for (size_t k = c->logprob_start[0]; k < c->logprob_start[1]; k++) {
        size_t n;
        const char *piece = tern_tokenizer_piece(t, c->logprob_ids[k], &n);
        printf(" %.*s(%.3f)", (int)n, piece, exp((double)c->logprobs[k]));
    }
    putchar('\n');
}

static int run(struct tern_engine *engine, struct tern_queue *queue, struct tern_error *e)
{
    struct tern_request *requests[sizeof prompts / sizeof *prompts] = {0};
    int indices[sizeof prompts / sizeof *prompts];
    int seen[sizeof prompts / sizeof *prompts][2] = {{0}};
    struct tern_chunk chunk = TERN_CHUNK_INIT;
    struct tern_params *params = NULL;
    int rc = tern_params_new(&params, engine, e);
    rc = rc < 0 ? rc : tern_params_set_int(params, "n", 2, e);
    rc = rc < 0 ? rc : tern_params_set_int(params, "seed", 1, e);
    rc = rc < 0 ? rc : tern_params_set_int(params, "max_tokens", 12, e);
    rc = rc < 0 ? rc : tern_params_set_int(params, "logprobs", 2, e);
    rc = rc < 0 ? rc : tern_params_set_number(params, "temperature", 0.8, e);
    rc = rc < 0 ? rc : tern_params_add_stop(params, "\n\n", TERN_ALL, e);
    for (int i = 0; rc >= 0 && i < N_PROMPTS; i++) {
        indices[i] = i;
        rc = tern_request_new(&requests[i], engine, e);
        rc = rc < 0 ? rc : tern_request_set_text(requests[i], prompts[i], TERN_ALL, e);
        if (rc >= 0) {
            tern_request_set_user(requests[i], &indices[i]);
            rc = tern_request_start(requests[i], params, queue, e);
        }
    }
    tern_params_free(params);
    while (rc >= 0 && (rc = tern_queue_next(queue, -1, &chunk, e)) == TERN_CHUNK) {
        int i = *(const int *)tern_request_user(chunk.request);
        if (chunk.n_ids > 0 && !seen[i][chunk.index]++) {
            show_first(tern_engine_tokenizer(engine), &chunk);
        }
        if (chunk.finish != TERN_RUNNING) {
            show_end(&chunk);
        }
    }
    for (int i = 0; i < N_PROMPTS; i++) {
        tern_request_close(requests[i]);
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_metrics m = TERN_METRICS_INIT;
    struct tern_options *options = NULL;
    struct tern_engine *engine = NULL;
    struct tern_queue *queue = NULL;
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL [option=value ...]\n", argv[0]);
        return 2;
    }
    int rc = tern_options_new(&options, &e);
    for (int i = 2; rc >= 0 && i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value) {
            *value++ = '\0';
        }
        rc = tern_options_set(options, argv[i], value ? value : "true", &e);
    }
    if (rc >= 0) {
        tern_options_expect(options, 2 * N_PROMPTS);
        rc = tern_engine_open(&engine, argv[1], options, &e);
    }
    rc = rc < 0 ? rc : tern_queue_new(&queue, &e);
    rc = rc < 0 ? rc : run(engine, queue, &e);
    rc = rc < 0 ? rc : tern_engine_metrics(engine, &m, &e);
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], e.text);
    } else {
        printf("%llu tokens in %llu steps, %d of %d KV blocks in use\n",
               (unsigned long long)m.output_tokens, (unsigned long long)m.steps, m.blocks_in_use,
               m.blocks);
    }
    tern_queue_free(queue);
    tern_engine_close(engine);
    tern_options_free(options);
    return rc < 0 || m.blocks_in_use != 0;
}
