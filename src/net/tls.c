/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and streams of TLS. Only TLS 1.2 and 1.3; no renegotiation; ALPN answers http/1.1, the
 * one protocol spoken here. OpenSSL's error queue belongs to the thread and is emptied before every
 * call, because an old entry would be taken for the outcome of a new one. */
#include "net/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define N_FILES 3

struct file_state {
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec mtime;
};

struct tls {
    struct tls_options o;
    SSL_CTX *ctx;
    BIO_METHOD *socket;
    struct file_state seen[N_FILES];
};

struct tls_stream {
    SSL *ssl;
    int dead; /* a fatal error came: nothing may be sent any more */
};

/* ---- loading ---- */

static const char *reason(void)
{
    unsigned long code = ERR_peek_last_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    return text ? text : "no valid PEM data";
}

static int give_password(char *out, int size, int writing, void *user)
{
    const char *password = user ? user : "";
    int n = 0;
    (void)writing;
    while (n < size && password[n]) { /* no NUL behind it */
        out[n] = password[n];
        n++;
    }
    return n > 0 && !password[n] ? n : -1; /* never asked for at a terminal */
}

static int check_readable(const char *option, const char *path, struct err *e)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f) {
        return err_set(e, ERR_IO, "%s %s: %s", option, path, strerror(errno));
    }
    int is_file = fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode);
    fclose(f);
    return is_file ? 0 : err_set(e, ERR_IO, "%s %s: not a file", option, path);
}

static int load_key(SSL_CTX *ctx, const struct tls_options *o, struct err *e)
{
    const char *option = o->keyfile ? "ssl-keyfile" : "ssl-certfile";
    const char *path = o->keyfile ? o->keyfile : o->certfile;
    int rc = check_readable(option, path, e);
    if (rc < 0) {
        return rc;
    }
    SSL_CTX_set_default_passwd_cb(ctx, give_password);
    SSL_CTX_set_default_passwd_cb_userdata(ctx, (void *)o->keyfile_password);
    ERR_clear_error();
    if (SSL_CTX_use_PrivateKey_file(ctx, path, SSL_FILETYPE_PEM) == 1) {
        return 0;
    }
    unsigned long code = ERR_peek_error();
    int is_mismatch =
        ERR_GET_LIB(code) == ERR_LIB_X509 && (ERR_GET_REASON(code) == X509_R_KEY_VALUES_MISMATCH ||
                                              ERR_GET_REASON(code) == X509_R_KEY_TYPE_MISMATCH);
    int is_password = 0;
    for (unsigned long each = code; each; each = ERR_get_error()) {
        is_password |=
            (ERR_GET_LIB(each) == ERR_LIB_PEM && (ERR_GET_REASON(each) == PEM_R_BAD_PASSWORD_READ ||
                                                  ERR_GET_REASON(each) == PEM_R_BAD_DECRYPT)) ||
            ERR_GET_LIB(each) == ERR_LIB_EVP || ERR_GET_LIB(each) == ERR_LIB_PROV ||
            ERR_GET_LIB(each) == ERR_LIB_PKCS12;
    }
    if (is_mismatch) {
        return err_set(e, ERR_INVALID, "%s %s: the key does not belong to the certificate in %s",
                       option, path, o->certfile);
    }
    return err_set(e, ERR_INVALID, "%s %s: %s", option, path,
                   !is_password          ? "no private key in PEM form"
                   : o->keyfile_password ? "ssl-keyfile-password does not decrypt it"
                                         : "the key is encrypted, ssl-keyfile-password is needed");
}

static int select_alpn(SSL *ssl, const unsigned char **out, unsigned char *n_out,
                       const unsigned char *in, unsigned n_in, void *user)
{
    static const unsigned char spoken[] = "\x08http/1.1";
    (void)ssl;
    (void)user;
    return SSL_select_next_proto((unsigned char **)out, n_out, spoken, sizeof spoken - 1, in,
                                 n_in) == OPENSSL_NPN_NEGOTIATED
               ? SSL_TLSEXT_ERR_OK
               : SSL_TLSEXT_ERR_NOACK;
}

