/* SPDX-License-Identifier: Apache-2.0 */
/* tern run-batch -i IN -o OUT --model DIR: the requests of an OpenAI batch file, answered without a
 * port.
 *
 * The requests go through the HTTP server of `tern serve`, which listens nowhere: its connections
 * are pairs of sockets inside this process. So a batch has the routes, fields, limits and answers
 * of the server by construction, and what a socket costs is nothing beside a token. Many requests
 * are in flight; the engine batches them.
 *
 * A signal simply ends the process: rows are written as they come (batch_file.h), and the same
 * command again goes on where it was. */
#include "base/clock.h"
#include "cmd/batch_file.h"
#include "cmd/cmd.h"
#include "cmd/serve.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_SLOTS        256
#define PROGRESS_NS      (5 * 1000000000ull)
#define POLL_MS          1000
#define NEVER_S          (24 * 3600)
#define RECEIVE_BYTES    65536
#define MAX_ANSWER_BYTES ((size_t)1 << 30)

struct args_batch {
    const char *input, *output, *ignored_text;
    int overwrite;
};

#define BATCH(field) offsetof(struct args_batch, field)
#define G_BATCH      "Batch"

static const struct opt batch_rows[] = {
    {.name = "input-file",
     .others = "-i",
     .type = OPT_STRING,
     .offset = BATCH(input),
     .group = G_BATCH,
     .meta = "FILE",
     .help = "Requests, one JSON object a line: custom_id, method, url, body."},
    {.name = "output-file",
     .others = "-o",
     .type = OPT_STRING,
     .offset = BATCH(output),
     .group = G_BATCH,
     .meta = "FILE",
     .help = "Answers, one a line. Lines it already answers are not run again."},
    {.name = "overwrite",
     .type = OPT_BOOL,
     .offset = BATCH(overwrite),
     .group = G_BATCH,
     .def = "false",
     .help = "Throw away what the output file has."},
    {.name = "output-tmp-dir",
     .type = OPT_STRING,
     .group = G_BATCH,
     .flags = OPT_IGNORED,
     .note = "rows go straight to the output file"},
    {.name = "enable-metrics",
     .type = OPT_BOOL,
     .group = G_BATCH,
     .flags = OPT_REFUSED,
     .note = "a batch listens on no port; its progress is on standard error"},
};

/* Options of the server that mean something to sockets only. */
static const char *const socket_options[] = {
    "api-key",
    "uds",
    "ssl-certfile",
    "ssl-keyfile",
    "ssl-ca-certs",
    "allowed-origins",
    "allowed-methods",
    "allowed-headers",
    "allow-credentials",
    "root-path",
    "max-num-queued-reqs",
};

/* What help leaves out: the ones above, and those that a batch takes (a server's file of options
 * may have them) and has no use for. */
static const char *const unlisted_options[] = {
    "host",
    "port",
    "api-key",
    "uds",
    "uds-mode",
    "ssl-certfile",
    "ssl-keyfile",
    "ssl-keyfile-password",
    "ssl-ca-certs",
    "ssl-cert-reqs",
    "ssl-ciphers",
    "enable-ssl-refresh",
    "root-path",
    "allowed-origins",
    "allowed-methods",
    "allowed-headers",
    "allow-credentials",
    "enable-request-id-headers",
    "max-num-queued-reqs",
    "h11-max-incomplete-event-size",
    "h11-max-header-count",
    "max-connections",
    "http-read-timeout",
    "http-write-timeout",
    "http-keep-alive-timeout",
    "enable-server-load-tracking",
    "disable-fastapi-docs",
    "enable-tokenizer-info-endpoint",
    NULL,
};

/* One connection, with the request it carries. */
struct slot {
    int fd;                  /* -1: not connected */
    struct batch_line *line; /* NULL: idle */
    struct buf out, in;
    size_t sent;
};

struct batch {
    struct batch_file file;
    struct server *server;
    const struct log *log;
    struct slot slots[MAX_SLOTS];
    int n_slots;
    size_t next; /* line to look at */
    size_t n_errors, n_run;
    uint64_t start_ns, told_ns;
    int64_t prompt_tokens, output_tokens;
};

/* ---- rows ---- */

