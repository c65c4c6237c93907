# SPDX-License-Identifier: Apache-2.0
"""/v1/responses: shapes, the order of events, errors by name, what is stored, and that it says what chat says."""
import concurrent.futures
import json
import socket
import threading
import time

import pytest
import ternlib

POEM = "写一首五言绝句，题目是《夜雨》。"
SCHEMA = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 8}, "lines": {"type": "integer"}},
          "required": ["title", "lines"], "additionalProperties": False}
RESPONSE_FIELDS = [
    "id", "created_at", "error", "incomplete_details", "instructions", "metadata", "model", "object", "output",
    "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p", "background", "max_output_tokens",
    "max_tool_calls", "previous_response_id", "prompt", "reasoning", "service_tier", "status", "text", "top_logprobs",
    "truncation", "usage", "user", "input_messages", "output_messages"]


def respond(server, input, status=200, **kw):
    kw = {"temperature": 0, "max_output_tokens": 24, **kw}
    r = server.post("/v1/responses", {"model": server.model, "input": input, **kw})
    assert r.status == status, r
    return r.json if status == 200 else r.json["error"]


def parse_events(raw):
    """The events as objects: each has the line `event: TYPE`, its number, and there is no [DONE]."""
    text = raw.decode("utf-8", "strict")
    assert text.endswith("\n\n")
    out = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        d = ternlib.strict_json(data.removeprefix("data: "))
        assert name == "event: " + d["type"], block
        out.append(d)
    return out


def events(server, input, **kw):
    kw = {"temperature": 0, "max_output_tokens": 24, **kw}
    r = server.post("/v1/responses", {"model": server.model, "input": input, "stream": True, **kw})
    assert r.status == 200, r
    assert r.headers["content-type"].startswith("text/event-stream")
    out = parse_events(r.body)
    assert [e["sequence_number"] for e in out] == list(range(len(out)))
    return out


def output_text(d):
    return "".join(p["text"] for i in d["output"] if i["type"] == "message" for p in i["content"])


def without_ids(value):
    """The same without what differs from request to request."""
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k not in ("id", "call_id", "created_at", "item_id")}
    return [without_ids(v) for v in value] if isinstance(value, list) else value


# ---- shapes --------------------------------------------------------------------------------------------------------

def test_a_response_has_every_field_in_order(server):
    d = respond(server, POEM, metadata={"a": "b"}, user="u", instructions="你是诗人。", max_output_tokens=5)
    assert list(d) == RESPONSE_FIELDS
    assert d["id"].startswith("resp_") and d["object"] == "response" and d["model"] == server.model
    assert abs(d["created_at"] - time.time()) < 60
    assert d["metadata"] == {"a": "b"} and d["user"] == "u" and d["instructions"] == "你是诗人。"
    assert d["tools"] == [] and d["tool_choice"] == "auto" and d["parallel_tool_calls"] is True
    assert d["status"] == "incomplete" and d["incomplete_details"] == {"reason": "max_output_tokens"}
    assert d["temperature"] == 0 and d["max_output_tokens"] == 5 and d["error"] is None
    item, = d["output"]
    assert item["type"] == "message" and item["role"] == "assistant" and item["id"].startswith("msg_")
    part, = item["content"]
    assert part["type"] == "output_text" and part["annotations"] == [] and part["text"]
    u = d["usage"]
    assert u["output_tokens"] == 5 and u["total_tokens"] == u["input_tokens"] + 5
    assert u["input_tokens_details"]["cached_tokens"] >= 0 and u["output_tokens_details"]["reasoning_tokens"] == 0


def test_a_response_that_ends_by_itself_is_completed(server):
    d = respond(server, POEM, max_output_tokens=None, stop="。")
    assert d["status"] == "completed" and d["incomplete_details"] is None
    assert d["output"][0]["status"] == "completed" and "。" not in output_text(d)


