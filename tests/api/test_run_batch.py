# SPDX-License-Identifier: Apache-2.0
"""`tern run-batch`: OpenAI batch files, error rows, resuming after any end."""
import json
import os
import pathlib
import signal
import subprocess
import time

import ternlib


def request(i, text="写一首诗", url="/v1/chat/completions", **body):
    if url == "/v1/completions":
        body = {"prompt": text, **body}
    elif url == "/v1/chat/completions":
        body = {"messages": [{"role": "user", "content": text}], **body}
    elif url == "/v1/responses":
        body = {"input": text, **body}
    return {"custom_id": f"r{i}", "method": "POST", "url": url, "body": body}


def write(path, lines):
    path.write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x, ensure_ascii=False).encode()) + b"\n"
                              for x in lines))
    return path


def rows(path):
    data = pathlib.Path(path).read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [ternlib.strict_json(x) for x in data.split(b"\n")[:-1]]


def run(src, dst, *args, model=ternlib.MODEL, **kw):
    return ternlib.run("run-batch", "-i", src, "-o", dst, "--model", model, *args, **kw)


def start(src, dst, model, *args):
    return subprocess.Popen([ternlib.TERN, "run-batch", "-i", str(src), "-o", str(dst), "--model", str(model),
                             *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def content(row):
    return row["response"]["body"]["choices"][0]["message"]["content"]


def wait_rows(path, n, proc, timeout=60):
    end = time.monotonic() + timeout * ternlib.SLOW
    while not path.exists() or path.read_bytes().count(b"\n") < n:
        assert proc.poll() is None, proc.stderr.read().decode()
        assert time.monotonic() < end
        time.sleep(0.005)


def test_every_request_is_answered_as_the_server_does_in_the_order_of_the_input(server, tmp_path):
    src = write(tmp_path / "in.jsonl", [
        request(0, temperature=0, max_tokens=30),
        request(1, "The sky", "/v1/completions", temperature=0, max_tokens=5),
        request(2, temperature=1, seed=3, n=2, max_tokens=20, model=ternlib.MODEL),
        request(3, max_tokens=60, temperature=0, response_format={"type": "json_object"}),
        *[request(i, f"第{i}首", max_tokens=1 + i % 7 * 5, temperature=0) for i in range(4, 40)],
    ])
    out = tmp_path / "out.jsonl"
    r = run(src, out)
    assert r.returncode == 0, r.stderr.decode()
    got = rows(out)
    assert [x["custom_id"] for x in got] == [f"r{i}" for i in range(40)]
    for line, row in zip(src.read_text().splitlines(), got):
        want = json.loads(line)
        assert row["id"].startswith("vllm-") and row["response"]["request_id"].startswith("vllm-batch-")
        assert row["error"] is None and row["response"]["status_code"] == 200
        live = server.post(want["url"], want["body"]).json
        body = row["response"]["body"]
        assert body["choices"] == live["choices"]
        assert body["usage"]["completion_tokens"] == live["usage"]["completion_tokens"]
        assert body["object"] == live["object"]
    assert len({x["id"] for x in got}) == 40
    assert r.stdout == b""
    assert b"100% Completed | 40/40" in r.stderr


def test_responses_are_a_kind_of_request_too(server, tmp_path):
    src = write(tmp_path / "in.jsonl", [request(0, url="/v1/responses", temperature=0, max_output_tokens=8)])
    assert run(src, tmp_path / "o").returncode == 0
    body = rows(tmp_path / "o")[0]["response"]["body"]
    assert body["object"] == "response"
    live = server.post("/v1/responses", {"input": "写一首诗", "temperature": 0, "max_output_tokens": 8}).json
    assert [o["content"][0]["text"] for o in body["output"]] == [o["content"][0]["text"] for o in live["output"]]


def test_what_is_wrong_becomes_a_row_and_stops_nothing(tmp_path):
    good = request(1, temperature=0, max_tokens=3)
    lines = [
        good,
        b'{"custom_id": "broken", ',
        b"",
        request(2, max_tokens=-5),
        {**request(3), "url": "/v1/embeddings"},
        {**request(4), "method": "GET"},
        good,
        {"method": "POST", "url": "/v1/completions", "body": {}},
        request(5, stream=True),
        b"[1]",
        {**request(6), "body": "text"},
        request(7, "word " * 3000),
        "é".encode("latin-1"),
        request(8, model="nobody"),
        request(9, temperature=0, max_tokens=2),
    ]
    src, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    r = run(src, out)
    assert r.returncode == 0, r.stderr.decode()
    got = rows(out)
    assert [x["custom_id"] for x in got] == ["r1", None, "r2", "r3", "r4", "r1", None, "r5", None, "r6", "r7", None,
                                             "r8", "r9"]
    codes = [x["response"]["status_code"] for x in got]
    assert codes == [200] + [400] * 11 + [404, 200]
    assert [x["error"]["code"] for x in got if x["error"] and "line" in x["error"]] == [
        "invalid_json_line", "invalid_url", "invalid_method", "duplicate_custom_id", "invalid_request",
        "invalid_request", "invalid_request", "invalid_request", "invalid_json_line"]
    assert got[1]["error"]["line"] == 2 and "line 2" in got[1]["error"]["message"]
    assert "line 1" in got[5]["error"]["message"]
    assert got[2]["error"] == got[2]["response"]["body"] and "max_tokens" in got[2]["error"]["error"]["message"]
    assert got[10]["error"]["error"]["code"] == "context_length_exceeded"
    assert got[12]["error"]["error"]["type"] == "NotFoundError"
    assert b"12 errors" in r.stderr


def test_lines_that_have_a_row_are_not_run_again(tmp_path):
    src, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(src, [request(i, max_tokens=4) for i in range(3)] + [b"{", request(0)])
    assert run(src, out).returncode == 0
    first = rows(out)
    before = out.read_bytes()
    r = run(src, out)
    assert r.returncode == 0 and out.read_bytes() == before
    assert b"Starting to load model" not in r.stderr, "there is nothing to do"
    assert b"5 of 5 requests are already answered" in r.stderr
    write(src, [request(9, max_tokens=4)] + [request(i, max_tokens=4) for i in range(3)] + [b"{", request(0)])
    out.write_bytes(b"".join(json.dumps({**x, "error": {**x["error"], "line": x["error"]["line"] + 1}}
                                        if x["error"] else x).encode() + b"\n" for x in first))
    assert run(src, out).returncode == 0
    got = rows(out)
    assert [x["custom_id"] for x in got] == ["r9", "r0", "r1", "r2", None, "r0"]
    assert [content(x) for x in got[1:4]] == [content(x) for x in first[:3]], "sampled at random, so they were kept"


def test_a_killed_run_loses_nothing_it_had_written(tmp_path, slow_model):
    src, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(src, [request(i, f"number {i}", max_tokens=20 + i % 5 * 20, ignore_eos=True, temperature=1)
                for i in range(60)])
    kept = {}
    for sig in (signal.SIGKILL, signal.SIGTERM):
        p = start(src, out, slow_model, "--max-num-seqs", "4")
        wait_rows(out, len(kept) + 6, p)
        p.send_signal(sig)
        p.wait(20)
        assert p.returncode == -sig
        data = out.read_bytes()
        got = [ternlib.strict_json(x) for x in data[:data.rfind(b"\n") + 1].split(b"\n")[:-1]]
        now = {x["custom_id"]: x for x in got}
        assert len(now) == len(got), "no request twice"
        assert all(now[k] == v for k, v in kept.items())
        assert all(x["response"]["status_code"] == 200 for x in got)
        kept = now
    out.write_bytes(out.read_bytes() + b'{"id": "vllm-1", "custom_id": "r59", "resp')  # died inside a write
    r = run(src, out, model=slow_model, timeout=120)
    assert r.returncode == 0, r.stderr.decode()
    assert b"incomplete" in r.stderr
    got = rows(out)
    assert [x["custom_id"] for x in got] == [f"r{i}" for i in range(60)]
    assert all(got[int(k[1:])] == v for k, v in kept.items())
    assert all(x["response"]["body"]["usage"]["completion_tokens"] == 20 + i % 5 * 20 for i, x in enumerate(got))
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "out.jsonl"]


def test_many_requests_are_in_flight(tmp_path, slow_model):
    src, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(src, [request(i, f"n {i}", max_tokens=100, ignore_eos=True) for i in range(64)])
    p = start(src, out, slow_model, "--max-num-seqs", "16", "--max-num-batched-tokens", "64")
    try:
        wait_rows(out, 1, p)
        assert p.poll() is None, "the others run at the same time and have not ended"
        fds = len(os.listdir(f"/proc/{p.pid}/fd"))
        assert fds >= 2 * 32, "twice the running sequences, a pair of sockets each"
    finally:
        p.kill()
        p.wait()


def test_an_output_of_another_batch_is_left_alone(tmp_path):
    src = write(tmp_path / "in.jsonl", [request(0, max_tokens=2)])
    out = write(tmp_path / "out.jsonl", [{"custom_id": "other", "response": None, "error": None}])
    before = out.read_bytes()
    r = run(src, out)
    assert r.returncode == 1 and b"other" in r.stderr and b"--overwrite" in r.stderr
    assert out.read_bytes() == before
    notes = write(tmp_path / "notes.txt", [b"do not lose me"])
    assert run(src, notes).returncode == 1 and notes.read_bytes() == b"do not lose me\n"
    assert run(src, src).returncode == 1 and len(src.read_bytes().splitlines()) == 1
    assert run(src, out, "--overwrite").returncode == 0
    assert [x["custom_id"] for x in rows(out)] == ["r0"]


def test_two_runs_do_not_write_one_file(tmp_path, slow_model):
    src, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(src, [request(i, max_tokens=1500 if i else 1, ignore_eos=True) for i in range(8)])
    p = start(src, out, slow_model)
    try:
        wait_rows(out, 1, p)
        r = run(src, out)
        assert r.returncode == 1 and b"another run" in r.stderr
    finally:
        p.kill()
        p.wait()


def test_rows_may_go_to_a_pipe(tmp_path):
    src = write(tmp_path / "in.jsonl", [request(i, max_tokens=2) for i in range(5)])
    r = run(src, "/dev/stdout")
    assert r.returncode == 0, r.stderr.decode()
    assert sorted(json.loads(x)["custom_id"] for x in r.stdout.splitlines()) == [f"r{i}" for i in range(5)]


def test_wrong_usage_is_told_before_anything_is_read(tmp_path):
    src = write(tmp_path / "in.jsonl", [request(0)])
    for args in (["-i", src], ["-o", "x"], ["-i", "https://host/x", "-o", "y"], ["-i", src, "-o", "y", "--api-key", "k"],
                 ["-i", src, "-o", "y", "--enable-metrics"]):
        assert ternlib.run("run-batch", "--model", ternlib.MODEL, *args).returncode == 2, args
    r = run(tmp_path / "absent", tmp_path / "o")
    assert r.returncode == 1 and b"tern run-batch: error: " in r.stderr and b"absent" in r.stderr
    r = run(src, tmp_path / "no" / "such" / "folder")
    assert r.returncode == 1
    r = run(src, tmp_path / "o2", model=tmp_path / "nomodel")
    assert r.returncode == 1 and rows(tmp_path / "o2") == []


def test_an_empty_batch_is_complete(tmp_path):
    src = write(tmp_path / "in.jsonl", [b"", b"   "])
    r = run(src, tmp_path / "o")
    assert r.returncode == 0 and (tmp_path / "o").read_bytes() == b""


def test_options_of_parsers_are_checked_as_by_serve(tmp_path):
    src = write(tmp_path / "in", [request(1)])
    for args, message in ((["--enable-auto-tool-choice"], b"requires --tool-call-parser"),
                          (["--reasoning-parser", "ernie45"], b"has no token <think>")):
        r = run(src, tmp_path / "out", *args)
        assert r.returncode == 1 and message in r.stderr, r.stderr
        assert not (tmp_path / "out").exists() or rows(tmp_path / "out") == []
