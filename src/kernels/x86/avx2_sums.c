/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2: few int8 rows by codes of 4 and 6 bits.
 *
 * Four quarters of the range of tiles are walked side by side, a group of columns of each by turns,
 * so that every stream is one long run. One or two rows in groups take the range as one stream: their
 * chains then stay in registers over a tile. What is multiplied is half a tile, eight rows of it: then
 * the sums of six rows of activations and what they need fit sixteen registers.
 *
 * Codes of 4 and 6 bits are multiplied as bytes, VPMADDUBSW, which adds two products into 16 bits:
 * at most 2 * 15 * 128, of which eight fit, or 2 * 63 * 128, of which two do, before they are
 * widened. Products of whole bytes don't fit: lanes/quant.h multiplies them, as 16 bits.
 * All sums are exact, so their order is free; zero points go out through the sum of a row's codes.
 *
 * A group's sums are scaled into c from registers. They and what zero points take off are below 2^24
 * then, so that fp32 holds them: the subtraction is exact there, too. */
#include "kernels/x86/avx2_v16.h"

#include "kernels/lanes/quant.h"
#include "kernels/x86/x86.h"

#define WHOLE_ROWS      2    /* rows that leave registers for both halves of a tile */
#define AHEAD_BYTES     2048 /* prefetch distance of a stream, at least */
#define ONE_AHEAD_BYTES 4096 /* of a single one */

struct sums_args {
    float *c; /* of the first stream's tile */
    size_t ldc;
    const uint8_t *a; /* rows of quantize() */
    size_t lda;
    const struct lanes_quant *q; /* at the first stream's tile */
    int n_streams, stride;       /* and tiles from one to the next */
};

/* Half of a tile's columns of a call. */
struct sums_half {
    const uint8_t *b, *ahead; /* ahead: what is fetched for it */
    const uint8_t *a;         /* int8 columns of rows */
    size_t lda;
    int n_units; /* of 8 columns */
    /* one scale a row: sums wait here, [rows][TILE_N] */
    int is_first;
    int32_t *sum;
    /* groups: */
    const struct lanes_quant *q;
    const uint8_t *lead;            /* the section (kernels.h) */
    size_t lane, place, super;      /* in a tile; of the group's and the super-group's first lane */
    const uint8_t *scales, *totals; /* of the first row's group: its scale, its sum of codes */
    float *c;
    size_t ldc;
};

/* Of so few rows that a whole tile's fit in registers; the others' names are for the macros. */
struct chains {
    __m256 f00, f01, f10, f11, f20, f21, f30, f31, f40, f41, f50, f51;
};

static inline __attribute__((always_inline)) __m256i spread(const uint8_t *a)
{
    int32_t v;
    memcpy(&v, a, 4);
    return _mm256_set1_epi32(v);
}

/* Sums that stay where they are: gcc would turn a chain of them into a tree, and spill its leaves. */
static inline __attribute__((always_inline)) __m256i plus16(__m256i sum, __m256i x)
{
    sum = _mm256_add_epi16(sum, x);
    __asm__("" : "+x"(sum));
    return sum;
}

static inline __attribute__((always_inline)) __m256i plus32(__m256i sum, __m256i x)
{
    sum = _mm256_add_epi32(sum, x);
    __asm__("" : "+x"(sum));
    return sum;
}

static inline __attribute__((always_inline)) __m256 floats8(const uint8_t *p, size_t at,
                                                            enum dtype type)
{
    if (type == DTYPE_F32) {
        return _mm256_loadu_ps((const float *)(const void *)p + at);
    }
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(p + 2 * at));
    return type == DTYPE_F16 ? _mm256_cvtph_ps(x)
                             : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

static inline __attribute__((always_inline)) __m256i bytes8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

/* Scales (offsets, with the parts of those) of lanes `lane` and the following seven. */
static inline __attribute__((always_inline)) __m256 level8(const struct sums_half *s, size_t sub,
                                                           size_t super, size_t lane)
{
    const __m256i x = bytes8(s->lead + sub + s->place + lane);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(x, _mm256_set1_epi32(128))),
                         floats8(s->lead + super, s->super + lane, s->q->w->scale_type));
}

