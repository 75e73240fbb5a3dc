"""Users and capabilities: a workload that is another user than its keeper, without a network.

Landlock says which files, ports and processes a run reaches, on kernels that have it. Users and
network namespaces are older than any kernel that a guest boots. Where the first program of a guest
starts the document's command (``guest.boot``), it names a second user in ``WORKLOAD_USER`` and
lends the command the capabilities of ``LENT``. The workload then becomes that user before any code
of the recipe runs: it cannot trace, read or signal the keeper, opens no socket and no device that
is the keeper's, and its network has no interface but a loopback of its own. The keeper keeps the
one capability that it ends the workload with.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import socket
import struct
from typing import Final

from sealtrain.errors import UsageError
from sealtrain.guest.sandbox.landlock import leave_no_memory

WORKLOAD_USER: Final = "SEALTRAIN_WORKLOAD_USER"
"""Names the user in the environment of a guest's command. Whoever sets it can but add a border."""
MAY_SIGNAL: Final = 1 << 5
_MAY_MOUNT: Final = 1 << 21
LENT: Final = MAY_SIGNAL | 1 << 6 | 1 << 7 | 1 << 12 | _MAY_MOUNT
"""CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_NET_ADMIN (the loopback), CAP_SYS_ADMIN (the spaces)."""
_VERSION: Final = 0x20080522
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,4}")
_LARGEST: Final = 65533
_NEW_NETWORK, _NEW_QUEUES = 0x40000000, 0x08000000
_PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _AMBIENT_RAISE = 8, 47, 2
_SET_FLAGS, _UP = 0x8914, 1


def workload_user() -> int | None:
    """Number of the user that this guest's workload becomes; ``None`` for the guest's own.

    Raises:
        UsageError: The environment names none but the guest's own user, or no user.
    """
    text = os.environ.get(WORKLOAD_USER)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or int(text) > _LARGEST or int(text) == os.geteuid():
        raise UsageError(
            "the workload's user is no other user of this machine",
            check=WORKLOAD_USER,
            got=text[:20],
            expected=f"a number from 1 to {_LARGEST}, which is not {os.geteuid()}",
            hint=f"unset {WORKLOAD_USER} outside of a guest's disk of our own",
        )
    return int(text)


def become_user(user: int) -> None:
    """Become another user, alone in a network; the way back is closed.

    The capability to mount stays until the process has memory of its own (``sandbox.scratch``).

    Raises:
        OSError: The kernel refused a part of it: the process must not go on.
    """
    kernel = ctypes.CDLL(None, use_errno=True)
    _require(kernel.unshare(_NEW_NETWORK | _NEW_QUEUES), "unshare")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, _SET_FLAGS, struct.pack("<16sh14x", b"lo", _UP))
    change_user(user, _MAY_MOUNT)
    leave_no_memory()  # a change of user resets it


def change_user(user: int, capabilities: int) -> None:
    """Become another user and its group alone.

    Args:
        user: Number of both.
        capabilities: Bits of what stays, also where this process executes a program.

    Raises:
        OSError: The kernel refused a part of it: the process must not go on.
    """
    kernel = ctypes.CDLL(None, use_errno=True)
    _require(kernel.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl")
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _set_capabilities(kernel, capabilities)
    _require(kernel.prctl(_PR_SET_KEEPCAPS, 0, 0, 0, 0), "prctl")
    if (*os.getresuid(), *os.getresgid(), os.getgroups()) != (*[user] * 6, []):
        raise OSError(f"this process is not user {user}")


def give_up_capabilities(kept: int = 0) -> None:
    """Keep none of the kernel's capabilities: root without them is a user as any other.

    Args:
        kept: Bits of those that stay nevertheless, where this process has them.
    """
    kernel = ctypes.CDLL(None, use_errno=True)
    had = ctypes.create_string_buffer(24)
    if kept and not kernel.capget(struct.pack("=Ii", _VERSION, 0), had):
        kept &= struct.unpack_from("=I", had, 4)[0]
    kernel.capset(struct.pack("=Ii", _VERSION, 0), struct.pack("=IIIIII", kept, kept, 0, 0, 0, 0))


def _set_capabilities(kernel: ctypes.CDLL, kept: int) -> None:
    sets = struct.pack("=IIIIII", kept, kept, kept, 0, 0, 0)
    _require(kernel.capset(struct.pack("=Ii", _VERSION, 0), sets), "capset")
    for number in range(32):
        if kept >> number & 1:
            done = kernel.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, number, 0, 0)
            _require(done, "prctl")


def _require(done: int, call: str) -> None:
    if done:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), call)
