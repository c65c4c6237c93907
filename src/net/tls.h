/* SPDX-License-Identifier: Apache-2.0 */
/* TLS on a connection's socket, by OpenSSL. The connection keeps its own events and buffers: a
 * tls_stream only stands in for recv(2) and send(2), so that back-pressure, deadlines and the watch
 * for a client that leaves work as they do on a plain socket.
 *
 * The certificate can be loaded again while connections are open; each keeps what it began with.
 * Owner: the net loop. */
#ifndef TERN_NET_TLS_H
#define TERN_NET_TLS_H

#include "base/err.h"
#include <stddef.h>
#include <sys/types.h>

enum tls_cert_reqs { TLS_CERT_NONE, TLS_CERT_OPTIONAL, TLS_CERT_REQUIRED };

struct tls_options {
    const char *certfile; /* PEM, the chain from the server's own certificate upwards */
    const char *keyfile;  /* PEM; NULL: in certfile */
    const char *keyfile_password;
    const char *ca_certs; /* PEM, who may sign clients' certificates; or NULL */
    const char *ciphers;  /* OpenSSL's list for TLS 1.2; NULL: OpenSSL's choice */
    enum tls_cert_reqs cert_reqs;
};

struct tls;
/* Reads the files; an error names the option and the file. The strings are borrowed for the
 * object's life. */
int tls_open(struct tls **out, const struct tls_options *o, struct err *e);
int tls_reload(struct tls *t, struct err *e); /* on failure the old certificate stays in use */
int tls_has_changed(struct tls *t);           /* files differ from what was last loaded or tried */
void tls_close(struct tls *t);

struct tls_stream;
struct tls_stream *tls_accept(struct tls *t, int fd); /* NULL: out of memory */
/* As recv and send on a non-blocking socket: -1 with EAGAIN also when the other direction is
 * awaited, then *crossed is 1. 0 from tls_recv: the peer has ended. */
ssize_t tls_recv(struct tls_stream *s, void *out, size_t n, int *crossed);
ssize_t tls_send(struct tls_stream *s, const void *data, size_t n, int *crossed);
void tls_shutdown(struct tls_stream *s); /* says goodbye, without waiting for the answer */
void tls_stream_free(struct tls_stream *s);

#endif
