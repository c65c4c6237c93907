/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table. Kernels take pointers and sizes only, allocate nothing, and keep no state.
 *
 * This comment and kernels/ref define the bits; every other implementation must equal the reference
 * bit for bit (tests/kernels/kcheck.c compares), for every M, tile range and thread count:
 *
 *  - Floating-point mode: round to nearest even, denormal inputs and results are zero
 *    (cpu_set_numeric_mode; the reference flushes explicitly, so that it needs no mode). No
 *    contraction other than the fma written.
 *  - GEMM: each output is ONE fp32 chain from +0 over ascending pairs of K:
 *        acc = fma(a[2j], w[2j], fma(a[2j+1], w[2j+1], acc))
 *    which is what VDPBF16PS computes. K is even. A K block stores and reloads the chain, never
 *    sums blocks.
 *  - Sums over a row (norm, softmax): 16 lanes, lane i sums elements i, i+16, … ascending
 *    (norm: acc = fma(x, x, acc); softmax: acc += p), then lanes are folded 8, 4, 2, 1:
 *    lane[i] += lane[i + half].
 *  - exp: kernel_exp of ref/math.h, elementwise; exp(0) == 1, exp(-inf) == 0. 1/sqrt is an IEEE
 *    division and sqrt.
 *  - To bf16: round to nearest even; NaN stays (quiet) NaN.
 *
 * Activations are bf16 (ACT_BF16) or fp32 (ACT_F32). In fp32 nothing below is rounded to bf16.
 *
 * Packed weights (for y = W x, W [n, k] row-major in the usual notation, k even):
 *   tile t holds rows 16t .. 16t+15; inside, pair j of K is one group of 16 x 2 elements:
 *   element (row n, k) is at  ((n/16) * (k_total/2) + k/2) * 32 + (n%16) * 2 + k%2
 *   Missing rows of the last tile are zeros. WEIGHT_BF16 has 2-byte elements (a pair-group is one
 *   64-byte line), WEIGHT_F32 4-byte ones. Base addresses are 64-byte aligned.
 *
 * Quantized weights and activations: the second comment below.
 *
 * KV tile (one block of 16 positions, one KV head), KV_ACT: element type = activation type, 64-byte
 * aligned (8 bits: the third comment below):
 *   K: element (position p, dim d) at (d/2) * 32 + p * 2 + d%2                [head_dim/2][16][2]
 *   V: element (position p, dim d) at (d/16) * 256 + (p/2) * 32 + d%16 * 2 + p%2   [head_dim/16][8][16][2], after K
 *   so a tile has 2 * 16 * head_dim elements.
 *
 * Attention of one query row (one head) over positions 0..pos: positions are cut in partitions of
 * ATTN_PARTITION, aligned to absolute positions. Inside a partition, with
 * s_j = chain(q, k_j) * scale (chain as in GEMM over head_dim):
 *   m      = max s_j (j visible)
 *   p_j    = exp(s_j - m)
 *   l      = 16-lane sum of p_j (lane = j % 16, unrounded p_j)
 *   acc[d] = chain over ascending pairs of positions of (round(p_j), v_j[d])
 *            (round: to activation type)
 * Positions that are not visible have p_j = 0 and v_j = 0 by selection (their memory may hold NaN).
 * Then acc[d] += +0.0f (so that a zero has one sign). Partitions are merged in ascending order:
 *   M' = max(M, m);  a = exp(M - M');  b = exp(m - M');  L = fma(l, b, L * a);
 *   A[d] = fma(acc[d], b, A[d] * a)
 * starting from the first partition's (m, l, acc) itself; a later one with m = -inf (nothing
 * visible) is passed over. Result: round(A[d] / L).
 */
#ifndef TERN_KERNELS_KERNELS_H
#define TERN_KERNELS_KERNELS_H

#include "cpu/cpu.h"
#include <stddef.h>
#include <stdint.h>

