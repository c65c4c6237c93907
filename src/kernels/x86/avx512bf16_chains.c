/* SPDX-License-Identifier: Apache-2.0 */
/* Products of quantized weights and bf16 or fp8 activations with VDPBF16PS. The number that a code
 * stands for is exact in bf16. For up to four rows (fp8: two) codes are decoded in registers, as
 * many streams as a panel has tiles; for more, a block of columns is decoded to bf16 lines, which
 * stay in the L1 cache while rows pass over them through the bf16 loop. fp8 is decoded in registers
 * for up to 48 rows, eight at a time. Each group's chain is scaled into c. */
#include "kernels/x86/avx512_v16.h"

#include "kernels/lanes/quant.h"
#include "kernels/x86/avx512bf16_codes.h"
#include "kernels/x86/avx512bf16_micro.h"
#include "kernels/x86/x86.h"

#define BLOCK_COLUMNS 256
#define F8_AHEAD      2048 /* bytes of codes that are fetched ahead, in each stream */
#define SHORT_COLUMNS 128  /* of few rows: what is written now is read at once */

/* ---- lines of codes to lines of bf16 pairs ---- */

/* x holds two codes in the 16-bit halves of a lane. Small integers in two's complement of 5 bits. */
static inline __m512i bf16_of_int5(__m512i x)
{
    static const uint16_t table[32] = {
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
        0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130,
        0xc120, 0xc110, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
    return _mm512_permutexvar_epi16(x, _mm512_loadu_si512(table));
}

/* The same for codes of int8: c - 128. */
static inline __m512i bf16_of_int8(__m512i x)
{
    const __m512i bias = _mm512_set1_epi32(128);
    __m512i even = _mm512_and_si512(x, _mm512_set1_epi32(0xffff)), odd = _mm512_srli_epi32(x, 16);
    even = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_sub_epi32(even, bias)));
    odd = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_sub_epi32(odd, bias)));
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(even, 16), odd);
}

/* The even and the odd bytes of a line of fp8 codes. Even ones come first in every 16 bytes before
 * codes are looked up, so that two unpackings put the bytes of the numbers together; shifting and
 * masking them takes twice the instructions. */
static inline __attribute__((always_inline)) void f8_line(__m512i x, const struct code_tables *t,
                                                          __m512i *even, __m512i *odd)
{
    const __m512i apart = _mm512_set4_epi32(0x0f0d0b09, 0x07050301, 0x0e0c0a08, 0x06040200);
    __m512i low, high;
    x = _mm512_shuffle_epi8(x, apart);
    code_bytes(x, t, &low, &high);
    *even = _mm512_unpacklo_epi8(low, high);
    *odd = _mm512_unpackhi_epi8(low, high);
}

static inline int is_f8(enum weight_format f)
{
    return f == WEIGHT_F8_E4M3 || f == WEIGHT_F8_E5M2;
}

/* What decoding needs besides codes. */
struct decoder {
    struct code_tables f8;
    __m512i zero; /* of int4, in both halves of each lane */
};

static inline __attribute__((always_inline)) __m512i
pair_line(__m512i codes, unsigned shift, const struct decoder *d, enum weight_format f)
{
    const __m512i mask = _mm512_set1_epi32(f == WEIGHT_I4 ? 0x000f000f : 0x00ff00ff);
    const __m512i x = _mm512_and_si512(shift ? _mm512_srli_epi32(codes, shift) : codes, mask);
    return f == WEIGHT_I4 ? bf16_of_int5(_mm512_sub_epi16(x, d->zero)) : bf16_of_int8(x);
}

/* Eight columns of a tile: four lines of pairs, ascending. */
static inline __attribute__((always_inline)) void unit_lines(const uint8_t *p,
                                                             const struct decoder *d,
                                                             enum weight_format f, __m512i *w0,
                                                             __m512i *w1, __m512i *w2, __m512i *w3)
{
    const __m512i a = _mm512_load_si512(p);
    const __m512i b = f == WEIGHT_I4 ? a : _mm512_load_si512(p + 64);
    if (is_f8(f)) {
        f8_line(a, &d->f8, w0, w2);
        f8_line(b, &d->f8, w1, w3);
        return;
    }
    const unsigned high = f == WEIGHT_I4 ? 4 : 0; /* where b's codes begin */
    *w0 = pair_line(a, 0, d, f);
    *w1 = pair_line(b, high, d, f);
    *w2 = pair_line(a, 8, d, f);
    *w3 = pair_line(b, high + 8, d, f);
}

