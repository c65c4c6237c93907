# SPDX-License-Identifier: Apache-2.0
"""--quantization and --quantization-head on 16-bit and 32-bit GGUF files, which are made here of safetensors fixtures: the
same numbers in either file give the same packed bytes and the same logits, bit for bit. What a GGUF file holds in blocks
is refused by its tensor's name, unless it is an embedding or a head, which stay as they are."""
import array
import json
import struct

import pytest
from ternlib import generate, read_safetensors, run, write_safetensors
from test_loading import config, copy

IDS = [688, 389, 146, 1009, 152, 764, 1034]
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "q_proj": "attn_q", "k_proj": "attn_k",
         "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
         "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
KINDS = {"F32": 0, "F16": 1, "Q8_0": 8, "BF16": 30}


def gguf_name(name):
    parts = name.split(".")
    return (f"blk.{parts[2]}." if "layers" in parts else "") + NAMES[parts[-2]] + ".weight"


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def write_gguf(path, c, tensors):
    """tensors: name of Hugging Face -> (kind, shape, bytes)."""
    head_dim = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    ints = {"block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
            "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
            "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
            "attention.key_length": head_dim, "attention.value_length": head_dim, "rope.dimension_count": head_dim,
            "vocab_size": c["vocab_size"]}
    floats = {"attention.layer_norm_rms_epsilon": c["rms_norm_eps"], "rope.freq_base": c["rope_theta"]}
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1 + len(ints) + len(floats))
    out += text("general.architecture") + struct.pack("<I", 8) + text("ernie4_5")
    for fields, kind, code in ((ints, 4, "I"), (floats, 6, "f")):
        for key, v in fields.items():
            out += text("ernie4_5." + key) + struct.pack("<I" + code, kind, v)
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        out += text(gguf_name(name)) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], KINDS[kind], len(data))
        data += raw + bytes(-len(raw) % 32)
    path.write_bytes(out + bytes(-len(out) % 32) + data)
    return path


def floats_of(raw):
    """bf16 bytes as an array of float32."""
    out = array.array("f", bytes(2 * len(raw)))
    memoryview(out).cast("B")[2::4] = raw[0::2]
    memoryview(out).cast("B")[3::4] = raw[1::2]
    return out


def stored(raw, kind):
    """A bf16 matrix in another type: F16 rounds and clips, which either file then has."""
    if kind == "BF16":
        return raw
    x = floats_of(raw)
    return x.tobytes() if kind == "F32" else struct.pack(f"<{len(x)}e", *(max(-60000.0, min(v, 60000.0)) for v in x))


def q8_0(raw):
    out, x = b"", floats_of(raw)
    for i in range(0, len(x), 32):
        s = max(map(abs, x[i:i + 32])) / 127 or 1.0
        out += struct.pack("<e32b", s, *(max(-127, min(127, round(v / s))) for v in x[i:i + 32]))
    return out


