/* SPDX-License-Identifier: Apache-2.0 */
/* Text to tokens and back, one by one, and a conversation as the model sees it; no engine is needed.
 *     ./tokenize MODEL TEXT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern.h>

static int show(const struct tern_tokenizer *t, const char *text, struct tern_error *e)
{
    struct tern_decoder *decoder = NULL;
    int32_t *ids = NULL;
    char *back = NULL;
    size_t n_ids = 0, n_bytes = 0, n;
    int rc = tern_tokenizer_encode(t, text, TERN_ALL, 1, &ids, &n_ids, e);
    rc = rc < 0 ? rc : tern_decoder_new(&decoder, t, 0, e);
    for (size_t i = 0; rc >= 0 && i < n_ids; i++) {
        const char *piece = tern_decoder_push(decoder, ids[i], &n);
        printf("%6d '%s'%s\n", (int)ids[i], piece ? piece : "",
               n == 0 ? " (part of a character)" : "");
    }
    rc = rc < 0 ? rc : tern_tokenizer_decode(t, ids, n_ids, 0, &back, &n_bytes, e);
    if (rc >= 0) {
        printf("%zu tokens, %s\n", n_ids, strcmp(back, text) == 0 ? "the same text" : back);
    }
    tern_decoder_free(decoder);
    tern_free(ids);
    tern_free(back);
    return rc;
}

int main(int argc, char **argv)
{
    static const char messages[] =
        "[{\"role\": \"system\", \"content\": \"Be brief.\"},"
        " {\"role\": \"user\", \"content\": \"Hello <|end_of_sentence|>\"}]";
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_tokenizer *t = NULL;
    char *text = NULL;
    size_t n_ids = 0;
    int32_t *ids = NULL;
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL TEXT\n", argv[0]);
        return 2;
    }
    int rc = tern_tokenizer_open(&t, argv[1], &e);
    rc = rc < 0 ? rc : show(t, argv[2], &e);
    rc = rc < 0 ? rc
                : tern_tokenizer_chat(t, messages, TERN_ALL, NULL, &text, NULL, &ids, &n_ids, &e);
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], e.text);
    } else {
        printf("a conversation of %zu tokens:\n%s\n", n_ids, text);
    }
    tern_free(text);
    tern_free(ids);
    tern_tokenizer_close(t);
    return rc < 0;
}
