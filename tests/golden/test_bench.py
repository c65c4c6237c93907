# SPDX-License-Identifier: Apache-2.0
"""tern bench: vLLM's table and JSON, numbers that agree with each other and with the server's own counters."""
import http.server
import json
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

import pytest
import ternlib
from ternlib import MODEL, SHARED, SLOW, TERN, metric, run


@pytest.fixture(scope="module")
def server():
    with ternlib.Server(MODEL) as s:
        yield s


def bench(server, tmp_path, *args, code=0):
    r = run("bench", "serve", "--port", server.port, "--disable-tqdm", "--save-result", "--save-detailed", "--result-dir", tmp_path,
            "--result-filename", "r.json", *args, timeout=120)
    assert r.returncode == code, r.stderr.decode()
    return r.stdout.decode(), json.loads((tmp_path / "r.json").read_text()) if (tmp_path / "r.json").exists() else None


def test_the_table_is_vllms_line_by_line(server, tmp_path):
    out, doc = bench(server, tmp_path, "--num-prompts", 6, "--random-input-len", 20, "--random-output-len", 5,
                     "--max-concurrency", 2, "--request-rate", 50, "--percentile-metrics", "ttft,tpot,itl,e2el")
    lines = out[out.index("====="):].splitlines()
    assert lines[0] == " Serving Benchmark Result ".center(50, "=") and lines[-1] == "=" * 50
    heads = [x for x in lines[1:-1] if x.startswith("-")]
    assert heads == [t.center(50, "-") for t in ("Time to First Token", "Time per Output Token (excl. 1st token)",
                                                 "Inter-token Latency", "End-to-end Latency")]
    rows = [x for x in lines[1:-1] if not x.startswith("-")]
    assert all(re.fullmatch(r".{40} \d+(\.\d\d)? *", x) and len(x) == 51 for x in rows), rows
    assert [x[:40].strip() for x in rows[:12]] == [
        "Successful requests:", "Failed requests:", "Maximum request concurrency:", "Request rate configured (RPS):",
        "Benchmark duration (s):", "Total input tokens:", "Total generated tokens:", "Request throughput (req/s):",
        "Output token throughput (tok/s):", "Peak output token throughput (tok/s):", "Peak concurrent requests:",
        "Total token throughput (tok/s):"]
    assert [x[:40].strip() for x in rows[12:15]] == ["Mean TTFT (ms):", "Median TTFT (ms):", "P99 TTFT (ms):"]
    assert (doc["completed"], doc["total_output_tokens"], doc["max_concurrency"]) == (6, 30, 2)


def test_numbers_of_the_result_follow_from_its_details_and_from_the_servers_counters(server, tmp_path):
    def counters():
        return [metric(server.metrics(), "vllm:" + n) for n in ("prompt_tokens_total", "generation_tokens_total")]
    before = counters()
    _, doc = bench(server, tmp_path, "--num-prompts", 8, "--random-input-len", 30, "--random-output-len", 7, "--seed", 3,
                   "--random-range-ratio", 0.5, "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90",
                   "--goodput", "ttft:60000", "e2el:60000", "--metadata", "machine=here")
    prompt, generated = (b - a for a, b in zip(before, counters()))
    lens, outs = doc["input_lens"], doc["output_lens"]
    assert all(15 <= n <= 45 for n in lens) and len(set(lens)) > 1 and all(3 <= n <= 10 for n in outs)
    # the test run before the clock is the first request once more
    assert prompt == sum(lens) + lens[0] and generated == sum(outs) + outs[0]
    assert doc["total_input_tokens"] == sum(lens) and doc["total_output_tokens"] == sum(outs)
    assert doc["output_throughput"] == pytest.approx(sum(outs) / doc["duration"])
    assert doc["request_throughput"] == pytest.approx(8 / doc["duration"]) == pytest.approx(doc["request_goodput"])
    assert doc["mean_ttft_ms"] == pytest.approx(1000 * statistics.mean(doc["ttfts"]))
    assert doc["p50_ttft_ms"] == doc["median_ttft_ms"] == pytest.approx(1000 * statistics.median(doc["ttfts"]))
    gaps = [g for x in doc["itls"] for g in x]
    assert [len(x) for x in doc["itls"]] == [n - 1 for n in outs]
    assert doc["mean_itl_ms"] == pytest.approx(1000 * statistics.mean(gaps))
    assert doc["std_itl_ms"] == pytest.approx(1000 * statistics.pstdev(gaps))
    assert doc["mean_e2el_ms"] == pytest.approx(1000 * statistics.mean(t + sum(g) for t, g in zip(doc["ttfts"], doc["itls"])))
    assert doc["machine"] == "here" and doc["request_rate"] == "inf" and doc["tokenizer_id"] == str(MODEL)


