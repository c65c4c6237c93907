/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products with quantized weights on 16 lanes.
 *
 * Weights only: a block of QUANT_COLUMNS columns of a panel is decoded to fp32 pairs (32 KB, the L1
 * cache) and multiplied by the loops of lanes/gemm.h, which therefore know nothing of formats; then
 * each group's chain is scaled into c.
 *
 * int8 activations: bytes of both sides are widened to int16 halves of 32-bit lanes and multiplied
 * with the instruction that adds two such products to an int32. It exists on every instruction set
 * and can't saturate, unlike the product of bytes of AVX2. The columns of a block are the same; a
 * row's sum with one scale waits in c, as bits of int32. */
#ifndef TERN_KERNELS_LANES_QUANT_H
#define TERN_KERNELS_LANES_QUANT_H

#include "kernels/lanes/gemm.h"

#define QUANT_COLUMNS 128 /* of a block: a multiple of every group that isn't a whole row */
#define LANES_SHARED  static __attribute__((noinline, unused))

/* Where things are in a panel's tiles and in a row of quantize(). */
struct lanes_quant {
    const struct weight *w;
    const uint8_t *tiles; /* the panel's first tile */
    size_t tile_bytes;
    struct weight_parts at;
    size_t sa_at, sums_at;
    int n_groups, group;
    int super_groups; /* groups that share a super-scale; 0: scales of one level */
};

LANES_INLINE struct lanes_quant lanes_quant_of(const struct weight *w, int tile)
{
    struct lanes_quant q = {.w = w, .n_groups = weight_groups(w), .at = weight_parts(w)};
    q.tile_bytes = q.at.end;
    q.group = q.n_groups == 1 ? w->k : w->group;
    q.tiles = (const uint8_t *)w->data + (size_t)tile * q.tile_bytes;
    q.super_groups = w->super == 0 ? 0 : w->super >= w->k ? q.n_groups : w->super / q.group;
    q.sa_at = lanes_pad64((size_t)w->k * (w->input == INPUT_I8 ? 1 : 2));
    q.sums_at = q.sa_at + lanes_pad64((size_t)q.n_groups * 4);
    return q;
}

LANES_INLINE v16 lanes_floats(const uint8_t *p, size_t at, enum dtype type)
{
    if (type == DTYPE_F32) {
        return v16_load((const float *)(const void *)p + at);
    }
    if (type == DTYPE_F16) {
        return v16_load_f16((const uint16_t *)(const void *)p + at);
    }
    return v16_load_bf16((const uint16_t *)(const void *)p + at);
}

/* Codes of a tile from column `from` on; they go on to the end of a section (kernels.h), which blocks
 * of QUANT_COLUMNS from multiples of that don't cross. */
LANES_INLINE const uint8_t *lanes_codes(const struct lanes_quant *q, int tile, int from)
{
    return q->tiles + (size_t)tile * q->tile_bytes + weight_column_at(&q->at, from);
}

/* A scale or an offset of two levels, exact. */
LANES_INLINE v16 lanes_level(const struct lanes_quant *q, int tile, int group, size_t sub,
                             size_t super)
{
    const uint8_t *p = q->tiles + (size_t)tile * q->tile_bytes + weight_section_at(&q->at, group);
    const size_t place = weight_group_in_section(&q->at, group);
    const n16 x = n16_sub(n16_load_bytes(p + sub + place * TILE_N), n16_set1(128));
    const size_t above =
        q->super_groups > 0 ? weight_super_in_section(&q->at, group, q->super_groups) : 0;
    return v16_mul(n16_float(x), lanes_floats(p + super, above * TILE_N, q->w->scale_type));
}

LANES_INLINE v16 lanes_quant_scale(const struct lanes_quant *q, int tile, int group)
{
    if (q->super_groups != 0) {
        return lanes_level(q, tile, group, q->at.scales, q->at.supers);
    }
    return lanes_floats(q->tiles + (size_t)tile * q->tile_bytes + q->at.scales +
                            weight_section_at(&q->at, group),
                        weight_group_in_section(&q->at, group) * TILE_N, q->w->scale_type);
}

