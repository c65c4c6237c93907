# SPDX-License-Identifier: Apache-2.0
"""What vLLM's tests of /v1/completions check, in our words and on the shipped model (the table is in README.md). Checks that
other files here make already are not repeated."""
import concurrent.futures

import pytest
from ternlib import Server

PATH = "/v1/completions"
PROMPT = "Hello, my name is"


@pytest.fixture(scope="module")
def wide():
    """No limit on log-probabilities; tokens named by id."""
    with Server(args=["--max-logprobs", -1, "--return-tokens-as-token-ids"]) as s:
        yield s


def error(r):
    assert r.status == 400, r
    return r.json["error"]


# ---- shape, usage, truncation ----

def test_a_single_completion_has_its_usage(server):
    ids = server.tokenize(PROMPT)
    for prompt in (PROMPT, ids, [0, 0, 0, 0, 0]):
        d = server.completion(prompt, max_tokens=5, temperature=0, ignore_eos=True)
        n = 5 if prompt == [0] * 5 else len(ids)
        assert len(d["choices"]) == 1 and d["choices"][0]["finish_reason"] == "length" and d["id"]
        assert (d["usage"]["prompt_tokens"], d["usage"]["completion_tokens"], d["usage"]["total_tokens"]) == (n, 5, n + 5)
        assert d["choices"][0]["prompt_logprobs"] is None


def test_the_side_of_truncation(server):
    ids = list(range(400, 440))

    def kept(**kw):
        c = server.completion(ids, max_tokens=1, temperature=0, return_token_ids=True, **kw)["choices"][0]
        return c["prompt_token_ids"]
    assert kept(truncate_prompt_tokens=7) == kept(truncate_prompt_tokens=7, truncation_side="left") == ids[-7:]
    assert kept(truncate_prompt_tokens=7, truncation_side="right") == ids[:7]
    assert kept(truncate_prompt_tokens=None, truncation_side=None) == kept(truncate_prompt_tokens=40) == ids
    assert kept(truncate_prompt_tokens=-1) == ids
    for bad in ({"truncation_side": "middle"}, {"truncate_prompt_tokens": 0}, {"truncate_prompt_tokens": 2049}):
        error(server.post(PATH, {"prompt": ids, "max_tokens": 1, **bad}))


def test_truncation_leaves_room_for_the_output(server):
    d = server.completion([7] * 3000, max_tokens=100, truncate_prompt_tokens=-1, temperature=0, ignore_eos=True)
    assert (d["usage"]["prompt_tokens"], d["usage"]["completion_tokens"]) == (1948, 100)


def test_texts_are_truncated_too(server):
    ids = server.tokenize("春" * 30)
    c = server.completion("春" * 30, max_tokens=1, truncate_prompt_tokens=5, return_token_ids=True)["choices"][0]
    assert c["prompt_token_ids"] == ids[-5:]


# ---- log-probabilities ----

def test_logprobs_none_zero_and_above_the_limit(server):
    assert server.completion(PROMPT, max_tokens=3, logprobs=None)["choices"][0]["logprobs"] is None
    lp = server.completion(PROMPT, max_tokens=3, temperature=0, logprobs=0, ignore_eos=True)["choices"][0]["logprobs"]
    assert all(len(v) == 3 for v in lp.values()) and all(len(t) == 1 for t in lp["top_logprobs"])
    for stream in (False, True):
        e = error(server.post(PATH, {"prompt": PROMPT, "logprobs": 21, "max_tokens": 1, "stream": stream}))
        assert "20" in e["message"] and "21" in e["message"]
    server.completion(PROMPT, logprobs=20, max_tokens=1)


def test_minus_one_is_the_whole_vocabulary_where_there_is_no_limit(wide):
    d = wide.completion([5, 6, 7], logprobs=-1, prompt_logprobs=-1, max_tokens=2, temperature=0, ignore_eos=True)
    c = d["choices"][0]
    assert all(len(t) == 8192 for t in c["logprobs"]["top_logprobs"])
    assert c["prompt_logprobs"][0] is None and all(len(p) == 8192 for p in c["prompt_logprobs"][1:])
    for p in c["prompt_logprobs"][1:]:
        ranks = [v["rank"] for v in p.values()]
        assert min(ranks) == 1 and max(ranks) <= 8192
        assert abs(sum(2.718281828459045 ** v["logprob"] for v in p.values()) - 1) < 1e-3
    for bad in ({"logprobs": -2}, {"prompt_logprobs": -2}):
        error(wide.post(PATH, {"prompt": "a", **bad}))