def test_the_same_seed_gives_the_same_requests_and_another_one_others(server, tmp_path):
    args = ["--num-prompts", 4, "--random-input-len", 12, "--random-output-len", 6, "--temperature", 0, "--random-range-ratio", 0.4]
    a, b, c = (bench(server, tmp_path, *args, "--seed", s)[1] for s in (1, 1, 2))
    assert a["generated_texts"] == b["generated_texts"] and a["input_lens"] == b["input_lens"]
    assert a["generated_texts"] != c["generated_texts"]


def test_requests_arrive_at_the_rate_and_at_most_so_many_at_once(server, tmp_path):
    _, doc = bench(server, tmp_path, "--num-prompts", 20, "--random-input-len", 8, "--random-output-len", 2, "--request-rate", 20)
    starts = sorted(doc["start_times"])
    assert starts[-1] - starts[0] == pytest.approx(1.0, rel=0.35), "20 requests at 20 a second"
    assert len({round(b - a, 3) for a, b in zip(starts, starts[1:])}) > 5, "gaps are random"
    _, doc = bench(server, tmp_path, "--num-prompts", 9, "--random-input-len", 8, "--random-output-len", 8, "--max-concurrency", 3)
    spans = [(s, s + t + sum(g)) for s, t, g in zip(doc["start_times"], doc["ttfts"], doc["itls"])]
    assert max(sum(s <= at < e for s, e in spans) for at, _ in spans) <= 3


def test_turns_of_a_session_follow_each_other_with_their_history(server, tmp_path):
    _, doc = bench(server, tmp_path, "--backend", "openai-chat", "--dataset-name", "scenario", "--scenario", "followups",
                   "--num-prompts", 10)
    assert doc["completed"] == 10
    for s in (0, 5):
        lens, starts = doc["input_lens"][s:s + 5], doc["start_times"][s:s + 5]
        ends = [a + t + sum(g) for a, t, g in zip(starts, doc["ttfts"][s:], doc["itls"][s:])]
        assert all(b > a + 80 * 0.5 for a, b in zip(lens, lens[1:])), "a turn carries the answers before it"
        assert all(b >= e for e, b in zip(ends, starts[1:]))


def test_a_server_without_its_directory_here_gives_token_ids_itself(server, tmp_path):
    (tmp_path / "gone").symlink_to(MODEL)
    with ternlib.Server(tmp_path / "gone") as s:
        (tmp_path / "gone").unlink()
        _, doc = bench(s, tmp_path, "--num-prompts", 3, "--random-input-len", 16, "--random-output-len", 2)
    assert doc["tokenizer_id"].endswith("/tokenize") and doc["input_lens"] == [16] * 3


def test_the_servers_address_may_end_in_v1(server, tmp_path):
    r = run("bench", "serve", "--base-url", f"http://127.0.0.1:{server.port}/v1/", "--num-prompts", 1, "--random-input-len", 4,
            "--random-output-len", 1, "--disable-tqdm")
    assert r.returncode == 0, r.stderr


@pytest.mark.parametrize("name, text, message", [
    ("custom", '{"prompt": 5}\n', "line 1: expected the field \"prompt\" to be a text"),
    ("timed_trace", '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}\n', "line 1: expected timestamp"),
    ("sharegpt", "{}", "expected a list of conversations"),
])
def test_a_broken_dataset_is_named_with_its_line(server, tmp_path, name, text, message):
    (tmp_path / "d").write_text(text)
    r = run("bench", "serve", "--port", server.port, "--dataset-name", name, "--dataset-path", tmp_path / "d")
    assert r.returncode == 1 and message in r.stderr.decode(), r.stderr


