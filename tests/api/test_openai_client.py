# SPDX-License-Identifier: Apache-2.0
"""The official openai npm client as a real client: tests/api/node/client.mjs."""
import os
import pathlib
import shutil
import subprocess

import pytest

NODE = pathlib.Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def client():
    if not shutil.which("node"):
        pytest.skip("node is not here")
    if not (NODE / "node_modules" / "openai").is_dir():
        if not shutil.which("npm"):
            pytest.skip("npm is not here")
        r = subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=NODE, capture_output=True, timeout=300)
        if r.returncode != 0 and not os.environ.get("CI"):
            pytest.skip("npm ci did not work here: " + r.stderr.decode()[-200:])
        assert r.returncode == 0, r.stderr.decode()
    return NODE / "client.mjs"


def test_the_official_client_lists_completes_and_streams(server, client):
    r = subprocess.run(["node", client, f"http://127.0.0.1:{server.port}/v1"], capture_output=True, timeout=120,
                       env={**os.environ, "NO_PROXY": "127.0.0.1"})
    assert r.returncode == 0, r.stdout.decode() + r.stderr.decode()
    assert b"all checks passed" in r.stdout


def test_the_lock_file_names_no_host():
    assert "resolved" not in (NODE / "package-lock.json").read_text()
    assert "://" not in (NODE / "package-lock.json").read_text()
