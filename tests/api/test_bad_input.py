# SPDX-License-Identifier: Apache-2.0
"""T5, T10, T13 and the error shapes: bad input is refused by name, and the server lives."""
import http.client
import json
import time

import pytest
import ternlib

PATHS = ["/v1/completions", "/v1/chat/completions"]


def body_for(path, **kw):
    base = {"prompt": "hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    return {**base, "max_tokens": 4, **kw}


def check_error(r, status=400, type_=None, param=..., code=None):
    assert r.status == status, r
    assert r.headers["content-type"].startswith("application/json")
    e = r.json["error"]
    assert list(e) == ["message", "type", "param", "code"]
    assert e["message"] and e["code"] == (code or status)
    if type_:
        assert e["type"] == type_
    if param is not ...:
        assert e["param"] == param
    return e


# ---- T5: broken bodies ----

GOOD = json.dumps({"messages": [{"role": "user", "content": "你好"}], "max_tokens": 2}, ensure_ascii=False)


@pytest.mark.parametrize("body", [
    GOOD.encode("gbk"), b"{:", b"", b"   ", b"[]", b"17", b'"text"', b"null", b"true", b"{", b'{"prompt"', b'{"prompt":}',
    b'{"prompt":"a",}', b"{'prompt':'a'}", b'{"prompt":"a"} trailing', b'{"prompt":"a"}{"prompt":"b"}',
    GOOD.encode()[:GOOD.encode().index("你".encode()) + 2], b'{"prompt":"\xff\xfe"}', b'{"prompt":"\xed\xa0\x80"}',
    b'{"prompt":"\xc0\xaf"}', b'{"prompt":"a\nb"}', b"\xef\xbb\xbf{", b'{"prompt":01}', b'{"prompt":"a","prompt":}',
    b'{"prompt":"\\x41"}', b"/*c*/{}", b'{"prompt":"a","temperature":NaN}', b'{"prompt":"a","temperature":Infinity}',
    b'{"prompt":"a","temperature":-Infinity}', b'{"prompt":"a","temperature":1e999}', b'{"a":' * 100_000,
    b"[" * 100_000, b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
    ids=lambda b: repr(bytes(b[:24])))
@pytest.mark.parametrize("path", PATHS + ["/tokenize", "/detokenize"])
def test_a_broken_body_is_400(server, path, body):
    t = time.monotonic()
    check_error(server.post(path, body))
    assert time.monotonic() - t < 2 * ternlib.SLOW


def test_not_utf8_is_said(server):
    e = check_error(server.post("/v1/chat/completions", GOOD.encode("gbk")))
    assert "utf-8" in e["message"].lower()


def test_a_lone_surrogate_never_crashes(server):
    for text in (rb"\ud83d", rb"\udc00", rb"a\ud83d\u0041", rb"\ud83d\ud83d"):
        r = server.post("/v1/completions", b'{"prompt":"' + text + b'","max_tokens":1}')
        assert r.status in (200, 400)
        r.json
    r = server.post("/tokenize", rb'{"prompt":"\ud83e\udd17"}')
    assert r.status == 200 and server.detokenize(r.json["tokens"]) == "🤗"
    server.alive()


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["a", ""], [[1], []], None, 5, {"a": 1}, [1, "a"], ["a", 1],
                                    [-1], [8192], [[5], [10 ** 12]], [1.5], [True], [None], [[["a"]]]])
def test_prompts_that_are_none_are_400(server, prompt):
    check_error(server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}))


def test_a_missing_prompt_is_400(server):
    check_error(server.post("/v1/completions", {"max_tokens": 1}))


def test_a_body_beyond_the_limit_is_413_or_refused_early(server):
    c = server.connect()
    try:
        c.putrequest("POST", "/v1/completions")
        c.putheader("Content-Type", "application/json")
        c.putheader("Content-Length", str(100 << 20))
        c.endheaders()
        block = b" " * (1 << 20)
        try:
            for _ in range(100):
                c.send(block)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            r = c.getresponse()
            assert r.status in (400, 413)
        except (ConnectionError, http.client.BadStatusLine):
            pass  # it hung up in the middle of our sending: the answer was lost on the way
    finally:
        c.close()
    server.alive()


