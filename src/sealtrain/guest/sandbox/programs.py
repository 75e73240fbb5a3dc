"""A run starts no program by itself; libraries that start programs get prepared answers.

A started program does not keep the audit hook. So inside the sandbox:

1. Libraries start programs when they load or look for a driver. The guest ran those programs
   before the sandbox closed, and the same command line gets the same answer (``questions``).
2. The run's workshop (``sandbox.compilers``), which has no network, starts compilers of kernels,
   where the kernel can confine it.
3. Every other program is refused by its path. Libraries that only probe go on, as they do where a
   program is missing.

Python starts programs in one function of C, ``fork_exec``, which raises no audit event of its own:
``subprocess`` does, ``multiprocessing`` does not. While the sandbox is closed, a function in its
place forks and never executes, so that the child stays inside. ``multiprocessing`` forks, whatever
its default. The kernel refuses code that has kept the real function (``sandbox.seccomp``).
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sealtrain.base.processes import fork

if TYPE_CHECKING:
    from sealtrain.guest.sandbox.compilers import Workshop

Words = tuple[str, ...]

_QUESTIONS: Final[tuple[Words, ...]] = (("/sbin/ldconfig", "-p"),)
"""``ctypes.util.find_library``, triton and CUDA's own finder all ask this."""
_SECONDS: Final = 30.0
_STANDARD: Final = 3
_FAILED: Final = 127


class ProgramRefused(PermissionError):
    """Code tried to start a program inside a run.

    Attributes:
        program: Path of the program, without its arguments; the path may spell a record.
    """

    def __init__(self, program: str) -> None:
        """Name the program."""
        super().__init__(errno.EACCES, "no program is started inside a run")
        self.program = program


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The stand-ins for programs inside the sandbox.

    Attributes:
        answers: Output of programs from before the sandbox closed, by command line.
        workshop: Starts compilers of kernels, if there is one.
    """

    answers: Mapping[Words, bytes] = field(default_factory=lambda: MappingProxyType({}))
    workshop: Workshop | None = None

    def judge(self, program: str, words: Words) -> None:
        """Accept a command that has an answer, or that the workshop runs.

        Args:
            program: Path of the file that would be executed.
            words: The command line, its name first.

        Raises:
            ProgramRefused: It has no stand-in.
        """
        if words not in self.answers and not (self.workshop and self.workshop.has(program)):
            raise ProgramRefused(program)

    def serve(
        self, program: str, words: Words, folder: str | None, variables: dict[str, str]
    ) -> int:
        """Act as the program, in a forked child whose standard streams are set.

        Args:
            program: As for ``judge``, which accepted it.
            words: As for ``judge``.
            folder: Working directory; this process's where ``None``.
            variables: Environment.

        Returns:
            Status as ``waitpid`` gives it.
        """
        answer = self.answers.get(words)
        if answer is not None:
            with open(1, "wb", closefd=False) as out:
                out.write(answer)
            return 0
        if self.workshop is None:
            raise ProgramRefused(program)
        return self.workshop.run(program, words, folder, variables)


NONE: Final = Programs()
"""Refuses every program."""


def questions() -> Mapping[Words, bytes]:
    """Run the programs that libraries will start. Called before the sandbox closes.

    A program that is missing, fails or takes too long has no answer: inside the sandbox it is
    refused, and the library goes on as it does on a machine without the program.
    """
    answers: dict[Words, bytes] = {}
    for words in _QUESTIONS:
        try:
            done = subprocess.run(  # noqa: S603  # our own words
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"LC_ALL": "C", "LANG": "C"},
                timeout=_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        answers[words] = done.stdout
    return MappingProxyType(answers)


@contextmanager
def answer_programs(programs: Programs, refused: Callable[[], None]) -> Iterator[None]:
    """Have ``programs`` stand in for every program that Python code starts.

    Args:
        programs: The stand-ins.
        refused: Called at each refusal.
    """
    import _posixsubprocess

    def fork_exec(*given: Any) -> int:
        try:
            return _start(programs, *given[:14])
        except ProgramRefused:
            refused()
            raise

    with ExitStack() as stack:
        for module, name, value in (
            (_posixsubprocess, "fork_exec", fork_exec),
            (subprocess, "_fork_exec", fork_exec),
            (subprocess, "_USE_POSIX_SPAWN", False),
        ):
            if hasattr(module, name):
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, value)
        before = multiprocessing.get_start_method(allow_none=True)
        stack.callback(multiprocessing.set_start_method, before, force=True)
        multiprocessing.set_start_method("fork", force=True)
        yield


def is_told(program: str, writable: Sequence[Path]) -> bool:
    """Whether a refused program may be named outside: a file that the run found and did not make.

    Args:
        program: Path, maybe made up of a record.
        writable: The run's folders.
    """
    place = Path(os.path.realpath(program))
    there = Path(program).is_absolute() and place.is_file() and os.access(place, os.X_OK)
    return there and not any(place.is_relative_to(folder) for folder in writable)


def find_program(name: str, variables: Mapping[str, str] | None) -> str | None:
    """Path of the program of that name, ``None`` where there is none.

    Args:
        name: With or without a folder.
        variables: Environment whose ``PATH`` counts; this process's where ``None``.
    """
    return shutil.which(name, path=(variables or os.environ).get("PATH"))


def _start(
    programs: Programs,
    arguments: Sequence[Any],
    candidates: Sequence[bytes],
    _close_others: bool,
    _kept: Sequence[int],
    folder: Any,
    variables: Sequence[bytes] | None,
    *streams: int,
) -> int:
    """In place of ``fork_exec``: fork a child that acts as the program; returns its process id.

    ``streams`` are both ends of the pipes for input, output and errors, then both ends of the pipe
    on which a child reports a failed execution: the stand-in closes it, which reports success.
    """
    paths = [os.fsdecode(path) for path in candidates]
    program = next((path for path in paths if os.access(path, os.X_OK)), None)
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), paths[-1])
    words = tuple(os.fsdecode(word) for word in arguments)
    programs.judge(program, words)
    where = None if folder is None else os.fsdecode(folder)
    pairs = [os.fsdecode(pair).partition("=") for pair in variables or ()]
    environment = {name: value for name, _, value in pairs}
    given = streams[0], streams[3], streams[5]
    child = fork()
    if child == 0:
        _stand_in(
            given,
            programs.workshop,
            lambda: programs.serve(
                program, words, where, dict(os.environ) if variables is None else environment
            ),
        )
    return child


def _stand_in(given: Sequence[int], workshop: Workshop | None, work: Callable[[], int]) -> NoReturn:
    """The life of the child: the program's streams, its work, its end."""
    status = _FAILED << 8
    try:
        streams = [
            os.dup(standard if descriptor == -1 else descriptor)
            for standard, descriptor in enumerate(given)
        ]
        for standard, descriptor in enumerate(streams):
            os.dup2(descriptor, standard)
        last = _STANDARD
        for kept in sorted(() if workshop is None else workshop.descriptors):
            os.closerange(last, kept)
            last = kept + 1
        os.closerange(last, os.sysconf("SC_OPEN_MAX"))
        status = work()
        if os.WIFSIGNALED(status):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
    finally:
        os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else _FAILED)
