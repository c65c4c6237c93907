/* SPDX-License-Identifier: Apache-2.0 */
/* Products of int8 activations with codes that are put together first: the 2-bit code, 6 bits, and
 * 4 bits with scales in two levels. Columns are taken block by block: each tile's codes become
 * unsigned bytes in the layout of I8 (8 KB for four tiles, the L1 cache), scales and offsets of the
 * block's groups floats, and then rows pass over them with VPDPBUSD, exact in int32, each group
 * scaled into c at once. The windows of the 2-bit code are two multiply-adds' worth of arithmetic
 * for 64 weights and one VPMULTISHIFTQB for 64 bytes. */
#include "kernels/x86/avx512_v16.h"

#include "kernels/lanes/quant.h"
#include "kernels/x86/avx512bf16_codes.h"
#include "kernels/x86/avx512bf16_dot.h"
#include "kernels/x86/x86.h"

#define MAX_GROUPS (QUANT_COLUMNS / 16)

/* A block of columns of a panel, made ready. */
struct block {
    _Alignas(64) uint8_t bytes[PANEL_TILES][QUANT_COLUMNS * TILE_N];
    _Alignas(64) float scales[MAX_GROUPS][PANEL_TILES][TILE_N];
    float offsets[MAX_GROUPS][PANEL_TILES][TILE_N];
    int n_groups, group_lines, last_lines; /* lines of 4 columns; of the last group */
    int first;                             /* its first group, in the row */
};

/* ---- codes to bytes ---- */

/* Columns 0-3 of a lane in its low half, 4-7 in the high one; a byte is where its window begins. */
static void bytes_of_two(uint8_t *out, const uint8_t *p, const uint8_t *grid, int count)
{
    const __m512 step = _mm512_load_ps(grid), start = _mm512_load_ps(grid + 64);
    /* bits 9, 25, 6, 22 and 3, 19, 0, 16 of each half of 64 bits */
    const __m512i high =
        _mm512_set1_epi64((int64_t)((54ull << 56) | (38ull << 48) | (57ull << 40) | (41ull << 32) |
                                    (22ull << 24) | (6ull << 16) | (25ull << 8) | 9ull));
    const __m512i low =
        _mm512_set1_epi64((int64_t)((48ull << 56) | (32ull << 48) | (51ull << 40) | (35ull << 32) |
                                    (16ull << 24) | (0ull << 16) | (19ull << 8) | 3ull));
    const __m512i six = _mm512_set1_epi8(63), fifteen = _mm512_set1_epi32(0x7fff);
    for (int k = 0; k < count; k += 8, p += 32, out += 128) {
        const __m512i a = lanes_window(p, step, start), b = lanes_window(p + 16, step, start);
        const __m512i both =
            _mm512_or_si512(_mm512_and_si512(a, fifteen), _mm512_slli_epi32(b, 16));
        if (k % 16 == 0) {
            _mm_prefetch((const char *)(p + LANES_AHEAD_BYTES), _MM_HINT_T0);
        }
        _mm512_store_si512(out, _mm512_and_si512(_mm512_multishift_epi64_epi8(high, both), six));
        _mm512_store_si512(out + 64,
                           _mm512_and_si512(_mm512_multishift_epi64_epi8(low, both), six));
    }
}

static void bytes_of_six(uint8_t *out, const uint8_t *p, int count)
{
    for (int k = 0; k < count; k += 16, p += 192, out += 256) {
        _mm_prefetch((const char *)(p + LANES_AHEAD_BYTES), _MM_HINT_T0);
        _mm_prefetch((const char *)(p + LANES_AHEAD_BYTES + 64), _MM_HINT_T0);
        _mm_prefetch((const char *)(p + LANES_AHEAD_BYTES + 128), _MM_HINT_T0);
        _mm512_store_si512(out, six_bits(p, 0));
        _mm512_store_si512(out + 64, six_bits(p, 1));
        _mm512_store_si512(out + 128, six_bits(p, 2));
        _mm512_store_si512(out + 192, six_bits(p, 3));
    }
}

static void bytes_of_four(uint8_t *out, const uint8_t *p, int count)
{
    for (int k = 0; k < count; k += 8, p += 64, out += 128) {
        _mm_prefetch((const char *)(p + LANES_AHEAD_BYTES), _MM_HINT_T0);
        _mm512_store_si512(out, four_bits(p, 0));
        _mm512_store_si512(out + 64, four_bits(p, 1));
    }
}

/* Scales or offsets of a block's groups, as lanes_quant_scale gives them one at a time: what a level
 * above says is fetched when it changes. tile: or its section that the block is in. */
