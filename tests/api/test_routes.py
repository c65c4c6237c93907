# SPDX-License-Identifier: Apache-2.0
"""The smaller routes: render, tokens in and out, the early /generate, the tokenizer's configuration, and those that
VLLM_SERVER_DEV_MODE turns on."""
import json
import threading

import pytest
import ternlib

DEV = ["/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/sleep", "/wake_up"]


@pytest.fixture(scope="module")
def dev():
    with ternlib.Server(args=["--enable-tokenizer-info-endpoint", "--enable-prompt-tokens-details"],
                        env={"VLLM_SERVER_DEV_MODE": "1", "VLLM_API_KEY_FILE": "secret"}) as s:
        yield s


def generate(server, request):
    r = server.post("/inference/v1/generate", request)
    assert r.status == 200, r
    return r.json


# ---- render, and tokens in and out -----------------------------------------------------------------------------------

@pytest.mark.parametrize("extra", [
    {"temperature": 0, "max_tokens": 12},
    {"temperature": 1, "seed": 5, "top_p": 0.9, "n": 3, "max_tokens": 12},
    {"temperature": 0, "stop": ["，"], "include_stop_str_in_output": True},
    {"temperature": 0, "max_tokens": 30, "response_format": {"type": "json_object"}},
    {"temperature": 0, "guided_choice": ["yes", "no"]},
    {"temperature": 0, "max_tokens": 8, "logit_bias": {"1349": -100}, "bad_words": ["我"], "min_tokens": 8},
])
def test_a_rendered_chat_request_gives_the_same_tokens(server, extra):
    request = {"messages": [{"role": "user", "content": "你好"}], **extra}
    r = server.post("/v1/chat/completions/render", request)
    assert r.status == 200, r
    got = generate(server, r.json)
    want = server.post("/v1/chat/completions", {**request, "return_token_ids": True}).json
    assert r.json["token_ids"] == want["prompt_token_ids"]
    assert [c["token_ids"] for c in got["choices"]] == [c["token_ids"] for c in want["choices"]]
    assert [c["finish_reason"] for c in got["choices"]] == [c["finish_reason"] for c in want["choices"]]
    assert got["usage"]["completion_tokens"] == want["usage"]["completion_tokens"]


def test_rendering_completions_gives_one_request_a_prompt(server):
    r = server.post("/v1/completions/render", {"prompt": ["hi", [5, 6, 7]], "max_tokens": 3, "temperature": 0})
    assert r.status == 200
    assert [q["token_ids"] for q in r.json] == [server.tokenize("hi"), [5, 6, 7]]
    assert all(q["sampling_params"]["max_tokens"] == 3 and q["features"] is None for q in r.json)
    want = server.completion([5, 6, 7], max_tokens=3, temperature=0, return_token_ids=True)["choices"][0]["token_ids"]
    assert generate(server, r.json[1])["choices"][0]["token_ids"] == want


