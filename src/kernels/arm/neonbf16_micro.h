/* SPDX-License-Identifier: Apache-2.0 */
/* The inner loop of products with BFMLALT and BFMLALB, each one fused multiply-add of the odd or the
 * even bf16 numbers of a register into fp32: BFMLALT first, then BFMLALB, is the chain of kernels.h.
 * (BFDOT and BFMMLA round in another way and can't be used.) The activation is an element of a
 * register, so that nothing is broadcast and nothing widened.
 *
 * 6 rows x 1 tile are 24 chains; a single row has four tiles, which are as many streams. */
#ifndef TERN_KERNELS_ARM_NEONBF16_MICRO_H
#define TERN_KERNELS_ARM_NEONBF16_MICRO_H

#include "kernels/arm/micro.h"
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct chain_args {
    float *c;
    size_t ldc;
    const uint16_t *a;
    size_t lda;
    const uint16_t *b;
    size_t line, tile; /* elements to the next line of pairs (16 x 2), and to the next tile */
    int pairs;
    int is_first; /* chains start at +0, else they continue from c */
};

MICRO_INLINE bfloat16x8_t bf16_eight(const uint16_t *p)
{
    return vreinterpretq_bf16_u16(vld1q_u16(p));
}

/* One pair, in elements 0 and 1. */
MICRO_INLINE bfloat16x8_t bf16_pair(const uint16_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return vreinterpretq_bf16_u32(vdupq_n_u32(v));
}

/* x += w * element `lane` of a, in the odd (T) or the even (B) halves. Assembly, because gcc 12 does not
 * know for its intrinsics that the element's register is one of the lower sixteen. */
#define BFMLALT(x, w, a, lane)                                                                     \
    __asm__("bfmlalt %0.4s, %1.8h, %2.h[%3]" : "+w"(x) : "w"(w), "x"(a), "i"(lane));
#define BFMLALB(x, w, a, lane)                                                                     \
    __asm__("bfmlalb %0.4s, %1.8h, %2.h[%3]" : "+w"(x) : "w"(w), "x"(a), "i"(lane));

