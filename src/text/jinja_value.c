/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a rendering: strings with marks, containers, and how Python prints, compares and walks
 * them. */
#include "text/jinja_int.h"

#include "base/utf8.h"
#include "text/unicode.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors and memory ---- */

int jfail(struct jinja_run *r, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    err_set(r->e, ERR_INVALID, "%s, line %d: %s", r->t->name, r->line, text);
    return ERR_INVALID;
}

int jwork(struct jinja_run *r, size_t n_bytes)
{
    r->work += n_bytes;
    return r->work > JINJA_WORK_BYTES_MAX ? jfail(r, "the template does too much work") : 0;
}

void *jalloc(struct jinja_run *r, size_t n_bytes)
{
    r->memory += n_bytes;
    if (r->memory > JINJA_MEMORY_BYTES_MAX) {
        r->failed_alloc = 1;
        jfail(r, "the template needs too much memory");
        return NULL;
    }
    void *p = arena_alloc(&r->arena, n_bytes ? n_bytes : 1);
    if (!p) {
        r->failed_alloc = 1;
        jfail(r, "out of memory");
    }
    return p;
}

/* ---- strings ---- */

void jsb_init(struct jsb *b)
{
    buf_init(&b->text);
    buf_init(&b->marks);
    b->uniform = -1;
}

void jsb_fini(struct jsb *b)
{
    buf_fini(&b->text);
    buf_fini(&b->marks);
}

static void add_marks(struct buf *b, int mark, size_t n)
{
    if (!buf_reserve(b, n)) {
        memset(b->data + b->len, mark, n);
        b->len += n;
    }
}

/* Writes the marks out as soon as they differ. */
static void mixed(struct jsb *b)
{
    if (b->uniform != 2) {
        add_marks(&b->marks, b->uniform == 1, b->text.len);
        b->uniform = 2;
    }
}

void jsb_puts(struct jsb *b, const char *s, size_t n, int mark)
{
    if (n == 0) {
        return;
    }
    if (b->uniform == -1) {
        b->uniform = mark;
    } else if (b->uniform != mark) {
        mixed(b);
    }
    if (b->uniform == 2) {
        add_marks(&b->marks, mark, n);
    }
    buf_append(&b->text, s, n);
}

void jsb_add(struct jsb *b, const struct jstr *s, size_t from, size_t to)
{
    if (!s->m || to <= from) {
        jsb_puts(b, s->s + from, to > from ? to - from : 0, s->mark);
        return;
    }
    if (b->uniform == -1) {
        b->uniform = 2;
    } else {
        mixed(b);
    }
    buf_append(&b->marks, s->m + from, to - from);
    buf_append(&b->text, s->s + from, to - from);
}

int jsb_value(struct jinja_run *r, struct jsb *b, struct jval *out)
{
    struct jstr *s = jalloc(r, sizeof(*s));
    size_t n = b->text.len;
    char *text = s ? jalloc(r, n + 1) : NULL;
    uint8_t *m = text && b->uniform == 2 ? jalloc(r, n) : NULL;
    int rc = 0;
    if (b->text.failed || b->marks.failed) {
        rc = jfail(r, "out of memory");
    } else if (!text || (b->uniform == 2 && !m)) {
        rc = ERR_INVALID;
    } else {
        if (n) {
            memcpy(text, b->text.data, n);
        }
        if (m) {
            memcpy(m, b->marks.data, n);
        }
        *s = (struct jstr){.s = text, .n = n, .m = m, .mark = b->uniform != 0};
        *out = (struct jval){.kind = J_STR, .u.s = s};
        rc = jwork(r, n);
    }
    jsb_fini(b);
    return rc;
}

/* A string value over bytes that outlive the run, or {0} = undefined after a failed allocation. */
static struct jval borrow(struct jinja_run *r, const char *s, size_t n, const uint8_t *m, int mark)
{
    struct jstr *p = jalloc(r, sizeof(*p));
    if (!p) {
        return (struct jval){0};
    }
    *p = (struct jstr){.s = s, .n = n, .m = m, .mark = (uint8_t)mark};
    return (struct jval){.kind = J_STR, .u.s = p};
}