def test_files_of_prompts_conversations_and_traces_become_requests(server, tmp_path):
    (tmp_path / "c").write_text("".join(json.dumps({"prompt": f"春{i}", "output_tokens": i + 1}) + "\n" for i in range(3)))
    _, doc = bench(server, tmp_path, "--dataset-name", "custom", "--dataset-path", tmp_path / "c", "--num-prompts", 3, "--ignore-eos",
                   "--disable-shuffle", "--custom-output-len", -1)
    assert doc["output_lens"] == [1, 2, 3]
    talk = {"conversations": [{"value": "Once upon a time there was"}, {"value": "a king who had a son and a daughter"}]}
    (tmp_path / "s").write_text(json.dumps([talk, {"conversations": []}]))
    _, doc = bench(server, tmp_path, "--dataset-name", "sharegpt", "--dataset-path", tmp_path / "s", "--num-prompts", 2, "--ignore-eos")
    ids = server.post("/tokenize", {"prompt": talk["conversations"][1]["value"]}).json["count"]
    assert doc["output_lens"] == [ids, ids]
    trace = [{"timestamp": 300 * i, "input_length": 530, "output_length": 2, "hash_ids": [7, i]} for i in range(3)]
    (tmp_path / "t").write_text("".join(json.dumps(t) + "\n" for t in trace))
    hits = metric(server.metrics(), "vllm:prefix_cache_hits_total")
    _, doc = bench(server, tmp_path, "--dataset-name", "timed_trace", "--dataset-path", tmp_path / "t", "--num-prompts", 3)
    assert doc["input_lens"] == [530] * 3
    starts = doc["start_times"]
    assert starts[1] - starts[0] == pytest.approx(0.3, abs=0.2) and starts[2] - starts[0] == pytest.approx(0.6, abs=0.2)
    assert metric(server.metrics(), "vllm:prefix_cache_hits_total") - hits >= 3 * 512 - 1, "equal ids are equal prefixes"


def test_what_speculation_did_is_told_as_vllm_tells_it(server, tmp_path):
    """A prompt that repeats itself, four times; the server's counters are read beside the run."""
    data = tmp_path / "d.jsonl"
    verse = "白日依山尽，黄河入海流。欲穷千里目，更上一层楼。" * 4
    data.write_text((json.dumps({"prompt": verse}) + "\n") * 4)
    ask = ["--dataset-name", "custom", "--dataset-path", data, "--num-prompts", 4, "--custom-output-len", 60, "--ignore-eos",
           "--temperature", 0, "--max-concurrency", 1]
    config = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4,"prompt_lookup_min":1}'
    names = ["num_drafts", "num_draft_tokens", "num_accepted_tokens"]
    with ternlib.Server(MODEL, args=["--speculative-config", config]) as s:
        out, doc = bench(s, tmp_path, *ask)
        m = s.metrics()
    drafts, tokens, accepted = (metric(m, f"vllm:spec_decode_{n}_total") for n in names)
    # the test run before the clock asks the first of the same four prompts: a fifth of all is its
    assert [doc["spec_decode_" + n] * 5 for n in ("num_drafts", "draft_tokens", "accepted_tokens")] == [
        4 * n for n in (drafts, tokens, accepted)] and accepted > 0
    rates = [metric(m, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) / drafts for i in range(3)]
    assert doc["spec_decode_per_position_acceptance_rates"] == pytest.approx(rates)
    assert doc["spec_decode_acceptance_rate"] == pytest.approx(100 * accepted / tokens)
    assert doc["spec_decode_acceptance_length"] == pytest.approx(1 + accepted / drafts)
    lines = out[out.index("Speculative Decoding".center(50, "-")):].splitlines()
    assert [x[:40].strip() for x in lines[1:-1]] == [
        "Acceptance rate (%):", "Acceptance length:", "Drafts:", "Draft tokens:", "Accepted tokens:",
        "Per-position acceptance (%):", "Position 0:", "Position 1:", "Position 2:"] and lines[-1] == "=" * 50
    assert lines[7][40:].strip() == f"{100 * rates[0]:.2f}" and lines[3][40:].strip() == str(doc["spec_decode_num_drafts"])
    out, doc = bench(server, tmp_path, *ask)
    assert "Speculative" not in out and not [k for k in doc if k.startswith("spec")]


def test_failures_are_counted_and_end_with_1(server, tmp_path):
    r = run("bench", "serve", "--port", server.port, "--num-prompts", 2, "--random-input-len", 8, "--extra-body", '{"min_p": 7}')
    assert r.returncode == 1 and b"the first request failed: status 400" in r.stderr
    r = run("bench", "serve", "--port", ternlib.free_port(), "--num-prompts", 2)
    assert r.returncode == 1 and len(r.stderr.splitlines()) == 1


