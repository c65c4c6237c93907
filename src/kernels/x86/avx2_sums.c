/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2: few int8 rows by codes of 4 and 6 bits.
 *
 * Four quarters of the range of tiles are walked side by side, a group of columns of each by turns,
 * so that every stream is one long run. What is multiplied is half a tile, eight rows of it: then
 * the sums of six rows of activations and what they need fit sixteen registers.
 *
 * Codes of 4 and 6 bits are multiplied as bytes, VPMADDUBSW, which adds two products into 16 bits:
 * at most 2 * 15 * 128, of which eight fit, or 2 * 63 * 128, of which two do, before they are
 * widened. Products of whole bytes don't fit: lanes/quant.h multiplies them, as 16 bits.
 * All sums are exact, so their order is free; zero points go out through the sum of a row's codes. */
#include "kernels/x86/avx2_v16.h"

#include "kernels/lanes/quant.h"
#include "kernels/x86/x86.h"

#define WHOLE_ROWS  2    /* rows that leave registers for both halves of a tile */
#define AHEAD_BYTES 2048 /* prefetch distance of a stream, at least */

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
    int is_first;
    int32_t *sum; /* [rows][TILE_N] */
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

/* Half a tile, or all of it for so few rows that their sums fit. */
static inline __attribute__((always_inline)) void half(const int n_rows, const int is_whole,
                                                       const int is_fetching,
                                                       const enum weight_format f,
                                                       const struct sums_half *s)
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
    if (!s->is_first) {
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
    ROWS_6X4(STORE)
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

/* One tile of each stream for n_rows rows. */
static inline __attribute__((always_inline)) void
micro(const int n_rows, const enum weight_format f, const struct sums_args *s)
{
    _Alignas(64) int32_t sums[PANEL_TILES][MICRO_ROWS * TILE_N];
    const struct lanes_quant q = *s->q;
    const int k = q.w->k, is_one = q.n_groups == 1, step = is_one ? QUANT_COLUMNS : q.group;
    const size_t code_bytes = (size_t)k * q.at.column_bytes;
    const size_t step_bytes = (size_t)step * q.at.column_bytes;
    const size_t ahead = (AHEAD_BYTES + step_bytes - 1) / step_bytes * step_bytes;
    const int has_sections = q.at.section_bytes > 0; /* then a stream has no gaps */
    /* else what a group fetches of what lies behind the codes of the next tile */
    const size_t rest = has_sections ? 0 : (q.tile_bytes - q.at.scales) / (size_t)q.n_groups;
    struct sums_half h = {.lda = s->lda};
    for (int from = 0, group = 0; from < k; from += step, group += !is_one) {
        const int left = k - from, n = left < step ? left : step, is_last = !is_one || left <= step;
        const size_t place = weight_column_at(&q.at, from), later = place + ahead;
        const size_t lead = weight_group_in_section(&q.at, group) == 0 ? q.at.codes : 0;
        h.is_first = !is_one || from == 0;
        h.n_units = n / 8;
        h.a = s->a + from;
        for (int t = 0; t < s->n_streams; t++) {
            const size_t tile = (size_t)(t * s->stride);
            const uint8_t *const start = q.tiles + tile * q.tile_bytes;
            const int is_here = has_sections || later < code_bytes;
            h.b = start + place;
            h.ahead = start + (is_here ? later : later - code_bytes + q.tile_bytes);
            for (size_t i = lead; i > 0; i -= 64) {
                v16_prefetch(h.ahead - i);
            }
            h.sum = sums[t];
            if (n_rows <= WHOLE_ROWS) {
                half(n_rows, 1, 1, f, &h);
            } else {
                half(n_rows, 0, 1, f, &h);
                h.b += 32;
                h.sum += TILE_N / 2;
                half(n_rows, 0, 0, f, &h);
            }
            if (!is_last) {
                continue;
            }
            lanes_scale_tile(s->c + tile * TILE_N, s->ldc, sums[t], TILE_N, &q, (int)tile, group,
                             s->a, s->lda, n_rows);
            const uint8_t *const next = start + q.tile_bytes + q.at.scales;
            for (size_t i = rest * (size_t)group & ~(size_t)63; i < rest * (size_t)(group + 1);
                 i += 64) {
                v16_prefetch(next + i);
            }
        }
    }
}

#define MICRO(name, f)                                                                             \
    static __attribute__((noinline)) void name(int n_rows, const struct sums_args *s)              \
    {                                                                                              \
        ROW_COUNTS(n_rows, micro, f, s)                                                            \
    }
MICRO(i6, WEIGHT_I6)
MICRO(i4, WEIGHT_I4)

int avx2_takes_sums(const struct weight *w)
{
    return weight_is_quantized(w) && w->input == INPUT_I8 &&
           (w->format == WEIGHT_I4 || w->format == WEIGHT_I6);
}

void avx2_sums_few(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                   int tile, int tile_end)
{
    struct lanes_quant q = lanes_quant_of(w, tile);
    const int n_tiles = tile_end - tile, quarter = (n_tiles + PANEL_TILES - 1) / PANEL_TILES;
    struct sums_args s = {.ldc = ldc, .a = a, .lda = lda, .q = &q, .stride = quarter};
    for (int i = 0; i < quarter; i++, q.tiles += q.tile_bytes) {
        s.c = c + (size_t)i * TILE_N;
        s.n_streams = (n_tiles - i + quarter - 1) / quarter;
        if (w->format == WEIGHT_I4) {
            i4(m, &s);
        } else {
            i6(m, &s);
        }
    }
}
