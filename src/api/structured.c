/* SPDX-License-Identifier: Apache-2.0 */
/* See structured.h. */
#include "api/structured.h"

#include <stdlib.h>
#include <string.h>

/* ---- fields ---- */

struct wanted {
    int given;
    enum grammar_kind kind;
    const char *param; /* the field to name in errors */
    const struct json *value;
    struct grammar_options o;
};

/* Takes one constraint; a second one in the same object is an error. */
static int take(const struct fields *f, struct wanted *w, enum grammar_kind kind, const char *param,
                const struct json *value)
{
    if (json_type(value) == JSON_NULL) {
        return 0;
    }
    if (w->given && w->param != NULL && strncmp(w->param, "response", 8) != 0) {
        return api_fail_param(f->e, param, value,
                              "You can only use one kind of structured outputs constraint but "
                              "multiple are specified");
    }
    w->given = 1;
    w->kind = kind;
    w->param = param;
    w->value = value;
    return 0;
}

static int read_response_format(const struct fields *f, struct wanted *w)
{
    const struct json *v = NULL;
    int rc = field_object(f, "response_format", &v);
    if (rc <= 0) {
        return rc;
    }
    const struct json *type = json_get(v, "type"), *named = json_get(v, "json_schema");
    const char *s = json_type(type) == JSON_STRING ? json_string(type, NULL) : NULL;
    if (s == NULL) {
        return api_fail_field(f->e, "response_format.type", "missing", v, "Field required");
    }
    if (strcmp(s, "text") == 0) {
        return 0;
    }
    if (strcmp(s, "json_object") == 0) {
        return take(f, w, GRAMMAR_JSON_OBJECT, "response_format", v);
    }
    if (strcmp(s, "json_schema") != 0) {
        return api_fail_param(f->e, "response_format", v,
                              "response_format type must be text, json_object or json_schema");
    }
    const struct json *schema = json_get(named, "schema");
    if (json_type(schema) != JSON_OBJECT && json_type(schema) != JSON_BOOL) {
        return api_fail_field(f->e, "response_format.json_schema.schema",
                              schema ? "dict_type" : "missing", schema,
                              schema ? "Input should be a valid dictionary" : "Field required");
    }
    return take(f, w, GRAMMAR_JSON_SCHEMA, "response_format", schema);
}

static int read_structured_outputs(const struct fields *f, struct wanted *w)
{
    const struct json *v = NULL;
    int rc = field_object(f, "structured_outputs", &v), flag = 0;
    if (rc <= 0) {
        return rc;
    }
    struct fields inner = {v, "structured_outputs.", f->e, f->arena};
    struct wanted one = {0};
    if (json_type(json_get(v, "structural_tag")) != JSON_NULL) {
        return api_fail_param(f->e, "structured_outputs", v, "structural_tag is not supported");
    }
    if (take(f, &one, GRAMMAR_JSON_SCHEMA, "structured_outputs.json", json_get(v, "json")) < 0 ||
        take(f, &one, GRAMMAR_REGEX, "structured_outputs.regex", json_get(v, "regex")) < 0 ||
        take(f, &one, GRAMMAR_CHOICE, "structured_outputs.choice", json_get(v, "choice")) < 0 ||
        take(f, &one, GRAMMAR_EBNF, "structured_outputs.grammar", json_get(v, "grammar")) < 0 ||
        field_bool(&inner, "json_object", &flag) < 0 ||
        (flag && take(f, &one, GRAMMAR_JSON_OBJECT, "structured_outputs.json_object",
                      json_get(v, "json_object")) < 0) ||
        field_bool(&inner, "disable_any_whitespace", &one.o.no_whitespace) < 0 ||
        field_string(&inner, "whitespace_pattern", &one.o.whitespace_regex) < 0) {
        return -1;
    }
    if (!one.given) {
        return api_fail_param(
            f->e, "structured_outputs", v,
            "You must use one kind of structured outputs constraint but none are specified");
    }
    if (!w->given) { /* response_format wins, as in vLLM */
        *w = one;
    }
    return 0;
}

/* Fields of older vLLM releases that FastDeploy still documents. */
static int read_guided(const struct fields *f, struct wanted *w)
{
    struct wanted one = {0};
    if (take(f, &one, GRAMMAR_JSON_SCHEMA, "guided_json", json_get(f->object, "guided_json")) < 0 ||
        take(f, &one, GRAMMAR_REGEX, "guided_regex", json_get(f->object, "guided_regex")) < 0 ||
        take(f, &one, GRAMMAR_CHOICE, "guided_choice", json_get(f->object, "guided_choice")) < 0 ||
        take(f, &one, GRAMMAR_EBNF, "guided_grammar", json_get(f->object, "guided_grammar")) < 0 ||
        field_string(f, "guided_whitespace_pattern", &one.o.whitespace_regex) < 0) {
        return -1;
    }
    if (one.given && !w->given) {
        *w = one;
    }
    return 0;
}

static int compile(struct grammar_cache *c, const struct fields *f, const struct wanted *w,
                   struct grammar **out)
{
    struct buf text;
    struct err err = {0};
    buf_init(&text);
    size_t n = 0;
    const char *str = json_type(w->value) == JSON_STRING ? json_string(w->value, &n) : NULL;
    int needs_text = w->kind == GRAMMAR_REGEX || w->kind == GRAMMAR_EBNF, rc;
    if (needs_text && str == NULL) {
        return api_fail_field(f->e, w->param, "string_type", w->value,
                              "Input should be a valid string");
    }
    if (str != NULL) {
        buf_append(&text, str, n);
    } else if (w->kind != GRAMMAR_JSON_OBJECT) {
        json_dump(w->value, &text);
    }
    rc = text.failed ? err_set(&err, ERR_NOMEM, "out of memory")
                     : grammar_cache_get(c, w->kind, text.data ? text.data : "", text.len, &w->o,
                                         out, &err);
    buf_fini(&text);
    if (rc == 0) {
        return 1;
    }
    return rc == ERR_NOMEM ? api_fail_err(f->e, &err)
                           : api_fail(f->e, 400, TYPE_BAD, w->param, "%s", err.text);
}

int structured_parse(struct grammar_cache *c, const struct fields *f, struct grammar **out)
{
    struct wanted w = {0};
    *out = NULL;
    if (read_response_format(f, &w) < 0 || read_structured_outputs(f, &w) < 0 ||
        read_guided(f, &w) < 0) {
        return -1;
    }
    return w.given ? compile(c, f, &w, out) : 0;
}
