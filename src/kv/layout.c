/* SPDX-License-Identifier: Apache-2.0 */
/* The KV bytes: one anonymous mapping, [layer][block][kv head] tiles.
 *
 * A layer is the outer dimension, so that the forward pass of one layer walks one region and a
 * transfer by layer is a copy of whole tiles. Nothing is touched here: the mapping is zero pages
 * until a row is written, so resident memory follows use, up to the size that was reserved. Owner:
 * the engine thread (the forward's workers write disjoint slots of it inside a step). */
#include "kv/layout.h"

#include <stdlib.h>
#include <string.h>

struct kv_store {
    struct kv_layout layout;
    int n_blocks;
    size_t n_bytes;
    char *base;
};

void kv_layout_init(struct kv_layout *l, enum act_type type, enum kv_format format, int n_layers,
                    int n_kv_heads, int head_dim)
{
    memset(l, 0, sizeof *l);
    l->type = type;
    l->format = format;
    l->n_layers = n_layers;
    l->n_kv_heads = n_kv_heads;
    l->head_dim = head_dim;
    l->head_bytes = kv_tile_bytes(format, type, head_dim);
    l->block_bytes = (size_t)n_kv_heads * l->head_bytes;
}

size_t kv_layout_token_block_bytes(const struct kv_layout *l)
{
    return (size_t)l->n_layers * l->block_bytes;
}

int kv_store_open(struct kv_store **out, const struct kv_layout *l, int n_blocks, struct err *e)
{
    *out = NULL;
    if (n_blocks < 1 || l->n_layers < 1 || l->block_bytes == 0) {
        return err_set(e, ERR_INVALID, "KV store: %d blocks of %d layers", n_blocks, l->n_layers);
    }
    struct kv_store *s = calloc(1, sizeof *s);
    if (!s) {
        return err_set(e, ERR_NOMEM, "KV store: out of memory");
    }
    s->layout = *l;
    s->n_blocks = n_blocks;
    s->n_bytes = (size_t)n_blocks * kv_layout_token_block_bytes(l);
    s->base = cpu_big_alloc(s->n_bytes);
    if (!s->base) {
        err_set(e, ERR_NOMEM, "KV store: the system refused %.2f GiB for %d blocks",
                (double)s->n_bytes / (1024.0 * 1024.0 * 1024.0), n_blocks);
        free(s);
        return ERR_NOMEM;
    }
    *out = s;
    return 0;
}

void kv_store_close(struct kv_store *s)
{
    if (!s) {
        return;
    }
    cpu_big_free(s->base, s->n_bytes);
    free(s);
}

const struct kv_layout *kv_store_layout(const struct kv_store *s)
{
    return &s->layout;
}

int kv_store_n_blocks(const struct kv_store *s)
{
    return s->n_blocks;
}

static char *block_at(const struct kv_store *s, int layer, int block)
{
    return s->base + ((size_t)layer * (size_t)s->n_blocks + (size_t)block) * s->layout.block_bytes;
}

void *kv_store_tile(const struct kv_store *s, int layer, int block, int head)
{
    return block_at(s, layer, block) + (size_t)head * s->layout.head_bytes;
}

void kv_store_copy_block(struct kv_store *s, int dst_block, int src_block)
{
    for (int layer = 0; layer < s->layout.n_layers; layer++) {
        memcpy(block_at(s, layer, dst_block), block_at(s, layer, src_block), s->layout.block_bytes);
    }
}

void kv_store_export(const struct kv_store *s, int layer, int block, void *out)
{
    memcpy(out, block_at(s, layer, block), s->layout.block_bytes);
}

void kv_store_import(struct kv_store *s, int layer, int block, const void *in)
{
    memcpy(block_at(s, layer, block), in, s->layout.block_bytes);
}
