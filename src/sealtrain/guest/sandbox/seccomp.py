"""System calls that the kernel lets a run make, whatever code makes them, in threads and children.

A seccomp filter needs no privilege and is in nearly every kernel of the last ten years. It sees the
number and the plain arguments of a call, never the memory behind a pointer: it judges the kind of a
socket, and not an address or a file. ``sandbox.landlock`` judges those. ``sandbox.calls`` lists
what a run may call; a call that no list has is answered as by a kernel that does not know it, so
that a library which tries a newer call goes on with an older one. Arguments decide about

1. programs: no thread executes one;
2. sockets: TCP, UDP and streams of unix sockets only: a virtual machine's socket leads to its host,
   and SCTP, MPTCP and SMC pass Landlock's rules of TCP, SMC also by an option of a TCP socket. No
   process listens or takes a name that others see, and no first packet opens a connection unseen.
   Without ``unix`` no unix socket is made: before its version 9 Landlock does not judge where one
   leads. Without ``network`` no socket is made or connected at all, for a process that has all its
   connections; a pair of streams is;
3. other processes: limits, priorities and processors are set for the calling process only, and a
   process stays in the group it is in, so that one signal ends all of a group. To which processes
   a signal goes is Landlock's;
4. what stays: modes, times and attributes of files, and names of threads, are set to no effect;
   flags of files, hints, leases and owners of signals not at all; nor states of a terminal,
   namespaces, mounts, clocks, keyrings, queues of System V and POSIX;
5. this process: it stays closed to debuggers, leaves no core, and has no other parent.

A refused call fails with an error; it does not end the process. Controls of devices (``ioctl``) are
let pass but for those of file systems, terminals, network interfaces and consoles: drivers of
accelerators have their own, and from its version 5 on Landlock lets them reach accelerators only.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from sealtrain.guest.sandbox.calls import (
    ALLOWED,
    LOOKED_INTO,
    MACHINES,
    PROGRAMS,
    REFUSED,
    SILENT,
    SOCKETS,
    Numbers,
)

_PR_SET_NO_NEW_PRIVS: Final = 38
_SET_MODE_FILTER: Final = 1
# All threads at once; without the slow barriers against speculation that older kernels add.
_TSYNC, _SPEC_ALLOW = 1 << 0, 1 << 2

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SUCCESS: Final = 0
"""As an error's number: the call answers 0 and does nothing."""
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32: Final = 0x40000000

# CLONE_NEW*: time, cgroup, uts, ipc, user, pid, net, mount; and CLONE_PARENT.
_ELSEWHERE: Final = 0x7E020080 | 0x8000
_FIRST_PACKET_CONNECTS: Final = 0x20000000
_KIND: Final = 0xF
_OTHER_PROTOCOL_ABOVE_TCP: Final = 31
"""``TCP_ULP``: "smc" makes a TCP socket one that Landlock does not know."""

_SET_NAME, _SET_DUMPABLE = 15, 4
_PRCTLS: Final = (
    1,  # PR_SET_PDEATHSIG
    2,  # PR_GET_PDEATHSIG
    3,  # PR_GET_DUMPABLE
    16,  # PR_GET_NAME
    21,  # PR_GET_SECCOMP
    23,  # PR_CAPBSET_READ
    29,  # PR_SET_TIMERSLACK
    30,  # PR_GET_TIMERSLACK
    36,  # PR_SET_CHILD_SUBREAPER
    38,  # PR_SET_NO_NEW_PRIVS
    39,  # PR_GET_NO_NEW_PRIVS
    41,  # PR_SET_THP_DISABLE
    42,  # PR_GET_THP_DISABLE
    51,  # PR_SVE_GET_VL
    56,  # PR_GET_TAGGED_ADDR_CTRL
    64,  # PR_SME_GET_VL
    0x53564D41,  # PR_SET_VMA: names of a process's own memory
)
_FCNTLS: Final = (
    *range(8),  # copies, flags and locks of descriptors
    *range(36, 39),  # locks of open files
    1030,  # F_DUPFD_CLOEXEC
    1031,  # F_SETPIPE_SZ
    1032,  # F_GETPIPE_SZ
    1033,  # F_ADD_SEALS
    1034,  # F_GET_SEALS
)
_TERMINAL: Final = (
    0x5401,  # TCGETS
    0x540F,  # TIOCGPGRP
    0x5413,  # TIOCGWINSZ
    0x541B,  # FIONREAD
    0x5421,  # FIONBIO
    0x5450,  # FIONCLEX
    0x5451,  # FIOCLEX
    0x802C542A,  # TCGETS2
    0xC4405401,  # a report of TDX
)
_FILE_SYSTEM: Final = (
    0x80086601,  # FS_IOC_GETFLAGS
    0xC0606610,  # PAGEMAP_SCAN
    0xC0686611,  # PROCMAP_QUERY
)
_INTERFACES: Final = (
    0x8910,  # SIOCGIFNAME
    0x8912,  # SIOCGIFCONF
    0x8913,  # SIOCGIFFLAGS
    0x8915,  # SIOCGIFADDR
    0x8919,  # SIOCGIFBRDADDR
    0x891B,  # SIOCGIFNETMASK
    0x8921,  # SIOCGIFMTU
    0x8927,  # SIOCGIFHWADDR
    0x8933,  # SIOCGIFINDEX
)
_CONTROLS: Final[dict[int, tuple[int, tuple[int, ...]]]] = {
    0x12: (errno.ENOTTY, ()),  # block devices
    0x4C: (errno.ENOTTY, ()),  # loop devices
    0x56: (errno.ENOTTY, ()),  # virtual consoles
    0x58: (errno.ENOTTY, ()),  # XFS, and attributes and freezing of any file system
    0x54: (errno.EPERM, _TERMINAL),
    0x66: (errno.ENOTTY, _FILE_SYSTEM),
    0x76: (errno.ENOTTY, ()),  # versions of files
    0x89: (errno.EPERM, _INTERFACES),
    0x94: (errno.ENOTTY, ()),  # Btrfs, labels and shared parts of files
}
"""Kinds of controls by the letter that their numbers have: the refusal, and what is let pass."""
_CONSOLE_KEYS: Final = 0x4B00
"""Fonts and keys of a console: numbers with nothing but the letter, which AMD's GPUs share."""
_CORE: Final = 4

