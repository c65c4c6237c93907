# SPDX-License-Identifier: Apache-2.0
"""Shared by the black-box tests: run the program, talk HTTP to it, read and write checkpoints.

Everything here sees tern only from outside: its command line, its sockets, its files. Standard library only, so that the
tests run wherever Debian's python3-pytest does.
"""
import ctypes
import fcntl
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent
TERN = os.environ.get("TERN_BIN", str(SOURCE / "build" / "tern"))
MODEL = os.environ.get("TERN_MODEL", str(SOURCE / "models" / "tern-poet"))
SHARED = pathlib.Path(os.environ.get("TERN_SHARED", str(SOURCE.parent / "shared")))
SLOW = float(os.environ.get("TERN_TEST_SLOW", "1"))  # time limits are multiplied by it (sanitizers, emulators)


# ---- the program -------------------------------------------------------------------------------------------------

def run(*args, stdin=None, timeout=60, env=None, wrapper=()):
    """Runs tern; returns CompletedProcess with bytes."""
    full = dict(os.environ)
    full.update(env or {})
    return subprocess.run([*wrapper, TERN, *map(str, args)], input=stdin, capture_output=True,
                          timeout=timeout * SLOW, env=full, stdin=None if stdin is not None else subprocess.DEVNULL)


def strict_json(data):
    """Parses what a server sent: valid UTF-8, no NaN or Infinity."""
    if isinstance(data, bytes):
        data = data.decode("utf-8", "strict")

    def refuse(name):
        raise ValueError(f"{name} is not JSON")
    return json.loads(data, parse_constant=refuse)


def generate(model, ids, n, *, dtype="float32", logprobs=None, extra=(), wrapper=(), timeout=60):
    """Greedy generation of exactly n tokens; returns the first output object of --json and the whole document."""
    args = ["generate", model, "--prompt-ids", ",".join(map(str, ids)), "--max-tokens", n, "--temperature", 0,
            "--ignore-eos", "--dtype", dtype, "--json", *extra]
    if logprobs is not None:
        args += ["--logprobs", logprobs]
    r = run(*args, wrapper=wrapper, timeout=timeout)
    assert r.returncode == 0, r.stderr.decode("utf-8", "replace")
    doc = strict_json(r.stdout)
    return doc["outputs"][0], doc


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Stopped:
    """Stops one thread of a child process, as a debugger does."""
    SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, pid, name):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.libc.ptrace.restype = ctypes.c_long
        self.tid = next(int(t.name) for t in pathlib.Path(f"/proc/{pid}/task").iterdir()
                        if (t / "comm").read_text().strip() == name)

    def __enter__(self):
        if self.libc.ptrace(self.SEIZE, self.tid, None, None) != 0:
            raise unittest.SkipTest(f"ptrace is not allowed here ({os.strerror(ctypes.get_errno())})")
        assert self.libc.ptrace(self.INTERRUPT, self.tid, None, None) == 0
        status = ctypes.c_int()
        assert self.libc.waitpid(self.tid, ctypes.byref(status), self.WALL) == self.tid
        return self

    def __exit__(self, *exc):
        self.libc.ptrace(self.DETACH, self.tid, None, None)


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return strict_json(self.body)

    def __repr__(self):
        return f"<{self.status} {self.body[:400]!r}>"


class Events:
    """A finished event stream: `chunks` are the JSON objects, `done` whether [DONE] came last."""

    def __init__(self, status, headers, raw):
        self.status, self.headers, self.raw = status, headers, raw
        self.chunks, self.done = [], False
        if status != 200:
            return
        assert headers["content-type"].startswith("text/event-stream"), headers
        text = raw.decode("utf-8", "strict")
        assert text == "" or text.endswith("\n\n"), "the stream ends inside an event"
        for event in text.split("\n\n")[:-1]:
            if event.startswith(":"):
                continue
            assert event.startswith("data: "), event
            assert not self.done, "an event after [DONE]"
            payload = event[len("data: "):]
            if payload == "[DONE]":
                self.done = True
            else:
                self.chunks.append(strict_json(payload))

    @property
    def json(self):
        return strict_json(self.raw)

    def choices(self, index=0):
        return [c for chunk in self.chunks for c in chunk.get("choices", ()) if c["index"] == index]

    def text(self, index=0):
        return "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in self.choices(index))

    def finish(self, index=0):
        reasons = [c["finish_reason"] for c in self.choices(index) if c.get("finish_reason") is not None]
        assert len(reasons) == 1, reasons
        return reasons[0]

    def usage(self):
        return [c for c in self.chunks if c.get("usage")][-1]["usage"]