struct jval jsub(struct jinja_run *r, const struct jstr *s, size_t from, size_t to)
{
    return borrow(r, s->s + from, to - from, s->m ? s->m + from : NULL, s->mark);
}

struct jval jlit(struct jinja_run *r, const char *s)
{
    return jinja_text(r, s, strlen(s), 1, 1);
}

struct jval jinja_text(struct jinja_run *r, const char *s, size_t n_bytes, int is_template,
                       int copy)
{
    if (copy) {
        char *p = jalloc(r, n_bytes + 1);
        if (!p) {
            return (struct jval){0};
        }
        memcpy(p, s, n_bytes);
        s = p;
    }
    return borrow(r, s, n_bytes, NULL, is_template);
}

size_t jchar_offset(const struct jstr *s, size_t n_chars)
{
    size_t i = 0;
    while (i < s->n && n_chars) {
        i++;
        while (i < s->n && ((uint8_t)s->s[i] & 0xc0) == 0x80) {
            i++;
        }
        n_chars--;
    }
    return i;
}

/* ---- other constructors ---- */

struct jval jundefined(struct jinja_run *r, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    struct jobject *o = jalloc(r, sizeof(*o));
    char *copy = o ? jalloc(r, strlen(text) + 1) : NULL;
    if (copy) {
        memcpy(copy, text, strlen(text) + 1);
        o->text = copy;
    }
    return (struct jval){.kind = J_UNDEFINED, .u.object = copy ? o : NULL};
}

int jundefined_error(struct jinja_run *r, struct jval v)
{
    return jfail(r, "%s", v.u.object ? v.u.object->text : "a value is undefined");
}

struct jval jnone(void)
{
    return (struct jval){.kind = J_NONE};
}

struct jval jinja_bool(int v)
{
    return (struct jval){.kind = J_BOOL, .u.i = v != 0};
}

struct jval jint(int64_t v)
{
    return (struct jval){.kind = J_INT, .u.i = v};
}

struct jval jfloat(double v)
{
    return (struct jval){.kind = J_FLOAT, .u.f = v};
}

struct jval jinja_list(struct jinja_run *r)
{
    struct jlist *l = jalloc(r, sizeof(*l));
    return l ? (struct jval){.kind = J_LIST, .u.list = l} : (struct jval){0};
}

struct jval jinja_dict(struct jinja_run *r)
{
    struct jdict *d = jalloc(r, sizeof(*d));
    return d ? (struct jval){.kind = J_DICT, .u.dict = d} : (struct jval){0};
}

/* Room for one more element in an arena array: doubled, the old one stays behind. */
static void *grow(struct jinja_run *r, void *v, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) {
        return v;
    }
    size_t want = *cap ? *cap * 2 : 4;
    void *p = jalloc(r, want * size);
    if (p) {
        if (n) {
            memcpy(p, v, n * size);
        }
        *cap = want;
    }
    return p;
}

void jinja_list_add(struct jinja_run *r, struct jval list, struct jval item)
{
    if (list.kind != J_LIST && list.kind != J_TUPLE) {
        return; /* a failed allocation: the run fails */
    }
    struct jlist *l = list.u.list;
    struct jval *v = grow(r, l->v, l->n, &l->cap, sizeof(*v));
    if (v) {
        l->v = v;
        l->v[l->n++] = item;
    }
}

struct jval jtuple2(struct jinja_run *r, struct jval a, struct jval b)
{
    struct jval t = jinja_list(r);
    if (t.kind == J_LIST) {
        t.kind = J_TUPLE;
        jinja_list_add(r, t, a);
        jinja_list_add(r, t, b);
    }
    return t;
}

