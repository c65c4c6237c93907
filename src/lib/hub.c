/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/hub.h"
#include "base/err.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static int is_true(const char *name)
{
    const char *v = env(name);
    return v && (strcmp(v, "1") == 0 || strcasecmp(v, "true") == 0 || strcasecmp(v, "yes") == 0 ||
                 strcasecmp(v, "on") == 0);
}

enum hub_kind hub_default(void)
{
    return is_true("VLLM_USE_MODELSCOPE") ? HUB_MODELSCOPE : HUB_HUGGING_FACE;
}

int hub_offline(void)
{
    return is_true("HF_HUB_OFFLINE");
}

const char *hub_token(enum hub_kind kind)
{
    if (kind == HUB_MODELSCOPE) {
        return env("MODELSCOPE_API_TOKEN");
    }
    const char *token = env("HF_TOKEN");
    return token ? token : env("HUGGING_FACE_HUB_TOKEN");
}

int hub_is_repo(const char *text)
{
    int slashes = 0;
    for (const char *p = text; *p; p++) {
        int ok = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
                 strchr("-_./", *p) != NULL;
        slashes += *p == '/';
        if (!ok || (*p == '.' && (p == text || p[-1] == '/' || p[-1] == '.'))) {
            return 0;
        }
    }
    return slashes == 1 && text[0] != '/' && text[strlen(text) - 1] != '/' && strlen(text) < 200;
}

/* ---- places ---- */

static int cache_root(enum hub_kind kind, char *out, size_t size)
{
    const char *home = env("HOME"), *v;
    int n;
    if (kind == HUB_MODELSCOPE) {
        v = env("MODELSCOPE_CACHE");
        n = v      ? snprintf(out, size, "%s/models", v)
            : home ? snprintf(out, size, "%s/.cache/modelscope/hub/models", home)
                   : -1;
    } else {
        n = (v = env("HF_HUB_CACHE")) || (v = env("HUGGINGFACE_HUB_CACHE"))
                ? snprintf(out, size, "%s", v)
            : (v = env("HF_HOME"))        ? snprintf(out, size, "%s/hub", v)
            : (v = env("XDG_CACHE_HOME")) ? snprintf(out, size, "%s/huggingface/hub", v)
            : home                        ? snprintf(out, size, "%s/.cache/huggingface/hub", home)
                                          : -1;
    }
    return n < 0 || (size_t)n >= size ? -1 : 0;
}

int hub_model_init(struct hub_model *m, enum hub_kind kind, const char *repo, const char *revision,
                   struct err *e)
{
    char root[HUB_PATH / 2];
    memset(m, 0, sizeof *m);
    if (!hub_is_repo(repo)) {
        return err_set(e, ERR_INVALID, "expected a model as OWNER/NAME, found '%s'", repo);
    }
    if (cache_root(kind, root, sizeof root) < 0) {
        return err_set(e, ERR_INVALID, "HOME is not set: there is no cache directory");
    }
    m->kind = kind;
    snprintf(m->repo, sizeof m->repo, "%s", repo);
    snprintf(m->revision, sizeof m->revision, "%s",
             revision                 ? revision
             : kind == HUB_MODELSCOPE ? "master"
                                      : "main");
    for (const char *p = m->revision; *p; p++) {
        if (!strchr("-_./", *p) && !(*p >= '0' && *p <= '9') &&
            !((*p | 32) >= 'a' && (*p | 32) <= 'z')) {
            return err_set(e, ERR_INVALID, "--revision: '%s' is no name of a revision", revision);
        }
    }
    if (strstr(m->revision, "..") || m->revision[0] == '/' || m->revision[0] == '\0') {
        return err_set(e, ERR_INVALID, "--revision: '%s' is no name of a revision", m->revision);
    }
    char name[256];
    size_t k = 0;
    int after = 0;
    for (const char *p = repo; *p && k + 4 < sizeof name; p++) {
        const char *put = *p == '/' && kind == HUB_HUGGING_FACE          ? "--"
                          : *p == '.' && kind == HUB_MODELSCOPE && after ? "___"
                                                                         : NULL;
        after |= *p == '/';
        k += (size_t)(put ? snprintf(name + k, sizeof name - k, "%s", put)
                          : snprintf(name + k, sizeof name - k, "%c", *p));
    }
    if (kind == HUB_MODELSCOPE) {
        const char *v = env("MODELSCOPE_ENDPOINT"), *domain = env("MODELSCOPE_DOMAIN");
        snprintf(m->root, sizeof m->root, "%s/%s", root, name);
        snprintf(m->work, sizeof m->work, "%s/._____temp/%s", root, repo);
        snprintf(m->endpoint, sizeof m->endpoint, "%s%s",
                 v || (domain && strstr(domain, "://")) ? "" : "https://",
                 v        ? v
                 : domain ? domain
                          : "www.modelscope.cn");
    } else {
        const char *v = env("HF_ENDPOINT");
        snprintf(m->root, sizeof m->root, "%s/models--%s", root, name);
        snprintf(m->work, sizeof m->work, "%s/models--%s/blobs", root, name);
        snprintf(m->endpoint, sizeof m->endpoint, "%s", v ? v : "https://huggingface.co");
    }
    for (size_t n = strlen(m->endpoint); n && m->endpoint[n - 1] == '/';) {
        m->endpoint[--n] = '\0';
    }
    return 0;
}

