/* SPDX-License-Identifier: Apache-2.0 */
/* Filters and tests. Each has a row that names its parameters, so that wrong arguments are found
 * when the template is parsed; values are given by position or by name. */
#include "text/jinja_int.h"

#include "base/utf8.h"
#include "text/unicode.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum filter {
    FL_ABS,
    FL_CAPITALIZE,
    FL_DEFAULT,
    FL_DICTSORT,
    FL_FIRST,
    FL_FLOAT,
    FL_INDENT,
    FL_INT,
    FL_ITEMS,
    FL_JOIN,
    FL_LAST,
    FL_LENGTH,
    FL_LIST,
    FL_LOWER,
    FL_MAP,
    FL_MAX,
    FL_MIN,
    FL_REJECT,
    FL_REJECTATTR,
    FL_REPLACE,
    FL_REVERSE,
    FL_ROUND,
    FL_SAFE,
    FL_SELECT,
    FL_SELECTATTR,
    FL_SORT,
    FL_STRING,
    FL_SUM,
    FL_TITLE,
    FL_TOJSON,
    FL_TRIM,
    FL_UNIQUE,
    FL_UPPER,
};

#define PARAMS_MAX 5
#define OPEN_ARGS  99 /* map, select and the like: the rest belongs to an inner filter or test */

struct filter_row {
    const char *name;
    enum filter id;
    int max, min;
    const char *params[PARAMS_MAX];
};

