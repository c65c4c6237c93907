/* SPDX-License-Identifier: Apache-2.0 */
/* Products of quantized weights and bf16 or fp8 activations with VDPBF16PS. The number that a code
 * stands for is exact in bf16, so a block of columns is decoded to bf16 lines, which stay in the L1
 * cache while rows pass over them through the bf16 loop; each group's chain is then scaled into
 * c. */
#include "kernels/x86/avx512_v16.h"

#include "kernels/lanes/quant.h"
#include "kernels/x86/avx512bf16_micro.h"
#include "kernels/x86/x86.h"

#define BLOCK_COLUMNS 256
#define SHORT_COLUMNS 128 /* of few rows: what is written now is read at once */

/* ---- lines of codes to lines of bf16 pairs; x holds two codes in the 16-bit halves of a lane ----
 */

/* Small integers in two's complement of 5 bits. */
static inline __m512i bf16_of_int5(__m512i x)
{
    static const uint16_t table[32] = {
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
        0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130,
        0xc120, 0xc110, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
    return _mm512_permutexvar_epi16(x, _mm512_loadu_si512(table));
}

/* Codes of int8: c - 128. */
static inline __m512i bf16_of_int8(__m512i x)
{
    const __m512i bias = _mm512_set1_epi32(128);
    __m512i even = _mm512_and_si512(x, _mm512_set1_epi32(0xffff)), odd = _mm512_srli_epi32(x, 16);
    even = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_sub_epi32(even, bias)));
    odd = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_sub_epi32(odd, bias)));
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(even, 16), odd);
}

/* The fields move to their place in bf16 and the exponent is rebased; denormals (exponent 0) come
 * from a table. */
static inline __m512i bf16_of_f8(__m512i x, enum weight_format f)
{
    static const uint16_t e4m3[32] = {0x0000, 0x3b00, 0x3b80, 0x3bc0,
                                      0x3c00, 0x3c20, 0x3c40, 0x3c60};
    static const uint16_t e5m2[32] = {0x0000, 0x3780, 0x3800, 0x3840};
    const int is_e4m3 = f == WEIGHT_F8_E4M3;
    const __m512i size = _mm512_and_si512(x, _mm512_set1_epi16(0x7f));
    const __m512i moved = is_e4m3 ? _mm512_slli_epi16(size, 4) : _mm512_slli_epi16(size, 5);
    __m512i v = _mm512_add_epi16(moved, _mm512_set1_epi16((short)((is_e4m3 ? 120 : 112) << 7)));
    const __mmask32 small = _mm512_testn_epi16_mask(x, _mm512_set1_epi16(is_e4m3 ? 0x78 : 0x7c));
    v = _mm512_mask_permutexvar_epi16(v, small, size, _mm512_loadu_si512(is_e4m3 ? e4m3 : e5m2));
    const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(x, _mm512_set1_epi16(0x80)), 8);
    return _mm512_or_si512(v, sign);
}

/* zero: in both halves of each lane. */
static inline __attribute__((always_inline)) __m512i pair_line(__m512i codes, unsigned shift,
                                                               __m512i zero, enum weight_format f)
{
    const __m512i mask = _mm512_set1_epi32(f == WEIGHT_I4 ? 0x000f000f : 0x00ff00ff);
    const __m512i x = _mm512_and_si512(shift ? _mm512_srli_epi32(codes, shift) : codes, mask);
    return f == WEIGHT_I4   ? bf16_of_int5(_mm512_sub_epi16(x, zero))
           : f == WEIGHT_I8 ? bf16_of_int8(x)
                            : bf16_of_f8(x, f);
}

