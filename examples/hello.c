/* SPDX-License-Identifier: Apache-2.0 */
/* One prompt, one answer.
 *     cc hello.c $(pkg-config --cflags --libs tern) -o hello
 *     ./hello MODEL PROMPT [option=value …]          ./hello models/tern-poet 春 max-model-len=256 */
#include <stdio.h>
#include <string.h>
#include <tern.h>

int main(int argc, char **argv)
{
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_chunk chunk = TERN_CHUNK_INIT;
    struct tern_options *options = NULL;
    struct tern_params *params = NULL;
    struct tern_engine *engine = NULL;
    struct tern_request *request = NULL;
    int rc = argc < 3 ? TERN_INVALID : tern_options_new(&options, &e);
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT [option=value ...]\n", argv[0]);
        return 2;
    }
    for (int i = 3; rc >= 0 && i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value) {
            *value++ = '\0';
        }
        rc = tern_options_set(options, argv[i], value ? value : "true", &e);
    }
    rc = rc < 0 ? rc : tern_engine_open(&engine, argv[1], options, &e);

    /* The model's own sampling defaults, but greedy and short. */
    rc = rc < 0 ? rc : tern_params_new(&params, engine, &e);
    rc = rc < 0 ? rc : tern_params_set_number(params, "temperature", 0, &e);
    rc = rc < 0 ? rc : tern_params_set_int(params, "max_tokens", 24, &e);

    rc = rc < 0 ? rc : tern_request_new(&request, engine, &e);
    rc = rc < 0 ? rc : tern_request_set_text(request, argv[2], TERN_ALL, &e);
    rc = rc < 0 ? rc : tern_request_start(request, params, NULL, &e);
    while (rc >= 0 && (rc = tern_request_next(request, -1, &chunk, &e)) == TERN_CHUNK) {
        fputs(chunk.text, stdout);
        fflush(stdout);
        if (chunk.last) {
            printf("\n[%s]\n", tern_finish_name(chunk.finish));
        }
    }
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], e.text);
    }
    tern_request_close(request);
    tern_params_free(params);
    tern_engine_close(engine);
    tern_options_free(options);
    return rc < 0;
}
