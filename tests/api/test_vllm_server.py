# SPDX-License-Identifier: Apache-2.0
"""What vLLM's tests of the server around the two routes check: keys, request ids, load, status labels, several names; and
that no request, however odd, is answered with a 5xx (its place of a generator over an OpenAPI document)."""
import json
import random
import threading
import time

import pytest
import ternlib
from ternlib import Server, metric

PATHS = ["/v1/completions", "/v1/chat/completions"]
HI = [{"role": "user", "content": "hi"}]


def body_for(path, **kw):
    return {**({"prompt": "hi"} if path == "/v1/completions" else {"messages": HI}), "max_tokens": 2, **kw}


@pytest.fixture(scope="module")
def guarded():
    """Two keys, two names, request ids, load counted."""
    with Server(args=["--api-key", "k1", "k2", "--served-model-name", "ernie", "文心", "--enable-request-id-headers",
                      "--enable-server-load-tracking"]) as s:
        yield s


def auth(key="k1"):
    return {"Authorization": "Bearer " + key}


# ---- keys ----

@pytest.mark.parametrize("path", PATHS)
def test_no_key_and_a_wrong_key_are_401_and_each_right_one_is_200(guarded, path):
    for headers in ({}, auth("k3"), auth(""), {"Authorization": "k1"}, {"Authorization": "Basic k1"}, auth("K1")):
        r = guarded.post(path, body_for(path), headers)
        assert r.status == 401 and r.json == {"error": "Unauthorized"}, (headers, r)
    for key in ("k1", "k2"):
        assert guarded.post(path, body_for(path), auth(key)).status == 200
    assert guarded.get("/health").status == 200
    assert guarded.get("/v1/models").status == 401
    assert guarded.get("/v1/models", headers=auth()).status == 200


# ---- names ----

@pytest.mark.parametrize("path", PATHS)
def test_every_served_name_is_accepted_and_the_first_is_echoed(guarded, path):
    for name in ("ernie", "文心", None, ""):
        r = guarded.post(path, body_for(path, model=name), auth())
        assert r.status == 200 and r.json["model"] == "ernie"
    r = guarded.post(path, body_for(path, model="gpt-4"), auth())
    assert r.status == 404 and r.json["error"]["type"] == "NotFoundError" and "gpt-4" in r.json["error"]["message"]
    cards = guarded.get("/v1/models", headers=auth()).json["data"]
    assert [c["id"] for c in cards] == ["ernie", "文心"] and len({c["root"] for c in cards}) == 1


# ---- request ids ----

@pytest.mark.parametrize("path", PATHS)
def test_request_ids_are_echoed_or_made_and_name_the_answer(guarded, path):
    r = guarded.post(path, body_for(path), {**auth(), "X-Request-Id": "mine-1"})
    assert r.headers["x-request-id"] == "mine-1" and r.json["id"].endswith("-mine-1")
    r = guarded.post(path, body_for(path, request_id="body-1"), auth())
    assert r.json["id"].endswith("-body-1")
    made = {guarded.post(path, body_for(path), auth()).headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3 and all(len(i) == 32 and int(i, 16) >= 0 for i in made)
    r = guarded.post(path, body_for(path, temperature=-1), {**auth(), "X-Request-Id": "bad-1"})
    assert r.status == 400 and r.headers["x-request-id"] == "bad-1"


def test_request_ids_are_not_echoed_without_the_flag(server):
    r = server.post("/v1/completions", body_for("/v1/completions"), {"X-Request-Id": "quiet"})
    assert "x-request-id" not in r.headers and r.json["id"] == "cmpl-quiet"


# ---- load ----

def test_load_counts_while_requests_run_and_returns_to_0(guarded):
    def load():
        return guarded.get("/load", headers=auth()).json["server_load"]
    assert load() == 0
    body = {"prompt": "a", "max_tokens": 250, "ignore_eos": True, "n": 2, "temperature": 1, "stream": True}
    threads = [threading.Thread(target=guarded.post, args=("/v1/completions", body, auth())) for _ in range(3)]
    for t in threads:
        t.start()
    seen, end = 0, time.monotonic() + 20 * ternlib.SLOW
    while any(t.is_alive() for t in threads) and time.monotonic() < end:
        seen = max(seen, load())
        time.sleep(0.005)
    for t in threads:
        t.join()
    assert seen == 3 and load() == 0


def test_load_is_0_without_the_flag(server):
    assert server.get("/load").json == {"server_load": 0}


# ---- metrics by status ----

def test_http_metrics_carry_the_class_of_the_status(guarded):
    def count(status):
        m = ternlib.parse_metrics(guarded.get("/metrics", headers=auth()).body.decode())
        found = [v for (n, l), v in m.items() if n == "http_requests_total"
                 and {("handler", "/v1/completions"), ("status", status)} <= l]
        return sum(found)
    ok, bad = count("2xx"), count("4xx")
    guarded.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, auth())
    guarded.post("/v1/completions", {"prompt": "a", "max_tokens": -1}, auth())
    guarded.post("/v1/completions", {"prompt": "a", "model": "x"}, auth())
    guarded.post("/v1/completions", {"prompt": "a"})
    assert (count("2xx"), count("4xx")) == (ok + 1, bad + 3)


