# SPDX-License-Identifier: Apache-2.0
"""T12: a client that goes away, in every way, frees its blocks at once and is counted as an abort."""
import json
import pathlib
import random
import select
import socket
import struct
import time

import pytest
import ternlib
from ternlib import Server, http_bytes, metric

PROMPT_TOKENS = 2000
ROUNDS = 50


@pytest.fixture(scope="module")
def slow(slow_model):
    with Server(slow_model, ["--max-model-len", 7000, "--kv-cache-memory-bytes", "40M",
                             "--max-num-batched-tokens", 256]) as s:
        s.rng = random.Random(12)
        yield s


def body(s, stream):
    """A long job with a prompt nobody has seen."""
    return {"prompt": [s.rng.randrange(300, 8000) for _ in range(PROMPT_TOKENS)], "max_tokens": 4096, "ignore_eos": True,
            "temperature": 0, "stream": stream}


def fin(sock):
    sock.close()


def rst(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def half_close(sock):
    sock.shutdown(socket.SHUT_WR)


LEAVE = {"fin": fin, "rst": rst, "half-close": half_close}


def leave_once(s, how, when, stream):
    sock = s.raw()
    sock.sendall(http_bytes("/v1/completions", body(s, stream)))
    if when == "prefill":
        s.wait_running()
    else:
        assert select.select([sock], [], [], 30 * ternlib.SLOW)[0]
        sock.recv(1 << 16)
    LEAVE[how](sock)
    s.wait_idle(2)
    sock.close()


CASES = [(how, when, stream) for how in LEAVE for when, stream in (("prefill", True), ("first chunk", True),
                                                                   ("prefill", False))]


@pytest.mark.parametrize("how,when,stream", CASES)
def test_it_is_freed_within_2_s_and_counted_as_an_abort(slow, how, when, stream):
    m = slow.wait_idle()
    counts = {r: metric(m, "vllm:request_success_total", finished_reason=r) for r in ("stop", "length", "abort")}
    leave_once(slow, how, when, stream)
    m = slow.metrics()
    assert metric(m, "vllm:request_success_total", finished_reason="abort") == counts["abort"] + 1
    for r in ("stop", "length"):
        assert metric(m, "vllm:request_success_total", finished_reason=r) == counts[r]


def ttft(s):
    t = time.monotonic()
    s.completion("hello there", max_tokens=1, temperature=0)
    return time.monotonic() - t


def test_50_times_in_all_ways_leaves_nothing_behind(slow):
    for k in range(10):  # until every block of the cache has been touched
        leave_once(slow, *CASES[k % len(CASES)])
    before, rss = min(ttft(slow) for _ in range(5)), ternlib.rss_kb(slow.proc.pid)
    m = slow.metrics()
    aborted = metric(m, "vllm:request_success_total", finished_reason="abort")
    for k in range(ROUNDS):
        leave_once(slow, *CASES[k % len(CASES)])
    m = slow.wait_idle()
    assert metric(m, "vllm:request_success_total", finished_reason="abort") == aborted + ROUNDS
    assert min(ttft(slow) for _ in range(5)) < before * 3 + 0.05
    assert ternlib.rss_kb(slow.proc.pid) < rss + 20 * 1024
    slow.alive()


def test_the_sums_of_the_metrics_agree_after_aborts(slow):
    slow.completion("hello", max_tokens=3, ignore_eos=True)
    leave_once(slow, "fin", "first chunk", True)
    m = slow.wait_idle()
    done = metric(m, "vllm:request_success_total")
    assert metric(m, "vllm:request_prompt_tokens_count") == done
    assert metric(m, "vllm:request_generation_tokens_count") == done
    assert metric(m, "vllm:request_generation_tokens_sum") == metric(m, "vllm:generation_tokens_total")


def test_a_reader_that_stops_reading_disturbs_nobody_and_is_dropped(slow):
    """It stops after the first chunk with a tiny window. Others go on at once; when it leaves, all is free."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.connect(("127.0.0.1", slow.port))
    sock.sendall(http_bytes("/v1/completions", {**body(slow, True), "logprobs": 20}))
    assert select.select([sock], [], [], 30 * ternlib.SLOW)[0]
    sock.recv(512)
    time.sleep(0.5)
    t = time.monotonic()
    slow.completion("others", max_tokens=4, ignore_eos=True)
    assert time.monotonic() - t < 5 * ternlib.SLOW
    fin(sock)
    slow.wait_idle(2)
    slow.alive()


def test_a_client_that_sends_its_request_by_drops_does_not_block_others(slow):
    data = http_bytes("/v1/completions", {"prompt": "hi", "max_tokens": 2}, close=True)
    with slow.raw() as sock:
        for i in range(0, len(data), 7):
            sock.sendall(data[i:i + 7])
            if i % 70 == 0:
                assert slow.get("/health").status == 200
        assert ternlib.read_response(sock)[0] == 200


def test_connections_that_say_nothing_do_not_stop_the_server(slow):
    socks = [slow.raw() for _ in range(200)]
    for s in socks[::2]:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Le")
    slow.alive()
    for s in socks:
        s.close()
    slow.alive()


def test_one_of_n_prompts_leaves_with_all_its_samples(slow):
    sock = slow.raw()
    one = body(slow, True)
    sock.sendall(http_bytes("/v1/completions", {**one, "prompt": [one["prompt"][:300], one["prompt"][300:700]], "n": 3,
                                                "temperature": 1}))
    assert select.select([sock], [], [], 30 * ternlib.SLOW)[0]
    before = slow.metric("vllm:request_success_total", finished_reason="abort")
    fin(sock)
    slow.wait_idle(2)
    assert slow.metric("vllm:request_success_total", finished_reason="abort") == before + 6


def test_clients_with_short_time_limits_leave_a_working_server(slow):
    """200 requests that give up after a moment."""
    for k in range(200):
        with slow.raw() as s:
            s.sendall(http_bytes("/v1/completions", {"prompt": [300 + k] * 50, "max_tokens": 500, "ignore_eos": True}))
            s.settimeout(0.01)
            try:
                s.recv(10)
            except TimeoutError:
                pass
    slow.wait_idle(5)
    slow.alive()


def test_aborting_one_does_not_touch_another(slow):
    prompt = [slow.rng.randrange(300, 8000) for _ in range(200)]
    want = slow.completion(prompt, max_tokens=120, temperature=0, ignore_eos=True)["choices"][0]["text"]
    a, b = slow.raw(60), slow.raw()
    a.sendall(http_bytes("/v1/completions", {"prompt": prompt, "max_tokens": 120, "temperature": 0, "ignore_eos": True}))
    b.sendall(http_bytes("/v1/completions", body(slow, True)))
    time.sleep(0.1)
    rst(b)
    status, data = ternlib.read_response(a)
    assert status == 200 and json.loads(data)["choices"][0]["text"] == want
    a.close()


def test_a_departure_ends_a_long_prefill_step_between_its_layers(tmp_path):
    """Without chunks a prompt is one step; when its only client leaves, the rest of the step is not computed."""
    deep = ternlib.make_model(tmp_path / "deep", pathlib.Path(ternlib.MODEL), layers=12)
    with Server(deep, ["--max-model-len", 8000, "--kv-cache-memory-bytes", "200M", "--max-num-batched-tokens", 8192,
                       "--shutdown-timeout", 0]) as s:
        rng = random.Random(3)

        def request():
            return http_bytes("/v1/completions", {"prompt": [rng.randrange(300, 8000) for _ in range(5000)], "max_tokens": 1})

        def wait_taken():
            end = time.monotonic() + 30 * ternlib.SLOW
            while s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting") < 1:
                assert time.monotonic() < end
            time.sleep(0.02)  # the step has begun

        times = []
        for leaves in (False, True, False, True):
            with s.raw(120) as sock:
                sock.sendall(request())
                wait_taken()
                t = time.monotonic()
                if not leaves:
                    assert ternlib.read_response(sock)[0] == 200
            s.wait_idle(60)
            times.append(time.monotonic() - t)
        assert min(times[0], times[2]) > 0.3, "the test needs a slower model"
        assert min(times[1], times[3]) < min(times[0], times[2]) / 2, times
        assert s.metric("vllm:request_success_total", finished_reason="abort") == 2
        want = s.completion([300] * 500, max_tokens=20, temperature=0, ignore_eos=True)["choices"][0]["text"]
        assert s.completion([300] * 500, max_tokens=20, temperature=0, ignore_eos=True)["choices"][0]["text"] == want
        with s.raw() as sock:  # the end of the server does not wait for the step either
            sock.sendall(request())
            wait_taken()
            t = time.monotonic()
            assert s.stop() == 0
            assert time.monotonic() - t < max(1, min(times[0], times[2]))
