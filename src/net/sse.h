/* SPDX-License-Identifier: Apache-2.0 */
/* Server-sent events over a streamed response: `data: <text>\n\n`. The text must hold no newline
 * (JSON never does). */
#ifndef TERN_NET_SSE_H
#define TERN_NET_SSE_H
#include "net/http.h"
void sse_begin(struct http_exchange *x);
void sse_data(struct http_exchange *x, const char *text, size_t n_bytes);
/* With a line `event: <name>` before the data. */
void sse_event(struct http_exchange *x, const char *name, const char *text, size_t n_bytes);
void sse_done(struct http_exchange *x); /* `data: [DONE]` and the end of the response */
#endif
