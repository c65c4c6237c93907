/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens -> syntax tree: the parser's tools, and expressions by recursive descent with jinja2's
 * precedence: if-else, or, and, not, comparison, + -, ~, * / // %, **, unary, then attributes, calls,
 * filters and tests. Statements are in jinja_parse.c. */
#include "text/jinja_int.h"

#include <string.h>

static struct jnode *parse_unary(struct jparser *p, int with_filters);

/* ---- small helpers ---- */

const struct jtok *jp_tok(const struct jparser *p)
{
    return &p->toks.v[p->pos];
}

static const struct jtok *peek(const struct jparser *p, size_t ahead)
{
    size_t i = p->pos + ahead;
    return &p->toks.v[i < p->toks.n ? i : p->toks.n - 1];
}

void *jp_fail_null(struct jparser *p, const char *what, const char *detail)
{
    err_set(p->e, ERR_FORMAT, "%s, line %d: %s%s%s%s", p->name, jp_tok(p)->line, what,
            detail ? " '" : "", detail ? detail : "", detail ? "'" : "");
    return NULL;
}

int jp_fail(struct jparser *p, const char *what, const char *detail)
{
    jp_fail_null(p, what, detail);
    return -1;
}

void *jp_alloc(struct jparser *p, size_t n)
{
    void *v = arena_alloc(p->a, n);
    if (!v) {
        err_set(p->e, ERR_NOMEM, "%s: out of memory", p->name);
    }
    return v;
}

struct jnode *jp_node(struct jparser *p, enum jnode_type type)
{
    struct jnode *n = jp_alloc(p, sizeof(*n));
    if (n) {
        n->type = type;
        n->line = jp_tok(p)->line;
    }
    return n;
}

int jp_push(struct jparser *p, struct jnodes *l, struct jnode *n)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct jnode **v = jp_alloc(p, cap * sizeof(struct jnode *));
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

int jp_is_op(const struct jparser *p, enum jop op)
{
    return jp_tok(p)->type == T_OP && jp_tok(p)->op == op;
}

int jp_is_name(const struct jparser *p, const char *name)
{
    return jp_tok(p)->type == T_NAME && !strcmp(jp_tok(p)->s, name);
}

int jp_skip_op(struct jparser *p, enum jop op)
{
    int yes = jp_is_op(p, op);
    p->pos += (size_t)yes;
    return yes;
}

int jp_skip_name(struct jparser *p, const char *name)
{
    int yes = jp_is_name(p, name);
    p->pos += (size_t)yes;
    return yes;
}

int jp_expect_op(struct jparser *p, enum jop op, const char *what)
{
    return jp_skip_op(p, op) ? 0 : jp_fail(p, "expected", what);
}

const char *jp_expect_name(struct jparser *p)
{
    return jp_tok(p)->type == T_NAME ? p->toks.v[p->pos++].s
                                     : jp_fail_null(p, "expected a name", NULL);
}

int jp_enter(struct jparser *p)
{
    return ++p->depth > JINJA_DEPTH_MAX ? jp_fail(p, "nested too deeply", NULL) : 0;
}

struct jnode *jp_constant(struct jparser *p, struct jval v)
{
    struct jnode *n = jp_node(p, N_CONST);
    if (n) {
        n->value = v;
    }
    return n;
}

struct jnode *jp_string_constant(struct jparser *p, const char *s, size_t n)
{
    struct jstr *str = jp_alloc(p, sizeof(*str));
    if (!str) {
        return NULL;
    }
    *str = (struct jstr){.s = s, .n = n, .mark = 1};
    return jp_constant(p, (struct jval){.kind = J_STR, .u.s = str});
}

static struct jnode *binary(struct jparser *p, enum jnode_type type, enum jop op, struct jnode *a,
                            struct jnode *b)
{
    struct jnode *n = a && b ? jp_node(p, type) : NULL;
    if (n) {
        n->op = op;
        n->a = a;
        n->b = b;
    }
    return n;
}

/* ---- primary expressions ---- */

static struct jnode *parse_list(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_LIST);
    struct jnodes l = {0};
    p->pos++;
    while (n && !jp_is_op(p, OP_RBRACKET)) {
        struct jnode *item = jp_expr(p);
        if (!item || jp_push(p, &l, item) ||
            (!jp_skip_op(p, OP_COMMA) && !jp_is_op(p, OP_RBRACKET))) {
            return item ? jp_fail_null(p, "expected ',' or ']' in a list", NULL) : NULL;
        }
    }
    p->pos++;
    if (n) {
        n->list = l.v;
        n->n = l.n;
    }
    return n;
}

