"""Commands of sealtrain in processes that are forked from a warm one.

Importing the training libraries costs seconds of a processor, and a test of a whole run starts them
again and again. Here one process imports them once for all of pytest's workers (``warm_places``),
as a run imports them (by ``cli.alone`` and ``sandbox.imports``), and forks for each command. A
child has its own arguments, environment, folder and streams, ends as any process does, and what it
gives up it gives up for itself. A command that starts commands is given a stand-in for the
interpreter (``python_for``), so that these are forked too.

Tests about how a process starts use ``subprocess``; with SEALTRAIN_COLD in the environment all do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from filelock import FileLock
from keeping import note_command
from warm_places import PIPE, find_places

from sealtrain.cli.programs import Process, Start
from sealtrain.cli.run_process import BEGIN
from sealtrain.recipe.installation import packages_of
from sealtrain.recipe.schema import parse_recipe

WARM = "SEALTRAIN_COLD" not in os.environ
"""Whether tests use this."""
CLOSED = ("guest", "resume", "split", "train")
"""Commands that begin anew in an interpreter of their own, with the training libraries."""
STARTING = ("deploy run", "ready", "rehearse", "run serve", "up")
"""Commands that start commands."""
TRAINING = (
    "sealtrain.training.run",
    *(
        f"sealtrain.training.phases.{phase}"
        for phase in ("classify", "cpt", "dpo", "embed", "evaluate", "reward", "rlhf", "sft")
    ),
    "sealtrain.guest.run",
)
"""What a run imports."""
_START_SECONDS = 280
_POLL_SECONDS = 0.005
_SETTINGS = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""No library has a thread before the server forks."""

_SERVER = Path(__file__).with_name("warm_server.txt").read_text("utf-8")
_PYTHON = Path(__file__).with_name("warm_python.txt").read_text("utf-8")
_LIGHT = f"""\
import sys
{_SERVER}
begin(sys.argv[1:])
"""
_HEAVY = f"""\
{BEGIN.partition("sys.argv[0]")[0]}
{_SERVER}
begin(sys.argv[1:])
"""
_FILE = """\
import os, runpy, sys
sys.argv.pop(0)
sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_ALONE = """\
import sys
from sealtrain.cli.run_process import alone
program = sys.argv.pop(1)
alone(program)
"""


class WarmProcess:
    """A forked command, as ``subprocess.Popen`` shows one.

    Attributes:
        pid: Its process id.
        returncode: As ``Popen.returncode``.
        stdout: What it prints, with ``stdout=subprocess.PIPE``.
    """

    def __init__(self, connection: socket.socket, stdout: IO[Any] | None) -> None:
        self._connection = connection
        self._told = connection.makefile("rb", buffering=0)  # the pid's line, and not its end's too
        self.stdout = stdout
        self.pid: int = json.loads(self._told.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, if it ended."""
        with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it ended; negative for a signal."""
        if self.returncode is None:
            until = None if timeout is None else time.monotonic() + timeout
            while not self._ended():
                if until is not None and time.monotonic() >= until:
                    raise subprocess.TimeoutExpired("sealtrain", timeout or 0)
                time.sleep(_POLL_SECONDS)
            with self._connection, self._told:
                self.returncode = json.loads(self._told.readline())
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, None]:
        """What it printed, and nothing for its talk, when it ended."""
        said = None
        if self.stdout is not None and not self.stdout.closed:
            with self.stdout:
                said = self.stdout.read()
        self.wait(timeout)
        return said, None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended this moment
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _ended(self) -> bool:
        self._connection.setblocking(False)
        try:
            return len(self._connection.recv(1, socket.MSG_PEEK)) > 0
        except BlockingIOError:
            return False
        finally:
            self._connection.setblocking(True)


class Warm:
    """A process that has imported what commands need."""

    def __init__(self, name: str, program: str, *, alone: bool, given: Mapping[str, Any]) -> None:
        folder = find_places() / name
        folder.mkdir(exist_ok=True)
        address = folder / "commands.sock"
        self.address = str(address)
        with FileLock(folder / "starting.lock"):
            if address.exists():  # another worker started it
                return
            (folder / "home").mkdir(exist_ok=True)
            home = str(folder / "home")
            words = [sys.executable, "-c", *([_ALONE] if alone else []), program]
            with (find_places() / PIPE).open("rb", buffering=0) as held:
                self._process = subprocess.Popen(
                    [*words, self.address, json.dumps(given)],
                    stdin=held,
                    stdout=subprocess.DEVNULL,
                    env=os.environ | _SETTINGS | {"HOME": home, "HF_HOME": home},
                )
            until = time.monotonic() + _START_SECONDS
            while not address.exists():
                assert self._process.poll() is None, "the warm process ended"
                assert time.monotonic() < until, "the warm process does not start"
                time.sleep(_POLL_SECONDS)

    def start(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] = subprocess.DEVNULL,
        python: Path | None = None,
    ) -> WarmProcess:
        """Start a command; ``stdout`` and ``stderr`` as ``Popen`` takes them.

        Args:
            words: The command's.
            env: Its environment.
            cwd: Its folder.
            stdout: Where it prints.
            stderr: Where it says what it does.
            python: What it starts where it starts Python; the interpreter by default.
        """
        with contextlib.ExitStack() as stack:
            nothing = stack.enter_context(Path(os.devnull).open("r+b", buffering=0))
            read = None
            streams = [nothing.fileno()]
            for stream in (stdout, stderr):
                if stream == subprocess.PIPE:
                    out, into = os.pipe()
                    read = os.fdopen(out, "r", encoding="utf-8")
                    stack.callback(os.close, into)
                    streams.append(into)
                elif isinstance(stream, int):
                    streams.append(nothing.fileno() if stream < 0 else stream)
                else:
                    streams.append(stream.fileno())
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(self.address)
            given = {"words": list(words), "env": dict(env), "cwd": str(cwd)}
            asked = json.dumps(given | {"python": python and str(python)}).encode()
            socket.send_fds(connection, [len(asked).to_bytes(4, "big")], streams)
            connection.sendall(asked)
        return WarmProcess(connection, read)

    def run(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        timeout: float,
        python: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as ``subprocess.run`` with ``capture_output`` does."""
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as talked:
            process = self.start(words, env=env, cwd=cwd, stdout=said, stderr=talked, python=python)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired as error:
                process.kill()
                note_command(words, type(error).__name__, *map(_read_again, (said, talked)))
                raise
            texts = [_read_again(file).decode() for file in (said, talked)]
        note_command(words, code, *texts)
        return subprocess.CompletedProcess(list(words), code, *texts)


