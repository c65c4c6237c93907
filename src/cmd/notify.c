/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/notify.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MESSAGE_BYTES 1024

/* The time systemd wants a sign of life in, if it is this process that shall give it. */
static uint64_t watchdog_us(void)
{
    const char *us = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!us || (pid && strtoll(pid, NULL, 10) != (long long)getpid())) {
        return 0;
    }
    return strtoull(us, NULL, 10);
}

void notify_open(struct notify *n)
{
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t len = name ? strlen(name) : 0;
    *n = (struct notify){.fd = -1};
    if (len < 2 || len >= sizeof a.sun_path || (name[0] != '/' && name[0] != '@')) {
        return;
    }
    memcpy(a.sun_path, name, len);
    if (name[0] == '@') {
        a.sun_path[0] = '\0'; /* abstract: all bytes of the length given count, no end mark */
    }
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    if (n->fd >= 0 && connect(n->fd, (struct sockaddr *)&a, size) != 0) {
        notify_close(n);
        return;
    }
    n->watchdog_us = watchdog_us();
}

void notify_close(struct notify *n)
{
    if (n->fd >= 0) {
        close(n->fd);
    }
    n->fd = -1;
}

void notify_send(const struct notify *n, const char *fmt, ...)
{
    char text[MESSAGE_BYTES];
    va_list ap;
    if (n->fd < 0) {
        return;
    }
    va_start(ap, fmt);
    int len = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (len > 0) { /* a long one is cut, which only a STATUS can be */
        size_t size = (size_t)len < sizeof text ? (size_t)len : sizeof text - 1;
        (void)send(n->fd, text, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}
