/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/fetch.h"
#include "base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MAX_ATTEMPTS    8 /* of one part, without a byte in between */
#define MAX_CONNECTIONS 64
#define SECOND_NS       ((uint64_t)1000000000)

struct fetch;

struct lane {
    struct fetch *fetch;
    struct client_request *request; /* while in_flight */
    uint64_t part, from, got, n;    /* the part's place in the file, bytes there, bytes in all */
    uint64_t not_before_ns;
    int busy, in_flight, attempts, ranged, retry_after;
};

struct fetch {
    const struct fetch_file *f;
    struct client *client;
    int data, parts; /* descriptors */
    uint64_t n_parts, part_bytes, n_done, next;
    unsigned char *done;
    int rc;
    struct err *e;
    struct lane lanes[MAX_CONNECTIONS];
};

static void fail(struct fetch *x, int code, const char *what, const char *why)
{
    if (x->rc >= 0) {
        x->rc = err_set(x->e, code, "%s: %s", what, why);
    }
}

static void on_header(void *user, const char *name, const char *value)
{
    struct lane *l = user;
    unsigned long long from;
    if (strcasecmp(name, "Content-Range") == 0) {
        l->ranged = sscanf(value, "bytes %llu-", &from) == 1 && from == l->from + l->got;
    } else if (strcasecmp(name, "Retry-After") == 0) {
        l->retry_after = atoi(value);
    }
}

static int on_data(void *user, const char *bytes, size_t n)
{
    struct lane *l = user;
    struct fetch *x = l->fetch;
    if (!l->ranged) { /* a whole file where a part was wanted, or a fault's text: on_done judges */
        return 0;
    }
    if (n > l->n - l->got) {
        fail(x, ERR_FORMAT, x->f->url, "the server sends more than was asked for");
        return 1;
    }
    for (size_t k = 0; k < n;) {
        ssize_t w = pwrite(x->data, bytes + k, n - k, (off_t)(l->from + l->got));
        if (w < 0) {
            fail(x, ERR_IO, x->f->path, strerror(errno));
            return 1;
        }
        k += (size_t)w;
        l->got += (uint64_t)w;
    }
    l->attempts = 0;
    return 0;
}

static void finish_part(struct fetch *x, struct lane *l)
{
    unsigned char one = 1;
    x->done[l->part] = 1;
    x->n_done++;
    l->busy = 0;
    if (pwrite(x->parts, &one, 1, (off_t)l->part) != 1) {
        fail(x, ERR_IO, x->f->path, strerror(errno));
    }
}

static void on_done(void *user, int status, const struct err *e)
{
    struct lane *l = user;
    struct fetch *x = l->fetch;
    char why[300];
    l->in_flight = 0;
    if (x->rc < 0) {
        return;
    }
    if (l->got == l->n && (status == 206 || status == 200)) {
        finish_part(x, l);
        return;
    }
    if (status >= 400 && status != 408 && status != 429 && status < 500) {
        snprintf(why, sizeof why, "status %d%s", status,
                 status == 401 || status == 403 ? " (a private model needs a token)" : "");
        fail(x, ERR_IO, x->f->url, why);
        return;
    }
    if (status == 200 && !l->ranged) {
        fail(x, ERR_UNSUPPORTED, x->f->url, "the server does not send ranges");
        return;
    }
    if (++l->attempts >= MAX_ATTEMPTS) {
        snprintf(why, sizeof why, "given up after %d attempts: %.200s (status %d)", l->attempts,
                 e->code ? e->text : "the answer was short", status);
        fail(x, ERR_IO, x->f->url, why);
        return;
    }
    uint64_t wait = l->retry_after > 0
                        ? (uint64_t)(l->retry_after > 60 ? 60 : l->retry_after) * SECOND_NS
                        : SECOND_NS / 10 << l->attempts;
    l->not_before_ns = clock_now_ns() + wait;
}

static void start(struct fetch *x, struct lane *l)
{
    static const struct client_callbacks callbacks = {on_header, on_data, on_done};
    char range[96];
    const char *headers[] = {range};
    snprintf(range, sizeof range, "Range: bytes=%llu-%llu", (unsigned long long)(l->from + l->got),
             (unsigned long long)(l->from + l->n - 1));
    l->ranged = l->retry_after = 0;
    l->in_flight = 1;
    int rc = client_start(x->client, "GET", x->f->url, headers, 1, NULL, 0, &callbacks, l,
                          &l->request, x->e);
    if (rc < 0) {
        l->in_flight = 0;
        x->rc = rc;
    }
}

static void tell(const struct fetch *x)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < x->n_parts; i++) {
        uint64_t from = i * x->part_bytes;
        n += !x->done[i]                            ? 0
             : from + x->part_bytes > x->f->n_bytes ? x->f->n_bytes - from
                                                    : x->part_bytes;
    }
    for (int i = 0; i < x->f->connections; i++) {
        n += x->lanes[i].busy ? x->lanes[i].got : 0;
    }
    if (x->f->progress) {
        x->f->progress(x->f->user, n);
    }
}

