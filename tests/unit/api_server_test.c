/* SPDX-License-Identifier: Apache-2.0 */
/* The API on a fake model: shapes byte for byte, errors, guards, readiness, shutdown. */
#include "api_rig.h"

#include "base/utf8.h"

static struct api_rig rig;

static int open_group(void **state)
{
    (void)state;
    rig_options(&rig);
    rig_listen(&rig);
    rig_ready(&rig, 0, 0);
    return 0;
}

static int close_group(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

/* Replaces what changes from run to run, so that whole bodies can be compared. */
static void normalise(struct buf *b)
{
    static const struct {
        const char *before, *after;
    } spans[] = {
        {"\"id\":\"cmpl-", "\""},      {"\"id\":\"chatcmpl-", "\""},        {"\"created\":", ","},
        {"\"id\":\"modelperm-", "\""}, {"\"system_fingerprint\":\"", "\""},
    };
    struct buf out;
    buf_init(&out);
    for (const char *p = b->data, *end = b->data + b->len; p < end;) {
        size_t i = 0;
        while (i < 5 && strncmp(p, spans[i].before, strlen(spans[i].before)) != 0) {
            i++;
        }
        if (i == 5) {
            buf_putc(&out, *p++);
            continue;
        }
        buf_puts(&out, spans[i].before);
        buf_putc(&out, '*');
        p += strlen(spans[i].before);
        p = strstr(p, spans[i].after);
    }
    buf_clear(b);
    buf_append(b, out.data, out.len);
    buf_fini(&out);
}

/* What the fake says after a prompt: n greedy ids as text. */
static void expect_greedy(const int32_t *prompt, int n_prompt, int n, struct buf *text)
{
    int32_t all[64];
    memcpy(all, prompt, (size_t)n_prompt * sizeof *prompt);
    for (int i = 0; i < n; i++) {
        all[n_prompt + i] = fake_next(&rig.fake, all, n_prompt + i);
    }
    struct detok d;
    detok_init(&d, rig.tokenizer, 1);
    for (int i = 0; i < n; i++) {
        detok_push(&d, all[n_prompt + i], text);
    }
}

static void quoted(const struct buf *text, struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_stringn(&w, text->data ? text->data : "", text->len);
}

static void a_completion_has_every_declared_field_in_order(void **state)
{
    (void)state;
    static const int32_t prompt[] = {100, 200, 300};
    struct buf text, json, want;
    buf_init(&text);
    buf_init(&json);
    buf_init(&want);
    expect_greedy(prompt, 3, 4, &text);
    quoted(&text, &json);
    assert_int_equal(rig_post(&rig, "/v1/completions",
                              "{\"prompt\":[100,200,300],\"max_tokens\":4,\"temperature\":0,"
                              "\"ignore_eos\":true}"),
                     200);
    assert_non_null(strstr(rig.b.data, "content-type: application/json\r\n"));
    memmove(rig.b.data, rig_body(&rig.b), strlen(rig_body(&rig.b)) + 1);
    rig.b.len = strlen(rig.b.data);
    normalise(&rig.b);
    buf_printf(&want,
               "{\"id\":\"cmpl-*\",\"object\":\"text_completion\",\"created\":*,\"model\":\"org/"
               "poet-1\",\"choices\":[{"
               "\"index\":0,\"text\":%s,\"logprobs\":null,\"finish_reason\":\"length\",\"stop_"
               "reason\":null,"
               "\"token_ids\":null,\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"routed_"
               "experts\":null}],"
               "\"service_tier\":null,\"system_fingerprint\":\"*\",\"usage\":{\"prompt_tokens\":3,"
               "\"total_tokens\":7,"
               "\"completion_tokens\":4,\"prompt_tokens_details\":null,\"completion_tokens_"
               "details\":null},"
               "\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}",
               json.data);
    assert_string_equal(rig.b.data, want.data);
    buf_fini(&text);
    buf_fini(&json);
    buf_fini(&want);
}

static void a_chat_answer_has_every_declared_field_in_order(void **state)
{
    (void)state;
    assert_int_equal(rig_post(&rig, "/v1/chat/completions",
                              "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_"
                              "tokens\":1,\"temperature\":0,"
                              "\"allowed_token_ids\":[100],\"return_prompt_text\":true}"),
                     200);
    memmove(rig.b.data, rig_body(&rig.b), strlen(rig_body(&rig.b)) + 1);
    rig.b.len = strlen(rig.b.data);
    normalise(&rig.b);
    size_t n;
    struct buf want, piece, json;
    buf_init(&want);
    buf_init(&piece);
    buf_init(&json);
    const char *s = tokenizer_piece(rig.tokenizer, 100, &n);
    if (utf8_is_valid(s, n)) {
        buf_append(&piece, s, n);
    }
    quoted(&piece, &json);
    const char *usage = strstr(rig.b.data, "\"prompt_tokens\":");
    int prompt = usage ? atoi(usage + 16) : 0;
    buf_printf(
        &want,
        "{\"id\":\"chatcmpl-*\",\"object\":\"chat.completion\",\"created\":*,\"model\":\"org/"
        "poet-1\",\"choices\":[{"
        "\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":%s,\"refusal\":null,"
        "\"annotations\":null,"
        "\"audio\":null,\"function_call\":null,\"reasoning\":null,\"reasoning_content\":null},"
        "\"logprobs\":null,\"finish_"
        "reason\":\"length\","
        "\"stop_reason\":null,\"token_ids\":null,\"routed_experts\":null}],\"service_tier\":null,"
        "\"system_fingerprint\":\"*\",\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,"
        "\"completion_tokens\":1,"
        "\"prompt_tokens_details\":null,\"completion_tokens_details\":null},\"prompt_logprobs\":"
        "null,"
        "\"prompt_token_ids\":null,\"prompt_text\":\"<|begin_of_sentence|>User: hi\\nAssistant: \","
        "\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}",
        json.data, prompt, prompt + 1);
    assert_string_equal(rig.b.data, want.data);
    buf_fini(&want);
    buf_fini(&piece);
    buf_fini(&json);
}

static void a_chat_stream_has_its_chunks(void **state)
{
    (void)state;
    const char *body =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":2,\"temperature\":0,"
        "\"logit_bias\":{\"100\":100},\"stream\":true%s}";
    char request[512];
    snprintf(request, sizeof request, body, "");
    assert_int_equal(rig_post(&rig, "/v1/chat/completions", request), 200);
    assert_non_null(strstr(rig.b.data, "content-type: text/event-stream; charset=utf-8\r\n"));
    rig_unchunk(&rig.b);
    normalise(&rig.b);
    struct buf want, piece, json;
    size_t n;
    buf_init(&want);
    buf_init(&piece);
    buf_init(&json);
    const char *s = tokenizer_piece(rig.tokenizer, 100, &n);
    if (utf8_is_valid(s, n)) {
        buf_append(&piece, s, n);
    }
    quoted(&piece, &json);
    const char *head =
        "data: {\"id\":\"chatcmpl-*\",\"object\":\"chat.completion.chunk\",\"created\":*,\"model\":"
        "\"org/poet-1\",\"choices\":[";
    buf_printf(
        &want,
        "%s{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
        "\"finish_reason\":null}],\"prompt_token_ids\":null,\"prompt_text\":null}\n\n",
        head);
    buf_printf(&want,
               "%s{\"index\":0,\"delta\":{\"content\":%s},\"logprobs\":null,\"finish_reason\":null,"
               "\"token_ids\":null}]}\n\n",
               head, json.data);
    buf_printf(
        &want,
        "%s{\"index\":0,\"delta\":{\"content\":%s},\"logprobs\":null,\"finish_reason\":\"length\","
        "\"stop_reason\":null,\"token_ids\":null}],\"system_fingerprint\":\"*\"}\n\ndata: "
        "[DONE]\n\n",
        head, json.data);
    assert_string_equal(rig.b.data, want.data);

    snprintf(request, sizeof request, body, ",\"stream_options\":{\"include_usage\":true}");
    assert_int_equal(rig_post(&rig, "/v1/chat/completions", request), 200);
    rig_unchunk(&rig.b);
    normalise(&rig.b);
    const char *usage = strstr(
        rig.b.data, "\"choices\":[],\"system_fingerprint\":\"*\",\"usage\":{\"prompt_tokens\":");
    assert_non_null(usage);
    assert_non_null(strstr(usage, "\"completion_tokens\":2}}\n\ndata: [DONE]\n\n"));
    assert_int_equal(rig_count(&rig.b, "\"usage\""), 1);
    assert_int_equal(rig_count(&rig.b, "fingerprint"), 1);
    buf_fini(&want);
    buf_fini(&piece);
    buf_fini(&json);
}

static void completion_stream_chunks_print_all_choice_keys(void **state)
{
    (void)state;
    assert_int_equal(
        rig_post(
            &rig, "/v1/completions",
            "{\"prompt\":[7,8],\"max_tokens\":2,\"temperature\":0,\"logit_bias\":{\"100\":100},"
            "\"stream\":true,\"return_token_ids\":true,\"stream_options\":{\"include_usage\":true,"
            "\"continuous_usage_stats\":true}}"),
        200);
    rig_unchunk(&rig.b);
    assert_int_equal(rig_count(&rig.b, "data: "), 4);
    assert_non_null(
        strstr(rig.b.data,
               "\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null,"
               "\"prompt_token_ids\":[7,8],\"token_ids\":[100]}],\"usage\":{\"prompt_tokens\":2,"
               "\"total_tokens\":3,\"completion_tokens\":1}}"));
    assert_non_null(strstr(
        rig.b.data, "\"finish_reason\":\"length\",\"stop_reason\":null,\"prompt_token_ids\":null,"
                    "\"token_ids\":[100]}],\"usage\":{\"prompt_tokens\":2,\"total_tokens\":4,"
                    "\"completion_tokens\":2}}"));
}

static void models_tokenize_and_version_have_their_shapes(void **state)
{
    (void)state;
    assert_int_equal(rig_get(&rig, "/v1/models", ""), 200);
    struct json *j = rig_json(&rig);
    const struct json *card = json_at(json_get(j, "data"), 0);
    assert_int_equal(json_length(json_get(j, "data")), 2);
    assert_string_equal(rig_string(card, "id"), "org/poet-1");
    assert_string_equal(rig_string(card, "root"), "/models/p");
    assert_string_equal(rig_string(card, "owned_by"), "vllm");
    assert_int_equal(json_int(json_get(card, "max_model_len")), 512);
    assert_int_equal(json_length(json_get(card, "permission")), 1);
    json_free(j);
    assert_int_equal(rig_post(&rig, "/tokenize", "{\"prompt\":\"\",\"return_token_strs\":true}"),
                     200);
    assert_string_equal(rig_body(&rig.b),
                        "{\"count\":0,\"max_model_len\":512,\"tokens\":[],\"token_strs\":[]}");
    assert_int_equal(
        rig_post(&rig, "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"</s>\"}]}"),
        200);
    j = rig_json(&rig);
    for (size_t i = 1; i < json_length(json_get(j, "tokens")); i++) {
        assert_int_not_equal(json_int(json_at(json_get(j, "tokens"), i)),
                             tokenizer_eos_id(rig.tokenizer));
    }
    json_free(j);
    assert_int_equal(rig_post(&rig, "/detokenize", "{\"tokens\":[]}"), 200);
    assert_string_equal(rig_body(&rig.b), "{\"prompt\":\"\"}");
    assert_int_equal(rig_get(&rig, "/version", ""), 200);
    assert_string_equal(rig_body(&rig.b), "{\"version\":\"" TERN_VERSION "\"}");
    assert_int_equal(rig_get(&rig, "/load", ""), 200);
    assert_string_equal(rig_body(&rig.b), "{\"server_load\":0}");
}

static void check_error(int status, const char *type, const char *param, const char *word)
{
    struct json *j = rig_json(&rig);
    const struct json *e = json_get(j, "error");
    if (rig_status(&rig.b) != status || strcmp(rig_string(e, "type"), type) != 0) {
        print_error("%s\n", rig.b.data);
    }
    assert_int_equal(rig_status(&rig.b), status);
    assert_string_equal(rig_string(e, "type"), type);
    if (param) {
        assert_non_null(rig_string(e, "param"));
        assert_string_equal(rig_string(e, "param"), param);
    } else {
        assert_int_equal(json_type(json_get(e, "param")), JSON_NULL);
    }
    if (json_type(json_get(e, "code")) == JSON_INT) {
        assert_int_equal(json_int(json_get(e, "code")), status);
    }
    if (word && !strstr(rig_string(e, "message"), word)) {
        fail_msg("'%s' is not in: %s", word, rig_string(e, "message"));
    }
    json_free(j);
}

static void errors_have_vllms_types_and_params(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body;
        int status;
        const char *type, *param, *word;
    } cases[] = {
        {"/v1/completions", "{:", 400, "Bad Request", "body", "JSON decode error"},
        {"/v1/completions", "[]", 400, "Bad Request", "body", "dictionary"},
        {"/v1/completions", "{\"prompt\":\"\xc4\xe3\"}", 400, "Bad Request", "body", "UTF-8"},
        {"/v1/completions", "{\"prompt\":\"a\",\n\"temperature\": NaN}", 400, "Bad Request",
         "body.temperature", NULL},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":\"8\"}", 400, "Bad Request",
         "body.max_tokens",
         "1 validation error:\n  {'type': 'int_type', 'loc': ('body', 'max_tokens'), "},
        {"/v1/completions", "{\"prompt\":\"a\",\"top_k\":1.5}", 400, "Bad Request", "body.top_k",
         "int_from_float"},
        {"/v1/completions", "{\"prompt\":\"a\",\"seed\":9223372036854775808}", 400, "Bad Request",
         "body.seed", "less_than_equal"},
        {"/v1/completions", "{\"prompt\":\"a\",\"seed\":-9223372036854775809}", 400, "Bad Request",
         "body.seed", "greater_than_equal"},
        {"/v1/completions", "{\"prompt\":\"a\",\"temperature\":-1}", 400, "BadRequestError",
         "temperature", "(parameter=temperature, value=-1)"},
        {"/v1/completions", "{\"prompt\":\"a\",\"model\":\"x\"}", 404, "NotFoundError", "model",
         "The model `x` does not exist."},
        {"/v1/completions", "{\"prompt\":\"a\",\"stream_options\":{}}", 400, "Bad Request",
         "stream_options", NULL},
        {"/v1/completions", "{\"prompt\":\"a\",\"guided_regex\":\"(?=a)\"}", 400, "BadRequestError",
         "guided_regex", "look-around"},
        {"/v1/completions",
         "{\"prompt\":\"a\",\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"b\"]}}", 400,
         "BadRequestError", "structured_outputs.choice", "only use one kind"},
        {"/v1/completions", "{\"prompt\":\"a\",\"structured_outputs\":{}}", 400, "BadRequestError",
         "structured_outputs", "none are specified"},
        {"/v1/completions", "{\"prompt\":\"a\",\"best_of\":3}", 400, "BadRequestError", "best_of",
         NULL},
        {"/v1/completions", "{\"prompt\":\"a\",\"early_stopping\":true}", 400, "BadRequestError",
         "early_stopping", NULL},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":0}", 400, "BadRequestError",
         "max_tokens", NULL},
        {"/v1/completions", "{\"prompt\":\"a\",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\"]}", 400,
         "Bad Request", "body.stop", NULL},
        {"/v1/completions", "{\"prompt\":[\"a\",3]}", 400, "Bad Request", "body.prompt", NULL},
        {"/v1/completions", "{\"prompt\":[3,\"a\"]}", 400, "Bad Request", "body.prompt", NULL},
        {"/v1/completions", "{\"prompt\":[99999999]}", 400, "BadRequestError", "prompt",
         "out of vocabulary"},
        {"/v1/completions", "{\"prompt\":[]}", 400, "BadRequestError", "prompt", "non-empty"},
        {"/v1/completions", "{}", 400, "BadRequestError", "prompt", "non-empty"},
        {"/v1/chat/completions", "{\"messages\":[]}", 400, "Bad Request", "body.messages", NULL},
        {"/v1/chat/completions", "{\"messages\":[{\"content\":\"a\"}]}", 400, "Bad Request",
         "body.messages.0.role", NULL},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{"
         "\"url\":\"x\"}}]}]}",
         400, "BadRequestError", "messages.0.content", "image_url"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":2}", 400,
         "Bad Request", "top_logprobs", NULL},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,"
         "\"top_logprobs\":21}",
         400, "BadRequestError", "top_logprobs", "greater than max allowed"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[]}", 400, "Bad Request",
         "tools", NULL},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\","
         "\"function\":{\"name\":\"f\"}}]}",
         400, "BadRequestError", "tool_choice", "--enable-auto-tool-choice"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":"
         "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"$dynamicRef\":\"#x\"}}}}",
         400, "BadRequestError", "response_format", "$dynamicRef"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stream\":true,"
         "\"prompt_logprobs\":1}",
         400, "Bad Request", "prompt_logprobs", NULL},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"temperature\":0,\"n\":2}", 400,
         "BadRequestError", "n", "greedy"},
        {"/v1/embeddings", "{}", 404, "Not Found", NULL, "Not Found"},
        {"/v1/models", "{}", 405, "Method Not Allowed", NULL, "Method Not Allowed"},
        {"/tokenize", "{}", 400, "Bad Request", "body.prompt", "missing"},
        {"/detokenize", "{\"tokens\":[-1]}", 400, "BadRequestError", "tokens", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (rig_post(&rig, cases[i].path, cases[i].body) != cases[i].status) {
            print_error("case %zu: %s\n", i, cases[i].body);
        }
        check_error(cases[i].status, cases[i].type, cases[i].param, cases[i].word);
    }
    assert_int_equal(rig_get(&rig, "/v1/completions", ""), 405);
    assert_non_null(strstr(rig.b.data, "allow: POST\r\n"));
    const char *raw = "POST /v1/completions HTTP/1.1\r\nHost: t\r\nConnection: "
                      "close\r\nContent-Type: text/plain\r\n"
                      "Content-Length: 2\r\n\r\n{}";
    rig_ask(rig.port, raw, strlen(raw), &rig.b);
    check_error(400, "Bad Request", NULL, "application/json");
}

