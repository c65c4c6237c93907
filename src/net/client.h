/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP from the other side: many requests in flight on one thread, through libcurl. The library is
 * loaded when the first client opens, so that a server has no need of it. One client belongs to
 * one thread. */
#ifndef TERN_NET_CLIENT_H
#define TERN_NET_CLIENT_H

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include <stddef.h>
#include <stdint.h>

struct client;
struct client_request;

struct client_options {
    const char *unix_socket; /* path of the socket to connect to, or NULL */
    const char *ca_file;     /* PEM bundle, NULL: the system's */
    const char *bearer;      /* sent as Authorization: Bearer, or NULL; never logged */
    int connect_timeout_s;   /* 0: 30 */
    int stall_timeout_s;     /* a transfer without a byte for this long fails; 0: never */
    int max_redirects;       /* 0: none are followed */
    int max_connections;     /* kept open to one host; 0: 256 */
};

struct client_callbacks {
    /* A response header line (name and value, no line break); may be NULL. */
    void (*header)(void *user, const char *name, const char *value);
    /* Bytes of the body, as they come, of any status. Non-zero ends the request. */
    int (*data)(void *user, const char *bytes, size_t n);
    /* Last call. status: of the response, 0 when there was none; then e says why. A response that
     * was cut short has its status and an error. After it the request is gone. */
    void (*done)(void *user, int status, const struct err *e);
};

int client_open(struct client **out, const struct client_options *o, struct err *e);
void client_close(struct client *c); /* unfinished requests end without a call; accepts NULL */

/* method: "GET", "HEAD", "POST", …. headers: "Name: value" lines. The body is copied. Starts at the
 * next client_run. */
int client_start(struct client *c, const char *method, const char *url, const char *const *headers,
                 int n_headers, const void *body, size_t n_bytes, const struct client_callbacks *cb,
                 void *user, struct client_request **out, struct err *e);
void client_cancel(struct client_request *r); /* no call comes any more; not from its callbacks */
/* Moves everything that can move, waiting up to timeout_ms for something to. Returns the number of
 * requests that are not done. Callbacks run inside. */
int client_run(struct client *c, int timeout_ms);

/* One exchange that is waited for (others under way move on meanwhile): GET, or POST of a JSON body
 * (body not NULL). The reply is the caller's to free. A status other than 200 is ERR_IO with the
 * server's own message. */
int client_call_json(struct client *c, const char *url, const struct buf *body, struct json **out,
                     struct err *e);

#endif
