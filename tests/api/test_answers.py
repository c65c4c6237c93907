# SPDX-License-Identifier: Apache-2.0
"""Shapes of answers, usage, n, seeds, log-probabilities; T8, T9. A stream says what the plain answer says."""
import concurrent.futures
import threading
import time

import pytest

POEM = "写一首五言绝句，题目是《夜雨》。"


def test_completion_has_every_field_in_order(server):
    d = server.completion("Once upon a time", max_tokens=5, temperature=0, ignore_eos=True)
    assert list(d) == ["id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage",
                       "kv_transfer_params", "ec_transfer_params", "metrics"]
    assert d["id"].startswith("cmpl-") and d["object"] == "text_completion" and d["model"] == server.model
    assert abs(d["created"] - time.time()) < 60 and isinstance(d["created"], int)
    c = d["choices"][0]
    assert list(c) == ["index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs",
                       "prompt_token_ids", "routed_experts"]
    assert c["finish_reason"] == "length" and c["logprobs"] is None and c["index"] == 0
    n = len(server.tokenize("Once upon a time"))
    assert d["usage"]["prompt_tokens"] == n and d["usage"]["completion_tokens"] == 5
    assert d["usage"]["total_tokens"] == n + 5
    assert list(d["usage"]) == ["prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details",
                                "completion_tokens_details"]


def test_chat_completion_has_every_field_in_order(server):
    d = server.chat(POEM, max_tokens=5, temperature=0)
    assert list(d) == ["id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage",
                       "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params",
                       "metrics"]
    assert d["id"].startswith("chatcmpl-") and d["object"] == "chat.completion"
    c = d["choices"][0]
    assert list(c) == ["index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"]
    assert list(c["message"]) == ["role", "content", "refusal", "annotations", "audio", "function_call", "reasoning",
                                  "reasoning_content"]
    assert c["message"]["role"] == "assistant" and c["message"]["content"]


def test_max_tokens_defaults_to_16_for_completions_and_to_the_context_for_chat(server):
    d = server.completion("a", temperature=0, ignore_eos=True)
    assert d["usage"]["completion_tokens"] == 16
    d = server.chat("hi", temperature=0, ignore_eos=True)
    n = server.get("/v1/models").json["data"][0]["max_model_len"]
    assert d["usage"]["total_tokens"] == n and d["choices"][0]["finish_reason"] == "length"


def test_models_list(server):
    d = server.get("/v1/models").json
    assert d["object"] == "list" and len(d["data"]) == 1
    card = d["data"][0]
    assert list(card) == ["id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"]
    assert card["id"] == card["root"] == server.model and card["owned_by"] == "vllm" and card["object"] == "model"
    assert card["permission"][0]["allow_sampling"] is True


def test_the_models_last_path_component_is_accepted(server):
    for path, body in (("/v1/completions", {"prompt": "a"}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        r = server.post(path, {**body, "model": server.model.rstrip("/").rsplit("/", 1)[1], "max_tokens": 1})
        assert r.status == 200 and r.json["model"] == server.model


def test_x_request_id_becomes_the_id(server):
    r = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, {"X-Request-Id": "abc-1"})
    assert r.json["id"] == "cmpl-abc-1"
    r = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
                    {"X-Request-Id": "abc-2"})
    assert r.json["id"] == "chatcmpl-abc-2"


def test_tokenize_and_detokenize(server):
    d = server.post("/tokenize", {"prompt": "春眠不觉晓 ok", "return_token_strs": True}).json
    assert list(d) == ["count", "max_model_len", "tokens", "token_strs"]
    assert d["count"] == len(d["tokens"]) == len(d["token_strs"])
    assert server.detokenize(d["tokens"]) == "春眠不觉晓 ok"
    assert server.post("/tokenize", {"prompt": "x"}).json["token_strs"] is None
    assert server.post("/tokenize", {"prompt": ""}).json["tokens"] == []
    for bad in ({"tokens": ["a"]}, {"tokens": [-1]}, {"tokens": 5}, {}, {"tokens": [10 ** 9]}):
        assert server.post("/detokenize", bad).status == 400, bad
    for bad in ({"prompt": 5}, {}, {"messages": 5}):
        assert server.post("/tokenize", bad).status == 400, bad


# ---- prompts ----

