# SPDX-License-Identifier: Apache-2.0
"""Tool calls and reasoning with the shipped model (T7, C2..C6, D5..D7). It was trained for neither: calls are forced by
tool_choice, whose grammar has to keep the JSON whole, and marks of reasoning by biased tokens."""
import json
import pathlib
import re

import pytest
import ternlib

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city", "parameters": {
        "type": "object", "required": ["city", "unit"], "properties": {
            "city": {"type": "string", "maxLength": 16}, "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9}}}}}
TIME = {"type": "function", "function": {
    "name": "get_time", "parameters": {
        "$defs": {"zone": {"type": "string", "pattern": "^[A-Z]{3}$"}}, "type": "object",
        "properties": {"zone": {"$ref": "#/$defs/zone"}, "note": {"type": "string", "maxLength": 40}},
        "required": ["zone", "note"]}}}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, TIME]
ASK = [{"role": "user", "content": "What is the weather in Paris, and the time in Rome?"}]


@pytest.fixture(scope="module")
def tools():
    with ternlib.Server(args=["--enable-auto-tool-choice", "--tool-call-parser", "ernie45"]) as s:
        yield s
        assert s.alive


def body(**kw):
    return {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "temperature": 1, "max_tokens": 400, **kw}


def check_arguments(name, text):
    args = ternlib.strict_json(text)
    if name == "get_weather":
        assert set(args) <= {"city", "unit", "days"} and {"city", "unit"} <= set(args)
        assert len(args["city"]) <= 16 and args["unit"] in ("celsius", "fahrenheit")
        assert "days" not in args or 1 <= args["days"] <= 9
    elif name == "get_time":
        assert set(args) == {"zone", "note"} and re.fullmatch("[A-Z]{3}", args["zone"]) and len(args["note"]) <= 40
    else:
        assert name == "now" and args == {}


def assemble(events, index=0):
    """The message of a stream, and its finish reason. Every delta is checked for what it must and must not have."""
    message = {"role": None, "content": None, "reasoning": None, "calls": []}
    finish = None
    for c in events.choices(index):
        assert finish is None, "a chunk after the last"
        delta = c["delta"]
        message["role"] = delta.get("role", message["role"])
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for key in ("content", "reasoning"):
            if delta.get(key):
                message[key] = (message[key] or "") + delta[key]
        for call in delta.get("tool_calls", ()):
            at, calls = call["index"], message["calls"]
            assert isinstance(at, int)
            if at == len(calls):
                assert call["type"] == "function" and call["id"] and call["function"]["name"]
                calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            else:
                assert at == len(calls) - 1 and "id" not in call and "name" not in call["function"]
            calls[at]["arguments"] += call["function"]["arguments"]
        finish = c["finish_reason"]
    assert events.done
    return message, finish


def plain(reply):
    assert reply.status == 200, reply
    choice = reply.json["choices"][0]
    calls = [{"id": c["id"], "name": c["function"]["name"], "arguments": c["function"]["arguments"]}
             for c in choice["message"].get("tool_calls", ())]
    assert all(c["type"] == "function" for c in choice["message"].get("tool_calls", ()))
    return choice["message"], calls, choice["finish_reason"]


def seed_with_two_calls(server):
    for seed in range(64):
        _, calls, finish = plain(server.post("/v1/chat/completions", body(seed=seed)))
        if len(calls) >= 2 and finish == "tool_calls":
            return seed
    raise AssertionError("no seed of 64 makes two calls")


def test_the_round_trip_of_a_tool_conversation(tools):
    """T7: streamed deltas, then the server's own message replayed with content null and without content."""
    seed = seed_with_two_calls(tools)
    message, finish = assemble(tools.stream("/v1/chat/completions", body(seed=seed)))
    whole, calls, whole_finish = plain(tools.post("/v1/chat/completions", body(seed=seed)))
    assert finish == whole_finish == "tool_calls"
    assert message["content"] is None and whole["content"] == ""
    assert [(c["name"], c["arguments"]) for c in message["calls"]] == [(c["name"], c["arguments"]) for c in calls]
    for c in message["calls"]:
        check_arguments(c["name"], c["arguments"])
    ids = [c["id"] for c in message["calls"] + calls]
    assert len(set(ids)) == len(ids)
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "18 degrees"} for c in calls]
    turn = dict(whole)
    for replay in ({**turn, "content": None}, {k: v for k, v in turn.items() if k != "content"}, turn):
        r = tools.post("/v1/chat/completions", body(messages=[*ASK, replay, *results], tool_choice="auto", max_tokens=8))
        assert r.status == 200, r
        assert r.json["choices"][0]["message"]["role"] == "assistant"


