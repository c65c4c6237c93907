/* SPDX-License-Identifier: Apache-2.0 */
/* What commands there are: one table for the choice, `tern --help`, manual pages and completions. */
#ifndef TERN_CMD_COMMANDS_H
#define TERN_CMD_COMMANDS_H

struct command {
    const char *name;  /* "serve"; "bench serve" for one that another command leads to */
    const char *group; /* heading in tern --help */
    int (*run)(int argc, char **argv);
    const char *help;     /* half a sentence */
    const char *about;    /* paragraphs for the manual page, an empty line between them */
    const char *examples; /* lines of the shell for the manual page, or NULL */
};

extern const struct command commands[]; /* ends with a name of NULL */

/* By name, with or without "tern " before it; or NULL. */
const struct command *command_find(const char *name);

#endif
