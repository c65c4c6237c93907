/* SPDX-License-Identifier: Apache-2.0 */
/* Products of int8 activations with codes that have scales of groups, or are put together first (the
 * 2-bit code, 6 bits, scales in two levels). Columns are taken block by block: each tile's codes
 * become signed bytes v, the zero point taken off, in the order of I8 (16 KB for 256 columns of four
 * tiles, a third of the L1 cache), scales and offsets of the block's groups floats, and then rows pass
 * over them with VPDPBUSD, exact in int32, each group scaled into chains in registers at once.
 *
 * VPDPBUSD wants one factor unsigned. Here that is the activation, 128 more than it is, so that what
 * must be taken off again, 128 times the sum of v, belongs to a tile and a group: all rows' sums start
 * from the same line, where a zero point per row would cost each a multiplication. Few rows don't
 * repay those sums: their codes stay unsigned, and the rows' own sums take the zero point off, which
 * is one number there.
 *
 * What counts is multiplications: VPDPBUSD, VMULPS and VFMADD share two ports; conversions, masks and
 * shifts have the other two. Of a group of 32 columns a sum takes 8 VPDPBUSD, one product of scales
 * and one fma, so that 80 % of the peak of VPDPBUSD is all that such groups allow; 64 columns 89 %. */
#include "kernels/x86/avx512_v16.h"

#include "kernels/lanes/quant.h"
#include "kernels/x86/avx512bf16_codes.h"
#include "kernels/x86/avx512bf16_dot.h"
#include "kernels/x86/x86.h"

#define BLOCK_COLUMNS 256
#define MANY_ROWS     32 /* so many repay sums of v */
#define MAX_GROUPS    (BLOCK_COLUMNS / 16)

/* A block of columns of a panel, made ready. */
struct block {
    _Alignas(64) uint8_t lines[BLOCK_COLUMNS / 4][PANEL_TILES][64]; /* of four columns */
    _Alignas(64) int32_t starts[MAX_GROUPS][PANEL_TILES][TILE_N];
    float scales[MAX_GROUPS][PANEL_TILES][TILE_N];
    float offsets[MAX_GROUPS][PANEL_TILES][TILE_N];
    int n_groups, group_lines, last_lines; /* of the last group */
    int first;                             /* its first group, in the row */
};

/* ---- codes to bytes ---- */

/* Where a tile's lines of a group go, and the sums of what the even and the odd ones hold: one chain
 * of multiply-adds would be slower than the rest. */
struct sink {
    int is_many;
    uint8_t *out;
    __m512i zero, even, odd;
};

static inline __attribute__((always_inline)) void put_two(struct sink *to, __m512i x, __m512i y)
{
    if (to->is_many) {
        x = _mm512_sub_epi8(x, to->zero);
        y = _mm512_sub_epi8(y, to->zero);
        to->even = dot(to->even, _mm512_set1_epi8(1), x);
        to->odd = dot(to->odd, _mm512_set1_epi8(1), y);
    }
    _mm512_store_si512(to->out, x);
    _mm512_store_si512(to->out + PANEL_TILES * 64, y);
    to->out += 2 * PANEL_TILES * 64;
}

/* The 2-bit code. Columns 0-3 of a lane in its low half, 4-7 in the high one; a byte is where its
 * window begins. */
static inline __attribute__((always_inline)) void put_windows(struct sink *to, const uint8_t *p,
                                                              const uint8_t *grid, int count)
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
    for (int k = 0; k < count; k += 8, p += 32) {
        const __m512i a = lanes_window(p, step, start), b = lanes_window(p + 16, step, start);
        const __m512i both =
            _mm512_or_si512(_mm512_and_si512(a, fifteen), _mm512_slli_epi32(b, 16));
        if (k % 16 == 0) {
            _mm_prefetch((const char *)(p + LANES_AHEAD_BYTES), _MM_HINT_T0);
        }
        put_two(to, _mm512_and_si512(_mm512_multishift_epi64_epi8(high, both), six),
                _mm512_and_si512(_mm512_multishift_epi64_epi8(low, both), six));
    }
}