/* clang-format off */
/* Quantized weights (WEIGHT_I8, _I6, _I4, _C2, WEIGHT_F8_E4M3, WEIGHT_F8_E5M2) stand for
 *     W[n, k] = s[n, g] * v[n, k] (+ o[n, g]),   g = k / group,   v = code - zero (integers) or the fp8 value.
 * k is a multiple of 8 (I6: 16); group is 32, 64, 128, for I8 and I6 also 16, or >= k: one group per row. The
 * last group may be shorter.
 * With G = ceil(k / group) groups:
 *   codes  one byte c per element, unsigned:  I8: v = c - 128, or with zero points v = c - z[n, g],
 *          z = 0..255.  I6: c = 0..63, v = c - 32.  I4: c = 0..15, v = c - 8, with offsets v = c, or
 *          v = c - z[n, g] with zero points z = 0..16.  F8: the bits of the number; no code of
 *          NaN or infinity may occur: a loader refuses them.
 *          C2, the 2-bit convolutional code: a byte b for four columns k = 4j .. 4j+3. Each column is a window
 *          of 6 bits, 3 further than its neighbour's, of a number of 15 bits; the 256 numbers that a row uses
 *          lie on a grid of its own (fp32, every operation rounded):
 *            x = floor(b * grid[n, 0] + grid[n, 1] + 0.5f),   v of column 4j+i = (x >> (9 - 3i) & 63) - 32
 *          Four bytes of codes of natural order stand for such a group: b 0 0 0.
 *   With `super` columns that share a super-scale (scales in two levels; I6, I4, C2; 0: none):
 *          s[n, g] = sub[n, g] * scale[n, k / super], sub an integer of -128..127, and with has_offset (I6, I4)
 *          o[n, g] = sub_offset[n, g] * offset[n, k / super]: exact products, with the scales of the files.
 *   tile t is one run of weight_tile_bytes() bytes, each part padded with zeros to 64:
 *     codes  per 8 columns 128 bytes (I4: 64). With p(k) = k % 4 * 2 + k % 8 / 4, that is the order
 *            0 4 1 5 2 6 3 7 of columns, element (row r = n % 16, k) is
 *              I8, F8: byte  k/8 * 128 + p/4 * 64 + r * 4 + p%4
 *              I4:     byte  k/8 * 64 + r * 4 + p%4, low nibble for p < 4, high nibble for p >= 4
 *              I6:     low four bits as I4 at byte k/16 * 192 + k/8%2 * 64 + …; the upper two at byte
 *                      k/16 * 192 + 128 + r * 4 + p%4, bits 2 * (k/8%2 * 2 + p/4)
 *              C2:     byte  k/8 * 32 + k%8/4 * 16 + r
 *            so that a 64-byte line is what VPDPBUSD takes, and masked 16-bit halves of a line's
 *            32-bit lanes are pairs (2j, 2j+1) of K.
 *     grid   [2][16] fp32, only C2
 *     scales [G][16] of type scale_type (exact as the file has them: bf16, f16 or fp32)
 *            with super: sub [G][16] bytes, each 128 more, then scale [ceil(k/super)][16] of type scale_type
 *     zeros  [G][16] bytes, only with has_zero
 *     offsets with has_offset: sub_offset and offset, like sub and scale
 *   I8, I4 and F8 with scales of one level and more than one group: a tile is cut into sections of 4
 *   groups (of 16 columns: 8), so that a product reads one stream. Each section is its scales, its
 *   zeros, its codes, every part as long as in a whole one but for the codes of the last.
 *   I6 and I4 with super-scales of 256 columns, of which there are more: sections of 512 columns, each
 *   its scale, with offsets its offset, its sub, with offsets its sub_offset, its codes.
 *   Rows that don't exist have codes of v = 0 (I8 128, I6 32, I4 8 or z, C2 and F8 0), scales 0 and zeros 0.
 * With `order`, column j of the packed matrix is meant for activation column order[tile][j]
 * (act-order of GPTQ: sort columns by group); only with INPUT_ACT.
 *
 * What such a matrix is multiplied with is fixed at load by weight.input:
 *   INPUT_ACT  activations as they are ("weight only"). Per group a chain from +0 as in GEMM over
 *              the pairs (a, v), which are exact; then one fma. Over ascending groups, from +0:
 *                acc = fma(chain_g, s[n, g], acc),   with offsets then   acc = fma(asum_g, o[n, g], acc)
 *              where asum_g is the 16-lane sum (as of a norm: acc += x) of the group's activations.
 *   INPUT_I8   rows of quantize(): integer codes q with sa[g] per row and group of the weight.
 *                isum_g = sum of q * v, an exact int32;  acc = fma((float)isum_g, s[n, g] * sa[g], acc)
 *              with offsets then acc = fma((float)qsum_g, o[n, g] * sa[g], acc), qsum_g the sum of q.
 *              ((float) rounds to nearest even.) Not for F8.
 *   INPUT_E4M3, INPUT_E5M2   rows of quantize(): fp8 values f with sa[g]. F8 only.
 *                acc = fma(chain_g over (f, v), s[n, g] * sa[g], acc)
 * One row of quantize() (input_row_bytes() bytes, a multiple of 64; address 64-byte aligned), parts
 * padded with zeros to 64:
 *   I8:   int8 codes, column k at byte k/8 * 8 + p(k); fp32 sa[G]; int32 sum of the codes of each group
 *   fp8:  bf16 f[k];  fp32 sa[G]
 * with, per row and group, amax = max |x|:
 *   I8:   sa = max(amax / 127, 1e-12f);  code = round to nearest even of x / sa  (|code| <= 127)
 *   fp8:  sa = max(amax / MAX, 1e-12f) for one group per row, max(amax, 1e-4f) / MAX otherwise,
 *         MAX 448 or 57344;  f = x / sa rounded to nearest even to fp8, at most +-MAX
 *   With a fixed scale s (weight.input_scale) sa = s, and codes of I8 are at least -128, at most 127.
 *   If x has a NaN or an infinity there: sa = NaN, codes and f = 0.
 * Divisions are IEEE; sa of a group stays the one division, no reciprocal.
 */