static inline __attribute__((always_inline)) __m512i zero_of(const struct lanes_quant *q, int tile,
                                                             int group)
{
    const __m512i zero = lanes_quant_zero(q, tile, group);
    return _mm512_or_si512(zero, _mm512_slli_epi32(zero, 16));
}

static inline __attribute__((always_inline)) void decode_as(uint16_t *out,
                                                            const struct lanes_quant *q, int tile,
                                                            int from, int count,
                                                            enum weight_format f)
{
    const size_t unit_bytes = f == WEIGHT_I4 ? 64 : 128;
    const uint8_t *p = lanes_codes(q, tile, from);
    struct decoder d = {.zero = zero_of(q, tile, from / q->group)};
    if (is_f8(f)) {
        d.f8 = f8_tables_of(f == WEIGHT_F8_E4M3);
    }
    for (int k = 0; k < count; k += 8, p += unit_bytes, out += 8 * TILE_N) {
        __m512i w0, w1, w2, w3;
        if (k % QUANT_COLUMNS == 0) { /* may be another section of the tile */
            p = lanes_codes(q, tile, from + k);
        }
        if (f == WEIGHT_I4 && q->w->has_zero && k % 32 == 0) {
            d.zero = zero_of(q, tile, (from + k) / q->group);
        }
        _mm_prefetch((const char *)(p + LANES_AHEAD_BYTES), _MM_HINT_T0);
        unit_lines(p, &d, f, &w0, &w1, &w2, &w3);
        _mm512_store_si512(out, w0);
        _mm512_store_si512(out + 32, w1);
        _mm512_store_si512(out + 64, w2);
        _mm512_store_si512(out + 96, w3);
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

/* ---- few rows: decoded in registers ---- */

#define FEW_ROWS    4
#define F8_FEW_ROWS 2

struct direct_args {
    float *c;
    size_t ldc, col[PANEL_TILES];
    const uint8_t *row; /* bf16 */
    size_t row_bytes;
    const struct lanes_quant *q;
    int tile[PANEL_TILES]; /* a missing one is the first */
};

static inline __m512 step(__m512 chain, const uint8_t *a, __m512i w)
{
    int32_t v;
    memcpy(&v, a, sizeof v);
    return _mm512_dpbf16_ps(chain, (__m512bh)_mm512_set1_epi32(v), (__m512bh)w);
}

static inline __attribute__((always_inline)) void
direct_as(const int n_rows, const enum weight_format f, const struct direct_args *s)
{
    const struct lanes_quant *q = s->q;
    const size_t unit_bytes = f == WEIGHT_I4 ? 64 : 128, lda = s->row_bytes;
    const uint8_t *b0 = q->tiles + (size_t)s->tile[0] * q->tile_bytes;
    const uint8_t *b1 = q->tiles + (size_t)s->tile[1] * q->tile_bytes;
    const uint8_t *b2 = q->tiles + (size_t)s->tile[2] * q->tile_bytes;
    const uint8_t *b3 = q->tiles + (size_t)s->tile[3] * q->tile_bytes;
    const size_t ahead = is_f8(f) ? F8_AHEAD : LANES_AHEAD_BYTES;
    const uint8_t *a = s->row;
    struct decoder d = {.zero = _mm512_set1_epi16(8)};
    if (is_f8(f)) {
        d.f8 = f8_tables_of(f == WEIGHT_F8_E4M3);
    }
    __m512 y00, y01, y02, y03, y10, y11, y12, y13, y20, y21, y22, y23, y30, y31, y32, y33;
    y00 = y01 = y02 = y03 = y10 = y11 = y12 = y13 = _mm512_setzero_ps();
    y20 = y21 = y22 = y23 = y30 = y31 = y32 = y33 = _mm512_setzero_ps();
    const int asks_zero = f == WEIGHT_I4 && q->w->has_zero;
    for (int group = 0, k = 0; k < q->w->k; group++) {
        const int end = q->w->k - k < q->group ? q->w->k : k + q->group;
        const size_t lead = weight_group_in_section(&q->at, group) == 0 ? q->at.codes : 0;
        for (size_t at = ahead; at < ahead + lead; at += 64) {
            lanes_fetch_four(b0, b1, b2, b3, at);
        }
        b0 += lead;
        b1 += lead;
        b2 += lead;
        b3 += lead;
        const __m512i z0 = asks_zero ? zero_of(q, s->tile[0], group) : d.zero;
        const __m512i z1 = asks_zero ? zero_of(q, s->tile[1], group) : d.zero;
        const __m512i z2 = asks_zero ? zero_of(q, s->tile[2], group) : d.zero;
        const __m512i z3 = asks_zero ? zero_of(q, s->tile[3], group) : d.zero;
        __m512 c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23, c30, c31, c32, c33;
        c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = _mm512_setzero_ps();
        c20 = c21 = c22 = c23 = c30 = c31 = c32 = c33 = _mm512_setzero_ps();
#define ROW(x, r)                                                                                  \
    if (n_rows > r) {                                                                              \
        x = step(x, a + r * lda, w0);                                                              \
        x = step(x, a + r * lda + 4, w1);                                                          \
        x = step(x, a + r * lda + 8, w2);                                                          \
        x = step(x, a + r * lda + 12, w3);                                                         \
    }
#define TILE(t, x0, x1, x2, x3)                                                                    \
    {                                                                                              \
        __m512i w0, w1, w2, w3;                                                                    \
        d.zero = z##t;                                                                             \
        _mm_prefetch((const char *)(b##t + ahead), _MM_HINT_T0);                                   \
        if (f != WEIGHT_I4) {                                                                      \
            _mm_prefetch((const char *)(b##t + ahead + 64), _MM_HINT_T0);                          \
        }                                                                                          \
        unit_lines(b##t, &d, f, &w0, &w1, &w2, &w3);                                               \
        ROW(x0, 0)                                                                                 \
        ROW(x1, 1)                                                                                 \
        ROW(x2, 2)                                                                                 \
        ROW(x3, 3)                                                                                 \
        b##t += unit_bytes;                                                                        \
    }
        for (; k < end; k += 8, a += 16) {
            TILE(0, c00, c10, c20, c30)
            TILE(1, c01, c11, c21, c31)
            TILE(2, c02, c12, c22, c32)
            TILE(3, c03, c13, c23, c33)
        }
#undef TILE
#undef ROW
        const v16 s0 = lanes_quant_scale(q, s->tile[0], group);
        const v16 s1 = lanes_quant_scale(q, s->tile[1], group);
        const v16 s2 = lanes_quant_scale(q, s->tile[2], group);
        const v16 s3 = lanes_quant_scale(q, s->tile[3], group);
#define SCALED(y, x, t) y = _mm512_fmadd_ps(x, is_act ? s##t : _mm512_mul_ps(s##t, sa), y);
#define SCALE(r)                                                                                   \
    if (n_rows > r) {                                                                              \
        const int is_act = q->w->input == INPUT_ACT;                                               \
        const v16 sa = v16_set1(is_act ? 1.0f : lanes_input_scale(q, s->row + r * lda, group));    \
        SCALED(y##r##0, c##r##0, 0)                                                                \
        SCALED(y##r##1, c##r##1, 1)                                                                \
        SCALED(y##r##2, c##r##2, 2)                                                                \
        SCALED(y##r##3, c##r##3, 3)                                                                \
    }
        SCALE(0)
        SCALE(1)
        SCALE(2)
        SCALE(3)
#undef SCALE
#undef SCALED
    }
#define STORE(r)                                                                                   \
    if (n_rows > r) {                                                                              \
        float *const to = s->c + r * s->ldc;                                                       \
        _mm512_storeu_ps(to + s->col[0], y##r##0);                                                 \
        _mm512_storeu_ps(to + s->col[1], y##r##1);                                                 \
        _mm512_storeu_ps(to + s->col[2], y##r##2);                                                 \
        _mm512_storeu_ps(to + s->col[3], y##r##3);                                                 \
    }
    STORE(0)
    STORE(1)
    STORE(2)
    STORE(3)
#undef STORE
}

#define DIRECT_ROWS(name, f)                                                                       \
    static __attribute__((noinline)) void name(int n_rows, const struct direct_args *s)            \
    {                                                                                              \
        switch (n_rows) {                                                                          \
        case 1:                                                                                    \
            direct_as(1, f, s);                                                                    \
            break;                                                                                 \
        case 2:                                                                                    \
            direct_as(2, f, s);                                                                    \
            break;                                                                                 \
        case 3:                                                                                    \
            direct_as(3, f, s);                                                                    \
            break;                                                                                 \
        default:                                                                                   \
            direct_as(4, f, s);                                                                    \
            break;                                                                                 \
        }                                                                                          \
    }
DIRECT_ROWS(direct_i8, WEIGHT_I8)
DIRECT_ROWS(direct_i4, WEIGHT_I4)
DIRECT_ROWS(direct_e4m3, WEIGHT_F8_E4M3)
DIRECT_ROWS(direct_e5m2, WEIGHT_F8_E5M2)

/* Tiles `first` of each quarter of n_tiles. */
static void direct(float *c, size_t ldc, const uint8_t *row, size_t row_bytes,
                   const struct lanes_quant *q, int rows, int first, int n_tiles)
{
    struct direct_args s = {.c = c, .ldc = ldc, .row = row, .row_bytes = row_bytes, .q = q};
    const int quarter = (n_tiles + PANEL_TILES - 1) / PANEL_TILES;
    for (int t = 0; t < PANEL_TILES; t++) {
        s.tile[t] = t * quarter + first < n_tiles ? t * quarter + first : first;
        s.col[t] = (size_t)s.tile[t] * TILE_N;
    }
    switch (q->w->format) {
    case WEIGHT_I8:
        direct_i8(rows, &s);
        break;
    case WEIGHT_I4:
        direct_i4(rows, &s);
        break;
    case WEIGHT_F8_E4M3:
        direct_e4m3(rows, &s);
        break;
    default:
        direct_e5m2(rows, &s);
        break;
    }
}

/* ---- more rows of fp8: decoded in registers, too ---- */

/* Eight rows by two tiles: 16 chains, the tables and what is being decoded fill the registers.
 * Looking up and unpacking use other ports than the multiply-adds, so that they cost little beside
 * those of eight rows, and nothing is written and read again. Numbers of a row are broadcast by the
 * multiply-add itself. */
#define TALL_ROWS  8
#define TALL_TILES 2
#define TALL_MOST  48 /* rows; more of them repay a block that is decoded once */

struct tall_args {
    float *c;
    size_t ldc, col[TALL_TILES];
    const uint8_t *row; /* bf16 */
    size_t row_bytes;
    const struct lanes_quant *q;
    const uint8_t *tile[TALL_TILES]; /* a missing one is the first */
    const uint8_t *next[TALL_TILES]; /* where the streams go on */
};

/* chain += w x the pair of a row at byte `at`, where the row is at base + index * scale. Assembly,
 * because gcc would keep the broadcasts of one tile for the other, or else each row's address, and
 * run out of registers. Nothing that the function writes is read by it. */
#define WIDE_STEP(chain, w, base, index, scale, at)                                                \
    __asm__("vdpbf16ps %c4(%2,%3," #scale ")%{1to16%}, %1, %0"                                     \
            : "+v"(chain)                                                                          \
            : "v"(w), "r"(base), "r"(index), "i"(at));

/* DO(row, its chains, its place) of at most eight rows; `above` is one row above the first, `middle`
 * one above the fifth. */
#define ROWS_8X2(DO)                                                                               \
    DO(0, c00, c01, above, lda, 1)                                                                 \
    if (n_rows > 1) {                                                                              \
        DO(1, c10, c11, above, lda, 2)                                                             \
    }                                                                                              \
    if (n_rows > 2) {                                                                              \
        DO(2, c20, c21, above, lda3, 1)                                                            \
    }                                                                                              \
    if (n_rows > 3) {                                                                              \
        DO(3, c30, c31, above, lda, 4)                                                             \
    }                                                                                              \
    if (n_rows > 4) {                                                                              \
        DO(4, c40, c41, middle, lda, 1)                                                            \
    }                                                                                              \
    if (n_rows > 5) {                                                                              \
        DO(5, c50, c51, middle, lda, 2)                                                            \
    }                                                                                              \
    if (n_rows > 6) {                                                                              \
        DO(6, c60, c61, middle, lda3, 1)                                                           \
    }                                                                                              \
    if (n_rows > 7) {                                                                              \
        DO(7, c70, c71, middle, lda, 4)                                                            \
    }

static inline __attribute__((always_inline)) void
tall_as(const int n_rows, const enum weight_format f, const struct tall_args *s)
{
    const struct lanes_quant *q = s->q;
    const size_t lda = s->row_bytes, lda3 = 3 * lda, n_bytes = (size_t)q->w->k * TILE_N;
    const uint8_t *b0 = s->tile[0], *b1 = s->tile[1];
    const uint8_t *u0 = b0, *u1 = b1; /* sections, or tiles of one group */
    uintptr_t above = (uintptr_t)s->row - lda, middle = above + 4 * lda;
    const struct code_tables tables = f8_tables_of(f == WEIGHT_F8_E4M3);
    size_t at = 0; /* bytes of codes */
    for (int group = 0; at < n_bytes; group++) {
        const size_t left = n_bytes - at, group_bytes = (size_t)q->group * TILE_N;
        const size_t end = at + (left < group_bytes ? left : group_bytes);
        const size_t place = weight_group_in_section(&q->at, group) * TILE_N;
        if (place == 0) {
            u0 = b0;
            u1 = b1;
            b0 += q->at.codes;
            b1 += q->at.codes;
        }
        __m512 c00, c01, c10, c11, c20, c21, c30, c31, c40, c41, c50, c51, c60, c61, c70, c71;
        c00 = c01 = c10 = c11 = c20 = c21 = c30 = c31 = _mm512_setzero_ps();
        c40 = c41 = c50 = c51 = c60 = c61 = c70 = c71 = _mm512_setzero_ps();
        while (at < end) {
            const size_t part = end - at < F8_AHEAD ? end - at : F8_AHEAD;
            const size_t later = (size_t)(b0 - s->tile[0]) + F8_AHEAD;
            const int is_here = later < q->tile_bytes;
            const size_t ahead = later - (is_here ? 0 : q->tile_bytes);
            const uint8_t *p0 = (is_here ? s->tile[0] : s->next[0]) + ahead;
            const uint8_t *p1 = (is_here ? s->tile[1] : s->next[1]) + ahead;
#define STEP_0(r, x0, x1, base, index, scale) WIDE_STEP(x0, w_, base, index, scale, at_)
#define STEP_1(r, x0, x1, base, index, scale) WIDE_STEP(x1, w_, base, index, scale, at_)
#define LINE(DO, w, at)                                                                            \
    {                                                                                              \
        enum { at_ = at };                                                                         \
        const __m512i w_ = w;                                                                      \
        ROWS_8X2(DO)                                                                               \
    }
            for (const size_t stop = at + part; at < stop; at += 128) {
                __m512i w0, w1, w2, w3;
                _mm_prefetch((const char *)p0, _MM_HINT_T0);
                _mm_prefetch((const char *)p0 + 64, _MM_HINT_T0);
                f8_line(_mm512_load_si512(b0), &tables, &w0, &w2);
                f8_line(_mm512_load_si512(b0 + 64), &tables, &w1, &w3);
                LINE(STEP_0, w0, 0)
                LINE(STEP_0, w1, 4)
                LINE(STEP_0, w2, 8)
                LINE(STEP_0, w3, 12)
                _mm_prefetch((const char *)p1, _MM_HINT_T0);
                _mm_prefetch((const char *)p1 + 64, _MM_HINT_T0);
                f8_line(_mm512_load_si512(b1), &tables, &w0, &w2);
                f8_line(_mm512_load_si512(b1 + 64), &tables, &w1, &w3);
                LINE(STEP_1, w0, 0)
                LINE(STEP_1, w1, 4)
                LINE(STEP_1, w2, 8)
                LINE(STEP_1, w3, 12)
                b0 += 128;
                b1 += 128;
                p0 += 128;
                p1 += 128;
                above += 16;
                middle += 16;
            }
#undef STEP_0
#undef STEP_1
#undef LINE
        }
        const v16 s0 = lanes_floats(u0 + q->at.scales, place, q->w->scale_type);
        const v16 s1 = lanes_floats(u1 + q->at.scales, place, q->w->scale_type);
        const int is_act = q->w->input == INPUT_ACT;
        const __mmask16 is_later = group == 0 ? 0 : 0xffff; /* than the first group */
/* Both loads come before the stores, because a missing tile's place is the first's. */
#define SCALE(r, x0, x1, base, index, scale)                                                       \
    {                                                                                              \
        float *const to0 = s->c + r * s->ldc + s->col[0], *const to1 = to0 + col1;                 \
        const v16 sa = v16_set1(is_act ? 1.0f : lanes_input_scale(q, s->row + r * lda, group));    \
        const v16 y0 = _mm512_fmadd_ps(x0, is_act ? s0 : _mm512_mul_ps(s0, sa),                    \
                                       _mm512_maskz_loadu_ps(is_later, to0));                      \
        const v16 y1 = _mm512_fmadd_ps(x1, is_act ? s1 : _mm512_mul_ps(s1, sa),                    \
                                       _mm512_maskz_loadu_ps(is_later, to1));                      \
        _mm512_storeu_ps(to0, y0);                                                                 \
        _mm512_storeu_ps(to1, y1);                                                                 \
    }
        const size_t col1 = s->col[1] - s->col[0];
        ROWS_8X2(SCALE)
#undef SCALE
    }
}

#define TALL(name, f)                                                                              \
    static __attribute__((noinline)) void name(int n_rows, const struct tall_args *s)              \
    {                                                                                              \
        switch (n_rows) {                                                                          \
        case 1:                                                                                    \
            tall_as(1, f, s);                                                                      \
            break;                                                                                 \
        case 2:                                                                                    \
            tall_as(2, f, s);                                                                      \
            break;                                                                                 \
        case 3:                                                                                    \
            tall_as(3, f, s);                                                                      \
            break;                                                                                 \
        case 4:                                                                                    \
            tall_as(4, f, s);                                                                      \
            break;                                                                                 \
        case 5:                                                                                    \
            tall_as(5, f, s);                                                                      \
            break;                                                                                 \
        case 6:                                                                                    \
            tall_as(6, f, s);                                                                      \
            break;                                                                                 \
        case 7:                                                                                    \
            tall_as(7, f, s);                                                                      \
            break;                                                                                 \
        default:                                                                                   \
            tall_as(8, f, s);                                                                      \
            break;                                                                                 \
        }                                                                                          \
    }
TALL(tall_e4m3, WEIGHT_F8_E4M3)
TALL(tall_e5m2, WEIGHT_F8_E5M2)

/* A panel, two tiles after two, rows in even groups. `next` as in struct fused. */
static void tall(float *c, size_t ldc, const uint8_t *a, size_t row_bytes,
                 const struct lanes_quant *q, int m, int n_tiles, const uint8_t *next)
{
    const int n_groups = (m + TALL_ROWS - 1) / TALL_ROWS;
    struct tall_args s = {.ldc = ldc, .row_bytes = row_bytes, .q = q};
    for (int t = 0; t < n_tiles; t += TALL_TILES) {
        for (int i = 0; i < TALL_TILES; i++) {
            const int at = t + i < n_tiles ? t + i : t, after = at + TALL_TILES;
            s.tile[i] = q->tiles + (size_t)at * q->tile_bytes;
            s.col[i] = (size_t)at * TILE_N;
            s.next[i] = after < n_tiles ? q->tiles + (size_t)after * q->tile_bytes
                        : next          ? next + (size_t)i * q->tile_bytes
                                        : s.tile[i];
        }
        for (int g = 0; g < n_groups; g++) {
            const int row = (int)((int64_t)m * g / n_groups),
                      rows = (int)((int64_t)m * (g + 1) / n_groups) - row;
            s.c = c + (size_t)row * ldc;
            s.row = a + (size_t)row * row_bytes;
            if (q->w->format == WEIGHT_F8_E4M3) {
                tall_e4m3(rows, &s);
            } else {
                tall_e5m2(rows, &s);
            }
        }
    }
}

/* ---- more rows: decoded blocks ---- */

#define MAX_GROUPS (BLOCK_COLUMNS / 16)

/* A block of columns of a panel, and up to MICRO_ROWS rows that pass over it. */
struct block_args {
    _Alignas(64) float scales[MAX_GROUPS][PANEL_TILES][TILE_N];
    float *c;
    size_t ldc, lda;
    const uint8_t *row;    /* start of the first row */
    const uint16_t *a;     /* its first column of the block; bf16 */
    const uint16_t *b;     /* the decoded block, tiles BLOCK_COLUMNS apart */
    int tile[PANEL_TILES]; /* a missing one is tile 0 */
    size_t n_pairs, group_pairs;
    int group;                         /* of the first column */
    int is_first, is_last;             /* of that group: its chains begin here, and end here */
    const uint8_t *ahead[PANEL_TILES]; /* lines to prefetch, ahead_step bytes per pair */
    size_t ahead_step;
    const struct lanes_quant *q;
};

static inline __attribute__((always_inline)) void block_micro(const int n_rows, const int is_act,
                                                              const struct block_args *s)
{
    float *const c = s->c;
    const size_t ldc = s->ldc, lda = s->lda / 2, step = s->ahead_step;
    const size_t k0 = (size_t)s->tile[0] * TILE_N, k1 = (size_t)s->tile[1] * TILE_N;
    const size_t k2 = (size_t)s->tile[2] * TILE_N, k3 = (size_t)s->tile[3] * TILE_N;
    const uint16_t *b0 = s->b + k0 * BLOCK_COLUMNS, *b1 = s->b + k1 * BLOCK_COLUMNS;
    const uint16_t *b2 = s->b + k2 * BLOCK_COLUMNS, *b3 = s->b + k3 * BLOCK_COLUMNS;
    const uint8_t *p0 = s->ahead[0], *p1 = s->ahead[1], *p2 = s->ahead[2], *p3 = s->ahead[3];
    const uint16_t *a0 = s->a, *a1 = a0 + lda, *a2 = a1 + lda, *a3 = a2 + lda, *a4 = a3 + lda,
                   *a5 = a4 + lda;
    size_t j = 0;
    for (int g = 0; j < s->n_pairs; g++) {
        const int group = s->group + g;
        const size_t left = s->n_pairs - j,
                     end = j + (left < s->group_pairs ? left : s->group_pairs);
        __m512 c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
        __m512 c30, c31, c32, c33, c40, c41, c42, c43, c50, c51, c52, c53;
        c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = c20 = c21 = c22 = c23 = _mm512_setzero_ps();
        c30 = c31 = c32 = c33 = c40 = c41 = c42 = c43 = c50 = c51 = c52 = c53 = _mm512_setzero_ps();
#define LOAD(r, x0, x1, x2, x3, a)                                                                 \
    x0 = _mm512_loadu_ps(c + r * ldc + k0);                                                        \
    x1 = _mm512_loadu_ps(c + r * ldc + k1);                                                        \
    x2 = _mm512_loadu_ps(c + r * ldc + k2);                                                        \
    x3 = _mm512_loadu_ps(c + r * ldc + k3);
#define STORE(r, x0, x1, x2, x3, a)                                                                \
    _mm512_storeu_ps(c + r * ldc + k0, x0);                                                        \
    _mm512_storeu_ps(c + r * ldc + k1, x1);                                                        \
    _mm512_storeu_ps(c + r * ldc + k2, x2);                                                        \
    _mm512_storeu_ps(c + r * ldc + k3, x3);
#define STEP(r, x0, x1, x2, x3, a)                                                                 \
    {                                                                                              \
        const pairs16 v_ = pair(a + 2 * j);                                                        \
        x0 = _mm512_dpbf16_ps(x0, v_, w0);                                                         \
        x1 = _mm512_dpbf16_ps(x1, v_, w1);                                                         \
        x2 = _mm512_dpbf16_ps(x2, v_, w2);                                                         \
        x3 = _mm512_dpbf16_ps(x3, v_, w3);                                                         \
    }
/* All loads come before the stores, because a missing tile's place is tile 0's. */
#define SCALED(x, s_, k_)                                                                          \
    _mm512_fmadd_ps(x, is_act ? s_ : _mm512_mul_ps(s_, sa_),                                       \
                    _mm512_maskz_loadu_ps(is_later, c + r_ * ldc + k_))
#define SCALE(r, x0, x1, x2, x3, a)                                                                \
    {                                                                                              \
        const size_t r_ = r;                                                                       \
        const v16 sa_ =                                                                            \
            v16_set1(is_act ? 1.0f : lanes_input_scale(s->q, s->row + r_ * s->lda, group));        \
        x0 = SCALED(x0, s0, k0);                                                                   \
        x1 = SCALED(x1, s1, k1);                                                                   \
        x2 = SCALED(x2, s2, k2);                                                                   \
        x3 = SCALED(x3, s3, k3);                                                                   \
        STORE(r, x0, x1, x2, x3, a)                                                                \
    }
        if (!s->is_first) {
            ROWS_6X4(LOAD)
        }
        for (; j < end; j++) {
            const pairs16 w0 = line(b0 + 32 * j), w1 = line(b1 + 32 * j);
            const pairs16 w2 = line(b2 + 32 * j), w3 = line(b3 + 32 * j);
            const size_t ahead = step * j & ~(size_t)63;
            _mm_prefetch((const char *)(p0 + ahead), _MM_HINT_T0);
            _mm_prefetch((const char *)(p1 + ahead), _MM_HINT_T0);
            _mm_prefetch((const char *)(p2 + ahead), _MM_HINT_T0);
            _mm_prefetch((const char *)(p3 + ahead), _MM_HINT_T0);
            ROWS_6X4(STEP)
        }
        if (s->is_last) {
            const __mmask16 is_later = group == 0 ? 0 : 0xffff; /* than the first group */
            const v16 s0 = v16_load(s->scales[g][s->tile[0]]);
            const v16 s1 = v16_load(s->scales[g][s->tile[1]]);
            const v16 s2 = v16_load(s->scales[g][s->tile[2]]);
            const v16 s3 = v16_load(s->scales[g][s->tile[3]]);
            ROWS_6X4(SCALE)
        } else {
            ROWS_6X4(STORE)
        }
    }
#undef LOAD
#undef STORE
#undef STEP
#undef SCALED
#undef SCALE
}

static __attribute__((noinline)) void block_act(int n_rows, const struct block_args *s)
{
    ROW_COUNTS(n_rows, block_micro, 1, s)
}

static __attribute__((noinline)) void block_f8(int n_rows, const struct block_args *s)
{
    ROW_COUNTS(n_rows, block_micro, 0, s)
}

/* Decodes columns from .. from + count - 1 of all tiles, and their groups' scales. */
static void prepare(struct block_args *s, uint16_t *decoded, int n_tiles, int from, int count)
{
    const struct lanes_quant *q = s->q;
    const int is_one = q->n_groups == 1, k = q->w->k;
    s->group = is_one ? 0 : from / q->group;
    s->n_pairs = (size_t)count / 2;
    s->group_pairs = is_one ? s->n_pairs : (size_t)q->group / 2;
    s->is_first = !is_one || from == 0;
    s->is_last = !is_one || from + count == k;
    for (int t = 0; t < n_tiles; t++) {
        decode(decoded + t * BLOCK_COLUMNS * TILE_N, q, t, from, count);
        for (int g = 0; s->is_last && g * (int)s->group_pairs < count / 2; g++) {
            v16_store(s->scales[g][t], lanes_quant_scale(q, t, s->group + g));
        }
    }
}

void avx512bf16_chains(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                       int m, int tile, int n_tiles, const void *next)
{
    _Alignas(64) uint16_t decoded[PANEL_TILES * BLOCK_COLUMNS * TILE_N];
    const struct lanes_quant q = lanes_quant_of(w, tile);
    struct block_args s = {.ldc = ldc, .b = decoded, .q = &q};
    s.lda = w->input == INPUT_ACT ? 2 * lda : lda;
    if (is_f8(w->format) && m <= TALL_MOST) {
        tall(c, ldc, a, s.lda, &q, m, n_tiles, next);
        return;
    }
    const int n_groups = (m + MICRO_ROWS - 1) / MICRO_ROWS;
    const int block = n_groups == 1 ? SHORT_COLUMNS : BLOCK_COLUMNS;
    for (int t = 0; t < PANEL_TILES; t++) {
        s.tile[t] = t < n_tiles ? t : 0;
    }
    for (int from = 0; from < w->k; from += block) {
        const int count = w->k - from < block ? w->k - from : block;
        const size_t n_bytes = (size_t)count * q.at.column_bytes; /* of codes */
        prepare(&s, decoded, n_tiles, from, count);
        for (int g = 0; g < n_groups; g++) {
            const int row = (int)((int64_t)m * g / n_groups),
                      rows = (int)((int64_t)m * (g + 1) / n_groups) - row;
            s.c = c + (size_t)row * ldc;
            s.row = (const uint8_t *)a + (size_t)row * s.lda;
            s.a = (const uint16_t *)(const void *)s.row + from;
            /* the groups of rows share the fetching of the next block's codes */
            s.ahead_step = n_bytes / s.n_pairs / (size_t)n_groups + 1;
            for (int t = 0; t < PANEL_TILES; t++) {
                const uint8_t *after =
                    from + count < w->k ? lanes_codes(&q, s.tile[t], from + count)
                    : next              ? (const uint8_t *)next + (size_t)s.tile[t] * q.tile_bytes
                                        : lanes_codes(&q, s.tile[t], 0);
                s.ahead[t] = after + n_bytes * (size_t)g / (size_t)n_groups;
            }
            if (w->input == INPUT_ACT) {
                block_act(rows, &s);
            } else {
                block_f8(rows, &s);
            }
        }
    }
}

void avx512bf16_chains_few(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                           int m, int tile, int tile_end)
{
    const int n_tiles = tile_end - tile;
    if (m > (is_f8(w->format) ? F8_FEW_ROWS : FEW_ROWS)) {
        for (int t = 0; t < n_tiles; t += PANEL_TILES) {
            const int n = n_tiles - t < PANEL_TILES ? n_tiles - t : PANEL_TILES;
            avx512bf16_chains(c + (size_t)t * TILE_N, ldc, a, lda, w, m, tile + t, n,
                              fused_next(w, tile + t + n, tile_end, 1));
        }
        return;
    }
    const struct lanes_quant q = lanes_quant_of(w, tile);
    const size_t row_bytes = w->input == INPUT_ACT ? 2 * lda : lda;
    for (int i = 0; i < (n_tiles + PANEL_TILES - 1) / PANEL_TILES; i++) {
        direct(c, ldc, a, row_bytes, &q, m, i, n_tiles);
    }
}