static void an_over_long_prompt_names_both_numbers_and_the_code(void **state)
{
    (void)state;
    struct buf q;
    buf_init(&q);
    for (int chat = 0; chat < 2; chat++) {
        for (int stream = 0; stream < 2; stream++) {
            buf_clear(&q);
            buf_puts(&q,
                     chat ? "{\"messages\":[{\"role\":\"user\",\"content\":\"" : "{\"prompt\":\"");
            for (int i = 0; i < 520; i++) {
                buf_puts(&q, "1 ");
            }
            buf_printf(&q, chat ? "\"}],\"stream\":%s}" : "\",\"stream\":%s}",
                       stream ? "true" : "false");
            rig_post(&rig, chat ? "/v1/chat/completions" : "/v1/completions", q.data);
            check_error(400, "BadRequestError", "input_tokens",
                        "maximum context length is 512 tokens");
            assert_non_null(strstr(rig.b.data, "\"code\":\"context_length_exceeded\""));
        }
    }
    rig_post(&rig, "/v1/completions", "{\"prompt\":[1,2,3],\"max_tokens\":510}");
    check_error(400, "BadRequestError", "input_tokens",
                "you requested 510 output tokens and your prompt contains 3 input");
    assert_int_equal(
        rig_post(&rig, "/v1/chat/completions",
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":1000000,"
                 "\"temperature\":0,\"ignore_eos\":true}"),
        200);
    struct json *j = rig_json(&rig);
    assert_int_equal(json_int(json_get(json_get(j, "usage"), "total_tokens")), 512);
    json_free(j);
    buf_fini(&q);
}