/* clang-format on */

/* clang-format off */
/* KV tiles of 8 bits (KV_F8_E4M3, KV_F8_E5M2, KV_I8) hold, per position and head, codes c of v and one
 * scale s, both for K and for V:
 *     k[d] = sk * v(c)     v(d) = sv * v(c)
 *   c   one byte: a sign (bit 7) and a magnitude: the bits of the fp8 number, or 0..127 for I8
 *   at(i, j) = j/4 * 64 + i/4 * 16 + j%4/2 * 8 + i%4 * 2 + j%2      i: lane 0..15, j: what is summed over
 *   K:  code (position p, dim d) at byte at(p, d)                            [head_dim/4][64]
 *   V:  code (p, d) at byte 16 * head_dim + d/16 * 256 + at(d % 16, p)       [head_dim/16][4][64]
 *   then bf16 sk[16], sv[16]
 *   so that a 64-byte line is two lines of pairs of the 16-bit tile, their 16-byte lanes' halves apart
 *   (what VPUNPCKLBW and VPUNPCKHBW of its low and its high bytes give), and a tile has
 *   32 * head_dim + 64 bytes.
 * What is stored is the head's vector x after rotation, in fp32, without a rounding between:
 *   s = bf16(max(max |x| / MAX, 1e-12f)), MAX 448, 57344, 127
 *   c = the sign bit of x, and |x / s| rounded to nearest even, at most MAX
 *   If x has a NaN or an infinity: s = NaN, codes 0.
 * Attention multiplies codes, which are exact in bf16, and scales what comes out or goes in:
 *   s_j    = chain(q, v(ck_j)) * (sk_j * scale)
 *   acc[d] = chain of (round(p_j * sv_j), v(cv_j[d]))       l sums p_j itself
 */
