# SPDX-License-Identifier: Apache-2.0
"""Fields that few clients send and that must not be ignored in silence: beam search, named log-probabilities, repetition,
old spellings, templates and ids in the request, headers; and what one prompt with many samples costs."""
import concurrent.futures
import math
import os
import threading
import time

import pytest
import ternlib
from ternlib import Server, metric

PATHS = ["/v1/completions", "/v1/chat/completions"]
HI = [{"role": "user", "content": "hi"}]


def body_for(path, **kw):
    return {**({"prompt": "hi"} if path == "/v1/completions" else {"messages": HI}), "max_tokens": 4, **kw}


def refused(r, word, type_=None):
    assert r.status == 400, r
    e = r.json["error"]
    assert word in e["message"] or word in (e["param"] or ""), e
    assert type_ is None or e["type"] == type_, e
    return e


def cpu_seconds(s):
    """Of the server: says what something cost, also where others keep the machine busy."""
    fields = open(f"/proc/{s.proc.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def trusting():
    """Takes templates and any number of log-probabilities; runs 8 sequences at most."""
    with Server(args=["--trust-request-chat-template", "--max-logprobs", -1, "--max-num-seqs", 8,
                      "--enable-prompt-tokens-details", "--enable-per-request-metrics"]) as s:
        yield s


# ---- beam search ----

def beams_by_hand(s, ids, n, max_tokens, penalty, ends):
    """The definition, one token a request."""
    beams, done = [([], 0.0)], []
    for _ in range(max_tokens):
        found = []
        for b, (tokens, total) in enumerate(beams):
            c = s.completion(ids + tokens, max_tokens=1, temperature=0, ignore_eos=True, logprobs=2 * n + len(ends),
                             return_tokens_as_token_ids=True)["choices"][0]
            for k, (name, lp) in enumerate(c["logprobs"]["top_logprobs"][0].items()):
                i = int(name.removeprefix("token_id:"))
                if i not in ends:
                    found.append((total + lp, b, k, tokens + [i]))
                elif k < 2 * n:
                    done.append(((total + lp) / (len(ids) + len(tokens)) ** penalty, tokens + [i], "stop"))
        found.sort(key=lambda f: (-f[0], f[1], f[2]))
        beams = [(tokens, total) for total, _, _, tokens in found[:n]]
    done += [(total / (len(ids) + len(tokens)) ** penalty, tokens, "length") for tokens, total in beams]
    return [(tokens, why) for _, tokens, why in sorted(done, key=lambda d: -d[0])[:n]]


@pytest.mark.parametrize("n,penalty", [(1, 1.0), (3, 1.0), (4, 0.0), (2, -1.0)])
def test_beams_are_those_of_the_definition(trusting, n, penalty):
    ends = [2, *trusting.tokenize("<|end_of_sentence|>")]
    for prompt in ("春眠不觉晓，", "Once upon"):
        ids = trusting.tokenize(prompt)
        d = trusting.completion(ids, use_beam_search=True, n=n, length_penalty=penalty, max_tokens=10, temperature=0,
                                return_token_ids=True)
        assert [c["index"] for c in d["choices"]] == list(range(n))
        assert [(c["token_ids"], c["finish_reason"]) for c in d["choices"]] == beams_by_hand(trusting, ids, n, 10,
                                                                                              penalty, ends)
        assert d["usage"]["prompt_tokens"] == len(ids)


def test_beams_come_best_first_and_differ_and_carry_their_logprobs(server):
    d = server.chat("写一首五言绝句。", use_beam_search=True, n=4, max_tokens=24, logprobs=True, top_logprobs=2)
    texts = [c["message"]["content"] for c in d["choices"]]
    assert len(set(texts)) == 4
    scores = []
    for c in d["choices"]:
        entries = c["logprobs"]["content"]
        n = len(entries) - (c["finish_reason"] == "stop")  # the end token is in the sum, not in the length
        scores.append(sum(e["logprob"] for e in entries) / (d["usage"]["prompt_tokens"] + n))
        assert all(len(e["top_logprobs"]) == 2 for e in entries)
    assert scores == sorted(scores, reverse=True)
    again = server.chat("写一首五言绝句。", use_beam_search=True, n=4, max_tokens=24, temperature=1.3, seed=5)
    assert [c["message"]["content"] for c in again["choices"]] == texts, "nothing is drawn"


def test_a_beam_is_at_least_as_likely_as_greedy(server):
    for prompt in ("春", "Once", "月"):
        def total(**kw):
            d = server.completion(prompt, max_tokens=12, temperature=0, logprobs=0, ignore_eos=True, **kw)
            return sum(d["choices"][0]["logprobs"]["token_logprobs"])
        assert total(use_beam_search=True, n=6) >= total()
        assert math.isclose(total(use_beam_search=True, n=1), total())


@pytest.mark.parametrize("path", PATHS)
def test_streamed_beam_search_is_the_whole_answer_in_one_event(server, path):
    body = body_for(path, use_beam_search=True, n=3, max_tokens=6)
    plain, s = server.post(path, body).json, server.stream(path, body)
    assert s.done and len(s.chunks) == 1 and s.chunks[0]["choices"] == plain["choices"]
    assert s.chunks[0]["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


@pytest.mark.parametrize("field,value", [("stop", ["x"]), ("logit_bias", {"5": 1}), ("allowed_token_ids", [5]),
                                         ("bad_words", ["x"]), ("min_tokens", 2), ("repetition_penalty", 1.1),
                                         ("presence_penalty", 1), ("frequency_penalty", 1), ("n", 65),
                                         ("response_format", {"type": "json_object"}), ("guided_choice", ["a"])])
@pytest.mark.parametrize("path", PATHS)
def test_what_beam_search_cannot_honour_is_refused(server, path, field, value):
    refused(server.post(path, body_for(path, use_beam_search=True, **{field: value})), "use_beam_search")


def test_neutral_values_beside_beam_search_are_accepted(server):
    server.completion("a", use_beam_search=True, n=2, max_tokens=2, stop=[], logit_bias={}, min_tokens=0, bad_words=None,
                      repetition_penalty=1.0, presence_penalty=0, frequency_penalty=0.0, best_of=2, top_p=0.5)


def test_beams_of_several_prompts_with_echo_and_scored_prompts(server):
    kw = {"use_beam_search": True, "n": 2, "max_tokens": 4}
    texts = ["春眠不觉晓，", "Once upon"]
    alone = [server.completion(t, **kw)["choices"] for t in texts]
    d = server.completion(texts, echo=True, logprobs=1, prompt_logprobs=1, **kw)
    assert [c["index"] for c in d["choices"]] == [0, 1, 2, 3]
    for k, c in enumerate(d["choices"]):
        assert c["text"] == texts[k // 2] + alone[k // 2][k % 2]["text"]
        n = len(server.tokenize(texts[k // 2]))
        assert len(c["prompt_logprobs"]) == n and len(c["logprobs"]["tokens"]) >= n + 1


def test_a_client_that_leaves_a_beam_search_is_an_abort(server):
    before = metric(server.wait_idle(), "vllm:request_success_total", finished_reason="abort")
    with server.raw() as s:
        s.sendall(ternlib.http_bytes("/v1/completions", {"prompt": "a", "use_beam_search": True, "n": 16,
                                                         "max_tokens": 1900, "ignore_eos": True}))
        server.wait_running(16)
    m = server.wait_idle()
    assert metric(m, "vllm:request_success_total", finished_reason="abort") == before + 16
    assert metric(m, "vllm:request_generation_tokens_sum") == metric(m, "vllm:generation_tokens_total")


def test_beam_search_leaves_the_cache_empty_and_the_sums_equal(trusting):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # 4 x 6 beams on 8 places
        list(pool.map(lambda k: trusting.completion("a b c %d" % k, use_beam_search=True, n=6, max_tokens=20), range(8)))
    m = trusting.wait_idle()
    assert metric(m, "vllm:request_generation_tokens_sum") == metric(m, "vllm:generation_tokens_total")
    assert metric(m, "vllm:request_prompt_tokens_sum") == metric(m, "vllm:prompt_tokens_total")


# ---- one prompt, many samples ----

@pytest.mark.parametrize("stream", [False, True])
def test_n_samples_compute_their_prompt_once(server, stream):
    ids = [300 + (7 * k + stream) % 997 for k in range(150)]
    before = server.wait_idle()
    body = {"prompt": ids, "n": 8, "temperature": 1, "max_tokens": 5, "ignore_eos": True, "cache_salt": f"once {stream}"}
    if stream:
        s = server.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
        usage = s.usage()
        assert all(s.finish(i) == "length" for i in range(8))
    else:
        usage = server.post("/v1/completions", body).json["usage"]
    after = server.wait_idle()
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (150, 40)

    def gained(name, **labels):
        return metric(after, name, **labels) - metric(before, name, **labels)
    assert gained("vllm:prompt_tokens_by_source_total", source="local_compute") == 150
    assert gained("vllm:request_prefill_kv_computed_tokens_sum") == 150
    assert gained("vllm:request_params_n_sum") == 8 and gained("vllm:request_params_n_count") == 1
    # a step for the prompt and its first tokens, then one for each further token of all samples
    assert gained("vllm:engine_steps_total") <= 1 + 4 + 2


# ---- log-probabilities of named ids ----

def test_logprob_token_ids_come_behind_the_sampled_token(trusting):
    ids = [100, 1000, 5000, 1000]
    d = trusting.completion("Hello", max_tokens=3, temperature=0, logprobs=1, logprob_token_ids=ids, ignore_eos=True,
                            return_tokens_as_token_ids=True, return_token_ids=True)["choices"][0]
    whole = trusting.completion("Hello", max_tokens=3, temperature=0, logprobs=-1, ignore_eos=True,
                                return_tokens_as_token_ids=True)["choices"][0]
    for top, sampled, everything in zip(d["logprobs"]["top_logprobs"], d["token_ids"], whole["logprobs"]["top_logprobs"]):
        assert list(top) == [f"token_id:{i}" for i in (sampled, 100, 1000, 5000)]
        assert all(everything[name] == value for name, value in top.items())
    c = trusting.chat("Hello", max_tokens=1, temperature=0, logprobs=True, top_logprobs=3, logprob_token_ids=ids,
                      return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["content"][0]
    assert [x["token"] for x in c["top_logprobs"]] == [c["token"], "token_id:100", "token_id:1000", "token_id:5000"]


def test_the_sampled_token_is_not_told_twice(trusting):
    first = trusting.completion("春", max_tokens=1, temperature=0, return_token_ids=True)["choices"][0]["token_ids"][0]
    c = trusting.chat(HI, max_tokens=1, temperature=0, logprobs=True, logit_bias={str(first): 100},
                      logprob_token_ids=[9, first], return_tokens_as_token_ids=True)["choices"][0]
    assert [x["token"] for x in c["logprobs"]["content"][0]["top_logprobs"]] == [f"token_id:{first}", "token_id:9"]


@pytest.mark.parametrize("extra", [{"logprobs": None}, {"logprob_token_ids": list(range(129))},
                                   {"logprob_token_ids": [8192]}, {"logprob_token_ids": [-1]},
                                   {"logprob_token_ids": ["a"]}, {"logprob_token_ids": 5}])
def test_logprob_token_ids_out_of_range_are_refused(server, extra):
    refused(server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "logprobs": 1, "logprob_token_ids": [5],
                                            **extra}), "logprob_token_ids")


# ---- repetition ----

@pytest.mark.parametrize("path", PATHS)
def test_a_repeated_pattern_ends_the_answer(server, path):
    t, = server.tokenize("月")[-1:]
    rule = {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 5}
    c = server.post(path, body_for(path, temperature=0, max_tokens=40, logit_bias={str(t): 100},
                                   repetition_detection=rule, return_token_ids=True)).json["choices"][0]
    assert (c["finish_reason"], c["stop_reason"], c["token_ids"]) == ("repetition", "repetition_detected", [t] * 5)
    s = server.stream(path, body_for(path, temperature=0, max_tokens=40, logit_bias={str(t): 100},
                                     repetition_detection=rule))
    m = server.wait_idle()
    assert metric(m, "vllm:request_success_total", finished_reason="repetition") >= 2
    assert s.finish() == "repetition" and s.choices()[-1]["stop_reason"] == "repetition_detected"


def test_patterns_of_the_named_sizes_only_and_after_min_tokens(server):
    t, = server.tokenize("月")[-1:]

    def n(**kw):
        d = server.completion("a", temperature=0, max_tokens=30, logit_bias={str(t): 100}, **kw)
        return d["usage"]["completion_tokens"]
    assert n(repetition_detection={"max_pattern_size": 5, "min_pattern_size": 3, "min_count": 2}) == 6
    assert n(repetition_detection={"max_pattern_size": 2, "min_count": 3}, min_tokens=11) == 11
    assert n(repetition_detection={"max_pattern_size": 0, "min_count": 3}) == 30
    assert n(repetition_detection=None) == 30


@pytest.mark.parametrize("rule", [{"max_pattern_size": 3}, {"max_pattern_size": 3, "min_count": 1},
                                  {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 3}, {"max_pattern_size": -1},
                                  {"max_pattern_size": 10 ** 9, "min_count": 2}, {"max_pattern_size": "a"}, 5, [1]])
def test_repetition_rules_that_are_none_are_refused(server, rule):
    refused(server.post("/v1/completions", {"prompt": "a", "repetition_detection": rule}), "repetition_detection")


# ---- old spellings, and fields that change answers ----

def test_best_of_is_honoured_where_it_says_what_n_says(server):
    for n, best_of in ((1, 1), (3, 3), (3, 1), (2, None)):
        d = server.completion("a", temperature=1, max_tokens=2, n=n, best_of=best_of)
        assert len(d["choices"]) == n
    for best_of in (0, -1, 2, 5, "a"):
        refused(server.post("/v1/completions", {"prompt": "a", "n": 1, "best_of": best_of}), "best_of")


def test_suffix_is_accepted_only_when_empty(server):
    for suffix in (None, ""):
        server.completion("a", max_tokens=1, suffix=suffix)
    refused(server.post("/v1/completions", {"prompt": "a", "suffix": "x"}), "suffix")


@pytest.mark.parametrize("field,value", [
    ("prompt_embeds", "AAAA"), ("early_stopping", True), ("logits_processors", ["x"]), ("thinking_token_budget", 5),
    ("kv_transfer_params", {"do_remote_prefill": True}), ("ec_transfer_params", {"a": 1}), ("reasoning_max_tokens", 5),
    ("return_assistant_tokens_mask", True), ("functions", [{"name": "f"}]), ("audio", {"voice": "x"}),
    ("disable_chat_template", True), ("prompt_token_ids", [1, 2])])
@pytest.mark.parametrize("path", PATHS)
def test_what_would_change_the_answer_and_is_not_here_is_refused_by_name(server, path, field, value):
    refused(server.post(path, body_for(path, **{field: value})), field)
    empty = False if value is True else None
    assert server.post(path, body_for(path, **{field: empty})).status == 200


def test_ids_that_may_not_appear(server):
    kw = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
    ids = server.completion("春", **kw)["choices"][0]["token_ids"]
    got = server.completion("春", bad_words_token_ids=ids[:2], bad_words=["月"], **kw)["choices"][0]["token_ids"]
    assert not set(got) & set(ids[:2]) and server.tokenize("月")[-1] not in got
    for bad in ([8192], ["a"], 5, [5] * 129):
        refused(server.post("/v1/completions", {"prompt": "a", "bad_words_token_ids": bad}), "bad_words_token_ids")


def test_guided_fields_of_older_clients_constrain(server):
    c = server.chat(HI, temperature=0, max_tokens=8, guided_choice=["在线", "离线"])["choices"][0]
    assert c["message"]["content"] in ("在线", "离线")
    c = server.completion("a", temperature=0, max_tokens=8, guided_regex="[0-9]{3}")["choices"][0]
    assert c["text"].isdigit() and len(c["text"]) == 3


def test_flags_of_older_releases_start_the_server_with_a_warning():
    with Server(args=["--swap-space", 4, "--disable-log-requests"]) as s:
        s.alive()
    for flag in ("swap-space", "disable-log-requests"):
        assert flag in s.last_output


# ---- templates and ids in the request ----

def test_a_template_in_the_request_needs_the_servers_trust(server, trusting):
    template = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{{ enable_thinking }}"
    for s in (server, trusting):
        assert s.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1, "chat_template": None}).status == 200
    e = refused(server.post("/v1/chat/completions", {"messages": HI, "chat_template": template}), "chat_template")
    assert "--trust-request-chat-template" in e["message"]
    refused(server.post("/tokenize", {"messages": HI, "chat_template": template}), "chat_template")
    d = trusting.chat(HI, max_tokens=1, chat_template=template, enable_thinking=False, return_prompt_text=True,
                      return_token_ids=True)
    assert d["prompt_text"] == "[user:hi]False"
    r = trusting.post("/tokenize", {"messages": HI, "chat_template": template, "chat_template_kwargs":
                                    {"enable_thinking": False}})
    assert r.json["tokens"] == d["prompt_token_ids"]


def test_a_bad_template_in_the_request_is_400_and_a_path_is_no_template(trusting):
    for template, word in (("{% for %}", "line 1"), ("{{ raise_exception('no') }}", "no"), (5, "string"),
                           ("{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}", "")):
        r = trusting.post("/v1/chat/completions", {"messages": HI, "chat_template": template, "max_tokens": 1})
        assert r.status == 400 and word in r.json["error"]["message"], r
    d = trusting.chat(HI, max_tokens=1, chat_template="/etc/hostname", return_prompt_text=True)
    assert d["prompt_text"] == "/etc/hostname"
    trusting.alive()


def test_token_ids_in_place_of_messages_are_the_prompt(server):
    ids = server.post("/tokenize", {"messages": HI}).json["tokens"]
    a, b = (server.chat(m, temperature=0, max_tokens=6, return_token_ids=True) for m in (HI, ids))
    assert a["prompt_token_ids"] == b["prompt_token_ids"] == ids and a["choices"] == b["choices"]
    refused(server.post("/v1/chat/completions", {"messages": [5, 8192]}), "vocabulary")
    refused(server.post("/v1/chat/completions", {"messages": [5, "a"]}), "messages")


# ---- lengths ----

def test_millions_of_prompt_ids_are_refused_before_they_cost_anything(server):
    n = 15_000_000
    before = ternlib.rss_kb(server.proc.pid)
    for key in (b"prompt", b"messages"):
        path = "/v1/completions" if key == b"prompt" else "/v1/chat/completions"
        t = cpu_seconds(server)
        r = server.post(path, b'{"max_tokens":1,"' + key + b'":[' + b"7," * (n - 1) + b"7]}")
        assert cpu_seconds(server) - t < 2 * ternlib.SLOW
        e = refused(r, str(n))
        assert "2048" in e["message"] and e["code"] == "context_length_exceeded"
    r = server.post("/v1/completions", b'{"truncate_prompt_tokens":5,"max_tokens":1,"prompt":[' + b"7," * n + b"7]}")
    refused(r, "JSON values")
    assert ternlib.rss_kb(server.proc.pid) < before + 500 * 1024
    d = server.completion([7] * 100_000, truncate_prompt_tokens=5, max_tokens=1)
    assert d["usage"]["prompt_tokens"] == 5


def test_a_long_list_elsewhere_is_no_long_prompt(server):
    d = server.completion("a", allowed_token_ids=list(range(300, 8000)), max_tokens=2, stop_token_ids=[8000] * 3000)
    assert d["usage"]["completion_tokens"] == 2


def test_too_many_or_too_long_bad_words_are_refused_before_they_are_tokenized(server):
    for words in (["x"] * 200_000, ["词" * 3_000_000]):
        t = cpu_seconds(server)
        refused(server.post("/v1/completions", {"prompt": "a", "bad_words": words}), "bad_words")
        assert cpu_seconds(server) - t < 2 * ternlib.SLOW


def test_an_answer_of_one_sample_carries_its_times(trusting, server):
    for path in PATHS:
        t = time.monotonic()
        m = trusting.post(path, body_for(path, max_tokens=6, ignore_eos=True)).json["metrics"]
        wall = (time.monotonic() - t) * 1000
        assert set(m) == {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms",
                          "tokens_per_second"}
        assert 0 <= m["queue_time_ms"] <= m["time_to_first_token_ms"] <= wall
        assert 0 < m["generation_time_ms"] < wall and math.isclose(m["mean_itl_ms"] * 5, m["generation_time_ms"])
        assert m["tokens_per_second"] > 6000 / wall
        assert trusting.post(path, body_for(path, n=2, temperature=1)).json["metrics"] is None
        assert server.post(path, body_for(path)).json["metrics"] is None


# ---- headers and routes ----

def test_the_priority_header_wins_over_the_body():
    """One place: what waits is taken by priority."""
    order, lock = [], threading.Lock()
    with Server(args=["--scheduling-policy", "priority", "--max-num-seqs", 1]) as s, \
            concurrent.futures.ThreadPoolExecutor(3) as pool:

        def ask(name, priority, headers=None, max_tokens=2):
            assert s.post("/v1/completions", {"prompt": name, "max_tokens": max_tokens, "ignore_eos": True,
                                              "priority": priority}, headers).status == 200
            with lock:
                order.append(name)

        def wait_waiting(n):
            while s.metric("vllm:num_requests_waiting") < n:
                assert not order, "the first one ended before the others came"
        jobs = [pool.submit(ask, "first", -100, None, 2000)]
        s.wait_running(1)
        jobs.append(pool.submit(ask, "later", 5, None, 400))
        wait_waiting(1)
        jobs.append(pool.submit(ask, "sooner", 99, {"X-Vllm-Priority": "-7"}))
        wait_waiting(2)
        for j in jobs:
            j.result()
    # the first one's last token and the two of "sooner" are too close for this process to see their order
    assert sorted(order) == ["first", "later", "sooner"] and order[2] == "later"


def test_a_priority_header_that_is_no_integer_is_400(server):
    for value in ("high", "1.5", "", "99999999999"):
        r = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, {"X-Vllm-Priority": value})
        refused(r, "Priority")


@pytest.mark.parametrize("path", PATHS)
def test_load_metrics_are_reported_when_asked_for(server, path):
    r = server.post(path, body_for(path), {"endpoint-load-metrics-format": "TEXT"})
    assert r.headers["endpoint-load-metrics"].startswith("TEXT ")
    pairs = dict(p.split("=") for p in r.headers["endpoint-load-metrics"][5:].split(", "))
    assert set(pairs) == {"named_metrics.kv_cache_usage_perc", "named_metrics.num_requests_waiting"}
    assert all(float(v) >= 0 for v in pairs.values())
    r = server.post(path, body_for(path), {"endpoint-load-metrics-format": "JSON"})
    d = ternlib.strict_json(r.headers["endpoint-load-metrics"].removeprefix("JSON "))
    assert set(d["named_metrics"]) == {"kv_cache_usage_perc", "num_requests_waiting"}
    for headers in ({}, {"endpoint-load-metrics-format": "XML"}):
        assert "endpoint-load-metrics" not in server.post(path, body_for(path), headers).headers


def test_a_session_is_accepted_in_header_and_body(server):
    r = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "session_id": "s1"}, {"X-Session-ID": "s1"})
    assert r.status == 200
    refused(server.post("/v1/completions", {"prompt": "a", "session_id": 5}), "session_id")


@pytest.mark.parametrize("path", PATHS)
def test_invocations_answers_as_the_route_that_the_body_means(server, path):
    body = body_for(path, temperature=0, ignore_eos=True)
    a, b = server.post(path, body).json, server.post("/invocations", body).json
    assert a["choices"] == b["choices"] and a["usage"] == b["usage"] and a["object"] == b["object"]
    assert b["id"].split("-")[0] == a["id"].split("-")[0]
    assert server.stream("/invocations", body).text() == server.stream(path, body).text() != ""
    refused(server.post("/invocations", {**body, "temperature": -1}), "temperature")


def test_invocations_refuses_what_has_no_shape(server):
    refused(server.post("/invocations", {"inputs": "a"}), "messages", "Bad Request")
    assert server.post("/invocations", b"[]").status == 400
