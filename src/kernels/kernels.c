/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel tables are built in, and the few facts about formats that all levels share. */
#include "kernels/kernels.h"
#include "kernels/ref/ref.h"
#include <string.h>
#if defined(__x86_64__)
#include "kernels/x86/x86.h"
#elif defined(__aarch64__)
#include "kernels/arm/neon.h"
#endif

size_t act_size(enum act_type t)
{
    return t == ACT_BF16 ? 2 : 4;
}

size_t dtype_size(enum dtype t)
{
    return t == DTYPE_F32 ? 4 : 2;
}

size_t kv_tile_bytes(enum kv_format f, enum act_type t, int head_dim)
{
    const size_t n = (size_t)2 * KV_BLOCK_TOKENS * (size_t)head_dim;
    return f == KV_ACT ? n * act_size(t) : n + 4 * KV_BLOCK_TOKENS;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static unsigned column_bytes(const struct weight *w)
{
    return w->format == WEIGHT_I4   ? TILE_N / 2
           : w->format == WEIGHT_I6 ? TILE_N / 4 * 3
           : w->format == WEIGHT_C2 ? TILE_N / 4
                                    : TILE_N;
}

/* The parts of a tile that is cut into sections. */
static struct weight_parts section_parts(const struct weight *w)
{
    struct weight_parts p = {.group_bits = w->group < 32 ? 3 : 2, .column_bytes = column_bytes(w)};
    const size_t groups = (size_t)TILE_N << p.group_bits;
    const int columns = w->group << p.group_bits, n_sections = (w->k + columns - 1) / columns;
    while (1 << p.column_bits < columns) {
        p.column_bits++;
    }
    p.zeros = round_up(groups * dtype_size(w->scale_type), 64);
    p.codes = p.zeros + (w->has_zero ? round_up(groups, 64) : 0);
    p.section_bytes = p.codes + (size_t)columns * p.column_bytes;
    p.grid = p.supers = p.scales;
    p.end = (size_t)n_sections * p.codes + (size_t)w->k * p.column_bytes;
    p.offsets = p.super_offsets = p.end;
    return p;
}

#define LEVELS_COLUMNS 512 /* of a section with scales in two levels */
#define LEVELS_SUPER   256

static struct weight_parts levels_parts(const struct weight *w)
{
    struct weight_parts p = {.column_bits = 9, .column_bytes = column_bytes(w)};
    const size_t groups = (size_t)(LEVELS_COLUMNS / w->group) * TILE_N;
    const size_t supers =
        round_up((size_t)LEVELS_COLUMNS / LEVELS_SUPER * TILE_N * dtype_size(w->scale_type), 64);
    const size_t n_sections = ((size_t)w->k + LEVELS_COLUMNS - 1) / LEVELS_COLUMNS;
    while (w->group << p.group_bits < LEVELS_COLUMNS) {
        p.group_bits++;
    }
    p.super_offsets = supers;
    p.scales = p.zeros = supers << (w->has_offset ? 1 : 0);
    p.offsets = p.scales + round_up(groups, 64);
    p.codes = p.grid = p.offsets + (w->has_offset ? round_up(groups, 64) : 0);
    p.section_bytes = p.codes + (size_t)LEVELS_COLUMNS * p.column_bytes;
    p.end = n_sections * p.codes + (size_t)w->k * p.column_bytes;
    return p;
}

struct weight_parts weight_parts(const struct weight *w)
{
    const size_t groups = (size_t)weight_groups(w) * TILE_N;
    if (w->super == LEVELS_SUPER && w->k > LEVELS_SUPER && w->format != WEIGHT_C2) {
        return levels_parts(w);
    }
    if (w->super == 0 && groups > TILE_N && w->format != WEIGHT_I6 && w->format != WEIGHT_C2) {
        return section_parts(w);
    }
    struct weight_parts p = {
        .group_bits = 30, .column_bits = 30, .column_bytes = column_bytes(w)}; /* one section */
    p.grid = round_up((size_t)w->k * p.column_bytes, 64);
    p.scales = p.grid + (w->format == WEIGHT_C2 ? 2 * TILE_N * sizeof(float) : 0);
    if (w->super == 0) {
        p.supers = p.scales;
        p.zeros = p.scales + round_up(groups * dtype_size(w->scale_type), 64);
        p.offsets = p.super_offsets = p.end = p.zeros + (w->has_zero ? round_up(groups, 64) : 0);
        return p;
    }
    const size_t supers =
        round_up((size_t)weight_supers(w) * TILE_N * dtype_size(w->scale_type), 64);
    p.supers = p.scales + round_up(groups, 64);
    p.zeros = p.offsets = p.supers + supers;
    p.super_offsets = p.offsets + round_up(groups, 64);
    p.end = w->has_offset ? p.super_offsets + supers : p.offsets;
    return p;
}

size_t weight_tile_bytes(const struct weight *w)
{
    if (!weight_is_quantized(w)) {
        return TILE_N * (size_t)w->k * (w->format == WEIGHT_BF16 ? 2 : 4);
    }
    return weight_parts(w).end;
}

size_t weight_bytes(const struct weight *w)
{
    return ((size_t)w->n + TILE_N - 1) / TILE_N * weight_tile_bytes(w);
}

static const char *levels_unsupported(const struct weight *w)
{
    const int has_levels =
        w->format == WEIGHT_I6 || w->format == WEIGHT_I4 || w->format == WEIGHT_C2;
    if (w->super != 0 && !has_levels) {
        return "scales in two levels of other than 2-, 4- and 6-bit integers";
    }
    if (w->super == 0 && w->format == WEIGHT_C2) {
        return "the 2-bit code with scales of one level";
    }
    if (w->super != 0 && (w->has_zero || w->order != NULL || w->group > 128 ||
                          (w->super < w->k && w->super % 128 != 0))) {
        return "scales in two levels beside zero points, another order or groups they don't divide";
    }
    return w->has_offset && (w->super == 0 || w->format == WEIGHT_C2)
               ? "offsets of the 2-bit code or without scales in two levels"
               : NULL;
}

const char *weight_unsupported(const struct weight *w)
{
    if (!weight_is_quantized(w)) {
        return w->k % 2 != 0 ? "an odd number of columns" : NULL;
    }
    const int is_f8 = w->format == WEIGHT_F8_E4M3 || w->format == WEIGHT_F8_E5M2;
    const int g = w->group;
    if (w->k % 8 != 0 || w->k > 65536) {
        return "a number of columns that is no multiple of 8 or above 65536";
    }
    if (w->format == WEIGHT_I6 && w->k % 16 != 0) {
        return "a number of columns of 6-bit integers that is no multiple of 16";
    }
    if (g < w->k && g != 32 && g != 64 && g != 128 &&
        (g != 16 || (w->format != WEIGHT_I8 && w->format != WEIGHT_I6))) {
        return "groups of other than 32, 64, 128 (int8, int6: 16) or all columns";
    }
    if (w->has_zero && w->format != WEIGHT_I4 && w->format != WEIGHT_I8) {
        return "zero points of other than 4-bit and 8-bit integers";
    }
    const char *levels = levels_unsupported(w);
    if (levels != NULL) {
        return levels;
    }
    if (is_f8 ? w->input == INPUT_I8 : w->input == INPUT_E4M3 || w->input == INPUT_E5M2) {
        return is_f8 ? "8-bit integer activations for 8-bit float weights"
                     : "8-bit float activations for integer weights";
    }
    return w->order != NULL && w->input != INPUT_ACT
               ? "8-bit activations for columns in another order"
               : NULL;
}

size_t input_row_bytes(enum input_format f, int k, int group)
{
    const size_t groups = group >= k ? 1 : ((size_t)k + (size_t)group - 1) / (size_t)group;
    return round_up((size_t)k * (f == INPUT_I8 ? 1 : 2), 64) + round_up(groups * 4, 64) +
           (f == INPUT_I8 ? round_up(groups * 4, 64) : 0);
}

float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

uint16_t f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(u >> 16 | 0x40u);
    }
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 1023u;
    if (exponent == 31) {
        return float_of(sign | 0x7f800000u | (mantissa ? 0x400000u : 0) | mantissa << 13);
    }
    if (exponent == 0) {
        float v = (float)mantissa * 0x1p-24f;
        return sign ? -v : v;
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Integer arithmetic only: the thread's mode may flush what is denormal on the way. */
uint16_t f32_to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    const uint32_t sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x1ffu));
    }
    if (a >= 0x477ff000u) { /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (a < 0x33000000u) { /* below 2^-25 */
        return (uint16_t)sign;
    }
    const int shift = a < 0x38800000u ? (int)(126 - (a >> 23)) : 13;
    const uint32_t m = a < 0x38800000u ? (a & 0x7fffffu) | 0x800000u : a - 0x38000000u;
    const uint32_t half = 1u << (shift - 1), lost = m & (2 * half - 1);
    uint32_t r = m >> shift;
    r += lost > half || (lost == half && (r & 1)) ? 1 : 0;
    return (uint16_t)(sign | r);
}

const struct kernels *kernels_get(enum cpu_level level)
{
    static const struct kernels *const tables[] = {
        &kernels_ref,
#if defined(__x86_64__)
        &kernels_avx2,
        &kernels_avx512,
        &kernels_avx512bf16,
#elif defined(__aarch64__)
        &kernels_neon,
        &kernels_neondot,
        &kernels_neonbf16,
#endif
    };
    enum cpu_level have[8];
    int n_have = cpu_levels_available(have);
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        for (int j = 0; j < n_have && tables[i]->level == level; j++) {
            if (have[j] == level) {
                return tables[i];
            }
        }
    }
    return NULL;
}
