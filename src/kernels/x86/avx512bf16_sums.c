/* SPDX-License-Identifier: Apache-2.0 */
/* Products of quantized weights and int8 activations with VPDPBUSD: unsigned codes times signed
 * ones, four columns an instruction, exact in int32. The zero point is taken off through the sum of
 * a row's codes, which is where the sums start: -zero * sum.
 *
 * The shape is that of the bf16 kernels: 6 rows x 4 tiles of named accumulators; few rows stream
 * the four tiles once. More rows pass over blocks of columns so long that c is hardly ever read
 * again: lines of 64 bytes feed twice the arithmetic that they do in bf16, so the L2 cache keeps up
 * with it, and what goes on meanwhile is fetching the next panel into that cache. A group ends
 * inside a block, and its sums are scaled into c at once; with one scale per row, sums wait in c as
 * bits of int32. Scales and zero points of groups come in front of each section of codes (kernels.h),
 * in the same stream. */
#include "kernels/x86/avx512_v16.h"

#include "kernels/lanes/quant.h"
#include "kernels/x86/avx512bf16_dot.h"
#include "kernels/x86/x86.h"

#define BLOCK_LINES 1024 /* 256 KB of four tiles, a quarter of the L2 cache */
#define SHORT_LINES 64   /* block of few rows: this one and the next share the L1 cache */
#define FEW_ROWS    12
#define MANY_ROWS   36 /* 4-bit groups: more than these pass three at a time */
#define AHEAD_LINES 16 /* prefetch distance of the streaming loop, in lines of each tile */

struct sums_args {
    float *c;
    size_t ldc, col[PANEL_TILES];
    const uint8_t *a; /* at the first column of this call */
    size_t lda;
    const uint8_t *b[PANEL_TILES]; /* with groups: where a section begins (kernels.h), else codes */
    const uint8_t *ahead[PANEL_TILES]; /* lines to prefetch, ahead_step bytes per line */
    size_t ahead_step;
    int n_lines, group_lines; /* of this call; group_lines divides all but the last group */
    int group;                /* of the first column; the first of a section */
    int is_first, is_last;    /* of that group: its sums begin here, and end here */
    const uint8_t *row;       /* start of the first row */
    const struct lanes_quant *q;
    size_t tile[PANEL_TILES]; /* tile of each column of accumulators: a missing one is tile 0 */
};

static inline __m512i low_nibbles(__m512i x)
{
    return _mm512_and_si512(x, _mm512_set1_epi8(15));
}

static inline __m512i high_nibbles(__m512i x)
{
    return low_nibbles(_mm512_srli_epi16(x, 4));
}

/* Line j of the four tiles, each through OF (or as it is). */
#define LINES(OF)                                                                                  \
    w0 = OF(_mm512_load_si512(b0 + 64 * j));                                                       \
    w1 = OF(_mm512_load_si512(b1 + 64 * j));                                                       \
    w2 = OF(_mm512_load_si512(b2 + 64 * j));                                                       \
    w3 = OF(_mm512_load_si512(b3 + 64 * j));

/* What is fetched ahead, line by line. */
enum ahead {
    AHEAD_NEAR, /* four streams a few lines ahead, into the L1 cache: weights that are read once */
    AHEAD_FOUR, /* four streams of the next block, into the L2 cache */
    AHEAD_ONE,  /* one of them */
    AHEAD_KINDS
};

static inline __m512i start(__m512i zero, int32_t sum)
{
    return _mm512_mullo_epi32(zero, _mm512_set1_epi32(-sum));
}

/* With b at the next sections and `line` lines behind them: u is where those begin, and b is left such
 * that `line` further is the first of their codes. */
#define NEXT_SECTIONS(line)                                                                        \
    u0 = b0 + 64 * (line);                                                                         \
    u1 = b1 + 64 * (line);                                                                         \
    u2 = b2 + 64 * (line);                                                                         \
    u3 = b3 + 64 * (line);                                                                         \
    b0 += q.at.codes;                                                                              \
    b1 += q.at.codes;                                                                              \
    b2 += q.at.codes;                                                                              \
    b3 += q.at.codes;

