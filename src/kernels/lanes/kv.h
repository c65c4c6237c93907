/* SPDX-License-Identifier: Apache-2.0 */
/* KV tiles on 16 lanes: writing one head's vector into a slot, and reading 8-bit codes as fp32.
 *
 * A slot's bytes are written one by one (pairs of dimensions of K two by two): the others of a line
 * are other positions', maybe another thread's. */
#ifndef TERN_KERNELS_LANES_KV_H
#define TERN_KERNELS_LANES_KV_H

#include "kernels/lanes/f8.h"

/* ---- 16-bit and 32-bit tiles ---- */

LANES_INLINE void lanes_store_k(void *tile, size_t d, size_t slot, v16 x, enum act_type t)
{
    if (t == ACT_BF16) {
        uint16_t tmp[16], *to = (uint16_t *)tile + d * 16 + slot * 2;
        v16_store_bf16(tmp, x);
        for (size_t i = 0; i < 8; i++) {
            memcpy(to + i * 32, tmp + 2 * i, 4);
        }
    } else {
        float tmp[16], *to = (float *)tile + d * 16 + slot * 2;
        v16_store(tmp, x);
        for (size_t i = 0; i < 8; i++) {
            memcpy(to + i * 32, tmp + 2 * i, 8);
        }
    }
}

LANES_INLINE void lanes_store_v(void *tile, size_t head_dim, size_t d, size_t slot, v16 x,
                                enum act_type t)
{
    const size_t at = 16 * head_dim + d * 16 + slot / 2 * 32 + slot % 2;
    if (t == ACT_BF16) {
        uint16_t tmp[16], *to = (uint16_t *)tile + at;
        v16_store_bf16(tmp, x);
        for (size_t i = 0; i < 16; i++) {
            to[2 * i] = tmp[i];
        }
    } else {
        float tmp[16], *to = (float *)tile + at;
        v16_store(tmp, x);
        for (size_t i = 0; i < 16; i++) {
            to[2 * i] = tmp[i];
        }
    }
}

/* ---- 8 bits ---- */

/* Codes of v >= 0. An fp8 number below the smallest normal one, y, is the integer y / 2^(low -
 * bits); of the others the code is exponent and mantissa. */
LANES_INLINE n16 lanes_kv_code(v16 v, enum kv_format f)
{
    if (f == KV_I8) {
        return v16_round(v16_clamp(v, 0.0f, 127.0f));
    }
    const int bits = f == KV_F8_E4M3 ? 3 : 2, low = f == KV_F8_E4M3 ? -6 : -14;
    const n16 smallest = n16_set1(1 << bits);
    const v16 y = lanes_round_f8(v, f == KV_F8_E4M3);
    const v16 to_integer = v16_of_bits(n16_set1((bits - low + 127) << 23));
    const float normal = f == KV_F8_E4M3 ? 0x1p-6f : 0x1p-14f;
    n16 code = n16_sub(n16_shr(v16_bits(y), (unsigned)(23 - bits)), n16_set1((low + 126) << bits));
    code = n16_sub(n16_max(code, smallest), smallest);
    return n16_add(code, v16_round(v16_mul(v16_clamp(y, 0.0f, normal), to_integer)));
}

LANES_INLINE void lanes_store_codes_as(uint8_t *tile, const float *x, size_t hd, size_t p, int is_v,
                                       enum kv_format f)
{
    const float limit = f == KV_I8 ? 127.0f : f == KV_F8_E4M3 ? 448.0f : 57344.0f;
    const n16 size = n16_set1(0x7fffffff), sign = n16_set1(0x80);
    uint8_t *const to = tile + (is_v ? 16 * hd : 0) +
                        (is_v ? p / 4 * 64 + p % 4 / 2 * 8 + p % 2 : p / 4 * 16 + p % 4 * 2);
    n16 high = n16_set1(0);
    for (size_t d = 0; d < hd; d += 16) {
        high = n16_max(high, n16_and(v16_bits(v16_load(x + d)), size));
    }
    const int32_t most = n16_fold_max(high);
    const int finite = most < 0x7f800000;
    float share;
    memcpy(&share, &most, 4);
    share /= limit;
    const uint16_t s = finite ? f32_to_bf16(share > 1e-12f ? share : 1e-12f) : 0x7fc0;
    const v16 scale = v16_set1(bf16_to_f32(s));
    for (size_t d = 0; d < hd; d += 16) {
        const n16 u = v16_bits(v16_load(x + d));
        n16 code = lanes_kv_code(v16_div(v16_of_bits(n16_and(u, size)), scale), f);
        uint32_t tmp[16];
        code = n16_or(code, n16_and(n16_shr(u, 24), sign));
        n16_store(tmp, finite ? code : n16_set1(0));
        if (is_v) {
            for (size_t i = 0; i < 16; i++) {
                to[d * 16 + i / 4 * 16 + i % 4 * 2] = (uint8_t)tmp[i];
            }
            continue;
        }
        for (size_t i = 0; i < 16; i += 2) {
            const uint8_t two[2] = {(uint8_t)tmp[i], (uint8_t)tmp[i + 1]};
            memcpy(to + (d + i) / 4 * 64 + i % 4 / 2 * 8, two, 2);
        }
    }
    memcpy(tile + 32 * hd + (is_v ? 32 : 0) + 2 * p, &s, 2);
}

