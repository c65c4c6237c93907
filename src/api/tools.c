/* SPDX-License-Identifier: Apache-2.0 */
/* See tools.h. The schema of a function's parameters is compiled as it came, but for three things:
 * it describes an object whatever it forgets to say, an object without properties is empty, and
 * inside the list of calls its references start from its own place in the larger schema. */
#include "api/tools.h"

#include "api/structured.h"

#include <stdio.h>
#include <string.h>

#define MAX_TOOLS         1024
#define MAX_SCHEMA_LEVELS 48

static const char *text_of(const struct json *v)
{
    return json_type(v) == JSON_STRING ? json_string(v, NULL) : NULL;
}

const struct json *tools_function(const struct json *tools, size_t i)
{
    return json_get(json_at(tools, i), "function");
}

int tools_check(const struct json *tools, struct api_error *e)
{
    if (json_length(tools) == 0) {
        return api_fail(e, 400, TYPE_SCHEMA, "tools", "`tools` must not be an empty list.");
    }
    if (json_length(tools) > MAX_TOOLS) {
        return api_fail(e, 400, TYPE_BAD, "tools", "%zu tools, at most %d are allowed.",
                        json_length(tools), MAX_TOOLS);
    }
    for (size_t i = 0; i < json_length(tools); i++) {
        const struct json *tool = json_at(tools, i), *type = json_get(tool, "type");
        const struct json *function = json_get(tool, "function");
        const struct json *name = json_get(function, "name"),
                          *parameters = json_get(function, "parameters");
        char param[64];
        snprintf(param, sizeof param, "tools.%zu%s", i, "");
        if (json_type(tool) != JSON_OBJECT) {
            return api_fail_field(e, param, "dict_type", tool,
                                  "Input should be a valid dictionary");
        }
        snprintf(param, sizeof param, "tools.%zu%s", i, ".type");
        if (type && (!text_of(type) || strcmp(text_of(type), "function") != 0)) {
            return api_fail_field(e, param, "literal_error", type, "Input should be 'function'");
        }
        snprintf(param, sizeof param, "tools.%zu%s", i, ".function");
        if (json_type(function) != JSON_OBJECT) {
            return api_fail_field(e, param, function ? "dict_type" : "missing", function,
                                  function ? "Input should be a valid dictionary"
                                           : "Field required");
        }
        snprintf(param, sizeof param, "tools.%zu%s", i, ".function.name");
        if (!text_of(name) || !text_of(name)[0]) {
            return api_fail_field(e, param, name ? "string_type" : "missing", name,
                                  name ? "Input should be a valid string" : "Field required");
        }
        snprintf(param, sizeof param, "tools.%zu%s", i, ".function.parameters");
        if (json_type(parameters) != JSON_NULL && json_type(parameters) != JSON_OBJECT) {
            return api_fail_field(e, param, "dict_type", parameters,
                                  "Input should be a valid dictionary");
        }
    }
    return 0;
}

/* {"type": "function", "function": {"name": …}} */
static int read_named(const struct fields *f, const struct json *choice, struct tool_plan *out)
{
    const char *type = text_of(json_get(choice, "type"));
    const struct json *name = json_get(json_get(choice, "function"), "name");
    size_t n, n_name;
    if (json_type(name) != JSON_STRING || (json_get(choice, "type") && !type) ||
        (type && strcmp(type, "function") != 0)) {
        return api_fail_param(
            f->e, "tool_choice", choice,
            "tool_choice must be \"none\", \"auto\", \"required\" or "
            "{\"type\": \"function\", \"function\": {\"name\": \"my_function\"}}");
    }
    const char *wanted = json_string(name, &n_name);
    for (size_t i = 0; i < json_length(out->tools); i++) {
        const char *s = json_string(json_get(tools_function(out->tools, i), "name"), &n);
        if (n == n_name && memcmp(s, wanted, n) == 0) {
            out->mode = ANSWER_TOOLS_ONE;
            out->chosen = i;
            return 0;
        }
    }
    return api_fail_param(
        f->e, "tool_choice", choice,
        "The tool specified in `tool_choice` does not match any of the specified `tools`");
}

static int read_choice(const struct server_options *o, const struct fields *f,
                       const struct json *choice, struct tool_plan *out)
{
    const char *word = json_type(choice) == JSON_NULL ? "auto" : text_of(choice);
    if (json_type(choice) == JSON_OBJECT) {
        return read_named(f, choice, out);
    }
    if (word && strcmp(word, "required") == 0) {
        out->mode = ANSWER_TOOLS_LIST;
        return 0;
    }
    if (!word || strcmp(word, "auto") != 0) {
        return api_fail_field(f->e, "tool_choice", "literal_error", choice,
                              "Input should be 'none', 'auto', 'required' or the name of a "
                              "function as {'type': 'function', 'function': {'name': …}}");
    }
    if (!o->tool_call_parser || !o->enable_auto_tool_choice) {
        return api_fail_param(f->e, "tool_choice", choice,
                              "\"auto\" tool choice requires --enable-auto-tool-choice and "
                              "--tool-call-parser to be set");
    }
    out->mode = ANSWER_TOOLS_MARKED;
    return 0;
}

