/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/pages.h"
#include "cmd/commands.h"
#include <stdio.h>
#include <string.h>

#define UNUSABLE    (OPT_IGNORED | OPT_REFUSED | OPT_HIDDEN | OPT_ENV_ONLY)
#define SHORT_BYTES 72 /* of a description in a completion */
#define ZSH_QUOTE   "'\\''"
#define FISH_QUOTE  "\\'"

/* ---- manual pages ---- */

/* Text for roff: no dash becomes a hyphen, no line a request. */
static void put_roff(const char *s)
{
    for (const char *p = s; *p; p++) {
        int at_start = p == s || p[-1] == '\n';
        if (at_start && (*p == '.' || *p == '\'')) {
            fputs("\\&", stdout);
        }
        if (*p == '\n' && p[1] == '\n') {
            fputs("\n.PP\n", stdout);
            p++;
        } else if (*p == '\\') {
            fputs("\\e", stdout);
        } else if (*p == '-') {
            fputs("\\-", stdout);
        } else {
            putchar(*p);
        }
    }
}

static void put_bold(const char *before, const char *s)
{
    fputs("\\fB", stdout);
    put_roff(before);
    put_roff(s);
    fputs("\\fR", stdout);
}

/* NAME with dashes in place of blanks, as the files are called. */
static void put_page_name(const char *command, int upper)
{
    for (const char *p = command; *p; p++) {
        int c = *p == ' ' ? '-' : *p;
        c = upper && c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c;
        fputs(c == '-' && !upper ? "\\-" : (char[]){(char)c, 0}, stdout);
    }
}

static void page_head(const char *command, const char *help)
{
    fputs(".TH ", stdout);
    put_page_name(command, 1);
    fputs(" 1 " TERN_DATE " \"tern " TERN_VERSION "\" \"User Commands\"\n.SH NAME\n", stdout);
    put_page_name(command, 0);
    fputs(" \\- ", stdout);
    put_roff(help);
    fputs("\n.SH SYNOPSIS\n", stdout);
}

static void page_examples(const char *examples)
{
    if (examples) {
        fputs(".SH EXAMPLES\n.nf\n", stdout);
        put_roff(examples);
        fputs("\n.fi\n", stdout);
    }
}

static void page_end(void)
{
    fputs(".SH EXIT STATUS\n"
          "0: done. 1: a fault, with one line on standard error. 2: wrong usage.\n",
          stdout);
}

static void put_choices(const struct opt *row)
{
    fputs(" One of: ", stdout);
    for (const char *p = row->choices; *p; p++) {
        if (*p == '|') {
            fputs(", ", stdout);
        } else {
            put_roff((char[]){*p, 0});
        }
    }
    putchar('.');
}

static void page_row_text(const struct opt *row)
{
    int unusable = row->flags & (OPT_IGNORED | OPT_REFUSED);
    put_roff(row->help ? row->help : "");
    if (row->flags & (OPT_IGNORED | OPT_REFUSED | OPT_DEPRECATED)) {
        fputs(row->flags & OPT_IGNORED   ? "Accepted, no effect: "
              : row->flags & OPT_REFUSED ? "Refused: "
                                         : " Deprecated: ",
              stdout);
        put_roff(row->note);
        putchar('.');
    }
    if (row->choices && !unusable) {
        put_choices(row);
    }
    if (row->def && !unusable && row->type != OPT_BOOL) {
        fputs(" Default: ", stdout);
        put_roff(row->def);
        putchar('.');
    }
    if (row->env && !(row->flags & OPT_ENV_ONLY)) {
        fputs(" Environment variable: ", stdout);
        put_roff(row->env);
        putchar('.');
    }
    putchar('\n');
}

