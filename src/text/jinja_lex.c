/* SPDX-License-Identifier: Apache-2.0 */
/* Template text -> tokens, with jinja2's white-space rules: "-" strips everything, "+" switches the
 * two automatic rules off; a newline right after a block or comment goes (trim_blocks), so do
 * blanks between the start of a line and a block or comment (lstrip_blocks); one newline at the end
 * of the source goes. */
#include "text/jinja_int.h"

#include "base/utf8.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

struct lexer {
    struct jtokens *out;
    struct arena *a;
    const char *s;
    size_t n, pos;
    int line;
    int line_starting; /* the last thing consumed ended with a newline, or nothing was */
    const char *name;
    struct err *e;
};

static int fail(struct lexer *l, const char *what)
{
    return err_set(l->e, ERR_FORMAT, "%s, line %d: %s", l->name, l->line, what);
}

static int add(struct lexer *l, struct jtok t)
{
    struct jtokens *o = l->out;
    if (o->n == o->cap) {
        size_t cap = o->cap ? o->cap * 2 : 256;
        struct jtok *v = realloc(o->v, cap * sizeof(*v));
        if (!v) {
            return err_set(l->e, ERR_NOMEM, "%s: out of memory", l->name);
        }
        o->v = v;
        o->cap = cap;
    }
    t.line = l->line;
    o->v[o->n++] = t;
    return 0;
}

/* Moves to `to`, counting lines. */
static void advance(struct lexer *l, size_t to)
{
    for (size_t i = l->pos; i < to; i++) {
        l->line += l->s[i] == '\n';
    }
    if (to > l->pos) {
        l->line_starting = l->s[to - 1] == '\n';
    }
    l->pos = to;
}

static int looking_at(const struct lexer *l, size_t at, const char *what)
{
    size_t n = strlen(what);
    return l->n - at >= n && !memcmp(l->s + at, what, n);
}

static size_t skip_space(const struct lexer *l, size_t at)
{
    return at + unicode_leading_space(l->s + at, l->n - at);
}

static int is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (unsigned char)c >= 0x80;
}

/* Text before a tag. sign: '-', '+' or 0; blocks and comments also strip the blanks of their line.
 */
static int add_text(struct lexer *l, size_t from, size_t to, char sign, int is_block)
{
    size_t end = to;
    if (sign == '-') {
        end -= unicode_trailing_space(l->s + from, to - from);
    } else if (sign != '+' && is_block) {
        size_t start = to;
        while (start > from && l->s[start - 1] != '\n') {
            start--;
        }
        int at_line_start = start > from || l->line_starting;
        if (at_line_start && unicode_leading_space(l->s + start, to - start) == to - start) {
            end = start;
        }
    }
    int r =
        end > from ? add(l, (struct jtok){.type = T_DATA, .s = l->s + from, .n = end - from}) : 0;
    advance(l, to);
    return r;
}

/* Past the end of a tag: "-" swallows white space, plain block ends one newline. at: after "%}" or
 * "#}". */
static void end_tag(struct lexer *l, size_t at, char sign, int is_block)
{
    if (sign == '-') {
        at = skip_space(l, at);
    } else if (sign != '+' && is_block && at < l->n && l->s[at] == '\n') {
        at++;
    }
    advance(l, at);
}

static char sign_at(const struct lexer *l, size_t at)
{
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
}

static int lex_comment(struct lexer *l)
{
    size_t start = l->pos + 2;
    start += sign_at(l, start) != 0;
    const char *end = memmem(l->s + start, l->n - start, "#}", 2);
    if (!end) {
        return fail(l, "a comment does not end");
    }
    size_t at = (size_t)(end - l->s);
    char sign = at > start ? sign_at(l, at - 1) : 0;
    end_tag(l, at + 2, sign, 1);
    return 0;
}

