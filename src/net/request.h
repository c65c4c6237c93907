/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP/1.x request as bytes arrive: llhttp's strict parser with limits, the head kept as
 * strings, the body collected. Knows nothing of sockets, so that it can be fuzzed and tested alone.
 *
 * A reader is fed until it says REQUEST_COMPLETE or fails; it stops at the last byte of the
 * request, so that a pipelined one behind it stays unparsed until http_request_next. Owner: the net
 * loop. */
#ifndef TERN_NET_REQUEST_H
#define TERN_NET_REQUEST_H

#include "base/buf.h"
#include <llhttp.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_MAX_URL_BYTES 8192

struct http_request_limits {
    size_t max_header_bytes; /* all header fields together */
    size_t max_body_bytes;
    int max_headers; /* fields */
};

enum http_request_state {
    REQUEST_EMPTY, /* no byte of it has come */
    REQUEST_HEAD,  /* inside the request line or the header fields */
    REQUEST_BODY,  /* head complete, body going on */
    REQUEST_COMPLETE,
    REQUEST_BAD, /* refused: see status and reason; the connection can't be used any more */
};

struct http_request {
    llhttp_t parser;
    struct http_request_limits limits;
    enum http_request_state state;
    int status;         /* with REQUEST_BAD: 400, 413, 414, 417, 431, 501 or 505 */
    const char *reason; /* with REQUEST_BAD: static text */
    struct buf url;     /* as received */
    struct buf path;    /* without query, percent-decoded, absolute form reduced */
    const char *query;  /* "" when there is none; points into url */
    struct buf head;    /* name NUL value NUL … */
    struct http_field {
        uint32_t name_at, value_at; /* offsets into head */
    } * fields;
    int n_headers, fields_cap;
    int in_name, in_value, in_trailer;
    int line_bytes; /* of the head line that is coming in; 0 at its start, -1 before the request
                       line */
    int head_over;  /* the blank line was seen */
    struct buf body;
    int keep_alive;     /* what the client allows; set when complete */
    int wants_continue; /* Expect: 100-continue, and a body is to come */
    int is_head;
    uint64_t body_bytes; /* received */
};

void http_request_init(struct http_request *r, const struct http_request_limits *limits);
void http_request_fini(struct http_request *r);
void http_request_next(struct http_request *r); /* forget a complete request, ready for the next */
/* Consumes up to n bytes and returns how many. Stops after the head (state REQUEST_BODY or
 * REQUEST_COMPLETE follows on the next call when a body is expected), at the end of the request, or
 * when it is refused. */
size_t http_request_feed(struct http_request *r, const char *data, size_t n);
/* Case-insensitive; the first one of that name, NULL if absent. Borrowed. */
const char *http_request_header(const struct http_request *r, const char *name);
const char *http_request_method(const struct http_request *r);

#endif
