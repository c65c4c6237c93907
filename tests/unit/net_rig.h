/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets for tests of the HTTP layer: connect to a port of 127.0.0.1, send, read with a deadline.
 */
#ifndef TERN_TESTS_NET_RIG_H
#define TERN_TESTS_NET_RIG_H

#include "base/buf.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

static inline int rig_connect_rcvbuf(int port, int rcvbuf)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (rcvbuf) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    }
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        abort();
    }
    return fd;
}

static inline int rig_connect(int port)
{
    return rig_connect_rcvbuf(port, 0);
}

static inline void rig_send(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, data, n, MSG_NOSIGNAL);
        if (k <= 0) {
            return; /* the other side hung up: the answer tells */
        }
        data += k;
        n -= (size_t)k;
    }
}

static inline void rig_puts(int fd, const char *text)
{
    rig_send(fd, text, strlen(text));
}

/* Reads until `until` was seen (NULL: until EOF) or ms passed. 1 when it was, else 0. */
static inline int rig_read(int fd, struct buf *out, const char *until, int ms)
{
    uint64_t end = clock_now_ns() + (uint64_t)ms * 1000000u;
    char block[65536];
    size_t seen = 0; /* no need to look for `until` before it */
    while (
        !(until && out->data && memmem(out->data + seen, out->len - seen, until, strlen(until)))) {
        seen = until && out->len > strlen(until) ? out->len - strlen(until) : 0;
        uint64_t now = clock_now_ns();
        struct pollfd p = {fd, POLLIN, 0};
        if (now >= end || poll(&p, 1, (int)((end - now) / 1000000u) + 1) <= 0) {
            return 0;
        }
        ssize_t n = recv(fd, block, sizeof block, 0);
        if (n <= 0) {
            return until == NULL && n == 0;
        }
        buf_append(out, block, (size_t)n);
    }
    return 1;
}

/* The number after "HTTP/1.1 "; 0 when there is no response. */
static inline int rig_status(const struct buf *b)
{
    return b->len > 12 && strncmp(b->data, "HTTP/1.1 ", 9) == 0 ? atoi(b->data + 9) : 0;
}

static inline const char *rig_body(const struct buf *b)
{
    const char *p = b->data ? strstr(b->data, "\r\n\r\n") : NULL;
    return p ? p + 4 : "";
}

static inline int rig_count(const struct buf *b, const char *what)
{
    int n = 0;
    for (const char *p = b->data; p && (p = strstr(p, what)); p++) {
        n++;
    }
    return n;
}

/* One request on its own connection, whole answer until the server closes it. */
static inline int rig_ask(int port, const char *raw, size_t n, struct buf *out)
{
    int fd = rig_connect(port);
    buf_clear(out);
    rig_send(fd, raw, n);
    rig_read(fd, out, NULL, 20000);
    close(fd);
    return rig_status(out);
}

#endif