int tools_read(const struct server_options *o, const struct fields *f, struct tool_plan *out)
{
    const struct json *choice = json_get(f->object, "tool_choice");
    const char *word = text_of(choice), *old = text_of(json_get(f->object, "function_call"));
    int parallel = 1;
    *out = (struct tool_plan){.mode = ANSWER_TOOLS_NONE};
    if (json_type(json_get(f->object, "function_call")) != JSON_NULL &&
        (!old || (strcmp(old, "none") != 0 && strcmp(old, "auto") != 0))) {
        return api_fail_param(f->e, "function_call", json_get(f->object, "function_call"),
                              "function_call was replaced by tool_choice");
    }
    int rc = field_array(f, "tools", &out->tools);
    if (rc < 0 || field_bool(f, "parallel_tool_calls", &parallel) < 0 ||
        (rc > 0 && tools_check(out->tools, f->e) < 0)) {
        return -1;
    }
    out->one_call = !parallel;
    if (word && strcmp(word, "none") == 0) {
        return 0;
    }
    if (rc == 0) {
        return json_type(choice) == JSON_NULL
                   ? 0
                   : api_fail(f->e, 400, TYPE_SCHEMA, "tool_choice",
                              "When using `tool_choice`, `tools` must be set.");
    }
    return read_choice(o, f, choice, out);
}

/* ---- grammar ---- */

/* Where a keyword's value is no schema but data, or a map from names to schemas. */
static int is_data(const char *key)
{
    return strcmp(key, "const") == 0 || strcmp(key, "enum") == 0 || strcmp(key, "default") == 0 ||
           strcmp(key, "examples") == 0;
}

static int is_map(const char *key)
{
    return strcmp(key, "properties") == 0 || strcmp(key, "$defs") == 0 ||
           strcmp(key, "definitions") == 0 || strcmp(key, "patternProperties") == 0 ||
           strcmp(key, "dependentSchemas") == 0;
}

/* Copies a schema; references from its root get `root` before them. Returns its depth. */
static int copy_schema(struct json_writer *w, const struct json *v, const char *root, int map,
                       int level)
{
    size_t it = 0, n;
    const char *key;
    const struct json *item;
    int deepest = level;
    if (level > MAX_SCHEMA_LEVELS) {
        json_w_null(w);
        return level;
    }
    if (json_type(v) == JSON_ARRAY) {
        json_w_array(w);
        for (size_t i = 0; i < json_length(v); i++) {
            int d = copy_schema(w, json_at(v, i), root, 0, level + 1);
            deepest = d > deepest ? d : deepest;
        }
        json_w_array_end(w);
        return deepest;
    }
    if (json_type(v) != JSON_OBJECT) {
        json_w_value(w, v);
        return level;
    }
    json_w_object(w);
    while (json_next(v, &it, &key, &n, &item)) {
        const char *ref = map ? NULL : text_of(item);
        json_w_keyn(w, key, n);
        if (ref && strcmp(key, "$ref") == 0 && ref[0] == '#' && root[0]) {
            struct buf b;
            buf_init(&b);
            buf_printf(&b, "%s%s", root, ref + 1);
            json_w_string(w, b.data ? b.data : ref);
            buf_fini(&b);
        } else if (!map && is_data(key)) {
            json_w_value(w, item);
        } else {
            int d = copy_schema(w, item, root, !map && is_map(key), level + 1);
            deepest = d > deepest ? d : deepest;
        }
    }
    json_w_object_end(w);
    return deepest;
}

/* The schema of a function's arguments. -1: too deep. */
static int write_parameters(struct json_writer *w, const struct json *function, const char *root)
{
    const struct json *given = json_get(function, "parameters");
    const struct json *properties = json_get(given, "properties");
    struct buf b;
    struct json_writer inner;
    int depth = 0;
    buf_init(&b);
    json_w_init(&inner, &b);
    if (json_type(given) == JSON_OBJECT) {
        depth = copy_schema(&inner, given, root, 0, 0);
    } else {
        json_w_object(&inner);
        json_w_object_end(&inner);
    }
    /* what is missing is put behind the opening brace */
    buf_puts(&b, "");
    size_t n = b.len > 1 ? b.len - 1 : 0;
    const char *rest = b.data ? b.data + 1 : "}";
    struct buf out;
    buf_init(&out);
    buf_putc(&out, '{');
    if (!json_get(given, "type")) {
        buf_puts(&out, rest[0] == '}' ? "\"type\":\"object\"" : "\"type\":\"object\",");
    }
    if (json_type(given) != JSON_OBJECT ||
        (json_type(properties) == JSON_OBJECT && json_length(properties) == 0 &&
         !json_get(given, "additionalProperties") && !json_get(given, "patternProperties"))) {
        buf_printf(&out, "%s\"additionalProperties\":false%s",
                   out.len > 1 && rest[0] == '}' ? "," : "", rest[0] == '}' ? "" : ",");
    }
    buf_append(&out, rest, n);
    json_w_raw(w, out.data ? out.data : "{}", out.data ? out.len : 2);
    buf_fini(&out);
    buf_fini(&b);
    return depth > MAX_SCHEMA_LEVELS ? -1 : 0;
}

