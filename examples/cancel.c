/* SPDX-License-Identifier: Apache-2.0 */
/* Two engines in one process, each asked by threads of its own; the main thread cancels half of the
 * requests while others wait for them.
 *     ./cancel MODEL [option=value …] */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <tern.h>

#define N_ENGINES 2
#define N_THREADS 4 /* an engine */

struct asker {
    pthread_t thread;
    struct tern_request *request;
    int rc, finish, n_tokens;
};

/* Takes chunks until there are no more; a timeout is not the end. */
static void *ask(void *arg)
{
    struct asker *a = arg;
    struct tern_chunk chunk = TERN_CHUNK_INIT;
    do {
        a->rc = tern_request_next(a->request, 100, &chunk, NULL);
        if (a->rc == TERN_CHUNK) {
            a->n_tokens += (int)chunk.n_ids;
            a->finish = chunk.finish;
        }
    } while (a->rc == TERN_CHUNK || a->rc == TERN_NOTHING);
    return NULL;
}

static int start(struct tern_engine *engine, struct asker *a, struct tern_error *e)
{
    struct tern_params *params = NULL;
    int rc = tern_params_new(&params, engine, e);
    rc = rc < 0 ? rc : tern_params_set_int(params, "max_tokens", 24, e);
    rc = rc < 0 ? rc : tern_params_set_int(params, "ignore_eos", 1, e);
    rc = rc < 0 ? rc : tern_request_new(&a->request, engine, e);
    rc = rc < 0 ? rc : tern_request_set_text(a->request, "明月", TERN_ALL, e);
    rc = rc < 0 ? rc : tern_request_start(a->request, params, NULL, e);
    tern_params_free(params);
    return rc;
}

int main(int argc, char **argv)
{
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_options *options = NULL;
    struct tern_engine *engines[N_ENGINES] = {0};
    struct asker askers[N_ENGINES * N_THREADS];
    int n = 0, in_use = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL [option=value ...]\n", argv[0]);
        return 2;
    }
    memset(askers, 0, sizeof askers);
    int rc = tern_options_new(&options, &e);
    for (int i = 2; rc >= 0 && i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value) {
            *value++ = '\0';
        }
        rc = tern_options_set(options, argv[i], value ? value : "true", &e);
    }
    for (int i = 0; rc >= 0 && i < N_ENGINES; i++) {
        rc = tern_engine_open(&engines[i], argv[1], options, &e);
    }
    for (; rc >= 0 && n < N_ENGINES * N_THREADS; n++) {
        rc = start(engines[n % N_ENGINES], &askers[n], &e);
        if (rc < 0 || pthread_create(&askers[n].thread, NULL, ask, &askers[n]) != 0) {
            rc = rc < 0 ? rc : TERN_NOMEM;
            break;
        }
    }
    for (int i = 0; i < n; i += 2) {
        tern_request_cancel(askers[i].request);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(askers[i].thread, NULL);
        printf("request %d: %s\n", i, tern_finish_name(askers[i].finish));
    }
    for (int i = 0; i < N_ENGINES * N_THREADS; i++) {
        tern_request_close(askers[i].request);
    }
    for (int i = 0; i < N_ENGINES; i++) {
        struct tern_metrics m = TERN_METRICS_INIT;
        if (engines[i] && tern_engine_metrics(engines[i], &m, NULL) >= 0) {
            in_use += m.blocks_in_use;
        }
        tern_engine_close(engines[i]);
    }
    tern_options_free(options);
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], e.text);
    }
    return rc < 0 || in_use != 0;
}
