/* SPDX-License-Identifier: Apache-2.0 */
/* What many connections cost: a server on a model that only sleeps, and a client, in two processes.
 *
 *     net_load [--idle N] [--streams N] [--tokens N] [--step-us N]
 *
 * The fake model stamps the end of every step into memory that both processes see. A stream gets
 * one token a step, so the client knows for each chunk which step it belongs to, and
 *
 *     delay = arrival of the chunk - end of its step     what sampling, JSON and sockets add
 *     excess = gap between two arrivals - gap between their steps     what is added to a token's
 * time
 *
 * The kernel notes when a chunk arrives at the client's socket (SO_TIMESTAMPNS); the client itself
 * looks every 2 ms, as a client on another machine would not wake up on ours at every chunk.
 *
 * Both are measured with the streams alone and with the idle keep-alive connections beside them.
 * Memory is the server's resident size, against one that has served one stream. Prints one JSON
 * object. */
#include "api/server.h"
#include "base/clock.h"
#include "base/json.h"
#include "cpu/cpu.h"
#include "engine/runner.h"
#include "kernels/kernels.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_STEPS 65536
#define VOCAB     1024
#define HOT_ID    300

struct shared {
    atomic_int port, stop;
    atomic_int n_steps;
    _Atomic uint64_t end_ns[MAX_STEPS];
};

struct options {
    int n_idle, n_streams, n_tokens, step_us;
};

static void die(const char *what)
{
    fprintf(stderr, "net_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- the server ---- */

struct sleeper {
    struct shared *shared;
    float *logits;
    int step_us;
};

static int sleeper_run(void *ctx, const struct forward_batch *b, const float **logits,
                       struct err *e)
{
    struct sleeper *s = ctx;
    (void)b;
    (void)e;
    usleep((useconds_t)s->step_us);
    *logits = s->logits;
    int n = atomic_load(&s->shared->n_steps);
    if (n < MAX_STEPS) {
        atomic_store(&s->shared->end_ns[n], clock_now_ns());
        atomic_store(&s->shared->n_steps, n + 1);
    }
    return 0;
}

static void sleeper_copy(void *ctx, int dst, int src)
{
    (void)ctx;
    (void)dst;
    (void)src;
}

static int serve(struct shared *shared, const struct options *o)
{
    static const char *const names[] = {"load"};
    static const struct log quiet = {.level = LOG_ERROR, .fd = 2};
    struct err e = {0};
    struct server_options so;
    struct server *server = NULL;
    struct tokenizer *tokenizer = NULL;
    struct chat_template *chat = NULL;
    struct engine *engine = NULL;
    server_options_init(&so);
    so.host = "127.0.0.1";
    so.port = 0;
    so.served_model_names = names;
    so.n_served_model_names = 1;
    so.keep_alive_s = 3600;
    so.max_connections = 16384;
    so.log = &quiet;
    struct engine_options eo = {.max_model_len = 4096,
                                .max_num_seqs = o->n_streams + 8,
                                .max_num_batched_tokens = 16384,
                                .enable_chunked_prefill = 1,
                                .eos_id = -1,
                                .log = &quiet};
    size_t n_rows = (size_t)engine_max_logits(&eo);
    struct sleeper sleeper = {shared, aligned_alloc(64, n_rows * VOCAB * sizeof(float)),
                              o->step_us};
    for (size_t i = 0; i < n_rows * VOCAB; i++) {
        sleeper.logits[i] = i % VOCAB == HOT_ID ? 1.0f : 0.0f;
    }
    struct runner_ops ops = {.run = sleeper_run,
                             .copy_block = sleeper_copy,
                             .logits_stride = VOCAB,
                             .vocab_size = VOCAB,
                             .n_blocks = (o->n_streams + 8) * 256,
                             .block_bytes = 1,
                             .kernels = kernels_get(cpu_detect())};
    if (server_open(&server, &so, &e) != 0 ||
        tokenizer_open(&tokenizer, TERN_SOURCE_DIR "/models/tern-poet", &e) != 0 ||
        chat_template_open(&chat, TERN_SOURCE_DIR "/models/tern-poet", NULL, tokenizer, &e) != 0 ||
        engine_open_runner(&engine, &ops, &sleeper, &eo, &e) != 0) {
        fprintf(stderr, "net_load: %s\n", e.text);
        return 1;
    }
    struct server_model m = {.engine = engine,
                             .tokenizer = tokenizer,
                             .chat_template = chat,
                             .path = "load",
                             .max_model_len = eo.max_model_len,
                             .vocab_size = VOCAB};
    server_set_ready(server, &m);
    atomic_store(&shared->port, server_port(server));
    while (!atomic_load(&shared->stop) && getppid() != 1) {
        usleep(20000);
    }
    server_stop(server);
    server_wait(server);
    engine_close(engine);
    server_close(server);
    chat_template_close(chat);
    tokenizer_close(tokenizer);
    free(sleeper.logits);
    return 0;
}

/* ---- the client ---- */

struct stream {
    int fd;
    int n_tokens, done;
    int matched;       /* of the marker, across reads */
    uint64_t *read_ns; /* [tokens] */
};

static int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        die("connect");
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* Reads what is there; *ns: when the last of it arrived, on clock_now_ns's clock. */
static ssize_t read_stamped(int fd, char *block, size_t size, int64_t offset_ns, uint64_t *ns)
{
    union {
        struct cmsghdr align;
        char bytes[256];
    } control;
    struct iovec iov = {block, size};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT);
    *ns = clock_now_ns();
    for (struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL; c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(c), sizeof t);
            *ns = (uint64_t)(t.tv_sec * 1000000000ll + t.tv_nsec - offset_ns);
        }
    }
    return n;
}

