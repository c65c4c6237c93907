# SPDX-License-Identifier: Apache-2.0
"""Activations quantized with scales of the file (input_scale): against the oracle's float64 arithmetic of the dequantized
weights, with the rounding of activations written here; every level gives the same bits; what isn't of use is refused."""
import json
import struct
import sys

import pytest
import ternlib
from ternlib import generate, run
from test_fixtures import golden, levels, prompt  # noqa: F401
from test_loading import config, copy, retensor

np = pytest.importorskip("numpy")
sys.path.insert(0, str(ternlib.SHARED / "oracle"))
O = pytest.importorskip("ernie_oracle", reason="needs the shared oracle")
F = O.F

TOGETHER = (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("self_attn.o_proj",),
            ("mlp.gate_proj", "mlp.up_proj"), ("mlp.down_proj",))
BASES = {"int8": ("dense-ct-w8a8", 127), "fp8 of rows": ("dense-ct-fp8", 448), "fp8 of tensors": ("dense-ct-fp8-tensor", 448),
         "fp8, not compressed-tensors": ("dense-ct-fp8-tensor", 448)}


def layer_scales(d, most, share):
    """stem -> scale: of the largest activation that the oracle sees, `share` of what it takes; the first of matrices that
    are computed together has the widest."""
    m = O.Model.load(str(d), "fp64")
    stems, seen = [s for s in m.w if s.endswith("_proj.weight")], {}

    def watch(stem):
        def scheme(x):
            seen[stem] = max(seen.get(stem, 0), float(np.abs(x).max()))
            return x
        return scheme
    for s in stems:
        s = s.removesuffix(".weight")
        F.ACTIVATION_SCHEMES[s] = watch(s)
        m.schemes[s] = s
    m.prompt_logits([5, 300, 77, 12, 640, 900, 33, 2])
    out = {}
    for stem, top in seen.items():
        place = next(g.index(stem.split(".", 3)[3]) for g in TOGETHER if stem.split(".", 3)[3] in g)
        out[stem] = np.float32(share * top / most * (1, 0.5, 0.75)[place])
    return out


def static(shared, path, base, share=0.6):
    """A copy of a fixture with activations of fixed scales -> (directory, scales that count)."""
    name, most = BASES[base]
    d = copy(shared, path, name)
    scales = layer_scales(d, most, share)

    def add(t):
        for stem, s in scales.items():
            bare = base == "fp8, not compressed-tensors"  # there a scale has no dimensions
            t[stem + ".input_scale"] = ("F32", [] if bare else [1], struct.pack("<f", s))
            if base == "int8":
                t[stem + ".input_zero_point"] = ("I8", [1], b"\0")
    retensor(d, add)
    q = json.loads((d / "config.json").read_text())["quantization_config"]
    if base == "fp8, not compressed-tensors":
        q = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
    else:
        q["config_groups"]["group_0"]["input_activations"].update(strategy="tensor", dynamic=False)
    config(d, quantization_config=q)
    return d, {s: max(scales[p] for g in TOGETHER for p in (s.rsplit(".", 2)[0] + "." + m for m in g)
                      if s.split(".", 3)[3] in g) for s in scales}


def oracle(d, scales):
    m = O.Model.load(str(d), "fp64")
    for stem, s in scales.items():
        s = float(s)
        if m.cfg.quant["quant_method"] == "compressed-tensors" and "int" in m.cfg.quant["format"]:
            F.ACTIVATION_SCHEMES[stem] = lambda x, s=s: np.clip(np.rint(x / s), -128, 127) * s
        else:
            F.ACTIVATION_SCHEMES[stem] = lambda x, s=s: F.e4m3_to_f32(
                F.f32_to_e4m3(np.clip(x / s, -448, 448).astype(np.float32))).astype(np.float64) * s
        m.schemes[stem] = stem
    return m


def log_probabilities(m, ids, made):
    logits = m.prompt_logits(list(ids) + made[:-1])[len(ids) - 1:].astype(np.float64)
    return logits[np.arange(len(made)), made] - O.logsumexp(logits)


@pytest.mark.parametrize("base", BASES)
def test_activations_take_the_scales_of_the_file(shared, tmp_path, base):
    d, scales = static(shared, tmp_path / "m", base)
    m, plain = oracle(d, scales), O.Model.load(str(d), "fp64")
    off, other = [], 0
    for name in ("p7", "p33"):
        ids = prompt(golden(shared, "dense-hf"), name)["ids"]
        out, _ = generate(d, ids, 12, logprobs=1, extra=["--quantization-inputs", "8"])
        got = np.array(out["logprobs"]["token_logprobs"])
        off += np.abs(got - log_probabilities(m, ids, out["token_ids"])).tolist()
        other = max(other, np.abs(got - log_probabilities(plain, ids, out["token_ids"])).max())
    # an activation half way between two codes may fall the other way in float32: one token in 24
    assert sorted(off)[-2] < 2e-4 and max(off) < 0.2 and other > 0.2, (off, other)


