/* SPDX-License-Identifier: Apache-2.0 */
/* The hash map: open addressing with linear probing, at most 3/4 full, a power of two of slots.
 * Removal shifts later entries of the probe run back instead of leaving tombstones, so the cost of
 * a look-up never depends on what was removed before. A slot is in use when its key pointer is set.
 */
#include "base/map.h"

#include "base/err.h"
#include "base/hash.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct slot {
    void *key; /* owned copy; never NULL in a used slot */
    size_t key_bytes;
    uint64_t hash;
    void *value;
};

struct map {
    struct slot *slots; /* NULL until the first put */
    size_t n_slots, count;
    uint64_t seed;
};

struct map *map_new(void)
{
    struct map *m = calloc(1, sizeof *m);
    if (m) {
        m->seed = hash_random_seed();
    }
    return m;
}

void map_free(struct map *m)
{
    if (!m) {
        return;
    }
    for (size_t i = 0; i < m->n_slots; i++) {
        free(m->slots[i].key);
    }
    free(m->slots);
    free(m);
}

/* The slot that holds the key, or the free one where it would go. Needs a free slot to stop at. */
static struct slot *find(const struct map *m, const void *key, size_t key_bytes, uint64_t hash)
{
    size_t mask = m->n_slots - 1;
    for (size_t i = (size_t)hash & mask;; i = (i + 1) & mask) {
        struct slot *s = &m->slots[i];
        if (!s->key || (s->hash == hash && s->key_bytes == key_bytes &&
                        (key_bytes == 0 || memcmp(s->key, key, key_bytes) == 0))) {
            return s;
        }
    }
}

static int grow(struct map *m)
{
    size_t n_slots = m->n_slots ? m->n_slots * 2 : 16;
    struct slot *slots = calloc(n_slots, sizeof *slots);
    if (!slots) {
        return ERR_NOMEM;
    }
    for (size_t i = 0; i < m->n_slots; i++) {
        if (m->slots[i].key) {
            size_t j = (size_t)m->slots[i].hash & (n_slots - 1);
            while (slots[j].key) {
                j = (j + 1) & (n_slots - 1);
            }
            slots[j] = m->slots[i];
        }
    }
    free(m->slots);
    m->slots = slots;
    m->n_slots = n_slots;
    return 0;
}

int map_put(struct map *m, const void *key, size_t key_bytes, void *value)
{
    uint64_t hash = hash64(key, key_bytes, m->seed);
    if (m->n_slots) {
        struct slot *s = find(m, key, key_bytes, hash);
        if (s->key) {
            s->value = value;
            return 0;
        }
    }
    if (m->count + 1 > m->n_slots / 4 * 3 && grow(m) != 0) {
        return ERR_NOMEM;
    }
    void *copy = malloc(key_bytes ? key_bytes : 1);
    if (!copy) {
        return ERR_NOMEM;
    }
    if (key_bytes) {
        memcpy(copy, key, key_bytes);
    }
    *find(m, key, key_bytes, hash) =
        (struct slot){.key = copy, .key_bytes = key_bytes, .hash = hash, .value = value};
    m->count++;
    return 0;
}

void *map_get(const struct map *m, const void *key, size_t key_bytes)
{
    if (m->count == 0) {
        return NULL;
    }
    const struct slot *s = find(m, key, key_bytes, hash64(key, key_bytes, m->seed));
    return s->key ? s->value : NULL;
}

void *map_remove(struct map *m, const void *key, size_t key_bytes)
{
    if (m->count == 0) {
        return NULL;
    }
    struct slot *s = find(m, key, key_bytes, hash64(key, key_bytes, m->seed));
    if (!s->key) {
        return NULL;
    }
    void *value = s->value;
    free(s->key);
    size_t mask = m->n_slots - 1;
    size_t hole = (size_t)(s - m->slots);
    for (size_t i = (hole + 1) & mask; m->slots[i].key; i = (i + 1) & mask) {
        size_t home = (size_t)m->slots[i].hash & mask;
        /* an entry may move back to the hole only if the hole is not before its home */
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->slots[hole] = (struct slot){0};
    m->count--;
    return value;
}

size_t map_count(const struct map *m)
{
    return m->count;
}

int map_next(const struct map *m, size_t *it, const void **key, size_t *key_bytes, void **value)
{
    while (*it < m->n_slots) {
        const struct slot *s = &m->slots[(*it)++];
        if (s->key) {
            if (key) {
                *key = s->key;
            }
            if (key_bytes) {
                *key_bytes = s->key_bytes;
            }
            if (value) {
                *value = s->value;
            }
            return 1;
        }
    }
    return 0;
}