static void the_model_may_be_named_in_four_ways(void **state)
{
    (void)state;
    static const char *const names[] = {"\"org/poet-1\"", "\"poet-1\"", "\"alias\"", "\"\"",
                                        "null"};
    for (size_t i = 0; i < 5; i++) {
        char body[128];
        snprintf(body, sizeof body, "{\"model\":%s,\"prompt\":[5],\"max_tokens\":1}", names[i]);
        assert_int_equal(rig_post(&rig, "/v1/completions", body), 200);
        assert_non_null(strstr(rig.b.data, "\"model\":\"org/poet-1\""));
    }
    assert_int_equal(rig_post(&rig, "/v1/completions", "{\"model\":\"org\",\"prompt\":[5]}"), 404);
}

static void a_request_id_becomes_part_of_the_answers_id(void **state)
{
    (void)state;
    const char *body = "{\"prompt\":[5],\"max_tokens\":1}";
    assert_int_equal(
        rig_post_raw(&rig, "/v1/completions", body, strlen(body), "X-Request-Id: abc-1\r\n"), 200);
    assert_non_null(strstr(rig.b.data, "\"id\":\"cmpl-abc-1\""));
    assert_null(strstr(rig.b.data, "x-request-id"));
}

static void n_and_prompts_make_choices_in_order(void **state)
{
    (void)state;
    assert_int_equal(rig_post(&rig, "/v1/completions",
                              "{\"prompt\":[[5],[6,7]],\"n\":3,\"temperature\":1,\"seed\":1,"
                              "\"max_tokens\":3,\"ignore_eos\":true,\"return_token_ids\":true}"),
                     200);
    struct json *j = rig_json(&rig);
    const struct json *choices = json_get(j, "choices"), *usage = json_get(j, "usage");
    assert_int_equal(json_length(choices), 6);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(json_int(json_get(json_at(choices, i), "index")), i);
        assert_int_equal(json_length(json_get(json_at(choices, i), "prompt_token_ids")),
                         i < 3 ? 1 : 2);
    }
    assert_int_equal(json_int(json_get(usage, "prompt_tokens")), 3);
    assert_int_equal(json_int(json_get(usage, "completion_tokens")), 18);
    json_free(j);
}

