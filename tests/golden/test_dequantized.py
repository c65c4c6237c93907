# SPDX-License-Identifier: Apache-2.0
"""With weights alone quantized and float32 activations, a model has the perplexity of its dequantized weights: the small
model in every format that is read, against the numbers that the oracle's decoders (or, where it has none, decoders
written here) find in the same bytes, stored as float32."""
import json
import shutil
import sys

import pytest
import ternlib
from ternlib import MODEL, SOURCE, read_safetensors, run, write_safetensors

np = pytest.importorskip("numpy")
sys.path.insert(0, str(ternlib.SHARED / "oracle"))
F = pytest.importorskip("oracle_formats", reason="needs the shared oracle")

GROUP = 64
LAYERS = 1  # of the model's six: enough to tell numbers apart
LABELS = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8", "int32": "I32", "int64": "I64"}


def is_linear(name):
    return name.endswith("_proj.weight")


@pytest.fixture(scope="module")
def plain():
    """name -> float32 of the shipped model's first layers."""
    _, tensors = read_safetensors(ternlib.pathlib.Path(MODEL) / "model.safetensors")
    tensors = {n: t for n, t in tensors.items() if ".layers." not in n or int(n.split(".")[2]) < LAYERS}
    return {n: F.bf16_to_f32(np.frombuffer(data, "<u2")).reshape(shape) for n, (_, shape, data) in tensors.items()}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text((SOURCE / "README.zh-CN.md").read_text()[:500])
    return path


def perplexity(model, text, *args):
    r = run("eval", model, "--perplexity", text, "--dtype", "float32", "--json", "--quiet", "--window", 128, *args, timeout=120)
    assert r.returncode == 0, r.stderr.decode()
    return json.loads(r.stdout)["texts"][0]["perplexity"]


def write_dir(path, tensors, quantization=None):
    """tensors: name -> array (float32 too), or oracle's Stored."""
    path.mkdir()
    for f in ternlib.pathlib.Path(MODEL).iterdir():
        if f.suffix in (".json", ".model"):
            shutil.copy(f, path)
    c = json.loads((path / "config.json").read_text())
    c["torch_dtype"] = "float32"
    c["num_hidden_layers"] = LAYERS
    if quantization is not None:
        c["quantization_config"] = quantization
    (path / "config.json").write_text(json.dumps(c))
    out = {}
    for name, t in tensors.items():
        label, data = (t.label, t.data) if hasattr(t, "label") else (LABELS[t.dtype.name], t)
        data = np.ascontiguousarray(data)
        out[name] = (label, list(data.shape), data.tobytes())
    write_safetensors(path / "model.safetensors", out)
    return path


# ---- formats of Hugging Face: weight -> (tensors of the layer, what they stand for) ----
FORMATS = {}


def a_format(**quantization):
    def add(f):
        FORMATS[f.__name__] = (f, quantization)
        return f
    return add


