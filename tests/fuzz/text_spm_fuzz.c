/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as tokenizer.model: refused, or a model whose BPE gives ids in range that decode. */
#include "text/bpe.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static const char text[] = "hello world 12 \xe4\xbd\xa0\xe5\xa5\xbd  llll\n<s>";
    struct spm m;
    struct bpe *b = NULL;
    struct err e = {0};
    struct token_ids ids = {0};
    if (spm_parse(&m, data, n_bytes, "fuzz", &e)) {
        return 0;
    }
    if (!bpe_new(&b, &m, NULL, &e)) {
        struct bpe_scratch *s = bpe_scratch_new(b);
        if (s && bpe_encode(b, s, text, sizeof(text) - 1, &ids)) {
            abort();
        }
        for (size_t i = 0; i < ids.n; i++) {
            if (ids.ids[i] < 0 || ids.ids[i] >= m.n_pieces) {
                abort();
            }
        }
        bpe_scratch_free(s);
    }
    token_ids_fini(&ids);
    bpe_free(b);
    spm_fini(&m);
    return 0;
}