/* Gives free lanes their next part; starts what waits for its time. */
static void drive(struct fetch *x)
{
    uint64_t now = clock_now_ns();
    for (int i = 0; i < x->f->connections && x->rc >= 0; i++) {
        struct lane *l = &x->lanes[i];
        while (!l->busy && x->next < x->n_parts) {
            uint64_t k = x->next++, from = k * x->part_bytes;
            if (!x->done[k]) {
                uint64_t left = x->f->n_bytes - from;
                *l = (struct lane){.fetch = x,
                                   .part = k,
                                   .from = from,
                                   .n = left < x->part_bytes ? left : x->part_bytes,
                                   .busy = 1};
            }
        }
        if (l->busy && !l->in_flight && now >= l->not_before_ns) {
            start(x, l);
        }
    }
}

static void transfer(struct fetch *x)
{
    while (x->rc >= 0 && x->n_done < x->n_parts) {
        drive(x);
        if (client_run(x->client, 100) == 0 && x->n_done < x->n_parts) {
            usleep(20000); /* every lane waits for its next attempt */
        }
        tell(x);
    }
}

/* ---- the whole ---- */

static int check_hash(const struct fetch *x, struct err *e)
{
    const struct fetch_file *f = x->f;
    const EVP_MD *kind = f->sha256 ? EVP_sha256() : EVP_sha1();
    const char *want = f->sha256 ? f->sha256 : f->git_sha1;
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n_digest = 0;
    char hex[2 * EVP_MAX_MD_SIZE + 1] = "", head[64];
    size_t size = (size_t)1 << 20;
    char *chunk = malloc(size);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    int ok = chunk && ctx && EVP_DigestInit_ex(ctx, kind, NULL);
    if (ok && !f->sha256) { /* git hashes a blob with its size before it */
        int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)f->n_bytes);
        ok = EVP_DigestUpdate(ctx, head, (size_t)n + 1);
    }
    for (uint64_t at = 0; ok && at < f->n_bytes;) {
        ssize_t n = pread(x->data, chunk, size, (off_t)at);
        ok = n > 0 && EVP_DigestUpdate(ctx, chunk, (size_t)n);
        at += ok ? (uint64_t)n : 0;
    }
    ok = ok && EVP_DigestFinal_ex(ctx, digest, &n_digest);
    EVP_MD_CTX_free(ctx);
    free(chunk);
    if (!ok) {
        return err_set(e, ERR_IO, "%s: cannot be read back", f->path);
    }
    for (unsigned i = 0; i < n_digest; i++) {
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    }
    return strcasecmp(hex, want) == 0
               ? 0
               : err_set(e, ERR_FORMAT, "%s: wrong hash: expected %s, found %s", f->url, want, hex);
}

static int open_parts(struct fetch *x, const char *data, const char *parts, struct err *e)
{
    x->data = open(data, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    x->parts = open(parts, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    x->part_bytes = FETCH_PART_BYTES;
    x->n_parts = (x->f->n_bytes + x->part_bytes - 1) / x->part_bytes;
    x->done = calloc(x->n_parts + 1, 1);
    if (x->data < 0 || x->parts < 0) {
        return err_set(e, ERR_IO, "%s: %s", data, strerror(errno));
    }
    if (!x->done) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    off_t have = lseek(x->data, 0, SEEK_END);
    ssize_t n = pread(x->parts, x->done, x->n_parts, 0);
    for (uint64_t i = 0; i < x->n_parts; i++) {
        uint64_t end = (i + 1) * x->part_bytes;
        end = end > x->f->n_bytes ? x->f->n_bytes : end;
        x->done[i] = n > 0 && i < (uint64_t)n && x->done[i] == 1 && (uint64_t)have >= end;
        x->n_done += x->done[i];
    }
    return 0;
}

int fetch_file(struct client *c, const struct fetch_file *f, struct err *e)
{
    struct fetch *x = calloc(1, sizeof *x);
    char data[4400], parts[4400];
    if (!x) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    snprintf(data, sizeof data, "%s.tern-part", f->path);
    snprintf(parts, sizeof parts, "%s.tern-parts", f->path);
    x->f = f;
    x->client = c;
    x->e = e;
    x->data = x->parts = -1;
    x->rc = open_parts(x, data, parts, e);
    if (x->rc >= 0) {
        transfer(x);
    }
    for (int i = 0; i < f->connections; i++) { /* after a fault some are still under way */
        if (x->lanes[i].in_flight) {
            client_cancel(x->lanes[i].request);
        }
    }
    if (x->rc >= 0 && (ftruncate(x->data, (off_t)f->n_bytes) != 0 || fdatasync(x->data) != 0)) {
        fail(x, ERR_IO, data, strerror(errno));
    }
    int rc = x->rc < 0 ? x->rc : check_hash(x, e);
    if (rc >= 0 && rename(data, f->path) != 0) {
        rc = err_set(e, ERR_IO, "%s: %s", f->path, strerror(errno));
    }
    if (rc >= 0 || rc == ERR_FORMAT) { /* what is wrong is not gone on with */
        unlink(parts);
        unlink(data);
    }
    if (x->data >= 0) {
        close(x->data);
    }
    if (x->parts >= 0) {
        close(x->parts);
    }
    free(x->done);
    free(x);
    return rc;
}
