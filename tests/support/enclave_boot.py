"""An enclave image file booted in QEMU, its security module and its parent played by a test.

QEMU's ``microvm`` without ACPI and PCI is as an enclave is: devices on the command line alone. QEMU
11 is Debian 13's (backports), unpacked into a folder by ``tools/enclave/qemu.py``.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from vhost_user import NsmBackend, VsockBackend

from sealtrain.image.machine.enclavefile import COMMAND_LINE, KERNEL, RAMDISK, EnclaveFile

CID: Final = 16
_MODEL: Final = "microvm,acpi=off,memory-backend=mem,rtc=on"
NSM_ID: Final = 33
"""Virtio's number of security modules."""


class BootedEnclave:
    """A running guest. Use as a context: it ends with the block.

    Args:
        folder: For sockets and parts of the image; its path must be short.
        eif: The image file's bytes.
        qemu: Folder that ``tools/enclave/qemu.py`` wrote.
        nsm: The security module.
        services: Of the parent, by port.
        memory: MiB.
    """

    def __init__(
        self,
        folder: Path,
        eif: bytes,
        qemu: Path,
        *,
        nsm: Callable[[bytes], bytes],
        services: dict[int, object],
        memory: int,
    ) -> None:
        parts = EnclaveFile(eif)
        (folder / "kernel").write_bytes(parts.of_kind(KERNEL)[0])
        with (folder / "initrd").open("wb") as initrd:
            for ramdisk in parts.of_kind(RAMDISK):
                initrd.write(ramdisk)
        self.vsock = VsockBackend(folder / "vsock", CID, services)  # type: ignore[arg-type]
        self.nsm = NsmBackend(folder / "nsm", nsm)
        self.console: list[str] = []
        libraries = qemu / "usr/lib/x86_64-linux-gnu"
        share = qemu / "usr/share"
        self._command = [
            str(qemu / "usr/lib64/ld-linux-x86-64.so.2"),
            *("--library-path", str(libraries), str(qemu / "usr/bin/qemu-system-x86_64")),
            *("-L", str(share / "qemu"), "-L", str(share / "seabios"), "-M", _MODEL),
            *("-object", f"memory-backend-memfd,id=mem,size={memory}M,share=on"),
            *("-m", str(memory), "-smp", "1", "-accel", "tcg", "-cpu", "max"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-serial", "stdio", "-kernel", str(folder / "kernel")),
            *("-initrd", str(folder / "initrd")),
            *("-append", bytes(parts.of_kind(COMMAND_LINE)[0]).decode("ascii")),
            *("-chardev", f"socket,id=v,path={folder / 'vsock'}"),
            *("-device", "vhost-user-vsock-device,chardev=v"),
            *("-chardev", f"socket,id=n,path={folder / 'nsm'}"),
            "-device",
            f"vhost-user-test-device,chardev=n,virtio-id={NSM_ID},num_vqs=1,config_size=0",
        ]

    def __enter__(self) -> Self:
        self.machine = subprocess.Popen(  # our own words
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"]},
        )
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.machine.kill()
        self.machine.wait()

    def _listen(self) -> None:
        assert self.machine.stdout is not None
        for line in self.machine.stdout:
            self.console.append(line.decode("utf-8", "replace").rstrip())