def test_text_and_prompt_are_those_of_chat(server):
    user, told = {"role": "user", "content": POEM}, {"role": "assistant", "content": "夜雨"}
    text = [{"type": "input_text", "text": POEM}]
    said = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
            "content": [{"type": "output_text", "text": "夜雨", "annotations": []}]}
    pairs = [
        (POEM, None, [user]),
        (POEM, "你是诗人。", [{"role": "system", "content": "你是诗人。"}, user]),
        ([user], None, [user]),
        ([{"type": "message", "role": "user", "content": text}], None, [user]),
        ([{"role": "developer", "content": "你是诗人。"}, user], None, [{"role": "system", "content": "你是诗人。"}, user]),
        ([user, said, user], None, [user, told, user]),
        ([user, told, user], None, [user, told, user]),
        ([user, {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
            {"type": "reasoning_text", "text": "想"}]}, said, user], None, [user, told, user]),
    ]
    for items, instructions, messages in pairs:
        d = respond(server, items, instructions=instructions)
        c = server.chat(messages, temperature=0, max_tokens=24)
        assert d["usage"]["input_tokens"] == c["usage"]["prompt_tokens"], items
        assert output_text(d) == c["choices"][0]["message"]["content"], items


def test_several_parts_of_text_are_the_prompt_of_chat_with_the_same_parts(server):
    parts = ["写一首诗。", "题目：夜雨"]
    d = respond(server, [{"role": "user", "content": [{"type": "input_text", "text": t} for t in parts]}])
    c = server.chat([{"role": "user", "content": [{"type": "text", "text": t} for t in parts]}], temperature=0,
                    max_tokens=24)
    assert d["usage"]["input_tokens"] == c["usage"]["prompt_tokens"]
    assert output_text(d) == c["choices"][0]["message"]["content"]


def test_an_unfinished_last_message_is_continued(server):
    c = server.chat([{"role": "user", "content": POEM}, {"role": "assistant", "content": "夜雨"}], temperature=0,
                    max_tokens=24, continue_final_message=True, add_generation_prompt=False)
    d = respond(server, [{"role": "user", "content": POEM},
                         {"type": "message", "role": "assistant", "id": "msg_1", "status": "incomplete",
                          "content": [{"type": "output_text", "text": "夜雨", "annotations": []}]}])
    assert d["usage"]["input_tokens"] == c["usage"]["prompt_tokens"]
    assert output_text(d) == c["choices"][0]["message"]["content"]


def test_the_default_fills_the_context_and_more_than_fits_is_cut(server):
    room = server.get("/v1/models").json["data"][0]["max_model_len"]
    for n in (None, room, 10 ** 15):
        d = respond(server, POEM, max_output_tokens=n, stop="，")
        assert d["max_output_tokens"] == room - d["usage"]["input_tokens"]


def test_seeds_and_sampling_fields_are_chats(server):
    kw = {"temperature": 0.9, "top_p": 0.9, "top_k": 20, "seed": 5, "presence_penalty": 0.3, "stop_token_ids": [2]}
    d = respond(server, POEM, **kw)
    c = server.chat(POEM, max_tokens=24, **kw)
    assert output_text(d) == c["choices"][0]["message"]["content"]
    assert d["temperature"] == 0.9 and d["top_p"] == 0.9


def test_logprobs_when_included(server):
    d = respond(server, POEM, include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=8)
    lp = d["output"][0]["content"][0]["logprobs"]
    assert len(lp) == 8 and d["top_logprobs"] == 2
    assert all(len(t["top_logprobs"]) == 2 and t["logprob"] <= 0 for t in lp)
    assert bytes(b for t in lp for b in t["bytes"]).decode("utf-8", "ignore") == output_text(d)
    assert respond(server, POEM, include=["reasoning.encrypted_content"])["output"][0]["content"][0]["logprobs"] == []
    streamed = events(server, POEM, include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=8)
    assert [t for e in streamed if e["type"] == "response.output_text.delta" for t in e["logprobs"]] == lp
    assert streamed[-1]["response"]["output"][0]["content"][0]["logprobs"] == lp


def test_the_id_is_that_of_the_header_or_of_the_body(server):
    r = server.post("/v1/responses", {"input": "a", "max_output_tokens": 1}, headers={"X-Request-Id": "abc-1"})
    assert r.json["id"] == "resp_abc-1"
    assert respond(server, "a", request_id="xyz")["id"] == "resp_xyz"
    assert respond(server, "a", request_id="resp_xyz")["id"] == "resp_xyz"


# ---- streams -------------------------------------------------------------------------------------------------------

