"""The workshop: a process without network that runs compilers of kernels, forked before keys.

Triton and Inductor build code for an accelerator while they train: a C compiler, a linker, ptxas.
The process that trains executes nothing (``sandbox.seccomp``). It hands a compiler's command to
this one, which

1. starts a program only if it is on the list of tools, found before the sandbox closed. The list
   has no interpreter and no shell. But a compiler loads any code its command names, so the list
   alone confines nothing:
2. has no network of any kind, and neither have its children: the kernel refuses every socket;
3. writes in the run's folder in memory only: the kernel refuses every other file.

Without a kernel that enforces 2 and 3 there is no workshop, and compilers are refused as all
programs are.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import shutil
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sealtrain.base.processes import fork
from sealtrain.guest.sandbox.landlock import leave_no_memory, restrict
from sealtrain.guest.sandbox.seccomp import refuse_calls

TOOLS: Final = ("c++", "cc", "clang", "clang++", "g++", "gcc", "ptxas")
"""Compilers that libraries look for by these names on ``PATH``."""
_NAMED_BY: Final = ("CC", "CXX", "TRITON_PTXAS_PATH")
"""Variables that name another one, which libraries then take."""
_COMPILER: Final = re.compile(r"(.*-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|ptxas)[-.\d]*")
"""Name of the file that a variable may lead to: no interpreter, no shell."""
_SHIPPED: Final = "backends/nvidia/bin"
"""Where triton's package has tools of its own."""
_MAX_COMMAND: Final = 1 << 17
_STATUS: Final = struct.Struct("=i")
_STREAMS: Final = 3
_NEEDED_LANDLOCK: Final = 3
_FAILED: Final = 127 << 8


class Workshop:
    """The process that compiles, as the run sees it. Made by ``workshop``."""

    def __init__(self, commands: socket.socket, programs: frozenset[str]) -> None:
        self._commands = commands
        self._programs = programs

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Open files that a forked child has to keep for ``run``."""
        return (self._commands.fileno(),)

    def has(self, program: str) -> bool:
        """Whether a path is one of the tools'."""
        return program in self._programs

    def run(self, program: str, words: Sequence[str], folder: str | None, variables: Any) -> int:
        """Run a tool with this process's standard streams.

        Args:
            program: Path of the tool.
            words: Its command line, its name first.
            folder: Working directory; this process's where ``None``.
            variables: Its environment.

        Returns:
            Status as ``waitpid`` gives it; 127 as exit code where the tool did not start.
        """
        command = {
            "program": program,
            "words": list(words),
            "folder": str(Path.cwd()) if folder is None else folder,
            "variables": dict(variables),
        }
        ours, theirs = os.pipe()
        sent = socket.send_fds(
            self._commands, [json.dumps(command).encode()], [*range(_STREAMS), theirs]
        )
        os.close(theirs)
        if not sent:
            return _FAILED
        answer = os.read(ours, _STATUS.size)
        return int(_STATUS.unpack(answer)[0]) if len(answer) == _STATUS.size else _FAILED


def tools() -> frozenset[str]:
    """Paths of the compilers on this machine, as found and as links lead."""
    paths = [path for name in TOOLS if (path := shutil.which(name)) is not None]
    for variable in _NAMED_BY:
        path = shutil.which(os.environ.get(variable, ""))
        if path is not None and _COMPILER.fullmatch(Path(os.path.realpath(path)).name):
            paths.append(path)
    triton = find_spec("triton")
    for folder in (triton.submodule_search_locations or ()) if triton is not None else ():
        paths += [str(path) for path in Path(folder, _SHIPPED).glob("ptxas*")]
    return frozenset(path for tool in paths for path in (tool, os.path.realpath(tool)))


@contextmanager
def workshop(scratch: Path) -> Iterator[Workshop | None]:
    """Fork the process; it ends with the block, or with this process.

    Args:
        scratch: The only folder it writes in.

    Yields:
        ``None`` where the kernel cannot confine it.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    programs = tools()
    child = fork()
    if child == 0:
        _work(theirs, scratch, programs)
    theirs.close()
    try:
        # The process sends one byte once the kernel confines it, and nothing otherwise.
        ready = ours.recv(1) == b"1"
        yield Workshop(ours, programs) if ready else None
    finally:
        # Also when a forked process still has a copy; a signal may no longer reach it.
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        os.waitpid(child, 0)


def _work(commands: socket.socket, scratch: Path, programs: frozenset[str]) -> None:
    """The whole life of the process. Its peer closes the connection when it ends."""
    try:
        gc.disable()  # objects of the run must not close descriptors reused here
        os.setsid()  # no signal of the terminal ends it before the run
        _close_all_but(commands.fileno())
        leave_no_memory()
        held = restrict([scratch], connect=[], programs=True) >= _NEEDED_LANDLOCK
        if not refuse_calls(network=False, programs=True) or not held:
            return
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
        commands.send(b"1")
        while True:
            command, descriptors, _flags, _peer = socket.recv_fds(commands, _MAX_COMMAND, 8)
            if not command:
                return
            if os.fork() == 0:
                commands.close()
                _attend(command, descriptors, programs)
            for descriptor in descriptors:
                os.close(descriptor)
    finally:
        os._exit(0)


def _attend(command: bytes, descriptors: Sequence[int], programs: frozenset[str]) -> None:
    """Run one command and send its status."""
    try:
        *streams, answer = descriptors
        asked = json.loads(command)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        status = _FAILED
        if asked["program"] in programs:
            child = os.fork()
            if child == 0:
                _become(asked, streams)
            status = os.waitpid(child, 0)[1]
        os.write(answer, _STATUS.pack(status))
    finally:
        os._exit(0)


def _close_all_but(descriptor: int) -> None:
    """Close the run's connections and files, which the compiler must not have."""
    os.closerange(_STREAMS, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))


def _become(asked: dict[str, Any], streams: Sequence[int]) -> None:
    try:
        for standard, stream in enumerate(streams):
            os.dup2(stream, standard)
        os.closerange(_STREAMS, os.sysconf("SC_OPEN_MAX"))
        os.chdir(asked["folder"])
        os.execve(asked["program"], asked["words"], asked["variables"])  # noqa: S606
    finally:
        os._exit(127)
