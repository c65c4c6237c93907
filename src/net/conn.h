/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the HTTP layer: what http.c (exchanges and the server) and conn.c (connections) share.
 * Owner: the net loop. */
#ifndef TERN_NET_CONN_H
#define TERN_NET_CONN_H

#include "net/http.h"
#include "net/listen.h"
#include "net/tls.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <sys/socket.h>
#include <time.h>

enum conn_state { CONN_READING, CONN_RUNNING, CONN_FLUSHING, CONN_LINGERING };

struct http_exchange {
    struct conn *conn;
    void (*gone)(void *);
    void *gone_user;
    void (*drain)(void *);
    void *drain_user;
    struct buf extra; /* header lines added by the user */
    uint64_t started_ns, response_bytes;
    int status;
    int tag;        /* the user's */
    char label[36]; /* the user's */
    int streaming, chunked, no_body;
    int was_high;
};

struct conn {
    struct conn *prev, *next;             /* all connections */
    struct conn *dirty_prev, *dirty_next; /* those with output to flush */
    int dirty;
    struct http_server *server;
    int fd;
    enum conn_state state;
    struct event ev_read, ev_write;
    int reading;
    struct tls_stream *tls; /* NULL: plain */
    int recv_crossed;       /* TLS: a read waits until the socket takes bytes */
    int send_crossed;       /* TLS: a write waits until bytes come */
    struct http_request request;
    struct http_exchange x;
    struct buf in; /* bytes behind the current request … */
    size_t in_at;  /* … start here */
    struct buf out;
    size_t out_sent;
    int close_after; /* no further request on this connection */
    int peer_eof;
    int broken; /* the response can't be finished: cut, without a goodbye */
    uint64_t idle_since_ns, head_since_ns, body_since_ns, stuck_since_ns, linger_until_ns;
    int kernel_bytes; /* when the output got stuck, or at the last look */
    int n_requests;
    char peer[64];
};

struct http_server {
    struct event_base *base;
    struct http_options o;
    char *host, *uds;
    struct listen_file uds_file;
    struct tls *tls;
    int fd, port;
    struct event *ev_accept, *ev_sweep, *ev_flush;
    struct conn *conns;
    struct conn *dirty,
        *dirty_last; /* first come, first sent: a stream keeps its place in a step */
    int n_conns;
    int draining;
    int accept_paused;
    uint64_t tls_looked_ns;
    time_t date_at;
    char date[40];
    char *input; /* scratch for reads */
};

static inline size_t conn_backlog(const struct conn *c)
{
    return c->out.len - c->out_sent;
}

void conn_open(struct http_server *s, int fd, const struct sockaddr_storage *addr);
void conn_free(struct conn *c);  /* without callbacks */
void conn_close(struct conn *c); /* tells the user of a response that is due */
void conn_mark_dirty(struct conn *c);
void conn_unmark_dirty(struct conn *c);
void conn_flush_dirty(struct http_server *s);
/* The response is complete in `out`. */
void conn_response_done(struct conn *c);
void conn_check_deadlines(struct conn *c, uint64_t now_ns);
/* Tells on_end; the exchange has neither gone nor drain any more. */
void http_end_exchange(struct conn *c);

#endif
