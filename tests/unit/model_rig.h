/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of src/model share: temporary directories, random checkpoints made by
 * tools/make-random-model, loading, and where the fixtures of the shared folder are. Include after
 * cmocka.h. */
#ifndef TERN_TESTS_MODEL_RIG_H
#define TERN_TESTS_MODEL_RIG_H

#include "model/forward.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct rig_dir {
    char path[512];
};

static inline void rig_dir_make(struct rig_dir *d)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(d->path, sizeof d->path, "%s/tern-test-XXXXXX",
             tmp != NULL && tmp[0] != '\0' ? tmp : "/tmp");
    assert_non_null(mkdtemp(d->path));
}

static inline void rig_shell(const char *command)
{
    int rc = system(command);
    if (rc != 0) {
        fail_msg("exit %d: %s", rc, command);
    }
}

static inline void rig_dir_remove(const struct rig_dir *d)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", d->path);
    rig_shell(command);
}

/* A random checkpoint in d->path/name; 1 when there is no python3 to make it. */
static inline int rig_make_model(const struct rig_dir *d, const char *name, const char *options)
{
    char command[2048];
    if (system("python3 -c 1 2>/dev/null") != 0) {
        return 1;
    }
    snprintf(command, sizeof command, "'%s/tools/make-random-model' '%s/%s' %s", TERN_SOURCE_DIR,
             d->path, name, options);
    rig_shell(command);
    return 0;
}

/* Path of a fixture, or 0 when the shared folder isn't there. */
static inline int rig_fixture(char *path, size_t n_bytes, const char *name)
{
    const char *shared = getenv("TERN_SHARED");
    if (shared != NULL) {
        snprintf(path, n_bytes, "%s/fixtures/%s", shared, name);
    } else {
        snprintf(path, n_bytes, "%s/../shared/fixtures/%s", TERN_SOURCE_DIR, name);
    }
    return access(path, R_OK) == 0;
}

static inline struct cpu_pool *rig_pool(int n_workers)
{
    struct err e = {0};
    struct cpu_pool *pool = NULL;
    if (cpu_pool_open(&pool, n_workers, NULL, &e) < 0) {
        fail_msg("%s", e.text);
    }
    return pool;
}

/* quantization NULL: as the file is; inputs: what quantized weights are multiplied with. */
static inline struct model *rig_load_with(const struct model_options *o, const struct kernels *k,
                                          struct cpu_pool *pool)
{
    struct err e = {0};
    struct model *m = NULL;
    if (model_open(&m, o, &e) < 0 || model_load(m, k, pool, &e) < 0) {
        fail_msg("%s", e.text);
    }
    return m;
}

static inline struct model *rig_load_as(const char *path, enum act_type act,
                                        const char *quantization, enum model_inputs inputs,
                                        const struct kernels *k, struct cpu_pool *pool)
{
    struct model_options o = {
        .path = path, .act = act, .quantization = quantization, .inputs = inputs};
    return rig_load_with(&o, k, pool);
}

static inline struct model *rig_load(const char *path, enum act_type act, const struct kernels *k,
                                     struct cpu_pool *pool)
{
    return rig_load_as(path, act, NULL, MODEL_INPUTS_AUTO, k, pool);
}

static inline const struct kernels *rig_best_kernels(void)
{
    enum cpu_level levels[8];
    int n = cpu_levels_available(levels);
    for (int i = n - 1; i >= 0; i--) {
        const struct kernels *k = kernels_get(levels[i]);
        if (k != NULL) {
            return k;
        }
    }
    return NULL;
}

#endif
