/* SPDX-License-Identifier: Apache-2.0 */
/* tern pull OWNER/NAME: a model from Hugging Face, ModelScope or a mirror into the cache directory
 * of that hub's own client. Prints the directory. May be run again after any end. */
#include "base/clock.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/fetch.h"
#include "cmd/hub_list.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct args_pull {
    const char *hub, *revision, *ca_file;
    int64_t connections;
    int quiet;
};

#define FIELD(f) offsetof(struct args_pull, f)
#define G_PULL   "Pull"
static const struct opt rows[] = {
    {.name = "hub",
     .type = OPT_STRING,
     .offset = FIELD(hub),
     .group = G_PULL,
     .def = "auto",
     .choices = "auto|huggingface|modelscope",
     .help = "auto: modelscope with VLLM_USE_MODELSCOPE=1, else huggingface."},
    {.name = "revision",
     .type = OPT_STRING,
     .offset = FIELD(revision),
     .group = G_PULL,
     .help = "Branch, tag or commit."},
    {.name = "connections",
     .type = OPT_INT,
     .offset = FIELD(connections),
     .group = G_PULL,
     .def = "8",
     .min = 1,
     .max = 64,
     .help = "Parts of a file fetched side by side."},
    {.name = "ca-file",
     .type = OPT_STRING,
     .offset = FIELD(ca_file),
     .group = G_PULL,
     .meta = "PEM",
     .help = "Certificates to trust, instead of the system's."},
    {.name = "quiet",
     .type = OPT_BOOL,
     .offset = FIELD(quiet),
     .group = G_PULL,
     .def = "false",
     .help = "No progress on standard error."},
};

struct pull {
    const struct args_pull *a;
    struct hub_model m;
    uint64_t n_before, n_total, told_ns, start_ns, n_start;
    int terminal;
    int other_revision; /* ModelScope: the files that are there are not this revision's */
};

/* Makes the folders above a file. */
static int make_folders(const char *path, struct err *e)
{
    char copy[HUB_PATH + 1200];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *p = copy + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        if (mkdir(copy, 0755) != 0 && errno != EEXIST) {
            return err_set(e, ERR_IO, "%s: %s", copy, strerror(errno));
        }
        *p = '/';
    }
    return 0;
}

static void show(void *user, uint64_t n)
{
    struct pull *p = user;
    uint64_t now = clock_now_ns();
    if (p->a->quiet || now - p->told_ns < (p->terminal ? 200000000u : 5000000000u)) {
        return;
    }
    p->told_ns = now;
    double seconds = (double)(now - p->start_ns) * 1e-9;
    uint64_t all = p->n_before + n;
    fprintf(stderr, "%s%5.1f %%  %.1f of %.1f MB  %.1f MB/s%s", p->terminal ? "\r" : "",
            100.0 * (double)all / (double)(p->n_total ? p->n_total : 1), (double)all * 1e-6,
            (double)p->n_total * 1e-6, (double)(all - p->n_start) * 1e-6 / seconds,
            p->terminal ? "  " : "\n");
}

static void blob_path(const struct hub_model *m, const struct hub_file *f, char *out, size_t size)
{
    if (m->kind == HUB_MODELSCOPE) {
        snprintf(out, size, "%s/%s", m->work, f->path);
    } else {
        snprintf(out, size, "%s/%s", m->work, f->sha256 ? f->sha256 : f->git_sha1);
    }
}

static void final_path(const struct hub_model *m, const struct hub_file *f, char *out, size_t size)
{
    if (m->kind == HUB_MODELSCOPE) {
        snprintf(out, size, "%s/%s", m->root, f->path);
    } else {
        blob_path(m, f, out, size);
    }
}

static int is_whole(const struct pull *p, const struct hub_file *f)
{
    char path[HUB_PATH + 1200];
    struct stat st;
    final_path(&p->m, f, path, sizeof path);
    return !p->other_revision && stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
           (uint64_t)st.st_size == f->n_bytes;
}