def test_a_stream_tells_of_the_response_the_item_and_its_part_in_order(server):
    plain = respond(server, POEM)
    ev = events(server, POEM)
    types = [e["type"].removeprefix("response.") for e in ev]
    n = types.count("output_text.delta")
    assert n > 1
    assert types == ["created", "in_progress", "output_item.added", "content_part.added"] + n * ["output_text.delta"] \
        + ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert ev[0]["response"]["status"] == ev[1]["response"]["status"] == "in_progress"
    assert list(ev[0]["response"]) == RESPONSE_FIELDS and ev[0]["response"]["output"] == []
    item = ev[2]["item"]
    assert item["status"] == "in_progress" and item["content"] == [] and ev[2]["output_index"] == 0
    assert ev[3]["part"]["text"] == ""
    for e in ev[3:-2]:
        assert (e["item_id"], e["output_index"], e["content_index"]) == (item["id"], 0, 0)
    text = "".join(e["delta"] for e in ev if e["type"] == "response.output_text.delta")
    assert text == output_text(plain) == ev[-4]["text"] == ev[-3]["part"]["text"]
    assert ev[-2]["item"] == ev[-1]["response"]["output"][0]
    assert without_ids(ev[-1]["response"]) == without_ids(plain) or \
        without_ids({**ev[-1]["response"], "usage": 0}) == without_ids({**plain, "usage": 0})
    assert ev[-1]["response"]["usage"]["output_tokens"] == plain["usage"]["output_tokens"]


def test_a_stream_that_ends_by_itself_is_completed(server):
    ev = events(server, POEM, stop="。", max_output_tokens=None)
    assert ev[-1]["type"] == "response.completed" and ev[-1]["response"]["status"] == "completed"
    assert ev[-2]["item"]["status"] == "completed"


def test_an_answer_without_text_is_an_empty_message(server):
    first = output_text(respond(server, POEM, max_output_tokens=1))
    d = respond(server, POEM, stop=first)
    assert d["status"] == "completed" and output_text(d) == "" and len(d["output"]) == 1
    ev = events(server, POEM, stop=first)
    assert [e["type"] for e in ev][2:4] == ["response.output_item.added", "response.content_part.added"]
    assert without_ids(ev[-1]["response"]["output"]) == without_ids(d["output"])


def test_errors_before_a_stream_are_http_errors(server):
    for body, param in (({"temperature": 3}, "temperature"), ({"input": 5}, "body.input"), ({"top_p": 0}, "top_p")):
        r = server.post("/v1/responses", {"input": "a", "stream": True, **body})
        assert r.status == 400 and r.json["error"]["param"] == param, r


def test_a_client_that_leaves_a_stream_frees_its_blocks(server):
    with server.raw() as s:
        s.sendall(ternlib.http_bytes("/v1/responses", {"input": POEM, "stream": True, "ignore_eos": True}))
        while b"output_text.delta" not in s.recv(65536):
            pass
    server.wait_idle(5)


def test_a_shutdown_fails_the_response_in_the_stream_and_in_the_body():
    with ternlib.Server() as server:
        got = {}

        def run(stream):
            got[stream] = server.post("/v1/responses", {"input": POEM, "stream": stream, "ignore_eos": True})
        threads = [threading.Thread(target=run, args=(s,)) for s in (False, True)]
        for t in threads:
            t.start()
        server.wait_running(2)
        assert server.stop() == 0
        for t in threads:
            t.join()
    ev = parse_events(got[True].body)
    assert ev[-1]["type"] == "response.failed"
    for d in (ev[-1]["response"], got[False].json):
        assert d["status"] == "failed" and d["error"]["code"] == "server_error" and d["error"]["message"]


# ---- structured output ---------------------------------------------------------------------------------------------

