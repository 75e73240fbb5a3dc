"""How long commands take to answer: the help of each, and a few that people type all day.

    python benchmarks/commands.py [--json] [--rounds 3]

Each command is a process of its own, started warm; a figure is the median of its rounds. Commands
that ask a broker, or train, are in ``release.py`` and ``start.py``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measured_on import machine
from sealtrain.cli.commands import COMMANDS
from sealtrain.cli.lazy import Entries, Noun

TYPED = {
    "--version": ["--version"],
    "recipes": ["recipes"],
    "recipes sft-lora": ["recipes", "sft-lora"],
    "explain wrong-key": ["explain", "wrong-key"],
    "keygen": ["keygen", "clinic-a", "--out", "{new}"],
    "recipe schema": ["recipe", "schema"],
    "simulator policy": ["simulator", "policy", "--state", "{new}", "--out", "{new}.yaml"],
    "simulator faults": ["simulator", "faults"],
    "deploy ticket": [
        "deploy", "ticket", "--role", "broker", "--listen", "127.0.0.1:0", "--out", "{new}",
    ],
    "broker openapi": ["broker", "openapi"],
}  # fmt: skip


def helps(entries: Entries = COMMANDS, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Words of every command and group."""
    for name, entry in entries.items():
        yield (*above, name)
        if isinstance(entry, Noun):
            yield from helps(entry.commands, (*above, name))


def seconds(words: list[str], rounds: int, folder: Path) -> float:
    """Median seconds of a command, after one start that fills the caches."""
    taken = []
    for turn in range(rounds + 1):
        typed = [word.format(new=folder / f"new-{time.monotonic_ns()}") for word in words]
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "sealtrain", *typed],
            cwd=folder,
            capture_output=True,
            check=True,
        )
        if turn:
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    wanted = {" ".join((*words, "--help")): [*words, "--help"] for words in [(), *helps()]} | TYPED
    with tempfile.TemporaryDirectory() as folder:
        found = {name: seconds(words, given.rounds, Path(folder)) for name, words in wanted.items()}
    slowest = sorted(found.items(), key=lambda pair: -pair[1])
    if given.json:
        print(json.dumps({"machine": machine("typer", "pydantic"), "seconds": found}, indent=2))
        return
    for name, took in slowest:
        print(f"{took:6.2f} s  {name}")


if __name__ == "__main__":
    main()