/* 1 when a raw block starts here; then *after is behind its "%}". */
static int is_raw_begin(const struct lexer *l, const char *word, size_t *name_end)
{
    size_t at = l->pos + 2;
    at += sign_at(l, at) != 0;
    at = skip_space(l, at);
    if (!looking_at(l, at, word)) {
        return 0;
    }
    at = skip_space(l, at + strlen(word));
    *name_end = at;
    return looking_at(l, at, "%}") || looking_at(l, at, "-%}") || looking_at(l, at, "+%}");
}

static int lex_raw(struct lexer *l, size_t at)
{
    if (l->s[at] == '-') {
        at = skip_space(l, at + 3);
    } else if (l->s[at] == '+') {
        return fail(l, "\"+%}\" cannot end a raw tag");
    } else {
        at += 2;
    }
    advance(l, at);
    size_t start = l->pos;
    struct lexer probe = *l;
    for (size_t i = start;; i++) {
        const char *p = i < l->n ? memmem(l->s + i, l->n - i, "{%", 2) : NULL;
        if (!p) {
            return fail(l, "a raw block does not end");
        }
        i = (size_t)(p - l->s);
        probe.pos = i;
        size_t end;
        if (is_raw_begin(&probe, "endraw", &end)) {
            int r = add_text(l, start, i, sign_at(l, i + 2), 1);
            char sign = sign_at(l, end);
            end_tag(l, end + (sign ? 3 : 2), sign, 1);
            return r;
        }
    }
}

/* ---- inside of tags ---- */

static int hex_value(const char *s, size_t n, uint32_t *out)
{
    uint32_t v = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
        if (d > 15) {
            return -1;
        }
        v = v << 4 | d;
    }
    *out = v;
    return 0;
}

/* One escape of a string literal; *i is behind the backslash. Returns bytes written to out, -1 for
 * a bad one. */
static int unescape(const char *s, size_t n, size_t *i, char *out)
{
    static const char plain[] = "\\\\\"\"''a\ab\bf\fn\nr\rt\tv\v";
    char c = s[(*i)++];
    uint32_t cp;
    for (size_t k = 0; k + 1 < sizeof(plain); k += 2) {
        if (plain[k] == c) {
            out[0] = plain[k + 1];
            return 1;
        }
    }
    if (c == '\n') {
        return 0;
    }
    if (c >= '0' && c <= '7') {
        cp = (uint32_t)(c - '0');
        for (int k = 0; k < 2 && *i < n && s[*i] >= '0' && s[*i] <= '7'; k++) {
            cp = cp * 8 + (uint32_t)(s[(*i)++] - '0');
        }
        return utf8_encode(cp, out);
    }
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits) {
        if (n - *i < digits || hex_value(s + *i, digits, &cp)) {
            return -1;
        }
        *i += digits;
        int len = utf8_encode(cp, out);
        return len ? len : -1; /* surrogates cannot be written out */
    }
    if (c == 'N') {
        return -1;
    }
    out[0] = '\\';
    out[1] = c;
    return 2;
}

static int lex_string(struct lexer *l)
{
    char quote = l->s[l->pos];
    size_t end = l->pos + 1;
    while (end < l->n && l->s[end] != quote) {
        end += l->s[end] == '\\' ? 2 : 1;
    }
    if (end >= l->n) {
        return fail(l, "a string does not end");
    }
    const char *s = l->s + l->pos + 1;
    size_t n = end - l->pos - 1, k = 0;
    char *out = arena_alloc(l->a, n + 8);
    if (!out) {
        return err_set(l->e, ERR_NOMEM, "%s: out of memory", l->name);
    }
    for (size_t i = 0; i < n;) {
        if (s[i] != '\\') {
            out[k++] = s[i++];
            continue;
        }
        i++;
        int w = unescape(s, n, &i, out + k);
        if (w < 0) {
            return fail(l, "a string has an escape sequence that is not supported");
        }
        k += (size_t)w;
    }
    int r = add(l, (struct jtok){.type = T_STRING, .s = out, .n = k});
    advance(l, end + 1);
    return r;
}

