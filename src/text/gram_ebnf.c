/* SPDX-License-Identifier: Apache-2.0 */
/* EBNF as users of structured output write it. Two spellings of the same thing:
 *   GBNF:  root ::= "yes" | [a-z]+ (ws item){1,3}      # comment     (start rule: root)
 *   Lark:  start: item | "no"    item: /[0-9]+/ NAME?  // comment     (start rule: start; a leading
 * ? or ! is ignored) A rule ends where the next `name ::=` or `name:` begins, so alternatives may
 * go over several lines. */
#include "base/arena.h"
#include "base/map.h"
#include "base/utf8.h"
#include "text/gram_front.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64
#define MAX_ITEMS 4096 /* alternatives of one rule, or items of one sequence */

struct ebnf {
    struct gram *g;
    const char *s;
    size_t n, at;
    struct map *rules; /* name -> rule number + 1 */
    int depth, lark;
    int line;
};

/* An expression is parsed twice: it has to be emitted from its end, so a first pass only finds
 * where items begin. */
static int32_t parse_alternatives(struct ebnf *p, int emit, int32_t next);

static void bad(struct ebnf *p, const char *what)
{
    int line = 1;
    for (size_t i = 0; i < p->at && i < p->n; i++) {
        line += p->s[i] == '\n';
    }
    gram_fail(p->g, ERR_INVALID, "grammar: %s (line %d)", what, line);
}

static int is_name(char ch)
{
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') ||
           ch == '_' || ch == '-';
}

static void skip_space(struct ebnf *p)
{
    while (p->at < p->n) {
        char ch = p->s[p->at];
        if (ch == '#' || (ch == '/' && p->at + 1 < p->n && p->s[p->at + 1] == '/')) {
            while (p->at < p->n && p->s[p->at] != '\n') {
                p->at++;
            }
        } else if (ch == ' ' || ch == '\t' || ch == '\r' || ch == '\n') {
            p->at++;
        } else {
            break;
        }
    }
}

/* At the head of a rule? Returns the length of the name and where its body begins. */
static size_t rule_head(const struct ebnf *p, size_t at, size_t *body)
{
    size_t i = at;
    while (p->lark && i < p->n && (p->s[i] == '?' || p->s[i] == '!')) {
        i++;
    }
    size_t first = i;
    while (i < p->n && is_name(p->s[i])) {
        i++;
    }
    size_t n = i - first;
    if (p->lark && i < p->n && p->s[i] == '.') { /* NAME.2: a priority */
        for (i++; i < p->n && p->s[i] >= '0' && p->s[i] <= '9'; i++) {
        }
    }
    while (i < p->n && (p->s[i] == ' ' || p->s[i] == '\t')) {
        i++;
    }
    if (n == 0 || i >= p->n || p->s[i] != ':') {
        return 0;
    }
    if (!p->lark) {
        if (p->n - i < 3 || memcmp(p->s + i, "::=", 3) != 0) {
            return 0;
        }
        *body = i + 3;
        return n;
    }
    *body = i + 1;
    return n;
}

static int at_end(struct ebnf *p)
{
    size_t body;
    skip_space(p);
    return p->at >= p->n || p->s[p->at] == '|' || p->s[p->at] == ')' || p->s[p->at] == ']' ||
           rule_head(p, p->at, &body) > 0 || (p->lark && p->s[p->at] == '%');
}

static int rule_number(struct ebnf *p, const char *name, size_t n)
{
    uintptr_t known = (uintptr_t)map_get(p->rules, name, n);
    if (known != 0) {
        return (int)known - 1;
    }
    int rule = gram_rule_new(p->g);
    if (map_put(p->rules, name, n, (void *)(uintptr_t)(rule + 1)) != 0) {
        gram_fail(p->g, ERR_NOMEM, "out of memory while compiling a grammar");
    }
    return rule;
}

