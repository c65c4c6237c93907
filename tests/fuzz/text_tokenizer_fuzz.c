/* SPDX-License-Identifier: Apache-2.0 */
/* Any text through one small tokenizer: encoding then decoding gives the text back (a literal
 * U+2581 becomes a space), and incremental decoding agrees, whole characters at a time. */
#include "text/tokenizer.h"

#include "../unit/text_model.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static struct tokenizer *tokenizer(void)
{
    static struct tokenizer *t;
    if (!t) {
        char *dir = new_dir(&(struct model_spec){0});
        write_text(dir, "added_tokens.json", "{\"<|x|>\":300,\"<|\":301}");
        if (tokenizer_open(&t, dir, NULL)) {
            abort();
        }
        remove_dir(dir);
    }
    return t;
}

static void normalise(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (n - i >= 3 && !memcmp(s + i, "\xe2\x96\x81", 3)) {
            buf_putc(out, ' ');
            i += 2;
        } else {
            buf_putc(out, s[i]);
        }
    }
}

static int same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (a->len == 0 || !memcmp(a->data, b->data, a->len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    const struct tokenizer *t = tokenizer();
    struct token_ids ids = {0};
    struct buf text, whole, joined;
    struct detok d;
    buf_init(&text);
    buf_init(&whole);
    buf_init(&joined);
    if (tokenizer_encode(t, (const char *)data, n_bytes, n_bytes & 1, &ids, NULL)) {
        if (utf8_is_valid((const char *)data, n_bytes)) {
            abort();
        }
    } else {
        normalise(&text, (const char *)data, n_bytes);
        tokenizer_decode(t, ids.ids, ids.n, 0, &whole);
        detok_init(&d, t, 0);
        for (size_t i = 0; i < ids.n; i++) {
            size_t before = joined.len;
            detok_push(&d, ids.ids[i], &joined);
            if (!utf8_is_valid(joined.data ? joined.data + before : "", joined.len - before)) {
                abort();
            }
        }
        detok_finish(&d, &joined);
        if (!same(&text, &whole) || !same(&joined, &whole)) {
            abort();
        }
    }
    token_ids_fini(&ids);
    buf_fini(&text);
    buf_fini(&whole);
    buf_fini(&joined);
    return 0;
}
