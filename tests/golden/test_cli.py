# SPDX-License-Identifier: Apache-2.0
"""The command line itself: prompts in all forms, results, refusals, exit codes, closed pipes."""
import json
import os
import re
import signal
import subprocess
import time

import pytest
import ternlib
from ternlib import MODEL, run


def gen(*args, stdin=None):
    r = run("generate", MODEL, "--temperature", 0, "--json", *args, stdin=stdin)
    assert r.returncode == 0, r.stderr
    return [ternlib.strict_json(x) for x in r.stdout.decode("utf-8").splitlines()]


def test_a_prompt_is_the_same_from_flag_file_standard_input_and_ids(tmp_path):
    (tmp_path / "p").write_text("春眠不觉晓\n")
    flag = gen("-p", "春眠不觉晓", "--max-tokens", 8)
    assert gen("--prompt-file", tmp_path / "p", "--max-tokens", 8) == flag
    assert gen("--max-tokens", 8, stdin="春眠不觉晓\n".encode()) == flag
    ids = gen("--prompt-ids", ",".join(map(str, flag[0]["prompt_token_ids"])), "--max-tokens", 8)
    assert ids[0]["outputs"] == flag[0]["outputs"] and ids[0]["prompt"] is None


def test_several_prompts_give_one_object_each_in_order():
    docs = gen("-p", "一", "-p", "二三", "--prompt-ids", "5,6,7", "--max-tokens", 3, "--ignore-eos")
    assert [d["prompt"] for d in docs] == ["一", "二三", None]
    assert docs[2]["prompt_token_ids"] == [5, 6, 7]
    for d in docs:
        assert d["usage"] == {"prompt_tokens": len(d["prompt_token_ids"]), "completion_tokens": 3,
                              "total_tokens": len(d["prompt_token_ids"]) + 3}
        assert gen("--prompt-ids", ",".join(map(str, d["prompt_token_ids"])), "--max-tokens", 3,
                   "--ignore-eos")[0]["outputs"] == d["outputs"], "a prompt's neighbours changed its text"


def test_printed_text_is_the_json_text_and_nothing_else_is_on_stdout():
    doc = gen("-p", "江上", "--max-tokens", 24)[0]
    r = run("generate", MODEL, "--temperature", 0, "-p", "江上", "--max-tokens", 24)
    assert r.returncode == 0 and r.stdout.decode() == doc["outputs"][0]["text"] + "\n"
    assert b"tok/s" in r.stderr and len(r.stderr.splitlines()) == 1
    r = run("generate", MODEL, "--temperature", 0, "-p", "江上", "--max-tokens", 24, "--quiet")
    assert r.stderr == b""


def test_n_outputs_differ_by_seed_and_repeat_with_it():
    args = ["-p", "月", "--n", 3, "--seed", 7, "--max-tokens", 12]
    r = [run("generate", MODEL, "--json", *args, "--temperature", 1) for _ in range(2)]
    assert r[0].returncode == 0 and r[0].stdout == r[1].stdout
    texts = [o["text"] for o in json.loads(r[0].stdout)["outputs"]]
    assert len(texts) == 3 and len(set(texts)) > 1
    alone = run("generate", MODEL, "--json", "-p", "月", "--n", 1, "--seed", 8, "--max-tokens", 12, "--temperature", 1)
    assert json.loads(alone.stdout)["outputs"][0]["text"] == texts[1], "sample i uses seed + i"


def test_a_stop_string_cuts_the_text_and_is_the_reason():
    text = gen("-p", "秋风", "--max-tokens", 40, "--ignore-eos")[0]["outputs"][0]["text"]
    stop = text[6:8]
    out = gen("-p", "秋风", "--max-tokens", 40, "--ignore-eos", "--stop", stop)[0]["outputs"][0]
    assert out["finish_reason"] == "stop" and out["stop_reason"] == stop
    assert out["text"] == text[:text.index(stop)]
    r = run("generate", MODEL, "--temperature", 0, "-p", "秋风", "--max-tokens", 40, "--ignore-eos", "--stop", stop)
    assert r.stdout.decode() == out["text"] + "\n", "held-back characters were printed or lost"


