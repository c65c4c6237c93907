# SPDX-License-Identifier: Apache-2.0
"""Loading: what is accepted without editing a file, and what is refused, in one line, before a port is bound."""
import json
import os
import shutil
import socket
import subprocess
import time

import pytest
import ternlib
from ternlib import generate, read_safetensors, run, write_safetensors

IDS = [688, 389, 146, 1009, 152, 764, 1034]


def copy(shared, dst, name="dense-hf"):
    dst.mkdir(parents=True, exist_ok=True)
    for f in (shared / "fixtures" / name).iterdir():
        if f.name != "golden.json":
            (dst / f.name).write_bytes(f.read_bytes())
            os.chmod(dst / f.name, 0o644)
    return dst


def config(d, **changes):
    c = json.loads((d / "config.json").read_text())
    for k, v in changes.items():
        if v is None:
            c.pop(k, None)
        else:
            c[k] = v
    (d / "config.json").write_text(json.dumps(c))


def rewrite(d, change, file="model.safetensors"):
    """change(tensors, header) edits either; the header is written as it stands after it."""
    meta, tensors = read_safetensors(d / file)
    header = ternlib.header_of(tensors, meta)
    out = change(tensors, header)
    write_safetensors(d / file, tensors, meta, header if out is None else out)


def retensor(d, change, file="model.safetensors"):
    meta, tensors = read_safetensors(d / file)
    change(tensors)
    write_safetensors(d / file, tensors, meta)


# ---- faults: name -> (base fixture, what breaks it, what the line must name) ----
FAULTS = {}


def fault(*words, base="dense-hf"):
    def add(f):
        FAULTS[f.__name__] = (base, f, words)
        return f
    return add


DOWN = "model.layers.1.mlp.down_proj.weight"
FILE = "model.safetensors"


@fault(FILE)
def empty_file(d):
    (d / FILE).write_bytes(b"")


@fault(FILE)
def weights_are_a_pipe_without_a_writer(d):
    (d / FILE).unlink()
    os.mkfifo(d / FILE)


@fault("config.json")
def config_is_a_pipe_without_a_writer(d):
    (d / "config.json").unlink()
    os.mkfifo(d / "config.json")


@fault("generation_config.json")
def an_optional_file_is_a_link_to_nothing(d):
    (d / "generation_config.json").symlink_to(d / "nothing")


@fault("added_tokens.json")
def an_optional_tokenizer_file_is_a_link_to_itself(d):
    (d / "added_tokens.json").unlink()
    (d / "added_tokens.json").symlink_to("added_tokens.json")


@fault(FILE)
def truncated_before_the_header_length_ends(d):
    (d / FILE).write_bytes((d / FILE).read_bytes()[:5])


@fault(FILE)
def truncated_in_the_header(d):
    (d / FILE).write_bytes((d / FILE).read_bytes()[:700])


@fault(FILE, "1700632", "1500000")
def truncated_in_the_data(d):
    (d / FILE).write_bytes((d / FILE).read_bytes()[:1500000])


@fault(FILE, "1700632", "1700647")
def bytes_after_the_last_tensor(d):
    (d / FILE).write_bytes((d / FILE).read_bytes() + b"x" * 15)


@fault(FILE, "LFS")
def git_lfs_pointer(d):
    (d / FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 1700632\n")


@fault("tokenizer.model", "LFS")
def git_lfs_pointer_as_tokenizer(d):
    (d / "tokenizer.model").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64
                                       + "\nsize 1614363\n")


@fault(FILE, "9223372036854775807")
def header_length_beyond_the_file(d):
    raw = bytearray((d / FILE).read_bytes())
    raw[:8] = (2 ** 63 - 1).to_bytes(8, "little")
    (d / FILE).write_bytes(raw)


@fault(FILE)
def header_length_zero(d):
    raw = bytearray((d / FILE).read_bytes())
    raw[:8] = bytes(8)
    (d / FILE).write_bytes(raw)


@fault(FILE)
def header_is_not_json(d):
    rewrite(d, lambda t, h: b'{"model.norm.weight":{"dtype":"BF16","shape":[128]' + b" " * 7)


