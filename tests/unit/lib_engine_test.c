/* SPDX-License-Identifier: Apache-2.0 */
/* The library through tern.h, with the model that ships. */
#include "base/clock.h"
#include "tern.h"
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL TERN_SOURCE_DIR "/models/tern-poet"

static struct tern_options *options(void)
{
    struct tern_options *o;
    assert_int_equal(tern_options_new(&o, NULL), 0);
    assert_int_equal(tern_options_set(o, "max-model-len", "256", NULL), 0);
    assert_int_equal(tern_options_set(o, "max_num_seqs", "16", NULL), 0);
    return o;
}

static struct tern_engine *engine(void)
{
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_options *o = options();
    struct tern_engine *en = NULL;
    if (tern_engine_open(&en, MODEL, o, &e) < 0) {
        fail_msg("%s", e.text);
    }
    tern_options_free(o);
    return en;
}

static struct tern_params *params(struct tern_engine *en, const char *json)
{
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_params *p;
    assert_int_equal(tern_params_new(&p, en, NULL), 0);
    if (tern_params_set_json(p, json, TERN_ALL, &e) < 0) {
        fail_msg("%s", e.text);
    }
    return p;
}

static struct tern_request *ask(struct tern_engine *en, const char *prompt, const char *json,
                                struct tern_queue *q)
{
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_request *r;
    struct tern_params *p = params(en, json);
    assert_int_equal(tern_request_new(&r, en, NULL), 0);
    assert_int_equal(tern_request_set_text(r, prompt, TERN_ALL, NULL), 0);
    if (tern_request_start(r, p, q, &e) < 0) {
        fail_msg("%s", e.text);
    }
    tern_params_free(p);
    return r;
}

struct answer {
    char text[4096];
    int32_t ids[512];
    size_t n_ids, n_bytes;
    int finish, n_chunks;
};

static void take_all(struct tern_request *r, struct answer *a)
{
    struct tern_chunk c = TERN_CHUNK_INIT;
    int rc;
    memset(a, 0, sizeof *a);
    while ((rc = tern_request_next(r, -1, &c, NULL)) == TERN_CHUNK) {
        assert_ptr_equal(c.request, r);
        assert_int_equal(strlen(c.text), c.text_bytes);
        memcpy(a->text + a->n_bytes, c.text, c.text_bytes);
        memcpy(a->ids + a->n_ids, c.ids, c.n_ids * sizeof *c.ids);
        a->n_bytes += c.text_bytes;
        a->n_ids += c.n_ids;
        a->finish = c.finish;
        a->n_chunks++;
        assert_int_equal(c.last, c.finish != TERN_RUNNING);
    }
    assert_int_equal(rc, TERN_END);
}

static int blocks_in_use(struct tern_engine *en)
{
    struct tern_metrics m = TERN_METRICS_INIT;
    assert_int_equal(tern_engine_metrics(en, &m, NULL), 0);
    assert_int_equal(m.running + m.waiting, 0);
    return m.blocks_in_use;
}

/* ---- options ---- */

static void a_wrong_option_is_refused_by_name(void **state)
{
    (void)state;
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_options *o = options();
    assert_int_equal(tern_options_set(o, "max_model_lenn", "1", &e), TERN_NOT_FOUND);
    assert_int_equal(e.code, TERN_NOT_FOUND);
    assert_string_equal(e.text, "unknown option 'max_model_lenn' (did you mean 'max_model_len'?)");
    assert_int_equal(tern_options_set(o, "block-size", "32", &e), TERN_INVALID);
    assert_non_null(strstr(e.text, "block-size"));
    assert_int_equal(tern_options_set(o, "enable-lora", "true", &e), TERN_UNSUPPORTED);
    assert_int_equal(tern_options_set(o, "swap-space", "4", &e), 0);
    tern_options_free(o);
}

static void an_error_struct_of_an_older_program_is_not_overrun(void **state)
{
    (void)state;
    char small[sizeof(size_t) + 32];
    struct tern_options *o = options();
    memset(small, 'x', sizeof small);
    *(size_t *)(void *)small = sizeof(size_t) + 16;
    tern_options_set(o, "nothing-like-that", "1", (struct tern_error *)(void *)small);
    for (size_t i = sizeof(size_t) + 16; i < sizeof small; i++) {
        assert_int_equal(small[i], 'x');
    }
    tern_options_free(o);
}

