/* SPDX-License-Identifier: Apache-2.0 */
/* Big allocations: weights, KV cache, activations.
 *
 * A 0.3B model walks 700 MB per token; with 4 KiB pages the TLB misses cost more than the
 * arithmetic. So the mapping starts on a 2 MiB boundary (only whole, aligned 2 MiB ranges can
 * become huge pages) and asks for huge pages with madvise, which works under both the `always` and
 * the `madvise` setting of the kernel. */
#include "cpu/cpu.h"
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

static size_t round_to_page(size_t n_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n_bytes + page - 1) / page * page;
}

void *cpu_big_alloc(size_t n_bytes)
{
    if (n_bytes == 0 || n_bytes > SIZE_MAX / 2) {
        return NULL;
    }
    size_t size = round_to_page(n_bytes);
    size_t slack = size >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
    char *p = mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return NULL;
    }
    if (slack) {
        size_t head = (HUGE_PAGE_BYTES - (uintptr_t)p % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
        if (head) {
            munmap(p, head);
        }
        if (slack - head) {
            munmap(p + head + size, slack - head);
        }
        p += head;
        (void)madvise(p, size, MADV_HUGEPAGE); /* refused: small pages, slower, still right */
    }
    return p;
}

void cpu_big_free(void *p, size_t n_bytes)
{
    if (p) {
        munmap(p, round_to_page(n_bytes));
    }
}