static const struct filter_row filters[] = {
    {"abs", FL_ABS, 0, 0, {NULL}},
    {"capitalize", FL_CAPITALIZE, 0, 0, {NULL}},
    {"count", FL_LENGTH, 0, 0, {NULL}},
    {"d", FL_DEFAULT, 2, 0, {"default_value", "boolean"}},
    {"default", FL_DEFAULT, 2, 0, {"default_value", "boolean"}},
    {"dictsort", FL_DICTSORT, 3, 0, {"case_sensitive", "by", "reverse"}},
    {"first", FL_FIRST, 0, 0, {NULL}},
    {"float", FL_FLOAT, 1, 0, {"default"}},
    {"indent", FL_INDENT, 3, 0, {"width", "first", "blank"}},
    {"int", FL_INT, 2, 0, {"default", "base"}},
    {"items", FL_ITEMS, 0, 0, {NULL}},
    {"join", FL_JOIN, 2, 0, {"d", "attribute"}},
    {"last", FL_LAST, 0, 0, {NULL}},
    {"length", FL_LENGTH, 0, 0, {NULL}},
    {"list", FL_LIST, 0, 0, {NULL}},
    {"lower", FL_LOWER, 0, 0, {NULL}},
    {"map", FL_MAP, OPEN_ARGS, 0, {"attribute", "default"}},
    {"max", FL_MAX, 2, 0, {"case_sensitive", "attribute"}},
    {"min", FL_MIN, 2, 0, {"case_sensitive", "attribute"}},
    {"reject", FL_REJECT, OPEN_ARGS, 0, {NULL}},
    {"rejectattr", FL_REJECTATTR, OPEN_ARGS, 1, {NULL}},
    {"replace", FL_REPLACE, 3, 2, {"old", "new", "count"}},
    {"reverse", FL_REVERSE, 0, 0, {NULL}},
    {"round", FL_ROUND, 2, 0, {"precision", "method"}},
    {"safe", FL_SAFE, 0, 0, {NULL}},
    {"select", FL_SELECT, OPEN_ARGS, 0, {NULL}},
    {"selectattr", FL_SELECTATTR, OPEN_ARGS, 1, {NULL}},
    {"sort", FL_SORT, 3, 0, {"reverse", "case_sensitive", "attribute"}},
    {"string", FL_STRING, 0, 0, {NULL}},
    {"sum", FL_SUM, 2, 0, {"attribute", "start"}},
    {"title", FL_TITLE, 0, 0, {NULL}},
    {"tojson", FL_TOJSON, 4, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", FL_TRIM, 1, 0, {"chars"}},
    {"unique", FL_UNIQUE, 2, 0, {"case_sensitive", "attribute"}},
    {"upper", FL_UPPER, 0, 0, {NULL}},
};

#define N_FILTERS ((int)(sizeof(filters) / sizeof(*filters)))

int jfilter_id(const char *name, const char **refusal)
{
    static const char *const escaping[] = {"e",      "escape",  "forceescape",
                                           "urlize", "xmlattr", "striptags"};
    for (int i = 0; i < N_FILTERS; i++) {
        if (!strcmp(filters[i].name, name)) {
            return i;
        }
    }
    for (size_t i = 0; i < sizeof(escaping) / sizeof(*escaping); i++) {
        if (!strcmp(escaping[i], name)) {
            *refusal = "HTML escaping is not supported: filter";
        }
    }
    return -1;
}

static int param_index(const struct filter_row *f, const char *name)
{
    for (int i = 0; i < PARAMS_MAX && f->params[i]; i++) {
        if (!strcmp(f->params[i], name)) {
            return i;
        }
    }
    return -1;
}

const char *jfilter_check(int id, size_t n_args, const struct jkwarg *kw, size_t n_kw)
{
    const struct filter_row *f = &filters[id];
    if (n_args > (size_t)f->max || n_args + n_kw < (size_t)f->min) {
        return "wrong number of arguments of filter";
    }
    for (size_t i = 0; i < n_kw; i++) {
        int k = param_index(f, kw[i].name);
        if (f->max == OPEN_ARGS ? k < 0 : k < (int)n_args) {
            return "unknown or repeated keyword argument of filter";
        }
    }
    return NULL;
}

/* Arguments by parameter; v[i].kind stays J_UNDEFINED with u.object NULL where none was given. */
static void bind(const struct filter_row *f, const struct jargs *a, struct jval v[PARAMS_MAX],
                 int given[PARAMS_MAX])
{
    memset(v, 0, PARAMS_MAX * sizeof(*v));
    memset(given, 0, PARAMS_MAX * sizeof(*given));
    for (size_t i = 0; i < a->n && i < PARAMS_MAX; i++) {
        v[i] = a->v[i];
        given[i] = 1;
    }
    for (size_t i = 0; i < a->n_kw; i++) {
        int k = param_index(f, a->kw_name[i]);
        if (k >= 0) {
            v[k] = a->kw_value[i];
            given[k] = 1;
        }
    }
}

/* ---- helpers ---- */

/* "a.b.0" or a number: what map(attribute=…) and others follow. */
static int follow(struct jinja_run *r, struct jval v, struct jval attribute, struct jval *out)
{
    if (attribute.kind != J_STR) {
        return jgetitem(r, v, attribute, out);
    }
    const struct jstr *s = attribute.u.s;
    for (size_t i = 0; i <= s->n;) {
        const char *dot = memchr(s->s + i, '.', s->n - i);
        size_t end = dot ? (size_t)(dot - s->s) : s->n;
        struct jval part = jsub(r, s, i, end);
        size_t digits = i;
        while (digits < end && s->s[digits] >= '0' && s->s[digits] <= '9') {
            digits++;
        }
        if (digits == end && end > i && end - i < 10) {
            part = jint(strtoll(s->s + i, NULL, 10));
        }
        if (jgetitem(r, v, part, &v)) {
            return ERR_INVALID;
        }
        i = end + 1;
    }
    *out = v;
    return 0;
}

static int lowered(struct jinja_run *r, struct jval v, int case_sensitive, struct jval *out)
{
    *out = v;
    return v.kind == J_STR && !case_sensitive ? jcase(r, v.u.s, CASE_LOWER, out) : 0;
}

struct keyed {
    struct jval key, value;
};

static int make_keys(struct jinja_run *r, const struct jlist *l, struct jval attribute,
                     int has_attribute, int case_sensitive, struct keyed **out)
{
    struct keyed *k = jalloc(r, (l->n + 1) * 2 * sizeof(*k)); /* the second half is for merging */
    if (!k) {
        return ERR_INVALID;
    }
    for (size_t i = 0; i < l->n; i++) {
        struct jval v = l->v[i];
        if ((has_attribute && follow(r, v, attribute, &v)) ||
            lowered(r, v, case_sensitive, &k[i].key)) {
            return ERR_INVALID;
        }
        k[i].value = l->v[i];
    }
    *out = k;
    return 0;
}

/* Stable merge sort; reverse keeps the order of equal keys, as Python does. */
static int sort_keyed(struct jinja_run *r, struct keyed *k, size_t n, int reverse)
{
    struct keyed *tmp = k + n + 1;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n,
                   hi = lo + 2 * width < n ? lo + 2 * width : n;
            size_t i = lo, j = mid, o = lo;
            while (i < mid || j < hi) {
                int take_right = i == mid;
                if (i < mid && j < hi &&
                    jless(r, reverse ? k[i].key : k[j].key, reverse ? k[j].key : k[i].key, "<",
                          &take_right)) {
                    return ERR_INVALID;
                }
                tmp[o++] = take_right ? k[j++] : k[i++];
            }
        }
        memcpy(k, tmp, n * sizeof(*k));
        if (jwork(r, n * 16)) {
            return ERR_INVALID;
        }
    }
    return 0;
}

