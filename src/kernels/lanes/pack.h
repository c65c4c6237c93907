/* SPDX-License-Identifier: Apache-2.0 */
/* Packing of bf16 matrices: a checkpoint's own type, where the work is moving 2-byte elements at
 * the speed of memory. The level gives two movers of one block, for whole tiles; everything else
 * goes to the reference.
 *
 * [out, in] (columns adjacent): 16 rows x 32 columns are a 16 x 16 transpose of pairs.
 * [in, out] (rows adjacent): a pair of K is two runs of 16 elements, interleaved. Four tiles are
 * done together, so that a source line of 64 elements is used while it is in the cache. */
#ifndef TERN_KERNELS_LANES_PACK_H
#define TERN_KERNELS_LANES_PACK_H

#include "kernels/ref/ref.h"

#define PACK_COLUMNS 32 /* of a transposed block */
#define PACK_TILES   4

typedef void pack_block_fn(uint16_t *dst, const uint16_t *src, size_t stride_row);
typedef void pack_pair_fn(uint16_t *dst, const uint16_t *even, const uint16_t *odd);

static inline __attribute__((always_inline)) void
lanes_pack(pack_block_fn *block, pack_pair_fn *pair, void *dst, enum weight_format format, int n,
           int k, const void *src, enum dtype src_type, size_t stride_row, size_t stride_col,
           int tile0, int tile1, int tile_step, int tile_offset)
{
    const int whole = n / TILE_N < tile1 ? n / TILE_N : tile1; /* tiles below have all their rows */
    const int fast =
        format == WEIGHT_BF16 && src_type == DTYPE_BF16 && (stride_col == 1 || stride_row == 1);
    int tile = tile0;
    while (fast && tile < whole) {
        const int count = stride_col == 1             ? 1
                          : whole - tile < PACK_TILES ? whole - tile
                                                      : PACK_TILES;
        const uint16_t *from = (const uint16_t *)src + (size_t)tile * TILE_N * stride_row;
        uint16_t *to =
            (uint16_t *)dst + (size_t)(tile * tile_step + tile_offset) * (size_t)k * TILE_N;
        const size_t to_step = (size_t)tile_step * (size_t)k * TILE_N;
        int col = 0;
        if (stride_col == 1) {
            for (; col + PACK_COLUMNS <= k; col += PACK_COLUMNS) {
                block(to + (size_t)col * TILE_N, from + col, stride_row);
            }
            for (; col < k; col++) {
                for (int i = 0; i < TILE_N; i++) {
                    to[col / 2 * 32 + i * 2 + col % 2] = from[(size_t)i * stride_row + (size_t)col];
                }
            }
        } else {
            for (; col < k; col += 2) {
                const uint16_t *even = from + (size_t)col * stride_col;
                for (int i = 0; i < count; i++) {
                    pair(to + (size_t)i * to_step + (size_t)col * TILE_N, even + i * TILE_N,
                         even + i * TILE_N + stride_col);
                }
            }
        }
        tile += count;
    }
    if (tile < tile1) {
        ref_pack(dst, format, n, k, src, src_type, stride_row, stride_col, tile, tile1, tile_step,
                 tile_offset);
    }
}

#endif
