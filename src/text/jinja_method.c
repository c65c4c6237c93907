/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of str, list, dict and loop, the global functions, and the string operations filters
 * share with them. */
#include "text/jinja_int.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum method {
    M_CAPITALIZE,
    M_COUNT,
    M_ENDSWITH,
    M_FIND,
    M_INDEX,
    M_ISDIGIT,
    M_ISSPACE,
    M_JOIN,
    M_LOWER,
    M_LSTRIP,
    M_REMOVEPREFIX,
    M_REMOVESUFFIX,
    M_REPLACE,
    M_RFIND,
    M_RSPLIT,
    M_RSTRIP,
    M_SPLIT,
    M_SPLITLINES,
    M_STARTSWITH,
    M_STRIP,
    M_TITLE,
    M_UPPER,
    M_ITEMS,
    M_KEYS,
    M_VALUES,
    M_GET,
    M_CYCLE,
    M_MUTATES,
};

static const struct {
    enum jkind kind;
    const char *name;
    enum method id;
    int min, max; /* arguments */
} methods[] = {
    {J_STR, "capitalize", M_CAPITALIZE, 0, 0},
    {J_STR, "count", M_COUNT, 1, 1},
    {J_STR, "endswith", M_ENDSWITH, 1, 1},
    {J_STR, "find", M_FIND, 1, 1},
    {J_STR, "index", M_INDEX, 1, 1},
    {J_STR, "isdigit", M_ISDIGIT, 0, 0},
    {J_STR, "isspace", M_ISSPACE, 0, 0},
    {J_STR, "join", M_JOIN, 1, 1},
    {J_STR, "lower", M_LOWER, 0, 0},
    {J_STR, "lstrip", M_LSTRIP, 0, 1},
    {J_STR, "removeprefix", M_REMOVEPREFIX, 1, 1},
    {J_STR, "removesuffix", M_REMOVESUFFIX, 1, 1},
    {J_STR, "replace", M_REPLACE, 2, 3},
    {J_STR, "rfind", M_RFIND, 1, 1},
    {J_STR, "rsplit", M_RSPLIT, 0, 2},
    {J_STR, "rstrip", M_RSTRIP, 0, 1},
    {J_STR, "split", M_SPLIT, 0, 2},
    {J_STR, "splitlines", M_SPLITLINES, 0, 0},
    {J_STR, "startswith", M_STARTSWITH, 1, 1},
    {J_STR, "strip", M_STRIP, 0, 1},
    {J_STR, "title", M_TITLE, 0, 0},
    {J_STR, "upper", M_UPPER, 0, 0},
    {J_LIST, "count", M_COUNT, 1, 1},
    {J_LIST, "index", M_INDEX, 1, 1},
    {J_TUPLE, "count", M_COUNT, 1, 1},
    {J_TUPLE, "index", M_INDEX, 1, 1},
    {J_DICT, "get", M_GET, 1, 2},
    {J_DICT, "items", M_ITEMS, 0, 0},
    {J_DICT, "keys", M_KEYS, 0, 0},
    {J_DICT, "values", M_VALUES, 0, 0},
    {J_LOOP, "cycle", M_CYCLE, 1, 64},
    /* Refused when they are reached, as the sandbox does. */
    {J_LIST, "append", M_MUTATES, 0, 64},
    {J_LIST, "clear", M_MUTATES, 0, 64},
    {J_LIST, "extend", M_MUTATES, 0, 64},
    {J_LIST, "insert", M_MUTATES, 0, 64},
    {J_LIST, "pop", M_MUTATES, 0, 64},
    {J_LIST, "remove", M_MUTATES, 0, 64},
    {J_LIST, "reverse", M_MUTATES, 0, 64},
    {J_LIST, "sort", M_MUTATES, 0, 64},
    {J_DICT, "clear", M_MUTATES, 0, 64},
    {J_DICT, "pop", M_MUTATES, 0, 64},
    {J_DICT, "popitem", M_MUTATES, 0, 64},
    {J_DICT, "setdefault", M_MUTATES, 0, 64},
    {J_DICT, "update", M_MUTATES, 0, 64},
};

