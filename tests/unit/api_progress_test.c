/* SPDX-License-Identifier: Apache-2.0 */
/* stream_options.include_progress: what a client hears before its first token. */
#include "api_rig.h"

static int open_request(struct api_rig *r, const char *path, const char *body)
{
    char q[8192];
    int n = snprintf(q, sizeof q,
                     "POST %s HTTP/1.1\r\nHost: t\r\nConnection: close\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     path, strlen(body), body);
    int fd = rig_connect(r->port);
    rig_send(fd, q, (size_t)n);
    return fd;
}

/* A prompt of n ids, so that what the fake computes is known. */
static void completion(char *out, size_t size, int n, const char *rest)
{
    int at = snprintf(out, size, "{\"model\":\"alias\",\"prompt\":[");
    for (int i = 0; i < n; i++) {
        at += snprintf(out + at, size - (size_t)at, "%s%d", i ? "," : "", 100 + i % 200);
    }
    snprintf(out + at, size - (size_t)at, "],\"ignore_eos\":true,\"stream\":true,%s}", rest);
}

static void open_rig(struct api_rig *r, unsigned step_us)
{
    rig_options(r);
    r->eo.max_num_seqs = 1;
    r->eo.max_num_batched_tokens = 32;
    rig_listen(r);
    rig_ready(r, 0, step_us);
}

static void a_waiting_request_hears_its_place_and_then_how_far_its_prompt_is(void **state)
{
    struct api_rig r;
    char body[4096];
    (void)state;
    open_rig(&r, 600000);
    completion(body, sizeof body, 8, "\"max_tokens\":400");
    int first = open_request(&r, "/v1/completions", body);
    buf_clear(&r.b);
    assert_true(rig_read(first, &r.b, "\"text\"", 20000));
    completion(body, sizeof body, 8, "\"max_tokens\":1");
    int second = open_request(&r, "/v1/completions", body);
    struct timespec pause = {0, 300000000};
    nanosleep(&pause, NULL);
    completion(body, sizeof body, 96,
               "\"max_tokens\":1,\"stream_options\":{\"include_progress\":true}");
    int third = open_request(&r, "/v1/completions", body);
    struct buf b;
    buf_init(&b);
    assert_true(rig_read(third, &b,
                         "\"choices\":[],\"progress\":{\"queue_position\":2,"
                         "\"prompt_tokens\":96,\"computed_tokens\":0}}",
                         20000));
    assert_true(strstr(b.data, "HTTP/1.1 200 OK") != NULL);
    close(first); /* gone: the others move up */
    assert_true(rig_read(
        third, &b, "\"queue_position\":0,\"prompt_tokens\":96,\"computed_tokens\":32}", 20000));
    assert_true(rig_read(third, &b, "\"computed_tokens\":64}", 20000));
    assert_true(rig_read(third, &b, "data: [DONE]", 20000));
    assert_int_equal(rig_count(&b, "\"text\""), 1);
    close(second);
    close(third);
    buf_fini(&b);
    rig_close(&r);
}

static void nobody_else_hears_of_it(void **state)
{
    struct api_rig r;
    char body[4096];
    (void)state;
    open_rig(&r, 250000);
    completion(body, sizeof body, 96, "\"max_tokens\":1");
    int fd = open_request(&r, "/v1/completions", body);
    buf_clear(&r.b);
    assert_true(rig_read(fd, &r.b, "data: [DONE]", 20000));
    assert_int_equal(rig_count(&r.b, "progress"), 0);
    close(fd);
    rig_close(&r);
}

static void a_chat_still_begins_with_its_role(void **state)
{
    struct api_rig r;
    (void)state;
    open_rig(&r, 400000);
    int fd =
        open_request(&r, "/v1/chat/completions",
                     "{\"model\":\"alias\",\"messages\":[{\"role\":\"user\",\"content\":\"春晓\"}],"
                     "\"max_tokens\":2,\"stream\":true,"
                     "\"stream_options\":{\"include_progress\":true}}");
    buf_clear(&r.b);
    assert_true(rig_read(fd, &r.b, "data: [DONE]", 20000));
    const char *progress = strstr(r.b.data, "\"progress\""), *role = strstr(r.b.data, "\"role\"");
    assert_true(progress && role && progress < role);
    assert_true(strstr(r.b.data, "\"object\":\"chat.completion.chunk\"") < progress);
    assert_int_equal(rig_count(&r.b, "\"role\""), 1);
    close(fd);
    rig_close(&r);
}

static void a_client_that_leaves_in_the_queue_is_forgotten(void **state)
{
    struct api_rig r;
    char body[4096];
    (void)state;
    open_rig(&r, 100000);
    completion(body, sizeof body, 8, "\"max_tokens\":400");
    int first = open_request(&r, "/v1/completions", body);
    buf_clear(&r.b);
    assert_true(rig_read(first, &r.b, "\"text\"", 20000));
    completion(body, sizeof body, 8,
               "\"max_tokens\":1,\"stream_options\":{\"include_progress\":true}");
    int second = open_request(&r, "/v1/completions", body);
    struct buf b;
    buf_init(&b);
    assert_true(rig_read(second, &b, "\"queue_position\":1", 20000));
    close(second);
    close(first);
    rig_quiet(&r);
    buf_fini(&b);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_waiting_request_hears_its_place_and_then_how_far_its_prompt_is),
        cmocka_unit_test(nobody_else_hears_of_it),
        cmocka_unit_test(a_chat_still_begins_with_its_role),
        cmocka_unit_test(a_client_that_leaves_in_the_queue_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