# ---- answers and errors ----

def test_errors_tell_no_paths_and_no_addresses(server):
    for path in PATHS:
        for extra in ({"temperature": "x" * 300}, {"model": "/etc/passwd"}, {"stop": ["a"] * 9}, {"logit_bias": {"a": 1}}):
            e = server.post(path, body_for(path, **extra)).json["error"]
            assert "0x" not in e["message"] and ".c:" not in e["message"] and len(e["message"]) < 1100


def test_the_fingerprint_is_one_for_all_answers(server):
    marks = {server.post(p, body_for(p)).json["system_fingerprint"] for p in PATHS for _ in range(2)}
    marks |= {c["system_fingerprint"] for p in PATHS for c in server.stream(p, body_for(p)).chunks if "system_fingerprint" in c}
    assert len(marks) == 1 and marks.pop().startswith("tern-")


# ---- anything at all ----

FIELDS = ["model", "n", "best_of", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
          "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "suffix", "stop",
          "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens",
          "truncate_prompt_tokens", "truncation_side", "allowed_token_ids", "bad_words", "seed", "stream", "stream_options",
          "use_beam_search", "length_penalty", "response_format", "structured_outputs", "guided_json", "guided_regex",
          "guided_choice", "guided_grammar", "priority", "request_id", "return_token_ids", "return_tokens_as_token_ids",
          "cache_salt", "stream_interval", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort",
          "include_reasoning", "add_generation_prompt", "continue_final_message", "documents", "chat_template",
          "chat_template_kwargs", "return_prompt_text", "enable_thinking", "logprob_token_ids", "repetition_detection",
          "max_completion_tokens", "prompt", "messages", "user", "metadata"]
WORDS = ["", "a", "春", "none", "auto", "required", "low", "left", "root ::= \"a\"", "[a-z]+", "json_object", "\u0000", "𠮷", "-1"]
KEYS = ["type", "role", "content", "text", "json", "regex", "choice", "grammar", "function", "name", "parameters", "properties",
        "include_usage", "max_pattern_size", "min_count", "5", "300", "x", "json_schema", "schema", "enum", "items", "tool_calls"]


def anything(rng, depth=0):
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind in (1, 2):
        return rng.choice([0, 1, 2, 3, -1, 5, 20, 300, 8191, 8192, 2 ** 31, 2 ** 63, -2 ** 63, rng.randrange(100)])
    if kind == 3:
        return rng.choice([0.0, 0.5, 1.0, -0.5, 1e-9, 1e308, 2.0])
    if kind in (4, 5):
        return rng.choice(WORDS)
    if kind == 6:
        return {rng.choice(KEYS): anything(rng, depth + 1) for _ in range(rng.randrange(4))}
    return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]


def plausible(rng, field):
    return {"stop": ["月"], "temperature": 0.7, "seed": 3, "n": 2, "logprobs": rng.choice([1, True]), "stream": True,
            "stream_options": {"include_usage": True}, "logit_bias": {"300": 2}, "top_p": 0.9, "echo": True,
            "messages": HI, "prompt": "春", "guided_choice": ["a", "b"], "use_beam_search": True,
            "response_format": {"type": "json_object"}, "return_token_ids": True}.get(field, anything(rng))


@pytest.mark.parametrize("path", [*PATHS, "/tokenize", "/detokenize", "/invocations"])
def test_no_request_is_answered_with_a_5xx(server, path):
    rng = random.Random(path)
    seen = {200: 0, 400: 0, 404: 0}
    for _ in range(250):
        body = body_for(path) if path in PATHS else {"prompt": "hi"}
        for field in rng.sample(FIELDS, rng.choice([1, 1, 2, 3])):
            body[field] = plausible(rng, field) if rng.random() < 0.5 else anything(rng)
        if not isinstance(body.get("max_completion_tokens"), (str, list, dict, float)):
            body.pop("max_completion_tokens", None)  # a large one is legal, and slow
        if body.get("n") in (300, 8191, 8192):
            body["n"] = 3
        body["max_tokens"] = rng.choice([0, 1, 2, 5])
        r = server.post(path, json.dumps(body).encode())
        assert r.status in seen, (body, r)
        seen[r.status] += 1
        if r.headers["content-type"].startswith("text/event-stream"):
            ternlib.Events(r.status, r.headers, r.body)
        elif r.status != 200:
            assert set(r.json["error"]) == {"message", "type", "param", "code"} and r.json["error"]["message"]
        else:
            r.json
    assert seen[400] >= 5 and (path == "/detokenize" or seen[200] > 20), seen
    server.alive()
    assert metric(server.wait_idle(), "vllm:num_requests_running") == 0
