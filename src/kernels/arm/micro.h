/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the loops of kernels/arm: up to six rows, each with four accumulators, which must be
 * variables and no array (gcc keeps arrays in memory). */
#ifndef TERN_KERNELS_ARM_MICRO_H
#define TERN_KERNELS_ARM_MICRO_H

#define MICRO_ROWS   6
#define MICRO_INLINE static inline __attribute__((always_inline))

/* DO(row, its accumulators, its inputs) for rows 0 .. n_rows - 1. */
#define ROWS_6X4(DO)                                                                               \
    DO(0, c00, c01, c02, c03, a0)                                                                  \
    if (n_rows > 1) {                                                                              \
        DO(1, c10, c11, c12, c13, a1)                                                              \
    }                                                                                              \
    if (n_rows > 2) {                                                                              \
        DO(2, c20, c21, c22, c23, a2)                                                              \
    }                                                                                              \
    if (n_rows > 3) {                                                                              \
        DO(3, c30, c31, c32, c33, a3)                                                              \
    }                                                                                              \
    if (n_rows > 4) {                                                                              \
        DO(4, c40, c41, c42, c43, a4)                                                              \
    }                                                                                              \
    if (n_rows > 5) {                                                                              \
        DO(5, c50, c51, c52, c53, a5)                                                              \
    }

/* CALL(n, …) with n_rows as a constant. */
#define ROW_COUNTS(n_rows, CALL, ...)                                                              \
    switch (n_rows) {                                                                              \
    case 1:                                                                                        \
        CALL(1, __VA_ARGS__);                                                                      \
        break;                                                                                     \
    case 2:                                                                                        \
        CALL(2, __VA_ARGS__);                                                                      \
        break;                                                                                     \
    case 3:                                                                                        \
        CALL(3, __VA_ARGS__);                                                                      \
        break;                                                                                     \
    case 4:                                                                                        \
        CALL(4, __VA_ARGS__);                                                                      \
        break;                                                                                     \
    case 5:                                                                                        \
        CALL(5, __VA_ARGS__);                                                                      \
        break;                                                                                     \
    default:                                                                                       \
        CALL(6, __VA_ARGS__);                                                                      \
        break;                                                                                     \
    }

/* The four products of a level and an activation type, its own where is_own(w, type), else those of
 * the level below. */
#define OWN_PRODUCTS(level, below, type, act, panel, act_bytes)                                    \
    static const struct fused fused_##type = {                                                     \
        panel, neon_swiglu_##type, neon_add_##type, neon_rope_store_##type, act_bytes, NULL, 0};   \
    void level##_gemm_##type(float *c, size_t ldc, const void *a, size_t lda,                      \
                             const struct weight *w, int m, int tile0, int tile1)                  \
    {                                                                                              \
        if (!is_own(w, act)) {                                                                     \
            below##_gemm_##type(c, ldc, a, lda, w, m, tile0, tile1);                               \
            return;                                                                                \
        }                                                                                          \
        fused_gemm(&fused_##type, c, ldc, a, lda, w, m, tile0, tile1);                             \
    }                                                                                              \
    void level##_gemm_add_##type(void *x, size_t ldx, const void *a, size_t lda,                   \
                                 const struct weight *w, int m, int tile0, int tile1)              \
    {                                                                                              \
        if (!is_own(w, act)) {                                                                     \
            below##_gemm_add_##type(x, ldx, a, lda, w, m, tile0, tile1);                           \
            return;                                                                                \
        }                                                                                          \
        fused_gemm_add(&fused_##type, x, ldx, a, lda, w, m, tile0, tile1);                         \
    }                                                                                              \
    void level##_gemm_swiglu_##type(void *out, size_t ldo, const void *a, size_t lda,              \
                                    const struct weight *w, int n, int m, int t0, int t1)          \
    {                                                                                              \
        if (!is_own(w, act)) {                                                                     \
            below##_gemm_swiglu_##type(out, ldo, a, lda, w, n, m, t0, t1);                         \
            return;                                                                                \
        }                                                                                          \
        fused_gemm_swiglu(&fused_##type, out, ldo, a, lda, w, n, m, t0, t1);                       \
    }                                                                                              \
    void level##_gemm_qkv_##type(const void *a, size_t lda, const struct weight *w,                \
                                 const struct qkv_rows *r, int m, int head0, int head1)            \
    {                                                                                              \
        if (!is_own(w, act)) {                                                                     \
            below##_gemm_qkv_##type(a, lda, w, r, m, head0, head1);                                \
            return;                                                                                \
        }                                                                                          \
        fused_gemm_qkv(&fused_##type, a, lda, w, r, m, head0, head1);                              \
    }

#endif
