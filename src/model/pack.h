/* SPDX-License-Identifier: Apache-2.0 */
/* model.tern: the packed matrices of a model as they lie in memory, so that starting is mapping a
 * file. The tiles are those of kernels.h, the same on every level and for every number of threads;
 * processes that serve the same file share its pages. All numbers are little-endian:
 *
 *   at               what
 *   0                struct pack_header
 *   PACK_RECORDS_AT  one struct pack_record a matrix: qkv, o, gate_up, down of each layer, then the
 *                    embedding and (untied) the head
 *   then, each at a multiple of 64: norms, fp32 [2 n_layers + 1][hidden]; act-order columns, int32
 *                    [n_order]; for each tile of an ordered matrix where its order begins, int32
 *                    [n_tiles]
 *   data_at          data_bytes of tiles, at a multiple of 2 MiB
 *
 * A file of another layout version, of another size, with numbers that don't fit config.json, or
 * whose bytes have another hash than when they were written is refused. */
#ifndef TERN_MODEL_PACK_H
#define TERN_MODEL_PACK_H

#include "model/model.h"
#include "model/weights.h"

#define PACK_FILE       "model.tern"
#define PACK_VERSION    4 /* of this file and of the tiles in kernels.h */
#define PACK_RECORDS_AT 512

struct pack_header {
    char magic[8]; /* TERNPACK */
    uint32_t version, n_layers, vocab_size, hidden_size, intermediate_size, n_heads, n_kv_heads,
        head_dim, tied, method; /* enum quant_method */
    uint64_t file_bytes, data_at, data_bytes, n_order, n_tiles, n_params, bytes_per_token;
    struct hash128 head_hash; /* of all before data_at, this field being 0 */
    struct hash128 data_hash; /* weights.data_hash */
    char stored[16];          /* "bfloat16", "F8_E4M3", …: type of the embedding in the source */
};

struct pack_record {
    int32_t format, n, k, group, super, has_zero, has_offset, scale_type,
        asked /* enum quant_act */, ordered;
    float input_scale;
};

struct pack;

int pack_is_there(const char *dir);
/* Maps the head of the file and checks it; c->tied is set, the rest of c must agree. */
int pack_open(struct pack **out, const char *dir, struct model_config *c, struct err *e);
void pack_close(struct pack *p);
const struct pack_header *pack_head(const struct pack *p);
/* As weights_plan, from the records. */
int pack_plan(const struct pack *p, struct weights *w, const struct weights_options *o,
              struct err *e);
/* Maps the tiles and makes w what weights_load makes it. p must outlive w. */
int pack_load(struct pack *p, struct weights *w, const struct model_config *c,
              const struct weights_options *o, const struct kernels *k, struct cpu_pool *pool,
              struct err *e);
/* Refuses what can't be packed: a model that is packed already. */
int pack_check(const struct model *m, struct err *e);
/* Writes a loaded model to a file that must not exist; *n_bytes is its size. */
int pack_write(const struct model *m, const char *path, uint64_t *n_bytes, struct err *e);

#endif