def test_a_schema_in_text_format_is_enforced(server):
    text = {"format": {"type": "json_schema", "name": "poem", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        d = respond(server, POEM, text=text, temperature=1.2, seed=seed, max_output_tokens=200)
        value = json.loads(output_text(d))
        assert set(value) == {"title", "lines"} and isinstance(value["lines"], int)
        assert d["text"] == text
        ev = events(server, POEM, text=text, temperature=1.2, seed=seed, max_output_tokens=200)
        assert output_text(ev[-1]["response"]) == output_text(d)


def test_json_object_and_plain_text_formats(server):
    d = respond(server, POEM, text={"format": {"type": "json_object"}}, max_output_tokens=300, temperature=1, seed=1)
    if d["status"] == "completed":
        assert isinstance(json.loads(output_text(d)), dict)
    else:
        assert output_text(d).lstrip().startswith("{")
    assert output_text(respond(server, POEM, text={"format": {"type": "text"}, "verbosity": "medium"})) == \
        output_text(respond(server, POEM))


def test_structured_outputs_work_too_but_not_both(server):
    d = respond(server, POEM, structured_outputs={"choice": ["甲", "乙"]})
    assert output_text(d) in ("甲", "乙")
    e = respond(server, POEM, 400, structured_outputs={"choice": ["甲"]}, text={"format": {"type": "json_object"}})
    assert e["param"] == "text" and "structured_outputs" in e["message"]


# ---- tools ---------------------------------------------------------------------------------------------------------

WEATHER = {"type": "function", "name": "weather", "description": "Weather of a city", "strict": True,
           "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6},
                                                           "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                          "required": ["city", "days"], "additionalProperties": False}}
ADD = {"type": "function", "name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"],
    "additionalProperties": False}}
TOOLS = [WEATHER, ADD]


def chat_tools(tools):
    return [{"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in tools]


def check_call(item):
    assert item["type"] == "function_call" and item["status"] == "completed" and item["id"].startswith("fc_")
    assert item["call_id"] and item["call_id"] != item["id"]
    args = json.loads(item["arguments"])
    if item["name"] == "weather":
        assert set(args) == {"city", "days"} and len(args["city"]) <= 6 and 1 <= args["days"] <= 9
    else:
        assert item["name"] == "add" and set(args) == {"a"} and 0 <= args["a"] <= 99


def test_a_required_tool_is_called_as_chat_calls_it(server):
    for seed in range(4):
        kw = {"temperature": 1, "seed": seed, "parallel_tool_calls": False}
        d = respond(server, POEM, tools=TOOLS, tool_choice="required", max_output_tokens=200, **kw)
        assert d["status"] == "completed" and d["tools"] == TOOLS and d["tool_choice"] == "required"
        item, = d["output"]
        check_call(item)
        c = server.chat(POEM, tools=chat_tools(TOOLS), tool_choice="required", max_tokens=200, **kw)
        call = c["choices"][0]["message"]["tool_calls"][0]["function"]
        assert (item["name"], item["arguments"]) == (call["name"], call["arguments"])


def test_a_named_tool_is_called(server):
    choice = {"type": "function", "name": "add"}
    d = respond(server, POEM, tools=TOOLS, tool_choice=choice, max_output_tokens=100)
    check_call(d["output"][0])
    assert d["output"][0]["name"] == "add" and d["tool_choice"] == choice and len(d["output"]) == 1
    e = respond(server, POEM, 400, tools=TOOLS, tool_choice={"type": "function", "name": "nobody"})
    assert e["param"] == "tool_choice" and "nobody" in e["message"]


def test_a_streamed_call_tells_its_arguments_piece_by_piece(server):
    kw = {"tools": TOOLS, "tool_choice": "required", "max_output_tokens": 200, "temperature": 1, "seed": 3}
    plain, ev = respond(server, POEM, **kw), events(server, POEM, **kw)
    assert without_ids(ev[-1]["response"]["output"]) == without_ids(plain["output"])
    for index, item in enumerate(ev[-1]["response"]["output"]):
        check_call(item)
        mine = [e for e in ev if e.get("output_index") == index]
        types = [e["type"].removeprefix("response.") for e in mine]
        n = types.count("function_call_arguments.delta")
        assert n > 1 and types == ["output_item.added"] + n * ["function_call_arguments.delta"] + \
            ["function_call_arguments.done", "output_item.done"]
        assert mine[0]["item"] == {**item, "arguments": "", "status": "in_progress"}
        assert "".join(e["delta"] for e in mine[1:-2]) == mine[-2]["arguments"] == item["arguments"]
        assert all(e["item_id"] == item["id"] for e in mine[1:-1]) and mine[-1]["item"] == item


def test_a_call_that_is_cut_is_incomplete(server):
    kw = {"tools": [ADD], "tool_choice": {"type": "function", "name": "add"}, "max_output_tokens": 3}
    for d in (respond(server, POEM, **kw), events(server, POEM, **kw)[-1]["response"]):
        assert d["status"] == "incomplete" and [i["status"] for i in d["output"]] == ["incomplete"]


def test_tools_with_choice_none_are_not_called_and_auto_needs_its_flag(server):
    d = respond(server, POEM, tools=TOOLS, tool_choice="none")
    assert [i["type"] for i in d["output"]] == ["message"]
    for kw in ({}, {"tool_choice": "auto"}):
        e = respond(server, POEM, 400, tools=TOOLS, **kw)
        assert "--enable-auto-tool-choice" in e["message"] and e["param"] == "tool_choice"


# Tells everything of a message, so that a lost field is a lost token.
TELL_ALL = ("{% for m in messages %}{{ m.role }}|{{ m.content }}|{{ m.tool_calls | default([]) | tojson }}|"
            "{{ m.tool_call_id | default('') }}|{{ m.reasoning_content | default('') }}\n{% endfor %}"
            "{{ tools | default([]) | tojson }}Assistant: ")


@pytest.fixture(scope="module")
def teller():
    with ternlib.Server(args=["--chat-template", TELL_ALL, "--enable-auto-tool-choice", "--tool-call-parser", "ernie45"],
                        env={"VLLM_ENABLE_RESPONSES_API_STORE": "1"}) as s:
        yield s
        assert s.proc.poll() is None


def test_replayed_calls_and_their_outputs_are_the_messages_of_chat(teller):
    kw = {"tools": TOOLS, "temperature": 0}
    first = respond(teller, "天气？", tool_choice="required", max_output_tokens=200, **kw)
    calls = [i for i in first["output"] if i["type"] == "function_call"]
    assert calls
    outputs = [{"type": "function_call_output", "call_id": c["call_id"], "output": "晴 " + c["name"]} for c in calls]
    messages = [
        {"role": "user", "content": "天气？"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": c["call_id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls]},
        *({"role": "tool", "tool_call_id": o["call_id"], "content": o["output"]} for o in outputs)]
    chat = teller.chat(messages, tools=chat_tools(TOOLS), temperature=0, max_tokens=24)
    replayed = respond(teller, [{"role": "user", "content": "天气？"}, *first["output"], *outputs], **kw)
    by_id = respond(teller, outputs, previous_response_id=first["id"], **kw)
    in_parts = respond(teller, [{**o, "output": [{"type": "input_text", "text": o["output"]}]} for o in outputs],
                       previous_response_id=first["id"], **kw)
    for d in (replayed, by_id, in_parts):
        assert d["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
        assert output_text(d) == (chat["choices"][0]["message"]["content"] or "")


def test_reasoning_text_and_calls_in_a_row_are_one_message(teller):
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{\"a\": 1}"}
    items = [{"role": "user", "content": "问"},
             {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "想"}]},
             {"role": "assistant", "content": [{"type": "output_text", "text": "好"}]}, call,
             {"type": "function_call_output", "call_id": "c1", "output": "2"},
             {"role": "assistant", "content": "答"}, {"role": "assistant", "content": "又答"}]
    messages = [{"role": "user", "content": "问"},
                {"role": "assistant", "content": "好", "reasoning_content": "想", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
                {"role": "assistant", "content": "答"}, {"role": "assistant", "content": "又答"}]
    d, c = respond(teller, items), teller.chat(messages, temperature=0, max_tokens=24)
    assert d["usage"]["input_tokens"] == c["usage"]["prompt_tokens"]
    assert output_text(d) == c["choices"][0]["message"]["content"]


def test_arguments_that_are_no_json_are_refused(teller):
    e = respond(teller, [{"role": "user", "content": "a"}, {"type": "function_call", "call_id": "c", "name": "f",
                                                           "arguments": "{\"a\""}], 400)
    assert "arguments" in e["message"]


# ---- refusals ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("body,param", [
    ({"input": None}, "body.input"),
    ({"input": []}, "body.input"),
    ({"input": [3]}, "body.input.0"),
    ({"input": [{"role": "user"}]}, "body.input.0.content"),
    ({"input": [{"content": "a"}]}, "body.input.0.role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "input.0.content"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "body.input.0.content"),
    ({"input": ["a"]}, "body.input.0"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.type"),
    ({"input": [{"type": "computer_call"}]}, "input.0.type"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "body.input.0.call_id"),
    ({"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": {}}]}, "body.input.0.arguments"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "body.input.0.output"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input.0.encrypted_content"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "5"}, "body.max_output_tokens"),
    ({"instructions": ["a"]}, "body.instructions"),
    ({"text": {"format": {"type": "grammar"}}}, "body.text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "body.text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "nonsense"}}}}, "text.format"),
    ({"text": {"verbosity": "high"}}, "text.verbosity"),
    ({"tools": [{"type": "web_search_preview"}]}, "tools.0"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools.0"),
    ({"tools": [{"type": "function"}]}, "body.tools.0.name"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"include": ["everything"]}, "body.include"),
    ({"truncation": "some"}, "body.truncation"),
    ({"service_tier": "gold"}, "body.service_tier"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"previous_response": {}}, "previous_response"),
    ({"background": True, "store": False}, "background"),
    ({"background": True}, "background"),
    ({"n": 2}, "n"),
    ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"temperature": -1}, "temperature"),
    ({"top_logprobs": 1000}, "top_logprobs"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
    ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
    ({"use_beam_search": True}, "use_beam_search"),
])
def test_what_cannot_be_honoured_is_a_400_that_names_it(server, body, param):
    r = server.post("/v1/responses", {"input": "a", **body})
    assert r.status == 400, r
    assert r.json["error"]["param"] == param, r
    assert r.json["error"]["message"]


