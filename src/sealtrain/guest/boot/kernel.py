"""System calls of a guest's first programs, by ctypes: Python has none of them.

Linux's headers have the numbers: ``linux/dm-ioctl.h``, ``sys/mount.h``, ``linux/reboot.h``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Final

from sealtrain.guest.boot.decisions import Network
from sealtrain.guest.kernel_calls import LIBC, check_call

READ_ONLY, NO_SUID, NO_DEVICES, NO_PROGRAMS = 1, 2, 4, 8
MOVE: Final = 8192
_POWER_OFF: Final = 0x4321FEDC
_DELETE_MODULE: Final = 176
_DM_IOCTL: Final = struct.Struct("<3IIIIiIIIQ128s129s7x")
_DM_TARGET: Final = struct.Struct("<QQiI16s")
_DM_CREATE, _DM_SUSPEND, _DM_LOAD = 3, 6, 9
_DM_READ_ONLY, _DM_SECRET = 1, 1 << 15
_DM_SPACE: Final = 4096
_DM_DEVICE_AT: Final = 40
_SET_ADDRESS, _SET_MASK, _SET_FLAGS, _ADD_ROUTE = 0x8916, 0x891C, 0x8914, 0x890B
_GET_ADDRESS: Final = 0x8915
_UP_AND_RUNNING: Final = 0x41
_ROUTE_GATEWAY, _ROUTE_HOST = 3, 5


def unload_module(name: str) -> None:
    """Take a module out of the kernel.

    Raises:
        OSError: It is in use, or not there.
    """
    check_call(LIBC.syscall(_DELETE_MODULE, name.encode(), os.O_NONBLOCK), name)


def switch_off() -> None:
    """Write what is unwritten, and switch the machine off."""
    LIBC.sync()
    LIBC.reboot(_POWER_OFF)


def map_device(name: str, sectors: int, kind: str, table: str, *, writable: bool = False) -> Path:
    """Make a device-mapper device of one target.

    Args:
        name: As the kernel knows it.
        sectors: Its size, in sectors of 512 bytes.
        kind: Of the target, such as ``verity``.
        table: Its parameters; the kernel wipes its copies of them.
        writable: It can be written to.

    Returns:
        Its file, which the kernel makes a little later.

    Raises:
        OSError: The kernel refused.
    """
    parameters = table.encode() + b"\0"
    parameters += bytes(-len(parameters) % 8)
    target = _DM_TARGET.pack(0, sectors, 0, _DM_TARGET.size + len(parameters), kind.encode())
    flags = _DM_SECRET if writable else _DM_SECRET | _DM_READ_ONLY
    with Path("/dev/mapper/control").open("r+b", buffering=0) as control:
        _mapper(control.fileno(), _DM_CREATE, name)
        _mapper(control.fileno(), _DM_LOAD, name, flags=flags, targets=target + parameters)
        answer = _mapper(control.fileno(), _DM_SUSPEND, name)  # without the flag: resume
    (number,) = struct.unpack_from("<Q", answer, _DM_DEVICE_AT)
    return Path(f"/dev/dm-{number & 0xFF | number >> 12 & 0xFFF00}")


def _mapper(
    control: int, command: int, name: str, *, flags: int = 0, targets: bytes = b""
) -> bytearray:
    head = _DM_IOCTL.pack(
        4, 0, 0, _DM_SPACE, _DM_IOCTL.size, 1 if targets else 0, 0, flags, 0, 0, 0,
        name.encode(), b"",
    )  # fmt: skip
    request = 3 << 30 | _DM_IOCTL.size << 16 | 0xFD << 8 | command
    space = bytearray((head + targets).ljust(_DM_SPACE, b"\0"))
    fcntl.ioctl(control, request, space)
    return space


def raise_network(card: str, network: Network | None) -> None:
    """Switch a network card on, with an address and a route where it has one.

    Raises:
        OSError: The kernel refused, or there is no such card.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:

        def ask(request: int, content: bytes) -> None:
            fcntl.ioctl(handle, request, struct.pack("<16s24s", card.encode(), content))

        if network is not None:
            ask(_SET_ADDRESS, _internet(network.address))
            ask(_SET_MASK, _internet(network.mask))
        ask(_SET_FLAGS, struct.pack("<h", _UP_AND_RUNNING))
        if network is not None:
            anywhere, gateway = _internet(bytes(4)), _internet(network.gateway)
            if not network.has_gateway:  # some clouds lease an address that is a network by itself
                _add_route(handle, gateway, anywhere, _internet(b"\xff" * 4), _ROUTE_HOST, card)
            _add_route(handle, anywhere, gateway, anywhere, _ROUTE_GATEWAY, card)


def _add_route(
    handle: socket.socket, to: bytes, gateway: bytes, mask: bytes, flags: int, card: str
) -> None:
    """Add a route by a card (``struct rtentry`` of 64 bits)."""
    name = ctypes.create_string_buffer(card.encode())
    route = struct.pack(
        "<Q16s16s16sH6x24xQ24x", 0, to, gateway, mask, flags, ctypes.addressof(name)
    )
    fcntl.ioctl(handle, _ADD_ROUTE, route)


def has_address(card: str) -> bool:
    """Whether a network card has an address already."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            fcntl.ioctl(handle, _GET_ADDRESS, struct.pack("<16s24x", card.encode()))
        except OSError:
            return False
    return True


def _internet(address: bytes) -> bytes:
    return struct.pack("<HH4s8x", socket.AF_INET, 0, address)
