"""Play the walks of ``docs/guides/first_hour*.md`` for real, and write what is said into them.

Usage: ``python examples/first_hour/record.py [PAGE…] [--out FOLDER]``

The commands stand in the pages, in blocks of ``console``: a person edits them there, and this
script writes the lines below each. A block after ``<!-- exit 3 -->`` ends so, every other one with
0. What differs from play to play (digests, times, versions) stays as it was when the page was
recorded; ``likeness`` hides it, so a test can play the page again and compare.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted((REPOSITORY / "docs" / "guides").glob("first_hour*.md"))

_BLOCK: Final = re.compile(
    r"(?:^<!-- exit (?P<exit>\d) -->\n)?^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_READY: Final = "Ctrl-C ends it"
_PROMPT: Final = "Type APPROVE to go on: "
_FLEETING: Final = re.compile(r"^(still |guest of |its runs verify )|^step (?!(\d+)/\2$)")
"""Lines that a slow machine says more often, or that come when a server is so far."""
_VARIES: Final = (
    (re.compile(r"\b[0-9a-f]{16,}"), "DIGEST"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    # No \b: base64 may begin with + or /, which are no letters of a word.
    (re.compile(r"(?<![0-9A-Za-z+/])[0-9A-Za-z+/]{43,}="), "DIGEST"),
    (re.compile(r"\b\d+ bytes|\b\d+,\d{3}\b"), "N bytes"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"sealtrain \d\S*, \d+ packages, Python [\d.]+"), "CODE"),
    (re.compile(r"(?<=^loss         )[\d.]+"), "LOSS"),
    (re.compile(r"^\d+ settings|(?<=^  )\d+ settings"), "N settings"),
)
_WITHIN_S: Final = 300


@dataclass(frozen=True, slots=True)
class Step:
    """A command of the page.

    Attributes:
        words: As they are typed, ``sealtrain`` or ``python`` first.
        typed: The lines of the page that hold it, with ``$``.
        said: The page's lines below it.
        exits: With this status.
    """

    words: Sequence[str]
    typed: str
    said: str
    exits: int


@dataclass(frozen=True, slots=True)
class Played:
    """What a command said when it was played, its exit status and its seconds."""

    said: str
    status: int
    seconds: float


def steps_of(page: str) -> list[Step]:
    """The commands of a page in their order; each has a block of its own."""
    return [_step(block) for block in _BLOCK.finditer(page)]


def recorded(page: str, played: Sequence[Played]) -> str:
    """The page with what its commands said now."""
    rest = iter(played)

    def fresh(block: re.Match[str]) -> str:
        head, _, _ = block[0].partition("```console\n")
        return f"{head}```console\n{_step(block).typed}{next(rest).said}```"

    return _BLOCK.sub(fresh, page)


def likeness(said: str) -> list[str]:
    """The lines that every play says alike, without what differs from play to play."""
    lines = []
    for line in said.splitlines():
        if _FLEETING.search(line):
            continue
        for pattern, word in _VARIES:
            line = pattern.sub(word, line)
        lines.append(line)
    return lines


@dataclass(slots=True)
class Terminal:
    """Where commands are typed: a folder, and the programs that go on in others."""

    folder: Path
    port: int | None
    beside: ExitStack = field(default_factory=ExitStack)

    def environment(self) -> dict[str, str]:
        """The caller's, without project files and settings of its own."""
        kept = {name: value for name, value in os.environ.items() if "SEALTRAIN" not in name}
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return kept | {"PATH": programs, "COLUMNS": "100", "HF_HUB_OFFLINE": "1"}

    def type(self, step: Step) -> Played:
        """Type a command and read until it ends, or is ready where it goes on beside others."""
        began = time.monotonic()
        words = list(step.words)
        if words[0] == "python":
            words[0] = sys.executable
            words[1] = str(REPOSITORY / words[1])
        if words[:2] == ["sealtrain", "up"]:
            said, status = self._begin(words)
        else:
            said, status = self._run(words)
        return Played(_tidy(said, self.folder), status, time.monotonic() - began)

    def _run(self, words: Sequence[str]) -> tuple[str, int]:
        done = subprocess.run(  # noqa: S603 - the page's own commands
            words,
            cwd=self.folder,
            env=self.environment(),
            input="APPROVE\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_WITHIN_S,
        )
        return done.stdout.replace(_PROMPT, f"{_PROMPT}APPROVE\n"), done.returncode

    def _begin(self, words: Sequence[str]) -> tuple[str, int]:
        port = [] if self.port is None else ["--port", str(self.port)]
        program = subprocess.Popen(  # noqa: S603 - the same
            [*words, *port],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.beside.callback(_end, program)
        assert program.stdout is not None
        said = ""
        for line in program.stdout:
            said += line
            if line.strip() == _READY:
                return said, 0
        return said, program.wait()


def play(steps: Sequence[Step], folder: Path, *, port: int | None = None) -> Iterator[Played]:
    """Type the commands one after another, each of them in a process of its own.

    Args:
        steps: Of a page.
        folder: Empty; they are typed in it.
        port: Of the broker, in place of the one that ``sealtrain up`` takes.

    Yields:
        What each said; the programs that go on end when the play does.
    """
    terminal = Terminal(folder, port)
    with terminal.beside:
        for step in steps:
            yield terminal.type(step)


def _step(block: re.Match[str]) -> Step:
    lines = block["body"].splitlines(keepends=True)
    count = 1
    while lines[count - 1].endswith("\\\n"):
        count += 1
    typed = "".join(lines[:count])
    words = shlex.split(typed.removeprefix("$ ").replace("\\\n", " "))
    return Step(words, typed, "".join(lines[count:]), int(block["exit"] or 0))


def _tidy(said: str, folder: Path) -> str:
    """Without what libraries and bars say to a terminal, and where this play took place."""
    lines = [line for line in said.splitlines() if "\r" not in line]
    return "".join(
        line.replace(str(folder), "…/first-hour").rstrip() + "\n"
        for line in lines
        if not line.startswith("still ")
    )


def _end(program: subprocess.Popen[str]) -> None:
    program.send_signal(signal.SIGINT)
    try:
        program.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        program.kill()
        program.communicate()


def main() -> None:
    """Play the pages and write them anew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("pages", type=Path, nargs="*", default=PAGES, help="Pages [all].")
    parser.add_argument("--out", type=Path, help="Where to play; each page in a folder of its own.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="first-hour-") as temporary:
        for page in asked.pages:
            _record(page, Path(asked.out or temporary).resolve() / page.stem)


def _record(page: Path, folder: Path) -> None:
    text = page.read_text("utf-8")
    steps = steps_of(text)
    played = []
    folder.mkdir(parents=True)
    for step, timing in zip(steps, play(steps, folder), strict=True):
        print(f"[{timing.seconds:5.1f} s] {shlex.join(step.words)}", flush=True)
        if timing.status != step.exits:
            raise SystemExit(f"exit code {timing.status}, expected {step.exits}\n{timing.said}")
        played.append(timing)
    page.write_text(recorded(text, played), "utf-8")
    print(f"{len(steps)} commands, {sum(timing.seconds for timing in played):.0f} s: {page.name}")


if __name__ == "__main__":
    main()
