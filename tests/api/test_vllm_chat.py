# SPDX-License-Identifier: Apache-2.0
"""What vLLM's tests of /v1/chat/completions check, in our words and on the shipped model (the table is in README.md). Tools
and reasoning are in test_tools.py."""
import json
import re

import pytest
from ternlib import Server

PATH = "/v1/chat/completions"
ASK = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "What is 1+1?"}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}


def error(r):
    assert r.status == 400, r
    return r.json["error"]


# ---- log-probabilities ----

def test_no_zero_some_and_too_many_top_logprobs(server):
    kw = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
    assert server.chat(ASK, logprobs=False, **kw)["choices"][0]["logprobs"] is None
    for k in (None, 0, 5, 20):
        content = server.chat(ASK, logprobs=True, top_logprobs=k, **kw)["choices"][0]["logprobs"]["content"]
        assert len(content) == 5 and all(len(x["top_logprobs"]) == (k or 0) for x in content)
        assert all(x["logprob"] <= 0 for x in content)
    for stream in (False, True):
        assert "20" in error(server.post(PATH, {"messages": ASK, "logprobs": True, "top_logprobs": 21,
                                                "stream": stream}))["message"]
        for k in (1, -1):
            assert "logprobs" in error(server.post(PATH, {"messages": ASK, "top_logprobs": k, "stream": stream}))["message"]
    error(server.post(PATH, {"messages": ASK, "logprobs": True, "top_logprobs": -2}))
    error(server.post(PATH, {"messages": ASK, "logprobs": 1}))


def test_streamed_logprobs_are_the_plain_ones(server):
    body = {"messages": ASK, "max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    plain = server.post(PATH, body).json["choices"][0]["logprobs"]["content"]
    s = server.stream(PATH, body)
    assert [x for c in s.choices() if c["logprobs"] for x in c["logprobs"]["content"]] == plain


def test_logprobs_under_a_grammar_never_fall_below_the_floor(server):
    c = server.chat(ASK, max_tokens=12, temperature=1, seed=1, logprobs=True, top_logprobs=5,
                    structured_outputs={"choice": ["yes", "no", "也许"]})["choices"][0]
    values = [t["logprob"] for x in c["logprobs"]["content"] for t in [x, *x["top_logprobs"]]]
    assert values and min(values) == -9999.0 and max(values) <= 0
    assert c["message"]["content"] in ("yes", "no", "也许")


def test_prompt_logprobs_are_at_the_top_of_the_answer(server):
    d = server.chat(ASK, max_tokens=1, temperature=0, prompt_logprobs=1, return_token_ids=True)
    assert len(d["prompt_logprobs"]) == len(d["prompt_token_ids"]) and d["prompt_logprobs"][0] is None
    assert [list(p)[0] for p in d["prompt_logprobs"][1:]] == list(map(str, d["prompt_token_ids"][1:]))
    assert server.chat(ASK, max_tokens=1, temperature=0)["prompt_logprobs"] is None
    for k in (-2, 21):
        error(server.post(PATH, {"messages": ASK, "prompt_logprobs": k}))
    error(server.post(PATH, {"messages": ASK, "prompt_logprobs": 1, "stream": True}))


# ---- conversations ----

def test_two_turns(server):
    d = server.chat(ASK, max_tokens=10, temperature=0, logprobs=True, top_logprobs=5)
    assert d["id"] and len(d["choices"]) == 1 and d["choices"][0]["message"]["role"] == "assistant"
    more = [*ASK, d["choices"][0]["message"], {"role": "user", "content": "express your result in json"}]
    again = server.chat(more, max_tokens=10, temperature=0)
    assert again["choices"][0]["message"]["content"] and again["usage"]["prompt_tokens"] > d["usage"]["prompt_tokens"]


def test_a_stream_has_the_role_first_one_finish_and_text_last(server):
    body = {"messages": ASK, "max_tokens": 10, "temperature": 0, "ignore_eos": True}
    plain = server.post(PATH, body).json["choices"][0]
    s = server.stream(PATH, body)
    assert s.choices()[0]["delta"]["role"] == "assistant" and all("role" not in c["delta"] for c in s.choices()[1:])
    assert s.finish() == plain["finish_reason"] and s.text() == plain["message"]["content"]
    assert s.choices()[-1]["delta"]["content"]


def test_samples_have_their_role_and_order_in_plain_answers_and_streams(server):
    body = {"messages": ASK, "n": 3, "seed": 4, "temperature": 1, "max_tokens": 6, "ignore_eos": True}
    plain = server.post(PATH, body).json["choices"]
    s = server.stream(PATH, body)
    assert [c["index"] for c in plain] == [0, 1, 2]
    assert [s.text(i) for i in range(3)] == [c["message"]["content"] for c in plain]
    assert [c["choices"][0]["delta"].get("role") for c in s.chunks[:3]] == ["assistant"] * 3


@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": False}, {}, None,
                                     {"include_usage": True, "continuous_usage_stats": True}])