static struct jnode *parse_dict(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_DICT);
    struct jnodes l = {0};
    p->pos++;
    while (n && !jp_is_op(p, OP_RBRACE)) {
        struct jnode *key = jp_expr(p);
        if (!key || jp_expect_op(p, OP_COLON, ":")) {
            return NULL;
        }
        struct jnode *value = jp_expr(p);
        if (!value || jp_push(p, &l, key) || jp_push(p, &l, value)) {
            return NULL;
        }
        if (!jp_skip_op(p, OP_COMMA) && !jp_is_op(p, OP_RBRACE)) {
            return jp_fail_null(p, "expected ',' or '}' in a dict", NULL);
        }
    }
    p->pos++;
    if (n) {
        n->list = l.v;
        n->n = l.n;
    }
    return n;
}

static struct jnode *parse_string(struct jparser *p)
{
    const struct jtok *t = jp_tok(p);
    const char *s = t->s;
    size_t n = t->n;
    p->pos++;
    while (jp_tok(p)->type == T_STRING) { /* neighbours join */
        char *both = jp_alloc(p, n + jp_tok(p)->n + 1);
        if (!both) {
            return NULL;
        }
        memcpy(both, s, n);
        memcpy(both + n, jp_tok(p)->s, jp_tok(p)->n);
        n += jp_tok(p)->n;
        s = both;
        p->pos++;
    }
    return jp_string_constant(p, s, n);
}

struct jnode *jp_primary(struct jparser *p)
{
    const struct jtok *t = jp_tok(p);
    struct jnode *n;
    switch (t->type) {
    case T_NAME:
        p->pos++;
        if (!strcmp(t->s, "true") || !strcmp(t->s, "True") || !strcmp(t->s, "false") ||
            !strcmp(t->s, "False")) {
            return jp_constant(p, jinja_bool(t->s[0] == 't' || t->s[0] == 'T'));
        }
        if (!strcmp(t->s, "none") || !strcmp(t->s, "None")) {
            return jp_constant(p, (struct jval){.kind = J_NONE});
        }
        n = jp_node(p, N_NAME);
        if (n) {
            n->name = t->s;
        }
        return n;
    case T_STRING:
        return parse_string(p);
    case T_INT:
        p->pos++;
        return jp_constant(p, (struct jval){.kind = J_INT, .u.i = t->i});
    case T_FLOAT:
        p->pos++;
        return jp_constant(p, (struct jval){.kind = J_FLOAT, .u.f = t->f});
    case T_OP:
        if (t->op == OP_LBRACKET) {
            return parse_list(p);
        }
        if (t->op == OP_LBRACE) {
            return parse_dict(p);
        }
        if (t->op == OP_LPAREN) {
            p->pos++;
            if (jp_skip_op(p, OP_RPAREN)) {
                return jp_node(p, N_TUPLE);
            }
            n = jp_tuple(p, 1, 0);
            return n && !jp_expect_op(p, OP_RPAREN, ")") ? n : NULL;
        }
        return jp_fail_null(p, "expected an expression", NULL);
    default:
        return jp_fail_null(p, "expected an expression", NULL);
    }
}

/* ---- postfix ---- */