LANES_INLINE v16 lanes_quant_offset(const struct lanes_quant *q, int tile, int group)
{
    return lanes_level(q, tile, group, q->at.offsets, q->at.super_offsets);
}

/* Fetches the scales of the panel that begins at `next`, if they lie behind each tile's codes,
 * where streams that read codes don't come by in time. */
LANES_INLINE void lanes_fetch_scales(const struct lanes_quant *q, const void *next)
{
    const int is_behind = q->n_groups > 1 && q->at.section_bytes == 0;
    for (size_t t = 0; next != NULL && is_behind && t < PANEL_TILES; t++) {
        const uint8_t *p = (const uint8_t *)next + t * q->tile_bytes;
        for (size_t at = q->at.scales; at < q->tile_bytes; at += 64) {
            v16_prefetch(p + at);
        }
    }
}

/* A line of each of four streams. */
LANES_INLINE void lanes_fetch_four(const uint8_t *b0, const uint8_t *b1, const uint8_t *b2,
                                   const uint8_t *b3, size_t at)
{
    v16_prefetch(b0 + at);
    v16_prefetch(b1 + at);
    v16_prefetch(b2 + at);
    v16_prefetch(b3 + at);
}

/* The 16 zero points of a group, in a matrix that has them. */
LANES_INLINE const uint8_t *lanes_zeros(const struct lanes_quant *q, int tile, int group)
{
    return q->tiles + (size_t)tile * q->tile_bytes + q->at.zeros +
           weight_section_at(&q->at, group) + weight_group_in_section(&q->at, group) * TILE_N;
}

LANES_INLINE n16 lanes_quant_zero(const struct lanes_quant *q, int tile, int group)
{
    if (q->w->has_zero) {
        return n16_load_bytes(lanes_zeros(q, tile, group));
    }
    const enum weight_format f = q->w->format;
    return n16_set1(f == WEIGHT_I8                       ? 128
                    : f == WEIGHT_I4 && q->w->has_offset ? 0
                    : f == WEIGHT_I4                     ? 8
                                                         : 32);
}

/* Codes that aren't whole bytes or nibbles are made bytes first, in the layout of I8. */
LANES_INLINE int lanes_is_coded(const struct weight *w)
{
    return w->format == WEIGHT_I6 || w->format == WEIGHT_C2;
}

LANES_INLINE void lanes_bytes_six(uint8_t *out, const uint8_t *p, int count)
{
    const n16 low = n16_set1(0x0f0f0f0f), high = n16_set1(0x30303030);
    for (int k = 0; k < count; k += 16, p += 192, out += 256) {
        const n16 a = n16_load(p), b = n16_load(p + 64), c = n16_load(p + 128);
        v16_prefetch(p + LANES_AHEAD_BYTES);
        v16_prefetch(p + LANES_AHEAD_BYTES + 64);
        v16_prefetch(p + LANES_AHEAD_BYTES + 128);
        n16_store(out, n16_or(n16_and(a, low), n16_and(n16_shl(c, 4), high)));
        n16_store(out + 64, n16_or(n16_and(n16_shr(a, 4), low), n16_and(n16_shl(c, 2), high)));
        n16_store(out + 128, n16_or(n16_and(b, low), n16_and(c, high)));
        n16_store(out + 192, n16_or(n16_and(n16_shr(b, 4), low), n16_and(n16_shr(c, 2), high)));
    }
}

/* The 15-bit number of 16 rows. */
LANES_INLINE n16 lanes_window(const uint8_t *p, v16 step, v16 start)
{
    const v16 x = v16_add(v16_mul(n16_float(n16_load_bytes(p)), step), start);
    return v16_floor(v16_add(x, v16_set1(0.5f)));
}

