/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions for structured output: parsed to a tree, then emitted backwards into the
 * automaton.
 *
 * The syntax is the common part of ECMA 262 (with the u flag) and PCRE: literals, ., [classes], \d
 * \w \s and their complements, groups (capturing, named or not), |, greedy and lazy quantifiers
 * (laziness does not change the language), ^ and $ at the ends of an alternative. What a finite
 * automaton can't do or what depends on flags is refused by name. */
#include "text/gram_regex.h"
#include "base/arena.h"
#include "base/utf8.h"
#include "text/gram_front.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH  64
#define MAX_RANGES 512 /* ranges in one class */

struct parser {
    struct gram *g;
    struct arena *arena;
    const char *s;
    size_t n, at;
    int depth;
};

static const struct gram_range digits[] = {{'0', '9'}};
static const struct gram_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct gram_range spaces[] = {
    {9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
static const struct gram_range line_ends[] = {{10, 10}, {13, 13}, {0x2028, 0x2029}};

static struct gram_node *new_node(struct parser *p, enum gram_node_kind kind)
{
    struct gram_node *n = arena_alloc(p->arena, sizeof *n);
    if (n == NULL) {
        gram_fail(p->g, ERR_NOMEM, "out of memory while compiling a regex");
        return NULL;
    }
    n->kind = kind;
    return n;
}

static void refuse(struct parser *p, const char *what)
{
    gram_fail(p->g, ERR_UNSUPPORTED, "regex: %s is not supported (at byte %zu)", what, p->at);
}

static void bad(struct parser *p, const char *what)
{
    gram_fail(p->g, ERR_INVALID, "regex: %s (at byte %zu)", what, p->at);
}

static int peek(const struct parser *p)
{
    return p->at < p->n ? (unsigned char)p->s[p->at] : -1;
}

static int eat(struct parser *p, const char *token)
{
    size_t n = strlen(token);
    if (p->n - p->at >= n && memcmp(p->s + p->at, token, n) == 0) {
        p->at += n;
        return 1;
    }
    return 0;
}

static struct gram_node *chars_node(struct parser *p, const struct gram_range *r, int n)
{
    struct gram_node *node = new_node(p, GRAM_NODE_CHARS);
    if (node != NULL) {
        node->ranges = arena_memdup(p->arena, r, (size_t)(n ? n : 1) * sizeof *r);
        node->n_ranges = n;
        if (node->ranges == NULL) {
            gram_fail(p->g, ERR_NOMEM, "out of memory while compiling a regex");
        }
    }
    return node;
}

static uint32_t hex(struct parser *p, int digits_wanted)
{
    uint32_t v = 0;
    for (int i = 0; i < digits_wanted; i++, p->at++) {
        int c = peek(p);
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (c < 0 || d < 0) {
            bad(p, "a hexadecimal digit is missing in an escape");
            return 0;
        }
        v = v * 16 + (uint32_t)d;
    }
    return v;
}

static uint32_t unicode_escape(struct parser *p)
{
    uint32_t v = 0;
    if (eat(p, "{")) {
        while (peek(p) != '}' && !gram_failed(p->g)) {
            v = v * 16 + hex(p, 1);
            if (v > 0x10FFFF) {
                bad(p, "a code point is above 10FFFF");
            }
        }
        (void)eat(p, "}");
    } else {
        v = hex(p, 4);
        if (v >= 0xD800 && v < 0xDC00 && eat(p, "\\u")) {
            v = 0x10000 + ((v - 0xD800) << 10) + (hex(p, 4) - 0xDC00);
        }
    }
    if (v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF)) {
        bad(p, "an escape is not a character");
    }
    return v;
}

/* After a backslash. A set: copied to out, its count returned. A single character: *cp, and 0
 * returned. */
static int escape(struct parser *p, struct gram_range *out, uint32_t *cp)
{
    int c = peek(p);
    p->at += c >= 0;
    const struct gram_range *set = NULL;
    int n = 0;
    switch (c) {
    case 'd':
    case 'D':
        set = digits;
        n = 1;
        break;
    case 'w':
    case 'W':
        set = words;
        n = 4;
        break;
    case 's':
    case 'S':
        set = spaces;
        n = (int)(sizeof spaces / sizeof *spaces);
        break;
    case 't':
        *cp = '\t';
        return 0;
    case 'n':
        *cp = '\n';
        return 0;
    case 'r':
        *cp = '\r';
        return 0;
    case 'f':
        *cp = '\f';
        return 0;
    case 'v':
        *cp = '\v';
        return 0;
    case 'x':
        *cp = hex(p, 2);
        return 0;
    case 'u':
        *cp = unicode_escape(p);
        return 0;
    case 'c':
        if (peek(p) < 0) {
            bad(p, "it ends in an escape");
            return 0;
        }
        *cp = (uint32_t)(peek(p) & 31);
        p->at++;
        return 0;
    case '0':
        if (peek(p) >= '0' && peek(p) <= '9') {
            refuse(p, "an octal escape");
        }
        *cp = 0;
        return 0;
    case 'b':
    case 'B':
        refuse(p, "a word boundary (\\b)");
        return 0;
    case 'p':
    case 'P':
        refuse(p, "a Unicode property (\\p)");
        return 0;
    case 'k':
        refuse(p, "a back-reference");
        return 0;
    default:
        break;
    }
    if (set != NULL) {
        if (c >= 'a') {
            memcpy(out, set, (size_t)n * sizeof *set);
            return n;
        }
        return gram_ranges_invert(set, n, out);
    }
    if (c >= '1' && c <= '9') {
        refuse(p, "a back-reference");
    } else if (c < 0) {
        bad(p, "it ends in a backslash");
    } else if ((c | 32) >= 'a' && (c | 32) <= 'z') {
        gram_fail(p->g, ERR_UNSUPPORTED, "regex: escape \\%c is not supported (at byte %zu)", c,
                  p->at);
    } else {
        p->at--;
        int len = utf8_decode(p->s + p->at, p->n - p->at, cp);
        p->at += (size_t)(len > 0 ? len : 1);
    }
    return 0;
}

static uint32_t literal(struct parser *p)
{
    uint32_t cp = 0;
    int len = utf8_decode(p->s + p->at, p->n - p->at, &cp);
    if (len <= 0) {
        bad(p, "it is not UTF-8");
        len = 1;
    }
    p->at += (size_t)len;
    return cp;
}

static struct gram_node *parse_class(struct parser *p)
{
    struct gram_range r[MAX_RANGES + 16], out[MAX_RANGES + 32];
    int n = 0, negate = eat(p, "^");
    while (!gram_failed(p->g)) {
        if (p->at >= p->n) {
            bad(p, "a [ is not closed");
            break;
        }
        if (eat(p, "]")) {
            break;
        }
        if (n >= MAX_RANGES) {
            refuse(p, "a class with more than 512 parts");
            break;
        }
        if (p->n - p->at > 1 && p->s[p->at] == '[' && strchr(":.=", p->s[p->at + 1]) != NULL) {
            refuse(p, "a POSIX class ([:name:])");
            break;
        }
        uint32_t lo = 0, hi;
        int set = 0;
        if (eat(p, "\\")) {
            if (eat(p, "b")) {
                lo = 8;
            } else if (eat(p, "-")) {
                lo = '-';
            } else {
                set = escape(p, r + n, &lo);
            }
        } else {
            lo = literal(p);
        }
        if (set > 0) {
            n += set;
            continue;
        }
        hi = lo;
        if (p->n - p->at > 1 && p->s[p->at] == '-' && p->s[p->at + 1] != ']') {
            p->at++;
            if (eat(p, "\\")) {
                if (escape(p, out, &hi) != 0) {
                    bad(p, "a range ends in a set");
                }
            } else {
                hi = literal(p);
            }
            if (hi < lo) {
                bad(p, "a range in a class is reversed");
            }
        }
        r[n++] = (struct gram_range){lo, hi};
    }
    if (gram_failed(p->g)) {
        return NULL;
    }
    n = gram_ranges_normalize(r, n);
    if (negate) {
        n = gram_ranges_invert(r, n, out);
        return chars_node(p, out, n);
    }
    return chars_node(p, r, n);
}

static struct gram_node *parse_alt(struct parser *p);

static struct gram_node *parse_group(struct parser *p)
{
    if (eat(p, "?")) {
        if (eat(p, "P<") || (peek(p) == '<' && p->at + 1 < p->n && p->s[p->at + 1] != '=' &&
                             p->s[p->at + 1] != '!' && eat(p, "<"))) {
            while (p->at < p->n && p->s[p->at] != '>') {
                p->at++;
            }
            if (!eat(p, ">")) {
                bad(p, "the name of a group is not closed");
                return NULL;
            }
        } else if (!eat(p, ":")) {
            refuse(p, peek(p) == '=' || peek(p) == '!' || peek(p) == '<'
                          ? "a look-around"
                          : "a (?…) group of this kind");
            return NULL;
        }
    }
    struct gram_node *n = parse_alt(p);
    if (!eat(p, ")") && !gram_failed(p->g)) {
        bad(p, "a ( is not closed");
    }
    return n;
}

static struct gram_node *parse_atom(struct parser *p)
{
    struct gram_range out[32];
    uint32_t cp;
    switch (peek(p)) {
    case '(':
        p->at++;
        return parse_group(p);
    case '[':
        p->at++;
        return parse_class(p);
    case '.':
        p->at++;
        return chars_node(p, out, gram_ranges_invert(line_ends, 3, out));
    case '^':
        p->at++;
        return new_node(p, GRAM_NODE_BEGIN);
    case '$':
        p->at++;
        return new_node(p, GRAM_NODE_END);
    case '*':
    case '+':
    case '?':
        bad(p, "a quantifier has nothing to repeat");
        return NULL;
    case '\\': {
        p->at++;
        if (eat(p, "A")) {
            return new_node(p, GRAM_NODE_BEGIN);
        }
        if (eat(p, "Z") || eat(p, "z")) {
            return new_node(p, GRAM_NODE_END);
        }
        int n = escape(p, out, &cp);
        if (n == 0) {
            out[0] = (struct gram_range){cp, cp};
            n = 1;
        }
        return gram_failed(p->g) ? NULL : chars_node(p, out, n);
    }
    default:
        cp = literal(p);
        out[0] = (struct gram_range){cp, cp};
        return gram_failed(p->g) ? NULL : chars_node(p, out, 1);
    }
}

/* {m}, {m,}, {m,n}: 1 when it is one (else the brace is an ordinary character). */
static int parse_braces(struct parser *p, int *min, int *max)
{
    size_t at = p->at + 1;
    long v[2] = {-1, -1};
    int i = 0;
    for (; at < p->n && p->s[at] != '}'; at++) {
        if (p->s[at] == ',' && i == 0) {
            i = 1;
        } else if (p->s[at] >= '0' && p->s[at] <= '9') {
            v[i] = (v[i] < 0 ? 0 : v[i]) * 10 + (p->s[at] - '0');
            v[i] = v[i] > GRAM_MAX_REPEAT + 1 ? GRAM_MAX_REPEAT + 1 : v[i];
        } else {
            return 0;
        }
    }
    if (at >= p->n || v[0] < 0) {
        return 0;
    }
    *min = (int)v[0];
    *max = i == 0 ? *min : (int)v[1];
    p->at = at + 1;
    return 1;
}

static struct gram_node *parse_repeat(struct parser *p)
{
    struct gram_node *atom = parse_atom(p);
    while (atom != NULL && !gram_failed(p->g)) {
        int min = 0, max = -1;
        if (peek(p) == '{') {
            if (!parse_braces(p, &min, &max)) {
                break;
            }
        } else if (eat(p, "+")) {
            min = 1;
        } else if (eat(p, "?")) {
            max = 1;
        } else if (!eat(p, "*")) {
            break;
        }
        if (atom->kind == GRAM_NODE_BEGIN || atom->kind == GRAM_NODE_END) {
            bad(p, "an anchor is repeated");
        }
        if (max >= 0 && max < min) {
            bad(p, "a quantifier's maximum is below its minimum");
        }
        if (peek(p) == '+') {
            refuse(p, "a possessive quantifier");
        }
        (void)eat(p, "?");
        struct gram_node *r = new_node(p, GRAM_NODE_REPEAT);
        if (r != NULL) {
            r->child = atom;
            r->min = min;
            r->max = max;
        }
        atom = r;
    }
    return atom;
}

static struct gram_node *parse_cat(struct parser *p)
{
    struct gram_node *cat = new_node(p, GRAM_NODE_CAT), **tail = cat != NULL ? &cat->child : NULL;
    while (cat != NULL && p->at < p->n && peek(p) != '|' && peek(p) != ')' && !gram_failed(p->g)) {
        *tail = parse_repeat(p);
        if (*tail != NULL) {
            tail = &(*tail)->sibling;
        }
    }
    return cat;
}

static struct gram_node *parse_alt(struct parser *p)
{
    struct gram_node *alt = NULL;
    if (++p->depth > MAX_DEPTH) {
        refuse(p, "nesting deeper than 64 groups");
    } else if ((alt = new_node(p, GRAM_NODE_ALT)) != NULL) {
        struct gram_node **tail = &alt->child;
        do {
            *tail = parse_cat(p);
            if (*tail != NULL) {
                tail = &(*tail)->sibling;
            }
        } while (!gram_failed(p->g) && eat(p, "|"));
    }
    p->depth--;
    return alt;
}

/* ---- emission ---- */

/* Escaped forms of the characters that a JSON string can't hold as they are. */
static int escapes_in(struct gram *g, const struct gram_range *r, int n, int32_t next, int32_t *out)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        for (uint32_t c = r[i].lo; c <= r[i].hi && c <= '\\'; c++) {
            static const char named[] = "\b\t\n\f\r\"\\";
            static const char letters[] = "btnfr\"\\";
            char text[8] = "\\u0000";
            size_t len = 6;
            const char *at = c != 0 && c < 128 ? strchr(named, (int)c) : NULL;
            if (at != NULL) {
                text[1] = letters[at - named];
                len = 2;
            } else if (c < 32) {
                text[4] = (char)('0' + c / 16);
                text[5] = "0123456789abcdef"[c % 16];
            } else {
                continue;
            }
            out[count++] = gram_bytes(g, text, len, next);
        }
    }
    return count;
}