static int same_key(struct jval a, struct jval b)
{
    if (a.kind == J_STR || b.kind == J_STR) {
        return a.kind == b.kind && a.u.s->n == b.u.s->n && !memcmp(a.u.s->s, b.u.s->s, a.u.s->n);
    }
    if (a.kind == J_NONE || b.kind == J_NONE) {
        return a.kind == b.kind;
    }
    double x = a.kind == J_FLOAT ? a.u.f : (double)a.u.i,
           y = b.kind == J_FLOAT ? b.u.f : (double)b.u.i;
    return a.kind != J_FLOAT && b.kind != J_FLOAT ? a.u.i == b.u.i : x == y;
}

static int is_hashable(struct jval v)
{
    return v.kind >= J_NONE && v.kind <= J_STR;
}

struct jval *jdict_find(struct jinja_run *r, const struct jdict *d, struct jval key)
{
    if (!is_hashable(key)) {
        return NULL;
    }
    r->work += d->n; /* bounded by the next jwork */
    for (size_t i = 0; i < d->n; i++) {
        if (same_key(d->v[i].key, key)) {
            return &d->v[i].value;
        }
    }
    return NULL;
}

struct jval *jdict_find_name(const struct jdict *d, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < d->n; i++) {
        if (d->v[i].key.kind == J_STR && d->v[i].key.u.s->n == n &&
            !memcmp(d->v[i].key.u.s->s, name, n)) {
            return &d->v[i].value;
        }
    }
    return NULL;
}

static void dict_append(struct jinja_run *r, struct jdict *d, struct jval key, struct jval value)
{
    struct jentry *v = grow(r, d->v, d->n, &d->cap, sizeof(*v));
    if (v) {
        d->v = v;
        d->v[d->n++] = (struct jentry){key, value};
    }
}

void jinja_dict_set(struct jinja_run *r, struct jval dict, struct jval key, struct jval value)
{
    if (dict.kind != J_DICT && dict.kind != J_NAMESPACE) {
        return;
    }
    struct jval *old = jdict_find(r, dict.u.dict, key);
    if (old) {
        *old = value;
    } else {
        dict_append(r, dict.u.dict, key, value);
    }
}

struct jval jinja_from_json(struct jinja_run *r, const struct json *v, int copy)
{
    size_t n, it = 0;
    const char *s;
    const struct json *item;
    struct jval out;
    switch (json_type(v)) {
    case JSON_BOOL:
        return jinja_bool(json_bool(v));
    case JSON_INT:
        return jint(json_int(v));
    case JSON_DOUBLE:
        return jfloat(json_double(v));
    case JSON_STRING:
        s = json_string(v, &n);
        return jinja_text(r, s, n, 0, copy);
    case JSON_ARRAY:
        out = jinja_list(r);
        n = json_length(v);
        for (size_t i = 0; i < n && !r->failed_alloc; i++) {
            jinja_list_add(r, out, jinja_from_json(r, json_at(v, i), copy));
        }
        return out;
    case JSON_OBJECT:
        out = jinja_dict(r);
        while (out.kind == J_DICT && !r->failed_alloc && json_next(v, &it, &s, &n, &item)) {
            /* The keys of a document are distinct: no search. */
            dict_append(r, out.u.dict, jinja_text(r, s, n, 0, copy),
                        jinja_from_json(r, item, copy));
        }
        return out;
    default:
        return jnone();
    }
}

/* ---- questions ---- */

const char *jtype(struct jval v)
{
    static const char *const names[] = {"Undefined",   "NoneType", "bool",     "int",   "float",
                                        "str",         "list",     "tuple",    "dict",  "Namespace",
                                        "LoopContext", "Macro",    "function", "method"};
    return names[v.kind];
}

int jtruth(struct jval v)
{
    switch (v.kind) {
    case J_UNDEFINED:
    case J_NONE:
        return 0;
    case J_BOOL:
    case J_INT:
        return v.u.i != 0;
    case J_FLOAT:
        return v.u.f != 0;
    case J_STR:
        return v.u.s->n != 0;
    case J_LIST:
    case J_TUPLE:
        return v.u.list->n != 0;
    case J_DICT:
        return v.u.dict->n != 0;
    default:
        return 1;
    }
}