LANES_INLINE void lanes_bytes_two(uint8_t *out, const uint8_t *p, const uint8_t *grid, int count)
{
    const v16 step = v16_load((const float *)(const void *)grid);
    const v16 start = v16_load((const float *)(const void *)grid + TILE_N);
    const n16 six = n16_set1(63);
    for (int k = 0; k < count; k += 8, p += 32, out += 128) {
        const n16 a = lanes_window(p, step, start), b = lanes_window(p + 16, step, start);
        v16_prefetch(p + LANES_AHEAD_BYTES);
        for (unsigned i = 0; i < 2; i++) {
            const unsigned left = i == 0 ? 9 : 3, right = i == 0 ? 6 : 0;
            const n16 c0 = n16_and(n16_shr(a, left), six), c1 = n16_and(n16_shr(b, left), six);
            const n16 c2 = n16_and(n16_shr(a, right), six), c3 = n16_and(n16_shr(b, right), six);
            n16_store(out + 64 * i,
                      n16_or(n16_or(c0, n16_shl(c1, 8)), n16_or(n16_shl(c2, 16), n16_shl(c3, 24))));
        }
    }
}

/* Columns from .. from + count of one tile as bytes in the layout of I8; `from` and groups are
 * multiples of 16. */
LANES_SHARED void lanes_bytes(uint8_t *out, const struct lanes_quant *q, int tile, int from,
                              int count)
{
    const uint8_t *codes = lanes_codes(q, tile, from);
    if (q->w->format == WEIGHT_I6) {
        lanes_bytes_six(out, codes, count);
    } else {
        lanes_bytes_two(out, codes, q->tiles + (size_t)tile * q->tile_bytes + q->at.grid, count);
    }
}

LANES_INLINE float lanes_input_scale(const struct lanes_quant *q, const uint8_t *row, int group)
{
    float s;
    memcpy(&s, row + q->sa_at + 4 * (size_t)group, 4);
    return s;
}

/* ---- weights only ---- */

/* The code at bit `shift` of each lane as a number. */
LANES_INLINE v16 lanes_code(n16 x, unsigned shift, n16 zero, enum weight_format f)
{
    if (f == WEIGHT_F8_E4M3) { /* the f16 with the same fields is 2^8 times smaller */
        n16 c = n16_shr(x, shift);
        n16 h =
            n16_or(n16_shl(n16_and(c, n16_set1(0x80)), 8), n16_shl(n16_and(c, n16_set1(0x7f)), 7));
        return v16_mul(v16_of_f16(h), v16_set1(256.0f));
    }
    if (f == WEIGHT_F8_E5M2) { /* the upper half of an f16 */
        return v16_of_f16(n16_shl(n16_and(n16_shr(x, shift), n16_set1(0xff)), 8));
    }
    return n16_float(
        n16_sub(n16_and(n16_shr(x, shift), n16_set1(f == WEIGHT_I4 ? 15 : 255)), zero));
}

/* p: the codes of the columns. */
LANES_INLINE void lanes_decode_as(float *out, const struct lanes_quant *q, const uint8_t *p,
                                  int tile, int from, int count, enum weight_format f)
{
    const size_t unit_bytes = f == WEIGHT_I4 ? 64 : 128;
    n16 zero = lanes_quant_zero(q, tile, from / q->group);
    for (int k = 0; k < count; k += 8, p += unit_bytes, out += 8 * TILE_N) {
        const n16 a = n16_load(p), b = f == WEIGHT_I4 ? a : n16_load(p + 64);
        const unsigned high = f == WEIGHT_I4 ? 4 : 0; /* where b's codes begin */
        if (q->w->has_zero && k % 16 == 0) {
            zero = lanes_quant_zero(q, tile, (from + k) / q->group);
        }
        v16_prefetch(p + LANES_AHEAD_BYTES);
        if (f != WEIGHT_I4) {
            v16_prefetch(p + LANES_AHEAD_BYTES + 64);
        }
        v16_store(out, lanes_code(a, 0, zero, f));
        v16_store(out + 16, lanes_code(a, 16, zero, f));
        v16_store(out + 32, lanes_code(b, high, zero, f));
        v16_store(out + 48, lanes_code(b, high + 16, zero, f));
        v16_store(out + 64, lanes_code(a, 8, zero, f));
        v16_store(out + 80, lanes_code(a, 24, zero, f));
        v16_store(out + 96, lanes_code(b, high + 8, zero, f));
        v16_store(out + 112, lanes_code(b, high + 24, zero, f));
    }
}

