"""What a program that trains leaves behind, run in folders and an environment of its own."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warm import WARM, run_program

SUPPORT = Path(__file__).resolve().parent
PLACES = ("HOME", "TMPDIR", "HF_HOME", "XDG_CACHE_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR")


@dataclass(frozen=True, slots=True)
class Remains:
    """A folder after a program ran in it, the line it printed, and what that line says."""

    folder: Path
    line: str
    answer: dict[str, Any]

    def files(self, inside: str = ".") -> list[Path]:
        return [path for path in (self.folder / inside).rglob("*") if path.is_file()]

    def places(self) -> set[str]:
        """Which top-level folders hold files."""
        return {path.relative_to(self.folder).parts[0] for path in self.files()}

    def holding(self, word: str) -> set[str]:
        """Which top-level folders hold a file with ``word`` in it."""
        return {
            path.relative_to(self.folder).parts[0]
            for path in self.files()
            if word.encode() in path.read_bytes()
        }

    def suffixes(self, inside: str) -> set[str]:
        return {path.suffix for path in self.files(inside)}

    def opened_outside(self, ours: Sequence[str]) -> set[str]:
        """Paths opened for writing, but for folders of ours and the temporary folder."""
        allowed = tuple(str(self.folder / name) for name in ours)
        others = set(self.answer["opened"]) - set(self.opened_for_a_try())
        return {path for path in others if not path.startswith((*allowed, "/dev/null"))}

    def opened_for_a_try(self) -> list[str]:
        """Python tries once whether it may write to the temporary folder, with four fixed bytes."""
        place = self.folder / "TMPDIR"
        return [path for path in self.answer["opened"] if Path(path).parent == place]


def ended(
    victim: str,
    *words: str | Path,
    timeout: float,
    cwd: Path | None = None,
    forked: bool = False,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """The program, run to its end in this environment with further variables.

    Args:
        victim: Its name, without ending.
        words: Its arguments.
        timeout: How long it may take, in seconds.
        cwd: Its folder.
        forked: Whether it may begin with the training libraries loaded (``warm.run_program``). One
            that forks ranks may not. Where a variable is for its interpreter or for the loader of
            libraries it begins anew.
        variables: Of its environment.
    """
    program = SUPPORT / f"{victim}.py"
    path = os.pathsep.join([*sys.path, str(SUPPORT)])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    cold = {name for name in variables if name.startswith("PYTHON")} - {"PYTHONDONTWRITEBYTECODE"}
    cold |= {name for name in environment if name.startswith("LD_")}
    if forked and WARM and not cold:
        folder = cwd or Path.cwd()
        words = tuple(str(word) for word in words)
        return run_program(program, words, env=environment, cwd=folder, timeout=timeout)
    return subprocess.run(
        [sys.executable, program, *words],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def started(victim: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    """The program, with every place a library may write to inside ``folder``."""
    for place in (*PLACES, "cwd"):
        (folder / place).mkdir(exist_ok=True)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "CI"},
        **{place: str(folder / place) for place in PLACES},
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(SUPPORT / f"{victim}.py"), str(folder), *words],
        cwd=folder / "cwd",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def remains_of(victim: str, folder: Path, *words: str, timeout: float) -> Remains:
    """What is left once the program ran to its end: it says one line and nothing else."""
    with started(victim, folder, *words) as program:
        try:
            out, err = program.communicate(timeout=timeout)
        finally:
            program.kill()
    assert program.returncode == 0, err
    assert err == "", err
    (line,) = out.splitlines()
    return Remains(folder, line, json.loads(line))


OPENED: list[str] = []
CALLED: list[str] = []
LOGGED: list[str] = []


def watch(event: str, arguments: tuple[object, ...]) -> None:
    """Note every file opened for writing, also by code that removes it again, and every call."""
    if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen"):
        CALLED.append(f"{event} {arguments[:2]!r}")
    if event != "open":
        return
    path, _mode, flags = arguments
    if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) and isinstance(path, str):
        OPENED.append(path)


def listen(record: logging.LogRecord) -> bool:
    """Note what passes any handler's filter."""
    LOGGED.append(record.getMessage())
    return True
