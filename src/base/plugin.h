/* SPDX-License-Identifier: Apache-2.0 */
/* Shared libraries that are loaded when a feature is first wanted, so that the program starts and
 * links without them. In the static binary (TERN_STATIC, `make static`) there are none to load:
 * a libc of its own can't share a process with the system's. */
#ifndef TERN_BASE_PLUGIN_H
#define TERN_BASE_PLUGIN_H

#include "base/err.h"

/* The first of the names (to a NULL) that can be loaded; with `is_global` its symbols are found by
 * dlsym(RTLD_DEFAULT). NULL: e says that it is not installed, or that this binary loads none. It
 * stays loaded. */
void *plugin_open(const char *const *names, int is_global, const char *package, struct err *e);

#endif