def test_prompt_logprobs_give_the_prompt_its_own_tokens_and_the_k_best(server):
    ids = server.tokenize("春眠不觉晓，处处闻啼鸟。")
    for k in (0, 1, 5):
        p = server.completion(ids, prompt_logprobs=k, max_tokens=1, temperature=0)["choices"][0]["prompt_logprobs"]
        assert len(p) == len(ids) and p[0] is None
        for want, entry in zip(ids[1:], p[1:]):
            assert list(entry)[0] == str(want)
            assert max(k, 1) <= len(entry) <= k + 1
            best = sorted(v["rank"] for v in entry.values())[:k]
            assert best == list(range(1, k + 1)) or len(set(best)) < k  # ties share their rank
            assert all(set(v) == {"logprob", "rank", "decoded_token"} for v in entry.values())
    r = server.post(PATH, {"prompt": "a", "prompt_logprobs": 0, "stream": True, "max_tokens": 1})
    assert r.status == 200
    for k in (1, -1):
        error(server.post(PATH, {"prompt": "a", "prompt_logprobs": k, "stream": True}))


def test_prompt_logprobs_of_a_batch_belong_to_their_prompts(server):
    texts = ["春眠不觉晓", "Once upon a time there was"]
    alone = [server.completion(t, prompt_logprobs=2, max_tokens=1, temperature=0)["choices"][0] for t in texts]
    both = server.completion(texts, prompt_logprobs=2, max_tokens=1, temperature=0)["choices"]
    assert [c["prompt_logprobs"] for c in both] == [c["prompt_logprobs"] for c in alone]


def test_echo_with_logprobs_has_one_entry_a_token(server):
    n = len(server.tokenize(PROMPT))
    for k, max_tokens in ((0, 1), (1, 0), (5, 4)):
        c = server.completion(PROMPT, echo=True, logprobs=k, max_tokens=max_tokens, temperature=0,
                              ignore_eos=True)["choices"][0]
        lp = c["logprobs"]
        assert c["text"].startswith(PROMPT)
        assert all(len(v) == n + max_tokens for v in lp.values())
        assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
        assert all(v is not None and v <= 0 for v in lp["token_logprobs"][1:])
        assert all(1 <= len(t) <= k + 1 for t in lp["top_logprobs"][1:])
        scored = server.completion(PROMPT, prompt_logprobs=k, max_tokens=1, temperature=0)["choices"][0]["prompt_logprobs"]
        assert lp["token_logprobs"][1:n] == [list(e.values())[0]["logprob"] for e in scored[1:]]


def test_echo_of_a_batch_and_of_samples(server):
    d = server.completion(["春", "Once"], echo=True, n=2, temperature=1, max_tokens=3)
    assert [c["text"][:1] for c in d["choices"]] == ["春", "春", "O", "O"]
    s = server.stream(PATH, {"prompt": ["春", "Once"], "echo": True, "n": 2, "temperature": 1, "seed": 3, "max_tokens": 3})
    p = server.completion(["春", "Once"], echo=True, n=2, temperature=1, seed=3, max_tokens=3)
    assert [s.text(i) for i in range(4)] == [c["text"] for c in p["choices"]]


def test_tokens_are_named_by_id_where_the_server_or_the_request_says_so(server, wide):
    ids = server.completion(PROMPT, max_tokens=4, temperature=0, return_token_ids=True)["choices"][0]["token_ids"]
    names = [f"token_id:{i}" for i in ids]
    for s, kw in ((server, {"return_tokens_as_token_ids": True}), (wide, {})):
        assert s.completion(PROMPT, max_tokens=4, temperature=0, logprobs=1, **kw)["choices"][0]["logprobs"]["tokens"] == names
    lp = wide.completion(PROMPT, max_tokens=4, temperature=0, logprobs=1, return_tokens_as_token_ids=False)
    assert not lp["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:")


