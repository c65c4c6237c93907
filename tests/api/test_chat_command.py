# SPDX-License-Identifier: Apache-2.0
"""`tern chat` and `tern complete`: against a server and a model directory, typed into a terminal and through pipes."""
import http.server
import json
import os
import pty
import re
import select
import signal
import socket
import stat
import subprocess
import threading
import termios
import time

import pytest
import ternlib
from ternlib import MODEL, SLOW, TERN, run

QUESTION = "写一首七言绝句，题目是《春晓》。"
GREEDY = ("--temperature", 0, "--max-tokens", 24)


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, *args, home, env=None):
        full = {**os.environ, "HOME": str(home), "TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})}
        full.pop("XDG_STATE_HOME", None)
        full.pop("NO_COLOR", None)
        full.update(env or {})
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(TERN, [TERN, *map(str, args)], full)
        self.seen = ""
        self.code = None

    def wait(self, pattern, timeout=15):
        """What came up to the pattern, which is taken away."""
        end = time.monotonic() + timeout * SLOW
        while not (m := re.search(pattern, self.seen)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    data = b""
                assert data, f"ended without {pattern!r}: {self.seen!r}"
                self.seen += data.decode("utf-8", "replace")
        before, self.seen = self.seen[:m.end()], self.seen[m.end():]
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def edit(self, text, timeout=15):
        """Types once the line editor has the keys: before that the terminal itself would take an erase."""
        end = time.monotonic() + timeout * SLOW
        while termios.tcgetattr(self.fd)[3] & termios.ICANON:
            assert time.monotonic() < end, "the terminal stays in line mode"
            time.sleep(0.01)
        self.type(text)

    def end(self, timeout=30):
        """Everything until the program ends; its exit code is in .code."""
        end = time.monotonic() + timeout * SLOW
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    data = b""
                if not data:
                    break
                self.seen += data.decode("utf-8", "replace")
        while self.code is None and time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        assert self.code is not None, "still runs"
        return self.seen

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.code is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.close(self.fd)


PROMPT = r">\x1b\[0m "
PLAIN_PROMPT = r"\r?> "


class Fake(http.server.BaseHTTPRequestHandler):
    """A server of somebody else's: says what it was asked, streams what it was told to."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def do_GET(self):
        self.reply(200, json.dumps({"data": [{"id": "other-model"}, {"id": "second"}]}).encode())

    def reply(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, self.headers.get("Authorization")))
        self.reply(*self.server.answer)


def events(*deltas, done=True):
    lines = ["data: " + json.dumps({"choices": [{"index": 0, "delta": d}]}) for d in deltas]
    return ("\n\n".join(lines + ["data: [DONE]"] * done) + "\n\n").encode()


@pytest.fixture
def fake():
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    s.asked, s.answer = [], (200, events({"content": "hello"}), "text/event-stream")
    s.url = f"http://127.0.0.1:{s.server_port}"
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield s
    s.shutdown()
    s.server_close()


@pytest.fixture(scope="module")
def expected():
    """The answer to QUESTION, as another command gives it."""
    r = run("generate", MODEL, "--chat", "-p", QUESTION, *GREEDY, "--quiet")
    assert r.returncode == 0
    return r.stdout.decode()


def test_one_shot_of_a_directory_gives_what_generate_gives(expected):
    r = run("chat", MODEL, "-q", QUESTION, *GREEDY)
    assert r.returncode == 0 and r.stdout.decode() == expected and r.stderr == b""


def test_one_shot_of_a_server_gives_the_same_text_with_and_without_v1(server, expected):
    for url in (server.url, server.url + "/", server.url[:-3]):
        r = run("chat", "--url", url, "-q", QUESTION, *GREEDY)
        assert r.returncode == 0 and r.stdout.decode() == expected and r.stderr == b"", r.stderr


def test_one_shot_takes_standard_input():
    r = run("complete", MODEL, "-q", "-", *GREEDY, stdin="春眠\n".encode())
    assert r.returncode == 0
    assert r.stdout == run("generate", MODEL, "-p", "春眠", *GREEDY, "--quiet").stdout


def test_complete_of_a_server_goes_on_with_the_text(server):
    r = run("complete", "--url", server.url, "-q", "春眠", *GREEDY)
    assert r.stdout == run("generate", MODEL, "-p", "春眠", *GREEDY, "--quiet").stdout


def test_a_unix_socket_is_reached(tmp_path, expected):
    path = tmp_path / "s"
    with ternlib.Server(args=["--uds", path], wait=False) as s:
        end = time.monotonic() + 30 * SLOW
        while True:
            r = run("chat", "--uds", path, "-q", QUESTION, *GREEDY)
            if r.returncode == 0 or time.monotonic() > end:
                break
            time.sleep(0.2)
        assert r.stdout.decode() == expected, s.output()


def test_lines_of_a_pipe_are_one_conversation(fake):
    r = run("chat", "--url", fake.url, "--system", "Be brief.", stdin=b"one\n\n//two\n")
    assert r.returncode == 0 and r.stdout == b"hello\nhello\n"
    assert [m["content"] for m in fake.asked[1][1]["messages"]] == ["Be brief.", "one", "hello", "/two"]
    assert fake.asked[0][1]["model"] == "other-model"


def test_only_what_was_set_is_sent(fake):
    run("chat", "--url", fake.url, "-q", "x")
    run("chat", "--url", fake.url, "-q", "x", "--temperature", 0.5, "--seed", 7, "--stop", "3", "--model-name", "second")
    plain = {"model", "messages", "stream", "stream_options"}
    assert set(fake.asked[0][1]) == plain
    body = fake.asked[1][1]
    assert set(body) == plain | {"temperature", "seed", "stop"}
    assert (body["temperature"], body["seed"], body["stop"], body["model"]) == (0.5, 7, "3", "second")


def test_the_key_comes_from_flag_or_environment(fake):
    run("chat", "--url", fake.url, "-q", "x", "--api-key", "sk-flag", env={"OPENAI_API_KEY": "sk-env"})
    run("chat", "--url", fake.url, "-q", "x", env={"OPENAI_API_KEY": "sk-env"})
    assert [a for _, _, a in fake.asked] == ["Bearer sk-flag", "Bearer sk-env"]


def test_settings_can_be_changed_and_taken_back_between_questions(fake):
    r = run("chat", "--url", fake.url, "--top-p", 0.9,
            stdin=b"/set temperature 0.25\n/set max-tokens=9\na\n/set top_p off\n/model second\nb\n")
    assert r.returncode == 0, r.stderr
    (_, a, _), (_, b, _) = fake.asked
    assert (a["temperature"], a["max_tokens"], a["top_p"]) == (0.25, 9, 0.9)
    assert "top_p" not in b and b["model"] == "second"


def test_a_conversation_is_saved_loaded_and_reset(fake, tmp_path):
    saved = tmp_path / "talk.json"
    run("chat", "--url", fake.url, stdin=f"/system S\none\n/save {saved}\n/reset\ntwo\n".encode())
    doc = json.loads(saved.read_text())
    assert [(m["role"], m["content"]) for m in doc["messages"]] == \
        [("system", "S"), ("user", "one"), ("assistant", "hello")]
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert [m["content"] for m in fake.asked[1][1]["messages"]] == ["S", "two"]
    fake.asked.clear()
    run("chat", "--url", fake.url, stdin=f"/load {saved}\nthree\n".encode())
    assert [m["content"] for m in fake.asked[0][1]["messages"]] == ["S", "one", "hello", "three"]


def test_a_file_that_is_no_conversation_changes_nothing(fake, tmp_path):
    (tmp_path / "bad").write_text('{"messages": [{"role": "user"}]}')
    r = run("chat", "--url", fake.url, stdin=f"/load {tmp_path / 'bad'}\n".encode())
    assert r.returncode == 1 and b"message 1 has no role and content" in r.stderr


def test_retry_asks_the_last_question_once_more(fake):
    run("chat", "--url", fake.url, stdin=b"one\n/retry\n")
    assert fake.asked[0][1]["messages"] == fake.asked[1][1]["messages"]


def test_a_block_of_lines_is_one_message(fake):
    run("chat", "--url", fake.url, stdin=b'"""first\n/second\nthird"""\n')
    assert fake.asked[0][1]["messages"][0]["content"] == "first\n/second\nthird"


def test_the_servers_own_words_are_the_error_and_the_code_is_1(fake):
    fake.answer = (400, b'{\n"error": {"message": "too long for me"}}', "application/json")
    r = run("chat", "--url", fake.url, "-q", "x")
    assert r.returncode == 1 and r.stdout == b""
    assert r.stderr.decode().startswith("tern chat: error: ") and b"status 400: too long for me" in r.stderr


def test_an_error_inside_a_stream_and_a_cut_stream_are_faults(fake):
    fake.answer = (200, events({"content": "par"}, done=False) + b'data: {"error": {"message": "boom"}}\n\n', "text/event-stream")
    r = run("chat", "--url", fake.url, "-q", "x")
    assert r.returncode == 1 and r.stdout == b"par\n" and b"boom" in r.stderr
    fake.answer = (200, events({"content": "par"}, done=False), "text/event-stream")
    r = run("chat", "--url", fake.url, "-q", "x")
    assert r.returncode == 1 and b"cut off" in r.stderr


def test_a_server_that_is_not_there_is_told_in_one_line():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        r = run("chat", "--url", f"http://127.0.0.1:{s.getsockname()[1]}", "-q", "x")
    assert r.returncode == 1 and r.stderr.count(b"\n") == 1 and r.stderr.startswith(b"tern chat: error: ")


@pytest.mark.parametrize("text, words", [(b"a\0b\n", b"holds NUL"), (b"\xc4\xe3\xba\xc3\n", b"not valid UTF-8")])
@pytest.mark.parametrize("how", [[], ["-q", "-"]])
def test_what_is_no_text_is_refused_and_not_cut_or_guessed(fake, text, words, how):
    r = run("chat", "--url", fake.url, *how, stdin=text)
    assert r.returncode == 1 and r.stdout == b"" and words in r.stderr and not fake.asked, r.stderr


def test_a_line_of_megabytes_is_read_in_one_go_and_refused_by_the_model():
    r = run("complete", MODEL, stdin=b"x " * 4_000_000)
    assert r.returncode == 1 and b"prompt tokens leave no room for output" in r.stderr


@pytest.mark.parametrize("words", [("a", "b"), ("--temperature", "warm"), ("--top-p", "2"), ("--nonsense",)])
def test_wrong_usage_is_exit_2(words):
    r = run("chat", *words)
    assert r.returncode == 2 and b"usage: tern chat" in r.stderr


def test_reasoning_is_left_out_of_a_pipe(fake):
    fake.answer = (200, events({"reasoning": "hm"}, {"content": "yes"}), "text/event-stream")
    assert run("chat", "--url", fake.url, "-q", "x").stdout == b"yes\n"


def test_output_to_a_pipe_is_byte_for_byte_the_models(fake):
    fake.answer = (200, events({"content": "\x1b[31mred"}), "text/event-stream")
    assert run("chat", "--url", fake.url, "-q", "x").stdout == b"\x1b[31mred\n"


# ---- on a terminal ----

def test_a_terminal_has_editing_history_and_colours(fake, tmp_path):
    with Terminal("chat", "--url", fake.url, home=tmp_path) as t:
        t.wait(r"other-model\. /help")
        t.wait(PROMPT)
        t.edit("helo春\x7f\x7flo\r")  # the last two characters are taken back
        t.wait("hello\r\n")
        t.wait(PROMPT)
        t.edit("\x1b[A\r")  # the line before, again
        t.wait("hello\r\n")
        t.wait(PROMPT)
        t.type("\x04")
        t.end()
        assert t.code == 0
    assert [m["content"] for m in fake.asked[1][1]["messages"]] == ["hello", "hello", "hello"]
    history = tmp_path / ".local/state/tern/chat_history"
    assert "hello" in history.read_text() and stat.S_IMODE(history.stat().st_mode) == 0o600
    with Terminal("chat", "--url", fake.url, home=tmp_path, env={"NO_COLOR": "1"}) as t:
        t.wait(PLAIN_PROMPT)
        t.edit("\x1b[A\r")
        t.wait("hello\r\n")
        t.wait(PLAIN_PROMPT)
        t.type("/exit\r")
        assert "\x1b[1;32m" not in t.end() and t.code == 0
    assert fake.asked[2][1]["messages"][0]["content"] == "hello"


def test_the_history_goes_where_xdg_says(fake, tmp_path):
    with Terminal("chat", "--url", fake.url, home=tmp_path, env={"XDG_STATE_HOME": str(tmp_path / "state")}) as t:
        t.wait(PROMPT)
        t.type("remember\r")
        t.wait("hello\r\n")
        t.wait(PROMPT)
        t.type("\x04")
        t.end()
    assert "remember" in (tmp_path / "state/tern/chat_history").read_text()


def test_a_model_cannot_steer_the_terminal(fake, tmp_path):
    fake.answer = (200, events({"content": "a\x1b]0;title\x07b\x9bc"}), "text/event-stream")
    with Terminal("chat", "--url", fake.url, "-q", "x", home=tmp_path) as t:
        assert t.end() == "a]0;titlebc\r\n" and t.code == 0


def test_a_fault_is_told_and_the_session_goes_on(fake, tmp_path):
    with Terminal("chat", "--url", fake.url, home=tmp_path) as t:
        t.wait(PROMPT)
        fake.answer = (500, b'{"error": {"message": "broken"}}', "application/json")
        t.type("one\r")
        t.wait("status 500: broken")
        t.wait(PROMPT)
        fake.answer = (200, events({"content": "fine"}), "text/event-stream")
        t.type("two\r")
        t.wait("fine\r\n")
        t.wait(PROMPT)
        t.type("/exit\r")
        t.end()
        assert t.code == 0
    assert [m["content"] for m in fake.asked[1][1]["messages"]] == ["two"]


def test_control_c_at_the_prompt_drops_the_line_and_stays(fake, tmp_path):
    with Terminal("chat", "--url", fake.url, home=tmp_path) as t:
        t.wait(PROMPT)
        t.type("never sent")
        t.wait("never sent")
        t.type("\x03")
        t.wait("Ctrl-D or /exit leaves")
        t.wait(PROMPT)
        t.type("sent\r")
        t.wait("hello\r\n")
        t.wait(PROMPT)
        t.type("\x04")
        t.end()
        assert t.code == 0
    assert [b["messages"][-1]["content"] for _, b, _ in fake.asked] == ["sent"]


def test_control_c_stops_an_answer_of_a_directory_and_the_program_goes_on(slow_model, tmp_path):
    with Terminal("chat", slow_model, "--max-model-len", 4096, home=tmp_path) as t:
        t.wait(PROMPT, 60)
        t.type("hi\r")
        t.wait("hi\r\n")
        time.sleep(1)
        t.type("\x03")
        t.wait(r"\[stopped\]")
        t.wait(PROMPT)
        t.type("/exit\r")
        t.end()
        assert t.code == 0


def test_control_c_stops_an_answer_of_a_server_and_frees_its_slot(slow_model, tmp_path):
    with ternlib.Server(slow_model, args=["--max-model-len", 4096]) as s:
        with Terminal("chat", "--url", s.url, home=tmp_path) as t:
            t.wait(PROMPT)
            t.type("/set temperature 0\r")
            t.wait(PROMPT)
            t.type("hi\r")
            s.wait_running()
            t.type("\x03")
            t.wait(r"\[stopped\]")
            t.wait(PROMPT)
            s.wait_idle(5)
            t.type("\x04")
            t.end()
            assert t.code == 0


def test_a_termination_signal_ends_the_session(fake, tmp_path):
    with Terminal("chat", "--url", fake.url, home=tmp_path) as t:
        t.wait(PROMPT)
        os.kill(t.pid, signal.SIGTERM)
        t.end()
        assert t.code == 0


def test_an_interrupted_one_shot_is_exit_1(slow_model):
    p = subprocess.Popen([TERN, "chat", str(slow_model), "-q", "hi", "--max-model-len", "4096"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    try:
        assert p.stdout.read(1)
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=30 * SLOW)
    finally:
        p.kill()
        p.wait()
    assert p.returncode == 1 and err == b"tern chat: error: interrupted\n"