static int plain_in(const struct gram_range *r, int n, struct gram_range *out)
{
    static const struct gram_range special[] = {{0, 31}, {'"', '"'}, {'\\', '\\'}};
    return gram_ranges_subtract(r, n, special, 3, out);
}

static int32_t emit_chars(struct gram *g, const struct gram_range *r, int n,
                          enum gram_text_mode mode, int as_body, int32_t next)
{
    struct gram_range *plain = malloc((size_t)(n + 8) * sizeof *plain);
    int32_t entries[40], entry = GRAM_STATE_RETURN;
    int count = 0;
    if (plain == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a regex");
        return entry;
    }
    int n_plain = n;
    if (mode == GRAM_TEXT_IN_JSON) {
        n_plain = plain_in(r, n, plain);
        count = escapes_in(g, r, n, next, entries);
    } else {
        memcpy(plain, r, (size_t)n * sizeof *r);
    }
    if (n_plain > 0 || count == 0) {
        entries[count++] =
            as_body ? gram_class_body(g, plain, n_plain) : gram_chars(g, plain, n_plain, next);
    }
    entry = gram_alt(g, entries, count);
    free(plain);
    return entry;
}

int32_t gram_front_char_body(struct gram *g, const struct gram_range *ranges, int n,
                             enum gram_text_mode mode)
{
    return emit_chars(g, ranges, n, mode, 1, GRAM_STATE_RETURN);
}

