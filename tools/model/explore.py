"""Check the model of releases, renewals and stops (spec/model) in every state that it can reach.

    make model                           every state, and the seeded faults; some minutes
    python tools/model/explore.py faults   the faults alone: each must be found

Spin makes a program of the model and the compiler a binary of that; both are Debian's. As root, a
missing spin is installed. The exit code is 1 where an assertion fails, or where one that must fail
does not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "spec" / "model" / "release.pml"
_PROGRAMS = {"spin": "spin", "gcc": "gcc"}
_MEMORY_MB = 8000
_DEPTH = 100_000
_SECONDS = 3600
_VIOLATED = re.compile(r"assertion violated (.+) \(at depth \d+\)")
_STATES = re.compile(r"(\d[\d.e+]*) states, stored")
_CLAIM = re.compile(r"/\* (C\d+(?:, C\d+)*)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search through the model.

    Attributes:
        name: For a person.
        words: Words that the model is read with, without ``-D``.
        shortest: Search by breadth, which finds the shortest story of a fault.
    """

    name: str
    words: tuple[str, ...]
    shortest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        violated: The assertion that failed, or ``None``.
        states: How many different states it saw.
        whole: It saw all of them.
    """

    violated: str | None
    states: int
    whole: bool


SEARCHES = (
    Search(name="three requests, no stop, whole disks", words=("NO_STOPS", "NO_DISKS")),
    Search(
        name="two requests, one checkpoint, with revocation, withdrawal and an older disk",
        words=("ASKS=2", "TOP=1"),
    ),
)
"""Every state of these is visited; no assertion may fail."""

_APPROVED = "START_APPROVED"
FAULTS = (
    Search(name="a later approval lifts a revocation", words=("FAULT_LATER",), shortest=True),
    Search(
        name="a challenge counts twice",
        words=("FAULT_CHALLENGE", _APPROVED, "NO_STOPS", "NO_DISKS"),
        shortest=True,
    ),
    Search(
        name="a resume leaves the lease before alive",
        words=("FAULT_RESUME", _APPROVED, "NO_STOPS", "NO_DISKS"),
        shortest=True,
    ),
    Search(
        name="an anchor is not compared",
        words=("FAULT_ANCHOR", _APPROVED, "NO_STOPS", "NO_DISKS"),
        shortest=True,
    ),
    Search(
        name="an older database serves as it is",
        words=("FAULT_DATABASE", _APPROVED),
        shortest=True,
    ),
)
"""The model with one rule taken away: an assertion must fail."""


def search(what: Search, folder: Path) -> Found:
    """Search the model in an empty folder.

    Raises:
        subprocess.CalledProcessError: Spin or the compiler refuses the model.
        subprocess.TimeoutExpired: It takes over an hour.
    """
    flags = [
        "-DSAFETY",
        "-DCOLLAPSE",
        f"-DMEMLIM={_MEMORY_MB}",
        *(["-DBFS"] if what.shortest else []),
    ]
    spin = [_path_of("spin"), *(f"-D{word}" for word in what.words), "-a", str(MODEL)]
    _run(spin, folder)
    _run([_path_of("gcc"), "-O2", *flags, "-o", "pan", "pan.c"], folder)
    said = _run([str(folder / "pan"), f"-m{_DEPTH}", "-w26"], folder)
    violated, states = _VIOLATED.search(said), _STATES.search(said)
    cut = "Search not completed" in said or "max search depth too small" in said
    return Found(
        violated=violated[1] if violated else None,
        states=int(float(states[1])) if states else 0,
        whole=not cut and "errors: 0" in said,
    )


def claims_of(text: str) -> list[str]:
    """The claims that assertions of a model name, in their order."""
    return [claim for found in _CLAIM.finditer(text) for claim in found[1].split(", ")]


def main(words: Sequence[str]) -> int:
    """Search all, or the faults alone; print a line for each."""
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            if os.geteuid() != 0 or shutil.which("apt-get") is None:
                print(f"this needs {program}: apt-get install {package}", file=sys.stderr)
                return 2
            subprocess.run(["apt-get", "install", "-q", "-y", package], check=True)  # noqa: S603, S607
    failed = 0
    for what in [*([] if "faults" in words else SEARCHES), *FAULTS]:
        with tempfile.TemporaryDirectory() as folder:
            found = search(what, Path(folder))
        good = found.violated is not None if what in FAULTS else found.whole
        failed += not good
        outcome = (
            f"fails: {found.violated}"
            if found.violated
            else "holds in every state"
            if found.whole
            else "not whole"
        )
        print(
            f"{'ok ' if good else 'BAD'} {what.name}: {outcome} ({found.states:,} states)",
            flush=True,
        )
    return int(failed > 0)


def _path_of(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise FileNotFoundError(program)
    return path


def _run(words: Sequence[str], folder: Path) -> str:
    done = subprocess.run(  # noqa: S603  # programs of Debian, with our own words
        words, cwd=folder, check=True, stdout=subprocess.PIPE, text=True, timeout=_SECONDS
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