/* `count` columns at p; I6: a multiple of 16. */
static inline __attribute__((always_inline)) void put_codes(struct sink *to, const uint8_t *p,
                                                            int count, const enum weight_format f)
{
    for (int k = 0; k < count; k += f == WEIGHT_I6 ? 16 : 8) {
        _mm_prefetch((const char *)(p + LANES_AHEAD_BYTES), _MM_HINT_T0);
        if (f == WEIGHT_I4) {
            put_two(to, four_bits(p, 0), four_bits(p, 1));
            p += 64;
            continue;
        }
        _mm_prefetch((const char *)(p + LANES_AHEAD_BYTES + 64), _MM_HINT_T0);
        if (f == WEIGHT_I8) {
            put_two(to, _mm512_load_si512(p), _mm512_load_si512(p + 64));
            p += 128;
            continue;
        }
        _mm_prefetch((const char *)(p + LANES_AHEAD_BYTES + 128), _MM_HINT_T0);
        put_two(to, six_bits(p, 0), six_bits(p, 1));
        put_two(to, six_bits(p, 2), six_bits(p, 3));
        p += 192;
    }
}

/* Columns from .. from + n of a tile, which don't pass a section's end. */
static inline __attribute__((always_inline)) void put_columns(struct sink *to,
                                                              const struct lanes_quant *q, int tile,
                                                              int from, int n,
                                                              const enum weight_format f)
{
    const uint8_t *p = lanes_codes(q, tile, from);
    if (f == WEIGHT_C2) {
        put_windows(to, p, q->tiles + (size_t)tile * q->tile_bytes + q->at.grid, n);
    } else {
        put_codes(to, p, n, f);
    }
}

/* Tile `tile` in place t of the block, `count` columns from `from` on. */
static inline __attribute__((always_inline)) void lines_of(struct block *b, int t,
                                                           const struct lanes_quant *q, int tile,
                                                           int from, int count, const int is_many,
                                                           const enum weight_format f)
{
    struct sink to = {.is_many = is_many, .out = b->lines[0][t]};
    if (!is_many) {
        for (int k = 0; k < count; k += QUANT_COLUMNS) {
            const int n = count - k < QUANT_COLUMNS ? count - k : QUANT_COLUMNS;
            put_columns(&to, q, tile, from + k, n, f);
        }
        return;
    }
    for (int g = 0; g < b->n_groups; g++) {
        const int k = g * b->group_lines * 4;
        const int n = (g + 1 < b->n_groups ? b->group_lines : b->last_lines) * 4;
        to.zero = _mm512_mullo_epi32(lanes_quant_zero(q, tile, b->first + g),
                                     _mm512_set1_epi32(0x01010101));
        to.even = to.odd = _mm512_setzero_si512();
        put_columns(&to, q, tile, from + k, n, f);
        const __m512i sum = _mm512_slli_epi32(_mm512_add_epi32(to.even, to.odd), 7);
        _mm512_store_si512(b->starts[g][t], _mm512_sub_epi32(_mm512_setzero_si512(), sum));
    }
}

/* Scales or offsets of a block's groups, as lanes_quant_scale gives them one at a time: what a level
 * above says is fetched when it changes. A block lies in one section. */
static void scales_of(float *out, const struct lanes_quant *q, int tile, const struct block *b,
                      size_t sub, size_t super)
{
    const enum dtype type = q->w->scale_type;
    const uint8_t *start =
        q->tiles + (size_t)tile * q->tile_bytes + weight_section_at(&q->at, b->first);
    if (q->super_groups == 0) {
        for (int g = 0; g < b->n_groups; g++, out += PANEL_TILES * TILE_N) {
            v16_store(out, lanes_quant_scale(q, tile, b->first + g));
        }
        return;
    }
    const int place = (int)weight_group_in_section(&q->at, b->first);
    int above = place / q->super_groups, left = q->super_groups - place % q->super_groups;
    v16 s = lanes_floats(start + super, (size_t)above * TILE_N, type);
    const uint8_t *p = start + sub + place * TILE_N;
    const n16 bias = n16_set1(128);
    for (int g = 0; g < b->n_groups; g++, left--, p += TILE_N, out += PANEL_TILES * TILE_N) {
        if (left == 0) {
            s = lanes_floats(start + super, (size_t)++above * TILE_N, type);
            left = q->super_groups;
        }
        v16_store(out, v16_mul(n16_float(n16_sub(n16_load_bytes(p), bias)), s));
    }
}

