/* SPDX-License-Identifier: Apache-2.0 */
/* llhttp glue. llhttp is compiled strict; on top of it come the limits, a Host requirement for
 * HTTP/1.1, and the refusal of transfer codings we can't undo: a body whose length two parties may
 * read differently is how requests are smuggled, so anything doubtful ends the connection. */
#include "net/request.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static struct http_request *self(llhttp_t *p)
{
    return p->data;
}

static int refuse(struct http_request *r, int status, const char *reason)
{
    if (r->state != REQUEST_BAD) {
        r->state = REQUEST_BAD;
        r->status = status;
        r->reason = reason;
    }
    return HPE_USER;
}

static int on_message_begin(llhttp_t *p)
{
    struct http_request *r = self(p);
    r->state = REQUEST_HEAD;
    return 0;
}

static int on_url(llhttp_t *p, const char *at, size_t n)
{
    struct http_request *r = self(p);
    if (r->url.len + n > HTTP_MAX_URL_BYTES) {
        return refuse(r, 414, "the request target is too long");
    }
    buf_append(&r->url, at, n);
    return r->url.failed ? refuse(r, 503, "out of memory") : 0;
}

static int on_version_complete(llhttp_t *p)
{
    if (p->http_major != 1 || p->http_minor > 1) {
        return refuse(self(p), 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    }
    return 0;
}

static int head_append(struct http_request *r, const char *at, size_t n)
{
    if (r->head.len + n > r->limits.max_header_bytes) {
        return refuse(r, 431, "the header fields are too large");
    }
    buf_append(&r->head, at, n);
    return r->head.failed ? refuse(r, 503, "out of memory") : 0;
}

static int grow_fields(struct http_request *r)
{
    int cap = r->fields_cap ? 2 * r->fields_cap : 16;
    struct http_field *more = realloc(r->fields, (size_t)cap * sizeof *more);
    if (!more) {
        return -1;
    }
    r->fields = more;
    r->fields_cap = cap;
    return 0;
}

static int on_header_field(llhttp_t *p, const char *at, size_t n)
{
    struct http_request *r = self(p);
    if (!r->in_name) {
        if (r->n_headers >= r->limits.max_headers) {
            return refuse(r, 431, "too many header fields");
        }
        if (r->n_headers == r->fields_cap && grow_fields(r) != 0) {
            return refuse(r, 503, "out of memory");
        }
        r->in_name = 1;
        r->in_value = 0;
        r->fields[r->n_headers].name_at = (uint32_t)r->head.len;
    }
    return head_append(r, at, n);
}

static int on_header_field_complete(llhttp_t *p)
{
    struct http_request *r = self(p);
    if (!r->in_name) {
        return 0;
    }
    int rc = head_append(r, "", 1);
    r->in_name = 0;
    r->in_value = 1;
    r->fields[r->n_headers].value_at = (uint32_t)r->head.len;
    return rc;
}

static int on_header_value(llhttp_t *p, const char *at, size_t n)
{
    return head_append(self(p), at, n);
}

static int on_header_value_complete(llhttp_t *p)
{
    struct http_request *r = self(p);
    if (!r->in_value) {
        return 0;
    }
    r->in_value = 0;
    int rc = head_append(r, "", 1);
    if (rc == 0) {
        if (r->in_trailer) { /* trailers are read, counted and dropped */
            r->head.len = r->fields[r->n_headers].name_at;
        } else {
            r->n_headers++;
        }
    }
    return rc;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* url -> path and query. */
static int split_url(struct http_request *r)
{
    const char *u = r->url.data ? r->url.data : "";
    if (strncasecmp(u, "http://", 7) == 0 || strncasecmp(u, "https://", 8) == 0) {
        const char *slash = strchr(strstr(u, "//") + 2, '/');
        u = slash ? slash : "/";
    }
    size_t n = strcspn(u, "?#");
    r->query = u[n] == '?' ? u + n + 1 : "";
    for (size_t i = 0; i < n; i++) {
        if (u[i] == '%' && i + 2 < n && hex(u[i + 1]) >= 0 && hex(u[i + 2]) >= 0) {
            char c = (char)(hex(u[i + 1]) * 16 + hex(u[i + 2]));
            if (c == 0) { /* would end the path here for us and not for a proxy */
                return refuse(r, 400, "the path contains %00");
            }
            buf_putc(&r->path, c);
            i += 2;
        } else {
            buf_putc(&r->path, u[i]);
        }
    }
    return r->path.failed ? refuse(r, 503, "out of memory") : 0;
}

static int on_headers_complete(llhttp_t *p)
{
    struct http_request *r = self(p);
    if (r->state == REQUEST_BAD) {
        return -1;
    }
    if (p->http_major != 1) { /* HTTP/0.9: a request line without a version */
        refuse(r, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
        return -1;
    }
    r->in_trailer = 1;
    r->is_head = p->method == HTTP_HEAD;
    if (split_url(r) != 0) {
        return -1;
    }
    if (p->method == HTTP_CONNECT) {
        refuse(r, 405, "Method Not Allowed");
        return -1;
    }
    int n_hosts = 0;
    for (int i = 0; i < r->n_headers; i++) {
        n_hosts += strcasecmp(r->head.data + r->fields[i].name_at, "host") == 0;
    }
    if (n_hosts > 1 || (n_hosts == 0 && p->http_minor == 1)) {
        refuse(r, 400, "exactly one Host header is needed");
        return -1;
    }
    const char *coding = http_request_header(r, "transfer-encoding");
    if (coding && strcasecmp(coding, "chunked") != 0) {
        refuse(r, 501, "only the chunked transfer coding is supported");
        return -1;
    }
    int has_body = (p->flags & F_CHUNKED) || p->content_length > 0;
    if ((p->flags & F_CONTENT_LENGTH) && p->content_length > r->limits.max_body_bytes) {
        refuse(r, 413, "the request body is too large");
        return -1;
    }
    const char *expect = http_request_header(r, "expect");
    if (expect && p->http_minor == 1) {
        if (strcasecmp(expect, "100-continue") != 0) {
            refuse(r, 417, "only Expect: 100-continue is supported");
            return -1;
        }
        r->wants_continue = has_body;
    }
    if (has_body) {
        r->state = REQUEST_BODY;
        return HPE_PAUSED; /* the owner looks at the head before any body byte is taken */
    }
    return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
    struct http_request *r = self(p);
    r->body_bytes += n;
    if (r->body_bytes > r->limits.max_body_bytes) {
        return refuse(r, 413, "the request body is too large");
    }
    if (r->body.len == 0 && p->content_length > 0 && !(p->flags & F_CHUNKED)) {
        /* No more than twice what has come is set aside: a large Content-Length alone costs
         * nothing. */
        buf_reserve(&r->body, p->content_length < 65536 ? (size_t)p->content_length + n : n);
    }
    buf_append(&r->body, at, n);
    return r->body.failed ? refuse(r, 503, "out of memory") : 0;
}

static int on_chunk_header(llhttp_t *p)
{
    struct http_request *r = self(p);
    /* An announced chunk that can't fit is refused before its bytes are sent. */
    if (p->content_length > r->limits.max_body_bytes - r->body_bytes) {
        return refuse(r, 413, "the request body is too large");
    }
    return 0;
}

static int on_message_complete(llhttp_t *p)
{
    struct http_request *r = self(p);
    r->state = REQUEST_COMPLETE;
    r->keep_alive = llhttp_should_keep_alive(p);
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_message_begin = on_message_begin,
    .on_url = on_url,
    .on_version_complete = on_version_complete,
    .on_header_field = on_header_field,
    .on_header_field_complete = on_header_field_complete,
    .on_header_value = on_header_value,
    .on_header_value_complete = on_header_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_chunk_header = on_chunk_header,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

void http_request_init(struct http_request *r, const struct http_request_limits *limits)
{
    memset(r, 0, sizeof *r);
    r->limits = *limits;
    buf_init(&r->url);
    buf_init(&r->path);
    buf_init(&r->head);
    buf_init(&r->body);
    r->query = "";
    r->line_bytes = -1;
    llhttp_init(&r->parser, HTTP_REQUEST, &settings);
    r->parser.data = r;
}

void http_request_fini(struct http_request *r)
{
    buf_fini(&r->url);
    buf_fini(&r->path);
    buf_fini(&r->head);
    buf_fini(&r->body);
    free(r->fields);
    r->fields = NULL;
}

void http_request_next(struct http_request *r)
{
    /* A connection keeps its small buffers; a large body is given back. */
    if (r->body.cap > 65536) {
        buf_fini(&r->body);
        buf_init(&r->body);
    }
    if (r->head.cap > 4096) {
        buf_fini(&r->head);
        buf_init(&r->head);
    }
    if (r->fields_cap > 64) {
        free(r->fields);
        r->fields = NULL;
        r->fields_cap = 0;
    }
    buf_clear(&r->url);
    buf_clear(&r->path);
    buf_clear(&r->head);
    buf_clear(&r->body);
    r->state = REQUEST_EMPTY;
    r->status = 0;
    r->reason = NULL;
    r->query = "";
    r->n_headers = r->in_name = r->in_value = r->in_trailer = r->head_over = 0;
    r->line_bytes = -1;
    r->keep_alive = r->wants_continue = r->is_head = 0;
    r->body_bytes = 0;
    llhttp_init(&r->parser, HTTP_REQUEST, &settings);
    r->parser.data = r;
}

static int status_of(llhttp_errno_t err, const char **reason)
{
    switch (err) {
    case HPE_INVALID_VERSION:
    case HPE_PAUSED_H2_UPGRADE:
        *reason = "only HTTP/1.0 and HTTP/1.1 are spoken here";
        return 505;
    case HPE_INVALID_CONTENT_LENGTH:
    case HPE_UNEXPECTED_CONTENT_LENGTH:
        *reason = "invalid Content-Length";
        return 400;
    case HPE_INVALID_TRANSFER_ENCODING:
        *reason = "invalid Transfer-Encoding";
        return 400;
    case HPE_INVALID_CHUNK_SIZE:
        *reason = "invalid chunk size";
        return 400;
    default:
        *reason = "Invalid HTTP request received.";
        return 400;
    }
}

/* Looks for a header line that begins with a blank, a continuation of the line before. The parser
 * would join the two, others on the way read them as two or not at all: a folded Transfer-Encoding
 * is a body that only some see. A line that begins with a colon, a field without a name, is as
 * doubtful. Returns the index of such a line's first byte, n for none. */
static size_t find_bad_line(struct http_request *r, const char *data, size_t n)
{
    for (size_t i = 0; i < n && !r->head_over; i++) {
        char c = data[i];
        if (r->line_bytes == 0 && (c == ' ' || c == '\t' || c == ':')) {
            return i;
        }
        if (c == '\n') {
            r->head_over = r->line_bytes == 0;
            r->line_bytes = r->line_bytes < 0 ? -1 : 0;
        } else if (c != '\r') {
            r->line_bytes = 1;
        }
    }
    return n;
}

#define FOLDED "folded header lines and fields without a name are not accepted"

size_t http_request_feed(struct http_request *r, const char *data, size_t n)
{
    if (r->state == REQUEST_BAD || r->state == REQUEST_COMPLETE || n == 0) {
        return 0;
    }
    /* What stands before a bad line has its say first, so that the verdict is the same however the
     * bytes were cut into pieces. */
    size_t all = n;
    n = find_bad_line(r, data, n);
    if (n == 0) {
        refuse(r, 400, FOLDED);
        return 0;
    }
    if (llhttp_get_errno(&r->parser) == HPE_PAUSED) {
        llhttp_resume(&r->parser);
    }
    llhttp_errno_t err = llhttp_execute(&r->parser, data, n);
    if (err == HPE_OK) {
        if (n < all) {
            refuse(r, 400, FOLDED);
        }
        return n;
    }
    const char *end = llhttp_get_error_pos(&r->parser);
    size_t used = end && end >= data && end <= data + n ? (size_t)(end - data) : n;
    if (err == HPE_PAUSED_UPGRADE) {
        /* An offer to change the protocol (h2c, websocket) is one that a server may ignore. */
        llhttp_resume_after_upgrade(&r->parser);
        r->state = REQUEST_COMPLETE;
        r->keep_alive = 0;
        return used;
    }
    if (err == HPE_PAUSED) {
        return used;
    }
    const char *reason;
    int status = status_of(err, &reason);
    refuse(r, status, reason); /* keeps an earlier verdict of a callback */
    return used;
}

const char *http_request_header(const struct http_request *r, const char *name)
{
    for (int i = 0; i < r->n_headers; i++) {
        if (strcasecmp(r->head.data + r->fields[i].name_at, name) == 0) {
            return r->head.data + r->fields[i].value_at;
        }
    }
    return NULL;
}

const char *http_request_method(const struct http_request *r)
{
    return llhttp_method_name((llhttp_method_t)r->parser.method);
}