static int digits(const struct lexer *l, size_t *at, char *out, size_t *k)
{
    size_t first = *k;
    while (*at < l->n && ((l->s[*at] >= '0' && l->s[*at] <= '9') ||
                          (l->s[*at] == '_' && *k > first && *at + 1 < l->n &&
                           l->s[*at + 1] >= '0' && l->s[*at + 1] <= '9'))) {
        if (l->s[*at] != '_') {
            if (*k >= 60) {
                return -1;
            }
            out[(*k)++] = l->s[*at];
        }
        ++*at;
    }
    return *k > first ? 0 : -1;
}

static int lex_number(struct lexer *l)
{
    char text[64];
    size_t at = l->pos, k = 0;
    struct jtok t = {.type = T_INT};
    if (digits(l, &at, text, &k)) {
        return fail(l, "a number is too long");
    }
    size_t end_int = at;
    if (at + 1 < l->n && l->s[at] == '.' && l->s[at + 1] >= '0' && l->s[at + 1] <= '9' &&
        !(l->pos > 0 && l->s[l->pos - 1] == '.')) {
        text[k++] = '.';
        at++;
        if (digits(l, &at, text, &k)) {
            return fail(l, "a number is too long");
        }
        t.type = T_FLOAT;
    }
    if (at < l->n && (l->s[at] == 'e' || l->s[at] == 'E')) {
        size_t save = at, save_k = k;
        text[k++] = 'e';
        at++;
        if (at < l->n && (l->s[at] == '+' || l->s[at] == '-')) {
            text[k++] = l->s[at++];
        }
        if (digits(l, &at, text, &k)) {
            at = save;
            k = save_k;
        } else {
            t.type = T_FLOAT;
        }
    }
    text[k] = 0;
    if (t.type == T_FLOAT) {
        t.f = strtod(text, NULL);
    } else {
        char next = end_int < l->n ? l->s[end_int] : 0;
        if (is_name_byte(next) || (k > 1 && text[0] == '0' && strspn(text, "0") != k)) {
            return fail(l, "a number is not in a supported form (decimal digits)");
        }
        if (k > 18) {
            return fail(l, "an integer is too large");
        }
        t.i = strtoll(text, NULL, 10);
    }
    int r = add(l, t);
    advance(l, at);
    return r;
}

static int lex_operator(struct lexer *l, int *nesting)
{
    static const struct {
        const char *s;
        enum jop op;
    } ops[] = {{"//", OP_FLOORDIV}, {"**", OP_POW},     {"==", OP_EQ},    {"!=", OP_NE},
               {">=", OP_GE},       {"<=", OP_LE},      {"+", OP_ADD},    {"-", OP_SUB},
               {"/", OP_DIV},       {"*", OP_MUL},      {"%", OP_MOD},    {"~", OP_TILDE},
               {"[", OP_LBRACKET},  {"]", OP_RBRACKET}, {"(", OP_LPAREN}, {")", OP_RPAREN},
               {"{", OP_LBRACE},    {"}", OP_RBRACE},   {">", OP_GT},     {"<", OP_LT},
               {"=", OP_ASSIGN},    {".", OP_DOT},      {":", OP_COLON},  {"|", OP_PIPE},
               {",", OP_COMMA},     {";", OP_SEMICOLON}};
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
        if (!looking_at(l, l->pos, ops[i].s)) {
            continue;
        }
        enum jop op = ops[i].op;
        if (op == OP_LBRACKET || op == OP_LPAREN || op == OP_LBRACE) {
            ++*nesting;
        } else if (op == OP_RBRACKET || op == OP_RPAREN || op == OP_RBRACE) {
            if (--*nesting < 0) {
                return fail(l, "a bracket closes that was never opened");
            }
        }
        int r = add(l, (struct jtok){.type = T_OP, .op = op});
        advance(l, l->pos + strlen(ops[i].s));
        return r;
    }
    uint32_t cp = 0;
    utf8_decode(l->s + l->pos, l->n - l->pos, &cp);
    return err_set(l->e, ERR_FORMAT, "%s, line %d: unexpected character U+%04X", l->name, l->line,
                   cp);
}