def test_fields_that_change_nothing_are_accepted(server):
    plain = output_text(respond(server, POEM))
    d = respond(server, POEM, store=True, metadata={"k": "v"}, service_tier="auto", user="u", safety_identifier="s",
                prompt_cache_key="k", truncation="disabled", include=["reasoning.encrypted_content"],
                parallel_tool_calls=True, max_tool_calls=3, background=False, reasoning={"summary": "auto"},
                tools=[], tool_choice="auto", something_new=1, instructions="")
    assert output_text(d) == plain and d["reasoning"] == {"summary": "auto"} and d["max_tool_calls"] == 3
    assert list(events(server, POEM, stream_options={"include_obfuscation": False})[-1]["response"]) == RESPONSE_FIELDS


def test_an_unknown_model_is_a_404_and_other_methods_a_405(server):
    r = server.post("/v1/responses", {"model": "nobody", "input": "a"})
    assert r.status == 404 and r.json["error"]["param"] == "model"
    assert server.get("/v1/responses").status == 405
    assert server.request("DELETE", "/v1/responses/resp_1").status == 405
    assert server.get("/v1/responses/resp_1/nothing").status == 404
    assert server.get("/v1/responses/").status == 404


def test_a_prompt_that_does_not_fit_is_refused_or_truncated(server):
    long = "春眠不觉晓，" * 3000
    e = respond(server, long, 400)
    assert e["code"] == "context_length_exceeded"
    d = respond(server, long, truncation="auto", max_output_tokens=4)
    assert d["truncation"] == "auto" and d["usage"]["output_tokens"] == 4