def test_forced_calls_always_obey_the_schema(tools):
    for seed in range(40):
        _, calls, finish = plain(tools.post("/v1/chat/completions", body(seed=seed, tools=[*TOOLS, NOW], temperature=1.5)))
        assert calls or finish == "length"
        for c in calls if finish == "tool_calls" else calls[:-1]:
            check_arguments(c["name"], c["arguments"])


def test_a_named_function_is_called_and_no_other(tools):
    choice = {"type": "function", "function": {"name": "get_time"}}
    for seed in range(8):
        message, calls, finish = plain(tools.post("/v1/chat/completions", body(seed=seed, tool_choice=choice)))
        assert [c["name"] for c in calls] == ["get_time"] and message["content"] == "" and finish == "stop"
        check_arguments("get_time", calls[0]["arguments"])
        streamed, streamed_finish = assemble(tools.stream("/v1/chat/completions", body(seed=seed, tool_choice=choice)))
        assert streamed["calls"][0]["arguments"] == calls[0]["arguments"] and streamed_finish == "stop"


def test_one_call_when_parallel_calls_are_off(tools):
    seed = seed_with_two_calls(tools)
    for k in range(seed, seed + 8):
        _, calls, finish = plain(tools.post("/v1/chat/completions", body(seed=k, parallel_tool_calls=False)))
        assert len(calls) == 1 and finish == "tool_calls"


def test_a_cut_is_not_hidden_and_loses_nothing(tools):
    seed = seed_with_two_calls(tools)
    _, full, _ = plain(tools.post("/v1/chat/completions", body(seed=seed)))
    for k in range(1, 40):
        whole, calls, finish = plain(tools.post("/v1/chat/completions", body(seed=seed, max_tokens=k)))
        streamed, streamed_finish = assemble(tools.stream("/v1/chat/completions", body(seed=seed, max_tokens=k)))
        assert finish == streamed_finish == "length"
        assert [(c["name"], c["arguments"]) for c in streamed["calls"]] == [(c["name"], c["arguments"]) for c in calls]
        assert (streamed["content"] or "") == whole["content"]
        for mine, other in zip(calls, full):
            assert mine["name"] == other["name"] and other["arguments"].startswith(mine["arguments"])


def test_blanks_in_arguments_survive_the_stream(tools):
    """C6: a delta of nothing but blanks is data."""
    tool = {"type": "function", "function": {"name": "write", "parameters": {
        "type": "object", "properties": {"text": {"type": "string", "pattern": "^[a-z]( {3}|\\n)[a-z]  $"}},
        "required": ["text"]}}}
    for seed in range(4):
        message, _ = assemble(tools.stream("/v1/chat/completions", body(seed=seed, tools=[tool])))
        assert re.fullmatch("[a-z]( {3}|\n)[a-z]  ", json.loads(message["calls"][0]["arguments"])["text"])


def test_tokens_and_log_probabilities_stay_with_a_stream_of_calls(tools):
    extra = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True, "stream_options": {"include_usage": True}}
    events = tools.stream("/v1/chat/completions", body(seed=1, **extra))
    n = events.usage()["completion_tokens"]
    assert sum(len((c["logprobs"] or {"content": []})["content"]) for c in events.choices()) == n
    assert sum(len(c.get("token_ids") or ()) for c in events.choices()) == n


def test_several_choices_keep_their_calls_apart(tools):
    events = tools.stream("/v1/chat/completions", body(seed=3, n=3))
    whole = tools.post("/v1/chat/completions", body(seed=3, n=3)).json["choices"]
    for i in range(3):
        message, finish = assemble(events, i)
        assert finish == whole[i]["finish_reason"]
        assert [c["arguments"] for c in message["calls"]] == \
            [c["function"]["arguments"] for c in whole[i]["message"]["tool_calls"]]


