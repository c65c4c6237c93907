# SPDX-License-Identifier: Apache-2.0
"""Guards: TLS, unix sockets, keys, CORS, limits, slow clients, signals, logs, liveness. All from outside, with the real program."""
import ctypes
import http.client
import json
import os
import pathlib
import re
import select
import signal
import socket
import ssl
import stat
import subprocess
import threading
import time

import pytest
import ternlib
from ternlib import SLOW, Server, http_bytes, metric

BASE = ["--max-model-len", 512, "--kv-cache-memory-bytes", "16M"]


# ---- TLS ---------------------------------------------------------------------------------------------------------

def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60 * SLOW)


def make_cert(folder, name, *, ca=None, password=None):
    """A key and a certificate for 127.0.0.1, self-signed or signed by `ca` (a name in the folder)."""
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    extra = ["-CA", folder / f"{ca}.pem", "-CAkey", folder / f"{ca}.key"] if ca else []
    hide = ["-passout", f"pass:{password}"] if password else ["-nodes"]
    openssl("req", "-x509", "-newkey", "rsa:2048", "-keyout", key, "-out", cert, "-days", 30, "-subj", f"/CN={name}",
            "-addext", "subjectAltName=IP:127.0.0.1", *hide, *extra)
    return cert, key


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    make_cert(folder, "one")
    make_cert(folder, "two")
    make_cert(folder, "ca")
    make_cert(folder, "client", ca="ca")
    make_cert(folder, "stranger")
    make_cert(folder, "locked", password="hush-hush")
    (folder / "both.pem").write_bytes((folder / "one.pem").read_bytes() + (folder / "one.key").read_bytes())
    (folder / "garbage.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    return folder


class Https(Server):
    """tern serve with TLS: the helpers of Server talk https, trusting `ca`."""

    def __init__(self, ca, args, client=None, **kw):
        self.context = ssl.create_default_context(cafile=str(ca))
        if client:
            self.context.load_cert_chain(*map(str, client))
        super().__init__(args=[*BASE, *args], **kw)

    def connect(self, timeout=60):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout * SLOW, context=self.context)

    def tls(self, context=None):
        return (context or self.context).wrap_socket(self.raw(), server_hostname="127.0.0.1")


@pytest.fixture(scope="module")
def https(certs):
    with Https(certs / "one.pem", ["--ssl-certfile", certs / "one.pem", "--ssl-keyfile", certs / "one.key",
                                   "--http-write-timeout", 1]) as s:
        yield s


def test_everything_works_over_tls(https):
    assert https.get("/v1/models").status == 200
    d = https.completion("once upon a time", max_tokens=8, temperature=0, ignore_eos=True)
    s = https.stream("/v1/completions", {"prompt": "once upon a time", "max_tokens": 8, "temperature": 0,
                                         "ignore_eos": True})
    assert s.done and s.text() == d["choices"][0]["text"]
    assert f"https://127.0.0.1:{https.port}" in https.output()
    https.alive()


def test_a_megabyte_goes_both_ways_over_tls(https):
    text = "the quick brown fox " * 50000
    r = https.post("/tokenize", {"prompt": text})
    assert r.status == 200 and len(r.body) > 1 << 20
    assert https.post("/detokenize", {"tokens": r.json["tokens"]}).json["prompt"] == text


def test_many_requests_share_one_tls_connection_also_pipelined(https):
    with https.tls() as t:
        t.sendall(b"GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n" * 20)
        t.settimeout(20 * SLOW)
        data = b""
        while data.count(b"HTTP/1.1 200 OK") < 20 or not data.endswith(b"}]}"):
            block = t.recv(1 << 16)
            assert block
            data += block


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_only_modern_tls_and_http_1_1_are_offered(https):
    c = ssl.create_default_context()
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    c.set_alpn_protocols(["h2", "http/1.1"])
    with https.tls(c) as t:
        assert t.version() in ("TLSv1.2", "TLSv1.3") and t.selected_alpn_protocol() == "http/1.1"
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        https.tls(old).close()