# ---- the store -----------------------------------------------------------------------------------------------------

def test_without_a_store_nothing_is_found(server):
    d = respond(server, POEM, store=True)
    r = server.get("/v1/responses/" + d["id"])
    assert r.status == 404 and r.json["error"]["param"] == "response_id" and d["id"] in r.json["error"]["message"]
    assert server.post(f"/v1/responses/{d['id']}/cancel", {}).status == 404
    e = respond(server, "a", 404, previous_response_id=d["id"])
    assert e["param"] == "previous_response_id" and "VLLM_ENABLE_RESPONSES_API_STORE" in e["message"]


@pytest.fixture(scope="module")
def keeper():
    with ternlib.Server(env={"VLLM_ENABLE_RESPONSES_API_STORE": "1"}) as s:
        yield s
        assert s.proc.poll() is None


def wait_done(server, id, timeout=60):
    end = time.monotonic() + timeout * ternlib.SLOW
    while True:
        d = server.get("/v1/responses/" + id).json
        if d["status"] not in ("queued", "in_progress"):
            return d
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_stored_response_is_found_as_it_was(keeper):
    d = respond(keeper, POEM)
    r = keeper.get("/v1/responses/" + d["id"])
    assert r.status == 200 and r.json == d
    assert keeper.get("/v1/responses/" + d["id"].replace("_", "%5F")).json == d
    streamed = events(keeper, POEM)[-1]["response"]
    assert keeper.get("/v1/responses/" + streamed["id"]).json == streamed
    kept_not = respond(keeper, POEM, store=False)
    assert keeper.get("/v1/responses/" + kept_not["id"]).status == 404


