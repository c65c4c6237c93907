# SPDX-License-Identifier: Apache-2.0
"""What an outsider tries: work that stops everybody, missing standard streams, limits of the system, odd bodies in bulk."""
import json
import os
import resource
import subprocess
import threading
import time

import pytest
import ternlib
from ternlib import MODEL, TERN, Server

HI = [{"role": "user", "content": "hi"}]
ENDLESS = ("{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = ns.a + [ns.a] %}{% endfor %}{{ ns.a }}")


class Probe:
    """Asks /health all the time; knows how often it was answered."""

    def __init__(self, server):
        self.server, self.n, self.end = server, 0, False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.end:
            assert self.server.get("/health").status == 200
            self.n += 1
            time.sleep(0.01)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.end = True
        self.thread.join()


@pytest.fixture(scope="module")
def trusting():
    with Server(args=["--trust-request-chat-template"]) as s:
        yield s


@pytest.mark.parametrize("path,body", [
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 1}), ("/tokenize", {"messages": HI}),
    ("/v1/chat/completions/batch", {"messages": [HI], "max_tokens": 1}),
    ("/v1/chat/completions/render", {"messages": HI})])
@pytest.mark.parametrize("name", ['"chat_template"', '"chat\\u005ftemplate"'])
def test_a_template_that_runs_long_stops_nobody_else(trusting, path, body, name):
    text = json.dumps({**body, "X": ENDLESS}).replace('"X"', name)
    with Probe(trusting) as p:
        t = time.monotonic()
        while p.n < 3:
            time.sleep(0.001)
        rate = p.n / (time.monotonic() - t)
        before, t = p.n, time.monotonic()
        r = trusting.post(path, text.encode())
        took, answered = time.monotonic() - t, p.n - before
    assert r.status == 400 and "template" in r.json["error"]["message"], r
    assert answered >= min(3, rate * took / 10), f"{answered} answers in {took:.2f} s, {rate:.0f}/s before"


def cpu_seconds(s):
    fields = open(f"/proc/{s.proc.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


DOUBLED = ("{% set x = namespace(a=[1]) %}{% set y = namespace(a=[1]) %}{% for i in range(60) %}{% set x.a = [x.a, x.a] %}"
           "{% set y.a = [y.a, y.a] %}{% endfor %}")


@pytest.mark.parametrize("template", [
    DOUBLED + "{{ x.a == y.a }}", DOUBLED + "{{ x.a < y.a }}",
    "{% set x = range(100000) | list %}{% set y = range(100000) | list %}"
    "{% for i in range(100000) %}{% if x != y %}{% endif %}{% endfor %}"])
def test_comparing_values_is_work_that_has_an_end(trusting, template):
    before = cpu_seconds(trusting)
    r = trusting.post("/tokenize", {"messages": HI, "chat_template": template})
    assert r.status == 400 and "does too much work" in r.json["error"]["message"], r
    assert cpu_seconds(trusting) - before < 5 * ternlib.SLOW


# ---- standard streams ----

CLOSED = 'exec "$0" "$@" 0<&- 1>&- 2>&-'


def test_without_standard_streams_log_lines_go_nowhere():
    """Their numbers must not be those of pipes and connections: a pipe that nobody reads fills, and all stands still."""
    with Server(args=["--enable-log-requests", "--log-level", "debug"], wrapper=["bash", "-c", CLOSED]) as s:
        for fd in range(3):
            assert os.readlink(f"/proc/{s.proc.pid}/fd/{fd}") == "/dev/null"
        s.alive()


def test_a_batch_without_standard_streams_has_rows_only(tmp_path):
    src, dst = tmp_path / "in", tmp_path / "out"
    src.write_text("".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                                       "body": {"prompt": "a", "max_tokens": 1}}) + "\n" for i in range(3)))
    r = subprocess.run(["bash", "-c", CLOSED, TERN, "run-batch", "-i", src, "-o", dst, "--model", MODEL],
                       timeout=60 * ternlib.SLOW)
    assert r.returncode == 0
    assert [json.loads(line)["custom_id"] for line in dst.read_text().splitlines()] == ["0", "1", "2"]


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["info", MODEL], ["generate", MODEL, "--prompt", "a"]])
def test_output_that_cannot_be_written_is_a_failure(args):
    with open("/dev/full", "w") as full:
        r = subprocess.run([TERN, *args], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
                           timeout=60 * ternlib.SLOW)
    assert r.returncode == 1 and b"cannot write to standard output" in r.stderr


# ---- limits of the system ----

def test_a_batch_output_at_its_size_limit_is_said_and_goes_on_later(tmp_path):
    src, dst = tmp_path / "in", tmp_path / "out"
    src.write_text("".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                                       "body": {"prompt": "a", "max_tokens": 1}}) + "\n" for i in range(20)))
    args = [TERN, "run-batch", "-i", src, "-o", dst, "--model", MODEL]
    r = subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, timeout=60 * ternlib.SLOW,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)))
    assert r.returncode == 1 and b"File too large" in r.stderr, r
    assert dst.read_bytes().endswith(b"\n")
    r = subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, timeout=60 * ternlib.SLOW)
    assert r.returncode == 0, r
    assert [json.loads(line)["custom_id"] for line in dst.read_text().splitlines()] == [str(i) for i in range(20)]


def test_more_connections_than_files_wait_and_the_server_lives():
    with Server(wrapper=["bash", "-c", 'ulimit -n 64; exec "$0" "$@"']) as s:
        socks = [s.raw() for _ in range(150)]
        for c in socks:
            c.sendall(b"G")
        before = cpu_seconds(s)
        time.sleep(0.5)
        assert cpu_seconds(s) - before <= 0.2, "it spins on accept"
        for c in socks:
            c.close()
        s.alive()


def test_the_end_with_requests_that_are_being_read():
    """Their memory is theirs until the queue they are in is gone; a sanitizer sees it when it is not."""
    for _ in range(3):
        with Server(args=["--trust-request-chat-template"]) as s:
            socks = [s.raw() for _ in range(8)]
            for c in socks:
                c.sendall(ternlib.http_bytes("/v1/chat/completions", {"messages": HI, "chat_template": ENDLESS}))
            time.sleep(0.05)
            assert s.stop() == 0, s.last_output
