/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a model on a hub (lib/hub.h knows the places). */
#ifndef TERN_CMD_HUB_LIST_H
#define TERN_CMD_HUB_LIST_H

#include "base/buf.h"
#include "lib/hub.h"
#include "net/client.h"

/* Asks the hub for the files. */
int hub_list(struct hub_model *m, struct client *c, struct err *e);
void hub_file_url(const struct hub_model *m, const struct hub_file *f, struct buf *out);

#endif
