/* SPDX-License-Identifier: Apache-2.0 */
/* A conversation, whose answer comes by callback while it is made; the library's log goes to
 * standard error. A callback that returns something else than 0 ends the answer.
 *     ./stream MODEL MESSAGE [option=value …] */
#include <stdio.h>
#include <string.h>
#include <tern.h>

static void log_line(void *user, int level, const char *text)
{
    (void)user;
    if (level >= TERN_LOG_WARNING) {
        fprintf(stderr, "tern: %s\n", text);
    }
}

/* Prints what comes; one line of it is enough. */
static int show(void *user, const struct tern_chunk *chunk)
{
    int *n_lines = user;
    fwrite(chunk->text, 1, chunk->text_bytes, stdout);
    fflush(stdout);
    *n_lines += memchr(chunk->text, '\n', chunk->text_bytes) != NULL;
    return *n_lines >= 3;
}

/* A JSON string with the text in it. */
static void put_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') {
            fprintf(out, "\\%c", *text);
        } else if ((unsigned char)*text < 0x20) {
            fprintf(out, "\\u%04x", (unsigned)*text);
        } else {
            fputc(*text, out);
        }
    }
    fputc('"', out);
}

int main(int argc, char **argv)
{
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_options *options = NULL;
    struct tern_params *params = NULL;
    struct tern_engine *engine = NULL;
    struct tern_request *request = NULL;
    char messages[4096];
    int n_lines = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL MESSAGE [option=value ...]\n", argv[0]);
        return 2;
    }
    FILE *out = fmemopen(messages, sizeof messages, "w");
    if (!out) {
        return 1;
    }
    fputs("[{\"role\": \"user\", \"content\": ", out);
    put_string(out, argv[2]);
    fputs("}]", out);
    fclose(out);

    int rc = tern_options_new(&options, &e);
    for (int i = 3; rc >= 0 && i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value) {
            *value++ = '\0';
        }
        rc = tern_options_set(options, argv[i], value ? value : "true", &e);
    }
    if (rc >= 0) {
        tern_options_set_log(options, log_line, NULL);
        rc = tern_engine_open(&engine, argv[1], options, &e);
    }
    rc = rc < 0 ? rc : tern_params_new(&params, engine, &e);
    rc = rc < 0 ? rc
                : tern_params_set_json(params,
                                       "{\"temperature\": 0.6, \"seed\": 7, \"max_tokens\": 40}",
                                       TERN_ALL, &e);
    rc = rc < 0 ? rc : tern_request_new(&request, engine, &e);
    rc = rc < 0 ? rc : tern_request_set_chat(request, messages, TERN_ALL, NULL, &e);
    rc = rc < 0 ? rc : tern_request_stream(request, params, show, &n_lines, &e);
    putchar('\n');
    if (rc == TERN_CANCELED) {
        puts("[that was enough]");
        rc = 0;
    } else if (rc < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], e.text);
    }
    tern_request_close(request);
    tern_params_free(params);
    tern_engine_close(engine);
    tern_options_free(options);
    return rc < 0;
}
