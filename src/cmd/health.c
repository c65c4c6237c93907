/* SPDX-License-Identifier: Apache-2.0 */
/* tern health: asks a server's /health and ends with 0 (a token can be produced) or 1, for the health
 * checks of containers and for scripts. Plain HTTP is spoken here over one blocking socket, so that
 * it works in an image that holds nothing but this program; https goes through net/client.h.
 *
 * The time limit is an alarm that ends the process, whatever call it waits in. */
#include "base/buf.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/remote.h"
#include "lib/args_words.h"
#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define HEALTH(field) offsetof(struct args_health, field)
#define G_SERVER      "Server"
#define HOST_BYTES    256
#define HEAD_BYTES    4096 /* more than a status line ever is */

struct args_health {
    const char *url, *host, *uds, *ca_file;
    int64_t port;
    double timeout_s;
    int quiet;
};

static const struct opt health_rows[] = {
    {.name = "url",
     .type = OPT_STRING,
     .offset = HEALTH(url),
     .group = G_SERVER,
     .env = "TERN_HEALTH_URL",
     .help = "Address of the server, http or https, with a path prefix if it has one; instead of "
             "--host and --port."},
    {.name = "host",
     .type = OPT_STRING,
     .offset = HEALTH(host),
     .group = G_SERVER,
     .def = "127.0.0.1",
     .help = "Host of the server."},
    {.name = "port",
     .type = OPT_INT,
     .offset = HEALTH(port),
     .group = G_SERVER,
     .def = "8000",
     .min = 1,
     .max = 65535,
     .help = "Port of the server."},
    {.name = "uds",
     .type = OPT_STRING,
     .offset = HEALTH(uds),
     .group = G_SERVER,
     .meta = "PATH",
     .help = "Unix socket of the server, instead of a host and a port."},
    {.name = "ca-file",
     .type = OPT_STRING,
     .offset = HEALTH(ca_file),
     .group = G_SERVER,
     .meta = "FILE",
     .help = "Certificates (PEM) to trust with https instead of the system's."},
    {.name = "timeout",
     .type = OPT_DOUBLE,
     .offset = HEALTH(timeout_s),
     .group = G_SERVER,
     .def = "5",
     .min = 0.01,
     .max = 3600,
     .help = "Seconds until it is given up."},
    {.name = "quiet",
     .type = OPT_BOOL,
     .offset = HEALTH(quiet),
     .group = G_SERVER,
     .def = "false",
     .help = "Say nothing; the exit code tells."},
};

static void on_alarm(int sig)
{
    static const char text[] = "tern health: error: no answer in time\n";
    (void)sig;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(EXIT_FAULT);
}

static void on_quiet_alarm(int sig)
{
    (void)sig;
    _exit(EXIT_FAULT);
}

static void set_alarm(const struct args_health *a)
{
    struct sigaction act = {.sa_handler = a->quiet ? on_quiet_alarm : on_alarm};
    time_t whole = (time_t)a->timeout_s;
    struct itimerval t = {.it_value = {whole, (suseconds_t)((a->timeout_s - (double)whole) * 1e6)}};
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &t, NULL);
}

/* ---- plain HTTP ---- */

static int connect_uds(const char *path, struct err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path) {
        return err_set(e, ERR_INVALID, "--uds %s: the path is longer than %zu bytes", path,
                       sizeof a.sun_path - 1);
    }
    memcpy(a.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        int saved = errno;
        if (fd >= 0) {
            close(fd);
        }
        return err_set(e, ERR_IO, "%s: %s", path, strerror(saved));
    }
    return fd;
}

static int connect_tcp(const char *host, const char *port, struct err *e)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    int fd = -1, saved = 0, rc = getaddrinfo(host, port, &hints, &list);
    if (rc != 0) {
        return err_set(e, ERR_IO, "%s: %s", host, gai_strerror(rc));
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            break;
        }
        saved = errno;
        if (fd >= 0) {
            close(fd);
        }
        fd = -1;
    }
    freeaddrinfo(list);
    return fd >= 0 ? fd : err_set(e, ERR_IO, "%s port %s: %s", host, port, strerror(saved));
}

/* Sends the request and reads until the status line is there. Returns the status. */
static int exchange(int fd, const char *host, const char *path, struct err *e)
{
    char head[HEAD_BYTES] = "";
    size_t n = 0;
    struct buf b;
    buf_init(&b);
    buf_printf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, host);
    for (size_t sent = 0; !b.failed && sent < b.len;) {
        ssize_t k = send(fd, b.data + sent, b.len - sent, MSG_NOSIGNAL);
        if (k < 0 && errno != EINTR) {
            break; /* what it answered, if anything, is read all the same */
        }
        sent += k > 0 ? (size_t)k : 0;
    }
    buf_fini(&b);
    while (n < sizeof head - 1 && !memchr(head, '\n', n)) {
        ssize_t k = recv(fd, head + n, sizeof head - 1 - n, 0);
        if (k == 0 || (k < 0 && errno != EINTR)) {
            break;
        }
        n += k > 0 ? (size_t)k : 0;
    }
    head[n] = '\0';
    int minor, status;
    if (sscanf(head, "HTTP/1.%1d %3d", &minor, &status) != 2) {
        return err_set(e, ERR_FORMAT, n ? "the answer is no HTTP" : "the connection was closed");
    }
    return status;
}

