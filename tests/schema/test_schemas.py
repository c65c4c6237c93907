# SPDX-License-Identifier: Apache-2.0
"""What JSON Schema grammars let a model write, judged by ajv (judge.mjs)."""
import os
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent
MODEL = HERE.parents[1] / "models" / "tern-poet"
# The public suite for draft 2020-12, as Debian's libtest-json-schema-acceptance-perl installs it.
SUITE = pathlib.Path("/usr/share/perl5/auto/share/dist/Test-JSON-Schema-Acceptance/tests/draft2020-12")


@pytest.fixture(scope="module")
def judge():
    if not shutil.which("node"):
        pytest.skip("node is not here")
    if not (HERE / "node_modules" / "ajv").is_dir():
        if not shutil.which("npm"):
            pytest.skip("npm is not here")
        r = subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=HERE, capture_output=True, timeout=300)
        if r.returncode != 0 and not os.environ.get("CI"):
            pytest.skip("npm ci did not work here: " + r.stderr.decode()[-200:])
        assert r.returncode == 0, r.stderr.decode()
    return HERE / "judge.mjs"


def test_no_output_violates_its_schema_and_refusals_are_few(judge):
    tool = os.environ.get("TERN_GRAMMAR_WALK")
    if not tool:
        pytest.skip("TERN_GRAMMAR_WALK is not set")
    if not SUITE.is_dir():
        pytest.skip("the JSON Schema test suite (libtest-json-schema-acceptance-perl) is not here")
    r = subprocess.run(["node", judge, tool, MODEL, SUITE], capture_output=True, timeout=800)
    print(r.stdout.decode())
    assert r.returncode == 0, r.stdout.decode() + r.stderr.decode()


def test_the_lock_file_names_no_host():
    text = (HERE / "package-lock.json").read_text()
    assert "resolved" not in text and "://" not in text