def both(shared, tmp_path, base, kind):
    """The fixture as a directory and as a GGUF file with matrices of this type; norms are F32 there, as converters write."""
    d = copy(shared, tmp_path / "dir", base)
    meta, tensors = read_safetensors(d / "model.safetensors")
    matrices = {n: (kind, shape, stored(raw, kind)) for n, (_, shape, raw) in tensors.items() if len(shape) == 2}
    norms = {n: ("F32", shape, stored(raw, "F32")) for n, (_, shape, raw) in tensors.items() if len(shape) == 1}
    write_safetensors(d / "model.safetensors", {n: matrices.get(n, t) for n, t in tensors.items()}, meta)
    config(d, torch_dtype={"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[kind])
    c = json.loads((d / "config.json").read_text())
    return d, write_gguf(tmp_path / "model.gguf", c, {n: {**matrices, **norms}[n] for n in tensors})


def bits(d, model, *flags):
    r = run("align", model, "--tokenizer", d, "--tokens", 8, "--json", *flags)
    assert r.returncode == 0, r.stdout.decode() + r.stderr.decode()
    doc = json.loads(r.stdout)
    return doc["numerics_id"], doc["logits_hash"], [p["token_ids"] for p in doc["prompts"]]


WAYS = [("none", "16"), ("int8", "16"), ("int8", "8"), ("int4", "4"), ("int4", "8"), ("awq", "16"), ("fp8", "8"), ("none", "4")]


@pytest.mark.parametrize("kind", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("base", ["dense-hf", "dense-hf-untied", "dense-head96"])
def test_quantizing_while_loading_gives_the_logits_of_the_directory(shared, tmp_path, base, kind):
    d, gguf = both(shared, tmp_path, base, kind)
    seen = set()
    for method, head in WAYS:
        for dtype in ("bfloat16", "float32") if base == "dense-hf" else ("bfloat16",):
            flags = ["-q", method, "--quantization-head", head, "--dtype", dtype]
            of_gguf = bits(d, gguf, *flags)
            assert of_gguf == bits(d, d, *flags), flags
            seen.add(of_gguf[0])
    assert len(seen) == len(WAYS) * (2 if base == "dense-hf" else 1)


def test_every_instruction_set_level_of_a_gguf_file_agrees(shared, tmp_path):
    d, gguf = both(shared, tmp_path, "dense-hf", "F16")
    for method in ("int8", "int4", "awq", "fp8"):
        a, b = (generate(m, IDS, 8, dtype="bfloat16", logprobs=3, extra=["-q", method, "--tokenizer", d, *more])[0]
                for m, more in ((d, ["--cpu-mask", "scalar"]), (gguf, [])))
        assert a["token_ids"] == b["token_ids"] and a["logprobs"] == b["logprobs"]


def test_info_counts_the_bytes_of_the_codes(shared, tmp_path):
    d, gguf = both(shared, tmp_path, "dense-hf", "BF16")
    for method in ("int8", "int4", "awq", "fp8"):
        a, b = (json.loads(run("info", m, "--json", "-q", method, "--quantization-head", "8", "--tokenizer", d).stdout)["model"]
                for m in (d, gguf))
        same = ("quantization", "weight_formats", "packed_weight_bytes", "weight_bytes_per_token")
        assert {k: a[k] for k in same} == {k: b[k] for k in same}
        assert b["layout"] == "GGUF" and b["share_of_16_bit"] < 0.6


def test_a_packed_gguf_file_holds_what_was_quantized(shared, tmp_path):
    d, gguf = both(shared, tmp_path, "dense-hf", "BF16")
    r = run("quantize", gguf, tmp_path / "packed", "--pack", "-q", "int4", "--quantization-head", "8", "--tokenizer", d)
    assert r.returncode == 0, r.stderr.decode()
    assert bits(d, tmp_path / "packed") == bits(d, d, "-q", "int4", "--quantization-head", "8")
    r = run("quantize", gguf, tmp_path / "as-it-is", "--pack", "--tokenizer", d)
    assert r.returncode == 0, r.stderr.decode()
    r = run("info", tmp_path / "as-it-is", "-q", "int8")
    line = r.stderr.decode()
    assert r.returncode == 1 and "quantize and pack the original" in line and len(line.splitlines()) == 1, line


@pytest.mark.parametrize("kind, scheme", [
    ("BF16", "--scheme int8 --head 8"), ("F32", "--scheme int8"), ("F16", "--scheme int4 --group-size 32 --head 4"),
    ("BF16", "--scheme int4 --group-size 32 --format awq"), ("BF16", "--scheme fp8"), ("F16", "--scheme w2 --head 8")])
def test_a_quantized_copy_of_a_gguf_file_has_the_tensors_of_the_directorys(shared, tmp_path, kind, scheme):
    d, gguf = both(shared, tmp_path, "dense-hf", kind)
    copies = []
    for model, out in ((d, "of-dir"), (gguf, "of-gguf")):
        r = run("quantize", model, tmp_path / out, *scheme.split(), "--tokenizer", d)
        assert r.returncode == 0, r.stderr.decode()
        c = json.loads((tmp_path / out / "config.json").read_text())
        tensors = read_safetensors(tmp_path / out / "model.safetensors")[1]
        norms = {n for n in tensors if "norm" in n}  # F32 in GGUF files; the others are what is compared
        assert len(norms) == 7 and len(tensors) > 20
        copies.append((c["quantization_config"], {n: t for n, t in tensors.items() if n not in norms}))
    assert copies[0] == copies[1]


def blocks_in(shared, tmp_path, *parts):
    """dense-hf as a BF16 file but for the matrices with these words in their names, which are Q8_0."""
    d, _ = both(shared, tmp_path, "dense-hf", "BF16")
    tensors = {n: ("Q8_0", shape, q8_0(raw)) if any(p in n for p in parts) and len(shape) == 2 else (kind, shape, raw)
               for n, (kind, shape, raw) in read_safetensors(d / "model.safetensors")[1].items()}
    return d, write_gguf(tmp_path / "mixed.gguf", json.loads((d / "config.json").read_text()), tensors)


def refused(model, d, *flags):
    r = run("generate", model, "--tokenizer", d, "--prompt-ids", "5", "--max-tokens", 1, *flags)
    line = r.stderr.decode()
    assert r.returncode == 1 and r.stdout == b"" and len(line.splitlines()) == 1, line
    return line


@pytest.mark.parametrize("asked", ["int8", "int4", "awq", "fp8"])
def test_a_matrix_of_blocks_is_refused_by_name(shared, tmp_path, asked):
    d, gguf = blocks_in(shared, tmp_path, "layers.1.mlp.down_proj")
    line = refused(gguf, d, "-q", asked)
    assert "--quantization" in line and "blk.1.ffn_down.weight" in line and "found Q8_0" in line, line
    line = refused(shared / "fixtures" / "dense-gguf-q4_0" / "model.gguf", d, "-q", asked)
    assert "blk.0.attn_q.weight" in line and "found Q4_0" in line, line
    assert generate(gguf, IDS, 2, extra=["--tokenizer", d])[0]["token_ids"]  # as it is, it is read


def test_other_methods_are_not_what_a_gguf_file_holds(shared, tmp_path):
    d, gguf = both(shared, tmp_path, "dense-hf", "BF16")
    for asked in ("gptq", "compressed-tensors"):
        line = refused(gguf, d, "-q", asked)
        assert "expected gguf (what the file holds)" in line and asked in line, line


def test_an_embedding_of_blocks_stays_as_it_is(shared, tmp_path):
    d, gguf = blocks_in(shared, tmp_path, "embed_tokens")
    for head in ("16", "8", "4"):
        r = run("info", gguf, "--json", "-q", "int4", "--quantization-head", head, "--tokenizer", d)
        formats = json.loads(r.stdout)["model"]["weight_formats"]
        assert formats.startswith("int4 (groups of 64, bf16 scales, zero points) x int8 in 12"), formats
        assert formats.endswith("int8 (groups of 32, f16 scales) x int8 in 1"), formats
    assert generate(gguf, IDS, 2, dtype="bfloat16", extra=["-q", "int4", "--tokenizer", d])[0]["token_ids"]
