/* SPDX-License-Identifier: Apache-2.0 */
#include "base/plugin.h"

#ifdef TERN_STATIC

void *plugin_open(const char *const *names, int is_global, const char *package, struct err *e)
{
    (void)is_global;
    (void)package;
    err_set(e, ERR_UNSUPPORTED,
            "this needs %s, and this binary is the static one, which loads no libraries", names[0]);
    return NULL;
}

#else

#include <dlfcn.h>

void *plugin_open(const char *const *names, int is_global, const char *package, struct err *e)
{
    for (const char *const *p = names; *p; p++) {
        void *library = dlopen(*p, RTLD_NOW | (is_global ? RTLD_GLOBAL : RTLD_LOCAL));
        if (library) {
            return library;
        }
    }
    err_set(e, ERR_NOT_FOUND, "this needs %s, which is not installed (Debian: %s)", names[0],
            package);
    return NULL;
}

#endif