static inline __attribute__((always_inline)) __m256 scale8(const struct sums_half *s, size_t lane)
{
    const struct weight_parts *at = &s->q->at;
    return s->q->super_groups != 0
               ? level8(s, at->scales, at->supers, lane)
               : floats8(s->lead + at->scales, s->place + lane, s->q->w->scale_type);
}

static inline __attribute__((always_inline)) __m256 zero8(const struct sums_half *s, size_t lane,
                                                          const enum weight_format f)
{
    const struct weight *w = s->q->w;
    return w->has_zero ? _mm256_cvtepi32_ps(bytes8(s->lead + s->q->at.zeros + s->place + lane))
                       : _mm256_set1_ps(f == WEIGHT_I6  ? 32.0f
                                        : w->has_offset ? 0.0f
                                                        : 8.0f);
}

/* Half a tile, or all of it for so few rows that their sums fit. */
static inline __attribute__((always_inline)) void
half(const int n_rows, const int is_whole, const int is_fetching, const int is_grouped,
     const enum weight_format f, const struct sums_half *s, struct chains *chains)
{
    const uint8_t *b = s->b, *ahead = s->ahead;
    const size_t lda = s->lda;
    const uint8_t *a0 = s->a, *a1 = a0 + lda, *a2 = a1 + lda, *a3 = a2 + lda, *a4 = a3 + lda,
                  *a5 = a4 + lda;
    int32_t *const sum = s->sum;
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    /* columns of names: sums of 32 bits and of 16 of the half, those of the other half */
    __m256i c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
    __m256i c30, c31, c32, c33, c40, c41, c42, c43, c50, c51, c52, c53;
    c00 = c10 = c20 = c30 = c40 = c50 = c02 = c12 = c22 = c32 = c42 = c52 = _mm256_setzero_si256();
    c01 = c11 = c21 = c31 = c41 = c51 = c03 = c13 = c23 = c33 = c43 = c53 = _mm256_setzero_si256();
#define AT(row, lanes) ((__m256i *)(void *)(sum + row * TILE_N + lanes))
#define LOAD(row_, x, t, y, u, a)                                                                  \
    x = _mm256_loadu_si256(AT(row_, 0));                                                           \
    y = is_whole ? _mm256_loadu_si256(AT(row_, 8)) : y;
#define STORE(row_, x, t, y, u, a)                                                                 \
    _mm256_storeu_si256(AT(row_, 0), x);                                                           \
    if (is_whole) {                                                                                \
        _mm256_storeu_si256(AT(row_, 8), y);                                                       \
    }
#define BYTES(row_, x, t, y, u, a)                                                                 \
    {                                                                                              \
        const __m256i a_ = spread(a + at_);                                                        \
        t = _mm256_maddubs_epi16(w_, a_);                                                          \
        u = is_whole ? _mm256_maddubs_epi16(v_, a_) : u;                                           \
    }
#define MORE(row_, x, t, y, u, a)                                                                  \
    {                                                                                              \
        const __m256i a_ = spread(a + at_);                                                        \
        t = plus16(t, _mm256_maddubs_epi16(w_, a_));                                               \
        u = is_whole ? plus16(u, _mm256_maddubs_epi16(v_, a_)) : u;                                \
    }
#define WIDEN(row_, x, t, y, u, a)                                                                 \
    x = plus32(x, _mm256_madd_epi16(t, ones));                                                     \
    y = is_whole ? plus32(y, _mm256_madd_epi16(u, ones)) : y;
#define SCALED(x, s_, z_, acc)                                                                     \
    _mm256_fmadd_ps(_mm256_fnmadd_ps(z_, n_, _mm256_cvtepi32_ps(x)), _mm256_mul_ps(s_, sa_), acc)
#define ADDED(o_, acc) _mm256_fmadd_ps(n_, _mm256_mul_ps(o_, sa_), acc)
/* The chains of a whole tile are in registers, those of half a tile in c. */
#define SCALE(row_, x, t, y, u, a)                                                                 \
    {                                                                                              \
        const __m256 sa_ = _mm256_castsi256_ps(spread(s->scales + row_ * lda));                    \
        const __m256 n_ = _mm256_cvtepi32_ps(spread(s->totals + row_ * lda));                      \
        if (is_whole) {                                                                            \
            chains->f##row_##0 = SCALED(x, s0, z0, chains->f##row_##0);                            \
            chains->f##row_##1 = SCALED(y, s1, z1, chains->f##row_##1);                            \
        } else {                                                                                   \
            float *const p_ = s->c + row_ * s->ldc;                                                \
            _mm256_storeu_ps(p_, SCALED(x, s0, z0, _mm256_loadu_ps(p_)));                          \
        }                                                                                          \
    }
#define OFFSET(row_, x, t, y, u, a)                                                                \
    {                                                                                              \
        const __m256 sa_ = _mm256_castsi256_ps(spread(s->scales + row_ * lda));                    \
        const __m256 n_ = _mm256_cvtepi32_ps(spread(s->totals + row_ * lda));                      \
        if (is_whole) {                                                                            \
            chains->f##row_##0 = ADDED(o0, chains->f##row_##0);                                    \
            chains->f##row_##1 = ADDED(o1, chains->f##row_##1);                                    \
        } else {                                                                                   \
            float *const p_ = s->c + row_ * s->ldc;                                                \
            _mm256_storeu_ps(p_, ADDED(o0, _mm256_loadu_ps(p_)));                                  \
        }                                                                                          \
    }
/* DO for the four columns that are OF(i), at byte `at` of the rows */
#define FOUR(OF, i, at, DO)                                                                        \
    {                                                                                              \
        const __m256i w_ = OF(i), v_ = is_whole ? OF(i + 32) : w_;                                 \
        const size_t at_ = at;                                                                     \
        ROWS_6X4(DO)                                                                               \
    }
#define CODES(i) _mm256_load_si256((const __m256i *)(const void *)(b + (i)))
#define FETCH(i)                                                                                   \
    if (is_fetching) {                                                                             \
        v16_prefetch(ahead + (i));                                                                 \
    }
#define LOW(i)  _mm256_and_si256(CODES(i), nibble)
#define HIGH(i) _mm256_and_si256(_mm256_srli_epi16(CODES(i), 4), nibble)
    if (!is_grouped && !s->is_first) {
        ROWS_6X4(LOAD)
    }
    int left = s->n_units;
    if (f == WEIGHT_I4) {
#define NIBBLES(i, DO)                                                                             \
    FETCH(64 * i)                                                                                  \
    FOUR(LOW, 64 * i, 8 * i, DO)                                                                   \
    FOUR(HIGH, 64 * i, 8 * i + 4, MORE)
        for (; left >= 4; left -= 4, b += 256, ahead += 256) {
            NIBBLES(0, BYTES)
            NIBBLES(1, MORE)
            NIBBLES(2, MORE)
            NIBBLES(3, MORE)
            ROWS_6X4(WIDEN)
            a0 += 32, a1 += 32, a2 += 32, a3 += 32, a4 += 32, a5 += 32;
        }
        for (; left > 0; left--, b += 64, ahead += 64) {
            NIBBLES(0, BYTES)
            ROWS_6X4(WIDEN)
            a0 += 8, a1 += 8, a2 += 8, a3 += 8, a4 += 8, a5 += 8;
        }
#undef NIBBLES
    } else {
        const __m256i upper = _mm256_set1_epi8(0x30);
        /* i: of the low bits; the line of upper bits lies 128 or 64 bytes further */
#define UPPER(i, SHIFT, n) _mm256_and_si256(SHIFT(CODES(i), n), upper)
#define SIX0(i)            _mm256_or_si256(LOW(i), UPPER(i + 128, _mm256_slli_epi16, 4))
#define SIX1(i)            _mm256_or_si256(HIGH(i), UPPER(i + 128, _mm256_slli_epi16, 2))
#define SIX2(i)            _mm256_or_si256(LOW(i), _mm256_and_si256(CODES(i + 64), upper))
#define SIX3(i)            _mm256_or_si256(HIGH(i), UPPER(i + 64, _mm256_srli_epi16, 2))
        for (; left > 0; left -= 2, b += 192, ahead += 192) {
            FETCH(0)
            FETCH(64)
            FETCH(128)
            FOUR(SIX0, 0, 0, BYTES)
            FOUR(SIX1, 0, 4, MORE)
            ROWS_6X4(WIDEN)
            FOUR(SIX2, 64, 8, BYTES)
            FOUR(SIX3, 64, 12, MORE)
            ROWS_6X4(WIDEN)
            a0 += 16, a1 += 16, a2 += 16, a3 += 16, a4 += 16, a5 += 16;
        }
#undef UPPER
#undef SIX0
#undef SIX1
#undef SIX2
#undef SIX3
    }
    if (is_grouped) {
        const int has_offset = s->q->w->has_offset;
        const struct weight_parts *const parts = &s->q->at;
        const __m256 none = _mm256_setzero_ps();
        const __m256 s0 = scale8(s, s->lane), z0 = zero8(s, s->lane, f);
        const __m256 s1 = is_whole ? scale8(s, 8) : none, z1 = is_whole ? zero8(s, 8, f) : none;
        ROWS_6X4(SCALE)
        if (has_offset) {
            const __m256 o0 = level8(s, parts->offsets, parts->super_offsets, s->lane);
            const __m256 o1 = is_whole ? level8(s, parts->offsets, parts->super_offsets, 8) : none;
            ROWS_6X4(OFFSET)
        }
    } else {
        ROWS_6X4(STORE)
    }
#undef SCALED
#undef SCALE
#undef ADDED
#undef OFFSET
#undef AT
#undef LOAD
#undef STORE
#undef BYTES
#undef MORE
#undef WIDEN
#undef FOUR
#undef CODES
#undef FETCH
#undef LOW
#undef HIGH
}