/* Wall clock - clock_now_ns. */
static int64_t clock_offset_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec - (int64_t)clock_now_ns();
}

static void put(int fd, const char *text)
{
    if (send(fd, text, strlen(text), MSG_NOSIGNAL) != (ssize_t)strlen(text)) {
        die("send");
    }
}

static long rss_kb(pid_t pid)
{
    char path[64], line[256];
    long kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "VmRSS: %ld", &kb) != 1) {
    }
    if (f) {
        fclose(f);
    }
    return kb;
}

struct samples {
    double *v;
    size_t n, cap;
};

static void add(struct samples *s, double v)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 4096;
        s->v = realloc(s->v, s->cap * sizeof *s->v);
        if (!s->v) {
            die("out of memory");
        }
    }
    s->v[s->n++] = v;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(struct samples *s, double q)
{
    if (s->n == 0) {
        return 0;
    }
    qsort(s->v, s->n, sizeof *s->v, compare);
    return s->v[(size_t)(q * (double)(s->n - 1))];
}

struct outcome {
    struct samples delay, excess; /* ms */
    long peak_kb;
    double seconds;
    int n_steps;
};

/* Which step made the first token: the latest that lets every token be read after its step. (A
 * chunk may be late, but one of them arrives before the next step ends.) */
static int first_step(const struct shared *shared, const struct stream *s, int at_least)
{
    for (int first = atomic_load(&shared->n_steps) - s->n_tokens; first >= at_least; first--) {
        int k = 0;
        while (k < s->n_tokens && atomic_load(&shared->end_ns[first + k]) <= s->read_ns[k]) {
            k++;
        }
        if (k == s->n_tokens) {
            return first;
        }
    }
    fprintf(stderr, "net_load: a stream has tokens that no step made\n");
    exit(1);
}

static void judge(const struct shared *shared, const struct stream *s, int at_least,
                  struct outcome *out)
{
    int first = first_step(shared, s, at_least);
    for (int k = 0; k < s->n_tokens; k++) {
        uint64_t end = atomic_load(&shared->end_ns[first + k]);
        add(&out->delay, (double)(s->read_ns[k] - end) * 1e-6);
        if (k > 0) {
            double gap = (double)(s->read_ns[k] - s->read_ns[k - 1]);
            double step = (double)(end - atomic_load(&shared->end_ns[first + k - 1]));
            add(&out->excess, (gap - step) * 1e-6);
        }
    }
}

static void take_bytes(struct stream *s, const char *p, size_t n, uint64_t now, int max_tokens)
{
    static const char token[] = "data: {", done[] = "data: [DONE]";
    for (size_t i = 0; i < n; i++) { /* no proper prefix of either recurs inside it */
        char c = p[i];
        if (s->matched < 6 ? c == token[s->matched] : c == '{' || c == done[s->matched]) {
            s->matched++;
            if (s->matched == 7 && c == '{') {
                if (s->n_tokens < max_tokens) {
                    s->read_ns[s->n_tokens] = now;
                }
                s->n_tokens++;
                s->matched = 0;
            } else if (s->matched == (int)sizeof done - 1) {
                s->done = 1;
                s->matched = 0;
            }
        } else {
            s->matched = c == 'd';
        }
    }
}

