# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints from outside: every tensor of a format is used or the file is refused by name, and the
configuration, the flag and the tensors must agree."""
import json
import math
import re
import struct

import pytest
from ternlib import MODEL, SOURCE, Server, generate, run
from test_loading import config, copy, retensor

ATT = "model.layers.0.self_attn.q_proj."
DOWN = "model.layers.1.mlp.down_proj."
FILE = "model.safetensors"
FAULTS = {}


def fault(base, *words):
    def add(f):
        FAULTS[f.__name__] = (base, f, words)
        return f
    return add


def drop(d, name):
    retensor(d, lambda t: t.pop(name))


def quantization(d, **changes):
    q = json.loads((d / "config.json").read_text())["quantization_config"]
    for k, v in changes.items():
        if v is None:
            q.pop(k, None)
        else:
            q[k] = v
    config(d, quantization_config=q)


def patch(d, name, change):
    """change(dtype, shape, data) -> the new triple."""
    retensor(d, lambda t: t.__setitem__(name, change(*t[name])))


# ---- missing and unused ----

@fault("dense-awq", FILE, DOWN + "qzeros")
def awq_without_zero_points(d):
    drop(d, DOWN + "qzeros")


@fault("dense-awq", FILE, ATT + "scales")
def awq_without_scales(d):
    drop(d, ATT + "scales")


@fault("dense-awq", FILE, "unknown tensor", ATT + "g_idx")
def awq_with_a_tensor_of_gptq(d):
    retensor(d, lambda t: t.__setitem__(ATT + "g_idx", ("I32", [128], bytes(512))))


@fault("dense-awq", FILE, ATT + "weight")
def awq_with_a_layer_that_the_configuration_calls_plain(d):
    quantization(d, modules_to_not_convert=["layers.0.self_attn.q_proj"])


@fault("dense-awq", FILE, "missing", "self_attn.q_proj.weight")
def awq_without_its_configuration(d):
    config(d, quantization_config=None)


@fault("dense-gptq", FILE, DOWN + "g_idx")
def gptq_in_act_order_without_the_order(d):
    drop(d, DOWN + "g_idx")


@fault("dense-ct-w4a16", FILE, DOWN + "weight_shape")
def packed_words_without_their_shape(d):
    drop(d, DOWN + "weight_shape")


@fault("dense-ct-w4a16", FILE, "weight_zero_point")
def asymmetric_words_without_zero_points(d):
    q = json.loads((d / "config.json").read_text())["quantization_config"]["config_groups"]
    q["group_0"]["weights"]["symmetric"] = False
    quantization(d, config_groups=q)


@fault("dense-ct-w4a16", FILE, "unknown tensor", DOWN + "weight_zero_point")
def symmetric_words_with_zero_points(d):
    retensor(d, lambda t: t.__setitem__(DOWN + "weight_zero_point", ("I32", [16, 11], bytes(704))))


@fault("dense-ct-w8a8", FILE, "unknown tensor", DOWN + "input_scale")
def dynamic_activations_with_a_static_scale(d):
    retensor(d, lambda t: t.__setitem__(DOWN + "input_scale", ("F32", [1], bytes(4))))


@fault("dense-fp8-block", FILE, ATT + "weight_scale_inv")
def fp8_without_scales(d):
    drop(d, ATT + "weight_scale_inv")


# ---- shapes, types, contents ----

@fault("dense-awq", FILE, "qzeros", "[2, 32]", "[4, 32]")
def another_group_size_than_the_file(d):
    quantization(d, group_size=64)


@fault("dense-awq", FILE, DOWN, "group_size 64", "352")
def a_group_size_that_does_not_divide_the_inputs(d):
    retensor(d, lambda t: [t.pop(k) for k in list(t) if "_proj." in k and DOWN not in k])
    quantization(d, group_size=64, modules_to_not_convert=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                                                           "layers.0."])


@fault("dense-awq", FILE, ATT + "qweight", "I32", "U32")
def words_of_another_type(d):
    patch(d, ATT + "qweight", lambda dtype, shape, data: ("U32", shape, data))


@fault("dense-awq", FILE, ATT + "scales", "[4, 256]", "[256, 4]")
def scales_lying_the_other_way(d):
    patch(d, ATT + "scales", lambda dtype, shape, data: (dtype, shape[::-1], data))


@fault("dense-gptq", FILE, ATT + "g_idx", "desc_act")
def an_order_that_the_configuration_denies(d):
    quantization(d, desc_act=False)


@fault("dense-gptq", FILE, ATT + "g_idx", "input 3 is in group 77")
def a_group_that_is_not_there(d):
    patch(d, ATT + "g_idx", lambda dtype, shape, data: (dtype, shape, data[:12] + struct.pack("<i", 77) + data[16:]))


@fault("dense-gptq", FILE, ATT + "g_idx", "unequal")
def groups_of_unequal_size(d):
    patch(d, ATT + "g_idx", lambda dtype, shape, data: (dtype, shape, struct.pack("<2i", 1, 1) * 16 + data[128:]))


@fault("dense-ct-w4a16", FILE, "model.embed_tokens.weight_packed", "act-order of an embedding")
def an_embedding_in_act_order(d):
    """Its groups of 32 inputs from the last to the first."""
    def change(t):
        _, (rows, cols), _ = t.pop("model.embed_tokens.weight")
        order = [i // 32 for i in reversed(range(cols))]
        t["model.embed_tokens.weight_packed"] = ("I32", [rows, cols // 8], bytes(rows * cols // 2))
        t["model.embed_tokens.weight_scale"] = ("BF16", [rows, cols // 32], bytes(rows * cols // 16))
        t["model.embed_tokens.weight_shape"] = ("I64", [2], struct.pack("<2q", rows, cols))
        t["model.embed_tokens.weight_g_idx"] = ("I32", [cols], struct.pack(f"<{cols}i", *order))
    retensor(d, change)
    groups = json.loads((d / "config.json").read_text())["quantization_config"]["config_groups"]
    groups["group_1"] = {"targets": ["Embedding"], "weights": groups["group_0"]["weights"] | {"actorder": "group"}}
    quantization(d, config_groups=groups)


@fault("dense-ct-w4a16", FILE, DOWN + "weight_shape", "[128, 351]", "[128, 352]")
def words_of_another_shape_than_said(d):
    patch(d, DOWN + "weight_shape", lambda dtype, shape, data: (dtype, shape, struct.pack("<2q", 128, 351)))


@fault("dense-fp8-block", FILE, DOWN + "weight_scale_inv", "[1, 3]")
def fp8_with_scales_of_other_blocks(d):
    patch(d, DOWN + "weight_scale_inv", lambda dtype, shape, data: (dtype, [3, 1], data))


@fault("dense-ct-fp8", FILE, DOWN + "weight", "F8_E4M3", "I8")
def int8_where_fp8_is_announced(d):
    patch(d, DOWN + "weight", lambda dtype, shape, data: ("I8", shape, data))


@fault("dense-ct-fp8", FILE, DOWN + "weight", "row 1, column 2", "NaN")
def fp8_with_a_nan(d):
    at = 352 + 2
    patch(d, DOWN + "weight", lambda dtype, shape, data: (dtype, shape, data[:at] + b"\x7f" + data[at + 1:]))


@fault("dense-awq", FILE, ATT + "scales", "row 5, group 0", "inf")
def a_scale_that_is_infinite(d):
    patch(d, ATT + "scales", lambda dtype, shape, data: (dtype, shape, data[:10] + struct.pack("<H", 0x7c00) + data[12:]))


@fault("dense-ct-w8a8", FILE, DOWN + "weight_scale", "row 3, group 0", "1e+30", "from 0 to 515.78")
def a_scale_that_is_absurd(d):
    patch(d, DOWN + "weight_scale", lambda dtype, shape, data: (
        "F32", shape, b"".join(struct.pack("<f", 1e30 if i == 3 else 0.01) for i in range(128))))


@fault("dense-ct-fp8", FILE, DOWN + "weight_scale", "row 127", "-0.5", "from 0")
def a_negative_scale_of_codes_with_a_sign(d):
    patch(d, DOWN + "weight_scale", lambda dtype, shape, data: (
        "F32", shape, b"".join(struct.pack("<f", -0.5 if i == 127 else 0.01) for i in range(128))))


@fault("dense-ct-w4a16", FILE, DOWN + "weight_scale", "row 0, group 0", "-9", "of a magnitude up to 8188")
def a_scale_of_4_bits_that_is_absurd(d):
    patch(d, DOWN + "weight_scale", lambda dtype, shape, data: (
        "F32", shape, struct.pack("<f", -9000) + struct.pack("<f", -0.01) * (shape[0] * shape[1] - 1)))


@fault("dense-hf", FILE, DOWN + "weight", "row 5, column 7", "not a finite number")
def a_weight_that_is_no_number(d):
    at = 2 * (5 * 352 + 7)
    patch(d, DOWN + "weight", lambda dtype, shape, data: (dtype, shape, data[:at] + b"\xc0\x7f" + data[at + 2:]))


@fault("dense-paddle", FILE, "down_proj.weight", "is not a finite number")
def a_weight_of_paddle_that_is_infinite(d):
    patch(d, "ernie." + DOWN[6:] + "weight", lambda dtype, shape, data: (dtype, shape, data[:-2] + b"\x80\xff"))


@fault("dense-hf", "logits are no numbers", "weights or scales are broken")
def weights_that_overflow(d):
    patch(d, "model.layers.1.input_layernorm.weight", lambda dtype, shape, data: (
        dtype, shape, struct.pack("<f", 3e38)[2:] * (len(data) // 2)))


# ---- configuration ----

@fault("dense-awq", "config.json", "quantization_config.bits", "3")
def three_bits(d):
    quantization(d, bits=3)


@fault("dense-gptq", "config.json", "quantization_config.checkpoint_format", "marlin")
def another_kernel_layout(d):
    quantization(d, checkpoint_format="marlin")


@fault("dense-ct-w8a8", "config.json", "kv_cache_scheme")
def a_quantized_kv_cache(d):
    quantization(d, kv_cache_scheme={"num_bits": 8, "type": "float"})


@fault("dense-fp8-block", "config.json", "weight_block_size", "[64,64]")
def blocks_of_another_size(d):
    quantization(d, weight_block_size=[64, 64])


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_in_a_quantized_checkpoint_is_one_line(shared, tmp_path, name):
    base, breaks, words = FAULTS[name]
    d = copy(shared, tmp_path / "model", base)
    breaks(d)
    r = run("generate", d, "--prompt-ids", "5", "--max-tokens", 1)
    line = r.stderr.decode("utf-8", "strict")
    assert r.returncode == 1 and r.stdout.strip() == b"" and len(line.splitlines()) == 1, line
    if "has no kernels for quantized weights" in line:
        pytest.skip("this level computes no quantized weights")
    for w in words:
        assert w in line, line


def formats(model, *flags):
    r = run("info", model, "--json", *flags)
    assert r.returncode == 0, r.stderr
    m = json.loads(r.stdout)["model"]
    return m["quantization"], m["weight_formats"], m["weight_bytes_per_token"]


def test_info_says_how_weights_are_kept(shared):
    f = shared / "fixtures"
    assert formats(f / "dense-awq")[1].startswith("int4 (groups of 32, f16 scales, zero points) x int8 in 8")
    assert "act-order) x bf16" in formats(f / "dense-gptq")[1]
    assert formats(f / "dense-ct-w8a8")[1].startswith("int8 (per row, bf16 scales) x int8 in 8")
    assert "x fp8 E4M3 in 8" in formats(f / "dense-ct-fp8")[1]
    assert formats(f / "dense-gguf-q4_0" / "model.gguf")[:2] == ("gguf", "int4 (groups of 32, f16 scales) x int8 in 9")


def test_the_inputs_follow_the_flags(shared):
    f = shared / "fixtures"
    assert "x fp32" in formats(f / "dense-ct-w8a8", "--dtype", "float32")[1]
    assert "x bf16 in 8" in formats(f / "dense-ct-w8a8", "--quantization-inputs", "16")[1]
    assert "x bf16 in 8" in formats(f / "dense-awq", "--quantization-inputs=16")[1]
    r = run("info", f / "dense-awq", env={"VLLM_CPU_INT4_W4A8": "0"})
    assert b"zero points) x bf16 in 8" in r.stdout


def test_nothing_is_expanded_while_loading(shared):
    """Bytes read for a token: codes and scales of the layers, and the 16-bit embedding as the head."""
    f, head = shared / "fixtures", 1152 * 128 * 2
    layers = 2 * (256 * 128 + 2 * 128 * 128 + 128 * 256 + 3 * 352 * 128)
    got = formats(f / "dense-ct-w8a8")[2] - head
    assert layers <= got <= layers * 1.03
    got = formats(f / "dense-ct-w4a16")[2] - head
    assert layers / 2 + layers / 32 * 2 <= got <= (layers / 2 + layers / 32 * 2) * 1.03
    got = formats(f / "dense-gguf-q8_0" / "model.gguf")[2]
    assert got <= (layers + 1152 * 128) * (1 + 2 / 32) * 1.03


def test_the_flag_must_agree_with_the_file(shared):
    f = shared / "fixtures"
    for asked, model in (("gptq", "dense-awq"), ("gptq", "dense-hf"), ("int8", "dense-awq"), ("gguf", "dense-hf")):
        r = run("generate", f / model, "--prompt-ids", "5", "--quantization", asked)
        line = r.stderr.decode()
        assert r.returncode == 1 and len(line.splitlines()) == 1
        assert "--quantization" in line and model in line and asked in line, line
    assert formats(f / "dense-awq", "--quantization", "awq")[0] == "awq"
    assert formats(f / "dense-hf", "--quantization", "int8")[1].startswith("int8 (per row, bf16 scales)")
    assert formats(f / "dense-hf", "-q", "int4")[1].startswith("int4 (groups of 64, bf16 scales, zero points) x int8 in 12")
    assert "int4 (groups of 128, bf16 scales, zero points) x int8" in formats(f / "dense-hf", "-q", "awq")[1]
    assert "x fp8 E5M2 in 8" in formats(f / "dense-ct-fp8", "--quantization-inputs", "e5m2")[1]


def test_the_documented_sizes_of_the_small_model_are_those_of_its_shapes(shared, tmp_path):
    """The table of docs/formats.md against a file of the 0.3B's shapes that has a header and a hole."""
    d, header, at = copy(shared, tmp_path / "m"), {}, 0
    shapes = {"embed_tokens": (103424, 1024), "norm": (1024,)}
    for i in range(18):
        layer = {"input_layernorm": (1024,), "post_attention_layernorm": (1024,), "self_attn.q_proj": (2048, 1024),
                 "self_attn.k_proj": (256, 1024), "self_attn.v_proj": (256, 1024), "self_attn.o_proj": (1024, 2048),
                 "mlp.gate_proj": (3072, 1024), "mlp.up_proj": (3072, 1024), "mlp.down_proj": (1024, 3072)}
        shapes.update({f"layers.{i}.{k}": v for k, v in layer.items()})
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[f"model.{name}.weight"] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    head = json.dumps(header).encode()
    with open(d / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        f.truncate(8 + len(head) + at)
    config(d, vocab_size=103424, hidden_size=1024, intermediate_size=3072, num_hidden_layers=18, num_attention_heads=16,
           num_key_value_heads=2, head_dim=128)
    rows = re.findall(r"^\| (?:bf16|`-q (\w+)`) \| (\d.* MB, .* %) \|$", (SOURCE / "docs" / "formats.md").read_text(), re.M)
    assert len(rows) == 5
    for method, cells in rows:
        for bits, cell in zip((16, 8, 4), cells.split(" | "), strict=True):
            r = run("info", d, "--json", "-q", method or "none", "--quantization-head", bits)
            m = json.loads(r.stdout)["model"]
            assert cell.replace(" 100 %", " 100.0 %") == \
                f"{m['packed_weight_bytes'] / 1e6:.1f} MB, {100 * m['share_of_16_bit']:.1f} %", (method, bits)
            assert m["weight_bytes_per_token"] == m["packed_weight_bytes"]


def test_quantizing_the_shipped_model_while_loading_costs_little_perplexity(tmp_path):
    text = tmp_path / "text"
    text.write_bytes((SOURCE / "LICENSE").read_bytes()[:2500])  # a text that stays as it is

    def perplexity(method):
        r = run("eval", MODEL, "--perplexity", text, "-q", method, timeout=120)
        assert r.returncode == 0, r.stderr
        return float(re.search(rb"perplexity ([0-9.]+)", r.stdout).group(1))
    plain = perplexity("none")
    for method, limit in (("int8", 0.005), ("fp8", 0.007), ("int4", 0.03)):
        assert abs(perplexity(method) / plain - 1) < limit, method


def test_a_gguf_file_that_is_cut_is_refused(shared, tmp_path):
    whole = (shared / "fixtures" / "dense-gguf-q8_0" / "model.gguf").read_bytes()
    for n in (0, 3, 24, 5000, 40000, len(whole) - 1):
        p = tmp_path / "cut.gguf"
        p.write_bytes(whole[:n])
        r = run("generate", p, "--prompt-ids", "5")
        line = r.stderr.decode()
        assert r.returncode == 1 and len(line.splitlines()) == 1 and "cut.gguf" in line, line


def test_a_folder_with_a_gguf_file_says_how_to_use_it(shared, tmp_path):
    d = copy(shared, tmp_path / "m")
    (d / "model.safetensors").unlink()
    (d / "ernie.gguf").write_bytes(b"GGUF")
    r = run("generate", d, "--prompt-ids", "5")
    assert r.returncode == 1 and b"the path of a .gguf file itself" in r.stderr


def test_a_gguf_file_is_served_like_a_directory(shared):
    """The Q8_0 file and the int8 directory hold other roundings of the same weights: same ids for a text, an answer to a
    chat, and the same greedy tokens as the command line gives."""
    model = shared / "fixtures" / "dense-gguf-q8_0" / "model.gguf"
    with Server(model=model, args=["--max-model-len", "512"]) as s:
        r = s.post("/tokenize", {"model": s.model, "prompt": "The river and the bridge."})
        ids = run("tokenize", shared / "fixtures" / "dense-ct-w8a8", stdin=b"The river and the bridge.\n").stdout
        assert r.status == 200 and r.json["tokens"] == json.loads(ids)
        r = s.post("/v1/chat/completions", {"model": s.model, "max_tokens": 4, "temperature": 0,
                                            "messages": [{"role": "user", "content": "hello"}]})
        assert r.status == 200 and r.json["usage"]["completion_tokens"] >= 1, r
        r = s.post("/v1/completions", {"model": s.model, "prompt": [5, 300, 77], "max_tokens": 8, "temperature": 0,
                                       "ignore_eos": True, "return_token_ids": True})
        want = generate(model, [5, 300, 77], 8, dtype="bfloat16")[0]["token_ids"]
        assert r.status == 200 and r.json["choices"][0]["token_ids"] == want, r
        assert "quantization=gguf" in s.output() and "Weight formats: int8 (groups of 32" in s.output()