static void echo_with_logprobs_scores_a_prompt(void **state)
{
    (void)state;
    assert_int_equal(rig_post(&rig, "/v1/completions",
                              "{\"prompt\":\"correct horse\",\"echo\":true,\"max_tokens\":0,"
                              "\"logprobs\":1,\"prompt_logprobs\":1}"),
                     200);
    struct json *j = rig_json(&rig);
    const struct json *c = json_at(json_get(j, "choices"), 0), *lp = json_get(c, "logprobs");
    assert_string_equal(rig_string(c, "text"), "correct horse");
    assert_string_equal(rig_string(c, "finish_reason"), "length");
    size_t n = json_length(json_get(lp, "tokens"));
    int64_t prompt = json_int(json_get(json_get(j, "usage"), "prompt_tokens"));
    assert_int_equal(n, prompt);
    assert_int_equal(json_length(json_get(lp, "top_logprobs")), n);
    assert_int_equal(json_length(json_get(c, "prompt_logprobs")), n);
    assert_int_equal(json_type(json_at(json_get(lp, "token_logprobs"), 0)), JSON_NULL);
    assert_int_equal(json_type(json_at(json_get(c, "prompt_logprobs"), 0)), JSON_NULL);
    int64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *token = json_string(json_at(json_get(lp, "tokens"), i), &len);
        assert_int_equal(json_int(json_at(json_get(lp, "text_offset"), i)), at);
        at += (int64_t)utf8_count(token, len);
        if (i > 0) {
            const struct json *top = json_at(json_get(lp, "top_logprobs"), i);
            assert_true(json_length(top) >= 1 && json_length(top) <= 2);
            assert_true(json_double(json_get(top, token)) <= 0);
            assert_true(json_double(json_get(top, token)) ==
                        json_double(json_at(json_get(lp, "token_logprobs"), i)));
        }
    }
    assert_int_equal(at, 13);
    json_free(j);
}

