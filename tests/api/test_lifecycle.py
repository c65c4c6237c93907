# SPDX-License-Identifier: Apache-2.0
"""Start, readiness, stop: what scripts, probes and service managers look at."""
import json
import signal
import socket
import threading
import time

import pytest
import ternlib
from ternlib import Server


def test_health_is_503_while_loading_and_200_only_when_a_token_can_be_produced(tmp_path):
    """The port is bound first; then /health says 503 until the weights are packed."""
    import pathlib
    big = ternlib.make_model(tmp_path / "big", pathlib.Path(ternlib.MODEL), hidden=1024, intermediate=3072, layers=4,
                             heads=16, head_dim=128)
    with Server(big, ["--max-model-len", 1024, "--kv-cache-memory-bytes", "64M"], wait=False) as s:
        seen = []
        end = time.monotonic() + 60 * ternlib.SLOW
        while time.monotonic() < end and (not seen or seen[-1] != 200):
            try:
                status = s.get("/health").status
            except OSError:
                assert not seen, "the port was closed again after it had been bound"
                assert s.proc.poll() is None, s.output()
                time.sleep(0.002)
                continue
            if not seen or seen[-1] != status:
                seen.append(status)
                if status == 503:
                    r = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
                    assert r.status in (200, 503), r
                    assert s.get("/v1/models").status in (200, 503)
        assert seen == [503, 200]
        t = time.monotonic()
        s.completion("a", max_tokens=1)
        assert time.monotonic() - t < 5 * ternlib.SLOW


def test_the_log_has_the_lines_that_scripts_wait_for():
    with Server(args=["--max-model-len", 1024]) as s:
        end = time.monotonic() + 2 * ternlib.SLOW  # the last ones follow the first 200 of /health
        while "vLLM API server started on " not in s.output() and time.monotonic() < end:
            time.sleep(0.01)
        out = s.output()
        for line in ("non-default args: ", "Resolved architecture: Ernie4_5ForCausalLM", "Using max model len 1024",
                     "Chunked prefill is enabled with max_num_batched_tokens=", "Initializing a V1 LLM engine (v",
                     "Started engine with config: ", "Starting to load model ", "Loading weights took ",
                     "GPU KV cache size: ", "Maximum concurrency for 1,024 tokens per request: ",
                     "init engine (profile, create kv cache, warmup model) took ",
                     f"Starting vLLM server on http://127.0.0.1:{s.port}",
                     f"HTTP server started on http://127.0.0.1:{s.port}",
                     f"vLLM API server started on http://127.0.0.1:{s.port}", "Available routes are:",
                     "Route: /v1/completions, Methods: POST", "Route: /health, Methods: GET",
                     f"Started server process [{s.proc.pid}]", "Waiting for application startup.",
                     "Application startup complete."):
            assert line in out, f"missing: {line}\n{out}"
        assert out.index("Starting to load model") < out.index("Application startup complete.")
        s.completion("a", max_tokens=1)
        time.sleep(0.1)
        assert '"POST /v1/completions HTTP/1.1" 200' in s.output()


def test_a_taken_port_is_one_line_and_not_zero():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        r = ternlib.run("serve", ternlib.MODEL, "--host", "127.0.0.1", "--port", port)
        assert r.returncode == 1
        assert str(port) in r.stderr.decode().splitlines()[-1], r.stderr


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_with_0_soon_after_the_signal(sig):
    s = Server()
    t = time.monotonic()
    assert s.stop(sig) == 0
    assert time.monotonic() - t < 5 * ternlib.SLOW


def ask(s, n, result):
    """A long stream; what came of it goes to result: an Events or an exception."""
    try:
        result.append(s.stream("/v1/completions", {"prompt": "once", "max_tokens": n, "ignore_eos": True,
                                                   "temperature": 0}))
    except Exception as e:
        result.append(e)


def start(s, n):
    result = []
    t = threading.Thread(target=ask, args=(s, n, result), daemon=True)
    t.start()
    s.wait_running()
    return t, result


@pytest.fixture
def slow_server(slow_model):
    with Server(slow_model, ["--max-model-len", 2048, "--kv-cache-memory-bytes", "256M", "--shutdown-timeout", 300]) as s:
        yield s


