# SPDX-License-Identifier: Apache-2.0
"""/metrics: names that dashboards use exist from the start as 0, and the sums are the requests' sums."""
import re
import time

import pytest
from ternlib import SLOW, Server, http_bytes, metric, parse_metrics

NAMES = """num_requests_running num_requests_waiting kv_cache_usage_perc cache_config_info prefix_cache_queries_total
prefix_cache_hits_total num_preemptions_total prompt_tokens_total generation_tokens_total request_success_total
request_prompt_tokens_sum request_prompt_tokens_bucket request_prompt_tokens_count request_generation_tokens_sum
request_generation_tokens_bucket request_generation_tokens_count request_params_n_sum request_params_n_bucket
request_params_n_count request_params_max_tokens_sum request_params_max_tokens_bucket request_params_max_tokens_count
iteration_tokens_total_sum iteration_tokens_total_bucket iteration_tokens_total_count time_to_first_token_seconds_sum
time_to_first_token_seconds_bucket time_to_first_token_seconds_count inter_token_latency_seconds_sum
inter_token_latency_seconds_bucket inter_token_latency_seconds_count e2e_request_latency_seconds_sum
e2e_request_latency_seconds_bucket e2e_request_latency_seconds_count request_queue_time_seconds_sum
request_queue_time_seconds_bucket request_queue_time_seconds_count request_inference_time_seconds_sum
request_inference_time_seconds_bucket request_inference_time_seconds_count request_prefill_time_seconds_sum
request_prefill_time_seconds_bucket request_prefill_time_seconds_count request_decode_time_seconds_sum
request_decode_time_seconds_bucket request_decode_time_seconds_count""".split()


@pytest.fixture(scope="module")
def fresh():
    with Server(args=["--served-model-name", "poet"]) as s:
        yield s


def test_every_series_exists_from_the_start_as_0(fresh):
    m = fresh.metrics()
    for name in NAMES:
        value = metric(m, "vllm:" + name, model_name="poet") if "cache_config" not in name else 0
        assert value == 0, name
    for reason in ("stop", "length", "abort", "error", "repetition"):
        assert metric(m, "vllm:request_success_total", finished_reason=reason, model_name="poet", engine="0") == 0
    for name in ("vllm:time_per_output_token_seconds_count", "vllm:gpu_cache_usage_perc", "vllm:num_requests_swapped"):
        assert not any(n == name for n, _ in m)
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_start_time_seconds",
                 "process_open_fds"):
        assert metric(m, name) > 0


# Every metric of vLLM's V1 engine that has a meaning here: gauges, counters, histograms; and our own.
GAUGES = """num_requests_running num_requests_waiting num_requests_waiting_by_reason engine_sleep_state kv_cache_usage_perc
cache_config_info kv_cache_bytes kv_cache_resident_bytes kv_cache_fragmentation_perc largest_admissible_prompt_tokens
model_weight_bytes""".split()
COUNTERS = """prefix_cache_queries prefix_cache_hits external_prefix_cache_queries external_prefix_cache_hits mm_cache_queries
mm_cache_hits num_preemptions prompt_tokens prompt_tokens_by_source prompt_tokens_cached generation_tokens request_success
tool_call_parser_invocations kv_block_evictions engine_steps""".split()
LENGTHS, LATENCY = [1, 2, 5, 10, 20, 50], [.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920,
                                           7680]
