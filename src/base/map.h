/* SPDX-License-Identifier: Apache-2.0 */
/* Hash map from byte strings to pointers (keys are copied). Seeded, so that outside keys can't be
 * chosen to collide. Not thread-safe. */
#ifndef TERN_BASE_MAP_H
#define TERN_BASE_MAP_H
#include <stddef.h>
struct map;
struct map *map_new(void);    /* NULL when out of memory */
void map_free(struct map *m); /* values are the caller's */
int map_put(struct map *m, const void *key, size_t key_bytes,
            void *value); /* replaces; 0 or ERR_NOMEM */
void *map_get(const struct map *m, const void *key, size_t key_bytes); /* NULL if absent */
void *map_remove(struct map *m, const void *key, size_t key_bytes); /* the value, NULL if absent */
size_t map_count(const struct map *m);
/* Iterate: start with *it = 0; returns 1 per entry, 0 at the end. No changes while iterating. */
int map_next(const struct map *m, size_t *it, const void **key, size_t *key_bytes, void **value);
#endif