/* Up to the closing quote, bracket or slash, which may be escaped. */
static size_t span_to(struct ebnf *p, char close)
{
    size_t i = p->at;
    while (i < p->n && p->s[i] != close && p->s[i] != '\n') {
        i += p->s[i] == '\\' ? 2 : 1;
    }
    if (i >= p->n || p->s[i] != close) {
        bad(p, close == ']'   ? "a [ is not closed"
               : close == '/' ? "a / is not closed"
                              : "a string is not closed");
        return 0;
    }
    return i - p->at;
}

/* An escape in a string, at the character after the backslash; returns the last one it takes. Those
 * of GBNF and Lark alike: a set such as \d is none, it would be read as two characters by one
 * engine and refused by the next. */
static size_t string_escape(struct ebnf *p, size_t at, size_t end, struct buf *re)
{
    char ch = at < end ? p->s[at] : 'z';
    if (ch == 'U' && end - at > 8) {
        buf_printf(re, "\\u{%.8s}", p->s + at + 1);
        return at + 8;
    }
    if (strchr("nrtxu", ch) == NULL && ((ch | 32) >= 'a' && (ch | 32) <= 'z')) {
        gram_fail(p->g, ERR_UNSUPPORTED, "grammar: escape \\%c in a string is not supported", ch);
    } else if (ch >= '0' && ch <= '9') {
        gram_fail(p->g, ERR_UNSUPPORTED, "grammar: escape \\%c in a string is not supported", ch);
    }
    buf_putc(re, '\\');
    buf_putc(re, ch);
    return at;
}

/* A quoted string is a regex in which only escapes are special: quote the rest. */
static int32_t string_item(struct ebnf *p, int emit, int32_t next)
{
    char quote = p->s[p->at++];
    size_t n = span_to(p, quote), start = p->at;
    p->at += n + 1;
    int fold = p->lark && p->at < p->n && p->s[p->at] == 'i';
    if (fold) {
        gram_fail(p->g, ERR_UNSUPPORTED,
                  "grammar: case-insensitive strings (\"…\"i) are not supported");
    }
    if (!emit || gram_failed(p->g)) {
        return next;
    }
    struct buf re;
    buf_init(&re);
    for (size_t i = start; i < start + n; i++) {
        char ch = p->s[i];
        if (ch == '\\') {
            i = string_escape(p, i + 1, start + n, &re);
        } else {
            if (strchr("^$.*+?()[]{}|/", ch) != NULL) {
                buf_putc(&re, '\\');
            }
            buf_putc(&re, ch);
        }
    }
    int32_t entry =
        gram_regex(p->g, re.data != NULL ? re.data : "", re.len, GRAM_TEXT_RAW, 0, next);
    buf_fini(&re);
    return entry;
}

static int32_t regex_item(struct ebnf *p, char close, int emit, int32_t next)
{
    size_t start = close == ']' ? p->at : p->at + 1;
    p->at++;
    size_t n = span_to(p, close);
    p->at += n + 1;
    n += close == ']' ? 2 : 0;
    if (close == '/' && p->at < p->n && p->s[p->at] >= 'a' && p->s[p->at] <= 'z') {
        gram_fail(p->g, ERR_UNSUPPORTED, "grammar: flags after a /regex/ are not supported");
    }
    return emit && !gram_failed(p->g) ? gram_regex(p->g, p->s + start, n, GRAM_TEXT_RAW, 0, next)
                                      : next;
}

static int32_t atom(struct ebnf *p, int emit, int32_t next)
{
    char ch = p->s[p->at];
    if (ch == '"' || ch == '\'') {
        return string_item(p, emit, next);
    }
    if (ch == '(' || (ch == '[' && p->lark)) {
        p->at++;
        int32_t entry = parse_alternatives(p, emit, next);
        skip_space(p);
        if (p->at >= p->n || p->s[p->at] != (ch == '(' ? ')' : ']')) {
            bad(p, "a ( or [ is not closed");
            return next;
        }
        p->at++;
        return ch == '[' && emit ? gram_alt2(p->g, entry, next) : entry;
    }
    if (ch == '[') {
        return regex_item(p, ']', emit, next);
    }
    if (ch == '/') {
        return regex_item(p, '/', emit, next);
    }
    if (ch == '.') {
        p->at++;
        return emit ? gram_regex(p->g, ".", 1, GRAM_TEXT_RAW, 0, next) : next;
    }
    size_t start = p->at;
    while (p->at < p->n && is_name(p->s[p->at])) {
        p->at++;
    }
    if (p->at == start) {
        bad(p, "an item was expected here");
        return next;
    }
    return emit ? gram_call(p->g, rule_number(p, p->s + start, p->at - start), next) : next;
}