static int list_of(struct jinja_run *r, const struct keyed *k, size_t n, struct jval *out)
{
    *out = jinja_list(r);
    for (size_t i = 0; i < n; i++) {
        jinja_list_add(r, *out, k[i].value);
    }
    return r->failed_alloc ? ERR_INVALID : 0;
}

/* ---- numbers ---- */

static int parse_int(const struct jstr *s, int base, int64_t *out)
{
    char text[80];
    size_t k = 0, i = unicode_leading_space(s->s, s->n),
           end = s->n - unicode_trailing_space(s->s + i, s->n - i);
    if (end <= i || end - i >= sizeof(text)) {
        return -1;
    }
    for (size_t j = i; j < end; j++) {
        if (s->s[j] == '_' && j > i && j + 1 < end && s->s[j + 1] != '_' && s->s[j - 1] != '_' &&
            s->s[j - 1] != '+' && s->s[j - 1] != '-') {
            continue;
        }
        text[k++] = s->s[j];
    }
    text[k] = 0;
    char *stop;
    char first = text[text[0] == '-' || text[0] == '+'];
    if (!((first >= '0' && first <= '9') || (first >= 'a' && first <= 'z') ||
          (first >= 'A' && first <= 'Z')) ||
        strchr(text, '.')) {
        return -1;
    }
    long long v = strtoll(text, &stop, base);
    *out = v;
    return *stop || v == INT64_MAX || v == INT64_MIN ? -1 : 0;
}

static int parse_float(const struct jstr *s, double *out)
{
    char text[80];
    size_t i = unicode_leading_space(s->s, s->n),
           n = s->n - i - unicode_trailing_space(s->s + i, s->n - i);
    if (n == 0 || n >= sizeof(text)) {
        return -1;
    }
    memcpy(text, s->s + i, n);
    text[n] = 0;
    if (memchr(text, 'x', n) || memchr(text, 'X', n) || memchr(text, '(', n)) {
        return -1;
    }
    char *stop;
    *out = strtod(text, &stop);
    return *stop ? -1 : 0;
}

static int from_double(double d, struct jval fallback, struct jval *out)
{
    *out = isfinite(d) && fabs(d) < 9e18 ? jint((int64_t)d) : fallback;
    return 0;
}

static int to_int(struct jinja_run *r, struct jval v, const struct jval p[], const int given[],
                  struct jval *out)
{
    struct jval fallback = given[0] ? p[0] : jint(0);
    int64_t base = given[1] && p[1].kind == J_INT ? p[1].u.i : 10, i;
    double d;
    if (base < 2 || base > 36) {
        return jfail(r, "int() base must be 2 to 36");
    }
    switch (v.kind) {
    case J_UNDEFINED:
        return jundefined_error(r, v);
    case J_BOOL:
    case J_INT:
        *out = jint(v.u.i);
        return 0;
    case J_FLOAT:
        return from_double(v.u.f, fallback, out);
    case J_STR:
        if (!parse_int(v.u.s, (int)base, &i)) {
            *out = jint(i);
            return 0;
        }
        if (!parse_float(v.u.s, &d)) {
            return from_double(d, fallback, out);
        }
        *out = fallback;
        return 0;
    default:
        *out = fallback;
        return 0;
    }
}