static void page_row(const struct opts *o, int i)
{
    const struct opt *row = opts_row(o, i);
    char word[OPT_SPELLING];
    fputs(".TP\n", stdout);
    put_bold("--", row->name);
    if (opt_default_on(row)) {
        fputs(" (on), ", stdout);
        put_bold("--no-", row->name);
    } else if (*opt_meta(row)) {
        fputs(" \\fI", stdout);
        put_roff(opt_meta(row));
        fputs("\\fR", stdout);
    }
    for (const char *p = row->others; (p = opts_next_spelling(o, i, p, word)) != NULL;) {
        fputs(", ", stdout);
        put_bold("", word);
    }
    putchar('\n');
    page_row_text(row);
}

/* The first row of a group prints the group; variables without a flag come by themselves. */
static void page_groups(const struct opts *o, int variables)
{
    const struct opt *head, *row;
    for (int i = 0; (head = opts_row(o, i)) != NULL; i++) {
        int is_open = 0, seen = 0;
        for (int j = 0; j < i && !seen && !variables; j++) {
            seen = strcmp(opts_row(o, j)->group, head->group) == 0;
        }
        for (int j = i; !seen && (row = opts_row(o, j)) != NULL; j++) {
            int is_variable = (row->flags & OPT_ENV_ONLY) != 0;
            if (strcmp(row->group, head->group) != 0 || !opts_is_listed(o, row) ||
                is_variable != variables || (variables && j > i)) {
                continue;
            }
            if (variables) {
                fputs(".TP\n", stdout);
                put_bold("", row->env);
                putchar('\n');
                page_row_text(row);
                continue;
            }
            if (!is_open) {
                fputs(".SS \"", stdout);
                put_roff(row->group);
                fputs("\"\n", stdout);
                is_open = 1;
            }
            page_row(o, j);
        }
    }
}

static int has_variables(const struct opts *o)
{
    const struct opt *row;
    for (int i = 0; (row = opts_row(o, i)) != NULL; i++) {
        if (row->flags & OPT_ENV_ONLY) {
            return 1;
        }
    }
    return 0;
}

static void page_of_command(const struct opts *o, const char *command, const struct command *c)
{
    page_head(command, c->help);
    put_roff(o->usage);
    putchar('\n');
    fputs(".SH DESCRIPTION\n", stdout);
    put_roff(c->about);
    fputs("\n.SH OPTIONS\nA flag may be written with \\- or _, and \\fB\\-\\-x=v\\fR or "
          "\\fB\\-\\-x v\\fR; sizes take k, m, g, t (powers of 1000) or K, M, G, T (of 1024).\n",
          stdout);
    page_groups(o, 0);
    if (has_variables(o)) {
        fputs(".SH ENVIRONMENT\n", stdout);
        page_groups(o, 1);
    }
    page_examples(c->examples);
    page_end();
    fputs(".SH SEE ALSO\n.BR tern (1)\n", stdout);
}

static void page_of_leader(const char *title, const char *about, const char *family)
{
    fputs("\\fBtern\\fR ", stdout);
    fputs(*family ? family : "", stdout);
    fputs(*family ? " \\fIBENCHMARK\\fR [options]\n" : "\\fICOMMAND\\fR [options]\n", stdout);
    fputs(".SH DESCRIPTION\n", stdout);
    put_roff(about);
    printf("\n.SH %s\n", title);
    size_t n = strlen(family);
    for (const struct command *c = commands; c->name; c++) {
        const char *blank = strchr(c->name, ' ');
        int is_member = n ? blank && strncmp(c->name, family, n) == 0 : !blank;
        if (is_member) {
            fputs(".TP\n\\fBtern\\-", stdout);
            put_page_name(c->name, 0);
            fputs("\\fR(1)\n", stdout);
            put_roff(c->help);
            fputs(".\n", stdout);
        }
    }
}

/* ---- completions ---- */

enum shell { SHELL_BASH, SHELL_ZSH, SHELL_FISH };

/* What a value is: files, directories or words of the user's. */
static int wants_files(const struct opt *row)
{
    return row->meta && (strncmp(row->meta, "FILE", 4) == 0 || strcmp(row->meta, "PATH") == 0 ||
                         strcmp(row->meta, "DIR") == 0 || strcmp(row->meta, "PEM") == 0);
}

