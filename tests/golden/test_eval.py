# SPDX-License-Identifier: Apache-2.0
"""tern eval against sums made from the API's log-probabilities, and marks written a second time in Python."""
import collections
import json
import math
import re

import pytest
import ternlib
from ternlib import MODEL, SHARED, run

LETTERS = "ABCD"


@pytest.fixture(scope="module")
def server():
    with ternlib.Server(MODEL) as s:
        yield s


def evaluate(*args, model=MODEL):
    r = run("eval", model, "--json", "--quiet", *args, timeout=120)
    assert r.returncode == 0, r.stderr.decode("utf-8", "replace")
    return ternlib.strict_json(r.stdout)


def samples(tmp_path, *args):
    doc = evaluate(*args, "--log-samples", tmp_path / "samples")
    return doc, [json.loads(x) for x in (tmp_path / "samples").read_text().splitlines()]


def scored(server, text, first_character):
    """Sum of the log-probabilities of the tokens of `text` that begin at that character or later."""
    r = server.post("/v1/completions", {"prompt": text, "echo": True, "max_tokens": 0, "logprobs": 0})
    lp = r.json["choices"][0]["logprobs"]
    return sum(p for p, at in zip(lp["token_logprobs"], lp["text_offset"]) if p is not None and at >= first_character)


def write_ceval(root, subject="logic", n=3):
    rows = [("1+1等于几?", "一", "二", "三", "四", "B"), ('他说“好,来”,意思是?', "去", "来,\n坐下", "走", "跑", "B"),
            ("春天之后是?", "夏天", "秋天", "冬天", "春天", "A")][:n]
    for split in ("dev", "val"):
        (root / "ceval" / split).mkdir(parents=True, exist_ok=True)
        with open(root / "ceval" / split / f"{subject}_{split}.csv", "w", encoding="utf-8") as f:
            f.write("\ufeffid,question,A,B,C,D,answer" + (",explanation" if split == "dev" else "") + "\r\n")
            for i, row in enumerate(rows):
                cells = [str(i), *row] + (["因为"] if split == "dev" else [])
                f.write(",".join('"' + c.replace('"', '""') + '"' if re.search('[,"\n]', c) else c for c in cells) + "\r\n")
    return rows


def question(row):
    return row[0] + "".join(f"\n{k}. {v}" for k, v in zip(LETTERS, row[1:5])) + "\n答案："


def test_perplexity_is_that_of_the_log_probabilities_the_api_gives(server, tmp_path):
    text = "山中何所有，岭上多白云。\n只可自怡悦，不堪持赠君。\nOnce upon a time there was a king.\n"
    (tmp_path / "t").write_text(text)
    doc = evaluate("--perplexity", tmp_path / "t")["texts"][0]
    total = scored(server, text, 0)
    assert doc["n_scored"] == doc["n_tokens"] - 1
    assert doc["nll"] == pytest.approx(-total, rel=1e-5)
    assert doc["perplexity"] == pytest.approx(math.exp(-total / doc["n_scored"]), rel=1e-5)


def test_windows_score_every_token_once_with_what_stands_before_it_in_the_window(server, tmp_path):
    text = "白日依山尽，黄河入海流。欲穷千里目，更上一层楼。" * 2
    (tmp_path / "t").write_text(text)
    ids = server.post("/tokenize", {"prompt": text}).json["tokens"]
    doc = evaluate("--perplexity", tmp_path / "t", "--window", 16, "--stride", 6)["texts"][0]
    total, done = 0.0, 0
    while done < len(ids):
        end = min(len(ids), done + (6 if done else 16))
        begin = max(0, end - 16)
        r = server.post("/v1/completions", {"prompt": ids[begin:end], "echo": True, "max_tokens": 0, "logprobs": 0})
        lp = r.json["choices"][0]["logprobs"]["token_logprobs"]
        total += sum(lp[max(done - begin, 1):])
        done = end
    assert doc["n_scored"] == len(ids) - 1
    assert doc["nll"] == pytest.approx(-total, rel=1e-5)


