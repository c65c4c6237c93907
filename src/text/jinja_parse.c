/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens -> syntax tree, by recursive descent with jinja2's precedence:
 * if-else, or, and, not, comparison, + -, ~, * / // %, **, unary, then attributes, calls, filters
 * and tests. */
#include "text/jinja_int.h"

#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

#define ELIF_MAX 200 /* they nest in the tree */

struct parser {
    struct jtokens toks;
    size_t pos;
    struct arena *a;
    const char *name;
    struct err *e;
    int depth, loops;
};

struct nodes {
    struct jnode **v;
    size_t n, cap;
};

static struct jnode *parse_expr(struct parser *p);
static struct jnode *parse_unary(struct parser *p, int with_filters);
static struct jnode *parse_tuple(struct parser *p, int with_condition, int until_in);
static int parse_body(struct parser *p, struct nodes *out, const char *const *ends);

/* ---- small helpers ---- */

static const struct jtok *tok(const struct parser *p)
{
    return &p->toks.v[p->pos];
}

static const struct jtok *peek(const struct parser *p, size_t ahead)
{
    size_t i = p->pos + ahead;
    return &p->toks.v[i < p->toks.n ? i : p->toks.n - 1];
}

static void *fail_null(struct parser *p, const char *what, const char *detail)
{
    err_set(p->e, ERR_FORMAT, "%s, line %d: %s%s%s%s", p->name, tok(p)->line, what,
            detail ? " '" : "", detail ? detail : "", detail ? "'" : "");
    return NULL;
}

static int fail(struct parser *p, const char *what, const char *detail)
{
    fail_null(p, what, detail);
    return -1;
}

static void *alloc(struct parser *p, size_t n)
{
    void *v = arena_alloc(p->a, n);
    if (!v) {
        err_set(p->e, ERR_NOMEM, "%s: out of memory", p->name);
    }
    return v;
}

static struct jnode *node(struct parser *p, enum jnode_type type)
{
    struct jnode *n = alloc(p, sizeof(*n));
    if (n) {
        n->type = type;
        n->line = tok(p)->line;
    }
    return n;
}

static int push(struct parser *p, struct nodes *l, struct jnode *n)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct jnode **v = alloc(p, cap * sizeof(struct jnode *));
        if (!v) {
            return -1;
        }
        if (l->n) {
            memcpy(v, l->v, l->n * sizeof(struct jnode *));
        }
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
    return 0;
}

static int is_op(const struct parser *p, enum jop op)
{
    return tok(p)->type == T_OP && tok(p)->op == op;
}

static int is_name(const struct parser *p, const char *name)
{
    return tok(p)->type == T_NAME && !strcmp(tok(p)->s, name);
}

static int skip_op(struct parser *p, enum jop op)
{
    int yes = is_op(p, op);
    p->pos += (size_t)yes;
    return yes;
}

static int skip_name(struct parser *p, const char *name)
{
    int yes = is_name(p, name);
    p->pos += (size_t)yes;
    return yes;
}

static int expect_op(struct parser *p, enum jop op, const char *what)
{
    return skip_op(p, op) ? 0 : fail(p, "expected", what);
}

static const char *expect_name(struct parser *p)
{
    return tok(p)->type == T_NAME ? p->toks.v[p->pos++].s : fail_null(p, "expected a name", NULL);
}

static int enter(struct parser *p)
{
    return ++p->depth > JINJA_DEPTH_MAX ? fail(p, "nested too deeply", NULL) : 0;
}

static struct jnode *constant(struct parser *p, struct jval v)
{
    struct jnode *n = node(p, N_CONST);
    if (n) {
        n->value = v;
    }
    return n;
}

static struct jnode *string_constant(struct parser *p, const char *s, size_t n)
{
    struct jstr *str = alloc(p, sizeof(*str));
    if (!str) {
        return NULL;
    }
    *str = (struct jstr){.s = s, .n = n, .mark = 1};
    return constant(p, (struct jval){.kind = J_STR, .u.s = str});
}

static struct jnode *binary(struct parser *p, enum jnode_type type, enum jop op, struct jnode *a,
                            struct jnode *b)
{
    struct jnode *n = a && b ? node(p, type) : NULL;
    if (n) {
        n->op = op;
        n->a = a;
        n->b = b;
    }
    return n;
}