static void chat_logprobs_have_the_sampled_token_first_and_k_entries(void **state)
{
    (void)state;
    assert_int_equal(
        rig_post(&rig, "/v1/chat/completions",
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":8,"
                 "\"temperature\":2,"
                 "\"seed\":5,\"logprobs\":true,\"top_logprobs\":3,\"ignore_eos\":true}"),
        200);
    struct json *j = rig_json(&rig);
    const struct json *list =
        json_get(json_get(json_at(json_get(j, "choices"), 0), "logprobs"), "content");
    assert_int_equal(json_length(list), 8);
    for (size_t i = 0; i < 8; i++) {
        const struct json *entry = json_at(list, i), *top = json_get(entry, "top_logprobs");
        assert_int_equal(json_length(top), 3);
        assert_string_equal(rig_string(json_at(top, 0), "token"), rig_string(entry, "token"));
        assert_true(json_length(json_get(entry, "bytes")) > 0);
        assert_true(json_double(json_get(json_at(top, 1), "logprob")) >=
                    json_double(json_get(json_at(top, 2), "logprob")));
    }
    json_free(j);
}

static void forbidden_tokens_have_logprob_minus_9999_never_infinity(void **state)
{
    (void)state;
    assert_int_equal(rig_post(&rig, "/v1/completions",
                              "{\"prompt\":[5],\"max_tokens\":2,\"temperature\":0,\"logprobs\":3,"
                              "\"allowed_token_ids\":[100],\"ignore_eos\":true}"),
                     200);
    struct json *j = rig_json(&rig); /* strict: no Infinity */
    json_free(j);
}