#define N_METHODS ((int)(sizeof(methods) / sizeof(*methods)))

enum function { F_RANGE, F_NAMESPACE, F_DICT, F_RAISE, F_STRFTIME };
static const char *const functions[] = {"range", "namespace", "dict", "raise_exception",
                                        "strftime_now"};

int jmethod_id(enum jkind kind, const char *name)
{
    for (int i = 0; i < N_METHODS; i++) {
        if (methods[i].kind == kind && !strcmp(methods[i].name, name)) {
            return i;
        }
    }
    return -1;
}

int jmethod_known(const char *name)
{
    for (int i = 0; i < N_METHODS; i++) {
        if (!strcmp(methods[i].name, name)) {
            return 1;
        }
    }
    return 0;
}

int jfunction_id(const char *name)
{
    for (int i = 0; i < (int)(sizeof(functions) / sizeof(*functions)); i++) {
        if (!strcmp(functions[i], name)) {
            return i;
        }
    }
    return -1;
}

/* ---- string operations ---- */

static size_t char_len(const struct jstr *s, size_t at)
{
    struct jstr rest = {.s = s->s + at, .n = s->n - at};
    return jchar_offset(&rest, 1);
}

static size_t last_char(const struct jstr *s, size_t end)
{
    size_t i = end - 1;
    while (i > 0 && ((uint8_t)s->s[i] & 0xc0) == 0x80) {
        i--;
    }
    return i;
}

static int has_char(const struct jstr *set, const char *c, size_t n)
{
    for (size_t i = 0; i < set->n; i += char_len(set, i)) {
        if (set->n - i >= n && !memcmp(set->s + i, c, n) && char_len(set, i) == n) {
            return 1;
        }
    }
    return 0;
}

int jstrip(struct jinja_run *r, const struct jstr *s, const struct jstr *chars, int side,
           struct jval *out)
{
    size_t from = 0, to = s->n;
    if (!chars) {
        from = side & 1 ? unicode_leading_space(s->s, s->n) : 0;
        to -= side & 2 ? unicode_trailing_space(s->s + from, s->n - from) : 0;
    } else {
        while (side & 1 && from < to && has_char(chars, s->s + from, char_len(s, from))) {
            from += char_len(s, from);
        }
        while (side & 2 && to > from) {
            size_t i = last_char(s, to);
            if (!has_char(chars, s->s + i, to - i)) {
                break;
            }
            to = i;
        }
    }
    *out = jsub(r, s, from, to);
    return jwork(r, s->n * (chars ? chars->n + 1 : 1));
}

static size_t find(const struct jstr *s, size_t from, const struct jstr *what)
{
    const char *p = what->n ? memmem(s->s + from, s->n - from, what->s, what->n) : s->s + from;
    return p ? (size_t)(p - s->s) : SIZE_MAX;
}

static size_t rfind(const struct jstr *s, size_t end, const struct jstr *what)
{
    for (size_t i = end >= what->n ? end - what->n + 1 : 0; i-- > 0;) {
        if (!memcmp(s->s + i, what->s, what->n)) {
            return i;
        }
    }
    return SIZE_MAX;
}