/* n bytes inside the shell's single quotes; `escaped` gets a backslash. */
static void put_quoted(const char *s, size_t n, const char *escaped, const char *quote)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\'') {
            fputs(quote, stdout);
        } else {
            fputs(strchr(escaped, s[i]) ? "\\" : "", stdout);
            putchar(s[i]);
        }
    }
}

/* The first sentence of the help, short. */
static void put_short(const struct opt *row, const char *escaped, const char *quote)
{
    const char *s = row->help ? row->help : "";
    const char *stop = strstr(s, ". "), *colon = strstr(s, "; ");
    size_t n = stop ? (size_t)(stop - s) : strlen(s);
    n = colon && (size_t)(colon - s) < n ? (size_t)(colon - s) : n;
    n -= n && s[n - 1] == '.';
    if (n > SHORT_BYTES) {
        n = SHORT_BYTES;
        while (n && s[n] != ' ') { /* a blank is never inside a character */
            n--;
        }
    }
    put_quoted(s, n, escaped, quote);
}

static void put_words(const char *choices)
{
    for (const char *p = choices; *p; p++) {
        putchar(*p == '|' ? ' ' : *p);
    }
}

static void bash_command(const struct opts *o, const char *name)
{
    const struct opt *row;
    char word[OPT_SPELLING];
    printf("    '%s')\n        flags='--help", name);
    for (int i = 0; (row = opts_row(o, i)) != NULL; i++) {
        if (!(row->flags & UNUSABLE) && opts_is_listed(o, row)) {
            printf(" --%s%s%s", row->name, opt_default_on(row) ? " --no-" : "",
                   opt_default_on(row) ? row->name : "");
            for (const char *p = row->others; (p = opts_next_spelling(o, i, p, word)) != NULL;) {
                printf(" %s", word);
            }
        }
    }
    fputs("'\n        case $prev in\n", stdout);
    for (int i = 0; (row = opts_row(o, i)) != NULL; i++) {
        if ((row->flags & UNUSABLE) || !opts_is_listed(o, row) || row->type == OPT_BOOL) {
            continue;
        }
        printf("        --%s", row->name);
        for (const char *p = row->others; (p = opts_next_spelling(o, i, p, word)) != NULL;) {
            printf("|%s", word);
        }
        if (row->choices) {
            fputs(") values='", stdout);
            put_words(row->choices);
            fputs("' ;;\n", stdout);
        } else {
            fputs(wants_files(row) ? ") files=1 ;;\n" : ") return ;;\n", stdout);
        }
    }
    fputs("        esac\n        ;;\n", stdout);
}

static void zsh_command(const struct opts *o, const char *name)
{
    const struct opt *row;
    printf("    '%s')\n        _arguments -S \\\n", name);
    for (int i = 0; (row = opts_row(o, i)) != NULL; i++) {
        if ((row->flags & UNUSABLE) || !opts_is_listed(o, row)) {
            continue;
        }
        for (int no = 0; no <= opt_default_on(row); no++) {
            printf("            '*--%s%s%s[", no ? "no-" : "", row->name,
                   row->type == OPT_BOOL ? "" : "=");
            put_short(row, "[]:\\", ZSH_QUOTE);
            fputs(row->type == OPT_BOOL ? "]" : "]:value:", stdout);
            if (row->choices && row->type != OPT_BOOL) {
                putchar('(');
                put_words(row->choices);
                putchar(')');
            } else if (wants_files(row)) {
                fputs("_files", stdout);
            }
            fputs("' \\\n", stdout);
        }
    }
    fputs("            '--help[print the options]' '*:file:_files'\n        ;;\n", stdout);
}

