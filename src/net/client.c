/* SPDX-License-Identifier: Apache-2.0 */
/* The part of libcurl that tern uses, as a table of functions found at run time. */
#include "net/client.h"

#include "base/plugin.h"
#include "base/utf8.h"
#include <curl/curl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CONNECT_TIMEOUT_S 30
#define MAX_CONNECTIONS   256

/* X(return type, name, parameters): each becomes a member of struct curl_functions. */
#define CURL_FUNCTIONS(X)                                                                          \
    X(CURLcode, global_init, (long))                                                               \
    X(CURL *, easy_init, (void))                                                                   \
    X(void, easy_cleanup, (CURL *))                                                                \
    X(const char *, easy_strerror, (CURLcode))                                                     \
    X(CURLcode, easy_setopt, (CURL *, CURLoption, ...))                                            \
    X(CURLcode, easy_getinfo, (CURL *, CURLINFO, ...))                                             \
    X(struct curl_slist *, slist_append, (struct curl_slist *, const char *))                      \
    X(void, slist_free_all, (struct curl_slist *))                                                 \
    X(CURLM *, multi_init, (void))                                                                 \
    X(CURLMcode, multi_cleanup, (CURLM *))                                                         \
    X(CURLMcode, multi_setopt, (CURLM *, CURLMoption, ...))                                        \
    X(CURLMcode, multi_add_handle, (CURLM *, CURL *))                                              \
    X(CURLMcode, multi_remove_handle, (CURLM *, CURL *))                                           \
    X(CURLMcode, multi_perform, (CURLM *, int *))                                                  \
    X(CURLMcode, multi_poll, (CURLM *, struct curl_waitfd *, unsigned, int, int *))                \
    X(CURLMsg *, multi_info_read, (CURLM *, int *))

/* The header turns some of these into checking macros; here they are plain names. */
#undef curl_easy_setopt
#undef curl_easy_getinfo
#undef curl_multi_setopt

struct curl_functions {
#define CURL_MEMBER(type, name, parameters) type(*name) parameters;
    CURL_FUNCTIONS(CURL_MEMBER)
#undef CURL_MEMBER
};

struct client {
    struct curl_functions f;
    void *library;
    CURLM *multi;
    struct client_options o;
    char *unix_socket, *ca_file, *authorization;
    struct client_request *requests;
    int n_requests;
};

struct client_request {
    struct client *client;
    struct client_request *prev, *next;
    CURL *easy;
    struct curl_slist *headers;
    char *body;
    struct client_callbacks cb;
    void *user;
    int ended_by_callback;
    char why[CURL_ERROR_SIZE];
};

static int load(struct client *c, struct err *e)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", NULL};
    c->library = plugin_open(names, 0, "libcurl4", e);
    if (!c->library) {
        return ERR_NOT_FOUND;
    }
    /* dlsym gives an object pointer; copying its bytes is the defined way to a function's */