class Server:
    """`tern serve` on a free port of 127.0.0.1. Use as a context manager."""

    def __init__(self, model=MODEL, args=(), wait=True, env=None, host="127.0.0.1", port=None, wrapper=()):
        self.port = port or free_port()
        self.model = str(model)  # what requests call it
        words = [str(x) for x in args]
        if "--served-model-name" in words:
            self.model = words[words.index("--served-model-name") + 1]
        self.log = tempfile.NamedTemporaryFile(prefix="tern-serve-", suffix=".log", delete=False)
        full = dict(os.environ)
        full.update(env or {})
        self.started = time.monotonic()
        self.proc = subprocess.Popen(
            [*wrapper, TERN, "serve", str(model), "--host", host, "--port", str(self.port), *map(str, args)],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, env=full)
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.stop()
                raise

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()

    def output(self):
        return pathlib.Path(self.log.name).read_text("utf-8", "replace")

    def wait_ready(self, timeout=60):
        end = time.monotonic() + timeout * SLOW
        while time.monotonic() < end:
            if self.proc.poll() is not None:
                raise AssertionError(f"tern serve ended with {self.proc.returncode}:\n{self.output()}")
            try:
                if self.get("/health").status == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.01)
        raise AssertionError(f"not ready in {timeout} s:\n{self.output()}")

    def stop(self, sig=signal.SIGTERM, timeout=20):
        if self.proc.poll() is None:
            self.proc.send_signal(sig)
            try:
                self.proc.wait(timeout * SLOW)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
                self.cleanup()
                raise AssertionError(f"did not end within {timeout} s of the signal:\n{self.output()[-4000:]}")
        self.cleanup()
        return self.proc.returncode

    def cleanup(self):
        self.log.close()
        if os.path.exists(self.log.name) and not os.environ.get("TERN_TEST_KEEP_LOGS"):
            self.last_output = self.output()
            os.unlink(self.log.name)

    # -- HTTP --
    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)

    def request(self, method, path, body=None, headers=None, timeout=60):
        c = self.connect(timeout)
        try:
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            return Reply(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
        finally:
            c.close()

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, obj, headers=None, timeout=60):
        data = obj if isinstance(obj, bytes) else json.dumps(obj).encode()
        return self.request("POST", path, data, {"Content-Type": "application/json", **(headers or {})}, timeout)

    def stream(self, path, obj, timeout=60):
        r = self.post(path, {**obj, "stream": True}, timeout=timeout)
        return Events(r.status, r.headers, r.body)

    def completion(self, prompt, **kw):
        r = self.post("/v1/completions", {"model": self.model, "prompt": prompt, **kw})
        assert r.status == 200, r
        return r.json

    def chat(self, messages, **kw):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        r = self.post("/v1/chat/completions", {"model": self.model, "messages": messages, **kw})
        assert r.status == 200, r
        return r.json

    def tokenize(self, text):
        r = self.post("/tokenize", {"prompt": text})
        assert r.status == 200, r
        return r.json["tokens"]

    def detokenize(self, ids):
        r = self.post("/detokenize", {"tokens": ids})
        assert r.status == 200, r
        return r.json["prompt"]

    def metrics(self):
        r = self.get("/metrics")
        assert r.status == 200
        return parse_metrics(r.body.decode("utf-8"))

    def metric(self, name, **labels):
        return metric(self.metrics(), name, **labels)

    def alive(self):
        """The process is the same and answers an ordinary request in its usual time."""
        assert self.proc.poll() is None, self.output()[-4000:]
        t = time.monotonic()
        d = self.chat("hi", max_tokens=4, temperature=0)
        assert d["choices"][0]["finish_reason"] in ("stop", "length")
        assert time.monotonic() - t < 10 * SLOW

    def wait_idle(self, timeout=2):
        """Waits until nothing runs or waits; returns the metrics then."""
        end = time.monotonic() + timeout * SLOW
        while True:
            m = self.metrics()
            busy = metric(m, "vllm:num_requests_running") + metric(m, "vllm:num_requests_waiting")
            if busy == 0 and metric(m, "vllm:kv_cache_usage_perc") == 0:
                return m
            if time.monotonic() > end:
                raise AssertionError(f"still busy after {timeout} s: running+waiting {busy}, "
                                     f"kv {metric(m, 'vllm:kv_cache_usage_perc')}")
            time.sleep(0.01)

    def wait_running(self, n=1, timeout=10):
        end = time.monotonic() + timeout * SLOW
        while self.metric("vllm:num_requests_running") < n:
            assert time.monotonic() < end, "no request is running"
            time.sleep(0.002)

    def raw(self, timeout=30):
        s = socket.create_connection(("127.0.0.1", self.port), timeout * SLOW)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s


# ---- real clients -----------------------------------------------------------------------------------------------

NODE = SOURCE / "tests" / "api" / "node"


def install_node_clients():
    """What the lock file names, if it is not there yet. Returns why it can't be, or None."""
    if not shutil.which("node"):
        return "node is not here"
    lock, done = NODE / "package-lock.json", NODE / "node_modules" / ".installed"
    with open(SOURCE / "tests" / "api" / "README.md") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if done.exists() and done.read_bytes() == lock.read_bytes():
            return None
        if not shutil.which("npm"):
            return "npm is not here"
        r = subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=NODE, capture_output=True, timeout=300)
        if r.returncode != 0:
            return "npm ci did not work here: " + r.stderr.decode()[-400:]
        done.write_bytes(lock.read_bytes())
    return None


