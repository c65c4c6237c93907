/* SPDX-License-Identifier: Apache-2.0 */
/* See hub_list.h. What a hub says is outside data: paths, sizes and hashes are checked. */
#include "cmd/hub_list.h"
#include "base/json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILES 100000

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