static void a_model_that_is_not_there_is_named(void **state)
{
    (void)state;
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_engine *en;
    assert_int_equal(tern_engine_open(&en, "/nowhere/at/all", NULL, &e), TERN_NOT_FOUND);
    assert_null(en);
    assert_non_null(strstr(e.text, "/nowhere/at/all"));
    assert_int_equal(tern_engine_open(&en, "nobody/has-this-model", NULL, &e), TERN_NOT_FOUND);
    assert_non_null(strstr(e.text, "tern pull"));
    tern_engine_close(NULL);
}

static void count_line(void *user, int level, const char *text)
{
    int *n = user;
    n[0]++;
    n[1] += level == TERN_LOG_WARNING && strstr(text, "swap-space") != NULL;
}

static void log_lines_go_to_the_function_only(void **state)
{
    (void)state;
    int seen[2] = {0};
    struct tern_options *o = options();
    struct tern_engine *en;
    tern_options_set_log(o, count_line, seen);
    assert_int_equal(tern_options_set(o, "swap-space", "4", NULL), 0);
    assert_int_equal(tern_engine_open(&en, MODEL, o, NULL), 0);
    tern_options_free(o);
    assert_int_equal(seen[1], 1);
    tern_engine_close(en);
}

/* ---- parameters ---- */

static void a_wrong_parameter_is_refused_by_name(void **state)
{
    (void)state;
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_params *p;
    assert_int_equal(tern_params_new(&p, NULL, NULL), 0);
    assert_int_equal(tern_params_set_number(p, "temprature", 1, &e), TERN_NOT_FOUND);
    assert_non_null(strstr(e.text, "'temperature'"));
    assert_int_equal(tern_params_set_number(p, "top_k", 1.5, &e), TERN_INVALID);
    assert_int_equal(tern_params_set_json(p, "{\"stop\": [1]}", TERN_ALL, &e), TERN_INVALID);
    assert_int_equal(tern_params_set_json(p, "{\"n\": \"2\"}", TERN_ALL, &e), TERN_INVALID);
    assert_int_equal(tern_params_set_json(p, "{\"n\": 2", TERN_ALL, &e), TERN_FORMAT);
    assert_int_equal(
        tern_params_set_json(p, "{\"structured_outputs\": {\"json_object\": 1}}", TERN_ALL, &e),
        TERN_INVALID);
    assert_non_null(strstr(e.text, "structured_outputs.json_object"));
    assert_int_equal(tern_params_add_stop(p, "", 0, &e), TERN_INVALID);
    assert_int_equal(tern_params_check(p, NULL, &e), 0);
    assert_int_equal(tern_params_set_number(p, "temperature", -1, &e), 0);
    assert_int_equal(tern_params_check(p, NULL, &e), TERN_INVALID);
    assert_string_equal(e.text, "temperature must be in [0, 2], got -1.");
    assert_int_equal(tern_params_set_number(p, "temperature", 1, &e), 0);
    assert_int_equal(tern_params_set_int(p, "n", 1000000000, &e), 0);
    assert_int_equal(tern_params_check(p, NULL, &e), TERN_INVALID);
    assert_string_equal(e.text, "n must be at most 16384, got 1000000000.");
    tern_params_free(p);
}

/* ---- requests ---- */

static void chunks_join_to_the_text_of_the_tokens(void **state)
{
    struct tern_engine *en = *state;
    struct answer a;
    struct tern_request *r = ask(en, "床前", "{\"temperature\": 0, \"max_tokens\": 40}", NULL);
    take_all(r, &a);
    assert_true(a.n_ids > 5);
    size_t n;
    const char *whole = tern_request_text(r, 0, &n);
    assert_int_equal(n, a.n_bytes);
    assert_memory_equal(whole, a.text, n);
    char *decoded;
    assert_int_equal(
        tern_tokenizer_decode(tern_engine_tokenizer(en), a.ids, a.n_ids, 1, &decoded, NULL, NULL),
        0);
    assert_int_equal(strncmp(decoded, a.text, a.n_bytes), 0); /* all but a cut last character */
    tern_free(decoded);
    tern_request_close(r);
}

