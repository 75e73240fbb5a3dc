"""Run the fuzzers, each for a while: ``python tools/fuzz/fuzz.py [--seconds N] [TARGET …]``.

Corpora stay in ``.fuzz/<target>`` so that each run goes on where the last one stopped; inputs that
broke something are in ``.fuzz/findings``. Exit 1 where there was one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from targets import TARGETS

_HERE = Path(__file__).resolve().parent
_WORK = _HERE.parent.parent / ".fuzz"
_MAX_INPUT_BYTES = 64 << 10
_SECONDS_PER_INPUT = 5


def main() -> int:
    """Parse the command line, run what it names."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=int, default=20, help="time for each target")
    parser.add_argument("--runs", type=int, default=-1, help="inputs for each target, -1 for any")
    parser.add_argument("--rss-mb", type=int, default=2048, help="memory of each process")
    parser.add_argument("target", nargs="*", help=", ".join(TARGETS))
    asked = parser.parse_args()
    if unknown := set(asked.target) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    broken = [
        name
        for name in asked.target or TARGETS
        if not _run(name, seconds=asked.seconds, runs=asked.runs, memory=asked.rss_mb)
    ]
    if broken:
        print(f"findings in {', '.join(broken)}: see {_WORK / 'findings'}")
    return 1 if broken else 0


def _run(name: str, *, seconds: int, runs: int, memory: int) -> bool:
    findings = _WORK / "findings"
    findings.mkdir(parents=True, exist_ok=True)
    log = findings / f"{name}.log"
    command = [
        sys.executable,
        str(_HERE / "harness.py"),
        name,
        str(_WORK / name),
        f"-max_total_time={seconds}",
        f"-runs={runs}",
        f"-rss_limit_mb={memory}",
        f"-timeout={_SECONDS_PER_INPUT}",
        f"-max_len={_MAX_INPUT_BYTES}",
        f"-artifact_prefix={findings}/{name}-",
        "-print_final_stats=1",
    ]
    begun = time.monotonic()
    with log.open("wb") as output:
        # Loading and instrumenting come on top of the time to fuzz.
        done = subprocess.run(  # noqa: S603
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=seconds * 2 + 300,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            check=False,
        )
    text = log.read_text("utf-8", "replace")
    executed = next(
        (line.split()[-1] for line in text.splitlines() if "number_of_executed_units" in line), "?"
    )
    spent = time.monotonic() - begun
    said = "ok" if done.returncode == 0 else "FOUND"
    print(f"{name:20} {said:6} {executed:>9} inputs {spent:5.0f} s", flush=True)
    if done.returncode == 0:
        log.unlink()
        return True
    print("\n".join(text.splitlines()[-40:]))
    return False


if __name__ == "__main__":
    sys.exit(main())