static int deeper(struct jinja_run *r)
{
    return ++r->depth > JINJA_EVAL_DEPTH_MAX ? jfail(r, "a value is nested too deeply") : 0;
}

static int equal_containers(struct jinja_run *r, struct jval a, struct jval b, int *out)
{
    int rc = deeper(r);
    *out = 1;
    if (a.kind == J_DICT) {
        *out = a.u.dict->n == b.u.dict->n;
        for (size_t i = 0; !rc && *out && i < a.u.dict->n; i++) {
            struct jval *other = jdict_find(r, b.u.dict, a.u.dict->v[i].key);
            *out = other != NULL;
            if (other) {
                rc = jequal(r, a.u.dict->v[i].value, *other, out);
            }
        }
    } else {
        *out = a.u.list->n == b.u.list->n;
        for (size_t i = 0; !rc && *out && i < a.u.list->n; i++) {
            rc = jequal(r, a.u.list->v[i], b.u.list->v[i], out);
        }
    }
    r->depth--;
    return rc;
}

int jequal(struct jinja_run *r, struct jval a, struct jval b, int *out)
{
    *out = 0;
    if (jwork(r, JINJA_COMPARE_BYTES)) {
        return ERR_INVALID;
    }
    if (jis_number(a) && jis_number(b)) {
        *out = a.kind != J_FLOAT && b.kind != J_FLOAT ? a.u.i == b.u.i : jdouble(a) == jdouble(b);
        return 0;
    }
    if (a.kind != b.kind) {
        return 0;
    }
    switch (a.kind) {
    case J_UNDEFINED:
    case J_NONE:
        *out = 1;
        return 0;
    case J_STR:
        *out = a.u.s->n == b.u.s->n && !memcmp(a.u.s->s, b.u.s->s, a.u.s->n);
        return *out ? jwork(r, a.u.s->n) : 0;
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
        return equal_containers(r, a, b, out);
    default:
        *out = a.u.object == b.u.object;
        return 0;
    }
}

int jless(struct jinja_run *r, struct jval a, struct jval b, const char *op, int *out)
{
    if (jwork(r, JINJA_COMPARE_BYTES)) {
        return ERR_INVALID;
    }
    if (jis_number(a) && jis_number(b)) {
        *out = a.kind != J_FLOAT && b.kind != J_FLOAT ? a.u.i < b.u.i : jdouble(a) < jdouble(b);
        return 0;
    }
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED) {
        return jundefined_error(r, a.kind == J_UNDEFINED ? a : b);
    }
    if (a.kind == J_STR && b.kind == J_STR) {
        size_t n = a.u.s->n < b.u.s->n ? a.u.s->n : b.u.s->n;
        int c = memcmp(a.u.s->s, b.u.s->s, n);
        *out = c ? c < 0 : a.u.s->n < b.u.s->n;
        return jwork(r, n);
    }
    if ((a.kind == J_LIST || a.kind == J_TUPLE) && a.kind == b.kind) {
        const struct jlist *x = a.u.list, *y = b.u.list;
        int rc = deeper(r);
        size_t i = 0;
        int same = 1;
        while (!rc && i < x->n && i < y->n) {
            rc = jequal(r, x->v[i], y->v[i], &same);
            if (!same) {
                break;
            }
            i++;
        }
        if (!rc && i < x->n && i < y->n) {
            rc = jless(r, x->v[i], y->v[i], op, out);
        } else {
            *out = i == x->n && i < y->n;
        }
        r->depth--;
        return rc;
    }
    return jfail(r, "'%s' not supported between instances of '%s' and '%s'", op, jtype(a),
                 jtype(b));
}