static void fish_command(const struct opts *o, const char *name)
{
    const struct opt *row;
    char word[OPT_SPELLING];
    for (int i = 0; (row = opts_row(o, i)) != NULL; i++) {
        if ((row->flags & UNUSABLE) || !opts_is_listed(o, row)) {
            continue;
        }
        for (int no = 0; no <= opt_default_on(row); no++) {
            printf("complete -c tern -n '__tern_is \"%s\"' -l %s%s", name, no ? "no-" : "",
                   row->name);
            for (const char *p = row->others;
                 !no && (p = opts_next_spelling(o, i, p, word)) != NULL;) {
                int dashes = word[1] == '-' ? 2 : 1;
                printf(" -%c %s", dashes == 2 ? 'l' : word[2] ? 'o' : 's', word + dashes);
            }
            if (row->type != OPT_BOOL) {
                fputs(wants_files(row) ? " -r" : " -x", stdout);
            }
            if (row->choices && row->type != OPT_BOOL) {
                fputs(" -a '", stdout);
                put_words(row->choices);
                putchar('\'');
            }
            fputs(" -d '", stdout);
            put_short(row, "\\", FISH_QUOTE);
            fputs("'\n", stdout);
        }
    }
}

/* Runs every command for its part; those that lead to others print none. */
static void put_parts(const char *word)
{
    char flag[32];
    snprintf(flag, sizeof flag, "--help=%s", word);
    for (const struct command *c = commands; c->name; c++) {
        c->run(1, (char *[]){flag, NULL});
    }
}

/* The commands that `family` leads to, "" for those of tern itself. */
static void put_names(const char *family, enum shell shell)
{
    for (const struct command *c = commands; c->name; c++) {
        const char *blank = strchr(c->name, ' '), *name = blank ? blank + 1 : c->name;
        if (*family ? !blank || strncmp(c->name, family, strlen(family)) != 0 : blank != NULL) {
            continue;
        }
        if (shell == SHELL_BASH) {
            printf("%s ", name);
        } else if (shell == SHELL_ZSH) {
            printf("'%s:", name);
            put_quoted(c->help, strlen(c->help), ":", ZSH_QUOTE);
            fputs("' ", stdout);
        } else {
            printf("complete -c tern -f -n '__tern_is \"%s\"' -a %s -d '", family, name);
            put_quoted(c->help, strlen(c->help), "\\", FISH_QUOTE);
            fputs("'\n", stdout);
        }
    }
}

static void bash_script(void)
{
    fputs("# Completion of tern for bash; made from its option tables.\n"
          "_tern()\n{\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
          "    local command='' flags='' values='' files='' word i\n"
          "    if [[ $cur == = ]]; then\n"
          "        cur=''\n"
          "    elif [[ $prev == = ]] && ((COMP_CWORD > 1)); then\n"
          "        prev=${COMP_WORDS[COMP_CWORD-2]}\n"
          "    fi\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        word=${COMP_WORDS[i]}\n"
          "        if [[ $word != -* ]]; then\n"
          "            command=${command:+$command }$word\n"
          "            [[ $command == bench ]] || break\n"
          "        fi\n"
          "    done\n"
          "    case $command in\n"
          "    '') values='",
          stdout);
    put_names("", SHELL_BASH);
    fputs("--help --version' ;;\n    bench) values='", stdout);
    put_names("bench", SHELL_BASH);
    fputs("--help' ;;\n", stdout);
    put_parts("bash");
    fputs("    esac\n"
          "    if [[ -n $values ]]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"$values\" -- \"$cur\")\n"
          "    elif [[ $cur == -* && -z $files ]]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$cur\")\n"
          "    else\n"
          "        compopt -o filenames 2>/dev/null\n"
          "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
          "    fi\n"
          "}\n"
          "complete -F _tern tern\n",
          stdout);
}