static void make_id(char out[64], const char *prefix)
{
    unsigned char raw[16] = {0};
    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw) {
        uint64_t now = clock_now_ns();
        memcpy(raw, &now, sizeof now);
    }
    int n = snprintf(out, 64, "%s", prefix);
    for (size_t i = 0; i < sizeof raw; i++) {
        n += snprintf(out + n, 64 - (size_t)n, "%02x", raw[i]);
    }
}

static void begin_row(struct json_writer *w, struct buf *row, const struct json *custom_id)
{
    char id[64];
    json_w_init(w, row);
    json_w_object(w);
    make_id(id, "vllm-");
    json_w_kstring(w, "id", id);
    json_w_key(w, "custom_id");
    json_w_value(w, json_type(custom_id) == JSON_STRING ? custom_id : NULL);
    json_w_key(w, "response");
    json_w_object(w);
}

static void write_response_head(struct json_writer *w, int status)
{
    char id[64];
    make_id(id, "vllm-batch-");
    json_w_kint(w, "status_code", status);
    json_w_kstring(w, "request_id", id);
    json_w_key(w, "body");
}

/* The row of a line that is no request. */
static int put_fault(struct batch *b, struct batch_line *l, struct err *e)
{
    struct json *doc = batch_file_read(&b->file, l);
    struct buf row;
    struct json_writer w;
    buf_init(&row);
    begin_row(&w, &row, json_get(json_type(doc) == JSON_OBJECT ? doc : NULL, "custom_id"));
    write_response_head(&w, 400);
    json_w_null(&w);
    json_w_object_end(&w);
    json_w_key(&w, "error");
    json_w_object(&w);
    json_w_kstring(&w, "message", l->fault);
    json_w_kstring(&w, "type", "BadRequestError");
    json_w_knull(&w, "param");
    json_w_kstring(&w, "code", l->code);
    json_w_kint(&w, "line", l->number);
    json_w_object_end(&w);
    json_w_object_end(&w);
    int rc = batch_file_put(&b->file, l, &row, e);
    b->n_errors++;
    buf_fini(&row);
    json_free(doc);
    return rc;
}

static int64_t count(const struct json *usage, const char *a, const char *b)
{
    const struct json *v = json_get(usage, a);
    v = json_type(v) == JSON_INT ? v : json_get(usage, b);
    return json_type(v) == JSON_INT ? json_int(v) : 0;
}

/* The row of an answer. body is JSON text, or not (then status is an error of ours). An error is
 * given twice, where OpenAI has it (response.body) and where vLLM has it (error). */
static int put_answer(struct batch *b, struct batch_line *l, int status, const char *body,
                      size_t n_bytes, struct err *e)
{
    struct json *doc = batch_file_read(&b->file, l), *answer = NULL;
    struct buf row;
    struct json_writer w;
    if (json_parse(&answer, body, n_bytes, 2 * JSON_DEPTH_DEFAULT, NULL) != 0) {
        status = status < 400 ? 500 : status;
        body = "{\"error\":{\"message\":\"no answer\",\"type\":\"InternalServerError\",\"param\":"
               "null,\"code\":500}}";
        n_bytes = strlen(body);
    }
    buf_init(&row);
    begin_row(&w, &row, json_get(doc, "custom_id"));
    write_response_head(&w, status);
    json_w_raw(&w, body, n_bytes);
    json_w_object_end(&w);
    json_w_key(&w, "error");
    if (status >= 400) {
        json_w_raw(&w, body, n_bytes);
        b->n_errors++;
    } else {
        const struct json *usage = json_get(answer, "usage");
        json_w_null(&w);
        b->prompt_tokens += count(usage, "prompt_tokens", "input_tokens");
        b->output_tokens += count(usage, "completion_tokens", "output_tokens");
    }
    json_w_object_end(&w);
    int rc = batch_file_put(&b->file, l, &row, e);
    b->n_run++;
    buf_fini(&row);
    json_free(answer);
    json_free(doc);
    return rc;
}

/* ---- connections ---- */

static void disconnect(struct slot *s)
{
    if (s->fd >= 0) {
        close(s->fd);
        s->fd = -1;
    }
    buf_clear(&s->in);
}