/* is_grouped: groups begin and end in this call, all of them. */
static inline __attribute__((always_inline)) void micro(const int n_rows, const enum ahead kind,
                                                        const int is_grouped,
                                                        const enum weight_format f,
                                                        const struct sums_args *s)
{
    float *const c = s->c;
    const size_t ldc = s->ldc, lda = s->lda, step = s->ahead_step;
    const size_t k0 = s->col[0], k1 = s->col[1], k2 = s->col[2], k3 = s->col[3];
    const uint8_t *b0 = s->b[0], *b1 = s->b[1], *b2 = s->b[2], *b3 = s->b[3];
    const uint8_t *p0 = s->ahead[0], *p1 = s->ahead[1], *p2 = s->ahead[2], *p3 = s->ahead[3];
    const uint8_t *a0 = s->a, *a1 = a0 + lda, *a2 = a1 + lda, *a3 = a2 + lda, *a4 = a3 + lda,
                  *a5 = a4 + lda;
    const __m512i bias = _mm512_set1_epi32(f == WEIGHT_I4 ? 8 : 128);
    const struct lanes_quant q = *s->q;
    const int has_zero = f == WEIGHT_I4 && q.w->has_zero, n_lines = s->n_lines;
    const int group_lines = s->group_lines, is_first = is_grouped || s->is_first;
    const int is_last = is_grouped || s->is_last;
    const enum dtype type = q.w->scale_type;
    const uint8_t *const sums = s->row + q.sums_at, *const scales = s->row + q.sa_at;
    const uint8_t *u0 = q.tiles + s->tile[0] * q.tile_bytes; /* sections, or tiles of one group */
    const uint8_t *u1 = q.tiles + s->tile[1] * q.tile_bytes;
    const uint8_t *u2 = q.tiles + s->tile[2] * q.tile_bytes;
    const uint8_t *u3 = q.tiles + s->tile[3] * q.tile_bytes;
    const size_t a_line = f == WEIGHT_I4 ? 8 : 4;
    __m512i c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
    __m512i c30, c31, c32, c33, c40, c41, c42, c43, c50, c51, c52, c53;

#define START(row_, x0, x1, x2, x3, a)                                                             \
    {                                                                                              \
        const int32_t n_ = int_at(sums + row_ * lda + 4 * (size_t)group);                          \
        if (has_zero) {                                                                            \
            x0 = start(z0, n_);                                                                    \
            x1 = start(z1, n_);                                                                    \
            x2 = start(z2, n_);                                                                    \
            x3 = start(z3, n_);                                                                    \
        } else {                                                                                   \
            x0 = start(bias, n_);                                                                  \
            x1 = twin(x0);                                                                         \
            x2 = twin(x0);                                                                         \
            x3 = twin(x0);                                                                         \
        }                                                                                          \
    }
#define LOAD(row_, x0, x1, x2, x3, a)                                                              \
    x0 = _mm512_loadu_si512(c + row_ * ldc + k0);                                                  \
    x1 = _mm512_loadu_si512(c + row_ * ldc + k1);                                                  \
    x2 = _mm512_loadu_si512(c + row_ * ldc + k2);                                                  \
    x3 = _mm512_loadu_si512(c + row_ * ldc + k3);
#define STORE(row_, x0, x1, x2, x3, a)                                                             \
    _mm512_storeu_si512(c + row_ * ldc + k0, x0);                                                  \
    _mm512_storeu_si512(c + row_ * ldc + k1, x1);                                                  \
    _mm512_storeu_si512(c + row_ * ldc + k2, x2);                                                  \
    _mm512_storeu_si512(c + row_ * ldc + k3, x3);
#define STEP(row_, x0, x1, x2, x3, a) DOTS(x0, x1, x2, x3, a + at)
#define SCALED(x, s_, k_)                                                                          \
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(x), _mm512_mul_ps(s_, sa_),                                 \
                    _mm512_maskz_loadu_ps(is_later, to_ + k_))
