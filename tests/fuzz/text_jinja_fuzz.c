/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a template, rendered with a small conversation: an error with a text, or output with
 * a mark per byte. */
#include "text/jinja.h"

#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static const char variables[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\" "
    "S\\n\"},{\"role\":\"user\",\"content\":\"\\u4f60\\u597d "
    "</s>\"},{\"role\":\"assistant\",\"content\":\"A\",\"n\":3}],\"s\":\" a,b "
    "\",\"n\":7,\"f\":2.5,\"l\":[3,1,2],"
    "\"d\":{\"a\":1,\"b\":[null,true]}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct jinja *t;
    struct err e = {0};
    struct buf text, marks;
    if (jinja_parse(&t, (const char *)data, n_bytes, "fuzz", &e)) {
        if (!e.text[0] || strchr(e.text, '\n')) {
            abort();
        }
        return 0;
    }
    (void)jinja_walks_content(t);
    buf_init(&text);
    buf_init(&marks);
    struct json *v = NULL;
    struct jinja_run *r = jinja_run_new(t);
    if (r && !json_parse(&v, variables, sizeof(variables) - 1, 16, NULL)) {
        size_t it = 0, n;
        const char *key;
        const struct json *item;
        while (json_next(v, &it, &key, &n, &item)) {
            jinja_run_set(r, key, jinja_from_json(r, item, 0));
        }
        int rc = jinja_run_exec(r, &text, &marks, &e);
        if (rc ? !e.code || strchr(e.text, '\n') != NULL
               : text.len != marks.len || !utf8_is_valid(text.data ? text.data : "", text.len)) {
            abort();
        }
    }
    json_free(v);
    jinja_run_free(r);
    jinja_free(t);
    buf_fini(&text);
    buf_fini(&marks);
    return 0;
}