int jlength(struct jinja_run *r, struct jval v, int64_t *out)
{
    switch (v.kind) {
    case J_UNDEFINED:
        *out = 0;
        return 0;
    case J_STR:
        *out = (int64_t)utf8_count(v.u.s->s, v.u.s->n);
        return jwork(r, v.u.s->n);
    case J_LIST:
    case J_TUPLE:
        *out = (int64_t)v.u.list->n;
        return 0;
    case J_DICT:
        *out = (int64_t)v.u.dict->n;
        return 0;
    default:
        return jfail(r, "object of type '%s' has no len()", jtype(v));
    }
}

int jiterate(struct jinja_run *r, struct jval v, struct jlist **out)
{
    static struct jlist empty; /* never written: nothing appends to a list it did not make */
    struct jval l;
    switch (v.kind) {
    case J_UNDEFINED:
        *out = &empty;
        return 0;
    case J_LIST:
    case J_TUPLE:
        *out = v.u.list;
        return 0;
    case J_DICT:
        l = jinja_list(r);
        for (size_t i = 0; i < v.u.dict->n; i++) {
            jinja_list_add(r, l, v.u.dict->v[i].key);
        }
        break;
    case J_STR:
        l = jinja_list(r);
        for (size_t i = 0, n; i < v.u.s->n && !r->failed_alloc; i += n) {
            struct jstr rest = {.s = v.u.s->s + i, .n = v.u.s->n - i};
            n = jchar_offset(&rest, 1);
            jinja_list_add(r, l, jsub(r, v.u.s, i, i + n));
        }
        break;
    default:
        return jfail(r, "'%s' object is not iterable", jtype(v));
    }
    if (l.kind != J_LIST || r->failed_alloc) {
        return ERR_INVALID;
    }
    *out = l.u.list;
    return 0;
}

/* ---- printing ---- */

static void print_double(double v, struct buf *b)
{
    struct json_writer w;
    if (!isfinite(v)) {
        buf_puts(b, isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
        return;
    }
    json_w_init(&w, b);
    json_w_double(&w, v);
}

static void print_number(struct jval v, struct jsb *b)
{
    struct buf t;
    buf_init(&t);
    if (v.kind == J_FLOAT) {
        print_double(v.u.f, &t);
    } else {
        buf_printf(&t, "%lld", (long long)v.u.i);
    }
    jsb_puts(b, t.data ? t.data : "", t.len, 1);
    buf_fini(&t);
}

static void puts_mark(struct jsb *b, const char *s, int mark)
{
    jsb_puts(b, s, strlen(s), mark);
}

static int mark_at(const struct jstr *s, size_t i)
{
    return s->m ? s->m[i] : s->mark;
}

/* Python's repr of a string. */
static void repr_string(const struct jstr *s, struct jsb *b)
{
    char quote = memchr(s->s, '\'', s->n) && !memchr(s->s, '"', s->n) ? '"' : '\'';
    char text[16];
    jsb_puts(b, &quote, 1, 1);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        int n = utf8_decode(s->s + i, s->n - i, &cp);
        n = n > 0 ? n : 1;
        const char *plain = cp == '\n'   ? "\\n"
                            : cp == '\r' ? "\\r"
                            : cp == '\t' ? "\\t"
                            : cp == '\\' ? "\\\\"
                                         : NULL;
        if (plain) {
            puts_mark(b, plain, mark_at(s, i));
        } else if (cp == (uint32_t)quote) {
            snprintf(text, sizeof(text), "\\%c", quote);
            puts_mark(b, text, mark_at(s, i));
        } else if (unicode_is_printable(cp)) {
            jsb_add(b, s, i, i + (size_t)n);
        } else {
            snprintf(text, sizeof(text),
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     cp);
            puts_mark(b, text, mark_at(s, i));
        }
        i += (size_t)n;
    }
    jsb_puts(b, &quote, 1, 1);
}