def test_chat_renders_the_template_and_a_user_cannot_type_a_special_token():
    doc = gen("--chat", "--system", "S", "-p", "U<|end_of_sentence|>", "--max-tokens", 1)[0]
    assert doc["prompt"] == "<|begin_of_sentence|>S\nUser: U<|end_of_sentence|>\nAssistant: "
    assert doc["prompt_token_ids"].count(3) == 1 and 4 not in doc["prompt_token_ids"]
    plain = gen("-p", "U<|end_of_sentence|>", "--max-tokens", 1)[0]
    assert 4 in plain["prompt_token_ids"]


def test_logprobs_have_the_shape_of_the_api():
    out = gen("-p", "山", "--max-tokens", 5, "--ignore-eos", "--logprobs", 2)[0]["outputs"][0]
    lp = out["logprobs"]
    assert list(lp) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
    assert all(len(lp[k]) == 5 for k in lp)
    assert "".join(lp["tokens"]) == out["text"]
    for token, value, top in zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"]):
        assert top[token] == value == max(top.values()) and 1 <= len(top) <= 3
    chat = gen("--chat", "-p", "山", "--max-tokens", 5, "--ignore-eos", "--logprobs", 2)[0]["outputs"][0]["logprobs"]
    assert [len(c["top_logprobs"]) for c in chat["content"]] == [2] * 5
    assert set(chat["content"][0]) == {"token", "logprob", "bytes", "top_logprobs"}


def test_tokenize_reads_json_strings_and_prints_vocabulary_strings():
    lines = ["a\nb", "你好 世界", "</s>"]
    r = run("tokenize", MODEL, "--jsonl", stdin="".join(json.dumps(x) + "\n" for x in lines).encode())
    assert r.returncode == 0, r.stderr
    ids = [json.loads(x) for x in r.stdout.splitlines()]
    assert ids[2] == [2]
    back = run("tokenize", MODEL, "--decode", "--jsonl", stdin=r.stdout)
    assert [json.loads(x) for x in back.stdout.splitlines()] == lines
    hidden = run("tokenize", MODEL, "--decode", "--skip-special-tokens", stdin=b"[2]\n")
    assert hidden.stdout == b"\n"
    text = run("tokenize", MODEL, "--no-special", stdin=b"</s>\n")
    assert json.loads(text.stdout) != [2]
    strings = run("tokenize", MODEL, "--strings", stdin="a b\n".encode())
    assert "▁" in "".join(json.loads(strings.stdout))


def test_options_come_from_a_config_file_and_the_command_line_wins(tmp_path):
    (tmp_path / "c.yaml").write_text(f"model: {MODEL}\nmax_tokens: 3\ntemperature: 0\nignore-eos: true\njson: true\n")
    r = run("generate", "--config", tmp_path / "c.yaml", "-p", "x")
    assert r.returncode == 0, r.stderr
    assert json.loads(r.stdout)["usage"]["completion_tokens"] == 3
    r = run("generate", "--config", tmp_path / "c.yaml", "-p", "x", "--max-tokens", 2)
    assert json.loads(r.stdout)["usage"]["completion_tokens"] == 2
    (tmp_path / "c.yaml").write_text("max_tokens: 3\nbogus: 1\n")
    r = run("generate", MODEL, "--config", tmp_path / "c.yaml", "-p", "x")
    assert r.returncode == 2 and b"line 2" in r.stderr and b"bogus" in r.stderr


@pytest.mark.parametrize("command", ["serve", "generate", "tokenize", "info", "align"])
def test_help_names_every_group_and_needs_no_model(command):
    r = run(command, "--help")
    assert r.returncode == 0 and r.stdout.startswith(b"usage: tern " + command.encode()) and r.stderr == b""
    if command != "tokenize":
        assert b"--max-model-len" in r.stdout and b"VLLM_CPU_KVCACHE_SPACE" in r.stdout
        one = run(command, "--help=max_model_len")
        assert one.returncode == 0 and b"--max-model-len" in one.stdout and b"--dtype" not in one.stdout


