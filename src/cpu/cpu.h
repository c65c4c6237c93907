/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine can run: instruction-set levels, CPUs the process may use, memory it may use.
 */
#ifndef TERN_CPU_CPU_H
#define TERN_CPU_CPU_H

#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

/* Ordered: a higher level includes all lower ones of its architecture. */
enum cpu_level {
    CPU_NONE = 0,    /* below the floor (x86-64-v2: SSE4.2, POPCNT, SSSE3) */
    CPU_SCALAR,      /* the reference kernels, on any supported machine */
    CPU_AVX2,        /* AVX2 + FMA + F16C, and the OS saves ymm */
    CPU_AVX512,      /* F, BW, VL, DQ, and the OS saves zmm */
    CPU_AVX512_BF16, /* the above + AVX512_BF16, VNNI, VBMI */
    CPU_NEON = 16,   /* arm64 baseline */
    CPU_NEON_DOT,    /* and FEAT_DotProd */
    CPU_NEON_BF16,   /* and FEAT_I8MM, FEAT_BF16 */
};

enum cpu_level cpu_detect(void);                  /* the best this machine runs */
const char *cpu_level_name(enum cpu_level level); /* as --cpu-mask has it: "scalar", "avx2", … */
/* --cpu-mask: a level name; ERR_INVALID for an unknown name (the text lists the valid ones),
 * ERR_UNSUPPORTED
 * ("needs …") for one this machine lacks. NULL or "auto": the best. */
int cpu_level_choose(const char *name, enum cpu_level *out, struct err *e);
int cpu_levels_available(enum cpu_level out[8]); /* ascending, at least CPU_SCALAR; count */

struct cpu_limits {
    int n_affinity;     /* CPUs in the affinity mask */
    double cgroup_cpus; /* cpu.max quota / period; 0 = no limit (v1 and v2 read) */
    int n_threads; /* compute threads to use: min(affinity, max(1, floor(quota))), physical cores
                      first */
    int cpu_ids[1024];           /* n_threads CPUs to bind to */
    uint64_t host_memory_bytes;  /* MemTotal */
    uint64_t memory_limit_bytes; /* min(host, cgroup memory.max) */
    uint64_t
        memory_available_bytes; /* what may still be used: reclaimable page cache counts as free */
};
int cpu_limits_read(struct cpu_limits *out, struct err *e);
/* The same with /proc and /sys looked up below `root` ("" = the real ones): what tests call on
 * made-up trees. */
int cpu_limits_read_at(struct cpu_limits *out, const char *root, struct err *e);

/* Sets flush-to-zero and denormals-are-zero for the calling thread (every compute thread does). */
void cpu_set_numeric_mode(void);
/* The calling thread's mode as a word, to put back later (cpu_pool_run does so for its caller). */
uint64_t cpu_numeric_mode_save(void);
void cpu_numeric_mode_restore(uint64_t mode);

/* Big allocations: anonymous, zeroed, on huge pages where allowed, page-aligned. NULL when refused.
 */
void *cpu_big_alloc(size_t n_bytes);
void cpu_big_free(void *p, size_t n_bytes);

#endif
