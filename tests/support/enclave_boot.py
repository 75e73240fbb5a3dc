"""An enclave image file booted in QEMU, its security module and its parent played by a test.

QEMU's ``microvm`` without ACPI and PCI is as an enclave is: devices on the command line alone. QEMU
11 is Debian 13's (backports), unpacked into a folder by ``tools/enclave/qemu.py``.
"""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from enclave_world import bound, reached
from nitro_world import PKI
from vhost_user import NsmBackend, VsockBackend

from sealtrain.guest.enclave.bridge import carry
from sealtrain.guest.enclave.ports import (
    HEARTBEAT,
    HEARTBEAT_PORT,
    STATUS_PORT,
    TUNNEL_PORT,
)
from sealtrain.image.machine.enclavebuild import EnclaveParts, build_enclave
from sealtrain.image.machine.enclavefile import (
    COMMAND_LINE,
    KERNEL,
    RAMDISK,
    EnclaveFile,
    measure_enclave,
)
from sealtrain_rehearsal.simulator.nitro import SimulatedNsm

CID: Final = 16
_MODEL: Final = "microvm,acpi=off,memory-backend=mem,rtc=on"
_CLOCK: Final = "2001-09-09T01:46:40"
"""What the host's clock says: its own matter, since an enclave's time is its security module's."""
ORDER: Final = (
    "virtio_mmio",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
    "nsm",
)
"""Modules as they are loaded."""
_LEAST_MIB: Final = 1536
"""That a broker was played with: four times its small file is less."""
ENCLAVE_ID: Final = "i-00000000000000001-enc0000000000000001"
STARTS_WITHIN: Final = 1500
"""Seconds, on a machine without hardware support and with other load."""
NSM_ID: Final = 33
"""Virtio's number of security modules."""


def image_file(cache: Path, image: str) -> bytes:
    """The enclave image file of a container image in the cache of ``tools/enclave/boot.py``."""
    parts = EnclaveParts(
        kernel=(cache / "kernel/vmlinuz").read_bytes(),
        modules={name: (cache / f"kernel/{name}.ko").read_bytes() for name in ORDER},
    )
    into = io.BytesIO()
    build_enclave(cache / "images" / image, parts, into)
    return into.getvalue()


class BootedEnclave:
    """A running guest. Use as a context: it ends with the block.

    Args:
        folder: For sockets and parts of the image; its path must be short.
        eif: The image file's bytes.
        qemu: Folder that ``tools/enclave/qemu.py`` wrote.
        nsm: The security module.
        services: Of the parent, by port.

    Attributes:
        memory: MiB that it starts with.
        ended: Set once QEMU has ended, whose last words are in ``console`` then.
    """

    def __init__(
        self,
        folder: Path,
        eif: bytes,
        qemu: Path,
        *,
        nsm: Callable[[bytes], bytes],
        services: dict[int, object],
    ) -> None:
        parts = EnclaveFile(eif)
        (folder / "kernel").write_bytes(parts.of_kind(KERNEL)[0])
        with (folder / "initrd").open("wb") as initrd:
            for ramdisk in parts.of_kind(RAMDISK):
                initrd.write(ramdisk)
        self.vsock = VsockBackend(folder / "vsock", CID, services)  # type: ignore[arg-type]
        self.nsm = NsmBackend(folder / "nsm", nsm)
        self.console: list[str] = []
        self.memory = 0
        self.ended = threading.Event()
        self.machine: subprocess.Popen[bytes] | None = None
        libraries = qemu / "usr/lib/x86_64-linux-gnu"
        share = qemu / "usr/share"
        self._command = [
            str(qemu / "usr/lib64/ld-linux-x86-64.so.2"),
            *("--library-path", str(libraries), str(qemu / "usr/bin/qemu-system-x86_64")),
            *("-L", str(share / "qemu"), "-L", str(share / "seabios"), "-M", _MODEL),
            *("-smp", "1", "-accel", "tcg", "-cpu", "max"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-rtc", f"base={_CLOCK}"),
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
        memory = ("-m", str(self.memory))
        backing = ("-object", f"memory-backend-memfd,id=mem,size={self.memory}M,share=on")
        self.machine = subprocess.Popen(  # our own words
            [*self._command, *memory, *backing],
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
        if self.machine is not None:
            self.machine.kill()
            self.machine.wait()
            assert self.ended.wait(30)
        self.vsock.close()
        self.nsm.close()

    def _listen(self) -> None:
        assert self.machine is not None
        assert self.machine.stdout is not None
        with self.machine.stdout as console:
            for line in console:
                self.console.append(line.decode("utf-8", "replace").rstrip())
        self.ended.set()


class PlayedParent:
    """nitro-cli that boots QEMU, and a parent's vsock whose sockets are unix sockets here.

    Args:
        folder: As ``BootedEnclave``.
        eif: As there.
        qemu: As there.
    """

    def __init__(self, folder: Path, eif: bytes, qemu: Path) -> None:
        self._folder = folder
        measured = measure_enclave(eif)
        self.nsm = SimulatedNsm(
            PKI,
            clock=lambda: int(time.time()),
            measured=(
                bytes.fromhex(measured[0]),
                bytes.fromhex(measured[1]),
                bytes.fromhex(measured[2]),
            ),
        )
        self._begun, self.began_at = time.monotonic(), time.time()
        self.beat = threading.Event()
        self.enclave = BootedEnclave(
            folder,
            eif,
            qemu,
            nsm=self.nsm,
            services={
                HEARTBEAT_PORT: self._heart,
                STATUS_PORT: self._carried(STATUS_PORT),
                TUNNEL_PORT: self._carried(TUNNEL_PORT),
            },
        )

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self._begun:7.1f} s  {what}", flush=True)

    def _heart(self, connection: socket.socket) -> None:
        assert connection.recv(1) == HEARTBEAT
        connection.sendall(HEARTBEAT)
        self.say("heartbeat")
        self.beat.set()

    def _carried(self, port: int) -> Any:
        def serve(connection: socket.socket) -> None:
            with reached(self._folder / f"parent-{port}") as other:
                carry(connection, other)

        return serve

    def listen(self, port: int) -> socket.socket:
        return bound(self._folder / f"parent-{port}")

    def connect(self, cid: int, port: int) -> socket.socket:
        assert cid == CID
        return self.enclave.vsock.connect(port)

    def cli(self, words: Sequence[str]) -> bytes:
        if words[0] == "run-enclave":
            named = dict(zip(words[1::2], words[2::2], strict=True))
            self.enclave.memory = max(int(named["--memory"]), _LEAST_MIB)
            self.say(f"{self.enclave.memory} MiB")
            self.enclave.__enter__()
            until = time.monotonic() + STARTS_WITHIN
            while not self.beat.wait(1):
                if self.enclave.ended.is_set() or time.monotonic() > until:
                    raise AssertionError("no heartbeat", *self.enclave.console)
            answer = {
                "EnclaveID": ENCLAVE_ID,
                "EnclaveCID": CID,
                "NumberOfCPUs": int(named["--cpu-count"]),
                "MemoryMiB": int(named["--memory"]),
            }
            return json.dumps(answer).encode()
        if words[0] == "describe-enclaves":
            machine = self.enclave.machine
            runs = machine is not None and machine.poll() is None
            state = "RUNNING" if runs else "TERMINATING"
            return json.dumps([{"EnclaveID": ENCLAVE_ID, "State": state}]).encode()
        self.enclave.__exit__(None, None, None)
        return b"{}"
