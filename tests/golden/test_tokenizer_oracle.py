# SPDX-License-Identifier: Apache-2.0
"""Tokenizer against SentencePiece itself (python3-sentencepiece) on random and hostile strings: same ids, same decoded
text, and incremental pieces that join to it. Drives the small program text_tool (JSON lines)."""
import json
import os
import pathlib
import random
import subprocess

import pytest

spm = pytest.importorskip("sentencepiece")
SHARED = pathlib.Path(os.environ.get("TERN_SHARED", pathlib.Path(__file__).resolve().parents[2].parent / "shared"))
ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = os.environ.get("TERN_TEXT_TOOL", str(ROOT / "build" / "tests" / "text_tool"))
MODELS = ["assets/ernie-tokenizer", "fixtures/tokenizer", "models/tern-poet"]
SPECIAL = ["<s>", "</s>", "<unk>", "<|end_of_sentence|>", "<|begin_of_sentence|>", "<mask:1>", "<mask:4>", "<0x0A>",
           "<0xFF>", "<|LOC_1|>", "<|", "|>", "<|IMAGE_PLACEHOLDER|>"]
POOLS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCXYZ", "0123456789", " ", "  ", "\n\t\r", ".,;:!?'\"()[]{}<>|/\\-_=+*&^%$#@~`",
    "的一是不了在人有我他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生", "，。！？；：“”（）、《》",
    "éüßñçøåÆŒ", "αβγδ", "абвгд", "ابجد", "กขค", "한국어", "ひらカナ", "😈🤗👨‍👩‍👧🇨🇳", "\u2581", "\u3000\u00a0\u200b\ufeff",
    "\x00\x01\x07\x1b\x7f\x85", "\U00020bb7\U0001f9ff\U0010ffff\ufffd\ufffe", "龘𠮷躞蹀",
]


def texts(rng, n):
    for _ in range(n):
        kind = rng.random()
        if kind < 0.05:
            yield rng.choice("".join(POOLS)) * rng.randint(1, 300)
        elif kind < 0.10:
            yield "".join(chr(c) for c in (rng.randrange(0x110000) for _ in range(rng.randint(1, 40)))
                          if not 0xd800 <= c < 0xe000)
        elif kind < 0.3:
            pool = rng.choice(POOLS)
            yield "".join(rng.choice(pool) for _ in range(rng.randint(0, 200)))
        else:
            pools = [rng.choice(POOLS) for _ in range(rng.randint(1, 5))]
            yield "".join(rng.choice(SPECIAL) if rng.random() < 0.03 else rng.choice(rng.choice(pools))
                          for _ in range(rng.randint(0, 120)))


def tool(mode, folder, values, *flags):
    p = subprocess.run([TOOL, mode, str(folder), *flags], input="".join(json.dumps(v) + "\n" for v in values),
                       capture_output=True, text=True, timeout=300)
    assert p.returncode == 0, p.stderr
    out = [json.loads(line) for line in p.stdout.splitlines()]
    assert len(out) == len(values)
    return out


@pytest.fixture(params=MODELS)
def model(request):
    folder = (ROOT if request.param.startswith("models") else SHARED) / request.param
    if not (folder / "tokenizer.model").exists():
        pytest.skip(f"{request.param} is not here")
    if not os.path.exists(TOOL):
        pytest.skip("text_tool is not built")
    return folder, spm.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


def specials(folder, sp):
    """string -> id of everything a side file or the model calls special."""
    def load(name):
        return json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    found = {sp.IdToPiece(i): i for i in range(sp.GetPieceSize()) if sp.IsControl(i)}
    found.update(load("added_tokens.json"))
    for doc in (load("tokenizer_config.json"), load("special_tokens_map.json")):
        names = [v for k, v in doc.items() if k.endswith("_token") and isinstance(v, str)]
        for s in names + (doc.get("additional_special_tokens") or []):
            if s in found or sp.PieceToId(s) != sp.unk_id() or s == "<unk>":
                found.setdefault(s, sp.PieceToId(s))
    return found


def test_random_strings_give_sentencepiece_ids(model):
    folder, sp = model
    cases = list(texts(random.Random(1), 4000))
    for text, ids in zip(cases, tool("encode", folder, cases, "plain")):
        assert ids == sp.EncodeAsIds(text), repr(text)


def test_long_runs_give_sentencepiece_ids(model):
    """Chunks longer than the scan limit are merged with a heap: both must agree with SentencePiece at every length."""
    folder, sp = model
    rng = random.Random(2)
    cases = [unit * (n // len(unit) + 1) for unit in ("a", " ", "的", "-", "=*", "ab ", "hello") for n in range(30, 60)]
    cases += ["".join(rng.choice("etaoin shrdlu") for _ in range(20000)), "".join(rng.choice("的一是不了在人有我") for _ in range(20000))]
    for text, ids in zip(cases, tool("encode", folder, cases, "plain")):
        assert ids == sp.EncodeAsIds(text), repr(text[:80])


def test_spans_between_specials_are_encoded_independently(model):
    folder, sp = model
    special = specials(folder, sp)
    cases = list(texts(random.Random(3), 1500))
    for text, ids in zip(cases, tool("encode", folder, cases)):
        want, pos = [], 0
        while pos < len(text):
            hits = [(text.find(s, pos), -len(s), s) for s in special if text.find(s, pos) >= 0]
            start, _, name = min(hits) if hits else (len(text), 0, None)
            want += sp.EncodeAsIds(text[pos:start])
            pos = start
            if name:
                want.append(special[name])
                pos += len(name)
        assert ids == want, repr(text)


def test_random_ids_decode_as_sentencepiece(model):
    folder, sp = model
    rng = random.Random(4)
    hidden = set(specials(folder, sp).values()) | {sp.unk_id()}
    ordinary = [i for i in range(sp.GetPieceSize()) if i not in hidden]
    as_bytes = [i for i in ordinary if sp.IsByte(i)]
    cases = [[rng.choice(as_bytes if rng.random() < 0.6 else ordinary) for _ in range(rng.randint(0, 60))]
             for _ in range(3000)]
    for ids, got in zip(cases, tool("decode", folder, cases)):
        assert got["text"] == sp.DecodeIds(ids), ids
        assert "".join(got["pieces"]) == got["text"], ids
