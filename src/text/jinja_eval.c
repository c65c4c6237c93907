/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the syntax tree: expressions to values, statements to output. One C function per form;
 * every node costs a step, every byte copied or compared is charged (jwork), so that no template
 * can run away with a request. */
#include "text/jinja_int.h"

#include "base/utf8.h"
#include <math.h>
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

/* ---- attributes and items ---- */

static int loop_attribute(struct jinja_run *r, const struct jobject *o, const char *name,
                          struct jval *out)
{
    int64_t i = (int64_t)o->index, n = (int64_t)o->items->n;
    static const char *const names[] = {"index", "index0", "revindex", "revindex0", "first",
                                        "last",  "length", "depth",    "depth0"};
    const int64_t values[] = {i + 1,      i, n - i,    n - i - 1,   i == 0,
                              i == n - 1, n, o->depth, o->depth - 1};
    for (size_t k = 0; k < sizeof(values) / sizeof(*values); k++) {
        if (!strcmp(name, names[k])) {
            *out = k == 4 || k == 5 ? jinja_bool((int)values[k]) : jint(values[k]);
            return 1;
        }
    }
    if (!strcmp(name, "previtem") || !strcmp(name, "nextitem")) {
        int64_t at = name[0] == 'p' ? i - 1 : i + 1;
        *out = at >= 0 && at < n ? o->items->v[at] : jundefined(r, "there is no %s", name);
        return 1;
    }
    return 0;
}

static struct jval no_attribute(struct jinja_run *r, struct jval v, const char *name, int is_string)
{
    return jundefined(r, "'%s%s' has no %s %s%s%s", v.kind == J_NONE ? "None" : jtype(v),
                      v.kind == J_NONE ? "" : " object", is_string ? "attribute" : "element",
                      is_string ? "'" : "", name, is_string ? "'" : "");
}

/* Methods and loop attributes; 1 when there is one. */
static int method_attribute(struct jinja_run *r, struct jval v, const char *name, struct jval *out)
{
    if (v.kind == J_LOOP && loop_attribute(r, v.u.object, name, out)) {
        return 1;
    }
    int id = jmethod_id(v.kind, name);
    struct jobject *o = id >= 0 ? jalloc(r, sizeof(*o)) : NULL;
    if (!o) {
        return 0;
    }
    o->id = id;
    o->self = v;
    *out = (struct jval){.kind = J_METHOD, .u.object = o};
    return 1;
}

int jgetattr(struct jinja_run *r, struct jval v, const char *name, struct jval *out)
{
    if (v.kind == J_UNDEFINED) {
        return jundefined_error(r, v);
    }
    if (method_attribute(r, v, name, out)) {
        return 0;
    }
    if (v.kind == J_DICT || v.kind == J_NAMESPACE) {
        r->work += v.u.dict->n;
        const struct jval *item = jdict_find_name(v.u.dict, name);
        if (item) {
            *out = *item;
            return 0;
        }
    }
    *out = no_attribute(r, v, name, 1);
    return 0;
}

static int char_at(struct jinja_run *r, const struct jstr *s, int64_t i, struct jval *out)
{
    int64_t n = (int64_t)utf8_count(s->s, s->n);
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n) {
        return 0;
    }
    size_t from = jchar_offset(s, (size_t)i);
    struct jstr rest = {.s = s->s + from, .n = s->n - from};
    *out = jsub(r, s, from, from + jchar_offset(&rest, 1));
    return 1;
}

