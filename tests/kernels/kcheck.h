/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by kcheck.c (is every kernel right?) and kbench.c (how fast is it beside the machine's
 * limits?). */
#ifndef TERN_TESTS_KCHECK_H
#define TERN_TESTS_KCHECK_H

#include "kernels/kernels.h"

/* kcheck --bench: measures; returns an exit status. level NULL: the best one. */
int kbench_run(const char *level, const char *filter);

#endif