/* Hugging Face: snapshots/COMMIT/a/b -> ../../../blobs/ETAG. */
static int link_blob(const struct hub_model *m, const struct hub_file *f, struct err *e)
{
    char path[HUB_PATH + 1200], target[256] = "../../";
    snprintf(path, sizeof path, "%s/snapshots/%s/%s", m->root, m->commit, f->path);
    size_t k = strlen(target);
    for (const char *p = f->path; (p = strchr(p, '/')) != NULL && k + 80 < sizeof target; p++) {
        k += (size_t)snprintf(target + k, sizeof target - k, "../");
    }
    snprintf(target + k, sizeof target - k, "blobs/%s", f->sha256 ? f->sha256 : f->git_sha1);
    int rc = make_folders(path, e);
    if (rc >= 0 && symlink(target, path) != 0 &&
        (errno != EEXIST || unlink(path) != 0 || symlink(target, path) != 0)) {
        rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    }
    return rc;
}

static int pull_file(struct pull *p, struct client *c, const struct hub_file *f, struct err *e)
{
    char path[HUB_PATH + 1200], final[HUB_PATH + 1200];
    struct buf url;
    int rc = 0;
    blob_path(&p->m, f, path, sizeof path);
    final_path(&p->m, f, final, sizeof final);
    if (!is_whole(p, f)) {
        buf_init(&url);
        hub_file_url(&p->m, f, &url);
        struct fetch_file ff = {.url = url.data,
                                .path = path,
                                .sha256 = f->sha256,
                                .git_sha1 = f->git_sha1,
                                .n_bytes = f->n_bytes,
                                .connections = (int)p->a->connections,
                                .progress = show,
                                .user = p};
        rc = url.failed ? err_set(e, ERR_NOMEM, "out of memory") : make_folders(path, e);
        rc = rc < 0 ? rc : make_folders(final, e);
        rc = rc < 0 ? rc : fetch_file(c, &ff, e);
        if (rc >= 0 && strcmp(path, final) != 0 && rename(path, final) != 0) {
            rc = err_set(e, ERR_IO, "%s: %s", final, strerror(errno));
        }
        buf_fini(&url);
    }
    p->n_before += f->n_bytes;
    return rc >= 0 && p->m.kind == HUB_HUGGING_FACE ? link_blob(&p->m, f, e) : rc;
}

