# SPDX-License-Identifier: Apache-2.0
"""What `tern serve` says to systemd: a datagram socket stands in for it."""
import os
import socket
import time

import pytest
import ternlib


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name)
        self.seen = []

    def until(self, line, timeout=60):
        """Waits for a message with the line; returns all messages of the wait."""
        end, got = time.monotonic() + timeout * ternlib.SLOW, []
        while time.monotonic() < end:
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                got.append(self.socket.recv(4096).decode().split("\n"))
            except TimeoutError:
                break
            self.seen += got[-1]
            if any(x == line or x.startswith(line) and line.endswith("=") for x in got[-1]):
                return got
        raise AssertionError(f"no {line}; came: {self.seen}")

    def close(self):
        self.socket.close()


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_ready_comes_when_health_is_200_and_stopping_at_the_end(kind, tmp_path):
    name = f"{tmp_path}/notify" if kind == "path" else f"\0tern-test-{os.getpid()}"
    m = Manager(name)
    with ternlib.Server(args=["--max-model-len", 512], wait=False,
                        env={"NOTIFY_SOCKET": name.replace("\0", "@")}) as s:
        first = m.until("READY=1")
        assert s.get("/health").status == 200, "READY=1 was said before a token could be produced"
        assert any(x.startswith("STATUS=Loading ") for x in first[0])
        assert any(x.startswith("EXTEND_TIMEOUT_USEC=") for x in first[0])
        assert any(x == f"STATUS=Serving {ternlib.MODEL} on http://127.0.0.1:{s.port}" for x in first[-1])
        assert not any(x == "WATCHDOG=1" for x in m.seen), "nobody asked for signs of life"
        s.stop()
        m.until("STOPPING=1", 5)
    m.close()


def test_signs_of_life_come_thrice_in_the_time_that_is_asked_for(tmp_path):
    m = Manager(f"{tmp_path}/notify")
    with ternlib.Server(args=["--max-model-len", 512], wait=False,
                        env={"NOTIFY_SOCKET": f"{tmp_path}/notify", "WATCHDOG_USEC": "900000"}) as s:
        m.until("READY=1")
        for _ in range(4):
            m.until("WATCHDOG=1", 5)
        assert s.proc.poll() is None
    m.close()


def test_no_sign_of_life_comes_while_the_engine_is_stuck(tmp_path, slow_model):
    m = Manager(f"{tmp_path}/notify")
    env = {"NOTIFY_SOCKET": f"{tmp_path}/notify", "WATCHDOG_USEC": "600000"}
    with ternlib.Server(slow_model, ["--max-model-len", 4096, "--kv-cache-memory-bytes", "64M", "--stall-timeout", 1],
                        wait=False, env=env) as s:
        m.until("READY=1")
        with ternlib.Stopped(s.proc.pid, "tern-engine"):
            for _ in range(8):
                m.until("WATCHDOG=1", 5)  # nothing to do: idle is no fault
            sock = s.raw(60)
            sock.sendall(ternlib.http_bytes("/v1/completions", {"prompt": "a", "max_tokens": 3}))
            m.until("STATUS=The engine has work but makes no step", 20)
            quiet = m.until("STATUS=The engine has work but makes no step", 20)
            assert quiet == [["STATUS=The engine has work but makes no step"]], quiet
        got = m.until("WATCHDOG=1", 20)
        assert any(x.startswith("STATUS=Serving ") for message in got for x in message), "the status stays wrong"
        sock.close()
    m.close()


def test_a_watchdog_of_another_process_is_not_fed(tmp_path):
    m = Manager(f"{tmp_path}/notify")
    env = {"NOTIFY_SOCKET": f"{tmp_path}/notify", "WATCHDOG_USEC": "300000", "WATCHDOG_PID": "1"}
    with ternlib.Server(args=["--max-model-len", 512], wait=False, env=env):
        m.until("READY=1")
        time.sleep(0.5)
    m.until("STOPPING=1", 5)
    assert "WATCHDOG=1" not in m.seen
    m.close()


def test_the_time_limit_is_extended_as_long_as_the_model_loads(tmp_path, slow_model):
    """A watchdog's time sets the beat; each beat of the start asks for a minute more."""
    m = Manager(f"{tmp_path}/notify")
    with ternlib.Server(slow_model, ["--max-model-len", 512, "--threads", 1], wait=False,
                        env={"NOTIFY_SOCKET": f"{tmp_path}/notify", "WATCHDOG_USEC": "15000"}):
        m.until("READY=1", 120)
        before = m.seen[:m.seen.index("READY=1")]
        assert before.count("EXTEND_TIMEOUT_USEC=60000000") >= 2, before
        assert "WATCHDOG=1" not in before, "there is no engine yet"
    m.close()


def test_the_reason_of_a_failed_start_is_its_status(tmp_path):
    m = Manager(f"{tmp_path}/notify")
    r = ternlib.run("serve", ternlib.MODEL, "--max-model-len", 8192, "--kv-cache-memory-bytes", "1M",
                    env={"NOTIFY_SOCKET": f"{tmp_path}/notify"})
    assert r.returncode == 1
    got = m.until("STATUS=", 5)
    reason = got[-1][0].removeprefix("STATUS=")
    assert reason and reason.encode() in r.stderr
    m.close()


@pytest.mark.parametrize("name", ["relative", "/", "@", "/nowhere/at/all", "@" + "x" * 200])
def test_a_socket_that_is_none_changes_nothing(name):
    with ternlib.Server(args=["--max-model-len", 512], env={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "x"}) as s:
        s.completion("a", max_tokens=1)
