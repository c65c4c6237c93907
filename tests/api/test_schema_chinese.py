# SPDX-License-Identifier: Apache-2.0
"""T15: a schema in Chinese, written raw and with \\u escapes: every answer parses, validates, is raw UTF-8 and ends."""
import json
import re

import pytest

SCHEMA = {"type": "object", "properties": {"状态": {"type": "string", "enum": ["在线", "离线"]},
                                           "备注": {"type": "string", "maxLength": 20}},
          "required": ["状态", "备注"], "additionalProperties": False}
PROMPTS = ["服务器怎么样？", "小明在吗？", "写一首诗。", "它坏了。", "今天的状态", "Is it on?", "请用 JSON 回答。", "离线了吗", "你好", "🎉",
           "说说长江", "他叫什么？", "报告：", "再见", "为什么？", "状态：在线", "{", "备注太长怎么办", "1+1", "月亮"]


def ask(server, prompt, raw, seed, **kw):
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0.1, "seed": seed, "max_tokens": 64,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}, **kw}
    data = json.dumps(body, ensure_ascii=not raw).encode()
    assert raw == ("在线".encode() in data)
    r = server.post("/v1/chat/completions", data)
    assert r.status == 200, r
    return r.json["choices"][0]


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "escaped"])
def test_every_answer_validates_is_raw_utf8_and_stops(server, raw):
    for seed, prompt in enumerate(PROMPTS):
        c = ask(server, prompt, raw, seed)
        text = c["message"]["content"]
        assert c["finish_reason"] == "stop", (prompt, text)
        d = json.loads(text)
        assert set(d) == {"状态", "备注"} and d["状态"] in ("在线", "离线") and len(d["备注"]) <= 20, text
        assert "状态" in text and d["状态"] in text, "raw UTF-8, no escapes"
        assert "\ufffd" not in text and not re.search(r"[ \t\n]{4,}", text)


def test_both_spellings_of_the_schema_are_the_same_constraint(server):
    for seed, prompt in enumerate(PROMPTS[:6]):
        assert ask(server, prompt, True, seed)["message"] == ask(server, prompt, False, seed)["message"]