/* Arguments behind "(" up to ")". */
static int parse_args(struct jparser *p, struct jnode *n)
{
    struct jnodes l = {0};
    struct jkwarg kw[16];
    p->pos++;
    while (!jp_is_op(p, OP_RPAREN)) {
        if (jp_is_op(p, OP_MUL) || jp_is_op(p, OP_POW)) {
            return jp_fail(p, "unpacking of arguments is not supported", NULL);
        }
        if (jp_tok(p)->type == T_NAME && peek(p, 1)->type == T_OP && peek(p, 1)->op == OP_ASSIGN) {
            if (n->n_kw == 16) {
                return jp_fail(p, "too many keyword arguments", NULL);
            }
            kw[n->n_kw].name = jp_tok(p)->s;
            p->pos += 2;
            if (!(kw[n->n_kw].value = jp_expr(p))) {
                return -1;
            }
            n->n_kw++;
        } else {
            if (n->n_kw) {
                return jp_fail(p, "a positional argument follows a keyword argument", NULL);
            }
            struct jnode *a = jp_expr(p);
            if (!a || jp_push(p, &l, a)) {
                return -1;
            }
        }
        if (!jp_skip_op(p, OP_COMMA) && !jp_is_op(p, OP_RPAREN)) {
            return jp_fail(p, "expected ',' or ')' in arguments", NULL);
        }
    }
    p->pos++;
    n->list = l.v;
    n->n = l.n;
    if (n->n_kw) {
        n->kw = jp_alloc(p, n->n_kw * sizeof(*n->kw));
        if (!n->kw) {
            return -1;
        }
        memcpy(n->kw, kw, n->n_kw * sizeof(*n->kw));
    }
    return 0;
}

static struct jnode *parse_call(struct jparser *p, struct jnode *callee)
{
    struct jnode *n = jp_node(p, N_CALL);
    if (!n) {
        return NULL;
    }
    n->a = callee;
    if (callee->type == N_ATTR && !jmethod_known(callee->name)) {
        return jp_fail_null(p, "unknown method", callee->name);
    }
    return parse_args(p, n) ? NULL : n;
}

/* What stands in brackets: an index or a slice. */
static struct jnode *parse_subscript(struct jparser *p, struct jnode *a)
{
    struct jnode *part[3] = {NULL, NULL, NULL};
    int i = 0;
    struct jnode *n = jp_node(p, N_ITEM);
    p->pos++;
    if (!n) {
        return NULL;
    }
    n->a = a;
    while (!jp_is_op(p, OP_RBRACKET)) {
        if (jp_is_op(p, OP_COLON)) {
            if (++i > 2) {
                return jp_fail_null(p, "a slice has at most three parts", NULL);
            }
            p->pos++;
        } else if (part[i] || !(part[i] = jp_expr(p))) {
            return part[i] ? jp_fail_null(p, "expected ']'", NULL) : NULL;
        }
    }
    p->pos++;
    if (i == 0) {
        n->b = part[0];
        return n->b ? n : jp_fail_null(p, "expected an index", NULL);
    }
    n->type = N_SLICE;
    n->n = 3;
    n->list = jp_alloc(p, 3 * sizeof(struct jnode *));
    if (!n->list) {
        return NULL;
    }
    memcpy(n->list, part, sizeof(part));
    return n;
}

