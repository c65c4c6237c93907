/* SPDX-License-Identifier: Apache-2.0 */
/* Loops that only read, or only multiply and add: what the kernels are measured against. Functions
 * carry their target themselves, since one file serves all levels. */
#include "kernels/peak.h"

#include <immintrin.h>

__attribute__((target("avx512f"))) uint64_t peak_read(const char *p, size_t quarter)
{
    __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0, s3 = s0;
    for (size_t i = 0; i < quarter; i += 64) {
        s0 = _mm512_or_si512(s0, _mm512_load_si512(p + i));
        s1 = _mm512_or_si512(s1, _mm512_load_si512(p + quarter + i));
        s2 = _mm512_or_si512(s2, _mm512_load_si512(p + 2 * quarter + i));
        s3 = _mm512_or_si512(s3, _mm512_load_si512(p + 3 * quarter + i));
        _mm_prefetch(p + i + 2048, _MM_HINT_T0);
        _mm_prefetch(p + quarter + i + 2048, _MM_HINT_T0);
        _mm_prefetch(p + 2 * quarter + i + 2048, _MM_HINT_T0);
        _mm_prefetch(p + 3 * quarter + i + 2048, _MM_HINT_T0);
    }
    s0 = _mm512_or_si512(_mm512_or_si512(s0, s1), _mm512_or_si512(s2, s3));
    return (uint64_t)_mm512_reduce_or_epi64(s0);
}

/* Multiply-adds on registers: 24 (12) independent chains of zeros. In assembly, because a compiler
 * may fold, reorder or spill them. CLEAR and STEP are for chain \i; register 12 is free with 12. */
#define CHAINS_12 "0,1,2,3,4,5,6,7,8,9,10,11"
#define CHAINS_24 CHAINS_12 ",12,13,14,15,16,17,18,19,20,21,22,23"
#define USED_12                                                                                    \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm12"
#define USED_24                                                                                    \
    USED_12, "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21",      \
        "xmm22", "xmm23"
#define CLEAR_512 "vpxord %%zmm\\i, %%zmm\\i, %%zmm\\i"
#define CLEAR_256 "vpxor %%ymm\\i, %%ymm\\i, %%ymm\\i"

#define SPIN(name, isa, CHAINS, USED, CLEAR, STEP)                                                 \
    __attribute__((target(isa))) static void name(long rounds)                                     \
    {                                                                                              \
        __asm__ volatile(".irp i," CHAINS "\n\t" CLEAR "\n\t.endr\n"                               \
                         "1:\n\t.irp i," CHAINS "\n\t" STEP "\n\t.endr\n\t"                        \
                         "dec %0\n\tjnz 1b"                                                        \
                         : "+r"(rounds)                                                            \
                         :                                                                         \
                         : "cc", USED);                                                            \
    }

SPIN(spin_bf16, "avx512f", CHAINS_24, USED_24, CLEAR_512, "vdpbf16ps %%zmm\\i, %%zmm\\i, %%zmm\\i")
SPIN(spin_i8, "avx512f", CHAINS_24, USED_24, CLEAR_512, "vpdpbusd %%zmm\\i, %%zmm\\i, %%zmm\\i")
SPIN(spin_f32_avx512, "avx512f", CHAINS_24, USED_24, CLEAR_512,
     "vfmadd231ps %%zmm\\i, %%zmm\\i, %%zmm\\i")
SPIN(spin_f32_avx2, "avx2", CHAINS_12, USED_12, CLEAR_256,
     "vfmadd231ps %%ymm\\i, %%ymm\\i, %%ymm\\i")
/* int8 products through int16 halves, the exact way below VNNI. */
SPIN(spin_i16_avx512, "avx512bw", CHAINS_12, USED_12, CLEAR_512,
     "vpmaddwd %%zmm\\i, %%zmm\\i, %%zmm12\n\tvpaddd %%zmm12, %%zmm\\i, %%zmm\\i")
SPIN(spin_i16_avx2, "avx2", CHAINS_12, USED_12, CLEAR_256,
     "vpmaddwd %%ymm\\i, %%ymm\\i, %%ymm12\n\tvpaddd %%ymm12, %%ymm\\i, %%ymm\\i")

void peak_spin(enum cpu_level level, enum peak_kind kind, long rounds)
{
    int wide = level >= CPU_AVX512;
    switch (kind) {
    case PEAK_BF16:
        spin_bf16(rounds);
        break;
    case PEAK_I8:
        if (level == CPU_AVX512_BF16) {
            spin_i8(rounds);
        } else if (wide) {
            spin_i16_avx512(rounds);
        } else {
            spin_i16_avx2(rounds);
        }
        break;
    case PEAK_F32:
        if (wide) {
            spin_f32_avx512(rounds);
        } else {
            spin_f32_avx2(rounds);
        }
        break;
    }
}