int jgetitem(struct jinja_run *r, struct jval v, struct jval key, struct jval *out)
{
    char text[64] = "?";
    int is_string = key.kind == J_STR;
    if (v.kind == J_UNDEFINED) {
        return jundefined_error(r, v);
    }
    if (v.kind == J_DICT) {
        const struct jval *item = jdict_find(r, v.u.dict, key);
        if (item) {
            *out = *item;
            return jwork(r, 1);
        }
    } else if ((v.kind == J_LIST || v.kind == J_TUPLE) &&
               (key.kind == J_INT || key.kind == J_BOOL)) {
        int64_t n = (int64_t)v.u.list->n, i = key.u.i < 0 ? key.u.i + n : key.u.i;
        if (i >= 0 && i < n) {
            *out = v.u.list->v[i];
            return 0;
        }
    } else if (v.kind == J_STR && (key.kind == J_INT || key.kind == J_BOOL)) {
        if (jwork(r, v.u.s->n) || char_at(r, v.u.s, key.u.i, out)) {
            return r->work > JINJA_WORK_BYTES_MAX ? ERR_INVALID : 0;
        }
    }
    if (is_string) {
        char name[256];
        size_t n = key.u.s->n < sizeof(name) ? key.u.s->n : 0;
        memcpy(name, key.u.s->s, n);
        name[n] = 0;
        if (n && strlen(name) == n) {
            if (v.kind == J_NAMESPACE || v.kind == J_LOOP) {
                return jgetattr(r, v, name, out);
            }
            if (method_attribute(r, v, name, out)) {
                return 0;
            }
        }
        *out = no_attribute(r, v, name, 1);
        return 0;
    }
    struct jval s;
    if (!jstring(r, key, &s)) {
        size_t n = s.u.s->n < sizeof(text) ? s.u.s->n : sizeof(text) - 1;
        memcpy(text, s.u.s->s, utf8_valid_prefix(s.u.s->s, n));
        text[utf8_valid_prefix(s.u.s->s, n)] = 0;
    }
    *out = no_attribute(r, v, text, 0);
    return 0;
}

/* Python's slice.indices. */
static int slice_bounds(struct jinja_run *r, const struct jval part[3], int64_t n, int64_t b[3])
{
    for (int i = 0; i < 3; i++) {
        if (part[i].kind == J_UNDEFINED) {
            return jundefined_error(r, part[i]);
        }
        if (part[i].kind != J_NONE && part[i].kind != J_INT && part[i].kind != J_BOOL) {
            return jfail(r, "slice indices must be integers or None");
        }
    }
    b[2] = part[2].kind == J_NONE ? 1 : part[2].u.i;
    if (b[2] == 0) {
        return jfail(r, "slice step cannot be zero");
    }
    int64_t low = b[2] > 0 ? 0 : -1, high = b[2] > 0 ? n : n - 1;
    for (int i = 0; i < 2; i++) {
        if (part[i].kind == J_NONE) {
            b[i] = (b[2] > 0) == (i == 0) ? low : high;
            continue;
        }
        int64_t x = part[i].u.i;
        x = x < 0 ? (x < -n ? low : x + n) : x;
        b[i] = x < low ? low : x > high ? high : x;
    }
    return 0;
}

static int slice_string(struct jinja_run *r, const struct jstr *s, const struct jval part[3],
                        struct jval *out)
{
    int64_t b[3];
    struct jval chars;
    struct jlist *l;
    if (slice_bounds(r, part, (int64_t)utf8_count(s->s, s->n), b) || jwork(r, s->n)) {
        return ERR_INVALID;
    }
    if (b[2] == 1) {
        size_t from = jchar_offset(s, (size_t)b[0]);
        size_t to = b[1] > b[0] ? jchar_offset(s, (size_t)b[1]) : from;
        *out = jsub(r, s, from, to);
        return 0;
    }
    chars.kind = J_STR;
    chars.u.s = s;
    if (jiterate(r, chars, &l)) {
        return ERR_INVALID;
    }
    struct jsb sb;
    jsb_init(&sb);
    for (int64_t i = b[0]; b[2] > 0 ? i < b[1] : i > b[1];) {
        jsb_add(&sb, l->v[i].u.s, 0, l->v[i].u.s->n);
        if (__builtin_add_overflow(i, b[2], &i)) {
            break;
        }
    }
    return jsb_value(r, &sb, out);
}

