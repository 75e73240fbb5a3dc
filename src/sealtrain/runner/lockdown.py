"""What a process gives up for good before it trains. Holds for native code too, and for children.

Core dumps and their readers: a crash leaves no memory behind, and no process of the same user reads
this one's. Where the kernel has Landlock (Linux 5.13, TCP from 6.7): files are made, written and
removed in the run's folders only, no program is executed, and TCP goes to the broker's port only.
UDP is out of Landlock's reach; so are threads that are older than the rules, before Linux 7.0.
``runner.seccomp`` binds all threads, by the kind of a call and not by its address.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sealtrain.runner.places import devices

__all__ = ["Held", "leave_no_memory", "restrict"]

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2

_EXECUTE, _WRITE_FILE = 1 << 0, 1 << 1
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR = 1 << 4, 1 << 5, 1 << 7
_MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_SYM = 1 << 8, 1 << 9, 1 << 10, 1 << 12
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_ABSTRACT_UNIX, _SIGNAL = 1 << 0, 1 << 1
_ALL_THREADS = 1 << 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """How far the kernel holds what Python's audit hook holds.

    Attributes:
        landlock: Version in force, 0 for none.
        seccomp: A filter of system calls is in force.
        memory: ``private``: shared memory is this run's own; ``folder``: it has a folder in it.
    """

    landlock: int
    seccomp: bool
    memory: str

    def to_dict(self) -> dict[str, object]:
        """Fields of the event ``border.closed`` of the run log."""
        return {"landlock": self.landlock, "seccomp": self.seccomp, "memory": self.memory}


def leave_no_memory() -> None:
    """No core dump, no fault trace, no debugger of the same user. Lasts until the process ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()
    # Also for core dumps that the kernel hands to a program, which the limit does not stop.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def restrict(
    writable: Iterable[Path],
    *,
    connect: Iterable[int],
    passing: Path | None = None,
    programs: bool = False,
) -> int:
    """Put this thread, and whatever it starts from now on, under Landlock.

    From Linux 7.0 on (version 8) also every other thread of this process.

    Args:
        writable: Existing folders in which files may be made, written and removed.
        connect: TCP ports that may be connected to.
        passing: A folder among ``writable`` that is itself removed at the end.
        programs: Whether programs may be executed: for the process that compiles.

    Returns:
        Version of Landlock that is in force, 0 where the kernel has none.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    if version < 1:
        return 0
    filling = _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM | _MAKE_CHAR | _MAKE_BLOCK | _MAKE_DIR
    filling |= _REMOVE_FILE | _REMOVE_DIR | (_REFER if version >= 2 else 0)
    changing = _WRITE_FILE | (_TRUNCATE if version >= 3 else 0)
    wanted = struct.pack(
        "=QQQ",
        filling | changing | (0 if programs else _EXECUTE),
        _BIND_TCP | _CONNECT_TCP if version >= 4 else 0,
        _ABSTRACT_UNIX | _SIGNAL if version >= 6 else 0,
    )
    known = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _checked(libc.syscall(_CREATE_RULESET, wanted[:known], known, 0))
    try:
        for folder in writable:
            _allow_below(libc, rules, folder, filling | changing)
        if passing is not None:
            _allow_below(libc, rules, passing.parent, _REMOVE_DIR)
        _allow_below(libc, rules, Path("/proc/self"), changing)  # names of threads
        for device in devices():
            _allow_below(libc, rules, device, changing)
        if version >= 4:
            for port in connect:  # and none to listen on
                rule = struct.pack("=QQ", _CONNECT_TCP, port)
                _checked(libc.syscall(_ADD_RULE, rules, _NET_PORT, rule, 0))
        _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        flags = _ALL_THREADS if version >= 8 else 0
        _checked(libc.syscall(_RESTRICT_SELF, rules, flags))
    finally:
        os.close(rules)
    return int(version)


def _allow_below(libc: ctypes.CDLL, rules: int, folder: Path, rights: int) -> None:
    place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, place)
        _checked(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0))
    finally:
        os.close(place)


def _checked(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), "Landlock refused a rule")
    return answer