/* clang-format on */

#define TILE_N          16  /* rows of W in a packed tile */
#define PANEL_TILES     4   /* tiles that a product computes at a time */
#define KV_BLOCK_TOKENS 16  /* positions in a KV block */
#define ATTN_PARTITION  256 /* positions in a partition; a multiple of KV_BLOCK_TOKENS */
#define MAX_HEAD_DIM    256 /* head_dim is a multiple of 16, at most this */

enum act_type { ACT_BF16, ACT_F32, ACT_TYPE_COUNT };
enum weight_format {
    WEIGHT_BF16,
    WEIGHT_F32,
    WEIGHT_DENSE_COUNT, /* the ones below are quantized */
    WEIGHT_I8 = WEIGHT_DENSE_COUNT,
    WEIGHT_I6,
    WEIGHT_I4,
    WEIGHT_C2,
    WEIGHT_F8_E4M3,
    WEIGHT_F8_E5M2,
    WEIGHT_FORMAT_COUNT
};
enum input_format { INPUT_ACT, INPUT_I8, INPUT_E4M3, INPUT_E5M2, INPUT_FORMAT_COUNT };
enum kv_format { KV_ACT, KV_F8_E4M3, KV_F8_E5M2, KV_I8, KV_FORMAT_COUNT };
enum dtype { DTYPE_BF16, DTYPE_F16, DTYPE_F32 }; /* element types of checkpoint tensors */

size_t act_size(enum act_type t); /* bytes per element: 2, 4 */
size_t dtype_size(enum dtype t);
size_t kv_tile_bytes(enum kv_format f, enum act_type t, int head_dim); /* a multiple of 64 */

/* A packed matrix as the GEMMs take it. */
struct weight {
    enum weight_format format;
    int n, k;         /* logical rows (outputs) and columns (inputs, even) */
    const void *data; /* weight_bytes() bytes, 64-byte aligned */
    /* Quantized formats only: */
    enum input_format input;
    enum dtype scale_type;
    int group;                   /* columns that share a scale */
    int has_zero;                /* WEIGHT_I4, WEIGHT_I8 */
    int super;                   /* columns that share a super-scale, 0: scales of one level */
    int has_offset;              /* with super */
    float input_scale;           /* of I8, E4M3, E5M2 rows, from the file; 0: one a row and group */
    const int32_t *const *order; /* NULL, or per tile the [k] activation columns */
};

/* All but data and order must be set. */
size_t weight_tile_bytes(const struct weight *w); /* a multiple of 64 */
size_t weight_bytes(const struct weight *w);      /* of all tiles */
static inline int weight_is_quantized(const struct weight *w)
{
    return w->format >= WEIGHT_DENSE_COUNT;
}
static inline int weight_groups(const struct weight *w)
{
    return w->group >= w->k ? 1 : (w->k + w->group - 1) / w->group;
}
static inline int weight_supers(const struct weight *w)
{
    return w->super >= w->k ? 1 : (w->k + w->super - 1) / w->super;
}
/* Where the parts of a tile begin, in bytes from its start (a part that isn't there: where it would).
 * With sections: the parts of the first one. end is the tile's. */
struct weight_parts {
    size_t codes, grid, scales, supers, zeros, offsets, super_offsets, end;
    size_t section_bytes;             /* from one section to the next, 0: the tile is one */
    unsigned group_bits, column_bits; /* a section has 2^group_bits groups, 2^column_bits columns */
    unsigned column_bytes;            /* bytes of codes of one column of 16 rows */
};
struct weight_parts weight_parts(const struct weight *w);
/* Bytes from a tile's start to the codes of column k (a multiple of 8; I6: of 16); they go on for the
 * rest of its section. */