def test_the_matrix_of_stream_options(server, options):
    body = {"messages": ASK, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    s = server.stream(PATH, {**body, "stream_options": options})
    include = bool(options and options.get("include_usage"))
    assert sum(not c["choices"] for c in s.chunks) == include
    if include and options.get("continuous_usage_stats"):
        counts = [c["usage"]["completion_tokens"] for c in s.chunks if c["choices"]]
        assert counts == [0, 1, 2, 3, 4, 5, 6]
    elif include:
        assert s.chunks[-1]["usage"]["completion_tokens"] == 6 and not any("usage" in c for c in s.chunks[:-1])
    if options is not None:
        error(server.post(PATH, {**body, "stream_options": options}))


def test_unknown_roles_and_extra_fields_are_taken(server):
    for messages in ([{"role": "my-role", "content": "hi"}, {"role": "user", "content": "a", "extra": {"x": 1}}],
                     [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "x"}}]}]):
        server.chat(messages, max_tokens=1, extra_field="0")


def test_parts_mix_with_strings(server):
    messages = [{"role": "user", "content": [{"type": "text", "text": "what is"}, {"type": "text", "text": "1+1?"}]},
                {"role": "assistant", "content": "2"}, {"role": "user", "content": "sure?"}]
    assert server.chat(messages, max_tokens=4, temperature=0)["choices"][0]["message"]["content"]


def test_seeds_outside_int64_are_refused_with_the_words_for_it(server):
    for seed, word in ((2 ** 63, "less_than_equal"), (-2 ** 63 - 1, "greater_than_equal")):
        e = error(server.post(PATH, {"messages": ASK, "seed": seed, "max_tokens": 1}))
        assert word in e["message"] and e["type"] == "Bad Request"
    for seed in (2 ** 63 - 1, -2 ** 63):
        server.chat(ASK, seed=seed, temperature=1, max_tokens=1)


# ---- echo, continuation, roles ----

def test_echo_repeats_the_last_message_when_the_roles_match(server):
    m = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "春眠不觉"}]
    kw = {"max_tokens": 4, "temperature": 0, "continue_final_message": True}
    plain, echo = server.chat(m, **kw), server.chat(m, echo=True, **kw)
    assert echo["choices"][0]["message"]["content"] == "春眠不觉" + plain["choices"][0]["message"]["content"]
    s = server.stream(PATH, {"messages": m, "echo": True, **kw})
    assert s.text() == echo["choices"][0]["message"]["content"]
    other = server.chat([{"role": "user", "content": "U"}], echo=True, max_tokens=4, temperature=0)
    assert not other["choices"][0]["message"]["content"].startswith("U")


def test_without_a_generation_prompt_the_role_is_the_last_messages(server):
    d = server.chat([{"role": "user", "content": "U"}], add_generation_prompt=False, max_tokens=2, temperature=0)
    assert d["choices"][0]["message"]["role"] == "user"
    with Server(args=["--response-role", "poet"]) as s:
        assert s.chat("hi", max_tokens=1)["choices"][0]["message"]["role"] == "poet"
        assert s.stream(PATH, {"messages": ASK, "max_tokens": 1}).choices()[0]["delta"]["role"] == "poet"


# ---- structured output ----