/* * + ? {m,n} (Lark: ~m..n too) after an item; 0 when there is none. */
static int quantifier(struct ebnf *p, int *min, int *max)
{
    char ch = p->at < p->n ? p->s[p->at] : 0;
    *min = ch == '+';
    *max = ch == '?' ? 1 : -1;
    if (ch == '*' || ch == '+' || ch == '?') {
        p->at++;
        return 1;
    }
    if (ch != '{' && !(ch == '~' && p->lark)) {
        return 0;
    }
    char *end;
    size_t at = p->at + 1;
    long lo = strtol(p->s + at, &end, 10), hi = lo;
    const char *after = end;
    if (after == p->s + at) {
        bad(p, "a repeat count is missing");
        return 0;
    }
    if (*after == ',' || (ch == '~' && after[0] == '.' && after[1] == '.')) {
        after += *after == ',' ? 1 : 2;
        hi = strtol(after, &end, 10);
        hi = end == after ? -1 : hi;
        after = end;
    }
    if (ch == '{' && *after++ != '}') {
        bad(p, "a { is not closed");
        return 0;
    }
    if (lo < 0 || lo > GRAM_MAX_REPEAT + 1 || hi > GRAM_MAX_REPEAT + 1 || (hi >= 0 && hi < lo)) {
        bad(p, "a repeat count is out of range");
        return 0;
    }
    *min = (int)lo;
    *max = (int)hi;
    p->at = (size_t)(after - p->s);
    return 1;
}

/* One item with its quantifier, starting at p->at. */
static int32_t item(struct ebnf *p, int emit, int32_t next)
{
    size_t start = p->at;
    int min, max;
    (void)atom(p, 0, next);
    if (gram_failed(p->g)) {
        return next;
    }
    size_t after_atom = p->at;
    int repeated = quantifier(p, &min, &max);
    size_t end = p->at;
    if (emit && !gram_failed(p->g)) {
        p->at = start;
        int32_t body = atom(p, 1, repeated && max != 1 ? GRAM_STATE_RETURN : next);
        if (repeated && max == 1) {
            next = min == 0 ? gram_alt2(p->g, body, next) : body;
        } else if (repeated) {
            /* A repeated character class is the case that token masks are precomputed for. */
            next = gram_repeat(p->g, body, min, max, next);
        } else {
            next = body;
        }
    }
    p->at = end > after_atom ? end : after_atom;
    return next;
}

static int32_t parse_sequence(struct ebnf *p, int emit, int32_t next)
{
    size_t *starts = malloc(MAX_ITEMS * sizeof *starts);
    int n = 0;
    if (starts == NULL) {
        gram_fail(p->g, ERR_NOMEM, "out of memory while compiling a grammar");
        return next;
    }
    while (!gram_failed(p->g) && !at_end(p)) {
        if (n == MAX_ITEMS) {
            gram_fail(p->g, ERR_TOO_LARGE, "grammar: a sequence has more than %d items", MAX_ITEMS);
            break;
        }
        starts[n++] = p->at;
        (void)item(p, 0, next);
    }
    size_t end = p->at;
    while (emit && n-- > 0 && !gram_failed(p->g)) {
        p->at = starts[n];
        next = item(p, 1, next);
    }
    p->at = end;
    free(starts);
    return next;
}