#define CURL_FIND(type, name, parameters)                                                          \
    {                                                                                              \
        void *p = dlsym(c->library, "curl_" #name);                                                \
        if (!p) {                                                                                  \
            return err_set(e, ERR_UNSUPPORTED, "libcurl is too old: it has no curl_" #name);       \
        }                                                                                          \
        memcpy(&c->f.name, &p, sizeof p);                                                          \
    }
    CURL_FUNCTIONS(CURL_FIND)
#undef CURL_FIND
    return 0;
}

static char *copy(const char *s, int *failed)
{
    char *out = s ? strdup(s) : NULL;
    *failed |= s && !out;
    return out;
}

int client_open(struct client **out, const struct client_options *o, struct err *e)
{
    struct client *c = calloc(1, sizeof *c);
    int failed = 0, rc;
    *out = NULL;
    if (!c) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    c->o = *o;
    rc = load(c, e);
    if (rc < 0) {
        client_close(c);
        return rc;
    }
    c->unix_socket = copy(o->unix_socket, &failed);
    c->ca_file = copy(o->ca_file, &failed);
    if (o->bearer) {
        failed |= asprintf(&c->authorization, "Authorization: Bearer %s", o->bearer) < 0;
    }
    if (!failed && c->f.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) {
        c->multi = c->f.multi_init();
    }
    if (!c->multi) {
        client_close(c);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    long most = o->max_connections ? o->max_connections : MAX_CONNECTIONS;
    c->f.multi_setopt(c->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, most);
    c->f.multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, most);
    *out = c;
    return 0;
}

static void free_request(struct client_request *r)
{
    struct client *c = r->client;
    if (r->prev) {
        r->prev->next = r->next;
    } else if (c->requests == r) {
        c->requests = r->next;
    }
    if (r->next) {
        r->next->prev = r->prev;
    }
    if (r->easy) {
        c->f.multi_remove_handle(c->multi, r->easy);
        c->f.easy_cleanup(r->easy);
    }
    c->f.slist_free_all(r->headers);
    free(r->body);
    free(r);
}

void client_cancel(struct client_request *r)
{
    r->client->n_requests--;
    free_request(r);
}

void client_close(struct client *c)
{
    if (!c) {
        return;
    }
    while (c->requests) {
        client_cancel(c->requests);
    }
    if (c->multi) {
        c->f.multi_cleanup(c->multi);
    }
    /* the library stays loaded: its threads and atexit handlers may outlive the client */
    free(c->unix_socket);
    free(c->ca_file);
    free(c->authorization);
    free(c);
}

static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    struct client_request *r = user;
    size_t bytes = size * n, end = bytes;
    const char *colon = memchr(line, ':', bytes);
    while (end && (line[end - 1] == '\n' || line[end - 1] == '\r')) {
        end--;
    }
    if (r->cb.header && colon && colon < line + end) {
        char name[128], value[2048];
        size_t k = (size_t)(colon - line), from = k + 1;
        while (from < end && line[from] == ' ') {
            from++;
        }
        snprintf(name, sizeof name, "%.*s", (int)k, line);
        snprintf(value, sizeof value, "%.*s", (int)(end - from), line + from);
        r->cb.header(r->user, name, value);
    }
    return bytes;
}

static size_t on_data(char *bytes, size_t size, size_t n, void *user)
{
    struct client_request *r = user;
    if (r->cb.data && r->cb.data(r->user, bytes, size * n) != 0) {
        r->ended_by_callback = 1;
        return 0;
    }
    return size * n;
}

/* Everything but the URL and the method. 0 or -1. */
static int set_common(struct client *c, struct client_request *r)
{
    int bad = 0;
    long wait = c->o.connect_timeout_s ? c->o.connect_timeout_s : CONNECT_TIMEOUT_S;
#define SET(option, value) bad |= c->f.easy_setopt(r->easy, option, value) != CURLE_OK
    SET(CURLOPT_PRIVATE, r);
    SET(CURLOPT_ERRORBUFFER, r->why);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_TCP_NODELAY, 1L);
    SET(CURLOPT_CONNECTTIMEOUT, wait);
    SET(CURLOPT_USERAGENT, "tern/" TERN_VERSION);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, r);
    SET(CURLOPT_WRITEFUNCTION, on_data);
    SET(CURLOPT_WRITEDATA, r);
    SET(CURLOPT_FOLLOWLOCATION, (long)(c->o.max_redirects > 0));
    SET(CURLOPT_MAXREDIRS, (long)c->o.max_redirects);
    if (c->o.stall_timeout_s) {
        SET(CURLOPT_LOW_SPEED_LIMIT, 1L);
        SET(CURLOPT_LOW_SPEED_TIME, (long)c->o.stall_timeout_s);
    }
    if (c->unix_socket) {
        SET(CURLOPT_UNIX_SOCKET_PATH, c->unix_socket);
    }
    if (c->ca_file) {
        SET(CURLOPT_CAINFO, c->ca_file);
    }
    return bad ? -1 : 0;
}