def test_latency_and_throughput_print_vllms_lines(tmp_path):
    r = run("bench", "latency", MODEL, "--input-len", 8, "--output-len", 4, "--batch-size", 2, "--num-iters", 3,
            "--num-iters-warmup", 1, "--output-json", tmp_path / "l")
    assert r.returncode == 0, r.stderr
    lines, doc = r.stdout.decode().splitlines(), json.loads((tmp_path / "l").read_text())
    assert re.fullmatch(r"Avg latency: [\d.e-]+ seconds", lines[0]) and len(doc["latencies"]) == 3
    assert re.fullmatch(r"Weights: [\d.]+ MB resident \(100\.0 % of 16 bits\), [\d.]+ MB read per token", lines.pop())
    assert doc["weight_bytes"] == doc["weight_bytes_per_token"] > 15e6
    assert [x.split("%")[0] for x in lines[1:]] == ["10", "25", "50", "75", "90", "99"] == list(doc["percentiles"])
    assert doc["avg_latency"] == pytest.approx(statistics.mean(doc["latencies"]))
    assert doc["percentiles"]["50"] == pytest.approx(statistics.median(doc["latencies"]))
    r = run("bench", "throughput", MODEL, "--num-prompts", 5, "--random-input-len", 9, "--random-output-len", 4, "--n", 2,
            "--output-json", tmp_path / "t")
    assert r.returncode == 0, r.stderr
    doc, out = json.loads((tmp_path / "t").read_text()), r.stdout.decode()
    assert "Total num prompt tokens:  45\nTotal num output tokens:  40\n" in out and doc["total_num_tokens"] == 85
    assert re.match(r"Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s, [\d.]+ output tokens/s\n", out)


@pytest.mark.skipif(not (SHARED / "assets" / "traces").is_dir(), reason="needs the shared folder")
def test_the_published_sonnets_and_traces_are_read(server, tmp_path):
    folder = SHARED / "assets" / "traces"
    _, doc = bench(server, tmp_path, "--dataset-name", "sonnet", "--dataset-path", folder / "sonnet.txt", "--num-prompts", 2,
                   "--sonnet-input-len", 300, "--sonnet-output-len", 2)
    assert all(200 < n <= 310 for n in doc["input_lens"])
    _, doc = bench(server, tmp_path, "--dataset-name", "timed_trace", "--dataset-path", folder / "conversation_trace.jsonl",
                   "--num-prompts", 2, "--trace-max-len", 1000, "--trace-speed", 1000, "--output-len", 2)
    assert doc["completed"] == 2


def test_a_sweep_runs_every_pair_of_limits(tmp_path):
    out = tmp_path / "sweep.json"
    r = run("bench", "sweep", MODEL, "--dataset-name", "random", "--random-input-len", 40, "--random-output-len", 8,
            "--num-prompts", 4, "--sweep-batched-tokens", 16, 64, "--sweep-seqs", 1, 4, "--output-json", out,
            "--max-model-len", 256)
    assert r.returncode == 0, r.stderr
    points = json.loads(out.read_text())
    assert [(p["max_num_batched_tokens"], p["max_num_seqs"]) for p in points] == [(16, 1), (16, 4), (64, 1), (64, 4)]
    lines = r.stdout.decode().splitlines()
    assert len(lines) == 5 and lines[0].split()[:2] == ["batched", "tokens"]
    for line, p in zip(lines[1:], points):
        assert float(line.split()[2]) == pytest.approx(p["output_throughput"], abs=0.1)
        assert 0 < p["median_ttft_ms"] <= p["p99_ttft_ms"] and 0 < p["median_tpot_ms"] <= p["p99_tpot_ms"]


def test_a_sweep_over_something_else_than_numbers_is_refused():
    r = run("bench", "sweep", MODEL, "--sweep-seqs", "4", "many")
    assert r.returncode == 1 and r.stdout == b"" and b"--sweep-seqs" in r.stderr and b"'many'" in r.stderr


def test_the_machines_limits_are_printed_for_one_thread_and_for_all():
    r = run("bench", "machine", timeout=120)
    assert r.returncode == 0, r.stderr
    lines = r.stdout.decode().splitlines()
    shape = r"level \w+, (\d+) threads?: ([\d.]+) GB/s read, (\d+) GFLOP/s bf16, (\d+) GFLOP/s f32, (\d+) GOP/s int8"
    found = [re.fullmatch(shape, line) for line in lines]
    assert found and all(found) and found[0][1] == "1"
    assert all(float(m[2]) > 0 and int(m[4]) > 0 for m in found)


