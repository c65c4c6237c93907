/* SPDX-License-Identifier: Apache-2.0 */
/* The part of Jinja that chat templates use, with the results of jinja2's
 * ImmutableSandboxedEnvironment (trim_blocks and lstrip_blocks on, autoescape off). A construct
 * outside of it is an error of jinja_parse that names it and its line: a template that loads does
 * not surprise later.
 *
 * Every string remembers for each byte who wrote it: the template (mark 1) or the caller's data
 * (mark 0). Concatenating, slicing and stripping keep the marks, so the rendered text comes with
 * marks of its own.
 *
 * A parsed template is immutable and shared between threads. One struct jinja_run is one rendering.
 */
#ifndef TERN_TEXT_JINJA_H
#define TERN_TEXT_JINJA_H

#include "base/buf.h"
#include "base/json.h"
#include <stdint.h>

#define JINJA_SOURCE_BYTES_MAX ((size_t)1 << 20)
#define JINJA_STEPS_MAX        1000000
#define JINJA_OUTPUT_BYTES_MAX ((size_t)64 << 20)
#define JINJA_MEMORY_BYTES_MAX ((size_t)256 << 20) /* of values made while rendering */
#define JINJA_WORK_BYTES_MAX   ((size_t)4 << 30)   /* compared, searched or copied */
#define JINJA_COMPARE_BYTES    64                  /* what comparing two values costs as work */
#define JINJA_DEPTH_MAX        200                 /* of the source */
#define JINJA_EVAL_DEPTH_MAX   600                 /* of expressions and values */
#define JINJA_CALL_DEPTH_MAX   50                  /* of macros */
#define JINJA_RANGE_MAX        100000

struct jinja;
struct jinja_run;
struct jstr;
struct jlist;
struct jdict;
struct jobject;

enum jkind {
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_NAMESPACE,
    J_LOOP,
    J_MACRO,
    J_FUNCTION,
    J_METHOD,
};

struct jval {
    enum jkind kind;
    union {
        int64_t i; /* J_BOOL, J_INT */
        double f;
        const struct jstr *s;
        struct jlist *list;           /* J_LIST, J_TUPLE */
        struct jdict *dict;           /* J_DICT, J_NAMESPACE */
        const struct jobject *object; /* the rest; may be NULL for J_UNDEFINED */
    } u;
};

/* name is used in error texts ("chat template"). ERR_FORMAT "name, line N: …". */
int jinja_parse(struct jinja **out, const char *source, size_t n_bytes, const char *name,
                struct err *e);
void jinja_free(struct jinja *t);
/* A for loop walks the content of a message (its parts), directly or through a variable. */
int jinja_walks_content(const struct jinja *t);

struct jinja_run *jinja_run_new(const struct jinja *t); /* NULL when out of memory */
void jinja_run_free(struct jinja_run *r);

/* Values for the template's variables; they live as long as the run. A failed allocation shows up
 * as an error of jinja_run_exec. Text and JSON are borrowed unless copy is set. */
struct jval jinja_bool(int v);
struct jval jinja_text(struct jinja_run *r, const char *s, size_t n_bytes, int is_template,
                       int copy);
struct jval jinja_from_json(struct jinja_run *r, const struct json *v, int copy);
struct jval jinja_list(struct jinja_run *r);
struct jval jinja_dict(struct jinja_run *r);
void jinja_list_add(struct jinja_run *r, struct jval list, struct jval item);
void jinja_dict_set(struct jinja_run *r, struct jval dict, struct jval key, struct jval value);
void jinja_run_set(struct jinja_run *r, const char *name, struct jval v);

/* Renders. Errors are ERR_INVALID: the text given to raise_exception as it is, anything else with
 * its line. */
int jinja_run_exec(struct jinja_run *r, struct buf *text, struct buf *marks, struct err *e);

#endif