_Code = list[tuple[int, int, int, int]]


class _Filter(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def refuse_calls(
    *,
    datagrams: bool = False,
    network: bool = True,
    unix: bool = True,
    programs: bool = False,
) -> bool:
    """Put the filter before every thread of this process and all it starts, until they end.

    Args:
        datagrams: Allow UDP, which looking up names needs.
        network: Allow new sockets and connections; without it those that are there serve on.
        unix: Allow new unix sockets among them.
        programs: Allow programs: only for the process that compiles.

    Returns:
        Whether the kernel enforces it: not without seccomp, and not on a processor other than
        x86-64 and ARM64.

    Raises:
        OSError: The kernel has seccomp and refuses this filter.
    """
    machine = MACHINES.get(platform.machine())
    if machine is None or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    made = instructions(
        platform.machine(), datagrams=datagrams, network=network, unix=unix, programs=programs
    )
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in made)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused no_new_privs")
    number = {"x86_64": 317, "aarch64": 277}[platform.machine()]
    given = _Filter(len(code) // 8, code)
    flags = _TSYNC | _SPEC_ALLOW
    done = libc.syscall(number, _SET_MODE_FILTER, flags, ctypes.byref(given))
    if done == 0:
        return True
    if done < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(
        ctypes.get_errno() if done < 0 else errno.EBUSY, "the kernel refused the seccomp filter"
    )


def instructions(
    machine: str,
    *,
    datagrams: bool = False,
    network: bool = True,
    unix: bool = True,
    programs: bool = False,
) -> list[tuple[int, int, int, int]]:
    """The filter in classic BPF: operation, steps if true, steps if false, value.

    Args:
        machine: ``x86_64`` or ``aarch64``.
        datagrams: As ``refuse_calls``.
        network: As ``refuse_calls``.
        unix: As ``refuse_calls``.
        programs: As ``refuse_calls``.
    """
    column, name = MACHINES[machine]
    code: _Code = [
        (_LOAD, 0, 0, _MACHINE_AT),
        *_unless(name, refused=errno.EPERM),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        _answer(errno.EPERM),
    ]
    for call, inside in _inside(datagrams, network, unix):
        number = (LOOKED_INTO | SOCKETS)[call][column]
        if number is not None:
            code += [(_EQUAL, 0, len(inside), number), *inside]
    refused, allowed = dict(REFUSED), dict(ALLOWED)
    (allowed if programs else refused).update(PROGRAMS)
    others = {call: numbers for call, numbers in SOCKETS.items() if call != "socket" or not network}
    (allowed if network else refused).update(others)
    for calls, answer in (
        (allowed, _permit()),
        (SILENT, _answer(_SUCCESS)),
        (refused, _answer(errno.EPERM)),
    ):
        for first, last in _ranges(calls, column):
            code += [(_AT_LEAST, 0, 2, first), (_AT_LEAST, 1, 0, last + 1), answer]
    return [*code, _answer(errno.ENOSYS)]


def _ranges(calls: Numbers, column: int) -> Iterator[tuple[int, int]]:
    """First and last of the numbers that follow each other."""
    found = (pair[column] for pair in calls.values())
    numbers = sorted(number for number in found if number is not None)
    for _, group in groupby(enumerate(numbers), lambda item: item[1] - item[0]):
        members = [number for _, number in group]
        yield members[0], members[-1]


def _inside(datagrams: bool, network: bool, unix: bool) -> Iterable[tuple[str, _Code]]:
    """Calls whose arguments decide, and the instructions that do. Each ends in an answer."""
    yield "clone", [_argument(0), *_if_bits(_ELSEWHERE), _permit()]
    yield "ioctl", _controls()
    yield "fcntl", [_argument(1), *_of(_FCNTLS), _answer(errno.EINVAL)]
    yield (
        "prctl",
        [
            _argument(0),
            *_if(_SET_NAME, _SUCCESS),
            *_of(_PRCTLS),
            *_unless(_SET_DUMPABLE, refused=errno.EINVAL),
            _argument(1),
            *_unless(0, refused=errno.EPERM),
            _permit(),
        ],
    )
    yield "prlimit64", [*_own(0), *_no_core(1, given=2), _permit()]
    yield "setrlimit", [*_no_core(0, given=1), _permit()]
    yield "setpriority", [*_own(0), *_own(1), _permit()]
    for call in ("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"):
        yield call, [*_own(0), _permit()]
    yield "move_pages", [*_own(0), _permit()]
    for call, flags in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        yield call, [_argument(flags), *_if_bits(_FIRST_PACKET_CONNECTS), _permit()]
    yield (
        "setsockopt",
        [
            _argument(1),
            (_EQUAL, 0, 3, socket.IPPROTO_TCP),
            _argument(2),
            *_if(_OTHER_PROTOCOL_ABOVE_TCP, errno.EPERM),
            _permit(),
        ],
    )
    yield "socketpair", [_argument(0), *_unless(socket.AF_UNIX, refused=errno.EPERM), *_streams()]
    if network:
        yield "socket", _sockets(datagrams, unix)


def _controls() -> _Code:
    code: _Code = [_argument(1)]
    for letter, (refused, let_pass) in _CONTROLS.items():
        inside: _Code = [_argument(1), *_of(let_pass), _answer(refused)]
        code += [(_MASK, 0, 0, 0xFF00), (_EQUAL, 0, len(inside), letter << 8), *inside]
        code += [_argument(1)]
    return [*code, (_MASK, 0, 0, 0xFFFFFF00), *_if(_CONSOLE_KEYS, errno.ENOTTY), _permit()]


def _no_core(limit: int, *, given: int) -> _Code:
    """A limit for cores stays as it is, 0: setting it does nothing.

    Args:
        limit: Place of the argument that names the limit.
        given: Place of the pointer to the new one, null where it is only read.
    """
    return [
        _argument(limit),
        (_EQUAL, 0, 6, _CORE),
        _argument(given),
        (_EQUAL, 1, 0, 0),
        _answer(_SUCCESS),
        _upper_half(given),
        (_EQUAL, 1, 0, 0),
        _answer(_SUCCESS),
    ]


def _streams() -> _Code:
    """Permit the kind of a stream alone, in the second argument."""
    return [
        _argument(1),
        (_MASK, 0, 0, _KIND),
        *_unless(socket.SOCK_STREAM, refused=errno.EPERM),
        _permit(),
    ]


def _sockets(datagrams: bool, unix: bool) -> _Code:
    kinds = {socket.SOCK_STREAM: socket.IPPROTO_TCP}
    if datagrams:
        kinds[socket.SOCK_DGRAM] = socket.IPPROTO_UDP
    internet: _Code = [_argument(1), (_MASK, 0, 0, _KIND)]
    for kind, protocol in kinds.items():
        which: _Code = [
            _argument(2),
            (_EQUAL, 1, 0, 0),
            (_EQUAL, 0, 1, protocol),
            _permit(),
            _answer(errno.EPERM),
        ]
        internet += [(_EQUAL, 0, len(which), kind), *which]
    internet.append(_answer(errno.EPERM))
    named = _streams() if unix else [_answer(errno.EPERM)]
    return [
        _argument(0),
        (_EQUAL, 0, len(named), socket.AF_UNIX),
        *named,
        (_EQUAL, 2, 0, socket.AF_INET),
        (_EQUAL, 1, 0, socket.AF_INET6),
        _answer(errno.EAFNOSUPPORT),
        *internet,
    ]


def _argument(place: int) -> tuple[int, int, int, int]:
    """Load the lower half of an argument: flags, families and kinds fit in it."""
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * place)


def _upper_half(place: int) -> tuple[int, int, int, int]:
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * place + 4)


def _own(place: int) -> _Code:
    """Go on where an argument names the calling process, by 0."""
    return [_argument(place), *_unless(0, refused=errno.EPERM)]


def _of(values: tuple[int, ...]) -> _Code:
    """Permit where the loaded value is one of these."""
    return [step for value in values for step in ((_EQUAL, 0, 1, value), _permit())]


def _if(value: int, error: int) -> _Code:
    return [(_EQUAL, 0, 1, value), _answer(error)]


def _if_bits(bits: int) -> _Code:
    return [(_ANY_BIT, 0, 1, bits), _answer(errno.EPERM)]


def _unless(value: int, *, refused: int) -> _Code:
    return [(_EQUAL, 1, 0, value), _answer(refused)]


def _answer(error: int) -> tuple[int, int, int, int]:
    """End with an error; with 0 the call answers success."""
    return (_RETURN, 0, 0, _ERRNO | error)


def _permit() -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ALLOW)
