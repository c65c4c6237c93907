#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random traffic against a server with a small KV cache, for a given time: plain and streamed requests, n, stop strings,
seeds, bad bodies, clients that leave by FIN, RST or half-close, readers that stall. Run it against a sanitizer build.

    soak.py --tern build-asan/tern --seconds 600

Without --model it makes a tiny random one, so that time goes into scheduling and sockets and not into instrumented kernels.

At the end there must be: no sanitizer report, the process alive and ended by SIGTERM with 0, nothing running or waiting, KV
use 0, preemptions that really happened, resident memory flat, and every repeated request answered with the same text.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import ternlib  # noqa: E402

REPORTS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer", "ThreadSanitizer:",
           "runtime error:", "UndefinedBehaviorSanitizer", "Assertion", "integrity")
TEXTS = ["写一首七言绝句，题目是《春晓》。", "Once upon a time there was a", "春眠不觉晓，", "a b c d e f g " * 12, "龘𠮷🤗",
         "床前明月光，" * 10, "hi"]
SHARED_PREFIX = "同一段很长的开头。" * 20


class Soak:
    def __init__(self, server, seed):
        self.server, self.seed = server, seed
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.known = {}  # request -> answer, for requests whose answer must never change
        self.counts, self.errors = {}, []

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, text):
        with self.lock:
            self.errors.append(text)
        self.stop.set()

    def request(self, rng):
        text = rng.choice(TEXTS)
        if rng.random() < 0.3:
            text = SHARED_PREFIX + text
        body = {"max_tokens": rng.choice([1, 5, 20, 60, 150]), "stream": rng.random() < 0.6}
        if rng.random() < 0.5:
            path, body["prompt"] = "/v1/completions", text
            if rng.random() < 0.2:
                body["prompt"] = [text, rng.choice(TEXTS)]
            if rng.random() < 0.2:
                body["logprobs"] = rng.randint(0, 5)
            if rng.random() < 0.1:
                body["echo"] = True
            if rng.random() < 0.1 and not body["stream"]:
                body["prompt_logprobs"] = rng.randint(0, 3)
        else:
            path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": text}]
            if rng.random() < 0.2:
                body["logprobs"], body["top_logprobs"] = True, rng.randint(0, 5)
        body["temperature"] = rng.choice([0, 0, 0.7, 1, 2])
        body["seed"] = rng.randint(0, 3)
        if body["temperature"] and rng.random() < 0.3:
            body["n"] = rng.randint(2, 4)
        if rng.random() < 0.2:
            body["stop"] = rng.sample(["。", "，", "the", "\n", "月"], rng.randint(1, 3))
        if rng.random() < 0.3:
            body["ignore_eos"] = True
            if rng.random() < 0.1 and not body["stream"] and "prompt" in body:
                body["n"], body["temperature"], body["prompt_logprobs"] = 3, 1, 1
        if rng.random() < 0.1:
            body["min_tokens"] = 1
        if rng.random() < 0.1:
            body["repetition_penalty"], body["presence_penalty"] = 1.2, 0.5
        if body["stream"] and rng.random() < 0.3:
            body["stream_options"] = {"include_usage": True}
        return path, body

    def answer(self, path, body):
        """The texts and reasons of a request's choices."""
        r = self.server.post(path, body, timeout=600)
        if r.status != 200:
            raise AssertionError(f"{r.status} for {body}: {r.body[:300]!r}")
        if body["stream"]:
            s = ternlib.Events(r.status, r.headers, r.body)
            if not s.done or any("error" in c for c in s.chunks):
                raise AssertionError(f"a stream ended badly: {r.body[-300:]!r}")
            n = 1 + max(c["index"] for x in s.chunks for c in x["choices"])
            return [(s.text(i), s.finish(i)) for i in range(n)]
        return [(c["message"]["content"] if "message" in c else c["text"], c["finish_reason"])
                for c in r.json["choices"]]

    def whole(self, rng):
        path, body = self.request(rng)
        got = self.answer(path, body)
        key = json.dumps([path, {k: v for k, v in body.items() if k not in ("stream", "stream_options")}], sort_keys=True)
        with self.lock:
            want = self.known.setdefault(key, got)
        if want != got:
            raise AssertionError(f"the answer changed: {key}\n  {want}\n  {got}")
        self.count("answers")

    def grow(self, k):
        """All workers at once, prompts that fill the cache, more tokens than fit: somebody is preempted."""
        body = {"prompt": [300 + 100 * k + i for i in range(78)], "max_tokens": 24, "temperature": 0, "ignore_eos": True,
                "stream": k % 2 == 0}
        if [f for _, f in self.answer("/v1/completions", body)] != ["length"]:
            raise AssertionError("a request that grew ended early")
        self.count("answers")

    def leave(self, rng):
        path, body = self.request(rng)
        body["max_tokens"] = 200
        body["ignore_eos"] = True
        with self.server.raw(60) as s:
            data = ternlib.http_bytes(path, body)
            s.sendall(data[:rng.randrange(len(data))] if rng.random() < 0.1 else data)
            if rng.random() < 0.5:
                select.select([s], [], [], rng.random())
            else:
                time.sleep(rng.random() * 0.2)
            how = rng.choice(["fin", "rst", "half"])
            if how == "rst":
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif how == "half":
                s.shutdown(socket.SHUT_WR)
                time.sleep(rng.random() * 0.2)
        self.count("left by " + how)

    def stall(self, rng):
        path, body = self.request(rng)
        body.update(stream=True, max_tokens=200, ignore_eos=True)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.settimeout(60)
            s.connect(("127.0.0.1", self.server.port))
            s.sendall(ternlib.http_bytes(path, body))
            for _ in range(rng.randrange(10)):
                time.sleep(rng.random() * 0.1)
                if select.select([s], [], [], 1)[0] and not s.recv(100):
                    break
        self.count("stalled readers")

    def broken(self, rng):
        data = rng.choice([b"{:", b"", b'{"prompt":"\xff"}', b'{"prompt":[-1]}', b'{"prompt":"a","n":0}',
                           b'{"prompt":"a","temperature":NaN}', b'[' * 1000, b'{"prompt":""}'])
        r = self.server.post("/v1/completions", data)
        if r.status != 400:
            raise AssertionError(f"{r.status} for {data!r}")
        self.count("refused")

    def look(self, rng):
        self.server.get(rng.choice(["/metrics", "/health", "/v1/models", "/version"]))
        self.server.post("/tokenize", {"prompt": rng.choice(TEXTS)})
        self.count("looks")

    def worker(self, k):
        rng = random.Random(self.seed * 1000 + k)
        try:
            self.grow(k)
        except Exception as e:
            return self.fail(f"grow: {e!r}")
        while not self.stop.is_set():
            action = rng.choices([self.whole, self.leave, self.stall, self.broken, self.look], [50, 25, 8, 5, 5])[0]
            try:
                action(rng)
            except (BrokenPipeError, ConnectionResetError, http.client.BadStatusLine, TimeoutError) as e:
                if self.server.proc.poll() is not None:
                    return self.fail("the server is gone")
                if action is self.whole:
                    return self.fail(f"{action.__name__}: {e!r}")
            except Exception as e:
                return self.fail(f"{action.__name__}: {e!r}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--tern", default=ternlib.TERN)
    p.add_argument("--model", help="default: a tiny random one")
    p.add_argument("--seconds", type=float, default=float(os.environ.get("SOAK_SECONDS", 600)))
    p.add_argument("--workers", type=int, default=12)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--rss-slack-mb", type=int, default=96)
    a = p.parse_args()
    ternlib.TERN = a.tern
    ternlib.SLOW = max(ternlib.SLOW, 10)
    here = pathlib.Path(__file__).resolve().parent
    tmp = tempfile.TemporaryDirectory(prefix="tern-soak-")
    if not a.model:
        a.model = ternlib.make_model(pathlib.Path(tmp.name) / "tiny", ternlib.MODEL, hidden=64, intermediate=192, layers=2,
                                     heads=4, kv_heads=2, head_dim=32, max_len=2048)
    env = {"ASAN_OPTIONS": "detect_leaks=1:exitcode=99:quarantine_size_mb=16:" + os.environ.get("ASAN_OPTIONS", ""),
           "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:" + os.environ.get("UBSAN_OPTIONS", ""),
           "TSAN_OPTIONS": f"exitcode=99:suppressions={here / 'tsan.supp'}:" + os.environ.get("TSAN_OPTIONS", "")}
    s = ternlib.Server(a.model, ["--max-model-len", 512, "--num-gpu-blocks-override", 36, "--max-num-seqs", 16,
                                 "--max-num-batched-tokens", 256, "--shutdown-timeout", 0], env=env, wait=False)
    s.wait_ready(120)
    soak = Soak(s, a.seed)
    threads = [threading.Thread(target=soak.worker, args=(k,), daemon=True) for k in range(a.workers)]
    signal.signal(signal.SIGTERM, lambda *_: soak.fail("told to stop"))
    start, early_rss, told = time.monotonic(), None, 0
    for t in threads:
        t.start()
    peak = 0
    while time.monotonic() - start < a.seconds and not soak.stop.is_set():
        time.sleep(0.25)
        if s.proc.poll() is not None:
            soak.fail(f"the server ended with {s.proc.returncode}")
            break
        try:
            rss = ternlib.rss_kb(s.proc.pid)
        except (OSError, AssertionError):  # it is just ending
            continue
        peak = max(peak, rss)
        if time.monotonic() - start > told + 30:
            told += 30
            print(f"{told} s: {soak.counts}, {rss >> 10} MB", flush=True)
        if early_rss is None and time.monotonic() - start > a.seconds * 0.4:
            early_rss = peak
    soak.stop.set()
    for t in threads:
        t.join(300)
    problems = list(soak.errors)
    if any(t.is_alive() for t in threads):
        problems.append("a client still waits for its answer")
    if s.proc.poll() is None:
        try:
            m = s.wait_idle(30)
            if ternlib.metric(m, "vllm:num_preemptions_total") == 0:
                problems.append("no preemption happened: the KV cache was too large for this traffic")
            print("preemptions", int(ternlib.metric(m, "vllm:num_preemptions_total")), "prefix hits",
                  int(ternlib.metric(m, "vllm:prefix_cache_hits_total")), "finished",
                  {r: int(ternlib.metric(m, "vllm:request_success_total", finished_reason=r))
                   for r in ("stop", "length", "abort", "error")})
            if ternlib.metric(m, "vllm:request_success_total", finished_reason="error"):
                problems.append("requests ended with an error")
            s.alive()
        except AssertionError as e:
            problems.append(str(e))
        end_rss = ternlib.rss_kb(s.proc.pid)
        print(f"resident MB: at 40 % of the time {(early_rss or 0) >> 10}, at the end {end_rss >> 10}")
        if early_rss and end_rss > early_rss + a.rss_slack_mb * 1024:
            problems.append("resident memory grew")
        try:
            code = s.stop(timeout=30)
        except AssertionError as e:
            code = str(e)
        if code != 0:
            problems.append(f"exit code {code} after SIGTERM")
        out = s.last_output
    else:
        out = s.output()
    problems += [line for line in out.splitlines() if any(r in line for r in REPORTS)][:10]
    print(f"{time.monotonic() - start:.0f} s, {len(soak.known)} different requests,", soak.counts)
    if problems:
        print("FAILED:", *problems, sep="\n  ")
        print("--- end of the server's output ---", out[-6000:], sep="\n")
        return 1
    print("no report")
    return 0


if __name__ == "__main__":
    sys.exit(main())
