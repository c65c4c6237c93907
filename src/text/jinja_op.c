/* SPDX-License-Identifier: Apache-2.0 */
/* What can be done with values that are there: attributes, items, slices, operators. */
#include "text/jinja_int.h"

#include "base/utf8.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

int jslice(struct jinja_run *r, struct jval v, const struct jval part[3], struct jval *out)
{
    int64_t b[3];
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

int jbinary(struct jinja_run *r, enum jop op, struct jval a, struct jval b, struct jval *out)
{
    static const char *const names[] = {
        [OP_ADD] = "+",       [OP_SUB] = "-", [OP_MUL] = "*",          [OP_DIV] = "/",
        [OP_FLOORDIV] = "//", [OP_MOD] = "%", [OP_POW] = "** or pow()"};
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED) {
        return jundefined_error(r, a.kind == J_UNDEFINED ? a : b);
    }
    if (jis_number(a) && jis_number(b)) {
        return a.kind == J_FLOAT || b.kind == J_FLOAT ? float_op(r, op, jdouble(a), jdouble(b), out)
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

int jcompare(struct jinja_run *r, enum jop op, struct jval a, struct jval b, int *out)
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
        if (jis_number(a) && jis_number(b) && (isnan(jdouble(a)) || isnan(jdouble(b)))) {
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

int jsign(struct jinja_run *r, int minus, struct jval v, struct jval *out)
{
    if (v.kind == J_UNDEFINED) {
        return jundefined_error(r, v);
    }
    if (!jis_number(v)) {
        return jfail(r, "bad operand type for unary %c: '%s'", minus ? '-' : '+', jtype(v));
    }
    if (v.kind == J_FLOAT) {
        *out = jfloat(minus ? -v.u.f : v.u.f);
    } else {
        *out = jint(minus && v.u.i != INT64_MIN ? -v.u.i : v.u.i);
    }
    return 0;
}
