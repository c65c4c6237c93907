/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: json_parse accepts or refuses with a place; what it accepts is dumped, parsed again
 * and dumped to the same text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct json *v, *again;
    struct err e = {0};
    int rc = json_parse(&v, (const char *)data, n_bytes, JSON_DEPTH_DEFAULT, &e);
    if (rc != 0) {
        if (v || rc != ERR_FORMAT || strncmp(e.text, "line ", 5) != 0) {
            abort();
        }
        return 0;
    }
    struct buf one, two;
    buf_init(&one);
    buf_init(&two);
    json_dump(v, &one);
    if (!utf8_is_valid((const char *)data, n_bytes) || !utf8_is_valid(one.data, one.len) ||
        json_parse(&again, one.data, one.len, JSON_DEPTH_DEFAULT, &e) != 0) {
        abort();
    }
    json_dump(again, &two);
    if (one.len != two.len || memcmp(one.data, two.data, one.len) != 0) {
        abort();
    }
    json_free(v);
    json_free(again);
    buf_fini(&one);
    buf_fini(&two);
    return 0;
}