int jreplace(struct jinja_run *r, const struct jstr *s, const struct jstr *old,
             const struct jstr *with, int64_t count, struct jval *out)
{
    struct jsb b;
    size_t at = 0;
    jsb_init(&b);
    while (count != 0) {
        size_t hit = find(s, at, old);
        size_t next;
        if (hit == SIZE_MAX || (old->n == 0 && at > s->n)) {
            break;
        }
        if (old->n == 0) { /* between all characters */
            jsb_add(&b, with, 0, with->n);
            if (at == s->n) {
                at++;
                break;
            }
            next = at + char_len(s, at);
            jsb_add(&b, s, at, next);
        } else {
            jsb_add(&b, s, at, hit);
            jsb_add(&b, with, 0, with->n);
            next = hit + old->n;
        }
        at = next;
        count -= count > 0;
        if (b.text.len > JINJA_OUTPUT_BYTES_MAX) {
            jsb_fini(&b);
            return jfail(r, "a string is too large");
        }
    }
    if (at < s->n) {
        jsb_add(&b, s, at, s->n);
    }
    return jwork(r, s->n) ? (jsb_fini(&b), ERR_INVALID) : jsb_value(r, &b, out);
}

static void add_mapped(struct jsb *b, const struct jstr *s, size_t at, size_t n,
                       const uint32_t *cps, int n_cps)
{
    int mark = s->m ? s->m[at] : s->mark;
    char c[4];
    (void)n;
    for (int i = 0; i < n_cps; i++) {
        int len = utf8_encode(cps[i], c);
        jsb_puts(b, c, (size_t)len, mark);
    }
}

/* Python lowers a capital sigma at the end of a word to the final form. */
static int is_final_sigma(const struct jstr *s, size_t at, size_t n)
{
    uint32_t cp;
    if (at == 0) {
        return 0;
    }
    size_t before = last_char(s, at);
    utf8_decode(s->s + before, at - before, &cp);
    if (!unicode_is_cased(cp)) {
        return 0;
    }
    if (at + n >= s->n) {
        return 1;
    }
    return utf8_decode(s->s + at + n, s->n - at - n, &cp) > 0 && !unicode_is_cased(cp);
}

static int begins_word(uint32_t before)
{
    return before == '-' || before == '(' || before == '{' || before == '[' || before == '<' ||
           unicode_is_space(before);
}

int jcase(struct jinja_run *r, const struct jstr *s, enum jcase how, struct jval *out)
{
    struct jsb b;
    uint32_t before = ' ';
    jsb_init(&b);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp = 0, to[3];
        int len = utf8_decode(s->s + i, s->n - i, &cp), n;
        len = len > 0 ? len : 1;
        if (how == CASE_UPPER || (how == CASE_TITLE_FILTER && begins_word(before))) {
            n = unicode_upper(cp, to);
        } else if ((how == CASE_CAPITALIZE && i == 0) ||
                   (how == CASE_TITLE_METHOD && !unicode_is_cased(before))) {
            n = unicode_title(cp, to);
        } else if (cp == 0x3a3 && is_final_sigma(s, i, (size_t)len)) {
            to[0] = 0x3c2;
            n = 1;
        } else {
            n = unicode_lower(cp, to);
        }
        add_mapped(&b, s, i, (size_t)len, to, n);
        before = cp;
        i += (size_t)len;
    }
    return jsb_value(r, &b, out);
}