/* Pairs of one tile's columns from .. from + count as [pair][even, odd][16]. */
LANES_SHARED void lanes_decode(float *out, const struct lanes_quant *q, int tile, int from,
                               int count)
{
    _Alignas(64) uint8_t bytes[QUANT_COLUMNS * TILE_N];
    const uint8_t *p = lanes_codes(q, tile, from);
    switch (q->w->format) {
    case WEIGHT_I8:
        lanes_decode_as(out, q, p, tile, from, count, WEIGHT_I8);
        break;
    case WEIGHT_I4:
        lanes_decode_as(out, q, p, tile, from, count, WEIGHT_I4);
        break;
    case WEIGHT_F8_E4M3:
        lanes_decode_as(out, q, p, tile, from, count, WEIGHT_F8_E4M3);
        break;
    case WEIGHT_F8_E5M2:
        lanes_decode_as(out, q, p, tile, from, count, WEIGHT_F8_E5M2);
        break;
    default:
        lanes_bytes(bytes, q, tile, from, count);
        lanes_decode_as(out, q, bytes, tile, from, count, WEIGHT_I8);
        break;
    }
}

/* c = fma(chain, s, c) for one group of rows x tiles; chains are at `from`. */
LANES_SHARED void lanes_scale_chains(float *c, size_t ldc, const float *from, size_t ld_from,
                                     const struct lanes_quant *q, int group, const uint8_t *a,
                                     size_t row_bytes, int rows, int n_tiles)
{
    for (int t = 0; t < n_tiles; t++) {
        const v16 scale = lanes_quant_scale(q, t, group);
        for (int i = 0; i < rows; i++) {
            float *to = c + (size_t)i * ldc + t * TILE_N;
            v16 s = scale;
            if (q->w->input != INPUT_ACT) {
                s = v16_mul(s, v16_set1(lanes_input_scale(q, a + (size_t)i * row_bytes, group)));
            }
            v16 chain = v16_load(from + (size_t)i * ld_from + t * TILE_N);
            v16_store(to, v16_fma(chain, s, group == 0 ? v16_zero() : v16_load(to)));
        }
    }
}

/* c = fma(sum of the group's activations, o, c); wide: the rows' activations of the group. */
LANES_SHARED void lanes_add_offsets(float *c, size_t ldc, const float *wide, size_t ld_wide,
                                    const struct lanes_quant *q, int group, int columns, int rows,
                                    int n_tiles)
{
    for (int i = 0; i < rows; i++) {
        v16 sum = v16_zero();
        for (int k = 0; k < columns; k += 16) {
            sum = v16_add(sum, v16_load_n(wide + (size_t)i * ld_wide + k, lanes_count(k, columns)));
        }
        const v16 all = v16_set1(v16_fold_add(sum));
        for (int t = 0; t < n_tiles; t++) {
            float *to = c + (size_t)i * ldc + t * TILE_N;
            v16_store(to, v16_fma(all, lanes_quant_offset(q, t, group), v16_load(to)));
        }
    }
}

/* Columns from .. from + count of rows as fp32. */
LANES_INLINE void lanes_widen(float *wide, const void *a, size_t lda, int rows, int from, int count,
                              const int32_t *order, enum act_type t)
{
    for (int i = 0; i < rows; i++) {
        float *to = wide + i * QUANT_COLUMNS;
        const size_t row = (size_t)i * lda;
        for (int k = 0; order != NULL && k < count; k++) {
            const size_t at = row + (size_t)order[from + k];
            to[k] = t == ACT_F32 ? ((const float *)a)[at] : bf16_to_f32(((const uint16_t *)a)[at]);
        }
        for (int k = 0; order == NULL && k < count; k += 16) {
            v16_store(to + k, lanes_load(a, row + (size_t)(from + k), lanes_count(k, count), t));
        }
    }
}

