/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as what a model says. The first byte chooses the parser's options, the second how the
 * rest is cut. A stream joined is the whole answer; every call begins and ends once; without a
 * parser no byte is lost. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void want(int condition)
{
    if (!condition) {
        abort();
    }
}

/* Everything the events say, written one after another. */
static void read_all(const struct answer_options *o, const char *s, size_t n, size_t piece,
                     struct buf *out)
{
    struct answer a;
    struct answer_message m;
    answer_init(&a, o);
    answer_message_init(&m);
    for (size_t i = 0; i < n; i += piece) {
        answer_feed(&a, s + i, n - i < piece ? n - i : piece);
        answer_message_take(&m, &a);
    }
    answer_finish(&a);
    answer_message_take(&m, &a);
    want(!m.failed);
    buf_append(out, m.reasoning.data ? m.reasoning.data : "", m.reasoning.len);
    buf_putc(out, 1);
    buf_append(out, m.content.data ? m.content.data : "", m.content.len);
    for (int i = 0; i < m.n_calls; i++) {
        want(m.calls[i].index == i && m.calls[i].begins);
        buf_putc(out, 2);
        buf_append(out, m.calls[i].name.data ? m.calls[i].name.data : "", m.calls[i].name.len);
        buf_putc(out, 3);
        buf_append(out, m.calls[i].arguments.data ? m.calls[i].arguments.data : "",
                   m.calls[i].arguments.len);
    }
    want(!o->one_call || m.n_calls <= 1);
    answer_message_fini(&m);
    answer_fini(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (n_bytes < 2) {
        return 0;
    }
    struct answer_options o = {.reasoning = data[0] & 1,
                               .thinking = data[0] >> 1 & 1,
                               .tools = (enum answer_tools)(data[0] >> 2 & 3),
                               .function = "f",
                               .one_call = data[0] >> 4 & 1};
    const char *s = (const char *)data + 2;
    size_t n = n_bytes - 2;
    struct buf whole, cut;
    buf_init(&whole);
    buf_init(&cut);
    read_all(&o, s, n, n ? n : 1, &whole);
    read_all(&o, s, n, 1 + data[1] % 32, &cut);
    want(whole.len == cut.len && memcmp(whole.data, cut.data, whole.len) == 0);
    if (!o.reasoning && o.tools == ANSWER_TOOLS_NONE) {
        want(whole.len == n + 1 && memcmp(whole.data + 1, s, n) == 0);
    }
    buf_fini(&whole);
    buf_fini(&cut);
    return 0;
}