static int32_t parse_alternatives(struct ebnf *p, int emit, int32_t next)
{
    int32_t *entries = malloc(MAX_ITEMS * sizeof *entries), entry = next;
    int n = 0;
    if (entries == NULL || ++p->depth > MAX_DEPTH) {
        gram_fail(p->g, entries == NULL ? ERR_NOMEM : ERR_TOO_LARGE,
                  "grammar: nested deeper than %d groups", MAX_DEPTH);
        free(entries);
        return next;
    }
    for (;;) {
        if (n == MAX_ITEMS) {
            gram_fail(p->g, ERR_TOO_LARGE, "grammar: a rule has more than %d alternatives",
                      MAX_ITEMS);
            break;
        }
        entries[n++] = parse_sequence(p, emit, next);
        if (gram_failed(p->g) || p->at >= p->n || p->s[p->at] != '|') {
            break;
        }
        p->at++;
    }
    p->depth--;
    if (emit && !gram_failed(p->g)) {
        entry = gram_alt(p->g, entries, n);
    }
    free(entries);
    return entry;
}

/* Lark directives: %ignore and %import change what the text means. */
static void directive(struct ebnf *p)
{
    gram_fail(p->g, ERR_UNSUPPORTED,
              "grammar: Lark directives (%%ignore, %%import, …) are not supported");
}

int32_t gram_ebnf(struct gram *g, const char *text, size_t n_bytes)
{
    /* strtol needs a terminator, and the caller's text has none of its own. */
    char *copy = malloc(n_bytes + 1);
    struct ebnf p = {.g = g, .s = copy, .n = n_bytes, .rules = map_new()};
    int32_t root = GRAM_STATE_RETURN;
    if (copy == NULL || p.rules == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a grammar");
        goto done;
    }
    memcpy(copy, text, n_bytes);
    copy[n_bytes] = 0;
    if (!utf8_is_valid(copy, n_bytes)) {
        gram_fail(g, ERR_FORMAT, "grammar: it is not UTF-8");
    }
    p.lark = strstr(copy, "::=") == NULL;
    skip_space(&p);
    if (p.at >= p.n) {
        bad(&p, "it is empty");
    }
    while (!gram_failed(g) && p.at < p.n) {
        size_t body = 0, first = p.at;
        size_t n = rule_head(&p, p.at, &body);
        while (p.lark && n > 0 && (copy[first] == '?' || copy[first] == '!')) {
            first++;
        }
        if (n == 0) {
            if (p.lark && copy[p.at] == '%') {
                directive(&p);
            } else {
                bad(&p,
                    p.lark ? "a rule (name: …) was expected" : "a rule (name ::= …) was expected");
            }
            break;
        }
        int rule = rule_number(&p, copy + first, n);
        if (!gram_failed(g) && g->rules[rule] >= 0) {
            gram_fail(g, ERR_INVALID, "grammar: rule '%.*s' is defined twice", (int)n,
                      copy + first);
            break;
        }
        p.at = body;
        gram_rule_set(g, rule, parse_alternatives(&p, 1, GRAM_STATE_RETURN));
        skip_space(&p);
    }
    const char *start = p.lark ? "start" : "root";
    uintptr_t known = gram_failed(g) ? 0 : (uintptr_t)map_get(p.rules, start, strlen(start));
    size_t it = 0, name_bytes;
    const void *name;
    void *number;
    while (!gram_failed(g) && map_next(p.rules, &it, &name, &name_bytes, &number)) {
        if (g->rules[(uintptr_t)number - 1] < 0) {
            gram_fail(g, ERR_INVALID, "grammar: rule '%.*s' is used but not defined",
                      (int)name_bytes, (const char *)name);
        }
    }
    if (known == 0) {
        gram_fail(g, ERR_INVALID, "grammar: the start rule '%s' is missing", start);
    } else if (!gram_failed(g)) {
        root = gram_call(g, (int)known - 1, GRAM_STATE_RETURN);
    }
done:
    map_free(p.rules);
    free(copy);
    return root;
}
