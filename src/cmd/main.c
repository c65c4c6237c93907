/* SPDX-License-Identifier: Apache-2.0 */
/* Picks the subcommand. */
#include "cmd/args.h"
#include "cmd/commands.h"
#include "cmd/pages.h"
#include "cmd/signals.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void print_help(FILE *out)
{
    const char *group = "";
    fputs("usage: tern COMMAND [options]\n", out);
    for (const struct command *c = commands; c->name; c++) {
        if (strcmp(group, c->group) != 0) {
            group = c->group;
            fprintf(out, "\n%s:\n", group);
        }
        if (!strchr(c->name, ' ')) { /* `tern bench --help` names what it leads to */
            fprintf(out, "  %-10s %s\n", c->name, c->help);
        }
    }
    fputs("\n  tern COMMAND --help   options of a command\n  tern --version        version\n", out);
}

/* What was started without standard input, output or error gets something in their place that fails
 * when it is used. Else the next thing that is opened has their number: log lines would go into a
 * pipe of our own, a file or a client's connection. */
static void hold_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY); /* the lowest free: fd */
        }
    }
}

/* The exit code of a command that returned rc: output that could not be written is a failure. */
static int end(const char *name, int rc)
{
    if (rc == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        fprintf(stderr, "tern %s: error: cannot write to standard output\n", name);
        return EXIT_FAULT;
    }
    return rc;
}

int main(int argc, char **argv)
{
    /* A closed pipe and a file at its limit are failed writes, reported where they happen. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    signals_name_cut_files();
    hold_standard_streams();
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--version") == 0 || strcmp(name, "-v") == 0 || strcmp(name, "version") == 0) {
        puts("tern " TERN_VERSION);
        return end(name, 0);
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return end(name, 0);
    }
    if (strncmp(name, "--help=", 7) == 0 && pages_program(name + 7) == 0) {
        return end(name, 0);
    }
    const struct command *c = strchr(name, ' ') ? NULL : command_find(name);
    if (c) {
        return end(name, c->run(argc - 2, argv + 2));
    }
    if (*name) {
        fprintf(stderr, "tern: error: unknown command '%s'\n", name);
    }
    print_help(stderr);
    return EXIT_USAGE;
}
