/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the syntax tree: expressions to values, statements to output. One C function per form;
 * every node costs a step, every byte copied or compared is charged (jwork), so that no template
 * can run away with a request. */
#include "text/jinja_int.h"

#include <stdlib.h>
#include <string.h>

enum flow { FLOW_NEXT = 0, FLOW_BREAK = 1, FLOW_CONTINUE = 2 };

#define CALL_ARGS_MAX 64

static int eval(struct jinja_run *r, const struct jnode *n, struct jval *out);
static int exec_body(struct jinja_run *r, struct jnode *const *body, size_t n);

/* ---- scopes ---- */

static struct jval *find_name(struct jscope *s, const char *name)
{
    for (; s; s = s->parent) {
        for (struct jbinding *b = s->first; b; b = b->next) {
            if (!strcmp(b->name, name)) {
                return &b->value;
            }
        }
    }
    return NULL;
}

static int set_name(struct jinja_run *r, struct jscope *s, const char *name, struct jval v)
{
    for (struct jbinding *b = s->first; b; b = b->next) {
        if (!strcmp(b->name, name)) {
            b->value = v;
            return 0;
        }
    }
    struct jbinding *b = jalloc(r, sizeof(*b));
    if (!b) {
        return ERR_INVALID;
    }
    *b = (struct jbinding){name, v, s->first};
    s->first = b;
    return 0;
}

static int eval_name(struct jinja_run *r, const char *name, struct jval *out)
{
    const struct jval *v = find_name(r->scope, name);
    if (v) {
        *out = *v;
        return 0;
    }
    int id = jfunction_id(name);
    if (id < 0) {
        *out = jundefined(r, "'%s' is undefined", name);
        return 0;
    }
    struct jobject *o = jalloc(r, sizeof(*o));
    if (!o) {
        return ERR_INVALID;
    }
    o->id = id;
    *out = (struct jval){.kind = J_FUNCTION, .u.object = o};
    return 0;
}

/* ---- forms over values (jinja_op.c) ---- */

static int eval_slice(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jval v, part[3];
    if (eval(r, n->a, &v)) {
        return ERR_INVALID;
    }
    for (int i = 0; i < 3; i++) {
        part[i] = jnone();
        if (n->list[i] && eval(r, n->list[i], &part[i])) {
            return ERR_INVALID;
        }
    }
    return jslice(r, v, part, out);
}

static int eval_compare(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jval left, right;
    int yes = 1;
    if (eval(r, n->a, &left)) {
        return ERR_INVALID;
    }
    for (size_t i = 0; i < n->n && yes; i++) {
        if (eval(r, n->list[i], &right) || jcompare(r, n->ops[i], left, right, &yes)) {
            return ERR_INVALID;
        }
        left = right;
    }
    *out = jinja_bool(yes);
    return 0;
}

static int eval_concat(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jsb b;
    int rc = 0;
    jsb_init(&b);
    for (size_t i = 0; i < n->n && !rc; i++) {
        struct jval v;
        rc = eval(r, n->list[i], &v);
        rc = rc ? rc : jstring(r, v, &v);
        if (!rc) {
            jsb_add(&b, v.u.s, 0, v.u.s->n);
            rc = b.text.len > JINJA_OUTPUT_BYTES_MAX ? jfail(r, "a string is too large") : 0;
        }
    }
    if (rc) {
        jsb_fini(&b);
        return rc;
    }
    return jsb_value(r, &b, out);
}

static int eval_sign(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jval v;
    return eval(r, n->a, &v) ? ERR_INVALID : jsign(r, n->type == N_NEG, v, out);
}

/* ---- calls ---- */

static int eval_args(struct jinja_run *r, const struct jnode *n, struct jargs *a)
{
    if (n->n > CALL_ARGS_MAX) {
        return jfail(r, "too many arguments");
    }
    *a = (struct jargs){.n = n->n, .n_kw = n->n_kw};
    if (n->n + n->n_kw == 0) {
        return 0;
    }
    a->v = jalloc(r, (n->n + n->n_kw) * sizeof(*a->v));
    a->kw_name = jalloc(r, (n->n_kw + 1) * sizeof(*a->kw_name));
    if (!a->v || !a->kw_name) {
        return ERR_INVALID;
    }
    a->kw_value = a->v + n->n;
    for (size_t i = 0; i < n->n; i++) {
        if (eval(r, n->list[i], &a->v[i])) {
            return ERR_INVALID;
        }
    }
    for (size_t i = 0; i < n->n_kw; i++) {
        a->kw_name[i] = n->kw[i].name;
        if (eval(r, n->kw[i].value, &a->kw_value[i])) {
            return ERR_INVALID;
        }
    }
    return 0;
}

