# SPDX-License-Identifier: Apache-2.0
"""tern quantize: what it writes is read back, is the arithmetic of quantizing while loading where that is the same, and
holds what a decoder written a second time here finds in the bytes."""
import array
import json
import math
import os
import pathlib
import resource
import signal
import struct
import subprocess

import pytest
from ternlib import MODEL, SLOW, SOURCE, TERN, generate, read_safetensors, run
from test_loading import config, copy, retensor

IDS = [688, 389, 146, 1009, 152, 764, 1034]
CHECKED = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj")
SCHEMES = {
    "int8": ["--scheme", "int8"],
    "int4": ["--scheme", "int4", "--group-size", "32"],
    "int4-plain": ["--scheme", "int4", "--group-size", "32", "--no-scale-search"],
    "awq": ["--scheme", "int4", "--format", "awq", "--group-size", "32"],
    "awq-plain": ["--scheme", "int4", "--format", "awq", "--group-size", "32", "--no-scale-search"],
    "fp8": ["--scheme", "fp8", "--ignore", "none"],
}


def quantize(model, out, *args):
    r = run("quantize", model, out, *args, "--json", timeout=120)
    assert r.returncode == 0, r.stderr.decode()
    return json.loads(r.stdout)


def refused(model, out, *args, code=1):
    r = run("quantize", model, out, *args)
    line = r.stderr.decode().strip()
    assert r.returncode == code, (r.returncode, line)
    assert code == 2 or len(line.splitlines()) == 1
    left = [p.name for p in out.parent.iterdir() if p.name.startswith(out.name)]
    assert not left or left == [out.name] and "exists already" in line, left
    return line.splitlines()[-1]


# ---- a second decoder ----

def half(bits):
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def floats(dtype, data):
    if dtype == "F32":
        return list(array.array("f", data))
    words = array.array("H", data)
    if dtype == "F16":
        return [half(w) for w in words]
    return list(array.array("f", array.array("I", [w << 16 for w in words]).tobytes()))


def e4m3(code):
    e, m = code >> 3 & 15, code & 7
    x = m / 8 * 2.0 ** -6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
    return -x if code & 128 else x


AWQ = [0, 2, 4, 6, 1, 3, 5, 7]  # column of each nibble