def _read_again(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


@cache
def light() -> Warm:
    """For every command: it has no training library."""
    return Warm("light", _LIGHT, alone=False, given={"recipe": None, "modules": []})


@cache
def heavy(recipe: str) -> Warm:
    """For ``CLOSED`` commands of recipes that need the packages that this one needs.

    Args:
        recipe: JSON of a recipe.
    """
    return Warm(_heavy_name(recipe), _HEAVY, alone=True, given={"recipe": json.loads(recipe)})


@cache
def trainer() -> Warm:
    """For programs of tests that train: it has the training libraries, and no border around it."""
    return Warm("trainer", _LIGHT, alone=False, given={"recipe": None, "modules": TRAINING})


@cache
def python_for(recipe: str) -> Path:
    """A stand-in for the interpreter, which has commands of sealtrain forked from ``light``.

    They begin anew in a fork of ``heavy``, once a test has asked for it; until then in an
    interpreter of their own. A program ``sealtrain`` lies beside the stand-in.

    Args:
        recipe: JSON of a recipe for ``heavy``.
    """
    name = _heavy_name(recipe)
    made = find_places() / f"bin-{name}" / "python"
    made.parent.mkdir(exist_ok=True)
    text = _PYTHON.format(
        interpreter=sys.executable,
        light=light().address,
        heavy=str(find_places() / name / "commands.sock"),
        file=_FILE,
    )
    command = made.with_name("sealtrain")
    with FileLock(made.with_name("writing.lock")):
        for path, content in (
            (made, text),
            (command, f'#!/bin/sh\nexec {made} -m sealtrain "$@"\n'),
        ):
            if not path.exists():
                path.write_text(content)
                path.chmod(0o755)
    return made


@cache
def _heavy_name(recipe: str) -> str:
    packages = repr(packages_of(parse_recipe(json.loads(recipe))))
    return f"heavy-{hashlib.sha256(packages.encode()).hexdigest()[:8]}"


def process_of(process: int) -> int:
    """The command's own process, where ``python_for``'s stand-in is its outside."""
    for path in find_places().glob(f"*/{process}.pid"):
        with contextlib.suppress(FileNotFoundError):  # it ended this moment
            return process_of(int(path.read_text()))
    return process


def run_program(
    program: Path, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a Python file to its end, in a process that is forked from ``trainer``.

    Args:
        program: The file.
        words: Its arguments.
        env: Its environment. What an interpreter reads of it as it starts has no effect, except
            ``PYTHONPATH`` and ``PYTHONDONTWRITEBYTECODE``.
        cwd: Its folder.
        timeout: How long it may take, in seconds.
    """
    return trainer().run(["-c", _FILE, str(program), *words], env=env, cwd=cwd, timeout=timeout)


def starting(recipe: Mapping[str, Any], folder: Path | None = None) -> Start:
    """How to start ``sealtrain`` here, warm where tests are.

    Args:
        recipe: One that needs the packages of the commands'.
        folder: The commands' folder; this process's by default.
    """

    def start(words: Sequence[str], stdout: IO[bytes], stderr: IO[bytes]) -> Process:
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        if WARM:
            made = heavy(json.dumps(recipe)) if words[0] in CLOSED else light()
            where = folder or Path.cwd()
            return made.start(words, env=env, cwd=where, stdout=stdout, stderr=stderr)
        command = [sys.executable, "-m", "sealtrain", *words]
        return subprocess.Popen(command, env=env, cwd=folder, stdout=stdout, stderr=stderr)

    return start