static int bind_macro(struct jinja_run *r, const struct jnode *m, const struct jargs *a,
                      struct jscope *scope)
{
    if (a->n > m->n) {
        return jfail(r, "macro '%s' takes not more than %zu argument(s)", m->name, m->n);
    }
    for (size_t k = 0; k < a->n_kw; k++) {
        size_t i = 0;
        while (i < m->n && strcmp(m->list[i]->name, a->kw_name[k])) {
            i++;
        }
        if (i == m->n) {
            return jfail(r, "macro '%s' takes no keyword argument '%s'", m->name, a->kw_name[k]);
        }
        if (i < a->n) {
            return jfail(r, "macro '%s' got two values for '%s'", m->name, a->kw_name[k]);
        }
    }
    for (size_t i = 0; i < m->n; i++) {
        const char *name = m->list[i]->name;
        struct jval v = jundefined(r, "parameter '%s' was not provided", name);
        int found = i < a->n;
        if (found) {
            v = a->v[i];
        }
        for (size_t k = 0; k < a->n_kw && !found; k++) {
            if (!strcmp(a->kw_name[k], name)) {
                v = a->kw_value[k];
                found = 1;
            }
        }
        if (!found && m->kw[i].value && eval(r, m->kw[i].value, &v)) {
            return ERR_INVALID;
        }
        if (set_name(r, scope, name, v)) {
            return ERR_INVALID;
        }
    }
    return 0;
}

static int call_macro(struct jinja_run *r, const struct jobject *o, const struct jargs *a,
                      struct jval *out)
{
    const struct jnode *m = o->node;
    struct jscope *saved = r->scope;
    struct jscope scope = {.parent = o->scope};
    struct jout capture = {.parent = r->out};
    if (++r->macro_depth > JINJA_CALL_DEPTH_MAX) {
        return jfail(r, "macros call each other too deeply");
    }
    struct jscope *heap = jalloc(r, sizeof(*heap)); /* macros defined inside may outlive the call */
    if (!heap) {
        return ERR_INVALID;
    }
    *heap = scope;
    jsb_init(&capture.sb);
    r->scope = heap;
    int rc = bind_macro(r, m, a, heap);
    r->out = &capture;
    rc = rc ? rc : exec_body(r, m->body, m->n_body);
    r->out = capture.parent;
    r->scope = saved;
    r->macro_depth--;
    if (rc) {
        jsb_fini(&capture.sb);
        return rc;
    }
    return jsb_value(r, &capture.sb, out);
}

static int eval_call(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jval f;
    struct jargs a;
    if (eval(r, n->a, &f) || eval_args(r, n, &a)) {
        return ERR_INVALID;
    }
    r->line = n->line;
    switch (f.kind) {
    case J_UNDEFINED:
        return jundefined_error(r, f);
    case J_FUNCTION:
        return jfunction(r, f.u.object->id, &a, out);
    case J_METHOD:
        return jmethod(r, f.u.object->id, f.u.object->self, &a, out);
    case J_MACRO:
        return call_macro(r, f.u.object, &a, out);
    default:
        return jfail(r, "'%s' object is not callable", jtype(f));
    }
}

/* ---- expressions ---- */

static int eval_items(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jval k, v;
    *out = n->type == N_DICT ? jinja_dict(r) : jinja_list(r);
    for (size_t i = 0; i < n->n; i++) {
        if (eval(r, n->list[i], &v)) {
            return ERR_INVALID;
        }
        if (n->type != N_DICT) {
            jinja_list_add(r, *out, v);
            continue;
        }
        k = v;
        if (eval(r, n->list[++i], &v)) {
            return ERR_INVALID;
        }
        if (k.kind < J_NONE || k.kind > J_STR) {
            return jfail(r, "unhashable type: '%s'", jtype(k));
        }
        jinja_dict_set(r, *out, k, v);
    }
    if (n->type == N_TUPLE && out->kind == J_LIST) {
        out->kind = J_TUPLE;
    }
    return r->failed_alloc ? ERR_INVALID : 0;
}

static int eval_filter(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jval v;
    struct jargs a;
    if (eval(r, n->a, &v) || eval_args(r, n, &a)) {
        return ERR_INVALID;
    }
    r->line = n->line;
    return jfilter(r, n->id, v, &a, out);
}