static int eval_slice(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jval v, part[3];
    int64_t b[3];
    if (eval(r, n->a, &v)) {
        return ERR_INVALID;
    }
    for (int i = 0; i < 3; i++) {
        part[i] = jnone();
        if (n->list[i] && eval(r, n->list[i], &part[i])) {
            return ERR_INVALID;
        }
    }
    if (v.kind == J_STR) {
        return slice_string(r, v.u.s, part, out);
    }
    if (v.kind == J_UNDEFINED) {
        return jundefined_error(r, v);
    }
    if (v.kind != J_LIST && v.kind != J_TUPLE) {
        *out = no_attribute(r, v, "slice", 0);
        return 0;
    }
    if (slice_bounds(r, part, (int64_t)v.u.list->n, b)) {
        return ERR_INVALID;
    }
    *out = jinja_list(r);
    for (int64_t i = b[0]; b[2] > 0 ? i < b[1] : i > b[1];) {
        jinja_list_add(r, *out, v.u.list->v[i]);
        if (__builtin_add_overflow(i, b[2], &i)) {
            break;
        }
    }
    if (out->kind == J_LIST) {
        out->kind = v.kind;
    }
    return r->failed_alloc ? ERR_INVALID : jwork(r, v.u.list->n);
}

/* ---- operators ---- */

static int is_number(struct jval v)
{
    return v.kind == J_BOOL || v.kind == J_INT || v.kind == J_FLOAT;
}

static double as_double(struct jval v)
{
    return v.kind == J_FLOAT ? v.u.f : (double)v.u.i;
}

static int power(struct jinja_run *r, int64_t base, int64_t exponent, struct jval *out)
{
    int64_t v = 1;
    if (exponent < 0) {
        if (base == 0) {
            return jfail(r, "0.0 cannot be raised to a negative power");
        }
        *out = jfloat(pow((double)base, (double)exponent));
        return 0;
    }
    if (base == 0 || base == 1 || base == -1) {
        *out = jint(exponent == 0 ? 1 : base == -1 && exponent % 2 ? -1 : base == -1 ? 1 : base);
        return 0;
    }
    for (int64_t i = 0; i < exponent; i++) {
        if (__builtin_mul_overflow(v, base, &v)) {
            return jfail(r, "an integer is too large");
        }
    }
    *out = jint(v);
    return 0;
}

static int int_op(struct jinja_run *r, enum jop op, int64_t a, int64_t b, struct jval *out)
{
    int64_t v = 0;
    int overflow = 0;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0) {
        return jfail(r, op == OP_DIV ? "division by zero" : "integer division or modulo by zero");
    }
    switch (op) {
    case OP_ADD:
        overflow = __builtin_add_overflow(a, b, &v);
        break;
    case OP_SUB:
        overflow = __builtin_sub_overflow(a, b, &v);
        break;
    case OP_MUL:
        overflow = __builtin_mul_overflow(a, b, &v);
        break;
    case OP_DIV:
        *out = jfloat((double)a / (double)b);
        return 0;
    case OP_FLOORDIV:
        overflow = a == INT64_MIN && b == -1;
        v = overflow ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case OP_MOD:
        v = b == -1 ? 0 : a % b;
        v += v && (v < 0) != (b < 0) ? b : 0;
        break;
    default:
        return power(r, a, b, out);
    }
    *out = jint(v);
    return overflow ? jfail(r, "an integer is too large") : 0;
}

static int float_op(struct jinja_run *r, enum jop op, double a, double b, struct jval *out)
{
    double v;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0) {
        return jfail(r, op == OP_MOD   ? "float modulo"
                        : op == OP_DIV ? "float division by zero"
                                       : "float floor division by zero");
    }
    switch (op) {
    case OP_ADD:
        v = a + b;
        break;
    case OP_SUB:
        v = a - b;
        break;
    case OP_MUL:
        v = a * b;
        break;
    case OP_DIV:
        v = a / b;
        break;
    case OP_FLOORDIV:
    case OP_MOD: {
        double m = fmod(a, b);
        double div = (a - m) / b;
        if (m != 0 && (b < 0) != (m < 0)) {
            m += b;
            div -= 1;
        } else if (m == 0) {
            m = copysign(0, b);
        }
        double whole = div != 0 ? floor(div) : copysign(0, a / b);
        whole += div != 0 && div - whole > 0.5 ? 1 : 0;
        v = op == OP_MOD ? m : whole;
        break;
    }
    default:
        if (a == 0 && b < 0) {
            return jfail(r, "0.0 cannot be raised to a negative power");
        }
        if (a < 0 && b != floor(b)) {
            return jfail(r, "complex numbers are not supported");
        }
        v = pow(a, b);
    }
    *out = jfloat(v);
    return 0;
}