static void a_stop_string_ends_the_text_and_counts_as_stop(void **state)
{
    (void)state;
    struct buf text, q;
    static const int32_t prompt[] = {40, 41};
    buf_init(&text);
    buf_init(&q);
    expect_greedy(prompt, 2, 12, &text);
    const char *mid = text.data;
    for (int i = 0; i < 4 && *mid; i++) { /* the 5th character of the text */
        uint32_t cp;
        mid += utf8_decode(mid, strlen(mid), &cp);
    }
    uint32_t cp;
    int n = utf8_decode(mid, strlen(mid), &cp);
    struct buf stop, json;
    buf_init(&stop);
    buf_init(&json);
    buf_append(&stop, mid, (size_t)n);
    quoted(&stop, &json);
    double aborted = rig_metric(
        &rig, "vllm:request_success_total{model_name=\"org/poet-1\",engine=\"0\",finished_reason="
              "\"abort\"}");
    for (int stream = 0; stream < 2; stream++) {
        buf_clear(&q);
        buf_printf(&q,
                   "{\"prompt\":[40,41],\"max_tokens\":40,\"temperature\":0,\"ignore_eos\":true,"
                   "\"stop\":%s,\"stream\":%s}",
                   json.data, stream ? "true" : "false");
        assert_int_equal(rig_post(&rig, "/v1/completions", q.data), 200);
        if (stream) {
            rig_unchunk(&rig.b);
        }
        char want[128];
        snprintf(want, sizeof want, "\"finish_reason\":\"stop\",\"stop_reason\":%s", json.data);
        assert_non_null(strstr(rig.b.data, want));
    }
    assert_true(rig_metric(&rig, "vllm:request_success_total{model_name=\"org/"
                                 "poet-1\",engine=\"0\",finished_reason=\"abort\"}") == aborted);
    buf_fini(&text);
    buf_fini(&q);
    buf_fini(&stop);
    buf_fini(&json);
}

static void metrics_agree_with_the_requests(void **state)
{
    (void)state;
    double p = rig_metric(&rig, "vllm:prompt_tokens_total" RIG_LABELS),
           g = rig_metric(&rig, "vllm:generation_tokens_total" RIG_LABELS);
    double ok = rig_metric(
        &rig, "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"}");
    assert_int_equal(rig_post(&rig, "/v1/completions",
                              "{\"prompt\":[5,6,7],\"max_tokens\":9,\"ignore_eos\":true}"),
                     200);
    assert_true(rig_metric(&rig, "vllm:prompt_tokens_total" RIG_LABELS) == p + 3);
    assert_true(rig_metric(&rig, "vllm:generation_tokens_total" RIG_LABELS) == g + 9);
    assert_true(
        rig_metric(
            &rig,
            "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"}") ==
        ok + 1);
    assert_true(rig_metric(&rig, "vllm:num_requests_running" RIG_LABELS) == 0);
    assert_true(rig_metric(&rig, "process_resident_memory_bytes") > 1e6);
    assert_non_null(
        strstr(rig.b.data, "content-type: text/plain; version=0.0.4; charset=utf-8\r\n"));
}

static void unknown_fields_and_nulls_are_accepted(void **state)
{
    (void)state;
    assert_int_equal(
        rig_post(&rig, "/v1/chat/completions",
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\",\"name\":\"bob\",\"opts\":{}"
                 "}],\"foo\":1,"
                 "\"user\":\"u\",\"metadata\":{},\"stop\":null,\"seed\":null,\"tools\":null,"
                 "\"logit_bias\":null,"
                 "\"stream_options\":null,\"max_completion_tokens\":3,\"max_tokens\":9,\"n\":null,"
                 "\"response_format\":{\"type\":\"text\"},\"ignore_eos\":true,\"enable_thinking\":"
                 "false}"),
        200);
    assert_non_null(strstr(rig.b.data, "\"completion_tokens\":3,"));
}

static void cors_is_permissive_by_default(void **state)
{
    (void)state;
    const char *raw = "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: t\r\nOrigin: "
                      "http://a.b\r\nConnection: close\r\n"
                      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "
                      "authorization, x-y\r\n\r\n";
    assert_int_equal(rig_ask(rig.port, raw, strlen(raw), &rig.b), 200);
    assert_non_null(strstr(rig.b.data, "access-control-allow-origin: *\r\n"));
    assert_non_null(strstr(rig.b.data, "access-control-allow-headers: authorization, x-y\r\n"));
    assert_int_equal(rig_get(&rig, "/v1/models", "Origin: http://a.b\r\n"), 200);
    assert_int_equal(rig_count(&rig.b, "access-control-allow-origin: *"), 1);
    assert_int_equal(rig_get(&rig, "/v1/models", ""), 200);
    assert_int_equal(rig_count(&rig.b, "access-control"), 0);
}