static int eval_test(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jval v;
    struct jargs a;
    int yes;
    if (eval(r, n->a, &v) || eval_args(r, n, &a)) {
        return ERR_INVALID;
    }
    r->line = n->line;
    int rc = jtest(r, n->id, v, &a, &yes);
    *out = jinja_bool(rc ? 0 : yes);
    return rc;
}

static int eval_condition(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jval c;
    if (eval(r, n->b, &c)) {
        return ERR_INVALID;
    }
    if (jtruth(c)) {
        return eval(r, n->a, out);
    }
    if (n->c) {
        return eval(r, n->c, out);
    }
    *out = jundefined(
        r,
        "the inline if-expression on line %d evaluated to false and no else section was defined.",
        n->line);
    return 0;
}

static int eval_node(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jval a, b;
    switch (n->type) {
    case N_CONST:
        *out = n->value;
        return 0;
    case N_NAME:
        return eval_name(r, n->name, out);
    case N_LIST:
    case N_TUPLE:
    case N_DICT:
        return eval_items(r, n, out);
    case N_ATTR:
        return eval(r, n->a, &a) ? ERR_INVALID : jgetattr(r, a, n->name, out);
    case N_ITEM:
        return eval(r, n->a, &a) || eval(r, n->b, &b) ? ERR_INVALID : jgetitem(r, a, b, out);
    case N_SLICE:
        return eval_slice(r, n, out);
    case N_CALL:
        return eval_call(r, n, out);
    case N_FILTER:
        return eval_filter(r, n, out);
    case N_TEST:
        return eval_test(r, n, out);
    case N_NOT:
        if (eval(r, n->a, &a)) {
            return ERR_INVALID;
        }
        *out = jinja_bool(!jtruth(a));
        return 0;
    case N_NEG:
    case N_POS:
        return eval_sign(r, n, out);
    case N_BINARY:
        return eval(r, n->a, &a) || eval(r, n->b, &b) ? ERR_INVALID : jbinary(r, n->op, a, b, out);
    case N_AND:
    case N_OR:
        if (eval(r, n->a, out)) {
            return ERR_INVALID;
        }
        return jtruth(*out) == (n->type == N_AND) ? eval(r, n->b, out) : 0;
    case N_COND:
        return eval_condition(r, n, out);
    case N_COMPARE:
        return eval_compare(r, n, out);
    case N_CONCAT:
        return eval_concat(r, n, out);
    default:
        return jfail(r, "not an expression");
    }
}

static int step(struct jinja_run *r, const struct jnode *n)
{
    r->line = n->line;
    if (++r->steps > JINJA_STEPS_MAX) {
        return jfail(r, "the template runs for too long (%d steps)", JINJA_STEPS_MAX);
    }
    return 0;
}

static int eval(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    *out = (struct jval){0};
    if (step(r, n)) {
        return ERR_INVALID;
    }
    if (++r->depth > JINJA_EVAL_DEPTH_MAX) {
        return jfail(r, "an expression is nested too deeply");
    }
    int rc = eval_node(r, n, out);
    r->depth--;
    return rc ? rc : r->failed_alloc ? ERR_INVALID : 0;
}

/* ---- statements ---- */

static int emit(struct jinja_run *r, const struct jstr *s)
{
    r->out_bytes += s->n;
    if (r->out_bytes > JINJA_OUTPUT_BYTES_MAX) {
        return jfail(r, "the output is larger than %zu bytes", JINJA_OUTPUT_BYTES_MAX);
    }
    jsb_add(&r->out->sb, s, 0, s->n);
    return 0;
}

static int assign(struct jinja_run *r, struct jscope *scope, const struct jnode *target,
                  struct jval v)
{
    if (target->type == N_NAME) {
        return set_name(r, scope, target->name, v);
    }
    if (target->type == N_ATTR) {
        struct jval *ns = find_name(r->scope, target->a->name);
        if (!ns || ns->kind != J_NAMESPACE) {
            return jfail(r, "cannot assign attribute on non-namespace object");
        }
        jinja_dict_set(r, *ns, jinja_text(r, target->name, strlen(target->name), 1, 0), v);
        return r->failed_alloc ? ERR_INVALID : 0;
    }
    struct jlist *l;
    if (jiterate(r, v, &l)) {
        return ERR_INVALID;
    }
    if (l->n != target->n) {
        return l->n > target->n ? jfail(r, "too many values to unpack (expected %zu)", target->n)
                                : jfail(r, "not enough values to unpack (expected %zu, got %zu)",
                                        target->n, l->n);
    }
    for (size_t i = 0; i < target->n; i++) {
        if (assign(r, scope, target->list[i], l->v[i])) {
            return ERR_INVALID;
        }
    }
    return 0;
}