static int repeat(struct jinja_run *r, struct jval v, int64_t times, struct jval *out)
{
    times = times < 0 ? 0 : times;
    if (v.kind == J_STR) {
        struct jsb b;
        if (v.u.s->n && times > (int64_t)(JINJA_OUTPUT_BYTES_MAX / v.u.s->n)) {
            return jfail(r, "a string is too large");
        }
        jsb_init(&b);
        for (int64_t i = 0; v.u.s->n && i < times; i++) {
            jsb_add(&b, v.u.s, 0, v.u.s->n);
        }
        return jsb_value(r, &b, out);
    }
    if (v.u.list->n && times > (int64_t)(JINJA_RANGE_MAX / v.u.list->n)) {
        return jfail(r, "a list is too large");
    }
    *out = jinja_list(r);
    for (int64_t i = 0; v.u.list->n && i < times; i++) {
        for (size_t k = 0; k < v.u.list->n; k++) {
            jinja_list_add(r, *out, v.u.list->v[k]);
        }
    }
    if (out->kind == J_LIST) {
        out->kind = v.kind;
    }
    return r->failed_alloc ? ERR_INVALID : 0;
}

static int concat(struct jinja_run *r, struct jval a, struct jval b, struct jval *out)
{
    if (a.kind == J_STR) {
        struct jsb s;
        if (a.u.s->n + b.u.s->n > JINJA_OUTPUT_BYTES_MAX) {
            return jfail(r, "a string is too large");
        }
        jsb_init(&s);
        jsb_add(&s, a.u.s, 0, a.u.s->n);
        jsb_add(&s, b.u.s, 0, b.u.s->n);
        return jsb_value(r, &s, out);
    }
    *out = jinja_list(r);
    for (size_t i = 0; i < a.u.list->n; i++) {
        jinja_list_add(r, *out, a.u.list->v[i]);
    }
    for (size_t i = 0; i < b.u.list->n; i++) {
        jinja_list_add(r, *out, b.u.list->v[i]);
    }
    if (out->kind == J_LIST) {
        out->kind = a.kind;
    }
    return r->failed_alloc ? ERR_INVALID : jwork(r, (a.u.list->n + b.u.list->n) * 8);
}

static int binary(struct jinja_run *r, enum jop op, struct jval a, struct jval b, struct jval *out)
{
    static const char *const names[] = {
        [OP_ADD] = "+",       [OP_SUB] = "-", [OP_MUL] = "*",          [OP_DIV] = "/",
        [OP_FLOORDIV] = "//", [OP_MOD] = "%", [OP_POW] = "** or pow()"};
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED) {
        return jundefined_error(r, a.kind == J_UNDEFINED ? a : b);
    }
    if (is_number(a) && is_number(b)) {
        return a.kind == J_FLOAT || b.kind == J_FLOAT
                   ? float_op(r, op, as_double(a), as_double(b), out)
                   : int_op(r, op, a.u.i, b.u.i, out);
    }
    int a_seq = a.kind == J_STR || a.kind == J_LIST || a.kind == J_TUPLE;
    int b_seq = b.kind == J_STR || b.kind == J_LIST || b.kind == J_TUPLE;
    if (op == OP_ADD && a_seq && a.kind == b.kind) {
        return concat(r, a, b, out);
    }
    if (op == OP_MUL && a_seq && (b.kind == J_INT || b.kind == J_BOOL)) {
        return repeat(r, a, b.u.i, out);
    }
    if (op == OP_MUL && b_seq && (a.kind == J_INT || a.kind == J_BOOL)) {
        return repeat(r, b, a.u.i, out);
    }
    if (op == OP_ADD && a_seq) {
        return jfail(r, "can only concatenate %s (not \"%s\") to %s", jtype(a), jtype(b), jtype(a));
    }
    if (op == OP_MOD && a.kind == J_STR) {
        return jfail(r, "formatting with %% is not supported");
    }
    return jfail(r, "unsupported operand type(s) for %s: '%s' and '%s'", names[op], jtype(a),
                 jtype(b));
}