static void scales_of(float *out, const struct lanes_quant *q, const uint8_t *tile,
                      const struct block *b, size_t sub, size_t super)
{
    const enum dtype type = q->w->scale_type;
    if (q->super_groups == 0) {
        for (int g = 0; g < b->n_groups; g++, out += PANEL_TILES * TILE_N) {
            v16_store(out, lanes_floats(tile + sub, (size_t)(b->first + g) * TILE_N, type));
        }
        return;
    }
    const int place = (int)weight_group_in_section(&q->at, b->first);
    int above = place / q->super_groups, left = q->super_groups - place % q->super_groups;
    v16 s = lanes_floats(tile + super, (size_t)above * TILE_N, type);
    const uint8_t *p = tile + sub + place * TILE_N;
    const n16 bias = n16_set1(128);
    for (int g = 0; g < b->n_groups; g++, left--, p += TILE_N, out += PANEL_TILES * TILE_N) {
        if (left == 0) {
            s = lanes_floats(tile + super, (size_t)++above * TILE_N, type);
            left = q->super_groups;
        }
        v16_store(out, v16_mul(n16_float(n16_sub(n16_load_bytes(p), bias)), s));
    }
}

static void prepare(struct block *b, const struct lanes_quant *q, int n_tiles, int from, int count)
{
    const struct weight *w = q->w;
    const int group = q->group < count ? q->group : count;
    b->first = from / q->group;
    b->group_lines = group / 4;
    b->n_groups = (count + group - 1) / group;
    b->last_lines = (count - (b->n_groups - 1) * group) / 4;
    for (int t = 0; t < n_tiles; t++) {
        const uint8_t *start = q->tiles + (size_t)t * q->tile_bytes;
        const uint8_t *codes = lanes_codes(q, t, from);
        if (w->format == WEIGHT_C2) {
            bytes_of_two(b->bytes[t], codes, start + q->at.grid, count);
        } else if (w->format == WEIGHT_I6) {
            bytes_of_six(b->bytes[t], codes, count);
        } else {
            bytes_of_four(b->bytes[t], codes, count);
        }
        const uint8_t *section = start + weight_section_at(&q->at, b->first);
        scales_of(b->scales[0][t], q, section, b, q->at.scales, q->at.supers);
        if (w->has_offset) {
            scales_of(b->offsets[0][t], q, section, b, q->at.offsets, q->at.super_offsets);
        }
    }
}

/* ---- rows over a block ---- */

struct rows_args {
    float *c;
    size_t ldc, lda;
    const uint8_t *row; /* start of the first row */
    const uint8_t *a;   /* its codes at the block's first column */
    size_t sums_at, scales_at;
    int zero;              /* what codes are biased by */
    int tile[PANEL_TILES]; /* a missing one is tile 0 */
    const struct block *block;
};

static inline __attribute__((always_inline)) void micro(const int n_rows, const int has_offset,
                                                        const struct rows_args *s)
{
    const struct block *b = s->block;
    const size_t lda = s->lda;
    const struct rows_args *to = s;
    const int i0 = s->tile[0], i1 = s->tile[1], i2 = s->tile[2], i3 = s->tile[3];
    const uint8_t *b0 = b->bytes[i0], *b1 = b->bytes[i1], *b2 = b->bytes[i2], *b3 = b->bytes[i3];
    const uint8_t *a0 = s->a, *a1 = a0 + lda, *a2 = a1 + lda;
    const uint8_t *sums = s->row + s->sums_at + (size_t)b->first * 4;
    const uint8_t *scales = s->row + s->scales_at + (size_t)b->first * 4;
    const __m512i bias = _mm512_set1_epi32(-s->zero);
    __m512i c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
    __m512 f00, f01, f02, f03, f10, f11, f12, f13, f20, f21, f22, f23;
    f00 = f01 = f02 = f03 = f10 = f11 = f12 = f13 = f20 = f21 = f22 = f23 = _mm512_setzero_ps();
#define LOAD(r, x0, x1, x2, x3, y0, y1, y2, y3, a)                                                 \
    y0 = _mm512_loadu_ps(to->c + r * to->ldc + to->tile[0] * TILE_N);                              \
    y1 = _mm512_loadu_ps(to->c + r * to->ldc + to->tile[1] * TILE_N);                              \
    y2 = _mm512_loadu_ps(to->c + r * to->ldc + to->tile[2] * TILE_N);                              \
    y3 = _mm512_loadu_ps(to->c + r * to->ldc + to->tile[3] * TILE_N);
#define STORE(r, x0, x1, x2, x3, y0, y1, y2, y3, a)                                                \
    _mm512_storeu_ps(to->c + r * to->ldc + to->tile[0] * TILE_N, y0);                              \
    _mm512_storeu_ps(to->c + r * to->ldc + to->tile[1] * TILE_N, y1);                              \
    _mm512_storeu_ps(to->c + r * to->ldc + to->tile[2] * TILE_N, y2);                              \
    _mm512_storeu_ps(to->c + r * to->ldc + to->tile[3] * TILE_N, y3);
/* Scales stay in memory: beside the sums of three rows and their chains, no registers are left. */
#define SCALED(x, i, y)                                                                            \
    y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(x),                                                     \
                        _mm512_mul_ps(_mm512_load_ps(b->scales[g][i]), sa_), y);
