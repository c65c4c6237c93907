# SPDX-License-Identifier: Apache-2.0
"""The Python package over libtern, with the model that ships."""
import asyncio
import gc
import json
import logging
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
import ternlib

BUILD = pathlib.Path(os.environ.get("TERN_BUILD", ternlib.SOURCE / "build"))
PACKAGE = ternlib.SOURCE / "bindings" / "python"
LIBRARY = BUILD / "libtern.so"
SCRIPTS = pathlib.Path(__file__).parent / "scripts"

if LIBRARY.exists():
    os.environ["TERN_LIBRARY"] = str(LIBRARY)
    sys.path.insert(0, str(PACKAGE))
    import tern
    from tern import AsyncEngineArgs, AsyncLLMEngine, LLM, RequestOutputKind, SamplingParams, StructuredOutputsParams
else:
    pytest.skip("this build has no libtern", allow_module_level=True)

GREEDY = SamplingParams(temperature=0, max_tokens=24)
ENV = {**os.environ, "PYTHONPATH": str(PACKAGE)}


def open_llm(**options):
    return LLM(ternlib.MODEL, max_model_len=256, max_num_seqs=32, **options)


@pytest.fixture(scope="module")
def llm():
    with open_llm() as one:
        yield one


def told_by_generate(*prompts, temperature="0", max_tokens="24", more=()):
    args = [w for p in prompts for w in ("-p", p)]
    r = subprocess.run([ternlib.TERN, "generate", ternlib.MODEL, *args, "--json", "--quiet", "--temperature", temperature,
                        "--max-tokens", max_tokens, "--max-model-len", "256", *more], capture_output=True, timeout=300)
    assert r.returncode == 0, r.stderr.decode()
    return [json.loads(line) for line in r.stdout.splitlines()]


def idle(engine, seconds=20):
    end = time.monotonic() + seconds
    while True:
        m = engine.metrics()
        if m.running + m.waiting + m.blocks_in_use == 0:
            return m
        assert time.monotonic() < end, m
        time.sleep(0.01)


# ---- LLM ------------------------------------------------------------------------------------------------------

def test_same_text_and_ids_as_generate(llm):
    prompts = ["春", "秋月", "Hello, my name is"]
    outputs = llm.generate(prompts, GREEDY)
    for prompt, mine, told in zip(prompts, outputs, told_by_generate(*prompts)):
        assert mine.prompt == prompt and mine.finished
        assert mine.prompt_token_ids == told["prompt_token_ids"]
        assert mine.outputs[0].text == told["outputs"][0]["text"]
        assert mine.outputs[0].token_ids == told["outputs"][0]["token_ids"]
        assert mine.outputs[0].finish_reason == told["outputs"][0]["finish_reason"]


def test_same_samples_as_generate_with_a_seed(llm):
    params = SamplingParams(temperature=0.9, top_p=0.9, top_k=40, n=2, seed=5, max_tokens=16, logprobs=2)
    told = told_by_generate("江", temperature="0.9", max_tokens="16",
                            more=["--top-p", "0.9", "--top-k", "40", "--n", "2", "--seed", "5", "--logprobs", "2"])[0]
    mine = llm.generate("江", params)[0]
    for a, b in zip(mine.outputs, told["outputs"]):
        assert a.token_ids == b["token_ids"] and a.text == b["text"]
        got = [lp[t].logprob for lp, t in zip(a.logprobs, a.token_ids)]
        assert got == pytest.approx(b["logprobs"]["token_logprobs"], abs=1e-6)
        assert a.cumulative_logprob == pytest.approx(sum(got), abs=1e-4)


def test_prompts_of_every_form_are_the_same_prompt(llm):
    ids = llm.get_tokenizer().encode("明月")
    forms = ["明月", ids, {"prompt": "明月"}, {"prompt_token_ids": ids}, ["明月"], [ids], [{"prompt": "明月"}], ("明月",)]
    texts = {llm.generate(f, GREEDY)[0].outputs[0].text for f in forms}
    assert len(texts) == 1
    assert llm.generate({"prompt_token_ids": ids}, GREEDY)[0].prompt is None
    assert [o.prompt for o in llm.generate(["a", {"prompt": "b"}, ids], GREEDY)] == ["a", "b", None]