#define LINES_OF(f)                                                                                \
    if (is_many) {                                                                                 \
        lines_of(b, t, q, tile, from, count, 1, f);                                                \
    } else {                                                                                       \
        lines_of(b, t, q, tile, from, count, 0, f);                                                \
    }
/* A missing tile is tile 0 again. */
static void prepare(struct block *b, const struct lanes_quant *q, int n_tiles, int from, int count,
                    int is_many)
{
    const struct weight *w = q->w;
    const int group = q->group < count ? q->group : count;
    b->first = from / q->group;
    b->group_lines = group / 4;
    b->n_groups = (count + group - 1) / group;
    b->last_lines = (count - (b->n_groups - 1) * group) / 4;
    for (int t = 0; t < PANEL_TILES; t++) {
        const int tile = t < n_tiles ? t : 0;
        switch (w->format) {
        case WEIGHT_C2:
            LINES_OF(WEIGHT_C2)
            break;
        case WEIGHT_I8:
            LINES_OF(WEIGHT_I8)
            break;
        case WEIGHT_I6:
            LINES_OF(WEIGHT_I6)
            break;
        default:
            LINES_OF(WEIGHT_I4)
            break;
        }
        scales_of(b->scales[0][t], q, tile, b, q->at.scales, q->at.supers);
        if (w->has_offset) {
            scales_of(b->offsets[0][t], q, tile, b, q->at.offsets, q->at.super_offsets);
        }
    }
}

/* ---- rows over a block ---- */

struct rows_args {
    float *c;
    size_t ldc, col[PANEL_TILES], lda;
    const uint8_t *row; /* start of the first row */
    const uint8_t *a;   /* its codes at the block's first column */
    size_t sums_at, scales_at;
    int zero; /* what codes of few rows are biased by */
    const struct block *block;
};

static inline __attribute__((always_inline)) void
micro(const int n_rows, const int is_many, const int has_offset, const struct rows_args *s)
{
    const struct block *b = s->block;
    const size_t lda = s->lda;
    const struct rows_args *to = s;
    const uint8_t *a0 = s->a, *a1 = a0 + lda, *a2 = a1 + lda;
    const uint8_t *scales = s->row + s->scales_at + (size_t)b->first * 4;
    const uint8_t *sums = s->row + s->sums_at + (size_t)b->first * 4;
    const __m512i flip = _mm512_set1_epi8((char)0x80), bias = _mm512_set1_epi32(-s->zero);
    const uint8_t *w = b->lines[0][0];
    __m512i c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
    __m512 f00, f01, f02, f03, f10, f11, f12, f13, f20, f21, f22, f23;
    f00 = f01 = f02 = f03 = f10 = f11 = f12 = f13 = f20 = f21 = f22 = f23 = _mm512_setzero_ps();
#define START(r, x0, x1, x2, x3, y0, y1, y2, y3, a)                                                \
    if (is_many) {                                                                                 \
        x0 = _mm512_load_si512(b->starts[g][0]);                                                   \
        x1 = _mm512_load_si512(b->starts[g][1]);                                                   \
        x2 = _mm512_load_si512(b->starts[g][2]);                                                   \
        x3 = _mm512_load_si512(b->starts[g][3]);                                                   \
    } else {                                                                                       \
        GROUP_START(r, x0, x1, x2, x3, y0, y1, y2, y3, a)                                          \
    }
#define STEP(r, x0, x1, x2, x3, y0, y1, y2, y3, a)                                                 \
    if (is_many) {                                                                                 \
        const __m512i v_ = _mm512_xor_si512(quad(a + at), flip);                                   \
        x0 = dot(x0, v_, w0);                                                                      \
        x1 = dot(x1, v_, w1);                                                                      \
        x2 = dot(x2, v_, w2);                                                                      \
        x3 = dot(x3, v_, w3);                                                                      \
    } else {                                                                                       \
        DOTS(x0, x1, x2, x3, a + at)                                                               \
    }
/* Scales stay in memory: beside the sums of three rows and their chains, no registers are left. */
#define SCALED(x, i, y)                                                                            \
    y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(x),                                                     \
                        _mm512_mul_ps(_mm512_load_ps(b->scales[g][i]), sa_), y);
#define OFFSET(i, y)                                                                               \
    y = _mm512_fmadd_ps(sum_, _mm512_mul_ps(_mm512_load_ps(b->offsets[g][i]), sa_), y);
