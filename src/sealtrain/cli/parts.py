"""A command of this program that goes on beside a rehearsal: what it says, and how it ends."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self

from sealtrain.cli.rehearsal import program
from sealtrain.errors import Unreachable, error_by_code

__all__ = ["Part"]

_POLL_S: Final = 0.05
_ENDS_WITHIN_S: Final = 20


class Part:
    """One process of its own. Ended when the block does.

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
        self._answer = folder / f"{name}.json"
        command = program((*words, "--json") if answers else words)
        with self.log.open("wb") as said, self._answer.open("wb") as told:
            self.process = subprocess.Popen(command, stdout=told, stderr=said)  # noqa: S603

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def gone(self) -> bool:
        """It has ended."""
        return self.process.poll() is not None

    def said(self) -> list[str]:
        """Lines of its talk so far."""
        return self.log.read_text("utf-8", errors="replace").splitlines()

    def place(self, ready: str, *, within: float) -> str:
        """The last word of the first line that holds ``ready``.

        Args:
            ready: What it says once it listens.
            within: Seconds to wait.

        Raises:
            Unreachable: It does not say that.
            SealtrainError: What it ended with instead.
        """
        until = time.monotonic() + within
        while True:
            gone = self.gone
            for line in self.said():
                if ready in line:
                    return line.rsplit(" ", 1)[-1]
            if gone:
                self.answer()
            if gone or time.monotonic() > until:
                raise Unreachable(
                    f"{self.name} did not say that it is ready", hint=f"see {self.log}"
                )
            time.sleep(_POLL_S)

    def ended(self, *, within: float) -> dict[str, Any]:
        """What it answers at its end.

        Raises:
            Unreachable: It goes on after ``within`` seconds.
            SealtrainError: What it refused with.
        """
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise Unreachable(
                f"{self.name} does not come to an end",
                expected=f"{within:g} s",
                hint=f"see {self.log}",
            ) from None
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """What it answered; its refusal becomes ours. It has ended."""
        told: dict[str, Any] = json.loads(self._answer.read_text() or "{}")
        if self.process.returncode == 0:
            return told
        error = told.get("error", {"code": "error", "message": f"it ended; see {self.log}"})
        code, message = error.pop("code"), error.pop("message")
        raise error_by_code(code)(f"{self.name}: {message}", **error)
