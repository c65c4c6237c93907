/* SPDX-License-Identifier: Apache-2.0 */
/* Binding. For a unix socket the permissions are set between bind and listen: until then a connect
 * is refused, so there is no moment in which too many may come in. */
#include "net/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 2048

int listen_tcp(const char *host, int port, int *bound_port, struct err *e)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE},
                    *list = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0) {
        return err_set(e, ERR_INVALID, "host %s: %s", host, gai_strerror(rc));
    }
    int fd = -1, saved = 0;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
            saved = errno;
            continue;
        }
        int one = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
            break;
        }
        saved = errno;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    if (fd < 0) {
        return err_set(e, saved == EADDRINUSE ? ERR_BUSY : ERR_IO, "can't listen on %s port %d: %s",
                       host, port, strerror(saved));
    }
    struct sockaddr_storage addr;
    socklen_t len = sizeof addr;
    getsockname(fd, (struct sockaddr *)&addr, &len);
    *bound_port = ntohs(addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&addr)->sin6_port
                                                   : ((struct sockaddr_in *)&addr)->sin_port);
    return fd;
}

/* Makes room for a socket at the path: 0, or an error when something is there that must stay. */
static int clear_stale(const struct sockaddr_un *a, struct err *e)
{
    const char *path = a->sun_path;
    struct stat st;
    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? 0 : err_set(e, ERR_IO, "uds %s: %s", path, strerror(errno));
    }
    if (!S_ISSOCK(st.st_mode)) {
        return err_set(e, ERR_IO, "uds %s: the path exists and is no socket", path);
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int rc = fd < 0 ? -1 : connect(fd, (const struct sockaddr *)a, sizeof *a);
    int saved = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (rc == 0 || saved == EAGAIN) {
        return err_set(e, ERR_BUSY, "uds %s: another process is listening there", path);
    }
    if (saved != ECONNREFUSED) {
        return err_set(e, ERR_IO, "uds %s: %s", path, strerror(saved));
    }
    return unlink(path) == 0 || errno == ENOENT
               ? 0
               : err_set(e, ERR_IO, "uds %s: can't remove the old socket: %s", path,
                         strerror(errno));
}

int listen_unix(const char *path, int mode, struct listen_file *file, struct err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    if (!*path || strlen(path) >= sizeof a.sun_path) {
        return err_set(e, ERR_INVALID, "uds %s: a socket's path has 1 to %zu bytes", path,
                       sizeof a.sun_path - 1);
    }
    memcpy(a.sun_path, path, strlen(path) + 1);
    int rc = clear_stale(&a, e);
    if (rc < 0) {
        return rc;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return err_set(e, ERR_IO, "uds %s: %s", path, strerror(errno));
    }
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        rc = err_set(e, errno == EADDRINUSE ? ERR_BUSY : ERR_IO, "uds %s: can't bind: %s", path,
                     strerror(errno));
        close(fd);
        return rc;
    }
    if ((mode >= 0 && chmod(path, (mode_t)mode) != 0) || listen(fd, BACKLOG) != 0 ||
        lstat(path, &st) != 0) {
        rc = err_set(e, ERR_IO, "uds %s: %s", path, strerror(errno));
        unlink(path);
        close(fd);
        return rc;
    }
    *file = (struct listen_file){st.st_dev, st.st_ino};
    return fd;
}

void listen_unix_remove(const char *path, const struct listen_file *file)
{
    struct stat st;
    if (lstat(path, &st) == 0 && st.st_dev == file->dev && st.st_ino == file->ino) {
        unlink(path);
    }
}
