/* SPDX-License-Identifier: Apache-2.0 */
#include "kcheck.h"
int kbench_run(const char *level, const char *filter)
{
    (void)level; (void)filter;
    return 0;
}
