# SPDX-License-Identifier: Apache-2.0
"""Real clients, each with a script in tests/api/node: the official openai client (also on /v1/responses), the Vercel AI
SDK and LangChain JS. (The ollama client: test_ollama.py.)"""
import pytest
import ternlib
from ternlib import NODE, run_node

TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "ernie45"]


@pytest.fixture(scope="module")
def tool_server():
    with ternlib.Server(args=TOOLS) as s:
        yield s
        assert s.proc.poll() is None, "the server died during the tests"


def test_the_official_client_lists_completes_and_streams(server, node_clients):
    run_node("client.mjs", server.url)


def test_the_official_client_calls_tools(server, node_clients):
    run_node("tools.mjs", server.url)


def test_the_official_client_uses_responses(tool_server, node_clients):
    with ternlib.Server(args=TOOLS, env={"VLLM_ENABLE_RESPONSES_API_STORE": "1"}) as keeper:
        run_node("responses.mjs", tool_server.url, keeper.url)


def test_the_vercel_ai_sdk_generates_streams_and_calls_tools(tool_server, node_clients):
    run_node("vercel.mjs", tool_server.url)


def test_langchain_invokes_streams_and_calls_tools(tool_server, node_clients):
    run_node("langchain.mjs", tool_server.url)


def test_the_lock_file_names_no_host():
    assert "resolved" not in (NODE / "package-lock.json").read_text()
    assert "://" not in (NODE / "package-lock.json").read_text()