int32_t gram_front_chars(struct gram *g, const struct gram_range *ranges, int n,
                         enum gram_text_mode mode, int32_t next)
{
    return emit_chars(g, ranges, n, mode, 0, next);
}

static int32_t emit(struct gram *g, const struct gram_node *n, enum gram_text_mode mode,
                    int32_t next);

static int32_t emit_cat(struct gram *g, const struct gram_node *first, enum gram_text_mode mode,
                        int32_t next)
{
    int count = 0;
    for (const struct gram_node *c = first; c != NULL; c = c->sibling) {
        count++;
    }
    const struct gram_node **all = malloc(sizeof *all * (size_t)(count + 1));
    if (all == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a regex");
        return next;
    }
    count = 0;
    for (const struct gram_node *c = first; c != NULL; c = c->sibling) {
        all[count++] = c;
    }
    while (count-- > 0 && !gram_failed(g)) {
        next = emit(g, all[count], mode, next);
    }
    free(all);
    return next;
}

static int32_t emit_alt(struct gram *g, const struct gram_node *n, enum gram_text_mode mode,
                        int32_t next)
{
    int count = 0;
    for (const struct gram_node *c = n->child; c != NULL; c = c->sibling) {
        count++;
    }
    int32_t *entries = malloc(sizeof *entries * (size_t)(count + 1)), entry = next;
    if (entries == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a regex");
        return next;
    }
    count = 0;
    for (const struct gram_node *c = n->child; c != NULL && !gram_failed(g); c = c->sibling) {
        entries[count++] = emit(g, c, mode, next);
    }
    if (!gram_failed(g) && count > 0) {
        entry = gram_alt(g, entries, count);
    }
    free(entries);
    return entry;
}

