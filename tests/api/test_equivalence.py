# SPDX-License-Identifier: Apache-2.0
"""T11: the text depends on the request, not on cache, batch, chunks, threads or preemption. Compared by token ids and
log-probabilities, which are printed with enough digits to tell one bit from the next."""
import concurrent.futures
import pathlib
import random

import pytest
import ternlib
from ternlib import Server, metric

MAX = ["--max-model-len", 1024]


def prompts(n=16, length=512):
    rng = random.Random(11)
    chars = "春风花雪月夜山水人天一不来去时日上下心长江云雨千里万家归客思abcdefghij klmnop，。\n"
    return ["".join(rng.choice(chars) for _ in range(length)) for _ in range(n)]


def ask(s, prompt, n=48, **kw):
    d = s.completion(prompt, temperature=0, max_tokens=n, ignore_eos=True, return_token_ids=True, logprobs=2, **kw)
    c = d["choices"][0]
    return c["token_ids"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"]


def all_at_once(s, texts, workers, **kw):
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda t: ask(s, t, **kw), texts))


@pytest.fixture(scope="module")
def reference():
    """One client, no cache, one thread of execution at a time."""
    with Server(args=[*MAX, "--no-enable-prefix-caching"]) as s:
        return [ask(s, p) for p in prompts()]


def test_cached_equals_cold_and_the_cache_is_really_used(reference):
    with Server(args=[*MAX, "--enable-prompt-tokens-details"]) as s:
        first = [ask(s, p) for p in prompts()]
        assert first == reference
        m = s.metrics()
        hits, queries = metric(m, "vllm:prefix_cache_hits_total"), metric(m, "vllm:prefix_cache_queries_total")
        assert [ask(s, p) for p in prompts()] == reference
        m = s.metrics()
        gained = metric(m, "vllm:prefix_cache_hits_total") - hits
        asked = metric(m, "vllm:prefix_cache_queries_total") - queries
        assert gained % 16 == 0 and 0.8 * asked < gained < asked
        for _ in range(10):
            assert ask(s, prompts()[3]) == reference[3]
        u = s.completion(prompts()[0], max_tokens=1)["usage"]
        assert u["prompt_tokens_details"]["cached_tokens"] > 0
        assert u["prompt_tokens_details"]["cached_tokens"] % 16 == 0


def test_a_fully_cached_prompt_still_computes_its_last_block():
    with Server(args=[*MAX, "--enable-prompt-tokens-details"]) as s:
        ids = list(range(300, 364))
        a = ask(s, ids)
        assert ask(s, ids) == a
        u = s.completion(ids, max_tokens=1, temperature=0)["usage"]
        assert u["prompt_tokens_details"]["cached_tokens"] == 48
        u = s.completion(ids + [400], max_tokens=1, temperature=0)["usage"]
        assert u["prompt_tokens_details"]["cached_tokens"] == 64


def test_8_clients_equal_1(reference):
    with Server(args=MAX) as s:
        assert all_at_once(s, prompts(), 8) == reference
        assert all_at_once(s, list(reversed(prompts())), 16) == list(reversed(reference))


@pytest.mark.parametrize("args", [
    ["--max-num-batched-tokens", 32, "--max-num-seqs", 32], ["--max-num-batched-tokens", 96, "--max-num-seqs", 3], ["--enforce-eager"],
    ["--long-prefill-token-threshold", 17], ["--max-num-seqs", 1], ["--no-enable-prefix-caching"]],
    ids=lambda a: " ".join(map(str, a)))
def test_chunks_batches_and_eager_give_the_same(reference, args):
    with Server(args=[*MAX, *args]) as s:
        assert all_at_once(s, prompts(), 6) == reference


@pytest.mark.parametrize("cpus", ["0", "1"])
def test_one_thread_equals_two(reference, cpus):
    with Server(args=MAX, wrapper=("taskset", "-c", cpus)) as s:
        assert all_at_once(s, prompts()[:6], 3) == reference[:6]