# ---- streams ----

def test_a_stream_is_the_plain_text_with_one_finish_and_text_at_the_end(server):
    body = {"prompt": PROMPT, "max_tokens": 10, "temperature": 0, "ignore_eos": True}
    plain = server.post(PATH, body).json["choices"][0]
    s = server.stream(PATH, body)
    assert s.text() == plain["text"] and s.finish() == plain["finish_reason"]
    assert s.choices()[-1]["finish_reason"] and s.choices()[-1]["text"]


def test_parallel_samples_stream_to_their_plain_texts(server):
    body = {"prompt": PROMPT, "n": 3, "max_tokens": 8, "temperature": 0.95, "seed": 1, "ignore_eos": True}
    plain = server.post(PATH, body).json["choices"]
    s = server.stream(PATH, body)
    assert len({c["text"] for c in plain}) == 3
    assert [s.text(i) for i in range(3)] == [c["text"] for c in plain]
    assert all(len(c["choices"]) == 1 for c in s.chunks)
    assert sum(c["choices"][0]["finish_reason"] == "length" for c in s.chunks) == 3


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True},
                                     {"include_usage": False, "continuous_usage_stats": True},
                                     {"include_usage": True, "continuous_usage_stats": False},
                                     {"include_usage": True, "continuous_usage_stats": True}])
def test_the_matrix_of_stream_options(server, options):
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    s = server.stream(PATH, {**body, "stream_options": options})
    include = bool(options and options.get("include_usage"))
    continuous = include and bool(options.get("continuous_usage_stats"))
    content = [c for c in s.chunks if c["choices"]]
    assert len(s.chunks) - len(content) == include
    assert all(bool(c.get("usage")) == continuous for c in content)
    if continuous:
        assert [c["usage"]["completion_tokens"] for c in content] == list(range(1, 7))
        assert all(c["usage"]["total_tokens"] == c["usage"]["prompt_tokens"] + c["usage"]["completion_tokens"]
                   for c in content)
    if options is not None:
        error(server.post(PATH, {**body, "stream_options": options}))
        error(server.post(PATH, {**body, "stream": False, "stream_options": options}))


