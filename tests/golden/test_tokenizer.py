# SPDX-License-Identifier: Apache-2.0
"""`tern tokenize`: lines in, one JSON array of ids a line out, against ids that SentencePiece gave."""
import json

import pytest
import ternlib


def tokenize(directory, lines, *args):
    r = ternlib.run("tokenize", directory, *args, stdin="".join(x + "\n" for x in lines).encode())
    assert r.returncode == 0, r.stderr
    out = r.stdout.decode("utf-8").split("\n")
    assert out.pop() == ""
    return out


@pytest.fixture(scope="module")
def real(shared):
    directory = shared / "assets" / "ernie-tokenizer"
    cases = [json.loads(x) for x in (directory / "golden.jsonl").read_text("utf-8").splitlines()]
    return directory, cases


def single_line(text):
    return not any(c in text for c in "\n\r")


def test_real_tokenizer_gives_the_golden_ids_on_every_line(real):
    directory, cases = real
    assert len(cases) > 7800
    got = tokenize(directory, [json.dumps(c["text"]) for c in cases], "--jsonl")
    wrong = [(c["text"], json.loads(g), c["ids"]) for c, g in zip(cases, got, strict=True) if json.loads(g) != c["ids"]]
    assert not wrong, (len(wrong), wrong[:3])


def test_plain_lines_give_the_same_as_json_lines(real):
    directory, cases = real
    some = [c for c in cases if single_line(c["text"])][:500]
    for c, g in zip(some, tokenize(directory, [c["text"] for c in some]), strict=True):
        assert json.loads(g) == c["ids"]


def test_real_tokenizer_round_trips(real):
    """A typed U+2581 comes back as a space: SentencePiece can't tell them apart."""
    directory, cases = real
    got = tokenize(directory, [json.dumps(c["ids"]) for c in cases], "--decode", "--jsonl")
    wrong = [(c["text"], g) for c, g in zip(cases, got, strict=True) if json.loads(g) != c["text"].replace("▁", " ")]
    assert not wrong, (len(wrong), wrong[:3])


def test_fixture_tokenizer_encodes_and_decodes_like_the_golden(shared):
    directory = shared / "fixtures" / "tokenizer"
    cases = json.loads((directory / "golden.json").read_text("utf-8"))["encode"]
    one = [c for c in cases if single_line(c["text"])]
    assert len(one) > 15
    for c, g in zip(one, tokenize(directory, [c["text"] for c in one]), strict=True):
        assert json.loads(g) == c["ids"], c["text"]
    for c, g in zip(one, tokenize(directory, [json.dumps(c["ids"]) for c in one], "--decode"), strict=True):
        assert g == c["decoded"], c["ids"]


def test_only_the_tokenizer_files_are_needed(shared, tmp_path):
    src = shared / "assets" / "ernie-tokenizer"
    (tmp_path / "tokenizer.model").write_bytes((src / "tokenizer.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_bytes((src / "tokenizer_config.json").read_bytes())
    assert json.loads(tokenize(tmp_path, ["This is a test"])[0]) == [1720, 357, 274, 1167]


def test_time_is_linear_in_the_length_of_a_line(real):
    """A long text without a single break takes a moment, not hours."""
    directory, _ = real
    for text in ("a" * 300_000, "哈" * 100_000, " " * 300_000, "ab\u4f60" * 70_000):
        ids = json.loads(tokenize(directory, [text])[0])
        assert json.loads("[" + ",".join(map(str, ids)) + "]")
        assert tokenize(directory, [json.dumps(ids)], "--decode")[0] == text


def test_bad_input_is_refused_by_line(shared):
    directory = shared / "fixtures" / "tokenizer"
    for data, args in ((b"good\n\xff\xfe\n", ()), (b"[1,2]\n[1,\n", ("--decode",)), (b"[99999999]\n", ("--decode",))):
        r = ternlib.run("tokenize", directory, *args, stdin=data)
        assert r.returncode == 1
        assert len(r.stderr.splitlines()) == 1 and b"line " in r.stderr, r.stderr


def test_a_directory_without_a_tokenizer_names_the_files_looked_for(tmp_path):
    r = ternlib.run("tokenize", tmp_path, stdin=b"x\n")
    assert r.returncode == 1
    assert len(r.stderr.splitlines()) == 1 and b"tokenizer.model" in r.stderr, r.stderr
