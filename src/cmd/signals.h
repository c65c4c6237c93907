/* SPDX-License-Identifier: Apache-2.0 */
/* SIGINT and SIGTERM as something to look for: blocked in every thread, never handled, so that a
 * command ends at a place of its own choosing. */
#ifndef TERN_CMD_SIGNALS_H
#define TERN_CMD_SIGNALS_H

#include <signal.h>

void signals_set(sigset_t *out); /* the two */
void signals_block(void);        /* before any thread is made: threads inherit it */
int signals_pending(void);       /* 1 when one has come; it stays */
int signals_take(void);          /* SIGINT or SIGTERM, which is then gone, or 0 */
/* A mapped file that another program cuts short ends the process with one line that names it. */
void signals_name_cut_files(void);

#endif