static void ids_and_text_of_a_prompt_give_the_same(void **state)
{
    struct tern_engine *en = *state;
    struct answer a, b;
    struct tern_request *r = ask(en, "明月", "{\"temperature\": 0, \"max_tokens\": 20}", NULL), *r2;
    struct tern_params *p = params(en, "{\"temperature\": 0, \"max_tokens\": 20}");
    size_t n;
    take_all(r, &a);
    const int32_t *ids = tern_request_prompt_ids(r, &n);
    assert_int_equal(tern_request_new(&r2, en, NULL), 0);
    assert_int_equal(tern_request_set_ids(r2, ids, n, NULL), 0);
    assert_int_equal(tern_request_start(r2, p, NULL, NULL), 0);
    take_all(r2, &b);
    assert_int_equal(a.n_ids, b.n_ids);
    assert_memory_equal(a.ids, b.ids, a.n_ids * sizeof *a.ids);
    assert_null(tern_request_prompt_text(r2, NULL));
    tern_params_free(p);
    tern_request_close(r);
    tern_request_close(r2);
}

static void a_stop_string_ends_the_text_and_is_named(void **state)
{
    struct tern_engine *en = *state;
    struct tern_chunk c = TERN_CHUNK_INIT;
    struct tern_request *r =
        ask(en, "春", "{\"temperature\": 0, \"max_tokens\": 60, \"stop\": [\"nothing\", \"，\"]}",
            NULL);
    int finish = 0;
    while (tern_request_next(r, -1, &c, NULL) == TERN_CHUNK) {
        finish = c.finish;
        if (finish) {
            assert_string_equal(c.stop_text, "，");
        }
    }
    assert_int_equal(finish, TERN_STOP);
    assert_null(strstr(tern_request_text(r, 0, NULL), "，"));
    assert_int_equal(blocks_in_use(en), 0);
    tern_request_close(r);
}

static void structured_output_matches_its_expression(void **state)
{
    struct tern_engine *en = *state;
    struct answer a;
    struct tern_request *r = ask(en, "数字",
                                 "{\"temperature\": 1, \"seed\": 3, \"max_tokens\": 50,"
                                 " \"structured_outputs\": {\"regex\": \"[0-9]{4}-[0-9]{2}\"}}",
                                 NULL);
    take_all(r, &a);
    assert_int_equal(a.finish, TERN_STOP);
    assert_int_equal(a.n_bytes, 7);
    assert_int_equal(a.text[4], '-');
    tern_request_close(r);
}

static void logprobs_of_a_chunk_begin_with_the_sampled_token(void **state)
{
    struct tern_engine *en = *state;
    struct tern_chunk c = TERN_CHUNK_INIT;
    double sum = 0;
    int prompts = 0;
    struct tern_request *r = ask(en, "春江花月夜",
                                 "{\"temperature\": 1, \"seed\": 3, \"max_tokens\": 8, "
                                 "\"logprobs\": 3, \"prompt_logprobs\": 1}",
                                 NULL);
    size_t n_prompt;
    tern_request_prompt_ids(r, &n_prompt);
    while (tern_request_next(r, -1, &c, NULL) == TERN_CHUNK) {
        if (c.kind == TERN_PROMPT) {
            prompts++;
            assert_int_equal(c.n_ids, n_prompt);
            assert_int_equal(c.logprob_start[1], 0);
            assert_true(c.logprob_start[2] >= 2);
            continue;
        }
        for (size_t i = 0; i < c.n_ids; i++) {
            size_t at = c.logprob_start[i];
            assert_int_equal(c.logprob_ids[at], c.ids[i]);
            assert_int_equal(c.logprob_start[i + 1] - at, 4);
            assert_int_equal(c.logprob_ranks[at + 1], 1);
            assert_true(c.logprobs[at] <= c.logprobs[at + 1]);
            sum += (double)c.logprobs[at];
        }
        assert_true(c.cumulative_logprob - sum < 1e-6 && sum - c.cumulative_logprob < 1e-6);
    }
    assert_int_equal(prompts, 1);
    tern_request_close(r);
}