@fault(FILE)
def header_is_a_list(d):
    rewrite(d, lambda t, h: b"[1,2,3]  ")


@fault(FILE, DOWN)
def offsets_overlap(d):
    def change(t, h):
        h[DOWN]["data_offsets"] = h["model.layers.0.mlp.down_proj.weight"]["data_offsets"]
    rewrite(d, change)


@fault(FILE, DOWN)
def offsets_beyond_the_data(d):
    def change(t, h):
        a, b = h[DOWN]["data_offsets"]
        h[DOWN]["data_offsets"] = [a + (1 << 40), b + (1 << 40)]
    rewrite(d, change)


@fault(FILE, DOWN)
def offsets_run_backwards(d):
    def change(t, h):
        h[DOWN]["data_offsets"].reverse()
    rewrite(d, change)


@fault(FILE, DOWN)
def offsets_negative(d):
    def change(t, h):
        h[DOWN]["data_offsets"] = [-8, h[DOWN]["data_offsets"][1] - h[DOWN]["data_offsets"][0] - 8]
    rewrite(d, change)


@fault(FILE, DOWN)
def size_differs_from_shape(d):
    def change(t, h):
        h[DOWN]["shape"] = [128, 350]
    rewrite(d, change)


@fault(FILE, DOWN)
def shape_overflows(d):
    def change(t, h):
        h[DOWN]["shape"] = [2 ** 62, 2 ** 62]
    rewrite(d, change)


@fault(FILE, DOWN, "[128, 352]", "[352, 128]")
def wrong_shape(d):
    def change(t):
        t[DOWN] = (t[DOWN][0], [352, 128], t[DOWN][2])
    retensor(d, change)


@fault(FILE, "model.norm.weight", "128")
def wrong_rank(d):
    def change(t):
        t["model.norm.weight"] = ("BF16", [1, 128], t["model.norm.weight"][2])
    retensor(d, change)


@fault("ernie.layers.1.mlp.up_gate_proj.weight", "[128, 704]", "[704, 128]", base="dense-paddle")
def wrong_shape_in_a_paddle_file(d):
    def change(t):
        n = "ernie.layers.1.mlp.up_gate_proj.weight"
        t[n] = (t[n][0], [704, 128], t[n][2])
    retensor(d, change)


@fault(DOWN)
def missing_tensor(d):
    retensor(d, lambda t: t.pop(DOWN))


@fault("ernie.layers.2.self_attn.qkv_proj.weight", base="dense-paddle")
def missing_tensor_in_a_paddle_file(d):
    retensor(d, lambda t: t.pop("ernie.layers.2.self_attn.qkv_proj.weight"))


@fault("model.layers.3")
def config_with_more_layers_than_the_file(d):
    config(d, num_hidden_layers=4)


@fault("model.layers.2")
def config_with_fewer_layers_than_the_file(d):
    config(d, num_hidden_layers=2)


@fault(FILE, "model.layers.1.self_attn.q_norm.weight")
def unknown_tensor(d):
    retensor(d, lambda t: t.__setitem__("model.layers.1.self_attn.q_norm.weight", ("BF16", [64], bytes(128))))


@fault("config.json", "LlamaForCausalLM", "Ernie4_5")
def unsupported_architecture(d):
    config(d, architectures=["LlamaForCausalLM"], model_type="llama")


@fault(FILE, DOWN, "I64")
def unsupported_dtype(d):
    def change(t):
        _, shape, data = t[DOWN]
        t[DOWN] = ("I64", shape, data * 4)
    retensor(d, change)


@fault(FILE, DOWN, "BOGUS")
def unknown_dtype(d):
    def change(t):
        t[DOWN] = ("BOGUS", t[DOWN][1], t[DOWN][2])
    retensor(d, change)


@fault("config.json")
def missing_config(d):
    (d / "config.json").unlink()


@fault("config.json")
def config_is_not_json(d):
    (d / "config.json").write_text('{"hidden_size": 128,')


@fault("config.json")
def config_is_a_list(d):
    (d / "config.json").write_text("[]")


@fault("config.json", "hidden_size")
def config_without_hidden_size(d):
    config(d, hidden_size=None)


