/* SPDX-License-Identifier: Apache-2.0 */
/* Serves the chat page at / and the dashboard at /dashboard.
 *
 * They are static files without a secret, so they need no key: the page asks for one and sends it
 * with its own requests. All links in them are relative, so that they work behind a proxy's
 * sub-path. The two HTML files are asked for again each time (ETag); what is under assets/ has its
 * content's hash in its name and is kept for ever.
 *
 * The content policy is the page's second wall against text that a model wrote (the first is that
 * markdown is sanitized): no script but the page's own files, no inline script or style, no request
 * to anywhere else, no frame around it. */
#include "api/page.h"
#include "api/state.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define ASSET_NAME_BYTES 128

static const char *const guards[][2] = {
    {"content-security-policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
     "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"},
    {"x-content-type-options", "nosniff"},
    {"x-frame-options", "DENY"},
    {"referrer-policy", "no-referrer"},
    {"cross-origin-opener-policy", "same-origin"},
};

static const struct page_file *find(const struct page *p, const char *path)
{
    for (int i = 0; p && i < p->n_files; i++) {
        if (strcmp(p->files[i].path, path) == 0) {
            return &p->files[i];
        }
    }
    return NULL;
}

/* Whether a header "gzip, deflate;q=0.5, br" takes gzip. */
static int takes_gzip(const char *accept)
{
    while (accept && *accept) {
        accept += strspn(accept, " \t,");
        size_t name = strcspn(accept, " \t,;"), item = strcspn(accept, ",");
        int is =
            (name == 4 && strncasecmp(accept, "gzip", 4) == 0) || (name == 1 && *accept == '*');
        if (is) {
            char text[32];
            snprintf(text, sizeof text, "%.*s", (int)(item < 31 ? item : 31), accept);
            const char *q = strchr(text, '=');
            return !q || strspn(q, "=0. \t") != strlen(q);
        }
        accept += item;
    }
    return 0;
}

/* Whether If-None-Match names the tag; a proxy that compressed may have made it weak. */
static int has_tag(const char *header, const char *etag)
{
    return header && (strcmp(header, "*") == 0 || strstr(header, etag) != NULL);
}

static void respond_file(struct http_exchange *x, const struct page_file *f, int immutable)
{
    int gzip = f->gzip && takes_gzip(http_header(x, "accept-encoding"));
    for (size_t i = 0; i < sizeof guards / sizeof guards[0]; i++) {
        http_add_header(x, guards[i][0], guards[i][1]);
    }
    char weak[80]; /* plain and gzipped bodies share it */
    snprintf(weak, sizeof weak, "W/%s", f->etag);
    http_add_header(x, "etag", weak);
    http_add_header(x, "cache-control",
                    immutable ? "public, max-age=31536000, immutable" : "no-cache");
    if (f->gzip) {
        http_add_header(x, "vary", "Accept-Encoding");
    }
    if (has_tag(http_header(x, "if-none-match"), f->etag)) {
        http_respond(x, 304, NULL, "", 0);
        return;
    }
    if (gzip) {
        http_add_header(x, "content-encoding", "gzip");
    }
    http_respond(x, 200, f->type, gzip ? f->gzip : f->plain, gzip ? f->n_gzip : f->n_plain);
}

static void respond_unknown(struct server *s, struct http_exchange *x)
{
    struct api_error e = {0};
    api_fail(&e, 404, "Not Found", NULL, "Not Found");
    respond_error(s, x, &e);
}

static void respond_page(struct server *s, struct http_exchange *x, const char *path)
{
    static const char none[] =
        "This tern was built without Node.js and npm, so it has no chat page "
        "and no dashboard; its API is under /v1.\n";
    const struct page_file *f = find(s->o.page, path);
    if (f) {
        respond_file(x, f, 0);
    } else if (!s->o.page) {
        http_respond(x, 404, "text/plain; charset=utf-8", none, sizeof none - 1);
    } else {
        respond_unknown(s, x);
    }
}

/* Ollama's clients ping with HEAD /, page or not. */
void page_chat_handle(struct server *s, struct http_exchange *x)
{
    if (!s->o.page && strcmp(http_method(x), "HEAD") == 0) {
        respond_empty(x, 200);
    } else {
        respond_page(s, x, "index.html");
    }
}

void page_dashboard_handle(struct server *s, struct http_exchange *x)
{
    respond_page(s, x, "dashboard.html");
}

void page_asset_handle(struct server *s, struct http_exchange *x)
{
    char path[ASSET_NAME_BYTES] = "assets/";
    const struct page_file *f = NULL;
    size_t n = strlen(path);
    if (route_param(s, x, path + n, sizeof path - n) == 0) {
        f = find(s->o.page, path);
    }
    if (f) {
        respond_file(x, f, 1);
    } else {
        respond_unknown(s, x);
    }
}
