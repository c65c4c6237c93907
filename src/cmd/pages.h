/* SPDX-License-Identifier: Apache-2.0 */
/* Manual pages and shell completions out of the option tables, so that they can't say anything else
 * than --help. They are asked for by words that are no help topic of any command:
 *
 *   tern --help=man, tern serve --help=man      one page, for man(1)
 *   tern --help=bash | zsh | fish               a completion script for all commands
 *   tern --help=commands                        the names, one a line
 *
 * The script is made by running every command with the same word: each adds its part. */
#ifndef TERN_CMD_PAGES_H
#define TERN_CMD_PAGES_H

#include "base/opt.h"

/* A command's part: 0, or -1 when the word asks for nothing of the kind. */
int pages_command(const struct opts *o, const char *command, const char *word);
/* All of it, for `tern` itself; the same results. */
int pages_program(const char *word);
/* The page of a command that only leads to others ("bench"); the same results. */
int pages_family(const char *command, const char *word);

#endif
