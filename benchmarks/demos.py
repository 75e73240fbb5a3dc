"""How long the demos of training together take while another process keeps one core busy.

    python benchmarks/demos.py [--only federate] [--idle] [--write] [--json]

Each demo is the command that a reader types, in a new folder, with the process of this script's own
that only counts beside it; ``--idle`` leaves that process away. Exits with 1 where a demo fails or
takes more than 180 seconds. ``--write`` makes ``docs/reference/benchmarks/demos.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from measured_on import machine

DEMOS = ("federate", "split", "travel")
BAR_S = 180
PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "benchmarks" / "demos.md"


@contextmanager
def one_core_busy() -> Iterator[None]:
    """A process that keeps a core busy while the block runs."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def played(name: str) -> tuple[float, float]:
    """Seconds of wall time that a demo takes, and of processors in all its processes.

    Raises:
        SystemExit: It failed.
    """
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        began, spent = time.monotonic(), processors()
        done = subprocess.run(
            [sys.executable, "-m", "sealtrain", name, "demo", "--out", f"{folder}/out"],
            check=False,
            capture_output=True,
            text=True,
        )
        took = time.monotonic() - began, processors() - spent
    if done.returncode != 0:
        raise SystemExit(
            f"sealtrain {name} demo ended with {done.returncode}: {done.stderr[-800:]}"
        )
    return took


def processors() -> float:
    """Processor seconds of the processes that this one waited for, with those below them."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def page(found: dict[str, Any], took: float) -> str:
    """The page of the figures."""
    on, beside = found["machine"], "an idle machine" if found["idle"] else "a process that counts"
    packages = ", ".join(
        f"{name} {value}" for name, value in on.items()
        if name not in ("processor", "processors", "load")
    )  # fmt: skip
    rows = "\n".join(
        f"| `sealtrain {name} demo` | {seconds:.0f} s | {BAR_S} s "
        f"| {found['processor_seconds'][name]:.0f} s |"
        for name, seconds in found["seconds"].items()
    )
    return f"""# Demos beside a busy core

Wall time of the demos of training together, from the command to its last line, beside {beside}.
Made by `python benchmarks/demos.py --write` in {took:.0f} s.

{on["processor"]}, {on["processors"]} processors; {packages}; load {on["load"]:.1f} when it began.

| command | took | bar | processor time |
|---|---:|---:|---:|
{rows}

Each demo founds its consortium, starts broker and guests on the simulator, trains, verifies the
manifest and opens the model. `federate demo` kills a hospital in between and starts Flower's own
processes over TLS.
"""


def main() -> None:
    """Play them."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", choices=DEMOS, action="append", help="this demo; repeat")
    parser.add_argument("--idle", action="store_true", help="without the busy process")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    began, load = time.monotonic(), os.getloadavg()[0]
    found: dict[str, Any] = {"machine": machine("torch", "flwr", load=load), "idle": given.idle}
    seconds: dict[str, float] = {}
    spent: dict[str, float] = {}
    for name in given.only or DEMOS:
        with nullcontext() if given.idle else one_core_busy():
            took = played(name)
        seconds[name], spent[name] = (round(seconds, 1) for seconds in took)
        print(f"{name:<10}{took[0]:6.1f} s, {took[1]:.1f} s of processors", file=sys.stderr)
    found |= {"seconds": seconds, "processor_seconds": spent}
    if given.json:
        print(json.dumps(found, indent=2))
    if given.write:
        PAGE.write_text(page(found, time.monotonic() - began), "utf-8")
    if max(seconds.values()) > BAR_S:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
