"""What the stories share: a folder, ``sealtrain`` commands as people type them, and servers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sealtrain.base.processes import end_with_starter
from sealtrain.cli.programs import SideProgram, program, start_tied

_SOON_S = 120
_AT_LAST_S = 900


@dataclass
class Stage:
    """Where a story plays. Use as a context: it ends every program that still runs."""

    out: Path
    began: float = field(default_factory=time.monotonic)
    stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stack.close()

    def title(self, text: str) -> None:
        """Announce the next scene."""
        print(f"\n[{time.monotonic() - self.began:5.1f} s] {text}", flush=True)

    def run(self, *arguments: str | Path, expect: int = 0) -> dict[str, Any]:
        """Run one ``sealtrain`` command, show it, and return its JSON answer."""
        words = self._shown(arguments)
        quiet = words[:2] != ["deploy", "run"] and words[0] not in (
            "train",
            "resume",
        )  # these show their own progress on stderr
        done = subprocess.run(  # noqa: S603 - our own program with our own words
            [*program(words), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if quiet else None,
            text=True,
            preexec_fn=end_with_starter(),
        )
        return _answer(done.returncode, done.stdout, done.stderr or "", expect)

    def server(self, ready: str, *arguments: str | Path) -> tuple[SideProgram, str]:
        """Start a server; it, and the last word of the line that says that it is ready."""
        part = self._part(arguments, answers=False)
        return part, part.place(ready, within=_SOON_S)

    def beside(self, *arguments: str | Path) -> SideProgram:
        """Start a command that runs beside the story until ``ended``."""
        self._shown(arguments)
        return self._part(arguments, answers=True)

    def ended(self, part: SideProgram, *, expect: int) -> dict[str, Any]:
        """Wait for the end of a command, and return its JSON answer."""
        status = part.wait(within=_AT_LAST_S)
        return _answer(status, part.read_stdout(), "\n".join(part.read_stderr()), expect)

    def _part(self, arguments: tuple[str | Path, ...], *, answers: bool) -> SideProgram:
        name = f"program-{len(list(self.out.glob('program-*.log'))) + 1}"
        return self.stack.enter_context(
            SideProgram(name, self.out, arguments, answers=answers, start=start_tied)
        )

    def _shown(self, arguments: tuple[str | Path, ...]) -> list[str]:
        words = [str(argument) for argument in arguments]
        shown = " ".join(word.replace(f"{self.out}/", "") for word in words)
        print(f"  $ sealtrain {shown}", flush=True)
        return words


def emptied(out: Path, mark: str) -> Path:
    """An empty folder at ``out``; what an earlier play of the same story left there goes.

    Args:
        out: The folder.
        mark: A file that every play leaves; a folder without it is somebody else's.
    """
    try:
        if out.exists():
            if not (out / mark).exists() and any(out.iterdir()):
                raise SystemExit(f"{out} is not a folder of this story; choose another --out")
            shutil.rmtree(out)
        out.mkdir(parents=True)
    except OSError as error:
        raise SystemExit(f"no folder can be made at {out}: {error.strerror}") from error
    return out


def _answer(code: int, said: str, errors: str, expect: int) -> dict[str, Any]:
    if code != expect:
        print(said, errors, sep="\n", file=sys.stderr)
        raise SystemExit(f"exit code {code}, expected {expect}")
    answer: dict[str, Any] = json.loads(said) if said.strip() else {}
    return answer