def matrix(tensors, layer, group=32, steps=None):
    """Rows of floats, whatever the layout; steps: also the step of every element."""
    def get(suffix):
        return tensors[f"{layer}.{suffix}"]

    def scales(suffix):
        return floats(get(suffix)[0], get(suffix)[2])

    if f"{layer}.qweight" in tensors:
        (cols, words), z = get("qweight")[1], array.array("I", get("qzeros")[2])
        w, s, rows = array.array("I", get("qweight")[2]), scales("scales"), words * 8
        out = [[0.0] * cols for _ in range(rows)]
        for j in range(cols):
            for i in range(words):
                for k in range(8):
                    r, g = i * 8 + AWQ[k], j // group
                    q = (w[j * words + i] >> 4 * k & 15) - (z[g * words + i] >> 4 * k & 15)
                    out[r][j] = q * s[g * rows + r]
        return out
    if f"{layer}.weight_packed" in tensors:
        rows, cols = struct.unpack("<2q", get("weight_shape")[2])
        w, s = array.array("I", get("weight_packed")[2]), scales("weight_scale")
        return [[((w[r * (cols // 8) + j // 8] >> 4 * (j % 8) & 15) - 8) * s[r * (cols // group) + j // group]
                 for j in range(cols)] for r in range(rows)]
    dtype, (rows, cols), data = get("weight")
    if dtype in ("BF16", "F16", "F32"):
        x = floats(dtype, data)
        return [x[r * cols:(r + 1) * cols] for r in range(rows)]
    value = [(c ^ 128) - 128 if dtype == "I8" else e4m3(c) for c in range(256)]
    if f"{layer}.weight_scale_inv" in tensors:
        s, n = scales("weight_scale_inv"), -(-cols // 128)
        return [[value[data[r * cols + j]] * s[r // 128 * n + j // 128] for j in range(cols)] for r in range(rows)]
    s = scales("weight_scale")
    return [[value[data[r * cols + j]] * s[r] for j in range(cols)] for r in range(rows)]


def relative(a, b):
    error = sum((x - y) ** 2 for r, q in zip(a, b) for x, y in zip(r, q))
    return math.sqrt(error / sum(x * x for r in a for x in r))


# ---- what is written ----

@pytest.fixture(scope="module")
def written(shared, tmp_path_factory):
    root, reports = tmp_path_factory.mktemp("quantize"), {}
    for name, args in SCHEMES.items():
        reports[name] = quantize(shared / "fixtures" / "dense-hf", root / name, *args)
    return root, reports


@pytest.mark.parametrize("name", SCHEMES)
def test_the_bytes_decode_to_the_weights_with_the_error_that_is_printed(shared, written, name):
    root, reports = written
    before = read_safetensors(shared / "fixtures" / "dense-hf" / "model.safetensors")[1]
    after = read_safetensors(root / name / "model.safetensors")[1]
    printed = {m["name"]: m for m in reports[name]["matrices"]}
    limit = {"int8": 0.02, "fp8": 0.04}.get(name, 0.16)
    for layer in CHECKED:
        a, b = matrix(before, layer), matrix(after, layer)
        assert (printed[layer]["rows"], printed[layer]["cols"]) == (len(a), len(a[0]))
        error = relative(a, b)
        assert error == pytest.approx(printed[layer]["relative_error"], rel=1e-4)
        assert 0 < error < limit, (layer, error)


def test_searching_for_scales_makes_the_error_smaller(written):
    reports = written[1]
    for name in ("int4", "awq"):
        found, plain = reports[name], reports[name + "-plain"]
        assert found["relative_error"] < 0.97 * plain["relative_error"]
        assert all(a["relative_error"] <= b["relative_error"] for a, b in zip(found["matrices"], plain["matrices"]))


@pytest.mark.parametrize("name, other", [("int8", "dense-ct-w8a8"), ("int4", "dense-ct-w4a16"), ("awq", "dense-awq"),
                                         ("fp8", "dense-ct-fp8")])
def test_tensors_have_the_names_types_and_shapes_of_files_that_others_wrote(shared, written, name, other):
    def shapes(path):
        return {k: ("scale" if "scale" in k else t[0], tuple(t[1]))
                for k, t in read_safetensors(path / "model.safetensors")[1].items() if "_proj." in k and "layers.2." not in k}
    assert shapes(written[0] / name) == shapes(shared / "fixtures" / other)


@pytest.mark.parametrize("name", SCHEMES)
def test_embedding_norms_and_other_files_keep_their_bytes(shared, written, name):
    source, out = shared / "fixtures" / "dense-hf", written[0] / name
    before, after = (read_safetensors(d / "model.safetensors") for d in (source, out))
    assert after[0] == {"format": "pt"}
    plain = [k for k in before[1] if "_proj." not in k]
    assert plain and all(after[1][k] == tuple(before[1][k]) for k in plain)
    for f in ("tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        assert (out / f).read_bytes() == (source / f).read_bytes()
    old, new = (json.loads((d / "config.json").read_text()) for d in (source, out))
    assert new.pop("quantization_config")["quant_method"] == ("awq" if "awq" in name else "compressed-tensors")
    assert new.pop("tie_word_embeddings") == old.pop("tie_word_embeddings", True)
    assert new == old
    assert sorted(p.name for p in out.iterdir()) == sorted(
        p.name for p in source.iterdir() if p.name != "golden.json" or (out / p.name).exists())


# ---- read back ----

@pytest.mark.parametrize("args, online", [
    (["--scheme", "int8"], "int8"),
    (["--scheme", "int4", "--format", "awq", "--no-scale-search"], "int4"),
    (["--scheme", "fp8", "--format", "fp8", "--ignore", "none"], "fp8"),
])
def test_the_directory_gives_the_bits_of_quantizing_while_loading(tmp_path, args, online):
    quantize(MODEL, tmp_path / "out", *args)
    file, _ = generate(tmp_path / "out", IDS, 24, dtype="bfloat16", logprobs=5)
    loaded, _ = generate(MODEL, IDS, 24, dtype="bfloat16", logprobs=5, extra=["-q", online])
    assert file["token_ids"] == loaded["token_ids"] and file["logprobs"] == loaded["logprobs"]


@pytest.mark.parametrize("name", SCHEMES)
def test_the_directory_is_the_model_of_the_dequantized_weights(shared, written, tmp_path, name):
    """float32 with activations as they are: the same greedy tokens and log-probabilities as a plain file of the numbers
    that the second decoder reads."""
    d = copy(shared, tmp_path / "plain")
    config(d, torch_dtype="float32")
    after = read_safetensors(written[0] / name / "model.safetensors")[1]

    def replace(tensors):
        for k in [k for k in tensors if "_proj." in k]:
            rows = matrix(after, k[:-len(".weight")])
            tensors[k] = ("F32", [len(rows), len(rows[0])], array.array("f", [x for r in rows for x in r]).tobytes())
    retensor(d, replace)
    a, _ = generate(written[0] / name, IDS, 8, logprobs=3)
    b, _ = generate(d, IDS, 8, logprobs=3)
    assert a["token_ids"] == b["token_ids"]
    assert a["logprobs"]["token_logprobs"] == pytest.approx(b["logprobs"]["token_logprobs"], abs=2e-4)


@pytest.mark.parametrize("layout", ["dense-hf", "dense-hf-untied", "dense-hf-sharded", "dense-paddle", "dense-paddle-untied",
                                    "dense-paddle-bf16label"])
def test_every_layout_becomes_a_hugging_face_directory_with_the_same_numbers(shared, tmp_path, layout):
    source = shared / "fixtures" / layout
    quantize(source, tmp_path / "out", "--scheme", "int8")
    a, _ = generate(tmp_path / "out", IDS, 8, dtype="bfloat16", logprobs=3)
    b, _ = generate(source, IDS, 8, dtype="bfloat16", logprobs=3, extra=["-q", "int8"])
    assert a["token_ids"] == b["token_ids"] and a["logprobs"] == b["logprobs"]
    names = read_safetensors(tmp_path / "out" / "model.safetensors")[1]
    assert all(k.startswith("model.") or k == "lm_head.weight" for k in names)
    assert ("lm_head.weight" in names) == (not json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"])


def plain_gguf(path, out):
    """A Q8_0 file as one of F32: fields as they are, matrices decoded."""
    raw, at = path.read_bytes(), 24
    n_tensors, n_fields = struct.unpack_from("<2Q", raw, 8)
    size = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def text(at):
        n, = struct.unpack_from("<Q", raw, at)
        return at + 8 + n

    def value(kind, at):
        if kind == 8:
            return text(at)
        if kind != 9:
            return at + size[kind]
        item, n = struct.unpack_from("<IQ", raw, at)
        at += 12
        for _ in range(n):
            at = value(item, at)
        return at
    for _ in range(n_fields):
        at = text(at)
        at = value(struct.unpack_from("<I", raw, at)[0], at + 4)
    fields, infos, data = raw[24:at], [], b""
    for _ in range(n_tensors):
        end = text(at)
        name, n_dims = raw[at:end], struct.unpack_from("<I", raw, end)[0]
        dims = struct.unpack_from(f"<{n_dims}Q", raw, end + 4)
        kind, offset = struct.unpack_from("<IQ", raw, end + 4 + 8 * n_dims)
        at = end + 16 + 8 * n_dims
        infos.append((name, dims, kind, offset))
    base, head = (at + 31) // 32 * 32, b""
    for name, dims, kind, offset in infos:
        n = math.prod(dims)
        if kind == 8:
            x = array.array("f")
            for b in range(n // 32):
                s, *q = struct.unpack_from("<e32b", raw, base + offset + 34 * b)
                x.extend(s * v for v in q)
            body = x.tobytes()
        else:
            assert kind == 0
            body = raw[base + offset:base + offset + 4 * n]
        head += name + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, len(data))
        data += body + bytes(-len(body) % 32)
    start = raw[:8] + struct.pack("<2Q", n_tensors, n_fields) + fields + head
    out.write_bytes(start + bytes(-len(start) % 32) + data)


def test_a_gguf_file_becomes_a_directory_with_the_tokenizer_that_is_named(shared, tmp_path):
    plain_gguf(shared / "fixtures" / "dense-gguf-q8_0" / "model.gguf", tmp_path / "plain.gguf")
    assert "--tokenizer DIR" in refused(tmp_path / "plain.gguf", tmp_path / "out", "--scheme", "int8")
    line = refused(tmp_path / "plain.gguf", tmp_path / "out", "--scheme", "int8", "--tokenizer", tmp_path / "plain.gguf")
    assert "--tokenizer DIR" in line and "plain.gguf" in line
    for out, args in (("out", []), ("kept", ["--ignore", "model.layers.0", "model.layers.1"])):
        quantize(tmp_path / "plain.gguf", tmp_path / out, "--scheme", "int8", "--tokenizer", shared / "fixtures" / "dense-hf", *args)
        assert (tmp_path / out / "tokenizer.model").exists()
    want, _ = generate(tmp_path / "plain.gguf", IDS, 8, logprobs=3)
    kept, _ = generate(tmp_path / "kept", IDS, 8, logprobs=3)
    assert kept["token_ids"] == want["token_ids"] and kept["logprobs"] == want["logprobs"]
    tensors = read_safetensors(tmp_path / "out" / "model.safetensors")[1]
    plain = read_safetensors(tmp_path / "kept" / "model.safetensors")[1]
    for layer in CHECKED:
        assert tensors[layer + ".weight"][0] == "I8" and plain[layer + ".weight"][0] == "F32"
        assert 0 < relative(matrix(plain, layer), matrix(tensors, layer)) < 0.02


# ---- embedding and head ----

HEADS = {
    "int8-8": ["--scheme", "int8", "--head", "8"],
    "int8-4": ["--scheme", "int8", "--head", "4"],
    "int4-8": ["--scheme", "int4", "--group-size", "32", "--head", "8"],
    "int4-4": ["--scheme", "int4", "--group-size", "32", "--head", "4"],
    "fp8-8": ["--scheme", "fp8", "--ignore", "none", "--head", "8"],
    "fp8-4": ["--scheme", "fp8", "--ignore", "none", "--head", "4"],
}


@pytest.mark.parametrize("base", ["dense-hf", "dense-hf-untied"])
@pytest.mark.parametrize("name", HEADS)
def test_a_quantized_embedding_and_head_are_the_dequantized_ones(shared, tmp_path, name, base):
    """The same greedy tokens and log-probabilities as a plain file of the numbers that the second decoder reads; a tied
    matrix is in the file once."""
    out, tied = tmp_path / "out", base == "dense-hf"
    report = quantize(shared / "fixtures" / base, out, *HEADS[name])
    after = read_safetensors(out / "model.safetensors")[1]
    layers = ["model.embed_tokens"] + ([] if tied else ["lm_head"])
    assert [k for k in after if "lm_head" in k] == [] if tied else True
    assert {m["name"] for m in report["matrices"] if m["quantized"]} >= set(layers)
    d = copy(shared, tmp_path / "plain", base)
    config(d, torch_dtype="float32")

    def replace(tensors):
        for k in [k for k in tensors if "_proj." in k or k[:-len(".weight")] in layers]:
            rows = matrix(after, k[:-len(".weight")])
            tensors[k] = ("F32", [len(rows), len(rows[0])], array.array("f", [x for r in rows for x in r]).tobytes())
    retensor(d, replace)
    a, _ = generate(out, IDS, 8, logprobs=3)
    b, _ = generate(d, IDS, 8, logprobs=3)
    assert a["token_ids"] == b["token_ids"]
    assert a["logprobs"]["token_logprobs"] == pytest.approx(b["logprobs"]["token_logprobs"], abs=2e-4)


@pytest.mark.parametrize("base", ["dense-hf", "dense-hf-untied"])
@pytest.mark.parametrize("name", HEADS)
def test_with_a_quantized_head_the_plan_has_the_bits_of_eager_execution(shared, tmp_path, name, base):
    quantize(shared / "fixtures" / base, tmp_path / "out", *HEADS[name])
    r = run("align", tmp_path / "out", "--tokens", 8, timeout=120)
    assert r.returncode == 0, r.stdout.decode() + r.stderr.decode()
    scheme, bits = HEADS[name][1], HEADS[name][-1]
    r = run("align", shared / "fixtures" / base, "-q", {"int4": "int8"}.get(scheme, scheme), "--quantization-head", bits,
            "--tokens", 8, timeout=120)
    assert r.returncode == 0, r.stdout.decode() + r.stderr.decode()


def test_an_int8_head_in_a_file_has_the_bits_of_quantizing_while_loading(tmp_path):
    quantize(MODEL, tmp_path / "out", "--scheme", "int8", "--head", "8")
    file, _ = generate(tmp_path / "out", IDS, 24, dtype="bfloat16", logprobs=5)
    loaded, _ = generate(MODEL, IDS, 24, dtype="bfloat16", logprobs=5, extra=["-q", "int8", "--quantization-head", 8])
    assert file["token_ids"] == loaded["token_ids"] and file["logprobs"] == loaded["logprobs"]
    plain, _ = generate(MODEL, IDS, 24, dtype="bfloat16", logprobs=5, extra=["-q", "int8"])
    assert file["logprobs"] != plain["logprobs"]


@pytest.fixture(scope="module")
def shapes_of_03b(tmp_path_factory):
    """The sizes of ERNIE-4.5-0.3B around a file of holes: sizes are read, weights are not."""
    d = tmp_path_factory.mktemp("shapes")
    h, i, n, v, q, kv = 1024, 3072, 18, 103424, 2048, 256
    c = json.loads((pathlib.Path(MODEL) / "config.json").read_text())
    c.update(hidden_size=h, intermediate_size=i, num_hidden_layers=n, vocab_size=v, num_attention_heads=16,
             num_key_value_heads=2, head_dim=128, max_position_embeddings=131072)
    (d / "config.json").write_text(json.dumps(c))
    for f in ("tokenizer.model", "tokenizer_config.json"):
        (d / f).write_bytes((pathlib.Path(MODEL) / f).read_bytes())
    shapes = {"model.embed_tokens.weight": [v, h], "model.norm.weight": [h]}
    for k in range(n):
        p = f"model.layers.{k}."
        shapes |= {p + "input_layernorm.weight": [h], p + "post_attention_layernorm.weight": [h],
                   p + "self_attn.q_proj.weight": [q, h], p + "self_attn.k_proj.weight": [kv, h],
                   p + "self_attn.v_proj.weight": [kv, h], p + "self_attn.o_proj.weight": [h, q],
                   p + "mlp.gate_proj.weight": [i, h], p + "mlp.up_proj.weight": [i, h], p + "mlp.down_proj.weight": [h, i]}
    header, at = {}, 0
    for k, s in shapes.items():
        header[k] = {"dtype": "BF16", "shape": s, "data_offsets": [at, at + 2 * math.prod(s)]}
        at += 2 * math.prod(s)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(d / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
    return d


@pytest.mark.parametrize("method, head, least, most", [
    ("none", 16, 100, 100), ("int8", 16, 60, 66), ("int8", 8, 49, 51), ("fp8", 16, 60, 67), ("fp8", 8, 49, 52),
    ("int4", 16, 45, 50), ("int4", 8, 30, 35), ("int4", 4, 25, 30)])
def test_weights_of_the_03b_shapes_take_their_share_of_16_bits(shapes_of_03b, method, head, least, most):
    r = run("info", shapes_of_03b, "-q", method, "--quantization-head", head, "--json")
    assert r.returncode == 0, r.stderr.decode()
    m = json.loads(r.stdout)["model"]
    assert least <= 100 * m["share_of_16_bit"] <= most, m["share_of_16_bit"]
    assert m["weight_bytes_per_token"] == m["packed_weight_bytes"] <= m["share_of_16_bit"] * 2 * m["parameters"]


# ---- what stays ----

def test_fp8_keeps_attention_output_and_ffn_input_unless_told_otherwise(shared, tmp_path):
    report = quantize(MODEL, tmp_path / "a", "--scheme", "fp8")
    kept = {m["name"] for m in report["matrices"] if not m["quantized"]}
    assert {n.split(".")[-1] for n in kept} == {"o_proj", "gate_proj", "up_proj"} and len(kept) == 18
    q = json.loads((tmp_path / "a" / "config.json").read_text())["quantization_config"]
    assert set(q["ignore"]) == kept | {"lm_head"}
    before, after = (read_safetensors(os.path.join(d, "model.safetensors"))[1] for d in (MODEL, tmp_path / "a"))
    assert all(after[n + ".weight"] == tuple(before[n + ".weight"]) for n in kept)
    generate(tmp_path / "a", IDS, 4, dtype="bfloat16")
    report = quantize(MODEL, tmp_path / "b", "--scheme", "fp8", "--format", "fp8", "--ignore", "model.layers.0", "mlp.down_proj")
    kept = {m["name"] for m in report["matrices"] if not m["quantized"]}
    assert len(kept) == 7 + 5 and "model.layers.5.mlp.down_proj" in kept
    generate(tmp_path / "b", IDS, 4, dtype="bfloat16")


# ---- the report ----

def test_perplexity_before_and_after_is_that_of_eval(tmp_path):
    text = tmp_path / "text"
    text.write_bytes((SOURCE / "README.md").read_bytes()[:1500])
    report = quantize(MODEL, tmp_path / "out", "--scheme", "int8", "--perplexity", text)
    for key, model in (("before", MODEL), ("after", tmp_path / "out")):
        r = run("eval", model, "--perplexity", text, "--json", "--quiet", timeout=120)
        assert json.loads(r.stdout)["texts"][0]["perplexity"] == pytest.approx(report["perplexity_" + key], rel=1e-6)
    assert abs(report["perplexity_after"] / report["perplexity_before"] - 1) < 0.005
    assert report["bytes_after"] == (tmp_path / "out" / "model.safetensors").stat().st_size
    assert report["bytes_before"] == os.path.getsize(os.path.join(MODEL, "model.safetensors"))


def test_the_whole_path_is_three_models_and_what_each_step_loses(tmp_path):
    text = tmp_path / "text"
    text.write_bytes((SOURCE / "README.md").read_bytes()[:1500])
    report = quantize(MODEL, tmp_path / "out", "--scheme", "path", "--perplexity", text, "--group-size", "128")
    assert [s["scheme"] for s in report["steps"]] == ["fp8", "int4", "w2"]
    sizes = [report["bytes_before"]] + [s["bytes"] for s in report["steps"]]
    assert sizes == sorted(sizes, reverse=True)
    last = report["perplexity_before"]
    for s in report["steps"]:
        assert s["bytes"] == (tmp_path / "out" / s["scheme"] / "model.safetensors").stat().st_size
        assert s["step_loss_percent"] == pytest.approx(100 * (s["perplexity"] / last - 1), abs=1e-6)
        assert s["loss_percent"] == pytest.approx(100 * (s["perplexity"] / report["perplexity_before"] - 1), abs=1e-6)
        last = s["perplexity"]
    assert "--perplexity" in refused(MODEL, tmp_path / "other", "--scheme", "path", code=2)


def test_the_plain_report_has_a_line_for_every_matrix(shared, tmp_path):
    r = run("quantize", shared / "fixtures" / "dense-hf", tmp_path / "out", "--scheme", "int8")
    lines = r.stdout.decode().splitlines()
    assert r.returncode == 0 and r.stderr == b""
    assert sum("_proj" in x and "error 0." in x for x in lines) == 21
    assert lines[-2].startswith("21 matrices quantized, 0 kept") and lines[-1].startswith("weights ")


# ---- refusals ----

def test_what_is_there_is_not_overwritten(shared, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    assert "exists already" in refused(shared / "fixtures" / "dense-hf", out, "--scheme", "int8")
    assert [p.name for p in tmp_path.iterdir()] == ["out"] and (out / "mine").read_text() == "x"


@pytest.mark.parametrize("model, args, words", [
    ("dense-awq", ["--scheme", "int8"], ["quantized already", "awq"]),
    ("dense-ct-fp8", ["--scheme", "int4"], ["quantized already", "compressed-tensors"]),
    ("dense-hf", ["--scheme", "int4", "--group-size", "64"], ["down_proj", "352", "--group-size"]),
    ("dense-hf", ["--scheme", "fp8", "--format", "fp8", "--ignore", "none"], ["gate_proj", "352", "128"]),
    ("dense-hf", ["--scheme", "int8", "--ignore", "q_proj"], ["q_proj", "k_proj", "both or neither"]),
    ("dense-hf", ["--scheme", "int8", "--ignore", "attn"], ["--ignore", "attn", "names no linear layer"]),
])
def test_what_cannot_be_written_is_refused_by_name(shared, tmp_path, model, args, words):
    line = refused(shared / "fixtures" / model, tmp_path / "out", *args)
    assert line.startswith("tern quantize: error: ") and all(w in line for w in words), line


@pytest.mark.parametrize("args", [
    [], ["--scheme", "int2"], ["--scheme", "int8", "--format", "awq"], ["--scheme", "int4", "--format", "fp8"],
    ["--scheme", "int4", "--format", "awq", "--head", "8"], ["--scheme", "int8", "--head", "6"],
    ["--scheme", "int8", "--quantization-head", "8"], ["--scheme", "int8", "--group-size", "64"], ["--scheme", "int4", "--group-size", "48"], ["--scheme", "int8", "-q", "int8"],
    ["third", "--scheme", "int8"],
])
def test_wrong_usage_is_code_2(shared, tmp_path, args):
    refused(shared / "fixtures" / "dense-hf", tmp_path / "out", *args, code=2)


def test_a_weight_that_is_no_number_is_refused_by_place(shared, tmp_path):
    d = copy(shared, tmp_path / "model")
    name = CHECKED[1] + ".weight"

    def spoil(t):
        dtype, shape, data = t[name]
        at = (3 * 352 + 7) * 2
        t[name] = (dtype, shape, data[:at] + b"\xc0\x7f" + data[at + 2:])
    retensor(d, spoil)
    line = refused(d, tmp_path / "out", "--scheme", "int8")
    assert name in line and "row 3, column 7" in line


@pytest.mark.parametrize("limit", [10, 300_000])
def test_a_full_disk_is_one_line_and_leaves_nothing(shared, tmp_path, limit):
    """A limit on the size of files fails writes as a full disk does, with another reason."""
    def prepare():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    out = tmp_path / "out"
    r = subprocess.run([TERN, "quantize", shared / "fixtures" / "dense-hf", out, "--scheme", "int8", "--json"],
                       capture_output=True, timeout=60 * SLOW, preexec_fn=prepare)
    line = r.stderr.decode()
    assert r.returncode == 1 and r.stdout == b"" and len(line.splitlines()) == 1
    assert "File too large" in line and "out.partial-" in line, line
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path):
    p = subprocess.Popen([TERN, "quantize", MODEL, tmp_path / "out", "--scheme", "int4"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    p.stdout.readline()  # the first matrix is done
    p.send_signal(signal.SIGTERM)
    out, line = p.communicate(timeout=60 * SLOW)
    if p.returncode == 0:
        pytest.skip("it was done before the signal came")
    assert p.returncode == 1 and b"interrupted" in line and list(tmp_path.iterdir()) == []


def test_two_bits_come_as_near_as_four_dimensions_allow(tmp_path):
    """The 2-bit code of the shipped model: 32 % error a weight is 9.9 dB, what four levels of a scalar code can't reach."""
    report = quantize(MODEL, tmp_path / "out", "--scheme", "w2", "--head", "4")
    errors = [m["relative_error"] for m in report["matrices"] if m["name"].endswith("_proj")]
    assert len(errors) == 42 and max(errors) < 0.345 and sum(errors) / 42 < 0.325
    assert report["bytes_after"] < 0.2 * report["bytes_before"]
    r = run("info", tmp_path / "out")
    assert b"2-bit code (groups of 64, bf16 scales) x int8 in 24" in r.stdout


def test_a_two_bit_matrix_needs_all_its_tensors(tmp_path):
    quantize(MODEL, tmp_path / "out", "--scheme", "w2")
    layer = "model.layers.1.mlp.down_proj."
    _, whole = read_safetensors(tmp_path / "out" / "model.safetensors")
    for suffix in ("quant_weight", "weight_scale", "code_scale", "code_zp", "super_scales"):
        retensor(tmp_path / "out", lambda t: t.pop(layer + suffix))
        r = run("generate", tmp_path / "out", "--prompt-ids", "5")
        assert r.returncode == 1 and (layer + suffix).encode() in r.stderr, r.stderr
        retensor(tmp_path / "out", lambda t: t.__setitem__(layer + suffix, whole[layer + suffix]))

    def wild(t):
        dtype, shape, data = t[layer + "code_zp"]
        t[layer + "code_zp"] = (dtype, shape, data[:8] + struct.pack("<f", float("inf")) + data[12:])
    retensor(tmp_path / "out", wild)
    r = run("generate", tmp_path / "out", "--prompt-ids", "5")
    assert r.returncode == 1 and b"code_zp: row 2 is inf" in r.stderr, r.stderr


def test_error_feedback_trades_the_error_of_weights_for_that_of_products(tmp_path):
    """That products come nearer is tests/unit/model_quant_two_test.c's; here the text reaches the encoder."""
    args = ["--scheme", "w2", "--ignore", "gate_proj", "up_proj", "down_proj", *(f"model.layers.{i}" for i in range(1, 6))]
    plain = quantize(MODEL, tmp_path / "plain", *args)
    fed = quantize(MODEL, tmp_path / "fed", *args, "--calibrate", SOURCE / "README.zh-CN.md", "--calibration-tokens", "1024")
    assert fed["quantized"] == plain["quantized"] == 4
    assert 1.1 * plain["relative_error"] < fed["relative_error"] < 2 * plain["relative_error"]
    assert generate(tmp_path / "fed", IDS, 4)