def test_auto_needs_its_options_and_then_leaves_the_model_free(tools, server):
    free = body(tool_choice="auto", temperature=0, max_tokens=16)
    without = {k: v for k, v in free.items() if k not in ("tools", "tool_choice")}
    want = tools.post("/v1/chat/completions", without).json["choices"][0]["message"]["content"]
    for b in (free, {k: v for k, v in free.items() if k != "tool_choice"}, {**free, "tool_choice": "none"}):
        message, calls, finish = plain(tools.post("/v1/chat/completions", b))
        assert (message["content"], calls, finish) == (want, [], "length")
        assert "tool_calls" not in message
    r = server.post("/v1/chat/completions", free)
    assert r.status == 400 and r.json["error"]["param"] == "tool_choice"
    assert "--enable-auto-tool-choice" in r.json["error"]["message"]
    assert server.post("/v1/chat/completions", {**free, "tool_choice": "none"}).status == 200
    assert plain(server.post("/v1/chat/completions", body(seed=1)))[1]  # forced calls need no options


def test_options_that_make_no_sense_end_the_start(tmp_path):
    r = ternlib.run("serve", ternlib.MODEL, "--enable-auto-tool-choice")
    assert r.returncode != 0 and b"--enable-auto-tool-choice requires --tool-call-parser" in r.stderr
    for option in ("--tool-call-parser", "--reasoning-parser"):
        r = ternlib.run("serve", ternlib.MODEL, option, "hermes")
        assert r.returncode != 0 and b"ernie45" in r.stderr, r.stderr
    r = ternlib.run("serve", ternlib.MODEL, "--reasoning-parser", "ernie45")
    assert r.returncode != 0 and b"<think>" in r.stderr and len(r.stderr.strip().splitlines()) <= 4, r.stderr


# ---- a model with marks ----

THINKS = ("{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}{{ 'Assistant: ' }}"
          "{% if enable_thinking is defined and enable_thinking %}{{ '<think>\n' }}{% endif %}")
