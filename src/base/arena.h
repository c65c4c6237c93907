/* SPDX-License-Identifier: Apache-2.0 */
/* Bump allocator for everything that lives as long as one request or one loaded object. */
#ifndef TERN_BASE_ARENA_H
#define TERN_BASE_ARENA_H
#include <stddef.h>
struct arena_chunk;
struct arena {
    struct arena_chunk *head;
    size_t chunk_bytes; /* 0: default 4 KiB */
};
void arena_init(struct arena *a, size_t chunk_bytes);
void arena_fini(struct arena *a); /* frees all */
void *arena_alloc(struct arena *a,
                  size_t n_bytes); /* zeroed, 16-byte aligned; NULL when out of memory */
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t n_bytes); /* NUL-terminated copy */
void *arena_memdup(struct arena *a, const void *p, size_t n_bytes);
#endif