def test_kernels_are_timed_beside_the_limits():
    r = run("bench", "kernels", "--only", "argmax", timeout=120)
    assert r.returncode == 0, r.stderr
    assert any("argmax" in line for line in r.stdout.decode().splitlines())
    assert run("bench", "kernels", "--level", "avx1024").returncode == 1


@pytest.mark.parametrize("only", ["nosuch", "LM_HEAD"])
def test_kernels_that_no_line_has_are_refused_with_the_choices(only):
    r = run("bench", "kernels", "--only", only)
    assert r.returncode == 2 and r.stdout == b"", r.stdout
    last = r.stderr.decode().splitlines()[-1]
    assert last.startswith("tern bench kernels: error: --only: ") and f"'{only}'" in last
    for word in ("step", "qkv", "lm_head", "attention", "bf16", "f32", "i8", "i4-32", "pack [out, in]"):
        assert last.count(f"'{word}'") == 1, word


class Metrics(http.server.BaseHTTPRequestHandler):
    """A server that streams one token, with a page of counters that the test makes up."""
    pages = []

    def do_GET(self):
        page = (self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]) if self.path == "/metrics" else '{"data":[{"id":"m"}]}'
        self.answer(page.encode())

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(b'data: {"choices":[{"index":0,"text":"x","finish_reason":"length"}]}\n\ndata: [DONE]\n\n')

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def counters(drafts, tokens, accepted, model="m"):
    return "".join(f'vllm:spec_decode_num_{n}_total{{model_name="{model}",engine="0"}} {v}\n'
                   for n, v in (("drafts", drafts), ("draft_tokens", tokens), ("accepted_tokens", accepted)))


@pytest.mark.parametrize("pages, drafts", [
    ([counters(1, 3, 2), counters(5, 15, 9)], 4),
    ([counters(1, 3, 2, "/a}b" + "x" * 600), counters(5, 15, 9, "/a}b" + "x" * 600)], 4),  # any name of a model
    ([counters(5, 15, 9), counters(1, 3, 2)], None),  # restarted in between: no difference means anything
    ([counters("NaN", "+Inf", -1), counters("NaN", "+Inf", -1)], None),
    (["\0" * 1000 + "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_"], None),
])
def test_counters_of_speculation_are_believed_as_far_as_they_can_be(tmp_path, pages, drafts):
    handler = type("Handler", (Metrics,), {"pages": list(pages)})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        r = run("bench", "serve", "--base-url", f"http://127.0.0.1:{server.server_port}", "--model", "m", "--tokenizer", MODEL,
                "--dataset-name", "random", "--random-input-len", 4, "--random-output-len", 1, "--num-prompts", 2,
                "--save-result", "--result-dir", tmp_path, "--result-filename", "r.json")
    finally:
        server.shutdown()
        server.server_close()
    assert r.returncode == 0, r.stderr
    doc = ternlib.strict_json((tmp_path / "r.json").read_bytes())
    assert doc.get("spec_decode_num_drafts") == drafts