static int load_clients_ca(SSL_CTX *ctx, const struct tls_options *o, struct err *e)
{
    if (o->cert_reqs != TLS_CERT_NONE && !o->ca_certs) {
        return err_set(e, ERR_INVALID,
                       "ssl-cert-reqs %d asks for clients' certificates: ssl-ca-certs is needed",
                       (int)o->cert_reqs);
    }
    if (o->ca_certs) {
        int rc = check_readable("ssl-ca-certs", o->ca_certs, e);
        if (rc < 0) {
            return rc;
        }
        ERR_clear_error();
        STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(o->ca_certs);
        if (!names || SSL_CTX_load_verify_locations(ctx, o->ca_certs, NULL) != 1) {
            rc = err_set(e, ERR_INVALID, "ssl-ca-certs %s: %s", o->ca_certs, reason());
            sk_X509_NAME_pop_free(names, X509_NAME_free);
            return rc;
        }
        SSL_CTX_set_client_CA_list(ctx, names);
    }
    SSL_CTX_set_verify(ctx,
                       o->cert_reqs == TLS_CERT_NONE ? SSL_VERIFY_NONE
                       : o->cert_reqs == TLS_CERT_OPTIONAL
                           ? SSL_VERIFY_PEER
                           : SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       NULL);
    return 0;
}

static int make_context(const struct tls_options *o, SSL_CTX **out, struct err *e)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    int rc = ctx ? check_readable("ssl-certfile", o->certfile, e)
                 : err_set(e, ERR_NOMEM, "TLS: out of memory");
    if (rc < 0) {
        goto done;
    }
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_CIPHER_SERVER_PREFERENCE);
    /* RELEASE_BUFFERS: an idle connection costs no record buffers. */
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_id_context(ctx, (const unsigned char *)"tern", 4);
    SSL_CTX_set_alpn_select_cb(ctx, select_alpn, NULL);
    ERR_clear_error();
    if (o->ciphers && SSL_CTX_set_cipher_list(ctx, o->ciphers) != 1) {
        rc = err_set(e, ERR_INVALID, "ssl-ciphers %s: %s", o->ciphers, reason());
        goto done;
    }
    if (SSL_CTX_use_certificate_chain_file(ctx, o->certfile) != 1) {
        rc = err_set(e, ERR_INVALID, "ssl-certfile %s: %s", o->certfile, reason());
        goto done;
    }
    rc = load_key(ctx, o, e);
    rc = rc < 0 ? rc : load_clients_ca(ctx, o, e);
done:
    ERR_clear_error();
    if (rc < 0) {
        SSL_CTX_free(ctx);
        return rc;
    }
    *out = ctx;
    return 0;
}

static void look(const struct tls *t, struct file_state out[N_FILES])
{
    const char *paths[N_FILES] = {t->o.certfile, t->o.keyfile, t->o.ca_certs};
    memset(out, 0, N_FILES * sizeof *out);
    for (int i = 0; i < N_FILES; i++) {
        struct stat st;
        if (paths[i] && stat(paths[i], &st) == 0) {
            out[i].dev = st.st_dev;
            out[i].ino = st.st_ino;
            out[i].size = st.st_size;
            out[i].mtime = st.st_mtim;
        }
    }
}

/* OpenSSL's own socket BIO writes with write(2), which raises SIGPIPE when the peer is gone. */
static int bio_write(BIO *b, const char *data, int n)
{
    ssize_t sent =
        send((int)(intptr_t)BIO_get_data(b), data, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    BIO_clear_retry_flags(b);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
        BIO_set_retry_write(b);
    }
    return (int)sent;
}

static int bio_read(BIO *b, char *out, int n)
{
    ssize_t got = recv((int)(intptr_t)BIO_get_data(b), out, (size_t)n, MSG_DONTWAIT);
    BIO_clear_retry_flags(b);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        BIO_set_retry_read(b);
    } else if (got == 0) {
        BIO_set_flags(b, BIO_FLAGS_IN_EOF);
    }
    return (int)got;
}

