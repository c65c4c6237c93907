# SPDX-License-Identifier: Apache-2.0
"""tern quantize --pack: a model that is mapped has the bits of the one it was made from, on every level, and a file that
is not whole is refused by what is wrong with it."""
import ctypes
import ctypes.util
import json
import os
import pathlib
import re
import shutil
import struct

import pytest
import ternlib
from ternlib import MODEL, generate, run
from test_loading import config, copy

IDS = [688, 389, 146, 1009, 152, 764, 1034]


def pack(model, out, *args):
    r = run("quantize", model, out, "--pack", *args, timeout=120)
    assert r.returncode == 0, r.stderr.decode()
    return out


def same(model, packed, *args, dtype="bfloat16"):
    a, _ = generate(model, IDS, 16, dtype=dtype, logprobs=5, extra=args)
    b, _ = generate(packed, IDS, 16, dtype=dtype, logprobs=5)
    assert a["token_ids"] == b["token_ids"] and a["logprobs"] == b["logprobs"]


def numerics(model, *args):
    r = run("align", model, "--tokens", 2, "--json", *args, timeout=120)
    assert r.returncode == 0, r.stderr.decode()
    return re.search(rb'"numerics_id":"(\w+)"', r.stdout)[1]


@pytest.mark.parametrize("args", [[], ["-q", "int8"], ["-q", "fp8"], ["-q", "int4"], ["-q", "int4", "--quantization-head", "4"]])
def test_a_packed_model_has_the_bits_of_its_original(tmp_path, args):
    pack(MODEL, tmp_path / "out", *args)
    same(MODEL, tmp_path / "out", *args)
    assert numerics(tmp_path / "out") == numerics(MODEL, *args)
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["dense-hf-untied", "dense-paddle", "dense-awq", "dense-gptq", "dense-ct-w4a16", "dense-ct-w8a8",
                                  "dense-ct-fp8", "dense-fp8-block"])
def test_every_format_that_is_read_can_be_packed(shared, tmp_path, name):
    source = shared / "fixtures" / name
    pack(source, tmp_path / "out")
    assert numerics(tmp_path / "out") == numerics(source)


def test_packing_keeps_what_the_file_asks_inputs_to_be(shared, tmp_path):
    source = copy(shared, tmp_path / "source", "dense-fp8-block")
    quantization = json.loads((source / "config.json").read_text())["quantization_config"]
    config(source, quantization_config=quantization | {"fmt": "e5m2"})
    pack(source, tmp_path / "out")
    for d in (source, tmp_path / "out"):
        assert b"x fp8 E5M2" in run("info", d).stdout
    assert numerics(tmp_path / "out") == numerics(source)


def test_quantizing_and_packing_in_one_go_is_packing_what_was_quantized(tmp_path):
    args = ["--scheme", "int4", "--group-size", "64", "--head", "4"]
    assert run("quantize", MODEL, tmp_path / "file", *args, timeout=120).returncode == 0
    pack(MODEL, tmp_path / "packed", *args)
    same(tmp_path / "file", tmp_path / "packed")
    assert "quantization_config" not in json.loads((tmp_path / "packed" / "config.json").read_text())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "packed"]


def test_the_file_is_the_same_whatever_level_made_it_and_serves_every_level(tmp_path):
    def levels():
        out = run("info", MODEL).stdout.decode()
        return re.search(r"level \S+ of (.+)", out)[1].split()
    files = [pack(MODEL, tmp_path / x, "-q", "int4", "--cpu-mask", x) / "model.tern" for x in levels() if x != "scalar"]
    assert len({f.read_bytes() for f in files}) == 1
    for x in levels():
        generate(files[0].parent, IDS, 2, dtype="bfloat16", extra=["--cpu-mask", x])


def test_processes_share_the_pages_of_the_file(tmp_path):
    pack(MODEL, tmp_path / "out")
    with ternlib.Server(tmp_path / "out") as s:
        maps = pathlib.Path(f"/proc/{s.proc.pid}/smaps").read_text().split("model.tern")[1]
        begin = re.findall(r"^([0-9a-f]+)-\S+ r--s (\S+) .*model\.tern", pathlib.Path(f"/proc/{s.proc.pid}/maps").read_text(), re.M)
        assert begin and all(int(a, 16) % (2 << 20) == 0 == int(at, 16) % (2 << 20) for a, at in begin)
        assert int(re.search(r"Private_Dirty: +(\d+)", maps)[1]) == 0 and int(re.search(r"Rss: +(\d+)", maps)[1]) > 15_000


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return pack(MODEL, tmp_path_factory.mktemp("pack") / "out", "-q", "int4")


def spoil(packed, tmp_path, change):
    d = tmp_path / "bad"
    d.mkdir()
    for f in packed.iterdir():
        (d / f.name).write_bytes(f.read_bytes())
    raw = bytearray((d / "model.tern").read_bytes())
    (d / "model.tern").write_bytes(change(raw) or raw)
    return d


def put(at, data):
    def change(raw):
        raw[at:at + len(data)] = data
    return change


@pytest.mark.parametrize("change, words", [
    (lambda raw: raw[:-1], ["truncated", "bytes, expected"]),
    (lambda raw: raw[:100], ["TERNPACK"]),
    (lambda raw: b"x", ["TERNPACK"]),
    (lambda raw: raw + b"\0", ["not whole"]),
    (put(0, b"TERNPICK"), ["TERNPACK"]),
    (put(8, struct.pack("<I", 7)), ["layout 7", "layout 4", "pack the model again"]),
    (put(12, struct.pack("<I", 1 << 30)), ["don't fit"]),
    (put(600, b"\xff"), ["head", "hash"]),
    (put(-100, b"\xff\x01\x02"), ["matrices", "hash"]),
])
def test_a_damaged_file_is_refused_in_one_line(packed, tmp_path, change, words):
    d = spoil(packed, tmp_path, change)
    r = run("generate", d, "-p", "x", "--max-tokens", 1)
    line = r.stderr.decode().strip()
    assert r.returncode == 1 and len(line.splitlines()) == 1 and "model.tern" in line, line
    assert all(w in line for w in words), line