@pytest.mark.parametrize("raw", [
    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: abc\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: -5\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
    b"NONSENSE\r\n\r\n", b"GET /health HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /" + b"a" * (8 << 20) + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
    b"POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], ids=lambda b: repr(bytes(b[:60])))
def test_broken_http_is_refused(server, raw):
    with server.raw(5) as s:
        try:
            s.sendall(raw)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            got = ternlib.read_response(s)
        except ConnectionResetError:
            got = None
        assert got is None or got[0] in (400, 405, 411, 413, 414, 431, 501, 505), got
    server.alive()


def test_a_body_shorter_than_its_length_waits_and_a_longer_one_is_400(server):
    with server.raw(5) as s:
        body = b'{"prompt":"hi","max_tokens":1,"temperature":0}'
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: "
                  + str(len(body) - 4).encode() + b"\r\n\r\n" + body)
        assert ternlib.read_response(s)[0] == 400
    server.alive()


def test_pipelined_requests_are_answered_in_order(server):
    one = ternlib.http_bytes("/v1/completions", {"prompt": "hi", "max_tokens": 3, "temperature": 0})
    two = ternlib.http_bytes("/tokenize", {"prompt": "hi"})
    with server.raw(20) as s:
        s.sendall(one + two + b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        data = b""
        while block := s.recv(65536):
            data += block
    assert data.count(b"HTTP/1.1 200") == 3
    assert data.index(b"text_completion") < data.index(b'"max_model_len"')


def test_a_chunked_body_is_read(server):
    c = server.connect()
    body = json.dumps({"prompt": "hi", "max_tokens": 1}).encode()
    c.request("POST", "/v1/completions", iter([body[:7], body[7:]]), {"Content-Type": "application/json"},
              encode_chunked=True)
    assert c.getresponse().status == 200
    c.close()


def test_expect_100_continue_is_answered(server):
    body = json.dumps({"prompt": "hi", "max_tokens": 1}).encode()
    with server.raw(5) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
                  b"Connection: close\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n")
        assert s.recv(4096).startswith(b"HTTP/1.1 100")
        s.sendall(body)
        assert s.recv(65536).startswith(b"HTTP/1.1 200")


def test_keep_alive_serves_many_requests_on_one_connection(server):
    c = server.connect()
    for _ in range(20):
        c.request("POST", "/v1/completions", json.dumps({"prompt": "hi", "max_tokens": 1}),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 200
        r.read()
    c.close()


# ---- error shapes ----

def test_error_shapes(server):
    check_error(server.post("/v1/completions", {"model": "nobody", "prompt": "a"}), 404, "NotFoundError", "model")
    e = server.post("/v1/chat/completions", {"model": "nobody", "messages": [{"role": "user", "content": "a"}]}).json
    assert e["error"]["message"] == "The model `nobody` does not exist."
    check_error(server.get("/nowhere"), 404, "Not Found", None)
    check_error(server.get("/v1/completions"), 405, "Method Not Allowed", None)
    check_error(server.post("/v1/models", {}), 405)
    check_error(server.post("/v1/embeddings", {"input": "a"}), 404)
    check_error(server.post("/v1/completions", b"{"), 400, "Bad Request")
    check_error(server.post("/v1/completions", {"prompt": "a", "max_tokens": "many"}), 400, "Bad Request")
    check_error(server.post("/v1/completions", {"prompt": "a", "temperature": -1}), 400, None, "temperature")
    check_error(server.post("/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}}), 400,
                "Bad Request")


def test_a_wrong_content_type_is_400(server):
    body = json.dumps({"prompt": "hi", "max_tokens": 1}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        headers = {"Content-Type": kind} if kind else {}
        assert server.request("POST", "/v1/completions", body, headers).status == 400
    r = server.request("POST", "/v1/completions", body, {"Content-Type": "application/json; charset=utf-8"})
    assert r.status == 200


def test_null_and_empty_model_mean_the_served_one(server):
    for model in (None, ""):
        assert server.post("/v1/completions", {"model": model, "prompt": "a", "max_tokens": 1}).status == 200


def test_errors_found_early_are_http_errors_with_stream_too(server):
    for path in PATHS:
        check_error(server.post(path, body_for(path, stream=True, temperature=-1)))
        check_error(server.post(path, body_for(path, stream=True, model="nobody")), 404)


# ---- T10: hostile numbers ----

BAD = [("temperature", -1), ("temperature", 2.5), ("temperature", "hot"), ("temperature", []), ("top_p", 0),
       ("top_p", 1.0001), ("top_p", -0.1), ("top_p", "a"), ("top_k", -2), ("top_k", 1.5), ("top_k", "a"), ("min_p", -0.1),
       ("min_p", 1.1), ("presence_penalty", 2.1), ("presence_penalty", -2.1), ("frequency_penalty", 3),
       ("frequency_penalty", "a"), ("repetition_penalty", 0), ("repetition_penalty", -1), ("max_tokens", -1),
       ("max_tokens", "8"), ("max_tokens", 2 ** 63), ("max_tokens", 10 ** 30), ("max_tokens", 1.5), ("max_tokens", [8]), ("n", 0), ("n", -1),
       ("n", 10 ** 6), ("n", 2 ** 63), ("min_tokens", -1), ("min_tokens", 5), ("seed", 2 ** 63), ("seed", -2 ** 63 - 1),
       ("seed", "x"), ("stop", ""), ("stop", [""]), ("stop", ["a"] * 5), ("stop", 5), ("stop_token_ids", ["a"]),
       ("logit_bias", {"a": 1}), ("logit_bias", {"99999999": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", [1]),
       ("allowed_token_ids", []), ("allowed_token_ids", [99999999]), ("bad_words", [""]), ("ignore_eos", "maybe"),
       ("stream", "maybe"), ("cache_salt", ""), ("prompt_logprobs", -2), ("prompt_logprobs", 10 ** 6),
       ("truncate_prompt_tokens", -2), ("truncate_prompt_tokens", 10 ** 7)]


@pytest.mark.parametrize("field,value", BAD, ids=lambda v: str(v)[:24])
@pytest.mark.parametrize("path", PATHS)
def test_a_value_out_of_range_is_400_and_names_the_field(server, path, field, value):
    t = time.monotonic()
    body = body_for(path, temperature=1.0, **({} if field == "temperature" else {}))
    body[field] = value
    e = check_error(server.post(path, body))
    assert field in e["message"] or (e["param"] and field in e["param"]), e
    assert time.monotonic() - t < 0.1 * max(ternlib.SLOW, 5)


@pytest.mark.parametrize("path,field,value", [
    ("/v1/completions", "logprobs", -1), ("/v1/completions", "logprobs", 21), ("/v1/completions", "logprobs", "a"),
    ("/v1/completions", "prompt_logprobs", -1), ("/v1/completions", "suffix", "x"),
    ("/v1/chat/completions", "top_logprobs", 5), ("/v1/chat/completions", "tools", []),
    ("/v1/chat/completions", "tool_choice", "auto"), ("/v1/chat/completions", "chat_template", "{{ 1 }}")])
def test_values_refused_on_one_route(server, path, field, value):
    check_error(server.post(path, body_for(path, **{field: value})))


def test_non_finite_numbers_are_400_for_every_float(server):
    for field in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        for literal in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400"):
            check_error(server.post("/v1/completions", f'{{"prompt":"a","max_tokens":1,"{field}":{literal}}}'.encode()))
    server.alive()


def test_values_that_mean_off_are_accepted(server):
    base = server.completion("春", temperature=0, max_tokens=8)["choices"][0]["text"]
    for extra in ({"top_k": 0}, {"top_k": -1}, {"top_k": 10 ** 9}, {"temperature": 1e-6}, {"top_p": 1}, {"min_p": 0},
                  {"presence_penalty": 0}, {"repetition_penalty": 1}, {"seed": -1}, {"logit_bias": {}}, {"stop": []},
                  {"bad_words": []}, {"n": 1}):
        assert server.completion("春", **{"temperature": 0, "max_tokens": 8, **extra})["choices"][0]["text"] == base, extra


def test_greedy_with_n_above_1_is_400(server):
    e = check_error(server.post("/v1/completions", {"prompt": "a", "temperature": 0, "n": 2}))
    assert "greedy" in e["message"]


def test_max_tokens_0_is_400_or_an_empty_answer(server):
    for path in PATHS:
        r = server.post(path, body_for(path, max_tokens=0))
        assert r.status == 400 or r.json["choices"][0]["finish_reason"] == "length"


# ---- T13: over-long ----

TOO_LONG = "context_length_exceeded"

def limit(server):
    return server.get("/v1/models").json["data"][0]["max_model_len"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_400_with_both_numbers(server, stream):
    n = limit(server)
    for prompt in ([5] * (n + 1), [5] * n):
        e = check_error(server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "stream": stream}),
                        code=TOO_LONG)
        assert str(n) in e["message"] and str(len(prompt)) in e["message"], e
    e = check_error(server.post("/v1/chat/completions",
                                {"messages": [{"role": "user", "content": "春" * (n + 1)}], "stream": stream}),
                    code=TOO_LONG)
    assert str(n) in e["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_beyond_the_room_is_clamped_on_chat(server, stream):
    n = limit(server)
    for content, cap in (("hi", n), ("hi", 10 ** 6)):
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": cap, "temperature": 0, "stream": stream,
                "logit_bias": {"2": 100}}  # ends at once
        assert server.post("/v1/chat/completions", body).status == 200
    body = {"messages": [5] * (n - 4), "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    if stream:
        s = server.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
        finish, usage = s.finish(), s.usage()
    else:
        d = server.post("/v1/chat/completions", body).json
        finish, usage = d["choices"][0]["finish_reason"], d["usage"]
    assert finish == "length" and usage["completion_tokens"] == 4 and usage["prompt_tokens"] == n - 4
    text = "春" * (n - 60)
    text += "春" * (n - 4 - len(server.post("/tokenize", {"messages": [{"role": "user", "content": text}]}).json["tokens"]))
    d = server.chat(text, max_tokens=100, temperature=0, ignore_eos=True)
    assert d["choices"][0]["finish_reason"] == "length" and d["usage"]["total_tokens"] == n


def test_prompt_plus_max_tokens_beyond_the_context_is_400_on_completions(server):
    n = limit(server)
    e = check_error(server.post("/v1/completions", {"prompt": [5] * (n - 4), "max_tokens": 100}), code=TOO_LONG)
    assert str(n) in e["message"] and "100" in e["message"] and str(n - 4) in e["message"], e
    d = server.completion([5] * (n - 4), max_tokens=4, temperature=0, ignore_eos=True)
    assert d["usage"]["completion_tokens"] == 4


def test_max_tokens_of_2_to_the_31_is_an_upper_bound_on_chat_and_400_on_completions(server):
    for value in (2 ** 31, 2 ** 31 - 1, 10 ** 15):
        d = server.chat("hi", max_tokens=value, temperature=0, logit_bias={"2": 100})  # ends at once
        assert d["choices"][0]["finish_reason"] == "stop"
        check_error(server.post("/v1/completions", {"prompt": "hi", "max_tokens": value}), code=TOO_LONG)


def test_refusals_cost_no_memory(server):
    def refuse():
        for extra in ({"n": 10 ** 6}, {"n": 0}, {"prompt_logprobs": -1}, {"logprobs": 10 ** 6}):
            check_error(server.post("/v1/completions", {"prompt": "correct horse battery staple", **extra}))
    refuse()
    before = ternlib.rss_kb(server.proc.pid)
    for _ in range(100):
        refuse()
    assert ternlib.rss_kb(server.proc.pid) < before + 4096 * ternlib.SLOW ** 2  # sanitizers keep what was freed


def test_a_very_long_text_is_refused_quickly(server):
    t = time.monotonic()
    check_error(server.post("/v1/completions", {"prompt": "春" * 1_000_000, "max_tokens": 1}), code=TOO_LONG)
    assert time.monotonic() - t < 2 * ternlib.SLOW


def test_truncate_prompt_tokens_keeps_the_last_ones(server):
    ids = server.tokenize("one two three four five six seven")
    d = server.completion(ids, max_tokens=1, temperature=0, truncate_prompt_tokens=3, return_token_ids=True)
    assert d["choices"][0]["prompt_token_ids"] == ids[-3:] and d["usage"]["prompt_tokens"] == 3
    d = server.completion([5] * 100_000, max_tokens=1, temperature=0, truncate_prompt_tokens=-1)
    assert d["usage"]["prompt_tokens"] <= limit(server)