static void a_long_request_goes_through_the_worker_and_a_short_one_passes_it(void **state)
{
    (void)state;
    struct buf q;
    buf_init(&q);
    buf_puts(&q, "{\"prompt\":\"");
    for (int i = 0; i < 400000; i++) {
        buf_puts(&q, "ab ");
    }
    buf_puts(&q, "\"}");
    int fd = rig_connect(rig.port);
    char head[256];
    snprintf(head, sizeof head,
             "POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Type: "
             "application/json\r\nContent-Length: %zu"
             "\r\nConnection: close\r\n\r\n",
             q.len);
    rig_puts(fd, head);
    rig_send(fd, q.data, q.len);
    assert_int_equal(rig_get(&rig, "/health", ""), 200);
    struct buf b;
    buf_init(&b);
    assert_true(rig_read(fd, &b, NULL, 20000));
    assert_int_equal(rig_status(&b), 200);
    close(fd);
    buf_fini(&b);
    buf_fini(&q);
}

/* ---- servers of their own ---- */

static void before_the_model_is_there_health_is_503_and_work_is_refused(void **state)
{
    (void)state;
    struct api_rig r;
    rig_options(&r);
    rig_listen(&r);
    assert_int_equal(rig_get(&r, "/health", ""), 503);
    assert_string_equal(rig_body(&r.b), "");
    assert_int_equal(rig_get(&r, "/version", ""), 200);
    assert_int_equal(rig_get(&r, "/metrics", ""), 200);
    assert_int_equal(rig_get(&r, "/v1/models", ""), 503);
    assert_int_equal(rig_post(&r, "/v1/completions", "{\"prompt\":\"a\"}"), 503);
    assert_non_null(strstr(r.b.data, "retry-after: 1\r\n"));
    rig_ready(&r, 0, 0);
    assert_int_equal(rig_get(&r, "/health", ""), 200);
    assert_int_equal(rig_post(&r, "/v1/completions", "{\"prompt\":\"a\"}"), 200);
    rig_close(&r);
}

static void an_api_key_guards_all_but_health_and_preflight(void **state)
{
    (void)state;
    struct api_rig r;
    static const char *const keys[] = {"one", "two"};
    rig_options(&r);
    r.so.api_keys = keys;
    r.so.n_api_keys = 2;
    r.so.enable_request_id_headers = 1;
    rig_listen(&r);
    rig_ready(&r, 0, 0);
    static const char *const guarded[] = {"/v1/models", "/metrics", "/version", "/load",
                                          "/nowhere"};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(rig_get(&r, guarded[i], ""), 401);
        assert_string_equal(rig_body(&r.b), "{\"error\":\"Unauthorized\"}");
        assert_int_equal(rig_get(&r, guarded[i], "Authorization: Bearer three\r\n"), 401);
        assert_int_equal(rig_get(&r, guarded[i], "Authorization: one\r\n"), 401);
        assert_int_equal(rig_get(&r, guarded[i], "Authorization: Bearer two\r\n"),
                         i == 4 ? 404 : 200);
    }
    assert_int_equal(rig_get(&r, "/health", ""), 200);
    assert_non_null(strstr(r.b.data, "x-request-id: "));
    assert_int_equal(rig_get(&r, "/ping", "X-Request-Id: mine\r\n"), 200);
    assert_non_null(strstr(r.b.data, "x-request-id: mine\r\n"));
    const char *raw =
        "OPTIONS /v1/models HTTP/1.1\r\nHost: t\r\nOrigin: http://a\r\nConnection: close\r\n"
        "Access-Control-Request-Method: GET\r\n\r\n";
    assert_int_equal(rig_ask(r.port, raw, strlen(raw), &r.b), 200);
    rig_close(&r);
}

static void a_root_path_is_cut_and_a_full_queue_is_503(void **state)
{
    (void)state;
    struct api_rig r;
    rig_options(&r);
    r.so.root_path = "/llm/";
    r.so.max_num_queued_reqs = 2;
    rig_listen(&r);
    rig_ready(&r, 0, 0);
    assert_int_equal(rig_get(&r, "/llm/v1/models", ""), 200);
    assert_int_equal(rig_get(&r, "/v1/models", ""), 200);
    assert_int_equal(rig_post(&r, "/v1/completions", "{\"prompt\":[5],\"max_tokens\":1,\"n\":2}"),
                     200);
    assert_int_equal(rig_post(&r, "/v1/completions", "{\"prompt\":[5],\"max_tokens\":1,\"n\":3}"),
                     503);
    assert_non_null(strstr(r.b.data, "queue is full"));
    rig_close(&r);
}