MICRO_INLINE void chain_rows(const int n_rows, const struct chain_args *s)
{
    const size_t ldc = s->ldc, line = s->line;
    const uint16_t *b = s->b, *const p = s->a;
    const uint16_t *p0 = p, *p1 = p + s->lda, *p2 = p1 + s->lda, *p3 = p2 + s->lda,
                   *p4 = p3 + s->lda, *p5 = p4 + s->lda;
    float *const c = s->c;
    float32x4_t c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23;
    float32x4_t c30, c31, c32, c33, c40, c41, c42, c43, c50, c51, c52, c53;
    c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = c20 = c21 = c22 = c23 = vdupq_n_f32(0.0f);
    c30 = c31 = c32 = c33 = c40 = c41 = c42 = c43 = c50 = c51 = c52 = c53 = vdupq_n_f32(0.0f);
    bfloat16x8_t a0, a1, a2, a3, a4, a5;
    a0 = a1 = a2 = a3 = a4 = a5 = vreinterpretq_bf16_u16(vdupq_n_u16(0));
#define LOAD(row, x0, x1, x2, x3, a)                                                               \
    x0 = vld1q_f32(c + row * ldc);                                                                 \
    x1 = vld1q_f32(c + row * ldc + 4);                                                             \
    x2 = vld1q_f32(c + row * ldc + 8);                                                             \
    x3 = vld1q_f32(c + row * ldc + 12);
#define STORE(row, x0, x1, x2, x3, a)                                                              \
    vst1q_f32(c + row * ldc, x0);                                                                  \
    vst1q_f32(c + row * ldc + 4, x1);                                                              \
    vst1q_f32(c + row * ldc + 8, x2);                                                              \
    vst1q_f32(c + row * ldc + 12, x3);
#define EIGHT(row, x0, x1, x2, x3, a) a = bf16_eight(p##row + 2 * j);
#define PAIR(row, x0, x1, x2, x3, a)  a = bf16_pair(p##row + 2 * j);
/* All odd halves of a quarter before the even ones: six steps between two of one chain. */
#define ODD(x, a)                     BFMLALT(x, w_, a, 2 * pair_ + 1)
#define EVEN(x, a)                    BFMLALB(x, w_, a, 2 * pair_)
#define ODD0(row, x0, x1, x2, x3, a)  ODD(x0, a)
#define ODD1(row, x0, x1, x2, x3, a)  ODD(x1, a)
#define ODD2(row, x0, x1, x2, x3, a)  ODD(x2, a)
#define ODD3(row, x0, x1, x2, x3, a)  ODD(x3, a)
#define EVEN0(row, x0, x1, x2, x3, a) EVEN(x0, a)
#define EVEN1(row, x0, x1, x2, x3, a) EVEN(x1, a)
#define EVEN2(row, x0, x1, x2, x3, a) EVEN(x2, a)
#define EVEN3(row, x0, x1, x2, x3, a) EVEN(x3, a)
#define QUARTER(i)                                                                                 \
    {                                                                                              \
        const bfloat16x8_t w_ = bf16_eight(b + 8 * i);                                             \
        ROWS_6X4(ODD##i)                                                                           \
        ROWS_6X4(EVEN##i)                                                                          \
    }
#define LINE(pair)                                                                                 \
    {                                                                                              \
        enum { pair_ = pair };                                                                     \
        QUARTER(0)                                                                                 \
        QUARTER(1)                                                                                 \
        QUARTER(2)                                                                                 \
        QUARTER(3)                                                                                 \
        b += line;                                                                                 \
    }
    if (!s->is_first) {
        ROWS_6X4(LOAD)
    }
    int j = 0;
    for (; j + 4 <= s->pairs; j += 4) {
        ROWS_6X4(EIGHT)
        LINE(0)
        LINE(1)
        LINE(2)
        LINE(3)
    }
    for (; j < s->pairs; j++) {
        ROWS_6X4(PAIR)
        LINE(0)
    }
    ROWS_6X4(STORE)
#undef LOAD
#undef STORE
#undef EIGHT
#undef PAIR
#undef ODD
#undef EVEN
#undef ODD0
#undef ODD1
#undef ODD2
#undef ODD3
#undef EVEN0
#undef EVEN1
#undef EVEN2
#undef EVEN3
#undef QUARTER
#undef LINE
}

/* One row, four tiles; a missing one repeats tile 0 (same values, same place). */
MICRO_INLINE void chain_tiles(const struct chain_args *s, int n_tiles, size_t ahead)
{
    const size_t o1 = n_tiles > 1 ? 1 : 0, o2 = n_tiles > 2 ? 2 : 0, o3 = n_tiles > 3 ? 3 : 0;
    const uint16_t *b0 = s->b, *b1 = b0 + o1 * s->tile, *b2 = b0 + o2 * s->tile,
                   *b3 = b0 + o3 * s->tile;
    float *const t0 = s->c, *const t1 = t0 + 16 * o1, *const t2 = t0 + 16 * o2,
                 *const t3 = t0 + 16 * o3;
    float32x4_t c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23, c30, c31, c32, c33;
    c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = vdupq_n_f32(0.0f);
    c20 = c21 = c22 = c23 = c30 = c31 = c32 = c33 = vdupq_n_f32(0.0f);
#define TILES(DO)                                                                                  \
    DO(b0, t0, c00, c01, c02, c03)                                                                 \
    DO(b1, t1, c10, c11, c12, c13)                                                                 \
    DO(b2, t2, c20, c21, c22, c23)                                                                 \
    DO(b3, t3, c30, c31, c32, c33)
#define LOAD(b, t, x0, x1, x2, x3)                                                                 \
    x0 = vld1q_f32(t);                                                                             \
    x1 = vld1q_f32(t + 4);                                                                         \
    x2 = vld1q_f32(t + 8);                                                                         \
    x3 = vld1q_f32(t + 12);
#define STORE(b, t, x0, x1, x2, x3)                                                                \
    vst1q_f32(t, x0);                                                                              \
    vst1q_f32(t + 4, x1);                                                                          \
    vst1q_f32(t + 8, x2);                                                                          \
    vst1q_f32(t + 12, x3);
#define STEP(b, t, x0, x1, x2, x3)                                                                 \
    if (ahead > 0) {                                                                               \
        __builtin_prefetch(b + ahead);                                                             \
    }                                                                                              \
    CHAIN(x0, b) CHAIN(x1, b + 8) CHAIN(x2, b + 16) CHAIN(x3, b + 24) b += 32;
#define CHAIN(x, p)                                                                                \
    {                                                                                              \
        const bfloat16x8_t w_ = bf16_eight(p);                                                     \
        BFMLALT(x, w_, a, 2 * pair_ + 1)                                                           \
        BFMLALB(x, w_, a, 2 * pair_)                                                               \
    }
#define LINE(pair)                                                                                 \
    {                                                                                              \
        enum { pair_ = pair };                                                                     \
        TILES(STEP)                                                                                \
    }
    if (!s->is_first) {
        TILES(LOAD)
    }
    int j = 0;
    for (; j + 4 <= s->pairs; j += 4) {
        const bfloat16x8_t a = bf16_eight(s->a + 2 * j);
        LINE(0)
        LINE(1)
        LINE(2)
        LINE(3)
    }
    for (; j < s->pairs; j++) {
        const bfloat16x8_t a = bf16_pair(s->a + 2 * j);
        LINE(0)
    }
    TILES(STORE)
#undef TILES
#undef LOAD
#undef STORE
#undef STEP
#undef CHAIN
#undef LINE
}

#endif