/* The items a loop runs over: those that pass its filter. */
static int loop_items(struct jinja_run *r, const struct jnode *n, struct jlist **out)
{
    struct jval v;
    if (eval(r, n->b, &v) || jiterate(r, v, out)) {
        return ERR_INVALID;
    }
    if (!n->c) {
        return 0;
    }
    struct jval kept = jinja_list(r);
    struct jscope scope = {.parent = r->scope};
    for (size_t i = 0; i < (*out)->n; i++) {
        struct jval yes;
        r->scope = &scope;
        int rc = assign(r, &scope, n->a, (*out)->v[i]);
        rc = rc ? rc : eval(r, n->c, &yes);
        r->scope = scope.parent;
        if (rc) {
            return rc;
        }
        if (jtruth(yes)) {
            jinja_list_add(r, kept, (*out)->v[i]);
        }
    }
    *out = kept.u.list;
    return r->failed_alloc ? ERR_INVALID : 0;
}

static int exec_for(struct jinja_run *r, const struct jnode *n)
{
    struct jlist *items;
    struct jscope *outer = r->scope;
    struct jobject *loop = jalloc(r, sizeof(*loop));
    if (!loop || loop_items(r, n, &items)) {
        return ERR_INVALID;
    }
    loop->items = items;
    loop->depth = 1;
    if (items->n == 0) {
        return exec_body(r, n->orelse, n->n_orelse);
    }
    int rc = 0;
    for (size_t i = 0; i < items->n && rc != FLOW_BREAK && rc >= 0; i++) {
        struct jscope *scope = jalloc(r, sizeof(*scope));
        if (!scope || step(r, n)) {
            rc = ERR_INVALID;
            break;
        }
        scope->parent = outer;
        r->scope = scope;
        loop->index = i;
        rc = set_name(r, scope, "loop", (struct jval){.kind = J_LOOP, .u.object = loop});
        rc = rc ? rc : assign(r, scope, n->a, items->v[i]);
        rc = rc ? rc : exec_body(r, n->body, n->n_body);
    }
    r->scope = outer;
    return rc < 0 ? rc : 0;
}

/* Runs a body with its output caught. */
static int capture(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jout c = {.parent = r->out};
    struct jscope *scope = jalloc(r, sizeof(*scope));
    if (!scope) {
        return ERR_INVALID;
    }
    scope->parent = r->scope;
    jsb_init(&c.sb);
    r->out = &c;
    r->scope = scope;
    int rc = exec_body(r, n->body, n->n_body);
    r->scope = scope->parent;
    r->out = c.parent;
    if (rc) {
        jsb_fini(&c.sb);
        return rc < 0 ? rc : jfail(r, "break and continue cannot leave a set block");
    }
    return jsb_value(r, &c.sb, out);
}

/* Filters of a set block: their innermost operand stands for the caught text. */
static int apply_filters(struct jinja_run *r, const struct jnode *n, struct jval text,
                         struct jval *out)
{
    struct jargs a;
    if (n->type != N_FILTER) {
        *out = text;
        return 0;
    }
    if (++r->depth > JINJA_EVAL_DEPTH_MAX) {
        return jfail(r, "an expression is nested too deeply");
    }
    int rc = apply_filters(r, n->a, text, &text);
    r->depth--;
    return rc || eval_args(r, n, &a) ? ERR_INVALID : jfilter(r, n->id, text, &a, out);
}

static int exec_set(struct jinja_run *r, const struct jnode *n)
{
    struct jval v;
    if (n->type == S_SET) {
        return eval(r, n->b, &v) ? ERR_INVALID : assign(r, r->scope, n->a, v);
    }
    int rc = capture(r, n, &v);
    if (!rc && n->b) {
        rc = apply_filters(r, n->b, v, &v);
    }
    return rc ? rc : assign(r, r->scope, n->a, v);
}