/* All loads come before the stores, because a missing tile's place is tile 0's. */
#define SCALE(row_, x0, x1, x2, x3, a)                                                             \
    {                                                                                              \
        const v16 sa_ = v16_set1(float_at(scales + row_ * lda + 4 * (size_t)group));               \
        float *const to_ = c + row_ * ldc;                                                         \
        const v16 y0_ = SCALED(x0, s0, k0), y1_ = SCALED(x1, s1, k1);                              \
        const v16 y2_ = SCALED(x2, s2, k2), y3_ = SCALED(x3, s3, k3);                              \
        _mm512_storeu_ps(to_ + k0, y0_);                                                           \
        _mm512_storeu_ps(to_ + k1, y1_);                                                           \
        _mm512_storeu_ps(to_ + k2, y2_);                                                           \
        _mm512_storeu_ps(to_ + k3, y3_);                                                           \
    }

    for (int line = 0, group = s->group; line < n_lines; group++) {
        const int left = n_lines - line, n = left < group_lines ? left : group_lines;
        const size_t place = is_grouped ? weight_group_in_section(&q.at, group) * TILE_N : 0;
        if (is_grouped && place == 0) {
            NEXT_SECTIONS((size_t)line)
        }
        if (is_first) {
            __m512i z0 = bias, z1 = bias, z2 = bias, z3 = bias; /* unused without zeros */
            if (has_zero) {
                z0 = n16_load_bytes(u0 + q.at.zeros + place);
                z1 = n16_load_bytes(u1 + q.at.zeros + place);
                z2 = n16_load_bytes(u2 + q.at.zeros + place);
                z3 = n16_load_bytes(u3 + q.at.zeros + place);
            }
            ROWS_6X4(START)
        } else {
            ROWS_6X4(LOAD)
        }
        for (int end = line + n; line < end; line++) {
            const size_t j = (size_t)line, ahead = step * j & ~(size_t)63;
            size_t at = a_line * j;
            __m512i w0, w1, w2, w3;
            if (kind == AHEAD_ONE) {
                _mm_prefetch((const char *)(p0 + ahead), _MM_HINT_T1);
            } else if (kind == AHEAD_NEAR) {
                _mm_prefetch((const char *)(p0 + ahead), _MM_HINT_T0);
                _mm_prefetch((const char *)(p1 + ahead), _MM_HINT_T0);
                _mm_prefetch((const char *)(p2 + ahead), _MM_HINT_T0);
                _mm_prefetch((const char *)(p3 + ahead), _MM_HINT_T0);
            } else {
                _mm_prefetch((const char *)(p0 + ahead), _MM_HINT_T1);
                _mm_prefetch((const char *)(p1 + ahead), _MM_HINT_T1);
                _mm_prefetch((const char *)(p2 + ahead), _MM_HINT_T1);
                _mm_prefetch((const char *)(p3 + ahead), _MM_HINT_T1);
            }
            if (f == WEIGHT_I8) {
                LINES()
                ROWS_6X4(STEP)
                continue;
            }
            LINES(low_nibbles)
            ROWS_6X4(STEP)
            at += 4;
            LINES(high_nibbles)
            ROWS_6X4(STEP)
        }
        if (is_last) {
            const __mmask16 is_later = group == 0 ? 0 : 0xffff; /* than the first group */
            const v16 s0 = lanes_floats(u0 + q.at.scales, place, type);
            const v16 s1 = lanes_floats(u1 + q.at.scales, place, type);
            const v16 s2 = lanes_floats(u2 + q.at.scales, place, type);
            const v16 s3 = lanes_floats(u3 + q.at.scales, place, type);
            ROWS_6X4(SCALE)
        } else {
            ROWS_6X4(STORE)
        }
    }
#undef START
#undef LOAD
#undef STORE
#undef STEP
#undef SCALED
#undef SCALE
}

#define MICRO(name, kind, is_grouped, f)                                                           \
    static __attribute__((noinline)) void name(int n_rows, const struct sums_args *s)              \
    {                                                                                              \
        ROW_COUNTS(n_rows, micro, kind, is_grouped, f, s)                                          \
    }
MICRO(i8_near, AHEAD_NEAR, 0, WEIGHT_I8)
MICRO(i8_four, AHEAD_FOUR, 0, WEIGHT_I8)
MICRO(i8_one, AHEAD_ONE, 0, WEIGHT_I8)
MICRO(i8_groups_near, AHEAD_NEAR, 1, WEIGHT_I8)
MICRO(i8_groups_four, AHEAD_FOUR, 1, WEIGHT_I8)
MICRO(i8_groups_one, AHEAD_ONE, 1, WEIGHT_I8)
MICRO(i4_near, AHEAD_NEAR, 0, WEIGHT_I4)
MICRO(i4_four, AHEAD_FOUR, 0, WEIGHT_I4)
MICRO(i4_one, AHEAD_ONE, 0, WEIGHT_I4)
MICRO(i4_groups_near, AHEAD_NEAR, 1, WEIGHT_I4)
MICRO(i4_groups_four, AHEAD_FOUR, 1, WEIGHT_I4)
MICRO(i4_groups_one, AHEAD_ONE, 1, WEIGHT_I4)