static int repr_items(struct jinja_run *r, struct jval v, struct jsb *b)
{
    int rc = deeper(r);
    int is_dict = v.kind == J_DICT;
    size_t n = is_dict ? v.u.dict->n : v.u.list->n;
    puts_mark(b, is_dict ? "{" : v.kind == J_LIST ? "[" : "(", 1);
    for (size_t i = 0; i < n && !rc; i++) {
        if (i) {
            puts_mark(b, ", ", 1);
        }
        if (is_dict) {
            rc = jrepr(r, v.u.dict->v[i].key, b);
            puts_mark(b, ": ", 1);
        }
        rc = rc ? rc : jrepr(r, is_dict ? v.u.dict->v[i].value : v.u.list->v[i], b);
        if (b->text.len > JINJA_OUTPUT_BYTES_MAX) {
            rc = jfail(r, "a printed value is too large");
        }
    }
    puts_mark(b, is_dict ? "}" : v.kind == J_LIST ? "]" : n == 1 ? ",)" : ")", 1);
    r->depth--;
    return rc;
}

int jrepr(struct jinja_run *r, struct jval v, struct jsb *b)
{
    switch (v.kind) {
    case J_UNDEFINED:
        puts_mark(b, "Undefined", 1);
        return 0;
    case J_NONE:
        puts_mark(b, "None", 1);
        return 0;
    case J_BOOL:
        puts_mark(b, v.u.i ? "True" : "False", 1);
        return 0;
    case J_INT:
    case J_FLOAT:
        print_number(v, b);
        return 0;
    case J_STR:
        repr_string(v.u.s, b);
        return jwork(r, v.u.s->n);
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
        return repr_items(r, v, b);
    default:
        return jfail(r, "a %s cannot be printed", jtype(v));
    }
}

int jstring(struct jinja_run *r, struct jval v, struct jval *out)
{
    struct jsb b;
    if (v.kind == J_STR) {
        *out = v;
        return 0;
    }
    jsb_init(&b);
    int rc = v.kind == J_UNDEFINED ? 0 : jrepr(r, v, &b);
    if (rc) {
        jsb_fini(&b);
        return rc;
    }
    return jsb_value(r, &b, out);
}

/* ---- JSON ---- */

struct dump {
    struct jinja_run *r;
    struct jsb *b;
    int indent, sort_keys, ascii;
    const struct jstr *item_sep, *key_sep;
    int level;
};

static void dump_string(struct dump *d, const struct jstr *s)
{
    char text[16];
    puts_mark(d->b, "\"", 1);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        int n = utf8_decode(s->s + i, s->n - i, &cp);
        n = n > 0 ? n : 1;
        const char *plain = cp == '"'    ? "\\\""
                            : cp == '\\' ? "\\\\"
                            : cp == '\n' ? "\\n"
                            : cp == '\r' ? "\\r"
                            : cp == '\t' ? "\\t"
                            : cp == '\f' ? "\\f"
                            : cp == '\b' ? "\\b"
                                         : NULL;
        if (plain) {
            puts_mark(d->b, plain, mark_at(s, i));
        } else if (cp < 0x20 || (d->ascii && cp > 0x7e && cp < 0x10000)) {
            snprintf(text, sizeof(text), "\\u%04x", cp);
            puts_mark(d->b, text, mark_at(s, i));
        } else if (d->ascii && cp >= 0x10000) {
            snprintf(text, sizeof(text), "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                     0xdc00 + ((cp - 0x10000) & 0x3ff));
            puts_mark(d->b, text, mark_at(s, i));
        } else {
            jsb_add(d->b, s, i, i + (size_t)n);
        }
        i += (size_t)n;
    }
    puts_mark(d->b, "\"", 1);
}

static void dump_newline(struct dump *d)
{
    if (d->indent >= 0) {
        puts_mark(d->b, "\n", 1);
        for (int i = 0; i < d->indent * d->level; i++) {
            puts_mark(d->b, " ", 1);
        }
    }
}

static int dump(struct dump *d, struct jval v);

/* An object key that is no string, as json.dumps writes it. */
static int dump_key(struct dump *d, struct jval key)
{
    if (key.kind == J_STR) {
        dump_string(d, key.u.s);
        return 0;
    }
    puts_mark(d->b, "\"", 1);
    int rc = dump(d, key);
    puts_mark(d->b, "\"", 1);
    return rc;
}