static int to_float(struct jinja_run *r, struct jval v, const struct jval p[], const int given[],
                    struct jval *out)
{
    double d;
    *out = given[0] ? p[0] : jfloat(0);
    if (v.kind == J_UNDEFINED) {
        return jundefined_error(r, v);
    }
    if (v.kind == J_BOOL || v.kind == J_INT) {
        *out = jfloat((double)v.u.i);
    } else if (v.kind == J_FLOAT) {
        *out = v;
    } else if (v.kind == J_STR && !parse_float(v.u.s, &d)) {
        *out = jfloat(d);
    }
    return 0;
}

static int round_value(struct jinja_run *r, struct jval v, const struct jval p[], const int given[],
                       struct jval *out)
{
    int64_t digits = given[0] && p[0].kind == J_INT ? p[0].u.i : 0;
    const char *how = given[1] && p[1].kind == J_STR && p[1].u.s->n ? p[1].u.s->s : "common";
    if (v.kind != J_BOOL && v.kind != J_INT && v.kind != J_FLOAT) {
        return v.kind == J_UNDEFINED ? jundefined_error(r, v)
                                     : jfail(r, "round needs a number, not %s", jtype(v));
    }
    if (digits < 0 || digits > 15) {
        return jfail(r, "round precision must be 0 to 15");
    }
    if (how[0] == 'c' && how[1] == 'o') {
        if (v.kind != J_FLOAT) {
            *out = jint(v.u.i);
            return 0;
        }
        char text[400];
        snprintf(text, sizeof(text), "%.*f", (int)digits,
                 v.u.f); /* correctly rounded, halves of the exact value to even */
        *out = jfloat(strtod(text, NULL));
        return 0;
    }
    double scale = pow(10, (double)digits), x = (v.kind == J_FLOAT ? v.u.f : (double)v.u.i) * scale;
    *out = jfloat((how[0] == 'c' ? ceil(x) : floor(x)) / scale);
    return 0;
}

/* ---- strings ---- */

static int indent(struct jinja_run *r, const struct jstr *s, const struct jval p[],
                  const int given[], struct jval *out)
{
    struct jsb b;
    struct jval lines, with_newline;
    char spaces[256];
    struct jstr pad = {.s = spaces, .n = 4, .mark = 1};
    int first = given[1] && jtruth(p[1]), blank = given[2] && jtruth(p[2]);
    memset(spaces, ' ', sizeof(spaces));
    if (given[0] && p[0].kind == J_STR) {
        pad = *p[0].u.s;
    } else if (given[0] && p[0].kind == J_INT && p[0].u.i >= 0 && p[0].u.i <= 256) {
        pad.n = (size_t)p[0].u.i;
    } else if (given[0]) {
        return jfail(r, "indent width must be a string or 0 to 256");
    }
    jsb_init(&b);
    jsb_add(&b, s, 0, s->n);
    jsb_puts(&b, "\n", 1, 1);
    if (jsb_value(r, &b, &with_newline) || jsplitlines(r, with_newline.u.s, &lines)) {
        return ERR_INVALID;
    }
    jsb_init(&b);
    for (size_t i = 0; i < lines.u.list->n; i++) {
        const struct jstr *line = lines.u.list->v[i].u.s;
        if (i) {
            jsb_puts(&b, "\n", 1, 1);
        }
        if (i ? line->n || blank : first) {
            jsb_add(&b, &pad, 0, pad.n);
        }
        jsb_add(&b, line, 0, line->n);
        if (b.text.len > JINJA_OUTPUT_BYTES_MAX) {
            jsb_fini(&b);
            return jfail(r, "a string is too large");
        }
    }
    return jsb_value(r, &b, out);
}