/* ---- groups, at most three rows at a time ----
 *
 * The chains stay in registers over all groups: one to three rows (AHEAD_NEAR) then read one stream a
 * tile and write nothing, and with many, lines of 4 bits feed enough arithmetic for three rows to
 * keep up with the L2 cache. */

static inline __attribute__((always_inline)) void
micro_groups(const int n_rows, const enum ahead kind, const enum weight_format f,
             const int has_zero, const struct sums_args *s)
{
    const size_t lda = s->lda, step = s->ahead_step;
    const struct lanes_quant q = *s->q;
    const uint8_t *b0 = s->b[0], *b1 = s->b[1], *b2 = s->b[2], *b3 = s->b[3];
    const uint8_t *const p0 = s->ahead[0];
    const uint8_t *a0 = s->a, *a1 = a0 + lda, *a2 = a1 + lda;
    const __m512i bias = _mm512_set1_epi32(f == WEIGHT_I4 ? -8 : -128);
    const size_t n_lines = (size_t)s->n_lines, group_lines = (size_t)s->group_lines;
    const enum dtype type = q.w->scale_type;
    const uint8_t *sums = s->row + q.sums_at + 4 * (size_t)s->group;
    const uint8_t *scales = s->row + q.sa_at + 4 * (size_t)s->group;
    const uint8_t *u0 = b0, *u1 = b1, *u2 = b2, *u3 = b3; /* sections */
    const struct sums_args *to = s;
    __m512i c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
    v16 f00, f01, f02, f03, f10, f11, f12, f13, f20, f21, f22, f23;
    f00 = f01 = f02 = f03 = f10 = f11 = f12 = f13 = f20 = f21 = f22 = f23 = _mm512_setzero_ps();

#define START(row_, x0, x1, x2, x3, y0, y1, y2, y3, a)                                             \
    if (has_zero) {                                                                                \
        const __m512i n_ = _mm512_sub_epi32(_mm512_setzero_si512(), quad(sums + row_ * lda));      \
        x0 = _mm512_mullo_epi32(w0, n_);                                                           \
        x1 = _mm512_mullo_epi32(w1, n_);                                                           \
        x2 = _mm512_mullo_epi32(w2, n_);                                                           \
        x3 = _mm512_mullo_epi32(w3, n_);                                                           \
    } else {                                                                                       \
        GROUP_START(row_, x0, x1, x2, x3, y0, y1, y2, y3, a)                                       \
    }
    if (s->group > 0) {
        ROWS_3X4(GROUP_LOAD)
    }
    size_t j = 0, at = 0;
    for (int group = s->group; j < n_lines; group++, sums += 4, scales += 4) {
        const size_t place = weight_group_in_section(&q.at, group) * TILE_N;
        if (place == 0) {
            for (size_t i = 0; kind == AHEAD_NEAR && i < q.at.codes; i += 64) {
                lanes_fetch_four(b0, b1, b2, b3, 64 * (j + AHEAD_LINES) + i);
            }
            NEXT_SECTIONS(j)
        }
        __m512i w0 = bias, w1 = bias, w2 = bias, w3 = bias; /* zero points, if any, then lines */
        if (has_zero) {
            w0 = n16_load_bytes(u0 + q.at.zeros + place);
            w1 = n16_load_bytes(u1 + q.at.zeros + place);
            w2 = n16_load_bytes(u2 + q.at.zeros + place);
            w3 = n16_load_bytes(u3 + q.at.zeros + place);
        }
        ROWS_3X4(START)
        const size_t end = j + group_lines < n_lines ? j + group_lines : n_lines;
        for (; j < end; j++) {
            if (kind == AHEAD_ONE) {
                _mm_prefetch((const char *)(p0 + (step * j & ~(size_t)63)), _MM_HINT_T1);
            } else {
                lanes_fetch_four(b0, b1, b2, b3, 64 * (j + AHEAD_LINES));
            }
            if (f == WEIGHT_I8) {
                LINES()
                ROWS_3X4(GROUP_STEP)
                at += 4;
                continue;
            }
            LINES(low_nibbles)
            ROWS_3X4(GROUP_STEP)
            at += 4;
            LINES(high_nibbles)
            ROWS_3X4(GROUP_STEP)
            at += 4;
        }
        const v16 s0 = lanes_floats(u0 + q.at.scales, place, type);
        const v16 s1 = lanes_floats(u1 + q.at.scales, place, type);
        const v16 s2 = lanes_floats(u2 + q.at.scales, place, type);
        const v16 s3 = lanes_floats(u3 + q.at.scales, place, type);
        ROWS_3X4(GROUP_SCALE)
    }
    /* gcc would keep twelve addresses through the loop, and weights on the stack for them */
    __asm__("" : "+r"(to));
    ROWS_3X4(GROUP_STORE)
#undef START
}
#undef LINES
#undef NEXT_SECTIONS

