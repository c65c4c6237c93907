/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of `tern serve` that other commands with a server inside use as well. */
#ifndef TERN_CMD_SERVE_H
#define TERN_CMD_SERVE_H

#include "api/server.h"
#include "cmd/args.h"
#include "lib/setup.h"

#define SERVE_LIST_MAX 64

/* Where the lists of struct server_options live. The arena is the caller's to init and fini. */
struct serve_lists {
    struct arena arena;
    const char *origins[SERVE_LIST_MAX], *methods[SERVE_LIST_MAX], *headers[SERVE_LIST_MAX],
        *quiet_paths[SERVE_LIST_MAX];
    const char *default_name; /* the model's path, where no name was given */
};
int serve_options(struct server_options *so, const struct setup *s, const struct args_server *v,
                  struct serve_lists *l, struct err *e);
/* Weights, engine, one token of warm-up, with the log lines of vLLM's start. */
int serve_start_engine(struct setup *s, struct err *e);
void serve_set_ready(const struct setup *s, struct server *server);

#endif