@fault("config.json", "hidden_size")
def config_with_a_string_for_a_number(d):
    config(d, hidden_size="128")


@fault("config.json", "num_hidden_layers")
def config_with_a_negative_number(d):
    config(d, num_hidden_layers=-3)


@fault("config.json", "vocab_size")
def config_with_a_huge_number(d):
    config(d, vocab_size=10 ** 18)


@fault("config.json", "num_key_value_heads")
def config_with_heads_that_do_not_divide(d):
    config(d, num_key_value_heads=3)


@fault("config.json", "num_attention_heads")
def config_with_zero_heads(d):
    config(d, num_attention_heads=0)


@fault("config.json", "rms_norm_eps")
def config_with_a_negative_epsilon(d):
    config(d, rms_norm_eps=-1)


@fault("config.json", "hidden_act")
def config_with_another_activation(d):
    config(d, hidden_act="gelu")


@fault("config.json", "rope_scaling")
def config_with_rope_scaling(d):
    config(d, rope_scaling={"type": "yarn", "factor": 4.0})


@fault("config.json", "use_bias")
def config_with_biases(d):
    config(d, use_bias=True)


@fault("config.json", "quantization_config")
def config_with_an_unknown_quantization(d):
    config(d, quantization_config={"quant_method": "secret", "bits": 3})


@fault("tokenizer.model")
def missing_tokenizer(d):
    (d / "tokenizer.model").unlink()


@fault("tokenizer.model")
def truncated_tokenizer(d):
    (d / "tokenizer.model").write_bytes((d / "tokenizer.model").read_bytes()[:9000])


@fault("tokenizer.model")
def empty_tokenizer(d):
    (d / "tokenizer.model").write_bytes(b"")


@fault("added_tokens.json")
def added_tokens_not_json(d):
    (d / "added_tokens.json").write_text("{")


@fault("tokenizer_config.json")
def tokenizer_config_not_json(d):
    (d / "tokenizer_config.json").write_text("{")


@fault("generation_config.json")
def generation_config_not_json(d):
    (d / "generation_config.json").write_text("{")


@fault("safetensors")
def no_weights_at_all(d):
    (d / FILE).unlink()


@fault("model-00002-of-00002.safetensors", base="dense-hf-sharded")
def shard_is_absent(d):
    (d / "model-00002-of-00002.safetensors").unlink()


@fault("model.layers.1.mlp.up_proj.weight", "model-00002-of-00002.safetensors", base="dense-hf-sharded")
def index_names_a_tensor_the_shard_lacks(d):
    retensor(d, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "model-00002-of-00002.safetensors")


@fault("model.norm.weight", base="dense-hf-sharded")
def index_lacks_a_tensor(d):
    f = d / "model.safetensors.index.json"
    index = json.loads(f.read_text())
    del index["weight_map"]["model.norm.weight"]
    f.write_text(json.dumps(index))
    retensor(d, lambda t: t.pop("model.norm.weight"), "model-00002-of-00002.safetensors")


@fault("model.safetensors.index.json", base="dense-hf-sharded")
def index_is_not_json(d):
    (d / "model.safetensors.index.json").write_text('{"weight_map":')


@fault("model.safetensors.index.json", base="dense-hf-sharded")
def index_without_a_weight_map(d):
    (d / "model.safetensors.index.json").write_text('{"metadata":{}}')


@fault("model.safetensors.index.json", base="dense-hf-sharded")
def index_that_climbs_out_of_the_folder(d):
    f = d / "model.safetensors.index.json"
    f.write_text(f.read_text().replace("model-00002-of-00002.safetensors", "../model-00002-of-00002.safetensors"))
    shutil.copy(d / "model-00002-of-00002.safetensors", d.parent)


@fault("model-00002-of-00002.safetensors", base="dense-hf-sharded")
def shard_is_truncated(d):
    f = d / "model-00002-of-00002.safetensors"
    f.write_bytes(f.read_bytes()[:-100])


@fault("lm_head.weight", base="dense-hf-untied")
def untied_without_a_head(d):
    retensor(d, lambda t: t.pop("lm_head.weight"))


