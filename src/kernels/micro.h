/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the micro kernels' rows, for every instruction set. */
#ifndef TERN_KERNELS_MICRO_H
#define TERN_KERNELS_MICRO_H

#define MICRO_ROWS 6 /* rows of the micro kernels at most */

/* DO(row, its four accumulators, its inputs) for rows 0 .. n_rows-1 of at most six: the names of
 * the micro kernels, whose accumulators must be variables and no array (gcc keeps arrays in
 * memory). */
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

/* CALL(n, …) with n_rows as a constant, because the accumulators must be known to the compiler. */
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

#endif
