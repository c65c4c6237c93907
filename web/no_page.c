/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for the generated table of files in a build without Node.js. */
#include "api/page.h"

const struct page *page_built_in(void)
{
    return NULL;
}