#define OFFSET(i, y)                                                                               \
    y = _mm512_fmadd_ps(sum_, _mm512_mul_ps(_mm512_load_ps(b->offsets[g][i]), sa_), y);
#define SCALE(r, x0, x1, x2, x3, y0, y1, y2, y3, a)                                                \
    {                                                                                              \
        const __m512 sa_ = _mm512_set1_ps(float_at(scales + r * lda));                             \
        SCALED(x0, i0, y0)                                                                         \
        SCALED(x1, i1, y1)                                                                         \
        SCALED(x2, i2, y2)                                                                         \
        SCALED(x3, i3, y3)                                                                         \
        if (has_offset) {                                                                          \
            const __m512 sum_ = _mm512_set1_ps((float)int_at(sums + r * lda));                     \
            OFFSET(i0, y0)                                                                         \
            OFFSET(i1, y1)                                                                         \
            OFFSET(i2, y2)                                                                         \
            OFFSET(i3, y3)                                                                         \
        }                                                                                          \
    }
    if (b->first > 0) {
        ROWS_3X4(LOAD)
    }
    size_t at = 0;
    for (int g = 0; g < b->n_groups; g++, sums += 4, scales += 4) {
        const int n_lines = g + 1 < b->n_groups ? b->group_lines : b->last_lines;
        ROWS_3X4(GROUP_START)
        for (const size_t end = at + 4 * (size_t)n_lines; at < end; at += 4) {
            const __m512i w0 = _mm512_load_si512(b0 + 16 * at);
            const __m512i w1 = _mm512_load_si512(b1 + 16 * at);
            const __m512i w2 = _mm512_load_si512(b2 + 16 * at);
            const __m512i w3 = _mm512_load_si512(b3 + 16 * at);
            ROWS_3X4(GROUP_STEP)
        }
        ROWS_3X4(SCALE)
    }
    __asm__(""
            : "+r"(to)); /* gcc would keep twelve addresses through the loop, in vector registers */
    ROWS_3X4(STORE)
#undef LOAD
#undef STORE
#undef SCALED
#undef OFFSET
#undef SCALE
}

#define MICRO(name, has_offset)                                                                    \
    static __attribute__((noinline)) void name(int n_rows, const struct rows_args *s)              \
    {                                                                                              \
        GROUP_COUNTS(n_rows, micro, has_offset, s)                                                 \
    }
MICRO(micro_plain, 0)
MICRO(micro_offsets, 1)

void avx512bf16_coded(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                      int m, int tile, int n_tiles, const void *next)
{
    struct block block;
    const struct lanes_quant q = lanes_quant_of(w, tile);
    const int n_parts = (m + GROUP_ROWS - 1) / GROUP_ROWS;
    struct rows_args s = {.ldc = ldc,
                          .lda = lda,
                          .sums_at = q.sums_at,
                          .scales_at = q.sa_at,
                          .zero = w->format != WEIGHT_I4 ? 32
                                  : w->has_offset        ? 0
                                                         : 8,
                          .block = &block};
    for (int t = 0; t < PANEL_TILES; t++) {
        s.tile[t] = t < n_tiles ? t : 0;
    }
    lanes_fetch_scales(&q, next);
    for (int from = 0; from < w->k; from += QUANT_COLUMNS) {
        prepare(&block, &q, n_tiles, from,
                w->k - from < QUANT_COLUMNS ? w->k - from : QUANT_COLUMNS);
        for (int i = 0; i < n_parts; i++) {
            const int row = (int)((int64_t)m * i / n_parts),
                      rows = (int)((int64_t)m * (i + 1) / n_parts) - row;
            s.c = c + (size_t)row * ldc;
            s.row = (const uint8_t *)a + (size_t)row * lda;
            s.a = s.row + from;
            if (w->has_offset) {
                micro_offsets(rows, &s);
            } else {
                micro_plain(rows, &s);
            }
        }
    }
}