/* ---- primary expressions ---- */

static struct jnode *parse_list(struct parser *p)
{
    struct jnode *n = node(p, N_LIST);
    struct nodes l = {0};
    p->pos++;
    while (n && !is_op(p, OP_RBRACKET)) {
        struct jnode *item = parse_expr(p);
        if (!item || push(p, &l, item) || (!skip_op(p, OP_COMMA) && !is_op(p, OP_RBRACKET))) {
            return item ? fail_null(p, "expected ',' or ']' in a list", NULL) : NULL;
        }
    }
    p->pos++;
    if (n) {
        n->list = l.v;
        n->n = l.n;
    }
    return n;
}

static struct jnode *parse_dict(struct parser *p)
{
    struct jnode *n = node(p, N_DICT);
    struct nodes l = {0};
    p->pos++;
    while (n && !is_op(p, OP_RBRACE)) {
        struct jnode *key = parse_expr(p);
        if (!key || expect_op(p, OP_COLON, ":")) {
            return NULL;
        }
        struct jnode *value = parse_expr(p);
        if (!value || push(p, &l, key) || push(p, &l, value)) {
            return NULL;
        }
        if (!skip_op(p, OP_COMMA) && !is_op(p, OP_RBRACE)) {
            return fail_null(p, "expected ',' or '}' in a dict", NULL);
        }
    }
    p->pos++;
    if (n) {
        n->list = l.v;
        n->n = l.n;
    }
    return n;
}

static struct jnode *parse_string(struct parser *p)
{
    const struct jtok *t = tok(p);
    const char *s = t->s;
    size_t n = t->n;
    p->pos++;
    while (tok(p)->type == T_STRING) { /* neighbours join */
        char *both = alloc(p, n + tok(p)->n + 1);
        if (!both) {
            return NULL;
        }
        memcpy(both, s, n);
        memcpy(both + n, tok(p)->s, tok(p)->n);
        n += tok(p)->n;
        s = both;
        p->pos++;
    }
    return string_constant(p, s, n);
}

static struct jnode *parse_primary(struct parser *p)
{
    const struct jtok *t = tok(p);
    struct jnode *n;
    switch (t->type) {
    case T_NAME:
        p->pos++;
        if (!strcmp(t->s, "true") || !strcmp(t->s, "True") || !strcmp(t->s, "false") ||
            !strcmp(t->s, "False")) {
            return constant(p, jinja_bool(t->s[0] == 't' || t->s[0] == 'T'));
        }
        if (!strcmp(t->s, "none") || !strcmp(t->s, "None")) {
            return constant(p, (struct jval){.kind = J_NONE});
        }
        n = node(p, N_NAME);
        if (n) {
            n->name = t->s;
        }
        return n;
    case T_STRING:
        return parse_string(p);
    case T_INT:
        p->pos++;
        return constant(p, (struct jval){.kind = J_INT, .u.i = t->i});
    case T_FLOAT:
        p->pos++;
        return constant(p, (struct jval){.kind = J_FLOAT, .u.f = t->f});
    case T_OP:
        if (t->op == OP_LBRACKET) {
            return parse_list(p);
        }
        if (t->op == OP_LBRACE) {
            return parse_dict(p);
        }
        if (t->op == OP_LPAREN) {
            p->pos++;
            if (skip_op(p, OP_RPAREN)) {
                return node(p, N_TUPLE);
            }
            n = parse_tuple(p, 1, 0);
            return n && !expect_op(p, OP_RPAREN, ")") ? n : NULL;
        }
        return fail_null(p, "expected an expression", NULL);
    default:
        return fail_null(p, "expected an expression", NULL);
    }
}

/* ---- postfix ---- */