/* {"type":"array","minItems":1,"items":{"anyOf":[…]},"$defs":{"0":…}} */
static int write_list(struct json_writer *w, const struct tool_plan *p)
{
    size_t n = json_length(p->tools);
    int rc = 0;
    char ref[32];
    json_w_object(w);
    json_w_kstring(w, "type", "array");
    json_w_kint(w, "minItems", 1);
    if (p->one_call) {
        json_w_kint(w, "maxItems", 1);
    }
    json_w_key(w, "items");
    json_w_object(w);
    json_w_key(w, "anyOf");
    json_w_array(w);
    for (size_t i = 0; i < n; i++) {
        snprintf(ref, sizeof ref, "#/$defs/%zu", i);
        json_w_object(w);
        json_w_kstring(w, "type", "object");
        json_w_key(w, "properties");
        json_w_object(w);
        json_w_key(w, "name");
        json_w_object(w);
        json_w_key(w, "const");
        json_w_value(w, json_get(tools_function(p->tools, i), "name"));
        json_w_object_end(w);
        json_w_key(w, "parameters");
        json_w_object(w);
        json_w_kstring(w, "$ref", ref);
        json_w_object_end(w);
        json_w_object_end(w);
        json_w_key(w, "required");
        json_w_raw(w, "[\"name\",\"parameters\"]", 21);
        json_w_kbool(w, "additionalProperties", 0);
        json_w_object_end(w);
    }
    json_w_array_end(w);
    json_w_object_end(w);
    json_w_key(w, "$defs");
    json_w_object(w);
    for (size_t i = 0; i < n && rc == 0; i++) {
        snprintf(ref, sizeof ref, "#/$defs/%zu", i);
        json_w_key(w, ref + strlen("#/$defs/"));
        rc = write_parameters(w, tools_function(p->tools, i), ref);
    }
    json_w_object_end(w);
    json_w_object_end(w);
    return rc;
}

/* Finds the tool at fault: the whole was refused, so one of its parts is. */
static int blame(struct grammar_cache *s, const struct tool_plan *p, const struct err *whole,
                 struct api_error *e)
{
    size_t n = json_length(p->tools);
    for (size_t i = p->mode == ANSWER_TOOLS_ONE ? p->chosen : 0; i < n; i++) {
        struct buf b;
        struct json_writer w;
        struct grammar *g = NULL;
        struct err err = {0};
        struct grammar_options o = {0};
        char param[64];
        buf_init(&b);
        json_w_init(&w, &b);
        int rc = write_parameters(&w, tools_function(p->tools, i), "");
        if (rc == 0 && !b.failed) {
            rc = grammar_cache_get(s, GRAMMAR_JSON_SCHEMA, b.data, b.len, &o, &g, &err);
        } else {
            err_set(&err, ERR_TOO_LARGE, "the schema is nested deeper than %d levels",
                    MAX_SCHEMA_LEVELS);
        }
        grammar_unref(g);
        buf_fini(&b);
        if (rc != 0) {
            snprintf(param, sizeof param, "tools.%zu.function.parameters", i);
            return api_fail(e, 400, TYPE_BAD, param, "%s", err.text);
        }
        if (p->mode == ANSWER_TOOLS_ONE) {
            break;
        }
    }
    return api_fail(e, 400, TYPE_BAD, "tools", "%s", whole->text);
}

int tools_grammar(struct grammar_cache *s, const struct tool_plan *p, struct grammar **out,
                  struct api_error *e)
{
    struct buf b;
    struct json_writer w;
    struct err err = {0};
    struct grammar_options o = {0};
    *out = NULL;
    buf_init(&b);
    json_w_init(&w, &b);
    int rc = p->mode == ANSWER_TOOLS_LIST
                 ? write_list(&w, p)
                 : write_parameters(&w, tools_function(p->tools, p->chosen), "");
    if (rc == 0 && b.failed) {
        rc = err_set(&err, ERR_NOMEM, "out of memory");
    } else if (rc == 0) {
        rc = grammar_cache_get(s, GRAMMAR_JSON_SCHEMA, b.data, b.len, &o, out, &err);
    }
    buf_fini(&b);
    if (rc == 0) {
        return 0;
    }
    return rc == ERR_NOMEM ? api_fail_err(e, &err) : blame(s, p, &err, e);
}
