/* SPDX-License-Identifier: Apache-2.0 */
/* Reference of the matrix products. Every output is one fp32 chain over ascending pairs of K,
 * computed alone; the fused forms are the product of a tile followed by the unfused
 * operation. Rows come in blocks only so that a coded tile is decoded once for many of them. */
#include "kernels/ref/math.h"
#include "kernels/ref/ref.h"

/* The 16 outputs of one row of `a` (k elements) and one tile of a matrix that is not quantized. */
static void dense_tile_row(float out[16], const void *a, enum act_type t, const struct weight *w,
                           int tile)
{
    size_t pairs = (size_t)w->k / 2;
    size_t base = (size_t)tile * pairs * 32;
    for (int i = 0; i < 16; i++) {
        out[i] = 0.0f;
    }
    for (size_t j = 0; j < pairs; j++) {
        float even = ref_load(a, 2 * j, t), odd = ref_load(a, 2 * j + 1, t);
        for (size_t i = 0; i < 16; i++) {
            size_t e = base + j * 32 + i * 2;
            float w_even, w_odd;
            if (w->format == WEIGHT_BF16) {
                w_even = bf16_to_f32(((const uint16_t *)w->data)[e]);
                w_odd = bf16_to_f32(((const uint16_t *)w->data)[e + 1]);
            } else {
                w_even = ((const float *)w->data)[e];
                w_odd = ((const float *)w->data)[e + 1];
            }
            out[i] = ref_fma(even, w_even, ref_fma(odd, w_odd, out[i]));
        }
    }
}

/* Rows i0 .. i0 + count (at most REF_ROWS) of `a` and one tile. */
static void tile_rows(float *out, size_t ldo, const void *a, size_t lda, int i0, int count,
                      enum act_type t, const struct weight *w, int tile)
{
    if (weight_is_quantized(w)) {
        const size_t row_bytes = lda * (w->input == INPUT_ACT ? act_size(t) : 1);
        ref_quant_tile(out, ldo, ref_input_row(a, i0, lda, w, t), row_bytes, count, t, w, tile);
        return;
    }
    for (int i = 0; i < count; i++) {
        dense_tile_row(out + (size_t)i * ldo, ref_input_row(a, i0 + i, lda, w, t), t, w, tile);
    }
}

static int rows_from(int i0, int m) /* of the block that starts at row i0 */
{
    return m - i0 < REF_ROWS ? m - i0 : REF_ROWS;
}

static void gemm(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                 int tile0, int tile1, enum act_type t)
{
    for (int i = 0; i < m; i += REF_ROWS) {
        for (int tile = tile0; tile < tile1; tile++) {
            tile_rows(c + (size_t)i * ldc + (size_t)(tile - tile0) * 16, ldc, a, lda, i,
                      rows_from(i, m), t, w, tile);
        }
    }
}

void ref_gemm_bf16(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                   int tile0, int tile1)
{
    gemm(c, ldc, a, lda, w, m, tile0, tile1, ACT_BF16);
}

void ref_gemm_f32(float *c, size_t ldc, const void *a, size_t lda, const struct weight *w, int m,
                  int tile0, int tile1)
{
    gemm(c, ldc, a, lda, w, m, tile0, tile1, ACT_F32);
}

void ref_gemm_add_bf16(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w,
                       int m, int tile0, int tile1)
{
    float c[REF_ROWS * 16];
    for (int i = 0; i < m; i += REF_ROWS) {
        for (int tile = tile0; tile < tile1; tile++) {
            int n = w->n - tile * 16;
            tile_rows(c, 16, a, lda, i, rows_from(i, m), ACT_BF16, w, tile);
            ref_add_bf16(ref_at(x, (size_t)i * ldx + (size_t)tile * 16, ACT_BF16), ldx, c, 16,
                         rows_from(i, m), n < 16 ? n : 16);
        }
    }
}