static long bio_ctrl(BIO *b, int cmd, long num, void *ptr)
{
    (void)num;
    (void)ptr;
    return cmd == BIO_CTRL_FLUSH ? 1
           : cmd == BIO_CTRL_EOF ? BIO_test_flags(b, BIO_FLAGS_IN_EOF) != 0
                                 : 0;
}

static int make_socket_method(struct tls *t)
{
    t->socket = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    return t->socket && BIO_meth_set_write(t->socket, bio_write) &&
                   BIO_meth_set_read(t->socket, bio_read) && BIO_meth_set_ctrl(t->socket, bio_ctrl)
               ? 0
               : -1;
}

int tls_open(struct tls **out, const struct tls_options *o, struct err *e)
{
    struct tls *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) {
        return err_set(e, ERR_NOMEM, "TLS: out of memory");
    }
    t->o = *o;
    int rc =
        make_socket_method(t) == 0 ? tls_reload(t, e) : err_set(e, ERR_NOMEM, "TLS: out of memory");
    if (rc < 0) {
        tls_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

int tls_reload(struct tls *t, struct err *e)
{
    SSL_CTX *fresh = NULL;
    look(t, t->seen); /* before reading: a change in between is seen the next time */
    int rc = make_context(&t->o, &fresh, e);
    if (rc < 0) {
        return rc;
    }
    SSL_CTX_free(t->ctx); /* open streams hold their own reference */
    t->ctx = fresh;
    return 0;
}

int tls_has_changed(struct tls *t)
{
    struct file_state now[N_FILES];
    look(t, now);
    return memcmp(now, t->seen, sizeof now) != 0;
}

void tls_close(struct tls *t)
{
    if (t) {
        SSL_CTX_free(t->ctx);
        BIO_meth_free(t->socket);
        free(t);
    }
}

/* ---- streams ---- */

struct tls_stream *tls_accept(struct tls *t, int fd)
{
    struct tls_stream *s = calloc(1, sizeof *s);
    BIO *bio = s ? BIO_new(t->socket) : NULL;
    ERR_clear_error();
    if (!bio || !(s->ssl = SSL_new(t->ctx))) {
        BIO_free(bio);
        tls_stream_free(s);
        return NULL;
    }
    BIO_set_data(bio, (void *)(intptr_t)fd);
    BIO_set_init(bio, 1);
    SSL_set_bio(s->ssl, bio, bio);
    SSL_set_accept_state(s->ssl);
    return s;
}

/* -1 with errno set, or 0 for an end in good order. */
static ssize_t outcome(struct tls_stream *s, int rc, int other_way, int *crossed)
{
    int error = SSL_get_error(s->ssl, rc);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        *crossed = error == other_way;
        errno = EAGAIN;
        return -1;
    }
    s->dead = error != SSL_ERROR_ZERO_RETURN;
    ERR_clear_error();
    if (error == SSL_ERROR_ZERO_RETURN) {
        return 0;
    }
    errno = EPROTO;
    return -1;
}

ssize_t tls_recv(struct tls_stream *s, void *out, size_t n, int *crossed)
{
    size_t got = 0;
    *crossed = 0;
    ERR_clear_error();
    int rc = SSL_read_ex(s->ssl, out, n, &got);
    return rc == 1 ? (ssize_t)got : outcome(s, rc, SSL_ERROR_WANT_WRITE, crossed);
}

ssize_t tls_send(struct tls_stream *s, const void *data, size_t n, int *crossed)
{
    size_t sent = 0;
    *crossed = 0;
    ERR_clear_error();
    int rc = SSL_write_ex(s->ssl, data, n, &sent);
    if (rc == 1) {
        return (ssize_t)sent;
    }
    ssize_t end = outcome(s, rc, SSL_ERROR_WANT_READ, crossed);
    if (end == 0) {
        errno = EPIPE; /* the peer has said goodbye */
    }
    return -1;
}

void tls_shutdown(struct tls_stream *s)
{
    if (!s->dead && SSL_is_init_finished(s->ssl)) {
        ERR_clear_error();
        SSL_shutdown(s->ssl);
        ERR_clear_error();
        s->dead = 1;
    }
}

void tls_stream_free(struct tls_stream *s)
{
    if (s) {
        SSL_free(s->ssl);
        free(s);
    }
}
