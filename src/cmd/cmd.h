/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands. Each takes the words after its name and returns the exit code: 0 done, 1 a fault
 * (one line on stderr), 2 wrong usage. */
#ifndef TERN_CMD_CMD_H
#define TERN_CMD_CMD_H

int cmd_serve(int argc, char **argv);
int cmd_health(int argc, char **argv);
int cmd_run_batch(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_complete(int argc, char **argv);
int cmd_pull(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_align(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_bench(int argc, char **argv);

#endif
