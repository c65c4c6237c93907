/* SPDX-License-Identifier: Apache-2.0 */
/* Instruction-set levels of this machine.
 *
 * A level counts only when the processor has the instructions AND the operating system saves the
 * registers they use (XCR0): a virtual machine may show AVX-512 in CPUID and still fault on the
 * first zmm. This file is compiled for the baseline, so it runs on a processor below the floor and
 * can say so. */
#include "cpu/cpu.h"
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static const struct {
    enum cpu_level level;
    const char *name, *needs;
} levels[] = {
    {CPU_SCALAR, "scalar", "SSE4.2, SSSE3 and POPCNT (x86-64-v2), or arm64"},
    {CPU_AVX2, "avx2", "AVX2, FMA and F16C"},
    {CPU_AVX512, "avx512", "AVX-512 F, BW, VL and DQ"},
    {CPU_AVX512_BF16, "avx512bf16", "AVX-512 F, BW, VL, DQ, VBMI, VNNI and BF16"},
    {CPU_NEON, "neon", "arm64"},
    {CPU_NEON_DOT, "neondot", "arm64 with DotProd"},
    {CPU_NEON_BF16, "neonbf16", "arm64 with DotProd, I8MM and BF16"},
};
#define N_LEVELS (sizeof levels / sizeof levels[0])

#if defined(__x86_64__)
static uint64_t read_xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

enum cpu_level cpu_detect(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) {
        return CPU_NONE;
    }
    unsigned v2 = bit_SSE3 | bit_SSSE3 | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT | bit_CMPXCHG16B;
    if ((c & v2) != v2) {
        return CPU_NONE;
    }
    unsigned avx = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    if ((c & avx) != avx || (read_xcr0() & 0x06) != 0x06) {
        return CPU_SCALAR;
    }
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) {
        return CPU_SCALAR;
    }
    unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    if ((b & avx512) != avx512 || (read_xcr0() & 0xe6) != 0xe6) {
        return CPU_AVX2;
    }
    if (a < 1 || !(c & bit_AVX512VNNI) || !(c & bit_AVX512VBMI) ||
        !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & (1u << 5))) {
        return CPU_AVX512;
    }
    return CPU_AVX512_BF16;
}

void cpu_set_numeric_mode(void)
{
    /* All exceptions masked, round to nearest, FTZ (bit 15) and DAZ (bit 6). */
    _mm_setcsr(0x1f80u | 0x8000u | 0x0040u);
}

uint64_t cpu_numeric_mode_save(void)
{
    return _mm_getcsr();
}

void cpu_numeric_mode_restore(uint64_t mode)
{
    _mm_setcsr((unsigned)mode);
}
#elif defined(__aarch64__)
enum cpu_level cpu_detect(void)
{
    /* Advanced SIMD is part of the arm64 baseline */
    const unsigned long more = HWCAP2_I8MM | HWCAP2_BF16;
    if (!(getauxval(AT_HWCAP) & HWCAP_ASIMDDP)) {
        return CPU_NEON;
    }
    return (getauxval(AT_HWCAP2) & more) == more ? CPU_NEON_BF16 : CPU_NEON_DOT;
}

uint64_t cpu_numeric_mode_save(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}

void cpu_numeric_mode_restore(uint64_t mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}

void cpu_set_numeric_mode(void)
{
    cpu_numeric_mode_restore(1u << 24); /* FZ; round to nearest, no traps */
}
#else
#error "tern runs on x86-64 and arm64"
#endif

const char *cpu_level_name(enum cpu_level level)
{
    for (size_t i = 0; i < N_LEVELS; i++) {
        if (levels[i].level == level) {
            return levels[i].name;
        }
    }
    return "none";
}

/* Whether `have` (what cpu_detect said) runs `want`. */
static int runs(enum cpu_level have, enum cpu_level want)
{
    if (have == CPU_NONE) {
        return 0;
    }
    const int is_same = (have >= CPU_NEON) == (want >= CPU_NEON);
    return want == CPU_SCALAR || (is_same && want <= have);
}

int cpu_level_choose(const char *name, enum cpu_level *out, struct err *e)
{
    enum cpu_level have = cpu_detect();
    if (have == CPU_NONE) {
        return err_set(e, ERR_UNSUPPORTED, "this processor lacks %s", levels[0].needs);
    }
    if (!name || strcmp(name, "auto") == 0) {
        *out = have;
        return 0;
    }
    for (size_t i = 0; i < N_LEVELS; i++) {
        if (strcmp(name, levels[i].name) != 0) {
            continue;
        }
        if (!runs(have, levels[i].level)) {
            return err_set(e, ERR_UNSUPPORTED,
                           "CPU level '%s' needs %s; this machine runs up to '%s'", name,
                           levels[i].needs, cpu_level_name(have));
        }
        *out = levels[i].level;
        return 0;
    }
    return err_set(e, ERR_INVALID,
                   "unknown CPU level '%s': expected auto, scalar, avx2, avx512, avx512bf16, neon, "
                   "neondot or neonbf16",
                   name);
}

int cpu_levels_available(enum cpu_level out[8])
{
    enum cpu_level have = cpu_detect();
    int n = 0;
    for (size_t i = 0; i < N_LEVELS; i++) {
        if (runs(have, levels[i].level)) {
            out[n++] = levels[i].level;
        }
    }
    if (n == 0) {
        out[n++] = CPU_SCALAR;
    }
    return n;
}