int jcontains(struct jinja_run *r, struct jval item, struct jval in, int *out)
{
    struct jlist *l;
    *out = 0;
    if (in.kind == J_STR) {
        if (item.kind != J_STR) {
            return jfail(r, "'in <string>' requires string as left operand, not %s", jtype(item));
        }
        *out = item.u.s->n == 0 || memmem(in.u.s->s, in.u.s->n, item.u.s->s, item.u.s->n) != NULL;
        return jwork(r, in.u.s->n);
    }
    if (in.kind == J_DICT) {
        *out = jdict_find(r, in.u.dict, item) != NULL;
        return jwork(r, 1);
    }
    if (in.kind != J_LIST && in.kind != J_TUPLE && in.kind != J_UNDEFINED) {
        return jfail(r, "argument of type '%s' is not iterable", jtype(in));
    }
    if (jiterate(r, in, &l)) {
        return ERR_INVALID;
    }
    for (size_t i = 0; i < l->n && !*out; i++) {
        if (jequal(r, l->v[i], item, out)) {
            return ERR_INVALID;
        }
    }
    return jwork(r, l->n);
}

static int compare(struct jinja_run *r, enum jop op, struct jval a, struct jval b, int *out)
{
    int rc;
    switch (op) {
    case OP_EQ:
    case OP_NE:
        rc = jequal(r, a, b, out);
        *out = *out == (op == OP_EQ);
        return rc;
    case OP_LT:
        return jless(r, a, b, "<", out);
    case OP_GT:
        return jless(r, b, a, ">", out);
    case OP_LE:
    case OP_GE:
        if (is_number(a) && is_number(b) && (isnan(as_double(a)) || isnan(as_double(b)))) {
            *out = 0;
            return 0;
        }
        rc = op == OP_LE ? jless(r, b, a, "<=", out) : jless(r, a, b, ">=", out);
        *out = !*out;
        return rc;
    default:
        rc = jcontains(r, a, b, out);
        *out = *out == (op == OP_IN);
        return rc;
    }
}

static int eval_compare(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jval left, right;
    int yes = 1;
    if (eval(r, n->a, &left)) {
        return ERR_INVALID;
    }
    for (size_t i = 0; i < n->n && yes; i++) {
        if (eval(r, n->list[i], &right) || compare(r, n->ops[i], left, right, &yes)) {
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

static int negate(struct jinja_run *r, const struct jnode *n, struct jval *out)
{
    struct jval v;
    if (eval(r, n->a, &v)) {
        return ERR_INVALID;
    }
    if (v.kind == J_UNDEFINED) {
        return jundefined_error(r, v);
    }
    if (!is_number(v)) {
        return jfail(r, "bad operand type for unary %c: '%s'", n->type == N_NEG ? '-' : '+',
                     jtype(v));
    }
    if (v.kind == J_FLOAT) {
        *out = jfloat(n->type == N_NEG ? -v.u.f : v.u.f);
    } else {
        *out = jint(n->type == N_NEG && v.u.i != INT64_MIN ? -v.u.i : v.u.i);
    }
    return 0;
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
        return negate(r, n, out);
    case N_BINARY:
        return eval(r, n->a, &a) || eval(r, n->b, &b) ? ERR_INVALID : binary(r, n->op, a, b, out);
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