BETWEEN = [.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
HISTOGRAMS = {
    **dict.fromkeys(("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens",
                     "request_params_max_tokens", "request_prefill_kv_computed_tokens"), LENGTHS),
    "request_params_n": [1, 2, 5, 10, 20],
    "iteration_tokens_total": [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384],
    "time_to_first_token_seconds": [.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
                                    640, 2560],
    **dict.fromkeys(("inter_token_latency_seconds", "request_time_per_output_token_seconds", "engine_step_seconds"), BETWEEN),
    **dict.fromkeys(("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
                     "request_prefill_time_seconds", "request_decode_time_seconds"), LATENCY)}
LABELS = {"num_requests_waiting_by_reason": ("reason", ["capacity", "deferred"]),
          "engine_sleep_state": ("sleep_state", ["awake", "weights_offloaded", "discard_all"]),
          "prompt_tokens_by_source": ("source", ["local_compute", "local_cache_hit", "external_kv_transfer"]),
          "request_success": ("finished_reason", ["stop", "length", "abort", "error", "repetition"])}


def test_the_whole_list_is_there_with_its_types_labels_and_buckets_and_nothing_else():
    with Server(args=["--served-model-name", "poet", "--max-model-len", 64]) as s:
        text = s.get("/metrics").body.decode()
    m = parse_metrics(text)
    types = dict(re.findall(r"^# TYPE (vllm:\S+) (\S+)$", text, re.M))
    want = {**{"vllm:" + n: "gauge" for n in GAUGES}, **{f"vllm:{n}_total": "counter" for n in COUNTERS},
            **{"vllm:" + n: "histogram" for n in HISTOGRAMS}}
    assert types == want
    for n in (*GAUGES, *(c + "_total" for c in COUNTERS)):
        key, values = LABELS.get(n.removesuffix("_total"), ("engine", ["0"]))
        assert sorted(dict(l)[key] for k, l in m if k == "vllm:" + n) == sorted(values), n
        not_zero = n in ("cache_config_info", "engine_sleep_state", "kv_cache_bytes", "kv_cache_resident_bytes",
                         "largest_admissible_prompt_tokens", "model_weight_bytes")
        assert (metric(m, "vllm:" + n, engine="0") > 0) == not_zero, n
    for n, bounds in HISTOGRAMS.items():
        les = sorted(float(dict(l)["le"]) for k, l in m if k == f"vllm:{n}_bucket")
        assert les == [*bounds, float("inf")], n
        assert metric(m, f"vllm:{n}_sum", model_name="poet") == metric(m, f"vllm:{n}_count", model_name="poet") == 0, n


def test_gauges_of_the_kv_cache_follow_what_is_used(slow_model):
    with Server(slow_model, ["--max-model-len", 4000, "--kv-cache-memory-bytes", "40M", "--no-enable-prefix-caching"]) as s:
        m = s.metrics()
        block = metric(m, "vllm:kv_cache_bytes") / int(next(dict(l) for n, l in m if n == "vllm:cache_config_info")[
            "num_gpu_blocks"])
        assert metric(m, "vllm:largest_admissible_prompt_tokens") == 3999
        assert 50e6 < metric(m, "vllm:model_weight_bytes") < metric(m, "process_resident_memory_bytes")
        assert metric(m, "vllm:kv_cache_resident_bytes") < 4 * block  # the warm-up's
        with s.raw() as sock:
            sock.sendall(http_bytes("/v1/completions", {"prompt": [300] * 2001, "max_tokens": 1500, "ignore_eos": True}))
            s.wait_running()
            end = time.monotonic() + 60 * SLOW
            while s.metric("vllm:generation_tokens_total") < 3:
                assert time.monotonic() < end
            m = s.metrics()
            free = metric(m, "vllm:kv_cache_bytes") / block - 1 - metric(m, "vllm:kv_cache_resident_bytes") / block
            assert metric(m, "vllm:kv_cache_resident_bytes") >= 126 * block
            assert abs(metric(m, "vllm:largest_admissible_prompt_tokens") - min(3999, free * 16)) <= 32
            assert 0 <= metric(m, "vllm:kv_cache_fragmentation_perc") < 0.02
        m = s.wait_idle(10)
        assert metric(m, "vllm:kv_cache_fragmentation_perc") == 0
        assert metric(m, "vllm:largest_admissible_prompt_tokens") == 3999
        assert metric(m, "vllm:kv_cache_resident_bytes") >= 126 * block


def test_counts_and_sums_after_10_requests_of_10_tokens(fresh):
    prompt = fresh.tokenize("Hello my name is")
    p, n, k = len(prompt), 10, 10
    assert 1 < p < 16
    before = fresh.metrics()
    for _ in range(n):
        fresh.completion(prompt, max_tokens=k, temperature=0, ignore_eos=True)
    after = fresh.metrics()

    def gained(name, **labels):
        return metric(after, "vllm:" + name, **labels) - metric(before, "vllm:" + name, **labels)
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
                 "request_inference_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
                 "request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens", "request_params_n"):
        assert gained(name + "_count") == n, name
        assert metric(after, f"vllm:{name}_bucket", le="+Inf") == metric(after, f"vllm:{name}_count")
    assert gained("inter_token_latency_seconds_count") == n * (k - 1)
    assert gained("request_prompt_tokens_sum") == n * p
    assert gained("request_generation_tokens_sum") == n * k
    assert gained("request_params_max_tokens_sum") == n * k
    assert gained("request_params_n_sum") == n
    assert gained("iteration_tokens_total_sum") == n * (p + k)
    assert gained("iteration_tokens_total_count") == n * k
    assert gained("prompt_tokens_total") == n * p
    assert gained("generation_tokens_total") == n * k
    assert gained("request_success_total", finished_reason="length") == n
    assert gained("request_success_total") == n
    assert gained("e2e_request_latency_seconds_sum") > 0