/* The chains of one decoded block for up to V16_ROWS widened rows, group by group. */
LANES_INLINE void lanes_quant_block(float *c, size_t ldc, const float *decoded, const float *wide,
                                    const uint8_t *a, size_t row_bytes, const struct lanes_quant *q,
                                    int rows, int n_tiles, int from, int count)
{
    _Alignas(64) float part[V16_ROWS * PANEL_TILES * TILE_N];
    const int is_one = q->n_groups == 1, step = is_one ? count : q->group;
    struct lanes_tile s = {.lda = QUANT_COLUMNS,
                           .tile_bytes = QUANT_COLUMNS * TILE_N * sizeof(float),
                           .c = is_one ? c : part,
                           .ldc = is_one ? ldc : PANEL_TILES * TILE_N};
    for (int at = 0; at < count; at += step) {
        const float *b = decoded + at * TILE_N;
        s.a = wide + at;
        s.b = (const char *)b;
        s.c = is_one ? c : part;
        s.pairs = (count - at < step ? count - at : step) / 2;
        s.is_first = is_one ? from == 0 : 1;
        if (rows == 1) {
            lanes_row(&s, n_tiles, LANES_DECODED);
        }
        for (int t = 0; rows > 1 && t < n_tiles; t++) {
            lanes_rows_any(&s, rows, LANES_DECODED);
            s.b += s.tile_bytes;
            s.c += TILE_N;
        }
        if (!is_one || from + count == q->w->k) {
            lanes_scale_chains(c, ldc, is_one ? c : part, s.ldc, q, (from + at) / q->group, a,
                               row_bytes, rows, n_tiles);
        }
        if (q->w->has_offset) {
            lanes_add_offsets(c, ldc, wide + at, QUANT_COLUMNS, q, (from + at) / q->group,
                              2 * s.pairs, rows, n_tiles);
        }
    }
}

LANES_INLINE void lanes_quant_chains(float *c, size_t ldc, const void *a, size_t lda,
                                     const struct weight *w, int m, int tile, int n_tiles,
                                     enum act_type t)
{
    _Alignas(64) float decoded[PANEL_TILES * QUANT_COLUMNS * TILE_N];
    _Alignas(64) float wide[V16_ROWS * QUANT_COLUMNS];
    const struct lanes_quant q = lanes_quant_of(w, tile);
    const int is_act = w->input == INPUT_ACT;
    const size_t row_bytes = is_act ? lda * (t == ACT_BF16 ? 2 : 4) : lda;
    const int32_t *order = w->order != NULL ? w->order[tile] : NULL;
    for (int from = 0; from < w->k; from += QUANT_COLUMNS) {
        const int count = w->k - from < QUANT_COLUMNS ? w->k - from : QUANT_COLUMNS;
        for (int i = 0; i < n_tiles; i++) {
            lanes_decode(decoded + i * QUANT_COLUMNS * TILE_N, &q, i, from, count);
        }
        for (int row = 0; row < m; row += V16_ROWS) {
            const int rows = m - row < V16_ROWS ? m - row : V16_ROWS;
            const uint8_t *x = (const uint8_t *)a + (size_t)row * row_bytes;
            if (is_act) {
                lanes_widen(wide, x, lda, rows, from, count, order, t);
            } else {
                lanes_widen(wide, x, lda / 2, rows, from, count, NULL, ACT_BF16);
            }
            lanes_quant_block(c + (size_t)row * ldc, ldc, decoded, wide, x, row_bytes, &q, rows,
                              n_tiles, from, count);
        }
    }
}

/* ---- int8 activations ---- */

