"""System calls that the kernel refuses a run, whatever code makes them, in every thread and child.

A seccomp filter needs no privilege and is in nearly every kernel of the last ten years. It sees the
number and the plain arguments of a call, never the memory behind a pointer: it judges the kind of a
socket, and not an address or a file. ``sandbox.landlock`` judges those. The filter refuses:

1. programs: no thread executes one;
2. sockets other than TCP, UDP and streams of unix sockets: a virtual machine's socket leads to its
   host, and SCTP and MPTCP pass Landlock's rules of TCP. It also refuses listening, and connections
   that a first packet opens unseen;
3. state that outlives the process outside files: queues and memory of System V and POSIX, keyrings,
   the kernel's log;
4. ways out: other namespaces and mounts, other processes' memory, io_uring (whose operations no
   filter sees), kernel modules, the clock, keystrokes pushed into the terminal.

A refused call fails with an error; it does not end the process.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct
import sys
from collections.abc import Iterable
from typing import Final

__all__ = ["NUMBERS", "refuse_calls"]

_PR_SET_NO_NEW_PRIVS: Final = 38
_SET_MODE_FILTER: Final = 1
# All threads at once; without the slow barriers against speculation that older kernels add.
_TSYNC, _SPEC_ALLOW = 1 << 0, 1 << 2

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32: Final = 0x40000000

_NEW_NAMESPACES: Final = 0x7E020080  # CLONE_NEW*: time, cgroup, uts, ipc, user, pid, net, mount
_PUSH_KEYSTROKE, _CONSOLE = 0x5412, 0x541C
_FIRST_PACKET_CONNECTS: Final = 0x20000000
_KIND: Final = 0xF

_PROGRAMS: Final = ("execve", "execveat")
_NETWORK: Final = ("socket", "connect", "bind", "accept", "accept4")
# Code tries these and goes on without where the kernel does not know them. The arguments of clone3
# are behind a pointer: without it, threads are made by clone.
_UNKNOWN: Final = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
NUMBERS: Final[dict[str, tuple[int | None, int | None]]] = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "acct": (163, 89),
    "add_key": (248, 217),
    "bind": (49, 200),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "execve": (59, 221),
    "execveat": (322, 281),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "listen": (50, 201),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "socket": (41, 198),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
"""Number of each call that the filter knows: on x86-64, on ARM64."""
_LOOKED_INTO: Final = ("clone", "ioctl", "socket", "sendto", "sendmsg", "sendmmsg")
_MACHINES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_Code = list[tuple[int, int, int, int]]


class _Filter(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def refuse_calls(*, datagrams: bool = False, network: bool = True, programs: bool = False) -> bool:
    """Put the filter before every thread of this process and all it starts, until they end.

    Args:
        datagrams: Allow UDP, which looking up names needs.
        network: Allow sockets at all.
        programs: Allow programs: only for the process that compiles.

    Returns:
        Whether the kernel enforces it: not without seccomp, and not on a processor other than
        x86-64 and ARM64.

    Raises:
        OSError: The kernel has seccomp and refuses this filter.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    code = b"".join(
        struct.pack("=HBBI", *one) for one in _code(machine, datagrams, network, programs)
    )
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


def _code(machine: tuple[int, int], datagrams: bool, network: bool, programs: bool) -> _Code:
    """The filter as instructions of classic BPF."""
    column, name = machine
    allowed = {*_LOOKED_INTO, *(_PROGRAMS if programs else ()), *(_NETWORK if network else ())}
    if not network:
        allowed -= {"socket"}
    code: _Code = [
        (_LOAD, 0, 0, _MACHINE_AT),
        *_unless(name, refused=errno.EPERM),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        _refuse(errno.EPERM),
    ]
    for call, numbers in NUMBERS.items():
        number = numbers[column]
        if number is None or call in allowed:
            continue
        error = errno.ENOSYS if call in _UNKNOWN else errno.EPERM
        code += [(_EQUAL, 0, 1, number), _refuse(error)]
    for call, inside in _inside(datagrams, network):
        number = NUMBERS[call][column]
        if number is not None:
            code += [(_EQUAL, 0, len(inside), number), *inside]
    return [*code, _permit()]


def _inside(datagrams: bool, network: bool) -> Iterable[tuple[str, _Code]]:
    """Calls whose arguments decide, and the instructions that do. Each ends in an answer."""
    yield "clone", [_argument(0), *_if_bits(_NEW_NAMESPACES), _permit()]
    yield "ioctl", [_argument(1), *_if(_PUSH_KEYSTROKE), *_if(_CONSOLE), _permit()]
    for call, flags in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        yield call, [_argument(flags), *_if_bits(_FIRST_PACKET_CONNECTS), _permit()]
    if network:
        yield "socket", _sockets(datagrams)


def _sockets(datagrams: bool) -> _Code:
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
            _refuse(errno.EPERM),
        ]
        internet += [(_EQUAL, 0, len(which), kind), *which]
    internet.append(_refuse(errno.EPERM))
    unix: _Code = [
        _argument(1),
        (_MASK, 0, 0, _KIND),
        *_unless(socket.SOCK_STREAM, refused=errno.EPERM),
        _permit(),
    ]
    return [
        _argument(0),
        (_EQUAL, 0, len(unix), socket.AF_UNIX),
        *unix,
        (_EQUAL, 2, 0, socket.AF_INET),
        (_EQUAL, 1, 0, socket.AF_INET6),
        _refuse(errno.EAFNOSUPPORT),
        *internet,
    ]


def _argument(place: int) -> tuple[int, int, int, int]:
    """Load the lower half of an argument: flags, families and kinds fit in it."""
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * place)


def _if(value: int) -> _Code:
    return [(_EQUAL, 0, 1, value), _refuse(errno.EPERM)]


def _if_bits(bits: int) -> _Code:
    return [(_ANY_BIT, 0, 1, bits), _refuse(errno.EPERM)]


def _unless(value: int, *, refused: int) -> _Code:
    return [(_EQUAL, 1, 0, value), _refuse(refused)]


def _refuse(error: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERRNO | error)


def _permit() -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ALLOW)