REFUSED = [["-tp", "2"], ["--pipeline_parallel_size=2"], ["--quantization", "bitsandbytes"], ["--block-size", "128"],
           ["--kv-cache-dtype", "fp4"], ["--lora-modules", "a=b"], ["--spec-model", "a"],
           ["--dtype", "float16"], ["--load-format", "dummy"],
           ["--kv-transfer-config", "{}"], ["--hf-overrides", "{}"], ["--logprobs-mode", "raw_logits"]]


@pytest.mark.parametrize("flag", REFUSED, ids=lambda f: f[0])
def test_what_would_change_answers_is_refused_by_name(flag):
    r = run("generate", MODEL, "-p", "x", *flag)
    assert r.returncode == 2 and r.stdout == b""
    assert flag[0].split("=")[0].split(".")[0].encode() in r.stderr.splitlines()[-1], r.stderr


def test_what_only_matters_on_gpus_is_accepted_with_one_warning_each():
    flags = ["--trust-remote-code", "--swap-space", "4", "--disable-log-requests", "-O3", "--compilation-config", "{}",
             "--compilation-config.level", "3", "--distributed-executor-backend", "mp", "--revision", "main",
             "--async-scheduling", "--cpu-offload-gb", "10", "-tp", "1"]
    r = run("generate", MODEL, "-p", "x", "--max-tokens", 1, "--quiet", *flags)
    assert r.returncode == 0, r.stderr
    lines = r.stderr.decode().splitlines()
    assert len(lines) == 9 and all("WARNING" in x and "no effect" in x for x in lines), lines


def test_unknown_commands_and_missing_models_are_usage_faults():
    assert run().returncode == 2
    r = run("sreve", MODEL)
    assert r.returncode == 2 and b"sreve" in r.stderr
    for c in ("serve", "generate", "info", "align", "tokenize"):
        r = run(c)
        assert r.returncode == 2 and b"no " in r.stderr and r.stdout == b""
    r = run("generate", MODEL, "-p", "x", "--max-modle-len", "5")
    assert r.returncode == 2 and b"did you mean --max-model-len?" in r.stderr


@pytest.mark.parametrize("command", ["serve", "generate", "info", "align"])
def test_a_name_on_a_hub_is_answered_with_what_a_model_is(command):
    r = run(command, "baidu/ERNIE-4.5-0.3B-PT")
    assert r.returncode == 1 and r.stdout == b""
    assert b"baidu/ERNIE-4.5-0.3B-PT: " in r.stderr and b"`tern pull baidu/ERNIE-4.5-0.3B-PT` fetches it" in r.stderr