/* One tile's c = fma((float)(sum - zero * sum of codes), s * sa, c); the sums are at `from`. */
LANES_INLINE void lanes_scale_tile(float *c, size_t ldc, const void *from, size_t ld_from,
                                   const struct lanes_quant *q, int tile, int group,
                                   const uint8_t *a, size_t lda, int rows)
{
    const v16 scale = lanes_quant_scale(q, tile, group);
    const n16 zero = lanes_quant_zero(q, tile, group);
    for (int i = 0; i < rows; i++) {
        const uint8_t *row = a + (size_t)i * lda;
        float *to = c + (size_t)i * ldc;
        int32_t codes;
        memcpy(&codes, row + q->sums_at + 4 * (size_t)group, 4);
        v16 s = v16_mul(scale, v16_set1(lanes_input_scale(q, row, group)));
        n16 sum = n16_load((const int32_t *)from + (size_t)i * ld_from);
        sum = n16_sub(sum, n16_mul(zero, n16_set1(codes)));
        v16 acc = v16_fma(n16_float(sum), s, group == 0 ? v16_zero() : v16_load(to));
        if (q->w->has_offset) {
            const v16 o = v16_mul(lanes_quant_offset(q, tile, group),
                                  v16_set1(lanes_input_scale(q, row, group)));
            acc = v16_fma(v16_set1((float)codes), o, acc);
        }
        v16_store(to, acc);
    }
}

LANES_SHARED void lanes_scale_sums(float *c, size_t ldc, const float *from, size_t ld_from,
                                   const struct lanes_quant *q, int group, const uint8_t *a,
                                   size_t lda, int rows, int n_tiles)
{
    for (int t = 0; t < n_tiles; t++) {
        lanes_scale_tile(c + t * TILE_N, ldc, from + t * TILE_N, ld_from, q, t, group, a, lda,
                         rows);
    }
}

struct lanes_sums {
    float *sum; /* int32 bits */
    size_t ld;
    const int32_t *a; /* [rows][QUANT_COLUMNS / 2]: of 16 quads the even halves, then the odd */
    const uint8_t *b;
    size_t tile_bytes;
    int unit, n_units; /* of 8 columns */
    int is_first;
};

/* The four pairs of halves of a unit: DO(weight halves, index of the activation halves). */
#define LANES_UNIT(b, u, f, DO)                                                                    \
    {                                                                                              \
        const n16 x_ = n16_load((b) + (size_t)(u) * (f == WEIGHT_I4 ? 64 : 128));                  \
        const n16 y_ = f == WEIGHT_I4 ? n16_shr(x_, 4) : n16_load((b) + (size_t)(u)*128 + 64);     \
        const n16 mask_ = n16_set1(f == WEIGHT_I4 ? 0x000f000f : 0x00ff00ff);                      \
        const int at_ = ((u) >> 3) * 32 + ((u)&7) * 2;                                             \
        v16_prefetch((b) + (size_t)(u) * (f == WEIGHT_I4 ? 64 : 128) + LANES_AHEAD_BYTES);         \
        if (f != WEIGHT_I4) {                                                                      \
            v16_prefetch((b) + (size_t)(u)*128 + LANES_AHEAD_BYTES + 64);                          \
        }                                                                                          \
        DO(n16_and(x_, mask_), at_)                                                                \
        DO(n16_and(n16_shr(x_, 8), mask_), at_ + 16)                                               \
        DO(n16_and(y_, mask_), at_ + 1)                                                            \
        DO(n16_and(n16_shr(y_, 8), mask_), at_ + 17)                                               \
    }

