# SPDX-License-Identifier: Apache-2.0
"""Structured output over HTTP: grammars, streams, log-probabilities, white space, what is refused, and that hostile
schemas end soon and slow nobody. The first checks of each kind are in test_vllm_chat.py, T15 in
test_schema_chinese.py, what schemas mean in tests/schema."""
import concurrent.futures
import json
import re
import threading
import time

import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = [{"role": "user", "content": "写一首诗。"}]
SQL = """root ::= select
select ::= "SELECT " name (", " name){0,3} " FROM " name (" WHERE " name " = " number)?
name ::= [a-z] [a-z_]{0,7}
number ::= [0-9]{1,4}
"""
LARK = """?start: greeting " " NAME "!"
greeting: "hello" | "你好"
NAME: /[A-Z][a-z]{1,6}/  // a name
"""
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8},
                                            "rain": {"type": "boolean"},
                                            "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 31},
                                                     "minItems": 1, "maxItems": 3}},
           "required": ["city", "rain", "days"], "additionalProperties": False}


def chat(server, status=200, **kw):
    r = server.post(CHAT, {"messages": ASK, "max_tokens": 80, "temperature": 1, **kw})
    assert r.status == status, r
    return r.json["choices"][0] if status == 200 else r.json["error"]


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


def test_both_spellings_of_a_grammar_hold(server):
    for seed in range(6):
        c = chat(server, seed=seed, structured_outputs={"grammar": SQL})
        assert re.fullmatch(r"SELECT [a-z][a-z_]{0,7}(, [a-z][a-z_]{0,7}){0,3} FROM [a-z][a-z_]{0,7}"
                            r"( WHERE [a-z][a-z_]{0,7} = [0-9]{1,4})?", c["message"]["content"]), c
        assert c["finish_reason"] == "stop"
        c = chat(server, seed=seed, structured_outputs={"grammar": LARK})
        assert re.fullmatch(r"(hello|你好) [A-Z][a-z]{1,6}!", c["message"]["content"]), c


def test_a_stream_says_what_the_plain_answer_says(server):
    for seed, constraint in enumerate(({"response_format": schema_format(WEATHER)}, {"structured_outputs": {"regex": "[一-龥]{3,9}。"}},
                                       {"structured_outputs": {"choice": ["晴天", "阴天", "晴"]}}, {"guided_grammar": SQL})):
        for path, prompt in ((CHAT, {"messages": ASK}), (TEXT, {"prompt": "天气"})):
            body = {**prompt, "max_tokens": 80, "temperature": 1, "seed": seed, **constraint}
            c = server.post(path, body).json["choices"][0]
            s = server.stream(path, body)
            assert s.done and s.finish() == c["finish_reason"] == "stop"
            assert s.text() == (c["message"]["content"] if path == CHAT else c["text"])


def test_each_of_n_samples_follows_the_schema(server):
    r = server.post(CHAT, {"messages": ASK, "n": 4, "temperature": 1, "seed": 3, "max_tokens": 80,
                           "response_format": schema_format(WEATHER)}).json
    texts = [c["message"]["content"] for c in r["choices"]]
    assert len(texts) == 4 and len(set(texts)) > 1
    for t in texts:
        d = json.loads(t)
        assert set(d) == {"city", "rain", "days"} and all(1 <= x <= 31 for x in d["days"])


def test_max_tokens_cuts_with_length_and_a_prefix_of_the_answer(server):
    full = chat(server, seed=5, response_format=schema_format(WEATHER))["message"]["content"]
    cut = chat(server, seed=5, response_format=schema_format(WEATHER), max_tokens=4)
    assert cut["finish_reason"] == "length" and full.startswith(cut["message"]["content"]) and cut["message"]["content"] != full


def test_log_probabilities_of_constrained_tokens_are_finite(server):
    for constraint in ({"structured_outputs": {"choice": ["yes", "no"]}}, {"response_format": schema_format(WEATHER)}):
        c = chat(server, seed=1, logprobs=True, top_logprobs=5, **constraint)
        assert c["logprobs"]["content"]
        for t in c["logprobs"]["content"]:
            assert all(x["logprob"] >= -9999.0 for x in [t, *t["top_logprobs"]])


def test_white_space_is_bounded_raw_and_can_be_chosen(server):
    for seed in range(6):
        text = chat(server, seed=seed, temperature=2, response_format=schema_format(WEATHER))["message"]["content"]
        outside = re.sub(r'"(\\.|[^"\\])*"', '""', text)
        assert not re.search(r"\n\s*\n| {10,}", outside) and not re.search(r"\\u(?!00[01])", text)
        text = chat(server, seed=seed, temperature=2,
                    structured_outputs={"json": WEATHER, "disable_any_whitespace": True})["message"]["content"]
        outside = re.sub(r'"(\\.|[^"\\])*"', '""', text)
        assert not re.search(r"\s", outside.replace(", ", ",").replace(": ", ":")), text
        text = chat(server, seed=seed, temperature=2,
                    structured_outputs={"json": WEATHER, "whitespace_pattern": "[ ]?"})["message"]["content"]
        assert "\n" not in text


