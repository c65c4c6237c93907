/* SPDX-License-Identifier: Apache-2.0 */
/* $ref: the document is walked once for $id (resources), $anchor and $dynamicAnchor, and every
 * schema with a reference gets the resource it stands in. References to other documents are
 * refused. A $dynamicRef is taken where only one place can be meant. */
#include "text/gram_schema.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_URI       1024
#define MAX_RESOURCES 256
#define MAX_ANCHORS   2000
#define MAX_DEPTH     JSON_DEPTH_DEFAULT

struct resource {
    const char *uri; /* without a fragment; "" for a root without $id */
    const struct json *root;
};

struct anchor {
    const char *name;
    int resource, is_dynamic;
    const struct json *schema;
};

struct gram_schema_refs {
    struct resource resource[MAX_RESOURCES];
    struct anchor anchor[MAX_ANCHORS];
    int n_resources, n_anchors;
    struct map *home; /* address of a schema with a reference -> its resource + 1 */
};

static size_t scheme_length(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");
    return n > 0 && s[n] == ':' ? n : 0;
}

/* A reference relative to a base, without fragment, into out. Returns 0, or -1: too long. */
static int join(const char *base, const char *ref, char *out)
{
    size_t n_ref = strcspn(ref, "#"), keep = 0, scheme = scheme_length(base);
    while (n_ref > 2 && ref[0] == '.' && ref[1] == '/') {
        ref += 2;
        n_ref -= 2;
    }
    if (scheme_length(ref) == 0) {
        keep = strlen(base);
        if (n_ref > 0) {
            const char *path = scheme > 0 && strncmp(base + scheme, "://", 3) == 0
                                   ? base + scheme + 3 + strcspn(base + scheme + 3, "/")
                                   : base;
            const char *slash = strrchr(path, '/');
            keep = ref[0] == '/' ? (size_t)(path - base) : slash ? (size_t)(slash + 1 - base) : 0;
            if (ref[0] != '/' && slash == NULL && path != base) {
                return -1; /* an authority without a path: nothing sensible to join to */
            }
        }
    }
    if (keep + n_ref >= MAX_URI) {
        return -1;
    }
    memcpy(out, base, keep);
    memcpy(out + keep, ref, n_ref);
    out[keep + n_ref] = 0;
    return 0;
}

static void add_anchor(struct schema *c, const struct json *name, int resource, int is_dynamic,
                       const struct json *schema)
{
    struct gram_schema_refs *r = c->refs;
    if (json_type(name) != JSON_STRING) {
        return;
    }
    if (r->n_anchors == MAX_ANCHORS) {
        gram_fail(c->g, ERR_TOO_LARGE, "JSON schema: more than %d anchors", MAX_ANCHORS);
        return;
    }
    const char *s = json_string(name, NULL);
    r->anchor[r->n_anchors++] = (struct anchor){s + (*s == '#'), resource, is_dynamic, schema};
}

static void visit(struct schema *c, const struct json *schema, int resource, int depth);

static void visit_all(struct schema *c, const struct json *v, int resource, int depth)
{
    size_t it = 0, n;
    const char *key;
    const struct json *value;
    for (size_t i = 0; json_type(v) == JSON_ARRAY && i < json_length(v); i++) {
        visit(c, json_at(v, i), resource, depth);
    }
    while (json_type(v) == JSON_OBJECT && json_next(v, &it, &key, &n, &value)) {
        visit(c, value, resource, depth);
    }
}

/* The resource that begins at a schema with $id; else the one it stands in. */
static int enter(struct schema *c, const struct json *schema, int resource)
{
    struct gram_schema_refs *r = c->refs;
    const struct json *id = json_get(schema, "$id");
    char uri[MAX_URI];
    if (json_type(id) != JSON_STRING || json_string(id, NULL)[0] == '#' ||
        join(r->n_resources > 0 ? r->resource[resource].uri : "", json_string(id, NULL), uri) < 0) {
        return resource;
    }
    if (schema == c->root) {
        r->resource[0].uri = arena_strdup(&c->arena, uri);
    } else if (r->n_resources == MAX_RESOURCES) {
        gram_fail(c->g, ERR_TOO_LARGE, "JSON schema: more than %d $ids", MAX_RESOURCES);
    } else {
        resource = r->n_resources++;
        r->resource[resource] = (struct resource){arena_strdup(&c->arena, uri), schema};
    }
    if (r->resource[resource].uri == NULL) {
        r->resource[resource].uri = "";
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
    }
    return resource;
}

