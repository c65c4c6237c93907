/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as HTTP: read whole and read byte by byte they give the same requests and are refused
 * at the same request. Of a request with two faults in one token (too long, and a byte that is not
 * allowed) the parser names the one it sees first, which depends on the pieces: the reason is not
 * compared. */
#include "net/request.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* What was understood, as text. */
static void read_all(const uint8_t *data, size_t n_bytes, size_t step, struct buf *out)
{
    static const struct http_request_limits limits = {1024, 2048, 64};
    struct http_request r;
    size_t at = 0;
    http_request_init(&r, &limits);
    while (at < n_bytes) {
        size_t n = n_bytes - at < step ? n_bytes - at : step;
        size_t used = http_request_feed(&r, (const char *)data + at, n);
        at += used;
        if (r.state == REQUEST_BAD) {
            buf_puts(out, "bad\n");
            break;
        }
        if (r.state == REQUEST_COMPLETE) {
            buf_printf(out, "%s %s ? %s keep %d body %zu:", http_request_method(&r),
                       r.path.data ? r.path.data : "", r.query, r.keep_alive, r.body.len);
            buf_append(out, r.body.data ? r.body.data : "", r.body.len);
            for (int i = 0; i < r.n_headers; i++) {
                buf_printf(out, "\n%s: %s", r.head.data + r.fields[i].name_at,
                           r.head.data + r.fields[i].value_at);
            }
            buf_putc(out, '\n');
            http_request_next(&r);
        } else if (used == 0 && r.state != REQUEST_BODY) {
            abort(); /* no progress */
        }
    }
    if (r.head.len > limits.max_header_bytes || r.body.len > limits.max_body_bytes) {
        abort();
    }
    http_request_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct buf whole, bytes;
    buf_init(&whole);
    buf_init(&bytes);
    read_all(data, n_bytes, n_bytes ? n_bytes : 1, &whole);
    read_all(data, n_bytes, 1, &bytes);
    if (whole.len != bytes.len || (whole.len && memcmp(whole.data, bytes.data, whole.len) != 0)) {
        abort();
    }
    buf_fini(&whole);
    buf_fini(&bytes);
    return 0;
}
