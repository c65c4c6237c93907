/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a GGUF file: refused, or a file whose tensors lie inside it, and from which a
 * configuration and a tokenizer are read or refused. */
#include "model/config.h"
#include "model/gguf.h"
#include "text/spm.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct gguf *g;
    struct err e = {0};
    struct model_config c;
    struct quant_config q;
    struct spm m;
    if (gguf_parse(&g, data, n_bytes, "fuzz", &e) < 0) {
        return 0;
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);
        const uint8_t *p = t->data;
        if (p < data || p + t->n_bytes > data + n_bytes) {
            abort();
        }
    }
    if (config_read_gguf(&c, &q, g, &e) == 0 &&
        (c.n_heads < 1 || c.head_dim < 16 || c.vocab_size < 1)) {
        abort();
    }
    if (spm_from_gguf(&m, g, &e) == 0) {
        spm_fini(&m);
    }
    gguf_close(g);
    return 0;
}