@pytest.fixture
def taken_port():
    """A port that somebody holds: a program that binds before it has looked at the files complains about the port."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield s.getsockname()[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_norm_that_is_not_finite_is_refused_by_name(tmp_path, shared, dtype):
    name = "model.layers.1.input_layernorm.weight"
    d = copy(shared, tmp_path)

    def change(tensors):
        kind, shape, data = tensors[name]
        assert kind == "BF16"
        tensors[name] = kind, shape, data[:6] + b"\xc0\x7f" + data[8:]
    retensor(d, change)
    r = run("generate", d, "--prompt-ids", "1,2", "--max-tokens", 2, "--dtype", dtype)
    line = r.stderr.decode().splitlines()[-1]
    assert r.returncode == 1 and r.stdout == b""
    assert f"tensor {name}: element 3 is nan, expected a finite number" in line


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line_and_exit_1(shared, tmp_path, taken_port, name):
    base, breaks, words = FAULTS[name]
    d = copy(shared, tmp_path / "model", base)
    breaks(d)
    r = run("generate", d, "--prompt-ids", "5", "--max-tokens", 1)
    line = r.stderr.decode("utf-8", "strict")
    assert r.returncode == 1, (r.returncode, line, r.stdout)
    assert r.stdout == b""
    assert len(line.splitlines()) == 1 and line.endswith("\n"), line
    for w in words:
        assert w in line, line

    r = run("serve", d, "--host", "127.0.0.1", "--port", taken_port)
    assert r.returncode == 1
    out = (r.stdout + r.stderr).decode("utf-8", "strict")
    assert str(taken_port) not in out, out
    last = r.stderr.decode().splitlines()[-1]
    for w in words:
        assert w in last, last


# ---- what is accepted ----

@pytest.fixture(scope="module")
def reference(shared):
    return generate(shared / "fixtures" / "dense-hf", IDS, 16, logprobs=3)[0]


def same(reference, path):
    out = generate(path, IDS, 16, logprobs=3)[0]
    assert out["token_ids"] == reference["token_ids"]
    assert out["logprobs"] == reference["logprobs"]


@pytest.mark.parametrize("folder", ["ERNIE-4.5-0.3B", "two words", "文心 4.5 测试", "-dash", "a'b\"c", "v1.0.safetensors"])
def test_any_legal_folder_name_works(shared, tmp_path, reference, folder):
    d = copy(shared, tmp_path / folder)
    same(reference, d)
    same(reference, str(d) + "/")
    same(reference, str(d) + "//")


def test_symlinked_folders_and_files_work(shared, tmp_path, reference):
    real = copy(shared, tmp_path / "blobs")
    (tmp_path / "link").symlink_to(real, target_is_directory=True)
    same(reference, tmp_path / "link")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for f in real.iterdir():
        (snapshot / f.name).symlink_to(os.path.join("..", "blobs", f.name))
    same(reference, snapshot)


def test_a_relative_path_works(shared, tmp_path, reference, monkeypatch):
    copy(shared, tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ternlib, "TERN", os.path.abspath(ternlib.TERN))
    same(reference, "m")
    monkeypatch.chdir(tmp_path / "m")
    same(reference, ".")


def test_both_architecture_spellings_and_any_tokenizer_class_load(shared, tmp_path, reference):
    d = copy(shared, tmp_path / "m")
    for arch in ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"):
        for cls in ("Ernie4_5_Tokenizer", "LlamaTokenizer", "SomethingElse", None):
            config(d, architectures=[arch])
            t = json.loads((d / "tokenizer_config.json").read_text())
            t["tokenizer_class"] = cls
            if cls is None:
                del t["tokenizer_class"]
            (d / "tokenizer_config.json").write_text(json.dumps(t))
            same(reference, d)


def test_optional_config_fields_may_be_missing(shared, tmp_path, reference):
    d = copy(shared, tmp_path / "m")
    config(d, rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, torch_dtype=None,
           auto_map=None, use_cache=None, use_bias=None, pad_token_id=None, tie_word_embeddings=None, rope_scaling=None)
    same(reference, d)
    config(d, rope_theta=500000.0, rope_parameters=None, dtype="bfloat16", something_new={"a": [1]},
           rope_scaling=None)
    same(reference, d)


def test_a_tied_model_loads_with_a_redundant_head(shared, tmp_path, reference):
    d = copy(shared, tmp_path / "m")
    retensor(d, lambda t: t.__setitem__("lm_head.weight", t["model.embed_tokens.weight"]))
    same(reference, d)


def test_two_shards_with_an_index_equal_the_single_file(shared, tmp_path, reference):
    d = copy(shared, tmp_path / "m")
    meta, tensors = read_safetensors(d / FILE)
    names = list(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in halves.items():
        write_safetensors(d / file, {n: tensors[n] for n in part}, meta)
    (d / FILE).unlink()
    (d / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": 1}, "weight_map": {n: f for f, part in halves.items() for n in part}}))
    same(reference, d)
    # a second, differently named set beside the index is not looked at
    write_safetensors(d / "consolidated.safetensors", {"layers.0.attention.wk.weight": ("F32", [2], bytes(8))})
    (d / "extra.safetensors").write_bytes(b"garbage")
    same(reference, d)


def test_bf16_labelled_u16_equals_bf16(shared, tmp_path, reference):
    d = copy(shared, tmp_path / "m")

    def relabel(t):
        for k, (_, shape, data) in list(t.items()):
            t[k] = ("U16", shape, data)
    retensor(d, relabel)
    same(reference, d)


def test_info_tells_what_was_recognised(shared):
    for name, layout in (("dense-hf", "Hugging Face"), ("dense-paddle", "Paddle")):
        r = run("info", shared / "fixtures" / name)
        assert r.returncode == 0, r.stderr
        assert layout in r.stdout.decode()
        r = run("info", shared / "fixtures" / name, "--json")
        assert r.returncode == 0
        assert layout in json.dumps(ternlib.strict_json(r.stdout))


def test_a_path_that_is_no_model_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("x")
    for p in (tmp_path / "nowhere", tmp_path / "file", tmp_path):
        r = run("generate", p, "-p", "x")
        assert r.returncode == 1
        assert len(r.stderr.splitlines()) == 1 and str(p).encode() in r.stderr, r.stderr


def test_ids_outside_the_vocabulary_are_refused(shared):
    for ids in ("1152", "-1", "5,99999999999999999999", "5,,6", "x"):
        r = run("generate", shared / "fixtures" / "dense-hf", "--prompt-ids=" + ids, "--max-tokens", 1)
        assert r.returncode in (1, 2), ids
        assert len(r.stderr.splitlines()) >= 1 and r.stdout == b""


def test_an_unknown_flag_exits_2_and_dashes_equal_underscores(shared):
    d = shared / "fixtures" / "dense-hf"
    r = run("generate", d, "-p", "x", "--no-such-flag")
    assert r.returncode == 2 and b"--no-such-flag" in r.stderr
    a = run("generate", d, "--prompt-ids", "5,6", "--max-tokens", 4, "--temperature", 0, "--json")
    b = run("generate", d, "--prompt_ids", "5,6", "--max_tokens=4", "--temperature", 0, "--json")
    assert a.returncode == b.returncode == 0 and a.stdout == b.stdout


def test_a_file_that_is_cut_while_it_loads_is_named_in_one_line(tmp_path):
    """The cut comes at another moment each time: before the header is read, while it is checked, between pages of weights."""
    d = tmp_path / "m"
    shutil.copytree(ternlib.MODEL, d)
    whole = (d / "model.safetensors").read_bytes()
    for ms in range(2, 42, 4):
        (d / "model.safetensors").write_bytes(whole)
        p = subprocess.Popen([ternlib.TERN, "generate", d, "--prompt-ids", "5,6", "--max-tokens", "1"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(ms / 1000)
        os.truncate(d / "model.safetensors", 5000)
        line = p.communicate(timeout=60 * ternlib.SLOW)[1].decode()
        assert p.returncode in (0, 1) and line.count("\n") == 1, (ms, p.returncode, line)
        assert p.returncode == 0 or f"error: {d}/model.safetensors: " in line, line