static int begin(struct batch *b, struct slot *s, struct batch_line *l, struct err *e)
{
    struct json *doc = batch_file_read(&b->file, l);
    struct buf body;
    if (!doc) {
        return err_set(e, ERR_IO, "%s: line %d changed while the batch ran", b->file.in_path,
                       l->number);
    }
    if (s->fd < 0) {
        s->fd = server_connect(b->server, e);
        if (s->fd < 0) {
            int code = s->fd;
            s->fd = -1;
            json_free(doc);
            return code;
        }
    }
    buf_init(&body);
    json_dump(json_get(doc, "body"), &body);
    buf_clear(&s->out);
    buf_printf(&s->out,
               "POST %s HTTP/1.1\r\nHost: batch\r\nContent-Type: application/json\r\n"
               "Content-Length: %zu\r\n\r\n",
               json_string(json_get(doc, "url"), NULL), body.len);
    buf_append(&s->out, body.data ? body.data : "", body.len);
    int failed = body.failed || s->out.failed;
    buf_fini(&body);
    json_free(doc);
    s->sent = 0;
    s->line = l;
    return failed ? err_set(e, ERR_NOMEM, "out of memory") : 0;
}

/* The next line that can be run; rows of the others are written on the way. NULL: none is left. */
static int next_line(struct batch *b, struct batch_line **out, struct err *e)
{
    *out = NULL;
    while (b->next < b->file.n_lines) {
        struct batch_line *l = &b->file.lines[b->next++];
        if (l->row_at >= 0) {
            continue;
        }
        if (!l->code) {
            *out = l;
            return 0;
        }
        int rc = put_fault(b, l, e);
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

/* Status and body of a complete response; 0 when it is not complete. `closes`: the connection can't
 * be used again. */
static int parse_response(const struct buf *in, int *status, size_t *body_at, size_t *n_bytes,
                          int *closes)
{
    static const char length[] = "\r\ncontent-length:", close_line[] = "\r\nconnection: close\r\n";
    const char *end = in->data ? memmem(in->data, in->len, "\r\n\r\n", 4) : NULL;
    if (!end || in->len < 12) {
        return 0;
    }
    size_t head = (size_t)(end - in->data) + 4;
    const char *field = memmem(in->data, head, length, sizeof length - 1);
    *status = atoi(in->data + 9);
    *body_at = head;
    *n_bytes = field ? strtoull(field + sizeof length - 1, NULL, 10) : 0;
    *closes = memmem(in->data, head, close_line, sizeof close_line - 1) != NULL;
    return in->len - head >= *n_bytes;
}

static int receive(struct batch *b, struct slot *s, struct err *e)
{
    char chunk[RECEIVE_BYTES];
    ssize_t n = recv(s->fd, chunk, sizeof chunk, MSG_DONTWAIT);
    int status, closes, rc = 0;
    size_t body_at, n_bytes;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return 0;
    }
    if (n > 0) {
        buf_append(&s->in, chunk, (size_t)n);
        if (s->in.failed || s->in.len > MAX_ANSWER_BYTES) {
            return err_set(e, ERR_NOMEM, "an answer is too large for memory");
        }
    }
    if (parse_response(&s->in, &status, &body_at, &n_bytes, &closes)) {
        if (s->line) {
            rc = put_answer(b, s->line, status, s->in.data + body_at, n_bytes, e);
        }
        if (closes || s->sent < s->out.len) {
            disconnect(s);
        }
        s->line = NULL;
        buf_clear(&s->in);
    } else if (n <= 0) {
        if (s->line) {
            rc = put_answer(b, s->line, 500, "", 0, e);
        }
        s->line = NULL;
        disconnect(s);
    }
    return rc;
}

static int serve_slot(struct batch *b, struct slot *s, short events, struct err *e)
{
    if ((events & POLLOUT) && s->sent < s->out.len) {
        ssize_t n =
            send(s->fd, s->out.data + s->sent, s->out.len - s->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        s->sent += n > 0 ? (size_t)n : 0; /* a failure shows when the answer is read */
    }
    return events & (POLLIN | POLLHUP | POLLERR) ? receive(b, s, e) : 0;
}

/* ---- progress ---- */

static void tell(struct batch *b, int last)
{
    uint64_t now = clock_now_ns();
    if (!last && now - b->told_ns < PROGRESS_NS) {
        return;
    }
    b->told_ns = now;
    double seconds = (double)(now - b->start_ns) * 1e-9;
    size_t total = b->file.n_lines, done = b->file.n_done;
    double rate = seconds > 0 ? (double)b->n_run / seconds : 0;
    char left[32] = "?";
    if (rate > 0) {
        snprintf(left, sizeof left, "%.0f s", (double)(total - done) / rate);
    }
    log_info(b->log,
             "Running batch: %3.0f%% Completed | %zu/%zu [%.0f s<%s, %.2f req/s], %zu errors, "
             "prompt: %.1f tokens/s, generation: %.1f tokens/s",
             total ? 100.0 * (double)done / (double)total : 100.0, done, total, seconds,
             last ? "0 s" : left, rate, b->n_errors,
             seconds > 0 ? (double)b->prompt_tokens / seconds : 0,
             seconds > 0 ? (double)b->output_tokens / seconds : 0);
}

static int pump(struct batch *b, struct err *e)
{
    struct pollfd polls[MAX_SLOTS];
    int active = 1, rc = 0;
    while (rc >= 0 && active) {
        active = 0;
        for (int i = 0; rc >= 0 && i < b->n_slots; i++) {
            struct slot *s = &b->slots[i];
            struct batch_line *l = NULL;
            if (!s->line) {
                rc = next_line(b, &l, e);
                rc = rc < 0 || !l ? rc : begin(b, s, l, e);
            }
            short send_too = s->line && s->sent < s->out.len ? POLLOUT : 0;
            polls[i] =
                (struct pollfd){.fd = s->line ? s->fd : -1, .events = (short)(POLLIN | send_too)};
            active += s->line != NULL;
        }
        if (rc < 0 || !active) {
            break;
        }
        if (poll(polls, (nfds_t)b->n_slots, POLL_MS) < 0 && errno != EINTR) {
            return err_set(e, ERR_IO, "poll: %s", strerror(errno));
        }
        for (int i = 0; rc >= 0 && i < b->n_slots; i++) {
            if (polls[i].fd >= 0 && polls[i].revents) {
                rc = serve_slot(b, &b->slots[i], polls[i].revents, e);
            }
        }
        tell(b, 0);
    }
    return rc;
}

/* ---- the command ---- */

static int run_requests(struct batch *b, struct setup *s, const struct args_server *v,
                        struct err *e)
{
    struct serve_lists lists;
    struct server_options so;
    arena_init(&lists.arena, 0);
    int rc = setup_check(s, e);
    rc = rc < 0 ? rc : serve_options(&so, s, v, &lists, e);
    if (rc < 0) {
        goto done;
    }
    so.no_listener = 1;
    so.disable_access_log = 1;
    so.n_api_keys = 0; /* of VLLM_API_KEY: nobody else can connect */
    so.max_num_queued_reqs = 0;
    so.max_num_queued_tokens = 0;
    so.max_connections = MAX_SLOTS;
    so.keep_alive_s = so.read_timeout_s = so.write_timeout_s = NEVER_S;
    rc = server_open(&b->server, &so, e);
    rc = rc < 0 ? rc : serve_start_engine(s, e);
    if (rc < 0) {
        goto done;
    }
    serve_set_ready(s, b->server);
    int64_t wanted = 2 * s->a->max_num_seqs;
    b->n_slots = wanted > MAX_SLOTS ? MAX_SLOTS : (int)wanted;
    b->start_ns = b->told_ns = clock_now_ns();
    rc = pump(b, e);
done:
    for (int i = 0; i < MAX_SLOTS; i++) {
        disconnect(&b->slots[i]);
    }
    if (b->server) {
        server_stop(b->server);
        server_wait(b->server);
    }
    if (s->engine) {
        engine_close(s->engine);
        s->engine = NULL;
    }
    server_close(b->server);
    arena_fini(&lists.arena);
    return rc;
}

static int run(struct batch *b, struct setup *s, const struct args_batch *a,
               const struct args_server *v, struct err *e)
{
    size_t to_run = 0;
    if (v->port != 8000 || v->host) {
        log_warning(b->log, "--host and --port have no effect: a batch listens on no port");
    }
    log_info(b->log, "Reading batch from %s...", a->input);
    int rc = batch_file_open(&b->file, a->input, a->output, a->overwrite, b->log, e);
    if (rc < 0) {
        return rc;
    }
    for (size_t i = 0; i < b->file.n_lines; i++) {
        to_run += b->file.lines[i].row_at < 0 && !b->file.lines[i].code;
    }
    if (b->file.n_resumed > 0) {
        log_info(b->log, "Resuming: %zu of %zu requests are already answered in %s",
                 b->file.n_resumed, b->file.n_lines, a->output);
    }
    b->start_ns = clock_now_ns();
    if (to_run > 0) {
        rc = run_requests(b, s, v, e);
    } else {
        struct batch_line *none;
        rc = next_line(b, &none, e); /* the rows of lines that are no requests */
    }
    rc = rc < 0 ? rc : batch_file_finish(&b->file, e);
    if (rc >= 0) {
        tell(b, 1);
        log_info(b->log, "Batch complete. Written: %zu", b->file.n_done - b->file.n_resumed);
    }
    return rc;
}

/* Wrong usage that the tables can't say; 0 or the exit code. */
static int check_usage(const struct opts *o, const struct args_batch *a)
{
    const char *missing = !a->input ? "--input-file" : !a->output ? "--output-file" : NULL;
    if (missing) {
        fprintf(stderr, "usage: %s\ntern run-batch: error: %s is required\n", o->usage, missing);
        return EXIT_USAGE;
    }
    if (strncasecmp(a->input, "http", 4) == 0 && strstr(a->input, "://")) {
        fprintf(stderr, "tern run-batch: error: --input-file: only local files are read\n");
        return EXIT_USAGE;
    }
    if (strncasecmp(a->output, "http", 4) == 0 && strstr(a->output, "://")) {
        fprintf(stderr, "tern run-batch: error: --output-file: only local files are written\n");
        return EXIT_USAGE;
    }
    for (size_t i = 0; i < sizeof socket_options / sizeof socket_options[0]; i++) {
        if (opts_source(o, socket_options[i]) == OPT_FROM_COMMAND_LINE) {
            fprintf(stderr, "tern run-batch: error: --%s: a batch listens on no port\n",
                    socket_options[i]);
            return EXIT_USAGE;
        }
    }
    return 0;
}

int cmd_run_batch(int argc, char **argv)
{
    const char *command = "tern run-batch";
    struct args_batch ab = {0};
    struct args_engine a = {0};
    struct args_server v = {0};
    struct opts o = {.usage = "tern run-batch -i FILE -o FILE --model MODEL [options]",
                     .tables = {{batch_rows, sizeof batch_rows / sizeof *batch_rows, &ab},
                                args_server_table(&v),
                                args_engine_table(&a)},
                     .n_tables = 3,
                     .unlisted = unlisted_options};
    struct setup s = {.a = &a};
    struct err e = {0, ""};
    struct batch *b = calloc(1, sizeof *b);
    int rc = args_parse(&o, command, argc, argv);
    if (rc < 0) {
        rc = check_usage(&o, &ab);
        rc = rc ? rc : args_model(&o, command, &a, 1);
    }
    if (rc < 0 && !b) {
        err_set(&e, ERR_NOMEM, "out of memory");
        rc = args_fail(command, &e);
    } else if (rc < 0) {
        args_log(&o, &a, "", &s.log);
        b->log = &s.log;
        for (int i = 0; i < MAX_SLOTS; i++) {
            b->slots[i].fd = -1;
            buf_init(&b->slots[i].out);
            buf_init(&b->slots[i].in);
        }
        rc = run(b, &s, &ab, &v, &e) < 0 ? args_fail(command, &e) : 0;
        for (int i = 0; i < MAX_SLOTS; i++) {
            buf_fini(&b->slots[i].out);
            buf_fini(&b->slots[i].in);
        }
        batch_file_close(&b->file);
    }
    setup_close(&s);
    opts_fini(&o);
    free(b);
    return rc;
}