static int reverse(struct jinja_run *r, struct jval v, struct jval *out)
{
    if (v.kind == J_STR) {
        struct jsb b;
        jsb_init(&b);
        for (size_t end = v.u.s->n; end > 0;) {
            size_t i = end - 1;
            while (i > 0 && ((uint8_t)v.u.s->s[i] & 0xc0) == 0x80) {
                i--;
            }
            jsb_add(&b, v.u.s, i, end);
            end = i;
        }
        return jsb_value(r, &b, out);
    }
    struct jlist *l;
    if (jiterate(r, v, &l)) {
        return ERR_INVALID;
    }
    *out = jinja_list(r);
    for (size_t i = l->n; i-- > 0;) {
        jinja_list_add(r, *out, l->v[i]);
    }
    return r->failed_alloc ? ERR_INVALID : jwork(r, l->n);
}

static int string_filter(struct jinja_run *r, enum filter id, struct jval v, const struct jval p[],
                         const int given[], struct jval *out)
{
    struct jval s;
    if (jstring(r, v, &s)) {
        return ERR_INVALID;
    }
    switch (id) {
    case FL_CAPITALIZE:
        return jcase(r, s.u.s, CASE_CAPITALIZE, out);
    case FL_LOWER:
        return jcase(r, s.u.s, CASE_LOWER, out);
    case FL_UPPER:
        return jcase(r, s.u.s, CASE_UPPER, out);
    case FL_TITLE:
        return jcase(r, s.u.s, CASE_TITLE_FILTER, out);
    case FL_INDENT:
        return indent(r, s.u.s, p, given, out);
    case FL_TRIM:
        if (given[0] && p[0].kind != J_STR && p[0].kind != J_NONE) {
            return jfail(r, "trim takes a string of characters, not %s", jtype(p[0]));
        }
        return jstrip(r, s.u.s, given[0] && p[0].kind == J_STR ? p[0].u.s : NULL, 3, out);
    case FL_REPLACE: {
        struct jval old, with;
        if (!given[0] || !given[1] || jstring(r, p[0], &old) || jstring(r, p[1], &with)) {
            return jfail(r, "replace takes two strings");
        }
        return jreplace(r, s.u.s, old.u.s, with.u.s, given[2] && p[2].kind == J_INT ? p[2].u.i : -1,
                        out);
    }
    default: /* FL_STRING, FL_SAFE */
        *out = s;
        return 0;
    }
}

/* ---- sequences ---- */

static int edge(struct jinja_run *r, enum filter id, struct jval v, struct jval *out)
{
    struct jlist *l;
    if (v.kind == J_STR && v.u.s->n) {
        size_t n = jchar_offset(v.u.s, 1), last = v.u.s->n - 1;
        while (last > 0 && ((uint8_t)v.u.s->s[last] & 0xc0) == 0x80) {
            last--;
        }
        *out = id == FL_FIRST ? jsub(r, v.u.s, 0, n) : jsub(r, v.u.s, last, v.u.s->n);
        return 0;
    }
    if (jiterate(r, v, &l)) {
        return ERR_INVALID;
    }
    *out =
        l->n ? l->v[id == FL_FIRST ? 0 : l->n - 1]
             : jundefined(r, "No %s item, sequence was empty.", id == FL_FIRST ? "first" : "last");
    return 0;
}

static int map(struct jinja_run *r, const struct jlist *l, const struct jargs *a, struct jval *out)
{
    struct jval attribute = {0}, fallback = {0};
    int has_fallback = 0, inner = -1;
    const char *refusal;
    for (size_t i = 0; i < a->n_kw; i++) {
        if (!strcmp(a->kw_name[i], "attribute")) {
            attribute = a->kw_value[i];
        } else {
            fallback = a->kw_value[i];
            has_fallback = 1;
        }
    }
    if (a->n) {
        char name[32] = "";
        if (a->v[0].kind == J_STR && a->v[0].u.s->n < sizeof(name)) {
            memcpy(name, a->v[0].u.s->s, a->v[0].u.s->n);
        }
        inner = jfilter_id(name, &refusal);
        if (inner < 0) {
            return jfail(r, "No filter named '%s'.", name);
        }
    } else if (attribute.kind == J_UNDEFINED) {
        return jfail(r, "map requires a filter argument");
    }
    *out = jinja_list(r);
    for (size_t i = 0; i < l->n; i++) {
        struct jval v;
        if (a->n) {
            struct jargs rest = {.v = a->v + 1, .n = a->n - 1};
            if (jfilter(r, inner, l->v[i], &rest, &v)) {
                return ERR_INVALID;
            }
        } else if (follow(r, l->v[i], attribute, &v)) {
            return ERR_INVALID;
        }
        if (has_fallback && v.kind == J_UNDEFINED) {
            v = fallback;
        }
        jinja_list_add(r, *out, v);
    }
    return r->failed_alloc ? ERR_INVALID : jwork(r, l->n * 16);
}