/* One row, four tiles; a missing tile repeats tile 0. */
LANES_INLINE void lanes_sums_row(const struct lanes_sums *s, int n_tiles, enum weight_format f)
{
    const size_t o1 = n_tiles > 1 ? 1 : 0, o2 = n_tiles > 2 ? 2 : 0, o3 = n_tiles > 3 ? 3 : 0;
    const uint8_t *b0 = s->b, *b1 = b0 + o1 * s->tile_bytes, *b2 = b0 + o2 * s->tile_bytes,
                  *b3 = b0 + o3 * s->tile_bytes;
    const int32_t *a = s->a;
    float *const sum = s->sum;
    n16 c0, c1, c2, c3;
    c0 = c1 = c2 = c3 = n16_set1(0);
    if (!s->is_first) {
        c0 = n16_load(sum);
        c1 = n16_load(sum + 16 * o1);
        c2 = n16_load(sum + 16 * o2);
        c3 = n16_load(sum + 16 * o3);
    }
#define ADD0(w, i) c0 = n16_madd(c0, w, n16_set1(a[i]));
#define ADD1(w, i) c1 = n16_madd(c1, w, n16_set1(a[i]));
#define ADD2(w, i) c2 = n16_madd(c2, w, n16_set1(a[i]));
#define ADD3(w, i) c3 = n16_madd(c3, w, n16_set1(a[i]));
    for (int u = s->unit; u < s->unit + s->n_units; u++) {
        LANES_UNIT(b0, u, f, ADD0)
        LANES_UNIT(b1, u, f, ADD1)
        LANES_UNIT(b2, u, f, ADD2)
        LANES_UNIT(b3, u, f, ADD3)
    }
#undef ADD0
#undef ADD1
#undef ADD2
#undef ADD3
    n16_store(sum, c0);
    n16_store(sum + 16 * o1, c1);
    n16_store(sum + 16 * o2, c2);
    n16_store(sum + 16 * o3, c3);
}

/* n_rows rows (a constant, at most 6), one tile. */
LANES_INLINE void lanes_sums_rows(const struct lanes_sums *s, const int n_rows,
                                  enum weight_format f)
{
    const int32_t *const a = s->a;
    float *const sum = s->sum;
    const size_t ld = s->ld;
    n16 c0, c1, c2, c3, c4, c5;
    c0 = c1 = c2 = c3 = c4 = c5 = n16_set1(0);
#define EACH_ROW(DO)                                                                               \
    DO(0, c0)                                                                                      \
    if (n_rows > 1) {                                                                              \
        DO(1, c1)                                                                                  \
    }                                                                                              \
    if (n_rows > 2) {                                                                              \
        DO(2, c2)                                                                                  \
    }                                                                                              \
    if (n_rows > 3) {                                                                              \
        DO(3, c3)                                                                                  \
    }                                                                                              \
    if (n_rows > 4) {                                                                              \
        DO(4, c4)                                                                                  \
    }                                                                                              \
    if (n_rows > 5) {                                                                              \
        DO(5, c5)                                                                                  \
    }
#define LOAD(row, x)  x = n16_load(sum + row * ld);
#define STORE(row, x) n16_store(sum + row * ld, x);
#define STEP(row, x)  x = n16_madd(x, w_, n16_set1(a[row * (QUANT_COLUMNS / 2) + i_]));
#define ADD(w, i)                                                                                  \
    {                                                                                              \
        const n16 w_ = w;                                                                          \
        const int i_ = i;                                                                          \
        EACH_ROW(STEP)                                                                             \
    }
    if (!s->is_first) {
        EACH_ROW(LOAD)
    }
    for (int u = s->unit; u < s->unit + s->n_units; u++) {
        LANES_UNIT(s->b, u, f, ADD)
    }
    EACH_ROW(STORE)
#undef EACH_ROW
#undef LOAD
#undef STORE
#undef STEP
#undef ADD
}

#define SUMS_ROWS (V16_ROWS < 6 ? V16_ROWS : 6)

LANES_INLINE void lanes_sums_any(const struct lanes_sums *s, int rows, enum weight_format f)
{
    switch (rows) {
    case 1:
        lanes_sums_rows(s, 1, f);
        break;
    case 2:
        lanes_sums_rows(s, 2, f);
        break;
    case 3:
        lanes_sums_rows(s, 3, f);
        break;
    case 4:
        lanes_sums_rows(s, 4, f);
        break;
    case 5:
        lanes_sums_rows(s, 5, f);
        break;
    default:
        lanes_sums_rows(s, 6, f);
        break;
    }
}

