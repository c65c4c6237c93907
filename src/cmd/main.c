/* SPDX-License-Identifier: Apache-2.0 */
/* Picks the subcommand. */
#include "cmd/args.h"
#include "cmd/cmd.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
};

static const struct command commands[] = {
    {"serve", cmd_serve, "serve a model over an OpenAI-compatible HTTP API"},
    {"generate", cmd_generate, "generate text from prompts, without a server"},
    {"chat", cmd_chat, "talk to a model or to an OpenAI-compatible server"},
    {"complete", cmd_complete, "let a model or a server go on with lines of text"},
    {"pull", cmd_pull, "fetch a model from Hugging Face or ModelScope"},
    {"run-batch", cmd_run_batch, "answer the requests of an OpenAI batch file"},
    {"tokenize", cmd_tokenize, "text to token ids and back"},
    {"info", cmd_info, "say what a model holds and needs, and whether it fits here"},
    {"align", cmd_align,
     "compare the compiled plan with eager execution, bit by bit, and with stored logits"},
    {"quantize", cmd_quantize, "write a quantized copy of a model: int8, int4 or fp8"},
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
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(name, commands[i].name) == 0) {
            return end(name, commands[i].run(argc - 2, argv + 2));
        }
    }
    if (*name) {
        fprintf(stderr, "tern: error: unknown command '%s'\n", name);
    }
    print_help(stderr);
    return EXIT_USAGE;
}
