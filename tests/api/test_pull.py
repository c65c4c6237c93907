# SPDX-License-Identifier: Apache-2.0
"""`tern pull` against a stand-in hub that speaks both hubs' routes, cuts connections, lies and refuses."""
import hashlib
import http.server
import json
import os
import pathlib
import random
import resource
import ssl
import subprocess
import threading
import urllib.parse

import pytest
import ternlib
from ternlib import MODEL, SLOW, TERN, run

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLD = "89abcdef0123456789abcdef0123456789abcdef"
BIG = random.Random(1).randbytes(20 * 1024 * 1024 + 77)


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        s, url = self.server, urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        s.asked.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        if s.token and self.headers.get("Authorization") != "Bearer " + s.token and not url.path.startswith("/cdn/"):
            return self.reply(401, b'{"error": "who are you?"}')
        revision = query.get("Revision", [url.path.rsplit("/", 1)[-1]])[0]
        files = s.revisions.get(revision, s.files)
        if url.path.startswith("/api/models/o/n.1/revision/") and revision in ("main", COMMIT, *s.revisions):
            sha = OLD if revision in s.revisions else COMMIT
            return self.reply(200, json.dumps({"sha": sha, "siblings": [self.hf(p, d) for p, d in files.items()]}).encode())
        if url.path == "/api/v1/models/o/n.1/repo/files":
            listed = [{"Path": p, "Type": "blob", "Size": len(d), "Sha256": s.sums.get(p) or hashlib.sha256(d).hexdigest()}
                     for p, d in files.items()] + [{"Path": "sub", "Type": "tree", "Size": 0}]
            return self.reply(200, json.dumps({"Code": 200, "Data": {"Files": listed}}).encode())
        if url.path.startswith(f"/o/n.1/resolve/{OLD}/"):
            return self.send(s.revisions["v1"][urllib.parse.unquote(url.path.split(OLD + "/", 1)[1])])
        if url.path.startswith(f"/o/n.1/resolve/{COMMIT}/"):
            path = urllib.parse.unquote(url.path.split(COMMIT + "/", 1)[1])
            if path == "model.safetensors":  # as the real one does for large files
                return self.reply(302, Location="/cdn/" + path)
            return self.send(s.files[path])
        if url.path.startswith("/cdn/"):
            return self.send(s.files[url.path[5:]])
        if url.path == "/api/v1/models/o/n.1/repo":
            return self.send(files[query["FilePath"][0]])
        return self.reply(404, b'{"error": "no such model"}')

    def hf(self, path, data):
        out = {"rfilename": path, "size": len(data),
               "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
        if len(data) > 1 << 20:
            out["lfs"] = {"sha256": self.server.sums.get(path) or hashlib.sha256(data).hexdigest(), "size": len(data)}
        return out

    def send(self, data):
        s = self.server
        if s.busy > 0:
            s.busy -= 1
            return self.reply(429, b"slow down", Retry_After="1")
        a, b = (int(x) for x in self.headers["Range"][6:].split("-"))
        part = data[a:b + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {a}-{b}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if s.cuts > 0 and len(part) > 100000:
            s.cuts -= 1
            self.wfile.write(part[:50000])  # short enough that all the cuts find something to cut
            self.close_connection = True
            return
        self.wfile.write(part)


@pytest.fixture
def hub(tmp_path):
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    s.daemon_threads = True
    s.asked, s.sums, s.cuts, s.busy, s.token = [], {}, 0, 0, None
    s.revisions = {}  # name: files, beside the newest ones
    s.files = {"config.json": b"{}", "model.safetensors": BIG, "sub/a b.txt": b"text", "empty": b""}
    s.env = {"HF_ENDPOINT": f"http://127.0.0.1:{s.server_port}", "MODELSCOPE_ENDPOINT": f"http://127.0.0.1:{s.server_port}",
             "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "MODELSCOPE_CACHE": str(tmp_path / "ms"),
             "HF_TOKEN": "", "NO_PROXY": "127.0.0.1"}
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield s
    s.shutdown()
    s.server_close()


def pull(hub, *args, **env):
    return run("pull", "o/n.1", "--quiet", *args, env={**hub.env, **env})


def check(hub, r):
    assert r.returncode == 0, r.stderr
    at = pathlib.Path(r.stdout.decode().strip())
    for path, data in hub.files.items():
        assert (at / path).read_bytes() == data
    return at


def leftovers(root):
    return [p for p in pathlib.Path(root).rglob("*.tern-part*")]


def test_a_model_comes_in_hugging_faces_layout(hub, tmp_path):
    at = check(hub, pull(hub))
    root = tmp_path / "hf/hub/models--o--n.1"
    assert at == root / "snapshots" / COMMIT and (root / "refs/main").read_text() == COMMIT
    link = at / "model.safetensors"
    assert os.readlink(link) == "../../blobs/" + hashlib.sha256(BIG).hexdigest() and not leftovers(root)
    assert os.readlink(at / "sub/a b.txt").startswith("../../../blobs/")


def test_a_model_comes_in_modelscopes_layout(hub, tmp_path):
    assert check(hub, pull(hub, "--hub", "modelscope")) == tmp_path / "ms/models/o/n___1"
    hub.asked.clear()
    assert check(hub, pull(hub, VLLM_USE_MODELSCOPE="1")) == tmp_path / "ms/models/o/n___1"
    assert len(hub.asked) == 1, "files that are there are not fetched again"


def test_large_files_come_in_parts(hub):
    check(hub, pull(hub))
    assert len({r for p, r, _ in hub.asked if p == "/cdn/model.safetensors"}) == 3


def test_cut_connections_are_gone_on_with(hub):
    hub.cuts = 10
    check(hub, pull(hub))
    assert hub.cuts == 0


def test_a_busy_hub_is_asked_again(hub):
    hub.busy = 3
    check(hub, pull(hub))


@pytest.mark.parametrize("kind", ["huggingface", "modelscope"])
def test_a_wrong_hash_never_reaches_the_cache(hub, tmp_path, kind):
    hub.sums["model.safetensors"] = "0" * 64
    r = pull(hub, "--hub", kind)
    assert r.returncode == 1 and b"wrong hash" in r.stderr and r.stdout == b""
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 1 << 20] and not leftovers(tmp_path)
    r = pull(hub, "--hub", kind, HF_HUB_OFFLINE="1")
    assert r.returncode == 1 and b"HF_HUB_OFFLINE" in r.stderr


def test_what_was_killed_is_gone_on_with(hub, tmp_path):
    hub.cuts = 10000  # never ends: parts that are short again and again
    p = subprocess.Popen([TERN, "pull", "o/n.1", "--quiet"], env={**os.environ, **hub.env}, stdout=subprocess.DEVNULL)
    try:
        while not leftovers(tmp_path):
            assert p.poll() is None
    finally:
        p.kill()
        p.wait()
    hub.cuts = 0
    check(hub, pull(hub))


def test_offline_finds_what_is_there_and_asks_nobody(hub):
    at = check(hub, pull(hub))
    hub.asked.clear()
    r = pull(hub, HF_HUB_OFFLINE="1")
    assert r.stdout.decode().strip() == str(at) and hub.asked == []


def test_a_private_model_wants_a_token_which_a_redirect_within_the_host_keeps(hub):
    hub.token = "hf_secret"
    r = pull(hub)
    assert r.returncode == 1 and b"401" in r.stderr
    r = pull(hub, HF_TOKEN="hf_secret")
    check(hub, r)
    assert b"hf_secret" not in r.stderr


def test_a_full_disk_is_told_and_can_be_gone_on_from(hub, tmp_path):
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    r = subprocess.run([TERN, "pull", "o/n.1", "--quiet"], env={**os.environ, **hub.env}, capture_output=True,
                       preexec_fn=limit, timeout=60 * SLOW)
    assert r.returncode == 1 and b"File too large" in r.stderr, r.stderr
    check(hub, pull(hub))


def test_a_second_puller_is_refused(hub, tmp_path):
    import fcntl
    check(hub, pull(hub))
    with open(tmp_path / "hf/hub/models--o--n.1/blobs/.tern-lock") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        r = pull(hub)
    assert r.returncode == 1 and b"another tern pull" in r.stderr


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a//b", "a/../../b"])
def test_a_hub_cannot_write_elsewhere(hub, name):
    hub.files = {name: b"x"}
    r = pull(hub)
    assert r.returncode == 1 and b"cannot be" in r.stderr


def test_https_is_checked_against_the_given_certificates(hub, tmp_path):
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                    "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ctx.load_cert_chain(cert, key)
    hub.socket = ctx.wrap_socket(hub.socket, server_side=True)
    https = f"https://127.0.0.1:{hub.server_port}"
    r = pull(hub, HF_ENDPOINT=https)
    assert r.returncode == 1 and b"certificate" in r.stderr
    check(hub, pull(hub, "--ca-file", cert, HF_ENDPOINT=https))


def test_a_pulled_model_is_served_under_its_name(hub):
    hub.files = poet()
    r = run("generate", "o/n.1", "-p", "x", env=hub.env)
    assert r.returncode == 1 and b"`tern pull o/n.1` fetches it" in r.stderr
    at = check(hub, pull(hub, "--hub", "modelscope"))
    words = ("-p", "春眠", "--temperature", 0, "--max-tokens", 8, "--quiet")
    assert run("generate", "o/n.1", *words, env=hub.env).stdout == run("generate", at, *words).stdout
    with ternlib.Server("o/n.1", env=hub.env) as s:
        assert json.loads(s.get("/v1/models").body)["data"][0]["id"] == "o/n.1"


def poet():
    return {p.name: p.read_bytes() for p in pathlib.Path(MODEL).iterdir() if p.is_file()}


def asks_for(revision, hub, command="info"):
    """The revision's max_position_embeddings, or what the refusal says."""
    words = [] if revision is None else ["--revision", revision]
    r = run(command, "o/n.1", "--json", *words, env=hub.env)
    return r.stderr.decode() if r.returncode else json.loads(r.stdout)["model"]["max_position_embeddings"]


@pytest.mark.parametrize("kind", ["huggingface", "modelscope"])
def test_a_revision_is_served_as_it_was_pulled_or_refused_by_name(hub, kind):
    new = poet()
    length = json.loads(new["config.json"])["max_position_embeddings"]
    old = {**new, "config.json": new["config.json"].replace(b'"max_position_embeddings": %d' % length,
                                                            b'"max_position_embeddings": %d' % (length - 1))}
    assert old != new and len(old["config.json"]) == len(new["config.json"])
    hub.files, hub.revisions = new, {"v1": old}
    assert pull(hub, "--hub", kind).returncode == 0
    assert asks_for(None, hub) == length
    refusal = asks_for("v1", hub)
    assert "its revision 'v1' was not pulled" in refusal and "`tern pull o/n.1 --revision v1`" in refusal
    r = pull(hub, "--hub", kind, "--revision", "v1")
    assert r.returncode == 0, r.stderr
    assert asks_for("v1", hub) == length - 1
    if kind == "huggingface":
        assert asks_for(OLD, hub) == length - 1 and asks_for("main", hub) == asks_for(COMMIT, hub) == length
        assert asks_for(None, hub) == length
    else:  # one directory a model: v1 took the place of master
        assert "no model of that name was pulled" in asks_for(None, hub)
        assert pull(hub, "--hub", kind).returncode == 0 and asks_for("master", hub) == length
    assert "no name of a revision" in asks_for("../x", hub)


def test_a_commit_that_was_pulled_in_part_is_not_found(hub, tmp_path):
    hub.sums["tokenizer.model"] = "0" * 64
    hub.files = dict(sorted(poet().items()))
    hub.files["tokenizer.model"] += bytes(1 << 20)  # large enough that the hub gives the hash that is wrong
    assert pull(hub).returncode == 1 and (tmp_path / "hf/hub/models--o--n.1/snapshots" / COMMIT / "config.json").exists()
    assert f"its revision '{COMMIT}' was not pulled" in asks_for(COMMIT, hub)


def test_a_paths_revision_is_told_to_have_no_effect():
    r = run("generate", MODEL, "-p", "x", "--max-tokens", 1, "--quiet", "--revision", "v1")
    assert r.returncode == 0 and b"--revision has no effect" in r.stderr


@pytest.mark.parametrize("words", [(), ("one",), ("a/b", "c"), ("o/n", "--hub", "x")])
def test_wrong_usage_is_told(words):
    r = run("pull", *words)
    assert r.returncode == (1 if words == ("one",) else 2) and b"error: " in r.stderr
