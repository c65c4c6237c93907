/* SPDX-License-Identifier: Apache-2.0 */
/* Command-line options from a table: one row per option gives its flag, spellings, environment
 * variable, config-file key, range, help text and default. Nothing else in the program parses
 * arguments.
 *
 * Rules (those of vLLM's command line):
 *  - `-` and `_` are the same in a name: --max_model_len is --max-model-len; `--x v` and `--x=v`
 *    are the same.
 *  - A boolean is --x or --no-x (also --x=true); a list takes all following words up to the next
 *    flag.
 *  - Sizes: k m g t are powers of 1000 (25.6k is fine), K M G T and KiB MiB GiB TiB powers of 1024.
 *  - JSON options take an object, or pieces: --x.key value.
 *  - `--config FILE` reads flat YAML (`key: value`, lists as [a, b] or "- a" lines).
 *  - Command line wins over the config file, the file over the environment, that over the default.
 *  - A flag nobody knows is ERR_INVALID with the nearest name as a hint; callers exit with 2.
 *
 * A value is written to the row's place in the caller's struct:
 *    OPT_BOOL int                    OPT_INT, OPT_SIZE int64_t       OPT_DOUBLE double
 *    OPT_STRING, OPT_JSON const char *                               OPT_LIST, OPT_APPEND struct opt_list
 * Strings live as long as the struct opts. */
#ifndef TERN_BASE_OPT_H
#define TERN_BASE_OPT_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

enum opt_type {
    OPT_BOOL,
    OPT_INT,
    OPT_DOUBLE,
    OPT_STRING,
    OPT_SIZE,
    OPT_LIST,
    OPT_APPEND,
    OPT_JSON
};

enum opt_flag {
    OPT_IGNORED = 1,    /* accepted with any value, without effect: one warning that gives `note` */
    OPT_DEPRECATED = 2, /* works, one warning that gives `note` */
    OPT_REFUSED = 4,    /* a known name that is refused; `note` says why */
    OPT_ENV_ONLY = 8,   /* has no flag: `env` alone sets it */
    OPT_AUTO = 16,      /* OPT_SIZE and OPT_INT: the word "auto" is -1 */
    OPT_HIDDEN = 32,    /* left out of --help */
};

struct opt {
    const char *name; /* "max-model-len"; NULL for OPT_ENV_ONLY */
    const char
        *others; /* further spellings with their dashes, space separated: "-tp --tp"; or NULL */
    enum opt_type type;
    size_t offset;       /* of the field in the table's target; unused when IGNORED or REFUSED */
    const char *group;   /* heading in --help */
    const char *def;     /* default, as a user would write it; NULL: zero, NULL or empty */
    const char *env;     /* environment variable, or NULL */
    const char *choices; /* the only values allowed, '|' between them; NULL: any */
    double min, max;     /* range of numbers, both ends allowed; both 0: none */
    unsigned flags;
    const char *meta; /* what --help calls the value; NULL: by type */
    const char *help; /* one sentence */
    const char *note; /* why ignored, deprecated or refused; or why no other value is possible */
};

struct opt_list {
    const char **v;
    int n;
};

struct opt_table {
    const struct opt *rows;
    size_t n_rows;
    void *target;
};

enum opt_source { OPT_FROM_DEFAULT, OPT_FROM_ENV, OPT_FROM_FILE, OPT_FROM_COMMAND_LINE };

#define OPT_TABLES_MAX 4
#define OPT_ROWS_MAX   256

struct opts {
    const char *usage; /* "tern serve MODEL [options]" */
    struct opt_table tables[OPT_TABLES_MAX];
    int n_tables;
    const char *const *unlisted; /* names that help leaves out, to a NULL; or NULL */
    /* filled by opts_parse */
    struct opt_list args;     /* words that are no flags, in order */
    struct opt_list warnings; /* one line each, for the log */
    int help;                 /* --help was given: opts_help prints it */
    const char *help_topic;   /* --help=TOPIC, or NULL */
    struct arena arena;
    unsigned char source[OPT_ROWS_MAX]; /* enum opt_source, rows of all tables counted through */
};

/* Parses argv[0..argc) (no program or command name in it). Set usage and tables first, zero the
 * rest. On failure e names the flag, what was found and what is allowed. opts_fini is due either
 * way. */
int opts_parse(struct opts *o, int argc, char **argv, struct err *e);
void opts_fini(struct opts *o);
/* One more option after opts_parse, as if it had been on the command line: its name without dashes,
 * and the text of its value, which is copied. A list gets one item. "config" reads the file now.
 * ERR_NOT_FOUND: a name nobody knows, with the nearest as a hint. */
int opts_set(struct opts *o, const char *name, const char *value, struct err *e);
/* Where the option's value came from; `name` as in the table. */
enum opt_source opts_source(const struct opts *o, const char *name);
/* Grouped help; topic (a group or how it begins, or an option; any case; NULL or "all": everything)
 * limits it.
 * ERR_NOT_FOUND when the topic names nothing. */
int opts_help(const struct opts *o, const char *topic, struct buf *out);
/* For other ways to print the tables. The i-th row of all tables counted through; NULL behind the
 * last. Whether help lists it; and its name or, for OPT_ENV_ONLY, its variable. */
const struct opt *opts_row(const struct opts *o, int i);
int opts_is_listed(const struct opts *o, const struct opt *row);
/* The next of the spellings `p` (of the i-th row's `others`) that is this row's when parsed, into
 * word: one that an earlier row has means that row. Returns what follows it; NULL: no more. */
#define OPT_SPELLING 64
const char *opts_next_spelling(const struct opts *o, int i, const char *p, char word[OPT_SPELLING]);
const char *opt_own_name(const struct opt *row);
const char *opt_meta(const struct opt *row); /* what help calls the value; "" for OPT_BOOL */
int opt_default_on(const struct opt *row);   /* a boolean that --no-x switches off */
/* What was set, as vLLM prints it: {'model': 'x', 'max_model_len': 4096}. Values of rows named in
 * `secrets` (space separated, may be NULL) are printed as '***'. */
void opts_describe(const struct opts *o, const char *secrets, struct buf *out);
/* Edits from one name to the other, - and _ alike, neighbours swapped as one edit; long names are
 * not worth a hint and are as far as can be. */
int opt_edit_distance(const char *a, size_t na, const char *b, size_t nb);
/* The number of a size: 0 or ERR_INVALID. */
int opt_parse_size(const char *text, int64_t *out);

#endif
