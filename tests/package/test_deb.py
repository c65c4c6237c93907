# SPDX-License-Identifier: Apache-2.0
"""The Debian package: what is in it, and the unit that it brings. `make package-test` installs it."""
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest
import ternlib

BUILD = pathlib.Path(os.environ.get("TERN_BUILD", ternlib.SOURCE / "build"))
pytestmark = pytest.mark.skipif(not shutil.which("dpkg-shlibdeps"), reason="dpkg-dev is not installed")


@pytest.fixture(scope="session")
def deb():
    r = subprocess.run(["cmake", "--build", BUILD, "--target", "deb"], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout[-4000:] + r.stderr[-2000:]
    found = sorted((BUILD / "packages").glob("tern_*.deb"), key=lambda p: p.stat().st_mtime)
    assert found, r.stdout
    return found[-1]


@pytest.fixture(scope="session")
def root(deb, tmp_path_factory):
    d = tmp_path_factory.mktemp("deb") / "root"
    subprocess.run(["dpkg-deb", "-x", deb, d], check=True)
    subprocess.run(["dpkg-deb", "-e", deb, d / "DEBIAN"], check=True)
    return d


def field(deb, name):
    return subprocess.run(["dpkg-deb", "-f", deb, name], check=True, capture_output=True, text=True).stdout.strip()


def test_it_depends_on_what_the_program_links_and_recommends_what_it_loads(deb, root):
    depends = field(deb, "Depends")
    for library in ("libc6 (>= 2.", "libevent-core-2.1-7", "libjson-c5", "libssl3", "libxxhash0"):
        assert library in depends
    assert "libcurl4" in field(deb, "Recommends") and "libcurl" not in depends
    assert field(deb, "Package") == "tern" and field(deb, "Architecture") == "amd64"


def test_the_program_its_pages_and_completions_are_there(root):
    r = subprocess.run([root / "usr/bin/tern", "--version"], capture_output=True)
    assert r.returncode == 0 and r.stdout.startswith(b"tern ")
    pages = {p.name for p in (root / "usr/share/man/man1").iterdir()}
    assert {"tern.1.gz", "tern-serve.1.gz", "tern-bench-serve.1.gz"} <= pages
    for path in ("usr/share/bash-completion/completions/tern", "usr/share/zsh/vendor-completions/_tern",
                 "usr/share/fish/vendor_completions.d/tern.fish", "usr/share/doc/tern/copyright",
                 "usr/share/doc/tern/changelog.Debian.gz", "usr/share/doc/tern/README.md",
                 "usr/share/tern/models/tern-poet/model.safetensors", "etc/tern/tern.yaml"):
        assert (root / path).is_file(), path


def test_every_link_of_its_documents_leads_to_a_file_of_the_package(root):
    pages = list((root / "usr/share/doc/tern").rglob("*.md"))
    assert len(pages) > 10
    for page in pages:
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            assert link.startswith("http") or (page.parent / link).is_file(), f"{page.name}: {link}"


def test_nobody_may_write_to_its_files_and_none_comes_from_a_build_directory(root):
    for p in root.rglob("*"):
        assert not p.stat().st_mode & 0o022, p
        assert p.is_dir() or "DEBIAN" in p.parts or str(BUILD).encode() not in p.read_bytes(), p


def test_the_configuration_is_a_conffile_that_the_program_takes(root):
    assert (root / "DEBIAN/conffiles").read_text().split() == ["/etc/tern/tern.yaml"]
    r = ternlib.run("info", "--config", root / "etc/tern/tern.yaml", "--help")
    assert r.returncode == 0
    port = ternlib.free_port()
    env = {"NOTIFY_SOCKET": ""}
    with ternlib.Server(root / "usr/share/tern/models/tern-poet",
                        ["--config", root / "etc/tern/tern.yaml"], port=port, env=env) as s:
        assert s.get("/v1/models").json["data"][0]["id"] == "tern-poet"


def test_the_maintainers_scripts_are_short_and_of_the_shell(root):
    for name in ("postinst", "prerm", "postrm"):
        script = root / "DEBIAN" / name
        subprocess.run(["sh", "-n", script], check=True)
        assert script.stat().st_mode & 0o111 and len(script.read_text().splitlines()) < 25


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_the_unit_is_verified_and_its_exposure_is_at_most_2(root, tmp_path):
    unit = tmp_path / "tern.service"
    text = (root / "lib/systemd/system/tern.service").read_text()
    assert "Type=notify" in text and "WatchdogSec=" in text and "DynamicUser=yes" in text
    unit.write_text(text.replace("/usr/bin/tern", str(root / "usr/bin/tern")))  # verify looks for the program
    r = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert r.returncode == 0 and r.stdout + r.stderr == "", r.stdout + r.stderr
    r = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit],
                       capture_output=True, text=True)
    level = re.search(r"Overall exposure level for tern.service: ([\d.]+)", r.stdout)
    assert r.returncode == 0 and float(level[1]) <= 2.0, r.stdout


def names_of(group):
    """The system calls of systemd's group, groups inside it included."""
    out = set()
    r = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    for line in r.stdout.splitlines()[1:]:
        word = line.split("#")[0].strip()
        out |= names_of(word) if word.startswith("@") else {word} if word else set()
    return out


@pytest.mark.skipif(not shutil.which("systemd-analyze") or not shutil.which("strace"),
                    reason="systemd or strace is not installed")
def test_the_unit_allows_every_system_call_that_serving_makes(root, tmp_path):
    allowed = set()
    for line in (root / "lib/systemd/system/tern.service").read_text().splitlines():
        if line.startswith("SystemCallFilter="):
            words = line.removeprefix("SystemCallFilter=")
            calls = set().union(*(names_of(w) if w.startswith("@") else {w} for w in words.lstrip("~").split()))
            allowed = allowed - calls if words.startswith("~") else allowed | calls
    trace = tmp_path / "trace"
    with ternlib.Server(args=["--max-model-len", 512], wrapper=["strace", "-f", "-o", trace]) as s:
        s.completion("a", max_tokens=3)
        s.metrics()
        for child in pathlib.Path(f"/proc/{s.proc.pid}/task/{s.proc.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)  # strace itself would leave at a signal
        assert s.proc.wait(20 * ternlib.SLOW) == 0
    used = set(re.findall(r"^\d+ +([a-z0-9_]+)\(", trace.read_text(), re.M))
    assert len(used) > 30 and used <= allowed, used - allowed
