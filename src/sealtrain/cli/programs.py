"""Programs as processes of their own: started, waited for, answering, and ended by their own id.

The one harness of rehearsals, the executor, the examples, the tests and the benchmarks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, Protocol, Self

from sealtrain.base.processes import end_with_starter
from sealtrain.errors import SealtrainError, Unreachable

_POLL_S: Final = 0.02
_ENDS_WITHIN_S: Final = 20


class Process(Protocol):
    """What a part needs of a process; ``subprocess.Popen`` has it."""

    pid: int

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; ``None`` while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises ``subprocess.TimeoutExpired``."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it ended."""


Start = Callable[[Sequence[str], IO[bytes], IO[bytes]], Process]
"""Starts a command of this program with these words; its stdout and stderr."""


def start_program(words: Sequence[str], stdout: IO[bytes], stderr: IO[bytes]) -> Process:
    """Start a command of this program as a shell does."""
    return subprocess.Popen(program(words), stdout=stdout, stderr=stderr)  # noqa: S603


def start_tied(words: Sequence[str], stdout: IO[bytes], stderr: IO[bytes]) -> Process:
    """Start a command that cannot outlive this process; Ctrl-C reaches it through this one."""
    return subprocess.Popen(  # noqa: S603  # our own program with our own words
        program(words),
        stdout=stdout,
        stderr=stderr,
        process_group=0,
        preexec_fn=end_with_starter(),
    )


def ran(
    *words: str | Path, shown: bool = False, variables: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Run a command to its end, or to this process's; its answer.

    Args:
        words: After ``sealtrain``, without ``--json``.
        shown: Its stderr goes to this process's.
        variables: Further ones of its environment.

    Raises:
        SealtrainError: The command's own error.
    """
    process = subprocess.Popen(  # noqa: S603  # our own program with our own words
        [*program(words), "--json"],
        stdout=subprocess.PIPE,
        stderr=None if shown else subprocess.PIPE,
        text=True,
        env=os.environ | dict(variables),
        preexec_fn=_interruptible(),
    )
    with process:
        try:
            printed, _ = process.communicate()
        except BaseException:
            end(process, signal.SIGINT)  # killed at once, it would leave a file written in part
            raise
    return read_answer(str(words[0]), process.returncode, printed)


def _interruptible() -> Callable[[], None]:
    """For a command that is told to end by an interrupt, also where this process heeds none."""
    tie = end_with_starter()

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background ignores it, for good
        tie()

    return prepare


def program(words: Sequence[str | Path]) -> list[str]:
    """The command line of this program with these words.

    No file of the working directory can stand in for a module (``-P``).
    """
    return [sys.executable, "-P", "-m", "sealtrain", *map(str, words)]


def read_answer(
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
    raise SealtrainError.from_dict(error | {"message": f"{name}: {error['message']}"})


def end(process: Process, number: int = signal.SIGTERM) -> int:
    """End a process by a signal; kill it where it takes too long. Returns its exit status."""
    process.send_signal(number)
    try:
        return process.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        return process.wait()


class SideProgram:
    """A command that goes on beside others. Ended when the block does.

    Args:
        name: Of its files in ``folder``, and in errors.
        folder: Where its log and its answer lie.
        words: After ``sealtrain``; ``--json`` is added where it answers.
        answers: It prints an answer when it ends.
        start: Starts the command with these words.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        words: Sequence[str | Path],
        *,
        answers: bool = True,
        start: Start = start_program,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._answer = folder / f"{name}.json" if answers else None
        asked = [*map(str, words), *(["--json"] if answers else [])]
        with self.log.open("wb") as said, (self._answer or Path(os.devnull)).open("wb") as printed:
            self._process = start(asked, printed, said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        """It has ended."""
        return self._process.poll() is not None

    def send(self, number: int) -> None:
        """Send it a signal, unless it ended."""
        self._process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal, and wait. Returns its exit status, negative for a signal."""
        return end(self._process, number)

    def kill(self) -> int:
        """Kill it as ``kill -9`` does. Returns its exit status."""
        return self.end(signal.SIGKILL)

    def read_stderr(self) -> list[str]:
        """Lines of its stderr so far, without one that it is still writing."""
        gone = self.gone
        text = self.log.read_text("utf-8", errors="replace")
        return (text if gone else text[: text.rfind("\n") + 1]).splitlines()

    def place(self, ready: str, *, within: float) -> str:
        """The last word of the line with ``ready``. Arguments and errors as ``line``."""
        return self.line(ready, within=within).rsplit(" ", 1)[-1]

    def line(self, ready: str, *, within: float) -> str:
        """The first line that holds ``ready``.

        Args:
            ready: What it says once it is so far.
            within: Seconds to wait.

        Raises:
            Unreachable: It does not print such a line in time.
            SealtrainError: The error that it ended with instead.
        """
        until = time.monotonic() + within
        while True:
            gone = self.gone
            for line in self.read_stderr():
                if ready in line:
                    return line
            if gone and self._answer:
                self.answer()
            if gone or time.monotonic() > until:
                raise Unreachable(
                    f"{self.name} did not become ready",
                    got=self._last() if gone else None,
                    expected=f"ready within {within:g} s",
                    hint=f"see {self.log}",
                )
            time.sleep(_POLL_S)

    def _last(self) -> str:
        """How it ended, with its last line."""
        said = [line for line in self.read_stderr() if line.strip()]
        status = f"status {self._process.poll()}"
        return f"{status}, {said[-1].strip()}" if said else status

    def wait(self, *, within: float) -> int:
        """Wait for its end. Returns its exit status, negative for a signal.

        Raises:
            Unreachable: It still runs after ``within`` seconds.
        """
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise Unreachable(
                f"{self.name} still runs",
                expected=f"{within:g} s",
                hint=f"see {self.log}",
            ) from None

    def wait_for_end(self, *, within: float) -> dict[str, Any]:
        """Wait for its end, and return its answer.

        Raises:
            Unreachable: It still runs after ``within`` seconds.
            SealtrainError: The command's own error.
        """
        self.wait(within=within)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Its answer, once it ended; its refusal is raised here."""
        silent = f"it ended; see {self.log}"
        return read_answer(self.name, self.wait(within=0), self.read_stdout(), silent=silent)

    def read_stdout(self) -> str:
        """Its stdout so far."""
        return self._answer.read_text("utf-8") if self._answer else ""
