/* SPDX-License-Identifier: Apache-2.0 */
/* The little that every command does with its options. */
#include "cmd/args.h"
#include "cmd/pages.h"
#include "lib/hub.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

int args_parse(struct opts *o, const char *command, int argc, char **argv)
{
    struct err e = {0, ""};
    int rc = opts_parse(o, argc, argv, &e);
    if (rc < 0) {
        fprintf(stderr, "usage: %s\n%s: error: %s\n", o->usage, command, e.text);
        return EXIT_USAGE;
    }
    if (!o->help) {
        return -1;
    }
    if (pages_command(o, command, o->help_topic) == 0) {
        return 0;
    }
    struct buf b;
    buf_init(&b);
    int found = opts_help(o, o->help_topic, &b) == 0;
    if (found && !b.failed) {
        fwrite(b.data, 1, b.len, stdout);
    } else {
        fprintf(stderr, "%s: error: no option or group is named '%s'\n", command,
                o->help_topic ? o->help_topic : "");
    }
    buf_fini(&b);
    return found ? 0 : EXIT_USAGE;
}

int args_words(const struct opts *o, const char *command, int max_words)
{
    if (o->args.n > max_words) {
        fprintf(stderr, "usage: %s\n%s: error: unexpected word '%s'\n", o->usage, command,
                o->args.v[max_words]);
        return EXIT_USAGE;
    }
    return -1;
}

int args_model(const struct opts *o, const char *command, struct args_engine *a, int max_words)
{
    int rc = args_words(o, command, max_words);
    if (rc >= 0) {
        return rc;
    }
    if (o->args.n > 0) {
        a->model = o->args.v[0];
    }
    if (!a->model || !*a->model) {
        fprintf(stderr, "usage: %s\n%s: error: no model given (a directory or a GGUF file)\n",
                o->usage, command);
        return EXIT_USAGE;
    }
    return -1;
}

int args_find_model(const char *command, struct args_engine *a)
{
    struct err e;
    int rc = hub_find_model(a->model, a->revision, a->pulled, &e);
    if (rc < 0) {
        return args_fail(command, &e);
    }
    if (rc > 0) {
        a->repo = a->model;
        a->model = a->pulled;
        if (a->served_model_names.n == 0) {
            a->served_model_names = (struct opt_list){&a->repo, 1};
        }
    }
    return -1;
}

int args_parse_model(struct opts *o, const char *command, struct args_engine *a, int argc,
                     char **argv)
{
    int rc = args_parse(o, command, argc, argv);
    rc = rc < 0 ? args_model(o, command, a, 1) : rc;
    return rc < 0 ? args_find_model(command, a) : rc;
}

int args_log(const struct opts *o, const struct args_engine *a, const char *prefix, struct log *log)
{
    const char *level_name = a->log_level, *config = getenv("VLLM_LOGGING_CONFIG_PATH");
    enum log_level level = LOG_INFO;
    if (log_level_parse(level_name, &level) < 0) {
        return ERR_INVALID;
    }
    *log = (struct log){.level = level,
                        .fd = STDERR_FILENO,
                        .json = strcmp(a->log_format, "json") == 0,
                        .prefix = prefix};
    if (config && *config) {
        log_warning(log, "VLLM_LOGGING_CONFIG_PATH is ignored: it configures Python's logging; see "
                         "--log-level and --log-format");
    }
    for (int i = 0; i < o->warnings.n; i++) {
        log_warning(log, "%s", o->warnings.v[i]);
    }
    return 0;
}

void args_quiet_log(const struct opts *o, const struct args_engine *a, struct log *log)
{
    args_log(o, a, NULL, log);
    if (log->level == LOG_INFO && !opts_source(o, "log-level")) {
        log->level = LOG_WARNING;
    }
}

int args_fail(const char *command, const struct err *e)
{
    fprintf(stderr, "%s: error: %s\n", command, e->text);
    return EXIT_FAULT;
}
