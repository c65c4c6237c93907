# SPDX-License-Identifier: Apache-2.0
"""`tern health`: what a container's health check runs."""
import contextlib
import http.server
import socket
import subprocess
import threading
import time

import pytest
import ternlib


@contextlib.contextmanager
def answering(status, paths):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=s.serve_forever, daemon=True).start()
    try:
        yield s.server_port
    finally:
        s.shutdown()
        s.server_close()


def test_it_ends_with_0_for_a_server_that_can_answer_and_with_1_after_its_end():
    with ternlib.Server(args=["--max-model-len", 512]) as s:
        r = ternlib.run("health", "--port", s.port)
        assert (r.returncode, r.stdout, r.stderr) == (0, b"healthy\n", b"")
        assert ternlib.run("health", "--url", f"http://127.0.0.1:{s.port}/v1/").returncode == 0
        assert ternlib.run("health", env={"TERN_HEALTH_URL": f"http://localhost:{s.port}"}).returncode == 0
    r = ternlib.run("health", "--port", s.port)
    assert r.returncode == 1 and r.stdout == b"" and b"Connection refused" in r.stderr


def test_a_unix_socket_is_asked(tmp_path):
    path = tmp_path / "tern.sock"
    proc = subprocess.Popen([ternlib.TERN, "serve", ternlib.MODEL, "--uds", path, "--max-model-len", "512"],
                            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60 * ternlib.SLOW
        while ternlib.run("health", "--uds", path, "--quiet").returncode and time.monotonic() < end:
            time.sleep(0.05)
        assert ternlib.run("health", "--uds", path).stdout == b"healthy\n"
    finally:
        proc.terminate()
        proc.wait(20 * ternlib.SLOW)
    assert ternlib.run("health", "--uds", path).returncode == 1


@pytest.mark.parametrize("status", [503, 500, 404])
def test_a_status_other_than_200_is_ill_and_named(status):
    with answering(status, []) as port:
        r = ternlib.run("health", "--port", port)
    assert r.returncode == 1 and str(status).encode() in r.stderr


@pytest.mark.parametrize("tail, path", [("", "/health"), ("/", "/health"), ("/v1", "/health"), ("/a/b", "/a/b/health"),
                                        ("/a/health", "/a/health")])
def test_the_path_of_an_address_is_the_prefix_of_health(tail, path):
    paths = []
    with answering(200, paths) as port:
        assert ternlib.run("health", "--url", f"http://127.0.0.1:{port}{tail}").returncode == 0
    assert paths == [path]


def test_a_server_that_says_nothing_is_given_up_in_time():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        t = time.monotonic()
        r = ternlib.run("health", "--port", s.getsockname()[1], "--timeout", 0.3)
        assert r.returncode == 1 and b"no answer in time" in r.stderr
        assert time.monotonic() - t >= 0.3
        r = ternlib.run("health", "--port", s.getsockname()[1], "--timeout", 0.1, "--quiet")
        assert (r.returncode, r.stdout, r.stderr) == (1, b"", b"")


def test_what_is_no_http_is_ill():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()

        def answer():
            c, _ = s.accept()
            with c:
                c.recv(4096)
                c.sendall(b"+OK ready\r\n")
        threading.Thread(target=answer, daemon=True).start()
        r = ternlib.run("health", "--port", s.getsockname()[1])
    assert r.returncode == 1 and b"no HTTP" in r.stderr


def test_https_is_asked_with_the_certificates_given(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
                    "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", key, "-out", cert], check=True, capture_output=True)
    port = ternlib.free_port()
    proc = subprocess.Popen([ternlib.TERN, "serve", ternlib.MODEL, "--host", "127.0.0.1", "--port", str(port),
                             "--ssl-certfile", cert, "--ssl-keyfile", key, "--max-model-len", "512"],
                            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"https://localhost:{port}"
        end = time.monotonic() + 60 * ternlib.SLOW
        while ternlib.run("health", "--url", url, "--ca-file", cert, "--quiet").returncode and time.monotonic() < end:
            time.sleep(0.05)
        assert ternlib.run("health", "--url", url, "--ca-file", cert).stdout == b"healthy\n"
        assert ternlib.run("health", "--url", url).returncode == 1, "nobody vouches for the certificate"
    finally:
        proc.terminate()
        proc.wait(20 * ternlib.SLOW)


@pytest.mark.parametrize("words", [["--url", "ftp://x"], ["--url", "http://"], ["--url", "http://u@h"], ["--port", "0"],
                                   ["word"], ["--timeout", "0"]])
def test_a_wrong_address_is_refused_by_name(words):
    r = ternlib.run("health", *words)
    assert r.returncode in (1, 2) and r.stderr.count(b"error: ") == 1