static void generation_defaults_fill_what_the_client_leaves_null(void **state)
{
    (void)state;
    struct api_rig r;
    rig_options(&r);
    r.so.generation = (struct sampling_defaults){
        .has_temperature = 1, .temperature = 0, .has_max_new_tokens = 1, .max_new_tokens = 5};
    r.so.enable_prompt_tokens_details = 1;
    rig_listen(&r);
    rig_ready(&r, 0, 0);
    assert_int_equal(
        rig_post(&r, "/v1/completions", "{\"prompt\":[5],\"temperature\":null,\"n\":2}"),
        400); /* greedy */
    assert_int_equal(rig_post(&r, "/v1/chat/completions",
                              "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                              "\"ignore_eos\":true}"),
                     200);
    assert_non_null(
        strstr(r.b.data, "\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":0"));
    rig_close(&r);
}

static void an_engine_error_is_500_or_an_error_event(void **state)
{
    (void)state;
    struct api_rig r;
    rig_options(&r);
    rig_listen(&r);
    rig_ready(&r, 0, 0);
    atomic_store(&r.fake.fail_at, 1);
    assert_int_equal(rig_post(&r, "/v1/completions", "{\"prompt\":[5],\"max_tokens\":4}"), 500);
    assert_non_null(strstr(r.b.data, "\"type\":\"InternalServerError\""));
    atomic_store(&r.fake.fail_at, 3);
    assert_int_equal(
        rig_post(&r, "/v1/completions",
                 "{\"prompt\":[6],\"max_tokens\":8,\"stream\":true,\"ignore_eos\":true}"),
        200);
    rig_unchunk(&r.b);
    assert_non_null(strstr(r.b.data, "data: {\"error\":{\"message\":\"Internal server error\""));
    assert_non_null(strstr(r.b.data, "}}\n\ndata: [DONE]\n\n"));
    assert_int_equal(rig_post(&r, "/v1/completions", "{\"prompt\":[5],\"max_tokens\":4}"), 200);
    rig_close(&r);
}

static void shutdown_drains_or_aborts(void **state)
{
    (void)state;
    for (int timeout = 0; timeout < 2; timeout++) {
        struct api_rig r;
        rig_options(&r);
        r.so.shutdown_timeout_s = timeout * 20;
        rig_listen(&r);
        rig_ready(&r, 0, 2000);
        int fd = rig_connect(r.port);
        const char *body =
            "{\"prompt\":[5],\"max_tokens\":400,\"ignore_eos\":true,\"stream\":true}";
        char head[256];
        snprintf(head, sizeof head,
                 "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n",
                 strlen(body));
        rig_puts(fd, head);
        rig_puts(fd, body);
        assert_true(rig_read(fd, &r.b, "\"choices\"", 5000));
        uint64_t t = clock_now_ns();
        server_stop(r.server);
        assert_int_equal(server_wait(r.server), 0);
        assert_true(rig_read(fd, &r.b, "[DONE]", 5000));
        assert_non_null(strstr(r.b.data, timeout ? "\"finish_reason\":\"length\""
                                                 : "\"finish_reason\":\"abort\""));
        assert_true(timeout || clock_now_ns() - t < 1000000000u);
        close(fd);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_completion_has_every_declared_field_in_order),
        cmocka_unit_test(a_chat_answer_has_every_declared_field_in_order),
        cmocka_unit_test(a_chat_stream_has_its_chunks),
        cmocka_unit_test(completion_stream_chunks_print_all_choice_keys),
        cmocka_unit_test(models_tokenize_and_version_have_their_shapes),
        cmocka_unit_test(errors_have_vllms_types_and_params),
        cmocka_unit_test(an_over_long_prompt_names_both_numbers_and_the_code),
        cmocka_unit_test(the_model_may_be_named_in_four_ways),
        cmocka_unit_test(a_request_id_becomes_part_of_the_answers_id),
        cmocka_unit_test(n_and_prompts_make_choices_in_order),
        cmocka_unit_test(echo_with_logprobs_scores_a_prompt),
        cmocka_unit_test(chat_logprobs_have_the_sampled_token_first_and_k_entries),
        cmocka_unit_test(forbidden_tokens_have_logprob_minus_9999_never_infinity),
        cmocka_unit_test(a_stop_string_ends_the_text_and_counts_as_stop),
        cmocka_unit_test(metrics_agree_with_the_requests),
        cmocka_unit_test(unknown_fields_and_nulls_are_accepted),
        cmocka_unit_test(cors_is_permissive_by_default),
        cmocka_unit_test(a_long_request_goes_through_the_worker_and_a_short_one_passes_it),
        cmocka_unit_test(before_the_model_is_there_health_is_503_and_work_is_refused),
        cmocka_unit_test(an_api_key_guards_all_but_health_and_preflight),
        cmocka_unit_test(a_root_path_is_cut_and_a_full_queue_is_503),
        cmocka_unit_test(generation_defaults_fill_what_the_client_leaves_null),
        cmocka_unit_test(an_engine_error_is_500_or_an_error_event),
        cmocka_unit_test(shutdown_drains_or_aborts),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