int jjoin(struct jinja_run *r, const struct jlist *l, const struct jstr *sep, int stringify,
          struct jval *out)
{
    struct jsb b;
    int rc = 0;
    jsb_init(&b);
    for (size_t i = 0; i < l->n && !rc; i++) {
        struct jval v = l->v[i];
        if (v.kind != J_STR && !stringify) {
            rc = jfail(r, "sequence item %zu: expected str instance, %s found", i, jtype(v));
        }
        rc = rc ? rc : jstring(r, v, &v);
        if (!rc) {
            if (i) {
                jsb_add(&b, sep, 0, sep->n);
            }
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

/* ---- splitting ---- */

static int split_space(struct jinja_run *r, const struct jstr *s, int64_t max, struct jval list)
{
    size_t i = unicode_leading_space(s->s, s->n);
    while (i < s->n) {
        size_t start = i;
        if (max == 0) {
            jinja_list_add(r, list,
                           jsub(r, s, i, s->n - unicode_trailing_space(s->s + i, s->n - i)));
            break;
        }
        while (i < s->n && !unicode_leading_space(s->s + i, char_len(s, i))) {
            i += char_len(s, i);
        }
        jinja_list_add(r, list, jsub(r, s, start, i));
        i += unicode_leading_space(s->s + i, s->n - i);
        max -= max > 0;
    }
    return 0;
}

static int split_sep(struct jinja_run *r, const struct jstr *s, const struct jstr *sep, int64_t max,
                     struct jval list)
{
    size_t at = 0, hit;
    if (sep->n == 0) {
        return jfail(r, "empty separator");
    }
    while (max != 0 && (hit = find(s, at, sep)) != SIZE_MAX) {
        jinja_list_add(r, list, jsub(r, s, at, hit));
        at = hit + sep->n;
        max -= max > 0;
        if (r->failed_alloc) {
            return ERR_INVALID;
        }
    }
    jinja_list_add(r, list, jsub(r, s, at, s->n));
    return 0;
}

static void reverse(struct jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jval t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}

static int rsplit(struct jinja_run *r, const struct jstr *s, const struct jstr *sep, int64_t max,
                  struct jval list)
{
    size_t end = s->n;
    if (sep && sep->n == 0) {
        return jfail(r, "empty separator");
    }
    if (!sep) {
        end -= unicode_trailing_space(s->s, end);
        while (end > 0 && max != 0) {
            size_t i = end;
            while (i > 0 && !unicode_leading_space(s->s + last_char(s, i), i - last_char(s, i))) {
                i = last_char(s, i);
            }
            jinja_list_add(r, list, jsub(r, s, i, end));
            end = i - unicode_trailing_space(s->s, i);
            max -= max > 0;
        }
        size_t from = unicode_leading_space(s->s, end);
        if (end > from) {
            jinja_list_add(r, list, jsub(r, s, from, end));
        }
    } else {
        size_t hit;
        while (max != 0 && (hit = rfind(s, end, sep)) != SIZE_MAX) {
            jinja_list_add(r, list, jsub(r, s, hit + sep->n, end));
            end = hit;
            max -= max > 0;
        }
        jinja_list_add(r, list, jsub(r, s, 0, end));
    }
    if (list.kind == J_LIST) {
        reverse(list.u.list);
    }
    return 0;
}

static int is_line_break(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

int jsplitlines(struct jinja_run *r, const struct jstr *s, struct jval *out)
{
    size_t start = 0;
    *out = jinja_list(r);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp = 0;
        int len = utf8_decode(s->s + i, s->n - i, &cp);
        len = len > 0 ? len : 1;
        if (is_line_break(cp)) {
            jinja_list_add(r, *out, jsub(r, s, start, i));
            len += cp == '\r' && i + 1 < s->n && s->s[i + 1] == '\n';
            start = i + (size_t)len;
        }
        i += (size_t)len;
    }
    if (start < s->n) {
        jinja_list_add(r, *out, jsub(r, s, start, s->n));
    }
    return r->failed_alloc ? ERR_INVALID : jwork(r, s->n);
}

/* ---- methods ---- */

static int affix(struct jinja_run *r, const struct jstr *s, struct jval what, int at_end, int *out)
{
    const struct jlist one = {.v = &what, .n = 1};
    const struct jlist *l = what.kind == J_TUPLE ? what.u.list : &one;
    *out = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (l->v[i].kind != J_STR) {
            return jfail(r, "%s first arg must be str or a tuple of str, not %s",
                         at_end ? "endswith" : "startswith", jtype(l->v[i]));
        }
        const struct jstr *w = l->v[i].u.s;
        *out |= w->n <= s->n && !memcmp(s->s + (at_end ? s->n - w->n : 0), w->s, w->n);
    }
    return 0;
}

static int all_chars(const struct jstr *s, int digits)
{
    for (size_t i = 0; i < s->n;) {
        uint32_t cp = 0;
        int len = utf8_decode(s->s + i, s->n - i, &cp);
        if (digits ? cp < '0' || cp > '9' : !unicode_is_space(cp)) {
            return 0;
        }
        i += (size_t)(len > 0 ? len : 1);
    }
    return s->n > 0;
}

static int64_t count_of(const struct jstr *s, const struct jstr *what)
{
    int64_t n = 0;
    if (what->n == 0) {
        return (int64_t)utf8_count(s->s, s->n) + 1;
    }
    for (size_t at = 0; (at = find(s, at, what)) != SIZE_MAX; at += what->n) {
        n++;
    }
    return n;
}

static int want_str(struct jinja_run *r, const struct jargs *a, size_t i, const struct jstr **out)
{
    *out = NULL;
    if (i >= a->n || a->v[i].kind == J_NONE) {
        return 0;
    }
    if (a->v[i].kind == J_UNDEFINED) {
        return jundefined_error(r, a->v[i]);
    }
    if (a->v[i].kind != J_STR) {
        return jfail(r, "argument %zu must be str, not %s", i + 1, jtype(a->v[i]));
    }
    *out = a->v[i].u.s;
    return 0;
}

static int string_method(struct jinja_run *r, enum method id, const struct jstr *s,
                         const struct jargs *a, struct jval *out)
{
    const struct jstr *x = NULL, *y = NULL;
    int64_t max = -1;
    int yes = 0;
    size_t hit;
    if (id == M_STARTSWITH || id == M_ENDSWITH) {
        int rc = affix(r, s, a->v[0], id == M_ENDSWITH, &yes);
        *out = jinja_bool(yes);
        return rc;
    }
    if (id == M_JOIN) {
        struct jlist *l;
        return jiterate(r, a->v[0], &l) ? ERR_INVALID : jjoin(r, l, s, 0, out);
    }
    if (want_str(r, a, 0, &x) || (id == M_REPLACE && want_str(r, a, 1, &y))) {
        return ERR_INVALID;
    }
    size_t i_max = id == M_REPLACE ? 2 : 1;
    if (a->n > i_max) {
        if (a->v[i_max].kind != J_INT) {
            return jfail(r, "argument %zu must be int, not %s", i_max + 1, jtype(a->v[i_max]));
        }
        max = a->v[i_max].u.i;
    }
    if (!x && a->n && id != M_STRIP && id != M_LSTRIP && id != M_RSTRIP && id != M_SPLIT &&
        id != M_RSPLIT) {
        return jfail(r, "argument 1 must be str, not NoneType");
    }
    if (jwork(r, s->n)) {
        return ERR_INVALID;
    }
    switch (id) {
    case M_CAPITALIZE:
        return jcase(r, s, CASE_CAPITALIZE, out);
    case M_TITLE:
        return jcase(r, s, CASE_TITLE_METHOD, out);
    case M_UPPER:
        return jcase(r, s, CASE_UPPER, out);
    case M_LOWER:
        return jcase(r, s, CASE_LOWER, out);
    case M_STRIP:
        return jstrip(r, s, x, 3, out);
    case M_LSTRIP:
        return jstrip(r, s, x, 1, out);
    case M_RSTRIP:
        return jstrip(r, s, x, 2, out);
    case M_COUNT:
        *out = jint(count_of(s, x));
        return 0;
    case M_FIND:
    case M_INDEX:
    case M_RFIND:
        hit = id == M_RFIND ? rfind(s, s->n, x) : find(s, 0, x);
        if (hit == SIZE_MAX && id == M_INDEX) {
            return jfail(r, "substring not found");
        }
        *out = jint(hit == SIZE_MAX ? -1 : (int64_t)utf8_count(s->s, hit));
        return 0;
    case M_ISDIGIT:
    case M_ISSPACE:
        *out = jinja_bool(all_chars(s, id == M_ISDIGIT));
        return 0;
    case M_REMOVEPREFIX:
        yes = x->n <= s->n && !memcmp(s->s, x->s, x->n);
        *out = jsub(r, s, yes ? x->n : 0, s->n);
        return 0;
    case M_REMOVESUFFIX:
        yes = x->n <= s->n && !memcmp(s->s + s->n - x->n, x->s, x->n);
        *out = jsub(r, s, 0, s->n - (yes ? x->n : 0));
        return 0;
    case M_REPLACE:
        return y ? jreplace(r, s, x, y, max, out)
                 : jfail(r, "argument 2 must be str, not NoneType");
    case M_SPLITLINES:
        return jsplitlines(r, s, out);
    case M_SPLIT:
        *out = jinja_list(r);
        return x ? split_sep(r, s, x, max, *out) : split_space(r, s, max, *out);
    case M_RSPLIT:
        *out = jinja_list(r);
        return rsplit(r, s, x, max, *out);
    default:
        return jfail(r, "unknown method");
    }
}

static int list_method(struct jinja_run *r, enum method id, const struct jlist *l,
                       const struct jargs *a, struct jval *out)
{
    int64_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        int same;
        if (jequal(r, l->v[i], a->v[0], &same)) {
            return ERR_INVALID;
        }
        if (same && id == M_INDEX) {
            *out = jint((int64_t)i);
            return 0;
        }
        n += same;
    }
    *out = jint(n);
    return id == M_INDEX ? jfail(r, "the value is not in the list") : 0;
}

static int dict_method(struct jinja_run *r, enum method id, const struct jdict *d,
                       const struct jargs *a, struct jval *out)
{
    if (id == M_GET) {
        const struct jval *v = jdict_find(r, d, a->v[0]);
        *out = v ? *v : a->n > 1 ? a->v[1] : jnone();
        return jwork(r, 1);
    }
    *out = jinja_list(r);
    for (size_t i = 0; i < d->n && !r->failed_alloc; i++) {
        jinja_list_add(r, *out,
                       id == M_KEYS     ? d->v[i].key
                       : id == M_VALUES ? d->v[i].value
                                        : jtuple2(r, d->v[i].key, d->v[i].value));
    }
    return r->failed_alloc ? ERR_INVALID : jwork(r, d->n);
}

int jmethod(struct jinja_run *r, int id, struct jval self, const struct jargs *args,
            struct jval *out)
{
    enum method m = methods[id].id;
    struct jval bound[4];
    struct jargs a = *args;
    if (m == M_MUTATES) {
        return jfail(r, "'%s' changes a %s, which templates may not do", methods[id].name,
                     jtype(self));
    }
    if (a.n_kw == 1 && a.n == 1 && m == M_SPLIT && !strcmp(a.kw_name[0], "maxsplit")) {
        bound[0] = a.v[0];
        bound[1] = a.kw_value[0];
        a = (struct jargs){.v = bound, .n = 2};
    }
    if (a.n_kw) {
        return jfail(r, "%s() takes no keyword arguments", methods[id].name);
    }
    if ((int)a.n < methods[id].min || (int)a.n > methods[id].max) {
        return jfail(r, "%s() takes %d to %d arguments (%zu given)", methods[id].name,
                     methods[id].min, methods[id].max, a.n);
    }
    switch (self.kind) {
    case J_STR:
        return string_method(r, m, self.u.s, &a, out);
    case J_LIST:
    case J_TUPLE:
        return list_method(r, m, self.u.list, &a, out);
    case J_DICT:
        return dict_method(r, m, self.u.dict, &a, out);
    case J_LOOP:
        *out = a.v[self.u.object->index % a.n];
        return 0;
    default:
        return jfail(r, "'%s' has no such method", jtype(self));
    }
}

/* ---- functions ---- */

static int range(struct jinja_run *r, const struct jargs *a, struct jval *out)
{
    int64_t v[3] = {0, 0, 1};
    if (a->n < 1 || a->n > 3 || a->n_kw) {
        return jfail(r, "range expected 1 to 3 arguments, got %zu", a->n);
    }
    for (size_t i = 0; i < a->n; i++) {
        if (a->v[i].kind == J_UNDEFINED) {
            return jundefined_error(r, a->v[i]);
        }
        if (a->v[i].kind != J_INT && a->v[i].kind != J_BOOL) {
            return jfail(r, "'%s' object cannot be interpreted as an integer", jtype(a->v[i]));
        }
        v[a->n == 1 ? 1 : i] = a->v[i].u.i;
    }
    if (v[2] == 0) {
        return jfail(r, "range() arg 3 must not be zero");
    }
    *out = jinja_list(r);
    int64_t n = 0;
    for (int64_t i = v[0]; v[2] > 0 ? i < v[1] : i > v[1];) {
        if (++n > JINJA_RANGE_MAX) {
            return jfail(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                         JINJA_RANGE_MAX);
        }
        jinja_list_add(r, *out, jint(i));
        if (__builtin_add_overflow(i, v[2], &i)) {
            break;
        }
    }
    return r->failed_alloc ? ERR_INVALID : jwork(r, (size_t)n * 16);
}

static int make_dict(struct jinja_run *r, int namespace, const struct jargs *a, struct jval *out)
{
    *out = jinja_dict(r);
    if (a->n > 1 || (a->n == 1 && a->v[0].kind != J_DICT)) {
        return jfail(r, "%s() takes keyword arguments or one dict",
                     namespace ? "namespace" : "dict");
    }
    for (size_t i = 0; a->n == 1 && i < a->v[0].u.dict->n; i++) {
        jinja_dict_set(r, *out, a->v[0].u.dict->v[i].key, a->v[0].u.dict->v[i].value);
    }
    for (size_t i = 0; i < a->n_kw; i++) {
        jinja_dict_set(r, *out, jinja_text(r, a->kw_name[i], strlen(a->kw_name[i]), 1, 0),
                       a->kw_value[i]);
    }
    if (namespace && out->kind == J_DICT) {
        out->kind = J_NAMESPACE;
    }
    return r->failed_alloc ? ERR_INVALID : 0;
}

static int raise_exception(struct jinja_run *r, const struct jargs *a)
{
    struct jval s;
    if (a->n != 1 || jstring(r, a->v[0], &s)) {
        return jfail(r, "raise_exception() takes one message");
    }
    err_set(r->e, ERR_INVALID, "%.*s", s.u.s->n > 480 ? 480 : (int)s.u.s->n, s.u.s->s);
    return ERR_INVALID;
}

static int strftime_now(struct jinja_run *r, const struct jargs *a, struct jval *out)
{
    char format[128], text[512];
    time_t now = (time_t)clock_unix_s();
    struct tm tm;
    if (a->n != 1 || a->v[0].kind != J_STR || a->v[0].u.s->n >= sizeof(format)) {
        return jfail(r, "strftime_now() takes one format of at most 127 bytes");
    }
    memcpy(format, a->v[0].u.s->s, a->v[0].u.s->n);
    format[a->v[0].u.s->n] = 0;
    localtime_r(&now, &tm);
    size_t n = strftime(text, sizeof(text), format, &tm);
    *out = jinja_text(r, text, n, 1, 1);
    return r->failed_alloc ? ERR_INVALID : 0;
}

int jfunction(struct jinja_run *r, int id, const struct jargs *args, struct jval *out)
{
    switch ((enum function)id) {
    case F_RANGE:
        return range(r, args, out);
    case F_NAMESPACE:
    case F_DICT:
        return make_dict(r, id == F_NAMESPACE, args, out);
    case F_RAISE:
        return raise_exception(r, args);
    case F_STRFTIME:
        return strftime_now(r, args, out);
    default:
        return jfail(r, "unknown function");
    }
}