static void run_streams(const struct shared *shared, int n, int n_tokens, pid_t server,
                        struct outcome *out)
{
    struct stream *streams = calloc((size_t)n, sizeof *streams);
    struct epoll_event events[256];
    int ep = epoll_create1(EPOLL_CLOEXEC), n_done = 0;
    char request[512], body[256];
    static char block[65536];
    int before = atomic_load(&shared->n_steps);
    int64_t offset_ns = clock_offset_ns();
    uint64_t start = clock_now_ns(), looked = 0, heard = start;
    snprintf(body, sizeof body,
             "{\"prompt\":[5,6,7,8],\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,"
             "\"stream\":true}",
             n_tokens);
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             strlen(body), body);

    for (int i = 0; i < n; i++) {
        streams[i].read_ns = calloc((size_t)n_tokens, sizeof(uint64_t));
        streams[i].fd = streams[i].read_ns ? dial(atomic_load(&shared->port)) : -1;
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &streams[i]};
        epoll_ctl(ep, EPOLL_CTL_ADD, streams[i].fd, &ev);
        put(streams[i].fd, request);
    }
    while (n_done < n) {
        usleep(2000);
        int k = epoll_wait(ep, events, 256, 0);
        if (k > 0) {
            heard = clock_now_ns();
        } else if (k < 0 || clock_now_ns() - heard > 10000000000ull) {
            fprintf(stderr, "net_load: nothing came for 10 s (%d of %d done)\n", n_done, n);
            exit(1);
        }
        for (int i = 0; i < k; i++) {
            struct stream *s = events[i].data.ptr;
            uint64_t at = 0;
            ssize_t got = read_stamped(s->fd, block, sizeof block, offset_ns, &at);
            if (got <= 0) {
                die("a stream ended early");
            }
            int was_done = s->done;
            take_bytes(s, block, (size_t)got, at, n_tokens);
            if (s->done && !was_done) {
                if (s->n_tokens != n_tokens) {
                    fprintf(stderr, "net_load: %d tokens instead of %d\n", s->n_tokens, n_tokens);
                    exit(1);
                }
                n_done++;
                close(s->fd);
            }
        }
        if (clock_now_ns() - looked > 500000000) { /* seldom: reading /proc takes a while */
            long kb = rss_kb(server);
            out->peak_kb = kb > out->peak_kb ? kb : out->peak_kb;
            looked = clock_now_ns();
        }
    }
    out->seconds = (double)(clock_now_ns() - start) * 1e-9;
    out->n_steps = atomic_load(&shared->n_steps) - before;
    for (int i = 0; i < n; i++) {
        judge(shared, &streams[i], before, out);
        free(streams[i].read_ns);
    }
    close(ep);
    free(streams);
}

/* Connections that have asked for something once and stay. */
static int *open_idle(const struct shared *shared, int n)
{
    int *fds = calloc((size_t)n + 1, sizeof *fds);
    char block[4096];
    for (int i = 0; i < n; i++) {
        fds[i] = dial(atomic_load(&shared->port));
        put(fds[i], "GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n");
        ssize_t got = recv(fds[i], block, sizeof block, 0);
        if (got < 12 || memcmp(block, "HTTP/1.1 200", 12) != 0) {
            die("an idle connection got no answer");
        }
    }
    return fds;
}

static void print_outcome(const char *name, struct outcome *o, long base_kb)
{
    printf("  \"%s\": {\"tokens\": %zu, \"seconds\": %.2f, \"steps\": %d, "
           "\"delay_ms\": {\"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}, "
           "\"excess_ms\": {\"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}, \"extra_mb\": %.1f}",
           name, o->delay.n, o->seconds, o->n_steps, quantile(&o->delay, .5),
           quantile(&o->delay, .99), quantile(&o->delay, 1), quantile(&o->excess, .5),
           quantile(&o->excess, .99), quantile(&o->excess, 1),
           (double)(o->peak_kb - base_kb) / 1024.0);
    free(o->delay.v);
    free(o->excess.v);
}

static void measure(struct shared *shared, const struct options *o, pid_t server)
{
    struct outcome warm = {0}, alone = {0}, crowded = {0};
    run_streams(shared, 1, 64, server, &warm);
    long base_kb = rss_kb(server);
    free(warm.delay.v);
    free(warm.excess.v);
    run_streams(shared, o->n_streams, o->n_tokens, server, &alone);
    int *idle = open_idle(shared, o->n_idle);
    run_streams(shared, o->n_streams, o->n_tokens, server, &crowded);
    printf("{\"streams\": %d, \"idle\": %d, \"step_us\": %d, \"base_mb\": %.1f,\n", o->n_streams,
           o->n_idle, o->step_us, (double)base_kb / 1024.0);
    print_outcome("streams alone", &alone, base_kb);
    printf(",\n");
    print_outcome("with idle connections", &crowded, base_kb);
    printf("}\n");
    for (int i = 0; i < o->n_idle; i++) {
        close(idle[i]);
    }
    free(idle);
}

static int number(int argc, char **argv, const char *name, int fallback)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], name) == 0) {
            return atoi(argv[i + 1]);
        }
    }
    return fallback;
}

int main(int argc, char **argv)
{
    struct options o = {.n_idle = number(argc, argv, "--idle", 2000),
                        .n_streams = number(argc, argv, "--streams", 200),
                        .n_tokens = number(argc, argv, "--tokens", 300),
                        .step_us = number(argc, argv, "--step-us", 20000)};
    struct rlimit files = {16384, 16384};
    if (setrlimit(RLIMIT_NOFILE, &files) != 0) {
        getrlimit(RLIMIT_NOFILE, &files);
        if (files.rlim_cur < (rlim_t)(o.n_idle + o.n_streams + 64)) {
            die("too few file descriptors are allowed");
        }
    }
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        die("mmap");
    }
    pid_t pid = fork();
    if (pid < 0) {
        die("fork");
    }
    if (pid == 0) {
        return serve(shared, &o);
    }
    for (int i = 0; atomic_load(&shared->port) == 0; i++) {
        if (i > 2000 || waitpid(pid, NULL, WNOHANG) == pid) {
            fprintf(stderr, "net_load: the server did not start\n");
            return 1;
        }
        usleep(10000);
    }
    measure(shared, &o, pid);
    atomic_store(&shared->stop, 1);
    int status = 1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