/* One tile of each stream for n_rows rows, one scale a row. */
static inline __attribute__((always_inline)) void
micro(const int n_rows, const enum weight_format f, const struct sums_args *s)
{
    _Alignas(64) int32_t sums[PANEL_TILES][MICRO_ROWS * TILE_N];
    const struct lanes_quant q = *s->q;
    const int k = q.w->k;
    const size_t code_bytes = (size_t)k * q.at.column_bytes;
    struct sums_half h = {.lda = s->lda};
    for (int from = 0; from < k; from += QUANT_COLUMNS) {
        const int left = k - from, is_last = left <= QUANT_COLUMNS;
        const size_t place = (size_t)from * q.at.column_bytes, later = place + AHEAD_BYTES;
        h.is_first = from == 0;
        h.n_units = (is_last ? left : QUANT_COLUMNS) / 8;
        h.a = s->a + from;
        for (int t = 0; t < s->n_streams; t++) {
            const size_t tile = (size_t)(t * s->stride);
            const uint8_t *const start = q.tiles + tile * q.tile_bytes;
            h.b = start + place;
            h.ahead = start + (later < code_bytes ? later : later - code_bytes + q.tile_bytes);
            h.sum = sums[t];
            if (n_rows <= WHOLE_ROWS) {
                half(n_rows, 1, 1, 0, f, &h, NULL);
            } else {
                half(n_rows, 0, 1, 0, f, &h, NULL);
                h.b += 32;
                h.sum += TILE_N / 2;
                half(n_rows, 0, 0, 0, f, &h, NULL);
            }
            if (is_last) {
                lanes_scale_tile(s->c + tile * TILE_N, s->ldc, sums[t], TILE_N, &q, (int)tile, 0,
                                 s->a, s->lda, n_rows);
                for (size_t i = q.at.scales; i < q.tile_bytes; i += 64) {
                    v16_prefetch(start + q.tile_bytes + i);
                }
            }
        }
    }
}