static int32_t emit(struct gram *g, const struct gram_node *n, enum gram_text_mode mode,
                    int32_t next)
{
    switch (n->kind) {
    case GRAM_NODE_EMPTY:
        return next;
    case GRAM_NODE_CHARS:
        return emit_chars(g, n->ranges, n->n_ranges, mode, 0, next);
    case GRAM_NODE_CAT:
        return emit_cat(g, n->child, mode, next);
    case GRAM_NODE_ALT:
        return emit_alt(g, n, mode, next);
    case GRAM_NODE_REPEAT:
        if (n->min == 0 && n->max == 1) {
            return gram_alt2(g, emit(g, n->child, mode, next), next);
        }
        if (n->child->kind == GRAM_NODE_CHARS) {
            return gram_repeat(g,
                               gram_front_char_body(g, n->child->ranges, n->child->n_ranges, mode),
                               n->min, n->max, next);
        }
        return gram_repeat(g, emit(g, n->child, mode, GRAM_STATE_RETURN), n->min, n->max, next);
    case GRAM_NODE_BEGIN:
    case GRAM_NODE_END:
        gram_fail(
            g, ERR_UNSUPPORTED,
            "regex: an anchor (^ or $) that is not at the end of an alternative is not supported");
        return next;
    }
    return next;
}