def test_preempted_requests_finish_with_the_same_text():
    """KV space for two long sequences, eight clients: preemption must happen, and must not show."""
    texts = prompts(8, 40)
    with Server(args=[*MAX, "--no-enable-prefix-caching"]) as s:
        want = [ask(s, t, 400) for t in texts]
        assert s.metric("vllm:num_preemptions_total") == 0
    for extra in ([], ["--no-enable-prefix-caching"]):
        with Server(args=[*MAX, "--num-gpu-blocks-override", 70, *extra]) as s:
            assert all_at_once(s, texts, 8, n=400) == want
            assert s.metric("vllm:num_preemptions_total") > 0
            m = s.wait_idle()
            assert metric(m, "vllm:request_success_total", finished_reason="length") == 8


def test_sampled_text_is_the_same_alone_preempted_and_in_a_crowd():
    texts = prompts(8, 40)

    def sample(s, k):
        d = s.completion(texts[k], temperature=1, seed=k, max_tokens=300, ignore_eos=True, return_token_ids=True, n=1)
        return d["choices"][0]["token_ids"]
    with Server(args=MAX) as s:
        want = [sample(s, k) for k in range(8)]
    with Server(args=[*MAX, "--num-gpu-blocks-override", 70]) as s:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda k: sample(s, k), range(8))) == want
        assert s.metric("vllm:num_preemptions_total") > 0


def test_prompt_logprobs_of_several_samples_survive_preemption():
    """Samples that recompute a prompt whose log-probabilities were sent already."""
    texts = prompts(6, 40)

    def sample(s, k):
        d = s.completion(texts[k], temperature=1, seed=k, max_tokens=200, ignore_eos=True, return_token_ids=True, n=3,
                         prompt_logprobs=1)
        return [(c["token_ids"], c["prompt_logprobs"]) for c in d["choices"]]
    with Server(args=MAX) as s:
        want = [sample(s, k) for k in range(6)]
    with Server(args=[*MAX, "--num-gpu-blocks-override", 70]) as s:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            assert list(pool.map(lambda k: sample(s, k), range(6))) == want
        assert s.metric("vllm:num_preemptions_total") > 0


def test_generate_gives_what_the_server_gives(reference):
    for k in (0, 7):
        r = ternlib.run("generate", ternlib.MODEL, "-p", prompts()[k], "--max-tokens", 48, "--temperature", 0,
                        "--ignore-eos", "--json", "--logprobs", 2)
        assert r.returncode == 0, r.stderr
        out = ternlib.strict_json(r.stdout)["outputs"][0]
        assert out["token_ids"] == reference[k][0]
        assert out["logprobs"]["token_logprobs"] == reference[k][1]


def test_a_salt_keeps_caches_apart():
    with Server(args=[*MAX, "--enable-prompt-tokens-details"]) as s:
        ids = list(range(500, 600))

        def cached(**kw):
            return s.completion(ids, max_tokens=1, temperature=0, **kw)["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached(cache_salt="a") == 0
        assert cached(cache_salt="a") == 96
        assert cached(cache_salt="b") == 0
        assert cached() == 0
        assert cached() == 96


def test_the_slow_model_agrees_with_itself_too(slow_model):
    """Another shape: 8 heads on 2 KV heads of 64, 8 layers; prompts beyond one attention partition."""
    base = ["--max-model-len", 1500, "--kv-cache-memory-bytes", "256M"]
    rng = random.Random(3)
    ids = [[rng.randrange(300, 8000) for _ in range(n)] for n in (15, 16, 17, 255, 256, 257, 700)]
    with Server(slow_model, [*base, "--no-enable-prefix-caching"]) as s:
        want = [ask(s, i, 12) for i in ids]
    for extra in (["--max-num-batched-tokens", 48, "--max-num-seqs", 8], ["--enforce-eager"]):
        with Server(slow_model, [*base, *extra]) as s:
            assert all_at_once(s, ids, 4, n=12) == want
            assert all_at_once(s, ids, 7, n=12) == want
    assert pathlib.Path(slow_model).is_dir()