/* ---- https ---- */

struct https_result {
    int is_done, status;
    struct err why;
};

static int skip_body(void *user, const char *bytes, size_t n)
{
    (void)user;
    (void)bytes;
    (void)n;
    return 0;
}

static void on_done(void *user, int status, const struct err *e)
{
    struct https_result *r = user;
    r->is_done = 1;
    r->status = status;
    if (e) {
        r->why = *e;
    }
}

static int ask_https(const char *url, const struct args_health *a, struct err *e)
{
    struct client_options o = {.ca_file = a->ca_file, .unix_socket = a->uds};
    struct client_callbacks cb = {.data = skip_body, .done = on_done};
    struct client *c = NULL;
    struct client_request *r;
    struct https_result result = {0};
    int rc = client_open(&c, &o, e);
    rc = rc < 0 ? rc : client_start(c, "GET", url, NULL, 0, NULL, 0, &cb, &result, &r, e);
    while (rc >= 0 && !result.is_done) {
        client_run(c, 1000);
    }
    client_close(c);
    if (rc >= 0 && !result.status) {
        *e = result.why;
    }
    return rc < 0 ? rc : result.status ? result.status : ERR_IO;
}

/* ---- the address ---- */

/* Splits what follows http:// into host, port and the path of /health below it. */
static int split_url(const char *url, char host[HOST_BYTES], char port[8], struct err *e)
{
    const char *p = url + 7, *end = p + strcspn(p, "/");
    const char *bracket = *p == '[' ? memchr(p, ']', (size_t)(end - p)) : NULL;
    const char *from = bracket ? bracket : p;
    const char *colon = memchr(from, ':', (size_t)(end - from));
    const char *host_end = bracket ? bracket : colon ? colon : end;
    p += bracket != NULL;
    size_t n = (size_t)(host_end - p), n_port = colon ? (size_t)(end - colon - 1) : 0;
    if (n == 0 || n >= HOST_BYTES || n_port > 5 || memchr(p, '@', n)) {
        return err_set(e, ERR_INVALID, "--url: expected http://HOST:PORT, found '%s'", url);
    }
    snprintf(host, HOST_BYTES, "%.*s", (int)n, p);
    snprintf(port, 8, "%.*s", n_port ? (int)n_port : 2, n_port ? colon + 1 : "80");
    return 0;
}

/* The address of /health: of --url without the slashes and the /v1 at its end, or of host and port.
 */
static int health_url(const struct args_health *a, struct buf *out, struct err *e)
{
    size_t n;
    if (!a->url) {
        int is_v6 = strchr(a->host, ':') != NULL;
        buf_printf(out, "http://%s%s%s:%d/health", is_v6 ? "[" : "", a->host, is_v6 ? "]" : "",
                   (int)a->port);
        return out->failed ? err_set(e, ERR_NOMEM, "out of memory") : 0;
    }
    int rc = remote_root("--url", a->url, &n, e);
    if (rc < 0) {
        return rc;
    }
    buf_append(out, a->url, n);
    if (n < 7 || strncmp(a->url + n - 7, "/health", 7) != 0) {
        buf_puts(out, "/health");
    }
    return out->failed ? err_set(e, ERR_NOMEM, "out of memory") : 0;
}

static int ask(const struct args_health *a, const char *url, struct err *e)
{
    char host[HOST_BYTES], port[8];
    if (strncmp(url, "https://", 8) == 0) {
        return ask_https(url, a, e);
    }
    int rc = split_url(url, host, port, e);
    if (rc < 0) {
        return rc;
    }
    int fd = a->uds ? connect_uds(a->uds, e) : connect_tcp(host, port, e);
    rc = fd < 0 ? fd : exchange(fd, host, strchr(url + 7, '/'), e);
    if (fd >= 0) {
        close(fd);
    }
    return rc;
}

int cmd_health(int argc, char **argv)
{
    const char *command = "tern health";
    struct args_health a = {0};
    struct opts o = {.usage = "tern health [options]",
                     .tables = {{health_rows, sizeof health_rows / sizeof *health_rows, &a}},
                     .n_tables = 1};
    struct err e = {0, ""};
    struct buf url;
    buf_init(&url);
    int rc = args_parse(&o, command, argc, argv);
    rc = rc < 0 ? args_words(&o, command, 0) : rc;
    if (rc < 0) {
        set_alarm(&a);
        rc = health_url(&a, &url, &e);
        int status = rc < 0 ? rc : ask(&a, url.data, &e);
        if (status > 0 && status != 200) {
            err_set(&e, ERR_IO, "%s answers %d%s", a.uds ? a.uds : url.data, status,
                    status == 503 ? ": it loads, stops or is stuck" : "");
        }
        rc = status == 200 ? 0 : EXIT_FAULT;
        if (!a.quiet && rc) {
            args_fail(command, &e);
        } else if (!a.quiet) {
            puts("healthy");
        }
    }
    buf_fini(&url);
    opts_fini(&o);
    return rc;
}