def test_text_ids_and_lists_of_them_are_the_same_prompts(server):
    texts = ["春眠不觉晓", "once upon", "x"]
    ids = [server.tokenize(t) for t in texts]
    kw = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
    single = [server.completion(t, **kw)["choices"][0]["text"] for t in texts]
    assert [server.completion(i, **kw)["choices"][0]["text"] for i in ids] == single
    for prompts in (texts, ids):
        d = server.completion(prompts, **kw)
        assert [c["index"] for c in d["choices"]] == [0, 1, 2]
        assert [c["text"] for c in d["choices"]] == single
        assert d["usage"]["prompt_tokens"] == sum(map(len, ids)) and d["usage"]["completion_tokens"] == 18
        s = server.stream("/v1/completions", {"prompt": prompts, **kw})
        assert [s.text(i) for i in range(3)] == single and s.done


def test_a_list_of_prompts_times_n(server):
    d = server.completion(["春", "once"], n=3, temperature=1, seed=1, max_tokens=4, ignore_eos=True)
    assert [c["index"] for c in d["choices"]] == list(range(6))
    one = server.completion("once", n=3, temperature=1, seed=1, max_tokens=4, ignore_eos=True)
    assert [c["text"] for c in d["choices"][3:]] == [c["text"] for c in one["choices"]]


def test_echo_puts_the_prompt_in_front(server):
    kw = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}
    plain = server.completion("春眠不觉晓，", **kw)["choices"][0]["text"]
    assert server.completion("春眠不觉晓，", echo=True, **kw)["choices"][0]["text"] == "春眠不觉晓，" + plain
    s = server.stream("/v1/completions", {"prompt": "春眠不觉晓，", "echo": True, **kw})
    assert s.text() == "春眠不觉晓，" + plain
    d = server.completion("春眠", echo=True, max_tokens=0, logprobs=0)
    assert d["choices"][0]["text"] == "春眠"


def test_return_token_ids(server):
    ids = server.tokenize("春眠")
    d = server.completion("春眠", temperature=0, max_tokens=6, ignore_eos=True, return_token_ids=True)
    c = d["choices"][0]
    assert c["prompt_token_ids"] == ids and len(c["token_ids"]) == 6
    assert server.detokenize(ids + c["token_ids"]) == "春眠" + c["text"]
    s = server.stream("/v1/completions", {"prompt": "春眠", "temperature": 0, "max_tokens": 6, "ignore_eos": True,
                                          "return_token_ids": True})
    assert [i for x in s.choices() for i in x["token_ids"] or ()] == c["token_ids"]


# ---- streams ----

def test_completion_stream_chunks_have_their_shape(server):
    s = server.stream("/v1/completions", {"prompt": "春", "max_tokens": 6, "temperature": 0, "ignore_eos": True})
    assert s.done and s.status == 200
    for chunk in s.chunks:
        assert chunk["object"] == "text_completion" and len(chunk["choices"]) == 1 and "usage" not in chunk
        assert list(chunk["choices"][0]) == ["index", "text", "logprobs", "finish_reason", "stop_reason",
                                             "prompt_token_ids", "token_ids"]
    assert len({c["id"] for c in s.chunks}) == 1
    assert s.choices()[-1]["finish_reason"] == "length"
    assert all(c["finish_reason"] is None for c in s.choices()[:-1])


def test_chat_stream_chunks_have_their_shape(server):
    s = server.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": POEM}], "max_tokens": 6,
                                               "temperature": 0, "ignore_eos": True})
    first = s.chunks[0]
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["choices"][0]["logprobs"] is None and first["choices"][0]["finish_reason"] is None
    assert all("role" not in c["delta"] for c in s.choices()[1:])
    last = s.choices()[-1]
    assert last["finish_reason"] == "length" and "stop_reason" in last
    assert last["delta"].get("content"), "the last text and the finish reason share a chunk"


def test_a_stream_says_what_the_plain_answer_says(server):
    for k in range(12):
        kw = {"max_tokens": 24, "temperature": 0.9, "seed": k, "top_p": 0.9}
        prompt = POEM if k % 2 else "Once there was a fox who"
        a = server.chat(prompt, **kw)
        s = server.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], **kw,
                                                   "stream_options": {"include_usage": True}})
        c = a["choices"][0]
        assert (s.text(), s.finish()) == (c["message"]["content"], c["finish_reason"])
        for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert s.usage()[field] == a["usage"][field]