static void a_prompt_that_cannot_be_is_refused(void **state)
{
    struct tern_engine *en = *state;
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_request *r;
    int32_t far = 1 << 30, many[300] = {0};
    assert_int_equal(tern_request_new(&r, en, NULL), 0);
    assert_int_equal(tern_request_start(r, NULL, NULL, &e), TERN_INVALID);
    assert_string_equal(e.text, "the prompt is empty");
    assert_int_equal(tern_request_set_ids(r, &far, 1, NULL), 0);
    assert_int_equal(tern_request_start(r, NULL, NULL, &e), TERN_INVALID);
    assert_non_null(strstr(e.text, "vocabulary"));
    assert_int_equal(tern_request_set_ids(r, many, 300, NULL), 0);
    assert_int_equal(tern_request_start(r, NULL, NULL, &e), TERN_TOO_LARGE);
    assert_int_equal(tern_request_set_text(r, "\xff\xfe", 2, NULL), 0);
    assert_int_equal(tern_request_start(r, NULL, NULL, &e), TERN_FORMAT);
    struct tern_chunk c = TERN_CHUNK_INIT;
    assert_int_equal(tern_request_next(r, 0, &c, &e), TERN_INVALID);
    assert_int_equal(tern_request_set_text(r, "春", TERN_ALL, NULL), 0);
    assert_int_equal(tern_request_start(r, NULL, NULL, &e), 0); /* and then it may go on */
    assert_int_equal(tern_request_start(r, NULL, NULL, &e), TERN_INVALID);
    tern_request_close(r);
    assert_int_equal(blocks_in_use(en), 0);
}

static int stop_at_once(void *user, const struct tern_chunk *c)
{
    (void)c;
    ++*(int *)user;
    return 1;
}

static void a_callback_can_end_the_request(void **state)
{
    struct tern_engine *en = *state;
    int calls = 0;
    struct tern_request *r;
    struct tern_params *p = params(en, "{\"max_tokens\": 200, \"ignore_eos\": true}");
    assert_int_equal(tern_request_new(&r, en, NULL), 0);
    assert_int_equal(tern_request_set_text(r, "春", TERN_ALL, NULL), 0);
    assert_int_equal(tern_request_stream(r, p, stop_at_once, &calls, NULL), TERN_CANCELED);
    assert_int_equal(calls, 1);
    assert_int_equal(blocks_in_use(en), 0);
    tern_params_free(p);
    tern_request_close(r);
}

static void requests_closed_while_they_run_leave_nothing(void **state)
{
    struct tern_engine *en = *state;
    struct tern_queue *q;
    struct tern_chunk c = TERN_CHUNK_INIT;
    struct tern_request *r[24];
    int n_last = 0, rc;
    assert_int_equal(tern_queue_new(&q, NULL), 0);
    for (int i = 0; i < 24; i++) {
        r[i] = ask(en, i % 3 ? "春" : "江山", "{\"max_tokens\": 60, \"ignore_eos\": true}", q);
    }
    for (int i = 0; i < 24; i += 2) {
        tern_request_close(r[i]);
    }
    while ((rc = tern_queue_next(q, -1, &c, NULL)) == TERN_CHUNK) {
        n_last += c.last;
    }
    assert_int_equal(rc, TERN_END);
    assert_int_equal(n_last, 12);
    assert_int_equal(blocks_in_use(en), 0);
    for (int i = 1; i < 24; i += 2) {
        tern_request_close(r[i]);
    }
    tern_queue_free(q);
}

static void a_queue_that_is_freed_cancels_its_requests(void **state)
{
    struct tern_engine *en = *state;
    struct tern_queue *q;
    assert_int_equal(tern_queue_new(&q, NULL), 0);
    struct tern_request *r = ask(en, "春", "{\"max_tokens\": 200, \"ignore_eos\": true}", q);
    assert_int_equal(tern_request_next(r, 0, &(struct tern_chunk)TERN_CHUNK_INIT, NULL),
                     TERN_INVALID);
    tern_queue_free(q);
    assert_int_equal(blocks_in_use(en), 0);
    tern_request_close(r);
}

static void a_request_that_has_ended_may_be_closed_after_its_queue(void **state)
{
    struct tern_engine *en = *state;
    struct tern_queue *q;
    struct tern_chunk c = TERN_CHUNK_INIT;
    size_t n;
    assert_int_equal(tern_queue_new(&q, NULL), 0);
    struct tern_request *r = ask(en, "春", "{\"max_tokens\": 2, \"ignore_eos\": true}", q);
    while (tern_queue_next(q, -1, &c, NULL) == TERN_CHUNK) {
    }
    tern_queue_free(q);
    assert_true(tern_request_text(r, 0, &n)[0] != '\0' && n > 0);
    tern_request_close(r); /* must not touch the queue: sanitizers tell */
}

