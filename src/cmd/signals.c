/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/signals.h"
#include <time.h>

void signals_set(sigset_t *out)
{
    sigemptyset(out);
    sigaddset(out, SIGINT);
    sigaddset(out, SIGTERM);
}

void signals_block(void)
{
    sigset_t set;
    signals_set(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

int signals_pending(void)
{
    sigset_t set;
    return sigpending(&set) == 0 && (sigismember(&set, SIGINT) || sigismember(&set, SIGTERM));
}

int signals_take(void)
{
    sigset_t set;
    struct timespec now = {0, 0};
    signals_set(&set);
    int got = sigtimedwait(&set, NULL, &now);
    return got > 0 ? got : 0;
}