/* Tokens up to the end of the tag; pos is behind its opening. */
static int lex_tag(struct lexer *l, int is_block)
{
    const char *end = is_block ? "%}" : "}}";
    int nesting = 0;
    for (;;) {
        advance(l, skip_space(l, l->pos));
        if (l->pos >= l->n) {
            return fail(l, is_block ? "a block tag does not end" : "an expression does not end");
        }
        char sign = sign_at(l, l->pos);
        if (!is_block && sign == '+') {
            sign = 0;
        }
        if (nesting == 0 && looking_at(l, l->pos + (sign != 0), end)) {
            int r = add(l, (struct jtok){.type = is_block ? T_BLOCK_END : T_VAR_END});
            end_tag(l, l->pos + (sign != 0) + 2, sign, is_block);
            return r;
        }
        char c = l->s[l->pos];
        int r;
        if (c >= '0' && c <= '9') {
            r = lex_number(l);
        } else if (is_name_byte(c)) {
            size_t stop = l->pos;
            while (stop < l->n && is_name_byte(l->s[stop])) {
                stop++;
            }
            char *s = arena_strndup(l->a, l->s + l->pos, stop - l->pos);
            r = s ? add(l, (struct jtok){.type = T_NAME, .s = s, .n = stop - l->pos}) : ERR_NOMEM;
            advance(l, stop);
        } else if (c == '"' || c == '\'') {
            r = lex_string(l);
        } else {
            r = lex_operator(l, &nesting);
        }
        if (r) {
            return r;
        }
    }
}

/* The next "{%", "{{" or "{#"; n when there is none. */
static size_t next_tag(const struct lexer *l)
{
    for (size_t i = l->pos; i + 1 < l->n; i++) {
        const char *p = memchr(l->s + i, '{', l->n - i - 1);
        if (!p) {
            break;
        }
        i = (size_t)(p - l->s);
        if (p[1] == '%' || p[1] == '{' || p[1] == '#') {
            return i;
        }
    }
    return l->n;
}

static int lex_all(struct lexer *l)
{
    int r = 0;
    while (l->pos < l->n && !r) {
        size_t at = next_tag(l), raw;
        if (at == l->n) {
            return add_text(l, l->pos, l->n, '+', 0);
        }
        char kind = l->s[at + 1], sign = sign_at(l, at + 2);
        r = add_text(l, l->pos, at, sign, kind != '{');
        if (r) {
            return r;
        }
        if (kind == '#') {
            r = lex_comment(l);
        } else if (kind == '%' && is_raw_begin(l, "raw", &raw)) {
            r = lex_raw(l, raw);
        } else {
            r = add(l, (struct jtok){.type = kind == '%' ? T_BLOCK_BEGIN : T_VAR_BEGIN});
            advance(l, at + 2 + (sign != 0));
            r = r ? r : lex_tag(l, kind == '%');
        }
    }
    return r;
}

int jinja_lex(struct jtokens *out, struct arena *a, const char *source, size_t n_bytes,
              const char *name, struct err *e)
{
    struct lexer l = {.out = out, .a = a, .line = 1, .line_starting = 1, .name = name, .e = e};
    memset(out, 0, sizeof(*out));
    char *s = arena_alloc(a, n_bytes + 1);
    if (!s) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", name);
    }
    for (size_t i = 0; i < n_bytes; i++) { /* "\r\n" and "\r" count as "\n" */
        if (source[i] != '\r') {
            s[l.n++] = source[i];
        } else {
            s[l.n++] = '\n';
            i += i + 1 < n_bytes && source[i + 1] == '\n';
        }
    }
    l.n -= l.n > 0 && s[l.n - 1] == '\n';
    l.s = s;
    int r = lex_all(&l);
    return r ? r : add(&l, (struct jtok){.type = T_EOF});
}
