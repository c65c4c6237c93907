#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: build_wheel.py LIBTERN.SO OUTPUT_DIR. A wheel is a zip file with a list of what is in it: the package, the
library, and their names and hashes. Needs nothing but Python; the same input gives the same bytes."""
import base64
import hashlib
import pathlib
import re
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}


def machine(library: bytes) -> str:
    """From the ELF header, since the library may be for another machine than this one."""
    if library[:4] != b"\x7fELF" or int.from_bytes(library[18:20], "little") not in MACHINES:
        sys.exit("build_wheel: no library of a machine that is known")
    return MACHINES[int.from_bytes(library[18:20], "little")]


def version() -> str:
    found = re.search(r"project\(tern VERSION ([0-9.]+)", (HERE.parent.parent / "CMakeLists.txt").read_text())
    assert found
    return found[1]


def main(library: pathlib.Path, out: pathlib.Path) -> None:
    code = library.read_bytes()
    tag = f"py3-none-linux_{machine(code)}"
    info = f"tern-{version()}.dist-info"
    readme = (HERE / "README.md").read_text()
    files = {p.relative_to(HERE).as_posix(): p.read_bytes() for p in sorted((HERE / "tern").rglob("*"))
             if p.is_file() and (p.suffix == ".py" or p.name == "py.typed")}
    files["tern/libtern.so"] = code
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: tern\nVersion: {version()}\n"
        "Summary: ERNIE 4.5 models on CPUs, with vLLM's Python interface\nLicense: Apache-2.0\n"
        "Requires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n" + readme).encode()
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: tern\nRoot-Is-Purelib: false\nTag: {tag}\n").encode()
    files[f"{info}/LICENSE"] = (HERE.parent.parent / "LICENSE").read_bytes()
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"tern-{version()}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, data)
    print(wheel)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