/* Any text, for the ends of a pattern that may match anywhere. */
static int32_t any_text(struct gram *g, enum gram_text_mode mode, int32_t next)
{
    static const struct gram_range all[] = {{0, 0xD7FF}, {0xE000, 0x10FFFF}};
    return gram_repeat(g, gram_front_char_body(g, all, 2, mode), 0, -1, next);
}

/* Takes the anchors off one alternative of the top level, looking through groups that are all of
 * it. */
static void add_top(struct gram *g, struct gram_node *cat, struct gram_tops *out)
{
    struct gram_top top = {0};
    int begin = 0, end = 0;
    while (cat->child != NULL && cat->child->kind == GRAM_NODE_BEGIN) {
        cat->child = cat->child->sibling;
        begin = 1;
    }
    /* (^a|b$): the anchors are inside one group that is everything */
    if (cat->child != NULL && cat->child->sibling == NULL && cat->child->kind == GRAM_NODE_ALT &&
        !begin) {
        for (struct gram_node *c = cat->child->child; c != NULL && !gram_failed(g);
             c = c->sibling) {
            add_top(g, c, out);
        }
        return;
    }
    for (struct gram_node **at = &cat->child; *at != NULL;) {
        if ((*at)->kind == GRAM_NODE_END && (*at)->sibling == NULL) {
            *at = NULL;
            end = 1;
        } else {
            at = &(*at)->sibling;
        }
    }
    top.first = cat->child;
    top.any_before = out->search && !begin;
    top.any_after = out->search && !end;
    if (out->n == GRAM_MAX_TOPS) {
        gram_fail(g, ERR_TOO_LARGE, "regex: more than %d alternatives", GRAM_MAX_TOPS);
    } else {
        out->v[out->n++] = top;
    }
}

