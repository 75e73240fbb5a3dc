"""How long does ``sealtrain init`` look at a file of 10 GB?

    python benchmarks/begin.py

Makes a CSV and a file of JSON lines with some 10 MB of records and a hole behind them up to the
size: what ``init`` reads of a file does not depend on what lies behind its first records, and a
reader that went on would meet zeros that are no record. Each command is a whole process. Ends with
1 where the median of one takes longer than the aim.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from measured_on import machine

AIM_SECONDS: Final = 3.0
_RECORDS: Final = 200_000


def main() -> int:
    """Measure, print and judge."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--gigabytes", type=float, default=10)
    asked.add_argument("--rounds", type=int, default=5)
    given = asked.parse_args()
    size = round(given.gigabytes * 1e9)
    held = True
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        for form in ("csv", "jsonl"):
            sample = write_sample(Path(name) / f"sample.{form}", size)
            times = [seconds_of(sample, Path(name) / f"{form}-{n}") for n in range(given.rounds)]
            wall, used = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"{form:6}{size:>16,} bytes{wall:8.2f} s{used:8.2f} s of processor")
            held = held and wall < AIM_SECONDS
    return 0 if held else 1


def write_sample(path: Path, size: int) -> Path:
    """Records, and nothing behind them up to the size."""
    with path.open("w") as file:
        if path.suffix == ".csv":
            file.write("complaint,urgent\n")
        for number in range(_RECORDS):
            text, label = f"complaint {number} of a patient who came in", number % 2
            if path.suffix == ".csv":
                file.write(f"{text},{label}\n")
            else:
                file.write(json.dumps({"complaint": text, "urgent": label}) + "\n")
    os.truncate(path, size)
    return path


def seconds_of(sample: Path, folder: Path) -> tuple[float, float]:
    """Wall and processor time of one ``init``."""
    before, began = os.times(), time.perf_counter()
    words = ["init", str(folder), "--owner-name", "clinic-a", "--sample", str(sample)]
    words += ["--text", "complaint", "--label", "urgent"]
    subprocess.run([sys.executable, "-m", "sealtrain", *words], check=True, capture_output=True)
    wall, after = time.perf_counter() - began, os.times()
    used = after.children_user - before.children_user
    return wall, used + after.children_system - before.children_system


if __name__ == "__main__":
    sys.exit(main())