def test_a_list_of_params_goes_with_the_prompts(llm):
    out = llm.generate(["春", "春"], [SamplingParams(temperature=0, max_tokens=k) for k in (3, 7)])
    assert [len(o.outputs[0].token_ids) for o in out] == [3, 7]
    with pytest.raises(ValueError, match="lengths of prompts and sampling_params"):
        llm.generate(["春", "春"], [GREEDY])


def test_logprobs_have_the_sampled_token_first_and_prompts_none_first(llm):
    o = llm.generate("春江花月夜", SamplingParams(max_tokens=6, logprobs=3, prompt_logprobs=2, seed=1))[0]
    assert len(o.prompt_logprobs) == len(o.prompt_token_ids) and o.prompt_logprobs[0] is None
    for token, found in zip(o.prompt_token_ids[1:], o.prompt_logprobs[1:]):
        assert token in found and 2 <= len(found) <= 3
    for token, found in zip(o.outputs[0].token_ids, o.outputs[0].logprobs):
        assert next(iter(found)) == token and 3 <= len(found) <= 4
        assert any(p.rank == 1 for p in found.values())
        assert found[token].decoded_token == llm.get_tokenizer().piece(token)


def test_stop_strings_and_ids_are_told(llm):
    o = llm.generate("春", SamplingParams(temperature=0, max_tokens=60, stop=["，"]))[0].outputs[0]
    assert (o.finish_reason, o.stop_reason) == ("stop", "，") and "，" not in o.text
    comma = llm.get_tokenizer().encode("，")[0]
    o = llm.generate("春", SamplingParams(temperature=0, max_tokens=60, stop_token_ids=[comma]))[0].outputs[0]
    assert (o.finish_reason, o.stop_reason) == ("stop", comma)


@pytest.mark.parametrize("constraint,pattern", [
    (StructuredOutputsParams(regex="[0-9]{3}"), r"\d{3}"), (StructuredOutputsParams(choice=["yes", "no"]), "yes|no"),
    ({"json": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
               "additionalProperties": False}}, r'\{\s?"a"\s?:\s?(true|false)\s?\}')])
def test_structured_output_matches(llm, constraint, pattern):
    o = llm.generate("x", SamplingParams(max_tokens=60, seed=1, structured_outputs=constraint))[0]
    assert re.fullmatch(pattern, o.outputs[0].text), o


def test_bans_and_bias_are_honoured(llm):
    plain = llm.generate("春", GREEDY)[0].outputs[0]
    first = plain.token_ids[0]
    o = llm.generate("春", SamplingParams(temperature=0, max_tokens=8, logit_bias={first: -100}))[0].outputs[0]
    assert first not in o.token_ids
    o = llm.generate("春", SamplingParams(temperature=0, max_tokens=8, allowed_token_ids=[first]))[0].outputs[0]
    assert set(o.token_ids) == {first}
    o = llm.generate("春", SamplingParams(temperature=0, max_tokens=24, bad_words=["春"]))[0].outputs[0]
    assert "春" in plain.text and "春" not in o.text


def test_without_params_the_models_defaults_hold(llm):
    wanted = json.loads((pathlib.Path(ternlib.MODEL) / "generation_config.json").read_text())
    p = llm.get_default_sampling_params()
    assert (p.temperature, p.top_p) == (wanted["temperature"], wanted["top_p"])
    assert llm.generate("春")[0].finished


def test_chat_is_the_template_and_then_generate(llm):
    messages = [{"role": "system", "content": "短"}, {"role": "user", "content": "写诗 <|end_of_sentence|>"}]
    t = llm.get_tokenizer()
    one = llm.chat(messages, GREEDY)[0]
    ids = t.apply_chat_template(messages, add_generation_prompt=True)
    assert one.prompt == t.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert one.prompt_token_ids == ids
    assert t.convert_tokens_to_ids("<|end_of_sentence|>") not in ids  # what a message spells is text
    assert [o.outputs[0].text for o in llm.chat([messages, messages], GREEDY)] == [one.outputs[0].text] * 2


