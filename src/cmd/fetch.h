/* SPDX-License-Identifier: Apache-2.0 */
/* One file from the net, in parts that are fetched side by side, into PATH + ".tern-part". Which
 * parts are there is kept in PATH + ".tern-parts" (a byte each), so that any later run goes on. The
 * file gets its name only when its size and hash are right. */
#ifndef TERN_CMD_FETCH_H
#define TERN_CMD_FETCH_H

#include "base/err.h"
#include "net/client.h"
#include <stdint.h>

struct fetch_file {
    const char *url, *path;
    const char *sha256, *git_sha1; /* hex; one of them */
    uint64_t n_bytes;
    int connections;
    /* Bytes of the file that are there now; may be NULL. */
    void (*progress)(void *user, uint64_t n_bytes);
    void *user;
};

#define FETCH_PART_BYTES ((uint64_t)8 << 20)

int fetch_file(struct client *c, const struct fetch_file *f, struct err *e);

#endif
