"""An enclave's kernel and its parent in one process: vsock is played by unix sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nitro_world import NOW, PKI

from sealtrain.guest.enclave.init import EnclaveInit
from sealtrain.guest.enclave.plan import Mount
from sealtrain.guest.enclave.ports import DOCUMENT_PORT
from sealtrain_rehearsal.simulator.nitro import SimulatedNsm

CASES = {
    case["name"]: case
    for case in json.loads(
        (Path(__file__).parents[2] / "vectors/recipe/compose.json").read_text("utf-8")
    )["cases"]
}
DOCUMENT = CASES["nitro"]["compose"].encode()
IMAGE = f"sha256:{'5a' * 32}"


class PlayedKernel:
    """Writes down what init asks for; its vsock is a folder of unix sockets.

    Attributes:
        done: What was asked, in order.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.done: list[tuple[object, ...]] = []

    def mount(self, what: Mount) -> None:
        self.done.append(("mount", what.target))

    def load_module(self, path: Path, parameters: str) -> None:
        self.done.append(("module", path.name, parameters))

    def load_no_more_modules(self) -> None:
        self.done.append(("no more modules",))

    def set_clock(self, seconds: float) -> None:
        self.done.append(("clock", seconds))

    def add_entropy(self, data: bytes) -> None:
        self.done.append(("entropy", len(data)))

    def raise_loopback(self) -> None:
        self.done.append(("loopback",))

    def give(self, path: Path, user: int) -> None:
        self.done.append(("give", path.name, user))

    def gain_no_privileges(self) -> None:
        self.done.append(("privileges",))

    def listen(self, port: int) -> socket.socket:
        """A port of the enclave."""
        self.done.append(("listen", port))
        return bound(self._folder / f"enclave-{port}")

    def connect(self, cid: int, port: int) -> socket.socket:
        """To a port of the parent."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self._folder / f"parent-{port}"))
        except OSError:
            connection.close()
            raise
        return connection


def bound(path: Path) -> socket.socket:
    """A unix socket that is bound anew."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    return listener


def reached(path: Path, seconds: float = 10) -> socket.socket:
    """A connection to a unix socket that may not listen yet."""
    waited = threading.Event()
    for _ in range(int(seconds * 100)):
        connection = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            connection.connect(str(path))
            connection.settimeout(seconds)
            return connection
        connection.close()
        waited.wait(0.01)
    raise TimeoutError(path.name)


def answering(path: Path, answer: Callable[[socket.socket], None]) -> socket.socket:
    """A listener that answers each connection in a thread, until it is closed."""
    listener = bound(path)
    listener.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    return listener


def stopped(listener: socket.socket) -> None:
    """Close a listener whose thread waits in ``accept``."""
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


class Enclave:
    """An init with its kernel, module and files."""

    def __init__(self, folder: Path) -> None:
        self.sockets = folder / "s"
        self.sockets.mkdir()
        self.kernel = PlayedKernel(self.sockets)
        self.nsm = SimulatedNsm(PKI, clock=lambda: NOW)
        for name in ("dev", "proc"):  # of the boot ramdisk
            (folder / name).mkdir()
        (folder / "proc/cmdline").write_text(
            "quiet virtio_mmio.device=4K@0xd0000000:5 nsm.a=1 virtio-mmio.device=4K@0xd0001000:6\n"
        )
        (folder / "enclave").mkdir()
        (folder / "enclave/order").write_text("virtio_mmio\nnsm\n")
        (folder / "enclave/image").write_text(f"{IMAGE}\n")
        self.files = folder
        self.init = EnclaveInit(
            self.kernel,
            files=folder,
            nsm=lambda: self.nsm,
            sleep=lambda _: None,
            is_parent=lambda _: True,
        )

    def given(self, *parts: bytes) -> Any:
        """What ``measure`` does where a parent sends this; an exception it raises is returned."""

        def give() -> None:
            with reached(self.sockets / f"enclave-{DOCUMENT_PORT}") as connection:
                for part in parts:
                    connection.sendall(part)

        thread = threading.Thread(target=give)
        thread.start()
        try:
            return self.init.measure()
        except Exception as error:  # returned to the caller
            return error
        finally:
            thread.join()
