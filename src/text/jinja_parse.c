/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens -> syntax tree: statements and whole templates, and what can be said of a template before
 * it is rendered. Expressions are in jinja_expr.c. */
#include "text/jinja_int.h"

#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

#define ELIF_MAX 200 /* they nest in the tree */

static int parse_body(struct jparser *p, struct jnodes *out, const char *const *ends);

/* ---- statements ---- */

static int check_target(struct jparser *p, const struct jnode *n, int attribute_allowed)
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
    return jp_fail(p, "this cannot be assigned to", NULL);
}

/* Body up to an end tag; leaves the parser on the name inside of the end tag. */
static int parse_block_body(struct jparser *p, struct jnode ***body, size_t *n,
                            const char *const *ends)
{
    struct jnodes l = {0};
    if (parse_body(p, &l, ends)) {
        return -1;
    }
    *body = l.v;
    *n = l.n;
    return 0;
}

static int expect_block_end(struct jparser *p)
{
    if (jp_tok(p)->type != T_BLOCK_END) {
        return jp_fail(p, "expected the end of the block tag", NULL);
    }
    p->pos++;
    return 0;
}

/* "{% end… %}" whose name is the current token. */
static int end_statement(struct jparser *p)
{
    p->pos++;
    return expect_block_end(p);
}

static struct jnode *parse_if(struct jparser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct jnode *n = jp_node(p, S_IF), *at = n;
    for (int arms = 0;; arms++) {
        if (arms > ELIF_MAX) {
            return jp_fail_null(p, "too many elif tags", NULL);
        }
        if (!at || !(at->a = jp_tuple(p, 0, 0)) || expect_block_end(p) ||
            parse_block_body(p, &at->body, &at->n_body, ends)) {
            return NULL;
        }
        if (!jp_skip_name(p, "elif")) {
            break;
        }
        struct jnode *next = jp_node(p, S_IF);
        struct jnodes l = {0};
        if (!next || jp_push(p, &l, next)) {
            return NULL;
        }
        at->orelse = l.v;
        at->n_orelse = 1;
        at = next;
    }
    if (jp_is_name(p, "else")) {
        if (end_statement(p) || parse_block_body(p, &at->orelse, &at->n_orelse, last)) {
            return NULL;
        }
    }
    return end_statement(p) ? NULL : n;
}

