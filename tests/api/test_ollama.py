# SPDX-License-Identifier: Apache-2.0
"""The Ollama dialect: /api/chat, /api/generate and the routes about models, by hand and by the ollama npm client."""
import json
import pathlib

import pytest
import ternlib

USER = [{"role": "user", "content": "写一首诗"}]


def post(server, path, obj):
    """As curl -d does: without a JSON content type."""
    return server.request("POST", path, json.dumps(obj),
                          {"Content-Type": "application/x-www-form-urlencoded"})


def lines(reply):
    assert reply.status == 200, reply
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert reply.body.endswith(b"\n")
    return [ternlib.strict_json(x) for x in reply.body.split(b"\n")[:-1]]


# ---- answers ---------------------------------------------------------------------------------------------------------

def test_a_chat_streams_lines_unless_told_otherwise(server):
    q = {"model": server.model, "messages": USER, "options": {"temperature": 0, "num_predict": 12}}
    got = lines(post(server, "/api/chat", q))
    plain = post(server, "/api/chat", {**q, "stream": False}).json
    want = server.chat(USER, temperature=0, max_tokens=12)
    text = want["choices"][0]["message"]["content"]
    assert "".join(x["message"]["content"] for x in got) == plain["message"]["content"] == text
    assert [x["done"] for x in got] == [False] * (len(got) - 1) + [True]
    for last in (got[-1], plain):
        assert last["done_reason"] == "length" and last["model"] == server.model
        assert last["prompt_eval_count"] == want["usage"]["prompt_tokens"]
        assert last["eval_count"] == 12
        assert last["total_duration"] >= last["eval_duration"] > 0 and last["prompt_eval_duration"] > 0
        assert last["message"]["role"] == "assistant" and last["created_at"].endswith("Z")
    assert got[-1]["message"]["content"] == ""


def test_generate_uses_the_template_and_returns_the_context(server):
    q = {"model": server.model, "prompt": "写一首诗", "system": "You are kind.", "stream": False,
         "options": {"temperature": 0, "num_predict": 12}}
    got = post(server, "/api/generate", q).json
    want = server.chat([{"role": "system", "content": "You are kind."}, *USER], temperature=0, max_tokens=12,
                       return_token_ids=True)
    assert got["response"] == want["choices"][0]["message"]["content"]
    assert got["context"] == want["prompt_token_ids"] + want["choices"][0]["token_ids"]
    streamed = lines(post(server, "/api/generate", {**q, "stream": True}))
    assert "".join(x["response"] for x in streamed) == got["response"]
    assert streamed[-1]["context"] == got["context"]


def test_a_raw_prompt_gets_no_template(server):
    got = post(server, "/api/generate", {"model": server.model, "prompt": "The sky", "raw": True, "stream": False,
                                         "options": {"temperature": 0, "num_predict": 8}}).json
    assert got["response"] == server.completion("The sky", temperature=0, max_tokens=8)["choices"][0]["text"]
    assert got["prompt_eval_count"] == len(server.tokenize("The sky"))


def test_options_mean_what_ours_mean(server):
    options = {"seed": 7, "temperature": 1.3, "top_p": 0.9, "top_k": 30, "min_p": 0.01, "repeat_penalty": 1.2,
               "presence_penalty": 0.5, "frequency_penalty": 0.5, "stop": ["。"], "num_predict": 40}
    got = post(server, "/api/chat", {"model": server.model, "messages": USER, "stream": False, "options": options}).json
    ours = {k: v for k, v in options.items() if k not in ("num_predict", "repeat_penalty")}
    want = server.chat(USER, max_tokens=40, repetition_penalty=1.2, **ours)["choices"][0]
    assert got["message"]["content"] == want["message"]["content"]
    assert got["done_reason"] == want["finish_reason"]


def test_a_format_is_enforced(server):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}},
              "required": ["a", "b"], "additionalProperties": False}
    got = post(server, "/api/generate", {"model": server.model, "prompt": "go", "format": schema, "stream": False}).json
    value = json.loads(got["response"])
    assert set(value) == {"a", "b"} and isinstance(value["a"], bool) and value["b"] in "xy"
    got = post(server, "/api/chat", {"model": server.model, "messages": USER, "format": "json", "stream": False,
                                     "options": {"num_predict": 200, "temperature": 0}}).json
    assert got["message"]["content"].startswith("{")


def test_log_probabilities_come_with_each_line(server):
    q = {"model": server.model, "messages": USER, "logprobs": True, "top_logprobs": 2,
         "options": {"temperature": 0, "num_predict": 4}}
    got = lines(post(server, "/api/chat", q))
    entries = [e for x in got for e in x.get("logprobs", [])]
    assert len(entries) == 4 and all(len(e["top_logprobs"]) == 2 for e in entries)
    assert "".join(e["token"] for e in entries) == "".join(x["message"]["content"] for x in got)


def test_a_request_without_a_prompt_loads_the_model(server):
    got = post(server, "/api/generate", {"model": server.model, "keep_alive": "5m"}).json
    assert got["done"] and got["done_reason"] == "load" and got["response"] == ""
    got = post(server, "/api/chat", {"model": server.model, "messages": [], "keep_alive": -1}).json
    assert got["done"] and got["done_reason"] == "load" and got["message"]["content"] == ""