static void the_queues_descriptor_tells_of_chunks(void **state)
{
    struct tern_engine *en = *state;
    struct tern_queue *q;
    struct tern_chunk c = TERN_CHUNK_INIT;
    assert_int_equal(tern_queue_new(&q, NULL), 0);
    assert_true(tern_queue_fd(q) >= 0);
    assert_int_equal(tern_queue_next(q, 0, &c, NULL), TERN_END);
    struct tern_request *r = ask(en, "春", "{\"max_tokens\": 3, \"ignore_eos\": true}", q);
    struct pollfd p = {.fd = tern_queue_fd(q), .events = POLLIN};
    int rc, n = 0;
    do {
        assert_int_equal(poll(&p, 1, 300000), 1);
        while ((rc = tern_queue_next(q, 0, &c, NULL)) == TERN_CHUNK) {
            n++;
        }
    } while (rc == TERN_NOTHING);
    assert_int_equal(rc, TERN_END);
    assert_true(n >= 3);
    tern_request_close(r);
    tern_queue_free(q);
}

static void *cancel_soon(void *arg)
{
    tern_request_cancel(arg);
    return NULL;
}

static void another_thread_may_cancel(void **state)
{
    struct tern_engine *en = *state;
    struct answer a;
    struct tern_request *r = ask(en, "春", "{\"max_tokens\": 250, \"ignore_eos\": true}", NULL);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, cancel_soon, r), 0);
    take_all(r, &a);
    pthread_join(t, NULL);
    assert_true(a.finish == TERN_ABORT || a.n_ids >= 240);
    assert_int_equal(blocks_in_use(en), 0);
    tern_request_close(r);
}

/* ---- life ---- */

static void a_closed_engine_ends_its_requests_which_are_still_good(void **state)
{
    (void)state;
    struct tern_engine *en = engine();
    struct answer a;
    struct tern_request *r = ask(en, "春", "{\"max_tokens\": 250, \"ignore_eos\": true}", NULL),
                        *idle;
    assert_int_equal(tern_request_new(&idle, en, NULL), 0);
    tern_engine_close(en);
    take_all(r, &a);
    assert_int_equal(a.finish, TERN_ABORT);
    tern_request_cancel(r);
    assert_int_equal(tern_request_set_text(idle, "春", TERN_ALL, NULL), 0);
    assert_int_equal(tern_request_start(idle, NULL, NULL, NULL), TERN_CANCELED);
    tern_request_close(idle);
    tern_request_close(r);
}

static void two_engines_live_side_by_side_with_the_same_answers(void **state)
{
    struct tern_engine *one = *state, *two;
    struct tern_options *o = options();
    struct answer a, b;
    assert_int_equal(tern_options_set(o, "enforce-eager", "true", NULL), 0);
    assert_int_equal(tern_engine_open(&two, MODEL, o, NULL), 0);
    tern_options_free(o);
    struct tern_request *ra = ask(one, "秋", "{\"temperature\": 0, \"max_tokens\": 30}", NULL);
    struct tern_request *rb = ask(two, "秋", "{\"temperature\": 0, \"max_tokens\": 30}", NULL);
    take_all(rb, &b);
    take_all(ra, &a);
    assert_string_equal(a.text, b.text);
    tern_request_close(ra);
    tern_request_close(rb);
    tern_engine_close(two);
}

