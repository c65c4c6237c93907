# SPDX-License-Identifier: Apache-2.0
"""`tern align`: eager against the plan bit by bit, and against stored logits of another implementation.

That one changed rounding makes both fail is shown by tests/unit/model_same_bits_test.c, with a changed kernel table."""
import json

import pytest
import ternlib

DENSE = ["dense-hf", "dense-hf-sharded", "dense-hf-untied", "dense-paddle", "dense-paddle-bf16label",
         "dense-paddle-untied", "dense-head96"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_shipped_model_aligns(dtype):
    r = ternlib.run("align", ternlib.MODEL, "--dtype", dtype)
    out = r.stdout.decode()
    assert r.returncode == 0, out + r.stderr.decode()
    for prompt in ("The quick brown fox jumps over the lazy dog.", "1+1等于几？", "import torch"):
        assert prompt in out


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", DENSE)
def test_fixtures_align(shared, name, dtype):
    r = ternlib.run("align", shared / "fixtures" / name, "--dtype", dtype)
    assert r.returncode == 0, r.stdout.decode() + r.stderr.decode()


@pytest.mark.parametrize("name", DENSE)
def test_fixtures_align_with_stored_logits(shared, name):
    d = shared / "fixtures" / name
    r = ternlib.run("align", d, "--dtype", "float32", "--golden", d / "golden.json")
    assert r.returncode == 0, r.stdout.decode() + r.stderr.decode()


def test_wrong_stored_logits_fail(shared, tmp_path):
    """A comparison that can't fail shows nothing: another model's logits, and ours moved by 2e-3."""
    d = shared / "fixtures" / "dense-hf"
    r = ternlib.run("align", d, "--dtype", "float32", "--golden", shared / "fixtures" / "dense-hf-untied" / "golden.json")
    assert r.returncode == 1, r.stdout
    g = json.loads((d / "golden.json").read_text())
    g["prompts"][2]["last"]["top_logits"][4] += 2e-3
    (tmp_path / "g.json").write_text(json.dumps(g))
    r = ternlib.run("align", d, "--dtype", "float32", "--golden", tmp_path / "g.json")
    assert r.returncode == 1, r.stdout