def test_buckets_are_cumulative(fresh):
    fresh.completion("a", max_tokens=5)
    rows = {}
    for (name, labels), value in fresh.metrics().items():
        if name.endswith("_bucket"):
            le = dict(labels)["le"]
            rest = frozenset(x for x in labels if x[0] != "le")
            rows.setdefault((name, rest), []).append((float(le), value))
    assert len(rows) > 10
    for series in rows.values():
        series.sort()
        values = [v for _, v in series]
        assert values == sorted(values) and series[-1][0] == float("inf")


def test_the_text_format_is_well_formed(fresh):
    r = fresh.get("/metrics")
    assert r.status == 200 and r.headers["content-type"].startswith("text/plain; version=0.0.4")
    typed, seen = {}, set()
    for line in r.body.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in typed, f"{name} is typed twice"
            typed[name] = kind
        elif not line.startswith("#"):
            assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-z_]+=\"[^\"]*\",?)+\})? \S+", line), line
            name = re.split(r"[{ ]", line)[0]
            base = name if name in typed else re.sub(r"_(bucket|sum|count|total|created)$", "", name)
            assert base in typed or name + "" in typed, line
            key = line.rsplit(" ", 1)[0]
            assert key not in seen, line
            seen.add(key)


def test_cache_config_info_names_the_sizes(fresh):
    labels = next(dict(l) for n, l in fresh.metrics() if n == "vllm:cache_config_info")
    assert labels["block_size"] == "16" and labels["enable_prefix_caching"] == "True"
    assert int(labels["num_gpu_blocks"]) > 0 and labels["kv_cache_size_tokens"] and labels["kv_cache_max_concurrency"]


def test_gauges_return_to_0_and_usage_is_a_fraction(fresh):
    s = fresh.stream("/v1/completions", {"prompt": "a", "max_tokens": 200, "ignore_eos": True})
    assert s.done
    m = fresh.wait_idle()
    assert 0 <= metric(m, "vllm:kv_cache_usage_perc") <= 1


def test_http_counters(fresh):
    before = fresh.metrics()
    fresh.completion("a", max_tokens=1)
    fresh.post("/v1/completions", b"{")
    fresh.get("/health")
    after = fresh.metrics()

    def total(m, **labels):
        try:
            return metric(m, "http_requests_total", **labels)
        except AssertionError:
            return 0
    assert total(after, handler="/v1/completions", status="2xx") == total(before, handler="/v1/completions",
                                                                          status="2xx") + 1
    assert total(after, handler="/v1/completions", status="4xx") == total(before, handler="/v1/completions",
                                                                          status="4xx") + 1
    assert total(after, handler="/health") == 0 and total(after, handler="/metrics") == 0


def test_n_counts_children_and_observes_n_once(fresh):
    before = fresh.metrics()
    fresh.completion("a b c", n=3, temperature=1, max_tokens=4, ignore_eos=True)
    after = fresh.metrics()
    assert metric(after, "vllm:request_success_total") - metric(before, "vllm:request_success_total") == 3
    assert metric(after, "vllm:request_params_n_sum") - metric(before, "vllm:request_params_n_sum") == 3
    assert metric(after, "vllm:request_params_n_count") - metric(before, "vllm:request_params_n_count") == 1
    assert metric(after, "vllm:generation_tokens_total") - metric(before, "vllm:generation_tokens_total") == 12


def test_a_label_with_quotes_is_escaped(tmp_path):
    with Server(args=["--served-model-name", 'a"b\\c']) as s:
        assert metric(parse_metrics(s.get("/metrics").body.decode()), "vllm:num_requests_running",
                      model_name='a"b\\c') == 0


def test_answers_that_are_searched_for_tool_calls_are_counted_one_a_choice():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    with Server(args=["--enable-auto-tool-choice", "--tool-call-parser", "ernie45"]) as s:
        s.chat("hi", max_tokens=4)
        assert s.metric("vllm:tool_call_parser_invocations_total") == 0
        s.chat("hi", max_tokens=4, tools=tools, n=2)
        s.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "tools": tools})
        assert s.metric("vllm:tool_call_parser_invocations_total") == 3