static void zsh_script(void)
{
    fputs("#compdef tern\n"
          "# Completion of tern for zsh; made from its option tables.\n"
          "_tern() {\n"
          "    local command=$words[2] n=2\n"
          "    local -a names=(",
          stdout);
    put_names("", SHELL_ZSH);
    fputs(")\n    local -a benchmarks=(", stdout);
    put_names("bench", SHELL_ZSH);
    fputs(")\n"
          "    if ((CURRENT == 2)); then\n"
          "        _describe command names\n"
          "        return\n"
          "    fi\n"
          "    if [[ $command == bench ]]; then\n"
          "        if ((CURRENT == 3)); then\n"
          "            _describe benchmark benchmarks\n"
          "            return\n"
          "        fi\n"
          "        command=\"bench $words[3]\" n=3\n"
          "    fi\n"
          "    shift $((n - 1)) words\n"
          "    ((CURRENT -= n - 1))\n"
          "    case $command in\n",
          stdout);
    put_parts("zsh");
    fputs("    esac\n}\n_tern \"$@\"\n", stdout);
}

static void fish_script(void)
{
    fputs("# Completion of tern for fish; made from its option tables.\n"
          "function __tern_is\n"
          "    set -l words (string match -v -- '-*' (commandline -opc))\n"
          "    set -l command $words[2]\n"
          "    if test \"$command\" = bench; and set -q words[3]\n"
          "        set command \"bench $words[3]\"\n"
          "    end\n"
          "    test \"$command\" = \"$argv[1]\"\n"
          "end\n",
          stdout);
    put_names("", SHELL_FISH);
    put_names("bench", SHELL_FISH);
    put_parts("fish");
}

/* ---- who is asked for what ---- */

int pages_command(const struct opts *o, const char *command, const char *word)
{
    static void (*const parts[])(const struct opts *, const char *) = {bash_command, zsh_command,
                                                                       fish_command};
    static const char *const shells[] = {"bash", "zsh", "fish"};
    const struct command *c = command_find(command);
    if (!c || !word) {
        return -1;
    }
    if (strcmp(word, "man") == 0) {
        page_of_command(o, command, c);
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        if (strcmp(word, shells[i]) == 0) {
            parts[i](o, c->name);
            return 0;
        }
    }
    return -1;
}

int pages_program(const char *word)
{
    if (strcmp(word, "man") == 0) {
        page_head("tern", "serve ERNIE 4.5 language models on CPUs");
        page_of_leader("COMMANDS",
                       "An inference server for Baidu's ERNIE 4.5 models on ordinary CPUs, with "
                       "the command line, HTTP API, log lines and metrics of vLLM. A model is a "
                       "directory with a Hugging Face or Paddle checkpoint, a GGUF file, or the "
                       "OWNER/NAME of one that tern pull has fetched.\n\n"
                       "The logits of a sequence depend on the model, the tokens and the "
                       "instruction set alone, bit by bit: not on the batch, the cache or the "
                       "number of threads.",
                       "");
        page_end();
    } else if (strcmp(word, "commands") == 0) {
        for (const struct command *c = commands; c->name; c++) {
            puts(c->name);
        }
    } else if (strcmp(word, "bash") == 0) {
        bash_script();
    } else if (strcmp(word, "zsh") == 0) {
        zsh_script();
    } else if (strcmp(word, "fish") == 0) {
        fish_script();
    } else {
        return -1;
    }
    return 0;
}

int pages_family(const char *command, const char *word)
{
    const struct command *c = command_find(command);
    if (!c || strcmp(word, "man") != 0) { /* completions: its members print them */
        return c && (strcmp(word, "bash") == 0 || strcmp(word, "zsh") == 0 ||
                     strcmp(word, "fish") == 0)
                   ? 0
                   : -1;
    }
    char title[64];
    snprintf(title, sizeof title, "tern %s", c->name);
    page_head(title, c->help);
    page_of_leader("BENCHMARKS", c->about, c->name);
    page_examples(c->examples);
    page_end();
    fputs(".SH SEE ALSO\n.BR tern (1)\n", stdout);
    return 0;
}
