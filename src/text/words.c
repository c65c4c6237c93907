/* SPDX-License-Identifier: Apache-2.0 */
#include "text/words.h"

#include "base/buf.h"

int words_encode(const struct tokenizer *t, const char *word, size_t n_bytes, int spaced,
                 struct token_ids *out, struct err *e)
{
    size_t max_bytes = 4 * WORDS_MAX_TOKENS * (size_t)(tokenizer_max_chars_per_token(t) + 1);
    if (n_bytes == 0) {
        return err_set(e, ERR_INVALID, "bad_words cannot contain an empty string.");
    }
    if (n_bytes > max_bytes) { /* before it is tokenized */
        return err_set(e, ERR_INVALID, "a bad word may have at most %d tokens", WORDS_MAX_TOKENS);
    }
    while (n_bytes > 1 && *word == ' ') {
        word++, n_bytes--;
    }
    struct buf b;
    buf_init(&b);
    buf_puts(&b, spaced ? " " : "");
    buf_append(&b, word, n_bytes);
    size_t before = out->n;
    int rc = b.failed ? err_set(e, ERR_NOMEM, "out of memory")
                      : tokenizer_encode(t, b.data, b.len, 0, out, e);
    buf_fini(&b);
    return rc >= 0 && out->n - before > WORDS_MAX_TOKENS
               ? err_set(e, ERR_INVALID, "a bad word may have at most %d tokens", WORDS_MAX_TOKENS)
               : rc;
}