/* The head's vector x (fp32, rotated) to position p of a tile. */
static __attribute__((noinline, unused)) void
lanes_store_codes(uint8_t *tile, const float *x, size_t hd, size_t p, int is_v, enum kv_format f)
{
    if (f == KV_I8) {
        lanes_store_codes_as(tile, x, hd, p, is_v, KV_I8);
    } else if (f == KV_F8_E4M3) {
        lanes_store_codes_as(tile, x, hd, p, is_v, KV_F8_E4M3);
    } else {
        lanes_store_codes_as(tile, x, hd, p, is_v, KV_F8_E5M2);
    }
}

/* What the low bytes of c stand for. Codes that no kernel writes (memory that was never written may
 * hold them) give some finite number, which a weight of zero removes. */
LANES_INLINE v16 lanes_code_value(n16 c, enum kv_format f)
{
    const n16 sign = n16_shl(n16_and(c, n16_set1(0x80)), 24);
    n16 m = n16_and(c, n16_set1(0x7f));
    v16 v;
    if (f == KV_I8) {
        v = n16_float(m);
    } else if (f == KV_F8_E4M3) { /* the f16 with the same fields is 2^8 times smaller */
        v = v16_mul(v16_of_f16(n16_shl(m, 7)), v16_set1(256.0f));
    } else { /* the upper half of an f16 */
        m = n16_sub(n16_set1(0x7b), n16_max(n16_sub(n16_set1(0x7b), m), n16_set1(0)));
        v = v16_of_f16(n16_shl(m, 8));
    }
    return v16_of_bits(n16_or(v16_bits(v), sign));
}

/* n_lines lines of codes as pairs of lines [even 16][odd 16] of fp32. */
LANES_INLINE void lanes_decode_codes_as(float *out, const uint8_t *codes, size_t n_lines,
                                        enum kv_format f)
{
    for (size_t n = 0; n < 2 * n_lines; n++, out += 32) {
        const uint8_t *line = codes + n / 2 * 64 + n % 2 * 8;
        uint16_t both[16]; /* even code, odd code of each lane */
        for (size_t i = 0; i < 4; i++) {
            memcpy(both + 4 * i, line + 16 * i, 8);
        }
        const n16 c = v16_bits(v16_load_bf16(both)); /* in the upper halves of the lanes */
        v16_store(out, lanes_code_value(n16_shr(c, 16), f));
        v16_store(out + 16, lanes_code_value(n16_shr(c, 24), f));
    }
}

static __attribute__((noinline, unused)) void lanes_decode_codes(float *out, const uint8_t *codes,
                                                                 size_t n_lines, enum kv_format f)
{
    if (f == KV_I8) {
        lanes_decode_codes_as(out, codes, n_lines, KV_I8);
    } else if (f == KV_F8_E4M3) {
        lanes_decode_codes_as(out, codes, n_lines, KV_F8_E4M3);
    } else {
        lanes_decode_codes_as(out, codes, n_lines, KV_F8_E5M2);
    }
}

/* Scales of 16 positions. */
LANES_INLINE v16 lanes_kv_scales(const void *tile, size_t hd, int is_v)
{
    return v16_load_bf16(
        (const uint16_t *)(const void *)((const uint8_t *)tile + 32 * hd + (is_v ? 32 : 0)));
}

#endif