static int filter_by_test(struct jinja_run *r, enum filter id, const struct jlist *l,
                          const struct jargs *a, struct jval *out)
{
    size_t skip = id == FL_SELECTATTR || id == FL_REJECTATTR;
    int keep = id == FL_SELECT || id == FL_SELECTATTR, inner = -1;
    struct jargs rest = {0};
    if (a->n > skip) {
        char name[32] = "";
        if (a->v[skip].kind == J_STR && a->v[skip].u.s->n < sizeof(name)) {
            memcpy(name, a->v[skip].u.s->s, a->v[skip].u.s->n);
        }
        inner = jtest_id(name);
        if (inner < 0 || jtest_check(inner, a->n - skip - 1, 0)) {
            return jfail(r, "No test named '%s' with %zu arguments.", name, a->n - skip - 1);
        }
        rest = (struct jargs){.v = a->v + skip + 1, .n = a->n - skip - 1};
    }
    *out = jinja_list(r);
    for (size_t i = 0; i < l->n; i++) {
        struct jval v = l->v[i];
        int yes;
        if (skip && follow(r, v, a->v[0], &v)) {
            return ERR_INVALID;
        }
        if (inner < 0) {
            yes = jtruth(v);
        } else if (jtest(r, inner, v, &rest, &yes)) {
            return ERR_INVALID;
        }
        if (yes == keep) {
            jinja_list_add(r, *out, l->v[i]);
        }
    }
    return r->failed_alloc ? ERR_INVALID : jwork(r, l->n * 16);
}

static int unique(struct jinja_run *r, const struct jlist *l, const struct jval p[],
                  const int given[], struct jval *out)
{
    struct keyed *k;
    size_t n = 0;
    if (make_keys(r, l, p[1], given[1], given[0] && jtruth(p[0]), &k)) {
        return ERR_INVALID;
    }
    for (size_t i = 0; i < l->n; i++) {
        int same = 0;
        for (size_t j = 0; j < n && !same; j++) {
            if (jequal(r, k[j].key, k[i].key, &same) || jwork(r, 64)) {
                return ERR_INVALID;
            }
        }
        if (!same) {
            k[n++] = k[i];
        }
    }
    return list_of(r, k, n, out);
}

static int extreme(struct jinja_run *r, enum filter id, const struct jlist *l,
                   const struct jval p[], const int given[], struct jval *out)
{
    struct keyed *k;
    size_t best = 0;
    if (l->n == 0) {
        *out = jundefined(r, "No aggregated item, sequence was empty.");
        return 0;
    }
    if (make_keys(r, l, p[1], given[1], given[0] && jtruth(p[0]), &k)) {
        return ERR_INVALID;
    }
    for (size_t i = 1; i < l->n; i++) {
        int less;
        if (jless(r, id == FL_MIN ? k[i].key : k[best].key, id == FL_MIN ? k[best].key : k[i].key,
                  "<", &less)) {
            return ERR_INVALID;
        }
        best = less ? i : best;
    }
    *out = k[best].value;
    return 0;
}