class Half(Metrics):
    """A server that ends the answers of the first `quick` requests and keeps the others open."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(b'{"data": [{"id": "m", "root": "/nowhere/m"}]}' if self.path == "/v1/models" else b"")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            return self.answer(json.dumps({"tokens": [300] * max(1, len(body["prompt"].split()))}).encode())
        if self.path == "/detokenize":
            return self.answer(json.dumps({"prompt": " a" * len(body["tokens"])}).encode())
        s = self.server
        with s.lock:
            s.n += 1
            number = s.n
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.event({"choices": [{"index": 0, "text": "a"}]})
            if number > s.quick:
                s.hang.wait()
            self.event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 1}})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass

    def event(self, doc):
        self.wfile.write(b"data: " + json.dumps(doc).encode() + b"\n\n")
        self.wfile.flush()


@pytest.fixture
def half():
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Half)
    s.daemon_threads = True
    s.lock, s.hang, s.n, s.quick = threading.Lock(), threading.Event(), 0, 4  # one is the trial before the run
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield s
    s.hang.set()
    s.shutdown()
    s.server_close()


def start_bench(half, tmp_path, *args):
    return subprocess.Popen([TERN, "bench", "serve", "--port", str(half.server_port), "--dataset-name", "random",
                             "--random-input-len", "8", "--random-output-len", "4", "--num-prompts", "10", "--disable-tqdm",
                             "--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json", *args],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def count(table, label):
    return int(re.search(rf"^{label}: +(\d+) *$", table, re.M)[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_tells_what_finished_and_counts_the_rest_as_cancelled(half, tmp_path, number):
    p = start_bench(half, tmp_path, "--max-concurrency", "2")
    end = time.monotonic() + 30 * SLOW
    while half.n < half.quick + 2 and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.3)
    p.send_signal(number)
    out, err = p.communicate(timeout=30 * SLOW)
    table = out.decode()
    assert p.returncode == 1 and err.decode().splitlines()[-1] == "tern bench serve: error: interrupted", err
    assert [count(table, f"{x} requests") for x in ("Successful", "Failed", "Cancelled")] == [3, 0, 2]
    assert count(table, "Requests not sent") == 5 and "Mean TTFT (ms):" in table
    doc = json.loads((tmp_path / "r.json").read_bytes())
    assert (doc["completed"], doc["failed"], doc["cancelled"], doc["not_sent"]) == (3, 0, 2, 5)


def test_a_run_that_ends_by_itself_has_vllms_lines_and_keys_only(half, tmp_path):
    half.quick = 100
    p = start_bench(half, tmp_path)
    out, err = p.communicate(timeout=60 * SLOW)
    assert p.returncode == 0, err
    assert count(out.decode(), "Successful requests") == 10 and b"Cancelled" not in out and b"not sent" not in out
    doc = json.loads((tmp_path / "r.json").read_bytes())
    assert doc["completed"] == 10 and "cancelled" not in doc and "not_sent" not in doc


TURN = {"case": "decode", "args": "tern", "time": 1.0, "tok/s": 5.0}


@pytest.mark.parametrize("text, words", [
    ('{"format": "bf16", "program": "tern", "turns": [', "no file that bench/compare wrote"), ("", "no file"), ("[]", "expected an object"),
    ('{"format": "bf16", "program": 1, "turns": []}', "expected an object"), ("[" * 100000, "no file"),
    (json.dumps({"format": "bf16", "program": "tern", "turns": [TURN, {**TURN, "tok/s": 0}]}), "turn 2: expected"),
    (json.dumps({"format": "bf16", "program": "tern", "turns": [{**TURN, "time": float("nan")}]}), "turn 1: expected"),
])
def test_a_broken_file_of_a_comparison_ends_the_report_and_a_resumed_session_in_one_line(tmp_path, text, words):
    f = tmp_path / "bf16.tern.json"
    f.write_text(text)
    for cmd in ([ternlib.SOURCE / "bench" / "compare-report", f],
                [ternlib.SOURCE / "bench" / "compare", MODEL, "--format", "bf16", "--results", tmp_path, "--tern", ternlib.TERN]):
        r = subprocess.run([sys.executable, *map(str, cmd)], capture_output=True, text=True, timeout=60)
        assert r.returncode == 1 and r.stderr.count("\n") == 1 and str(f) in r.stderr and words in r.stderr, r.stderr
    assert f.read_text() == text


def test_a_ratio_of_a_comparison_is_the_median_of_those_of_turns_next_to_each_other(tmp_path):
    """The machine halves its speed in between, as it does; of each program another turn is hit."""
    def write(program, turns):
        machine = {"cpu": "x", "threads": 2, "version": "1", "machine_before": [1.0, None, None]}
        (tmp_path / f"bf16.{program}.json").write_text(json.dumps({"format": "bf16", "program": program, "turns": [
            {"case": "decode", "args": program, "time": t, "tok/s": speed, **machine} for t, speed in turns]}))
    write("tern", [(1, 100.0), (100, 52.0), (200, 54.0)])
    write("llama.cpp", [(10, 50.0), (90, 26.0), (210, 18.0), (1000, 50.0), (1100, 50.0)])
    r = subprocess.run([sys.executable, ternlib.SOURCE / "bench" / "compare-report", *tmp_path.iterdir()],
                       capture_output=True, text=True, timeout=60)
    row = next((x for x in r.stdout.splitlines() if x.startswith("| decode |")), None)
    assert row == "| decode | 54.0 (52.0–100) | 50.0 (18.0–50.0) | **2.00** (2.00–3.00) |", r
    assert "Ratios: **median** (lowest–highest) of tern's turns, each to the other's nearest in time." in r.stdout