# ---- refusals --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path, extra, name", [
    ("/api/generate", {"prompt": "x", "suffix": "y"}, "suffix"),
    ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
    ("/api/generate", {"prompt": "x", "context": [1, 2]}, "context"),
    ("/api/generate", {"prompt": "x", "images": ["aGk="]}, "images"),
    ("/api/generate", {"prompt": 5}, "prompt"),
    ("/api/generate", {"prompt": "x", "format": "yaml"}, "format"),
    ("/api/generate", {"prompt": "x", "stream": "no"}, "stream"),
    ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages.0.images"),
    ("/api/chat", {"messages": USER, "options": {"mirostat": 1}}, "options.mirostat"),
    ("/api/chat", {"messages": USER, "options": {"tfs_z": 0.5}}, "options.tfs_z"),
    ("/api/chat", {"messages": USER, "options": {"repeat_penalty": 1.1, "repeat_last_n": 64}}, "repeat_last_n"),
    ("/api/chat", {"messages": USER, "options": {"temprature": 1}}, "temprature"),
    ("/api/chat", {"messages": USER, "options": {"temperature": -1}}, "temperature"),
    ("/api/chat", {"messages": USER, "options": {"num_predict": "many"}}, "num_predict"),
    ("/api/chat", {"messages": USER, "options": []}, "options"),
    ("/api/chat", {"messages": ["x"]}, "dictionary"),
    ("/api/chat", {"messages": USER, "tools": "x"}, "tools"),
    ("/api/chat", {"messages": USER, "format": {"type": "nonsense"}}, "type"),
])
def test_what_is_not_supported_is_a_sentence_that_names_it(server, path, extra, name):
    r = post(server, path, {"model": server.model, **extra})
    assert r.status == 400, r
    assert set(r.json) == {"error"} and name in r.json["error"]


def test_options_without_a_meaning_here_change_nothing(server):
    q = {"model": server.model, "messages": USER, "stream": False}
    base = {"temperature": 0, "num_predict": 8}
    free = {"num_ctx": 4096, "num_keep": 4, "num_batch": 512, "num_gpu": 1, "main_gpu": 0, "num_thread": 4,
            "numa": True, "low_vram": False, "use_mmap": True, "use_mlock": False, "f16_kv": True, "vocab_only": False,
            "tfs_z": 1.0, "typical_p": 1.0, "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1,
            "penalize_newline": True, "repeat_last_n": 64, "repeat_penalty": 1.0}
    a = post(server, "/api/chat", {**q, "options": base}).json["message"]
    b = post(server, "/api/chat", {**q, "options": {**base, **free}, "keep_alive": 0}).json["message"]
    assert a == b


def test_routes_that_are_not_there_are_a_plain_404(server):
    for path in ("/api/embed", "/api/embeddings", "/api/pull", "/api/create"):
        r = post(server, path, {"model": server.model, "input": "x"})
        assert r.status == 404 and r.json == {"error": "Not Found"}
    r = post(server, "/api/chat", {"model": "nobody", "messages": USER})
    assert r.status == 404 and "nobody" in r.json["error"]
    r = server.request("POST", "/api/chat", b"{", {})
    assert r.status == 400 and isinstance(r.json["error"], str)


def test_a_prompt_that_does_not_fit_is_an_error_with_both_numbers(server):
    r = post(server, "/api/generate", {"model": server.model, "prompt": "word " * 5000})
    assert r.status == 400 and "2048" in r.json["error"]


# ---- models ----------------------------------------------------------------------------------------------------------

def test_the_model_is_listed_shown_and_running(server):
    tag = server.get("/api/tags").json["models"][0]
    running = server.get("/api/ps").json["models"][0]
    assert tag["name"] == tag["model"] == running["name"] == server.model
    assert len(tag["digest"]) == 64 and tag["digest"] == running["digest"]
    assert tag["details"]["family"] == "ernie4_5" and tag["details"]["quantization_level"] == "BF16"
    for key in ("model", "name"):
        shown = post(server, "/api/show", {key: server.model}).json
        assert shown["details"] == tag["details"] and "Assistant: " in shown["template"]
        info = shown["model_info"]
        assert info["general.architecture"] == "ernie4_5" and info["ernie4_5.context_length"] == 2048
        assert info["ernie4_5.attention.head_count"] % info["ernie4_5.attention.head_count_kv"] == 0
        assert "temperature 0.8" in shown["parameters"]
    assert post(server, "/api/show", {"model": "nobody"}).status == 404
    assert post(server, "/api/show", {}).status == 400


def test_names_may_have_the_tag_latest(server):
    for name in (server.model + ":latest", pathlib.Path(server.model).name + ":latest", pathlib.Path(server.model).name):
        r = post(server, "/api/chat", {"model": name, "messages": USER, "stream": False, "options": {"num_predict": 1}})
        assert r.status == 200 and r.json["model"] == name
    assert post(server, "/api/show", {"model": server.model + ":7b"}).status == 404


def test_clients_can_ping_and_ask_for_the_version(server):
    assert server.request("HEAD", "/").status == 200
    version = server.get("/api/version").json["version"]
    assert [int(x) for x in version.split(".")] >= [0, 6, 4]


def test_keys_guard_these_routes_too():
    with ternlib.Server(args=["--api-key", "k1"]) as s:
        assert s.get("/api/tags").status == 401
        assert s.request("HEAD", "/").status == 200
        assert s.request("GET", "/api/tags", headers={"Authorization": "Bearer k1"}).status == 200


# ---- a real client ---------------------------------------------------------------------------------------------------

def test_the_ollama_client_chats_generates_and_lists(server, node_clients):
    ternlib.run_node("ollama.mjs", f"http://127.0.0.1:{server.port}")