def test_usage_is_forced_by_a_flag():
    with Server(args=["--enable-force-include-usage"]) as s:
        for path, body in ((PATH, {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
            e = s.stream(path, {**body, "max_tokens": 3})
            assert not e.chunks[-1]["choices"] and e.chunks[-1]["usage"]["completion_tokens"]
            assert all(c["usage"]["total_tokens"] for c in e.chunks)
            e = s.stream(path, {**body, "max_tokens": 3, "stream_options": {"include_usage": False}})
            assert e.chunks[-1]["usage"]


def test_batches_stream_with_their_indexes(server):
    for prompts in (["春", "Once", "月"], [[5, 6], [7], [8, 9, 10]]):
        body = {"prompt": prompts, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        plain = server.post(PATH, body).json["choices"]
        s = server.stream(PATH, body)
        assert [s.text(i) for i in range(3)] == [c["text"] for c in plain]
        assert {c["index"] for chunk in s.chunks for c in chunk["choices"]} == {0, 1, 2}


def test_a_stream_interval_makes_fewer_chunks_of_the_same_text(server):
    body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    one, five = server.stream(PATH, body), server.stream(PATH, {**body, "stream_interval": 5})
    assert five.text() == one.text() and len(five.chunks) <= 6 < len(one.chunks)
    error(server.post(PATH, {**body, "stream_interval": 0}))


# ---- prompts, constraints, other checks ----

def test_bad_constraints_are_400_before_anything_runs(server):
    for constraint in ({"json": {"type": "obj"}}, {"json": '{"type": }'}, {"regex": "[.*"}, {"grammar": "root ::= ("},
                       {"choice": []}, {"json": {}, "regex": "a"}, {}):
        for path, body in ((PATH, {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
            e = error(server.post(path, {**body, "structured_outputs": constraint, "max_tokens": 4}))
            assert e["message"], constraint
    server.alive()


def test_ids_outside_the_vocabulary_are_named(server):
    for prompt in ([8192], [5, 10 ** 9], [[1], [8192]]):
        assert "out of vocabulary" in error(server.post(PATH, {"prompt": prompt}))["message"]
    server.completion([8191], max_tokens=1)


def test_the_end_tokens_of_client_and_model_are_merged(server):
    sep, = server.tokenize("<|end_of_sentence|>")
    for client in ([], [sep], [sep, 300, sep, 2]):
        d = server.completion("a", temperature=0, max_tokens=3, stop_token_ids=client, logit_bias={str(sep): 100})
        assert d["choices"][0]["finish_reason"] == "stop" and d["usage"]["completion_tokens"] == 1
        assert d["choices"][0]["stop_reason"] == sep
    d = server.completion("a", temperature=0, max_tokens=3, ignore_eos=True, logit_bias={str(sep): 100})
    assert d["choices"][0]["finish_reason"] == "length"
    d = server.completion("a", temperature=0, max_tokens=3, ignore_eos=True, stop_token_ids=[sep],
                          logit_bias={str(sep): 100})
    assert d["choices"][0]["finish_reason"] == "stop"
    assert server.completion("a", temperature=0, max_tokens=3, logit_bias={"2": 100})["choices"][0]["stop_reason"] is None


def test_a_stopping_token_is_shown_with_include_stop_str(server):
    t, = server.tokenize("月")[-1:]
    kw = {"temperature": 0, "max_tokens": 4, "stop_token_ids": [t], "logit_bias": {str(t): 100}}
    assert server.completion("a", **kw)["choices"][0]["text"] == ""
    assert server.completion("a", include_stop_str_in_output=True, **kw)["choices"][0]["text"] == "月"


def test_special_tokens_are_shown_only_when_asked_for(server):
    sep, = server.tokenize("<|end_of_sentence|>")
    kw = {"temperature": 0, "max_tokens": 2, "ignore_eos": True, "logit_bias": {str(sep): 100}}
    assert server.completion("a", **kw)["choices"][0]["text"] == ""
    assert server.completion("a", skip_special_tokens=False, **kw)["choices"][0]["text"] == "<|end_of_sentence|>" * 2


def test_returned_ids_are_the_tokenizers(server):
    ids = server.tokenize(PROMPT)
    c = server.completion([PROMPT, "春"], max_tokens=3, temperature=0, return_token_ids=True)["choices"]
    assert [x["prompt_token_ids"] for x in c] == [ids, server.tokenize("春")]
    c = server.completion(PROMPT, max_tokens=3, temperature=0)["choices"][0]
    assert c["token_ids"] is None and c["prompt_token_ids"] is None
    s = server.stream(PATH, {"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "return_token_ids": True})
    assert s.choices()[0]["prompt_token_ids"] == ids and all(x["prompt_token_ids"] is None for x in s.choices()[1:])


def test_a_tiny_token_budget_streams_no_empty_chunk():
    with Server(args=["--max-num-batched-tokens", 32, "--max-num-seqs", 8]) as s:
        ids = list(range(300, 500))
        e = s.stream(PATH, {"prompt": ids, "max_tokens": 10, "temperature": 0, "ignore_eos": True,
                            "stream_options": {"include_usage": True}})
        assert sum(1 for c in e.chunks if c["choices"]) == 10
        assert e.usage() == {"prompt_tokens": 200, "completion_tokens": 10, "total_tokens": 210}


def test_long_texts_being_tokenized_do_not_hold_up_short_requests(server):
    text = "春眠不觉晓，处处闻啼鸟。" * 60_000  # 2 MB
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        long_ones = [pool.submit(server.post, "/tokenize", {"prompt": text}) for _ in range(4)]
        n_short = 0
        while not all(f.done() for f in long_ones):
            server.completion("short", max_tokens=1)
            n_short += 1
        assert all(f.result().status == 200 for f in long_ones)
    assert n_short >= 3 * len(long_ones)  # held up, they would take turns