def test_choices_are_compared_by_the_log_probability_of_the_letter_after_shots_and_question(server, tmp_path):
    rows = write_ceval(tmp_path)
    doc, got = samples(tmp_path, "--tasks", "ceval", "--data", tmp_path, "--num-fewshot", 2)
    head = "以下是中国关于逻辑学的单项选择题，请选出其中的正确答案。\n\n"
    shots = "".join(f"{question(r)} {r[5]}\n\n" for r in rows[:2])
    assert doc["tasks"][0]["split"] == "val" and doc["tasks"][0]["n"] == 3 == len(got)
    for row, s in zip(rows, got):
        context = head + shots + question(row)
        assert s["context"] == context
        want = [scored(server, f"{context} {k}", len(context)) for k in LETTERS]
        assert [c["logprob"] for c in s["choices"]] == pytest.approx(want, abs=2e-4)
        assert s["picked"] == max(range(4), key=lambda i: want[i]) and s["gold"] == LETTERS.index(row[5])
        assert s["correct"] == (s["picked"] == s["gold"])
    task = doc["tasks"][0]
    assert task["acc"] == sum(s["correct"] for s in got) / 3
    assert task["subjects"] == {"logic": {"n": 3, "n_correct": sum(s["correct"] for s in got), "acc": task["acc"]}}


def test_results_do_not_depend_on_how_many_questions_are_in_flight(tmp_path):
    write_ceval(tmp_path)
    args = ["--tasks", "ceval", "--data", tmp_path]
    one, many = (samples(tmp_path, *args, "--concurrency", n)[1] for n in (1, 32))
    assert one == many


def test_a_test_split_of_ceval_has_no_answers_and_is_refused(tmp_path):
    write_ceval(tmp_path)
    (tmp_path / "ceval" / "test").mkdir()
    (tmp_path / "ceval" / "test" / "logic_test.csv").write_text("id,question,A,B,C,D\n0,问,a,b,c,d\n")
    r = run("eval", MODEL, "--tasks", "ceval", "--data", tmp_path, "--split", "test")
    assert r.returncode == 1 and b"logic_test.csv: question 1 has no answer" in r.stderr
    assert evaluate("--tasks", "ceval", "--data", tmp_path)["tasks"][0]["split"] == "val"