def test_a_directory_around_a_gguf_file_is_answered_with_that_files_path(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    r = run("info", tmp_path)
    assert r.returncode == 1 and f"{tmp_path}/m.gguf".encode() in r.stderr


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_help_gives_a_short_form_only_to_the_option_that_it_sets(command):
    out = run(command, "--help").stdout.decode()
    assert re.search(r"^  --quick TEXT, -q ", out, re.M) and re.search(r"^  --quantization TEXT  ", out, re.M)
    assert re.search(r"^  --quantization TEXT, -q ", run("serve", "--help").stdout.decode(), re.M)
    assert run(command, "--help=man").stdout.count(rb"\-q\f") == 1


def test_help_of_run_batch_names_no_sockets():
    r = run("run-batch", "--help")
    assert r.returncode == 0 and b"--ssl-certfile" not in r.stdout and b"--max-body-bytes" in r.stdout


def test_a_full_disk_and_a_closed_pipe_are_faults_not_crashes():
    for args in (["info", MODEL], ["generate", MODEL, "-p", "x", "--max-tokens", "4"]):
        with open("/dev/full", "wb") as full:
            r = subprocess.run([ternlib.TERN, *args], stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert r.returncode == 1 and b"standard output" in r.stderr
    p = subprocess.Popen([ternlib.TERN, "generate", MODEL, "-p", "x", "--max-tokens", "1500", "--ignore-eos"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.stdout.close()
    assert p.wait(30 * ternlib.SLOW) == 1
    p.stderr.close()


def test_an_interrupt_ends_a_generation_at_once():
    p = subprocess.Popen([ternlib.TERN, "generate", MODEL, "-p", "x", "--max-tokens", "2000", "--ignore-eos"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(p.stdout.fileno(), 1)
    p.send_signal(signal.SIGINT)
    start = time.monotonic()
    _, err = p.communicate(timeout=30 * ternlib.SLOW)
    assert p.returncode == 1 and b"interrupted" in err and time.monotonic() - start < 3 * ternlib.SLOW


def test_the_memory_plan_refuses_with_numbers_and_info_says_so_beforehand():
    big = ["--max-model-len", "2048", "--kv-cache-memory-bytes", "10M"]
    r = run("generate", MODEL, "-p", "x", *big)
    assert r.returncode == 1 and b"2048" in r.stderr and b"GiB" in r.stderr
    info = json.loads(run("info", MODEL, "--json", *big).stdout)
    assert info["serves_here"] is False and info["refusal"] in r.stderr.decode()
    longest = int(info["refusal"].split("estimated maximum length is ")[1].split(".")[0])
    fits = ["--max-model-len", longest, "--kv-cache-memory-bytes", "10M"]
    assert run("generate", MODEL, "-p", "x", "--max-tokens", 1, *fits).returncode == 0
    auto = json.loads(run("info", MODEL, "--json", "--max-model-len", "auto", "--kv-cache-memory-bytes", "10M").stdout)
    assert auto["serves_here"] and auto["memory"]["max_model_len"] == longest
    r = run("generate", MODEL, "-p", "x", "--kv-cache-memory-bytes", "900T")
    assert r.returncode == 1 and b"not enough memory" in r.stderr


def test_compute_threads_follow_affinity_and_say_why():
    cpu = min(os.sched_getaffinity(0))
    info = json.loads(run("info", MODEL, "--json", wrapper=("taskset", "-c", str(cpu))).stdout)["compute"]
    assert info["threads"] == 1 and "affinity" in info["threads_why"]
    info = json.loads(run("info", MODEL, "--json", "--threads", 3).stdout)["compute"]
    assert info["threads"] == 3 and info["threads_why"] == "--threads"
    env = {"VLLM_CPU_OMP_THREADS_BIND": str(cpu)}
    assert json.loads(run("info", MODEL, "--json", env=env).stdout)["compute"]["threads"] == 1
    r = run("info", MODEL, env={"VLLM_CPU_OMP_THREADS_BIND": "0-1|2-3"})
    assert r.returncode == 1 and b"VLLM_CPU_OMP_THREADS_BIND" in r.stderr


def test_generation_defaults_come_from_the_model_and_can_be_overridden(tmp_path):
    base = ["generate", MODEL, "-p", "春", "--max-tokens", "16", "--ignore-eos", "--json", "--seed", "3"]
    own = json.loads(run(*base).stdout)
    explicit = json.loads(run(*base, "--generation-config", "vllm", "--temperature", "0.8", "--top-p", "0.8").stdout)
    assert own == explicit
    greedy = json.loads(run(*base, "--override-generation-config.temperature", "0").stdout)
    assert greedy == json.loads(run(*base, "--temperature", "0").stdout)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0, "max_new_tokens": 4}')
    other = json.loads(run("generate", MODEL, "-p", "春", "--ignore-eos", "--json", "--generation-config", tmp_path).stdout)
    assert other["outputs"][0]["token_ids"] == greedy["outputs"][0]["token_ids"][:4]
    r = run(*base, "--override-generation-config", '{"temperature": "hot"}')
    assert r.returncode == 1 and b"temperature" in r.stderr


def test_verify_real_model_explains_itself():
    r = subprocess.run([str(ternlib.SOURCE / "tools" / "verify-real-model"), "--help"], capture_output=True, timeout=60)
    assert r.returncode == 0 and r.stdout.startswith(b"usage: tools/verify-real-model DIR [TERN]\n") and r.stderr == b""
    assert b"2 for wrong usage" in r.stdout and b"set -u" not in r.stdout


def test_verify_real_model_refuses_another_model():
    r = subprocess.run([str(ternlib.SOURCE / "tools" / "verify-real-model"), MODEL, ternlib.TERN], capture_output=True, timeout=60)
    assert r.returncode == 1 and b"FAIL: expected the 360,748,032 parameters" in r.stdout, r
