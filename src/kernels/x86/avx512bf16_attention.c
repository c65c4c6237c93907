/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one partition over bf16 KV tiles with VDPBF16PS. The plan is that of kernels/lanes/attention.h
 * (8 queries share every K and V line); here a line is consumed as it is stored, two blocks or two groups of 16
 * dimensions at a time, which makes 16 independent chains. */
#include "kernels/x86/avx512_v16.h"
#include "kernels/lanes/attention.h"
#include "kernels/x86/x86.h"

#define GROUP 8

static inline __m512bh line(const uint16_t *p)
{
    return (__m512bh)_mm512_load_si512(p);
}

static inline __m512bh pair(const uint16_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return (__m512bh)_mm512_set1_epi32(v);
}

/* acc[g] (16 lanes at x, 16 at y) of 8 vectors of pairs a[g] against lines x and y, which advance by x_step and
 * y_step elements per pair. Continues from what is in acc when not `is_first`. */
struct chains {
    float *acc[GROUP];
    const uint16_t *a[GROUP];
};

static inline __attribute__((always_inline)) void run(const struct chains *c, const uint16_t *x, const uint16_t *y,
                                                      size_t y_at, size_t step, int n_pairs, int is_first,
                                                      const v16 *scale)
{
    const uint16_t *a0 = c->a[0], *a1 = c->a[1], *a2 = c->a[2], *a3 = c->a[3];
    const uint16_t *a4 = c->a[4], *a5 = c->a[5], *a6 = c->a[6], *a7 = c->a[7];
    __m512 x0, x1, x2, x3, x4, x5, x6, x7, y0, y1, y2, y3, y4, y5, y6, y7;
    x0 = x1 = x2 = x3 = x4 = x5 = x6 = x7 = _mm512_setzero_ps();
    y0 = y1 = y2 = y3 = y4 = y5 = y6 = y7 = _mm512_setzero_ps();
#define EACH(DO) DO(0, x0, y0, a0) DO(1, x1, y1, a1) DO(2, x2, y2, a2) DO(3, x3, y3, a3) DO(4, x4, y4, a4)             \
        DO(5, x5, y5, a5) DO(6, x6, y6, a6) DO(7, x7, y7, a7)
#define LOAD(g, xg, yg, ag)                                                                                            \
    xg = _mm512_loadu_ps(c->acc[g]);                                                                                   \
    yg = _mm512_loadu_ps(c->acc[g] + y_at);
#define STEP(g, xg, yg, ag)                                                                                            \
    v = pair(ag + 2 * j);                                                                                              \
    xg = _mm512_dpbf16_ps(xg, v, lx);                                                                                  \
    yg = _mm512_dpbf16_ps(yg, v, ly);
#define SCALE(g, xg, yg, ag)                                                                                           \
    xg = _mm512_mul_ps(xg, *scale);                                                                                    \
    yg = _mm512_mul_ps(yg, *scale);
#define STORE(g, xg, yg, ag)                                                                                           \
    _mm512_storeu_ps(c->acc[g], xg);                                                                                   \
    _mm512_storeu_ps(c->acc[g] + y_at, yg);
    if (!is_first) {
        EACH(LOAD)
    }
    for (int j = 0; j < n_pairs; j++) {
        const __m512bh lx = line(x + (size_t)j * step), ly = line(y + (size_t)j * step);
        __m512bh v;
        EACH(STEP)
    }
    if (scale) {
        EACH(SCALE)
    }
    EACH(STORE)
#undef EACH
#undef LOAD
#undef STEP
#undef SCALE
#undef STORE
}

static __attribute__((noinline)) void scores(const struct chains *c, const uint16_t *x, const uint16_t *y, size_t y_at,
                                             int hd, v16 scale)
{
    run(c, x, y, y_at, 32, hd / 2, 1, &scale);
}

static __attribute__((noinline)) void weigh(const struct chains *c, const uint16_t *x, size_t y_at, size_t step,
                                            int n_pairs)
{
    run(c, x, x + 2 * y_at, y_at, step, n_pairs, 0, NULL);
}

/* Pairs from_pair .. of one query alone, and the final + 0. */
static void weigh_rest(float *acc, const uint16_t *p, const void *const *tiles, int hd, int from_pair, int n)
{
    for (int d = 0; d < hd; d += 16) {
        __m512 c = _mm512_loadu_ps(acc + d);
        for (int j = from_pair; 2 * j < n; j++) {
            __m512i v = _mm512_load_si512((const uint16_t *)tiles[j / 8] + 16 * hd + j % 8 * hd * 2 + d * 2);
            if (2 * j + 1 == n) {
                v = _mm512_and_si512(v, _mm512_set1_epi32(0xffff));
            }
            c = _mm512_dpbf16_ps(c, pair(p + 2 * j), (__m512bh)v);
        }
        _mm512_storeu_ps(acc + d, _mm512_add_ps(c, _mm512_setzero_ps()));
    }
}

void avx512bf16_attn_part(const struct attn_part *part)
{
    const int hd = part->head_dim;
    float *const scores_of = part->scratch;
    uint16_t *const rounded = (uint16_t *)(void *)(part->scratch + ATTN_MAX_Q * ATTN_PARTITION);
    const v16 scale = v16_set1(part->scale);
    for (int i = 0; i < part->n_q; i += GROUP) {
        const int n = part->n_q - i < GROUP ? part->n_q - i : GROUP;
        int least, most;
        struct chains c;
        lanes_visible(part, i, n, &least, &most);
        for (int b = 0; b * 16 < most; b += 2) {
            const int two = (b + 1) * 16 < most;
            for (int g = 0; g < GROUP; g++) {
                const int at = g < n ? g : 0;
                c.acc[g] = scores_of + at * ATTN_PARTITION + b * 16;
                c.a[g] = (const uint16_t *)part->q + (size_t)(i + at) * (size_t)hd;
            }
            scores(&c, part->tiles[b], part->tiles[b + two], two ? 16 : 0, hd, scale);
        }
        for (int g = 0; g < n; g++) {
            lanes_softmax(scores_of + g * ATTN_PARTITION, rounded + g * ATTN_PARTITION, part->visible[i + g],
                          &part->m[i + g], &part->l[i + g], ACT_BF16);
        }
        memset(part->acc + (size_t)i * (size_t)hd, 0, (size_t)n * (size_t)hd * sizeof(float));
        for (int d = 0; d < hd; d += 32) {
            const size_t y_at = d + 16 < hd ? 16 : 0;
            for (int j = 0; j < least / 2; j += 8) {
                const int pairs = least / 2 - j < 8 ? least / 2 - j : 8;
                for (int g = 0; g < GROUP; g++) {
                    const int at = g < n ? g : 0;
                    c.acc[g] = part->acc + (size_t)(i + at) * (size_t)hd + d;
                    c.a[g] = rounded + at * ATTN_PARTITION + 2 * j;
                }
                const uint16_t *v = (const uint16_t *)part->tiles[j / 8] + 16 * hd + 2 * d;
                weigh(&c, v, y_at, (size_t)hd * 2, pairs);
            }
        }
        for (int g = 0; g < n; g++) {
            weigh_rest(part->acc + (size_t)(i + g) * (size_t)hd, rounded + g * ATTN_PARTITION, part->tiles, hd,
                       least / 2, part->visible[i + g]);
        }
    }
}
