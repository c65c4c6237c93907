/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that leave: however they do it, the engine is free within a few steps, and the counters
 * say so. */
#include "api_rig.h"

#define ABORTED                                                                                    \
    "vllm:request_success_total{model_name=\"org/poet-1\",engine=\"0\",finished_reason=\"abort\"}"
#define RUNNING "vllm:num_requests_running" RIG_LABELS
#define WAITING "vllm:num_requests_waiting" RIG_LABELS

static struct api_rig rig;

static int open_group(void **state)
{
    (void)state;
    rig_options(&rig);
    rig.eo.max_model_len = 4096;
    rig.eo.max_num_batched_tokens = 16; /* a prompt of 400 tokens takes 25 steps */
    rig.so.write_timeout_s = 3;
    rig_listen(&rig);
    rig_ready(&rig, 0, 1000);
    return 0;
}

static int close_group(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

static int start(const char *extra, int n_prompt, int rcvbuf)
{
    struct buf body, head;
    buf_init(&body);
    buf_init(&head);
    buf_puts(&body, "{\"prompt\":[");
    for (int i = 0; i < n_prompt; i++) {
        buf_printf(&body, "%s%d", i ? "," : "", (i * 7 + n_prompt) % 8000 + 10);
    }
    buf_printf(&body, "],\"max_tokens\":3000,\"ignore_eos\":true%s}", extra);
    buf_printf(&head,
               "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: "
               "application/json\r\nContent-Length: %zu\r\n\r\n",
               body.len);
    int fd = rig_connect_rcvbuf(rig.port, rcvbuf);
    rig_send(fd, head.data, head.len);
    rig_send(fd, body.data, body.len);
    buf_fini(&body);
    buf_fini(&head);
    return fd;
}

static int wait_metric(const char *line, double want, int ms)
{
    for (int i = 0; i < ms / 5; i++) {
        if (rig_metric(&rig, line) == want) {
            return 1;
        }
        usleep(5000);
    }
    return 0;
}

static void leave(int fd, int kind)
{
    struct linger reset = {1, 0};
    if (kind == 1) {
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    if (kind == 2) {
        shutdown(fd, SHUT_WR);
    } else {
        close(fd);
    }
}

static void every_way_of_leaving_frees_the_engine(void **state)
{
    (void)state;
    double ok = rig_metric(&rig, "vllm:request_success_total{model_name=\"org/"
                                 "poet-1\",engine=\"0\",finished_reason=\"length\"}");
    for (int kind = 0; kind < 3; kind++) { /* FIN, RST, half-close */
        for (int stream = 0; stream < 2; stream++) {
            for (int prefill = 0; prefill < 2; prefill++) {
                double before = rig_metric(&rig, ABORTED);
                int fd = start(stream ? ",\"stream\":true" : "", prefill ? 900 : 4, 0);
                assert_true(wait_metric(RUNNING, 1, 2000));
                if (!prefill && stream) {
                    struct buf b;
                    buf_init(&b);
                    assert_true(rig_read(fd, &b, "\"choices\"", 2000));
                    buf_fini(&b);
                }
                leave(fd, kind);
                assert_true(wait_metric(RUNNING, 0, 1000));
                assert_true(rig_metric(&rig, ABORTED) == before + 1);
                assert_true(rig_metric(&rig, "vllm:kv_cache_usage_perc" RIG_LABELS) == 0);
                if (kind == 2) {
                    close(fd);
                }
            }
        }
    }
    assert_true(rig_metric(&rig, "vllm:request_success_total{model_name=\"org/"
                                 "poet-1\",engine=\"0\",finished_reason=\"length\"}") == ok);
}

static void all_samples_of_all_prompts_end(void **state)
{
    (void)state;
    double before = rig_metric(&rig, ABORTED);
    int fd = start(",\"n\":6,\"temperature\":1", 4, 0);
    assert_true(wait_metric(RUNNING, 6, 2000));
    close(fd);
    assert_true(wait_metric(RUNNING, 0, 1000));
    assert_true(wait_metric(ABORTED, before + 6, 1000));
}

static void a_waiting_request_leaves_the_queue(void **state)
{
    (void)state;
    int busy = start(",\"n\":8,\"temperature\":1", 4, 0); /* max_num_seqs */
    assert_true(wait_metric(RUNNING, 8, 2000));
    int fd = start("", 4, 0);
    assert_true(wait_metric(WAITING, 1, 2000));
    close(fd);
    assert_true(wait_metric(WAITING, 0, 1000));
    close(busy);
    assert_true(wait_metric(RUNNING, 0, 1000));
}

static void a_reader_that_stalls_is_aborted_after_the_write_timeout(void **state)
{
    (void)state;
    double before = rig_metric(&rig, ABORTED);
    /* log-probabilities make the stream wide enough to fill the socket */
    int fd = start(",\"stream\":true,\"logprobs\":20", 4, 4096);
    assert_true(wait_metric(RUNNING, 1, 2000));
    assert_true(wait_metric(RUNNING, 0, 15000));
    assert_true(rig_metric(&rig, ABORTED) == before + 1);
    close(fd);
}

static void a_slow_reader_gets_merged_chunks_with_the_whole_text(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b);
    int fd = start(",\"stream\":true,\"logprobs\":20,\"temperature\":1,\"n\":4,\"max_tokens\":1200",
                   4, 32768);
    usleep(2500000); /* less than the write timeout */
    assert_true(rig_read(fd, &b, "[DONE]", 20000));
    close(fd);
    rig_unchunk(&b);
    size_t n_tokens = 0;
    int n_chunks = 0, merged = 0;
    for (const char *p = b.data; (p = strstr(p, "data: {")); n_chunks++) {
        const char *end = strstr(p, "\n\n");
        struct json *j = NULL;
        struct err e;
        assert_int_equal(json_parse(&j, p + 6, (size_t)(end - p - 6), 64, &e), 0);
        size_t n = json_length(
            json_get(json_get(json_at(json_get(j, "choices"), 0), "logprobs"), "tokens"));
        n_tokens += n;
        merged += n > 1;
        json_free(j);
        p = end;
    }
    assert_int_equal(n_tokens, 4 * 1200);
    assert_true(merged > 0 && n_chunks < 4 * 1200);
    buf_fini(&b);
}

static void load_counts_the_clients_that_wait(void **state)
{
    (void)state;
    int fd = start("", 4, 0);
    assert_true(wait_metric(RUNNING, 1, 2000));
    assert_int_equal(rig_get(&rig, "/load", ""), 200);
    assert_string_equal(rig_body(&rig.b),
                        "{\"server_load\":0}"); /* only with --enable-server-load-tracking */
    close(fd);
    assert_true(wait_metric(RUNNING, 0, 1000));
}

static void two_hundred_streams_run_at_once_beside_idle_connections(void **state)
{
    (void)state;
    int idle[200], fds[200];
    struct buf b;
    buf_init(&b);
    for (int i = 0; i < 200; i++) {
        idle[i] = rig_connect(rig.port);
    }
    for (int i = 0; i < 200; i++) {
        const char *body =
            "{\"prompt\":[5,6],\"max_tokens\":4,\"ignore_eos\":true,\"stream\":true}";
        char head[512];
        snprintf(head, sizeof head,
                 "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n%s",
                 strlen(body), body);
        fds[i] = rig_connect(rig.port);
        rig_puts(fds[i], head);
    }
    for (int i = 0; i < 200; i++) {
        buf_clear(&b);
        assert_true(rig_read(fds[i], &b, "[DONE]", 20000));
        close(fds[i]);
        close(idle[i]);
    }
    buf_fini(&b);
    assert_true(wait_metric(RUNNING, 0, 1000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_of_leaving_frees_the_engine),
        cmocka_unit_test(all_samples_of_all_prompts_end),
        cmocka_unit_test(a_waiting_request_leaves_the_queue),
        cmocka_unit_test(a_reader_that_stalls_is_aborted_after_the_write_timeout),
        cmocka_unit_test(a_slow_reader_gets_merged_chunks_with_the_whole_text),
        cmocka_unit_test(load_counts_the_clients_that_wait),
        cmocka_unit_test(two_hundred_streams_run_at_once_beside_idle_connections),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
