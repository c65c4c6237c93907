/* SPDX-License-Identifier: Apache-2.0 */
/* Tests: what follows "is", and what select and reject take. */
#include "text/jinja_int.h"

#include "base/utf8.h"
#include "text/unicode.h"
#include <math.h>
#include <string.h>

enum test {
    TS_BOOLEAN,
    TS_CALLABLE,
    TS_DEFINED,
    TS_DIVISIBLEBY,
    TS_EQ,
    TS_EVEN,
    TS_FALSE,
    TS_FLOAT,
    TS_GE,
    TS_GT,
    TS_IN,
    TS_INTEGER,
    TS_ITERABLE,
    TS_LE,
    TS_LOWER,
    TS_LT,
    TS_MAPPING,
    TS_NE,
    TS_NONE,
    TS_NUMBER,
    TS_ODD,
    TS_SAMEAS,
    TS_SEQUENCE,
    TS_STRING,
    TS_TRUE,
    TS_UNDEFINED,
    TS_UPPER,
};

static const struct {
    const char *name;
    enum test id;
    size_t n_args;
} tests[] = {
    {"boolean", TS_BOOLEAN, 0},
    {"callable", TS_CALLABLE, 0},
    {"defined", TS_DEFINED, 0},
    {"divisibleby", TS_DIVISIBLEBY, 1},
    {"eq", TS_EQ, 1},
    {"equalto", TS_EQ, 1},
    {"==", TS_EQ, 1},
    {"even", TS_EVEN, 0},
    {"false", TS_FALSE, 0},
    {"float", TS_FLOAT, 0},
    {"ge", TS_GE, 1},
    {">=", TS_GE, 1},
    {"greaterthan", TS_GT, 1},
    {"gt", TS_GT, 1},
    {">", TS_GT, 1},
    {"in", TS_IN, 1},
    {"integer", TS_INTEGER, 0},
    {"iterable", TS_ITERABLE, 0},
    {"le", TS_LE, 1},
    {"<=", TS_LE, 1},
    {"lessthan", TS_LT, 1},
    {"lower", TS_LOWER, 0},
    {"lt", TS_LT, 1},
    {"<", TS_LT, 1},
    {"mapping", TS_MAPPING, 0},
    {"ne", TS_NE, 1},
    {"!=", TS_NE, 1},
    {"none", TS_NONE, 0},
    {"number", TS_NUMBER, 0},
    {"odd", TS_ODD, 0},
    {"sameas", TS_SAMEAS, 1},
    {"sequence", TS_SEQUENCE, 0},
    {"string", TS_STRING, 0},
    {"true", TS_TRUE, 0},
    {"undefined", TS_UNDEFINED, 0},
    {"upper", TS_UPPER, 0},
};

int jtest_id(const char *name)
{
    for (int i = 0; i < (int)(sizeof(tests) / sizeof(*tests)); i++) {
        if (!strcmp(tests[i].name, name)) {
            return i;
        }
    }
    return -1;
}

const char *jtest_check(int id, size_t n_args, size_t n_kw)
{
    return n_args != tests[id].n_args || n_kw ? "wrong number of arguments of test" : NULL;
}

static int modulo(struct jinja_run *r, struct jval v, int64_t by, int64_t want, int *out)
{
    if (v.kind == J_UNDEFINED) {
        return jundefined_error(r, v);
    }
    if (v.kind != J_INT && v.kind != J_BOOL && v.kind != J_FLOAT) {
        return jfail(r, "unsupported operand type(s) for %%: '%s' and 'int'", jtype(v));
    }
    if (by == 0) {
        return jfail(r, "integer division or modulo by zero");
    }
    if (v.kind == J_FLOAT) {
        double m = fmod(v.u.f, (double)by);
        *out = (m < 0 ? m + fabs((double)by) : m) == (double)want;
        return 0;
    }
    int64_t m = by == -1 ? 0 : v.u.i % by;
    *out = (m && (m < 0) != (by < 0) ? m + by : m) == want;
    return 0;
}

