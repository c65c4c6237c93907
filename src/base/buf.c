/* SPDX-License-Identifier: Apache-2.0 */
/* The growable byte buffer. It doubles, so that n appended bytes cost O(n); the room for the
 * closing NUL is always part of the reservation: cap > len whenever data is not NULL. */
#include "base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void buf_init(struct buf *b)
{
    *b = (struct buf){0};
}

void buf_fini(struct buf *b)
{
    if (b) {
        free(b->data);
        *b = (struct buf){0};
    }
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = 0;
    if (b->data) {
        b->data[0] = '\0';
    }
}

int buf_reserve(struct buf *b, size_t extra_bytes)
{
    if (b->failed) {
        return ERR_NOMEM;
    }
    if (extra_bytes < b->cap - b->len && b->data) {
        return 0;
    }
    if (extra_bytes >= SIZE_MAX / 2 - b->len) {
        b->failed = 1;
        return ERR_NOMEM;
    }
    size_t need = b->len + extra_bytes + 1;
    size_t cap = b->cap < 64 ? 64 : b->cap * 2;
    if (cap < need) {
        cap = need;
    }
    char *data = realloc(b->data, cap);
    if (!data) {
        b->failed = 1;
        return ERR_NOMEM;
    }
    b->data = data;
    b->cap = cap;
    b->data[b->len] = '\0';
    return 0;
}

void buf_append(struct buf *b, const void *data, size_t n_bytes)
{
    if (buf_reserve(b, n_bytes) != 0) {
        return;
    }
    if (n_bytes > 0) {
        memcpy(b->data + b->len, data, n_bytes);
        b->len += n_bytes;
    }
    b->data[b->len] = '\0';
}

void buf_puts(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

void buf_putc(struct buf *b, char c)
{
    if (buf_reserve(b, 1) == 0) {
        b->data[b->len++] = c;
        b->data[b->len] = '\0';
    }
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    if (buf_reserve(b, 64) != 0) {
        return;
    }
    for (int attempt = 0; attempt < 2; attempt++) {
        size_t room = b->cap - b->len;
        va_list again;
        va_copy(again, ap);
        int n = vsnprintf(b->data + b->len, room, fmt, again);
        va_end(again);
        if (n >= 0 && (size_t)n < room) {
            b->len += (size_t)n;
            return;
        }
        b->data[b->len] = '\0';
        if (n < 0) {
            b->failed = 1;
            return;
        }
        if (buf_reserve(b, (size_t)n) != 0) {
            return;
        }
    }
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

char *buf_detach(struct buf *b)
{
    char *data = NULL;
    if (!b->failed && buf_reserve(b, 0) == 0) {
        data = b->data;
        b->data = NULL;
    }
    buf_fini(b);
    return data;
}

int buf_file_absent(const char *path)
{
    return faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0 &&
           (errno == ENOENT || errno == ENOTDIR);
}

int buf_read_file(struct buf *b, const char *path, size_t max_bytes, struct err *e)
{
    int rc = 0;
    buf_clear(b);
    /* A named pipe that nobody writes to must not hold the open forever: it reads as empty. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        rc = errno == ENOENT ? ERR_NOT_FOUND : ERR_IO;
        return err_set(e, rc, "%s: %s", path, strerror(errno));
    }
    fcntl(fd, F_SETFL, O_RDONLY); /* one with a writer, as the shell's <(...), is waited for */
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
        if ((uint64_t)st.st_size > max_bytes) {
            rc = err_set(e, ERR_TOO_LARGE, "%s: %lld bytes, at most %zu are accepted", path,
                         (long long)st.st_size, max_bytes);
            goto done;
        }
        buf_reserve(b,
                    (size_t)st.st_size + 1); /* one more, so that the end is seen without growing */
    }
    for (;;) {
        if (buf_reserve(b, b->cap - b->len > 1 ? 1 : 65536) != 0) {
            rc = err_set(e, ERR_NOMEM, "%s: out of memory", path);
            goto done;
        }
        ssize_t n = read(fd, b->data + b->len, b->cap - b->len - 1);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
            goto done;
        }
        if (n == 0) {
            break;
        }
        b->len += (size_t)n;
        b->data[b->len] = '\0';
        if (b->len > max_bytes) {
            rc = err_set(e, ERR_TOO_LARGE, "%s: more than %zu bytes", path, max_bytes);
            goto done;
        }
    }
done:
    close(fd);
    if (rc != 0) {
        buf_clear(b);
    }
    return rc;
}