/* Arguments behind "(" up to ")". */
static int parse_args(struct parser *p, struct jnode *n)
{
    struct nodes l = {0};
    struct jkwarg kw[16];
    p->pos++;
    while (!is_op(p, OP_RPAREN)) {
        if (is_op(p, OP_MUL) || is_op(p, OP_POW)) {
            return fail(p, "unpacking of arguments is not supported", NULL);
        }
        if (tok(p)->type == T_NAME && peek(p, 1)->type == T_OP && peek(p, 1)->op == OP_ASSIGN) {
            if (n->n_kw == 16) {
                return fail(p, "too many keyword arguments", NULL);
            }
            kw[n->n_kw].name = tok(p)->s;
            p->pos += 2;
            if (!(kw[n->n_kw].value = parse_expr(p))) {
                return -1;
            }
            n->n_kw++;
        } else {
            if (n->n_kw) {
                return fail(p, "a positional argument follows a keyword argument", NULL);
            }
            struct jnode *a = parse_expr(p);
            if (!a || push(p, &l, a)) {
                return -1;
            }
        }
        if (!skip_op(p, OP_COMMA) && !is_op(p, OP_RPAREN)) {
            return fail(p, "expected ',' or ')' in arguments", NULL);
        }
    }
    p->pos++;
    n->list = l.v;
    n->n = l.n;
    if (n->n_kw) {
        n->kw = alloc(p, n->n_kw * sizeof(*n->kw));
        if (!n->kw) {
            return -1;
        }
        memcpy(n->kw, kw, n->n_kw * sizeof(*n->kw));
    }
    return 0;
}

static struct jnode *parse_call(struct parser *p, struct jnode *callee)
{
    struct jnode *n = node(p, N_CALL);
    if (!n) {
        return NULL;
    }
    n->a = callee;
    if (callee->type == N_ATTR && !jmethod_known(callee->name)) {
        return fail_null(p, "unknown method", callee->name);
    }
    return parse_args(p, n) ? NULL : n;
}

/* What stands in brackets: an index or a slice. */
static struct jnode *parse_subscript(struct parser *p, struct jnode *a)
{
    struct jnode *part[3] = {NULL, NULL, NULL};
    int i = 0;
    struct jnode *n = node(p, N_ITEM);
    p->pos++;
    if (!n) {
        return NULL;
    }
    n->a = a;
    while (!is_op(p, OP_RBRACKET)) {
        if (is_op(p, OP_COLON)) {
            if (++i > 2) {
                return fail_null(p, "a slice has at most three parts", NULL);
            }
            p->pos++;
        } else if (part[i] || !(part[i] = parse_expr(p))) {
            return part[i] ? fail_null(p, "expected ']'", NULL) : NULL;
        }
    }
    p->pos++;
    if (i == 0) {
        n->b = part[0];
        return n->b ? n : fail_null(p, "expected an index", NULL);
    }
    n->type = N_SLICE;
    n->n = 3;
    n->list = alloc(p, 3 * sizeof(struct jnode *));
    if (!n->list) {
        return NULL;
    }
    memcpy(n->list, part, sizeof(part));
    return n;
}