static inline __attribute__((always_inline)) void decode_as(uint16_t *out,
                                                            const struct lanes_quant *q, int tile,
                                                            int from, int count,
                                                            enum weight_format f)
{
    const size_t unit_bytes = f == WEIGHT_I4 ? 64 : 128;
    const uint8_t *p = q->codes + (size_t)tile * q->tile_bytes + (size_t)from / 8 * unit_bytes;
    __m512i zero = _mm512_set1_epi16(8);
    for (int k = 0; k < count; k += 8, p += unit_bytes, out += 8 * TILE_N) {
        const __m512i a = _mm512_load_si512(p);
        const __m512i b = f == WEIGHT_I4 ? a : _mm512_load_si512(p + 64);
        const unsigned high = f == WEIGHT_I4 ? 4 : 0; /* where b's codes begin */
        if (f == WEIGHT_I4 && q->w->has_zero && k % 32 == 0) {
            zero = lanes_quant_zero(q, tile, (from + k) / q->group);
            zero = _mm512_or_si512(zero, _mm512_slli_epi32(zero, 16));
        }
        _mm_prefetch((const char *)(p + LANES_AHEAD_BYTES), _MM_HINT_T0);
        _mm512_store_si512(out, pair_line(a, 0, zero, f));
        _mm512_store_si512(out + 32, pair_line(b, high, zero, f));
        _mm512_store_si512(out + 64, pair_line(a, 8, zero, f));
        _mm512_store_si512(out + 96, pair_line(b, high + 8, zero, f));
    }
}

static void decode(uint16_t *out, const struct lanes_quant *q, int tile, int from, int count)
{
    switch (q->w->format) {
    case WEIGHT_I8:
        decode_as(out, q, tile, from, count, WEIGHT_I8);
        break;
    case WEIGHT_I4:
        decode_as(out, q, tile, from, count, WEIGHT_I4);
        break;
    case WEIGHT_F8_E4M3:
        decode_as(out, q, tile, from, count, WEIGHT_F8_E4M3);
        break;
    default:
        decode_as(out, q, tile, from, count, WEIGHT_F8_E5M2);
        break;
    }
}

static __attribute__((noinline)) void run(int n_rows, const struct micro_args *s)
{
    micro_rows(n_rows, 0, s);
}

/* The decoded block (tiles BLOCK_COLUMNS apart) times up to MICRO_ROWS rows, group by group. */
static void block_rows(float *c, size_t ldc, const uint16_t *decoded, const uint8_t *row,
                       size_t row_bytes, const struct lanes_quant *q, int rows, int n_tiles,
                       int from, int count)
{
    _Alignas(64) float part[MICRO_ROWS * PANEL_TILES * TILE_N];
    const int is_one = q->n_groups == 1, step = is_one ? count : q->group;
    struct micro_args s = {.c = is_one ? c : part,
                           .ldc = is_one ? ldc : PANEL_TILES * TILE_N,
                           .lda = row_bytes / 2,
                           .is_first = !is_one || from == 0};
    for (int at = 0; at < count; at += step) {
        s.a = (const uint16_t *)(const void *)row + from + at;
        s.pairs = (size_t)(count - at < step ? count - at : step) / 2;
        for (int t = 0; t < PANEL_TILES; t++) {
            const size_t tile = t < n_tiles ? (size_t)t : 0;
            s.col[t] = tile * TILE_N;
            s.b[t] = (const char *)(decoded + (tile * BLOCK_COLUMNS + (size_t)at) * TILE_N);
        }
        run(rows, &s);
        if (!is_one || from + count == q->w->k) {
            lanes_scale_chains(c, ldc, s.c, s.ldc, q, (from + at) / q->group, row, row_bytes, rows,
                               n_tiles);
        }
    }
}

void avx512bf16_chains(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                       int m, int tile, int n_tiles)
{
    _Alignas(64) uint16_t decoded[PANEL_TILES * BLOCK_COLUMNS * TILE_N];
    const struct lanes_quant q = lanes_quant_of(w, tile);
    const size_t row_bytes = w->input == INPUT_ACT ? 2 * lda : lda;
    const int n_groups = (m + MICRO_ROWS - 1) / MICRO_ROWS;
    const int block = n_groups == 1 ? SHORT_COLUMNS : BLOCK_COLUMNS;
    for (int from = 0; from < w->k; from += block) {
        const int count = w->k - from < block ? w->k - from : block;
        for (int t = 0; t < n_tiles; t++) {
            decode(decoded + t * BLOCK_COLUMNS * TILE_N, &q, t, from, count);
        }
        for (int g = 0; g < n_groups; g++) {
            const int row = (int)((int64_t)m * g / n_groups),
                      rows = (int)((int64_t)m * (g + 1) / n_groups) - row;
            block_rows(c + (size_t)row * ldc, ldc, decoded,
                       (const uint8_t *)a + (size_t)row * row_bytes, row_bytes, &q, rows, n_tiles,
                       from, count);
        }
    }
}