void ref_gemm_add_f32(void *x, size_t ldx, const void *a, size_t lda, const struct weight *w, int m,
                      int tile0, int tile1)
{
    float c[REF_ROWS * 16];
    for (int i = 0; i < m; i += REF_ROWS) {
        for (int tile = tile0; tile < tile1; tile++) {
            int n = w->n - tile * 16;
            tile_rows(c, 16, a, lda, i, rows_from(i, m), ACT_F32, w, tile);
            ref_add_f32(ref_at(x, (size_t)i * ldx + (size_t)tile * 16, ACT_F32), ldx, c, 16,
                        rows_from(i, m), n < 16 ? n : 16);
        }
    }
}

void ref_gemm_swiglu_bf16(void *out, size_t ldo, const void *a, size_t lda,
                          const struct weight *gate_up, int n, int m, int t0, int t1)
{
    float g[REF_ROWS * 16], u[REF_ROWS * 16];
    for (int i = 0; i < m; i += REF_ROWS) {
        const int rows = rows_from(i, m);
        for (int t = t0; t < t1; t++) {
            int n_cols = n - t * 16;
            tile_rows(g, 16, a, lda, i, rows, ACT_BF16, gate_up, 2 * t);
            tile_rows(u, 16, a, lda, i, rows, ACT_BF16, gate_up, 2 * t + 1);
            ref_swiglu_bf16(ref_at(out, (size_t)i * ldo + (size_t)t * 16, ACT_BF16), ldo, g, 16, u,
                            16, rows, n_cols < 16 ? n_cols : 16);
        }
    }
}

void ref_gemm_swiglu_f32(void *out, size_t ldo, const void *a, size_t lda,
                         const struct weight *gate_up, int n, int m, int t0, int t1)
{
    float g[REF_ROWS * 16], u[REF_ROWS * 16];
    for (int i = 0; i < m; i += REF_ROWS) {
        const int rows = rows_from(i, m);
        for (int t = t0; t < t1; t++) {
            int n_cols = n - t * 16;
            tile_rows(g, 16, a, lda, i, rows, ACT_F32, gate_up, 2 * t);
            tile_rows(u, 16, a, lda, i, rows, ACT_F32, gate_up, 2 * t + 1);
            ref_swiglu_f32(ref_at(out, (size_t)i * ldo + (size_t)t * 16, ACT_F32), ldo, g, 16, u,
                           16, rows, n_cols < 16 ? n_cols : 16);
        }
    }
}

/* One row and one head at a time: `row` of r starts at the row's own entries. */
static struct qkv_rows row_of(const struct qkv_rows *r, int i, enum act_type t)
{
    struct qkv_rows row = *r;
    row.rope += (size_t)i * (size_t)r->head_dim;
    row.q = ref_at(r->q, (size_t)i * r->ldq, t);
    row.kv_tile += i;
    row.slot += i;
    return row;
}

void ref_gemm_qkv_bf16(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                       int m, int head0, int head1)
{
    float c[MAX_HEAD_DIM];
    int tiles = r->head_dim / 16;
    for (int i = 0; i < m; i++) {
        struct qkv_rows row = row_of(r, i, ACT_BF16);
        for (int h = head0; h < head1; h++) {
            ref_gemm_bf16(c, MAX_HEAD_DIM, ref_input_row(a, i, lda, w, ACT_BF16), lda, w, 1,
                          h * tiles, (h + 1) * tiles);
            ref_rope_store_bf16(c, MAX_HEAD_DIM, &row, 1, h, h + 1);
        }
    }
}

void ref_gemm_qkv_f32(const void *a, size_t lda, const struct weight *w, const struct qkv_rows *r,
                      int m, int head0, int head1)
{
    float c[MAX_HEAD_DIM];
    int tiles = r->head_dim / 16;
    for (int i = 0; i < m; i++) {
        struct qkv_rows row = row_of(r, i, ACT_F32);
        for (int h = head0; h < head1; h++) {
            ref_gemm_f32(c, MAX_HEAD_DIM, ref_input_row(a, i, lda, w, ACT_F32), lda, w, 1,
                         h * tiles, (h + 1) * tiles);
            ref_rope_store_f32(c, MAX_HEAD_DIM, &row, 1, h, h + 1);
        }
    }
}
