# SPDX-License-Identifier: Apache-2.0
"""Tiny checkpoints against the outputs that another implementation (numpy, float32) stored for them.

float32 must match in every greedy id and within 5e-4 in log-probability; bf16 has sanity limits only. Within tern every
instruction-set level and both file layouts must give the same bytes.
"""
import json
import math
import struct

import pytest
import ternlib
from ternlib import generate

DENSE = ["dense-hf", "dense-hf-sharded", "dense-hf-untied", "dense-paddle", "dense-paddle-bf16label",
         "dense-paddle-untied", "dense-head96"]
PROMPTS = ["p1", "p7", "p16", "p17", "p33", "p130"]
LEVELS = ["scalar", "avx2", "avx512", "avx512bf16", "neon", "neondot", "neonbf16"]
TOLERANCE = 5e-4


def golden(shared, name):
    return json.loads((shared / "fixtures" / name / "golden.json").read_text())


def prompt(g, name):
    return next(p for p in g["prompts"] if p["name"] == name)


@pytest.fixture(scope="session")
def levels(shared):
    """The levels this machine has."""
    out = []
    for level in LEVELS:
        r = ternlib.run("generate", shared / "fixtures" / "dense-head96", "--prompt-ids", "5", "--max-tokens", 1,
                        "--temperature", 0, "--cpu-mask", level)
        if r.returncode == 0:
            out.append(level)
        else:
            assert r.returncode == 1 and len(r.stderr.splitlines()) == 1, r.stderr
            assert level.encode() in r.stderr or b"needs" in r.stderr, r.stderr
    assert "scalar" in out
    return out


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("which", PROMPTS)
def test_float32_greedy_ids_and_logprobs_equal_the_oracle(shared, name, which):
    p = prompt(golden(shared, name), which)
    out, doc = generate(shared / "fixtures" / name, p["ids"], len(p["greedy"]), logprobs=1)
    assert doc["prompt_token_ids"] == p["ids"]
    assert out["token_ids"] == p["greedy"]
    assert out["finish_reason"] == "length"
    got = out["logprobs"]["token_logprobs"]
    assert max(abs(a - b) for a, b in zip(got, p["logprobs"], strict=True)) < TOLERANCE


@pytest.mark.parametrize("name", DENSE)
def test_bf16_greedy_ids_equal_the_oracle_up_to_the_first_narrow_margin(shared, name):
    for p in golden(shared, name)["prompts"]:
        out, _ = generate(shared / "fixtures" / name, p["ids"], len(p["greedy"]), dtype="bfloat16", logprobs=1)
        sure = next((i for i, m in enumerate(p["margins"]) if m < 0.5), len(p["margins"]))
        assert out["token_ids"][:sure] == p["greedy"][:sure], p["name"]
        same = next((i for i, (a, b) in enumerate(zip(out["token_ids"], p["greedy"])) if a != b), len(p["greedy"]))
        for a, b in zip(out["logprobs"]["token_logprobs"][:same], p["logprobs"]):
            assert abs(a - b) < 1.4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("pair", [("dense-hf", "dense-paddle"), ("dense-hf-untied", "dense-paddle-untied")])