static __attribute__((noinline)) void i4_groups_many(int n_rows, const struct sums_args *s)
{
    if (n_rows != GROUP_ROWS) {
        i4_groups_one(n_rows, s);
    } else if (s->q->w->has_zero) {
        micro_groups(GROUP_ROWS, AHEAD_ONE, WEIGHT_I4, 1, s);
    } else {
        micro_groups(GROUP_ROWS, AHEAD_ONE, WEIGHT_I4, 0, s);
    }
}

#define FEW_GROUPS(name, f, has_zero)                                                              \
    static __attribute__((noinline)) void name(int n_rows, const struct sums_args *s)              \
    {                                                                                              \
        GROUP_COUNTS(n_rows, micro_groups, AHEAD_NEAR, f, has_zero, s)                             \
    }
FEW_GROUPS(i8_groups_few, WEIGHT_I8, 0)
FEW_GROUPS(i4_groups_few, WEIGHT_I4, 0)
FEW_GROUPS(i4_zeros_few, WEIGHT_I4, 1)

static void run_few_groups(const struct sums_args *s, int rows)
{
    if (s->q->w->format == WEIGHT_I8) {
        i8_groups_few(rows, s);
    } else if (s->q->w->has_zero) {
        i4_zeros_few(rows, s);
    } else {
        i4_groups_few(rows, s);
    }
}

static void run(const struct sums_args *s, int rows, enum ahead kind)
{
    static void (*const micros[2][2][AHEAD_KINDS])(int, const struct sums_args *) = {
        {{i8_near, i8_four, i8_one}, {i8_groups_near, i8_groups_four, i8_groups_one}},
        {{i4_near, i4_four, i4_one}, {i4_groups_near, i4_groups_four, i4_groups_many}}};
    micros[s->q->w->format == WEIGHT_I4][s->q->n_groups > 1][kind](rows, s);
}

/* Columns of a line. */
static int line_columns(const struct lanes_quant *q)
{
    return q->w->format == WEIGHT_I4 ? 8 : 4;
}

/* Where `line` of a tile is; with groups, where its section begins, of which it is the first. */
static size_t line_at(const struct lanes_quant *q, int line)
{
    const size_t at = weight_column_at(&q->at, line * line_columns(q));
    return at - q->at.codes;
}

/* Moves to the lines from `line` on, of `total`, of the tiles at b. */
static void place(struct sums_args *s, const uint8_t *const b[PANEL_TILES], int line, int n_lines,
                  int total)
{
    const int is_one = s->q->n_groups == 1;
    for (int t = 0; t < PANEL_TILES; t++) {
        s->b[t] = b[t] + line_at(s->q, line);
    }
    s->a = s->row + (size_t)line * (size_t)line_columns(s->q);
    s->n_lines = n_lines;
    s->group = is_one ? 0 : line / s->group_lines;
    s->is_first = !is_one || line == 0;
    s->is_last = !is_one || line + n_lines == total;
}

static int block_lines(const struct lanes_quant *q, int m)
{
    const int least = q->n_groups == 1 ? 1 : (1 << q->at.column_bits) / line_columns(q);
    const int block = m <= FEW_ROWS ? SHORT_LINES : BLOCK_LINES;
    return block > least ? block : least; /* powers of two */
}

