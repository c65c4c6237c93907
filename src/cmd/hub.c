/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/hub.h"
#include "base/json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILES 100000

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

int hub_find(const struct hub_model *m, char out[HUB_PATH])
{
    char path[HUB_PATH + 256], commit[128] = "";
    struct stat st;
    if (m->kind == HUB_MODELSCOPE) {
        snprintf(path, sizeof path, "%s/.tern-pulling", m->work);
        snprintf(out, HUB_PATH, "%s", m->root);
        if (access(path, F_OK) == 0) {
            return 0;
        }
        snprintf(path, sizeof path, "%s/config.json", m->root);
        return stat(path, &st) == 0;
    }
    snprintf(path, sizeof path, "%s/refs/%s", m->root, m->revision);
    FILE *f = fopen(path, "r");
    if (f) {
        size_t n = fread(commit, 1, sizeof commit - 1, f);
        commit[n] = '\0';
        commit[strcspn(commit, "\r\n")] = '\0';
        fclose(f);
    } else {
        snprintf(commit, sizeof commit, "%s", m->revision);
    }
    if (!*commit || strchr(commit, '/') || commit[0] == '.') {
        return 0;
    }
    return snprintf(out, HUB_PATH, "%s/snapshots/%s", m->root, commit) < HUB_PATH &&
           stat(out, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- listing ---- */

static void put_escaped(struct buf *out, const char *s, const char *kept)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || strchr(kept, c)) {
            buf_putc(out, *s);
        } else {
            buf_printf(out, "%%%02X", c);
        }
    }
}

void hub_file_url(const struct hub_model *m, const struct hub_file *f, struct buf *out)
{
    if (m->kind == HUB_MODELSCOPE) {
        buf_printf(out, "%s/api/v1/models/%s/repo?Revision=", m->endpoint, m->repo);
        put_escaped(out, m->revision, "-_.~");
        buf_puts(out, "&FilePath=");
        put_escaped(out, f->path, "-_.~");
    } else {
        buf_printf(out, "%s/%s/resolve/%s/", m->endpoint, m->repo, m->commit);
        put_escaped(out, f->path, "-_.~/");
    }
}

static const char *text_of(const struct json *object, const char *key)
{
    const struct json *v = json_get(object, key);
    size_t n;
    const char *s = json_type(v) == JSON_STRING ? json_string(v, &n) : NULL;
    return s && strlen(s) == n && n ? s : NULL;
}

static int is_hex(const char *s, size_t n)
{
    return s && strlen(s) == n && strspn(s, "0123456789abcdefABCDEF") == n;
}

/* No absolute path, no "..", no empty part: a hub must not write elsewhere. */
static int is_inside(const char *path)
{
    size_t n;
    if (!*path || strlen(path) > 1024) {
        return 0;
    }
    for (const char *p = path;; p += n + 1) {
        n = strcspn(p, "/");
        if (n == 0 || n > 255 || (n == 1 && p[0] == '.') ||
            (n == 2 && p[0] == '.' && p[1] == '.')) {
            return 0;
        }
        if (!p[n]) {
            return strncmp(path, ".tern-", 6) != 0;
        }
    }
}

static int add_file(struct hub_model *m, const char *path, const struct json *size,
                    const char *sha256, const char *sha1, struct err *e)
{
    if (!path || !is_inside(path)) {
        return err_set(e, ERR_FORMAT, "%s: the hub names a file that cannot be: '%s'", m->repo,
                       path ? path : "");
    }
    if (json_type(size) != JSON_INT || json_int(size) < 0) {
        return err_set(e, ERR_FORMAT, "%s: the hub gives no size of %s", m->repo, path);
    }
    if (!is_hex(sha256, 64) && !is_hex(sha1, 40)) {
        return err_set(e, ERR_FORMAT, "%s: the hub gives no hash of %s", m->repo, path);
    }
    struct hub_file *f = &m->files[m->n_files++];
    f->path = strdup(path);
    f->sha256 = is_hex(sha256, 64) ? strdup(sha256) : NULL;
    f->git_sha1 = is_hex(sha1, 40) ? strdup(sha1) : NULL;
    f->n_bytes = (uint64_t)json_int(size);
    return f->path && (f->sha256 || f->git_sha1) ? 0 : err_set(e, ERR_NOMEM, "out of memory");
}

static int take_files(struct hub_model *m, const struct json *reply, struct err *e)
{
    int ms = m->kind == HUB_MODELSCOPE, rc = 0;
    const struct json *list =
        ms ? json_get(json_get(reply, "Data"), "Files") : json_get(reply, "siblings");
    size_t n = json_type(list) == JSON_ARRAY ? json_length(list) : 0;
    if (!n || n > MAX_FILES) {
        return err_set(e, ERR_FORMAT, "%s: the hub names no files of it", m->repo);
    }
    if (!ms) {
        const char *commit = text_of(reply, "sha");
        if (!is_hex(commit, 40)) {
            return err_set(e, ERR_FORMAT, "%s: the hub names no commit", m->repo);
        }
        snprintf(m->commit, sizeof m->commit, "%s", commit);
    }
    m->files = calloc(n, sizeof *m->files);
    if (!m->files) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    for (size_t i = 0; rc >= 0 && i < n; i++) {
        const struct json *f = json_at(list, i), *lfs = json_get(f, "lfs");
        const char *type = text_of(f, "Type");
        if (ms && type && strcmp(type, "tree") == 0) {
            continue;
        }
        rc =
            ms ? add_file(m, text_of(f, "Path"), json_get(f, "Size"), text_of(f, "Sha256"), NULL, e)
               : add_file(m, text_of(f, "rfilename"), json_get(f, "size"), text_of(lfs, "sha256"),
                          json_type(lfs) == JSON_OBJECT ? NULL : text_of(f, "blobId"), e);
    }
    return rc;
}

int hub_list(struct hub_model *m, struct client *c, struct err *e)
{
    struct json *reply = NULL;
    struct buf url;
    buf_init(&url);
    if (m->kind == HUB_MODELSCOPE) {
        buf_printf(&url, "%s/api/v1/models/%s/repo/files?Recursive=true&Revision=", m->endpoint,
                   m->repo);
        put_escaped(&url, m->revision, "-_.~");
    } else {
        buf_printf(&url, "%s/api/models/%s/revision/", m->endpoint, m->repo);
        put_escaped(&url, m->revision, "-_.~");
        buf_puts(&url, "?blobs=true");
    }
    int rc = url.failed ? err_set(e, ERR_NOMEM, "out of memory")
                        : client_call_json(c, url.data, NULL, &reply, e);
    rc = rc < 0 ? rc : take_files(m, reply, e);
    json_free(reply);
    buf_fini(&url);
    return rc;
}