def test_only_a_running_response_can_be_cancelled(keeper):
    d = respond(keeper, POEM)
    r = keeper.request("POST", f"/v1/responses/{d['id']}/cancel")
    assert r.status == 400 and r.json["error"]["param"] == "response_id"


def test_five_turns_by_previous_response_id_are_those_of_replayed_items_and_of_chat(keeper):
    questions = ["写一首诗。", "再写一首。", "它的题目是什么？", "谁写的？", "谢谢。"]
    previous, items, messages = None, [], []
    for q in questions:
        by_id = respond(keeper, q, previous_response_id=previous, instructions="你是诗人。", max_output_tokens=12)
        items.append({"role": "user", "content": q})
        messages.append({"role": "user", "content": q})
        by_items = respond(keeper, items, instructions="你是诗人。", max_output_tokens=12)
        by_chat = keeper.chat([{"role": "system", "content": "你是诗人。"}, *messages], max_tokens=12, temperature=0)
        text = by_chat["choices"][0]["message"]["content"]
        assert output_text(by_id) == output_text(by_items) == text
        assert by_id["usage"]["input_tokens"] == by_items["usage"]["input_tokens"] == by_chat["usage"]["prompt_tokens"]
        assert by_id["previous_response_id"] == previous
        if by_id["usage"]["input_tokens"] > 32:
            assert by_items["usage"]["input_tokens_details"]["cached_tokens"] > 0
        previous = by_id["id"]
        items += by_items["output"]
        messages.append({"role": "assistant", "content": text})


def test_instructions_do_not_carry_over_to_the_next_response(keeper):
    d = respond(keeper, "写一首诗。", instructions="你是诗人。")
    follow = respond(keeper, "再来。", previous_response_id=d["id"])
    c = keeper.chat([{"role": "user", "content": "写一首诗。"}, {"role": "assistant", "content": output_text(d)},
                     {"role": "user", "content": "再来。"}], max_tokens=24, temperature=0)
    assert follow["usage"]["input_tokens"] == c["usage"]["prompt_tokens"]


def test_an_unknown_previous_response_is_a_404(keeper):
    e = respond(keeper, "a", 404, previous_response_id="resp_nobody")
    assert e["type"] == "invalid_request_error" and e["param"] == "previous_response_id"


def test_a_background_response_is_queued_runs_and_is_found(keeper):
    plain = respond(keeper, POEM)
    d = respond(keeper, POEM, background=True)
    assert d["status"] == "queued" and d["output"] == [] and d["usage"] is None and list(d) == RESPONSE_FIELDS
    done = wait_done(keeper, d["id"])
    assert done["status"] == plain["status"] and output_text(done) == output_text(plain)
    follow = respond(keeper, "再来。", previous_response_id=d["id"], max_output_tokens=2)
    assert follow["usage"]["input_tokens"] > plain["usage"]["input_tokens"]


def test_a_background_response_is_cancelled(keeper):
    d = respond(keeper, POEM, background=True, ignore_eos=True, max_output_tokens=None, request_id="long-one")
    e = respond(keeper, "a", 400, previous_response_id=d["id"])
    assert e["param"] == "previous_response_id" and "not finished" in e["message"]
    same = keeper.post("/v1/responses", {"input": "a", "background": True, "request_id": "long-one"})
    assert same.status == 400 and same.json["error"]["param"] == "request_id"
    r = keeper.request("POST", f"/v1/responses/{d['id']}/cancel")
    assert r.status == 200 and r.json["status"] == "cancelled" and r.json["id"] == d["id"]
    keeper.wait_idle(5)
    assert keeper.get("/v1/responses/" + d["id"]).json["status"] == "cancelled"
    assert keeper.request("POST", f"/v1/responses/{d['id']}/cancel").status == 400


