/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP/1.1 server on one libevent loop: listener, connections, limits, timeouts, plain and streamed
 * responses.
 *
 * The user of this layer sees exchanges: one request with its response. It learns of an exchange in
 * on_request (or on_head), answers with http_respond, or with http_stream_begin/_write/_end, now or
 * later, and forgets the pointer when the response has ended or when the exchange's `gone` callback
 * said that the client went away.
 *
 * What counts as gone while a response is due: FIN (also a half-close), RST, or output that the
 * peer takes nothing of for write_timeout_s. Requests of one connection are handled one at a time,
 * in order. Everything here belongs to the thread that runs the event base. */
#ifndef TERN_NET_HTTP_H
#define TERN_NET_HTTP_H

#include "base/err.h"
#include "net/request.h"
#include "net/tls.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct event_base;
struct log;
struct http_server;
struct http_exchange;

struct http_callbacks {
    void *ctx;
    /* The head is known, a body is still to come. May answer (a refusal): the body is then
     * discarded. May be NULL. */
    void (*on_head)(void *ctx, struct http_exchange *x);
    void (*on_request)(void *ctx, struct http_exchange *x);
    /* The bytes were no acceptable request: answer with this status (the connection closes
     * afterwards). */
    void (*on_bad_request)(void *ctx, struct http_exchange *x, int status, const char *reason);
    void (*on_response)(void *ctx, struct http_exchange *x,
                        int status); /* a response head was written; may be NULL */
    void (*on_end)(void *ctx,
                   struct http_exchange *x); /* response complete or client gone; may be NULL */
};

/* Strings are borrowed for the server's life, except host and uds. */
struct http_options {
    const char *host;
    int port;
    int no_listener;               /* only http_server_adopt brings connections */
    const char *uds;               /* listen on this path instead of host and port; or NULL */
    int uds_mode;                  /* its permission bits, -1: what umask leaves */
    const struct tls_options *tls; /* NULL: plain HTTP */
    int tls_refresh;               /* load the files again when they change */
    size_t max_body_bytes, max_header_bytes;
    int max_headers; /* fields of a request */
    int max_connections;
    int keep_alive_s, read_timeout_s, write_timeout_s;
    struct http_callbacks callbacks;
    const struct log *log; /* NULL: default */
};

/* ERR_BUSY when the address is in use. The socket listens when this returns. */
int http_server_new(struct http_server **out, struct event_base *base, const struct http_options *o,
                    struct err *e);
int http_server_port(const struct http_server *s); /* 0 with a unix socket */
/* Loads certificate and key again, for connections to come; logs what came of it. Without TLS
 * nothing happens. */
void http_server_reload_tls(struct http_server *s);
int http_server_is_busy(
    const struct http_server *s); /* a response is due, or bytes of one wait to be sent */
/* Serves a connected unix socket as if it had been accepted; takes fd. On the loop's thread. */
void http_server_adopt(struct http_server *s, int fd);
void http_server_stop_accepting(
    struct http_server *s); /* closes the listener and idle connections; responses under way
                             * go on and then close */
void http_server_free(struct http_server *s); /* closes all connections without callbacks */

const char *http_method(const struct http_exchange *x);
const char *http_target(const struct http_exchange *x); /* as received; no control characters */
const char *http_path(const struct http_exchange *x);
const char *http_query(const struct http_exchange *x);
const char *http_header(const struct http_exchange *x, const char *name);
const char *http_body(const struct http_exchange *x,
                      size_t *n_bytes); /* valid until the exchange ends */
char *http_body_take(struct http_exchange *x,
                     size_t *n_bytes); /* malloc'ed, now the caller's; may be NULL when empty */
const char *http_peer(const struct http_exchange *x); /* "127.0.0.1:54321" */
int http_version_minor(const struct http_exchange *x);
uint64_t
http_started_ns(const struct http_exchange *x); /* clock_now_ns when the head was complete */
uint64_t http_request_bytes(const struct http_exchange *x);  /* body */
uint64_t http_response_bytes(const struct http_exchange *x); /* body written so far */
int http_status(const struct http_exchange *x);              /* of the response, 0 before */
/* A number of the user's, 0 at first; kept until on_end. */
void http_set_tag(struct http_exchange *x, int tag);
int http_tag(const struct http_exchange *x);
/* A short text of the user's, at most 35 bytes, "" at first. */
void http_set_label(struct http_exchange *x, const char *label);
const char *http_label(const struct http_exchange *x);

/* Who is told that the client went away before the response ended, at most once, never from inside
 * a call of the functions below. */
void http_on_gone(struct http_exchange *x, void (*gone)(void *user), void *user);
/* Called from the loop when the output has drained below the low mark after http_stream_backlog was
 * above it. */
void http_on_drain(struct http_exchange *x, void (*drain)(void *user), void *user);

/* The functions that answer forget the request: its strings are gone when they return. */
void http_add_header(struct http_exchange *x, const char *name,
                     const char *value); /* CR and LF are dropped */
/* content_type NULL: none. */
void http_respond(struct http_exchange *x, int status, const char *content_type, const void *body,
                  size_t n_bytes);
void http_stream_begin(struct http_exchange *x, int status, const char *content_type);
void http_stream_writev(struct http_exchange *x, const struct iovec *parts,
                        int n_parts); /* one chunk */
void http_stream_end(struct http_exchange *x);
void http_abort(
    struct http_exchange *x); /* cut the connection: a streamed response that can't be finished */
#define HTTP_STREAM_HIGH_BYTES (64 * 1024)
#define HTTP_INPUT_BYTES       65536                       /* one read */
size_t http_stream_backlog(const struct http_exchange *x); /* bytes the socket has not taken yet */

const char *http_reason(int status); /* "Not Found" */

#endif