def test_tokenizer_gives_back_what_it_got(llm):
    t = llm.get_tokenizer()
    for text in ("", "Hello", "床前明月光 😀\n\0x"):
        assert t.decode(t.encode(text)) == text
    assert t.decode(t.eos_token_id, skip_special_tokens=True) == ""
    with pytest.raises(ValueError):
        t.encode("\ud800")


# ---- what is refused ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options,error,words", [
    ({"max_modle_len": 1}, TypeError, "did you mean 'max_model_len'"), ({"block_size": 3}, ValueError, "block_size"),
    ({"max_model_len": "many"}, ValueError, "max_model_len"), ({"dtype": "float16"}, ValueError, "float16"),
    ({"quantization": "nope"}, ValueError, "nope"), ({"max_model_len": 10 ** 7}, ValueError, "max_position_embeddings"),
    ({"enable_lora": True}, ValueError, "adapters"), ({"dtype": "float32\0x"}, ValueError, "NUL")])
def test_options_that_cannot_be(options, error, words):
    with pytest.raises(error, match=words):
        LLM(ternlib.MODEL, **options)


def test_a_model_that_is_not_there():
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        LLM("/nowhere")
    with pytest.raises(ValueError, match="NUL"):
        LLM(ternlib.MODEL + "\0x")


@pytest.mark.parametrize("params,error,words", [
    ({"temprature": 1}, TypeError, "did you mean 'temperature'"), ({"temperature": -1}, ValueError, "temperature"),
    ({"top_p": 0}, ValueError, "top_p"), ({"n": 0}, ValueError, "n must be"), ({"n": 10 ** 9}, ValueError, "n must be"),
    ({"max_tokens": 0}, ValueError, "max_tokens"),
    ({"stop": [""]}, ValueError, "stop"), ({"n": 2, "temperature": 0}, ValueError, "greedy"),
    ({"temperature": float("nan")}, ValueError, ""), ({"structured_outputs": {}}, ValueError, "structured outputs"),
    ({"max_tokens": "3"}, ValueError, "max_tokens")])
def test_params_that_cannot_be(params, error, words):
    with pytest.raises(error, match=words):
        SamplingParams(**params)


def test_a_bad_prompt_stops_the_whole_call_and_leaves_nothing(llm):
    for bad, words in (("", "prompt 1: the prompt is empty"), ([1 << 29], "prompt 1: .*vocabulary"),
                       ([1 << 40], "vocabulary"), ([-1 << 32], "vocabulary"),
                       ("x " * 3000, "prompt 1: .*max model len")):
        with pytest.raises(ValueError, match=words):
            llm.generate(["春", bad], SamplingParams(max_tokens=200, ignore_eos=True))
        idle(llm)


def test_gpu_options_give_one_warning(caplog):
    with caplog.at_level(logging.WARNING, "tern"):
        open_llm(swap_space=4, disable_custom_all_reduce=True, enable_lora=False, trust_remote_code=True).close()
    lines = [r.message for r in caplog.records]
    assert len([t for t in lines if "swap_space" in t]) == 1
    assert len([t for t in lines if "disable_custom_all_reduce" in t]) == 1


# ---- life -----------------------------------------------------------------------------------------------------

def n_threads():
    return len(os.listdir("/proc/self/task"))


def test_with_and_the_garbage_collector_close_engines():
    before = n_threads()
    with open_llm() as one:
        assert n_threads() > before
    assert n_threads() == before
    with pytest.raises(tern.TernError, match="closed"):
        one.generate("春")
    two = open_llm()
    seen = weakref.ref(two)
    del two
    gc.collect()
    assert seen() is None and n_threads() == before