def test_paddle_and_hugging_face_files_give_the_same_bits(shared, pair, dtype):
    for p in golden(shared, pair[0])["prompts"]:
        a, b = (generate(shared / "fixtures" / n, p["ids"], 24, dtype=dtype, logprobs=5)[0] for n in pair)
        assert a["token_ids"] == b["token_ids"]
        assert a["logprobs"] == b["logprobs"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", DENSE)
def test_every_instruction_set_level_gives_the_same_output(shared, levels, name, dtype):
    g = golden(shared, name)
    for which in ("p7", "p130"):
        p = prompt(g, which)
        outs = {level: generate(shared / "fixtures" / name, p["ids"], 24, dtype=dtype, logprobs=5,
                                extra=["--cpu-mask", level])[0] for level in levels}
        first = outs[levels[0]]
        assert dtype == "bfloat16" or first["token_ids"] == p["greedy"]
        for level in levels[1:]:
            assert outs[level]["token_ids"] == first["token_ids"], level
            assert outs[level]["logprobs"] == first["logprobs"], level


@pytest.mark.parametrize("name", DENSE)
def test_eager_gives_the_same_bits_as_the_plan(shared, name):
    p = prompt(golden(shared, name), "p33")
    for dtype in ("float32", "bfloat16"):
        a = generate(shared / "fixtures" / name, p["ids"], 24, dtype=dtype, logprobs=5)[0]
        b = generate(shared / "fixtures" / name, p["ids"], 24, dtype=dtype, logprobs=5, extra=["--enforce-eager"])[0]
        assert (a["token_ids"], a["logprobs"]) == (b["token_ids"], b["logprobs"])


@pytest.fixture(scope="session", params=DENSE)
def scored(request, shared):
    """One server per fixture in float32, with its golden."""
    name = request.param
    with ternlib.Server(shared / "fixtures" / name, ["--dtype", "float32", "--max-model-len", 512,
                                                     "--kv-cache-memory-bytes", "64M"]) as s:
        yield s, golden(shared, name)


def test_float32_top_20_after_each_prompt_equals_the_oracle(scored):
    s, g = scored
    for p in g["prompts"]:
        d = s.completion(p["ids"], max_tokens=1, temperature=0, logprobs=20, ignore_eos=True,
                         return_tokens_as_token_ids=True)
        top = d["choices"][0]["logprobs"]["top_logprobs"][0]
        want = {f"token_id:{i}": x - p["last"]["logsumexp"]
                for i, x in zip(p["last"]["top_ids"], p["last"]["top_logits"])}
        assert set(top) == set(want)
        for k, v in want.items():
            assert abs(top[k] - v) < TOLERANCE, k


def test_float32_every_position_of_a_prompt_equals_the_oracle(scored):
    """The fingerprint's argmax and max - logsumexp at all positions of p33, read from prompt_logprobs."""
    s, g = scored
    rows = g["fingerprint"]["rows"]
    ids = prompt(g, g["fingerprint"]["prompt"])["ids"]
    d = s.completion(ids, max_tokens=1, temperature=0, prompt_logprobs=1)
    got = d["choices"][0]["prompt_logprobs"]
    assert got[0] is None and len(got) == len(ids)
    for row, at in zip(rows, got[1:]):
        best = [(int(k), v) for k, v in at.items() if v["rank"] == 1]
        assert len(best) == 1 and best[0][0] == row[0]
        assert abs(best[0][1]["logprob"] - (row[1] - row[2])) < TOLERANCE


def test_float32_perplexity_equals_the_oracle(scored):
    s, g = scored
    ids = g["perplexity"]["ids"]
    d = s.completion(ids, max_tokens=1, temperature=0, prompt_logprobs=0)
    got = d["choices"][0]["prompt_logprobs"]
    nll = [-at[str(i)]["logprob"] for i, at in zip(ids[1:], got[1:])]
    for mine, theirs in zip(nll, g["perplexity"].get("nll", nll)):
        assert abs(mine - theirs) < TOLERANCE
    ppl = math.exp(sum(nll) / len(nll))
    assert abs(ppl / g["perplexity"]["ppl"] - 1) < 1e-4


@pytest.mark.parametrize("name", DENSE)
def test_bf16_stays_inside_the_limits_of_the_oracle(shared, name):
    g = golden(shared, name)
    with ternlib.Server(shared / "fixtures" / name, ["--max-model-len", 512, "--kv-cache-memory-bytes", "64M"]) as s:
        ids = g["perplexity"]["ids"]
        got = s.completion(ids, max_tokens=1, temperature=0, prompt_logprobs=0)["choices"][0]["prompt_logprobs"]
        nll = [-at[str(i)]["logprob"] for i, at in zip(ids[1:], got[1:])]
        assert abs(math.exp(sum(nll) / len(nll)) / g["perplexity"]["ppl"] - 1) < 0.03
        ids = prompt(g, g["fingerprint"]["prompt"])["ids"]
        got = s.completion(ids, max_tokens=1, temperature=0, prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
        diff = []
        for row, at in zip(g["fingerprint"]["rows"], got[1:]):
            if str(row[0]) in at:
                diff.append(at[str(row[0])]["logprob"] - (row[1] - row[2]))
        assert len(diff) >= 0.87 * (len(ids) - 1)
        assert max(map(abs, diff)) < 1.4
        assert math.sqrt(sum(d * d for d in diff) / len(diff)) < 0.18


def test_an_unknown_level_is_refused_with_the_names_that_would_do(shared):
    r = ternlib.run("generate", shared / "fixtures" / "dense-head96", "-p", "a", "--cpu-mask", "sse9")
    assert r.returncode in (1, 2)
    assert b"sse9" in r.stderr and b"scalar" in r.stderr and b"avx2" in r.stderr


def convert(tensors, kind):
    """The same weights as F16 or F32 where that is exact."""
    out = {}
    for name, (dtype, shape, data) in tensors.items():
        assert dtype == "BF16"
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        if kind == "F32":
            out[name] = ("F32", shape, bytes(wide))
        else:
            n = len(data) // 2
            out[name] = ("F16", shape, struct.pack(f"<{n}e", *struct.unpack(f"<{n}f", wide)))
    return out


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_weights_stored_as_f32_or_f16_load(shared, tmp_path, kind):
    """F32 copies of bf16 weights are exact: same bits out. F16 rounds the smallest ones: close."""
    src = shared / "fixtures" / "dense-hf"
    for f in src.iterdir():
        if f.name not in ("model.safetensors", "golden.json"):
            (tmp_path / f.name).write_bytes(f.read_bytes())
    meta, tensors = ternlib.read_safetensors(src / "model.safetensors")
    ternlib.write_safetensors(tmp_path / "model.safetensors", convert(tensors, kind), meta)
    p = prompt(golden(shared, "dense-hf"), "p17")
    a = generate(src, p["ids"], 24, logprobs=1)[0]
    b = generate(tmp_path, p["ids"], 24, logprobs=1)[0]
    assert b["token_ids"] == p["greedy"]
    if kind == "F32":
        assert a["logprobs"] == b["logprobs"]
    else:
        for x, y in zip(b["logprobs"]["token_logprobs"], p["logprobs"]):
            assert abs(x - y) < TOLERANCE
