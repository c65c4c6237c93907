/* SPDX-License-Identifier: Apache-2.0 */
/* Options of an engine, set one by one, and what every call of the library does with errors,
 * lengths and growing structs. A value is checked when it is set; the engine reads the settings
 * anew when it opens, so that it shares no memory with the options. */
#include "lib/args_words.h"
#include "lib/lib.h"
#include <stdlib.h>
#include <string.h>

#define NOTE_SILENT "the library prints nothing by itself"

/* Options of `tern serve` that programs pass to an engine. */
static const struct opt library_rows[] = {
    {.name = "disable-log-stats",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_SILENT},
    {.name = "enable-log-requests",
     .type = OPT_BOOL,
     .group = G_NONE,
     .flags = OPT_IGNORED,
     .note = NOTE_SILENT},
};

_Static_assert(TERN_INVALID == (int)ERR_INVALID && TERN_NOMEM == (int)ERR_NOMEM &&
                   TERN_IO == (int)ERR_IO && TERN_FORMAT == (int)ERR_FORMAT &&
                   TERN_UNSUPPORTED == (int)ERR_UNSUPPORTED &&
                   TERN_NOT_FOUND == (int)ERR_NOT_FOUND && TERN_TOO_LARGE == (int)ERR_TOO_LARGE &&
                   TERN_BUSY == (int)ERR_BUSY && TERN_CANCELED == (int)ERR_CANCELED &&
                   TERN_INTERNAL == (int)ERR_INTERNAL,
               "codes of tern.h are those of base/err.h");
_Static_assert(TERN_LOG_DEBUG == (int)LOG_DEBUG && TERN_LOG_CRITICAL == (int)LOG_CRITICAL,
               "levels of tern.h are those of base/log.h");

const char *tern_version(void)
{
    return TERN_VERSION;
}

void tern_free(void *p)
{
    free(p);
}

/* ---- what all calls share ---- */

void lib_fill(void *out, const void *from, size_t from_bytes)
{
    size_t size = *(const size_t *)out, n = size < from_bytes ? size : from_bytes;
    if (n > sizeof size) {
        memcpy((char *)out + sizeof size, (const char *)from + sizeof size, n - sizeof size);
    }
}

int lib_fail(struct tern_error *out, const struct err *e)
{
    if (out) {
        struct tern_error v = {.code = e->code};
        memcpy(v.text, e->text, sizeof v.text < sizeof e->text ? sizeof v.text : sizeof e->text);
        lib_fill(out, &v, sizeof v);
    }
    return e->code;
}

int lib_no_memory(struct tern_error *out)
{
    struct err e;
    err_set(&e, ERR_NOMEM, "out of memory");
    return lib_fail(out, &e);
}

int lib_fault(struct err *e, const struct tern_error *from)
{
    return err_set(e, from->code, "%s", from->text);
}

size_t lib_length(const char *text, size_t n_bytes)
{
    return n_bytes == TERN_ALL ? strlen(text) : n_bytes;
}

/* ---- options ---- */

int lib_args_init(struct lib_args *a, struct err *e)
{
    memset(a, 0, sizeof *a);
    a->opts.tables[0] = args_engine_table(&a->engine);
    a->opts.tables[1] =
        (struct opt_table){library_rows, sizeof library_rows / sizeof *library_rows, NULL};
    a->opts.n_tables = 2;
    a->opts.usage = "";
    return opts_parse(&a->opts, 0, NULL, e);
}

void lib_args_fini(struct lib_args *a)
{
    opts_fini(&a->opts);
}

int tern_options_new(struct tern_options **out, struct tern_error *error)
{
    struct err e;
    struct tern_options *o = *out = calloc(1, sizeof *o);
    if (!o) {
        return lib_no_memory(error);
    }
    if (lib_args_init(&o->checked, &e) < 0) {
        tern_options_free(o);
        *out = NULL;
        return lib_fail(error, &e);
    }
    return 0;
}

void tern_options_free(struct tern_options *o)
{
    if (!o) {
        return;
    }
    for (int i = 0; i < o->n_settings; i++) {
        free(o->settings[i].name);
        free(o->settings[i].value);
    }
    free(o->settings);
    lib_args_fini(&o->checked);
    free(o);
}

int tern_options_set(struct tern_options *o, const char *name, const char *value,
                     struct tern_error *error)
{
    struct err e;
    if (opts_set(&o->checked.opts, name, value, &e) < 0) {
        return lib_fail(error, &e);
    }
    struct lib_setting *v = realloc(o->settings, ((size_t)o->n_settings + 1) * sizeof *o->settings);
    if (!v) {
        return lib_no_memory(error);
    }
    o->settings = v;
    v += o->n_settings;
    *v = (struct lib_setting){strdup(name), strdup(value)};
    if (!v->name || !v->value) {
        free(v->name);
        free(v->value);
        return lib_no_memory(error);
    }
    o->n_settings++;
    return 0;
}

void tern_options_expect(struct tern_options *o, int n_outputs)
{
    o->n_outputs = n_outputs;
}

void tern_options_set_log(struct tern_options *o, tern_log_fn *fn, void *user)
{
    o->log = fn;
    o->log_user = user;
}
