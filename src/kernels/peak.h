/* SPDX-License-Identifier: Apache-2.0 */
/* The most that an x86 machine does a second, for benchmarks: loops without anything else. */
#ifndef TERN_KERNELS_PEAK_H
#define TERN_KERNELS_PEAK_H

#include "cpu/cpu.h"

#include <stddef.h>
#include <stdint.h>

enum peak_kind { PEAK_BF16, PEAK_I8, PEAK_F32 };

/* Reads 4 * quarter bytes from p (64-byte aligned, quarter a multiple of 64) as four streams; AVX-512. The
 * result only keeps a compiler from dropping the loads. */
uint64_t peak_read(const char *p, size_t quarter);

/* Multiply-adds on registers: a round is 24 instructions of 16 lanes (BF16: pairs, I8: quadruples); below
 * AVX-512, and for I8 below VNNI, 12 of the widest there are. PEAK_BF16 needs CPU_AVX512_BF16, the others CPU_AVX2. */
void peak_spin(enum cpu_level level, enum peak_kind kind, long rounds);

#endif
