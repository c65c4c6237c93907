/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer section of a GGUF file -> struct spm. Tokens, scores and types are SentencePiece's;
 * what SentencePiece keeps as flags beside them is here too, or silent, and then means what ERNIE's
 * tokenizer does (no BOS, no space in front). A file that says otherwise is refused: text would be
 * cut in another way than the model was trained on. */
#include "text/spm.h"

#include "model/gguf.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECTION "tokenizer.ggml."

static int missing(const struct gguf *g, const char *field, const char *expected, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: field %s: expected %s", gguf_path(g), field, expected);
}

static int expect_false(const struct gguf *g, const char *field, struct err *e)
{
    int yes = 0, rc = gguf_bool(g, field, &yes, e);
    return rc < 0 ? rc
           : yes  ? err_set(e, ERR_UNSUPPORTED, "%s: field %s: expected false, found true",
                            gguf_path(g), field)
                  : 0;
}

static int check_model(const struct gguf *g, struct err *e)
{
    const char *s = "";
    size_t n = 0;
    int rc = gguf_string(g, SECTION "model", &s, &n, e);
    if (rc < 0) {
        return rc;
    }
    if (n != 5 || memcmp(s, "llama", 5) != 0) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: field " SECTION "model: expected \"llama\" (SentencePiece BPE), found "
                       "\"%.*s\"",
                       gguf_path(g), (int)(n < 64 ? n : 64), s);
    }
    static const char *const flags[] = {SECTION "add_bos_token", SECTION "add_eos_token",
                                        SECTION "add_sep_token", SECTION "add_space_prefix",
                                        SECTION "remove_extra_whitespaces"};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if ((rc = expect_false(g, flags[i], e)) < 0) {
            return rc;
        }
    }
    const struct gguf_value *map = gguf_get(g, SECTION "precompiled_charsmap");
    return map != NULL && map->is_array && map->n > 0
               ? err_set(e, ERR_UNSUPPORTED,
                         "%s: field " SECTION "precompiled_charsmap: expected none, found %llu "
                         "bytes",
                         gguf_path(g), (unsigned long long)map->n)
               : 0;
}

/* The name that converters give to an id that the tokenizer doesn't have. */
static int is_padding(const struct spm_piece *p, size_t id)
{
    char own[32];
    int n = snprintf(own, sizeof own, "[PAD%zu]", id);
    return p->type == SPM_UNUSED && p->n_bytes == (uint32_t)n &&
           memcmp(p->text, own, (size_t)n) == 0;
}

int spm_from_gguf(struct spm *m, const struct gguf *g, struct err *e)
{
    const struct gguf_value *tokens = gguf_get(g, SECTION "tokens"),
                            *scores = gguf_get(g, SECTION "scores"),
                            *types = gguf_get(g, SECTION "token_type");
    memset(m, 0, sizeof *m);
    int rc = check_model(g, e);
    if (rc < 0) {
        return rc;
    }
    if (tokens == NULL || !tokens->is_array || tokens->type != GGUF_STRING || tokens->n == 0 ||
        tokens->n > SPM_PIECES_MAX) {
        return missing(g, SECTION "tokens", "a list of at most 1048576 strings", e);
    }
    if (scores == NULL || !scores->is_array || scores->type != GGUF_F32 || scores->n != tokens->n) {
        return missing(g, SECTION "scores", "an f32 for every token", e);
    }
    if (types == NULL || !types->is_array || (types->type != GGUF_I32 && types->type != GGUF_U32) ||
        types->n != tokens->n) {
        return missing(g, SECTION "token_type", "an i32 for every token", e);
    }
    size_t n = (size_t)tokens->n;
    struct spm_piece *pieces = malloc(n * sizeof *pieces);
    if (pieces == NULL) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", gguf_path(g));
    }
    const uint8_t *at = tokens->data;
    for (size_t i = 0; i < n; i++) {
        size_t n_bytes;
        const char *text = gguf_next_string(&at, &n_bytes);
        double type = gguf_item(types, i);
        pieces[i] = (struct spm_piece){.text = text,
                                       .n_bytes = (uint32_t)n_bytes,
                                       .type = type >= 0 && type < 100 ? (uint32_t)type : 100,
                                       .score = (float)gguf_item(scores, i)};
    }
    while (n > 1 && is_padding(&pieces[n - 1], n - 1)) {
        n--;
    }
    rc = spm_build(m, pieces, n, gguf_path(g), e);
    free(pieces);
    return rc;
}
