# SPDX-License-Identifier: Apache-2.0
"""Manual pages and completions: made from the option tables, so every option that --help lists is there."""
import gzip
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import ternlib

PAGES = pathlib.Path(os.environ.get("TERN_BUILD", pathlib.Path(ternlib.TERN).parent)) / "pages"


def text(*words):
    r = ternlib.run(*words)
    assert r.returncode == 0, r.stderr
    return r.stdout.decode()


COMMANDS = text("--help=commands").splitlines()


def page(command):
    return gzip.decompress((PAGES / "man1" / f"{('tern ' + command).strip().replace(' ', '-')}.1.gz").read_bytes()).decode()


def flags(help_text, *, usable=False):
    """Flags of --help; usable: without those that have no effect or are refused."""
    out = []
    for m in re.finditer(r"^  --(\[no-\])?([a-z0-9-]+)(.*(?:\n {38}.*)?)", help_text, re.M):
        if not usable or not re.search(r"Accepted, no effect:|Refused:", m[3]):
            out.append(m[2])
    return out


def complete(*words):
    script = f"""source {PAGES}/tern.bash
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tern; printf '%s\\n' "${{COMPREPLY[@]}}\""""
    r = subprocess.run(["bash", "--norc", "-c", script, "bash", "tern", *words], capture_output=True, text=True,
                       cwd=ternlib.SOURCE)
    assert r.returncode == 0 and r.stderr == "", r.stderr
    return r.stdout.split()


def test_help_names_every_command_under_a_heading():
    out = text("--help")
    headings = re.findall(r"^([A-Z][^:\n]+):$", out, re.M)
    assert len(headings) >= 4 and len(set(headings)) == len(headings)
    for c in COMMANDS:
        if " " not in c:
            assert re.search(rf"^  {c} ", out, re.M), c


def test_there_is_a_page_for_every_command_and_no_other():
    want = {"tern.1.gz"} | {f"tern-{c.replace(' ', '-')}.1.gz" for c in COMMANDS}
    assert {p.name for p in (PAGES / "man1").iterdir()} == want


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "bench"])
def test_every_option_is_in_the_page_and_what_works_is_offered(command):
    help_text, roff = text(*command.split(), "--help"), page(command)
    listed = flags(help_text)
    assert listed
    offered = complete(*command.split(), "--")
    for name in listed:
        assert "\\fB\\-\\-" + name.replace("-", "\\-") + "\\fR" in roff, name
    for name in flags(help_text, usable=True):
        assert "--" + name in offered, name
    for name in re.findall(r"^  ([A-Z][A-Z0-9_]+) ", help_text, re.M):  # variables without a flag
        assert f"\\fB{name}\\fR" in roff, name
    assert set(offered) <= {"--" + n for n in listed} | {"--no-" + n for n in listed} | {"--help"} | \
        set(re.findall(r", (--?[a-zA-Z-]+)", help_text)) | set(re.findall(r"(--?[a-zA-Z-]+)", help_text))


@pytest.mark.skipif(not shutil.which("mandoc"), reason="mandoc is not installed")
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_page_is_without_a_warning_of_mandoc(command):
    r = subprocess.run(["mandoc", "-Tlint", "-W", "warning"], input=page(command), capture_output=True, text=True)
    assert r.returncode == 0 and r.stdout == "", r.stdout


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed")
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_page_is_without_a_warning_of_groff(command):
    r = subprocess.run(["groff", "-man", "-Kutf8", "-Tutf8", "-ww", "-z"], input=page(command).encode(),
                       capture_output=True)
    assert r.returncode == 0 and r.stderr == b"", r.stderr


def test_bash_is_offered_commands_choices_and_files():
    assert set(complete("")) >= {c for c in COMMANDS if " " not in c}
    assert complete("ben") == ["bench"]
    assert set(complete("bench", "")) == {c.split()[1] for c in COMMANDS if " " in c} | {"--help"}
    assert complete("serve", "--dtype", "") == ["auto", "bfloat16", "float32", "float"]
    assert complete("serve", "--dtype", "=", "b") == ["bfloat16"], "--dtype=b: bash cuts words at ="
    assert complete("serve", "--no-enable-pre") == ["--no-enable-prefix-caching"]
    assert complete("bench", "serve", "--dataset-n") == ["--dataset-name"]
    assert complete("serve", "mod") == ["models"]
    assert "README.md" in complete("serve", "--config", "READ")
    assert complete("serve", "--port", "") == [], "a number can't be guessed"


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_takes_the_script():
    r = subprocess.run(["zsh", "-n", PAGES / "_tern"], capture_output=True)
    assert r.returncode == 0 and r.stderr == b"", r.stderr


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_offers_choices(tmp_path):
    r = subprocess.run(["fish", "--no-config", "-c", f"source {PAGES}/tern.fish; complete -C 'tern serve --dtype '"],
                       capture_output=True, text=True, env={**os.environ, "HOME": str(tmp_path)})
    assert [x.split("\t")[0] for x in r.stdout.splitlines()] == ["auto", "bfloat16", "float", "float32"], r.stderr


@pytest.mark.parametrize("word", ["man", "bash", "zsh", "fish"])
def test_the_words_that_make_pages_need_nothing_but_the_program(word):
    r = ternlib.run(f"--help={word}", env={"HOME": "/nowhere", "PATH": "/nowhere"})
    assert r.returncode == 0 and r.stderr == b"" and b"tern" in r.stdout