static int dictsort(struct jinja_run *r, struct jval v, const struct jval p[], const int given[],
                    struct jval *out)
{
    int by_value =
        given[1] && p[1].kind == J_STR && p[1].u.s->n == 5 && !memcmp(p[1].u.s->s, "value", 5);
    struct keyed *k;
    struct jval items = jinja_list(r);
    if (v.kind != J_DICT) {
        return jfail(r, "dictsort needs a dict, not %s", jtype(v));
    }
    for (size_t i = 0; i < v.u.dict->n; i++) {
        jinja_list_add(r, items, jtuple2(r, v.u.dict->v[i].key, v.u.dict->v[i].value));
    }
    if (r->failed_alloc ||
        make_keys(r, items.u.list, jint(by_value), 1, given[0] && jtruth(p[0]), &k) ||
        sort_keyed(r, k, items.u.list->n, given[2] && jtruth(p[2]))) {
        return ERR_INVALID;
    }
    return list_of(r, k, items.u.list->n, out);
}

static int sum(struct jinja_run *r, const struct jlist *l, const struct jval p[], const int given[],
               struct jval *out)
{
    struct jval total = given[1] ? p[1] : jint(0);
    for (size_t i = 0; i < l->n; i++) {
        struct jval v = l->v[i];
        if (given[0] && p[0].kind != J_NONE && follow(r, v, p[0], &v)) {
            return ERR_INVALID;
        }
        if ((v.kind != J_BOOL && v.kind != J_INT && v.kind != J_FLOAT) ||
            (total.kind != J_BOOL && total.kind != J_INT && total.kind != J_FLOAT)) {
            return jfail(r, "sum needs numbers, not %s", jtype(v));
        }
        int64_t n;
        if (total.kind != J_FLOAT && v.kind != J_FLOAT) {
            if (__builtin_add_overflow(total.u.i, v.u.i, &n)) {
                return jfail(r, "an integer is too large");
            }
            total = jint(n);
        } else {
            total = jfloat((total.kind == J_FLOAT ? total.u.f : (double)total.u.i) +
                           (v.kind == J_FLOAT ? v.u.f : (double)v.u.i));
        }
    }
    *out = total;
    return 0;
}

static int join(struct jinja_run *r, const struct jlist *l, const struct jval p[],
                const int given[], struct jval *out)
{
    struct jval sep, items = {.kind = J_LIST, .u.list = (struct jlist *)(uintptr_t)l};
    if (given[0] ? jstring(r, p[0], &sep) : (sep = jlit(r, ""), r->failed_alloc)) {
        return ERR_INVALID;
    }
    if (given[1] && p[1].kind != J_NONE) {
        items = jinja_list(r);
        for (size_t i = 0; i < l->n; i++) {
            struct jval v;
            if (follow(r, l->v[i], p[1], &v)) {
                return ERR_INVALID;
            }
            jinja_list_add(r, items, v);
        }
        if (r->failed_alloc) {
            return ERR_INVALID;
        }
    }
    return jjoin(r, items.u.list, sep.u.s, 1, out);
}

static int tojson(struct jinja_run *r, struct jval v, const struct jval p[], const int given[],
                  struct jval *out)
{
    int64_t spaces = -1;
    const struct jstr *item = NULL, *key = NULL;
    if (given[1] && p[1].kind != J_NONE) {
        if ((p[1].kind != J_INT && p[1].kind != J_BOOL) || p[1].u.i > 64) {
            return jfail(r, "tojson indent must be a number up to 64");
        }
        spaces = p[1].u.i < 0 ? 0 : p[1].u.i;
    }
    if (given[2] && p[2].kind != J_NONE) {
        const struct jlist *l = p[2].kind == J_LIST || p[2].kind == J_TUPLE ? p[2].u.list : NULL;
        if (!l || l->n != 2 || l->v[0].kind != J_STR || l->v[1].kind != J_STR) {
            return jfail(r, "tojson separators must be two strings");
        }
        item = l->v[0].u.s;
        key = l->v[1].u.s;
    }
    return jtojson(r, v, (int)spaces, given[3] && jtruth(p[3]), item, key, given[0] && jtruth(p[0]),
                   out);
}

