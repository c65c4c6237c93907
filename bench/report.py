# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of this folder print, and keep in results/."""
import datetime
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


def write(name):
    """All that was said, to results/<date>-NAME.txt."""
    out = ROOT / "bench" / "results" / f"{datetime.datetime.now():%Y-%m-%d-%H%M}-{name}.txt"
    out.write_text("\n".join(lines) + "\n")
    print("written:", out.relative_to(ROOT))
