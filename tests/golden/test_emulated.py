# SPDX-License-Identifier: Apache-2.0
"""T14: other machines under qemu-user. The text is that of this machine; below the floor it is one line and exit 1."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest
import ternlib
from ternlib import generate

IDS = [688, 389, 146, 1009, 152, 764, 1034]
X86 = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
ARM = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
ARM_TERN = os.environ.get("TERN_AARCH64", str(pathlib.Path(ternlib.TERN).parent.parent / "build-arm64" / "tern"))

needs_x86 = pytest.mark.skipif(not X86, reason="qemu-x86_64 is not here")
needs_arm = pytest.mark.skipif(not ARM or not os.path.exists(ARM_TERN),
                               reason="qemu-aarch64 or the arm64 build is not here (set TERN_AARCH64)")


def native(shared, dtype, extra=()):
    return generate(shared / "fixtures" / "dense-head96", IDS, 8, dtype=dtype, logprobs=2, extra=extra)[0]


@needs_x86
@pytest.mark.parametrize("cpu", ["qemu64", "core2duo"])
def test_below_the_floor_is_one_line_and_exit_1(shared, cpu):
    r = ternlib.run("generate", shared / "fixtures" / "dense-head96", "--prompt-ids", "5", "--max-tokens", 1,
                    wrapper=(X86, "-cpu", cpu), timeout=60)
    assert r.returncode == 1, (r.returncode, r.stderr)
    lines = [x for x in r.stderr.decode().splitlines() if not x.startswith("qemu-x86_64: warning")]
    assert len(lines) == 1 and "needs" in lines[0], r.stderr


@needs_x86
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("cpu", ["Nehalem", "IvyBridge", "Haswell"])
def test_x86_machines_give_the_text_of_this_one(shared, cpu, dtype):
    """No AVX, AVX without AVX2, AVX2 without AVX-512."""
    out, _ = generate(shared / "fixtures" / "dense-head96", IDS, 8, dtype=dtype, logprobs=2,
                      wrapper=(X86, "-cpu", cpu), timeout=120)
    want = native(shared, dtype)
    assert (out["token_ids"], out["logprobs"]) == (want["token_ids"], want["logprobs"])


@needs_x86
def test_a_level_the_machine_lacks_is_refused(shared):
    r = ternlib.run("generate", shared / "fixtures" / "dense-head96", "--prompt-ids", "5", "--cpu-mask", "avx2",
                    wrapper=(X86, "-cpu", "Nehalem"), timeout=60)
    assert r.returncode == 1
    assert "needs" in r.stderr.decode() and "avx2" in r.stderr.decode().lower()


ARM_LEVELS = {"cortex-a72": ["scalar", "neon"], "neoverse-n1": ["scalar", "neon", "neondot"],
              "max": ["scalar", "neon", "neondot", "neonbf16"]}


@needs_arm
@pytest.mark.parametrize("cpu", ARM_LEVELS)
def test_arm_machines_take_their_best_level(shared, cpu):
    r = subprocess.run([ARM, "-cpu", cpu, ARM_TERN, "info", shared / "fixtures" / "dense-head96", "--json"],
                       capture_output=True, timeout=120)
    assert r.returncode == 0, r.stderr
    compute = json.loads(r.stdout)["compute"]
    assert (compute["level"], compute["levels_available"]) == (ARM_LEVELS[cpu][-1], ARM_LEVELS[cpu])


@needs_arm
@pytest.mark.parametrize("cpu, level", [("cortex-a72", "neondot"), ("neoverse-n1", "neonbf16"), ("max", "avx2")])
def test_a_level_the_arm_machine_lacks_is_refused(shared, cpu, level):
    r = subprocess.run([ARM, "-cpu", cpu, ARM_TERN, "generate", shared / "fixtures" / "dense-head96",
                        "--prompt-ids", "5", "--cpu-mask", level], capture_output=True, timeout=120)
    assert r.returncode == 1
    assert f"'{level}' needs" in r.stderr.decode() and f"up to '{ARM_LEVELS[cpu][-1]}'" in r.stderr.decode()


@needs_arm
@pytest.mark.parametrize("quantization", ["none", "int8", "int4", "awq", "fp8"])
def test_every_arm_level_writes_the_shipped_models_text(monkeypatch, quantization):
    """A prompt of many rows, then single ones."""
    ids, extra = [i * 37 % 900 + 5 for i in range(45)], ["--quantization", quantization]
    want, _ = generate(ternlib.MODEL, ids, 12, dtype="bfloat16", logprobs=2, extra=extra)
    monkeypatch.setattr(ternlib, "TERN", ARM_TERN)
    for level in ARM_LEVELS["max"][1:]:
        out, _ = generate(ternlib.MODEL, ids, 12, dtype="bfloat16", logprobs=2, extra=[*extra, "--cpu-mask", level],
                          wrapper=(ARM, "-cpu", "max"), timeout=240)
        assert (out["text"], out["token_ids"]) == (want["text"], want["token_ids"]), level
        assert out["logprobs"] == want["logprobs"], level


@needs_arm
@pytest.mark.parametrize("cpu, level", [(cpu, level) for cpu in ("cortex-a72", "max") for level in ARM_LEVELS[cpu]])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_arm_machines_give_the_text_of_this_one(shared, monkeypatch, cpu, dtype, level):
    want = native(shared, dtype)
    monkeypatch.setattr(ternlib, "TERN", ARM_TERN)
    out, _ = generate(shared / "fixtures" / "dense-head96", IDS, 8, dtype=dtype, logprobs=2,
                      extra=["--cpu-mask", level], wrapper=(ARM, "-cpu", cpu), timeout=120)
    assert (out["token_ids"], out["logprobs"]) == (want["token_ids"], want["logprobs"])


@needs_arm
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kv", ["fp8_e4m3", "fp8_e5m2", "int8"])
@pytest.mark.parametrize("cpu", ["cortex-a72", "max"])
def test_arm_reads_an_8_bit_kv_cache_as_this_machine_does(shared, monkeypatch, kv, dtype, cpu):
    """The prompt is long enough for whole blocks of rows in attention, and for what is left over."""
    model, ids, extra = shared / "fixtures" / "dense-head96", [i * 37 % 900 + 5 for i in range(300)], \
        ["--kv-cache-dtype", kv]
    want, _ = generate(model, ids, 6, dtype=dtype, logprobs=2, extra=extra)
    monkeypatch.setattr(ternlib, "TERN", ARM_TERN)
    out, _ = generate(model, ids, 6, dtype=dtype, logprobs=2, extra=extra, wrapper=(ARM, "-cpu", cpu), timeout=240)
    assert (out["token_ids"], out["logprobs"]) == (want["token_ids"], want["logprobs"])


@needs_arm
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("cpu", ["cortex-a72", "neoverse-n1", "max"])
def test_arm_decodes_2_bit_weights_as_this_machine_does(monkeypatch, tmp_path, dtype, cpu):
    model, ids = tmp_path / "w2", IDS * 8
    r = ternlib.run("quantize", ternlib.MODEL, model, "--scheme", "w2", timeout=240)
    assert r.returncode == 0, r.stderr
    want, _ = generate(model, ids, 6, dtype=dtype, logprobs=2)
    monkeypatch.setattr(ternlib, "TERN", ARM_TERN)
    out, _ = generate(model, ids, 6, dtype=dtype, logprobs=2, wrapper=(ARM, "-cpu", cpu), timeout=240)
    assert (out["token_ids"], out["logprobs"]) == (want["token_ids"], want["logprobs"])