@pytest.mark.parametrize("args, words", [
    (["-q", "int8"], ["--quantization", "expected int4"]), (["--quantization-head", "8"], ["--quantization-head", "packed"])])
def test_packed_weights_are_not_quantized_again(packed, args, words):
    r = run("generate", packed, "-p", "x", "--max-tokens", 1, *args)
    assert r.returncode == 1 and all(w in r.stderr.decode() for w in words), r.stderr


def test_packing_or_quantizing_a_packed_model_is_refused(packed, tmp_path):
    for args in (["--pack"], ["--scheme", "int8"]):
        r = run("quantize", packed, tmp_path / "out", *args)
        assert r.returncode == 1 and b"packed" in r.stderr and not list(tmp_path.iterdir())


def test_a_configuration_of_another_model_is_refused(packed, tmp_path):
    d = spoil(packed, tmp_path, lambda raw: None)
    config(d, num_hidden_layers=5)
    r = run("generate", d, "-p", "x", "--max-tokens", 1)
    assert r.returncode == 1 and b"num_hidden_layers is 6, but config.json says 5" in r.stderr


def test_every_cut_and_flipped_byte_of_the_head_is_refused(packed, tmp_path):
    """info reads the head alone; it must never crash or accept."""
    d = spoil(packed, tmp_path, lambda raw: None)
    raw = (d / "model.tern").read_bytes()
    for at in [*range(0, 136, 5), *range(512, 1200, 61)]:
        with open(d / "model.tern", "r+b") as f:
            f.seek(at)
            f.write(bytes([raw[at] ^ 0x41]))
        r = run("info", d)
        assert r.returncode == 1 and len(r.stderr.splitlines()) == 1, (at, r)
        with open(d / "model.tern", "r+b") as f:
            f.seek(at)
            f.write(raw[at:at + 1])
    assert run("info", d).returncode == 0


def test_a_pipe_or_a_folder_in_its_place_is_refused_at_once(packed, tmp_path):
    d = spoil(packed, tmp_path, lambda raw: None)
    for make in (os.mkfifo, os.mkdir):
        (d / "model.tern").unlink()
        make(d / "model.tern")
        r = run("generate", d, "-p", "x", "--max-tokens", 1)
        assert r.returncode == 1 and b"model.tern: not a regular file" in r.stderr, r.stderr


def forge(model, out, change):
    """The packed model with a changed head whose hash is right."""
    xxhash = ctypes.util.find_library("xxhash")
    if xxhash is None:
        pytest.skip("needs libxxhash")

    class Hash(ctypes.Structure):
        _fields_ = [("lo", ctypes.c_uint64), ("hi", ctypes.c_uint64)]
    hash_of = ctypes.CDLL(xxhash).XXH3_128bits_withSeed
    hash_of.restype, hash_of.argtypes = Hash, [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    shutil.copytree(model, out)
    raw = bytearray((out / "model.tern").read_bytes())
    change(raw)
    raw[104:120] = bytes(16)
    n = struct.unpack_from("<Q", raw, 56)[0]
    h = hash_of(bytes(raw[:n]), n, 4)
    raw[104:120] = struct.pack("<QQ", h.lo, h.hi)
    (out / "model.tern").write_bytes(raw)
    return out


def record(matrix, field, value):
    return put(512 + 44 * matrix + 4 * field, struct.pack("<i", value))


@pytest.mark.parametrize("name, change, words", [
    ("dense-hf", put(44, struct.pack("<I", 99)), "parts don't fit"),  # method
    ("dense-hf", put(40, struct.pack("<I", 7)), "parts don't fit"),  # tied
    ("dense-hf", put(96, struct.pack("<Q", 1 << 50)), "parts don't fit"),  # bytes_per_token
    ("dense-hf", record(1, 9, 1), "numbers that can't be"),  # a plain matrix with act-order
    ("dense-ct-w8a8", record(1, 9, 1), "act-order"),
    ("dense-gptq", record(1, 9, 5), "numbers that can't be"),
    ("dense-gptq", record(1, 9, 0), "act-order"),  # act-order dropped: other products
])
def test_a_head_that_lies_with_a_right_hash_is_refused(shared, tmp_path, name, change, words):
    pack(shared / "fixtures" / name, tmp_path / "packed")
    same_bytes = forge(tmp_path / "packed", tmp_path / "same", lambda raw: None)
    assert (same_bytes / "model.tern").read_bytes() == (tmp_path / "packed" / "model.tern").read_bytes()
    r = run("generate", forge(tmp_path / "packed", tmp_path / "lies", change), "--prompt-ids", "5,6", "--max-tokens", 1)
    line = r.stderr.decode().strip()
    assert r.returncode == 1 and len(line.splitlines()) == 1 and "model.tern" in line and words in line, line


def test_a_file_that_is_cut_under_a_running_server_ends_it_with_a_line_that_names_it(packed, tmp_path):
    d = spoil(packed, tmp_path, lambda raw: None)
    with ternlib.Server(d) as s:
        os.truncate(d / "model.tern", 2 << 20)
        with pytest.raises(OSError):
            s.post("/v1/completions", {"prompt": "x", "max_tokens": 4})
        assert s.proc.wait(30) == 1
        assert f"{d}/model.tern: cut short" in s.output()
