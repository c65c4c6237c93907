/* SPDX-License-Identifier: Apache-2.0 */
/* What the files jinja_*.c share: tokens, the syntax tree, values, the state of a rendering. */
#ifndef TERN_TEXT_JINJA_INT_H
#define TERN_TEXT_JINJA_INT_H

#include "base/arena.h"
#include "text/jinja.h"

/* ---- tokens (jinja_lex.c) ---- */

enum jtok_type {
    T_EOF,
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP,
};

enum jop {
    OP_NONE,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_TILDE,
    OP_LBRACKET,
    OP_RBRACKET,
    OP_LPAREN,
    OP_RPAREN,
    OP_LBRACE,
    OP_RBRACE,
    OP_EQ,
    OP_NE,
    OP_GT,
    OP_GE,
    OP_LT,
    OP_LE,
    OP_ASSIGN,
    OP_DOT,
    OP_COLON,
    OP_PIPE,
    OP_COMMA,
    OP_SEMICOLON,
    OP_IN,
    OP_NOT_IN,
};

struct jtok {
    enum jtok_type type;
    enum jop op;
    int line;
    const char *s; /* text of data, names and decoded strings; NUL-terminated for names */
    size_t n;
    int64_t i;
    double f;
};

struct jtokens {
    struct jtok *v;
    size_t n, cap;
};

/* Texts are allocated in a. */
int jinja_lex(struct jtokens *out, struct arena *a, const char *source, size_t n_bytes,
              const char *name, struct err *e);

/* ---- syntax tree ---- */

enum jnode_type {
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT, /* list: key, value, key, value, … */
    N_ATTR,
    N_ITEM,
    N_SLICE, /* a; list: start, stop, step (NULL = left out) */
    N_CALL,
    N_FILTER, /* a; name; id; list, kw */
    N_TEST,
    N_NOT,
    N_NEG,
    N_POS,
    N_BINARY, /* op */
    N_AND,
    N_OR,
    N_COND,    /* a if b else c */
    N_COMPARE, /* a; list of right sides with their op in ops */
    N_CONCAT,
    S_TEXT,
    S_PRINT,
    S_IF,       /* a; body; orelse */
    S_FOR,      /* a target, b iterable, c filter; body; orelse */
    S_SET,      /* a target, b value */
    S_SETBLOCK, /* a target, b filter chain over N_CONST placeholder or NULL; body */
    S_MACRO,    /* name; list: parameters (N_NAME); kw: defaults by position; body */
    S_WITH,     /* list: target, value, …; body */
    S_BREAK,
    S_CONTINUE,
    S_BODY,
};

struct jkwarg {
    const char *name;
    struct jnode *value;
};

struct jnode {
    enum jnode_type type;
    int line;
    int id; /* filter or test number */
    enum jop op;
    const char *name;
    struct jnode *a, *b, *c;
    struct jnode **list;
    size_t n;
    enum jop *ops;
    struct jkwarg *kw;
    size_t n_kw;
    struct jnode **body;
    size_t n_body;
    struct jnode **orelse;
    size_t n_orelse;
    struct jval value;
};

struct jinja {
    struct arena arena;
    char *name;
    struct jnode *root;
};

/* ---- parser (jinja_expr.c) ---- */

struct jparser {
    struct jtokens toks;
    size_t pos;
    struct arena *a;
    const char *name;
    struct err *e;
    int depth, loops;
};

struct jnodes {
    struct jnode **v;
    size_t n, cap;
};

/* The token at hand. skip_: 1 and past it when it is the one; expect_: a fault when it is not. */
const struct jtok *jp_tok(const struct jparser *p);
int jp_is_op(const struct jparser *p, enum jop op);
int jp_is_name(const struct jparser *p, const char *name);
int jp_skip_op(struct jparser *p, enum jop op);
int jp_skip_name(struct jparser *p, const char *name);
int jp_expect_op(struct jparser *p, enum jop op, const char *what);
const char *jp_expect_name(struct jparser *p);