/* The same in groups. Up to WHOLE_ROWS rows have one stream. */
static inline __attribute__((always_inline)) void
micro_groups(const int n_rows, const enum weight_format f, const struct sums_args *s)
{
    const struct lanes_quant *const q = s->q;
    const int k = q->w->k, step = q->group;
    const size_t tile_step = (size_t)s->stride * q->tile_bytes, stride = (size_t)s->stride * TILE_N;
    struct sums_half h = {.lda = s->lda, .q = q, .ldc = s->ldc};
    const size_t ahead = n_rows <= WHOLE_ROWS ? ONE_AHEAD_BYTES : AHEAD_BYTES;
    const __m256 none = _mm256_setzero_ps();
    struct chains y = {.f00 = none, .f01 = none, .f10 = none, .f11 = none};
    for (int t = 0; n_rows > WHOLE_ROWS && t < s->n_streams; t++) {
        for (int row = 0; row < n_rows; row++) {
            v16_store(s->c + (size_t)row * s->ldc + (size_t)t * stride, v16_zero());
        }
    }
    h.scales = s->a + q->sa_at;
    h.totals = s->a + q->sums_at;
    for (int from = 0, group = 0; from < k; from += step, group++, h.scales += 4, h.totals += 4) {
        const int left = k - from;
        const size_t column = weight_column_at(&q->at, from);
        const size_t section = weight_section_at(&q->at, group);
        const size_t i = weight_group_in_section(&q->at, group), lead = i == 0 ? q->at.codes : 0;
        const int n_super = q->super_groups;
        const uint8_t *start = q->tiles;
        h.place = i * TILE_N;
        h.super = n_super > 0 ? weight_super_in_section(&q->at, group, n_super) * TILE_N : 0;
        h.n_units = (left < step ? left : step) / 8;
        h.a = s->a + from;
        h.c = s->c;
        for (int t = 0; t < s->n_streams; t++, start += tile_step, h.c += stride) {
            h.lead = start + section;
            h.b = start + column;
            h.ahead = h.b + ahead;
            for (size_t at = lead; at > 0; at -= 64) {
                v16_prefetch(h.ahead - at);
            }
            h.lane = 0;
            if (n_rows <= WHOLE_ROWS) {
                half(n_rows, 1, 1, 1, f, &h, &y);
            } else {
                half(n_rows, 0, 1, 1, f, &h, NULL);
                h.b += 32;
                h.lane = 8;
                h.c += 8;
                half(n_rows, 0, 0, 1, f, &h, NULL);
                h.c -= 8;
            }
        }
    }
    if (n_rows <= WHOLE_ROWS) {
        _mm256_storeu_ps(s->c, y.f00);
        _mm256_storeu_ps(s->c + 8, y.f01);
    }
    if (n_rows == WHOLE_ROWS) {
        _mm256_storeu_ps(s->c + s->ldc, y.f10);
        _mm256_storeu_ps(s->c + s->ldc + 8, y.f11);
    }
}