#define SCALE(r, x0, x1, x2, x3, y0, y1, y2, y3, a)                                                \
    {                                                                                              \
        const __m512 sa_ = _mm512_set1_ps(float_at(scales + r * lda));                             \
        SCALED(x0, 0, y0) SCALED(x1, 1, y1) SCALED(x2, 2, y2) SCALED(x3, 3, y3) if (has_offset)    \
        {                                                                                          \
            const __m512 sum_ = _mm512_cvtepi32_ps(quad(sums + r * lda));                          \
            OFFSET(0, y0) OFFSET(1, y1) OFFSET(2, y2) OFFSET(3, y3)                                \
        }                                                                                          \
    }
    if (b->first > 0) {
        ROWS_3X4(GROUP_LOAD)
    }
    size_t at = 0;
    for (int g = 0; g < b->n_groups; g++, sums += 4, scales += 4) {
        const int n_lines = g + 1 < b->n_groups ? b->group_lines : b->last_lines;
        ROWS_3X4(START)
        for (const size_t end = at + 4 * (size_t)n_lines; at < end; at += 4) {
            const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 64);
            const __m512i w2 = _mm512_load_si512(w + 128), w3 = _mm512_load_si512(w + 192);
            ROWS_3X4(STEP)
            w += 256;
        }
        ROWS_3X4(SCALE)
    }
    __asm__(""
            : "+r"(to)); /* gcc would keep twelve addresses through the loop, in vector registers */
    ROWS_3X4(GROUP_STORE)
#undef START
#undef STEP
#undef SCALED
#undef OFFSET
#undef SCALE
}

#define MICRO(name, is_many, has_offset)                                                           \
    static __attribute__((noinline)) void name(int n_rows, const struct rows_args *s)              \
    {                                                                                              \
        GROUP_COUNTS(n_rows, micro, is_many, has_offset, s)                                        \
    }
MICRO(few_plain, 0, 0)
MICRO(few_offsets, 0, 1)
MICRO(many_plain, 1, 0)
MICRO(many_offsets, 1, 1)

/* What the next rows read, which the hardware can't guess: short runs, far apart. */
static inline __attribute__((always_inline)) void fetch_rows(const uint8_t *a, size_t lda, int rows,
                                                             int count)
{
    for (int i = 0; i < rows; i++) {
        for (int k = 0; k < count; k += 64) {
            _mm_prefetch((const char *)(a + (size_t)i * lda + k), _MM_HINT_T0);
        }
    }
}

void avx512bf16_coded(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                      int m, int tile, int n_tiles, const void *next)
{
    static void (*const micros[2][2])(int, const struct rows_args *) = {{few_plain, few_offsets},
                                                                        {many_plain, many_offsets}};
    struct block block;
    const struct lanes_quant q = lanes_quant_of(w, tile);
    const int n_parts = (m + GROUP_ROWS - 1) / GROUP_ROWS, is_many = m >= MANY_ROWS;
    struct rows_args s = {.ldc = ldc,
                          .lda = lda,
                          .sums_at = q.sums_at,
                          .scales_at = q.sa_at,
                          .zero = w->format != WEIGHT_I4 ? 32
                                  : w->has_offset        ? 0
                                                         : 8,
                          .block = &block};
    for (int t = 0; t < PANEL_TILES; t++) {
        s.col[t] = t < n_tiles ? (size_t)t * TILE_N : 0;
    }
    lanes_fetch_scales(&q, next);
    for (int from = 0; from < w->k; from += BLOCK_COLUMNS) {
        const int count = w->k - from < BLOCK_COLUMNS ? w->k - from : BLOCK_COLUMNS;
        prepare(&block, &q, n_tiles, from, count, is_many);
        for (int i = 0; i < n_parts; i++) {
            const int row = (int)((int64_t)m * i / n_parts),
                      rows = (int)((int64_t)m * (i + 1) / n_parts) - row;
            s.c = c + (size_t)row * ldc;
            s.row = (const uint8_t *)a + (size_t)row * lda;
            s.a = s.row + from;
            if (is_many && i + 1 < n_parts) {
                fetch_rows(s.a + (size_t)rows * lda, lda, rows, count);
            }
            micros[is_many][w->has_offset != 0](rows, &s);
        }
    }
}