int gram_regex_parse(struct gram *g, struct arena *arena, const char *re, size_t n_bytes,
                     int search, struct gram_tops *out)
{
    struct parser p = {.g = g, .arena = arena, .s = re, .n = n_bytes};
    struct gram_node *root = parse_alt(&p);
    out->n = 0;
    out->search = search;
    out->v = arena_alloc(arena, GRAM_MAX_TOPS * sizeof *out->v);
    if (!gram_failed(g) && p.at < p.n) {
        bad(&p, "a ) has no matching (");
    }
    if (out->v == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a regex");
    }
    for (struct gram_node *c = gram_failed(g) ? NULL : root->child; c != NULL && !gram_failed(g);
         c = c->sibling) {
        add_top(g, c, out);
    }
    return gram_failed(g) ? g->error.code : 0;
}

int32_t gram_regex(struct gram *g, const char *re, size_t n_bytes, enum gram_text_mode mode,
                   int search, int32_t next)
{
    struct arena arena;
    struct gram_tops tops;
    int32_t entry = next;
    arena_init(&arena, 0);
    if (gram_regex_parse(g, &arena, re, n_bytes, search, &tops) == 0) {
        int32_t *entries = arena_alloc(&arena, sizeof *entries * (size_t)(tops.n + 1));
        for (int i = 0; entries != NULL && i < tops.n && !gram_failed(g); i++) {
            int32_t after = tops.v[i].any_after ? any_text(g, mode, next) : next;
            entries[i] = emit_cat(g, tops.v[i].first, mode, after);
            entries[i] = tops.v[i].any_before ? any_text(g, mode, entries[i]) : entries[i];
        }
        if (entries == NULL) {
            gram_fail(g, ERR_NOMEM, "out of memory while compiling a regex");
        }
        entry = gram_failed(g) ? next : gram_alt(g, entries, tops.n);
    }
    arena_fini(&arena);
    return entry;
}

int gram_regex_counted(struct gram *g, const char *re, size_t n_bytes, enum gram_text_mode mode,
                       int search, int min, int max, int32_t next, int32_t *entry)
{
    struct arena arena;
    struct gram_tops tops;
    int found = 0;
    arena_init(&arena, 0);
    if (gram_regex_parse(g, &arena, re, n_bytes, search, &tops) == 0 && tops.n == 1 &&
        !tops.v[0].any_before && !tops.v[0].any_after && tops.v[0].first != NULL &&
        tops.v[0].first->sibling == NULL && tops.v[0].first->kind == GRAM_NODE_REPEAT &&
        tops.v[0].first->child->kind == GRAM_NODE_CHARS) {
        const struct gram_node *r = tops.v[0].first, *set = r->child;
        min = r->min > min ? r->min : min;
        max = max < 0 || (r->max >= 0 && r->max < max) ? r->max : max;
        found = 1;
        *entry = max >= 0 && max < min
                     ? gram_dead(g)
                     : gram_repeat(g, gram_front_char_body(g, set->ranges, set->n_ranges, mode),
                                   min, max, next);
    }
    arena_fini(&arena);
    return found;
}
