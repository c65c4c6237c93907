/* SPDX-License-Identifier: Apache-2.0 */
/* The pages for people: what web/build.mjs made, as bytes inside the program. */
#ifndef TERN_API_PAGE_H
#define TERN_API_PAGE_H

#include <stddef.h>

struct page_file {
    const char *path; /* as in the URL; "index.html" is /, "dashboard.html" /dashboard */
    const char *type;
    const char *etag; /* in quotes */
    const unsigned char *plain;
    size_t n_plain;
    const unsigned char *gzip; /* NULL: it would not be smaller */
    size_t n_gzip;
};

struct page {
    const struct page_file *files;
    int n_files;
};

/* NULL when the program was built without Node.js. */
const struct page *page_built_in(void);

#endif