/* A fault at the line of the token at hand, with the detail (may be NULL) in quotes. */
int jp_fail(struct jparser *p, const char *what, const char *detail); /* -1 */
void *jp_fail_null(struct jparser *p, const char *what, const char *detail);
int jp_enter(struct jparser *p); /* one level deeper; leaving is p->depth-- */

/* Tree, all in the template's arena; NULL or -1 after a fault. */
void *jp_alloc(struct jparser *p, size_t n);
struct jnode *jp_node(struct jparser *p, enum jnode_type type);
int jp_push(struct jparser *p, struct jnodes *l, struct jnode *n);
struct jnode *jp_constant(struct jparser *p, struct jval v);
struct jnode *jp_string_constant(struct jparser *p, const char *s, size_t n);

struct jnode *jp_expr(struct jparser *p);
/* One expression, or several with commas: then a tuple. until_in: targets, up to `in`. */
struct jnode *jp_tuple(struct jparser *p, int with_condition, int until_in);
struct jnode *jp_primary(struct jparser *p);
struct jnode *jp_postfix(struct jparser *p, struct jnode *n); /* attributes, items, calls of n */
struct jnode *jp_filters(struct jparser *p, struct jnode *n); /* filters and tests of n */

/* ---- values (jinja_value.c) ---- */

struct jstr {
    const char *s;
    size_t n;
    const uint8_t *m; /* a mark per byte, or NULL when all bytes have `mark` */
    uint8_t mark;
};

struct jlist {
    struct jval *v;
    size_t n, cap;
};

struct jentry {
    struct jval key, value;
};

struct jdict {
    struct jentry *v;
    size_t n, cap;
};

struct jscope;

/* J_UNDEFINED: text = why. J_MACRO: node, scope. J_FUNCTION, J_METHOD: id (and self). J_LOOP: the
 * rest. */
struct jobject {
    const char *text;
    const struct jnode *node;
    struct jscope *scope;
    int id;
    struct jval self;
    const struct jlist *items;
    size_t index;
    int depth;
};

/* Bytes with marks under construction. */
struct jsb {
    struct buf text, marks;
    int uniform; /* -1 empty, 0 or 1: all bytes have this mark and `marks` is empty, 2: marks are
                    written out */
};

struct jbinding {
    const char *name;
    struct jval value;
    struct jbinding *next;
};

struct jscope {
    struct jbinding *first;
    struct jscope *parent;
};

struct jout {
    struct jsb sb;
    struct jout *parent;
};

struct jinja_run {
    const struct jinja *t;
    struct arena arena;
    struct err *e;
    int line; /* of the statement or expression being evaluated */
    int failed_alloc;
    uint64_t steps;
    size_t memory, work;
    size_t out_bytes;
    int depth, macro_depth;
    struct jscope *scope, *globals;
    struct jout *out;
};

int jfail(struct jinja_run *r, const char *fmt, ...) TERN_PRINTF(2, 3);
void *jalloc(struct jinja_run *r, size_t n_bytes); /* NULL after jfail */
int jwork(struct jinja_run *r,
          size_t n_bytes); /* charges; negative after jfail when it is too much */

void jsb_init(struct jsb *b);
void jsb_fini(struct jsb *b);
void jsb_add(struct jsb *b, const struct jstr *s, size_t from, size_t to);
void jsb_puts(struct jsb *b, const char *s, size_t n, int mark);
int jsb_value(struct jinja_run *r, struct jsb *b,
              struct jval *out); /* finishes b: a string value */

struct jval jundefined(struct jinja_run *r, const char *fmt, ...) TERN_PRINTF(2, 3);
struct jval jnone(void);
struct jval jint(int64_t v);
struct jval jfloat(double v);
struct jval jlit(struct jinja_run *r, const char *s); /* template-made text, copied */
struct jval jsub(struct jinja_run *r, const struct jstr *s, size_t from,
                 size_t to); /* bytes [from, to) */
struct jval jtuple2(struct jinja_run *r, struct jval a, struct jval b);

const char *jtype(struct jval v); /* Python's type name */
int jtruth(struct jval v);
static inline int jis_number(struct jval v)
{
    return v.kind == J_BOOL || v.kind == J_INT || v.kind == J_FLOAT;
}