static int exec_with(struct jinja_run *r, const struct jnode *n)
{
    struct jscope *scope = jalloc(r, sizeof(*scope));
    if (!scope) {
        return ERR_INVALID;
    }
    scope->parent = r->scope;
    for (size_t i = 0; i < n->n; i += 2) {
        struct jval v;
        if (eval(r, n->list[i + 1], &v) || assign(r, scope, n->list[i], v)) {
            return ERR_INVALID;
        }
    }
    r->scope = scope;
    int rc = exec_body(r, n->body, n->n_body);
    r->scope = scope->parent;
    return rc;
}

static int exec_macro(struct jinja_run *r, const struct jnode *n)
{
    struct jobject *o = jalloc(r, sizeof(*o));
    if (!o) {
        return ERR_INVALID;
    }
    o->node = n;
    o->scope = r->scope;
    return set_name(r, r->scope, n->name, (struct jval){.kind = J_MACRO, .u.object = o});
}

static int exec_if(struct jinja_run *r, const struct jnode *n)
{
    struct jval c;
    for (;;) {
        if (eval(r, n->a, &c)) {
            return ERR_INVALID;
        }
        if (jtruth(c)) {
            return exec_body(r, n->body, n->n_body);
        }
        if (n->n_orelse != 1 || n->orelse[0]->type != S_IF) {
            return exec_body(r, n->orelse, n->n_orelse);
        }
        n = n->orelse[0];
    }
}

static int exec(struct jinja_run *r, const struct jnode *n)
{
    struct jval v;
    if (step(r, n)) {
        return ERR_INVALID;
    }
    switch (n->type) {
    case S_TEXT:
        return emit(r, n->value.u.s);
    case S_PRINT:
        return eval(r, n->a, &v) || jstring(r, v, &v) ? ERR_INVALID : emit(r, v.u.s);
    case S_IF:
        return exec_if(r, n);
    case S_FOR:
        return exec_for(r, n);
    case S_SET:
    case S_SETBLOCK:
        return exec_set(r, n);
    case S_MACRO:
        return exec_macro(r, n);
    case S_WITH:
        return exec_with(r, n);
    case S_BREAK:
        return FLOW_BREAK;
    case S_CONTINUE:
        return FLOW_CONTINUE;
    default:
        return exec_body(r, n->body, n->n_body);
    }
}

static int exec_body(struct jinja_run *r, struct jnode *const *body, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = exec(r, body[i]);
    }
    return rc;
}

/* ---- running ---- */

struct jinja_run *jinja_run_new(const struct jinja *t)
{
    struct jinja_run *r = calloc(1, sizeof(*r));
    if (!r) {
        return NULL;
    }
    r->t = t;
    arena_init(&r->arena, 1 << 14);
    r->globals = jalloc(r, sizeof(*r->globals));
    if (!r->globals) {
        jinja_run_free(r);
        return NULL;
    }
    r->scope = r->globals;
    return r;
}

void jinja_run_free(struct jinja_run *r)
{
    if (r) {
        arena_fini(&r->arena);
        free(r);
    }
}

void jinja_run_set(struct jinja_run *r, const char *name, struct jval v)
{
    char *copy = jalloc(r, strlen(name) + 1);
    if (copy) {
        memcpy(copy, name, strlen(name) + 1);
        set_name(r, r->globals, copy, v);
    }
}

int jinja_run_exec(struct jinja_run *r, struct buf *text, struct buf *marks, struct err *e)
{
    struct err local = {0};
    struct jout out = {.parent = NULL};
    struct jscope top = {.parent = r->globals};
    jsb_init(&out.sb);
    r->e = e ? e : &local;
    r->out = &out;
    r->scope = &top;
    int rc = r->failed_alloc ? jfail(r, "the conversation needs too much memory")
                             : exec_body(r, r->t->root->body, r->t->root->n_body);
    rc = rc == 0 && r->failed_alloc ? ERR_INVALID : rc;
    if (rc == 0) {
        size_t n = out.sb.text.len;
        buf_append(text, out.sb.text.data ? out.sb.text.data : "", n);
        if (marks && out.sb.uniform == 2) {
            buf_append(marks, out.sb.marks.data, n);
        } else if (marks && !buf_reserve(marks, n)) {
            memset(marks->data + marks->len, out.sb.uniform == 1, n);
            marks->len += n;
        }
        if (out.sb.text.failed || out.sb.marks.failed || text->failed || (marks && marks->failed)) {
            rc = err_set(r->e, ERR_NOMEM, "out of memory");
        }
    }
    jsb_fini(&out.sb);
    r->scope = r->globals;
    r->out = NULL;
    r->e = NULL;
    return rc < 0 ? rc : 0;
}