def test_a_background_stream_goes_on_without_its_client_and_can_be_followed_from_any_event(keeper):
    body = {"input": POEM, "stream": True, "background": True, "ignore_eos": True, "max_output_tokens": 300,
            "request_id": "followed", "temperature": 0}
    with keeper.raw() as s:
        s.sendall(ternlib.http_bytes("/v1/responses", body))
        while b"output_text.delta" not in s.recv(65536):
            pass
    live = parse_events(keeper.get("/v1/responses/resp_followed?stream=true").body)
    assert [e["sequence_number"] for e in live] == list(range(len(live)))
    assert live[-1]["type"] == "response.incomplete" and live[-1]["response"]["usage"]["output_tokens"] == 300
    later = parse_events(keeper.get("/v1/responses/resp_followed?starting_after=4&stream=true").body)
    assert later == live[5:]
    assert keeper.get("/v1/responses/resp_followed").json == live[-1]["response"]
    for query in ("starting_after=x", "starting_after=-5"):
        assert keeper.get("/v1/responses/resp_followed?stream=true&" + query).status == 400


def test_a_follower_that_stops_reading_for_a_while_gets_every_event(keeper):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(30 * ternlib.SLOW)
        s.connect(("127.0.0.1", keeper.port))
        s.sendall(ternlib.http_bytes("/v1/responses", {
            "input": POEM, "stream": True, "background": True, "ignore_eos": True, "max_output_tokens": 1500,
            "request_id": "slow"}))
        assert s.recv(1)
        wait_done(keeper, "resp_slow")
        raw = b""
        while not raw.endswith(b"\r\n0\r\n\r\n"):
            got = s.recv(65536)
            assert got, "the stream was cut"
            raw += got
    assert raw.count(b"event: response.output_text.delta") >= 1000
    live = parse_events(keeper.get("/v1/responses/resp_slow?stream=true").body)
    assert [e["sequence_number"] for e in live] == list(range(len(live)))
    assert raw.count(b"event: ") == len(live)


def test_long_requests_continue_stored_responses_while_others_are_stored(keeper):
    """Long bodies are parsed on another thread, which reads the store that the net loop writes."""
    first = respond(keeper, "春" * 400, max_output_tokens=2)
    want = respond(keeper, "夏" * 100, previous_response_id=first["id"], max_output_tokens=4)
    pad = {"metadata": {"pad": "x" * 20000}}

    def ask(i):
        d = respond(keeper, "夏" * 100, previous_response_id=first["id"], max_output_tokens=4, **(pad if i % 2 else {}))
        return d["usage"]["input_tokens"], output_text(d)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        got = set(pool.map(ask, range(64)))
    assert got == {(want["usage"]["input_tokens"], output_text(want))}


def test_events_are_kept_of_background_streams_only(keeper):
    d = respond(keeper, POEM)
    r = keeper.get(f"/v1/responses/{d['id']}?stream=true")
    assert r.status == 400 and r.json["error"]["param"] == "response_id"


def test_cancelling_a_background_stream_ends_it_for_those_who_follow(keeper):
    got = {}

    def follow():
        got["body"] = keeper.post("/v1/responses", {"input": POEM, "stream": True, "background": True,
                                                    "ignore_eos": True, "request_id": "cut"}).body
    t = threading.Thread(target=follow)
    t.start()
    keeper.wait_running()
    assert keeper.request("POST", "/v1/responses/resp_cut/cancel").json["status"] == "cancelled"
    t.join(30)
    ev = parse_events(got["body"])
    assert not ev or ev[-1]["response"]["status"] == "cancelled"


def test_a_background_request_that_is_wrong_is_refused_at_once(keeper):
    assert respond(keeper, "a", 400, background=True, temperature=9)["param"] == "temperature"


def test_background_requests_are_aborted_when_the_server_stops():
    with ternlib.Server(env={"VLLM_ENABLE_RESPONSES_API_STORE": "1"}) as server:
        respond(server, POEM, background=True, ignore_eos=True, max_output_tokens=None)
        server.wait_running()
        assert server.stop() == 0
