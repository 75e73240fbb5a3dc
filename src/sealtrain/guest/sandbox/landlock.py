"""Rules that the kernel enforces on a process before it trains, on native code and children too.

Core dumps and debuggers are off: a crash leaves no memory behind, and no process of the same user
reads this one's memory. Where the kernel has Landlock, its version says what the kernel enforces:

| version | Linux | enforced |
|---|---|---|
| 1 | 5.13 | files are made, written and removed in the run's folders only; no program is executed |
| 3 | 6.2 | nor are files cut short elsewhere |
| 4 | 6.7 | TCP goes to the named ports only, and listens on none |
| 5 | 6.10 | devices other than accelerators, named ones and that keep nothing are not controlled |
| 6 | 6.12 | no signal and no abstract unix socket reaches another process |
| 8 | 7.0 | threads that are older than the rules are bound, too |
| 9 | later | unix sockets of other processes are connected to by the named paths only |
| 10 | later | UDP goes to name servers only, and nowhere where no name is looked up |

A port is not a host: the audit hook and the deployment judge hosts. ``sandbox.seccomp`` binds all
threads on every kernel, by the kind of a call and not by its address.
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

from sealtrain.guest.sandbox.files import devices

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2

_EXECUTE, _WRITE_FILE = 1 << 0, 1 << 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR = 1 << 4, 1 << 5, 1 << 7
_MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_SYM = 1 << 8, 1 << 9, 1 << 10, 1 << 12
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_CONTROL_DEVICE = 1 << 15
_RESOLVE_UNIX = 1 << 16
_BIND_TCP, _CONNECT_TCP, _BIND_UDP, _SEND_UDP = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_ANY_PORT, _NAME_SERVER = 0, 53
_ABSTRACT_UNIX, _SIGNAL = 1 << 0, 1 << 1
_ALL_THREADS = 1 << 3
_BINDS_ALL_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBorder:
    """How far the kernel enforces the rules of Python's audit hook.

    Attributes:
        landlock: Version in force, 0 for none.
        seccomp: A filter of system calls is in force.
        unbound: Threads of this process that Landlock does not bind: they are older than its rules.
        memory: ``private``: shared memory is this run's own; ``folder``: the run has a folder in
            shared memory.
    """

    landlock: int
    seccomp: bool
    unbound: int
    memory: str

    def weaker(
        self, *, landlock: int, seccomp: bool, unbound: int, memory: str = "private"
    ) -> KernelBorder:
        """How far the kernel enforces this border and another one, whose values these are."""
        return KernelBorder(
            landlock=min(self.landlock, landlock),
            seccomp=self.seccomp and seccomp,
            unbound=self.unbound + unbound,
            memory=memory if self.memory == "private" else self.memory,
        )

    def to_dict(self) -> dict[str, object]:
        """Fields of the event ``border.closed`` of the run log."""
        return {
            "landlock": self.landlock,
            "seccomp": self.seccomp,
            "unbound": self.unbound,
            "memory": self.memory,
        }


def leave_no_memory() -> None:
    """Refuse core dumps, fault traces and debuggers of the same user until the process ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()
    # Also for core dumps that the kernel hands to a program, which the limit does not stop.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def other_threads() -> int:
    """How many threads this process has besides this one, including those of native libraries."""
    return sum(1 for _ in Path("/proc/self/task").iterdir()) - 1


def unbound(version: int, older: int) -> int:
    """How many threads are outside the rules of Landlock.

    Args:
        version: Version in force, 0 for none.
        older: Threads that this process had besides this one before the rules.
    """
    return 0 if version >= _BINDS_ALL_THREADS else older


def restrict(
    writable: Iterable[Path],
    *,
    connect: Iterable[int],
    sockets: Iterable[Path] = (),
    names: bool = False,
    passing: Path | None = None,
    programs: bool = False,
    readable: Iterable[Path] | None = None,
    signals: bool = False,
) -> int:
    """Put this thread, and every thread and process it starts from now on, under Landlock.

    Args:
        writable: Existing folders in which files may be made, written and removed; and device
            files that may be opened and controlled, beside those that any run may.
        connect: TCP ports that may be connected to.
        sockets: Unix sockets that may be connected to.
        names: Whether names may be looked up.
        passing: A folder among ``writable`` that is itself removed at the end.
        programs: Whether programs may be executed: for the process that compiles.
        readable: Files and folders that may be read, besides those that may be written; all when
            ``None``.
        signals: Whether signals reach processes outside: for the keeper, which ends the workload.

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
    controlling = _CONTROL_DEVICE if version >= 5 else 0
    resolving = _RESOLVE_UNIX if version >= 9 else 0
    reading = 0 if readable is None else _READ_FILE | _READ_DIR
    wanted = struct.pack(
        "=QQQ",
        filling | changing | controlling | resolving | reading | (0 if programs else _EXECUTE),
        (_BIND_TCP | _CONNECT_TCP if version >= 4 else 0)
        | (_BIND_UDP | _SEND_UDP if version >= 10 else 0),
        _ABSTRACT_UNIX | (0 if signals else _SIGNAL) if version >= 6 else 0,
    )
    known = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _require_success(libc.syscall(_CREATE_RULESET, wanted[:known], known, 0))
    try:
        on_device = changing | controlling | (reading & _READ_FILE)
        for place in writable:
            in_folder = filling | changing | reading
            _allow_below(libc, rules, place, in_folder if place.is_dir() else on_device)
        for path in readable or ():
            only_files = 0 if path.is_dir() else _READ_DIR
            _allow_below(libc, rules, path, reading & ~only_files)
        if passing is not None:
            _allow_below(libc, rules, passing.parent, _REMOVE_DIR)
        if reading:
            _allow_below(libc, rules, Path("/proc/self"), reading)
        for device in devices():
            _allow_below(libc, rules, device, on_device)
        for path in sockets if resolving else ():
            if path.exists():  # connecting to a missing one reports it
                _allow_below(libc, rules, path, resolving)
        if version >= 4:
            for port in connect:  # and none to listen on
                _allow_port(libc, rules, port, _CONNECT_TCP)
        if version >= 10 and names:
            _allow_port(libc, rules, _NAME_SERVER, _SEND_UDP)
            _allow_port(libc, rules, _ANY_PORT, _BIND_UDP)  # that the answer comes back to
        _require_success(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        flags = _ALL_THREADS if version >= _BINDS_ALL_THREADS else 0
        _require_success(libc.syscall(_RESTRICT_SELF, rules, flags))
    finally:
        os.close(rules)
    return int(version)


def _allow_port(libc: ctypes.CDLL, rules: int, port: int, rights: int) -> None:
    rule = struct.pack("=QQ", rights, port)
    _require_success(libc.syscall(_ADD_RULE, rules, _NET_PORT, rule, 0))


def _allow_below(libc: ctypes.CDLL, rules: int, folder: Path, rights: int) -> None:
    place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, place)
        _require_success(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0))
    finally:
        os.close(place)


def _require_success(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), "Landlock refused a rule")
    return answer
