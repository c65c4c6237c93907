# SPDX-License-Identifier: Apache-2.0
"""libtern as an outside program sees it: the header, the symbols, an installed tree, the examples."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import ternlib

BUILD = pathlib.Path(os.environ.get("TERN_BUILD", ternlib.SOURCE / "build"))
HEADER = ternlib.SOURCE / "include" / "tern.h"
SMALL = ["max-model-len=64", "max-num-seqs=8"]

pytestmark = pytest.mark.skipif(not (BUILD / "libtern.so").exists(), reason="this build has no libtern")


def run(*cmd, **kw):
    r = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, errors="replace", timeout=600, **kw)
    assert r.returncode == 0, f"{cmd}\n{r.stdout[-3000:]}{r.stderr[-3000:]}"
    return r.stdout


# ---- the header -----------------------------------------------------------------------------------------------

USE_ALL = """#include <tern.h>
int main(void)
{
    struct tern_error e = TERN_ERROR_INIT;
    struct tern_info i = TERN_INFO_INIT;
    struct tern_metrics m = TERN_METRICS_INIT;
    struct tern_chunk c = TERN_CHUNK_INIT;
    return e.code + i.n_threads + m.blocks + c.last;
}
"""


@pytest.mark.parametrize("compiler,standard", [("cc", "c99"), ("cc", "c11"), ("cc", "gnu17"), ("c++", "c++98"),
                                               ("c++", "c++17"), ("clang", "c11"), ("clang++", "c++20")])
def test_header_compiles_alone(compiler, standard, tmp_path):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not here")
    source = tmp_path / ("x.cc" if "++" in compiler else "x.c")
    source.write_text(USE_ALL)
    run(compiler, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
        *(["-Wno-long-long"] if standard == "c++98" else []), f"-I{HEADER.parent}", source)


# ---- symbols --------------------------------------------------------------------------------------------------

def declared():
    return set(re.findall(r"\b(tern_\w+)\(", re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S))) \
        - {"tern_log_fn", "tern_chunk_fn"}


def defined(*args):
    return {line.split()[-1].split("@")[0] for line in run("nm", *args).splitlines()
            if len(line.split()) == 3 and line.split()[1] in "TDBRVW"}


def test_only_the_functions_of_the_header_are_exported():
    want = declared()
    assert len(want) > 40
    assert defined("-D", "--defined-only", BUILD / "libtern.so") == want
    assert defined("--defined-only", "--extern-only", BUILD / "libtern.a") == want


def test_soname_has_the_major_version_and_no_library_of_the_server_is_needed():
    out = run("readelf", "-d", BUILD / "libtern.so")
    assert "libtern.so.0" in out
    needed = re.findall(r"NEEDED.*\[(.*?)\]", out)
    assert not [n for n in needed if re.match("libevent|libssl|libcrypto|libcurl|libstdc", n)], needed


# ---- an installed tree ----------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """DESTDIR and prefix of an installation; programs use it from where it lies."""
    root = tmp_path_factory.mktemp("root")
    run("cmake", "--install", BUILD, "--prefix", "/opt/tern", env={**os.environ, "DESTDIR": str(root)})
    return root / "opt" / "tern"


def lib_dir(installed):
    return next(installed.rglob("libtern.so")).parent


def test_outside_program_builds_by_pkg_config(installed, tmp_path):
    env = {**os.environ, "PKG_CONFIG_PATH": str(lib_dir(installed) / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "tern", env=env).split()
    run("cc", "-std=c11", ternlib.SOURCE / "examples" / "hello.c", *flags, "-o", tmp_path / "hello")
    out = run(tmp_path / "hello", ternlib.MODEL, "春", *SMALL,
              env={**os.environ, "LD_LIBRARY_PATH": str(lib_dir(installed))})
    assert "[length]" in out


def test_archive_links_into_a_program_with_names_of_its_own(installed, tmp_path):
    env = {**os.environ, "PKG_CONFIG_PATH": str(lib_dir(installed) / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "--static", "tern", env=env).split()
    flags = [str(lib_dir(installed) / "libtern.a") if f == "-ltern" else f for f in flags]
    own = tmp_path / "own.c"
    own.write_text("int json_parse(void) { return 1; }\nint buf_init(void) { return 1; }\n"
                   "int engine_open(void) { return 1; }\n")
    run("cc", "-std=c11", ternlib.SOURCE / "examples" / "hello.c", own, *flags, "-o", tmp_path / "hello")
    assert "[length]" in run(tmp_path / "hello", ternlib.MODEL, "春", *SMALL)


def test_outside_project_builds_by_find_package(installed, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(outside C)\nfind_package(tern 0.1 REQUIRED)\n"
        f"add_executable(hello {ternlib.SOURCE}/examples/hello.c)\ntarget_link_libraries(hello tern::tern)\n"
        f"add_executable(hello_static {ternlib.SOURCE}/examples/hello.c)\n"
        "target_link_libraries(hello_static tern::tern_static)\n")
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed}")
    run("cmake", "--build", tmp_path / "build")
    for name in ("hello", "hello_static"):
        assert "[length]" in run(tmp_path / "build" / name, ternlib.MODEL, "春", *SMALL)


# ---- examples -------------------------------------------------------------------------------------------------

EXAMPLES = {"hello": [ternlib.MODEL, "春"], "stream": [ternlib.MODEL, "写诗"], "batch": [ternlib.MODEL],
            "cancel": [ternlib.MODEL], "tokenize": [ternlib.MODEL, "Hello, 世界😀 <|end_of_sentence|>"]}


def example(name, *more):
    options = [] if name == "tokenize" else [*SMALL, *more]
    return [BUILD / "examples" / name, *EXAMPLES[name], *options]


def test_every_example_is_run_here():
    assert {p.stem for p in (ternlib.SOURCE / "examples").glob("*.c")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name):
    assert run(*example(name))


def test_hello_says_what_generate_says():
    said = run(*example("hello"))
    told = run(ternlib.TERN, "generate", ternlib.MODEL, "-p", "春", "--temperature", "0", "--max-tokens", "24",
               "--max-model-len", "64", "--quiet")
    assert said.rsplit("[", 1)[0].rstrip("\n") == told.rstrip("\n")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """valgrind runs a hundred times slower: random weights of a small shape will do."""
    return str(ternlib.make_model(tmp_path_factory.mktemp("tiny") / "model", ternlib.MODEL, hidden=128,
                                  intermediate=256, layers=2, heads=2, kv_heads=1, head_dim=64, vocab=4096))


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_leaks_nothing_under_valgrind(name, tiny):
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not here")
    if os.uname().machine != "x86_64":
        pytest.skip("the level that valgrind knows is x86-64's avx2")
    run("valgrind", "-q", "--leak-check=full", "--show-leak-kinds=all", "--errors-for-leak-kinds=all",
        "--fair-sched=yes", "--error-exitcode=9",
        *[tiny if a == ternlib.MODEL else a for a in example(name, "cpu-mask=avx2", "threads=1")])
