/* SPDX-License-Identifier: Apache-2.0 */
/* The bump allocator. Chunks form a list whose head is the one being filled; an allocation that is
 * large against the chunk size gets a chunk of its own behind the head, so that the head's free
 * room is not lost. Chunks come from calloc, which is what makes every allocation zeroed. */
#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN         16u
#define DEFAULT_CHUNK 4096u

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, cap;
    _Alignas(ALIGN) unsigned char bytes[];
};

void arena_init(struct arena *a, size_t chunk_bytes)
{
    a->head = NULL;
    a->chunk_bytes = chunk_bytes;
}

void arena_fini(struct arena *a)
{
    if (!a) {
        return;
    }
    struct arena_chunk *c = a->head;
    while (c) {
        struct arena_chunk *next = c->next;
        free(c);
        c = next;
    }
    a->head = NULL;
}

static struct arena_chunk *new_chunk(size_t cap)
{
    struct arena_chunk *c = calloc(1, sizeof *c + cap);
    if (c) {
        c->cap = cap;
    }
    return c;
}

void *arena_alloc(struct arena *a, size_t n_bytes)
{
    if (n_bytes > SIZE_MAX / 2) {
        return NULL;
    }
    size_t n = (n_bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    n = n ? n : ALIGN; /* every allocation has an address of its own */
    struct arena_chunk *c = a->head;
    if (c && n <= c->cap - c->used) {
        void *p = c->bytes + c->used;
        c->used += n;
        return p;
    }
    size_t want = a->chunk_bytes ? a->chunk_bytes : DEFAULT_CHUNK;
    int own = n > want / 4;
    struct arena_chunk *fresh = new_chunk(own ? n : want);
    if (!fresh) {
        return NULL;
    }
    fresh->used = n;
    if (own && c) {
        fresh->next = c->next;
        c->next = fresh;
    } else {
        fresh->next = c;
        a->head = fresh;
    }
    return fresh->bytes;
}

char *arena_strndup(struct arena *a, const char *s, size_t n_bytes)
{
    char *p = n_bytes < SIZE_MAX ? arena_alloc(a, n_bytes + 1) : NULL;
    if (p && n_bytes) {
        memcpy(p, s, n_bytes);
    }
    return p;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

void *arena_memdup(struct arena *a, const void *data, size_t n_bytes)
{
    void *p = arena_alloc(a, n_bytes);
    if (p && n_bytes) {
        memcpy(p, data, n_bytes);
    }
    return p;
}
