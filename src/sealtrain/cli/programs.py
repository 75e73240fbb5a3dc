"""Commands of this program as processes of their own: start, answer and end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, Self

from sealtrain.errors import Unreachable, error_by_code

__all__ = ["Part", "answered", "end", "program"]

_POLL_S: Final = 0.02
_ENDS_WITHIN_S: Final = 20


def program(words: tuple[str | Path, ...]) -> list[str]:
    """The command line of this program with these words.

    No file of the working directory can stand in for a module (``-P``).
    """
    return [sys.executable, "-P", "-m", "sealtrain", *map(str, words)]


def answered(
    name: str, status: int, printed: str, *, silent: str = "it ended and printed nothing"
) -> dict[str, Any]:
    """The answer of a command that ended; its refusal is raised here.

    Args:
        name: Of the command, for the error.
        status: It ended with.
        printed: Its stdout, with ``--json``.
        silent: Message where it printed nothing.

    Raises:
        SealtrainError: The command's own error.
    """
    answer: dict[str, Any] = json.loads(printed.strip() or "{}")
    if status == 0:
        return answer
    error = answer.get("error", {"code": "error", "message": silent})
    code, message = error.pop("code"), error.pop("message")
    raise error_by_code(code)(f"{name}: {message}", **error)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process; kill it where it takes too long."""
    process.terminate()
    try:
        process.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Part:
    """A command that goes on beside others. Ended when the block does.

    Args:
        name: Of its files in ``folder``, and in errors.
        folder: Where its log and its answer lie.
        words: After ``sealtrain``; ``--json`` is added where it answers.
        answers: It prints an answer when it ends.
    """

    def __init__(
        self, name: str, folder: Path, words: tuple[str | Path, ...], *, answers: bool = True
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._answer = folder / f"{name}.json" if answers else None
        command = program((*words, "--json") if answers else words)
        with self.log.open("wb") as said, (self._answer or Path(os.devnull)).open("wb") as printed:
            self._process = subprocess.Popen(command, stdout=printed, stderr=said)  # noqa: S603

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)

    def kill(self) -> None:
        """Kill it as ``kill -9`` does."""
        self._process.kill()
        self._process.wait()

    @property
    def gone(self) -> bool:
        """It has ended."""
        return self._process.poll() is not None

    def said(self) -> list[str]:
        """Lines of its stderr so far."""
        return self.log.read_text("utf-8", errors="replace").splitlines()

    def place(self, ready: str, *, within: float) -> str:
        """The last word of the first line that holds ``ready``.

        Args:
            ready: What it says once it listens.
            within: Seconds to wait.

        Raises:
            Unreachable: It does not print such a line in time.
            SealtrainError: The error that it ended with instead.
        """
        until = time.monotonic() + within
        while True:
            gone = self.gone
            for line in self.said():
                if ready in line:
                    return line.rsplit(" ", 1)[-1]
            if gone and self._answer:
                self.answer()
            if gone or time.monotonic() > until:
                raise Unreachable(
                    f"{self.name} did not become ready",
                    got=f"status {self._process.returncode}" if gone else None,
                    expected=f"ready within {within:g} s",
                    hint=f"see {self.log}",
                )
            time.sleep(_POLL_S)

    def ended(self, *, within: float) -> dict[str, Any]:
        """Wait for its end, and return its answer.

        Raises:
            Unreachable: It still runs after ``within`` seconds.
            SealtrainError: The command's own error.
        """
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise Unreachable(
                f"{self.name} still runs",
                expected=f"{within:g} s",
                hint=f"see {self.log}",
            ) from None
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Its answer, once it ended; its refusal is raised here."""
        printed = self._answer.read_text() if self._answer else ""
        silent = f"it ended; see {self.log}"
        return answered(self.name, self._process.returncode, printed, silent=silent)
