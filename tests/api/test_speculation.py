# SPDX-License-Identifier: Apache-2.0
"""--speculative-config: drafts by prompt lookup. The answers are those without, to the last bit of every
log-probability; only the steps get fewer."""
import json

import pytest
from ternlib import MODEL, Server, metric, run

SPEC = ["--max-model-len", 1024, "--speculative-config",
        json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1})]
VERSE = "春风又绿江南岸，明月何时照我还。\n" * 4
SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": ["春风", "秋月"]}, "maxItems": 9}},
          "required": ["a"], "additionalProperties": False}
REQUESTS = {
    "greedy": dict(prompt=VERSE, max_tokens=120, temperature=0, ignore_eos=True),
    "sampled": dict(prompt=VERSE, max_tokens=120, temperature=0.7, seed=5, top_p=0.9),
    "several": dict(prompt=VERSE, max_tokens=60, temperature=0.5, seed=1, n=3),
    "penalties": dict(prompt=VERSE, max_tokens=80, temperature=0, repetition_penalty=1.2, frequency_penalty=0.3),
    "min_p and bias": dict(prompt=VERSE, max_tokens=60, temperature=0.8, seed=2, min_p=0.05, logit_bias={"300": 2}),
    "stop string": dict(prompt=VERSE, max_tokens=120, temperature=0, stop=["江南"], ignore_eos=True),
    "schema": dict(prompt=VERSE, max_tokens=150, temperature=0,
                   response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}),
    "repetition": dict(prompt=VERSE, max_tokens=200, temperature=0, ignore_eos=True,
                       repetition_detection={"max_pattern_size": 20, "min_pattern_size": 1, "min_count": 2}),
    "beams": dict(prompt=VERSE, max_tokens=20, use_beam_search=True, n=2, temperature=0),
}


@pytest.fixture(scope="module")
def servers():
    with Server(args=["--max-model-len", 1024]) as plain, Server(args=SPEC) as fast:
        yield plain, fast


def answer(s, body):
    d = s.completion(logprobs=2, return_token_ids=True, **body)
    return [(c["text"], c["token_ids"], c["logprobs"], c["finish_reason"], c["stop_reason"]) for c in d["choices"]], \
        d["usage"]["completion_tokens"]


@pytest.mark.parametrize("name", REQUESTS)
def test_the_answer_is_the_one_without_speculation(servers, name):
    plain, fast = servers
    assert answer(fast, REQUESTS[name]) == answer(plain, REQUESTS[name])


def test_a_stream_has_the_same_text_and_several_tokens_in_a_chunk(servers):
    plain, fast = servers
    want = plain.completion(**REQUESTS["greedy"])["choices"][0]["text"]
    events = fast.stream("/v1/completions", {"stream": True, "return_token_ids": True, **REQUESTS["greedy"]})
    assert events.text() == want
    chunks = [e for e in events.chunks if e.get("choices")]
    sizes = [len(c["choices"][0].get("token_ids") or []) for c in chunks]
    assert sum(sizes) == 120 and max(sizes) > 1


def test_metrics_count_what_was_drafted_and_accepted(servers):
    _, fast = servers
    before, steps = fast.metrics(), "vllm:engine_steps_total"
    fast.completion(**REQUESTS["greedy"])
    after = fast.metrics()

    def gained(name, **labels):
        return metric(after, name, **labels) - metric(before, name, **labels)
    drafts = gained("vllm:spec_decode_num_drafts_total")
    tokens = gained("vllm:spec_decode_num_draft_tokens_total")
    accepted = gained("vllm:spec_decode_num_accepted_tokens_total")
    by_place = [gained("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(4)]
    assert 0 < accepted <= tokens <= 4 * drafts
    assert sum(by_place) == accepted and by_place == sorted(by_place, reverse=True)
    assert gained(steps) + accepted == 120


def test_without_it_there_are_no_such_metrics(servers):
    plain, _ = servers
    assert not any("spec_decode" in name for name, _ in plain.metrics())


BAD = {"another method": '{"method": "eagle", "num_speculative_tokens": 2}',
       "no method": '{"num_speculative_tokens": 2}',
       "no number": '{"method": "ngram"}',
       "too many": '{"method": "ngram", "num_speculative_tokens": 400}',
       "min above max": '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 4, "prompt_lookup_max": 2}',
       "unknown key": '{"method": "ngram", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 2}',
       "a method with more behind a NUL": '{"method": "ngram\\u0000x", "num_speculative_tokens": 2}',
       "a method that is no string": '{"method": 5, "num_speculative_tokens": 2}',
       "no object": '[1]'}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_it_cannot_do_is_refused_in_one_line(text):
    r = run("generate", MODEL, "-p", "x", "--speculative-config", text)
    assert r.returncode in (1, 2) and r.stdout == b""
    assert b"--speculative-config" in r.stderr.splitlines()[-1]


def test_a_long_name_is_cut_between_characters():
    name = "春" * 30  # of 3 bytes each
    for text in (json.dumps({"method": name, "num_speculative_tokens": 2}), json.dumps({name: 1})):
        r = run("generate", MODEL, "-p", "x", "--speculative-config", text)
        line = r.stderr.decode().splitlines()[-1]
        assert "春" * 20 in line and "\ufffd" not in line
