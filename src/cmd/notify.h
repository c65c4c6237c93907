/* SPDX-License-Identifier: Apache-2.0 */
/* What a service says to its supervisor: systemd's sd_notify protocol, which is one datagram of
 * NAME=VALUE lines to the unix socket that $NOTIFY_SOCKET names (a path, or @name for an abstract
 * one). Without the variable everything here does nothing. After notify_open the struct is
 * immutable: any thread may send. */
#ifndef TERN_CMD_NOTIFY_H
#define TERN_CMD_NOTIFY_H

#include "base/err.h"
#include <stdint.h>

struct notify {
    int fd;               /* -1: nobody listens */
    uint64_t watchdog_us; /* a WATCHDOG=1 must come within each such time; 0: none is awaited */
};

void notify_open(struct notify *n);
void notify_close(struct notify *n);
/* Lines without the last line break. What can't be delivered is lost: the supervisor has its own
 * time limits. */
void notify_send(const struct notify *n, const char *fmt, ...) TERN_PRINTF(2, 3);

#endif
