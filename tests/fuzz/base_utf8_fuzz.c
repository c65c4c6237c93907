/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: the lossy copy is valid, and is the input itself when that was valid. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    const char *s = (const char *)data;
    struct buf b;
    buf_init(&b);
    utf8_append_lossy(&b, s, n_bytes);
    int valid = utf8_is_valid(s, n_bytes);
    int same = b.len == n_bytes && (n_bytes == 0 || memcmp(b.data, s, n_bytes) == 0);
    if (valid != same || (b.len > 0 && !utf8_is_valid(b.data, b.len))) {
        abort();
    }
    buf_fini(&b);
    return 0;
}