struct jnode *jp_postfix(struct jparser *p, struct jnode *n)
{
    while (n && jp_tok(p)->type == T_OP) {
        if (jp_is_op(p, OP_DOT)) {
            p->pos++;
            struct jnode *a = jp_node(p, N_ATTR);
            if (!a) {
                return NULL;
            }
            a->a = n;
            if (jp_tok(p)->type == T_INT) {
                a->type = N_ITEM;
                a->b = jp_constant(p, (struct jval){.kind = J_INT, .u.i = jp_tok(p)->i});
                p->pos++;
                n = a->b ? a : NULL;
            } else {
                a->name = jp_expect_name(p);
                n = a->name ? a : NULL;
            }
        } else if (jp_is_op(p, OP_LBRACKET)) {
            n = parse_subscript(p, n);
        } else if (jp_is_op(p, OP_LPAREN)) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

static struct jnode *parse_filter(struct jparser *p, struct jnode *a)
{
    const char *refusal = NULL;
    struct jnode *n = jp_node(p, N_FILTER);
    if (!n || !(n->name = jp_expect_name(p))) {
        return NULL;
    }
    n->a = a;
    n->id = jfilter_id(n->name, &refusal);
    if (n->id < 0) {
        return jp_fail_null(p, refusal ? refusal : "unknown filter", n->name);
    }
    if (jp_is_op(p, OP_LPAREN) && parse_args(p, n)) {
        return NULL;
    }
    const char *wrong = jfilter_check(n->id, n->n, n->kw, n->n_kw);
    return wrong ? jp_fail_null(p, wrong, n->name) : n;
}

static int starts_test_argument(const struct jparser *p)
{
    const struct jtok *t = jp_tok(p);
    if (t->type == T_NAME) {
        return strcmp(t->s, "else") && strcmp(t->s, "or") && strcmp(t->s, "and") &&
               strcmp(t->s, "if") && strcmp(t->s, "is") && strcmp(t->s, "not") &&
               strcmp(t->s, "in");
    }
    return t->type == T_STRING || t->type == T_INT || t->type == T_FLOAT ||
           (t->type == T_OP && (t->op == OP_LBRACKET || t->op == OP_LBRACE));
}

static struct jnode *parse_test(struct jparser *p, struct jnode *a)
{
    int negate = jp_skip_name(p, "not");
    struct jnode *n = jp_node(p, N_TEST);
    struct jnodes l = {0};
    if (!n || !(n->name = jp_expect_name(p))) {
        return NULL;
    }
    n->a = a;
    n->id = jtest_id(n->name);
    if (n->id < 0) {
        return jp_fail_null(p, "unknown test", n->name);
    }
    if (jp_is_op(p, OP_LPAREN)) {
        if (parse_args(p, n)) {
            return NULL;
        }
    } else if (starts_test_argument(p)) {
        struct jnode *arg = jp_postfix(p, jp_primary(p));
        if (!arg || jp_push(p, &l, arg)) {
            return NULL;
        }
        n->list = l.v;
        n->n = l.n;
    } else if (jp_is_name(p, "is")) {
        return jp_fail_null(p, "tests cannot be chained", NULL);
    }
    const char *wrong = jtest_check(n->id, n->n, n->n_kw);
    if (wrong) {
        return jp_fail_null(p, wrong, n->name);
    }
    if (negate) {
        struct jnode *no = jp_node(p, N_NOT);
        if (no) {
            no->a = n;
        }
        n = no;
    }
    return n;
}

struct jnode *jp_filters(struct jparser *p, struct jnode *n)
{
    while (n) {
        if (jp_skip_op(p, OP_PIPE)) {
            n = parse_filter(p, n);
        } else if (jp_skip_name(p, "is")) {
            n = parse_test(p, n);
        } else if (jp_is_op(p, OP_LPAREN)) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

/* ---- operators, loosest last ---- */

static struct jnode *parse_unary(struct jparser *p, int with_filters)
{
    struct jnode *n;
    if (jp_enter(p)) {
        return NULL;
    }
    if (jp_is_op(p, OP_SUB) || jp_is_op(p, OP_ADD)) {
        n = jp_node(p, jp_is_op(p, OP_SUB) ? N_NEG : N_POS);
        p->pos++;
        if (n && !(n->a = parse_unary(p, 0))) {
            n = NULL;
        }
    } else {
        n = jp_primary(p);
    }
    n = jp_postfix(p, n);
    if (with_filters) {
        n = jp_filters(p, n);
    }
    p->depth--;
    return n;
}

static struct jnode *parse_pow(struct jparser *p)
{
    struct jnode *n = parse_unary(p, 1);
    while (n && jp_skip_op(p, OP_POW)) {
        n = binary(p, N_BINARY, OP_POW, n, parse_unary(p, 1));
    }
    return n;
}

static struct jnode *parse_product(struct jparser *p)
{
    struct jnode *n = parse_pow(p);
    while (n && (jp_is_op(p, OP_MUL) || jp_is_op(p, OP_DIV) || jp_is_op(p, OP_FLOORDIV) ||
                 jp_is_op(p, OP_MOD))) {
        enum jop op = jp_tok(p)->op;
        p->pos++;
        n = binary(p, N_BINARY, op, n, parse_pow(p));
    }
    return n;
}

static struct jnode *parse_concat(struct jparser *p)
{
    struct jnode *first = parse_product(p);
    struct jnodes l = {0};
    if (!first || !jp_is_op(p, OP_TILDE)) {
        return first;
    }
    struct jnode *n = jp_node(p, N_CONCAT);
    if (!n || jp_push(p, &l, first)) {
        return NULL;
    }
    while (jp_skip_op(p, OP_TILDE)) {
        struct jnode *next = parse_product(p);
        if (!next || jp_push(p, &l, next)) {
            return NULL;
        }
    }
    n->list = l.v;
    n->n = l.n;
    return n;
}

static struct jnode *parse_sum(struct jparser *p)
{
    struct jnode *n = parse_concat(p);
    while (n && (jp_is_op(p, OP_ADD) || jp_is_op(p, OP_SUB))) {
        enum jop op = jp_tok(p)->op;
        p->pos++;
        n = binary(p, N_BINARY, op, n, parse_concat(p));
    }
    return n;
}

static enum jop comparison(struct jparser *p)
{
    const struct jtok *t = jp_tok(p);
    if (t->type == T_OP && t->op >= OP_EQ && t->op <= OP_LE) {
        p->pos++;
        return t->op;
    }
    if (jp_skip_name(p, "in")) {
        return OP_IN;
    }
    if (jp_is_name(p, "not") && peek(p, 1)->type == T_NAME && !strcmp(peek(p, 1)->s, "in")) {
        p->pos += 2;
        return OP_NOT_IN;
    }
    return OP_NONE;
}

static struct jnode *parse_compare(struct jparser *p)
{
    struct jnode *first = parse_sum(p);
    struct jnodes l = {0};
    enum jop ops[16], op;
    while (first && (op = comparison(p)) != OP_NONE) {
        struct jnode *next = parse_sum(p);
        if (l.n == 16) {
            return jp_fail_null(p, "too many comparisons in a row", NULL);
        }
        ops[l.n] = op;
        if (!next || jp_push(p, &l, next)) {
            return NULL;
        }
    }
    if (!first || l.n == 0) {
        return first;
    }
    struct jnode *n = jp_node(p, N_COMPARE);
    if (!n || !(n->ops = jp_alloc(p, l.n * sizeof(*ops)))) {
        return NULL;
    }
    memcpy(n->ops, ops, l.n * sizeof(*ops));
    n->a = first;
    n->list = l.v;
    n->n = l.n;
    return n;
}

static struct jnode *parse_not(struct jparser *p)
{
    if (!jp_is_name(p, "not")) {
        return parse_compare(p);
    }
    struct jnode *n = jp_enter(p) ? NULL : jp_node(p, N_NOT);
    p->pos++;
    if (n && !(n->a = parse_not(p))) {
        n = NULL;
    }
    p->depth--;
    return n;
}

static struct jnode *parse_and(struct jparser *p)
{
    struct jnode *n = parse_not(p);
    while (n && jp_skip_name(p, "and")) {
        n = binary(p, N_AND, OP_NONE, n, parse_not(p));
    }
    return n;
}

static struct jnode *parse_or(struct jparser *p)
{
    struct jnode *n = parse_and(p);
    while (n && jp_skip_name(p, "or")) {
        n = binary(p, N_OR, OP_NONE, n, parse_and(p));
    }
    return n;
}

static struct jnode *parse_condition(struct jparser *p, int with_condition)
{
    if (jp_enter(p)) {
        return NULL;
    }
    struct jnode *n = parse_or(p);
    while (n && with_condition && jp_skip_name(p, "if")) {
        struct jnode *c = jp_node(p, N_COND);
        if (!c || !(c->b = parse_or(p))) {
            return NULL;
        }
        c->a = n;
        if (jp_skip_name(p, "else") && !(c->c = parse_condition(p, 1))) {
            return NULL;
        }
        n = c;
    }
    p->depth--;
    return n;
}

struct jnode *jp_expr(struct jparser *p)
{
    return parse_condition(p, 1);
}

static int ends_tuple(const struct jparser *p, int until_in)
{
    const struct jtok *t = jp_tok(p);
    return t->type == T_BLOCK_END || t->type == T_VAR_END || t->type == T_EOF ||
           (t->type == T_OP && (t->op == OP_RPAREN || t->op == OP_ASSIGN)) ||
           (until_in && jp_is_name(p, "in"));
}

struct jnode *jp_tuple(struct jparser *p, int with_condition, int until_in)
{
    struct jnodes l = {0};
    int commas = 0;
    while (!ends_tuple(p, until_in)) {
        struct jnode *item = until_in ? jp_primary(p) : parse_condition(p, with_condition);
        if (!item || jp_push(p, &l, item)) {
            return NULL;
        }
        if (!jp_skip_op(p, OP_COMMA)) {
            break;
        }
        commas = 1;
    }
    if (l.n == 0) {
        return jp_fail_null(p, "expected an expression", NULL);
    }
    if (l.n == 1 && !commas) {
        return l.v[0];
    }
    struct jnode *n = jp_node(p, N_TUPLE);
    if (n) {
        n->list = l.v;
        n->n = l.n;
    }
    return n;
}