static inline size_t weight_column_at(const struct weight_parts *p, int k)
{
    const unsigned section = (unsigned)k >> p->column_bits;
    return p->codes + section * p->section_bytes +
           (size_t)((unsigned)k - (section << p->column_bits)) * p->column_bytes;
}
/* Bytes from a part of the first section to that of group's, and the group's place in there. */
static inline size_t weight_section_at(const struct weight_parts *p, int group)
{
    return (size_t)((unsigned)group >> p->group_bits) * p->section_bytes;
}
static inline size_t weight_group_in_section(const struct weight_parts *p, int group)
{
    return (unsigned)group & ((1u << p->group_bits) - 1);
}
/* The place there of the super-scale of a group; super_groups: of them share one. */
static inline size_t weight_super_in_section(const struct weight_parts *p, int group,
                                             int super_groups)
{
    return weight_group_in_section(p, group) / (unsigned)super_groups;
}
/* NULL, or what a struct weight has that no kernel takes (a shape, a group, a combination): a
 * loader's check before weight_bytes. */
const char *weight_unsupported(const struct weight *w);

/* Writes one tile of a quantized matrix from natural order: codes [rows][k] one byte each as
 * defined above, scales [rows][G] (fp32 that scale_type holds exactly; with super
 * [rows][weight_supers]), zeros [rows][G] (has_zero; else NULL). rows is 1..16; the rest is filled.
 * Tiles may be written from several threads. */
void weight_pack_tile(const struct weight *w, int tile, const uint8_t *codes, size_t ld_codes,
                      const float *scales, size_t ld_scales, const uint8_t *zeros, size_t ld_zeros,
                      int rows);
/* The rest of a tile of a format with super: all [rows][…] without gaps; what a format doesn't have
 * is NULL. */
struct weight_levels {
    int8_t *sub, *sub_offset; /* [rows][G] */
    float *offset;            /* [rows][weight_supers] */
    float *grid;              /* [rows][2] */
};
void weight_pack_levels(const struct weight *w, int tile, const struct weight_levels *from,
                        int rows);
/* The inverse of weight_pack_tile: what rows 0 .. rows of a tile hold. zeros may be NULL. */
void weight_unpack_tile(const struct weight *w, int tile, uint8_t *codes, size_t ld_codes,
                        float *scales, size_t ld_scales, uint8_t *zeros, size_t ld_zeros, int rows);
/* Quantizes tiles tile0 .. tile1 of a source matrix of n rows (view as in kernels.pack, w->k
 * columns) into tiles t * tile_step + tile_offset. amax is taken over a group of columns of
 * block_rows rows (1, or 128: the blocks of FP8 checkpoints, from row 0 of the source):
 *   I8:  s = amax / 127;  c = 128 + round half away(x / s), clipped to +-127
 *   I4:  s = (the x of largest magnitude, the first of equals) / -8;  c = 8 + round half even(x /
 * s), clipped to 0..15. With has_zero: lo = min(x, 0), hi = max(x, 0); s = max((hi - lo) / 15,
 *        1e-8f); z = round half even(-lo / s) and c = z + round half even(x / s), both clipped to
 *        0..15
 *   F8:  s = max(amax, 1e-4f) / MAX; c = nearest even of x / s, at most +-MAX
 * s is rounded to bf16 when scale_type is bf16 (f16, f32: to that) before it divides; s = 0 gives
 * v = 0. NaN and infinities of x count as 0. */
void weight_quantize(const struct weight *w, int n, const void *src, enum dtype src_type,
                     size_t stride_row, size_t stride_col, int block_rows, int tile0, int tile1,
                     int tile_step, int tile_offset);

/* Bytes of one row of quantize(). */
size_t input_row_bytes(enum input_format f, int k, int group);

/* One query tile of attention: n_q query vectors that share a KV head (query heads of the group x
 * rows). */