@pytest.mark.parametrize("base", BASES)
def test_every_level_and_both_ways_of_execution_give_the_same_bits(shared, tmp_path, levels, base):  # noqa: F811
    d, _ = static(shared, tmp_path / "m", base)
    ids = prompt(golden(shared, "dense-hf"), "p33")["ids"]
    got = [generate(d, ids, 8, dtype=dtype, logprobs=1, extra=["--quantization-inputs", "8", *more])[0]["logprobs"]
           for dtype in ("bfloat16", "float32") for more in [["--cpu-mask", level] for level in levels] + [["--enforce-eager"]]]
    half = len(got) // 2
    assert all(g == got[0] for g in got[:half]) and all(g == got[half] for g in got[half:])


def test_the_scales_are_said_and_survive_packing(shared, tmp_path):
    d, _ = static(shared, tmp_path / "m", "int8")
    for words, *flags in (("x int8 (scales of the file) in 8",), ("x bf16 in 8", "--quantization-inputs", "16"),
                          ("x fp32 in 8", "--dtype", "float32")):
        assert words in json.loads(run("info", d, "--json", *flags).stdout)["model"]["weight_formats"]
    assert run("quantize", d, tmp_path / "packed", "--pack").returncode == 0
    ids = prompt(golden(shared, "dense-hf"), "p17")["ids"]
    a, b = (generate(x, ids, 8, dtype="bfloat16", logprobs=1)[0]["logprobs"] for x in (d, tmp_path / "packed"))
    assert a == b
    dynamic = copy(shared, tmp_path / "dynamic", "dense-ct-w8a8")
    assert generate(dynamic, ids, 8, dtype="bfloat16", logprobs=1)[0]["logprobs"] != a


DOWN = "model.layers.1.mlp.down_proj."


def scale_of(label, shape, data):
    return lambda d: retensor(d, lambda t: t.__setitem__(DOWN + "input_scale", (label, shape, data)))


def group(d, **changes):
    q = json.loads((d / "config.json").read_text())["quantization_config"]
    q["config_groups"]["group_0"]["input_activations"].update(changes)
    config(d, quantization_config=q)


FAULTS = {
    "missing": (lambda d: retensor(d, lambda t: t.pop(DOWN + "input_scale")), "missing", DOWN + "input_scale"),
    "zero": (scale_of("F32", [1], struct.pack("<f", 0)), DOWN + "input_scale", "is 0"),
    "negative": (scale_of("F32", [1], struct.pack("<f", -1)), DOWN + "input_scale", "is -1"),
    "NaN": (scale_of("F32", [1], struct.pack("<f", float("nan"))), DOWN + "input_scale", "nan"),
    "infinite": (scale_of("F32", [1], struct.pack("<f", float("inf"))), DOWN + "input_scale", "inf"),
    "absurdly large": (scale_of("F32", [1], struct.pack("<f", 1e30)), DOWN + "input_scale", "1e+30"),
    "absurdly small": (scale_of("F32", [1], struct.pack("<f", 1e-30)), DOWN + "input_scale", "1e-30"),
    "subnormal": (scale_of("F32", [1], struct.pack("<f", 1e-40)), DOWN + "input_scale", "expected a scale"),
    "one of each input": (scale_of("F32", [352], struct.pack("<f", 1) * 352), DOWN + "input_scale", "[352]"),
    "whole numbers": (scale_of("I32", [1], bytes(4)), DOWN + "input_scale", "I32"),
    "a zero point": (lambda d: retensor(d, lambda t: t.__setitem__(DOWN + "input_zero_point", ("I8", [1], b"\3"))),
                     DOWN + "input_zero_point", "unsupported zero point"),
    "asymmetric": (lambda d: group(d, symmetric=False), "config.json", "input_activations.symmetric"),
    "of a token": (lambda d: group(d, strategy="token"), "config.json", "input_activations.strategy", "tensor"),
    "unused": (lambda d: group(d, dynamic=True, strategy="token"), "unknown tensor", "input_scale"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_scale_of_no_use_is_refused_in_one_line(shared, tmp_path, name):
    breaks, *words = FAULTS[name]
    d, _ = static(shared, tmp_path / "m", "int8")
    breaks(d)
    r = run("generate", d, "--prompt-ids", "5", "--max-tokens", 1)
    line = r.stderr.decode()
    assert r.returncode == 1 and r.stdout == b"" and len(line.splitlines()) == 1, line
    assert all(w in line for w in words), line


def test_blocks_have_no_static_activations(shared, tmp_path):
    d = copy(shared, tmp_path / "m", "dense-fp8-block")
    q = json.loads((d / "config.json").read_text())["quantization_config"]
    config(d, quantization_config={**q, "activation_scheme": "static"})
    r = run("generate", d, "--prompt-ids", "5")
    assert r.returncode == 1 and b"activation_scheme" in r.stderr and b"weight_block_size" in r.stderr