static int sequence_filter(struct jinja_run *r, enum filter id, struct jval v,
                           const struct jargs *args, const struct jval p[], const int given[],
                           struct jval *out)
{
    struct jlist *l;
    struct keyed *k;
    if (jiterate(r, v, &l)) {
        return ERR_INVALID;
    }
    switch (id) {
    case FL_JOIN:
        return join(r, l, p, given, out);
    case FL_MAP:
        return map(r, l, args, out);
    case FL_MAX:
    case FL_MIN:
        return extreme(r, id, l, p, given, out);
    case FL_SORT:
        if (make_keys(r, l, p[2], given[2] && p[2].kind != J_NONE, given[1] && jtruth(p[1]), &k) ||
            sort_keyed(r, k, l->n, given[0] && jtruth(p[0]))) {
            return ERR_INVALID;
        }
        return list_of(r, k, l->n, out);
    case FL_SUM:
        return sum(r, l, p, given, out);
    case FL_UNIQUE:
        return unique(r, l, p, given, out);
    case FL_LIST:
        *out = jinja_list(r);
        for (size_t i = 0; i < l->n; i++) {
            jinja_list_add(r, *out, l->v[i]);
        }
        return r->failed_alloc ? ERR_INVALID : jwork(r, l->n);
    default:
        return filter_by_test(r, id, l, args, out);
    }
}

int jfilter(struct jinja_run *r, int id, struct jval v, const struct jargs *args, struct jval *out)
{
    const struct filter_row *f = &filters[id];
    struct jval p[PARAMS_MAX];
    int given[PARAMS_MAX];
    int64_t n;
    if ((args->n > (size_t)f->max || args->n + args->n_kw < (size_t)f->min)) {
        return jfail(r, "wrong number of arguments of filter '%s'", f->name);
    }
    bind(f, args, p, given);
    switch (f->id) {
    case FL_ABS:
        if (v.kind == J_FLOAT) {
            *out = jfloat(fabs(v.u.f));
            return 0;
        }
        if ((v.kind != J_INT && v.kind != J_BOOL) || v.u.i == INT64_MIN) {
            return v.kind == J_UNDEFINED ? jundefined_error(r, v)
                                         : jfail(r, "bad operand type for abs(): '%s'", jtype(v));
        }
        *out = jint(v.u.i < 0 ? -v.u.i : v.u.i);
        return 0;
    case FL_DEFAULT:
        *out = v;
        if (v.kind == J_UNDEFINED || (given[1] && jtruth(p[1]) && !jtruth(v))) {
            *out = given[0] ? p[0] : jlit(r, "");
        }
        return 0;
    case FL_DICTSORT:
        return dictsort(r, v, p, given, out);
    case FL_FIRST:
    case FL_LAST:
        return edge(r, f->id, v, out);
    case FL_FLOAT:
        return to_float(r, v, p, given, out);
    case FL_INT:
        return to_int(r, v, p, given, out);
    case FL_ITEMS:
        if (v.kind != J_DICT && v.kind != J_UNDEFINED) {
            return jfail(r, "Can only get item pairs from a mapping.");
        }
        *out = jinja_list(r);
        for (size_t i = 0; v.kind == J_DICT && i < v.u.dict->n; i++) {
            jinja_list_add(r, *out, jtuple2(r, v.u.dict->v[i].key, v.u.dict->v[i].value));
        }
        return r->failed_alloc ? ERR_INVALID : jwork(r, 1);
    case FL_LENGTH:
        if (jlength(r, v, &n)) {
            return ERR_INVALID;
        }
        *out = jint(n);
        return 0;
    case FL_REVERSE:
        return reverse(r, v, out);
    case FL_ROUND:
        return round_value(r, v, p, given, out);
    case FL_TOJSON:
        return tojson(r, v, p, given, out);
    case FL_CAPITALIZE:
    case FL_LOWER:
    case FL_UPPER:
    case FL_TITLE:
    case FL_INDENT:
    case FL_TRIM:
    case FL_REPLACE:
    case FL_STRING:
    case FL_SAFE:
        return string_filter(r, f->id, v, p, given, out);
    default:
        return sequence_filter(r, f->id, v, args, p, given, out);
    }
}
