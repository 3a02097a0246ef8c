"""Where does a whole command spend its time, in every Python process that it starts?

    python benchmarks/where_time_goes.py cerebro-eeg finetune my-store --task eyes --from small-open --out eyes

Each process writes down every 50 ms where its main thread is. What takes a quarter of a second or more is printed with
its begin and its duration: the functions of the package, and the innermost function, which may be an import.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LEAST = 0.25
"""Seconds that are worth a line."""


def main(command: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(filter(None, [str(Path(__file__).parent / "sampling"), os.environ.get("PYTHONPATH")]))
        code = subprocess.run(command, env={**os.environ, "SAMPLES": folder, "PYTHONPATH": path}).returncode
        found = sorted((json.loads(file.read_text()) for file in Path(folder).glob("*.json")), key=lambda x: x["began"])
    for process in found:
        print(f"process at {process['began'] - found[0]['began']:.2f} s: {' '.join(process['command'])[:120]}")
        for line in stretches(process, found[0]["began"]):
            print(line)
    return code


def stretches(process: dict[str, Any], zero: float) -> list[str]:
    """Return a line for each stretch of samples in one function of the package."""
    lines, samples, first, before = [], process["samples"], 0, process["began"]
    for place in range(1, len(samples) + 1):
        if place < len(samples) and function(samples[place]) == function(samples[first]):
            continue
        until = samples[place - 1][0]
        if until - before >= LEAST:
            inner = collections.Counter(name for _, _, name in samples[first:place]).most_common(1)[0][0]
            lines.append(f"  {before - zero:7.2f} +{until - before:5.2f}  {samples[first][1] or '-'}  [{inner}]")
        first, before = place, until
    return lines


def function(sample: list[Any]) -> str:
    """Return the innermost function of the package, without the line."""
    return str(sample[1]).split(" < ")[0].rpartition(":")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