static struct jnode *parse_for(struct jparser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    struct jnode *n = jp_node(p, S_FOR);
    if (!n || !(n->a = jp_tuple(p, 0, 1)) || check_target(p, n->a, 0)) {
        return NULL;
    }
    if (!jp_skip_name(p, "in")) {
        return jp_fail_null(p, "expected 'in' after the loop variable", NULL);
    }
    if (!(n->b = jp_tuple(p, 0, 0)) || (jp_skip_name(p, "if") && !(n->c = jp_expr(p)))) {
        return NULL;
    }
    if (jp_is_name(p, "recursive")) {
        return jp_fail_null(p, "recursive loops are not supported", NULL);
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
    if (jp_is_name(p, "else") &&
        (end_statement(p) || parse_block_body(p, &n->orelse, &n->n_orelse, last))) {
        return NULL;
    }
    return end_statement(p) ? NULL : n;
}

static struct jnode *parse_set(struct jparser *p)
{
    static const char *const ends[] = {"endset", NULL};
    struct jnode *n = jp_node(p, S_SET);
    struct jnodes l = {0};
    do {
        struct jnode *t = jp_postfix(p, jp_primary(p));
        if (!n || !t || check_target(p, t, 1) || jp_push(p, &l, t)) {
            return NULL;
        }
    } while (jp_skip_op(p, OP_COMMA));
    n->a = l.v[0];
    if (l.n > 1) {
        n->a = jp_node(p, N_TUPLE);
        if (!n->a) {
            return NULL;
        }
        n->a->list = l.v;
        n->a->n = l.n;
        if (check_target(p, n->a, 0)) {
            return NULL;
        }
    }
    if (jp_skip_op(p, OP_ASSIGN)) {
        n->b = jp_tuple(p, 1, 0);
        return n->b && !expect_block_end(p) ? n : NULL;
    }
    n->type = S_SETBLOCK;
    if (jp_is_op(p, OP_PIPE)) {
        n->b = jp_filters(p, jp_constant(p, (struct jval){.kind = J_NONE}));
        if (!n->b) {
            return NULL;
        }
    }
    if (expect_block_end(p) || parse_block_body(p, &n->body, &n->n_body, ends)) {
        return NULL;
    }
    return end_statement(p) ? NULL : n;
}

static struct jnode *parse_macro(struct jparser *p)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct jnode *n = jp_node(p, S_MACRO);
    struct jnodes params = {0};
    struct jkwarg defaults[32];
    if (!n || !(n->name = jp_expect_name(p)) || jp_expect_op(p, OP_LPAREN, "(")) {
        return NULL;
    }
    while (!jp_is_op(p, OP_RPAREN)) {
        struct jnode *name = jp_node(p, N_NAME);
        if (!name || !(name->name = jp_expect_name(p))) {
            return NULL;
        }
        if (params.n == 32) {
            return jp_fail_null(p, "too many macro parameters", NULL);
        }
        struct jkwarg *d = &defaults[params.n];
        *d = (struct jkwarg){name->name, NULL};
        if (jp_push(p, &params, name) || (jp_skip_op(p, OP_ASSIGN) && !(d->value = jp_expr(p)))) {
            return NULL;
        }
        if (!jp_skip_op(p, OP_COMMA) && !jp_is_op(p, OP_RPAREN)) {
            return jp_fail_null(p, "expected ',' or ')' in macro parameters", NULL);
        }
    }
    p->pos++;
    n->list = params.v;
    n->n = n->n_kw = params.n;
    if (params.n) {
        n->kw = jp_alloc(p, params.n * sizeof(*n->kw));
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

static struct jnode *parse_with(struct jparser *p)
{
    static const char *const ends[] = {"endwith", NULL};
    struct jnode *n = jp_node(p, S_WITH);
    struct jnodes l = {0};
    while (jp_tok(p)->type != T_BLOCK_END) {
        struct jnode *target = jp_primary(p);
        if (!n || !target || check_target(p, target, 0) || jp_expect_op(p, OP_ASSIGN, "=")) {
            return NULL;
        }
        struct jnode *value = jp_expr(p);
        if (!value || jp_push(p, &l, target) || jp_push(p, &l, value)) {
            return NULL;
        }
        if (!jp_skip_op(p, OP_COMMA) && jp_tok(p)->type != T_BLOCK_END) {
            return jp_fail_null(p, "expected ',' in a with tag", NULL);
        }
    }
    if (!n || expect_block_end(p) || parse_block_body(p, &n->body, &n->n_body, ends)) {
        return NULL;
    }
    n->list = l.v;
    n->n = l.n;
    return end_statement(p) ? NULL : n;
}

static struct jnode *parse_simple(struct jparser *p, enum jnode_type type)
{
    if (!p->loops) {
        return jp_fail_null(p, "outside of a loop:", type == S_BREAK ? "break" : "continue");
    }
    struct jnode *n = jp_node(p, type);
    return n && !expect_block_end(p) ? n : NULL;
}

static struct jnode *parse_generation(struct jparser *p)
{
    static const char *const ends[] = {"endgeneration", NULL};
    struct jnode *n = jp_node(p, S_BODY);
    if (!n || expect_block_end(p) || parse_block_body(p, &n->body, &n->n_body, ends)) {
        return NULL;
    }
    return end_statement(p) ? NULL : n;
}

static struct jnode *parse_statement(struct jparser *p)
{
    const char *name = jp_expect_name(p);
    if (!name || jp_enter(p)) {
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
        return jp_fail_null(p, "unknown or unsupported tag", name);
    }
    p->depth--;
    return n;
}

static int is_end(const struct jparser *p, const char *const *ends)
{
    for (size_t i = 0; ends && ends[i]; i++) {
        if (jp_is_name(p, ends[i])) {
            return 1;
        }
    }
    return 0;
}

static int parse_body(struct jparser *p, struct jnodes *out, const char *const *ends)
{
    for (;;) {
        const struct jtok *t = jp_tok(p);
        struct jnode *n;
        switch (t->type) {
        case T_DATA:
            n = jp_string_constant(p, t->s, t->n);
            if (n) {
                n->type = S_TEXT;
            }
            p->pos++;
            break;
        case T_VAR_BEGIN:
            p->pos++;
            n = jp_node(p, S_PRINT);
            if (n && !(n->a = jp_tuple(p, 1, 0))) {
                return -1;
            }
            if (jp_tok(p)->type != T_VAR_END) {
                return jp_fail(p, "expected the end of the expression", NULL);
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
            return ends ? jp_fail(p, "the template ends inside of a block; missing", ends[0]) : 0;
        }
        if (!n || jp_push(p, out, n)) {
            return -1;
        }
    }
}

int jinja_parse(struct jinja **out, const char *source, size_t n_bytes, const char *name,
                struct err *e)
{
    struct err local = {0};
    struct jinja *t = calloc(1, sizeof(*t));
    struct jnodes l = {0};
    struct jparser p = {.name = name, .e = e ? e : &local};
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
    t->root = jp_node(&p, S_BODY);
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
