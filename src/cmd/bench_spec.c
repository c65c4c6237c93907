/* SPDX-License-Identifier: Apache-2.0 */
/* The server's counters of speculative decoding, read before and after a run of `tern bench serve`. A server without
 * them, or without /metrics, is one that doesn't speculate: nothing here is a fault. Series that differ in labels (several
 * engines, several models) are added up, as vLLM's bench does. */
#include "cmd/bench_serve.h"

#include "base/clock.h"
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_NS 5000000000ull
#define MAX_BYTES   (16u << 20) /* of /metrics */

struct reply {
    struct buf body;
    int is_done, status;
};

static int on_data(void *user, const char *bytes, size_t n)
{
    struct reply *r = user;
    buf_append(&r->body, bytes, n);
    return r->body.failed || r->body.len > MAX_BYTES;
}

static void on_done(void *user, int status, const struct err *e)
{
    struct reply *r = user;
    r->is_done = 1;
    r->status = e->code == 0 ? status : 0;
}

/* name{labels} value: one line of the text format. */
static void take_line(struct bench_spec *s, const char *line, size_t n)
{
    static const char head[] = "vllm:spec_decode_num_", position[] = "position=\"";
    char text[8192]; /* a model's name may be a long path */
    if (n < sizeof head || n >= sizeof text || strncmp(line, head, sizeof head - 1) != 0) {
        return;
    }
    memcpy(text, line, n);
    text[n] = '\0';
    const char *labels = strrchr(text, '}'), *value = labels ? labels + 1 : strchr(text, ' ');
    const size_t n_name = strcspn(text, "{ ");
    const struct {
        const char *name;
        double *sum;
    } all[] = {{"vllm:spec_decode_num_drafts_total", &s->drafts},
               {"vllm:spec_decode_num_draft_tokens_total", &s->draft_tokens},
               {"vllm:spec_decode_num_accepted_tokens_total", &s->accepted}};
    const double v = value ? strtod(value, NULL) : 0;
    if (!(v >= 0 && v <= DBL_MAX)) {
        return; /* no count */
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (n_name == strlen(all[i].name) && strncmp(text, all[i].name, n_name) == 0) {
            *all[i].sum += v;
            s->is_there = 1;
        }
    }
    static const char by_place[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    const char *at = strstr(text, position);
    if (n_name == sizeof by_place - 1 && strncmp(text, by_place, n_name) == 0 && at) {
        const long place = strtol(at + sizeof position - 1, NULL, 10);
        if (place >= 0 && place < BENCH_SPEC_PLACES) {
            s->by_place[place] += v;
            s->n_places = place >= s->n_places ? (int)place + 1 : s->n_places;
        }
    }
}

void bench_spec_read(struct bench_spec *s, struct remote *server)
{
    static const struct client_callbacks callbacks = {.data = on_data, .done = on_done};
    struct reply r = {.is_done = 0};
    struct client_request *request;
    struct err e = {0, ""};
    char url[2048];
    memset(s, 0, sizeof *s);
    buf_init(&r.body);
    snprintf(url, sizeof url, "%s/metrics", server->root);
    const uint64_t end = clock_now_ns() + PATIENCE_NS;
    if (client_start(server->client, "GET", url, NULL, 0, NULL, 0, &callbacks, &r, &request, &e) ==
        0) {
        while (!r.is_done && clock_now_ns() < end) {
            client_run(server->client, 100);
        }
        if (!r.is_done) {
            client_cancel(request);
        }
    }
    for (size_t i = 0; r.status == 200 && i < r.body.len;) {
        const char *line = r.body.data + i, *stop = memchr(line, '\n', r.body.len - i);
        const size_t n = stop ? (size_t)(stop - line) : r.body.len - i;
        take_line(s, line, n);
        i += n + 1;
    }
    buf_fini(&r.body);
}

void bench_spec_since(struct bench_spec *s, const struct bench_spec *before)
{
    s->is_there &= before->is_there && s->drafts >= before->drafts && /* else it was restarted */
                   s->draft_tokens >= before->draft_tokens && s->accepted >= before->accepted;
    s->drafts -= before->drafts;
    s->draft_tokens -= before->draft_tokens;
    s->accepted -= before->accepted;
    for (int i = 0; i < s->n_places; i++) {
        s->by_place[i] -= before->by_place[i];
    }
}
