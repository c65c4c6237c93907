# SPDX-License-Identifier: Apache-2.0
"""T4: no reply is ever half a character, however the tokens cut it, streaming or not."""
import random

import pytest

PROMPT = "写一首带很多表情符号和生僻字（龘、𠮷）的诗"


@pytest.fixture(scope="module")
def byte_ids(server):
    """Ids of the bytes of a few characters that are not in the vocabulary."""
    ids = [i for c in ("龘", "𠮷", "🤗", "🎉") for i in server.tokenize(c)]
    assert len(set(ids)) >= 8, "the tokenizer has these characters whole"
    return sorted(set(ids))


def same_both_ways(server, body, path="/v1/chat/completions"):
    r = server.post(path, body)
    assert r.status == 200, r
    c = r.json["choices"][0]
    plain = c["message"]["content"] if "message" in c else c["text"]
    s = server.stream(path, body)
    assert s.status == 200 and s.done
    assert s.text() == plain
    assert s.finish() == c["finish_reason"]
    return plain, c["finish_reason"]


def test_every_cut_gives_whole_characters_and_the_same_text_both_ways(server):
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "ignore_eos": True}
    whole, _ = same_both_ways(server, {**body, "max_tokens": 96})
    for k in range(1, 96):
        text, finish = same_both_ways(server, {**body, "max_tokens": k})
        assert finish == "length"
        assert "\ufffd" not in text[:-1]
        assert whole.startswith(text.rstrip("\ufffd"))
    server.alive()


def test_a_character_forced_byte_by_byte_arrives_whole(server, byte_ids):
    """Only byte tokens may be drawn, so most sequences are invalid; and the true bytes of one character come whole."""
    ids = server.tokenize("𠮷🤗")
    s = server.stream("/v1/completions", {"prompt": "a", "max_tokens": 40, "temperature": 1.5, "seed": 5,
                                          "allowed_token_ids": byte_ids, "ignore_eos": True})
    for c in s.choices():
        c["text"].encode("utf-8")
    assert s.done and s.finish() == "length"
    for k in range(1, len(ids) + 1):
        echo = server.completion(ids[:k], max_tokens=1, echo=True, temperature=0)
        echo["choices"][0]["text"].encode("utf-8")
    assert server.detokenize(ids) == "𠮷🤗"


def test_200_seeds_of_nonsense_stay_valid(server, byte_ids):
    rng = random.Random(7)
    for seed in range(200):
        body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 2, "top_k": 0, "top_p": 1,
                "seed": seed, "max_tokens": rng.randint(1, 24)}
        if seed % 4 == 0:
            body["allowed_token_ids"] = byte_ids
        if seed % 5 == 0:
            body["stop"] = ["。", "🤗", "\n\n"]
        if seed % 3 == 0:
            body["logprobs"], body["top_logprobs"] = True, 3
        same_both_ways(server, body)
    server.alive()


def test_stop_strings_hold_back_and_cut_the_same_both_ways(server):
    body = {"prompt": "春眠不觉晓，", "temperature": 0, "max_tokens": 60, "ignore_eos": True}
    whole, _ = same_both_ways(server, body, "/v1/completions")
    assert len(whole) > 20
    for at in range(1, len(whole) - 3, 3):
        for n in (1, 2, 3):
            stop = whole[at:at + n]
            if "\ufffd" in stop or not stop:
                continue
            text, finish = same_both_ways(server, {**body, "stop": stop}, "/v1/completions")
            assert text == whole[:whole.index(stop)], (stop, text)
            assert finish == "stop"
            text, _ = same_both_ways(server, {**body, "stop": [stop, "\x01"], "include_stop_str_in_output": True},
                                     "/v1/completions")
            assert text == whole[:whole.index(stop) + len(stop)]


def test_white_space_only_deltas_arrive(server):
    body = {"prompt": "a", "max_tokens": 8, "temperature": 0, "logit_bias": {str(server.tokenize("\n")[0]): 100}}
    text, _ = same_both_ways(server, body, "/v1/completions")
    assert text == "\n" * 8
    body["logit_bias"] = {str(server.tokenize(" ")[0]): 100}
    text, _ = same_both_ways(server, body, "/v1/completions")
    assert text == " " * 8
