/* SPDX-License-Identifier: Apache-2.0 */
/* Writing quantized weights: codes of a file into tiles (weight_pack_tile), and 16-bit or 32-bit
 * matrices into codes (weight_quantize). The same C for every level: this runs once per matrix, at
 * load, and its result must not depend on the machine. Layout and rules: kernels.h. */
#include "kernels/kernels.h"

#include "kernels/ref/math.h"

#define RUN 256 /* elements handled at a time; a multiple of every group that isn't a whole row */

/* Where the parts of one tile are (kernels.h: of its first section). */
struct tile {
    struct weight_parts at;
    uint8_t *start, *codes, *grid, *scales /* of one level, or the super-scales */, *zeros;
    uint8_t *sub, *sub_offset, *offset;
};

static struct tile tile_at(const struct weight *w, int t)
{
    const struct weight_parts at = weight_parts(w);
    struct tile p = {.at = at};
    p.start = (uint8_t *)(uintptr_t)w->data + (size_t)t * at.end;
    p.codes = p.start + at.codes;
    p.grid = p.start + at.grid;
    p.scales = p.start + at.supers;
    p.zeros = p.start + at.zeros;
    p.sub = p.start + at.scales;
    p.sub_offset = p.start + at.offsets;
    p.offset = p.start + at.super_offsets;
    return p;
}

/* Scales (super-scales) of a row. */
static int n_scales(const struct weight *w)
{
    return w->super != 0 ? weight_supers(w) : weight_groups(w);
}

static int place_of(int k) /* p(k) of kernels.h */
{
    return k % 4 * 2 + k % 8 / 4;
}

/* codes: those of the 16 columns that k is one of. */
static void put_six(uint8_t *codes, int r, int k, uint8_t code)
{
    const int at = place_of(k), shift = 2 * (k / 8 % 2 * 2 + at / 4);
    uint8_t *unit = codes + (size_t)(r * 4 + at % 4);
    uint8_t *low = unit + k / 8 % 2 * 64, *high = unit + 128;
    *low = (uint8_t)(at < 4 ? (*low & 0xf0) | (code & 15) : (*low & 15) | (code & 15) << 4);
    *high = (uint8_t)((*high & ~(3 << shift)) | (code >> 4 & 3) << shift);
}

static uint8_t six_at(const uint8_t *codes, int r, int k)
{
    const int at = place_of(k), shift = 2 * (k / 8 % 2 * 2 + at / 4);
    const uint8_t *unit = codes + (size_t)(r * 4 + at % 4);
    const int low = unit[k / 8 % 2 * 64] >> (at < 4 ? 0 : 4) & 15;
    return (uint8_t)(low | (unit[128] >> shift & 3) << 4);
}