def test_n_interleaves_and_each_choice_finishes_once(server):
    body = {"prompt": "春", "n": 4, "temperature": 1, "seed": 9, "max_tokens": 12}
    d = server.completion("春", **{k: v for k, v in body.items() if k != "prompt"})
    s = server.stream("/v1/completions", body)
    for i in range(4):
        assert (s.text(i), s.finish(i)) == (d["choices"][i]["text"], d["choices"][i]["finish_reason"])


# ---- T8: usage in streams ----

@pytest.mark.parametrize("path,body", [
    ("/v1/completions", {"prompt": "春"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "春"}]})])
def test_streamed_usage_comes_only_when_asked(server, path, body):
    body = {**body, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    plain = server.post(path, body).json["usage"]
    for options in ({}, {"stream_options": None}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}):
        s = server.stream(path, {**body, **options})
        assert s.done and all(c["choices"] for c in s.chunks) and not any(c.get("usage") for c in s.chunks)
    s = server.stream(path, {**body, "stream_options": {"include_usage": True}})
    empty = [c for c in s.chunks if not c["choices"]]
    assert len(empty) == 1 and s.chunks[-1] is empty[0]
    u = empty[0]["usage"]
    assert u["prompt_tokens"] + u["completion_tokens"] == u["total_tokens"] == plain["total_tokens"]
    s = server.stream(path, {**body, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    counts = [c["usage"]["completion_tokens"] for c in s.chunks]
    assert counts == sorted(counts) and counts[-1] == 5 and all(c["usage"]["total_tokens"] for c in s.chunks)


# ---- T9: n, seed, log-probabilities ----

def test_n_with_a_seed_is_repeatable_alone_and_among_others(server):
    def ask():
        return [c["text"] for c in server.completion("月", n=3, seed=42, temperature=1, max_tokens=20)["choices"]]
    alone = ask()
    assert len(alone) == 3 and len(set(alone)) > 1
    assert ask() == alone
    stop = threading.Event()

    def noise(k):
        while not stop.is_set():
            server.completion("noise %d" % k, max_tokens=30, temperature=1)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for k in range(8):
            pool.submit(noise, k)
        try:
            for _ in range(3):
                assert ask() == alone
        finally:
            stop.set()


def test_prompt_tokens_are_counted_once_for_n(server):
    a = server.completion("春眠不觉晓", n=1, temperature=1, max_tokens=3, ignore_eos=True)["usage"]
    b = server.completion("春眠不觉晓", n=4, temperature=1, max_tokens=3, ignore_eos=True)["usage"]
    assert b["prompt_tokens"] == a["prompt_tokens"] and b["completion_tokens"] == 12


def test_seeds_differ_and_repeat(server):
    def ask(**kw):
        return server.completion("月", temperature=1.2, max_tokens=20, **kw)["choices"][0]["text"]
    texts = {seed: ask(seed=seed) for seed in range(6)}
    assert len(set(texts.values())) > 3
    assert all(ask(seed=s) == t for s, t in texts.items())
    assert len({ask() for _ in range(6)}) > 3


def test_sample_i_uses_seed_plus_i(server):
    three = server.completion("月", n=3, seed=100, temperature=1, max_tokens=12)["choices"]
    for i, c in enumerate(three):
        assert server.completion("月", seed=100 + i, temperature=1, max_tokens=12)["choices"][0]["text"] == c["text"]


def test_echo_with_logprobs_is_strict_json_and_starts_with_null(server):
    prompt = "correct horse battery staple"
    d = server.completion(prompt, echo=True, logprobs=1, top_k=1, temperature=1, max_tokens=4, ignore_eos=True)
    lp = d["choices"][0]["logprobs"]
    n = len(server.tokenize(prompt)) + 4
    assert all(len(lp[k]) == n for k in ("text_offset", "token_logprobs", "tokens", "top_logprobs"))
    assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
    assert all(v <= 0 for v in lp["token_logprobs"][1:])
    assert "".join(lp["tokens"]) == d["choices"][0]["text"]
    at = 0
    for offset, token in zip(lp["text_offset"], lp["tokens"]):
        assert offset == at
        at += len(token)


def test_completion_logprobs_0_and_k(server):
    for k in (0, 1, 5, 20):
        d = server.completion("春", logprobs=k, temperature=0, max_tokens=6, ignore_eos=True,
                              return_tokens_as_token_ids=True, return_token_ids=True)
        c = d["choices"][0]
        lp = c["logprobs"]
        assert lp["tokens"] == [f"token_id:{i}" for i in c["token_ids"]]
        for token, value, top in zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"]):
            assert list(top)[0] == token and top[token] == value
            assert len(top) == max(k, 1)
            assert value == max(top.values())
            assert list(top.values())[1:] == sorted(list(top.values())[1:], reverse=True)


def test_a_sampled_token_outside_the_top_comes_first(server):
    d = server.completion("春", logprobs=2, temperature=2, seed=3, max_tokens=20, ignore_eos=True,
                          return_tokens_as_token_ids=True)
    lp = d["choices"][0]["logprobs"]
    assert any(len(top) == 3 for top in lp["top_logprobs"])
    assert all(list(top)[0] == token for token, top in zip(lp["tokens"], lp["top_logprobs"]))


def test_chat_logprobs_bytes_join_to_the_content(server):
    for kw in ({"temperature": 0}, {"temperature": 1.5, "seed": 4}):
        d = server.chat(POEM, logprobs=True, top_logprobs=3, max_tokens=20, **kw)
        c = d["choices"][0]
        content = c["logprobs"]["content"]
        assert len(content) == d["usage"]["completion_tokens"]
        joined = b"".join(bytes(x["bytes"]) for x in content)
        assert joined.decode("utf-8", "ignore").startswith(c["message"]["content"].rstrip("\ufffd"))
        assert all(len(x["top_logprobs"]) == 3 and x["top_logprobs"][0]["token"] == x["token"] for x in content)
    d = server.chat(POEM, logprobs=True, max_tokens=3, temperature=0)
    assert all(x["top_logprobs"] == [] for x in d["choices"][0]["logprobs"]["content"])
    assert server.chat(POEM, max_tokens=3)["choices"][0]["logprobs"] is None


def test_streamed_logprobs_equal_the_plain_ones(server):
    body = {"prompt": POEM, "max_tokens": 12, "temperature": 0, "logprobs": 3, "ignore_eos": True}
    plain = server.completion(POEM, **{k: v for k, v in body.items() if k != "prompt"})["choices"][0]["logprobs"]
    s = server.stream("/v1/completions", body)
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [v for c in s.choices() if c["logprobs"] for v in c["logprobs"][field]] == plain[field], field


def test_forbidden_tokens_never_appear_as_infinity(server):
    allowed = server.tokenize("春")
    d = server.completion("a", logprobs=5, allowed_token_ids=allowed, temperature=0, max_tokens=2, ignore_eos=True)
    assert set(d["choices"][0]["text"]) == {"春"}
    d = server.completion("a", prompt_logprobs=2, max_tokens=1, temperature=0)
    p = d["choices"][0]["prompt_logprobs"]
    assert p[0] is None


def test_prompt_logprobs_are_refused_in_streams(server):
    r = server.post("/v1/completions", {"prompt": "abc", "prompt_logprobs": 1, "stream": True, "max_tokens": 1})
    assert r.status == 400


# ---- sampling parameters that change the text in a known way ----

def test_stop_token_ids_and_their_reason(server):
    d = server.completion("春", temperature=0, max_tokens=10, ignore_eos=True, return_token_ids=True)
    ids = d["choices"][0]["token_ids"]
    stop = ids[4]
    d = server.completion("春", temperature=0, max_tokens=10, ignore_eos=True, stop_token_ids=[stop],
                          return_token_ids=True)
    c = d["choices"][0]
    assert c["token_ids"] == ids[:ids.index(stop) + 1]
    assert (c["finish_reason"], c["stop_reason"]) == ("stop", stop)
    assert c["text"] == server.detokenize(ids[:ids.index(stop)])
    assert d["usage"]["completion_tokens"] == ids.index(stop) + 1


def test_stop_string_is_the_stop_reason_and_counts_as_stop(server):
    whole = server.completion("春", temperature=0, max_tokens=20, ignore_eos=True)["choices"][0]["text"]
    before = server.metric("vllm:request_success_total", finished_reason="abort")
    d = server.completion("春", temperature=0, max_tokens=20, ignore_eos=True, stop=[whole[6:8], "\x02"])
    c = d["choices"][0]
    assert (c["finish_reason"], c["stop_reason"]) == ("stop", whole[6:8])
    assert c["text"] == whole[:whole.index(whole[6:8])]
    server.wait_idle()
    assert server.metric("vllm:request_success_total", finished_reason="abort") == before


def test_min_tokens_holds_back_the_end(server):
    short = server.chat(POEM, temperature=0, max_tokens=200)["usage"]["completion_tokens"]
    d = server.chat(POEM, temperature=0, max_tokens=200, min_tokens=short + 10)
    assert d["usage"]["completion_tokens"] >= short + 10


def test_ignore_eos_goes_on(server):
    d = server.chat(POEM, temperature=0, max_tokens=120, ignore_eos=True)
    assert d["usage"]["completion_tokens"] == 120 and d["choices"][0]["finish_reason"] == "length"


def test_logit_bias_forces_and_bans(server):
    t, = server.tokenize("月")[-1:]
    d = server.completion("a", temperature=0, max_tokens=3, logit_bias={str(t): 100}, return_token_ids=True)
    assert d["choices"][0]["token_ids"] == [t] * 3
    first = server.completion("春", temperature=0, max_tokens=1, return_token_ids=True)["choices"][0]["token_ids"][0]
    d = server.completion("春", temperature=0, max_tokens=8, logit_bias={str(first): -100}, return_token_ids=True,
                          ignore_eos=True)
    assert first not in d["choices"][0]["token_ids"]


def test_bad_words_do_not_appear(server):
    whole = server.completion("春", temperature=0, max_tokens=12, ignore_eos=True)["choices"][0]["text"]
    word = next(ch for ch in whole if ch.strip())
    d = server.completion("春", temperature=0, max_tokens=12, ignore_eos=True, bad_words=[word])
    assert word not in d["choices"][0]["text"]


def test_repetition_penalty_changes_repetition(server):
    kw = {"temperature": 0, "max_tokens": 60, "ignore_eos": True, "return_token_ids": True}
    a = server.completion("the the the the", **kw)["choices"][0]["token_ids"]
    b = server.completion("the the the the", repetition_penalty=1.8, **kw)["choices"][0]["token_ids"]
    c = server.completion("the the the the", presence_penalty=2, frequency_penalty=2, **kw)["choices"][0]["token_ids"]
    assert len(set(b)) > len(set(a)) and len(set(c)) > len(set(a))


def test_top_k_1_and_tiny_top_p_are_greedy(server):
    kw = {"max_tokens": 16, "ignore_eos": True}
    greedy = server.completion("春", temperature=0, **kw)["choices"][0]["text"]
    for extra in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}):
        assert server.completion("春", temperature=1, seed=5, **extra, **kw)["choices"][0]["text"] == greedy