void hub_model_fini(struct hub_model *m)
{
    for (int i = 0; i < m->n_files; i++) {
        free(m->files[i].path);
        free(m->files[i].sha256);
        free(m->files[i].git_sha1);
    }
    free(m->files);
    m->files = NULL;
    m->n_files = 0;
}

/* The first line of a small file. */
static int read_line(const char *path, char out[128])
{
    FILE *f = fopen(path, "r");
    out[0] = '\0';
    if (!f) {
        return 0;
    }
    out[fread(out, 1, 127, f)] = '\0';
    out[strcspn(out, "\r\n")] = '\0';
    fclose(f);
    return 1;
}

int hub_noted_revision(const struct hub_model *m, char out[128])
{
    char path[HUB_PATH + 256];
    snprintf(path, sizeof path, "%s/.tern-revision", m->work);
    return read_line(path, out);
}

int hub_find(const struct hub_model *m, char out[HUB_PATH])
{
    char path[HUB_PATH + 256], commit[128] = "";
    struct stat st;
    if (m->kind == HUB_MODELSCOPE) {
        snprintf(path, sizeof path, "%s/.tern-pulling", m->work);
        snprintf(out, HUB_PATH, "%s", m->root);
        if (access(path, F_OK) == 0 ||
            strcmp(hub_noted_revision(m, commit) ? commit : "master", m->revision) != 0) {
            return 0;
        }
        snprintf(path, sizeof path, "%s/config.json", m->root);
        return stat(path, &st) == 0;
    }
    snprintf(path, sizeof path, "%s/refs/%s", m->root, m->revision);
    if (!read_line(path, commit)) {
        snprintf(commit, sizeof commit, "%s", m->revision);
        snprintf(path, sizeof path, "%s/.tern-pulling-%s", m->work, commit);
        if (access(path, F_OK) == 0) {
            return 0;
        }
    }
    if (!*commit || strchr(commit, '/') || commit[0] == '.') {
        return 0;
    }
    return snprintf(out, HUB_PATH, "%s/snapshots/%s", m->root, commit) < HUB_PATH &&
           stat(out, &st) == 0 && S_ISDIR(st.st_mode);
}

int hub_find_model(const char *name, const char *revision, char out[HUB_PATH], struct err *e)
{
    struct hub_model m;
    enum hub_kind first = hub_default();
    if (access(name, F_OK) == 0 || !hub_is_repo(name)) {
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        enum hub_kind kind = i == 0                    ? first
                             : first == HUB_MODELSCOPE ? HUB_HUGGING_FACE
                                                       : HUB_MODELSCOPE;
        if (hub_model_init(&m, kind, name, revision, e) < 0) {
            return e->code;
        }
        if (hub_find(&m, out)) {
            return 1;
        }
    }
    if (revision) {
        return err_set(
            e, ERR_NOT_FOUND,
            "%s: its revision '%s' was not pulled; `tern pull %s --revision %s` fetches it", name,
            revision, name, revision);
    }
    return err_set(e, ERR_NOT_FOUND,
                   "%s: no such directory, and no model of that name was pulled; "
                   "`tern pull %s` fetches it",
                   name, name);
}
