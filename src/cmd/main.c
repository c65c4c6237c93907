/* SPDX-License-Identifier: Apache-2.0 */
/* Picks the subcommand. */
#include "cmd/args.h"
#include "cmd/cmd.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
};

static const struct command commands[] = {
    {"serve", cmd_serve, "serve a model over an OpenAI-compatible HTTP API"},
    {"generate", cmd_generate, "generate text from prompts, without a server"},
    {"run-batch", cmd_run_batch, "answer the requests of an OpenAI batch file"},
    {"tokenize", cmd_tokenize, "text to token ids and back"},
    {"info", cmd_info, "say what a model holds and needs, and whether it fits here"},
    {"align", cmd_align,
     "compare the compiled plan with eager execution, bit by bit, and with stored logits"},
    {"bench", cmd_bench, "latency, throughput and serving benchmarks, as vLLM's"},
    {"eval", cmd_eval, "perplexity, multiple choice, GSM8K, BLEU and ROUGE-L of a model"},
};

static void print_help(FILE *out)
{
    fputs("usage: tern COMMAND [options]\n\ncommands:\n", out);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    }
    fputs("\n  tern COMMAND --help   options of a command\n  tern --version        version\n", out);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a failed write, reported where it happens */
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--version") == 0 || strcmp(name, "-v") == 0 || strcmp(name, "version") == 0) {
        puts("tern " TERN_VERSION);
        return 0;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(name, commands[i].name) == 0) {
            int rc = commands[i].run(argc - 2, argv + 2);
            if (rc == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
                fprintf(stderr, "tern %s: error: cannot write to standard output\n", name);
                return EXIT_FAULT;
            }
            return rc;
        }
    }
    if (*name) {
        fprintf(stderr, "tern: error: unknown command '%s'\n", name);
    }
    print_help(stderr);
    return EXIT_USAGE;
}