def test_sampling_follows_the_distribution(server):
    """2,000 draws of one token against the probabilities that logprobs state (chi-square, 1e-6 level)."""
    top = server.completion("春", temperature=0, max_tokens=1, logprobs=8, return_tokens_as_token_ids=True,
                            ignore_eos=True)["choices"][0]["logprobs"]["top_logprobs"][0]
    import math
    p = {int(k[9:]): math.exp(v) for k, v in top.items()}
    counts, draws = dict.fromkeys(p, 0), 2000
    for block in range(draws // 100):
        d = server.completion("春", temperature=1, top_p=1, top_k=0, max_tokens=1, n=100, seed=block * 1000,
                              return_token_ids=True, ignore_eos=True)
        for c in d["choices"]:
            if c["token_ids"][0] in counts:
                counts[c["token_ids"][0]] += 1
    rest = 1 - sum(p.values())
    chi = sum((counts[i] - draws * q) ** 2 / (draws * q) for i, q in p.items() if draws * q >= 5)
    chi += (draws - sum(counts.values()) - draws * rest) ** 2 / (draws * rest)
    assert chi < 50, (chi, counts, {k: draws * v for k, v in p.items()})


def test_generation_config_gives_the_defaults_that_a_client_leaves_open(tmp_path):
    import json
    import pathlib
    import shutil
    import ternlib
    shutil.copytree(ternlib.MODEL, tmp_path / "m")
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps({"temperature": 1e-9, "eos_token_id": 2}))
    with ternlib.Server(tmp_path / "m") as s:
        greedy = s.completion("春", temperature=0, max_tokens=16)["choices"][0]["text"]
        assert all(s.completion("春", max_tokens=16)["choices"][0]["text"] == greedy for _ in range(4))
    with ternlib.Server(tmp_path / "m", ["--generation-config", "vllm"]) as s:
        assert len({s.completion("春", max_tokens=16)["choices"][0]["text"] for _ in range(5)}) > 1
    assert pathlib.Path(ternlib.MODEL).is_dir()