def test_rendering_runs_nothing_and_fails_as_the_route_does(server):
    before = server.metric("vllm:prompt_tokens_total")
    assert server.post("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "x"}]}).status == 200
    assert server.metric("vllm:prompt_tokens_total") == before
    r = server.post("/v1/chat/completions/render", {"messages": []})
    assert r.status == 400 and r.json["error"]["param"] == "body.messages"
    r = server.post("/v1/completions/render", {"prompt": "x", "temperature": 3})
    assert r.status == 400 and "temperature" in r.json["error"]["message"]


def test_tokens_out_stream_as_they_come_plain(server):
    q = {"token_ids": server.tokenize("床前明月光"), "sampling_params": {"temperature": 0, "max_tokens": 9}}
    want = generate(server, q)
    s = server.stream("/inference/v1/generate", {**q, "stream_options": {"include_usage": True}})
    assert s.done
    ids = [t for c in s.choices() for t in c["token_ids"]]
    assert ids == want["choices"][0]["token_ids"] and len(ids) == 9
    assert s.finish() == "length"
    assert s.usage() == {k: v for k, v in want["usage"].items() if v is not None} | {
        "prompt_tokens_details": s.usage().get("prompt_tokens_details")}


def test_left_out_parameters_are_neutral_and_the_output_fills_the_context(server):
    prompt = [5, 6, 7] * 650
    q = {"token_ids": prompt, "sampling_params": {"seed": 1, "ignore_eos": True}}
    got = generate(server, q)["choices"][0]
    assert len(got["token_ids"]) == 2048 - len(prompt) and got["finish_reason"] == "length"
    want = server.completion(prompt, seed=1, ignore_eos=True, max_tokens=40, temperature=1, top_p=1, top_k=0,
                             repetition_penalty=1, return_token_ids=True)["choices"][0]["token_ids"]
    assert got["token_ids"][:40] == want


def test_log_probabilities_name_tokens_by_id(server):
    q = {"token_ids": [5, 6, 7], "sampling_params": {"temperature": 0, "max_tokens": 2, "logprobs": 2}}
    got = generate(server, q)["choices"][0]
    assert [e["token"] for e in got["logprobs"]["content"]] == [f"token_id:{t}" for t in got["token_ids"]]
    assert all(len(e["top_logprobs"]) == 2 for e in got["logprobs"]["content"])


@pytest.mark.parametrize("request_, name", [
    ({"sampling_params": {}}, "token_ids"),
    ({"token_ids": [], "sampling_params": {}}, "token_ids"),
    ({"token_ids": [[1], [2]], "sampling_params": {}}, "token_ids"),
    ({"token_ids": [1]}, "sampling_params"),
    ({"token_ids": [1], "sampling_params": {"temprature": 1}}, "temprature"),
    ({"token_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
    ({"token_ids": [1], "sampling_params": {}, "features": {"mm_hashes": {}}}, "features"),
    ({"token_ids": [1], "sampling_params": {}, "kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
    ({"token_ids": [10**8], "sampling_params": {}}, "out of vocabulary"),
])
def test_what_is_wrong_with_a_token_request_is_named(server, request_, name):
    r = server.post("/inference/v1/generate", request_)
    assert r.status == 400, r
    assert name in r.json["error"]["message"] + str(r.json["error"]["param"])


# ---- /generate of the early demonstration server ---------------------------------------------------------------------

def test_the_early_generate_repeats_the_prompt_and_needs_no_content_type(server):
    r = server.request("POST", "/generate", json.dumps({"prompt": "The sky", "max_tokens": 6, "temperature": 0}))
    assert r.status == 200
    want = server.completion("The sky", max_tokens=6, temperature=0)["choices"][0]["text"]
    assert r.json == {"text": ["The sky" + want]}


def test_the_early_generate_streams_all_the_text_so_far_in_lines(server):
    q = {"prompt": "The sky", "max_tokens": 6, "temperature": 1, "seed": 3, "n": 2}
    want = server.post("/generate", q).json["text"]
    r = server.post("/generate", {**q, "stream": True})
    lines = [ternlib.strict_json(x) for x in r.body.split(b"\n")[:-1]]
    assert lines[-1]["text"] == want
    for i in range(2):
        texts = [x["text"][i] for x in lines]
        assert all(b.startswith(a) for a, b in zip(texts, texts[1:]))
        assert texts[0].startswith("The sky")


def test_the_early_generate_searches_beams_as_its_example_client_asked(server):
    q = {"prompt": "The sky", "n": 4, "use_beam_search": True, "temperature": 0, "max_tokens": 8}
    want = ["The sky" + c["text"] for c in server.completion(**q)["choices"]]
    assert server.post("/generate", q).json == {"text": want}
    r = server.post("/generate", {**q, "stream": True})
    assert [ternlib.strict_json(x) for x in r.body.split(b"\n")[:-1]] == [{"text": want}]


def test_the_early_generate_takes_the_members_of_sampling_params_only(server):
    r = server.post("/generate", {"prompt": "x", "messages": []})
    assert r.status == 400 and r.json["error"]["param"] == "body.messages"
    assert server.post("/generate", {"max_tokens": 2}).status == 400
    assert server.post("/generate", {"prompt": "x", "max_tokens": 0}).status == 400
    got = server.post("/generate", {"prompt": "x", "ignore_eos": True, "temperature": 0}).json
    assert got["text"][0] == "x" + server.completion("x", ignore_eos=True, temperature=0)["choices"][0]["text"]


# ---- routes that exist when asked for --------------------------------------------------------------------------------

def test_without_being_asked_for_they_are_not_there(server):
    for path in DEV:
        assert server.post(path, {}).status == 404, path
    for path in ("/is_sleeping", "/server_info", "/tokenizer_info"):
        assert server.get(path).status == 404, path


def test_the_log_warns_of_them(dev):
    text = dev.output()
    assert "SECURITY WARNING: development routes are enabled" in text
    assert "Route: /reset_prefix_cache, Methods: POST" in text


def test_resetting_the_prefix_cache_forgets_it(dev):
    def cached():
        return dev.chat("reset me please " * 8, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"]
    cached()
    assert cached() > 0
    r = dev.post("/reset_prefix_cache", {})
    assert r.status == 200 and r.json == {"success": True}
    assert cached() == 0


def test_a_reset_fails_while_requests_run_unless_it_may_preempt_them(dev):
    q = {"prompt": [5, 6, 7] * 20, "max_tokens": 700, "ignore_eos": True, "temperature": 0}
    want = dev.completion(**q)["choices"][0]["text"]
    got = {}
    t = threading.Thread(target=lambda: got.update(dev.completion(**q)))
    t.start()
    try:
        dev.wait_running()
        assert dev.post("/reset_prefix_cache", {}).json == {"success": False}
        before = dev.metric("vllm:num_preemptions_total")
        r = dev.post("/reset_prefix_cache?reset_running_requests=true", {})
        assert r.json == {"success": True}
    finally:
        t.join()
    assert dev.metric("vllm:num_preemptions_total") == before + 1
    assert got["choices"][0]["text"] == want, "a preempted request gives the same text"


def test_there_is_no_external_cache_to_reset(dev):
    assert dev.post("/reset_prefix_cache?reset_external=true", {}).json == {"success": False}
    assert dev.post("/reset_prefix_cache?reset_external=maybe", {}).status == 400
    assert dev.post("/reset_mm_cache", {}).status == dev.post("/reset_encoder_cache", {}).status == 200


def test_sleeping_means_nothing_on_cpus(dev):
    assert dev.post("/sleep?level=1&mode=abort", {}).status == 200
    assert dev.get("/is_sleeping").json == {"is_sleeping": False}
    assert dev.metric("vllm:engine_sleep_state", sleep_state="awake") == 1
    assert dev.post("/wake_up?tags=weights", {}).status == 200
    assert dev.post("/sleep?level=many", {}).status == 400
    assert "not supported on CPU" in dev.output()
    dev.alive()


def test_server_info_tells_the_configuration_but_no_keys(dev):
    text = dev.get("/server_info").json
    assert "max_model_len=2048" in text["vllm_config"]
    info = dev.get("/server_info?config_format=json").json
    assert info["vllm_config"]["max_model_len"] == 2048 and info["vllm_config"]["device"] == "cpu"
    assert info["vllm_env"] == {"VLLM_SERVER_DEV_MODE": "1"}
    assert dev.get("/server_info?config_format=xml").status == 400


def test_tokenizer_info_is_the_tokenizers_configuration(dev):
    info = dev.get("/tokenizer_info").json
    assert info["eos_token"] == "</s>" and info["tokenizer_class"]
    assert "Assistant: " in info["chat_template"]


# ---- batches of chats ------------------------------------------------------------------------------------------------

def batch(server, conversations, **kw):
    return server.post("/v1/chat/completions/batch", {"messages": conversations, **kw})


def conversation(text):
    return [{"role": "user", "content": text}]


def test_a_batch_answers_each_conversation_as_a_chat_alone(server):
    texts = ["写一首诗", "Tell me a tale.", "hi"]
    q = {"temperature": 0, "max_tokens": 12, "logprobs": True, "return_token_ids": True}
    r = batch(server, [conversation(t) for t in texts], **q)
    assert r.status == 200, r
    want = [server.chat(t, **q) for t in texts]
    assert [c["index"] for c in r.json["choices"]] == [0, 1, 2]
    for got, alone in zip(r.json["choices"], want):
        assert {**got, "index": 0} == alone["choices"][0]
    usage = r.json["usage"]
    assert usage["prompt_tokens"] == sum(w["usage"]["prompt_tokens"] for w in want)
    assert usage["completion_tokens"] == 36 and usage["total_tokens"] == 36 + usage["prompt_tokens"]
    assert r.json["object"] == "chat.completion" and r.json["id"].startswith("chatcmpl-")
    assert set(r.json) == set(want[0])


def test_a_batch_counts_choices_through_conversations_and_samples(server):
    r = batch(server, [conversation(f"n {i}") for i in range(20)], n=2, temperature=1, seed=1, max_tokens=3)
    assert [c["index"] for c in r.json["choices"]] == list(range(40))
    r = server.post("/v1/chat/completions/batch", {"messages": [conversation("a")], "max_tokens": 1},
                    headers={"X-Request-Id": "mine"})
    assert r.json["id"] == "chatcmpl-mine"


@pytest.mark.parametrize("body, name", [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": "x"}]}, "messages.0"),
    ({"messages": "x"}, "messages"),
    ({}, "messages"),
    ({"messages": [conversation("x")], "stream": True}, "stream"),
    ({"messages": [conversation("x")], "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"messages": [conversation("x")], "use_beam_search": True}, "use_beam_search"),
    ({"messages": [conversation("x")], "temperature": -1}, "temperature"),
    ({"messages": [conversation("x"), []]}, "messages"),
    ({"messages": [conversation("x")] * 9 + [conversation("word " * 5000)], "max_tokens": 500}, "2048"),
    ({"messages": [conversation("x")] * 1000, "n": 100}, "choices"),
    ({"messages": [conversation("x")] * 1025}, "1024"),
])
def test_a_fault_of_one_conversation_is_that_of_the_batch(server, body, name):
    r = server.post("/v1/chat/completions/batch", body)
    assert r.status == 400, r
    assert name in r.json["error"]["message"] + str(r.json["error"]["param"])
    server.wait_idle(10)


def test_a_client_that_leaves_stops_all_conversations(server):
    import socket
    q = {"messages": [conversation(f"n {i}") for i in range(10)], "max_tokens": 1500, "ignore_eos": True}
    with server.raw() as s:
        s.sendall(ternlib.http_bytes("/v1/chat/completions/batch", q))
        server.wait_running(5)
        s.shutdown(socket.SHUT_RDWR)
    server.wait_idle(5)
    server.alive()


def test_a_stream_and_beams_can_be_rendered_only_if_they_can_be_run(server):
    q = {"messages": conversation("hi"), "stream": True, "stream_options": {"include_usage": True}}
    r = server.post("/v1/chat/completions/render", q)
    assert r.status == 200 and r.json["stream"] is True and r.json["stream_options"] == {"include_usage": True}
    r = server.post("/v1/completions/render", {"prompt": "x", "use_beam_search": True, "n": 2})
    assert r.status == 400 and "eam" in r.json["error"]["message"]


# ---- the description of all this -------------------------------------------------------------------------------------

def test_openapi_lists_the_routes_of_the_log_and_what_their_parsers_take(server):
    doc = server.get("/openapi.json").json
    assert doc["openapi"].startswith("3.1") and doc["info"]["title"] == "tern"
    listed = {path: {m.upper() for m in ops} for path, ops in doc["paths"].items()}
    logged = {}
    for line in server.output().splitlines():
        if "] Route: " in line:
            path, methods = line.split("] Route: ")[1].split(", Methods: ")
            logged[path] = set(methods.split(", "))
    pages = {path for path in logged if path in ("/", "/dashboard") or path.startswith("/assets/")}  # for people
    assert listed == {path: m for path, m in logged.items() if path not in pages}

    def types(path, field):
        body = doc["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        return set(body["schema"]["properties"][field].get("type", ["any"]))
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert types(path, "temperature") == {"number", "null"}
        assert types(path, "max_tokens") == {"integer", "null"}
        assert types(path, "stream") == {"boolean", "null"}
        assert types(path, "stop") == {"string", "array", "null"}
        assert types(path, "response_format") == {"object", "null"}
    assert types("/v1/completions", "prompt") >= {"string", "array"}
    assert types("/v1/chat/completions", "messages") >= {"array"}
    assert types("/inference/v1/generate", "sampling_params") == {"object", "null"}
    assert "messages" not in doc["paths"]["/generate"]["post"]["requestBody"]["content"]["application/json"][
        "schema"]["properties"]
    assert server.get("/openapi.json").json == doc
    server.alive()


def test_what_openapi_says_of_types_is_what_the_server_does(server):
    values = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
    base = {"/v1/completions": {"prompt": "a", "max_tokens": 1}, "/v1/chat/completions": {
        "messages": conversation("a"), "max_tokens": 1}}
    doc = server.get("/openapi.json").json
    for path, request in base.items():
        schema = doc["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for field, described in schema["properties"].items():
            allowed = described.get("type")
            for kind, value in values.items():
                if allowed is None or kind in allowed or (kind == "integer" and "number" in allowed):
                    continue
                r = server.post(path, {**request, field: value})
                assert r.status == 400 and r.json["error"]["param"] == f"body.{field}", (path, field, kind, r)


def test_openapi_is_gone_when_told_so():
    with ternlib.Server(args=["--disable-fastapi-docs"]) as s:
        assert s.get("/openapi.json").status == 404
        assert "Route: /openapi.json" not in s.output()