def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(slow_server):
    s = slow_server
    t, result = start(s, 600)
    s.proc.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert s.proc.poll() is None, "the test needs a slower model"
    try:
        r = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert r.status == 503, r
    except OSError:
        pass  # not listening any more is as good
    t.join()
    assert result[0].done and result[0].finish() == "length" and result[0].status == 200
    assert s.proc.wait(20 * ternlib.SLOW) == 0


def test_a_second_signal_ends_it_at_once(slow_server):
    s = slow_server
    t, _ = start(s, 2000)
    s.proc.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    s.proc.send_signal(signal.SIGTERM)
    assert s.proc.wait(3 * ternlib.SLOW) is not None
    t.join()


def test_shutdown_timeout_0_ends_within_seconds_although_a_request_runs(slow_model):
    with Server(slow_model, ["--max-model-len", 7000, "--kv-cache-memory-bytes", "256M", "--shutdown-timeout", 0]) as s:
        t, result = start(s, 6000)
        assert s.stop(timeout=5) == 0
        t.join()
        assert isinstance(result[0], Exception) or not result[0].done or result[0].finish() == "abort"


def test_the_command_line_of_the_ernie_notes_works():
    """As written there, `vllm` replaced by `tern`; and a request's model may be the last path component."""
    args = ["--model", ternlib.MODEL, "--tensor-parallel-size", 1, "--pipeline-parallel-size", 1, "--trust-remote-code",
            "--enable-prefix-caching", "--block-size", 16, "--gpu-memory-utilization", "0.5", "--max-num-seqs", 256,
            "--max-num-batched-tokens", 8192, "--log-level", "warning"]
    with Server(args=args) as s:
        name = ternlib.MODEL.rstrip("/").rsplit("/", 1)[1]
        r = s.post("/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "你好"}],
                                            "max_tokens": 4})
        assert r.status == 200, r


def test_flags_with_underscores_and_equal_signs_are_the_same():
    with Server(args=["--max_model_len=512", "--served_model_name", "poet", "alias"]) as s:
        cards = s.get("/v1/models").json["data"]
        assert [c["id"] for c in cards] == ["poet", "alias"]
        assert all(c["max_model_len"] == 512 for c in cards)
        r = s.post("/v1/completions", {"model": "alias", "prompt": "a", "max_tokens": 1})
        assert r.status == 200 and r.json["model"] == "poet"


@pytest.mark.parametrize("args,code,word", [
    (["--no-such-flag"], 2, "--no-such-flag"),
    (["--max-model-len", "999999999"], 1, "max"),
    (["--port", "70000"], 2, "port"),
    (["--max-num-seqs", "0"], 2, "max-num-seqs"),
    (["--dtype", "int3"], 2, "dtype"),
    (["--kv-cache-memory-bytes", "1K"], 1, "max"),
])
def test_bad_flags_are_refused_by_name(args, code, word):
    r = ternlib.run("serve", ternlib.MODEL, "--host", "127.0.0.1", *(["--port", ternlib.free_port()]
                                                                      if "--port" not in args else []), *args)
    assert r.returncode in (1, 2), r
    assert word in r.stderr.decode().replace("_", "-").lower(), r.stderr


def test_too_little_kv_is_refused_with_the_numbers():
    r = ternlib.run("serve", ternlib.MODEL, "--host", "127.0.0.1", "--port", ternlib.free_port(), "--max-model-len", 2048,
                    "--kv-cache-memory-bytes", "1M")
    assert r.returncode == 1
    last = r.stderr.decode().splitlines()[-1]
    assert "2048" in last and "GiB" in last and "max_model_len" in last.replace("-", "_"), last


def test_a_template_given_on_the_command_line_is_used(tmp_path):
    f = tmp_path / "t.jinja"
    f.write_text("{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}")
    with Server(args=["--chat-template", f]) as s:
        ids = s.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json["tokens"]
        assert s.detokenize(ids) == "[user|Hi]"


def test_version_is_printed_and_served(server):
    r = ternlib.run("--version")
    assert r.returncode == 0
    v = server.get("/version").json["version"]
    assert v and v in r.stdout.decode()
    assert json.loads(server.get("/version").body) == {"version": v}
