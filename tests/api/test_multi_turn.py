# SPDX-License-Identifier: Apache-2.0
"""Conversations of five turns: the whole history is in every prompt, token by token; each turn after the first takes it
from the prefix cache; and the answers are those of a run that never saw the earlier turns, bit for bit."""
import json

import pytest
import ternlib
from ternlib import Server

CONVERSATIONS = {
    "pronouns": ("你是一位诗人，说话简短。", ["写一首五言绝句，题目是《竹》。", "它的第一句是什么意思？", "把它改短一点。",
                                  "她会喜欢它吗？", "那么再写一首，跟上一首不同。"]),
    "follow-ups": ("You tell short stories.", ["Once there was a fox who lived near a river. Go on.", "What did it eat?",
                                               "And then?", "Who was its friend, and why did he leave?",
                                               "Tell me the end of that."]),
    "mixed": (None, ["写一首七言绝句，题目是《山中》🎉。", "Translate it.", "再来一首，用上“龘”字。", "为什么？", "谢谢，再见！"]),
}
SAMPLING = {"greedy": {"temperature": 0}, "sampled": {"temperature": 0.8, "top_p": 0.8, "seed": 7}}


def expected_text(messages):
    """ERNIE's template, written down once more."""
    out = "<|begin_of_sentence|>"
    for m in messages:
        out += {"system": m["content"] + "\n", "user": "User: " + m["content"] + "\n",
                "assistant": "Assistant: " + m["content"] + "<|end_of_sentence|>"}[m["role"]]
    return out + "Assistant: "


def encode(texts):
    """Ids from the command line, which shares neither the server nor its template with what is tested."""
    r = ternlib.run("tokenize", ternlib.MODEL, "--jsonl", stdin="".join(json.dumps(t) + "\n" for t in texts).encode())
    assert r.returncode == 0, r.stderr
    return [json.loads(line) for line in r.stdout.splitlines()]


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def turn(s, messages, **kw):
    d = s.chat(messages, max_tokens=40, logprobs=True, top_logprobs=3, return_token_ids=True, **kw)
    return d, (d["choices"][0]["token_ids"], d["choices"][0]["logprobs"], d["choices"][0]["finish_reason"])


@pytest.fixture(scope="module")
def uncached():
    with Server(args=["--no-enable-prefix-caching"]) as s:
        yield s


@pytest.mark.parametrize("how", SAMPLING)
@pytest.mark.parametrize("which", CONVERSATIONS)
def test_five_turns_keep_the_history_hit_the_cache_and_equal_a_cold_run(server, uncached, which, how):
    system, users = CONVERSATIONS[which]
    history = [{"role": "system", "content": system}] if system else []
    salt, prompts, texts, last = f"{which} {how}", [], [], None
    for k, user in enumerate(users):
        history.append({"role": "user", "content": user})
        d, got = turn(server, history, cache_salt=salt, **SAMPLING[how])
        ids, usage = d["prompt_token_ids"], d["usage"]
        prompts.append(ids)
        texts.append(expected_text(history))
        assert usage["prompt_tokens"] == len(ids)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        if last:
            # what was computed before: all but the token that was drawn last; the prompt's own last token is always new
            reusable = min(common(ids, last), len(last) - 1, len(ids) - 1)
            assert cached == reusable // 16 * 16 > 0
            assert reusable > len(prompts[-2]), "the answer is in the next prompt as it was generated"
        else:
            assert cached == 0
        d, cold = turn(server, history, cache_salt=f"cold {salt} {k}", **SAMPLING[how])
        assert d["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert cold == got
        d, other = turn(uncached, history, **SAMPLING[how])
        assert other == got and d["prompt_token_ids"] == ids
        last = ids + got[0]
        history.append({"role": "assistant", "content": d["choices"][0]["message"]["content"]})
    assert prompts == encode(texts)
    for earlier, later in zip(texts, texts[1:]):
        assert later.startswith(earlier), "nothing of the history is lost"


def test_a_streamed_conversation_is_the_same_conversation(server):
    system, users = CONVERSATIONS["pronouns"]
    plain, streamed = [{"role": "system", "content": system}], [{"role": "system", "content": system}]
    for user in users:
        for history in (plain, streamed):
            history.append({"role": "user", "content": user})
        answer = server.chat(plain, max_tokens=40, temperature=0)["choices"][0]["message"]["content"]
        plain.append({"role": "assistant", "content": answer})
        s = server.stream("/v1/chat/completions", {"messages": streamed, "max_tokens": 40, "temperature": 0})
        streamed.append({"role": "assistant", "content": s.text()})
    assert plain == streamed