/* upper: at least one cased character and none that is lower case; lower the other way round. */
static int is_case(struct jinja_run *r, struct jval v, int upper, int *out)
{
    struct jval s;
    int seen = 0;
    if (jstring(r, v, &s)) {
        return ERR_INVALID;
    }
    *out = 1;
    for (size_t i = 0; i < s.u.s->n;) {
        uint32_t cp = 0, to[3];
        int len = utf8_decode(s.u.s->s + i, s.u.s->n - i, &cp);
        if (unicode_is_cased(cp)) {
            seen = 1;
            if (upper ? !(unicode_lower(cp, to) > 1 || to[0] != cp)
                      : !(unicode_upper(cp, to) > 1 || to[0] != cp)) {
                *out = 0;
            }
        }
        i += (size_t)(len > 0 ? len : 1);
    }
    *out = *out && seen;
    return jwork(r, s.u.s->n);
}

static int same_as(struct jval a, struct jval b)
{
    if (a.kind != b.kind) {
        return 0;
    }
    return a.kind == J_NONE || (a.kind == J_FLOAT ? a.u.f == b.u.f : a.u.i == b.u.i);
}

int jtest(struct jinja_run *r, int id, struct jval v, const struct jargs *args, int *out)
{
    int yes = 0, rc = 0,
        is_sized = v.kind == J_STR || v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_DICT ||
                   v.kind == J_UNDEFINED;
    struct jval x = args->n ? args->v[0] : jnone();
    switch (tests[id].id) {
    case TS_BOOLEAN:
        yes = v.kind == J_BOOL;
        break;
    case TS_CALLABLE: /* an undefined value has a __call__ that raises */
        yes = v.kind == J_MACRO || v.kind == J_FUNCTION || v.kind == J_METHOD ||
              v.kind == J_UNDEFINED;
        break;
    case TS_DEFINED:
    case TS_UNDEFINED:
        yes = (v.kind == J_UNDEFINED) == (tests[id].id == TS_UNDEFINED);
        break;
    case TS_DIVISIBLEBY:
        if (x.kind != J_INT) {
            return jfail(r, "divisibleby takes an integer");
        }
        rc = modulo(r, v, x.u.i, 0, &yes);
        break;
    case TS_EVEN:
    case TS_ODD:
        rc = modulo(r, v, 2, tests[id].id == TS_ODD, &yes);
        break;
    case TS_EQ:
    case TS_NE:
        rc = jequal(r, v, x, &yes);
        yes = yes == (tests[id].id == TS_EQ);
        break;
    case TS_LT:
        rc = jless(r, v, x, "<", &yes);
        break;
    case TS_GT:
        rc = jless(r, x, v, ">", &yes);
        break;
    case TS_LE:
    case TS_GE:
        rc = tests[id].id == TS_LE ? jless(r, x, v, "<=", &yes) : jless(r, v, x, ">=", &yes);
        yes = !yes;
        break;
    case TS_IN:
        rc = jcontains(r, v, x, &yes);
        break;
    case TS_FALSE:
    case TS_TRUE:
        yes = v.kind == J_BOOL && (v.u.i != 0) == (tests[id].id == TS_TRUE);
        break;
    case TS_FLOAT:
        yes = v.kind == J_FLOAT;
        break;
    case TS_INTEGER:
        yes = v.kind == J_INT;
        break;
    case TS_ITERABLE:
        yes = is_sized || v.kind == J_LOOP;
        break;
    case TS_LOWER:
    case TS_UPPER:
        rc = is_case(r, v, tests[id].id == TS_UPPER, &yes);
        break;
    case TS_MAPPING:
        yes = v.kind == J_DICT;
        break;
    case TS_NONE:
        yes = v.kind == J_NONE;
        break;
    case TS_NUMBER:
        yes = v.kind == J_BOOL || v.kind == J_INT || v.kind == J_FLOAT;
        break;
    case TS_SAMEAS:
        yes = same_as(v, x);
        break;
    case TS_SEQUENCE:
        yes = is_sized;
        break;
    case TS_STRING:
        yes = v.kind == J_STR;
        break;
    }
    *out = yes;
    return rc;
}
