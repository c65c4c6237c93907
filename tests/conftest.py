# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the black-box tests. Where the reference data is absent, tests that need it are named as skipped."""
import os
import pathlib

import pytest
import ternlib


@pytest.fixture(scope="session")
def shared():
    if not (ternlib.SHARED / "fixtures" / "index.json").exists():
        pytest.skip("reference fixtures are not here (set TERN_SHARED)")
    return ternlib.SHARED


@pytest.fixture(scope="session")
def server():
    """One server with the shipped model for all tests that only ask questions."""
    with ternlib.Server(args=["--enable-prompt-tokens-details"]) as s:
        yield s
        assert s.proc.poll() is None, "the server died during the tests"


@pytest.fixture(scope="session")
def node_clients():
    """The npm clients of tests/api/node are installed."""
    why_not = ternlib.install_node_clients()
    if why_not and not os.environ.get("CI"):
        pytest.skip(why_not)
    assert not why_not, why_not


@pytest.fixture(scope="session")
def slow_model(tmp_path_factory):
    """A random checkpoint big enough that prefill and decode take a while."""
    return ternlib.make_model(tmp_path_factory.mktemp("slow") / "model", pathlib.Path(ternlib.MODEL))