LANES_SHARED void lanes_sums_run(const struct lanes_sums *s, int rows, int n_tiles,
                                 enum weight_format f)
{
    if (rows == 1 && f == WEIGHT_I4) {
        lanes_sums_row(s, n_tiles, WEIGHT_I4);
        return;
    }
    if (rows == 1) {
        lanes_sums_row(s, n_tiles, WEIGHT_I8);
        return;
    }
    struct lanes_sums part = *s;
    for (int t = 0; t < n_tiles; t++) {
        if (f == WEIGHT_I4) {
            lanes_sums_any(&part, rows, WEIGHT_I4);
        } else {
            lanes_sums_any(&part, rows, WEIGHT_I8);
        }
        part.b += part.tile_bytes;
        part.sum += TILE_N;
    }
}

LANES_INLINE void lanes_halves(int32_t *out, const uint8_t *a, size_t lda, int rows, int from,
                               int count)
{
    for (int i = 0; i < rows; i++) {
        for (int k = 0; k < count; k += 64) {
            n16 even, odd;
            n16_halves(n16_load(a + (size_t)i * lda + (size_t)(from + k)), &even, &odd);
            n16_store(out + i * (QUANT_COLUMNS / 2) + k / 2, even);
            n16_store(out + i * (QUANT_COLUMNS / 2) + k / 2 + 16, odd);
        }
    }
}

LANES_SHARED void lanes_quant_sums(float *c, size_t ldc, const void *a, size_t lda,
                                   const struct weight *w, int m, int tile, int n_tiles)
{
    _Alignas(64) float part[SUMS_ROWS * PANEL_TILES * TILE_N];
    _Alignas(64) int32_t halves[SUMS_ROWS * QUANT_COLUMNS / 2];
    const struct lanes_quant q = lanes_quant_of(w, tile);
    _Alignas(64) uint8_t bytes[PANEL_TILES * QUANT_COLUMNS * TILE_N];
    const int is_one = q.n_groups == 1, is_coded = lanes_is_coded(w);
    struct lanes_sums s = {.a = halves,
                           .tile_bytes = is_coded ? QUANT_COLUMNS * TILE_N : q.tile_bytes};
    for (int from = 0; from < w->k; from += QUANT_COLUMNS) {
        const int count = w->k - from < QUANT_COLUMNS ? w->k - from : QUANT_COLUMNS;
        const int step = is_one ? count : q.group;
        s.b = is_coded ? bytes : lanes_codes(&q, 0, from);
        for (int t = 0; is_coded && t < n_tiles; t++) {
            lanes_bytes(bytes + t * QUANT_COLUMNS * TILE_N, &q, t, from, count);
        }
        for (int row = 0; row < m; row += SUMS_ROWS) {
            const int rows = m - row < SUMS_ROWS ? m - row : SUMS_ROWS;
            const uint8_t *x = (const uint8_t *)a + (size_t)row * lda;
            float *to = c + (size_t)row * ldc;
            lanes_halves(halves, x, lda, rows, from, count);
            s.sum = is_one ? to : part;
            s.ld = is_one ? ldc : PANEL_TILES * TILE_N;
            s.is_first = !is_one || from == 0;
            for (int at = 0; at < count; at += step) {
                s.unit = at / 8;
                s.n_units = (count - at < step ? count - at : step) / 8;
                lanes_sums_run(&s, rows, n_tiles, is_coded ? WEIGHT_I8 : w->format);
                if (!is_one || from + count == w->k) {
                    lanes_scale_sums(to, ldc, s.sum, s.ld, &q, (from + at) / q.group, x, lda, rows,
                                     n_tiles);
                }
            }
        }
    }
}

LANES_INLINE void lanes_quant_panel(float *c, size_t ldc, const void *a, size_t lda,
                                    const struct weight *w, int m, int tile, int n_tiles,
                                    enum act_type t)
{
    if (w->input == INPUT_I8) {
        lanes_quant_sums(c, ldc, a, lda, w, m, tile, n_tiles);
        return;
    }
    const int step = w->order != NULL ? 1 : n_tiles;
    for (int i = 0; i < n_tiles; i += step) {
        lanes_quant_chains(c + i * TILE_N, ldc, a, lda, w, m, tile + i, step, t);
    }
}

#endif