/* `count` codes of row r from column k on (a multiple of 8 both). */
static void put_codes(const struct weight *w, const struct tile *p, int r, int k,
                      const uint8_t *codes, int count)
{
    static const uint8_t order[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    if (w->format == WEIGHT_C2) {
        for (int i = 0; i < count; i += 4) {
            p->codes[(size_t)(k + i) / 4 * TILE_N + (size_t)r] = codes[i];
        }
        return;
    }
    if (w->format == WEIGHT_I6) {
        for (int i = 0; i < count; i++) {
            put_six(p->start + weight_column_at(&p->at, (k + i) / 16 * 16), r, k + i, codes[i]);
        }
        return;
    }
    for (int i = 0; i < count; i += 8) {
        uint8_t *to = p->start + weight_column_at(&p->at, k + i) + 4 * r;
        for (int j = 0; j < 4; j++) {
            const uint8_t a = codes[i + order[j]], b = codes[i + order[j + 4]];
            if (w->format == WEIGHT_I4) {
                to[j] = (uint8_t)(a | b << 4);
            } else {
                to[j] = a;
                to[j + 64] = b;
            }
        }
    }
}

static void put_float(const struct weight *w, uint8_t *part, int r, int group, float s)
{
    const size_t at = (size_t)group * TILE_N + (size_t)r;
    const uint16_t h = w->scale_type == DTYPE_F16 ? f32_to_f16(s) : f32_to_bf16(s);
    if (w->scale_type == DTYPE_F32) {
        memcpy(part + 4 * at, &s, 4);
    } else {
        memcpy(part + 2 * at, &h, 2);
    }
}

/* Of the groups that share a scale's place: one of one level is a group's own. */
static int scale_groups(const struct weight *w)
{
    return w->super == 0 ? 1 : w->super >= w->k ? weight_groups(w) : w->super / w->group;
}

/* A float of a part that is like the scales (super-scales), the i-th of row r. */
static void put_scale_in(const struct weight *w, const struct tile *p, uint8_t *part, int r, int i,
                         float s)
{
    const int n = scale_groups(w), group = i * n;
    put_float(w, part + weight_section_at(&p->at, group), r,
              (int)weight_super_in_section(&p->at, group, n), s);
}

static void put_scale(const struct weight *w, const struct tile *p, int r, int i, float s)
{
    put_scale_in(w, p, p->scales, r, i, s);
}

/* A byte of a part that is like the zero points, the group's of row r. */
static uint8_t *byte_of(const struct tile *p, uint8_t *part, int r, int group)
{
    return part + weight_section_at(&p->at, group) +
           weight_group_in_section(&p->at, group) * TILE_N + r;
}

static uint8_t *zero_at(const struct tile *p, int r, int group)
{
    return byte_of(p, p->zeros, r, group);
}

/* The value that put_scale stores. */
static float rounded_scale(const struct weight *w, float s)
{
    return w->scale_type == DTYPE_F32   ? s
           : w->scale_type == DTYPE_F16 ? f16_to_f32(f32_to_f16(s))
                                        : bf16_to_f32(f32_to_bf16(s));
}

static uint8_t code_of_zero(const struct weight *w)
{
    return w->format == WEIGHT_I6         ? 32
           : w->has_zero || w->has_offset ? 0
           : w->format == WEIGHT_I8       ? 128
           : w->format == WEIGHT_I4       ? 8
                                          : 0;
}

/* Zeroes what is behind n_bytes of a part that begins at `part`. */
static void pad(uint8_t *part, size_t n_bytes)
{
    memset(part + n_bytes, 0, (64 - n_bytes % 64) % 64);
}

/* Zeroes the scales and zero points that the last section has room for and the matrix doesn't have. */
static void fill_last_section(const struct weight *w, const struct tile *p)
{
    const int groups = weight_groups(w), whole = 1 << p->at.group_bits;
    for (int g = groups; g % whole != 0; g++) {
        for (int r = 0; r < TILE_N; r++) {
            if (w->super == 0) {
                put_scale(w, p, r, g, 0.0f);
            } else {
                *byte_of(p, p->sub, r, g) = 0;
            }
            if (w->has_zero) {
                *zero_at(p, r, g) = 0;
            }
            if (w->has_offset) {
                *byte_of(p, p->sub_offset, r, g) = 0;
            }
        }
    }
    const int supers = n_scales(w), n = whole / scale_groups(w);
    for (int i = supers; w->super != 0 && i % n != 0; i++) {
        for (int r = 0; r < TILE_N; r++) {
            put_scale(w, p, r, i, 0.0f);
            if (w->has_offset) {
                put_scale_in(w, p, p->offset, r, i, 0.0f);
            }
        }
    }
}

/* Zeroes the padding between the parts and fills the rows from `rows` on. */
static void fill_rest(const struct weight *w, const struct tile *p, int rows)
{
    uint8_t fill[RUN];
    memset(fill, code_of_zero(w), sizeof fill);
    if (p->at.section_bytes > 0) {
        fill_last_section(w, p);
    } else {
        pad(p->scales, (size_t)n_scales(w) * TILE_N * dtype_size(w->scale_type));
        if (w->has_zero) {
            pad(p->zeros, (size_t)weight_groups(w) * TILE_N);
        }
    }
    if (w->format == WEIGHT_C2) { /* the codes of the others are whole lines */
        pad(p->codes, (size_t)w->k * 4);
    }
    for (int r = rows; r < TILE_N; r++) {
        for (int k = 0; k < w->k; k += RUN) {
            put_codes(w, p, r, k, fill, w->k - k < RUN ? w->k - k : RUN);
        }
        for (int g = 0; g < n_scales(w); g++) {
            put_scale(w, p, r, g, 0.0f);
            if (w->has_zero) {
                *zero_at(p, r, g) = 0;
            }
        }
    }
}

void weight_pack_tile(const struct weight *w, int tile, const uint8_t *codes, size_t ld_codes,
                      const float *scales, size_t ld_scales, const uint8_t *zeros, size_t ld_zeros,
                      int rows)
{
    const struct tile p = tile_at(w, tile);
    for (int r = 0; r < rows; r++) {
        put_codes(w, &p, r, 0, codes + (size_t)r * ld_codes, w->k);
        for (int g = 0; g < n_scales(w); g++) {
            put_scale(w, &p, r, g, scales[(size_t)r * ld_scales + (size_t)g]);
            if (w->has_zero) {
                *zero_at(&p, r, g) = zeros[(size_t)r * ld_zeros + (size_t)g];
            }
        }
    }
    fill_rest(w, &p, rows);
}

static float float_at(const struct weight *w, const uint8_t *part, int r, int group)
{
    const size_t at = (size_t)group * TILE_N + (size_t)r;
    float s;
    uint16_t h;
    if (w->scale_type == DTYPE_F32) {
        memcpy(&s, part + 4 * at, 4);
        return s;
    }
    memcpy(&h, part + 2 * at, 2);
    return w->scale_type == DTYPE_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static float scale_at(const struct weight *w, const struct tile *p, int r, int i)
{
    const int n = scale_groups(w), group = i * n;
    return float_at(w, p->scales + weight_section_at(&p->at, group), r,
                    (int)weight_super_in_section(&p->at, group, n));
}

static uint8_t code_at(const struct weight *w, const struct tile *p, int r, int k)
{
    const int at = place_of(k);
    if (w->format == WEIGHT_C2) {
        return k % 4 == 0 ? p->codes[k / 4 * TILE_N + r] : 0;
    }
    if (w->format == WEIGHT_I6) {
        return six_at(p->start + weight_column_at(&p->at, k / 16 * 16), r, k);
    }
    const uint8_t *from = p->start + weight_column_at(&p->at, k / 8 * 8) + 4 * r + at % 4;
    return w->format != WEIGHT_I4 ? from[at / 4 * 64]
           : at < 4               ? *from & 15u
                                  : (uint8_t)(*from >> 4);
}

void weight_unpack_tile(const struct weight *w, int tile, uint8_t *codes, size_t ld_codes,
                        float *scales, size_t ld_scales, uint8_t *zeros, size_t ld_zeros, int rows)
{
    const struct tile p = tile_at(w, tile);
    for (int r = 0; r < rows; r++) {
        uint8_t *to = codes + (size_t)r * ld_codes;
        for (int k = 0; k < w->k; k++) {
            to[k] = code_at(w, &p, r, k);
        }
        for (int g = 0; g < n_scales(w); g++) {
            scales[(size_t)r * ld_scales + (size_t)g] = scale_at(w, &p, r, g);
            if (w->has_zero && zeros != NULL) {
                zeros[(size_t)r * ld_zeros + (size_t)g] = *zero_at(&p, r, g);
            }
        }
    }
}

/* ---- the second level ---- */

void weight_pack_levels(const struct weight *w, int tile, const struct weight_levels *from,
                        int rows)
{
    const struct tile p = tile_at(w, tile);
    const int groups = weight_groups(w), supers = weight_supers(w);
    for (int r = 0; r < TILE_N; r++) {
        const int is_there = r < rows;
        for (int g = 0; g < groups; g++) {
            const int at = r * groups + g;
            *byte_of(&p, p.sub, r, g) = (uint8_t)(128 + (is_there ? from->sub[at] : 0));
            if (w->has_offset) {
                *byte_of(&p, p.sub_offset, r, g) =
                    (uint8_t)(128 + (is_there ? from->sub_offset[at] : 0));
            }
        }
        for (int s = 0; s < supers && w->has_offset; s++) {
            put_scale_in(w, &p, p.offset, r, s, is_there ? from->offset[r * supers + s] : 0.0f);
        }
        for (int i = 0; i < 2 && w->format == WEIGHT_C2; i++) {
            const float x = is_there ? from->grid[2 * r + i] : 0.0f;
            memcpy(p.grid + 4 * (i * TILE_N + r), &x, 4);
        }
    }
    if (p.at.section_bytes > 0) {
        return; /* weight_pack_tile has filled the last section */
    }
    pad(p.sub, (size_t)groups * TILE_N);
    if (w->has_offset) {
        pad(p.sub_offset, (size_t)groups * TILE_N);
        pad(p.offset, (size_t)supers * TILE_N * dtype_size(w->scale_type));
    }
}

/* ---- quantizing ---- */

struct source {
    const void *p;
    enum dtype type;
    size_t stride_row, stride_col;
};

static void read_run(float *out, const struct source *s, int row, int col, int count)
{
    const size_t at = (size_t)row * s->stride_row + (size_t)col * s->stride_col;
    if (s->type == DTYPE_F32) {
        const float *from = (const float *)s->p + at;
        for (int i = 0; i < count; i++) {
            out[i] = from[(size_t)i * s->stride_col];
        }
    } else if (s->type == DTYPE_F16) {
        const uint16_t *from = (const uint16_t *)s->p + at;
        for (int i = 0; i < count; i++) {
            out[i] = f16_to_f32(from[(size_t)i * s->stride_col]);
        }
    } else if (s->stride_col == 1) {
        const uint16_t *from = (const uint16_t *)s->p + at;
        for (int i = 0; i < count; i++) {
            out[i] = ref_from_bits((uint32_t)from[i] << 16);
        }
    } else {
        const uint16_t *from = (const uint16_t *)s->p + at;
        for (int i = 0; i < count; i++) {
            out[i] = ref_from_bits((uint32_t)from[(size_t)i * s->stride_col] << 16);
        }
    }
    for (int i = 0; i < count; i++) { /* NaN and infinities */
        const uint32_t bits = ref_bits(out[i]);
        out[i] = ref_from_bits((bits & 0x7fffffffu) < 0x7f800000u ? bits : 0);
    }
}

struct range {
    float low, high, extreme; /* extreme: the first of largest magnitude */
};

/* Whole numbers in the order of the floats whose bits they are made from: the compiler may then
 * take minima and maxima of several at a time. */
static int32_t ordered(float x)
{
    const int32_t bits = (int32_t)ref_bits(x);
    return bits ^ (-(bits < 0) & INT32_MAX);
}

static float from_ordered(int32_t v)
{
    return ref_from_bits((uint32_t)(v ^ (-(v < 0) & INT32_MAX)));
}

/* `size` only: extreme is the largest magnitude, low and high stay 0. */
static struct range range_of(const struct source *s, int row, int col, int count, int size)
{
    struct range r = {0, 0, 0};
    float x[RUN];
    for (int from = 0; from < count; from += RUN) {
        const int n = count - from < RUN ? count - from : RUN;
        read_run(x, s, row, col + from, n);
        int32_t amax = 0, low = 0, high = 0;
        for (int i = 0; i < n; i++) {
            const int32_t a = (int32_t)(ref_bits(x[i]) & 0x7fffffffu);
            amax = a > amax ? a : amax;
        }
        if (size) {
            const float a = ref_from_bits((uint32_t)amax);
            r.extreme = a > r.extreme ? a : r.extreme;
            continue;
        }
        for (int i = 0; i < n; i++) {
            const int32_t v = ordered(x[i]);
            low = v < low ? v : low;
            high = v > high ? v : high;
        }
        const float a = from_ordered(low), b = from_ordered(high);
        r.low = a < r.low ? a : r.low;
        r.high = b > r.high ? b : r.high;
        if (ref_from_bits((uint32_t)amax) > fabsf(r.extreme)) {
            int i = 0;
            while ((int32_t)(ref_bits(x[i]) & 0x7fffffffu) != amax) {
                i++;
            }
            r.extreme = x[i];
        }
    }
    return r;
}

static float f8_max(enum weight_format f)
{
    return f == WEIGHT_F8_E4M3 ? 448.0f : 57344.0f;
}

/* The step of one group before it is rounded to the type of the scales. */
static float step_of(const struct weight *w, const struct range *r)
{
    const float amax = fabsf(r->extreme);
    switch (w->format) {
    case WEIGHT_I8:
        return amax / 127.0f;
    case WEIGHT_I4:
        return w->has_zero ? fmaxf((r->high - r->low) / 15.0f, 1e-8f) : r->extreme / -8.0f;
    default:
        return fmaxf(amax, 1e-4f) / f8_max(w->format);
    }
}

/* x >= 0, at most MAX, to the bits of the nearest fp8 number: its mantissa has `bits` bits, its
 * smallest exponent is `low`. Adding and subtracting 1.5 * 2^(e + 23 - bits) rounds to a multiple
 * of 2^(e - bits). */
static uint8_t f8_bits(float x, int bits, int low)
{
    int e = (int)(ref_bits(x) >> 23) - 127;
    e = e < low ? low : e;
    const float magic = ref_from_bits((uint32_t)(e + 23 - bits + 127) << 23 | 0x400000u);
    const float sum = x + magic;
    x = sum - magic;
    e = (int)(ref_bits(x) >> 23) - 127;
    const int small = (int)(x * ref_from_bits((uint32_t)(bits - low + 127) << 23));
    const int normal = (int)(ref_bits(x) >> (23 - bits)) - ((low - 1 + 127) << bits);
    return (uint8_t)(e < low ? small : normal);
}

static float clip(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

static void encode8(uint8_t *out, const float *x, int count, float s)
{
    for (int i = 0; i < count; i++) {
        const float v = x[i] / s, size = clip(fabsf(v), 0, 127);
        const int code = (int)(size + 0.5f);
        out[i] = (uint8_t)(128 + (v < 0 ? -code : code));
    }
}

static void encode4(uint8_t *out, const float *x, int count, float s, float z)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the sum has no fraction */
    for (int i = 0; i < count; i++) {
        const float sum = clip(x[i] / s, -32, 32) + magic;
        out[i] = (uint8_t)(int)clip((sum - magic) + z, 0, 15);
    }
}

static void encode_f8(uint8_t *out, const float *x, int count, float s, float max, int bits,
                      int low)
{
    for (int i = 0; i < count; i++) {
        const float v = x[i] / s;
        const uint8_t code = f8_bits(clip(fabsf(v), 0, max), bits, low);
        out[i] = (uint8_t)(code | (v < 0 ? 0x80 : 0));
    }
}

/* Codes of x[i] with step s (rounded) and zero point z. */
static void encode(const struct weight *w, uint8_t *out, const float *x, int count, float s,
                   float z)
{
    if (!(s < 0 || s > 0)) {
        memset(out,
               w->format == WEIGHT_I8   ? 128
               : w->format == WEIGHT_I4 ? (int)z
                                        : 0,
               (size_t)count);
    } else if (w->format == WEIGHT_I8) {
        encode8(out, x, count, s);
    } else if (w->format == WEIGHT_I4) {
        encode4(out, x, count, s, z);
    } else if (w->format == WEIGHT_F8_E4M3) {
        encode_f8(out, x, count, s, f8_max(w->format), 3, -6);
    } else {
        encode_f8(out, x, count, s, f8_max(w->format), 2, -14);
    }
}

static void quantize_group(const struct weight *w, const struct tile *p, const struct source *s,
                           int row, int r, int group, const struct range *range)
{
    const int k0 = group * w->group;
    const int count = w->k - k0 < w->group ? w->k - k0 : w->group;
    const float step = rounded_scale(w, step_of(w, range));
    const float z = w->format != WEIGHT_I4    ? 0
                    : w->has_zero && step > 0 ? clip(rintf(-range->low / step), 0, 15)
                    : w->has_zero             ? 0
                                              : 8;
    float x[RUN];
    uint8_t codes[RUN];
    put_scale(w, p, r, group, step);
    if (w->has_zero) {
        *zero_at(p, r, group) = (uint8_t)z;
    }
    for (int from = 0; from < count; from += RUN) {
        const int n = count - from < RUN ? count - from : RUN;
        read_run(x, s, row, k0 + from, n);
        encode(w, codes, x, n, step, z);
        put_codes(w, p, r, k0 + from, codes, n);
    }
}

static struct range merged(struct range a, struct range b)
{
    return (struct range){a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high,
                          fabsf(b.extreme) > fabsf(a.extreme) ? b.extreme : a.extreme};
}

static struct range block_range(const struct source *s, int row0, int row1, int col, int count,
                                int size)
{
    struct range range = {0, 0, 0};
    for (int i = row0; i < row1; i++) {
        range = merged(range, range_of(s, i, col, count, size));
    }
    return range;
}

/* Blocks of rows that hold whole tiles, or single rows: a block's range is found once for all the
 * tiles of a call that lie in it. */
void weight_quantize(const struct weight *w, int n, const void *src, enum dtype src_type,
                     size_t stride_row, size_t stride_col, int block_rows, int tile0, int tile1,
                     int tile_step, int tile_offset)
{
    const struct source s = {src, src_type, stride_row, stride_col};
    const int per_block = block_rows > TILE_N ? block_rows / TILE_N : 1;
    const int size = w->format != WEIGHT_I4;
    for (int first = tile0, end; first < tile1; first = end) {
        end = (first / per_block + 1) * per_block;
        end = end < tile1 ? end : tile1;
        const int row0 = first * TILE_N / block_rows * block_rows;
        const int row1 = n - row0 < block_rows ? n : row0 + block_rows;
        for (int g = 0; g < weight_groups(w); g++) {
            const int k0 = g * w->group, count = w->k - k0 < w->group ? w->k - k0 : w->group;
            struct range range = {0, 0, 0};
            if (block_rows > 1) {
                range = block_range(&s, row0, row1, k0, count, size);
            }
            for (int row = first * TILE_N; row < end * TILE_N && row < n; row++) {
                const struct tile p = tile_at(w, row / TILE_N * tile_step + tile_offset);
                if (block_rows == 1) {
                    range = range_of(&s, row, k0, count, size);
                }
                quantize_group(w, &p, &s, row, row % TILE_N, g, &range);
            }
        }
        for (int t = first; t < end; t++) {
            const struct tile p = tile_at(w, t * tile_step + tile_offset);
            fill_rest(w, &p, n - t * TILE_N < TILE_N ? n - t * TILE_N : TILE_N);
        }
    }
}
