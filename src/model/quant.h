/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix that a file stores quantized, and reading it code by code into what the kernels pack
 * (weight_pack_tile of kernels.h): natural order of rows, one code a byte, a scale and perhaps a
 * zero point per group of columns. Nothing is rounded on the way: codes stay codes, and a scale
 * stays the number that the file has.
 *
 *   layout            codes                                    scales            W
 *   QUANT_AWQ_GEMM    i32 [in, out/8], nibbles 0 2 4 6 1 3 5 7  [in/g, out]       (q - z) s
 *   QUANT_GPTQ_ROWS   i32 [in/8, out], nibbles along in         [in/g, out]       (q - z) s
 *   QUANT_CT_PACKED   i32 [out, in/8], nibbles along in, +8     [out, in/g]       (q - z) s
 *                     (both with 8 bits: 4 bytes a word, +128)
 *   QUANT_CT_INT8     i8  [out, in]                             [out, 1]          q s
 *   QUANT_CT_FP8      E4M3, E5M2 [out, in]                      [out, 1], [1]     q s
 *   QUANT_FP8_BLOCK   E4M3, E5M2 [out, in]                      [out/128, in/128] q s
 *   QUANT_WINT2       u8 [in/4, out], one byte 4 inputs         u8 [in/128, out]: two 4-bit scales
 *                     of 64 inputs, the first in the high nibble; super_scales [out], f32 code_scale
 *                     and code_zp [out] (kernels.h: C2)                           window s
 *   QUANT_BLOCKS      Q8_0, Q4_0: 32 along in                   in the block      q s
 *                     Q4_K, Q5_K, Q6_K: 256, scales of two levels                 q s - m, Q6_K: q s
 *
 * Zero points: AWQ as the codes, [in/g, out/8]; GPTQ nibbles (bytes) along out, one less in v1;
 * compressed-tensors i32 [out/8, in/g], nibbles (bytes) along out, +8 (+128). */
#ifndef TERN_MODEL_QUANT_H
#define TERN_MODEL_QUANT_H

#include "kernels/kernels.h"
#include "model/quant_config.h"
#include "model/tensor.h"

struct quant_matrix {
    enum quant_layout layout;
    int rows, cols;
    const struct tensor *codes, *scales, *zeros; /* zeros NULL: none; QUANT_BLOCKS has codes only */
    const struct tensor *subs, *grid[2]; /* QUANT_WINT2: weight_scale, code_scale, code_zp */
    enum weight_format format;           /* what the codes are */
    enum dtype scale_type;
    int group;            /* columns that share a scale in the file; cols: all of a row */
    int super;            /* columns that share a super-scale; 0: one level */
    int has_offset;       /* and super-offset */
    int per_tensor;       /* one scale */
    int zero_offset;      /* added to stored zero points */
    const int32_t *order; /* [cols] column that is read for place j (by groups); NULL: j itself */
    enum quant_act act;
    float input_scale; /* of the activations, from the file; 0: found for each row */
};

/* What a packed matrix must be to hold the matrix exactly: format, group, has_zero, scale_type,
 * super and has_offset of *w are set. Called for each part of a fused matrix, it widens *w as far
 * as needed (smaller groups, wider scales, 6 or 8 bits for 4). 0 when no format holds them all.
 * `first`: *w says nothing yet. */
int quant_fit(struct weight *w, const struct quant_matrix *m, int first);

/* Rows row0 .. row0+n (n <= 16) as *w (made by quant_fit) wants them: codes [n][cols], scales
 * [n][groups of w], zeros the same (w->has_zero). A scale that is no finite number, or a code that
 * stands for none, is refused. With w->super, scales are [n][weight_supers] and quant_read_levels
 * has the rest. */
int quant_read_rows(const struct quant_matrix *m, const struct weight *w, int row0, int n,
                    uint8_t *codes, float *scales, uint8_t *zeros, struct err *e);
int quant_read_levels(const struct quant_matrix *m, const struct weight *w, int row0, int n,
                      const struct weight_levels *out, struct err *e);

#endif
