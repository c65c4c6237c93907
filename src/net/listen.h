/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets: a TCP port or a path in the file system. Owner: whoever opened it. */
#ifndef TERN_NET_LISTEN_H
#define TERN_NET_LISTEN_H

#include "base/err.h"
#include <sys/types.h>

/* The socket, or an error: ERR_BUSY when the address is in use. */
int listen_tcp(const char *host, int port, int *bound_port, struct err *e);

/* A unix socket. `mode` are its permission bits, -1: what umask leaves. A socket file that nobody
 * listens on any more (its server was killed) is replaced; one that answers is ERR_BUSY; anything
 * else of that name is never touched. */
struct listen_file {
    dev_t dev;
    ino_t ino;
};
int listen_unix(const char *path, int mode, struct listen_file *file, struct err *e);
/* Removes the path if it still is the socket that listen_unix made. */
void listen_unix_remove(const char *path, const struct listen_file *file);

#endif