#define MICRO(name, micro, f)                                                                      \
    static __attribute__((noinline)) void name(int n_rows, const struct sums_args *s)              \
    {                                                                                              \
        ROW_COUNTS(n_rows, micro, f, s)                                                            \
    }
MICRO(i6, micro, WEIGHT_I6)
MICRO(i4, micro, WEIGHT_I4)
MICRO(i6_groups, micro_groups, WEIGHT_I6)
MICRO(i4_groups, micro_groups, WEIGHT_I4)

int avx2_takes_sums(const struct weight *w)
{
    return weight_is_quantized(w) && w->input == INPUT_I8 &&
           (w->format == WEIGHT_I4 || w->format == WEIGHT_I6);
}

void avx2_sums_few(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                   int tile, int tile_end)
{
    static void (*const micros[2][2])(int, const struct sums_args *) = {{i4, i4_groups},
                                                                        {i6, i6_groups}};
    struct lanes_quant q = lanes_quant_of(w, tile);
    const int most = q.n_groups > 1 && m <= WHOLE_ROWS ? 1 : PANEL_TILES;
    const int n_tiles = tile_end - tile, quarter = (n_tiles + most - 1) / most;
    struct sums_args s = {.ldc = ldc, .a = a, .lda = lda, .q = &q, .stride = quarter};
    for (int i = 0; i < quarter; i++, q.tiles += q.tile_bytes) {
        s.c = c + (size_t)i * TILE_N;
        s.n_streams = (n_tiles - i + quarter - 1) / quarter;
        micros[w->format == WEIGHT_I6][q.n_groups > 1](m, &s);
    }
}
