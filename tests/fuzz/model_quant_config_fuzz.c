/* SPDX-License-Identifier: Apache-2.0 */
/* Any JSON as quantization_config: refused, or schemes in range for every layer. */
#include "base/json.h"
#include "model/quant_config.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static const char *const layers[] = {"model.layers.0.self_attn.q_proj",
                                         "model.layers.11.mlp.down_proj", "lm_head"};
    struct json *doc = NULL;
    struct quant_config q;
    struct err e = {0};
    if (json_parse(&doc, (const char *)data, n_bytes, JSON_DEPTH_DEFAULT, &e) < 0) {
        return 0;
    }
    if (quant_config_read(&q, doc, "fuzz", "quantization_config", &e) == 0) {
        for (int i = 0; i < 3; i++) {
            const struct quant_scheme *s = quant_config_for(&q, layers[i]);
            if (s != NULL && (s->group < 0 || s->group % 32 != 0 || s->layout == QUANT_PLAIN)) {
                abort();
            }
        }
        quant_config_fini(&q);
    } else if (e.text[0] == '\0') {
        abort();
    }
    json_free(doc);
    return 0;
}