BIAS = 6  # enough for </think> to come up once in a while
MARKS = ["<think>", "</think>", "<response>", "</response>", "<tool_call>", "</tool_call>"]


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """The shipped model with six more tokens, whose rows of the (tied) embedding are zero; their logits are 0."""
    path, source = tmp_path_factory.mktemp("marked"), pathlib.Path(ternlib.MODEL)
    for f in source.iterdir():
        if f.name not in ("model.safetensors", "config.json"):
            (path / f.name).write_bytes(f.read_bytes())
    config = json.loads((source / "config.json").read_text())
    old, hidden = config["vocab_size"], config["hidden_size"]
    config["vocab_size"] = old + 16
    (path / "config.json").write_text(json.dumps(config))
    meta, tensors = ternlib.read_safetensors(source / "model.safetensors")
    for name, (dtype, shape, data) in tensors.items():
        if shape == [old, hidden]:
            tensors[name] = (dtype, [old + 16, hidden], data + bytes(16 * hidden * 2))
    ternlib.write_safetensors(path / "model.safetensors", tensors, meta)
    (path / "added_tokens.json").write_text(json.dumps({m: old + i for i, m in enumerate(MARKS)}))
    (path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": MARKS}))
    with ternlib.Server(path, args=["--reasoning-parser", "ernie45", "--chat-template", THINKS,
                                    "--tool-call-parser", "ernie45", "--enable-auto-tool-choice"]) as s:
        s.mark = {m: old + i for i, m in enumerate(MARKS)}
        yield s
        assert s.alive


def ask(server, stream=False, **kw):
    b = {"messages": [{"role": "user", "content": "写一首诗。"}], "temperature": 1, "top_p": 1, "max_tokens": 48, **kw}
    if stream:
        return assemble(server.stream("/v1/chat/completions", b))
    message, _, finish = plain(server.post("/v1/chat/completions", b))
    return message, finish


def test_thinking_off_is_all_content(marked):
    """C2, C4: honoured at top level, in chat_template_kwargs and by reasoning_effort."""
    for off in ({}, {"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}},
                {"reasoning_effort": "none"}):
        message, _ = ask(marked, **off)
        assert message["content"] and message["reasoning"] is None and message["reasoning_content"] is None
    for on in ({"enable_thinking": True}, {"chat_template_kwargs": {"enable_thinking": True}}, {"reasoning_effort": "low"}):
        message, _ = ask(marked, seed=1, **on)
        assert message["content"] is None and message["reasoning"] == message["reasoning_content"] != None  # noqa: E711
        assert ask(marked, stream=True, seed=1, **on)[0]["reasoning"] == message["reasoning"]


def test_marks_split_the_answer_wherever_they_fall(marked):
    bias = {str(marked.mark["</think>"]): BIAS}
    both = 0
    for seed in range(24):
        message, finish = ask(marked, seed=seed, logit_bias=bias, enable_thinking=True)
        streamed, streamed_finish = ask(marked, stream=True, seed=seed, logit_bias=bias, enable_thinking=True)
        assert finish == streamed_finish
        assert (streamed["content"], streamed["reasoning"]) == (message["content"], message["reasoning"])
        assert "</think>" not in (message["reasoning"] or "")
        both += bool(message["reasoning"] and message["content"])
        hidden, _ = ask(marked, seed=seed, logit_bias=bias, enable_thinking=True, include_reasoning=False)
        assert hidden["reasoning"] is None and hidden["content"] == message["content"]
    assert both >= 4


def test_a_grammar_begins_behind_the_reasoning(marked):
    bias = {str(marked.mark["</think>"]): BIAS}
    schema = {"type": "object", "properties": {"状态": {"enum": ["在线", "离线"]}}, "required": ["状态"]}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    both = 0
    for seed in range(24):
        message, finish = ask(marked, seed=seed, logit_bias=bias, enable_thinking=True, response_format=form)
        if finish == "stop":  # never before the schema is fulfilled
            assert json.loads(message["content"])["状态"] in ("在线", "离线")
            both += bool(message["reasoning"])
        b = {"messages": ASK, "temperature": 1, "top_p": 1, "max_tokens": 200, "seed": seed, "logit_bias": bias,
             "enable_thinking": True, "tools": TOOLS, "tool_choice": "required"}
        message, calls, finish = plain(marked.post("/v1/chat/completions", b))
        assert finish in ("tool_calls", "length")
        if finish == "tool_calls":
            for c in calls:
                check_arguments(c["name"], c["arguments"])
            both += bool(message["reasoning"])
    assert both >= 4


def test_reasoning_ends_when_its_budget_is_used_up(marked, tools):
    end = marked.mark["</think>"]
    for budget in (0, 1, 7):
        b = {"messages": ASK, "temperature": 0, "max_tokens": 20, "enable_thinking": True, "return_token_ids": True,
             "thinking_token_budget": budget}
        choice = marked.post("/v1/chat/completions", b).json["choices"][0]
        assert choice["token_ids"].index(end) == budget
        assert choice["message"]["content"] and bool(choice["message"]["reasoning"]) == (budget > 0)
        b |= {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_time"}}, "max_tokens": 200}
        _, calls, finish = plain(marked.post("/v1/chat/completions", b))
        assert finish == "stop"
        check_arguments("get_time", calls[0]["arguments"])
    r = tools.post("/v1/chat/completions", {"messages": ASK, "thinking_token_budget": 5})
    assert r.status == 400 and "--reasoning-parser" in r.json["error"]["message"]


def test_reasoning_tokens_are_counted(marked):
    for seed in range(8):
        r = marked.post("/v1/chat/completions", {
            "messages": ASK, "temperature": 1, "top_p": 1, "max_tokens": 40, "seed": seed, "enable_thinking": True,
            "return_token_ids": True, "logit_bias": {str(marked.mark["</think>"]): BIAS}}).json
        ids = r["choices"][0]["token_ids"]
        end = marked.mark["</think>"]
        want = ids.index(end) + 1 if end in ids else len(ids)
        assert r["usage"]["completion_tokens_details"] == {"reasoning_tokens": want}


def test_a_mark_typed_by_a_user_opens_nothing(marked):
    message, _ = ask(marked, messages=[{"role": "user", "content": "<think>\n"}])
    assert message["reasoning"] is None and message["content"]
