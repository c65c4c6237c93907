/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/signals.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

/* ---- SIGBUS ---- */

/* The kernel sends it when a page of a mapped file is behind the file's new end, or can't be read.
 * Only what is safe in a handler is used; /proc/self/maps says which file it was, so nothing has to
 * be kept for it. */

struct line_of_maps {
    char text[4200]; /* begin-end mode offset device inode path; a longer one is cut */
    size_t n;
};

static const char *number(const char *s, uintptr_t *v)
{
    *v = 0;
    for (;; s++) {
        if (*s >= '0' && *s <= '9') {
            *v = *v << 4 | (uintptr_t)(*s - '0');
        } else if (*s >= 'a' && *s <= 'f') {
            *v = *v << 4 | (uintptr_t)(*s - 'a' + 10);
        } else {
            return s;
        }
    }
}

/* The path in the line, if it is the mapping of `at`. */
static const char *path_for(const struct line_of_maps *l, uintptr_t at)
{
    uintptr_t begin, end;
    const char *s = number(l->text, &begin);
    if (*s != '-') {
        return NULL;
    }
    number(s + 1, &end);
    s = strchr(l->text, '/');
    return at >= begin && at < end ? s : NULL;
}

static const char *file_at(struct line_of_maps *l, uintptr_t at)
{
    char part[1024];
    const char *path = NULL;
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, part, sizeof part);
    while (got > 0 && path == NULL) {
        for (ssize_t i = 0; i < got && path == NULL; i++) {
            if (part[i] != '\n') {
                if (l->n + 1 < sizeof l->text) {
                    l->text[l->n++] = part[i];
                }
                continue;
            }
            l->text[l->n] = '\0';
            l->n = 0;
            path = path_for(l, at);
        }
        got = read(fd, part, sizeof part);
    }
    if (fd >= 0) {
        close(fd);
    }
    return path;
}

/* Several threads may meet the hole at once: the first one tells, the others wait for the end. That
 * they know of each other is the one thing a handler can't be given. */
static void on_bus(int sig, siginfo_t *info, void *context)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    (void)context;
    struct line_of_maps l = {.n = 0};
    const char *path = file_at(&l, (uintptr_t)info->si_addr);
    if (path == NULL) {
        signal(sig, SIG_DFL); /* no file: a fault of the machine or of ours, which ends us */
        return;
    }
    while (atomic_flag_test_and_set(&told)) {
        pause();
    }
    const char *const parts[] = {"tern: error: ", path,
                                 ": cut short, or not readable any more, while it was in use\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        (void)!write(STDERR_FILENO, parts[i], strlen(parts[i]));
    }
    _exit(1);
}

void signals_name_cut_files(void)
{
    struct sigaction act = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    sigemptyset(&act.sa_mask);
    sigaction(SIGBUS, &act, NULL);
}