struct attn_part {
    const void *q; /* [n_q][head_dim], activation type, 64-byte aligned rows */
    int n_q;       /* 1..ATTN_MAX_Q */
    int head_dim;
    float scale;
    const int32_t *visible; /* [n_q] visible positions inside this partition, 0..ATTN_PARTITION; 0:
                               m = -inf, l = 0, acc = 0 */
    enum kv_format kv;
    const void *const
        *tiles; /* KV tiles of this partition's blocks, ceil(max visible / 16) of them */
    const void *const *next; /* n_next tiles that the caller will ask for next: to be prefetched */
    int n_next;
    float *m, *l;   /* out [n_q] */
    float *acc;     /* out [n_q][head_dim], 64-byte aligned */
    float *scratch; /* ATTN_SCRATCH_FLOATS floats, 64-byte aligned */
};
#define ATTN_MAX_Q 64
/* Scores and widened queries; K and V of 8 bits as bf16, or a tile of them as fp32. */
#define ATTN_SCRATCH_FLOATS                                                                        \
    (ATTN_MAX_Q * (ATTN_PARTITION + MAX_HEAD_DIM) + ATTN_PARTITION * (MAX_HEAD_DIM + 2))

/* Where rows of a step write their K and V, and how they rotate: shared by the fused and unfused
 * QKV ops. */
struct qkv_rows {
    int n_heads, n_kv_heads, head_dim;
    const float *rope; /* [rows][head_dim/2][2] cos, sin */
    void *q;           /* out [rows][n_heads * head_dim], activation type */
    size_t ldq;        /* elements */
    void *const *
        kv_tile; /* [rows] tile of KV head 0 in this layer for the row's block; NULL: don't write */
    enum kv_format kv;
    size_t kv_head_bytes; /* distance to the next head's tile */
    const int32_t *slot;  /* [rows] position inside the block, 0..15 */
};

/* All functions are bit-exact against kernels/ref. `act` pointers: uint16_t bf16 bits or float, by
 * the table row. The `a` of a GEMM whose weight has an input other than INPUT_ACT points to rows of
 * quantize(), and lda is then in bytes. */
struct act_kernels {
    /* ---- unfused: the eager path ---- */
    /* x[m][hidden] = W[ids[i]] of a packed matrix (the tied embedding). Converts to the activation
     * type; quantized: round(v * s), or round(fma(v, s, o)). */
    void (*embed)(void *x, size_t ldx, const struct weight *w, const int32_t *ids, int m);
    /* out = round(x * (1/sqrt(mean(x^2) + eps)) * w): fp32 throughout, one rounding: (x * r) * w. w
     * is fp32 [n]. */
    void (*rmsnorm)(void *out, size_t ldo, const void *x, size_t ldx, const float *w, float eps,
                    int m, int n);
    /* c[m][(tile1-tile0)*16] = a[m][k] W^T for rows tile0*16 .. tile1*16 of W; c points at column
     * tile0*16; the columns of a last partial tile are written too (zeros). c rows need room for
     * whole tiles. */
    void (*gemm)(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                 int tile0, int tile1);
    /* Rotates heads head0 .. head1 of [q | k] (fp32, pairs (2i, 2i+1): e' = e*c - o*s, o' = o*c +
     * e*s, each fma(e, c, -(o*s)) and fma(o, c, e*s)), rounds, writes q heads to r->q and k heads
     * into the KV tile; heads n_heads+n_kv_heads .. n_heads+2*n_kv_heads are v: rounded and
     * written, not rotated. qkv points at head0's first column; ldqkv in floats. */
    void (*rope_store)(const float *qkv, size_t ldqkv, const struct qkv_rows *r, int m, int head0,
                       int head1);
    void (*attn_part)(const struct attn_part *p);
    /* Merges n_parts partial results (part p at m + p*stride_ml, l + p*stride_ml, acc +
     * p*stride_acc, for n_q vectors) in ascending order and writes round(A / L) to out rows of
     * head_dim at stride ldo elements. */
    void (*attn_merge)(void *out, size_t ldo, const float *m, const float *l, size_t stride_ml,
                       const float *acc, size_t stride_acc, int n_parts, int n_q, int head_dim);
    /* out = round(silu(g) * u), silu(g) = g / (1 + exp(-g)); n columns. */
    void (*swiglu)(void *out, size_t ldo, const float *g, size_t ldg, const float *u, size_t ldu,
                   int m, int n);
    /* x = round(x + c) */
    void (*add)(void *x, size_t ldx, const float *c, size_t ldc, int m, int n);
    /* Rows of k activations to rows of input format f (not INPUT_ACT); ldo in bytes. fixed: the
     * scale of all groups, a normal number; 0: found for each. */
    void (*quantize)(void *out, size_t ldo, const void *x, size_t ldx, int m, int k,
                     enum input_format f, int group, float fixed);