static void blocks(struct sums_args *s, int m, const uint8_t *const b[PANEL_TILES], int total,
                   const void *a, float *c, const uint8_t *next)
{
    const int is_i4_groups = s->q->w->format == WEIGHT_I4 && s->q->n_groups > 1;
    const int most = is_i4_groups && m > MANY_ROWS ? GROUP_ROWS : MICRO_ROWS;
    const int n_groups = (m + most - 1) / most;
    const int block = block_lines(s->q, m);
    for (int line = 0; line < total; line += block) {
        const int n = total - line < block ? total - line : block;
        /* of codes, and of the scales in front of them */
        const size_t n_bytes = line_at(s->q, line + n) - line_at(s->q, line);
        for (int g = 0; g < n_groups; g++) {
            const int row = (int)((int64_t)m * g / n_groups),
                      rows = (int)((int64_t)m * (g + 1) / n_groups) - row;
            s->c = c + (size_t)row * s->ldc;
            s->row = (const uint8_t *)a + (size_t)row * s->lda;
            place(s, b, line, n, total);
            /* the groups share the prefetching of the next block: tile g % 4, part g / 4 */
            const int t = g % PANEL_TILES, n_parts = (n_groups - t + PANEL_TILES - 1) / PANEL_TILES;
            const size_t all = n_groups < PANEL_TILES ? (size_t)n_groups : (size_t)n_parts;
            const size_t part = n_groups < PANEL_TILES ? (size_t)g : (size_t)(g / PANEL_TILES);
            for (int i = 0; i < PANEL_TILES; i++) {
                s->ahead[i] = line + n < total ? s->b[i] + n_bytes
                              : next           ? next + s->tile[i] * s->q->tile_bytes
                                               : s->b[i];
                s->ahead[i] += n_bytes * part / all & ~(size_t)63;
            }
            s->ahead_step = (n_bytes / (size_t)n + all - 1) / all;
            if (n_groups < PANEL_TILES) {
                run(s, rows, m <= FEW_ROWS ? AHEAD_NEAR : AHEAD_FOUR);
            } else {
                s->ahead[0] = s->ahead[t];
                run(s, rows, AHEAD_ONE);
            }
        }
    }
}

void avx512bf16_sums(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                     int tile, int n_tiles, const void *next)
{
    const struct lanes_quant q = lanes_quant_of(w, tile);
    struct sums_args s = {.c = c, .ldc = ldc, .lda = lda, .row = a, .q = &q};
    const uint8_t *b[PANEL_TILES];
    const int total = w->k / line_columns(&q);
    s.group_lines = q.n_groups == 1 ? total : q.group / line_columns(&q);
    for (int t = 0; t < PANEL_TILES; t++) {
        s.tile[t] = t < n_tiles ? (size_t)t : 0;
        s.col[t] = s.tile[t] * TILE_N;
        b[t] = q.tiles + s.tile[t] * q.tile_bytes;
    }
    blocks(&s, m, b, total, a, c, next);
}

/* Quarters of the tiles side by side, each one long run: what is fetched ahead in the last lines of a
 * tile is the next one's. */
void avx512bf16_sums_few(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w,
                         int m, int tile, int tile_end)
{
    struct lanes_quant q = lanes_quant_of(w, tile);
    struct sums_args s = {.ldc = ldc, .lda = lda, .q = &q, .ahead_step = 64};
    const int total = w->k / line_columns(&q), n_tiles = tile_end - tile;
    const int quarter = (n_tiles + PANEL_TILES - 1) / PANEL_TILES;
    const int is_one = q.n_groups == 1, most = fused_rows(m, is_one ? m : GROUP_ROWS);
    s.group_lines = is_one ? total : q.group / line_columns(&q);
    for (int i = 0; i < quarter; i++, q.tiles += q.tile_bytes) {
        const uint8_t *b[PANEL_TILES];
        for (int t = 0; t < PANEL_TILES; t++) {
            s.tile[t] = t * quarter + i < n_tiles ? (size_t)(t * quarter) : 0;
            s.col[t] = s.tile[t] * TILE_N;
            b[t] = q.tiles + s.tile[t] * q.tile_bytes;
            s.ahead[t] = b[t] + AHEAD_LINES * 64;
        }
        for (int row = 0; row < m; row += most) {
            const int rows = m - row < most ? m - row : most;
            s.c = c + (size_t)row * ldc + (size_t)i * TILE_N;
            s.row = (const uint8_t *)a + (size_t)row * lda;
            place(&s, b, 0, total, total);
            if (is_one) {
                run(&s, rows, AHEAD_NEAR);
            } else {
                run_few_groups(&s, rows);
            }
        }
    }
}
