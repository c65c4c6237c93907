/* SPDX-License-Identifier: Apache-2.0 */
/* One event is one chunk of the response, so that a client that reads by chunk sees whole events.
 */
#include "net/sse.h"

#include <string.h>

void sse_begin(struct http_exchange *x)
{
    http_add_header(x, "cache-control", "no-cache");
    http_add_header(x, "x-accel-buffering", "no"); /* nginx would hold events back otherwise */
    http_stream_begin(x, 200, "text/event-stream; charset=utf-8");
}

void sse_data(struct http_exchange *x, const char *text, size_t n_bytes)
{
    struct iovec parts[3] = {{(void *)"data: ", 6}, {(void *)text, n_bytes}, {(void *)"\n\n", 2}};
    http_stream_writev(x, parts, 3);
}

void sse_event(struct http_exchange *x, const char *name, const char *text, size_t n_bytes)
{
    struct iovec parts[5] = {{(void *)"event: ", 7},
                             {(void *)name, strlen(name)},
                             {(void *)"\ndata: ", 7},
                             {(void *)text, n_bytes},
                             {(void *)"\n\n", 2}};
    http_stream_writev(x, parts, 5);
}

void sse_done(struct http_exchange *x)
{
    sse_data(x, "[DONE]", 6);
    http_stream_end(x);
}