def ct(fmt, bits, kind="int", strategy="group", **more):
    weights = dict(num_bits=bits, type=kind, strategy=strategy, symmetric=True, dynamic=False)
    if strategy == "group":
        weights["group_size"] = GROUP
    weights.update(more)
    return dict(quant_method="compressed-tensors", format=fmt, quantization_status="compressed", ignore=["lm_head"],
                config_groups={"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}})


@a_format(quant_method="awq", bits=4, group_size=GROUP, zero_point=True, version="gemm")
def awq(w):
    t = F.awq_quantize(w, GROUP)
    return t, F.awq_dequantize(t["qweight"].data, t["qzeros"].data, t["scales"].data)


def gptq_of(w, v1, rng):
    t = F.gptq_quantize(w, GROUP, rng, v1)
    return t, F.gptq_dequantize(*(t[n].data for n in ("qweight", "qzeros", "scales", "g_idx")), v1)


@a_format(quant_method="gptq", bits=4, group_size=GROUP, desc_act=False, sym=False)
def gptq_v1(w):
    return gptq_of(w, True, None)


@a_format(quant_method="gptq", bits=4, group_size=GROUP, desc_act=True, sym=False, checkpoint_format="gptq_v2")
def gptq_v2_in_act_order(w):
    return gptq_of(w, False, np.random.default_rng(7))


def pack_bytes(q, axis):
    """Four values of 0..255 along an axis in an int32, the first lowest."""
    q = np.moveaxis(q.astype(np.uint32), axis, -1)
    q = q.reshape(q.shape[:-1] + (-1, 4)) << np.arange(0, 32, 8, dtype=np.uint32)
    return np.ascontiguousarray(np.moveaxis(q.sum(-1, dtype=np.uint32), -1, axis)).view(np.int32)


def eight_bits(w, symmetric):
    """Groups along the inputs: q of 0..255 [out, in], z and scale [out, groups]."""
    g = w.reshape(w.shape[0], -1, GROUP)
    if symmetric:
        s, z = np.abs(g).max(2) / 127, np.full(g.shape[:2], 128)
    else:
        low, high = np.minimum(g.min(2), 0), np.maximum(g.max(2), 0)
        s = (high - low) / 255
    s = np.maximum(s, 1e-8).astype(np.float16).astype(np.float32)
    if not symmetric:
        z = np.clip(np.rint(-low / s), 1, 255).astype(int)
    q = np.clip(np.rint(g / s[..., None]) + z[..., None], 0, 255).astype(int)
    return q.reshape(w.shape), z, s, ((q - z[..., None]) * s[..., None]).astype(np.float32).reshape(w.shape)


def gptq_8(w, symmetric, v1):
    q, z, s, back = eight_bits(w, symmetric)
    return {"qweight": F.Stored("I32", pack_bytes(q.T, 0)), "qzeros": F.Stored("I32", pack_bytes(z.T - v1, 1)),
            "scales": F.Stored("F16", s.T.astype(np.float16)),
            "g_idx": F.Stored("I32", (np.arange(w.shape[1]) // GROUP).astype(np.int32))}, back


@a_format(quant_method="gptq", bits=8, group_size=GROUP, desc_act=False, sym=True)
def gptq_of_8_bits(w):
    return gptq_8(w, True, 1)


@a_format(quant_method="gptq", bits=8, group_size=GROUP, desc_act=False, sym=False, checkpoint_format="gptq_v2")
def gptq_of_8_bits_with_zero_points(w):
    return gptq_8(w, False, 0)


@a_format(**ct("pack-quantized", 4))
def packed_4(w):
    t = F.ct_w4a16_quantize(w, GROUP)
    return t, F.ct_w4a16_dequantize(t["weight_packed"].data, F.stored_f32(t["weight_scale"]), t["weight_shape"].data)


def packed_8_of(w, symmetric):
    q, z, s, back = eight_bits(w, symmetric)
    t = {"weight_packed": F.Stored("I32", pack_bytes(q, 1)), "weight_scale": F.Stored("F32", s),
         "weight_shape": F.Stored("I64", np.array(w.shape, np.int64))}
    if not symmetric:
        t["weight_zero_point"] = F.Stored("I32", pack_bytes(z, 0))
    return t, back


@a_format(**ct("pack-quantized", 8))
def packed_8(w):
    return packed_8_of(w, True)


@a_format(**ct("pack-quantized", 8, symmetric=False))
def packed_8_with_zero_points(w):
    return packed_8_of(w, False)


@a_format(**ct("int-quantized", 8, strategy="channel"))
def int8(w):
    t = F.ct_w8a8_quantize(w)
    return t, F.scaled_dequantize(t["weight"].data.astype(np.float32), F.stored_f32(t["weight_scale"]))


@a_format(**ct("float-quantized", 8, "float", "channel"))
def fp8_of_rows(w):
    t = F.ct_fp8_quantize(w)
    return t, F.scaled_dequantize(F.stored_f32(t["weight"]), F.stored_f32(t["weight_scale"]))


@a_format(**ct("float-quantized", 8, "float", "tensor"))
def fp8_of_tensors(w):
    t = F.ct_fp8_quantize(w, False)
    return t, F.scaled_dequantize(F.stored_f32(t["weight"]), F.stored_f32(t["weight_scale"]))


@a_format(**ct("float-quantized", 8, "float", "channel"))
def e5m2_of_rows(w):
    s = np.maximum(np.abs(w).max(1, keepdims=True) / 57344, 1e-12).astype(np.float32)
    q = F.f32_to_e5m2(w / s)
    return {"weight": F.Stored("F8_E5M2", q), "weight_scale": F.Stored("F32", s)}, F.e5m2_to_f32(q) * s


@a_format(quant_method="fp8", weight_block_size=[128, 128], activation_scheme="dynamic")
def fp8_blocks(w):
    t = F.fp8_block_quantize(w)
    return t, F.fp8_block_dequantize(t["weight"].data, t["weight_scale_inv"].data)


def both(path, plain, convert):
    """The quantized model and the float32 one of the numbers that its bytes stand for."""
    quantized, dequantized = {}, dict(plain)
    for name, w in plain.items():
        if not is_linear(name):
            quantized[name] = w
            continue
        parts, dequantized[name] = convert(w)
        quantized.update({name.removesuffix("weight") + k: v for k, v in parts.items()})
    return quantized, write_dir(path / "float32", dequantized)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_the_perplexity_of_its_dequantized_weights(plain, text, tmp_path, name):
    convert, quantization = FORMATS[name]
    quantized, reference = both(tmp_path, plain, convert)
    model = write_dir(tmp_path / "quantized", quantized, quantization)
    assert perplexity(model, text) == pytest.approx(perplexity(reference, text), rel=1e-5)


# ---- GGUF: type -> (encoder, decoder) of float32 [..., 256] ----

def k_levels(x, top):
    """Groups of 32 of super-blocks: d, dmin, scales and minima of 6 bits, codes of 0..top."""
    b = x.reshape(-1, 8, 32)
    low = np.maximum(0, -b.min(2))
    step = np.maximum((b.max(2) + low) / top, 1e-12)
    d, dmin = (step.max(1) / 63).astype(np.float16), (low.max(1) / 63).astype(np.float16)
    d32, m32 = d.astype(np.float32)[:, None], dmin.astype(np.float32)[:, None]
    sc = np.clip(np.rint(step / np.where(d32 > 0, d32, 1)), 1, 63).astype(int)
    mn = np.clip(np.rint(low / np.where(m32 > 0, m32, 1)), 0, 63).astype(int)
    scale = (d32 * sc)[..., None]
    q = np.clip(np.rint((b + (m32 * mn)[..., None]) / np.where(scale > 0, scale, 1)), 0, top).astype(np.uint8)
    back = ((d32 * sc)[..., None] * q - (m32 * mn)[..., None]).astype(np.float32)
    return d, dmin, sc, mn, q, back


def halves(x):
    return np.ascontiguousarray(x.astype("<f2")).view(np.uint8).reshape(-1, 2)


def q5_k(x):
    d, dmin, sc, mn, q, back = k_levels(x, 31)
    out = np.zeros((len(q), 176), np.uint8)
    out[:, 0:2], out[:, 2:4] = halves(d), halves(dmin)
    for j in range(4):
        out[:, 4 + j] = sc[:, j] | sc[:, j + 4] >> 4 << 6
        out[:, 8 + j] = mn[:, j] | mn[:, j + 4] >> 4 << 6
        out[:, 12 + j] = sc[:, j + 4] & 15 | (mn[:, j + 4] & 15) << 4
    for j in range(8):
        out[:, 16:48] |= (q[:, j] >> 4) << j
        out[:, 48 + j // 2 * 32:80 + j // 2 * 32] |= (q[:, j] & 15) << j % 2 * 4
    return out.tobytes(), back.reshape(x.shape)


def q6_k(x):
    b = x.reshape(-1, 16, 16)
    step = np.abs(b).max(2) / 32
    d = (np.maximum(step.max(1), 1e-9) / 127).astype(np.float16)
    d32 = d.astype(np.float32)[:, None]
    sc = np.clip(np.rint(step / d32), 1, 127).astype(np.int8)
    q = np.clip(np.rint(b / (d32 * sc)[..., None]), -32, 31)
    back = ((d32 * sc)[..., None] * q).astype(np.float32)
    q = (q + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # halves of 128: quarters of 32
    low = np.concatenate([q[:, :, 0] & 15 | (q[:, :, 2] & 15) << 4, q[:, :, 1] & 15 | (q[:, :, 3] & 15) << 4], 2)
    high = q[:, :, 0] >> 4 | q[:, :, 1] >> 4 << 2 | q[:, :, 2] >> 4 << 4 | q[:, :, 3] >> 4 << 6
    out = np.concatenate([low.reshape(-1, 128), high.reshape(-1, 64), sc.view(np.uint8), halves(d)], 1)
    return np.ascontiguousarray(out).tobytes(), back.reshape(x.shape)


def oracle_type(kind):
    def convert(x):
        raw = F.GGML_ENCODE[kind](x)
        return raw, F.ggml_decode(kind, np.frombuffer(raw, np.uint8)).reshape(x.shape)
    return convert


BLOCKS = {"q8_0": (8, oracle_type(8)), "q4_0": (2, oracle_type(2)), "q4_k": (12, oracle_type(12)), "q5_k": (13, q5_k),
          "q6_k": (14, q6_k), "f16": (1, oracle_type(1))}
NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm", "q_proj": "attn_q",
         "post_attention_layernorm": "ffn_norm", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
         "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}


def mixed(name):
    """As llama.cpp's Q4_K_M: v and down of some layers and the embedding with more bits."""
    if "embed" in name:
        return "q6_k"
    return "q6_k" if "v_proj" in name or "down_proj" in name else "q4_k"


FILES = {kind: (lambda name, kind=kind: kind) for kind in BLOCKS}
FILES["q4_k_m"] = mixed
FILES["q5_k_m"] = lambda name: mixed(name).replace("q4", "q5")
FILES["q4_0 with q6_k"] = lambda name: "q6_k" if "v_proj" in name or "embed" in name else "q4_0"
FILES["q8_0 with q6_k"] = lambda name: "q6_k" if "k_proj" in name else "q8_0"


def gguf_name(name):
    parts = name.split(".")
    stem = f"blk.{parts[2]}." if "layers" in parts else ""
    return stem + NAMES[parts[-2]] + ".weight"


def fields(c):
    text, u32, f32 = F.GG_STR, F.GG_U32, F.GG_F32
    values = [("block_count", u32, c["num_hidden_layers"]), ("context_length", u32, c["max_position_embeddings"]),
              ("embedding_length", u32, c["hidden_size"]), ("feed_forward_length", u32, c["intermediate_size"]),
              ("attention.head_count", u32, c["num_attention_heads"]), ("vocab_size", u32, c["vocab_size"]),
              ("attention.head_count_kv", u32, c["num_key_value_heads"]), ("attention.key_length", u32, c["head_dim"]),
              ("attention.value_length", u32, c["head_dim"]), ("rope.freq_base", f32, c["rope_theta"]),
              ("rope.dimension_count", u32, c["head_dim"]),
              ("attention.layer_norm_rms_epsilon", f32, c["rms_norm_eps"])]
    return [("general.architecture", text, "ernie4_5"), ("general.quantization_version", u32, 2)] + [
        ("ernie4_5." + k, t, v) for k, t, v in values]


def read_kinds(model):
    r = run("info", model, "--tokenizer", MODEL)
    assert r.returncode == 0, r.stderr.decode()
    return r.stdout.decode()


@pytest.mark.parametrize("name", FILES)
def test_a_gguf_file_has_the_perplexity_of_its_dequantized_weights(plain, text, tmp_path, name):
    tensors, dequantized = [], {}
    for n, w in plain.items():
        if w.ndim == 1:
            tensors.append((gguf_name(n), F.GGML_F32, w))
            dequantized[n] = w
            continue
        kind, convert = BLOCKS[FILES[name](n)]
        raw, dequantized[n] = convert(w)
        tensors.append((gguf_name(n), kind, (w.shape, raw)))
    config = json.loads((ternlib.pathlib.Path(MODEL) / "config.json").read_text())
    config["num_hidden_layers"] = LAYERS
    F.write_gguf(str(tmp_path / "model.gguf"), fields(config), tensors)
    want = perplexity(write_dir(tmp_path / "float32", dequantized), text)
    got = perplexity(tmp_path / "model.gguf", text, "--tokenizer", MODEL)
    assert got == pytest.approx(want, rel=2e-3 if name == "f16" else 1e-5)  # f16 is rounded to bf16 unless it is asked for
    close = perplexity(tmp_path / "model.gguf", text, "--tokenizer", MODEL, "--quantization-inputs", "8")
    assert close == pytest.approx(want, rel=0.03)
    assert name != "q4_k_m" or "int6 (groups of 16, f16 scales, minima)" in read_kinds(tmp_path / "model.gguf")


# ---- what tern quantize writes ----
WRITTEN = {"int8": ["--scheme", "int8"], "int4": ["--scheme", "int4"], "awq": ["--scheme", "int4", "--format", "awq"],
           "fp8": ["--scheme", "fp8", "--ignore", "none"], "fp8_blocks": ["--scheme", "fp8", "--format", "fp8"],
           "w2": ["--scheme", "w2"]}


def decode(t, layer):
    """float32 of a layer that was written; t: name -> Stored."""
    def get(suffix):
        return t[f"{layer}.{suffix}"]
    if f"{layer}.quant_weight" in t:
        return np.ascontiguousarray(F.ccq_dequantize(
            get("quant_weight").data, get("weight_scale").data, get("code_scale").data, get("code_zp").data,
            F.stored_f32(get("super_scales"))).T)
    if f"{layer}.qweight" in t:
        return F.awq_dequantize(get("qweight").data, get("qzeros").data, F.stored_f32(get("scales")))
    if f"{layer}.weight_packed" in t:
        return F.ct_w4a16_dequantize(get("weight_packed").data, F.stored_f32(get("weight_scale")), get("weight_shape").data)
    w = F.stored_f32(get("weight"))
    if f"{layer}.weight_scale_inv" in t:
        return F.fp8_block_dequantize(get("weight").data, F.stored_f32(get("weight_scale_inv")))
    return F.scaled_dequantize(w, F.stored_f32(get("weight_scale"))) if f"{layer}.weight_scale" in t else w


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_has_the_perplexity_of_its_dequantized_weights(plain, text, tmp_path, name):
    model = write_dir(tmp_path / "model", {n: F.Stored("BF16", F.f32_to_bf16(w)) for n, w in plain.items()})
    r = run("quantize", model, tmp_path / "out", *WRITTEN[name], timeout=240)
    assert r.returncode == 0, r.stderr.decode()
    t, _ = F.read_safetensors(str(tmp_path / "out" / "model.safetensors"))
    reference = {n: decode(t, n.removesuffix(".weight")) if is_linear(n) else w for n, w in plain.items()}
    want = perplexity(write_dir(tmp_path / "float32", reference), text)
    assert perplexity(tmp_path / "out", text) == pytest.approx(want, rel=1e-5)
