# SPDX-License-Identifier: Apache-2.0
"""The static binary and the container image that is made of it."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tarfile

import pytest
import ternlib

BUILD = pathlib.Path(os.environ.get("TERN_BUILD", ternlib.SOURCE / "build"))
IMAGE_BYTES = 30_000_000  # at most, without a model
PROMPT = "写一首七言绝句，题目是《春晓》。"


def words_of(program, *args, wrapper=()):
    r = subprocess.run([*wrapper, program, "generate", ternlib.MODEL, "--chat", "-p", PROMPT, "--max-tokens", "8",
                        "--temperature", "0", *args], capture_output=True, timeout=300 * ternlib.SLOW)
    assert r.returncode == 0, r.stderr
    return r.stdout


def needs_a_loader(program):
    """Does the ELF file name an interpreter (PT_INTERP)?"""
    data = program.read_bytes()
    offset, = struct.unpack_from("<Q", data, 32)
    size, n = struct.unpack_from("<HH", data, 54)
    return any(struct.unpack_from("<I", data, offset + i * size)[0] == 3 for i in range(n))


@pytest.fixture(scope="session")
def image():
    r = subprocess.run(["cmake", "--build", BUILD, "--target", "image"], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout[-4000:] + r.stderr[-2000:]
    assert "warning" not in r.stdout + r.stderr
    return next((BUILD / "image").glob("tern-*-amd64.tar"))


@pytest.fixture(scope="session")
def static(image):
    return BUILD / "tern-static"


@pytest.fixture(scope="session")
def layout(image, tmp_path_factory):
    d = tmp_path_factory.mktemp("image")
    with tarfile.open(image) as t:
        t.extractall(d)
    return d


def blob(layout, digest):
    kind, name = digest.split(":")
    data = (layout / "blobs" / kind / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == name
    return data


@pytest.fixture(scope="session")
def config(layout):
    manifest = json.loads(blob(layout, json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]))
    return json.loads(blob(layout, manifest["config"]["digest"]))


@pytest.fixture(scope="session")
def root(layout, config, tmp_path_factory):
    """What a container sees, with the model where it would be mounted."""
    d = tmp_path_factory.mktemp("root")
    d.parent.chmod(0o755)
    d.chmod(0o755)
    digest = config["rootfs"]["diff_ids"][0]
    with tarfile.open(layout / "blobs" / "sha256" / digest.removeprefix("sha256:")) as t:
        assert {m.uid for m in t.getmembers()} == {0} and all(m.mtime == t.getmembers()[0].mtime for m in t)
        t.extractall(d)
    shutil.copytree(ternlib.MODEL, d / "model", dirs_exist_ok=True)
    return d


def inside(root, config, *args):
    """The command that runs in the image as its user, with /proc as a container has it."""
    (root / "proc").mkdir(exist_ok=True)
    is_root = os.geteuid() == 0
    who = [f"--userspec={config['config']['User']}"] if is_root else []
    return ["unshare", "--mount", *([] if is_root else ["--user", "--map-root-user"]),
            "sh", "-c", 'mount --rbind /proc "$1/proc" && shift && exec "$@"', "sh", root,
            "chroot", *who, root, *config["config"]["Entrypoint"], *args]


def test_the_static_binary_needs_nothing_and_gives_the_same_text(static):
    assert not needs_a_loader(static) and needs_a_loader(pathlib.Path(ternlib.TERN))
    assert words_of(static) == words_of(ternlib.TERN)


def test_the_static_binary_says_by_name_what_is_not_in_it(static):
    for args in (["pull", "a/b"], ["chat", "--url", "http://127.0.0.1:1", "-q", "x"],
                 ["health", "--url", "https://127.0.0.1:1"]):
        r = subprocess.run([static, *args], capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
        assert r.returncode == 1
        assert b"this needs libcurl.so.4, and this binary is the static one, which loads no libraries" in r.stderr


def test_the_static_binary_looks_names_up(static):
    r = subprocess.run([static, "health", "--host", "localhost", "--port", "1"], capture_output=True, timeout=60)
    assert r.returncode == 1 and b"Connection refused" in r.stderr
    r = subprocess.run([static, "health", "--host", "no-such-host.invalid"], capture_output=True, timeout=60)
    assert r.returncode == 1 and (b"no-such-host.invalid: " in r.stderr or b"no answer in time" in r.stderr)


def test_the_arm64_binary_is_static_and_gives_the_same_text():
    program = pathlib.Path(os.environ.get("TERN_AARCH64_STATIC", ternlib.SOURCE / "build-arm64" / "tern-static"))
    if not program.exists():
        pytest.skip("no arm64 build (make static)")
    assert not needs_a_loader(program)
    assert words_of(program, wrapper=("qemu-aarch64",)) == words_of(ternlib.TERN)


def test_the_image_is_small_and_says_who_it_runs_as(image, config):
    assert image.stat().st_size <= IMAGE_BYTES
    c = config["config"]
    uid = int(c["User"].split(":")[0])
    assert uid > 0
    assert c["Entrypoint"] == ["/usr/bin/tern"] and c["Cmd"] == ["serve", "/model"]
    assert c["Healthcheck"]["Test"] == ["CMD", "/usr/bin/tern", "health"]
    assert c["Healthcheck"]["Interval"] == 30_000_000_000 and c["Healthcheck"]["StartPeriod"] == 600_000_000_000
    assert c["ExposedPorts"] == {"8000/tcp": {}} and c["StopSignal"] == "SIGTERM"
    assert config["architecture"] == "amd64" and config["os"] == "linux"


def test_every_blob_has_its_hash_and_size(layout):
    index = json.loads((layout / "index.json").read_text())
    d = index["manifests"][0]
    data = blob(layout, d["digest"])
    assert len(data) == d["size"]
    manifest = json.loads(data)
    for part in (manifest["config"], *manifest["layers"]):
        assert len(blob(layout, part["digest"])) == part["size"]
    docker = json.loads((layout / "manifest.json").read_text())[0]
    assert docker["Layers"] == ["blobs/" + x["digest"].replace(":", "/") for x in manifest["layers"]]
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}


def test_the_same_inputs_give_the_same_image(image, tmp_path):
    version = image.name.removeprefix("tern-").removesuffix("-amd64.tar")
    subprocess.run([ternlib.SOURCE / "tools" / "make-image", BUILD / "tern-static", "amd64", version, tmp_path],
                   check=True, capture_output=True)
    assert (tmp_path / image.name).read_bytes() == image.read_bytes()


@pytest.mark.skipif(not shutil.which("skopeo"), reason="skopeo is not installed")
@pytest.mark.parametrize("transport", ["oci-archive", "docker-archive"])
def test_skopeo_reads_it(image, transport):
    r = subprocess.run(["skopeo", "inspect", f"{transport}:{image}"], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    assert json.loads(r.stdout)["Architecture"] == "amd64"


def test_in_the_image_its_user_serves_and_the_health_check_tells(root, config):
    probe = subprocess.run(inside(root, config, "--version"), capture_output=True)
    if probe.returncode:
        pytest.skip(f"chroot is not allowed here: {probe.stderr.decode()}")
    port = ternlib.free_port()
    log = root.parent / "image.log"
    with open(log, "wb") as out:
        proc = subprocess.Popen(inside(root, config, *config["config"]["Cmd"], "--port", str(port), "--host", "127.0.0.1",
                                       "--max-model-len", "512"), stdin=subprocess.DEVNULL, stderr=out, stdout=out)
    try:
        health = inside(root, config, "health", "--port", str(port))
        for _ in range(int(600 * ternlib.SLOW)):
            r = subprocess.run(health, capture_output=True)
            if r.returncode == 0 or proc.poll() is not None:
                break
        assert r.stdout == b"healthy\n", log.read_text()
        if os.geteuid() == 0:
            status = pathlib.Path(f"/proc/{proc.pid}/status").read_text()
            assert "Uid:\t65532\t65532\t65532\t65532" in status
        s = ternlib.Server.__new__(ternlib.Server)
        s.port, s.model = port, "/model"
        assert s.completion("春", max_tokens=3, temperature=0)["usage"]["completion_tokens"] == 3
    finally:
        proc.send_signal(signal.SIGTERM)
        assert proc.wait(20 * ternlib.SLOW) == 0, log.read_text()
    assert subprocess.run(health, capture_output=True).returncode == 1