def test_a_choice_a_regex_and_a_schema_hold(server):
    for seed in range(4):
        kw = {"temperature": 1, "seed": seed, "max_tokens": 60}
        text = server.chat(ASK, structured_outputs={"choice": ["Python", "Java", "C"]}, **kw)["choices"][0]["message"]["content"]
        assert text in ("Python", "Java", "C")
        ip = r"((25[0-5]|2[0-4]\d|1?\d?\d)(\.)){3}(25[0-5]|2[0-4]\d|1?\d?\d)"
        text = server.chat(ASK, structured_outputs={"regex": ip}, **kw)["choices"][0]["message"]["content"]
        assert re.fullmatch(ip, text)
        for constraint in ({"structured_outputs": {"json": PERSON}}, {"structured_outputs": {"json": json.dumps(PERSON)}},
                           {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}}):
            c = server.chat(ASK, **constraint, **kw)["choices"][0]
            assert c["finish_reason"] in ("stop", "length")
            if c["finish_reason"] == "stop":
                d = json.loads(c["message"]["content"])
                assert set(d) == {"name", "age"} and isinstance(d["age"], int) and len(d["name"]) <= 12


def test_response_formats(server):
    c = server.chat(ASK, temperature=0, max_tokens=200, response_format={"type": "json_object"})["choices"][0]
    if c["finish_reason"] == "stop":
        assert isinstance(json.loads(c["message"]["content"]), dict)
    a = server.chat(ASK, temperature=0, max_tokens=6, response_format={"type": "text"})
    assert a["choices"] == server.chat(ASK, temperature=0, max_tokens=6)["choices"]
    for bad in ({"type": "xml"}, {}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": "x"}}, "json"):
        error(server.post(PATH, {"messages": ASK, "response_format": bad}))


@pytest.mark.parametrize("constraint", [{"json": 5}, {"regex": 5}, {"regex": True}, {"choice": "a"}, {"choice": [1]},
                                        {"grammar": {}}, {"json_object": "yes"}])
def test_constraints_of_the_wrong_type_are_400(server, constraint):
    error(server.post(PATH, {"messages": ASK, "structured_outputs": constraint}))


# ---- logit_bias, ids, cache_salt ----

def test_logit_bias_is_checked_against_the_vocabulary(server):
    for bias in ({"8192": 1}, {"-1": 1}, {"x": 1}, {"5": "a"}, {"1.5": 1}, {"": 1}):
        e = error(server.post(PATH, {"messages": ASK, "logit_bias": bias, "max_tokens": 1}))
        assert "logit_bias" in e["message"] or e["param"] == "logit_bias"
    server.chat(ASK, logit_bias={"0": 1, "8191": -1000, "5": 1e3}, max_tokens=1)


def test_ids_of_prompt_and_answer_are_returned(server):
    ids = server.post("/tokenize", {"messages": ASK}).json["tokens"]
    d = server.chat(ASK, max_tokens=4, temperature=0, return_token_ids=True, ignore_eos=True)
    assert d["prompt_token_ids"] == ids and len(d["choices"][0]["token_ids"]) == 4
    s = server.stream(PATH, {"messages": ASK, "max_tokens": 4, "temperature": 0, "return_token_ids": True, "ignore_eos": True})
    assert s.chunks[0]["prompt_token_ids"] == ids
    assert [i for c in s.choices() for i in c.get("token_ids") or ()] == d["choices"][0]["token_ids"]


def test_cache_salts_must_be_strings_with_something_in_them(server):
    for bad in ("", 5, [], {}):
        error(server.post(PATH, {"messages": ASK, "cache_salt": bad, "max_tokens": 1}))
    server.chat(ASK, cache_salt="x", max_tokens=1)


def test_the_newer_max_tokens_wins(server):
    for kw, n in (({"max_tokens": 2, "max_completion_tokens": 5}, 5), ({"max_completion_tokens": 3}, 3),
                  ({"max_tokens": 4, "max_completion_tokens": None}, 4)):
        assert server.chat(ASK, temperature=0, ignore_eos=True, **kw)["usage"]["completion_tokens"] == n


def test_tokenize_takes_messages_with_the_flags_of_chat(server):
    def ids(**kw):
        r = server.post("/tokenize", {"messages": ASK, **kw})
        assert r.status == 200, r
        return r.json
    assert ids(add_generation_prompt=False)["count"] < ids()["count"]
    for flag in (True, False):
        assert ids(add_special_tokens=flag)["tokens"] == ids()["tokens"]
    d = ids(return_token_strs=True)
    assert len(d["token_strs"]) == d["count"] == len(d["tokens"]) and d["max_model_len"] == 2048
    last = [*ASK, {"role": "assistant", "content": "2"}]
    r = server.post("/tokenize", {"messages": last, "add_generation_prompt": True, "continue_final_message": True})
    error(r)
    assert server.post("/tokenize", {"messages": last, "continue_final_message": True}).status == 200