def test_plain_http_noise_and_half_a_handshake_at_a_tls_port_harm_nobody(https):
    socks = [https.raw() for _ in range(20)]
    for k, s in enumerate(socks):
        s.sendall([b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n", b"\x16\x03\x01\x02\x00", os.urandom(300)][k % 3])
    https.alive()
    for s in socks:
        s.close()
    https.alive()


@pytest.mark.parametrize("how", ["goodbye", "silence"])
def test_a_tls_client_that_leaves_is_an_abort(https, how):
    before = https.wait_idle(10)
    t = https.tls()
    t.sendall(http_bytes("/v1/completions", {"prompt": "a b c", "max_tokens": 400, "ignore_eos": True, "stream": True,
                                             "logprobs": 5}))
    assert select.select([t], [], [], 30 * SLOW)[0]
    t.recv(100)
    if how == "goodbye":
        t.settimeout(0.2)
        try:
            t.unwrap()
        except (OSError, ssl.SSLError):
            pass
    t.close()
    after = https.wait_idle(10)
    gained = {r: metric(after, "vllm:request_success_total", finished_reason=r) -
              metric(before, "vllm:request_success_total", finished_reason=r) for r in ("abort", "length")}
    assert gained["abort"] + gained["length"] == 1  # a small model may be done before we are gone


def test_client_certificates_are_asked_for_and_checked(certs):
    args = ["--ssl-certfile", certs / "one.pem", "--ssl-keyfile", certs / "one.key", "--ssl-ca-certs", certs / "ca.pem",
            "--ssl-cert-reqs", 2]
    with Https(certs / "one.pem", args, client=(certs / "client.pem", certs / "client.key")) as s:
        s.alive()
        for chain in (None, ("stranger.pem", "stranger.key")):
            c = ssl.create_default_context(cafile=str(certs / "one.pem"))
            if chain:
                c.load_cert_chain(certs / chain[0], certs / chain[1])
            with pytest.raises((ssl.SSLError, ConnectionError)):
                with s.tls(c) as t:
                    t.sendall(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
                    assert t.recv(100) == b"", "a client without a good certificate was answered"
                    raise ConnectionError
        s.alive()


def test_key_in_the_same_file_and_an_encrypted_key_are_fine(certs):
    with Https(certs / "one.pem", ["--ssl-certfile", certs / "both.pem"]) as s:
        s.alive()
    args = ["--ssl-certfile", certs / "locked.pem", "--ssl-keyfile", certs / "locked.key"]
    with Https(certs / "locked.pem", [*args, "--ssl-keyfile-password", "hush-hush"]) as s:
        s.alive()
        assert "hush" not in s.output()


def peer_name(s):
    c = ssl.create_default_context()
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    with s.tls(c) as t:
        return t.getpeercert(True)


@pytest.mark.parametrize("how", ["refresh", "SIGHUP"])
def test_a_renewed_certificate_is_served_without_a_restart(certs, tmp_path, how):
    cert, key = tmp_path / "c.pem", tmp_path / "c.key"

    def install(name):
        for suffix, target in ((".key", key), (".pem", cert)):
            new = tmp_path / "new"
            new.write_bytes((certs / (name + suffix)).read_bytes())
            new.rename(target)

    install("one")
    with Https(certs / "one.pem", ["--ssl-certfile", cert, "--ssl-keyfile", key,
                                   *(["--enable-ssl-refresh"] if how == "refresh" else [])]) as s:
        first = peer_name(s)
        old = s.tls()
        install("two")
        end = time.monotonic() + 20 * SLOW
        while peer_name(s) == first:
            assert time.monotonic() < end, s.output()
            if how == "SIGHUP":
                s.proc.send_signal(signal.SIGHUP)
            time.sleep(0.1)
        old.sendall(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")  # what was open goes on
        assert old.recv(100).startswith(b"HTTP/1.1 200")
        cert.write_text("nonsense")
        if how == "SIGHUP":
            s.proc.send_signal(signal.SIGHUP)
        while "the old certificate stays in use" not in s.output():
            assert time.monotonic() < end, s.output()
            time.sleep(0.05)
        assert peer_name(s) != first


@pytest.mark.parametrize("args,word", [
    (["--ssl-certfile", "nowhere.pem"], "nowhere.pem"),
    (["--ssl-certfile", "garbage.pem", "--ssl-keyfile", "one.key"], "ssl-certfile"),
    (["--ssl-certfile", "one.pem"], "no private key"),
    (["--ssl-certfile", "one.pem", "--ssl-keyfile", "two.key"], "does not belong"),
    (["--ssl-certfile", "one.pem", "--ssl-keyfile", "gone.key"], "gone.key"),
    (["--ssl-certfile", "locked.pem", "--ssl-keyfile", "locked.key"], "ssl-keyfile-password is needed"),
    (["--ssl-certfile", "locked.pem", "--ssl-keyfile", "locked.key", "--ssl-keyfile-password", "guessed-wrong"],
     "does not decrypt"),
    (["--ssl-certfile", "one.pem", "--ssl-keyfile", "one.key", "--ssl-cert-reqs", "2"], "ssl-ca-certs is needed"),
    (["--ssl-certfile", "one.pem", "--ssl-keyfile", "one.key", "--ssl-ca-certs", "garbage.pem"], "ssl-ca-certs"),
    (["--ssl-certfile", "one.pem", "--ssl-keyfile", "one.key", "--ssl-ciphers", "NO-SUCH"], "ssl-ciphers"),
    (["--ssl-keyfile", "one.key"], "--ssl-certfile"),
    (["--enable-ssl-refresh"], "--ssl-certfile"),
    (["--ssl-certfile", "one.pem", "--ssl-keyfile", "one.key", "--ssl-cert-reqs", "3"], "ssl-cert-reqs"),
])
def test_bad_tls_files_are_refused_by_name_before_the_model_loads(certs, args, word):
    args = [str(certs / a) if a.endswith((".pem", ".key")) else a for a in args]
    r = ternlib.run("serve", ternlib.MODEL, "--host", "127.0.0.1", "--port", ternlib.free_port(), *args)
    out = r.stderr.decode()
    assert r.returncode in (1, 2) and word in out.splitlines()[-1], out
    assert "Starting to load model" not in out and "guessed-wrong" not in out


# ---- unix sockets -------------------------------------------------------------------------------------------------

class Unix(Server):
    def __init__(self, path, args=(), **kw):
        self.path = str(path)
        super().__init__(args=[*BASE, "--uds", self.path, *args], **kw)

    def connect(self, timeout=60):
        c = http.client.HTTPConnection("localhost", timeout=timeout * SLOW)
        c.sock = socket.socket(socket.AF_UNIX)
        c.sock.settimeout(timeout * SLOW)
        try:
            c.sock.connect(self.path)
        except OSError:
            c.sock.close()
            raise
        return c


def test_a_unix_socket_serves_has_its_permissions_and_goes_with_the_server(tmp_path):
    path = tmp_path / "tern.sock"
    with Unix(path, ["--uds-mode", 640]) as s:
        s.alive()
        assert s.stream("/v1/completions", {"prompt": "a", "max_tokens": 5}).done
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert f"unix:{path}" in s.output()
        with pytest.raises(OSError):
            s.raw()  # no port besides
        r = ternlib.run("serve", ternlib.MODEL, "--uds", path)
        assert r.returncode == 1 and "another process is listening" in r.stderr.decode().splitlines()[-1]
        s.alive()
        assert s.stop() == 0
    assert not path.exists()


def test_a_stale_unix_socket_is_replaced_and_anything_else_stays(tmp_path):
    path = tmp_path / "tern.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with Unix(path) as s:
        s.alive()
        s.proc.kill()  # leaves its socket behind
        s.proc.wait()
    assert path.exists()
    with Unix(path) as s:
        s.alive()
    plain = tmp_path / "file"
    plain.write_text("precious")
    r = ternlib.run("serve", ternlib.MODEL, "--uds", plain)
    assert r.returncode == 1 and "no socket" in r.stderr.decode().splitlines()[-1]
    assert plain.read_text() == "precious"
    r = ternlib.run("serve", ternlib.MODEL, "--uds", tmp_path / ("x" * 200))
    assert r.returncode == 1 and "uds" in r.stderr.decode().splitlines()[-1]


# ---- keys ---------------------------------------------------------------------------------------------------------

KEYS = ["sk-first-secret", "sk-second-secret"]


@pytest.fixture(scope="module")
def keyed():
    with Server(args=[*BASE, "--api-key", *KEYS, "--enable-log-requests", "--log-level", "debug"]) as s:
        yield s


def test_every_route_wants_one_of_the_keys(keyed):
    routes = re.findall(r"Route: (\S+), Methods: ([A-Z, ]+)", keyed.output())
    assert len(routes) > 9
    for path, methods in routes:
        for method in methods.split(", "):
            url = path.replace("{", "").replace("}", "")
            status = keyed.request(method, url).status
            is_open = path in ("/health", "/ping", "/", "/dashboard", "/assets/{name}")
            assert (status == 401) != is_open, (method, path, status)
    for key in KEYS:
        assert keyed.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status == 200
    for bad in ("", "Bearer", "Bearer ", "Bearer sk-first-secre", "Bearer sk-first-secrett", "Basic sk-first-secret",
                "sk-first-secret", "Bearer sk-first-secret sk-second-secret"):
        r = keyed.get("/v1/models", headers={"Authorization": bad})
        assert r.status == 401 and r.json == {"error": "Unauthorized"}, bad
    assert keyed.get("/no/such/route").status == 401


def test_keys_appear_nowhere_in_log_answers_or_errors(keyed):
    h = {"Authorization": f"Bearer {KEYS[0]}"}
    bodies = [keyed.post("/v1/completions", {"prompt": "a", "max_tokens": 2}, headers=h),
              keyed.post("/v1/completions", b"{", headers=h), keyed.get("/metrics", headers=h),
              keyed.post("/v1/completions", {"prompt": "a", "sk": 1}, headers={"Authorization": "Bearer sk-wrong-secret"})]
    assert [r.status for r in bodies] == [200, 400, 200, 401]
    text = keyed.output() + "".join(r.body.decode() + str(r.headers) for r in bodies)
    assert "non-default args" in text and "'api_key': '***'" in text
    for secret in (*KEYS, "sk-wrong-secret"):
        assert secret not in text


@pytest.mark.parametrize("args,env", [(["--api-key", KEYS[0], "--no-such-flag"], {}), (["--api-key=" + KEYS[0], "--port", "x"], {}),
                                      (["--uds", "/no/where/x"], {"VLLM_API_KEY": KEYS[0]})])
def test_a_failing_start_does_not_print_keys_either(args, env):
    r = ternlib.run("serve", ternlib.MODEL, *args, env=env)
    assert r.returncode in (1, 2) and KEYS[0] not in r.stderr.decode() + r.stdout.decode()


def test_an_empty_key_is_refused():
    r = ternlib.run("serve", ternlib.MODEL, "--host", "127.0.0.1", "--port", ternlib.free_port(), "--api-key", "good", "")
    assert r.returncode in (1, 2) and "--api-key" in r.stderr.decode().splitlines()[-1]


def test_a_root_path_is_cut_guarded_and_checked():
    with Server(args=[*BASE, "--root-path", "/llm", "--api-key", KEYS[0]], env={}) as s:
        h = {"Authorization": f"Bearer {KEYS[0]}"}
        for path in ("/llm/v1/models", "/v1/models"):
            assert s.get(path).status == 401 and s.get(path, headers=h).status == 200
        assert s.get("/llmx/v1/models", headers=h).status == 404
        assert s.get("/llm/health").status == 200
    for bad in ("llm", "/a b", "/a?b"):
        r = ternlib.run("serve", ternlib.MODEL, "--host", "127.0.0.1", "--port", ternlib.free_port(), "--root-path", bad)
        assert r.returncode in (1, 2) and "--root-path" in r.stderr.decode().splitlines()[-1], bad


# ---- CORS ---------------------------------------------------------------------------------------------------------

def preflight(s, origin, method="POST", headers=None):
    h = {"Origin": origin, "Access-Control-Request-Method": method}
    if headers:
        h["Access-Control-Request-Headers"] = headers
    return s.request("OPTIONS", "/v1/chat/completions", headers=h)


def test_credentials_with_any_origin_name_the_origin():
    with Server(args=[*BASE, "--allow-credentials", "--api-key", KEYS[0]]) as s:
        r = s.get("/health", headers={"Origin": "https://a.example", "Cookie": "x=1"})
        assert r.headers["access-control-allow-origin"] == "https://a.example"
        assert r.headers["access-control-allow-credentials"] == "true" and r.headers["vary"] == "Origin"
        assert "access-control-allow-origin" not in s.get("/health").headers
        p = preflight(s, "https://a.example", headers="authorization,x-own")  # without a key
        assert p.status == 200 and p.body == b"OK" and p.headers["access-control-allow-origin"] == "https://a.example"
        assert p.headers["access-control-allow-headers"] == "authorization,x-own"
        assert "POST" in p.headers["access-control-allow-methods"]
        assert s.get("/v1/models", headers={"Origin": "https://a.example"}).headers["access-control-allow-origin"]


def test_origins_methods_and_headers_that_are_not_listed_are_refused():
    with Server(args=[*BASE, "--allowed-origins", '["https://a.example"]', "--allowed-methods", '["POST"]',
                      "--allowed-headers", '["Authorization"]']) as s:
        p = preflight(s, "https://a.example", headers="authorization, content-type")
        assert p.status == 200 and p.headers["access-control-allow-methods"] == "POST"
        assert {"Authorization", "Content-Type"} <= set(p.headers["access-control-allow-headers"].split(", "))
        p = preflight(s, "https://b.example", "PUT", "x-own")
        assert p.status == 400 and p.body == b"Disallowed CORS origin, method, headers"
        assert "access-control-allow-origin" not in p.headers
        assert "access-control-allow-origin" not in s.get("/health", headers={"Origin": "https://b.example"}).headers


# ---- request ids --------------------------------------------------------------------------------------------------

def test_request_ids_go_in_and_out():
    with Server(args=[*BASE, "--enable-request-id-headers"]) as s:
        r = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"X-Request-Id": "mine-1"})
        assert r.json["id"] == "cmpl-mine-1" and r.headers["x-request-id"] == "mine-1"
        r = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert re.fullmatch("[0-9a-f]{32}", r.headers["x-request-id"])
        assert r.json["id"] == "cmpl-" + r.headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{32}", s.get("/health").headers["x-request-id"])


# ---- limits -------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def limited():
    with Server(args=[*BASE, "--h11-max-incomplete-event-size", 2000, "--h11-max-header-count", 20, "--max-body-bytes", 5000,
                      "--max-json-depth", 10, "--max-connections", 30, "--http-read-timeout", 1, "--http-keep-alive-timeout",
                      2]) as s:
        yield s


def test_limits_have_flags_and_their_statuses(limited):
    s = limited
    assert s.get("/health", headers={"X": "a" * 1500}).status == 200
    assert s.get("/health", headers={"X": "a" * 2500}).status == 431
    assert s.get("/health", headers={f"X-{i}": "a" for i in range(16)}).status == 200
    assert s.get("/health", headers={f"X-{i}": "a" for i in range(25)}).status == 431
    assert s.post("/tokenize", {"prompt": "a" * 4000}).status == 200
    assert s.post("/tokenize", {"prompt": "a" * 6000}).status == 413
    assert s.post("/tokenize", b'{"prompt":"a","x":' + b"[" * 8 + b"]" * 8 + b"}").status == 200
    r = s.post("/tokenize", b'{"prompt":"a","x":' + b"[" * 12 + b"]" * 12 + b"}")
    assert r.status == 400 and r.json["error"]["type"] == "Bad Request"
    s.alive()


def test_more_connections_than_allowed_are_closed_at_once(limited):
    socks = [limited.raw() for _ in range(30)]
    with limited.raw() as extra:
        assert extra.recv(1) == b""
    for k in socks:
        k.close()
    end = time.monotonic() + 10 * SLOW
    while True:
        try:
            if limited.get("/health").status == 200:
                break
        except (OSError, http.client.HTTPException):
            pass
        assert time.monotonic() < end
        time.sleep(0.05)


def until_closed(sock, seconds):
    sock.settimeout(seconds * SLOW)
    data, start = b"", time.monotonic()
    while True:
        block = sock.recv(1 << 16)
        if not block:
            return data, time.monotonic() - start
        data += block


@pytest.mark.parametrize("sent,status", [
    (b"GET /health HTTP/1.1\r\nHo", b"408"),
    (b"POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n{", b"408"),
    (b"", b""), (b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n", b"200")])
def test_slow_writers_and_idle_connections_time_out(limited, sent, status):
    with limited.raw() as s:
        s.sendall(sent)
        data, took = until_closed(s, 15)
        assert data[9:12] == status and took > 0.8
    limited.alive()


def test_a_body_that_dribbles_in_is_cut_and_one_that_moves_is_not():
    with Server(args=[*BASE, "--http-read-timeout", 1]) as s:
        body = json.dumps({"prompt": "a" * 100000}).encode()
        head = (f"POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()
        with s.raw(60) as fast:  # 40 KiB/s: slower than the time-out, faster than the least rate
            fast.sendall(head)
            for i in range(0, len(body), 4096):
                fast.sendall(body[i:i + 4096])
                time.sleep(0.1)
            assert ternlib.read_response(fast)[0] == 200
        with s.raw(60) as slow:
            slow.sendall(head)
            status = None
            for i in range(200):
                if select.select([slow], [], [], 0.1)[0]:
                    status = ternlib.read_response(slow)
                    break
                slow.sendall(b"{"[:1] if i == 0 else b" ")
            assert status and status[0] == 408


def test_a_full_queue_of_tokens_is_503_with_retry_after(slow_model):
    with Server(slow_model, ["--max-model-len", 4096, "--kv-cache-memory-bytes", "64M", "--max-num-queued-tokens", 3000,
                             "--max-num-batched-tokens", 128]) as s:
        first = s.raw()
        first.sendall(http_bytes("/v1/completions", {"prompt": [300 + i for i in range(3500)], "max_tokens": 1}))
        s.wait_running()
        r = s.post("/v1/completions", {"prompt": [7] * 10, "max_tokens": 1})
        assert r.status == 503 and int(r.headers["retry-after"]) >= 1 and "3500" in r.json["error"]["message"]
        assert r.json["error"]["type"] == "ServiceUnavailableError"
        assert ternlib.read_response(first)[0] == 200  # more than the limit alone is let in
        first.close()
        assert s.post("/v1/completions", {"prompt": [7] * 10, "max_tokens": 1}).status == 200
        gone = s.raw()
        gone.sendall(http_bytes("/v1/completions", {"prompt": [400 + i for i in range(3500)], "max_tokens": 1}))
        s.wait_running()
        gone.close()
        s.wait_idle(10)
        assert s.post("/v1/completions", {"prompt": [7] * 10, "max_tokens": 1}).status == 200  # nothing leaked


# ---- slow readers -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_a_reader_that_never_reads_and_never_leaves_is_dropped_and_its_kv_freed(slow_model, certs, kind):
    args = ["--max-model-len", 8000, "--kv-cache-memory-bytes", "64M", "--http-write-timeout", 1]
    if kind == "tls":
        args += ["--ssl-certfile", certs / "both.pem"]
    with Server(slow_model, args, wait=False) as s:
        context = ssl.create_default_context(cafile=str(certs / "one.pem"))
        if kind == "tls":
            s.connect = lambda timeout=60: http.client.HTTPSConnection("127.0.0.1", s.port, timeout=timeout * SLOW,
                                                                       context=context)
        s.wait_ready()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.connect(("127.0.0.1", s.port))
        if kind == "tls":
            sock = context.wrap_socket(sock, server_hostname="127.0.0.1")
        sock.sendall(http_bytes("/v1/completions", {"prompt": [300] * 200, "max_tokens": 7000, "ignore_eos": True,
                                                    "stream": True, "logprobs": 20}))
        s.wait_running()
        end = time.monotonic() + 60 * SLOW
        while s.metric("vllm:request_success_total", finished_reason="abort") < 1:
            assert time.monotonic() < end, "still there"
            assert s.metric("vllm:request_success_total", finished_reason="length") == 0, "the test needs a longer answer"
            time.sleep(0.1)
        s.wait_idle(5)  # also: no KV in use
        s.alive()
        sock.close()


# ---- signals ------------------------------------------------------------------------------------------------------

def test_sighup_and_the_usr_signals_do_not_end_the_server():
    with Server(args=BASE) as s:
        for sig in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
            s.proc.send_signal(sig)
        time.sleep(0.2)
        s.alive()
        assert s.stop() == 0


def test_a_signal_while_the_model_loads_ends_it_at_once_with_0(tmp_path):
    big = ternlib.make_model(tmp_path / "big", pathlib.Path(ternlib.MODEL), hidden=2048, intermediate=6144, layers=8,
                             heads=16, head_dim=128)
    s = Server(big, ["--max-model-len", 1024, "--kv-cache-memory-bytes", "64M", "--threads", 1, "--uds", tmp_path / "s"],
               wait=False)
    try:
        end = time.monotonic() + 60 * SLOW
        while "Starting to load model" not in s.output():
            assert time.monotonic() < end and s.proc.poll() is None, s.output()
            time.sleep(0.002)
        t = time.monotonic()
        s.proc.send_signal(signal.SIGTERM)
        assert s.proc.wait(30 * SLOW) == 0
        assert time.monotonic() - t < 1 * SLOW
        assert "Loading weights took" not in s.output(), "the test needs a larger model"
        assert not (tmp_path / "s").exists()
    finally:
        s.stop()


# ---- health -------------------------------------------------------------------------------------------------------

def wait_health(s, status, seconds):
    end = time.monotonic() + seconds * SLOW
    while s.get("/health").status != status:
        assert time.monotonic() < end, f"/health did not become {status}"
        time.sleep(0.05)


def test_health_is_503_while_the_engine_is_stuck_and_200_again_when_it_goes_on(slow_model):
    with Server(slow_model, ["--max-model-len", 4096, "--kv-cache-memory-bytes", "64M", "--stall-timeout", 1]) as s:
        sock = s.raw(120)
        sock.sendall(http_bytes("/v1/completions", {"prompt": "a", "max_tokens": 300, "ignore_eos": True}))
        s.wait_running()
        assert s.get("/health").status == 200
        with ternlib.Stopped(s.proc.pid, "tern-engine"):
            wait_health(s, 503, 20)
            assert s.get("/ping").status == 503 and s.get("/v1/models").status == 200
        wait_health(s, 200, 20)
        assert ternlib.read_response(sock)[0] == 200
        sock.close()


def test_health_notices_an_engine_that_never_looks_at_a_request():
    with Server(args=[*BASE, "--stall-timeout", 1]) as s:
        with ternlib.Stopped(s.proc.pid, "tern-engine"):
            time.sleep(1.5)
            assert s.get("/health").status == 200  # nothing to do: idle is no fault
            sock = s.raw(60)
            sock.sendall(http_bytes("/v1/completions", {"prompt": "a", "max_tokens": 3}))
            wait_health(s, 503, 20)
        assert ternlib.read_response(sock)[0] == 200
        wait_health(s, 200, 20)
        sock.close()


# ---- logs ---------------------------------------------------------------------------------------------------------

def test_json_logs_are_one_object_a_line_whatever_is_in_them(tmp_path):
    name = "poet\n{\"level\":\"forged\"}\x1b[31m"
    with Server(args=[*BASE, "--log-format", "json", "--served-model-name", name, "--enable-log-requests",
                      "--enable-log-outputs", "--log-level", "debug"], env={"VLLM_LOG_STATS_INTERVAL": "0.2"}) as s:
        s.post("/v1/completions", {"prompt": "line one\nline two \x00 \u2028 end", "max_tokens": 5, "ignore_eos": True,
                                   "odd\nfield": 1}, headers={"X-Request-Id": "r-1"})
        s.get("/health?x=%0a%0dforged")
        time.sleep(0.5)
        assert s.stop() == 0
        lines = s.last_output.splitlines()
    docs = [json.loads(x) for x in lines]
    assert all(set(d) >= {"level", "time", "message"} and d["level"] in ("DEBUG", "INFO", "WARNING") for d in docs)
    text = [d["message"] for d in docs]
    for lead in ("non-default args: ", "Application startup complete.", "Received request cmpl-r-1: params: SamplingParams(",
                 "Request cmpl-r-1 details: prompt: 'line one\nline two", "Generated response cmpl-r-1: index: 0, output: '",
                 "Engine 000: Avg prompt throughput: "):
        assert any(t.startswith(lead) for t in text), lead
    assert any('"GET /health?x=%0a%0dforged HTTP/1.1" 200 OK' in t for t in text)


def test_a_failing_start_with_json_logs_ends_in_an_object():
    r = ternlib.run("serve", ternlib.MODEL, "--uds", "/no/where/x", "--log-format", "json")
    last = json.loads(r.stderr.decode().splitlines()[-1])
    assert r.returncode == 1 and last["level"] == "ERROR" and "tern serve: error: uds /no/where/x" in last["message"]


def test_text_logs_give_every_line_its_head(tmp_path):
    with Server(args=[*BASE, "--enable-log-requests", "--enable-log-outputs", "--enable-log-deltas", "--max-log-len", 4,
                      "--log-level", "debug"]) as s:
        s.stream("/v1/completions", {"prompt": "alpha\nbeta\ngamma", "max_tokens": 6, "ignore_eos": True})
        time.sleep(0.2)
        out = s.output()
    for line in out.splitlines():
        assert re.match(r"\(APIServer pid=\d+\) (DEBUG|INFO|WARNING) ", line) or re.match(
            r"\(APIServer pid=\d+\) INFO:     ", line), line
    assert "(streaming delta)" in out and "(streaming complete)" in out and "gamma" not in out
    assert "finish_reason: length" in out


def test_prompts_are_logged_only_at_debug_and_aborts_are_said(slow_model):
    with Server(slow_model, ["--max-model-len", 4096, "--kv-cache-memory-bytes", "64M", "--enable-log-requests"]) as s:
        sock = s.raw()
        sock.sendall(http_bytes("/v1/completions", {"prompt": "a very secret prompt", "max_tokens": 3000, "ignore_eos": True},
                                extra="X-Request-Id: r-2\r\n"))
        s.wait_running()
        sock.close()
        s.wait_idle(10)
        assert "Received request cmpl-r-2: params" in s.output() and "secret" not in s.output()
        assert "Aborted request cmpl-r-2." in s.output()


@pytest.mark.parametrize("args,env,word", [
    (["--enable-log-outputs"], {}, "--enable-log-requests"), (["--enable-log-deltas"], {}, "--enable-log-outputs"),
    (["--log-format", "xml"], {}, "log-format"), ([], {"VLLM_LOGGING_LEVEL": "loud"}, "VLLM_LOGGING_LEVEL")])
def test_log_flags_that_make_no_sense_are_refused_by_name(args, env, word):
    r = ternlib.run("serve", ternlib.MODEL, "--host", "127.0.0.1", "--port", ternlib.free_port(), *args, env=env)
    assert r.returncode in (1, 2) and word in r.stderr.decode().splitlines()[-1], r.stderr


@pytest.mark.parametrize("args,env,seen,unseen", [
    (["--uvicorn-log-level", "warning"], {}, "Route: /health", '"GET /health'),
    (["--disable-uvicorn-access-log"], {}, "Route: /health", '"GET /health'),
    (["--disable-access-log-for-endpoints", "/health,/metrics"], {}, '"GET /version', '"GET /health'),
    (["--log-level", "warning"], {}, "", "Route: /health"),
    ([], {"VLLM_LOGGING_LEVEL": "WARNING"}, "", "Route: /health"),
    (["--log-level", "info"], {"VLLM_LOGGING_LEVEL": "ERROR"}, "Route: /health", "\x00"),
    ([], {"VLLM_LOGGING_CONFIG_PATH": "/x/y.json"}, "VLLM_LOGGING_CONFIG_PATH is ignored", "\x00"),
    (["--disable-log-stats"], {"VLLM_LOG_STATS_INTERVAL": "0.05"}, "Route: /health", "Engine 000"),
    ([], {"VLLM_LOG_STATS_INTERVAL": "0.05"}, "Engine 000: Avg prompt throughput", "\x00")])
def test_log_levels_and_switches(args, env, seen, unseen):
    with Server(args=[*BASE, *args], env=env) as s:
        s.get("/version")
        s.completion("a b c", max_tokens=4)
        end = time.monotonic() + 10 * SLOW
        while seen not in s.output() and time.monotonic() < end:
            time.sleep(0.02)
        if unseen != "\x00":
            time.sleep(0.3)
        assert seen in s.output() and unseen not in s.output()
