/* SPDX-License-Identifier: Apache-2.0 */
/* Model hubs: where Hugging Face and ModelScope keep a model, on the net and in the cache directory
 * that their own clients use. Layouts:
 *
 *   Hugging Face  $HF_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub:
 *                 models--OWNER--NAME/{refs/REVISION, blobs/ETAG, snapshots/COMMIT/FILE -> blob}
 *   ModelScope    $MODELSCOPE_CACHE/models or ~/.cache/modelscope/hub/models:
 *                 OWNER/NAME/FILE, with ___ for each dot of NAME; one revision at a time
 *
 * Ours beside them, in `work`: .tern-lock; .tern-pulling (ModelScope) and .tern-pulling-COMMIT (Hugging
 * Face) while files are missing; .tern-revision (ModelScope): which revision OWNER/NAME holds. */
#ifndef TERN_LIB_HUB_H
#define TERN_LIB_HUB_H

#include "base/err.h"
#include <stdint.h>

enum hub_kind { HUB_HUGGING_FACE, HUB_MODELSCOPE };

#define HUB_PATH 4096

struct hub_file {
    char *path;     /* inside the model; checked: no way out of it */
    char *sha256;   /* hex, or NULL */
    char *git_sha1; /* hex of the git blob, or NULL */
    uint64_t n_bytes;
};

struct hub_model {
    enum hub_kind kind;
    char repo[256], revision[128], endpoint[512];
    char commit[128];    /* Hugging Face: what the revision is */
    char root[HUB_PATH]; /* models--OWNER--NAME, or OWNER/NAME */
    char work[HUB_PATH]; /* where parts and the lock are */
    struct hub_file *files;
    int n_files;
};

/* 1 when the text can be OWNER/NAME. */
int hub_is_repo(const char *text);
/* Fills everything but commit and files, from the environment. revision NULL: the hub's default. */
int hub_model_init(struct hub_model *m, enum hub_kind kind, const char *repo, const char *revision,
                   struct err *e);
void hub_model_fini(struct hub_model *m);
const char *hub_token(enum hub_kind kind); /* NULL: none */
int hub_offline(void);
enum hub_kind hub_default(void); /* VLLM_USE_MODELSCOPE */
/* ModelScope: the revision that `root` holds, as `tern pull` noted it; 0 without a note. */
int hub_noted_revision(const struct hub_model *m, char out[128]);
/* The directory of a model that was pulled whole, of that revision: 1, or 0. */
int hub_find(const struct hub_model *m, char out[HUB_PATH]);
/* A model's name in two ways: 1 and the directory, when it is no path but OWNER/NAME and was pulled
 * from either hub; 0 when it is a path, or can't be such a name; ERR_NOT_FOUND when nothing is
 * there, or not of that revision (NULL: the hub's default). */
int hub_find_model(const char *name, const char *revision, char out[HUB_PATH], struct err *e);

#endif