static int check_space(struct pull *p, struct err *e)
{
    struct statvfs fs;
    uint64_t want = 0;
    for (int i = 0; i < p->m.n_files; i++) {
        char whole[HUB_PATH + 1300], part[sizeof whole + 16];
        struct stat st;
        const struct hub_file *f = &p->m.files[i];
        p->n_total += f->n_bytes;
        if (is_whole(p, f)) {
            continue;
        }
        blob_path(&p->m, f, whole, sizeof whole);
        snprintf(part, sizeof part, "%s.tern-part", whole);
        uint64_t have = stat(part, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
        want += have < f->n_bytes ? f->n_bytes - have : 0;
    }
    if (statvfs(p->m.work, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < want) {
        return err_set(e, ERR_IO, "%s: %.1f MB are needed, %.1f MB are free", p->m.work,
                       (double)want * 1e-6, (double)fs.f_bavail * (double)fs.f_frsize * 1e-6);
    }
    return 0;
}

static int write_small(const char *path, const char *text, struct err *e)
{
    char whole[HUB_PATH + 300];
    snprintf(whole, sizeof whole, "%s.tern-new", path);
    int rc = make_folders(path, e);
    FILE *f = rc < 0 ? NULL : fopen(whole, "w");
    if (rc >= 0 && (!f || fputs(text, f) < 0 || fflush(f) != 0 || rename(whole, path) != 0)) {
        rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (f) {
        fclose(f);
    }
    return rc;
}

/* ModelScope's directory holds one revision, and files of two may have the same size. The note says
 * whose they are; while one replaces the other it says nobody's, so a run that goes on after an
 * interrupt fetches all of them again. */
static int note_revision(struct pull *p, int done, struct err *e)
{
    char path[HUB_PATH + 300], noted[128];
    if (p->m.kind != HUB_MODELSCOPE) {
        return 0;
    }
    snprintf(path, sizeof path, "%s/.tern-revision", p->m.work);
    if (!done) {
        p->other_revision =
            hub_noted_revision(&p->m, noted)
                ? strcmp(noted, p->m.revision) != 0
                : strcmp(p->m.revision, "master") != 0 && access(p->m.root, F_OK) == 0;
    }
    return write_small(path, p->other_revision && !done ? "" : p->m.revision, e);
}

static int pull_locked(struct pull *p, struct client *c, struct err *e)
{
    char mark[HUB_PATH + 300], ref[HUB_PATH + 300];
    int ms = p->m.kind == HUB_MODELSCOPE;
    int rc = hub_list(&p->m, c, e);
    snprintf(mark, sizeof mark, "%s/.tern-pulling%s%s", p->m.work, ms ? "" : "-", p->m.commit);
    snprintf(ref, sizeof ref, "%s/refs/%s", p->m.root, p->m.revision);
    rc = rc < 0 ? rc : write_small(mark, "", e);
    rc = rc < 0 ? rc : note_revision(p, 0, e);
    rc = rc < 0 ? rc : check_space(p, e);
    p->start_ns = clock_now_ns();
    for (int i = 0; rc >= 0 && i < p->m.n_files; i++) {
        p->n_start += is_whole(p, &p->m.files[i]) ? p->m.files[i].n_bytes : 0;
    }
    for (int i = 0; rc >= 0 && i < p->m.n_files; i++) {
        rc = pull_file(p, c, &p->m.files[i], e);
    }
    if (p->terminal && !p->a->quiet) {
        fputc('\n', stderr);
    }
    /* the last step: from here on the model is found */
    rc = rc < 0 ? rc : note_revision(p, 1, e);
    if (rc >= 0 && !ms && strcmp(p->m.revision, p->m.commit) != 0) {
        rc = write_small(ref, p->m.commit, e);
    }
    if (rc >= 0) {
        unlink(mark);
    }
    return rc;
}

static int run(struct pull *p, const char *repo, struct err *e)
{
    struct client_options co = {
        .ca_file = p->a->ca_file, .max_redirects = 5, .stall_timeout_s = 30};
    struct client *c = NULL;
    char lock[HUB_PATH + 300], found[HUB_PATH];
    int fd = -1;
    enum hub_kind kind = strcmp(p->a->hub, "auto") == 0 ? hub_default()
                         : p->a->hub[0] == 'm'          ? HUB_MODELSCOPE
                                                        : HUB_HUGGING_FACE;
    int rc = hub_model_init(&p->m, kind, repo, p->a->revision, e);
    co.bearer = hub_token(kind);
    if (rc >= 0 && !hub_offline()) {
        snprintf(lock, sizeof lock, "%s/.tern-lock", p->m.work);
        rc = make_folders(lock, e);
        fd = rc < 0 ? -1 : open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (rc >= 0 && fd < 0) {
            rc = err_set(e, ERR_IO, "%s: %s", lock, strerror(errno));
        } else if (rc >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
            rc = err_set(e, ERR_BUSY, "%s: another tern pull is fetching it", repo);
        }
        rc = rc < 0 ? rc : client_open(&c, &co, e);
        rc = rc < 0 ? rc : pull_locked(p, c, e);
    }
    if (rc >= 0 && !hub_find(&p->m, found)) {
        rc = err_set(e, ERR_NOT_FOUND,
                     hub_offline() ? "%s is not in %s, and HF_HUB_OFFLINE is set"
                                   : "%s: no model was found in %s afterwards",
                     repo, p->m.root);
    }
    if (rc >= 0) {
        puts(found);
    }
    client_close(c);
    if (fd >= 0) {
        close(fd);
    }
    return rc;
}

int cmd_pull(int argc, char **argv)
{
    const char *command = "tern pull";
    struct args_pull a = {0};
    struct opts o = {.usage = "tern pull OWNER/NAME [options]",
                     .tables = {{rows, sizeof rows / sizeof *rows, &a}},
                     .n_tables = 1};
    struct pull p = {.a = &a, .terminal = isatty(STDERR_FILENO)};
    struct err e = {0, ""};
    int rc = args_parse(&o, command, argc, argv);
    if (rc < 0 && o.args.n != 1) {
        fprintf(stderr, "usage: %s\n%s: error: expected one model as OWNER/NAME\n", o.usage,
                command);
        rc = EXIT_USAGE;
    }
    if (rc < 0) {
        rc = run(&p, o.args.v[0], &e);
        rc = rc < 0 ? args_fail(command, &e) : 0;
    }
    hub_model_fini(&p.m);
    opts_fini(&o);
    return rc;
}
