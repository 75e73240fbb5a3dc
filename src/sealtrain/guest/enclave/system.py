"""The few calls of the kernel that an enclave's init makes, each as thin as it can be (x86-64)."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from pathlib import Path
from typing import Final

from sealtrain.guest import kernel_calls
from sealtrain.guest.enclave.plan import Mount

_ADD_ENTROPY: Final = 0x40085203  # RNDADDENTROPY
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_UP: Final = 1
_RESTART: Final = 0x01234567
_NO_NEW_PRIVILEGES: Final = 38
_CONNECT_SECONDS: Final = 30.0


class VsockSockets:
    """Sockets of ``AF_VSOCK``, inside of an enclave and on its parent."""

    def listen(self, port: int) -> socket.socket:
        """A socket that is bound to a vsock port."""
        listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        listener.bind((socket.VMADDR_CID_ANY, port))
        return listener

    def connect(self, cid: int, port: int) -> socket.socket:
        """A connection over vsock."""
        connection = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        connection.settimeout(_CONNECT_SECONDS)
        try:
            connection.connect((cid, port))
        except OSError:
            connection.close()
            raise
        return connection


class LinuxKernel(VsockSockets):
    """The kernel of the enclave."""

    def mount(self, what: Mount) -> None:
        """Mount a file system; its folder is made."""
        Path(what.target).mkdir(parents=True, exist_ok=True)
        kernel_calls.mount(what.kind, what.target, what.kind, what.flags, what.options)

    def load_module(self, path: Path, parameters: str) -> None:
        """Load a module; one that is there already is no error."""
        kernel_calls.load_module(path, parameters, unless=(kernel_calls.EXISTS,))

    def load_no_more_modules(self) -> None:
        """Have the kernel refuse every further module until it ends."""
        Path("/proc/sys/kernel/modules_disabled").write_text("1")

    def set_clock(self, seconds: float) -> None:
        """Set the time."""
        time.clock_settime(time.CLOCK_REALTIME, seconds)

    def add_entropy(self, data: bytes) -> None:
        """Give the kernel's generator random bytes that count."""
        with Path("/dev/random").open("wb", buffering=0) as device:
            fcntl.ioctl(device, _ADD_ENTROPY, struct.pack("=ii", 8 * len(data), len(data)) + data)

    def raise_loopback(self) -> None:
        """Bring the loopback interface up, the only one that there is."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            asked = struct.pack("=16sH14x", b"lo", 0)
            (flags,) = struct.unpack_from("=H", fcntl.ioctl(any_socket, _GET_FLAGS, asked), 16)
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("=16sH14x", b"lo", flags | _UP))

    def give(self, path: Path, user: int) -> None:
        """Let a user and the group of the same number own a file."""
        os.chown(path, user, user)

    def gain_no_privileges(self) -> None:
        """Have no program that starts from now on gain a privilege; what a fork has, it keeps."""
        kernel_calls.check_call(kernel_calls.LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")

    def restart(self) -> None:
        """End the enclave: its command line makes of a restart its end."""
        os.sync()
        kernel_calls.LIBC.reboot(_RESTART)