static int add_header(struct client *c, struct client_request *r, const char *line)
{
    struct curl_slist *list = c->f.slist_append(r->headers, line);
    if (!list) {
        return -1;
    }
    r->headers = list;
    return 0;
}

static int set_message(struct client *c, struct client_request *r, const char *method,
                       const char *url, const char *const *headers, int n_headers, const void *body,
                       size_t n_bytes)
{
    int bad = c->authorization ? add_header(c, r, c->authorization) : 0;
    bad |= add_header(c, r, "Expect:"); /* no round trip before a body */
    for (int i = 0; i < n_headers; i++) {
        bad |= add_header(c, r, headers[i]);
    }
    SET(CURLOPT_URL, url);
    SET(CURLOPT_HTTPHEADER, r->headers);
    if (strcmp(method, "HEAD") == 0) {
        SET(CURLOPT_NOBODY, 1L);
    } else if (body || strcmp(method, "POST") == 0) {
        r->body = malloc(n_bytes + 1);
        if (!r->body) {
            return -1;
        }
        if (n_bytes) {
            memcpy(r->body, body, n_bytes);
        }
        SET(CURLOPT_POST, 1L);
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)n_bytes);
        SET(CURLOPT_POSTFIELDS, r->body);
    }
    if (strcmp(method, "HEAD") != 0 && strcmp(method, "GET") != 0 && strcmp(method, "POST") != 0) {
        SET(CURLOPT_CUSTOMREQUEST, method);
    }
#undef SET
    return bad ? -1 : 0;
}

int client_start(struct client *c, const char *method, const char *url, const char *const *headers,
                 int n_headers, const void *body, size_t n_bytes, const struct client_callbacks *cb,
                 void *user, struct client_request **out, struct err *e)
{
    struct client_request *r = calloc(1, sizeof *r);
    if (!r) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    r->client = c;
    r->cb = *cb;
    r->user = user;
    r->easy = c->f.easy_init();
    if (!r->easy || set_common(c, r) < 0 ||
        set_message(c, r, method, url, headers, n_headers, body, n_bytes) < 0 ||
        c->f.multi_add_handle(c->multi, r->easy) != CURLM_OK) {
        free_request(r);
        return err_set(e, ERR_INVALID, "%s: no request can be made to it", url);
    }
    r->next = c->requests;
    if (r->next) {
        r->next->prev = r;
    }
    c->requests = r;
    c->n_requests++;
    if (out) {
        *out = r;
    }
    return 0;
}

static void finish(struct client *c, CURL *easy, CURLcode code)
{
    struct client_request *r = NULL;
    struct err e = {0, ""};
    long status = 0;
    c->f.easy_getinfo(easy, CURLINFO_PRIVATE, &r);
    c->f.easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK && r->ended_by_callback) {
        err_set(&e, ERR_CANCELED, "ended by the receiver");
    } else if (code != CURLE_OK) {
        err_set(&e, ERR_IO, "%s", r->why[0] ? r->why : c->f.easy_strerror(code));
    }
    void (*done)(void *, int, const struct err *) = r->cb.done;
    void *user = r->user;
    c->n_requests--;
    free_request(r);
    done(user, (int)status, &e);
}

int client_run(struct client *c, int timeout_ms)
{
    int running = 0, n;
    c->f.multi_perform(c->multi, &running);
    if (timeout_ms > 0 && running == c->n_requests) { /* nothing has ended yet */
        c->f.multi_poll(c->multi, NULL, 0, timeout_ms, NULL);
        c->f.multi_perform(c->multi, &running);
    }
    for (CURLMsg *m; (m = c->f.multi_info_read(c->multi, &n)) != NULL;) {
        if (m->msg == CURLMSG_DONE) {
            finish(c, m->easy_handle, m->data.result);
        }
    }
    return c->n_requests;
}
