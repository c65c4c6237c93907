/* SPDX-License-Identifier: Apache-2.0 */
/* Names of tensors in a GGUF file of ERNIE 4.5, as llama.cpp's converter writes them. */
#include "model/checkpoint_find.h"

#include <stdio.h>
#include <string.h>

/* GGUF, plain; of a layer when they begin with a dot. */
static const char *const names[][2] = {
    {"token_embd.weight", "embed_tokens.weight"},
    {"output_norm.weight", "norm.weight"},
    {"output.weight", "lm_head.weight"},
    {".attn_norm.weight", ".input_layernorm.weight"},
    {".ffn_norm.weight", ".post_attention_layernorm.weight"},
    {".attn_q.weight", ".self_attn.q_proj.weight"},
    {".attn_k.weight", ".self_attn.k_proj.weight"},
    {".attn_v.weight", ".self_attn.v_proj.weight"},
    {".attn_output.weight", ".self_attn.o_proj.weight"},
    {".ffn_gate.weight", ".mlp.gate_proj.weight"},
    {".ffn_up.weight", ".mlp.up_proj.weight"},
    {".ffn_down.weight", ".mlp.down_proj.weight"},
};

static const char *translate(char *out, size_t n_bytes, const char *name, const char *stem,
                             const char *other_stem, int from)
{
    size_t n = strlen(stem);
    const char *rest = strncmp(name, stem, n) == 0 ? strchr(name + n, '.') : NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *a = names[i][from], *b = names[i][!from];
        if (a[0] != '.' && strcmp(name, a) == 0) {
            return b;
        }
        if (a[0] == '.' && rest != NULL && strcmp(rest, a) == 0) {
            snprintf(out, n_bytes, "%s%.*s%s", other_stem, (int)(rest - name - (ptrdiff_t)n),
                     name + n, b);
            return out;
        }
    }
    return name;
}

const char *gguf_plain_name(char *out, size_t n_bytes, const char *name)
{
    return translate(out, n_bytes, name, "blk.", "layers.", 0);
}

const char *gguf_own_name(char *out, size_t n_bytes, const char *plain)
{
    return translate(out, n_bytes, plain, "layers.", "blk.", 1);
}