@pytest.mark.parametrize("schema, keyword", [
    ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"),
    ({"type": "object", "properties": {"a": {"$ref": "https://example.com/s.json"}}}, "$ref"),
    ({"type": "string", "format": "hologram"}, "hologram"),
    ({"not": {"multipleOf": 3}}, "not"),
    ({"type": "number", "multipleOf": 0.01}, "multipleOf"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "'a'"),
    ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, "oneOf")])
def test_what_is_not_enforced_is_400_by_name(server, schema, keyword):
    e = chat(server, 400, response_format=schema_format(schema))
    assert keyword in e["message"] and e["param"] == "response_format"
    assert keyword in chat(server, 400, structured_outputs={"json": schema})["message"]


@pytest.mark.parametrize("constraint, word", [
    ({"grammar": "root ::= nope"}, "nope"), ({"grammar": "root ::= root \"a\" | \"b\""}, "left-recursive"),
    ({"grammar": "root ::= \"\\d\""}, "\\d"), ({"grammar": "start: \"a\"\n%ignore \" \""}, "directives"),
    ({"regex": "(a"}, "not closed"), ({"regex": "(a)\\1"}, "back-reference"), ({"regex": "[]"}, "no text"),
    ({"choice": [""]}, "choice[0]")])
def test_wrong_grammars_and_regexes_are_400_by_name(server, constraint, word):
    assert word in chat(server, 400, structured_outputs=constraint)["message"]


def nested(n):
    s = {"type": "integer"}
    for _ in range(n):
        s = {"type": "object", "properties": {"a": s}}
    return s


def hostile():
    deep_any = {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "object", "properties": {
        "a": {"$ref": f"#/$defs/d{i + 1}"}, "b": {"$ref": f"#/$defs/d{i + 1}"}}}]} for i in range(200)}, "$ref": "#/$defs/d0"}
    deep_any["$defs"]["d200"] = {"type": "null"}
    choices = {"allOf": [{"anyOf": [{"properties": {f"p{i}": {"minimum": k}}} for k in range(8)]} for i in range(12)]}
    yield nested(60)
    yield deep_any
    yield choices
    yield {"not": {"anyOf": [{"allOf": [{"not": {"oneOf": [{"minimum": i}, {"maxLength": i}]}}] * 6} for i in range(8)]}}
    yield {"type": "string", "pattern": "(a?){5000}(b|c){9000}x{3000}y{100000}"}
    yield {"type": "string", "pattern": "(.*a.{14})", "not": {"pattern": "b.{13}c"}}
    yield {"type": "array", "items": {"type": "string", "pattern": "((a{1,300}){1,300}){1,300}"}, "minItems": 5000}
    yield {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2500)}}
    yield {"type": "object", "patternProperties": {f"a.{{{i}}}b": {} for i in range(9, 14)}, "additionalProperties": False}
    yield {"enum": [[i] * 20 for i in range(9000)], "not": {"enum": [[i] * 20 for i in range(1, 9000)]}}


def test_hostile_schemas_end_within_two_seconds(server):
    for i, schema in enumerate(hostile()):
        start = time.monotonic()
        r = server.post(CHAT, {"messages": ASK, "max_tokens": 4, "response_format": schema_format(schema)})
        took = time.monotonic() - start
        assert r.status in (200, 400), r
        assert took < 6, f"schema {i}: {took:.1f} s"  # 2 s on an idle machine; the limit in the compiler is below
        if r.status == 400:
            assert r.json["error"]["message"]
    server.alive()


def test_hostile_schemas_do_not_stop_other_streams(server):
    """Streams go on while schemas are compiled: the longest pause is no more than what load alone explains."""
    body = {"messages": ASK, "max_tokens": 250, "temperature": 1, "seed": 1, "ignore_eos": True}
    plain = server.stream(CHAT, body)
    stop, answered = threading.Event(), []

    def attack():
        while not stop.is_set():
            for i, schema in enumerate(hostile()):
                if stop.is_set():
                    break
                schema["$comment"] = f"{time.monotonic()}"  # never the same twice
                answered.append(server.post(CHAT, {"messages": ASK, "max_tokens": 2, "response_format": schema_format(schema)}).status)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(attack)]
        time.sleep(0.3)
        try:
            streams = [server.stream(CHAT, body) for _ in range(3)]
        finally:
            stop.set()
        for j in jobs:
            j.result()
    assert answered and set(answered) <= {200, 400}
    assert all(s.text() == plain.text() and s.done for s in streams)


def test_the_same_schema_for_many_clients_gives_each_its_own_answer(server):
    def one(seed):
        return chat(server, seed=seed, response_format=schema_format(WEATHER))["message"]["content"]
    alone = [one(s) for s in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(8))) == alone


def test_a_grammar_after_old_field_names_is_the_same_constraint(server):
    new = chat(server, seed=2, structured_outputs={"json": WEATHER})
    for old in ({"guided_json": WEATHER}, {"guided_json": json.dumps(WEATHER)}, {"response_format": schema_format(WEATHER)}):
        assert chat(server, seed=2, **old)["message"] == new["message"]