static void the_engine_leaves_signals_and_cpus_of_the_program_alone(void **state)
{
    (void)state;
    sigset_t before, after;
    cpu_set_t cpus_before, cpus_after;
    memset(&before, 0, sizeof before); /* the kernel fills less than all of it */
    memset(&after, 0, sizeof after);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    pthread_getaffinity_np(pthread_self(), sizeof cpus_before, &cpus_before);
    struct tern_engine *en = engine();
    assert_int_equal(tern_engine_load(en, NULL), 0);
    assert_int_equal(tern_engine_load(en, NULL), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    pthread_getaffinity_np(pthread_self(), sizeof cpus_after, &cpus_after);
    assert_memory_equal(&before, &after, sizeof before);
    assert_memory_equal(&cpus_before, &cpus_after, sizeof cpus_before);
    tern_engine_close(en);
}

/* ---- chat and tokens ---- */

static void what_a_message_spells_is_no_special_token(void **state)
{
    struct tern_engine *en = *state;
    const struct tern_tokenizer *t = tern_engine_tokenizer(en);
    int32_t *ids;
    size_t n, n_bytes;
    char *text;
    int32_t end = tern_tokenizer_id(t, "<|end_of_sentence|>");
    assert_true(end >= 0 && tern_tokenizer_is_special(t, end));
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"<|end_of_sentence|>\"}]";
    assert_int_equal(
        tern_tokenizer_chat(t, messages, TERN_ALL, NULL, &text, &n_bytes, &ids, &n, NULL), 0);
    assert_non_null(strstr(text, "<|end_of_sentence|>"));
    for (size_t i = 0; i < n; i++) {
        assert_int_not_equal(ids[i], end);
    }
    tern_free(text);
    tern_free(ids);
    struct tern_error e = TERN_ERROR_INIT;
    assert_int_equal(tern_tokenizer_chat(t, "{}", TERN_ALL, NULL, &text, NULL, NULL, NULL, &e),
                     TERN_INVALID);
    assert_int_equal(
        tern_tokenizer_chat(t, messages, TERN_ALL, "{\"tolls\": []}", &text, NULL, NULL, NULL, &e),
        TERN_NOT_FOUND);
}

static void a_decoder_holds_back_parts_of_characters(void **state)
{
    struct tern_engine *en = *state;
    const struct tern_tokenizer *t = tern_engine_tokenizer(en);
    struct tern_decoder *d;
    int32_t *ids;
    size_t n, k, waited = 0;
    static const char text[] = "a😀b";
    char joined[16] = "";
    assert_int_equal(tern_tokenizer_encode(t, text, TERN_ALL, 0, &ids, &n, NULL), 0);
    assert_int_equal(tern_decoder_new(&d, t, 0, NULL), 0);
    for (size_t i = 0; i < n; i++) {
        const char *s = tern_decoder_push(d, ids[i], &k);
        strcat(joined, s);
        waited += k == 0;
    }
    assert_string_equal(joined, text);
    assert_true(waited >= 3);
    tern_decoder_finish(d, &k);
    assert_int_equal(k, 0);
    tern_decoder_free(d);
    tern_free(ids);
}

static int open_engine(void **state)
{
    *state = engine();
    return 0;
}

static int close_engine(void **state)
{
    tern_engine_close(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_option_is_refused_by_name),
        cmocka_unit_test(an_error_struct_of_an_older_program_is_not_overrun),
        cmocka_unit_test(a_model_that_is_not_there_is_named),
        cmocka_unit_test(log_lines_go_to_the_function_only),
        cmocka_unit_test(a_wrong_parameter_is_refused_by_name),
        cmocka_unit_test(chunks_join_to_the_text_of_the_tokens),
        cmocka_unit_test(ids_and_text_of_a_prompt_give_the_same),
        cmocka_unit_test(a_stop_string_ends_the_text_and_is_named),
        cmocka_unit_test(structured_output_matches_its_expression),
        cmocka_unit_test(logprobs_of_a_chunk_begin_with_the_sampled_token),
        cmocka_unit_test(a_prompt_that_cannot_be_is_refused),
        cmocka_unit_test(a_callback_can_end_the_request),
        cmocka_unit_test(requests_closed_while_they_run_leave_nothing),
        cmocka_unit_test(a_queue_that_is_freed_cancels_its_requests),
        cmocka_unit_test(a_request_that_has_ended_may_be_closed_after_its_queue),
        cmocka_unit_test(the_queues_descriptor_tells_of_chunks),
        cmocka_unit_test(another_thread_may_cancel),
        cmocka_unit_test(a_closed_engine_ends_its_requests_which_are_still_good),
        cmocka_unit_test(two_engines_live_side_by_side_with_the_same_answers),
        cmocka_unit_test(the_engine_leaves_signals_and_cpus_of_the_program_alone),
        cmocka_unit_test(what_a_message_spells_is_no_special_token),
        cmocka_unit_test(a_decoder_holds_back_parts_of_characters),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