static inline double jdouble(struct jval v)
{
    return v.kind == J_FLOAT ? v.u.f : (double)v.u.i;
}

int jequal(struct jinja_run *r, struct jval a, struct jval b, int *out);
int jless(struct jinja_run *r, struct jval a, struct jval b, const char *op, int *out);
int jstring(struct jinja_run *r, struct jval v, struct jval *out); /* str(v) */
int jrepr(struct jinja_run *r, struct jval v, struct jsb *b);
int jtojson(struct jinja_run *r, struct jval v, int indent, int sort_keys,
            const struct jstr *item_sep, const struct jstr *key_sep, int ensure_ascii,
            struct jval *out);
struct jval *jdict_find(struct jinja_run *r, const struct jdict *d, struct jval key);
struct jval *jdict_find_name(const struct jdict *d, const char *name);
int jiterate(struct jinja_run *r, struct jval v,
             struct jlist **out); /* list(v); may be v's own list */
int jlength(struct jinja_run *r, struct jval v, int64_t *out);
int jundefined_error(struct jinja_run *r, struct jval v);  /* raises what using it raises */
size_t jchar_offset(const struct jstr *s, size_t n_chars); /* byte offset of a character */

/* ---- attributes, items, operators (jinja_op.c) ---- */

int jgetattr(struct jinja_run *r, struct jval v, const char *name, struct jval *out);
int jcontains(struct jinja_run *r, struct jval item, struct jval in, int *out);
int jgetitem(struct jinja_run *r, struct jval v, struct jval key, struct jval *out);
/* part: start, stop, step, each None for its default. */
int jslice(struct jinja_run *r, struct jval v, const struct jval part[3], struct jval *out);
int jbinary(struct jinja_run *r, enum jop op, struct jval a, struct jval b, struct jval *out);
int jcompare(struct jinja_run *r, enum jop op, struct jval a, struct jval b, int *out);
int jsign(struct jinja_run *r, int minus, struct jval v, struct jval *out); /* -v or +v */

struct jargs {
    struct jval *v;
    size_t n;
    const char **kw_name;
    struct jval *kw_value;
    size_t n_kw;
};

/* ---- filters and tests (jinja_filter.c, jinja_test.c) ---- */

int jfilter_id(const char *name, const char **refusal); /* -1: unknown, or refused with a reason */
int jtest_id(const char *name);
/* Checks what can be checked before rendering: NULL, or what is wrong. */
const char *jfilter_check(int id, size_t n_args, const struct jkwarg *kw, size_t n_kw);
const char *jtest_check(int id, size_t n_args, size_t n_kw);
int jfilter(struct jinja_run *r, int id, struct jval v, const struct jargs *args, struct jval *out);
int jtest(struct jinja_run *r, int id, struct jval v, const struct jargs *args, int *out);

/* ---- methods and functions (jinja_method.c) ---- */

int jfunction_id(const char *name);                /* global function; -1 if none */
int jmethod_id(enum jkind kind, const char *name); /* method of a type; -1 if none */
int jmethod_known(const char *name);               /* some type has it */
int jfunction(struct jinja_run *r, int id, const struct jargs *args, struct jval *out);
int jmethod(struct jinja_run *r, int id, struct jval self, const struct jargs *args,
            struct jval *out);

/* Shared by filters and methods. side: 1 left, 2 right, 3 both; chars NULL = white space. */
int jstrip(struct jinja_run *r, const struct jstr *s, const struct jstr *chars, int side,
           struct jval *out);
int jreplace(struct jinja_run *r, const struct jstr *s, const struct jstr *old,
             const struct jstr *with, int64_t count, struct jval *out);
enum jcase { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE_METHOD, CASE_TITLE_FILTER };
int jcase(struct jinja_run *r, const struct jstr *s, enum jcase how, struct jval *out);
int jsplitlines(struct jinja_run *r, const struct jstr *s, struct jval *out);
int jjoin(struct jinja_run *r, const struct jlist *l, const struct jstr *sep, int stringify,
          struct jval *out);

#endif