static int sort_entries(struct jinja_run *r, struct jentry *v, size_t n)
{
    for (size_t i = 1; i < n;
         i++) { /* objects in templates are small; insertion keeps equal keys in order */
        struct jentry x = v[i];
        size_t k = i;
        int less = 0;
        while (k > 0) {
            int rc = jless(r, x.key, v[k - 1].key, "<", &less);
            if (rc || jwork(r, 16)) {
                return ERR_INVALID;
            }
            if (!less) {
                break;
            }
            v[k] = v[k - 1];
            k--;
        }
        v[k] = x;
    }
    return 0;
}

static int dump_items(struct dump *d, struct jval v)
{
    int is_dict = v.kind == J_DICT;
    size_t n = is_dict ? v.u.dict->n : v.u.list->n;
    struct jentry *entries = is_dict ? v.u.dict->v : NULL;
    int rc = deeper(d->r);
    if (is_dict && d->sort_keys && n && !rc) {
        entries = jalloc(d->r, n * sizeof(*entries));
        if (!entries) {
            rc = ERR_INVALID;
        } else {
            memcpy(entries, v.u.dict->v, n * sizeof(*entries));
            rc = sort_entries(d->r, entries, n);
        }
    }
    puts_mark(d->b, is_dict ? "{" : "[", 1);
    d->level++;
    for (size_t i = 0; i < n && !rc; i++) {
        if (i) {
            jsb_add(d->b, d->item_sep, 0, d->item_sep->n);
        }
        dump_newline(d);
        if (is_dict) {
            rc = dump_key(d, entries[i].key);
            jsb_add(d->b, d->key_sep, 0, d->key_sep->n);
        }
        rc = rc ? rc : dump(d, is_dict ? entries[i].value : v.u.list->v[i]);
        if (!rc && d->b->text.len > JINJA_OUTPUT_BYTES_MAX) {
            rc = jfail(d->r, "a printed value is too large");
        }
    }
    d->level--;
    if (n) {
        dump_newline(d);
    }
    puts_mark(d->b, is_dict ? "}" : "]", 1);
    d->r->depth--;
    return rc;
}

static int dump(struct dump *d, struct jval v)
{
    switch (v.kind) {
    case J_NONE:
        puts_mark(d->b, "null", 1);
        return 0;
    case J_BOOL:
        puts_mark(d->b, v.u.i ? "true" : "false", 1);
        return 0;
    case J_INT:
        print_number(v, d->b);
        return 0;
    case J_FLOAT:
        if (isfinite(v.u.f)) {
            print_number(v, d->b);
        } else {
            puts_mark(d->b, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity", 1);
        }
        return 0;
    case J_STR:
        dump_string(d, v.u.s);
        return jwork(d->r, v.u.s->n);
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
        return dump_items(d, v);
    default:
        return jfail(d->r, "Object of type %s is not JSON serializable", jtype(v));
    }
}

int jtojson(struct jinja_run *r, struct jval v, int indent, int sort_keys,
            const struct jstr *item_sep, const struct jstr *key_sep, int ensure_ascii,
            struct jval *out)
{
    static const struct jstr comma_space = {.s = ", ", .n = 2, .mark = 1},
                             comma = {.s = ",", .n = 1, .mark = 1},
                             colon = {.s = ": ", .n = 2, .mark = 1};
    struct jsb b;
    struct dump d = {r,
                     &b,
                     indent,
                     sort_keys,
                     ensure_ascii,
                     item_sep      ? item_sep
                     : indent >= 0 ? &comma
                                   : &comma_space,
                     key_sep ? key_sep : &colon,
                     0};
    jsb_init(&b);
    int rc = dump(&d, v);
    if (rc) {
        jsb_fini(&b);
        return rc;
    }
    return jsb_value(r, &b, out);
}