static struct jnode *parse_postfix(struct parser *p, struct jnode *n)
{
    while (n && tok(p)->type == T_OP) {
        if (is_op(p, OP_DOT)) {
            p->pos++;
            struct jnode *a = node(p, N_ATTR);
            if (!a) {
                return NULL;
            }
            a->a = n;
            if (tok(p)->type == T_INT) {
                a->type = N_ITEM;
                a->b = constant(p, (struct jval){.kind = J_INT, .u.i = tok(p)->i});
                p->pos++;
                n = a->b ? a : NULL;
            } else {
                a->name = expect_name(p);
                n = a->name ? a : NULL;
            }
        } else if (is_op(p, OP_LBRACKET)) {
            n = parse_subscript(p, n);
        } else if (is_op(p, OP_LPAREN)) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

static struct jnode *parse_filter(struct parser *p, struct jnode *a)
{
    const char *refusal = NULL;
    struct jnode *n = node(p, N_FILTER);
    if (!n || !(n->name = expect_name(p))) {
        return NULL;
    }
    n->a = a;
    n->id = jfilter_id(n->name, &refusal);
    if (n->id < 0) {
        return fail_null(p, refusal ? refusal : "unknown filter", n->name);
    }
    if (is_op(p, OP_LPAREN) && parse_args(p, n)) {
        return NULL;
    }
    const char *wrong = jfilter_check(n->id, n->n, n->kw, n->n_kw);
    return wrong ? fail_null(p, wrong, n->name) : n;
}

static int starts_test_argument(const struct parser *p)
{
    const struct jtok *t = tok(p);
    if (t->type == T_NAME) {
        return strcmp(t->s, "else") && strcmp(t->s, "or") && strcmp(t->s, "and") &&
               strcmp(t->s, "if") && strcmp(t->s, "is") && strcmp(t->s, "not") &&
               strcmp(t->s, "in");
    }
    return t->type == T_STRING || t->type == T_INT || t->type == T_FLOAT ||
           (t->type == T_OP && (t->op == OP_LBRACKET || t->op == OP_LBRACE));
}

static struct jnode *parse_test(struct parser *p, struct jnode *a)
{
    int negate = skip_name(p, "not");
    struct jnode *n = node(p, N_TEST);
    struct nodes l = {0};
    if (!n || !(n->name = expect_name(p))) {
        return NULL;
    }
    n->a = a;
    n->id = jtest_id(n->name);
    if (n->id < 0) {
        return fail_null(p, "unknown test", n->name);
    }
    if (is_op(p, OP_LPAREN)) {
        if (parse_args(p, n)) {
            return NULL;
        }
    } else if (starts_test_argument(p)) {
        struct jnode *arg = parse_postfix(p, parse_primary(p));
        if (!arg || push(p, &l, arg)) {
            return NULL;
        }
        n->list = l.v;
        n->n = l.n;
    } else if (is_name(p, "is")) {
        return fail_null(p, "tests cannot be chained", NULL);
    }
    const char *wrong = jtest_check(n->id, n->n, n->n_kw);
    if (wrong) {
        return fail_null(p, wrong, n->name);
    }
    if (negate) {
        struct jnode *no = node(p, N_NOT);
        if (no) {
            no->a = n;
        }
        n = no;
    }
    return n;
}

static struct jnode *parse_filters(struct parser *p, struct jnode *n)
{
    while (n) {
        if (skip_op(p, OP_PIPE)) {
            n = parse_filter(p, n);
        } else if (skip_name(p, "is")) {
            n = parse_test(p, n);
        } else if (is_op(p, OP_LPAREN)) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

/* ---- operators, loosest last ---- */

static struct jnode *parse_unary(struct parser *p, int with_filters)
{
    struct jnode *n;
    if (enter(p)) {
        return NULL;
    }
    if (is_op(p, OP_SUB) || is_op(p, OP_ADD)) {
        n = node(p, is_op(p, OP_SUB) ? N_NEG : N_POS);
        p->pos++;
        if (n && !(n->a = parse_unary(p, 0))) {
            n = NULL;
        }
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    if (with_filters) {
        n = parse_filters(p, n);
    }
    p->depth--;
    return n;
}

static struct jnode *parse_pow(struct parser *p)
{
    struct jnode *n = parse_unary(p, 1);
    while (n && skip_op(p, OP_POW)) {
        n = binary(p, N_BINARY, OP_POW, n, parse_unary(p, 1));
    }
    return n;
}

static struct jnode *parse_product(struct parser *p)
{
    struct jnode *n = parse_pow(p);
    while (n &&
           (is_op(p, OP_MUL) || is_op(p, OP_DIV) || is_op(p, OP_FLOORDIV) || is_op(p, OP_MOD))) {
        enum jop op = tok(p)->op;
        p->pos++;
        n = binary(p, N_BINARY, op, n, parse_pow(p));
    }
    return n;
}

static struct jnode *parse_concat(struct parser *p)
{
    struct jnode *first = parse_product(p);
    struct nodes l = {0};
    if (!first || !is_op(p, OP_TILDE)) {
        return first;
    }
    struct jnode *n = node(p, N_CONCAT);
    if (!n || push(p, &l, first)) {
        return NULL;
    }
    while (skip_op(p, OP_TILDE)) {
        struct jnode *next = parse_product(p);
        if (!next || push(p, &l, next)) {
            return NULL;
        }
    }
    n->list = l.v;
    n->n = l.n;
    return n;
}

static struct jnode *parse_sum(struct parser *p)
{
    struct jnode *n = parse_concat(p);
    while (n && (is_op(p, OP_ADD) || is_op(p, OP_SUB))) {
        enum jop op = tok(p)->op;
        p->pos++;
        n = binary(p, N_BINARY, op, n, parse_concat(p));
    }
    return n;
}

static enum jop comparison(struct parser *p)
{
    const struct jtok *t = tok(p);
    if (t->type == T_OP && t->op >= OP_EQ && t->op <= OP_LE) {
        p->pos++;
        return t->op;
    }
    if (skip_name(p, "in")) {
        return OP_IN;
    }
    if (is_name(p, "not") && peek(p, 1)->type == T_NAME && !strcmp(peek(p, 1)->s, "in")) {
        p->pos += 2;
        return OP_NOT_IN;
    }
    return OP_NONE;
}

static struct jnode *parse_compare(struct parser *p)
{
    struct jnode *first = parse_sum(p);
    struct nodes l = {0};
    enum jop ops[16], op;
    while (first && (op = comparison(p)) != OP_NONE) {
        struct jnode *next = parse_sum(p);
        if (l.n == 16) {
            return fail_null(p, "too many comparisons in a row", NULL);
        }
        ops[l.n] = op;
        if (!next || push(p, &l, next)) {
            return NULL;
        }
    }
    if (!first || l.n == 0) {
        return first;
    }
    struct jnode *n = node(p, N_COMPARE);
    if (!n || !(n->ops = alloc(p, l.n * sizeof(*ops)))) {
        return NULL;
    }
    memcpy(n->ops, ops, l.n * sizeof(*ops));
    n->a = first;
    n->list = l.v;
    n->n = l.n;
    return n;
}

static struct jnode *parse_not(struct parser *p)
{
    if (!is_name(p, "not")) {
        return parse_compare(p);
    }
    struct jnode *n = enter(p) ? NULL : node(p, N_NOT);
    p->pos++;
    if (n && !(n->a = parse_not(p))) {
        n = NULL;
    }
    p->depth--;
    return n;
}

static struct jnode *parse_and(struct parser *p)
{
    struct jnode *n = parse_not(p);
    while (n && skip_name(p, "and")) {
        n = binary(p, N_AND, OP_NONE, n, parse_not(p));
    }
    return n;
}

static struct jnode *parse_or(struct parser *p)
{
    struct jnode *n = parse_and(p);
    while (n && skip_name(p, "or")) {
        n = binary(p, N_OR, OP_NONE, n, parse_and(p));
    }
    return n;
}

static struct jnode *parse_condition(struct parser *p, int with_condition)
{
    if (enter(p)) {
        return NULL;
    }
    struct jnode *n = parse_or(p);
    while (n && with_condition && skip_name(p, "if")) {
        struct jnode *c = node(p, N_COND);
        if (!c || !(c->b = parse_or(p))) {
            return NULL;
        }
        c->a = n;
        if (skip_name(p, "else") && !(c->c = parse_condition(p, 1))) {
            return NULL;
        }
        n = c;
    }
    p->depth--;
    return n;
}

static struct jnode *parse_expr(struct parser *p)
{
    return parse_condition(p, 1);
}

static int ends_tuple(const struct parser *p, int until_in)
{
    const struct jtok *t = tok(p);
    return t->type == T_BLOCK_END || t->type == T_VAR_END || t->type == T_EOF ||
           (t->type == T_OP && (t->op == OP_RPAREN || t->op == OP_ASSIGN)) ||
           (until_in && is_name(p, "in"));
}

/* One expression, or several with commas: then a tuple. */
static struct jnode *parse_tuple(struct parser *p, int with_condition, int until_in)
{
    struct nodes l = {0};
    int commas = 0;
    while (!ends_tuple(p, until_in)) {
        struct jnode *item = until_in ? parse_primary(p) : parse_condition(p, with_condition);
        if (!item || push(p, &l, item)) {
            return NULL;
        }
        if (!skip_op(p, OP_COMMA)) {
            break;
        }
        commas = 1;
    }
    if (l.n == 0) {
        return fail_null(p, "expected an expression", NULL);
    }
    if (l.n == 1 && !commas) {
        return l.v[0];
    }
    struct jnode *n = node(p, N_TUPLE);
    if (n) {
        n->list = l.v;
        n->n = l.n;
    }
    return n;
}

/* ---- statements ---- */

static int check_target(struct parser *p, const struct jnode *n, int attribute_allowed)
{
    if (n->type == N_NAME) {
        return 0;
    }
    if (n->type == N_ATTR && attribute_allowed && n->a->type == N_NAME) {
        return 0;
    }
    if (n->type == N_TUPLE) {
        for (size_t i = 0; i < n->n; i++) {
            if (check_target(p, n->list[i], 0)) {
                return -1;
            }
        }
        return 0;
    }
    return fail(p, "this cannot be assigned to", NULL);
}

/* Body up to an end tag; leaves the parser on the name inside of the end tag. */
static int parse_block_body(struct parser *p, struct jnode ***body, size_t *n,
                            const char *const *ends)
{
    struct nodes l = {0};
    if (parse_body(p, &l, ends)) {
        return -1;
    }
    *body = l.v;
    *n = l.n;
    return 0;
}

static int expect_block_end(struct parser *p)
{
    if (tok(p)->type != T_BLOCK_END) {
        return fail(p, "expected the end of the block tag", NULL);
    }
    p->pos++;
    return 0;
}

/* "{% end… %}" whose name is the current token. */
static int end_statement(struct parser *p)
{
    p->pos++;
    return expect_block_end(p);
}

static struct jnode *parse_if(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct jnode *n = node(p, S_IF), *at = n;
    for (int arms = 0;; arms++) {
        if (arms > ELIF_MAX) {
            return fail_null(p, "too many elif tags", NULL);
        }
        if (!at || !(at->a = parse_tuple(p, 0, 0)) || expect_block_end(p) ||
            parse_block_body(p, &at->body, &at->n_body, ends)) {
            return NULL;
        }
        if (!skip_name(p, "elif")) {
            break;
        }
        struct jnode *next = node(p, S_IF);
        struct nodes l = {0};
        if (!next || push(p, &l, next)) {
            return NULL;
        }
        at->orelse = l.v;
        at->n_orelse = 1;
        at = next;
    }
    if (is_name(p, "else")) {
        if (end_statement(p) || parse_block_body(p, &at->orelse, &at->n_orelse, last)) {
            return NULL;
        }
    }
    return end_statement(p) ? NULL : n;
}

static struct jnode *parse_for(struct parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    struct jnode *n = node(p, S_FOR);
    if (!n || !(n->a = parse_tuple(p, 0, 1)) || check_target(p, n->a, 0)) {
        return NULL;
    }
    if (!skip_name(p, "in")) {
        return fail_null(p, "expected 'in' after the loop variable", NULL);
    }
    if (!(n->b = parse_tuple(p, 0, 0)) || (skip_name(p, "if") && !(n->c = parse_expr(p)))) {
        return NULL;
    }
    if (is_name(p, "recursive")) {
        return fail_null(p, "recursive loops are not supported", NULL);
    }
    if (expect_block_end(p)) {
        return NULL;
    }
    p->loops++;
    int r = parse_block_body(p, &n->body, &n->n_body, ends);
    p->loops--;
    if (r) {
        return NULL;
    }
    if (is_name(p, "else") &&
        (end_statement(p) || parse_block_body(p, &n->orelse, &n->n_orelse, last))) {
        return NULL;
    }
    return end_statement(p) ? NULL : n;
}

static struct jnode *parse_set(struct parser *p)
{
    static const char *const ends[] = {"endset", NULL};
    struct jnode *n = node(p, S_SET);
    struct nodes l = {0};
    do {
        struct jnode *t = parse_postfix(p, parse_primary(p));
        if (!n || !t || check_target(p, t, 1) || push(p, &l, t)) {
            return NULL;
        }
    } while (skip_op(p, OP_COMMA));
    n->a = l.v[0];
    if (l.n > 1) {
        n->a = node(p, N_TUPLE);
        if (!n->a) {
            return NULL;
        }
        n->a->list = l.v;
        n->a->n = l.n;
        if (check_target(p, n->a, 0)) {
            return NULL;
        }
    }
    if (skip_op(p, OP_ASSIGN)) {
        n->b = parse_tuple(p, 1, 0);
        return n->b && !expect_block_end(p) ? n : NULL;
    }
    n->type = S_SETBLOCK;
    if (is_op(p, OP_PIPE)) {
        n->b = parse_filters(p, constant(p, (struct jval){.kind = J_NONE}));
        if (!n->b) {
            return NULL;
        }
    }
    if (expect_block_end(p) || parse_block_body(p, &n->body, &n->n_body, ends)) {
        return NULL;
    }
    return end_statement(p) ? NULL : n;
}

static struct jnode *parse_macro(struct parser *p)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct jnode *n = node(p, S_MACRO);
    struct nodes params = {0};
    struct jkwarg defaults[32];
    if (!n || !(n->name = expect_name(p)) || expect_op(p, OP_LPAREN, "(")) {
        return NULL;
    }
    while (!is_op(p, OP_RPAREN)) {
        struct jnode *name = node(p, N_NAME);
        if (!name || !(name->name = expect_name(p))) {
            return NULL;
        }
        if (params.n == 32) {
            return fail_null(p, "too many macro parameters", NULL);
        }
        struct jkwarg *d = &defaults[params.n];
        *d = (struct jkwarg){name->name, NULL};
        if (push(p, &params, name) || (skip_op(p, OP_ASSIGN) && !(d->value = parse_expr(p)))) {
            return NULL;
        }
        if (!skip_op(p, OP_COMMA) && !is_op(p, OP_RPAREN)) {
            return fail_null(p, "expected ',' or ')' in macro parameters", NULL);
        }
    }
    p->pos++;
    n->list = params.v;
    n->n = n->n_kw = params.n;
    if (params.n) {
        n->kw = alloc(p, params.n * sizeof(*n->kw));
        if (!n->kw) {
            return NULL;
        }
        memcpy(n->kw, defaults, params.n * sizeof(*n->kw));
    }
    int loops = p->loops;
    p->loops = 0;
    int r = expect_block_end(p) || parse_block_body(p, &n->body, &n->n_body, ends);
    p->loops = loops;
    return r || end_statement(p) ? NULL : n;
}

static struct jnode *parse_with(struct parser *p)
{
    static const char *const ends[] = {"endwith", NULL};
    struct jnode *n = node(p, S_WITH);
    struct nodes l = {0};
    while (tok(p)->type != T_BLOCK_END) {
        struct jnode *target = parse_primary(p);
        if (!n || !target || check_target(p, target, 0) || expect_op(p, OP_ASSIGN, "=")) {
            return NULL;
        }
        struct jnode *value = parse_expr(p);
        if (!value || push(p, &l, target) || push(p, &l, value)) {
            return NULL;
        }
        if (!skip_op(p, OP_COMMA) && tok(p)->type != T_BLOCK_END) {
            return fail_null(p, "expected ',' in a with tag", NULL);
        }
    }
    if (!n || expect_block_end(p) || parse_block_body(p, &n->body, &n->n_body, ends)) {
        return NULL;
    }
    n->list = l.v;
    n->n = l.n;
    return end_statement(p) ? NULL : n;
}

static struct jnode *parse_simple(struct parser *p, enum jnode_type type)
{
    if (!p->loops) {
        return fail_null(p, "outside of a loop:", type == S_BREAK ? "break" : "continue");
    }
    struct jnode *n = node(p, type);
    return n && !expect_block_end(p) ? n : NULL;
}

static struct jnode *parse_generation(struct parser *p)
{
    static const char *const ends[] = {"endgeneration", NULL};
    struct jnode *n = node(p, S_BODY);
    if (!n || expect_block_end(p) || parse_block_body(p, &n->body, &n->n_body, ends)) {
        return NULL;
    }
    return end_statement(p) ? NULL : n;
}

static struct jnode *parse_statement(struct parser *p)
{
    const char *name = expect_name(p);
    if (!name || enter(p)) {
        return NULL;
    }
    struct jnode *n;
    if (!strcmp(name, "if")) {
        n = parse_if(p);
    } else if (!strcmp(name, "for")) {
        n = parse_for(p);
    } else if (!strcmp(name, "set")) {
        n = parse_set(p);
    } else if (!strcmp(name, "macro")) {
        n = parse_macro(p);
    } else if (!strcmp(name, "with")) {
        n = parse_with(p);
    } else if (!strcmp(name, "break")) {
        n = parse_simple(p, S_BREAK);
    } else if (!strcmp(name, "continue")) {
        n = parse_simple(p, S_CONTINUE);
    } else if (!strcmp(name, "generation")) {
        n = parse_generation(p);
    } else {
        return fail_null(p, "unknown or unsupported tag", name);
    }
    p->depth--;
    return n;
}

static int is_end(const struct parser *p, const char *const *ends)
{
    for (size_t i = 0; ends && ends[i]; i++) {
        if (is_name(p, ends[i])) {
            return 1;
        }
    }
    return 0;
}

static int parse_body(struct parser *p, struct nodes *out, const char *const *ends)
{
    for (;;) {
        const struct jtok *t = tok(p);
        struct jnode *n;
        switch (t->type) {
        case T_DATA:
            n = string_constant(p, t->s, t->n);
            if (n) {
                n->type = S_TEXT;
            }
            p->pos++;
            break;
        case T_VAR_BEGIN:
            p->pos++;
            n = node(p, S_PRINT);
            if (n && !(n->a = parse_tuple(p, 1, 0))) {
                return -1;
            }
            if (tok(p)->type != T_VAR_END) {
                return fail(p, "expected the end of the expression", NULL);
            }
            p->pos++;
            break;
        case T_BLOCK_BEGIN:
            p->pos++;
            if (is_end(p, ends)) {
                return 0;
            }
            n = parse_statement(p);
            break;
        default:
            return ends ? fail(p, "the template ends inside of a block; missing", ends[0]) : 0;
        }
        if (!n || push(p, out, n)) {
            return -1;
        }
    }
}

int jinja_parse(struct jinja **out, const char *source, size_t n_bytes, const char *name,
                struct err *e)
{
    struct err local = {0};
    struct jinja *t = calloc(1, sizeof(*t));
    struct nodes l = {0};
    struct parser p = {.name = name, .e = e ? e : &local};
    int r = ERR_NOMEM;
    *out = NULL;
    if (!t) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", name);
    }
    arena_init(&t->arena, 1 << 14);
    p.a = &t->arena;
    if (n_bytes > JINJA_SOURCE_BYTES_MAX) {
        r = err_set(e, ERR_TOO_LARGE, "%s: %zu bytes, the limit is %zu", name, n_bytes,
                    JINJA_SOURCE_BYTES_MAX);
        goto fail;
    }
    if (utf8_valid_prefix(source, n_bytes) != n_bytes) {
        r = err_set(e, ERR_FORMAT, "%s: not valid UTF-8", name);
        goto fail;
    }
    t->name = arena_strdup(&t->arena, name);
    r = jinja_lex(&p.toks, &t->arena, source, n_bytes, name, p.e);
    if (r || !t->name) {
        r = r ? r : err_set(e, ERR_NOMEM, "%s: out of memory", name);
        goto fail;
    }
    t->root = node(&p, S_BODY);
    if (!t->root || parse_body(&p, &l, NULL)) {
        r = p.e->code ? p.e->code : ERR_FORMAT;
        goto fail;
    }
    t->root->body = l.v;
    t->root->n_body = l.n;
    free(p.toks.v);
    *out = t;
    return 0;
fail:
    free(p.toks.v);
    jinja_free(t);
    return r;
}

void jinja_free(struct jinja *t)
{
    if (t) {
        arena_fini(&t->arena);
        free(t);
    }
}

/* ---- does it walk over content parts? ---- */

struct walk {
    const char *names[16]; /* variables that hold a message's content */
    int n;
};

static int is_content(const struct walk *w, const struct jnode *n)
{
    while (n && (n->type == N_FILTER || n->type == N_SLICE || n->type == N_COND)) {
        n = n->a;
    }
    if (!n) {
        return 0;
    }
    if (n->type == N_ATTR) {
        return !strcmp(n->name, "content");
    }
    if (n->type == N_ITEM && n->b->type == N_CONST && n->b->value.kind == J_STR) {
        const struct jstr *s = n->b->value.u.s;
        return s->n == 7 && !memcmp(s->s, "content", 7);
    }
    for (int i = 0; n->type == N_NAME && i < w->n; i++) {
        if (!strcmp(w->names[i], n->name)) {
            return 1;
        }
    }
    return 0;
}

static int walks(struct walk *w, struct jnode *const *body, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct jnode *s = body[i];
        if (s->type == S_SET && s->a->type == N_NAME && w->n < 16 && is_content(w, s->b)) {
            w->names[w->n++] = s->a->name;
        }
        if (s->type == S_MACRO) { /* render_content(content, …) and the like */
            for (size_t k = 0; k < s->n && w->n < 16; k++) {
                if (!strcmp(s->list[k]->name, "content")) {
                    w->names[w->n++] = "content";
                }
            }
        }
        if ((s->type == S_FOR && is_content(w, s->b)) || walks(w, s->body, s->n_body) ||
            walks(w, s->orelse, s->n_orelse)) {
            return 1;
        }
    }
    return 0;
}

int jinja_walks_content(const struct jinja *t)
{
    struct walk w = {.n = 0};
    return walks(&w, t->root->body, t->root->n_body);
}