    /* ---- fused: the compiled plan; same bits as the unfused sequence ---- */
    /* x[:, tile0*16 ..] = round(x + a W^T); x points at column 0. Only the n logical columns are
     * touched. */
    void (*gemm_add)(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w, int m,
                     int tile0, int tile1);
    /* gate_up is packed with tiles alternating gate, up (tile 2t gate, 2t+1 up); out column block t
     * of 16 for t in [t0, t1) = round(silu(a G^T) * (a U^T)); out points at column 0; n columns (n
     * = w->n / 2 rounded to tiles). */
    void (*gemm_swiglu)(void *out, size_t ldo, const void *a, size_t lda,
                        const struct weight *gate_up, int n, int m, int t0, int t1);
    /* gemm of the fused [q | k | v] matrix for heads head0 .. head1 followed by rope_store, without
     * a round trip. */
    void (*gemm_qkv)(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                     int m, int head0, int head1);
};

#define WEIGH_CHUNK 256

struct kernels {
    enum cpu_level level;
    struct act_kernels act[ACT_TYPE_COUNT];
    /* Packs rows tile0*16 .. tile1*16 of a source matrix into dst. Source element (row, col) is at
     * src + (row * stride_row + col * stride_col) * dtype_size(src_type), so that [out, in], [in,
     * out] and slices of fused matrices are all views. Rounds to bf16 when format is WEIGHT_BF16.
     * dst_tile(t) = t * tile_step + tile_offset places tiles (step 2 for interleaved gate/up). */
    void (*pack)(void *dst, enum weight_format format, int n, int k, const void *src,
                 enum dtype src_type, size_t stride_row, size_t stride_col, int tile0, int tile1,
                 int tile_step, int tile_offset);
    /* One step of attn_merge without its division: merges n_q partial results m2, l2, acc2 into m,
     * l, acc, all laid out as attn_part writes them. attn_merge of what results, as one part, is
     * attn_merge of all. */
    void (*attn_fold)(float *m, float *l, float *acc, const float *m2, const float *l2,
                      const float *acc2, int n_q, int head_dim);
    /* Index of the largest value, the lowest index on ties; NaN never wins unless all are NaN. n >
     * 0. */
    int (*argmax)(const float *x, int n);
    /* max(x) and sum of exp(x - max) in double, lanes as above: for log-softmax of logits. */
    void (*logsumexp)(const float *x, int n, float *max, double *sum);
    /* What drawing from logits adds up: y = x / temperature and w = kernel_weight(y - max), for a
     * max that is the largest y. For each WEIGH_CHUNK entries, the last few included: sum[c] of w in
     * double, lanes as above, and top[c], the largest y, -inf when all are NaN. y and w are both
     * NULL or [n]. */
    void (*weigh)(const float *x, int n, float temperature, float max, float *y, float *w,
                  double *sum, float *top);
};

/* The table for a level this machine has (static storage; NULL for a level it lacks or that isn't
 * built). Each level starts as a copy of the next lower one, functions are overridden upwards. */
const struct kernels *kernels_get(enum cpu_level level);

/* bf16 and f16 <-> fp32 for single values (round to nearest even; NaN stays a quiet NaN). */
float bf16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float f);
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);

#endif