static void visit(struct schema *c, const struct json *schema, int resource, int depth)
{
    static const char *const single[] = {"not",
                                         "if",
                                         "then",
                                         "else",
                                         "items",
                                         "contains",
                                         "propertyNames",
                                         "additionalProperties",
                                         "additionalItems",
                                         "unevaluatedItems",
                                         "unevaluatedProperties"};
    static const char *const many[] = {"$defs",
                                       "definitions",
                                       "properties",
                                       "patternProperties",
                                       "dependentSchemas",
                                       "dependencies",
                                       "allOf",
                                       "anyOf",
                                       "oneOf",
                                       "prefixItems"};
    if (json_type(schema) != JSON_OBJECT || depth > MAX_DEPTH || gram_failed(c->g)) {
        return;
    }
    resource = enter(c, schema, resource);
    const struct json *id = json_get(schema, "$id");
    add_anchor(c, json_get(schema, "$anchor"), resource, 0, schema);
    add_anchor(c, json_get(schema, "$dynamicAnchor"), resource, 1, schema);
    if (json_type(id) == JSON_STRING && json_string(id, NULL)[0] == '#') { /* drafts up to 7 */
        add_anchor(c, id, resource, 0, schema);
    }
    if ((json_get(schema, "$ref") != NULL || json_get(schema, "$dynamicRef") != NULL) &&
        map_put(c->refs->home, &schema, sizeof schema, (void *)(uintptr_t)(resource + 1)) != 0) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
    }
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
        const struct json *sub = json_get(schema, single[i]);
        visit(c, sub, resource, depth + 1);
        if (json_type(sub) == JSON_ARRAY) { /* items as a list */
            visit_all(c, sub, resource, depth + 1);
        }
    }
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
        visit_all(c, json_get(schema, many[i]), resource, depth + 1);
    }
}

int gram_schema_refs_open(struct schema *c)
{
    c->refs = calloc(1, sizeof *c->refs);
    if (c->refs == NULL || (c->refs->home = map_new()) == NULL) {
        gram_fail(c->g, ERR_NOMEM, "out of memory while compiling a JSON schema");
        return ERR_NOMEM;
    }
    c->refs->resource[0] = (struct resource){"", c->root};
    c->refs->n_resources = 1;
    visit(c, c->root, 0, 0);
    return c->g->error.code;
}

void gram_schema_refs_close(struct schema *c)
{
    if (c->refs != NULL) {
        map_free(c->refs->home);
        free(c->refs);
        c->refs = NULL;
    }
}

int gram_schema_has_resources(const struct schema *c)
{
    return c->refs->n_resources > 1;
}

/* One step of a JSON pointer: ~1 is /, ~0 is ~, %XX a byte. Returns the length written, -1 when it
 * is malformed. */
static int unescape(const char *s, size_t n, char *out, size_t size)
{
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        char ch = s[i];
        if (ch == '~' && i + 1 < n && (s[i + 1] == '0' || s[i + 1] == '1')) {
            ch = s[++i] == '0' ? '~' : '/';
        } else if (ch == '%' && i + 2 < n) {
            char hex[3] = {s[i + 1], s[i + 2], 0}, *end;
            ch = (char)strtol(hex, &end, 16);
            if (*end != 0) {
                return -1;
            }
            i += 2;
        }
        if (w + 1 >= size) {
            return -1;
        }
        out[w++] = ch;
    }
    out[w] = 0;
    return (int)w;
}

static const struct json *follow(const struct json *at, const char *pointer)
{
    for (const char *p = pointer; *p == '/' && at != NULL;) {
        const char *end = strchrnul(++p, '/');
        char key[256];
        if (unescape(p, (size_t)(end - p), key, sizeof key) < 0) {
            at = NULL;
        } else if (json_type(at) == JSON_ARRAY) {
            char *stop;
            unsigned long i = strtoul(key, &stop, 10);
            at = *stop == 0 && key[0] != 0 ? json_at(at, i) : NULL;
        } else {
            at = json_type(at) == JSON_OBJECT ? json_get(at, key) : NULL;
        }
        p = end;
    }
    return at;
}

const struct json *gram_schema_resolve(struct schema *c, const struct json *schema,
                                       const char *keyword)
{
    const struct gram_schema_refs *r = c->refs;
    const struct json *ref = json_get(schema, keyword), *found = NULL;
    const char *s = json_type(ref) == JSON_STRING ? json_string(ref, NULL) : "";
    uintptr_t home = (uintptr_t)map_get(r->home, &schema, sizeof schema);
    char uri[MAX_URI];
    int resource = -1, n_dynamic = 0;
    if (join(r->resource[home > 0 ? home - 1 : 0].uri, s, uri) == 0) {
        for (int i = 0; i < r->n_resources && resource < 0; i++) {
            resource = strcmp(r->resource[i].uri, uri) == 0 ? i : -1;
        }
    }
    if (json_type(ref) != JSON_STRING || resource < 0) {
        gram_fail(c->g, ERR_UNSUPPORTED,
                  "JSON schema: %s '%.80s' is not supported: it leads out of the document", keyword,
                  s);
        return NULL;
    }
    const char *fragment = strchrnul(s, '#');
    fragment += *fragment == '#';
    if (*fragment == 0 || *fragment == '/') {
        found = follow(r->resource[resource].root, fragment);
    }
    for (int i = 0; i < r->n_anchors && *fragment != 0 && *fragment != '/'; i++) {
        const struct anchor *a = &r->anchor[i];
        if (strcmp(a->name, fragment) == 0) {
            n_dynamic += a->is_dynamic;
            found = a->resource == resource ? a->schema : found;
        }
    }
    if (found == NULL) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: %s '%.80s' leads nowhere", keyword, s);
    } else if (strcmp(keyword, "$dynamicRef") == 0 && n_dynamic > 1) {
        gram_schema_refuse(c, keyword, "with several possible targets is not supported");
        found = NULL;
    }
    return found;
}
