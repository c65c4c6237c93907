/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of the KV cache: one allocation, [layer][block][kv head] tiles as kernels.h lays them out
 * (K then V, each KV head contiguous in a block). Export and import by layer into other block ids
 * are copies of whole tiles. */
#ifndef TERN_KV_LAYOUT_H
#define TERN_KV_LAYOUT_H

#include "base/err.h"
#include "kernels/kernels.h"
#include <stdint.h>

struct kv_layout {
    enum act_type type;
    enum kv_format format;
    int n_layers, n_kv_heads, head_dim;
    size_t head_bytes;    /* one tile: kv_tile_bytes */
    size_t block_bytes;   /* n_kv_heads * head_bytes: one block of one layer */
    char numerics_id[33]; /* hex; what makes bits comparable between peers; "" if unknown */
};

void kv_layout_init(struct kv_layout *l, enum act_type type, enum kv_format format, int n_layers,
                    int n_kv_heads, int head_dim);
size_t
kv_layout_token_block_bytes(const struct kv_layout *l); /* all layers of one 16-token block */

struct kv_store;
int kv_store_open(struct kv_store **out, const struct kv_layout *l, int n_blocks, struct err *e);
void kv_store_close(struct kv_store *s);
const struct kv_layout *kv_store_layout(const struct kv_store *s);
int kv_store_n_blocks(const struct kv_store *s);
void *kv_store_tile(const struct kv_store *s, int layer, int block, int head);
void kv_store_copy_block(struct kv_store *s, int dst_block,
                         int src_block); /* all layers: copy on write */
/* Raw bytes of one layer of a block, n_kv_heads * head_bytes. */
void kv_store_export(const struct kv_store *s, int layer, int block, void *out);
void kv_store_import(struct kv_store *s, int layer, int block, const void *in);

#endif
