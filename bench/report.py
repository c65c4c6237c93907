# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of this folder print, and keep in results/."""
import datetime
import json
import math
import os
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
lines = []


def say(text=""):
    print(text, flush=True)
    lines.append(text)


def say_where(tern, cpu="", more=""):
    """When, which program, on what."""
    version = subprocess.run([tern, "--version"], capture_output=True, text=True).stdout.strip()
    say(f"{datetime.datetime.now():%Y-%m-%d %H:%M}  {version}  {cpu and cpu + ', '}{len(os.sched_getaffinity(0))} CPUs, "
        f"load {os.getloadavg()[0]:.2f}{more}")


def cpu_name():
    return next((x.split(":")[1].strip() for x in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                 if x.startswith("model name")), os.uname().machine)


def spread(v, digits=2):
    return f"{statistics.median(v):.{digits}f} (min {min(v):.{digits}f}, max {max(v):.{digits}f}, {len(v)} runs)"


def read_results(path):
    """The turns that bench/compare kept in a file, or the program's end with one line that names what is wrong."""
    def positive(x):
        return isinstance(x, (int, float)) and math.isfinite(x) and x > 0
    try:
        doc = json.loads(pathlib.Path(path).read_text())
    except OSError as e:
        raise SystemExit(f"{path}: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        raise SystemExit(f"{path}: no file that bench/compare wrote: {e}") from None
    turns = doc.get("turns") if isinstance(doc, dict) else None
    if not isinstance(turns, list) or not all(isinstance(doc.get(k), str) for k in ("format", "program")):
        raise SystemExit(f"{path}: expected an object with format, program and turns")
    for i, t in enumerate(turns):
        if not (isinstance(t, dict) and all(isinstance(t.get(k), str) for k in ("case", "args"))
                and all(positive(t.get(k)) for k in ("time", "tok/s"))
                and all(positive(v) for k, v in t.items() if k.startswith("ttft"))):
            raise SystemExit(f"{path}: turn {i + 1}: expected case and args, and time and tok/s above 0")
    return doc


def write(name):
    """All that was said, to results/<date>-NAME.txt."""
    out = ROOT / "bench" / "results" / f"{datetime.datetime.now():%Y-%m-%d-%H%M}-{name}.txt"
    out.write_text("\n".join(lines) + "\n")
    print("written:", out.relative_to(ROOT))