@pytest.mark.parametrize("text, message", [
    ("id,question,A,B,C,D,answer\n0,问,a,b,c,d,E\n", b"line 2: expected id, question, A, B, C, D and an answer A to D"),
    ("id,question,A,B,C,D,answer\n0,问,a,b\n", b"line 2: expected id"),
    ('id,question,A,B,C,D,answer\n0,"问,a,b,c,d,A\n', b"line 2: a quote is not closed"),
    ("", b"no questions in it"), ("id,question,A,B,C,D,answer\n", b"no questions in it"),
    ("0,问,a,b,c,d,A\n1,问,a,b,c,d,A\n", b"line 1: expected the heading"),  # else the first question is lost
    ("id,answer,question,A,B,C,D\n0,A,问,a,b,c,d\n", b"line 1: expected the heading"),
    ("id,question,A,A,C,D,answer\n0,问,a,b,c,d,A\n", b"line 1: expected the heading"),
    ("id,question,A,B,C,D,answer\n0,q\0q,a,b,c,d,A\n", b"line 2: holds NUL"),
    (b"id,question,A,B,C,D,answer\n0,q\xff,a,b,c,d,A\n", b"line 2: holds NUL, or is not UTF-8"),
])
def test_a_broken_file_is_named_with_its_line(tmp_path, text, message):
    write_ceval(tmp_path)
    (tmp_path / "ceval" / "val" / "logic_val.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    r = run("eval", MODEL, "--tasks", "ceval", "--data", tmp_path)
    assert r.returncode == 1 and b"logic_val.csv" in r.stderr and re.search(message[:20], r.stderr), r.stderr


def test_texts_that_are_no_utf8_and_answers_without_a_number_are_named(tmp_path):
    (tmp_path / "text").write_bytes(b"abc\xff")
    for command in (["eval", MODEL, "--perplexity"],
                    ["quantize", MODEL, tmp_path / "out", "--scheme", "int4", "--calibrate"]):
        r = run(*command, tmp_path / "text")
        assert r.returncode == 1 and f"{tmp_path}/text: text is not valid UTF-8 at byte 3" in r.stderr.decode(), r.stderr
    (tmp_path / "gsm8k").mkdir()
    for line, words in (('{"question":"a","answer":"b"}', 'line 1: expected an answer that ends in "#### N"'),
                        ("", "no questions in it")):
        (tmp_path / "gsm8k" / "test.jsonl").write_text(line)
        r = run("eval", MODEL, "--tasks", "gsm8k", "--data", tmp_path)
        assert r.returncode == 1 and f"test.jsonl: {words}" in r.stderr.decode(), r.stderr


@pytest.mark.parametrize("args, code, message", [
    ([], 1, b"nothing to evaluate"),
    (["--tasks", "ceval"], 1, b"--tasks needs --data"),
    (["--tasks", "hellaswag", "--data", "."], 1, b"expected ceval, cmmlu, mmlu or gsm8k"),
    (["--perplexity", "/nowhere"], 1, b"/nowhere"),
    (["--window", "-1"], 2, b"--window"),
])
def test_wrong_usage_is_one_line(args, code, message):
    r = run("eval", MODEL, *args)
    assert r.returncode == code and message in r.stderr, r.stderr


# ---- marks, a second time ----

def words(text, lower):
    text = text.lower() if lower else text
    return re.findall(r"[0-9A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u052f]+|\S", text)


def bleu(pairs):
    match, total, length, ref_length = [0] * 4, [0] * 4, 0, 0
    for out, refs in pairs:
        out, refs = words(out, False), [words(r, False) for r in refs]
        length += len(out)
        ref_length += min((abs(len(r) - len(out)), len(r)) for r in refs)[1]
        for n in range(1, 5):
            grams = lambda w: collections.Counter(tuple(w[i:i + n]) for i in range(len(w) - n + 1))
            best = collections.Counter()
            for r in refs:
                best |= grams(r)
            match[n - 1] += sum((grams(out) & best).values())
            total[n - 1] += max(len(out) - n + 1, 0)
    smooth, logs = 1, 0
    for m, t in zip(match, total):
        if t == 0 or match[0] == 0:
            return 0.0
        if m == 0:
            smooth *= 2
            m = 1 / smooth
        logs += math.log(m / t)
    return 100 * min(1.0, math.exp(1 - ref_length / length) if length else 0) * math.exp(logs / 4)


def rouge_l(out, refs):
    def common(a, b):
        row = [0] * (len(b) + 1)
        for x in a:
            new = [0]
            for j, y in enumerate(b):
                new.append(row[j] + 1 if x == y else max(row[j + 1], new[j]))
            row = new
        return row[-1]
    a = words(out, True)
    return max(200 * common(a, words(r, True)) / (len(a) + len(words(r, True))) if a or words(r, True) else 0 for r in refs)


def test_bleu_and_rouge_l_equal_a_second_implementation(tmp_path):
    prompts = ["写一首五言绝句，题目是《月》。", "Once upon a time", "春"]
    refs = [["明月出天山，苍茫云海间。", "床前明月光，疑是地上霜。"], ["there was a King. THE king had a son"], ["春风又绿江南岸"]]
    with open(tmp_path / "r", "w") as f:
        for p, r in zip(prompts, refs):
            f.write(json.dumps({"prompt": p, "references": r}) + "\n")
    doc, got = samples(tmp_path, "--references", tmp_path / "r", "--max-gen-tokens", 24)
    outputs = [s["output"] for s in got]
    for p, text in zip(prompts, outputs):
        r = run("generate", MODEL, "--temperature", 0, "-p", p, "--max-tokens", 24, "--json")
        assert json.loads(r.stdout)["outputs"][0]["text"] == text
    assert [s["rouge_l"] for s in got] == pytest.approx([rouge_l(o, r) for o, r in zip(outputs, refs)])
    assert doc["tasks"][0]["bleu"] == pytest.approx(bleu(list(zip(outputs, refs))))
    # against the answers themselves both are perfect, and so is exact match
    with open(tmp_path / "r", "w") as f:
        for p, text in zip(prompts, outputs):
            f.write(json.dumps({"prompt": p, "reference": text}) + "\n")
    doc = evaluate("--references", tmp_path / "r", "--max-gen-tokens", 24)["tasks"][0]
    assert (doc["bleu"], doc["rouge_l"], doc["exact_match"]) == pytest.approx((100, 100, 1))


def test_gsm8k_shots_stop_and_number_reading(tmp_path):
    (tmp_path / "gsm8k").mkdir()
    rows = [{"question": f"What is {i} plus 1?", "answer": f"{i}+1=<<{i}+1={i + 1}>>{i + 1}\n#### {i + 1}"} for i in range(4)]
    (tmp_path / "gsm8k" / "test.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    doc, got = samples(tmp_path, "--tasks", "gsm8k", "--data", tmp_path, "--num-fewshot", 2, "--max-gen-tokens", 8)
    assert doc["tasks"][0]["n"] == 2 and "not scored" in doc["tasks"][0]["note"]
    shots = "".join(f"Question: {r['question']}\nAnswer: {r['answer']}\n\n" for r in rows[:2])
    assert got[0]["context"] == f"{shots}Question: What is 2 plus 1?\nAnswer:"
    (tmp_path / "gsm8k" / "train.jsonl").write_text(json.dumps(rows[3]) + "\n")
    doc, got = samples(tmp_path, "--tasks", "gsm8k", "--data", tmp_path, "--num-fewshot", 2, "--max-gen-tokens", 8)
    assert doc["tasks"][0]["n"] == 4 and got[0]["context"].count("Question:") == 2
    assert all("Question:" not in s["output"] for s in got)


@pytest.mark.skipif(not (SHARED / "assets" / "eval").is_dir(), reason="needs the shared folder")
@pytest.mark.parametrize("task, subjects, split", [("ceval", 52, "val"), ("cmmlu", 67, "dev"), ("mmlu", 57, "val")])
def test_published_files_are_read_whole(task, subjects, split):
    doc = evaluate("--tasks", task, "--data", SHARED / "assets" / "eval", "--limit", 1, "--num-fewshot", 0)["tasks"][0]
    assert len(doc["subjects"]) == doc["n"] == subjects and doc["split"] == split


# ---- a server instead of a directory ----

@pytest.mark.parametrize("own_tokenizer", [False, True])
def test_a_server_is_measured_like_a_directory(server, tmp_path, own_tokenizer):
    write_ceval(tmp_path)
    (tmp_path / "t").write_text("白日依山尽，黄河入海流。Once upon a time.")
    (tmp_path / "r").write_text(json.dumps({"prompt": "春", "reference": "春风"}) + "\n")
    args = ["--tasks", "ceval", "--data", tmp_path, "--perplexity", tmp_path / "t", "--window", 12,
            "--references", tmp_path / "r", "--max-gen-tokens", 12]
    here, mine = samples(tmp_path, *args)
    extra = ["--tokenizer", MODEL] if own_tokenizer else []
    r = run("eval", "--base-url", f"http://127.0.0.1:{server.port}/v1", "--json", "--quiet", *extra, *args,
            "--log-samples", tmp_path / "samples")
    assert r.returncode == 0, r.stderr
    there, theirs = json.loads(r.stdout), [json.loads(x) for x in (tmp_path / "samples").read_text().splitlines()]
    assert there["texts"][0]["nll"] == pytest.approx(here["texts"][0]["nll"], rel=1e-6)
    assert len(mine) == len(theirs) == 4 and mine[3] == theirs[3]
    for a, b in zip(mine[:3], theirs):
        assert [c["logprob"] for c in a["choices"]] == pytest.approx([c["logprob"] for c in b["choices"]], abs=1e-5)
        assert a["picked"] == b["picked"]
    for t in (here, there):
        for key in ("seconds", "model", "texts"):
            del t[key]
    assert here == there


def test_a_server_that_is_not_there_or_refuses_is_one_line(server, tmp_path):
    (tmp_path / "t").write_text("白日依山尽")
    r = run("eval", "--base-url", f"http://127.0.0.1:{ternlib.free_port()}", "--perplexity", tmp_path / "t")
    assert r.returncode == 1 and b"/v1/models" in r.stderr and len(r.stderr.splitlines()) == 1
    r = run("eval", "nobody", "--base-url", f"http://127.0.0.1:{server.port}", "--perplexity", tmp_path / "t", "--quiet")
    assert r.returncode == 1 and b"nobody" in r.stderr and b"404" in r.stderr, r.stderr
