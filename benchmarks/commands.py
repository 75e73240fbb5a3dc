"""How long commands take to answer: the help of each, and a few that people type all day.

    python benchmarks/commands.py [--json] [--rounds 3] [--part walk|typed|help]

Each command is a process of its own, started warm; a figure is the median of its rounds. Three
parts, all of them unless one is named:

walk    the walk of ``docs/guides/first_hour.md`` is played, with its broker and its simulated
        hardware beside; then the commands that its readers type again and again are measured there
typed   commands that ask no broker
help    the help of every command and group

How long training takes is in ``start.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measured_on import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "first_hour"))
from record import PAGES, play, steps_of

from sealtrain.cli.commands import COMMANDS
from sealtrain.cli.lazy import Entries, Noun

TYPED = {
    "--version": ["--version"],
    "recipes": ["recipes"],
    "recipes sft-lora": ["recipes", "sft-lora"],
    "explain wrong-key": ["explain", "wrong-key"],
    "keygen": ["keygen", "clinic-a", "--out", "{new}"],
    "recipe schema": ["recipe", "schema"],
    "simulator policy": [
        "simulator", "serve", "--simulator", "{new}", "--write-policy", "{new}.yaml",
    ],
    "simulator faults": ["simulator", "faults"],
    "deploy ticket": [
        "deploy", "ticket", "--role", "broker", "--listen", "127.0.0.1:0", "--out", "{new}",
    ],
    "broker openapi": ["broker", "openapi"],
}  # fmt: skip

WALKED = {
    "status": ["status"],
    "approvals": ["approvals", "status"],
    "log": ["log"],
    "verify": ["verify", "run/manifest.json", "--trust", "up/trust.yaml"],
    "report": ["report", "run/manifest.json", "--trust", "up/trust.yaml", "--out", "{new}.html"],
    "open a model": ["open", "run", "--trust", "up/trust.yaml", "--out", "{new}"],
    "open a dataset": ["open", "sealed/clinic-a.sealed", "--out", "{new}"],
    "inspect": ["inspect", "sealed/clinic-a.sealed"],
    "checkpoints": ["checkpoints", "run"],
    "recipe check": ["recipe", "check", "recipe.yaml"],
    "recipe show": ["recipe", "show", "locked/recipe.lock.json"],
    "lock": ["lock", "recipe.yaml", "--out", "{new}"],
    "validate": ["validate", "checked.yaml", "--records", "clinic-a.letters=clinic-a/letters.csv"],
    "seal": [
        "seal", "clinic-a/letters.csv", "--name", "letters", "--no-register",
        "--out", "{new}.sealed",
    ],
    "register": ["register", "sealed/clinic-a.sealed"],
    "approve": ["approve", "--data", "sealed/clinic-a.sealed", "--yes"],
    "trust new": [
        "trust", "new", "--consortium", "consortium.json", "--policy", "up/policy.yaml",
        "--broker", "up/broker.yaml",
        "--out", "{new}.yaml",
    ],
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
        typed = [word.format(new=f"new-{time.monotonic_ns()}") for word in words]
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "sealtrain", *typed],
            cwd=folder,
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(typed)}: exit {done.returncode}\n{done.stderr}")
        if turn:
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def all_of(commands: dict[str, list[str]], rounds: int, folder: Path) -> dict[str, float]:
    """Seconds of each command, as it is typed in a folder."""
    found = {}
    for name, words in commands.items():
        print(f"  {name}", file=sys.stderr)
        found[name] = seconds(words, rounds, folder)
    return found


def walked(rounds: int, folder: Path) -> dict[str, float]:
    """Seconds of the commands that ask the broker of the first hour, or read what it left."""
    (page,) = [page for page in PAGES if page.stem == "first_hour"]
    steps = steps_of(page.read_text("utf-8"))
    walk = play(steps, folder, port=_free_port())
    try:
        for step, played in zip(steps, walk, strict=False):
            print(f"  $ {' '.join(step.words[:2])}: {played.seconds:.2f} s", file=sys.stderr)
            if played.status != step.exits:
                raise SystemExit(played.said)
        recipe = (folder / "recipe.yaml").read_text("utf-8")
        (folder / "checked.yaml").write_text(f"{recipe}validation:\n  min_records: 1\n", "utf-8")
        return all_of(WALKED, rounds, folder)  # its servers go on until the walk is closed
    finally:
        walk.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=["walk", "typed", "help"], help="this part alone")
    given = parser.parse_args()
    shown = {" ".join((*words, "--help")): [*words, "--help"] for words in [(), *helps()]}
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        (walk := Path(folder, "walk")).mkdir()
        if given.part in (None, "walk"):
            found |= walked(given.rounds, walk)
        if given.part in (None, "typed"):
            found |= all_of(TYPED, given.rounds, Path(folder))
        if given.part in (None, "help"):
            found |= all_of(shown, given.rounds, Path(folder))
    slowest = sorted(found.items(), key=lambda pair: -pair[1])
    if given.json:
        print(json.dumps({"machine": machine("typer", "pydantic"), "seconds": found}, indent=2))
        return
    for name, took in slowest:
        print(f"{took:6.2f} s  {name}")


if __name__ == "__main__":
    main()