def run_node(script, *args, timeout=120):
    """A script of tests/api/node: it exits with 0 and says that all checks passed."""
    r = subprocess.run(["node", NODE / script, *args], capture_output=True, timeout=timeout * SLOW,
                       env={**os.environ, "NO_PROXY": "127.0.0.1"})
    assert r.returncode == 0, r.stdout.decode() + r.stderr.decode()
    assert b"all checks passed" in r.stdout


def http_bytes(path, obj, close=False, extra=""):
    body = obj if isinstance(obj, bytes) else json.dumps(obj).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"{'Connection: close' + chr(13) + chr(10) if close else ''}{extra}\r\n").encode() + body


def read_response(sock):
    """Reads one response from a raw socket; (status, body) or None when the peer just closed."""
    r = http.client.HTTPResponse(sock)
    try:
        r.begin()
    except (http.client.BadStatusLine, ConnectionError):
        return None
    return r.status, r.read()


def parse_metrics(text):
    """Prometheus text -> {(name, frozenset(label pairs)): value}."""
    out = {}
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        head, value = line.rsplit(" ", 1)
        name, _, rest = head.partition("{")
        labels = set()
        rest = rest.rstrip("}")
        while rest:
            key, _, rest = rest.partition('="')
            val, i = "", 0
            while rest[i] != '"':
                i += rest[i] == "\\"
                val += rest[i]
                i += 1
            labels.add((key.lstrip(","), val))
            rest = rest[i + 1:]
        out[(name, frozenset(labels))] = float(value)
    return out


def metric(m, name, **labels):
    """The sum of all series of `name` that carry these labels; fails when there is none."""
    want = set(labels.items())
    found = [v for (n, l), v in m.items() if n == name and want <= l]
    assert found, f"no series {name} {labels}"
    return sum(found)


# ---- checkpoints ---------------------------------------------------------------------------------------------------

def read_safetensors(path):
    """-> (metadata dict or None, {name: (dtype, shape, bytes)}) in file order."""
    raw = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    meta = header.pop("__metadata__", None)
    base = 8 + n
    return meta, {k: (v["dtype"], v["shape"], raw[base + v["data_offsets"][0]:base + v["data_offsets"][1]])
                  for k, v in header.items()}


def header_of(tensors, meta=None):
    head, at = {}, 0
    if meta:
        head["__metadata__"] = meta
    for name, (dtype, shape, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    return head


def write_safetensors(path, tensors, meta=None, header=None):
    """header: replaces the correct one (an object, or raw bytes)."""
    head = header if header is not None else header_of(tensors, meta)
    if not isinstance(head, bytes):
        head = json.dumps(head, separators=(",", ":")).encode()
        head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for _, _, data in tensors.values():
            f.write(data)


def random_bf16(n, rng):
    """n values between 2^-7 and 2^-5 of both signs."""
    lo = rng.randbytes(n)
    hi = rng.randbytes(n).translate(bytes((0x3c, 0x3c, 0x3d, 0xbc, 0xbc, 0xbd, 0x3c, 0xbc)[i & 7] for i in range(256)))
    out = bytearray(2 * n)
    out[0::2], out[1::2] = lo, hi
    return bytes(out)


def make_model(path, tokenizer_dir, *, hidden=512, intermediate=1536, layers=8, heads=8, kv_heads=2, head_dim=64,
               vocab=8192, max_len=8192, seed=1):
    """A random dense checkpoint of any size with the tokenizer of tokenizer_dir."""
    path = pathlib.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    q, kv = heads * head_dim, kv_heads * head_dim
    shapes = {"model.embed_tokens.weight": [vocab, hidden]}
    for i in range(layers):
        p = f"model.layers.{i}."
        shapes |= {p + "input_layernorm.weight": [hidden], p + "self_attn.q_proj.weight": [q, hidden],
                   p + "self_attn.k_proj.weight": [kv, hidden], p + "self_attn.v_proj.weight": [kv, hidden],
                   p + "self_attn.o_proj.weight": [hidden, q], p + "post_attention_layernorm.weight": [hidden],
                   p + "mlp.gate_proj.weight": [intermediate, hidden], p + "mlp.up_proj.weight": [intermediate, hidden],
                   p + "mlp.down_proj.weight": [hidden, intermediate]}
    shapes["model.norm.weight"] = [hidden]
    tensors = {k: ("BF16", s, b"\x80\x3f" * s[0] if len(s) == 1 else random_bf16(s[0] * s[1], rng))
               for k, s in shapes.items()}
    write_safetensors(path / "model.safetensors", tensors, {"format": "pt"})
    (path / "config.json").write_text(json.dumps({
        "architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "vocab_size": vocab, "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "hidden_act": "silu", "max_position_embeddings": max_len,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "use_bias": False, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}))
    for f in pathlib.Path(tokenizer_dir).iterdir():
        if f.name.startswith(("tokenizer", "special_tokens", "added_tokens", "chat_template")):
            (path / f.name).write_bytes(f.read_bytes())
    return path


def rss_kb(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


if __name__ == "__main__":
    make_model(sys.argv[1], sys.argv[2])
