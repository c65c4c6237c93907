/* SPDX-License-Identifier: Apache-2.0 */
/* Token ids -> text, whole or one id at a time. Byte pieces are collected until they make a
 * character; a byte that can no longer become part of one turns into one U+FFFD at once, as
 * SentencePiece has it. Whatever is not a byte piece ends the run. Ids without a string decode to
 * nothing. */
#include "base/buf.h"
#include "base/utf8.h"
#include "text/tokenizer.h"
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd";

/* Emits what is decided. final: nothing more will come. */
static void settle(struct detok *d, int final, struct buf *out)
{
    int start = 0;
    uint32_t cp;
    while (start < d->n_pending) {
        int n = utf8_decode(d->pending + start, (size_t)(d->n_pending - start), &cp);
        if (n > 0) {
            buf_append(out, d->pending + start, (size_t)n);
            start += n;
        } else if (n < 0 || final) {
            buf_puts(out, replacement);
            start++;
        } else {
            break;
        }
    }
    d->n_pending -= start;
    memmove(d->pending, d->pending + start, (size_t)d->n_pending);
}

void detok_init(struct detok *d, const struct tokenizer *t, int skip_special)
{
    memset(d, 0, sizeof(*d));
    d->t = t;
    d->skip_special = skip_special;
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    size_t n;
    const char *s = tokenizer_piece(d->t, id, &n);
    if (!s || (d->skip_special && tokenizer_is_special(d->t, id))) {
        return;
    }
    if (tokenizer_is_byte(d->t, id)) {
        d->pending[d->n_pending++] = s[0]; /* at most 3 bytes wait for a fourth */
        settle(d, 0, out);
        return;
    }
    settle(d, 1, out);
    buf_append(out, s, n);
}

void detok_finish(struct detok *d, struct buf *out)
{
    settle(d, 1, out);
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, int skip_special,
                      struct buf *out)
{
    struct detok d;
    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++) {
        detok_push(&d, ids[i], out);
    }
    detok_finish(&d, out);
}