def test_two_engines_answer_at_the_same_time(llm):
    results = {}
    with open_llm(enforce_eager=True) as eager:
        def ask(name, one):
            results[name] = [o.outputs[0].token_ids for o in one.generate(["春", "夏", "秋"], GREEDY)]
        threads = [threading.Thread(target=ask, args=a) for a in (("a", llm), ("b", eager), ("c", llm))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert results["a"] == results["b"] == results["c"]


def test_interrupt_ends_generate(tmp_path):
    script = tmp_path / "long.py"
    script.write_text(
        "import sys\nfrom tern import LLM, SamplingParams\n"
        f"llm = LLM({ternlib.MODEL!r}, max_model_len=4096, override_generation_config={{}}, max_num_seqs=8)\n"
        "print('ready', flush=True)\n"
        "try:\n    llm.generate(['春'] * 64, SamplingParams(max_tokens=4000, ignore_eos=True))\n"
        "except KeyboardInterrupt:\n    m = llm.metrics()\n    print('interrupted', m.blocks_in_use, flush=True)\n")
    p = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         env={**ENV, "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert p.stdout.readline() == b"ready\n", p.stderr.read()
    time.sleep(0.5)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert out == b"interrupted 0\n" and p.returncode == 0, err


def test_a_forked_child_is_refused(llm):
    pid = os.fork()
    if pid == 0:
        try:
            llm.generate("春", GREEDY)
        except tern.TernError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


# ---- async ----------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def args():
    return AsyncEngineArgs(model=ternlib.MODEL, max_model_len=256, max_num_seqs=32)


def test_a_hundred_generators_half_of_them_cancelled_leave_no_block(args):
    async def ask(engine, i):
        n = 0
        async for out in engine.generate("春江花月夜" * (1 + i % 5), SamplingParams(max_tokens=60, ignore_eos=True),
                                         f"r{i}"):
            n = len(out.outputs[0].token_ids)
        return n

    async def main():
        with AsyncLLMEngine.from_engine_args(args) as engine:
            tasks = [asyncio.create_task(ask(engine, i)) for i in range(100)]
            while engine.metrics().running < 20:
                await asyncio.sleep(0.002)
            for t in tasks[::2]:
                t.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            for _ in range(2000):
                m = engine.metrics()
                if m.running + m.waiting + m.blocks_in_use == 0:
                    break
                await asyncio.sleep(0.01)
            return done, m

    done, m = asyncio.run(main())
    cancelled = [r for r in done[::2] if isinstance(r, asyncio.CancelledError)]
    assert len(cancelled) >= 40 and all(r == 60 for r in done[1::2])
    assert (m.running, m.waiting, m.blocks_in_use) == (0, 0, 0)
    assert m.finished == 100 and m.aborted >= 40


def test_streams_grow_to_what_generate_says(args, llm):
    whole = llm.generate("秋月", GREEDY)[0].outputs[0]

    async def main():
        async with AsyncLLMEngine.from_engine_args(args) as engine:
            texts = [o.outputs[0].text async for o in engine.generate("秋月", GREEDY, "1")]
            delta = SamplingParams(temperature=0, max_tokens=24, output_kind=RequestOutputKind.DELTA)
            pieces = [o.outputs[0] async for o in engine.generate("秋月", delta, "1")]
            last = SamplingParams(temperature=0, max_tokens=24, output_kind=RequestOutputKind.FINAL_ONLY)
            ends = [o async for o in engine.generate("秋月", last, "1")]
            chat = [o async for o in engine.chat([{"role": "user", "content": "写诗"}], last)]
            return texts, pieces, ends, chat

    texts, pieces, ends, chat = asyncio.run(main())
    assert texts[-1] == whole.text and len(texts) > 3
    assert all(b.startswith(a) for a, b in zip(texts, texts[1:]))
    assert "".join(p.text for p in pieces) == whole.text
    assert [t for p in pieces for t in p.token_ids] == whole.token_ids
    assert [o.outputs[0].text for o in ends] == [whole.text]
    assert len(chat) == 1 and chat[0].outputs[0].text == llm.chat(
        [{"role": "user", "content": "写诗"}], GREEDY)[0].outputs[0].text


def test_abort_and_leaving_end_requests(args):
    long = SamplingParams(max_tokens=200, ignore_eos=True)

    async def main():
        async with AsyncLLMEngine.from_engine_args(args) as engine:
            reasons = []
            async for o in engine.generate("春", long, "mine"):
                if not reasons:
                    with pytest.raises(ValueError, match="mine"):
                        await anext(engine.generate("春", long, "mine"))
                    await engine.abort("mine")
                reasons.append(o.outputs[0].finish_reason)
            left = engine.generate("春", long, "left")
            await anext(left)
            await left.aclose()
            await engine.abort(["nobody", "left"])
            regex = SamplingParams(max_tokens=200, structured_outputs={"regex": "[ab]{150}"})
            task = asyncio.create_task(anext(engine.generate("春", regex, "slow")))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for _ in range(2000):
                if engine.metrics().blocks_in_use + engine.metrics().running == 0:
                    break
                await asyncio.sleep(0.01)
            with pytest.raises(ValueError, match="empty"):
                await anext(engine.generate("", long, "x"))
            return reasons, engine.metrics()

    reasons, m = asyncio.run(main())
    assert reasons[-1] == "abort" and set(reasons[:-1]) == {None}
    assert (m.running, m.blocks_in_use) == (0, 0)


def test_shutdown_ends_the_generators_that_wait(args):
    async def main():
        engine = AsyncLLMEngine.from_engine_args(args)
        found = []

        async def ask():
            async for o in engine.generate("春", SamplingParams(max_tokens=200, ignore_eos=True), "1"):
                found.append(o.outputs[0].finish_reason)
        task = asyncio.create_task(ask())
        while not found:
            await asyncio.sleep(0.001)
        engine.shutdown()
        engine.shutdown()
        await asyncio.wait_for(task, 30)
        assert not engine.is_running
        with pytest.raises(tern.TernError):
            await engine.check_health()
        return found

    assert asyncio.run(main())[-1] == "abort"


def test_one_engine_serves_two_event_loops_after_each_other(args):
    with AsyncLLMEngine.from_engine_args(args) as engine:
        async def ask():
            return [o async for o in engine.generate("春", GREEDY, "1")][-1].outputs[0].text
        assert asyncio.run(ask()) == asyncio.run(ask())


# ---- scripts and wheel ----------------------------------------------------------------------------------------

def script_for_tern(name, folder):
    """The script with nothing changed but its import lines."""
    lines = [re.sub(r"\bvllm\b", "tern", t) if t.startswith("from ") else t
             for t in (SCRIPTS / name).read_text().splitlines()]
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_script_of_two_prompts_gives_the_text_of_generate(tmp_path):
    r = subprocess.run([sys.executable, script_for_tern("offline.py", tmp_path), ternlib.MODEL], env=ENV, timeout=300,
                       capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    want = [f"Prompt: {p!r}, Generated text: {t['outputs'][0]['text']!r}" for p, t in
            zip(["春风", "The moon"], told_by_generate("春风", "The moon", max_tokens="32", more=["--top-p", "0.95"]))]
    assert r.stdout.splitlines() == want


def test_script_of_eager_and_compiled_finds_them_the_same(tmp_path):
    r = subprocess.run([sys.executable, script_for_tern("eager.py", tmp_path), ternlib.MODEL], env=ENV, timeout=300,
                       capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    want = [f"same {p!r} {t['outputs'][0]['text']!r}" for p, t in
            zip(["春江", "秋月", "Hello, my name is"], told_by_generate("春江", "秋月", "Hello, my name is"))]
    assert r.stdout.splitlines() == want


def test_wheel_installs_in_a_venv_without_the_net_and_runs(tmp_path):
    if not shutil.which("python3") or subprocess.run([sys.executable, "-c", "import ensurepip"]).returncode:
        pytest.skip("venv is not here")
    build = [sys.executable, PACKAGE / "build_wheel.py", LIBRARY, tmp_path / "dist"]
    wheel = pathlib.Path(subprocess.run(build, check=True, capture_output=True, text=True).stdout.strip())
    assert re.fullmatch(r"tern-[0-9.]+-py3-none-linux_(x86_64|aarch64)\.whl", wheel.name)
    again = wheel.read_bytes()
    subprocess.run(build, check=True, capture_output=True)
    assert wheel.read_bytes() == again
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    clean = {k: v for k, v in os.environ.items() if k not in ("TERN_LIBRARY", "PYTHONPATH")}
    subprocess.run([python, "-m", "pip", "install", "--no-index", "--quiet", wheel], check=True, env=clean)
    r = subprocess.run([python, script_for_tern("offline.py", tmp_path), ternlib.MODEL], env=clean, timeout=300,
                       capture_output=True, text=True)
    assert r.returncode == 0 and r.stdout.count("Generated text") == 2, r.stderr
    where = subprocess.run([python, "-c", "import tern; print(tern.__file__)"], env=clean, capture_output=True, text=True)
    assert str(tmp_path) in where.stdout
